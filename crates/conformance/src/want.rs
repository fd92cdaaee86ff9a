//! Expected outputs, and their tolerances.

use half::f16;

use crate::inputs::words_of_halves;
use crate::numbers::{F16, Rounding};

/// An expected output.
///
/// An expected NaN matches any NaN, because the ISA leaves its bits open; a zero must have the
/// expected sign.
pub enum Want {
    /// These words, bit by bit.
    Words(Vec<u32>),
    /// f32 near these values.
    F32(Vec<f64>, Tolerance),
    /// f16 near these values, two to a word.
    F16(Vec<f64>, Tolerance),
    /// f32 that show what the hardware does where the ISA leaves it open.
    Probes(Vec<Probe>),
}

/// How far a float may be from the expected value.
#[derive(Clone, Debug)]
pub enum Tolerance {
    /// Distance in representable floats from the expected value rounded to nearest; 0 means equal.
    Ulps(u32),
    /// Relative distance.
    Relative(f64),
    /// Absolute distance, one per value.
    Each(Vec<f64>),
    /// Likewise, for sums of several instructions.
    Steps {
        /// As of `Each`.
        bounds: Vec<f64>,
        /// The sums, rounded after each instruction.
        emulated: Vec<f64>,
    },
}

/// A value that shows what the hardware does.
#[derive(Clone, Debug)]
pub struct Probe {
    /// What is computed.
    pub label: &'static str,
    /// The exact result.
    pub exact: f64,
    /// Largest absolute error; if infinite, any value passes, NaN included.
    pub bound: f64,
}

/// An element of an output as a number, and its rank among the numbers of its type, zeros at 0.
#[derive(Clone, Copy)]
struct Number {
    value: f64,
    place: i32,
}

impl Number {
    fn from_f32(x: f32) -> Self {
        let magnitude = (x.to_bits() & i32::MAX as u32) as i32;
        let place = if x.is_sign_negative() { -magnitude } else { magnitude };
        Number { value: x.into(), place }
    }

    fn from_f16(x: f16) -> Self {
        let magnitude = i32::from(x.to_bits() & i16::MAX as u16);
        let place = if x.is_sign_negative() { -magnitude } else { magnitude };
        Number { value: x.into(), place }
    }
}

impl Want {
    /// Length of the output.
    pub fn num_bytes(&self) -> usize {
        match self {
            Want::Words(words) => 4 * words.len(),
            Want::F32(values, _) => 4 * values.len(),
            Want::F16(values, _) => 2 * values.len(),
            Want::Probes(probes) => 4 * probes.len(),
        }
    }

    /// The emulator's output: it computes exactly, and rounds once, to nearest and NaN to the
    /// canonical one.
    pub(crate) fn emulated(&self) -> Want {
        let bits =
            |&value: &f64| if value.is_nan() { 0x7fff_ffff } else { (value as f32).to_bits() };
        Want::Words(match self {
            Want::Words(words) => words.clone(),
            Want::F32(_, Tolerance::Steps { emulated, .. }) => emulated.iter().map(bits).collect(),
            Want::F32(values, _) => values.iter().map(bits).collect(),
            Want::F16(values, _) => {
                let codes = values.iter().map(|&value| F16.round(value, Rounding::Nearest));
                words_of_halves(&codes.collect::<Vec<u16>>())
            }
            Want::Probes(probes) => probes.iter().map(|probe| bits(&probe.exact)).collect(),
        })
    }

    /// The same kind of output and bound, with the values in `bytes`.
    pub(crate) fn with_values(&self, bytes: &[u8]) -> Want {
        let values = || self.numbers(bytes).map(|number| number.value);
        match self {
            Want::Words(_) => Want::Words(words(bytes).collect()),
            Want::F32(_, tolerance) => Want::F32(values().collect(), tolerance.clone()),
            Want::F16(_, tolerance) => Want::F16(values().collect(), tolerance.clone()),
            Want::Probes(probes) => {
                let probes = probes.iter().zip(values());
                Want::Probes(probes.map(|(p, exact)| Probe { exact, ..p.clone() }).collect())
            }
        }
    }

    /// Compares an output with it. For outputs that need not be bit-exact it returns a line with
    /// the largest deviation, or one line per probe.
    ///
    /// # Errors
    /// The first element that differs.
    pub fn check(&self, output: &[u8]) -> Result<Vec<String>, String> {
        if output.len() != self.num_bytes() {
            return Err(format!("{} bytes, not {}", output.len(), self.num_bytes()));
        }
        match self {
            Want::Words(wanted) => {
                let pairs = words(output).zip(wanted).enumerate();
                for (index, (got, &want)) in pairs {
                    if got != want {
                        return Err(format!("element {index}: {got:#010x}, not {want:#010x}"));
                    }
                }
                Ok(Vec::new())
            }
            Want::F32(wanted, tolerance) | Want::F16(wanted, tolerance) => {
                self.check_floats(output, wanted, tolerance)
            }
            Want::Probes(probes) => self.check_probes(output, probes),
        }
    }

    fn check_floats(
        &self,
        output: &[u8],
        wanted: &[f64],
        tolerance: &Tolerance,
    ) -> Result<Vec<String>, String> {
        let mut largest = (0.0, None);
        for (index, (got, &want)) in self.numbers(output).zip(wanted).enumerate() {
            let share = tolerance.share(index, got, self.rounded(want), want);
            let bound = tolerance.at(index);
            if share > 1.0 {
                return Err(format!(
                    "element {index}: {:e}, not {want:e} within {bound}",
                    got.value
                ));
            }
            if share > largest.0 {
                let line = format!(
                    "off by at most {share:.3} of {bound} (element {index}: {:e} for {want:e})",
                    got.value
                );
                largest = (share, Some(line));
            }
        }
        Ok(largest.1.into_iter().collect())
    }

    fn check_probes(&self, output: &[u8], probes: &[Probe]) -> Result<Vec<String>, String> {
        let mut lines = Vec::new();
        for (got, Probe { label, exact, bound }) in self.numbers(output).zip(probes) {
            let line = format!("{label}: {:e}, exactly {exact:e}", got.value);
            if bound.is_finite() && ((got.value - exact).abs() > *bound || got.value.is_nan()) {
                return Err(format!("{line}: not within {bound:e}"));
            }
            lines.push(line);
        }
        Ok(lines)
    }

    fn numbers(&self, bytes: &[u8]) -> impl Iterator<Item = Number> {
        let is_f16 = matches!(self, Want::F16(..));
        words(bytes).flat_map(move |word| {
            let half = |bits: u32| Number::from_f16(f16::from_bits(bits as u16));
            let (first, second) = if is_f16 {
                (half(word), Some(half(word >> 16)))
            } else {
                (Number::from_f32(f32::from_bits(word)), None)
            };
            [Some(first), second].into_iter().flatten()
        })
    }

    fn rounded(&self, value: f64) -> Number {
        match self {
            Want::F16(..) => Number::from_f16(f16::from_f32(value as f32)),
            _ => Number::from_f32(value as f32),
        }
    }
}

impl Tolerance {
    /// The deviation in units of the tolerance; more than 1 fails.
    fn share(&self, index: usize, got: Number, rounded: Number, want: f64) -> f64 {
        const WRONG: f64 = f64::INFINITY;
        let right_if = |is_right| if is_right { 0.0 } else { WRONG };
        if got.value.is_nan() || want.is_nan() {
            return right_if(got.value.is_nan() && want.is_nan());
        }
        if got.value == 0.0 && rounded.value == 0.0 {
            return right_if(got.value.is_sign_negative() == rounded.value.is_sign_negative());
        }
        if got.value == want {
            return 0.0;
        }
        let error = (got.value - want).abs();
        let share = match self {
            Tolerance::Ulps(0) => return right_if(got.place == rounded.place),
            Tolerance::Ulps(ulps) => {
                return f64::from(got.place.abs_diff(rounded.place)) / f64::from(*ulps);
            }
            Tolerance::Relative(bound) => error / (bound * want.abs()),
            Tolerance::Each(bounds) | Tolerance::Steps { bounds, .. } => error / bounds[index],
        };
        // The nearest representable number always passes, unless it is infinite.
        if got.value == rounded.value {
            share.min(1.0)
        } else if rounded.value.is_finite() {
            share
        } else {
            WRONG
        }
    }

    /// The bound of element `index`, as text.
    fn at(&self, index: usize) -> String {
        match self {
            Tolerance::Ulps(ulps) => format!("{ulps} ulp"),
            Tolerance::Relative(bound) => format!("a relative {bound:e}"),
            Tolerance::Each(bounds) | Tolerance::Steps { bounds, .. } => {
                format!("{:e}", bounds[index])
            }
        }
    }
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admits(tolerance: &Tolerance, got: f32, want: f64) -> bool {
        tolerance.share(0, Number::from_f32(got), Number::from_f32(want as f32), want) <= 1.0
    }

    #[test]
    fn floats_are_counted_across_zero_and_to_infinity() {
        let admits = |ulps, got, want| admits(&Tolerance::Ulps(ulps), got, want);
        let (tiny, one) = (f32::from_bits(1), 1.0f32);
        assert!(admits(0, one, 1.0) && admits(0, one, 1.0 + 1e-9));
        assert!(admits(1, one.next_up(), 1.0) && !admits(0, one.next_up(), 1.0));
        assert!(admits(2, -tiny, f64::from(tiny)) && !admits(1, -tiny, f64::from(tiny)));
        assert!(admits(1, f32::MAX, f64::INFINITY) && !admits(1, f32::MIN, f64::INFINITY));
    }

    #[test]
    fn nans_and_signs_of_zero_are_wanted_or_wrong() {
        let all = [Tolerance::Ulps(9), Tolerance::Relative(9.0), Tolerance::Each(vec![9.0])];
        for tolerance in all {
            assert!(admits(&tolerance, -f32::NAN, f64::NAN));
            assert!(!admits(&tolerance, f32::NAN, 1.0) && !admits(&tolerance, 1.0, f64::NAN));
            assert!(admits(&tolerance, -0.0, -0.0) && !admits(&tolerance, -0.0, 0.0));
        }
    }

    #[test]
    fn relative_errors_are_of_the_wanted_value() {
        let admits = |got, want| admits(&Tolerance::Relative(1e-3), got, want);
        assert!(admits(1000.5, 1000.0) && !admits(1002.0, 1000.0));
        assert!(admits(f32::INFINITY, f64::INFINITY) && !admits(f32::MAX, f64::INFINITY));
        assert!(!admits(f32::INFINITY, 1.0));
        // The f32 nearest to 1 + 2^-25 is 1.
        assert!(super::tests::admits(&Tolerance::Relative(1e-9), 1.0, 1.0 + 2f64.powi(-25)));
    }

    #[test]
    fn the_first_difference_is_named() {
        let want = Want::Words(vec![1, 2, 3]);
        assert_eq!(want.check(&[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]), Ok(vec![]));
        let error = want.check(&[1, 0, 0, 0, 2, 0, 0, 1, 4, 0, 0, 0]).unwrap_err();
        assert_eq!(error, "element 1: 0x01000002, not 0x00000002");
        assert_eq!(want.check(&[1]).unwrap_err(), "1 bytes, not 12");
    }

    #[test]
    fn the_largest_deviation_is_told() {
        let want = Want::F16(vec![1.0, 2.0, 0.0, 4.0], Tolerance::Each(vec![0.5; 4]));
        let output: Vec<u8> = [1.0, 2.25, 0.0, 3.9]
            .into_iter()
            .flat_map(|value| f16::from_f64(value).to_le_bytes())
            .collect();
        let lines = want.check(&output).unwrap();
        assert_eq!(lines, ["off by at most 0.500 of 5e-1 (element 1: 2.25e0 for 2e0)"]);
        let error = want.check(&output[..4]).unwrap_err();
        assert_eq!(error, "4 bytes, not 8");
    }

    #[test]
    fn the_emulator_rounds_once() {
        let words = |want: Want| match want.emulated() {
            Want::Words(words) => words,
            _ => unreachable!("the emulator's outputs are bit-exact"),
        };
        let values = vec![1.0 + 2f64.powi(-24), f64::NAN];
        assert_eq!(words(Want::F32(values, Tolerance::Ulps(9))), [0x3f80_0000, 0x7fff_ffff]);
        // A tie of f16, and just above one: by way of f32 both would be.
        let values = vec![1.0 + 2f64.powi(-11), 1.0 + 2f64.powi(-11) + 2f64.powi(-40)];
        assert_eq!(words(Want::F16(values, Tolerance::Ulps(9))), [0x3c01_3c00]);
        let steps = Tolerance::Steps { bounds: vec![9.0], emulated: vec![2.0] };
        assert_eq!(words(Want::F32(vec![1.0], steps)), [0x4000_0000]);
    }

    #[test]
    fn probes_are_told_and_held_to_their_bounds() {
        let probe = |bound| Probe { label: "1 + 1", exact: 2.0, bound };
        let check = |bound, got: f32| Want::Probes(vec![probe(bound)]).check(&got.to_le_bytes());
        assert_eq!(check(0.5, 2.25), Ok(vec!["1 + 1: 2.25e0, exactly 2e0".to_owned()]));
        assert!(check(0.5, 3.0).is_err() && check(0.5, f32::NAN).is_err());
        assert!(check(f64::INFINITY, f32::NAN).is_ok());
    }
}
