//! A warp's ring of tiles of the weight in shared memory, filled by bulk copies.
//!
//! Each warp has its own stages and barriers, so that warps do not wait for each other.

use super::super::format::{Format, Tile, Tiles};
use super::{BlockRows, WarpSplit};
use cuda_std::bulk::{self, CacheHint};
use cuda_std::prelude::*;

/// A warp's next tile: by batches of rows, tiles along k, parts of the weight and rows.
#[derive(Clone, Copy)]
pub struct Cursor {
    split: WarpSplit,
    rows: BlockRows,
    tiles: Tiles,
    /// Rows of tiles of a part.
    part_rows: u32,
    /// First row of the batch; the tile along k; the part.
    first: u32,
    tile: u32,
    part: u32,
    /// The tile, and the tiles that are left in the part: none past the last one.
    next: Global<u8>,
    left: u32,
}

impl Cursor {
    /// The warp's first tile.
    #[inline(always)]
    pub fn new<F: Format>(split: WarpSplit, rows: BlockRows, tiles: Tiles, part_rows: u32) -> Self {
        let (first, tile, part) = (0, split.warp_indices()[1], 0);
        let next = tiles.at::<F>(0, 0);
        let mut cursor = Cursor { split, rows, tiles, part_rows, first, tile, part, next, left: 0 };
        cursor.start::<F>();
        cursor
    }

    /// Starts a part.
    #[inline(always)]
    fn start<F: Format>(&mut self) {
        let [group, _] = self.split.warp_indices();
        let row = self.rows.first + self.first + group + self.part * self.part_rows;
        if self.first < self.rows.len && self.tile < self.tiles.num_tiles {
            self.next = self.tiles.at::<F>(row, self.tile);
            let len = self.rows.batch_len(self.first);
            self.left = self.split.rows_of_group(len);
        }
    }

    /// Moves to the next tile.
    #[inline(always)]
    fn advance<F: Format>(&mut self) {
        self.left -= 1;
        let rows = self.split.num_groups() as usize;
        self.next = self.next.wrapping_add(rows * self.tiles.row_bytes as usize);
        if self.left == 0 {
            self.part += 1;
            if self.part == self.rows.gate.num_parts() {
                self.part = 0;
                self.tile += self.split.k_warps();
                if self.tile >= self.tiles.num_tiles {
                    self.tile = self.split.warp_indices()[1];
                    self.first += self.rows.batch_len(self.first);
                }
            }
            self.start::<F>();
        }
    }
}

/// Stages of a warp's ring. With more in flight all tiles arrive late, and nothing is left to
/// overlap with (`docs/measurements/gemm_quantised.md`).
pub const NUM_STAGES: u32 = 2;

/// The ring of a warp.
pub struct Ring {
    /// The stages, then their full barriers.
    stages: Shared<u8>,
    /// Tiles that are taken.
    num_taken: u32,
    cursor: Cursor,
}

impl Ring {
    /// Bytes of a warp's ring.
    pub const fn bytes(tile_bytes: u32) -> u32 {
        NUM_STAGES * (tile_bytes + size_of::<u64>() as u32)
    }

    /// The warp's ring; issues the copies of all stages but one.
    ///
    /// # Safety
    /// 1. `smem` holds the rings of all warps, 16-byte aligned, which nothing else uses.
    /// 2. The weight has the tiles that `cursor` takes.
    #[inline(always)]
    pub unsafe fn new<F: Format>(smem: Shared<u8>, cursor: Cursor) -> Self {
        let stages = smem.offset(warp::warp_idx() * Ring::bytes(Tile::<F>::BYTES));
        let mut ring = Ring { stages, num_taken: 0, cursor };
        if warp::lane_id() < NUM_STAGES {
            ring.full_barrier::<F>(warp::lane_id()).init(1);
            fence::mbarrier_init();
        }
        if !ring.cursor.tiles.are_whole() {
            // The rest of a last tile is read, too; its scales are zeros.
            // SAFETY: the stages are unused.
            unsafe { clear(ring.stages, NUM_STAGES * Tile::<F>::BYTES) };
        }
        // One lane uses the barriers that others have initialised.
        warp::sync_warp();
        for stage in 0..NUM_STAGES - 1 {
            // SAFETY: the stage is unused.
            unsafe { ring.copy::<F>(stage) };
        }
        ring
    }

    #[inline(always)]
    fn full_barrier<F: Format>(&self, stage: u32) -> Mbarrier {
        let barriers = self.stages.offset(NUM_STAGES * Tile::<F>::BYTES).cast::<u64>();
        // SAFETY: `Ring::new` initialises the barriers.
        unsafe { Mbarrier::new(barriers).offset(stage) }
    }

    /// Issues the copy of the warp's next tile to stage `stage`, if there is one.
    ///
    /// # Safety
    /// 1. All lanes have read the stage.
    #[inline(always)]
    unsafe fn copy<F: Format>(&mut self, stage: u32) {
        let Cursor { tiles, tile, next, left, .. } = self.cursor;
        if left == 0 {
            return;
        }
        let full_barrier = self.full_barrier::<F>(stage);
        let stage = self.stages.offset(stage * Tile::<F>::BYTES);
        if warp::lane_id() == 0 {
            let bytes = tiles.bytes_of::<F>(tile);
            full_barrier.arrive_expect_tx(bytes);
            // SAFETY: the caller's promise. The weight is read once.
            unsafe { bulk::load(stage, next, bytes, full_barrier, CacheHint::EvictFirst) };
        }
        self.cursor.advance::<F>();
    }

    /// Waits for the next tile, and issues the copy that replaces the one before.
    ///
    /// # Safety
    /// 1. The warp has a tile that it has not taken.
    #[inline(always)]
    pub unsafe fn next<F: Format>(&mut self) -> Shared<u8> {
        const { assert!(NUM_STAGES == 2) };
        let (stage, phase) = (self.num_taken % 2, self.num_taken / 2 % 2);
        // All lanes have read the tile before.
        warp::sync_warp();
        // SAFETY: the caller's promise.
        unsafe { self.copy::<F>(stage ^ 1) };
        self.full_barrier::<F>(stage).wait(phase);
        self.num_taken += 1;
        self.stages.offset(stage * Tile::<F>::BYTES)
    }
}

/// Zeros `bytes` of a warp's stages, before the first copies to them.
///
/// # Safety
/// 1. The bytes are 16-byte aligned, and no other warp uses them.
#[inline(always)]
unsafe fn clear(stages: Shared<u8>, bytes: u32) {
    let mut at = 16 * warp::lane_id();
    while at < bytes {
        // SAFETY: the caller's promise.
        unsafe { stages.offset(at).cast::<u32>().set_vec(0, [0; 4]) };
        at += 16 * warp::WARP_SIZE;
    }
    fence::proxy_async_shared();
}
