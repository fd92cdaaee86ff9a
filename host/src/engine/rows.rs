//! The logit rows of a batch: which of them the host needs, and what each sequence makes of its
//! own.

use super::SamplingError;
use super::requests::{Batch, Requests};
use super::scheduler::Entry;
use super::sequence::{Brought, Sequence};
use crate::exec::{NextToken, StepOutput};
use crate::plan::PlanOutput;
use rayon::prelude::*;

/// What a step computed of an entry.
struct Part<'a> {
    /// Index of the sequence now.
    index: usize,
    sequence: &'a mut Sequence,
    entry: Entry,
    /// Logits of the entry's rows that the host needs.
    logits: &'a [f32],
    /// What the device has drawn, if it is its last entry.
    drawn: Option<NextToken>,
}

/// What a step brought the sequence at an index, by an entry.
type Taken = (usize, Entry, Result<Brought, SamplingError>);

impl Requests {
    /// By entry its logit rows and how many of them the host needs; and which rows of the batch these
    /// are.
    pub(super) fn rows_of(&mut self, entries: &[Entry]) -> (Vec<[usize; 2]>, Vec<usize>) {
        let (mut num_rows, mut rows, mut first) = (Vec::new(), Vec::new(), 0);
        for entry in entries {
            let sequence = self.scheduler.running(entry.index);
            let (own, of_host) = (sequence.logit_rows(entry), sequence.host_rows(entry));
            num_rows.push([own.len(), of_host.len()]);
            rows.extend(of_host.map(|row| first + row - own.start));
            first += own.len();
        }
        (num_rows, rows)
    }

    /// What the batch brought each of its entries whose sequence is still there. Where the host needs
    /// logits, it is found out in parallel.
    pub(super) fn brought(&mut self, batch: &Batch, output: &StepOutput) -> Vec<Taken> {
        let width = match batch.output {
            PlanOutput::Hidden => self.model().embedding_size(),
            _ => self.model().config().vocab_size,
        };
        let indices: Vec<_> =
            batch.entries.iter().map(|entry| self.scheduler.index_of(entry)).collect();
        let sequences = self.scheduler.all_running().iter_mut();
        let mut sequences: Vec<Option<&mut Sequence>> = sequences.map(Some).collect();
        let (mut end, mut logits) = (0, output.logits.as_slice());
        let mut parts = Vec::with_capacity(indices.len());
        for ((&entry, [num_rows, of_host]), index) in
            batch.entries.iter().zip(&batch.num_rows).zip(indices)
        {
            end += num_rows;
            let logits = logits.split_off(..of_host * width).unwrap_or_default();
            let row = end.checked_sub(1).filter(|_| entry.is_last);
            let drawn = row.and_then(|row| output.next_tokens.get(row)).copied();
            let sequence = index.and_then(|index| Some((index, sequences[index].take()?)));
            if let Some((index, sequence)) = sequence {
                parts.push(Part { index, sequence, entry, logits, drawn });
            }
        }
        let take = |Part { index, sequence, entry, logits, drawn }: Part<'_>| {
            (index, entry, sequence.take_rows(&entry, logits, width, drawn))
        };
        match output.logits.is_empty() {
            true => parts.into_iter().map(take).collect(),
            false => parts.into_par_iter().map(take).collect(),
        }
    }
}
