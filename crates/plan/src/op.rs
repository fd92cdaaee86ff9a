//! The operations.

mod attention;
mod delta;
mod encoder;
mod experts;

pub use attention::{AppendAttention, Attention, MaterializedAttention, QkNorm, RopeAppend};
pub use delta::{CausalConv, DeltaRule};
pub use encoder::LayerNorm;
pub use experts::{ExpertGate, ExpertLinear, Groups, Route, Router, Scores, SharedExpert};

use super::{Activation, ConstantId, View, WeightId};

/// One operation of a plan. Rows are those of its views; sizes of a real step come from the step
/// inputs.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out[t, :] = scale * table[token_ids[t], :]`.
    Embedding {
        /// `[vocab_size, hidden_size]`.
        table: WeightId,
        /// `[tokens, hidden_size]`.
        out: View,
        /// Multiplies every element.
        scale: f32,
    },
    /// `out = x`, rounded to the type of `out`.
    Cast {
        /// `[rows, width]`, f32 or 16 bits.
        x: View,
        /// As `x`, of the other.
        out: View,
    },
    /// `out[t, g, i] = x[t, g, i] * rsqrt(mean_i(x[t, g, i]^2) + eps) * weight[i]` over groups of
    /// `weight.cols` columns: one group for a norm of the hidden state, one a head for QK-norm.
    /// `out` may be `x`.
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
    /// `residual += norm(x)`: [`Op::RmsNorm`], then [`Op::Add`], to the same bits.
    NormAdd {
        /// `[rows, num_groups * weight.cols]` f32.
        x: View,
        /// `[weight.cols]`.
        weight: WeightId,
        /// Added to the mean of squares.
        eps: f32,
        /// As `x`.
        residual: View,
    },
    /// A norm that subtracts the mean.
    LayerNorm(LayerNorm),
    /// `x[t, :] += table[positions[t], :]`, of learned positions.
    AddTable {
        /// `[tokens, width]` f32.
        x: View,
        /// `[*, width]`.
        table: ConstantId,
    },
    /// `out = gelu(x) (* up)`, by the error function. `out` may be `x` or `up`.
    Gelu {
        /// `[rows, width]`.
        x: View,
        /// As `x`.
        up: Option<View>,
        /// As `x`.
        out: View,
    },
    /// `out[r, :] =` the mean of `x[t, :]` over the tokens `t` of the sequence of the step that the
    /// token `logit_rows[r]` is of.
    MeanRows {
        /// `[tokens, width]` f32.
        x: View,
        /// `[logit_rows, width]` f32.
        out: View,
    },
    /// A linear layer, and what may be fused with it.
    Linear(Linear),
    /// Which experts a token goes to, and how much each of them counts.
    Route(Route),
    /// A linear layer of each expert, for the tokens that go to it.
    ExpertLinear(ExpertLinear),
    /// Rotary embedding in place, of each head's first `rotary_dim` columns, halves form (`i` with
    /// `i + rotary_dim / 2`): `table[positions[t]]` holds `rotary_dim / 2` cosines, then as many
    /// sines (attention scaling included).
    Rope {
        /// `[tokens, num_heads * head_dim]`: the Q and K columns side by side.
        x: View,
        /// `[max_positions, rotary_dim]`.
        table: ConstantId,
        /// Columns of a head.
        head_dim: usize,
    },
    /// Writes `k[t]` and `v[t]` to slot `slot_mapping[t]` of a layer's pools, converting to the
    /// cache's element type.
    KvAppend {
        /// Layer of the cache.
        layer: usize,
        /// `[tokens, num_kv_heads * head_dim]`.
        k: View,
        /// `[tokens, num_kv_heads * head_dim]`.
        v: View,
    },
    /// RoPE of Q and K and the append of K and V, fused.
    RopeAppend(RopeAppend),
    /// Attention of each sequence's new tokens against its pages of the cache (their own keys
    /// included: the append comes first).
    Attention(Attention),
    /// A convolution over the tokens of each sequence.
    CausalConv(CausalConv),
    /// Linear attention by the gated delta rule.
    DeltaRule(DeltaRule),
    /// RoPE and append of the new tokens, then their attention, fused.
    AppendAttention(AppendAttention),
    /// The scores of [`MaterializedAttention`]: `softmax_scale * q . k` of each key that a token
    /// sees, capped.
    AttentionScores(MaterializedAttention),
    /// Probabilities of [`MaterializedAttention`]: the softmax of the scores.
    AttentionSoftmax(MaterializedAttention),
    /// Output of [`MaterializedAttention`]: the values weighted with the probabilities.
    AttentionValues(MaterializedAttention),
    /// `out = activation(gate) * up`.
    Gate {
        /// What `gate` goes through.
        activation: Activation,
        /// `[tokens, intermediate_size]`.
        gate: View,
        /// `[tokens, intermediate_size]`.
        up: View,
        /// `[tokens, intermediate_size]`.
        out: View,
    },
    /// `out[t, i] = sigmoid(gate[t, i]) * x[t, i]`; a gate of one column is that of all of them.
    /// `out` may be `x`.
    SigmoidGate {
        /// `[tokens, width]` or `[tokens, 1]`.
        gate: View,
        /// `[tokens, width]`.
        x: View,
        /// As `x`.
        out: View,
        /// Whether it is added to what `out` holds: with [`Op::Add`], to the same bits.
        adds: bool,
    },
    /// `x[t, i] *= factors[0]`, in place, or that of each element's index.
    Scale {
        /// `[rows, width]` f32.
        x: View,
        /// `[n]`.
        factors: WeightId,
        /// As `x`, u32 below `n`: `x[t, i] *= factors[indices[t, i]]`.
        indices: Option<View>,
    },
    /// `out = x + residual`. `out` may be `residual`.
    Add {
        /// `[tokens, hidden_size]`.
        x: View,
        /// As `x`.
        residual: View,
        /// As `x`.
        out: View,
    },
    /// A sum over all ranks, and what may be fused with it.
    AllReduce(AllReduce),
    /// The columns of all ranks' `x` side by side, in the order of the ranks.
    AllGather {
        /// The rank's own columns.
        x: View,
        /// Where they are among those of all.
        first_column: usize,
        /// The columns of all.
        out: View,
    },
    /// `out[r, :] = x[logit_rows[r], :]`.
    GatherRows {
        /// `[tokens, width]`.
        x: View,
        /// `[logit_rows, width]`.
        out: View,
    },
    /// `x = cap * tanh(x / cap)`, in place.
    Softcap {
        /// `[rows, width]` f32.
        x: View,
        /// What no element is larger than.
        cap: f32,
    },
    /// `out[r] =` a token drawn from the logits `x[r, :]` as the step's
    /// [`sampling`](super::StepInputs::sampling) says, or why there is none: see
    /// [`NextToken`](kernels::sampling::NextToken).
    Sample {
        /// `[logit_rows, vocab_size]`.
        x: View,
        /// `[logit_rows, 1]` u32.
        out: View,
    },
}

/// A linear layer: `out[t, n] = sum_k x[t, k] * weight[n, k] (+ bias[n]) (+ residual[t, n])`. `out`
/// may be `residual`.
///
/// With a norm or a gate before it, or a gate after it, it gives the same bits as [`Op::RmsNorm`]
/// or [`Op::Gate`], itself and [`Op::Gate`] one after the other: the values between them are
/// rounded to the type of the operands, and not stored. With a residual it is itself to f32 and
/// [`Op::Add`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Linear {
    /// `[rows, k]`: of the weight's type; of f32, where it has a norm.
    pub x: View,
    /// What `x` goes through first.
    pub norm: Option<Norm>,
    /// What `x` is gated with first, to `activation(gate) * x`; gate is `[rows, k]`. Then there is
    /// no norm.
    pub gate_before: Option<(Activation, View)>,
    /// `[n, k]`.
    pub weight: WeightId,
    /// `[n]`.
    pub bias: Option<WeightId>,
    /// The activation, if the first half of the `n` columns is a gate for the second:
    /// `activation(gate) * up` are `n / 2` columns. Then there is no residual.
    pub gate: Option<Activation>,
    /// As `out`.
    pub residual: Option<View>,
    /// `[rows, n]`, or `[rows, n / 2]` after a gate.
    pub out: View,
}

impl Linear {
    /// `out[t, n] = sum_k x[t, k] * weight[n, k]`.
    pub const fn new(x: View, weight: WeightId, out: View) -> Self {
        let (norm, gate_before, bias, gate, residual) = (None, None, None, None, None);
        Linear { x, norm, gate_before, weight, bias, gate, residual, out }
    }
}

/// `x` becomes the sum of all ranks' `x`, added in f32 in the order of the ranks and rounded once.
///
/// With a residual and a norm it gives the same bits as itself, [`Op::Add`] and [`Op::RmsNorm`] one
/// after the other; `x` is anything then. Each rank may have added to some rows of the residual
/// alone: what reads it next is another sum that is added to it. One without a norm gives all ranks
/// all rows again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllReduce {
    /// Addend of this rank, of the same shape on every rank.
    pub x: View,
    /// As `x`: the sum is added to it.
    pub residual: Option<View>,
    /// The norm of the residual, and where it goes, as `x`.
    pub norm: Option<(Norm, View)>,
}

impl AllReduce {
    /// The sum alone.
    pub const fn new(x: View) -> Self {
        AllReduce { x, residual: None, norm: None }
    }
}

/// RMSNorm over whole rows, as in [`Op::RmsNorm`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Norm {
    /// `[k]`.
    pub weight: WeightId,
    /// Added to the mean of squares.
    pub eps: f32,
}

impl Op {
    /// Name of the operation, for profiles and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Embedding { .. } => "embedding",
            Op::Cast { .. } => "cast",
            Op::RmsNorm { .. } => "rms_norm",
            Op::NormAdd { .. } => "norm_add",
            Op::LayerNorm(_) => "layer_norm",
            Op::AddTable { .. } => "add_table",
            Op::Gelu { up: None, .. } => "gelu",
            Op::Gelu { .. } => "gelu_mul",
            Op::MeanRows { .. } => "mean_rows",
            Op::Linear(Linear { gate_before: Some((activation, _)), .. }) => {
                activation.gate_linear_name()
            }
            Op::Linear(Linear { norm: None, gate: None, .. }) => "linear",
            Op::Linear(Linear { norm: Some(_), gate: None, .. }) => "norm_linear",
            Op::Linear(Linear { norm: None, .. }) => "linear_gate",
            Op::Linear(_) => "norm_linear_gate",
            Op::Route(Route { router: None, .. }) => "route",
            Op::Route(_) => "norm_route",
            Op::ExpertLinear(_) => "expert_linear",
            Op::Rope { .. } => "rope",
            Op::KvAppend { .. } => "kv_append",
            Op::RopeAppend(RopeAppend { norm: None, .. }) => "rope_append",
            Op::RopeAppend(_) => "norm_rope_append",
            Op::Attention(_) => "attention",
            Op::CausalConv(_) => "causal_conv",
            Op::DeltaRule(_) => "delta_rule",
            Op::AppendAttention(op) if op.append.norm.is_none() => "append_attention",
            Op::AppendAttention(_) => "norm_append_attention",
            Op::AttentionScores(_) => "attention_scores",
            Op::AttentionSoftmax(_) => "attention_softmax",
            Op::AttentionValues(_) => "attention_values",
            Op::Gate { activation, .. } => activation.gate_name(),
            Op::SigmoidGate { adds: false, .. } => "sigmoid_gate",
            Op::SigmoidGate { .. } => "sigmoid_gate_add",
            Op::Scale { .. } => "scale",
            Op::Add { .. } => "add",
            Op::AllReduce(AllReduce { residual: None, .. }) => "all_reduce",
            Op::AllReduce(AllReduce { norm: None, .. }) => "all_reduce_add",
            Op::AllReduce(_) => "all_reduce_norm",
            Op::AllGather { .. } => "all_gather",
            Op::GatherRows { .. } => "gather_rows",
            Op::Softcap { .. } => "softcap",
            Op::Sample { .. } => "sample",
        }
    }

    /// Whether all ranks take part in it, each with its own operation of the same index.
    pub fn is_collective(&self) -> bool {
        matches!(self, Op::AllReduce(_) | Op::AllGather { .. })
    }

    /// Activations that it reads.
    pub fn reads(&self) -> Vec<View> {
        match *self {
            Op::Embedding { .. } => vec![],
            Op::RmsNorm { x, .. }
            | Op::LayerNorm(LayerNorm { x, .. })
            | Op::AddTable { x, .. }
            | Op::MeanRows { x, .. }
            | Op::Cast { x, .. }
            | Op::Rope { x, .. }
            | Op::AllGather { x, .. }
            | Op::GatherRows { x, .. }
            | Op::Softcap { x, .. }
            | Op::CausalConv(CausalConv { x, .. })
            | Op::Sample { x, .. } => {
                vec![x]
            }
            Op::Gelu { x, up, .. } => [x].into_iter().chain(up).collect(),
            Op::Linear(Linear { x, gate_before, residual, .. }) => {
                let gate = gate_before.map(|(_, gate)| gate);
                [x].into_iter().chain(gate).chain(residual).collect()
            }
            Op::Route(Route { router, logits, .. }) => {
                vec![router.map_or(logits, |router| router.x)]
            }
            Op::ExpertLinear(ExpertLinear { x, experts, weights, residual, .. }) => {
                [x, experts].into_iter().chain(weights).chain(residual).collect()
            }
            Op::AllReduce(AllReduce { x, residual, .. }) => {
                [x].into_iter().chain(residual).collect()
            }
            Op::KvAppend { k, v, .. } => vec![k, v],
            Op::RopeAppend(RopeAppend { q, k, v, .. })
            | Op::AppendAttention(AppendAttention { append: RopeAppend { q, k, v, .. }, .. }) => {
                vec![q, k, v]
            }
            Op::Attention(Attention { q, .. }) => vec![q],
            Op::AttentionScores(op) => vec![op.attention.q],
            Op::AttentionSoftmax(op) => vec![op.scores],
            Op::AttentionValues(op) => vec![op.probabilities],
            Op::DeltaRule(DeltaRule { q, k, v, gates, .. }) => vec![q, k, v, gates],
            Op::Gate { gate, up, .. } => vec![gate, up],
            Op::SigmoidGate { gate, x, out, adds } => {
                [gate, x].into_iter().chain(adds.then_some(out)).collect()
            }
            Op::NormAdd { x, residual, .. } | Op::Add { x, residual, .. } => vec![x, residual],
            Op::Scale { x, indices, .. } => [x].into_iter().chain(indices).collect(),
        }
    }

    /// Activations that it writes.
    pub fn writes(&self) -> Vec<View> {
        match *self {
            Op::Embedding { out, .. }
            | Op::Cast { out, .. }
            | Op::RmsNorm { out, .. }
            | Op::Gelu { out, .. }
            | Op::MeanRows { out, .. }
            | Op::Linear(Linear { out, .. })
            | Op::ExpertLinear(ExpertLinear { out, .. })
            | Op::Gate { out, .. }
            | Op::SigmoidGate { out, .. }
            | Op::CausalConv(CausalConv { out, .. })
            | Op::DeltaRule(DeltaRule { out, .. })
            | Op::Add { out, .. }
            | Op::AllGather { out, .. }
            | Op::GatherRows { out, .. }
            | Op::Sample { out, .. }
            | Op::Attention(Attention { out, .. })
            | Op::AppendAttention(AppendAttention { attention: Attention { out, .. }, .. }) => {
                vec![out]
            }
            Op::NormAdd { residual, .. } => vec![residual],
            Op::LayerNorm(LayerNorm { x, out, keeps, .. }) => {
                [out].into_iter().chain(keeps.then_some(x)).collect()
            }
            Op::Rope { x, .. }
            | Op::Softcap { x, .. }
            | Op::Scale { x, .. }
            | Op::AddTable { x, .. } => vec![x],
            Op::Route(Route { router, logits, experts, weights, .. }) => {
                let of_router = router.map(|router| [router.normed, logits]);
                of_router.into_iter().flatten().chain([experts, weights]).collect()
            }
            Op::AllReduce(AllReduce { x, residual, norm }) => {
                [x].into_iter().chain(residual).chain(norm.map(|(_, out)| out)).collect()
            }
            Op::RopeAppend(RopeAppend { q, .. }) => vec![q],
            Op::AttentionScores(op) => vec![op.scores],
            Op::AttentionSoftmax(op) => vec![op.probabilities],
            Op::AttentionValues(op) => vec![op.attention.out],
            Op::KvAppend { .. } => vec![],
        }
    }

    /// Weights that it reads.
    pub fn weights(&self) -> Vec<WeightId> {
        match *self {
            Op::Embedding { table, .. } => vec![table],
            Op::LayerNorm(LayerNorm { weight, bias, .. }) => {
                [weight].into_iter().chain(bias).collect()
            }
            Op::Scale { factors, .. } => vec![factors],
            Op::ExpertLinear(ExpertLinear { weight, bias, gate, .. }) => {
                let of_gate = gate.map(|gate| [Some(gate.up), gate.bias]);
                let others = [bias].into_iter().chain(of_gate.into_iter().flatten()).flatten();
                [weight].into_iter().chain(others).collect()
            }
            Op::Route(ref route) => {
                let bias = match route.scores {
                    Scores::Softmax => None,
                    Scores::Sigmoid { bias, .. } => Some(bias),
                };
                route.router_ops().flat_map(|op| op.weights()).chain(bias).collect()
            }
            Op::RopeAppend(RopeAppend { norm, .. }) => {
                norm.into_iter().flat_map(|norm| [norm.q, norm.k]).collect()
            }
            Op::AppendAttention(AppendAttention { append, attention }) => {
                let of_norm = Op::RopeAppend(append).weights();
                of_norm.into_iter().chain(attention.sinks).collect()
            }
            Op::Attention(Attention { sinks, .. })
            | Op::AttentionSoftmax(MaterializedAttention {
                attention: Attention { sinks, .. },
                ..
            }) => sinks.into_iter().collect(),
            Op::DeltaRule(DeltaRule { rate, bias, .. }) => vec![rate, bias],
            Op::CausalConv(CausalConv { weight, .. })
            | Op::RmsNorm { weight, .. }
            | Op::NormAdd { weight, .. }
            | Op::AllReduce(AllReduce { norm: Some((Norm { weight, .. }, _)), .. }) => {
                vec![weight]
            }
            Op::Linear(Linear { norm, weight, bias, .. }) => {
                let norm = norm.map(|norm| norm.weight);
                norm.into_iter().chain([weight]).chain(bias).collect()
            }
            _ => vec![],
        }
    }

    /// The layer of the cache that it appends to.
    pub fn appends_to(&self) -> Option<usize> {
        match *self {
            Op::KvAppend { layer, .. } => Some(layer),
            _ => self.rope_append().map(|append| append.layer),
        }
    }

    /// The rotary embedding and the append that it begins with.
    pub fn rope_append(&self) -> Option<&RopeAppend> {
        match self {
            Op::RopeAppend(append) | Op::AppendAttention(AppendAttention { append, .. }) => {
                Some(append)
            }
            _ => None,
        }
    }

    /// The part of attention in three operations that it is.
    pub fn materialized_attention(&self) -> Option<&MaterializedAttention> {
        match self {
            Op::AttentionScores(op) | Op::AttentionSoftmax(op) | Op::AttentionValues(op) => {
                Some(op)
            }
            _ => None,
        }
    }

    /// The attention that it ends with.
    pub fn attention(&self) -> Option<&Attention> {
        match self {
            Op::Attention(attention) | Op::AppendAttention(AppendAttention { attention, .. }) => {
                Some(attention)
            }
            _ => None,
        }
    }
}
