//! Pages of the KV cache, and the table of pages of each sequence.

use super::cache_event::{Listener, StoredPage};
use super::pool::Pool;
use super::prefix::PageHash;
use super::states::{Snapshots, State, StatePool};
use crate::plan::PAGE_SIZE;

/// The pages of a cache, and the recurrent states of models that have them.
#[derive(Debug)]
pub struct PageAllocator {
    pages: Pool,
    states: Option<StatePool>,
}

impl PageAllocator {
    /// `num_pages` free pages.
    pub fn new(num_pages: usize) -> Self {
        PageAllocator { pages: Pool::new(num_pages), states: None }
    }

    /// Gives each sequence one of `states` beside its pages. Then a sequence can begin with the
    /// pages of another where a state is kept: see [`PageAllocator::begin`].
    pub fn with_states(self, states: StatePool) -> Self {
        PageAllocator { states: Some(states), ..self }
    }

    /// Pages of the cache.
    pub fn num_pages(&self) -> usize {
        self.pages.len()
    }

    /// Pages that no sequence holds.
    pub fn num_free(&self) -> usize {
        self.pages.num_free()
    }

    /// Tells `listener` of pages that sequences can find, unless these need a state too.
    pub(super) fn listen(&mut self, listener: Listener) {
        if self.states.is_none() {
            self.pages.listen(listener);
        }
    }

    /// Whether what is written to `page` others may read.
    #[cfg(test)]
    pub fn is_shared(&self, page: u32) -> bool {
        self.pages.num_holders(page) > 1 || self.pages.knows(page)
    }

    /// What is known of the first pages of a sequence, which have these hashes.
    pub fn begin(&self, hashes: &[PageHash]) -> Beginning {
        let mut pages: Vec<u32> = hashes.iter().map_while(|hash| self.pages.find(hash)).collect();
        let num_known = pages.len();
        let Some(states) = &self.states else { return Beginning { num_known, pages, state: None } };
        let (len, state) = states.last_kept(&hashes[..num_known]).unzip();
        pages.truncate(len.unwrap_or_default());
        Beginning { num_known, pages, state }
    }

    /// Lets other sequences find a page that a sequence holds, and that nobody writes to any more.
    /// A listener is told what `stored` makes of it, if anything.
    pub fn publish(
        &mut self,
        hash: PageHash,
        page: u32,
        stored: impl FnOnce() -> Option<StoredPage>,
    ) {
        self.pages.publish(hash, page, stored);
    }

    /// Lets no other sequence find any page or state that is there now.
    pub fn forget_all(&mut self) {
        self.pages.forget_all();
        self.states.iter_mut().for_each(StatePool::forget_all);
    }

    /// The recurrent states, if the model has them.
    pub fn states(&self) -> Option<&StatePool> {
        self.states.as_ref()
    }
}

/// What is known of the beginning of a sequence.
#[derive(Debug, Default)]
pub struct Beginning {
    /// Leading pages that have been computed.
    pub num_known: usize,
    /// The first of them, which a sequence can begin with.
    pub pages: Vec<u32>,
    /// The slot of the recurrent state after them.
    pub state: Option<u32>,
}

/// The pages of one sequence, in the order of its positions.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<u32>,
    /// The recurrent state, of models that have one.
    state: Option<State>,
}

impl PageTable {
    /// The pages: a row of the block table.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The slots that the next step reads the sequence's recurrent state from and writes it to, if
    /// it has one.
    pub fn state(&self) -> Option<[u32; 2]> {
        self.state.as_ref().map(State::slots)
    }

    /// Takes pages until there is room for `len` positions, and with the first a recurrent state;
    /// all of it or, if too little is free, nothing.
    #[must_use]
    pub fn grow(&mut self, allocator: &mut PageAllocator, len: usize) -> bool {
        self.grow_from(allocator, &Beginning::default(), len)
    }

    /// [`PageTable::grow`], first by the pages of `found`, which others may hold too.
    #[must_use]
    pub fn grow_from(
        &mut self,
        PageAllocator { pages, states }: &mut PageAllocator,
        found: &Beginning,
        len: usize,
    ) -> bool {
        let num_pages = self.pages.len() + found.pages.len();
        let missing = len.div_ceil(PAGE_SIZE).saturating_sub(num_pages);
        let num_free = found.pages.iter().filter(|&&page| pages.num_holders(page) == 0).count();
        if num_free + missing > pages.num_free() {
            return false;
        }
        if let (None, Some(states)) = (&self.state, states) {
            self.state = states.begin(found.state);
            if self.state.is_none() {
                return false;
            }
        }
        // Before a page is taken for something else.
        found.pages.iter().for_each(|&page| pages.retain(page));
        self.pages.extend(&found.pages);
        self.pages.extend((0..missing).map_while(|_| pages.take()));
        true
    }

    /// Gives back the pages after position `len`, and with the last one the recurrent state; the
    /// last page first: it is the first whose tokens are forgotten, as without those before them
    /// they are of no use.
    pub fn truncate(&mut self, allocator: &mut PageAllocator, len: usize) {
        let PageAllocator { pages, states } = allocator;
        let keep = len.div_ceil(PAGE_SIZE).min(self.pages.len());
        self.pages.drain(keep..).rev().for_each(|page| pages.release(page));
        if self.pages.is_empty()
            && let (Some(states), Some(state)) = (states, self.state.take())
        {
            states.end(state);
        }
    }

    /// Keeps the recurrent state after `num_cached` positions, if `snapshots` have it so; `hashes`
    /// are those of the full pages.
    pub fn keep_state(
        &mut self,
        allocator: &mut PageAllocator,
        snapshots: &mut Snapshots,
        num_cached: usize,
        hashes: &[PageHash],
    ) {
        if let (Some(states), Some(state)) = (&mut allocator.states, &mut self.state) {
            snapshots.update(states, state, num_cached, hashes);
        }
    }

    /// Gives back all pages, and lets nobody find them, nor a state after those of `hashes`.
    pub fn forget(&mut self, allocator: &mut PageAllocator, hashes: &[PageHash]) {
        self.pages.iter().for_each(|&page| allocator.pages.forget(page));
        if let Some(states) = &mut allocator.states {
            hashes.iter().for_each(|hash| states.forget(hash));
        }
        self.truncate(allocator, 0);
    }
}

#[cfg(test)]
mod tests;
