//! Operations of encoders.

use super::{RankStep, largest};
use crate::plan::{LayerNorm, Op};
use cpu_ops::{activation, ops};

impl RankStep<'_> {
    /// Runs an operation that encoders alone have.
    pub(super) fn encoder_op(&mut self, op: &Op) {
        let (plan, inputs, frame) = (self.plan, self.inputs, &mut self.frame);
        match *op {
            Op::LayerNorm(LayerNorm { x, weight, bias, eps, out, keeps }) => {
                let weight = self.weights[weight.0].vector();
                let bias = bias.map(|bias| self.weights[bias.0].vector());
                let normed = if keeps { x } else { out };
                frame.write(normed, Some(x), |x, _| ops::layer_norm(weight, bias, eps, x));
                if keeps {
                    frame.write(out, Some(x), |_, _| ());
                }
            }
            Op::AddTable { x, table } => frame.write(x, Some(x), |x, _| {
                ops::add_table(plan.constant(table), &inputs.positions, x);
            }),
            Op::Gelu { x, up, out } => {
                let max = largest(plan.dtype(out));
                frame.write(out, Some(x), |out, others| {
                    activation::gelu(up.map(|up| others.rows(up)).as_ref(), max, out);
                });
            }
            Op::MeanRows { x, out } => frame.write(out, None, |out, others| {
                let seqs = (&inputs.cu_seqlens_q[..], &inputs.logit_rows[..]);
                ops::mean_rows(&others.rows(x), seqs, out);
            }),
            _ => unreachable!("{} is no encoder's alone", op.name()),
        }
    }
}
