//! The mainloop: the producer loads stages of A and B by TMA, the consumers issue their MMAs.

use super::accumulators::{Accumulators, AddParts, MAX_SUBTILES_N, Multiply};
use crate::activation::Gate;
use crate::gemm::config::wgmma::{ROW_BYTES, WgmmaTile, block_k};
use crate::tile::box_copy::GATE_ROWS;
use crate::tile::element::WgmmaOperand;
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::bulk::{CacheHint, Coords};
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, KMajor, MatrixDescriptor, Swizzle};

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
    ///    loads; with a gate those of `b` are [`GATE_ROWS`] of gate and of up in turn.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn load_tile<T: WgmmaTile, A: Gate>(
        self,
        mut stage: Stage,
        [a, b]: [TensorMap; 2],
        [row_a, row_b]: [u32; 2],
    ) -> Stage {
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
                let at = |row| [k as i32, (row_a + row) as i32];
                load_rows(smem_a, a, at, full_barrier, [T::BLOCK_M, T::CLUSTER_N]);
                let rows = [T::BLOCK_N, T::CLUSTER_M];
                if A::PARTS == 1 {
                    let at = |row| [k as i32, (row_b + row) as i32];
                    load_rows(smem_b, b, at, full_barrier, rows);
                } else {
                    let at = |row| [k as i32, 0, 0, ((row_b + row) / (2 * GATE_ROWS)) as i32];
                    load_rows(smem_b, b, at, full_barrier, rows);
                }
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
    /// then added to the warpgroup's accumulators in f32, times the factors of the stage. `load` is
    /// called early enough that what it loads is there at the end.
    ///
    /// # Safety
    /// 1. As [`Mainloop::multiply_tile`].
    /// 2. `factors` is valid for each of the tile's `num_k_blocks`.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn add_tile<T: WgmmaTile<Acc: AddParts<E>>, F: StageFactors, L>(
        self,
        stage: Stage,
        [row_a, row_b]: [u32; 2],
        factors: F,
        load: impl Fn() -> L,
    ) -> (T::Acc, Stage, L) {
        const { assert!(T::SPLIT_K == 1) };
        let a = MatrixDescriptor::k_major(self.smem_a, Swizzle::B128).advance(row_a * ROW_BYTES);
        let b = MatrixDescriptor::k_major(self.smem_b, Swizzle::B128).advance(row_b * ROW_BYTES);
        let (issued, added) = (stage, (stage, 0));
        let mut parts = Parts::<E, F> { mainloop: self, a, b, factors, issued, added };
        let mut acc = T::Acc::zero();
        // With two parts the accumulators leave no registers for it while both are in flight.
        let early = (T::Acc::NUM_PARTS == 1).then(&load);
        let loaded;
        // The MMAs of a part are in flight while the partial sums of the one before it are added.
        // SAFETY: the caller's promise; `num_parts` are issued, and as many added.
        unsafe {
            let num_parts = self.num_k_blocks * T::Acc::NUM_PARTS;
            let mut first = parts.issue::<T, 0>();
            let mut num_issued = 1;
            while num_issued + 1 < num_parts {
                let second = parts.issue::<T, 1>();
                parts.add::<T, 0, 1>(&mut acc, first);
                first = parts.issue::<T, 0>();
                parts.add::<T, 1, 1>(&mut acc, second);
                num_issued += 2;
            }
            if num_issued < num_parts {
                let second = parts.issue::<T, 1>();
                parts.add::<T, 0, 1>(&mut acc, first);
                loaded = early.unwrap_or_else(load);
                parts.add::<T, 1, 0>(&mut acc, second);
            } else {
                loaded = early.unwrap_or_else(load);
                parts.add::<T, 0, 0>(&mut acc, first);
            }
        }
        (acc, parts.issued, loaded)
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

/// The parts of a tile's stages, whose partial sums alternate between two accumulators.
struct Parts<E, F> {
    mainloop: Mainloop<E>,
    /// The warpgroup's rows of stage 0.
    a: MatrixDescriptor<E, KMajor>,
    b: MatrixDescriptor<E, KMajor>,
    factors: F,
    /// Stage of the next part to issue.
    issued: Stage,
    /// Stage and k block of the next part to add.
    added: (Stage, u32),
}

impl<E: WgmmaOperand, F: StageFactors> Parts<E, F> {
    /// Issues the next part; `TURN` is 1 for every second one.
    ///
    /// # Safety
    /// 1. There is one; all threads of the warpgroup call this.
    #[inline(always)]
    #[track_caller]
    unsafe fn issue<T: WgmmaTile<Acc: AddParts<E>>, const TURN: u32>(
        &mut self,
    ) -> <T::Acc as AddParts<E>>::Part {
        let part = TURN % T::Acc::NUM_PARTS;
        let stage = self.issued;
        if part == 0 {
            self.mainloop.pipeline.wait_full(stage);
        }
        if part + 1 == T::Acc::NUM_PARTS {
            self.issued = self.mainloop.pipeline.next(stage);
        }
        let a = self.a.advance(stage.stage_idx * T::A_BYTES);
        let b = self.b.advance(stage.stage_idx * T::B_BYTES);
        // SAFETY: the stage is full, and stays so until it is released.
        unsafe { T::Acc::issue(a, b.advance(part * T::Acc::PART_COLUMNS * ROW_BYTES)) }
    }

    /// Adds the part that was issued before the newest `PENDING`; `TURN` as it was issued.
    ///
    /// # Safety
    /// 1. As [`Parts::issue`].
    #[inline(always)]
    #[track_caller]
    unsafe fn add<T: WgmmaTile<Acc: AddParts<E>>, const TURN: u32, const PENDING: u32>(
        &mut self,
        acc: &mut T::Acc,
        part: <T::Acc as AddParts<E>>::Part,
    ) {
        let (stage, k_block) = self.added;
        // SAFETY: the caller's promise.
        let factors = unsafe { self.factors.stage_scales(k_block) };
        let release = || self.mainloop.release::<T>(stage);
        if TURN % T::Acc::NUM_PARTS + 1 < T::Acc::NUM_PARTS {
            acc.add::<0, PENDING>(part, factors, || {});
        } else if T::Acc::NUM_PARTS == 1 {
            acc.add::<0, PENDING>(part, factors, release);
            self.added = (self.mainloop.pipeline.next(stage), k_block + 1);
        } else {
            acc.add::<1, PENDING>(part, factors, release);
            self.added = (self.mainloop.pipeline.next(stage), k_block + 1);
        }
    }
}

/// The factors of the products of a stage.
pub trait StageFactors: Copy {
    /// The factor of every 64 columns of the warpgroup, for columns of k of one stage; `None` for
    /// ones, whatever the stage.
    ///
    /// # Safety
    /// 1. The stage is one of the tile's.
    unsafe fn stage_scales(self, k_block: u32) -> Option<[f32; MAX_SUBTILES_N]>;
}

/// Loads `block_rows` rows, of which the box of row `i` is at `at(i)`; `blocks` blocks share them,
/// and each multicasts its part to all.
///
/// # Safety
/// 1. `dst` is empty in all of these blocks.
#[inline(always)]
#[track_caller]
unsafe fn load_rows<E: WgmmaOperand, const RANK: usize>(
    dst: Shared<E>,
    map: TensorMap,
    at: impl Fn(u32) -> [i32; RANK],
    full_barrier: Mbarrier,
    [block_rows, blocks]: [u32; 2],
) where
    [i32; RANK]: Coords,
{
    // SAFETY: the caller's promise.
    unsafe {
        if blocks == 1 {
            let hint = CacheHint::EvictNormal;
            bulk::tensor_load(dst, map, at(0), full_barrier, hint);
        } else {
            let rows = block_rows / blocks;
            let first_row = cluster::block_rank() * rows;
            bulk::tensor_load_multicast(
                dst.offset(first_row * const { block_k::<E>() }),
                map,
                at(first_row),
                full_barrier,
                (1 << blocks) - 1,
                CacheHint::EvictNormal,
            );
        }
    }
}
