//! How a kernel is timed on a GPU: as the peers are.
//!
//! The output of a call is verified first. Then the calls follow each other in one CUDA graph,
//! rotate over enough copies of their inputs that memory is read and not the L2 cache, and write
//! one output; inputs are random. A time is what a call adds to a graph: the median of several
//! timed replays of two rounds of calls, less that of one round, over the calls of a round. Less
//! that of a single call would not do: what a short graph touches is still in L2 when it starts
//! again, and its time is not that of the same work in a long one.
//!
//! What it takes to start a graph is in the peers' times and not in these: on an H200 0.4 to 2.3
//! us, of which each of 48 calls has 0.05 at most, each of five 0.5.

use std::time::Duration;

use cuda_std::launch::Launch;
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use serde::Serialize;

use crate::exec::cuda::{CudaExecutor, KernelBench};
use crate::exec::tensor_maps::{Encode, TensorMaps};
use crate::exec::{ExecError, PreparedPlan};
use crate::plan::{
    Bounds, Dtype, KvLayout, Numerics, Op, Plan, PlanBuilder, PlanError, Rows, View,
};

/// What was measured of one shape; the keys are those of the peers' rows.
#[derive(Clone, Debug, Serialize)]
pub struct Row<S> {
    /// The operation.
    pub op: &'static str,
    /// `halfwarp` or `cublas`.
    #[serde(rename = "impl")]
    pub implementation: &'static str,
    /// Type of the operands: `f32`, `f16`, `bf16`; `f16_acc16` with accumulators in f16; the
    /// format of a quantised weight, such as `q4_k`; `e4m3`, and `e4m3_fast` where the tensor cores
    /// accumulate all of k, or multiply weights of attention in e4m3.
    pub dtype: String,
    /// The shape, each of its sizes a key.
    #[serde(flatten)]
    pub shape: S,
    /// Microseconds of a call: the median.
    pub us: f64,
    /// The least.
    pub min_us: f64,
    /// Operations over `us`, in 10^12 a second.
    pub tflops: f64,
    /// Bytes of inputs and output, each moved once, over `us`, in 10^9 a second.
    pub gbs: f64,
    /// Norm of the difference over the norm of the reference, in f64, on a sample of outputs.
    pub error: f64,
    /// What our kernels are compiled for; nothing is said of those of cuBLAS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<&'static str>,
    /// The device, and the PTX target that it runs.
    pub gpu: String,
}

/// Why there is no row.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// There is no such shape.
    #[error("{shape}: {why}")]
    Shape {
        /// The shape.
        shape: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no plan of such calls.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan cannot be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The output is wrong: nothing is timed.
    #[error("{shape}: relative error {error:e}, expected at most {bound:e}")]
    Wrong {
        /// The shape.
        shape: String,
        /// Norm of the difference over the norm of the reference.
        error: f64,
        /// What it may be.
        bound: f64,
    },
    /// The output has infinities or NaN: nothing is timed.
    #[error("{shape}: row {row} of the output has an element that is not finite")]
    NotFinite {
        /// The shape.
        shape: String,
        /// The first such row.
        row: usize,
    },
}

/// More than the L2 cache of any GPU of today.
const L2_FLUSH_BYTES: usize = 256 << 20;
const MIN_CALLS: usize = 8;
const MIN_US: f64 = 20_000.0;
const REPEATS: usize = 9;

/// Copies of the inputs of a call that moves `bytes`.
pub(super) fn num_copies(bytes: usize, max_copies: usize) -> usize {
    L2_FLUSH_BYTES.div_ceil(bytes.max(1)).clamp(1, max_copies)
}

/// Calls of a round: of each copy as many.
pub(super) fn calls_per_round(copies: usize) -> usize {
    copies * (MIN_CALLS / copies).max(1)
}

/// What a plan computes, with the outputs that every plan has: the rows of `verified` are its
/// logits.
pub(super) fn finish(
    mut plan: PlanBuilder,
    numerics: &Numerics,
    bounds: Bounds,
    kv: KvLayout,
    verified: View,
) -> Result<Plan, PlanError> {
    let logits = plan.activation("logits", Rows::Logits, verified.width, Dtype::F32);
    plan.op(Op::GatherRows { x: verified, out: logits });
    let next_tokens = plan.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
    plan.op(Op::Sample { x: logits, out: next_tokens });
    plan.finish(numerics, bounds, kv, logits, next_tokens)
}

/// Calls on a GPU, verified and ready to be timed.
pub struct Calls {
    pub(super) gpu: CudaExecutor,
    /// Plans of two rounds of calls and of one, that have run.
    pub(super) rounds: [PreparedPlan; 2],
    /// Calls of a round.
    pub(super) calls: usize,
    /// The relative error that was found.
    pub(super) error: f64,
}

impl Calls {
    /// The median and the least time of a call, in microseconds.
    pub(super) fn us(&mut self) -> Result<[f64; 2], ExecError> {
        us_per_call(&mut self.gpu, self.rounds, self.calls)
    }

    /// What `num_calls` calls take, by as many replays as it takes to make them once.
    ///
    /// # Errors
    /// [`ExecError::Driver`].
    pub fn time(&mut self, num_calls: u64) -> Result<Duration, ExecError> {
        let replays = num_calls.div_ceil(self.calls as u64) as usize;
        let [two, one] = self.rounds;
        let us = self.gpu.time_us(two, replays)? - self.gpu.time_us(one, replays)?;
        Ok(Duration::from_secs_f64(us.max(0.0) / 1e6 / self.calls as f64 * num_calls as f64))
    }
}

/// The median and the least time of a call in microseconds: `rounds` are of two rounds of `calls`
/// calls each and of one, and have run.
pub(super) fn us_per_call(
    gpu: &mut CudaExecutor,
    rounds: [PreparedPlan; 2],
    calls: usize,
) -> Result<[f64; 2], ExecError> {
    let times = [times_us(gpu, rounds[0])?, times_us(gpu, rounds[1])?];
    Ok([REPEATS / 2, 0].map(|i| (times[0][i] - times[1][i]) / calls as f64))
}

/// Times of one replay, in microseconds, in ascending order.
fn times_us(gpu: &mut CudaExecutor, plan: PreparedPlan) -> Result<Vec<f64>, ExecError> {
    gpu.time_us(plan, 2)?;
    let replays = (MIN_US / gpu.time_us(plan, 1)?).max(1.0) as usize;
    let times = (0..REPEATS).map(|_| gpu.time_us(plan, replays));
    let mut times = times.collect::<Result<Vec<f64>, ExecError>>()?;
    times.sort_unstable_by(f64::total_cmp);
    Ok(times)
}

/// The median and the least time of a call in microseconds, of calls that each are some launches:
/// two rounds of `calls` calls less one, where call `i` is the launches `i`, from the first on again
/// after the last.
///
/// # Safety
/// 1. As [`KernelBench::time_us`].
pub(super) unsafe fn us_per_call_of(
    bench: &mut KernelBench,
    launches: &[Vec<Launch>],
    calls: usize,
) -> Result<[f64; 2], ExecError> {
    let mut times = |rounds: usize| -> Result<Vec<f64>, ExecError> {
        let round: Vec<Launch> =
            launches.iter().cycle().take(rounds * calls).flatten().cloned().collect();
        // SAFETY: the caller's promise.
        unsafe {
            let once = bench.time_us(&round, 2, 2)?[0];
            bench.time_us(&round, (MIN_US / once).max(1.0) as usize, REPEATS)
        }
    };
    let (two, one) = (times(2)?, times(1)?);
    Ok([REPEATS / 2, 0].map(|i| (two[i] - one[i]) / calls as f64))
}

/// Norm of the difference over the norm of the reference: of each element what came out, and what
/// is right.
pub(super) fn relative_error(elements: impl IntoIterator<Item = (f32, f64)>) -> f64 {
    let (mut difference, mut norm) = (0.0, 0.0);
    for (got, wanted) in elements {
        difference += (f64::from(got) - wanted).powi(2);
        norm += wanted.powi(2);
    }
    f64::sqrt(difference / norm)
}

/// Attention of one query in f64, over rows of keys and values that are at least as long.
pub(super) fn attend<T: Copy + Into<f64>, R: AsRef<[T]>>(
    softmax_scale: f32,
    q: &[f64],
    k: &[R],
    v: &[R],
) -> Vec<f64> {
    let score = |k: &R| {
        let products = q.iter().zip(k.as_ref()).map(|(q, &k)| q * k.into());
        f64::from(softmax_scale) * products.sum::<f64>()
    };
    let scores: Vec<f64> = k.iter().map(score).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let mut out = vec![0.0; q.len()];
    for (weight, v) in weights.iter().zip(v) {
        out.iter_mut().zip(v.as_ref()).for_each(|(out, &v)| *out += weight / sum * v.into());
    }
    out
}

/// What `make` makes with tensor maps.
///
/// # Errors
/// As [`TensorMaps::finish`].
pub(super) fn with_maps<T>(
    encode: Encode,
    make: impl FnOnce(&mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap) -> T,
) -> Result<T, ExecError> {
    let mut maps = TensorMaps::new(encode);
    let made = make(&mut |spec| maps.encode(spec));
    maps.finish().map(|()| made)
}

/// `error`, where it is at most `bound`.
pub(super) fn check_error(
    shape: &impl ToString,
    error: f64,
    bound: f64,
) -> Result<f64, BenchError> {
    if error.is_nan() || error > bound {
        return Err(BenchError::Wrong { shape: shape.to_string(), error, bound });
    }
    Ok(error)
}
