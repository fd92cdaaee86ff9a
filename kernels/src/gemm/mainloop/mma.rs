//! The multistage mainloop: stages are copied ahead, and fragments loaded one step ahead.

use crate::gemm::config::mma::{Copies, MmaTile, STEP};
use crate::gemm::operand::{CopiedTile, Copier};
use crate::tile::element::Operand16;
use cuda_std::mma::{AccumulatorFor, AccumulatorType, FragmentA, FragmentB};
use cuda_std::prelude::*;
use cuda_std::{matrix, warp};

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
    a: Copier<E, Copies<M, N, T>>,
    b: Copier<E, Copies<M, N, T>>,
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
            a.copy_tile(smem_a, T::BLOCK_M, first_k);
            b.copy_tile(smem_b, T::BLOCK_N, first_k);
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

/// A thread's accumulators by MMA tiles of 16 x 16 outputs, column by column: those of the left and
/// of the right eight columns of each.
pub type Accumulators<const M: usize, const N: usize, S> =
    [[[<S as AccumulatorType>::Accumulator; 2]; M]; N];

/// The warp's first row and column in the block's tile.
#[inline(always)]
pub fn origin<const M: usize, const N: usize, T: MmaTile<M, N>>() -> (u32, u32) {
    let warp_idx = warp::warp_idx();
    (warp_idx % T::WARPS_M * T::WARP_M, warp_idx / T::WARPS_M * T::WARP_N)
}

/// A warp's operands for one step of 16 columns of k.
#[derive(Clone, Copy)]
pub struct Fragments<const M: usize, const N: usize, E> {
    a: [FragmentA<E>; M],
    b: [[FragmentB<E>; 2]; N],
}

impl<const M: usize, const N: usize, E: Operand16> Fragments<M, N, E> {
    /// Issues the MMAs of the step.
    #[inline(always)]
    #[track_caller]
    pub fn multiply<S: AccumulatorFor<E>>(&self, acc: &mut Accumulators<M, N, S>) {
        unroll!(i in 0..M, {
            for j in 0..N {
                for half in 0..2 {
                    acc[j][i][half] =
                        S::m16n8k16(self.a[i], self.b[j][half], acc[j][i][half]);
                }
            }
        });
    }
}

/// A thread's addresses for `ldmatrix` in the first stage of A and B.
#[derive(Clone, Copy)]
pub struct Reader<E> {
    a: Shared<E>,
    b: Shared<E>,
}

impl<E: Operand16> Reader<E> {
    /// The thread's rows in the tiles of A and B that start at `smem_a` and `smem_b`.
    #[inline(always)]
    pub fn new<const M: usize, const N: usize, T: MmaTile<M, N>>(
        smem_a: Shared<E>,
        smem_b: Shared<E>,
    ) -> Self {
        let lane_id = warp::lane_id();
        let (warp_m, warp_n) = origin::<M, N, T>();
        // Matrices 0 and 1 follow each other along m in A, and along k in B.
        let a = Copies::<M, N, T>::swizzle(warp_m + lane_id % 16, lane_id / 16);
        let b =
            Copies::<M, N, T>::swizzle(warp_n + lane_id % 8 + lane_id / 16 * 8, lane_id / 8 % 2);
        Reader { a: smem_a.offset(a), b: smem_b.offset(b) }
    }

    /// The operands of step `step` of stage `stage_idx`.
    ///
    /// # Safety
    /// 1. The stage is written, and no thread writes it at the same time.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load<const M: usize, const N: usize, T: MmaTile<M, N>>(
        self,
        stage_idx: u32,
        step: usize,
    ) -> Fragments<M, N, E> {
        let a = self.a.offset(stage_idx * T::BLOCK_M * T::BLOCK_K).xor(step as u32 * STEP);
        let b = self.b.offset(stage_idx * T::BLOCK_N * T::BLOCK_K).xor(step as u32 * STEP);
        let mut fragments = Fragments {
            a: [FragmentA::from_words([0; 4]); M],
            b: [[FragmentB::from_words([0; 2]); 2]; N],
        };
        // Rows a multiple of 16 apart share their swizzle. SAFETY: they are inside the tiles.
        unsafe {
            unroll!(i in 0..M, {
                let row = i as u32 * STEP;
                fragments.a[i] = FragmentA::from_words(matrix::load_x4(a.offset(row * T::BLOCK_K)));
            });
            unroll!(j in 0..N, {
                let row = j as u32 * STEP;
                let [left, right, more_left, more_right] =
                    matrix::load_x4(b.offset(row * T::BLOCK_K));
                fragments.b[j] = [
                    FragmentB::from_words([left, right]),
                    FragmentB::from_words([more_left, more_right]),
                ];
            });
        }
        fragments
    }
}
