//! What changes from step to step, in one buffer.

use super::{Bounds, PAGE_SIZE, Rows};
use gpu_types::DRAWN;
use kernels::sampling::{LogitEdit, ROW_SAMPLING_LEN, RowSampling};

/// Where each step input starts in the step buffer, in `u32` elements.
///
/// The buffer begins with `num_tokens`, `num_seqs`, `num_logit_rows` and `first_output`; each array
/// that follows starts at a multiple of four elements and has the length of its upper bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLayout {
    /// `[max_tokens]`.
    pub token_ids: usize,
    /// `[max_tokens]`.
    pub positions: usize,
    /// `[max_tokens]`: slot of the cache that the token's K and V go to.
    pub slot_mapping: usize,
    /// `[max_tokens]`: the sequence that each token belongs to.
    pub seq_ids: usize,
    /// `[max_seqs + 1]`: first token of each sequence, and the number of tokens.
    pub cu_seqlens_q: usize,
    /// `[max_seqs]`: cached positions of each sequence, its new tokens included.
    pub kv_lens: usize,
    /// `[max_logit_rows]`: tokens whose logits are wanted.
    pub logit_rows: usize,
    /// `[max_logit_rows, ROW_SAMPLING_LEN]`: how each logit row is sampled.
    pub sampling: usize,
    /// `[max_seqs, max_pages_per_seq]`.
    pub block_table: usize,
    /// The slots of layers with a window: where those of the others are, if they share them.
    pub window_slot_mapping: usize,
    /// The block table of layers with a window, likewise.
    pub window_block_table: usize,
    /// Length of the whole buffer.
    pub len: usize,
}

impl StepLayout {
    /// Element of the buffer that holds the number of tokens.
    pub const NUM_TOKENS: usize = 0;
    /// Element of the buffer that holds the number of sequences.
    pub const NUM_SEQS: usize = 1;
    /// Element of the buffer that holds the number of logit rows.
    pub const NUM_LOGIT_ROWS: usize = 2;
    /// Element of the buffer that holds where the next tokens go to, in their own buffer.
    pub const FIRST_OUTPUT: usize = 3;

    /// The layout for `bounds`; with pages of their own for layers with a window, or without.
    pub fn new(bounds: &Bounds, has_windows: bool) -> Self {
        let mut next = 4;
        let mut place = |len: usize| {
            let start = next;
            next += len.next_multiple_of(4);
            start
        };
        let token_ids = place(bounds.max_tokens);
        let positions = place(bounds.max_tokens);
        let slot_mapping = place(bounds.max_tokens);
        let seq_ids = place(bounds.max_tokens);
        let cu_seqlens_q = place(bounds.max_seqs + 1);
        let kv_lens = place(bounds.max_seqs);
        let logit_rows = place(bounds.max_logit_rows);
        let sampling = place(bounds.max_logit_rows * ROW_SAMPLING_LEN);
        let table_len = bounds.max_seqs * bounds.max_pages_per_seq();
        let block_table = place(table_len);
        let (window_slot_mapping, window_block_table) = match has_windows {
            true => (place(bounds.max_tokens), place(table_len)),
            false => (slot_mapping, block_table),
        };
        StepLayout {
            token_ids,
            positions,
            slot_mapping,
            seq_ids,
            cu_seqlens_q,
            kv_lens,
            logit_rows,
            sampling,
            block_table,
            window_slot_mapping,
            window_block_table,
            len: next,
        }
    }
}

/// The inputs of one step.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct StepInputs {
    /// `[num_tokens]`: new tokens, sequence after sequence. Where a step follows another at once they
    /// may be [`DRAWN`] ones.
    pub token_ids: Vec<u32>,
    /// `[num_tokens]`: position of each token in its sequence.
    pub positions: Vec<u32>,
    /// `[num_tokens]`: slot of the cache that the token's K and V go to.
    pub slot_mapping: Vec<u32>,
    /// `[num_seqs + 1]`: first token of each sequence, and the number of tokens.
    pub cu_seqlens_q: Vec<u32>,
    /// `[num_seqs]`: cached positions of each sequence, its new tokens included.
    pub kv_lens: Vec<u32>,
    /// `[num_seqs]`: slots that each sequence's recurrent state is read from and written to, which
    /// a plan without such states does not read. What one sequence writes no other one reads.
    pub state_slots: Vec<[u32; 2]>,
    /// `[num_seqs]` block tables, each as long as its sequence needs.
    pub block_tables: Vec<Vec<u32>>,
    /// `[num_tokens]`: the slots of layers with a window; none if they are those of the others.
    pub window_slot_mapping: Vec<u32>,
    /// The block tables of layers with a window, likewise: of pages that left with the window there
    /// is [`NO_PAGE`](crate::NO_PAGE).
    pub window_tables: Vec<Vec<u32>>,
    /// `[num_logit_rows]`: tokens whose logits are wanted.
    pub logit_rows: Vec<u32>,
    /// `[num_logit_rows]`: how the token after each of them is chosen.
    pub sampling: Vec<RowSampling>,
    /// Changes of logits before that, row after row.
    pub edits: Vec<LogitEdit>,
    /// `[num_logit_rows]`: where the edits of each row end.
    pub edit_ends: Vec<usize>,
}

impl StepInputs {
    /// An empty step, to push sequences on.
    pub fn new() -> Self {
        StepInputs { cu_seqlens_q: vec![0], ..Default::default() }
    }

    /// New tokens in the step.
    pub fn num_tokens(&self) -> usize {
        self.token_ids.len()
    }

    /// Rows of an activation in this step.
    pub fn num_rows(&self, rows: Rows) -> usize {
        match rows {
            Rows::Tokens => self.num_tokens(),
            Rows::Logits => self.logit_rows.len(),
        }
    }

    /// Sequences in the step.
    pub fn num_seqs(&self) -> usize {
        self.kv_lens.len()
    }

    /// Adds a sequence that has `past_len` positions in the cache: its new tokens, its pages
    /// (enough for `past_len + tokens.len()` positions) and which of its new tokens want logits.
    /// The tokens after these are those of the largest logits, unless [`StepInputs::sampling`] is
    /// changed. Its recurrent state has the slot of its first page's number, unless
    /// [`StepInputs::state_slots`] is changed.
    ///
    /// # Panics
    /// If the pages are too few or a logit row is not one of the new tokens: the engine's fault,
    /// never the user's.
    pub fn push_sequence(
        &mut self,
        tokens: &[u32],
        past_len: usize,
        pages: &[u32],
        logits: std::ops::Range<usize>,
    ) {
        let kv_len = past_len + tokens.len();
        assert!(pages.len() * PAGE_SIZE >= kv_len, "{} pages for {kv_len} positions", pages.len());
        assert!(logits.end <= tokens.len(), "logits of {logits:?} in {} tokens", tokens.len());
        let first = self.num_tokens();
        self.token_ids.extend_from_slice(tokens);
        for position in past_len..kv_len {
            self.positions.push(position as u32);
            self.slot_mapping.push(slot(pages, position));
        }
        self.cu_seqlens_q.push(self.token_ids.len() as u32);
        self.kv_lens.push(kv_len as u32);
        self.state_slots.push([pages.first().copied().unwrap_or_default(); 2]);
        self.block_tables.push(pages[..kv_len.div_ceil(PAGE_SIZE)].to_vec());
        self.logit_rows.extend(logits.map(|row| (first + row) as u32));
        self.sampling.resize(self.logit_rows.len(), RowSampling::GREEDY);
        self.edit_ends.resize(self.logit_rows.len(), self.edits.len());
    }

    /// Says that layers with a window have `pages` of their own of the sequence that was pushed
    /// last: of each sequence or of none.
    ///
    /// # Panics
    /// If the pages are too few: the engine's fault, never the user's.
    pub fn put_window_pages(&mut self, pages: &[u32]) {
        let num_pages = self.block_tables.last().map_or(0, Vec::len);
        let first = self.window_slot_mapping.len();
        let slots = self.positions[first..].iter().map(|&position| slot(pages, position as usize));
        self.window_slot_mapping.extend(slots);
        self.window_tables.push(pages[..num_pages].to_vec());
    }

    /// The slots of layers with a window, or of the others.
    pub fn slots(&self, with_window: bool) -> &[u32] {
        match with_window && !self.window_tables.is_empty() {
            true => &self.window_slot_mapping,
            false => &self.slot_mapping,
        }
    }

    /// The block tables of layers with a window, or of the others.
    pub fn tables(&self, with_window: bool) -> &[Vec<u32>] {
        match with_window && !self.window_tables.is_empty() {
            true => &self.window_tables,
            false => &self.block_tables,
        }
    }

    /// Changes logits of the last row before its token is chosen: of each token one at most. Logits
    /// that an executor returns of such a row may be those before or those after.
    ///
    /// # Panics
    /// If there is no row.
    pub fn edit_last_row(&mut self, edits: &[LogitEdit]) {
        self.edits.extend_from_slice(edits);
        *self.edit_ends.last_mut().expect("a row") = self.edits.len();
    }

    /// Puts the tokens of the step before, by its logit rows, in the place of those that are
    /// [`DRAWN`]; 0 where there is none.
    pub fn put_drawn(&mut self, token_of: impl Fn(usize) -> Option<u32>) {
        for id in self.token_ids.iter_mut().filter(|id| **id & DRAWN != 0) {
            *id = token_of((*id & !DRAWN) as usize).unwrap_or_default();
        }
    }

    /// The edits of a logit row.
    pub fn edits_of(&self, row: usize) -> &[LogitEdit] {
        let start = if row > 0 { self.edit_ends[row - 1] } else { 0 };
        &self.edits[start..self.edit_ends[row]]
    }

    /// Whether every count is within `bounds`.
    pub fn fits(&self, bounds: &Bounds) -> bool {
        let max_q_len =
            self.cu_seqlens_q.windows(2).map(|w| w[1] - w[0]).max().unwrap_or(0) as usize;
        let max_kv_len = self.kv_lens.iter().copied().max().unwrap_or(0) as usize;
        self.num_tokens() <= bounds.max_tokens
            && self.num_seqs() <= bounds.max_seqs
            && max_q_len <= bounds.max_q_len
            && self.logit_rows.len() <= bounds.max_logit_rows
            && max_kv_len <= bounds.max_kv_len
            && self.edits.len() <= bounds.max_edits()
    }

    /// Writes the step into `buffer` as `layout` says (made for `bounds`). Rows of tokens past
    /// `num_tokens` are left as they are: no operation reads them.
    ///
    /// # Panics
    /// If the step does not fit `bounds`.
    pub fn write(&self, layout: &StepLayout, bounds: &Bounds, buffer: &mut [u32]) {
        assert!(self.fits(bounds), "a step beyond its plan's bounds");
        buffer[StepLayout::NUM_TOKENS] = self.num_tokens() as u32;
        buffer[StepLayout::NUM_SEQS] = self.num_seqs() as u32;
        buffer[StepLayout::NUM_LOGIT_ROWS] = self.logit_rows.len() as u32;
        buffer[StepLayout::FIRST_OUTPUT] = 0;
        let mut put =
            |start: usize, values: &[u32]| buffer[start..][..values.len()].copy_from_slice(values);
        put(layout.token_ids, &self.token_ids);
        put(layout.positions, &self.positions);
        put(layout.slot_mapping, &self.slot_mapping);
        put(layout.cu_seqlens_q, &self.cu_seqlens_q);
        put(layout.kv_lens, &self.kv_lens);
        put(layout.logit_rows, &self.logit_rows);
        let sampling: Vec<_> = self
            .sampling
            .iter()
            .zip(&self.edit_ends)
            .map(|(sampling, &end)| sampling.words(end as u32))
            .collect();
        put(layout.sampling, sampling.as_flattened());
        let tables = [(layout.block_table, false), (layout.window_block_table, true)];
        let has_windows = layout.window_block_table != layout.block_table;
        for (start, with_window) in tables.into_iter().take(1 + usize::from(has_windows)) {
            for (seq, pages) in self.tables(with_window).iter().enumerate() {
                put(start + seq * bounds.max_pages_per_seq(), pages);
            }
        }
        if has_windows {
            put(layout.window_slot_mapping, self.slots(true));
        }
        let seq_ids = &mut buffer[layout.seq_ids..][..self.num_tokens()];
        for (seq, ends) in self.cu_seqlens_q.windows(2).enumerate() {
            seq_ids[ends[0] as usize..ends[1] as usize].fill(seq as u32);
        }
    }
}

/// The slot of `position` of a sequence on `pages`.
fn slot(pages: &[u32], position: usize) -> u32 {
    pages[position / PAGE_SIZE] * PAGE_SIZE as u32 + (position % PAGE_SIZE) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A prompt of three tokens, and a chunk of four after 126 positions whose pages are apart.
    fn two_sequences() -> StepInputs {
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&[10, 11, 12], 0, &[5], 2..3);
        inputs.push_sequence(&[20, 21, 22, 23], 126, &[9, 0, 7, 8], 0..4);
        inputs
    }

    #[test]
    fn sequences_are_laid_side_by_side() {
        let inputs = two_sequences();
        assert_eq!(inputs.token_ids, [10, 11, 12, 20, 21, 22, 23]);
        assert_eq!(inputs.positions, [0, 1, 2, 126, 127, 128, 129]);
        let slots = [5 * 64, 5 * 64 + 1, 5 * 64 + 2, 62, 63, 7 * 64, 7 * 64 + 1];
        assert_eq!(inputs.slot_mapping, slots);
        assert_eq!(inputs.cu_seqlens_q, [0, 3, 7]);
        assert_eq!(inputs.kv_lens, [3, 130]);
        assert_eq!(inputs.state_slots, [[5, 5], [9, 9]], "those of the first pages");
        assert_eq!(inputs.block_tables, [vec![5], vec![9, 0, 7]], "as long as the sequence needs");
        assert_eq!(inputs.logit_rows, [2, 3, 4, 5, 6]);
        assert_eq!(inputs.sampling, [RowSampling::GREEDY; 5]);
    }

    #[test]
    fn every_bound_is_checked() {
        let inputs = two_sequences();
        let bounds = Bounds {
            max_tokens: 7,
            max_seqs: 2,
            max_q_len: 4,
            max_logit_rows: 5,
            max_kv_len: 130,
            mixed: false,
        };
        assert!(inputs.fits(&bounds));
        assert!(!inputs.fits(&Bounds { max_tokens: 6, ..bounds }));
        assert!(!inputs.fits(&Bounds { max_seqs: 1, ..bounds }));
        assert!(!inputs.fits(&Bounds { max_q_len: 3, ..bounds }));
        assert!(!inputs.fits(&Bounds { max_logit_rows: 4, ..bounds }));
        assert!(!inputs.fits(&Bounds { max_kv_len: 129, ..bounds }));
        assert!(StepInputs::new().fits(&bounds));
    }

    #[test]
    fn the_buffer_holds_each_array_at_its_place() {
        let mut inputs = two_sequences();
        let seed = 9 << 32 | 7;
        inputs.sampling[3] = RowSampling { top_k: 3, seed, ..RowSampling::GREEDY };
        let bounds = Bounds {
            max_tokens: 9,
            max_seqs: 3,
            max_q_len: 9,
            max_logit_rows: 6,
            max_kv_len: 200,
            mixed: false,
        };
        let layout = StepLayout::new(&bounds, false);
        const UNTOUCHED: u32 = 0xdead;
        let mut buffer = vec![UNTOUCHED; layout.len];
        inputs.write(&layout, &bounds, &mut buffer);
        assert_eq!(buffer[..3], [7, 2, 5], "num_tokens, num_seqs, num_logit_rows");
        let at = |start: usize, len: usize| &buffer[start..start + len];
        assert_eq!(at(layout.token_ids, 7), inputs.token_ids);
        assert_eq!(at(layout.positions, 7), inputs.positions);
        assert_eq!(at(layout.slot_mapping, 7), inputs.slot_mapping);
        assert_eq!(at(layout.seq_ids, 7), [0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(at(layout.cu_seqlens_q, 3), [0, 3, 7]);
        assert_eq!(at(layout.kv_lens, 2), [3, 130]);
        assert_eq!(at(layout.logit_rows, 5), inputs.logit_rows);
        assert_eq!(
            at(layout.sampling + 3 * ROW_SAMPLING_LEN, 6),
            [0, 3, 0x3f80_0000, 0x7f80_0000, 7, 9]
        );
        let table = [5, UNTOUCHED, UNTOUCHED, UNTOUCHED, 9, 0, 7, UNTOUCHED];
        assert_eq!(at(layout.block_table, 8), table, "rows of max_pages_per_seq");
        assert_eq!(at(layout.token_ids + 7, 2), [UNTOUCHED; 2], "rows past the last token");
    }
}
