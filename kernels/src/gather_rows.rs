//! Gather of rows: `out[r, :] = scale * x[indices[r], :]`. It is the embedding, of the table by token
//! ids, and selects the hidden states whose logits are wanted, by `logit_rows`.
//!
//! Shapes    x `[*, width]` f32, f16 or bf16, out `[num_rows, width]` f32, with row strides;
//!           indices `[num_rows]`, some of which may be [`DRAWN`] tokens.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  one rounding to f32; exact with a scale of 1.
//! Bound     memory: `8 * num_rows * width` bytes from f32, 6 from 16 bits.

use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use gpu_types::DRAWN;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Index `row`, or the token that it stands for.
///
/// # Safety
/// 1. `indices` holds it; `drawn` holds the row of an index that is [`DRAWN`].
#[inline(always)]
pub(crate) unsafe fn index_of(indices: Global<u32>, drawn: Global<u32>, row: u32) -> u32 {
    // SAFETY: the caller's promise.
    unsafe {
        match indices.get(row as usize) {
            index if index & DRAWN != 0 => drawn.get((index & !DRAWN) as usize),
            index => index,
        }
    }
}

/// Eight elements `T` a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `indices` and `out` hold that many; every index is a row of `x`,
///    whose elements are `T`, or [`DRAWN`] and a place in `drawn`, which holds such a row.
/// 2. `out` overlaps nothing that is read.
/// 3. If `aligned` is not 0, the rows of `x` and `out` are 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(gather_rows_f32 = <f32>, gather_rows_f16_f32 = <f16>, gather_rows_bf16_f32 = <bf16>)
)]
pub unsafe fn gather_rows<T: Number>(
    num_rows: Global<u32>,
    indices: Global<u32>,
    drawn: Global<u32>,
    width: u32,
    x: Global<()>,
    x_stride: u32,
    out: GlobalMut<f32>,
    out_stride: u32,
    scale: f32,
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
        let from = index_of(indices, drawn, row) as usize * x_stride as usize;
        let to = row as usize * out_stride as usize;
        let values = columns.load(x.cast::<T>().add(from));
        columns.store(out.add(to), values.map(|value| value * scale));
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::GatherRows;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::gather_rows::Instance;
    use super::{NUM_THREADS, gather_rows};
    use crate::Rows;
    use crate::element::{Number, VEC_ELEMS};
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Gather of rows by index.
    #[derive(Clone, Copy, Debug)]
    pub struct GatherRows {
        /// Upper bound of the rows gathered.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
        /// Multiplies every element.
        pub scale: f32,
    }

    impl GatherRows {
        /// The launch, or `None` if there is nothing to gather. `num_rows` points to the row count
        /// on the device, `drawn` to the tokens that indices may stand for, if any does.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<T: Number>(
            &self,
            num_rows: DevicePtr<u32>,
            indices: DevicePtr<u32>,
            drawn: Option<DevicePtr<u32>>,
            x: Rows<T>,
            out: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            let (x_stride, out_stride) = (x.stride_arg()?, out.stride_arg()?);
            let blocks = self.width.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            let aligned = x.is_aligned() && out.is_aligned();
            let instance = T::choose([
                Instance::gather_rows_f32,
                Instance::gather_rows_f16_f32,
                Instance::gather_rows_bf16_f32,
            ]);
            Ok(geometry.map(|geometry| {
                gather_rows::Args {
                    num_rows,
                    indices,
                    drawn: drawn.unwrap_or(DevicePtr::null()),
                    width,
                    x: x.untyped_ptr(),
                    x_stride,
                    out: out.ptr,
                    out_stride,
                    scale: self.scale,
                    aligned: aligned.into(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
