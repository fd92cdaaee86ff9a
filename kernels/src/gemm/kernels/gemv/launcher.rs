//! The launch of GEMV.

use super::gemv_16::{self, Instance};
use crate::gemm::mainloop::gemv::{K_PER_LOAD, MAX_SLICES, max_warps, num_partials};
use crate::gemm::problem::refuse;
use crate::gemm::{Input16, Linear16, Linear16Operands};
use crate::silu_mul::num_parts;
use crate::tile::element::Operand16;
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::warp::WARP_SIZE;

/// Elements of k that a slice should have.
const SLICE_K: usize = 4 * K_PER_LOAD as usize;

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
        while warp < max_warps(false) {
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
        let Linear16 { max_rows, n, k, gated, .. } = self.0;
        if max_rows > 1 {
            return refuse("rows", max_rows, "at most 1");
        }
        self.0.check(operands)?;
        let (x, norm_weight, eps) = match operands.x {
            Input16::Half(x) => (x.untyped_ptr(), DevicePtr::null(), 0.0),
            Input16::Normed { x, weight, eps } => (x.untyped_ptr(), weight, eps),
        };
        let is_normed = matches!(operands.x, Input16::Normed { .. });
        let is_it = |instance: &&Instance| {
            let fused = (instance.normed(), instance.gated());
            instance.e() == TypeId::of::<E>() && fused == (is_normed, gated)
        };
        let instance = Instance::ALL.iter().find(is_it).expect("instances of all fusions");
        let num_slices = self.num_slices(is_normed);
        let num_splits = (max_warps(is_normed || gated) as usize / num_slices).min(MAX_SPLITS);
        let num_warps = num_slices * num_splits;
        let block_n = num_splits * instance.rows() / num_parts(gated);
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
            bias: operands.bias.unwrap_or(DevicePtr::null()),
            residual: operands.residual.map_or(DevicePtr::null(), |residual| residual.ptr),
            out,
            out_f32,
        };
        Ok(geometry.map(|geometry| args.launch(*instance, geometry)))
    }

    /// Slices that k is split into: enough to load a whole row at once, else in equal rounds.
    fn num_slices(&self, is_normed: bool) -> usize {
        let is_small = is_normed && self.0.weight_rows() < SMALL_WEIGHT_ROWS;
        let num_spans = self.0.k.div_ceil(if is_small { SLICE_K / 2 } else { SLICE_K });
        num_spans.div_ceil(num_spans.div_ceil(MAX_SLICES as usize).max(1)).max(1)
    }
}
