//! The epilogue of a linear layer whose GEMM a library computes:
//! `out[t, n] = product[t, n] (+ bias[n]) (+ residual[t, n])`.
//!
//! Shapes    product f32 or f16, residual f32, out f32, f16 or bf16, `[num_rows, width]` with row
//!           strides; bias `[width]` f32; out may be product or residual.
//! Launch    grid `(max_rows, width / 8 / NUM_THREADS, 1)`, block `(NUM_THREADS, 1, 1)`.
//! Numerics  additions in f32, one rounding at the store.
//! Bound     memory: an element of product, residual and out for each output.

use crate::element::{Columns, Number, VEC_ELEMS as VECTOR};
use crate::gemm::epilogue::{Epilogue, Matrix};
use cuda_std::prelude::*;
use half::{bf16, f16};

/// Threads of a block.
const NUM_THREADS: u32 = 128;

/// Eight outputs a thread, of type `E`, from a matrix product of type `P`.
///
/// # Safety
/// 1. `num_rows` is one element; `product` and `out` hold that many rows of `width` elements `P`
///    and `E` at their strides; `bias` and `residual` are null or hold as much as `out`.
/// 2. `out` is `product`, of the same type, or is `residual`, or overlaps nothing that is read.
/// 3. If `aligned` is not 0, `bias` and all rows are 16-byte aligned.
#[kernel(
    launch_bounds(NUM_THREADS, 1),
    overlaps,
    instances(
        gemm_epilogue_f32 = <f32, f32>,
        gemm_epilogue_f32_f16 = <f32, f16>,
        gemm_epilogue_f32_bf16 = <f32, bf16>,
        gemm_epilogue_f16_f32 = <f16, f32>,
        gemm_epilogue_f16 = <f16, f16>,
        gemm_epilogue_bf16_f32 = <bf16, f32>
    )
)]
pub unsafe fn gemm_epilogue<P: Number, E: Number>(
    num_rows: Global<u32>,
    width: u32,
    product: Global<P>,
    product_stride: u32,
    bias: Global<f32>,
    residual: Global<f32>,
    residual_stride: u32,
    out: GlobalMut<E>,
    out_stride: u32,
    aligned: u32,
) {
    let row = thread::block_idx_x();
    let column = (thread::block_idx_y() * NUM_THREADS + thread::thread_idx_x()) * VECTOR;
    // SAFETY: one element, a step input: no launch of the step writes it.
    let num_rows = unsafe { num_rows.get(0) };
    grid::wait_for_dependencies();
    grid::launch_dependents();
    if row >= num_rows || column >= width {
        return;
    }
    let columns = Columns::new(column, width, aligned != 0);
    let product = Matrix { ptr: product, row_stride: product_stride };
    let residual = Matrix { ptr: residual, row_stride: residual_stride };
    let out = Matrix { ptr: out, row_stride: out_stride };
    let epilogue = Epilogue { num_rows, n: width, bias, residual, out };
    // SAFETY: `row` and `column` are inside, by the check.
    unsafe {
        let values = columns.load(product.ptr.add(product.at(row, 0)));
        epilogue.finish_columns(row, columns, values);
    }
}

#[cfg(not(target_arch = "nvptx64"))]
pub use launcher::{GemmEpilogue, GemmEpilogueOperands, OutputOf};

#[cfg(not(target_arch = "nvptx64"))]
mod launcher {
    use super::gemm_epilogue::Instance;
    use super::{NUM_THREADS, gemm_epilogue};
    use crate::Rows;
    use crate::element::{Number, VEC_ELEMS as VECTOR};
    use crate::gemm::problem::BiasAndResidual;
    use crate::operand::is_aligned;
    use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
    use half::{bf16, f16};

    /// The epilogue of a linear layer.
    #[derive(Clone, Copy, Debug)]
    pub struct GemmEpilogue {
        /// Upper bound of the rows.
        pub max_rows: usize,
        /// Columns of a row.
        pub width: usize,
    }

    /// The operands of [`GemmEpilogue`], with memory for `max_rows` rows.
    #[derive(Clone, Copy, Debug)]
    pub struct GemmEpilogueOperands<P, E> {
        /// `[max_rows, width]`.
        pub product: Rows<P>,
        /// `[width]`.
        pub bias: Option<DevicePtr<f32>>,
        /// `[max_rows, width]`.
        pub residual: Option<Rows<f32>>,
        /// `[max_rows, width]`; may be the product or the residual.
        pub out: Rows<E>,
    }

    /// An output type of a matrix product of type `P`.
    pub trait OutputOf<P>: Number {
        /// The instance for both types.
        #[doc(hidden)]
        const INSTANCE: Instance;
    }

    macro_rules! outputs {
        ($($out:ty, of $product:ty: $instance:ident;)*) => {$(
            impl OutputOf<$product> for $out {
                const INSTANCE: Instance = Instance::$instance;
            }
        )*};
    }

    outputs! {
        f32, of f32: gemm_epilogue_f32;
        f16, of f32: gemm_epilogue_f32_f16;
        bf16, of f32: gemm_epilogue_f32_bf16;
        f32, of f16: gemm_epilogue_f16_f32;
        f16, of f16: gemm_epilogue_f16;
        f32, of bf16: gemm_epilogue_bf16_f32;
    }

    impl GemmEpilogue {
        /// The launch, with `num_rows` the device's count of rows, or `None` if there is nothing to
        /// compute.
        ///
        /// # Errors
        /// [`LaunchError`] for sizes beyond a grid or a `u32`.
        pub fn launch<P: Number, E: OutputOf<P>>(
            &self,
            num_rows: DevicePtr<u32>,
            operands: &GemmEpilogueOperands<P, E>,
        ) -> Result<Option<Launch>, LaunchError> {
            let GemmEpilogueOperands { product, bias, residual, out } = operands;
            let aligned = product.is_aligned()
                && bias.is_none_or(is_aligned)
                && residual.is_none_or(|residual| residual.is_aligned())
                && out.is_aligned();
            let BiasAndResidual { bias, residual, residual_stride } =
                BiasAndResidual::new(*bias, *residual)?;
            let args = gemm_epilogue::Args {
                num_rows,
                width: arg_u32("width", self.width)?,
                product: product.ptr,
                product_stride: product.stride_arg()?,
                bias,
                residual,
                residual_stride,
                out: out.ptr,
                out_stride: out.stride_arg()?,
                aligned: aligned.into(),
            };
            let blocks = self.width.div_ceil((VECTOR * NUM_THREADS) as usize);
            let geometry = Geometry::new([self.max_rows, blocks, 1], NUM_THREADS as usize, 0)?;
            Ok(geometry.map(|geometry| args.launch(E::INSTANCE, geometry)))
        }
    }
}
