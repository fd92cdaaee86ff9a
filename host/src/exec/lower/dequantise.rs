//! Attention over pools that are stored in another type than its operands: the pages that a step
//! reads are dequantised into the workspace, one layer after the other, but where decode reads them
//! as they are.

use cuda_std::launch::{DevicePtr, Launch};
use gpu_types::ALIGN_BYTES;
use half::f16;
use kernels::kv_cache::dequantise::{KvDequantise, PageInputs};

use super::element::{DeviceElement, Launched};
use super::{Lowering, cache_dtype, launcher, partials};
use crate::exec::ExecError;
use crate::plan::{Attention, KvHeads, Op, Plan, StepLayout};

/// Bytes of the workspace of an attention: partial results, then the dequantised pools of K and V.
pub(super) fn attention_bytes(plan: &Plan, op: &Op) -> usize {
    let partials = op.attention().map_or(0, |attention| partial_bytes(plan, attention));
    partials + scratch_bytes(plan).iter().sum::<usize>()
}

fn partial_bytes(plan: &Plan, op: &Attention) -> usize {
    (partials(plan, op) * size_of::<f32>()).next_multiple_of(ALIGN_BYTES)
}

/// Bytes of the dequantised pools; 0 of one that attention reads as it is.
fn scratch_bytes(plan: &Plan) -> [usize; 2] {
    let bytes = plan.kv.max_pool_elems() * plan.kv.dtype.block_bytes();
    plan.kv.are_operands().map(|is_operand| match is_operand {
        true => 0,
        false => bytes.next_multiple_of(ALIGN_BYTES),
    })
}

/// The pools that an attention reads, and the launches before it that fill them.
pub(super) struct DensePools<E> {
    pub pools: [DevicePtr<E>; 2],
    pub launches: Vec<Launch>,
}

impl Lowering<'_> {
    /// The pools of K and V that `op` of `attention` reads, as far as it reads them: dequantised of
    /// sequences with at least `min_q_len` new tokens.
    pub(super) fn dense_pools<E: DeviceElement>(
        &self,
        op: &Op,
        attention: &Attention,
        min_q_len: usize,
    ) -> Result<DensePools<E>, ExecError> {
        let kv = &self.plan.kv;
        let KvHeads { num_kv_heads, head_dim } = kv.layers[attention.layer];
        let mut pools = self.pools::<E>(attention.layer)?;
        let mut launches = Vec::new();
        let reads = [!matches!(op, Op::AttentionValues(_)), !matches!(op, Op::AttentionScores(_))];
        let partials = op.attention().map_or(0, |attention| partial_bytes(self.plan, attention));
        let mut scratch = self.addresses.workspace + partials as u64;
        let (stored, bytes) = (self.untyped_pools(attention.layer), scratch_bytes(self.plan));
        for of in 0..2 {
            if bytes[of] == 0 {
                continue;
            }
            pools[of] = DevicePtr::new(scratch);
            scratch += bytes[of] as u64;
            if !reads[of] || min_q_len > self.plan.bounds.max_q_len {
                continue;
            }
            let dequantise = KvDequantise {
                max_seqs: self.plan.bounds.max_seqs,
                max_pages_per_seq: self.plan.bounds.max_pages_per_seq(),
                num_kv_heads,
                head_dim,
                format: kv.types()[of],
                is_keys: of == 0,
                min_q_len,
            };
            let pages = self.page_inputs(attention.layer);
            let launch = dequantise.launch(&pages, stored[of], pools[of]);
            let unsupported = |why: cuda_std::launch::LaunchError| ExecError::Unsupported {
                op: op.name().to_owned(),
                why: why.to_string(),
            };
            launches.extend(launch.map_err(unsupported)?);
        }
        Ok(DensePools { pools, launches })
    }

    /// Whether decode reads the pools of `op` as they are, though they are not operands.
    pub(super) fn decodes_quantised(&self, op: &Attention) -> bool {
        let formats = self.plan.kv.types();
        launcher(self.plan, op).decodes_quantised(cache_dtype(self.plan), formats)
    }

    /// Decode over the pools of `op` as they are.
    pub(super) fn decode_quantised(&self, op: &Attention) -> Result<Launched, ExecError> {
        let pools = self.untyped_pools(op.layer).map(|pool| DevicePtr::new(pool.0));
        let operands = self.attention_operands::<f16>(op, pools)?;
        let workspace = self.attention_workspace();
        let launcher = launcher(self.plan, op);
        let (seqs, formats) = (self.seqs(op.layer, &launcher), self.plan.kv.types());
        Ok(launcher.decode_quantised(self.gpu, &seqs, &operands, formats, &workspace))
    }

    /// The block table of `layer`.
    pub(super) fn block_table(&self, layer: usize) -> DevicePtr<u32> {
        self.input(match self.plan.kv.has_window(layer) {
            true => self.step.window_block_table,
            false => self.step.block_table,
        })
    }

    fn page_inputs(&self, layer: usize) -> PageInputs {
        PageInputs {
            num_seqs: self.input(StepLayout::NUM_SEQS),
            cu_seqlens_q: self.input(self.step.cu_seqlens_q),
            kv_lens: self.input(self.step.kv_lens),
            block_table: self.block_table(layer),
        }
    }
}
