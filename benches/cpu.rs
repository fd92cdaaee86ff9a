//! The CPU executor's operations: linear layers, attention, dequantisation; and the tokenizer.
//!
//! `cargo bench --bench cpu [-- FILTER]`. Outputs are verified before anything is timed. A step is a plan around one
//! operation, as in the tests of the executors, without logits; rates are those of [`Plan::cost`], which counts the
//! embedding that provides the rows too.

#[allow(dead_code, unused_imports, unused_macros)] // the tests' part
#[path = "../tests/weights/files.rs"]
mod files;
#[allow(dead_code)] // the tests' part
#[path = "../tests/executors/harness.rs"]
mod harness;
#[allow(dead_code)] // the tests' part
#[path = "../tests/executors/oracle.rs"]
mod oracle;
#[path = "../tests/support/mod.rs"]
mod support;

use criterion::{Criterion, Throughput};
use halfwarp::exec::cpu::CpuExecutor;
use halfwarp::exec::{Executor, Want};
use halfwarp::plan::{
    Attention, Dtype, KvHeads, KvLayout, Linear, Op, Plan, Precision, StepInputs, StepShape,
    Weight, WeightSource,
};
use halfwarp::{Checkpoint, Model};
use harness::{Matrix, Setup, Weights, bounds, matches_oracle, one_sequence, smallest_kv};
use oracle::Approx;
use safetensors::SafeTensors;
use std::time::Duration;

/// Rows of x: decoding one sequence and eight, a short prompt, a long one.
const ROWS: [usize; 4] = [1, 8, 64, 512];
/// `n` and `k` of the layers of SmolLM2-135M and Qwen2.5-0.5B.
const LINEARS: [(&str, usize, usize); 6] = [
    ("smollm2_qkv", 960, 576),
    ("smollm2_gate_up", 3072, 576),
    ("smollm2_down", 576, 1536),
    ("qwen2.5_qkv", 1152, 896),
    ("qwen2.5_gate_up", 9728, 896),
    ("qwen2.5_down", 896, 4864),
];
/// Query heads and KV heads of 64 columns.
const HEADS: [(&str, usize, usize); 2] = [("smollm2", 9, 3), ("qwen2.5", 14, 2)];
const HEAD_DIM: usize = 64;
/// Name, `kv_len`, `q_len`.
const SEQUENCES: [(&str, usize, usize); 2] = [("decode_1024", 1024, 1), ("prefill_512", 512, 512)];
/// Weight formats, and their numbers in GGUF.
const FORMATS: [(&str, u32); 13] = [
    ("F32", 0),
    ("F16", 1),
    ("BF16", 30),
    ("Q4_0", 2),
    ("Q4_1", 3),
    ("Q5_0", 6),
    ("Q5_1", 7),
    ("Q8_0", 8),
    ("Q2_K", 10),
    ("Q3_K", 11),
    ("Q4_K", 12),
    ("Q5_K", 13),
    ("Q6_K", 14),
];
/// Least bytes of a dequantised tensor: more than the caches hold.
const DEQUANTIZED_BYTES: usize = 64 << 20;
/// English that stays as it is.
const TEXT: &str = include_str!("../LICENSE-APACHE");

fn main() {
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(1))
        .configure_from_args();
    linear(&mut criterion);
    attention(&mut criterion);
    dequantize(&mut criterion);
    encode(&mut criterion);
    criterion.final_summary();
}

fn linear(criterion: &mut Criterion) {
    for (name, n, k) in LINEARS {
        let weight = Matrix::random(1, n, k);
        for rows in ROWS {
            let input = Matrix::random(2, rows, k);
            let mut setup = Setup::default();
            let (x, id) = (setup.input("x", &input), setup.matrix("weight", &weight));
            let out = setup.activation("out", n);
            setup.plan.op(Op::Linear(Linear::new(x, id, out)));
            let bounds = bounds(rows, 0);
            let (plan, weights) = setup.finish(bounds, smallest_kv(&bounds), out);
            let last = oracle::linear(&last_row(&input), &weight, None, None);
            let step = one_sequence(rows, 0);
            time_step(criterion, &format!("linear/{name}/{rows}"), &plan, &weights, &[step], &last);
        }
    }
}

fn attention(criterion: &mut Criterion) {
    for (name, num_heads, num_kv_heads) in HEADS {
        for (sequence, kv_len, q_len) in SEQUENCES {
            let (q_width, kv_width) = (num_heads * HEAD_DIM, num_kv_heads * HEAD_DIM);
            let input = Matrix::random(1, kv_len, q_width + 2 * kv_width);
            let mut setup = Setup::default();
            let qkv = setup.input("qkv", &input);
            let (k, v) =
                (qkv.columns(q_width, kv_width), qkv.columns(q_width + kv_width, kv_width));
            let op = Attention {
                layer: 0,
                q: qkv.columns(0, q_width),
                out: setup.activation("out", q_width),
                num_heads,
                num_kv_heads,
                head_dim: HEAD_DIM,
                softmax_scale: 0.125,
                causal: true,
                window: None,
                sinks: None,
                softcap: None,
            };
            setup.plan.op(Op::KvAppend { layer: 0, k, v });
            setup.plan.op(Op::Attention(op));
            let bounds = bounds(kv_len, 0);
            let kv = KvLayout {
                layers: vec![KvHeads { num_kv_heads, head_dim: HEAD_DIM }],
                ..smallest_kv(&bounds)
            };
            let (plan, weights) = setup.finish(bounds, kv, op.out);
            let part = |start, width| input.columns(start..start + width);
            let (keys, values) = (part(q_width, kv_width), part(q_width + kv_width, kv_width));
            let last = oracle::attention(
                &op,
                Precision::F32,
                &last_row(&part(0, q_width)),
                &keys,
                &values,
            );
            let past_len = kv_len - q_len;
            let mut new = one_sequence(q_len, past_len);
            new.token_ids = (past_len as u32 + 1..=kv_len as u32).collect();
            let steps = [one_sequence(kv_len, 0), new];
            let name = format!("attention/{name}/{sequence}");
            time_step(criterion, &name, &plan, &weights, &steps, &last);
        }
    }
}

fn last_row(matrix: &Matrix) -> Matrix {
    Matrix { rows: 1, cols: matrix.cols, data: matrix.row(matrix.rows - 1).to_vec() }
}

/// Runs `steps`, verifies the last row of the last one, and times that one.
fn time_step(
    criterion: &mut Criterion,
    name: &str,
    plan: &Plan,
    weights: &Weights,
    steps: &[StepInputs],
    expected: &[Approx],
) {
    let mut cpu = CpuExecutor::open(plan, weights).expect("a plan in f32");
    let prepared = cpu.prepare(plan).expect("the same plan");
    let mut logits = Vec::new();
    for step in steps {
        logits = cpu.run(prepared, step, Want::Logits).expect("a step within its bounds").logits;
    }
    let last = &logits[logits.len() - expected.len()..];
    matches_oracle(last, expected, expected.len())
        .unwrap_or_else(|error| panic!("{name}: {error}"));

    let Some(step) = steps.last() else { return };
    let step = StepInputs { logit_rows: Vec::new(), ..step.clone() };
    let cost = plan.cost(&StepShape::of(&step));
    let mut group = criterion.benchmark_group(name);
    group.throughput(Throughput::ElementsAndBytes {
        elements: cost.flops as u64,
        bytes: (cost.read_bytes + cost.written_bytes) as u64,
    });
    group.bench_function("step", |bencher| {
        bencher.iter(|| cpu.run(prepared, &step, Want::Nothing));
    });
}

/// From each format to f32, in bytes of f32 per second: blocks of known values, repeated.
fn dequantize(criterion: &mut Criterion) {
    let fixtures = support::data_dir().join("fixtures");
    let blocks = Checkpoint::open(fixtures.join("blocks.gguf")).expect("the fixture");
    let expected = std::fs::read(fixtures.join("blocks.safetensors")).expect("the fixture");
    let expected = SafeTensors::deserialize(&expected).expect("the fixture");
    for (name, type_id) in FORMATS {
        let expected = expected.tensor(name).expect("every format").data();
        let copies = DEQUANTIZED_BYTES.div_ceil(expected.len());
        let stored = blocks.tensor(name).expect("every format").bytes.repeat(copies);
        let cols = expected.len() / 4;
        let dims = [cols as u64, copies as u64];
        let checkpoint = files::Gguf::new().tensor(name, &dims, type_id, &stored).open();
        let weight = Weight::whole(name, copies, cols, Dtype::F32);
        let mut out = vec![0; weight.bytes()];
        checkpoint.read(&weight, &mut out).expect("a known format");
        assert!(out.chunks(expected.len()).all(|copy| copy == expected), "{name}");

        let mut group = criterion.benchmark_group("dequantize");
        group.throughput(Throughput::Bytes(out.len() as u64));
        group.bench_function(name, |bencher| bencher.iter(|| checkpoint.read(&weight, &mut out)));
    }
}

fn encode(criterion: &mut Criterion) {
    let Some(path) = support::smollm2() else {
        return println!("encode: skipped, SmolLM2 is not in the model cache");
    };
    let model = Model::open(path).expect("the fetched model");
    let tokenizer = &model.text().expect("its tokenizer").tokenizer;
    let tokens = tokenizer.encode(TEXT, false).expect("text");
    assert_eq!(tokenizer.decode(&tokens, false), TEXT);
    let mut group = criterion.benchmark_group("encode");
    group.throughput(Throughput::ElementsAndBytes {
        elements: tokens.len() as u64,
        bytes: TEXT.len() as u64,
    });
    group.bench_function("smollm2", |bencher| bencher.iter(|| tokenizer.encode(TEXT, false)));
}
