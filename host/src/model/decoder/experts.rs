//! The layers of a mixture of experts: a router, and the MLPs of a token's experts.

use super::Planner;
use super::weights::{cols_of, num_rows, part, rows_of};
use crate::model::names::{ExpertForm, ExpertNames};
use crate::model::{ExpertScores, Experts};
use crate::plan::{
    Dtype, ExpertLinear, FP8_BLOCK, Linear, Op, PartTransform, PlanBuilder, Route, Rows, Scores,
    SharedExpert, View, WeightId, WeightPart,
};
use std::ops::Range;

/// A matrix of an expert.
#[derive(Clone, Copy, PartialEq)]
enum Matrix {
    Gate,
    Up,
    Down,
}

impl Planner<'_> {
    /// The sum over a token's experts of what their MLPs make of `x`, weighted; the router reads
    /// `router_x`.
    pub(super) fn experts(
        &mut self,
        layer: usize,
        experts: Experts,
        [router_x, x]: [View; 2],
        width: usize,
    ) -> View {
        let chosen = self.route(layer, experts, router_x);
        self.chosen_experts(layer, experts, chosen, x, width)
    }

    /// The sum over the chosen experts of a token, `[experts, weights]`.
    pub(super) fn chosen_experts(
        &mut self,
        layer: usize,
        experts: Experts,
        [chosen, weights]: [View; 2],
        x: View,
        width: usize,
    ) -> View {
        let is_joined = self.joins_shared(layer, &experts);
        let num_experts = experts.num_experts + usize::from(is_joined);
        let top_k = experts.top_k + usize::from(is_joined);
        let columns = self.shares.expert_columns.clone();
        let label = |what: &str| format!("layers.{layer}.{what}");
        let of_matrix = |planner: &mut Self, what: &str, matrix, x: View, weights, out| {
            let cols = if matrix == Matrix::Down { columns.len() } else { x.width };
            let parts = planner.expert_parts(layer, &experts, matrix, width);
            let mut parts = planner.in_stacks(&experts, parts);
            if is_joined {
                parts.push(planner.shared_part(layer, matrix, width));
            }
            let weight = planner.expert_matrix(&label(what), num_experts, parts, cols);
            // Of the sums over all ranks the first has the bias.
            let is_first = matrix != Matrix::Down || planner.shares.rank.index == 0;
            let bias = (experts.bias && is_first).then(|| {
                let parts = planner.expert_bias_parts(layer, &experts, matrix, width);
                let parts = planner.in_stacks(&experts, parts);
                planner.whole_vector(&label(&format!("{what}_bias")), &parts)
            });
            let experts = chosen;
            let (gate, residual) = (None, None);
            let op = ExpertLinear {
                x,
                experts,
                weight,
                bias,
                gate,
                num_experts,
                weights,
                residual,
                out,
            };
            planner.builder.op(Op::ExpertLinear(op));
        };
        let [gate, up] =
            [("expert_gate", Matrix::Gate), ("expert_up", Matrix::Up)].map(|(what, matrix)| {
                let out = self.operand(&label(what), Rows::Tokens, top_k * columns.len());
                of_matrix(self, what, matrix, x, None, out);
                out
            });
        let gated = self.operand(&label("expert_gated"), Rows::Tokens, gate.width);
        self.builder.op(Op::Gate { activation: self.config.activation, gate, up, out: gated });
        let sums = self.sums();
        let out = activation(&mut self.builder, label("expert_down"), width, sums);
        of_matrix(self, "expert_down", Matrix::Down, gated, Some(weights), out);
        self.all_reduce(out);
        out
    }

    /// Each token's experts, and their weights.
    pub(super) fn route(&mut self, layer: usize, experts: Experts, x: View) -> [View; 2] {
        let Experts { num_experts, top_k, normalise, scale, .. } = experts;
        let (names, label) = (self.names, |what: &str| format!("layers.{layer}.{what}"));
        let router = part(names.in_layer(layer, names.experts.router), num_experts);
        let shared = self.joins_shared(layer, &experts).then_some(match experts.shared_gate {
            true => SharedExpert::Gated,
            false => SharedExpert::Whole,
        });
        let mut rows = vec![router.clone()];
        if shared == Some(SharedExpert::Gated) {
            rows.push(part(names.in_layer(layer, names.experts.shared_gate), 1));
        }
        let logits = activation(&mut self.builder, label("router"), num_rows(&rows), Dtype::F32);
        // Not in blocks: what is lost here changes which experts compute.
        let operand = self.precision.operand();
        let weight = self.stored(&label("router"), &rows, x.width, |_| operand);
        let weight = self.builder.weight(weight);
        let bias = experts.bias.then(|| self.vector(&label("router_bias"), &[router], "bias"));
        self.builder.op(Op::Linear(Linear { bias, ..Linear::new(x, weight, logits) }));
        let scores = match experts.scores {
            ExpertScores::Softmax => Scores::Softmax,
            ExpertScores::Sigmoid { groups } => {
                let bias = part(names.in_layer(layer, names.experts.score_bias), num_experts);
                Scores::Sigmoid { bias: self.whole_vector(&label("score_bias"), &[bias]), groups }
            }
        };
        let width = top_k + usize::from(shared.is_some());
        let experts = activation(&mut self.builder, label("experts"), width, Dtype::U32);
        let weights = activation(&mut self.builder, label("expert_weights"), width, Dtype::F32);
        let scale = scale as f32;
        let router = None;
        let op = Route { router, logits, scores, normalise, scale, shared, experts, weights };
        self.builder.op(Op::Route(op));
        [experts, weights]
    }

    /// Whether the shared expert is one more of the experts: if it is as large, and kept alike.
    pub(super) fn joins_shared(&self, layer: usize, experts: &Experts) -> bool {
        let (shares, names) = (self.shares, &self.names.experts);
        let kept = |name: String| self.numerics.matrix_storage(self.checkpoint.stored(&name));
        let is_alike = |matrix| {
            let of_first = &self.expert_tensors(layer, experts, matrix, names.suffixes[0])[0];
            let shared = self.names.in_layer(layer, self.shared_stem(matrix));
            kept(of_first.clone()) == kept(format!("{shared}.weight"))
        };
        self.numerics.fusion.shared_expert
            && !experts.bias
            && experts.shared_intermediate_size == Some(experts.intermediate_size)
            && shares.shared_columns == shares.expert_columns
            && [Matrix::Gate, Matrix::Up, Matrix::Down].into_iter().all(is_alike)
    }

    fn shared_stem(&self, matrix: Matrix) -> &'static str {
        let ExpertNames { shared_gate_up: [gate, up], shared_down, .. } = self.names.experts;
        match matrix {
            Matrix::Gate => gate,
            Matrix::Up => up,
            Matrix::Down => shared_down,
        }
    }

    /// What this rank has of a matrix of the shared expert, by the tensor's whole name.
    fn shared_part(&self, layer: usize, matrix: Matrix, hidden: usize) -> WeightPart {
        let columns = &self.shares.shared_columns;
        let name = format!("{}.weight", self.names.in_layer(layer, self.shared_stem(matrix)));
        let of = self.config.experts.and_then(|experts| experts.shared_intermediate_size);
        match matrix {
            Matrix::Down => {
                cols_of(part(name, hidden), (columns.start, of.unwrap_or(0)), columns.len())
            }
            _ => rows_of(part(name, of.unwrap_or(0)), columns),
        }
    }

    /// What this rank has of a matrix of all experts, one on the other.
    fn expert_parts(
        &self,
        layer: usize,
        experts: &Experts,
        matrix: Matrix,
        hidden: usize,
    ) -> Vec<WeightPart> {
        let Experts { num_experts, intermediate_size: n, .. } = *experts;
        let ExpertNames { form, suffixes: [suffix, _], .. } = self.names.experts;
        let columns = &self.shares.expert_columns;
        let (rows, of) =
            if matrix == Matrix::Down { (0..hidden, hidden) } else { (columns.clone(), n) };
        let share = |whole| match matrix {
            Matrix::Down => cols_of(whole, (columns.start, n), columns.len()),
            _ => rows_of(whole, columns),
        };
        let names = self.expert_tensors(layer, experts, matrix, suffix);
        match form {
            ExpertForm::Each(_) => names.iter().map(|name| share(part(name, of))).collect(),
            ExpertForm::Transposed => {
                let columns = |expert| {
                    let (first, step, of) = match matrix {
                        Matrix::Down => {
                            ([expert * n + columns.start, 0], 1, [num_experts * n, hidden])
                        }
                        _ => {
                            let col = 2 * columns.start + usize::from(matrix == Matrix::Up);
                            ([expert * hidden, col], 2, [num_experts * hidden, 2 * n])
                        }
                    };
                    let transform = PartTransform::Columns { first, step, of };
                    WeightPart { transform, ..part(&*names[0], rows.len()) }
                };
                (0..num_experts).map(columns).collect()
            }
            // One tensor: what is taken from each expert's rows is taken from all of them.
            _ if matrix == Matrix::Down => vec![share(part(&*names[0], num_experts * hidden))],
            _ => self.stack_parts(&names[0], &rows, experts, matrix),
        }
    }

    /// What this rank has of a bias of all experts, one on the other.
    fn expert_bias_parts(
        &self,
        layer: usize,
        experts: &Experts,
        matrix: Matrix,
        hidden: usize,
    ) -> Vec<WeightPart> {
        let columns = &self.shares.expert_columns;
        let ExpertNames { form, suffixes: [_, suffix], .. } = self.names.experts;
        let names = self.expert_tensors(layer, experts, matrix, suffix);
        match (form, matrix) {
            (ExpertForm::Each(_), Matrix::Down) => {
                names.iter().map(|name| part(name, hidden)).collect()
            }
            (ExpertForm::Each(_), _) => {
                let of = experts.intermediate_size;
                names.iter().map(|name| rows_of(part(name, of), columns)).collect()
            }
            (_, Matrix::Down) => vec![part(&*names[0], experts.num_experts * hidden)],
            _ => self.stack_parts(&names[0], columns, experts, matrix),
        }
    }

    /// `rows` of gate or up of each expert, of a tensor `name` with those of all.
    fn stack_parts(
        &self,
        name: &str,
        rows: &Range<usize>,
        experts: &Experts,
        matrix: Matrix,
    ) -> Vec<WeightPart> {
        let Experts { num_experts, intermediate_size: n, .. } = *experts;
        let form = self.names.experts.form;
        if form == ExpertForm::Stacks && *rows == (0..n) {
            return vec![part(name, num_experts * n)];
        }
        let of_expert = |expert| {
            let is_up = matrix == Matrix::Up;
            let (slice, transform) = form.rows(rows, n, is_up, [expert, num_experts]);
            WeightPart { slice, transform, ..part(name, rows.len()) }
        };
        (0..num_experts).map(of_expert).collect()
    }

    /// `parts`, of tensors that hold all experts unless each has its own.
    fn in_stacks(&self, experts: &Experts, mut parts: Vec<WeightPart>) -> Vec<WeightPart> {
        let stack = match self.names.experts.form {
            ExpertForm::Each(_) => None,
            _ => Some(experts.num_experts),
        };
        parts.iter_mut().for_each(|part| part.stack = stack);
        parts
    }

    /// Whole names of the tensors with a matrix, or bias, of all experts.
    fn expert_tensors(
        &self,
        layer: usize,
        experts: &Experts,
        matrix: Matrix,
        suffix: &str,
    ) -> Vec<String> {
        let names = &self.names.experts;
        let stem = match matrix {
            Matrix::Gate => names.gate_up[0],
            Matrix::Up => names.gate_up[1],
            Matrix::Down => names.down,
        };
        let stems = names.tensor_names(stem, suffix, experts.num_experts);
        stems.iter().map(|stem| self.names.in_layer(layer, stem)).collect()
    }

    /// The matrices of experts, as the numerics say; in E4M3 if none shares a scale with another,
    /// and what is stored can be read so.
    fn expert_matrix(
        &mut self,
        label: &str,
        num_experts: usize,
        parts: Vec<WeightPart>,
        cols: usize,
    ) -> WeightId {
        let (numerics, operand) = (self.numerics, self.precision.operand());
        let storage = |stored| numerics.matrix_storage(stored);
        let mut weight = self.stored_whole(label, parts, cols, storage);
        let n = weight.rows / num_experts;
        let are_apart = match weight.storage() {
            Some(Dtype::F8_E4M3_BLOCKS) => n.is_multiple_of(FP8_BLOCK),
            _ => true,
        };
        let are_rows = |part: &WeightPart| !matches!(part.transform, PartTransform::Columns { .. });
        if weight.parts.iter().any(|part| part.storage.is_fp8())
            && !(weight.fits_fp8() && are_apart && weight.parts.iter().all(are_rows))
        {
            weight.parts.iter_mut().for_each(|part| part.storage = operand);
        }
        self.builder.weight(weight)
    }
}

fn activation(builder: &mut PlanBuilder, name: String, width: usize, dtype: Dtype) -> View {
    builder.activation(name, Rows::Tokens, width, dtype)
}
