//! Arithmetic of one instruction each. None needs the warp to be converged; each runs on every SM.

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

instruction! {
    /// `a * b + c`, rounded once. Rust never contracts a product and a sum by itself. CUDA C
    /// `fmaf`.
    "fma.rn.f32" => pub fn fma(a: f32, b: f32, c: f32) -> f32 {
        core::f32::math::mul_add(a, b, c)
    }

    /// The larger operand; the other one if one is NaN. CUDA C `fmaxf`.
    "max.f32" => pub fn max(a: f32, b: f32) -> f32 {
        let result: f32;
        asm!("max.f32 {}, {}, {};", out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags));
        result
    }

    /// The smaller operand; the other one if one is NaN. CUDA C `fminf`.
    "min.f32" => pub fn min(a: f32, b: f32) -> f32 {
        let result: f32;
        asm!("min.f32 {}, {}, {};", out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags));
        result
    }

    /// `2^x`, at most 2 ulp off; results under the smallest normal number are 0. CUDA C `exp2f`
    /// with fast maths.
    "ex2.approx.ftz.f32" => pub fn exp2_approx(x: f32) -> f32 {
        let result: f32;
        asm!("ex2.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    }

    /// `1 / x`, at most 1 ulp off. CUDA C `__fdividef(1, x)`.
    "rcp.approx.ftz.f32" => pub fn rcp_approx(x: f32) -> f32 {
        let result: f32;
        asm!("rcp.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    }

    /// `1 / sqrt(x)`, relative error at most 2^-22.9. CUDA C `rsqrtf`.
    "rsqrt.approx.ftz.f32" => pub fn rsqrt_approx(x: f32) -> f32 {
        let result: f32;
        asm!("rsqrt.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    }
}
