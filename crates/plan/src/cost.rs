//! What a step must move and compute: bytes and operations, from the plan and the real sizes of the
//! step.

use super::{
    AllReduce, Attention, CausalConv, DeltaRule, ExpertLinear, LayerNorm, Linear,
    MaterializedAttention, Op, Plan, RopeAppend, Rows, StepInputs, View,
};

/// Operations of a norm for each element.
const NORM_FLOPS: usize = 4;
/// Operations of RoPE for each element.
const ROPE_FLOPS: usize = 3;
/// Operations of a softmax for each score.
const SOFTMAX_FLOPS: usize = 4;
/// Operations of a soft cap for each element.
const SOFTCAP_FLOPS: usize = 5;
/// Operations of a gate for each element of its output.
const GATE_FLOPS: usize = 5;

/// The sizes of a real step that its cost depends on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// New tokens.
    pub num_tokens: usize,
    /// Rows whose logits are computed.
    pub num_logit_rows: usize,
    /// The sequences.
    pub seqs: Vec<SeqShape>,
}

/// The sizes of a sequence of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SeqShape {
    /// New tokens.
    pub q_len: usize,
    /// Cached positions, its new tokens included.
    pub kv_len: usize,
}

impl StepShape {
    /// The shape of `inputs`.
    pub fn of(inputs: &StepInputs) -> Self {
        let q_lens = inputs.cu_seqlens_q.windows(2).map(|ends| (ends[1] - ends[0]) as usize);
        let kv_lens = inputs.kv_lens.iter().map(|&len| len as usize);
        let seq = |(q_len, kv_len)| SeqShape { q_len, kv_len };
        StepShape {
            num_tokens: inputs.num_tokens(),
            num_logit_rows: inputs.logit_rows.len(),
            seqs: q_lens.zip(kv_lens).map(seq).collect(),
        }
    }

    /// Cached positions of all sequences that a token of the step sees by `attention`.
    fn positions(&self, attention: &Attention) -> usize {
        let seen = |seq: &SeqShape| match attention.window {
            Some(window) if attention.causal => {
                seq.kv_len.min((seq.q_len + window).saturating_sub(1))
            }
            // Tokens of a step that looks ahead are whole sequences.
            _ => seq.kv_len,
        };
        self.seqs.iter().map(seen).sum()
    }

    /// Pairs of a token of the step and a position that it sees by `attention`.
    fn pairs(&self, attention: &Attention) -> usize {
        let window = attention.window.unwrap_or(usize::MAX);
        // What the first `len` tokens of a sequence see, each itself and those before it.
        let up_to = |len: usize| {
            let whole = len.min(window);
            whole * (whole + 1) / 2 + (len - whole) * window
        };
        let seen = |&SeqShape { q_len, kv_len }: &SeqShape| match attention.causal {
            true => up_to(kv_len) - up_to(kv_len - q_len),
            false if window >= kv_len => q_len * kv_len,
            // To both sides, and each token itself once.
            false => 2 * (up_to(kv_len) - up_to(kv_len - q_len)) - q_len,
        };
        self.seqs.iter().map(seen).sum()
    }
}

/// Bytes and floating-point operations; each input read once, each output written once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes read from device memory.
    pub read_bytes: usize,
    /// Bytes written to device memory.
    pub written_bytes: usize,
    /// Floating-point operations; a multiply-add is two.
    pub flops: usize,
}

impl std::ops::Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            read_bytes: self.read_bytes + other.read_bytes,
            written_bytes: self.written_bytes + other.written_bytes,
            flops: self.flops + other.flops,
        }
    }
}

impl Plan {
    /// The cost of a whole step.
    pub fn cost(&self, shape: &StepShape) -> Cost {
        self.ops
            .iter()
            .map(|op| self.op_cost(op, shape))
            .fold(Cost::default(), |total, cost| total + cost)
    }

    /// The cost of one operation of this plan.
    pub fn op_cost(&self, op: &Op, shape: &StepShape) -> Cost {
        let stored = op.materialized_attention();
        let bytes = |view: View| {
            let elems = match stored {
                // Of the keys that a token sees, and no others.
                Some(op) if [op.scores, op.probabilities].contains(&view) => {
                    shape.pairs(&op.attention) * op.attention.num_heads
                }
                _ => self.view_elems(view, shape),
            };
            elems * self.tensor(view.tensor).dtype.block_bytes()
        };
        let mut cost = Cost {
            read_bytes: match *op {
                // The rows that it writes, and no others.
                Op::GatherRows { out, .. } => bytes(out),
                _ => op.reads().into_iter().map(bytes).sum(),
            },
            written_bytes: op.writes().into_iter().map(bytes).sum(),
            flops: 0,
        };
        for weight in op.weights() {
            let weight = self.weight(weight);
            cost.read_bytes += match op {
                Op::Embedding { .. } => weight.bytes() / weight.rows * shape.num_tokens,
                Op::ExpertLinear(op) => {
                    let expected = expected_experts(op, shape.num_tokens);
                    (weight.bytes() as f64 / op.num_experts as f64 * expected) as usize
                }
                _ => weight.bytes(),
            };
        }
        let kv_row_bytes = |layer| self.kv.position_bytes(layer).iter().sum::<usize>();
        if let Some(layer) = op.appends_to() {
            cost.written_bytes += kv_row_bytes(layer) * shape.num_tokens;
        }
        match op {
            Op::Embedding { .. }
            | Op::Cast { .. }
            | Op::KvAppend { .. }
            | Op::AllGather { .. }
            | Op::GatherRows { .. }
            | Op::AttentionScores(_)
            | Op::AttentionSoftmax(_)
            | Op::AttentionValues(_)
            | Op::Sample { .. } => {}
            Op::NormAdd { x, .. } => cost.flops = (NORM_FLOPS + 1) * self.view_elems(*x, shape),
            Op::RmsNorm { x, .. } | Op::LayerNorm(LayerNorm { x, .. }) => {
                cost.flops = NORM_FLOPS * self.view_elems(*x, shape)
            }
            Op::AddTable { x, .. } | Op::MeanRows { x, .. } => {
                cost.flops = self.view_elems(*x, shape)
            }
            Op::Gelu { out, .. } => cost.flops = GATE_FLOPS * self.view_elems(*out, shape),
            Op::Rope { x, .. } => cost.flops = ROPE_FLOPS * self.view_elems(*x, shape),
            Op::RopeAppend(_) | Op::Attention(_) | Op::AppendAttention(_) => {}
            Op::Gate { out, .. } => cost.flops = GATE_FLOPS * self.view_elems(*out, shape),
            Op::SigmoidGate { out, adds, .. } => {
                cost.flops = (GATE_FLOPS + usize::from(*adds)) * self.view_elems(*out, shape);
            }
            Op::CausalConv(CausalConv { weight, out, .. }) => {
                let [state, _] = self.state_bytes(shape);
                cost.read_bytes += state;
                cost.written_bytes += state;
                let taps = self.weight(*weight).cols;
                cost.flops = (2 * taps + GATE_FLOPS) * self.view_elems(*out, shape);
            }
            Op::DeltaRule(DeltaRule { out, .. }) => {
                let [_, state] = self.state_bytes(shape);
                cost.read_bytes += state;
                cost.written_bytes += state;
                // Decay, product with the key, update, product with the query.
                cost.flops = 7 * self.states.k_dim * self.view_elems(*out, shape);
            }
            Op::Scale { x, .. } => cost.flops = self.view_elems(*x, shape),
            Op::Softcap { x, .. } => cost.flops = SOFTCAP_FLOPS * self.view_elems(*x, shape),
            Op::Add { out, .. } => cost.flops = self.view_elems(*out, shape),
            Op::AllReduce(AllReduce { x, residual, norm }) => {
                let norm = if norm.is_some() { NORM_FLOPS } else { 0 };
                let residual = usize::from(residual.is_some());
                let flops = self.rank.world - 1 + residual + norm;
                cost.flops = flops * self.view_elems(*x, shape);
            }
            Op::Linear(linear) => cost.flops = self.linear_flops(linear, shape),
            Op::Route(route) => {
                let of_router = route.router_ops().map(|op| self.op_cost(&op, shape).flops);
                cost.flops = SOFTMAX_FLOPS * self.view_elems(route.logits, shape);
                cost.flops += of_router.sum::<usize>();
            }
            Op::ExpertLinear(op) => {
                let weight = self.weight(op.weight);
                let products = shape.num_tokens * op.experts.width;
                let parts = 1 + usize::from(op.gate.is_some());
                cost.flops = 2 * parts * products * (weight.rows / op.num_experts) * weight.cols;
                if op.gate.is_some() {
                    cost.flops += GATE_FLOPS * self.view_elems(op.out, shape);
                }
                if op.residual.is_some() {
                    cost.flops += self.view_elems(op.out, shape);
                }
            }
        }
        if let Some(RopeAppend { norm, q, k, .. }) = op.rope_append() {
            let norm = if norm.is_some() { NORM_FLOPS } else { 0 };
            cost.flops +=
                (ROPE_FLOPS + norm) * (self.view_elems(*q, shape) + self.view_elems(*k, shape));
        }
        if let Some(attention) = op.attention() {
            cost.read_bytes += kv_row_bytes(attention.layer) * shape.positions(attention);
            cost.flops += 4 * shape.pairs(attention) * attention.num_heads * attention.head_dim;
        }
        if let Some(MaterializedAttention { attention, .. }) = stored {
            let scores = shape.pairs(attention) * attention.num_heads;
            cost.flops = match op {
                Op::AttentionSoftmax(_) => SOFTMAX_FLOPS * scores,
                _ => {
                    let [k, v] = self.kv.position_bytes(attention.layer);
                    let row_bytes = if matches!(op, Op::AttentionScores(_)) { k } else { v };
                    cost.read_bytes += row_bytes * shape.positions(attention);
                    2 * scores * attention.head_dim
                }
            };
        }
        cost
    }

    /// Bytes of the recurrent states of a step's sequences in a layer.
    fn state_bytes(&self, shape: &StepShape) -> [usize; 2] {
        self.states.slot_elems().map(|elems| shape.seqs.len() * elems * size_of::<f32>())
    }

    fn linear_flops(&self, op: &Linear, shape: &StepShape) -> usize {
        let (inputs, outputs) = (self.view_elems(op.x, shape), self.view_elems(op.out, shape));
        let norm = if op.norm.is_some() { NORM_FLOPS * inputs } else { 0 };
        let gate = if op.gate.is_some() { GATE_FLOPS * outputs } else { 0 };
        let gate_before = if op.gate_before.is_some() { GATE_FLOPS * inputs } else { 0 };
        let residual = if op.residual.is_some() { outputs } else { 0 };
        norm + gate_before + 2 * inputs * self.weight(op.weight).rows + gate + residual
    }

    fn view_elems(&self, view: View, shape: &StepShape) -> usize {
        let rows = match self.tensor(view.tensor).rows {
            Rows::Tokens => shape.num_tokens,
            Rows::Logits => shape.num_logit_rows,
        };
        rows * view.width
    }
}

/// Experts that some token goes to, on average if each is as likely.
fn expected_experts(op: &ExpertLinear, num_tokens: usize) -> f64 {
    let (all, top_k) = (op.num_experts as f64, op.experts.width as f64);
    all * (1.0 - (1.0 - top_k / all).powf(num_tokens as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Attention, Bounds, Dtype, KvHeads, KvLayout, KvStorage, Numerics, Rank, StateLayout,
        Tensor, TensorId, Weight, WeightId,
    };

    /// One linear layer `[tokens, 8] x [16, 8]^T` and an attention of 4 heads of 4 over 2 KV heads,
    /// all of `dtype`.
    fn plan(dtype: Dtype) -> Plan {
        let tensor = |name: &str, width| Tensor {
            name: name.to_owned(),
            layer: None,
            rows: Rows::Tokens,
            width,
            dtype,
        };
        let view = |id, width| View { tensor: TensorId(id), start: 0, width };
        let attention = Attention {
            layer: 0,
            q: view(1, 16),
            out: view(2, 16),
            num_heads: 4,
            num_kv_heads: 2,
            head_dim: 4,
            softmax_scale: 0.5,
            causal: true,
            window: None,
            sinks: None,
            softcap: None,
        };
        let linear = Op::Linear(Linear::new(view(0, 8), WeightId(0), view(1, 16)));
        Plan {
            rank: Rank::ALONE,
            bounds: Bounds { max_logit_rows: 1, max_kv_len: 64, ..Bounds::one_sequence(4) },
            tensors: vec![tensor("x", 8), tensor("q", 16), tensor("out", 16)],
            weights: vec![Weight::whole("w", 16, 8, dtype)],
            constants: vec![],
            states: StateLayout::default(),
            kv: KvLayout {
                layers: vec![KvHeads { num_kv_heads: 2, head_dim: 4 }],
                num_pages: 1,
                windows: None,
                dtype,
                storage: KvStorage::default(),
            },
            ops: vec![linear, Op::Attention(attention)],
            numerics: Numerics::default(),
            output: view(2, 16),
            next_tokens: Some(view(2, 1)),
        }
    }

    /// Each type, and the bytes of an element.
    const DTYPES: [(Dtype, usize); 3] = [(Dtype::F32, 4), (Dtype::F16, 2), (Dtype::BF16, 2)];

    #[test]
    fn a_linear_layer_reads_its_weight_once() {
        let shape = StepShape { num_tokens: 3, ..Default::default() };
        for (dtype, bytes) in DTYPES {
            let plan = plan(dtype);
            let cost = plan.op_cost(&plan.ops[0], &shape);
            let expected = Cost {
                read_bytes: (3 * 8 + 16 * 8) * bytes,
                written_bytes: 3 * 16 * bytes,
                flops: 2 * 3 * 16 * 8,
            };
            assert_eq!(cost, expected, "{dtype}");
        }
    }

    #[test]
    fn gathering_reads_the_rows_that_it_writes() {
        let shape = StepShape { num_tokens: 512, num_logit_rows: 2, ..Default::default() };
        for (dtype, bytes) in DTYPES {
            let mut plan = plan(dtype);
            plan.tensors[2].rows = Rows::Logits;
            let view = |id| View { tensor: TensorId(id), start: 0, width: 16 };
            let cost = plan.op_cost(&Op::GatherRows { x: view(1), out: view(2) }, &shape);
            let row_bytes = 2 * 16 * bytes;
            let expected = Cost { read_bytes: row_bytes, written_bytes: row_bytes, flops: 0 };
            assert_eq!(cost, expected, "{dtype}");
        }
    }

    #[test]
    fn attention_counts_the_pairs_that_it_computes() {
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&[1, 2, 3], 2, &[0], 2..3);
        let shape = StepShape::of(&inputs);
        assert_eq!(shape.seqs, [SeqShape { q_len: 3, kv_len: 5 }]);
        for (dtype, bytes) in DTYPES {
            let mut plan = plan(dtype);
            let cost = plan.op_cost(&plan.ops[1], &shape);
            assert_eq!(cost.flops, 4 * 12 * 4 * 4); // q.k and p.v: two multiply-adds a pair, head and column
            assert_eq!(cost.read_bytes, (3 * 16 + 5 * 2 * 2 * 4) * bytes); // q, and K and V of 2 heads of 4
            assert_eq!(cost.written_bytes, 3 * 16 * bytes);

            let Op::Attention(attention) = &mut plan.ops[1] else { unreachable!() };
            attention.causal = false;
            let full = plan.op_cost(&plan.ops[1], &shape);
            assert_eq!(full, Cost { flops: 4 * 15 * 4 * 4, ..cost });
        }
    }

    /// Against counting: prompts, chunks and decoding, shorter and longer than the window.
    #[test]
    fn a_window_is_what_tokens_see() {
        let plan = plan(Dtype::F32);
        let Op::Attention(attention) = plan.ops[1] else { unreachable!() };
        for (q_len, kv_len) in [(1, 1), (1, 9), (3, 5), (5, 5), (4, 30)] {
            let seqs = vec![SeqShape { q_len, kv_len }; 2];
            let shape = StepShape { seqs, ..Default::default() };
            for window in [1, 2, 4, 5, 100] {
                let attention = Attention { window: Some(window), ..attention };
                let sees = |token: usize, key: usize| key <= token && token - key < window;
                let tokens = kv_len - q_len..kv_len;
                let of_key = |key| tokens.clone().filter(move |&token| sees(token, key)).count();
                let counts: Vec<usize> = (0..kv_len).map(of_key).collect();
                let case = format!("{q_len} of {kv_len}, a window of {window}");
                assert_eq!(shape.pairs(&attention), 2 * counts.iter().sum::<usize>(), "{case}");
                let seen = counts.iter().filter(|&&count| count > 0).count();
                assert_eq!(shape.positions(&attention), 2 * seen, "{case}");
                if q_len == kv_len {
                    let both = Attention { causal: false, ..attention };
                    let pairs = (0..q_len).flat_map(|a| (0..q_len).map(move |b| a.abs_diff(b)));
                    let seen = pairs.filter(|&distance| distance < window).count();
                    assert_eq!(shape.pairs(&both), 2 * seen, "{case} to both sides");
                    assert_eq!(shape.positions(&both), 2 * q_len, "{case} to both sides");
                }
            }
        }
    }
}
