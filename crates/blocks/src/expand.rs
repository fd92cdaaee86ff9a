//! Formats that no GPU kernel multiplies, to blocks of more bytes that one does.
//!
//! Q6_K holds scales and levels of IQ1, IQ3 and the ternary formats as they are, and Q8_0 those of
//! IQ4_NL: exactly, unless `d` is subnormal in f16. Levels of IQ2 have no room in six bits; Q8_0
//! has a scale for 32 elements, rounded to f16, in place of two.

use super::iq::{self, GridBlocks, ScaledLevels};
use super::{field, four_bit, half_to_f32};
use gpu_types::Dtype;
use half::f16;
use std::sync::LazyLock;

/// Converts whole blocks. An error is the largest number that the new format has no scale for.
pub type Expander = fn(&[u8], &mut [u8]) -> Result<(), f32>;

/// The conversion from `from` to `to`, if `to` is what it is [expanded](Dtype::expanded) to.
pub fn expander(from: Dtype, to: Dtype) -> Option<Expander> {
    (from.expanded() == Some(to)).then_some(())?;
    Some(match from {
        Dtype::IQ4_NL => iq4_nl_to_q8_0,
        Dtype::IQ2_XXS => to_q8_0::<iq::IQ2XXS, _>,
        Dtype::IQ2_XS => to_q8_0::<iq::IQ2XS, _>,
        Dtype::IQ2_S => to_q8_0::<iq::IQ2S, _>,
        Dtype::IQ3_XXS => to_q6_k::<iq::IQ3XXS, _>,
        Dtype::IQ3_S => to_q6_k::<iq::IQ3S, _>,
        Dtype::IQ1_S => to_q6_k::<iq::IQ1S, _>,
        Dtype::IQ1_M => to_q6_k::<iq::IQ1M, _>,
        Dtype::TQ1_0 => to_q6_k::<iq::TQ1_0, _>,
        Dtype::TQ2_0 => to_q6_k::<iq::TQ2_0, _>,
        _ => return None,
    })
}

fn iq4_nl_to_q8_0(stored: &[u8], out: &mut [u8]) -> Result<(), f32> {
    for (block, out) in stored.as_chunks::<18>().0.iter().zip(out.as_chunks_mut::<34>().0) {
        out[..2].copy_from_slice(&block[..2]);
        for (i, byte) in field::<16>(block, 2).iter().enumerate() {
            out[2 + i] = four_bit::IQ4_LEVELS[usize::from(byte & 15)].cast_unsigned();
            out[18 + i] = four_bit::IQ4_LEVELS[usize::from(byte >> 4)].cast_unsigned();
        }
    }
    Ok(())
}

/// Expands formats whose levels are from -32 to 31.
fn to_q6_k<F: GridBlocks<BYTES>, const BYTES: usize>(
    stored: &[u8],
    out: &mut [u8],
) -> Result<(), f32> {
    for (block, out) in stored.as_chunks().0.iter().zip(out.as_chunks_mut::<210>().0) {
        let ScaledLevels { d, scales, levels } = F::read(block);
        out.fill(0);
        for (i, level) in levels.into_iter().enumerate() {
            let q = (level + 32).cast_unsigned();
            let (half, in_half) = (i / 128, i % 128);
            out[half * 64 + in_half % 64] |= (q & 15) << (in_half / 64 * 4);
            out[128 + half * 32 + in_half % 32] |= (q >> 4) << (in_half / 32 * 2);
        }
        out[192..208].copy_from_slice(&scales);
        out[208..].copy_from_slice(&f16::from_f32(half_to_f32(d) * F::UNIT).to_le_bytes());
    }
    Ok(())
}

/// The largest level of IQ2.
const MAX_LEVEL: i32 = 43;

/// What [`MAX_LEVEL`] of the larger one of two groups' scales becomes, for scales `2 * i + 1` and
/// `2 * j + 1`: that which loses least of IQ2's levels, nothing where both are the same.
static LARGEST_Q: LazyLock<[[u8; 16]; 16]> = LazyLock::new(|| {
    let largest_q = |scales: [usize; 2]| {
        let largest = (2 * scales[0].max(scales[1]) + 1) as f64 * f64::from(MAX_LEVEL);
        let values = scales.map(|scale| [8.0, 25.0, 43.0].map(|x| (2 * scale + 1) as f64 * x));
        let error = |q: u8| -> f64 {
            let step = largest / f64::from(q);
            let errors = values.as_flattened().iter().map(|x| x - (x / step).round() * step);
            errors.map(|error| error * error).sum()
        };
        (43..=127).min_by(|&p, &q| error(p).total_cmp(&error(q))).expect("there are some")
    };
    std::array::from_fn(|i| std::array::from_fn(|j| largest_q([i, j])))
});

/// Expands IQ2, whose scales are odd.
fn to_q8_0<F: GridBlocks<BYTES>, const BYTES: usize>(
    stored: &[u8],
    out: &mut [u8],
) -> Result<(), f32> {
    let groups = out.as_chunks_mut::<34>().0.chunks_exact_mut(8);
    for (block, groups) in stored.as_chunks().0.iter().zip(groups) {
        let ScaledLevels { d, scales, levels } = F::read(block);
        let pairs = scales.as_chunks::<2>().0.iter().zip(levels.as_chunks::<32>().0);
        for ((scales, levels), out) in pairs.zip(groups) {
            let [first, second] = scales.map(|scale| usize::from(scale / 2));
            let largest_q = f32::from(LARGEST_Q[first][second]);
            let largest = (MAX_LEVEL * i32::from(scales[0].max(scales[1]))) as f32;
            let unit = half_to_f32(d) * F::UNIT;
            let new_d = f16::from_f32(unit * (largest / largest_q));
            if new_d.is_infinite() {
                return Err(unit * largest);
            }
            out[..2].copy_from_slice(&new_d.to_le_bytes());
            for (i, (out, &level)) in out[2..].iter_mut().zip(levels).enumerate() {
                let value = i32::from(level) * i32::from(scales[i / 16]);
                *out = (value as f32 * (largest_q / largest)).round() as i8 as u8;
            }
        }
    }
    Ok(())
}
