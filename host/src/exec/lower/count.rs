//! The launches of a step, counted where there is no device.

use cuda_std::tensor_map::EncodedTensorMap;
use kernels::gemm::Gpu;

use super::{Addresses, Libraries, Lowering, fused};
use crate::exec::{ExecError, Target};
use crate::plan::Plan;

/// A plan as the GPU's kernels run it.
#[derive(Clone, Debug)]
pub struct LoweredPlan {
    /// The plan, with all fused that one kernel computes.
    pub plan: Plan,
    /// Launches of each of its operations.
    pub launches: Vec<usize>,
}

impl LoweredPlan {
    /// `plan` on a GPU with the SMs of an H200 that runs kernels for `target`.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for an operation of a type or shape that no kernel takes.
    pub fn new(plan: &Plan, target: Target) -> Result<Self, ExecError> {
        let gpu = Gpu { target, ..Gpu::HOPPER };
        let plan = fused(plan, Libraries::default(), gpu);
        let addresses = Addresses::placeholder(&plan);
        let mut lowering = Lowering::new(&plan, &addresses, gpu, |_| Ok(EncodedTensorMap::NONE));
        let launches = plan.ops.iter().map(|op| Ok(lowering.op(op)?.len()));
        let launches = launches.collect::<Result<_, ExecError>>()?;
        Ok(LoweredPlan { plan, launches })
    }

    /// Launches of a step.
    pub fn num_launches(&self) -> usize {
        self.launches.iter().sum()
    }
}
