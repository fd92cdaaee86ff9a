//! Attention in three operations.

use cuda_std::launch::DevicePtr;
use kernels::attention::materialized::{MaterializedAttention, TokenInputs};

use super::Lowering;
use super::element::{DeviceElement, Launched};
use crate::exec::ExecError;
use crate::plan::{self, Attention, StepLayout};

impl Lowering<'_> {
    /// [`Op::AttentionScores`](plan::Op::AttentionScores).
    pub(super) fn attention_scores<E: DeviceElement>(
        &self,
        op: &plan::MaterializedAttention,
        [k_pool, _]: [DevicePtr<E>; 2],
    ) -> Result<Launched, ExecError> {
        let (q, scores) = (self.view(op.attention.q)?, self.view(op.scores)?.ptr);
        Ok(self.materialized(op).scores(&self.token_inputs(op), q, k_pool, scores))
    }

    /// [`Op::AttentionSoftmax`](plan::Op::AttentionSoftmax).
    pub(super) fn attention_softmax<E: DeviceElement>(
        &self,
        op: &plan::MaterializedAttention,
    ) -> Result<Launched, ExecError> {
        let scores = self.view(op.scores)?.ptr;
        let probabilities = self.view::<E>(op.probabilities)?.ptr;
        let sinks = self.sinks(&op.attention)?;
        Ok(self.materialized(op).softmax(&self.token_inputs(op), scores, probabilities, sinks))
    }

    /// [`Op::AttentionValues`](plan::Op::AttentionValues).
    pub(super) fn attention_values<E: DeviceElement>(
        &self,
        op: &plan::MaterializedAttention,
        [_, v_pool]: [DevicePtr<E>; 2],
    ) -> Result<Launched, ExecError> {
        let (probabilities, out) = (self.view(op.probabilities)?.ptr, self.view(op.attention.out)?);
        Ok(self.materialized(op).values(&self.token_inputs(op), probabilities, v_pool, out))
    }

    fn materialized(&self, op: &plan::MaterializedAttention) -> MaterializedAttention {
        let Attention { num_heads, num_kv_heads, head_dim, .. } = op.attention;
        let Attention { softmax_scale, softcap, causal, window, .. } = op.attention;
        MaterializedAttention {
            max_tokens: self.max_rows(op.scores),
            max_pages_per_seq: self.plan.bounds.max_pages_per_seq(),
            num_heads,
            num_kv_heads,
            head_dim,
            softmax_scale,
            softcap,
            causal,
            window,
        }
    }

    fn token_inputs(&self, op: &plan::MaterializedAttention) -> TokenInputs {
        TokenInputs {
            num_tokens: self.input(StepLayout::NUM_TOKENS),
            seq_ids: self.input(self.step.seq_ids),
            cu_seqlens_q: self.input(self.step.cu_seqlens_q),
            kv_lens: self.input(self.step.kv_lens),
            block_table: self.block_table(op.attention.layer),
        }
    }
}
