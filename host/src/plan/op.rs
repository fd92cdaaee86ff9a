//! The operations.

use super::{ConstantId, View, WeightId};

/// One operation of a plan. Rows are those of its views; sizes of a real step come from the step inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[t, :] = table[token_ids[t], :]`.
    Embedding {
        /// `[vocab_size, hidden_size]`.
        table: WeightId,
        /// `[tokens, hidden_size]`.
        out: View,
    },
    /// `out[t, g, i] = x[t, g, i] * rsqrt(mean_i(x[t, g, i]^2) + eps) * weight[i]` over groups of `weight.cols` columns:
    /// one group for a norm of the hidden state, one a head for QK-norm. `out` may be `x`.
    RmsNorm {
        /// `[rows, num_groups * weight.cols]`.
        x: View,
        /// `[weight.cols]`.
        weight: WeightId,
        /// As `x`.
        out: View,
        /// Added to the mean of squares.
        eps: f32,
    },
    /// `out[t, n] = sum_k x[t, k] * weight[n, k] (+ bias[n]) (+ residual[t, n])`. `out` may be `residual`.
    Linear {
        /// `[rows, k]`.
        x: View,
        /// `[n, k]`.
        weight: WeightId,
        /// `[n]`.
        bias: Option<WeightId>,
        /// `[rows, n]`.
        residual: Option<View>,
        /// `[rows, n]`.
        out: View,
    },
    /// Rotary embedding in place, of each head's first `rotary_dim` columns, halves form (`i` with `i + rotary_dim / 2`):
    /// `table[positions[t]]` holds `rotary_dim / 2` cosines, then as many sines (attention scaling included).
    Rope {
        /// `[tokens, num_heads * head_dim]`: the Q and K columns side by side.
        x: View,
        /// `[max_positions, rotary_dim]`.
        table: ConstantId,
        /// Columns of a head.
        head_dim: usize,
    },
    /// Writes `k[t]` and `v[t]` to slot `slot_mapping[t]` of a layer's pools, converting to the cache's element type.
    KvAppend {
        /// Layer of the cache.
        layer: usize,
        /// `[tokens, num_kv_heads * head_dim]`.
        k: View,
        /// `[tokens, num_kv_heads * head_dim]`.
        v: View,
    },
    /// Causal attention of each sequence's new tokens against its pages of the cache (their own keys included: the
    /// append comes first).
    Attention(Attention),
    /// `out = silu(gate) * up`.
    SiluMul {
        /// `[tokens, intermediate_size]`.
        gate: View,
        /// `[tokens, intermediate_size]`.
        up: View,
        /// `[tokens, intermediate_size]`.
        out: View,
    },
    /// `out[r, :] = x[logit_rows[r], :]`.
    GatherRows {
        /// `[tokens, width]`.
        x: View,
        /// `[logit_rows, width]`.
        out: View,
    },
    /// `out[r] =` the smallest index of the largest `x[r, :]`; NaN counts as smaller than everything.
    Argmax {
        /// `[logit_rows, vocab_size]`.
        x: View,
        /// `[logit_rows, 1]` u32.
        out: View,
    },
}

/// Causal attention over the paged cache.
///
/// Token `t` of sequence `s` stands at position `p = kv_lens[s] - q_len[s] + (t - cu_seqlens_q[s])` and sees the
/// positions `0 ..= p`, of those with a window `w` only the last `w`: `p - w < j <= p`.
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
    /// Sliding window, in positions.
    pub window: Option<usize>,
}

impl Op {
    /// Its name, for profiles and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embedding { .. } => "embedding",
            Op::RmsNorm { .. } => "rms_norm",
            Op::Linear { .. } => "linear",
            Op::Rope { .. } => "rope",
            Op::KvAppend { .. } => "kv_append",
            Op::Attention(_) => "attention",
            Op::SiluMul { .. } => "silu_mul",
            Op::GatherRows { .. } => "gather_rows",
            Op::Argmax { .. } => "argmax",
        }
    }

    /// Activations that it reads.
    pub fn reads(&self) -> Vec<View> {
        match *self {
            Op::Embedding { .. } => vec![],
            Op::RmsNorm { x, .. }
            | Op::Rope { x, .. }
            | Op::GatherRows { x, .. }
            | Op::Argmax { x, .. } => {
                vec![x]
            }
            Op::Linear { x, residual, .. } => [x].into_iter().chain(residual).collect(),
            Op::KvAppend { k, v, .. } => vec![k, v],
            Op::Attention(Attention { q, .. }) => vec![q],
            Op::SiluMul { gate, up, .. } => vec![gate, up],
        }
    }

    /// Activations that it writes.
    pub fn writes(&self) -> Vec<View> {
        match *self {
            Op::Embedding { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Linear { out, .. }
            | Op::SiluMul { out, .. }
            | Op::GatherRows { out, .. }
            | Op::Argmax { out, .. }
            | Op::Attention(Attention { out, .. }) => vec![out],
            Op::Rope { x, .. } => vec![x],
            Op::KvAppend { .. } => vec![],
        }
    }

    /// Weights that it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match *self {
            Op::Embedding { table, .. } => vec![table],
            Op::RmsNorm { weight, .. } => vec![weight],
            Op::Linear { weight, bias, .. } => [weight].into_iter().chain(bias).collect(),
            _ => vec![],
        }
    }
}
