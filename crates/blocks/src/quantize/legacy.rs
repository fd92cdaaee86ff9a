//! The formats of 32 elements, as `super::super::legacy` reads them.

use super::fit::{Affine, Tries};
use super::{Overflow, fit, inverse, largest, put_half};

/// Levels -8 to 7 of a scale that makes the largest value -8.
pub fn q4_0(values: &[f32; 32], out: &mut [u8; 18]) -> Result<(), Overflow> {
    let scale = largest(values) / -8.0;
    let levels = levels(values, 0.0, scale, 8.5, 15);
    put_half(out, scale)?;
    put_nibbles(&mut out[2..], &levels);
    Ok(())
}

/// Levels 0 to 15 from the minimum to the maximum.
pub fn q4_1(values: &[f32; 32], out: &mut [u8; 20]) -> Result<(), Overflow> {
    let (min, max) = range(values);
    let scale = (max - min) / 15.0;
    let levels = levels(values, min, scale, 0.5, 15);
    put_half(out, scale)?;
    put_half(&mut out[2..], min)?;
    put_nibbles(&mut out[4..], &levels);
    Ok(())
}

/// Levels -16 to 15 of a scale that makes the largest value -16.
pub fn q5_0(values: &[f32; 32], out: &mut [u8; 22]) -> Result<(), Overflow> {
    let scale = largest(values) / -16.0;
    let levels = levels(values, 0.0, scale, 16.5, 31);
    put_half(out, scale)?;
    out[2..6].copy_from_slice(&fifth_bits(&levels));
    put_nibbles(&mut out[6..], &levels);
    Ok(())
}

/// Levels 0 to 31 from the minimum to the maximum.
pub fn q5_1(values: &[f32; 32], out: &mut [u8; 24]) -> Result<(), Overflow> {
    let (min, max) = range(values);
    let scale = (max - min) / 31.0;
    let levels = levels(values, min, scale, 0.5, 31);
    put_half(out, scale)?;
    put_half(&mut out[2..], min)?;
    out[4..8].copy_from_slice(&fifth_bits(&levels));
    put_nibbles(&mut out[8..], &levels);
    Ok(())
}

/// Levels -127 to 127 of a scale that makes the largest magnitude 127.
pub fn q8_0(values: &[f32; 32], out: &mut [u8; 34]) -> Result<(), Overflow> {
    let scale = largest(values).abs() / 127.0;
    put_half(out, scale)?;
    let per_level = inverse(scale);
    for (out, value) in out[2..].iter_mut().zip(values) {
        *out = ((value * per_level).round() as i8).cast_unsigned();
    }
    Ok(())
}

/// Q4_0 with the weights of its columns.
pub fn weighted_q4_0(
    values: &[f32; 32],
    weights: &[f32; 32],
    out: &mut [u8; 18],
) -> Result<(), Overflow> {
    let (scale, levels) = fit::symmetric(values, weights, 8);
    put_half(out, scale)?;
    put_nibbles(&mut out[2..], &levels);
    Ok(())
}

/// Q4_1 with the weights of its columns.
pub fn weighted_q4_1(
    values: &[f32; 32],
    weights: &[f32; 32],
    out: &mut [u8; 20],
) -> Result<(), Overflow> {
    let Affine { scale, min, levels } = fit::affine(values, weights, &Tries::weighted(15));
    put_half(out, scale)?;
    put_half(&mut out[2..], min)?;
    put_nibbles(&mut out[4..], &levels);
    Ok(())
}

/// Q5_0 with the weights of its columns.
pub fn weighted_q5_0(
    values: &[f32; 32],
    weights: &[f32; 32],
    out: &mut [u8; 22],
) -> Result<(), Overflow> {
    let (scale, levels) = fit::symmetric(values, weights, 16);
    put_half(out, scale)?;
    out[2..6].copy_from_slice(&fifth_bits(&levels));
    put_nibbles(&mut out[6..], &levels);
    Ok(())
}

/// Q5_1 with the weights of its columns.
pub fn weighted_q5_1(
    values: &[f32; 32],
    weights: &[f32; 32],
    out: &mut [u8; 24],
) -> Result<(), Overflow> {
    let Affine { scale, min, levels } = fit::affine(values, weights, &Tries::weighted(31));
    put_half(out, scale)?;
    put_half(&mut out[2..], min)?;
    out[4..8].copy_from_slice(&fifth_bits(&levels));
    put_nibbles(&mut out[8..], &levels);
    Ok(())
}

/// Minimum and maximum; of 0 and -0, which `f32::min` does not tell apart, the first.
fn range(values: &[f32; 32]) -> (f32, f32) {
    values.iter().fold((f32::MAX, f32::MIN), |(min, max), &value| {
        (if value < min { value } else { min }, if value > max { value } else { max })
    })
}

/// `(value - min) / scale + offset`, cut to a whole number of at most `max`.
fn levels(values: &[f32; 32], min: f32, scale: f32, offset: f32, max: u8) -> [u8; 32] {
    let per_level = inverse(scale);
    values.map(|value| (((value - min) * per_level + offset) as u8).min(max))
}

/// Level `i` below level `i + 16`.
pub fn put_nibbles(out: &mut [u8], levels: &[u8; 32]) {
    let (low, high) = levels.split_at(16);
    for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
        *out = low & 15 | high << 4;
    }
}

fn fifth_bits(levels: &[u8; 32]) -> [u8; 4] {
    let bit = |bits, (i, level): (usize, &u8)| bits | u32::from(level >> 4) << i;
    levels.iter().enumerate().fold(0, bit).to_le_bytes()
}
