//! A block that is resident: its threads, its shared memory, and where they meet.

use crate::banks::WarpAccesses;
use crate::clock::{Clock, WARP_SIZE, join_block, join_warp};
use crate::fault::{FaultKind, Waiting};
use crate::geometry::{Geometry, MAX_SHARED_BYTES};
use crate::memory::{Region, Regions};
use std::collections::VecDeque;
use std::panic::Location;

/// Where dynamic shared memory starts in the shared window; a multiple of 1024.
const DYNAMIC_START: u64 = 1024;

/// Addresses between two arrays that belong to neither.
const GUARD_BYTES: u64 = 64;

/// An asynchronous copy of one thread, from global to shared memory.
pub(crate) struct Copy {
    pub dst: u64,
    pub dst_len: usize,
    pub src: u64,
    pub src_len: usize,
    /// Whether the bytes are moved already.
    pub moved: bool,
    pub location: &'static Location<'static>,
}

/// What a lane brings to a collective, and what it gets.
pub type Words = [u32; 12];

/// A thread of a block.
#[derive(Default)]
pub(crate) struct Thread {
    /// Where it waits.
    waits: Option<(Point, &'static Location<'static>)>,
    pub ended: bool,
    /// What the collective that it waited for gave it.
    pub result: Words,
    /// Its asynchronous copies: the groups that it has closed, and the one that is open.
    pub groups: VecDeque<Vec<Copy>>,
    pub open_group: Vec<Copy>,
}

/// Something that several threads must reach before one of them goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// `bar.sync 0`: every thread of the block that has not ended.
    Barrier,
    /// The lanes `mask` of a warp, in the same instruction.
    Warp { warp: usize, instruction: &'static str, mask: u32 },
}

/// The threads that have reached a point, and what they brought.
struct Meeting {
    point: Point,
    arrived: Vec<usize>,
    values: [Words; WARP_SIZE],
}

/// A resident block.
pub(crate) struct Block {
    /// Its place among the blocks of the grid.
    pub index: u64,
    pub threads: Vec<Thread>,
    pub clocks: Vec<Clock>,
    pub shared: Regions,
    /// The static arrays that a thread has reached: their keys, and addresses.
    arrays: Vec<((&'static str, usize), u64)>,
    meetings: Vec<Meeting>,
    live: usize,
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
        Block {
            index,
            threads: (0..num_threads).map(|_| Thread::default()).collect(),
            clocks: Clock::start(num_threads),
            shared,
            arrays: Vec::new(),
            meetings: Vec::new(),
            live: num_threads,
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

    /// Thread `thread` reaches `point` with `words`. If it is the last, `finish` turns what all
    /// brought into what each gets; gives the threads that waited and go on, or `None` if `thread`
    /// has to wait itself.
    pub fn meet(
        &mut self,
        thread: usize,
        point: Point,
        words: Words,
        location: &'static Location<'static>,
        finish: impl FnOnce(&mut [Words; WARP_SIZE]),
    ) -> Option<Vec<usize>> {
        let found = self.meetings.iter().position(|meeting| meeting.point == point);
        let meeting = found.unwrap_or_else(|| {
            let values = [Words::default(); WARP_SIZE];
            self.meetings.push(Meeting { point, arrived: Vec::new(), values });
            self.meetings.len() - 1
        });
        self.meetings[meeting].arrived.push(thread);
        self.meetings[meeting].values[thread % WARP_SIZE] = words;
        if self.meetings[meeting].arrived.len() < self.wanted(point) {
            self.threads[thread].waits = Some((point, location));
            return None;
        }
        let Meeting { mut arrived, mut values, .. } = self.meetings.swap_remove(meeting);
        finish(&mut values);
        for &thread in &arrived {
            self.threads[thread].result = values[thread % WARP_SIZE];
        }
        self.release(&mut arrived, point);
        arrived.retain(|&other| other != thread);
        Some(arrived)
    }

    /// How many threads a point waits for.
    fn wanted(&self, point: Point) -> usize {
        match point {
            Point::Barrier => self.live,
            Point::Warp { mask, .. } => mask.count_ones() as usize,
        }
    }

    /// The threads of a full meeting wait no longer, and know of each other if the point orders
    /// memory.
    fn release(&mut self, arrived: &mut [usize], point: Point) {
        arrived.sort_unstable();
        for &thread in arrived.iter() {
            self.threads[thread].waits = None;
        }
        match point {
            Point::Barrier => join_block(&mut self.clocks, arrived),
            Point::Warp { instruction: crate::SYNC_WARP, .. } => {
                join_warp(&mut self.clocks, arrived);
            }
            // A shuffle or a vote orders no memory accesses.
            Point::Warp { .. } => {}
        }
    }

    /// Thread `thread` ends; gives the threads that waited for it alone at the barrier.
    pub fn end_thread(&mut self, thread: usize) -> Vec<usize> {
        self.threads[thread].ended = true;
        self.live -= 1;
        let full = |meeting: &Meeting| {
            meeting.point == Point::Barrier && meeting.arrived.len() == self.live
        };
        let Some(barrier) = self.meetings.iter().position(full) else { return Vec::new() };
        let mut arrived = self.meetings.swap_remove(barrier).arrived;
        self.release(&mut arrived, Point::Barrier);
        arrived
    }

    /// Whether all threads have ended.
    pub fn is_done(&self) -> bool {
        self.live == 0
    }

    /// Who waits for what, a place in the kernel a line.
    pub fn waiting(&self, geometry: &Geometry) -> Vec<Waiting> {
        let start = self.index * self.threads.len() as u64;
        let mut places: Vec<(Point, &Location<'_>, Waiting)> = Vec::new();
        for (index, thread) in self.threads.iter().enumerate() {
            let Some((point, location)) = thread.waits else { continue };
            let same = |place: &&mut (Point, &Location<'_>, Waiting)| {
                place.0 == point && place.1 == location
            };
            if let Some((_, _, waiting)) = places.iter_mut().find(same) {
                waiting.threads += 1;
                continue;
            }
            let first = geometry.party(start + index as u64, location);
            let waiting = Waiting { first, threads: 1, what: self.describe(point) };
            places.push((point, location, waiting));
        }
        places.into_iter().map(|(_, _, waiting)| waiting).collect()
    }

    /// What a thread that waits at `point` waits for.
    fn describe(&self, point: Point) -> String {
        let arrived = self.meetings.iter().find(|meeting| meeting.point == point);
        let arrived: &[usize] = arrived.map_or(&[], |meeting| &meeting.arrived);
        match point {
            Point::Barrier => format!(
                "waits at bar.sync 0, which {} of the {} threads that have not ended have reached",
                arrived.len(),
                self.live
            ),
            Point::Warp { warp, instruction, mask } => {
                let lane_of = |lane: usize| match self.threads.get(warp * WARP_SIZE + lane) {
                    None => format!("{lane} (not in the block)"),
                    Some(thread) if thread.ended => format!("{lane} (ended)"),
                    Some(_) => lane.to_string(),
                };
                let missing: Vec<_> = (0..WARP_SIZE)
                    .filter(|&lane| mask >> lane & 1 == 1)
                    .filter(|&lane| !arrived.contains(&(warp * WARP_SIZE + lane)))
                    .map(lane_of)
                    .collect();
                format!("waits in {instruction} for lanes {}", missing.join(", "))
            }
        }
    }
}
