//! The memory that a plan's activations need: their offsets in one arena.

use super::{Dtype, Plan, TensorId};
use gpu_types::ALIGN_BYTES;

/// The offset of each activation in one arena: those that are never alive together share memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaLayout {
    offsets: Vec<usize>,
    bytes: usize,
}

impl ArenaLayout {
    /// Lays out the activations of `plan`. An activation lives from the first operation that
    /// touches it to the last; the plan's outputs live to the end.
    pub fn new(plan: &Plan) -> Self {
        let sizes: Vec<usize> = plan.tensors.iter().map(|t| plan.tensor_bytes(t)).collect();
        let lifetimes = lifetimes(plan).into_iter().enumerate();
        let mut order: Vec<(usize, Lifetime)> =
            lifetimes.filter_map(|(t, life)| Some((t, life?))).collect();
        order.sort_by_key(|&(t, _)| (std::cmp::Reverse(sizes[t]), t));

        let mut offsets = vec![0; sizes.len()];
        let mut placed: Vec<(usize, Lifetime)> = Vec::new();
        let mut bytes = 0;
        for (t, life) in order {
            // Neighbours alive at the same time, in order of address; the first gap that is large
            // enough is ours.
            let mut busy: Vec<_> = placed
                .iter()
                .filter(|(_, other)| life.overlaps(*other))
                .map(|&(other, _)| (offsets[other], offsets[other] + sizes[other]))
                .collect();
            busy.sort_unstable();
            let mut start = 0;
            for (from, to) in busy {
                if start + sizes[t] <= from {
                    break;
                }
                start = start.max(to.next_multiple_of(ALIGN_BYTES));
            }
            offsets[t] = start;
            bytes = bytes.max(start + sizes[t]);
            placed.push((t, life));
        }
        ArenaLayout { offsets, bytes: bytes.next_multiple_of(ALIGN_BYTES) }
    }

    /// First byte of `tensor` in the arena; a multiple of 256.
    pub fn offset(&self, tensor: TensorId) -> usize {
        self.offsets[tensor.0]
    }

    /// Bytes of the arena.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The operations that touch an activation, from the first to the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub first: usize,
    pub last: usize,
}

impl Lifetime {
    fn overlaps(self, other: Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// When each activation is alive, if it ever is; the outputs are so beyond the last operation.
pub(super) fn lifetimes(plan: &Plan) -> Vec<Option<Lifetime>> {
    let mut lifetimes: Vec<Option<Lifetime>> = vec![None; plan.tensors.len()];
    for (index, op) in plan.ops.iter().enumerate() {
        for view in op.reads().into_iter().chain(op.writes()) {
            let life = &mut lifetimes[view.tensor.0];
            life.get_or_insert(Lifetime { first: index, last: index }).last = index;
        }
    }
    for output in plan.outputs() {
        if let Some(life) = &mut lifetimes[output.tensor.0] {
            life.last = plan.ops.len();
        }
    }
    lifetimes
}

impl Plan {
    /// Bytes of all weights, as an executor stores them.
    pub fn weight_bytes(&self) -> usize {
        self.weights.iter().map(super::Weight::bytes).sum()
    }

    /// The type in which an executor stores most of the weights' elements; `None` without weights.
    pub fn weight_dtype(&self) -> Option<Dtype> {
        let mut elems: Vec<(Dtype, usize)> = Vec::new();
        for weight in &self.weights {
            for part in &weight.parts {
                let part_elems = part.rows * weight.part_cols();
                match elems.iter_mut().find(|(dtype, _)| *dtype == part.storage) {
                    Some((_, elems)) => *elems += part_elems,
                    None => elems.push((part.storage, part_elems)),
                }
            }
        }
        elems.into_iter().max_by_key(|&(_, elems)| elems).map(|(dtype, _)| dtype)
    }

    /// Bytes of an activation at the plan's upper bounds.
    pub fn tensor_bytes(&self, tensor: &super::Tensor) -> usize {
        self.bounds.max_rows(tensor.rows) * tensor.width * tensor.dtype.block_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::silu_mul;
    use crate::{
        Bounds, Dtype, KvHeads, KvLayout, KvStorage, Numerics, Rank, Rows, StateLayout, Tensor,
        View,
    };

    /// `widths.len()` activations of which op `i` reads number `i` and writes number `i + 1`.
    fn chain(widths: &[usize]) -> Plan {
        let bounds = Bounds { max_logit_rows: 1, max_kv_len: 128, ..Bounds::one_sequence(8) };
        let tensor = |(i, &width): (usize, &usize)| Tensor {
            name: format!("t{i}"),
            layer: None,
            rows: Rows::Tokens,
            width,
            dtype: Dtype::F32,
        };
        let view = |i: usize| View { tensor: TensorId(i), start: 0, width: widths[i] };
        let kv = KvLayout {
            layers: vec![KvHeads { num_kv_heads: 2, head_dim: 64 }; 2],
            num_pages: 2,
            windows: None,
            dtype: Dtype::F32,
            storage: KvStorage::default(),
        };
        Plan {
            rank: Rank::ALONE,
            bounds,
            tensors: widths.iter().enumerate().map(tensor).collect(),
            weights: vec![],
            constants: vec![],
            kv,
            states: StateLayout::default(),
            ops: (1..widths.len()).map(|i| silu_mul(view(i - 1), view(i - 1), view(i))).collect(),
            numerics: Numerics::default(),
            output: view(widths.len() - 1),
            next_tokens: Some(view(widths.len() - 1)),
        }
    }

    #[test]
    fn tensors_alive_together_do_not_overlap() {
        let plan = chain(&[100, 7, 300, 300, 20, 1, 64]);
        let arena = ArenaLayout::new(&plan);
        let span = |i: usize| {
            let start = arena.offset(TensorId(i));
            start..start + plan.tensor_bytes(&plan.tensors[i])
        };
        for i in 1..plan.tensors.len() {
            let (a, b) = (span(i - 1), span(i));
            assert!(a.end <= b.start || b.end <= a.start, "{a:?} and {b:?} are alive together");
            assert!(b.end <= arena.bytes() && b.start % ALIGN_BYTES == 0);
        }
    }

    #[test]
    fn memory_is_reused() {
        // Of a chain of equal tensors only two are alive at a time.
        let plan = chain(&[64; 10]);
        assert_eq!(ArenaLayout::new(&plan).bytes(), 2 * 8 * 64 * 4);
    }

    #[test]
    fn an_output_lives_to_the_end() {
        let mut plan = chain(&[64; 4]);
        plan.output = View { tensor: TensorId(1), start: 0, width: 64 };
        let arena = ArenaLayout::new(&plan);
        assert_ne!(arena.offset(TensorId(1)), arena.offset(TensorId(3)));
        assert_eq!(arena.bytes(), 3 * 8 * 64 * 4);
    }

    #[test]
    fn cache_bytes_come_from_the_layout() {
        // A layer of 8192 positions in f32 and in 16 bits: Qwen2.5-0.5B, Phi-3 Mini.
        let layer = |num_kv_heads, head_dim, dtype| {
            let num_pages = 8192 / crate::PAGE_SIZE;
            KvLayout {
                layers: vec![KvHeads { num_kv_heads, head_dim }],
                num_pages,
                windows: None,
                dtype,
                storage: KvStorage::default(),
            }
            .bytes()
        };
        for (num_kv_heads, head_dim, mib) in [(2, 64, 8), (32, 96, 192)] {
            assert_eq!(layer(num_kv_heads, head_dim, Dtype::F32), mib << 20);
            for half in [Dtype::F16, Dtype::BF16] {
                assert_eq!(layer(num_kv_heads, head_dim, half), mib << 19, "{half}");
            }
        }
    }

    #[test]
    fn an_activation_takes_what_its_elements_take() {
        let mut plan = chain(&[64; 10]);
        plan.tensors.iter_mut().step_by(2).for_each(|tensor| tensor.dtype = Dtype::F16);
        assert_eq!(ArenaLayout::new(&plan).bytes(), 8 * 64 * (4 + 2));
        plan.tensors.iter_mut().for_each(|tensor| tensor.dtype = Dtype::BF16);
        assert_eq!(ArenaLayout::new(&plan).bytes(), 2 * 8 * 64 * 2);
    }
}
