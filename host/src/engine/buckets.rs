//! For which sizes of step plans are prepared.

use crate::plan::{Bounds, PAGE_SIZE, StepInputs};

/// Least token count of a prompt's plan.
const MIN_PROMPT_TOKENS: usize = 16;
/// Rows whose logits are computed in one step, unless many sequences decode beside a prompt whose rows are wanted: 128 rows
/// of a vocabulary of 150,000 take 77 MB.
const LOGIT_CHUNK: usize = 128;

/// The sizes of step that plans are prepared for: every step runs in the smallest that it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Most tokens of a step.
    pub max_tokens: usize,
    /// Most sequences of a step.
    pub max_seqs: usize,
    /// Positions of a sequence.
    pub context: usize,
    /// Whether sequences decode beside prompts.
    pub mixes: bool,
}

impl Buckets {
    /// Bounds that hold every step.
    pub fn largest(&self) -> Bounds {
        let max_logit_rows = self.max_seqs.max(self.logit_chunk());
        Bounds { max_logit_rows, mixed: self.mixes, ..self.prompt(self.max_tokens) }
    }

    /// Most tokens of a step that wants more logits than those after each sequence's last token; at least half of them can be
    /// of prompts.
    pub fn logit_chunk(&self) -> usize {
        self.max_tokens.min(LOGIT_CHUNK.max(2 * self.max_seqs))
    }

    /// Bounds for `inputs`: decoding by powers of two of sequences, prompts by powers of two of tokens, both together by
    /// powers of four. Whether `is_prompt` matters for prompts of one token, that may decode.
    pub fn bounds_for(&self, inputs: &StepInputs, is_prompt: bool) -> Bounds {
        let (num_tokens, num_seqs) = (inputs.num_tokens(), inputs.num_seqs());
        let decodes = |ends: &[u32]| ends[1] - ends[0] == 1;
        if inputs.logit_rows.len() > num_seqs {
            self.all_logits()
        } else if num_tokens == num_seqs && !is_prompt {
            self.decode(num_seqs)
        } else if self.mixes && inputs.cu_seqlens_q.windows(2).any(decodes) {
            self.mixed(num_tokens)
        } else {
            self.prompt(num_tokens)
        }
    }

    /// The bounds of all steps.
    pub fn all(&self) -> Vec<Bounds> {
        let mut all = self.request_bounds();
        let logits = self.all_logits();
        if !all.contains(&logits) {
            all.push(logits);
        }
        all
    }

    /// The bounds of all steps of requests.
    pub fn request_bounds(&self) -> Vec<Bounds> {
        let sizes = |most: usize| {
            (0..usize::BITS).map(|log| 1 << log).take_while(move |&size| size / 2 < most)
        };
        let mut all: Vec<Bounds> = sizes(self.max_seqs).map(|seqs| self.decode(seqs)).collect();
        all.extend(sizes(self.max_tokens).map(|tokens| self.prompt(tokens)));
        if self.mixes {
            all.extend(sizes(self.max_tokens).map(|tokens| self.mixed(tokens)));
        }
        all.dedup();
        all
    }

    fn decode(&self, num_seqs: usize) -> Bounds {
        let seqs = num_seqs.next_power_of_two().min(self.max_seqs);
        Bounds {
            max_tokens: seqs,
            max_seqs: seqs,
            max_q_len: 1,
            max_logit_rows: seqs,
            max_kv_len: self.context,
            mixed: false,
        }
    }

    fn prompt(&self, num_tokens: usize) -> Bounds {
        let tokens = num_tokens.next_power_of_two().max(MIN_PROMPT_TOKENS).min(self.max_tokens);
        Bounds {
            max_tokens: tokens,
            max_seqs: self.max_seqs,
            // At least two: no plan that decodes.
            max_q_len: tokens.max(2),
            max_logit_rows: self.max_seqs,
            max_kv_len: self.context,
            mixed: false,
        }
    }

    fn mixed(&self, num_tokens: usize) -> Bounds {
        let log = num_tokens.next_power_of_two().ilog2();
        Bounds { mixed: true, ..self.prompt(1 << log.next_multiple_of(2)) }
    }

    fn all_logits(&self) -> Bounds {
        let tokens = self.logit_chunk();
        Bounds {
            max_tokens: tokens,
            max_seqs: self.max_seqs.min(tokens),
            max_q_len: tokens.max(2),
            max_logit_rows: tokens,
            max_kv_len: self.context,
            mixed: self.mixes,
        }
    }
}

/// A step of one sequence that is as large as one can be in a plan of `bounds`, in the first pages of a cache that
/// nothing is in yet: what reads them later has written them before.
pub fn warm_up(bounds: &Bounds) -> StepInputs {
    let num_tokens = bounds.max_tokens.min(bounds.max_q_len).min(bounds.max_kv_len);
    let pages: Vec<u32> = (0..num_tokens.div_ceil(PAGE_SIZE) as u32).collect();
    let mut inputs = StepInputs::new();
    inputs.push_sequence(&vec![0; num_tokens], 0, &pages, num_tokens - 1..num_tokens);
    inputs
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn step(q_lens: &[usize], all_logits: bool) -> StepInputs {
        let mut inputs = StepInputs::new();
        for &q_len in q_lens {
            let logits = if all_logits { 0..q_len } else { q_len - 1..q_len };
            inputs.push_sequence(&vec![0; q_len], 0, &[0; 64], logits);
        }
        inputs
    }

    #[test]
    fn every_step_fits_and_few_plans_serve_all() {
        for (max_tokens, max_seqs) in [(1, 1), (16, 16), (4096, 1), (100, 7), (4000, 33)] {
            let buckets = Buckets { max_tokens, max_seqs, context: 4096, mixes: max_seqs > 1 };
            let largest = buckets.largest();
            let mut seen = HashSet::new();
            let mut check = |inputs: &StepInputs| {
                let bounds = buckets.bounds_for(inputs, false);
                assert!(inputs.fits(&bounds), "{bounds:?}");
                assert!(inputs.fits(&largest));
                assert!(bounds.max_tokens <= largest.max_tokens);
                assert!(bounds.max_seqs <= largest.max_seqs);
                assert!(bounds.max_logit_rows <= largest.max_logit_rows);
                seen.insert(bounds);
            };
            for seqs in 1..=max_seqs {
                check(&step(&vec![1; seqs], false));
            }
            for tokens in 2..=max_tokens {
                check(&step(&[tokens], false));
                let seqs = max_seqs.min(tokens);
                let mut q_lens = vec![1; seqs];
                q_lens[0] += tokens - seqs;
                check(&step(&q_lens, false));
            }
            for tokens in 1..=buckets.logit_chunk() {
                check(&step(&[tokens], true));
            }
            assert!(seen.len() <= 24, "{} plans", seen.len());
        }
    }

    #[test]
    fn every_step_of_a_request_is_in_a_bucket_that_is_known_before() {
        for (max_tokens, max_seqs) in [(1, 1), (16, 16), (4096, 1), (100, 7), (4000, 33)] {
            let buckets = Buckets { max_tokens, max_seqs, context: 4096, mixes: max_seqs > 1 };
            let known: HashSet<Bounds> = buckets.request_bounds().into_iter().collect();
            for q_lens in (1..=max_seqs).map(|seqs| vec![1; seqs]) {
                assert!(known.contains(&buckets.bounds_for(&step(&q_lens, false), false)));
            }
            for tokens in 1..=max_tokens {
                assert!(known.contains(&buckets.bounds_for(&step(&[tokens], false), true)));
            }
            for tokens in max_seqs.max(2)..=max_tokens {
                let mut q_lens = vec![1; max_seqs];
                q_lens[0] += tokens - max_seqs;
                let bounds = buckets.bounds_for(&step(&q_lens, false), false);
                assert!(known.contains(&bounds), "{bounds:?}");
            }
            assert!(known.len() <= 24, "{} plans", known.len());
        }
    }

    #[test]
    fn every_bucket_is_warmed_up_by_a_step_of_its_own() {
        for (max_tokens, max_seqs, context) in
            [(1, 1, 8), (512, 1, 64), (512, 1, 4096), (2000, 33, 70)]
        {
            let buckets = Buckets { max_tokens, max_seqs, context, mixes: max_seqs > 1 };
            for bounds in buckets.request_bounds() {
                let inputs = warm_up(&bounds);
                assert!(inputs.fits(&bounds), "{bounds:?}");
                assert!(inputs.block_tables[0].len() <= context.div_ceil(PAGE_SIZE), "{bounds:?}");
                let largest =
                    if bounds.max_q_len == 1 { 1 } else { bounds.max_tokens.min(context) };
                assert_eq!(inputs.num_tokens(), largest, "{bounds:?}");
            }
        }
    }

    #[test]
    fn the_smallest_bucket_is_taken() {
        let buckets = Buckets { max_tokens: 300, max_seqs: 6, context: 4096, mixes: true };
        let bounds = |q_lens: &[usize]| buckets.bounds_for(&step(q_lens, false), false);
        assert_eq!((bounds(&[1]).max_tokens, bounds(&[1]).max_q_len), (1, 1));
        assert_eq!(bounds(&[1; 3]).max_tokens, 4);
        assert_eq!(bounds(&[1; 5]).max_seqs, 6);
        assert_eq!(bounds(&[2]).max_tokens, 16);
        assert_eq!((bounds(&[17, 2]).max_tokens, bounds(&[17, 2]).mixed), (32, false));
        assert_eq!((bounds(&[17, 1]).max_tokens, bounds(&[17, 1]).mixed), (64, true));
        assert_eq!((bounds(&[64, 1]).max_tokens, bounds(&[65, 192]).max_tokens), (256, 300));
        assert_eq!(bounds(&[257]).max_tokens, 300);
        let prompt = buckets.bounds_for(&step(&[1], false), true);
        assert_eq!((prompt.max_tokens, prompt.max_q_len, prompt.mixed), (16, 16, true));
        let apart = Buckets { mixes: false, ..buckets };
        assert!(!apart.bounds_for(&step(&[17, 1], false), true).mixed);
    }

    #[test]
    fn a_prompt_of_one_token_has_no_plan_that_decodes() {
        let buckets = Buckets { max_tokens: 1, max_seqs: 1, context: 64, mixes: false };
        for all_logits in [false, true] {
            assert!(buckets.bounds_for(&step(&[1], all_logits), true).max_q_len > 1);
        }
        assert_eq!(buckets.bounds_for(&step(&[1], false), false).max_q_len, 1);
    }
}
