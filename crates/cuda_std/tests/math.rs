//! Approximate functions against f64, and permutations of bytes and bits.

use cuda_std::math;

#[test]
fn approximate_functions_are_the_nearest() {
    type Function = (&'static str, fn(f32) -> f32, fn(f64) -> f64);
    let functions: [Function; 5] = [
        ("sqrt", math::sqrt_approx, f64::sqrt),
        ("log2", math::log2_approx, f64::log2),
        ("tanh", math::tanh_approx, f64::tanh),
        ("sin", math::sin_approx, f64::sin),
        ("cos", math::cos_approx, f64::cos),
    ];
    for (name, got, want) in functions {
        for bits in (0..=u32::MAX).step_by(65_519) {
            let x = f32::from_bits(bits);
            if x.is_subnormal() {
                continue;
            }
            let (got, want) = (got(x), want(f64::from(x)));
            if want.is_nan() {
                assert_eq!(got.to_bits(), 0x7fff_ffff, "{name} of {x}");
            } else {
                let error = (f64::from(got) - want).abs();
                let right = f64::from(got) == want || error <= want.abs() * 2.0_f64.powi(-24);
                assert!(right, "{name} of {x}: {got}, {want}");
            }
        }
    }
}

#[test]
fn approximate_functions_flush() {
    const SUBNORMAL: f32 = 1e-40;
    for sign in [1.0, -1.0] {
        let (zero, x) = (0.0_f32.copysign(sign), SUBNORMAL.copysign(sign));
        assert_eq!(math::sqrt_approx(x).to_bits(), zero.to_bits());
        assert_eq!(math::sin_approx(x).to_bits(), zero.to_bits());
        assert_eq!(math::tanh_approx(x).to_bits(), x.to_bits());
        assert_eq!((math::log2_approx(x), math::cos_approx(x)), (f32::NEG_INFINITY, 1.0));
    }
    assert_eq!((math::log2_approx(8.0), math::sqrt_approx(6.25)), (3.0, 2.5));
    assert_eq!(math::fma(f32::NAN, 1.0, 1.0).to_bits(), 0x7fff_ffff);
}

#[test]
fn bytes_and_bits() {
    let (a, b) = (0x3322_1100, 0xf766_5544);
    assert_eq!(math::byte_perm(a, b, 0x3210), a);
    assert_eq!(math::byte_perm(a, b, 0x7654), b);
    assert_eq!(math::byte_perm(a, b, 0x0123), 0x0011_2233);
    assert_eq!(math::byte_perm(a, b, 0xffff_5410), 0x5544_1100);
    // The sign of byte 7 is set, that of byte 4 is not.
    assert_eq!(math::byte_perm(a, b, 0xfc7f), 0xff00_f7ff);
    let (a, b, c) = (0x0123_4567, 0x89ab_cdef, 0xdead_beef);
    assert_eq!(math::lop3::<0x80>(a, b, c), a & b & c);
    assert_eq!(math::lop3::<0x40>(a, b, c), a & b & !c);
    assert_eq!(math::lop3::<0x1a>(a, b, c), (a & b | c) ^ a);
    assert_eq!(math::lop3::<{ (0xf0 & 0xcc) | 0xaa }>(a, b, c), a & b | c);
    assert_eq!((math::lop3::<0>(a, b, c), math::lop3::<0xff>(a, b, c)), (0, u32::MAX));
}
