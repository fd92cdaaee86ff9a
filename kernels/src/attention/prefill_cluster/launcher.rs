//! The launch of prefill for few tiles.

use super::attention_prefill_cluster::{self, Instance};
use super::{BLOCK_M, CLUSTER, HEAD_DIM, NUM_THREADS, SHARED_BYTES};
use crate::attention::{Attention, AttentionElement, AttentionOperands, SeqInputs};
use crate::element::Dtype;
use crate::gemm::{Gpu, Target};
use crate::operand::untyped;
use cuda_std::launch::{Geometry, Launch, LaunchError};

impl Attention {
    /// Whether prefill on `gpu` is by the kernel for few tiles, which splits the keys of each over
    /// two blocks: where the blocks of any step within the bounds run at once. With more tiles the
    /// SMs are busy without that. The choice depends on the batch, by its bounds: so it is never
    /// made if rows are [batch-invariant](Attention::batch_invariant).
    #[must_use]
    pub fn splits_prefill(&self, gpu: Gpu, dtype: Dtype) -> bool {
        // The last tile of each sequence may be partial.
        let seqs = self.max_tokens.min(self.max_seqs);
        let tiles = (self.max_tokens - seqs) / BLOCK_M as usize + seqs;
        let blocks = tiles.saturating_mul(self.num_heads).saturating_mul(CLUSTER as usize);
        !self.batch_invariant
            && gpu.target == Target::Sm90a
            && blocks <= gpu.num_sms
            && dtype != Dtype::F32
            && self.head_dim == HEAD_DIM as usize
            && self.softmax_scale > 0.0
    }

    /// The launch of [`Attention::prefill`] where [`Attention::splits_prefill`].
    pub(in crate::attention) fn prefill_cluster<E: AttentionElement>(
        &self,
        gpu: Gpu,
        seqs: &SeqInputs,
        operands: &AttentionOperands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let args = self.args(operands)?;
        let instance = match E::DTYPE {
            Dtype::F16 => Instance::attention_prefill_cluster_f16_d64,
            Dtype::Bf16 => Instance::attention_prefill_cluster_bf16_d64,
            Dtype::F32 => return Err(self.head_dim_error()),
        };
        // A division takes as long as an MMA. The product is exact: the blocks run at once, so that
        // there are far fewer than 2^16 heads.
        let group_reciprocal = (1u64 << 32).div_ceil(u64::from(args.num_heads / args.num_kv_heads));
        let grid = [self.max_prefill_items(gpu, E::DTYPE) * CLUSTER as usize, 1, 1];
        let geometry = Geometry::new(grid, NUM_THREADS as usize, SHARED_BYTES as usize)?;
        Ok(geometry.map(|geometry| {
            attention_prefill_cluster::Args {
                num_items: seqs.num_prefill_items,
                items: seqs.prefill_items,
                block_table: seqs.block_table,
                max_pages_per_seq: args.max_pages_per_seq,
                q: operands.q.untyped_ptr(),
                q_stride: args.q_stride,
                k_pool: untyped(operands.k_pool),
                v_pool: untyped(operands.v_pool),
                num_kv_heads: args.num_kv_heads,
                group_reciprocal,
                softmax_scale: self.softmax_scale,
                window: args.window,
                out: operands.out.untyped_ptr(),
                out_stride: args.out_stride,
            }
            .launch(instance, geometry)
        }))
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of this kernel.
pub(in super::super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    let is_this = Instance::ALL.iter().any(|instance| instance.symbol() == symbol);
    is_this.then_some(SHARED_BYTES as usize)
}
