//! The engine, as Dynamo drives it.

use crate::kv_events::{DP_RANK, KvEvents};
use crate::{error, metrics, request, stream};
use async_trait::async_trait;
use dynamo_backend_common::{
    DynamoError, EngineConfig, GenerateContext, KvEventSource, LLMEngine, LLMEngineOutput,
    LlmRegistration, MetricsBindings, MetricsCtx, PreprocessedRequest,
};
use dynamo_runtime::component::Endpoint;
use dynamo_runtime::logging::get_distributed_tracing_context;
use dynamo_runtime::traits::DistributedRuntimeProvider;
use futures::stream::BoxStream;
use halfwarp::plan::PAGE_SIZE;
use halfwarp::{
    Engine, EngineError, EngineHandle, EngineOptions, EngineService, GrammarCompiler, Model,
    ServiceOptions,
};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;
use tokio::task::spawn_blocking;

/// How often it is asked whether the engine still runs.
const WATCH_PERIOD: Duration = Duration::from_millis(200);

/// What a [`Backend`] serves.
#[derive(Clone, Debug)]
pub struct BackendOptions {
    /// The model.
    pub model: Arc<Model>,
    /// What clients call it.
    pub model_name: String,
    /// How it runs.
    pub engine: EngineOptions,
}

/// A model on a device, as a worker of Dynamo.
pub struct Backend {
    options: BackendOptions,
    events: KvEvents,
    /// From the start to the cleanup.
    running: Mutex<Option<Running>>,
    /// Why the engine has ended by itself.
    failure: Arc<OnceLock<String>>,
}

struct Running {
    service: EngineService,
    /// What makes grammars; none for a model without a tokenizer, or without a token that ends an answer.
    grammars: Option<Arc<GrammarCompiler>>,
}

impl Backend {
    /// Not started: the weights are loaded by [`LLMEngine::start`].
    pub fn new(options: BackendOptions) -> Self {
        let (events, running) = (KvEvents::default(), Mutex::default());
        Backend { options, events, running, failure: Arc::default() }
    }

    /// Why the engine has ended, if nobody has told it to.
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    fn lock(&self) -> MutexGuard<'_, Option<Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The way into the engine, and what makes grammars.
    fn handle(&self) -> Result<(EngineHandle, Option<Arc<GrammarCompiler>>), DynamoError> {
        let running = self.lock();
        let Running { service, grammars } =
            running.as_ref().ok_or_else(|| error::shut_down("the engine does not run"))?;
        Ok((service.handle().clone(), grammars.clone()))
    }

    /// Loads the weights. It blocks.
    fn open(options: BackendOptions, events: KvEvents) -> Result<Running, EngineError> {
        let BackendOptions { model, engine, .. } = options;
        let grammars = model.text().and_then(|text| {
            let vocab_size = model.config().vocab_size;
            GrammarCompiler::new(&text.tokenizer, vocab_size, model.stop_tokens()).ok()
        });
        let open = move || {
            let mut engine = Engine::new(model, engine)?;
            for note in engine.notes() {
                tracing::info!("{note}");
            }
            engine.on_cache_event(move |event| events.publish(event));
            Ok::<_, EngineError>(engine)
        };
        let service = EngineService::start(ServiceOptions::default(), open)?;
        Ok(Running { service, grammars: grammars.map(Arc::new) })
    }

    fn registration(&self, handle: &EngineHandle) -> LlmRegistration {
        let EngineOptions { max_seqs, max_tokens, .. } = self.options.engine;
        LlmRegistration {
            context_length: u32::try_from(handle.context()).ok(),
            kv_cache_block_size: Some(PAGE_SIZE as u32),
            total_kv_blocks: Some(handle.stats().num_pages as u64),
            max_num_seqs: Some(max_seqs as u64),
            max_num_batched_tokens: max_tokens.map(|max_tokens| max_tokens as u64),
            ..LlmRegistration::default()
        }
    }
}

/// Ends the worker after an engine that has ended by itself: else the router would send it requests for ever.
async fn leave_after(engine: EngineHandle, endpoint: Endpoint, failure: Arc<OnceLock<String>>) {
    let why = loop {
        match engine.check_running() {
            Ok(()) => tokio::time::sleep(WATCH_PERIOD).await,
            Err(error @ EngineError::Stopped(_)) => break error.to_string(),
            Err(_) => return,
        }
    };
    tracing::error!("{why}");
    // There is one engine, which ends once.
    let _ = failure.set(why);
    endpoint.drt().runtime().shutdown();
}

#[async_trait]
impl LLMEngine for Backend {
    async fn start(&self, _worker_id: u64) -> Result<EngineConfig, DynamoError> {
        let (options, events) = (self.options.clone(), self.events.clone());
        tracing::info!(model = options.model_name, "loading the model");
        let running = spawn_blocking(|| Self::open(options, events)).await;
        let running = running
            .map_err(|error| error::shut_down(format!("the start has panicked: {error}")))?
            .map_err(|error| error::from_engine(&error))?;
        let llm = Some(self.registration(running.service.handle()));
        *self.lock() = Some(running);
        let model = self.options.model_name.clone();
        Ok(EngineConfig { model, llm, ..EngineConfig::default() })
    }

    async fn generate(
        &self,
        request: PreprocessedRequest,
        ctx: GenerateContext,
    ) -> Result<BoxStream<'static, Result<LLMEngineOutput, DynamoError>>, DynamoError> {
        let (handle, grammars) = self.handle()?;
        // The frontend has counted the tokens that a retry has as part of its prompt, and says that it is one only where
        // requests are traced: elsewhere it is left to count the prompt too.
        let has_usage =
            request.migration_link.is_none() && get_distributed_tracing_context().is_some();
        let prompt_len = request.token_ids.len();
        // A large grammar takes its time.
        let model = Arc::clone(&self.options.model);
        let request =
            spawn_blocking(move || request::to_engine(&model, &request, grammars.as_deref()));
        let request = request
            .await
            .map_err(|error| error::unknown(format!("the request has panicked: {error}")))??;
        let events = handle.submit(request).map_err(|error| error::from_engine(&error))?;
        let model = Arc::clone(&self.options.model);
        Ok(stream::outputs(stream::Answer { model, events, prompt_len, has_usage }, ctx))
    }

    async fn on_endpoint_ready(&self, endpoint: Endpoint) -> Result<(), DynamoError> {
        let (handle, _) = self.handle()?;
        tokio::spawn(leave_after(handle, endpoint, Arc::clone(&self.failure)));
        Ok(())
    }

    async fn cleanup(&self) -> Result<(), DynamoError> {
        self.events.set(None);
        let running = self.lock().take();
        // Cancels what runs, for other workers to go on with, and waits for the engine's thread.
        spawn_blocking(|| drop(running))
            .await
            .map_err(|error| error::shut_down(format!("the engine has panicked: {error}")))
    }

    async fn kv_event_sources(&self) -> Result<Vec<KvEventSource>, DynamoError> {
        let events = self.events.clone();
        let on_ready = Box::new(move |publisher| {
            events.set(Some(publisher));
            Ok(())
        });
        Ok(vec![KvEventSource::Push { on_ready, dp_rank: DP_RANK }])
    }

    async fn setup_metrics(&self, ctx: MetricsCtx<'_>) -> Result<MetricsBindings, DynamoError> {
        let (handle, _) = self.handle()?;
        let (of_metrics, name) = (handle.clone(), self.options.model_name.clone());
        let exposition = move || Ok(metrics::exposition(&name, &of_metrics.stats()));
        ctx.metrics.add_expfmt_callback(Arc::new(exposition));
        let runtime = tokio::runtime::Handle::current();
        let on_publisher_ready = Box::new(move |publisher| {
            runtime.spawn(metrics::publish_load(handle, publisher));
            Ok(())
        });
        let on_publisher_ready = Some(on_publisher_ready as _);
        Ok(MetricsBindings { dp_ranks: vec![DP_RANK], on_publisher_ready })
    }
}
