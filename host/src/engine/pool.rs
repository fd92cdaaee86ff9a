//! Places that sequences share: pages of the KV cache, and slots of recurrent states.

use super::cache_event::{Listener, StoredPage};
use super::prefix::{PageHash, PrefixCache};

/// Reference-counted places: one is free when no sequence holds it. What is in a free place is
/// kept, if it is known by its hash, until no other place is free.
#[derive(Debug)]
pub struct Pool {
    /// Free places of which nothing is known.
    blank: Vec<u32>,
    ref_counts: Vec<u32>,
    known: PrefixCache,
}

impl Pool {
    /// `len` free places.
    pub fn new(len: usize) -> Self {
        // Taken from the end: place 0 first.
        Pool {
            blank: (0..len as u32).rev().collect(),
            ref_counts: vec![0; len],
            known: PrefixCache::new(len),
        }
    }

    /// Free and held places.
    pub fn len(&self) -> usize {
        self.ref_counts.len()
    }

    /// Places that no sequence holds.
    pub fn num_free(&self) -> usize {
        self.blank.len() + self.known.num_idle()
    }

    /// Free places of which something is known.
    #[cfg(test)]
    pub fn num_idle(&self) -> usize {
        self.known.num_idle()
    }

    /// Sequences that hold `place`.
    pub fn num_holders(&self, place: u32) -> usize {
        self.ref_counts[place as usize] as usize
    }

    /// The place of what has this hash.
    pub fn find(&self, hash: &PageHash) -> Option<u32> {
        self.known.find(hash)
    }

    /// Whether other sequences can find `place`.
    #[cfg(test)]
    pub fn knows(&self, place: u32) -> bool {
        self.known.knows(place)
    }

    /// Tells `listener` of what sequences can find.
    pub fn listen(&mut self, listener: Listener) {
        self.known.listen(listener);
    }

    /// Lets other sequences find a place that a sequence holds, and that nobody writes to any more.
    /// A listener is told what `stored` makes of it, if anything.
    pub fn publish(
        &mut self,
        hash: PageHash,
        place: u32,
        stored: impl FnOnce() -> Option<StoredPage>,
    ) {
        self.known.insert(hash, place, stored);
    }

    /// Lets no sequence find `place` any more.
    pub fn forget(&mut self, place: u32) {
        if self.known.knows(place) && self.num_holders(place) == 0 {
            self.known.revive(place);
            self.blank.push(place);
        }
        self.known.forget(place);
    }

    /// Lets no sequence find what is there now.
    pub fn forget_all(&mut self) {
        self.known.forget_all();
        self.blank.extend(std::iter::from_fn(|| self.known.evict()));
    }

    /// A free place, for something else to be put there.
    pub fn take(&mut self) -> Option<u32> {
        let place = self.blank.pop().or_else(|| self.known.evict())?;
        self.ref_counts[place as usize] = 1;
        Some(place)
    }

    /// One more sequence holds `place`.
    pub fn retain(&mut self, place: u32) {
        if self.num_holders(place) == 0 {
            self.known.revive(place);
        }
        self.ref_counts[place as usize] += 1;
    }

    /// A sequence that holds `place` does so no more.
    pub fn release(&mut self, place: u32) {
        let count = &mut self.ref_counts[place as usize];
        *count -= 1;
        match *count {
            0 if self.known.knows(place) => self.known.set_idle(place),
            0 => self.blank.push(place),
            _ => {}
        }
    }
}
