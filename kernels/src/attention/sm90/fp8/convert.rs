//! The conversion of V from E4M3 to f16, in shared memory.
//!
//! A thread converts 16 positions of a column: exactly, and in order of the positions.

use super::super::tiles::TileShape;
use super::stages::{NUM_CONVERTERS, Stages};
use super::tiles::Fp8Tile;
use crate::kv_cache::PAGE_SIZE;
use crate::tile::smem::swizzle;
use cuda_std::prelude::*;
use cuda_std::{E4m3x2, convert};

/// Threads of a column.
const COLUMN_THREADS: u32 = PAGE_SIZE / 16;

/// Columns that are converted at once.
const NUM_COLUMNS: u32 = NUM_CONVERTERS * warp::WARP_SIZE / COLUMN_THREADS;

/// The positions of the bytes of word `index` of a vector, whose first is `first`.
#[inline(always)]
pub(super) fn keys_of_word(first: u32, index: u32) -> [u32; 4] {
    [0, 1, 8, 9].map(|key| first + 2 * index + key)
}

/// The bytes of `word` whose keys are before `end`; zeros for the others.
#[inline(always)]
pub(super) fn keep(word: u32, keys: [u32; 4], end: u32) -> u32 {
    let mut mask = 0;
    unroll!(i in 0..4, {
        if keys[i] < end {
            mask |= 0xff << (8 * i);
        }
    });
    word & mask
}

/// A warp that converts V.
pub(super) struct Converter {
    pub stages: Stages,
    /// Index among the warps that convert.
    pub warp: u32,
}

impl Converter {
    /// Converts the V of the block's work items.
    ///
    /// # Safety
    /// 1. All lanes of the warp call this.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn run<T: Fp8Tile>(mut self) {
        while let Some(item) = self.stages.items.get() {
            self.stages.items.release();
            let first_block = item.first_key / T::BLOCK_N;
            let mut block = item.end_key.div_ceil(T::BLOCK_N);
            while block > first_block {
                block -= 1;
                let num_keys = item.end_key - block * T::BLOCK_N;
                // SAFETY: the caller's promise.
                unsafe {
                    if num_keys >= T::BLOCK_N {
                        self.convert_block::<T, false>(T::BLOCK_N);
                    } else {
                        self.convert_block::<T, true>(num_keys);
                    }
                }
            }
        }
    }

    /// Converts the next block; a tail has zeros from its key `num_keys` on.
    #[inline(always)]
    #[track_caller]
    unsafe fn convert_block<T: Fp8Tile, const IS_TAIL: bool>(&mut self, num_keys: u32) {
        self.stages.v.wait_empty();
        let to = self.stages.v.tile().start;
        let from = self.stages.staging.wait_full().start;
        let thread = self.warp * warp::WARP_SIZE + warp::lane_id();
        let (row, vec_idx) = (thread / COLUMN_THREADS, thread % COLUMN_THREADS);
        // Rows `NUM_COLUMNS` apart are swizzled alike.
        const { assert!(NUM_COLUMNS.is_multiple_of(8)) };
        let from = from.offset(swizzle::<u8, PAGE_SIZE>(row, vec_idx));
        let to =
            [0, 1].map(|half| to.offset(swizzle::<u8, { 2 * PAGE_SIZE }>(row, 2 * vec_idx + half)));
        let mut page_idx = 0;
        while page_idx < T::BLOCK_PAGES {
            let end = num_keys.saturating_sub(page_idx * PAGE_SIZE);
            let mut step = 0;
            while step < T::WIDTH / NUM_COLUMNS {
                let at = page_idx * T::WIDTH + step * NUM_COLUMNS;
                // SAFETY: the stages are full and empty; a thread has its own vectors.
                unsafe {
                    let first = vec_idx * 16;
                    let mut words = [[0u32; 4]; 4];
                    unroll!(i in 0..4, {
                        if (i as u32) < unrolled::<T>(IS_TAIL) && !(IS_TAIL && end <= first) {
                            let row = at + i as u32 * NUM_COLUMNS;
                            words[i] = from.offset(row * PAGE_SIZE).cast().get_vec(0);
                        }
                    });
                    unroll!(i in 0..4, {
                        if (i as u32) < unrolled::<T>(IS_TAIL) {
                            let row = at + i as u32 * NUM_COLUMNS;
                            let mut halves = [[0; 4]; 2];
                            unroll!(j in 0..4, {
                                let mut word = words[i][j];
                                if IS_TAIL {
                                    word = keep(word, keys_of_word(first, j as u32), end);
                                }
                                halves[0][j] = to_f16x2(word as u16);
                                halves[1][j] = to_f16x2((word >> 16) as u16);
                            });
                            let offset = row * 2 * PAGE_SIZE;
                            to[0].offset(offset).cast().set_vec(0, halves[0]);
                            to[1].offset(offset).cast().set_vec(0, halves[1]);
                        }
                    });
                }
                step += unrolled::<T>(IS_TAIL);
            }
            page_idx += 1;
        }
        fence::proxy_async_shared();
        warp::sync_warp();
        if warp::lane_id() == 0 {
            self.stages.v.full_barrier().arrive();
        }
        self.stages.v.advance();
        self.stages.staging.release();
    }
}

/// Vectors that a thread converts at once.
#[inline(always)]
const fn unrolled<T: TileShape>(is_tail: bool) -> u32 {
    if !is_tail && (T::WIDTH / NUM_COLUMNS).is_multiple_of(4) { 4 } else { 2 }
}

/// Two numbers, exactly.
#[inline(always)]
fn to_f16x2(pair: u16) -> u32 {
    convert::e4m3x2_to_f16x2(E4m3x2::from_bits(pair)).to_bits()
}
