//! Which sequences share a step: continuous batching, decoding first, long prompts in chunks.

use super::pages::{PageAllocator, PageTable};
use super::prefix::PrefixCache;
use super::{EngineStats, RequestId, sequence::Sequence};
use std::collections::{HashSet, VecDeque};

/// Sequences that wait, sequences that run, and the prefixes that those before them left in the cache.
#[derive(Debug)]
pub struct Scheduler {
    turns: Turns,
    max_seqs: usize,
    max_tokens: usize,
    pages: PageAllocator,
    prefixes: PrefixCache,
    waiting: VecDeque<Sequence>,
    /// In the order in which they were admitted.
    running: Vec<Sequence>,
    num_pages: usize,
    num_preemptions: u64,
}

/// Which tokens share a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turns {
    /// All tokens.
    Together,
    /// Tokens of prompts, or if there are none generated tokens. A position is always computed by the same kind of
    /// step, also when it is computed again.
    Apart,
}

/// One sequence of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Index of the sequence among the running ones.
    pub index: usize,
    /// Pending tokens that the step takes.
    pub num_tokens: usize,
    /// Whether these are all pending tokens: then the next token is sampled.
    pub is_last: bool,
}

impl Scheduler {
    /// Steps of at most `max_tokens` tokens of at most `max_seqs` sequences (`max_seqs <= max_tokens`).
    pub fn new(turns: Turns, max_seqs: usize, max_tokens: usize, num_pages: usize) -> Self {
        Scheduler {
            turns,
            max_seqs,
            max_tokens,
            pages: PageAllocator::new(num_pages),
            prefixes: PrefixCache::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            num_pages,
            num_preemptions: 0,
        }
    }

    /// What it holds.
    pub fn stats(&self) -> EngineStats {
        let (mut num_own, mut shared) = (0, HashSet::new());
        for &page in self.running.iter().flat_map(Sequence::pages) {
            if self.pages.num_holders(page) == 1 {
                num_own += 1;
            } else {
                shared.insert(page);
            }
        }
        EngineStats {
            num_running: self.running.len(),
            num_waiting: self.waiting.len(),
            num_used_pages: num_own + shared.len(),
            num_pages: self.num_pages,
            num_preemptions: self.num_preemptions,
        }
    }

    /// Whether a sequence waits or runs.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.running.is_empty()
    }

    /// Pages for `len` positions, which retained sequences give up if need be; `None` if running sequences hold them.
    pub fn take_pages(&mut self, len: usize) -> Option<PageTable> {
        let mut table = PageTable::default();
        let has_room = self.prefixes.make_room(&mut self.pages, table.num_missing(len));
        (has_room && table.grow(&mut self.pages, len)).then_some(table)
    }

    /// Gives back what [`Scheduler::take_pages`] took.
    pub fn give_back(&mut self, mut table: PageTable) {
        table.truncate(&mut self.pages, 0);
    }

    /// Drops all retained sequences.
    pub fn drop_retained(&mut self) {
        self.prefixes.clear(&mut self.pages);
    }

    /// A sequence that waits or runs.
    pub fn get(&self, id: RequestId) -> Option<&Sequence> {
        self.running.iter().chain(&self.waiting).find(|sequence| sequence.id() == id)
    }

    /// A running sequence.
    pub fn running(&mut self, index: usize) -> &mut Sequence {
        &mut self.running[index]
    }

    /// All running sequences, by index.
    pub fn all_running(&mut self) -> &mut [Sequence] {
        &mut self.running
    }

    /// Appends a sequence to those that wait.
    pub fn add(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Removes a sequence and frees its pages; false if there is none of that name.
    pub fn remove(&mut self, id: RequestId) -> bool {
        let removed = self.take(id);
        let is_removed = removed.is_some();
        removed.into_iter().for_each(|mut sequence| sequence.evict(&mut self.pages));
        is_removed
    }

    /// Removes a sequence and retains what it has in the cache; false if there is none of that name.
    pub fn retire(&mut self, id: RequestId) -> bool {
        let Some(mut sequence) = self.take(id) else { return false };
        sequence.retire(self.turns, &mut self.pages, &mut self.prefixes);
        true
    }

    fn take(&mut self, id: RequestId) -> Option<Sequence> {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id() == id) {
            return Some(self.running.remove(index));
        }
        let index = self.waiting.iter().position(|sequence| sequence.id() == id)?;
        self.waiting.remove(index)
    }

    /// Chooses the next batch. A sequence has the pages of all its tokens before its first token is in a batch. When
    /// one that decodes needs another page and none is free, retained prefixes give theirs up. If there are none, the
    /// youngest running sequence is preempted: it waits, and what of it is not retained is computed again.
    pub fn schedule(&mut self) -> Vec<Entry> {
        match self.turns {
            Turns::Together => {
                let decoding = self.schedule_decoding();
                self.schedule_prompts(decoding)
            }
            Turns::Apart => {
                let prompts = self.schedule_prompts(Vec::new());
                if prompts.is_empty() { self.schedule_decoding() } else { prompts }
            }
        }
    }

    /// Tokens of the sequence at `index` that a step may take together; none if it decodes.
    pub fn prompt_len(&self, index: usize) -> usize {
        let sequence = &self.running[index];
        match self.turns {
            Turns::Together if sequence.num_cached() > 0 && sequence.pending().len() == 1 => 0,
            Turns::Together => sequence.pending().len(),
            Turns::Apart => sequence.pending_prompt().len(),
        }
    }

    /// Adds to `batch` as much of the prompts as there is room for.
    fn schedule_prompts(&mut self, mut batch: Vec<Entry>) -> Vec<Entry> {
        let mut tokens_left = self.max_tokens - batch.len();
        let num_running = self.running.len();
        let mut index = 0;
        while tokens_left > 0 && (index < self.running.len() || self.admit()) {
            let is_admitted = index >= num_running;
            // All but one token of a sequence can be in the cache when it is admitted.
            let pending =
                if is_admitted { self.prompt_len(index).max(1) } else { self.prompt_len(index) };
            let num_tokens = pending.min(tokens_left);
            if num_tokens > 0 {
                batch.push(self.entry(index, num_tokens));
                tokens_left -= num_tokens;
            }
            index += 1;
        }
        batch
    }

    fn entry(&self, index: usize, num_tokens: usize) -> Entry {
        Entry { index, num_tokens, is_last: num_tokens == self.running[index].pending().len() }
    }

    /// One token of each sequence whose prompt is in the cache.
    fn schedule_decoding(&mut self) -> Vec<Entry> {
        let mut batch = Vec::new();
        let mut index = 0;
        while index < self.running.len() {
            if self.prompt_len(index) > 0 {
                index += 1;
            } else if self.running[index].reserve(&mut self.pages, &mut self.prefixes) {
                batch.push(self.entry(index, 1));
                index += 1;
            } else if let Some(mut youngest) = self.running.pop() {
                youngest.retire(self.turns, &mut self.pages, &mut self.prefixes);
                self.num_preemptions += 1;
                self.waiting.push_front(youngest);
            }
        }
        batch
    }

    /// Lets the first that waits run, if there is room.
    fn admit(&mut self) -> bool {
        if self.running.len() == self.max_seqs {
            return false;
        }
        let Some(first) = self.waiting.front_mut() else { return false };
        if !first.admit(self.turns, &mut self.pages, &mut self.prefixes) {
            return false;
        }
        self.running.extend(self.waiting.pop_front());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Request;
    use crate::plan::PAGE_SIZE;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;
    use std::collections::HashMap;

    const CONTEXT: usize = 4 * PAGE_SIZE;

    fn add(scheduler: &mut Scheduler, id: u64, prompt_len: usize, max_new_tokens: usize) {
        add_prompt(scheduler, id, vec![id as u32; prompt_len], max_new_tokens);
    }

    fn add_prompt(scheduler: &mut Scheduler, id: u64, prompt: Vec<u32>, max_new_tokens: usize) {
        let request =
            Request { prompt, max_new_tokens: Some(max_new_tokens), ..Default::default() };
        scheduler.add(Sequence::new(RequestId(id), request));
    }

    /// Advances a batch as the engine does, with 0 as each generated token; returns the requests that got one.
    fn run(scheduler: &mut Scheduler, batch: &[Entry]) -> Vec<RequestId> {
        let mut tokens_for = Vec::new();
        let mut ended = Vec::new();
        for entry in batch {
            let sequence = scheduler.running(entry.index);
            sequence.advance(entry.num_tokens);
            if entry.is_last {
                tokens_for.push(sequence.id());
                if sequence.push(0, CONTEXT).is_some() {
                    ended.push(sequence.id());
                }
            }
        }
        ended.into_iter().for_each(|id| assert!(scheduler.retire(id)));
        tokens_for
    }

    /// `(id, num_tokens, is_last)` of each entry.
    fn named(scheduler: &mut Scheduler, batch: &[Entry]) -> Vec<(u64, usize, bool)> {
        let entry = |e: &Entry| (scheduler.running(e.index).id().0, e.num_tokens, e.is_last);
        batch.iter().map(entry).collect()
    }

    #[test]
    fn prompts_come_in_chunks_after_decoding() {
        let mut scheduler = Scheduler::new(Turns::Together, 4, 10, 100);
        add(&mut scheduler, 0, 4, 9);
        add(&mut scheduler, 1, 15, 9);
        let mut batches = Vec::new();
        for step in 0..4 {
            if step == 2 {
                add(&mut scheduler, 2, 1, 9);
            }
            let batch = scheduler.schedule();
            batches.push(named(&mut scheduler, &batch));
            run(&mut scheduler, &batch);
        }
        assert_eq!(batches[0], [(0, 4, true), (1, 6, false)]);
        assert_eq!(batches[1], [(0, 1, true), (1, 9, true)]);
        assert_eq!(batches[2], [(0, 1, true), (1, 1, true), (2, 1, true)]);
        assert_eq!(batches[3], [(0, 1, true), (1, 1, true), (2, 1, true)]);
    }

    #[test]
    fn no_more_sequences_run_than_allowed() {
        let mut scheduler = Scheduler::new(Turns::Together, 2, 10, 100);
        (0..3).for_each(|id| add(&mut scheduler, id, 2, 1 + id as usize));
        let mut batches = Vec::new();
        while scheduler.has_work() {
            let batch = scheduler.schedule();
            batches.push(named(&mut scheduler, &batch));
            run(&mut scheduler, &batch);
        }
        assert_eq!(batches[0], [(0, 2, true), (1, 2, true)]);
        assert_eq!(batches[1], [(1, 1, true), (2, 2, true)]);
        assert_eq!(batches[2..], [[(2, 1, true)], [(2, 1, true)]]);
    }

    #[test]
    fn the_youngest_gives_its_pages_to_an_older_one() {
        // Two pages in all; both sequences fill theirs and need a second.
        let mut scheduler = Scheduler::new(Turns::Together, 2, 200, 2);
        add(&mut scheduler, 0, PAGE_SIZE, 3);
        add(&mut scheduler, 1, PAGE_SIZE, 3);
        let first = scheduler.schedule();
        assert_eq!(first.len(), 2);
        run(&mut scheduler, &first);
        let second = scheduler.schedule();
        assert_eq!(named(&mut scheduler, &second), [(0, 1, true)]);
        assert_eq!(scheduler.waiting.front().map(Sequence::id), Some(RequestId(1)));
        let EngineStats { num_running, num_waiting, num_used_pages, num_preemptions, .. } =
            scheduler.stats();
        assert_eq!((num_running, num_waiting, num_used_pages, num_preemptions), (1, 1, 2, 1));
        run(&mut scheduler, &second);
        run_to_end(&mut scheduler, 2);
    }

    fn run_to_end(scheduler: &mut Scheduler, num_pages: usize) {
        for _ in 0..10_000 {
            let batch = scheduler.schedule();
            run(scheduler, &batch);
        }
        assert!(!scheduler.has_work(), "a sequence starves");
        assert!(scheduler.prefixes.has_room(&scheduler.pages, num_pages), "a page is lost");
    }

    /// What each slot of the cache holds: the tokens up to its position, and whether it was computed as part of a
    /// prompt.
    type Cache = HashMap<(u32, usize), (Vec<u32>, bool)>;

    /// Writes what `batch` computes to `cache`, and checks that every sequence finds its own tokens there.
    fn compute(scheduler: &Scheduler, batch: &[Entry], cache: &mut Cache) {
        for entry in batch {
            let sequence = &scheduler.running[entry.index];
            let num_cached = sequence.num_cached();
            for position in num_cached..num_cached + entry.num_tokens {
                let page = sequence.pages()[position / PAGE_SIZE];
                assert_eq!(scheduler.pages.num_holders(page), 1, "a write to a shared page");
                let tokens = sequence.tokens()[..=position].to_vec();
                let is_prompt = position < sequence.progress().total;
                cache.insert((page, position % PAGE_SIZE), (tokens, is_prompt));
            }
        }
        for sequence in &scheduler.running {
            for position in 0..sequence.num_cached() {
                let slot = (sequence.pages()[position / PAGE_SIZE], position % PAGE_SIZE);
                let (tokens, is_prompt) = &cache[&slot];
                assert_eq!(tokens, &sequence.tokens()[..=position], "not this sequence's");
                let wants_prompt = position < sequence.progress().total;
                let any_kind = scheduler.turns == Turns::Together;
                assert!(any_kind || *is_prompt == wants_prompt, "computed by the other kind");
            }
        }
    }

    /// Random arrivals and cancellations of prompts with common prefixes, over a cache that is too small: no batch is
    /// beyond its bounds, every sequence finds its own keys and values, and every request gets its tokens.
    #[test]
    fn every_request_is_served() {
        let mut num_reused = 0;
        for seed in 0..100 {
            let turns = if seed % 2 == 0 { Turns::Together } else { Turns::Apart };
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let (max_seqs, max_tokens) = (rng.random_range(1..6), rng.random_range(6..100));
            let num_pages = rng.random_range(4..9);
            let mut scheduler = Scheduler::new(turns, max_seqs, max_tokens, num_pages);
            let mut left = std::collections::BTreeMap::new();
            let mut cache = Cache::new();
            for step in 0..400 {
                if rng.random_bool(0.1) {
                    let prompt_len = rng.random_range(1..=CONTEXT);
                    let max_new_tokens = rng.random_range(1..100);
                    // Generated tokens are 0: a prompt may begin like another one and its answer.
                    let mut prompt = vec![0; prompt_len];
                    prompt[rng.random_range(0..prompt_len)] = rng.random_range(0..2);
                    add_prompt(&mut scheduler, step, prompt, max_new_tokens);
                    left.insert(RequestId(step), max_new_tokens.min(CONTEXT + 1 - prompt_len));
                }
                if rng.random_bool(0.02)
                    && let Some(&id) = left.keys().next()
                {
                    scheduler.retire(id);
                    left.remove(&id);
                }
                let batch = scheduler.schedule();
                let tokens: usize = batch.iter().map(|entry| entry.num_tokens).sum();
                assert!(tokens <= max_tokens && batch.len() <= max_seqs);
                if turns == Turns::Apart {
                    let prompt = |entry: &Entry| scheduler.prompt_len(entry.index) > 0;
                    assert!(batch.iter().all(prompt) || !batch.iter().any(prompt), "a mixed step");
                }
                assert!(tokens > 0 || !scheduler.has_work(), "a step without work");
                compute(&scheduler, &batch, &mut cache);
                for entry in &batch {
                    num_reused += scheduler.running(entry.index).start().unwrap_or_default();
                }
                for id in run(&mut scheduler, &batch) {
                    *left.get_mut(&id).unwrap() -= 1;
                }
                left.retain(|_, left| *left > 0);
            }
            run_to_end(&mut scheduler, num_pages);
        }
        assert!(num_reused > 10_000, "{num_reused} tokens were reused");
    }
}
