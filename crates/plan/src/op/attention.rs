//! Attention over the paged cache, and what may be fused with it.

use crate::{ConstantId, View, WeightId};

/// RMSNorm of each head of Q and of K, in place: two [`Op::RmsNorm`](crate::Op::RmsNorm).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// `[head_dim]`.
    pub q: WeightId,
    /// `[head_dim]`.
    pub k: WeightId,
    /// Added to the mean of squares.
    pub eps: f32,
}

/// [`QkNorm`], if there is one, [`Op::Rope`](crate::Op::Rope) of `q` and `k`, then
/// [`Op::KvAppend`](crate::Op::KvAppend) of `k` and `v`,
/// to the same bits; but the rotated `k` goes to the cache alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeAppend {
    /// Layer of the cache.
    pub layer: usize,
    /// Norm before the rotation.
    pub norm: Option<QkNorm>,
    /// `[tokens, num_heads * head_dim]`, rotated in place.
    pub q: View,
    /// `[tokens, num_kv_heads * head_dim]`; stays as it is.
    pub k: View,
    /// `[tokens, num_kv_heads * head_dim]`.
    pub v: View,
    /// `[max_positions, rotary_dim]`.
    pub table: ConstantId,
    /// Columns of a head.
    pub head_dim: usize,
}

/// Attention over the paged cache.
///
/// Token `t` of sequence `s` is at position `p = kv_lens[s] - q_len[s] + (t - cu_seqlens_q[s])`. In
/// causal attention it sees the positions `0 ..= p`, of those with a window `w` only the last `w`:
/// `p - w < j <= p`. In full attention it sees the positions `0 .. kv_lens[s]`, of those with a
/// window only `p - w < j < p + w`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Attention {
    /// Layer of the cache.
    pub layer: usize,
    /// `[tokens, num_heads * head_dim]`.
    pub q: View,
    /// `[tokens, num_heads * head_dim]`.
    pub out: View,
    /// Query heads; `num_heads / num_kv_heads` share a KV head.
    pub num_heads: usize,
    /// KV heads.
    pub num_kv_heads: usize,
    /// Columns of a head.
    pub head_dim: usize,
    /// Multiplies the scores before the softmax.
    pub softmax_scale: f32,
    /// Bends the scaled scores `s` to `softcap * tanh(s / softcap)`.
    pub softcap: Option<f32>,
    /// Whether a token sees no position after its own.
    pub causal: bool,
    /// Sliding window, in positions; to both sides in full attention.
    pub window: Option<usize>,
    /// `[num_heads]`: a score of each query head, beside those of the keys, that has no value. It
    /// takes part in the softmax's maximum and sum.
    pub sinks: Option<WeightId>,
}

/// [`RopeAppend`], then [`Attention`] of its `q`, to the same bits; but `q` stays as it is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AppendAttention {
    /// RoPE and append, in the layer that is attended to.
    pub append: RopeAppend,
    /// Attention of the tokens that are appended.
    pub attention: Attention,
}

/// [`Attention`] in three operations, with its scores and probabilities in memory. Of a token's row
/// they hold the keys that it sees; other columns are anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MaterializedAttention {
    /// What is computed.
    pub attention: Attention,
    /// `[tokens, num_heads * score_columns]` f32, see
    /// [`Bounds::score_columns`](crate::Bounds::score_columns).
    pub scores: View,
    /// As `scores`, of the cache's type.
    pub probabilities: View,
}
