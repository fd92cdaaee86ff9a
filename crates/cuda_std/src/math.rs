//! Arithmetic of one instruction each. None needs the warp to be converged; each runs on every SM.
//!
//! The emulator gives of an approximate function the exact result, rounded once: the device's is as
//! far from it as the function's documentation says.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// What an operation gives that has no number to give.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) const CANONICAL_NAN: u32 = 0x7fff_ffff;

/// `.ftz`: a number under the smallest normal one is a zero of its sign.
#[cfg(not(target_arch = "nvptx64"))]
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

instruction! {
    /// `a * b + c`, rounded once. Rust never contracts a product and a sum by itself. CUDA C
    /// `fmaf`.
    "fma.rn.f32" => pub fn fma(a: f32, b: f32, c: f32) -> f32 {
        core::f32::math::mul_add(a, b, c)
    } host {
        a.mul_add(b, c)
    }

    /// The larger operand; the other one if one is NaN. CUDA C `fmaxf`.
    "max.f32" => pub fn max(a: f32, b: f32) -> f32 {
        let result: f32;
        asm!("max.f32 {}, {}, {};", out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        // Of two zeros the positive one is larger.
        let larger = if a == b { f32::from_bits(a.to_bits() & b.to_bits()) } else { a.max(b) };
        if larger.is_nan() { f32::from_bits(CANONICAL_NAN) } else { larger }
    }

    /// The smaller operand; the other one if one is NaN. CUDA C `fminf`.
    "min.f32" => pub fn min(a: f32, b: f32) -> f32 {
        let result: f32;
        asm!("min.f32 {}, {}, {};", out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        // Of two zeros the negative one is smaller.
        let smaller = if a == b { f32::from_bits(a.to_bits() | b.to_bits()) } else { a.min(b) };
        if smaller.is_nan() { f32::from_bits(CANONICAL_NAN) } else { smaller }
    }

    /// `2^x`, at most 2 ulp off; results under the smallest normal number are 0. CUDA C `exp2f`
    /// with fast maths.
    "ex2.approx.ftz.f32" => pub fn exp2_approx(x: f32) -> f32 {
        let result: f32;
        asm!("ex2.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        flush(f64::from(flush(x)).exp2() as f32)
    }

    /// `1 / x`, at most 1 ulp off. CUDA C `__fdividef(1, x)`.
    "rcp.approx.ftz.f32" => pub fn rcp_approx(x: f32) -> f32 {
        let result: f32;
        asm!("rcp.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        flush(1.0 / flush(x))
    }

    /// `1 / sqrt(x)`, relative error at most 2^-22.9. CUDA C `rsqrtf`.
    "rsqrt.approx.ftz.f32" => pub fn rsqrt_approx(x: f32) -> f32 {
        let result: f32;
        asm!("rsqrt.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        let x = flush(x);
        // The reciprocal keeps the sign of a zero, which the square root in f64 does too.
        (1.0 / f64::from(x).sqrt()) as f32
    }
}
