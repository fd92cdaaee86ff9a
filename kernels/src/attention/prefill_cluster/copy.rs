//! Copies of queries and of pages of the cache into shared memory, by `cp.async`: here they arrive
//! earlier than by TMA.

use super::{BLOCK_M, BLOCK_N, CHUNK_PAGES, HEAD_DIM, PAGE_SIZE};
use crate::attention::work::PrefillItem;
use crate::tile::smem::SmemTile;
use cuda_std::prelude::*;
use cuda_std::wgmma;

/// Bytes of a copy.
pub const VEC_BYTES: u32 = 16;

/// Bytes that a warpgroup copies at once.
pub const PASS_BYTES: u32 = warp::WARPGROUP_SIZE * VEC_BYTES;

/// Copies of a thread of 64 rows of 64 elements `E`, a page or the queries of an item: 4 or 2.
pub const fn thread_copies<E>() -> usize {
    PAGE_SIZE as usize * HEAD_DIM as usize * size_of::<E>() / PASS_BYTES as usize
}

/// Rows that a warpgroup copies at once: a multiple of the swizzle's period, so that the thread's
/// vectors are at one column of the tile.
const fn rows_at_once<E>() -> u32 {
    PASS_BYTES / (HEAD_DIM * size_of::<E>() as u32)
}

const _: () = assert!(PAGE_SIZE == BLOCK_M && PAGE_SIZE == HEAD_DIM);

/// Row and vector of the thread's first copy of 64 rows of 64 elements `E`.
#[inline(always)]
pub fn place<E>() -> (u32, u32) {
    let row_vecs = const { HEAD_DIM * size_of::<E>() as u32 / VEC_BYTES };
    let thread = thread::thread_idx_x() % warp::WARPGROUP_SIZE;
    (thread / row_vecs, thread % row_vecs)
}

/// The query in row `row` of the tile. In block 1 the halves of every 16 are swapped, so that the
/// rows that a block finishes are the first of the two that each thread has.
#[inline(always)]
pub fn query_of_row(row: u32, rank: u32) -> u32 {
    row ^ (8 * rank)
}

/// Queries in global memory.
pub struct Queries<E> {
    pub gmem: Global<E>,
    /// Row stride, in elements.
    pub row_stride: u32,
    /// The block's rank in the cluster.
    pub rank: u32,
}

impl<E: wgmma::Element> Queries<E> {
    /// Issues the copies of the item's queries; rows past the last one are zeros.
    ///
    /// # Safety
    /// 1. The item's queries are in `gmem`, 16-byte aligned; `tile` has 64 rows.
    /// 2. No thread reads the tile until the copies are waited for and a barrier is passed.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_to(&self, tile: SmemTile<E>, item: &PrefillItem) {
        let (row, vec) = place::<E>();
        let query = query_of_row(row, self.rank);
        let from = (item.first_token + query) as usize * self.row_stride as usize;
        let gmem = self.gmem.wrapping_add(from + (item.head * HEAD_DIM) as usize).cast::<u8>();
        let gmem = gmem.wrapping_add((vec * VEC_BYTES) as usize);
        let smem = tile.vec_at(0, row, vec).cast::<u8>();
        unroll!(i in 0..4, {
            if i < const { thread_copies::<E>() } {
                let row = i as u32 * const { rows_at_once::<E>() };
                let from = row as usize * self.row_stride as usize * size_of::<E>();
                let exists = query + row < item.queries;
                // SAFETY: the caller's promise; nothing is read of rows that do not exist.
                unsafe {
                    cp_async::copy_vec::<16, u8>(smem, i as u32 * PASS_BYTES, gmem, from, exists);
                }
            }
        });
    }
}

/// The block table, and the start of its first row: loaded with the work item, it saves a step of
/// one sequence the latency of a second load.
pub struct PageTable {
    entries: Global<u32>,
    max_pages_per_seq: u32,
    /// Lane `i` has the first sequence's page `i`.
    first_pages: u32,
}

impl PageTable {
    /// Issues the load of the first row.
    ///
    /// # Safety
    /// 1. `entries` is a block table of at least one row of `max_pages_per_seq` pages.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn speculate(entries: Global<u32>, max_pages_per_seq: u32) -> Self {
        let lane_id = warp::lane_id();
        let mut first_pages = 0;
        if lane_id < max_pages_per_seq {
            // SAFETY: the caller's promise.
            first_pages = unsafe { entries.speculate(lane_id as usize) };
        }
        PageTable { entries, max_pages_per_seq, first_pages }
    }

    /// The row of `seq`.
    #[inline(always)]
    pub fn seq_pages(self, seq: u32) -> SeqPages {
        let row = seq as usize * self.max_pages_per_seq as usize;
        let entries = self.entries.wrapping_add(row);
        SeqPages { entries, first_pages: (seq == 0).then_some(self.first_pages) }
    }
}

/// The pages of a sequence.
pub struct SeqPages {
    entries: Global<u32>,
    /// First pages of the sequence, if their load is issued already: see [`PageTable`].
    first_pages: Option<u32>,
}

/// The block's keys and values: a KV head of a sequence's pages.
pub struct Cache {
    pub kv_head: u32,
    pub num_kv_heads: u32,
    pub table: SeqPages,
    /// End of the block's keys.
    pub end_key: u32,
}

impl Cache {
    /// The pages of the chunk whose first key is `key`; of those without a key of the block the
    /// numbers mean nothing.
    ///
    /// # Safety
    /// 1. The table has the sequence's pages, up to `end_key`; the warp is converged.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn pages(&self, key: u32) -> [u32; CHUNK_PAGES as usize] {
        let (first, end) = (key / PAGE_SIZE, self.end_key.div_ceil(PAGE_SIZE));
        let indices = [0, 1, 2, 3].map(|i| first + i);
        match self.table.first_pages {
            Some(pages) if first + CHUNK_PAGES <= warp::WARP_SIZE => {
                indices.map(|index| warp::shuffle_idx(pages, index))
            }
            _ => indices.map(|index| match index < end {
                // SAFETY: the sequence has these pages.
                true => unsafe { self.table.entries.get(index as usize) },
                false => 0,
            }),
        }
    }

    /// Keys of the chunk whose first key is `key`.
    #[inline(always)]
    pub fn keys(&self, key: u32) -> u32 {
        self.end_key.saturating_sub(key).min(BLOCK_N)
    }

    /// The thread's first vector of page `page` of a pool, pages of 64 rows of 64 elements `E`.
    #[inline(always)]
    pub fn vec_of_page<E>(&self, pool: Global<E>, page: u32) -> Global<u8> {
        let (row, vec) = place::<E>();
        // In bytes, so that the address of a page is one multiplication and addition.
        let head_bytes = const { PAGE_SIZE * HEAD_DIM * size_of::<E>() as u32 };
        let page_bytes = self.num_kv_heads * head_bytes;
        let in_page = row * const { HEAD_DIM * size_of::<E>() as u32 } + vec * VEC_BYTES;
        let head = pool.cast::<u8>().wrapping_add(in_page as usize);
        let head = head.wrapping_add(self.kv_head as usize * head_bytes as usize);
        head.wrapping_add(page as usize * page_bytes as usize)
    }

    /// Issues the copies of the chunk whose first key is `key` from a pool, in two groups of half a
    /// chunk; rows past the block's last key are zeros. So what the pool has there, which may be
    /// NaN, is not multiplied by a probability of 0.
    ///
    /// # Safety
    /// 1. `pages` are the chunk's; `pool` is a layer's pool.
    /// 2. No thread reads the tile until the copies are waited for and a barrier is passed.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_chunk<E: wgmma::Element>(
        &self,
        pool: Global<E>,
        pages: &[u32; CHUNK_PAGES as usize],
        key: u32,
        tile: SmemTile<E>,
    ) {
        let (row, vec) = place::<E>();
        // The thread's rows below this exist.
        let rows = self.keys(key) as i32 - row as i32;
        let smem = tile.vec_at(0, row, vec);
        let exists = |page: u32, copy: u32| {
            let row = page * PAGE_SIZE + copy * const { rows_at_once::<E>() };
            (row as i32) < rows
        };
        // SAFETY: the caller's promise.
        unsafe { self.copy_pages(pool, pages, smem, exists) }
    }

    /// As [`Cache::copy_chunk`], of transposed pages `[HEAD_DIM, PAGE_SIZE]` of 8-bit elements; of
    /// every 16 keys all are copied, if one exists.
    ///
    /// # Safety
    /// As [`Cache::copy_chunk`].
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_transposed_chunk<E: wgmma::Element>(
        &self,
        pool: Global<E>,
        pages: &[u32; CHUNK_PAGES as usize],
        key: u32,
        tile: SmemTile<E>,
    ) {
        const { assert!(size_of::<E>() == 1) };
        let (row, vec) = place::<E>();
        let smem = tile.vec_at(0, row, vec);
        let keys = self.keys(key);
        let exists = |page: u32, _: u32| page * PAGE_SIZE + vec * VEC_BYTES < keys;
        // SAFETY: the caller's promise.
        unsafe { self.copy_pages(pool, pages, smem, exists) }
    }

    /// Issues the thread's copies of a chunk's pages; `smem` is the place of the first one, and
    /// `exists` says of a page and a copy of it whether it is copied, or zeros.
    ///
    /// # Safety
    /// As [`Cache::copy_chunk`].
    #[inline(always)]
    #[track_caller]
    unsafe fn copy_pages<E: wgmma::Element>(
        &self,
        pool: Global<E>,
        pages: &[u32; CHUNK_PAGES as usize],
        smem: Shared<E>,
        exists: impl Fn(u32, u32) -> bool,
    ) {
        unroll!(i in 0..4, {
            let page = self.vec_of_page(pool, pages[i]);
            let smem = smem.offset(i as u32 * PAGE_SIZE * HEAD_DIM).cast::<u8>();
            // SAFETY: the caller's promise.
            unsafe { copy_page::<E>(page, smem, |copy| exists(i as u32, copy)) };
            if i % 2 == 1 {
                cp_async::commit();
            }
        });
    }
}

/// Issues the thread's copies of a page of elements `E`, or zeros of those which do not exist.
/// `page` and `smem` are the places of the first one.
///
/// # Safety
/// As [`Cache::copy_chunk`].
#[inline(always)]
#[track_caller]
unsafe fn copy_page<E>(page: Global<u8>, smem: Shared<u8>, exists: impl Fn(u32) -> bool) {
    unroll!(i in 0..4, {
        if i < const { thread_copies::<E>() } {
            const AT: usize = i * PASS_BYTES as usize;
            let exists = exists(i as u32);
            // SAFETY: the caller's promise; nothing is read of what does not exist.
            unsafe { cp_async::copy_vec_at::<{ AT as u32 }, AT, 16, u8>(smem, page, exists) };
        }
    });
}
