//! The FMA mainloop, for f32: stages are copied ahead, threads read vectors of four elements along
//! k.

use crate::gemm::config::fma::{
    BLOCK_K, Copies, F32Tile, LANES_M, LANES_N, THREAD_M, VEC_ELEMS, VECS_PER_ROW,
};
use crate::gemm::operand::Copier;
use crate::tile::smem::swizzle;
use cuda_std::prelude::*;

/// A thread's outputs in its block's tile: rows `m + LANES_M * i`, columns `n + LANES_N * j`.
#[derive(Clone, Copy)]
pub struct ThreadTile {
    /// First row of the thread.
    pub m: u32,
    /// First column of the thread.
    pub n: u32,
}

impl ThreadTile {
    /// Pairs of lanes share a row of A, lanes two apart a row of B, so that a 16-byte load of a
    /// half-warp is one pass over the banks.
    #[inline(always)]
    pub fn from_thread_idx<T: F32Tile>() -> Self {
        let (lane_id, warp_idx) = (warp::lane_id(), warp::warp_idx());
        let lane_m = (lane_id >> 1) % LANES_M;
        let lane_n = (lane_id & 1) | (lane_id >> 4) << 1;
        let (warp_m, warp_n) = (warp_idx % T::WARPS_M, warp_idx / T::WARPS_M);
        ThreadTile {
            m: warp_m * LANES_M * THREAD_M as u32 + lane_m,
            n: warp_n * LANES_N * T::THREAD_N as u32 + lane_n,
        }
    }
}

/// A thread's outputs of the block's tile: A times B over `k`.
///
/// # Safety
/// 1. `smem_a` holds `T::SHARED_BYTES`, and nothing else accesses them.
/// 2. `a` and `b` are as [`Copier::copy_tile`] requires.
#[inline(always)]
pub unsafe fn accumulate<T: F32Tile>(
    smem_a: Shared<f32>,
    a: Copier<f32, Copies<T>>,
    b: Copier<f32, Copies<T>>,
    k: u32,
    tile: ThreadTile,
) -> T::Acc {
    let mut acc = T::Acc::default();
    // A stage is overwritten one barrier after its last read. SAFETY: copies are waited for, and
    // the barrier passed, before a stage is read.
    unsafe {
        let smem_b = smem_a.offset(T::NUM_STAGES * T::BLOCK_M * BLOCK_K);
        let copy_stage = |stage_idx: u32, first_k: u32| {
            let smem_a = smem_a.offset(stage_idx * T::BLOCK_M * BLOCK_K);
            let smem_b = smem_b.offset(stage_idx * T::BLOCK_N * BLOCK_K);
            a.copy_tile(smem_a, T::BLOCK_M, first_k);
            b.copy_tile(smem_b, T::BLOCK_N, first_k);
            cp_async::commit();
        };
        for stage_idx in 0..T::NUM_STAGES - 1 {
            copy_stage(stage_idx, stage_idx * BLOCK_K);
        }
        let vecs_a = smem_a.offset(swizzle::<f32, BLOCK_K>(tile.m, 0));
        let vecs_b = smem_b.offset(swizzle::<f32, BLOCK_K>(tile.n, 0));
        let mut stage_idx = 0;
        let mut first_k = 0;
        while first_k < k {
            cp_async::wait(T::NUM_STAGES - 2);
            thread::sync_threads();
            let free_stage = if stage_idx == 0 { T::NUM_STAGES } else { stage_idx } - 1;
            copy_stage(free_stage, first_k + (T::NUM_STAGES - 1) * BLOCK_K);
            let vecs_a = vecs_a.offset(stage_idx * T::BLOCK_M * BLOCK_K);
            let vecs_b = vecs_b.offset(stage_idx * T::BLOCK_N * BLOCK_K);
            unroll!(vec_idx in 0..VECS_PER_ROW as usize, {
                multiply::<T>(vecs_a, vecs_b, vec_idx as u32, &mut acc);
            });
            stage_idx = if stage_idx == T::NUM_STAGES - 1 { 0 } else { stage_idx + 1 };
            first_k += BLOCK_K;
        }
    }
    acc
}

/// Accumulates four columns of A and B, vector `vec_idx`; `smem_a` and `smem_b` start at vector
/// 0 of the thread's first row.
///
/// # Safety
/// 1. The views are in tiles whose copies have completed, and that no thread writes.
#[inline(always)]
unsafe fn multiply<T: F32Tile>(
    smem_a: Shared<f32>,
    smem_b: Shared<f32>,
    vec_idx: u32,
    acc: &mut T::Acc,
) {
    let acc = acc.as_mut();
    let smem_a = smem_a.xor(vec_idx * VEC_ELEMS);
    // Rows four apart differ in the upper bit of their swizzle.
    let smem_b = [smem_b.xor(vec_idx * VEC_ELEMS), smem_b.xor((vec_idx ^ 2) * VEC_ELEMS)];
    let mut a = [[0.0; VEC_ELEMS as usize]; THREAD_M];
    // SAFETY: the rows are inside the block's tiles.
    unsafe {
        unroll!(i in 0..THREAD_M, {
            a[i] = smem_a.get_vec_at::<{ LANES_M * BLOCK_K * i as u32 }, 4>();
        });
        unroll!(j in 0..T::THREAD_N, {
            let b = smem_b[j % 2].get_vec_at::<{ LANES_N * BLOCK_K * j as u32 }, 4>();
            for k in 0..VEC_ELEMS as usize {
                for i in 0..THREAD_M {
                    acc[j][i] = math::fma(a[i][k], b[k], acc[j][i]);
                }
            }
        });
    }
}
