//! A request in progress: its tokens, its place in the cache, how it is sampled.

use super::cache_event::StoredPage;
use super::chain::{Before, ChainState};
use super::constraint::Constrained;
use super::edits::Edits;
use super::pages::{PageAllocator, PageTable};
use super::pooling::{Pooled, Pooling};
use super::prefix::PageHash;
use super::sampler;
use super::scheduler::{Entry, Turns};
use super::states::{Snapshots, StatePool};
use super::{FinishReason, Logprobs, PromptProgress, Request, RequestId, Sampling, SamplingError};
use crate::exec::{LogitEdit, NextToken, RowSampling};
use crate::plan::{DRAWN, PAGE_SIZE};
use rayon::prelude::*;
use std::borrow::Cow;
use std::ops::Range;

/// A request in progress.
#[derive(Debug)]
pub struct Sequence {
    id: RequestId,
    /// Prompt, then generated tokens.
    tokens: Vec<u32>,
    prompt_len: usize,
    /// Positions that are in the cache, or that a step computes which was made: the first of
    /// `tokens`, and of those that are drawn.
    num_cached: usize,
    /// Tokens that come after `tokens`: steps draw them, which nobody has read yet.
    num_drawn: usize,
    /// The logit row of the last step in which the last of them is drawn.
    drawn_row: usize,
    /// Whether that is the last of all.
    is_full: bool,
    pages: PageTable,
    snapshots: Snapshots,
    /// The hash that the first page's comes after.
    root: PageHash,
    /// What the root was made from.
    cache_salt: Option<String>,
    /// Hashes of the first pages, all of whose tokens are there.
    hashes: Vec<PageHash>,
    /// Leading pages that other sequences can find.
    num_published: usize,
    /// Leading tokens of the prompt that were in the cache when the request left the queue; `None`
    /// before that.
    reused: Option<usize>,
    /// Whether [`Sequence::start`] has said so.
    is_started: bool,
    sampling: Sampling,
    /// Samplers of its own, which the host applies.
    chain: Option<ChainState>,
    edits: Edits,
    /// Whether they are left to the host, as the step has no room for them.
    edits_on_host: bool,
    max_new_tokens: Option<usize>,
    stop_tokens: Vec<u32>,
    min_tokens: usize,
    logprobs: Option<usize>,
    logprobs_of: Vec<u32>,
    prompt_logprobs: Option<usize>,
    /// Hidden states of a prompt whose embedding is asked for.
    pooled: Option<Pooled>,
    /// Which of them the model pools, where it reads a text as a whole: in one step, whose one row
    /// is the embedding.
    whole: Option<Pooling>,
    /// Where the second of two texts begins.
    second_text: Option<usize>,
    /// Leading positions of the prompt whose logits are wanted no more.
    num_rows_done: usize,
    priority: i32,
    constraint: Option<Constrained>,
    /// Whether it has one, also while a step has taken it.
    is_constrained: bool,
}

/// What a step brought a sequence.
#[derive(Debug, Default)]
pub struct Brought {
    /// Log-probabilities of the prompt's tokens after the positions that the step computed.
    pub prompt_logprobs: Vec<Logprobs>,
    /// The embedding of its prompt.
    pub embedding: Option<Vec<f32>>,
    /// The next token, and its own if they are asked for.
    pub token: Option<(u32, Option<Logprobs>)>,
}

impl Sequence {
    /// A sequence that has nothing in the cache yet.
    pub fn new(id: RequestId, request: Request) -> Self {
        let prompt_len = request.prompt.len();
        let pooled = request.pooling.map(Pooled::new);
        let wants_all =
            request.prompt_logprobs.is_some() || pooled.as_ref().is_some_and(Pooled::takes_all);
        Sequence {
            id,
            edits: Edits::new(&request.sampling, &request.prompt),
            edits_on_host: false,
            prompt_len,
            tokens: request.prompt,
            num_cached: 0,
            num_drawn: 0,
            drawn_row: 0,
            is_full: false,
            pages: PageTable::default(),
            snapshots: Snapshots::default(),
            root: PageHash::root(request.cache_salt.as_deref()),
            cache_salt: request.cache_salt,
            hashes: Vec::new(),
            num_published: 0,
            reused: None,
            is_started: false,
            sampling: request.sampling,
            chain: request.chain.map(ChainState::new),
            max_new_tokens: request.max_new_tokens,
            stop_tokens: request.stop_tokens,
            min_tokens: request.min_tokens,
            logprobs: request.logprobs,
            logprobs_of: request.logprobs_of,
            prompt_logprobs: request.prompt_logprobs,
            pooled,
            whole: None,
            second_text: request.second_text,
            num_rows_done: if wants_all { 0 } else { prompt_len },
            priority: request.priority,
            is_constrained: request.constraint.is_some(),
            constraint: request.constraint.as_ref().map(Constrained::new),
        }
    }

    /// Lets the model read it as a whole, and pool hidden states of `rows`.
    pub fn read_whole(mut self, rows: Pooling) -> Self {
        self.num_rows_done = self.prompt_len;
        self.whole = Some(rows);
        self
    }

    /// Whether all of its tokens have to be in one step.
    pub fn is_whole(&self) -> bool {
        self.whole.is_some()
    }

    /// Where the second of two texts begins, if that matters.
    pub fn second_text(&self) -> Option<usize> {
        self.second_text.filter(|_| self.is_whole())
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

    /// Tokens that are not in the cache yet; none once its last token is drawn.
    pub fn num_pending(&self) -> usize {
        match self.is_full {
            true => 0,
            false => self.tokens.len() + self.num_drawn - self.num_cached,
        }
    }

    /// The first `num_tokens` of them; what is not known yet is a [`DRAWN`] one.
    pub fn pending(&self, num_tokens: usize) -> Cow<'_, [u32]> {
        match self.tokens.get(self.num_cached..self.num_cached + num_tokens) {
            Some(tokens) => tokens.into(),
            None => vec![DRAWN | self.drawn_row as u32].into(),
        }
    }

    /// Tokens of the prompt that are not in the cache yet.
    pub fn pending_prompt(&self) -> &[u32] {
        &self.tokens[self.num_cached.min(self.prompt_len)..self.prompt_len]
    }

    /// Positions in the cache, those included that a step computes which was made.
    pub fn num_cached(&self) -> usize {
        self.num_cached
    }

    /// Where they are.
    pub fn pages(&self) -> &PageTable {
        &self.pages
    }

    /// Tokens of the prompt that a step may take before the recurrent state is to be kept.
    pub fn before_snapshot(&self) -> Option<usize> {
        Some(self.snapshots.next_border(self.num_cached)? - self.num_cached)
    }

    /// How the next token is drawn, unless the host needs the logits.
    pub fn row_sampling(&self) -> RowSampling {
        sampler::row_sampling(&self.sampling, self.num_generated() + self.num_drawn)
    }

    /// Whether a step can be made for the token that is drawn now before that is known: the one
    /// after it is drawn on the device, of logits as they are.
    pub fn goes_on_unseen(&self) -> bool {
        self.is_full || !self.is_constrained && self.edits.are_none()
    }

    /// Chooses the next token on the host.
    fn sample(&mut self, logits: &[f32]) -> Result<u32, SamplingError> {
        let num_generated = self.num_generated();
        let mut logits = Cow::Borrowed(logits);
        if let Some(constraint) = self.constraint.as_mut().filter(|it| !it.is_free()) {
            logits = constraint.mask(&logits)?.into();
        }
        if num_generated < self.min_tokens {
            logits = sampler::without(logits, &self.stop_tokens);
        }
        let edits = self.edits.as_slice();
        let Some(chain) = &mut self.chain else {
            return sampler::sample(&self.sampling, logits, edits, num_generated);
        };
        let before = Before {
            tokens: &self.tokens,
            stop_tokens: &self.stop_tokens,
            seed: self.sampling.seed,
            position: num_generated as u32,
        };
        chain.sample(&sampler::edit(logits, edits), before)
    }

    /// Lets the constraint go on with `token`.
    fn accepted(&mut self, token: u32) -> Result<u32, SamplingError> {
        if let Some(constraint) = &mut self.constraint {
            constraint.accept(token)?;
        }
        Ok(token)
    }

    /// Takes the constraint out for the time that a step takes.
    pub fn take_constraint(&mut self) -> Option<Constrained> {
        self.constraint.take()
    }

    /// Gives back what [`Sequence::take_constraint`] took.
    pub fn put_constraint(&mut self, constraint: Constrained) {
        self.constraint = Some(constraint);
    }

    /// Whether the host needs the logits of the last row: to tell of them, or to change them before
    /// the draw.
    fn needs_logits(&self) -> bool {
        self.edits_on_host
            || self.chain.is_some()
            || self.constraint.as_ref().is_some_and(|constraint| !constraint.is_free())
            || self.logprobs.is_some()
            || self.pooled.is_some()
            || self.num_generated() < self.min_tokens
    }

    /// Tokens that a bias or a penalty concerns.
    pub fn num_edits(&self) -> usize {
        self.edits.as_slice().len()
    }

    /// What the device changes of the logits of its next token, where it has room for `room` edits;
    /// else the host does.
    pub fn device_edits(&mut self, room: usize) -> &[LogitEdit] {
        self.edits_on_host = false;
        let edits = self.edits.as_slice();
        if edits.is_empty() || self.needs_logits() {
            return &[];
        }
        self.edits_on_host = edits.len() > room;
        if self.edits_on_host { &[] } else { self.edits.as_slice() }
    }

    /// Whether an embedding is asked for, and no token.
    pub fn is_pooled(&self) -> bool {
        self.pooled.is_some()
    }

    fn num_generated(&self) -> usize {
        self.tokens.len() - self.prompt_len
    }

    /// Whether rows of the prompt are wanted besides its last.
    pub fn wants_prompt_rows(&self) -> bool {
        self.num_rows_done + 1 < self.prompt_len
    }

    /// Pending tokens of `entry` that have a logit row.
    pub fn logit_rows(&self, entry: &Entry) -> Range<usize> {
        let &Entry { start, num_tokens, is_last, .. } = entry;
        if self.whole == Some(Pooling::First) {
            return 0..1;
        }
        if self.wants_prompt_rows() {
            // What was preempted can come by rows again that are done.
            self.num_rows_done.saturating_sub(start).min(num_tokens)..num_tokens
        } else {
            num_tokens - usize::from(is_last)..num_tokens
        }
    }

    /// Rows of [`Sequence::logit_rows`] whose logits the host needs.
    pub fn host_rows(&self, entry: &Entry) -> Range<usize> {
        let Range { start, end } = self.logit_rows(entry);
        start..end - usize::from(entry.is_last && !self.needs_logits())
    }

    /// Takes the `output` of its [`Sequence::host_rows`], `[rows, width]`: hidden states of what
    /// [`Sequence::is_pooled`], else logits; and what the device has drawn of its last row.
    ///
    /// # Errors
    /// As [`sampler::drawn`], and those of a constraint.
    pub fn take_rows(
        &mut self,
        entry: &Entry,
        output: &[f32],
        width: usize,
        drawn: Option<NextToken>,
    ) -> Result<Brought, SamplingError> {
        let rows = self.host_rows(entry);
        if let Some(pooled) = &mut self.pooled {
            pooled.push(output, width);
            self.num_rows_done = self.num_rows_done.max(entry.start + rows.end);
            let embedding = entry.is_last.then(|| pooled.embedding());
            return Ok(Brought { embedding, ..Brought::default() });
        }
        let takes_last = entry.is_last && self.needs_logits();
        let num_prompt_rows = rows.len() - usize::from(takes_last);
        let (of_prompt, last) = output.split_at(num_prompt_rows * width);
        let first = entry.start + rows.start;
        let prompt_logprobs = match self.prompt_logprobs {
            Some(num_top) if num_prompt_rows > 0 => {
                self.num_rows_done = first + num_prompt_rows;
                let rows = of_prompt.par_chunks_exact(width).zip(&self.tokens[first + 1..]);
                let of = |(row, &token): (&[f32], &u32)| Logprobs::new(row, token, num_top, &[]);
                rows.map(of).collect::<Result<_, _>>()?
            }
            _ => Vec::new(),
        };
        let token = match drawn.filter(|_| self.max_new_tokens != Some(0)) {
            None => None,
            Some(_) if takes_last => {
                let token = self.sample(last).and_then(|token| self.accepted(token))?;
                let of = |num_top| Logprobs::new(last, token, num_top, &self.logprobs_of);
                Some((token, self.logprobs.map(of).transpose()?))
            }
            Some(drawn) => {
                let token = sampler::drawn(drawn)?;
                Some((self.accepted(token)?, None))
            }
        };
        Ok(Brought { prompt_logprobs, embedding: None, token })
    }

    /// How much of the prompt is in the cache.
    pub fn progress(&self) -> PromptProgress {
        let total = self.prompt_len;
        PromptProgress { done: self.num_cached.min(total), total }
    }

    /// The first time: leading tokens of the prompt that were in the cache when the request left
    /// the queue.
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
        self.pages.grow(allocator, self.tokens.len() + self.num_drawn)
    }

    /// [`Sequence::reserve`] of a sequence that has no pages yet: it begins with pages that are
    /// known to have its tokens in them, and with a recurrent state that was kept after these. At
    /// least one token is left, whose logits are wanted, and all whose logits are wanted besides.
    #[must_use]
    pub fn admit(&mut self, turns: Turns, allocator: &mut PageAllocator) -> bool {
        let most = match self.wants_prompt_rows() {
            // What a token sees after it is not the same in another text.
            _ if self.is_whole() => 0,
            true => self.num_rows_done,
            false => self.tokens.len() - 1,
        };
        let most = most / PAGE_SIZE;
        self.hash_pages(turns, most);
        let found = allocator.begin(&self.hashes[..most]);
        if !self.pages.grow_from(allocator, &found, self.tokens.len()) {
            return false;
        }
        self.num_published = found.pages.len();
        self.num_cached = found.pages.len() * PAGE_SIZE;
        if let Some(distance) = allocator.states().map(StatePool::distance) {
            let known = found.num_known * PAGE_SIZE;
            let (start, len) = (self.num_cached, self.tokens.len());
            self.snapshots = Snapshots::new(start, known, len, distance);
        }
        self.reused.get_or_insert(self.num_cached);
        true
    }

    /// Lets other sequences find the pages that are full, and the recurrent state at some ends of
    /// pages.
    pub fn publish(&mut self, turns: Turns, allocator: &mut PageAllocator) {
        if self.is_whole() {
            return;
        }
        // What no token is known of has no name.
        let num_cached = self.num_cached.min(self.tokens.len());
        let num_full = num_cached / PAGE_SIZE;
        self.hash_pages(turns, num_full);
        for index in self.num_published..num_full {
            let stored = || self.stored_page(turns, index);
            allocator.publish(self.hashes[index], &self.pages, index, stored);
        }
        self.num_published = num_full;
        let hashes = &self.hashes[..num_full];
        self.pages.keep_state(allocator, &mut self.snapshots, num_cached, hashes);
        // What left its window before the steps of others take pages; it takes none itself.
        let _ = self.slide(allocator, 0);
    }

    /// Readies its pages for a step of `num_tokens` tokens, as [`PageTable::slide`].
    #[must_use]
    pub fn slide(&mut self, allocator: &mut PageAllocator, num_tokens: usize) -> bool {
        self.pages.slide(allocator, self.num_cached..self.num_cached + num_tokens)
    }

    /// What there is to say of a full page; nothing if no prompt can find it, as it holds generated
    /// tokens.
    fn stored_page(&self, turns: Turns, index: usize) -> Option<StoredPage> {
        let start = index * PAGE_SIZE;
        let is_of_prompt = start + PAGE_SIZE <= self.prompt_len;
        (turns == Turns::Together || is_of_prompt).then(|| StoredPage {
            hash: self.hashes[index],
            parent: index.checked_sub(1).map(|before| self.hashes[before]),
            start,
            tokens: self.tokens[start..start + PAGE_SIZE].to_vec(),
            cache_salt: self.cache_salt.clone(),
        })
    }

    /// Hashes the first `num_pages`.
    fn hash_pages(&mut self, turns: Turns, num_pages: usize) {
        for start in (self.hashes.len()..num_pages).map(|index| index * PAGE_SIZE) {
            let num_prompt = match turns {
                Turns::Together => PAGE_SIZE,
                // Keys and values of generated tokens may have other bits than those of the same
                // tokens in a prompt.
                Turns::Apart => self.prompt_len.saturating_sub(start).min(PAGE_SIZE),
            };
            let parent = self.hashes.last().unwrap_or(&self.root);
            self.hashes.push(parent.child(&self.tokens[start..start + PAGE_SIZE], num_prompt));
        }
    }

    /// Gives back all pages. Those that are full can be found until their room is needed; what is
    /// lost by then has to be computed again.
    pub fn retire(&mut self, turns: Turns, allocator: &mut PageAllocator) {
        self.publish(turns, allocator);
        self.pages.truncate(allocator, 0);
        (self.num_cached, self.num_published) = (0, 0);
    }

    /// Gives back all pages, and lets nobody find them.
    pub fn evict(&mut self, allocator: &mut PageAllocator) {
        self.pages.forget(allocator, &self.hashes);
        (self.num_cached, self.num_published) = (0, 0);
    }

    /// A step was made of `entry`, which draws a token in its logit row `row` if that is the last of
    /// what was pending.
    pub fn begin(&mut self, entry: &Entry, row: usize, context: usize) {
        self.num_cached += entry.num_tokens;
        if entry.is_last {
            self.num_drawn += 1;
            self.drawn_row = row;
            self.is_full = self.max_new_tokens == Some(self.num_generated() + self.num_drawn)
                || self.tokens.len() + self.num_drawn > context;
        }
    }

    /// Forgets the steps that were made of it: they came to nothing. It begins anew.
    pub fn restart(&mut self, allocator: &mut PageAllocator) {
        self.evict(allocator);
        (self.num_drawn, self.is_full) = (0, false);
    }

    /// Appends a generated token; says whether it was the last.
    pub fn push(&mut self, token: u32, context: usize) -> Option<FinishReason> {
        self.num_drawn -= 1;
        self.tokens.push(token);
        self.edits.push(token);
        if self.stop_tokens.contains(&token) {
            Some(FinishReason::StopToken)
        } else if self.max_new_tokens == Some(self.num_generated()) {
            Some(FinishReason::Length)
        } else if self.tokens.len() > context {
            Some(FinishReason::ContextFull)
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_the_hosts_where_the_device_has_no_room() {
        let sampling = Sampling { repetition_penalty: 2.0, ..Sampling::default() };
        let request = Request { prompt: vec![4, 5], sampling, ..Request::default() };
        let mut sequence = Sequence::new(RequestId(0), request.clone());
        for (room, num_edits) in [(2, 2), (1, 0), (3, 2)] {
            assert_eq!(sequence.device_edits(room).len(), num_edits);
            assert_eq!(sequence.needs_logits(), num_edits == 0, "{room}");
        }
        // Where the host has the logits anyway, it edits them.
        let mut scored = Sequence::new(RequestId(1), Request { logprobs: Some(0), ..request });
        assert_eq!(scored.device_edits(9), []);
    }
}
