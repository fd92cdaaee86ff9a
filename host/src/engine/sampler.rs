//! From logits to the next token.

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use std::collections::BTreeSet;

/// How the next token is chosen, in this order (llama.cpp's): repetition penalty, top-k, top-p, min-p, temperature, a
/// draw. The default is greedy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// Divides the logits before the draw; 0 takes the largest logit.
    pub temperature: f32,
    /// Only the `top_k` largest logits; 0 for all.
    pub top_k: usize,
    /// Only the most probable tokens that together reach this probability; 1 for all (arXiv:1904.09751).
    pub top_p: f32,
    /// Only tokens at least this probable, as a share of the most probable one's; 0 for all (arXiv:2407.01082).
    pub min_p: f32,
    /// Positive logits of tokens that the prompt or the answer holds are divided by it, negative ones multiplied; 1
    /// for none (arXiv:1909.05858).
    pub repetition_penalty: f32,
    /// The same seed draws the same tokens, whatever else is in the batch.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
        }
    }
}

impl Sampling {
    /// Whether every value is one that it can have.
    ///
    /// # Errors
    /// [`SamplingError::Value`] for the first that is not.
    pub fn check(&self) -> Result<(), SamplingError> {
        let value = |name, value: f32, ok: bool, range| {
            if ok { Ok(()) } else { Err(SamplingError::Value { name, value, range }) }
        };
        let &Sampling { temperature, top_p, min_p, repetition_penalty: penalty, .. } = self;
        let is_positive = |value: f32| value.is_finite() && value > 0.0;
        value(
            "temperature",
            temperature,
            temperature.is_finite() && temperature >= 0.0,
            "0 or more",
        )?;
        value("top-p", top_p, is_positive(top_p) && top_p <= 1.0, "above 0, at most 1")?;
        value("min-p", min_p, (0.0..=1.0).contains(&min_p), "0 to 1")?;
        value("repetition penalty", penalty, is_positive(penalty), "above 0")
    }
}

/// Why no token can be chosen.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SamplingError {
    /// A value of [`Sampling`] is out of its range.
    #[error("{name} {value}: it has to be {range}")]
    Value {
        /// Which.
        name: &'static str,
        /// The value.
        value: f32,
        /// What it can be.
        range: &'static str,
    },
    /// A logit is NaN or positive infinity.
    #[error(
        "the model's logit of token {token} is {logit}: its weights or its arithmetic are broken"
    )]
    NotFinite {
        /// The first such token.
        token: usize,
        /// Its logit.
        logit: f32,
    },
    /// Every logit is negative infinity.
    #[error("the model rules out every token: all logits are -inf")]
    NoCandidate,
}

/// Chooses the tokens of one sequence.
#[derive(Debug)]
pub struct Sampler {
    sampling: Sampling,
    rng: ChaCha12Rng,
}

/// A token that can still be chosen, with its logit.
type Candidate = (u32, f32);

impl Sampler {
    /// A sampler at the beginning of its seed's numbers.
    pub fn new(sampling: Sampling) -> Self {
        Sampler { sampling, rng: ChaCha12Rng::seed_from_u64(sampling.seed) }
    }

    /// Whether the next token is simply that of the largest logit.
    pub fn is_plain_greedy(&self) -> bool {
        self.sampling.temperature == 0.0 && self.sampling.repetition_penalty == 1.0
    }

    /// The next token after `tokens`, the prompt and the answer so far. Draws one number, except when greedy.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`], [`SamplingError::NoCandidate`].
    pub fn sample(&mut self, logits: &[f32], tokens: &[u32]) -> Result<u32, SamplingError> {
        let broken = |&(_, &logit): &(usize, &f32)| logit.is_nan() || logit == f32::INFINITY;
        if let Some((token, &logit)) = logits.iter().enumerate().find(broken) {
            return Err(SamplingError::NotFinite { token, logit });
        }
        let penalised = penalise(logits, tokens, self.sampling.repetition_penalty);
        let mut candidates: Vec<Candidate> = (0..).zip(penalised).collect();
        candidates.retain(|candidate| candidate.1 > f32::NEG_INFINITY);
        let largest = candidates.iter().copied().reduce(|a, b| if b.1 > a.1 { b } else { a });
        let (token, max) = largest.ok_or(SamplingError::NoCandidate)?;
        if self.sampling.temperature == 0.0 {
            return Ok(token);
        }
        self.truncate(&mut candidates, max);
        Ok(self.draw(&candidates, max))
    }

    /// Keeps the candidates that top-k, top-p and min-p allow; never none.
    fn truncate(&self, candidates: &mut Vec<Candidate>, max: f32) {
        let Sampling { top_k, top_p, min_p, .. } = self.sampling;
        let descending = |a: &Candidate, b: &Candidate| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, descending);
            candidates.truncate(top_k);
        }
        if top_p < 1.0 {
            candidates.sort_unstable_by(descending);
            let total: f64 = candidates.iter().map(|candidate| weight(candidate.1, max, 1.0)).sum();
            let mut reached = 0.0;
            let before = candidates.iter().take_while(|candidate| {
                let open = reached < top_p as f64 * total;
                reached += weight(candidate.1, max, 1.0);
                open
            });
            let keep = before.count();
            candidates.truncate(keep.max(1));
        }
        if min_p > 0.0 {
            candidates.retain(|candidate| weight(candidate.1, max, 1.0) >= min_p as f64);
        }
        // A draw walks them in one order, whatever the selection above left.
        candidates.sort_unstable_by_key(|candidate| candidate.0);
    }

    fn draw(&mut self, candidates: &[Candidate], max: f32) -> u32 {
        let temperature = self.sampling.temperature;
        let weights = || candidates.iter().map(|candidate| weight(candidate.1, max, temperature));
        let mut left = self.rng.random::<f64>() * weights().sum::<f64>();
        let drawn = candidates.iter().zip(weights()).find(|(_, weight)| {
            left -= weight;
            left < 0.0
        });
        // Rounding can leave a crumb behind the last: it belongs to it.
        drawn.map_or(candidates[candidates.len() - 1].0, |(candidate, _)| candidate.0)
    }
}

/// `exp((logit - max) / temperature)`: 1 for the most probable token.
fn weight(logit: f32, max: f32, temperature: f32) -> f64 {
    ((logit as f64 - max as f64) / temperature as f64).exp()
}

fn penalise(logits: &[f32], tokens: &[u32], penalty: f32) -> Vec<f32> {
    let mut logits = logits.to_vec();
    if penalty != 1.0 {
        for token in tokens.iter().collect::<BTreeSet<_>>() {
            let logit = &mut logits[*token as usize];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    logits
}
