//! DRY: a penalty of tokens that would go on with a repetition
//! (<https://github.com/oobabooga/text-generation-webui/pull/5677>).

use super::Candidate;
use std::collections::HashMap;

/// The largest power of the base that an f32 holds, as llama.cpp bounds it.
const MAX_LN: f64 = 88.722_839_1;

/// How repetitions are penalised: by `multiplier * base^(length - allowed_length)`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    /// The factor of all penalties.
    pub multiplier: f64,
    /// Base of the power; at least 1.
    pub base: f64,
    /// Repetitions of so many tokens are free.
    pub allowed_length: usize,
    /// Tokens in which repetitions are looked for, from the end.
    pub last_n: usize,
    /// Texts over which no repetition goes, as the token that such a text begins in and those that it goes on with.
    pub breakers: HashMap<u32, Vec<Vec<u32>>>,
}

impl Dry {
    pub(super) fn apply(&self, candidates: &mut [Candidate], tokens: &[u32]) {
        let window = &tokens[tokens.len().saturating_sub(self.last_n)..];
        if window.len() <= self.allowed_length {
            return;
        }
        let limit = self.limit(window);
        if limit < self.allowed_length {
            return;
        }
        let longest = self.longest(window, limit);
        let max_power = match self.base > 1.000_001 {
            true => (MAX_LN / self.base.ln()) as usize,
            false => 0,
        };
        for Candidate { token, logit } in candidates {
            let Some(&length) = longest.get(token) else { continue };
            let is_breaker =
                self.breakers.get(token).is_some_and(|tails| tails.iter().any(Vec::is_empty));
            if !is_breaker {
                let power = length - self.allowed_length;
                let power = if max_power > 0 { power.min(max_power) } else { power };
                *logit -= self.multiplier * self.base.powf(power as f64);
            }
        }
    }

    /// Tokens at the end after the last breaker.
    fn limit(&self, window: &[u32]) -> usize {
        let num = window.len();
        for back in 0..num {
            let start = num - 1 - back;
            let Some(tails) = self.breakers.get(&window[start]) else { continue };
            let fits = tails.iter().filter(|tail| window[start + 1..].starts_with(tail));
            if let Some(longest) = fits.map(Vec::len).max() {
                return back - longest;
            }
        }
        num
    }

    /// The length of the longest repetition, `limit` at most, that each token would go on with.
    fn longest(&self, window: &[u32], limit: usize) -> HashMap<u32, usize> {
        // From the end: `backwards[i]` is the token `i` before the last one.
        let backwards: Vec<u32> = window.iter().rev().copied().collect();
        let mut longest = HashMap::new();
        for (k, length) in common_prefixes(&backwards).into_iter().enumerate().skip(1) {
            let length = length.min(limit);
            if length >= self.allowed_length {
                let next = backwards[k - 1];
                longest.entry(next).and_modify(|known: &mut usize| *known = (*known).max(length));
                longest.entry(next).or_insert(length);
            }
        }
        longest
    }
}

/// How many tokens from each place on are those at the beginning: the Z-algorithm.
fn common_prefixes(tokens: &[u32]) -> Vec<usize> {
    let mut z = vec![0; tokens.len()];
    // The stretch that reaches farthest of those that are like the beginning.
    let (mut left, mut right) = (0, 0);
    for k in 1..tokens.len() {
        let mut length = if k < right { z[k - left].min(right - k) } else { 0 };
        while k + length < tokens.len() && tokens[length] == tokens[k + length] {
            length += 1;
        }
        if k + length > right {
            (left, right) = (k, k + length);
        }
        z[k] = length;
    }
    z
}
