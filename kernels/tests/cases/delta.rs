//! Gated DeltaNet: sequences that come in pieces, beside whole ones in f64; gates of branches.

use crate::harness::*;
use cuda_std::launch::{DevicePtr, LaunchError};
use half::{bf16, f16};
use kernels::Rows;
use kernels::delta::StateSeqs;
use kernels::delta::conv::{CausalConv, ConvOperands};
use kernels::delta::rule::{DeltaOperands, DeltaRule};
use kernels::element::Number;
use kernels::sigmoid_gate::SigmoidGate;
use oracle::{Approx, Element, Gated, causal_conv, delta_rule};

/// What comes in each step, by sequence and number of tokens.
type Steps = [&'static [(usize, usize)]];

/// Three sequences: alone, together, one token each, more than the taps, and a sequence that takes
/// the slot of one that has ended.
const STEPS: &Steps =
    &[&[(0, 5)], &[(1, 2), (0, 1)], &[(0, 1), (1, 1)], &[(1, 4)], &[(2, 7), (1, 3)], &[(2, 1)]];
/// Steps of many tokens: more than a chunk, a chunk and no whole ones beside a token, as few as
/// go by chunks and one less.
const LONG_STEPS: &Steps = &[
    &[(0, 70)],
    &[(1, 64), (0, 1)],
    &[(0, 129), (1, 16)],
    &[(1, 15), (0, 17)],
    &[(2, 100), (1, 1)],
    &[(2, 1)],
    &[(1, 2), (2, 33)],
];
/// Where the state of each sequence begins; in every second step it goes on in the slot beside.
const SLOTS: [u32; 3] = [2, 0, 2];
const NUM_SLOTS: usize = 5;
const MAX_SEQS: usize = 4;

/// Tokens of each sequence in all.
fn lens_of(steps: &Steps) -> [usize; 3] {
    let parts = || steps.iter().copied().flatten();
    [0, 1, 2].map(|seq| parts().filter(|part| part.0 == seq).map(|part| part.1).sum())
}

/// How far the sequences have come.
struct Progress {
    num_steps: usize,
    lens: [usize; 3],
    slots: [u32; 3],
}

impl Progress {
    fn new() -> Self {
        Progress { num_steps: 0, lens: [0; 3], slots: SLOTS }
    }
}

/// A step: its sequences, and the rows of the sequences' own tokens that it has.
struct Step {
    seqs: StateSeqs,
    num_tokens: DevicePtr<u32>,
    seq_ids: DevicePtr<u32>,
    rows: Vec<(usize, usize)>,
    decodes: bool,
}

impl Step {
    fn new(device: &mut Device, step: &[(usize, usize)], progress: &mut Progress) -> Self {
        let Progress { num_steps, lens, slots: slot_of } = progress;
        let (mut rows, mut ids, mut ends, mut kv_lens) = (vec![], vec![], vec![0], vec![]);
        let mut slots = Vec::new();
        for (index, &(seq, len)) in step.iter().enumerate() {
            rows.extend((lens[seq]..lens[seq] + len).map(|at| (seq, at)));
            ids.extend(vec![index as u32; len]);
            lens[seq] += len;
            kv_lens.push(lens[seq] as u32);
            ends.push(rows.len() as u32);
            let from = slot_of[seq];
            slot_of[seq] ^= u32::from(*num_steps % 2 == 1);
            slots.extend([from, slot_of[seq]]);
        }
        *num_steps += 1;
        Step {
            seqs: StateSeqs {
                num_seqs: device.u32s("num_seqs", &[step.len() as u32]),
                cu_seqlens_q: device.u32s("cu_seqlens_q", &ends),
                kv_lens: device.u32s("kv_lens", &kv_lens),
                slots: device.u32s("slots", &slots),
            },
            num_tokens: device.u32s("num_tokens", &[rows.len() as u32]),
            seq_ids: device.u32s("seq_ids", &ids),
            decodes: step.iter().all(|&(_, len)| len == 1),
            rows,
        }
    }

    /// The rows of `all`, `[seq][token, width]`.
    fn gathered<T: Copy>(&self, all: &[Vec<T>], width: usize) -> Vec<T> {
        let rows = self.rows.iter();
        rows.flat_map(|&(seq, at)| &all[seq][at * width..][..width]).copied().collect()
    }

    /// These rows on the device, NaN between them and after them.
    fn upload<E: Element>(
        &self,
        device: &mut Device,
        name: &str,
        all: &[Vec<f32>],
        width: usize,
    ) -> Rows<E> {
        let values = self.gathered(all, width);
        let stride = width + 8;
        let padded = values.chunks(width).flat_map(|row| [row, &[f32::NAN; 8]].concat());
        let padded: Vec<f32> = padded.collect();
        Rows::new(device.partly_written(name, &padded, (self.rows.len() + 1) * stride), stride)
    }

    fn out<E>(&self, device: &mut Device, width: usize) -> Rows<E> {
        device.out("out", (width + 8, self.rows.len() + 1))
    }

    #[track_caller]
    fn assert_right<E: Element>(
        &self,
        device: &Device,
        out: Rows<E>,
        wanted: &[Vec<f64>],
        bound: f64,
    ) {
        let width = out.row_stride - 8;
        let got = device.read_rows(out, [self.rows.len(), self.rows.len() + 1], width);
        let wanted = self.gathered(wanted, width);
        let wanted = wanted.into_iter().map(|value| Approx::new(value, bound)).collect();
        assert_right(&format!("{:?}", self.rows), &got, &stored::<E>(wanted));
    }
}

/// Random rows of each sequence.
fn of_seqs<E: Element>(steps: &Steps, width: usize, seed: u64) -> Vec<Vec<f32>> {
    let lens = lens_of(steps);
    (0..3).map(|seq| random_of::<E>(lens[seq] * width, seed + 10 * seq as u64)).collect()
}

#[test]
fn a_causal_convolution_in_pieces_matches_oracle() {
    fn check<E: HostElement + Number>(channels: usize, seed: u64) {
        let mut device = Device::default();
        let (x, weight) = (of_seqs::<E>(STEPS, channels, seed), random(4 * channels, seed + 100));
        let wanted: Vec<_> = x.iter().map(|x| causal_conv(x, &weight, 4)).collect();
        let weight = device.f32s("weight", &weight);
        let state = device.poisoned("state", NUM_SLOTS * 3 * channels);
        let mut progress = Progress::new();
        for step in STEPS {
            let step = Step::new(&mut device, step, &mut progress);
            let x = step.upload::<E>(&mut device, "x", &x, channels);
            let operands = ConvOperands { x, weight, state, out: step.out(&mut device, channels) };
            let conv = CausalConv {
                max_tokens: step.rows.len() + 1,
                max_seqs: MAX_SEQS,
                decodes: step.decodes,
                channels,
                taps: 4,
            };
            let launches = conv.launches(step.num_tokens, step.seq_ids, &step.seqs, &operands);
            let launches = launches.unwrap();
            assert_eq!(launches.len(), if step.decodes { 1 } else { 2 });
            launches.into_iter().for_each(|launch| {
                device.run(Ok(Some(launch)), seed);
            });
            step.assert_right(&device, operands.out, &wanted, 2e-6);
        }
    }
    for seed in simt::seeds() {
        for channels in [24, 520] {
            check::<f32>(channels, seed);
            check::<f16>(channels, seed);
        }
        check::<bf16>(24, seed);
        check::<f32>(13, seed);
    }
}

#[derive(Clone, Copy)]
struct Heads {
    num_heads: usize,
    num_k_heads: usize,
    k_dim: usize,
    v_dim: usize,
    is_tiled: bool,
}

/// `bound` is of the outputs, and of the states ten times as much.
fn check_rule<E: HostElement + Number>(heads: Heads, steps: &Steps, bound: f64, seed: u64) {
    let Heads { num_heads, num_k_heads, k_dim, v_dim, is_tiled } = heads;
    let (k_width, v_width) = (num_k_heads * k_dim, num_heads * v_dim);
    let mut device = Device::default();
    let [q, k] = [1, 2].map(|salt| of_seqs::<E>(steps, k_width, seed + salt));
    let (v, gates) =
        (of_seqs::<E>(steps, v_width, seed + 3), of_seqs::<E>(steps, 2 * num_heads, seed + 4));
    // Gates that are nearly closed and nearly open.
    let gates: Vec<Vec<f32>> =
        gates.iter().map(|gates| gates.iter().map(|x| 8.0 * x).collect()).collect();
    let rate: Vec<f32> = random(num_heads, seed + 5).iter().map(|x| -(3.0 * x).exp()).collect();
    let bias = random(num_heads, seed + 6);
    let wanted: Vec<_> = (0..3)
        .map(|seq| {
            let [q, k, v, gates] = [&q, &k, &v, &gates].map(|all| &all[seq][..]);
            let heads = [num_heads, num_k_heads, k_dim, v_dim];
            delta_rule(&Gated { q, k, v, gates, rate: &rate, bias: &bias, heads, is_tiled })
        })
        .collect();
    let (wanted, states): (Vec<_>, Vec<_>) = wanted.into_iter().unzip();
    let (rate, bias) = (device.f32s("scales", &rate), device.f32s("bias", &bias));
    let slot_elems = num_heads * k_dim * v_dim;
    let state = device.poisoned("own state", NUM_SLOTS * slot_elems);
    let between = (device.u32s("num_rows", &[1]), Rows::new(device.f32s("x", &[0.0; 8]), 8));
    let mut progress = Progress::new();
    for step in steps {
        let step = Step::new(&mut device, step, &mut progress);
        let operands = DeltaOperands::<E> {
            q: step.upload(&mut device, "q", &q, k_width),
            k: step.upload(&mut device, "k", &k, k_width),
            v: step.upload(&mut device, "v", &v, v_width),
            gates: step.upload(&mut device, "gates", &gates, 2 * num_heads),
            rate,
            bias,
            state,
            out: step.out(&mut device, v_width),
        };
        // As the convolution in a step: the states are read before the wait for the launch before.
        let gate = SigmoidGate { max_rows: 1, width: 8, is_of_rows: false, adds: false };
        device.run(gate.launch(between.0, between.1, between.1, between.1), seed);
        let max_tokens = step.rows.len() + 1;
        let chunked = (!step.decodes).then_some(max_tokens);
        let max_seqs = MAX_SEQS;
        let rule = DeltaRule { chunked, max_seqs, num_heads, num_k_heads, is_tiled, k_dim, v_dim };
        let bytes = rule.workspace_bytes(E::DTYPE);
        let workspace: DevicePtr<f32> = device.poisoned("workspace", bytes / 4);
        let launches = rule.launches(&step.seqs, &operands, DevicePtr::new(workspace.0)).unwrap();
        assert_eq!(launches.len(), if bytes > 0 { 3 } else { 1 });
        for launch in launches {
            let report = device.run(Ok(Some(launch)), seed);
            assert_eq!(report.bank_conflicts, 0);
        }
        step.assert_right(&device, operands.out, &wanted, bound);
    }
    let got = device.read(state, NUM_SLOTS * slot_elems);
    for seq in [1, 2] {
        let got = &got[progress.slots[seq] as usize * slot_elems..][..slot_elems];
        let wanted = states[seq].iter().map(|&value| Approx::new(value, 10.0 * bound));
        assert_right(&format!("state of {seq}"), got, &wanted.collect::<Vec<_>>());
    }
    assert!(got[4 * slot_elems..].iter().all(|value| value.is_nan()), "nobody's state");
}

#[test]
fn a_delta_rule_in_pieces_matches_oracle() {
    let real = Heads { num_heads: 4, num_k_heads: 2, k_dim: 128, v_dim: 128, is_tiled: false };
    let small = Heads { num_heads: 6, k_dim: 32, v_dim: 32, ..real };
    let tiled = Heads { is_tiled: true, ..small };
    let slim = Heads { num_heads: 2, v_dim: 48, ..real };
    for seed in simt::seeds() {
        check_rule::<f32>(small, STEPS, 2e-6, seed);
        check_rule::<f16>(tiled, STEPS, 2e-6, seed);
        check_rule::<bf16>(small, STEPS, 2e-6, seed);
    }
    check_rule::<f32>(real, STEPS, 2e-6, 0);
    check_rule::<f16>(slim, STEPS, 2e-6, 1);
    check_rule::<bf16>(Heads { is_tiled: true, ..slim }, STEPS, 2e-6, 2);
}

#[test]
fn a_delta_rule_in_chunks_matches_oracle() {
    let real = Heads { num_heads: 2, num_k_heads: 1, k_dim: 128, v_dim: 32, is_tiled: false };
    let small = Heads { num_heads: 4, num_k_heads: 2, k_dim: 32, v_dim: 64, is_tiled: false };
    let tiled = Heads { num_heads: 6, is_tiled: true, ..small };
    for seed in simt::seeds() {
        check_rule::<f16>(small, LONG_STEPS, 2e-4, seed);
        check_rule::<bf16>(tiled, LONG_STEPS, 1e-3, seed);
    }
    check_rule::<f16>(real, LONG_STEPS, 2e-4, 1);
    check_rule::<bf16>(real, LONG_STEPS, 1e-3, 2);
    // Token by token, as in f32 and where chunks do not fit.
    check_rule::<f32>(small, LONG_STEPS, 2e-6, 3);
    check_rule::<f16>(Heads { v_dim: 48, ..small }, LONG_STEPS, 2e-6, 4);
}

#[test]
fn other_heads_and_taps_are_refused() {
    let seqs = StateSeqs { num_seqs: ptr(1), cu_seqlens_q: ptr(1), kv_lens: ptr(1), slots: ptr(1) };
    let operands = DeltaOperands::<f16> {
        q: rows(64),
        k: rows(64),
        v: rows(64),
        gates: rows(8),
        rate: ptr(16),
        bias: ptr(16),
        state: ptr(16),
        out: rows(64),
    };
    let right = DeltaRule {
        chunked: None,
        max_seqs: 1,
        num_heads: 1,
        num_k_heads: 1,
        is_tiled: false,
        k_dim: 32,
        v_dim: 32,
    };
    let refused = |rule: DeltaRule, operands| match rule.launches(&seqs, operands, ptr(16)) {
        Err(LaunchError::Shape { what, value, .. }) => (what, value),
        other => panic!("{other:?}"),
    };
    assert_eq!(right.launches(&seqs, &operands, ptr(16)).unwrap().len(), 1);
    assert_eq!(refused(DeltaRule { k_dim: 64, ..right }, &operands), ("k_dim", 64));
    assert_eq!(refused(DeltaRule { v_dim: 24, ..right }, &operands), ("v_dim", 24));
    let unaligned = DeltaOperands { k: rows(60), ..operands };
    assert_eq!(refused(right, &unaligned), ("k", 60));
    let none = DeltaRule { max_seqs: 0, ..right };
    assert!(none.launches(&seqs, &operands, ptr(16)).unwrap().is_empty());
    let conv = CausalConv { max_tokens: 1, max_seqs: 1, decodes: true, channels: 8, taps: 3 };
    let operands =
        ConvOperands { x: rows::<f16>(8), weight: ptr(16), state: ptr(16), out: rows(8) };
    let error = conv.launches(ptr(1), ptr(1), &seqs, &operands).err().unwrap().to_string();
    assert!(error.contains("taps"), "{error}");
}

#[test]
fn sigmoid_gates_match_oracle() {
    fn check<E: HostElement + Number>((width, is_of_rows): (usize, bool), adds: bool, seed: u64) {
        let mut device = Device::default();
        let gate_width = if is_of_rows { 1 } else { width };
        let x = oracle::Matrix::random::<E>(3, width, seed);
        let mut gates = oracle::Matrix::random::<E>(3, gate_width, seed + 1);
        gates.values.iter_mut().for_each(|gate| *gate *= 64.0);
        let num_rows = device.u32s("num_rows", &[3]);
        let pad = if width.is_multiple_of(8) { 8 } else { 3 };
        let x_rows = device.matrix::<E>("x", &x, (width + pad, 4));
        let gate = device.matrix::<E>("gate", &gates, (gate_width + pad, 4));
        let launcher = SigmoidGate { max_rows: 4, width, is_of_rows, adds };
        let residual = oracle::Matrix::random::<E>(3, width, seed + 2);
        let out = match adds {
            true => device.matrix::<E>("residual", &residual, (width + pad, 4)),
            false => x_rows,
        };
        device.run(launcher.launch(num_rows, gate, x_rows, out), seed);
        let wanted = x.values.iter().enumerate().map(|(at, &x)| {
            let gate = gates.values[if is_of_rows { at / width } else { at }];
            let value = x / (1.0 + (-gate).exp());
            // Of a gate that is nearly closed the exponent's last digit counts.
            let gated = Approx::new(value, 1e-6 * value.abs() * (1.0 + gate.abs()));
            if adds { gated.plus(residual.values[at]) } else { gated }
        });
        let got = device.read_rows(out, [3, 4], width);
        let case = format!("{width} columns, by rows: {is_of_rows}, added: {adds}");
        assert_right(&case, &got, &stored::<E>(wanted.collect()));
    }
    for seed in simt::seeds() {
        for shape in [(16, false), (16, true), (1025, false), (13, true), (1024, false)] {
            check::<f32>(shape, false, seed);
            check::<f32>(shape, true, seed);
            check::<f16>(shape, false, seed);
            check::<bf16>(shape, false, seed);
        }
    }
}
