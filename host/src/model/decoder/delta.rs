//! Layers of Gated DeltaNet: one projection of all inputs, a convolution, the delta rule, a gated
//! norm.

use super::weights::{part, rows_of, with_suffix};
use super::{Branch, Planner};
use crate::model::DeltaNet;
use crate::plan::{
    Activation, CausalConv, DeltaRule, Dtype, Linear, Op, PartTransform, Rows, StateLayout, View,
    Weight, WeightLayout, WeightPart,
};
use std::slice;

impl Planner<'_> {
    /// The recurrent states of `num_slots` sequences.
    pub(super) fn states(&self, num_slots: usize) -> StateLayout {
        let Some(delta) = self.config.delta else { return StateLayout::default() };
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

    /// `hidden += delta_net(norm(hidden))`.
    pub(super) fn delta(&mut self, layer: usize, delta: DeltaNet, hidden: View) {
        let names = self.names;
        let label = |what: &str| format!("layers.{layer}.{what}");
        let norm = Branch {
            label: label("attention_norm"),
            layer,
            name: names.attention_norm,
            after: names.attention_post_norm,
        };
        let x = self.before(&norm, hidden);
        let (channels, v_width) = (delta.channels(), delta.v_width());
        let [qkvz, gates] = self.delta_inputs(layer, &delta, x);
        let of_layer = self.config.num_delta_layers(layer);

        let conv = self.operand(&label("conv"), Rows::Tokens, channels);
        let weight = part(names.in_layer(layer, names.delta.conv), channels);
        let weight = Weight {
            name: label("conv"),
            rows: channels,
            cols: delta.conv_kernel,
            layout: WeightLayout::Rows,
            parts: with_suffix(&[weight], "weight"),
        };
        let weight = self.builder.weight(weight);
        let qkv = qkvz.columns(0, channels);
        let op = CausalConv { layer: of_layer, x: qkv, weight, out: conv };
        self.builder.op(Op::CausalConv(op));

        let vector = |name: &str| part(names.in_layer(layer, name), delta.num_v_heads);
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
        let out = self.summand(&label("attention_out"), projection, false, gated, hidden.width);
        self.add(&norm, out, hidden);
    }

    /// Queries, keys, values and the gate of the output; and what becomes beta and the decay. One
    /// linear layer makes both where all of it is kept in the type of the operands. The second is
    /// not kept in blocks: it is a hundredth of the layer, and every later token depends on it.
    fn delta_inputs(&mut self, layer: usize, delta: &DeltaNet, x: View) -> [View; 2] {
        let label = |what: &str| format!("layers.{layer}.{what}");
        let DeltaNet { num_v_heads, .. } = *delta;
        let width = delta.channels() + delta.v_width();
        let [qkvz, ba] = self.delta_parts(layer, delta);
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
        let gates = self.operand(&label("delta_gates"), Rows::Tokens, 2 * num_v_heads);
        self.builder.op(Op::Linear(Linear::new(x, weight, gates)));
        [qkvz, gates]
    }

    /// Rows of queries, keys, values and the gate of the output; and of beta and the decay.
    fn delta_parts(&self, layer: usize, delta: &DeltaNet) -> [Vec<WeightPart>; 2] {
        let names = self.names;
        let DeltaNet { num_k_heads, num_v_heads, k_head_dim: k, .. } = *delta;
        let shared = num_v_heads / num_k_heads;
        let v = shared * delta.v_head_dim;
        let of = |stems: &[&str], widths: &[usize], in_group: &[usize]| -> Vec<WeightPart> {
            if let [stem] = stems {
                let of: usize = in_group.iter().sum();
                let name = names.in_layer(layer, stem);
                let starts = in_group.iter().scan(0, |start, width| {
                    *start += width;
                    Some((*start - width, *width))
                });
                let heads = |(start, width): (usize, usize)| {
                    let whole = part(name.clone(), num_k_heads * of);
                    let first = move |head| head * of + start;
                    (0..num_k_heads).map(move |head| {
                        rows_of(whole.clone(), &(first(head)..first(head) + width))
                    })
                };
                return starts.flat_map(heads).collect();
            }
            let named = stems.iter().zip(widths);
            named.map(|(stem, &width)| part(names.in_layer(layer, stem), width)).collect()
        };
        [
            of(names.delta.qkvz, &[delta.channels(), delta.v_width()], &[k, k, v, v]),
            of(names.delta.ba, &[num_v_heads; 2], &[shared; 2]),
        ]
    }

    /// `x` times the sigmoid of what the gate of the shared expert makes of the layer's input.
    pub(super) fn gate_shared(&mut self, layer: usize, input: View, x: View) {
        let label = format!("layers.{layer}.shared_gate");
        let name = part(self.names.in_layer(layer, self.names.experts.shared_gate), 1);
        let operand = self.precision.operand();
        // As the router.
        let weight = self.stored(&label, slice::from_ref(&name), input.width, |_| operand);
        let weight = self.builder.weight(weight);
        let gate = self.builder.activation(label, Rows::Tokens, 1, Dtype::F32);
        self.builder.op(Op::Linear(Linear::new(input, weight, gate)));
        self.builder.op(Op::SigmoidGate { gate, x, out: x, adds: false });
    }
}
