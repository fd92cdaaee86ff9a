//! Where in the model an operation is: for profiles and reports.

use super::{Op, Plan};

impl Plan {
    /// The layer of the model that `op` is of; `None` before the first layer and after the last.
    pub fn op_layer(&self, op: &Op) -> Option<usize> {
        let views = op.writes().into_iter().chain(op.reads());
        let layer = views.filter_map(|view| self.tensor(view.tensor).layer).next();
        layer.or_else(|| op.appends_to())
    }

    /// What `op` computes, within its layer: of a linear layer the name of its weight, such as
    /// `down`, or `logits`; of an addition that of what is added to the residual; of another
    /// operation that of the activation that it writes, or reads if it writes none.
    pub fn op_subject(&self, op: &Op) -> &str {
        let name = match op {
            // The weight may be the embedding's.
            Op::Linear(linear) if linear.out == self.output => "logits",
            Op::Linear(linear) => &self.weight(linear.weight).name,
            Op::ExpertLinear(linear) => &self.weight(linear.weight).name,
            Op::NormAdd { x, .. } | Op::SigmoidGate { x, adds: true, .. } | Op::Add { x, .. } => {
                &self.tensor(x.tensor).name
            }
            _ => {
                let view = op.writes().into_iter().chain(op.reads()).next();
                let view = view.expect("an operation reads or writes an activation");
                &self.tensor(view.tensor).name
            }
        };
        let in_layer = self.op_layer(op).and_then(|layer| {
            name.strip_prefix("layers.")?.strip_prefix(&layer.to_string())?.strip_prefix('.')
        });
        in_layer.unwrap_or(name)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::Decoder;

    #[test]
    fn operations_are_placed_by_what_they_write_then_by_what_they_read() {
        let mut plan = Decoder::SMALL.plan(2, 1);
        for tensor in &mut plan.tensors[1..7] {
            *tensor = crate::Tensor {
                name: format!("layers.12.{}", tensor.name),
                layer: Some(12),
                ..tensor.clone()
            };
        }
        plan.weights[3].name = "layers.12.qkv".to_owned();
        let place = |index: usize| {
            let op = &plan.ops[index];
            (plan.op_layer(op), plan.op_subject(op))
        };
        assert_eq!(place(0), (None, "hidden"));
        assert_eq!(place(1), (Some(12), "attention_norm"));
        assert_eq!(place(2), (Some(12), "qkv"));
        // The append writes the cache alone.
        assert_eq!(place(4), (Some(12), "qkv"));
        // Onto the residual stream, which is of no layer.
        assert_eq!(place(6), (Some(12), "attention_out"));
        assert_eq!(place(11), (None, "last_hidden"));
        assert_eq!(place(13), (None, "logits"));
    }
}
