//! The launch on sm_90a: batches of rows and shared memory.

use super::epilogue::{TERMS_BYTES, partials_bytes};
use super::gemm_f16_quantised_streamed::{self, Instance};
use super::input;
use super::ring::Ring;
use crate::activation::num_parts;
use crate::gemm::quantised::format::{TILE_K, TILE_ROWS};
use crate::gemm::quantised::input::TILE_M;
use crate::gemm::quantised::launcher::Params;
use crate::gemm::quantised::packed::instance_of;
use crate::gemm::quantised::{NUM_THREADS, NUM_WARPS, QuantisedLinear};
use cuda_std::launch::{Geometry, Launch, LaunchError, arg_u32};

/// Most shared memory of a block on sm_90.
const MAX_BYTES: u32 = 227 << 10;

/// How a layer is divided.
struct Split {
    k_warps: u32,
    /// Rows of tiles of a block; how many blocks have one more; rows that are computed together.
    block_rows: u32,
    larger_blocks: u32,
    batch: u32,
    num_blocks: u32,
    shared_bytes: u32,
}

impl QuantisedLinear {
    /// As [`QuantisedLinear::launch`], by `instance` on a GPU of sm_90a with `num_sms`.
    pub(in crate::gemm::quantised) fn launch_streamed(
        &self,
        instance: Instance,
        num_sms: usize,
        params: &Params,
    ) -> Result<Option<Launch>, LaunchError> {
        if params.max_rows == 0 || params.n == 0 {
            return Ok(None);
        }
        let row_bytes = arg_u32("k", self.format.row_tile_bytes(self.k).unwrap_or(usize::MAX))?;
        // Offsets in x are computed in 32 bits.
        arg_u32("row stride", params.x_stride as usize * Self::MAX_ROWS)?;
        let split = self.split(instance.tiles_m(), num_sms, params.n, params.k);
        let num_threads = NUM_THREADS as usize;
        let grid = [split.num_blocks as usize, 1, 1];
        let geometry = Geometry::new(grid, num_threads, split.shared_bytes as usize)?;
        Ok(geometry.map(|geometry| {
            gemm_f16_quantised_streamed::Args {
                num_rows: params.num_rows,
                max_rows: params.max_rows,
                n: params.n,
                k: params.k,
                gate: params.gate,
                k_warps_log2: split.k_warps.ilog2(),
                batch: split.batch,
                block_rows: split.block_rows,
                larger_blocks: split.larger_blocks,
                weight: params.weight,
                row_bytes,
                x: params.x,
                x_stride: params.x_stride,
                norm_weight: params.norm_weight,
                norm_reciprocal: params.norm_reciprocal,
                norm_eps: params.norm_eps,
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

    /// The instance, if the format has one: there are no registers for the scales of blocks of 32.
    pub(in crate::gemm::quantised) fn streamed_instance(&self) -> Option<Instance> {
        let tiles_m = if self.max_rows <= TILE_M as usize { 1 } else { 2 };
        let is_it = |i: Instance| i.tiles_m() == tiles_m;
        instance_of(self.format, Instance::ALL, Instance::f, is_it).ok()
    }

    /// Whether it has a fused norm: where a warp has one tile along k.
    pub(in crate::gemm::quantised) fn streamed_fuses_norm(&self) -> bool {
        self.max_rows <= TILE_M as usize && self.k <= input::MAX_NORMED_K as usize
    }

    fn split(&self, tiles_m: usize, num_sms: usize, n: u32, k: u32) -> Split {
        let max_rows = self.max_rows as u32;
        let row_tiles = n.div_ceil(TILE_ROWS);
        let num_blocks = row_tiles.min(num_sms as u32);
        let (block_rows, larger_blocks) = (row_tiles / num_blocks, row_tiles % num_blocks);
        // They decide the order of the sums, so they must not depend on the rows.
        let k_warps = k.div_ceil(TILE_K).next_power_of_two().clamp(8, NUM_WARPS);
        let most_rows = row_tiles.div_ceil(num_blocks);
        let num_groups = NUM_WARPS / k_warps;
        let rest = self.fixed_bytes(tiles_m, max_rows);
        let round_bytes = num_parts(self.gate) as u32 * partials_bytes(max_rows);
        let rounds = ((MAX_BYTES - rest) / round_bytes).min(most_rows.div_ceil(num_groups));
        let batch = most_rows.min(rounds * num_groups);
        let shared_bytes = rest + rounds * round_bytes;
        Split { k_warps, block_rows, larger_blocks, batch, num_blocks, shared_bytes }
    }

    /// Bytes of shared memory besides the partial sums.
    fn fixed_bytes(&self, tiles_m: usize, max_rows: u32) -> u32 {
        let [scale_bytes, unit_bytes] = self.format.tile_bytes().expect("it has an instance");
        let rings = NUM_WARPS * Ring::bytes((scale_bytes + 4 * unit_bytes) as u32);
        rings + input::shared_bytes(tiles_m, max_rows) + TERMS_BYTES + input::SQUARE_SUMS_BYTES
    }
}
