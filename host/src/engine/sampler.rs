//! From logits to the next token.

use crate::exec::NextToken;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha12Rng;
use std::cmp::Ordering;

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
        let &Sampling { temperature, top_p, min_p, repetition_penalty: penalty, .. } = self;
        let is_share = |value: f32| (0.0..=1.0).contains(&value);
        let checks = [
            (
                "temperature",
                temperature,
                temperature.is_finite() && temperature >= 0.0,
                "0 or more",
            ),
            ("top-p", top_p, is_share(top_p), "0 to 1"),
            ("min-p", min_p, is_share(min_p), "0 to 1"),
            ("repetition penalty", penalty, penalty.is_finite() && penalty > 0.0, "above 0"),
        ];
        match checks.into_iter().find(|&(_, _, ok, _)| !ok) {
            Some((name, value, _, range)) => Err(SamplingError::Value { name, value, range }),
            None => Ok(()),
        }
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
        "the model's logit of token {token} is NaN or inf: its weights or its arithmetic are broken"
    )]
    NotFinite {
        /// The first such token.
        token: u32,
    },
    /// Every logit is negative infinity.
    #[error("the model rules out every token: all logits are -inf")]
    NoCandidate,
}

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
        let broken = |&(_, &logit): &(u32, &f32)| logit.is_nan() || logit == f32::INFINITY;
        if let Some((token, _)) = (0..).zip(logits).find(broken) {
            return Err(SamplingError::NotFinite { token });
        }
        let mut candidates: Vec<Candidate> = (0..).zip(logits.iter().copied()).collect();
        penalise(&mut candidates, logits, tokens, self.sampling.repetition_penalty);
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
        if top_k > 0 && top_k < candidates.len() {
            candidates.select_nth_unstable_by(top_k - 1, descending);
            candidates.truncate(top_k);
        }
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
        // Rounding can leave a crumb behind the last: it belongs to it.
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
/// They are few as a rule, the vocabulary is not: only as many are put in order as it takes.
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

/// Applies the repetition penalty; `candidates` are the `logits` with their ids. A token that stands in `tokens` twice
/// is penalised once.
fn penalise(candidates: &mut [Candidate], logits: &[f32], tokens: &[u32], penalty: f32) {
    if penalty == 1.0 {
        return;
    }
    for &token in tokens {
        let logit = logits[token as usize];
        candidates[token as usize].1 = if logit > 0.0 { logit / penalty } else { logit * penalty };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEG_INF: f32 = f32::NEG_INFINITY;

    /// The probability of each token, step by step as the documentation of [`Sampling`] says, in f64.
    fn oracle(sampling: &Sampling, logits: &[f32], tokens: &[u32]) -> Vec<f64> {
        let mut logits: Vec<f64> = logits.iter().map(|&logit| logit as f64).collect();
        for (token, logit) in logits.iter_mut().enumerate() {
            if tokens.contains(&(token as u32)) {
                let penalty = sampling.repetition_penalty as f64;
                *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
            }
        }
        let softmax = |kept: &[usize], temperature: f64| -> Vec<f64> {
            let exp: Vec<f64> = kept.iter().map(|&t| (logits[t] / temperature).exp()).collect();
            exp.iter().map(|e| e / exp.iter().sum::<f64>()).collect()
        };
        let mut kept: Vec<usize> = (0..logits.len()).collect();
        kept.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
        if sampling.top_k > 0 {
            kept.truncate(sampling.top_k);
        }
        let p = softmax(&kept, 1.0);
        let reached = |n: usize| p[..n].iter().sum::<f64>() >= sampling.top_p as f64;
        kept.truncate((1..kept.len()).find(|&n| reached(n)).unwrap_or(kept.len()));
        let p = softmax(&kept, 1.0);
        let above = p.iter().take_while(|&&p_t| p_t >= sampling.min_p as f64 * p[0]).count();
        kept.truncate(above);
        let mut probabilities = vec![0.0; logits.len()];
        for (&token, p) in kept.iter().zip(softmax(&kept, sampling.temperature as f64)) {
            probabilities[token] = p;
        }
        probabilities
    }

    #[test]
    fn draws_follow_the_oracle() {
        let logits = [1.0, -0.5, 2.0, 0.3, NEG_INF, 1.9, -3.0, 0.9];
        let plain = Sampling { temperature: 1.0, ..Default::default() };
        let cases = [
            plain,
            Sampling { temperature: 0.4, ..plain },
            Sampling { temperature: 2.5, ..plain },
            Sampling { top_k: 3, ..plain },
            Sampling { top_k: 1, ..plain },
            Sampling { top_k: 100, ..plain },
            Sampling { top_p: 0.7, ..plain },
            Sampling { top_p: 0.0, ..plain },
            Sampling { min_p: 0.3, ..plain },
            Sampling { min_p: 1.0, ..plain },
            Sampling { repetition_penalty: 1.8, ..plain },
            Sampling {
                temperature: 0.8,
                top_k: 5,
                top_p: 0.95,
                min_p: 0.1,
                repetition_penalty: 1.1,
                seed: 3,
            },
        ];
        const DRAWS: usize = 20_000;
        for sampling in cases {
            let mut sampler = Sampler::new(sampling);
            let mut counts = [0usize; 8];
            for _ in 0..DRAWS {
                counts[sampler.sample(&logits, &[2, 6, 2]).unwrap() as usize] += 1;
            }
            let wanted = oracle(&sampling, &logits, &[2, 6, 2]);
            for (token, (&count, p)) in counts.iter().zip(wanted).enumerate() {
                let sigma = (p * (1.0 - p) / DRAWS as f64).sqrt();
                let share = count as f64 / DRAWS as f64;
                let is_close = (share - p).abs() <= 4.5 * sigma;
                assert!(is_close, "{sampling:?}: token {token} drawn {share}, probability {p}");
            }
        }
    }

    /// Steep and flat distributions, over several rounds of ordering: what is kept is what a full sort keeps.
    #[test]
    fn the_nucleus_of_a_large_vocabulary_is_that_of_a_full_sort() {
        let mut rng = ChaCha12Rng::seed_from_u64(5);
        for spread in [0.0f32, 0.1, 3.0, 30.0] {
            let logits: Vec<f32> =
                (0..3000).map(|_| rng.random_range(-1.0..=1.0) * spread).collect();
            let mut sorted: Vec<Candidate> = (0..).zip(logits).collect();
            let mut shuffled = sorted.clone();
            shuffled.rotate_left(1234);
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            let max = sorted[0].1;
            let p: Vec<f64> = sorted.iter().map(|c| (c.1 as f64 - max as f64).exp()).collect();
            for top_p in [0.0, 0.3, 0.9, 0.999] {
                let reached =
                    |n: usize| p[..n].iter().sum::<f64>() >= top_p * p.iter().sum::<f64>();
                let wanted = (1..p.len()).find(|&n| reached(n)).unwrap_or(p.len());
                let mut kept = shuffled.clone();
                keep_nucleus(&mut kept, top_p, max);
                assert!(kept.len().abs_diff(wanted) <= 1, "{} for {wanted}", kept.len());
                assert_eq!(kept, sorted[..kept.len()], "spread {spread}, top_p {top_p}");
            }
        }
    }

    /// The first draws of many seeds are spread like the draws of one.
    #[test]
    fn seeds_are_independent() {
        let logits = [0.0, 1.0f32.ln(), 2.0f32.ln()];
        let mut counts = [0usize; 3];
        for seed in 0..4000 {
            let sampling = Sampling { temperature: 1.0, seed, ..Default::default() };
            counts[Sampler::new(sampling).sample(&logits, &[]).unwrap() as usize] += 1;
        }
        for (count, wanted) in counts.into_iter().zip([1000, 1000, 2000]) {
            assert!(count.abs_diff(wanted) < 150, "{counts:?}");
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_tokens() {
        let logits: Vec<f32> = (0..100).map(|i| (i as f32 * 0.7).sin()).collect();
        let draw = |seed| {
            let sampling =
                Sampling { temperature: 1.0, top_k: 50, top_p: 0.9, seed, ..Default::default() };
            let mut sampler = Sampler::new(sampling);
            (0..50).map(|_| sampler.sample(&logits, &[]).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        let mut greedy = Sampler::new(Sampling::default());
        assert!(greedy.is_plain_greedy());
        assert_eq!(greedy.sample(&[0.0, 3.0, NEG_INF, 3.0], &[]), Ok(1));
        assert_eq!(greedy.sample(&[NEG_INF, NEG_INF, -1e30], &[]), Ok(2));
        let mut penalised =
            Sampler::new(Sampling { repetition_penalty: 2.0, ..Default::default() });
        assert!(!penalised.is_plain_greedy());
        assert_eq!(penalised.sample(&[2.0, 3.0], &[1, 1]), Ok(0), "3 / 2 < 2, however often");
        assert_eq!(penalised.sample(&[-2.5, -2.0], &[1]), Ok(0), "-2 * 2 < -2.5");
        assert_eq!(penalised.sample(&[NEG_INF, -2.0], &[0, 1]), Ok(1));
    }

    #[test]
    fn logits_that_mean_nothing_are_errors() {
        for temperature in [0.0, 1.0] {
            let mut sampler = Sampler::new(Sampling { temperature, ..Default::default() });
            let nan = sampler.sample(&[0.0, f32::NAN, 1.0], &[]);
            assert!(matches!(nan, Err(SamplingError::NotFinite { token: 1 })), "{nan:?}");
            let infinite = sampler.sample(&[0.0, 1.0, f32::INFINITY], &[]);
            assert!(matches!(infinite, Err(SamplingError::NotFinite { token: 2 })));
            assert_eq!(sampler.sample(&[NEG_INF; 4], &[]), Err(SamplingError::NoCandidate));
            assert_eq!(sampler.sample(&[NEG_INF, f32::MIN, NEG_INF], &[]), Ok(1));
            assert_eq!(sampler.sample(&[f32::MAX, f32::MIN], &[]), Ok(0));
        }
    }

    #[test]
    fn values_out_of_range_are_named() {
        let good = Sampling::default();
        assert_eq!(good.check(), Ok(()));
        let bad = [
            ("temperature", Sampling { temperature: -0.1, ..good }),
            ("temperature", Sampling { temperature: f32::NAN, ..good }),
            ("temperature", Sampling { temperature: f32::INFINITY, ..good }),
            ("top-p", Sampling { top_p: -0.1, ..good }),
            ("top-p", Sampling { top_p: 1.1, ..good }),
            ("min-p", Sampling { min_p: -0.1, ..good }),
            ("min-p", Sampling { min_p: f32::NAN, ..good }),
            ("repetition penalty", Sampling { repetition_penalty: 0.0, ..good }),
        ];
        for (name, sampling) in bad {
            let message = sampling.check().unwrap_err().to_string();
            assert!(message.starts_with(name), "{message}");
        }
    }
}
