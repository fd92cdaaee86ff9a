//! The launch of a linear layer of a prompt or a batch whose weight stays quantised.

use super::mma::{self, gemm_f16_prompt_mma};
use super::wgmma::{
    self,
    gemm_f16_prompt::{self, Instance},
};
use super::{BLOCK_COLUMNS, MMA_THREADS, num_rows_of};
use crate::Rows;
use crate::activation::{gate_arg, num_parts};
use crate::gemm::problem::{BiasAndResidual, tensor_map};
use crate::gemm::quantised::format::{TILE_K, UNIT_K};
use crate::gemm::quantised::packed::{check, instance_of};
use crate::gemm::quantised::{BlockFormat, QuantisedOperands};
use crate::gemm::{Gpu, Input16, Out16, SumOrder, Target};
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use gpu_types::Activation;
use half::f16;

/// Clocks of an SM for a block of 64 rows, and of 128: fixed, and for a tile along k. Measured, see
/// `docs/measurements/gemm_quantised_prompts.md`.
const CLOCKS_64: [usize; 2] = [10_000, 2800];
const CLOCKS_128: [usize; 2] = [8000, 3800];

/// A linear layer of any number of rows in f16 with a packed weight.
#[derive(Clone, Copy, Debug)]
pub struct QuantisedPrompt {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight, or half of them in a gated layer.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
    /// How the weight is packed.
    pub format: BlockFormat,
    /// As in [`QuantisedLinear`](super::super::QuantisedLinear).
    pub gate: Option<Activation>,
    /// The order of accumulation over k.
    pub order: SumOrder,
}

/// The parameters that both kernels have.
struct Params {
    num_rows: DevicePtr<u32>,
    n: u32,
    k: u32,
    gate: u32,
    weight: DevicePtr<u8>,
    terms: BiasAndResidual,
    out: DevicePtr<f16>,
    out_f32: DevicePtr<f32>,
    out_stride: u32,
}

impl QuantisedPrompt {
    /// Most rows for which it is faster than a dense copy of the weight and a GEMM with that: by
    /// measurement on Hopper (`docs/measurements/gemm_quantised_prompts.md`).
    pub const MAX_FAST_ROWS: usize = 512;

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns.
    ///
    /// # Errors
    /// [`LaunchError`] for a k that is no multiple of the format's blocks or 0, rows of x or a weight
    /// that are not 16-byte aligned, a residual with f16 outputs, a gate with f32 outputs, and sizes
    /// beyond a grid or a `u32`.
    pub fn launch(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &QuantisedOperands,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        let x = self.check(operands)?;
        if self.max_rows == 0 || self.n == 0 {
            return Ok(None);
        }
        let &QuantisedOperands { weight, bias, residual, out, .. } = operands;
        let (out, out_f32, out_stride) = out.args()?;
        let params = Params {
            num_rows,
            n: arg_u32("n", self.n)?,
            k: arg_u32("k", self.k)?,
            gate: gate_arg(self.gate),
            weight,
            terms: BiasAndResidual::new(bias, residual)?,
            out,
            out_f32,
            out_stride,
        };
        match gpu.target {
            Target::Sm90a => self.launch_wgmma(gpu.num_sms, x, &params, maps),
            Target::Sm80 => self.launch_mma(x, &params),
        }
    }

    fn launch_wgmma(
        &self,
        num_sms: usize,
        x: Rows<f16>,
        params: &Params,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        let instance = self.instance(num_sms)?;
        let box_rows = num_rows_of(instance.regs()) as usize;
        let (row_tiles, num_tiles) = self.tiles(box_rows);
        let grid = [num_tiles.saturating_mul(instance.split_k() as usize), 1, 1];
        let shared_bytes = wgmma::shared_bytes(instance.regs()) as usize;
        let geometry = Geometry::new(grid, wgmma::NUM_THREADS as usize, shared_bytes)?;
        let sizes = [self.max_rows, self.k];
        let x = maps(&tensor_map(&x, sizes, [box_rows, UNIT_K as usize]));
        Ok(geometry.map(|geometry| {
            gemm_f16_prompt::Args {
                num_rows: params.num_rows,
                n: params.n,
                k: params.k,
                row_tiles: row_tiles as u32,
                gate: params.gate,
                weight: params.weight,
                bias: params.terms.bias,
                residual: params.terms.residual,
                residual_stride: params.terms.residual_stride,
                out: params.out,
                out_f32: params.out_f32,
                out_stride: params.out_stride,
                x,
            }
            .launch(instance, geometry)
        }))
    }

    fn launch_mma(&self, x: Rows<f16>, params: &Params) -> Result<Option<Launch>, LaunchError> {
        let (row_tiles, num_tiles) = self.tiles(mma::BLOCK_ROWS as usize);
        let (num_threads, shared_bytes) = (MMA_THREADS as usize, mma::SHARED_BYTES as usize);
        let geometry = Geometry::new([num_tiles, 1, 1], num_threads, shared_bytes)?;
        let x_stride = x.stride_arg()?;
        let all = gemm_f16_prompt_mma::Instance::ALL;
        let instance = instance_of(self.format, all, gemm_f16_prompt_mma::Instance::f, |_| true)?;
        Ok(geometry.map(|geometry| {
            gemm_f16_prompt_mma::Args {
                num_rows: params.num_rows,
                n: params.n,
                k: params.k,
                row_tiles: row_tiles as u32,
                gate: params.gate,
                x: DevicePtr::new(x.ptr.0),
                x_stride,
                weight: params.weight,
                bias: params.terms.bias,
                residual: params.terms.residual,
                residual_stride: params.terms.residual_stride,
                out: params.out,
                out_f32: params.out_f32,
                out_stride: params.out_stride,
            }
            .launch(instance, geometry)
        }))
    }

    /// The rows of x, if there is a kernel.
    fn check(&self, operands: &QuantisedOperands) -> Result<Rows<f16>, LaunchError> {
        let refuse = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        let &QuantisedOperands { x, weight, residual, out, .. } = operands;
        if self.k == 0 {
            return refuse("k", 0, "at least one block");
        }
        check(self.format, self.n.saturating_mul(num_parts(self.gate)), self.k, weight)?;
        let Input16::Half(x) = x else {
            return refuse("norms", 1, "none for a prompt");
        };
        if !x.is_aligned() {
            return refuse("row stride", x.row_stride, "rows of x that are 16-byte aligned");
        }
        match out {
            Out16::Half(_) if residual.is_some() => refuse("output bits", 16, "32 with a residual"),
            Out16::F32(_) if self.gate.is_some() => refuse("output bits", 32, "16 with a gate"),
            _ => Ok(x),
        }
    }

    /// Tiles of `block_rows` along the rows of x, and all tiles.
    fn tiles(&self, block_rows: usize) -> (usize, usize) {
        let columns = BLOCK_COLUMNS as usize / num_parts(self.gate);
        let row_tiles = self.max_rows.div_ceil(block_rows);
        (row_tiles, row_tiles.saturating_mul(self.n.div_ceil(columns)))
    }

    /// The instance for Hopper under which the busiest SM ends first, if the order is free.
    fn instance(&self, num_sms: usize) -> Result<Instance, LaunchError> {
        let clocks = |instance: &Instance| {
            let block_rows = num_rows_of(instance.regs()) as usize;
            let (_, num_tiles) = self.tiles(block_rows);
            let waves = num_tiles.saturating_mul(instance.split_k() as usize).div_ceil(num_sms);
            let [fixed, of_tile] = if block_rows == 64 { CLOCKS_64 } else { CLOCKS_128 };
            let k_tiles = self.k.div_ceil(TILE_K as usize).div_ceil(instance.split_k() as usize);
            waves.saturating_mul(fixed + of_tile * k_tiles)
        };
        let [tiles, small_batch] = [self.split_instance(1)?, self.split_instance(2)?];
        Ok(match self.order {
            SumOrder::Fastest if clocks(&small_batch) < clocks(&tiles) => small_batch,
            SumOrder::Fastest | SumOrder::Tiles => tiles,
            SumOrder::SmallBatch => small_batch,
        })
    }

    /// The instance of the format that splits k into `split_k`.
    fn split_instance(&self, split_k: u32) -> Result<Instance, LaunchError> {
        let is_it = |i: Instance| i.split_k() == split_k;
        instance_of(self.format, Instance::ALL, Instance::f, is_it)
    }
}
