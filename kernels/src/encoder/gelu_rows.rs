//! GELU by the error function, `out[t, i] = x[t, i] * (1 + erf(x[t, i] / sqrt(2))) / 2`, times
//! `up[t, i]` where there is one.
//!
//! Shapes    x, up, out `[num_rows, width]` with row strides, all f32, f16 or bf16; out may be x or
//!           up.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32 inside; erf is within 2e-7 (Abramowitz and Stegun, 7.1.26); one rounding at the
//!           store. In f16 the result is clamped to 65,504; NaN stays.
//! Bound     memory: one load or two and one store for each column.
//! Source    arXiv:1606.08415.

use crate::element::{Columns, Number, VEC_ELEMS};
use core::f32::consts::{FRAC_1_SQRT_2, LOG2_E};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// `x * (1 + erf(x / sqrt(2))) / 2`.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * FRAC_1_SQRT_2;
    let t = math::rcp_approx(math::fma(0.327_591_1, z, 1.0));
    const COEFFICIENTS: [f32; 4] = [-1.453_152, 1.421_413_8, -0.284_496_74, 0.254_829_6];
    let mut polynomial = 1.061_405_4;
    unroll!(i in 0..4, {
        polynomial = math::fma(polynomial, t, COEFFICIENTS[i]);
    });
    // erfc(z) / 2, the share of the smaller tail.
    let tail = 0.5 * polynomial * t * math::exp2_approx(-z * z * LOG2_E);
    x * if x < 0.0 { tail } else { 1.0 - tail }
}

/// Eight elements `E` a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `x`, `out` and, unless it is null, `up` hold that many rows of
///    `width` elements `E` at their strides.
/// 2. `out` is `x`, is `up`, or overlaps neither.
/// 3. If `aligned` is not 0, all rows are 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(gelu_rows_f32 = <f32>, gelu_rows_f16 = <f16>, gelu_rows_bf16 = <bf16>)
)]
pub unsafe fn gelu_rows<E: Number>(
    num_rows: Global<u32>,
    width: u32,
    x: Global<()>,
    x_stride: u32,
    up: Global<()>,
    up_stride: u32,
    out: GlobalMut<()>,
    out_stride: u32,
    aligned: u32,
) {
    let row = thread::block_idx_x();
    let column = (thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x()) * VEC_ELEMS;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` and `column` are inside, by the check here.
    unsafe {
        if row >= num_rows || column >= width {
            return;
        }
        let columns = Columns::new(column, width, aligned != 0);
        let start = |stride: u32| row as usize * stride as usize;
        let mut values = columns.load(x.cast::<E>().add(start(x_stride)));
        let mut ups = [1.0; VEC_ELEMS as usize];
        if !up.is_null() {
            ups = columns.load(up.cast::<E>().add(start(up_stride)));
        }
        unroll!(i in 0..8, {
            values[i] = (gelu(values[i]) * ups[i]).clamp(-E::CLAMP, E::CLAMP);
        });
        columns.store(out.cast::<E>().add(start(out_stride)), values);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::GeluRows;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::gelu_rows::Instance;
    use super::{NUM_THREADS, gelu_rows};
    use crate::Rows;
    use crate::element::{Number, VEC_ELEMS};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// GELU of rows.
    #[derive(Clone, Copy, Debug)]
    pub struct GeluRows {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    impl GeluRows {
        /// The launch, or `None` if there is nothing to compute. `num_rows` points to the row count
        /// on the device; `out` may be `x` or `up`.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<E: Number>(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<E>,
            up: Option<Rows<E>>,
            out: Rows<E>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            let up_stride = up.map_or(Ok(0), |up| up.stride_arg())?;
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let blocks = self.width.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            let aligned = x.is_aligned() && up.is_none_or(|up| up.is_aligned()) && out.is_aligned();
            let instance = E::choose([
                Instance::gelu_rows_f32,
                Instance::gelu_rows_f16,
                Instance::gelu_rows_bf16,
            ]);
            Ok(geometry.map(|geometry| {
                gelu_rows::Args {
                    num_rows,
                    width,
                    x: x.untyped_ptr(),
                    x_stride,
                    up: up.map_or(DevicePtr::null(), |up| up.untyped_ptr()),
                    up_stride,
                    out: out.untyped_ptr(),
                    out_stride,
                    aligned: aligned.into(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
