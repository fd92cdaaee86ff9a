//! The CPU executor: every operation in f32, on rayon's threads.
//!
//! It is the reference that the GPU executors are compared with, and what runs where no GPU is. Decoding is bound by
//! reading the weights; a prompt is a matrix product.

mod activations;
mod attention;
mod dot;
mod kv;
mod linear;
mod ops;

use self::activations::{Frame, arena_elems};
use self::kv::KvCache;
use super::{ExecError, Executor, PreparedPlan, StepOutput, Want, WeightSource, inputs};
use crate::plan::{ArenaLayout, Dtype, Op, Plan, StepInputs, Weight};
use rayon::prelude::*;

/// Runs plans on the CPU in f32.
pub struct CpuExecutor {
    weights: Vec<Vec<f32>>,
    kv: KvCache,
    arena: Vec<f32>,
    prepared: Vec<(Plan, ArenaLayout)>,
}

impl CpuExecutor {
    /// Reads the weights of `plan` and makes room for its KV cache.
    ///
    /// # Errors
    /// [`ExecError::Unsupported`] for a storage other than f32, [`ExecError::Weights`] from `weights`.
    pub fn open(plan: &Plan, weights: &dyn WeightSource) -> Result<Self, ExecError> {
        if plan.kv.dtype != Dtype::F32 {
            return Err(unsupported("KV cache", plan.kv.dtype));
        }
        let weights = plan.weights.par_iter().map(|weight| read_weight(weight, weights));
        Ok(CpuExecutor {
            weights: weights.collect::<Result<_, _>>()?,
            kv: KvCache::new(plan.kv),
            arena: Vec::new(),
            prepared: Vec::new(),
        })
    }
}

impl Executor for CpuExecutor {
    fn describe(&self) -> String {
        let threads = rayon::current_num_threads();
        format!("CPU, {threads} thread{}", if threads == 1 { "" } else { "s" })
    }

    fn prepare(&mut self, plan: &Plan) -> Result<PreparedPlan, ExecError> {
        let layout = ArenaLayout::new(plan);
        let arena_elems = arena_elems(&layout).max(self.arena.len());
        self.arena.resize(arena_elems, 0.0);
        self.prepared.push((plan.clone(), layout));
        Ok(PreparedPlan(self.prepared.len() - 1))
    }

    fn run(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want,
    ) -> Result<StepOutput, ExecError> {
        let (plan, layout) = self
            .prepared
            .get(plan.0)
            .ok_or_else(|| ExecError::Step(format!("no plan {} was prepared", plan.0)))?;
        inputs::check(plan, inputs)?;
        let mut step = Step {
            plan,
            inputs,
            want,
            weights: &self.weights,
            kv: &mut self.kv,
            frame: Frame::new(plan, layout, inputs, &mut self.arena),
            output: StepOutput::default(),
        };
        // Inside the pool from start to end: a fork then costs a push on a local queue, not a wake-up.
        Ok(rayon::scope(|_| {
            plan.ops.iter().for_each(|op| step.run(op));
            step.finish()
        }))
    }
}

fn unsupported(what: &str, dtype: Dtype) -> ExecError {
    ExecError::Unsupported {
        op: what.to_string(),
        why: format!("{dtype} storage; the CPU executor computes on f32"),
    }
}

fn read_weight(weight: &Weight, source: &dyn WeightSource) -> Result<Vec<f32>, ExecError> {
    if weight.storage != Dtype::F32 {
        return Err(unsupported(&weight.name, weight.storage));
    }
    let mut values = vec![0.0; weight.rows * weight.cols];
    source.read(weight, bytemuck::cast_slice_mut(&mut values))?;
    Ok(values)
}

/// One step on its way through the operations.
struct Step<'a> {
    plan: &'a Plan,
    inputs: &'a StepInputs,
    want: Want,
    weights: &'a [Vec<f32>],
    kv: &'a mut KvCache,
    frame: Frame<'a>,
    output: StepOutput,
}

impl Step<'_> {
    fn run(&mut self, op: &Op) {
        let (weights, inputs, frame) = (self.weights, self.inputs, &mut self.frame);
        match *op {
            Op::Embedding { table, out } => {
                let (out, _) = frame.write(out);
                ops::embedding(&weights[table.0], &inputs.token_ids, out);
            }
            Op::RmsNorm { x, weight, out, eps } => {
                frame.copy(x, out);
                let (out, _) = frame.write(out);
                ops::rms_norm(&weights[weight.0], eps, out);
            }
            Op::Linear { x, weight, bias, residual, out } => {
                if let Some(residual) = residual {
                    frame.copy(residual, out);
                }
                let (mut out, others) = frame.write(out);
                let x = others.rows(x);
                linear::linear(x, &weights[weight.0], residual.is_some(), &mut out);
                if let Some(bias) = bias {
                    ops::add_bias(&weights[bias.0], out);
                }
            }
            Op::Rope { x, table, head_dim } => {
                let table = self.plan.constant(table);
                let (x, _) = frame.write(x);
                ops::rope(table, &inputs.positions, head_dim, x);
            }
            Op::KvAppend { layer, k, v } => {
                self.kv.append(layer, &inputs.slot_mapping, frame.rows(k), frame.rows(v));
            }
            Op::Attention(attention) => {
                let (out, others) = frame.write(attention.out);
                let q = others.rows(attention.q);
                attention::attention(&attention, inputs, self.kv, q, out);
            }
            Op::SiluMul { gate, up, out } => {
                let (out, others) = frame.write(out);
                ops::silu_mul(others.rows(gate), others.rows(up), out);
            }
            Op::GatherRows { x, out } => {
                let (out, others) = frame.write(out);
                ops::gather_rows(others.rows(x), &inputs.logit_rows, out);
            }
            Op::Argmax { x, .. } => {
                if self.want == Want::NextTokens {
                    self.output.next_tokens = ops::argmax(frame.rows(x));
                }
            }
        }
    }

    fn finish(mut self) -> StepOutput {
        if self.want == Want::Logits {
            self.output.logits = self.frame.rows(self.plan.logits).to_vec();
        }
        self.output
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::testing::plan;

    /// Row `i` of a weight is all `i`.
    struct Counting;

    impl WeightSource for Counting {
        fn read(&self, weight: &Weight, out: &mut [u8]) -> Result<(), ExecError> {
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
        assert_eq!((logits, next_tokens), (vec![], vec![0, 0]));
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
    fn rejects_storage_other_than_f32() {
        let mut half_weight = plan();
        half_weight.weights[0].storage = Dtype::F16;
        let mut half_cache = plan();
        half_cache.kv.dtype = Dtype::F16;
        for (plan, start) in [(half_weight, "embedding: F16"), (half_cache, "KV cache: F16")] {
            let message = CpuExecutor::open(&plan, &Counting).err().unwrap().to_string();
            assert!(message.starts_with(start), "{message}");
        }
    }

    #[test]
    fn rejects_a_plan_that_was_not_prepared() {
        let mut executor = CpuExecutor::open(&plan(), &Counting).unwrap();
        let error = executor.run(PreparedPlan(0), &inputs(), Want::Nothing).err().unwrap();
        assert_eq!(error.to_string(), "step inputs: no plan 0 was prepared");
    }
}
