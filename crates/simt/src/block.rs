//! A resident block: its threads, its shared memory, and its collectives.

use std::collections::HashMap;
use std::panic::Location;
use std::rc::Rc;

use crate::agent::{Agents, Groups};
use crate::atomic::Fences;
use crate::banks::WarpAccesses;
use crate::barrier::{Barrier, NUM_BARRIERS};
use crate::clock::{Clock, Knowledge, WARP_SIZE, join_warp};
use crate::copy::Copy;
use crate::fault::FaultKind;
use crate::layout::{Layout, MAX_SHARED_BYTES};
use crate::mbarrier::Mbarrier;
use crate::memory::{Region, Regions};
use crate::point::Point;
use crate::product::Products;

/// Where dynamic shared memory starts in the shared window; a multiple of 1024.
const DYNAMIC_START: u64 = 1024;

/// Unused bytes between two arrays.
const GUARD_BYTES: u64 = 64;

/// A lane's operands of a collective, and its results.
pub type Words = [u32; 12];

/// A thread of a block.
#[derive(Default)]
pub(crate) struct Thread {
    /// Where it waits.
    pub waits: Option<(Point, &'static Location<'static>)>,
    pub ended: bool,
    /// The results of its last collective.
    pub result: Words,
    /// `cp.async` copies of the thread.
    pub copies: Groups<Copy>,
    /// Bulk copies of the thread to global memory, by their numbers.
    pub bulk: Groups<u64>,
    /// The `wgmma` operations of its warpgroup.
    pub products: Groups<()>,
    pub products_done: u32,
    /// How often it has executed `wgmma.fence`.
    pub product_fences: u32,
    pub fences: Fences,
    /// What `fence.mbarrier_init` publishes of its mbarriers, to threads that pass the cluster's
    /// barrier.
    pub made_mbarriers: Option<Knowledge>,
    /// The phase of the cluster's barrier at which it has arrived and not waited.
    pub cluster_phase: Option<u32>,
    pub registers: u32,
}

/// The threads that have reached a collective, and their operands.
pub(crate) struct WarpCollective {
    point: Point,
    pub arrived: Arrived,
    pub values: Box<[Words; WARP_SIZE]>,
    /// The first thread, and the first from another line.
    first: CallSite,
    elsewhere: Option<CallSite>,
}

/// A thread, and the line of the kernel that it is at.
type CallSite = (usize, &'static Location<'static>);

/// Threads of a warp or of a warpgroup.
#[derive(Clone, Copy)]
pub(crate) struct Arrived {
    first: usize,
    /// A bit a thread, from the first one on.
    threads: u128,
}

impl Arrived {
    /// No thread yet of those that meet at `point`.
    fn none(point: Point) -> Self {
        Arrived { first: point.first_warp() * WARP_SIZE, threads: 0 }
    }

    fn add(&mut self, thread: usize) {
        self.threads |= 1 << (thread - self.first);
    }

    fn len(self) -> usize {
        self.threads.count_ones() as usize
    }

    pub fn contains(self, thread: usize) -> bool {
        self.iter().any(|arrived| arrived == thread)
    }

    /// All of them, ascending.
    pub fn iter(self) -> impl Iterator<Item = usize> + Clone {
        let mut threads = self.threads;
        std::iter::from_fn(move || {
            let thread = (threads != 0).then(|| self.first + threads.trailing_zeros() as usize)?;
            threads &= threads - 1;
            Some(thread)
        })
    }
}

/// A resident block.
pub(crate) struct Block {
    /// Number of the block among the blocks of all launches.
    pub index: u64,
    /// What earlier launches of its stream have done.
    pub before: Option<Rc<Knowledge>>,
    /// Whether they may still run, until `griddepcontrol.wait`.
    pub overlaps: bool,
    pub threads: Vec<Thread>,
    pub agents: Agents,
    pub shared: Regions,
    /// The static arrays that a thread has reached: keys and addresses.
    arrays: Vec<((&'static str, usize), u64)>,
    pub barriers: [Barrier; NUM_BARRIERS],
    pub mbarriers: HashMap<u64, Mbarrier>,
    /// By warpgroup.
    pub products: Vec<Products>,
    /// By warp; a warpgroup's are those of its first warp.
    collectives: Vec<Vec<WarpCollective>>,
    /// Collectives that are over, whose buffers are used again.
    spare_collectives: Vec<WarpCollective>,
    /// Threads that have not ended.
    pub live: usize,
    /// Registers of all its threads.
    pub registers: u32,
    /// Whether a thread has read what was released, but one of the two scopes was too narrow.
    pub met_narrow_scope: bool,
    /// Whether a thread has executed `griddepcontrol.wait`.
    pub waited_for_launches: bool,
    /// By warp.
    shared_accesses: Vec<WarpAccesses>,
    /// The first collective whose lanes came from different lines, and one lane of each.
    pub pairing: Option<(&'static str, [CallSite; 2])>,
}

impl Block {
    pub fn new(index: u64, layout: &Layout, before: Option<Rc<Knowledge>>, overlaps: bool) -> Self {
        let num_threads = layout.threads_per_block();
        let mut shared = Regions::default();
        let name = "dynamic shared memory".to_owned();
        let bytes = layout.geometry.shared_bytes as usize;
        shared.push(Region::poisoned(name, DYNAMIC_START, bytes));
        let registers = crate::registers::at_start(num_threads);
        let thread = || Thread { registers, ..Thread::default() };
        Block {
            index,
            before,
            overlaps,
            threads: (0..num_threads).map(|_| thread()).collect(),
            agents: Agents::new(num_threads),
            shared,
            arrays: Vec::new(),
            barriers: Default::default(),
            mbarriers: HashMap::new(),
            products: (0..num_threads / (4 * WARP_SIZE)).map(|_| Products::default()).collect(),
            collectives: (0..num_threads.div_ceil(WARP_SIZE)).map(|_| Vec::new()).collect(),
            spare_collectives: Vec::new(),
            live: num_threads,
            registers: registers * num_threads as u32,
            met_narrow_scope: false,
            waited_for_launches: false,
            shared_accesses: (0..num_threads.div_ceil(WARP_SIZE))
                .map(|_| Default::default())
                .collect(),
            pairing: None,
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

    /// Address of a static array, which is placed after all others when a thread first reaches it.
    pub fn array(
        &mut self,
        key: (&'static str, usize),
        (bytes, align): (usize, usize),
        location: &'static Location<'static>,
    ) -> Result<u64, FaultKind> {
        if let Some((_, address)) = self.arrays.iter().find(|(known, _)| *known == key) {
            return Ok(*address);
        }
        let end = self.shared.end().unwrap_or(DYNAMIC_START);
        let start = (end + GUARD_BYTES).next_multiple_of(align.max(16) as u64);
        // The gaps exist on the emulator only.
        let gaps = GUARD_BYTES * 2 * (1 + self.arrays.len() as u64);
        if start + bytes as u64 > DYNAMIC_START + gaps + u64::from(MAX_SHARED_BYTES) {
            return Err(FaultKind::Launch(format!(
                "the shared array of {bytes} bytes at {location} makes shared memory larger than \
                 {MAX_SHARED_BYTES} bytes"
            )));
        }
        let name = format!("shared array of {}:{}", location.file(), location.line());
        self.shared.push(Region::poisoned(name, start, bytes));
        self.arrays.push((key, start));
        Ok(start)
    }

    /// Thread `thread` reaches `point`, where `wanted` threads of a warp or warpgroup meet, with
    /// the operands `words`. Gives the collective if it is the last one, else `None`: it has to wait.
    pub fn meet(
        &mut self,
        thread: usize,
        (point, wanted): (Point, usize),
        words: Words,
        location: &'static Location<'static>,
    ) -> Option<WarpCollective> {
        let collectives = &mut self.collectives[point.first_warp()];
        let found = collectives.iter().position(|collective| collective.point == point);
        let index = found.unwrap_or_else(|| {
            let spare = self.spare_collectives.pop();
            let values = spare.map(|collective| collective.values).unwrap_or_default();
            let (arrived, first) = (Arrived::none(point), (thread, location));
            collectives.push(WarpCollective { point, arrived, values, first, elsewhere: None });
            collectives.len() - 1
        });
        let collective = &mut collectives[index];
        collective.arrived.add(thread);
        let expected = collective.first.1;
        if !std::ptr::eq(expected, location) && expected != location {
            collective.elsewhere.get_or_insert((thread, location));
        }
        collective.values[thread % WARP_SIZE] = words;
        if collective.arrived.len() < wanted {
            self.threads[thread].waits = Some((point, location));
            return None;
        }
        Some(collectives.swap_remove(index))
    }

    /// Keeps the first collective whose lanes came from different lines, for reports.
    pub fn note_pairing(&mut self, instruction: &'static str, collective: &WarpCollective) {
        if let (None, Some(elsewhere)) = (self.pairing, collective.elsewhere) {
            self.pairing = Some((instruction, [collective.first, elsewhere]));
        }
    }

    /// The operands of a collective are no longer needed.
    pub fn end_collective(&mut self, mut collective: WarpCollective) {
        collective.values.fill(Words::default());
        self.spare_collectives.push(collective);
    }

    /// The threads that have reached `point`.
    pub fn arrived(&self, point: Point) -> Arrived {
        let mut collectives = self.collectives[point.first_warp()].iter();
        let found = collectives.find(|collective| collective.point == point);
        found.map_or(Arrived::none(point), |collective| collective.arrived)
    }

    /// Thread `thread` ends; gives the threads at a barrier that were waiting for it only.
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

/// Orders the memory accesses of the lanes that met, if the instruction does: a shuffle or a vote
/// does not.
pub(crate) fn order_warp(instruction: &str, arrived: Arrived, clocks: &mut [Clock]) {
    if instruction == crate::SYNC_WARP {
        join_warp(clocks, arrived.iter());
    }
}
