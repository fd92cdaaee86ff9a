//! For which sizes of step plans are prepared.

use crate::plan::{Bounds, StepInputs};

/// Least token count of a prompt's plan.
const MIN_PROMPT_TOKENS: usize = 16;
/// Most rows whose logits are computed in one step: 128 rows of a vocabulary of 150,000 take 77 MB.
const MAX_LOGIT_CHUNK: usize = 128;

/// The sizes of step that plans are prepared for: every step runs in the smallest that it fits.
#[derive(Clone, Copy, Debug)]
pub struct Buckets {
    /// Most tokens of a step.
    pub max_tokens: usize,
    /// Most sequences of a step.
    pub max_seqs: usize,
    /// Positions of a sequence.
    pub context: usize,
}

impl Buckets {
    /// Bounds that hold every step.
    pub fn largest(&self) -> Bounds {
        let max_logit_rows = self.max_seqs.max(self.logit_chunk());
        Bounds { max_logit_rows, ..self.prompt(self.max_tokens) }
    }

    /// Tokens of a step that wants the logits of all of them.
    pub fn logit_chunk(&self) -> usize {
        self.max_tokens.min(MAX_LOGIT_CHUNK)
    }

    /// Bounds for `inputs`: decoding by powers of two of sequences, prompts by powers of two of tokens.
    pub fn bounds_for(&self, inputs: &StepInputs) -> Bounds {
        let (num_tokens, num_seqs) = (inputs.num_tokens(), inputs.num_seqs());
        if inputs.logit_rows.len() > num_seqs {
            self.all_logits()
        } else if num_tokens == num_seqs {
            self.decode(num_seqs)
        } else {
            self.prompt(num_tokens)
        }
    }

    fn decode(&self, num_seqs: usize) -> Bounds {
        let seqs = num_seqs.next_power_of_two().min(self.max_seqs);
        Bounds {
            max_tokens: seqs,
            max_seqs: seqs,
            max_q_len: 1,
            max_logit_rows: seqs,
            max_kv_len: self.context,
        }
    }

    fn prompt(&self, num_tokens: usize) -> Bounds {
        let tokens = num_tokens.next_power_of_two().max(MIN_PROMPT_TOKENS).min(self.max_tokens);
        Bounds {
            max_tokens: tokens,
            max_seqs: self.max_seqs,
            max_q_len: tokens,
            max_logit_rows: self.max_seqs,
            max_kv_len: self.context,
        }
    }

    fn all_logits(&self) -> Bounds {
        let tokens = self.logit_chunk();
        Bounds {
            max_tokens: tokens,
            max_seqs: 1,
            max_q_len: tokens,
            max_logit_rows: tokens,
            max_kv_len: self.context,
        }
    }
}
