//! What the kernels multiply: element types, and how V comes to shared memory.

use super::copy::Cache;
use super::{BLOCK_N, CHUNK_PAGES, HEAD_DIM, MULTIPLIERS, OUT_REGS, wait_for_copies};
use crate::tile::element::Operand16;
use crate::tile::smem::{SmemTile, tile_bytes_of};
use core::marker::PhantomData;
use cuda_std::Element;
use cuda_std::prelude::*;
use cuda_std::wgmma::{self, FragmentA, InFlight};

/// The operands of a kernel. V's tile in shared memory is of the implementation's own form.
pub trait Operands {
    /// Element of Q and K.
    type Qk: Element + wgmma::Element;
    /// Element of V in the pool.
    type V;
    /// Element of the output.
    type Out: Operand16;
    /// Fragments of the probabilities of 32 keys.
    type Fragments;

    /// Threads of a block: the warpgroup that multiplies, and what prepares V for it.
    const NUM_THREADS: u32 = MULTIPLIERS;
    /// Groups of `cp.async` of a chunk of V.
    const V_GROUPS: u32;
    /// Bytes of the tile of a chunk of V.
    const V_BYTES: u32;
    /// Probabilities are multiplied by 2 to this power.
    const SHIFT: f32 = 0.0;

    /// Issues the copies of the chunk of V whose first key is `key`.
    ///
    /// # Safety
    /// 1. As [`Cache::copy_chunk`].
    unsafe fn copy_values(
        cache: &Cache,
        pool: Global<Self::V>,
        pages: &[u32; CHUNK_PAGES as usize],
        key: u32,
        tile: Shared<u8>,
    );

    /// Waits for half `half` of the chunk of V; two newer groups of copies may be pending. It is a
    /// barrier of the warpgroup that multiplies.
    ///
    /// # Safety
    /// 1. The chunk is what [`Operands::copy_values`] has been called for.
    unsafe fn wait_for_values(cache: &Cache, key: u32, tile: Shared<u8>, half: u32);

    /// What the threads do that do not multiply.
    ///
    /// # Safety
    /// 1. As [`Operands::copy_values`].
    #[inline(always)]
    unsafe fn prepare_values(_: &Cache, _: Global<Self::V>, _first_key: u32, _: Shared<u8>) {}

    /// Packs the probabilities of 32 keys: see [`Softmax::probabilities`].
    ///
    /// [`Softmax::probabilities`]: super::softmax::Softmax::probabilities
    fn pack(probabilities: [[[f32; 2]; 4]; 2]) -> Self::Fragments;

    /// Issues `P V` for keys `32 * step ..` of the chunk.
    ///
    /// # Safety
    /// 1. As [`InFlight::mma_rs`].
    unsafe fn multiply(
        out: &mut InFlight<OUT_REGS>,
        probabilities: &Self::Fragments,
        tile: Shared<u8>,
        step: u32,
    );
}

/// All of 16 bits; V row-major.
pub struct Halves<E>(PhantomData<E>);

impl<E: Operand16> Halves<E> {
    /// V's tile, a row a key.
    #[inline(always)]
    fn tile(tile: Shared<u8>) -> SmemTile<E> {
        // SAFETY: the tile has `V_BYTES`, aligned to 1024 bytes.
        unsafe { SmemTile::new(tile.cast(), BLOCK_N) }
    }
}

impl<E: Operand16> Operands for Halves<E> {
    type Qk = E;
    type V = E;
    type Out = E;
    type Fragments = [FragmentA<E>; 2];

    const V_GROUPS: u32 = 2;
    const V_BYTES: u32 = tile_bytes_of::<E>(BLOCK_N, HEAD_DIM);

    #[inline(always)]
    #[track_caller]
    unsafe fn copy_values(
        cache: &Cache,
        pool: Global<E>,
        pages: &[u32; CHUNK_PAGES as usize],
        key: u32,
        tile: Shared<u8>,
    ) {
        // SAFETY: the caller's promise.
        unsafe { cache.copy_chunk(pool, pages, key, Self::tile(tile)) }
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn wait_for_values(_: &Cache, _key: u32, _: Shared<u8>, half: u32) {
        // Pending may be V's second half, or the next chunk's K.
        wait_for_copies(1 + half);
    }

    #[inline(always)]
    #[track_caller]
    fn pack(probabilities: [[[f32; 2]; 4]; 2]) -> Self::Fragments {
        probabilities.map(|keys| FragmentA::new(keys.map(|[lo, hi]| E::pack(lo, hi))))
    }

    #[inline(always)]
    #[track_caller]
    unsafe fn multiply(
        out: &mut InFlight<OUT_REGS>,
        probabilities: &Self::Fragments,
        tile: Shared<u8>,
        step: u32,
    ) {
        let tile = Self::tile(tile);
        for (i, fragment) in (0..).zip(probabilities) {
            let v = tile.mn_major().advance(tile.row_step(2 * step + i));
            // SAFETY: the caller's promise.
            unsafe { out.mma_rs(fragment, v, true) };
        }
    }
}
