//! Attention: the projections of queries, keys and values, their norms and rotation, and what is
//! made of them.

use super::weights::{Stacked, cols_of, part, rows_of};
use super::{Branch, Planner};
use crate::model::{Config, KvSource, LayerConfig, QkNorm};
use crate::plan::{
    Attention, Dtype, KvHeads, MaterializedAttention, Op, PartTransform, Rows, View, WeightPart,
};
use std::ops::Range;

impl Planner<'_> {
    /// `hidden += attention(norm(hidden))`, or the norm of attention, or of both.
    pub(super) fn attention(&mut self, layer: usize, hidden: View) {
        let norm = Branch {
            label: format!("layers.{layer}.attention_norm"),
            layer,
            name: self.names.attention_norm,
            after: self.names.attention_post_norm,
        };
        let x = self.before(&norm, hidden);
        let out = self.attended(layer, x, hidden.width);
        self.add(&norm, out, hidden);
    }

    /// `attention(x)`, of `width` columns.
    pub(super) fn attended(&mut self, layer: usize, x: View, width: usize) -> View {
        let (config, names) = (self.config, self.names);
        let LayerConfig { window, rope, .. } = config.layers[layer];
        let head_dim = config.heads(layer).head_dim;
        let num_heads = self.shares.heads.len();
        let num_kv_heads = self.shares.kv_heads_of(config, layer).len();
        let q_width = num_heads * head_dim;
        let label = |what: &str| format!("layers.{layer}.{what}");
        let parts = match config.attention_gate {
            true => self.gated_qkv_parts(layer),
            false => self.qkv_parts(layer),
        };
        let qkv = self.operand_linear(&label("qkv"), &parts, config.qkv_bias, x);
        let (q, kv) = self.normed_heads(layer, qkv);
        if let Some(rope) = rope {
            self.rope(layer, rope, q, kv.map(|[k, _]| k), qkv);
        }
        let of_cache = self.cache_of(layer);
        if let Some([k, v]) = kv {
            self.builder.op(Op::KvAppend { layer: of_cache, k, v });
        }
        let out = self.operand(&label("attention"), Rows::Tokens, q_width);
        let sinks = config.has_sinks.then(|| {
            let sinks = part(names.in_layer(layer, names.sinks), config.num_heads);
            self.whole_vector(&label("sinks"), &[rows_of(sinks, &self.shares.heads)])
        });
        let attention = Attention {
            layer: of_cache,
            q,
            out,
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale: config.softmax_scale as f32,
            softcap: config.attention_softcap.map(|cap| cap as f32),
            causal: config.is_causal,
            window,
            sinks,
        };
        match self.score_columns {
            None => self.builder.op(Op::Attention(attention)),
            Some(columns) => self.materialized_attention(layer, attention, num_heads * columns),
        }
        if config.attention_gate {
            let gate = qkv.columns(q_width + 2 * num_kv_heads * head_dim, q_width);
            self.builder.op(Op::SigmoidGate { gate, x: out, out, adds: false });
        }
        let projection = part(names.in_layer(layer, names.attention_out), width);
        let of = (self.shares.heads.start * head_dim, config.num_heads * head_dim);
        let projection = cols_of(projection, of, q_width);
        let bias = config.attention_out_bias;
        self.summand(&label("attention_out"), projection, bias, out, width)
    }

    /// Where the keys and values that `layer` reads are in the cache.
    fn cache_of(&self, layer: usize) -> usize {
        let source = match self.config.layers[layer].kv {
            KvSource::Layer(source) => source,
            _ => layer,
        };
        match self.config.is_causal {
            true => self.config.cached_layers().take_while(|&cached| cached < source).count(),
            false => 0,
        }
    }

    /// Q of this rank's heads and, unless they are another layer's, K and V, normalised where the
    /// model does.
    fn normed_heads(&mut self, layer: usize, qkv: View) -> (View, Option<[View; 2]>) {
        let (config, names) = (self.config, self.names);
        let head_dim = config.heads(layer).head_dim;
        let Projected { q_heads, k_heads } = self.projected(layer);
        let (q_width, k_width) = (q_heads.len() * head_dim, k_heads.len() * head_dim);
        let kv_heads = self.shares.kv_heads_of(config, layer);
        let q = qkv.columns(0, q_width);
        let k = || qkv.columns(q_width, k_width);
        let kv = match config.layers[layer].kv {
            KvSource::Own => {
                let v = qkv.columns(q_width + k_width, kv_heads.len() * head_dim);
                Some([k(), if config.norms_values { self.normed_values(layer, v, v) } else { v }])
            }
            KvSource::Joint => {
                let v = self.operand(&format!("layers.{layer}.values"), Rows::Tokens, k_width);
                Some([k(), self.normed_values(layer, k(), v)])
            }
            KvSource::Layer(_) => None,
        };
        if let Some(over) = config.qk_norm {
            let of_k = kv.map(|[k, _]| (k, "k_norm", names.k_norm));
            for (x, what, name) in [(q, "q_norm", names.q_norm)].into_iter().chain(of_k) {
                let width = if over == QkNorm::PerHead { head_dim } else { x.width };
                let name = self.norm_part(&names.in_layer(layer, name), width);
                let weight = self.vector(&format!("layers.{layer}.{what}"), &[name], "weight");
                self.builder.op(Op::RmsNorm { x, weight, out: x, eps: config.rms_norm_eps });
            }
        }
        let own = |x: View, of: &Range<usize>, own: &Range<usize>| {
            x.columns((own.start - of.start) * head_dim, own.len() * head_dim)
        };
        let kv = kv.map(|[k, v]| [own(k, &k_heads, &kv_heads), v]);
        (own(q, &q_heads, &self.shares.heads), kv)
    }

    /// Heads of Q and of K whose projections this rank computes: those that it attends with, and
    /// those that are normalised together with them.
    fn projected(&self, layer: usize) -> Projected {
        let Config { num_heads, num_kv_heads, qk_norm, .. } = *self.config;
        match qk_norm {
            Some(QkNorm::AllHeads) => Projected { q_heads: 0..num_heads, k_heads: 0..num_kv_heads },
            _ => {
                let k_heads = self.shares.kv_heads_of(self.config, layer);
                Projected { q_heads: self.shares.heads.clone(), k_heads }
            }
        }
    }

    /// Rotates Q, and K if the layer has its own, by rotary embedding `rope`: in one operation,
    /// where they are neighbours on every rank and have one table.
    fn rope(&mut self, layer: usize, rope: usize, q: View, k: Option<View>, qkv: View) {
        let head_dim = self.config.heads(layer).head_dim;
        let (of_q, of_k) = (self.q_ropes[rope], self.k_ropes[rope]);
        let has_others = q.width != self.projected(layer).q_heads.len() * head_dim;
        let mut rotate = |x, table| self.builder.op(Op::Rope { x, table, head_dim });
        match k {
            Some(k) if of_q == of_k && !has_others => {
                rotate(qkv.columns(0, q.width + k.width), of_k);
            }
            _ => {
                rotate(q, of_q);
                k.into_iter().for_each(|k| rotate(k, of_k));
            }
        }
    }

    /// Attention whose rows of scores have `columns` columns.
    fn materialized_attention(&mut self, layer: usize, attention: Attention, columns: usize) {
        let label = |what: &str| format!("layers.{layer}.{what}");
        let scores = self.builder.activation(label("scores"), Rows::Tokens, columns, Dtype::F32);
        let probabilities = self.operand(&label("probabilities"), Rows::Tokens, columns);
        let op = MaterializedAttention { attention, scores, probabilities };
        self.builder.op(Op::AttentionScores(op));
        self.builder.op(Op::AttentionSoftmax(op));
        self.builder.op(Op::AttentionValues(op));
    }

    /// Q, K and V, as far as the layer has them, stacked; the rows of Q and K in the order that
    /// RoPE by halves wants.
    fn qkv_parts(&self, layer: usize) -> Vec<WeightPart> {
        let Config { num_heads, .. } = *self.config;
        let KvHeads { num_kv_heads, head_dim } = self.config.heads(layer);
        let num_parts = match self.config.layers[layer].kv {
            KvSource::Own => 3,
            KvSource::Joint => 2,
            KvSource::Layer(_) => 1,
        };
        let rotated = |num_heads| match self.names.interleaved_rope {
            true => PartTransform::UnpermuteRope { num_heads },
            false => PartTransform::None,
        };
        let stacked = |heads: &Range<usize>, of: usize, transform| Stacked {
            rows: heads.start * head_dim..heads.end * head_dim,
            of: of * head_dim,
            transform,
        };
        let Projected { q_heads, k_heads } = self.projected(layer);
        let kv_heads = self.shares.kv_heads_of(self.config, layer);
        let parts = [
            stacked(&q_heads, num_heads, rotated(q_heads.len())),
            stacked(&k_heads, num_kv_heads, rotated(k_heads.len())),
            stacked(&kv_heads, num_kv_heads, PartTransform::None),
        ];
        self.stacked(layer, self.names.qkv, &parts[..num_parts])
    }

    /// Q, K and V, then the gates of the query heads: the checkpoint has the gate of each head
    /// after its Q.
    fn gated_qkv_parts(&self, layer: usize) -> Vec<WeightPart> {
        let Config { num_heads, num_kv_heads, head_dim, .. } = *self.config;
        let heads = &self.shares.heads;
        let kv_heads = self.shares.kv_heads_of(self.config, layer);
        let names = [0, 1, 2].map(|at| self.names.in_layer(layer, self.names.qkv[at]));
        let of_head = |head: usize, is_gate: usize| {
            let first = (2 * head + is_gate) * head_dim;
            rows_of(part(&*names[0], 2 * num_heads * head_dim), &(first..first + head_dim))
        };
        let kv = |name: &String| {
            let rows = kv_heads.start * head_dim..kv_heads.end * head_dim;
            rows_of(part(&**name, num_kv_heads * head_dim), &rows)
        };
        let q = heads.clone().map(|head| of_head(head, 0));
        let gates = heads.clone().map(|head| of_head(head, 1));
        q.chain(names[1..].iter().map(kv)).chain(gates).collect()
    }
}

/// See [`Planner::projected`].
struct Projected {
    q_heads: Range<usize>,
    k_heads: Range<usize>,
}
