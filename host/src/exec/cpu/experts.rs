//! Linear layers of experts, with the gate that may be fused with two of them.

use super::{largest, round};
use crate::plan::{ExpertGate, ExpertLinear, Plan, WeightId};
use cpu_ops::activations::{Rows, RowsMut};
use cpu_ops::weights::StoredWeight;
use cpu_ops::{activation, experts, ops};

/// A linear layer of the experts that tokens have chosen. Gate and up are rounded to the operand's type, as
/// if they were stored.
pub(super) fn expert_layer<'a>(
    plan: &Plan,
    op: &ExpertLinear,
    weight: impl Fn(WeightId) -> &'a StoredWeight,
    (x, chosen, weights): (&Rows, &[u32], Option<&Rows>),
    out: RowsMut,
) {
    let layer = |matrices: WeightId, bias: Option<WeightId>| experts::ExpertLinear {
        weight: weight(matrices),
        bias: bias.map(|bias| weight(bias).vector()),
        num_experts: op.num_experts,
        width: plan.weight(matrices).cols,
        batch_invariant: plan.numerics().batch_invariant,
    };
    let gate = layer(op.weight, op.bias);
    let Some(ExpertGate { activation, up, bias }) = op.gate else {
        if op.residual.is_none() {
            return gate.compute(x, chosen, weights, out);
        }
        // `out` is the residual from the start.
        let (mut sums, width) = (vec![0.0; out.num_rows() * out.width()], out.width());
        gate.compute(x, chosen, weights, RowsMut::dense(&mut sums, width));
        return ops::add(&Rows::dense(&sums, width), out);
    };
    let operand = plan.numerics().precision.operand();
    let (num_rows, width) = (out.num_rows(), out.width());
    let [gate, up] = [gate, layer(up, bias)].map(|layer| {
        let mut products = vec![0.0; num_rows * width];
        layer.compute(x, chosen, None, RowsMut::dense(&mut products, width));
        round(operand, &mut products);
        products
    });
    let [gate, up] = [&gate, &up].map(|rows| Rows::dense(rows, width));
    activation::gate(activation, &gate, &up, largest(operand), out);
}
