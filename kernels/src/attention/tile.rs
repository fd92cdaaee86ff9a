//! What both attention kernels are made of: tiles of Q, K and V in shared memory, and a warp's
//! online softmax over them.
//!
//! A tile of `rows` rows holds its columns in pieces `[rows, CHUNK]`, whose 16-byte fragments are
//! swizzled by the row, so that eight rows at one fragment fill the 32 banks once. Columns past
//! `head_dim` are zeros.

use super::fma::FmaTile;
use super::mma::MmaTile;
use crate::element::Number;
use crate::kv_cache::{PAGE_SIZE, row_start};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Columns of a piece of a tile.
pub(super) const CHUNK: u32 = 32;

/// Threads and warps of a block.
pub(super) const NUM_THREADS: u32 = 128;
pub(super) const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Rows of queries of a decode block for each of its kernel's `ROWS`.
pub(super) const ROW_UNIT: u32 = 4;

/// Elements of a fragment: 16 bytes.
pub(super) const fn fragment<T>() -> u32 {
    16 / size_of::<T>() as u32
}

/// Fragments of a row of a piece.
const fn fragments<T>() -> u32 {
    CHUNK / fragment::<T>()
}

/// Fragment `i` of `row` of a piece stands in the place `i ^ swizzle(row)`.
#[inline(always)]
pub(super) fn swizzle<T>(row: u32) -> u32 {
    let rows_per_pass = const { 8 / fragments::<T>() };
    row / rows_per_pass % fragments::<T>()
}

/// Where `column` of `row` of a tile of `block_rows` rows stands.
#[inline(always)]
pub(super) fn place<T>(row: u32, column: u32, block_rows: u32) -> u32 {
    let fragment_idx = (column % CHUNK / fragment::<T>()) ^ swizzle::<T>(row);
    let piece_row = column / CHUNK * block_rows + row;
    piece_row * CHUNK + fragment_idx * fragment::<T>() + column % fragment::<T>()
}

/// Whether fragments of `T` are 16-byte aligned and whole: those of 16 bits always, others if the
/// launch says so.
#[inline(always)]
pub(super) fn is_aligned<T>(aligned: u32) -> bool {
    size_of::<T>() < size_of::<f32>() || aligned != 0
}

/// What Q, K, V and the output are stored as.
pub trait AttentionElement: Number {
    /// What a warp of a prefill block computes, with heads of up to `32 * CHUNKS` columns.
    #[allow(private_bounds)]
    type Prefill<const CHUNKS: usize>: WarpTile<Element = Self>;

    /// What a warp of a decode block computes, for up to `4 * ROWS` query heads.
    #[allow(private_bounds)]
    type Decode<const ROWS: usize, const CHUNKS: usize>: WarpTile<Element = Self>;
}

impl AttentionElement for f32 {
    type Prefill<const CHUNKS: usize> = FmaTile<4, 4, CHUNKS>;
    type Decode<const ROWS: usize, const CHUNKS: usize> = FmaTile<ROWS, 1, CHUNKS>;
}

impl AttentionElement for f16 {
    type Prefill<const CHUNKS: usize> = MmaTile<f16, 4, CHUNKS>;
    type Decode<const ROWS: usize, const CHUNKS: usize> = MmaTile<f16, 1, CHUNKS>;
}

impl AttentionElement for bf16 {
    type Prefill<const CHUNKS: usize> = MmaTile<bf16, 4, CHUNKS>;
    type Decode<const ROWS: usize, const CHUNKS: usize> = MmaTile<bf16, 1, CHUNKS>;
}

/// A warp's rows of queries: their online softmax over the keys seen so far, and their output, not
/// yet divided by the sum.
///
/// Source    online softmax: arXiv:1805.02867, arXiv:2205.14135.
pub(super) trait WarpTile: Sized {
    /// What Q, K and V are stored as.
    type Element: Number;

    /// A lane's scores of the warp's rows and keys.
    type Scores;

    /// What a lane keeps of the keys' probabilities.
    type Probabilities;

    /// Rows of the warp.
    const ROWS: u32;

    /// Keys that the warp takes at once.
    const KEYS: u32;

    /// Keys of a tile of K or V; a tile lies in one page.
    const BLOCK_N: u32;

    /// Columns of the tiles: `head_dim`, and what it is padded to.
    const WIDTH: u32;

    /// Elements of shared memory that the warp needs for itself.
    const SCRATCH: u32;

    /// No key seen.
    fn new() -> Self;

    /// `Q K^T` of the warp's rows and keys. `smem_q` and `smem_k` start at the warp's first row and
    /// key, multiples of eight, of tiles of `q_rows` and `BLOCK_N` rows.
    ///
    /// # Safety
    /// 1. Both tiles are copied, and no thread writes them.
    unsafe fn scores(
        &self,
        head_dim: u32,
        smem_q: Shared<Self::Element>,
        q_rows: u32,
        smem_k: Shared<Self::Element>,
    ) -> Self::Scores;

    /// Scales the scores, and makes those minus infinity whose row and key, counted from the warp's
    /// first ones, are not visible.
    fn mask(&self, scores: &mut Self::Scores, scale: f32, visible: impl Fn(u32, u32) -> bool);

    /// Takes in the scores of the next keys, times `log2(e)`.
    ///
    /// # Safety
    /// 1. `scratch` holds `SCRATCH` elements that only this warp uses.
    unsafe fn update(&mut self, scores: &Self::Scores, scratch: Shared<f32>)
    -> Self::Probabilities;

    /// Adds `P V` for the keys that [`WarpTile::update`] took in; `smem_v` starts at the first of
    /// them, a multiple of eight.
    ///
    /// # Safety
    /// 1. The tile is copied, and no thread writes it.
    /// 2. `scratch` is what [`WarpTile::update`] was given.
    unsafe fn accumulate(
        &mut self,
        probabilities: Self::Probabilities,
        scratch: Shared<f32>,
        smem_v: Shared<Self::Element>,
    );

    /// Divides the output by the sums; that of a row which has seen no key is zeros.
    fn normalize(&mut self);

    /// Calls `f` with each row's number, largest score and sum, in one lane of the warp.
    fn for_each_row(&self, f: impl FnMut(u32, f32, f32));

    /// Calls `f` with row, column and value of each two neighbours in the output that the lane has.
    fn for_each_pair(&self, f: impl FnMut(u32, u32, [f32; 2]));
}

/// Rows in global memory, to be copied to a tile.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    /// Column 0 of row 0.
    pub gmem: Global<T>,
    /// Elements from a row to the next.
    pub row_stride: u32,
    /// Rows that exist; those past them are zeros.
    pub rows: u32,
    /// Columns that exist.
    pub head_dim: u32,
    /// See [`is_aligned`].
    pub aligned: bool,
}

/// The layer's cache, and which head of it.
#[derive(Clone, Copy)]
pub(super) struct Cache {
    pub num_kv_heads: u32,
    pub kv_head: u32,
    pub head_dim: u32,
    pub aligned: bool,
}

impl<T: Number> Source<T> {
    /// The keys or values `first_key ..` of a sequence, up to `end_key`, of the page that holds
    /// them.
    ///
    /// # Safety
    /// 1. `pages` is the sequence's row of the block table, for at least `end_key` positions;
    ///    `pool` is a layer's pool.
    #[inline(always)]
    pub unsafe fn cache(
        pool: Global<T>,
        pages: Global<u32>,
        first_key: u32,
        end_key: u32,
        cache: &Cache,
    ) -> Self {
        let Cache { num_kv_heads, kv_head, head_dim, aligned } = *cache;
        let exists = first_key < end_key;
        // SAFETY: the page is read only where the sequence has positions.
        let page = if exists { unsafe { pages.get((first_key / PAGE_SIZE) as usize) } } else { 0 };
        let start = row_start(page, first_key % PAGE_SIZE, kv_head, num_kv_heads, head_dim);
        Source {
            gmem: pool.wrapping_add(start),
            row_stride: head_dim,
            rows: end_key.saturating_sub(first_key),
            head_dim,
            aligned,
        }
    }

    /// Starts the copies to a tile of `block_rows` rows and `width` columns, by all threads of the
    /// block.
    ///
    /// # Safety
    /// 1. The rows and columns that exist are in `gmem`; `smem` holds the tile, which no thread
    ///    reads until the copies are waited for and a barrier is passed.
    #[inline(always)]
    pub unsafe fn copy_to(self, smem: Shared<T>, block_rows: u32, width: u32) {
        let thread = thread::thread_idx_x();
        let fragment_idx = thread % fragments::<T>();
        for chunk in 0..width / CHUNK {
            let mut row = thread / fragments::<T>();
            while row < block_rows {
                let column = chunk * CHUNK + fragment_idx * fragment::<T>();
                let from = row as usize * self.row_stride as usize + column as usize;
                let to = place::<T>(row, column, block_rows);
                let columns = if row < self.rows { self.head_dim } else { 0 };
                // SAFETY: nothing is read where nothing exists; `to` is inside the tile.
                unsafe {
                    self.copy_fragment(smem.offset(to), from, columns.saturating_sub(column))
                };
                row += NUM_THREADS / fragments::<T>();
            }
        }
    }

    /// Copies a fragment, of which `columns` exist.
    ///
    /// # Safety
    /// As [`Source::copy_to`].
    #[inline(always)]
    unsafe fn copy_fragment(self, smem: Shared<T>, from: usize, columns: u32) {
        let gmem = self.gmem.wrapping_add(from);
        // SAFETY: the caller's promise.
        unsafe {
            if self.aligned {
                cp_async::copy_vec::<4, f32>(smem.cast(), 0, gmem.cast(), 0, columns > 0);
            } else {
                for i in 0..fragment::<T>() {
                    cp_async::copy(smem.cast(), i, gmem.cast(), i as usize, i < columns);
                }
            }
        }
    }
}
