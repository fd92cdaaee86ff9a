//! The elements of views, and their loads and stores.

use crate::{Bf16x2, E4m3, E4m3x2, E5m2, E5m2x2, F16x2};
use half::{bf16, f16};

mod sealed {
    pub trait Sealed {}
}

/// A number of 1, 2, 4 or 8 bytes that a view can hold: no padding, and every bit pattern is valid.
pub trait Element: sealed::Sealed + Copy + Send + Sync + 'static {}

macro_rules! elements {
    ($($ty:ty),*) => {$(
        impl sealed::Sealed for $ty {}
        impl Element for $ty {}
    )*};
}

elements!(u8, u16, u32, u64, i32, f32, f16, bf16, E4m3, E5m2, F16x2, Bf16x2, E4m3x2, E5m2x2);

/// Rejects a vector that no single instruction loads or stores.
pub(crate) const fn assert_one_access<T: Element, const N: usize>() {
    assert!(
        matches!(size_of::<[T; N]>(), 1 | 2 | 4 | 8 | 16),
        "one access has 1, 2, 4, 8 or 16 bytes"
    );
}

/// Reinterprets the bits of a vector as another one of the same size.
#[cfg(target_arch = "nvptx64")]
#[inline(always)]
pub(crate) fn reinterpret<A: Element, const N: usize, B: Element, const M: usize>(
    a: [A; N],
) -> [B; M] {
    assert!(size_of::<[A; N]>() == size_of::<[B; M]>());
    // SAFETY: the sizes are equal, and any bits are elements.
    unsafe { core::mem::transmute_copy(&a) }
}

/// One load of a `[T; N]` by `$ld`, at `$address` plus the constant `$offset` in bytes.
#[cfg(target_arch = "nvptx64")]
macro_rules! load_vec {
    ($ld:literal, [$class:ident $address:expr, $offset:expr], $($option:ident),*) => {
        match const { size_of::<[T; N]>() } {
            1 => {
                let a: u8;
                asm!(concat!($ld, ".b8 {}, [{} + {}];"), out(reg16) a,
                    in($class) $address, const $offset, options($($option),*));
                reinterpret([a])
            }
            2 => {
                let a: u16;
                asm!(concat!($ld, ".b16 {}, [{} + {}];"), out(reg16) a,
                    in($class) $address, const $offset, options($($option),*));
                reinterpret([a])
            }
            4 => {
                let a: u32;
                asm!(concat!($ld, ".b32 {}, [{} + {}];"), out(reg32) a,
                    in($class) $address, const $offset, options($($option),*));
                reinterpret([a])
            }
            8 => {
                let (a, b): (u32, u32);
                asm!(concat!($ld, ".v2.b32 {{{}, {}}}, [{} + {}];"), out(reg32) a, out(reg32) b,
                    in($class) $address, const $offset, options($($option),*));
                reinterpret([a, b])
            }
            _ => {
                let (a, b, c, d): (u32, u32, u32, u32);
                asm!(concat!($ld, ".v4.b32 {{{}, {}, {}, {}}}, [{} + {}];"),
                    out(reg32) a, out(reg32) b, out(reg32) c, out(reg32) d,
                    in($class) $address, const $offset, options($($option),*));
                reinterpret([a, b, c, d])
            }
        }
    };
}

/// One store of `value`, a `[T; N]`, by `$st`.
#[cfg(target_arch = "nvptx64")]
macro_rules! store_vec {
    ($st:literal, [$class:ident $address:expr], $value:expr) => {
        match const { size_of::<[T; N]>() } {
            1 => {
                let [a]: [u8; 1] = reinterpret($value);
                asm!(concat!($st, ".b8 [{}], {};"), in($class) $address, in(reg16) a,
                    options(nostack, preserves_flags));
            }
            2 => {
                let [a]: [u16; 1] = reinterpret($value);
                asm!(concat!($st, ".b16 [{}], {};"), in($class) $address, in(reg16) a,
                    options(nostack, preserves_flags));
            }
            4 => {
                let [a]: [u32; 1] = reinterpret($value);
                asm!(concat!($st, ".b32 [{}], {};"), in($class) $address, in(reg32) a,
                    options(nostack, preserves_flags));
            }
            8 => {
                let [a, b]: [u32; 2] = reinterpret($value);
                asm!(concat!($st, ".v2.b32 [{}], {{{}, {}}};"), in($class) $address,
                    in(reg32) a, in(reg32) b, options(nostack, preserves_flags));
            }
            _ => {
                let [a, b, c, d]: [u32; 4] = reinterpret($value);
                asm!(concat!($st, ".v4.b32 [{}], {{{}, {}, {}, {}}};"), in($class) $address,
                    in(reg32) a, in(reg32) b, in(reg32) c, in(reg32) d,
                    options(nostack, preserves_flags));
            }
        }
    };
}

#[cfg(target_arch = "nvptx64")]
pub(crate) use {load_vec, store_vec};
