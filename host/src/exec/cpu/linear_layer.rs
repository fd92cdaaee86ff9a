//! Linear layers.

use crate::plan::{Dtype, Linear, Plan, WeightId};
use blocks::fp8;
use cpu_ops::activations::{Rows, RowsMut};
use cpu_ops::weights::StoredWeight;
use cpu_ops::{activation, linear, ops, round};
use half::f16;
use rayon::prelude::*;

/// A linear layer with its fused norm and gates; its rows are rounded to E4M3 where the plan says
/// so. `out` is initialised with the residual, if there is one. Intermediates of the fusion are
/// rounded to the operand's type, as if they were stored.
pub(super) fn linear_layer<'a>(
    plan: &Plan,
    op: &Linear,
    weight: impl Fn(WeightId) -> &'a StoredWeight,
    x: &Rows,
    gate: Option<&Rows>,
    out: RowsMut,
) {
    let operand = plan.numerics().precision.operand();
    let multiply = |x: &Rows, mut out: RowsMut| {
        let accumulate = op.residual.is_some();
        linear::linear(x, weight(op.weight), accumulate, plan.numerics().batch_invariant, &mut out);
        if let Some(bias) = op.bias {
            ops::add_bias(weight(bias).vector(), out);
        }
    };
    let normed = op.norm.map(|norm| {
        let mut normed = x.to_vec();
        let rows = RowsMut::dense(&mut normed, x.width());
        ops::rms_norm(weight(norm.weight).vector(), norm.eps, rows);
        round(operand, &mut normed);
        normed
    });
    let gated = op.gate_before.zip(gate).map(|((activation, _), gate)| {
        let mut gated = vec![0.0; x.num_rows() * x.width()];
        let rows = RowsMut::dense(&mut gated, x.width());
        activation::gate(activation, gate, x, largest(operand), rows);
        round(operand, &mut gated);
        gated
    });
    let normed = normed.or(gated);
    let rounded = plan.rounds_rows(op).then(|| {
        let mut rows = normed.clone().unwrap_or_else(|| x.to_vec());
        rows.par_chunks_mut(x.width().max(1)).for_each(fp8::round_row);
        rows
    });
    let made = rounded.or(normed);
    let made = made.as_deref().map(|rows| Rows::dense(rows, x.width()));
    let x = made.as_ref().unwrap_or(x);
    let Some(activation) = op.gate else {
        return multiply(x, out);
    };
    let width = out.width();
    let mut gate_up = vec![0.0; x.num_rows() * 2 * width];
    multiply(x, RowsMut::dense(&mut gate_up, 2 * width));
    round(operand, &mut gate_up);
    let gate_up = Rows::dense(&gate_up, 2 * width);
    let (gate, up) = (gate_up.columns(0, width), gate_up.columns(width, width));
    activation::gate(activation, &gate, &up, largest(operand), out);
}

/// The bound to which a gate's product is clamped, so that it does not overflow to infinity; types
/// with the exponent of f32 need none.
pub(super) fn largest(dtype: Dtype) -> f32 {
    if dtype == Dtype::F16 { f16::MAX.to_f32() } else { f32::INFINITY }
}
