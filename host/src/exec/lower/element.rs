//! The types that tensors are stored in.

use cuda_std::launch::{Launch, LaunchError};
use half::{bf16, f16};
use kernels::attention::AttentionElement;

use super::{Lowering, collective};
use crate::exec::ExecError;
use crate::plan::{self, Dtype};

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
