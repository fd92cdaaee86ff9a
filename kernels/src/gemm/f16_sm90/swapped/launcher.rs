//! The launch of the kernel with swapped operands.

use super::gemm_16_swapped::{self, Instance};
use super::{
    Accumulators, BLOCK_K, NUM_THREADS, Pipeline, ROW_BYTES, Rows8, Rows16, Rows32, SWIZZLE_ROWS,
    WARPGROUP_COLUMNS, stage_columns,
};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::f16_sm90::tiles::MAX_SHARED_BYTES;
use crate::gemm::linear16::{Gpu, Linear16, Linear16Operands, Out16, tensor_map};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};

/// Most stages.
const MAX_STAGES: usize = 8;

/// The consumers copy the weights of one stage for every so many blocks of k, see
/// [`box_copy`](crate::tile::box_copy), and of at most so many stages: the fastest counts measured
/// (`docs/measurements/gemm_sm90_swapped.md`).
const K_BLOCKS_PER_COPY: usize = 7;
const MAX_COPIED: usize = 4;

/// Columns of a tile.
const MIN_COLUMNS: usize = WARPGROUP_COLUMNS as usize;
const MAX_COLUMNS: usize = 2 * MIN_COLUMNS;

/// The instances by rows: for f16, for bf16.
const INSTANCES: [(usize, [Instance; 2]); 3] = {
    use Instance::*;
    [
        (Rows8::COLUMNS as usize, [gemm_f16_swapped_m8, gemm_bf16_swapped_m8]),
        (Rows16::COLUMNS as usize, [gemm_f16_swapped_m16, gemm_bf16_swapped_m16]),
        (Rows32::COLUMNS as usize, [gemm_f16_swapped_m32, gemm_bf16_swapped_m32]),
    ]
};

/// A linear layer of a small batch and many columns, accumulated in the order of tiles.
#[derive(Clone, Copy, Debug)]
pub struct Swapped16(pub Linear16);

impl Swapped16 {
    /// Most rows.
    pub const MAX_ROWS: usize = 32;

    /// Whether the batch is small enough, and there are more than 56 columns for each SM.
    pub const fn fills(&self, num_sms: usize) -> bool {
        self.0.max_rows <= Self::MAX_ROWS && self.0.n > num_sms * (MIN_COLUMNS - 8)
    }

    /// Columns of a tile that give all SMs equal shares: an even number where a block has several
    /// tiles, otherwise a multiple of 8. Two tiles of 122 columns are 2 % faster than two of 128,
    /// but one tile of 126 is 3 % slower than one of 128.
    fn tile_columns(&self, num_sms: usize) -> usize {
        let num_tiles = self.0.n.div_ceil(num_sms * MAX_COLUMNS).max(1);
        let multiple = if num_tiles > 1 { 2 } else { SWIZZLE_ROWS as usize };
        let columns = self.0.n.div_ceil(num_sms * num_tiles).next_multiple_of(multiple);
        columns.max(MIN_COLUMNS)
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns.
    ///
    /// # Errors
    /// As [`Linear16::launch`]; also for more than [`Swapped16::MAX_ROWS`].
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        self.0.check(operands)?;
        let Linear16 { max_rows, n, k, .. } = self.0;
        let x = self.0.plain_input(operands)?;
        let Some((x_rows, of_dtype)) = INSTANCES.into_iter().find(|&(rows, _)| max_rows <= rows)
        else {
            let expected = "at most 32";
            return Err(LaunchError::Shape { what: "rows", value: max_rows, expected });
        };
        if max_rows == 0 || n == 0 {
            return Ok(None);
        }
        let columns = self.tile_columns(gpu.num_sms);
        let num_blocks = n.div_ceil(columns).min(gpu.num_sms);
        let barrier_bytes = Pipeline::num_words(1) as usize * size_of::<u64>();
        let stage_rows = x_rows + stage_columns(columns as u32) as usize;
        let stage_bytes = stage_rows * ROW_BYTES as usize + barrier_bytes;
        let num_k_blocks = k.div_ceil(BLOCK_K as usize);
        let num_stages =
            (MAX_SHARED_BYTES as usize / stage_bytes).min(MAX_STAGES).min(num_k_blocks);
        let num_copied = (num_k_blocks / K_BLOCKS_PER_COPY).clamp(1, MAX_COPIED).min(num_stages);
        // Without overlap x is written already: only the stages that are copied precede its loads.
        let num_ahead = if gpu.overlaps { num_stages } else { num_copied };
        let geometry =
            Geometry::new([num_blocks, 1, 1], NUM_THREADS as usize, num_stages * stage_bytes)?;
        let block_k = BLOCK_K as usize;
        let x_map = maps(&tensor_map(&x, [max_rows, k], [x_rows, block_k]));
        let weight = maps(&tensor_map(&operands.weight, [n, k], [columns, block_k]));
        let (half, single, out_stride) = match operands.out {
            Out16::Half(out) => (DevicePtr::new(out.ptr.0), DevicePtr::null(), out.stride_arg()?),
            Out16::F32(out) => (DevicePtr::null(), out.ptr, out.stride_arg()?),
        };
        let residual = operands.residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        let residual_stride = residual.stride_arg()?;
        let weight_stride = operands.weight.stride_arg()?;
        Ok(geometry.map(|geometry| {
            gemm_16_swapped::launch(
                of_dtype[usize::from(E::DTYPE == Dtype::Bf16)],
                geometry,
                num_rows,
                n as u32,
                k as u32,
                columns as u32,
                num_stages as u32,
                num_copied as u32,
                num_ahead as u32,
                operands.bias.unwrap_or(DevicePtr::null()),
                residual.ptr,
                residual_stride,
                half,
                single,
                out_stride,
                DevicePtr::new(operands.weight.ptr.0),
                weight_stride,
                x_map,
                weight,
            )
        }))
    }
}
