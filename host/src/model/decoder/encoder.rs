//! The layers of encoders.
//!
//! BERT's norms are of the sum of the residual stream and a branch, and become the stream: the norm
//! of a layer is what the next branch reads, in the operand's type, and the stream, in f32.
//! ModernBERT's are before the branches, as decoders' are, but before the first.

use super::super::{Config, Encoder};
use super::Planner;
use super::weights::part;
use crate::plan::{Dtype, LayerNorm, Op, Rows, View};

impl Planner<'_> {
    /// From token ids to the residual stream after the last layer.
    pub(super) fn encoder(&mut self, encoder: Encoder) -> View {
        let (config, names) = (self.config, self.names);
        let &Config { vocab_size, hidden_size, .. } = config;
        let table = self.table("embedding", part(names.embedding, vocab_size), hidden_size);
        let hidden = self.builder.activation("hidden", Rows::Tokens, hidden_size, Dtype::F32);
        self.builder.op(Op::Embedding { table, out: hidden, scale: 1.0 });
        if let Some(table) = self.positions {
            self.builder.op(Op::AddTable { x: hidden, table });
        }
        let mut x = self.stream_norm("embedding_norm", names.encoder.embedding_norm, hidden);
        for layer in 0..config.num_layers() {
            self.builder.set_layer(Some(layer));
            let [of_attention, of_mlp] = [names.attention_norm, names.mlp_norm]
                .map(|stem| (format!("layers.{layer}.{stem}"), names.in_layer(layer, stem)));
            if !encoder.norm_of_sum && layer > 0 {
                x = self.branch_norm(&of_attention.0, &of_attention.1, hidden);
            }
            let out = self.attended(layer, x, hidden_size);
            self.builder.op(Op::Add { x: out, residual: hidden, out: hidden });
            x = match encoder.norm_of_sum {
                true => self.stream_norm(&of_attention.0, &of_attention.1, hidden),
                false => self.branch_norm(&of_mlp.0, &of_mlp.1, hidden),
            };
            let out = self.encoder_mlp(layer, encoder.is_gated, x);
            self.builder.op(Op::Add { x: out, residual: hidden, out: hidden });
            if encoder.norm_of_sum {
                x = self.stream_norm(&of_mlp.0, &of_mlp.1, hidden);
            }
        }
        self.builder.set_layer(None);
        hidden
    }

    /// `down(gelu(up(x)))`, or of a gated MLP `down(gelu(input(x)) * gate(x))`.
    fn encoder_mlp(&mut self, layer: usize, is_gated: bool, x: View) -> View {
        let (config, names) = (self.config, self.names);
        let &Config { hidden_size, intermediate_size: width, mlp_bias, .. } = config;
        let label = |what: &str| format!("layers.{layer}.{what}");
        let rows = if is_gated { 2 * width } else { width };
        let up = part(names.in_layer(layer, names.gate_up[0]), rows);
        let up = self.operand_linear(&label("up"), &[up], mlp_bias, x);
        let out = match is_gated {
            true => {
                let out = self.operand(&label("gated"), Rows::Tokens, width);
                let gate = Some(up.columns(width, width));
                self.builder.op(Op::Gelu { x: up.columns(0, width), up: gate, out });
                out
            }
            false => {
                self.builder.op(Op::Gelu { x: up, up: None, out: up });
                up
            }
        };
        let down = part(names.in_layer(layer, names.down), hidden_size);
        self.summand(&label("down"), down, mlp_bias, out, hidden_size)
    }

    /// The norm of the residual stream, which becomes it, as an operand.
    fn stream_norm(&mut self, label: &str, name: &str, hidden: View) -> View {
        if self.precision.operand() == Dtype::F32 {
            self.layer_norm(label, name, (hidden, hidden), false);
            return hidden;
        }
        let out = self.operand(label, Rows::Tokens, hidden.width);
        self.layer_norm(label, name, (hidden, out), true);
        out
    }

    /// The norm of the residual stream, which stays as it is, as an operand.
    fn branch_norm(&mut self, label: &str, name: &str, hidden: View) -> View {
        let out = self.operand(label, Rows::Tokens, hidden.width);
        self.layer_norm(label, name, (hidden, out), false);
        out
    }

    /// `out = norm(x)`.
    pub(super) fn layer_norm(
        &mut self,
        label: &str,
        name: &str,
        (x, out): (View, View),
        keeps: bool,
    ) {
        let whole = [part(name, x.width)];
        let weight = self.vector(label, &whole, "weight");
        let has_bias = self.config.encoder.is_some_and(|encoder| encoder.norm_bias);
        let bias = has_bias.then(|| self.vector(&format!("{label}_bias"), &whole, "bias"));
        let eps = self.config.rms_norm_eps;
        self.builder.op(Op::LayerNorm(LayerNorm { x, weight, bias, eps, out, keeps }));
    }
}
