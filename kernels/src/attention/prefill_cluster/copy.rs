//! Copies of queries and of pages of the cache into shared memory, by `cp.async`: here they arrive
//! earlier than by TMA.

use super::{BLOCK_M, BLOCK_N, CHUNK_PAGES, HEAD_DIM, NUM_THREADS, PAGE_SIZE, VEC_ELEMS};
use crate::attention::work::PrefillItem;
use crate::tile::element::Operand16;
use crate::tile::smem::SmemTile;
use cuda_std::prelude::*;

/// [`VEC_ELEMS`], and 16-byte copies of a row.
const VEC: usize = VEC_ELEMS as usize;
const ROW_VECS: u32 = HEAD_DIM / VEC_ELEMS;

/// Rows that the block copies at once: a multiple of the swizzle's period, so that the thread's
/// vectors are at one column of the tile.
const ROWS_AT_ONCE: u32 = NUM_THREADS / ROW_VECS;

/// Copies of a thread of 64 rows: a page, or the queries of an item.
const THREAD_COPIES: usize = (PAGE_SIZE / ROWS_AT_ONCE) as usize;

const _: () = assert!(PAGE_SIZE == BLOCK_M && ROWS_AT_ONCE == 16);

/// Row and vector of the thread's first copy.
#[inline(always)]
fn place() -> (u32, u32) {
    let thread = thread::thread_idx_x();
    (thread / ROW_VECS, thread % ROW_VECS)
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

impl<E: Operand16> Queries<E> {
    /// Issues the copies of the item's queries; rows past the last one are zeros.
    ///
    /// # Safety
    /// 1. The item's queries are in `gmem`, 16-byte aligned; `tile` has 64 rows.
    /// 2. No thread reads the tile until the copies are waited for and a barrier is passed.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_to(&self, tile: SmemTile<E>, item: &PrefillItem) {
        let (row, vec) = place();
        let query = query_of_row(row, self.rank);
        let from = (item.first_token + query) as usize * self.row_stride as usize;
        let column = item.head * HEAD_DIM + vec * VEC_ELEMS;
        let gmem = self.gmem.wrapping_add(from + column as usize);
        let smem = tile.vec_at(0, row, vec);
        unroll!(i in 0..THREAD_COPIES, {
            let row = i as u32 * ROWS_AT_ONCE;
            let from = row as usize * self.row_stride as usize;
            // SAFETY: the caller's promise; nothing is read of rows that do not exist.
            unsafe {
                let exists = query + row < item.queries;
                cp_async::copy_vec::<VEC, E>(smem, row * HEAD_DIM, gmem, from, exists);
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
    pub fn of_seq(self, seq: u32) -> SeqPages {
        let row = seq as usize * self.max_pages_per_seq as usize;
        let entries = self.entries.wrapping_add(row);
        SeqPages { entries, first_pages: (seq == 0).then_some(self.first_pages) }
    }
}

/// The pages of a sequence.
pub struct SeqPages {
    entries: Global<u32>,
    /// Its first pages, if they are there already: see [`PageTable`].
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

    /// Issues the copies of the chunk whose first key is `key` from a pool, in two groups of half a
    /// chunk; rows past the block's last key are zeros. So what the pool has there, which may be
    /// NaN, is not multiplied by a probability of 0.
    ///
    /// # Safety
    /// 1. `pages` are the chunk's; `pool` is a layer's pool.
    /// 2. No thread reads the tile until the copies are waited for and a barrier is passed.
    #[inline(always)]
    #[track_caller]
    pub unsafe fn copy_chunk<E: Operand16>(
        &self,
        pool: Global<E>,
        pages: &[u32; CHUNK_PAGES as usize],
        key: u32,
        tile: SmemTile<E>,
    ) {
        let (row, vec) = place();
        let smem = tile.vec_at(0, row, vec);
        // The thread's rows below this exist.
        let rows = self.end_key.saturating_sub(key).min(BLOCK_N) as i32 - row as i32;
        // In bytes, so that the address of a page is one multiplication and addition.
        let head_bytes = PAGE_SIZE * HEAD_DIM * size_of::<E>() as u32;
        let page_bytes = self.num_kv_heads * head_bytes;
        let column = (row * HEAD_DIM + vec * VEC_ELEMS) as usize;
        let head = pool.wrapping_add(column).cast::<u8>();
        let head = head.wrapping_add(self.kv_head as usize * head_bytes as usize);
        unroll!(i in 0..4, {
            let page = head.wrapping_add(pages[i] as usize * page_bytes as usize);
            let smem = smem.offset(i as u32 * PAGE_SIZE * HEAD_DIM);
            // SAFETY: the caller's promise.
            unsafe { copy_page(page.cast(), smem, rows - (i as u32 * PAGE_SIZE) as i32) };
            if i % 2 == 1 {
                cp_async::commit();
            }
        });
    }
}

/// Issues the thread's copies of a page, of which the rows below `rows` exist; the others are
/// zeros. `page` and `smem` are the places of its first copy, which counts as row 0.
///
/// # Safety
/// As [`Cache::copy_chunk`].
#[inline(always)]
#[track_caller]
unsafe fn copy_page<E: Operand16>(page: Global<E>, smem: Shared<E>, rows: i32) {
    unroll!(i in 0..THREAD_COPIES, {
        const AT: usize = i * (ROWS_AT_ONCE * HEAD_DIM) as usize;
        let exists = ((i as u32 * ROWS_AT_ONCE) as i32) < rows;
        // SAFETY: the caller's promise; nothing is read of rows that do not exist.
        unsafe { cp_async::copy_vec_at::<{ AT as u32 }, AT, VEC, E>(smem, page, exists) };
    });
}
