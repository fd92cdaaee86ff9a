//! FP8: `Q K^T` of E4M3; V of E4M3, transposed in the pool, for `P V` in f16 or in E4M3.

use super::converter;
use super::copy::{Cache, PASS_BYTES, VEC_BYTES, place};
use super::operands::Operands;
use super::{BLOCK_N, CHUNK_PAGES, HEAD_DIM, MULTIPLIERS, OUT_REGS, PAGE_SIZE, share_copies};
use crate::tile::smem::{SmemTile, tile_bytes_of};
use cuda_std::E4m3;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, FragmentA, InFlight};
use half::f16;

/// Zeroes all but the first `keys` of the 16 keys of a vector of V, which are in the order of
/// [`storage_index`](crate::attention::sm90::fp8::storage_index).
#[inline(always)]
pub fn first_keys(vec: [u32; 4], keys: u32) -> [u32; 4] {
    let mut kept = vec;
    for t in 0..4 {
        let mut mask = 0;
        for byte in 0..4 {
            if 2 * t + 8 * (byte / 2) + byte % 2 < keys {
                mask |= 0xff << (8 * byte);
            }
        }
        kept[t as usize] &= mask;
    }
    kept
}

/// A tile of V whose rows are the columns of the head, and whose columns are keys.
#[inline(always)]
pub fn transposed<E: wgmma::Element>(tile: Shared<u8>) -> SmemTile<E> {
    // SAFETY: the tile has `V_BYTES`, aligned to 1024 bytes.
    unsafe { SmemTile::new(tile.cast(), HEAD_DIM) }
}

/// `P V` in f16: a second warpgroup converts V.
pub struct Strict;

/// Where V is before its conversion.
const STAGING_AT: u32 = tile_bytes_of::<f16>(HEAD_DIM, BLOCK_N);

/// `P V` in E4M3: probabilities have 4 bits, of a largest one of 256.
pub struct Fast;

impl Operands for Strict {
    type Qk = E4m3;
    type V = E4m3;
    type Out = f16;
    type Fragments = [FragmentA<f16>; 2];

    const NUM_THREADS: u32 = MULTIPLIERS + converter::NUM_THREADS;
    const V_GROUPS: u32 = 0;
    const V_BYTES: u32 = STAGING_AT + tile_bytes_of::<E4m3>(HEAD_DIM, BLOCK_N);

    #[inline(always)]
    #[track_caller]
    unsafe fn copy_values(
        _: &Cache,
        _: Global<E4m3>,
        _pages: &[u32; CHUNK_PAGES as usize],
        _key: u32,
        _: Shared<u8>,
    ) {
        converter::want_values();
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn wait_for_values(_: &Cache, _key: u32, _: Shared<u8>, half: u32) {
        // All of V is converted at once.
        if half == 0 {
            converter::wait_for_values();
        }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn prepare_values(cache: &Cache, pool: Global<E4m3>, key: u32, tile: Shared<u8>) {
        // SAFETY: the caller's promise.
        unsafe {
            let staging = transposed(tile.offset(STAGING_AT));
            converter::convert_values(cache, pool, key, staging, transposed(tile));
        }
    }

    #[inline(always)]
    #[track_caller]
    fn pack(probabilities: [[[f32; 2]; 4]; 2]) -> Self::Fragments {
        let pack = |[lo, hi]: [f32; 2]| convert::f32_to_f16x2(lo, hi).to_bits();
        probabilities.map(|keys| FragmentA::new(keys.map(pack)))
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn multiply(
        out: &mut InFlight<OUT_REGS>,
        probabilities: &Self::Fragments,
        tile: Shared<u8>,
        step: u32,
    ) {
        let tile = transposed::<f16>(tile);
        for (i, fragment) in (0..).zip(probabilities) {
            let v = tile.k_major(0).advance(tile.column_step(2 * step + i));
            // SAFETY: the caller's promise.
            unsafe { out.mma_rs(fragment, v, true) };
        }
    }
}

impl Operands for Fast {
    type Qk = E4m3;
    type V = E4m3;
    type Out = f16;
    type Fragments = FragmentA<E4m3>;

    const V_GROUPS: u32 = 2;
    const V_BYTES: u32 = tile_bytes_of::<E4m3>(HEAD_DIM, BLOCK_N);
    /// The largest probability is 256, of at most 448; the smallest that is not 0 is 2^-17.
    const SHIFT: f32 = 8.0;

    #[inline(always)]
    #[track_caller]
    unsafe fn copy_values(
        cache: &Cache,
        pool: Global<E4m3>,
        pages: &[u32; CHUNK_PAGES as usize],
        key: u32,
        tile: Shared<u8>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { cache.copy_transposed_chunk(pool, pages, key, transposed(tile)) }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn wait_for_values(cache: &Cache, key: u32, tile: Shared<u8>, half: u32) {
        cp_async::wait(1 + half);
        // Of the last keys' vectors, each thread zeroes what does not exist in its own.
        let keys = cache.keys(key);
        let page = keys / PAGE_SIZE;
        let (row, vec) = place::<E4m3>();
        if !keys.is_multiple_of(VEC_BYTES)
            && page / 2 == half
            && keys % PAGE_SIZE / VEC_BYTES == vec
        {
            let tile = transposed::<E4m3>(tile);
            let smem = tile.vec_at(page, row, vec).cast::<u32>();
            unroll!(i in 0..2, {
                const AT: u32 = i as u32 * PASS_BYTES / 4;
                // SAFETY: the thread has copied the vector; a barrier follows.
                unsafe { smem.set_vec(AT, first_keys(smem.get_vec(AT), keys % VEC_BYTES)) };
            });
        }
        share_copies();
    }

    #[inline(always)]
    #[track_caller]
    fn pack([first, second]: [[[f32; 2]; 4]; 2]) -> Self::Fragments {
        let pair = |[lo, hi]: [f32; 2]| u32::from(convert::f32_to_e4m3x2(lo, hi).to_bits());
        let pack = |keys: [[f32; 2]; 4], row: usize| pair(keys[row]) | pair(keys[row + 2]) << 16;
        FragmentA::new([pack(first, 0), pack(first, 1), pack(second, 0), pack(second, 1)])
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn multiply(
        out: &mut InFlight<OUT_REGS>,
        probabilities: &Self::Fragments,
        tile: Shared<u8>,
        step: u32,
    ) {
        let tile = transposed::<E4m3>(tile);
        // SAFETY: the caller's promise.
        unsafe {
            out.mma_rs(probabilities, tile.k_major(0).advance(tile.column_step(step)), true);
        }
    }
}
