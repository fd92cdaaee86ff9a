//! Which instance computes a linear layer of few rows, and its launch.

use super::epilogue::{max_columns, num_sums};
use super::gemm_16_small_m::{self, Instance};
use super::gemm_16_streamed::{self, Instance as StreamedInstance};
use super::mainloop::{LINE_K, LOAD_K, TILE};
use super::{normed, ring};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::linear16::tensor_map;
use crate::gemm::{Gpu, Input16, Linear16, Linear16Operands, MAX_FUSED_ROWS, Out16, Target};
use crate::operand::is_aligned;
use crate::silu_mul::num_parts;
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use cuda_std::warp::WARP_SIZE;

/// SMs of an H200.
const NUM_SMS: usize = 132;

/// Columns up to which 16 warps share k: two blocks of eight columns an SM, that hold all its warps.
const NARROW_N: usize = 2 * NUM_SMS * TILE as usize;

/// Rows of the weight from which on a block of one row of x takes 32 of them. On an H200, in us by
/// 8 and by 32: 9216 x 3072 17.4 and 18.3; 9728 x 896 7.3 and 6.8; 12288 x 4096 29.5 and 27.3;
/// 16384 x 3072 29.0 and 25.1; 32064 x 3072 51.6 and 46.4. For eight rows 32 are never slower.
const WIDE_N: usize = 9600;

/// Shared memory that a block may have on every device of the targets.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// Largest k: offsets past its end stay in a `u32`.
const MAX_K: usize = i32::MAX as usize;

/// Most 16-byte loads of an operand: a lane counts them in a `u32`.
const MAX_LOADS: usize = i32::MAX as usize;

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

/// Shared memory of a block: the sums, and behind them the normed rows of a `k`, if there are any.
const fn shared_bytes(
    tiles: [usize; 2],
    gated: bool,
    warps: usize,
    normed: Option<(usize, u32)>,
) -> usize {
    let sums = num_sums(tiles[0], tiles[1], gated, warps) as usize * size_of::<f32>();
    match normed {
        Some((max_rows, k)) => sums + normed::shared_bytes(max_rows, k),
        None => sums,
    }
}

/// The name of `E` in symbols.
fn name_of<E: Operand16>() -> &'static str {
    if E::DTYPE == Dtype::Bf16 { "bf16" } else { "f16" }
}

/// What an instance computes.
#[derive(Clone, Copy)]
struct Shape {
    symbol: &'static str,
    tiles_m: usize,
    tiles_n: usize,
    warps: usize,
    fused: (bool, bool),
}

impl Shape {
    fn is_of<E: Operand16>(&self) -> bool {
        self.symbol.split('_').nth(1) == Some(name_of::<E>())
    }

    fn max_rows(&self) -> usize {
        self.tiles_m * TILE as usize
    }
}

macro_rules! shape_of {
    ($($instance:ident),*) => {$(
        impl From<$instance> for Shape {
            fn from(instance: $instance) -> Self {
                Shape {
                    symbol: instance.symbol(),
                    tiles_m: instance.tiles_m(),
                    tiles_n: instance.tiles_n(),
                    warps: instance.warps(),
                    fused: (instance.normed(), instance.gated()),
                }
            }
        }
    )*};
}

shape_of!(Instance, StreamedInstance);

fn is_normed<E>(operands: &Linear16Operands<E>) -> bool {
    matches!(operands.x, Input16::Normed { .. })
}

/// The arguments of an instance for x.
struct InputArgs {
    x: DevicePtr<()>,
    x_stride: u32,
    norm_weight: DevicePtr<f32>,
    eps: f32,
}

/// Where the outputs go.
struct OutArgs {
    half: DevicePtr<u16>,
    single: DevicePtr<f32>,
    stride: u32,
}

/// The arguments of both kernels.
struct Args {
    n: u32,
    k: u32,
    input: InputArgs,
    weight_stride: u32,
    bias: DevicePtr<f32>,
    residual: DevicePtr<f32>,
    residual_stride: u32,
    out: OutArgs,
}

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

fn refuse<T>(what: &'static str, value: usize, expected: &'static str) -> Result<T, LaunchError> {
    Err(LaunchError::Shape { what, value, expected })
}

/// A linear layer of few rows, in elements of 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct SmallM16(pub Linear16);

impl SmallM16 {
    /// Most rows.
    pub const MAX_ROWS: usize = 64;

    /// Most rows whose weights come by TMA, on sm_90.
    pub const MAX_STREAMED_ROWS: usize = 32;

    /// Whether there is a kernel for layers of up to `max_rows` rows of `k` columns with a norm in
    /// front: its rows stand in shared memory. Up to 5,120 columns it takes all
    /// [`MAX_FUSED_ROWS`], of 8,192 five.
    pub const fn fuses(max_rows: usize, k: usize) -> bool {
        max_rows <= MAX_FUSED_ROWS && k > 0 && k <= MAX_K && {
            // Those of the instance that has most sums.
            shared_bytes([1, 4], false, 8, Some((max_rows, k as u32))) <= MAX_SHARED_BYTES
        }
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` encodes tensor maps.
    ///
    /// # Errors
    /// [`LaunchError`] for more than [`SmallM16::MAX_ROWS`], rows of `x` or `weight` that do not
    /// start at multiples of 16 bytes, sizes beyond a grid or a `u32`, a norm where
    /// [`SmallM16::fuses`] says no, a gate without a norm, f32 outputs of a gate, and a residual
    /// of either.
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        let is_streamed = gpu.target == Target::Sm90a && self.is_streamed();
        if is_streamed {
            self.launch_streamed(gpu, num_rows, operands, maps)
        } else {
            let instance = self.choose(operands)?;
            self.launch_instance(instance, num_rows, operands)
        }
    }

    /// Whether the weight comes by TMA. One row, if it comes here, of a small weight is better off without: its loads are
    /// all under way in registers before a launch that overlaps the one before waits for x (on an H200
    /// Qwen2.5-0.5B has 1,712 tokens/s so, and 1,480 with those of its plain layers by TMA), and so is
    /// one of a wide weight, whose many blocks have no tiles to wait for (151936 x 896 64.7 and 66.9 us,
    /// 32064 x 3072 47.2 and 49.4).
    fn is_streamed(&self) -> bool {
        let Linear16 { max_rows, k, .. } = self.0;
        let weight_rows = self.0.weight_rows();
        let is_large = weight_rows.saturating_mul(k) >= LARGE_WEIGHT && weight_rows < MANY_ROWS;
        k > 0 && max_rows <= Self::MAX_STREAMED_ROWS && (max_rows > 1 || is_large)
    }

    /// The launch of an instance of `E`: to compare them.
    ///
    /// # Errors
    /// As [`SmallM16::launch`]; also for more rows than the instance has.
    ///
    /// # Panics
    /// If the instance is of another element, or fused to something else.
    pub fn launch_instance<E: Operand16>(
        &self,
        instance: Instance,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let shape = Shape::from(instance);
        let Some(Args { n, k, input, weight_stride, bias, residual, residual_stride, out }) =
            self.args(&shape, operands)?
        else {
            return Ok(None);
        };
        let geometry = self.geometry(&shape)?;
        Ok(geometry.map(|geometry| {
            gemm_16_small_m::launch(
                instance,
                geometry,
                num_rows,
                self.0.max_rows as u32,
                n,
                k,
                input.x,
                input.x_stride,
                input.norm_weight,
                1.0 / k as f32,
                input.eps,
                DevicePtr::new(operands.weight.ptr.0),
                weight_stride,
                bias,
                residual,
                residual_stride,
                out.half,
                out.single,
                out.stride,
            )
        }))
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

    /// What both kernels take, or `None` if there are no outputs.
    fn args<E: Operand16>(
        &self,
        shape: &Shape,
        operands: &Linear16Operands<E>,
    ) -> Result<Option<Args>, LaunchError> {
        assert!(shape.is_of::<E>(), "{} is not of {}", shape.symbol, name_of::<E>());
        let fused = (is_normed(operands), self.0.gated);
        assert!(shape.fused == fused, "{}", shape.symbol);
        if self.0.max_rows > shape.max_rows() {
            return refuse("rows", self.0.max_rows, "at most the instance's");
        }
        let input = self.input(operands)?;
        let Linear16Operands { weight, bias, residual, out, .. } = operands;
        if self.0.gated && matches!(out, Out16::F32(_)) {
            return refuse("output bits", 32, "16 behind a gate");
        }
        let weight_stride =
            self.stride("row stride of the weight", weight, self.0.weight_rows())?;
        let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        let out = match out {
            Out16::Half(rows) => OutArgs {
                half: DevicePtr::new(rows.ptr.0),
                single: DevicePtr::null(),
                stride: rows.stride_arg()?,
            },
            Out16::F32(rows) => {
                OutArgs { half: DevicePtr::null(), single: rows.ptr, stride: rows.stride_arg()? }
            }
        };
        let args = Args {
            n: arg_u32("n", self.0.n)?,
            k: arg_u32("k", self.0.k)?,
            input,
            weight_stride,
            bias: bias.unwrap_or(DevicePtr::null()),
            residual: residual.ptr,
            residual_stride: residual.stride_arg()?,
            out,
        };
        Ok((self.0.max_rows > 0 && self.0.n > 0).then_some(args))
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

    /// The instances for the layer, of those of a kernel. How many warps share k decides the order
    /// of the sums: it must not depend on the rows, nor on what is fused, nor on how the weight comes.
    fn instances<E: Operand16, I: Copy + Into<Shape>>(
        &self,
        all: &[I],
        operands: &Linear16Operands<E>,
    ) -> Result<impl Iterator<Item = (I, Shape)>, LaunchError> {
        let warps = if self.0.weight_rows() <= NARROW_N { 16 } else { 8 };
        let fused = (is_normed(operands), self.0.gated);
        if fused == (false, true) {
            return refuse("input bits", 16, "32, which a norm takes, under a gate");
        }
        let max_rows = self.0.max_rows;
        let all = all.iter().map(|&instance| (instance, instance.into()));
        Ok(all.filter(move |(_, shape): &(I, Shape)| {
            shape.is_of::<E>()
                && shape.fused == fused
                && shape.warps == warps
                && max_rows <= shape.max_rows()
        }))
    }

    fn too_many_rows<T, E>(&self, operands: &Linear16Operands<E>) -> Result<T, LaunchError> {
        let is_normed = is_normed(operands);
        let expected = if is_normed { "at most 8 behind a norm" } else { "at most 64" };
        refuse("rows", self.0.max_rows, expected)
    }

    fn choose<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<Instance, LaunchError> {
        let weight_rows = self.0.weight_rows();
        let is_wide = weight_rows > NARROW_N && (self.0.max_rows > 1 || weight_rows >= WIDE_N);
        let tiles_n = match (self.0.gated, is_wide) {
            // 16 columns of gate and of up a block were slower: 1440 for 1462 tokens/s of Qwen2.5-0.5B.
            (true, _) => 2,
            (false, true) => 4,
            (false, false) => 1,
        };
        let mut instances = self.instances(Instance::ALL, operands)?;
        let instance = instances.find(|(_, shape)| shape.tiles_n == tiles_n);
        instance.map_or_else(|| self.too_many_rows(operands), |(instance, _)| Ok(instance))
    }

    fn choose_streamed<E: Operand16>(
        &self,
        num_sms: usize,
        operands: &Linear16Operands<E>,
    ) -> Result<StreamedInstance, LaunchError> {
        let instances = self.instances(StreamedInstance::ALL, operands)?;
        let cost = |shape: &Shape| {
            let eights = (max_columns(shape.tiles_n, shape.fused.1) / TILE) as usize;
            self.tiles(shape, num_sms).per_block * (eights + TILE_COST)
        };
        let instance = instances.min_by_key(|(_, shape)| (shape.tiles_m, cost(shape)));
        instance.map_or_else(|| self.too_many_rows(operands), |(instance, _)| Ok(instance))
    }

    fn input<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<InputArgs, LaunchError> {
        let what = "row stride of x";
        match operands.x {
            Input16::Half(x) => Ok(InputArgs {
                x: x.untyped_ptr(),
                x_stride: self.stride(what, &x, self.0.max_rows)?,
                norm_weight: DevicePtr::null(),
                eps: 0.0,
            }),
            Input16::Normed { .. } if !Self::fuses(self.0.max_rows, self.0.k) => {
                refuse("k", self.0.k, "columns whose normed rows fit into shared memory")
            }
            Input16::Normed { .. } if operands.residual.is_some() => {
                refuse("residuals", 1, "none behind a norm")
            }
            Input16::Normed { weight, .. } if !is_aligned(weight) => {
                refuse("address of the norm's weight", weight.0 as usize, "a multiple of 16")
            }
            Input16::Normed { x, weight, eps } => Ok(InputArgs {
                x: x.untyped_ptr(),
                x_stride: self.stride(what, &x, self.0.max_rows)?,
                norm_weight: weight,
                eps,
            }),
        }
    }

    fn geometry(&self, shape: &Shape) -> Result<Option<Geometry>, LaunchError> {
        let &Shape { tiles_m, tiles_n, warps, fused: (is_normed, is_gated), .. } = shape;
        let block_n = max_columns(tiles_n, is_gated) as usize;
        let normed = (self.0.max_rows, arg_u32("k", self.0.k)?);
        let normed = is_normed.then_some(normed);
        let shared_bytes = shared_bytes([tiles_m, tiles_n], is_gated, warps, normed);
        let num_threads = warps * WARP_SIZE as usize;
        Geometry::new(
            [self.0.n.div_ceil(block_n), self.0.max_rows.min(1), 1],
            num_threads,
            shared_bytes,
        )
    }

    /// The stride of an operand that lanes load 16 bytes of.
    fn stride<E>(
        &self,
        what: &'static str,
        rows: &Rows<E>,
        num_rows: usize,
    ) -> Result<u32, LaunchError> {
        if !self.0.k.is_multiple_of(LOAD_K as usize) {
            return refuse("k", self.0.k, "a multiple of 8");
        }
        if !rows.is_aligned() {
            return refuse(what, rows.row_stride, "rows at multiples of 16 bytes");
        }
        if self.0.k > MAX_K {
            return refuse("k", self.0.k, "at most 2147483647");
        }
        let num_loads = num_rows.saturating_mul(rows.row_stride / LOAD_K as usize);
        if num_loads > MAX_LOADS {
            return refuse(what, rows.row_stride, "a matrix of at most 32 GiB");
        }
        rows.stride_arg()
    }
}
