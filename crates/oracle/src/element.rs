//! The floats that kernels store.

use half::{bf16, f16};

/// A float that kernels load and store.
pub trait Element: Copy + PartialEq + 'static {
    /// Largest error of a rounding, relative to the number.
    const ROUNDING: f64;
    /// The same below the normal numbers.
    const SUBNORMAL: f64;
    /// The largest number.
    const MAX: f64;

    /// The nearest number, of two the even one.
    fn of(value: f32) -> Self;
    /// The number.
    fn value(self) -> f32;
    /// As memory has it.
    fn bytes(self) -> Vec<u8>;
    /// The number that memory has so.
    fn from_bytes(bytes: &[u8]) -> Self;

    /// `value`, rounded.
    fn rounded(value: f32) -> f32 {
        Self::of(value).value()
    }
}

macro_rules! elements {
    ($($float:ty: $bits:expr, $subnormal:expr, $max:expr, $of:expr, $value:expr;)*) => {$(
        impl Element for $float {
            const ROUNDING: f64 = 1.0 / (1u64 << $bits) as f64;
            const SUBNORMAL: f64 = $subnormal;
            const MAX: f64 = $max;

            fn of(value: f32) -> Self {
                $of(value)
            }

            fn value(self) -> f32 {
                $value(self)
            }

            fn bytes(self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }

            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the bytes of one number"))
            }
        }
    )*};
}

elements! {
    f32: 24, f32::MIN_POSITIVE as f64, f32::MAX as f64, |value| value, |value| value;
    f16: 11, 1.0 / (1u64 << 25) as f64, 65_504.0, f16::from_f32, f16::to_f32;
    bf16: 8, f32::MIN_POSITIVE as f64, 3.389_531_389_251_535_5e38, bf16::from_f32, bf16::to_f32;
}
