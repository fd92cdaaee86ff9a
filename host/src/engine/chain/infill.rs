//! llama.cpp's sampler of code that is filled in.

use super::{Candidate, probabilities, sort};
use crate::Model;
use std::fmt;

/// The least share of a token that is kept.
const LEAST: f64 = 0.2;
/// Tokens that are compared with each other, the likeliest ones.
const MAX_COMPARED: usize = 1024;

/// The texts of tokens.
pub trait Pieces: fmt::Debug + Send + Sync {
    /// The bytes of a token; none of a control token.
    fn piece(&self, token: u32) -> Vec<u8>;
}

impl Pieces for Model {
    fn piece(&self, token: u32) -> Vec<u8> {
        let bytes = self.text().and_then(|text| text.tokenizer.token_bytes(token));
        bytes.filter(|(_, is_special)| !is_special).map_or_else(Vec::new, |(bytes, _)| bytes)
    }
}

/// Leaves tokens that end the text where they are together likely enough, else the likely ones after those that begin alike
/// are counted as one.
pub fn apply(candidates: &mut Vec<Candidate>, pieces: &dyn Pieces, stop_tokens: &[u32]) {
    sort(candidates);
    let mut p = probabilities(candidates);
    let is_end = |it: &Candidate| stop_tokens.contains(&it.token);
    let ends: f64 = candidates.iter().zip(&p).filter(|(it, _)| is_end(it)).map(|(_, p)| p).sum();
    if 3.0 * ends * candidates.len() as f64 > 1.0 - ends {
        candidates.retain(is_end);
        return;
    }
    candidates.truncate(MAX_COMPARED);
    p.truncate(MAX_COMPARED);
    merge(candidates, &mut p, pieces);
    keep(candidates, &mut p, |it, p| p >= LEAST || is_end(it));
    let num_texts = candidates.iter().filter(|it| !is_end(it)).count();
    if num_texts == 0 {
        let end = stop_tokens.first().copied().or(candidates.first().map(|it| it.token));
        *candidates = end.map(|token| Candidate { token, logit: 0.0 }).into_iter().collect();
        return;
    }
    let sum: f64 = p.iter().sum();
    let least = sum / (num_texts + 1) as f64;
    keep(candidates, &mut p, |it, p| p >= least || is_end(it));
}

/// Gives the probability of a token to a likelier one whose text is the beginning of its own, or the other way round.
fn merge(candidates: &[Candidate], p: &mut [f64], pieces: &dyn Pieces) {
    let texts: Vec<Vec<u8>> = candidates.iter().map(|it| pieces.piece(it.token)).collect();
    let mut is_gone = vec![false; p.len()];
    for i in 0..p.len() {
        for j in 0..p.len() {
            if is_gone[i] {
                break;
            }
            if i == j || is_gone[j] || texts[i].is_empty() || !texts[j].starts_with(&texts[i]) {
                continue;
            }
            let (to, from) = if p[j] > p[i] { (j, i) } else { (i, j) };
            p[to] += p[from];
            p[from] = 0.0;
            is_gone[from] = true;
        }
    }
}

/// Keeps the candidates of which `is_kept` holds, with their probabilities.
fn keep(
    candidates: &mut Vec<Candidate>,
    p: &mut Vec<f64>,
    is_kept: impl Fn(&Candidate, f64) -> bool,
) {
    let both = candidates.iter().copied().zip(p.iter().copied());
    (*candidates, *p) = both.filter(|(it, p)| is_kept(it, *p)).unzip();
}
