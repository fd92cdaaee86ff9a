//! From logits to the next token: on the device, or on the host where a grammar rules tokens out or somebody wants the logits.

use super::sampling::{Sampling, SamplingError};
use crate::exec::{LogitEdit, NextToken, RowSampling, edited, next_token};
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

/// The next token where the host chooses it, after `edits`, which are those of `num_generated` tokens.
///
/// # Errors
/// As [`drawn`].
pub fn sample(
    sampling: &Sampling,
    logits: Cow<'_, [f32]>,
    edits: &[LogitEdit],
    num_generated: usize,
) -> Result<u32, SamplingError> {
    drawn(next_token(&edit(logits, edits), &row_sampling(sampling, num_generated)))
}

/// `logits` after `edits`.
pub fn edit<'a>(logits: Cow<'a, [f32]>, edits: &[LogitEdit]) -> Cow<'a, [f32]> {
    if edits.is_empty() { logits } else { edited(&logits, edits).into() }
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

#[cfg(test)]
mod tests;
