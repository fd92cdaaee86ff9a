//! The sequences of a bench: random tokens, in pages that are in random order.

use std::ops::Range;

use rand::seq::SliceRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Shape;
use crate::plan::StepInputs;

/// Tokens that there are: few enough that the table of their Q, K and V is made in no time.
pub(super) const TABLE_ROWS: usize = 2048;
/// Most tokens of a step that fills the cache.
pub(super) const FILL_TOKENS: usize = 1024;

/// The tokens of all sequences, and their pages.
pub(super) struct Sequences {
    shape: Shape,
    /// `[batch, kv_len]`.
    tokens: Vec<u32>,
    /// `[batch, pages_per_seq]`.
    pages: Vec<u32>,
}

impl Sequences {
    pub(super) fn new(shape: Shape) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let tokens = (0..shape.batch * shape.kv_len())
            .map(|_| random.random_range(0..TABLE_ROWS as u32))
            .collect();
        let mut pages: Vec<u32> = (0..(shape.batch * shape.pages_per_seq()) as u32).collect();
        pages.shuffle(&mut random);
        Sequences { shape, tokens, pages }
    }

    /// The tokens of a sequence.
    pub(super) fn tokens(&self, seq: usize) -> &[u32] {
        &self.tokens[seq * self.shape.kv_len()..][..self.shape.kv_len()]
    }

    /// Adds `positions` of a sequence to a step.
    fn push(
        &self,
        inputs: &mut StepInputs,
        seq: usize,
        positions: Range<usize>,
        logits: Range<usize>,
    ) {
        let num_pages = self.shape.pages_per_seq();
        let pages = &self.pages[seq * num_pages..][..num_pages];
        inputs.push_sequence(&self.tokens(seq)[positions.clone()], positions.start, pages, logits);
    }

    /// The step that is timed; all rows come out.
    pub(super) fn step(&self) -> StepInputs {
        let shape = &self.shape;
        let mut inputs = StepInputs::new();
        for seq in 0..shape.batch {
            self.push(&mut inputs, seq, shape.past_len()..shape.kv_len(), 0..shape.q_len());
        }
        inputs
    }

    /// The steps before it.
    pub(super) fn past_steps(&self) -> impl Iterator<Item = StepInputs> {
        let past_len = self.shape.past_len();
        (0..self.shape.batch).flat_map(move |seq| {
            (0..past_len).step_by(FILL_TOKENS).map(move |start| {
                let mut inputs = StepInputs::new();
                self.push(&mut inputs, seq, start..past_len.min(start + FILL_TOKENS), 0..0);
                inputs
            })
        })
    }
}
