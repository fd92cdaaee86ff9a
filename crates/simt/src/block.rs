//! A block that is resident: its threads, its shared memory, and where they meet.

use std::collections::HashMap;
use std::panic::Location;

use crate::agent::{Agents, Groups};
use crate::atomic::Fences;
use crate::banks::WarpAccesses;
use crate::barrier::{Barrier, NUM_BARRIERS};
use crate::clock::{Clock, Knowledge, WARP_SIZE, join_warp};
use crate::copy::Copy;
use crate::fault::FaultKind;
use crate::geometry::{Geometry, MAX_SHARED_BYTES};
use crate::mbarrier::Mbarrier;
use crate::memory::{Region, Regions};
use crate::point::Point;
use crate::product::Products;

/// Where dynamic shared memory starts in the shared window; a multiple of 1024.
const DYNAMIC_START: u64 = 1024;

/// Addresses between two arrays that belong to neither.
const GUARD_BYTES: u64 = 64;

/// What a lane brings to a collective, and what it gets.
pub type Words = [u32; 12];

/// A thread of a block.
#[derive(Default)]
pub(crate) struct Thread {
    /// Where it waits.
    pub waits: Option<(Point, &'static Location<'static>)>,
    pub ended: bool,
    /// What the collective that it waited for gave it.
    pub result: Words,
    /// Its `cp.async` copies.
    pub copies: Groups<Copy>,
    /// Its bulk copies to global memory, by their numbers.
    pub bulk: Groups<u64>,
    /// The matrix products of its warpgroup.
    pub products: Groups<()>,
    pub products_done: u32,
    pub fences: Fences,
    /// What it has made known of its mbarriers, for those behind the cluster's barrier.
    pub made_mbarriers: Option<Knowledge>,
    /// The phase of the cluster's barrier that it has come to and not waited for.
    pub cluster_phase: Option<u32>,
    pub registers: u32,
}

/// The threads that have reached a point, and what they brought.
struct Meeting {
    point: Point,
    arrived: Vec<usize>,
    values: Box<[Words; WARP_SIZE]>,
}

/// A resident block.
pub(crate) struct Block {
    /// Its place among the blocks of the grid.
    pub index: u64,
    pub threads: Vec<Thread>,
    pub agents: Agents,
    pub shared: Regions,
    /// The static arrays that a thread has reached: their keys, and addresses.
    arrays: Vec<((&'static str, usize), u64)>,
    pub barriers: [Barrier; NUM_BARRIERS],
    pub mbarriers: HashMap<u64, Mbarrier>,
    /// By warpgroup.
    pub products: Vec<Products>,
    /// By warp; those of a warpgroup are its first one's.
    meetings: Vec<Vec<Meeting>>,
    /// Threads that have not ended.
    pub live: usize,
    /// Whether a thread has waited for the launches before.
    pub waited_for_launches: bool,
    /// By warp.
    shared_accesses: Vec<WarpAccesses>,
}

impl Block {
    pub fn new(index: u64, geometry: &Geometry) -> Self {
        let num_threads = geometry.threads_per_block();
        let mut shared = Regions::default();
        let name = "dynamic shared memory".to_owned();
        let bytes = geometry.shared_bytes as usize;
        shared.push(Region::poisoned(name, DYNAMIC_START, bytes));
        let registers = crate::registers::at_start(num_threads);
        let thread = || Thread { registers, ..Thread::default() };
        Block {
            index,
            threads: (0..num_threads).map(|_| thread()).collect(),
            agents: Agents::new(num_threads),
            shared,
            arrays: Vec::new(),
            barriers: Default::default(),
            mbarriers: HashMap::new(),
            products: (0..num_threads / (4 * WARP_SIZE)).map(|_| Products::default()).collect(),
            meetings: (0..num_threads.div_ceil(WARP_SIZE)).map(|_| Vec::new()).collect(),
            live: num_threads,
            waited_for_launches: false,
            shared_accesses: (0..num_threads.div_ceil(WARP_SIZE))
                .map(|_| Default::default())
                .collect(),
        }
    }

    /// Thread `thread` accesses shared memory; gives the bank conflicts that are complete now.
    pub fn count_conflicts(
        &mut self,
        thread: usize,
        location: &'static Location<'static>,
        bytes: (u64, usize),
    ) -> u64 {
        let (warp, lane) = (thread / WARP_SIZE, thread % WARP_SIZE);
        let num_lanes = (self.threads.len() - warp * WARP_SIZE).min(WARP_SIZE);
        self.shared_accesses[warp].note((lane, num_lanes), location, bytes)
    }

    /// The bank conflicts of accesses that only some lanes have made, at the block's end.
    pub fn remaining_conflicts(&mut self) -> u64 {
        self.shared_accesses.drain(..).map(WarpAccesses::finish).sum()
    }

    /// Address of dynamic shared memory.
    pub fn dynamic_start(&self) -> u64 {
        DYNAMIC_START
    }

    /// Address of a static array, which lies behind all others once a thread has reached it.
    pub fn array(
        &mut self,
        key: (&'static str, usize),
        bytes: usize,
        align: usize,
    ) -> Result<u64, FaultKind> {
        if let Some((_, address)) = self.arrays.iter().find(|(known, _)| *known == key) {
            return Ok(*address);
        }
        let end = self.shared.end().unwrap_or(DYNAMIC_START);
        let start = (end + GUARD_BYTES).next_multiple_of(align.max(16) as u64);
        // The gaps are the emulator's own.
        let gaps = GUARD_BYTES * 2 * (1 + self.arrays.len() as u64);
        if start + bytes as u64 > DYNAMIC_START + gaps + u64::from(MAX_SHARED_BYTES) {
            return Err(FaultKind::Launch(format!(
                "a static array of {bytes} bytes makes shared memory larger than \
                 {MAX_SHARED_BYTES} bytes"
            )));
        }
        self.shared.push(Region::poisoned(format!("shared array {}", key.1), start, bytes));
        self.arrays.push((key, start));
        Ok(start)
    }

    /// Thread `thread` reaches `point`, where `wanted` threads of a warp or a warpgroup meet, with
    /// `words`. Gives all of them if it is the last, with what they brought; or else `None`: it has
    /// to wait.
    pub fn meet(
        &mut self,
        thread: usize,
        (point, wanted): (Point, usize),
        words: Words,
        location: &'static Location<'static>,
    ) -> Option<(Vec<usize>, Box<[Words; WARP_SIZE]>)> {
        let meetings = &mut self.meetings[point.first_warp()];
        let found = meetings.iter().position(|meeting| meeting.point == point);
        let index = found.unwrap_or_else(|| {
            let arrived = Vec::with_capacity(wanted);
            meetings.push(Meeting { point, arrived, values: Default::default() });
            meetings.len() - 1
        });
        let meeting = &mut meetings[index];
        meeting.arrived.push(thread);
        meeting.values[thread % WARP_SIZE] = words;
        if meeting.arrived.len() < wanted {
            self.threads[thread].waits = Some((point, location));
            return None;
        }
        let Meeting { mut arrived, values, .. } = meetings.swap_remove(index);
        arrived.sort_unstable();
        Some((arrived, values))
    }

    /// The threads that have reached `point`.
    pub fn arrived(&self, point: Point) -> &[usize] {
        let mut meetings = self.meetings[point.first_warp()].iter();
        let found = meetings.find(|meeting| meeting.point == point);
        found.map_or(&[], |meeting| &meeting.arrived)
    }

    /// Thread `thread` ends; gives the threads that waited for it alone at a barrier.
    pub fn end_thread(&mut self, thread: usize, clocks: &mut [Clock]) -> Vec<usize> {
        self.threads[thread].ended = true;
        self.live -= 1;
        let live = self.live;
        let completed =
            self.barriers.iter_mut().filter_map(|barrier| barrier.complete(live, clocks));
        completed.flatten().collect()
    }

    /// Whether all threads have ended.
    pub fn is_done(&self) -> bool {
        self.live == 0
    }
}

/// The lanes of a full meeting know of each other, if it was one that orders memory accesses: a
/// shuffle or a vote does not.
pub(crate) fn order_warp(instruction: &str, arrived: &[usize], clocks: &mut [Clock]) {
    if instruction == crate::SYNC_WARP {
        join_warp(clocks, arrived);
    }
}
