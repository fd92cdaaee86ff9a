//! The tiles: their shape, and where its parts are in shared memory.

use super::items::{NUM_SLOTS, SLOT_BYTES};
use crate::kv_cache::PAGE_SIZE;
use crate::tile::pipeline::Pipeline;
use crate::tile::smem::tile_bytes;
use cuda_std::prelude::*;

/// Rows of a consumer warpgroup: those of an MMA.
pub(super) const WARPGROUP_ROWS: u32 = 64;

/// Shared memory that a block may have on sm_90.
pub(super) const MAX_SHARED_BYTES: u32 = 227 * 1024;

/// The queries and the keys of a tile.
pub trait TileShape {
    /// Consumer warpgroups, of 64 queries each.
    const CONSUMERS: u32;
    /// Keys of a block: whole pages.
    const BLOCK_N: u32;
    /// Most columns of a head.
    const WIDTH: u32;

    /// Queries of a tile.
    const BLOCK_M: u32 = Self::CONSUMERS * WARPGROUP_ROWS;
    /// Pages of a block of keys.
    const BLOCK_PAGES: u32 = Self::BLOCK_N / PAGE_SIZE;
    /// Threads of a block: one warpgroup more is the producer.
    const NUM_THREADS: u32 = (Self::CONSUMERS + 1) * warp::WARPGROUP_SIZE;

    /// What every tile must satisfy; the kernel evaluates it.
    const IS_SHAPE: () = {
        assert!(Self::CONSUMERS == 2 || Self::CONSUMERS == 3, "others have no registers set");
        assert!(Self::BLOCK_N.is_multiple_of(PAGE_SIZE));
        assert!(Self::BLOCK_M <= 256, "a box has at most 256 rows");
    };
}

/// A tile of 16-bit elements.
pub trait PrefillTile: TileShape {
    /// Stages of Q.
    const Q_STAGES: u32;
    /// Stages of K, and of V.
    const STAGES: u32;

    /// Whether an item may have a part of its tile's keys: a tile for steps of few tiles.
    const SPLITS_KEYS: bool = Self::CONSUMERS == 2;

    /// Bytes of Q.
    const Q_BYTES: u32 = tile_bytes(Self::BLOCK_M, Self::WIDTH);
    /// Bytes of a block of K or V.
    const KV_BYTES: u32 = tile_bytes(Self::BLOCK_N, Self::WIDTH);

    /// Offsets in shared memory: stages of Q, of K, of V, work items, barriers.
    const K_AT: u32 = Self::Q_STAGES * Self::Q_BYTES;
    const V_AT: u32 = Self::K_AT + Self::STAGES * Self::KV_BYTES;
    const ITEMS_AT: u32 = Self::V_AT + Self::STAGES * Self::KV_BYTES;
    const ITEM_BARRIERS_AT: u32 = Self::ITEMS_AT + SLOT_BYTES;
    const Q_BARRIERS_AT: u32 = Self::ITEM_BARRIERS_AT + 8 * Pipeline::num_words(NUM_SLOTS);
    const K_BARRIERS_AT: u32 = Self::Q_BARRIERS_AT + 8 * Pipeline::num_words(Self::Q_STAGES);
    const V_BARRIERS_AT: u32 = Self::K_BARRIERS_AT + 8 * Pipeline::num_words(Self::STAGES);
    const TAIL_BARRIER_AT: u32 = Self::V_BARRIERS_AT + 8 * Pipeline::num_words(Self::STAGES);
    /// Shared memory of a block.
    const SHARED_BYTES: u32 = Self::TAIL_BARRIER_AT + 8;

    /// What every tile must satisfy; the kernel evaluates it.
    const IS_VALID: () = {
        let () = Self::IS_SHAPE;
        assert!(Self::SHARED_BYTES <= MAX_SHARED_BYTES);
    };
}

/// Declares tiles: consumers, stages of Q, stages of K and V, keys of a block, columns.
macro_rules! tiles {
    ($(
        $(#[$meta:meta])*
        $name:ident: $consumers:literal, $q_stages:literal, $stages:literal, $n:literal, $width:literal;
    )*) => {$(
        $(#[$meta])*
        pub struct $name;

        impl TileShape for $name {
            const CONSUMERS: u32 = $consumers;
            const BLOCK_N: u32 = $n;
            const WIDTH: u32 = $width;
        }

        impl PrefillTile for $name {
            const Q_STAGES: u32 = $q_stages;
            const STAGES: u32 = $stages;
        }
    )*};
}

tiles! {
    /// Heads of up to 64 columns: 192 queries.
    TileD64: 3, 2, 4, 128, 64;
    /// Heads of up to 64 columns: 128 queries, for steps of few tiles.
    TileD64M128: 2, 2, 4, 128, 64;
    /// Heads of up to 96 columns.
    TileD96: 2, 2, 2, 128, 96;
    /// Heads of up to 128 columns.
    TileD128: 2, 2, 2, 128, 128;
    /// Heads of up to 256 columns.
    TileD256: 2, 1, 2, 64, 256;
}
