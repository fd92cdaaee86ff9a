//! The plans of the calls: after a set-up that is not timed, one call after the other.

use super::{Bench, Form, ModelShape, Part};
use crate::bench::kernels::finish;
use crate::bench::random::norm;
use crate::plan::{
    Activation, Attention, AttentionForm, Bounds, Constant, ConstantId, Dtype, KvHeads, KvLayout,
    Linear, MaterializedAttention, Numerics, Op, Plan, PlanBuilder, PlanError, Rows, View, Weight,
    WeightId,
};

/// Added to the mean of squares.
const EPS: f32 = 1e-6;

/// A plan of calls that is being built.
pub struct Calls {
    bench: Bench,
    numerics: Numerics,
    bounds: Bounds,
    plan: PlanBuilder,
}

/// What calls read that is made before them.
struct Inputs {
    /// f32 rows, the residual stream.
    hidden: View,
    /// Operands, one for each copy.
    operands: Vec<View>,
    rope: ConstantId,
}

impl Calls {
    pub fn new(bench: &Bench, form: Form, bounds: Bounds) -> Self {
        let numerics = Numerics {
            fusion: bench.part.fusion(form),
            attention: form.attention(),
            ..bench.precision.into()
        };
        Calls { bench: *bench, numerics, bounds, plan: PlanBuilder::new() }
    }

    /// The plan of `calls` calls, call `i` on copy `i` of the weights and the cache. Each has an
    /// output of its own; that of the first comes out as logits.
    pub fn plan(mut self, calls: usize) -> Result<Plan, PlanError> {
        let Bench { part, copies, shape, .. } = self.bench;
        let inputs = self.inputs();
        let outs: Vec<View> = (0..calls)
            .map(|call| {
                let copy = call % copies;
                match part {
                    Part::NormGemm => self.normed_qkv(inputs.hidden, copy),
                    Part::GemmSwiglu => self.gated(inputs.operands[copy], copy),
                    Part::Attention => self.attention(inputs.operands[copy], copy),
                    Part::Layer => self.layer(inputs.hidden, inputs.rope, copy),
                }
            })
            .collect();
        // The residual stream lives on after the last call.
        let last = self.f32_rows("last", Rows::Logits, inputs.hidden.width);
        self.plan.op(Op::GatherRows { x: inputs.hidden, out: last });
        let heads = KvHeads { num_kv_heads: shape.num_kv_heads, head_dim: shape.head_dim };
        let kv = KvLayout {
            layers: vec![heads; if part.attends() { copies } else { 0 }],
            num_pages: self.bounds.max_seqs * self.bounds.max_pages_per_seq(),
            windows: None,
            dtype: self.numerics.precision.cache(),
            storage: self.numerics.kv,
        };
        finish(self.plan, &self.numerics, self.bounds, kv, outs[0])
    }

    /// A token's row of a table is its residual stream, or what is normed to an operand, or its Q,
    /// K and V.
    fn inputs(&mut self) -> Inputs {
        let Bench { part, copies, shape, .. } = self.bench;
        let ModelShape { hidden_size, head_dim, .. } = shape;
        let width = if part == Part::Attention { shape.qkv_width() } else { hidden_size };
        let table_rows = self.bench.largest_bounds().max_tokens;
        let table = self.plan.weight(Weight::whole("table", table_rows, width, Dtype::F32));
        let hidden = self.f32_rows("hidden", Rows::Tokens, width);
        self.plan.op(Op::Embedding { table, out: hidden, scale: 1.0 });
        let rows = self.bounds.max_kv_len;
        let data = angles(rows, head_dim).into();
        let rope = self.plan.constant(Constant { name: "rope".into(), rows, cols: head_dim, data });
        let dtype = self.numerics.precision.operand();
        let operand = |copy| match part {
            Part::NormGemm | Part::Layer => None,
            Part::GemmSwiglu => Some(norm(&mut self.plan, hidden, copy, dtype)),
            Part::Attention => {
                let (k, v) = shape.k_and_v(hidden);
                self.plan.op(Op::KvAppend { layer: copy, k, v });
                let q = hidden.columns(0, shape.q_width());
                Some(norm(&mut self.plan, q, copy, dtype))
            }
        };
        Inputs { hidden, operands: (0..copies).filter_map(operand).collect(), rope }
    }

    /// `norm(hidden)` through the QKV projection.
    fn normed_qkv(&mut self, hidden: View, copy: usize) -> View {
        let x = self.norm("attention_norm", hidden, copy);
        let n = self.bench.shape.qkv_width();
        let name = format!("ones{copy}.qkv_bias");
        let bias = self.bench.shape.qkv_bias.then(|| self.weight(&name, 1, n, Dtype::F32));
        let (weight, out) = (self.matrix("qkv", n, x.width, copy), self.operand("qkv", n));
        self.plan.op(Op::Linear(Linear { bias, ..Linear::new(x, weight, out) }));
        out
    }

    /// `x` through gate and up, then the gate.
    fn gated(&mut self, x: View, copy: usize) -> View {
        let width = self.bench.shape.intermediate_size;
        let weight = self.matrix("gate_up", 2 * width, x.width, copy);
        let gate_up = self.operand("gate_up", 2 * width);
        self.plan.op(Op::Linear(Linear::new(x, weight, gate_up)));
        let (gate, up) = (gate_up.columns(0, width), gate_up.columns(width, width));
        let out = self.operand("gated", width);
        self.plan.op(Op::Gate { activation: Activation::Silu, gate, up, out });
        out
    }

    fn attention(&mut self, q: View, layer: usize) -> View {
        let ModelShape { num_heads, num_kv_heads, head_dim, .. } = self.bench.shape;
        let out = self.operand("attention", q.width);
        let attention = Attention {
            layer,
            q,
            out,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: (head_dim as f64).powf(-0.5) as f32,
            causal: true,
            window: None,
            sinks: None,
            softcap: None,
        };
        if self.numerics.attention == AttentionForm::Flash {
            self.plan.op(Op::Attention(attention));
            return out;
        }
        let columns = num_heads * self.bounds.score_columns();
        let scores = self.f32_rows("scores", Rows::Tokens, columns);
        let probabilities = self.operand("probabilities", columns);
        let op = MaterializedAttention { attention, scores, probabilities };
        self.plan.op(Op::AttentionScores(op));
        self.plan.op(Op::AttentionSoftmax(op));
        self.plan.op(Op::AttentionValues(op));
        out
    }

    fn layer(&mut self, hidden: View, rope: ConstantId, copy: usize) -> View {
        let shape = self.bench.shape;
        let qkv = self.normed_qkv(hidden, copy);
        let (k, v) = shape.k_and_v(qkv);
        let rotated = qkv.columns(0, shape.q_width() + k.width);
        self.plan.op(Op::Rope { x: rotated, table: rope, head_dim: shape.head_dim });
        self.plan.op(Op::KvAppend { layer: copy, k, v });
        let attention = self.attention(qkv.columns(0, shape.q_width()), copy);
        let hidden = self.added("attention_out", attention, hidden, copy);
        let x = self.norm("mlp_norm", hidden, copy);
        let gated = self.gated(x, copy);
        self.added("down", gated, hidden, copy)
    }

    /// `x` through a linear layer, and the residual.
    fn added(&mut self, name: &str, x: View, residual: View, copy: usize) -> View {
        let weight = self.matrix(name, residual.width, x.width, copy);
        let projected = self.f32_rows(name, Rows::Tokens, residual.width);
        self.plan.op(Op::Linear(Linear::new(x, weight, projected)));
        let out = self.f32_rows("hidden", Rows::Tokens, residual.width);
        self.plan.op(Op::Add { x: projected, residual, out });
        out
    }

    fn norm(&mut self, name: &str, x: View, copy: usize) -> View {
        let weight = self.weight(&format!("ones{copy}.{name}"), 1, x.width, Dtype::F32);
        let out = self.operand(name, x.width);
        self.plan.op(Op::RmsNorm { x, weight, out, eps: EPS });
        out
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize, copy: usize) -> WeightId {
        let storage = self.numerics.precision.operand();
        self.weight(&format!("{name}{copy}"), rows, cols, storage)
    }

    /// The weight of this name, the same in every call.
    fn weight(&mut self, name: &str, rows: usize, cols: usize, storage: Dtype) -> WeightId {
        let known = self.plan.find_weight(name);
        known.unwrap_or_else(|| {
            self.plan.weight(Weight::whole(name.to_owned(), rows, cols, storage))
        })
    }

    fn operand(&mut self, name: &str, width: usize) -> View {
        self.plan.activation(name, Rows::Tokens, width, self.numerics.precision.operand())
    }

    fn f32_rows(&mut self, name: &str, rows: Rows, width: usize) -> View {
        self.plan.activation(name, rows, width, Dtype::F32)
    }
}

impl ModelShape {
    fn q_width(&self) -> usize {
        self.num_heads * self.head_dim
    }

    fn qkv_width(&self) -> usize {
        self.q_width() + 2 * self.num_kv_heads * self.head_dim
    }

    /// K and V of rows of Q, K and V.
    fn k_and_v(&self, qkv: View) -> (View, View) {
        let width = self.num_kv_heads * self.head_dim;
        (qkv.columns(self.q_width(), width), qkv.columns(self.q_width() + width, width))
    }
}

/// The table of RoPE: cosines, then sines of a position.
fn angles(max_kv_len: usize, head_dim: usize) -> Vec<f32> {
    let half = head_dim / 2;
    let angle =
        |position: usize, i: usize| position as f64 * 10_000f64.powf(-(i as f64) / half as f64);
    let row = |position: usize| {
        let angles = (0..half).map(move |i| angle(position, i));
        angles.clone().map(f64::cos).chain(angles.map(f64::sin))
    };
    (0..max_kv_len).flat_map(row).map(|value| value as f32).collect()
}
