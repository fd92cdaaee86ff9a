//! The profiler: what each operation of a step costs, beside what the device can give.
//!
//! Times are measured on the plan as it runs ([`Engine::time_step`]); bytes and operations come
//! from the plan ([`Plan::op_cost`](crate::plan::Plan::op_cost)), and the limits from a
//! measurement on the same device ([`Roofline`]).

mod roofline;
mod sums;
mod trace;

pub use roofline::Roofline;
pub use sums::{LayerSum, OpSum};
pub use trace::chrome_trace;

use crate::engine::{Engine, EngineError, StepSize, TimedStep};
use serde::Serialize;

/// What a model's steps cost on a device.
#[derive(Clone, Debug, Serialize)]
pub struct Profile {
    /// The model's name.
    pub model: String,
    /// Where it ran, in one line.
    pub device: String,
    /// The type of weights and operands.
    pub dtype: String,
    /// The limits of the device.
    pub roofline: Roofline,
    /// The steps.
    pub steps: Vec<StepProfile>,
}

/// A step, and what its operations took.
#[derive(Clone, Debug, Serialize)]
pub struct StepProfile {
    /// Such as `prefill 512` or `decode 1 @ 512`.
    pub name: String,
    /// Sequences of the step.
    pub num_seqs: usize,
    /// Positions of each in the cache before it.
    pub cached_tokens: usize,
    /// New tokens of each.
    pub new_tokens: usize,
    /// The median of the whole step's time, its operations one after the other, in microseconds.
    pub step_us: f64,
    /// The median of the step's time as the engine runs it, where that is as one CUDA graph.
    pub graph_us: Option<f64>,
    /// What an event takes, where operations are timed by events: it is taken off their times.
    pub event_us: Option<f64>,
    /// Kernels that it launches, where it does.
    pub num_launches: Option<usize>,
    /// Times that the step was repeated.
    pub repeats: usize,
    /// Operations of the step, in order.
    pub ops: Vec<OpProfile>,
}

/// What one operation took.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpProfile {
    /// Index of the operation in the plan as it runs.
    pub index: usize,
    /// What it does, such as `norm_linear`.
    pub op: &'static str,
    /// What of the layer it computes, such as `qkv`.
    pub subject: String,
    /// The layer of the model, if it is of one.
    pub layer: Option<usize>,
    /// The median time in microseconds.
    pub us: f64,
    /// From the lower to the upper quartile of the times, in microseconds.
    pub spread_us: f64,
    /// Bytes that it must read, each input once.
    pub read_bytes: usize,
    /// Bytes that it must write.
    pub written_bytes: usize,
    /// Floating-point operations; a multiply-add is two.
    pub flops: usize,
    /// What the device's counters say of its traffic, where they were read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counted: Option<Traffic>,
}

/// Bytes between a device's memory and its caches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Bytes read.
    pub read_bytes: usize,
    /// Bytes written. What stays in a cache after a kernel is not among them.
    pub written_bytes: usize,
}

/// A time with what was moved and computed in it.
pub trait Rated {
    /// Microseconds.
    fn us(&self) -> f64;
    /// Bytes read and written.
    fn bytes(&self) -> usize;
    /// Floating-point operations.
    fn flops(&self) -> usize;

    /// 10^9 bytes a second.
    fn gb_per_s(&self) -> f64 {
        self.bytes() as f64 / self.us() / 1e3
    }

    /// 10^12 operations a second.
    fn tflop_per_s(&self) -> f64 {
        self.flops() as f64 / self.us() / 1e6
    }
}

impl Rated for OpProfile {
    fn us(&self) -> f64 {
        self.us
    }

    fn bytes(&self) -> usize {
        self.read_bytes + self.written_bytes
    }

    fn flops(&self) -> usize {
        self.flops
    }
}

impl StepProfile {
    /// Measures a step of `size` on `engine`, `repeats` times.
    ///
    /// # Errors
    /// Errors of [`Engine::time_step`].
    pub fn measure(
        engine: &mut Engine,
        size: StepSize,
        repeats: usize,
    ) -> Result<Self, EngineError> {
        Ok(Self::of(size, &engine.time_step(size, repeats.max(1))?))
    }

    /// The profile of a step that was timed.
    pub fn of(size: StepSize, step: &TimedStep) -> Self {
        let StepSize { num_seqs, cached_tokens, new_tokens } = size;
        let TimedStep { plan, shape, times } = step;
        let ops = plan.ops.iter().zip(&times.ops_us).enumerate().map(|(index, (op, us))| {
            let cost = plan.op_cost(op, shape);
            OpProfile {
                index,
                op: op.name(),
                subject: plan.op_subject(op).to_owned(),
                layer: plan.op_layer(op),
                us: quantile(us, 0.5),
                spread_us: quantile(us, 0.75) - quantile(us, 0.25),
                read_bytes: cost.read_bytes,
                written_bytes: cost.written_bytes,
                flops: cost.flops,
                counted: None,
            }
        });
        StepProfile {
            name: match (new_tokens, num_seqs) {
                (1, _) => format!("decode {num_seqs} @ {cached_tokens}"),
                (_, 1) => format!("prefill {new_tokens}"),
                _ => format!("prefill {num_seqs} x {new_tokens}"),
            },
            num_seqs,
            cached_tokens,
            new_tokens,
            step_us: quantile(&times.step_us, 0.5),
            graph_us: times.graph_us.as_ref().map(|us| quantile(us, 0.5)),
            event_us: times.event_us,
            num_launches: times.num_launches,
            repeats: times.step_us.len(),
            ops: ops.collect(),
        }
    }

    /// The sum of the operations' times, in microseconds: beside [`StepProfile::step_us`] it says
    /// what timing each operation adds.
    pub fn sum_us(&self) -> f64 {
        self.ops.iter().map(|op| op.us).sum()
    }
}

/// The value below which a share of `values` is, between two of them in proportion; 0 of none.
fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = share * last as f64;
    let (low, high) = (sorted[at.floor() as usize], sorted[at.ceil() as usize]);
    low + (high - low) * at.fract()
}

#[cfg(test)]
mod tests;
