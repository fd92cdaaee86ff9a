//! RMSNorm of x, fused: each block norms all rows into its shared memory, instead of waiting for a
//! launch that does.
//!
//! The warps take segments of 256 elements in turn. The first round is tuned for one row, where a
//! warp rarely has a second one: the norm's weight is prefetched before the previous launch has
//! ended, and x stays in registers while the warps exchange their sums of squares. In later rounds
//! x is read twice, the second time from L1. Registers are scarce beside the weights in flight with
//! 32 warps an SM: of the eight norm weights of a lane only the first is kept.

use super::rows::{self, SharedRows, row_stride, tile_elems};
use crate::element::{Half, VEC_ELEMS};
use crate::gemm::mainloop::stream::TILE_MN;
use crate::rms_norm::{
    SEGMENT_ELEMS, Vector, num_segments, scale, scaled, segment_square_sum, sum_segments, weighted,
};
use cuda_std::prelude::*;

/// Binary logarithm of the segments of a row, padded to a power of two with idle ones.
const fn row_shift(k: u32) -> u32 {
    num_segments(k).next_power_of_two().trailing_zeros()
}

/// Floats of shared memory before the rows: the sums of squares of all segments.
const fn num_square_sums(k: u32) -> u32 {
    TILE_MN << row_shift(k)
}

/// Bytes of shared memory for a block's normed rows.
pub const fn shared_bytes(max_rows: usize, k: u32, vecs: usize) -> usize {
    let square_sums = num_square_sums(k) as usize * size_of::<f32>();
    square_sums + rows::shared_bytes(max_rows, k, vecs)
}

/// A segment of a row, numbered row by row.
#[derive(Clone, Copy)]
struct Segment(u32);

/// The parameters of a norm.
#[derive(Clone, Copy)]
pub struct NormParams {
    pub k: u32,
    /// `1 / k`.
    pub reciprocal: f32,
    pub eps: f32,
    /// Loads of x a load of the weight.
    pub vecs: usize,
}

impl NormParams {
    #[inline(always)]
    fn row(&self, segment: Segment) -> u32 {
        segment.0 >> row_shift(self.k)
    }

    #[inline(always)]
    fn index_in_row(&self, segment: Segment) -> u32 {
        segment.0 & ((1 << row_shift(self.k)) - 1)
    }

    /// The lane's first element of a segment, along k.
    #[inline(always)]
    fn column(&self, segment: Segment) -> u32 {
        self.index_in_row(segment) * SEGMENT_ELEMS + warp::lane_id() * VEC_ELEMS
    }

    /// The lane's elements of a segment of `row`, zeros past the end.
    ///
    /// # Safety
    /// 1. `row` holds `k` elements, 16-byte aligned.
    #[inline(always)]
    unsafe fn load(&self, row: Global<f32>, segment: Segment, exists: bool) -> Vector {
        let column = self.column(segment);
        let (row, is_inside) = (row.wrapping_add(column as usize), exists && column < self.k);
        // SAFETY: inside by the condition, since k is a multiple of eight.
        let ([a, b, c, d], [e, f, g, h]) =
            unsafe { (row.get_vec_if(0, is_inside), row.get_vec_if(4, is_inside)) };
        [a, b, c, d, e, f, g, h]
    }
}

/// The norm of a block's rows, by its `WARPS` warps.
pub struct Norm<const WARPS: usize> {
    weight: Global<f32>,
    params: NormParams,
    /// The lane's first norm weight of the warp's first segment: loading it brings all eight to L1.
    first_weight: f32,
}

impl<const WARPS: usize> Norm<WARPS> {
    /// Prefetches the norm's weight; the previous launch may still run.
    ///
    /// # Safety
    /// 1. `weight` holds `k` elements, 16-byte aligned; `k` is a multiple of 8, not 0.
    #[inline(always)]
    pub unsafe fn new(weight: Global<f32>, params: NormParams) -> Self {
        let column = params.column(Segment(warp::warp_idx())) as usize;
        let is_inside = column < params.k as usize;
        // SAFETY: inside, by the condition.
        let first_weight = if is_inside { unsafe { weight.get(column) } } else { 0.0 };
        Norm { weight, params, first_weight }
    }

    /// Norms the first `num_rows` rows of `x`, rounded to `E`; rows past the last one are the last
    /// one.
    ///
    /// # Safety
    /// 1. `x` holds `num_rows` rows, 16-byte aligned; `num_rows` is 1 to [`TILE_MN`].
    /// 2. `smem` holds [`shared_bytes`] of at least as many rows, 16-byte aligned, which nothing
    ///    else uses. All threads of the block call this, once.
    #[inline(always)]
    pub unsafe fn rows<E: Half, const TILES_M: usize>(
        &self,
        (x, stride): (Global<f32>, u32),
        num_rows: u32,
        smem: Shared<f32>,
    ) -> SharedRows<TILES_M> {
        let params = &self.params;
        let rows = smem.offset(num_square_sums(params.k)).cast::<u16>();
        let end = num_rows << row_shift(params.k);
        let segment = |round| Segment(round * WARPS as u32 + warp::warp_idx());
        // SAFETY: only segments of rows under `num_rows`; each belongs to one warp, and what other
        // warps write is read after a barrier.
        unsafe {
            let load_x = |segment: Segment| {
                let row = x.wrapping_add(params.row(segment) as usize * stride as usize);
                params.load(row, segment, segment.0 < end)
            };
            // All warps run the same number of rounds: if a branch depended on the warp, ptxas
            // would treat the shuffles as divergent. Round 0 is last: its segment stays in
            // registers.
            let num_rounds = end.div_ceil(WARPS as u32);
            let mut round = num_rounds;
            let mut values;
            loop {
                round -= 1;
                values = load_x(segment(round));
                self.store_square_sum(segment(round), &values, smem);
                if round == 0 {
                    break;
                }
            }
            thread::sync_threads();

            let mut weights = params.load(self.weight, segment(0), true);
            weights[0] = self.first_weight;
            self.store::<E>(segment(0), weighted(values, weights), end, smem, rows);
            round = 1;
            while round < num_rounds {
                let weights = params.load(self.weight, segment(round), true);
                let values = weighted(load_x(segment(round)), weights);
                self.store::<E>(segment(round), values, end, smem, rows);
                round += 1;
            }
            thread::sync_threads();
        }
        SharedRows::new(rows, params.k, num_rows, params.vecs)
    }

    /// Writes the sum of squares of a segment.
    ///
    /// # Safety
    /// 1. `smem` holds one element a segment; no other warp accesses this one's.
    #[inline(always)]
    unsafe fn store_square_sum(&self, segment: Segment, values: &Vector, smem: Shared<f32>) {
        let sum = segment_square_sum(values);
        if warp::lane_id() == 0 {
            // SAFETY: the caller's promise.
            unsafe { smem.set(segment.0, sum) };
        }
    }

    /// Scales and writes a weighted segment, with zeros up to the end of the last k-tile.
    ///
    /// # Safety
    /// 1. `smem` holds the sums of squares of the row's segments; `rows` holds the normed rows, and
    ///    no other warp accesses this segment.
    #[inline(always)]
    unsafe fn store<E: Half>(
        &self,
        segment: Segment,
        weighted: Vector,
        end: u32,
        smem: Shared<f32>,
        rows: Shared<u16>,
    ) {
        let NormParams { k, reciprocal, eps, vecs } = self.params;
        let (row, column) = (self.params.row(segment), self.params.column(segment));
        if segment.0 >= end || column >= k.next_multiple_of(tile_elems(vecs)) {
            return;
        }
        // SAFETY: the caller's promise; the column is inside.
        unsafe {
            let sum = sum_segments(smem.offset(row << row_shift(k)), num_segments(k));
            let [a, b, c, d, e, f, g, h] = scaled(weighted, scale(sum, reciprocal, eps));
            let words = [E::pack(a, b), E::pack(c, d), E::pack(e, f), E::pack(g, h)];
            rows.offset(row * row_stride(k, vecs) + column).cast::<u32>().set_vec(0, words);
        }
    }
}
