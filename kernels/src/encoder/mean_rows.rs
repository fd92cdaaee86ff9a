//! Mean pooling: `out[r, :] = mean(x[t, :])` over the tokens of the sequence that the token
//! `rows[r]` belongs to.
//!
//! Shapes    x `[num_tokens, width]`, out `[num_rows, width]`, f32 with row strides; rows
//!           `[num_rows]`.
//! Launch    grid `(max_rows, width / 256, 1)`, block `(NUM_THREADS, 1, 1)`; a warp takes every
//!           eighth token.
//! Numerics  f32: the tokens of a warp in order, then the warps.
//! Bound     memory: one load for each element of x.
//! Source    arXiv:1908.10084.

use crate::element::{Columns, VEC_ELEMS};
use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Warps of a block.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Columns of a block.
const BLOCK_COLUMNS: u32 = warp::WARP_SIZE * VEC_ELEMS;

/// Some columns of a row of `out`.
///
/// # Safety
/// 1. `num_rows` is one element; `rows` holds that many tokens of the step whose inputs are
///    `seq_ids` and `cu_seqlens_q`; `x` holds a row for each token, `out` so many as `num_rows`.
/// 2. `out` overlaps nothing that is read. If `aligned` is not 0, all rows are 16-byte aligned.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn mean_rows_f32(
    num_rows: Global<u32>,
    rows: Global<u32>,
    seq_ids: Global<u32>,
    cu_seqlens_q: Global<u32>,
    width: u32,
    x: Global<f32>,
    x_stride: u32,
    out: GlobalMut<f32>,
    out_stride: u32,
    aligned: u32,
) {
    let row = thread::block_idx_x();
    let column = thread::block_idx_y() * BLOCK_COLUMNS + warp::lane_id() * VEC_ELEMS;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if row >= num_rows {
        return;
    }
    // SAFETY: tokens are those of a sequence, columns inside by `Columns`; of `partials` a thread
    // has its own elements before the barrier.
    unsafe {
        let partials = shared_array![f32; (NUM_WARPS * BLOCK_COLUMNS) as usize];
        let columns = Columns::new(column, width, aligned != 0);
        let seq = seq_ids.get(rows.get(row as usize) as usize) as usize;
        let (first, end) = (cu_seqlens_q.get(seq), cu_seqlens_q.get(seq + 1));
        let mut sums = [0.0; VEC_ELEMS as usize];
        let mut token = first + warp::warp_idx();
        while token < end {
            let values = columns.load(x.add(token as usize * x_stride as usize));
            unroll!(i in 0..8, {
                sums[i] += values[i];
            });
            token += NUM_WARPS;
        }
        let own = warp::lane_id() * VEC_ELEMS;
        unroll!(i in 0..8, {
            partials.set(warp::warp_idx() * BLOCK_COLUMNS + own + i as u32, sums[i]);
        });
        thread::sync_threads();
        if warp::warp_idx() == 0 {
            let mut means = [0.0; VEC_ELEMS as usize];
            let mut warp_idx = 0;
            while warp_idx < NUM_WARPS {
                unroll!(i in 0..8, {
                    means[i] += partials.get(warp_idx * BLOCK_COLUMNS + own + i as u32);
                });
                warp_idx += 1;
            }
            let count = (end - first) as f32;
            unroll!(i in 0..8, {
                means[i] /= count;
            });
            columns.store(out.add(row as usize * out_stride as usize), means);
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{MeanRows, MeanSeqs};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{BLOCK_COLUMNS, NUM_THREADS, mean_rows_f32};
    use crate::Rows;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Mean pooling of sequences.
    #[derive(Clone, Copy, Debug)]
    pub struct MeanRows {
        /// Upper bound of the pooled rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    /// The step inputs that say which rows are a sequence's.
    #[derive(Clone, Copy, Debug)]
    pub struct MeanSeqs {
        /// `[1]`: pooled rows.
        pub num_rows: DevicePtr<u32>,
        /// `[num_rows]`: a token of each of their sequences.
        pub rows: DevicePtr<u32>,
        /// `[num_tokens]`: the sequence of each token.
        pub seq_ids: DevicePtr<u32>,
        /// `[num_seqs + 1]`: first token of each sequence, and the number of tokens.
        pub cu_seqlens_q: DevicePtr<u32>,
    }

    impl MeanRows {
        /// The launch, or `None` if there is nothing to compute.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            seqs: &MeanSeqs,
            x: Rows<f32>,
            out: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let &MeanSeqs { num_rows, rows, seq_ids, cu_seqlens_q } = seqs;
            let width = arg_u32("width", self.width)?;
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let blocks = self.width.div_ceil(BLOCK_COLUMNS as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| {
                mean_rows_f32::Args {
                    num_rows,
                    rows,
                    seq_ids,
                    cu_seqlens_q,
                    width,
                    x: x.ptr,
                    x_stride,
                    out: out.ptr,
                    out_stride,
                    aligned: (x.is_aligned() && out.is_aligned()).into(),
                }
                .launch(geometry)
            }))
        }
    }
}
