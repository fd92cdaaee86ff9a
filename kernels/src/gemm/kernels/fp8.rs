//! GEMM of 8-bit floats on Hopper's tensor cores: `out[m, n] = x_scale[m] * w_scale[n] * sum_k
//! a[m, k] * b[n, k] (+ bias[n]) (+ residual[m, n])`.
//!
//! Shapes    a `[m, k]`, b `[n, k]`, E4M3, both K-major, rows 16-byte aligned; x_scales `[m]`;
//!           w_scales `[n]` or, of blocks of 128 x 128 weights, `[n / 128, k / 128]`, rounded up;
//!           the others as in [`sm90`](super::sm90).
//! Launch    as `sm90`.
//! Numerics  products are exact; a tensor core accumulates them with about 14 bits. [`TwoLevel`]
//!           accumulates columns of k by 128 there, and adds these partial sums in f32, each times
//!           the scale of its block; [`Fast`] accumulates all of k there. MMAs of k = 32 in the
//!           order of k whatever the tile. One rounding at the store.
//! Bound     tensor cores: `m * n * k` FMAs, 4,096 a clock and SM.
//! Source    DeepGEMM (`sm90_fp8_gemm_1d2d`): the two levels.
//!
//! Measurements: `docs/measurements/gemm_fp8.md`.

#[cfg(not(target_arch = "nvptx64"))]
mod launcher;
#[cfg(not(target_arch = "nvptx64"))]
mod select;
#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{Fp8Accumulate, LinearFp8, LinearFp8Operands};

use super::sm90::persistent::{self, Accumulation, Layer};
use crate::activation::NoGate;
use crate::gemm::config::wgmma::*;
use crate::gemm::epilogue::Matrix;
use crate::gemm::epilogue::wgmma::{OutElement, SUBTILE_COLUMNS, SubtileScale};
use crate::gemm::mainloop::accumulators::{
    Accumulators, AddParts, MAX_MMAS, MAX_SUBTILES_N, MMA_M, Multiply,
};
use crate::gemm::mainloop::wgmma::{Mainloop, StageFactors};
use crate::tile::pipeline::Stage;
use crate::tile::weight::SCALE_BLOCK;
use core::marker::PhantomData;
use cuda_std::E4m3;
use cuda_std::prelude::*;
use half::f16;

const _: () = assert!(block_k::<E4m3>() == SCALE_BLOCK, "a stage has one scale of a row");

/// Scales of rows of x and of weights.
#[derive(Clone, Copy)]
pub struct Scales {
    x: Global<f32>,
    /// Scales of the weight's rows, or null.
    weight_rows: Global<f32>,
    /// Scales of the weight's blocks, or null.
    weight_blocks: Global<f32>,
    /// Blocks of a row of the weight.
    blocks_per_row: u32,
    /// Rows of the weight.
    n: u32,
}

/// How the products of a tile are accumulated.
pub trait Level<T: WgmmaTile>: Copy {
    /// The warpgroup's accumulators of the tile whose first column is `column`, the next stage, and
    /// what `load` returns, which is called once.
    ///
    /// # Safety
    /// 1. As `Mainloop::multiply_tile`.
    unsafe fn accumulate<S>(
        scales: Scales,
        mainloop: Mainloop<E4m3>,
        stage: Stage,
        column: u32,
        load: impl Fn() -> S,
    ) -> (T::Acc, Stage, S);
}

/// Every 128 columns of k in the tensor cores, and the sum of these in f32.
#[derive(Clone, Copy)]
pub struct TwoLevel;

/// All of k in the tensor cores.
#[derive(Clone, Copy)]
pub struct Fast;

impl<T: WgmmaTile<Acc: AddParts<E4m3>>> Level<T> for TwoLevel {
    #[inline(always)]
    #[track_caller]
    unsafe fn accumulate<S>(
        scales: Scales,
        mainloop: Mainloop<E4m3>,
        stage: Stage,
        column: u32,
        load: impl Fn() -> S,
    ) -> (T::Acc, Stage, S) {
        let rows = T::warpgroup_origin();
        let factors = BlockScales::new::<T>(scales, column + rows[1]);
        // SAFETY: the caller's promise.
        unsafe { mainloop.add_tile::<T, _, _>(stage, rows, factors, load) }
    }
}

impl<T: WgmmaTile<Acc: Multiply<E4m3>>> Level<T> for Fast {
    #[inline(always)]
    #[track_caller]
    unsafe fn accumulate<S>(
        _scales: Scales,
        mainloop: Mainloop<E4m3>,
        stage: Stage,
        _column: u32,
        load: impl Fn() -> S,
    ) -> (T::Acc, Stage, S) {
        let loaded = load();
        // SAFETY: the caller's promise.
        let (acc, stage) = unsafe { mainloop.multiply_tile::<T>(stage, T::warpgroup_origin()) };
        (acc, stage, loaded)
    }
}

/// The scales of the blocks that hold a warpgroup's columns.
#[derive(Clone, Copy)]
struct BlockScales {
    scales: Global<f32>,
    /// For every 64 columns the index of their first block's scale.
    first: [u32; MAX_SUBTILES_N],
}

impl BlockScales {
    /// Scales for the warpgroup whose first column is `column`.
    #[inline(always)]
    fn new<T: WgmmaTile>(scales: Scales, column: u32) -> Self {
        const {
            let columns = T::Acc::COLUMNS | T::BLOCK_N;
            assert!(columns.is_multiple_of(SUBTILE_COLUMNS), "64 columns have one scale");
        }
        // Where a block of scales is a half of the warpgroup's columns, or all, two neighbours have
        // one index.
        let columns = if T::Acc::COLUMNS.is_multiple_of(SCALE_BLOCK)
            && T::BLOCK_N.is_multiple_of(SCALE_BLOCK)
        {
            SCALE_BLOCK
        } else {
            SUBTILE_COLUMNS
        };
        let first = [0, 1, 2, 3].map(|i| {
            let column = column + i * SUBTILE_COLUMNS / columns * columns;
            column.min(scales.n - 1) / SCALE_BLOCK * scales.blocks_per_row
        });
        BlockScales { scales: scales.weight_blocks, first }
    }
}

impl StageFactors for BlockScales {
    #[inline(always)]
    #[track_caller]
    unsafe fn stage_scales(self, k_block: u32) -> Option<[f32; MAX_SUBTILES_N]> {
        if self.scales.is_null() {
            return None;
        }
        // SAFETY: the caller's promise; the blocks' columns are inside.
        Some(self.first.map(|first| unsafe { self.scales.get((first + k_block) as usize) }))
    }
}

/// The accumulation of a launch.
#[derive(Clone, Copy)]
struct Scaled<L> {
    scales: Scales,
    level: PhantomData<L>,
}

/// Columns of a warp's outputs over its lanes, at most.
const MAX_LANE_COLUMNS: usize = 8;

/// The scales of a warp's outputs of a tile, which are loaded before they are needed.
struct TileScales {
    /// Scales of the thread's two rows, for each MMA.
    rows: [[f32; 2]; MAX_MMAS],
    /// Scales of every 32nd column, from the lane's own on.
    columns: [f32; MAX_LANE_COLUMNS],
}

impl TileScales {
    /// The warp's scales of the tile at `tile`, of `num_rows` rows.
    ///
    /// # Safety
    /// 1. The launches before are waited for.
    #[inline(always)]
    #[track_caller]
    unsafe fn load<T: WgmmaTile>(scales: Scales, num_rows: u32, tile: [u32; 2]) -> Self {
        let (lane_id, Scales { x, weight_rows, n, .. }) = (warp::lane_id(), scales);
        let [row, column] = [0, 1].map(|axis| tile[axis] + T::warp_origin(warp::warp_idx())[axis]);
        let mut loaded =
            TileScales { rows: [[0.0; 2]; MAX_MMAS], columns: [1.0; MAX_LANE_COLUMNS] };
        // Rows and columns past the last one take its scale.
        let (row, last_row) = (row + lane_id / 4, num_rows.saturating_sub(1));
        for mma in 0..MAX_MMAS {
            if (mma as u32 * MMA_M) < T::Acc::ROWS {
                for half in 0..2 {
                    let row = row + mma as u32 * MMA_M + half as u32 * 8;
                    // SAFETY: the caller's promise.
                    loaded.rows[mma][half] = unsafe { x.get(row.min(last_row) as usize) };
                }
            }
        }
        for i in 0..MAX_LANE_COLUMNS {
            let first = i as u32 * warp::WARP_SIZE;
            if first < T::Acc::COLUMNS {
                let column = (column + first + lane_id).min(n - 1);
                let exists = !weight_rows.is_null();
                // SAFETY: the caller's promise.
                let [scale] = unsafe { weight_rows.get_vec_if(column as usize, exists) };
                loaded.columns[i] = if exists { scale } else { 1.0 };
            }
        }
        loaded
    }

    /// The scales of columns `32 * i + 8 * j + pair` and the next, for `j` from 0 on.
    #[inline(always)]
    fn column_scales(&self, i: usize, pair: u32) -> [[f32; 2]; 4] {
        [0, 1, 2, 3]
            .map(|j| [0, 1].map(|second| warp::shuffle_idx(self.columns[i], 8 * j + pair + second)))
    }
}

impl<T: WgmmaTile, L: Level<T>> Accumulation<E4m3, T> for Scaled<L> {
    type Scales = TileScales;

    #[inline(always)]
    #[track_caller]
    unsafe fn accumulate(
        self,
        mainloop: Mainloop<E4m3>,
        stage: Stage,
        num_rows: u32,
        tile: [u32; 2],
    ) -> (T::Acc, Stage, TileScales) {
        let Scaled { scales, .. } = self;
        // SAFETY: the caller's promise.
        unsafe {
            let load = || TileScales::load::<T>(scales, num_rows, tile);
            L::accumulate(scales, mainloop, stage, tile[1], load)
        }
    }

    #[inline(always)]
    fn subtile_scale(scales: &TileScales, subtile: u32) -> impl SubtileScale {
        let rows = scales.rows[(subtile / T::Acc::SUBTILES_N) as usize];
        let first = (subtile % T::Acc::SUBTILES_N * (SUBTILE_COLUMNS / warp::WARP_SIZE)) as usize;
        let pair = warp::lane_id() % 4 * 2;
        let mut columns = [[0.0; 2]; 8];
        unroll!(part in 0..2, {
            [columns[4 * part], columns[4 * part + 1], columns[4 * part + 2], columns[4 * part + 3]] =
                scales.column_scales(first + part, pair);
        });
        Scale { rows, columns }
    }
}

/// The scales of a thread's outputs of a subtile.
struct Scale {
    /// Scales of the thread's two rows.
    rows: [f32; 2],
    /// Scales of the thread's pairs of columns.
    columns: [[f32; 2]; 8],
}

impl SubtileScale for Scale {
    #[inline(always)]
    fn apply(&self, at: usize, value: f32, bias: f32) -> f32 {
        math::fma(value, self.rows[at / 2 % 2] * self.columns[at / 4][at % 2], bias)
    }
}

/// The tiles of the output, scheduled among persistent blocks.
///
/// # Safety
/// 1. As [`gemm_f16_sm90`](super::sm90::gemm_f16_sm90()), with boxes of `SCALE_BLOCK` columns.
/// 2. `x_scales` holds `max_rows` elements; of `row_scales`, which holds `n`, and `block_scales`,
///    which holds one for every block, one is null.
#[kernel(
    launch_bounds(T::NUM_THREADS, 1),
    target(sm_90a),
    cluster(T::CLUSTER, 1, 1),
    overlaps,
    instances(
        O in [f16 as "", f32 as "_f32"],
        gemm_e4m3_sm90_128x192_pair{O} = <O, Tile128x192Pair, TwoLevel>,
        gemm_e4m3_sm90_128x128_pair{O} = <O, Tile128x128Pair, TwoLevel>,
        gemm_e4m3_sm90_64x128{O} = <O, Tile64x128, TwoLevel>,
        gemm_e4m3_sm90_64x64{O} = <O, Tile64x64, TwoLevel>,
        gemm_e4m3_sm90_128x256_pair_fast{O} = <O, Tile128x256Pair, Fast>,
        gemm_e4m3_sm90_128x192_pair_fast{O} = <O, Tile128x192Pair, Fast>,
        gemm_e4m3_sm90_128x128_pair_fast{O} = <O, Tile128x128Pair, Fast>,
        gemm_e4m3_sm90_64x192_fast{O} = <O, Tile64x192, Fast>,
        gemm_e4m3_sm90_64x128_fast{O} = <O, Tile64x128, Fast>,
        gemm_e4m3_sm90_64x64_fast{O} = <O, Tile64x64, Fast>
    )
)]
pub unsafe fn gemm_e4m3_sm90<O: OutElement, T: WgmmaTile, L: Level<T>>(
    num_rows: Global<u32>,
    max_rows: u32,
    n: u32,
    k: u32,
    x_scales: Global<f32>,
    row_scales: Global<f32>,
    block_scales: Global<f32>,
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
    let residual = Matrix { ptr: residual, row_stride: residual_stride };
    let out = Matrix { ptr: out, row_stride: out_stride };
    let layer = Layer { num_rows, max_rows, n, k, bias, residual, out, a, b, out_map };
    let scales = Scales {
        x: x_scales,
        weight_rows: row_scales,
        weight_blocks: block_scales,
        blocks_per_row: k.div_ceil(SCALE_BLOCK),
        n,
    };
    // SAFETY: the caller's promise.
    let block = unsafe { persistent::prepare::<E4m3, O, T>(layer) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: as above.
    unsafe { block.compute::<_, NoGate>(Scaled::<L> { scales, level: PhantomData }) }
}
