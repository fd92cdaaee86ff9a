//! The requests of an engine: the batches that they make, and what these bring them.

use super::constraint::Constrained;
use super::pages::PageTable;
use super::scheduler::{Entry, Scheduler};
use super::sequence::Brought;
use super::{Event, EventKind, FinishReason, RequestId};
use crate::Model;
use crate::exec::StepOutput;
use crate::plan::{PlanOutput, StepInputs, edits_of_rows};
use std::sync::Arc;

/// What runs and what waits, and what has happened to it.
pub struct Requests {
    model: Arc<Model>,
    /// Positions of a sequence.
    context: usize,
    pub scheduler: Scheduler,
    /// Events that no step has handed out yet.
    pub events: Vec<Event>,
}

/// Sequences that share a step.
pub struct Batch {
    pub entries: Vec<Entry>,
    /// By entry: its logit rows, and how many of them the host needs.
    pub num_rows: Vec<[usize; 2]>,
    pub inputs: StepInputs,
    pub output: PlanOutput,
    /// Whether it begins with a prompt.
    pub is_prompt: bool,
    /// The logit rows that the host needs.
    pub host_rows: Vec<usize>,
}

impl Requests {
    /// None yet.
    pub fn new(model: Arc<Model>, context: usize, scheduler: Scheduler) -> Self {
        Requests { model, context, scheduler, events: Vec::new() }
    }

    /// Whether there is something to do, or to tell.
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work() || !self.events.is_empty()
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The next batch; `None` without work.
    pub fn batch(&mut self) -> Option<Batch> {
        let entries = self.scheduler.schedule();
        self.begin(entries)
    }

    /// While `batch` runs, the one after it, if that can be told: where the device draws all tokens
    /// of it, and what comes after these is drawn so too. A sequence that stops at its token, or is
    /// cancelled, has a row for nothing.
    pub fn batch_after(&mut self, batch: &Batch) -> Option<Batch> {
        let Batch { entries, host_rows, output, .. } = batch;
        let mut last = entries.iter().filter(|entry| entry.is_last);
        let goes_on = |entry: &Entry| match self.scheduler.index_of(entry) {
            Some(index) => self.scheduler.running(index).goes_on_unseen(),
            None => true,
        };
        if *output != PlanOutput::Logits || !host_rows.is_empty() || !last.all(goes_on) {
            return None;
        }
        let entries = self.scheduler.schedule_ahead();
        self.begin(entries)
    }

    /// The batch of `entries`: what comes after it is scheduled as if it had been computed.
    fn begin(&mut self, entries: Vec<Entry>) -> Option<Batch> {
        let first = entries.first()?;
        let is_prompt = self.scheduler.prompt_len(first.index) > 0;
        let output = match self.scheduler.running(first.index).is_pooled() {
            true => PlanOutput::Hidden,
            false => PlanOutput::Logits,
        };
        let inputs = self.step_inputs(&entries);
        let (num_rows, host_rows) = self.rows_of(&entries);
        let mut end = 0;
        for (entry, [rows, _]) in entries.iter().zip(&num_rows) {
            end += rows;
            self.scheduler.running(entry.index).begin(entry, end.saturating_sub(1), self.context);
        }
        Some(Batch { entries, num_rows, inputs, output, is_prompt, host_rows })
    }

    /// Lets all that runs begin anew, after batches that came to nothing.
    pub fn restart(&mut self) {
        self.scheduler.restart();
    }

    fn step_inputs(&mut self, entries: &[Entry]) -> StepInputs {
        let mut inputs = StepInputs::new();
        let type_offset = self.type_offset();
        let last: Vec<&Entry> = entries.iter().filter(|entry| entry.is_last).collect();
        let mut room = edits_of_rows(last.len());
        let num_edits = |entry: &&Entry| self.scheduler.running(entry.index).num_edits();
        let num_edits: usize = last.iter().map(num_edits).sum();
        inputs.edits.reserve_exact(num_edits.min(room));
        for entry in entries {
            let sequence = self.scheduler.running(entry.index);
            let tokens = sequence.pending(entry.num_tokens);
            let rows = sequence.logit_rows(entry);
            push_table(&mut inputs, &tokens, entry.start, sequence.pages(), rows);
            if let Some(second) = sequence.second_text() {
                // The rows of the second type come after those of the first.
                let first = inputs.positions.len() - entry.num_tokens;
                let of_second = inputs.positions.iter_mut().skip(first + second);
                of_second.for_each(|position| *position += type_offset);
            }
            if entry.is_last
                && let Some(sampling) = inputs.sampling.last_mut()
            {
                *sampling = sequence.row_sampling();
                let edits = sequence.device_edits(room);
                inputs.edit_last_row(edits);
                room -= edits.len();
            }
        }
        inputs
    }

    /// Rows of the table of positions from a type of tokens to the next; 0 if there is one type.
    fn type_offset(&self) -> u32 {
        let config = self.model.config();
        let positions = config.encoder.and_then(|encoder| encoder.positions);
        match positions.is_some_and(|positions| positions.num_types > 1) {
            true => config.max_position_embeddings as u32,
            false => 0,
        }
    }

    /// The constraints of the sequences of which the batch computes a next token.
    pub fn take_constraints(&mut self, entries: &[Entry]) -> Vec<(Entry, Constrained)> {
        let take = |&entry: &Entry| {
            let index = self.scheduler.index_of(&entry).filter(|_| entry.is_last)?;
            Some((entry, self.scheduler.running(index).take_constraint()?))
        };
        entries.iter().filter_map(take).collect()
    }

    /// Gives back what [`Requests::take_constraints`] took, to those that have not ended.
    pub fn put_constraints(&mut self, constraints: Vec<(Entry, Constrained)>) {
        for (entry, constraint) in constraints {
            if let Some(index) = self.scheduler.index_of(&entry) {
                self.scheduler.running(index).put_constraint(constraint);
            }
        }
    }

    /// Queues the events of the batch, but those of sequences that have ended since it was made.
    pub fn take_output(&mut self, batch: &Batch, output: &StepOutput) {
        let context = self.context;
        let (mut finished, mut failed) = (Vec::new(), Vec::new());
        for (index, entry, brought) in self.brought(batch, output) {
            let (sequence, request) = (self.scheduler.running(index), entry.id);
            let mut event = |kind| self.events.push(Event { request, kind });
            if let Some(cached_tokens) = sequence.start() {
                event(EventKind::Started { cached_tokens });
            }
            let Brought { prompt_logprobs, embedding, token } = match brought {
                Ok(brought) => brought,
                Err(source) => {
                    event(EventKind::Failed(source));
                    failed.push(request);
                    continue;
                }
            };
            if !prompt_logprobs.is_empty() {
                event(EventKind::PromptLogprobs(prompt_logprobs));
            }
            embedding.into_iter().for_each(|embedding| event(EventKind::Embedding(embedding)));
            let reason = match token {
                Some((token, logprobs)) => {
                    logprobs.into_iter().for_each(|of| event(EventKind::Logprobs(of)));
                    event(EventKind::Token(token));
                    sequence.push(token, context)
                }
                // The prompt was all that was asked for.
                None => entry.is_last.then_some(FinishReason::Length),
            };
            if let Some(reason) = reason {
                event(EventKind::Finished(reason));
                finished.push(request);
            }
        }
        for request in finished {
            self.scheduler.retire(request);
        }
        for request in failed {
            self.scheduler.remove(request);
        }
    }

    /// Queues the end of a request.
    pub fn finish(&mut self, request: RequestId, reason: FinishReason) {
        self.events.push(Event { request, kind: EventKind::Finished(reason) });
    }
}

/// Adds a sequence whose cache is `table` to `inputs`.
pub fn push_table(
    inputs: &mut StepInputs,
    tokens: &[u32],
    past_len: usize,
    table: &PageTable,
    logits: std::ops::Range<usize>,
) {
    inputs.push_sequence(tokens, past_len, table.pages(), logits);
    if let Some(pages) = table.window_pages() {
        inputs.put_window_pages(pages);
    }
    if let (Some(slots), Some(state)) = (inputs.state_slots.last_mut(), table.state()) {
        *slots = state;
    }
}
