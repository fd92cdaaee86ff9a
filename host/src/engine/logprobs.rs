//! Log-probabilities of tokens, by the model's own distribution: the softmax of its logits, before anything that a request
//! says about sampling.

use super::SamplingError;
use super::sampler::drawn;
use crate::exec::{RowSampling, nearest, next_token};

/// A token, and how likely the model found it after those before it.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The token.
    pub token: u32,
    /// The natural logarithm of its probability.
    pub logprob: f32,
    /// The most likely tokens and theirs, the most likely first; of equal ones the smallest id first.
    pub top: Vec<(u32, f32)>,
    /// Log-probabilities of the tokens in [`Request::logprobs_of`](super::Request::logprobs_of).
    pub of: Vec<f32>,
}

impl Logprobs {
    /// Log-probabilities of `token`, of the `num_top` most likely tokens and of the tokens `of`, by the `logits` of the
    /// position before it. A token that has no logit is never drawn.
    ///
    /// # Errors
    /// [`SamplingError::NotFinite`], [`SamplingError::NoCandidate`].
    pub(super) fn new(
        logits: &[f32],
        token: u32,
        num_top: usize,
        of: &[u32],
    ) -> Result<Self, SamplingError> {
        let max = logits[drawn(next_token(logits, &RowSampling::GREEDY))? as usize];
        let sum: f64 = logits.iter().map(|&logit| f64::from(logit - max).exp()).sum();
        let logprob = |distance: f32| (-f64::from(distance) - sum.ln()) as f32;
        // For `nearest`, 0 is all.
        let mut top = if num_top == 0 { Vec::new() } else { nearest(logits, max, num_top) };
        top.sort_unstable_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)));
        Ok(Logprobs {
            token,
            logprob: logprob(max - logits[token as usize]),
            top: top.into_iter().map(|(token, distance)| (token, logprob(distance))).collect(),
            of: of
                .iter()
                .map(|&token| logits.get(token as usize).copied().unwrap_or(f32::NEG_INFINITY))
                .map(|logit| logprob(max - logit))
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const NEG_INF: f32 = f32::NEG_INFINITY;

    /// `log(softmax(logits))`, in f64 and by the definition.
    fn oracle(logits: &[f32]) -> Vec<f64> {
        let exp: Vec<f64> = logits.iter().map(|&logit| f64::from(logit).exp()).collect();
        exp.iter().map(|e| (e / exp.iter().sum::<f64>()).ln()).collect()
    }

    #[test]
    fn they_are_the_logarithm_of_the_softmax() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for (len, num_top) in [(1, 3), (2, 1), (300, 0), (300, 20), (5000, 7)] {
            let mut logits: Vec<f32> = (0..len).map(|_| rng.random_range(-20.0..20.0)).collect();
            if len > 2 {
                (logits[1], logits[2]) = (NEG_INF, logits[0]);
            }
            let wanted = oracle(&logits);
            let mut order: Vec<usize> = (0..len).collect();
            order.sort_by(|&a, &b| wanted[b].total_cmp(&wanted[a]).then(a.cmp(&b)));
            order.truncate(num_top);
            for token in [0, len / 2, len - 1] {
                let of = [0, token as u32, len as u32 - 1];
                let got = Logprobs::new(&logits, token as u32, num_top, &of).unwrap();
                for (of, logprob) in of.into_iter().zip(&got.of) {
                    let is_near = (f64::from(*logprob) - wanted[of as usize]).abs() < 1e-5;
                    assert!(is_near || f64::from(*logprob) == wanted[of as usize], "{of}");
                }
                assert_eq!(got.token, token as u32);
                assert!((f64::from(got.logprob) - wanted[token]).abs() < 1e-5, "{len}: {token}");
                let top: Vec<usize> = got.top.iter().map(|top| top.0 as usize).collect();
                assert_eq!(top, order, "{len}");
                for &(token, logprob) in &got.top {
                    assert!((f64::from(logprob) - wanted[token as usize]).abs() < 1e-5, "{token}");
                }
            }
        }
        let far = Logprobs::new(&[1e4, 0.0, NEG_INF], 2, 2, &[1, 3]).unwrap();
        assert_eq!((far.logprob, &*far.top), (NEG_INF, &[(0, 0.0), (1, -1e4)][..]));
        assert_eq!(far.of, [-1e4, NEG_INF]);
    }

    #[test]
    fn broken_logits_have_none() {
        let error = Logprobs::new(&[0.0, f32::NAN], 0, 1, &[]).unwrap_err();
        assert_eq!(error, SamplingError::NotFinite { token: 1 });
        let error = Logprobs::new(&[NEG_INF; 2], 0, 1, &[]).unwrap_err();
        assert_eq!(error, SamplingError::NoCandidate);
    }
}
