//! Arithmetic in f32, rounded and approximate.

use cuda_std::prelude::*;

/// Threads of a block, an element each.
pub const NUM_THREADS: u32 = 256;

/// `fma(a, b, c)`, `max(a, b)` and `min(a, b)`; all are `[len]`.
///
/// # Safety
/// 1. The views hold an element a thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn math_rounded_f32(
    a: Global<f32>,
    b: Global<f32>,
    c: Global<f32>,
    fma: GlobalMut<f32>,
    max: GlobalMut<f32>,
    min: GlobalMut<f32>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: an element a thread.
    unsafe {
        let (a, b, c) = (a.get(i), b.get(i), c.get(i));
        fma.set(i, math::fma(a, b, c));
        max.set(i, math::max(a, b));
        min.set(i, math::min(a, b));
    }
}

/// `2^x`, `1 / x` and `1 / sqrt(x)`, approximate; all are `[len]`.
///
/// # Safety
/// 1. The views hold an element a thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn math_approx_f32(
    x: Global<f32>,
    exp2: GlobalMut<f32>,
    rcp: GlobalMut<f32>,
    rsqrt: GlobalMut<f32>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: an element a thread.
    unsafe {
        let x = x.get(i);
        exp2.set(i, math::exp2_approx(x));
        rcp.set(i, math::rcp_approx(x));
        rsqrt.set(i, math::rsqrt_approx(x));
    }
}
