//! FP8 of four exponent and three mantissa bits, without infinities.

use std::sync::LazyLock;

/// The largest number.
pub const E4M3_MAX: f32 = 448.0;

/// The code of NaN.
const NAN: u8 = 0x7f;

/// The number of a code.
pub fn e4m3_value(code: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
    let magnitude = match (exponent, code & NAN) {
        (_, NAN) => f32::NAN,
        (0, _) => mantissa / 8.0 * 2f32.powi(-6),
        _ => (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7),
    };
    if code & 0x80 == 0 { magnitude } else { -magnitude }
}

/// The numbers from 0 up.
static NUMBERS: LazyLock<Vec<f32>> = LazyLock::new(|| (0..NAN).map(e4m3_value).collect());

/// The code of the nearest number, of two the even one; what is beyond the largest is the largest.
pub fn e4m3_code(x: f32) -> u8 {
    if x.is_nan() {
        return NAN;
    }
    let magnitude = x.abs().min(E4M3_MAX);
    let upper = NUMBERS.partition_point(|&number| number < magnitude);
    let lower = upper.saturating_sub(1);
    let (below, above) = (magnitude - NUMBERS[lower], NUMBERS[upper] - magnitude);
    let takes_lower = below < above || (below == above && lower.is_multiple_of(2));
    let code = if takes_lower { lower } else { upper } as u8;
    if x.is_sign_negative() { code | 0x80 } else { code }
}

#[test]
fn codes_are_those_of_their_numbers() {
    for code in (0..=u8::MAX).filter(|code| code & NAN != NAN) {
        assert_eq!(e4m3_code(e4m3_value(code)), code);
    }
    let rounded = [(17.0, 16.0), (19.0, 20.0), (-500.0, -448.0), (0.001, 0.001_953_125)];
    for (x, want) in rounded {
        assert_eq!(e4m3_value(e4m3_code(x)), want);
    }
    // Half of the smallest number is zero.
    assert_eq!(e4m3_code(2f32.powi(-10)), 0);
}
