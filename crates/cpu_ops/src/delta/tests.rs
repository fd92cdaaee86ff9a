use super::*;
use crate::testing::{assert_close, random};
use oracle::{Gated, causal_conv, delta_rule};
use plan::{TensorId, View, WeightId};

const NUM_HEADS: usize = 4;
const NUM_K_HEADS: usize = 2;
const K_DIM: usize = 24;
const V_DIM: usize = 8;
const CHANNELS: usize = 2 * NUM_K_HEADS * K_DIM + NUM_HEADS * V_DIM;
const TAPS: usize = 4;

/// Two layers, four slots.
fn states() -> States {
    let layout = StateLayout {
        num_layers: 2,
        num_slots: 4,
        conv_channels: CHANNELS,
        conv_len: TAPS - 1,
        num_heads: NUM_HEADS,
        k_dim: K_DIM,
        v_dim: V_DIM,
    };
    let states = States::new(layout).unwrap();
    assert_eq!(states.bytes(), layout.bytes());
    states
}

/// What comes in each step of three sequences, by number of tokens: alone, together, one token, as
/// many as there are taps, and a sequence that takes the slot of one that has ended. In steps of
/// odd number a state goes on in another slot.
const STEPS: [&[(usize, usize)]; 6] =
    [&[(0, 5)], &[(1, 2), (0, 1)], &[(0, 1), (1, 1)], &[(1, 4)], &[(2, 7), (1, 9)], &[(2, 1)]];
const SLOTS: [u32; 3] = [2, 0, 2];

/// Calls `run` with the inputs of each step, and which rows of the sequences' own tokens they are.
fn for_each_step(mut run: impl FnMut(&StepInputs, &[(usize, usize)])) {
    let mut lens = [0; 3];
    let mut slots = SLOTS;
    for (number, step) in STEPS.into_iter().enumerate() {
        let (mut inputs, mut rows) = (StepInputs::new(), Vec::new());
        for &(seq, len) in step {
            inputs.push_sequence(&vec![0; len], lens[seq], &[9], 0..0);
            let next = if number % 2 == 1 { slots[seq] ^ 1 } else { slots[seq] };
            *inputs.state_slots.last_mut().unwrap() = [slots[seq], next];
            slots[seq] = next;
            rows.extend((lens[seq]..lens[seq] + len).map(|at| (seq, at)));
            lens[seq] += len;
        }
        run(&inputs, &rows);
    }
}

/// The rows of `all`, `[seq][token, width]`.
fn gathered(all: &[Vec<f32>], rows: &[(usize, usize)], width: usize) -> Vec<f32> {
    rows.iter().flat_map(|&(seq, at)| &all[seq][at * width..][..width]).copied().collect()
}

#[test]
fn a_convolution_in_pieces_is_that_of_whole_sequences() {
    let weight = random(1, CHANNELS * TAPS);
    let x: Vec<_> = (0..3).map(|seq| random(2 + seq, 32 * CHANNELS)).collect();
    let wanted: Vec<_> = x.iter().map(|x| causal_conv(x, &weight, TAPS)).collect();
    let mut states = states();
    for_each_step(|inputs, rows| {
        let x = gathered(&x, rows, CHANNELS);
        let mut out = vec![f32::NAN; x.len()];
        let x = Rows::dense(&x, CHANNELS);
        states.causal_conv(1, inputs, &weight, &x, RowsMut::dense(&mut out, CHANNELS));
        let wanted: Vec<f64> = rows
            .iter()
            .flat_map(|&(seq, at)| wanted[seq][at * CHANNELS..][..CHANNELS].to_vec())
            .collect();
        assert_close(&out, &wanted, 1e-6, &format!("{rows:?}"));
    });
}

#[test]
fn a_delta_rule_in_pieces_is_that_of_whole_sequences() {
    let (k_width, v_width) = (NUM_K_HEADS * K_DIM, NUM_HEADS * V_DIM);
    let rate: Vec<f32> = random(1, NUM_HEADS).iter().map(|x| -(2.0 * x).exp()).collect();
    let bias = random(2, NUM_HEADS);
    let of_seqs = |seed: u64, width: usize| -> Vec<Vec<f32>> {
        (0..3).map(|seq| random(seed + seq, 32 * width)).collect()
    };
    let (q, k, v) = (of_seqs(10, k_width), of_seqs(20, k_width), of_seqs(30, v_width));
    let gates = of_seqs(40, 2 * NUM_HEADS);
    for is_tiled in [false, true] {
        let view = View { tensor: TensorId(0), start: 0, width: 1 };
        let op = DeltaRule {
            layer: 1,
            q: view,
            k: view,
            v: view,
            gates: view,
            rate: WeightId(0),
            bias: WeightId(0),
            num_k_heads: NUM_K_HEADS,
            is_tiled,
            out: view,
        };
        let wanted: Vec<_> = (0..3)
            .map(|seq| {
                let [q, k, v, gates] = [&q, &k, &v, &gates].map(|all| &all[seq][..]);
                let heads = [NUM_HEADS, NUM_K_HEADS, K_DIM, V_DIM];
                delta_rule(&Gated { q, k, v, gates, rate: &rate, bias: &bias, heads, is_tiled }).0
            })
            .collect();
        let mut states = states();
        for_each_step(|inputs, rows| {
            let [q, k] = [&q, &k].map(|all| gathered(all, rows, k_width));
            let (v, gates) = (gathered(&v, rows, v_width), gathered(&gates, rows, 2 * NUM_HEADS));
            let operands = DeltaOperands {
                q: Rows::dense(&q, k_width),
                k: Rows::dense(&k, k_width),
                v: Rows::dense(&v, v_width),
                gates: Rows::dense(&gates, 2 * NUM_HEADS),
                rate: &rate,
                bias: &bias,
            };
            let mut out = vec![f32::NAN; v.len()];
            states.delta_rule(&op, inputs, &operands, RowsMut::dense(&mut out, v_width));
            let wanted: Vec<f64> = rows
                .iter()
                .flat_map(|&(seq, at)| wanted[seq][at * v_width..][..v_width].to_vec())
                .collect();
            assert_close(&out, &wanted, 1e-5, &format!("{rows:?}"));
        });
    }
}
