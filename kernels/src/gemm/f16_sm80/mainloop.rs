//! The multistage mainloop: stages are copied ahead, and fragments loaded one step ahead.

use super::copy::Copier;
use super::tile::MmaTile;
use super::warp_tile::{Accumulators, Reader};
use crate::tile::element::Operand16;
use cuda_std::mma::AccumulatorFor;
use cuda_std::prelude::*;

/// The stage after `stage_idx`.
#[inline(always)]
fn next(stage_idx: u32, num_stages: u32) -> u32 {
    if stage_idx == num_stages - 1 { 0 } else { stage_idx + 1 }
}

/// The accumulators of the block's tile: A times B over `k`.
///
/// # Safety
/// 1. `smem` holds `T::SHARED_BYTES`, and nothing else accesses them.
/// 2. `a` and `b` are as [`Copier::copy_tile`] requires.
#[inline(always)]
#[track_caller]
pub unsafe fn accumulate<
    const M: usize,
    const N: usize,
    T: MmaTile<M, N>,
    E: Operand16,
    S: AccumulatorFor<E>,
>(
    smem: Shared<E>,
    a: Copier<E>,
    b: Copier<E>,
    k: u32,
) -> Accumulators<M, N, S> {
    let (smem_a, smem_b) = (smem, smem.offset(T::NUM_STAGES * T::BLOCK_M * T::BLOCK_K));
    let reader = Reader::new::<M, N, T>(smem_a, smem_b);
    let mut acc = [[[S::ZERO; 2]; M]; N];
    // A stage is overwritten after the barrier that follows the last load of its fragments.
    // SAFETY: a stage is read after its copies are waited for and a barrier.
    unsafe {
        let copy_stage = |stage_idx: u32, first_k: u32| {
            let smem_a = smem_a.offset(stage_idx * T::BLOCK_M * T::BLOCK_K);
            let smem_b = smem_b.offset(stage_idx * T::BLOCK_N * T::BLOCK_K);
            a.copy_tile::<M, N, T>(smem_a, T::BLOCK_M, first_k);
            b.copy_tile::<M, N, T>(smem_b, T::BLOCK_N, first_k);
            cp_async::commit();
        };
        for stage_idx in 0..T::NUM_STAGES - 1 {
            copy_stage(stage_idx, stage_idx * T::BLOCK_K);
        }
        cp_async::wait(T::NUM_STAGES - 2);
        thread::sync_threads();
        let mut fragments = reader.load::<M, N, T>(0, 0);
        let (mut read_stage, mut free_stage) = (0, T::NUM_STAGES - 1);
        let mut first_k = 0;
        while first_k < k {
            unroll!(step in 0..T::NUM_STEPS, {
                if step == T::NUM_STEPS - 1 {
                    cp_async::wait(T::NUM_STAGES - 2);
                    thread::sync_threads();
                    read_stage = next(read_stage, T::NUM_STAGES);
                }
                let ahead = reader.load::<M, N, T>(read_stage, (step + 1) % T::NUM_STEPS);
                if step == 0 {
                    copy_stage(free_stage, first_k + (T::NUM_STAGES - 1) * T::BLOCK_K);
                    free_stage = next(free_stage, T::NUM_STAGES);
                }
                fragments.multiply::<S>(&mut acc);
                fragments = ahead;
            });
            first_k += T::BLOCK_K;
        }
    }
    acc
}
