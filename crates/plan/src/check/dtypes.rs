//! Whether the element types of a plan agree, rows of 16-bit elements are aligned, and rows in
//! blocks have whole ones.

use super::super::{
    AllReduce, AppendAttention, Attention, CausalConv, DeltaRule, Dtype, ExpertGate, ExpertLinear,
    LayerNorm, Linear, Norm, Op, Plan, PlanError, RopeAppend, Route, Scores, View, WeightId,
};

/// Types that operations compute on.
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

impl Plan {
    /// Checks the types of the cache and the outputs, and that rows of 16-bit elements are aligned
    /// and those in blocks have whole ones.
    pub(super) fn check_storage(&self) -> Result<(), PlanError> {
        let is = |what, got, wanted| is("the plan", what, got, wanted);
        is("the KV cache", self.kv.dtype, FLOATS)?;
        is("the output", self.dtype(self.output), &[Dtype::F32])?;
        if let Some(next_tokens) = self.next_tokens {
            is("next_tokens", self.dtype(next_tokens), &[Dtype::U32])?;
        }
        for heads in &self.kv.layers {
            aligned("the KV cache", "heads", heads.head_dim, self.kv.dtype)?;
        }
        self.kv.check()?;
        for tensor in &self.tensors {
            aligned(&tensor.name, "rows", tensor.width, tensor.dtype)?;
        }
        for weight in &self.weights {
            for part in &weight.parts {
                aligned(&weight.name, "rows", weight.cols, part.storage)?;
                if part.storage.is_fp8() && !weight.fits_fp8() {
                    is("a weight stacked of parts in other forms", part.storage, FLOATS)?;
                }
            }
        }
        Ok(())
    }

    /// Checks the types of what `op` reads and writes: those that it has a meaning and a kernel
    /// for.
    pub(super) fn check_dtypes(&self, index: usize, op: &Op) -> Result<(), PlanError> {
        for View { tensor, start, .. } in op.reads().into_iter().chain(op.writes()) {
            let tensor = self.tensor(tensor);
            aligned(&tensor.name, "columns before a view", start, tensor.dtype)?;
        }
        let at = format!("operation {index}, {}", op.name());
        let is = |what, got, wanted: &[Dtype]| is(&at, what, got, wanted);
        match *op {
            Op::Embedding { table, out, .. } => {
                self.check_matrix(&at, "the table", table, FLOATS)?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::Cast { x, out } => {
                is("x", self.dtype(x), FLOATS)?;
                let halves = &[Dtype::F16, Dtype::BF16];
                let others = if self.dtype(x) == Dtype::F32 { &halves[..] } else { &[Dtype::F32] };
                is("out", self.dtype(out), others)
            }
            Op::AllReduce(AllReduce { x, residual, norm }) => {
                is("x", self.dtype(x), FLOATS)?;
                residual.map_or(Ok(()), |residual| {
                    is("the residual", self.dtype(residual), &[Dtype::F32])
                })?;
                norm.map_or(Ok(()), |(norm, out)| {
                    self.check_vector(&at, "the norm's weight", norm.weight)?;
                    is("out", self.dtype(out), &[self.dtype(x)])
                })
            }
            Op::AllGather { x, out, .. } => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::GatherRows { x, out } => {
                is("x", self.dtype(x), FLOATS)?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::RmsNorm { x, weight, out, .. } => {
                let x = self.dtype(x);
                is("x", x, FLOATS)?;
                self.check_vector(&at, "the weight", weight)?;
                let (any, same) = (FLOATS, [x]);
                is("out", self.dtype(out), if x == Dtype::F32 { any } else { &same })
            }
            Op::NormAdd { x, weight, residual, .. } => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                self.check_vector(&at, "the weight", weight)?;
                is("the residual", self.dtype(residual), &[Dtype::F32])
            }
            Op::LayerNorm(LayerNorm { x, weight, bias, out, .. }) => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                self.check_vector(&at, "the weight", weight)?;
                bias.map_or(Ok(()), |bias| self.check_vector(&at, "the bias", bias))?;
                is("out", self.dtype(out), FLOATS)
            }
            Op::AddTable { x, .. } => is("x", self.dtype(x), &[Dtype::F32]),
            Op::Gelu { x, up, out } => {
                let x = self.dtype(x);
                is("x", x, FLOATS)?;
                up.map_or(Ok(()), |up| is("up", self.dtype(up), &[x]))?;
                is("out", self.dtype(out), &[x])
            }
            Op::MeanRows { x, out } => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::Linear(ref linear) => self.check_linear_dtypes(&at, linear),
            Op::Route(ref route) => {
                let &Route { router, logits, scores, experts, weights, .. } = route;
                route.router_ops().try_for_each(|op| self.check_dtypes(index, &op))?;
                router.map_or(Ok(()), |router| is("x", self.dtype(router.x), &[Dtype::F32]))?;
                if let Scores::Sigmoid { bias, .. } = scores {
                    self.check_vector(&at, "the bias", bias)?;
                }
                is("the logits", self.dtype(logits), &[Dtype::F32])?;
                is("the experts", self.dtype(experts), &[Dtype::U32])?;
                is("the weights", self.dtype(weights), &[Dtype::F32])
            }
            Op::ExpertLinear(ExpertLinear {
                x,
                experts,
                weight,
                bias,
                gate,
                weights,
                residual,
                out,
                ..
            }) => {
                bias.map_or(Ok(()), |bias| self.check_vector(&at, "the bias", bias))?;
                let operand = self.numerics.precision.operand();
                is("x", self.dtype(x), &[operand])?;
                is("the experts", self.dtype(experts), &[Dtype::U32])?;
                self.check_matrix(&at, "the weight", weight, &[operand])?;
                if let Some(ExpertGate { up, bias, .. }) = gate {
                    self.check_matrix(&at, "up", up, &[operand])?;
                    bias.map_or(Ok(()), |bias| self.check_vector(&at, "the bias of up", bias))?;
                }
                match weights {
                    Some(weights) => is("the weights", self.dtype(weights), &[Dtype::F32])?,
                    None => is("out", self.dtype(out), &[operand])?,
                }
                if let Some(residual) = residual {
                    is("the residual", self.dtype(residual), &[Dtype::F32])?;
                    is("out", self.dtype(out), &[Dtype::F32])?;
                }
                is("out", self.dtype(out), FLOATS)
            }
            Op::Rope { x, .. } => is("x", self.dtype(x), FLOATS),
            Op::Scale { x, factors, indices } => {
                self.check_vector(&at, "the factors", factors)?;
                indices.map_or(Ok(()), |indices| {
                    is("the indices", self.dtype(indices), &[Dtype::U32])
                })?;
                is("x", self.dtype(x), &[Dtype::F32])
            }
            Op::Softcap { x, .. } => is("x", self.dtype(x), &[Dtype::F32]),
            Op::KvAppend { k, v, .. } => {
                let k = self.dtype(k);
                is("k", k, &[self.kv.dtype, Dtype::F32])?;
                is("v", self.dtype(v), &[k])
            }
            Op::AppendAttention(AppendAttention { append, attention }) => {
                self.check_qk_norm(&at, &append)?;
                self.check_sinks(&at, &attention)?;
                is("k", self.dtype(append.k), &[self.kv.dtype])?;
                is("v", self.dtype(append.v), &[self.kv.dtype])?;
                is("q", self.dtype(append.q), &[self.kv.dtype])?;
                is("out", self.dtype(attention.out), &[self.kv.dtype])
            }
            Op::RopeAppend(ref append) => {
                self.check_qk_norm(&at, append)?;
                let &RopeAppend { q, k, v, .. } = append;
                let k = self.dtype(k);
                is("k", k, &[self.kv.dtype, Dtype::F32])?;
                is("q", self.dtype(q), &[k])?;
                is("v", self.dtype(v), &[k])
            }
            Op::Attention(ref attention) => {
                self.check_sinks(&at, attention)?;
                is("q", self.dtype(attention.q), &[self.kv.dtype])?;
                is("out", self.dtype(attention.out), &[self.kv.dtype])
            }
            Op::AttentionScores(op) | Op::AttentionSoftmax(op) | Op::AttentionValues(op) => {
                self.check_sinks(&at, &op.attention)?;
                is("q", self.dtype(op.attention.q), &[self.kv.dtype])?;
                is("the scores", self.dtype(op.scores), &[Dtype::F32])?;
                is("the probabilities", self.dtype(op.probabilities), &[self.kv.dtype])?;
                is("out", self.dtype(op.attention.out), &[self.kv.dtype])
            }
            Op::Gate { gate, up, out, .. } => {
                let gate = self.dtype(gate);
                is("the gate", gate, FLOATS)?;
                is("up", self.dtype(up), &[gate])?;
                is("out", self.dtype(out), &[gate])
            }
            Op::SigmoidGate { gate, x, out, .. } => {
                let x = self.dtype(x);
                is("x", x, FLOATS)?;
                is("the gate", self.dtype(gate), &[x])?;
                is("out", self.dtype(out), &[x])
            }
            Op::CausalConv(CausalConv { x, weight, out, .. }) => {
                let x = self.dtype(x);
                is("x", x, FLOATS)?;
                self.check_vector(&at, "the weight", weight)?;
                is("out", self.dtype(out), &[x])
            }
            Op::DeltaRule(DeltaRule { q, k, v, gates, rate, bias, out, .. }) => {
                let q = self.dtype(q);
                is("q", q, FLOATS)?;
                for (what, view) in [("k", k), ("v", v), ("the gates", gates), ("out", out)] {
                    is(what, self.dtype(view), &[q])?;
                }
                self.check_vector(&at, "the rates", rate)?;
                self.check_vector(&at, "the bias", bias)
            }
            Op::Add { x, residual, out } => {
                is("x", self.dtype(x), FLOATS)?;
                is("the residual", self.dtype(residual), &[Dtype::F32])?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::Sample { x, out } => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                is("out", self.dtype(out), &[Dtype::U32])
            }
        }
    }

    fn check_linear_dtypes(&self, at: &str, op: &Linear) -> Result<(), PlanError> {
        let is = |what, got, wanted: &[Dtype]| is(at, what, got, wanted);
        let &Linear { x, norm, gate_before, weight, bias, gate, residual, out } = op;
        let operand = self.numerics.precision.operand();
        match norm {
            Some(Norm { weight: norm, .. }) => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                self.check_vector(at, "the norm", norm)?;
            }
            None => is("x", self.dtype(x), &[operand])?,
        }
        if let Some((_, gate)) = gate_before {
            is("the gate", self.dtype(gate), &[operand])?;
        }
        self.check_matrix(at, "the weight", weight, &[operand])?;
        bias.map_or(Ok(()), |bias| self.check_vector(at, "the bias", bias))?;
        let out = self.dtype(out);
        match residual {
            Some(residual) => {
                is("the residual", self.dtype(residual), &[Dtype::F32])?;
                is("out", out, &[Dtype::F32])
            }
            None if gate.is_some() => is("out", out, &[operand]),
            None => is("out", out, &[operand, Dtype::F32]),
        }
    }

    /// A matrix is kept in one of the `dense` types or, where the numerics say so, as the
    /// checkpoint stores it.
    fn check_matrix(
        &self,
        at: &str,
        what: &'static str,
        id: WeightId,
        dense: &[Dtype],
    ) -> Result<(), PlanError> {
        let kept = |storage| self.numerics.matrix_storage(Some(storage)) == storage;
        let mut parts = self.weight(id).parts.iter().map(|part| part.storage);
        match parts.find(|&storage| !dense.contains(&storage) && !kept(storage)) {
            Some(storage) => is(at, what, storage, dense),
            None => Ok(()),
        }
    }

    fn check_qk_norm(&self, at: &str, op: &RopeAppend) -> Result<(), PlanError> {
        let mut weights = op.norm.into_iter().flat_map(|norm| [norm.q, norm.k]);
        weights.try_for_each(|weight| self.check_vector(at, "the norm", weight))
    }

    fn check_sinks(&self, at: &str, op: &Attention) -> Result<(), PlanError> {
        op.sinks.map_or(Ok(()), |sinks| self.check_vector(at, "the sinks", sinks))
    }

    fn check_vector(&self, at: &str, what: &'static str, id: WeightId) -> Result<(), PlanError> {
        let mut parts = self.weight(id).parts.iter();
        parts.try_for_each(|part| is(at, what, part.storage, &[Dtype::F32]))
    }
}

fn is(at: &str, what: &'static str, got: Dtype, wanted: &[Dtype]) -> Result<(), PlanError> {
    match wanted.contains(&got) {
        true => Ok(()),
        false => Err(PlanError::Dtype { at: at.to_owned(), what, got, wanted: wanted.to_vec() }),
    }
}

fn aligned(name: &str, what: &'static str, elems: usize, dtype: Dtype) -> Result<(), PlanError> {
    let multiple = dtype.row_multiple();
    match elems.is_multiple_of(multiple) {
        true => Ok(()),
        false => Err(PlanError::Unaligned { name: name.to_owned(), what, elems, dtype, multiple }),
    }
}
