//! Gated DeltaNet, and the gates of what branches have made.

use super::{DeviceElement, Launched, Lowering};
use crate::exec::ExecError;
use crate::plan::{CausalConv, DeltaRule, Plan, StateLayout, StepLayout, View};
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use kernels::delta::{StateSeqs, conv, rule};
use kernels::sigmoid_gate::SigmoidGate;

impl Lowering<'_> {
    pub(super) fn sigmoid_gate<E: DeviceElement>(
        &self,
        [gate, x]: [View; 2],
        out: View,
        adds: bool,
    ) -> Result<Launched, ExecError> {
        let is_of_rows = gate.width == 1 && x.width > 1;
        let launcher =
            SigmoidGate { max_rows: self.max_rows(out), width: out.width, is_of_rows, adds };
        let (gate, x, out_rows) = (self.view(gate)?, self.view(x)?, self.view(out)?);
        Ok(launcher.launch::<E>(self.num_rows(out), gate, x, out_rows))
    }

    pub(super) fn causal_conv<E: DeviceElement>(
        &self,
        op: &CausalConv,
    ) -> Result<Result<Vec<Launch>, LaunchError>, ExecError> {
        let &CausalConv { layer, x, weight, out } = op;
        let launcher = conv::CausalConv {
            max_tokens: self.plan.bounds.max_tokens,
            max_seqs: self.plan.bounds.max_seqs,
            decodes: self.plan.decodes(),
            channels: x.width,
            taps: self.plan.weight(weight).cols,
        };
        let [state, _] = self.addresses.states[layer];
        let operands = conv::ConvOperands::<E> {
            x: self.view(x)?,
            weight: self.weight(weight)?,
            state: DevicePtr::new(state),
            out: self.view(out)?,
        };
        let seq_ids = self.input(self.step.seq_ids);
        Ok(launcher.launches(self.num_rows(x), seq_ids, &self.state_seqs(), &operands))
    }

    pub(super) fn delta_rule<E: DeviceElement>(
        &self,
        op: &DeltaRule,
    ) -> Result<Result<Vec<Launch>, LaunchError>, ExecError> {
        let &DeltaRule { layer, q, k, v, gates, rate, bias, out, .. } = op;
        let [_, state] = self.addresses.states[layer];
        let operands = rule::DeltaOperands::<E> {
            q: self.view(q)?,
            k: self.view(k)?,
            v: self.view(v)?,
            gates: self.view(gates)?,
            rate: self.weight(rate)?,
            bias: self.weight(bias)?,
            state: DevicePtr::new(state),
            out: self.view(out)?,
        };
        let workspace = DevicePtr::new(self.addresses.workspace);
        Ok(launcher(self.plan, op).launches(&self.state_seqs(), &operands, workspace))
    }

    fn state_seqs(&self) -> StateSeqs {
        StateSeqs {
            num_seqs: self.input(StepLayout::NUM_SEQS),
            cu_seqlens_q: self.input(self.step.cu_seqlens_q),
            kv_lens: self.input(self.step.kv_lens),
            slots: self.input(self.step_buffer.state_slots),
        }
    }
}

/// Bytes of workspace for `op`.
pub(super) fn workspace_bytes(plan: &Plan, op: &DeltaRule) -> usize {
    launcher(plan, op).workspace_bytes(plan.dtype(op.q))
}

fn launcher(plan: &Plan, op: &DeltaRule) -> rule::DeltaRule {
    let StateLayout { num_heads, k_dim, v_dim, .. } = plan.states;
    // A token's bits in a chunk are not those that it has alone.
    let is_chunked = !plan.decodes() && !plan.numerics().batch_invariant;
    rule::DeltaRule {
        chunked: is_chunked.then_some(plan.bounds.max_tokens),
        max_seqs: plan.bounds.max_seqs,
        num_heads,
        num_k_heads: op.num_k_heads,
        is_tiled: op.is_tiled,
        k_dim,
        v_dim,
    }
}
