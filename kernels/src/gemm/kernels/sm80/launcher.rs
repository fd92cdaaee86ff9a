//! The launch of the GEMM for sm_80.

use super::gemm_sm80::{self, Instance};
use crate::Rows;
use crate::gemm::config::TileConfig;
use crate::gemm::problem::BiasAndResidual;
use crate::gemm::{Linear16, Linear16Operands, Out16};
use crate::tile::element::Operand16;
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

use crate::gemm::epilogue::mma::Output;

/// The launch in a configuration of [`MMA_TILES`](crate::gemm::config::MMA_TILES), with `num_rows`
/// the device's count of rows, or `None` if there are no rows or no columns.
///
/// # Errors
/// [`LaunchError`] for a fused norm or gate, for f16 accumulators of bf16 operands, and for sizes
/// beyond a grid or a `u32`. [`Linear16::launch`] has refused other operands.
pub fn launch<E: Operand16>(
    config: &TileConfig,
    linear: &Linear16,
    num_rows: DevicePtr<u32>,
    operands: &Linear16Operands<E>,
) -> Result<Option<Launch>, LaunchError> {
    match &operands.out {
        Out16::Half(out) => launch_to(config, linear, num_rows, operands, out),
        Out16::F32(out) => launch_to(config, linear, num_rows, operands, out),
    }
}

/// As [`launch`], with outputs `O`.
fn launch_to<E: Operand16, O: Output>(
    config: &TileConfig,
    linear: &Linear16,
    num_rows: DevicePtr<u32>,
    operands: &Linear16Operands<E>,
    out: &Rows<O>,
) -> Result<Option<Launch>, LaunchError> {
    let x = linear.plain_input(operands)?;
    let Linear16Operands { weight, bias, residual, .. } = operands;
    let types = (config.tile, TypeId::of::<E>(), TypeId::of::<O>(), config.accumulator());
    let is_it =
        |instance: Instance| (instance.t(), instance.e(), instance.o(), instance.s()) == types;
    let instance = Instance::find(is_it).ok_or(Linear16::F16_ACCUMULATORS_OF_BF16)?;
    let BiasAndResidual { bias, residual, residual_stride } =
        BiasAndResidual::new(*bias, *residual)?;
    let args = gemm_sm80::Args {
        m: num_rows,
        n: arg_u32("n", linear.n)?,
        k: arg_u32("k", linear.k)?,
        a: x.ptr,
        a_stride: x.stride_arg()?,
        b: weight.ptr,
        b_stride: weight.stride_arg()?,
        bias,
        residual,
        residual_stride,
        out: out.ptr,
        out_stride: out.stride_arg()?,
    };
    let [tiles_m, tiles_n] = config.clusters([linear.max_rows, linear.n]);
    let grid = [tiles_m.saturating_mul(tiles_n), 1, 1];
    let geometry = Geometry::new(grid, config.num_threads, config.shared_bytes)?;
    Ok(geometry.map(|geometry| args.launch(instance, geometry)))
}
