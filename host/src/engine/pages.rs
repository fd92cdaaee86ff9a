//! Pages of the KV cache, and the table of pages of each sequence.

use super::cache_event::{Listener, StoredPage};
use super::pool::Pool;
use super::prefix::PageHash;
use super::states::{Snapshots, State, StatePool};
use super::windows::Windows;
use crate::plan::PAGE_SIZE;
use std::ops::Range;

/// The pages of a cache, those of layers with a window, and the recurrent states, of models that
/// have them.
#[derive(Debug)]
pub struct PageAllocator {
    pages: Pool,
    windows: Option<Windows>,
    states: Option<StatePool>,
}

impl PageAllocator {
    /// `num_pages` free pages.
    pub fn new(num_pages: usize) -> Self {
        PageAllocator { pages: Pool::new(num_pages), windows: None, states: None }
    }

    /// Gives each sequence one of `states` beside its pages. Then a sequence can begin with the
    /// pages of another where a state is kept: see [`PageAllocator::begin`].
    pub fn with_states(self, states: StatePool) -> Self {
        PageAllocator { states: Some(states), ..self }
    }

    /// Gives layers with a window pages of their own.
    pub fn with_windows(self, windows: Windows) -> Self {
        PageAllocator { windows: Some(windows), ..self }
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

    /// [`PageAllocator::is_shared`] of a page of layers with a window.
    #[cfg(test)]
    pub fn is_window_shared(&self, page: u32) -> bool {
        self.windows.as_ref().is_some_and(|windows| windows.is_shared(page))
    }

    /// The pages of layers with a window that no sequence holds.
    #[cfg(test)]
    pub fn num_free_of_windows(&self) -> usize {
        self.windows.as_ref().map_or(0, Windows::num_free)
    }

    /// What is known of the first pages of a sequence, which have these hashes.
    pub fn begin(&self, hashes: &[PageHash]) -> Beginning {
        let mut pages: Vec<u32> = hashes.iter().map_while(|hash| self.pages.find(hash)).collect();
        let num_known = pages.len();
        let has_state = |len: usize| match &self.states {
            Some(states) => states.find(&hashes[len - 1]).is_some(),
            None => true,
        };
        let (len, window) = match &self.windows {
            Some(windows) => {
                let window = windows.longest(&hashes[..num_known], has_state).unwrap_or_default();
                (window.len(), window)
            }
            None => ((1..=num_known).rev().find(|&len| has_state(len)).unwrap_or(0), Vec::new()),
        };
        pages.truncate(len);
        let state = len.checked_sub(1).and_then(|last| self.states.as_ref()?.find(&hashes[last]));
        Beginning { num_known, pages, window, state }
    }

    /// Lets other sequences find the page of `table` at `index`, that nobody writes to any more. A
    /// listener is told what `stored` makes of it, if anything.
    pub fn publish(
        &mut self,
        hash: PageHash,
        table: &PageTable,
        index: usize,
        stored: impl FnOnce() -> Option<StoredPage>,
    ) {
        if let Some(windows) = &mut self.windows {
            windows.publish(hash, table.window[index], self.pages.find(&hash).is_none());
        }
        self.pages.publish(hash, table.pages[index], stored);
    }

    /// Lets no other sequence find any page or state that is there now.
    pub fn forget_all(&mut self) {
        self.pages.forget_all();
        self.windows.iter_mut().for_each(Windows::forget_all);
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
    /// The pages of layers with a window, of models that have them.
    pub window: Vec<u32>,
    /// The slot of the recurrent state after them.
    pub state: Option<u32>,
}

/// The pages of one sequence, in the order of its positions.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<u32>,
    /// The pages of layers with a window, of models that have them: see [`PageTable::slide`].
    window: Vec<u32>,
    /// The recurrent state, of models that have one.
    state: Option<State>,
}

impl PageTable {
    /// The pages: a row of the block table.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The pages of layers with a window, if these have their own: a row of their block table.
    pub fn window_pages(&self) -> Option<&[u32]> {
        (!self.window.is_empty()).then_some(&self.window)
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
        PageAllocator { pages, windows, states }: &mut PageAllocator,
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
        if let Some(windows) = windows {
            windows.retain(&found.window);
            self.window.extend(&found.window);
        }
        true
    }

    /// Readies the pages of layers with a window for a step with the positions `new`: gives those
    /// back that left the window, and takes those that are missing. There are enough, if a step has
    /// no more sequences and tokens than the engine is made for; else it is false.
    #[must_use]
    pub fn slide(&mut self, allocator: &mut PageAllocator, new: Range<usize>) -> bool {
        allocator.windows.as_mut().is_none_or(|windows| windows.slide(&mut self.window, new))
    }

    /// Gives back the pages after position `len`, and with the last one the recurrent state; the
    /// last page first: it is the first whose tokens are forgotten, as without those before them
    /// they are of no use.
    pub fn truncate(&mut self, allocator: &mut PageAllocator, len: usize) {
        let PageAllocator { pages, windows, states } = allocator;
        let keep = len.div_ceil(PAGE_SIZE).min(self.pages.len());
        self.pages.drain(keep..).rev().for_each(|page| pages.release(page));
        windows.iter_mut().for_each(|windows| windows.truncate(&mut self.window, keep));
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
        if let Some(windows) = &mut allocator.windows {
            hashes.iter().for_each(|hash| windows.forget(hash));
        }
        if let Some(states) = &mut allocator.states {
            hashes.iter().for_each(|hash| states.forget(hash));
        }
        self.truncate(allocator, 0);
    }
}

#[cfg(test)]
mod tests;
