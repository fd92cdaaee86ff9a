//! Steps of no request, to be looked at: their times and their values, operation by operation.

use super::pages::PageTable;
use super::request::check_prompt;
use super::{Engine, EngineError};
use crate::exec::{Activations, ExecError, PreparedPlan, StepTimes, Want};
use crate::plan::{Plan, PlanOutput, StepInputs, StepShape};

/// The size of a step that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepSize {
    /// Sequences.
    pub num_seqs: usize,
    /// Positions of each in the cache before the step.
    pub cached_tokens: usize,
    /// New tokens of each.
    pub new_tokens: usize,
}

/// A step that was timed.
#[derive(Clone, Debug)]
pub struct TimedStep {
    /// The plan as it ran.
    pub plan: Plan,
    /// The sizes that its costs come from ([`Plan::op_cost`]).
    pub shape: StepShape,
    /// Times of the step and of its operations.
    pub times: StepTimes,
}

/// What is called after each operation: with the plan as it runs, the operation's index in it, and
/// the activations.
pub type ObserveOp<'a> =
    dyn FnMut(&Plan, usize, &dyn Activations) -> Result<(), ExecError> + Send + 'a;

impl Engine {
    /// Times the operations of a step of `size`, `repeats` times, in the plan that a step of
    /// requests runs in. The tokens are arbitrary.
    ///
    /// # Errors
    /// [`EngineError::StepTooLarge`], those of a prompt (see [`Engine::add_request`]),
    /// [`EngineError::CacheFull`]; [`EngineError::Exec`], on the emulator always.
    pub fn time_step(&mut self, size: StepSize, repeats: usize) -> Result<TimedStep, EngineError> {
        self.with_step(size, |engine, plan, inputs| {
            let times = engine.executor.time_ops(plan, inputs, repeats)?;
            let plan = engine.executor.plan(plan)?.clone();
            Ok(TimedStep { plan, shape: StepShape::of(inputs), times })
        })
    }

    /// Runs a step of `size` while a profiler that watches this process collects, and returns how
    /// many kernels each operation has
    /// ([`Executor::collect_ops`](crate::exec::Executor::collect_ops)).
    ///
    /// # Errors
    /// Errors of [`Engine::time_step`]; [`EngineError::Exec`], on a GPU alone it is possible.
    pub fn collect_step(&mut self, size: StepSize) -> Result<Vec<usize>, EngineError> {
        self.with_step(size, |engine, plan, inputs| {
            Ok(engine.executor.collect_ops(plan, inputs)?)
        })
    }

    /// Calls `run` with a step of `size` whose cached tokens are in the cache.
    fn with_step<T>(
        &mut self,
        size: StepSize,
        run: impl FnOnce(&mut Self, PreparedPlan, &StepInputs) -> Result<T, EngineError>,
    ) -> Result<T, EngineError> {
        let mut tables = Vec::new();
        let inputs = self.fill(size, &mut tables);
        let result = inputs.and_then(|inputs| {
            let is_prompt = size.new_tokens > 1 && self.numerics.batch_invariant;
            let plan =
                self.prepare(PlanOutput::Logits, self.buckets.bounds_for(&inputs, is_prompt))?;
            run(self, plan, &inputs)
        });
        tables.into_iter().for_each(|table| self.requests.scheduler.give_back(table));
        result
    }

    /// The inputs of a step of `size`, after its cached tokens have been computed into `tables`.
    fn fill(
        &mut self,
        size: StepSize,
        tables: &mut Vec<PageTable>,
    ) -> Result<StepInputs, EngineError> {
        let StepSize { num_seqs, cached_tokens, new_tokens } = size;
        self.check_step(num_seqs * new_tokens)?;
        let vocab_size = self.model.config().vocab_size;
        let len = cached_tokens + new_tokens;
        let mut inputs = StepInputs::new();
        for seq in 0..num_seqs {
            let tokens: Vec<u32> =
                (0..len).map(|at| ((31 * at + 17 * seq) % vocab_size) as u32).collect();
            check_prompt(&tokens, vocab_size, self.context())?;
            tables.push(self.requests.scheduler.take_pages(len).ok_or(EngineError::CacheFull)?);
            let (cached, new) = tokens.split_at(cached_tokens);
            let mut past_len = 0;
            for chunk in cached.chunks(self.buckets.max_tokens) {
                let mut inputs = StepInputs::new();
                self.push_chunk(&mut inputs, chunk, past_len, &mut tables[seq], 0..0)?;
                self.run_prompts(&inputs, Want::Nothing)?;
                past_len += chunk.len();
            }
            let last = new_tokens - 1..new_tokens;
            self.push_chunk(&mut inputs, new, past_len, &mut tables[seq], last)?;
        }
        Ok(inputs)
    }

    /// Runs `tokens` as a prompt, in one step, and calls `observe` after each operation. The logits
    /// of the last token are computed.
    ///
    /// # Errors
    /// Errors of [`Engine::time_step`] and of `observe`.
    pub fn observe_prompt(
        &mut self,
        tokens: &[u32],
        observe: &mut ObserveOp<'_>,
    ) -> Result<(), EngineError> {
        check_prompt(tokens, self.model.config().vocab_size, self.context())?;
        self.check_step(tokens.len())?;
        let mut pages =
            self.requests.scheduler.take_pages(tokens.len()).ok_or(EngineError::CacheFull)?;
        let mut inputs = StepInputs::new();
        self.push_chunk(&mut inputs, tokens, 0, &mut pages, tokens.len() - 1..tokens.len())?;
        let bounds = self.buckets.bounds_for(&inputs, true);
        let observed = self.prepare(PlanOutput::Logits, bounds).and_then(|prepared| {
            let plan = self.executor.plan(prepared)?.clone();
            let after = &mut |op, activations: &dyn Activations| observe(&plan, op, activations);
            Ok(self.executor.run_ops(prepared, &inputs, after)?)
        });
        self.requests.scheduler.give_back(pages);
        observed
    }

    fn check_step(&self, num_tokens: usize) -> Result<(), EngineError> {
        match self.buckets.max_tokens {
            max if num_tokens > max => Err(EngineError::StepTooLarge { asked: num_tokens, max }),
            _ => Ok(()),
        }
    }
}
