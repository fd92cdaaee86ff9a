//! The sixteen barriers of a block (`bar.sync`, `bar.arrive`).

use crate::clock::{Clock, Knowledge, WARP_SIZE, join_block};
use crate::fault::FaultKind;
use crate::machine::{At, Machine};
use crate::point::Point;

/// Barriers of a block.
pub(crate) const NUM_BARRIERS: usize = 16;

/// One of a block's barriers.
#[derive(Default)]
pub(crate) struct Barrier {
    /// Threads that it waits for; `None` for all of the block.
    wanted: Option<usize>,
    /// Threads that wait at it.
    waiting: Vec<usize>,
    /// Threads that have arrived without waiting, and their clocks.
    arrived: usize,
    released: Option<Knowledge>,
}

impl Barrier {
    /// How many threads have arrived.
    fn count(&self) -> usize {
        self.waiting.len() + self.arrived
    }

    /// A thread arrives whose instruction names `wanted` threads.
    fn arrive_for(&mut self, wanted: Option<usize>) -> Result<(), String> {
        if self.count() > 0 && self.wanted != wanted {
            let name = |wanted: Option<usize>| {
                wanted.map_or_else(|| "all".to_owned(), |wanted| wanted.to_string())
            };
            return Err(format!(
                "this barrier's threads name different thread counts: {} and {}",
                name(self.wanted),
                name(wanted)
            ));
        }
        self.wanted = wanted;
        Ok(())
    }

    /// `thread` waits.
    pub fn wait(&mut self, thread: usize, wanted: Option<usize>) -> Result<(), String> {
        self.arrive_for(wanted)?;
        self.waiting.push(thread);
        Ok(())
    }

    /// A thread arrives, and does not wait.
    pub fn arrive(&mut self, knowledge: Knowledge, wanted: usize) -> Result<(), String> {
        self.arrive_for(Some(wanted))?;
        self.arrived += 1;
        match &mut self.released {
            Some(released) => released.join(&knowledge),
            released => *released = Some(knowledge),
        }
        Ok(())
    }

    /// If all have arrived, of `live` threads in the block: those that waited, now ordered after
    /// each other's accesses.
    pub fn complete(&mut self, live: usize, clocks: &mut [Clock]) -> Option<Vec<usize>> {
        if self.count() == 0 || self.count() < self.wanted.unwrap_or(live) {
            return None;
        }
        let Barrier { mut waiting, released, .. } = std::mem::take(self);
        waiting.sort_unstable();
        join_block(clocks, &waiting, released.as_ref());
        Some(waiting)
    }

    pub fn describe(&self, id: u32, live: usize) -> String {
        let count = self.count();
        match self.wanted {
            None => format!(
                "waits at bar.sync {id}, which {count} of the {live} threads that have not ended \
                 have reached"
            ),
            Some(wanted) => {
                format!("waits at bar.sync {id}, which {count} of {wanted} threads have reached")
            }
        }
    }
}

impl Machine {
    /// The thread reaches barrier `id` of `wanted` threads (all, if `None`); whether it can go on.
    pub fn bar_sync(
        &mut self,
        id: u32,
        wanted: Option<u32>,
        location: At,
    ) -> Result<bool, FaultKind> {
        let (place, thread) = self.current;
        check_barrier(id, wanted)?;
        let wanted = wanted.map(|wanted| wanted as usize);
        let block = &mut self.blocks[place];
        block.barriers[id as usize].wait(thread, wanted).map_err(FaultKind::Invalid)?;
        let woken = self.complete_barrier(id);
        if woken.is_empty() {
            self.wait(Point::Barrier(id), location);
        }
        let is_last = !woken.is_empty();
        self.wake(place, woken.into_iter().filter(|&other| other != thread));
        Ok(is_last)
    }

    /// The thread arrives at barrier `id` of `wanted` threads, and goes on.
    pub fn bar_arrive(&mut self, id: u32, wanted: u32) -> Result<(), FaultKind> {
        let (place, thread) = self.current;
        check_barrier(id, Some(wanted))?;
        let knowledge = self.clock().release(thread);
        let barrier = &mut self.blocks[place].barriers[id as usize];
        barrier.arrive(knowledge, wanted as usize).map_err(FaultKind::Invalid)?;
        let woken = self.complete_barrier(id);
        self.wake(place, woken);
        Ok(())
    }

    /// The threads that wait at barrier `id`, if all have arrived.
    fn complete_barrier(&mut self, id: u32) -> Vec<usize> {
        let place = self.current.0;
        let block = &mut self.blocks[place];
        let live = block.live;
        block.barriers[id as usize].complete(live, &mut self.clocks[place]).unwrap_or_default()
    }
}

fn check_barrier(id: u32, wanted: Option<u32>) -> Result<(), FaultKind> {
    if id as usize >= NUM_BARRIERS {
        let why = format!("barrier {id}: a block has barriers 0 to {}", NUM_BARRIERS - 1);
        return Err(FaultKind::Invalid(why));
    }
    match wanted {
        Some(wanted) if wanted == 0 || !wanted.is_multiple_of(WARP_SIZE as u32) => {
            let why = format!("a barrier of {wanted} threads: expected a multiple of {WARP_SIZE}");
            Err(FaultKind::Invalid(why))
        }
        _ => Ok(()),
    }
}
