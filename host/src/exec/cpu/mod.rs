//! The CPU executor: every operation in f32, on rayon's threads.
//!
//! The reference for the GPU executors, and what runs without a GPU. Decoding is bound by reading
//! the weights; a prompt is a matrix product. 16-bit tensors of the plan have 16 bits here too:
//! they are converted to f32 when they are read, and rounded to nearest even when they are written,
//! as in the GPU's kernels.

mod collective;
mod encoder;
mod experts;
mod linear_layer;

use super::prepared::Prepared;
use super::{
    Activations, AfterOp, ExecError, Executor, NoQueue, PreparedPlan, StepOutput, StepQueue,
    StepTimes, Want, WeightSource, inputs, sample,
};
use crate::plan::{
    AppendAttention, ArenaLayout, Attention, CausalConv, Constant, DeltaRule, Dtype, Linear,
    MemoryBudget, MemoryUse, Op, Plan, QkNorm, RopeAppend, Route, Scores, StepInputs, View,
    WeightId,
};
use cpu_ops::activations::{Frame, Rows, RowsMut, arena_words};
use cpu_ops::attention::{self, Operation, materialized};
use cpu_ops::delta::{DeltaOperands, States};
use cpu_ops::experts::Routing;
use cpu_ops::kv::KvCache;
use cpu_ops::weights::StoredWeight;
use cpu_ops::{activation, host_memory, ops, round};
use experts::expert_layer;
use linear_layer::{largest, linear_layer};
use rayon::prelude::*;
use std::slice;
use std::time::Instant;

/// Runs plans on the CPU, computing in f32. The ranks of a world take turns, operation by
/// operation.
pub struct CpuExecutor {
    ranks: Vec<Rank>,
    prepared: Prepared<Vec<PreparedRank>>,
}

/// What a rank keeps from step to step.
struct Rank {
    weights: Vec<StoredWeight>,
    kv: KvCache,
    states: States,
    arena: Vec<f32>,
}

/// A rank's plan.
struct PreparedRank {
    plan: Plan,
    layout: ArenaLayout,
}

impl CpuExecutor {
    /// Reads the weights of `plan` and allocates its KV cache.
    ///
    /// # Errors
    /// As [`CpuExecutor::open_ranks`].
    pub fn open(plan: &Plan, weights: &dyn WeightSource) -> Result<Self, ExecError> {
        Self::open_ranks(slice::from_ref(plan), weights)
    }

    /// Reads the weights of `plans`, one of each rank, and allocates their KV caches.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for a cache in blocks, [`ExecError::OutOfMemory`],
    /// [`ExecError::Weights`] from `weights`.
    pub fn open_ranks(plans: &[Plan], weights: &dyn WeightSource) -> Result<Self, ExecError> {
        let rank = |plan: &Plan| {
            let weights = plan.weights.par_iter().map(|weight| StoredWeight::read(weight, weights));
            let weights = weights.collect::<Result<_, _>>()?;
            let (kv, states) = (KvCache::new(plan.kv.clone())?, States::new(plan.states)?);
            Ok(Rank { weights, kv, states, arena: Vec::new() })
        };
        let ranks = plans.iter().map(rank).collect::<Result<_, ExecError>>()?;
        Ok(CpuExecutor { ranks, prepared: Prepared::new() })
    }

    /// [`memory_budget`](super::memory_budget): weights and cache of `largest`, and one arena for
    /// all plans.
    pub(super) fn memory_budget(largest: &Plan, prepared: &[Plan]) -> MemoryBudget {
        let weights = largest.weights.iter().map(|weight| weight.bytes().next_multiple_of(4));
        let arenas = prepared.iter().map(|plan| ArenaLayout::new(plan).bytes());
        MemoryBudget {
            // In whole words.
            weight_bytes: weights.sum(),
            activation_bytes: arenas.max().unwrap_or(0),
            ..MemoryBudget::of_model(largest)
        }
    }
}

impl Executor for CpuExecutor {
    fn describe(&self) -> String {
        let threads = rayon::current_num_threads();
        format!("CPU, {threads} thread{}", if threads == 1 { "" } else { "s" })
    }

    fn prepare_ranks(&mut self, plans: &[Plan]) -> Result<PreparedPlan, ExecError> {
        let prepare = |(plan, rank): (&Plan, &mut Rank)| {
            let plan = plan.fused(has_kernel);
            let layout = ArenaLayout::new(&plan);
            let arena_words = arena_words(&layout);
            if arena_words > rank.arena.len() {
                // No activation outlives a step.
                rank.arena = host_memory::zeroed("the activations", arena_words)?;
            }
            Ok(PreparedRank { plan, layout })
        };
        let ranks = plans.iter().zip(&mut self.ranks).map(prepare);
        let ranks = ranks.collect::<Result<_, ExecError>>()?;
        Ok(self.prepared.push(ranks))
    }

    fn run_while(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want<'_>,
        meanwhile: &mut dyn FnMut(&mut dyn StepQueue),
    ) -> Result<StepOutput, ExecError> {
        let mut step = self.step(plan, inputs, want)?;
        meanwhile(&mut NoQueue);
        // The whole step runs inside the pool: a fork is then a push on a local queue, not a
        // wake-up.
        Ok(rayon::scope(|_| {
            (0..step.num_ops()).for_each(|op| step.run(op));
            step.finish()
        }))
    }

    fn plan(&self, plan: PreparedPlan) -> Result<&Plan, ExecError> {
        Ok(&self.prepared.get(plan)?[0].plan)
    }

    fn run_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        after: &mut AfterOp<'_>,
    ) -> Result<(), ExecError> {
        let mut step = self.step(plan, inputs, Want::NextTokens)?;
        rayon::scope(|_| {
            (0..step.num_ops()).try_for_each(|op| {
                step.run(op);
                after(op, &step.ranks[0].frame)
            })
        })
    }

    fn time_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<StepTimes, ExecError> {
        let us_since = |start: Instant| 1e6 * start.elapsed().as_secs_f64();
        let mut times = StepTimes {
            ops_us: vec![Vec::new(); self.plan(plan)?.ops.len()],
            ..Default::default()
        };
        for _ in 0..repeats {
            let mut start = Instant::now();
            self.run(plan, inputs, Want::NextTokens)?;
            times.step_us.push(us_since(start));
            start = Instant::now();
            self.run_ops(plan, inputs, &mut |op, _| {
                times.ops_us[op].push(us_since(start));
                start = Instant::now();
                Ok(())
            })?;
        }
        Ok(times)
    }

    fn memory_use(&self) -> Result<MemoryUse, ExecError> {
        let bytes = |rank: &Rank| {
            let weights: usize = rank.weights.iter().map(StoredWeight::stored_bytes).sum();
            weights + rank.kv.bytes() + rank.states.bytes() + size_of_val(&rank.arena[..])
        };
        // All plans share their tables.
        let tables = self.prepared.iter().next().map_or(&[][..], |ranks| &ranks[0].plan.constants);
        let tables: usize = tables.iter().map(Constant::bytes).sum();
        let buffer_bytes = self.ranks.iter().map(bytes).sum::<usize>() + tables;
        Ok(MemoryUse { buffer_bytes, ..MemoryUse::default() })
    }
}

impl CpuExecutor {
    fn step<'a>(
        &'a mut self,
        plan: PreparedPlan,
        inputs: &'a StepInputs,
        want: Want<'a>,
    ) -> Result<Step<'a>, ExecError> {
        let prepared = self.prepared.get(plan)?;
        inputs::check(&prepared[0].plan, inputs, 0)?;
        let ranks = prepared.iter().zip(&mut self.ranks);
        let step =
            |(PreparedRank { plan, layout }, rank): (&'a PreparedRank, &'a mut Rank)| RankStep {
                plan,
                inputs,
                want,
                weights: &rank.weights,
                kv: &mut rank.kv,
                states: &mut rank.states,
                frame: Frame::new(plan, layout, inputs, &mut rank.arena),
                output: StepOutput::default(),
            };
        Ok(Step { ranks: ranks.map(step).collect() })
    }
}

impl Activations for Frame<'_> {
    fn rows(&self, view: View) -> Result<Vec<f32>, ExecError> {
        match self.dtype(view) {
            Dtype::F32 | Dtype::F16 | Dtype::BF16 => Ok(Frame::rows(self, view).to_vec()),
            dtype => Err(ExecError::Unsupported {
                op: "reading an activation".to_owned(),
                why: format!("{dtype} elements are no floating-point numbers"),
            }),
        }
    }

    fn indices(&self, view: View) -> Result<Vec<u32>, ExecError> {
        match self.dtype(view) {
            Dtype::U32 => Ok(indices(self, view)),
            dtype => Err(ExecError::Unsupported {
                op: "reading an activation".to_owned(),
                why: format!("{dtype} elements are no indices"),
            }),
        }
    }
}

/// The rows of a `view` of u32: integers are in the words of the arena as they are.
fn indices(frame: &Frame, view: View) -> Vec<u32> {
    frame.rows(view).iter().flatten().map(|word| word.to_bits()).collect()
}

/// What is faster fused: a residual, which the matrix product is added to.
fn has_kernel(op: &Op) -> bool {
    matches!(op, Op::Linear(Linear { norm: None, gate_before: None, gate: None, .. }))
}

/// A step that is being run.
struct Step<'a> {
    ranks: Vec<RankStep<'a>>,
}

impl Step<'_> {
    fn num_ops(&self) -> usize {
        self.ranks[0].plan.ops.len()
    }

    /// Runs operation `index` of every rank.
    fn run(&mut self, index: usize) {
        if self.ranks[0].plan.ops[index].is_collective() {
            return collective::run(&mut self.ranks, index);
        }
        self.ranks.iter_mut().for_each(|rank| rank.run(&rank.plan.ops[index]));
    }

    fn finish(self) -> StepOutput {
        let first = self.ranks.into_iter().next();
        first.expect("a rank").finish()
    }
}

/// A rank's part of a step.
struct RankStep<'a> {
    plan: &'a Plan,
    inputs: &'a StepInputs,
    want: Want<'a>,
    weights: &'a [StoredWeight],
    kv: &'a mut KvCache,
    states: &'a mut States,
    frame: Frame<'a>,
    output: StepOutput,
}

impl RankStep<'_> {
    fn run(&mut self, op: &Op) {
        let (plan, inputs, frame) = (self.plan, self.inputs, &mut self.frame);
        let weight = |id: WeightId| &self.weights[id.0];
        let kernel = match (plan.numerics().batch_invariant, plan.decodes()) {
            (false, _) => attention::Kernel::Fastest,
            (true, true) => attention::Kernel::Decode,
            (true, false) => attention::Kernel::Prefill,
        };
        let sinks = |op: &Attention| op.sinks.map(|sinks| weight(sinks).vector());
        match *op {
            Op::Embedding { table, out, scale } => frame.write(out, None, |out, _| {
                ops::embedding(weight(table), &inputs.token_ids, scale, out);
            }),
            // What is written is `x` from the start.
            Op::Cast { x, out } => frame.write(out, Some(x), |_, _| ()),
            Op::RmsNorm { x, weight: id, out, eps } => frame.write(out, Some(x), |out, _| {
                ops::rms_norm(weight(id).vector(), eps, out);
            }),
            Op::LayerNorm(_) | Op::AddTable { .. } | Op::Gelu { .. } | Op::MeanRows { .. } => {
                self.encoder_op(op);
            }
            Op::Linear(ref op) => frame.write(op.out, op.residual, |out, others| {
                let gate = op.gate_before.map(|(_, gate)| others.rows(gate));
                linear_layer(plan, op, weight, &others.rows(op.x), gate.as_ref(), out);
            }),
            Op::Route(ref op) => self.route(op),
            Op::ExpertLinear(ref op) => {
                let experts = indices(frame, op.experts);
                frame.write(op.out, op.residual, |out, others| {
                    let weights = op.weights.map(|weights| others.rows(weights));
                    let operands = (&others.rows(op.x), &experts[..], weights.as_ref());
                    expert_layer(plan, op, weight, operands, out);
                });
            }
            Op::Rope { x, table, head_dim } => frame.write(x, Some(x), |x, _| {
                ops::rope(plan.constant(table), &inputs.positions, head_dim, x);
            }),
            Op::KvAppend { layer, k, v } => {
                let slots = inputs.slots(self.kv.has_window(layer));
                self.kv.append(layer, slots, &frame.rows(k), &frame.rows(v));
            }
            Op::RopeAppend(ref append) => {
                self.append(append);
                let rotated = self.rotated(append.q, append);
                let rotated = Rows::dense(&rotated, append.q.width);
                self.frame.write(append.q, None, |q, _| {
                    q.for_each(|token, q| q.copy_from_slice(rotated.row(token)));
                });
            }
            Op::AppendAttention(AppendAttention { ref append, ref attention }) => {
                self.append(append);
                let q = self.rotated(append.q, append);
                let q = Rows::dense(&q, append.q.width);
                let sinks = sinks(attention);
                self.frame.write(attention.out, None, |out, _| {
                    let operation = Operation { attention, kv: self.kv, sinks };
                    attention::attention(operation, inputs, &q, out, kernel);
                });
            }
            Op::Attention(ref attention) => frame.write(attention.out, None, |out, others| {
                let q = others.rows(attention.q);
                let operation = Operation { attention, kv: self.kv, sinks: sinks(attention) };
                attention::attention(operation, inputs, &q, out, kernel);
            }),
            Op::AttentionScores(ref op) => frame.write(op.scores, None, |out, others| {
                materialized::scores(
                    &op.attention,
                    inputs,
                    self.kv,
                    &others.rows(op.attention.q),
                    out,
                );
            }),
            Op::AttentionSoftmax(ref op) => frame.write(op.probabilities, None, |out, others| {
                let attention = &op.attention;
                let operation = Operation { attention, kv: self.kv, sinks: sinks(attention) };
                materialized::softmax(operation, inputs, &others.rows(op.scores), out);
            }),
            Op::AttentionValues(ref op) => frame.write(op.attention.out, None, |out, others| {
                let probabilities = others.rows(op.probabilities);
                materialized::values(&op.attention, inputs, self.kv, &probabilities, out);
            }),
            Op::Gate { activation, gate, up, out } => {
                let max = largest(plan.dtype(out));
                frame.write(out, None, |out, others| {
                    activation::gate(activation, &others.rows(gate), &others.rows(up), max, out);
                });
            }
            Op::SigmoidGate { gate, x, out, adds } => {
                let gated = if adds { x } else { out };
                frame.write(gated, Some(x), |gated, others| {
                    ops::sigmoid_gate(&others.rows(gate), gated);
                });
                if adds {
                    frame.write(out, Some(out), |out, others| ops::add(&others.rows(x), out));
                }
            }
            Op::CausalConv(CausalConv { layer, x, weight: id, out }) => {
                frame.write(out, None, |out, others| {
                    let x = others.rows(x);
                    self.states.causal_conv(layer, inputs, weight(id).vector(), &x, out);
                });
            }
            Op::DeltaRule(ref op) => frame.write(op.out, None, |out, others| {
                let &DeltaRule { q, k, v, gates, rate, bias, .. } = op;
                let [q, k, v, gates] = [q, k, v, gates].map(|view| others.rows(view));
                let [rate, bias] = [rate, bias].map(|id| weight(id).vector());
                let operands = DeltaOperands { q, k, v, gates, rate, bias };
                self.states.delta_rule(op, inputs, &operands, out);
            }),
            Op::NormAdd { x, weight: id, eps, residual } => {
                frame.write(x, Some(x), |x, _| ops::rms_norm(weight(id).vector(), eps, x));
                frame.write(residual, Some(residual), |out, others| {
                    ops::add(&others.rows(x), out);
                });
            }
            Op::Add { x, residual, out } => frame.write(out, Some(residual), |out, others| {
                ops::add(&others.rows(x), out);
            }),
            Op::GatherRows { x, out } => frame.write(out, None, |out, others| {
                ops::gather_rows(&others.rows(x), &inputs.logit_rows, out);
            }),
            Op::Softcap { x, cap } => {
                frame.write(x, Some(x), |x, _| ops::softcap_rows(cap, x));
            }
            Op::Scale { x, factors, indices: of } => {
                let of = of.map(|of| indices(frame, of));
                frame.write(x, Some(x), |x, _| {
                    ops::scale_rows(weight(factors).vector(), of.as_deref(), x);
                });
            }
            Op::AllReduce(_) | Op::AllGather { .. } => {
                unreachable!("all ranks take part in {}", op.name())
            }
            Op::Sample { x, .. } => {
                if self.want.has_next_tokens() {
                    self.output.next_tokens = sample::next_tokens(&frame.rows(x), inputs);
                }
            }
        }
    }

    /// Chooses the experts of every token.
    fn route(&mut self, op: &Route) {
        op.router_ops().for_each(|op| self.run(&op));
        let top_k = op.experts.width;
        let logits = self.frame.rows(op.logits);
        let mut experts = vec![0; logits.num_rows() * top_k];
        let mut chosen = vec![0.0; experts.len()];
        let sigmoid = match op.scores {
            Scores::Softmax => None,
            Scores::Sigmoid { bias, groups } => Some((self.weights[bias.0].vector(), groups)),
        };
        let &Route { normalise, scale, shared, .. } = op;
        let routing = Routing { sigmoid, normalise, scale, shared };
        let outs = experts.chunks_exact_mut(top_k).zip(chosen.chunks_exact_mut(top_k));
        for (logits, (experts, weights)) in logits.iter().zip(outs) {
            routing.route(logits, experts, weights);
        }
        self.frame.write(op.weights, None, |out, _| {
            out.for_each(|token, out| out.copy_from_slice(&chosen[token * top_k..][..top_k]));
        });
        // Integers are in the words of the arena as they are.
        self.frame.write(op.experts, None, |out, _| {
            out.for_each(|token, out| {
                let experts = &experts[token * top_k..][..top_k];
                let words = out.iter_mut().zip(experts);
                words.for_each(|(word, &expert)| *word = f32::from_bits(expert));
            });
        });
    }

    /// Normalises, if `op` does, and rotates K, and appends it with V.
    fn append(&mut self, op: &RopeAppend) {
        let rotated = self.rotated(op.k, op);
        let rotated = Rows::dense(&rotated, op.k.width);
        let slots = self.inputs.slots(self.kv.has_window(op.layer));
        self.kv.append(op.layer, slots, &rotated, &self.frame.rows(op.v));
    }

    /// The rows of Q or K of `op`, normalised if it does, rotated and rounded as they are stored.
    fn rotated(&self, x: View, op: &RopeAppend) -> Vec<f32> {
        let table = self.plan.constant(op.table);
        let mut rows = self.frame.rows(x).to_vec();
        if let Some(QkNorm { q, k, eps }) = op.norm {
            let weight = self.weights[if x == op.q { q.0 } else { k.0 }].vector();
            ops::rms_norm(weight, eps, RowsMut::dense(&mut rows, x.width));
            round(self.plan.dtype(x), &mut rows);
        }
        let rotated = RowsMut::dense(&mut rows, x.width);
        ops::rope(table, &self.inputs.positions, op.head_dim, rotated);
        round(self.plan.dtype(x), &mut rows);
        rows
    }

    fn finish(mut self) -> StepOutput {
        let logits = self.frame.rows(self.plan.output);
        let rows = self.want.logit_rows(self.inputs.logit_rows.len()).into_iter().flatten();
        self.output.logits = rows.flat_map(|row| logits.row(row)).copied().collect();
        self.output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::NextToken::Token;
    use crate::exec::testing::plan;
    use crate::plan::{ReadWeightError, Weight};

    /// Row `i` of a weight is all `i`.
    struct Counting;

    impl WeightSource for Counting {
        fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ReadWeightError> {
            for (row, out) in bytemuck::cast_slice_mut(out).chunks_mut(weight.cols).enumerate() {
                out.fill(row as f32);
            }
            Ok(())
        }
    }

    fn inputs() -> StepInputs {
        let mut inputs = StepInputs::new();
        inputs.push_sequence(&[7, 3], 0, &[1], 0..2);
        inputs
    }

    fn run(plan: &Plan, want: Want) -> StepOutput {
        let mut executor = CpuExecutor::open(plan, &Counting).unwrap();
        let prepared = executor.prepare(plan).unwrap();
        executor.run(prepared, &inputs(), want).unwrap()
    }

    #[test]
    fn a_step_brings_back_what_is_wanted() {
        // The table of RoPE is zero, and so is all that comes from it.
        let StepOutput { logits, next_tokens } = run(&plan(), Want::Logits);
        assert_eq!((logits, next_tokens), (vec![0.0; 8], vec![]));
        let mut plan = plan();
        plan.ops.remove(1);
        let StepOutput { logits, next_tokens } = run(&plan, Want::Logits);
        assert_eq!((logits, next_tokens), ([[7.0; 4], [3.0; 4]].concat(), vec![]));
        let StepOutput { logits, next_tokens } = run(&plan, Want::NextTokens);
        assert_eq!((logits, next_tokens), (vec![], vec![Token(0), Token(0)]));
        let StepOutput { logits, next_tokens } = run(&plan, Want::Nothing);
        assert_eq!((logits, next_tokens), (vec![], vec![]));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn what_no_operation_wrote_is_nan() {
        let mut plan = plan();
        plan.ops.remove(0);
        assert!(run(&plan, Want::Logits).logits.iter().all(|logit| logit.is_nan()));
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let mut large = plan();
        large.kv.num_pages = 1 << 40;
        let error = CpuExecutor::open(&large, &Counting).err().unwrap();
        assert!(matches!(error, ExecError::OutOfMemory { .. }), "{error}");
    }

    #[test]
    fn rejects_types_that_it_does_not_hold() {
        let mut weight = plan();
        weight.weights[0].parts[0].storage = Dtype::U32;
        let message = CpuExecutor::open(&weight, &Counting).err().unwrap().to_string();
        assert!(message.starts_with("embedding: U32"), "{message}");
    }
}
