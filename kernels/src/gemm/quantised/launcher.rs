//! The launch of a linear layer whose weight stays quantised.

use super::epilogue::num_partials;
use super::format::{BLOCKS, Format, TILE_K, TILE_ROWS};
use super::gemm_f16_quantised::Instance;
use super::input::{TILE_M, shared_bytes};
use super::packed::{check, instance_of, with_format};
use super::ring::Ring;
use super::{BlockFormat, NUM_THREADS, NUM_WARPS, gemm_f16_quantised};
use crate::Rows;
use crate::activation::{gate_arg, num_parts};
use crate::gemm::problem::BiasAndResidual;
use crate::gemm::{Gpu, Input16, MAX_FUSED_ROWS, Out16, Target};
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use gpu_types::Activation;
use half::f16;

/// Most shared memory of a block: on every device of `sm_80`, and of `sm_90a`.
const fn max_shared_bytes(target: Target) -> usize {
    match target {
        Target::Sm80 => 99 << 10,
        Target::Sm90a => 227 << 10,
    }
}

/// The parameters that both kernels have.
pub(super) struct Params {
    pub num_rows: DevicePtr<u32>,
    pub max_rows: u32,
    pub n: u32,
    pub k: u32,
    pub gate: u32,
    /// In f32 if normed.
    pub x: DevicePtr<u16>,
    pub x_stride: u32,
    /// Null if x is not normed.
    pub norm_weight: DevicePtr<f32>,
    pub norm_reciprocal: f32,
    pub norm_eps: f32,
    pub weight: DevicePtr<u8>,
    pub terms: BiasAndResidual,
    pub out: DevicePtr<f16>,
    pub out_f32: DevicePtr<f32>,
    pub out_stride: u32,
}

/// A linear layer of up to [`QuantisedLinear::MAX_ROWS`] rows in f16 with a packed weight.
#[derive(Clone, Copy, Debug)]
pub struct QuantisedLinear {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight, or half of them in a gated layer.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
    /// How the weight is packed.
    pub format: BlockFormat,
    /// The activation, if the output is `activation(gate) * up`, as
    /// [`GateRows`](crate::gate_rows::GateRows) computes it. The packed weight of gate is then
    /// followed by that of up.
    pub gate: Option<Activation>,
}

/// The operands of [`QuantisedLinear`], with memory for `max_rows` rows. Parts of a stacked weight
/// that have different formats are launches of their own, into columns of one output.
#[derive(Clone, Copy, Debug)]
pub struct QuantisedOperands {
    /// `[max_rows, k]`; normed where [`QuantisedLinear::fuses_norm`].
    pub x: Input16<f16>,
    /// The tiles of `[n, k]`, [`BlockFormat::packed_bytes`]; twice as many if gated.
    pub weight: DevicePtr<u8>,
    /// `[n]`; `[2 * n]` if gated.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, for f32 outputs only.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`; f16 if gated.
    pub out: Out16<f16>,
}

impl QuantisedLinear {
    /// Most rows.
    pub const MAX_ROWS: usize = 16;

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns.
    ///
    /// # Errors
    /// [`LaunchError`] for more than [`QuantisedLinear::MAX_ROWS`] rows, a k that is no multiple of
    /// the format's blocks or 0, rows of x or weights that are not 16-byte aligned, a residual with
    /// f16 outputs, a gate with f32 outputs, a norm where [`QuantisedLinear::fuses_norm`] is false,
    /// and sizes beyond a `u32`.
    pub fn launch(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &QuantisedOperands,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        let params = self.params(num_rows, operands)?;
        match (gpu.target, self.streamed_instance()) {
            (Target::Sm90a, Some(instance)) => self.launch_streamed(instance, gpu.num_sms, &params),
            _ => self.launch_staged(gpu, &params),
        }
    }

    /// Whether there are kernels for such a layer with a fused RMSNorm of x: for up to
    /// [`MAX_FUSED_ROWS`] rows that fit into shared memory at once.
    pub fn fuses_norm(&self) -> bool {
        let fits = |target| {
            self.instance(target).is_ok_and(|instance| {
                let (chunk_tiles, _) = self.chunk(instance, Gpu { target, ..Gpu::HOPPER });
                chunk_tiles as usize == self.k.div_ceil(TILE_K as usize)
            })
        };
        self.max_rows <= MAX_FUSED_ROWS
            && fits(Target::Sm80)
            && match self.streamed_instance() {
                Some(_) => self.streamed_fuses_norm(),
                None => fits(Target::Sm90a),
            }
    }

    fn params(
        &self,
        num_rows: DevicePtr<u32>,
        operands: &QuantisedOperands,
    ) -> Result<Params, LaunchError> {
        let &QuantisedOperands { x, weight, bias, residual, out } = operands;
        let (out, out_f32, out_stride) = out.args()?;
        let (x, x_stride, norm_weight, norm_eps) = match x {
            Input16::Half(x) => (x.ptr.0, x.stride_arg()?, DevicePtr::null(), 0.0),
            Input16::Normed { x, weight, eps } => (x.ptr.0, x.stride_arg()?, weight, eps),
        };
        Ok(Params {
            num_rows,
            max_rows: self.max_rows as u32,
            n: arg_u32("n", self.n)?,
            k: arg_u32("k", self.k)?,
            gate: gate_arg(self.gate),
            x: DevicePtr::new(x),
            x_stride,
            norm_weight,
            norm_reciprocal: 1.0 / self.k as f32,
            norm_eps,
            weight,
            terms: BiasAndResidual::new(bias, residual)?,
            out,
            out_f32,
            out_stride,
        })
    }

    /// The launch with x in shared memory.
    fn launch_staged(&self, gpu: Gpu, params: &Params) -> Result<Option<Launch>, LaunchError> {
        let instance = self.instance(gpu.target)?;
        let row_tiles = self.n.div_ceil(TILE_ROWS as usize);
        let grid = [row_tiles.min(gpu.num_sms), self.max_rows.min(1), 1];
        let (chunk_tiles, shared_bytes) = self.chunk(instance, gpu);
        let geometry = Geometry::new(grid, NUM_THREADS as usize, shared_bytes)?;
        Ok(geometry.map(|geometry| {
            gemm_f16_quantised::Args {
                num_rows: params.num_rows,
                max_rows: params.max_rows,
                n: params.n,
                k: params.k,
                gate: params.gate,
                k_warps_log2: self.k_warps(gpu.num_sms).ilog2(),
                chunk_tiles,
                x: params.x,
                x_stride: params.x_stride,
                norm_weight: params.norm_weight,
                norm_reciprocal: params.norm_reciprocal,
                norm_eps: params.norm_eps,
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

    fn check(&self, operands: &QuantisedOperands) -> Result<(), LaunchError> {
        let refuse = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        let QuantisedOperands { x, weight, residual, out, .. } = operands;
        if self.max_rows > Self::MAX_ROWS {
            return refuse("rows", self.max_rows, "at most 16 with a quantised weight");
        }
        if self.k == 0 {
            return refuse("k", 0, "at least one block");
        }
        check(self.format, self.n.saturating_mul(num_parts(self.gate)), self.k, *weight)?;
        let (is_aligned, stride) = match x {
            Input16::Half(x) => (x.is_aligned(), x.row_stride),
            Input16::Normed { x, weight, .. } => {
                (x.is_aligned() && weight.0.is_multiple_of(16), x.row_stride)
            }
        };
        if !is_aligned {
            return refuse("row stride", stride, "rows of x that are 16-byte aligned");
        }
        if matches!(x, Input16::Normed { .. }) && !self.fuses_norm() {
            return refuse("norms", 1, "none for this format, or so many rows or columns");
        }
        match out {
            Out16::Half(_) if residual.is_some() => refuse("output bits", 16, "32 with a residual"),
            Out16::F32(_) if self.gate.is_some() => refuse("output bits", 32, "16 with a gate"),
            _ => Ok(()),
        }
    }

    /// The instance: with a ring in shared memory, where there is enough of it.
    fn instance(&self, target: Target) -> Result<Instance, LaunchError> {
        let has_room = target == Target::Sm90a && self.max_rows <= TILE_M as usize;
        let find =
            |ring| instance_of(self.format, Instance::ALL, Instance::f, |i| i.ring() == ring);
        find(has_room).or_else(|_| find(false))
    }

    /// Warps that split k: as many as give the busiest warp the fewest tiles. They decide the order
    /// of the sums, so they must not depend on the rows.
    fn k_warps(&self, num_sms: usize) -> usize {
        let num_parts = num_parts(self.gate);
        let row_tiles = self.n.div_ceil(TILE_ROWS as usize).div_ceil(num_sms);
        let tiles = |k_warps: &usize| {
            let rounds = row_tiles.div_ceil(NUM_WARPS as usize / k_warps / num_parts);
            rounds * self.k.div_ceil(TILE_K as usize).div_ceil(*k_warps)
        };
        // Of equals the fewest, which have the fewest rounds.
        let most = NUM_WARPS as usize / num_parts;
        [4, 8, most].into_iter().min_by_key(tiles).expect("at least one")
    }

    /// Tiles along k of x in shared memory, as many as there are or as fit, and the bytes of all
    /// shared memory.
    fn chunk(&self, instance: Instance, gpu: Gpu) -> (u32, usize) {
        let (tiles_m, format) = (instance.tiles_m(), self.format);
        let rows = self.max_rows as u32;
        let partials = 2 * num_partials(tiles_m) as usize * size_of::<f32>();
        let rest = |tiles: u32| shared_bytes_of(format, instance.ring(), tiles_m, rows, tiles);
        let bytes = |tiles: u32| partials + rest(tiles) as usize;
        let most = max_shared_bytes(gpu.target);
        let num_tiles = self.k.div_ceil(TILE_K as usize) as u32;
        let mut chunk =
            (1..=num_tiles).take_while(|&tiles| bytes(tiles) <= most).last().unwrap_or(1);
        let k_warps = self.k_warps(gpu.num_sms) as u32;
        if chunk < num_tiles && chunk > k_warps {
            // Warps have equal parts of it.
            chunk -= chunk % k_warps;
        }
        (chunk, bytes(chunk))
    }
}

/// Bytes of shared memory for the ring, if there is one, and tiles of x.
fn shared_bytes_of(
    format: BlockFormat,
    ring: bool,
    tiles_m: usize,
    max_rows: u32,
    num_tiles: u32,
) -> u32 {
    fn of<F: Format>(ring: bool, tiles_m: usize, max_rows: u32, num_tiles: u32) -> u32 {
        let ring = if ring { Ring::bytes::<F>(NUM_WARPS) } else { 0 };
        ring + shared_bytes::<F>(tiles_m, max_rows, num_tiles)
    }
    let bytes = with_format!(format, F => of::<F>(ring, tiles_m, max_rows, num_tiles));
    bytes.expect("it has an instance")
}
