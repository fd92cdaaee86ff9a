//! Pages of the KV cache: who has which.

use crate::plan::PAGE_SIZE;

/// The pages of a cache, reference-counted: a page is free when no sequence holds it.
#[derive(Debug)]
pub struct PageAllocator {
    free: Vec<u32>,
    ref_counts: Vec<u32>,
}

impl PageAllocator {
    /// `num_pages` free pages.
    pub fn new(num_pages: usize) -> Self {
        // Taken from the end: page 0 first.
        PageAllocator {
            free: (0..num_pages as u32).rev().collect(),
            ref_counts: vec![0; num_pages],
        }
    }

    /// Pages that no sequence holds.
    pub fn num_free(&self) -> usize {
        self.free.len()
    }

    fn take(&mut self) -> Option<u32> {
        let page = self.free.pop()?;
        self.ref_counts[page as usize] = 1;
        Some(page)
    }

    fn retain(&mut self, page: u32) {
        self.ref_counts[page as usize] += 1;
    }

    fn release(&mut self, page: u32) {
        let count = &mut self.ref_counts[page as usize];
        *count -= 1;
        if *count == 0 {
            self.free.push(page);
        }
    }
}

/// The pages of one sequence, in the order of its positions.
#[derive(Debug, Default)]
pub struct PageTable {
    pages: Vec<u32>,
}

impl PageTable {
    /// The pages: a row of the block table.
    pub fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Takes pages until there is room for `len` positions; all of them or, if too few are free, none.
    #[must_use]
    pub fn grow(&mut self, allocator: &mut PageAllocator, len: usize) -> bool {
        let missing = len.div_ceil(PAGE_SIZE).saturating_sub(self.pages.len());
        if missing > allocator.num_free() {
            return false;
        }
        self.pages.extend((0..missing).map_while(|_| allocator.take()));
        true
    }

    /// Gives back the pages behind position `len`.
    pub fn truncate(&mut self, allocator: &mut PageAllocator, len: usize) {
        let keep = len.div_ceil(PAGE_SIZE).min(self.pages.len());
        self.pages.drain(keep..).for_each(|page| allocator.release(page));
    }

    /// The same pages for a second sequence that begins alike. Only whole pages are shared: both would write to a page
    /// that is half full.
    pub fn share(&self, allocator: &mut PageAllocator, len: usize) -> PageTable {
        let pages = self.pages[..len / PAGE_SIZE].to_vec();
        pages.iter().for_each(|&page| allocator.retain(page));
        PageTable { pages }
    }
}
