//! The launch of decode, its work items and its workspace.

use super::super::decode::quantised::{self, Fp8, Q4, Q8, attention_decode_quantised};
use super::super::decode::{self, attention_decode};
use super::super::splits::{MAX_QUERIES, Splitting};
use super::super::tile::{AttentionElement, NUM_THREADS, PANEL_COLUMNS, ROW_UNIT};
use super::super::work_list::{ItemWords, SeqLens};
use super::{Append, Attention, AttentionOperands, AttentionWorkspace, SeqInputs};
use crate::element::{Dtype, type_of};
use crate::gemm::Gpu;
use crate::kv_cache::{CacheType, PAGE_SIZE};
use crate::operand::untyped;
use core::any::TypeId;
use cuda_std::launch::{Geometry, Launch, LaunchError};
use half::{bf16, f16};

/// Shared memory of an SM, 228 KiB on SM 90.
const SM_SHARED_BYTES: usize = 228 << 10;

/// Shared memory that the system takes for each block.
const SYSTEM_SHARED_BYTES: usize = 1 << 10;

/// Columns of a head of 8-bit quants are a multiple of this: whole vectors of 16 bytes.
const QUANTISED_HEAD_DIM: usize = 16;

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
        workspace: &AttentionWorkspace,
    ) -> Result<Option<Launch>, LaunchError> {
        let params = self.params(operands)?;
        self.check_items()?;
        if append.is_some() && !self.appends() {
            let (what, value) = ("head_dim", self.head_dim);
            let expected = "at most 256 where attention appends K and V";
            return Err(LaunchError::Shape { what, value, expected });
        }
        let append = append.unwrap_or(&Append::NONE);
        let Append { k, v, rotary_dim, norm, .. } = append;
        if *rotary_dim > self.head_dim || !rotary_dim.is_multiple_of(2) {
            return Err(LaunchError::Shape {
                what: "rotary_dim",
                value: *rotary_dim,
                expected: "an even number, at most head_dim",
            });
        }
        if !norm.is_none() && size_of::<E>() < size_of::<f32>() && !k.is_aligned() {
            let (what, expected) = ("row stride", "rows of K that are aligned to 16 bytes");
            return Err(LaunchError::Shape { what, value: k.row_stride, expected });
        }
        let (k_stride, v_stride) = (k.stride_arg()?, v.stride_arg()?);
        let Some(instance) = self.decode_instance(E::DTYPE) else {
            return Err(self.head_dim_error());
        };
        let shared_bytes = decode::shared_bytes::<E>(instance.rows(), instance.panels());
        let blocks_per_sm = decode::blocks_per_sm::<E>(instance.panels());
        let num_blocks = self.num_blocks(gpu, E::DTYPE, shared_bytes, blocks_per_sm);
        let geometry = Geometry::new([num_blocks, 1, 1], NUM_THREADS as usize, shared_bytes)?;
        let num_outputs = self.max_partials(E::DTYPE) * width_of(instance);
        Ok(geometry.map(|geometry| {
            attention_decode::Args {
                num_items: seqs.num_decode_items,
                items: seqs.decode_items,
                block_table: seqs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                positions: append.positions,
                slot_mapping: append.slot_mapping,
                table: append.table,
                rotary_dim: *rotary_dim as u32,
                q: operands.q.untyped_ptr(),
                q_stride: params.q_stride,
                k: k.untyped_ptr(),
                k_stride,
                v: v.untyped_ptr(),
                v_stride,
                k_pool: untyped(operands.k_pool),
                v_pool: untyped(operands.v_pool),
                num_heads: params.num_heads,
                num_kv_heads: params.num_kv_heads,
                head_dim: params.head_dim,
                aligned: params.aligned,
                softmax_scale: params.softmax_scale,
                window: params.window,
                partial_out: workspace.partials,
                partial_stats: workspace.partials.add(num_outputs),
                counters: workspace.counters,
                out: operands.out.untyped_ptr(),
                out_stride: params.out_stride,
                sinks: operands.sinks,
                softcap: params.softcap,
                q_norm: norm.q,
                k_norm: norm.k,
                norm_eps: norm.eps,
            }
            .launch(instance, geometry)
        }))
    }

    /// Whether [`Attention::decode_quantised`] takes keys and values of these formats.
    pub fn decodes_quantised(&self, dtype: Dtype, formats: [CacheType; 2]) -> bool {
        dtype == Dtype::F16
            && self.head_dim.is_multiple_of(QUANTISED_HEAD_DIM)
            && self.decode_instance(dtype).is_some()
            && self.quantised_instance(formats).is_some()
    }

    /// [`Attention::decode`] of operands in f16 over pools of `formats`, which
    /// [`Attention::decodes_quantised`] allows, with K and V of the new tokens in the cache.
    ///
    /// # Errors
    /// As [`Attention::decode`]; also for other formats.
    pub fn decode_quantised(
        &self,
        gpu: Gpu,
        seqs: &SeqInputs,
        operands: &AttentionOperands<f16>,
        formats: [CacheType; 2],
        workspace: &AttentionWorkspace,
    ) -> Result<Option<Launch>, LaunchError> {
        let params = self.params(operands)?;
        self.check_items()?;
        let instance = self.quantised_instance(formats).filter(|_| params.aligned != 0);
        let (Some(instance), Some(dense)) = (instance, self.decode_instance(Dtype::F16)) else {
            return Err(self.head_dim_error());
        };
        let shared_bytes = quantised_shared_bytes(formats, instance);
        let blocks_per_sm = quantised::blocks_per_sm(instance.row_tiles(), instance.panels());
        let num_blocks = self.num_blocks(gpu, Dtype::F16, shared_bytes, blocks_per_sm);
        let geometry = Geometry::new([num_blocks, 1, 1], NUM_THREADS as usize, shared_bytes)?;
        let num_outputs = self.max_partials(Dtype::F16) * width_of(dense);
        Ok(geometry.map(|geometry| {
            attention_decode_quantised::Args {
                num_items: seqs.num_decode_items,
                items: seqs.decode_items,
                block_table: seqs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                q: operands.q.untyped_ptr(),
                q_stride: params.q_stride,
                k_pool: untyped(operands.k_pool),
                v_pool: untyped(operands.v_pool),
                num_heads: params.num_heads,
                num_kv_heads: params.num_kv_heads,
                head_dim: params.head_dim,
                softmax_scale: params.softmax_scale,
                window: params.window,
                partial_out: workspace.partials,
                partial_stats: workspace.partials.add(num_outputs),
                counters: workspace.counters,
                out: operands.out.untyped_ptr(),
                out_stride: params.out_stride,
                sinks: operands.sinks,
                softcap: params.softcap,
            }
            .launch(instance, geometry)
        }))
    }

    /// Whether the sequences and KV heads fit in a work item, and a sequence's new tokens in one.
    fn check_items(&self) -> Result<(), LaunchError> {
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
        Ok(())
    }

    /// Blocks of a launch: the most items, or what is resident.
    fn num_blocks(&self, gpu: Gpu, dtype: Dtype, shared_bytes: usize, by_registers: u32) -> usize {
        let by_memory = SM_SHARED_BYTES / (shared_bytes + SYSTEM_SHARED_BYTES);
        let blocks_per_sm = by_memory.min(by_registers as usize).max(1);
        self.max_decode_items(gpu, dtype).min(gpu.num_sms * blocks_per_sm)
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
    pub fn num_partials(&self, dtype: Dtype) -> usize {
        let width = self.decode_instance(dtype).map_or(0, width_of);
        self.max_partials(dtype) * (width + 2)
    }

    /// Counters that [`Attention::decode`] needs.
    pub fn num_counters(&self, dtype: Dtype) -> usize {
        self.max_partials(dtype)
    }

    /// Most rows of partial results within the bounds.
    fn max_partials(&self, dtype: Dtype) -> usize {
        self.max_of_seqs(dtype, Splitting::max_partials)
    }

    /// `most` of a sequence, of new tokens and pages, times the sequences of a step.
    fn max_of_seqs(&self, dtype: Dtype, most: fn(&Splitting, usize, usize) -> usize) -> usize {
        let q_len = self.max_q_len.min(self.max_decode_q_len);
        // A window's keys, and those of further queries, may start and end inside a page.
        let window = self.reach().mask_window();
        let visible = window.map_or(usize::MAX, |window| window.saturating_add(q_len));
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
            page_bytes: 2 * PAGE_SIZE as usize * self.head_dim * dtype.block_bytes(),
            max_q_len: self.max_decode_q_len,
            causal: self.causal,
            window: self.window,
            batch_invariant: self.batch_invariant,
        })
    }

    /// The narrowest instance for `formats` that has a row for every query row of a block.
    fn quantised_instance(
        &self,
        formats: [CacheType; 2],
    ) -> Option<attention_decode_quantised::Instance> {
        let group = self.num_heads.checked_div(self.num_kv_heads)?;
        let rows = group * self.max_q_len.min(self.max_decode_q_len);
        let row_tiles = if rows <= quantised::TILE_ROWS as usize { 1 } else { 2 };
        quantised_instances(formats)
            .find(|instance| instance.row_tiles() == row_tiles && self.fits(instance.panels()))
    }

    /// The narrowest instance with the fewest rows that has a row for every query head of a KV
    /// head, or with the most rows.
    fn decode_instance(&self, dtype: Dtype) -> Option<attention_decode::Instance> {
        let group = self.num_heads.checked_div(self.num_kv_heads).filter(|group| *group > 0)?;
        if self.head_dim == 0 {
            return None;
        }
        let fits = |instance: &attention_decode::Instance| self.fits(instance.panels());
        let instances = || decode_instances(dtype).filter(fits);
        let most_rows = instances().map(|instance| instance.rows()).max()?;
        let rows = group.div_ceil(ROW_UNIT as usize).min(most_rows);
        instances().find(|instance| instance.rows() >= rows)
    }
}

/// Columns of a row of partial results.
fn width_of(instance: attention_decode::Instance) -> usize {
    instance.panels() * PANEL_COLUMNS as usize
}

/// Instances for `dtype`, the fewest rows first, then the narrowest heads.
fn decode_instances(dtype: Dtype) -> impl Iterator<Item = attention_decode::Instance> {
    let all = attention_decode::Instance::ALL.iter().copied();
    all.filter(move |instance| Some(instance.e()) == type_of(dtype))
}

/// The formats of keys and values that decode reads as they are.
const QUANTISED: [[CacheType; 2]; 4] = [
    [CacheType::Q8_0, CacheType::Q8_0],
    [CacheType::Fp8, CacheType::Fp8],
    [CacheType::Q4_0, CacheType::Q4_0],
    [CacheType::Q8_0, CacheType::Q4_0],
];

/// Instances for `formats`, the fewest rows first, then the narrowest heads.
fn quantised_instances(
    formats: [CacheType; 2],
) -> impl Iterator<Item = attention_decode_quantised::Instance> {
    let types = formats.map(|format| match format {
        CacheType::Q8_0 => Some(TypeId::of::<Q8>()),
        CacheType::Fp8 => Some(TypeId::of::<Fp8>()),
        CacheType::Q4_0 => Some(TypeId::of::<Q4>()),
        _ => None,
    });
    let all = attention_decode_quantised::Instance::ALL.iter().copied();
    all.filter(move |instance| types == [Some(instance.k()), Some(instance.v())])
}

/// Shared memory of a block of one of [`quantised_instances`].
fn quantised_shared_bytes(
    formats: [CacheType; 2],
    instance: attention_decode_quantised::Instance,
) -> usize {
    let (row_tiles, panels) = (instance.row_tiles(), instance.panels());
    match formats {
        [CacheType::Fp8, _] => quantised::shared_bytes::<Fp8, Fp8>(row_tiles, panels),
        [CacheType::Q4_0, _] => quantised::shared_bytes::<Q4, Q4>(row_tiles, panels),
        [_, CacheType::Q4_0] => quantised::shared_bytes::<Q8, Q4>(row_tiles, panels),
        _ => quantised::shared_bytes::<Q8, Q8>(row_tiles, panels),
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of decode.
pub(super) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    for formats in QUANTISED {
        let mut instances = quantised_instances(formats);
        if let Some(instance) = instances.find(|instance| instance.symbol() == symbol) {
            return Some(quantised_shared_bytes(formats, instance));
        }
    }
    for (dtype, shared_bytes) in [
        (Dtype::F32, decode::shared_bytes::<f32> as fn(usize, usize) -> usize),
        (Dtype::F16, decode::shared_bytes::<f16>),
        (Dtype::BF16, decode::shared_bytes::<bf16>),
    ] {
        let mut instances = decode_instances(dtype);
        if let Some(instance) = instances.find(|instance| instance.symbol() == symbol) {
            return Some(shared_bytes(instance.rows(), instance.panels()));
        }
    }
    None
}
