//! Which fused operations there are kernels for.

use kernels::gemm::{Linear16, SumOrder};

use super::{Libraries, collective, fp8, sum_order, tiles};
use crate::exec::Gemm;
use crate::plan::{Dtype, Linear, Op, Plan};

/// Elements of f32 that are loaded together: rows start at multiples of them.
const F32_VECTOR: usize = 4;

/// `plan` with all fused that one kernel computes, where libraries do not.
pub fn fused(plan: &Plan, libraries: Libraries) -> Plan {
    let Libraries { gemm, nccl } = libraries;
    plan.fused(|op| match op {
        Op::Linear(Linear { norm: None, silu: None, gated: false, .. }) => true,
        Op::Linear(linear) => gemm == Gemm::Halfwarp && has_kernel(plan, linear),
        // A prompt's keys are many tiles' queries'.
        Op::AppendAttention(_) => plan.decodes(),
        // One with a residual alone is an addition after it.
        Op::AllReduce(op) => op.norm.is_none() || !nccl && collective::fuses(plan, op),
        _ => true,
    })
}

/// There is one for a linear layer of 16-bit operands with a norm before it, a gate after it, or
/// both; in E4M3 for one with a gate before it.
fn has_kernel(plan: &Plan, op: &Linear) -> bool {
    let (x, weight) = (plan.tensor(op.x.tensor), plan.weight(op.weight));
    let is_aligned = [op.x.start, x.width].iter().all(|n| n.is_multiple_of(F32_VECTOR));
    if fp8::is_fp8(weight) {
        return is_aligned && fp8::fuses(plan, op);
    }
    if op.silu.is_some() {
        return false;
    }
    if weight.has_tiles() {
        return is_aligned && op.residual.is_none() && tiles::fuses(plan, op);
    }
    let storage = weight.storage();
    let is_half = matches!(storage, Some(Dtype::F16 | Dtype::BF16));
    is_half
        && is_aligned
        && sum_order(plan) != SumOrder::Tiles
        && op.residual.is_none()
        && Linear16::fuses(plan.bounds.max_rows(x.rows), op.x.width, op.norm.is_some())
}
