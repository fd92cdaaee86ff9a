//! The memory that a plan needs: the offsets of its activations, and the whole budget.

use super::{Plan, StepLayout, TensorId};

/// Activations start at multiples of this many bytes.
const ALIGN_BYTES: usize = 256;

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
    for output in [plan.logits, plan.next_tokens] {
        if let Some(life) = &mut lifetimes[output.tensor.0] {
            life.last = plan.ops.len();
        }
    }
    lifetimes
}

impl Plan {
    /// Bytes of an activation at the plan's upper bounds.
    pub(crate) fn tensor_bytes(&self, tensor: &super::Tensor) -> usize {
        self.bounds.max_rows(tensor.rows) * tensor.width * tensor.dtype.block_bytes()
    }

    /// The memory that an executor needs to run this plan.
    pub fn memory(&self) -> MemoryBudget {
        MemoryBudget {
            weight_bytes: self.weights.iter().map(super::Weight::bytes).sum(),
            kv_bytes: self.kv.bytes(),
            activation_bytes: ArenaLayout::new(self).bytes(),
            buffer_bytes: self.constants.iter().map(|c| c.data.len() * 4).sum::<usize>()
                + StepLayout::new(&self.bounds).len * 4,
            max_kv_len: self.bounds.max_kv_len,
            kv_positions: self.kv.num_pages * super::PAGE_SIZE,
        }
    }
}

/// Bytes that a model takes while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryBudget {
    /// Weights, as the executor stores them.
    pub weight_bytes: usize,
    /// The KV cache.
    pub kv_bytes: usize,
    /// Activations of the largest step.
    pub activation_bytes: usize,
    /// Step inputs and tables.
    pub buffer_bytes: usize,
    /// Positions of one sequence: the context.
    pub max_kv_len: usize,
    /// Positions of the KV cache, in whole pages.
    pub kv_positions: usize,
}

/// What the KV cache was sized for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSize {
    /// The full contexts of so many sequences.
    Contexts(usize),
    /// A number of positions that was given.
    Positions,
}

impl MemoryBudget {
    /// All of it.
    pub fn total_bytes(&self) -> usize {
        self.weight_bytes + self.kv_bytes + self.activation_bytes + self.buffer_bytes
    }

    /// Whether all of it fits into `free_bytes` of `device`.
    ///
    /// # Errors
    /// [`BudgetError`]: by how much it does not, and what cache or context would fit.
    pub fn check(
        &self,
        device: &str,
        free_bytes: usize,
        cache: CacheSize,
    ) -> Result<(), BudgetError> {
        let needed_bytes = self.total_bytes();
        if needed_bytes <= free_bytes {
            return Ok(());
        }
        // The rest does not grow when the cache shrinks.
        let left = free_bytes.saturating_sub(needed_bytes - self.kv_bytes);
        let pages = (self.kv_positions / super::PAGE_SIZE) as u128;
        let pages_that_fit = (left as u128 * pages / self.kv_bytes.max(1) as u128) as usize;
        Err(BudgetError {
            device: device.to_owned(),
            budget: *self,
            short_bytes: needed_bytes - free_bytes,
            free_bytes,
            fits: match (cache, pages_that_fit * super::PAGE_SIZE) {
                (CacheSize::Contexts(sequences), _) => {
                    Fits::of_context(pages_that_fit / sequences.max(1) * super::PAGE_SIZE)
                }
                (CacheSize::Positions, 0) => Fits::Nothing,
                (CacheSize::Positions, cache) if cache < self.max_kv_len => {
                    Fits::ContextAndCache(cache)
                }
                (CacheSize::Positions, cache) => Fits::Cache(cache),
            },
        })
    }
}

impl std::fmt::Display for MemoryBudget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} (weights {}, KV cache of {} positions {}, activations {}, buffers {})",
            Gib(self.total_bytes()),
            Gib(self.weight_bytes),
            self.kv_positions,
            Gib(self.kv_bytes),
            Gib(self.activation_bytes),
            Gib(self.buffer_bytes),
        )
    }
}

/// A model that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetError {
    /// The device.
    pub device: String,
    /// What is needed.
    pub budget: MemoryBudget,
    /// Bytes that are missing.
    pub short_bytes: usize,
    /// Bytes that are free.
    pub free_bytes: usize,
    /// What would fit.
    pub fits: Fits,
}

/// What would fit into the memory, in positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fits {
    /// No page of the cache: maybe not even the weights.
    Nothing,
    /// A context of so many.
    Context(usize),
    /// A KV cache of so many, the context as it is.
    Cache(usize),
    /// A KV cache of so many, which is shorter than the context: both have to be made so small.
    ContextAndCache(usize),
}

impl Fits {
    fn of_context(context: usize) -> Self {
        if context == 0 { Fits::Nothing } else { Fits::Context(context) }
    }
}

impl std::error::Error for BudgetError {}

impl std::fmt::Display for BudgetError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(
            f,
            "the model needs {}: {} more than the {} free on {}",
            self.budget,
            Gib(self.short_bytes),
            Gib(self.free_bytes),
            self.device
        )?;
        match self.fits {
            Fits::Nothing => {
                write!(f, "no context would fit: choose a smaller model or another device")
            }
            Fits::Context(len) => write!(f, "a context of {len} positions would fit"),
            Fits::Cache(len) => write!(f, "a KV cache of {len} positions would fit"),
            Fits::ContextAndCache(len) => {
                write!(f, "a context and a KV cache of {len} positions would fit")
            }
        }
    }
}

/// Bytes, printed in GiB, or in MiB under a tenth of one.
struct Gib(usize);

impl std::fmt::Display for Gib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let gib = self.0 as f64 / (1u64 << 30) as f64;
        if gib < 0.1 { write!(f, "{:.1} MiB", gib * 1024.0) } else { write!(f, "{gib:.2} GiB") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Bounds, Dtype, KvLayout, Numerics, Op, Rows, Tensor, View};

    /// `widths.len()` activations of which op `i` reads number `i` and writes number `i + 1`.
    fn chain(widths: &[usize]) -> Plan {
        let bounds = Bounds {
            max_tokens: 8,
            max_seqs: 1,
            max_q_len: 8,
            max_logit_rows: 1,
            max_kv_len: 128,
            mixed: false,
        };
        let tensor = |(i, &width): (usize, &usize)| Tensor {
            name: format!("t{i}"),
            layer: None,
            rows: Rows::Tokens,
            width,
            dtype: Dtype::F32,
        };
        let view = |i: usize| View { tensor: TensorId(i), start: 0, width: widths[i] };
        let kv = KvLayout {
            num_layers: 2,
            num_kv_heads: 2,
            head_dim: 64,
            num_pages: 2,
            dtype: Dtype::F32,
        };
        Plan {
            bounds,
            tensors: widths.iter().enumerate().map(tensor).collect(),
            weights: vec![],
            constants: vec![],
            kv,
            ops: (1..widths.len())
                .map(|i| Op::SiluMul { gate: view(i - 1), up: view(i - 1), out: view(i) })
                .collect(),
            numerics: Numerics::default(),
            logits: view(widths.len() - 1),
            next_tokens: view(widths.len() - 1),
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
        plan.logits = View { tensor: TensorId(1), start: 0, width: 64 };
        let arena = ArenaLayout::new(&plan);
        assert_ne!(arena.offset(TensorId(1)), arena.offset(TensorId(3)));
        assert_eq!(arena.bytes(), 3 * 8 * 64 * 4);
    }

    /// A cache of a byte a position.
    fn budget(max_kv_len: usize, kv_positions: usize) -> MemoryBudget {
        MemoryBudget {
            weight_bytes: 1000,
            kv_bytes: kv_positions,
            activation_bytes: 20,
            buffer_bytes: 4,
            max_kv_len,
            kv_positions,
        }
    }

    #[test]
    fn a_budget_says_what_context_fits() {
        let cache = CacheSize::Contexts(1);
        let budget = budget(4096, 4096);
        assert!(budget.check("gpu", 5120, cache).is_ok());
        let error = budget.check("gpu", 3000, cache).unwrap_err();
        assert_eq!(error.short_bytes, 2120);
        assert_eq!(error.fits, Fits::Context(1920)); // 1976 bytes are left, in pages of 64
        assert_eq!(error.to_string().lines().count(), 2);
        assert_eq!(budget.check("gpu", 500, cache).unwrap_err().fits, Fits::Nothing);
    }

    /// What is said to fit does, and a page more does not.
    #[test]
    fn what_is_said_to_fit_fits() {
        let page = crate::plan::PAGE_SIZE;
        for free_bytes in (1000..6000).step_by(50) {
            for (context, sequences) in [(512, 8), (100, 3)] {
                let contexts = |context: usize| {
                    let positions = context.next_multiple_of(page) * sequences;
                    budget(context, positions).check("", free_bytes, CacheSize::Contexts(sequences))
                };
                match contexts(context).map_err(|error| error.fits) {
                    Ok(()) => {}
                    Err(Fits::Context(len)) => {
                        assert!(contexts(len).is_ok() && contexts(len + 1).is_err(), "{len}");
                    }
                    Err(other) => assert!(other == Fits::Nothing && contexts(1).is_err()),
                }
            }
            for (context, positions) in [(512, 8192), (4096, 4096), (64, 5000)] {
                let given = |context: usize, positions: usize| {
                    let positions = positions.max(context).next_multiple_of(page);
                    budget(context, positions).check("", free_bytes, CacheSize::Positions)
                };
                match given(context, positions).map_err(|error| error.fits) {
                    Ok(()) => {}
                    Err(Fits::Cache(len)) => {
                        assert!(given(context, len).is_ok(), "{len}");
                        assert!(given(context, len + 1).is_err(), "{len}");
                    }
                    Err(Fits::ContextAndCache(len)) => {
                        assert!(given(context, len).is_err() && given(len, len).is_ok(), "{len}");
                    }
                    Err(other) => assert!(other == Fits::Nothing && given(1, 1).is_err()),
                }
            }
        }
    }

    #[test]
    fn cache_bytes_come_from_the_layout() {
        // A layer of 8192 positions in f32 and in 16 bits: Qwen2.5-0.5B, Phi-3 Mini.
        let layer = |num_kv_heads, head_dim, dtype| {
            let num_pages = 8192 / crate::plan::PAGE_SIZE;
            KvLayout { num_layers: 1, num_kv_heads, head_dim, num_pages, dtype }.bytes()
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
