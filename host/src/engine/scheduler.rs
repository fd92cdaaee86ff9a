//! Which sequences share a step: continuous batching, decoding first, long prompts in chunks,
//! urgent requests before others.

use super::cache_event::Listener;
use super::pages::{PageAllocator, PageTable};
use super::{EngineStats, RequestId, sequence::Sequence};
use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::ops::Range;

/// Sequences that wait, sequences that run, and the pages of the cache.
#[derive(Debug)]
pub struct Scheduler {
    turns: Turns,
    limits: Limits,
    pages: PageAllocator,
    /// By priority; of one priority those that were preempted, then in the order in which they
    /// came.
    waiting: VecDeque<Sequence>,
    /// By priority when a step is chosen, then in the order in which they were admitted.
    running: Vec<Sequence>,
    /// Whether the last step was of prompts alone ([`Turns::Apart`]).
    was_of_prompts: bool,
    /// Whether the last step was of prompts whose embeddings are asked for.
    was_pooled: bool,
    num_preemptions: u64,
}

/// What a step may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Sequences that run at once.
    pub max_seqs: usize,
    /// Tokens, of all sequences; at least `max_seqs`.
    pub max_tokens: usize,
    /// Tokens, of all sequences, beside a prompt of which more rows than the last are wanted.
    pub max_tokens_beside_rows: usize,
    /// Tokens of one prompt while other sequences decode; `None`: no other limit than `max_tokens`.
    pub long_prefill_token_threshold: Option<NonZeroUsize>,
}

/// Which tokens share a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// All tokens.
    Together,
    /// Tokens of prompts or generated tokens, by turns where there are both. A position is always
    /// computed by the same kind of step, also when it is computed again.
    Apart,
}

/// One sequence of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The request.
    pub id: RequestId,
    /// Index of its sequence among the running ones when the batch was made.
    pub index: usize,
    /// Positions before those that the step takes.
    pub start: usize,
    /// Pending tokens that the step takes.
    pub num_tokens: usize,
    /// Whether these are all pending tokens: then the next token is sampled.
    pub is_last: bool,
}

impl Scheduler {
    /// Steps within `limits`, over a cache of `pages`.
    pub fn new(turns: Turns, limits: Limits, pages: PageAllocator) -> Self {
        Scheduler {
            turns,
            limits,
            pages,
            waiting: VecDeque::new(),
            running: Vec::new(),
            was_of_prompts: false,
            was_pooled: false,
            num_preemptions: 0,
        }
    }

    /// What it holds.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            num_running: self.running.len(),
            num_waiting: self.waiting.len(),
            num_used_pages: self.pages.num_pages() - self.pages.num_free(),
            num_pages: self.pages.num_pages(),
            num_preemptions: self.num_preemptions,
        }
    }

    /// Whether a sequence waits or runs.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.running.is_empty()
    }

    /// Pages for `len` positions, and a recurrent state; `None` if running sequences hold too many.
    pub fn take_pages(&mut self, len: usize) -> Option<PageTable> {
        let mut table = PageTable::default();
        table.grow(&mut self.pages, len).then_some(table)
    }

    /// Readies `table` for a step with the positions `new` of it, as [`PageTable::slide`].
    #[must_use]
    pub fn slide(&mut self, table: &mut PageTable, new: Range<usize>) -> bool {
        table.slide(&mut self.pages, new)
    }

    /// Gives back what [`Scheduler::take_pages`] took.
    pub fn give_back(&mut self, mut table: PageTable) {
        table.truncate(&mut self.pages, 0);
    }

    /// Lets no sequence that comes find what is in the cache now.
    pub fn drop_retained(&mut self) {
        self.pages.forget_all();
    }

    /// Tells `listener` of pages that sequences can find.
    pub fn listen(&mut self, listener: Listener) {
        self.pages.listen(listener);
    }

    /// A sequence that waits or runs.
    pub fn get(&self, id: RequestId) -> Option<&Sequence> {
        self.running.iter().chain(&self.waiting).find(|sequence| sequence.id() == id)
    }

    /// The index now of the running sequence of `entry`; `None` if it has ended since.
    pub fn index_of(&self, entry: &Entry) -> Option<usize> {
        let is_it = |sequence: &Sequence| sequence.id() == entry.id;
        match self.running.get(entry.index).is_some_and(is_it) {
            true => Some(entry.index),
            false => self.running.iter().position(is_it),
        }
    }

    /// A running sequence.
    pub fn running(&mut self, index: usize) -> &mut Sequence {
        &mut self.running[index]
    }

    /// All running sequences, by index.
    pub fn all_running(&mut self) -> &mut [Sequence] {
        &mut self.running
    }

    /// Lets a sequence wait, after those of its priority.
    pub fn add(&mut self, sequence: Sequence) {
        let priority = sequence.priority();
        let index = self.waiting.partition_point(|other| other.priority() <= priority);
        self.waiting.insert(index, sequence);
    }

    /// Removes a sequence, frees its pages and forgets what is in them; false if there is none of
    /// that name.
    pub fn remove(&mut self, id: RequestId) -> bool {
        let removed = self.take(id);
        let is_removed = removed.is_some();
        removed.into_iter().for_each(|mut sequence| sequence.evict(&mut self.pages));
        is_removed
    }

    /// Removes a sequence and frees its pages, of which the full ones can still be found; false if
    /// there is none of that name.
    pub fn retire(&mut self, id: RequestId) -> bool {
        let Some(mut sequence) = self.take(id) else { return false };
        sequence.retire(self.turns, &mut self.pages);
        true
    }

    fn take(&mut self, id: RequestId) -> Option<Sequence> {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id() == id) {
            return Some(self.running.remove(index));
        }
        let index = self.waiting.iter().position(|sequence| sequence.id() == id)?;
        self.waiting.remove(index)
    }

    /// Lets all that runs begin anew, after steps that came to nothing.
    pub fn restart(&mut self) {
        self.running.iter_mut().for_each(|sequence| sequence.restart(&mut self.pages));
        let mut waiting: VecDeque<_> = self.running.drain(..).collect();
        waiting.append(&mut self.waiting);
        waiting.make_contiguous().sort_by_key(Sequence::priority);
        self.waiting = waiting;
    }

    /// [`Scheduler::schedule`] while a batch runs, whose tokens nobody knows; nothing where a
    /// sequence would have to be preempted: it may be in that batch.
    pub fn schedule_ahead(&mut self) -> Vec<Entry> {
        let turns = (self.was_of_prompts, self.was_pooled);
        self.schedule_batch(false).unwrap_or_else(|| {
            (self.was_of_prompts, self.was_pooled) = turns;
            Vec::new()
        })
    }

    /// Chooses the next batch. A sequence has the pages of all its tokens before its first token is
    /// in a batch. When one that decodes needs another page and none is free, the least urgent
    /// running sequence is preempted, of these the youngest: it waits, and what of it is not in the
    /// cache any more when it is its turn is computed again.
    pub fn schedule(&mut self) -> Vec<Entry> {
        self.schedule_batch(true).unwrap_or_default()
    }

    /// [`Scheduler::schedule`]; `None` where a sequence would have to be preempted, and must not be.
    fn schedule_batch(&mut self, may_preempt: bool) -> Option<Vec<Entry>> {
        for sequence in &mut self.running {
            sequence.publish(self.turns, &mut self.pages);
        }
        self.admit_urgent();
        // By turns where there are both: a plan has logits or hidden states.
        if !std::mem::take(&mut self.was_pooled) {
            let pooled = self.schedule_pooled();
            if !pooled.is_empty() {
                self.was_pooled = true;
                return Some(pooled);
            }
        }
        let batch = match self.turns {
            Turns::Together => {
                let decoding = self.schedule_decoding(may_preempt)?;
                self.schedule_prompts(decoding, false)
            }
            Turns::Apart => self.schedule_apart(may_preempt)?,
        };
        Some(if batch.is_empty() { self.schedule_pooled() } else { batch })
    }

    /// Prompts whose embeddings are asked for.
    fn schedule_pooled(&mut self) -> Vec<Entry> {
        self.schedule_prompts(Vec::new(), true)
    }

    /// Prompts, or after a step of prompts what decodes.
    fn schedule_apart(&mut self, may_preempt: bool) -> Option<Vec<Entry>> {
        if std::mem::take(&mut self.was_of_prompts) {
            let decoding = self.schedule_decoding(may_preempt)?;
            if !decoding.is_empty() {
                return Some(decoding);
            }
        }
        let prompts = self.schedule_prompts(Vec::new(), false);
        self.was_of_prompts = !prompts.is_empty();
        if prompts.is_empty() { self.schedule_decoding(may_preempt) } else { Some(prompts) }
    }

    /// Tokens of the sequence at `index` that a step may take together; none if it decodes.
    pub fn prompt_len(&self, index: usize) -> usize {
        let sequence = &self.running[index];
        match self.turns {
            _ if sequence.is_pooled() => sequence.num_pending(),
            Turns::Together if sequence.num_cached() > 0 && sequence.num_pending() == 1 => 0,
            Turns::Together => sequence.num_pending(),
            Turns::Apart => sequence.pending_prompt().len(),
        }
    }

    /// Adds to `batch` as much of the prompts as there is room for: of those whose embeddings are
    /// asked for if `pooled`, else of the others. While sequences decode, a long prompt comes in
    /// short chunks: they wait for it in every step.
    fn schedule_prompts(&mut self, mut batch: Vec<Entry>, pooled: bool) -> Vec<Entry> {
        let (mut num_tokens, mut max_tokens) = (batch.len(), self.limits.max_tokens);
        let is_decoding = (0..self.running.len()).any(|index| self.prompt_len(index) == 0);
        let threshold = self.limits.long_prefill_token_threshold.filter(|_| is_decoding);
        let max_chunk = threshold.map_or(usize::MAX, NonZeroUsize::get);
        let num_running = self.running.len();
        let mut index = 0;
        while num_tokens < max_tokens && (index < self.running.len() || self.admit_one(pooled)) {
            let pending = match self.turns {
                // All but one token of a sequence can be in the cache when it is admitted.
                Turns::Together if index >= num_running => self.prompt_len(index).max(1),
                _ => self.prompt_len(index),
            };
            let end = match self.running[index].wants_prompt_rows() {
                true => self.limits.max_tokens_beside_rows,
                false => max_tokens,
            };
            let sequence = &self.running[index];
            let max_chunk = max_chunk.min(sequence.before_snapshot().unwrap_or(usize::MAX));
            let chunk = pending.min(end.saturating_sub(num_tokens)).min(max_chunk);
            let is_cut = sequence.is_whole() && chunk < pending;
            let takes_part = chunk > 0 && !is_cut && sequence.is_pooled() == pooled;
            if takes_part && self.running[index].slide(&mut self.pages, chunk) {
                batch.push(self.entry(index, chunk));
                (num_tokens, max_tokens) = (num_tokens + chunk, end);
            }
            index += 1;
        }
        batch
    }

    fn entry(&self, index: usize, num_tokens: usize) -> Entry {
        let sequence = &self.running[index];
        Entry {
            id: sequence.id(),
            index,
            start: sequence.num_cached(),
            num_tokens,
            is_last: num_tokens == sequence.num_pending(),
        }
    }

    /// One token of each sequence whose prompt is in the cache; `None` as
    /// [`Scheduler::schedule_batch`].
    fn schedule_decoding(&mut self, may_preempt: bool) -> Option<Vec<Entry>> {
        let mut batch = Vec::new();
        let mut index = 0;
        while index < self.running.len() {
            if self.prompt_len(index) > 0 || self.running[index].num_pending() == 0 {
                index += 1;
            } else if self.running[index].reserve(&mut self.pages)
                && self.running[index].slide(&mut self.pages, 1)
            {
                batch.push(self.entry(index, 1));
                index += 1;
            } else if may_preempt {
                self.preempt();
            } else {
                return None;
            }
        }
        Some(batch)
    }

    /// Lets the running sequence that can wait best wait, before those of its priority.
    fn preempt(&mut self) {
        let Some(mut sequence) = self.running.pop() else { return };
        sequence.retire(self.turns, &mut self.pages);
        self.num_preemptions += 1;
        let priority = sequence.priority();
        let index = self.waiting.partition_point(|other| other.priority() < priority);
        self.waiting.insert(index, sequence);
    }

    /// Orders what runs by priority, and lets those run, if there is room, that wait and are more
    /// urgent: prompts beside theirs could take all tokens of the step.
    fn admit_urgent(&mut self) {
        let is_urgent =
            |scheduler: &Self| match (scheduler.waiting.front(), scheduler.running.last()) {
                (Some(first), Some(last)) => first.priority() < last.priority(),
                _ => false,
            };
        self.running.sort_by_key(Sequence::priority);
        while is_urgent(self) && self.admit() {
            self.running.sort_by_key(Sequence::priority);
        }
    }

    /// [`Scheduler::admit`] of one whose embedding is asked for, or of another.
    fn admit_one(&mut self, pooled: bool) -> bool {
        self.waiting.front().is_some_and(|first| first.is_pooled() == pooled) && self.admit()
    }

    /// Lets the first that waits run, if there is room.
    fn admit(&mut self) -> bool {
        if self.running.len() == self.limits.max_seqs {
            return false;
        }
        let Some(first) = self.waiting.front_mut() else { return false };
        if !first.admit(self.turns, &mut self.pages) {
            return false;
        }
        self.running.extend(self.waiting.pop_front());
        true
    }
}

#[cfg(test)]
mod tests;
