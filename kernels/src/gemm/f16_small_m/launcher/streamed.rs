//! How weights that come by TMA are dealt to blocks, and their launch.

use super::{Args, Shape, SmallM16, is_normed, refuse};
use crate::gemm::f16_small_m::epilogue::{max_columns, num_sums};
use crate::gemm::f16_small_m::gemm_16_streamed::{self, Instance};
use crate::gemm::f16_small_m::mainloop::{LINE_K, TILE};
use crate::gemm::f16_small_m::{normed, ring};
use crate::gemm::linear16::tensor_map;
use crate::gemm::{Gpu, Input16, Linear16, Linear16Operands};
use crate::silu_mul::num_parts;
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use cuda_std::warp::WARP_SIZE;

/// Shared memory that a block may have on sm_90.
const MAX_STREAMED_BYTES: usize = 227 << 10;

/// Shared memory that the rings of a block fill, at least two stages: what an SM has under way. On an
/// H200 8 rows of 896 x 4864 take 4.4 us with 64 KiB, 5.0 with 96, 6.3 with 128, and without x 4.3 and, with
/// 128, 4.1: what is slow are boxes of x behind many others; why is not known.
const RING_BYTES: usize = 64 << 10;

/// The same of a large weight: where a launch overlaps the one before, what is under way before that
/// has ended counts. 8 sequences of Phi-3 Mini have 1,958 tokens/s with 96 KiB, 2,134 with 128.
const LARGE_RING_BYTES: usize = 128 << 10;

/// Elements from which on a weight is large.
const LARGE_WEIGHT: usize = 9 << 20;

/// Rows of a weight whose loads keep an SM busy block after block.
const MANY_ROWS: usize = 16_000;

/// What a tile costs besides its products, in the products of eight columns. Of 32 rows on an H200, in us
/// by tiles of up to so many columns (in brackets what this chooses):
///
/// | n, k | 24 | 32 | 40 | 48 |
/// | --- | --- | --- | --- | --- |
/// | 3072, 3072 | (7.0) | 7.2 | 7.5 | 7.8 |
/// | 4096, 4096 | 12.2 | (10.7) | 11.1 | 11.4 |
/// | 9728, 896 | 8.7 | 8.6 | (7.9) | 8.2 |
/// | 9216, 3072 | 16.8 | 17.4 | (16.4) | 16.9 |
/// | 12288, 4096 | 27.9 | 27.5 | 27.5 | (26.9) |
/// | 16384, 3072 | 28.4 | (26.4) | 26.5 | 27.0 |
/// | 22016, 4096 | 46.9 | 49.7 | 48.3 | (46.3) |
///
/// and of 64, one warp with all of them, 28.5 of 16384 x 3072, 49.0 of 22016 x 4096. Tried besides, and no
/// faster: two warps that share a line of the ring and divide its columns (3072 x 3072 7.5, 22016 x 4096
/// 47.2); sums that are stored behind the first line of the next tile (7.4, 47.2); warps that add each
/// other's sums as they end (of 8 rows 896 x 896 3.2 for 2.4, 22016 x 4096 45.4 for 43.3); room for the
/// sums of two tiles (the same); three stages for two of 32 rows (the same); all sums of a thread loaded
/// before the first is stored (22016 x 4096 46.8 for 46.6); a ring that starts at another line of k in
/// each block (the same).
const TILE_COST: usize = 2;

/// Columns of a tile of up to 16 rows, where a block has several. On an H200 8 rows of 12288 x 4096 take 24.9
/// us by four tiles of 24 columns a block, 25.8 by three of 32, 32000 x 4096 61.2 by nine of 27, 62.0 by eight
/// of 31; but 9216 x 3072 15.1 by four of 18, 14.7 by three of 24.
const SEVERAL_COLUMNS: usize = 28;

/// Most stages of a ring.
const MAX_STAGES: usize = 8;

/// How columns are dealt to the blocks of a streamed launch.
struct Tiles {
    /// Of a tile.
    columns: usize,
    /// Tiles of a block, at most.
    per_block: usize,
    num_blocks: usize,
}

/// The shared memory of a streamed block.
struct Rings {
    num_stages: usize,
    shared_bytes: usize,
}

/// Stages of `num_stages` whose weights are asked for before x may be. TMA takes boxes in turn: x behind
/// the weights of the whole ring comes last, and nothing is multiplied, nor more asked for, until then. So
/// 8 rows of 3072 x 3072 take 6.8 us on an H200, with half of them ahead 6.4, 896 x 4864 5.1 and 4.7; 32 rows
/// 8.1 and 7.3, 6.4 and 5.8. A launch that overlaps the one before has what is ahead when x comes: 8
/// sequences of Qwen2.5-0.5B have 10,820 tokens/s with the whole ring ahead, 10,540 with half.
///
/// x by another way than TMA is slower: through registers 896 x 896 takes 2.9 instead of 2.5, by `cp.async`
/// 32 rows of 3072 x 3072 8.7.
const fn stages_ahead(num_stages: usize, gpu: Gpu) -> usize {
    if gpu.overlaps { num_stages } else { num_stages.div_ceil(2) }
}

impl SmallM16 {
    /// Most rows whose weights come by TMA, on sm_90.
    pub const MAX_STREAMED_ROWS: usize = 32;

    /// Whether the weight comes by TMA. One row, if it comes here, of a small weight is better off without: its loads are
    /// all under way in registers before a launch that overlaps the one before waits for x (on an H200
    /// Qwen2.5-0.5B has 1,712 tokens/s so, and 1,480 with those of its plain layers by TMA), and so is
    /// one of a wide weight, whose many blocks have no tiles to wait for (151936 x 896 64.7 and 66.9 us,
    /// 32064 x 3072 47.2 and 49.4).
    pub(super) fn is_streamed(&self) -> bool {
        let Linear16 { max_rows, k, .. } = self.0;
        let weight_rows = self.0.weight_rows();
        let is_large = weight_rows.saturating_mul(k) >= LARGE_WEIGHT && weight_rows < MANY_ROWS;
        max_rows <= Self::MAX_STREAMED_ROWS && (max_rows > 1 || is_large)
    }

    /// The launch whose weights come by TMA, of up to [`SmallM16::MAX_STREAMED_ROWS`], on a `gpu` of sm_90:
    /// to compare it.
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
        self.0.check(operands)?;
        let instance = self.choose_streamed(gpu.num_sms, operands)?;
        let shape = Shape::from(instance);
        let Some(Args { n, k, input, weight_stride, bias, residual, residual_stride, out }) =
            self.args(&shape, operands)?
        else {
            return Ok(None);
        };
        let Tiles { columns, per_block, num_blocks } = self.tiles(&shape, gpu.num_sms);
        let Rings { num_stages, shared_bytes } = self.rings(&shape, columns, per_block)?;
        let Linear16 { max_rows, .. } = self.0;
        let line = LINE_K as usize;
        let sizes = [self.0.weight_rows(), self.0.k];
        let weight = maps(&tensor_map(&operands.weight, sizes, [columns, line]));
        let x_map = match operands.x {
            Input16::Half(x) => maps(&tensor_map(&x, [max_rows, self.0.k], [max_rows, line])),
            Input16::Normed { .. } => EncodedTensorMap::NONE,
        };
        let is_normed = is_normed(operands);
        let num_ahead = if is_normed { num_stages } else { stages_ahead(num_stages, gpu) };
        let num_copied = self.copied_stages(&shape).min(num_ahead);
        let num_threads = shape.warps * WARP_SIZE as usize;
        let geometry = Geometry::new([num_blocks, 1, 1], num_threads, shared_bytes)?;
        Ok(geometry.map(|geometry| {
            gemm_16_streamed::launch(
                instance,
                geometry,
                num_rows,
                max_rows as u32,
                n,
                k,
                columns as u32,
                num_stages as u32,
                num_copied as u32,
                num_ahead as u32,
                DevicePtr::new(input.x.0),
                input.x_stride,
                input.norm_weight,
                1.0 / k as f32,
                input.eps,
                bias,
                residual,
                residual_stride,
                out.half,
                out.single,
                out.stride,
                DevicePtr::new(operands.weight.ptr.0),
                weight_stride,
                x_map,
                weight,
            )
        }))
    }

    /// Stages of a ring whose first weights the lanes copy, see [`box_copy`](crate::tile::box_copy): one, of up to
    /// 16 rows where a warp has some lines of a tile. On an H200, without and with, in us: 8 rows of 12288 x 4096
    /// 25.1 and 24.5, 16384 x 3072 24.5 and 23.5, 22016 x 4096 42.8 and 41.4, 3072 x 3072 6.29 and 6.22; but of
    /// 9728 x 896, two lines, 5.9 and 6.1, of 896 x 4864, five, 4.5 and 4.6, and 32 rows of 3072 x 3072 7.0 and
    /// 7.4, of 4096 x 11008 the same. Two stages are no better than one.
    fn copied_stages(&self, shape: &Shape) -> usize {
        let num_lines = self.0.k.div_ceil(shape.warps * LINE_K as usize);
        usize::from(shape.tiles_m <= 2 && num_lines > 5)
    }

    fn choose_streamed<E: Operand16>(
        &self,
        num_sms: usize,
        operands: &Linear16Operands<E>,
    ) -> Result<Instance, LaunchError> {
        let instances = self.instances(Instance::ALL, num_sms, operands);
        let cost = |shape: &Shape| {
            let eights = (max_columns(shape.tiles_n, shape.fused.1) / TILE) as usize;
            self.tiles(shape, num_sms).per_block * (eights + TILE_COST)
        };
        let instance = instances.min_by_key(|(_, shape)| (shape.tiles_m, cost(shape)));
        instance.map_or_else(|| self.too_many_rows(operands), |(instance, _)| Ok(instance))
    }

    /// Tiles that leave all multiprocessors as many columns as possible.
    fn tiles(&self, shape: &Shape, num_sms: usize) -> Tiles {
        let max = max_columns(shape.tiles_n, shape.fused.1) as usize;
        let mut per_block = self.0.n.div_ceil(num_sms * max).max(1);
        if per_block > 1 && shape.tiles_m <= 2 {
            per_block = self.0.n.div_ceil(num_sms * max.min(SEVERAL_COLUMNS));
        }
        let columns = self.0.n.div_ceil(num_sms * per_block).max(1);
        Tiles { columns, per_block, num_blocks: self.0.n.div_ceil(columns).min(num_sms) }
    }

    /// Rings for tiles of `columns` columns.
    fn rings(&self, shape: &Shape, columns: usize, per_block: usize) -> Result<Rings, LaunchError> {
        let (normed, gated) = shape.fused;
        let x_rows = if normed { 0 } else { self.0.max_rows };
        let rows = ring::stage_rows((num_parts(gated) * columns + x_rows) as u32) as usize;
        let stage_bytes = shape.warps * rows * LINE_K as usize * size_of::<u16>();
        let num_sums = num_sums(shape.tiles_m, shape.tiles_n, gated, shape.warps);
        let row_bytes =
            if normed { normed::shared_bytes(self.0.max_rows, self.0.k as u32) } else { 0 };
        let others = num_sums as usize * size_of::<f32>()
            + row_bytes
            + shape.warps * MAX_STAGES * size_of::<u64>();
        let room = MAX_STREAMED_BYTES.saturating_sub(others) / stage_bytes;
        if room == 0 {
            return refuse("k", self.0.k, "columns whose normed rows fit into shared memory");
        }
        let is_large = self.0.weight_rows().saturating_mul(self.0.k) >= LARGE_WEIGHT;
        let ring_bytes = if is_large { LARGE_RING_BYTES } else { RING_BYTES };
        let num_stages = (ring_bytes / stage_bytes).clamp(2, MAX_STAGES).min(room);
        let num_lines = per_block * self.0.k.div_ceil(shape.warps * LINE_K as usize);
        let num_stages = num_stages.min(num_lines);
        let shared_bytes = num_stages * stage_bytes + others;
        Ok(Rings { num_stages, shared_bytes })
    }
}
