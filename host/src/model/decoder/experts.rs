//! The layers of a mixture of experts: a router, and the MLPs of a token's experts.

use super::{Planner, cols_of, part, rows_of};
use crate::model::Experts;
use crate::plan::{
    Dtype, ExpertLinear, Linear, Op, PlanBuilder, Route, Rows, Scores, View, WeightId, WeightPart,
    WeightSlice,
};

impl Planner<'_> {
    /// The sum over a token's experts of what their MLPs make of `x`, weighted.
    pub(super) fn experts(
        &mut self,
        layer: usize,
        experts: Experts,
        x: View,
        width: usize,
    ) -> View {
        let Experts { num_experts, top_k, normalise } = experts;
        let (config, names) = (self.config, &self.names.experts);
        let (columns, of) = (self.shares.columns.clone(), config.intermediate_size);
        let label = |what: &str| format!("layers.{layer}.{what}");
        let activation = |builder: &mut PlanBuilder, what: &str, width, dtype| {
            builder.activation(label(what), Rows::Tokens, width, dtype)
        };

        let logits = activation(&mut self.builder, "router", num_experts, Dtype::F32);
        let router = part(self.names.in_layer(layer, names.router), num_experts);
        // Not in blocks: what is lost here changes which experts compute.
        let operand = self.precision.operand();
        let router = self.stored(&label("router"), &[router], x.width, |_| operand);
        let router = self.builder.weight(router);
        self.builder.op(Op::Linear(Linear::new(x, router, logits)));
        let chosen = activation(&mut self.builder, "experts", top_k, Dtype::U32);
        let weights = activation(&mut self.builder, "expert_weights", top_k, Dtype::F32);
        let (scores, scale) = (Scores::Softmax, 1.0);
        self.builder.op(Op::Route(Route {
            logits,
            scores,
            normalise,
            scale,
            experts: chosen,
            weights,
        }));

        let of_experts = ExpertLinear {
            x,
            experts: chosen,
            weight: router,
            bias: None,
            num_experts,
            weights: None,
            out: x,
        };
        let [gate, up] = ["expert_gate", "expert_up"].map(|what| {
            let stem = names.gate_up[usize::from(what == "expert_up")];
            let parts =
                self.expert_parts(layer, stem, num_experts, of, |part| rows_of(part, &columns));
            let weight = self.expert_matrix(&label(what), &parts, x.width);
            let out = self.operand(&label(what), Rows::Tokens, top_k * columns.len());
            self.builder.op(Op::ExpertLinear(ExpertLinear { weight, out, ..of_experts }));
            out
        });
        let gated = self.operand(&label("gated"), Rows::Tokens, gate.width);
        self.builder.op(Op::Gate { activation: config.activation, gate, up, out: gated });

        let of_columns = |part| cols_of(part, (columns.start, of), columns.len());
        let parts = self.expert_parts(layer, names.down, num_experts, width, of_columns);
        let weight = self.expert_matrix(&label("expert_down"), &parts, columns.len());
        let is_alone = self.shares.rank.is_alone();
        let dtype = if is_alone { self.precision.residual() } else { operand };
        let out = activation(&mut self.builder, "expert_down", width, dtype);
        let weights = Some(weights);
        let down = ExpertLinear { x: gated, weight, weights, out, ..of_experts };
        self.builder.op(Op::ExpertLinear(down));
        self.all_reduce(out);
        out
    }

    /// What this rank has of the matrices called `stem`, of `rows` rows each, one on the other:
    /// `share` takes it from one of them.
    fn expert_parts(
        &self,
        layer: usize,
        stem: &'static str,
        num_experts: usize,
        rows: usize,
        share: impl Fn(WeightPart) -> WeightPart,
    ) -> Vec<WeightPart> {
        let stems = self.names.experts.stems(stem, num_experts);
        let in_layer = |stem: &String| self.names.in_layer(layer, stem);
        if self.names.experts.each.is_some() {
            return stems.iter().map(|stem| share(part(in_layer(stem), rows))).collect();
        }
        // One tensor: what is taken from each expert's rows is taken from all of them.
        let all = num_experts * rows;
        let one = share(part(in_layer(&stems[0]), rows));
        match one.slice {
            WeightSlice::Rows { first, .. } => (0..num_experts)
                .map(|expert| {
                    let slice = WeightSlice::Rows { first: expert * rows + first, of: all };
                    WeightPart { slice, ..one.clone() }
                })
                .collect(),
            _ => vec![WeightPart { rows: all, ..one }],
        }
    }

    /// The matrices of experts, as the numerics say but for E4M3, in which no product of theirs is.
    fn expert_matrix(&mut self, label: &str, parts: &[WeightPart], cols: usize) -> WeightId {
        let (numerics, operand) = (self.numerics, self.precision.operand());
        let weight = self.stored(label, parts, cols, |stored| {
            let storage = numerics.matrix_storage(stored);
            if storage.is_fp8() { operand } else { storage }
        });
        self.builder.weight(weight)
    }
}
