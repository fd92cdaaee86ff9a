//! The gate of SwiGLU: `out[t, i] = silu(gate[t, i]) * up[t, i]`, `silu(x) = x / (1 + exp(-x))`.
//!
//! Shapes    gate, up, out `[num_rows, width]` with row strides; out may be gate or up; f32.
//! Launch    grid `(max_rows, width / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32; the exponential and the reciprocal are approximate, within 3 ulp together.
//! Bound     memory: `12 * num_rows * width` bytes.
//! Source    arXiv:2002.05202.

use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// One element a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `gate`, `up` and `out` hold that many rows of `width` elements at their strides.
/// 2. `out` is `gate`, is `up`, or overlaps neither.
#[kernel(launch_bounds(NUM_THREADS, 1))]
pub unsafe fn silu_mul_f32(
    num_rows: Global<u32>,
    width: u32,
    gate: Global<f32>,
    gate_stride: u32,
    up: Global<f32>,
    up_stride: u32,
    out: GlobalMut<f32>,
    out_stride: u32,
) {
    let row = thread::block_idx_x();
    let column = thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x();
    // SAFETY: `row` and `column` are inside, by the check here.
    unsafe {
        if row >= num_rows.get(0) || column >= width {
            return;
        }
        let at = |stride: u32| row as usize * stride as usize + column as usize;
        let (gate, up) = (gate.get(at(gate_stride)), up.get(at(up_stride)));
        // For a very negative gate the exponential is infinite and its reciprocal 0, as silu is.
        let sigmoid = math::rcp_approx(1.0 + math::exp2_approx(-gate * LOG2_E));
        out.set(at(out_stride), gate * sigmoid * up);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::SiluMul;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, silu_mul_f32};
    use crate::Rows;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// The gate of SwiGLU.
    #[derive(Clone, Copy, Debug)]
    pub struct SiluMul {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    impl SiluMul {
        /// The launch, with `num_rows` the device's count of rows, or `None` if there is nothing to compute.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            gate: Rows<f32>,
            up: Rows<f32>,
            out: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            let (gate_stride, up_stride) = (gate.stride_arg()?, up.stride_arg()?);
            let out_stride = out.stride_arg()?;
            let grid = [self.max_rows, self.width.div_ceil(NUM_THREADS as usize), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| {
                silu_mul_f32::launch(
                    geometry,
                    num_rows,
                    width,
                    gate.ptr,
                    gate_stride,
                    up.ptr,
                    up_stride,
                    out.ptr,
                    out_stride,
                )
            }))
        }
    }
}
