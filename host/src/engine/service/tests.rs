use super::*;
use crate::engine::{EngineOptions, Sampling, SamplingError};
use crate::exec::{
    AfterOp, Device, Executor, PreparedPlan, StepOutput, StepQueue, StepTimes, Want,
};
use crate::plan::{MemoryUse, PAGE_SIZE, Plan, StepInputs};
use std::ops::ControlFlow;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");

/// Room for two sequences, in a cache of one context of 512 positions.
fn engine() -> Result<Engine, EngineError> {
    let options = EngineOptions {
        device: Device::Cpu,
        max_seqs: 2,
        cache_positions: Some(512),
        ..Default::default()
    };
    Engine::new(Arc::new(Model::open(GOLDEN).unwrap()), options)
}

fn service(max_waiting: usize) -> EngineService {
    EngineService::start(ServiceOptions { max_waiting }, engine).unwrap()
}

fn greedy(prompt: Vec<u32>, max_new_tokens: usize) -> Request {
    Request { prompt, max_new_tokens: Some(max_new_tokens), ..Default::default() }
}

/// The tokens of a request, its last event, and how much of its prompt was in the cache.
fn collect(mut stream: RequestStream) -> (Vec<u32>, RequestEvent, Option<usize>) {
    let (mut tokens, mut cached) = (Vec::new(), None);
    while let Some(event) = stream.blocking_next() {
        match event {
            RequestEvent::Started { cached_tokens } => cached = Some(cached_tokens),
            RequestEvent::Token(token) => tokens.push(token),
            last => {
                assert!(stream.blocking_next().is_none());
                return (tokens, last, cached);
            }
        }
    }
    panic!("no last event")
}

fn failure(event: RequestEvent) -> String {
    match event {
        RequestEvent::Failed(error) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn requests_of_many_threads_get_what_they_get_alone() {
    let service = service(20);
    let mut alone = engine().unwrap();
    let requests: Vec<Request> =
        (0..12).map(|n| greedy(vec![n + 1; 3 + 9 * n as usize], 10)).collect();
    let answers: Vec<Vec<u32>> = thread::scope(|scope| {
        let submit = |request: &Request| {
            let (handle, request) = (service.handle().clone(), request.clone());
            scope.spawn(move || collect(handle.submit(request).unwrap()).0)
        };
        let threads: Vec<_> = requests.iter().map(submit).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (request, answer) in requests.into_iter().zip(answers) {
        let wanted = alone.generate(request, |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(answer, wanted.tokens);
    }
    let stats = service.handle().stats();
    let idle = (stats.num_running, stats.num_waiting, stats.num_used_pages, stats.num_pages);
    assert_eq!(idle, (0, 0, 0, 8));
    assert_eq!((stats.prompt_tokens, stats.generation_tokens), (12 * 3 + 9 * 66, 120));
}

#[test]
fn the_submitter_is_told_what_is_wrong_with_a_request() {
    let service = service(1);
    let submit = |request| service.handle().submit(request).unwrap_err();
    let error = submit(greedy(vec![1; 513], 1));
    assert!(matches!(error, EngineError::PromptTooLong { prompt_len: 513, context: 512 }));
    assert!(matches!(submit(greedy(vec![], 1)), EngineError::EmptyPrompt));
    let sampling = Sampling { top_p: 2.0, ..Default::default() };
    let error = submit(Request { sampling, ..greedy(vec![1], 1) });
    assert!(matches!(error, EngineError::Sampling(SamplingError::Value { name: "top-p", .. })));
    let good = service.handle().submit(greedy(vec![1], 0)).unwrap();
    let (tokens, last, cached) = collect(good);
    assert_eq!((tokens, cached), (vec![], None));
    assert!(matches!(last, RequestEvent::Finished(FinishReason::Length)));
}

#[test]
fn a_dropped_stream_frees_its_pages_for_the_next_request() {
    let service = service(1);
    let handle = service.handle();
    let mut streams: Vec<_> =
        (0..2).map(|n| handle.submit(greedy(vec![n; 70], 400)).unwrap()).collect();
    for stream in &mut streams {
        assert!(matches!(stream.blocking_next(), Some(RequestEvent::Started { .. })));
    }
    assert_eq!((handle.stats().num_running, handle.stats().num_used_pages), (2, 4));
    drop(streams);
    // It needs the whole cache, and could not start beside them.
    let (tokens, ..) = collect(handle.submit(greedy(vec![7; 500], 12)).unwrap());
    assert_eq!((tokens.len(), handle.stats().num_used_pages), (12, 0));
    assert_eq!(handle.stats().num_preemptions, 0);
    // Tokens that were generated for nobody are few: it was cancelled within a step.
    assert!(handle.stats().generation_tokens < 12 + 20, "{:?}", handle.stats());
}

#[test]
fn a_full_queue_refuses_all_of_several_requests_or_none() {
    let service = service(1);
    let handle = service.handle();
    let long = || greedy(vec![1, 2, 3], 500);
    let first = handle.submit_all(vec![long(), long()]).unwrap();
    let full = handle.submit_all(vec![long(), long()]).unwrap_err();
    assert!(matches!(full, EngineError::QueueFull { max: 1 }), "{full}");
    let third = handle.submit(long()).unwrap();
    assert!(matches!(handle.submit(long()), Err(EngineError::QueueFull { .. })));
    drop(first);
    assert_eq!(collect(third).0.len(), 500);
    assert_eq!(collect(handle.submit(long()).unwrap()).0.len(), 500, "its place is free");
}

#[test]
fn the_same_prompt_again_is_found_in_the_cache() {
    let service = service(1);
    let run = || collect(service.handle().submit(greedy(vec![5; 100], 3)).unwrap());
    assert_eq!([run().2, run().2], [Some(0), Some(PAGE_SIZE)]);
    let stats = service.handle().stats();
    assert_eq!((stats.prefix_queries, stats.prefix_hits), (200, PAGE_SIZE as u64));
}

#[test]
fn a_shutdown_lets_requests_end_and_takes_no_more() {
    let service = service(4);
    let handle = service.handle().clone();
    let streams: Vec<_> = (0..4).map(|n| handle.submit(greedy(vec![n], 30)).unwrap()).collect();
    service.shutdown();
    assert!(matches!(handle.submit(greedy(vec![1], 1)), Err(EngineError::ShuttingDown)));
    assert!(matches!(handle.check_running(), Err(EngineError::ShuttingDown)));
    for stream in streams {
        let (tokens, last, _) = collect(stream);
        assert_eq!(tokens.len(), 30);
        assert!(matches!(last, RequestEvent::Finished(FinishReason::Length)));
    }
}

#[test]
fn a_stop_cancels_what_runs_and_what_waits() {
    let service = service(4);
    let streams: Vec<_> =
        (0..4).map(|n| service.handle().submit(greedy(vec![n], 500)).unwrap()).collect();
    drop(service);
    for stream in streams {
        let (tokens, last, _) = collect(stream);
        assert!(tokens.len() < 500);
        assert!(matches!(last, RequestEvent::Finished(FinishReason::Cancelled)), "{last:?}");
    }
}

#[test]
fn an_engine_that_cannot_be_opened_is_an_error_of_the_start() {
    let open = || {
        let options =
            EngineOptions { context: Some(513), device: Device::Cpu, ..Default::default() };
        Engine::new(Arc::new(Model::open(GOLDEN).unwrap()), options)
    };
    let error = EngineService::start(ServiceOptions::default(), open).err().unwrap();
    assert!(matches!(error, EngineError::Context { .. }), "{error}");
}

/// An executor whose steps with token 13 go wrong.
struct Unlucky {
    inner: Box<dyn Executor>,
    fault: fn() -> ExecError,
}

impl Executor for Unlucky {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn prepare_ranks(&mut self, plans: &[Plan]) -> Result<PreparedPlan, ExecError> {
        self.inner.prepare_ranks(plans)
    }

    fn run_while(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        want: Want,
        meanwhile: &mut dyn FnMut(&mut dyn StepQueue),
    ) -> Result<StepOutput, ExecError> {
        if inputs.token_ids.contains(&13) {
            return Err((self.fault)());
        }
        self.inner.run_while(plan, inputs, want, meanwhile)
    }

    fn plan(&self, plan: PreparedPlan) -> Result<&Plan, ExecError> {
        self.inner.plan(plan)
    }

    fn run_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        after: &mut AfterOp<'_>,
    ) -> Result<(), ExecError> {
        self.inner.run_ops(plan, inputs, after)
    }

    fn time_ops(
        &mut self,
        plan: PreparedPlan,
        inputs: &StepInputs,
        repeats: usize,
    ) -> Result<StepTimes, ExecError> {
        self.inner.time_ops(plan, inputs, repeats)
    }

    fn memory_use(&self) -> Result<MemoryUse, ExecError> {
        self.inner.memory_use()
    }
}

/// An engine whose steps with token 13 fail with `fault`.
pub(crate) fn unlucky_engine(fault: fn() -> ExecError) -> Result<Engine, EngineError> {
    let engine = engine()?;
    let inner = engine.executor;
    Ok(Engine { executor: Box::new(Unlucky { inner, fault }), ..engine })
}

fn unlucky(fault: fn() -> ExecError) -> EngineService {
    EngineService::start(ServiceOptions::default(), move || unlucky_engine(fault)).unwrap()
}

#[test]
fn a_failed_step_ends_its_requests_and_not_the_service() {
    let service = unlucky(|| ExecError::Step("bad luck".to_owned()));
    let handle = service.handle();
    let (tokens, last, _) = collect(handle.submit(greedy(vec![13], 5)).unwrap());
    assert_eq!((tokens, failure(last)), (vec![], "step inputs: bad luck".to_owned()));
    assert_eq!((handle.stats().num_running, handle.stats().num_used_pages), (0, 0));
    let mut alone = engine().unwrap();
    let wanted = alone.generate(greedy(vec![1, 2], 5), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(collect(handle.submit(greedy(vec![1, 2], 5)).unwrap()).0, wanted.tokens);
}

#[test]
fn a_broken_device_ends_the_service() {
    let service =
        unlucky(|| ExecError::Driver { call: "run".to_owned(), error: "lost".to_owned() });
    let handle = service.handle();
    let last = collect(handle.submit(greedy(vec![13], 5)).unwrap()).1;
    assert_eq!(failure(last), "CUDA: run: lost");
    let error = handle.submit(greedy(vec![1], 5)).unwrap_err();
    assert_eq!(error.to_string(), "the engine has stopped: CUDA: run: lost");
}

#[test]
fn a_rank_that_failed_ends_the_service() {
    let service = unlucky(|| ExecError::RankFailed("one hangs".to_owned()));
    let handle = service.handle();
    collect(handle.submit(greedy(vec![13], 5)).unwrap());
    let error = handle.submit(greedy(vec![1], 5)).unwrap_err();
    assert_eq!(error.to_string(), "the engine has stopped: one hangs");
}

#[test]
fn a_panic_of_the_engine_is_an_error_of_its_requests() {
    let service = unlucky(|| panic!("a bug"));
    let handle = service.handle();
    let last = collect(handle.submit(greedy(vec![13], 5)).unwrap()).1;
    assert_eq!(failure(last), "the engine has stopped: it met a bug of its own");
    service.shutdown();
}
