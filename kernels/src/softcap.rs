//! Soft caps: `x = cap * tanh(x / cap)`, of rows in place, and of scores in attention.
//!
//! Shapes    x `[num_rows, width]` f32 with a row stride.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32; `tanh(u) = 1 - 2 / (1 + exp(2 u))` by approximate exponential and reciprocal, near
//!           0 by a polynomial: within 1e-5 of the value, but of scores of 16-bit operands within
//!           3e-7 of the cap. The hardware's tanh is within 5e-4: with a cap of 50, 2e-2 in a score.
//!           Attention's scores become `tanh(softcap * score)`, where `softcap` is
//!           `softmax_scale / cap`; they are then scaled by the cap.
//! Bound     memory: a load and a store for each element.
//! Source    arXiv:2408.00118.

use crate::element::{Columns, VEC_ELEMS};
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// `tanh(x)`, within 1e-5 of the value.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    /// Below it `1 - 2 / (1 + exp(2 x))` loses digits.
    const SMALL: f32 = 0.0625;
    let square = x * x;
    let small = x * math::fma(math::fma(square, 2.0 / 15.0, -1.0 / 3.0), square, 1.0);
    if square < SMALL * SMALL { small } else { rough_tanh(x) }
}

/// `tanh(x)`, within 3e-7: enough of scores of 16-bit operands, where registers are short.
#[inline(always)]
pub(crate) fn rough_tanh(x: f32) -> f32 {
    let exponential = math::exp2_approx(x * (2.0 * LOG2_E));
    math::fma(-2.0, math::rcp_approx(1.0 + exponential), 1.0)
}

/// Eight elements a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `x` holds that many rows of `width` elements at their stride.
/// 2. `cap` is above 0. If `aligned` is not 0, all rows are 16-byte aligned.
#[kernel(launch_bounds(NUM_THREADS, 1), overlaps)]
pub unsafe fn softcap_rows(
    num_rows: Global<u32>,
    width: u32,
    x: GlobalMut<f32>,
    x_stride: u32,
    cap: f32,
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
        let row = x.add(row as usize * x_stride as usize);
        let reciprocal = math::rcp_approx(cap);
        let values = columns.load(row.as_global()).map(|x| cap * tanh(x * reciprocal));
        columns.store(row, values);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::SoftcapRows;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::{NUM_THREADS, softcap_rows};
    use crate::Rows;
    use crate::element::VEC_ELEMS;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// Caps of rows of f32.
    #[derive(Clone, Copy, Debug)]
    pub struct SoftcapRows {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
        /// What no element is larger than: above 0.
        pub cap: f32,
    }

    impl SoftcapRows {
        /// The launch, in place, or `None` if there is nothing to compute. `num_rows` points to the
        /// row count on the device.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch(
            &self,
            num_rows: DevicePtr<u32>,
            x: Rows<f32>,
        ) -> Result<Option<Launch>, LaunchError> {
            let (width, x_stride) = (arg_u32("width", self.width)?, x.stride_arg()?);
            let blocks = self.width.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            let (cap, aligned) = (self.cap, x.is_aligned().into());
            Ok(geometry.map(|geometry| {
                softcap_rows::Args { num_rows, width, x: x.ptr, x_stride, cap, aligned }
                    .launch(geometry)
            }))
        }
    }
}
