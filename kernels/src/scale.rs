//! Products of rows and factors: `x[r, c] *= factors[0]`, or `x[r, c] *= factors[indices[r, c]]`.
//!
//! Shapes    x `[num_rows, width]` f32, indices alike u32, with row strides; factors `[n]` f32.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32: one product, rounded once.
//! Bound     memory: a load and a store for each element.

use crate::element::{Columns, VEC_ELEMS};
use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Eight elements a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `x` holds that many rows of `width` elements at their stride, and
///    so does `indices`, or is null. `factors` holds an element for each index, which no launch
///    writes.
/// 2. If `aligned` is not 0, all rows of `x` are 16-byte aligned.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn scale_rows(
    num_rows: Global<u32>,
    width: u32,
    x: GlobalMut<f32>,
    x_stride: u32,
    indices: Global<u32>,
    indices_stride: u32,
    factors: Global<f32>,
    aligned: u32,
) {
    let row = thread::block_idx_x();
    let column = (thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x()) * VEC_ELEMS;
    // SAFETY: one element each, which no launch of the step writes.
    let (num_rows, first) = unsafe { (num_rows.get(0), factors.get(0)) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    // SAFETY: `row` and `column` are inside, by the check here.
    unsafe {
        if row >= num_rows || column >= width {
            return;
        }
        let columns = Columns::new(column, width, aligned != 0);
        let row_x = x.add(row as usize * x_stride as usize);
        let mut values = columns.load(row_x.as_global());
        if indices.is_null() {
            values = values.map(|x| x * first);
        } else {
            let indices = indices.add(row as usize * indices_stride as usize);
            unroll!(i in 0..8, {
                let column = column + i as u32;
                if column < width {
                    values[i] *= factors.get(indices.get(column as usize) as usize);
                }
            });
        }
        columns.store(row_x, values);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::ScaleRows;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, scale_rows};
    use crate::Rows;
    use crate::element::VEC_ELEMS;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Products of rows of f32 and factors.
    #[derive(Clone, Copy, Debug)]
    pub struct ScaleRows {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    impl ScaleRows {
        /// The launch, in place, or `None` if there is nothing to compute. `num_rows` points to the
        /// row count on the device. Each element of `indices` is the index of that one's factor;
        /// without them all have the first.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<f32>,
            indices: Option<Rows<u32>>,
            factors: DevicePtr<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let indices = indices.unwrap_or(Rows::new(DevicePtr::null(), 0));
            let (width, x_stride) = (arg_u32("width", self.width)?, x.stride_arg()?);
            let indices_stride = indices.stride_arg()?;
            let blocks = self.width.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            let aligned = x.is_aligned().into();
            Ok(geometry.map(|geometry| {
                scale_rows::Args {
                    num_rows,
                    width,
                    x: x.ptr,
                    x_stride,
                    indices: indices.ptr,
                    indices_stride,
                    factors,
                    aligned,
                }
                .launch(geometry)
            }))
        }
    }
}
