//! Conversions, with a search for the nearest number as oracle.

use conformance_kernels::convert::*;

use crate::inputs::{blocks, random_words, special_f32s, words_of_halves};
use crate::numbers::{BF16, E4M3, E5M2, F16, Format, Rounding};
use crate::{Buffer, Case, Want};

/// The f32 that a NaN in f16 becomes.
const CANONICAL_NAN: u32 = 0x7fff_ffff;

/// `x`, padded with its last number to an even number of blocks.
fn in_blocks(mut x: Vec<f32>) -> (u32, Vec<f32>) {
    let num_blocks = x.len().div_ceil(2 * NUM_THREADS as usize) * 2;
    let last = *x.last().expect("there are inputs");
    x.resize(num_blocks * NUM_THREADS as usize, last);
    (num_blocks as u32, x)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// The second number of a pair with `x`: a different number of the other sign.
fn second(x: &[f32]) -> Vec<f32> {
    x.iter().rev().map(|x| -x).collect()
}

/// The codes of `x`.
fn codes(format: Format, x: &[f32], rounding: Rounding) -> Vec<u16> {
    x.iter().map(|&x| format.round(x.into(), rounding)).collect()
}

/// The codes of `x` and `y`, packed in a word of twice their bits.
fn pairs(format: Format, x: &[f32], y: &[f32], rounding: Rounding) -> Vec<u32> {
    let (x, y) = (codes(format, x, rounding), codes(format, y, rounding));
    let pairs = x.into_iter().zip(y);
    pairs.map(|(x, y)| u32::from(x) | u32::from(y) << format.bits()).collect()
}

/// All numbers where rounding changes; special numbers; random numbers.
fn inputs_of_16_bits() -> (u32, Vec<f32>) {
    let mut x = F16.turns(F16.finite().step_by(2));
    x.extend(BF16.turns(BF16.finite().step_by(2)));
    x.extend(special_f32s().into_iter().map(f32::from_bits));
    x.extend(random_words(40).take(4096).map(f32::from_bits));
    // Every second number has the other sign.
    x.iter_mut().step_by(2).for_each(|x| *x = -*x);
    in_blocks(x)
}

/// f32 to f16 and bf16.
pub fn to_16_bits() -> Case {
    let (num_blocks, x) = inputs_of_16_bits();
    let y = second(&x);
    let single =
        |format, rounding| Buffer::Out(Want::Words(words_of_halves(&codes(format, &x, rounding))));
    let pair = |format| Buffer::Out(Want::Words(pairs(format, &x, &y, Rounding::Nearest)));
    let buffers = vec![
        Buffer::words(&bits(&x)),
        Buffer::words(&bits(&y)),
        single(F16, Rounding::Nearest),
        single(F16, Rounding::Zero),
        single(BF16, Rounding::Nearest),
        pair(F16),
        pair(BF16),
    ];
    Case::new("convert_f32_to_16_bits", buffers, move |p| {
        let (x, y, geometry) = (p.at(0), p.at(1), blocks(num_blocks, NUM_THREADS));
        convert_f32_to_16_bits::Args {
            x,
            y,
            f16_rn: p.at(2),
            f16_rz: p.at(3),
            bf16_rn: p.at(4),
            f16x2: p.at(5),
            bf16x2: p.at(6),
        }
        .launch(geometry)
    })
}

/// f32 to integers.
pub fn to_integers() -> Case {
    let mut x: Vec<f32> = special_f32s().into_iter().map(f32::from_bits).collect();
    for power in [0, 1, 5, 22, 23, 24, 30, 31, 32, 33] {
        for quarters in -9..10 {
            let near = 2f64.powi(power) + f64::from(quarters) / 4.0;
            x.extend([
                near as f32,
                -near as f32,
                (near as f32).next_up(),
                (near as f32).next_down(),
            ]);
        }
    }
    x.extend(random_words(41).take(4096).map(f32::from_bits));
    let (num_blocks, x) = in_blocks(x);
    let wanted = |round: fn(f64) -> f64, low: f64, high: f64| {
        let values = x.iter().map(|&x| {
            let x = f64::from(x);
            if x.is_nan() { 0 } else { round(x).clamp(low, high) as i64 as u32 }
        });
        Buffer::Out(Want::Words(values.collect()))
    };
    let (i32_min, i32_max) = (-(2f64.powi(31)), 2f64.powi(31) - 1.0);
    let u32_max = 2f64.powi(32) - 1.0;
    let buffers = vec![
        Buffer::words(&bits(&x)),
        wanted(nearest_integer, i32_min, i32_max),
        wanted(f64::trunc, i32_min, i32_max),
        wanted(nearest_integer, 0.0, u32_max),
        wanted(f64::trunc, 0.0, u32_max),
    ];
    Case::new("convert_f32_to_integers", buffers, move |p| {
        let geometry = blocks(num_blocks, NUM_THREADS);
        convert_f32_to_integers::Args {
            x: p.at(0),
            i32_rn: p.at(1),
            i32_rz: p.at(2),
            u32_rn: p.at(3),
            u32_rz: p.at(4),
        }
        .launch(geometry)
    })
}

/// Ties round to even.
fn nearest_integer(x: f64) -> f64 {
    let (low, part) = (x.floor(), x - x.floor());
    let goes_up = part > 0.5 || part == 0.5 && low % 2.0 != 0.0;
    if goes_up { low + 1.0 } else { low }
}

/// Every f16.
pub fn f16_to_f32() -> Case {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let words = words_of_halves(&halves);
    let wanted = halves.iter().map(|&half| {
        let value = F16.value(half);
        if value.is_nan() { CANONICAL_NAN } else { (value as f32).to_bits() }
    });
    let buffers = vec![Buffer::words(&words), Buffer::Out(Want::Words(wanted.collect()))];
    let num_blocks = words.len() as u32 / NUM_THREADS;
    Case::new("convert_f16_to_f32", buffers, move |p| {
        convert_f16_to_f32::Args { x: p.at(0), out: p.at(1) }
            .launch(blocks(num_blocks, NUM_THREADS))
    })
}

/// f32 to e4m3 and e5m2.
pub fn to_fp8() -> Case {
    let mut x = E4M3.turns(E4M3.finite().step_by(2));
    x.extend(E5M2.turns(E5M2.finite().step_by(2)));
    x.extend(special_f32s().into_iter().map(f32::from_bits));
    x.extend(random_words(42).take(1024).map(f32::from_bits));
    x.iter_mut().step_by(2).for_each(|x| *x = -*x);
    let (num_blocks, x) = in_blocks(x);
    let y = second(&x);
    let pairs = |format, x: &[f32], y: &[f32]| pairs(format, x, y, Rounding::NearestFinite);
    let halves = |pairs: &[u32]| {
        let halves: Vec<u16> = pairs.iter().map(|&pair| pair as u16).collect();
        Buffer::Out(Want::Words(words_of_halves(&halves)))
    };
    let negative = |x: &[f32]| x.iter().map(|x| -x).collect::<Vec<f32>>();
    let (e4m3, e5m2) = (pairs(E4M3, &x, &y), pairs(E5M2, &x, &y));
    let upper = pairs(E4M3, &negative(&x), &negative(&y));
    let fours = e4m3.iter().zip(upper).map(|(pair, upper)| pair | upper << 16).collect();
    let buffers = vec![
        Buffer::words(&bits(&x)),
        Buffer::words(&bits(&y)),
        halves(&e4m3),
        halves(&e5m2),
        Buffer::Out(Want::Words(fours)),
    ];
    Case::new("convert_f32_to_fp8", buffers, move |p| {
        let geometry = blocks(num_blocks, NUM_THREADS);
        let (x, y, e4m3x2, e5m2x2) = (p.at(0), p.at(1), p.at(2), p.at(3));
        convert_f32_to_fp8::Args { x, y, e4m3x2, e5m2x2, e4m3x4: p.at(4) }.launch(geometry)
    })
}

/// Every e4m3 and e5m2, in both halves of a pair.
pub fn fp8_to_f16() -> Case {
    let codes: Vec<u16> = (0..256).map(|code| code | (code ^ 0x5a) << 8).collect();
    let halves = |format: Format| {
        let bytes = codes.iter().flat_map(|code| code.to_le_bytes());
        let halves: Vec<u16> =
            bytes.map(|byte| F16.round(format.value(byte.into()), Rounding::Nearest)).collect();
        Buffer::Out(Want::Words(words_of_halves(&halves)))
    };
    let buffers = vec![Buffer::words(&words_of_halves(&codes)), halves(E4M3), halves(E5M2)];
    Case::new("convert_fp8_to_f16", buffers, |p| {
        convert_fp8_to_f16::Args { x: p.at(0), e4m3: p.at(1), e5m2: p.at(2) }
            .launch(blocks(1, NUM_THREADS))
    })
}
