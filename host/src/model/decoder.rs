//! The one decoder: a configuration and its names to a plan.
//!
//! Per layer: norm, packed QKV projection, QK-norm, RoPE, cache append, attention, output
//! projection, addition to the residual stream; norm, packed gate and up projection, gate,
//! down projection, addition to the residual stream. Executors fuse them ([`Plan::fused`]). The
//! norms of some families come before the additions instead, or there too.
//!
//! Multipliers cost nothing but that of the embedding. A branch is added as it is, and the residual
//! stream kept divided by the residual multiplier `m`: a norm with `eps / m^2` has the same output.
//! That of the logits is in the weight of the final norm, that of the scores in attention's scale,
//! and the 1 that some families add to the weights of norms in these.
//!
//! The plan of a [`Rank`](crate::plan::Rank) is what one device of several computes: heads, columns
//! of the MLP and logits are divided ([`Shares`]); the embedding table is whole on each. What a
//! rank has of a sum over heads or columns goes through an [`Op::AllReduce`], in the type of the
//! operands.
//!
//! A [`Precision`] says what is stored in 16 bits: what linear layers and attention read. The
//! residual stream, which grows from layer to layer, is in f32 and added to in f32
//! (docs/precision.md).

mod attention;
mod delta;
mod encoder;
mod experts;
mod gemma4;
mod pooled;
mod weights;

use self::weights::{Stacked, cols_of, num_rows, part, rows_of, scaled};
use super::shares::Shares;
use super::{Config, Decoder, NormPlacement, RopeTables, names::Names};
use crate::plan::{
    AllReduce, AttentionForm, Bounds, CacheSize, ConstantId, Dtype, KvHeads, KvLayout, Linear,
    Numerics, Op, PartTransform, Plan, PlanBuilder, PlanError, PlanOutput, Precision, Rows, View,
    WeightId, WeightPart, WeightSlice, WeightSource, WindowPools,
};
use half::bf16;
use std::ops::Range;

/// Makes the plan of `rank`'s share of `model`.
pub(super) fn plan(
    model: &Decoder,
    shares: &Shares,
    tables: RopeTables,
    numerics: &Numerics,
    output: PlanOutput,
    bounds: Bounds,
    cache: CacheSize,
) -> Result<Plan, PlanError> {
    let Decoder { config, names, checkpoint, .. } = model;
    let precision = numerics.precision;
    let heads = |layer| KvHeads {
        num_kv_heads: shares.kv_heads_of(config, layer).len(),
        head_dim: config.heads(layer).head_dim,
    };
    let kv = KvLayout {
        layers: match config.is_causal {
            true => config.cached_layers().map(heads).collect(),
            // A text is read in one step: no layer needs those of another.
            false => vec![heads(0)],
        },
        num_pages: cache.num_pages,
        windows: config.window().map(|_| WindowPools {
            layers: config
                .cached_layers()
                .map(|layer| config.layers[layer].window.is_some())
                .collect(),
            num_pages: cache.num_window_pages,
        }),
        dtype: precision.cache(),
        storage: numerics.kv,
    };
    let score_columns = match numerics.attention {
        AttentionForm::Flash => None,
        AttentionForm::Materialized => Some(bounds.score_columns()),
    };
    let mut builder = PlanBuilder::of_rank(shares.rank);
    let RopeTables { of_keys, of_queries, .. } = tables;
    let k_ropes: Vec<_> = of_keys.into_iter().map(|table| builder.constant(table)).collect();
    let q_ropes: Vec<_> = of_queries.into_iter().map(|table| builder.constant(table)).collect();
    let mut planner = Planner {
        config,
        names,
        checkpoint,
        shares,
        numerics,
        precision,
        score_columns,
        q_ropes: if q_ropes.is_empty() { k_ropes.clone() } else { q_ropes },
        k_ropes,
        positions: None,
        builder,
    };
    planner.positions = model.positions.clone().map(|table| planner.builder.constant(table));
    planner.builder.set_states(planner.states(cache.num_states));
    if !config.is_causal {
        let hidden = match config.encoder {
            Some(encoder) => planner.encoder(encoder),
            None => planner.layers().1,
        };
        let output = planner.pooled(hidden, &model.pooler);
        return planner.builder.finish(numerics, bounds, kv, output, None);
    }
    let (table, hidden) = planner.layers();
    let hidden = planner.wanted(hidden);
    let (output, next_tokens) = match output {
        PlanOutput::Logits => planner.logits(table, hidden),
        PlanOutput::Hidden | PlanOutput::Pooled => (planner.normed(hidden), None),
    };
    planner.builder.finish(numerics, bounds, kv, output, next_tokens)
}

struct Planner<'a> {
    config: &'a Config,
    names: &'a Names,
    checkpoint: &'a dyn WeightSource,
    shares: &'a Shares,
    numerics: &'a Numerics,
    precision: Precision,
    /// Columns of a head's scores, where attention stores them.
    score_columns: Option<usize>,
    /// Tables of Q, by the index of the rotary embedding.
    q_ropes: Vec<ConstantId>,
    /// Tables of K, likewise.
    k_ropes: Vec<ConstantId>,
    /// Learned positions.
    positions: Option<ConstantId>,
    builder: PlanBuilder,
}

impl Planner<'_> {
    /// From token ids to the hidden states; with the embedding table.
    fn layers(&mut self) -> (WeightId, View) {
        let (config, names) = (self.config, self.names);
        let Config { vocab_size, hidden_size, .. } = *config;
        let table = self.table("embedding", part(names.embedding, vocab_size), hidden_size);
        let residual = self.precision.residual();
        let hidden = self.builder.activation("hidden", Rows::Tokens, hidden_size, residual);
        self.builder.op(Op::Embedding { table, out: hidden, scale: self.embedding_scale() });
        let inputs = config.per_layer_inputs.map(|inputs| self.layer_inputs(inputs, hidden));
        for layer in 0..config.num_layers() {
            self.builder.set_layer(Some(layer));
            match config.delta.filter(|_| config.layers[layer].is_delta) {
                Some(delta) => self.delta(layer, delta, hidden),
                None => self.attention(layer, hidden),
            }
            self.mlp(layer, hidden);
            if let Some(inputs) = inputs {
                self.add_layer_input(layer, inputs, hidden);
            }
            if config.scales_layers {
                self.scale_layer(layer, hidden);
            }
        }
        self.builder.set_layer(None);
        (table, hidden)
    }

    /// The hidden states of the wanted rows.
    fn wanted(&mut self, hidden: View) -> View {
        let residual = self.precision.residual();
        let last = self.builder.activation("last_hidden", Rows::Logits, hidden.width, residual);
        self.builder.op(Op::GatherRows { x: hidden, out: last });
        last
    }

    /// What multiplies the rows of the embedding.
    fn embedding_scale(&self) -> f32 {
        let Config { embedding_multiplier, residual_multiplier, .. } = *self.config;
        self.table_scale(self.names.embedding, embedding_multiplier / residual_multiplier)
    }

    /// `scale` of the rows of table `name`, rounded as the models were trained.
    fn table_scale(&self, name: &str, scale: f64) -> f32 {
        let scale = scale as f32;
        let stored = self.checkpoint.stored(&format!("{name}.weight"));
        let is_exact = matches!(stored, Some(Dtype::F32 | Dtype::F16));
        match self.config.rounds_embedding_multiplier && !is_exact {
            true => bf16::from_f32(scale).to_f32(),
            false => scale,
        }
    }

    /// `norm(hidden)` in place, as it is.
    fn normed(&mut self, hidden: View) -> View {
        let name = self.norm_part(self.names.final_norm, hidden.width);
        let weight = self.vector("final_norm", &[name], "weight");
        let eps = self.stream_eps();
        self.builder.op(Op::RmsNorm { x: hidden, weight, out: hidden, eps });
        hidden
    }

    /// The logits, and a token drawn of each row of them.
    fn logits(&mut self, table: WeightId, hidden: View) -> (View, Option<View>) {
        let (config, names) = (self.config, self.names);
        let Config { vocab_size, hidden_size, .. } = *config;
        let final_norm = self.norm_part(names.final_norm, hidden_size);
        let x = self.norm("final_norm", scaled(final_norm, config.logits_scaling), hidden);
        let Shares { rank, ref tokens, .. } = *self.shares;
        let (is_tied, is_shared) = (config.tie_word_embeddings, !rank.is_alone());
        let name = if is_tied { names.embedding } else { names.lm_head };
        let weight = match is_tied && !is_shared {
            true => table,
            false => self.table("lm_head", rows_of(part(name, vocab_size), tokens), hidden_size),
        };
        let mut logits =
            |name: &str, width| self.builder.activation(name, Rows::Logits, width, Dtype::F32);
        let own = is_shared.then(|| logits("own_logits", tokens.len()));
        let logits = logits("logits", vocab_size);
        let product = own.unwrap_or(logits);
        self.builder.op(Op::Linear(Linear::new(x, weight, product)));
        if let Some(cap) = config.logits_softcap {
            self.builder.op(Op::Softcap { x: product, cap: cap as f32 });
        }
        if let Some(own) = own {
            let first_column = tokens.start;
            self.builder.op(Op::AllGather { x: own, first_column, out: logits });
        }
        let next_tokens = self.builder.activation("next_tokens", Rows::Logits, 1, Dtype::U32);
        self.builder.op(Op::Sample { x: logits, out: next_tokens });
        (logits, Some(next_tokens))
    }

    /// `hidden += mlp(norm(hidden))`, or the norm of `mlp(hidden)`; with experts that of a token's
    /// experts, and of the shared one.
    fn mlp(&mut self, layer: usize, hidden: View) {
        let (config, names) = (self.config, self.names);
        let norm = Branch {
            label: format!("layers.{layer}.mlp_norm"),
            layer,
            name: names.mlp_norm,
            after: names.mlp_post_norm,
        };
        let x = self.before(&norm, hidden);
        let experts = config.experts.filter(|_| config.layers[layer].has_experts);
        let Some(experts) = experts.filter(|experts| !experts.beside_mlp) else {
            let mut out = self.gated_mlp(layer, self.dense_mlp(layer), x, hidden.width);
            if let Some(experts) = experts {
                out = self.add_experts(layer, experts, hidden, out);
            }
            return self.add(&norm, out, hidden);
        };
        let out = self.experts(layer, experts, [x; 2], hidden.width);
        self.add(&norm, out, hidden);
        if let Some(of) =
            experts.shared_intermediate_size.filter(|_| !self.joins_shared(layer, &experts))
        {
            let mlp = Mlp {
                prefix: "shared_",
                gate_up: &names.experts.shared_gate_up,
                down: names.experts.shared_down,
                columns: self.shares.shared_columns.clone(),
                of,
                bias: false,
            };
            let out = self.gated_mlp(layer, mlp, x, hidden.width);
            if experts.shared_gate {
                self.gate_shared(layer, x, out);
            }
            self.add(&norm, out, hidden);
        }
    }

    /// The MLP of `layer` that is none of experts.
    fn dense_mlp(&self, layer: usize) -> Mlp<'static> {
        let (config, names) = (self.config, self.names);
        let of = config.intermediate_size_of(layer);
        let columns = self.shares.columns_of(config, layer);
        let (gate_up, down) = (names.gate_up, names.down);
        Mlp { prefix: "", gate_up, down, columns, of, bias: config.mlp_bias }
    }

    /// `down(activation(gate(x)) * up(x))`, of `width` columns.
    fn gated_mlp(&mut self, layer: usize, mlp: Mlp, x: View, width: usize) -> View {
        let Mlp { prefix, gate_up, down, columns, of, bias } = mlp;
        let label = |what: &str| format!("layers.{layer}.{prefix}{what}");
        let half = Stacked { rows: columns.clone(), of, transform: PartTransform::None };
        let parts = self.stacked(layer, gate_up, &[half.clone(), half]);
        let gate_up = self.operand_linear(&label("gate_up"), &parts, bias, x);
        let [gate, up] = [0, columns.len()].map(|start| gate_up.columns(start, columns.len()));
        let out = self.operand(&label("gated"), Rows::Tokens, columns.len());
        self.builder.op(Op::Gate { activation: self.config.activation, gate, up, out });
        let down = part(self.names.in_layer(layer, down), width);
        let down = cols_of(down, (columns.start, of), columns.len());
        self.summand(&label("down"), down, bias, out, width)
    }

    /// `x` through a linear layer stacked from `parts`, to a new operand.
    fn operand_linear(&mut self, label: &str, parts: &[WeightPart], bias: bool, x: View) -> View {
        let out = self.operand(label, Rows::Tokens, num_rows(parts));
        self.linear(label, parts, bias, x, out);
        out
    }

    /// The type of sums over all ranks.
    fn sums(&self) -> Dtype {
        match self.shares.rank.is_alone() {
            true => self.precision.residual(),
            false => self.precision.operand(),
        }
    }

    /// `linear(x)` of `width` columns, of which every rank has a summand; the bias is the first
    /// one's.
    fn summand(
        &mut self,
        label: &str,
        part: WeightPart,
        bias: bool,
        x: View,
        width: usize,
    ) -> View {
        let Shares { rank, .. } = *self.shares;
        let out = self.builder.activation(label, Rows::Tokens, width, self.sums());
        self.linear(label, &[part], bias && rank.index == 0, x, out);
        self.all_reduce(out);
        out
    }

    /// What a branch reads: the norm of the residual stream, if that comes first.
    fn before(&mut self, norm: &Branch, hidden: View) -> View {
        match self.config.norms {
            NormPlacement::Before | NormPlacement::Around => {
                let name = self.names.in_layer(norm.layer, norm.name);
                self.norm(&norm.label, self.norm_part(&name, hidden.width), hidden)
            }
            NormPlacement::After => self.as_operand(&format!("{}_input", norm.label), hidden),
        }
    }

    /// `x`, rounded to the operand type if it is of another.
    fn as_operand(&mut self, label: &str, x: View) -> View {
        if self.precision.operand() == self.builder.dtype(x) {
            return x;
        }
        let out = self.operand(label, self.builder.rows(x), x.width);
        self.builder.op(Op::Cast { x, out });
        out
    }

    /// `hidden += x`, or the norm of `x`, if that comes last.
    fn add(&mut self, norm: &Branch, x: View, hidden: View) {
        let after = match self.config.norms {
            NormPlacement::Before => None,
            NormPlacement::After => Some((norm.name, norm.label.clone())),
            NormPlacement::Around => Some((norm.after, format!("{}_after", norm.label))),
        };
        if let Some((name, label)) = after {
            let name = self.norm_part(&self.names.in_layer(norm.layer, name), x.width);
            let weight = self.vector(&label, &[name], "weight");
            self.builder.op(Op::RmsNorm { x, weight, out: x, eps: self.config.rms_norm_eps });
        }
        self.builder.op(Op::Add { x, residual: hidden, out: hidden });
    }

    /// `x` becomes the sum of all ranks' `x`.
    fn all_reduce(&mut self, x: View) {
        if !self.shares.rank.is_alone() {
            self.builder.op(Op::AllReduce(AllReduce::new(x)));
        }
    }

    fn linear(&mut self, label: &str, parts: &[WeightPart], bias: bool, x: View, out: View) {
        let weight = self.matrix(label, parts, x.width);
        let bias = bias.then(|| {
            // Of a matrix that is divided by columns every summand has all of it.
            let whole = |part: &WeightPart| match part.slice {
                WeightSlice::Cols { .. } => {
                    WeightPart { slice: WeightSlice::Whole, ..part.clone() }
                }
                _ => part.clone(),
            };
            let parts: Vec<WeightPart> = parts.iter().map(whole).collect();
            self.vector(&format!("{label}_bias"), &parts, "bias")
        });
        self.builder.op(Op::Linear(Linear { bias, ..Linear::new(x, weight, out) }));
    }

    /// `norm(hidden)`, with the weight in `part`.
    fn norm(&mut self, label: &str, part: WeightPart, hidden: View) -> View {
        let weight = self.vector(label, &[part], "weight");
        let out = self.operand(label, self.builder.rows(hidden), hidden.width);
        self.builder.op(Op::RmsNorm { x: hidden, weight, out, eps: self.stream_eps() });
        out
    }

    /// What is added to the mean of squares of the residual stream.
    fn stream_eps(&self) -> f32 {
        let Config { rms_norm_eps, residual_multiplier, .. } = *self.config;
        (f64::from(rms_norm_eps) / residual_multiplier.powi(2)) as f32
    }

    /// An activation that a linear layer, attention or the gate reads.
    fn operand(&mut self, label: &str, rows: Rows, width: usize) -> View {
        self.builder.activation(label, rows, width, self.precision.operand())
    }
}

/// An MLP without experts.
struct Mlp<'a> {
    /// Prefix of its names in the plan.
    prefix: &'static str,
    /// As [`Names::gate_up`].
    gate_up: &'a [&'static str],
    down: &'static str,
    /// What this rank has of the gated rows.
    columns: Range<usize>,
    /// Columns of the gated rows.
    of: usize,
    bias: bool,
}

/// The norm of a branch, by its names in the plan and in the checkpoint.
struct Branch {
    label: String,
    layer: usize,
    name: &'static str,
    /// The norm after the branch, where there is one before it too.
    after: &'static str,
}
