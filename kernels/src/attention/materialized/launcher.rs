//! The launches of attention in three kernels.

use super::{MAX_HEAD_DIM, MIN_KEY_LANES, NUM_THREADS, VEC_ELEMS};
use super::{attention_scores, attention_softmax, attention_values};
use crate::Rows;
use crate::element::Number;
use crate::operand::{is_aligned, untyped};
use cuda_std::launch::{DevicePtr, Geometry, Launch, LaunchError, arg_u32};

/// Attention over the paged cache in three kernels.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaterializedAttention {
    /// Upper bound of the tokens of a step.
    pub max_tokens: usize,
    /// Width of the block table: a row of scores has so many pages.
    pub max_pages_per_seq: usize,
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
}

/// The step inputs that it reads.
#[derive(Clone, Copy, Debug)]
pub struct TokenInputs {
    /// One element: tokens in the step.
    pub num_tokens: DevicePtr<u32>,
    /// `[num_tokens]`: the sequence of each token.
    pub seq_ids: DevicePtr<u32>,
    /// `[num_seqs + 1]`.
    pub cu_seqlens_q: DevicePtr<u32>,
    /// `[num_seqs]`.
    pub kv_lens: DevicePtr<u32>,
    /// `[num_seqs, max_pages_per_seq]`.
    pub block_table: DevicePtr<u32>,
}

/// The parameters that several kernels take, checked.
struct Params {
    max_pages_per_seq: u32,
    num_heads: u32,
    num_kv_heads: u32,
    head_dim: u32,
    key_lanes: u32,
    causal: u32,
    window: u32,
}

/// The instance of `E`.
macro_rules! instance {
    ($kernel:ident, $f32:ident, $f16:ident, $bf16:ident, $E:ty) => {
        <$E>::choose([$kernel::Instance::$f32, $kernel::Instance::$f16, $kernel::Instance::$bf16])
    };
}

impl MaterializedAttention {
    /// The launch that writes `scores`, or `None` if there is nothing to compute.
    ///
    /// # Errors
    /// [`LaunchError`] for heads of more than 256 columns, KV heads that do not divide the query
    /// heads, and sizes beyond a grid or a `u32`.
    pub fn scores<E: Number>(
        &self,
        inputs: &TokenInputs,
        q: Rows<E>,
        k_pool: DevicePtr<E>,
        scores: DevicePtr<f32>,
    ) -> Result<Option<Launch>, LaunchError> {
        let params = self.params()?;
        let q_stride = q.stride_arg()?;
        let aligned = self.is_aligned::<E>() && q.is_aligned() && is_aligned(k_pool);
        let geometry = self.geometry([self.num_kv_heads, self.max_pages_per_seq])?;
        let instance = instance!(
            attention_scores,
            attention_scores_f32,
            attention_scores_f16,
            attention_scores_bf16,
            E
        );
        Ok(geometry.map(|geometry| {
            attention_scores::Args {
                num_tokens: inputs.num_tokens,
                seq_ids: inputs.seq_ids,
                cu_seqlens_q: inputs.cu_seqlens_q,
                kv_lens: inputs.kv_lens,
                block_table: inputs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                q: q.untyped_ptr(),
                q_stride,
                k_pool: untyped(k_pool),
                scores,
                num_heads: params.num_heads,
                num_kv_heads: params.num_kv_heads,
                head_dim: params.head_dim,
                key_lanes: params.key_lanes,
                softmax_scale: self.softcap.unwrap_or(self.softmax_scale),
                causal: params.causal,
                window: params.window,
                aligned: aligned.into(),
                softcap: self.softcap.map_or(0.0, |cap| self.softmax_scale / cap),
            }
            .launch(instance, geometry)
        }))
    }

    /// The launch that makes `probabilities` of `scores`, or `None` if there is nothing to compute.
    /// `sinks` are as in [`AttentionOperands`](crate::attention::AttentionOperands).
    ///
    /// # Errors
    /// As [`MaterializedAttention::scores`].
    pub fn softmax<E: Number>(
        &self,
        inputs: &TokenInputs,
        scores: DevicePtr<f32>,
        probabilities: DevicePtr<E>,
        sinks: DevicePtr<f32>,
    ) -> Result<Option<Launch>, LaunchError> {
        let params = self.params()?;
        let geometry = self.geometry([self.num_heads, 1])?;
        let instance = instance!(
            attention_softmax,
            attention_softmax_f32,
            attention_softmax_f16,
            attention_softmax_bf16,
            E
        );
        Ok(geometry.map(|geometry| {
            attention_softmax::Args {
                num_tokens: inputs.num_tokens,
                seq_ids: inputs.seq_ids,
                cu_seqlens_q: inputs.cu_seqlens_q,
                kv_lens: inputs.kv_lens,
                max_pages_per_seq: params.max_pages_per_seq,
                scores,
                probabilities: untyped(probabilities),
                num_heads: params.num_heads,
                causal: params.causal,
                window: params.window,
                sinks,
            }
            .launch(instance, geometry)
        }))
    }

    /// The launch that multiplies `probabilities` with the values, or `None` if there is nothing to
    /// compute.
    ///
    /// # Errors
    /// As [`MaterializedAttention::scores`].
    pub fn values<E: Number>(
        &self,
        inputs: &TokenInputs,
        probabilities: DevicePtr<E>,
        v_pool: DevicePtr<E>,
        out: Rows<E>,
    ) -> Result<Option<Launch>, LaunchError> {
        let params = self.params()?;
        let out_stride = out.stride_arg()?;
        let aligned = self.is_aligned::<E>() && out.is_aligned() && is_aligned(v_pool);
        let geometry = self.geometry([self.num_heads, 1])?;
        let instance = instance!(
            attention_values,
            attention_values_f32,
            attention_values_f16,
            attention_values_bf16,
            E
        );
        Ok(geometry.map(|geometry| {
            attention_values::Args {
                num_tokens: inputs.num_tokens,
                seq_ids: inputs.seq_ids,
                cu_seqlens_q: inputs.cu_seqlens_q,
                kv_lens: inputs.kv_lens,
                block_table: inputs.block_table,
                max_pages_per_seq: params.max_pages_per_seq,
                probabilities: untyped(probabilities),
                v_pool: untyped(v_pool),
                out: out.untyped_ptr(),
                out_stride,
                num_heads: params.num_heads,
                num_kv_heads: params.num_kv_heads,
                head_dim: params.head_dim,
                key_lanes: params.key_lanes,
                causal: params.causal,
                window: params.window,
                aligned: aligned.into(),
            }
            .launch(instance, geometry)
        }))
    }

    fn geometry(&self, [y, z]: [usize; 2]) -> Result<Option<Geometry>, LaunchError> {
        Geometry::new([self.max_tokens, y, z], NUM_THREADS as usize, 0)
    }

    /// Whether each head of an aligned row is.
    fn is_aligned<E>(&self) -> bool {
        (self.head_dim * size_of::<E>()).is_multiple_of(16)
    }

    fn params(&self) -> Result<Params, LaunchError> {
        let &Self { num_heads, num_kv_heads, head_dim, window, .. } = self;
        let refuse = |what, value, expected| Err(LaunchError::Shape { what, value, expected });
        if head_dim == 0 || head_dim > MAX_HEAD_DIM as usize {
            return refuse("head_dim", head_dim, "from 1 to 256");
        }
        if num_heads == 0 || num_kv_heads == 0 || !num_heads.is_multiple_of(num_kv_heads) {
            return refuse("num_kv_heads", num_kv_heads, "a divisor of num_heads");
        }
        if window == Some(0) {
            return refuse("window", 0, "at least 1");
        }
        let key_lanes = (head_dim as u32).div_ceil(VEC_ELEMS).next_power_of_two();
        Ok(Params {
            max_pages_per_seq: arg_u32("max_pages_per_seq", self.max_pages_per_seq)?,
            num_heads: arg_u32("num_heads", num_heads)?,
            num_kv_heads: num_kv_heads as u32,
            head_dim: head_dim as u32,
            key_lanes: key_lanes.max(MIN_KEY_LANES),
            causal: self.causal.into(),
            // A larger window never masks.
            window: window.map_or(u32::MAX, |window| window.min(u32::MAX as usize) as u32),
        })
    }
}
