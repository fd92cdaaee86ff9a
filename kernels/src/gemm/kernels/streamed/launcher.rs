//! The launch of small-batch GEMM with the weight by TMA: tile widths, ring sizes.

use super::gemm_16_streamed::{self, Instance};
use crate::Rows;
use crate::gemm::epilogue::stream::{max_columns, num_partials};
use crate::gemm::kernels::small_m::{InstanceParams, KernelParams, SmallM16, is_normed};
use crate::gemm::mainloop::stream::{TILE_K, TILE_MN};
use crate::gemm::operand::rows::tile_elems;
use crate::gemm::operand::{normed, ring};
use crate::gemm::problem::{ScaleParams, refuse, tensor_map};
use crate::gemm::{Gpu, Input16, Linear16, Linear16Operands};
use crate::tile::element::Operand16;
use crate::tile::weight::WeightElement;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use cuda_std::warp::WARP_SIZE;
use half::f16;

/// Most shared memory of a block on sm_90.
const MAX_STREAMED_BYTES: usize = 227 << 10;

/// Shared memory for the rings of a block: the bytes that an SM has in flight, at least two stages.
/// More is slower: boxes of x then queue behind many others (`docs/measurements/gemm_small_m.md`).
const RING_BYTES: usize = 64 << 10;

/// The same for a large weight, where what is in flight before the previous launch ends counts
/// more.
const LARGE_RING_BYTES: usize = 128 << 10;

/// A weight of at least this many elements is large.
const LARGE_WEIGHT: usize = 9 << 20;

/// A weight of this many rows keeps an SM busy with one block after another.
const MANY_ROWS: usize = 16_000;

/// Cost of an output tile besides its MMAs, in units of the MMAs of eight columns; fitted to 32
/// rows (`docs/measurements/gemm_small_m.md`).
const TILE_COST: usize = 2;

/// Most columns of a tile where a block has several, for up to 16 rows
/// (`docs/measurements/gemm_small_m.md`).
const SEVERAL_COLUMNS: usize = 28;

/// Most stages of a ring.
const MAX_STAGES: usize = 8;

/// How the output columns are divided into tiles.
struct Tiles {
    /// Columns of a tile.
    columns: usize,
    /// Most tiles of a block.
    per_block: usize,
    num_blocks: usize,
}

/// The shared memory of a streamed block.
struct Rings {
    num_stages: usize,
    shared_bytes: usize,
}

/// Stages whose weights are issued before x is waited for. TMA serves boxes in order, so x would
/// arrive after the weights of the whole ring: alone a launch is faster with half of it. An
/// overlapped launch has these weights before x is written, and takes the whole ring
/// (`docs/measurements/gemm_small_m.md`).
const fn stages_ahead(num_stages: usize, gpu: Gpu) -> usize {
    if gpu.overlaps { num_stages } else { num_stages.div_ceil(2) }
}

impl SmallM16 {
    /// Most rows of the kernel that loads the weight by TMA, on sm_90a.
    pub const MAX_STREAMED_ROWS: usize = 32;

    /// Whether to load the weight by TMA. One row takes it for large weights alone: a small weight
    /// is all in flight in registers before an overlapped launch waits for x, and a very wide one
    /// has enough blocks (`docs/measurements/gemm_small_m.md`).
    pub(in crate::gemm) fn is_streamed(&self) -> bool {
        let Linear16 { max_rows, k, .. } = self.0;
        let weight_rows = self.0.weight_rows();
        let is_large = weight_rows.saturating_mul(k) >= LARGE_WEIGHT && weight_rows < MANY_ROWS;
        max_rows <= Self::MAX_STREAMED_ROWS && (max_rows > 1 || is_large)
    }

    /// The launch with the weight by TMA, of up to [`SmallM16::MAX_STREAMED_ROWS`] rows, on a `gpu`
    /// of sm_90a; public to compare it.
    ///
    /// # Errors
    /// As [`SmallM16::launch`].
    pub fn launch_streamed<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        self.launch_streamed_scaled(gpu, num_rows, operands, ScaleParams::NONE, maps)
    }

    /// [`SmallM16::launch_streamed`] with a weight in `W`.
    pub(in crate::gemm) fn launch_streamed_scaled<E: Operand16, W: WeightElement<E>>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E, W>,
        scales: ScaleParams,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        self.0.check(operands)?;
        let instance = self.choose_streamed(gpu.num_sms, operands)?;
        let params = InstanceParams::from(instance);
        let Some(KernelParams { n, k, input, weight_stride, terms, out, out_f32, out_stride }) =
            self.kernel_params(&params, operands)?
        else {
            return Ok(None);
        };
        let mut tiles = self.tiles(&params, gpu.num_sms);
        if scales.stride > 0 {
            // A block of 128 rows that share a scale has whole tiles.
            tiles.columns = tiles.columns.next_power_of_two().max(TILE_MN as usize);
            tiles.num_blocks = self.0.n.div_ceil(tiles.columns).min(gpu.num_sms);
        }
        let Tiles { columns, per_block, num_blocks } = tiles;
        let Rings { num_stages, shared_bytes } =
            self.rings(&params, columns, per_block, W::VECS)?;
        let Linear16 { max_rows, .. } = self.0;
        let tile_k = TILE_K as usize;
        // In units of 16 bits.
        let sizes = [self.0.weight_rows(), self.0.k / W::VECS];
        let weight = Rows::<E>::new(
            DevicePtr::new(operands.weight.ptr.0),
            operands.weight.row_stride / W::VECS,
        );
        let weight_map = maps(&tensor_map(&weight, sizes, [columns, tile_k]));
        let x_map = match operands.x {
            Input16::Half(x) => maps(&tensor_map(&x, [max_rows, self.0.k], [max_rows, tile_k])),
            Input16::Normed { .. } => EncodedTensorMap::NONE,
        };
        let is_normed = is_normed(operands);
        let num_ahead = if is_normed { num_stages } else { stages_ahead(num_stages, gpu) };
        let num_copied = self.copied_stages(&params, W::VECS).min(num_ahead);
        let num_threads = params.warps * WARP_SIZE as usize;
        let geometry = Geometry::new([num_blocks, 1, 1], num_threads, shared_bytes)?;
        let args = gemm_16_streamed::Args {
            num_rows,
            max_rows: max_rows as u32,
            n,
            k,
            tile_columns: columns as u32,
            num_stages: num_stages as u32,
            num_copied: num_copied as u32,
            num_ahead: num_ahead as u32,
            x: DevicePtr::new(input.x.0),
            x_stride: input.x_stride,
            norm_weight: input.norm_weight,
            k_reciprocal: 1.0 / k as f32,
            eps: input.eps,
            bias: terms.bias,
            residual: terms.residual,
            residual_stride: terms.residual_stride,
            out,
            out_f32,
            out_stride,
            weight: operands.weight.ptr,
            weight_stride,
            scales: scales.ptr,
            scale_stride: scales.stride,
            x_map,
            weight_map,
        };
        Ok(geometry.map(|geometry| args.launch(instance, geometry)))
    }

    /// Whether shared memory holds all of x beside the least ring, for a weight in 8 bits.
    pub(in crate::gemm) fn holds_rows<W>(
        &self,
        num_sms: usize,
        operands: &Linear16Operands<f16, W>,
    ) -> bool
    where
        W: WeightElement<f16>,
    {
        let Ok(instance) = self.choose_streamed(num_sms, operands) else {
            return false;
        };
        let params = InstanceParams::from(instance);
        let Tiles { columns, per_block, .. } = self.tiles(&params, num_sms);
        let rings = self.rings(&params, columns.next_power_of_two(), per_block, W::VECS);
        rings.is_ok_and(|rings| rings.num_stages > 1)
    }

    /// Stages whose first weights the lanes copy, see [`box_copy`](crate::tile::box_copy): one, for
    /// up to 16 rows where a warp has more than five k-tiles (`docs/measurements/gemm_small_m.md`).
    fn copied_stages(&self, params: &InstanceParams, vecs: usize) -> usize {
        let num_k_tiles = self.0.k.div_ceil(params.warps * tile_elems(vecs) as usize);
        usize::from(params.tiles_m <= 2 && num_k_tiles > 5)
    }

    fn choose_streamed<E: Operand16, W: WeightElement<E>>(
        &self,
        num_sms: usize,
        operands: &Linear16Operands<E, W>,
    ) -> Result<Instance, LaunchError> {
        let instances = self.instances(Instance::ALL, num_sms, operands);
        let cost = |params: &InstanceParams| {
            let eights = (max_columns(params.tiles_n, params.num_parts()) / TILE_MN) as usize;
            self.tiles(params, num_sms).per_block * (eights + TILE_COST)
        };
        let instance = instances.min_by_key(|(_, params)| (params.tiles_m, cost(params)));
        instance.map_or_else(|| self.too_many_rows(), |(instance, _)| Ok(instance))
    }

    /// Tiles that divide the columns equally among the SMs.
    fn tiles(&self, params: &InstanceParams, num_sms: usize) -> Tiles {
        let max = max_columns(params.tiles_n, params.num_parts()) as usize;
        let mut per_block = self.0.n.div_ceil(num_sms * max).max(1);
        if per_block > 1 && params.tiles_m <= 2 {
            per_block = self.0.n.div_ceil(num_sms * max.min(SEVERAL_COLUMNS));
        }
        let columns = self.0.n.div_ceil(num_sms * per_block).max(1);
        Tiles { columns, per_block, num_blocks: self.0.n.div_ceil(columns).min(num_sms) }
    }

    /// The rings for tiles of `columns` columns.
    fn rings(
        &self,
        params: &InstanceParams,
        columns: usize,
        per_block: usize,
        vecs: usize,
    ) -> Result<Rings, LaunchError> {
        let (normed, num_parts) = (params.fused.0, params.num_parts());
        let x_rows = if normed || vecs > 1 { 0 } else { self.0.max_rows };
        let rows = ring::stage_rows((num_parts * columns + x_rows) as u32) as usize;
        let stage_bytes = params.warps * rows * TILE_K as usize * size_of::<u16>();
        let num_partials = num_partials(params.tiles_m, params.tiles_n, num_parts, params.warps);
        let (max_rows, k) = (self.0.max_rows, self.0.k as u32);
        let row_bytes = match (normed, vecs) {
            (true, _) => normed::shared_bytes(max_rows, k, vecs),
            (false, 1) => 0,
            (false, _) => {
                let box_rows = (params.tiles_m as u32) * TILE_MN;
                ring::resident_elems(box_rows, k / vecs as u32) as usize * size_of::<u16>()
            }
        };
        let others = num_partials as usize * size_of::<f32>()
            + row_bytes
            + params.warps * MAX_STAGES * size_of::<u64>();
        let room = MAX_STREAMED_BYTES.saturating_sub(others) / stage_bytes;
        if room == 0 {
            return refuse("k", self.0.k, "columns whose normed rows fit into shared memory");
        }
        let is_large = self.0.weight_rows().saturating_mul(self.0.k) >= vecs * LARGE_WEIGHT;
        let ring_bytes = if is_large { LARGE_RING_BYTES } else { RING_BYTES };
        let num_stages = (ring_bytes / stage_bytes).clamp(2, MAX_STAGES).min(room);
        let num_k_tiles = per_block * self.0.k.div_ceil(params.warps * tile_elems(vecs) as usize);
        let num_stages = num_stages.min(num_k_tiles);
        let shared_bytes = num_stages * stage_bytes + others;
        Ok(Rings { num_stages, shared_bytes })
    }
}
