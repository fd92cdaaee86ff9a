//! A request in progress: its tokens, its place in the cache, how it is sampled.

use super::constraint::Constrained;
use super::pages::{PageAllocator, PageTable};
use super::prefix::{PrefixCache, Retained};
use super::sampler;
use super::scheduler::Turns;
use super::{FinishReason, PromptProgress, Request, RequestId, Sampling, SamplingError};
use crate::exec::RowSampling;

/// A request in progress.
#[derive(Debug)]
pub struct Sequence {
    id: RequestId,
    /// Prompt, then generated tokens.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Positions in the cache: the first of `tokens`.
    num_cached: usize,
    pages: PageTable,
    /// Leading tokens of the prompt that were in the cache when the request left the queue; `None` before that.
    reused: Option<usize>,
    /// Whether [`Sequence::start`] has said so.
    is_started: bool,
    sampling: Sampling,
    max_new_tokens: Option<usize>,
    stop_tokens: Vec<u32>,
    constraint: Option<Constrained>,
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
            reused: None,
            is_started: false,
            sampling: request.sampling,
            max_new_tokens: request.max_new_tokens,
            stop_tokens: request.stop_tokens,
            constraint: request.constraint.as_ref().map(Constrained::new),
        }
    }

    /// The request that it came from.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// Prompt and generated tokens.
    #[cfg(test)]
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens that are not in the cache yet; at least the last one.
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

    /// How the next token is drawn, unless [`Sequence::needs_logits`].
    pub fn row_sampling(&self) -> RowSampling {
        sampler::row_sampling(&self.sampling, self.tokens.len() - self.prompt_len)
    }

    /// Chooses the next token on the host.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let (prompt, generated) = self.tokens.split_at(self.prompt_len);
        let Some(constraint) = &mut self.constraint else {
            return sampler::sample(&self.sampling, logits, prompt, generated);
        };
        let masked = constraint.mask(logits)?;
        let token = sampler::sample(&self.sampling, &masked, prompt, generated)?;
        constraint.accept(token)?;
        Ok(token)
    }

    /// Its constraint, for the time that a step takes.
    pub fn take_constraint(&mut self) -> Option<Constrained> {
        self.constraint.take()
    }

    /// Gives back what [`Sequence::take_constraint`] took.
    pub fn put_constraint(&mut self, constraint: Constrained) {
        self.constraint = Some(constraint);
    }

    /// Whether the host needs the logits, which a bias, a penalty or a constraint changes before the draw.
    pub fn needs_logits(&self) -> bool {
        self.sampling.changes_logits() || self.constraint.is_some()
    }

    /// How much of the prompt is in the cache.
    pub fn progress(&self) -> PromptProgress {
        let total = self.prompt_len;
        PromptProgress { done: self.num_cached.min(total), total }
    }

    /// The first time: leading tokens of the prompt that were in the cache when the request left the queue.
    pub fn start(&mut self) -> Option<usize> {
        if self.is_started {
            return None;
        }
        self.is_started = true;
        Some(self.reused.unwrap_or_default())
    }

    /// Takes pages for all tokens, which retained sequences give up if need be; all that it needs or none.
    #[must_use]
    pub fn reserve(&mut self, allocator: &mut PageAllocator, prefixes: &mut PrefixCache) -> bool {
        let missing = self.pages.num_missing(self.tokens.len());
        prefixes.make_room(allocator, missing) && self.pages.grow(allocator, self.tokens.len())
    }

    /// [`Sequence::reserve`] of a sequence that has no pages yet: it begins with the pages of a retained sequence that
    /// has the same tokens. At least one token is left, whose logits are wanted.
    #[must_use]
    pub fn admit(
        &mut self,
        turns: Turns,
        allocator: &mut PageAllocator,
        prefixes: &mut PrefixCache,
    ) -> bool {
        let most = match turns {
            Turns::Together => self.tokens.len(),
            // Positions of generated tokens are in the cache by decoding alone.
            Turns::Apart => self.prompt_len,
        };
        // Checked first, so that a sequence that has to wait takes nothing.
        if !prefixes.has_room(allocator, self.pages.num_missing(self.tokens.len())) {
            return false;
        }
        (self.pages, self.num_cached) = prefixes.take(allocator, &self.tokens[..most - 1]);
        self.reused.get_or_insert(self.num_cached);
        self.reserve(allocator, prefixes)
    }

    /// Gives all pages to the retained sequences: what these do not keep has to be computed again.
    pub fn retire(
        &mut self,
        turns: Turns,
        allocator: &mut PageAllocator,
        prefixes: &mut PrefixCache,
    ) {
        let len = match turns {
            Turns::Together => self.num_cached,
            // Keys and values of generated tokens may have other bits than those of the same tokens in a prompt.
            Turns::Apart => self.num_cached.min(self.prompt_len),
        };
        self.num_cached = 0;
        let mut pages = std::mem::take(&mut self.pages);
        pages.truncate(allocator, len);
        let (tokens, prompt_len) = (self.tokens[..len].to_vec(), self.prompt_len);
        prefixes.insert(allocator, Retained { tokens, prompt_len, pages });
    }

    /// Gives back all pages and retains nothing.
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
