//! The warpgroup that loads V in E4M3 and converts it to f16, while the other one multiplies.

use super::copy::{Cache, VEC_BYTES, place};
use super::fp8::first_keys;
use super::{BLOCK_N, CHUNK_PAGES, HEAD_DIM, MULTIPLIERS, PAGE_SIZE};
use crate::tile::smem::SmemTile;
use cuda_std::prelude::*;
use cuda_std::{E4m3, E4m3x2};
use half::f16;

/// Threads that convert.
pub const NUM_THREADS: u32 = warp::WARPGROUP_SIZE;

const ALL_THREADS: u32 = MULTIPLIERS + NUM_THREADS;

/// Named barriers: V may be loaded; it is converted.
const WANTED: u32 = 2;
const CONVERTED: u32 = 3;

/// Lets the threads that convert load a chunk, in the threads that multiply: after the copies of
/// K, which is wanted first, and when the chunk before is multiplied.
#[inline(always)]
#[track_caller]
pub fn want_values() {
    barrier::arrive::<WANTED, ALL_THREADS>();
}

/// Waits for the chunk, in the threads that multiply.
#[inline(always)]
#[track_caller]
pub fn wait_for_values() {
    barrier::sync::<CONVERTED, ALL_THREADS>();
}

/// Loads and converts the chunks of V from key `key` on to `tile`, by way of `staging`.
///
/// # Safety
/// 1. `pool` is a layer's pool, and the sequence has the cache's keys; the tiles hold a chunk.
/// 2. The threads that multiply call [`want_values`] and [`wait_for_values`] for each chunk.
#[inline(always)]
#[track_caller]
pub unsafe fn convert_values(
    cache: &Cache,
    pool: Global<E4m3>,
    mut key: u32,
    staging: SmemTile<E4m3>,
    tile: SmemTile<f16>,
) {
    loop {
        // SAFETY: the caller's promise.
        let pages = unsafe { cache.pages(key) };
        barrier::sync::<WANTED, ALL_THREADS>();
        // SAFETY: the caller's promise; each thread converts what it has copied.
        unsafe {
            cache.copy_transposed_chunk(pool, &pages, key, staging);
            cp_async::wait(0);
            convert_chunk(cache.keys(key), staging, tile);
        }
        fence::proxy_async_shared();
        barrier::arrive::<CONVERTED, ALL_THREADS>();
        key += BLOCK_N;
        if key >= cache.end_key {
            break;
        }
    }
}

/// Bytes of a page and of a chunk of V in E4M3.
const PAGE_BYTES: u32 = PAGE_SIZE * HEAD_DIM;
const CHUNK_BYTES: u32 = CHUNK_PAGES * PAGE_BYTES;

/// Converts the vectors that the thread has copied of a chunk of `keys` keys.
///
/// # Safety
/// 1. They are there, and no other thread reads or writes the thread's part of the tiles.
#[inline(always)]
#[track_caller]
unsafe fn convert_chunk(keys: u32, staging: SmemTile<E4m3>, tile: SmemTile<f16>) {
    let (row, vec) = place::<E4m3>();
    let staged = staging.vec_at(0, row, vec).cast::<u32>();
    let [low, high] = [0, 1].map(|i| tile.vec_at(0, row, 2 * vec + i).cast::<u32>());
    // Keys from the first one of the vector on.
    let first_key = vec * VEC_BYTES;
    // A stride that only the launch knows keeps the loop one: unrolled, it would take longer to
    // fetch than to execute, and the warps that multiply fetch at the same time.
    let pass_bytes = (thread::block_dim_x() - MULTIPLIERS) * VEC_BYTES;
    let mut at = 0;
    while at < CHUNK_BYTES {
        let keys = keys as i32 - (at / PAGE_BYTES * PAGE_SIZE + first_key) as i32;
        // SAFETY: the caller's promise.
        unsafe {
            let mut codes = staged.get_vec(at / 4);
            if 0 < keys && keys < VEC_BYTES as i32 {
                codes = first_keys(codes, keys as u32);
            }
            // Of each word the lower pair is of the first eight keys, the upper one of the others.
            let pairs = |shift: u32| {
                codes.map(|word: u32| {
                    let pair = E4m3x2::from_bits((word >> shift) as u16);
                    convert::e4m3x2_to_f16x2(pair).to_bits()
                })
            };
            low.set_vec(at / 2, pairs(0));
            high.set_vec(at / 2, pairs(16));
        }
        at += pass_bytes;
    }
}
