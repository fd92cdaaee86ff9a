//! The formats of 256 elements in groups, as `super::super::k` reads them.
//!
//! Each quantises a block, with the importance of its columns if there is one. Where a group's scale
//! has become zero, its levels are those of the scale before it was rounded, as ggml leaves them.

use std::array::from_fn;

use super::fit::{Affine, TINY, Tries};
use super::{Overflow, check, fit, largest, put_half};

/// The values of a superblock.
type Values = [f32; 256];

/// Sixteen groups with scale and minimum, levels 0 to 3.
pub fn q2_k(
    values: &Values,
    importance: Option<&Values>,
    out: &mut [u8; 84],
) -> Result<(), Overflow> {
    const FORMAT: WithMinimum = WithMinimum {
        tries: Tries { max_level: 3, first: -0.5, step: 0.1, last: 15, absolute: true },
        adds_rms: false,
        max_scale: 15,
        variance: 1.0,
    };
    let (scales, rest) = out.split_at_mut(16);
    let (two_bits, halves) = rest.split_at_mut(64);
    let block = FORMAT.quantize::<16, 16>(values, importance, halves)?;
    for (group, out) in scales.iter_mut().enumerate() {
        *out = block.scales[group] | block.mins[group] << 4;
    }
    put_two_bits(two_bits, &block.levels);
    Ok(())
}

/// Sixteen groups with a signed scale, levels -4 to 3.
pub fn q3_k(
    values: &Values,
    importance: Option<&Values>,
    out: &mut [u8; 110],
) -> Result<(), Overflow> {
    let groups = values.as_chunks::<16>().0;
    let (mut scales, mut sums) = ([0.0; 16], [0.0; 16]);
    let mut levels = [0; 256];
    let sigma2 = 2.0 * fit::mean_square(values);
    check(&[sigma2])?;
    for (group, levels) in levels.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        (scales[group], *levels) = match importance {
            None => fit::symmetric_by_moves(&groups[group]),
            Some(importance) => {
                let importance = &importance.as_chunks::<16>().0[group];
                let weights = fit::weights(&groups[group], importance, sigma2);
                sums[group] = fit::sum(&weights);
                fit::symmetric(&groups[group], &weights, 4)
            }
        };
    }
    check(&scales)?;
    let (step, six_bits) = match importance {
        Some(_) => fit::symmetric(&scales, &sums, 32),
        None => match -32.0 / largest(&scales) {
            per_step if per_step.is_finite() => {
                let six_bits = |scale| (fit::nearest(per_step * scale).clamp(-32, 31) + 32) as u8;
                (1.0 / per_step, scales.map(six_bits))
            }
            _ => (0.0, [0; 16]),
        },
    };
    let step = put_half(&mut out[108..], step)?;
    for (scale, (group, levels)) in
        six_bits.iter().zip(groups.iter().zip(levels.as_chunks_mut::<16>().0))
    {
        let scale = step * (f32::from(*scale) - 32.0);
        if scale != 0.0 {
            *levels = group.map(|value| (fit::nearest(value / scale).clamp(-4, 3) + 4) as u8);
        }
    }

    let (high_bits, rest) = out.split_at_mut(32);
    high_bits.fill(0);
    for (group, levels) in levels.chunks(32).enumerate() {
        for (out, level) in high_bits.iter_mut().zip(levels) {
            *out |= level >> 2 << group;
        }
    }
    let (two_bits, rest) = rest.split_at_mut(64);
    put_two_bits(two_bits, &levels.map(|level| level & 3));
    for i in 0..8 {
        rest[i] = six_bits[i] & 15 | six_bits[i + 8] << 4;
    }
    for i in 0..4 {
        let high = |group: usize| six_bits[group] >> 4;
        rest[8 + i] = high(i) | high(i + 4) << 2 | high(i + 8) << 4 | high(i + 12) << 6;
    }
    Ok(())
}

/// Eight groups with scale and minimum, levels 0 to 15.
pub fn q4_k(
    values: &Values,
    importance: Option<&Values>,
    out: &mut [u8; 144],
) -> Result<(), Overflow> {
    const FORMAT: WithMinimum = WithMinimum {
        tries: Tries { max_level: 15, first: -1.0, step: 0.1, last: 20, absolute: false },
        adds_rms: true,
        max_scale: 63,
        variance: 2.0,
    };
    let block = FORMAT.quantize::<8, 32>(values, importance, out)?;
    put_six_bits(&mut out[4..16], &block.scales, &block.mins);
    put_paired_nibbles(&mut out[16..], &block.levels);
    Ok(())
}

/// Eight groups with scale and minimum, levels 0 to 31.
pub fn q5_k(
    values: &Values,
    importance: Option<&Values>,
    out: &mut [u8; 176],
) -> Result<(), Overflow> {
    const FORMAT: WithMinimum = WithMinimum {
        tries: Tries { max_level: 31, first: -0.5, step: 0.1, last: 15, absolute: false },
        adds_rms: true,
        max_scale: 63,
        variance: 2.0,
    };
    let block = FORMAT.quantize::<8, 32>(values, importance, out)?;
    put_six_bits(&mut out[4..16], &block.scales, &block.mins);
    let (high_bits, nibbles) = out[16..].split_at_mut(32);
    high_bits.fill(0);
    for (group, levels) in block.levels.chunks(32).enumerate() {
        for (out, level) in high_bits.iter_mut().zip(levels) {
            *out |= level >> 4 << group;
        }
    }
    put_paired_nibbles(nibbles, &block.levels);
    Ok(())
}

/// Sixteen groups with a signed scale, levels -32 to 31.
pub fn q6_k(
    values: &Values,
    importance: Option<&Values>,
    out: &mut [u8; 210],
) -> Result<(), Overflow> {
    out.fill(0);
    let groups = values.as_chunks::<16>().0;
    let (mut scales, mut levels) = ([0.0; 16], [0; 256]);
    for (group, levels) in levels.as_chunks_mut::<16>().0.iter_mut().enumerate() {
        let weights = match importance {
            Some(importance) => importance.as_chunks().0[group],
            None => groups[group].map(|value| value * value),
        };
        (scales[group], *levels) = fit::symmetric(&groups[group], &weights, 32);
    }
    check(&scales)?;
    let largest = largest(&scales);
    if largest.abs() < TINY {
        return Ok(());
    }
    let per_step = -128.0 / largest;
    let step = put_half(&mut out[208..], 1.0 / per_step)?;
    for (index, (scale, group)) in scales.iter().zip(groups).enumerate() {
        let scale = fit::nearest(per_step * scale).min(127) as i8;
        out[192 + index] = scale.cast_unsigned();
        let scale = step * f32::from(scale);
        let levels = &mut levels.as_chunks_mut::<16>().0[index];
        if scale != 0.0 {
            *levels = group.map(|value| (fit::nearest(value / scale).clamp(-32, 31) + 32) as u8);
        }
        // Halves of 128 elements: nibbles of 64 bytes, lower nibbles first; two more bits of 32
        // bytes, which four pairs of groups share.
        let (half, in_half) = (index / 8, index % 8);
        for (i, level) in levels.iter().enumerate() {
            out[half * 64 + in_half % 4 * 16 + i] |= (level & 15) << (4 * (in_half / 4));
            out[128 + half * 32 + in_half % 2 * 16 + i] |= (level >> 4) << (2 * (in_half / 2));
        }
    }
    Ok(())
}

/// A format whose groups have a scale and a minimum.
struct WithMinimum {
    /// The tries without weights of the columns.
    tries: Tries,
    /// Whether the weight of a value has the group's root mean square besides its magnitude.
    adds_rms: bool,
    /// The largest level of scales and minima.
    max_scale: u8,
    /// The mean squares of the block that are added to a value's square where columns have weights.
    variance: f32,
}

/// Scales and minima in steps of the block's own two, and levels.
struct Block<const GROUPS: usize> {
    scales: [u8; GROUPS],
    mins: [u8; GROUPS],
    levels: [u8; 256],
}

impl WithMinimum {
    /// Quantises, and writes the steps of scales and minima to the first four bytes of `halves`.
    fn quantize<const GROUPS: usize, const N: usize>(
        &self,
        values: &Values,
        importance: Option<&Values>,
        halves: &mut [u8],
    ) -> Result<Block<GROUPS>, Overflow> {
        let groups = values.as_chunks::<N>().0;
        let (mut scales, mut mins, mut sums) = ([0.0; GROUPS], [0.0; GROUPS], [0.0; GROUPS]);
        let mut levels = [0; 256];
        let sigma2 = self.variance * fit::mean_square(values);
        check(&[sigma2])?;
        for (index, levels) in levels.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            let group = &groups[index];
            let (weights, tries) = match importance {
                None => (self.plain_weights(group), self.tries),
                Some(importance) => (
                    fit::weights(group, &importance.as_chunks().0[index], sigma2),
                    Tries::weighted(self.tries.max_level),
                ),
            };
            let fitted: Affine<N> = fit::affine(group, &weights, &tries);
            sums[index] = fit::sum(&weights);
            (scales[index], mins[index], *levels) = (fitted.scale, -fitted.min, fitted.levels);
        }
        check(&scales)?;
        check(&mins)?;
        let steps = |values: &[f32; GROUPS]| match importance {
            Some(_) => fit::positive(values, &sums, self.max_scale),
            None => self.plain_steps(values),
        };
        let ((d, scales), (dmin, mins)) = (steps(&scales), steps(&mins));
        let within = |level: u8| level.min(self.max_scale);
        let (scales, mins) = (scales.map(within), mins.map(within));
        let d = put_half(halves, d)?;
        let dmin = put_half(&mut halves[2..], dmin)?;
        let max_level = i32::from(self.tries.max_level);
        for (index, levels) in levels.as_chunks_mut::<N>().0.iter_mut().enumerate() {
            let (scale, min) = (d * f32::from(scales[index]), dmin * f32::from(mins[index]));
            if scale != 0.0 {
                let level = |value| fit::nearest((value + min) / scale).clamp(0, max_level) as u8;
                *levels = groups[index].map(level);
            }
        }
        Ok(Block { scales, mins, levels })
    }

    fn plain_weights<const N: usize>(&self, group: &[f32; N]) -> [f32; N] {
        let rms = if self.adds_rms { fit::mean_square(group).sqrt() } else { 0.0 };
        group.map(|value| rms + value.abs())
    }

    /// A step that makes the largest value the largest level, and the levels.
    fn plain_steps<const GROUPS: usize>(&self, values: &[f32; GROUPS]) -> (f32, [u8; GROUPS]) {
        let max_scale = f32::from(self.max_scale);
        // `f32::max` may make -0 of 0 and -0.
        let max = values.iter().fold(0.0, |max: f32, &x| if x > max { x } else { max });
        let per_step = if max > 0.0 { max_scale / max } else { 0.0 };
        (max / max_scale, from_fn(|i| fit::nearest(per_step * values[i]) as u8))
    }
}

/// Six bits of eight scales and eight minima.
fn put_six_bits(out: &mut [u8], scales: &[u8; 8], mins: &[u8; 8]) {
    for group in 0..4 {
        out[group] = scales[group] | scales[group + 4] >> 4 << 6;
        out[group + 4] = mins[group] | mins[group + 4] >> 4 << 6;
        out[group + 8] = scales[group + 4] & 15 | mins[group + 4] << 4;
    }
}

/// Groups of 32 in pairs: the first below the second.
fn put_paired_nibbles(out: &mut [u8], levels: &[u8; 256]) {
    for (out, pair) in out.chunks_mut(32).zip(levels.chunks(64)) {
        let (low, high) = pair.split_at(32);
        for ((out, low), high) in out.iter_mut().zip(low).zip(high) {
            *out = low & 15 | high << 4;
        }
    }
}

/// Groups of 32 in fours: the first lowest.
fn put_two_bits(out: &mut [u8], levels: &[u8; 256]) {
    for (out, four) in out.chunks_mut(32).zip(levels.chunks(128)) {
        for (i, out) in out.iter_mut().enumerate() {
            *out = four[i] | four[i + 32] << 2 | four[i + 64] << 4 | four[i + 96] << 6;
        }
    }
}
