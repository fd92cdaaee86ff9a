//! `exp` in straight-line code that the compiler vectorises: libm's call takes most of a softmax's time.

use super::vectors::Vectors;

/// `e^x`, within 2 units in the last place (Cephes' `expf`); 0 where the result would be subnormal, infinity for `x` of
/// more than 88.3.
#[inline(always)]
pub fn exp<V: Vectors>(simd: V, x: f32) -> f32 {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 355.0 / 512.0;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    const MIN: f32 = -87.0;
    /// The exponent of the power of two is at most that of the largest number.
    const MAX: f32 = 88.3;
    // A comparison keeps NaN; `max` does not.
    let clamped = if x < MIN { MIN } else { x };
    let rounded = simd.multiply_add(clamped, std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = simd.multiply_add(n, -LN_2_HIGH, clamped);
    let r = simd.multiply_add(n, -LN_2_LOW, r);
    let p = 1.987_569_1e-4;
    let p = simd.multiply_add(p, r, 1.398_199_9e-3);
    let p = simd.multiply_add(p, r, 8.333_452e-3);
    let p = simd.multiply_add(p, r, 4.166_579_6e-2);
    let p = simd.multiply_add(p, r, 1.666_666_5e-1);
    let p = simd.multiply_add(p, r, 0.5);
    let power = f32::from_bits((rounded.to_bits() << 23).wrapping_add(1.0f32.to_bits()));
    let value = (simd.multiply_add(p * r, r, r) + 1.0) * power;
    let value = if x > MAX { f32::INFINITY } else { value };
    if x < MIN { 0.0 } else { value }
}

/// `cap * tanh(x / cap)`, within 3e-6 of it.
#[inline(always)]
pub fn softcap<V: Vectors>(simd: V, x: f32, cap: f32) -> f32 {
    /// Below it the difference of exponentials would lose digits.
    const SMALL: f32 = 0.0625;
    let u = x / cap;
    let large = cap - 2.0 * cap / (1.0 + exp(simd, 2.0 * u));
    let square = u * u;
    let factor = simd.multiply_add(square, 2.0 / 15.0, -1.0 / 3.0);
    let small = x * simd.multiply_add(factor, square, 1.0);
    if square < SMALL * SMALL { small } else { large }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vectors::{WithVectors, archs, dispatch};
    use pulp::Arch;

    struct Exp<'a>(&'a mut [f32]);

    impl WithVectors for Exp<'_> {
        #[inline(always)]
        fn run<V: Vectors>(self, simd: V) {
            self.0.iter_mut().for_each(|x| *x = exp(simd, *x));
        }
    }

    fn exps(arch: Arch, x: &[f32]) -> Vec<f32> {
        let mut values = x.to_vec();
        dispatch(arch, Exp(&mut values));
        values
    }

    struct Softcap<'a>(&'a mut [f32], f32);

    impl WithVectors for Softcap<'_> {
        #[inline(always)]
        fn run<V: Vectors>(self, simd: V) {
            self.0.iter_mut().for_each(|x| *x = softcap(simd, *x, self.1));
        }
    }

    #[test]
    fn softcap_matches_f64() {
        for (arch, cap) in
            archs().into_iter().flat_map(|arch| [0.5, 30.0, 1e4].map(|cap| (arch, cap)))
        {
            for step in -2000_i32..=2000 {
                let x = step as f32 * step.abs() as f32 * 1e-5;
                let mut got = [x];
                dispatch(arch, Softcap(&mut got, cap));
                let wanted = f64::from(cap) * (f64::from(x) / f64::from(cap)).tanh();
                let error = (f64::from(got[0]) - wanted).abs();
                assert!(error <= 3e-6 * wanted.abs(), "{x} by {cap}: {} for {wanted}", got[0]);
            }
            let mut ends = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN];
            dispatch(arch, Softcap(&mut ends, cap));
            assert_eq!(ends[..2], [cap, -cap]);
            assert!(ends[2].is_nan());
        }
    }

    #[test]
    fn exp_matches_f64() {
        let x: Vec<f32> =
            (0..=200_000).map(|step| -87.0 + step as f32 * (175.0 / 200_000.0)).collect();
        for arch in archs() {
            for (&x, got) in x.iter().zip(exps(arch, &x)) {
                let wanted = (x as f64).exp();
                let error = (got as f64 - wanted).abs() / wanted;
                assert!(error < 2.4e-7, "{arch:?}: exp({x}): got {got}, wanted {wanted}");
            }
        }
    }

    #[test]
    fn special_values_are_exact() {
        for arch in archs() {
            let zeros = exps(arch, &[f32::NEG_INFINITY, -1e30, -88.0]);
            assert_eq!(zeros, [0.0; 3], "{arch:?}");
            assert_eq!(exps(arch, &[0.0; 17]), [1.0; 17], "a maximum that stays rescales nothing");
            let infinities = exps(arch, &[f32::INFINITY, 1e30, 129.0, 89.0]);
            assert_eq!(infinities, [f32::INFINITY; 4], "{arch:?}");
            assert!(exps(arch, &[f32::NAN; 17]).iter().all(|value| value.is_nan()), "{arch:?}");
        }
    }
}
