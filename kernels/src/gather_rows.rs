//! Rows by index: `out[r, :] = x[indices[r], :]`. The embedding is this with the table and the
//! token ids; the rows whose logits are wanted are it with the hidden states and `logit_rows`.
//!
//! Shapes    x `[*, width]`, out `[num_rows, width]` with row strides; indices `[num_rows]`; f32.
//! Launch    grid `(max_rows, width / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  exact.
//! Bound     memory: `8 * num_rows * width` bytes.

use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// One element a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `indices` and `out` hold that many; every index is a row of `x`.
/// 2. `out` overlaps nothing that is read.
#[kernel(launch_bounds(NUM_THREADS, 1))]
pub unsafe fn gather_rows_f32(
    num_rows: Global<u32>,
    indices: Global<u32>,
    width: u32,
    x: Global<f32>,
    x_stride: u32,
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
        let from = indices.get(row as usize) as usize * x_stride as usize;
        let to = row as usize * out_stride as usize;
        out.set(to + column as usize, x.get(from + column as usize));
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::GatherRows;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, gather_rows_f32};
    use crate::Rows;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Rows by index.
    #[derive(Clone, Copy, Debug)]
    pub struct GatherRows {
        /// Upper bound of the rows gathered.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    impl GatherRows {
        /// The launch, with `num_rows` the device's count of rows, or `None` if there is nothing to
        /// gather.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            indices: DevicePtr<u32>,
            x: Rows<f32>,
            out: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let grid = [self.max_rows, self.width.div_ceil(NUM_THREADS as usize), 1];
            let geometry = Geometry::new(grid, NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| {
                gather_rows_f32::launch(
                    geometry, num_rows, indices, width, x.ptr, x_stride, out.ptr, out_stride,
                )
            }))
        }
    }
}
