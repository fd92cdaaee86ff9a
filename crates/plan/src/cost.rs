//! What a step must move and compute: bytes and operations, from the plan and the real sizes of the
//! step.

use super::{
    AllReduce, Attention, Linear, MaterializedAttention, Op, Plan, RopeAppend, Rows, StepInputs,
    View,
};

/// Operations of a norm for each element.
const NORM_FLOPS: usize = 4;
/// Operations of RoPE for each element.
const ROPE_FLOPS: usize = 3;
/// Operations of a softmax for each score.
const SOFTMAX_FLOPS: usize = 4;
/// Operations of a gate for each element of its output.
const GATE_FLOPS: usize = 5;

/// The sizes of a real step that its cost depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepShape {
    /// New tokens.
    pub num_tokens: usize,
    /// Rows whose logits are computed.
    pub num_logit_rows: usize,
    /// Cached positions of all sequences together, each counted once.
    pub kv_positions: usize,
    /// Pairs of a new token and a position up to its own: what causal attention computes.
    pub causal_pairs: usize,
    /// Pairs of a new token and a position of its sequence: what full attention computes.
    pub full_pairs: usize,
}

impl StepShape {
    /// The shape of `inputs`.
    pub fn of(inputs: &StepInputs) -> Self {
        let q_lens = inputs.cu_seqlens_q.windows(2).map(|ends| (ends[1] - ends[0]) as usize);
        let kv_lens = inputs.kv_lens.iter().map(|&len| len as usize);
        StepShape {
            num_tokens: inputs.num_tokens(),
            num_logit_rows: inputs.logit_rows.len(),
            kv_positions: kv_lens.clone().sum(),
            causal_pairs: inputs.positions.iter().map(|&position| position as usize + 1).sum(),
            full_pairs: q_lens.zip(kv_lens).map(|(q_len, kv_len)| q_len * kv_len).sum(),
        }
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

/// Pairs of a token and a key of it that `attention` computes.
fn pairs(attention: &Attention, shape: &StepShape) -> usize {
    if attention.causal { shape.causal_pairs } else { shape.full_pairs }
}

impl Plan {
    /// The cost of a whole step. A sliding window is not subtracted: this is an upper bound there.
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
                    pairs(&op.attention, shape) * op.attention.num_heads
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
                _ => weight.bytes(),
            };
        }
        let position_bytes = self.kv.position_bytes();
        let kv_row_bytes: usize = position_bytes.iter().sum();
        if op.appends_to().is_some() {
            cost.written_bytes += kv_row_bytes * shape.num_tokens;
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
            Op::RmsNorm { x, .. } => cost.flops = NORM_FLOPS * self.view_elems(*x, shape),
            Op::Rope { x, .. } => cost.flops = ROPE_FLOPS * self.view_elems(*x, shape),
            Op::RopeAppend(_) | Op::Attention(_) | Op::AppendAttention(_) => {}
            Op::Gate { out, .. } => cost.flops = GATE_FLOPS * self.view_elems(*out, shape),
            Op::Add { out, .. } => cost.flops = self.view_elems(*out, shape),
            Op::AllReduce(AllReduce { x, residual, norm }) => {
                let norm = if norm.is_some() { NORM_FLOPS } else { 0 };
                let residual = usize::from(residual.is_some());
                let flops = self.rank.world - 1 + residual + norm;
                cost.flops = flops * self.view_elems(*x, shape);
            }
            Op::Linear(linear) => cost.flops = self.linear_flops(linear, shape),
        }
        if let Some(RopeAppend { q, k, .. }) = op.rope_append() {
            cost.flops += ROPE_FLOPS * (self.view_elems(*q, shape) + self.view_elems(*k, shape));
        }
        if let Some(attention) = op.attention() {
            cost.read_bytes += kv_row_bytes * shape.kv_positions;
            cost.flops += 4 * pairs(attention, shape) * attention.num_heads * attention.head_dim;
        }
        if let Some(MaterializedAttention { attention, .. }) = stored {
            let scores = pairs(attention, shape) * attention.num_heads;
            cost.flops = match op {
                Op::AttentionSoftmax(_) => SOFTMAX_FLOPS * scores,
                _ => {
                    let [k, v] = position_bytes;
                    let row_bytes = if matches!(op, Op::AttentionScores(_)) { k } else { v };
                    cost.read_bytes += row_bytes * shape.kv_positions;
                    2 * scores * attention.head_dim
                }
            };
        }
        cost
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Attention, Bounds, Dtype, KvLayout, KvStorage, Numerics, Rank, Tensor, TensorId, Weight,
        WeightId,
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
        };
        let linear = Op::Linear(Linear::new(view(0, 8), WeightId(0), view(1, 16)));
        Plan {
            rank: Rank::ALONE,
            bounds: Bounds { max_logit_rows: 1, max_kv_len: 64, ..Bounds::one_sequence(4) },
            tensors: vec![tensor("x", 8), tensor("q", 16), tensor("out", 16)],
            weights: vec![Weight::whole("w", 16, 8, dtype)],
            constants: vec![],
            kv: KvLayout {
                num_layers: 1,
                num_kv_heads: 2,
                head_dim: 4,
                num_pages: 1,
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
        assert_eq!((shape.kv_positions, shape.causal_pairs), (5, 3 + 4 + 5));
        assert_eq!(shape.full_pairs, 3 * 5);
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
}
