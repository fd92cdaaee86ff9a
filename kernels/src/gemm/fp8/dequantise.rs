//! A weight in FP8 as a dense one: `out[n, k] = scale * weight[n, k]`, for GEMMs of GPUs that do
//! not multiply FP8.
//!
//! Shapes    weight `[n, k]` E4M3, out `[n, k]` f16, with row strides; k a multiple of 16; rows
//!           16-byte aligned. Scales `[n]`, or `[n / 128, k / 128]`, rounded up, f32.
//! Launch    grid `(n * k / 16 / NUM_THREADS, 1, 1)`, block `(NUM_THREADS, 1, 1)`; a thread takes
//!           16 elements.
//! Numerics  f32, one rounding at the store.
//! Bound     memory: the weight is read, and out written once.

use crate::element::{Half, Number, VEC_ELEMS};
use crate::tile::weight::{Scales, WeightElement};
use cuda_std::E4m3;
use cuda_std::prelude::*;
use half::f16;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Elements of a thread.
const LOAD_ELEMS: u32 = <E4m3 as WeightElement<f16>>::LOAD_ELEMS;

/// 16 elements a thread.
///
/// # Safety
/// 1. `weight` and `out` hold `n` rows of `k` elements at their strides, 16-byte aligned; `k` is a
///    multiple of 16. `out` is no part of `weight`.
/// 2. `scales` are those of `weight`: a row of blocks has `scale_stride` of them; if that is 0, a
///    row of the weight has one.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn dequantise_e4m3_f16(
    n: u32,
    k: u32,
    weight: Global<E4m3>,
    weight_stride: u32,
    scales: Global<f32>,
    scale_stride: u32,
    out: GlobalMut<f16>,
    out_stride: u32,
) {
    let load_idx = thread::block_idx_x() * NUM_THREADS + thread::thread_idx_x();
    let row_loads = k / LOAD_ELEMS;
    let (row, column) = (load_idx / row_loads, load_idx % row_loads * LOAD_ELEMS);
    let scales = Scales { scales, stride: scale_stride };
    let from = row as usize * weight_stride as usize + column as usize;
    // SAFETY: row and column are inside, by the check.
    unsafe {
        let words = weight.wrapping_add(from).cast::<u32>().stream_vec_if(0, row < n);
        let mut scale = 0.0;
        if row < n {
            scale = scales.row_scale(row) * scales.block_scale(row, column, true);
        }
        scale *= <E4m3 as WeightElement<f16>>::FACTOR;
        grid::wait_for_dependencies();
        grid::launch_dependents();
        if row >= n {
            return;
        }
        let to = row as usize * out_stride as usize + column as usize;
        for vec in 0..<E4m3 as WeightElement<f16>>::VECS {
            let pairs = |quad| E4m3::operands(&words, 2 * vec + quad).map(<f16 as Half>::unpack);
            let ([[a, b], [c, d]], [[e, f], [g, h]]) = (pairs(0), pairs(1));
            let values = [a, b, c, d, e, f, g, h].map(|value| scale * value);
            f16::store_vector(out, to + vec * VEC_ELEMS as usize, values);
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::DequantiseFp8;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{LOAD_ELEMS, NUM_THREADS, dequantise_e4m3_f16};
    use crate::Rows;
    use crate::gemm::fp8::WeightScales;
    use crate::gemm::problem::refuse;
    use cuda_std::E4m3;
    use cuda_std::launch::{Geometry, Launch, LaunchError, arg_u32};
    use half::f16;

    /// A dense copy of a weight in FP8.
    #[derive(Clone, Copy, Debug)]
    pub struct DequantiseFp8 {
        /// Rows of the weight. Those of a range of rows are a weight of their own; a range of a
        /// weight whose blocks have scales starts at a multiple of
        /// [`SCALE_BLOCK`](crate::gemm::fp8::SCALE_BLOCK).
        pub n: usize,
        /// Columns of the weight, a multiple of 16.
        pub k: usize,
    }

    impl DequantiseFp8 {
        /// The launch of the copy, or `None` if the weight is empty.
        ///
        /// # Errors
        /// [`LaunchError`] for a k that is no multiple of 16, rows that are not 16-byte aligned,
        /// and more than `2^31` loads of 16 elements.
        pub fn launch(
            &self,
            weight: Rows<E4m3>,
            scales: WeightScales,
            out: Rows<f16>,
        ) -> Result<Option<Launch>, LaunchError> {
            let &DequantiseFp8 { n, k } = self;
            if !k.is_multiple_of(LOAD_ELEMS as usize) {
                return refuse("k", k, "a multiple of 16");
            }
            for (what, is_aligned, stride) in [
                ("row stride", weight.is_aligned(), weight.row_stride),
                ("row stride of the copy", out.is_aligned(), out.row_stride),
            ] {
                if !is_aligned {
                    return refuse(what, stride, "rows that are 16-byte aligned");
                }
            }
            let num_loads = n.saturating_mul(k / LOAD_ELEMS as usize);
            if num_loads > i32::MAX as usize {
                return refuse("n", n, "a weight of at most 32 GiB");
            }
            let scales = scales.args(k)?;
            let grid = [num_loads.div_ceil(NUM_THREADS as usize), 1, 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            let args = dequantise_e4m3_f16::Args {
                n: arg_u32("n", n)?,
                k: arg_u32("k", k)?,
                weight: weight.ptr,
                weight_stride: weight.stride_arg()?,
                scales: scales.ptr,
                scale_stride: scales.stride,
                out: out.ptr,
                out_stride: out.stride_arg()?,
            };
            Ok(geometry.map(|geometry| args.launch(geometry)))
        }
    }
}
