//! `batch_invariant`: a sequence's logits are the same bits alone, beside others, and with its
//! prompt in chunks, on every executor.

mod support;

use halfwarp::Model;
use halfwarp::exec::{self, Device, Executor, GpuOptions, PreparedPlan, Want, cuda};
use halfwarp::plan::{Bounds, Numerics, PAGE_SIZE, Plan, PlanOutput, Precision, Rank, StepInputs};
use libtest_mimic::{Arguments, Completion, Trial};
use std::collections::HashMap;

/// Sequences that a step can have.
const MAX_SEQS: usize = 256;
/// Sequences beside the one that is looked at: more than the 64 rows of the largest block of decoding, within a block of
/// rows of every kernel, and as many as there can be, for which the emulator takes too long.
const OTHERS: [usize; 3] = [70, 31, MAX_SEQS - 1];
/// Pages of a sequence: room for a prompt of more than a page, and its answer.
const PAGES: usize = 2;
/// The prompt of the sequence that is looked at: more rows than a kernel for few takes, more keys
/// than a page has.
const PROMPT_LEN: usize = 67;
/// Tokens that follow it, one a step.
const ANSWER: [u32; 2] = [17, 100];
/// A model without anything special.
const LLAMA: &str = "llama-gqa";

fn main() {
    let mut trials = Vec::new();
    for (name, device, present) in support::devices() {
        for (golden, precision, world) in forms(device) {
            let mut add = |what: &str, test: fn(On)| {
                let world_name = if world > 1 { format!("_tp{world}") } else { String::new() };
                let name = format!("{name}_{precision}{world_name}::{golden}::{what}");
                trials.push(Trial::ignorable_test(name, move || {
                    if !present {
                        return Ok(Completion::ignored_with("there is no such device"));
                    }
                    let gpus = || cuda::devices().map_or(0, |devices| devices.len());
                    if device.cuda_ordinal().is_some() && gpus() < world {
                        return Ok(Completion::ignored_with("there are not so many GPUs"));
                    }
                    test(On { device, golden, precision, world });
                    Ok(Completion::Completed)
                }));
            };
            // On the emulator: sequences share nothing of these layers, and it takes long.
            let is_short = device == Device::Emulated && golden != LLAMA && !support::runs_all();
            if !is_short {
                add("in_a_batch", in_a_batch);
            }
            add("with_its_prompt_in_chunks", with_its_prompt_in_chunks);
            // The emulator takes long for it, and it is about this test.
            let is_last = device != Device::Emulated || precision == Precision::F16;
            if !is_short && (is_last || support::runs_all()) {
                add("without_it_bits_may_differ", without_it_bits_may_differ);
            }
        }
    }
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// What runs the model.
#[derive(Clone, Copy)]
struct On {
    device: Device,
    golden: &'static str,
    precision: Precision,
    /// Devices that share the model.
    world: usize,
}

/// Models, precisions, and devices that share the model. The emulator needs as long for several as for one; what its kernels
/// add is the same bits whichever of them does, as their own tests show.
fn forms(device: Device) -> Vec<(&'static str, Precision, usize)> {
    let alone = [Precision::F32, Precision::F16].map(|precision| (LLAMA, precision, 1));
    let shared: &[_] = match device {
        Device::Cpu => &[(LLAMA, Precision::F16, 2)],
        Device::Emulated => &[],
        _ => &[
            (LLAMA, Precision::F16, 2),
            (LLAMA, Precision::F16, 4),
            ("llama-heads8", Precision::F16, 8),
        ],
    };
    // Gated DeltaNet: of a prompt chunks that are cut where steps are.
    let recurrent = ["qwen3-next", "qwen3.5"].map(|golden| (golden, Precision::F16, 1));
    let is_slow = device == Device::Emulated && !support::runs_all();
    let recurrent = recurrent.into_iter().take(if is_slow { 1 } else { 2 });
    alone.iter().chain(shared).copied().chain(recurrent).collect()
}

fn in_a_batch(on: On) {
    let mut runner = Runner::new(on, true);
    let alone = runner.logits(&[PROMPT_LEN], 0);
    let num_cases = match on.device {
        Device::Emulated if support::runs_all() => 2,
        Device::Emulated => 1,
        _ => 3,
    };
    for others in OTHERS.into_iter().take(num_cases) {
        assert_eq!(runner.logits(&[PROMPT_LEN], others), alone, "beside {others}");
    }
}

fn with_its_prompt_in_chunks(on: On) {
    let mut runner = Runner::new(on, true);
    let whole = runner.logits(&[PROMPT_LEN], 0);
    for chunks in [[66, 1], [10, 57]] {
        assert_eq!(runner.logits(&chunks, 0), whole, "{chunks:?}");
    }
}

/// What the others assert is not so by itself.
fn without_it_bits_may_differ(on: On) {
    let mut runner = Runner::new(on, false);
    let whole = runner.logits(&[PROMPT_LEN], 0);
    assert_ne!(runner.logits(&[10, 57], 31), whole);
}

/// A tiny model on a device.
struct Runner {
    model: Model,
    executor: Box<dyn Executor>,
    numerics: Numerics,
    world: usize,
    prepared: HashMap<Bounds, PreparedPlan>,
}

impl Runner {
    fn new(On { device, golden, precision, world }: On, batch_invariant: bool) -> Self {
        let model = Model::open(support::data_dir().join("goldens").join(golden)).unwrap();
        let bounds = bounds(PROMPT_LEN + MAX_SEQS, PROMPT_LEN);
        let numerics = Numerics { batch_invariant, ..precision.into() };
        let plans = plans(&model, world, &numerics, bounds);
        let options = GpuOptions { cubin_dir: exec::default_cubin_dir(), ..Default::default() };
        let executor = exec::open_ranks(device, &options, &plans, model.checkpoint()).unwrap();
        Runner { model, executor, numerics, world, prepared: HashMap::new() }
    }

    /// Bits of the logits after the prompt, in `chunks`, and after each token of the answer, with
    /// `others` beside it in every step.
    fn logits(&mut self, chunks: &[usize], others: usize) -> Vec<Vec<u32>> {
        let tokens: Vec<u32> = (0..PROMPT_LEN as u32).map(|i| i * 37 % 128).chain(ANSWER).collect();
        let (mut past_len, mut last) = (0, Vec::new());
        for &len in chunks {
            last = self.step(&tokens[past_len..past_len + len], past_len, others);
            past_len += len;
        }
        let mut logits = vec![last];
        for (past_len, &token) in tokens.iter().enumerate().skip(PROMPT_LEN) {
            logits.push(self.decode(token, past_len, others));
        }
        logits
    }

    /// A step of a prompt, whose chunk it is, beside prompts of one token.
    fn step(&mut self, chunk: &[u32], past_len: usize, others: usize) -> Vec<u32> {
        let bounds = bounds(chunk.len() + others, chunk.len().max(2));
        self.run(bounds, chunk, past_len, 0, others)
    }

    /// A step of one token a sequence.
    fn decode(&mut self, token: u32, past_len: usize, others: usize) -> Vec<u32> {
        self.run(bounds(1 + others, 1), &[token], past_len, past_len - PROMPT_LEN + 1, others)
    }

    /// The sequence comes after half of `others`, which have `others_past` tokens each.
    fn run(
        &mut self,
        bounds: Bounds,
        chunk: &[u32],
        past_len: usize,
        others_past: usize,
        others: usize,
    ) -> Vec<u32> {
        let mut inputs = StepInputs::new();
        let place = others / 2;
        for seq in 0..=others {
            let first_page = (PAGES * seq) as u32;
            let pages: Vec<u32> = (first_page..first_page + PAGES as u32).collect();
            if seq == place {
                inputs.push_sequence(chunk, past_len, &pages, chunk.len() - 1..chunk.len());
            } else {
                inputs.push_sequence(&[seq as u32 % 128], others_past, &pages, 0..1);
            }
        }
        let plan = match self.prepared.get(&bounds) {
            Some(&plan) => plan,
            None => {
                let plans = plans(&self.model, self.world, &self.numerics, bounds);
                let plan = self.executor.prepare_ranks(&plans).unwrap();
                self.prepared.insert(bounds, plan);
                plan
            }
        };
        let output = self.executor.run(plan, &inputs, Want::Logits).unwrap();
        let width = self.model.config().vocab_size;
        output.logits[place * width..][..width].iter().map(|logit| logit.to_bits()).collect()
    }
}

/// Bounds of a step, with no more room than it needs: a plan of its own for every size.
fn bounds(max_tokens: usize, max_q_len: usize) -> Bounds {
    let max_seqs = MAX_SEQS.min(max_tokens);
    let max_kv_len = PAGES * PAGE_SIZE;
    Bounds { max_tokens, max_seqs, max_q_len, max_logit_rows: max_seqs, max_kv_len, mixed: false }
}

fn plans(model: &Model, world: usize, numerics: &Numerics, bounds: Bounds) -> Vec<Plan> {
    let plan = |rank| model.plan_of(rank, PlanOutput::Logits, numerics, bounds, MAX_SEQS * PAGES);
    Rank::all(world).map(|rank| plan(rank).unwrap()).collect()
}
