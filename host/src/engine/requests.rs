//! The requests of an engine: the batches that they make, and what these bring them.

use super::constraint::Constrained;
use super::pages::PageTable;
use super::scheduler::{Entry, Scheduler};
use super::sequence::Brought;
use super::{Event, EventKind, FinishReason, RequestId};
use crate::Model;
use crate::exec::{NextToken, StepOutput};
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
    pub inputs: StepInputs,
    pub output: PlanOutput,
    /// Whether it begins with a prompt.
    pub is_prompt: bool,
    /// The logit rows that the host needs.
    pub host_rows: Vec<usize>,
}

/// A token of every sequence after those of a batch that runs: all but these tokens.
pub struct NextBatch {
    inputs: StepInputs,
    /// By running sequence: its row in the batch before, and its positions after that.
    sequences: Vec<(usize, usize)>,
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
        let first = entries.first()?;
        let is_prompt = self.scheduler.prompt_len(first.index) > 0;
        let output = match self.scheduler.running(first.index).is_pooled() {
            true => PlanOutput::Hidden,
            false => PlanOutput::Logits,
        };
        let inputs = self.step_inputs(&entries);
        let host_rows = self.rows_of_host(&entries);
        Some(Batch { entries, inputs, output, is_prompt, host_rows })
    }

    /// While `batch` runs, the one after it, if that can be told: where each sequence goes on with
    /// what the device draws, and no other one waits.
    pub fn look_ahead(&mut self, batch: &Batch) -> Option<NextBatch> {
        let Batch { entries, host_rows, output, .. } = batch;
        let is_known = *output == PlanOutput::Logits
            && host_rows.is_empty()
            && entries.iter().all(|entry| entry.is_last);
        if !is_known || !self.scheduler.runs_alone(entries.len()) {
            return None;
        }
        let mut rows = vec![0; entries.len()];
        entries.iter().enumerate().for_each(|(row, entry)| rows[entry.index] = row);
        let (mut inputs, mut sequences) = (StepInputs::new(), Vec::with_capacity(rows.len()));
        for (index, row) in rows.into_iter().enumerate() {
            let len = self.scheduler.foresee(index, entries[row].num_tokens, self.context)?;
            let sequence = self.scheduler.running(index);
            push_table(&mut inputs, &[0], len, sequence.pages(), 0..1);
            *inputs.sampling.last_mut()? = sequence.row_sampling_after(1);
            sequences.push((row, len));
        }
        Some(NextBatch { inputs, sequences })
    }

    /// `next`, with the tokens of `output`, which the batch before has brought and which nobody has
    /// taken yet; `None` if a sequence has ended, or come. None was taken away since.
    pub fn go_on(&mut self, next: NextBatch, output: &StepOutput) -> Option<Batch> {
        let NextBatch { mut inputs, sequences } = next;
        if !self.scheduler.runs_alone(sequences.len()) {
            return None;
        }
        for (index, &(row, _)) in sequences.iter().enumerate() {
            let sequence = self.scheduler.running(index);
            let &NextToken::Token(token) = output.next_tokens.get(row)? else { return None };
            if sequence.stops_at(token) {
                return None;
            }
            inputs.token_ids[index] = token;
        }
        for (index, &(_, len)) in sequences.iter().enumerate() {
            let table = self.scheduler.publish_ahead(index, len);
            inputs.state_slots[index] = table.state().unwrap_or(inputs.state_slots[index]);
        }
        let entries =
            (0..sequences.len()).map(|index| Entry { index, num_tokens: 1, is_last: true });
        let (output, host_rows) = (PlanOutput::Logits, Vec::new());
        self.scheduler.decodes();
        Some(Batch { entries: entries.collect(), inputs, output, is_prompt: false, host_rows })
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
            let tokens = &sequence.pending()[..entry.num_tokens];
            let rows = sequence.logit_rows(entry);
            push_table(&mut inputs, tokens, sequence.num_cached(), sequence.pages(), rows);
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

    /// The constraints of the sequences of which the batch computes a next token, with their
    /// indices.
    pub fn take_constraints(&mut self, entries: &[Entry]) -> Vec<(usize, Constrained)> {
        let last = entries.iter().filter(|entry| entry.is_last).map(|entry| entry.index);
        last.filter_map(|index| Some((index, self.scheduler.running(index).take_constraint()?)))
            .collect()
    }

    /// Queues the events of the batch.
    pub fn take_output(&mut self, entries: &[Entry], output: &StepOutput) {
        let context = self.context;
        let (mut finished, mut failed) = (Vec::new(), Vec::new());
        let brought = self.brought(entries, output);
        for (entry, brought) in entries.iter().zip(brought) {
            let sequence = self.scheduler.running(entry.index);
            let request = sequence.id();
            let mut event = |kind| self.events.push(Event { request, kind });
            sequence.advance(entry.num_tokens);
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
