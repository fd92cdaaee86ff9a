//! GEMM in f32 on the FMA units: `out[m, n] = sum_k a[m, k] * b[n, k] (+ bias[n]) (+ residual[m,
//! n])`.
//!
//! Shapes    a `[m, k]`, b `[n, k]`, residual and out `[m, n]` with row strides, bias `[n]`; out
//!           may be residual; f32; any sizes. A and B are both K-major, like activations and
//!           weights.
//! Launch    grid `(m / BLOCK_M, n / BLOCK_N, 1)`, block `(NUM_THREADS, 1, 1)`; `NUM_STAGES`
//!           pipeline stages of A and B.
//! Numerics  f32; each output is one chain of FMAs in the order of k, for every tile.
//! Bound     compute: `m * n * k` FMAs.
//! Source    S. Gray, maxas SGEMM (lane pattern); CUTLASS (stages).
//!
//! Tiles stay K-major in shared memory, filled by `cp.async`: transposing them would cost registers
//! and four stores a load. Threads read vectors of four elements along k, which the swizzle
//! spreads over the banks. Rejected tiles: `docs/measurements/gemm_f32.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;

use crate::gemm::config::fma::{
    F32Tile, LANES_M, LANES_N, THREAD_M, Tile64x64, Tile64x64Unaligned, Tile128x256,
};
use crate::gemm::epilogue::{Epilogue, Matrix};
use crate::gemm::mainloop::fma::{ThreadTile, accumulate};
use crate::gemm::operand::Copier;
use cuda_std::prelude::*;

/// A block computes one tile of the output.
///
/// # Safety
/// 1. `m` is one element; `a`, `out` and `residual` hold that many rows, `b` holds `n`, at their
///    strides; `bias` holds `n` elements; `bias` and `residual` may be null.
/// 2. `out` is `residual`, or overlaps nothing that is read.
/// 3. Unless the tile is unaligned, rows of `a` and `b` are 16-byte aligned, and `k` is a multiple
///    of 4.
#[kernel(
    launch_bounds(T::NUM_THREADS, T::MIN_BLOCKS),
    overlaps,
    instances(
        gemm_f32_128x256 = <Tile128x256>,
        gemm_f32_64x64 = <Tile64x64>,
        gemm_f32_64x64_unaligned = <Tile64x64Unaligned>
    )
)]
pub unsafe fn gemm_f32<T: F32Tile>(
    m: Global<u32>,
    n: u32,
    k: u32,
    a: Global<f32>,
    a_stride: u32,
    b: Global<f32>,
    b_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<f32>,
    out_stride: u32,
) {
    // SAFETY: one element, a step input: no launch of the step writes it.
    let m = unsafe { m.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let (block_m, block_n) =
        (thread::block_idx_x() * T::BLOCK_M, thread::block_idx_y() * T::BLOCK_N);
    if block_m >= m {
        return;
    }
    let a = Copier::new(a, a_stride, block_m, [m, k]);
    let b = Copier::new(b, b_stride, block_n, [n, k]);
    let residual = Matrix { ptr: residual, row_stride: residual_stride };
    let out = Matrix { ptr: out, row_stride: out_stride };
    let epilogue = Epilogue { num_rows: m, n, bias, residual, out };
    let tile = ThreadTile::from_thread_idx::<T>();
    // SAFETY: the launch gives `SHARED_BYTES` and the operands above.
    let acc = unsafe { accumulate::<T>(dynamic_shared_mem(), a, b, k, tile) };
    let acc = acc.as_ref();
    unroll!(j in 0..T::THREAD_N, {
        let column = block_n + tile.n + LANES_N * j as u32;
        for i in 0..THREAD_M {
            let row = block_m + tile.m + LANES_M * i as u32;
            if row < m && column < n {
                let at = |stride: u32| row as usize * stride as usize + column as usize;
                // SAFETY: row and column are inside, by the check.
                unsafe { epilogue.finish(column, at, acc[j][i]) };
            }
        }
    });
}
