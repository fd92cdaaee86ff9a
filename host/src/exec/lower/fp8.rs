//! Linear layers whose weight is in E4M3.
//!
//! A small batch is multiplied as it is, in f16, by the weight as it is. More rows are rounded to
//! E4M3 and multiplied by tensor cores of E4M3 where the plan says so ([`Plan::rounds_rows`]), else
//! by a dense copy of the weight in f16.

use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use half::f16;
use kernels::Rows as Operand;
use kernels::gemm::fp8::dequantise::DequantiseFp8;
use kernels::gemm::fp8::{
    Fp8Accumulate, LinearFp8, LinearFp8Operands, LinearFp8Small, LinearFp8SmallOperands,
    WeightScales,
};
use kernels::gemm::{Input16, Out16, SumOrder};
use kernels::quantise_rows::{QuantiseRows, RowInput};

use super::element::{Launched, linear16};
use super::tiles::dense_rows;
use super::{Lowering, sum_order};
use crate::exec::ExecError;
use crate::plan::{Dtype, FP8_BLOCK, FP8_SMALL_BATCH, Linear, Norm, Op, Plan, Weight};

const _: () = assert!(FP8_SMALL_BATCH == LinearFp8Small::MAX_ROWS);

/// Parts of the workspace start at multiples of this many bytes.
const ALIGN_BYTES: usize = 256;

/// How a linear layer is multiplied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Product {
    /// [`LinearFp8Small`].
    SmallBatch,
    /// [`QuantiseRows`] to the workspace, then [`LinearFp8`].
    Rounded,
    /// With a dense copy in the workspace, some rows of the weight after the other.
    DenseCopy,
}

impl Product {
    fn of(plan: &Plan, op: &Linear) -> Self {
        if plan.rounds_rows(op) {
            Product::Rounded
        } else if max_rows(plan, op) <= FP8_SMALL_BATCH && sum_order(plan) == SumOrder::Fastest {
            Product::SmallBatch
        } else {
            Product::DenseCopy
        }
    }
}

/// Whether all of `weight` is in E4M3.
pub(super) fn is_fp8(weight: &Weight) -> bool {
    weight.storage().is_some_and(Dtype::is_fp8)
}

fn max_rows(plan: &Plan, op: &Linear) -> usize {
    plan.bounds.max_rows(plan.tensor(op.x.tensor).rows)
}

/// Whether the norm or the gate before `op` and the gate after it are computed in its launches.
pub(super) fn fuses(plan: &Plan, op: &Linear) -> bool {
    let weight = plan.weight(op.weight);
    match Product::of(plan, op) {
        Product::SmallBatch => {
            let has_whole_blocks = weight.storage() != Some(Dtype::F8_E4M3_BLOCKS)
                || op.out.width.is_multiple_of(FP8_BLOCK);
            op.silu.is_none()
                && LinearFp8Small::fuses(max_rows(plan, op), weight.cols, op.norm.is_some())
                && (!op.gated || has_whole_blocks)
        }
        Product::Rounded => !op.gated,
        Product::DenseCopy => false,
    }
}

/// Bytes of the workspace for a linear layer: the rounded rows and their scales, or a dense copy.
pub(super) fn workspace_bytes(plan: &Plan, op: &Linear) -> usize {
    let weight = plan.weight(op.weight);
    if !is_fp8(weight) {
        return 0;
    }
    match Product::of(plan, op) {
        Product::SmallBatch => 0,
        Product::Rounded => {
            let rows = max_rows(plan, op);
            scales_at(rows, weight.cols) + rows * size_of::<f32>()
        }
        Product::DenseCopy => {
            weight.rows.min(dense_rows(weight.cols)) * weight.cols * size_of::<f16>()
        }
    }
}

/// The rows of a weight from `first` on.
fn rows_from(weight: Operand<E4m3>, first: usize) -> Operand<E4m3> {
    Operand::new(weight.ptr.add(first * weight.row_stride), weight.row_stride)
}

/// Their scales; `first` is the first row of a block.
fn scales_from(scales: WeightScales, first: usize, k: usize) -> WeightScales {
    match scales {
        WeightScales::Rows(scales) => WeightScales::Rows(scales.add(first)),
        WeightScales::Blocks(scales) => {
            WeightScales::Blocks(scales.add(first / FP8_BLOCK * k.div_ceil(FP8_BLOCK)))
        }
    }
}

/// Where the scales of rounded rows are in the workspace.
fn scales_at(rows: usize, cols: usize) -> usize {
    (rows * cols).next_multiple_of(ALIGN_BYTES)
}

impl Lowering<'_> {
    /// The launches of a linear layer whose weight is in E4M3.
    pub(super) fn fp8_linear(&mut self, op: &Linear) -> Result<Vec<Launch>, ExecError> {
        let unsupported = |why: LaunchError| ExecError::Unsupported {
            op: Op::Linear(*op).name().to_owned(),
            why: why.to_string(),
        };
        match Product::of(self.plan, op) {
            Product::SmallBatch => {
                let launch = self.fp8_small_batch(op)?;
                Ok(launch.map_err(unsupported)?.into_iter().collect())
            }
            Product::Rounded => {
                let mut launches = Vec::new();
                launches.extend(self.rounded_rows(op)?.map_err(unsupported)?);
                launches.extend(self.fp8_product(op)?.map_err(unsupported)?);
                Ok(launches)
            }
            Product::DenseCopy => {
                let mut launches = Vec::new();
                let Weight { rows, cols: k, .. } = *self.plan.weight(op.weight);
                let (weight, scales) = self.fp8_weight(op);
                let dense = Operand::new(DevicePtr::<f16>::new(self.addresses.workspace), k);
                for first in (0..rows).step_by(dense_rows(k)) {
                    let n = dense_rows(k).min(rows - first);
                    let (weight, scales) =
                        (rows_from(weight, first), scales_from(scales, first, k));
                    let copy = DequantiseFp8 { n, k }.launch(weight, scales, dense);
                    launches.extend(copy.map_err(unsupported)?);
                    // It loads the weight, which is the copy, as soon as it starts.
                    let product = linear16(self, op, dense, first, n)?.map_err(unsupported)?;
                    launches.extend(product.map(|launch| Launch { overlaps: false, ..launch }));
                }
                Ok(launches)
            }
        }
    }

    fn fp8_weight(&self, op: &Linear) -> (Operand<E4m3>, WeightScales) {
        let weight = self.plan.weight(op.weight);
        let address = self.addresses.weights[op.weight.0];
        let scales = DevicePtr::new(address + weight.scales_at() as u64);
        let scales = match weight.storage() {
            Some(Dtype::F8_E4M3_BLOCKS) => WeightScales::Blocks(scales),
            _ => WeightScales::Rows(scales),
        };
        (Operand::new(DevicePtr::new(address), weight.cols), scales)
    }

    fn fp8_small_batch(&mut self, op: &Linear) -> Result<Launched, ExecError> {
        let &Linear { x, norm, silu: _, weight: id, bias, gated, residual, out } = op;
        let (weight, scales) = self.fp8_weight(op);
        let operands = LinearFp8SmallOperands {
            x: match norm {
                Some(Norm { weight, eps }) => {
                    Input16::Normed { x: self.view(x)?, weight: self.weight(weight)?, eps }
                }
                None => Input16::Half(self.view(x)?),
            },
            weight,
            scales,
            bias: bias.map(|bias| self.weight(bias)).transpose()?,
            residual: residual.map(|residual| self.view(residual)).transpose()?,
            out: match self.plan.dtype(out) {
                Dtype::F32 => Out16::F32(self.view(out)?),
                _ => Out16::Half(self.view(out)?),
            },
        };
        let (max_rows, n, k) = (self.max_rows(x), out.width, self.plan.weight(id).cols);
        let order = sum_order(self.plan);
        let layer = LinearFp8Small { max_rows, n, k, gated, order };
        let (gpu, num_rows, maps) = (self.gpu, self.num_rows(x), &mut self.maps);
        Ok(layer.launch(gpu, num_rows, &operands, &mut |spec| maps.encode(spec)))
    }

    /// The rows of `op` in E4M3, in the workspace.
    fn rounded_rows(&self, op: &Linear) -> Result<Launched, ExecError> {
        let (max_rows, width) = (self.max_rows(op.x), self.plan.weight(op.weight).cols);
        let input = match (op.norm, op.silu) {
            (Some(Norm { weight, eps }), _) => {
                RowInput::Normed { x: self.view(op.x)?, weight: self.weight(weight)?, eps }
            }
            (None, Some(gate)) => RowInput::Gated { gate: self.view(gate)?, up: self.view(op.x)? },
            (None, None) => RowInput::Stored(self.view(op.x)?),
        };
        let out = DevicePtr::new(self.addresses.workspace);
        let scales = self.row_scales(op);
        let quantise = QuantiseRows { max_rows, width };
        Ok(quantise.launch(self.num_rows(op.x), &input, out, scales))
    }

    fn row_scales(&self, op: &Linear) -> DevicePtr<f32> {
        let (rows, cols) = (self.max_rows(op.x), self.plan.weight(op.weight).cols);
        DevicePtr::new(self.addresses.workspace + scales_at(rows, cols) as u64)
    }

    /// The product of the rows in the workspace.
    fn fp8_product(&mut self, op: &Linear) -> Result<Launched, ExecError> {
        let &Linear { x, weight: id, bias, residual, out, .. } = op;
        let k = self.plan.weight(id).cols;
        let (weight, weight_scales) = self.fp8_weight(op);
        let operands = LinearFp8Operands::<f16> {
            x: Operand::new(DevicePtr::new(self.addresses.workspace), k),
            x_scales: self.row_scales(op),
            weight,
            weight_scales,
            bias: bias.map(|bias| self.weight(bias)).transpose()?,
            residual: residual.map(|residual| self.view(residual)).transpose()?,
            out: match self.plan.dtype(out) {
                Dtype::F32 => Out16::F32(self.view(out)?),
                _ => Out16::Half(self.view(out)?),
            },
        };
        let (max_rows, n) = (self.max_rows(x), out.width);
        // What the tensor cores lose of an accumulator is far below what the elements have lost.
        let accumulate = match weight_scales {
            WeightScales::Rows(_) => Fp8Accumulate::Fast,
            WeightScales::Blocks(_) => Fp8Accumulate::TwoLevel,
        };
        let layer = LinearFp8 { max_rows, n, k, accumulate };
        let (gpu, num_rows, maps) = (self.gpu, self.num_rows(x), &mut self.maps);
        Ok(layer.launch(gpu, num_rows, &operands, &mut |spec| maps.encode(spec)))
    }
}
