//! The tile configurations of the GEMM for sm_80, the choice among them, and the launch.

use super::gemm_sm80;
use super::tile::{MmaTile, Tile64x64, Tile128x128, Tile128x256};
use crate::Rows;
use crate::element::Dtype;
use crate::gemm::{Accumulate, Linear16, Linear16Operands, Out16};
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

/// Largest k: the columns of the stages copied ahead fit in a `u32`.
const MAX_K: usize = i32::MAX as usize;

/// A tile configuration, on the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The name in symbols.
    pub name: &'static str,
    /// Rows of a tile.
    pub block_m: usize,
    /// Columns of a tile.
    pub block_n: usize,
    /// The type of the accumulators.
    pub accumulate: Accumulate,
    num_threads: usize,
    shared_bytes: usize,
    /// Clocks of an SM for 16 columns of k of a tile.
    clocks: usize,
}

impl Config {
    /// All configurations with f32 accumulators, with the clocks that each took on an H200 at 4096
    /// cubed. Of equally good ones the first is taken.
    pub const ALL: [Config; 3] = [
        Config::of::<4, 4, Tile128x256>(530),
        Config::of::<4, 4, Tile128x128>(301),
        Config::of::<2, 2, Tile64x64>(110),
    ];

    /// The one with f16 accumulators, for f16 operands only.
    pub const IN_F16: Config =
        Config { accumulate: Accumulate::F16, ..Config::of::<4, 4, Tile128x128>(301) };

    const fn of<const M: usize, const N: usize, T: MmaTile<M, N>>(clocks: usize) -> Self {
        Config {
            name: T::NAME,
            block_m: T::BLOCK_M as usize,
            block_n: T::BLOCK_N as usize,
            accumulate: Accumulate::F32,
            num_threads: T::NUM_THREADS as usize,
            shared_bytes: T::SHARED_BYTES as usize,
            clocks,
        }
    }

    /// The configuration under which the busiest of `num_sms` SMs ends first, of those with the
    /// accumulators that the layer asks for.
    pub fn best_for(linear: &Linear16, num_sms: usize) -> &'static Config {
        let clocks = |config: &&Config| {
            let waves = config.num_tiles(linear).div_ceil(num_sms);
            waves.saturating_mul(config.clocks)
        };
        match linear.summation.accumulate {
            Accumulate::F32 => {
                Self::ALL.iter().min_by_key(clocks).expect("there are configurations")
            }
            Accumulate::F16 => &Self::IN_F16,
        }
    }

    fn num_tiles(&self, Linear16 { max_rows, n, .. }: &Linear16) -> usize {
        max_rows.div_ceil(self.block_m).saturating_mul(n.div_ceil(self.block_n))
    }
}

/// The launch in the best configuration for `num_sms` SMs, with `num_rows` the device's count of
/// rows, or `None` if there are no rows or no columns.
///
/// # Errors
/// [`LaunchError`] for a k or rows of `x` or `weight` that are no multiples of 16 bytes, and for
/// sizes beyond a grid or a `u32`.
pub fn launch<E: Operand16>(
    linear: &Linear16,
    num_sms: usize,
    num_rows: DevicePtr<u32>,
    operands: &Linear16Operands<E>,
) -> Result<Option<Launch>, LaunchError> {
    launch_with(Config::best_for(linear, num_sms), linear, num_rows, operands)
}

/// As [`launch`], in this configuration.
///
/// # Errors
/// As [`launch`].
pub fn launch_with<E: Operand16>(
    config: &Config,
    linear: &Linear16,
    num_rows: DevicePtr<u32>,
    operands: &Linear16Operands<E>,
) -> Result<Option<Launch>, LaunchError> {
    let x = linear.plain_input(operands)?;
    let Linear16Operands { weight, bias, residual, out, .. } = operands;
    check(linear.k, [&x, weight])?;
    let name = if E::DTYPE == Dtype::Bf16 { "bf16" } else { "f16" };
    let (out_name, out_ptr, out_stride) = match out {
        Out16::Half(rows) => (name, DevicePtr::new(rows.ptr.0), rows.stride_arg()?),
        Out16::F32(rows) => ("f32", DevicePtr::new(rows.ptr.0), rows.stride_arg()?),
    };
    let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
    let suffix = if config.accumulate == Accumulate::F16 { "_in_f16" } else { "" };
    let symbol = format!("gemm_sm80_{name}_{out_name}_{}{suffix}", config.name);
    let mut instances = gemm_sm80::Instance::ALL.iter();
    let instance = instances.find(|instance| instance.symbol() == symbol);
    let instance = *instance.ok_or(Linear16::F16_ACCUMULATORS_OF_BF16)?;
    let (n, k) = (arg_u32("n", linear.n)?, arg_u32("k", linear.k)?);
    let (x_stride, weight_stride) = (x.stride_arg()?, weight.stride_arg()?);
    let residual_stride = residual.stride_arg()?;
    let grid = [config.num_tiles(linear), 1, 1];
    let geometry = Geometry::new(grid, config.num_threads, config.shared_bytes)?;
    Ok(geometry.map(|geometry| {
        gemm_sm80::launch(
            instance,
            geometry,
            num_rows,
            n,
            k,
            DevicePtr::new(x.ptr.0),
            x_stride,
            DevicePtr::new(weight.ptr.0),
            weight_stride,
            bias.unwrap_or(DevicePtr::null()),
            residual.ptr,
            residual_stride,
            out_ptr,
            out_stride,
        )
    }))
}

/// Refuses operands that `cp.async` cannot copy 16 bytes at a time.
fn check<E>(k: usize, rows: [&Rows<E>; 2]) -> Result<(), LaunchError> {
    if k > MAX_K || !k.is_multiple_of(8) {
        let expected = "a multiple of 8, at most 2147483647";
        return Err(LaunchError::Shape { what: "k", value: k, expected });
    }
    for rows in rows {
        if !rows.row_stride.is_multiple_of(8) {
            let (what, expected) = ("row stride", "a multiple of 8");
            return Err(LaunchError::Shape { what, value: rows.row_stride, expected });
        }
        if !rows.is_aligned() {
            let (what, expected) = ("address of an operand", "a multiple of 16");
            return Err(LaunchError::Shape { what, value: rows.ptr.0 as usize, expected });
        }
    }
    Ok(())
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of this kernel.
pub(in super::super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    let (_, config) = symbol.strip_prefix("gemm_sm80_")?.split_once('_')?;
    let (_, config) = config.split_once('_')?;
    let name = config.strip_suffix("_in_f16").unwrap_or(config);
    Config::ALL.iter().find(|config| config.name == name).map(|config| config.shared_bytes)
}
