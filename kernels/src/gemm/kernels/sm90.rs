//! GEMM of 16-bit operands on Hopper's tensor cores:
//! `out[m, n] = sum_k a[m, k] * b[n, k] (+ bias[n]) (+ residual[m, n])`.
//!
//! Shapes    a `[m, k]`, b `[n, k]`, f16 or bf16, both K-major, rows 16-byte aligned; bias `[n]`
//!           f32; residual `[m, n]` f32, for f32 outputs only; out `[m, n]`, f32 or the operands'
//!           type; any m and n.
//! Launch    persistent: at most one block an SM, in whole clusters; with split-K one cluster a
//!           tile. Block `(T::NUM_THREADS, 1, 1)`.
//! Numerics  f32 accumulators, MMAs of k = 16 in the order of k whatever the tile; with split-K
//!           the partial sums are added in the order of k. Or f16 accumulators of f16 operands,
//!           rounded after each MMA. One rounding at the store.
//! Bound     tensor cores: `m * n * k` FMAs, 2,048 a clock and SM.
//! Source    DeepGEMM (`sm90_bf16_gemm`); CUTLASS (persistent cooperative kernel).
//!
//! Warp-specialised: one thread of the last warpgroup is the producer, which fills the stages by
//! TMA; the other warpgroups are the consumers, which run the MMAs and the epilogue while the
//! producer already fills stages for the next tile. The blocks of a cluster either multicast the
//! operand that they share, or split the k of one tile and reduce their partial sums through
//! distributed shared memory.
//!
//! Measurements: `docs/measurements/gemm_sm90.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::launch;

use crate::gemm::config::wgmma::*;
use crate::gemm::epilogue::wgmma::split_k::Exchange;
use crate::gemm::epilogue::wgmma::{OutElement, Output, STAGING_BYTES, WarpOutput};
use crate::gemm::epilogue::{Epilogue, Matrix};
use crate::gemm::mainloop::accumulators::{Accumulators, Multiply};
use crate::gemm::mainloop::wgmma::Mainloop;
use crate::tile::element::Operand16;
use crate::tile::pipeline::Stage;
use crate::tile::scheduler::TileScheduler;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Registers of a thread of the producer and of two consumer warpgroups: in all as many as three
/// warpgroups start with, 168 a thread. A single consumer warpgroup starts with the most it can
/// have.
const PRODUCER_REGISTERS: u32 = 40;
const CONSUMER_REGISTERS: u32 = 232;

/// Number of cluster tiles along m and n.
#[inline(always)]
fn cluster_tiles<T: WgmmaTile>(rows: u32, n: u32) -> [u32; 2] {
    [rows.div_ceil(T::CLUSTER_M * T::BLOCK_M), n.div_ceil(T::CLUSTER_N * T::BLOCK_N)]
}

/// Number of clusters, among which tiles are scheduled.
#[inline(always)]
fn num_workers<T: WgmmaTile>() -> u32 {
    thread::grid_dim_x() / T::CLUSTER
}

/// The rows whose tiles are scheduled: those that exist. Where there are no more tiles than workers
/// it is `max_rows`, so that a block issues its loads while `num_rows` is still being read.
///
/// # Safety
/// 1. `num_rows` is one element.
#[inline(always)]
unsafe fn tiled_rows<T: WgmmaTile>(num_rows: Global<u32>, max_rows: u32, n: u32) -> u32 {
    let [tiles_m, tiles_n] = cluster_tiles::<T>(max_rows, n);
    if tiles_m * tiles_n <= num_workers::<T>() {
        max_rows
    } else {
        // SAFETY: the caller's promise.
        unsafe { num_rows.get(0) }
    }
}

/// First row and column of each of the block's tiles.
#[inline(always)]
fn block_tiles<T: WgmmaTile>(rows: u32, n: u32) -> impl Iterator<Item = [u32; 2]> {
    let rank = if T::CLUSTER_TILES > 1 { cluster::block_rank() } else { 0 };
    let first_row = rank % T::CLUSTER_M * T::BLOCK_M;
    let first_column = rank / T::CLUSTER_M * T::BLOCK_N;
    let worker = thread::block_idx_x() / T::CLUSTER;
    let (tiles, group_m) = (cluster_tiles::<T>(rows, n), T::GROUP_M / T::CLUSTER_M);
    TileScheduler::new(tiles, group_m, worker, num_workers::<T>()).map(move |[m, n]| {
        let (row, column) = (m * T::CLUSTER_M * T::BLOCK_M, n * T::CLUSTER_N * T::BLOCK_N);
        [row + first_row, column + first_column]
    })
}

/// The tiles of the output, scheduled among persistent blocks.
///
/// # Safety
/// 1. `num_rows` is one element, at most `max_rows`, written by no launch that this one overlaps.
///    `out` and `residual` hold that many rows of `n` columns at their strides, `bias` holds `n`
///    elements; `bias` and `residual` may be null.
/// 2. `a`, of `max_rows` rows, and `b` are tensor maps of the operands, `k > 0` columns, 128-byte
///    swizzle, with boxes of `BLOCK_K` columns and `T::BLOCK_M / T::CLUSTER_N` or `T::BLOCK_N /
///    T::CLUSTER_M` rows. `out_map` is the tensor map of 16-bit outputs, 128-byte swizzle, with
///    boxes of 64 columns and 16 rows, if their rows are 16-byte aligned.
/// 3. With split-K a cluster has at most one tile.
/// 4. `out` is `residual`, or overlaps nothing that is read.
#[kernel(
    launch_bounds(T::NUM_THREADS, 1),
    target(sm_90a),
    cluster(T::CLUSTER, 1, 1),
    overlaps,
    instances(
        E in [f16, bf16],
        O in [E as "", f32 as "_f32"],
        gemm_{E}_sm90_128x256{O} = <E, O, Tile128x256>,
        gemm_{E}_sm90_128x256_pair{O} = <E, O, Tile128x256Pair>,
        gemm_{E}_sm90_256x128{O} = <E, O, Tile256x128>,
        gemm_{E}_sm90_256x128_pair{O} = <E, O, Tile256x128Pair>,
        gemm_{E}_sm90_128x192{O} = <E, O, Tile128x192>,
        gemm_{E}_sm90_128x144{O} = <E, O, Tile128x144>,
        gemm_{E}_sm90_128x128{O} = <E, O, Tile128x128>,
        gemm_{E}_sm90_64x128{O} = <E, O, Tile64x128>,
        gemm_{E}_sm90_64x128_pair{O} = <E, O, Tile64x128Pair>,
        gemm_{E}_sm90_64x72{O} = <E, O, Tile64x72>,
        gemm_{E}_sm90_64x64{O} = <E, O, Tile64x64>,
        gemm_{E}_sm90_128x128_split2{O} = <E, O, Tile128x128Split2>,
        gemm_{E}_sm90_128x128_split4{O} = <E, O, Tile128x128Split4>,
        gemm_{E}_sm90_64x128_split2{O} = <E, O, Tile64x128Split2>,
        gemm_{E}_sm90_64x128_split4{O} = <E, O, Tile64x128Split4>,
        gemm_{E}_sm90_64x256{O} = <E, O, Tile64x256>,
        gemm_{E}_sm90_64x192{O} = <E, O, Tile64x192>,
        gemm_f16_sm90_128x256_in_f16 = <f16, f16, Tile128x256F16>,
        gemm_f16_sm90_128x256_in_f16_f32 = <f16, f32, Tile128x256F16>,
        gemm_f16_sm90_128x128_in_f16 = <f16, f16, Tile128x128F16>,
        gemm_f16_sm90_128x128_in_f16_f32 = <f16, f32, Tile128x128F16>
    )
)]
pub unsafe fn gemm_f16_sm90<E: Operand16, O: OutElement, T: WgmmaTile<Acc: Multiply<E>>>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<O>,
    out_stride: u32,
    // Last, so that the other parameters share few lines of the constant cache.
    a: TensorMap,
    b: TensorMap,
    out_map: TensorMap,
) {
    const { T::IS_VALID };
    // 1. Barriers, while the previous launch still runs. SAFETY: the launch gives
    //    `T::SHARED_BYTES`; one thread initialises the barriers, and all wait for it; `num_rows` is
    //    an element that no launch writes.
    let (tiled_rows, smem, mainloop, exchange) = unsafe {
        let smem = dynamic_shared_mem::<u8>();
        let tiled_rows = tiled_rows::<T>(num_rows, max_rows, n);
        (tiled_rows, smem, Mainloop::<E>::new::<T>(smem, k), Exchange::new::<T>(smem))
    };
    // A fixed thread, not `elect.sync`, which is 4 % slower at 512 x 1152 x 896.
    let is_producer = thread::thread_idx_x() == T::NUM_CONSUMERS * warp::WARPGROUP_SIZE;
    if thread::thread_idx_x() == 0 {
        if T::SPLIT_K > 1 {
            exchange.init::<T>();
        }
        mainloop.init::<T>();
    }
    if is_producer {
        a.prefetch();
        b.prefetch();
    }
    let mut tiles = block_tiles::<T>(tiled_rows, n);
    // Before the barrier: its divisions take as long as the other warps take to arrive.
    let mut tile = tiles.next();
    if T::CLUSTER_TILES > 1 {
        // Relaxed: other blocks need to see the barriers only, which the fence of `init` orders.
        cluster::arrive_relaxed();
        cluster::wait();
    } else {
        if T::SPLIT_K > 1 {
            // Other blocks arrive on the barriers of the exchange: the wait follows the loads.
            cluster::arrive_relaxed();
        }
        thread::sync_threads();
    }
    grid::wait_for_dependencies();
    grid::launch_dependents();
    let warpgroup_idx = warp::warpgroup_idx();
    let mut stage = Stage::FIRST;

    if warpgroup_idx == T::NUM_CONSUMERS {
        // 2. The producer: one thread.
        if T::NUM_CONSUMERS == 2 {
            registers::decrease::<PRODUCER_REGISTERS>();
        }
        if is_producer {
            while let Some(origin) = tile {
                // SAFETY: the tensor maps are those of this configuration.
                stage = unsafe { mainloop.load_tile::<T>(stage, [a, b], origin) };
                tile = tiles.next();
            }
            if T::CLUSTER_TILES > 1 {
                mainloop.finish(stage);
            }
        }
        if T::SPLIT_K > 1 {
            warp::sync_warp();
            cluster::wait();
        }
    } else {
        // 3. The consumers: each warpgroup computes its part of every tile.
        if T::NUM_CONSUMERS == 2 {
            registers::increase::<CONSUMER_REGISTERS>();
        }
        let warp_idx = warp::warp_idx();
        let staging = smem.offset(T::STAGING_AT + warp_idx * STAGING_BYTES).cast();
        // SAFETY: `num_rows` is one element; the load overlaps the MMAs.
        let num_rows = unsafe { num_rows.get(0) };
        let residual = Matrix { ptr: residual, row_stride: residual_stride };
        let out = Matrix { ptr: out, row_stride: out_stride };
        let epilogue = Epilogue { num_rows, n, bias, residual, out };
        let output = Output { epilogue, out_map };
        if thread::thread_idx_x() == 0 {
            O::prefetch(&output);
        }
        let mut output = WarpOutput::<O>::new(output, staging);
        let first_subtile = warp_idx * T::Acc::NUM_SUBTILES;
        let [warpgroup_row, warpgroup_column] = T::warp_origin(warp_idx / 4 * 4);
        if T::SPLIT_K > 1 {
            cluster::wait();
        }
        while let Some([row, column]) = tile {
            if T::SPLIT_K > 1 {
                exchange.expect::<T, O>([row, column], &output);
            }
            // SAFETY: the consumers run through the producer's tiles; a warp stores its own rows.
            unsafe {
                let (acc, next_stage) =
                    mainloop.multiply_tile::<T>(stage, [warpgroup_row, warpgroup_column]);
                stage = next_stage;
                if T::SPLIT_K == 1 {
                    acc.for_each_subtile(|subtile, values| {
                        let [subtile_row, subtile_column] =
                            T::subtile_origin(first_subtile + subtile);
                        let origin = [row + subtile_row, column + subtile_column];
                        let columns = T::Acc::subtile_columns(subtile);
                        O::store_subtile(&mut output, origin, columns, &values);
                    });
                } else {
                    exchange.store::<T, O>(acc, [row, column], &mut output);
                }
            }
            tile = tiles.next();
        }
        output.finish();
    }
}
