//! What both attention kernels are made of: tiles of Q, K and V in shared memory, and a warp's
//! online softmax over them.
//!
//! A tile of `rows` rows holds its columns in `CHUNKS` pieces `[rows, CHUNK]`, 128 bytes a row,
//! whose 16-byte fragments are swizzled by the row, so that eight rows at one fragment, or one row
//! at eight fragments, fill the 32 banks once. Columns past `head_dim` are zeros.
//!
//! Source    online softmax: arXiv:1805.02867, arXiv:2205.14135.

use crate::kv_cache::{PAGE_SIZE, row_start};
use cuda_std::prelude::*;

/// Keys in a tile of K or V; a tile lies in one page.
pub(super) const BLOCK_N: u32 = 32;
const _: () = assert!(PAGE_SIZE.is_multiple_of(BLOCK_N));

/// Columns of a piece of a tile: 128 bytes.
pub(super) const CHUNK: u32 = 32;

/// Elements of a fragment: 16 bytes.
const FRAGMENT: u32 = 4;
const FRAGMENTS: u32 = CHUNK / FRAGMENT;

/// Lanes of a warp along the query rows, and along the keys or output columns.
pub(super) const LANES_M: u32 = 4;
pub(super) const LANES_N: u32 = 8;

/// Threads and warps of a block.
pub(super) const NUM_THREADS: u32 = 128;
pub(super) const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Most query rows of a warp.
pub(super) const MAX_WARP_ROWS: u32 = 16;

/// Elements from a row of probabilities to the next: four rows at eight keys fill the 32 banks
/// once.
const P_STRIDE: u32 = BLOCK_N + 8;

/// Elements of a warp's probabilities.
pub(super) const P_ELEMS: u32 = MAX_WARP_ROWS * P_STRIDE;

/// The lane's row, and its key or column, in its warp's tile: pairs of lanes share a key, lanes two
/// apart a row, so that a 16-byte read of a half-warp is one pass over the banks.
#[derive(Clone, Copy)]
pub(super) struct Lane {
    pub m: u32,
    pub n: u32,
}

impl Lane {
    #[inline(always)]
    pub fn of_this_thread() -> Self {
        let lane_id = warp::lane_id();
        Lane { m: (lane_id & 1) | (lane_id >> 4) << 1, n: (lane_id >> 1) % LANES_N }
    }
}

/// Rows in global memory, to be copied to a tile.
#[derive(Clone, Copy)]
pub(super) struct Source {
    /// Column 0 of row 0.
    pub gmem: Global<f32>,
    /// Elements from a row to the next.
    pub row_stride: u32,
    /// Rows that exist; those past them are zeros.
    pub rows: u32,
    /// Columns that exist.
    pub head_dim: u32,
    /// Whether fragments are 16-byte aligned, and whole.
    pub aligned: bool,
}

impl Source {
    /// The keys or values `first_key ..` of a sequence, up to `end_key`, of the page that holds
    /// them.
    ///
    /// # Safety
    /// 1. `pages` is the sequence's row of the block table, for at least `end_key` positions;
    ///    `pool` is a layer's pool.
    #[inline(always)]
    pub unsafe fn cache(
        pool: Global<f32>,
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

    /// Starts the copies to a tile of `block_rows` rows, by all threads of the block.
    ///
    /// # Safety
    /// 1. The rows and columns that exist are in `gmem`; `smem` holds the tile, which no thread
    ///    reads until the copies are waited for.
    #[inline(always)]
    pub unsafe fn copy_to<const CHUNKS: usize>(self, smem: Shared<f32>, block_rows: u32) {
        let thread = thread::thread_idx_x();
        let fragment = thread % FRAGMENTS;
        for chunk in 0..CHUNKS as u32 {
            let mut row = thread / FRAGMENTS;
            while row < block_rows {
                let column = chunk * CHUNK + fragment * FRAGMENT;
                let from = row as usize * self.row_stride as usize + column as usize;
                let to =
                    (chunk * block_rows + row) * CHUNK + (fragment ^ (row % FRAGMENTS)) * FRAGMENT;
                let columns = if row < self.rows { self.head_dim } else { 0 };
                // SAFETY: nothing is read where nothing exists; `to` is inside the tile.
                unsafe {
                    if self.aligned {
                        cp_async::copy_vec::<4, _>(smem, to, self.gmem, from, column < columns);
                    } else {
                        for i in 0..FRAGMENT {
                            let exists = column + i < columns;
                            cp_async::copy(smem, to + i, self.gmem, from + i as usize, exists);
                        }
                    }
                }
                row += NUM_THREADS / FRAGMENTS;
            }
        }
    }
}

/// The layer's cache, and which head of it.
#[derive(Clone, Copy)]
pub(super) struct Cache {
    pub num_kv_heads: u32,
    pub kv_head: u32,
    pub head_dim: u32,
    pub aligned: bool,
}

/// A lane's scores: rows `lane.m + LANES_M * i`, keys `lane.n + LANES_N * j`.
pub(super) type Scores<const ROWS: usize, const KEYS: usize> = [[f32; KEYS]; ROWS];

/// `Q K^T` of a warp's rows and keys. `smem_q` and `smem_k` start at the warp's first row and key,
/// multiples of eight, of tiles of `q_rows` and `BLOCK_N` rows.
///
/// # Safety
/// 1. Both tiles are copied, and no thread writes them.
#[inline(always)]
pub(super) unsafe fn scores<const ROWS: usize, const KEYS: usize>(
    head_dim: u32,
    smem_q: Shared<f32>,
    q_rows: u32,
    smem_k: Shared<f32>,
    lane: Lane,
) -> Scores<ROWS, KEYS> {
    let mut scores = [[0.0; KEYS]; ROWS];
    let mut smem_q = smem_q.offset(lane.m * CHUNK + lane.m * FRAGMENT);
    let mut smem_k = smem_k.offset(lane.n * CHUNK + lane.n * FRAGMENT);
    for _ in 0..head_dim.div_ceil(CHUNK) {
        unroll!(fragment in 0..FRAGMENTS as usize, {
            // SAFETY: the fragment is inside the tiles' pieces.
            unsafe { add_fragment(smem_q, smem_k, fragment as u32, &mut scores) };
        });
        smem_q = smem_q.offset(q_rows * CHUNK);
        smem_k = smem_k.offset(BLOCK_N * CHUNK);
    }
    scores
}

/// Adds the product of four columns of Q and K to `scores`.
///
/// # Safety
/// As [`scores`], which calls it with the lane's first row and key.
#[inline(always)]
unsafe fn add_fragment<const ROWS: usize, const KEYS: usize>(
    smem_q: Shared<f32>,
    smem_k: Shared<f32>,
    fragment: u32,
    scores: &mut Scores<ROWS, KEYS>,
) {
    // Rows four apart differ in the upper bit of their swizzle.
    let smem_q = [smem_q.xor(fragment * FRAGMENT), smem_q.xor((fragment ^ 4) * FRAGMENT)];
    let smem_k = smem_k.xor(fragment * FRAGMENT);
    let mut k = [[0.0; FRAGMENT as usize]; KEYS];
    // SAFETY: the rows are inside the tiles.
    unsafe {
        unroll!(j in 0..KEYS, {
            k[j] = smem_k.get_vec_at::<{ LANES_N * CHUNK * j as u32 }, 4>();
        });
        unroll!(i in 0..ROWS, {
            let q = smem_q[i % 2].get_vec_at::<{ LANES_M * CHUNK * i as u32 }, 4>();
            for d in 0..FRAGMENT as usize {
                for j in 0..KEYS {
                    scores[i][j] = math::fma(q[d], k[j][d], scores[i][j]);
                }
            }
        });
    }
}

/// The largest `value` of the lanes that share a row.
#[inline(always)]
fn row_max(mut value: f32) -> f32 {
    for bit in 1..4 {
        value = math::max(value, warp::shuffle_xor(value, 1 << bit));
    }
    value
}

/// The sum of `value` over the lanes that share a row.
#[inline(always)]
fn row_sum(mut value: f32) -> f32 {
    for bit in 1..4 {
        value += warp::shuffle_xor(value, 1 << bit);
    }
    value
}

/// The online softmax of a lane's rows `lane.m + LANES_M * i`, and their output so far, not yet
/// divided by the sum: columns `CHUNK * c + FRAGMENT * lane.n ..`.
pub(super) struct Softmax<const ROWS: usize, const CHUNKS: usize> {
    /// Largest score so far, times `log2(e)`.
    pub max: [f32; ROWS],
    /// Sum of `exp2(score - max)` over the keys that this lane has seen.
    sum: [f32; ROWS],
    /// `[ROWS, CHUNKS, FRAGMENT]`.
    pub out: [[[f32; FRAGMENT as usize]; CHUNKS]; ROWS],
}

impl<const ROWS: usize, const CHUNKS: usize> Softmax<ROWS, CHUNKS> {
    /// No key seen.
    #[inline(always)]
    pub fn new() -> Self {
        Softmax {
            max: [f32::NEG_INFINITY; ROWS],
            sum: [0.0; ROWS],
            out: [[[0.0; FRAGMENT as usize]; CHUNKS]; ROWS],
        }
    }

    /// Takes in the scores of the next keys (times `log2(e)`; minus infinity where masked), and
    /// leaves their probabilities in `smem_p`, the warp's own.
    ///
    /// # Safety
    /// 1. `smem_p` holds `P_ELEMS` elements that only this warp uses.
    #[inline(always)]
    pub unsafe fn update<const KEYS: usize>(
        &mut self,
        scores: &Scores<ROWS, KEYS>,
        smem_p: Shared<f32>,
        lane: Lane,
    ) {
        // The probabilities of the keys before are read.
        warp::sync_warp();
        unroll!(i in 0..ROWS, {
            let probabilities = self.update_row(i, &scores[i]);
            let row = smem_p.offset((lane.m + LANES_M * i as u32) * P_STRIDE + lane.n);
            for j in 0..KEYS {
                // SAFETY: the row is the warp's, the key under `LANES_N * KEYS`.
                unsafe { row.set(LANES_N * j as u32, probabilities[j]) };
            }
        });
        warp::sync_warp();
    }

    /// Takes in the scores of row `i`; gives `exp2(score - max)`.
    #[inline(always)]
    fn update_row<const KEYS: usize>(&mut self, i: usize, scores: &[f32; KEYS]) -> [f32; KEYS] {
        let mut max = scores[0];
        for score in &scores[1..] {
            max = math::max(max, *score);
        }
        let max = math::max(self.max[i], row_max(max));
        // A row that has seen masked keys alone has no largest score: any finite number makes its
        // terms 0.
        let finite_max = if max == f32::NEG_INFINITY { 0.0 } else { max };
        let correction = math::exp2_approx(self.max[i] - finite_max);
        self.max[i] = max;
        self.sum[i] *= correction;
        let mut probabilities = [0.0; KEYS];
        for j in 0..KEYS {
            probabilities[j] = math::exp2_approx(scores[j] - finite_max);
            self.sum[i] += probabilities[j];
        }
        for chunk in 0..CHUNKS {
            for d in 0..FRAGMENT as usize {
                self.out[i][chunk][d] *= correction;
            }
        }
        probabilities
    }

    /// Adds `P V` for the `LANES_N * KEYS` keys whose probabilities [`Softmax::update`] left;
    /// `smem_v` starts at the first of them, a multiple of eight.
    ///
    /// # Safety
    /// 1. The tile is copied, and no thread writes it.
    #[inline(always)]
    pub unsafe fn accumulate<const KEYS: usize>(
        &mut self,
        smem_p: Shared<f32>,
        smem_v: Shared<f32>,
        lane: Lane,
    ) {
        let mut smem_p = smem_p.offset(lane.m * P_STRIDE);
        let mut smem_v = smem_v.offset(lane.n * FRAGMENT);
        for _ in 0..KEYS {
            // SAFETY: eight keys are inside the tiles.
            unsafe {
                self.accumulate_keys::<0>(smem_p, smem_v);
                self.accumulate_keys::<FRAGMENT>(smem_p, smem_v);
            }
            smem_p = smem_p.offset(LANES_N);
            smem_v = smem_v.offset(LANES_N * CHUNK);
        }
    }

    /// Adds `P V` for four keys, `FIRST` (0 or 4) and the next.
    ///
    /// # Safety
    /// As [`Softmax::accumulate`], which calls it with the lane's first row and column.
    #[inline(always)]
    unsafe fn accumulate_keys<const FIRST: u32>(
        &mut self,
        smem_p: Shared<f32>,
        smem_v: Shared<f32>,
    ) {
        let smem_p = smem_p.offset(FIRST);
        let mut p = [[0.0; FRAGMENT as usize]; ROWS];
        // SAFETY: rows and keys are inside the tiles.
        unsafe {
            unroll!(i in 0..ROWS, {
                p[i] = smem_p.get_vec_at::<{ LANES_M * P_STRIDE * i as u32 }, 4>();
            });
            unroll!(k in 0..4, {
                let key = FIRST + k as u32;
                let smem_v = smem_v.xor(key * FRAGMENT).offset(key * CHUNK);
                self.accumulate_key(smem_v, core::array::from_fn(|i| p[i][k]));
            });
        }
    }

    /// Adds `P V` for the key at `smem_v`, with a probability a row.
    ///
    /// # Safety
    /// As [`Softmax::accumulate`].
    #[inline(always)]
    unsafe fn accumulate_key(&mut self, smem_v: Shared<f32>, p: [f32; ROWS]) {
        unroll!(chunk in 0..CHUNKS, {
            // SAFETY: the chunk is inside the tile.
            let v = unsafe { smem_v.get_vec_at::<{ BLOCK_N * CHUNK * chunk as u32 }, 4>() };
            for i in 0..ROWS {
                for d in 0..FRAGMENT as usize {
                    self.out[i][chunk][d] = math::fma(p[i], v[d], self.out[i][chunk][d]);
                }
            }
        });
    }

    /// The sum of row `i` over all keys.
    #[inline(always)]
    pub fn total(&self, i: usize) -> f32 {
        row_sum(self.sum[i])
    }
}
