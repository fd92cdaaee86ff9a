//! Linear layers by cuBLAS: its matrix product, and an epilogue kernel of ours for bias and
//! residual.
//!
//! cuBLAS knows nothing of the step: it computes as many rows as the plan has at most. Those after
//! the step's are computed in vain, and never read.

use cuda_loader::cublas::{ComputeType, DataType, GemmEx};
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use half::{bf16, f16};
use kernels::Rows as Operand;
use kernels::element::Number;
use kernels::gemm::{GemmEpilogue, GemmEpilogueOperands, OutputOf};

use super::element::DeviceElement;
use super::{Lowering, Task};
use crate::exec::{ExecError, Gemm};
use crate::plan::{Dtype, Linear, Op, Plan, Weight, WeightPart};

/// Most bytes of the matrix product that `op` leaves in the workspace, by `gemm`.
pub(super) fn product_bytes(plan: &Plan, op: &Op, gemm: Gemm) -> usize {
    match CublasLinear::of(plan, op, gemm) {
        Ok(Some(linear)) if linear.is_in_workspace() => {
            let stride = linear.workspace_stride(plan);
            plan.bounds.max_rows(plan.tensor(linear.op.out.tensor).rows)
                * stride
                * linear.product.block_bytes()
        }
        // What cannot be multiplied is refused when it is lowered.
        _ => 0,
    }
}

/// A linear layer, and how much of it cuBLAS does.
pub(super) struct CublasLinear {
    op: Linear,
    compute: ComputeType,
    /// Type of the matrix product.
    product: Dtype,
    /// Type of the output.
    out: Dtype,
    /// Whether the matrix product is added to the residual in place: the residual is the output.
    accumulate: bool,
    /// Whether bias or residual remain to be added.
    adds: bool,
}

impl CublasLinear {
    /// `None` if cuBLAS does nothing of it.
    ///
    /// A matrix product that is the output is stored as such. Another one is stored in the type of
    /// its accumulators, so that nothing is rounded twice.
    pub(super) fn of(plan: &Plan, op: &Op, gemm: Gemm) -> Result<Option<Self>, ExecError> {
        let &Op::Linear(op) = op else { return Ok(None) };
        let Linear { x, norm, gate_before, bias, gate, residual, .. } = op;
        let Some(compute) = gemm.compute_type(plan.dtype(x))? else { return Ok(None) };
        if norm.is_some() || gate_before.is_some() || gate.is_some() {
            return Err(unsupported("a norm or a gate before it, or a gate after it".to_owned()));
        }
        let out = plan.dtype(op.out);
        let accumulate = compute == ComputeType::F32 && residual == Some(op.out);
        let adds = bias.is_some() || residual.is_some() && !accumulate;
        let product = match compute {
            ComputeType::F16 => Dtype::F16,
            ComputeType::F32 if adds => Dtype::F32,
            ComputeType::F32 => out,
        };
        Ok(Some(CublasLinear { op, compute, product, out, accumulate, adds }))
    }

    fn is_in_workspace(&self) -> bool {
        self.product != self.out
    }

    /// Elements from a row of the product in the workspace to the next: rows start at multiples of
    /// 16 bytes.
    fn workspace_stride(&self, plan: &Plan) -> usize {
        plan.weight(self.op.weight).rows.next_multiple_of(8)
    }
}

impl Lowering<'_> {
    pub(super) fn cublas_linear(&self, linear: &CublasLinear) -> Result<Vec<Task>, ExecError> {
        let Linear { x, weight, out, .. } = linear.op;
        let Weight { rows: n, cols: k, ref parts, .. } = *self.plan.weight(weight);
        let max_rows = self.max_rows(x);
        if max_rows == 0 || n == 0 {
            return Ok(Vec::new());
        }
        let operands = self.plan.dtype(x);
        if let Some(part) = parts.iter().find(|part| part.storage != operands) {
            let WeightPart { source, storage, .. } = part;
            return Err(unsupported(format!("`{source}` is stored as {storage}, x as {operands}")));
        }
        let width = |view: crate::plan::View| self.plan.tensor(view.tensor).width;
        let product = if linear.is_in_workspace() {
            (self.addresses.workspace, linear.workspace_stride(self.plan))
        } else {
            (self.address(out), width(out))
        };
        let gemm = GemmEx {
            m: size("rows", max_rows)?,
            n: size("n", n)?,
            k: size("k", k)?,
            a: (self.address(x), size("row stride", width(x))?),
            b: (self.addresses.weights[weight.0], size("k", k)?),
            c: (product.0, size("row stride", product.1)?),
            operands: data_type(operands)?,
            output: data_type(linear.product)?,
            compute: linear.compute,
            accumulate: linear.accumulate,
        };
        let epilogue = match linear.adds || linear.is_in_workspace() {
            true => self.epilogue(linear, product)?,
            false => None,
        };
        Ok([Task::Gemm(gemm)].into_iter().chain(epilogue.map(Task::Launch)).collect())
    }

    /// The epilogue for the matrix product at this address, of this row stride.
    fn epilogue(
        &self,
        linear: &CublasLinear,
        product: (u64, usize),
    ) -> Result<Option<Launch>, ExecError> {
        match (linear.product, linear.out) {
            (Dtype::F32, Dtype::F32) => self.epilogue_of::<f32, f32>(linear, product),
            (Dtype::F32, Dtype::F16) => self.epilogue_of::<f32, f16>(linear, product),
            (Dtype::F32, Dtype::BF16) => self.epilogue_of::<f32, bf16>(linear, product),
            (Dtype::F16, Dtype::F32) => self.epilogue_of::<f16, f32>(linear, product),
            (Dtype::F16, Dtype::F16) => self.epilogue_of::<f16, f16>(linear, product),
            (product, out) => Err(unsupported(format!("no kernel makes {out} of {product}"))),
        }
    }

    fn epilogue_of<P: Number, E: DeviceElement + OutputOf<P>>(
        &self,
        linear: &CublasLinear,
        (address, stride): (u64, usize),
    ) -> Result<Option<Launch>, ExecError> {
        let Linear { bias, residual, out, .. } = linear.op;
        let residual = residual.filter(|_| !linear.accumulate);
        let operands = GemmEpilogueOperands::<P, E> {
            product: Operand::new(DevicePtr::new(address), stride),
            bias: bias.map(|bias| self.weight(bias)).transpose()?,
            residual: residual.map(|residual| self.view(residual)).transpose()?,
            out: self.view(out)?,
        };
        let epilogue = GemmEpilogue { max_rows: self.max_rows(out), width: out.width };
        let launch = epilogue.launch(self.num_rows(out), &operands);
        launch.map_err(|why: LaunchError| unsupported(why.to_string()))
    }
}

fn unsupported(why: String) -> ExecError {
    ExecError::Unsupported { op: "linear by cuBLAS".to_owned(), why }
}

fn size(what: &str, value: usize) -> Result<i32, ExecError> {
    let too_large = || unsupported(format!("{what} is {value}: expected at most {}", i32::MAX));
    i32::try_from(value).map_err(|_| too_large())
}

fn data_type(dtype: Dtype) -> Result<DataType, ExecError> {
    match dtype {
        Dtype::F32 => Ok(DataType::F32),
        Dtype::F16 => Ok(DataType::F16),
        Dtype::BF16 => Ok(DataType::Bf16),
        other => Err(unsupported(format!("it takes no {other}"))),
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
