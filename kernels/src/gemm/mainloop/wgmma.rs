//! The mainloop: the producer loads stages of A and B by TMA, the consumers issue their MMAs.

use super::accumulators::{Accumulators, AddStage, MAX_SUBTILES_N, Multiply};
use crate::gemm::config::wgmma::{ROW_BYTES, WgmmaTile, block_k};
use crate::tile::element::WgmmaOperand;
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, MatrixDescriptor, Swizzle};

/// The stages of A and B, and the pipeline that hands them over.
#[derive(Clone, Copy)]
pub struct Mainloop<E> {
    smem_a: Shared<E>,
    smem_b: Shared<E>,
    pipeline: Pipeline,
    /// First column of the block's share of k.
    first_k: u32,
    num_k_blocks: u32,
}

impl<E: WgmmaOperand> Mainloop<E> {
    /// The stages at the start of `smem`, for `k` columns.
    ///
    /// # Safety
    /// 1. `smem` is the block's, `T::SHARED_BYTES`, and aligned to 1024 bytes.
    /// 2. One thread calls [`Mainloop::init`], and a cluster barrier follows.
    #[inline(always)]
    pub unsafe fn new<T: WgmmaTile>(smem: Shared<u8>, k: u32) -> Self {
        let barriers = smem.offset(T::BARRIERS_AT).cast();
        let k_blocks = k.div_ceil(const { block_k::<E>() });
        let rank = if T::SPLIT_K > 1 { cluster::block_rank() } else { 0 };
        let [first, end] = [rank, rank + 1].map(|rank| k_blocks * rank / T::SPLIT_K);
        Mainloop {
            smem_a: smem.cast(),
            smem_b: smem.offset(T::NUM_STAGES * T::A_BYTES).cast(),
            // SAFETY: the caller's promise.
            pipeline: unsafe { Pipeline::new(barriers, T::NUM_STAGES) },
            first_k: first * const { block_k::<E>() },
            num_k_blocks: end - first,
        }
    }

    /// Initialises the barriers of the pipeline.
    #[inline(always)]
    #[track_caller]
    pub fn init<T: WgmmaTile>(self) {
        // Blocks that multicast write to each other's stages: a stage is empty when the consumers
        // of all of these blocks have read it.
        self.pipeline.init(T::NUM_CONSUMERS * 4 * T::CLUSTER_TILES);
    }

    /// Loads the operands of a tile, whose first rows of A and B are `row_a` and `row_b`; returns
    /// the next stage.
    ///
    /// # Safety
    /// 1. One thread of the block calls this, for the same tiles as the consumers, and then
    ///    [`Mainloop::finish`].
    /// 2. `a` and `b` are tensor maps with boxes of `block_k::<E>()` columns and the rows that a block
    ///    loads.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load_tile<T: WgmmaTile>(
        self,
        mut stage: Stage,
        [a, b]: [TensorMap; 2],
        [row_a, row_b]: [u32; 2],
    ) -> Stage {
        let [a_share, b_share] = Share::of_operands::<T>();
        let mut k = self.first_k;
        for _ in 0..self.num_k_blocks {
            self.pipeline.wait_empty(stage);
            let full_barrier = self.pipeline.full_barrier(stage);
            full_barrier.arrive_expect_tx(T::A_BYTES + T::B_BYTES);
            let smem_a =
                self.smem_a.offset(stage.stage_idx * T::BLOCK_M * const { block_k::<E>() });
            let smem_b =
                self.smem_b.offset(stage.stage_idx * T::BLOCK_N * const { block_k::<E>() });
            // SAFETY: the stage is empty in all blocks that the copies write to.
            unsafe {
                load_rows(smem_a, a, [k, row_a], full_barrier, T::BLOCK_M, a_share);
                load_rows(smem_b, b, [k, row_b], full_barrier, T::BLOCK_N, b_share);
            }
            k += const { block_k::<E>() };
            stage = self.pipeline.next(stage);
        }
        stage
    }

    /// Waits until nothing reads or writes the stages; `stage` is the one after the last tile.
    #[inline(always)]
    #[track_caller]
    pub fn finish(self, stage: Stage) {
        self.pipeline.drain(stage);
    }

    /// Multiplies the operands of a tile; returns the warpgroup's accumulators over the block's
    /// share of k, and the next stage.
    ///
    /// # Safety
    /// 1. All threads of the two consumer warpgroups call this, for the same tiles as the producer.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn multiply_tile<T: WgmmaTile<Acc: Multiply<E>>>(
        self,
        mut stage: Stage,
        [row_a, row_b]: [u32; 2],
    ) -> (T::Acc, Stage) {
        let a = MatrixDescriptor::k_major(self.smem_a, Swizzle::B128).advance(row_a * ROW_BYTES);
        let b = MatrixDescriptor::k_major(self.smem_b, Swizzle::B128).advance(row_b * ROW_BYTES);
        let mut acc = T::Acc::start();
        let mut previous = stage;
        for k_block in 0..self.num_k_blocks {
            self.pipeline.wait_full(stage);
            wgmma::fence();
            let a = a.advance(stage.stage_idx * T::A_BYTES);
            let b = b.advance(stage.stage_idx * T::B_BYTES);
            // SAFETY: the stage is full, and stays so until it is released.
            unsafe { T::Acc::multiply(&mut acc, a, b) };
            wgmma::commit();
            // The MMAs of this stage are in flight while those of the previous one are waited for.
            wgmma::wait_group::<1>();
            if k_block > 0 {
                self.release::<T>(previous);
            }
            previous = stage;
            stage = self.pipeline.next(stage);
        }
        let acc = T::Acc::wait(acc);
        if T::SPLIT_K == 1 || self.num_k_blocks > 0 {
            self.release::<T>(previous);
        }
        (acc, stage)
    }

    /// As [`Mainloop::multiply_tile`], but the products of each stage are accumulated from zero, and
    /// then added to the warpgroup's accumulators in f32, times the factors of the stage.
    ///
    /// # Safety
    /// 1. As [`Mainloop::multiply_tile`].
    /// 2. `factors` is valid for each of the tile's `num_k_blocks`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn add_tile<T: WgmmaTile<Acc: AddStage<E>>>(
        self,
        mut stage: Stage,
        [row_a, row_b]: [u32; 2],
        factors: impl StageFactors,
        turns: Turns,
    ) -> (T::Acc, Stage) {
        const { assert!(T::SPLIT_K == 1) };
        let a = MatrixDescriptor::k_major(self.smem_a, Swizzle::B128).advance(row_a * ROW_BYTES);
        let b = MatrixDescriptor::k_major(self.smem_b, Swizzle::B128).advance(row_b * ROW_BYTES);
        let mut acc = T::Acc::zero();
        // SAFETY: the caller's promise.
        let mut next_factors = unsafe { factors.of_stage(0) };
        for k_block in 0..self.num_k_blocks {
            let stage_factors = next_factors;
            let next = (k_block + 1).min(self.num_k_blocks - 1);
            // SAFETY: the caller's promise. Loaded early, to be there when the MMAs are done.
            next_factors = unsafe { factors.of_stage(next) };
            self.pipeline.wait_full(stage);
            let a = a.advance(stage.stage_idx * T::A_BYTES);
            let b = b.advance(stage.stage_idx * T::B_BYTES);
            // SAFETY: the stage is full, and stays so until it is released.
            unsafe {
                acc.add_stage::<T>(a, b, stage_factors, turns, || self.release::<T>(stage));
            }
            stage = self.pipeline.next(stage);
        }
        (acc, stage)
    }

    /// Arrives, for the warp, on the empty barriers of all blocks that write to the stage.
    #[inline(always)]
    #[track_caller]
    fn release<T: WgmmaTile>(self, stage: Stage) {
        let empty_barrier = self.pipeline.empty_barrier(stage);
        let lane_id = warp::lane_id();
        if T::CLUSTER_TILES > 1 {
            if lane_id < T::CLUSTER_TILES {
                empty_barrier.peer(lane_id).arrive();
            }
        } else if lane_id == 0 {
            empty_barrier.arrive();
        }
    }
}

/// The order of the consumer warpgroups at the tensor cores: each issues its MMAs when those of the
/// one before it are nearly done, and adds up their sums while the others' MMAs run. Without an
/// order all of them would add at the same time, and the tensor cores be idle.
#[derive(Clone, Copy)]
pub struct Turns {
    warpgroup_idx: u32,
}

/// Threads at a barrier of [`Turns`]: the warpgroup that waits, and the one that passes its turn.
const TURN_THREADS: u32 = 2 * warp::WARPGROUP_SIZE;

impl Turns {
    /// Those of the calling consumer warpgroup.
    #[inline(always)]
    pub fn of_warpgroup() -> Self {
        Turns { warpgroup_idx: warp::warpgroup_idx() }
    }

    /// Begins with the turn of warpgroup 0.
    #[inline(always)]
    #[track_caller]
    pub fn start<T: WgmmaTile>(self) {
        if self.warpgroup_idx == T::NUM_CONSUMERS - 1 {
            self.pass::<T>();
        }
    }

    /// Waits for the warpgroup's turn.
    #[inline(always)]
    #[track_caller]
    pub fn wait<T: WgmmaTile>(self) {
        match self.warpgroup_idx {
            _ if T::NUM_CONSUMERS == 1 => {}
            0 => barrier::sync::<2, TURN_THREADS>(),
            1 => barrier::sync::<3, TURN_THREADS>(),
            _ => barrier::sync::<4, TURN_THREADS>(),
        }
    }

    /// Ends the warpgroup's turn.
    #[inline(always)]
    #[track_caller]
    pub fn pass<T: WgmmaTile>(self) {
        match (self.warpgroup_idx + 1) % T::NUM_CONSUMERS {
            _ if T::NUM_CONSUMERS == 1 => {}
            0 => barrier::arrive::<2, TURN_THREADS>(),
            1 => barrier::arrive::<3, TURN_THREADS>(),
            _ => barrier::arrive::<4, TURN_THREADS>(),
        }
    }

    /// Leaves no barrier with threads that have arrived.
    #[inline(always)]
    #[track_caller]
    pub fn finish<T: WgmmaTile>(self) {
        if self.warpgroup_idx == 0 {
            self.wait::<T>();
        }
    }
}

/// The factors of the products of a stage.
pub trait StageFactors: Copy {
    /// The factor of every 64 columns of the warpgroup, for columns of k of one stage.
    ///
    /// # Safety
    /// 1. The stage is one of the tile's.
    unsafe fn of_stage(self, k_block: u32) -> [f32; MAX_SUBTILES_N];
}

/// The blocks that need the same rows: each loads a part and multicasts it to all.
#[derive(Clone, Copy)]
struct Share {
    num_blocks: u32,
    /// Which part this block loads.
    part: u32,
    /// The blocks, a bit each by its rank in the cluster.
    blocks: u16,
}

impl Share {
    /// Those of A, which the blocks along n need, and of B.
    #[inline(always)]
    fn of_operands<T: WgmmaTile>() -> [Self; 2] {
        let rank = if T::CLUSTER_TILES > 1 { cluster::block_rank() } else { 0 };
        let (m, n) = (rank % T::CLUSTER_M, rank / T::CLUSTER_M);
        // A bit every `CLUSTER_M` ranks, and `CLUSTER_M` bits.
        let along_n = (0..T::CLUSTER_N).fold(0, |blocks, n| blocks | 1 << (n * T::CLUSTER_M));
        let along_m = (1 << T::CLUSTER_M) - 1;
        [
            Share { num_blocks: T::CLUSTER_N, part: n, blocks: along_n << m },
            Share { num_blocks: T::CLUSTER_M, part: m, blocks: along_m << (n * T::CLUSTER_M) },
        ]
    }
}

/// Loads `block_rows` rows, which the blocks of `share` need.
///
/// # Safety
/// 1. `dst` is empty in all of these blocks.
#[inline(always)]
#[track_caller]
unsafe fn load_rows<E: WgmmaOperand>(
    dst: Shared<E>,
    map: TensorMap,
    [k, row]: [u32; 2],
    full_barrier: Mbarrier,
    block_rows: u32,
    share: Share,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if share.num_blocks == 1 {
            let hint = CacheHint::EvictNormal;
            bulk::tensor_load(dst, map, [k as i32, row as i32], full_barrier, hint);
        } else {
            let first_row = share.part * (block_rows / share.num_blocks);
            bulk::tensor_load_multicast(
                dst.offset(first_row * const { block_k::<E>() }),
                map,
                [k as i32, (row + first_row) as i32],
                full_barrier,
                share.blocks,
                CacheHint::EvictNormal,
            );
        }
    }
}
