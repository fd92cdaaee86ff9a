//! GEMM of 16-bit floats by `mma.sync`: `out[m, n] = sum_k a[m, k] * b[n, k] (+ bias[n])
//! (+ residual[m, n])`.
//!
//! Shapes    a `[m, k]`, b `[n, k]`, f16 or bf16, both K-major; bias `[n]`, residual `[m, n]`, f32;
//!           out `[m, n]`, f32 or the operands' type, may be the residual. Row strides; k a
//!           multiple of 8, rows of a and b 16-byte aligned.
//! Launch    grid `(tiles of the output, 1, 1)`, block `(NUM_THREADS, 1, 1)`, `NUM_STAGES` stages
//!           of A and B in shared memory.
//! Numerics  f32 accumulators, or f16 ones of f16 operands; MMAs of k = 16 in the order of k; bias
//!           and residual added in f32, one rounding at the store.
//! Bound     tensor cores: `m * n * k` FMAs.
//! Source    CUTLASS (multistage mainloop on SM 80); Triton (grouped order of tiles).
//!
//! Measurements: `docs/measurements/gemm_sm80.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::launch;

use crate::gemm::config::mma::{MmaTile, Tile64x64, Tile128x128, Tile128x256};
use crate::gemm::epilogue::mma::Output;
use crate::gemm::epilogue::{Epilogue, Matrix};
use crate::gemm::mainloop::mma::{accumulate, origin};
use crate::gemm::operand::Copier;
use crate::tile::element::Operand16;
use cuda_std::mma::AccumulatorFor;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Rows of tiles of a group: blocks that run at the same time share few rows of A and B, which stay
/// in L2.
const GROUP_M: u32 = 8;

/// Row and column, in tiles, of the block's tile, or `None` past the last one: tiles are numbered
/// down the columns of a group of `GROUP_M` rows of tiles, then on to the next group.
#[inline(always)]
#[track_caller]
fn tile_of_block(num_m: u32, num_n: u32) -> Option<(u32, u32)> {
    let block_idx = thread::block_idx_x();
    let first_m = block_idx / (GROUP_M * num_n).max(1) * GROUP_M;
    if first_m >= num_m {
        return None;
    }
    let group_m = (num_m - first_m).clamp(1, GROUP_M);
    let in_group = block_idx - first_m * num_n;
    let tile_n = in_group / group_m;
    (tile_n < num_n).then_some((first_m + in_group % group_m, tile_n))
}

/// One tile of the output a block.
///
/// # Safety
/// 1. `m` is one element; `a` and `out` hold that many rows, `b` holds `n`, at their strides;
///    `bias` and `residual` are null or hold as much as `out`.
/// 2. `out` is `residual`, or overlaps nothing that is read.
/// 3. Rows of `a` and `b` are 16-byte aligned, and `k` is a multiple of 8.
#[kernel(
    launch_bounds(T::NUM_THREADS, T::MIN_BLOCKS),
    target(sm_80),
    overlaps,
    instances(
        E in [f16, bf16],
        O in [E, f32],
        gemm_sm80_{E}_{O}_128x256 = <4, 4, Tile128x256, E, O, f32>,
        gemm_sm80_{E}_{O}_128x128 = <4, 4, Tile128x128, E, O, f32>,
        gemm_sm80_{E}_{O}_64x64 = <2, 2, Tile64x64, E, O, f32>,
        gemm_sm80_f16_f16_128x128_in_f16 = <4, 4, Tile128x128, f16, f16, f16>,
        gemm_sm80_f16_f32_128x128_in_f16 = <4, 4, Tile128x128, f16, f32, f16>
    )
)]
pub unsafe fn gemm_sm80<
    const M: usize,
    const N: usize,
    T: MmaTile<M, N>,
    E: Operand16,
    O: Output,
    S: AccumulatorFor<E>,
>(
    m: Global<u32>,
    n: u32,
    k: u32,
    a: Global<E>,
    a_stride: u32,
    b: Global<E>,
    b_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<O>,
    out_stride: u32,
) {
    // SAFETY: one element, a step input: no launch of the step writes it.
    let m = unsafe { m.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let tile = tile_of_block(m.div_ceil(T::BLOCK_M), n.div_ceil(T::BLOCK_N));
    let Some((tile_m, tile_n)) = tile else { return };
    let (block_m, block_n) = (tile_m * T::BLOCK_M, tile_n * T::BLOCK_N);
    let a = Copier::new(a, a_stride, block_m, [m, k]);
    let b = Copier::new(b, b_stride, block_n, [n, k]);
    let (warp_m, warp_n) = origin::<M, N, T>();
    let residual = Matrix { ptr: residual, row_stride: residual_stride };
    let out = Matrix { ptr: out, row_stride: out_stride };
    let epilogue = Epilogue { num_rows: m, n, bias, residual, out };
    // SAFETY: the launch gives `SHARED_BYTES` and the operands above; each output is stored by one
    // thread.
    unsafe {
        let acc = accumulate::<M, N, T, E, S>(dynamic_shared_mem(), a, b, k);
        epilogue.store::<M, N, S>((block_m + warp_m, block_n + warp_n), &acc);
    }
}
