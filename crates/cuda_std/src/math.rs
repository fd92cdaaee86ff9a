//! Arithmetic, one instruction per function. The warp need not be converged.
//!
//! The emulator computes approximate functions exactly and rounds once. The error bounds in the
//! documentation are those of the device.

#[cfg(not(target_arch = "nvptx64"))]
use crate::rounding;
#[cfg(target_arch = "nvptx64")]
use core::arch::asm;

/// The NaN that the device's operations return.
#[cfg(not(target_arch = "nvptx64"))]
pub(crate) const CANONICAL_NAN: u32 = 0x7fff_ffff;

/// `x` with NaN replaced by the device's canonical one.
#[cfg(not(target_arch = "nvptx64"))]
fn canonical(x: f32) -> f32 {
    if x.is_nan() { f32::from_bits(CANONICAL_NAN) } else { x }
}

/// `.ftz`: flushes subnormal numbers to zeros of their sign.
#[cfg(not(target_arch = "nvptx64"))]
fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}

instruction! {
    /// `a * b + c`, rounded once. Rust never contracts a multiplication and an addition on its own.
    /// CUDA C `fmaf`.
    "fma.rn.f32" => pub fn fma(a: f32, b: f32, c: f32) -> f32 {
        core::f32::math::mul_add(a, b, c)
    } host {
        canonical(a.mul_add(b, c))
    }

    /// The larger operand; if one is NaN, the other one. CUDA C `fmaxf`.
    "max.f32" => pub fn max(a: f32, b: f32) -> f32 {
        let result: f32;
        asm!("max.f32 {}, {}, {};", out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(rounding::max([a, b].map(f64::from)) as f32)
    }

    /// The smaller operand; if one is NaN, the other one. CUDA C `fminf`.
    "min.f32" => pub fn min(a: f32, b: f32) -> f32 {
        let result: f32;
        asm!("min.f32 {}, {}, {};", out(reg32) result, in(reg32) a, in(reg32) b,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(rounding::min([a, b].map(f64::from)) as f32)
    }

    /// `2^x`, error at most 2 ulp; subnormal results are flushed to 0. CUDA C `exp2f` with fast
    /// maths.
    "ex2.approx.ftz.f32" => pub fn exp2_approx(x: f32) -> f32 {
        let result: f32;
        asm!("ex2.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(flush(f64::from(flush(x)).exp2() as f32))
    }

    /// `1 / x`, error at most 1 ulp. CUDA C `__fdividef(1, x)`.
    "rcp.approx.ftz.f32" => pub fn rcp_approx(x: f32) -> f32 {
        let result: f32;
        asm!("rcp.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(flush(1.0 / flush(x)))
    }

    /// `1 / sqrt(x)`, relative error at most 2^-22.9. CUDA C `rsqrtf`.
    "rsqrt.approx.ftz.f32" => pub fn rsqrt_approx(x: f32) -> f32 {
        let result: f32;
        asm!("rsqrt.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        let x = flush(x);
        // The sign of a zero is kept, by the square root in f64 and by the reciprocal.
        canonical((1.0 / f64::from(x).sqrt()) as f32)
    }

    /// `sqrt(x)`, relative error at most 2^-23. CUDA C `sqrtf` with fast maths.
    "sqrt.approx.ftz.f32" => pub fn sqrt_approx(x: f32) -> f32 {
        let result: f32;
        asm!("sqrt.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(flush(x).sqrt())
    }

    /// The logarithm to base 2, absolute error at most 2^-22 for `x` between 0.5 and 2, relative
    /// error at most 2^-22 elsewhere. CUDA C `__log2f`.
    "lg2.approx.ftz.f32" => pub fn log2_approx(x: f32) -> f32 {
        let result: f32;
        asm!("lg2.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(flush(f64::from(flush(x)).log2() as f32))
    }

    /// The hyperbolic tangent, relative error at most 2^-11; subnormal numbers are kept.
    /// CUDA C `__tanhf`.
    "tanh.approx.f32" => pub fn tanh_approx(x: f32) -> f32 {
        let result: f32;
        asm!("tanh.approx.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(f64::from(x).tanh() as f32)
    }

    /// The sine of `x` radians, absolute error at most 2^-20.5 for `|x| <= 2 pi`, 2^-14.7 for
    /// `|x| <= 100 pi`. CUDA C `__sinf`.
    "sin.approx.ftz.f32" => pub fn sin_approx(x: f32) -> f32 {
        let result: f32;
        asm!("sin.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(flush(f64::from(flush(x)).sin() as f32))
    }

    /// The cosine of `x` radians, absolute error at most 2^-20.5 for `|x| <= 2 pi`, 2^-14.7 for
    /// `|x| <= 100 pi`. CUDA C `__cosf`.
    "cos.approx.ftz.f32" => pub fn cos_approx(x: f32) -> f32 {
        let result: f32;
        asm!("cos.approx.ftz.f32 {}, {};", out(reg32) result, in(reg32) x,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        canonical(flush(f64::from(flush(x)).cos() as f32))
    }

    /// Selects four of the eight bytes of `a` (0 to 3) and `b` (4 to 7): hexadecimal digit `i` of
    /// `selector` selects byte `i` of the result. A digit from 8 on replicates the sign of byte
    /// `digit - 8`. CUDA C `__byte_perm`.
    "prmt.b32" => pub fn byte_perm(a: u32, b: u32, selector: u32) -> u32 {
        let result: u32;
        asm!("prmt.b32 {}, {}, {}, {};", out(reg32) result,
            in(reg32) a, in(reg32) b, in(reg32) selector,
            options(pure, nomem, nostack, preserves_flags));
        result
    } host {
        let bytes = (u64::from(b) << 32 | u64::from(a)).to_le_bytes();
        let pick = |digit: usize| {
            let control = (selector >> (4 * digit)) as usize;
            let byte = bytes[control & 7];
            if control & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
        };
        u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)])
    }
}

/// Any bitwise function of three operands: each result bit is bit `4 * a + 2 * b + c` of `LUT`, so
/// that `LUT` is the function applied to `0xf0`, `0xcc` and `0xaa`.
#[doc = ptx!("lop3.b32")]
#[inline(always)]
pub fn lop3<const LUT: u8>(a: u32, b: u32, c: u32) -> u32 {
    #[cfg(target_arch = "nvptx64")]
    {
        let result: u32;
        // SAFETY: one instruction on registers.
        unsafe {
            asm!("lop3.b32 {}, {}, {}, {}, {};", out(reg32) result,
                in(reg32) a, in(reg32) b, in(reg32) c, const LUT,
                options(pure, nomem, nostack, preserves_flags));
        }
        result
    }
    #[cfg(not(target_arch = "nvptx64"))]
    {
        let bit = |word: u32, i: u32| (word >> i & 1) as u8;
        let function = |i| u32::from(LUT >> (4 * bit(a, i) + 2 * bit(b, i) + bit(c, i)) & 1);
        (0..32).fold(0, |result, i| result | function(i) << i)
    }
}
