//! Whether the shapes and the element types of a plan agree.

mod dtypes;
#[cfg(test)]
mod tests;

use super::{
    AllReduce, AppendAttention, Attention, CausalConv, Constant, ConstantId, DeltaRule, Dtype,
    ExpertGate, ExpertLinear, Groups, KvHeads, LayerNorm, Linear, MaterializedAttention, Op,
    PartTransform, Plan, PlanError, RopeAppend, Route, Router, Rows, Scores, View, Weight,
    WeightId, WeightPart,
};

impl Plan {
    /// Checks that every operation's views, weights and tables have shapes and element types that
    /// fit each other, and that it reads nothing that was not written before.
    ///
    /// # Errors
    /// The first [`PlanError`], which names the operation.
    pub fn check(&self) -> Result<(), PlanError> {
        self.numerics.check()?;
        self.check_shapes().map_err(PlanError::Shape)?;
        self.check_storage()?;
        let mut ops = self.ops.iter().enumerate();
        ops.try_for_each(|(index, op)| self.check_dtypes(index, op))
    }

    fn check_shapes(&self) -> Result<(), String> {
        for weight in &self.weights {
            check_parts(weight)?;
        }
        let mut written = vec![false; self.tensors.len()];
        // Residuals of which a rank may have some rows alone.
        let mut divided: Vec<View> = Vec::new();
        for (index, op) in self.ops.iter().enumerate() {
            let at = |what: String| format!("operation {index}, {op:?}: {what}");
            for view in op.reads().into_iter().chain(op.writes()) {
                self.check_view(view).map_err(at)?;
            }
            if let Some(view) = op.reads().into_iter().find(|view| !written[view.tensor.0]) {
                return Err(at(format!("`{}` is read before it is written", self.name(view))));
            }
            self.check_divided(op, &mut divided).map_err(at)?;
            op.writes().into_iter().for_each(|view| written[view.tensor.0] = true);
            self.check_in_place(op).map_err(at)?;
            self.check_op(op).map_err(at)?;
        }
        for output in self.outputs() {
            ensure(written[output.tensor.0], || "an output is never written".into())?;
            let is_divided = divided.iter().any(|residual| residual.overlaps(output));
            ensure(!is_divided, || "an output of which a rank has some rows alone".into())?;
        }
        Ok(())
    }

    /// Only a sum that is added to it may read a residual after one with a norm, which may leave
    /// each rank some rows alone: [`AllReduce`].
    fn check_divided(&self, op: &Op, divided: &mut Vec<View>) -> Result<(), String> {
        let sum = match *op {
            Op::AllReduce(AllReduce { residual: Some(residual), norm, .. }) => {
                Some((residual, norm.is_some()))
            }
            _ => None,
        };
        let allowed = sum.map(|(residual, _)| residual);
        for read in op.reads().into_iter().filter(|&read| Some(read) != allowed) {
            let is_divided = divided.iter().any(|residual| residual.overlaps(read));
            ensure(!is_divided, || {
                format!("`{}` is read, of which a rank may have some rows alone", self.name(read))
            })?;
        }
        if let Some((residual, has_norm)) = sum {
            divided.retain(|&other| other != residual);
            divided.extend(has_norm.then_some(residual));
        }
        Ok(())
    }

    fn name(&self, view: View) -> &str {
        &self.tensor(view.tensor).name
    }

    fn check_view(&self, view: View) -> Result<(), String> {
        let end = view.start + view.width;
        let inside = self.tensors.get(view.tensor.0).is_some_and(|tensor| end <= tensor.width);
        ensure(inside && view.width > 0, || format!("{view:?} is no part of an activation"))
    }

    /// An operation reads nothing of the activation that it writes, but for what [`Op`] allows: the
    /// same view, and of [`Op::RopeAppend`] other columns.
    fn check_in_place(&self, op: &Op) -> Result<(), String> {
        let in_place = match *op {
            Op::RmsNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::Softcap { x, .. }
            | Op::AddTable { x, .. }
            | Op::Scale { x, .. }
            | Op::LayerNorm(LayerNorm { x, .. }) => Some(x),
            Op::RopeAppend(RopeAppend { q, .. }) => Some(q),
            Op::Linear(Linear { x, residual, .. })
            | Op::ExpertLinear(ExpertLinear { x, residual, .. }) => {
                residual.filter(|&residual| residual != x)
            }
            Op::SigmoidGate { gate, x, out, adds } => {
                let in_place = if adds { out } else { x };
                let is_apart = !adds || x.tensor != out.tensor;
                Some(in_place).filter(|view| view.tensor != gate.tensor && is_apart)
            }
            Op::NormAdd { x, residual, .. } | Op::Add { x, residual, .. } => {
                Some(residual).filter(|&residual| residual != x)
            }
            _ => None,
        };
        let allowed = |read: View, out: View| match op {
            _ if read.tensor != out.tensor => true,
            Op::Gelu { .. } if read == out => true,
            Op::RopeAppend(_) if !read.overlaps(out) => true,
            Op::AllReduce(_) if read == out => true,
            _ => in_place == Some(read) && read == out,
        };
        for out in op.writes() {
            let reads = op.reads();
            let clash = reads.into_iter().find(|&read| !allowed(read, out));
            ensure(clash.is_none(), || {
                format!("`{}` is read while it is written", self.name(out))
            })?;
        }
        Ok(())
    }

    fn check_op(&self, op: &Op) -> Result<(), String> {
        match *op {
            Op::Embedding { table, out, scale } => {
                self.rows_are(out, Rows::Tokens)?;
                ensure(scale > 0.0 && scale.is_finite(), || format!("a scale of {scale}"))?;
                same("columns", out.width, self.weight(table).cols)
            }
            Op::Cast { x, out } => self.same_shape(x, out),
            Op::RmsNorm { x, weight, out, .. } | Op::NormAdd { x, weight, residual: out, .. } => {
                self.same_shape(x, out)?;
                same("columns left over", x.width % self.vector(weight)?, 0)
            }
            Op::LayerNorm(LayerNorm { x, weight, bias, out, keeps, .. }) => {
                self.same_shape(x, out)?;
                ensure(!keeps || x != out, || "an output that is kept twice".into())?;
                let mut vectors = [weight].into_iter().chain(bias);
                vectors.try_for_each(|id| same("columns", self.vector(id)?, x.width))
            }
            Op::AddTable { x, table } => {
                self.rows_are(x, Rows::Tokens)?;
                let Constant { rows, cols, data, .. } = self.constant(table);
                ensure(data.is_empty() || data.len() == rows * cols, || "a torn table".into())?;
                same("columns of the table", *cols, x.width)
            }
            Op::Gelu { x, up, out } => {
                up.map_or(Ok(()), |up| self.same_shape(up, x))?;
                self.same_shape(x, out)
            }
            Op::MeanRows { x, out } => {
                self.rows_are(x, Rows::Tokens)?;
                self.rows_are(out, Rows::Logits)?;
                same("columns", x.width, out.width)
            }
            Op::Linear(linear) => self.check_linear(&linear),
            Op::Route(route) => self.check_route(&route),
            Op::ExpertLinear(op) => self.check_expert_linear(&op),
            Op::Rope { x, table, head_dim } => self.check_rope(x, table, head_dim),
            Op::KvAppend { layer, k, v } => self.check_append(layer, k, v),
            Op::RopeAppend(append) => self.check_rope_append(&append),
            Op::AppendAttention(AppendAttention { append, attention }) => {
                self.check_rope_append(&append)?;
                self.check_attention(&attention)?;
                same("what is attended", (attention.layer, attention.q), (append.layer, append.q))
            }
            Op::Attention(attention) => self.check_attention(&attention),
            Op::AttentionScores(op) | Op::AttentionSoftmax(op) | Op::AttentionValues(op) => {
                self.check_attention(&op.attention)?;
                self.check_score_rows(&op)
            }
            Op::Gate { gate, up, out, .. } => {
                self.same_shape(gate, up)?;
                self.same_shape(gate, out)
            }
            Op::SigmoidGate { gate, x, out, .. } => {
                self.same_rows(gate, x)?;
                ensure([1, x.width].contains(&gate.width), || {
                    format!("a gate of {} columns for {}", gate.width, x.width)
                })?;
                self.same_shape(x, out)
            }
            Op::Scale { x, factors, indices } => {
                ensure(self.vector(factors)? > 0, || "no factor".into())?;
                indices.map_or(Ok(()), |indices| self.same_shape(x, indices))
            }
            Op::CausalConv(op) => self.check_conv(&op),
            Op::DeltaRule(op) => self.check_delta_rule(&op),
            Op::Add { x, residual, out } => {
                self.same_shape(x, residual)?;
                self.same_shape(x, out)
            }
            // Whole rows: a message is one piece of memory.
            Op::AllReduce(AllReduce { x, residual, norm }) => {
                for view in op.writes() {
                    same("columns", view.width, self.tensor(view.tensor).width)?;
                    self.same_shape(x, view)?;
                }
                ensure(norm.is_none() || residual.is_some(), || "a norm of no residual".into())?;
                norm.map_or(Ok(()), |(norm, _)| {
                    same("columns of the norm", self.vector(norm.weight)?, x.width)
                })
            }
            Op::AllGather { x, first_column, out } => {
                self.same_rows(x, out)?;
                same("columns", x.width, self.tensor(x.tensor).width)?;
                same("columns of out", out.width, self.tensor(out.tensor).width)?;
                let end = first_column + x.width;
                ensure(end <= out.width, || format!("column {end} of {}", out.width))
            }
            Op::GatherRows { x, out } => {
                self.rows_are(x, Rows::Tokens)?;
                self.rows_are(out, Rows::Logits)?;
                same("columns", x.width, out.width)
            }
            Op::Softcap { cap, .. } => check_cap(cap),
            Op::Sample { x, out } => {
                self.same_rows(x, out)?;
                same("columns", out.width, 1)
            }
        }
    }

    fn check_linear(&self, op: &Linear) -> Result<(), String> {
        let weight = self.weight(op.weight);
        self.same_rows(op.x, op.out)?;
        same("columns of x", op.x.width, weight.cols)?;
        same("columns of out", op.out.width * if op.gate.is_some() { 2 } else { 1 }, weight.rows)?;
        if let Some(norm) = op.norm {
            same("columns of the norm", self.vector(norm.weight)?, op.x.width)?;
        }
        op.gate_before.map_or(Ok(()), |(_, gate)| self.same_shape(gate, op.x))?;
        ensure(op.gate_before.is_none() || op.norm.is_none(), || "a norm after a gate".into())?;
        op.bias.map_or(Ok(()), |bias| same("biases", self.vector(bias)?, weight.rows))?;
        ensure(op.gate.is_none() || op.residual.is_none(), || "a residual after a gate".into())?;
        op.residual.map_or(Ok(()), |residual| self.same_shape(residual, op.out))
    }

    fn check_route(&self, op: &Route) -> Result<(), String> {
        let &Route { logits, scores, scale, experts, weights, .. } = op;
        op.router_ops().try_for_each(|op| self.check_op(&op))?;
        if let Some(Router { x, norm, .. }) = op.router {
            same("columns of the norm", self.vector(norm.weight)?, x.width)?;
        }
        self.same_rows(logits, experts)?;
        self.same_shape(experts, weights)?;
        ensure(scale > 0.0 && scale.is_finite(), || format!("weights scaled by {scale}"))?;
        ensure(logits.width > 0 && experts.width > usize::from(op.shared.is_some()), || {
            format!("{} experts of {} logits", experts.width, logits.width)
        })?;
        let (top_k, all) = (op.top_k(), op.num_experts());
        ensure(top_k <= all, || format!("{top_k} of {all} experts"))?;
        let Scores::Sigmoid { bias, groups } = scores else { return Ok(()) };
        same("biases", self.vector(bias)?, all)?;
        let Some(Groups { count, top_k: top_groups }) = groups else { return Ok(()) };
        let of_group = all.checked_div(count).unwrap_or(0);
        ensure(of_group >= 2 && all == count * of_group, || {
            format!("{count} groups of {all} experts")
        })?;
        ensure(top_groups <= count && top_k <= top_groups * of_group, || {
            format!("{top_k} experts of {top_groups} groups of {count}")
        })
    }

    fn check_expert_linear(&self, op: &ExpertLinear) -> Result<(), String> {
        let &ExpertLinear { x, experts, weight, bias, gate, num_experts, weights, residual, out } =
            op;
        let weight = self.weight(weight);
        bias.map_or(Ok(()), |bias| same("biases", self.vector(bias)?, weight.rows))?;
        if let Some(ExpertGate { up, bias, .. }) = gate {
            same("rows of up", self.weight(up).rows, weight.rows)?;
            same("columns of up", self.weight(up).cols, weight.cols)?;
            bias.map_or(Ok(()), |bias| same("biases", self.vector(bias)?, weight.rows))?;
            ensure(weights.is_none(), || "sums of what is gated".into())?;
        }
        ensure(num_experts > 0, || "no experts".into())?;
        same("rows left over", weight.rows % num_experts, 0)?;
        let (rows, top_k) = (weight.rows / num_experts, experts.width);
        self.same_rows(x, experts)?;
        self.same_rows(x, out)?;
        ensure([weight.cols, top_k * weight.cols].contains(&x.width), || {
            format!("{} columns of x for experts of {}", x.width, weight.cols)
        })?;
        weights.map_or(Ok(()), |weights| self.same_shape(weights, experts))?;
        ensure(residual.is_none() || weights.is_some(), || "a residual of no sums".into())?;
        residual.map_or(Ok(()), |residual| self.same_shape(residual, out))?;
        same("columns of out", out.width, rows * if weights.is_some() { 1 } else { top_k })
    }

    fn check_rope(&self, x: View, table: ConstantId, head_dim: usize) -> Result<(), String> {
        let Constant { rows, cols, data, .. } = self.constant(table);
        self.rows_are(x, Rows::Tokens)?;
        same("columns left over", x.width % head_dim, 0)?;
        if !data.is_empty() {
            same("elements of the table", data.len(), rows * cols)?;
        }
        ensure(*cols <= head_dim && cols % 2 == 0, || format!("{cols} rotary columns"))?;
        same("positions of the table", *rows, self.bounds.max_kv_len)
    }

    fn check_append(&self, layer: usize, k: View, v: View) -> Result<(), String> {
        self.rows_are(k, Rows::Tokens)?;
        self.same_shape(k, v)?;
        same("columns", k.width, self.kv_heads(layer)?.width())
    }

    /// The heads of a layer of the cache.
    fn kv_heads(&self, layer: usize) -> Result<KvHeads, String> {
        let heads = self.kv.layers.get(layer);
        heads.copied().ok_or_else(|| format!("no layer {layer} in the cache"))
    }

    fn check_rope_append(&self, op: &RopeAppend) -> Result<(), String> {
        let &RopeAppend { layer, norm, q, k, v, table, head_dim } = op;
        for weight in norm.into_iter().flat_map(|norm| [norm.q, norm.k]) {
            same("columns of the norm", self.vector(weight)?, head_dim)?;
        }
        self.check_rope(q, table, head_dim)?;
        self.check_append(layer, k, v)?;
        same("columns of a head", head_dim, self.kv_heads(layer)?.head_dim)
    }

    fn check_attention(&self, op: &Attention) -> Result<(), String> {
        self.rows_are(op.q, Rows::Tokens)?;
        self.same_shape(op.q, op.out)?;
        same("columns", op.q.width, op.num_heads * op.head_dim)?;
        let KvHeads { num_kv_heads, head_dim } = self.kv_heads(op.layer)?;
        same("KV heads", op.num_kv_heads, num_kv_heads)?;
        same("elements of a head", op.head_dim, head_dim)?;
        ensure(op.num_kv_heads > 0, || "no KV head".into())?;
        same("query heads left over", op.num_heads % op.num_kv_heads, 0)?;
        ensure(op.window != Some(0), || "a window of no position".into())?;
        let scale = op.softmax_scale;
        ensure(scale > 0.0 && scale.is_finite(), || format!("a softmax scale of {scale}"))?;
        op.softcap.map_or(Ok(()), check_cap)?;
        op.sinks.map_or(Ok(()), |sinks| same("sinks", self.vector(sinks)?, op.num_heads))?;
        let appended = |other: &Op| other.appends_to() == Some(op.layer);
        ensure(self.ops.iter().any(appended), || format!("layer {} is never appended", op.layer))
    }

    fn check_conv(&self, op: &CausalConv) -> Result<(), String> {
        let &CausalConv { layer, x, weight, out } = op;
        let weight = self.weight(weight);
        self.check_state_layer(layer)?;
        self.rows_are(x, Rows::Tokens)?;
        self.same_shape(x, out)?;
        same("channels", x.width, self.states.conv_channels)?;
        same("rows of the weight", weight.rows, x.width)?;
        same("taps", weight.cols, self.states.conv_len + 1)
    }

    fn check_delta_rule(&self, op: &DeltaRule) -> Result<(), String> {
        let &DeltaRule { layer, q, k, v, gates, rate, bias, num_k_heads, out, .. } = op;
        let num_heads = self.states.num_heads;
        self.check_state_layer(layer)?;
        self.rows_are(q, Rows::Tokens)?;
        self.same_shape(q, k)?;
        self.same_rows(v, q)?;
        self.same_rows(gates, q)?;
        self.same_shape(v, out)?;
        same("columns of q", q.width, num_k_heads * self.states.k_dim)?;
        same("columns of v", v.width, num_heads * self.states.v_dim)?;
        same("gates", gates.width, 2 * num_heads)?;
        same("rates", self.vector(rate)?, num_heads)?;
        same("biases", self.vector(bias)?, num_heads)?;
        ensure(num_k_heads > 0, || "no head of keys".into())?;
        same("heads of values left over", num_heads % num_k_heads, 0)
    }

    fn check_state_layer(&self, layer: usize) -> Result<(), String> {
        ensure(layer < self.states.num_layers, || format!("no layer {layer} of states"))
    }

    /// Scores and probabilities are whole activations.
    fn check_score_rows(&self, op: &MaterializedAttention) -> Result<(), String> {
        let columns = op.attention.num_heads * self.bounds.score_columns();
        for view in [op.scores, op.probabilities] {
            self.rows_are(view, Rows::Tokens)?;
            same("columns of scores", view.width, columns)?;
            same("columns of a row of scores", self.tensor(view.tensor).width, columns)?;
        }
        Ok(())
    }

    fn same_shape(&self, a: View, b: View) -> Result<(), String> {
        self.same_rows(a, b)?;
        same("columns", a.width, b.width)
    }

    fn same_rows(&self, a: View, b: View) -> Result<(), String> {
        self.rows_are(a, self.tensor(b.tensor).rows)
    }

    fn rows_are(&self, view: View, rows: Rows) -> Result<(), String> {
        same("rows", self.tensor(view.tensor).rows, rows)
    }

    /// The length of a weight that has to be a vector.
    fn vector(&self, id: WeightId) -> Result<usize, String> {
        let Weight { rows, cols, .. } = self.weight(id);
        same("rows of a vector", *rows, 1).map(|()| *cols)
    }
}

fn check_cap(cap: f32) -> Result<(), String> {
    ensure(cap > 0.0 && cap.is_finite(), || format!("a cap of {cap}"))
}

/// The parts of a weight fill it: with rows or, where it is a vector, with elements.
fn check_parts(weight: &Weight) -> Result<(), String> {
    let filled: usize = weight.parts.iter().map(|part| part.rows).sum();
    let Weight { name, rows, cols, .. } = weight;
    let fills = filled == *rows || (*rows == 1 && filled == *cols);
    ensure(fills, || format!("weight `{name}` [{rows}, {cols}] of {filled} rows"))?;
    let is_scaled = |part: &WeightPart| {
        matches!(
            part.transform,
            PartTransform::Scale(_)
                | PartTransform::Add(_)
                | PartTransform::NegExp
                | PartTransform::Constant(_)
        )
    };
    let can_scale = |part: &WeightPart| weight.is_vector() && part.storage == Dtype::F32;
    ensure(weight.parts.iter().all(|part| !is_scaled(part) || can_scale(part)), || {
        format!("weight `{name}` is scaled or added to, which f32 vectors alone can be")
    })
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Result<(), String> {
    ensure(got == wanted, || format!("{what}: {got:?} where {wanted:?} are right"))
}

fn ensure(right: bool, error: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(error()) }
}
