//! GEMM on a GPU, timed as [`kernels`](super::kernels) says.

use std::fmt;
use std::path::PathBuf;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::Serialize;

use super::kernels::{
    BenchError, Calls, Row, calls_per_round, check_error, finish, num_copies, relative_error,
};
use super::random::{RandomWeights, norm, normed};
use crate::exec::cuda::CudaExecutor;
use crate::exec::{Device, ExecError, Executor, Gemm, GemmError, GpuOptions, Target, Want};
use crate::plan::{
    Accumulate, Bounds, Dtype, KvLayout, Linear, Numerics, Op, PAGE_SIZE, Plan, PlanBuilder,
    PlanError, Precision, Rows, StepInputs, View, Weight, WeightId,
};

/// `C[m, n] = A[m, k] * B[n, k]^T`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Shape {
    /// Rows of the input: tokens.
    pub m: usize,
    /// Rows of the weight.
    pub n: usize,
    /// Columns of both.
    pub k: usize,
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Shape { m, n, k } = self;
        write!(f, "{m},{n},{k}")
    }
}

impl Shape {
    /// Multiply-adds count two.
    pub fn flops(&self) -> f64 {
        2.0 * (self.m * self.n * self.k) as f64
    }

    /// Bytes of A, B and C in `dtype`.
    pub fn bytes(&self, dtype: Dtype) -> usize {
        let &Shape { m, n, k } = self;
        dtype.block_bytes() * (m * k + n * k + m * n)
    }
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
pub struct Config {
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

impl Config {
    /// Whether there can be such a measurement.
    ///
    /// # Errors
    /// [`BenchError::Plan`], and [`ExecError::Gemm`] in [`BenchError::Exec`].
    pub fn check(&self) -> Result<(), BenchError> {
        let &Config { gpu, gemm, accumulate, target, .. } = self;
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

const WEIGHTS: RandomWeights = RandomWeights::UNIFORM;
const MAX_COPIES: usize = 48;
const SAMPLES: usize = 256;

/// Measures `config` at a shape.
///
/// # Errors
/// [`BenchError`].
pub fn measure(config: &Config, shape: Shape) -> Result<Row<Shape>, BenchError> {
    let mut calls = open(config, shape)?;
    let [us, min_us] = calls.us()?;
    let Calls { gpu, error, .. } = calls;
    let (gemm, dtype) = (config.gemm, config.dtype());
    Ok(Row {
        op: "gemm",
        implementation: if gemm == Gemm::Halfwarp { "halfwarp" } else { "cublas" },
        dtype: match config.accumulates_in_f16() {
            true => "f16_acc16".to_owned(),
            false => dtype.to_string().to_lowercase(),
        },
        shape,
        us,
        min_us,
        tflops: shape.flops() / us / 1e6,
        gbs: shape.bytes(dtype) as f64 / us / 1e3,
        error,
        config: (gemm == Gemm::Halfwarp).then(|| gpu.target().name()),
        gpu: gpu.describe(),
    })
}

/// Makes calls of `config` at a shape, and verifies one.
///
/// # Errors
/// [`BenchError`].
pub fn open(config: &Config, shape: Shape) -> Result<Calls, BenchError> {
    config.check()?;
    let &Config { gpu: ordinal, gemm, target, ref cubin_dir, .. } = config;
    let options =
        GpuOptions { gemm, target, cubin_dir: cubin_dir.clone(), ..GpuOptions::default() };
    let m = shape.m;
    let copies = num_copies(shape.bytes(config.dtype()), MAX_COPIES);
    let calls = calls_per_round(copies);
    let bench = Bench { shape, config, copies };
    let (two_rounds, one_round) = (bench.plan(2 * calls + 1)?, bench.plan(calls + 1)?);
    let gpu = CudaExecutor::open(ordinal, &options, &two_rounds, &WEIGHTS)?;
    let mut gpu = gpu.without_overlap();
    let rounds = [gpu.prepare(&two_rounds)?, gpu.prepare(&one_round)?];

    let mut inputs = StepInputs::new();
    let pages: Vec<u32> = (0..m.div_ceil(PAGE_SIZE) as u32).collect();
    let tokens: Vec<u32> = (0..m as u32).collect();
    inputs.push_sequence(&tokens, 0, &pages, 0..m);
    gpu.run(rounds[1], &inputs, Want::Nothing)?;
    let got = gpu.run(rounds[0], &inputs, Want::Logits)?.logits;
    let error = check_error(&shape, bench.sampled_error(&two_rounds, &got)?, bench.error_bound())?;
    Ok(Calls { gpu, rounds, calls, error })
}

/// Linear layers of one shape.
struct Bench<'a> {
    shape: Shape,
    config: &'a Config,
    copies: usize,
}

impl Bench<'_> {
    /// `calls` linear layers over the copies of input and weight; the inputs are rows of
    /// embeddings. The first call's output comes out as logits, those of the others go to one
    /// place: so do the peers', whose allocator gives a call the memory that the one before has
    /// left.
    fn plan(&self, calls: usize) -> Result<Plan, PlanError> {
        let Shape { m, n, .. } = self.shape;
        let bounds =
            Bounds { max_kv_len: m.next_multiple_of(PAGE_SIZE), ..Bounds::one_sequence(m) };
        let kv = KvLayout::none(&bounds, self.config.dtype());
        let mut plan = PlanBuilder::new();
        let operands: Vec<_> =
            (0..self.copies).map(|copy| self.operands(&mut plan, copy)).collect();
        let output = plan.activation("c", Rows::Tokens, n, self.config.dtype());
        let verified = plan.activation("verified", Rows::Tokens, n, Dtype::F32);
        for call in 0..calls {
            let (x, weight) = operands[call % self.copies];
            let out = if call == 0 { verified } else { output };
            plan.op(Op::Linear(Linear::new(x, weight, out)));
        }
        finish(plan, &self.config.numerics(), bounds, kv, verified)
    }

    /// An input and a weight. An input of 16 bits comes from a norm, which rounds.
    fn operands(&self, plan: &mut PlanBuilder, copy: usize) -> (View, WeightId) {
        let Shape { m, n, k } = self.shape;
        let table = plan.weight(Weight::whole(format!("a{copy}"), m, k, Dtype::F32));
        let b = plan.weight(Weight::whole(format!("b{copy}"), n, k, self.config.dtype()));
        let hidden = plan.activation(format!("hidden{copy}"), Rows::Tokens, k, Dtype::F32);
        plan.op(Op::Embedding { table, out: hidden, scale: 1.0 });
        if self.config.dtype() == Dtype::F32 {
            return (hidden, b);
        }
        let x = norm(plan, hidden, copy, self.config.dtype());
        (x, b)
    }

    /// What the norm makes of a row of the embedding.
    fn input(&self, row: &[f32]) -> Vec<f64> {
        if self.config.dtype() == Dtype::F32 {
            return row.iter().map(|&value| f64::from(value)).collect();
        }
        normed(row, self.config.dtype())
    }

    /// An accumulator in f16 is rounded after every MMA: by half a unit of 2^-10 each, in all
    /// growing as the root of their number, one for 16 of k.
    fn error_bound(&self) -> f64 {
        match self.config.dtype() {
            _ if self.config.accumulates_in_f16() => {
                1e-3 * (2.0 + self.shape.k as f64 / 16.0).sqrt()
            }
            Dtype::F32 => 1e-5,
            _ => 1e-3,
        }
    }

    /// Relative error of the first call's output on a sample of its elements.
    fn sampled_error(&self, plan: &Plan, got: &[f32]) -> Result<f64, ExecError> {
        let Shape { m, n, k } = self.shape;
        let [a, b] = [0, 1].map(|id| WEIGHTS.values(&plan.weights[id]));
        let (a, b) = (a?, b?);
        let mut random = ChaCha8Rng::seed_from_u64(1);
        Ok(relative_error((0..SAMPLES).map(|_| {
            let (row, column) = (random.random_range(0..m), random.random_range(0..n));
            let x = self.input(&a[row * k..][..k]);
            let pairs = x.iter().zip(&b[column * k..][..k]);
            (got[row * n + column], pairs.map(|(&a, &b)| a * f64::from(b)).sum())
        })))
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
            let config = Config {
                gpu: 0,
                gemm: Gemm::Halfwarp,
                accumulate: Accumulate::F32,
                target: None,
                precision,
                cubin_dir: None,
            };
            let bench = Bench { shape: Shape { m: 3, n: 24, k: 40 }, config: &config, copies: 2 };
            let plan = bench.plan(4).unwrap();
            let mut cpu = CpuExecutor::open(&plan, &WEIGHTS).unwrap();
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
