//! The token of a row of logits as [`kernels::sampling`] defines it: on the CPU, and where the host has changed the
//! logits.

use super::NextToken;
use crate::plan::StepInputs;
use cpu_ops::activations::Rows;
use kernels::sampling::noise::{Noise, uniform};
use kernels::sampling::{LARGEST_MASS, LogitEdit, RowSampling, wanted_mass};
use rayon::prelude::*;
use std::cmp::Ordering;

/// A token that can still be drawn, with its distance from the largest logit.
type Candidate = (u32, f32);

/// A token of each row, as its sampling says, after its edits.
pub fn next_tokens(x: &Rows, inputs: &StepInputs) -> Vec<NextToken> {
    let of_row = |(row, sampling)| match inputs.edits_of(row) {
        [] => next_token(x.row(row), sampling),
        edits => next_token(&edited(x.row(row), edits), sampling),
    };
    inputs.sampling.par_iter().enumerate().map(of_row).collect()
}

/// `logits` after `edits`.
pub fn edited(logits: &[f32], edits: &[LogitEdit]) -> Vec<f32> {
    let mut edited = logits.to_vec();
    for edit in edits {
        let logit = &mut edited[edit.token as usize];
        *logit = edit.apply(*logit);
    }
    edited
}

/// Chooses a token of `logits`.
pub fn next_token(logits: &[f32], sampling: &RowSampling) -> NextToken {
    if let Some(index) = first_not_finite(logits) {
        return NextToken::NotFinite(index);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let Some(first) = logits.iter().position(|&logit| logit == max) else {
        return NextToken::NoCandidate;
    };
    if max == f32::NEG_INFINITY {
        return NextToken::NoCandidate;
    }
    if sampling.is_greedy() {
        return NextToken::Token(first as u32);
    }
    let mut candidates = nearest(logits, max, sampling.top_k as usize);
    if sampling.top_p < 1.0 {
        keep_nucleus(&mut candidates, sampling.top_p);
    }
    race(&candidates, sampling).map_or(NextToken::NoCandidate, NextToken::Token)
}

/// The token that wins the race of those that min-p allows.
fn race(candidates: &[Candidate], sampling: &RowSampling) -> Option<u32> {
    let (temperature, max_distance) = (f64::from(sampling.temperature), sampling.max_distance());
    let allowed = candidates.iter().filter(|candidate| candidate.1 <= max_distance);
    let scaled = allowed.map(|&(token, distance)| (token, f64::from(distance) / temperature));
    draw(scaled, sampling.seed, sampling.position)
}

/// Draws one of `candidates`: tokens, and how far their logits are below the largest one.
pub fn draw(candidates: impl Iterator<Item = (u32, f64)>, seed: u64, position: u32) -> Option<u32> {
    let noise = Noise::new(seed, position);
    let mut best: Option<(f64, u32)> = None;
    for (token, distance) in candidates {
        let bits = noise.bits(token);
        // `-ln(1 - uniform)` is above `uniform`, which is at least this power of two: most tokens lose by it.
        let least = -f64::from(bits.leading_zeros() + 1) * std::f64::consts::LN_2;
        if best.is_some_and(|(score, _)| distance + least > score) {
            continue;
        }
        let score = distance + (-f64::ln_1p(-f64::from(uniform(bits)))).ln();
        let is_better =
            |(best, of): (f64, u32)| score.total_cmp(&best).then(token.cmp(&of)) == Ordering::Less;
        if best.is_none_or(is_better) {
            best = Some((score, token));
        }
    }
    best.map(|(_, token)| token)
}

/// A number of (0, 1) that belongs to a draw and to none of its tokens.
pub fn chance(seed: u64, position: u32) -> f32 {
    uniform(Noise::new(!seed, position).bits(0))
}

/// From the nearest candidate to the farthest; of equal ones, the smallest id first.
fn ascending(a: &Candidate, b: &Candidate) -> Ordering {
    a.1.total_cmp(&b.1).then(a.0.cmp(&b.0))
}

/// The mass of a token at `distance`.
fn mass(distance: f32) -> u64 {
    (f64::exp(-f64::from(distance)) * f64::from(LARGEST_MASS)) as u64
}

/// Keeps the nearest candidates that together reach `top_p`; at least one.
///
/// As a rule they are few of a large vocabulary: only as many are sorted as it takes.
fn keep_nucleus(candidates: &mut Vec<Candidate>, top_p: f32) {
    const FIRST: usize = 256;
    let wanted = wanted_mass(top_p, candidates.iter().map(|candidate| mass(candidate.1)).sum());
    let (mut reached, mut keep, mut ordered) = (0, 0, 0);
    while keep < candidates.len() && reached < wanted {
        if keep == ordered {
            let rest = &mut candidates[ordered..];
            let next = rest.len().min(ordered.max(FIRST));
            if next < rest.len() {
                rest.select_nth_unstable_by(next, ascending);
            }
            rest[..next].sort_unstable_by(ascending);
            ordered += next;
        }
        reached += mass(candidates[keep].1);
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

/// The first logit that is NaN or positive infinity.
fn first_not_finite(logits: &[f32]) -> Option<u32> {
    let is_broken = |logit: f32| logit.is_nan() | (logit == f32::INFINITY);
    let first = CHUNK * logits.chunks(CHUNK).position(|chunk| any(chunk, is_broken))?;
    let index = logits[first..].iter().position(|&logit| is_broken(logit))?;
    Some((first + index) as u32)
}

/// The `count` candidates nearest to `max`, the largest logit, or all for 0; of equal ones, those of the smallest ids.
pub fn nearest(logits: &[f32], max: f32, count: usize) -> Vec<Candidate> {
    let count = if count == 0 { logits.len() } else { count };
    // With room for twice as many, the list is seldom cut down to `count`, and most logits of a vocabulary are beyond
    // the farthest that it keeps then.
    let room = count.saturating_mul(2).max(64).min(logits.len());
    let mut kept: Vec<Candidate> = Vec::with_capacity(room);
    let mut farthest = f32::INFINITY;
    for (first, chunk) in (0..).step_by(CHUNK).zip(logits.chunks(CHUNK)) {
        if !any(chunk, |logit| max - logit < farthest) {
            continue;
        }
        for (token, &logit) in (first..).zip(chunk) {
            let distance = max - logit;
            if kept.len() == room && distance < farthest {
                farthest = keep_nearest(&mut kept, count);
            }
            if distance < farthest {
                kept.push((token, distance));
            }
        }
    }
    if kept.len() > count {
        keep_nearest(&mut kept, count);
    }
    kept
}

/// Keeps `count` candidates of more than that, and returns the largest of their distances.
fn keep_nearest(candidates: &mut Vec<Candidate>, count: usize) -> f32 {
    let (_, &mut (_, farthest), _) = candidates.select_nth_unstable_by(count - 1, ascending);
    candidates.truncate(count);
    farthest
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};
    use rand_chacha::ChaCha12Rng;

    const NEG_INF: f32 = f32::NEG_INFINITY;

    /// Steep and flat distributions, over several rounds of ordering: what is kept is what a full sort keeps.
    #[test]
    fn the_nucleus_of_a_large_vocabulary_is_that_of_a_full_sort() {
        let mut rng = ChaCha12Rng::seed_from_u64(5);
        for spread in [0.0f32, 0.1, 3.0, 30.0] {
            let distances = (0..3000).map(|_| rng.random_range(0.0..=2.0) * spread);
            let mut sorted: Vec<Candidate> = (0..).zip(distances).collect();
            let mut shuffled = sorted.clone();
            shuffled.rotate_left(1234);
            sorted.sort_by(ascending);
            let p: Vec<f64> = sorted.iter().map(|c| (-f64::from(c.1)).exp()).collect();
            for top_p in [0.0, 0.3, 0.9, 0.999] {
                let wanted_mass = f64::from(top_p) * p.iter().sum::<f64>();
                let reached = |n: usize| p[..n].iter().sum::<f64>() >= wanted_mass;
                let wanted = (1..p.len()).find(|&n| reached(n)).unwrap_or(p.len());
                let mut kept = shuffled.clone();
                keep_nucleus(&mut kept, top_p);
                assert!(kept.len().abs_diff(wanted) <= 1, "{} for {wanted}", kept.len());
                assert_eq!(kept, sorted[..kept.len()], "spread {spread}, top_p {top_p}");
            }
        }
    }

    /// Rising, falling, equal and random logits, some of them ruled out: what is kept is what a full sort keeps.
    #[test]
    fn the_nearest_of_a_large_vocabulary_are_those_of_a_full_sort() {
        let mut rng = ChaCha12Rng::seed_from_u64(6);
        let coarse: Vec<f32> = (0..5000).map(|_| rng.random_range(0..100) as f32).collect();
        let rising: Vec<f32> = (0..5000).map(|i| i as f32).collect();
        let falling: Vec<f32> = rising.iter().rev().copied().collect();
        let mut gaps = coarse.clone();
        gaps.iter_mut().skip(1).step_by(2).for_each(|logit| *logit = NEG_INF);
        for logits in [coarse, rising, falling, gaps, vec![1.0; 5000]] {
            let max = logits.iter().copied().fold(NEG_INF, f32::max);
            let mut sorted: Vec<Candidate> =
                (0..).zip(logits.iter().map(|logit| max - logit)).collect();
            sorted.retain(|candidate| candidate.1 < f32::INFINITY);
            sorted.sort_by(ascending);
            for count in [0, 1, 2, 31, 32, 33, 40, 2499, 2500, 4999, 5000, 6000] {
                let mut kept = nearest(&logits, max, count);
                kept.sort_by(ascending);
                let wanted = if count == 0 { sorted.len() } else { count.min(sorted.len()) };
                assert_eq!(kept, sorted[..wanted], "{count}");
            }
        }
    }

    #[test]
    fn greedy_takes_the_first_of_the_largest() {
        let greedy = |logits: &[f32]| next_token(logits, &RowSampling::GREEDY);
        assert_eq!(greedy(&[0.0, 3.0, NEG_INF, 3.0]), NextToken::Token(1));
        assert_eq!(greedy(&[NEG_INF, NEG_INF, -1e30]), NextToken::Token(2));
        assert_eq!(greedy(&[-1.0, -0.0, 0.0]), NextToken::Token(1));
    }

    #[test]
    fn rows_without_a_token_say_why() {
        for temperature in [0.0, 1.0] {
            let row = RowSampling { temperature, ..RowSampling::GREEDY };
            let next = |logits: &[f32]| next_token(logits, &row);
            assert_eq!(next(&[0.0, f32::NAN, 1.0]), NextToken::NotFinite(1));
            assert_eq!(next(&[0.0, 1.0, f32::INFINITY]), NextToken::NotFinite(2));
            let mut late = vec![0.0; 3000];
            (late[2999], late[2500]) = (f32::INFINITY, f32::NAN);
            assert_eq!(next(&late), NextToken::NotFinite(2500));
            assert_eq!(next(&[NEG_INF; 4]), NextToken::NoCandidate);
            assert_eq!(next(&[]), NextToken::NoCandidate);
            assert_eq!(next(&[NEG_INF, f32::MIN, NEG_INF]), NextToken::Token(1));
            assert_eq!(next(&[f32::MAX, f32::MIN]), NextToken::Token(0));
        }
    }

    #[test]
    fn each_row_has_its_token() {
        use NextToken::{NoCandidate, NotFinite, Token};
        let rows = [
            [1.0, 3.0, 3.0, 2.0],
            [f32::NEG_INFINITY, -5.0, f32::MIN, -4.0],
            [f32::NEG_INFINITY; 4],
            [9.0, 0.0, f32::INFINITY, f32::NAN],
            [f32::NAN; 4],
        ];
        let wanted = [Token(1), Token(3), NoCandidate, NotFinite(2), NotFinite(0)];
        let rows = Rows::dense(rows.as_flattened(), 4);
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&[0; 5], 0, &[0], 0..5);
        assert_eq!(next_tokens(&rows, &inputs), wanted);
        // Edits of the rows in the middle, and of what is broken.
        let edit = |token, bias| LogitEdit { token, bias, divisor: 2.0, penalty: 0.5 };
        inputs.edits = vec![edit(3, -1.5), edit(0, 100.0), edit(2, f32::NEG_INFINITY)];
        inputs.edit_ends = vec![0, 1, 2, 3, 3];
        // -5.5 / 1 * 2 - 0.5 is below -5.
        let wanted = [Token(1), Token(1), NoCandidate, NotFinite(2), NotFinite(0)];
        assert_eq!(next_tokens(&rows, &inputs), wanted);
    }
}
