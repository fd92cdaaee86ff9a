//! Conversions, against the crate `half` and against all codes of the 8-bit formats.

use cuda_std::{Bf16x2, E4m3, E4m3x2, E5m2, E5m2x2, F16x2, convert};
use half::{bf16, f16};

/// The canonical NaN in f32.
const NAN_F32: u32 = 0x7fff_ffff;

/// f32 of every kind: 2^22 bit patterns spread over all, and both signs of zero, of the smallest
/// and largest subnormal numbers, of infinity and of NaN.
fn patterns() -> impl Iterator<Item = f32> {
    let spread = (0..1_u32 << 22).map(|i| i.wrapping_mul(0x9e37_79b1).rotate_left(7) ^ i);
    let ends = [0, 1, 0x7f_ffff, 0x80_0000, 0x7f7f_ffff, 0x7f80_0000, 0x7f80_0001, 0x7fc0_0000];
    let ends = ends.into_iter().flat_map(|bits: u32| [bits, bits | 1 << 31]);
    spread.chain(ends).map(f32::from_bits)
}

/// A number, the two adjacent ones, and the three of the other sign.
fn around(x: f32) -> [f32; 6] {
    let (down, up) = (x.next_down(), x.next_up());
    [down, x, up, -down, -x, -up]
}

/// Values of f16 and the midpoints to the next; numbers from 65,520 on round to infinity.
fn f16_ties() -> impl Iterator<Item = f32> {
    (0..0x7c00).flat_map(|code| {
        let value = |code| f64::from(f16::from_bits(code).to_f32());
        let next = if code == 0x7bff { 65_536.0 } else { value(code + 1) };
        let tie = (value(code) + next) / 2.0;
        around(value(code) as f32).into_iter().chain(around(tie as f32))
    })
}

#[test]
fn f16_to_f32_is_exact() {
    for x in (0..=u16::MAX).map(f16::from_bits) {
        let want = if x.is_nan() { NAN_F32 } else { x.to_f32().to_bits() };
        assert_eq!(convert::f16_to_f32(x).to_bits(), want, "{x:?}");
    }
}

#[test]
fn bf16_to_f32_is_exact() {
    for code in 0..=u16::MAX {
        let (x, got) = (bf16::from_bits(code), convert::bf16_to_f32(bf16::from_bits(code)));
        assert_eq!(got.to_bits(), u32::from(code) << 16);
        assert!(got == x.to_f32() || x.is_nan() && got.is_nan());
    }
}

#[test]
fn f32_to_f16_rounds_to_the_nearest() {
    for x in patterns().chain(f16_ties()) {
        let want = if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() };
        assert_eq!(convert::f32_to_f16(x).to_bits(), want, "{x:e}");
        let pair = convert::f32_to_f16x2(x, 1.5);
        assert_eq!(pair.to_bits(), 0x3e00_0000 | u32::from(want), "{x:e}");
    }
}

#[test]
fn f32_to_f16_rz_rounds_towards_zero() {
    for x in patterns().chain(f16_ties()) {
        let nearest = f16::from_f32(x);
        let want = if x.is_nan() {
            0x7fff
        } else if nearest.to_f32().abs() > x.abs() {
            nearest.to_bits() - 1
        } else {
            nearest.to_bits()
        };
        assert_eq!(convert::f32_to_f16_rz(x).to_bits(), want, "{x:e}");
    }
}

#[test]
fn f32_to_bf16_rounds_to_the_nearest() {
    let ties = (0..0x7f80_u32).flat_map(|code| around(f32::from_bits(code << 16 | 0x8000)));
    for x in patterns().chain(ties) {
        let want = if x.is_nan() { 0x7fff } else { bf16::from_f32(x).to_bits() };
        assert_eq!(convert::f32_to_bf16(x).to_bits(), want, "{x:e}");
        let pair = convert::f32_to_bf16x2(x, -2.0);
        assert_eq!(pair.to_bits(), 0xc000_0000 | u32::from(want), "{x:e}");
    }
}

/// The values of a format's finite codes without sign, by the specification's formula.
fn fp8_values(exponent_bits: u32, bias: i32, finite_codes: usize) -> Vec<f64> {
    let fraction_bits = 7 - exponent_bits;
    let value = |code: usize| {
        let (exponent, fraction) = (code >> fraction_bits, code & ((1 << fraction_bits) - 1));
        let fraction = fraction as f64 / f64::from(1 << fraction_bits);
        match exponent {
            0 => fraction * 2.0_f64.powi(1 - bias),
            _ => (1.0 + fraction) * 2.0_f64.powi(exponent as i32 - bias),
        }
    };
    (0..finite_codes).map(value).collect()
}

fn e4m3_values() -> Vec<f64> {
    fp8_values(4, 7, 0x7f)
}

fn e5m2_values() -> Vec<f64> {
    fp8_values(5, 15, 0x7c)
}

/// The code nearest to `x`, ties to even, saturated.
fn nearest_code(values: &[f64], x: f32) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let magnitude = f64::from(x).abs().min(values[values.len() - 1]);
    let distance = |code: usize| (values[code] - magnitude).abs();
    let nearer =
        |a: &usize, b: &usize| distance(*a).total_cmp(&distance(*b)).then((a % 2).cmp(&(b % 2)));
    let nearest = (0..values.len()).min_by(nearer).unwrap();
    nearest as u8 | if x.is_sign_negative() { 0x80 } else { 0 }
}

/// Values of a format, the midpoints between them, and f32 of every kind.
fn fp8_inputs(values: &[f64]) -> impl Iterator<Item = f32> {
    let ties = values.windows(2).map(|pair| (pair[0] + pair[1]) / 2.0);
    let numbers = values.iter().copied().chain(ties).map(|x| x as f32);
    numbers
        .flat_map(around)
        .collect::<Vec<_>>()
        .into_iter()
        .chain(patterns().step_by(61))
        .chain([448.0, 464.0, 465.0, 480.0, 57_344.0, 61_440.0, 61_441.0, 65_536.0])
}

#[test]
fn fp8_values_are_the_specifications() {
    assert_eq!((e4m3_values()[0x7e], e4m3_values()[1]), (448.0, 2.0_f64.powi(-9)));
    assert_eq!((e5m2_values()[0x7b], e5m2_values()[1]), (57_344.0, 2.0_f64.powi(-16)));
    for code in 0..=u8::MAX {
        let magnitude = usize::from(code & 0x7f);
        let signed = |x: f64| if code < 0x80 { x as f32 } else { -x as f32 };
        let (e4m3, e5m2) = (E4m3::from_bits(code).to_f32(), E5m2::from_bits(code).to_f32());
        match e4m3_values().get(magnitude) {
            Some(value) => assert_eq!(e4m3.to_bits(), signed(*value).to_bits(), "{code:#x}"),
            None => assert!(e4m3.is_nan(), "{code:#x}"),
        }
        match e5m2_values().get(magnitude) {
            Some(value) => assert_eq!(e5m2.to_bits(), signed(*value).to_bits(), "{code:#x}"),
            None if magnitude == 0x7c => assert_eq!(e5m2, signed(f64::INFINITY)),
            None => assert!(e5m2.is_nan(), "{code:#x}"),
        }
    }
}

#[test]
fn f32_to_fp8_rounds_to_the_nearest_and_saturates() {
    let (e4m3, e5m2) = (e4m3_values(), e5m2_values());
    for x in fp8_inputs(&e4m3) {
        let pair = convert::f32_to_e4m3x2(x, 1.0);
        assert_eq!(pair.to_bits(), 0x3800 | u16::from(nearest_code(&e4m3, x)), "{x:e}");
    }
    for x in fp8_inputs(&e5m2) {
        let pair = convert::f32_to_e5m2x2(x, 1.0);
        assert_eq!(pair.to_bits(), 0x3c00 | u16::from(nearest_code(&e5m2, x)), "{x:e}");
    }
}

#[test]
fn fp8_to_f16_is_exact() {
    let f16_of = |x: f32| if x.is_nan() { 0x7fff } else { f16::from_f32(x).to_bits() };
    for code in 0..=u8::MAX {
        let got = convert::e4m3x2_to_f16x2(E4m3x2::from_bits(0x7f00 | u16::from(code)));
        let want = f16_of(E4m3::from_bits(code).to_f32());
        assert_eq!((got.lo().to_bits(), got.hi().to_bits()), (want, 0x7fff), "{code:#x}");
        let got = convert::e5m2x2_to_f16x2(E5m2x2::from_bits(0xfc00 | u16::from(code)));
        // The e5m2 code is the upper byte of the f16.
        let want = if code & 0x7f > 0x7c { 0x7fff } else { u16::from(code) << 8 };
        assert_eq!((got.lo().to_bits(), got.hi().to_bits()), (want, 0xfc00), "{code:#x}");
    }
}

#[test]
fn f32_to_integers_saturate() {
    const TWO_31: f32 = 2_147_483_648.0;
    // Input, then i32 and u32, each rounded to nearest and towards zero.
    let cases = [
        (0.5, 0, 0, 0, 0),
        (1.5, 2, 1, 2, 1),
        (2.5, 2, 2, 2, 2),
        (-0.75, -1, 0, 0, 0),
        (-1.5, -2, -1, 0, 0),
        (8_388_607.5, 8_388_608, 8_388_607, 8_388_608, 8_388_607),
        (TWO_31.next_down(), 2_147_483_520, 2_147_483_520, 2_147_483_520, 2_147_483_520),
        (TWO_31, i32::MAX, i32::MAX, 1 << 31, 1 << 31),
        (-TWO_31, i32::MIN, i32::MIN, 0, 0),
        (2.0 * TWO_31, i32::MAX, i32::MAX, u32::MAX, u32::MAX),
        (f32::INFINITY, i32::MAX, i32::MAX, u32::MAX, u32::MAX),
        (f32::NEG_INFINITY, i32::MIN, i32::MIN, 0, 0),
        (f32::NAN, 0, 0, 0, 0),
    ];
    for (x, i32_rn, i32_rz, u32_rn, u32_rz) in cases {
        let signed = (convert::f32_to_i32_rn(x), convert::f32_to_i32_rz(x));
        assert_eq!(signed, (i32_rn, i32_rz), "{x}");
        let unsigned = (convert::f32_to_u32_rn(x), convert::f32_to_u32_rz(x));
        assert_eq!(unsigned, (u32_rn, u32_rz), "{x}");
    }
}

#[test]
fn a_pair_has_its_first_number_in_the_lower_half() {
    let (one, two) = (f16::from_f32(1.0), f16::from_f32(-2.0));
    let pair = F16x2::new(one, two);
    assert_eq!((pair.to_bits(), pair.lo(), pair.hi()), (0xc000_3c00, one, two));
    assert_eq!((F16x2::splat(one).to_bits(), (-pair).to_bits()), (0x3c00_3c00, 0x4000_bc00));
    let (one, two) = (bf16::from_f32(1.0), bf16::from_f32(-2.0));
    let pair = Bf16x2::new(one, two);
    assert_eq!((pair.to_bits(), pair.lo(), pair.hi()), (0xc000_3f80, one, two));
    let pair = E4m3x2::new(E4m3::from_bits(0x12), E4m3::from_bits(0x34));
    assert_eq!((pair.to_bits(), pair.hi().to_bits()), (0x3412, 0x34));
}
