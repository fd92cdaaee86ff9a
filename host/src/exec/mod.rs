//! Executors: what runs a plan. The CPU, CUDA, and CUDA's kernels emulated; one trait, one suite of
//! tests.

mod collectives;
pub mod cpu;
pub mod cuda;
mod device;
#[cfg(feature = "emulator")]
pub mod emulated;
mod gemm;
mod inputs;
mod layout;
mod lower;
mod memory;
mod observe;
mod prepared;
mod sample;
pub(crate) mod tensor_maps;
#[cfg(test)]
mod testing;

pub use collectives::Collectives;
pub use device::{CudaSet, Device, GpuOptions, default_cubin_dir, open, open_ranks};
pub use gemm::{Gemm, GemmError};
pub use gpu_types::Target;
pub use kernels::sampling::{LogitEdit, NextToken, RowSampling};
pub use lower::LoweredPlan;
pub use memory::{MemoryInfo, memory_budget};
pub use observe::{Activations, AfterOp, StepTimes};
pub use prepared::PreparedPlan;
pub(crate) use sample::{chance, draw, edited, nearest, next_token};

use cpu_ops::{CpuError, OutOfMemory};

use crate::plan::{MemoryUse, Plan, ReadWeightError, StepInputs, WeightSource};
use std::ops::Range;
use std::{iter, slice};

/// What a step copies back to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want<'a> {
    /// Nothing: the cache is filled.
    Nothing,
    /// The token drawn of each logit row, or why there is none.
    NextTokens,
    /// As [`Want::NextTokens`], and all logits of these logit rows.
    LogitsOf(&'a [usize]),
    /// All logits of each logit row.
    Logits,
}

impl Want<'_> {
    /// Whether the tokens are wanted.
    fn has_next_tokens(&self) -> bool {
        matches!(self, Want::NextTokens | Want::LogitsOf(_))
    }

    /// The logit rows whose logits are wanted, of `num_rows`: as few ranges as they are, in their order.
    fn logit_rows(&self, num_rows: usize) -> Vec<Range<usize>> {
        match *self {
            Want::Nothing | Want::NextTokens => Vec::new(),
            Want::LogitsOf(rows) => {
                let runs = rows.chunk_by(|&row, &next| next == row + 1);
                runs.map(|run| run[0]..run[run.len() - 1] + 1).collect()
            }
            Want::Logits => iter::once(0..num_rows).collect(),
        }
    }
}

/// What a step copied back.
#[derive(Clone, Debug, Default)]
pub struct StepOutput {
    /// `[num_logit_rows]`, of [`Want::NextTokens`] and [`Want::LogitsOf`].
    pub next_tokens: Vec<NextToken>,
    /// `[num_wanted_rows, vocab_size]`, of [`Want::LogitsOf`] and [`Want::Logits`].
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

    /// Makes `plan` ready to run: the weights, constants and cache are those that the executor was
    /// opened with.
    ///
    /// # Errors
    /// [`ExecError::OutOfMemory`], [`ExecError::Unsupported`] or [`ExecError::Driver`].
    fn prepare(&mut self, plan: &Plan) -> Result<PreparedPlan, ExecError> {
        self.prepare_ranks(slice::from_ref(plan))
    }

    /// As [`Executor::prepare`], with the plans of all ranks that the executor was opened with.
    ///
    /// # Errors
    /// As [`Executor::prepare`].
    fn prepare_ranks(&mut self, plans: &[Plan]) -> Result<PreparedPlan, ExecError>;

    /// Runs one step and waits for it.
    ///
    /// # Errors
    /// [`ExecError::Step`] for inputs beyond the plan's bounds or the cache, [`ExecError::Driver`],
    /// [`ExecError::Fault`].
    fn run(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
    ) -> Result<StepOutput, ExecError> {
        self.run_while(plan, inputs, want, &mut |_| ())
    }

    /// As [`Executor::run`]; calls `meanwhile` between the start of the step and the wait for its end, so that host and
    /// device work at the same time. Where the host computes itself it calls it first. It may not be called if the step
    /// fails. A step that `meanwhile` puts into its queue is the one that is run next, with the tokens
    /// that this one draws: a device has started it by then.
    ///
    /// # Errors
    /// As [`Executor::run`].
    fn run_while(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        meanwhile: &mut dyn FnMut(&mut dyn StepQueue),
    ) -> Result<StepOutput, ExecError>;

    /// The plan as it runs, of the first rank: neighbouring operations are one where the executor has that.
    ///
    /// # Errors
    /// [`ExecError::Step`] for the handle of another executor.
    fn plan(&self, plan: PreparedPlan) -> Result<&Plan, ExecError>;

    /// Runs one step operation by operation; after each one, `after` can look at what it wrote (of the first rank). The
    /// step ends at the first error of `after`.
    ///
    /// # Errors
    /// Errors of [`Executor::run`] and of `after`.
    fn run_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        after: &mut AfterOp<'_>,
    ) -> Result<(), ExecError>;

    /// Times the operations of one step, `repeats` times: on a GPU by events between them, on the
    /// CPU by the clock.
    ///
    /// # Errors
    /// Errors of [`Executor::run`]; [`ExecError::NoClock`].
    fn time_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<StepTimes, ExecError>;

    /// Runs one step operation by operation, while a profiler that watches this process and waits
    /// for `cuProfilerStart` collects; returns how many kernels each operation has.
    ///
    /// # Errors
    /// Errors of [`Executor::run`]; [`ExecError::NoCounters`].
    fn collect_ops(
        &mut self,
        _plan: PreparedPlan,
        _inputs: &StepInputs,
    ) -> Result<Vec<usize>, ExecError> {
        Err(ExecError::NoCounters)
    }

    /// The memory that it takes now, of that which [`memory_budget`] counts.
    ///
    /// # Errors
    /// [`ExecError::Driver`].
    fn memory_use(&self) -> Result<MemoryUse, ExecError>;
}

/// Takes the step after the one that runs.
pub trait StepQueue {
    /// Lets a step begin when the one that runs has ended, where the device can do that. Its tokens
    /// may be [`DRAWN`](crate::plan::DRAWN) ones of the step that runs. What is wrong with it is an
    /// error of its run.
    fn push(&mut self, plan: PreparedPlan, inputs: &StepInputs, want: Want<'_>);
}

/// Leaves every step to its run.
struct NoQueue;

impl StepQueue for NoQueue {
    fn push(&mut self, _: PreparedPlan, _: &StepInputs, _: Want<'_>) {}
}

/// The only plan of `plans`.
fn alone(plans: &[Plan]) -> Result<&Plan, ExecError> {
    match plans {
        [plan] => Ok(plan),
        _ => Err(ExecError::Unsupported {
            op: format!("{} ranks", plans.len()),
            why: "this executor has one device".to_owned(),
        }),
    }
}

/// What can go wrong in an executor.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecError {
    /// A weight could not be read.
    #[error(transparent)]
    Weights(#[from] ReadWeightError),
    /// The device has not enough memory.
    #[error("out of memory on {device}: {what} needs {needed_bytes} bytes, {free_bytes} are free")]
    OutOfMemory {
        /// The device.
        device: String,
        /// What was to be allocated.
        what: String,
        /// Bytes of the allocation.
        needed_bytes: usize,
        /// Bytes that were free.
        free_bytes: usize,
    },
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
    /// Times on the emulator are not those of a GPU.
    #[error("the emulator runs a GPU's kernels in other times than a GPU: choose cpu or cuda")]
    NoClock,
    /// Only a GPU counts what its kernels do.
    #[error("there are hardware counters on a GPU alone: choose cuda")]
    NoCounters,
    /// The chosen device is not there.
    #[error("{0}")]
    NoDevice(String),
    /// A target for GPU kernels, on the CPU.
    #[error("the target {} is for GPU kernels, and this runs on the CPU", .0.name())]
    TargetOnCpu(Target),
    /// A target that the GPU cannot run.
    #[error("{device} has compute capability {capability}: it cannot run the kernels for {}", target.name())]
    TargetTooNew {
        /// The GPU.
        device: String,
        /// What it can run.
        capability: String,
        /// The target that was chosen.
        target: Target,
    },
    /// Linear layers cannot be computed by the kernels that were chosen.
    #[error(transparent)]
    Gemm(#[from] GemmError),
    /// Devices cannot share a model as it was chosen.
    #[error("{0}")]
    Ranks(String),
    /// One of the devices that share a model has failed, or hangs: nothing can run on them any more.
    #[error("{0}")]
    RankFailed(String),
    /// The CUDA driver reported an error.
    #[error("CUDA: {call}: {error}")]
    Driver {
        /// What was being done.
        call: String,
        /// The driver's error.
        error: String,
    },
    /// The emulator found a fault of a kernel: its report, of several lines.
    #[cfg(feature = "emulator")]
    #[error(transparent)]
    Fault(#[from] simt::Fault),
    /// On the emulator no kernel of the plan has written an output that was asked for.
    #[cfg(feature = "emulator")]
    #[error("an output of the plan: {0}")]
    Unwritten(#[from] simt::MemoryError),
}

impl ExecError {
    /// Memory that `device` has not got.
    fn out_of_memory(device: &str, error: OutOfMemory) -> Self {
        let OutOfMemory { what, needed_bytes, free_bytes } = error;
        ExecError::OutOfMemory { device: device.to_owned(), what, needed_bytes, free_bytes }
    }
}

impl From<CpuError> for ExecError {
    fn from(error: CpuError) -> Self {
        match error {
            CpuError::OutOfMemory(error) => error.into(),
            CpuError::Weights(error) => error.into(),
            CpuError::Unsupported { weight, why } => ExecError::Unsupported { op: weight, why },
        }
    }
}

/// Memory for what the CPU computes.
impl From<OutOfMemory> for ExecError {
    fn from(error: OutOfMemory) -> Self {
        ExecError::out_of_memory("CPU", error)
    }
}
