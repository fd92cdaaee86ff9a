//! What all connections share.

use super::body::thread_of_large_bodies;
use super::catalog::{self, Meaning, tagged};
use super::error::ApiError;
use super::metrics::Metrics;
use super::scores::Judge;
use super::store::Store;
use super::{SchedulingPolicy, ServerOptions};
use crate::engine::EngineHandle;
use crate::{GrammarCompiler, Model, Text};
use axum::http::StatusCode;
use rand::RngExt;
use rayon::{ThreadPool, ThreadPoolBuildError};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::Semaphore;

/// Models that are pulled at once.
const MAX_PULLS: usize = 4;

/// What all connections share.
pub(super) struct App {
    pub options: ServerOptions,
    pub model: Arc<Model>,
    /// None while it is loading.
    pub engine: Arc<OnceLock<EngineHandle>>,
    pub metrics: Arc<Metrics>,
    /// Responses that requests go on from.
    pub store: Arc<Store>,
    /// Parses large bodies.
    pub large_bodies: ThreadPool,
    /// Seconds since 1970 when the server was started.
    pub created: u64,
    /// Whether clients may fetch and delete models.
    pub manages: bool,
    /// Permits of pulls.
    pub pulls: Arc<Semaphore>,
    /// Other names of the model.
    copies: Mutex<BTreeSet<String>>,
    is_draining: AtomicBool,
    /// Bytes of the tokenizer's longest token, known from the first prompt on.
    max_token_bytes: OnceLock<usize>,
    /// Made for the first answer that has a form.
    grammars: OnceLock<Result<GrammarCompiler, String>>,
    /// How a model that ranks is asked, known from the first query on.
    pub judge: OnceLock<Result<Option<Judge>, String>>,
}

impl App {
    pub fn new(model: Arc<Model>, options: ServerOptions) -> Result<Self, ThreadPoolBuildError> {
        let engine = Arc::new(OnceLock::new());
        let metrics = Metrics::new(&options.model_name, Arc::clone(&engine));
        Ok(App {
            options,
            model,
            metrics: Arc::new(metrics),
            store: Arc::default(),
            engine,
            large_bodies: thread_of_large_bodies()?,
            created: unix_time(),
            manages: false,
            pulls: Arc::new(Semaphore::new(MAX_PULLS)),
            copies: Mutex::default(),
            is_draining: AtomicBool::new(false),
            max_token_bytes: OnceLock::new(),
            grammars: OnceLock::new(),
            judge: OnceLock::new(),
        })
    }

    /// The engine, loaded and not broken.
    pub fn healthy(&self) -> Result<&EngineHandle, ApiError> {
        let engine = self.engine.get();
        let engine = engine.ok_or_else(|| ApiError::unavailable("the model is loading"))?;
        match engine.check_running() {
            Err(error) if !self.is_draining() => Err(error.into()),
            _ => Ok(engine),
        }
    }

    /// The engine, where it takes requests.
    pub fn ready(&self) -> Result<&EngineHandle, ApiError> {
        if self.is_draining() {
            return Err(ApiError::unavailable("the server is shutting down"));
        }
        self.healthy()
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::SeqCst)
    }

    /// Refuses new requests from now on.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::SeqCst);
    }

    /// Whether a request's model is the one that is here; a request without a model takes it.
    pub fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        match model {
            Some(model) if model != self.options.model_name && !model.is_empty() => {
                Err(ApiError::unknown_model(model, &self.options.model_name))
            }
            _ => Ok(()),
        }
    }

    /// What an answer calls the model that a request of Ollama's API names: see [`catalog::find`].
    pub fn check_ollama_model(&self, name: Option<&str>) -> Result<String, ApiError> {
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| ApiError::param("model", "this field is required"))?;
        let served = &self.options.model_name;
        if self.copies.lock().unwrap_or_else(PoisonError::into_inner).contains(&tagged(name)) {
            return Ok(name.to_owned());
        }
        let why = match catalog::find(name, served, &self.model) {
            Meaning::Served => return Ok(name.to_owned()),
            Meaning::Cached(model) => format!(
                "model '{name}' is in the cache, and this server has `{served}`: halfwarp serve -m {}",
                catalog::reference(&model)
            ),
            Meaning::Unknown => format!(
                "model '{name}' not found: this server has `{served}`; `halfwarp pull ORG/NAME` gets others from the \
                 Hugging Face Hub, and `halfwarp serve -m ORG/NAME` serves them"
            ),
        };
        Err(ApiError::unknown_name(why))
    }

    /// Other names of the model, which end with the server.
    pub fn copies(&self) -> Vec<String> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Adds another name; `false` if there are `max` already.
    pub fn add_copy(&self, name: String, max: usize) -> bool {
        let mut copies = self.copies.lock().unwrap_or_else(PoisonError::into_inner);
        let name = tagged(&name);
        if copies.len() >= max && !copies.contains(&name) {
            return false;
        }
        copies.insert(name);
        true
    }

    /// Forgets another name; `false` if it is none.
    pub fn forget_copy(&self, name: &str) -> bool {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).remove(&tagged(name))
    }

    /// Whether clients may fetch and delete models: where anyone can reach the server, nobody may.
    pub fn check_manages(&self) -> Result<(), ApiError> {
        match self.manages {
            true => Ok(()),
            false => {
                let message = "models are pulled and deleted on this machine, or with one of the server's keys (--api-key)";
                Err(ApiError::status(StatusCode::FORBIDDEN, message))
            }
        }
    }

    /// Whether a request's priority can be heeded.
    pub fn check_priority(&self, priority: i32) -> Result<(), ApiError> {
        if priority != 0 && self.options.scheduling_policy == SchedulingPolicy::Fcfs {
            let what = "this server's scheduling policy is `fcfs`, it has to be `priority`";
            return Err(ApiError::param("priority", what));
        }
        Ok(())
    }

    /// Counts messages that spell control tokens out, which reach the model as text.
    pub fn note_neutralised(&self, num_messages: usize) {
        if num_messages > 0 {
            self.metrics.neutralised_messages.inc_by(num_messages as u64);
            tracing::info!("control tokens spelt out in {num_messages} messages are text");
        }
    }

    /// What makes the grammars of answers.
    pub fn grammars(&self) -> Result<&GrammarCompiler, ApiError> {
        let text = self.text()?;
        let compiler = self.grammars.get_or_init(|| {
            let vocab_size = self.model.config().vocab_size;
            GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens)
                .map_err(|error| error.to_string())
        });
        compiler.as_ref().map_err(ApiError::invalid)
    }

    /// The token ids of a prompt, as [`App::check_length`] allows it.
    pub fn encode(&self, prompt: &str, add_special: bool) -> Result<Vec<u32>, ApiError> {
        self.check_length(prompt)?;
        Ok(self.text()?.tokenizer.encode(prompt, add_special)?)
    }

    /// A text that is longer than a context of the longest tokens is not encoded: it would take seconds and 250 times its
    /// size.
    pub fn check_length(&self, prompt: &str) -> Result<(), ApiError> {
        let max = self.max_prompt_bytes()?;
        if prompt.len() > max {
            let message = format!(
                "the prompt has {} bytes, the context of this server room for {max}: its longest tokens have so many",
                prompt.len(),
            );
            return Err(ApiError::too_long(message));
        }
        Ok(())
    }

    /// Bytes of a context of the longest tokens; no limit while the engine is loading.
    pub fn max_prompt_bytes(&self) -> Result<usize, ApiError> {
        let tokenizer = &self.text()?.tokenizer;
        let Some(engine) = self.engine.get() else { return Ok(usize::MAX) };
        let max_token_bytes = self.max_token_bytes.get_or_init(|| tokenizer.max_token_bytes());
        Ok(engine.context().saturating_mul(*max_token_bytes))
    }

    /// The model's tokenizer and chat template.
    pub fn text(&self) -> Result<&Text, ApiError> {
        self.model.text().ok_or_else(|| {
            ApiError::invalid("this model has no tokenizer: give token ids to /v1/completions")
        })
    }
}

pub(super) fn unix_time() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// A name that no other has, after `prefix`.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::rng().random::<u128>())
}
