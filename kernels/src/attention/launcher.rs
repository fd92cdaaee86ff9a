//! The launches of both attention kernels.

use super::combine::{MIN_SPLIT_LEN, VEC_ELEMS};
use super::decode::{self, attention_decode};
use super::prefill::{self, BLOCK_M, attention_prefill};
use super::tile::{AttentionElement, NUM_THREADS, PANEL_COLUMNS, ROW_UNIT};
use crate::Rows;
use crate::element::Dtype;
use crate::operand::{is_aligned, untyped};
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

/// Most blocks that a sequence is split into: about two an SM, all resident at once. Not measured.
const NUM_BLOCKS: usize = 256;

/// Most positions of a sequence, so that indices past its end fit in a `u32`.
const MAX_KV_LEN: usize = 1 << 31;

/// Causal attention over the paged cache.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    /// Upper bound of the tokens of a step.
    pub max_tokens: usize,
    /// Upper bound of the sequences.
    pub max_seqs: usize,
    /// Upper bound of a sequence's cached positions.
    pub max_kv_len: usize,
    /// Width of the block table.
    pub max_pages_per_seq: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; they divide the query heads.
    pub num_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Multiplies the scores before the softmax.
    pub softmax_scale: f32,
    /// Sliding window, in positions.
    pub window: Option<usize>,
}

/// The step inputs that attention reads.
#[derive(Clone, Copy, Debug)]
pub struct SeqInputs {
    /// One element: sequences in the step.
    pub num_seqs: DevicePtr<u32>,
    /// `[num_seqs + 1]`.
    pub cu_seqlens_q: DevicePtr<u32>,
    /// `[num_seqs]`.
    pub kv_lens: DevicePtr<u32>,
    /// `[num_seqs, max_pages_per_seq]`.
    pub block_table: DevicePtr<u32>,
}

/// The operands of attention.
#[derive(Clone, Copy, Debug)]
pub struct AttentionOperands<E = f32> {
    /// `[tokens, num_heads * head_dim]`.
    pub q: Rows<E>,
    /// The layer's pool of keys.
    pub k_pool: DevicePtr<E>,
    /// The layer's pool of values.
    pub v_pool: DevicePtr<E>,
    /// `[tokens, num_heads * head_dim]`.
    pub out: Rows<E>,
}

/// The operands of a fused rotation and append: `q` is not rotated yet, and the previous launch
/// does not write to the cache.
#[derive(Clone, Copy, Debug)]
pub struct Append<E = f32> {
    /// `[num_tokens]`: the row of `table` of each token.
    pub positions: DevicePtr<u32>,
    /// `[num_tokens]`: the slot of each token in the pools, its sequence's last position.
    pub slot_mapping: DevicePtr<u32>,
    /// `[max_positions, rotary_dim]`: cosines, then sines.
    pub table: DevicePtr<f32>,
    /// Columns of a head that are rotated: even.
    pub rotary_dim: usize,
    /// `[tokens, num_kv_heads * head_dim]`.
    pub k: Rows<E>,
    /// `[tokens, num_kv_heads * head_dim]`.
    pub v: Rows<E>,
}

impl<E> Append<E> {
    /// Nothing to append.
    const NONE: Self = Append {
        positions: DevicePtr::null(),
        slot_mapping: DevicePtr::null(),
        table: DevicePtr::null(),
        rotary_dim: 0,
        k: Rows::new(DevicePtr::null(), 0),
        v: Rows::new(DevicePtr::null(), 0),
    };
}

/// Workspace of decode, which leaves it ready for the next launch.
#[derive(Clone, Copy, Debug)]
pub struct DecodeWorkspace {
    /// [`Attention::num_partials`] elements, 16-byte aligned.
    pub partials: DevicePtr<f32>,
    /// [`Attention::num_counters`] zeros.
    pub counters: DevicePtr<u32>,
}

/// The splits of decode, from the model and the plan's bounds.
struct Splits {
    instance: attention_decode::Instance,
    /// Grid y: KV heads times groups of their query heads.
    blocks_y: usize,
    /// Most splits of a sequence.
    max_splits: usize,
    /// f32 elements for the splits' largest scores and row sums.
    stats_elems: usize,
    /// f32 elements for the splits' outputs.
    out_elems: usize,
}

/// The arguments that both kernels take, checked.
struct Args {
    max_pages_per_seq: u32,
    q_stride: u32,
    out_stride: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    aligned: u32,
    window: u32,
}

impl Attention {
    /// The launch of prefill, for any step, or `None` if there is nothing to compute.
    ///
    /// # Errors
    /// [`LaunchError`] for head counts or a `head_dim` that the kernels do not take, and for sizes
    /// beyond a grid or a `u32`.
    pub fn prefill<E: AttentionElement>(
        &self,
        seqs: &SeqInputs,
        operands: &AttentionOperands<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let args = self.args(operands)?;
        let mut instances = prefill_instances(E::DTYPE).into_iter();
        let Some(instance) = instances.find(|instance| self.fits(instance.panels())) else {
            return Err(self.head_dim_error());
        };
        // The last tile of each sequence may be partial.
        let tiles = match self.max_tokens.min(self.max_seqs) {
            0 => 0,
            seqs => (self.max_tokens - seqs) / BLOCK_M as usize + seqs,
        };
        let shared_bytes = prefill::shared_bytes::<E>(instance.panels());
        let geometry =
            Geometry::new([tiles, self.num_heads, 1], NUM_THREADS as usize, shared_bytes)?;
        Ok(geometry.map(|geometry| {
            attention_prefill::launch(
                instance,
                geometry,
                seqs.num_seqs,
                seqs.cu_seqlens_q,
                seqs.kv_lens,
                seqs.block_table,
                args.max_pages_per_seq,
                operands.q.untyped_ptr(),
                args.q_stride,
                untyped(operands.k_pool),
                untyped(operands.v_pool),
                args.num_heads,
                args.num_kv_heads,
                args.head_dim,
                args.aligned,
                self.softmax_scale,
                args.window,
                operands.out.untyped_ptr(),
                args.out_stride,
            )
        }))
    }

    /// The launch of decode, for a step with at most one new token a sequence, or `None` if there
    /// is nothing to compute. K and V of the new tokens are in the cache, or `append` says where.
    ///
    /// # Errors
    /// As [`Attention::prefill`]; also for a `rotary_dim` that is odd or beyond `head_dim`.
    pub fn decode<E: AttentionElement>(
        &self,
        seqs: &SeqInputs,
        operands: &AttentionOperands<E>,
        append: Option<&Append<E>>,
        workspace: &DecodeWorkspace,
    ) -> Result<Option<Launch>, LaunchError> {
        let args = self.args(operands)?;
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
        let Some(Splits { instance, blocks_y, max_splits, stats_elems, .. }) = self.splits::<E>()
        else {
            return Err(self.head_dim_error());
        };
        let geometry = Geometry::new(
            [max_splits, blocks_y, self.max_seqs],
            NUM_THREADS as usize,
            decode::shared_bytes::<E>(instance.rows(), instance.panels()),
        )?;
        Ok(geometry.map(|geometry| {
            attention_decode::launch(
                instance,
                geometry,
                seqs.num_seqs,
                seqs.cu_seqlens_q,
                seqs.kv_lens,
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
                workspace.partials.add(stats_elems),
                workspace.partials,
                workspace.counters,
                operands.out.untyped_ptr(),
                args.out_stride,
            )
        }))
    }

    /// f32 elements that [`Attention::decode`] needs for partial results.
    pub fn num_partials<E: AttentionElement>(&self) -> usize {
        self.splits::<E>().map_or(0, |splits| splits.stats_elems + splits.out_elems)
    }

    /// Counters that [`Attention::decode`] needs.
    pub fn num_counters<E: AttentionElement>(&self) -> usize {
        self.splits::<E>().map_or(0, |splits| self.max_seqs * splits.blocks_y)
    }

    /// The splits of decode; `None` if there is no instance for the shapes, or no head.
    fn splits<E: AttentionElement>(&self) -> Option<Splits> {
        let group = self.num_heads.checked_div(self.num_kv_heads)?;
        let instances = decode_instances(E::DTYPE);
        let most_rows = instances.iter().map(|instance| instance.rows()).max();
        let rows = group.div_ceil(ROW_UNIT as usize).min(most_rows.unwrap_or(1));
        let fits = |instance: &&attention_decode::Instance| {
            instance.rows() >= rows && self.fits(instance.panels())
        };
        let &instance = instances.iter().find(fits)?;
        let blocks_y = self.num_kv_heads * group.div_ceil(ROW_UNIT as usize * instance.rows());
        let most = self.max_kv_len.div_ceil(MIN_SPLIT_LEN as usize);
        let max_splits = NUM_BLOCKS.checked_div(blocks_y)?.max(1).min(most);
        let num_splits = self.max_seqs * self.num_heads * max_splits;
        Some(Splits {
            instance,
            blocks_y,
            max_splits,
            stats_elems: (2 * num_splits).next_multiple_of(VEC_ELEMS as usize),
            out_elems: num_splits * instance.panels() * PANEL_COLUMNS as usize,
        })
    }

    fn fits(&self, panels: usize) -> bool {
        self.head_dim <= panels * PANEL_COLUMNS as usize
    }

    fn head_dim_error(&self) -> LaunchError {
        LaunchError::Shape { what: "head_dim", value: self.head_dim, expected: "from 1 to 256" }
    }

    fn args<E: AttentionElement>(
        &self,
        operands: &AttentionOperands<E>,
    ) -> Result<Args, LaunchError> {
        if self.head_dim == 0 {
            return Err(self.head_dim_error());
        }
        if self.num_kv_heads == 0
            || self.num_heads == 0
            || !self.num_heads.is_multiple_of(self.num_kv_heads)
        {
            return Err(LaunchError::Shape {
                what: "num_kv_heads",
                value: self.num_kv_heads,
                expected: "a divisor of num_heads",
            });
        }
        if self.window == Some(0) {
            return Err(LaunchError::Shape { what: "window", value: 0, expected: "at least 1" });
        }
        if self.max_kv_len > MAX_KV_LEN {
            return Err(LaunchError::Shape {
                what: "max_kv_len",
                value: self.max_kv_len,
                expected: "at most 2147483648",
            });
        }
        arg_u32("row width", self.num_heads.saturating_mul(self.head_dim))?;
        let aligned = (self.head_dim * size_of::<E>()).is_multiple_of(16)
            && operands.q.is_aligned()
            && operands.out.is_aligned()
            && is_aligned(operands.k_pool)
            && is_aligned(operands.v_pool);
        if size_of::<E>() < size_of::<f32>() && !aligned {
            return Err(LaunchError::Shape {
                what: "head_dim",
                value: self.head_dim,
                expected: "a multiple of 8 in 16 bits, in rows and pools aligned to 16 bytes",
            });
        }
        Ok(Args {
            max_pages_per_seq: arg_u32("max_pages_per_seq", self.max_pages_per_seq)?,
            q_stride: operands.q.stride_arg()?,
            out_stride: operands.out.stride_arg()?,
            num_heads: self.num_heads as u32,
            num_kv_heads: self.num_kv_heads as u32,
            head_dim: self.head_dim as u32,
            aligned: aligned.into(),
            // A larger window never masks.
            window: self.window.map_or(u32::MAX, |window| window.min(u32::MAX as usize) as u32),
        })
    }
}

/// Instances for `dtype`, the narrowest heads first.
fn prefill_instances(dtype: Dtype) -> [attention_prefill::Instance; 4] {
    use attention_prefill::Instance::*;
    match dtype {
        Dtype::F32 => [
            attention_prefill_f32_d64,
            attention_prefill_f32_d96,
            attention_prefill_f32_d128,
            attention_prefill_f32_d256,
        ],
        Dtype::F16 => [
            attention_prefill_f16_d64,
            attention_prefill_f16_d96,
            attention_prefill_f16_d128,
            attention_prefill_f16_d256,
        ],
        Dtype::Bf16 => [
            attention_prefill_bf16_d64,
            attention_prefill_bf16_d96,
            attention_prefill_bf16_d128,
            attention_prefill_bf16_d256,
        ],
    }
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
            attention_decode_f32_r16_d256,
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
