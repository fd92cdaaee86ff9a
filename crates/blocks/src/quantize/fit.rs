//! The scale, and the minimum, of a group of values: the best of a few tries.
//!
//! The levels that a scale makes are kept, and a least squares fit of the values to these levels
//! gives the scale that goes with them. Sums are taken in the order of the elements, as ggml takes
//! them; what is summed is computed before, in loops that the compiler vectorises.
//!
//! Source: `make_qx_quants`, `make_q3_quants`, `make_qkx2_quants`, `make_qkx3_quants` and
//! `make_qp_quants` in ggml's ggml-quants.c.

use std::array::from_fn;

use super::largest;

/// Groups whose values are all smaller are zeros.
pub const TINY: f32 = 1e-15;

/// The nearest whole number, of two the even one, of a value below 2^22.
#[inline(always)]
pub fn nearest(value: f32) -> i32 {
    // In this range a step between numbers is one, so that the addition rounds.
    const ONE_AND_A_HALF_TIMES_2_TO_23: f32 = 12_582_912.0;
    ((value + ONE_AND_A_HALF_TIMES_2_TO_23).to_bits() & 0x7F_FFFF).cast_signed() - 0x40_0000
}

/// The sum, in order.
#[inline(always)]
pub fn sum(terms: &[f32]) -> f32 {
    terms.iter().fold(0.0, |sum, term| sum + term)
}

/// The mean of the squares.
pub fn mean_square(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |sum, value| sum + value * value) / values.len() as f32
}

/// The weights of the errors of `values`: large values matter more, and so do columns of large
/// `importance`.
#[inline(always)]
pub fn weights<const N: usize>(values: &[f32; N], importance: &[f32; N], sigma2: f32) -> [f32; N] {
    from_fn(|i| importance[i] * (sigma2 + values[i] * values[i]).sqrt())
}

/// The scale of levels `-half` to `half - 1` that fits `values` best, and the levels from `-half`
/// on; zeros for a group of zeros.
pub fn symmetric<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    half: u8,
) -> (f32, [u8; N]) {
    let largest = largest(values);
    if largest.abs() < TINY {
        return (0.0, [0; N]);
    }
    let max = i32::from(half);
    let fit = |spread: f32| {
        let per_level = -spread / largest;
        let levels: [i32; N] = values.map(|value| nearest(per_level * value).clamp(-max, max - 1));
        let lx: [f32; N] = from_fn(|i| weights[i] * values[i] * levels[i] as f32);
        let l2: [f32; N] = from_fn(|i| weights[i] * levels[i] as f32 * levels[i] as f32);
        (sum(&lx), sum(&l2), levels)
    };
    let (sum_lx, sum_l2, mut levels) = fit(f32::from(half));
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for i in (-9i8..=9).filter(|i| *i != 0) {
        let (sum_lx, sum_l2, tried) = fit(f32::from(half) + 0.1 * f32::from(i));
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            (scale, levels) = (sum_lx / sum_l2, tried);
            best = scale * sum_lx;
        }
    }
    (scale, levels.map(|level| (level + max) as u8))
}

/// As [`symmetric`], with levels -4 to 3 and weights that are the squares of `values`: one scale is
/// tried, then each level is moved to where it fits best.
pub fn symmetric_by_moves(values: &[f32; 16]) -> (f32, [u8; 16]) {
    let largest = largest(values);
    if largest.abs() < TINY {
        return (0.0, [0; 16]);
    }
    let per_level = -4.0 / largest;
    let mut levels = values.map(|value| nearest(per_level * value).clamp(-4, 3));
    let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
    for (value, &level) in values.iter().zip(&levels) {
        let (weight, level) = (value * value, level as f32);
        sum_lx += weight * value * level;
        sum_l2 += weight * level * level;
    }
    for _ in 0..5 {
        let mut moved = false;
        for (value, level) in values.iter().zip(&mut levels) {
            let (weight, old) = (value * value, *level as f32);
            let mut lx = sum_lx - weight * value * old;
            if lx > 0.0 {
                let mut l2 = sum_l2 - weight * old * old;
                let new = nearest(value * l2 / lx).clamp(-4, 3);
                lx += weight * value * new as f32;
                l2 += weight * new as f32 * new as f32;
                if new != *level && l2 > 0.0 && lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                    (*level, sum_lx, sum_l2) = (new, lx, l2);
                    moved = true;
                }
            }
        }
        if !moved {
            break;
        }
    }
    let scale = if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 };
    (scale, levels.map(|level| (level + 4) as u8))
}

/// Which scales are tried: those that spread a group over `max_level + first + step * i` levels,
/// for `i` from 0 to `last`.
#[derive(Clone, Copy)]
pub struct Tries {
    pub max_level: u8,
    pub first: f32,
    pub step: f32,
    pub last: u8,
    /// Whether errors count by their magnitude, and not by its square.
    pub absolute: bool,
}

impl Tries {
    /// The tries where the columns have weights.
    pub const fn weighted(max_level: u8) -> Self {
        Tries { max_level, first: -0.9, step: 0.05, last: 36, absolute: false }
    }
}

/// A scale and a minimum (what is added, at most 0), with the levels that go with them.
pub struct Affine<const N: usize> {
    pub scale: f32,
    pub min: f32,
    pub levels: [u8; N],
}

/// The scale and the minimum that fit `values` best.
pub fn affine<const N: usize>(values: &[f32; N], weights: &[f32; N], tries: &Tries) -> Affine<N> {
    let (mut low, mut high) = (values[0], values[0]);
    for &value in values {
        low = if value < low { value } else { low };
        high = if value > high { value } else { high };
    }
    let sum_w = sum(weights);
    let sum_x = sum(&from_fn::<f32, N, _>(|i| weights[i] * values[i]));
    low = if low > 0.0 { 0.0 } else { low };
    if high <= low {
        return Affine { scale: 0.0, min: low, levels: [0; N] };
    }
    let max = f32::from(tries.max_level);
    let levels = |per_level: f32, min: f32| -> [f32; N] {
        // The minimum is the best one so far, and may be next to `high`: then this is large, or NaN.
        let level = |scaled: f32| nearest(scaled.max(0.0).min(max)) as f32;
        values.map(|value| level(per_level * (value - min)))
    };
    let error = |levels: &[f32; N], scale: f32, min: f32| {
        let terms: [f32; N] = from_fn(|i| {
            let off = scale * levels[i] + min - values[i];
            weights[i] * if tries.absolute { off.abs() } else { off * off }
        });
        sum(&terms)
    };

    let (mut scale, mut min) = (1.0 / (max / (high - low)), low);
    let mut best = levels(max / (high - low), min);
    let mut least = error(&best, scale, min);
    for i in 0..=tries.last {
        let spread = tries.first + tries.step * f32::from(i) + max;
        // From the best minimum so far, as ggml does.
        let tried = levels(spread / (high - min), min);
        let wl: [f32; N] = from_fn(|i| weights[i] * tried[i]);
        let wl2: [f32; N] = from_fn(|i| wl[i] * tried[i]);
        let wlx: [f32; N] = from_fn(|i| wl[i] * values[i]);
        let (sum_l, sum_l2, sum_xl) = (sum(&wl), sum(&wl2), sum(&wlx));
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if this_min > 0.0 {
                (this_scale, this_min) = (sum_xl / sum_l2, 0.0);
            }
            let this_error = error(&tried, this_scale, this_min);
            if this_error < least {
                (least, scale, min, best) = (this_error, this_scale, this_min, tried);
            }
        }
    }
    Affine { scale, min, levels: best.map(|level| level as u8) }
}

/// The scale of levels 0 to `max_level` that fits `values`, none of them below zero, best.
pub fn positive<const N: usize>(
    values: &[f32; N],
    weights: &[f32; N],
    max_level: u8,
) -> (f32, [u8; N]) {
    let largest = values.iter().fold(0.0, |max: f32, &value| if max > value { max } else { value });
    if largest < TINY {
        return (0.0, [0; N]);
    }
    let max = i32::from(max_level);
    let levels = |per_level: f32| values.map(|value| nearest(per_level * value).min(max));
    let error = |per_level: f32| {
        let (scale, levels) = (1.0 / per_level, levels(per_level));
        let terms: [f32; N] = from_fn(|i| {
            let off = values[i] - scale * levels[i] as f32;
            weights[i] * off * off
        });
        sum(&terms)
    };
    let mut per_level = max as f32 / largest;
    let mut least = error(per_level);
    for i in (-4i8..=4).filter(|i| *i != 0) {
        let tried = (0.1 * f32::from(i) + max as f32) / largest;
        let this_error = error(tried);
        if this_error < least {
            (least, per_level) = (this_error, tried);
        }
    }

    let mut levels = levels(per_level);
    let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
    for i in 0..N {
        let level = levels[i] as f32;
        sum_lx += weights[i] * values[i] * level;
        sum_l2 += weights[i] * level * level;
    }
    for _ in 0..5 {
        let mut moved = false;
        for i in 0..N {
            let (value, weight, old) = (values[i], weights[i], levels[i] as f32);
            let mut lx = sum_lx - weight * value * old;
            let mut l2 = sum_l2 - weight * old * old;
            if lx > 0.0 && l2 > 0.0 {
                let new = nearest(value * l2 / lx).min(max);
                lx += weight * value * new as f32;
                l2 += weight * new as f32 * new as f32;
                if new != levels[i] && lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                    (levels[i], sum_lx, sum_l2) = (new, lx, l2);
                    moved = true;
                }
            }
        }
        if !moved {
            break;
        }
    }
    let scale = if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 };
    (scale, levels.map(|level| level as u8))
}
