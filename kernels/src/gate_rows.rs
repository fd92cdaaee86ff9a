//! The gate of a feed-forward layer: `out[t, i] = activation(gate[t, i]) * up[t, i]`.
//!
//! Shapes    gate, up, out `[num_rows, width]` with row strides, all f32, f16 or bf16; out may be
//!           gate or up.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  f32 inside; exponential and reciprocal are approximate, within 3 ulp together; one
//!           rounding at the store. In f16 the result is clamped to 65,504, so that one overflow
//!           does not make a row infinite; NaN stays.
//! Bound     memory: two loads and one store for each column.
//! Source    arXiv:2002.05202.

use crate::activation::{Gate, ROW_GATES};
use crate::element::{Columns, Number, VEC_ELEMS};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Eight elements `E` a thread.
///
/// # Safety
/// 1. `num_rows` is one element; `gate`, `up` and `out` hold that many rows of `width` elements `E`
///    at their strides.
/// 2. `out` is `gate`, is `up`, or overlaps neither.
/// 3. If `aligned` is not 0, all rows are 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(A in ROW_GATES, E in [f32, f16, bf16], {A}_mul_{E} = <E, A>)
)]
pub unsafe fn gate_rows<E: Number, A: Gate>(
    num_rows: Global<u32>,
    width: u32,
    gate: Global<()>,
    gate_stride: u32,
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
        let gate = columns.load(gate.cast::<E>().add(start(gate_stride)));
        let up = columns.load(up.cast::<E>().add(start(up_stride)));
        let mut values = [0.0; VEC_ELEMS as usize];
        for i in 0..VEC_ELEMS as usize {
            values[i] = A::apply::<E>(gate[i], up[i]);
        }
        columns.store(out.cast::<E>().add(start(out_stride)), values);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::GateRows;

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::NUM_THREADS;
    use super::gate_rows::{self, Instance};
    use crate::Rows;
    use crate::activation::gate_of;
    use crate::element::{Number, VEC_ELEMS};
    use core::any::TypeId;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
    use gpu_types::Activation;

    /// The gate of a feed-forward layer.
    #[derive(Clone, Copy, Debug)]
    pub struct GateRows {
        /// What `gate` goes through.
        pub activation: Activation,
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    impl GateRows {
        /// The launch, or `None` if there is nothing to compute. `num_rows` points to the row count
        /// on the device.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<E: Number>(
            &self,
            num_rows: DevicePtr<u32>,
            gate: Rows<E>,
            up: Rows<E>,
            out: Rows<E>,
        ) -> Result<Option<Launch>, LaunchError> {
            let width = arg_u32("width", self.width)?;
            let (gate_stride, up_stride) = (gate.stride_arg()?, up.stride_arg()?);
            let out_stride = out.stride_arg()?;
            let blocks = self.width.div_ceil((VEC_ELEMS * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            let aligned = [gate, up, out].iter().all(Rows::is_aligned);
            let gate_type = Some(self.activation);
            let is_it = |i: Instance| i.e() == TypeId::of::<E>() && gate_of(i.a()) == gate_type;
            let instance = Instance::find(is_it).expect("instances of all gates");
            Ok(geometry.map(|geometry| {
                gate_rows::Args {
                    num_rows,
                    width,
                    gate: gate.untyped_ptr(),
                    gate_stride,
                    up: up.untyped_ptr(),
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
