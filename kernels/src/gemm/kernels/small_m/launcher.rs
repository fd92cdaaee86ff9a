//! The choice of an instance for a small-batch linear layer, and its launch.

use super::MAX_TILES_M;
use super::gemm_16_small_m::{self, Instance};
use crate::Rows;
use crate::activation::{gate_of, num_parts};
use crate::gemm::epilogue::stream::{max_columns, num_partials};
use crate::gemm::kernels::streamed::gemm_16_streamed::Instance as StreamedInstance;
use crate::gemm::mainloop::stream::{K_PER_LOAD, TILE_MN};
use crate::gemm::operand::normed;
use crate::gemm::problem::{BiasAndResidual, ScaleParams, refuse};
use crate::gemm::{Gpu, Input16, Linear16, Linear16Operands, MAX_FUSED_ROWS, Target};
use crate::tile::element::Operand16;
use crate::tile::weight::WeightElement;
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use cuda_std::warp::WARP_SIZE;
use gpu_types::Activation;

/// Columns up to which 16 warps split k: two blocks of eight columns for each SM, which fill it.
const fn narrow_n(num_sms: usize) -> usize {
    2 * num_sms * TILE_MN as usize
}

/// From this many weight rows on, a block of one row of x takes 32 columns instead of 8
/// (`docs/measurements/gemm_small_m.md`). For eight rows 32 are never slower.
const WIDE_N: usize = 9600;

/// Most shared memory of a block on every device of the targets.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// Most 16-byte loads of an operand: a lane indexes them by `u32`.
const MAX_LOADS: usize = i32::MAX as usize;

/// Shared memory of a block: the partial sums, then the normed rows `(max_rows, k, vecs)`, if any.
const fn shared_bytes(
    tiles: [usize; 2],
    num_parts: usize,
    warps: usize,
    normed: Option<(usize, u32, usize)>,
) -> usize {
    let partials = num_partials(tiles[0], tiles[1], num_parts, warps) as usize * size_of::<f32>();
    match normed {
        Some((max_rows, k, vecs)) => partials + normed::shared_bytes(max_rows, k, vecs),
        None => partials,
    }
}

/// The parameters of an instance.
#[derive(Clone, Copy)]
pub struct InstanceParams {
    element: TypeId,
    weight: TypeId,
    pub tiles_m: usize,
    pub tiles_n: usize,
    pub warps: usize,
    /// Whether it has a norm, and its gate.
    pub fused: (bool, Option<Activation>),
}

impl InstanceParams {
    /// Parts of the weight.
    pub fn num_parts(&self) -> usize {
        num_parts(self.fused.1)
    }

    /// Rows of a block.
    fn block_m(&self) -> usize {
        self.tiles_m * TILE_MN as usize
    }

    /// Most rows: those of one block, or any.
    fn max_rows(&self) -> usize {
        if self.tiles_m == MAX_TILES_M { usize::MAX } else { self.block_m() }
    }
}

macro_rules! params_of {
    ($($instance:ident),*) => {$(
        impl From<$instance> for InstanceParams {
            fn from(instance: $instance) -> Self {
                InstanceParams {
                    element: instance.e(),
                    weight: instance.w(),
                    tiles_m: instance.tiles_m(),
                    tiles_n: instance.tiles_n(),
                    warps: instance.warps(),
                    fused: (instance.normed(), gate_of(instance.a())),
                }
            }
        }
    )*};
}

params_of!(Instance, StreamedInstance);

pub fn is_normed<E, W>(operands: &Linear16Operands<E, W>) -> bool {
    matches!(operands.x, Input16::Normed { .. })
}

/// Kernel parameters: x and its norm.
pub struct InputParams {
    pub x: DevicePtr<()>,
    pub x_stride: u32,
    pub norm_weight: DevicePtr<f32>,
    pub eps: f32,
}

/// The parameters that both kernels take.
pub struct KernelParams<E> {
    pub n: u32,
    pub k: u32,
    pub input: InputParams,
    pub weight_stride: u32,
    pub terms: BiasAndResidual,
    pub out: DevicePtr<E>,
    pub out_f32: DevicePtr<f32>,
    pub out_stride: u32,
}

/// A small-batch linear layer of 16-bit elements.
#[derive(Clone, Copy, Debug)]
pub struct SmallM16(pub Linear16);

impl SmallM16 {
    /// Most rows that read the weight once; more do in [`SumOrder::SmallBatch`] alone.
    ///
    /// [`SumOrder::SmallBatch`]: crate::gemm::SumOrder::SmallBatch
    pub const MAX_ROWS: usize = MAX_TILES_M * TILE_MN as usize;

    /// Whether a gate, a norm or both can be fused with layers of up to `max_rows` rows of `k`
    /// columns: normed rows must fit in shared memory. Up to k = 5,120 all [`MAX_FUSED_ROWS`] do,
    /// at 8,192 five.
    pub const fn fuses(max_rows: usize, k: usize, normed: bool) -> bool {
        Self::fuses_loads(max_rows, k, normed, 1)
    }

    /// [`SmallM16::fuses`] of a weight with `vecs` loads of x a load of its own.
    pub(in crate::gemm) const fn fuses_loads(
        max_rows: usize,
        k: usize,
        normed: bool,
        vecs: usize,
    ) -> bool {
        let is_small = max_rows <= MAX_FUSED_ROWS && k > 0 && k <= i32::MAX as usize;
        let normed_rows = if normed { Some((max_rows, k as u32, vecs)) } else { None };
        // The instance with the most partial sums.
        is_small && shared_bytes([1, 4], 1, 8, normed_rows) <= MAX_SHARED_BYTES
    }

    /// The launch, or `None` if there are no rows or no columns. `num_rows` points to the row count
    /// on the device; `maps` encodes tensor maps.
    ///
    /// # Errors
    /// As [`Linear16::launch`]; also for operands of more than 32 GiB.
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        if gpu.target == Target::Sm90a && self.is_streamed() {
            self.launch_streamed(gpu, num_rows, operands, maps)
        } else {
            self.0.check(operands)?;
            let instance = self.choose(gpu.num_sms, operands)?;
            self.launch_instance(instance, num_rows, operands)
        }
    }

    /// The launch of the given instance, to compare instances.
    ///
    /// # Errors
    /// As [`SmallM16::launch`]; also for more rows than the instance has.
    ///
    /// # Panics
    /// If the instance has another element type, or fuses other operations.
    pub fn launch_instance<E: Operand16>(
        &self,
        instance: Instance,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        self.launch_scaled(instance, num_rows, operands, ScaleParams::NONE)
    }

    /// [`SmallM16::launch_instance`] with a weight in `W`.
    pub(in crate::gemm) fn launch_scaled<E: Operand16, W: WeightElement<E>>(
        &self,
        instance: Instance,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E, W>,
        scales: ScaleParams,
    ) -> Result<Option<Launch>, LaunchError> {
        self.0.check(operands)?;
        let params = InstanceParams::from(instance);
        let Some(KernelParams { n, k, input, weight_stride, terms, out, out_f32, out_stride }) =
            self.kernel_params(&params, operands)?
        else {
            return Ok(None);
        };
        let args = gemm_16_small_m::Args {
            num_rows,
            max_rows: self.0.max_rows as u32,
            n,
            k,
            x: input.x,
            x_stride: input.x_stride,
            norm_weight: input.norm_weight,
            k_reciprocal: 1.0 / k as f32,
            eps: input.eps,
            weight: operands.weight.ptr,
            weight_stride,
            scales: scales.ptr,
            scale_stride: scales.stride,
            bias: terms.bias,
            residual: terms.residual,
            residual_stride: terms.residual_stride,
            out,
            out_f32,
            out_stride,
        };
        let geometry = self.geometry(&params, W::VECS)?;
        Ok(geometry.map(|geometry| args.launch(instance, geometry)))
    }

    /// The parameters of both kernels, or `None` if there are no outputs.
    pub(in crate::gemm) fn kernel_params<E: Operand16, W: WeightElement<E>>(
        &self,
        params: &InstanceParams,
        operands: &Linear16Operands<E, W>,
    ) -> Result<Option<KernelParams<E>>, LaunchError> {
        assert!(params.fused == (is_normed(operands), self.0.gate), "what the instance fuses");
        if self.0.max_rows > params.max_rows() {
            return refuse("rows", self.0.max_rows, "at most the instance's");
        }
        let weight = &operands.weight;
        let weight_stride = Self::stride("row stride of the weight", weight, self.0.weight_rows())?;
        let (out, out_f32, out_stride) = operands.out.args()?;
        let kernel_params = KernelParams {
            n: arg_u32("n", self.0.n)?,
            k: arg_u32("k", self.0.k)?,
            input: self.input(operands)?,
            weight_stride,
            terms: BiasAndResidual::new(operands.bias, operands.residual)?,
            out,
            out_f32,
            out_stride,
        };
        Ok((self.0.max_rows > 0 && self.0.n > 0).then_some(kernel_params))
    }

    /// The instances of a kernel that can compute the layer. The number of warps decides the
    /// summation order, so it must not depend on m, on what is fused, or on how the weight is
    /// loaded.
    pub(in crate::gemm) fn instances<E, W, I>(
        &self,
        all: &[I],
        num_sms: usize,
        operands: &Linear16Operands<E, W>,
    ) -> impl Iterator<Item = (I, InstanceParams)>
    where
        E: Operand16,
        W: WeightElement<E>,
        I: Copy + Into<InstanceParams>,
    {
        let is_narrow = self.0.weight_rows() <= narrow_n(num_sms) && W::VECS == 1;
        let warps = if is_narrow { 16 } else { 8 };
        let fused = (is_normed(operands), self.0.gate);
        let max_rows = self.0.max_rows;
        let all = all.iter().map(|&instance| (instance, instance.into()));
        all.filter(move |(_, params): &(I, InstanceParams)| {
            params.element == TypeId::of::<E>()
                && params.weight == TypeId::of::<W>()
                && params.fused == fused
                && params.warps == warps
                && max_rows <= params.max_rows()
        })
    }

    pub(in crate::gemm) fn too_many_rows<T>(&self) -> Result<T, LaunchError> {
        refuse("rows", self.0.max_rows, "at most 8 with a norm or a gate, 16 with a weight in FP8")
    }

    pub(in crate::gemm) fn choose<E: Operand16, W: WeightElement<E>>(
        &self,
        num_sms: usize,
        operands: &Linear16Operands<E, W>,
    ) -> Result<Instance, LaunchError> {
        let weight_rows = self.0.weight_rows();
        let is_wide =
            weight_rows > narrow_n(num_sms) && (self.0.max_rows > 1 || weight_rows >= WIDE_N);
        let tiles_n = match (self.0.gate.is_some(), is_wide) {
            // With a gate, 16 columns of gate and of up are slower than 8 and 8.
            (true, _) => 2,
            (false, true) => 4,
            (false, false) => 1,
        };
        let mut instances = self.instances(Instance::ALL, num_sms, operands);
        let instance = instances.find(|(_, params)| params.tiles_n == tiles_n);
        instance.map_or_else(|| self.too_many_rows(), |(instance, _)| Ok(instance))
    }

    fn input<E: Operand16, W: WeightElement<E>>(
        &self,
        operands: &Linear16Operands<E, W>,
    ) -> Result<InputParams, LaunchError> {
        let what = "row stride of x";
        match operands.x {
            Input16::Half(x) => Ok(InputParams {
                x: x.untyped_ptr(),
                x_stride: Self::stride(what, &x, self.0.max_rows)?,
                norm_weight: DevicePtr::null(),
                eps: 0.0,
            }),
            Input16::Normed { .. }
                if !Self::fuses_loads(self.0.max_rows, self.0.k, true, W::VECS) =>
            {
                refuse("k", self.0.k, "columns whose normed rows fit into shared memory")
            }
            Input16::Normed { x, weight, eps } => Ok(InputParams {
                x: x.untyped_ptr(),
                x_stride: Self::stride(what, &x, self.0.max_rows)?,
                norm_weight: weight,
                eps,
            }),
        }
    }

    fn geometry(
        &self,
        params: &InstanceParams,
        vecs: usize,
    ) -> Result<Option<Geometry>, LaunchError> {
        let &InstanceParams { tiles_m, tiles_n, warps, fused: (is_normed, _), .. } = params;
        let block_n = max_columns(tiles_n, params.num_parts()) as usize;
        let normed = (self.0.max_rows, arg_u32("k", self.0.k)?, vecs);
        let normed = is_normed.then_some(normed);
        let shared_bytes = shared_bytes([tiles_m, tiles_n], params.num_parts(), warps, normed);
        let num_threads = warps * WARP_SIZE as usize;
        let blocks_m = self.0.max_rows.div_ceil(params.block_m());
        let blocks_n = self.0.n.div_ceil(block_n);
        let grid = match tiles_m {
            MAX_TILES_M => [blocks_m, blocks_n, 1],
            _ => [blocks_n, blocks_m, 1],
        };
        Geometry::new(grid, num_threads, shared_bytes)
    }

    /// The stride of an operand, if a lane can index all its loads.
    fn stride<E>(what: &'static str, rows: &Rows<E>, num_rows: usize) -> Result<u32, LaunchError> {
        let num_loads = num_rows.saturating_mul(rows.row_stride / K_PER_LOAD as usize);
        if num_loads > MAX_LOADS {
            return refuse(what, rows.row_stride, "a matrix of at most 32 GiB");
        }
        rows.stride_arg()
    }
}
