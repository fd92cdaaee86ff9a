//! Pages of the KV cache, and the table of pages of each sequence.

use super::cache_event::{Listener, StoredPage};
use super::prefix::{PageHash, PrefixCache};
use crate::plan::PAGE_SIZE;

/// The pages of a cache, reference-counted: a page is free when no sequence holds it. What is in a
/// free page is kept, if it is known by its hash, until no other page is free.
#[derive(Debug)]
pub struct PageAllocator {
    /// Free pages of which nothing is known.
    blank: Vec<u32>,
    ref_counts: Vec<u32>,
    prefixes: PrefixCache,
    /// Slots of recurrent states that no sequence has; `None` for models that have none.
    free_states: Option<Vec<u32>>,
}

impl PageAllocator {
    /// `num_pages` free pages.
    pub fn new(num_pages: usize) -> Self {
        // Taken from the end: page 0 first.
        PageAllocator {
            blank: (0..num_pages as u32).rev().collect(),
            ref_counts: vec![0; num_pages],
            prefixes: PrefixCache::new(num_pages),
            free_states: None,
        }
    }

    /// Gives each sequence one of `num_states` recurrent states beside its pages. Then no sequence
    /// begins with pages of another: what came before them is in a state that is not kept.
    pub fn with_states(self, num_states: usize) -> Self {
        PageAllocator { free_states: Some((0..num_states as u32).rev().collect()), ..self }
    }

    /// Pages of the cache.
    pub fn num_pages(&self) -> usize {
        self.ref_counts.len()
    }

    /// Pages that no sequence holds.
    pub fn num_free(&self) -> usize {
        self.blank.len() + self.prefixes.num_idle()
    }

    /// Sequences that hold `page`.
    pub fn num_holders(&self, page: u32) -> usize {
        self.ref_counts[page as usize] as usize
    }

    /// The page whose tokens, and those before them, have this hash.
    pub fn find(&self, hash: &PageHash) -> Option<u32> {
        self.prefixes.find(hash)
    }

    /// Whether other sequences can find `page`.
    pub fn knows(&self, page: u32) -> bool {
        self.prefixes.knows(page)
    }

    /// Tells `listener` of pages that sequences can find.
    pub(super) fn listen(&mut self, listener: Listener) {
        self.prefixes.listen(listener);
    }

    /// Lets other sequences find a page that a sequence holds, and that nobody writes to any more,
    /// unless it is of no use without a recurrent state. A listener is told what `stored` makes of
    /// it, if anything.
    pub fn publish(
        &mut self,
        hash: PageHash,
        page: u32,
        stored: impl FnOnce() -> Option<StoredPage>,
    ) {
        if self.free_states.is_none() {
            self.prefixes.insert(hash, page, stored);
        }
    }

    /// Lets no other sequence find any page that is full now.
    pub fn forget_all(&mut self) {
        self.prefixes.forget_all();
        self.blank.extend(std::iter::from_fn(|| self.prefixes.evict()));
    }

    fn take(&mut self) -> Option<u32> {
        let page = self.blank.pop().or_else(|| self.prefixes.evict())?;
        self.ref_counts[page as usize] = 1;
        Some(page)
    }

    fn retain(&mut self, page: u32) {
        if self.num_holders(page) == 0 {
            self.prefixes.revive(page);
        }
        self.ref_counts[page as usize] += 1;
    }

    fn release(&mut self, page: u32) {
        let count = &mut self.ref_counts[page as usize];
        *count -= 1;
        match *count {
            0 if self.prefixes.knows(page) => self.prefixes.set_idle(page),
            0 => self.blank.push(page),
            _ => {}
        }
    }
}

/// The pages of one sequence, in the order of its positions.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<u32>,
    /// The recurrent state, of models that have one.
    state: Option<u32>,
}

impl PageTable {
    /// The pages: a row of the block table.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The slot of the sequence's recurrent state, if it has one.
    pub fn state(&self) -> Option<u32> {
        self.state
    }

    /// Takes pages until there is room for `len` positions, and with the first a recurrent state;
    /// all of it or, if too little is free, nothing.
    #[must_use]
    pub fn grow(&mut self, allocator: &mut PageAllocator, len: usize) -> bool {
        self.grow_from(allocator, &[], len)
    }

    /// [`PageTable::grow`], first by the pages `found`, which others may hold too.
    #[must_use]
    pub fn grow_from(&mut self, allocator: &mut PageAllocator, found: &[u32], len: usize) -> bool {
        let num_pages = self.pages.len() + found.len();
        let missing = len.div_ceil(PAGE_SIZE).saturating_sub(num_pages);
        let num_free = found.iter().filter(|&&page| allocator.num_holders(page) == 0).count();
        if num_free + missing > allocator.num_free() {
            return false;
        }
        if let (None, Some(free_states)) = (self.state, &mut allocator.free_states) {
            let Some(state) = free_states.pop() else { return false };
            self.state = Some(state);
        }
        // Before a page is taken for something else.
        found.iter().for_each(|&page| allocator.retain(page));
        self.pages.extend(found);
        self.pages.extend((0..missing).map_while(|_| allocator.take()));
        true
    }

    /// Gives back the pages after position `len`, and with the last one the recurrent state; the
    /// last page first: it is the first whose tokens are forgotten, as without those before them
    /// they are of no use.
    pub fn truncate(&mut self, allocator: &mut PageAllocator, len: usize) {
        let keep = len.div_ceil(PAGE_SIZE).min(self.pages.len());
        self.pages.drain(keep..).rev().for_each(|page| allocator.release(page));
        if self.pages.is_empty()
            && let Some(free_states) = &mut allocator.free_states
        {
            free_states.extend(self.state.take());
        }
    }

    /// Gives back all pages, and lets nobody find them.
    pub fn forget(&mut self, allocator: &mut PageAllocator) {
        self.pages.iter().for_each(|&page| allocator.prefixes.forget(page));
        self.truncate(allocator, 0);
    }
}

#[cfg(test)]
mod tests;
