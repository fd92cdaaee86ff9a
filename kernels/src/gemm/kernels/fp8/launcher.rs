//! The launch of the GEMM of 8-bit floats.

use super::gemm_e4m3_sm90::{self, Instance};
use super::{Fast, TwoLevel};
use crate::Rows;
use crate::gemm::config::{FP8_FAST_TILES, FP8_TWO_LEVEL_TILES, TileConfig};
use crate::gemm::epilogue::wgmma::OutElement;
use crate::gemm::fp8::WeightScales;
use crate::gemm::kernels::sm90::launcher::{geometry, output_map, promoted};
use crate::gemm::problem::{BiasAndResidual, MAX_SIZE, MAX_STRIDE, check_rows, refuse, tensor_map};
use crate::gemm::{Gpu, Out16, Target};
use crate::tile::element::Operand16;
use crate::tile::weight::SCALE_BLOCK;
use core::any::TypeId;
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};

/// How the products of 8-bit floats are accumulated over k.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fp8Accumulate {
    /// By 128 in the tensor cores, which keep about 14 bits, and the sums of these in f32.
    #[default]
    TwoLevel,
    /// All of k in the tensor cores: a relative error of about 2e-3 at k = 8192.
    Fast,
}

impl Fp8Accumulate {
    /// The type of the kernel's parameter.
    fn level(self) -> TypeId {
        match self {
            Fp8Accumulate::TwoLevel => TypeId::of::<TwoLevel>(),
            Fp8Accumulate::Fast => TypeId::of::<Fast>(),
        }
    }
}

/// A linear layer of 8-bit floats, both operands with scales: on sm_90a, for any number of rows.
/// The order of accumulation depends on k alone.
#[derive(Clone, Copy, Debug)]
pub struct LinearFp8 {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight.
    pub n: usize,
    /// Columns of the input and of the weight: a multiple of 16.
    pub k: usize,
    /// How outputs are accumulated.
    pub accumulate: Fp8Accumulate,
}

/// The operands of a linear layer of 8-bit floats, with memory for `max_rows` rows; outputs are
/// `E` or f32.
#[derive(Clone, Copy, Debug)]
pub struct LinearFp8Operands<E> {
    /// `[max_rows, k]`.
    pub x: Rows<E4m3>,
    /// Scales of the rows of `x`: `[max_rows]`.
    pub x_scales: DevicePtr<f32>,
    /// `[n, k]`.
    pub weight: Rows<E4m3>,
    /// Scales of the weight.
    pub weight_scales: WeightScales,
    /// `[n]`.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, for f32 outputs only.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`.
    pub out: Out16<E>,
}

impl LinearFp8 {
    /// The tiles of the kernels that accumulate in this way.
    #[must_use]
    pub fn tiles(accumulate: Fp8Accumulate) -> &'static [TileConfig] {
        match accumulate {
            Fp8Accumulate::TwoLevel => &FP8_TWO_LEVEL_TILES,
            Fp8Accumulate::Fast => &FP8_FAST_TILES,
        }
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` encodes tensor maps.
    ///
    /// # Errors
    /// [`LaunchError`] for another target than sm_90a, a k that is no multiple of 16, operands whose
    /// rows are not 16-byte aligned, a residual with 16-bit outputs, scales of blocks with
    /// [`Fp8Accumulate::Fast`], and sizes beyond a grid or an `i32`.
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &LinearFp8Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        if gpu.target != Target::Sm90a {
            return refuse("compute capability", 80, "9.0 for 8-bit floats");
        }
        let config = self.fastest(gpu.num_sms);
        self.launch_in(config, gpu.num_sms, num_rows, operands, maps)
    }

    /// As [`LinearFp8::launch`], in one of the [`LinearFp8::tiles`].
    ///
    /// # Errors
    /// As there.
    pub fn launch_in<E: Operand16>(
        &self,
        config: &TileConfig,
        num_sms: usize,
        num_rows: DevicePtr<u32>,
        operands: &LinearFp8Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        let &LinearFp8 { max_rows, n, k, .. } = self;
        let Some(geometry) = geometry(config, [max_rows, n], num_sms)? else { return Ok(None) };
        let [block_m, block_n] = config.block;
        let [cluster_m, cluster_n] = config.cluster;
        let block_k = SCALE_BLOCK as usize;
        let a = tensor_map(&operands.x, [max_rows, k], [block_m / cluster_n, block_k]);
        let b = tensor_map(&operands.weight, [n, k], [block_n / cluster_m, block_k]);
        let operand_maps = [a, b].map(|spec| maps(&promoted(spec)));
        let launch = match &operands.out {
            Out16::F32(out) => {
                let out = (out, EncodedTensorMap::NONE);
                self.launch_to(config, geometry, num_rows, operands, operand_maps, out)
            }
            Out16::Half(out) => {
                let out = (out, output_map(out, [max_rows, n], maps));
                self.launch_to(config, geometry, num_rows, operands, operand_maps, out)
            }
        };
        launch.map(Some)
    }

    /// As [`LinearFp8::launch_in`], with outputs `O`.
    fn launch_to<E: Operand16, O: OutElement>(
        &self,
        config: &TileConfig,
        geometry: Geometry,
        num_rows: DevicePtr<u32>,
        operands: &LinearFp8Operands<E>,
        [a, b]: [EncodedTensorMap; 2],
        (out, out_map): (&Rows<O>, EncodedTensorMap),
    ) -> Result<Launch, LaunchError> {
        let types = (config.tile, self.accumulate.level(), TypeId::of::<O>());
        let is_it = |instance: Instance| (instance.t(), instance.l(), instance.o()) == types;
        let Some(instance) = Instance::find(is_it) else {
            return refuse("tile rows", config.block[0], "a tile of this accumulation");
        };
        let BiasAndResidual { bias, residual, residual_stride } =
            BiasAndResidual::new(operands.bias, operands.residual)?;
        let (row_scales, block_scales) = match operands.weight_scales {
            WeightScales::Rows(scales) => (scales, DevicePtr::null()),
            WeightScales::Blocks(scales) => (DevicePtr::null(), scales),
        };
        let args = gemm_e4m3_sm90::Args {
            num_rows,
            max_rows: self.max_rows as u32,
            n: self.n as u32,
            k: self.k as u32,
            x_scales: operands.x_scales,
            row_scales,
            block_scales,
            bias,
            residual,
            residual_stride,
            out: out.ptr,
            out_stride: out.stride_arg()?,
            a,
            b,
            out_map,
        };
        Ok(args.launch(instance, geometry))
    }

    /// Refuses what no kernel computes.
    fn check<E>(&self, operands: &LinearFp8Operands<E>) -> Result<(), LaunchError> {
        let LinearFp8Operands { x, weight, weight_scales, residual, out, .. } = operands;
        for (what, value) in [("rows", self.max_rows), ("n", self.n), ("k", self.k)] {
            if value > MAX_SIZE {
                return refuse(what, value, "at most 2147483135");
            }
        }
        if self.k == 0 || !self.k.is_multiple_of(16) {
            return refuse("k", self.k, "a multiple of 16");
        }
        if self.accumulate == Fp8Accumulate::Fast
            && matches!(weight_scales, WeightScales::Blocks(_))
        {
            let expected = "one a row where all of k is accumulated in the tensor cores";
            return refuse("rows of a weight scale", SCALE_BLOCK as usize, expected);
        }
        check_rows(x)?;
        check_rows(weight)?;
        let out_stride = match out {
            Out16::Half(_) if residual.is_some() => {
                return refuse("output bits", 16, "32 where a residual is added");
            }
            Out16::Half(out) => out.row_stride,
            Out16::F32(out) => out.row_stride,
        };
        let residual_stride = residual.map_or(0, |residual| residual.row_stride);
        for stride in [x.row_stride, weight.row_stride, out_stride, residual_stride] {
            if stride > MAX_STRIDE {
                return refuse("row stride", stride, "at most 1073741823");
            }
        }
        Ok(())
    }
}
