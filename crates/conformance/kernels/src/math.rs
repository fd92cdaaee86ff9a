//! Arithmetic in f32, rounded and approximate.

use cuda_std::prelude::*;

/// Threads of a block, one element each.
pub const NUM_THREADS: u32 = 256;

/// `fma(a, b, c)`, `max(a, b)` and `min(a, b)`; all are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
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
    // SAFETY: one element per thread.
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
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn math_approx_f32(
    x: Global<f32>,
    exp2: GlobalMut<f32>,
    rcp: GlobalMut<f32>,
    rsqrt: GlobalMut<f32>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let x = x.get(i);
        exp2.set(i, math::exp2_approx(x));
        rcp.set(i, math::rcp_approx(x));
        rsqrt.set(i, math::rsqrt_approx(x));
    }
}

/// `sqrt(x)`, `log2(x)` and `tanh(x)` of `x`, sine and cosine of `angle`, approximate; all are
/// `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn math_transcendental_f32(
    x: Global<f32>,
    angle: Global<f32>,
    sqrt: GlobalMut<f32>,
    log2: GlobalMut<f32>,
    tanh: GlobalMut<f32>,
    sin: GlobalMut<f32>,
    cos: GlobalMut<f32>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let (x, angle) = (x.get(i), angle.get(i));
        sqrt.set(i, math::sqrt_approx(x));
        log2.set(i, math::log2_approx(x));
        tanh.set(i, math::tanh_approx(x));
        sin.set(i, math::sin_approx(angle));
        cos.set(i, math::cos_approx(angle));
    }
}

/// Bytes of `a` and `b` selected by `c`, and two bitwise functions of all three; all are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn math_bits_u32(
    a: Global<u32>,
    b: Global<u32>,
    c: Global<u32>,
    bytes: GlobalMut<u32>,
    majority: GlobalMut<u32>,
    choice: GlobalMut<u32>,
) {
    const MAJORITY: u8 = 0xf0 & 0xcc | 0xf0 & 0xaa | 0xcc & 0xaa;
    const CHOICE: u8 = 0xf0 & 0xcc | !0xf0 & 0xaa;
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let (a, b, c) = (a.get(i), b.get(i), c.get(i));
        bytes.set(i, math::byte_perm(a, b, c));
        majority.set(i, math::lop3::<MAJORITY>(a, b, c));
        choice.set(i, math::lop3::<CHOICE>(a, b, c));
    }
}
