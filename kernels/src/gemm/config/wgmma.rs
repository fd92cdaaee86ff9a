//! Tile configurations of the `wgmma` mainloop.

use crate::gemm::epilogue::wgmma::{STAGING_BYTES, SUBTILE_COLUMNS, SUBTILE_ROWS};
use crate::gemm::mainloop::accumulators::Accumulators;
use crate::tile::pipeline::Pipeline;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;
use half::f16;

/// Bytes of a row of A and B in a stage: the span of the swizzle.
pub(in crate::gemm) const ROW_BYTES: u32 = 128;

/// Columns of A and B in a stage, of 16-bit elements.
pub(in crate::gemm) const BLOCK_K: u32 = block_k::<f16>();

/// Columns of A and B in a stage, of elements `E`.
pub(in crate::gemm) const fn block_k<E>() -> u32 {
    ROW_BYTES / size_of::<E>() as u32
}

/// Shared memory that a block may have on sm_90.
pub(in crate::gemm) const MAX_SHARED_BYTES: u32 = 227 * 1024;

/// A tile configuration of the `wgmma` mainloop.
pub trait WgmmaTile {
    /// Consumer warpgroups along m.
    const WARPGROUPS_M: u32;
    /// Consumer warpgroups along n.
    const WARPGROUPS_N: u32;
    /// Accumulators of a warpgroup.
    type Acc: Accumulators;
    /// Stages of A and B in shared memory.
    const NUM_STAGES: u32;
    /// Blocks of a cluster along m: they multicast B.
    const CLUSTER_M: u32 = 1;
    /// Blocks of a cluster along n: they multicast A.
    const CLUSTER_N: u32 = 1;
    /// Blocks of a cluster that split the k of one tile, for outputs of few tiles.
    const SPLIT_K: u32 = 1;
    /// Rows of tiles of a group, for L2: see
    /// [`TileScheduler`](crate::tile::scheduler::TileScheduler).
    const GROUP_M: u32 = 16;

    /// Rows of a tile.
    const BLOCK_M: u32 = Self::WARPGROUPS_M * Self::Acc::ROWS;
    /// Columns of a tile.
    const BLOCK_N: u32 = Self::WARPGROUPS_N * Self::Acc::COLUMNS;
    /// Consumer warpgroups. One more is the producer.
    const NUM_CONSUMERS: u32 = Self::WARPGROUPS_M * Self::WARPGROUPS_N;
    /// Threads of a block.
    const NUM_THREADS: u32 = (Self::NUM_CONSUMERS + 1) * warp::WARPGROUP_SIZE;
    /// Tiles of a cluster; blocks multicast if there is more than one.
    const CLUSTER_TILES: u32 = Self::CLUSTER_M * Self::CLUSTER_N;
    /// Blocks of a cluster.
    const CLUSTER: u32 = Self::CLUSTER_TILES * Self::SPLIT_K;
    /// Bytes of A in a stage.
    const A_BYTES: u32 = Self::BLOCK_M * ROW_BYTES;
    /// Bytes of B in a stage.
    const B_BYTES: u32 = Self::BLOCK_N * ROW_BYTES;
    /// Barriers for partial sums: two a consumer warp.
    const PARTIALS_BARRIERS: u32 = if Self::SPLIT_K == 1 { 0 } else { Self::NUM_CONSUMERS * 8 };
    /// Shared memory of a block: stages of A, stages of B, staging of the epilogue, barriers.
    const SHARED_BYTES: u32 = Self::PARTIALS_BARRIERS_AT + 8 * Self::PARTIALS_BARRIERS;
    /// Offset of the staging: of each warp's outputs or, with split-K, of the partial sums that the
    /// block receives.
    const STAGING_AT: u32 = Self::NUM_STAGES * (Self::A_BYTES + Self::B_BYTES);
    /// Offset of the barriers of the pipeline.
    const BARRIERS_AT: u32 = Self::STAGING_AT
        + if Self::SPLIT_K == 1 {
            Self::NUM_CONSUMERS * 4 * STAGING_BYTES
        } else {
            Self::BLOCK_M * Self::BLOCK_N * 4
        };
    /// Offset of the barriers for partial sums.
    const PARTIALS_BARRIERS_AT: u32 = Self::BARRIERS_AT + 8 * Pipeline::num_words(Self::NUM_STAGES);
    /// What every configuration must satisfy; the kernel evaluates it.
    const IS_VALID: () = {
        assert!(Self::NUM_CONSUMERS <= 2, "more would have too few registers");
        assert!(Self::CLUSTER_M == 1 || Self::CLUSTER_N == 1, "one operand can be multicast");
        assert!(
            Self::CLUSTER_TILES == 1 || Self::SPLIT_K == 1,
            "a cluster multicasts or splits k, not both"
        );
        assert!(
            Self::SPLIT_K == 1 || Self::SPLIT_K.is_multiple_of(Self::Acc::NUM_SUBTILES),
            "a warp reduces one subtile"
        );
        assert!(Self::SPLIT_K == 1 || Self::BLOCK_M * Self::BLOCK_N * 4 <= Self::STAGING_AT);
        assert!(
            Self::SPLIT_K == 1 || Self::Acc::COLUMNS.is_multiple_of(SUBTILE_COLUMNS),
            "subtiles that are sent have all columns"
        );
        assert!(Self::BLOCK_M <= 256 && Self::BLOCK_N <= 256, "a box has at most 256 rows");
        assert!(Self::SHARED_BYTES <= MAX_SHARED_BYTES);
    };

    /// First row and column of a warp's outputs in its tile.
    #[inline(always)]
    fn warp_origin(warp_idx: u32) -> [u32; 2] {
        let warpgroup_idx = warp_idx / 4;
        let row = warpgroup_idx % Self::WARPGROUPS_M * Self::Acc::ROWS;
        let column = warpgroup_idx / Self::WARPGROUPS_M * Self::Acc::COLUMNS;
        [row + warp_idx % 4 * SUBTILE_ROWS, column]
    }

    /// First row and column of a warpgroup's outputs in its tile: of its operands in a stage.
    #[inline(always)]
    fn warpgroup_origin() -> [u32; 2] {
        Self::warp_origin(warp::warpgroup_idx() * 4)
    }

    /// First row and column of a subtile in its tile; subtiles are numbered warp by warp.
    #[inline(always)]
    fn subtile_origin(subtile_idx: u32) -> [u32; 2] {
        let [warp_row, warp_column] = Self::warp_origin(subtile_idx / Self::Acc::NUM_SUBTILES);
        let [row, column] = Self::Acc::subtile_origin(subtile_idx % Self::Acc::NUM_SUBTILES);
        [warp_row + row, warp_column + column]
    }
}

/// Declares configurations: warpgroups `m x n`, the accumulators of each, stages, and options that
/// differ from the default.
macro_rules! tiles {
    ($(
        $(#[$meta:meta])*
        $name:ident: $warpgroups_m:literal x $warpgroups_n:literal, $acc:ty, $stages:literal
        $(, $option:ident = $value:literal)*;
    )*) => {$(
        $(#[$meta])*
        pub struct $name;

        impl WgmmaTile for $name {
            const WARPGROUPS_M: u32 = $warpgroups_m;
            const WARPGROUPS_N: u32 = $warpgroups_n;
            type Acc = $acc;
            const NUM_STAGES: u32 = $stages;
            $(const $option: u32 = $value;)*
        }
    )*};
}

tiles! {
    /// 128 x 256 outputs: a warpgroup has 64 x 256.
    Tile128x256: 2 x 1, [Accumulator<128>; 1], 4;
    /// [`Tile128x256`] in clusters of two along m, which multicast B.
    Tile128x256Pair: 2 x 1, [Accumulator<128>; 1], 4, CLUSTER_M = 2;
    /// 256 x 128 outputs: a warpgroup has two MMAs of 64 x 128, which read the same B.
    Tile256x128: 2 x 1, [Accumulator<64>; 2], 4;
    /// [`Tile256x128`] in clusters of two along n, which multicast A.
    Tile256x128Pair: 2 x 1, [Accumulator<64>; 2], 4, CLUSTER_N = 2;
    /// 128 x 192 outputs: a third fewer tiles than [`Tile128x128`] where n is a multiple of 192.
    Tile128x192: 2 x 1, [Accumulator<96>; 1], 4;
    /// 128 x 144 outputs: 1152 columns are 8 of them.
    Tile128x144: 2 x 1, [Accumulator<72>; 1], 5;
    /// [`Tile128x192`] in clusters of two along m, which multicast B.
    Tile128x192Pair: 2 x 1, [Accumulator<96>; 1], 4, CLUSTER_M = 2;
    /// [`Tile128x128`] in clusters of two along m, which multicast B.
    Tile128x128Pair: 2 x 1, [Accumulator<64>; 1], 6, CLUSTER_M = 2;
    /// 128 x 128 outputs.
    Tile128x128: 2 x 1, [Accumulator<64>; 1], 6;
    /// 64 x 256 outputs, for small batches and many columns.
    Tile64x256: 1 x 2, [Accumulator<64>; 1], 4;
    /// 64 x 192 outputs, for small batches and many columns.
    Tile64x192: 1 x 1, [Accumulator<96>; 1], 6;
    /// 64 x 128 outputs, for small batches.
    Tile64x128: 1 x 2, [Accumulator<32>; 1], 8;
    /// [`Tile64x128`] in clusters of two along m, which multicast B.
    Tile64x128Pair: 1 x 2, [Accumulator<32>; 1], 8, CLUSTER_M = 2;
    /// 64 x 72 outputs, for small batches: a quarter of [`Tile128x144`].
    Tile64x72: 1 x 1, [Accumulator<36>; 1], 10;
    /// 64 x 64 outputs, for small batches and few columns.
    Tile64x64: 1 x 1, [Accumulator<32>; 1], 8;
    /// [`Tile128x128`], k split over two blocks.
    Tile128x128Split2: 2 x 1, [Accumulator<64>; 1], 5, SPLIT_K = 2;
    /// [`Tile128x128`], k split over four blocks.
    Tile128x128Split4: 2 x 1, [Accumulator<64>; 1], 5, SPLIT_K = 4;
    /// [`Tile64x128`], k split over two blocks.
    Tile64x128Split2: 1 x 2, [Accumulator<32>; 1], 8, SPLIT_K = 2;
    /// [`Tile64x128`], k split over four blocks.
    Tile64x128Split4: 1 x 2, [Accumulator<32>; 1], 8, SPLIT_K = 4;
    /// [`Tile128x256`] with f16 accumulators.
    Tile128x256F16: 2 x 1, [Accumulator<64, f16>; 1], 4;
    /// [`Tile128x128`] with f16 accumulators.
    Tile128x128F16: 2 x 1, [Accumulator<32, f16>; 1], 6;
}
