//! Partial results of attention over some of the keys, and how they are combined: those of a
//! block's warps in shared memory, those of a row block's splits in global memory.

use super::tile::{AttentionElement, NUM_THREADS, NUM_WARPS};
use cuda_std::prelude::*;

/// Columns that a thread combines at once: 16 bytes of f32.
pub(super) const VEC_ELEMS: u32 = 4;

/// Values of [`VEC_ELEMS`] columns.
pub(super) type Values = [f32; VEC_ELEMS as usize];

/// Splits of which a thread has a vector in flight.
const BATCH: u32 = 16;

/// Vectors in flight, of all threads, in elements.
const BATCH_ELEMS: u32 = BATCH * NUM_THREADS * VEC_ELEMS;

/// Most splits: a lane takes eight.
const MAX_SPLITS: u32 = 8 * warp::WARP_SIZE;
#[cfg(not(target_arch = "nvptx64"))]
const _: () = assert!(MAX_SPLITS as usize == super::splits::MAX_SPLITS);

/// The partial result of attention over some of the keys, in [`VEC_ELEMS`] columns: `values / sum`
/// is the output.
#[derive(Clone, Copy)]
pub(super) struct PartialOut {
    /// The largest score, times `log2(e)`; minus infinity if no key was visible.
    pub max: f32,
    /// The sum of `exp2(score - max)`.
    pub sum: f32,
    /// The sum of `exp2(score - max) * v`.
    pub values: Values,
}

impl PartialOut {
    /// The same with a score that has no value; minus infinity is none.
    #[inline(always)]
    pub fn with_sink(self, sink: f32) -> Self {
        if sink == f32::NEG_INFINITY {
            return self;
        }
        let max = math::max(self.max, sink);
        let [weight, of_sink] = [self.max, sink].map(|score| math::exp2_approx(score - max));
        let sum = math::fma(self.sum, weight, of_sink);
        PartialOut { max, sum, values: self.values.map(|value| value * weight) }
    }

    /// The output.
    #[inline(always)]
    pub fn normalized(&self) -> Values {
        let scale = reciprocal(self.sum);
        self.values.map(|value| value * scale)
    }
}

/// `1 / sum`, or 0 for a row without a visible key.
#[inline(always)]
fn reciprocal(sum: f32) -> f32 {
    if sum > 0.0 { math::rcp_approx(sum) } else { 0.0 }
}

/// What is subtracted from scores: their maximum, or any finite number if they are all masked.
#[inline(always)]
fn finite(max: f32) -> f32 {
    if max == f32::NEG_INFINITY { 0.0 } else { max }
}

/// Stores `values` from `column` on, a multiple of four, up to `head_dim`.
///
/// # Safety
/// 1. `out` holds `head_dim` elements; if `aligned`, it is 16-byte aligned and `head_dim` a
///    multiple of four.
#[inline(always)]
pub(super) unsafe fn store_out<E: AttentionElement>(
    out: GlobalMut<E>,
    column: u32,
    head_dim: u32,
    aligned: bool,
    values: Values,
) {
    let values = values.map(E::from_f32);
    // SAFETY: columns under `head_dim` are in the row.
    unsafe {
        if aligned {
            if column < head_dim {
                out.set_vec(column as usize, values);
            }
            return;
        }
        unroll!(i in 0..4, {
            if column + (i as u32) < head_dim {
                out.set(column as usize + i, values[i]);
            }
        });
    }
}

/// Combines the partial results of `num_warps` warps, in order. `partial` loads one, `max_score`
/// only its largest score.
#[inline(always)]
pub(super) fn combine_warps(
    num_warps: u32,
    max_score: impl Fn(u32) -> f32,
    partial: impl Fn(u32) -> PartialOut,
) -> PartialOut {
    let mut max = f32::NEG_INFINITY;
    for warp in 0..num_warps {
        max = math::max(max, max_score(warp));
    }
    let (mut sum, mut values) = (0.0, [0.0; VEC_ELEMS as usize]);
    for warp in 0..num_warps {
        let partial = partial(warp);
        let weight = math::exp2_approx(partial.max - finite(max));
        sum = math::fma(weight, partial.sum, sum);
        unroll!(column in 0..VEC_ELEMS as usize, {
            values[column] = math::fma(weight, partial.values[column], values[column]);
        });
    }
    PartialOut { max, sum, values }
}

/// The partial results of a row block's splits, in the workspace: `[num_splits, rows, width]`, and
/// largest scores and sums `[num_splits, rows, 2]`.
#[derive(Clone, Copy)]
pub(super) struct SplitResults {
    pub out: GlobalMut<f32>,
    pub stats: GlobalMut<f32>,
    pub rows: u32,
    pub width: u32,
    pub num_splits: u32,
}

impl SplitResults {
    /// Elements of shared memory that [`SplitResults::combine`] needs for `block_rows` rows.
    pub const fn shared_elems(block_rows: u32) -> u32 {
        BATCH_ELEMS + block_rows * (MAX_SPLITS + 1)
    }

    /// Index of `row` of `split`.
    #[inline(always)]
    fn row(&self, split: u32, row: u32) -> usize {
        split as usize * self.rows as usize + row as usize
    }

    /// Stores a split's result.
    ///
    /// # Safety
    /// 1. `row` and `column` are inside; no other thread accesses them.
    #[inline(always)]
    pub unsafe fn store(&self, split: u32, row: u32, column: u32, part: PartialOut) {
        let to = self.row(split, row);
        // SAFETY: the caller's promise.
        unsafe {
            self.out.set_vec(to * self.width as usize + column as usize, part.values);
            if column == 0 {
                self.stats.set_vec(to * 2, [part.max, part.sum]);
            }
        }
    }

    /// Row stride of the weights in shared memory: odd, so that rows are in different banks.
    #[inline(always)]
    fn weights_stride(&self) -> u32 {
        self.num_splits | 1
    }

    /// Stores the weights of the splits, `exp2(max - row's max) / row's sum`. A warp takes every
    /// fourth row, a lane every 32nd split.
    ///
    /// # Safety
    /// As [`SplitResults::combine`].
    #[inline(always)]
    unsafe fn store_weights(&self, weights: Shared<f32>) {
        let lane_id = warp::lane_id();
        let mut row = warp::warp_idx();
        while row < self.rows {
            let mut stats = [[f32::NEG_INFINITY, 0.0]; 8];
            let mut max = f32::NEG_INFINITY;
            unroll!(i in 0..8, {
                let split = lane_id + warp::WARP_SIZE * i as u32;
                if split < self.num_splits {
                    // SAFETY: inside, by the condition.
                    stats[i] = unsafe { self.stats.get_vec(self.row(split, row) * 2) };
                }
            });
            unroll!(i in 0..8, {
                max = math::max(max, stats[i][0]);
            });
            let max = finite(warp::reduce_max(max));
            let mut sum = 0.0;
            unroll!(i in 0..8, {
                stats[i][0] = math::exp2_approx(stats[i][0] - max);
                sum = math::fma(stats[i][0], stats[i][1], sum);
            });
            let scale = reciprocal(warp::reduce_add(sum));
            unroll!(i in 0..8, {
                let split = lane_id + warp::WARP_SIZE * i as u32;
                if split < self.num_splits {
                    // SAFETY: inside, by the condition.
                    unsafe { weights.set(row * self.weights_stride() + split, stats[i][0] * scale) };
                }
            });
            row += NUM_WARPS;
        }
    }

    /// Issues this thread's copies of its vector of the splits from `first` on to `batch`.
    ///
    /// # Safety
    /// As [`SplitResults::combine`].
    #[inline(always)]
    unsafe fn copy_batch(&self, batch: Shared<f32>, first: u32, row: u32, column: u32) {
        let mut split = first;
        while split < self.num_splits.min(first + BATCH) {
            let from = self.row(split, row) * self.width as usize + column as usize;
            let to = (split - first) * NUM_THREADS * VEC_ELEMS;
            // SAFETY: the vector is inside.
            unsafe {
                cp_async::copy_vec::<{ VEC_ELEMS as usize }, _>(
                    batch,
                    to,
                    self.out.as_global(),
                    from,
                    true,
                );
            }
            split += 1;
        }
        cp_async::commit();
    }

    /// Combines the splits, in order, and calls `store` with row, column and values of each vector
    /// of the output. The partial results of [`BATCH`] splits are loaded at once, the first ones
    /// beside the weights.
    ///
    /// # Safety
    /// 1. All threads of the block call this, and see what the splits' blocks have stored.
    /// 2. `smem` holds [`SplitResults::shared_elems`], which no other thread uses.
    #[inline(always)]
    pub unsafe fn combine(&self, smem: Shared<f32>, store: impl Fn(u32, u32, Values)) {
        let batch = smem.offset(thread::thread_idx_x() * VEC_ELEMS);
        let weights = smem.offset(BATCH_ELEMS);
        let place = |vec: u32| (vec * VEC_ELEMS / self.width, vec * VEC_ELEMS % self.width);
        let end = self.rows * self.width / VEC_ELEMS;
        let mut vec = thread::thread_idx_x();
        // SAFETY: rows, columns and splits are inside; a thread reads its own copies, which it has
        // waited for, and weights from before the barrier.
        unsafe {
            if vec < end {
                let (row, column) = place(vec);
                self.copy_batch(batch, 0, row, column);
            }
            self.store_weights(weights);
            thread::sync_threads();
            while vec < end {
                let (row, column) = place(vec);
                let weights = weights.offset(row * self.weights_stride());
                let mut values = [0.0; VEC_ELEMS as usize];
                let mut split = 0;
                while split < self.num_splits {
                    cp_async::wait(0);
                    let end = self.num_splits.min(split + BATCH);
                    let mut from = batch;
                    while split < end {
                        let (weight, part): (f32, Values) = (weights.get(split), from.get_vec(0));
                        unroll!(column in 0..VEC_ELEMS as usize, {
                            values[column] = math::fma(weight, part[column], values[column]);
                        });
                        from = from.offset(NUM_THREADS * VEC_ELEMS);
                        split += 1;
                    }
                    if split < self.num_splits {
                        self.copy_batch(batch, split, row, column);
                    }
                }
                store(row, column, values);
                vec += NUM_THREADS;
                if vec < end {
                    let (row, column) = place(vec);
                    self.copy_batch(batch, 0, row, column);
                }
            }
        }
    }
}
