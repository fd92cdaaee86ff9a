//! f32 to an executor's storage types, rounded to nearest even for 16 bits.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::plan::Dtype;

/// Elements converted at a time.
const RUN_ELEMS: usize = 64;

/// The conversion of f32 to one type.
#[derive(Clone, Copy)]
pub struct Encoder {
    pub dtype: Dtype,
    /// Converts values to as many elements.
    convert: fn(&[f32], &mut [u8]),
    /// The smallest magnitude that rounds to infinity.
    overflow: f32,
}

impl Encoder {
    /// The conversion to `dtype`, if it is one that weights are kept in.
    pub fn new(dtype: Dtype) -> Option<Self> {
        type Convert = fn(&[f32], &mut [u8]);
        // For 16 bits, halfway between the largest finite number and the next power of two: the tie rounds up.
        let (convert, overflow): (Convert, f32) = match dtype {
            Dtype::F32 => {
                (|values, out| out.copy_from_slice(bytemuck::cast_slice(values)), f32::INFINITY)
            }
            Dtype::F16 => (|values, out| to_halves(values, out, f16::ZERO), 65520.0),
            Dtype::BF16 => {
                (|values, out| to_halves(values, out, bf16::ZERO), f32::from_bits(0x7F7F_8000))
            }
            _ => return None,
        };
        Some(Encoder { dtype, convert, overflow })
    }

    /// Bytes of an element.
    pub fn bytes(&self) -> usize {
        self.dtype.block_bytes()
    }

    /// Writes `values` to `out`, which need not be aligned.
    ///
    /// # Errors
    /// The first finite value that the type has no finite number for.
    pub fn encode(&self, values: &[f32], out: &mut [u8]) -> Result<(), f32> {
        (self.convert)(values, out);
        let overflows = |value: &f32| {
            let magnitude = value.abs();
            (magnitude >= self.overflow) & (magnitude < f32::INFINITY)
        };
        // All of them, without a branch: as fast as the conversion.
        match values.iter().fold(false, |any, value| any | overflows(value)) {
            true => Err(*values.iter().find(|value| overflows(value)).expect("there is one")),
            false => Ok(()),
        }
    }
}

/// Many at a time: the processor's own instruction converts eight to f16.
fn to_halves<H: Copy>(values: &[f32], out: &mut [u8], zero: H)
where
    [H]: HalfFloatSliceExt,
{
    let mut halves = [zero; RUN_ELEMS];
    for (values, out) in values.chunks(RUN_ELEMS).zip(out.chunks_mut(2 * RUN_ELEMS)) {
        let halves = &mut halves[..values.len()];
        halves.convert_from_f32_slice(values);
        out.copy_from_slice(bytemuck::cast_slice(halves.reinterpret_cast()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The nearer of the two neighbours of `value` among finite `numbers`; of two as near, the even one.
    fn nearest(value: f64, numbers: &[(u16, f64)]) -> u16 {
        let above = numbers.partition_point(|&(_, number)| number < value).min(numbers.len() - 1);
        let ((low_bits, low), (high_bits, high)) =
            (numbers[above.saturating_sub(1)], numbers[above]);
        match (value - low).total_cmp(&(high - value)) {
            std::cmp::Ordering::Less => low_bits,
            std::cmp::Ordering::Greater => high_bits,
            std::cmp::Ordering::Equal if low_bits.is_multiple_of(2) => low_bits,
            std::cmp::Ordering::Equal => high_bits,
        }
    }

    /// The finite numbers from 0 up, with their bits.
    fn numbers(to_f64: impl Fn(u16) -> f64) -> Vec<(u16, f64)> {
        (0..0x7FFF).map(|bits| (bits, to_f64(bits))).filter(|(_, x)| x.is_finite()).collect()
    }

    fn encode(dtype: Dtype, value: f32) -> Result<u16, f32> {
        let mut bytes = [0xFF; 3];
        Encoder::new(dtype).unwrap().encode(&[value], &mut bytes[1..])?;
        Ok(u16::from_le_bytes([bytes[1], bytes[2]]))
    }

    /// Every number, the middles between two, and what is beside them.
    #[test]
    fn rounds_to_nearest_even() {
        let halves = [
            (Dtype::F16, numbers(|bits| f16::from_bits(bits).to_f64())),
            (Dtype::BF16, numbers(|bits| bf16::from_bits(bits).to_f64())),
        ];
        for (dtype, numbers) in halves {
            for pair in numbers.windows(2) {
                let middle = ((pair[0].1 + pair[1].1) / 2.0) as f32;
                for value in [pair[0].1 as f32, middle.next_down(), middle, middle.next_up()] {
                    let wanted = nearest(value.into(), &numbers);
                    assert_eq!(encode(dtype, value), Ok(wanted), "{dtype} {value:e}");
                    assert_eq!(encode(dtype, -value), Ok(wanted | 0x8000), "{dtype} -{value:e}");
                }
            }
        }
    }

    #[test]
    fn what_is_beyond_the_largest_number_is_an_error() {
        let largest_f32_under_infinity = f32::from_bits(0x7F7F_7FFF);
        for (dtype, fits, beyond) in [
            (Dtype::F16, 65520f32.next_down(), 65520.0),
            (Dtype::BF16, largest_f32_under_infinity, largest_f32_under_infinity.next_up()),
        ] {
            for sign in [1.0, -1.0] {
                assert!(encode(dtype, sign * fits).is_ok(), "{dtype}");
                assert_eq!(encode(dtype, sign * beyond), Err(sign * beyond), "{dtype}");
                assert_eq!(encode(dtype, sign * f32::MAX), Err(sign * f32::MAX), "{dtype}");
                assert!(encode(dtype, sign * f32::INFINITY).is_ok(), "{dtype}");
            }
            assert!(encode(dtype, f32::NAN).is_ok(), "{dtype}");
        }
        let mut bytes = [0; 4 * 3];
        let encoder = Encoder::new(Dtype::F32).unwrap();
        assert_eq!(encoder.encode(&[f32::MAX, f32::MIN, 0.0], &mut bytes), Ok(()));
    }

    #[test]
    fn the_first_value_beyond_is_named() {
        let mut values = vec![1.0; 200];
        (values[70], values[150]) = (-1e5, 1e6);
        let encoder = Encoder::new(Dtype::F16).unwrap();
        assert_eq!(encoder.encode(&values, &mut [0; 400]), Err(-1e5));
    }
}
