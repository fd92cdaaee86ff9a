//! Fused append: QK-norm and rotary embedding of a new token's Q and K, which are stored to the tiles
//! in shared memory with its V, and the append of K and V to the cache. The bits are those of
//! [`qk_norm`] and [`rope_append`].
//!
//! [`rope_append`]: crate::rope_append

use super::tile::{NUM_THREADS, tile_offset};
use crate::element::{Number, VEC_ELEMS};
use crate::qk_norm::{self, Weights, normed};
use crate::rms_norm::lane_square_sum;
use crate::rope::rotate;
use cuda_std::prelude::*;

/// Rows that a thread loads at once.
const BATCH: usize = 4;

/// The two columns that a thread takes in each of its rows: a rotated pair, or two others.
pub struct Pair {
    columns: [u32; 2],
    /// Cosine and sine; unused unless `is_rotated`.
    angle: [f32; 2],
    is_rotated: bool,
    head_dim: u32,
}

impl Pair {
    /// Threads of a row: a power of two, so that a thread has the same columns in all its rows.
    #[inline(always)]
    fn threads_of_row(head_dim: u32) -> u32 {
        head_dim.div_ceil(2).next_power_of_two()
    }

    /// The thread's columns of heads of `head_dim`, whose first `rotary_dim` are rotated by
    /// `angles`.
    ///
    /// # Safety
    /// 1. `angles` holds `rotary_dim` elements, an even number, at most `head_dim`.
    #[inline(always)]
    pub unsafe fn new(angles: Global<f32>, rotary_dim: u32, head_dim: u32) -> Self {
        let pair = thread::thread_idx_x() % Self::threads_of_row(head_dim);
        let half = rotary_dim / 2;
        if pair < half {
            let (cos, sin) = (pair as usize, (half + pair) as usize);
            // SAFETY: inside, by the condition.
            let angle = unsafe { [angles.get(cos), angles.get(sin)] };
            return Pair { columns: [pair, half + pair], angle, is_rotated: true, head_dim };
        }
        let first = rotary_dim + pair - half;
        let columns = [first, first + (head_dim - rotary_dim).div_ceil(2)];
        // Past the middle, columns belong to other threads as their second ones.
        let is_first = columns[0] < rotary_dim + (head_dim - rotary_dim).div_ceil(2);
        let columns = if is_first { columns } else { [head_dim; 2] };
        Pair { columns, angle: [1.0, 0.0], is_rotated: false, head_dim }
    }

    /// Loads the two elements of `row`; zeros if it does not exist.
    ///
    /// # Safety
    /// 1. `row` holds `head_dim` elements, if it exists.
    #[inline(always)]
    unsafe fn load<E: Number>(&self, row: Global<E>, exists: bool) -> [f32; 2] {
        let mut values = [0.0; 2];
        unroll!(i in 0..2, {
            if exists && self.columns[i] < self.head_dim {
                // SAFETY: inside, by the condition.
                values[i] = unsafe { row.get(self.columns[i] as usize) }.to_f32();
            }
        });
        values
    }

    #[inline(always)]
    fn rotated(&self, values: [f32; 2]) -> [f32; 2] {
        if self.is_rotated { rotate(values, self.angle) } else { values }
    }

    /// Calls `put` with the columns inside the head, and their values.
    #[inline(always)]
    fn store<E: Number>(&self, values: [f32; 2], put: impl Fn(u32, E)) {
        unroll!(i in 0..2, {
            if self.columns[i] < self.head_dim {
                put(self.columns[i], E::from_f32(values[i]));
            }
        });
    }
}

/// The thread's columns of the weights of the norm of Q and of K.
#[derive(Clone, Copy)]
pub struct NormWeights {
    q: [f32; 2],
    k: [f32; 2],
    eps: f32,
}

impl NormWeights {
    /// Issues the loads of the columns of `pair`; `None` without a norm.
    ///
    /// # Safety
    /// 1. Both weights hold an element for each column of a head, or are null.
    #[inline(always)]
    pub unsafe fn load(weights: &Weights, pair: &Pair) -> Option<Self> {
        if weights.q.is_null() {
            return None;
        }
        // SAFETY: the caller's promise.
        let [q, k] = [weights.q, weights.k].map(|weight| unsafe { pair.load(weight, true) });
        Some(NormWeights { q, k, eps: weights.eps })
    }
}

/// Source and destinations of the new key or value of a head.
pub(super) struct NewRow<E> {
    /// In the activations.
    pub from: Global<E>,
    /// The tile, of `block_n` rows.
    pub tile: Shared<E>,
    /// In the cache, if this block appends it.
    pub cache: Option<GlobalMut<E>>,
}

/// The part of a sequence's new token that a block stores.
pub(super) struct NewToken<E> {
    /// The block's query heads, contiguous.
    pub q: Global<E>,
    pub norm: Option<NormWeights>,
    pub heads: u32,
    pub smem_q: Shared<E>,
    /// Rows of the tile of Q.
    pub block_rows: u32,
    /// K and V, if the block's split has the token's key.
    pub kv: Option<[NewRow<E>; 2]>,
    /// The key's row in the tiles of K and V, and the number of their rows.
    pub key_row: u32,
    pub block_n: u32,
}

impl<E: Number> NewToken<E> {
    /// Stores the rows to the tiles and to the cache.
    ///
    /// # Safety
    /// 1. All threads of the block call this; no other thread accesses what it writes before a barrier.
    /// 2. Every row holds `head_dim` elements; with a norm those of 16 bits are 16-byte aligned.
    #[inline(always)]
    pub unsafe fn store(&self, pair: &Pair) {
        let threads_of_row = Pair::threads_of_row(pair.head_dim);
        let row_step = NUM_THREADS / threads_of_row;
        let num_rows = self.heads + if self.kv.is_some() { 2 } else { 0 };
        // All threads of a warp stay together, for the norm.
        let mut first_of_block = 0;
        while first_of_block < num_rows {
            let first = first_of_block + thread::thread_idx_x() / threads_of_row;
            let mut values = [[0.0; 2]; BATCH];
            unroll!(i in 0..4, {
                let row = first + i as u32 * row_step;
                // SAFETY: inside, by the condition.
                values[i] = unsafe { pair.load(self.source(row, pair.head_dim), row < num_rows) };
            });
            if let Some(norm) = &self.norm {
                // SAFETY: the caller's promise.
                values = unsafe { self.normed(norm, pair, first, row_step, values) };
            }
            unroll!(i in 0..4, {
                // SAFETY: the caller's promise; a row is one thread's for each pair.
                unsafe { self.store_row(first + i as u32 * row_step, pair, values[i]) };
            });
            first_of_block += BATCH as u32 * row_step;
        }
    }

    /// The thread's columns of its rows from `first` on, those of Q and K normalised.
    ///
    /// # Safety
    /// As [`NewToken::store`].
    #[inline(always)]
    unsafe fn normed(
        &self,
        norm: &NormWeights,
        pair: &Pair,
        first: u32,
        row_step: u32,
        mut values: [[f32; 2]; BATCH],
    ) -> [[f32; 2]; BATCH] {
        let &Pair { head_dim, .. } = pair;
        // A row's warps each sum all of it.
        let lanes = Pair::threads_of_row(head_dim).min(warp::WARP_SIZE);
        let vector = thread::thread_idx_x() & (lanes - 1);
        let num_normed = self.heads + u32::from(self.kv.is_some());
        // SAFETY: the caller's promise; the first row exists, and so does its first vector.
        unsafe {
            let mut square_sums = [0.0; BATCH];
            unroll!(i in 0..4, {
                let row = first + i as u32 * row_step;
                let exists = row < num_normed && vector * VEC_ELEMS < head_dim;
                let (row, vector) = if exists { (row, vector) } else { (0, 0) };
                let head = self.source(row, head_dim);
                // Without a branch, so that all loads are in flight at once.
                let elems = match size_of::<E>() {
                    2 => E::load_vector(head, (vector * VEC_ELEMS) as usize),
                    _ => qk_norm::load_vector(head, vector, head_dim),
                };
                square_sums[i] = if exists { lane_square_sum(&elems) } else { 0.0 };
            });
            let scales = qk_norm::scales(square_sums, lanes, head_dim, norm.eps);
            unroll!(i in 0..4, {
                let row = first + i as u32 * row_step;
                let weight = if row < self.heads { norm.q } else { norm.k };
                if row < num_normed {
                    let [a, b] = values[i];
                    values[i] =
                        [normed::<E>(a, weight[0], scales[i]), normed::<E>(b, weight[1], scales[i])];
                }
            });
        }
        values
    }

    /// Row `row` of: the query heads, K, V.
    #[inline(always)]
    fn source(&self, row: u32, head_dim: u32) -> Global<E> {
        match &self.kv {
            Some([k, _]) if row == self.heads => k.from,
            Some([_, v]) if row > self.heads => v.from,
            _ => self.q.wrapping_add((row * head_dim) as usize),
        }
    }

    /// # Safety
    /// As [`NewToken::store`].
    #[inline(always)]
    unsafe fn store_row(&self, row: u32, pair: &Pair, values: [f32; 2]) {
        // SAFETY: the caller's promise.
        unsafe {
            if row < self.heads {
                pair.store(pair.rotated(values), |column, value| {
                    self.smem_q.set(tile_offset::<E>(row, column, self.block_rows), value);
                });
            } else if let Some([k, v]) = &self.kv {
                if row == self.heads {
                    self.store_new(k, pair, pair.rotated(values));
                } else if row == self.heads + 1 {
                    self.store_new(v, pair, values);
                }
            }
        }
    }

    /// # Safety
    /// As [`NewToken::store`].
    #[inline(always)]
    unsafe fn store_new(&self, new: &NewRow<E>, pair: &Pair, values: [f32; 2]) {
        pair.store(values, |column, value: E| {
            // SAFETY: the caller's promise.
            unsafe {
                new.tile.set(tile_offset::<E>(self.key_row, column, self.block_n), value);
                if let Some(cache) = new.cache {
                    cache.set(column as usize, value);
                }
            }
        });
    }
}
