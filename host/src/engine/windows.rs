//! Pages of layers with a sliding window: a sequence gives those back that left it.

use super::Buckets;
use super::pool::Pool;
use super::prefix::PageHash;
use crate::plan::{NO_PAGE, PAGE_SIZE};
use std::ops::Range;

/// Attention reads keys in blocks of so many positions, from a multiple on.
const KEY_BLOCK: usize = 128;

/// The pages of layers with a window. As many as [`Windows::num_pages`] are enough for every step.
#[derive(Debug)]
pub struct Windows {
    pages: Pool,
    /// Positions of the largest window.
    window: usize,
}

impl Windows {
    /// `num_pages` free pages, of layers whose largest window is `window`.
    pub fn new(num_pages: usize, window: usize) -> Self {
        Windows { pages: Pool::new(num_pages), window }
    }

    /// Pages that the steps of `buckets` need, of `num_pages` of other layers: of each sequence those
    /// that its window touches, the new ones of a step, and some that are kept.
    pub fn num_pages(window: usize, buckets: &Buckets, num_kept: usize, num_pages: usize) -> usize {
        // One more for the window, and one for the new positions, begin or end inside of a page.
        let of_sequence = (window.saturating_add(KEY_BLOCK)).div_ceil(PAGE_SIZE).saturating_add(2);
        let of_windows = (buckets.max_seqs + num_kept).saturating_mul(of_sequence);
        of_windows.saturating_add(buckets.max_tokens.div_ceil(PAGE_SIZE)).min(num_pages)
    }

    /// The first page that a token at `position` reads.
    fn first_page(&self, position: usize) -> usize {
        (position + 1).saturating_sub(self.window) / KEY_BLOCK * (KEY_BLOCK / PAGE_SIZE)
    }

    /// The first `len` pages of a sequence, which have these hashes, as it needs them to go on after
    /// them.
    fn after(&self, hashes: &[PageHash]) -> Option<Vec<u32>> {
        let first = self.first_page(hashes.len() * PAGE_SIZE).min(hashes.len());
        let mut pages = vec![NO_PAGE; first];
        for hash in &hashes[first..] {
            pages.push(self.pages.find(hash)?);
        }
        Some(pages)
    }

    /// The longest beginning of a sequence, whose pages have these hashes, that it can go on after,
    /// among those whose length `is_wanted`; with its pages.
    pub fn longest(
        &self,
        hashes: &[PageHash],
        is_wanted: impl Fn(usize) -> bool,
    ) -> Option<Vec<u32>> {
        // Where this one is missing, nothing that reads it can go on.
        let mut len = hashes.len();
        while len > 0 {
            let first = self.first_page(len * PAGE_SIZE).min(len);
            let missing = (first..len).rev().find(|&page| self.pages.find(&hashes[page]).is_none());
            match missing {
                Some(page) => len = page,
                None if is_wanted(len) => return self.after(&hashes[..len]),
                None => len -= 1,
            }
        }
        None
    }

    /// One more sequence holds `pages`, which [`Windows::longest`] found.
    pub fn retain(&mut self, pages: &[u32]) {
        held(pages).for_each(|page| self.pages.retain(page));
    }

    /// Readies the `pages` of a sequence for a step with its positions `new`: gives those back that
    /// left, and takes those that are missing; false if these are too many.
    #[must_use]
    pub fn slide(&mut self, pages: &mut Vec<u32>, new: Range<usize>) -> bool {
        let num_left = self.first_page(new.start).min(pages.len());
        // Those before the first that is not there left earlier.
        let leaving = pages[..num_left].iter_mut().rev().take_while(|page| **page != NO_PAGE);
        for page in leaving {
            self.pages.release(std::mem::replace(page, NO_PAGE));
        }
        let missing = new.end.div_ceil(PAGE_SIZE).saturating_sub(pages.len());
        if missing > self.pages.num_free() {
            return false;
        }
        pages.extend((0..missing).map_while(|_| self.pages.take()));
        true
    }

    /// Lets other sequences find `page` by `hash`; `is_new` if no page of other layers is known by
    /// it. Then none that was computed before it is found either: who has both has them from one
    /// sequence, so that no more pages are held of these layers than of the others.
    pub fn publish(&mut self, hash: PageHash, page: u32, is_new: bool) {
        if is_new {
            self.forget(&hash);
        }
        if page != NO_PAGE {
            self.pages.publish(hash, page, || None);
        }
    }

    /// Lets no sequence find the page of `hash`.
    pub fn forget(&mut self, hash: &PageHash) {
        if let Some(page) = self.pages.find(hash) {
            self.pages.forget(page);
        }
    }

    /// Lets no sequence find any page that is there now.
    pub fn forget_all(&mut self) {
        self.pages.forget_all();
    }

    /// Gives back the `pages` of a sequence after the first `len`, the last one first.
    pub fn truncate(&mut self, pages: &mut Vec<u32>, len: usize) {
        let given_back = pages.split_off(len.min(pages.len()));
        held(&given_back).rev().for_each(|page| self.pages.release(page));
    }

    /// Whether what is written to `page` others may read.
    #[cfg(test)]
    pub fn is_shared(&self, page: u32) -> bool {
        self.pages.num_holders(page) > 1 || self.pages.knows(page)
    }

    /// Pages that no sequence holds.
    #[cfg(test)]
    pub fn num_free(&self) -> usize {
        self.pages.num_free()
    }
}

/// The `pages` that have not left.
fn held(pages: &[u32]) -> impl DoubleEndedIterator<Item = u32> {
    pages.iter().copied().filter(|&page| page != NO_PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: usize = 100;

    /// A hash that stands for the number `content`.
    fn hash(content: usize) -> PageHash {
        PageHash::root(None).child(&[content as u32], 1)
    }

    #[test]
    fn pages_are_there_as_long_as_a_token_reads_them() {
        let mut windows = Windows::new(6, WINDOW);
        let mut pages = Vec::new();
        for position in 0..20 * PAGE_SIZE {
            assert!(windows.slide(&mut pages, position..position + 1));
            let first_key = (position + 1).saturating_sub(WINDOW);
            // A block of keys is read as a whole.
            let first_page = first_key / KEY_BLOCK * KEY_BLOCK / PAGE_SIZE;
            assert_eq!(pages.len(), position / PAGE_SIZE + 1);
            let (left, there) = pages.split_at(first_page);
            assert!(left.iter().all(|&page| page == NO_PAGE), "{position}: {pages:?}");
            assert!(there.iter().all(|&page| page < 6), "{position}: {pages:?}");
            assert_eq!(windows.num_free(), 6 - there.len());
        }
        windows.truncate(&mut pages, 0);
        assert_eq!(windows.num_free(), 6);
    }

    #[test]
    fn a_beginning_needs_the_pages_of_its_window_alone() {
        let mut windows = Windows::new(10, WINDOW);
        let mut pages = Vec::new();
        let hashes: Vec<PageHash> = (0..10).map(hash).collect();
        assert!(windows.slide(&mut pages, 0..10 * PAGE_SIZE));
        (0..10).for_each(|page| windows.publish(hashes[page], pages[page], true));
        let longest = |windows: &Windows, len: usize, wanted: &dyn Fn(usize) -> bool| {
            windows.longest(&hashes[..len], wanted).map_or(0, |pages| pages.len())
        };
        for len in 0..=10 {
            assert_eq!(longest(&windows, len, &|_| true), len);
        }
        assert_eq!(longest(&windows, 9, &|len| len < 5), 4);
        // At position 448 the window begins at 349, and the block with it at 256.
        let no = NO_PAGE;
        assert_eq!(windows.longest(&hashes[..7], |_| true), Some(vec![no, no, no, no, 4, 5, 6]));
        windows.forget(&hashes[4]);
        let found: Vec<usize> = (0..=10).map(|len| longest(&windows, len, &|_| true)).collect();
        assert_eq!(found, [0, 1, 2, 3, 4, 4, 4, 4, 8, 9, 10]);
    }

    /// What is published anew in other layers is so here, too.
    #[test]
    fn a_page_is_known_with_that_of_other_layers() {
        let mut windows = Windows::new(2, WINDOW);
        let (mut first, mut second) = (Vec::new(), Vec::new());
        assert!(windows.slide(&mut first, 0..1) && windows.slide(&mut second, 0..1));
        windows.publish(hash(1), first[0], true);
        windows.publish(hash(1), second[0], false);
        assert_eq!(windows.longest(&[hash(1)], |_| true), Some(vec![0]));
        windows.publish(hash(1), second[0], true);
        assert_eq!(windows.longest(&[hash(1)], |_| true), Some(vec![1]));
        windows.truncate(&mut first, 0);
        assert!(!windows.slide(&mut first, 0..2 * PAGE_SIZE), "one page is free");
        assert!(windows.slide(&mut first, 0..1));
    }

    /// Whatever the lengths and the chunks, sequences have their pages.
    #[test]
    fn there_are_enough_for_every_step() {
        for (window, max_tokens, max_seqs) in [(1, 64, 3), (100, 200, 2), (129, 65, 5)] {
            let buckets = Buckets { max_tokens, max_seqs, context: 4096, mixes: true };
            let mut windows =
                Windows::new(Windows::num_pages(window, &buckets, 0, usize::MAX), window);
            let mut sequences = vec![(Vec::new(), 0); max_seqs];
            for step in 0..300 {
                let mut left = max_tokens;
                for (pages, len) in &mut sequences {
                    assert!(windows.slide(pages, *len..*len), "nothing is taken");
                }
                for (seq, (pages, len)) in sequences.iter_mut().enumerate() {
                    let new = left.min([1, max_tokens, 37, 0][(step + seq * 3) % 4]);
                    assert!(windows.slide(pages, *len..*len + new), "step {step}");
                    (*len, left) = (*len + new, left - new);
                    if step % (40 + seq) == 39 {
                        windows.truncate(pages, 0);
                        *len = 0;
                    }
                }
            }
        }
    }
}
