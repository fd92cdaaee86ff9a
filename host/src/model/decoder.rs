//! The one decoder: a configuration and its names to a plan.
//!
//! Per layer: norm, packed QKV projection, QK-norm, RoPE, cache append, attention, output projection onto the
//! residual stream; norm, packed gate and up projection, SiLU gate, down projection onto the residual stream.

use super::{Config, names::Names};
use crate::plan::{
    Attention, Bounds, Constant, Dtype, KvLayout, Op, PartTransform, Plan, PlanBuilder, Rows, View,
    Weight, WeightId, WeightPart,
};

/// Makes the plan of the model that `config` describes, with weights of the checkpoint that `names` speaks of.
pub(super) fn plan(
    config: &Config,
    names: &'static Names,
    rope: Constant,
    bounds: Bounds,
    num_pages: usize,
) -> Plan {
    let kv = KvLayout {
        num_layers: config.num_layers(),
        num_kv_heads: config.num_kv_heads,
        head_dim: config.head_dim,
        num_pages,
        dtype: Dtype::F32,
    };
    Decoder { config, names, b: PlanBuilder::new() }.build(rope, bounds, kv)
}

struct Decoder<'a> {
    config: &'a Config,
    names: &'static Names,
    b: PlanBuilder,
}

impl Decoder<'_> {
    fn build(mut self, rope: Constant, bounds: Bounds, kv: KvLayout) -> Plan {
        let (config, names) = (self.config, self.names);
        let rope = self.b.constant(rope);
        let table =
            self.matrix("embedding", names.embedding, config.vocab_size, config.hidden_size);
        let hidden = self.b.activation("hidden", Rows::Tokens, config.hidden_size, Dtype::F32);
        self.b.op(Op::Embedding { table, out: hidden });
        for layer in 0..config.num_layers() {
            let attended = self.attention(layer, hidden, |x| Op::Rope {
                x,
                table: rope,
                head_dim: config.head_dim,
            });
            self.attention_out(layer, attended, hidden);
            self.mlp(layer, hidden);
        }

        let last = self.b.activation("last_hidden", Rows::Logits, config.hidden_size, Dtype::F32);
        self.b.op(Op::GatherRows { x: hidden, out: last });
        let normed = self.norm("final_norm", names.final_norm, last);
        let lm_head = if config.tie_word_embeddings {
            table
        } else {
            self.matrix("lm_head", names.lm_head, config.vocab_size, config.hidden_size)
        };
        let logits = self.b.activation("logits", Rows::Logits, config.vocab_size, Dtype::F32);
        self.b.op(Op::Linear {
            x: normed,
            weight: lm_head,
            bias: None,
            residual: None,
            out: logits,
        });
        let next_tokens = self.b.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
        self.b.op(Op::Argmax { x: logits, out: next_tokens });
        self.b.finish(bounds, kv, logits, next_tokens)
    }

    /// From the residual stream to the attention's output, `[tokens, num_heads * head_dim]`.
    fn attention(&mut self, layer: usize, hidden: View, rope: impl Fn(View) -> Op) -> View {
        let (config, names) = (self.config, self.names);
        let head_dim = config.head_dim;
        let (q_width, kv_width) = (config.num_heads * head_dim, config.num_kv_heads * head_dim);
        let x = self.norm(
            &format!("layers.{layer}.attention_norm"),
            &names.in_layer(layer, names.attention_norm),
            hidden,
        );
        let qkv = self.packed_linear(layer, "qkv", names.qkv, &self.qkv_rows(), config.qkv_bias, x);
        let (q, k) = (qkv.columns(0, q_width), qkv.columns(q_width, kv_width));
        let v = qkv.columns(q_width + kv_width, kv_width);
        if config.qk_norm {
            for (view, label, stem) in [(q, "q_norm", names.q_norm), (k, "k_norm", names.k_norm)] {
                let source = names.in_layer(layer, stem);
                let weight = self.vector(&format!("layers.{layer}.{label}"), &source, head_dim);
                let eps = config.rms_norm_eps;
                self.b.op(Op::RmsNorm { x: view, weight, out: view, eps });
            }
        }
        self.b.op(rope(qkv.columns(0, q_width + kv_width)));
        self.b.op(Op::KvAppend { layer, k, v });
        let name = format!("layers.{layer}.attention");
        let out = self.b.activation(name, Rows::Tokens, q_width, Dtype::F32);
        self.b.op(Op::Attention(Attention {
            layer,
            q,
            out,
            num_heads: config.num_heads,
            num_kv_heads: config.num_kv_heads,
            head_dim,
            softmax_scale: (head_dim as f64).powf(-0.5) as f32,
            window: config.windows[layer],
        }));
        out
    }

    fn attention_out(&mut self, layer: usize, attended: View, hidden: View) {
        let source = self.names.in_layer(layer, self.names.attention_out);
        let label = format!("layers.{layer}.attention_out");
        self.linear_onto(&label, &source, self.config.attention_out_bias, attended, hidden);
    }

    fn mlp(&mut self, layer: usize, hidden: View) {
        let (config, names) = (self.config, self.names);
        let width = config.intermediate_size;
        let x = self.norm(
            &format!("layers.{layer}.mlp_norm"),
            &names.in_layer(layer, names.mlp_norm),
            hidden,
        );
        let parts = [(width, PartTransform::None); 2];
        let gate_up =
            self.packed_linear(layer, "gate_up", names.gate_up, &parts, config.mlp_bias, x);
        let (gate, up) = (gate_up.columns(0, width), gate_up.columns(width, width));
        let out =
            self.b.activation(format!("layers.{layer}.gated"), Rows::Tokens, width, Dtype::F32);
        self.b.op(Op::SiluMul { gate, up, out });
        let source = names.in_layer(layer, names.down);
        self.linear_onto(&format!("layers.{layer}.down"), &source, config.mlp_bias, out, hidden);
    }

    /// Rows of Q, K and V, and what has to be done to them.
    fn qkv_rows(&self) -> [(usize, PartTransform); 3] {
        let part = |num_heads: usize, rotated: bool| {
            let transform = if rotated && self.names.interleaved_rope {
                PartTransform::UnpermuteRope { num_heads }
            } else {
                PartTransform::None
            };
            (num_heads * self.config.head_dim, transform)
        };
        let (num_heads, num_kv_heads) = (self.config.num_heads, self.config.num_kv_heads);
        [part(num_heads, true), part(num_kv_heads, true), part(num_kv_heads, false)]
    }

    /// `norm(x)` with the weight of the checkpoint's `source`.
    fn norm(&mut self, label: &str, source: &str, x: View) -> View {
        let weight = self.vector(label, source, x.width);
        let rows = self.b.rows(x);
        let out = self.b.activation(label, rows, x.width, Dtype::F32);
        self.b.op(Op::RmsNorm { x, weight, out, eps: self.config.rms_norm_eps });
        out
    }

    /// A linear layer whose weight (and bias) is stacked from `stems`: one for each of `parts`, or one that holds
    /// them all.
    fn packed_linear(
        &mut self,
        layer: usize,
        label: &str,
        stems: &[&str],
        parts: &[(usize, PartTransform)],
        bias: bool,
        x: View,
    ) -> View {
        let width = parts.iter().map(|(rows, _)| rows).sum();
        let whole = [(width, PartTransform::None)];
        let parts = if stems.len() == 1 { &whole } else { parts };
        let names = self.names;
        let stacked = |suffix: &str| -> Vec<WeightPart> {
            let part = |(stem, &(rows, transform)): (&&str, &(usize, PartTransform))| WeightPart {
                source: format!("{}.{suffix}", names.in_layer(layer, stem)),
                rows,
                transform,
            };
            stems.iter().zip(parts).map(part).collect()
        };
        let label = format!("layers.{layer}.{label}");
        let weight = self.b.weight(Weight {
            name: label.clone(),
            rows: width,
            cols: x.width,
            storage: Dtype::F32,
            parts: stacked("weight"),
        });
        let bias = bias.then(|| {
            self.b.weight(Weight {
                name: format!("{label}_bias"),
                rows: 1,
                cols: width,
                storage: Dtype::F32,
                parts: stacked("bias"),
            })
        });
        let out = self.b.activation(label, Rows::Tokens, width, Dtype::F32);
        self.b.op(Op::Linear { x, weight, bias, residual: None, out });
        out
    }

    /// `hidden += linear(x)`.
    fn linear_onto(&mut self, label: &str, source: &str, bias: bool, x: View, hidden: View) {
        let weight = self.matrix(label, source, hidden.width, x.width);
        let bias = bias.then(|| {
            let part = whole_part(format!("{source}.bias"), hidden.width);
            self.b.weight(vector(format!("{label}_bias"), hidden.width, part))
        });
        self.b.op(Op::Linear { x, weight, bias, residual: Some(hidden), out: hidden });
    }

    fn matrix(&mut self, label: &str, source: &str, rows: usize, cols: usize) -> WeightId {
        let parts = vec![whole_part(format!("{source}.weight"), rows)];
        self.b.weight(Weight { name: label.into(), rows, cols, storage: Dtype::F32, parts })
    }

    fn vector(&mut self, label: &str, source: &str, len: usize) -> WeightId {
        let part = whole_part(format!("{source}.weight"), len);
        self.b.weight(vector(label.into(), len, part))
    }
}

fn whole_part(source: String, rows: usize) -> WeightPart {
    WeightPart { source, rows, transform: PartTransform::None }
}

fn vector(name: String, len: usize, part: WeightPart) -> Weight {
    Weight { name, rows: 1, cols: len, storage: Dtype::F32, parts: vec![part] }
}
