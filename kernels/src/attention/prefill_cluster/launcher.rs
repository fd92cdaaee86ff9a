//! The launch of prefill for few tiles.

use super::fp8::{Fast, Strict};
use super::operands::{Halves, Operands};
use super::{BLOCK_M, CLUSTER, HEAD_DIM, shared_bytes};
use super::{attention_prefill_cluster, attention_prefill_cluster_fp8};
use crate::Rows;
use crate::attention::launcher::Params;
use crate::attention::sm90::fp8::Mode;
use crate::attention::{Attention, AttentionElement, AttentionOperands, SeqInputs};
use crate::element::Dtype;
use crate::gemm::{Gpu, Target};
use crate::operand::{is_aligned, untyped};
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError};
use half::{bf16, f16};

/// The operands of attention in E4M3; a value is its quant times the head's scale.
#[derive(Clone, Copy, Debug)]
pub struct Fp8Operands {
    /// `[tokens, num_heads * head_dim]`.
    pub q: Rows<E4m3>,
    /// The layer's pool of keys.
    pub k_pool: DevicePtr<E4m3>,
    /// The layer's pool of values `[num_pages, num_kv_heads, head_dim, PAGE_SIZE]`, the positions
    /// of a page in the order of
    /// [`storage_index`](crate::attention::sm90::fp8::storage_index).
    pub v_pool: DevicePtr<E4m3>,
    /// `[num_heads]`, from 0 on.
    pub q_scale: DevicePtr<f32>,
    /// `[num_kv_heads]`, from 0 on.
    pub k_scale: DevicePtr<f32>,
    /// `[num_kv_heads]`, from 0 on.
    pub v_scale: DevicePtr<f32>,
    /// `[tokens, num_heads * head_dim]`.
    pub out: Rows<f16>,
}

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
            && !self.has_sinks
            && self.softcap.is_none()
            && gpu.target == Target::Sm90a
            && blocks <= gpu.num_sms
            && dtype.is_half()
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
        use attention_prefill_cluster::Instance::*;
        let params = self.params(operands)?;
        let (instance, shared_bytes) = match E::DTYPE {
            Dtype::F16 => (attention_prefill_cluster_f16_d64, shared_bytes::<Halves<f16>>()),
            Dtype::BF16 => (attention_prefill_cluster_bf16_d64, shared_bytes::<Halves<bf16>>()),
            _ => return Err(self.head_dim_error()),
        };
        let geometry = self.cluster_geometry(gpu, Halves::<f16>::NUM_THREADS, shared_bytes)?;
        Ok(geometry.map(|geometry| {
            attention_prefill_cluster::Args {
                num_items: seqs.num_prefill_items,
                items: seqs.prefill_items,
                block_table: seqs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                q: operands.q.untyped_ptr(),
                q_stride: params.q_stride,
                k_pool: untyped(operands.k_pool),
                v_pool: untyped(operands.v_pool),
                num_kv_heads: params.num_kv_heads,
                group_reciprocal: params.group_reciprocal(),
                softmax_scale: self.softmax_scale,
                window: params.window,
                out: operands.out.untyped_ptr(),
                out_stride: params.out_stride,
            }
            .launch(instance, geometry)
        }))
    }

    /// The launch of prefill in FP8, where [`Attention::splits_prefill`] in f16, whose work list it
    /// takes; `None` if no step has a prompt.
    ///
    /// # Errors
    /// [`LaunchError`] for a shape that does not split, head counts or a window that the kernel
    /// does not take, a block table that is too narrow, and operands that are not 16-byte aligned.
    pub fn prefill_cluster_fp8(
        &self,
        mode: Mode,
        gpu: Gpu,
        seqs: &SeqInputs,
        operands: &Fp8Operands,
    ) -> Result<Option<Launch>, LaunchError> {
        use attention_prefill_cluster_fp8::Instance::*;
        let &Fp8Operands { q, k_pool, v_pool, q_scale, k_scale, v_scale, out } = operands;
        if !self.splits_prefill(gpu, Dtype::F16) {
            return Err(LaunchError::Shape {
                what: "max_tokens",
                value: self.max_tokens,
                expected: "few enough that all blocks run at once, with a head_dim of 64",
            });
        }
        if !(q.is_aligned() && out.is_aligned() && is_aligned(k_pool) && is_aligned(v_pool)) {
            return Err(LaunchError::Shape {
                what: "row stride",
                value: q.row_stride,
                expected: "rows and pools aligned to 16 bytes",
            });
        }
        let params = self.params_of_rows(&q, &out, true)?;
        let (instance, num_threads, shared_bytes) = match mode {
            Mode::Strict => (
                attention_prefill_cluster_e4m3_strict_d64,
                Strict::NUM_THREADS,
                shared_bytes::<Strict>(),
            ),
            Mode::Fast => {
                (attention_prefill_cluster_e4m3_fast_d64, Fast::NUM_THREADS, shared_bytes::<Fast>())
            }
        };
        let geometry = self.cluster_geometry(gpu, num_threads, shared_bytes)?;
        Ok(geometry.map(|geometry| {
            attention_prefill_cluster_fp8::Args {
                num_items: seqs.num_prefill_items,
                items: seqs.prefill_items,
                block_table: seqs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                q: q.untyped_ptr(),
                q_stride: params.q_stride,
                k_pool: untyped(k_pool),
                v_pool: untyped(v_pool),
                q_scale,
                k_scale,
                v_scale,
                num_kv_heads: params.num_kv_heads,
                group_reciprocal: params.group_reciprocal(),
                softmax_scale: self.softmax_scale,
                window: params.window,
                out: out.untyped_ptr(),
                out_stride: params.out_stride,
            }
            .launch(instance, geometry)
        }))
    }

    /// Two blocks for each item.
    fn cluster_geometry(
        &self,
        gpu: Gpu,
        num_threads: u32,
        shared_bytes: u32,
    ) -> Result<Option<Geometry>, LaunchError> {
        let grid = [self.max_prefill_items(gpu, Dtype::F16) * CLUSTER as usize, 1, 1];
        Geometry::new(grid, num_threads as usize, shared_bytes as usize)
    }
}

impl Params {
    /// 2^32 by the query heads of a KV head, rounded up: a division takes as long as an MMA. The
    /// product is exact: the blocks run at once, so that there are far fewer than 2^16 heads.
    fn group_reciprocal(&self) -> u64 {
        (1u64 << 32).div_ceil(u64::from(self.num_heads / self.num_kv_heads))
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of these kernels.
pub(in super::super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    use {attention_prefill_cluster as halves, attention_prefill_cluster_fp8 as fp8};
    let bytes = if halves::Instance::ALL.iter().any(|instance| instance.symbol() == symbol) {
        shared_bytes::<Halves<f16>>()
    } else if symbol == fp8::Instance::attention_prefill_cluster_e4m3_strict_d64.symbol() {
        shared_bytes::<Strict>()
    } else if symbol == fp8::Instance::attention_prefill_cluster_e4m3_fast_d64.symbol() {
        shared_bytes::<Fast>()
    } else {
        return None;
    };
    Some(bytes as usize)
}
