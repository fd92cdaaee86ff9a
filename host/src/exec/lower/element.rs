//! The types that tensors are stored in.

use cuda_std::launch::{Launch, LaunchError};
use half::{bf16, f16};
use kernels::attention::AttentionElement;

use super::{Lowering, collective};
use crate::exec::{ExecError, Gemm};
use crate::plan::{self, Dtype, Plan, WeightPart};

/// What a launcher gives.
pub(super) type Launched = Result<Option<Launch>, LaunchError>;

/// A type that tensors are stored in and kernels take.
pub(super) trait DeviceElement: AttentionElement {
    /// The type's name in the plan.
    const STORAGE: Dtype;

    /// A sum over ranks of elements of this type.
    fn all_reduce(lowering: &Lowering<'_>, op: &plan::AllReduce) -> Result<Vec<Launch>, ExecError>;
}

impl DeviceElement for f32 {
    const STORAGE: Dtype = Dtype::F32;

    fn all_reduce(_: &Lowering<'_>, _: &plan::AllReduce) -> Result<Vec<Launch>, ExecError> {
        Err(collective::only_16_bits())
    }
}

impl DeviceElement for f16 {
    const STORAGE: Dtype = Dtype::F16;

    fn all_reduce(lowering: &Lowering<'_>, op: &plan::AllReduce) -> Result<Vec<Launch>, ExecError> {
        lowering.all_reduce::<f16>(op)
    }
}

impl DeviceElement for bf16 {
    const STORAGE: Dtype = Dtype::BF16;

    fn all_reduce(lowering: &Lowering<'_>, op: &plan::AllReduce) -> Result<Vec<Launch>, ExecError> {
        lowering.all_reduce::<bf16>(op)
    }
}

/// Whether there are kernels for the types that the weights of `plan` are kept in: to know before
/// they are read.
///
/// # Errors
/// [`ExecError::Unsupported`] for weights in blocks that are not in tiles, or that cuBLAS is to
/// multiply, and for E4M3 beside other operands than f16; it names the tensor.
pub fn check_weights(plan: &Plan, gemm: Gemm) -> Result<(), ExecError> {
    for weight in &plan.weights {
        let has_kernel = |part: &WeightPart| match weight.tile_format(part) {
            Some(_) => gemm == Gemm::Halfwarp,
            None if part.storage.is_fp8() => {
                gemm == Gemm::Halfwarp && plan.numerics().precision.operand() == Dtype::F16
            }
            None => part.storage.block_elems() == 1,
        };
        if let Some(part) = weight.parts.iter().find(|part| !has_kernel(part)) {
            let WeightPart { source, storage, .. } = part;
            let why = match storage.is_fp8() {
                true => format!("{storage} storage, which halfwarp's kernels take beside f16"),
                false => format!("{storage} storage; the kernels take F32, F16 and BF16"),
            };
            return Err(ExecError::Unsupported { op: source.clone(), why });
        }
    }
    Ok(())
}

/// Refuses what is not stored as the kernel takes it.
pub(super) fn check_dtype<T: DeviceElement>(what: &str, dtype: Dtype) -> Result<(), ExecError> {
    if dtype == T::STORAGE {
        return Ok(());
    }
    Err(ExecError::Unsupported {
        op: what.to_owned(),
        why: format!("{dtype} storage; the kernel takes {}", T::STORAGE),
    })
}
