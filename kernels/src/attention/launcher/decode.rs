//! The launch of decode, its work items and its workspace.

use super::super::decode::{self, attention_decode};
use super::super::splits::{MAX_QUERIES, Splitting};
use super::super::tile::{AttentionElement, NUM_THREADS, PANEL_COLUMNS, ROW_UNIT};
use super::super::work_list::{ItemWords, SeqLens};
use super::{Append, Attention, AttentionOperands, DecodeWorkspace, SeqInputs};
use crate::element::Dtype;
use crate::gemm::Gpu;
use crate::kv_cache::PAGE_SIZE;
use crate::operand::untyped;
use cuda_std::launch::{Geometry, Launch, LaunchError};
use half::{bf16, f16};

/// Shared memory of an SM, 228 KiB on SM 90.
const SM_SHARED_BYTES: usize = 228 << 10;

/// Shared memory that the system takes for each block.
const SYSTEM_SHARED_BYTES: usize = 1 << 10;

/// Most sequences and KV heads, so that two of them fit in a word of a work item.
const MAX_ITEM_INDEX: usize = 1 << 16;

impl Attention {
    /// The launch of decode on `gpu`: of the step's sequences that [`Attention::decode_items`] is
    /// for, or `None` if the bounds allow none. K and V of the new tokens are in the cache, or
    /// `append` says where; then sequences have one new token.
    ///
    /// # Errors
    /// As [`Attention::prefill`]; also for a `rotary_dim` that is odd or beyond `head_dim`.
    pub fn decode<E: AttentionElement>(
        &self,
        gpu: Gpu,
        seqs: &SeqInputs,
        operands: &AttentionOperands<E>,
        append: Option<&Append<E>>,
        workspace: &DecodeWorkspace,
    ) -> Result<Option<Launch>, LaunchError> {
        let args = self.args(operands)?;
        for (what, value) in [("max_seqs", self.max_seqs), ("num_kv_heads", self.num_kv_heads)] {
            if value > MAX_ITEM_INDEX {
                return Err(LaunchError::Shape { what, value, expected: "at most 65536" });
            }
        }
        if self.max_decode_q_len > MAX_QUERIES {
            return Err(LaunchError::Shape {
                what: "max_decode_q_len",
                value: self.max_decode_q_len,
                expected: "at most 16",
            });
        }
        let append = append.unwrap_or(&Append::NONE);
        let Append { k, v, rotary_dim, .. } = append;
        if *rotary_dim > self.head_dim || !rotary_dim.is_multiple_of(2) {
            return Err(LaunchError::Shape {
                what: "rotary_dim",
                value: *rotary_dim,
                expected: "an even number, at most head_dim",
            });
        }
        let (k_stride, v_stride) = (k.stride_arg()?, v.stride_arg()?);
        let Some(instance) = self.decode_instance(E::DTYPE) else {
            return Err(self.head_dim_error());
        };
        let shared_bytes = decode::shared_bytes::<E>(instance.rows(), instance.panels());
        let blocks_per_sm = SM_SHARED_BYTES / (shared_bytes + SYSTEM_SHARED_BYTES);
        let blocks_per_sm =
            blocks_per_sm.min(decode::blocks_per_sm::<E>(instance.panels()) as usize);
        let num_blocks =
            self.max_decode_items(gpu, E::DTYPE).min(gpu.num_sms * blocks_per_sm.max(1));
        let geometry = Geometry::new([num_blocks, 1, 1], NUM_THREADS as usize, shared_bytes)?;
        Ok(geometry.map(|geometry| {
            attention_decode::launch(
                instance,
                geometry,
                seqs.num_decode_items,
                seqs.decode_items,
                seqs.block_table,
                args.max_pages_per_seq,
                append.positions,
                append.slot_mapping,
                append.table,
                *rotary_dim as u32,
                operands.q.untyped_ptr(),
                args.q_stride,
                k.untyped_ptr(),
                k_stride,
                v.untyped_ptr(),
                v_stride,
                untyped(operands.k_pool),
                untyped(operands.v_pool),
                args.num_heads,
                args.num_kv_heads,
                args.head_dim,
                args.aligned,
                self.softmax_scale,
                args.window,
                workspace.partials,
                workspace.partials.add(self.max_partials(E::DTYPE) * width_of(instance)),
                workspace.counters,
                operands.out.untyped_ptr(),
                args.out_stride,
            )
        }))
    }

    /// The work items of decode for a step of `seqs`: of those with at most `max_decode_q_len` new
    /// tokens, the longest items first. Empty for shapes that no kernel takes.
    pub fn decode_items(&self, _gpu: Gpu, dtype: Dtype, seqs: &[SeqLens]) -> Vec<ItemWords> {
        self.splitting(dtype).map_or_else(Vec::new, |splitting| splitting.items(seqs))
    }

    /// Upper bound of [`Attention::decode_items`].
    pub fn max_decode_items(&self, _gpu: Gpu, dtype: Dtype) -> usize {
        self.max_of_seqs(dtype, Splitting::max_items)
    }

    /// f32 elements that [`Attention::decode`] needs for partial results.
    pub fn num_partials<E: AttentionElement>(&self) -> usize {
        let width = self.decode_instance(E::DTYPE).map_or(0, width_of);
        self.max_partials(E::DTYPE) * (width + 2)
    }

    /// Counters that [`Attention::decode`] needs.
    pub fn num_counters<E: AttentionElement>(&self) -> usize {
        self.max_partials(E::DTYPE)
    }

    /// Most rows of partial results within the bounds.
    fn max_partials(&self, dtype: Dtype) -> usize {
        self.max_of_seqs(dtype, Splitting::max_partials)
    }

    /// `most` of a sequence, of new tokens and pages, times the sequences of a step.
    fn max_of_seqs(&self, dtype: Dtype, most: fn(&Splitting, usize, usize) -> usize) -> usize {
        let q_len = self.max_q_len.min(self.max_decode_q_len);
        // A window's keys, and those of further queries, may start and end inside a page.
        let visible = self.window.map_or(usize::MAX, |window| window.saturating_add(q_len));
        let num_pages = self.max_kv_len.div_ceil(PAGE_SIZE as usize);
        let num_pages = num_pages.min((visible / PAGE_SIZE as usize).saturating_add(2));
        let seqs = self.max_seqs.min(self.max_tokens);
        seqs * self.splitting(dtype).map_or(0, |splitting| most(&splitting, q_len, num_pages))
    }

    /// How sequences are split; `None` if there is no instance for the shapes, or no head.
    fn splitting(&self, dtype: Dtype) -> Option<Splitting> {
        let instance = self.decode_instance(dtype)?;
        Some(Splitting {
            num_kv_heads: self.num_kv_heads,
            group: self.num_heads / self.num_kv_heads,
            block_rows: ROW_UNIT as usize * instance.rows(),
            page_bytes: 2 * PAGE_SIZE as usize * self.head_dim * dtype.bytes(),
            max_q_len: self.max_decode_q_len,
            causal: self.causal,
            window: self.window,
            batch_invariant: self.batch_invariant,
        })
    }

    /// The narrowest instance with the fewest rows that has a row for every query head of a KV
    /// head, or with the most rows.
    fn decode_instance(&self, dtype: Dtype) -> Option<attention_decode::Instance> {
        let group = self.num_heads.checked_div(self.num_kv_heads).filter(|group| *group > 0)?;
        if self.head_dim == 0 {
            return None;
        }
        let fits = |instance: &&attention_decode::Instance| self.fits(instance.panels());
        let instances = || decode_instances(dtype).iter().filter(fits);
        let most_rows = instances().map(|instance| instance.rows()).max()?;
        let rows = group.div_ceil(ROW_UNIT as usize).min(most_rows);
        instances().find(|instance| instance.rows() >= rows).copied()
    }
}

/// Columns of a row of partial results.
fn width_of(instance: attention_decode::Instance) -> usize {
    instance.panels() * PANEL_COLUMNS as usize
}

/// Instances for `dtype`, the fewest rows first, then the narrowest heads.
fn decode_instances(dtype: Dtype) -> &'static [attention_decode::Instance] {
    use attention_decode::Instance::*;
    match dtype {
        Dtype::F32 => &[
            attention_decode_f32_r4_d64,
            attention_decode_f32_r4_d96,
            attention_decode_f32_r4_d128,
            attention_decode_f32_r4_d256,
            attention_decode_f32_r8_d64,
            attention_decode_f32_r8_d96,
            attention_decode_f32_r8_d128,
            attention_decode_f32_r8_d256,
            attention_decode_f32_r16_d64,
            attention_decode_f32_r16_d96,
            attention_decode_f32_r16_d128,
        ],
        Dtype::F16 => &[
            attention_decode_f16_r16_d64,
            attention_decode_f16_r16_d96,
            attention_decode_f16_r16_d128,
            attention_decode_f16_r16_d256,
        ],
        Dtype::Bf16 => &[
            attention_decode_bf16_r16_d64,
            attention_decode_bf16_r16_d96,
            attention_decode_bf16_r16_d128,
            attention_decode_bf16_r16_d256,
        ],
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of decode.
pub(super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        let mut instances = decode_instances(dtype).iter();
        if let Some(instance) = instances.find(|instance| instance.symbol() == symbol) {
            let (rows, panels) = (instance.rows(), instance.panels());
            return Some(match dtype {
                Dtype::F32 => decode::shared_bytes::<f32>(rows, panels),
                Dtype::F16 => decode::shared_bytes::<f16>(rows, panels),
                Dtype::Bf16 => decode::shared_bytes::<bf16>(rows, panels),
            });
        }
    }
    None
}
