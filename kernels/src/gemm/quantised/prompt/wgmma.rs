//! The kernel for Hopper: `wgmma`, x by TMA.
//!
//! The warps of two consumer warpgroups dequantise a step while the tensor cores multiply the one
//! before. One thread of the last warpgroup is the producer.

use super::epilogue::{Output, stage, staging_bytes};
use super::fragment::{InOrder, fragment};
use super::{MMA_THREADS, NUM_WARPS, ROW_BYTES, WarpTiles, columns_of, num_rows_of, tile_of};
use crate::activation::GateArg;
use crate::gemm::quantised::format::{BLOCKS, Format, TILE_UNITS, Tiles, UNIT_K};
use crate::tile::pipeline::{Pipeline, Stage};
use cuda_std::bulk::CacheHint;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, Accumulator, FragmentA, MatrixDescriptor, Swizzle};
use half::f16;

/// Threads of a block: the last warpgroup is the producer.
pub const NUM_THREADS: u32 = MMA_THREADS + warp::WARPGROUP_SIZE;

/// Registers of a thread of the producer and of the consumers: in all as many as three warpgroups
/// start with, 168 a thread, with which consumers would spill.
const PRODUCER_REGISTERS: u32 = 40;
const CONSUMER_REGISTERS: u32 = 232;

/// Stages of x.
const NUM_STAGES: u32 = 8;

/// Bytes of an MMA's k.
const MMA_K_BYTES: u32 = 32;

/// The named barrier of the consumers.
const CONSUMERS: u32 = 1;

/// Bytes of shared memory: stages, staging of the epilogue, barriers.
pub const fn shared_bytes(regs: usize) -> u32 {
    barriers_at(regs) + 8 * Pipeline::num_words(NUM_STAGES)
}

const fn staging_at(regs: usize) -> u32 {
    NUM_STAGES * num_rows_of(regs) * ROW_BYTES
}

const fn barriers_at(regs: usize) -> u32 {
    staging_at(regs) + staging_bytes(regs)
}

/// 128 rows of the weight by `2 * REGS` rows of x a cluster.
///
/// # Safety
/// 1. `num_rows` is one element, at most the rows of x, written by no launch that this one
///    overlaps; the output and `residual` hold that many rows at their strides. `weight` holds the
///    tiles of as many weights `[n, k]` of the format `F` as `gate`, a `GateArg`, has parts, 16-byte
///    aligned, and `bias` an element for each of their rows. `bias` and `residual` may be null. The
///    output is `out_f32`, or `out` if `out_f32` is null.
/// 2. `x` is the tensor map of x, of `k` columns, in boxes of `2 * REGS` rows and 64 columns, with
///    128-byte swizzle; `k` is a multiple of 32.
/// 3. The output is `residual`, or overlaps nothing that is read.
/// 4. The grid has `row_tiles` clusters for each 128 rows of the weights.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    target(sm_90a),
    cluster(SPLIT_K, 1, 1),
    overlaps,
    instances(
        F in BLOCKS,
        gemm_f16_prompt_{F}_m128 = <F, 64, 1>,
        gemm_f16_prompt_{F}_m64_split2 = <F, 32, 2>
    )
)]
pub unsafe fn gemm_f16_prompt<F: Format<Unit: InOrder>, const REGS: usize, const SPLIT_K: u32>(
    num_rows: Global<u32>,
    n: u32,
    k: u32,
    row_tiles: u32,
    gate: u32,
    weight: Global<u8>,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<f16>,
    out_f32: GlobalMut<f32>,
    out_stride: u32,
    // Last, so that the other parameters share few lines of the constant cache.
    x: TensorMap,
) {
    let cluster_idx = thread::block_idx_x() / SPLIT_K;
    let [column_tile, row_tile] = tile_of(cluster_idx, row_tiles);
    let first_row = row_tile * num_rows_of(REGS);
    // SAFETY: one element, that no launch writes.
    let num_rows = unsafe { num_rows.get(0) };
    if first_row >= num_rows {
        // Not before the launches that this one overlaps: see `grid::wait_for_dependencies`.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        return;
    }
    // SAFETY: the launch gives `shared_bytes`; one thread initialises the barriers, and all wait
    // for it.
    let (smem, pipeline) = unsafe {
        let smem = dynamic_shared_mem::<u8>();
        (smem, Pipeline::new(smem.offset(barriers_at(REGS)).cast(), NUM_STAGES))
    };
    let staging = smem.offset(staging_at(REGS)).cast::<f32>();
    let tiles = Tiles::new::<F>(weight, k);
    let gate = GateArg(gate);
    let rank = if SPLIT_K > 1 { cluster::block_rank() } else { 0 };
    let [first, end] = [rank, rank + 1].map(|rank| tiles.num_tiles * rank / SPLIT_K);
    let is_producer = thread::thread_idx_x() == MMA_THREADS;
    if is_producer {
        pipeline.init(NUM_WARPS);
        x.prefetch();
    }
    thread::sync_threads();

    if warp::warp_idx() >= NUM_WARPS {
        // 1. The producer: one thread.
        registers::decrease::<PRODUCER_REGISTERS>();
        grid::wait_for_dependencies();
        grid::launch_dependents();
        if is_producer {
            let mut slot = Stage::FIRST;
            for unit in first * TILE_UNITS as u32..end * TILE_UNITS as u32 {
                pipeline.wait_empty(slot);
                let full_barrier = pipeline.full_barrier(slot);
                full_barrier.arrive_expect_tx(num_rows_of(REGS) * ROW_BYTES);
                let to = smem.offset(slot.stage_idx * num_rows_of(REGS) * ROW_BYTES);
                let origin = [(unit * UNIT_K) as i32, first_row as i32];
                // SAFETY: the stage is empty. All blocks of a row read x: past its last row and
                // column there are zeros.
                unsafe {
                    let hint = CacheHint::EvictLast;
                    bulk::tensor_load(to.cast::<f16>(), x, origin, full_barrier, hint);
                }
                slot = pipeline.next(slot);
            }
        }
        warp::sync_warp();
        if SPLIT_K > 1 {
            cluster::sync();
            cluster::sync();
        }
    } else {
        // 2. The consumers: loads of the weight, before the wait for the previous launch.
        registers::increase::<CONSUMER_REGISTERS>();
        let warp_tiles = WarpTiles::new(tiles, column_tile, gate.num_parts(), n, end);
        // SAFETY: the tiles exist, or are zeros.
        let mut loaded = unsafe { warp_tiles.tile::<F>(first).load::<F>() };

        // 3. Main loop.
        let smem_x = MatrixDescriptor::k_major(smem.cast::<f16>(), Swizzle::B128);
        let mut acc = Accumulator::<REGS>::zero().start();
        let mut slot = Stage::FIRST;
        let (mut previous, mut previous_slot) = (None, None);
        for tile in first..end {
            let next = warp_tiles.tile::<F>(tile + 1);
            let scales = F::unpack(loaded.scales);
            // SAFETY: the tile exists, or is zeros.
            loaded.scales = unsafe { next.load_scales::<F>() };
            unroll!(unit in 0..4, {
                let quants = loaded.units[unit].in_order();
                // SAFETY: as above.
                loaded.units[unit] = unsafe { next.load_unit::<F>(unit) };
                let x = smem_x.advance(slot.stage_idx * num_rows_of(REGS) * ROW_BYTES);
                unroll!(step in 0..4, {
                    // While the tensor cores multiply the step before. A group a step: the waits keep
                    // ptxas from moving this to after the MMA.
                    let weights = fragment::<F>(&quants, &scales, unit, step);
                    let weights = FragmentA::<f16>::new(weights);
                    if step == 0 {
                        pipeline.wait_full(slot);
                    }
                    wgmma::fence();
                    let x = x.advance(step as u32 * MMA_K_BYTES);
                    // SAFETY: the stage is full until it is released; the fragment lives until the
                    // wait for its group.
                    unsafe { acc.mma_rs(&weights, x, true) };
                    wgmma::commit();
                    wgmma::wait_group::<1>();
                    if step == 0
                        && let Some(slot) = previous_slot
                        && warp::lane_id() == 0
                    {
                        pipeline.empty_barrier(slot).arrive();
                    }
                    previous = Some(weights);
                });
                previous_slot = Some(slot);
                slot = pipeline.next(slot);
            });
        }
        let acc = acc.wait::<0>();
        // It lived until the wait.
        let _last = previous;

        // 4. Epilogue.
        grid::wait_for_dependencies();
        grid::launch_dependents();
        let output = Output {
            num_rows: num_rows - first_row,
            first_row,
            n,
            first_column: column_tile * columns_of(gate.num_parts()),
            gate,
            bias,
            residual,
            residual_stride,
            half: out,
            f32: out_f32,
            stride: out_stride,
        };
        // SAFETY: a lane writes its own accumulators; all are written before they are read, and no
        // block exits before.
        unsafe {
            stage(staging, acc);
            if SPLIT_K > 1 {
                cluster::sync();
            } else {
                barrier::sync::<CONSUMERS, MMA_THREADS>();
            }
            output.store::<REGS, SPLIT_K>(staging);
            if SPLIT_K > 1 {
                cluster::sync();
            }
        }
    }
}
