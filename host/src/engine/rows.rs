//! The logit rows of a batch: which of them the host needs, and what each sequence makes of its
//! own.

use super::SamplingError;
use super::requests::Requests;
use super::scheduler::Entry;
use super::sequence::{Brought, Sequence};
use crate::exec::{NextToken, StepOutput};
use rayon::prelude::*;

/// What a step computed of an entry.
struct Part<'a> {
    sequence: &'a mut Sequence,
    entry: Entry,
    /// Logits of the entry's rows that the host needs.
    logits: &'a [f32],
    /// What the device has drawn, if it is its last entry.
    drawn: Option<NextToken>,
}

impl Requests {
    /// The logit rows of the batch whose logits the host needs.
    pub(super) fn rows_of_host(&mut self, entries: &[Entry]) -> Vec<usize> {
        let (mut rows, mut first) = (Vec::new(), 0);
        for entry in entries {
            let sequence = self.scheduler.running(entry.index);
            let (own, of_host) = (sequence.logit_rows(entry), sequence.host_rows(entry));
            rows.extend(of_host.map(|row| first + row - own.start));
            first += own.len();
        }
        rows
    }

    /// What the batch brought each of `entries`. Where the host needs logits, it is found out in
    /// parallel.
    pub(super) fn brought(
        &mut self,
        entries: &[Entry],
        output: &StepOutput,
    ) -> Vec<Result<Brought, SamplingError>> {
        let pools =
            entries.first().is_some_and(|entry| self.scheduler.running(entry.index).is_pooled());
        let width = match pools {
            true => self.model().embedding_size(),
            false => self.model().config().vocab_size,
        };
        let sequences = self.scheduler.all_running().iter_mut();
        let mut sequences: Vec<Option<&mut Sequence>> = sequences.map(Some).collect();
        let (mut num_rows, mut logits) = (0, output.logits.as_slice());
        let part = |&entry: &Entry| {
            let sequence = sequences[entry.index].take()?;
            num_rows += sequence.logit_rows(&entry).len();
            let drawn =
                entry.is_last.then(|| output.next_tokens.get(num_rows - 1)).flatten().copied();
            let len = sequence.host_rows(&entry).len() * width;
            let logits = logits.split_off(..len).unwrap_or_default();
            Some(Part { sequence, entry, logits, drawn })
        };
        // A sequence has one entry: none is left out.
        let parts: Vec<Part<'_>> = entries.iter().filter_map(part).collect();
        let take =
            |part: Part<'_>| part.sequence.take_rows(&part.entry, part.logits, width, part.drawn);
        match output.logits.is_empty() {
            true => parts.into_iter().map(take).collect(),
            false => parts.into_par_iter().map(take).collect(),
        }
    }
}
