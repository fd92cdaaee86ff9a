//! Which kernel computes a linear layer of 16-bit operands, and its launch.
//!
//! Among the tiles of one target the order in which an output is summed over k is one: a row's
//! outputs are the same whatever the number of rows beside it. The kernels for few rows sum in an
//! order of their own, which n and k decide.

use super::f16_sm80;
use super::f16_sm90::TileConfig;
use super::f16_small_m::SmallM16;
use crate::Rows;
use crate::tile::element::Operand16;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{TensorMapPtr, TensorMapSpec};

/// The kernels that a device can run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// Compute capability 8.0 and newer.
    Sm80,
    /// Compute capability 9.0.
    Sm90a,
}

impl Target {
    /// Its name in PTX.
    pub const fn name(self) -> &'static str {
        match self {
            Target::Sm80 => "sm_80",
            Target::Sm90a => "sm_90a",
        }
    }
}

/// What a launch is to fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The kernels that it can run.
    pub target: Target,
    /// Its multiprocessors.
    pub num_sms: usize,
}

impl Gpu {
    /// An H100 or H200.
    pub const HOPPER: Gpu = Gpu { target: Target::Sm90a, num_sms: 132 };
}

/// In whose order a linear layer is summed over k. Among the kernels of either the weight's shape
/// decides it, and the number of rows does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SumOrder {
    /// That of the fastest kernel for so many rows.
    #[default]
    Fastest,
    /// That of the kernels for few rows.
    FewRows,
    /// That of tiles.
    Tiles,
}

/// A linear layer of 16-bit operands, summed in f32.
#[derive(Clone, Copy, Debug)]
pub struct Linear16 {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
}

/// The operands of a linear layer, with memory for `max_rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct Linear16Operands<E> {
    /// `[max_rows, k]`.
    pub x: Rows<E>,
    /// `[n, k]`.
    pub weight: Rows<E>,
    /// `[n]`.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, of f32 outputs alone.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`.
    pub out: Out16<E>,
}

/// Outputs of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Out16<E> {
    /// Rounded to the operands' type.
    Half(Rows<E>),
    /// As they are summed; may be the residual.
    F32(Rows<f32>),
}

/// Largest size: a coordinate of a box is an `i32`, and the last box may end past the tensor.
const MAX_SIZE: usize = i32::MAX as usize - 512;

/// Largest row stride: its bytes stay in a `u32`.
const MAX_STRIDE: usize = (1 << 30) - 1;

impl Linear16 {
    /// The launch, with `num_rows` the device's count of rows, or `None` if there are no rows or no
    /// columns. `maps` keeps a tensor map on the device, and tells where.
    ///
    /// # Errors
    /// [`LaunchError`] for a k that is no multiple of 8, operands whose rows do not start at
    /// multiples of 16 bytes, a residual of 16-bit outputs, sizes beyond a grid or an `i32`, and a
    /// device that has no kernel.
    pub fn launch<E: Operand16>(
        &self,
        gpu: Gpu,
        order: SumOrder,
        num_rows: DevicePtr<u32>,
        operands: &Linear16Operands<E>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> TensorMapPtr,
    ) -> Result<Option<Launch>, LaunchError> {
        self.check(operands)?;
        let has_few_rows = match order {
            SumOrder::Fastest => self.max_rows <= SmallM16::MAX_ROWS,
            SumOrder::FewRows => true,
            SumOrder::Tiles => false,
        };
        if has_few_rows {
            return SmallM16(*self).launch(num_rows, operands);
        }
        match gpu.target {
            Target::Sm80 => f16_sm80::launch(self, num_rows, operands),
            Target::Sm90a => {
                let config = TileConfig::fastest(self, gpu.num_sms);
                config.launch(self, gpu.num_sms, num_rows, operands, maps)
            }
        }
    }

    /// Whether tiles can compute this.
    pub(super) fn check<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<(), LaunchError> {
        let Linear16Operands { x, weight, residual, out, .. } = operands;
        let error = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        for (what, value) in [("rows", self.max_rows), ("n", self.n), ("k", self.k)] {
            if value > MAX_SIZE {
                return error(what, value, "at most 2147483135");
            }
        }
        if self.k == 0 || !self.k.is_multiple_of(8) {
            return error("k", self.k, "a multiple of 8");
        }
        for rows in [x, weight] {
            if !rows.row_stride.is_multiple_of(8) {
                return error("row stride", rows.row_stride, "a multiple of 8");
            }
            if !rows.ptr.0.is_multiple_of(16) {
                return error("address", rows.ptr.0 as usize, "a multiple of 16");
            }
        }
        let out_stride = match out {
            Out16::Half(_) if residual.is_some() => {
                return error("output bits", 16, "32 where a residual is added");
            }
            Out16::Half(out) => out.row_stride,
            Out16::F32(out) => out.row_stride,
        };
        let residual_stride = residual.map_or(0, |residual| residual.row_stride);
        for stride in [x.row_stride, weight.row_stride, out_stride, residual_stride] {
            if stride > MAX_STRIDE {
                return error("row stride", stride, "at most 1073741823");
            }
        }
        Ok(())
    }
}
