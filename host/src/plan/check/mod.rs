//! Whether the shapes of a plan agree.

use super::{Attention, Constant, Dtype, Op, Plan, Rows, View, Weight, WeightId};

impl Plan {
    /// Checks that every operation's views, weights and tables have shapes that fit each other, and that it reads
    /// nothing that was not written before.
    ///
    /// # Errors
    /// The first thing that does not fit, with the operation.
    pub fn check(&self) -> Result<(), String> {
        for weight in &self.weights {
            check_parts(weight)?;
        }
        let mut written = vec![false; self.tensors.len()];
        for (index, op) in self.ops.iter().enumerate() {
            let at = |what: String| format!("operation {index}, {op:?}: {what}");
            for view in op.reads().into_iter().chain(op.writes()) {
                self.check_view(view).map_err(at)?;
            }
            if let Some(view) = op.reads().into_iter().find(|view| !written[view.tensor.0]) {
                return Err(at(format!("`{}` is read before it is written", self.name(view))));
            }
            op.writes().into_iter().for_each(|view| written[view.tensor.0] = true);
            self.check_in_place(op).map_err(at)?;
            self.check_op(op).map_err(at)?;
        }
        for output in [self.logits, self.next_tokens] {
            ensure(written[output.tensor.0], || "an output is never written".into())?;
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

    /// An operation reads nothing of the activation that it writes, but for what [`Op`] allows: the same view.
    fn check_in_place(&self, op: &Op) -> Result<(), String> {
        let in_place = match *op {
            Op::RmsNorm { x, .. } | Op::Rope { x, .. } => Some(x),
            Op::Linear { residual, .. } => residual,
            _ => None,
        };
        let allowed = |read: View, out: View| {
            read.tensor != out.tensor || (in_place == Some(read) && read == out)
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
            Op::Embedding { table, out } => {
                self.rows_are(out, Rows::Tokens)?;
                same("columns", out.width, self.weight(table).cols)
            }
            Op::RmsNorm { x, weight, out, .. } => {
                self.same_shape(x, out)?;
                same("columns left over", x.width % self.vector(weight)?, 0)
            }
            Op::Linear { x, weight, bias, residual, out } => {
                let weight = self.weight(weight);
                self.same_rows(x, out)?;
                same("columns of x", x.width, weight.cols)?;
                same("columns of out", out.width, weight.rows)?;
                bias.map_or(Ok(()), |bias| same("biases", self.vector(bias)?, weight.rows))?;
                residual.map_or(Ok(()), |residual| self.same_shape(residual, out))
            }
            Op::Rope { x, table, head_dim } => {
                let Constant { rows, cols, data, .. } = self.constant(table);
                self.rows_are(x, Rows::Tokens)?;
                same("columns left over", x.width % head_dim, 0)?;
                same("elements of the table", data.len(), rows * cols)?;
                ensure(*cols <= head_dim && cols % 2 == 0, || format!("{cols} rotary columns"))?;
                same("positions of the table", *rows, self.bounds.max_kv_len)
            }
            Op::KvAppend { layer, k, v } => {
                self.rows_are(k, Rows::Tokens)?;
                self.same_shape(k, v)?;
                same("columns", k.width, self.kv.num_kv_heads * self.kv.head_dim)?;
                ensure(layer < self.kv.num_layers, || format!("no layer {layer} in the cache"))
            }
            Op::Attention(attention) => self.check_attention(&attention),
            Op::SiluMul { gate, up, out } => {
                self.same_shape(gate, up)?;
                self.same_shape(gate, out)
            }
            Op::GatherRows { x, out } => {
                self.rows_are(x, Rows::Tokens)?;
                self.rows_are(out, Rows::Logits)?;
                same("columns", x.width, out.width)
            }
            Op::Argmax { x, out } => {
                self.same_rows(x, out)?;
                same("columns", out.width, 1)?;
                same("element type", self.tensor(out.tensor).dtype, Dtype::U32)
            }
        }
    }

    fn check_attention(&self, op: &Attention) -> Result<(), String> {
        self.rows_are(op.q, Rows::Tokens)?;
        self.same_shape(op.q, op.out)?;
        same("columns", op.q.width, op.num_heads * op.head_dim)?;
        same("KV heads", op.num_kv_heads, self.kv.num_kv_heads)?;
        same("elements of a head", op.head_dim, self.kv.head_dim)?;
        same("query heads left over", op.num_heads % op.num_kv_heads, 0)?;
        ensure(op.window != Some(0), || "a window of no position".into())?;
        let appended =
            |other: &Op| matches!(other, Op::KvAppend { layer, .. } if *layer == op.layer);
        ensure(self.ops.iter().any(appended), || format!("layer {} is never appended", op.layer))
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

/// The parts of a weight fill it: with rows or, where it is a vector, with elements.
fn check_parts(weight: &Weight) -> Result<(), String> {
    let filled: usize = weight.parts.iter().map(|part| part.rows).sum();
    let Weight { name, rows, cols, .. } = weight;
    let fills = filled == *rows || (*rows == 1 && filled == *cols);
    ensure(fills, || format!("weight `{name}` [{rows}, {cols}] of {filled} rows"))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, wanted: T) -> Result<(), String> {
    ensure(got == wanted, || format!("{what}: {got:?} where {wanted:?} are right"))
}

fn ensure(right: bool, error: impl FnOnce() -> String) -> Result<(), String> {
    if right { Ok(()) } else { Err(error()) }
}

#[cfg(test)]
mod tests {
    use super::super::{
        Bounds, ConstantId, KvLayout, PartTransform, PlanBuilder, TensorId, WeightPart,
    };
    use super::*;

    const BOUNDS: Bounds =
        Bounds { max_tokens: 4, max_seqs: 1, max_q_len: 4, max_logit_rows: 1, max_kv_len: 8 };

    fn weight(b: &mut PlanBuilder, rows: usize, cols: usize) -> WeightId {
        let part_rows = if rows == 1 { cols } else { rows };
        let transform = PartTransform::None;
        let parts = vec![WeightPart { source: "w".into(), rows: part_rows, transform }];
        b.weight(Weight { name: "w".into(), rows, cols, storage: Dtype::F32, parts })
    }

    /// Every operation once, over 2 query heads and one KV head of 4 columns.
    fn plan() -> Plan {
        let mut b = PlanBuilder::new();
        let kv = KvLayout {
            num_layers: 1,
            num_kv_heads: 1,
            head_dim: 4,
            num_pages: 1,
            dtype: Dtype::F32,
        };
        let data = vec![0.0; 32].into();
        let table = b.constant(Constant { name: "rope".into(), rows: 8, cols: 4, data });
        let x = b.activation("x", Rows::Tokens, 8, Dtype::F32);
        let qkv = b.activation("qkv", Rows::Tokens, 16, Dtype::F32);
        let last = b.activation("last", Rows::Logits, 8, Dtype::F32);
        let logits = b.activation("logits", Rows::Logits, 10, Dtype::F32);
        let next_tokens = b.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
        let (embedding, norm) = (weight(&mut b, 10, 8), weight(&mut b, 1, 8));
        let (projection, bias) = (weight(&mut b, 16, 8), weight(&mut b, 1, 16));
        let (q, k, v) = (qkv.columns(0, 8), qkv.columns(8, 4), qkv.columns(12, 4));
        b.op(Op::Embedding { table: embedding, out: x });
        b.op(Op::RmsNorm { x, weight: norm, out: x, eps: 1e-5 });
        b.op(Op::Linear { x, weight: projection, bias: Some(bias), residual: None, out: qkv });
        b.op(Op::Rope { x: qkv.columns(0, 12), table, head_dim: 4 });
        b.op(Op::KvAppend { layer: 0, k, v });
        b.op(Op::Attention(Attention {
            layer: 0,
            q,
            out: x,
            num_heads: 2,
            num_kv_heads: 1,
            head_dim: 4,
            softmax_scale: 0.5,
            window: None,
        }));
        b.op(Op::SiluMul { gate: q, up: qkv.columns(8, 8), out: x });
        b.op(Op::GatherRows { x, out: last });
        let (weight, bias, residual) = (embedding, None, None);
        b.op(Op::Linear { x: last, weight, bias, residual, out: logits });
        b.op(Op::Argmax { x: logits, out: next_tokens });
        b.finish(BOUNDS, kv, logits, next_tokens)
    }

    /// Eight columns of an activation of [`plan`].
    fn view(tensor: usize, start: usize) -> View {
        View { tensor: TensorId(tensor), start, width: 8 }
    }

    /// What the error has to say, and how the plan is spoiled.
    type Fault = (&'static str, fn(&mut Plan));

    #[test]
    fn rejects_what_does_not_fit() {
        assert_eq!(plan().check(), Ok(()));
        let faults: &[Fault] = &[
            ("no part of an activation", |p| p.tensors[1].width = 15),
            ("read before it is written", |p| _ = p.ops.remove(0)),
            ("never written", |p| _ = p.ops.pop()),
            ("read while it is written", |p| {
                let (gate, up) = (view(1, 0), view(1, 8));
                p.ops[6] = Op::SiluMul { gate, up, out: gate };
            }),
            ("read while it is written", |p| {
                p.ops[1] =
                    Op::RmsNorm { x: view(1, 0), weight: WeightId(1), out: view(1, 8), eps: 0.0 };
                p.ops.swap(1, 2);
            }),
            ("weight `w`", |p| p.weights[2].parts[0].rows = 15),
            ("columns: 8 where 7", |p| p.weights[0].cols = 7),
            ("columns left over", |p| (p.weights[1].cols, p.weights[1].parts[0].rows) = (7, 7)),
            ("rows of a vector", |p| p.weights[1].rows = 8),
            ("biases", |p| (p.weights[3].cols, p.weights[3].parts[0].rows) = (15, 15)),
            ("columns of out", |p| (p.weights[2].rows, p.weights[2].parts[0].rows) = (15, 15)),
            ("positions of the table", |p| p.bounds.max_kv_len = 9),
            ("elements of the table", |p| p.constants[ConstantId(0).0].rows = 9),
            ("no layer 0", |p| p.kv.num_layers = 0),
            ("columns: 4 where 8", |p| p.kv.num_kv_heads = 2),
            ("never appended", |p| _ = p.ops.remove(4)),
            ("rows: Logits where Tokens", |p| p.tensors[0].rows = Rows::Logits),
            ("element type", |p| p.tensors[4].dtype = Dtype::F32),
        ];
        for (expected, fault) in faults {
            let mut plan = plan();
            fault(&mut plan);
            let error = plan.check().expect_err(expected);
            assert!(error.contains(expected), "`{error}` does not say `{expected}`");
        }
    }
}
