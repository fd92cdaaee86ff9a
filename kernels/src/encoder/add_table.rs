//! Learned positions: `x[t, :] += table[indices[t], :]`.
//!
//! Shapes    x `[num_rows, width]` f32 with a row stride; table `[*, width]` f32; indices
//!           `[num_rows]`.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32.
//! Bound     memory: two loads and one store for each column.
//! Source    arXiv:1810.04805.

use crate::element::{Columns, VEC_ELEMS};
use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Eight elements a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `indices` and `x` hold that many; every index is a row of `table`.
/// 2. `x` overlaps nothing else. If `aligned` is not 0, all rows are 16-byte aligned.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn add_table_f32(
    num_rows: Global<u32>,
    indices: Global<u32>,
    width: u32,
    table: Global<f32>,
    x: GlobalMut<f32>,
    x_stride: u32,
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
        let x = x.add(row as usize * x_stride as usize);
        let from = indices.get(row as usize) as usize * width as usize;
        let (mut values, added) = (columns.load(x.as_global()), columns.load(table.add(from)));
        for i in 0..VEC_ELEMS as usize {
            values[i] += added[i];
        }
        columns.store(x, values);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::AddTable;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, add_table_f32};
    use crate::Rows;
    use crate::element::VEC_ELEMS;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Rows of a table, added to others.
    #[derive(Clone, Copy, Debug)]
    pub struct AddTable {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    impl AddTable {
        /// The launch, in place, or `None` if there is nothing to compute. `num_rows` points to the
        /// row count on the device.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            indices: DevicePtr<u32>,
            table: DevicePtr<f32>,
            x: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let (width, x_stride) = (arg_u32("width", self.width)?, x.stride_arg()?);
            let blocks = self.width.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            let aligned = x.is_aligned() && Rows::new(table, self.width).is_aligned();
            Ok(geometry.map(|geometry| {
                let (x, aligned) = (x.ptr, aligned.into());
                add_table_f32::Args { num_rows, indices, width, table, x, x_stride, aligned }
                    .launch(geometry)
            }))
        }
    }
}
