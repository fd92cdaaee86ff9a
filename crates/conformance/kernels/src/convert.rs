//! `cvt` between f32, 16-bit and 8-bit floats, and integers.

use cuda_std::prelude::*;
use cuda_std::{Bf16x2, E4m3x2, E5m2x2, F16x2};
use half::{bf16, f16};

/// Threads of a block, one element each.
pub const NUM_THREADS: u32 = 256;

/// `x` as f16 by both roundings, and as bf16; `x` and `y` as pairs. All are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn convert_f32_to_16_bits(
    x: Global<f32>,
    y: Global<f32>,
    f16_rn: GlobalMut<f16>,
    f16_rz: GlobalMut<f16>,
    bf16_rn: GlobalMut<bf16>,
    f16x2: GlobalMut<F16x2>,
    bf16x2: GlobalMut<Bf16x2>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let (x, y) = (x.get(i), y.get(i));
        f16_rn.set(i, convert::f32_to_f16(x));
        f16_rz.set(i, convert::f32_to_f16_rz(x));
        bf16_rn.set(i, convert::f32_to_bf16(x));
        f16x2.set(i, convert::f32_to_f16x2(x, y));
        bf16x2.set(i, convert::f32_to_bf16x2(x, y));
    }
}

/// `x` as integers, rounded to nearest and towards zero. All are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn convert_f32_to_integers(
    x: Global<f32>,
    i32_rn: GlobalMut<i32>,
    i32_rz: GlobalMut<i32>,
    u32_rn: GlobalMut<u32>,
    u32_rz: GlobalMut<u32>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let x = x.get(i);
        i32_rn.set(i, convert::f32_to_i32_rn(x));
        i32_rz.set(i, convert::f32_to_i32_rz(x));
        u32_rn.set(i, convert::f32_to_u32_rn(x));
        u32_rz.set(i, convert::f32_to_u32_rz(x));
    }
}

/// Both f16 of each pair `x` as f32: `x` is `[len]`, `out` `[len, 2]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid, `out` two.
#[kernel(launch_bounds(NUM_THREADS))]
pub unsafe fn convert_f16_to_f32(x: Global<F16x2>, out: GlobalMut<f32>) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread, two of `out`.
    unsafe {
        let x = x.get(i);
        out.set_vec(2 * i, [convert::f16_to_f32(x.lo()), convert::f16_to_f32(x.hi())]);
    }
}

/// `x` and `y` as pairs of 8-bit floats, and two such pairs. All are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS), target(sm_90a))]
pub unsafe fn convert_f32_to_fp8(
    x: Global<f32>,
    y: Global<f32>,
    e4m3x2: GlobalMut<E4m3x2>,
    e5m2x2: GlobalMut<E5m2x2>,
    e4m3x4: GlobalMut<u32>,
) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let (x, y) = (x.get(i), y.get(i));
        e4m3x2.set(i, convert::f32_to_e4m3x2(x, y));
        e5m2x2.set(i, convert::f32_to_e5m2x2(x, y));
        e4m3x4.set(i, convert::f32_to_e4m3x4([x, y, -x, -y]));
    }
}

/// The two codes in `x`, read as e4m3 and as e5m2, as pairs of f16. All are `[len]`.
///
/// # Safety
/// 1. The views hold one element per thread of the grid.
#[kernel(launch_bounds(NUM_THREADS), target(sm_90a))]
pub unsafe fn convert_fp8_to_f16(x: Global<u16>, e4m3: GlobalMut<F16x2>, e5m2: GlobalMut<F16x2>) {
    let i = thread::index_1d() as usize;
    // SAFETY: one element per thread.
    unsafe {
        let x = x.get(i);
        e4m3.set(i, convert::e4m3x2_to_f16x2(E4m3x2::from_bits(x)));
        e5m2.set(i, convert::e5m2x2_to_f16x2(E5m2x2::from_bits(x)));
    }
}
