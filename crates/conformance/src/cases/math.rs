//! Arithmetic in f32, against exact arithmetic in f64 and on bits.

use conformance_kernels::math::{NUM_THREADS, math_approx_f32, math_rounded_f32};

use crate::inputs::{blocks, random_f32s, random_words, special_f32s};
use crate::{Buffer, Case, Tolerance, Want};

/// What `max` and `min` give of two NaNs.
const CANONICAL_NAN: u32 = 0x7fff_ffff;

/// Operands of the rounded results: every triple of the 28 special values, then triples of random
/// bits, then of numbers near each other, which cancel.
const NUM_TRIPLES: u32 = 112 * NUM_THREADS;

/// Arguments of the approximate results: special values, then random bits, then numbers whose power
/// of two is in the range of f32 or just outside.
const NUM_ARGUMENTS: u32 = 64 * NUM_THREADS;

/// Results that the ISA fixes to the last bit.
pub fn rounded() -> Case {
    let triples = triples();
    let column = |at: usize| triples.iter().map(|triple| triple[at]).collect::<Vec<u32>>();
    let wanted = |f: fn(u32, u32) -> u32| {
        Buffer::Out(Want::Words(triples.iter().map(|&[a, b, _]| f(a, b)).collect()))
    };
    let fmas = triples.iter().map(|triple| fma(triple.map(f32::from_bits))).collect();
    Case {
        name: "math_rounded",
        buffers: vec![
            Buffer::words(&column(0)),
            Buffer::words(&column(1)),
            Buffer::words(&column(2)),
            Buffer::Out(Want::F32(fmas, Tolerance::Ulps(0))),
            wanted(max),
            wanted(min),
        ],
        launch: |p| {
            let geometry = blocks(NUM_TRIPLES / NUM_THREADS, NUM_THREADS);
            let (a, b, c) = (p.at(0), p.at(1), p.at(2));
            math_rounded_f32::launch(geometry, a, b, c, p.at(3), p.at(4), p.at(5))
        },
    }
}

/// Results that the ISA gives bounds for.
pub fn approximate() -> Case {
    let len = NUM_ARGUMENTS as usize;
    let mut x = special_f32s();
    x.extend(random_words(4).take(len / 2));
    x.extend(random_f32s(5, 150.0).take(len - x.len()));
    let wanted = |f: fn(f64) -> f64, tolerance| {
        let values = x.iter().map(|&bits| flush(f(flush(f64::from(f32::from_bits(bits))))));
        Buffer::Out(Want::F32(values.collect(), tolerance))
    };
    Case {
        name: "math_approximate",
        buffers: vec![
            Buffer::words(&x),
            wanted(|x| 2f64.powf(x), Tolerance::Ulps(2)),
            wanted(|x| 1.0 / x, Tolerance::Ulps(1)),
            wanted(|x| 1.0 / x.sqrt(), Tolerance::Relative(2f64.powf(-22.9))),
        ],
        launch: |p| {
            let geometry = blocks(NUM_ARGUMENTS / NUM_THREADS, NUM_THREADS);
            math_approx_f32::launch(geometry, p.at(0), p.at(1), p.at(2), p.at(3))
        },
    }
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

/// `a * b + c` such that rounding it to f32 rounds once: the sum in f64 is rounded to odd, which
/// keeps what was lost as its last bit (Boldo and Melquiond, 2008).
fn fma([a, b, c]: [f32; 3]) -> f64 {
    let (product, c) = (f64::from(a) * f64::from(b), f64::from(c));
    let sum = product + c;
    let rest = sum - product;
    let lost = (product - (sum - rest)) + (c - rest);
    if lost == 0.0 || !sum.is_finite() || sum.to_bits() % 2 == 1 {
        sum
    } else if (lost > 0.0) == (sum > 0.0) {
        f64::from_bits(sum.to_bits() + 1)
    } else {
        f64::from_bits(sum.to_bits() - 1)
    }
}

/// The larger one in the order of numbers, in which -0 is before +0; a number before a NaN.
fn max(a: u32, b: u32) -> u32 {
    pick(a, b, order(a) >= order(b))
}

/// The smaller one, by the same rules.
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

/// The place among all floats, -0 before +0.
fn order(bits: u32) -> i32 {
    let bits = bits as i32;
    if bits < 0 { bits ^ i32::MAX } else { bits }
}

/// `.ftz`: what is under the smallest normal f32 is a zero of its sign.
fn flush(x: f64) -> f64 {
    let rounded = x as f32;
    if rounded.abs() < f32::MIN_POSITIVE { 0f64.copysign(x) } else { x }
}
