//! The engine: requests in, tokens out.
//!
//! Requests are batched as they come (continuous batching), their keys and values live in a paged
//! cache, and each has its own way to be sampled. One request is a batch of one. A request that
//! ended leaves its keys and values in the cache until others need the room: a later request with
//! the same beginning, such as the next turn of a chat, starts from them.

mod buckets;
mod cache_event;
mod chain;
mod constraint;
mod edits;
mod error;
mod generate;
mod logprobs;
mod observe;
mod options;
pub mod pages;
mod pool;
mod pooling;
mod precision;
mod prefix;
mod request;
mod requests;
mod rows;
mod sampler;
mod sampling;
mod scheduler;
mod sequence;
mod service;
mod sizing;
mod states;
mod windows;

pub use cache_event::{CacheEvent, StoredPage};
pub use chain::{Dry, Mirostat, Penalties, Pieces, SamplerChain, SamplerStep};
pub use constraint::{Constraint, ConstraintState};
pub use error::EngineError;
pub use logprobs::Logprobs;
pub use observe::{ObserveOp, StepSize, TimedStep};
pub use options::EngineOptions;
pub use pooling::Pooling;
pub use precision::PrecisionChoice;
pub use prefix::PageHash;
pub use request::{Event, EventKind, FinishReason, Generation, PromptProgress, Request, RequestId};
pub use sampling::{Sampling, SamplingError};
pub(crate) use sampling::{check_repetition_penalty, check_share, check_temperature};
#[cfg(all(test, feature = "server"))]
pub(crate) use service::tests::unlucky_engine;
pub use service::{
    EngineHandle, EngineService, RequestEvent, RequestStream, ServiceOptions, ServiceStats,
};

use crate::Model;
use crate::exec::{self, Executor, PreparedPlan, StepOutput, StepQueue, Want};
use crate::model::ModelError;
use crate::plan::{
    Bounds, CacheSize, MemoryBudget, MemoryUse, Numerics, Plan, PlanOutput, Precision, Rank,
    StepInputs,
};
use crate::weights::Progress;
use buckets::Buckets;
use cache_event::Listener;
use pages::{PageAllocator, PageTable};
use precision::Attempts;
use requests::{Batch, Requests, push_table};
use scheduler::{Limits, Scheduler, Turns};
use sequence::Sequence;
use sizing::Size;
use states::StatePool;
use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use windows::Windows;

/// What an engine is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineStats {
    /// Requests that run.
    pub num_running: usize,
    /// Requests that wait, those that gave their place back included.
    pub num_waiting: usize,
    /// Pages of the KV cache that running requests hold; others are free, or hold what has ended.
    pub num_used_pages: usize,
    /// Pages of the KV cache.
    pub num_pages: usize,
    /// How often a running request gave its place back to wait.
    pub num_preemptions: u64,
}

/// Runs requests on a model.
pub struct Engine {
    model: Arc<Model>,
    /// Ranks that share the model.
    world: usize,
    executor: Box<dyn Executor>,
    numerics: Numerics,
    notes: Vec<String>,
    buckets: Buckets,
    cache: CacheSize,
    budget: MemoryBudget,
    prepared: HashMap<(PlanOutput, Bounds), PreparedPlan>,
    requests: Requests,
    next_id: u64,
    /// Whether [`Engine::step_while`] makes a batch while the device runs the one before.
    looks_ahead: bool,
    /// The batch that ran last, if nobody has taken what it brought.
    unread: Option<(Batch, StepOutput)>,
    /// The batch after it, if it was made already: it runs next, or does already.
    next: Option<Batch>,
}

impl Engine {
    /// Checks that the model fits into the device's memory, and loads its weights.
    ///
    /// # Errors
    /// [`EngineError::Context`], [`EngineError::TooMany`], [`EngineError::Utilization`], [`EngineError::Memory`],
    /// [`EngineError::Model`], [`EngineError::Exec`].
    pub fn new(model: Arc<Model>, options: EngineOptions) -> Result<Self, EngineError> {
        Self::with_progress(model, options, |_, _| ControlFlow::Continue(()))
    }

    /// As [`Engine::new`]; `report` is called after each weight with the bytes loaded and those of
    /// all weights. It may break the loading off.
    ///
    /// # Errors
    /// As [`Engine::new`]; [`BrokenOff`](crate::weights::BrokenOff) within
    /// [`ExecError::Weights`](crate::exec::ExecError::Weights) once `report` breaks.
    pub fn with_progress(
        model: Arc<Model>,
        options: EngineOptions,
        report: impl Fn(usize, usize) -> ControlFlow<()> + Sync,
    ) -> Result<Self, EngineError> {
        let open = |attempts: &Attempts, max_tokens| {
            Self::open(&model, &options, attempts, max_tokens, &report)
        };
        let (engine, mut attempts) = sizing::attempt(&model, &options, open)?;
        attempts.note_context(engine.context());
        Ok(Engine { notes: attempts.notes, ..engine })
    }

    /// The memory that [`Engine::new`] will take, if there are `room_bytes` for it; `None`: nobody
    /// knows. Nothing is loaded.
    ///
    /// # Errors
    /// As [`Engine::new`], but for what is found when weights are read.
    pub fn measure(
        model: &Model,
        options: &EngineOptions,
        room_bytes: Option<usize>,
    ) -> Result<MemoryBudget, EngineError> {
        let memory = match room_bytes {
            Some(room) => options.device.free_memory()?.map(|memory| memory.with_room(room)),
            None => None,
        };
        // The room is what is left of a share already.
        let options = EngineOptions { gpu_memory_utilization: 1.0, ..options.clone() };
        let measure = |attempts: &Attempts, max_tokens| {
            sizing::size(model, &options, attempts, max_tokens, || Ok(memory.clone()))
        };
        let ((_, size), _) = sizing::attempt(model, &options, measure)?;
        Ok(size.budget)
    }

    fn open(
        model: &Arc<Model>,
        options: &EngineOptions,
        attempts: &Attempts,
        max_tokens: usize,
        report: impl Fn(usize, usize) -> ControlFlow<()> + Sync,
    ) -> Result<Self, EngineError> {
        let (numerics, Size { buckets, cache, budget }) =
            sizing::size(model, options, attempts, max_tokens, || options.device.free_memory())?;
        let world = options.tensor_parallel_size.get();
        let plans =
            self::plans(model, world, PlanOutput::Logits, &numerics, buckets.largest(), cache)?;
        let weight_bytes = plans.iter().map(Plan::weight_bytes).sum();
        let weights = Progress::new(model.checkpoint(), weight_bytes, report);
        let executor = exec::open_ranks(options.device, &options.gpu(), &plans, &weights)?;
        let turns = if numerics.batch_invariant { Turns::Apart } else { Turns::Together };
        let limits = Limits {
            max_seqs: buckets.max_seqs,
            max_tokens: buckets.max_tokens,
            max_tokens_beside_rows: buckets.logit_chunk(),
            long_prefill_token_threshold: options.long_prefill_token_threshold,
        };
        let mut pages = PageAllocator::new(cache.num_pages);
        if let Some(window) = model.config().window() {
            pages = pages.with_windows(Windows::new(cache.num_window_pages, window));
        }
        if model.config().delta.is_some() {
            let states = StatePool::new(cache.num_states, options.snapshot_distance());
            pages = pages.with_states(states);
        }
        let scheduler = Scheduler::new(turns, limits, pages);
        let mut engine = Engine {
            model: Arc::clone(model),
            world,
            executor,
            numerics,
            notes: Vec::new(),
            buckets,
            cache,
            budget,
            prepared: HashMap::new(),
            requests: Requests::new(Arc::clone(model), buckets.context, scheduler),
            next_id: 0,
            looks_ahead: options.looks_ahead(),
            unread: None,
            next: None,
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

    /// What it computes in.
    pub fn precision(&self) -> Precision {
        self.numerics.precision
    }

    /// How it computes.
    pub fn numerics(&self) -> &Numerics {
        &self.numerics
    }

    /// What a user should know about how the options were met, one line each: why another precision
    /// was chosen than the usual one of the device, or a short context.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The memory that it takes, as counted before anything was allocated.
    pub fn memory_budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// The memory that it takes, as measured now: on a GPU by the device's free memory before and
    /// after, which other processes on it disturb. On the CPU and the emulator memory for steps is
    /// allocated when one first needs it.
    ///
    /// # Errors
    /// [`EngineError::Exec`].
    pub fn memory_use(&self) -> Result<MemoryUse, EngineError> {
        Ok(self.executor.memory_use()?)
    }

    /// Where it runs, in one line.
    pub fn describe_device(&self) -> String {
        self.executor.describe()
    }

    /// Queues a request. Its tokens come as events of the steps that follow.
    ///
    /// # Errors
    /// [`EngineError::EmptyPrompt`], [`EngineError::PromptTooLong`], [`EngineError::UnknownToken`],
    /// [`EngineError::Sampling`], [`EngineError::NoGeneration`], [`EngineError::Pooling`].
    pub fn add_request(&mut self, request: Request) -> Result<RequestId, EngineError> {
        request.check(self.model.config().vocab_size, self.context())?;
        request.check_pooling(&self.model)?;
        let id = RequestId(self.next_id);
        self.next_id += 1;
        let is_of_prompt = request.prompt_logprobs.is_some() || request.pooling.is_some();
        if request.max_new_tokens == Some(0) && !is_of_prompt {
            self.requests.finish(id, FinishReason::Length);
        } else {
            let sequence = Sequence::new(id, request);
            self.requests.scheduler.add(match self.model.config().is_causal {
                true => sequence,
                false => sequence.read_whole(self.model.decoder().pooler().rows()),
            });
        }
        Ok(id)
    }

    /// Ends a request; its last event is [`FinishReason::Cancelled`]. Nothing happens if it has
    /// ended already.
    pub fn cancel(&mut self, request: RequestId) {
        // What it brought comes before its end.
        self.read();
        if self.requests.scheduler.retire(request) {
            self.requests.finish(request, FinishReason::Cancelled);
        }
    }

    /// How much of a request's prompt has been computed; `None` once the request has ended. A step
    /// computes at most [`EngineOptions::max_tokens`].
    pub fn prompt_progress(&self, request: RequestId) -> Option<PromptProgress> {
        self.requests.scheduler.get(request).map(Sequence::progress)
    }

    /// What it is doing.
    pub fn stats(&self) -> EngineStats {
        self.requests.scheduler.stats()
    }

    /// Drops the keys and values of requests that have ended: the next request starts from nothing.
    pub fn drop_retained(&mut self) {
        self.requests.scheduler.drop_retained();
    }

    /// Tells `listener`, from now on, of pages that other requests can find, and of those that they
    /// cannot find any more. It is called where the engine's methods are, before a step that reuses
    /// what it tells of; it has to return soon. With [`EngineOptions::batch_invariant`] pages with
    /// generated tokens are not told of: no prompt finds them. Nor are any of models with a
    /// recurrent state: pages alone are of no use to these. Of models with sliding windows they are
    /// those of the other layers: a request begins with fewer where a window's are gone.
    pub fn on_cache_event(&mut self, listener: impl FnMut(CacheEvent) + Send + 'static) {
        self.requests.scheduler.listen(Listener::new(listener));
    }

    /// Whether there is something to do for [`Engine::step`].
    pub fn has_work(&self) -> bool {
        self.unread.is_some() || self.next.is_some() || self.requests.has_work()
    }

    /// Runs one batch: a token of each sequence that decodes, then as much of the prompts as there
    /// is room for (of one prompt at most [`EngineOptions::long_prefill_token_threshold`]); batch
    /// invariant one or the other.
    ///
    /// # Errors
    /// [`EngineError::Exec`] if the batch failed: no request has got anything, and what runs is
    /// computed anew. What concerns a single request is an event,
    /// [`EventKind::Failed`].
    pub fn step(&mut self) -> Result<Vec<Event>, EngineError> {
        let mut events = Vec::new();
        let result = self.run_batch(&mut |_, before| events.extend(before), false);
        self.read();
        self.requests.events.splice(0..0, events);
        result.map(|()| std::mem::take(&mut self.requests.events))
    }

    /// As [`Engine::step`], but what the batch brings is handed out while the device runs the next
    /// one: then `meanwhile` is called, with what the engine is doing and the events of the batch
    /// before. Where no sequence needs its token first, as penalties and constraints do, the batch
    /// after is made there too, and begins on the device when this one ends: a request that is added
    /// waits for both.
    ///
    /// # Errors
    /// As [`Engine::step`].
    pub fn step_while(
        &mut self,
        mut meanwhile: impl FnMut(EngineStats, Vec<Event>),
    ) -> Result<(), EngineError> {
        self.run_batch(&mut meanwhile, self.looks_ahead)
    }

    fn run_batch(
        &mut self,
        meanwhile: &mut dyn FnMut(EngineStats, Vec<Event>),
        looks_ahead: bool,
    ) -> Result<(), EngineError> {
        let batch = match self.next.take() {
            Some(batch) => batch,
            None => {
                self.read();
                let Some(batch) = self.requests.batch() else {
                    let events = std::mem::take(&mut self.requests.events);
                    meanwhile(self.stats(), events);
                    return Ok(());
                };
                batch
            }
        };
        let plan = match self.plan_for(batch.output, &batch.inputs, batch.is_prompt) {
            Ok(plan) => plan,
            Err(error) => return self.fail(error),
        };
        let Engine { model, numerics, buckets, executor, prepared, requests, unread, .. } = self;
        let mut constraints = requests.take_constraints(&batch.entries);
        let mut next = None;
        let meanwhile = &mut |queue: &mut dyn StepQueue| {
            if let Some((batch, output)) = unread.take() {
                requests.take_output(&batch, &output);
            }
            meanwhile(requests.scheduler.stats(), std::mem::take(&mut requests.events));
            next = if looks_ahead { requests.batch_after(&batch) } else { None };
            if let Some(Batch { output, inputs, is_prompt, host_rows, .. }) = &next
                && let key = plan_key(model, numerics, buckets, *output, inputs, *is_prompt)
                && let Some(&plan) = prepared.get(&key)
            {
                queue.push(plan, inputs, want(inputs, host_rows));
            }
        };
        // The tokens that may come next are found while the device runs.
        let output = rayon::in_place_scope(|scope| {
            for (_, constraint) in &mut constraints {
                scope.spawn(|_| constraint.prepare());
            }
            let want = want(&batch.inputs, &batch.host_rows);
            executor.run_while(plan, &batch.inputs, want, meanwhile)
        });
        requests.put_constraints(constraints);
        match output {
            Ok(output) => {
                if let Some(next) = &mut next {
                    next.inputs.put_drawn(|row| output.next_tokens.get(row)?.token());
                }
                (self.unread, self.next) = (Some((batch, output)), next);
                Ok(())
            }
            Err(error) => self.fail(error.into()),
        }
    }

    /// Lets all that runs begin anew after a batch that came to nothing.
    fn fail(&mut self, error: EngineError) -> Result<(), EngineError> {
        self.read();
        self.requests.restart();
        Err(error)
    }

    /// Takes what the last batch has brought, if nobody has yet.
    fn read(&mut self) {
        if let Some((batch, output)) = self.unread.take() {
            self.requests.take_output(&batch, &output);
        }
    }

    /// Ends the batch that was made ahead, before the device does something else.
    fn settle(&mut self) -> Result<(), EngineError> {
        if self.next.is_some() {
            let events = self.step()?;
            self.requests.events.splice(0..0, events);
        }
        Ok(())
    }

    /// Adds tokens of a sequence that is none of the scheduler's to `inputs`, with their place in
    /// the cache.
    fn push_chunk(
        &mut self,
        inputs: &mut StepInputs,
        tokens: &[u32],
        past_len: usize,
        table: &mut PageTable,
        logits: std::ops::Range<usize>,
    ) -> Result<(), EngineError> {
        self.settle()?;
        if !self.requests.scheduler.slide(table, past_len..past_len + tokens.len()) {
            return Err(EngineError::CacheFull);
        }
        push_table(inputs, tokens, past_len, table, logits);
        Ok(())
    }

    /// Runs `inputs`, which are of prompts.
    fn run_prompts(
        &mut self,
        inputs: &StepInputs,
        want: Want<'_>,
    ) -> Result<StepOutput, EngineError> {
        let plan = self.plan_for(PlanOutput::Logits, inputs, true)?;
        Ok(self.executor.run(plan, inputs, want)?)
    }

    /// The smallest plan that `inputs` fit, which is prepared when it is first needed.
    fn plan_for(
        &mut self,
        output: PlanOutput,
        inputs: &StepInputs,
        is_prompt: bool,
    ) -> Result<PreparedPlan, EngineError> {
        let Engine { model, numerics, buckets, .. } = self;
        let (output, bounds) = plan_key(model, numerics, buckets, output, inputs, is_prompt);
        self.prepare(output, bounds)
    }

    /// The plan of `output` for steps of `bounds`, ready to run.
    fn prepare(&mut self, output: PlanOutput, bounds: Bounds) -> Result<PreparedPlan, EngineError> {
        let output = output_of(&self.model, output);
        if let Some(&plan) = self.prepared.get(&(output, bounds)) {
            return Ok(plan);
        }
        let Engine { ref model, world, ref numerics, cache, .. } = *self;
        let plans = self::plans(model, world, output, numerics, bounds, cache)?;
        let plan = self.executor.prepare_ranks(&plans)?;
        self.prepared.insert((output, bounds), plan);
        Ok(plan)
    }

    /// Prepares and runs every size of step, so that the first request of a size waits neither for
    /// its plan nor for the first use of graphs, kernels and weights.
    fn prepare_all(&mut self) -> Result<(), EngineError> {
        let is_causal = self.model.config().is_causal;
        let decodes = |bounds: &Bounds| bounds.max_q_len == 1;
        let all = self.buckets.request_bounds().into_iter();
        for bounds in all.filter(|bounds| is_causal || !decodes(bounds)) {
            let plan = self.prepare(PlanOutput::Logits, bounds)?;
            self.executor.run(plan, &buckets::warm_up(&bounds), Want::NextTokens)?;
        }
        Ok(())
    }
}

/// What a step of `inputs` copies back, of which the host needs these logit rows.
fn want<'a>(inputs: &StepInputs, host_rows: &'a [usize]) -> Want<'a> {
    match (inputs.logit_rows.as_slice(), host_rows) {
        ([], _) => Want::Nothing,
        (_, []) => Want::NextTokens,
        (_, rows) => Want::LogitsOf(rows),
    }
}

/// What plans of `model` compute where `output` is asked for.
fn output_of(model: &Model, output: PlanOutput) -> PlanOutput {
    if model.config().is_causal { output } else { PlanOutput::Pooled }
}

/// Which plan runs `inputs`: the smallest that they fit.
fn plan_key(
    model: &Model,
    numerics: &Numerics,
    buckets: &Buckets,
    output: PlanOutput,
    inputs: &StepInputs,
    is_prompt: bool,
) -> (PlanOutput, Bounds) {
    let is_whole = !model.config().is_causal;
    let is_prompt = is_whole || (is_prompt && numerics.batch_invariant);
    (output_of(model, output), buckets.bounds_for(inputs, is_prompt))
}

/// The plans of all ranks of a world.
fn plans(
    model: &Model,
    world: usize,
    output: PlanOutput,
    numerics: &Numerics,
    bounds: Bounds,
    cache: CacheSize,
) -> Result<Vec<Plan>, ModelError> {
    Rank::all(world).map(|rank| model.plan_of(rank, output, numerics, bounds, cache)).collect()
}
