//! A gate of what a branch has made: `out[t, i] = sigmoid(gate[t, i]) * x[t, i]`, or of a whole row,
//! `sigmoid(gate[t, 0]) * x[t, i]`; or what is there plus that.
//!
//! Shapes    x, out `[num_rows, width]`, gate that or `[num_rows, 1]`, with row strides, all f32, f16
//!           or bf16; out may be x.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32 inside; exponential and reciprocal are approximate, within 3 ulp together; one
//!           rounding at the store.
//! Bound     memory: two loads and one store for each column.
//! Source    arXiv:2505.06708.

use crate::element::{Columns, Number, VEC_ELEMS};
use core::f32::consts::LOG2_E;
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// `1 / (1 + e^-x)`. For a very negative `x` the exponential is infinite and its reciprocal 0.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    math::rcp_approx(1.0 + math::exp2_approx(-x * LOG2_E))
}

/// Eight elements `E` a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `x` and `out` hold that many rows of `width` elements `E` at their
///    strides, `gate` as many or, if `is_of_rows` is not 0, one.
/// 2. `out` is `x` or overlaps neither. If `adds` is not 0, `out` is not `x`, and holds numbers.
/// 3. If `aligned` is not 0, all rows are 16-byte aligned, but those of a gate of rows.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(E in [f32, f16, bf16], sigmoid_gate_{E} = <E>)
)]
pub unsafe fn sigmoid_gate<E: Number>(
    num_rows: Global<u32>,
    width: u32,
    gate: Global<()>,
    gate_stride: u32,
    is_of_rows: u32,
    x: Global<()>,
    x_stride: u32,
    out: GlobalMut<()>,
    out_stride: u32,
    adds: u32,
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
        let gate = gate.cast::<E>().add(start(gate_stride));
        let mut values = columns.load(x.cast::<E>().add(start(x_stride)));
        let gates = match is_of_rows {
            0 => columns.load(gate),
            _ => [gate.get(0).to_f32(); VEC_ELEMS as usize],
        };
        for i in 0..VEC_ELEMS as usize {
            values[i] *= sigmoid(gates[i]);
        }
        let out = out.cast::<E>().add(start(out_stride));
        if adds != 0 {
            let terms = columns.load(out.as_global());
            for i in 0..VEC_ELEMS as usize {
                values[i] += terms[i];
            }
        }
        columns.store(out, values);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::SigmoidGate;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::NUM_THREADS;
    use super::sigmoid_gate::{self, Instance};
    use crate::Rows;
    use crate::element::{Number, VEC_ELEMS};
    use core::any::TypeId;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

    /// A gate of what a branch has made.
    #[derive(Clone, Copy, Debug)]
    pub struct SigmoidGate {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
        /// Whether a row has one gate, and not each of its columns.
        pub is_of_rows: bool,
        /// Whether the results are added to what `out` holds, which is not `x` then.
        pub adds: bool,
    }

    impl SigmoidGate {
        /// The launch, or `None` if there is nothing to compute. `num_rows` points to the row count
        /// on the device; `out` may be `x`.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<E: Number>(
            &self,
            num_rows: DevicePtr<u32>,
            gate: Rows<E>,
            x: Rows<E>,
            out: Rows<E>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            let (gate_stride, x_stride) = (gate.stride_arg()?, x.stride_arg()?);
            let out_stride = out.stride_arg()?;
            let blocks = self.width.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            let aligned =
                [x, out].iter().all(Rows::is_aligned) && (self.is_of_rows || gate.is_aligned());
            let is_it = |i: Instance| i.e() == TypeId::of::<E>();
            let instance = Instance::find(is_it).expect("instances of all types");
            Ok(geometry.map(|geometry| {
                sigmoid_gate::Args {
                    num_rows,
                    width,
                    gate: gate.untyped_ptr(),
                    gate_stride,
                    is_of_rows: self.is_of_rows.into(),
                    x: x.untyped_ptr(),
                    x_stride,
                    out: out.untyped_ptr(),
                    out_stride,
                    adds: self.adds.into(),
                    aligned: aligned.into(),
                }
                .launch(instance, geometry)
            }))
        }
    }
}
