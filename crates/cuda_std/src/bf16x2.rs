//! Arithmetic on two bf16 at once, each result rounded once. The warp need not be converged.
//!
//! SM 80 has no `add.bf16x2` and no `mul.bf16x2`: use `fma(a, 1, b)` and `fma(a, b, -0)`.

use crate::Bf16x2;

#[cfg(target_arch = "nvptx64")]
use core::arch::asm;
#[cfg(not(target_arch = "nvptx64"))]
use {
    crate::rounding::{self, Rounding, to_bf16},
    half::bf16,
};

/// `f` of both elements, in f64, rounded to the element type.
#[cfg(not(target_arch = "nvptx64"))]
fn each<const N: usize>(operands: [Bf16x2; N], f: impl Fn([f64; N]) -> f64) -> Bf16x2 {
    let half = |of: fn(Bf16x2) -> bf16| {
        to_bf16(f(operands.map(|pair| of(pair).to_f64())), Rounding::Nearest)
    };
    Bf16x2::new(half(Bf16x2::lo), half(Bf16x2::hi))
}

instruction! {
    /// `a * b + c`. CUDA C `__hfma2`.
    "fma.rn.bf16x2" => pub fn fma(a: Bf16x2, b: Bf16x2, c: Bf16x2) -> Bf16x2 {
        let result: u32;
        asm!("fma.rn.bf16x2 {}, {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(), in(reg32) c.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        Bf16x2::from_bits(result)
    } host {
        each([a, b, c], rounding::fma_to_odd)
    }

    /// The larger operands; if one operand is NaN, the other one. CUDA C `__hmax2`.
    "max.bf16x2" => pub fn max(a: Bf16x2, b: Bf16x2) -> Bf16x2 {
        let result: u32;
        asm!("max.bf16x2 {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        Bf16x2::from_bits(result)
    } host {
        each([a, b], rounding::max)
    }

    /// The smaller operands; if one operand is NaN, the other one. CUDA C `__hmin2`.
    "min.bf16x2" => pub fn min(a: Bf16x2, b: Bf16x2) -> Bf16x2 {
        let result: u32;
        asm!("min.bf16x2 {}, {}, {};", out(reg32) result,
            in(reg32) a.to_bits(), in(reg32) b.to_bits(),
            options(pure, nomem, nostack, preserves_flags));
        Bf16x2::from_bits(result)
    } host {
        each([a, b], rounding::min)
    }
}
