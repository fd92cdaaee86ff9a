//! What an output should be, and how far off it may be.

/// What an output should be.
pub enum Want {
    /// These words, bit by bit.
    Words(Vec<u32>),
    /// Floats of 32 bits near these values. Where a NaN is wanted any NaN is right, because the ISA
    /// leaves its bits open; a zero has the wanted sign.
    F32(Vec<f64>, Tolerance),
}

/// How far a float may be from what is wanted.
#[derive(Clone, Copy, Debug)]
pub enum Tolerance {
    /// Floats between the wanted value, rounded to nearest, and the value; 0: that value alone.
    Ulps(u32),
    /// Distance in units of the wanted value.
    Relative(f64),
}

impl Want {
    /// Length of the output.
    pub fn num_bytes(&self) -> usize {
        size_of::<u32>()
            * match self {
                Want::Words(words) => words.len(),
                Want::F32(values, _) => values.len(),
            }
    }

    /// The same kind of output and bound around the values in `bytes`.
    pub(crate) fn with_values(&self, bytes: &[u8]) -> Want {
        match self {
            Want::Words(_) => Want::Words(words(bytes).collect()),
            Want::F32(_, tolerance) => {
                let values = words(bytes).map(|bits| f64::from(f32::from_bits(bits)));
                Want::F32(values.collect(), *tolerance)
            }
        }
    }

    /// Holds an output against it.
    ///
    /// # Errors
    /// The first element that differs.
    pub fn check(&self, output: &[u8]) -> Result<(), String> {
        if output.len() != self.num_bytes() {
            return Err(format!("{} bytes, not {}", output.len(), self.num_bytes()));
        }
        match self {
            Want::Words(wanted) => {
                for (index, (got, &want)) in words(output).zip(wanted).enumerate() {
                    if got != want {
                        return Err(format!("element {index}: {got:#010x}, not {want:#010x}"));
                    }
                }
            }
            Want::F32(wanted, tolerance) => {
                for (index, (got, &want)) in
                    words(output).map(f32::from_bits).zip(wanted).enumerate()
                {
                    if !tolerance.admits(got, want) {
                        let bits = got.to_bits();
                        return Err(format!(
                            "element {index}: {got:e} ({bits:#010x}), not {want:e} within {tolerance:?}"
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

impl Tolerance {
    fn admits(self, got: f32, want: f64) -> bool {
        if got.is_nan() || want.is_nan() {
            return got.is_nan() && want.is_nan();
        }
        let rounded = want as f32;
        if got == 0.0 && rounded == 0.0 {
            return got.is_sign_negative() == rounded.is_sign_negative();
        }
        match self {
            Tolerance::Ulps(ulps) => place(got).abs_diff(place(rounded)) <= ulps,
            Tolerance::Relative(bound) => {
                let error = (f64::from(got) - want).abs();
                got == rounded || rounded.is_finite() && error <= bound * want.abs()
            }
        }
    }
}

/// The float's place among all floats in their order, zeros at 0.
fn place(x: f32) -> i32 {
    let magnitude = (x.to_bits() & i32::MAX as u32) as i32;
    if x.is_sign_negative() { -magnitude } else { magnitude }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_counted_across_zero_and_to_infinity() {
        let ulps = |n| Tolerance::Ulps(n);
        let (tiny, one) = (f32::from_bits(1), 1.0f32);
        assert!(ulps(0).admits(one, 1.0) && ulps(0).admits(one, 1.0 + 1e-9));
        assert!(ulps(1).admits(one.next_up(), 1.0) && !ulps(0).admits(one.next_up(), 1.0));
        assert!(ulps(2).admits(-tiny, f64::from(tiny)) && !ulps(1).admits(-tiny, f64::from(tiny)));
        assert!(
            ulps(1).admits(f32::MAX, f64::INFINITY) && !ulps(1).admits(f32::MIN, f64::INFINITY)
        );
    }

    #[test]
    fn nans_and_signs_of_zero_are_wanted_or_wrong() {
        for tolerance in [Tolerance::Ulps(9), Tolerance::Relative(9.0)] {
            assert!(tolerance.admits(-f32::NAN, f64::NAN));
            assert!(!tolerance.admits(f32::NAN, 1.0) && !tolerance.admits(1.0, f64::NAN));
            assert!(tolerance.admits(-0.0, -0.0) && !tolerance.admits(-0.0, 0.0));
        }
    }

    #[test]
    fn relative_errors_are_of_the_wanted_value() {
        let admits = |got, want| Tolerance::Relative(1e-3).admits(got, want);
        assert!(admits(1000.5, 1000.0) && !admits(1002.0, 1000.0));
        assert!(admits(f32::INFINITY, f64::INFINITY) && !admits(f32::MAX, f64::INFINITY));
        assert!(!admits(f32::INFINITY, 1.0));
    }

    #[test]
    fn the_first_difference_is_named() {
        let want = Want::Words(vec![1, 2, 3]);
        assert_eq!(want.check(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]), Ok(()));
        let error = want.check(&[1, 0, 0, 0, 2, 0, 0, 1, 4, 0, 0, 0]).unwrap_err();
        assert_eq!(error, "element 1: 0x01000002, not 0x00000002");
        assert_eq!(want.check(&[1]).unwrap_err(), "1 bytes, not 12");
    }
}
