//! Small-batch GEMM in f32 (decode): `out[m, n] = sum_k a[m, k] * b[n, k] (+ bias[n]) (+
//! residual[m, n])`, m at most 16.
//!
//! Shapes    a `[m, k]`, b `[n, k]`, residual and out `[m, n]` with row strides, bias `[n]`; out
//!           may be residual; f32; k a multiple of 4, rows of a and b 16-byte aligned.
//! Launch    grid `(n / columns a block, 1, 1)`, block `(NUM_THREADS, 1, 1)`; a warp takes
//!           `COLUMNS` outputs of every row.
//! Numerics  f32; a lane accumulates four neighbours of every 128 along k, lanes are reduced as a
//!           tree: the same order for any number of rows.
//! Bound     memory: b is read once, `4 * n * k` bytes, by loads of 16 bytes a lane; a stays in L1.

use crate::gemm::mainloop::fma_small_m::{WARP_ELEMS, accumulate};
use cuda_std::prelude::*;

/// Threads of a block.
pub(super) const NUM_THREADS: u32 = 128;

/// Warps of a block.
pub(super) const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// `COLUMNS` outputs of `ROWS` rows a warp, with `STEPS * COLUMNS` loads of a lane in flight.
///
/// # Safety
/// 1. `m` is one element; `a`, `out` and `residual` hold that many rows, `b` holds `n`, at their
///    strides; `bias` holds `n` elements; `bias` and `residual` may be null.
/// 2. `out` is `residual`, or overlaps nothing that is read.
/// 3. Rows of `a` and `b` are 16-byte aligned, and `k` is a multiple of 4.
#[kernel(
    launch_bounds(NUM_THREADS, 3),
    overlaps,
    instances(
        gemm_f32_small_m1 = <1, 1, 8>,
        gemm_f32_small_m2 = <2, 2, 4>,
        gemm_f32_small_m4 = <4, 2, 4>,
        gemm_f32_small_m8 = <8, 4, 2>,
        gemm_f32_small_m16 = <16, 4, 1>
    )
)]
pub unsafe fn gemm_f32_small_m<const ROWS: usize, const COLUMNS: usize, const STEPS: usize>(
    m: Global<u32>,
    n: u32,
    k: u32,
    a: Global<f32>,
    a_stride: u32,
    b: Global<f32>,
    b_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<f32>,
    out_stride: u32,
) {
    let lane_id = warp::lane_id();
    let first_row = thread::block_idx_y() * ROWS as u32;
    let column = (thread::block_idx_x() * NUM_WARPS + warp::warp_idx()) * COLUMNS as u32;
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: rows and columns past the last one read the last one and store nothing; `first` stays
    // below `k`.
    unsafe {
        let m = m.get(0).saturating_sub(first_row);
        if m == 0 || column >= n {
            return;
        }
        let from = |stride: u32| first_row as usize * stride as usize;
        let a = a.add(from(a_stride));
        let mut a_rows = [a; ROWS];
        unroll!(i in 0..ROWS, {
            a_rows[i] = a.add((i as u32).min(m - 1) as usize * a_stride as usize);
        });
        let mut b_rows = [b; COLUMNS];
        unroll!(j in 0..COLUMNS, {
            b_rows[j] = b.add((column + j as u32).min(n - 1) as usize * b_stride as usize);
        });

        let mut acc = [[0.0; COLUMNS]; ROWS];
        let mut first = lane_id * 4;
        while first + (STEPS as u32 - 1) * WARP_ELEMS < k {
            accumulate::<ROWS, COLUMNS, STEPS>(&a_rows, &b_rows, first, &mut acc);
            first += STEPS as u32 * WARP_ELEMS;
        }
        while first < k {
            accumulate::<ROWS, COLUMNS, 1>(&a_rows, &b_rows, first, &mut acc);
            first += WARP_ELEMS;
        }

        unroll!(i in 0..ROWS, {
            let row = i as u32;
            for (j, value) in acc[i].iter().enumerate() {
                let mut sum = warp::reduce_add(*value);
                let column = column + j as u32;
                if lane_id == 0 && row < m && column < n {
                    let at = |stride| from(stride) + row as usize * stride as usize + column as usize;
                    // Not by `Epilogue`: LLVM then compares the rows twice.
                    if !bias.is_null() {
                        sum += bias.get(column as usize);
                    }
                    if !residual.is_null() {
                        sum += residual.get(at(residual_stride));
                    }
                    out.set(at(out_stride), sum);
                }
            }
        });
    }
}
