//! Arithmetic on two f16 at once, each result rounded once. The warp need not be converged.

use crate::F16x2;

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use {
    crate::rounding::{self, Rounding, to_f16},
    half::f16,
};

/// `f` of both elements, in f64, rounded to the element type.
#[cfg(not(target_arch = "nvptx64"))]
fn each<const N: usize>(operands: [F16x2; N], f: impl Fn([f64; N]) -> f64) -> F16x2 {
    let half =
        |of: fn(F16x2) -> f16| to_f16(f(operands.map(|pair| of(pair).to_f64())), Rounding::Nearest);
    F16x2::new(half(F16x2::lo), half(F16x2::hi))
}

instruction! {
    /// `a * b + c`. CUDA C `__hfma2`.
    "fma.rn.f16x2" => pub fn fma(a: F16x2, b: F16x2, c: F16x2) -> F16x2 {
        let result: u32;
        asm!("fma.rn.f16x2 {}, {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(), in(reg32) c.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([a, b, c], rounding::fma_to_odd)
    }

    /// `a + b`, never contracted with a multiplication. CUDA C `__hadd2_rn`.
    "add.rn.f16x2" => pub fn add(a: F16x2, b: F16x2) -> F16x2 {
        let result: u32;
        asm!("add.rn.f16x2 {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([a, b], |[a, b]| a + b)
    }

    /// `a - b`, never contracted with a multiplication. CUDA C `__hsub2_rn`.
    "sub.rn.f16x2" => pub fn sub(a: F16x2, b: F16x2) -> F16x2 {
        let result: u32;
        asm!("sub.rn.f16x2 {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([a, b], |[a, b]| a - b)
    }

    /// `a * b`, never contracted with an addition. CUDA C `__hmul2_rn`.
    "mul.rn.f16x2" => pub fn mul(a: F16x2, b: F16x2) -> F16x2 {
        let result: u32;
        asm!("mul.rn.f16x2 {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([a, b], |[a, b]| a * b)
    }

    /// The larger operands; if one operand is NaN, the other one. CUDA C `__hmax2`.
    "max.f16x2" => pub fn max(a: F16x2, b: F16x2) -> F16x2 {
        let result: u32;
        asm!("max.f16x2 {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([a, b], rounding::max)
    }

    /// The smaller operands; if one operand is NaN, the other one. CUDA C `__hmin2`.
    "min.f16x2" => pub fn min(a: F16x2, b: F16x2) -> F16x2 {
        let result: u32;
        asm!("min.f16x2 {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([a, b], rounding::min)
    }

    /// `2^x`, relative error at most 2^-9.9. CUDA C `h2exp2`.
    "ex2.approx.f16x2" => pub fn exp2_approx(x: F16x2) -> F16x2 {
        let result: u32;
        asm!("ex2.approx.f16x2 {}, {};", out(reg32) result, in(reg32) x.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([x], |[x]| x.exp2())
    }

    /// The hyperbolic tangent, absolute error at most 2^-10.987. CUDA C `h2tanh_approx`.
    "tanh.approx.f16x2" => pub fn tanh_approx(x: F16x2) -> F16x2 {
        let result: u32;
        asm!("tanh.approx.f16x2 {}, {};", out(reg32) result, in(reg32) x.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        F16x2::from_bits(result)
    } host {
        each([x], |[x]| x.tanh())
    }
}
