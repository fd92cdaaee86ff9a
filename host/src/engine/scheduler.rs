//! Which sequences a step works on: continuous batching, decoding first, long prompts in chunks.

use super::pages::PageAllocator;
use super::{RequestId, sequence::Sequence};
use std::collections::VecDeque;

/// Sequences that wait, and those that have pages in the cache.
#[derive(Debug)]
pub struct Scheduler {
    max_seqs: usize,
    max_tokens: usize,
    pages: PageAllocator,
    waiting: VecDeque<Sequence>,
    /// In the order in which they were admitted.
    running: Vec<Sequence>,
}

/// What a step has to do.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    /// The batch.
    pub entries: Vec<Entry>,
    /// Sequences that lost their pages to older ones; they wait, and are computed again.
    pub preempted: Vec<RequestId>,
}

/// One sequence of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Index of the sequence among the running ones.
    pub index: usize,
    /// Pending tokens that the step takes.
    pub num_tokens: usize,
    /// Whether these are all: then the next token is sampled.
    pub is_last: bool,
}

impl Scheduler {
    /// Steps of at most `max_tokens` tokens of at most `max_seqs` sequences (`max_seqs <= max_tokens`).
    pub fn new(max_seqs: usize, max_tokens: usize, num_pages: usize) -> Self {
        Scheduler {
            max_seqs,
            max_tokens,
            pages: PageAllocator::new(num_pages),
            waiting: VecDeque::new(),
            running: Vec::new(),
        }
    }

    /// Whether a sequence waits or runs.
    pub fn has_work(&self) -> bool {
        !self.waiting.is_empty() || !self.running.is_empty()
    }

    /// The pages of the cache.
    pub fn pages(&mut self) -> &mut PageAllocator {
        &mut self.pages
    }

    /// A running sequence.
    pub fn running(&mut self, index: usize) -> &mut Sequence {
        &mut self.running[index]
    }

    /// Adds a sequence behind those that wait.
    pub fn add(&mut self, sequence: Sequence) {
        self.waiting.push_back(sequence);
    }

    /// Removes a sequence and frees its pages; false if there is none of that name.
    pub fn remove(&mut self, id: RequestId) -> bool {
        if let Some(index) = self.running.iter().position(|sequence| sequence.id() == id) {
            self.running.remove(index).evict(&mut self.pages);
            return true;
        }
        let waiting = self.waiting.len();
        self.waiting.retain(|sequence| sequence.id() != id);
        self.waiting.len() < waiting
    }

    /// Chooses the next batch. A sequence has the pages of all its tokens before its first token is in a batch; when
    /// one that decodes needs a page more and none is free, the youngest gives its pages back.
    pub fn schedule(&mut self) -> Schedule {
        let mut schedule = Schedule::default();
        self.schedule_decoding(&mut schedule);
        let mut tokens_left = self.max_tokens - schedule.entries.len();
        let mut index = 0;
        while tokens_left > 0 && (index < self.running.len() || self.admit()) {
            let pending = self.running[index].pending().len();
            if pending > 1 || self.running[index].num_cached() == 0 {
                let num_tokens = pending.min(tokens_left);
                schedule.entries.push(Entry { index, num_tokens, is_last: num_tokens == pending });
                tokens_left -= num_tokens;
            }
            index += 1;
        }
        schedule
    }

    /// One token of each sequence whose prompt is in the cache.
    fn schedule_decoding(&mut self, schedule: &mut Schedule) {
        let mut index = 0;
        while index < self.running.len() {
            let sequence = &mut self.running[index];
            if sequence.num_cached() == 0 || sequence.pending().len() > 1 {
                index += 1;
            } else if sequence.reserve(&mut self.pages) {
                schedule.entries.push(Entry { index, num_tokens: 1, is_last: true });
                index += 1;
            } else if let Some(mut youngest) = self.running.pop() {
                youngest.evict(&mut self.pages);
                schedule.preempted.push(youngest.id());
                self.waiting.push_front(youngest);
            }
        }
    }

    /// Lets the first that waits run, if there is room.
    fn admit(&mut self) -> bool {
        if self.running.len() == self.max_seqs {
            return false;
        }
        let Some(first) = self.waiting.front_mut() else { return false };
        if !first.reserve(&mut self.pages) {
            return false;
        }
        self.running.extend(self.waiting.pop_front());
        true
    }
}
