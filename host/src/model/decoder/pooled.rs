//! What a model makes of a text that it reads as a whole.

use super::super::pooler::{HeadActivation, HeadLayer, Pooler, Pooling};
use super::Planner;
use super::weights::part;
use crate::plan::{Dtype, Linear, Op, Rows, View};

impl Planner<'_> {
    /// A row of each text, of the residual stream after the last layer.
    pub(super) fn pooled(&mut self, hidden: View, pooler: &Pooler) -> View {
        let mut x = self.builder.activation("pooled", Rows::Logits, hidden.width, Dtype::F32);
        match pooler.rows {
            Pooling::Mean => {
                self.final_normed(hidden);
                self.builder.op(Op::MeanRows { x: hidden, out: x });
            }
            _ => {
                self.builder.op(Op::GatherRows { x: hidden, out: x });
                self.final_normed(x);
            }
        }
        for (index, layer) in pooler.layers.iter().enumerate() {
            x = self.head_layer(&format!("head.{index}"), layer, x);
        }
        x
    }

    /// The final norm of `x` in place, if the model has one.
    fn final_normed(&mut self, x: View) {
        match self.config.encoder {
            None => _ = self.normed(x),
            Some(encoder) if encoder.norm_of_sum => {}
            Some(_) => self.layer_norm("final_norm", self.names.final_norm, (x, x), false),
        }
    }

    fn head_layer(&mut self, label: &str, layer: &HeadLayer, x: View) -> View {
        let operand = match self.precision.operand() {
            Dtype::F32 => x,
            _ => {
                let out = self.operand(&format!("{label}_input"), Rows::Logits, x.width);
                self.builder.op(Op::Cast { x, out });
                out
            }
        };
        let out = self.builder.activation(label, Rows::Logits, layer.width, Dtype::F32);
        let parts = [part(&*layer.name, layer.width)];
        let weight = self.matrix(label, &parts, operand.width);
        let bias = layer.bias.then(|| self.vector(&format!("{label}_bias"), &parts, "bias"));
        self.builder.op(Op::Linear(Linear { bias, ..Linear::new(operand, weight, out) }));
        match layer.activation {
            HeadActivation::None => {}
            HeadActivation::Tanh => self.builder.op(Op::Softcap { x: out, cap: 1.0 }),
            HeadActivation::Gelu => self.builder.op(Op::Gelu { x: out, up: None, out }),
        }
        if let Some(norm) = &layer.norm {
            self.layer_norm(&format!("{label}_norm"), norm, (out, out), false);
        }
        out
    }
}
