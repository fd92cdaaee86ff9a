//! The types that tensors are stored in, and the linear layers of each.

use cuda_std::launch::{Launch, LaunchError};
use half::{bf16, f16};
use kernels::Rows as Operand;
use kernels::attention::AttentionElement;
use kernels::gemm::{
    self, Input16, Linear, Linear16, Linear16Operands, LinearOperands, Out16, Summation,
};
use kernels::tile::element::Operand16;

use super::{Lowering, collective, sum_order};
use crate::exec::ExecError;
use crate::plan::{self, Dtype, Norm, Op, Weight};

/// What a launcher gives.
pub(super) type Launched = Result<Option<Launch>, LaunchError>;

/// A type that tensors are stored in and kernels take.
pub(super) trait Stored: AttentionElement {
    /// Its name in the plan.
    const STORAGE: Dtype;

    /// The linear layer whose operands are of this type.
    fn linear(lowering: &mut Lowering<'_>, op: &plan::Linear) -> Result<Launched, ExecError>;

    /// A sum over ranks of elements of this type.
    fn all_reduce(lowering: &Lowering<'_>, op: &plan::AllReduce) -> Result<Vec<Launch>, ExecError>;
}

impl Stored for f32 {
    const STORAGE: Dtype = Dtype::F32;

    fn linear(lowering: &mut Lowering<'_>, op: &plan::Linear) -> Result<Launched, ExecError> {
        let &plan::Linear { x, norm, silu, weight, bias, gated, residual, out } = op;
        if norm.is_some() || silu.is_some() || gated {
            return Err(ExecError::Unsupported {
                op: Op::Linear(*op).name().to_owned(),
                why: "operands of F32, which no fused kernel takes".to_owned(),
            });
        }
        let Weight { rows: n, cols: k, .. } = *lowering.plan.weight(weight);
        let operands = LinearOperands {
            x: lowering.view(x)?,
            weight: Operand::new(lowering.weight(weight)?, k),
            bias: bias.map(|bias| lowering.weight(bias)).transpose()?,
            residual: residual.map(|residual| lowering.view(residual)).transpose()?,
            out: lowering.view(out)?,
        };
        let linear = Linear { max_rows: lowering.max_rows(x), n, k };
        let (gpu, order) = (lowering.gpu, sum_order(lowering.plan));
        Ok(linear.launch(gpu, order, lowering.num_rows(x), &operands))
    }

    fn all_reduce(_: &Lowering<'_>, _: &plan::AllReduce) -> Result<Vec<Launch>, ExecError> {
        Err(collective::only_16_bits())
    }
}

impl Stored for f16 {
    const STORAGE: Dtype = Dtype::F16;

    fn linear(lowering: &mut Lowering<'_>, op: &plan::Linear) -> Result<Launched, ExecError> {
        dense16::<f16>(lowering, op)
    }

    fn all_reduce(lowering: &Lowering<'_>, op: &plan::AllReduce) -> Result<Vec<Launch>, ExecError> {
        lowering.all_reduce::<f16>(op)
    }
}

impl Stored for bf16 {
    const STORAGE: Dtype = Dtype::BF16;

    fn linear(lowering: &mut Lowering<'_>, op: &plan::Linear) -> Result<Launched, ExecError> {
        dense16::<bf16>(lowering, op)
    }

    fn all_reduce(lowering: &Lowering<'_>, op: &plan::AllReduce) -> Result<Vec<Launch>, ExecError> {
        lowering.all_reduce::<bf16>(op)
    }
}

fn dense16<E: Stored + Operand16>(
    lowering: &mut Lowering<'_>,
    op: &plan::Linear,
) -> Result<Launched, ExecError> {
    let k = lowering.plan.weight(op.weight).cols;
    let weight = Operand::new(lowering.weight(op.weight)?, k);
    linear16::<E>(lowering, op, weight, 0, op.out.width)
}

/// Columns `start .. start + n` of the output of `op`, by `weight`: its rows from `start` on, or
/// all of them.
pub(super) fn linear16<E: Stored + Operand16>(
    lowering: &mut Lowering<'_>,
    op: &plan::Linear,
    weight: Operand<E>,
    start: usize,
    n: usize,
) -> Result<Launched, ExecError> {
    let &plan::Linear { x, norm, silu: _, weight: id, bias, gated, residual, out } = op;
    let k = lowering.plan.weight(id).cols;
    let out = out.columns(start, n);
    let bias = bias.map(|bias| lowering.weight::<f32>(bias)).transpose()?;
    let residual =
        residual.map(|residual| lowering.view(residual.columns(start, n))).transpose()?;
    let operands = Linear16Operands::<E> {
        x: match norm {
            Some(Norm { weight, eps }) => {
                Input16::Normed { x: lowering.view(x)?, weight: lowering.weight(weight)?, eps }
            }
            None => Input16::Half(lowering.view(x)?),
        },
        weight,
        bias: bias.map(|bias| bias.add(start)),
        residual,
        out: if lowering.plan.dtype(out) == Dtype::F32 {
            Out16::F32(lowering.view(out)?)
        } else {
            Out16::Half(lowering.view(out)?)
        },
    };
    let plan = lowering.plan;
    let accumulate = match plan.numerics().accumulate {
        plan::Accumulate::F32 => gemm::Accumulate::F32,
        plan::Accumulate::F16 => gemm::Accumulate::F16,
    };
    let summation = Summation { accumulate, order: sum_order(plan) };
    let max_rows = lowering.max_rows(x);
    let linear = Linear16 { max_rows, n, k, summation, gated };
    let num_rows = lowering.num_rows(x);
    let (gpu, maps) = (lowering.gpu, &mut lowering.maps);
    Ok(linear.launch(gpu, num_rows, &operands, &mut |spec| maps.encode(spec)))
}
