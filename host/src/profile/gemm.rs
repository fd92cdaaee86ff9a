//! GEMM on a GPU, timed as the peers are.
//!
//! The output of a call is verified first. Then the calls follow each other in one CUDA graph,
//! rotate over enough copies of the weight and the input that memory is read and not the L2 cache,
//! and write one output; inputs are random. A time is what a call adds to a graph: the median of
//! several timed replays of two rounds of calls, less that of one round, over the calls of a round.
//! Less that of a single call would not do: what a short graph touches is still in L2 when it
//! starts again, and its time is not that of the same work in a long one.
//!
//! What it takes to start a graph is in the peers' times and not in these: on an H200 0.4 to 2.3
//! us, of which each of 48 calls has 0.05 at most, each of five 0.5.

use std::path::PathBuf;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use serde::Serialize;

use crate::exec::cuda::CudaExecutor;
use crate::exec::{
    Device, ExecError, Executor, Gemm, GemmError, GpuOptions, PreparedPlan, Target, Want,
};
use crate::plan::{
    Accumulate, Bounds, Dtype, KvLayout, Linear, Numerics, Op, PAGE_SIZE, PartTransform, Plan,
    PlanBuilder, PlanError, Precision, ReadWeightError, Rows, StepInputs, View, Weight, WeightId,
    WeightPart, WeightSource,
};
use half::{bf16, f16};

/// `C[m, n] = A[m, k] * B[n, k]^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows of the input: tokens.
    pub m: usize,
    /// Rows of the weight.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
}

/// Squares, and linear layers (QKV, attention output, gate and up, down) of Qwen2.5-0.5B, Phi-3
/// Mini and Llama-2 7B: of prompts, and of decoding with 1, 8 and 32 sequences.
pub fn shapes() -> Vec<Shape> {
    const SQUARES: [usize; 4] = [8192, 4096, 2048, 1000];
    const QWEN: [[usize; 2]; 4] = [[1152, 896], [896, 896], [9728, 896], [896, 4864]];
    const PHI: [[usize; 2]; 4] = [[9216, 3072], [3072, 3072], [16384, 3072], [3072, 8192]];
    const LLAMA: [[usize; 2]; 4] = [[12288, 4096], [4096, 4096], [22016, 4096], [4096, 11008]];
    const LOGITS: [[usize; 2]; 3] = [[151_936, 896], [32064, 3072], [32000, 4096]];
    let rows = |m: usize, layers: &[[usize; 2]]| {
        layers.iter().map(move |&[n, k]| Shape { m, n, k }).collect::<Vec<_>>()
    };
    let mut shapes: Vec<Shape> = SQUARES.map(|m| Shape { m, n: m, k: m }).to_vec();
    for (m, layers) in [(512, QWEN), (2048, QWEN), (512, PHI), (2048, PHI), (512, LLAMA)] {
        shapes.extend(rows(m, &layers));
    }
    for m in [1, 8, 32] {
        shapes.extend([&QWEN[..], &PHI, &LLAMA, &LOGITS].map(|layers| rows(m, layers)).concat());
    }
    shapes
}

/// What is measured.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The number of the GPU.
    pub gpu: usize,
    /// Whose kernels are timed.
    pub gemm: Gemm,
    /// Type of the accumulators of our kernels, small-batch ones aside.
    pub accumulate: Accumulate,
    /// What our kernels are compiled for; `None`: the newest that the GPU can run.
    pub target: Option<Target>,
    /// Type of the operands.
    pub precision: Precision,
    /// As [`GpuOptions::cubin_dir`].
    pub cubin_dir: Option<PathBuf>,
}

impl Subject {
    /// Whether there can be such a measurement.
    ///
    /// # Errors
    /// [`BenchError::Plan`], and [`ExecError::Gemm`] in [`BenchError::Exec`].
    pub fn check(&self) -> Result<(), BenchError> {
        let &Subject { gpu, gemm, accumulate, target, .. } = self;
        self.numerics().check()?;
        gemm.compute_type(self.dtype()).map_err(ExecError::from)?;
        gemm.check_accumulate(accumulate, Device::Cuda(gpu)).map_err(ExecError::from)?;
        match target {
            Some(target) if gemm != Gemm::Halfwarp => {
                Err(ExecError::from(GemmError::CublasTarget { gemm, target }).into())
            }
            _ => Ok(()),
        }
    }

    fn numerics(&self) -> Numerics {
        Numerics { accumulate: self.accumulate, ..self.precision.into() }
    }

    /// Type of the operands.
    fn dtype(&self) -> Dtype {
        self.precision.operand()
    }

    /// Whether accumulators are in f16.
    fn accumulates_in_f16(&self) -> bool {
        self.gemm == Gemm::CublasF16 || self.accumulate == Accumulate::F16
    }
}

/// What was measured of one shape; the keys are those of the peers' rows.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// `gemm`.
    pub op: &'static str,
    /// `halfwarp` or `cublas`.
    #[serde(rename = "impl")]
    pub implementation: &'static str,
    /// Type of the operands: `f32`, `f16`, `bf16`; `f16_acc16` with accumulators in f16.
    pub dtype: String,
    /// Rows of the input.
    pub m: usize,
    /// Rows of the weight.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
    /// Microseconds of a call: the median.
    pub us: f64,
    /// The least.
    pub min_us: f64,
    /// Operations over `us`, in 10^12 a second.
    pub tflops: f64,
    /// Bytes of input, weight and output, each moved once, over `us`, in 10^9 a second.
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
    /// There is no plan of such linear layers.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The plan cannot be run.
    #[error(transparent)]
    Exec(#[from] ExecError),
    /// The output is wrong: nothing is timed.
    #[error("{shape:?}: relative error {error:e}, expected at most {bound:e}")]
    Wrong {
        /// The shape.
        shape: Shape,
        /// Norm of the difference over the norm of the reference.
        error: f64,
        /// What it may be.
        bound: f64,
    },
}

/// More than the L2 cache of any GPU of today.
const L2_FLUSH_BYTES: usize = 256 << 20;
const MAX_COPIES: usize = 48;
const MIN_CALLS: usize = 8;
const MIN_US: f64 = 20_000.0;
const REPEATS: usize = 9;
const SAMPLES: usize = 256;

/// Norms, by the start of their weights' names; and what they add to the mean of squares.
const ONES: &str = "ones";
const EPS: f32 = 1e-6;

/// Measures `subject` at a shape.
///
/// # Errors
/// [`BenchError`].
pub fn measure(subject: &Subject, shape: Shape) -> Result<Row, BenchError> {
    subject.check()?;
    let &Subject { gpu: ordinal, gemm, target, ref cubin_dir, .. } = subject;
    let options = GpuOptions { gemm, target, cubin_dir: cubin_dir.clone() };
    let dtype = subject.dtype();
    let Shape { m, n, k } = shape;
    let bytes = dtype.block_bytes() * (m * k + n * k + m * n);
    let copies = L2_FLUSH_BYTES.div_ceil(bytes.max(1)).clamp(1, MAX_COPIES);
    let calls = copies * (MIN_CALLS / copies).max(1);
    let bench = Bench { shape, subject, copies };
    let (two_rounds, one_round) = (bench.plan(2 * calls + 1)?, bench.plan(calls + 1)?);
    let gpu = CudaExecutor::open(ordinal, &options, &two_rounds, &RandomWeights)?;
    let mut gpu = gpu.without_overlap();
    let prepared = [gpu.prepare(&two_rounds)?, gpu.prepare(&one_round)?];

    let mut inputs = StepInputs::new();
    let pages: Vec<u32> = (0..m.div_ceil(PAGE_SIZE) as u32).collect();
    let tokens: Vec<u32> = (0..m as u32).collect();
    inputs.push_sequence(&tokens, 0, &pages, 0..m);
    gpu.run(prepared[1], &inputs, Want::Nothing)?;
    let got = gpu.run(prepared[0], &inputs, Want::Logits)?.logits;
    let (error, bound) = (bench.sampled_error(&two_rounds, &got)?, bench.error_bound());
    if error.is_nan() || error > bound {
        return Err(BenchError::Wrong { shape, error, bound });
    }

    let times = [times_us(&mut gpu, prepared[0])?, times_us(&mut gpu, prepared[1])?];
    let [us, min_us] = [REPEATS / 2, 0].map(|i| (times[0][i] - times[1][i]) / calls as f64);
    Ok(Row {
        op: "gemm",
        implementation: if gemm == Gemm::Halfwarp { "halfwarp" } else { "cublas" },
        dtype: match subject.accumulates_in_f16() {
            true => "f16_acc16".to_owned(),
            false => dtype.to_string().to_lowercase(),
        },
        m,
        n,
        k,
        us,
        min_us,
        tflops: 2.0 * (m * n * k) as f64 / us / 1e6,
        gbs: bytes as f64 / us / 1e3,
        error,
        config: (gemm == Gemm::Halfwarp).then(|| gpu.target().name()),
        gpu: gpu.describe(),
    })
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

/// Linear layers of one shape.
struct Bench<'a> {
    shape: Shape,
    subject: &'a Subject,
    copies: usize,
}

impl Bench<'_> {
    /// `calls` linear layers over the copies of input and weight; the inputs are rows of
    /// embeddings. The first call's output comes out as logits, those of the others go to one
    /// place: so do the peers', whose allocator gives a call the memory that the one before has
    /// left.
    fn plan(&self, calls: usize) -> Result<Plan, PlanError> {
        let Shape { m, n, .. } = self.shape;
        let bounds = Bounds {
            max_tokens: m,
            max_seqs: 1,
            max_q_len: m,
            max_logit_rows: m,
            max_kv_len: m.next_multiple_of(PAGE_SIZE),
        };
        let kv = KvLayout {
            num_layers: 0,
            num_kv_heads: 1,
            // As any type can be stored.
            head_dim: 8,
            num_pages: bounds.max_pages_per_seq(),
            dtype: self.subject.dtype(),
        };
        let mut plan = PlanBuilder::new();
        let operands: Vec<_> =
            (0..self.copies).map(|copy| self.operands(&mut plan, copy)).collect();
        let output = plan.activation("c", Rows::Tokens, n, self.subject.dtype());
        let verified = plan.activation("verified", Rows::Tokens, n, Dtype::F32);
        for call in 0..calls {
            let (x, weight) = operands[call % self.copies];
            let out = if call == 0 { verified } else { output };
            plan.op(Op::Linear(Linear::new(x, weight, out)));
        }
        let logits = plan.activation("logits", Rows::Logits, n, Dtype::F32);
        plan.op(Op::GatherRows { x: verified, out: logits });
        let next_tokens = plan.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
        plan.op(Op::Argmax { x: logits, out: next_tokens });
        plan.finish(&self.subject.numerics(), bounds, kv, logits, next_tokens)
    }

    /// An input and a weight. An input of 16 bits comes from a norm, which rounds.
    fn operands(&self, plan: &mut PlanBuilder, copy: usize) -> (View, WeightId) {
        let Shape { m, n, k } = self.shape;
        let table = plan.weight(weight(format!("a{copy}"), m, k, Dtype::F32));
        let b = plan.weight(weight(format!("b{copy}"), n, k, self.subject.dtype()));
        let hidden = plan.activation(format!("hidden{copy}"), Rows::Tokens, k, Dtype::F32);
        plan.op(Op::Embedding { table, out: hidden });
        if self.subject.dtype() == Dtype::F32 {
            return (hidden, b);
        }
        let ones = plan.weight(weight(format!("{ONES}{copy}"), 1, k, Dtype::F32));
        let x = plan.activation(format!("x{copy}"), Rows::Tokens, k, self.subject.dtype());
        plan.op(Op::RmsNorm { x: hidden, weight: ones, out: x, eps: EPS });
        (x, b)
    }

    /// What the norm makes of a row of the embedding.
    fn input(&self, row: &[f32]) -> Vec<f64> {
        if self.subject.dtype() == Dtype::F32 {
            return row.iter().map(|&value| f64::from(value)).collect();
        }
        let squares: f64 = row.iter().map(|&value| f64::from(value).powi(2)).sum();
        let scale = 1.0 / (squares / row.len() as f64 + f64::from(EPS)).sqrt();
        let round = |value: f32| rounded((f64::from(value) * scale) as f32, self.subject.dtype());
        row.iter().map(|&value| f64::from(round(value))).collect()
    }

    /// An accumulator in f16 is rounded after every MMA: by half a unit of 2^-10 each, in all
    /// growing as the root of their number, one for 16 of k.
    fn error_bound(&self) -> f64 {
        match self.subject.dtype() {
            _ if self.subject.accumulates_in_f16() => {
                1e-3 * (2.0 + self.shape.k as f64 / 16.0).sqrt()
            }
            Dtype::F32 => 1e-5,
            _ => 1e-3,
        }
    }

    /// Relative error of the first call's output on a sample of its elements.
    fn sampled_error(&self, plan: &Plan, got: &[f32]) -> Result<f64, ExecError> {
        let Shape { m, n, k } = self.shape;
        let (a, b) = (values(&plan.weights[0])?, values(&plan.weights[1])?);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let (mut difference, mut norm) = (0.0, 0.0);
        for _ in 0..SAMPLES {
            let (row, column) = (random.random_range(0..m), random.random_range(0..n));
            let x = self.input(&a[row * k..][..k]);
            let pairs = x.iter().zip(&b[column * k..][..k]);
            let wanted: f64 = pairs.map(|(&a, &b)| a * f64::from(b)).sum();
            difference += (f64::from(got[row * n + column]) - wanted).powi(2);
            norm += wanted.powi(2);
        }
        Ok((difference / norm).sqrt())
    }
}

/// The numbers of a weight.
fn values(weight: &Weight) -> Result<Vec<f32>, ExecError> {
    let mut bytes = vec![0; weight.bytes()];
    RandomWeights.read(weight, &mut bytes)?;
    Ok(match weight.storage {
        Dtype::F16 => bytes.as_chunks().0.iter().map(|&x| f16::from_ne_bytes(x).to_f32()).collect(),
        Dtype::BF16 => {
            bytes.as_chunks().0.iter().map(|&x| bf16::from_ne_bytes(x).to_f32()).collect()
        }
        _ => bytes.as_chunks().0.iter().map(|&x| f32::from_ne_bytes(x)).collect(),
    })
}

/// The nearest number that `dtype` has.
fn rounded(value: f32, dtype: Dtype) -> f32 {
    match dtype {
        Dtype::F16 => f16::from_f32(value).to_f32(),
        Dtype::BF16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

fn weight(name: String, rows: usize, cols: usize, storage: Dtype) -> Weight {
    let parts = vec![WeightPart { source: name.clone(), rows, transform: PartTransform::None }];
    Weight { name, parts, rows, cols, storage }
}

/// Numbers from -1 to 1, the same for the same name; ones for a norm.
struct RandomWeights;

impl WeightSource for RandomWeights {
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
        let seed = weight.name.bytes().fold(0, |seed, byte| seed * 31 + u64::from(byte));
        let is_norm = weight.name.starts_with(ONES);
        out.par_chunks_mut(1 << 20).enumerate().for_each(|(chunk, out)| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(chunk as u64);
            let mut next = || if is_norm { 1.0 } else { random.random_range(-1.0f32..1.0) };
            for out in out.chunks_exact_mut(weight.storage.block_bytes()) {
                match weight.storage {
                    Dtype::F16 => out.copy_from_slice(&f16::from_f32(next()).to_ne_bytes()),
                    Dtype::BF16 => out.copy_from_slice(&bf16::from_f32(next()).to_ne_bytes()),
                    _ => out.copy_from_slice(&next().to_ne_bytes()),
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::cpu::CpuExecutor;

    /// The plan that is timed on a GPU gives what is verified, and another input or weight does
    /// not.
    #[test]
    fn the_plan_computes_what_is_verified() {
        for precision in Precision::ALL {
            let subject = Subject {
                gpu: 0,
                gemm: Gemm::Halfwarp,
                accumulate: Accumulate::F32,
                target: None,
                precision,
                cubin_dir: None,
            };
            let bench = Bench { shape: Shape { m: 3, n: 24, k: 40 }, subject: &subject, copies: 2 };
            let plan = bench.plan(4).unwrap();
            let mut cpu = CpuExecutor::open(&plan, &RandomWeights).unwrap();
            let prepared = cpu.prepare(&plan).unwrap();
            let mut inputs = StepInputs::new();
            inputs.push_sequence(&[0, 1, 2], 0, &[0], 0..3);
            let mut got = cpu.run(prepared, &inputs, Want::Logits).unwrap().logits;
            let error = bench.sampled_error(&plan, &got).unwrap();
            assert!(error <= bench.error_bound(), "{precision}: {error:e}");
            got.rotate_left(1);
            assert!(bench.sampled_error(&plan, &got).unwrap() > 0.1, "{precision}");
        }
    }
}
