//! Packed arithmetic against exact integers, and approximate functions against f64.

use cuda_std::{Bf16x2, F16x2, bf16x2, f16x2};
use half::{bf16, f16};

/// `x`, which is a multiple of `2^-unit`, as this multiple.
fn multiple(x: f64, unit: i32) -> i128 {
    let scaled = x * 2.0_f64.powi(unit);
    assert_eq!(scaled.fract(), 0.0);
    scaled as i128
}

/// Whether `got` is the code whose `value` is nearest to `exact`, ties to even. Zeros are equal.
fn is_nearest(got: u16, exact: i128, value: impl Fn(u16) -> Option<i128>) -> bool {
    let Some(distance) = value(got).map(|value| (value - exact).abs()) else { return false };
    [got.wrapping_sub(1), got + 1].into_iter().filter_map(value).all(|neighbour| {
        let other = (neighbour - exact).abs();
        other > distance || other == distance && got.is_multiple_of(2)
    })
}

/// The value as a multiple of 2^-48, as is the product of two f16 plus a third.
fn f16_value(code: u16) -> Option<i128> {
    let x = f16::from_bits(code);
    // Numbers from the midpoint to the next binade on are infinite, and not adjacent to a finite
    // number.
    x.is_finite().then(|| multiple(x.to_f64(), 48))
}

/// Pseudorandom codes, the same in every run.
fn codes(seed: u32) -> impl Iterator<Item = u16> {
    (0_u32..).map(move |i| {
        let x = (i ^ seed).wrapping_mul(0x9e37_79b1);
        ((x ^ x >> 15).wrapping_mul(0x85eb_ca6b) >> 16) as u16
    })
}

#[test]
fn f16x2_arithmetic_is_rounded_once() {
    let operands = codes(1).zip(codes(0x5555_0000)).zip(codes(0x1234_5678)).take(400_000);
    let mut finite = 0;
    for ((a, b), c) in operands {
        let [a, b, c] = [a, b, c].map(f16::from_bits);
        if !(a.is_finite() && b.is_finite() && c.is_finite()) {
            continue;
        }
        // The upper halves take the operands in another order, so that they differ from the lower
        // ones.
        let (x, y, z) = (F16x2::new(a, c), F16x2::new(b, a), F16x2::new(c, b));
        let value = |x: f16| multiple(x.to_f64(), 24);
        let (fma, add) = (f16x2::fma(x, y, z), f16x2::add(x, y));
        let (sub, mul) = (f16x2::sub(x, y), f16x2::mul(x, y));
        let cases = [
            ("fma lo", fma.lo(), value(a) * value(b) + (value(c) << 24)),
            ("fma hi", fma.hi(), value(c) * value(a) + (value(b) << 24)),
            ("add lo", add.lo(), (value(a) + value(b)) << 24),
            ("add hi", add.hi(), (value(c) + value(a)) << 24),
            ("sub lo", sub.lo(), (value(a) - value(b)) << 24),
            ("mul lo", mul.lo(), value(a) * value(b)),
        ];
        for (name, got, exact) in cases {
            let got = got.to_bits();
            // From 65,520 on the result is infinite.
            let right = if exact.abs() >= 65_520 << 48 {
                got == if exact > 0 { 0x7c00 } else { 0xfc00 }
            } else {
                finite += 1;
                is_nearest(got, exact, f16_value)
            };
            assert!(right, "{name} of {a:?}, {b:?}, {c:?} gave {got:#x}");
        }
    }
    assert!(finite > 1_000_000, "{finite}");
}

#[test]
fn bf16x2_fma_is_rounded_once() {
    let bf16_of = |x: f64| bf16::from_f64(x);
    let fma = |a: bf16, b: bf16, c: bf16| {
        let got = bf16x2::fma(Bf16x2::new(a, c), Bf16x2::new(b, b), Bf16x2::new(c, a));
        (got.lo(), got.hi())
    };
    // 7 * 37 is halfway between 258 and 260, 9 * 29 between 260 and 262: the tiny addend decides,
    // which an f64 cannot hold together with the product.
    let tiny = bf16_of(2.0_f64.powi(-100));
    let zero = bf16::ZERO;
    for (a, b, below, tie, above) in
        [(7.0, 37.0, 258.0, 260.0, 260.0), (9.0, 29.0, 260.0, 260.0, 262.0)]
    {
        let (a, b) = (bf16_of(a), bf16_of(b));
        let got = [-tiny, zero, tiny].map(|c| fma(a, b, c).0.to_f64());
        assert_eq!(got, [below, tie, above]);
        let got = [tiny, zero, -tiny].map(|c| fma(-a, b, c).0.to_f64());
        assert_eq!(got, [-below, -tie, -above]);
    }
    // Exponents within 12 of 0: multiples of 2^-19, whose products are multiples of 2^-38.
    let near_one = |code: u16| bf16::from_bits(code & 0x87ff | 0x3c00).to_f64();
    let value = |code: u16| {
        let x = bf16::from_bits(code);
        (x.is_finite() && x.to_f64().abs() < 1e9).then_some(x.to_f64())
    };
    for ((a, b), c) in codes(3).zip(codes(0x7777_0000)).zip(codes(0x4321_0000)).take(200_000) {
        let [a, b, c] = [a, b, c].map(near_one);
        let exact = multiple(a * b, 60) + multiple(c, 60);
        let (lo, _) = fma(bf16_of(a), bf16_of(b), bf16_of(c));
        // The numbers adjacent to a result of zero are multiples of less.
        let of_code = |code| value(code).filter(|x| x.abs() > 1e-9).map(|x| multiple(x, 60));
        let right = if exact == 0 { lo == zero } else { is_nearest(lo.to_bits(), exact, of_code) };
        assert!(right, "fma({a}, {b}, {c}) gave {lo}");
    }
}

#[test]
fn nans_infinities_and_zeros() {
    let f = |x: f32| F16x2::splat(f16::from_f32(x));
    let b = |x: f32| Bf16x2::splat(bf16::from_f32(x));
    const NAN: u32 = 0x7fff_7fff;
    for nan in [f32::NAN, -f32::NAN] {
        assert_eq!(f16x2::fma(f(nan), f(1.0), f(1.0)).to_bits(), NAN);
        assert_eq!(bf16x2::fma(b(1.0), b(nan), b(1.0)).to_bits(), NAN);
        assert_eq!(f16x2::max(f(nan), f(nan)).to_bits(), NAN);
        assert_eq!(bf16x2::min(b(nan), b(nan)).to_bits(), NAN);
        assert_eq!((f16x2::max(f(nan), f(-1.0)), f16x2::min(f(2.0), f(nan))), (f(-1.0), f(2.0)));
        assert_eq!((bf16x2::max(b(nan), b(-1.0)), bf16x2::min(b(2.0), b(nan))), (b(-1.0), b(2.0)));
        assert_eq!(f16x2::exp2_approx(f(nan)).to_bits(), NAN);
        assert_eq!(f16x2::tanh_approx(f(nan)).to_bits(), NAN);
    }
    assert_eq!(f16x2::fma(f(f32::INFINITY), f(0.0), f(1.0)).to_bits(), NAN);
    assert_eq!(f16x2::sub(f(f32::INFINITY), f(f32::INFINITY)).to_bits(), NAN);
    assert_eq!(bf16x2::fma(b(f32::INFINITY), b(1.0), b(1.0)), b(f32::INFINITY));
    for (x, y) in [(0.0, -0.0), (-0.0, 0.0)] {
        assert_eq!((f16x2::max(f(x), f(y)), f16x2::min(f(x), f(y))), (f(0.0), f(-0.0)));
        assert_eq!((bf16x2::max(b(x), b(y)), bf16x2::min(b(x), b(y))), (b(0.0), b(-0.0)));
    }
    assert_eq!((f16x2::max(f(-3.0), f(2.0)), f16x2::min(f(-3.0), f(2.0))), (f(2.0), f(-3.0)));
    assert_eq!((f16x2::add(f(-0.0), f(-0.0)), f16x2::sub(f(1.0), f(1.0))), (f(-0.0), f(0.0)));
    assert_eq!(
        (f16x2::fma(f(-1.0), f(0.0), f(-0.0)), f16x2::mul(f(-1.0), f(0.0))),
        (f(-0.0), f(-0.0))
    );
}

#[test]
fn f16x2_functions_are_the_nearest() {
    type Function = (fn(F16x2) -> F16x2, fn(f64) -> f64);
    let functions: [Function; 2] =
        [(f16x2::exp2_approx, f64::exp2), (f16x2::tanh_approx, f64::tanh)];
    for (got, want) in functions {
        for x in (0..=u16::MAX).map(f16::from_bits).filter(|x| !x.is_nan()) {
            let got = got(F16x2::new(f16::ZERO, x)).hi().to_f64();
            let want = want(x.to_f64());
            let ulp = (want.abs() * 2.0_f64.powi(-10)).max(2.0_f64.powi(-24));
            let right = got == want
                || (got - want).abs() <= ulp / 2.0
                || want > 65_519.0 && got.is_infinite();
            assert!(
                right && got.is_sign_negative() == want.is_sign_negative(),
                "{x}: {got}, {want}"
            );
        }
    }
}
