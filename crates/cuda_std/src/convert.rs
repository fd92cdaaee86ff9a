//! Conversions between number types, one `cvt` each. The warp need not be converged.
//!
//! NaN converts to the canonical NaN: `0x7fff` in 16 bits, `0x7f` in 8, `0x7fff_ffff` in f32.
//! To convert an integer to f32 use Rust's `as`, which is one `cvt.rn`.

use crate::{Bf16x2, E4m3x2, E5m2x2, F16x2};
use half::{bf16, f16};

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use {
    crate::math::CANONICAL_NAN,
    crate::rounding::{Rounding, to_bf16, to_f16},
    crate::{E4m3, E5m2},
};

/// Exact, and keeps a NaN's payload. A shift, not a `cvt`: the upper half of an f32 is a bf16.
/// CUDA C `__bfloat162float`.
#[inline(always)]
pub const fn bf16_to_f32(x: bf16) -> f32 {
    f32::from_bits((x.to_bits() as u32) << 16)
}

instruction! {
    /// Exact. CUDA C `__half2float`.
    "cvt.f32.f16" => pub fn f16_to_f32(x: f16) -> f32 {
        let result: f32;
        asm!("cvt.f32.f16 {}, {};", out(reg32) result, in(reg16) x.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        if x.is_nan() { f32::from_bits(CANONICAL_NAN) } else { x.to_f32() }
    }

    /// Rounds to the nearest f16, ties to even; infinity from 65,520 on. CUDA C `__float2half_rn`.
    "cvt.rn.f16.f32" => pub fn f32_to_f16(x: f32) -> f16 {
        let result: u16;
        asm!("cvt.rn.f16.f32 {}, {};", out(reg16) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        f16::from_bits(result)
    } host {
        to_f16(f64::from(x), Rounding::Nearest)
    }

    /// Rounds to f16 towards zero; finite numbers beyond the largest f16 become 65,504. CUDA C
    /// `__float2half_rz`.
    "cvt.rz.f16.f32" => pub fn f32_to_f16_rz(x: f32) -> f16 {
        let result: u16;
        asm!("cvt.rz.f16.f32 {}, {};", out(reg16) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        f16::from_bits(result)
    } host {
        to_f16(f64::from(x), Rounding::Zero)
    }

    /// Rounds to the nearest bf16, ties to even. CUDA C `__float2bfloat16_rn`.
    "cvt.rn.bf16.f32" => pub fn f32_to_bf16(x: f32) -> bf16 {
        let result: u16;
        asm!("cvt.rn.bf16.f32 {}, {};", out(reg16) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        bf16::from_bits(result)
    } host {
        to_bf16(f64::from(x), Rounding::Nearest)
    }

    /// [`f32_to_f16`] of two numbers. CUDA C `__floats2half2_rn`.
    "cvt.rn.f16x2.f32" => pub fn f32_to_f16x2(lo: f32, hi: f32) -> F16x2 {
        let result: u32;
        asm!("cvt.rn.f16x2.f32 {}, {}, {};", out(reg32) result, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        F16x2::new(f32_to_f16(lo), f32_to_f16(hi))
    }

    /// [`f32_to_bf16`] of two numbers. CUDA C `__floats2bfloat162_rn`.
    "cvt.rn.bf16x2.f32" => pub fn f32_to_bf16x2(lo: f32, hi: f32) -> Bf16x2 {
        let result: u32;
        asm!("cvt.rn.bf16x2.f32 {}, {}, {};", out(reg32) result, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
        Bf16x2::from_bits(result)
    } host {
        Bf16x2::new(f32_to_bf16(lo), f32_to_bf16(hi))
    }

    /// Rounds to the nearest e4m3, ties to even, saturated to 448. CUDA C
    /// `__nv_cvt_float2_to_fp8x2`.
    "cvt.rn.satfinite.e4m3x2.f32" => pub fn f32_to_e4m3x2(lo: f32, hi: f32) -> E4m3x2 {
        let result: u16;
        asm!("cvt.rn.satfinite.e4m3x2.f32 {}, {}, {};",
            out(reg16) result, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
        E4m3x2::from_bits(result)
    } host {
        E4m3x2::new(E4m3::from_f32(lo), E4m3::from_f32(hi))
    }

    /// [`f32_to_e4m3x2`] of four numbers, the first in the lowest bits, without an instruction that
    /// joins the halves.
    "cvt.rn.satfinite.e4m3x2.f32, twice" => pub fn f32_to_e4m3x4(values: [f32; 4]) -> u32 {
        let [a, b, c, d] = values;
        let result: u32;
        asm!(
            "{{",
            ".reg .b16 lo, hi;",
            "cvt.rn.satfinite.e4m3x2.f32 lo, {b}, {a};",
            "cvt.rn.satfinite.e4m3x2.f32 hi, {d}, {c};",
            "mov.b32 {result}, {{lo, hi}};",
            "}}",
            result = out(reg32) result, a = in(reg32) a, b = in(reg32) b, c = in(reg32) c,
            d = in(reg32) d, options(pure, nomem, nostack, preserves_flags)
        );
        result
    } host {
        let [low, high] = [[0, 1], [2, 3]].map(|[lo, hi]| f32_to_e4m3x2(values[lo], values[hi]));
        u32::from(low.to_bits()) | u32::from(high.to_bits()) << 16
    }

    /// Rounds to the nearest e5m2, ties to even, saturated to 57,344. CUDA C
    /// `__nv_cvt_float2_to_fp8x2`.
    "cvt.rn.satfinite.e5m2x2.f32" => pub fn f32_to_e5m2x2(lo: f32, hi: f32) -> E5m2x2 {
        let result: u16;
        asm!("cvt.rn.satfinite.e5m2x2.f32 {}, {}, {};",
            out(reg16) result, in(reg32) hi, in(reg32) lo,
            options(pure, nomem, nostack, preserves_flags));
        E5m2x2::from_bits(result)
    } host {
        E5m2x2::new(E5m2::from_f32(lo), E5m2::from_f32(hi))
    }

    /// Exact. CUDA C `__nv_cvt_fp8x2_to_halfraw2`.
    "cvt.rn.f16x2.e4m3x2" => pub fn e4m3x2_to_f16x2(x: E4m3x2) -> F16x2 {
        let result: u32;
        asm!("cvt.rn.f16x2.e4m3x2 {}, {};", out(reg32) result, in(reg16) x.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        f32_to_f16x2(x.lo().to_f32(), x.hi().to_f32())
    }

    /// Exact. CUDA C `__nv_cvt_fp8x2_to_halfraw2`.
    "cvt.rn.f16x2.e5m2x2" => pub fn e5m2x2_to_f16x2(x: E5m2x2) -> F16x2 {
        let result: u32;
        asm!("cvt.rn.f16x2.e5m2x2 {}, {};", out(reg32) result, in(reg16) x.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        f32_to_f16x2(x.lo().to_f32(), x.hi().to_f32())
    }

    /// Rounds to the nearest integer, ties to even, saturated; NaN becomes 0. CUDA C
    /// `__float2int_rn`.
    "cvt.rni.s32.f32" => pub fn f32_to_i32_rn(x: f32) -> i32 {
        let result: i32;
        asm!("cvt.rni.s32.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        x.round_ties_even() as i32
    }

    /// Truncates to an integer, saturated; NaN becomes 0. CUDA C `__float2int_rz`.
    "cvt.rzi.s32.f32" => pub fn f32_to_i32_rz(x: f32) -> i32 {
        let result: i32;
        asm!("cvt.rzi.s32.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        x as i32
    }

    /// Rounds to the nearest integer, ties to even, saturated; NaN becomes 0. CUDA C
    /// `__float2uint_rn`.
    "cvt.rni.u32.f32" => pub fn f32_to_u32_rn(x: f32) -> u32 {
        let result: u32;
        asm!("cvt.rni.u32.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        x.round_ties_even() as u32
    }

    /// Truncates to an integer, saturated; NaN becomes 0. CUDA C `__float2uint_rz`.
    "cvt.rzi.u32.f32" => pub fn f32_to_u32_rz(x: f32) -> u32 {
        let result: u32;
        asm!("cvt.rzi.u32.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        x as u32
    }
}
