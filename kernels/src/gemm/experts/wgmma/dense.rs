//! Dense weights: both operands in shared memory, the weight by TMA.

use super::{
    BLOCK_COLUMNS, CONSUMER_REGISTERS, COPY_ROWS, GATE_ROWS, Layer, NUM_CONSUMERS, NUM_THREADS,
    PRODUCER_REGISTERS, Stages, Tile,
};
use crate::activation::GateArg;
use crate::gemm::config::wgmma::{BLOCK_K, ROW_BYTES};
use crate::gemm::mainloop::accumulators::{MMA_M, Multiply};
use crate::tile::element::Operand16;
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, MatrixDescriptor, Swizzle};
use half::{bf16, f16};

/// Most choices of a chunk.
pub const MAX_CHUNK_ROWS: u32 = 256;

/// Copies of a thread of the producer into a stage.
const COPIES: usize = (MAX_CHUNK_ROWS / COPY_ROWS) as usize;

/// Elements of the weight in a stage.
const WEIGHT_ELEMS: u32 = BLOCK_COLUMNS * BLOCK_K;

/// Stages for chunks of up to `x_rows` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn stages(x_rows: u32) -> Stages {
    Stages::new(BLOCK_COLUMNS, x_rows)
}

/// Choices that are multiplied for `num_rows` of them: columns of the MMAs.
#[inline(always)]
pub fn mma_rows(num_rows: u32) -> u32 {
    match num_rows {
        0..=16 => 16,
        17..=32 => 32,
        33..=64 => 64,
        65..=96 => 96,
        97..=128 => 128,
        129..=144 => 144,
        145..=192 => 192,
        _ => 256,
    }
}

impl<E: Operand16> Layer<E> {
    /// Issues the loads of a stage of the tile's rows of the weight, from column `k` on.
    ///
    /// # Safety
    /// 1. As the kernel requires; the stage is empty, and one thread calls this.
    #[inline(always)]
    unsafe fn load_weight(&self, tile: &Tile, k: u32, slot: Stage, weight: TensorMap) {
        let full_barrier = self.pipeline.full_barrier(slot);
        full_barrier.arrive_expect_tx(BLOCK_COLUMNS * ROW_BYTES);
        let to = self.smem.offset(slot.stage_idx * WEIGHT_ELEMS).cast::<E>();
        let hint = CacheHint::EvictNormal;
        let row = (tile.expert * self.n + tile.column) as i32;
        // SAFETY: the caller's promise.
        unsafe {
            if self.gate.num_parts() == 2 {
                let origin = [k as i32, 0, 0, row / GATE_ROWS as i32];
                bulk::tensor_load(to, weight, origin, full_barrier, hint);
            } else {
                bulk::tensor_load(to, weight, [k as i32, row], full_barrier, hint);
            }
        }
    }

    /// A warpgroup's part of a tile whose first stage is `slot`; returns the stage after it.
    ///
    /// # Safety
    /// 1. As the kernel requires; all consumers call this for the producer's tiles.
    #[inline(always)]
    unsafe fn compute<A: Multiply<E>>(&self, tile: &Tile, mut slot: Stage) -> Stage {
        let warpgroup = warp::warpgroup_idx();
        let weight = MatrixDescriptor::k_major(self.smem.cast::<E>(), Swizzle::B128)
            .advance(warpgroup * MMA_M * ROW_BYTES);
        let x = self.smem.offset(self.stages.x_at()).cast::<E>();
        let x = MatrixDescriptor::k_major(x, Swizzle::B128);
        let mut acc = A::start();
        let mut previous = slot;
        let mut k = 0;
        while k < self.k {
            self.pipeline.wait_full(slot);
            // x was written by threads.
            fence::proxy_async_shared();
            wgmma::fence();
            let weight = weight.advance(slot.stage_idx * BLOCK_COLUMNS * ROW_BYTES);
            let x = x.advance(slot.stage_idx * self.stages.x_rows * ROW_BYTES);
            // SAFETY: the stage is full, and stays so until it is released.
            unsafe { A::multiply(&mut acc, weight, x) };
            wgmma::commit();
            // The MMAs of this stage are in flight while those of the previous one are waited for.
            wgmma::wait_group::<1>();
            if k > 0 {
                self.release(previous);
            }
            previous = slot;
            slot = self.pipeline.next(slot);
            k += BLOCK_K;
        }
        let acc = A::wait(acc);
        self.release(previous);
        // SAFETY: the caller's promise.
        unsafe { self.store(tile, &acc) };
        slot
    }
}

/// Every `grid`-th tile, from the block's index on.
///
/// # Safety
/// 1. Those of [`experts_few`](super::super::few::experts_few()), of x, out and biases; `chunks` and `order`
///    are what [`group_experts`](super::super::group::group_experts()) wrote for chunks of `x_rows`, what
///    [`mma_rows`] gives for the largest; `columns` are the tiles of a chunk. Elements of x are
///    below 2^32.
/// 2. `weight` is the tensor map of the matrices of all experts, one on the other, in boxes of
///    [`BLOCK_COLUMNS`] rows and 64 columns with 128-byte swizzle; with a gate, of half as many rows
///    of gate and of up, [`GATE_ROWS`] of each in turn, those of up first if `up_is_first` is not 0.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    overlaps,
    instances(E in [f16, bf16], experts_{E}_wgmma = <E>)
)]
pub unsafe fn experts_wgmma<E: Operand16>(
    top_k: u32,
    chunks: Global<u32>,
    order: Global<u32>,
    columns: u32,
    num_stages: u32,
    x_rows: u32,
    n: u32,
    k: u32,
    gate: u32,
    up_is_first: u32,
    x: Global<u16>,
    x_stride: u32,
    x_choice_stride: u32,
    bias: Global<f32>,
    up_bias: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    out_choice_stride: u32,
    // Last, so that the other parameters share few lines of the constant cache.
    weight: TensorMap,
) {
    // SAFETY: the launch gives shared memory for the stages; one thread initialises the barriers, and
    // all wait for it. Consumers and the producer run through the same tiles and stages.
    unsafe {
        let smem = dynamic_shared_mem::<u16>();
        let stages = Stages { num: num_stages, x_rows, weight_rows: BLOCK_COLUMNS };
        let pipeline = Pipeline::new(smem.offset(stages.barriers_at()).cast(), num_stages);
        let layer = Layer {
            top_k,
            chunks,
            order,
            columns,
            n,
            k,
            gate: GateArg(gate),
            up_is_first: up_is_first != 0,
            x,
            x_strides: [x_stride, x_choice_stride],
            biases: [bias, up_bias],
            out: out.cast::<E>(),
            out_strides: [out_stride, out_choice_stride],
            smem,
            stages,
            pipeline,
        };
        if thread::thread_idx_x() == 0 {
            layer.init_pipeline(true);
            weight.prefetch();
        }
        thread::sync_threads();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let num_tiles = chunks.get(0) * columns;
        if warp::warpgroup_idx() == NUM_CONSUMERS {
            registers::decrease::<PRODUCER_REGISTERS>();
            let load_weight = |tile: &Tile, k, slot| layer.load_weight(tile, k, slot, weight);
            layer.load::<COPIES>(num_tiles, k, mma_rows, load_weight);
        } else {
            registers::increase::<CONSUMER_REGISTERS>();
            let mut slot = Stage::FIRST;
            let mut index = thread::block_idx_x();
            let mut next = layer.tile(index, num_tiles);
            while index < num_tiles {
                let tile = next;
                index += thread::grid_dim_x();
                next = layer.tile(index, num_tiles);
                slot = match mma_rows(tile.num_rows) {
                    16 => layer.compute::<[Accumulator<8>; 1]>(&tile, slot),
                    32 => layer.compute::<[Accumulator<16>; 1]>(&tile, slot),
                    64 => layer.compute::<[Accumulator<32>; 1]>(&tile, slot),
                    96 => layer.compute::<[Accumulator<48>; 1]>(&tile, slot),
                    128 => layer.compute::<[Accumulator<64>; 1]>(&tile, slot),
                    144 => layer.compute::<[Accumulator<72>; 1]>(&tile, slot),
                    192 => layer.compute::<[Accumulator<96>; 1]>(&tile, slot),
                    _ => layer.compute::<[Accumulator<128>; 1]>(&tile, slot),
                };
            }
        }
    }
}
