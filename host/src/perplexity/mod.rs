//! How well a model predicts a text: windows, perplexity, and the divergence from another model.
//!
//! The measure is llama.cpp's (`tools/perplexity`): the text is cut into windows of equal length, each of which begins with
//! the BOS token if the model wants one. Each window is evaluated by itself, and the tokens of its second half are scored,
//! so that each is predicted from at least half a window.

mod divergence;
mod saved;

pub use divergence::{Divergence, Estimate};
pub use saved::{SavedError, SavedLogits, SavedWriter};

use crate::{Engine, EngineError};
use std::borrow::Cow;

/// Fewest tokens of a window whose second half predicts something.
pub const MIN_WINDOW: usize = 3;

/// A text in windows of equal length.
#[derive(Clone, Debug, PartialEq)]
pub struct Windows {
    tokens: Vec<u32>,
    window_len: usize,
    bos: Option<u32>,
    /// The first position of a window whose successor is scored.
    first: usize,
}

/// A part of a text that is evaluated by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Window<'a> {
    /// What the model reads: the whole window.
    pub input: Cow<'a, [u32]>,
    /// The first position whose successor is scored.
    pub first: usize,
    /// The tokens that are scored: those that follow the positions from `first` on.
    pub targets: &'a [u32],
}

impl Windows {
    /// Windows whose second half is scored; with a `bos`, it takes the place of the first token of each. What is left of the
    /// text after the last whole window, or after `max_windows`, is dropped. `None` for less than two windows of text, which
    /// is what llama.cpp asks for.
    ///
    /// # Panics
    /// If `window_len` is less than [`MIN_WINDOW`].
    pub fn second_halves(
        mut tokens: Vec<u32>,
        window_len: usize,
        bos: Option<u32>,
        max_windows: Option<usize>,
    ) -> Option<Self> {
        assert!(window_len >= MIN_WINDOW, "a window of {window_len} tokens scores none");
        let num_windows = tokens.len() / window_len;
        if num_windows < 2 {
            return None;
        }
        tokens.truncate(num_windows.min(max_windows.unwrap_or(num_windows)) * window_len);
        Some(Windows { tokens, window_len, bos, first: window_len / 2 })
    }

    /// Windows of which every token but the first is scored: Hugging Face's measure with a stride of the window. The last
    /// one may be shorter.
    ///
    /// # Panics
    /// If `window_len` is 0.
    pub fn all_positions(
        mut tokens: Vec<u32>,
        window_len: usize,
        max_windows: Option<usize>,
    ) -> Self {
        let max_tokens = max_windows.map_or(usize::MAX, |max| max.saturating_mul(window_len));
        tokens.truncate(max_tokens);
        // A single token predicts nothing.
        if tokens.len() % window_len == 1 {
            tokens.pop();
        }
        Windows { tokens, window_len, bos: None, first: 0 }
    }

    /// Tokens of the windows, as the text has them.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Tokens of a window.
    pub fn window_len(&self) -> usize {
        self.window_len
    }

    /// How many there are.
    pub fn num_windows(&self) -> usize {
        self.tokens.len().div_ceil(self.window_len)
    }

    /// All windows, in the order of the text.
    pub fn iter(&self) -> impl Iterator<Item = Window<'_>> {
        self.tokens.chunks(self.window_len).map(|tokens| {
            let mut input = Cow::Borrowed(tokens);
            if let Some(bos) = self.bos {
                input.to_mut()[0] = bos;
            }
            Window { input, first: self.first, targets: &tokens[self.first + 1..] }
        })
    }
}

impl Window<'_> {
    /// Evaluates the window, and calls `each` with the logits of some scored positions, `[num_rows, vocab_size]`, and the
    /// tokens that follow them, until all were scored. The last position, which nothing follows, is not computed.
    ///
    /// # Errors
    /// As [`Engine::logits`].
    pub fn score(
        &self,
        engine: &mut Engine,
        mut each: impl FnMut(&[f32], &[u32]),
    ) -> Result<(), EngineError> {
        let vocab_size = engine.model().config().vocab_size;
        let mut targets = self.targets;
        let input = &self.input[..self.input.len() - 1];
        engine.logits_from(input, self.first, |logits| {
            let (scored, rest) = targets.split_at(logits.len() / vocab_size);
            targets = rest;
            each(logits, scored);
        })
    }
}

/// Negative log-likelihoods of tokens, summed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Likelihood {
    sum: f64,
    sum_of_squares: f64,
    count: usize,
}

impl Likelihood {
    /// Adds that of a token, in nats.
    pub fn push(&mut self, nll: f64) {
        self.sum += nll;
        self.sum_of_squares += nll * nll;
        self.count += 1;
    }

    /// Tokens that were scored.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The mean, in nats.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The perplexity, and its standard error.
    pub fn perplexity(&self) -> Estimate {
        let mean = self.mean();
        let variance = (self.sum_of_squares / self.count as f64 - mean * mean).max(0.0);
        let error = (variance / self.count.saturating_sub(1).max(1) as f64).sqrt();
        Estimate { value: mean.exp(), error: error * mean.exp() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_of_whole_windows_is_scored() {
        let windows = Windows::second_halves((0..17).collect(), 5, None, None).unwrap();
        assert_eq!((windows.num_windows(), windows.tokens().len()), (3, 15));
        let window = windows.iter().nth(1).unwrap();
        assert_eq!(window.input[..], [5, 6, 7, 8, 9]);
        assert_eq!((window.first, window.targets), (2, &[8, 9][..]));
        assert_eq!(Windows::second_halves((0..9).collect(), 5, None, None), None);
    }

    #[test]
    fn each_window_begins_with_bos_and_scores_the_text() {
        let windows = Windows::second_halves((10..18).collect(), 3, Some(1), Some(1)).unwrap();
        let all: Vec<_> = windows.iter().collect();
        assert_eq!(all.len(), 1);
        assert_eq!((&all[0].input[..], all[0].targets), (&[1, 11, 12][..], &[12][..]));
        assert_eq!(windows.tokens(), [10, 11, 12], "the text is as it was");
    }

    #[test]
    fn all_positions_have_a_short_last_window() {
        let targets = |len: u32, max| -> Vec<Vec<u32>> {
            let windows = Windows::all_positions((0..len).collect(), 4, max);
            windows.iter().map(|window| window.targets.to_vec()).collect()
        };
        assert_eq!(targets(6, None), [vec![1, 2, 3], vec![5]]);
        assert_eq!(targets(5, None), [[1, 2, 3]]);
        assert_eq!(targets(12, Some(2)), [[1, 2, 3], [5, 6, 7]]);
    }

    /// The mean of 1, 2 and 3 is 2, the variance 2/3, and the error of the mean sqrt((2/3) / 2).
    #[test]
    fn likelihoods_by_hand() {
        let mut likelihood = Likelihood::default();
        [1.0, 2.0, 3.0].into_iter().for_each(|nll| likelihood.push(nll));
        let Estimate { value, error } = likelihood.perplexity();
        assert!((value - 2f64.exp()).abs() < 1e-12);
        assert!((error - 2f64.exp() * (1f64 / 3.0).sqrt()).abs() < 1e-12);
        let mut one = Likelihood::default();
        one.push(1.0);
        assert_eq!(one.perplexity().error, 0.0);
    }
}
