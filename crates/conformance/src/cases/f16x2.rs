//! Packed arithmetic, with exact arithmetic in f64 and a search for the nearest number as oracle.

use conformance_kernels::f16x2::{NUM_THREADS, bf16x2_rounded, f16x2_approx, f16x2_rounded};

use crate::inputs::{blocks, random_words, words_of_halves};
use crate::numbers::{BF16, F16, Format, Rounding, fma, tanh};
use crate::{Buffer, Case, Tolerance, Want};

/// Triples of 16-bit codes: all triples of special values, then random bits, then numbers close to
/// each other.
const NUM_TRIPLES: usize = 80 * NUM_THREADS as usize;

/// Zero, the smallest and largest subnormal and normal numbers, 1 and the number after it,
/// infinity, NaN; and two whose product is a tie, where the least addend decides: 3 and 683, 7 and
/// 37.
const F16_SPECIAL: [u16; 11] =
    [0, 1, 0x03ff, 0x0400, 0x3c00, 0x3c01, 0x7bff, 0x7c00, 0x7e00, 0x4200, 0x6156];
const BF16_SPECIAL: [u16; 11] =
    [0, 1, 0x007f, 0x0080, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0x7fc0, 0x40e0, 0x4214];

/// Operands `a`, `b`, `c`: special magnitudes of both signs, then random bits; every second random
/// triple is near `one`.
fn operands(special: [u16; 11], one: u16) -> [Vec<u16>; 3] {
    let specials: Vec<u16> = special.into_iter().flat_map(|code| [code, code | 0x8000]).collect();
    let mut triples = Vec::new();
    for &a in &specials {
        for &b in &specials {
            triples.extend(specials.iter().map(|&c| [a, b, c]));
        }
    }
    let mut bits = random_words(50).map(|word| word as u16);
    let mut triple = |near: bool| {
        let mut next = || bits.next().expect("random words do not end");
        let code = |word: u16| if near { word & 0x83ff | one } else { word };
        [code(next()), code(next()), code(next())]
    };
    let rest = NUM_TRIPLES - triples.len();
    triples.extend((0..rest).map(|i| triple(i % 2 == 0)));
    [0, 1, 2].map(|at| triples.iter().map(|triple| triple[at]).collect())
}

/// The results of `f` in f64, rounded; NaN is all ones.
fn rounded<const N: usize>(
    format: Format,
    operands: [&Vec<u16>; N],
    f: impl Fn([f64; N]) -> f64,
) -> Buffer {
    let halves: Vec<u16> = (0..NUM_TRIPLES)
        .map(|i| f(operands.map(|codes| format.value(codes[i]))))
        .map(|exact| format.round(exact, Rounding::Nearest))
        .collect();
    Buffer::Out(Want::Words(words_of_halves(&halves)))
}

/// The lesser operand, -0 before +0, or the greater one by the reversed order; if one operand is
/// NaN, the other one.
fn pick(format: Format, [a, b]: [&Vec<u16>; 2], greater: bool) -> Buffer {
    let place = |code: u16| if code < 0x8000 { i32::from(code) } else { 0x7fff - i32::from(code) };
    let is_nan = |code: u16| format.value(code).is_nan();
    let one = |(&a, &b): (&u16, &u16)| match (is_nan(a), is_nan(b)) {
        (true, true) => 0x7fff,
        (true, false) => b,
        (false, true) => a,
        (false, false) if (place(a) > place(b)) == greater => a,
        (false, false) => b,
    };
    let halves: Vec<u16> = a.iter().zip(b).map(one).collect();
    Buffer::Out(Want::Words(words_of_halves(&halves)))
}

/// f16: every operation.
pub fn f16_rounded() -> Case {
    let [a, b, c] = operands(F16_SPECIAL, 0x3c00);
    let buffers = vec![
        Buffer::words(&words_of_halves(&a)),
        Buffer::words(&words_of_halves(&b)),
        Buffer::words(&words_of_halves(&c)),
        rounded(F16, [&a, &b, &c], fma),
        rounded(F16, [&a, &b], |[a, b]| a + b),
        rounded(F16, [&a, &b], |[a, b]| a - b),
        rounded(F16, [&a, &b], |[a, b]| a * b),
        pick(F16, [&a, &b], true),
        pick(F16, [&a, &b], false),
    ];
    Case::new("f16x2_rounded", buffers, |p| {
        let geometry = blocks(NUM_TRIPLES as u32 / 2 / NUM_THREADS, NUM_THREADS);
        let (a, b, c, fma, add) = (p.at(0), p.at(1), p.at(2), p.at(3), p.at(4));
        let (sub, mul, max, min) = (p.at(5), p.at(6), p.at(7), p.at(8));
        f16x2_rounded::Args { a, b, c, fma, add, sub, mul, max, min }.launch(geometry)
    })
}

/// bf16: every operation.
pub fn bf16_rounded() -> Case {
    let [a, b, c] = operands(BF16_SPECIAL, 0x3f80);
    let buffers = vec![
        Buffer::words(&words_of_halves(&a)),
        Buffer::words(&words_of_halves(&b)),
        Buffer::words(&words_of_halves(&c)),
        rounded(BF16, [&a, &b, &c], fma),
        pick(BF16, [&a, &b], true),
        pick(BF16, [&a, &b], false),
    ];
    Case::new("bf16x2_rounded", buffers, |p| {
        let geometry = blocks(NUM_TRIPLES as u32 / 2 / NUM_THREADS, NUM_THREADS);
        let (fma, max, min) = (p.at(3), p.at(4), p.at(5));
        bf16x2_rounded::Args { a: p.at(0), b: p.at(1), c: p.at(2), fma, max, min }.launch(geometry)
    })
}

/// Every f16: `2^x` with a relative error of at most 2^-9.9, or one unit of a subnormal result;
/// `tanh` with an absolute error of at most 2^-10.987.
pub fn f16_approximate() -> Case {
    let halves: Vec<u16> = (0..=u16::MAX).collect();
    let wanted = |f: fn(f64) -> f64, bound: fn(f64) -> f64| {
        let values: Vec<f64> = halves.iter().map(|&half| f(F16.value(half))).collect();
        let bounds = values.iter().map(|&value| bound(value)).collect();
        Buffer::Out(Want::F16(values, Tolerance::Each(bounds)))
    };
    let buffers = vec![
        Buffer::words(&words_of_halves(&halves)),
        wanted(|x| 2f64.powf(x), |y| (y * 2f64.powf(-9.9)).max(2f64.powi(-24))),
        wanted(tanh, |_| 2f64.powf(-10.987)),
    ];
    Case::new("f16x2_approximate", buffers, |p| {
        f16x2_approx::Args { x: p.at(0), exp2: p.at(1), tanh: p.at(2) }
            .launch(blocks((1 << 15) / NUM_THREADS, NUM_THREADS))
    })
}
