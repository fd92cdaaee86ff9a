//! Packed arithmetic of f16 and bf16, rounded and approximate.

use cuda_std::prelude::*;
use cuda_std::{Bf16x2, F16x2};

/// Threads of a block, one pair each.
pub const NUM_THREADS: u32 = 256;

/// `fma(a, b, c)`, and sum, difference, product, maximum and minimum of `a` and `b`; all are
/// `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn f16x2_rounded(
    a: Global<F16x2>,
    b: Global<F16x2>,
    c: Global<F16x2>,
    fma: GlobalMut<F16x2>,
    add: GlobalMut<F16x2>,
    sub: GlobalMut<F16x2>,
    mul: GlobalMut<F16x2>,
    max: GlobalMut<F16x2>,
    min: GlobalMut<F16x2>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let (a, b, c) = (a.get(i), b.get(i), c.get(i));
        fma.set(i, f16x2::fma(a, b, c));
        add.set(i, f16x2::add(a, b));
        sub.set(i, f16x2::sub(a, b));
        mul.set(i, f16x2::mul(a, b));
        max.set(i, f16x2::max(a, b));
        min.set(i, f16x2::min(a, b));
    }
}

/// `2^x` and `tanh(x)`, approximate; all are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn f16x2_approx(x: Global<F16x2>, exp2: GlobalMut<F16x2>, tanh: GlobalMut<F16x2>) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let x = x.get(i);
        exp2.set(i, f16x2::exp2_approx(x));
        tanh.set(i, f16x2::tanh_approx(x));
    }
}

/// `fma(a, b, c)`, maximum and minimum of `a` and `b`; all are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn bf16x2_rounded(
    a: Global<Bf16x2>,
    b: Global<Bf16x2>,
    c: Global<Bf16x2>,
    fma: GlobalMut<Bf16x2>,
    max: GlobalMut<Bf16x2>,
    min: GlobalMut<Bf16x2>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let (a, b, c) = (a.get(i), b.get(i), c.get(i));
        fma.set(i, bf16x2::fma(a, b, c));
        max.set(i, bf16x2::max(a, b));
        min.set(i, bf16x2::min(a, b));
    }
}
