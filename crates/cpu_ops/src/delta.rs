//! Gated DeltaNet: the convolution before it and the delta rule, with the states of the sequences.

use super::activations::{Rows, RowsMut};
use super::exp::exp;
use super::host_memory;
use super::vectors::{Vectors, WithVectors, dispatch};
use crate::OutOfMemory;
use plan::{DeltaRule, StateLayout, StepInputs};
use pulp::Arch;
use rayon::prelude::*;

/// The states of all sequences, as [`StateLayout`] says.
pub struct States {
    layout: StateLayout,
    layers: Vec<Layer>,
}

/// The states of a layer.
struct Layer {
    conv: Vec<f32>,
    delta: Vec<f32>,
}

/// A sequence of a step.
#[derive(Clone, Copy)]
struct Seq {
    /// Slots that its state is read from and written to.
    from: usize,
    slot: usize,
    /// The first row, and how many there are.
    first: usize,
    len: usize,
    /// Whether it begins with zeros.
    is_new: bool,
}

/// What the delta rule reads beside the states.
pub struct DeltaOperands<'a> {
    /// See [`DeltaRule`].
    pub q: Rows<'a>,
    /// As `q`.
    pub k: Rows<'a>,
    /// See [`DeltaRule`].
    pub v: Rows<'a>,
    /// See [`DeltaRule`].
    pub gates: Rows<'a>,
    /// See [`DeltaRule`].
    pub rate: &'a [f32],
    /// See [`DeltaRule`].
    pub bias: &'a [f32],
}

impl States {
    /// Memory for the states, NaN in debug builds: nothing is read before it is written.
    ///
    /// # Errors
    /// [`OutOfMemory`].
    pub fn new(layout: StateLayout) -> Result<Self, OutOfMemory> {
        let pool = |elems: usize| {
            let len = layout.num_slots.saturating_mul(elems);
            let mut pool = host_memory::zeroed("the recurrent states", len)?;
            if cfg!(debug_assertions) {
                pool.fill(f32::NAN);
            }
            Ok(pool)
        };
        let [conv, delta] = layout.slot_elems();
        let layer = |_| Ok(Layer { conv: pool(conv)?, delta: pool(delta)? });
        let layers = (0..layout.num_layers).map(layer).collect::<Result<_, OutOfMemory>>()?;
        Ok(States { layout, layers })
    }

    /// Bytes of all states.
    pub fn bytes(&self) -> usize {
        let elems = self.layers.iter().map(|layer| layer.conv.len() + layer.delta.len());
        elems.sum::<usize>() * size_of::<f32>()
    }

    /// [`plan::CausalConv`] in a layer, with `weight` `[channels, taps]`.
    pub fn causal_conv(
        &mut self,
        layer: usize,
        inputs: &StepInputs,
        weight: &[f32],
        x: &Rows,
        out: RowsMut,
    ) {
        let (layout, conv) = (self.layout, &mut self.layers[layer].conv);
        let taps = layout.conv_len + 1;
        let seqs = seqs(inputs);
        let mut seq_of = vec![0; x.num_rows()];
        for (index, seq) in seqs.iter().enumerate() {
            seq_of[seq.first..][..seq.len].fill(index);
        }
        let state = &conv[..];
        out.for_each(|t, out| {
            let seq = &seqs[seq_of[t]];
            out.fill(0.0);
            for tap in 0..taps {
                if let Some(input) = conv_input(layout, seq, state, x, t - seq.first + tap) {
                    let weights = weight[tap..].iter().step_by(taps);
                    let elems = out.iter_mut().zip(input).zip(weights);
                    elems.for_each(|((out, x), weight)| *out += weight * x);
                }
            }
            dispatch(Arch::new(), Silu(out));
        });
        for seq in &seqs {
            let last = |row| match conv_input(layout, seq, conv, x, seq.len + row) {
                Some(input) => input.to_vec(),
                None => vec![0.0; layout.conv_channels],
            };
            let last: Vec<f32> = (0..layout.conv_len).flat_map(last).collect();
            conv[seq.slot * last.len()..][..last.len()].copy_from_slice(&last);
        }
    }

    /// The delta rule of `op`: heads in parallel, the tokens of a sequence one after the other.
    pub fn delta_rule(
        &mut self,
        op: &DeltaRule,
        inputs: &StepInputs,
        operands: &DeltaOperands,
        mut out: RowsMut,
    ) {
        let StateLayout { num_heads, v_dim, .. } = self.layout;
        let [_, slot_elems] = self.layout.slot_elems();
        let seqs = seqs(inputs);
        let states = &mut self.layers[op.layer].delta;
        for seq in seqs.iter().filter(|seq| seq.from != seq.slot && !seq.is_new) {
            let from = seq.from * slot_elems;
            states.copy_within(from..from + slot_elems, seq.slot * slot_elems);
        }
        let mut heads = Vec::new();
        for (slot, state) in states.chunks_exact_mut(slot_elems).enumerate() {
            if let Some(seq) = seqs.iter().find(|seq| seq.slot == slot) {
                let of_heads = state.chunks_exact_mut(slot_elems / num_heads).enumerate();
                heads.extend(of_heads.map(|(head, state)| (*seq, head, state)));
            }
        }
        let run = |(seq, head, state): (Seq, usize, &mut [f32])| {
            let mut values = vec![0.0; seq.len * v_dim];
            let k_head = op.k_head(head, num_heads);
            let work = Head { seq, heads: [head, k_head], operands, state, out: &mut values };
            dispatch(Arch::new(), work);
            (seq, head, values)
        };
        let done: Vec<_> = heads.into_par_iter().map(run).collect();
        let (out, stride) = out.strided();
        for (seq, head, values) in done {
            for (t, values) in values.chunks_exact(v_dim).enumerate() {
                let start = (seq.first + t) * stride + head * v_dim;
                out[start..][..v_dim].copy_from_slice(values);
            }
        }
    }
}

/// The sequences of a step.
fn seqs(inputs: &StepInputs) -> Vec<Seq> {
    let ends = inputs.cu_seqlens_q.windows(2).map(|ends| (ends[0] as usize, ends[1] as usize));
    let seq = |((first, end), (&slots, &kv_len)): ((usize, usize), (&[u32; 2], &u32))| {
        let (len, [from, slot]) = (end - first, slots.map(|slot| slot as usize));
        Seq { from, slot, first, len, is_new: kv_len as usize == len }
    };
    ends.zip(inputs.state_slots.iter().zip(&inputs.kv_lens)).map(seq).collect()
}

/// Input `at` of a sequence, counted from the first one that its state keeps; `None` before its
/// start.
fn conv_input<'a>(
    layout: StateLayout,
    seq: &Seq,
    conv: &'a [f32],
    x: &'a Rows,
    at: usize,
) -> Option<&'a [f32]> {
    let StateLayout { conv_channels, conv_len, .. } = layout;
    match at.checked_sub(conv_len) {
        Some(row) => Some(x.row(seq.first + row)),
        None if seq.is_new => None,
        None => Some(&conv[(seq.from * conv_len + at) * conv_channels..][..conv_channels]),
    }
}

/// `x *= sigmoid(x)`.
struct Silu<'a>(&'a mut [f32]);

impl WithVectors for Silu<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        self.0.iter_mut().for_each(|x| *x /= 1.0 + exp(simd, -*x));
    }
}

/// A head of a sequence.
struct Head<'a> {
    seq: Seq,
    /// The head of values, and that of keys.
    heads: [usize; 2],
    operands: &'a DeltaOperands<'a>,
    /// `[k_dim, v_dim]`.
    state: &'a mut [f32],
    /// `[seq.len, v_dim]`.
    out: &'a mut [f32],
}

impl WithVectors for Head<'_> {
    #[inline(always)]
    fn run<V: Vectors>(self, simd: V) {
        let Head { seq, heads: [head, k_head], operands, state, out } = self;
        let DeltaOperands { q, k, v, gates, rate, bias } = operands;
        if seq.is_new {
            state.fill(0.0);
        }
        let num_heads = rate.len();
        let v_dim = v.width() / num_heads;
        let k_dim = state.len() / v_dim;
        let (mut delta, mut unit_k, mut unit_q) =
            (vec![0.0; v_dim], vec![0.0; k_dim], vec![0.0; k_dim]);
        for (t, out) in out.chunks_exact_mut(v_dim).enumerate() {
            let t = seq.first + t;
            scale_to_unit(simd, &k.row(t)[k_head * k_dim..][..k_dim], 1.0, &mut unit_k);
            let of_q = 1.0 / (k_dim as f32).sqrt();
            scale_to_unit(simd, &q.row(t)[k_head * k_dim..][..k_dim], of_q, &mut unit_q);
            let gates = gates.row(t);
            let beta = 1.0 / (1.0 + (-gates[head]).exp());
            let decay = (rate[head] * softplus(gates[num_heads + head] + bias[head])).exp();

            delta.fill(0.0);
            for (row, &k) in state.chunks_exact(v_dim).zip(&unit_k) {
                let elems = delta.iter_mut().zip(row);
                elems.for_each(|(sum, s)| *sum = simd.multiply_add(*s, k, *sum));
            }
            for (delta, v) in delta.iter_mut().zip(&v.row(t)[head * v_dim..][..v_dim]) {
                *delta = beta * (v - decay * *delta);
            }
            out.fill(0.0);
            let rows = state.chunks_exact_mut(v_dim).zip(unit_k.iter().zip(&unit_q));
            for (row, (&k, &q)) in rows {
                for ((s, delta), out) in row.iter_mut().zip(&delta).zip(&mut *out) {
                    *s = simd.multiply_add(k, *delta, decay * *s);
                    *out = simd.multiply_add(*s, q, *out);
                }
            }
        }
    }
}

/// `out = scale * x / |x|`.
#[inline(always)]
fn scale_to_unit<V: Vectors>(simd: V, x: &[f32], scale: f32, out: &mut [f32]) {
    let square = x.iter().fold(0.0, |sum, &x| simd.multiply_add(x, x, sum));
    let scale = scale / (square + DeltaRule::NORM_EPS).sqrt();
    out.iter_mut().zip(x).for_each(|(out, x)| *out = scale * x);
}

/// `ln(1 + e^x)`.
fn softplus(x: f32) -> f32 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests;
