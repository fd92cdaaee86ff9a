//! The engine: requests in, tokens out.
//!
//! Requests are batched as they come (continuous batching), their keys and values live in a paged cache, and each has a
//! sampler of its own. One request is a batch of one.

mod buckets;
mod error;
mod generate;
mod options;
pub mod pages;
mod request;
mod sampler;
mod sampling;
mod scheduler;
mod sequence;

pub use error::EngineError;
pub use options::EngineOptions;
pub use request::{Event, EventKind, FinishReason, Generation, Request, RequestId};
pub use sampling::{Sampling, SamplingError};

use crate::Model;
use crate::exec::{self, ExecError, Executor, PreparedPlan, StepOutput, Want};
use crate::model::ModelError;
use crate::plan::{Bounds, Numerics, StepInputs, Weight};
use crate::weights::Progress;
use buckets::Buckets;
use scheduler::{Entry, Scheduler, Turns};
use sequence::Sequence;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Runs requests on a model.
pub struct Engine {
    model: Arc<Model>,
    executor: Box<dyn Executor>,
    numerics: Numerics,
    buckets: Buckets,
    num_pages: usize,
    prepared: HashMap<Bounds, PreparedPlan>,
    scheduler: Scheduler,
    next_id: u64,
    /// Events that no step has handed out yet.
    events: VecDeque<Event>,
    /// Failures of single requests, likewise.
    failures: VecDeque<EngineError>,
}

impl Engine {
    /// Checks that the model fits into the device's memory, and loads its weights.
    ///
    /// # Errors
    /// [`EngineError::Context`], [`EngineError::TooMany`], [`EngineError::Memory`], [`EngineError::Model`], [`EngineError::Exec`].
    pub fn new(model: Arc<Model>, options: EngineOptions) -> Result<Self, EngineError> {
        Self::with_progress(model, options, |_, _| {})
    }

    /// As [`Engine::new`]; `report` is called after each weight with the bytes loaded and those of all weights.
    ///
    /// # Errors
    /// As [`Engine::new`].
    pub fn with_progress(
        model: Arc<Model>,
        options: EngineOptions,
        report: impl Fn(usize, usize) + Sync,
    ) -> Result<Self, EngineError> {
        options.gemm.check_device(options.device).map_err(ExecError::from)?;
        options.device.check_target(options.target)?;
        let operand = options.precision.operand();
        options.numerics().check().map_err(ModelError::from)?;
        options.gemm.compute_type(operand).map_err(ExecError::from)?;
        options
            .gemm
            .check_accumulate(options.accumulate, options.device)
            .map_err(ExecError::from)?;
        let context = options.context_for(model.config())?;
        let num_pages = options.num_pages(context)?;
        let max_seqs = options.max_seqs.max(1);
        // No step is larger than all contexts together, however large a one is asked for.
        let max_tokens = options.max_tokens.clamp(max_seqs, max_seqs.saturating_mul(context));
        let buckets = Buckets { max_tokens, max_seqs, context };
        let (numerics, bounds) = (options.numerics(), buckets.largest());
        if let Some((device, free_bytes)) = options.device.free_memory()? {
            let memory = model.memory(&numerics, bounds, num_pages)?;
            memory.check(&device, free_bytes, options.cache_size())?;
        }
        let plan = model.plan(&numerics, bounds, num_pages)?;
        let weights_bytes = plan.weights.iter().map(Weight::bytes).sum();
        let weights = Progress::new(model.checkpoint(), weights_bytes, report);
        let executor = exec::open(options.device, options.gemm, options.target, &plan, &weights)?;
        let turns = if numerics.batch_invariant { Turns::Apart } else { Turns::Together };
        let mut engine = Engine {
            model,
            executor,
            numerics,
            buckets,
            num_pages,
            prepared: HashMap::new(),
            scheduler: Scheduler::new(turns, max_seqs, buckets.max_tokens, num_pages),
            next_id: 0,
            events: VecDeque::new(),
            failures: VecDeque::new(),
        };
        if engine.executor.prepares_ahead() {
            engine.prepare_all()?;
        }
        Ok(engine)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Positions of a sequence, prompt and answer.
    pub fn context(&self) -> usize {
        self.buckets.context
    }

    /// Where it runs, in one line.
    pub fn describe_device(&self) -> String {
        self.executor.describe()
    }

    /// Queues a request. Its tokens come as events of the steps that follow.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`], [`EngineError::UnknownToken`],
    /// [`EngineError::Sampling`].
    pub fn add_request(&mut self, request: Request) -> Result<RequestId, EngineError> {
        request.check(self.model.config().vocab_size, self.context())?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        if request.max_new_tokens == Some(0) {
            self.finish(id, FinishReason::Length);
        } else {
            self.scheduler.add(Sequence::new(id, request));
        }
        Ok(id)
    }

    /// Ends a request; its last event is [`FinishReason::Cancelled`]. Nothing happens if it has ended already.
    pub fn cancel(&mut self, request: RequestId) {
        if self.scheduler.remove(request) {
            self.finish(request, FinishReason::Cancelled);
        }
    }

    /// Whether there is something to do for [`Engine::step`].
    pub fn has_work(&self) -> bool {
        self.scheduler.has_work() || !self.events.is_empty() || !self.failures.is_empty()
    }

    /// Runs one batch: a token of each sequence that decodes, then as much of the prompts as there is room for.
    ///
    /// # Errors
    /// [`EngineError::Sample`] for one request, which is removed; the events of the others come with the next step.
    /// [`EngineError::Exec`] if the batch failed: nothing has changed.
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        if self.failures.is_empty() {
            self.run_batch()?;
        }
        match self.failures.pop_front() {
            Some(failure) => Err(failure),
            None => Ok(self.events.drain(..).collect()),
        }
    }

    fn run_batch(&mut self) -> Result<(), EngineError> {
        let entries = self.scheduler.schedule();
        if let Some(first) = entries.first() {
            let is_prompt = self.scheduler.prompt_len(first.index) > 0;
            let inputs = self.step_inputs(&entries);
            let want = self.want(&entries);
            let output = self.run(&inputs, is_prompt, want)?;
            self.take_output(&entries, &output);
        }
        Ok(())
    }

    fn finish(&mut self, request: RequestId, reason: FinishReason) {
        self.events.push_back(Event { request, kind: EventKind::Finished(reason) });
    }

    fn step_inputs(&mut self, entries: &[Entry]) -> StepInputs {
        let mut inputs = StepInputs::new();
        for entry in entries {
            let sequence = self.scheduler.running(entry.index);
            let tokens = &sequence.pending()[..entry.num_tokens];
            let logits = if entry.is_last { entry.num_tokens - 1..entry.num_tokens } else { 0..0 };
            inputs.push_sequence(tokens, sequence.num_cached(), sequence.pages(), logits);
        }
        inputs
    }

    /// What the batch wants back.
    fn want(&mut self, entries: &[Entry]) -> Want {
        let mut want = Want::Nothing;
        for entry in entries.iter().filter(|entry| entry.is_last) {
            if self.scheduler.running(entry.index).needs_logits() {
                return Want::Logits;
            }
            want = Want::NextTokens;
        }
        want
    }

    /// Runs `inputs` in the smallest plan that they fit, which is prepared when it is first needed.
    fn run(
        &mut self,
        inputs: &StepInputs,
        is_prompt: bool,
        want: Want,
    ) -> Result<StepOutput, EngineError> {
        let bounds = self.buckets.bounds_for(inputs, is_prompt && self.numerics.batch_invariant);
        let plan = self.prepare(bounds)?;
        Ok(self.executor.run(plan, inputs, want)?)
    }

    /// The plan for steps of `bounds`, ready to run.
    fn prepare(&mut self, bounds: Bounds) -> Result<PreparedPlan, EngineError> {
        if let Some(&plan) = self.prepared.get(&bounds) {
            return Ok(plan);
        }
        let plan = self.model.plan(&self.numerics, bounds, self.num_pages)?;
        let plan = self.executor.prepare(&plan)?;
        self.prepared.insert(bounds, plan);
        Ok(plan)
    }

    /// Prepares what requests run, and runs it: the first request of a size neither waits for that, nor for a graph on
    /// its way to the device, nor for weights and kernels that nothing has touched.
    fn prepare_all(&mut self) -> Result<(), EngineError> {
        for bounds in self.buckets.of_requests() {
            let plan = self.prepare(bounds)?;
            self.executor.run(plan, &buckets::warm_up(&bounds), Want::NextTokens)?;
        }
        Ok(())
    }

    /// Samples the next tokens of the batch, and makes the events of it.
    fn take_output(&mut self, entries: &[Entry], output: &StepOutput) {
        let vocab_size = self.model.config().vocab_size;
        let context = self.buckets.context;
        let mut ended = Vec::new();
        let mut row = 0;
        for entry in entries {
            let sequence = self.scheduler.running(entry.index);
            sequence.advance(entry.num_tokens);
            if !entry.is_last {
                continue;
            }
            let request = sequence.id();
            let token = match output.next_tokens.get(row) {
                Some(&next) => sampler::greedy(next),
                None => sequence.sample(&output.logits[row * vocab_size..][..vocab_size]),
            };
            row += 1;
            match token {
                Ok(token) => {
                    self.events.push_back(Event { request, kind: EventKind::Token(token) });
                    if let Some(reason) = sequence.push(token, context) {
                        self.finish(request, reason);
                        ended.push(request);
                    }
                }
                Err(source) => {
                    ended.push(request);
                    self.failures.push_back(EngineError::Sample { request, source });
                }
            }
        }
        for request in ended {
            self.scheduler.remove(request);
        }
    }
}
