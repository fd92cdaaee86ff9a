//! The formats of 256 elements, as `super::super::k` reads them.
//!
//! A group's scale is the best of a few tries: the levels that a scale makes are kept, and a least
//! squares fit of the values to these levels gives the scale that goes with them.

use super::{Overflow, put_half};

/// Groups whose values are all smaller are zeros.
const TINY: f32 = 1e-15;

/// Scales and minima are of six bits.
const MAX_SIX_BITS: f32 = 63.0;

/// Eight groups with scale and minimum, levels 0 to 15.
pub fn q4_k(values: &[f32; 256], out: &mut [u8; 144]) -> Result<(), Overflow> {
    let tries = Tries { max_level: 15.0, first: -1.0, last: 20 };
    let levels = put_scales_and_levels(values, &tries, out)?;
    put_paired_nibbles(&mut out[16..], &levels);
    Ok(())
}

/// Eight groups with scale and minimum, levels 0 to 31.
pub fn q5_k(values: &[f32; 256], out: &mut [u8; 176]) -> Result<(), Overflow> {
    let tries = Tries { max_level: 31.0, first: -0.5, last: 15 };
    let levels = put_scales_and_levels(values, &tries, out)?;
    let (high_bits, nibbles) = out[16..].split_at_mut(32);
    high_bits.fill(0);
    for (group, levels) in levels.chunks(32).enumerate() {
        for (out, level) in high_bits.iter_mut().zip(levels) {
            *out |= level >> 4 << group;
        }
    }
    put_paired_nibbles(nibbles, &levels);
    Ok(())
}

/// Sixteen groups with a signed scale, levels -32 to 31.
pub fn q6_k(values: &[f32; 256], out: &mut [u8; 210]) -> Result<(), Overflow> {
    out.fill(0);
    let groups = values.as_chunks::<16>().0;
    let mut scales = [0.0; 16];
    for (scale, group) in scales.iter_mut().zip(groups) {
        *scale = symmetric_scale(group);
    }
    // The squares of large values are beyond f32.
    if scales.iter().any(|scale| !scale.is_finite()) {
        return Err(Overflow);
    }
    let largest = super::largest(&scales);
    if largest.abs() < TINY {
        return Ok(());
    }
    let per_step = -128.0 / largest;
    let step = put_half(&mut out[208..], 1.0 / per_step)?;
    for (index, (scale, group)) in scales.iter().zip(groups).enumerate() {
        let scale = (per_step * scale).round_ties_even().min(127.0) as i8;
        out[192 + index] = scale.cast_unsigned();
        let scale = step * f32::from(scale);
        if scale == 0.0 {
            continue;
        }
        // Halves of 128 elements: nibbles of 64 bytes, lower nibbles first; two more bits of 32
        // bytes, which four pairs of groups share.
        let (half, in_half) = (index / 8, index % 8);
        for (i, value) in group.iter().enumerate() {
            let level = (value / scale).round_ties_even().clamp(-32.0, 31.0);
            let level = (level + 32.0) as u8;
            out[half * 64 + in_half % 4 * 16 + i] |= (level & 15) << (4 * (in_half / 4));
            out[128 + half * 32 + in_half % 2 * 16 + i] |= (level >> 4) << (2 * (in_half / 2));
        }
    }
    Ok(())
}

/// Which scales are tried: those that spread a group over `max_level + first + i / 10` levels, for
/// `i` from 0 to `last`.
struct Tries {
    max_level: f32,
    first: f32,
    last: u8,
}

/// Writes `d`, `dmin` and the six-bit scales and minima to `out`, and returns the levels.
fn put_scales_and_levels(
    values: &[f32; 256],
    tries: &Tries,
    out: &mut [u8],
) -> Result<[u8; 256], Overflow> {
    let groups = values.as_chunks::<32>().0;
    let (mut scales, mut mins) = ([0.0f32; 8], [0.0f32; 8]);
    for (group, (scale, min)) in groups.iter().zip(scales.iter_mut().zip(&mut mins)) {
        (*scale, *min) = scale_and_min(group, tries);
    }
    // `f32::max` may make -0 of 0 and -0.
    let above_zero = |max: f32, &value: &f32| if value > max { value } else { max };
    let max_scale = scales.iter().fold(0.0, above_zero);
    let max_min = mins.iter().fold(0.0, above_zero);
    let d = put_half(out, max_scale / MAX_SIX_BITS)?;
    let dmin = put_half(&mut out[2..], max_min / MAX_SIX_BITS)?;

    let six_bits = |value: f32, max: f32| {
        let per_step = if max > 0.0 { MAX_SIX_BITS / max } else { 0.0 };
        (per_step * value).round_ties_even().clamp(0.0, MAX_SIX_BITS) as u8
    };
    let scales = scales.map(|scale| six_bits(scale, max_scale));
    let mins = mins.map(|min| six_bits(min, max_min));
    let packed = &mut out[4..16];
    for group in 0..4 {
        packed[group] = scales[group] | scales[group + 4] >> 4 << 6;
        packed[group + 4] = mins[group] | mins[group + 4] >> 4 << 6;
        packed[group + 8] = scales[group + 4] & 15 | mins[group + 4] << 4;
    }

    let mut levels = [0; 256];
    for (group, levels) in levels.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (scale, min) = (d * f32::from(scales[group]), dmin * f32::from(mins[group]));
        if scale == 0.0 {
            continue;
        }
        for (level, value) in levels.iter_mut().zip(&groups[group]) {
            *level = ((value + min) / scale).round_ties_even().clamp(0.0, tries.max_level) as u8;
        }
    }
    Ok(levels)
}

/// Groups in pairs: the first below the second.
fn put_paired_nibbles(out: &mut [u8], levels: &[u8; 256]) {
    for (out, pair) in out.chunks_mut(32).zip(levels.chunks(64)) {
        let (low, high) = pair.split_at(32);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            *out = low & 15 | high << 4;
        }
    }
}

/// The scale and the minimum (what is subtracted) that fit `values` best; large values weigh more.
/// `make_qkx2_quants` of ggml.
fn scale_and_min(values: &[f32; 32], tries: &Tries) -> (f32, f32) {
    let squares: f32 = values.iter().map(|value| value * value).sum();
    let mean = (squares / 32.0).sqrt();
    let weights = values.map(|value| mean + value.abs());
    let (mut low, mut high) = (values[0], values[0]);
    let (mut sum_w, mut sum_x) = (0.0, 0.0);
    for (&value, weight) in values.iter().zip(weights) {
        (low, high) = (low.min(value), high.max(value));
        sum_w += weight;
        sum_x += weight * value;
    }
    low = low.min(0.0);
    if high == low {
        return (0.0, -low);
    }
    let level = |scaled: f32| scaled.round_ties_even().clamp(0.0, tries.max_level);
    let levels = |spread: f32, min: f32| {
        let per_level = spread / (high - min);
        values.map(|value| level(per_level * (value - min)))
    };
    let error = |levels: &[f32; 32], scale: f32, min: f32| {
        let terms = levels.iter().zip(values).zip(&weights);
        terms.fold(0.0, |sum, ((level, value), weight)| {
            let off = scale * level + min - value;
            sum + weight * (off * off)
        })
    };

    let (mut scale, mut min) = (1.0 / (tries.max_level / (high - low)), low);
    let mut least = error(&levels(tries.max_level, min), scale, min);
    for i in 0..=tries.last {
        let spread = tries.first + 0.1 * f32::from(i) + tries.max_level;
        // From the best minimum so far, as ggml does.
        let tried = levels(spread, min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for ((level, value), weight) in tried.iter().zip(values).zip(&weights) {
            sum_l += weight * level;
            sum_l2 += weight * level * level;
            sum_xl += weight * level * value;
        }
        let determinant = sum_w * sum_l2 - sum_l * sum_l;
        if determinant > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
            if this_min > 0.0 {
                (this_scale, this_min) = (sum_xl / sum_l2, 0.0);
            }
            let this_error = error(&tried, this_scale, this_min);
            if this_error < least {
                (least, scale, min) = (this_error, this_scale, this_min);
            }
        }
    }
    (scale, -min)
}

/// The scale of levels -32 to 31 that fits `values` best, weighted by their squares; 0 for a group
/// of zeros. `make_qx_quants` of ggml.
fn symmetric_scale(values: &[f32; 16]) -> f32 {
    let largest = super::largest(values);
    if largest.abs() < TINY {
        return 0.0;
    }
    let fit = |spread: f32| {
        let per_level = -spread / largest;
        values.iter().fold((0.0f32, 0.0f32), |(sum_lx, sum_l2), value| {
            let level = (per_level * value).round_ties_even().clamp(-32.0, 31.0);
            let weight = value * value;
            (sum_lx + weight * value * level, sum_l2 + weight * level * level)
        })
    };
    let (sum_lx, sum_l2) = fit(32.0);
    let mut scale = if sum_l2 == 0.0 { 0.0 } else { sum_lx / sum_l2 };
    let mut best = scale * sum_lx;
    for i in (-9i8..=9).filter(|i| *i != 0) {
        let (sum_lx, sum_l2) = fit(32.0 + 0.1 * f32::from(i));
        if sum_l2 > 0.0 && sum_lx * sum_lx > best * sum_l2 {
            scale = sum_lx / sum_l2;
            best = scale * sum_lx;
        }
    }
    scale
}
