//! Keys and values of requests that have ended, kept for later requests that begin with the same tokens.
//!
//! A turn of a chat begins with the whole conversation before it: only what is new is computed. Retained pages are
//! given back, those of the sequence that was used longest ago first, when running requests need them.

use super::pages::{PageAllocator, PageTable};
use std::collections::{HashMap, VecDeque};

/// Tokens whose keys and values are in the cache, in pages that no running sequence needs.
#[derive(Debug)]
pub struct Retained {
    /// The tokens; the one of position `i` at index `i`.
    pub tokens: Vec<u32>,
    /// How many of them were a prompt, at most; the rest was generated.
    pub prompt_len: usize,
    /// The pages of these tokens, and no others.
    pub pages: PageTable,
}

/// Retained sequences, the one that was used longest ago first.
#[derive(Debug, Default)]
pub struct PrefixCache {
    retained: VecDeque<Retained>,
}

impl PrefixCache {
    /// Keeps a sequence as the one used last; or, if a retained one begins with all of it, that one in its place.
    pub fn insert(&mut self, allocator: &mut PageAllocator, mut retained: Retained) {
        if retained.tokens.is_empty() {
            return;
        }
        let begins_alike = |other: &Retained| other.tokens.starts_with(&retained.tokens);
        if let Some(longer) = self.retained.iter().position(begins_alike) {
            retained.pages.truncate(allocator, 0);
            let longer = self.retained.remove(longer);
            self.retained.extend(longer);
        } else {
            self.retained.push_back(retained);
        }
    }

    /// Pages for the longest common prefix of `tokens` with a retained sequence, and its length.
    ///
    /// If the prefix is at least half of that sequence, or all of its prompt, as when an answer is generated again, its
    /// pages are handed over and the rest of it is dropped. Otherwise, as for two chats with the same system prompt, the
    /// sequence stays, and the whole pages of the prefix are shared.
    pub fn take(&mut self, allocator: &mut PageAllocator, tokens: &[u32]) -> (PageTable, usize) {
        let lens = self.retained.iter().map(|retained| common_prefix(&retained.tokens, tokens));
        let longest = lens.enumerate().max_by_key(|&(index, len)| (len, index));
        let Some((index, len)) = longest.filter(|&(_, len)| len > 0) else {
            return Default::default();
        };
        let Some(mut retained) = self.retained.remove(index) else { return Default::default() };
        // The last token of a prompt is computed again for its logits.
        if 2 * len >= retained.tokens.len() || len + 1 >= retained.prompt_len {
            let len = retained.pages.truncate_to_own(allocator, len);
            (retained.pages, len)
        } else {
            let shared = retained.pages.share(allocator, len);
            self.retained.push_back(retained);
            let len = shared.whole_len();
            (shared, len)
        }
    }

    /// Frees retained pages until `wanted` pages are free, if there are so many; else it frees none and returns false.
    #[must_use]
    pub fn make_room(&mut self, allocator: &mut PageAllocator, wanted: usize) -> bool {
        if !self.has_room(allocator, wanted) {
            return false;
        }
        while allocator.num_free() < wanted {
            self.drop_page(allocator);
        }
        true
    }

    /// Whether `wanted` pages are free, or would be if nothing were retained.
    pub fn has_room(&self, allocator: &PageAllocator, wanted: usize) -> bool {
        let num_free = allocator.num_free();
        num_free >= wanted || num_free + self.num_reclaimable(allocator) >= wanted
    }

    /// Drops all retained sequences.
    pub fn clear(&mut self, allocator: &mut PageAllocator) {
        let retained = self.retained.drain(..);
        retained.for_each(|mut retained| retained.pages.truncate(allocator, 0));
    }

    /// Drops the last page of the sequence that was used longest ago: what begins like it can still be reused.
    fn drop_page(&mut self, allocator: &mut PageAllocator) {
        let Some(oldest) = self.retained.front_mut() else { return };
        oldest.pages.pop(allocator);
        oldest.tokens.truncate(oldest.pages.whole_len());
        if oldest.tokens.is_empty() {
            self.retained.pop_front();
        }
    }

    /// Pages that only retained sequences hold.
    fn num_reclaimable(&self, allocator: &PageAllocator) -> usize {
        let mut holders: HashMap<u32, usize> = HashMap::new();
        let pages = self.retained.iter().flat_map(|retained| retained.pages.pages());
        pages.for_each(|&page| *holders.entry(page).or_default() += 1);
        let is_ours = |(&page, &count): (&u32, &usize)| allocator.num_holders(page) == count;
        holders.iter().filter(|&entry| is_ours(entry)).count()
    }
}

/// How many tokens `a` and `b` have in common at their start.
fn common_prefix(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PAGE_SIZE;

    fn retain(cache: &mut PrefixCache, allocator: &mut PageAllocator, tokens: &[u32]) -> Vec<u32> {
        let mut pages = PageTable::default();
        assert!(pages.grow(allocator, tokens.len()));
        let numbers = pages.pages().to_vec();
        cache.insert(
            allocator,
            Retained { tokens: tokens.to_vec(), prompt_len: tokens.len(), pages },
        );
        numbers
    }

    fn tokens(first: u32, len: usize) -> Vec<u32> {
        (first..).take(len).collect()
    }

    #[test]
    fn the_longest_prefix_is_handed_over() {
        let (mut cache, mut allocator) = (PrefixCache::default(), PageAllocator::new(10));
        let long = retain(&mut cache, &mut allocator, &[tokens(0, 100), tokens(500, 50)].concat());
        let short = retain(&mut cache, &mut allocator, &[tokens(0, 60), tokens(900, 10)].concat());
        let (mut pages, len) = cache.take(&mut allocator, &tokens(0, 200));
        assert_eq!((pages.pages(), len), (&long[..2], 100));
        assert_eq!(allocator.num_free(), 10 - 2 - 2, "the page of the rest is free");
        pages.truncate(&mut allocator, 0);
        let (mut pages, len) = cache.take(&mut allocator, &tokens(0, 40));
        assert_eq!((pages.pages(), len), (&short[..1], 40));
        pages.truncate(&mut allocator, 0);
        assert_eq!(cache.take(&mut allocator, &tokens(0, 40)).1, 0, "nothing is left");
        assert_eq!(allocator.num_free(), 10);
    }

    #[test]
    fn a_short_prefix_shares_whole_pages() {
        let (mut cache, mut allocator) = (PrefixCache::default(), PageAllocator::new(10));
        let held = retain(&mut cache, &mut allocator, &tokens(0, 300));
        let wanted = [tokens(0, PAGE_SIZE + 20), tokens(900, 9)].concat();
        let (pages, len) = cache.take(&mut allocator, &wanted);
        assert_eq!((pages.pages(), len), (&held[..1], PAGE_SIZE));
        assert_eq!(cache.take(&mut allocator, &[0, 1, 7]).1, 0, "not a whole page");
        // Both hold the first page: it is not written to, so that only whole pages of it are handed over.
        let (all, len) = cache.take(&mut allocator, &tokens(0, 300));
        assert_eq!((all.pages(), len), (&held[..], 300));
        cache.insert(
            &mut allocator,
            Retained { tokens: tokens(0, 100), prompt_len: 100, pages: all },
        );
        let (part, len) = cache.take(&mut allocator, &tokens(0, 60));
        assert_eq!((part.pages(), len), (&[][..], 0), "60 tokens end within the shared page");
    }

    #[test]
    fn another_answer_to_a_prompt_starts_after_the_prompt() {
        let (mut cache, mut allocator) = (PrefixCache::default(), PageAllocator::new(10));
        let mut pages = PageTable::default();
        assert!(pages.grow(&mut allocator, 300));
        cache.insert(&mut allocator, Retained { tokens: tokens(0, 300), prompt_len: 80, pages });
        let (pages, len) = cache.take(&mut allocator, &tokens(0, 79));
        assert_eq!((pages.pages().len(), len, allocator.num_free()), (2, 79, 8));
    }

    #[test]
    fn what_is_retained_already_is_not_retained_twice() {
        let (mut cache, mut allocator) = (PrefixCache::default(), PageAllocator::new(10));
        let long = retain(&mut cache, &mut allocator, &tokens(0, 200));
        retain(&mut cache, &mut allocator, &tokens(500, 10));
        retain(&mut cache, &mut allocator, &tokens(0, 100));
        assert_eq!((cache.retained.len(), allocator.num_free()), (2, 10 - 4 - 1));
        assert!(cache.make_room(&mut allocator, 6), "the other is the oldest now");
        let (pages, len) = cache.take(&mut allocator, &tokens(0, 150));
        assert_eq!((pages.pages(), len), (&long[..3], 150));
    }

    #[test]
    fn the_oldest_is_dropped_first_and_from_its_end() {
        let (mut cache, mut allocator) = (PrefixCache::default(), PageAllocator::new(6));
        retain(&mut cache, &mut allocator, &tokens(0, 2 * PAGE_SIZE + 5));
        retain(&mut cache, &mut allocator, &tokens(1000, 2 * PAGE_SIZE));
        assert!(!cache.make_room(&mut allocator, 7));
        assert_eq!(allocator.num_free(), 1, "nothing is dropped in vain");
        assert!(cache.make_room(&mut allocator, 3));
        let (pages, len) = cache.take(&mut allocator, &tokens(0, 2 * PAGE_SIZE));
        assert_eq!((pages.pages().len(), len), (1, PAGE_SIZE));
        assert!(!cache.make_room(&mut allocator, 6), "a running sequence holds a page");
        assert!(cache.make_room(&mut allocator, 5));
        assert_eq!(cache.take(&mut allocator, &tokens(1000, 100)).1, 0);
    }
}
