//! The launches of attention.

use super::head_dims::column_parts;
use super::reach::Reach;
use super::tile::{AttentionElement, PANEL_COLUMNS};
use crate::Rows;
use crate::kv_cache::PAGE_SIZE;
use crate::operand::is_aligned;
use crate::qk_norm::QkNorm;
use cuda_std::launch::{DevicePtr, LaunchError, arg_u32};

mod decode;
mod prefill;
mod prefill_fp8;

pub use prefill_fp8::{AttentionFp8, AttentionFp8Operands};

/// Most positions of a sequence, so that indices past its end fit in a `u32`.
const MAX_KV_LEN: usize = 1 << 31;

/// Attention over the paged cache.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Upper bound of the tokens of a step.
    pub max_tokens: usize,
    /// Upper bound of the sequences.
    pub max_seqs: usize,
    /// Upper bound of a sequence's new tokens.
    pub max_q_len: usize,
    /// Most new tokens of a sequence that decodes, 0 if none does; one with more is a prompt.
    pub max_decode_q_len: usize,
    /// Upper bound of a sequence's cached positions.
    pub max_kv_len: usize,
    /// Width of the block table.
    pub max_pages_per_seq: usize,
    /// Pages of a pool.
    pub num_pages: usize,
    /// Query heads.
    pub num_heads: usize,
    /// KV heads; they divide the query heads.
    pub num_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Multiplies the scores before the softmax.
    pub softmax_scale: f32,
    /// Bends the scaled scores `s` to `softcap * tanh(s / softcap)`: above 0.
    pub softcap: Option<f32>,
    /// Whether a query sees no position after its own.
    pub causal: bool,
    /// Sliding window, in positions; to both sides in attention that is not causal.
    pub window: Option<usize>,
    /// Whether no bit of a row may depend on the other rows of the step.
    pub batch_invariant: bool,
    /// Whether each query head has a score without a value, [`AttentionOperands::sinks`].
    pub has_sinks: bool,
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
    /// One element: items in `prefill_items`.
    pub num_prefill_items: DevicePtr<u32>,
    /// [`Attention::prefill_items`], 16-byte aligned.
    pub prefill_items: DevicePtr<u32>,
    /// One element: items in `decode_items`.
    pub num_decode_items: DevicePtr<u32>,
    /// [`Attention::decode_items`], 16-byte aligned.
    pub decode_items: DevicePtr<u32>,
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
    /// `[num_heads]`: scores that have no value, which take part in the softmax; null without.
    pub sinks: DevicePtr<f32>,
}

/// The operands of a fused norm, rotation and append: `q` is not rotated yet, and the previous launch
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
    /// The norm of Q and K before the rotation.
    pub norm: QkNorm,
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
        norm: QkNorm::NONE,
        k: Rows::new(DevicePtr::null(), 0),
        v: Rows::new(DevicePtr::null(), 0),
    };
}

/// Workspace of prefill or decode, which leave it ready for the next launch.
#[derive(Clone, Copy, Debug)]
pub struct AttentionWorkspace {
    /// [`Attention::num_prefill_partials`] or [`Attention::num_partials`] elements, 16-byte aligned.
    pub partials: DevicePtr<f32>,
    /// [`Attention::num_prefill_counters`] or [`Attention::num_counters`] zeros.
    pub counters: DevicePtr<u32>,
}

impl AttentionWorkspace {
    /// That of kernels that need none.
    pub const NONE: Self =
        AttentionWorkspace { partials: DevicePtr::null(), counters: DevicePtr::null() };
}

/// The parameters that both kernels take, checked.
pub(super) struct Params {
    pub(super) max_pages_per_seq: u32,
    pub(super) q_stride: u32,
    pub(super) out_stride: u32,
    pub(super) num_heads: u32,
    pub(super) num_kv_heads: u32,
    pub(super) head_dim: u32,
    pub(super) aligned: u32,
    pub(super) window: u32,
    /// What multiplies the scores, or [`Params::softcap`]'s tanh of them.
    pub(super) softmax_scale: f32,
    /// Scores are `tanh(softcap * score)` before they are scaled; 0 where they are not bent.
    pub(super) softcap: f32,
}

impl Attention {
    fn fits(&self, panels: usize) -> bool {
        self.head_dim <= panels * PANEL_COLUMNS as usize
    }

    pub(super) fn head_dim_error(&self) -> LaunchError {
        let expected = "from 1 to 256, or to 512 in f16 and bf16 with a cache of that type";
        LaunchError::Shape { what: "head_dim", value: self.head_dim, expected }
    }

    /// Whether [`Attention::decode`] can append K and V of the new tokens.
    pub fn appends(&self) -> bool {
        column_parts(self.head_dim.div_ceil(PANEL_COLUMNS as usize)) == 1
    }

    pub(super) fn reach(&self) -> Reach {
        Reach { causal: self.causal, window: self.window }
    }

    pub(super) fn params<E: AttentionElement>(
        &self,
        operands: &AttentionOperands<E>,
    ) -> Result<Params, LaunchError> {
        let aligned = (self.head_dim * size_of::<E>()).is_multiple_of(16)
            && operands.q.is_aligned()
            && operands.out.is_aligned()
            && is_aligned(operands.k_pool)
            && is_aligned(operands.v_pool);
        let params = self.params_of_rows(&operands.q, &operands.out, aligned)?;
        if size_of::<E>() < size_of::<f32>() && !aligned {
            return Err(LaunchError::Shape {
                what: "head_dim",
                value: self.head_dim,
                expected: "a multiple of 8 in 16 bits, in rows and pools aligned to 16 bytes",
            });
        }
        Ok(params)
    }

    /// The parameters, of rows whose alignment is checked.
    pub(super) fn params_of_rows<Q, O>(
        &self,
        q: &Rows<Q>,
        out: &Rows<O>,
        aligned: bool,
    ) -> Result<Params, LaunchError> {
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
            let (what, expected) = ("window", "at least 1");
            return Err(LaunchError::Shape { what, value: 0, expected });
        }
        if self.max_pages_per_seq * (PAGE_SIZE as usize) < self.max_kv_len {
            return Err(LaunchError::Shape {
                what: "max_pages_per_seq",
                value: self.max_pages_per_seq,
                expected: "enough for max_kv_len",
            });
        }
        if self.max_kv_len > MAX_KV_LEN {
            return Err(LaunchError::Shape {
                what: "max_kv_len",
                value: self.max_kv_len,
                expected: "at most 2147483648",
            });
        }
        arg_u32("row width", self.num_heads.saturating_mul(self.head_dim))?;
        Ok(Params {
            max_pages_per_seq: arg_u32("max_pages_per_seq", self.max_pages_per_seq)?,
            q_stride: q.stride_arg()?,
            out_stride: out.stride_arg()?,
            num_heads: self.num_heads as u32,
            num_kv_heads: self.num_kv_heads as u32,
            head_dim: self.head_dim as u32,
            aligned: aligned.into(),
            window: self.reach().window_arg(),
            softmax_scale: self.softcap.unwrap_or(self.softmax_scale),
            softcap: self.softcap.map_or(0.0, |cap| self.softmax_scale / cap),
        })
    }
}

/// As [`dynamic_shared_bytes`](crate::dynamic_shared_bytes), of attention.
pub(crate) fn dynamic_shared_bytes(symbol: &str) -> Option<usize> {
    prefill::dynamic_shared_bytes(symbol).or_else(|| decode::dynamic_shared_bytes(symbol))
}
