//! What the tests of plans and of what reads them share.

use super::{
    Activation, Attention, Bounds, Constant, Dtype, Fusion, KvHeads, KvLayout, KvStorage, Linear,
    Numerics, Op, PAGE_SIZE, Plan, PlanBuilder, Precision, Rank, Rows, StateLayout, TensorId, View,
    Weight, WeightId,
};

/// A plan without operations, which tests fill: it is not checked.
pub fn empty(bounds: Bounds, kv: KvLayout) -> Plan {
    let output = View { tensor: TensorId(0), start: 0, width: 1 };
    Plan {
        rank: Rank::ALONE,
        bounds,
        tensors: vec![],
        weights: vec![],
        constants: vec![],
        kv,
        states: StateLayout::default(),
        ops: vec![],
        output,
        next_tokens: Some(output),
        numerics: Numerics::default(),
    }
}

/// `out = silu(gate) * up`.
pub fn silu_mul(gate: View, up: View, out: View) -> Op {
    Op::Gate { activation: Activation::Silu, gate, up, out }
}

impl Plan {
    /// Changes how it computes.
    pub fn set_numerics(&mut self, change: impl FnOnce(&mut Numerics)) {
        change(&mut self.numerics);
    }

    /// Sets what may be fused.
    pub fn set_fusion(&mut self, fusion: Fusion) {
        self.numerics.fusion = fusion;
    }

    /// Makes operations of their own of the residuals of linear layers.
    pub fn unfuse_residuals(&mut self) {
        let mut ops = Vec::new();
        for op in std::mem::take(&mut self.ops) {
            match op {
                Op::Linear(linear @ Linear { residual: Some(residual), out, .. }) => {
                    let x = View { tensor: TensorId(self.tensors.len()), ..out };
                    self.tensors.push(self.tensor(out.tensor).clone());
                    ops.push(Op::Linear(Linear { residual: None, out: x, ..linear }));
                    ops.push(Op::Add { x, residual, out });
                }
                op => ops.push(op),
            }
        }
        self.ops = ops;
    }
}

/// A decoder of one layer.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    /// Types of weights, activations and cache.
    pub precision: Precision,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Query heads.
    pub num_heads: usize,
    /// Heads of keys and values.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// Width of the feed-forward layer.
    pub intermediate_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Whether heads of Q and K are normalised.
    pub qk_norm: bool,
}

impl Decoder {
    /// A small one: activations 0 `hidden`, 1 `attention_norm`, 2 `qkv`, 3 `attention`, 4
    /// `mlp_norm`, 5 `gate_up`, 6 `gated`; weights 0 `embedding`, 1 `attention_norm`, 2 `qkv_bias`,
    /// 3 `qkv`, 4 `attention_out`, 5 `mlp_norm`.
    pub const SMALL: Decoder = Decoder {
        precision: Precision::F16,
        hidden_size: 32,
        num_heads: 4,
        num_kv_heads: 2,
        head_dim: 8,
        intermediate_size: 16,
        vocab_size: 40,
        qk_norm: false,
    };

    /// Qwen2.5-0.5B, and Phi-3 Mini.
    pub const REAL: [Decoder; 2] = [
        Decoder {
            precision: Precision::F16,
            hidden_size: 896,
            num_heads: 14,
            num_kv_heads: 2,
            head_dim: 64,
            intermediate_size: 4864,
            vocab_size: 151_936,
            qk_norm: false,
        },
        Decoder {
            precision: Precision::F16,
            hidden_size: 3072,
            num_heads: 32,
            num_kv_heads: 32,
            head_dim: 96,
            intermediate_size: 8192,
            vocab_size: 32_064,
            qk_norm: false,
        },
    ];

    /// A plan whose context is a page. Operations: 0 embedding, 1 norm, 2 qkv, 3 rope, 4 append, 5
    /// attention, 6 onto the residual, 7 norm, 8 gate and up, 9 gate, 10 onto the residual, 11
    /// gather, 12 norm, 13 logits, 14 sample. With QK-norm two more before 3.
    pub fn plan(&self, max_tokens: usize, max_q_len: usize) -> Plan {
        let &Decoder { hidden_size, num_heads, num_kv_heads, head_dim, intermediate_size, .. } =
            self;
        let (q_width, kv_width) = (num_heads * head_dim, num_kv_heads * head_dim);
        let b = &mut PlanBuilder::new();
        let data = vec![0.0; PAGE_SIZE * head_dim].into();
        let rope = Constant { name: "rope".into(), rows: PAGE_SIZE, cols: head_dim, data };
        let table = b.constant(rope);

        let hidden = b.activation("hidden", Rows::Tokens, hidden_size, Dtype::F32);
        let embedding = self.matrix(b, "embedding", self.vocab_size, hidden_size);
        b.op(Op::Embedding { table: embedding, out: hidden, scale: 1.0 });

        let x = self.norm(b, "attention_norm", hidden);
        let bias = Some(vector(b, "qkv_bias", q_width + 2 * kv_width));
        let qkv = self.linear(b, "qkv", x, bias, q_width + 2 * kv_width);
        let (q, k) = (qkv.columns(0, q_width), qkv.columns(q_width, kv_width));
        let v = qkv.columns(q_width + kv_width, kv_width);
        if self.qk_norm {
            for (x, name) in [(q, "q_norm"), (k, "k_norm")] {
                let weight = vector(b, name, head_dim);
                b.op(Op::RmsNorm { x, weight, out: x, eps: 1e-6 });
            }
        }
        b.op(Op::Rope { x: qkv.columns(0, q_width + kv_width), table, head_dim });
        b.op(Op::KvAppend { layer: 0, k, v });
        let out = self.operand(b, "attention", Rows::Tokens, q_width);
        b.op(Op::Attention(Attention {
            layer: 0,
            q,
            out,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: 0.125,
            causal: true,
            window: None,
            sinks: None,
            softcap: None,
        }));
        self.onto(b, "attention_out", out, hidden);

        let x = self.norm(b, "mlp_norm", hidden);
        let gate_up = self.linear(b, "gate_up", x, None, 2 * intermediate_size);
        let halves = [0, intermediate_size].map(|start| gate_up.columns(start, intermediate_size));
        let out = self.operand(b, "gated", Rows::Tokens, intermediate_size);
        b.op(silu_mul(halves[0], halves[1], out));
        self.onto(b, "down", out, hidden);

        let last = b.activation("last_hidden", Rows::Logits, hidden_size, Dtype::F32);
        b.op(Op::GatherRows { x: hidden, out: last });
        let x = self.norm(b, "final_norm", last);
        let logits = b.activation("logits", Rows::Logits, self.vocab_size, Dtype::F32);
        b.op(Op::Linear(Linear::new(x, embedding, logits)));
        let next_tokens = b.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
        b.op(Op::Sample { x: logits, out: next_tokens });

        let bounds = Bounds {
            max_tokens,
            max_seqs: max_tokens.div_ceil(max_q_len),
            max_q_len,
            max_logit_rows: max_tokens.div_ceil(max_q_len),
            max_kv_len: PAGE_SIZE,
            mixed: false,
        };
        let dtype = self.precision.cache();
        let kv = KvLayout {
            layers: vec![KvHeads { num_kv_heads, head_dim }],
            num_pages: max_tokens,
            windows: None,
            dtype,
            storage: KvStorage::default(),
        };
        std::mem::take(b).finish(&self.precision.into(), bounds, kv, logits, next_tokens).unwrap()
    }

    fn operand(&self, b: &mut PlanBuilder, name: &str, rows: Rows, width: usize) -> View {
        b.activation(name, rows, width, self.precision.operand())
    }

    fn norm(&self, b: &mut PlanBuilder, name: &str, x: View) -> View {
        let (weight, rows) = (vector(b, name, x.width), b.rows(x));
        let out = self.operand(b, name, rows, x.width);
        b.op(Op::RmsNorm { x, weight, out, eps: 1e-6 });
        out
    }

    fn linear(
        &self,
        b: &mut PlanBuilder,
        name: &str,
        x: View,
        bias: Option<WeightId>,
        n: usize,
    ) -> View {
        let weight = self.matrix(b, name, n, x.width);
        let out = self.operand(b, name, Rows::Tokens, n);
        b.op(Op::Linear(Linear { bias, ..Linear::new(x, weight, out) }));
        out
    }

    /// `residual += x * weight^T`.
    fn onto(&self, b: &mut PlanBuilder, name: &str, x: View, residual: View) {
        let weight = self.matrix(b, name, residual.width, x.width);
        let linear = Linear { residual: Some(residual), ..Linear::new(x, weight, residual) };
        b.op(Op::Linear(linear));
    }

    fn matrix(&self, b: &mut PlanBuilder, name: &str, rows: usize, cols: usize) -> WeightId {
        b.weight(Weight::whole(name, rows, cols, self.precision.operand()))
    }
}

fn vector(b: &mut PlanBuilder, name: &str, cols: usize) -> WeightId {
    b.weight(Weight::whole(name, 1, cols, Dtype::F32))
}
