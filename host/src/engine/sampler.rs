//! From logits to the next token.

use super::sampling::{Sampling, SamplingError};
use crate::exec::NextToken;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use std::borrow::Cow;
use std::cmp::Ordering;

/// The token that is simply that of the largest logit.
///
/// # Errors
/// As [`Sampler::sample`].
pub fn greedy(next: NextToken) -> Result<u32, SamplingError> {
    match next {
        NextToken::Token(token) => Ok(token),
        NextToken::NotFinite(token) => Err(SamplingError::NotFinite { token }),
        NextToken::NoCandidate => Err(SamplingError::NoCandidate),
    }
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
        let rng = ChaCha12Rng::seed_from_u64(sampling.seed);
        Sampler { sampling, rng }
    }

    /// Whether the next token is simply that of the largest logit.
    pub fn is_plain_greedy(&self) -> bool {
        self.sampling.is_plain_greedy()
    }

    /// The next token after `prompt` and the answer so far, `generated`. Draws one number, except when greedy.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`], [`SamplingError::NoCandidate`].
    pub fn sample(
        &mut self,
        logits: &[f32],
        prompt: &[u32],
        generated: &[u32],
    ) -> Result<u32, SamplingError> {
        check(logits)?;
        let Sampling { temperature, top_k, .. } = self.sampling;
        let changed;
        let logits = if self.sampling.changes_logits() {
            changed = self.bias_and_penalise(logits, prompt, generated);
            &changed
        } else {
            logits
        };
        let mut candidates = largest(logits, if temperature == 0.0 { 1 } else { top_k });
        let max = candidates.iter().map(|candidate| candidate.1).reduce(f32::max);
        let max = max.ok_or(SamplingError::NoCandidate)?;
        if temperature == 0.0 {
            return Ok(candidates[0].0);
        }
        self.truncate(&mut candidates, max);
        Ok(self.draw(&candidates, max))
    }

    /// `logits` with the bias, and then the penalties of the tokens so far.
    fn bias_and_penalise(&self, logits: &[f32], prompt: &[u32], generated: &[u32]) -> Vec<f32> {
        let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } =
            self.sampling;
        let mut biased = Cow::Borrowed(logits);
        for &(token, bias) in &self.sampling.logit_bias {
            biased.to_mut()[token as usize] += bias;
        }
        let repeated = |token: u32| {
            let logit = biased[token as usize];
            if logit > 0.0 {
                (logit / repetition_penalty).min(f32::MAX)
            } else {
                logit * repetition_penalty
            }
        };
        // The first two penalties count a token once: they are computed from `biased` each time.
        let mut changed = biased.to_vec();
        prompt.iter().for_each(|&token| changed[token as usize] = repeated(token));
        for &token in generated {
            changed[token as usize] = repeated(token) - presence_penalty;
        }
        generated.iter().for_each(|&token| changed[token as usize] -= frequency_penalty);
        changed
    }

    /// Keeps the candidates that top-p and min-p allow; never none.
    fn truncate(&self, candidates: &mut Vec<Candidate>, max: f32) {
        let Sampling { top_p, min_p, .. } = self.sampling;
        if top_p < 1.0 {
            keep_nucleus(candidates, top_p as f64, max);
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
        // Rounding can leave a remainder after the last candidate: it belongs to that one.
        drawn.map_or(candidates[candidates.len() - 1].0, |(candidate, _)| candidate.0)
    }
}

/// `exp((logit - max) / temperature)`: 1 for the most probable token.
fn weight(logit: f32, max: f32, temperature: f32) -> f64 {
    ((logit as f64 - max as f64) / temperature as f64).exp()
}

/// From the most probable candidate to the least; of equal ones, the smallest id first.
fn descending(a: &Candidate, b: &Candidate) -> Ordering {
    b.1.total_cmp(&a.1).then(a.0.cmp(&b.0))
}

/// Keeps the most probable candidates that together reach `top_p`; at least one.
///
/// As a rule they are few of a large vocabulary: only as many are sorted as it takes.
fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f64, max: f32) {
    const FIRST: usize = 256;
    let weight = |candidate: &Candidate| weight(candidate.1, max, 1.0);
    let wanted = top_p * candidates.iter().map(weight).sum::<f64>();
    let (mut reached, mut keep, mut ordered) = (0.0, 0, 0);
    while keep < candidates.len() && (keep == 0 || reached < wanted) {
        if keep == ordered {
            let rest = &mut candidates[ordered..];
            let next = rest.len().min(ordered.max(FIRST));
            if next < rest.len() {
                rest.select_nth_unstable_by(next, descending);
            }
            rest[..next].sort_unstable_by(descending);
            ordered += next;
        }
        reached += weight(&candidates[keep]);
        keep += 1;
    }
    candidates.truncate(keep);
}

/// Logits that are tested together.
const CHUNK: usize = 256;

/// Whether `is_such` holds for one of `logits`. There is no early exit, so that the loop is vectorised.
fn any(logits: &[f32], is_such: impl Fn(f32) -> bool) -> bool {
    logits.iter().fold(false, |any, &logit| any | is_such(logit))
}

/// Refuses logits of which one is NaN or positive infinity.
fn check(logits: &[f32]) -> Result<(), SamplingError> {
    let is_broken = |logit: f32| logit.is_nan() | (logit == f32::INFINITY);
    let Some(chunk) = logits.chunks(CHUNK).position(|chunk| any(chunk, is_broken)) else {
        return Ok(());
    };
    let first = chunk * CHUNK;
    let index = logits[first..].iter().position(|&logit| is_broken(logit)).unwrap_or_default();
    Err(SamplingError::NotFinite { token: (first + index) as u32 })
}

/// The `count` largest of `logits`, or all for 0, but for those of negative infinity; of equal ones, those of the
/// smallest ids.
fn largest(logits: &[f32], count: usize) -> Vec<Candidate> {
    let count = if count == 0 { logits.len() } else { count };
    // With room for twice as many, the list is seldom cut down to `count`, and most logits of a vocabulary are below the
    // least that it keeps then.
    let room = count.saturating_mul(2).max(64).min(logits.len());
    let mut kept: Vec<Candidate> = Vec::with_capacity(room);
    let mut least = f32::NEG_INFINITY;
    for (first, chunk) in (0..).step_by(CHUNK).zip(logits.chunks(CHUNK)) {
        if !any(chunk, |logit| logit > least) {
            continue;
        }
        for (token, &logit) in (first..).zip(chunk) {
            if kept.len() == room && logit > least {
                least = keep_largest(&mut kept, count);
            }
            if logit > least {
                // The sum turns -0.0 into 0.0, which is no larger.
                kept.push((token, logit + 0.0));
            }
        }
    }
    if kept.len() > count {
        keep_largest(&mut kept, count);
    }
    kept
}

/// Keeps `count` candidates of more than that, and returns the least of their logits.
fn keep_largest(candidates: &mut Vec<Candidate>, count: usize) -> f32 {
    let (_, &mut (_, least), _) = candidates.select_nth_unstable_by(count - 1, descending);
    candidates.truncate(count);
    least
}

#[cfg(test)]
mod tests;
