//! What happens to pages that requests can find in the cache, for a router that sends a prompt to the engine where its
//! beginning lies.

use super::prefix::PageHash;
use std::fmt;

/// What happened to pages of the KV cache that other requests can find; see
/// [`Engine::on_cache_event`](super::Engine::on_cache_event).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CacheEvent {
    /// A page is full: a prompt that begins with its tokens and with those before it finds it.
    Stored(StoredPage),
    /// A page cannot be found any more: other tokens take its room, or its request failed.
    Removed(PageHash),
    /// No page of before can be found any more.
    Cleared,
}

/// A page that requests can find.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredPage {
    /// What is in it and in all pages before it.
    pub hash: PageHash,
    /// The page before it; `None` for the first of a sequence.
    pub parent: Option<PageHash>,
    /// Position of its first token in its sequence.
    pub start: usize,
    /// The tokens in it, `[PAGE_SIZE]`.
    pub tokens: Vec<u32>,
    /// The [`cache_salt`](super::Request::cache_salt) that a request needs to find it.
    pub cache_salt: Option<String>,
}

/// Whom to tell, if anyone.
#[derive(Default)]
pub(super) struct Listener(Option<Box<dyn FnMut(CacheEvent) + Send>>);

impl Listener {
    /// Tells `listener` from now on.
    pub fn new(listener: impl FnMut(CacheEvent) + Send + 'static) -> Self {
        Listener(Some(Box::new(listener)))
    }

    /// Whether anybody listens.
    pub fn is_there(&self) -> bool {
        self.0.is_some()
    }

    /// Tells of an event.
    pub fn tell(&mut self, event: CacheEvent) {
        if let Some(listener) = &mut self.0 {
            listener(event);
        }
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Listener").field(&self.0.is_some()).finish()
    }
}
