//! Gated DeltaNet: two sequences in pieces, a prompt, both together and a token of each, whose
//! states stay in the executor. The second round begins with zeros again.

use crate::Test;
use crate::harness::{Backend, Matrix, Outcome, Setup, Step, check, smallest_kv, suffix};
use crate::oracle::Approx;
use ::oracle::{Gated, causal_conv, delta_rule};
use halfwarp::plan::{
    Bounds, CausalConv, DeltaRule, Op, Plan, Precision, StateLayout, StepInputs, View,
};

/// Tokens of the sequences; their rows follow each other.
const LENS: [usize; 2] = [8, 4];
/// New tokens of the sequences in each step, and the step's plan.
const STEPS: [([usize; 2], usize); 3] = [([5, 0], 0), ([2, 3], 0), ([1, 1], 1)];

const NUM_HEADS: usize = 4;
const NUM_K_HEADS: usize = 2;
const K_DIM: usize = 32;
const V_DIM: usize = 16;
const CHANNELS: usize = 2 * NUM_K_HEADS * K_DIM + NUM_HEADS * V_DIM;

pub fn tests() -> Vec<Test> {
    let mut tests = Vec::new();
    for precision in Precision::ALL {
        let name = format!("causal_conv::matches_oracle{}", suffix(precision));
        tests.push(Test::new(name, move |backend| conv_matches_oracle(backend, precision)));
        for is_tiled in [false, true] {
            let heads = if is_tiled { "tiled" } else { "neighbours" };
            let name = format!("delta_rule::matches_oracle_{heads}{}", suffix(precision));
            let run = move |backend| rule_matches_oracle(backend, precision, is_tiled);
            tests.push(Test::new(name, run));
        }
        for by_rows in [false, true] {
            let of = if by_rows { "rows" } else { "elements" };
            let name = format!("sigmoid_gate::matches_oracle_of_{of}{}", suffix(precision));
            let run = move |backend| gate_matches_oracle(backend, precision, by_rows);
            tests.push(Test::new(name, run));
        }
    }
    tests
}

fn states() -> StateLayout {
    StateLayout {
        num_layers: 1,
        num_slots: 4,
        conv_channels: CHANNELS,
        conv_len: 3,
        num_heads: NUM_HEADS,
        k_dim: K_DIM,
        v_dim: V_DIM,
    }
}

/// The plan for a prompt, and the one that decodes.
fn bounds() -> [Bounds; 2] {
    let prompt = Bounds {
        max_tokens: 8,
        max_seqs: 2,
        max_q_len: 8,
        max_logit_rows: 8,
        max_kv_len: 64,
        mixed: false,
    };
    [prompt, Bounds { max_tokens: 2, max_q_len: 1, max_logit_rows: 2, ..prompt }]
}

/// The steps, of which every row is wanted.
fn steps(expected: &[Approx], width: usize) -> Vec<Step> {
    let mut lens = [0; 2];
    let step = |(number, &(new, plan)): (usize, &([usize; 2], usize))| {
        let (mut inputs, mut wanted) = (StepInputs::new(), Vec::new());
        for seq in (0..2).filter(|&seq| new[seq] > 0) {
            let first = LENS[0] * seq + lens[seq];
            let tokens: Vec<u32> = (first + 1..=first + new[seq]).map(|id| id as u32).collect();
            inputs.push_sequence(&tokens, lens[seq], &[seq as u32], 0..new[seq]);
            // A state that goes on in another slot is read from the one before.
            let slot = |step: usize| (1 - seq + step % 2 * 2) as u32;
            *inputs.state_slots.last_mut().unwrap() = [slot(number.max(1) - 1), slot(number)];
            wanted.extend_from_slice(&expected[first * width..][..new[seq] * width]);
            lens[seq] += new[seq];
        }
        Step { plan, inputs, expected: wanted }
    };
    STEPS.iter().enumerate().map(step).collect()
}

/// Checks what `build` adds, whose output has `width` columns.
fn check_steps(
    backend: Backend,
    precision: Precision,
    build: impl Fn(&mut Setup) -> View,
    expected: &[Approx],
    width: usize,
) -> Outcome {
    let mut all = Vec::new();
    let plans: Vec<Plan> = bounds()
        .iter()
        .map(|bounds| {
            let mut setup = Setup::new(precision);
            setup.plan.set_states(states());
            let out = build(&mut setup);
            let kv =
                halfwarp::plan::KvLayout { num_pages: 2, windows: None, ..smallest_kv(bounds) };
            let (plan, weights) = setup.finish(*bounds, kv, out);
            all.push(weights);
            plan
        })
        .collect();
    check(backend, &plans, &all[0], &steps(expected, width))
}

fn stored(precision: Precision) -> impl Fn(f64) -> Approx {
    move |value| Approx::new(value, 32.0, 1.0).stored(precision)
}

/// The rows of each sequence.
fn of_seqs(matrix: &Matrix) -> [&[f32]; 2] {
    let (first, second) = matrix.data.split_at(LENS[0] * matrix.cols);
    [first, second]
}

fn conv_matches_oracle(backend: Backend, precision: Precision) -> Outcome {
    let input = Matrix::random(1, LENS[0] + LENS[1], CHANNELS).rounded(precision);
    let weight = Matrix::random(2, CHANNELS, 4);
    let build = |setup: &mut Setup| {
        let x = setup.input("x", &input);
        let weight = setup.f32_matrix("weight", &weight);
        let out = setup.activation("out", CHANNELS);
        setup.plan.op(Op::CausalConv(CausalConv { layer: 0, x, weight, out }));
        out
    };
    let expected = of_seqs(&input).map(|x| causal_conv(x, &weight.data, 4)).concat();
    let expected: Vec<Approx> = expected.into_iter().map(stored(precision)).collect();
    check_steps(backend, precision, build, &expected, CHANNELS)
}

fn rule_matches_oracle(backend: Backend, precision: Precision, is_tiled: bool) -> Outcome {
    let rows = LENS[0] + LENS[1];
    let (k_width, v_width) = (NUM_K_HEADS * K_DIM, NUM_HEADS * V_DIM);
    let [q, k] = [1, 2].map(|seed| Matrix::random(seed, rows, k_width).rounded(precision));
    let v = Matrix::random(3, rows, v_width).rounded(precision);
    let gates = Matrix::random(4, rows, 2 * NUM_HEADS).rounded(precision);
    let mut rate = Matrix::random(5, 1, NUM_HEADS);
    rate.data.iter_mut().for_each(|x| *x = -(2.0 * *x).exp());
    let bias = Matrix::random(6, 1, NUM_HEADS);
    let build = |setup: &mut Setup| {
        let [q, k] = [("q", &q), ("k", &k)].map(|(name, rows)| setup.input(name, rows));
        let (v, gates) = (setup.input("v", &v), setup.input("gates", &gates));
        let (rate, bias) = (setup.vector("rate", &rate), setup.vector("bias", &bias));
        let out = setup.activation("out", v_width);
        let num_k_heads = NUM_K_HEADS;
        let op = DeltaRule { layer: 0, q, k, v, gates, rate, bias, num_k_heads, is_tiled, out };
        setup.plan.op(Op::DeltaRule(op));
        out
    };
    let of_seq = |seq: usize| {
        let [q, k, v, gates] = [&q, &k, &v, &gates].map(|matrix| of_seqs(matrix)[seq]);
        let heads = [NUM_HEADS, NUM_K_HEADS, K_DIM, V_DIM];
        let (rate, bias) = (&rate.data[..], &bias.data[..]);
        delta_rule(&Gated { q, k, v, gates, rate, bias, heads, is_tiled }).0
    };
    let expected = [of_seq(0), of_seq(1)].concat();
    let expected: Vec<Approx> = expected.into_iter().map(stored(precision)).collect();
    check_steps(backend, precision, build, &expected, v_width)
}

fn gate_matches_oracle(backend: Backend, precision: Precision, by_rows: bool) -> Outcome {
    // The gate of a row is in f32, as what it gates.
    let precision = if by_rows { Precision::F32 } else { precision };
    const WIDTH: usize = 24;
    let rows = LENS[0] + LENS[1];
    let x = Matrix::random(1, rows, WIDTH).rounded(precision);
    let gate_width = if by_rows { 1 } else { WIDTH };
    let mut gates = Matrix::random(2, rows, gate_width);
    gates.data.iter_mut().for_each(|gate| *gate *= 16.0);
    let gates = gates.rounded(precision);
    let build = |setup: &mut Setup| {
        let (x, gate) = (setup.input("x", &x), setup.input("gate", &gates));
        setup.plan.op(Op::SigmoidGate { gate, x, out: x, adds: false });
        x
    };
    let gated = |(i, &x): (usize, &f32)| {
        let gate = f64::from(gates.data[i * gate_width / WIDTH]);
        f64::from(x) / (1.0 + (-gate).exp())
    };
    let expected: Vec<Approx> =
        x.data.iter().enumerate().map(gated).map(stored(precision)).collect();
    check_steps(backend, precision, build, &expected, WIDTH)
}
