//! Which fused operations there are kernels for.

use super::{Libraries, append, collective, experts, launcher, linear};
use crate::exec::Gemm;
use crate::plan::{Linear, Op, Plan};
use kernels::gemm::Gpu;

/// `plan` with all fused that one kernel computes on `gpu`, where libraries do not.
pub fn fused(plan: &Plan, libraries: Libraries, gpu: Gpu) -> Plan {
    let Libraries { gemm, nccl } = libraries;
    plan.fused(|op| match op {
        Op::Linear(Linear { norm: None, gate_before: None, gate: None, .. }) => true,
        Op::Linear(linear) => gemm == Gemm::Halfwarp && linear::fuses(plan, linear, gpu),
        Op::Route(op) => gemm == Gemm::Halfwarp && experts::fuses_router(plan, op),
        Op::ExpertLinear(op) => experts::fuses(plan, op),
        Op::RopeAppend(op) => append::fuses(plan, op),
        // A prompt's keys are many tiles' queries'.
        Op::AppendAttention(op) => plan.decodes() && launcher(plan, &op.attention).appends(),
        // One with a residual alone is an addition after it.
        Op::AllReduce(op) => op.norm.is_none() || !nccl && collective::fuses(plan, op),
        _ => true,
    })
}
