//! Which fused operations the kernels have.

use crate::plan::{Op, Plan};

/// `plan` with all fused that a kernel computes in one launch.
pub fn fused(plan: &Plan) -> Plan {
    plan.fused(|op| !matches!(op, Op::Linear(_)))
}
