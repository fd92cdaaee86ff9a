//! A warp's ring of tiles of the weight in shared memory, filled by asynchronous copies.
//!
//! Each warp has its own stages, so a warp waits for its own copies alone. Registers for as many
//! tiles in flight would be spilled.

use super::Cursor;
use super::format::{Format, Tile};
use cuda_std::prelude::*;

/// Stages of a warp's ring.
pub const fn num_stages<F: Format>() -> u32 {
    if Tile::<F>::BYTES <= 3 << 10 { 3 } else { 2 }
}

/// The ring of a warp.
pub struct Ring {
    stages: Shared<u8>,
    /// The stage to read next.
    stage_idx: u32,
    cursor: Cursor,
}

impl Ring {
    /// Bytes of the rings of `num_warps` warps.
    pub const fn bytes<F: Format>(num_warps: u32) -> u32 {
        num_warps * num_stages::<F>() * Tile::<F>::BYTES
    }

    /// The warp's ring; issues the copies of all stages but one.
    ///
    /// # Safety
    /// 1. `smem` holds the rings of all warps, 16-byte aligned, which nothing else uses.
    /// 2. The weight has the tiles that `cursor` takes.
    #[inline(always)]
    pub unsafe fn new<F: Format>(smem: Shared<u8>, cursor: Cursor) -> Self {
        let stages = smem.offset(warp::warp_idx() * num_stages::<F>() * Tile::<F>::BYTES);
        let mut ring = Ring { stages, stage_idx: 0, cursor };
        for stage in 0..num_stages::<F>() - 1 {
            // SAFETY: the caller's promise; the stage is unused.
            unsafe { ring.copy::<F>(stage) };
        }
        ring
    }

    /// Issues the copies of the warp's next tile to stage `stage`.
    ///
    /// # Safety
    /// 1. All lanes have read the stage.
    #[inline(always)]
    unsafe fn copy<F: Format>(&mut self, stage: u32) {
        let stage = self.stages.offset(stage * Tile::<F>::BYTES);
        // SAFETY: the caller's promise.
        unsafe { self.cursor.take::<F>().copy::<F>(stage) };
        cp_async::commit();
    }

    /// Waits for the next tile, and issues the copies that replace the one before.
    ///
    /// # Safety
    /// As [`Ring::new`].
    #[inline(always)]
    pub unsafe fn next<F: Format>(&mut self) -> Shared<u8> {
        let num_stages = const { num_stages::<F>() };
        let stage_idx = self.stage_idx;
        self.stage_idx = if stage_idx + 1 == num_stages { 0 } else { stage_idx + 1 };
        cp_async::wait(num_stages - 2);
        // All lanes have read the tile before, and their copies of this one are visible.
        warp::sync_warp();
        let previous = if stage_idx == 0 { num_stages - 1 } else { stage_idx - 1 };
        // SAFETY: as above.
        unsafe { self.copy::<F>(previous) };
        self.stages.offset(stage_idx * Tile::<F>::BYTES)
    }
}
