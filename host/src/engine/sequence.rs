//! A request on its way: its tokens, its place in the cache, its sampler.

use super::pages::{PageAllocator, PageTable};
use super::sampler::Sampler;
use super::{FinishReason, Request, RequestId, SamplingError};

/// A request on its way.
#[derive(Debug)]
pub struct Sequence {
    id: RequestId,
    /// Prompt, then generated tokens.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Positions in the cache: the first of `tokens`.
    num_cached: usize,
    pages: PageTable,
    sampler: Sampler,
    max_new_tokens: Option<usize>,
    stop_tokens: Vec<u32>,
}

impl Sequence {
    /// A sequence that has nothing in the cache yet.
    pub fn new(id: RequestId, request: Request) -> Self {
        Sequence {
            id,
            prompt_len: request.prompt.len(),
            tokens: request.prompt,
            num_cached: 0,
            pages: PageTable::default(),
            sampler: Sampler::new(request.sampling),
            max_new_tokens: request.max_new_tokens,
            stop_tokens: request.stop_tokens,
        }
    }

    /// The request that it came from.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Tokens that are not in the cache yet; at least one, the last.
    pub fn pending(&self) -> &[u32] {
        &self.tokens[self.num_cached..]
    }

    /// Tokens of the prompt that are not in the cache yet.
    pub fn pending_prompt(&self) -> &[u32] {
        &self.tokens[self.num_cached.min(self.prompt_len)..self.prompt_len]
    }

    /// Positions in the cache.
    pub fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// The pages that hold them.
    pub fn pages(&self) -> &[u32] {
        self.pages.pages()
    }

    /// Chooses the next token.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        self.sampler.sample(logits, &self.tokens)
    }

    /// Whether the host has to see the logits: where the next token is simply that of the largest, the device finds it.
    pub fn needs_logits(&self) -> bool {
        !self.sampler.is_plain_greedy()
    }

    /// Takes pages for all tokens; all that it needs or none.
    #[must_use]
    pub fn reserve(&mut self, allocator: &mut PageAllocator) -> bool {
        self.pages.grow(allocator, self.tokens.len())
    }

    /// Gives back all pages: everything has to be computed again.
    pub fn evict(&mut self, allocator: &mut PageAllocator) {
        self.pages.truncate(allocator, 0);
        self.num_cached = 0;
    }

    /// `num_tokens` more tokens are in the cache.
    pub fn advance(&mut self, num_tokens: usize) {
        self.num_cached += num_tokens;
    }

    /// Appends a generated token; says whether it was the last.
    pub fn push(&mut self, token: u32, context: usize) -> Option<FinishReason> {
        self.tokens.push(token);
        if self.stop_tokens.contains(&token) {
            Some(FinishReason::StopToken)
        } else if self.max_new_tokens == Some(self.tokens.len() - self.prompt_len) {
            Some(FinishReason::Length)
        } else if self.tokens.len() > context {
            Some(FinishReason::ContextFull)
        } else {
            None
        }
    }
}
