//! The launch of GEMV.

use super::gemv_16::{self, Instance};
use crate::activation::{gate_of, num_parts};
use crate::gemm::kernels::small_m::is_normed;
use crate::gemm::mainloop::gemv::{MAX_SLICES, k_per_load, max_warps, num_partials};
use crate::gemm::problem::{ScaleParams, refuse};
use crate::gemm::{Input16, Linear16, Linear16Operands};
use crate::tile::element::Operand16;
use crate::tile::weight::WeightElement;
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::warp::WARP_SIZE;

/// Loads of a row that a warp should issue for its slice of k, by FMAs and on the tensor cores
/// (`docs/measurements/gemm_fp8_small_m.md`).
const SLICE_LOADS: [usize; 2] = [4, 2];

/// Below this many weight rows a normed layer has slices of half that length
/// (`docs/measurements/gemv.md`).
const SMALL_WEIGHT_ROWS: usize = 4096;

/// Most splits of a block. With three slices a block has two splits, so that one block stores both
/// 16-bit outputs of a word.
const MAX_SPLITS: usize = 4;

/// `256 / num_slices`, rounded up: `(warp_idx * reciprocal) >> 8` is `warp_idx / num_slices`.
const RECIPROCALS: [u32; MAX_SLICES as usize + 1] = {
    let mut reciprocals = [0; MAX_SLICES as usize + 1];
    let mut num_slices = 1;
    while num_slices <= MAX_SLICES {
        let reciprocal = 256_u32.div_ceil(num_slices);
        let mut warp = 0;
        while warp < max_warps(false, false) {
            assert!((warp * reciprocal) >> 8 == warp / num_slices);
            warp += 1;
        }
        reciprocals[num_slices as usize] = reciprocal;
        num_slices += 1;
    }
    reciprocals
};

/// Least shared memory that a block requests: with less, blocks run slower on an H200 at the same
/// occupancy; with more, fewer blocks of the adjacent launches fit beside them
/// (`docs/measurements/gemv.md`).
const MIN_SHARED_BYTES: usize = 4 << 10;

/// A linear layer of one row of 16-bit elements.
#[derive(Clone, Copy, Debug)]
pub struct Gemv16(pub Linear16);

impl Gemv16 {
    /// The launch, or `None` if there are no rows or no columns. `num_rows` points to the row count
    /// on the device, 0 or 1.
    ///
    /// # Errors
    /// As [`Linear16::launch`] of a small batch; also for more than one row.
    pub fn launch<E: Operand16>(
        &self,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        self.launch_scaled(self.choose(operands), num_rows, operands, ScaleParams::NONE)
    }

    /// The instance for the operands.
    pub(in crate::gemm) fn choose<E: Operand16, W: WeightElement<E>>(
        &self,
        operands: &Linear16Operands<E, W>,
    ) -> Instance {
        let fused = (is_normed(operands), self.0.gate);
        let is_it = |instance: Instance| {
            instance.w() == TypeId::of::<W>() && (instance.normed(), gate_of(instance.a())) == fused
        };
        Instance::find(is_it).expect("instances of all fusions")
    }

    /// The launch of the given instance, whose weights are in `W`.
    ///
    /// # Errors
    /// As [`Gemv16::launch`].
    pub(in crate::gemm) fn launch_scaled<E: Operand16, W: WeightElement<E>>(
        &self,
        instance: Instance,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E, W>,
        scales: ScaleParams,
    ) -> Result<Option<Launch>, LaunchError> {
        let Linear16 { max_rows, n, k, gate, .. } = self.0;
        if max_rows > 1 {
            return refuse("rows", max_rows, "at most 1");
        }
        self.0.check(operands)?;
        let (x, norm_weight, eps) = match operands.x {
            Input16::Half(x) => (x.untyped_ptr(), DevicePtr::null(), 0.0),
            Input16::Normed { x, weight, eps } => (x.untyped_ptr(), weight, eps),
        };
        let is_normed = is_normed(operands);
        let num_slices = self.num_slices::<E, W>(is_normed);
        let num_splits = (max_warps(is_normed || gate.is_some(), instance.by_mma()) as usize
            / num_slices)
            .min(MAX_SPLITS);
        let num_warps = num_slices * num_splits;
        let block_n = num_splits * instance.rows() / num_parts(gate);
        let num_threads = num_warps * WARP_SIZE as usize;
        let num_partials = num_partials(instance.rows(), is_normed) as usize * num_threads;
        let shared_bytes = (num_partials * size_of::<f32>()).max(MIN_SHARED_BYTES);
        let grid = [n.div_ceil(block_n), max_rows, 1];
        let geometry = Geometry::new(grid, num_threads, shared_bytes)?;
        let (out, out_f32, _) = operands.out.args()?;
        let args = gemv_16::Args {
            num_rows,
            n: arg_u32("n", n)?,
            k: arg_u32("k", k)?,
            num_slices: num_slices as u32,
            slices_reciprocal: RECIPROCALS[num_slices],
            block_n: block_n as u32,
            x,
            norm_weight,
            k_reciprocal: 1.0 / k as f32,
            eps,
            weight: operands.weight.ptr,
            weight_stride: operands.weight.stride_arg()?,
            scales: scales.ptr,
            scale_stride: scales.stride,
            bias: operands.bias.unwrap_or(DevicePtr::null()),
            residual: operands.residual.map_or(DevicePtr::null(), |residual| residual.ptr),
            out,
            out_f32,
        };
        Ok(geometry.map(|geometry| args.launch(instance, geometry)))
    }

    /// Slices that k is split into: enough to load a whole row at once, else in equal rounds.
    fn num_slices<E: Operand16, W: WeightElement<E>>(&self, is_normed: bool) -> usize {
        let slice_k = SLICE_LOADS[usize::from(W::VECS > 1)] * k_per_load(W::LOAD_ELEMS) as usize;
        let is_small = is_normed && self.0.weight_rows() < SMALL_WEIGHT_ROWS;
        let num_spans = self.0.k.div_ceil(if is_small { slice_k / 2 } else { slice_k });
        num_spans.div_ceil(num_spans.div_ceil(MAX_SLICES as usize).max(1)).max(1)
    }
}
