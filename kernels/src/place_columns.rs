//! Columns in their place among those of all ranks: `out[r, first_column + c] = x[r, c]`, and zeros beside them. The sum
//! of the ranks' `out` is then all of their columns side by side.
//!
//! Shapes    x `[num_rows, width]`, out `[num_rows, out_width]`, f32, contiguous.
//! Launch    grid `(max_rows, out_width / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  exact.
//! Bound     memory: `4 * num_rows * (width + out_width)` bytes.

use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 256;

/// An element of out a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `x` and `out` hold that many rows, of `width` and of `out_width` elements, less than
///    2^32 in all; `first_column + width <= out_width`.
/// 2. `out` does not overlap `x`.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn place_columns(
    num_rows: Global<u32>,
    x: Global<f32>,
    width: u32,
    first_column: u32,
    out: GlobalMut<f32>,
    out_width: u32,
) {
    let row = thread::block_idx_x();
    let to = thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x();
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if row >= num_rows || to >= out_width {
        return;
    }
    // Columns before the first one wrap around, beyond the width.
    let from = to.wrapping_sub(first_column);
    // SAFETY: the row is inside, and `to`; so is `from`, where it is loaded.
    unsafe {
        let [value] = x.get_vec_if::<1>((row * width + from.min(width)) as usize, from < width);
        out.set((row * out_width + to) as usize, value);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::PlaceColumns;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, place_columns};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// A rank's columns among those of all.
    #[derive(Clone, Copy, Debug)]
    pub struct PlaceColumns {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// The rank's columns.
        pub width: usize,
        /// The first of them among those of all ranks.
        pub first_column: usize,
        /// Columns of all ranks together.
        pub out_width: usize,
    }

    impl PlaceColumns {
        /// The launch, or `None` for an empty `out`. `num_rows` points to the row count on the device.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`, and for columns that are not those of `out`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            x: DevicePtr<f32>,
            out: DevicePtr<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let &PlaceColumns { max_rows, width, first_column, out_width } = self;
            if first_column.saturating_add(width) > out_width {
                let expected = "one whose columns are inside";
                return Err(LaunchError::Shape {
                    what: "first column",
                    value: first_column,
                    expected,
                });
            }
            // All elements have an index.
            arg_u32("elements", max_rows.saturating_mul(out_width))?;
            let blocks = out_width.div_ceil(NUM_THREADS as usize);
            let geometry = Geometry::new([max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| {
                place_columns::Args {
                    num_rows,
                    x,
                    width: width as u32,
                    first_column: first_column as u32,
                    out,
                    out_width: out_width as u32,
                }
                .launch(geometry)
            }))
        }
    }
}
