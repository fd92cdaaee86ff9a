//! `exp` in straight-line code that the compiler vectorises: libm's call takes most of a softmax's time.

/// `e^x` for `x <= 88`, within 2 units in the last place (Cephes' `expf`); 0 where the result would be subnormal.
pub fn exp(x: f32) -> f32 {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const MIN: f32 = -87.0;
    // A comparison keeps NaN; `max` does not.
    let clamped = if x < MIN { MIN } else { x };
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = clamped - n * LN_2_HIGH - n * LN_2_LOW;
    let p = 1.987_569_1e-4;
    let p = p * r + 1.398_199_9e-3;
    let p = p * r + 8.333_452e-3;
    let p = p * r + 4.166_579_6e-2;
    let p = p * r + 1.666_666_5e-1;
    let p = p * r + 0.5;
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let value = (p * r * r + r + 1.0) * power;
    if x < MIN { 0.0 } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_matches_f64() {
        for step in 0..=200_000 {
            let x = -87.0 + step as f32 * (175.0 / 200_000.0);
            let wanted = (x as f64).exp();
            let error = (exp(x) as f64 - wanted).abs() / wanted;
            assert!(error < 2.4e-7, "exp({x}): got {}, wanted {wanted}", exp(x));
        }
    }

    #[test]
    fn masked_scores_are_exact_zeros() {
        assert_eq!((exp(f32::NEG_INFINITY), exp(-1e30), exp(-88.0)), (0.0, 0.0, 0.0));
        assert_eq!(exp(0.0), 1.0, "a maximum that stays the same rescales nothing");
        assert!(exp(f32::NAN).is_nan());
    }
}
