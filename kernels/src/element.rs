//! The element types that kernels load and store. All arithmetic is f32; a store to 16 bits rounds
//! once, to nearest even.

#[cfg(not(target_arch = "nvptx64"))]
use core::any::TypeId;
use cuda_std::mma::Multiplicand;
use cuda_std::prelude::*;
use cuda_std::{Bf16x2, Element, F16x2, unroll};
pub use gpu_types::Dtype;
use half::{bf16, f16};

/// Elements that a thread loads or stores at once: 16 bytes of a 16-bit type.
pub(crate) const VEC_ELEMS: u32 = 8;

/// The loaded and the stored type of a kernel that may narrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Narrowing {
    /// f32 both.
    F32,
    /// f16 both.
    F16,
    /// bf16 both.
    BF16,
    /// f32 is loaded, f16 stored.
    F32ToF16,
    /// f32 is loaded, bf16 stored.
    F32ToBF16,
}

/// A type that kernels may store from a loaded `T`: the same, or a narrower one.
pub trait NarrowedFrom<T> {
    /// The pair of types, as a value.
    const NARROWING: Narrowing;
}

/// The type of elements, to find instances by; `None` of types that no kernel is generic over.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) fn type_of(dtype: Dtype) -> Option<TypeId> {
    match dtype {
        Dtype::F32 => Some(TypeId::of::<f32>()),
        Dtype::F16 => Some(TypeId::of::<f16>()),
        Dtype::BF16 => Some(TypeId::of::<bf16>()),
        _ => None,
    }
}

/// An element type in memory; f32 in registers.
pub trait Number: Element + NarrowedFrom<f32> + NarrowedFrom<Self> {
    /// The type.
    const DTYPE: Dtype;

    /// Activations are clamped to this magnitude, so that one overflow does not make a row
    /// infinite: 65,504 in f16, infinity (no clamp) in f32 and bf16.
    const CLAMP: f32;

    /// The value for this type, of those for f32, f16 and bf16.
    fn choose<V>([for_f32, for_f16, for_bf16]: [V; 3]) -> V {
        match Self::DTYPE {
            Dtype::F32 => for_f32,
            Dtype::F16 => for_f16,
            _ => for_bf16,
        }
    }

    /// The value, exactly.
    fn to_f32(self) -> f32;

    /// Rounds to nearest, ties to even; NaN stays NaN.
    fn from_f32(value: f32) -> Self;

    /// Elements `index .. index + 8`, by loads of 16 bytes.
    ///
    /// # Safety
    /// 1. The elements are inside the view, and start at a multiple of 16 bytes.
    /// 2. No other thread writes them at the same time.
    unsafe fn load_vector(x: Global<Self>, index: usize) -> [f32; VEC_ELEMS as usize];

    /// Writes elements `index .. index + 8`, by stores of 16 bytes.
    ///
    /// # Safety
    /// 1. The elements are inside the view, and start at a multiple of 16 bytes.
    /// 2. No other thread reads or writes them at the same time.
    unsafe fn store_vector(out: GlobalMut<Self>, index: usize, values: [f32; VEC_ELEMS as usize]);
}

/// A 16-bit element type, which the tensor cores multiply.
pub trait Half: Number + Multiplicand {
    /// Two values, rounded as by [`Number::from_f32`], in a register; the first in its lower half.
    fn pack(lo: f32, hi: f32) -> u32;

    /// The two values of a register, exactly.
    fn unpack(pair: u32) -> [f32; 2];
}

impl NarrowedFrom<f32> for f16 {
    const NARROWING: Narrowing = Narrowing::F32ToF16;
}

impl NarrowedFrom<f32> for bf16 {
    const NARROWING: Narrowing = Narrowing::F32ToBF16;
}

macro_rules! not_narrowed {
    ($($number:ty = $dtype:ident;)*) => {$(
        impl NarrowedFrom<$number> for $number {
            const NARROWING: Narrowing = Narrowing::$dtype;
        }
    )*};
}

not_narrowed! {
    f32 = F32;
    f16 = F16;
    bf16 = BF16;
}

impl Number for f32 {
    const DTYPE: Dtype = Dtype::F32;
    const CLAMP: f32 = f32::INFINITY;

    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }

    #[inline(always)]
    fn from_f32(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn load_vector(x: Global<f32>, index: usize) -> [f32; VEC_ELEMS as usize] {
        // SAFETY: the caller's promise.
        let ([a, b, c, d], [e, f, g, h]) = unsafe { (x.get_vec(index), x.get_vec(index + 4)) };
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn store_vector(out: GlobalMut<f32>, index: usize, values: [f32; VEC_ELEMS as usize]) {
        let [a, b, c, d, e, f, g, h] = values;
        // SAFETY: the caller's promise.
        unsafe {
            out.set_vec(index, [a, b, c, d]);
            out.set_vec(index + 4, [e, f, g, h]);
        }
    }
}

macro_rules! halves {
    ($($half:ident($dtype:expr), clamp $clamp:expr, $pair:ident:
        $to_f32:path, $from_f32:path, $pair_from_f32:path;)*) => {$(
        impl Number for $half {
            const DTYPE: Dtype = $dtype;
            const CLAMP: f32 = $clamp;

            #[inline(always)]
            fn to_f32(self) -> f32 {
                $to_f32(self)
            }

            #[inline(always)]
            fn from_f32(value: f32) -> $half {
                $from_f32(value)
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn load_vector(x: Global<$half>, index: usize) -> [f32; VEC_ELEMS as usize] {
                // SAFETY: the caller's promise; `index` is even.
                let [a, b, c, d]: [$pair; 4] = unsafe { x.cast().get_vec(index / 2) };
                [a.lo(), a.hi(), b.lo(), b.hi(), c.lo(), c.hi(), d.lo(), d.hi()].map($to_f32)
            }

            #[inline(always)]
            #[track_caller]
            unsafe fn store_vector(
                out: GlobalMut<$half>,
                index: usize,
                values: [f32; VEC_ELEMS as usize],
            ) {
                let [a, b, c, d, e, f, g, h] = values;
                let pairs = [(a, b), (c, d), (e, f), (g, h)].map(|(lo, hi)| $pair_from_f32(lo, hi));
                // SAFETY: the caller's promise; `index` is even.
                unsafe { out.cast::<$pair>().set_vec(index / 2, pairs) }
            }
        }

        impl Half for $half {
            #[inline(always)]
            fn pack(lo: f32, hi: f32) -> u32 {
                $pair_from_f32(lo, hi).to_bits()
            }

            #[inline(always)]
            fn unpack(pair: u32) -> [f32; 2] {
                let pair = $pair::from_bits(pair);
                [$to_f32(pair.lo()), $to_f32(pair.hi())]
            }
        }
    )*};
}

halves! {
    f16(Dtype::F16), clamp 65_504.0, F16x2:
        convert::f16_to_f32, convert::f32_to_f16, convert::f32_to_f16x2;
    bf16(Dtype::BF16), clamp f32::INFINITY, Bf16x2:
        convert::bf16_to_f32, convert::f32_to_bf16, convert::f32_to_bf16x2;
}

/// Up to eight adjacent columns of a row, which a thread loads or stores at once.
#[derive(Clone, Copy)]
pub(crate) struct Columns {
    /// Index of the first one.
    first: usize,
    /// How many of the eight are inside the row.
    count: usize,
    /// Whether all eight are, 16-byte aligned: one vector access.
    is_vector: bool,
}

impl Columns {
    /// Columns `first .. first + 8` of a row of `width`. `aligned` says that every eighth column is
    /// 16-byte aligned in all rows that are loaded or stored.
    #[inline(always)]
    pub fn new(first: u32, width: u32, aligned: bool) -> Self {
        let count = width.saturating_sub(first).min(VEC_ELEMS);
        Columns {
            first: first as usize,
            count: count as usize,
            is_vector: aligned && count == VEC_ELEMS,
        }
    }

    /// Loads the elements of `row`; zeros past its end.
    ///
    /// # Safety
    /// 1. `row` holds the `width` given to [`Columns::new`], aligned if that said so.
    /// 2. No other thread writes the elements at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load<T: Number>(self, row: Global<T>) -> [f32; VEC_ELEMS as usize] {
        // SAFETY: columns under `count` are in the row.
        unsafe {
            if self.is_vector {
                return T::load_vector(row, self.first);
            }
            let mut values = [0.0; VEC_ELEMS as usize];
            unroll!(i in 0..VEC_ELEMS as usize, {
                if i < self.count {
                    values[i] = row.get(self.first + i).to_f32();
                }
            });
            values
        }
    }

    /// Whether all columns are past the row's end.
    #[inline(always)]
    pub fn is_empty(self) -> bool {
        self.count == 0
    }

    /// Loads the elements of `row`, as they are, two in a register; zeros past its end. A vector is
    /// loaded without a branch, so that loads after this one need not wait for it.
    ///
    /// # Safety
    /// As [`Columns::load`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load_pairs<T: Half>(self, row: Global<T>) -> [u32; 4] {
        // SAFETY: columns under `count` are in the row; a vector starts at an even one.
        unsafe {
            let mut pairs: [u32; 4] = row.cast().get_vec_if(self.first / 2, self.is_vector);
            if !self.is_vector && !self.is_empty() {
                let row = row.cast::<u16>();
                unroll!(i in 0..VEC_ELEMS as usize, {
                    if i < self.count {
                        pairs[i / 2] |= u32::from(row.get(self.first + i)) << (i % 2 * 16);
                    }
                });
            }
            pairs
        }
    }

    /// Stores the elements that are inside `row`.
    ///
    /// # Safety
    /// 1. `row` holds the `width` given to [`Columns::new`], aligned if that said so.
    /// 2. No other thread reads or writes the elements at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn store<T: Number>(self, row: GlobalMut<T>, values: [f32; VEC_ELEMS as usize]) {
        // SAFETY: columns under `count` are in the row.
        unsafe {
            if self.is_vector {
                return T::store_vector(row, self.first, values);
            }
            unroll!(i in 0..VEC_ELEMS as usize, {
                if i < self.count {
                    row.set(self.first + i, T::from_f32(values[i]));
                }
            });
        }
    }
}
