//! The linear layers that kernels compute: shapes, operands, and what is refused.

use crate::Rows;
use crate::activation::num_parts;
use crate::element::Dtype;
use crate::tile::box_copy::GATE_ROWS;
use crate::tile::element::{Operand16, WgmmaOperand};
use crate::tile::weight::WeightElement;
use cuda_std::launch::{DevicePtr, LaunchError};
use cuda_std::tensor_map::{L2Promotion, Swizzle, TensorMapSpec};
use gpu_types::{Accumulate, Activation, Target};

/// The GPU that a launch is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// The kernels that it can run.
    pub target: Target,
    /// Number of streaming multiprocessors (SMs).
    pub num_sms: usize,
    /// Whether a launch may start before the previous one has ended (programmatic dependent
    /// launch).
    pub overlaps: bool,
}

impl Gpu {
    /// An H100 or H200.
    pub const HOPPER: Gpu = Gpu { target: Target::Sm90a, num_sms: 132, overlaps: true };
}

/// Most rows of a layer with a fused norm or gate.
pub const MAX_FUSED_ROWS: usize = 8;

/// The order of accumulation over k. All but [`SumOrder::Fastest`] depend on the weight's shape and
/// the GPU, never on the number of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SumOrder {
    /// That of the fastest kernel for the number of rows.
    #[default]
    Fastest,
    /// That of the small-batch kernels.
    SmallBatch,
    /// That of tiles that do not split k.
    Tiles,
}

/// How an output is accumulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summation {
    /// The type of the accumulators.
    pub accumulate: Accumulate,
    /// The order over k.
    pub order: SumOrder,
}

/// A linear layer in f32.
#[derive(Clone, Copy, Debug)]
pub struct Linear {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
}

/// The operands of a linear layer.
#[derive(Clone, Copy, Debug)]
pub struct LinearOperands {
    /// `[rows, k]`.
    pub x: Rows<f32>,
    /// `[n, k]`.
    pub weight: Rows<f32>,
    /// `[n]`.
    pub bias: Option<DevicePtr<f32>>,
    /// `[rows, n]`.
    pub residual: Option<Rows<f32>>,
    /// `[rows, n]`; may be the residual.
    pub out: Rows<f32>,
}

/// A linear layer of 16-bit operands.
#[derive(Clone, Copy, Debug)]
pub struct Linear16 {
    /// Upper bound of the rows.
    pub max_rows: usize,
    /// Columns of the output: rows of the weight, or half of them in a gated layer.
    pub n: usize,
    /// Columns of the input and of the weight.
    pub k: usize,
    /// How outputs are accumulated.
    pub summation: Summation,
    /// The activation, if the output is `activation(gate) * up`, as
    /// [`GateRows`](crate::gate_rows::GateRows) computes it; the first `n` rows of the weight are
    /// those of the gate, the last `n` those of up.
    pub gate: Option<Activation>,
}

/// The operands of a linear layer, with memory for `max_rows` rows.
#[derive(Clone, Copy, Debug)]
pub struct Linear16Operands<E, W = E> {
    /// `[max_rows, k]`.
    pub x: Input16<E>,
    /// `[n, k]`; `[2 * n, k]` if gated.
    pub weight: Rows<W>,
    /// `[n]`; `[2 * n]` if gated.
    pub bias: Option<DevicePtr<f32>>,
    /// `[max_rows, n]`, for f32 outputs only.
    pub residual: Option<Rows<f32>>,
    /// `[max_rows, n]`; of 16 bits if gated.
    pub out: Out16<E>,
}

/// The input of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Input16<E> {
    /// Rows of 16-bit elements.
    Half(Rows<E>),
    /// Rows that a fused RMSNorm normalises and rounds to the operands' type, as
    /// [`RmsNorm`](crate::rms_norm::RmsNorm) stores them; [`Gemv16`](super::Gemv16) does not round
    /// them.
    Normed {
        /// The input of the norm.
        x: Rows<f32>,
        /// `[k]`.
        weight: DevicePtr<f32>,
        /// Added to the mean of squares.
        eps: f32,
    },
}

/// The output of a linear layer.
#[derive(Clone, Copy, Debug)]
pub enum Out16<E> {
    /// Rounded to the operands' type.
    Half(Rows<E>),
    /// In f32; may be the residual.
    F32(Rows<f32>),
}

impl<E: Operand16> Out16<E> {
    /// Kernel parameters: 16-bit outputs or f32 outputs, the others null, and their row stride.
    pub(super) fn args(&self) -> Result<(DevicePtr<E>, DevicePtr<f32>, u32), LaunchError> {
        Ok(match self {
            Out16::Half(out) => (out.ptr, DevicePtr::null(), out.stride_arg()?),
            Out16::F32(out) => (DevicePtr::null(), out.ptr, out.stride_arg()?),
        })
    }
}

/// Kernel parameters: what an epilogue adds, null for nothing.
pub(super) struct BiasAndResidual {
    pub bias: DevicePtr<f32>,
    pub residual: DevicePtr<f32>,
    pub residual_stride: u32,
}

impl BiasAndResidual {
    pub(super) fn new(
        bias: Option<DevicePtr<f32>>,
        residual: Option<Rows<f32>>,
    ) -> Result<Self, LaunchError> {
        let residual = residual.unwrap_or(Rows::new(DevicePtr::null(), 0));
        Ok(BiasAndResidual {
            bias: bias.unwrap_or(DevicePtr::null()),
            residual: residual.ptr,
            residual_stride: residual.stride_arg()?,
        })
    }
}

/// Kernel parameters: the scales of a weight, null for none, and their stride.
#[derive(Clone, Copy)]
pub(super) struct ScaleParams {
    pub ptr: DevicePtr<f32>,
    /// Scales from a row of blocks to the next; 0 where each row of the weight has a scale.
    pub stride: u32,
}

impl ScaleParams {
    /// Parameters of a weight without scales.
    pub const NONE: ScaleParams = ScaleParams { ptr: DevicePtr::null(), stride: 0 };
}

/// Largest size: a coordinate of a box is an `i32`, and the last box may end past the tensor.
pub(super) const MAX_SIZE: usize = i32::MAX as usize - 512;

/// Largest row stride: its bytes stay in a `u32`.
pub(super) const MAX_STRIDE: usize = (1 << 30) - 1;

impl Linear16 {
    /// A layer that is accumulated in f32, in the fastest order.
    #[must_use]
    pub fn new(max_rows: usize, n: usize, k: usize) -> Self {
        Linear16 { max_rows, n, k, summation: Summation::default(), gate: None }
    }

    /// The error of bf16 operands with f16 accumulators.
    pub(super) const F16_ACCUMULATORS_OF_BF16: LaunchError = LaunchError::Shape {
        what: "accumulator bits",
        value: 16,
        expected: "32 for bf16 operands",
    };

    /// Rows of the weight: two for each column of a gated output.
    pub(super) const fn weight_rows(&self) -> usize {
        self.n.saturating_mul(num_parts(self.gate))
    }

    /// The input of a layer without a fused norm or gate.
    pub(super) fn plain_input<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<Rows<E>, LaunchError> {
        match operands.x {
            Input16::Half(x) if self.gate.is_none() => Ok(x),
            _ => {
                let expected = "at most 8 for a layer with a fused norm or gate";
                refuse("rows", self.max_rows, expected)
            }
        }
    }

    /// The input of a layer that may have a gate: with one, of whole groups of columns.
    pub(super) fn grouped_input<E: Operand16>(
        &self,
        operands: &Linear16Operands<E>,
    ) -> Result<Rows<E>, LaunchError> {
        if !self.has_groups() {
            return refuse("n", self.n, "a multiple of 8 for a gated layer of more than 8 rows");
        }
        Linear16 { gate: None, ..*self }.plain_input(operands)
    }

    /// Whether boxes of its weight can have rows of gate and of up in turn, if it is gated.
    pub(super) const fn has_groups(&self) -> bool {
        self.gate.is_none() || self.n.is_multiple_of(GATE_ROWS as usize)
    }

    /// The tensor map of the weight in boxes `[rows, columns]`: with a gate [`GATE_ROWS`] rows of
    /// gate and of up in turn.
    pub(super) fn weight_map<E: Operand16>(
        &self,
        weight: &Rows<E>,
        [box_rows, box_columns]: [usize; 2],
    ) -> TensorMapSpec {
        let map = tensor_map(weight, [self.weight_rows(), self.k], [box_rows, box_columns]);
        if self.gate.is_none() {
            return map;
        }
        let (row_bytes, group) = (map.strides_bytes[0], u64::from(GATE_ROWS));
        TensorMapSpec {
            dims: vec![map.dims[0], group, 2, self.n as u64 / group],
            strides_bytes: vec![row_bytes, self.n as u64 * row_bytes, group * row_bytes],
            box_dims: vec![map.box_dims[0], GATE_ROWS, 2, map.box_dims[1] / (2 * GATE_ROWS)],
            ..map
        }
    }

    /// Refuses what no kernel computes.
    pub(super) fn check<E: Operand16, W: WeightElement<E>>(
        &self,
        operands: &Linear16Operands<E, W>,
    ) -> Result<(), LaunchError> {
        let Linear16Operands { x, weight, residual, out, .. } = operands;
        for (what, value) in [("rows", self.max_rows), ("n", self.weight_rows()), ("k", self.k)] {
            if value > MAX_SIZE {
                return refuse(what, value, "at most 2147483135");
            }
        }
        if E::DTYPE == Dtype::BF16 && self.summation.accumulate == Accumulate::F16 {
            return Err(Self::F16_ACCUMULATORS_OF_BF16);
        }
        let load_elems = W::LOAD_ELEMS as usize;
        if self.k == 0 || !self.k.is_multiple_of(load_elems) {
            let expected = if load_elems == 8 { "a multiple of 8" } else { "a multiple of 16" };
            return refuse("k", self.k, expected);
        }
        check_rows(weight)?;
        let x_stride = match x {
            _ if residual.is_some()
                && (self.gate.is_some() || matches!(x, Input16::Normed { .. })) =>
            {
                return refuse("residuals", 1, "none for a layer with a fused norm or gate");
            }
            Input16::Half(x) => {
                check_rows(x)?;
                x.row_stride
            }
            Input16::Normed { x, weight, .. } => {
                check_rows(x)?;
                check_address(*weight)?;
                x.row_stride
            }
        };
        let out_stride = match out {
            Out16::Half(_) if residual.is_some() => {
                return refuse("output bits", 16, "32 where a residual is added");
            }
            Out16::F32(_) if self.gate.is_some() => {
                return refuse("output bits", 32, "16 for a gated layer");
            }
            Out16::Half(out) => out.row_stride,
            Out16::F32(out) => out.row_stride,
        };
        let residual_stride = residual.map_or(0, |residual| residual.row_stride);
        for stride in [x_stride, weight.row_stride, out_stride, residual_stride] {
            if stride > MAX_STRIDE {
                return refuse("row stride", stride, "at most 1073741823");
            }
        }
        Ok(())
    }
}

/// The tensor map of a matrix `[rows, columns]` in boxes `[rows, columns]`, with 128-byte swizzle.
pub(super) fn tensor_map<E: WgmmaOperand>(
    matrix: &Rows<E>,
    sizes: [usize; 2],
    box_sizes: [usize; 2],
) -> TensorMapSpec {
    let [rows, columns] = sizes.map(|size| size as u64);
    let [box_rows, box_columns] = box_sizes.map(|size| size as u32);
    TensorMapSpec {
        address: matrix.ptr.0,
        element: E::TENSOR_MAP,
        dims: vec![columns, rows],
        strides_bytes: vec![(matrix.row_stride * size_of::<E>()) as u64],
        box_dims: vec![box_columns, box_rows],
        swizzle: Swizzle::B128,
        l2_promotion: L2Promotion::B128,
    }
}

/// The error of a `value` that is not as `expected`.
pub(super) fn refuse<T>(
    what: &'static str,
    value: usize,
    expected: &'static str,
) -> Result<T, LaunchError> {
    Err(LaunchError::Shape { what, value, expected })
}

/// Refuses rows that are not 16-byte aligned.
pub(super) fn check_rows<T>(rows: &Rows<T>) -> Result<(), LaunchError> {
    if !(rows.row_stride * size_of::<T>()).is_multiple_of(16) {
        let expected = match size_of::<T>() {
            1 => "a multiple of 16",
            2 => "a multiple of 8",
            _ => "a multiple of 4",
        };
        return refuse("row stride", rows.row_stride, expected);
    }
    check_address(rows.ptr)
}

fn check_address<T>(ptr: DevicePtr<T>) -> Result<(), LaunchError> {
    if !ptr.0.is_multiple_of(16) {
        return refuse("address", ptr.0 as usize, "a multiple of 16");
    }
    Ok(())
}
