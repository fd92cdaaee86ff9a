//! Which instance computes a linear layer of few rows, and its launch.

use super::epilogue::{num_parts, num_sums};
use super::gemm_16_small_m::{self, Instance};
use super::mainloop::{LOAD_K, TILE};
use super::normed;
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::{Input16, Linear16, Linear16Operands, MAX_FUSED_ROWS, Out16};
use crate::operand::is_aligned;
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};
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

/// Shared memory of a block: the sums, and behind them the normed rows of a `k`, if there are any.
const fn shared_bytes(tiles: [usize; 2], warps: usize, normed: Option<(usize, u32)>) -> usize {
    let sums = num_sums(tiles[0], tiles[1], warps) as usize * size_of::<f32>();
    match normed {
        Some((max_rows, k)) => sums + normed::shared_bytes(max_rows, k),
        None => sums,
    }
}

/// The name of `E` in symbols.
fn name_of<E: Operand16>() -> &'static str {
    if E::DTYPE == Dtype::Bf16 { "bf16" } else { "f16" }
}

/// Whether the instance's operands are of `E`.
fn is_of<E: Operand16>(instance: Instance) -> bool {
    instance.symbol().split('_').nth(1) == Some(name_of::<E>())
}

/// Most rows of the instance.
fn max_rows(instance: Instance) -> usize {
    instance.tiles_m() * TILE as usize
}

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
        max_rows <= MAX_FUSED_ROWS && k > 0 && k <= MAX_K && {
            // Those of the instance that has most sums.
            shared_bytes([1, 2], 16, Some((max_rows, k as u32))) <= MAX_SHARED_BYTES
        }
    }

    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns.
    ///
    /// # Errors
    /// [`LaunchError`] for more than [`SmallM16::MAX_ROWS`], rows of `x` or `weight` that do not
    /// start at multiples of 16 bytes, sizes beyond a grid or a `u32`, a norm where
    /// [`SmallM16::fuses`] says no, a gate without a norm, f32 outputs of a gate, and a residual
    /// of either.
    pub fn launch<E: Operand16>(
        &self,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        self.launch_instance(self.choose(operands)?, num_rows, operands)
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
        assert!(is_of::<E>(instance), "{} is not of {}", instance.symbol(), name_of::<E>());
        let fused = (is_normed(operands), self.0.gated);
        assert!((instance.normed(), instance.gated()) == fused, "{}", instance.symbol());
        if self.0.max_rows > max_rows(instance) {
            return refuse("rows", self.0.max_rows, "at most the instance's");
        }
        let InputArgs { x, x_stride, norm_weight, eps } = self.input(operands)?;
        let Linear16Operands { weight, bias, residual, out, .. } = operands;
        if self.0.gated && matches!(out, Out16::F32(_)) {
            return refuse("output bits", 32, "16 behind a gate");
        }
        let weight_stride =
            self.stride("row stride of the weight", weight, self.0.weight_rows())?;
        let bias = bias.unwrap_or(DevicePtr::null());
        let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        let (half, single, out_stride) = match out {
            Out16::Half(rows) => (rows.ptr.0, DevicePtr::null(), rows.stride_arg()?),
            Out16::F32(rows) => (0, rows.ptr, rows.stride_arg()?),
        };
        let (n, k) = (arg_u32("n", self.0.n)?, arg_u32("k", self.0.k)?);
        let residual_stride = residual.stride_arg()?;
        let geometry = self.geometry(instance)?;
        Ok(geometry.map(|geometry| {
            gemm_16_small_m::launch(
                instance,
                geometry,
                num_rows,
                n,
                k,
                x,
                x_stride,
                norm_weight,
                1.0 / k as f32,
                eps,
                DevicePtr::new(weight.ptr.0),
                weight_stride,
                bias,
                residual.ptr,
                residual_stride,
                DevicePtr::new(half),
                single,
                out_stride,
            )
        }))
    }

    /// How many warps share k decides the order of the sums: it must not depend on the rows, nor on
    /// what is fused.
    fn choose<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<Instance, LaunchError> {
        let weight_rows = self.0.weight_rows();
        let warps = if weight_rows <= NARROW_N { 16 } else { 8 };
        let is_wide = weight_rows > NARROW_N && (self.0.max_rows > 1 || weight_rows >= WIDE_N);
        let tiles_n = match (self.0.gated, is_wide) {
            // 16 columns of gate and of up a block were slower: 1440 for 1462 tokens/s of Qwen2.5-0.5B.
            (true, _) => 2,
            (false, true) => 4,
            (false, false) => 1,
        };
        let fused = (is_normed(operands), self.0.gated);
        if fused == (false, true) {
            return refuse("input bits", 16, "32, which a norm takes, under a gate");
        }
        let mut instances = Instance::ALL.iter().copied();
        let instance = instances.find(|&instance| {
            is_of::<E>(instance)
                && (instance.normed(), instance.gated()) == fused
                && instance.warps() == warps
                && instance.tiles_n() == tiles_n
                && self.0.max_rows <= max_rows(instance)
        });
        let expected = if fused.0 { "at most 8 behind a norm" } else { "at most 64" };
        instance.map_or_else(|| refuse("rows", self.0.max_rows, expected), Ok)
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

    fn geometry(&self, instance: Instance) -> Result<Option<Geometry>, LaunchError> {
        let (tiles_m, tiles_n, warps) = (instance.tiles_m(), instance.tiles_n(), instance.warps());
        let block_n = tiles_n / num_parts(instance.gated()) * TILE as usize;
        let normed = (self.0.max_rows, arg_u32("k", self.0.k)?);
        let normed = instance.normed().then_some(normed);
        let shared_bytes = shared_bytes([tiles_m, tiles_n], warps, normed);
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
