//! Whether the element types of a plan agree, and rows of 16-bit elements are aligned.

use super::super::{
    AppendAttention, Attention, Dtype, Linear, Norm, Op, Plan, PlanError, RopeAppend, View, Weight,
};

/// Types that operations compute on.
const FLOATS: &[Dtype] = &[Dtype::F32, Dtype::F16, Dtype::BF16];

impl Plan {
    /// Checks the types of the cache and the outputs, and that rows of 16-bit elements are aligned.
    pub(super) fn check_storage(&self) -> Result<(), PlanError> {
        let is = |what, got, wanted| is("the plan", what, got, wanted);
        is("the KV cache", self.kv.dtype, FLOATS)?;
        is("logits", self.dtype(self.logits), &[Dtype::F32])?;
        is("next_tokens", self.dtype(self.next_tokens), &[Dtype::U32])?;
        aligned("the KV cache", "heads", self.kv.head_dim, self.kv.dtype)?;
        for tensor in &self.tensors {
            aligned(&tensor.name, "rows", tensor.width, tensor.dtype)?;
        }
        let mut weights = self.weights.iter();
        weights.try_for_each(|Weight { name, cols, storage, .. }| {
            aligned(name, "rows", *cols, *storage)
        })
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
            Op::Embedding { table, out } => {
                is("the table", self.weight(table).storage, FLOATS)?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::GatherRows { x, out } => {
                is("x", self.dtype(x), FLOATS)?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::RmsNorm { x, weight, out, .. } => {
                let x = self.dtype(x);
                is("x", x, FLOATS)?;
                is("the weight", self.weight(weight).storage, &[Dtype::F32])?;
                let (any, same) = (FLOATS, [x]);
                is("out", self.dtype(out), if x == Dtype::F32 { any } else { &same })
            }
            Op::Linear(ref linear) => self.check_linear_dtypes(&at, linear),
            Op::Rope { x, .. } => is("x", self.dtype(x), FLOATS),
            Op::KvAppend { k, v, .. } => {
                let k = self.dtype(k);
                is("k", k, &[self.kv.dtype, Dtype::F32])?;
                is("v", self.dtype(v), &[k])
            }
            Op::AppendAttention(AppendAttention { append, attention }) => {
                is("k", self.dtype(append.k), &[self.kv.dtype])?;
                is("v", self.dtype(append.v), &[self.kv.dtype])?;
                is("q", self.dtype(append.q), &[self.kv.dtype])?;
                is("out", self.dtype(attention.out), &[self.kv.dtype])
            }
            Op::RopeAppend(RopeAppend { q, k, v, .. }) => {
                let k = self.dtype(k);
                is("k", k, &[self.kv.dtype, Dtype::F32])?;
                is("q", self.dtype(q), &[k])?;
                is("v", self.dtype(v), &[k])
            }
            Op::Attention(Attention { q, out, .. }) => {
                is("q", self.dtype(q), &[self.kv.dtype])?;
                is("out", self.dtype(out), &[self.kv.dtype])
            }
            Op::AttentionScores(op) | Op::AttentionSoftmax(op) | Op::AttentionValues(op) => {
                is("q", self.dtype(op.attention.q), &[self.kv.dtype])?;
                is("the scores", self.dtype(op.scores), &[Dtype::F32])?;
                is("the probabilities", self.dtype(op.probabilities), &[self.kv.dtype])?;
                is("out", self.dtype(op.attention.out), &[self.kv.dtype])
            }
            Op::SiluMul { gate, up, out } => {
                let gate = self.dtype(gate);
                is("the gate", gate, FLOATS)?;
                is("up", self.dtype(up), &[gate])?;
                is("out", self.dtype(out), &[gate])
            }
            Op::Add { x, residual, out } => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                is("the residual", self.dtype(residual), &[Dtype::F32])?;
                is("out", self.dtype(out), &[Dtype::F32])
            }
            Op::Argmax { x, out } => {
                is("x", self.dtype(x), &[Dtype::F32])?;
                is("out", self.dtype(out), &[Dtype::U32])
            }
        }
    }

    fn check_linear_dtypes(&self, at: &str, op: &Linear) -> Result<(), PlanError> {
        let is = |what, got, wanted: &[Dtype]| is(at, what, got, wanted);
        let &Linear { x, norm, weight, bias, gated, residual, out } = op;
        let vector = |what, id| is(what, self.weight(id).storage, &[Dtype::F32]);
        let (x, weight) = (self.dtype(x), self.weight(weight).storage);
        match norm {
            Some(Norm { weight: norm, .. }) => {
                is("x", x, &[Dtype::F32])?;
                vector("the norm", norm)?;
                is("the weight", weight, FLOATS)?;
            }
            None => {
                is("x", x, FLOATS)?;
                is("the weight", weight, &[x])?;
            }
        }
        is("the weight", weight, &[self.numerics.precision.operand()])?;
        bias.map_or(Ok(()), |bias| vector("the bias", bias))?;
        let out = self.dtype(out);
        match residual {
            Some(residual) => {
                is("the residual", self.dtype(residual), &[Dtype::F32])?;
                is("out", out, &[Dtype::F32])
            }
            None if gated => is("out", out, &[weight]),
            None => is("out", out, &[weight, Dtype::F32]),
        }
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
