//! Which fused operations there are kernels for.

use kernels::gemm::Linear16;

use crate::plan::{Dtype, Linear, Op, Plan};

/// `plan` with all fused that one kernel computes.
pub fn fused(plan: &Plan) -> Plan {
    plan.fused(|op| match op {
        Op::Linear(linear) => has_kernel(plan, linear),
        _ => true,
    })
}

fn has_kernel(plan: &Plan, op: &Linear) -> bool {
    let max_rows = plan.bounds.max_rows(plan.tensor(op.x.tensor).rows);
    let is_half = matches!(plan.weight(op.weight).storage, Dtype::F16 | Dtype::BF16);
    is_half && op.norm.is_some() && Linear16::fuses(max_rows, op.x.width)
}
