//! What threads wait for, and the list of waiting threads in a report.

use std::panic::Location;

use crate::block::Block;
use crate::clock::WARP_SIZE;
use crate::fault::{FaultKind, Waiting};
use crate::grid::Grids;
use crate::machine::{At, Machine};

/// What a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Point {
    /// `bar.sync` of this number.
    Barrier(u32),
    /// The lanes `mask` of a warp, in the same instruction.
    Warp { warp: usize, instruction: &'static str, mask: u32 },
    /// All threads of a warpgroup, in the same instruction.
    Warpgroup { warpgroup: usize, instruction: &'static str },
    /// The end of an mbarrier's phase: the slot of its block, and its address there.
    Mbarrier { place: usize, address: u64, parity: u32 },
    /// The barrier of the cluster.
    Cluster,
    /// Registers that other warps have to release.
    Registers,
    /// A change of memory that it polls: of global memory, or of the shared memory of the block in
    /// this slot.
    Change { place: Option<usize>, address: u64 },
}

impl Machine {
    /// The threads of a warp execute an `.aligned` instruction converged: no other thread of the
    /// warp waits at `point` that came from another source line than the thread that runs.
    pub fn check_converged(
        &self,
        point: Point,
        instruction: &str,
        location: At,
    ) -> Result<(), FaultKind> {
        let (place, thread) = self.current;
        let block = &self.blocks[place];
        let first = thread / WARP_SIZE * WARP_SIZE;
        let warp = block.threads.iter().enumerate().skip(first).take(WARP_SIZE);
        let mut waits = warp.filter_map(|(lane, thread)| Some((lane, thread.waits?)));
        // All waiting threads came from one line, as each was checked; so one of them is enough.
        let one = waits.find(|(_, (at, _))| *at == point);
        let Some((lane, (_, elsewhere))) = one else { return Ok(()) };
        if std::ptr::eq(elsewhere, location) || elsewhere == location {
            return Ok(());
        }
        let other = self.grids.party((block.index, lane), elsewhere);
        Err(FaultKind::Invalid(format!(
            "{instruction} in divergent code: all threads of a warp must execute the same one, but \
             {other} waits at another"
        )))
    }
}

impl Point {
    /// The first warp of those that meet there.
    pub fn first_warp(self) -> usize {
        match self {
            Point::Warp { warp, .. } => warp,
            Point::Warpgroup { warpgroup, .. } => 4 * warpgroup,
            _ => 0,
        }
    }
}

impl Block {
    /// The waiting threads, grouped by source line; `describe` says what is missing at a point.
    pub fn waiting(&self, grids: &Grids, describe: impl Fn(Point) -> String) -> Vec<Waiting> {
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
            let first = grids.party((self.index, index), location);
            let waiting = Waiting { first, threads: 1, what: describe(point) };
            places.push((point, location, waiting));
        }
        places.into_iter().map(|(_, _, waiting)| waiting).collect()
    }

    /// What is missing for a thread of the block that waits at `point`.
    pub fn describe(&self, point: Point) -> String {
        match point {
            Point::Barrier(id) => self.barriers[id as usize].describe(id, self.live),
            Point::Warp { warp, instruction, mask } => {
                let arrived = self.arrived(point);
                let missing: Vec<_> = (0..WARP_SIZE)
                    .filter(|&lane| mask >> lane & 1 == 1)
                    .filter(|&lane| !arrived.contains(warp * WARP_SIZE + lane))
                    .map(|lane| self.lane(warp * WARP_SIZE + lane, lane))
                    .collect();
                format!("waits in {instruction} for lanes {}", missing.join(", "))
            }
            Point::Warpgroup { warpgroup, instruction } => {
                let arrived = self.arrived(point);
                let threads = warpgroup * 4 * WARP_SIZE..(warpgroup + 1) * 4 * WARP_SIZE;
                let missing = threads.filter(|thread| !arrived.contains(*thread));
                let missing: Vec<_> = missing.map(|thread| self.lane(thread, thread)).collect();
                let (few, more) = missing.split_at(missing.len().min(4));
                let more = if more.is_empty() {
                    String::new()
                } else {
                    format!(" and {} more", more.len())
                };
                format!("waits in {instruction} for threads {}{more}", few.join(", "))
            }
            Point::Mbarrier { address, parity, .. } => {
                let state = self.mbarriers.get(&address);
                let state = state.map_or_else(|| "there is none now".into(), |m| m.describe());
                let at = self.shared.describe(address);
                format!("waits for phase parity {parity} of the mbarrier at {at}: {state}")
            }
            Point::Cluster => "waits at barrier.cluster".to_owned(),
            Point::Registers => "waits in setmaxnreg for registers of other warps".to_owned(),
            Point::Change { .. } => "waits for a change of memory".to_owned(),
        }
    }

    fn lane(&self, thread: usize, number: usize) -> String {
        match self.threads.get(thread) {
            None => format!("{number} (not in the block)"),
            Some(thread) if thread.ended => format!("{number} (ended)"),
            Some(_) => number.to_string(),
        }
    }
}
