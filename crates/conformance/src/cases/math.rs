//! Arithmetic in f32, with exact arithmetic in f64 and on bits as oracle.

use conformance_kernels::math::{
    NUM_THREADS, math_approx_f32, math_bits_u32, math_rounded_f32, math_transcendental_f32,
};

use crate::inputs::{blocks, random_f32s, random_words, special_f32s};
use crate::numbers::{self, tanh};
use crate::{Buffer, Case, Tolerance, Want};
use std::f64::consts::{LN_2, TAU};

/// `max` and `min` of two NaNs.
const CANONICAL_NAN: u32 = 0x7fff_ffff;

/// Operands of the rounded results: all triples of the 28 special values, then triples of random
/// bits, then triples of close numbers, which cancel.
const NUM_TRIPLES: u32 = 112 * NUM_THREADS;

/// Arguments of the approximate results: special values, random bits, and numbers whose `2^x` is in
/// the range of f32 or just outside.
const NUM_ARGUMENTS: u32 = 64 * NUM_THREADS;

/// Results that the ISA defines to be bit-exact.
pub fn rounded() -> Case {
    let triples = triples();
    let column = |at: usize| triples.iter().map(|triple| triple[at]).collect::<Vec<u32>>();
    let wanted = |f: fn(u32, u32) -> u32| {
        Buffer::Out(Want::Words(triples.iter().map(|&[a, b, _]| f(a, b)).collect()))
    };
    let fmas = triples.iter().map(|t| numbers::fma(t.map(|x| f32::from_bits(x).into()))).collect();
    Case::new(
        "math_rounded",
        vec![
            Buffer::words(&column(0)),
            Buffer::words(&column(1)),
            Buffer::words(&column(2)),
            Buffer::Out(Want::F32(fmas, Tolerance::Ulps(0))),
            wanted(max),
            wanted(min),
        ],
        |p| {
            let geometry = blocks(NUM_TRIPLES / NUM_THREADS, NUM_THREADS);
            let (a, b, c) = (p.at(0), p.at(1), p.at(2));
            math_rounded_f32::Args { a, b, c, fma: p.at(3), max: p.at(4), min: p.at(5) }
                .launch(geometry)
        },
    )
}

/// Results with error bounds in the ISA.
pub fn approximate() -> Case {
    let len = NUM_ARGUMENTS as usize;
    let mut x = special_f32s();
    x.extend(random_words(4).take(len / 2));
    x.extend(random_f32s(5, 150.0).take(len - x.len()));
    let wanted = |f: fn(f64) -> f64, tolerance| {
        let values = x.iter().map(|&bits| flush(f(flush(f64::from(f32::from_bits(bits))))));
        Buffer::Out(Want::F32(values.collect(), tolerance))
    };
    Case::new(
        "math_approximate",
        vec![
            Buffer::words(&x),
            wanted(|x| 2f64.powf(x), Tolerance::Ulps(2)),
            wanted(|x| 1.0 / x, Tolerance::Ulps(1)),
            wanted(|x| 1.0 / x.sqrt(), Tolerance::Relative(2f64.powf(-22.9))),
        ],
        |p| {
            let geometry = blocks(NUM_ARGUMENTS / NUM_THREADS, NUM_THREADS);
            math_approx_f32::Args { x: p.at(0), exp2: p.at(1), rcp: p.at(2), rsqrt: p.at(3) }
                .launch(geometry)
        },
    )
}

/// More results with error bounds in the ISA; sine and cosine for `|x| <= 100 pi`.
pub fn transcendental() -> Case {
    let len = NUM_ARGUMENTS as usize;
    let mut x = special_f32s();
    x.extend(random_words(8).take(len / 2));
    x.extend(random_f32s(9, 4.0).take(len - x.len()));
    let mut angles = special_f32s();
    angles.retain(|&bits| !(314.0..f32::INFINITY).contains(&f32::from_bits(bits).abs()));
    angles.extend(random_f32s(10, TAU as f32).take(len / 2));
    angles.extend(random_f32s(11, 314.0).take(len - angles.len()));
    let wanted = |x: &[u32], f: fn(f64) -> f64, bound: fn(f64) -> f64| {
        let x = || x.iter().map(|&bits| f64::from(f32::from_bits(bits)));
        let bounds = x().map(bound).collect();
        Buffer::Out(Want::F32(x().map(f).collect(), Tolerance::Each(bounds)))
    };
    // The ISA's bound is 2^-20.5 for `|x| <= 2 pi`; an H200 has an error of 2^-20.49 in one of
    // these.
    let of_angle = |angle: f64| 2f64.powf(if angle.abs() <= TAU { -20.4 } else { -14.7 });
    let buffers = vec![
        Buffer::words(&x),
        Buffer::words(&angles),
        wanted(&x, |x| flush(x).sqrt(), |x| 2f64.powi(-23) * x.abs().sqrt()),
        wanted(&x, |x| flush(x).ln() / LN_2, log2_bound),
        wanted(&x, tanh, |x| 2f64.powi(-11) * tanh(x).abs()),
        wanted(&angles, |x| flush(x).sin(), of_angle),
        wanted(&angles, |x| flush(x).cos(), of_angle),
    ];
    Case::new("math_transcendental", buffers, |p| {
        let geometry = blocks(NUM_ARGUMENTS / NUM_THREADS, NUM_THREADS);
        let (x, angle, sqrt, log2) = (p.at(0), p.at(1), p.at(2), p.at(3));
        math_transcendental_f32::Args {
            x,
            angle,
            sqrt,
            log2,
            tanh: p.at(4),
            sin: p.at(5),
            cos: p.at(6),
        }
        .launch(geometry)
    })
}

/// An absolute error near 1, a relative error elsewhere.
fn log2_bound(x: f64) -> f64 {
    let is_near = (0.5..=2.0).contains(&x);
    2f64.powi(-22) * if is_near { 1.0 } else { (flush(x).ln() / LN_2).abs() }
}

/// Byte selection with every selector digit, and bitwise functions.
pub fn bits() -> Case {
    let len = 8 * NUM_THREADS as usize;
    let random = |seed| random_words(seed).take(len).collect::<Vec<u32>>();
    let (a, b, c) = (random(12), random(13), random(14));
    let wanted = |f: fn(u32, u32, u32) -> u32| {
        let results = (0..len).map(|i| f(a[i], b[i], c[i]));
        Buffer::Out(Want::Words(results.collect()))
    };
    let buffers = vec![
        Buffer::words(&a),
        Buffer::words(&b),
        Buffer::words(&c),
        wanted(picked_bytes),
        wanted(|a, b, c| (a & b) | (b & c) | (c & a)),
        wanted(|a, b, c| (b & a) | (c & !a)),
    ];
    Case::new("math_bits", buffers, move |p| {
        let geometry = blocks(len as u32 / NUM_THREADS, NUM_THREADS);
        math_bits_u32::Args {
            a: p.at(0),
            b: p.at(1),
            c: p.at(2),
            bytes: p.at(3),
            majority: p.at(4),
            choice: p.at(5),
        }
        .launch(geometry)
    })
}

/// A digit of the selector names one of eight bytes, or its replicated sign.
fn picked_bytes(a: u32, b: u32, selector: u32) -> u32 {
    let mut result = 0;
    for i in 0..4 {
        let digit = selector >> (4 * i) & 15;
        let word = if digit & 4 == 0 { a } else { b };
        let byte = word >> (8 * (digit & 3)) & 0xff;
        let byte = if digit < 8 { byte } else { byte / 128 * 0xff };
        result += byte << (8 * i);
    }
    result
}

fn triples() -> Vec<[u32; 3]> {
    let specials = special_f32s();
    let mut triples = Vec::new();
    for &a in &specials {
        for &b in &specials {
            triples.extend(specials.iter().map(|&c| [a, b, c]));
        }
    }
    let len = NUM_TRIPLES as usize;
    let rest = len - triples.len();
    let mut bits = random_words(6);
    let mut floats = random_f32s(7, 2.0);
    let mut triple = |source: &mut dyn Iterator<Item = u32>| {
        triples.push([(); 3].map(|()| source.next().expect("random words do not end")));
    };
    (0..rest / 2).for_each(|_| triple(&mut bits));
    (rest / 2..rest).for_each(|_| triple(&mut floats));
    triples
}

/// The larger operand, -0 before +0; if one operand is NaN, the other one.
pub(super) fn max(a: u32, b: u32) -> u32 {
    pick(a, b, order(a) >= order(b))
}

/// The smaller operand, by the same rules.
fn min(a: u32, b: u32) -> u32 {
    pick(a, b, order(a) <= order(b))
}

fn pick(a: u32, b: u32, is_a: bool) -> u32 {
    let is_nan = |bits: u32| bits << 1 > 0xff00_0000;
    match (is_nan(a), is_nan(b)) {
        (true, true) => CANONICAL_NAN,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            if is_a {
                a
            } else {
                b
            }
        }
    }
}

/// The rank among all floats, -0 before +0.
fn order(bits: u32) -> i32 {
    let bits = bits as i32;
    if bits < 0 { bits ^ i32::MAX } else { bits }
}

/// `.ftz`: flushes subnormal numbers to zeros of their sign.
fn flush(x: f64) -> f64 {
    let rounded = x as f32;
    if rounded.abs() < f32::MIN_POSITIVE { 0f64.copysign(x) } else { x }
}
