//! Pages of the KV cache, and the table of pages of each sequence.

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

    /// Sequences that hold `page`.
    pub fn num_holders(&self, page: u32) -> usize {
        self.ref_counts[page as usize] as usize
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

    /// Pages that [`PageTable::grow`] would take.
    pub fn num_missing(&self, len: usize) -> usize {
        len.div_ceil(PAGE_SIZE).saturating_sub(self.pages.len())
    }

    /// Takes pages until there is room for `len` positions; all of them or, if too few are free, none.
    #[must_use]
    pub fn grow(&mut self, allocator: &mut PageAllocator, len: usize) -> bool {
        let missing = self.num_missing(len);
        if missing > allocator.num_free() {
            return false;
        }
        self.pages.extend((0..missing).map_while(|_| allocator.take()));
        true
    }

    /// Positions that the pages have room for.
    pub fn whole_len(&self) -> usize {
        self.pages.len() * PAGE_SIZE
    }

    /// Gives back the last page.
    pub fn pop(&mut self, allocator: &mut PageAllocator) {
        self.pages.pop().into_iter().for_each(|page| allocator.release(page));
    }

    /// Truncates to `len` positions, or to the whole pages of them if another sequence holds the last page too: the
    /// rest of that page is not free to be written. Returns the positions that are left.
    pub fn truncate_to_own(&mut self, allocator: &mut PageAllocator, len: usize) -> usize {
        self.truncate(allocator, len);
        let is_shared = self.pages.last().is_some_and(|&page| allocator.num_holders(page) > 1);
        if is_shared && len < self.whole_len() {
            self.pop(allocator);
            return self.whole_len();
        }
        len
    }

    /// Gives back the pages after position `len`.
    pub fn truncate(&mut self, allocator: &mut PageAllocator, len: usize) {
        let keep = len.div_ceil(PAGE_SIZE).min(self.pages.len());
        self.pages.drain(keep..).for_each(|page| allocator.release(page));
    }

    /// The pages of the first `len` positions for a second sequence. Only whole pages are shared: both sequences would
    /// write to a page that is partly filled.
    pub fn share(&self, allocator: &mut PageAllocator, len: usize) -> PageTable {
        let pages = self.pages[..len / PAGE_SIZE].to_vec();
        pages.iter().for_each(|&page| allocator.retain(page));
        PageTable { pages }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn a_table_grows_by_whole_pages_or_not_at_all() {
        let mut allocator = PageAllocator::new(3);
        let mut table = PageTable::default();
        for (len, pages) in [(0, 0), (1, 1), (PAGE_SIZE, 1), (PAGE_SIZE + 1, 2), (5, 2)] {
            assert!(table.grow(&mut allocator, len));
            assert_eq!(table.pages().len(), pages, "{len} positions");
        }
        assert!(!table.grow(&mut allocator, 4 * PAGE_SIZE));
        assert_eq!((table.pages().len(), allocator.num_free()), (2, 1));
        for (len, pages) in [(PAGE_SIZE + 1, 2), (PAGE_SIZE, 1), (1000, 1), (0, 0)] {
            table.truncate(&mut allocator, len);
            assert_eq!(table.pages().len(), pages, "{len} positions");
        }
        assert_eq!(allocator.num_free(), 3);
    }

    #[test]
    fn a_shared_page_is_free_when_the_last_gives_it_back() {
        let mut allocator = PageAllocator::new(4);
        let mut first = PageTable::default();
        assert!(first.grow(&mut allocator, 3 * PAGE_SIZE));
        let mut second = first.share(&mut allocator, 2 * PAGE_SIZE + 1);
        assert_eq!(second.pages(), &first.pages()[..2]);
        first.truncate(&mut allocator, 0);
        assert_eq!(allocator.num_free(), 2);
        second.truncate(&mut allocator, 0);
        assert_eq!(allocator.num_free(), 4);
    }

    /// Random growth, truncation and sharing beside a count of who holds what.
    #[test]
    fn no_page_is_lost_or_given_twice() {
        const NUM_PAGES: usize = 20;
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let mut allocator = PageAllocator::new(NUM_PAGES);
        let mut tables: Vec<PageTable> = (0..5).map(|_| PageTable::default()).collect();
        for _ in 0..5000 {
            let (i, j) = (rng.random_range(0..5), rng.random_range(0..5));
            let len = rng.random_range(0..10 * PAGE_SIZE);
            match rng.random_range(0..3) {
                0 => {
                    let missing = len.div_ceil(PAGE_SIZE).saturating_sub(tables[i].pages.len());
                    let fits = missing <= allocator.num_free();
                    assert_eq!(tables[i].grow(&mut allocator, len), fits);
                }
                1 => tables[i].truncate(&mut allocator, len),
                _ => {
                    let len = len.min(tables[j].pages.len() * PAGE_SIZE);
                    let shared = tables[j].share(&mut allocator, len);
                    tables[i].truncate(&mut allocator, 0);
                    tables[i] = shared;
                }
            }
            let mut holders = [0; NUM_PAGES];
            tables.iter().flat_map(|t| t.pages()).for_each(|&page| holders[page as usize] += 1);
            assert_eq!(allocator.ref_counts, holders);
            assert_eq!(allocator.num_free(), holders.iter().filter(|&&count| count == 0).count());
        }
    }
}
