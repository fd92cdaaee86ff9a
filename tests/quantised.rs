//! Models whose weights stay quantised, on GPUs and the emulator, and in E4M3 on the CPU: logits against those of the
//! numbers that are stored, which a naive interpreter takes as f32.

#[path = "model/interpreter.rs"]
mod interpreter;
mod support;

use halfwarp::Model;
use halfwarp::exec::{self, Device, Executor, GpuOptions, PreparedPlan, Target, Want};
use halfwarp::plan::{
    ActivationStorage, Bounds, Dtype, Numerics, Op, Plan, Precision, StepInputs, WeightId,
    WeightStorage,
};
use interpreter::Interpreter;
use libtest_mimic::{Arguments, Completion, Trial};

/// Largest error of the logits: norm of the difference over norm. Activations are in f16.
const MAX_ERROR: f64 = 5e-3;

/// The same where rows are rounded to E4M3: a value that is nearly between two of its numbers, a sixteenth apart, may
/// become the other one.
const MAX_ROUNDED_ERROR: f64 = 2e-2;

/// Tokens of the sequences' prompts.
const PROMPT_LEN: usize = 20;

/// Sequences that there is a cache for.
const MAX_SEQS: usize = 20;

/// GGUF files with blocks of many formats, and safetensors in E4M3.
const BLOCKS: &str = "fixtures/quantized.gguf";
const IQ_BLOCKS: &str = "fixtures/iq.gguf";
const FP8: [&str; 5] = [
    "fixtures/packed/fp8-tensor",
    "fixtures/packed/fp8-channel",
    "fixtures/packed/fp8-block",
    "fixtures/packed/moe-fp8-channel",
    "fixtures/packed/moe-fp8-block",
];

fn main() {
    let mut trials = Vec::new();
    for (name, device, present) in support::devices() {
        if device == Device::Cpu {
            for fixture in FP8 {
                trials.push(Trial::test(format!("{name}::{fixture}"), move || {
                    fp8_on_the_cpu(fixture);
                    Ok(())
                }));
            }
            continue;
        }
        for target in [Target::Sm80, Target::Sm90a] {
            let mut add = |what: &str, test: fn(Device, Target)| {
                let name = format!("{name}_{}::{what}", target.name());
                trials.push(Trial::ignorable_test(name, move || match present {
                    false => Ok(Completion::ignored_with("there is no such device")),
                    true => {
                        test(device, target);
                        Ok(Completion::Completed)
                    }
                }));
            };
            add("logits", |device, target| blocks(device, target, numerics()));
            if target == Target::Sm80 {
                add("iq_logits", iq_blocks);
            }
            add("invariant_logits", |device, target| blocks(device, target, invariant()));
            add("invariant_rows", |device, target| {
                invariant_rows(Opened::new(device, target, BLOCKS, invariant()));
            });
            add("fp8_logits", |device, target| fp8(device, target, numerics()));
            add("fp8_invariant_logits", |device, target| fp8(device, target, invariant()));
            add("fp8_invariant_rows", |device, target| {
                let numerics = in_fp8(target, invariant());
                invariant_rows(Opened::new(device, target, FP8[1], numerics));
            });
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn numerics() -> Numerics {
    Numerics { weights: WeightStorage::Tiles, ..Numerics::from(Precision::F16) }
}

fn invariant() -> Numerics {
    Numerics { batch_invariant: true, ..numerics() }
}

/// Rows are rounded to E4M3 where tensor cores multiply it.
fn in_fp8(target: Target, numerics: Numerics) -> Numerics {
    let activations = match target {
        Target::Sm80 => ActivationStorage::Operand,
        Target::Sm90a => ActivationStorage::Fp8,
    };
    Numerics { activations, ..numerics }
}

fn bounds(max_tokens: usize, max_seqs: usize, max_q_len: usize) -> Bounds {
    Bounds {
        max_tokens,
        max_seqs,
        max_q_len,
        max_logit_rows: max_tokens,
        max_kv_len: 64,
        mixed: false,
    }
}

/// An executor, and what it was opened for.
struct Opened {
    model: Model,
    numerics: Numerics,
    executor: Box<dyn Executor>,
}

impl Opened {
    fn new(
        device: Device,
        target: impl Into<Option<Target>>,
        fixture: &str,
        numerics: Numerics,
    ) -> Self {
        let model = Model::open(support::data_dir().join(fixture)).unwrap();
        let options = GpuOptions { target: target.into(), ..GpuOptions::default() };
        let plan =
            model.plan(&numerics, bounds(MAX_SEQS * PROMPT_LEN, MAX_SEQS, PROMPT_LEN), MAX_SEQS);
        let executor = exec::open(device, &options, &plan.unwrap(), model.checkpoint());
        Opened { executor: executor.unwrap_or_else(|error| panic!("{error}")), model, numerics }
    }

    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    /// Token `position` of sequence `seq`.
    fn token(&self, seq: usize, position: usize) -> u32 {
        ((seq * 31 + position * 37) % self.vocab_size()) as u32
    }

    fn plan(&self, bounds: Bounds) -> Plan {
        self.model.plan(&self.numerics, bounds, MAX_SEQS).unwrap()
    }

    fn prepare(&mut self, bounds: Bounds) -> PreparedPlan {
        let plan = self.plan(bounds);
        self.executor.prepare(&plan).unwrap_or_else(|error| panic!("{error}"))
    }

    /// The logits of tokens `positions` of each of `seqs`, in one step.
    fn run(
        &mut self,
        plan: PreparedPlan,
        seqs: std::ops::Range<usize>,
        positions: std::ops::Range<usize>,
    ) -> Vec<f32> {
        let mut inputs = StepInputs::new();
        for seq in seqs {
            let tokens: Vec<u32> = positions.clone().map(|at| self.token(seq, at)).collect();
            inputs.push_sequence(&tokens, positions.start, &[seq as u32], 0..tokens.len());
        }
        let output = self.executor.run(plan, &inputs, Want::Logits);
        output.unwrap_or_else(|error| panic!("{error}")).logits
    }
}

fn relative_error(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|x| x * x).sum::<f64>().sqrt();
    let difference = &mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - f64::from(*w));
    norm(difference) / norm(&mut want.iter().map(|w| f64::from(*w)))
}

/// Weights are kept in the blocks of the file.
fn blocks(device: Device, target: Target, numerics: Numerics) {
    let opened = Opened::new(device, target, BLOCKS, numerics);
    let plan = opened.plan(bounds(1, 1, 1));
    let named = |name: &str| plan.weights.iter().find(|weight| weight.name == name).expect(name);
    assert_eq!(named("embedding").bytes(), 112 * 210, "rows of tiles are multiples of 16");
    assert_eq!(named("layers.0.qkv").bytes(), (128 + 64) * 144 + 64 * 210, "Q4_K and Q6_K");
    assert_eq!(named("layers.1.qkv").bytes(), 128 * 176 + 64 * 8 * 34 + 64 * 256 * 2, "and F16");
    assert_eq!(named("layers.0.gate_up").bytes(), 96 * 84 + 96 * 110, "Q2_K and Q3_K");
    logits(opened);
}

/// Weights are kept in blocks that those of the file become.
fn iq_blocks(device: Device, target: Target) {
    let opened = Opened::new(device, target, IQ_BLOCKS, numerics());
    let plan = opened.plan(bounds(1, 1, 1));
    let named = |name: &str| plan.weights.iter().find(|weight| weight.name == name).expect(name);
    assert_eq!(named("embedding").storage(), Some(Dtype::Q8_0), "IQ4_NL");
    assert_eq!(named("layers.0.gate_up").storage(), Some(Dtype::Q6_K), "IQ3_XXS and IQ3_S");
    logits(opened);
}

/// Weights are kept in E4M3 of each kind.
fn fp8(device: Device, target: Target, numerics: Numerics) {
    for fixture in FP8 {
        let opened = Opened::new(device, target, fixture, in_fp8(target, numerics));
        check_fp8(&opened, fixture);
        logits(opened);
    }
}

/// Without rounding rows, and with it, as a GPU does.
fn fp8_on_the_cpu(fixture: &str) {
    for activations in [ActivationStorage::Operand, ActivationStorage::Fp8] {
        let weights = WeightStorage::AsStored;
        let numerics = Numerics { weights, activations, ..Numerics::from(Precision::F16) };
        let opened = Opened::new(Device::Cpu, None, fixture, numerics);
        check_fp8(&opened, fixture);
        logits(opened);
    }
}

fn check_fp8(opened: &Opened, fixture: &str) {
    let plan = opened.plan(bounds(1, 1, 1));
    let storage = |name: &str| {
        let weight = plan.weights.iter().find(|weight| weight.name == name).expect(name);
        (weight.storage(), weight.bytes())
    };
    let (dtype, [rows, cols]) = match fixture.ends_with("block") {
        true => (Dtype::F8_E4M3_BLOCKS, [128, 128]),
        false => (Dtype::F8_E4M3, [1, 256]),
    };
    let bytes = |n: usize, k: usize| n * k + 4 * n.div_ceil(rows) * k.div_ceil(cols);
    match fixture.contains("moe") {
        true => {
            // What is one block wide has a scale for each row.
            let of_rows = 3 * 256 * (128 + 4);
            assert_eq!(storage("layers.0.expert_gate"), (Some(Dtype::F8_E4M3), of_rows));
            assert_eq!(storage("layers.0.expert_down"), (Some(dtype), bytes(3 * 128, 256)));
        }
        false => assert_eq!(storage("layers.0.down"), (Some(dtype), bytes(128, 256))),
    }
    assert_eq!(storage("layers.0.qkv"), (Some(Dtype::F8_E4M3), 256 * 128 + 4 * 256));
}

/// Prompts of several sequences, a token of each after them, and one of a sequence alone: each are so many rows, or of
/// such numerics, that another kernel multiplies them.
fn logits(mut opened: Opened) {
    let seqs = 3;
    let all = [bounds(seqs * PROMPT_LEN, seqs, PROMPT_LEN), bounds(seqs, seqs, 1), bounds(1, 1, 1)];
    let rounded = all.map(|bounds| rounded_weights(&opened.plan(bounds)));
    let [prompts, batch, one] = all.map(|bounds| opened.prepare(bounds));
    let of_prompts = opened.run(prompts, 0..seqs, 0..PROMPT_LEN);
    let of_batch = opened.run(batch, 0..seqs, PROMPT_LEN..PROMPT_LEN + 1);
    let of_one = opened.run(one, 1..2, PROMPT_LEN + 1..PROMPT_LEN + 2);
    let (dense, vocab_size) = (Numerics::default(), opened.vocab_size());
    for seq in 0..seqs {
        let tokens: Vec<u32> =
            (0..PROMPT_LEN + 2).map(|position| opened.token(seq, position)).collect();
        let plan = opened.model.plan(&dense, bounds(tokens.len(), 1, tokens.len()), 1).unwrap();
        let want = |rounded: &[Vec<WeightId>], first: usize, num_rows: usize| {
            // What is cached of a prompt is of its rows, rounded as they are.
            let of_token = |token: usize| {
                let step = (token + 1).saturating_sub(PROMPT_LEN).min(rounded.len() - 1);
                &rounded[step][..]
            };
            let logits = Interpreter::logits(&opened.model, &plan, &tokens, &of_token);
            logits[first * vocab_size..][..num_rows * vocab_size].to_vec()
        };
        let prompt = &of_prompts[seq * PROMPT_LEN * vocab_size..][..PROMPT_LEN * vocab_size];
        let next = &of_batch[seq * vocab_size..][..vocab_size];
        let mut cases = vec![
            (prompt, want(&rounded[..1], 0, PROMPT_LEN)),
            (next, want(&rounded[..2], PROMPT_LEN, 1)),
        ];
        if seq == 1 {
            cases.push((&of_one, want(&rounded, PROMPT_LEN + 1, 1)));
        }
        let bound = match rounded.iter().all(Vec::is_empty) {
            true => MAX_ERROR,
            false => MAX_ROUNDED_ERROR,
        };
        for (got, want) in cases {
            let error = relative_error(got, &want);
            assert!(error < bound, "sequence {seq}: relative error {error:.2e}");
        }
    }
}

/// The weights whose rows are rounded to E4M3.
fn rounded_weights(plan: &Plan) -> Vec<WeightId> {
    let linear = |op: &Op| match op {
        Op::Linear(linear) if plan.rounds_rows(linear) => Some(linear.weight),
        _ => None,
    };
    plan.ops.iter().filter_map(linear).collect()
}

/// A token's logits are the same bits alone and among more than are multiplied with blocks at once.
fn invariant_rows(mut opened: Opened) {
    let vocab_size = opened.vocab_size();
    let (many, few) =
        (opened.prepare(bounds(MAX_SEQS, MAX_SEQS, 1)), opened.prepare(bounds(1, 1, 1)));
    let of_many = opened.run(many, 0..MAX_SEQS, 0..1);
    for seq in [0, 7, MAX_SEQS - 1] {
        let alone = opened.run(few, seq..seq + 1, 0..1);
        let among = &of_many[seq * vocab_size..][..vocab_size];
        let is_same = alone.iter().zip(among).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(is_same, "sequence {seq} has other bits in a batch");
    }
}
