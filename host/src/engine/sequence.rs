//! A request in progress: its tokens, its place in the cache, how it is sampled.

use super::constraint::Constrained;
use super::pages::{PageAllocator, PageTable};
use super::prefix::PageHash;
use super::sampler;
use super::scheduler::Turns;
use super::{FinishReason, PromptProgress, Request, RequestId, Sampling, SamplingError};
use crate::exec::RowSampling;
use crate::plan::PAGE_SIZE;

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
    /// The hash that the first page's comes after.
    root: PageHash,
    /// Hashes of the first pages, all of whose tokens are there.
    hashes: Vec<PageHash>,
    /// Leading pages that other sequences can find.
    num_published: usize,
    /// Leading tokens of the prompt that were in the cache when the request left the queue; `None` before that.
    reused: Option<usize>,
    /// Whether [`Sequence::start`] has said so.
    is_started: bool,
    sampling: Sampling,
    max_new_tokens: Option<usize>,
    stop_tokens: Vec<u32>,
    priority: i32,
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
            root: PageHash::root(request.cache_salt.as_deref()),
            hashes: Vec::new(),
            num_published: 0,
            reused: None,
            is_started: false,
            sampling: request.sampling,
            max_new_tokens: request.max_new_tokens,
            stop_tokens: request.stop_tokens,
            priority: request.priority,
            constraint: request.constraint.as_ref().map(Constrained::new),
        }
    }

    /// The request that it came from.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// [`Request::priority`].
    pub fn priority(&self) -> i32 {
        self.priority
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

    /// Takes pages for all tokens; all that it needs or none.
    #[must_use]
    pub fn reserve(&mut self, allocator: &mut PageAllocator) -> bool {
        self.pages.grow(allocator, self.tokens.len())
    }

    /// [`Sequence::reserve`] of a sequence that has no pages yet: it begins with pages that are known to have its tokens
    /// in them. At least one token is left, whose logits are wanted.
    #[must_use]
    pub fn admit(&mut self, turns: Turns, allocator: &mut PageAllocator) -> bool {
        let most = (self.tokens.len() - 1) / PAGE_SIZE;
        self.hash_pages(turns, most);
        let hashes = self.hashes[..most].iter();
        let found: Vec<u32> = hashes.map_while(|hash| allocator.find(hash)).collect();
        if !self.pages.grow_from(allocator, &found, self.tokens.len()) {
            return false;
        }
        self.num_published = found.len();
        self.num_cached = found.len() * PAGE_SIZE;
        self.reused.get_or_insert(self.num_cached);
        true
    }

    /// Lets other sequences find the pages that are full.
    pub fn publish(&mut self, turns: Turns, allocator: &mut PageAllocator) {
        let num_full = self.num_cached / PAGE_SIZE;
        self.hash_pages(turns, num_full);
        for index in self.num_published..num_full {
            allocator.publish(self.hashes[index], self.pages()[index]);
        }
        self.num_published = num_full;
    }

    /// Hashes the first `num_pages`.
    fn hash_pages(&mut self, turns: Turns, num_pages: usize) {
        for start in (self.hashes.len()..num_pages).map(|index| index * PAGE_SIZE) {
            let num_prompt = match turns {
                Turns::Together => PAGE_SIZE,
                // Keys and values of generated tokens may have other bits than those of the same tokens in a prompt.
                Turns::Apart => self.prompt_len.saturating_sub(start).min(PAGE_SIZE),
            };
            let parent = self.hashes.last().unwrap_or(&self.root);
            self.hashes.push(parent.child(&self.tokens[start..start + PAGE_SIZE], num_prompt));
        }
    }

    /// Gives back all pages. Those that are full can be found until their room is needed; what is lost by then has to be
    /// computed again.
    pub fn retire(&mut self, turns: Turns, allocator: &mut PageAllocator) {
        self.publish(turns, allocator);
        self.pages.truncate(allocator, 0);
        (self.num_cached, self.num_published) = (0, 0);
    }

    /// Gives back all pages, and lets nobody find them.
    pub fn evict(&mut self, allocator: &mut PageAllocator) {
        self.pages.forget(allocator);
        (self.num_cached, self.num_published) = (0, 0);
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
