//! Which instance computes a linear layer of few rows, and its launch.

mod streamed;

use super::epilogue::{max_columns, num_sums};
use super::gemm_16_small_m::{self, Instance};
use super::gemm_16_streamed::Instance as StreamedInstance;
use super::mainloop::{LOAD_K, TILE};
use super::normed;
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::{Gpu, Input16, Linear16, Linear16Operands, MAX_FUSED_ROWS, Out16, Target};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use cuda_std::warp::WARP_SIZE;

/// Rows of the weight up to which 16 warps share k: two blocks of eight columns for each SM.
const fn narrow_n(num_sms: usize) -> usize {
    2 * num_sms * TILE as usize
}

/// Rows of the weight from which on a block of one row of x takes 32 of them. On an H200, in us by
/// 8 and by 32: 9216 x 3072 17.4 and 18.3; 9728 x 896 7.3 and 6.8; 12288 x 4096 29.5 and 27.3;
/// 16384 x 3072 29.0 and 25.1; 32064 x 3072 51.6 and 46.4. For eight rows 32 are never slower.
const WIDE_N: usize = 9600;

/// Shared memory that a block may have on every device of the targets.
const MAX_SHARED_BYTES: usize = 99 << 10;

/// Most 16-byte loads of an operand: a lane counts them in a `u32`.
const MAX_LOADS: usize = i32::MAX as usize;

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

fn refuse<T>(what: &'static str, value: usize, expected: &'static str) -> Result<T, LaunchError> {
    Err(LaunchError::Shape { what, value, expected })
}

/// A linear layer of few rows, in elements of 16 bits.
#[derive(Clone, Copy, Debug)]
pub struct SmallM16(pub Linear16);

impl SmallM16 {
    /// Most rows.
    pub const MAX_ROWS: usize = 64;

    /// Whether there is a kernel for layers of up to `max_rows` rows of `k` columns with a norm in
    /// front: its rows stand in shared memory. Up to 5,120 columns it takes all
    /// [`MAX_FUSED_ROWS`], of 8,192 five.
    pub const fn fuses(max_rows: usize, k: usize) -> bool {
        max_rows <= MAX_FUSED_ROWS && k > 0 && k <= i32::MAX as usize && {
            // Those of the instance that has most sums.
            shared_bytes([1, 4], false, 8, Some((max_rows, k as u32))) <= MAX_SHARED_BYTES
        }
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` encodes tensor maps.
    ///
    /// # Errors
    /// As [`Linear16::launch`]; also for more than [`SmallM16::MAX_ROWS`], and for operands of more than 32 GiB.
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
        self.0.check(operands)?;
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
        let weight_stride = Self::stride("row stride of the weight", weight, self.0.weight_rows())?;
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

    /// The instances for the layer, of those of a kernel. How many warps share k decides the order
    /// of the sums: it must not depend on the rows, nor on what is fused, nor on how the weight comes.
    fn instances<E: Operand16, I: Copy + Into<Shape>>(
        &self,
        all: &[I],
        num_sms: usize,
        operands: &Linear16Operands<E>,
    ) -> impl Iterator<Item = (I, Shape)> {
        let warps = if self.0.weight_rows() <= narrow_n(num_sms) { 16 } else { 8 };
        let fused = (is_normed(operands), self.0.gated);
        let max_rows = self.0.max_rows;
        let all = all.iter().map(|&instance| (instance, instance.into()));
        all.filter(move |(_, shape): &(I, Shape)| {
            shape.is_of::<E>()
                && shape.fused == fused
                && shape.warps == warps
                && max_rows <= shape.max_rows()
        })
    }

    fn too_many_rows<T, E>(&self, operands: &Linear16Operands<E>) -> Result<T, LaunchError> {
        let is_normed = is_normed(operands);
        let expected = if is_normed { "at most 8 with a norm" } else { "at most 64" };
        refuse("rows", self.0.max_rows, expected)
    }

    fn choose<E: Operand16>(
        &self,
        num_sms: usize,
        operands: &Linear16Operands<E>,
    ) -> Result<Instance, LaunchError> {
        let weight_rows = self.0.weight_rows();
        let is_wide =
            weight_rows > narrow_n(num_sms) && (self.0.max_rows > 1 || weight_rows >= WIDE_N);
        let tiles_n = match (self.0.gated, is_wide) {
            // 16 columns of gate and of up a block were slower: 1440 for 1462 tokens/s of Qwen2.5-0.5B.
            (true, _) => 2,
            (false, true) => 4,
            (false, false) => 1,
        };
        let mut instances = self.instances(Instance::ALL, num_sms, operands);
        let instance = instances.find(|(_, shape)| shape.tiles_n == tiles_n);
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
                x_stride: Self::stride(what, &x, self.0.max_rows)?,
                norm_weight: DevicePtr::null(),
                eps: 0.0,
            }),
            Input16::Normed { .. } if !Self::fuses(self.0.max_rows, self.0.k) => {
                refuse("k", self.0.k, "columns whose normed rows fit into shared memory")
            }
            Input16::Normed { x, weight, eps } => Ok(InputArgs {
                x: x.untyped_ptr(),
                x_stride: Self::stride(what, &x, self.0.max_rows)?,
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

    /// The stride of an operand whose loads a lane can count.
    fn stride<E>(what: &'static str, rows: &Rows<E>, num_rows: usize) -> Result<u32, LaunchError> {
        let num_loads = num_rows.saturating_mul(rows.row_stride / LOAD_K as usize);
        if num_loads > MAX_LOADS {
            return refuse(what, rows.row_stride, "a matrix of at most 32 GiB");
        }
        rows.stride_arg()
    }
}
