//! What layers of Gemma 4 have besides attention and an MLP: an input of each layer, experts beside
//! the MLP, and a factor of the residual stream.

use super::weights::{part, scaled};
use super::{Planner, Rows, View};
use crate::model::{Experts, PerLayerInputs};
use crate::plan::{Dtype, Op, PartTransform, WeightPart};
use std::f64::consts::SQRT_2;

impl Planner<'_> {
    /// Divides each head of V in `x` by the root of its mean square, to `out`.
    pub(super) fn normed_values(&mut self, layer: usize, x: View, out: View) -> View {
        let head_dim = self.config.heads(layer).head_dim;
        let like = part(self.names.in_layer(layer, self.names.k_norm), head_dim);
        let ones = WeightPart { transform: PartTransform::Constant(1.0), ..like };
        let weight = self.vector(&format!("layers.{layer}.v_norm"), &[ones], "weight");
        self.builder.op(Op::RmsNorm { x, weight, out, eps: self.config.rms_norm_eps });
        out
    }

    /// The inputs of all layers side by side, from the rows of their own table and from the
    /// embedding, `hidden`: `(inputs + norm(projection(hidden) / sqrt(hidden_size))) / sqrt(2)`.
    pub(super) fn layer_inputs(&mut self, inputs: PerLayerInputs, hidden: View) -> View {
        let (config, names) = (self.config, self.names);
        let PerLayerInputs { vocab_size, width } = inputs;
        let all = width * config.num_layers();
        let table = names.of_model(names.gemma4.inputs);
        let scale = self.table_scale(&table, (width as f64).sqrt()) / SQRT_2 as f32;
        let table = self.table("layer_inputs_table", part(table, vocab_size), all);
        let residual = self.precision.residual();
        let sums = self.builder.activation("layer_inputs_sums", Rows::Tokens, all, residual);
        self.builder.op(Op::Embedding { table, out: sums, scale });

        let x = self.as_operand("layer_inputs_x", hidden);
        let projected =
            self.builder.activation("layer_inputs_projected", Rows::Tokens, all, Dtype::F32);
        let projection = part(names.of_model(names.gemma4.input_projection), all);
        self.linear("layer_inputs_projection", &[projection], false, x, projected);
        // What is not divided by the root of the hidden size is the same after a norm with this
        // `eps`.
        let eps = (f64::from(config.rms_norm_eps) * config.hidden_size as f64) as f32;
        let norm = self.norm_part(&names.of_model(names.gemma4.input_norm), width);
        let weight = self.vector("layer_inputs_norm", &[scaled(norm, SQRT_2)], "weight");
        self.builder.op(Op::RmsNorm { x: projected, weight, out: projected, eps });
        self.builder.op(Op::Add { x: projected, residual: sums, out: sums });
        self.as_operand("layer_inputs", sums)
    }

    /// `hidden += norm(out(activation(gate(hidden)) * input))` of the layer's part of `inputs`.
    pub(super) fn add_layer_input(&mut self, layer: usize, inputs: View, hidden: View) {
        let (config, names) = (self.config, self.names);
        let width = inputs.width / config.num_layers();
        let label = |what: &str| format!("layers.{layer}.{what}");
        let x = self.as_operand(&label("input_x"), hidden);
        let gate = part(names.in_layer(layer, names.gemma4.input_gate), width);
        let gate = self.operand_linear(&label("input_gate"), &[gate], false, x);
        let up = inputs.columns(layer * width, width);
        let gated = self.operand(&label("input_gated"), Rows::Tokens, width);
        self.builder.op(Op::Gate { activation: config.activation, gate, up, out: gated });
        let out = part(names.in_layer(layer, names.gemma4.input_out), hidden.width);
        // Small enough for each rank to have all of it.
        let residual = self.precision.residual();
        let x = self.builder.activation(label("input_out"), Rows::Tokens, hidden.width, residual);
        self.linear(&label("input_out"), &[out], false, gated, x);
        self.norm_in_place(layer, "input_norm", names.gemma4.input_post_norm, x);
        self.builder.op(Op::Add { x, residual: hidden, out: hidden });
    }

    /// `mlp = norm(mlp) + norm(experts(norm(hidden)))`, of which `mlp` is what the layer's MLP made
    /// of the same rows; where the sum is.
    pub(super) fn add_experts(
        &mut self,
        layer: usize,
        experts: Experts,
        hidden: View,
        mlp: View,
    ) -> View {
        let names = self.names;
        let label = |what: &str| format!("layers.{layer}.{what}");
        self.norm_in_place(layer, "beside_experts", names.gemma4.beside_experts_post_norm, mlp);
        let mlp = self.as_residual(&label("beside_experts"), mlp);

        let factor = part(names.in_layer(layer, names.gemma4.router_scale), hidden.width);
        let factor = scaled(factor, (hidden.width as f64).sqrt());
        let weight = self.whole_vector(&label("router_norm"), &[factor]);
        let router_x = self.operand(&label("router_norm"), Rows::Tokens, hidden.width);
        let eps = self.stream_eps();
        self.builder.op(Op::RmsNorm { x: hidden, weight, out: router_x, eps });
        let chosen = self.route(layer, experts, router_x);
        let [indices, weights] = chosen;
        let scales = part(names.in_layer(layer, names.gemma4.expert_scales), experts.num_experts);
        let factors = self.whole_vector(&label("expert_scales"), &[scales]);
        self.builder.op(Op::Scale { x: weights, factors, indices: Some(indices) });

        let norm = names.in_layer(layer, names.gemma4.experts_norm);
        let norm = self.norm_part(&norm, hidden.width);
        let x = self.norm(&label("experts_norm"), norm, hidden);
        let out = self.chosen_experts(layer, experts, chosen, x, hidden.width);
        self.norm_in_place(layer, "experts_post_norm", names.gemma4.experts_post_norm, out);
        self.builder.op(Op::Add { x: out, residual: mlp, out: mlp });
        mlp
    }

    /// `x`, which may be a sum over ranks, in the type of the residual stream.
    fn as_residual(&mut self, label: &str, x: View) -> View {
        let residual = self.precision.residual();
        if self.builder.dtype(x) == residual {
            return x;
        }
        let out = self.builder.activation(label, self.builder.rows(x), x.width, residual);
        self.builder.op(Op::Cast { x, out });
        out
    }

    /// Multiplies the residual stream with the layer's factor.
    pub(super) fn scale_layer(&mut self, layer: usize, hidden: View) {
        let scalar = part(self.names.in_layer(layer, self.names.gemma4.scalar), 1);
        let factors = self.whole_vector(&format!("layers.{layer}.scalar"), &[scalar]);
        self.builder.op(Op::Scale { x: hidden, factors, indices: None });
    }

    fn norm_in_place(&mut self, layer: usize, label: &str, name: &str, x: View) {
        let norm = self.norm_part(&self.names.in_layer(layer, name), x.width);
        let weight = self.vector(&format!("layers.{layer}.{label}"), &[norm], "weight");
        self.builder.op(Op::RmsNorm { x, weight, out: x, eps: self.config.rms_norm_eps });
    }
}
