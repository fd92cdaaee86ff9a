//! The launch of the kernel with swapped operands.

use super::gemm_16_swapped::{self, Instance};
use super::{NUM_THREADS, Rows8, Rows16, Rows32, WARPGROUP_COLUMNS};
use crate::activation::gate_of;
use crate::gemm::config::wgmma::{BLOCK_K, MAX_SHARED_BYTES, ROW_BYTES};
use crate::gemm::mainloop::accumulators::Accumulators;
use crate::gemm::mainloop::wgmma_swapped::{SWIZZLE_ROWS, stage_columns};
use crate::gemm::problem::{BiasAndResidual, refuse, tensor_map};
use crate::gemm::{Gpu, Linear16, Linear16Operands};
use crate::tile::box_copy::GATE_ROWS;
use crate::tile::element::Operand16;
use crate::tile::pipeline::Pipeline;
use core::any::TypeId;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};

/// Most stages.
const MAX_STAGES: usize = 8;

/// The consumers copy the weights of one stage for every so many blocks of k, see
/// [`box_copy`](crate::tile::box_copy), and of at most so many stages: the fastest counts measured
/// (`docs/measurements/gemm_sm90_swapped.md`).
const K_BLOCKS_PER_COPY: usize = 7;
const MAX_COPIED: usize = 4;

/// Columns of a tile, of gate and of up together.
const MIN_COLUMNS: usize = WARPGROUP_COLUMNS as usize;
const MAX_COLUMNS: usize = 2 * MIN_COLUMNS;

/// The accumulators by rows.
const ACCUMULATORS: [(usize, TypeId); 3] = [
    (Rows8::COLUMNS as usize, TypeId::of::<Rows8>()),
    (Rows16::COLUMNS as usize, TypeId::of::<Rows16>()),
    (Rows32::COLUMNS as usize, TypeId::of::<Rows32>()),
];

/// A linear layer of a small batch and many columns, accumulated in the order of tiles.
#[derive(Clone, Copy, Debug)]
pub struct Swapped16(pub Linear16);

impl Swapped16 {
    /// Most rows.
    pub const MAX_ROWS: usize = 32;

    /// Whether the batch is small enough, and there are more than 56 rows of the weight for each SM.
    pub const fn fills(&self, num_sms: usize) -> bool {
        self.0.max_rows <= Self::MAX_ROWS && self.0.weight_rows() > num_sms * (MIN_COLUMNS - 8)
    }

    /// Columns of a tile that give all SMs equal shares: an even number where a block has several
    /// tiles, otherwise a multiple of 8, with a gate always of 16. Two tiles of 122 columns are 2 %
    /// faster than two of 128, but one tile of 126 is 3 % slower than one of 128.
    fn tile_columns(&self, num_sms: usize) -> usize {
        let weight_rows = self.0.weight_rows();
        let num_tiles = weight_rows.div_ceil(num_sms * MAX_COLUMNS).max(1);
        let multiple = match self.0.gate {
            Some(_) => 2 * GATE_ROWS as usize,
            None if num_tiles > 1 => 2,
            None => SWIZZLE_ROWS as usize,
        };
        let columns = weight_rows.div_ceil(num_sms * num_tiles).next_multiple_of(multiple);
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
        let x = self.0.grouped_input(operands)?;
        let instance_of = |(x_rows, accumulator)| {
            let types = (TypeId::of::<E>(), accumulator, self.0.gate);
            let is_it = |i: Instance| (i.e(), i.a(), gate_of(i.g())) == types;
            Instance::find(is_it).map(|instance| (x_rows, instance))
        };
        // The fewest rows have no instance with a gate.
        let mut enough = ACCUMULATORS.into_iter().filter(|&(rows, _)| max_rows <= rows);
        let Some((x_rows, instance)) = enough.find_map(instance_of) else {
            return refuse("rows", max_rows, "at most 32");
        };
        if max_rows == 0 || n == 0 {
            return Ok(None);
        }
        let columns = self.tile_columns(gpu.num_sms);
        let num_blocks = self.0.weight_rows().div_ceil(columns).min(gpu.num_sms);
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
        let weight_map = maps(&self.0.weight_map(&operands.weight, [columns, block_k]));
        let (out, out_f32, out_stride) = operands.out.args()?;
        let BiasAndResidual { bias, residual, residual_stride } =
            BiasAndResidual::new(operands.bias, operands.residual)?;
        let args = gemm_16_swapped::Args {
            num_rows,
            n: n as u32,
            k: k as u32,
            tile_columns: columns as u32,
            num_stages: num_stages as u32,
            num_copied: num_copied as u32,
            num_ahead: num_ahead as u32,
            bias,
            residual,
            residual_stride,
            out,
            out_f32,
            out_stride,
            weight: operands.weight.ptr,
            weight_stride: operands.weight.stride_arg()?,
            x: x_map,
            weight_map,
        };
        Ok(geometry.map(|geometry| args.launch(instance, geometry)))
    }
}
