//! Samplers in the order that a request gives them, on the host: those that the device does not have, or has elsewhere.
//!
//! Names and rules are llama.cpp's (`src/llama-sampler.cpp`); the arithmetic is f64.

mod dry;
mod infill;
#[cfg(test)]
mod tests;

pub use dry::Dry;
pub use infill::Pieces;

use super::SamplingError;
use super::sampler::drawn;
use crate::exec::{RowSampling, chance, draw, next_token};
use std::collections::HashMap;
use std::sync::Arc;

/// Tokens by which the first version of mirostat estimates how steep a distribution is.
const MIROSTAT_TOKENS: usize = 100;

/// Samplers, one after the other; what they leave is drawn from.
#[derive(Clone, Debug, Default)]
pub struct SamplerChain {
    /// The samplers in their order.
    pub steps: Vec<SamplerStep>,
    /// How the last one draws, if not by the probabilities alone.
    pub mirostat: Option<Mirostat>,
}

/// One sampler of a [`SamplerChain`].
#[derive(Clone, Debug)]
pub enum SamplerStep {
    /// Penalties of the last tokens, those of the prompt included.
    Penalties(Penalties),
    /// A penalty of tokens that would go on with a repetition.
    Dry(Dry),
    /// Only logits within so many standard deviations of the largest (arXiv:2411.07641).
    TopNSigma(f64),
    /// Only the largest logits.
    TopK(usize),
    /// Only tokens about as surprising as the distribution is on average (arXiv:2202.00666).
    Typical(f64),
    /// Only the most probable tokens that together reach this probability.
    TopP(f64),
    /// Only tokens at least this probable, as a share of the most probable one's.
    MinP(f64),
    /// With a probability, only the least probable of the tokens above a threshold, and those below it.
    Xtc {
        /// How often.
        probability: f64,
        /// The least probability of a token that may be left out.
        threshold: f64,
    },
    /// Divides the logits.
    Temperature {
        /// The divisor; 0 leaves the largest logit alone.
        value: f64,
        /// How far the entropy of the distribution moves it, up and down.
        range: f64,
        /// The power of the normalised entropy that moves it.
        exponent: f64,
    },
    /// Ends a piece of code where the model is not sure how it goes on, and merges tokens that begin alike.
    Infill(Arc<dyn Pieces>),
}

/// Penalties of a window of tokens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Tokens that count, from the end.
    pub last_n: usize,
    /// Positive logits are divided by it, negative ones multiplied.
    pub repetition: f64,
    /// Subtracted once.
    pub presence: f64,
    /// Subtracted for every time that the token is there.
    pub frequency: f64,
}

/// A draw that holds the surprise of tokens near a target (arXiv:2007.14966).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    /// 1 or 2.
    pub version: u8,
    /// The surprise that is wanted, in bits.
    pub tau: f64,
    /// How fast it is approached.
    pub eta: f64,
}

/// A token that can still be drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Candidate {
    token: u32,
    logit: f64,
}

/// A [`SamplerChain`] in the middle of a generation.
#[derive(Debug)]
pub struct ChainState {
    chain: Arc<SamplerChain>,
    /// Mirostat's bound of a token's surprise.
    mu: f64,
}

/// What a chain draws the next token after.
#[derive(Clone, Copy, Debug)]
pub struct Before<'a> {
    /// The prompt and what was generated.
    pub tokens: &'a [u32],
    /// Tokens that end the generation.
    pub stop_tokens: &'a [u32],
    /// Seed of all draws.
    pub seed: u64,
    /// Tokens that were generated.
    pub position: u32,
}

impl ChainState {
    pub fn new(chain: Arc<SamplerChain>) -> Self {
        let mu = chain.mirostat.map_or(0.0, |mirostat| 2.0 * mirostat.tau);
        ChainState { chain, mu }
    }

    /// The next token.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`], [`SamplingError::NoCandidate`].
    pub fn sample(&mut self, logits: &[f32], before: Before<'_>) -> Result<u32, SamplingError> {
        drawn(next_token(logits, &RowSampling::GREEDY))?;
        let mut candidates = self.candidates(logits, before);
        if let Some(mirostat) = self.chain.mirostat {
            mirostat.truncate(&mut candidates, self.mu, logits.len());
        }
        let max = largest(&candidates);
        let distances = candidates.iter().map(|it| (it.token, max - it.logit));
        let token = draw(distances, before.seed, before.position);
        let token = token.ok_or(SamplingError::NoCandidate)?;
        self.observe(&candidates, token);
        Ok(token)
    }

    /// The tokens that the steps leave.
    fn candidates(&self, logits: &[f32], before: Before<'_>) -> Vec<Candidate> {
        let all = (0..).zip(logits).filter(|&(_, &logit)| logit > f32::NEG_INFINITY);
        let mut candidates: Vec<_> =
            all.map(|(token, &logit)| Candidate { token, logit: logit.into() }).collect();
        for step in &self.chain.steps {
            step.apply(&mut candidates, before);
        }
        candidates
    }

    /// Mirostat's bound after `token` was drawn of `candidates`.
    fn observe(&mut self, candidates: &[Candidate], token: u32) {
        let Some(Mirostat { tau, eta, .. }) = self.chain.mirostat else { return };
        let p = probabilities(candidates);
        let drawn = candidates.iter().position(|it| it.token == token);
        let surprise = drawn.map_or(tau, |index| -p[index].log2());
        self.mu -= eta * (surprise - tau);
    }
}

impl SamplerStep {
    fn apply(&self, candidates: &mut Vec<Candidate>, before: Before<'_>) {
        match self {
            SamplerStep::Penalties(penalties) => penalties.apply(candidates, before.tokens),
            SamplerStep::Dry(dry) => dry.apply(candidates, before.tokens),
            SamplerStep::TopNSigma(n) => top_n_sigma(candidates, *n),
            SamplerStep::TopK(k) => {
                sort(candidates);
                candidates.truncate(*k);
            }
            SamplerStep::Typical(p) => typical(candidates, *p),
            SamplerStep::TopP(p) => top_p(candidates, *p),
            SamplerStep::MinP(p) => {
                let least = largest(candidates) + p.ln();
                candidates.retain(|it| it.logit >= least);
            }
            &SamplerStep::Xtc { probability, threshold } => {
                if f64::from(chance(before.seed, before.position)) <= probability {
                    xtc(candidates, threshold);
                }
            }
            &SamplerStep::Temperature { value, range, exponent } => {
                temperature(candidates, value, range, exponent);
            }
            SamplerStep::Infill(pieces) => infill::apply(candidates, &**pieces, before.stop_tokens),
        }
    }
}

impl Penalties {
    fn apply(&self, candidates: &mut [Candidate], tokens: &[u32]) {
        let window = &tokens[tokens.len().saturating_sub(self.last_n)..];
        let mut counts: HashMap<u32, f64> = HashMap::new();
        window.iter().for_each(|&token| *counts.entry(token).or_default() += 1.0);
        for Candidate { token, logit } in candidates {
            let Some(count) = counts.get(token) else { continue };
            match *logit <= 0.0 {
                true => *logit *= self.repetition,
                false => *logit /= self.repetition,
            }
            *logit -= count * self.frequency + self.presence;
        }
    }
}

impl Mirostat {
    /// Leaves the tokens that are not too surprising for a bound of `mu` bits.
    fn truncate(self, candidates: &mut Vec<Candidate>, mu: f64, vocab_size: usize) {
        sort(candidates);
        let p = probabilities(candidates);
        let keep = match self.version {
            1 => {
                let (mut sum_tb, mut sum_tt) = (0.0, 0.0);
                for (i, pair) in p.windows(2).take(MIROSTAT_TOKENS - 1).enumerate() {
                    let t = ((i + 2) as f64 / (i + 1) as f64).ln();
                    sum_tb += t * (pair[0] / pair[1]).ln();
                    sum_tt += t * t;
                }
                let s: f64 = sum_tb / sum_tt;
                let epsilon = s - 1.0;
                let share = epsilon * mu.exp2() / (1.0 - (vocab_size as f64).powf(-epsilon));
                // What is no number, as of one candidate, is 0.
                share.powf(1.0 / s) as usize
            }
            _ => p.iter().take_while(|p| -p.log2() <= mu).count(),
        };
        candidates.truncate(keep.max(1));
    }
}

/// From the largest logit to the smallest; of equal ones the smallest id first.
fn sort(candidates: &mut [Candidate]) {
    candidates
        .sort_unstable_by(|a, b| b.logit.total_cmp(&a.logit).then_with(|| a.token.cmp(&b.token)));
}

fn largest(candidates: &[Candidate]) -> f64 {
    candidates.iter().map(|it| it.logit).fold(f64::NEG_INFINITY, f64::max)
}

fn probabilities(candidates: &[Candidate]) -> Vec<f64> {
    let max = largest(candidates);
    let exp: Vec<f64> = candidates.iter().map(|it| (it.logit - max).exp()).collect();
    let sum: f64 = exp.iter().sum();
    exp.into_iter().map(|exp| exp / sum).collect()
}

/// The entropy of `p`, in nats.
fn entropy(p: &[f64]) -> f64 {
    p.iter().filter(|&&p| p > 0.0).map(|p| -p * p.ln()).sum()
}

fn top_n_sigma(candidates: &mut Vec<Candidate>, n: f64) {
    let num = candidates.len() as f64;
    let mean = candidates.iter().map(|it| it.logit).sum::<f64>() / num;
    let variance = candidates.iter().map(|it| (it.logit - mean).powi(2)).sum::<f64>() / num;
    let least = largest(candidates) - n * variance.sqrt();
    candidates.retain(|it| it.logit >= least);
}

fn typical(candidates: &mut Vec<Candidate>, wanted: f64) {
    sort(candidates);
    let p = probabilities(candidates);
    let entropy = entropy(&p);
    let distance = |index: usize| (-p[index].ln() - entropy).abs();
    let mut order: Vec<usize> = (0..p.len()).collect();
    order.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)));
    let mut reached = 0.0;
    let enough = order.iter().position(|&index| {
        reached += p[index];
        reached > wanted
    });
    let keep = enough.map_or(order.len(), |last| last + 1);
    *candidates = order[..keep].iter().map(|&index| candidates[index]).collect();
}

fn top_p(candidates: &mut Vec<Candidate>, wanted: f64) {
    sort(candidates);
    let mut reached = 0.0;
    let enough = probabilities(candidates).into_iter().position(|p| {
        reached += p;
        reached >= wanted
    });
    candidates.truncate(enough.map_or(candidates.len(), |last| last + 1));
}

fn xtc(candidates: &mut Vec<Candidate>, threshold: f64) {
    sort(candidates);
    let above = probabilities(candidates).into_iter().take_while(|&p| p >= threshold).count();
    candidates.drain(..above.saturating_sub(1));
}

fn temperature(candidates: &mut Vec<Candidate>, value: f64, range: f64, exponent: f64) {
    let mut value = value;
    if range > 0.0 {
        // One candidate alone has no entropy.
        if candidates.len() < 2 {
            return;
        }
        let (least, most) = ((value - range).max(0.0), value + range);
        let normalised = entropy(&probabilities(candidates)) / (candidates.len() as f64).ln();
        value = least + (most - least) * normalised.powf(exponent);
    }
    if value < RowSampling::MIN_TEMPERATURE.into() {
        sort(candidates);
        candidates.truncate(1);
        return;
    }
    candidates.iter_mut().for_each(|it| it.logit /= value);
}
