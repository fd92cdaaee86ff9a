//! The launch of prefill in FP8.

use super::super::sm90::fp8::{Mode, Params, TileConfig};
use super::super::work::PrefillItem;
use super::super::work_list::{ItemWords, SeqLens};
use super::{Attention, AttentionOperands, SeqInputs};
use crate::Rows;
use crate::gemm::{Gpu, Target};
use cuda_std::E4m3;
use cuda_std::launch::{DevicePtr, Launch, LaunchError};
use cuda_std::tensor_map::{EncodedTensorMap, TensorMapSpec};
use half::f16;

/// Attention over a paged cache in E4M3, on Hopper: the prompts of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionFp8 {
    /// The shapes.
    pub attention: Attention,
    /// How weights and V are multiplied.
    pub mode: Mode,
}

/// The operands of [`AttentionFp8`]: a value is its quant times its head's scale.
#[derive(Clone, Copy, Debug)]
pub struct AttentionFp8Operands {
    /// `[tokens, num_heads * head_dim]`, 16-byte aligned.
    pub q: Rows<E4m3>,
    /// The layer's pool of keys, `[num_pages, num_kv_heads, PAGE_SIZE, head_dim]`.
    pub k_pool: DevicePtr<E4m3>,
    /// The layer's pool of values, `[num_pages, num_kv_heads, head_dim, PAGE_SIZE]`, with positions
    /// in the order of [`storage_index`](crate::attention::sm90::fp8::storage_index).
    pub v_pool: DevicePtr<E4m3>,
    /// `[num_heads]`.
    pub q_scale: DevicePtr<f32>,
    /// `[num_kv_heads]`.
    pub k_scale: DevicePtr<f32>,
    /// `[num_kv_heads]`.
    pub v_scale: DevicePtr<f32>,
    /// `[tokens, num_heads * head_dim]`, 16-byte aligned.
    pub out: Rows<f16>,
    /// `[tokens, num_heads]`, or null: logarithms of the sums of the exponentials.
    pub lse: DevicePtr<f32>,
}

impl AttentionFp8 {
    fn tile(&self) -> Result<&'static TileConfig, LaunchError> {
        let value = self.attention.head_dim;
        TileConfig::for_head_dim(value, self.mode).ok_or(LaunchError::Shape {
            what: "head_dim",
            value,
            expected: "a multiple of 16, at most 256",
        })
    }

    /// Upper bound of [`AttentionFp8::prefill_items`].
    ///
    /// # Errors
    /// [`LaunchError::Shape`] for a `head_dim` that the kernels do not take.
    pub fn max_prefill_items(&self) -> Result<usize, LaunchError> {
        Ok(self.attention.max_items_of(self.tile()?.block_m))
    }

    /// The items of a step's prompts, as [`Attention::prefill_items`].
    ///
    /// # Errors
    /// As [`AttentionFp8::max_prefill_items`].
    pub fn prefill_items(&self, seqs: &[SeqLens]) -> Result<Vec<ItemWords>, LaunchError> {
        let element_bytes = size_of::<E4m3>();
        let tiles = self.attention.tiles(self.tile()?.block_m as u32, element_bytes, seqs);
        Ok(tiles.iter().map(PrefillItem::words).collect())
    }

    /// The launch of prefill, as [`Attention::prefill`].
    ///
    /// # Errors
    /// As there; also for a GPU other than Hopper, a `head_dim` that is no multiple of 16 and a cap.
    pub fn prefill(
        &self,
        gpu: Gpu,
        seqs: &SeqInputs,
        operands: &AttentionFp8Operands,
        counters: DevicePtr<u32>,
        maps: &mut dyn FnMut(&TensorMapSpec) -> EncodedTensorMap,
    ) -> Result<Option<Launch>, LaunchError> {
        if gpu.target != Target::Sm90a {
            let (what, expected) = ("compute capability", "9.0 for operands in E4M3");
            return Err(LaunchError::Shape { what, value: 80, expected });
        }
        if let Some(softcap) = self.attention.softcap {
            let expected = "none of operands in E4M3";
            return Err(LaunchError::Shape { what: "softcap", value: softcap as usize, expected });
        }
        let tile = self.tile()?;
        let &AttentionFp8Operands { q, k_pool, v_pool, out, .. } = operands;
        if !q.is_aligned() {
            let expected = "a multiple of 16 bytes";
            return Err(LaunchError::Shape { what: "row stride", value: q.row_stride, expected });
        }
        // What is checked of 16-bit operands is the same here, with the output's rows.
        let params = self.attention.params(&AttentionOperands::<f16> {
            q: out,
            k_pool: DevicePtr::new(k_pool.0),
            v_pool: DevicePtr::new(v_pool.0),
            out,
            sinks: DevicePtr::null(),
        })?;
        let launch_params = Params {
            num_items: seqs.num_prefill_items,
            items: seqs.prefill_items,
            max_items: self.max_prefill_items()?,
            counters,
            block_table: seqs.block_table,
            max_pages_per_seq: params.max_pages_per_seq,
            max_tokens: self.attention.max_tokens,
            num_pages: self.attention.num_pages,
            num_heads: params.num_heads,
            num_kv_heads: params.num_kv_heads,
            head_dim: params.head_dim,
            softmax_scale: self.attention.softmax_scale,
            window: params.window,
            q_scale: operands.q_scale,
            k_scale: operands.k_scale,
            v_scale: operands.v_scale,
            q,
            pools: [k_pool, v_pool],
            out,
            lse: operands.lse,
        };
        tile.launch(gpu.num_sms, &launch_params, maps)
    }
}
