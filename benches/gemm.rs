//! GEMM on the GPU, as rows that join with those of the peers: a JSON object a line.
//!
//! `cargo bench --bench gemm [-- M,N,K ..]`. The method is that of any bandwidth-honest bench: outputs are verified
//! first; the calls stand one after the other in one CUDA graph and rotate over enough copies of the weight and the
//! input that memory is read and not the L2 cache; the time is the median of several timed replays, less that of the same
//! graph with one call; inputs are random.
//! `error` is the norm of the difference over the norm of the reference, in f64, on a sample of outputs.

use halfwarp::exec::cuda::CudaExecutor;
use halfwarp::exec::{ExecError, Executor, PreparedPlan, Want, WeightSource};
use halfwarp::plan::{
    Bounds, Dtype, KvLayout, Op, PAGE_SIZE, PartTransform, Plan, PlanBuilder, Rows, StepInputs,
    Weight, WeightPart,
};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// `C[m, n] = A[m, k] * B[n, k]^T`: a large square, and the prompts and decode steps of the models.
const SHAPES: [[usize; 3]; 9] = [
    [4096, 4096, 4096],
    [512, 9728, 896],
    [512, 16384, 3072],
    [1, 9728, 896],
    [1, 896, 4864],
    [1, 151_936, 896],
    [1, 16384, 3072],
    [1, 3072, 8192],
    [8, 16384, 3072],
];

/// More than the L2 cache of any GPU of today.
const L2_FLUSH_BYTES: usize = 256 << 20;
const MAX_COPIES: usize = 48;
const MIN_CALLS: usize = 8;
const MIN_US: f64 = 20_000.0;
const REPEATS: usize = 9;
const SAMPLES: usize = 256;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Err(error) = halfwarp::exec::cuda::free_memory(0) {
        println!("gemm: skipped, {error}");
        return Ok(());
    }
    let given: Vec<[usize; 3]> =
        std::env::args().skip(1).filter_map(|argument| shape(&argument)).collect();
    for [m, n, k] in if given.is_empty() { SHAPES.to_vec() } else { given } {
        bench(m, n, k)?;
    }
    Ok(())
}

fn shape(argument: &str) -> Option<[usize; 3]> {
    let numbers: Vec<usize> = argument.split(',').map(str::parse).collect::<Result<_, _>>().ok()?;
    numbers.try_into().ok()
}

fn bench(m: usize, n: usize, k: usize) -> Result<(), Box<dyn std::error::Error>> {
    let bytes = 4 * (m * k + n * k + m * n);
    let copies = L2_FLUSH_BYTES.div_ceil(bytes).clamp(1, MAX_COPIES);
    let calls = copies * (MIN_CALLS / copies).max(1);
    let (full, frame) = (plan(m, n, k, copies, calls + 1), plan(m, n, k, copies, 1));
    let mut gpu = CudaExecutor::open(0, &full, &RandomWeights)?;
    let prepared = [gpu.prepare(&full)?, gpu.prepare(&frame)?];

    let mut inputs = StepInputs::new();
    let pages: Vec<u32> = (0..m.div_ceil(PAGE_SIZE) as u32).collect();
    let tokens: Vec<u32> = (0..m as u32).collect();
    inputs.push_sequence(&tokens, 0, &pages, 0..m);
    gpu.run(prepared[1], &inputs, Want::Nothing)?;
    let got = gpu.run(prepared[0], &inputs, Want::Logits)?.logits;
    let error = sampled_error(&full, [m, n, k], &got)?;
    assert!(error < 1e-5, "relative error {error:e} at {m} x {n} x {k}");

    let times = [times_us(&mut gpu, prepared[0])?, times_us(&mut gpu, prepared[1])?];
    let [us, min_us] = [REPEATS / 2, 0].map(|i| (times[0][i] - times[1][i]) / calls as f64);
    println!(
        "{}",
        serde_json::json!({
            "op": "gemm", "impl": "halfwarp", "dtype": "f32", "m": m, "n": n, "k": k,
            "us": us, "min_us": min_us, "tflops": 2.0 * (m * n * k) as f64 / us / 1e6,
            "gbs": bytes as f64 / us / 1e3, "error": error, "gpu": gpu.describe(),
        })
    );
    Ok(())
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

/// `calls` linear layers over `copies` inputs and weights; the inputs are rows of embeddings. The first call's output
/// comes out as logits.
fn plan(m: usize, n: usize, k: usize, copies: usize, calls: usize) -> Plan {
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
        head_dim: 1,
        num_pages: bounds.max_pages_per_seq(),
        dtype: Dtype::F32,
    };
    let mut plan = PlanBuilder::new();
    let weight = |name: String, rows, cols| Weight {
        parts: vec![WeightPart { source: name.clone(), rows, transform: PartTransform::None }],
        name,
        rows,
        cols,
        storage: Dtype::F32,
    };
    let operands: Vec<_> = (0..copies)
        .map(|i| {
            let table = plan.weight(weight(format!("a{i}"), m, k));
            let x = plan.activation(format!("a{i}"), Rows::Tokens, k, Dtype::F32);
            plan.op(Op::Embedding { table, out: x });
            (x, plan.weight(weight(format!("b{i}"), n, k)))
        })
        .collect();
    let outputs: Vec<_> = (0..copies)
        .map(|i| plan.activation(format!("c{i}"), Rows::Tokens, n, Dtype::F32))
        .collect();
    for call in 0..calls {
        let ((x, weight), out) = (operands[call % copies], outputs[call % copies]);
        plan.op(Op::Linear { x, weight, bias: None, residual: None, out });
    }
    let logits = plan.activation("logits", Rows::Logits, n, Dtype::F32);
    plan.op(Op::GatherRows { x: outputs[0], out: logits });
    let next_tokens = plan.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
    plan.op(Op::Argmax { x: logits, out: next_tokens });
    plan.finish(bounds, kv, logits, next_tokens)
}

/// Numbers from -1 to 1, the same for the same name.
struct RandomWeights;

impl WeightSource for RandomWeights {
    fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ExecError> {
        let seed = weight.name.bytes().fold(0, |seed, byte| seed * 31 + u64::from(byte));
        out.par_chunks_mut(1 << 20).enumerate().for_each(|(chunk, out)| {
            let mut random = ChaCha8Rng::seed_from_u64(seed);
            random.set_stream(chunk as u64);
            for out in out.chunks_exact_mut(4) {
                out.copy_from_slice(&random.random_range(-1.0f32..1.0).to_ne_bytes());
            }
        });
        Ok(())
    }
}

/// Relative error of the first call's output on a sample of its elements.
fn sampled_error(plan: &Plan, [m, n, k]: [usize; 3], got: &[f32]) -> Result<f64, ExecError> {
    let read = |weight: &Weight| {
        let mut bytes = vec![0; weight.bytes()];
        RandomWeights.read(weight, &mut bytes)?;
        let values = bytes.as_chunks().0.iter().copied().map(f32::from_ne_bytes);
        Ok::<Vec<f32>, ExecError>(values.collect())
    };
    let (a, b) = (read(&plan.weights[0])?, read(&plan.weights[1])?);
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (mut difference, mut norm) = (0.0, 0.0);
    for _ in 0..SAMPLES {
        let (row, column) = (random.random_range(0..m), random.random_range(0..n));
        let pairs = a[row * k..][..k].iter().zip(&b[column * k..][..k]);
        let wanted: f64 = pairs.map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
        difference += (f64::from(got[row * n + column]) - wanted).powi(2);
        norm += wanted.powi(2);
    }
    Ok((difference / norm).sqrt())
}
