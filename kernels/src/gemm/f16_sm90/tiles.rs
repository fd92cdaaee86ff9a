//! Tile configurations.

use super::accumulators::Accumulators;
use super::epilogue::{STAGING_BYTES, STRIP_COLUMNS, STRIP_ROWS};
use crate::tile::pipeline::Pipeline;
use cuda_std::prelude::*;
use cuda_std::wgmma::Accumulator;
use half::f16;

/// Columns of A and B in a stage: rows of 128 bytes, what a swizzle permutes.
pub(super) const BLOCK_K: u32 = 64;

/// Bytes of a stage's row.
pub(super) const ROW_BYTES: u32 = BLOCK_K * 2;

/// What a block can have.
pub(super) const MAX_SHARED_BYTES: u32 = 227 * 1024;

/// A tile configuration.
pub trait Tile {
    /// Warpgroups that multiply, one below the other.
    const WARPGROUPS_M: u32;
    /// The same, side by side.
    const WARPGROUPS_N: u32;
    /// Outputs of a warpgroup.
    type Acc: Accumulators;
    /// Stages of A and B in shared memory.
    const NUM_STAGES: u32;
    /// Blocks of a cluster one below the other: they share their B.
    const CLUSTER_M: u32 = 1;
    /// Blocks of a cluster side by side: they share their A.
    const CLUSTER_N: u32 = 1;
    /// Blocks of a cluster that compute one tile together, each its share of k: for few tiles.
    const SPLIT_K: u32 = 1;
    /// Rows of tiles that are computed together, for L2: see
    /// [`TileScheduler`](crate::tile::scheduler::TileScheduler).
    const GROUP_M: u32 = 16;

    /// Rows of a block's outputs.
    const BLOCK_M: u32 = Self::WARPGROUPS_M * Self::Acc::ROWS;
    /// Columns of a block's outputs.
    const BLOCK_N: u32 = Self::WARPGROUPS_N * Self::Acc::COLUMNS;
    /// Warpgroups that multiply. One more copies.
    const NUM_CONSUMERS: u32 = Self::WARPGROUPS_M * Self::WARPGROUPS_N;
    /// Threads of a block.
    const NUM_THREADS: u32 = (Self::NUM_CONSUMERS + 1) * warp::WARPGROUP_SIZE;
    /// Tiles of a cluster: its blocks load for each other, if there are more than one.
    const CLUSTER_TILES: u32 = Self::CLUSTER_M * Self::CLUSTER_N;
    /// Blocks of a cluster.
    const CLUSTER: u32 = Self::CLUSTER_TILES * Self::SPLIT_K;
    /// Bytes of A in a stage.
    const A_BYTES: u32 = Self::BLOCK_M * ROW_BYTES;
    /// Bytes of B in a stage.
    const B_BYTES: u32 = Self::BLOCK_N * ROW_BYTES;
    /// Barriers for parts of sums: two a consumer warp.
    const PARTS_BARRIERS: u32 = if Self::SPLIT_K == 1 { 0 } else { Self::NUM_CONSUMERS * 8 };
    /// Shared memory of a block: stages of A, stages of B, staging, barriers.
    const SHARED_BYTES: u32 = Self::PARTS_BARRIERS_AT + 8 * Self::PARTS_BARRIERS;
    /// Where staging starts: of each warp, or, where k is split, of the parts of the sums that the
    /// block adds up.
    const STAGING_AT: u32 = Self::NUM_STAGES * (Self::A_BYTES + Self::B_BYTES);
    /// Where the barriers start.
    const BARRIERS_AT: u32 = Self::STAGING_AT
        + if Self::SPLIT_K == 1 {
            Self::NUM_CONSUMERS * 4 * STAGING_BYTES
        } else {
            Self::BLOCK_M * Self::BLOCK_N * 4
        };
    /// Where those for parts of sums start.
    const PARTS_BARRIERS_AT: u32 = Self::BARRIERS_AT + 8 * Pipeline::num_words(Self::NUM_STAGES);
    /// What every tile has to keep to; the kernel looks at it.
    const IS_VALID: () = {
        assert!(Self::NUM_CONSUMERS <= 2, "more would have too few registers");
        assert!(Self::CLUSTER_M == 1 || Self::CLUSTER_N == 1, "one operand can be shared");
        assert!(Self::CLUSTER_TILES == 1 || Self::SPLIT_K == 1, "a cluster is for one of both");
        assert!(
            Self::SPLIT_K == 1 || Self::SPLIT_K.is_multiple_of(Self::Acc::STRIPS),
            "a warp adds up one strip"
        );
        assert!(Self::SPLIT_K == 1 || Self::BLOCK_M * Self::BLOCK_N * 4 <= Self::STAGING_AT);
        assert!(
            Self::SPLIT_K == 1 || Self::Acc::COLUMNS.is_multiple_of(STRIP_COLUMNS),
            "a strip that is sent has all its columns"
        );
        assert!(Self::BLOCK_M <= 256 && Self::BLOCK_N <= 256, "a box has at most 256 rows");
        assert!(Self::SHARED_BYTES <= MAX_SHARED_BYTES);
    };

    /// First row and column of a warp's outputs in its block's.
    #[inline(always)]
    fn warp_origin(warp_idx: u32) -> [u32; 2] {
        let warpgroup_idx = warp_idx / 4;
        let row = warpgroup_idx % Self::WARPGROUPS_M * Self::Acc::ROWS;
        let column = warpgroup_idx / Self::WARPGROUPS_M * Self::Acc::COLUMNS;
        [row + warp_idx % 4 * STRIP_ROWS, column]
    }

    /// First row and column of a strip in its block's outputs: strips are numbered warp by warp.
    #[inline(always)]
    fn strip_origin(strip_idx: u32) -> [u32; 2] {
        let [warp_row, warp_column] = Self::warp_origin(strip_idx / Self::Acc::STRIPS);
        let [row, column] = Self::Acc::strip_origin(strip_idx % Self::Acc::STRIPS);
        [warp_row + row, warp_column + column]
    }
}

/// Declares tiles: warpgroups `m x n`, the accumulators of each, stages, and what is not the
/// default.
macro_rules! tiles {
    ($(
        $(#[$meta:meta])*
        $name:ident: $warpgroups_m:literal x $warpgroups_n:literal, $acc:ty, $stages:literal
        $(, $option:ident = $value:literal)*;
    )*) => {$(
        $(#[$meta])*
        pub struct $name;

        impl Tile for $name {
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
    /// [`Tile128x256`] in pairs one below the other, each of which loads half of B for both.
    Tile128x256Pair: 2 x 1, [Accumulator<128>; 1], 4, CLUSTER_M = 2;
    /// 256 x 128 outputs: a warpgroup has two products of 64 x 128, which read the same B.
    Tile256x128: 2 x 1, [Accumulator<64>; 2], 4;
    /// [`Tile256x128`] in pairs side by side, each of which loads half of A for both.
    Tile256x128Pair: 2 x 1, [Accumulator<64>; 2], 4, CLUSTER_N = 2;
    /// 128 x 192 outputs: a third fewer tiles than [`Tile128x128`] where n is divided by 192.
    Tile128x192: 2 x 1, [Accumulator<96>; 1], 4;
    /// 128 x 144 outputs: 1152 columns are 8 of them.
    Tile128x144: 2 x 1, [Accumulator<72>; 1], 5;
    /// 128 x 128 outputs.
    Tile128x128: 2 x 1, [Accumulator<64>; 1], 6;
    /// 64 x 256 outputs, for few rows and many columns.
    Tile64x256: 1 x 2, [Accumulator<64>; 1], 4;
    /// 64 x 192 outputs, likewise.
    Tile64x192: 1 x 1, [Accumulator<96>; 1], 6;
    /// 64 x 128 outputs, for few rows.
    Tile64x128: 1 x 2, [Accumulator<32>; 1], 8;
    /// [`Tile64x128`] in pairs one below the other, each of which loads half of B for both.
    Tile64x128Pair: 1 x 2, [Accumulator<32>; 1], 8, CLUSTER_M = 2;
    /// 64 x 72 outputs, for few rows: half of [`Tile128x144`].
    Tile64x72: 1 x 1, [Accumulator<36>; 1], 10;
    /// 64 x 64 outputs, for few rows and columns.
    Tile64x64: 1 x 1, [Accumulator<32>; 1], 8;
    /// [`Tile128x128`] by two blocks.
    Tile128x128Split2: 2 x 1, [Accumulator<64>; 1], 5, SPLIT_K = 2;
    /// [`Tile128x128`] by four blocks.
    Tile128x128Split4: 2 x 1, [Accumulator<64>; 1], 5, SPLIT_K = 4;
    /// [`Tile64x128`] by two blocks.
    Tile64x128Split2: 1 x 2, [Accumulator<32>; 1], 8, SPLIT_K = 2;
    /// [`Tile64x128`] by four blocks.
    Tile64x128Split4: 1 x 2, [Accumulator<32>; 1], 8, SPLIT_K = 4;
    /// [`Tile128x256`] summed in f16.
    Tile128x256F16: 2 x 1, [Accumulator<64, f16>; 1], 4;
    /// [`Tile128x128`] summed in f16.
    Tile128x128F16: 2 x 1, [Accumulator<32, f16>; 1], 6;
}
