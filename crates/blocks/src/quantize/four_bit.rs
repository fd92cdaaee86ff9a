//! The formats whose nibbles stand for levels that are not evenly spaced, as
//! `super::super::four_bit` reads them.

use std::array::from_fn;

use super::fit::{self, TINY};
use super::{Overflow, check, inverse, largest, legacy::put_nibbles, put_half};
use crate::four_bit::{E2M1_LEVELS, IQ4_LEVELS, e8m0_half};

/// Scales that are tried on either side of the first.
const TRIES: i8 = 7;

/// A scale, levels of [`IQ4_LEVELS`].
pub fn iq4_nl(
    values: &[f32; 32],
    importance: Option<&[f32; 32]>,
    out: &mut [u8; 18],
) -> Result<(), Overflow> {
    let sigma2 = 2.0 * fit::mean_square(values);
    check(&[sigma2])?;
    let scale = scale(values, importance, sigma2);
    put_half(out, scale)?;
    put_nibbles(&mut out[2..], &levels(values, inverse(scale)));
    Ok(())
}

/// Eight groups with a signed scale, levels of [`IQ4_LEVELS`].
pub fn iq4_xs(
    values: &[f32; 256],
    importance: Option<&[f32; 256]>,
    out: &mut [u8; 136],
) -> Result<(), Overflow> {
    out.fill(0);
    let groups = values.as_chunks::<32>().0;
    let sigma2 = 2.0 * fit::mean_square(values);
    check(&[sigma2])?;
    let scales: [f32; 8] = from_fn(|group| {
        let importance = importance.map(|importance| &importance.as_chunks().0[group]);
        scale(&groups[group], importance, sigma2)
    });
    check(&scales)?;
    let step = -largest(&scales) / 32.0;
    put_half(out, step)?;
    let per_step = inverse(step);
    let mut high_bits = 0u16;
    for (group, values) in groups.iter().enumerate() {
        let scale = fit::nearest(per_step * scales[group]).clamp(-32, 31);
        // By the step before it was rounded to f16, as ggml does.
        let levels = levels(values, inverse(step * scale as f32));
        let bits = (scale + 32) as u8;
        out[4 + group / 2] |= (bits & 15) << (4 * (group % 2));
        high_bits |= u16::from(bits >> 4) << (2 * group);
        put_nibbles(&mut out[8 + 16 * group..][..16], &levels);
    }
    out[2..4].copy_from_slice(&high_bits.to_le_bytes());
    Ok(())
}

/// A power of two that makes the largest value one of 4 to 8, levels of E2M1.
pub fn mxfp4(values: &[f32; 32], out: &mut [u8; 17]) -> Result<(), Overflow> {
    let largest = largest(values).abs();
    // In f32, as ggml takes the logarithm: just below a power of two it is rounded up. The smallest
    // exponent, where ggml's wraps around, is 0.
    let log2 = f64::from(largest).log2() as f32;
    out[0] = if largest > 0.0 { (log2.floor() - 2.0 + 127.0) as u8 } else { 0 };
    let scale = e8m0_half(out[0]);
    let mut levels = [0u8; 32];
    let mut least = values.map(f32::abs);
    for (level, of_level) in E2M1_LEVELS.iter().enumerate().skip(1) {
        let of_level = f32::from(*of_level) * scale;
        for ((value, level_of), least) in values.iter().zip(&mut levels).zip(&mut least) {
            let error = (of_level - value).abs();
            let better = error < *least;
            *level_of = if better { level as u8 } else { *level_of };
            *least = if better { error } else { *least };
        }
    }
    put_nibbles(&mut out[1..], &levels);
    Ok(())
}

/// The scale of [`IQ4_LEVELS`] that fits `values` best; 0 for a group of zeros.
fn scale(values: &[f32; 32], importance: Option<&[f32; 32]>, sigma2: f32) -> f32 {
    let largest = largest(values);
    if largest.abs() < TINY {
        return 0.0;
    }
    let weights = match importance {
        Some(importance) => fit::weights(values, importance, sigma2),
        None => values.map(|value| value * value),
    };
    let fit = |per_level: f32| {
        let scaled = values.map(|value| per_level * value);
        let levels = stand_for(&scaled);
        let wl: [f32; 32] = from_fn(|i| weights[i] * levels[i]);
        let lx: [f32; 32] = from_fn(|i| wl[i] * values[i]);
        let l2: [f32; 32] = from_fn(|i| wl[i] * levels[i]);
        (fit::sum(&lx), fit::sum(&l2))
    };
    let lowest = f32::from(IQ4_LEVELS[0]);
    let (sum_lx, sum_l2) = fit(1.0 / (-largest / lowest));
    let mut scale = if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 };
    let mut best = scale * sum_lx;
    for i in -TRIES..=TRIES {
        let (sum_lx, sum_l2) = fit((f32::from(i) + lowest) / largest);
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    scale
}

/// What is half way from level `i` to the next of [`IQ4_LEVELS`].
const MIDPOINTS: [f32; 15] = {
    let mut midpoints = [0.0; 15];
    let mut i = 0;
    while i < 15 {
        midpoints[i] = (IQ4_LEVELS[i] as f32 + IQ4_LEVELS[i + 1] as f32) / 2.0;
        i += 1;
    }
    midpoints
};

/// The nearest of [`IQ4_LEVELS`], as f32.
#[inline(always)]
fn stand_for(scaled: &[f32; 32]) -> [f32; 32] {
    let mut levels = [f32::from(IQ4_LEVELS[0]); 32];
    for (i, midpoint) in MIDPOINTS.iter().enumerate() {
        let next = f32::from(IQ4_LEVELS[i + 1]);
        for (level, scaled) in levels.iter_mut().zip(scaled) {
            *level = if scaled < midpoint { *level } else { next };
        }
    }
    levels
}

/// The indices of the nearest of [`IQ4_LEVELS`].
fn levels(values: &[f32; 32], per_level: f32) -> [u8; 32] {
    let scaled = values.map(|value| per_level * value);
    let mut levels = [0; 32];
    for midpoint in MIDPOINTS {
        for (level, scaled) in levels.iter_mut().zip(&scaled) {
            *level = if *scaled < midpoint { *level } else { *level + 1 };
        }
    }
    levels
}
