//! The sixteen barriers of a block (`bar.sync`, `bar.arrive`).

use crate::clock::{Clock, Knowledge, join_block};

/// Barriers of a block.
pub(crate) const NUM_BARRIERS: usize = 16;

/// One of a block's barriers.
#[derive(Default)]
pub(crate) struct Barrier {
    /// Threads that it waits for; `None` for all of the block.
    wanted: Option<usize>,
    /// Threads that wait at it.
    waiting: Vec<usize>,
    /// Threads that have come and gone on, and what they knew.
    arrived: usize,
    released: Option<Knowledge>,
}

impl Barrier {
    /// How many threads have come to it.
    fn count(&self) -> usize {
        self.waiting.len() + self.arrived
    }

    /// A thread comes that wants to meet `wanted` of them.
    fn come(&mut self, wanted: Option<usize>) -> Result<(), String> {
        if self.count() > 0 && self.wanted != wanted {
            let name = |wanted: Option<usize>| {
                wanted.map_or_else(|| "all".to_owned(), |wanted| wanted.to_string())
            };
            return Err(format!(
                "the barrier waits for {} threads, not for {}",
                name(self.wanted),
                name(wanted)
            ));
        }
        self.wanted = wanted;
        Ok(())
    }

    /// `thread` waits.
    pub fn wait(&mut self, thread: usize, wanted: Option<usize>) -> Result<(), String> {
        self.come(wanted)?;
        self.waiting.push(thread);
        Ok(())
    }

    /// A thread comes, and goes on.
    pub fn arrive(&mut self, knowledge: Knowledge, wanted: usize) -> Result<(), String> {
        self.come(Some(wanted))?;
        self.arrived += 1;
        match &mut self.released {
            Some(released) => released.join(&knowledge),
            released => *released = Some(knowledge),
        }
        Ok(())
    }

    /// If all have come, of `live` threads that the block has: those that waited, who know of each
    /// other now.
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
