//! Layers of Gated DeltaNet: one projection of all inputs, a convolution, the delta rule, a gated
//! norm.

use super::weights::{cols_of, num_rows, part, rows_of, with_suffix};
use super::{Branch, Planner};
use crate::model::DeltaNet;
use crate::model::shares::DeltaHeads;
use crate::plan::{
    Activation, CausalConv, DeltaRule, Dtype, Linear, Op, PartTransform, Rows, StateLayout, View,
    Weight, WeightLayout, WeightPart,
};
use std::ops::Range;

impl Planner<'_> {
    /// The recurrent states of `num_slots` sequences.
    pub(super) fn states(&self, num_slots: usize) -> StateLayout {
        let Some(delta) = self.config.delta else { return StateLayout::default() };
        let delta = self.own(delta);
        StateLayout {
            num_layers: self.config.num_delta_layers(self.config.num_layers()),
            num_slots,
            conv_channels: delta.channels(),
            conv_len: delta.conv_kernel - 1,
            num_heads: delta.num_v_heads,
            k_dim: delta.k_head_dim,
            v_dim: delta.v_head_dim,
        }
    }

    /// What this rank has of `whole`.
    fn own(&self, whole: DeltaNet) -> DeltaNet {
        let DeltaHeads { keys, values } = &self.shares.delta_heads;
        DeltaNet { num_k_heads: keys.len(), num_v_heads: values.len(), ..whole }
    }

    /// Rows of this rank's heads of keys, and of its heads of values, that have `k` and `v` rows.
    fn own_rows(&self, [k, v]: [usize; 2]) -> [Range<usize>; 2] {
        let DeltaHeads { keys, values } = &self.shares.delta_heads;
        [keys.start * k..keys.end * k, values.start * v..values.end * v]
    }

    /// `hidden += delta_net(norm(hidden))`.
    pub(super) fn delta(&mut self, layer: usize, whole: DeltaNet, hidden: View) {
        let names = self.names;
        let label = |what: &str| format!("layers.{layer}.{what}");
        let norm = Branch {
            label: label("attention_norm"),
            layer,
            name: names.attention_norm,
            after: names.attention_post_norm,
        };
        let x = self.before(&norm, hidden);
        let delta = self.own(whole);
        let (channels, v_width) = (delta.channels(), delta.v_width());
        let [of_keys, of_values] = self.own_rows([delta.k_head_dim, delta.v_head_dim]);
        let [qkvz, gates] = self.delta_inputs(layer, &whole, x);
        let of_layer = self.config.num_delta_layers(layer);

        let conv = self.operand(&label("conv"), Rows::Tokens, channels);
        let weight = part(names.in_layer(layer, names.delta.conv), whole.channels());
        let weight = Weight {
            name: label("conv"),
            rows: channels,
            cols: delta.conv_kernel,
            layout: WeightLayout::Rows,
            parts: with_suffix(&qkv_rows(&weight, &whole, &of_keys, &of_values), "weight"),
        };
        let weight = self.builder.weight(weight);
        let qkv = qkvz.columns(0, channels);
        let op = CausalConv { layer: of_layer, x: qkv, weight, out: conv };
        self.builder.op(Op::CausalConv(op));

        let vector = |name: &str| {
            let all = part(names.in_layer(layer, name), whole.num_v_heads);
            rows_of(all, &self.shares.delta_heads.values)
        };
        let rate = match names.delta.is_as_trained {
            true => PartTransform::NegExp,
            false => PartTransform::None,
        };
        let rate = WeightPart { transform: rate, ..vector(names.delta.rate) };
        let out = self.operand(&label("delta_rule"), Rows::Tokens, v_width);
        let k_width = delta.k_width();
        let op = DeltaRule {
            layer: of_layer,
            q: conv.columns(0, k_width),
            k: conv.columns(k_width, k_width),
            v: conv.columns(2 * k_width, v_width),
            gates,
            rate: self.whole_vector(&label("rate"), &[rate]),
            bias: self.whole_vector(&label("decay_bias"), &[vector(names.delta.bias)]),
            num_k_heads: delta.num_k_heads,
            is_tiled: delta.is_tiled,
            out,
        };
        self.builder.op(Op::DeltaRule(op));

        // The only norm of these families without an offset.
        let weight = part(names.in_layer(layer, names.delta.norm), delta.v_head_dim);
        let weight = self.vector(&label("delta_norm"), &[weight], "weight");
        let eps = self.config.rms_norm_eps;
        self.builder.op(Op::RmsNorm { x: out, weight, out, eps });
        let z = qkvz.columns(channels, v_width);
        let gated = self.operand(&label("delta_gated"), Rows::Tokens, v_width);
        let activation = Activation::Silu;
        self.builder.op(Op::Gate { activation, gate: z, up: out, out: gated });
        let projection = part(names.in_layer(layer, names.delta.out), hidden.width);
        let projection = cols_of(projection, (of_values.start, whole.v_width()), v_width);
        let out = self.summand(&label("attention_out"), projection, false, gated, hidden.width);
        self.add(&norm, out, hidden);
    }

    /// Queries, keys, values and the gate of the output; and what becomes beta and the decay. One
    /// linear layer makes both where all of it is kept in the type of the operands. The second is
    /// not kept in blocks: it is a hundredth of the layer, and every later token depends on it.
    fn delta_inputs(&mut self, layer: usize, whole: &DeltaNet, x: View) -> [View; 2] {
        let label = |what: &str| format!("layers.{layer}.{what}");
        let delta = self.own(*whole);
        let num_v_heads = delta.num_v_heads;
        let width = delta.channels() + delta.v_width();
        let [qkvz, ba] = self.delta_parts(layer, whole);
        let (numerics, operand) = (self.numerics, self.precision.operand());
        let storage =
            |part: &WeightPart| numerics.matrix_storage(self.checkpoint.stored(&part.source));
        let all = [qkvz.clone(), ba.clone()].concat();
        if with_suffix(&all, "weight").iter().all(|part| storage(part) == operand) {
            let out = self.operand_linear(&label("qkvz"), &all, false, x);
            return [out.columns(0, width), out.columns(width, 2 * num_v_heads)];
        }
        let qkvz = self.operand_linear(&label("qkvz"), &qkvz, false, x);
        let weight = self.stored(&label("delta_gates"), &ba, x.width, |_| operand);
        let weight = self.builder.weight(weight);
        let gates = self.operand(&label("delta_gates"), Rows::Tokens, num_rows(&ba));
        self.builder.op(Op::Linear(Linear::new(x, weight, gates)));
        [qkvz, gates.columns(0, 2 * num_v_heads)]
    }

    /// Rows of queries, keys, values and the gate of the output; and of beta and the decay: this
    /// rank's of the `whole` layer.
    fn delta_parts(&self, layer: usize, whole: &DeltaNet) -> [Vec<WeightPart>; 2] {
        let names = self.names;
        let DeltaNet { num_v_heads, k_head_dim, v_head_dim, .. } = *whole;
        let of_all = |stem: &str, rows| part(names.in_layer(layer, stem), rows);
        let [of_keys, of_values] = self.own_rows([k_head_dim, v_head_dim]);
        let qkvz = match *names.delta.qkvz {
            [qkv, ref gate @ ..] if !gate.is_empty() => {
                let qkv = of_all(qkv, whole.channels());
                let gate = gate.iter().map(|z| rows_of(of_all(z, whole.v_width()), &of_values));
                qkv_rows(&qkv, whole, &of_keys, &of_values).into_iter().chain(gate).collect()
            }
            ref stems => {
                let stem = stems.concat();
                let all = of_all(&stem, whole.channels() + whole.v_width());
                self.grouped(&all, whole, [Some(k_head_dim); 2], v_head_dim)
            }
        };
        let mut ba: Vec<WeightPart> = match names.delta.ba {
            [stem] => self.grouped(&of_all(stem, 2 * num_v_heads), whole, [None; 2], 1),
            stems => {
                let of = |stem: &&str| {
                    rows_of(of_all(stem, num_v_heads), &self.shares.delta_heads.values)
                };
                stems.iter().map(of).collect()
            }
        };
        // A rank's share may be odd, and rows of activations are whole vectors: nothing reads what
        // is more.
        let vector = 16 / self.precision.operand().block_bytes();
        let missing = num_rows(&ba).next_multiple_of(vector) - num_rows(&ba);
        if let Some(stem) = names.delta.ba.first().filter(|_| !self.shares.rank.is_alone()) {
            let all = of_all(stem, num_v_heads * 2 / names.delta.ba.len());
            let row = |row: usize| row % all.rows..row % all.rows + 1;
            ba.extend((0..missing).map(|index| rows_of(all.clone(), &row(index))));
        }
        [qkvz, ba]
    }

    /// Rows of `all`, which has for each head of keys first one part for each of `keys`, of so many
    /// rows, then two parts of its heads of values, of `v` rows each: this rank's, part after part.
    fn grouped(
        &self,
        all: &WeightPart,
        whole: &DeltaNet,
        keys: [Option<usize>; 2],
        v: usize,
    ) -> Vec<WeightPart> {
        let DeltaHeads { keys: own_keys, values } = &self.shares.delta_heads;
        let shared = whole.num_v_heads / whole.num_k_heads;
        let of_group: usize = keys.iter().flatten().sum::<usize>() + 2 * shared * v;
        let mut parts = Vec::new();
        let mut start = 0;
        for k in keys.into_iter().flatten() {
            parts.extend(own_keys.clone().map(|head| {
                let first = head * of_group + start;
                rows_of(all.clone(), &(first..first + k))
            }));
            start += k;
        }
        for _ in 0..2 {
            parts.extend(own_keys.clone().map(|head| {
                // Those of its heads of values that are this rank's.
                let own = values.start.max(head * shared)..values.end.min((head + 1) * shared);
                let first = head * of_group + start + (own.start - head * shared) * v;
                rows_of(all.clone(), &(first..first + own.len() * v))
            }));
            start += shared * v;
        }
        parts
    }

    /// `x` times the sigmoid of what the gate of the shared expert makes of the layer's input.
    pub(super) fn gate_shared(&mut self, layer: usize, input: View, x: View) {
        let label = format!("layers.{layer}.shared_gate");
        let name = part(self.names.in_layer(layer, self.names.experts.shared_gate), 1);
        let operand = self.precision.operand();
        // As the router.
        // In the type of `x`, whose rows are whole vectors: nothing reads what is more.
        let dtype = self.builder.dtype(x);
        let num_rows = if dtype == Dtype::F32 { 1 } else { 8 };
        let weight = self.stored(&label, &vec![name; num_rows], input.width, |_| operand);
        let weight = self.builder.weight(weight);
        let gates = self.builder.activation(label, Rows::Tokens, num_rows, dtype);
        self.builder.op(Op::Linear(Linear::new(input, weight, gates)));
        let gate = gates.columns(0, 1);
        self.builder.op(Op::SigmoidGate { gate, x, out: x, adds: false });
    }
}

/// A rank's rows of `all`, which are those of queries, of keys and of values.
fn qkv_rows(
    all: &WeightPart,
    whole: &DeltaNet,
    of_keys: &Range<usize>,
    of_values: &Range<usize>,
) -> Vec<WeightPart> {
    let k_width = whole.k_width();
    if all.rows == 2 * of_keys.len() + of_values.len() {
        return vec![all.clone()];
    }
    let of = |start: usize, rows: &Range<usize>| {
        rows_of(all.clone(), &(start + rows.start..start + rows.end))
    };
    vec![of(0, of_keys), of(k_width, of_keys), of(2 * k_width, of_values)]
}
