//! Pages that are known by what is in them, so that sequences which begin alike share them.
//!
//! A page that is full and computed is known by a hash of its tokens and of all before it. The last sequence that gives it
//! back leaves it idle: it stays known until its room is needed. A turn of a chat begins with the whole conversation
//! before it, and computes only what is new.
//!
//! Source: vLLM's automatic prefix caching, <https://docs.vllm.ai/en/latest/design/prefix_caching.html>.

mod lru;

use super::cache_event::{CacheEvent, Listener, StoredPage};
use lru::PageList;
use sha2::{Digest, Sha256};
use std::collections::HashMap;

/// What is in a page and in all pages before it, as SHA-256: no two prefixes are taken for each other, also not by a
/// client that tries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageHash([u8; 32]);

impl PageHash {
    /// What the first page of a sequence comes after. Sequences with another `salt` share no pages with it.
    pub(super) fn root(salt: Option<&str>) -> Self {
        PageHash(Sha256::digest(salt.unwrap_or_default()).into())
    }

    /// The hash of the page after this one, whose tokens are `tokens`. The first `num_prompt` of them were computed as a
    /// prompt, the others by decoding.
    pub(super) fn child(&self, tokens: &[u32], num_prompt: usize) -> Self {
        let hash = Sha256::new_with_prefix(self.0)
            .chain_update((num_prompt as u64).to_ne_bytes())
            .chain_update(bytemuck::cast_slice::<u32, u8>(tokens));
        PageHash(hash.finalize().into())
    }

    /// First 64 bits of the hash, for protocols that have no room for all.
    pub fn to_u64(self) -> u64 {
        self.0[..8].iter().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
    }
}

/// Which pages are known, and which of these are idle.
#[derive(Debug)]
pub struct PrefixCache {
    page_of: HashMap<PageHash, u32>,
    /// State of each page; `None` if the page is not known.
    known: Vec<Option<Known>>,
    /// Known pages that no sequence holds, the one that was used longest ago first.
    idle: PageList,
    listener: Listener,
}

/// A page that is known.
#[derive(Clone, Copy, Debug)]
struct Known {
    hash: PageHash,
    /// Whether the listener was told of it.
    is_told: bool,
}

impl PrefixCache {
    /// Nothing is known of `num_pages`.
    pub fn new(num_pages: usize) -> Self {
        PrefixCache {
            page_of: HashMap::new(),
            known: vec![None; num_pages],
            idle: PageList::new(num_pages),
            listener: Listener::default(),
        }
    }

    /// Tells `listener` of what is inserted and forgotten from now on.
    pub fn listen(&mut self, listener: Listener) {
        self.listener = listener;
    }

    /// The page of `hash`.
    pub fn find(&self, hash: &PageHash) -> Option<u32> {
        self.page_of.get(hash).copied()
    }

    /// Whether `page` is known.
    pub fn knows(&self, page: u32) -> bool {
        self.known[page as usize].is_some()
    }

    /// Makes a page known that a sequence holds; if another one has the same in it, that one stays known alone. The
    /// listener is told what `stored` makes of it, if anything.
    pub fn insert(
        &mut self,
        hash: PageHash,
        page: u32,
        stored: impl FnOnce() -> Option<StoredPage>,
    ) {
        if self.page_of.contains_key(&hash) {
            return;
        }
        self.forget(page);
        self.page_of.insert(hash, page);
        let stored = self.listener.is_there().then(stored).flatten();
        self.known[page as usize] = Some(Known { hash, is_told: stored.is_some() });
        if let Some(stored) = stored {
            self.listener.tell(CacheEvent::Stored(stored));
        }
    }

    /// Forgets what is in a page that a sequence holds.
    pub fn forget(&mut self, page: u32) {
        let Some(Known { hash, is_told }) = self.known[page as usize].take() else { return };
        self.page_of.remove(&hash);
        if is_told {
            self.listener.tell(CacheEvent::Removed(hash));
        }
    }

    /// Pages that are idle.
    pub fn num_idle(&self) -> usize {
        self.idle.len()
    }

    /// The last sequence has given a known page back.
    pub fn set_idle(&mut self, page: u32) {
        self.idle.push_back(page);
    }

    /// A sequence takes an idle page for what is in it.
    pub fn revive(&mut self, page: u32) {
        self.idle.remove(page);
    }

    /// Forgets the page that has been idle longest, for other tokens to be written to it.
    pub fn evict(&mut self) -> Option<u32> {
        let page = self.idle.pop_front()?;
        self.forget(page);
        Some(page)
    }

    /// Forgets all pages; those that are held stay so.
    pub fn forget_all(&mut self) {
        self.page_of.clear();
        self.known.fill(None);
        self.listener.tell(CacheEvent::Cleared);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_page_is_known_by_all_that_its_values_depend_on() {
        let roots = [None, Some("a"), Some("b")].map(PageHash::root);
        let mut hashes = HashSet::from(roots);
        for root in roots {
            for tokens in [[1, 2], [2, 1], [1, 3]] {
                for num_prompt in 0..3 {
                    let first = root.child(&tokens, num_prompt);
                    hashes.extend([first, first.child(&tokens, 2)]);
                }
            }
        }
        assert_eq!(hashes.len(), 3 + 3 * 3 * 3 * 2);
        assert_eq!(roots[1].child(&[1, 2], 2), PageHash::root(Some("a")).child(&[1, 2], 2));
    }

    #[test]
    fn a_short_hash_is_the_start_of_the_long_one() {
        // SHA-256 of nothing.
        assert_eq!(PageHash::root(None).to_u64(), 0xe3b0_c442_98fc_1c14);
    }

    #[test]
    fn of_two_pages_with_the_same_in_them_one_is_known() {
        let mut cache = PrefixCache::new(2);
        let hash = PageHash::root(None);
        cache.insert(hash, 0, || None);
        cache.insert(hash, 1, || None);
        assert_eq!((cache.find(&hash), cache.knows(1)), (Some(0), false));
        cache.forget(1);
        assert_eq!(cache.find(&hash), Some(0));
        cache.forget(0);
        cache.insert(hash, 1, || None);
        assert_eq!(cache.find(&hash), Some(1));
    }
}
