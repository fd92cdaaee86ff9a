//! LayerNorm: `out[t, i] = (x[t, i] - mean) * rsqrt(var + eps) * weight[i] + bias[i]`, of the mean
//! and the variance of each row.
//!
//! Shapes    x `[num_rows, width]` f32, out `[num_rows, width]` f32, f16 or bf16, with row strides;
//!           weight, bias `[width]` f32. x keeps the f32 output, where that is wanted too.
//! Launch    grid `(max_rows / NUM_WARPS, 1, 1)`, block `(NUM_THREADS, 1, 1)`; a warp a row.
//! Numerics  f32 inside, the mean before the squares of the differences; one rounding at the store.
//! Bound     memory: a row comes from HBM once, and twice from L1.
//! Source    arXiv:1607.06450.

use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// Warps of a block.
const NUM_WARPS: u32 = NUM_THREADS / warp::WARP_SIZE;

/// Columns that one load of a warp covers.
const SEGMENT_ELEMS: u32 = warp::WARP_SIZE * VEC_ELEMS;

/// From f32 to `Y`, a row a warp.
///
/// # Safety
/// 1. `num_rows` is one element; `x` and `out` hold that many rows of `width` elements at their
///    strides; `weight` holds `width` elements, and so does `bias` unless it is null.
/// 2. `out` is `x`, and `keeps` 0, or they do not overlap.
/// 3. If `aligned` is not 0, all rows, `weight` and `bias` are 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        layer_norm_f32 = <f32>,
        layer_norm_f32_f16 = <f16>,
        layer_norm_f32_bf16 = <bf16>
    )
)]
pub unsafe fn layer_norm<Y: Number>(
    num_rows: Global<u32>,
    width: u32,
    eps: f32,
    x: GlobalMut<f32>,
    x_stride: u32,
    weight: Global<f32>,
    bias: Global<f32>,
    out: GlobalMut<()>,
    out_stride: u32,
    keeps: u32,
    aligned: u32,
) {
    let row = thread::block_idx_x() * NUM_WARPS + warp::warp_idx();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` is inside by the check here, columns by `Columns`; a lane stores the columns
    // that it alone loads.
    unsafe {
        if row >= num_rows {
            return;
        }
        let x = x.add(row as usize * x_stride as usize);
        let out = out.cast::<Y>().add(row as usize * out_stride as usize);
        let first = |segment: u32| segment * SEGMENT_ELEMS + warp::lane_id() * VEC_ELEMS;
        let columns = |segment: u32| Columns::new(first(segment), width, aligned != 0);
        let num_segments = width.div_ceil(SEGMENT_ELEMS);
        let reciprocal = 1.0 / width as f32;

        let mut sum = 0.0;
        let mut segment = 0;
        while segment < num_segments {
            let values = columns(segment).load(x.as_global());
            unroll!(i in 0..8, {
                sum += values[i];
            });
            segment += 1;
        }
        let mean = warp::reduce_add(sum) * reciprocal;

        let mut square_sum = 0.0;
        segment = 0;
        while segment < num_segments {
            let values = columns(segment).load(x.as_global());
            unroll!(i in 0..8, {
                // Columns past the end were loaded as zeros.
                let is_inside = first(segment) + (i as u32) < width;
                let difference = if is_inside { values[i] - mean } else { 0.0 };
                square_sum = math::fma(difference, difference, square_sum);
            });
            segment += 1;
        }
        let variance = warp::reduce_add(square_sum) * reciprocal;
        let scale = math::rsqrt_approx(variance + eps);

        segment = 0;
        while segment < num_segments {
            let mut values = columns(segment).load(x.as_global());
            let weights = columns(segment).load(weight);
            unroll!(i in 0..8, {
                values[i] = (values[i] - mean) * scale * weights[i];
            });
            if !bias.is_null() {
                let biases = columns(segment).load(bias);
                unroll!(i in 0..8, {
                    values[i] += biases[i];
                });
            }
            columns(segment).store(out, values);
            if keeps != 0 {
                columns(segment).store(x, values);
            }
            segment += 1;
        }
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::LayerNorm;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::layer_norm::Instance;
    use super::{NUM_THREADS, NUM_WARPS, layer_norm};
    use crate::Rows;
    use crate::element::Number;
    use crate::operand::is_aligned;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// LayerNorm of rows.
    #[derive(Clone, Copy, Debug)]
    pub struct LayerNorm {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
        /// Added to the variance.
        pub eps: f32,
        /// Whether `x` becomes the output in f32.
        pub keeps: bool,
    }

    impl LayerNorm {
        /// The launch, or `None` if there is nothing to compute. `num_rows` points to the row count
        /// on the device; a null `bias` is none; `out` may be `x`, unless that keeps the output.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<Y: Number>(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<f32>,
            [weight, bias]: [DevicePtr<f32>; 2],
            out: Rows<Y>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let aligned =
                x.is_aligned() && out.is_aligned() && is_aligned(weight) && is_aligned(bias);
            let blocks = self.max_rows.div_ceil(NUM_WARPS as usize);
            let geometry = Geometry::new([blocks, 1, 1], NUM_THREADS as usize, 0)?;
            let instance = Y::choose([
                Instance::layer_norm_f32,
                Instance::layer_norm_f32_f16,
                Instance::layer_norm_f32_bf16,
            ]);
            Ok(geometry.filter(|_| width > 0).map(|geometry| {
                layer_norm::Args {
                    num_rows,
                    width,
                    eps: self.eps,
                    x: x.ptr,
                    x_stride,
                    weight,
                    bias,
                    out: out.untyped_ptr(),
                    out_stride,
                    keeps: self.keeps.into(),
                    aligned: aligned.into(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
