//! A plan's work where libraries do a part of it: cuBLAS multiplies, NCCL adds over ranks.

use cuda_loader::cublas::GemmEx;
use cuda_loader::nccl;
use cuda_std::launch::Launch;
use kernels::gemm::Gpu;

use super::cublas::CublasLinear;
use super::{Addresses, Lowering};
use crate::exec::tensor_maps::Encode;
use crate::exec::{ExecError, Gemm};
use crate::plan::{Op, Plan};

/// What libraries do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Libraries {
    /// Whose kernels compute linear layers.
    pub gemm: Gemm,
    /// Whether NCCL adds over ranks.
    pub nccl: bool,
}

impl From<Gemm> for Libraries {
    fn from(gemm: Gemm) -> Self {
        Libraries { gemm, nccl: false }
    }
}

/// A step of a plan's work on a device.
#[derive(Clone, Debug, PartialEq)]
pub enum Task {
    /// A kernel of ours.
    Launch(Launch),
    /// A matrix product by cuBLAS.
    Gemm(GemmEx),
    /// A sum over ranks by NCCL.
    AllReduce(nccl::AllReduce),
}

/// As [`lower`](super::lower), with what `libraries` do.
///
/// # Errors
/// Errors of [`lower`](super::lower); [`ExecError::Gemm`] for operands that cuBLAS cannot multiply.
pub fn lower_with(
    libraries: Libraries,
    plan: &Plan,
    addresses: &Addresses,
    gpu: Gpu,
    encode: Encode,
) -> Result<Vec<Vec<Task>>, ExecError> {
    let mut lowering = Lowering::new(plan, addresses, gpu, encode);
    let tasks_of = |op| {
        if let Some(linear) = CublasLinear::of(plan, op, libraries.gemm)? {
            return lowering.cublas_linear(&linear);
        }
        match *op {
            Op::AllReduce(ref op) if libraries.nccl => lowering.nccl_all_reduce(op),
            Op::AllGather { x, first_column, out } if libraries.nccl => {
                lowering.nccl_all_gather(x, first_column, out)
            }
            _ => Ok(lowering.op(op)?.into_iter().map(Task::Launch).collect()),
        }
    };
    let tasks = plan.ops.iter().map(tasks_of).collect::<Result<_, ExecError>>()?;
    lowering.maps.finish()?;
    Ok(tasks)
}
