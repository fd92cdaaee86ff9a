//! What both attention kernels share: tiles of Q, K and V in shared memory, and a warp's online
//! softmax over them.
//!
//! A tile of `rows` rows is stored as column panels `[rows, PANEL_COLUMNS]`. The 16-byte vectors of
//! a row are swizzled by the row, so that eight rows at one column fill the 32 banks once. Columns
//! past `head_dim` are zeros.

use super::fma::FmaTile;
use super::mma::MmaTile;
use crate::element::Number;
use crate::kv_cache::{PAGE_SIZE, row_start};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Columns of a panel of a tile.
pub(super) const PANEL_COLUMNS: u32 = 32;

/// Threads and warps of a block.
pub(super) const NUM_THREADS: u32 = 128;
pub(super) const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Query rows of a decode block are this many times its kernel's `ROWS`.
pub(super) const ROW_UNIT: u32 = 4;

/// Elements of a 16-byte vector.
pub(super) const fn vec_elems<T>() -> u32 {
    16 / size_of::<T>() as u32
}

/// 16-byte vectors of a row of a panel.
const fn vecs_per_panel_row<T>() -> u32 {
    PANEL_COLUMNS / vec_elems::<T>()
}

/// Vector `i` of `row` of a panel is stored at index `i ^ swizzle(row)`.
#[inline(always)]
pub(super) fn swizzle<T>(row: u32) -> u32 {
    let rows_per_pass = const { 8 / vecs_per_panel_row::<T>() };
    row / rows_per_pass % vecs_per_panel_row::<T>()
}

/// Offset of `column` of `row` in a tile of `block_rows` rows.
#[inline(always)]
pub(super) fn tile_offset<T>(row: u32, column: u32, block_rows: u32) -> u32 {
    let vec_idx = (column % PANEL_COLUMNS / vec_elems::<T>()) ^ swizzle::<T>(row);
    let panel_row = column / PANEL_COLUMNS * block_rows + row;
    panel_row * PANEL_COLUMNS + vec_idx * vec_elems::<T>() + column % vec_elems::<T>()
}

/// Whether all vectors of `T` are whole and 16-byte aligned: always in 16 bits, else if the launch
/// says so.
#[inline(always)]
pub(super) fn is_aligned<T>(aligned: u32) -> bool {
    size_of::<T>() < size_of::<f32>() || aligned != 0
}

/// The element type of Q, K, V and the output.
pub trait AttentionElement: Number {
    /// The warp tile of prefill, for heads of up to `32 * PANELS` columns; it has `ROWS` times the
    /// rows and `KEYS` times the keys of the smallest.
    #[allow(private_bounds)]
    type Prefill<const ROWS: usize, const KEYS: usize, const PANELS: usize>: WarpTile<Element = Self>
        + WithSink;

    /// The warp tile of decode, for up to `4 * ROWS` query heads.
    #[allow(private_bounds)]
    type Decode<const ROWS: usize, const PANELS: usize>: WarpTile<Element = Self>;
}

impl AttentionElement for f32 {
    type Prefill<const ROWS: usize, const KEYS: usize, const PANELS: usize> =
        FmaTile<ROWS, KEYS, PANELS>;
    type Decode<const ROWS: usize, const PANELS: usize> = FmaTile<ROWS, 1, PANELS>;
}

impl AttentionElement for f16 {
    type Prefill<const ROWS: usize, const KEYS: usize, const PANELS: usize> =
        MmaTile<f16, ROWS, KEYS, PANELS>;
    type Decode<const ROWS: usize, const PANELS: usize> = MmaTile<f16, 1, 1, PANELS>;
}

impl AttentionElement for bf16 {
    type Prefill<const ROWS: usize, const KEYS: usize, const PANELS: usize> =
        MmaTile<bf16, ROWS, KEYS, PANELS>;
    type Decode<const ROWS: usize, const PANELS: usize> = MmaTile<bf16, 1, 1, PANELS>;
}

/// A warp's query rows: their online softmax state over the keys so far, and their unnormalised
/// output.
///
/// Source    online softmax: arXiv:1805.02867, arXiv:2205.14135.
pub(super) trait WarpTile: Sized {
    /// The element type of Q, K and V.
    type Element: Number;

    /// A lane's scores of the warp's rows and keys.
    type Scores;

    /// A lane's probabilities, as far as they stay in registers.
    type Probabilities;

    /// Rows of the warp.
    const ROWS: u32;

    /// Keys that the warp takes at once.
    const KEYS: u32;

    /// Keys of a tile of K or V; a tile is inside one page.
    const BLOCK_N: u32;

    /// Columns of the tiles: `head_dim`, padded to whole panels.
    const WIDTH: u32;

    /// Elements of the warp's scratch space in shared memory.
    const SCRATCH: u32;

    /// Neighbouring warps that share rows and keys; each has its part of the output's columns.
    const COLUMN_PARTS: u32 = 1;

    /// The state before any key. `scale`, which is above 0, multiplies the scores: it is
    /// `softmax_scale * log2(e)`.
    fn new(scale: f32) -> Self;

    /// Takes what it keeps of Q in registers, before the first scores.
    ///
    /// # Safety
    /// As [`WarpTile::scores`], of Q.
    #[inline(always)]
    unsafe fn take_queries(&mut self, _smem_q: Shared<Self::Element>, _q_rows: u32) {}

    /// `Q K^T` of the warp's rows and keys, not scaled. `smem_q` and `smem_k` start at the warp's first row and
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

    /// Bends the scores to `tanh(softcap * score)`.
    fn cap(&self, scores: &mut Self::Scores, softcap: f32);

    /// Sets the scores to minus infinity that are not `visible(row, key)`; both count from the
    /// warp's first ones.
    fn mask(&self, scores: &mut Self::Scores, visible: impl Fn(u32, u32) -> bool);

    /// Online softmax with the scores of the next keys.
    ///
    /// # Safety
    /// 1. `scratch` holds `SCRATCH` elements that only this warp uses.
    unsafe fn update(&mut self, scores: &Self::Scores, scratch: Shared<f32>)
    -> Self::Probabilities;

    /// Accumulates `P V` for the keys of the last [`WarpTile::update`]; `smem_v` starts at the
    /// first of them, a multiple of eight.
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

    /// Divides the output by the row sums; rows without a visible key become zeros.
    fn normalize(&mut self);

    /// Calls `f` with the index, largest scaled score and row sum of each row, in one lane of the
    /// warp.
    fn for_each_row(&self, f: impl FnMut(u32, f32, f32));

    /// Calls `f` with row, first column and values of each pair of adjacent outputs of the lane.
    fn for_each_pair(&self, f: impl FnMut(u32, u32, [f32; 2]));
}

/// A tile whose rows may have a score that has no value, beside those of the keys.
pub(super) trait WithSink {
    /// Adds the score, as those before they are scaled, to all rows, before any key: then it takes
    /// no registers. Minus infinity is none.
    fn add_sink(&mut self, sink: f32);
}

/// Rows in global memory, the source of a tile.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    /// Column 0 of row 0.
    pub gmem: Global<T>,
    /// Row stride, in elements.
    pub row_stride: u32,
    /// Rows that exist; further rows of the tile are zeros.
    pub rows: u32,
    /// Columns that exist.
    pub head_dim: u32,
    /// See [`is_aligned`].
    pub aligned: bool,
}

/// A KV head of a layer's cache.
#[derive(Clone, Copy)]
pub(super) struct Cache {
    pub num_kv_heads: u32,
    pub kv_head: u32,
    pub head_dim: u32,
    pub aligned: bool,
}

impl<T: Number> Source<T> {
    /// Keys or values `first_key .. end_key` of a sequence, as far as they are in one page.
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

    /// Issues the copies to a tile of `block_rows` rows and `width` columns; all threads of the
    /// block call this.
    ///
    /// # Safety
    /// 1. The rows and columns that exist are in `gmem`; `smem` holds the tile, which no thread
    ///    reads until the copies are waited for and a barrier is passed.
    #[inline(always)]
    pub unsafe fn copy_to(self, smem: Shared<T>, block_rows: u32, width: u32) {
        let rows_per_pass = const { NUM_THREADS / vecs_per_panel_row::<T>() };
        let thread = thread::thread_idx_x();
        let vec_idx = thread % vecs_per_panel_row::<T>();
        // Loops of a constant number of passes, which the compiler unrolls.
        for pass in 0..block_rows.div_ceil(rows_per_pass) {
            let row = pass * rows_per_pass + thread / vecs_per_panel_row::<T>();
            if !block_rows.is_multiple_of(rows_per_pass) && row >= block_rows {
                break;
            }
            let column = vec_idx * vec_elems::<T>();
            let columns = if row < self.rows { self.head_dim } else { 0 };
            let columns = columns.saturating_sub(column);
            let from = row as usize * self.row_stride as usize + column as usize;
            let from = Source { gmem: self.gmem.wrapping_add(from), ..self };
            let to = smem.offset(tile_offset::<T>(row, column, block_rows));
            for panel in 0..width / PANEL_COLUMNS {
                let first = panel * PANEL_COLUMNS;
                let columns = columns.saturating_sub(first);
                // SAFETY: nothing is read where nothing exists; `to` is inside the tile.
                unsafe { from.copy_vec(to.offset(first * block_rows), first as usize, columns) };
            }
        }
    }

    /// [`Source::copy_vec`], where other lanes copy the rest of the line of 128 bytes.
    ///
    /// # Safety
    /// As [`Source::copy_to`].
    #[inline(always)]
    pub unsafe fn copy_vec_of_line(self, smem: Shared<T>, from: usize, columns: u32) {
        if !self.aligned {
            // SAFETY: the caller's promise.
            return unsafe { self.copy_vec(smem, from, columns) };
        }
        let gmem = self.gmem.wrapping_add(from).cast();
        // SAFETY: the caller's promise.
        unsafe { cp_async::copy_vec_of_line::<4, f32>(smem.cast(), 0, gmem, 0, columns > 0) }
    }

    /// Issues the copy of a 16-byte vector, of which `columns` elements exist.
    ///
    /// # Safety
    /// As [`Source::copy_to`].
    #[inline(always)]
    pub unsafe fn copy_vec(self, smem: Shared<T>, from: usize, columns: u32) {
        let gmem = self.gmem.wrapping_add(from);
        // SAFETY: the caller's promise.
        unsafe {
            if self.aligned {
                cp_async::copy_vec::<4, f32>(smem.cast(), 0, gmem.cast(), 0, columns > 0);
            } else {
                for i in 0..vec_elems::<T>() {
                    cp_async::copy(smem.cast(), i, gmem.cast(), i as usize, i < columns);
                }
            }
        }
    }
}
