//! Executors: what runs a plan. The CPU, CUDA, and CUDA's kernels emulated; one trait, one suite of tests.

pub mod cpu;
pub mod cuda;
mod device;
pub mod emulated;
mod gemm;
mod inputs;
mod lower;
mod tensor_maps;
#[cfg(test)]
mod testing;

pub use device::{Device, open};
pub use gemm::Gemm;
pub use kernels::gemm::Target;
pub use kernels::sampling::NextToken;

use crate::plan::{BudgetError, Plan, StepInputs, Weight};

/// Gives an executor the weights of a plan, packed and in the storage type that the plan says.
pub trait WeightSource: Sync {
    /// Writes `weight` to `out`, which is `weight.bytes()` long.
    ///
    /// # Errors
    /// [`ExecError::Weights`] if the checkpoint lacks a part or it has another shape.
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ExecError>;
}

/// A plan that an executor has prepared: which one, in the order of [`Executor::prepare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PreparedPlan(pub usize);

/// What a step brings back to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// Nothing: the cache is filled.
    Nothing,
    /// The index of the largest logit of each logit row, or why there is none.
    NextTokens,
    /// All logits of each logit row.
    Logits,
}

/// What a step brought back.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// `[num_logit_rows]`, where [`Want::NextTokens`] was asked for.
    pub next_tokens: Vec<NextToken>,
    /// `[num_logit_rows, vocab_size]`, where [`Want::Logits`] was asked for.
    pub logits: Vec<f32>,
}

/// Runs plans of one model: holds its weights and its KV cache.
pub trait Executor: Send {
    /// One line for a person: `CPU, 2 threads` or `NVIDIA H200 (sm_90a)`.
    fn describe(&self) -> String;

    /// Whether [`Executor::prepare`] takes long enough to be done before there is a request.
    fn prepares_ahead(&self) -> bool {
        false
    }

    /// Makes `plan` ready to run: the weights, constants and cache are those that the executor was opened with.
    ///
    /// # Errors
    /// [`ExecError::OutOfMemory`], [`ExecError::Unsupported`] or [`ExecError::Driver`].
    fn prepare(&mut self, plan: &Plan) -> Result<PreparedPlan, ExecError>;

    /// Runs one step and waits for it.
    ///
    /// # Errors
    /// [`ExecError::Step`] for inputs beyond the plan's bounds or the cache, [`ExecError::Driver`], [`ExecError::Fault`].
    fn run(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want,
    ) -> Result<StepOutput, ExecError>;
}

/// What can go wrong in an executor.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// A weight could not be read.
    #[error("{0}")]
    Weights(String),
    /// The device has not enough memory.
    #[error("out of memory on {device}: {what} needs {needed_bytes} bytes, {free_bytes} are free")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was to be allocated.
        what: String,
        /// Bytes asked for.
        needed_bytes: usize,
        /// Bytes that were free.
        free_bytes: usize,
    },
    /// The plan does not fit into the device's memory.
    #[error(transparent)]
    Budget(#[from] BudgetError),
    /// The executor has no kernel for an operation of this shape or type.
    #[error("{op}: {why}")]
    Unsupported {
        /// The operation.
        op: String,
        /// The value, and what would be right.
        why: String,
    },
    /// The inputs of a step are not ones that its plan can run.
    #[error("step inputs: {0}")]
    Step(String),
    /// The device that was asked for is not there.
    #[error("{0}")]
    NoDevice(String),
    /// Linear layers cannot be computed by whom they were asked of: the GPU, the library or the operands are not right.
    #[error("{0}")]
    Gemm(String),
    /// The CUDA driver reported an error.
    #[error("CUDA: {call}: {error}")]
    Driver {
        /// What was being done.
        call: String,
        /// The driver's word.
        error: String,
    },
    /// The emulator found a fault of a kernel: its report, of several lines.
    #[error(transparent)]
    Fault(#[from] simt::Fault),
    /// On the emulator no kernel of the plan has written an output that was asked for.
    #[error("an output of the plan: {0}")]
    Unwritten(#[from] simt::MemoryError),
}
