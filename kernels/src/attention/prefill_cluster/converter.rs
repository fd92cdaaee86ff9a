//! The warpgroup that loads V in E4M3 and converts it to f16, while the other one multiplies.

use super::copy::{Cache, PASS_BYTES, VEC_BYTES, place};
use super::fp8::first_keys;
use super::{BLOCK_N, CHUNK_PAGES, HEAD_DIM, MULTIPLIERS, PAGE_SIZE};
use crate::tile::smem::{SmemTile, tile_bytes_of};
use cuda_std::prelude::*;
use cuda_std::{E4m3, E4m3x2};
use half::f16;

/// Threads that convert.
pub const NUM_THREADS: u32 = warp::WARPGROUP_SIZE;

const ALL_THREADS: u32 = MULTIPLIERS + NUM_THREADS;

/// Named barriers: the halves of V are converted; V is multiplied.
const FIRST_HALF: u32 = 2;
const SECOND_HALF: u32 = 3;
const MULTIPLIED: u32 = 4;

/// Vectors of a thread of half a chunk: two of each page.
const HALF_VECS: usize = 4;

/// Waits for half `half` of the chunk, in the threads that multiply.
#[inline(always)]
#[track_caller]
pub fn wait_for_half(half: u32) {
    match half {
        0 => barrier::sync::<FIRST_HALF, ALL_THREADS>(),
        _ => barrier::sync::<SECOND_HALF, ALL_THREADS>(),
    }
}

/// Tells the threads that convert that V is multiplied.
#[inline(always)]
#[track_caller]
pub fn release() {
    barrier::arrive::<MULTIPLIED, ALL_THREADS>();
}

/// Converts the chunks of V from key `key` on.
///
/// # Safety
/// 1. `pool` is a layer's pool, and the sequence has the cache's keys; `tile` holds a chunk.
/// 2. The threads that multiply wait for each half, and arrive when another chunk follows.
#[inline(always)]
#[track_caller]
pub unsafe fn convert_values(cache: &Cache, pool: Global<E4m3>, mut key: u32, tile: SmemTile<f16>) {
    loop {
        // SAFETY: the caller's promise. The halves are converted in turn.
        unsafe {
            let (pages, keys) = (cache.pages(key), cache.keys(key));
            let first = load_half(cache, pool, &pages, keys, 0);
            let second = load_half(cache, pool, &pages, keys, 1);
            store_half(first, keys, tile, 0);
            barrier::arrive::<FIRST_HALF, ALL_THREADS>();
            store_half(second, keys, tile, 1);
            barrier::arrive::<SECOND_HALF, ALL_THREADS>();
        }
        key += BLOCK_N;
        if key >= cache.end_key {
            break;
        }
        barrier::sync::<MULTIPLIED, ALL_THREADS>();
    }
}

/// Which of the chunk's `keys` keys are in the thread's vectors of page `page`.
#[inline(always)]
fn keys_of_vec(keys: u32, page: u32) -> u32 {
    let (_, vec) = place::<E4m3>();
    keys.saturating_sub(page * PAGE_SIZE + vec * VEC_BYTES)
}

/// Loads the thread's vectors of half a chunk of `keys` keys; those without a key are zeros.
///
/// # Safety
/// 1. As [`convert_values`]; `pages` are the chunk's.
#[inline(always)]
#[track_caller]
unsafe fn load_half(
    cache: &Cache,
    pool: Global<E4m3>,
    pages: &[u32; CHUNK_PAGES as usize],
    keys: u32,
    half: u32,
) -> [[u32; 4]; HALF_VECS] {
    let mut vecs = [[0; 4]; HALF_VECS];
    unroll!(i in 0..4, {
        let page = 2 * half + i as u32 / 2;
        let from = cache.vec_of_page(pool, pages[page as usize]).cast::<u32>();
        let at = i % 2 * (PASS_BYTES / 4) as usize;
        // SAFETY: the caller's promise.
        vecs[i] = unsafe { from.get_vec_if(at, keys_of_vec(keys, page) > 0) };
    });
    vecs
}

/// Converts and stores the thread's vectors of half a chunk.
///
/// # Safety
/// 1. The threads that multiply do not read the half.
#[inline(always)]
#[track_caller]
unsafe fn store_half(vecs: [[u32; 4]; HALF_VECS], keys: u32, tile: SmemTile<f16>, half: u32) {
    let (row, vec) = place::<E4m3>();
    let [even, odd] = [0, 1].map(|i| tile.vec_at(0, row, 2 * vec + i).cast::<u32>());
    unroll!(i in 0..4, {
        let page = 2 * half + i as u32 / 2;
        let mut vec = vecs[i];
        let keys = keys_of_vec(keys, page);
        if keys < VEC_BYTES {
            vec = first_keys(vec, keys);
        }
        // Of a pair of pairs of keys, `2t, 2t + 1` and the same eight further on, the first half.
        let pairs = |shift: u32| {
            vec.map(|word| {
                let pair = E4m3x2::from_bits((word >> shift) as u16);
                convert::e4m3x2_to_f16x2(pair).to_bits()
            })
        };
        let panel = page * tile_bytes_of::<f16>(HEAD_DIM, PAGE_SIZE);
        let at = (panel + i as u32 % 2 * 2 * PASS_BYTES) / 4;
        // SAFETY: the caller's promise; the thread's own vectors.
        unsafe {
            even.set_vec(at, pairs(0));
            odd.set_vec(at, pairs(16));
        }
    });
    fence::proxy_async_shared();
}
