//! Models whose weights stay quantised, on GPUs and the emulator: logits against those of the numbers in the blocks,
//! which a naive interpreter takes as f32.

#[path = "model/interpreter.rs"]
mod interpreter;
mod support;

use halfwarp::Model;
use halfwarp::exec::{self, Device, Executor, GpuOptions, PreparedPlan, Target, Want};
use halfwarp::plan::{Bounds, Numerics, Plan, Precision, StepInputs, WeightStorage};
use interpreter::Interpreter;
use libtest_mimic::{Arguments, Completion, Trial};

/// Of the logits: norm of the difference over norm. Activations are in f16.
const MAX_ERROR: f64 = 5e-3;

/// Tokens of the sequences' prompts.
const PROMPT_LEN: usize = 20;

/// Sequences that there is a cache for.
const MAX_SEQS: usize = 20;

const VOCAB_SIZE: usize = 100;

fn main() {
    let mut trials = Vec::new();
    for (name, device, present) in support::devices() {
        if device == Device::Cpu {
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
            add("logits", |device, target| logits(device, target, numerics()));
            add("invariant_logits", |device, target| logits(device, target, invariant()));
            add("invariant_rows", invariant_rows);
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

fn model() -> Model {
    Model::open(support::data_dir().join("fixtures/quantized.gguf")).unwrap()
}

fn numerics() -> Numerics {
    Numerics { weights: WeightStorage::Tiles, ..Numerics::from(Precision::F16) }
}

fn invariant() -> Numerics {
    Numerics { batch_invariant: true, ..numerics() }
}

/// Token `position` of sequence `seq`.
fn token(seq: usize, position: usize) -> u32 {
    ((seq * 31 + position * 37) % VOCAB_SIZE) as u32
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
    fn new(device: Device, target: Target, numerics: Numerics) -> Self {
        let model = model();
        let options = GpuOptions { target: Some(target), ..GpuOptions::default() };
        let plan =
            model.plan(&numerics, bounds(MAX_SEQS * PROMPT_LEN, MAX_SEQS, PROMPT_LEN), MAX_SEQS);
        let executor = exec::open(device, &options, &plan.unwrap(), model.checkpoint());
        Opened { executor: executor.unwrap_or_else(|error| panic!("{error}")), model, numerics }
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
            let tokens: Vec<u32> = positions.clone().map(|at| token(seq, at)).collect();
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

/// Prompts of several sequences, a token of each after them, and one of a sequence alone: each are so many rows, or of
/// such numerics, that another kernel multiplies them.
fn logits(device: Device, target: Target, numerics: Numerics) {
    let mut opened = Opened::new(device, target, numerics);
    let plan = opened.plan(bounds(1, 1, 1));
    let named = |name: &str| plan.weights.iter().find(|weight| weight.name == name).expect(name);
    assert_eq!(named("embedding").bytes(), 112 * 210, "rows of tiles are multiples of 16");
    assert_eq!(named("layers.0.qkv").bytes(), (128 + 64) * 144 + 64 * 210, "Q4_K and Q6_K");
    assert_eq!(named("layers.1.qkv").bytes(), 128 * 176 + 64 * 8 * 34 + 64 * 256 * 2, "and F16");
    assert_eq!(named("layers.0.gate_up").bytes(), 96 * 84 + 96 * 110, "Q2_K and Q3_K");

    let seqs = 3;
    let prompts = opened.prepare(bounds(seqs * PROMPT_LEN, seqs, PROMPT_LEN));
    let (batch, one) = (opened.prepare(bounds(seqs, seqs, 1)), opened.prepare(bounds(1, 1, 1)));
    let of_prompts = opened.run(prompts, 0..seqs, 0..PROMPT_LEN);
    let of_batch = opened.run(batch, 0..seqs, PROMPT_LEN..PROMPT_LEN + 1);
    let of_one = opened.run(one, 1..2, PROMPT_LEN + 1..PROMPT_LEN + 2);
    let dense = Numerics::default();
    for seq in 0..seqs {
        let tokens: Vec<u32> = (0..PROMPT_LEN + 2).map(|position| token(seq, position)).collect();
        let plan = opened.model.plan(&dense, bounds(tokens.len(), 1, tokens.len()), 1).unwrap();
        let want = Interpreter::logits(&opened.model, &plan, &tokens);
        let rows =
            |first: usize, num_rows: usize| &want[first * VOCAB_SIZE..][..num_rows * VOCAB_SIZE];
        let prompt = &of_prompts[seq * PROMPT_LEN * VOCAB_SIZE..][..PROMPT_LEN * VOCAB_SIZE];
        let next = &of_batch[seq * VOCAB_SIZE..][..VOCAB_SIZE];
        let mut cases = vec![(prompt, rows(0, PROMPT_LEN)), (next, rows(PROMPT_LEN, 1))];
        if seq == 1 {
            cases.push((&of_one, rows(PROMPT_LEN + 1, 1)));
        }
        for (got, want) in cases {
            let error = relative_error(got, want);
            assert!(error < MAX_ERROR, "sequence {seq}: relative error {error:.2e}");
        }
    }
}

/// A token's logits are the same bits alone and among more than are multiplied with blocks at once.
fn invariant_rows(device: Device, target: Target) {
    let mut opened = Opened::new(device, target, invariant());
    let (many, few) =
        (opened.prepare(bounds(MAX_SEQS, MAX_SEQS, 1)), opened.prepare(bounds(1, 1, 1)));
    let of_many = opened.run(many, 0..MAX_SEQS, 0..1);
    for seq in [0, 7, MAX_SEQS - 1] {
        let alone = opened.run(few, seq..seq + 1, 0..1);
        let among = &of_many[seq * VOCAB_SIZE..][..VOCAB_SIZE];
        let is_same = alone.iter().zip(among).all(|(a, b)| a.to_bits() == b.to_bits());
        assert!(is_same, "sequence {seq} has other bits in a batch");
    }
}
