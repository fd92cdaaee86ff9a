//! An engine on a thread of its own, for many submitters.
//!
//! Requests go in through an [`EngineHandle`], and the events of each come out of its [`RequestStream`], in async code or
//! not. A request whose stream is dropped is cancelled before the next step.

use super::{
    Engine, EngineError, EngineStats, Event, EventKind, FinishReason, Logprobs, Request, RequestId,
};
use crate::Model;
use crate::exec::ExecError;
use async_channel::{Receiver, Sender};
use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};

/// How a service is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServiceOptions {
    /// Requests that wait while as many run as the engine takes at once; more are refused.
    pub max_waiting: usize,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        ServiceOptions { max_waiting: 512 }
    }
}

/// What happened to a request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum RequestEvent {
    /// The request left the queue. It comes once, before the first token.
    Started {
        /// Leading tokens of the prompt whose keys and values were still in the cache.
        cached_tokens: usize,
    },
    /// Log-probabilities of the prompt's next tokens, from its second one on: see
    /// [`Request::prompt_logprobs`].
    PromptLogprobs(Vec<Logprobs>),
    /// Log-probabilities of the token that is the next event: see [`Request::logprobs`].
    Logprobs(Logprobs),
    /// The embedding of the prompt, `[hidden_size]`, of unit length: see [`Request::pooling`].
    Embedding(Vec<f32>),
    /// A token was generated; the stop token that ends a generation is one too.
    Token(u32),
    /// The last event of a request; [`FinishReason::Cancelled`] if the service was stopped.
    Finished(FinishReason),
    /// The last event of a request that failed; [`EngineError::Sample`] concerns this one alone,
    /// others all that ran.
    Failed(Arc<EngineError>),
}

impl RequestEvent {
    /// Whether it is the last of its request.
    pub fn is_last(&self) -> bool {
        matches!(self, RequestEvent::Finished(_) | RequestEvent::Failed(_))
    }
}

/// What a service has done since it started, and what it does now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServiceStats {
    /// Requests that run.
    pub num_running: usize,
    /// Requests that wait, those that gave their place back included.
    pub num_waiting: usize,
    /// Pages of the KV cache that running requests hold.
    pub num_used_pages: usize,
    /// Pages of the KV cache.
    pub num_pages: usize,
    /// Tokens of all prompts that were looked up in the prefix cache.
    pub prefix_queries: u64,
    /// Tokens of all prompts that were found in the prefix cache.
    pub prefix_hits: u64,
    /// How often a running request gave its place back to wait.
    pub num_preemptions: u64,
    /// Tokens of the prompts of all requests that have started.
    pub prompt_tokens: u64,
    /// Tokens generated.
    pub generation_tokens: u64,
}

/// The thread that runs an engine. Dropping it cancels every request; [`EngineService::shutdown`]
/// lets them end.
pub struct EngineService {
    handle: EngineHandle,
    thread: Option<JoinHandle<()>>,
}

impl EngineService {
    /// Opens an engine on a new thread, where it stays, and waits until it is ready.
    ///
    /// # Errors
    /// That of `open`; [`EngineError::Thread`].
    ///
    /// # Panics
    /// If `open` does.
    pub fn start<E: From<EngineError> + Send + 'static>(
        options: ServiceOptions,
        open: impl FnOnce() -> Result<Engine, E> + Send + 'static,
    ) -> Result<Self, E> {
        let (opened, is_open) = mpsc::sync_channel(1);
        let body = move || match open() {
            Ok(engine) => {
                let shared = Arc::new(Shared::new(&engine, options));
                let guard = StopGuard(Arc::clone(&shared));
                if opened.send(Ok(shared)).is_ok() {
                    Worker::new(engine, &guard.0).run();
                }
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(body);
        let thread = thread.map_err(|error| E::from(EngineError::Thread(error)))?;
        match is_open.recv() {
            Ok(Ok(shared)) => {
                Ok(EngineService { handle: EngineHandle { shared }, thread: Some(thread) })
            }
            Ok(Err(error)) => Err(error),
            Err(mpsc::RecvError) => match thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => Err(EngineError::ShuttingDown.into()),
            },
        }
    }

    /// The way in.
    pub fn handle(&self) -> &EngineHandle {
        &self.handle
    }

    /// Refuses new requests, and returns when all others have ended.
    pub fn shutdown(mut self) {
        self.handle.drain();
        self.join();
    }

    fn join(&mut self) {
        // What a panic of the engine said is on stderr, and every request has failed with it.
        self.thread.take().map(JoinHandle::join);
    }
}

impl Drop for EngineService {
    fn drop(&mut self) {
        self.handle.stop();
        self.join();
    }
}

/// Submits requests to an [`EngineService`]; a clone is another handle to the same one.
#[derive(Clone)]
pub struct EngineHandle {
    shared: Arc<Shared>,
}

impl EngineHandle {
    /// Queues a request.
    ///
    /// # Errors
    /// Errors of [`Engine::add_request`]; [`EngineError::QueueFull`], [`EngineError::ShuttingDown`],
    /// [`EngineError::Stopped`].
    pub fn submit(&self, request: Request) -> Result<RequestStream, EngineError> {
        let mut streams = self.submit_all(vec![request])?;
        streams.pop().ok_or(EngineError::ShuttingDown)
    }

    /// Queues several requests, or none of them.
    ///
    /// # Errors
    /// As [`EngineHandle::submit`].
    pub fn submit_all(&self, requests: Vec<Request>) -> Result<Vec<RequestStream>, EngineError> {
        let shared = &self.shared;
        for request in &requests {
            request.check(shared.model.config().vocab_size, shared.context)?;
        }
        let mut state = shared.lock();
        state.phase.check()?;
        if state.num_open + requests.len() > shared.max_open {
            return Err(EngineError::QueueFull { max: shared.options.max_waiting });
        }
        state.num_open += requests.len();
        let queue = |request| {
            let (events, stream) = async_channel::unbounded();
            state.inbox.push_back(Submission { request, events });
            RequestStream { events: stream, is_ended: false }
        };
        let streams = requests.into_iter().map(queue).collect();
        shared.changed.notify_one();
        Ok(streams)
    }

    /// The model.
    pub fn model(&self) -> &Arc<Model> {
        &self.shared.model
    }

    /// Positions of a sequence, prompt and answer.
    pub fn context(&self) -> usize {
        self.shared.context
    }

    /// Requests that run at once, at most.
    pub fn max_seqs(&self) -> usize {
        self.shared.max_seqs
    }

    /// What it does, and what it has done.
    pub fn stats(&self) -> ServiceStats {
        let state = self.shared.lock();
        let num_waiting = state.stats.num_waiting + state.inbox.len();
        ServiceStats { num_waiting, ..state.stats }
    }

    /// Whether requests are taken.
    ///
    /// # Errors
    /// [`EngineError::ShuttingDown`], [`EngineError::Stopped`].
    pub fn check_running(&self) -> Result<(), EngineError> {
        self.shared.lock().phase.check()
    }

    /// Refuses new requests; those that wait and run go on to their end, after which the thread
    /// ends.
    pub fn drain(&self) {
        self.set_phase(Phase::Draining);
    }

    /// Refuses new requests, and cancels those that wait and run: each ends with
    /// [`FinishReason::Cancelled`].
    pub fn stop(&self) {
        self.set_phase(Phase::Stopping);
    }

    fn set_phase(&self, phase: Phase) {
        let mut state = self.shared.lock();
        if !matches!(state.phase, Phase::Stopping | Phase::Stopped(_)) {
            state.phase = phase;
            self.shared.changed.notify_one();
        }
    }
}

/// The events of one request, in their order. Dropping it cancels the request.
#[derive(Debug)]
pub struct RequestStream {
    events: Receiver<RequestEvent>,
    is_ended: bool,
}

impl RequestStream {
    /// Waits for the next event; `None` after the last one. Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<RequestEvent> {
        if self.is_ended {
            return None;
        }
        let event = self.events.recv().await;
        Some(self.checked(event))
    }

    /// [`RequestStream::next`] where the thread can wait.
    pub fn blocking_next(&mut self) -> Option<RequestEvent> {
        if self.is_ended {
            return None;
        }
        let event = self.events.recv_blocking();
        Some(self.checked(event))
    }

    /// An engine that panics leaves no last event.
    fn checked(&mut self, event: Result<RequestEvent, async_channel::RecvError>) -> RequestEvent {
        let event = event.unwrap_or_else(|_| {
            RequestEvent::Failed(Arc::new(EngineError::Stopped(PANICKED.to_owned())))
        });
        self.is_ended = event.is_last();
        event
    }
}

const PANICKED: &str = "it met a bug of its own";

/// What the thread and the handles share.
struct Shared {
    model: Arc<Model>,
    context: usize,
    options: ServiceOptions,
    /// Requests that have not ended, at most.
    max_open: usize,
    /// Sequences of these that run.
    max_seqs: usize,
    state: Mutex<State>,
    /// A request was queued, or the phase has changed.
    changed: Condvar,
}

struct State {
    phase: Phase,
    inbox: VecDeque<Submission>,
    /// Requests that have not ended.
    num_open: usize,
    stats: ServiceStats,
}

/// What a service does with requests.
enum Phase {
    Running,
    /// New ones are refused.
    Draining,
    /// All are cancelled.
    Stopping,
    /// The thread has ended, for a reason if it was not told to.
    Stopped(Option<String>),
}

impl Phase {
    fn check(&self) -> Result<(), EngineError> {
        match self {
            Phase::Running => Ok(()),
            Phase::Draining | Phase::Stopping | Phase::Stopped(None) => {
                Err(EngineError::ShuttingDown)
            }
            Phase::Stopped(Some(reason)) => Err(EngineError::Stopped(reason.clone())),
        }
    }
}

struct Submission {
    request: Request,
    events: Sender<RequestEvent>,
}

/// What the thread is to do before its next step.
enum Orders {
    Add(VecDeque<Submission>),
    CancelAll(VecDeque<Submission>),
    End,
}

impl Shared {
    fn new(engine: &Engine, options: ServiceOptions) -> Self {
        let state = State {
            phase: Phase::Running,
            inbox: VecDeque::new(),
            num_open: 0,
            stats: ServiceStats { num_pages: engine.cache.num_pages, ..ServiceStats::default() },
        };
        Shared {
            model: Arc::clone(&engine.model),
            context: engine.context(),
            options,
            max_open: engine.buckets.max_seqs.saturating_add(options.max_waiting),
            max_seqs: engine.buckets.max_seqs,
            state: Mutex::new(state),
            changed: Condvar::new(),
        }
    }

    /// No code panics while it holds the lock and has changed half of the state.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes what was done.
    fn publish(&self, stats: ServiceStats, num_open: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.stats = stats;
        state.num_open = num_open + state.inbox.len();
        state
    }

    /// Publishes what was done, and waits for something to do unless the engine has work.
    fn exchange(&self, stats: ServiceStats, num_open: usize, has_work: bool) -> Orders {
        let mut state = self.publish(stats, num_open);
        loop {
            let is_due = has_work || !state.inbox.is_empty();
            match state.phase {
                Phase::Stopping => return Orders::CancelAll(std::mem::take(&mut state.inbox)),
                _ if is_due => return Orders::Add(std::mem::take(&mut state.inbox)),
                Phase::Draining | Phase::Stopped(_) => return Orders::End,
                Phase::Running => {}
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// However the thread ends, no request is taken after it.
struct StopGuard(Arc<Shared>);

impl Drop for StopGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.inbox.clear();
        (state.num_open, state.stats.num_running, state.stats.num_waiting) = (0, 0, 0);
        if !matches!(state.phase, Phase::Stopped(_)) {
            state.phase = Phase::Stopped(thread::panicking().then(|| PANICKED.to_owned()));
        }
    }
}

/// A request in the engine.
struct Open {
    events: Sender<RequestEvent>,
    prompt_len: usize,
}

/// The thread.
struct Worker<'a> {
    engine: Engine,
    shared: &'a Shared,
    clients: Clients,
}

/// Who is told what.
struct Clients {
    open: HashMap<RequestId, Open>,
    stats: ServiceStats,
    outbox: Vec<Delivery>,
}

impl<'a> Worker<'a> {
    fn new(engine: Engine, shared: &'a Shared) -> Self {
        let stats = shared.lock().stats;
        let clients = Clients { open: HashMap::new(), stats, outbox: Vec::new() };
        Worker { engine, shared, clients }
    }

    fn run(mut self) {
        loop {
            let has_work = self.engine.has_work();
            if !has_work {
                self.flush();
            }
            match self.shared.exchange(self.stats(), self.clients.open.len(), has_work) {
                Orders::Add(submissions) => {
                    submissions.into_iter().for_each(|submission| self.add(submission));
                }
                Orders::CancelAll(submissions) => return self.cancel_all(submissions),
                Orders::End => return,
            }
            self.cancel_dropped();
            let Worker { engine, shared, clients } = &mut self;
            let stepped = engine.step_while(|stats, events| {
                events.into_iter().for_each(|event| clients.take(event));
                drop(shared.publish(clients.stats_with(stats), clients.open.len()));
                deliver(&mut clients.outbox);
            });
            if let Err(error) = stepped
                && self.fail_all(error).is_break()
            {
                return self.flush();
            }
        }
    }

    /// Publishes what was done, and then says so to whom it concerns.
    fn flush(&mut self) {
        drop(self.shared.publish(self.stats(), self.clients.open.len()));
        deliver(&mut self.clients.outbox);
    }

    fn add(&mut self, Submission { request, events }: Submission) {
        if events.is_closed() {
            return;
        }
        let prompt_len = request.prompt.len();
        match self.engine.add_request(request) {
            Ok(id) => drop(self.clients.open.insert(id, Open { events, prompt_len })),
            Err(error) => self.clients.outbox.push((events, RequestEvent::Failed(Arc::new(error)))),
        }
    }

    /// Cancels requests whose stream is gone.
    fn cancel_dropped(&mut self) {
        for (id, _) in self.clients.open.extract_if(|_, open| open.events.is_closed()) {
            self.engine.cancel(id);
        }
    }

    fn cancel_all(mut self, submissions: VecDeque<Submission>) {
        let queued = submissions.into_iter().map(|submission| submission.events);
        let all = self.clients.open.into_values().map(|open| open.events).chain(queued);
        let cancelled = RequestEvent::Finished(FinishReason::Cancelled);
        self.clients.outbox.extend(all.map(|to| (to, cancelled.clone())));
        deliver(&mut self.clients.outbox);
    }

    /// Ends all requests after a step that failed. The engine goes on, unless its device is in
    /// doubt.
    fn fail_all(&mut self, error: EngineError) -> ControlFlow<()> {
        let error = Arc::new(error);
        let mut failed = Vec::new();
        for (id, open) in self.clients.open.drain() {
            self.engine.cancel(id);
            failed.push(open.events);
        }
        let is_broken = matches!(
            *error,
            EngineError::Exec(ExecError::Driver { .. } | ExecError::RankFailed(_))
        );
        if is_broken {
            let mut state = self.shared.lock();
            failed.extend(state.inbox.drain(..).map(|submission| submission.events));
            state.phase = Phase::Stopped(Some(error.to_string()));
        }
        let failure = |to| (to, RequestEvent::Failed(Arc::clone(&error)));
        self.clients.outbox.extend(failed.into_iter().map(failure));
        if is_broken { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    fn stats(&self) -> ServiceStats {
        self.clients.stats_with(self.engine.stats())
    }
}

impl Clients {
    /// Counts an event of the engine, and puts the service's for it into the outbox.
    fn take(&mut self, Event { request: id, kind }: Event) {
        let Some(open) = self.open.get(&id) else { return };
        let stats = &mut self.stats;
        let event = match kind {
            EventKind::Started { cached_tokens } => {
                stats.prompt_tokens += open.prompt_len as u64;
                stats.prefix_queries += open.prompt_len as u64;
                stats.prefix_hits += cached_tokens as u64;
                RequestEvent::Started { cached_tokens }
            }
            EventKind::PromptLogprobs(logprobs) => RequestEvent::PromptLogprobs(logprobs),
            EventKind::Logprobs(logprobs) => RequestEvent::Logprobs(logprobs),
            EventKind::Embedding(embedding) => RequestEvent::Embedding(embedding),
            EventKind::Token(token) => {
                stats.generation_tokens += 1;
                RequestEvent::Token(token)
            }
            EventKind::Finished(reason) => RequestEvent::Finished(reason),
            EventKind::Failed(source) => {
                RequestEvent::Failed(Arc::new(EngineError::Sample { request: id, source }))
            }
        };
        let to = open.events.clone();
        if event.is_last() {
            self.open.remove(&id);
        }
        self.outbox.push((to, event));
    }

    /// What was done, by an engine that is doing this.
    fn stats_with(&self, engine: EngineStats) -> ServiceStats {
        let EngineStats { num_running, num_waiting, num_used_pages, num_preemptions, .. } = engine;
        ServiceStats { num_running, num_waiting, num_used_pages, num_preemptions, ..self.stats }
    }
}

/// An event and where it goes.
type Delivery = (Sender<RequestEvent>, RequestEvent);

/// Empties the outbox. A stream that is gone misses nothing.
fn deliver(outbox: &mut Vec<Delivery>) {
    for (to, event) in outbox.drain(..) {
        let _ = to.try_send(event);
    }
}

#[cfg(test)]
pub(super) mod tests;
