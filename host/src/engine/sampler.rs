//! From logits to the next token: on the device, or on the host where a bias, a penalty or a grammar changes the logits.

use super::sampling::{Sampling, SamplingError};
use crate::exec::{NextToken, RowSampling, next_token};
use std::borrow::Cow;

/// The token that was drawn.
///
/// # Errors
/// [`SamplingError::NotFinite`], [`SamplingError::NoCandidate`].
pub fn drawn(next: NextToken) -> Result<u32, SamplingError> {
    match next {
        NextToken::Token(token) => Ok(token),
        NextToken::NotFinite(token) => Err(SamplingError::NotFinite { token }),
        NextToken::NoCandidate => Err(SamplingError::NoCandidate),
    }
}

/// How the token after `num_generated` tokens is drawn.
pub fn row_sampling(sampling: &Sampling, num_generated: usize) -> RowSampling {
    let &Sampling { temperature, top_k, top_p, min_p, seed, .. } = sampling;
    let top_k = top_k.try_into().unwrap_or(u32::MAX);
    RowSampling { temperature, top_k, top_p, min_p, seed, position: num_generated as u32 }
}

/// The next token after `prompt` and the answer so far, `generated`.
///
/// # Errors
/// As [`drawn`].
pub fn sample(
    sampling: &Sampling,
    logits: &[f32],
    prompt: &[u32],
    generated: &[u32],
) -> Result<u32, SamplingError> {
    let row = row_sampling(sampling, generated.len());
    if !sampling.changes_logits() {
        return drawn(next_token(logits, &row));
    }
    // What the bias makes finite is still an error.
    if let broken @ NextToken::NotFinite(_) = next_token(logits, &RowSampling::GREEDY) {
        return drawn(broken);
    }
    drawn(next_token(&bias_and_penalise(sampling, logits, prompt, generated), &row))
}

/// `logits` with negative infinity for each of `tokens`; as they are where nothing else is left.
pub fn without<'a>(logits: Cow<'a, [f32]>, tokens: &[u32]) -> Cow<'a, [f32]> {
    let mut left = logits.to_vec();
    for &token in tokens {
        // Clients name tokens that the model does not have.
        left.get_mut(token as usize).into_iter().for_each(|logit| *logit = f32::NEG_INFINITY);
    }
    match left.iter().any(|&logit| logit > f32::NEG_INFINITY) {
        true => left.into(),
        false => logits,
    }
}

/// `logits` with the bias, and then the penalties of the tokens so far.
fn bias_and_penalise(
    sampling: &Sampling,
    logits: &[f32],
    prompt: &[u32],
    generated: &[u32],
) -> Vec<f32> {
    let &Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = sampling;
    let mut biased = Cow::Borrowed(logits);
    for &(token, bias) in &sampling.logit_bias {
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

#[cfg(test)]
mod tests;
