//! The body of the persistent, warp-specialised kernels: how a block's tiles are computed, whatever
//! the operands' type and the way of accumulating.

use crate::activation::Gate;
use crate::gemm::config::wgmma::WgmmaTile;
use crate::gemm::epilogue::wgmma::split_k::Exchange;
use crate::gemm::epilogue::wgmma::{
    OutElement, Output, STAGING_BYTES, SubtileScale, WarpOutput, gated,
};
use crate::gemm::epilogue::{Epilogue, Matrix};
use crate::gemm::mainloop::accumulators::Accumulators;
use crate::gemm::mainloop::wgmma::Mainloop;
use crate::tile::element::WgmmaOperand;
use crate::tile::pipeline::Stage;
use crate::tile::scheduler::TileScheduler;
use core::marker::PhantomData;
use cuda_std::prelude::*;

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

/// The arguments of a kernel, as it has them.
#[derive(Clone, Copy)]
pub struct Layer<O> {
    /// Rows that exist: one element.
    pub num_rows: Global<u32>,
    /// Upper bound of the rows.
    pub max_rows: u32,
    /// Rows of the weight: columns of the output, or twice as many with a gate.
    pub n: u32,
    /// Columns of A and B.
    pub k: u32,
    /// `[n]`, or null.
    pub bias: Global<f32>,
    /// The residual, of the shape of the output; or null.
    pub residual: Matrix<Global<f32>>,
    /// The output.
    pub out: Matrix<GlobalMut<O>>,
    /// The input as a tensor map.
    pub a: TensorMap,
    /// The weight.
    pub b: TensorMap,
    /// The output, if its rows are 16-byte aligned.
    pub out_map: TensorMap,
}

/// How the consumers accumulate and scale a tile.
pub trait Accumulation<E, T: WgmmaTile>: Copy {
    /// The scales of a warp's outputs of a tile.
    type Scales;

    /// The warpgroup's accumulators of the tile at `tile`, the next stage, and the warp's scales.
    ///
    /// # Safety
    /// 1. As `Mainloop::multiply_tile`.
    /// 2. The launches before are waited for.
    unsafe fn accumulate(
        self,
        mainloop: Mainloop<E>,
        stage: Stage,
        num_rows: u32,
        tile: [u32; 2],
    ) -> (T::Acc, Stage, Self::Scales);

    /// The scale of a subtile of the warp. The whole warp calls this, converged.
    fn subtile_scale(scales: &Self::Scales, subtile: u32) -> impl SubtileScale;
}

/// A block that is ready to compute its tiles: its barriers are initialised.
pub struct Block<O, T: WgmmaTile, E, I> {
    layer: Layer<O>,
    mainloop: Mainloop<E>,
    exchange: Exchange,
    smem: Shared<u8>,
    is_producer: bool,
    /// The first tile, and those after it.
    tile: Option<[u32; 2]>,
    tiles: I,
    config: PhantomData<T>,
}

/// What a block does before it waits for the launches before.
///
/// # Safety
/// 1. `layer` is as [`gemm_f16_sm90`](super::gemm_f16_sm90()) requires, with boxes of a stage's
///    columns; so is the launch.
#[inline(always)]
#[track_caller]
pub unsafe fn prepare<E: WgmmaOperand, O: OutElement, T: WgmmaTile>(
    layer: Layer<O>,
) -> Block<O, T, E, impl Iterator<Item = [u32; 2]>> {
    let Layer { num_rows, max_rows, n, k, a, b, .. } = layer;
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
    let tile = tiles.next();
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
    let config = PhantomData;
    Block { layer, mainloop, exchange, smem, is_producer, tile, tiles, config }
}

impl<E, O, T, I> Block<O, T, E, I>
where
    E: WgmmaOperand,
    O: OutElement,
    T: WgmmaTile,
    I: Iterator<Item = [u32; 2]>,
{
    /// Computes the block's tiles.
    ///
    /// # Safety
    /// 1. As [`prepare`]; the launches before are waited for.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn compute<A: Accumulation<E, T>, G: Gate>(self, accumulation: A) {
        let Block { layer, mainloop, exchange, smem, is_producer, mut tile, mut tiles, .. } = self;
        let Layer { num_rows, n, bias, residual, out, a, b, out_map, .. } = layer;
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
                    stage = unsafe { mainloop.load_tile::<T, G>(stage, [a, b], origin) };
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
            let epilogue = Epilogue { num_rows, n: n / G::PARTS as u32, bias, residual, out };
            let output = Output { epilogue, out_map };
            if thread::thread_idx_x() == 0 {
                O::prefetch(&output);
            }
            let mut output = WarpOutput::<O>::new(output, staging);
            let first_subtile = warp_idx * T::Acc::NUM_SUBTILES;
            if T::SPLIT_K > 1 {
                cluster::wait();
            }
            while let Some([row, column]) = tile {
                if T::SPLIT_K > 1 {
                    exchange.expect::<T, O>([row, column], &output);
                }
                // SAFETY: the consumers run through the producer's tiles; a warp stores its own rows.
                unsafe {
                    let (acc, next_stage, scales) =
                        accumulation.accumulate(mainloop, stage, num_rows, [row, column]);
                    stage = next_stage;
                    if T::SPLIT_K == 1 {
                        // Not a closure, which LLVM would not inline into f32 outputs.
                        unroll!(subtile in 0..4, {
                            let at = T::subtile_origin(first_subtile + subtile as u32);
                            let origin = [row + at[0], column + at[1]];
                            if (subtile as u32) >= T::Acc::NUM_SUBTILES {
                            } else if G::PARTS == 1 {
                                let columns = T::Acc::subtile_columns(subtile as u32);
                                let values = acc.subtile(subtile as u32);
                                let scale = A::subtile_scale(&scales, subtile as u32);
                                O::store_subtile(&mut output, origin, columns, &values, &scale);
                            } else if (subtile as u32 % T::Acc::SUBTILES_N).is_multiple_of(2) {
                                gated::store_pair::<_, _, G>(&mut output, origin, &acc, subtile);
                            }
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
}
