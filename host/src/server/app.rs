//! A model that is served.

use super::catalog::{self, Meaning};
use super::common::Common;
use super::error::ApiError;
use super::metrics::ModelMetrics;
use super::scores::Judge;
use super::{ModelSettings, SchedulingPolicy};
use crate::engine::EngineHandle;
use crate::{GrammarCompiler, Model, Text};
use rand::RngExt;
use std::sync::{Arc, OnceLock};

/// A model that is served.
pub(super) struct App {
    pub common: Arc<Common>,
    pub settings: ModelSettings,
    pub model: Arc<Model>,
    /// None while it is loading.
    pub engine: Arc<OnceLock<EngineHandle>>,
    pub metrics: Arc<ModelMetrics>,
    /// Whether requests come here because of the name that they give.
    is_chosen: bool,
    /// Bytes of the tokenizer's longest token, known from the first prompt on.
    max_token_bytes: OnceLock<usize>,
    /// Made for the first answer that has a form.
    grammars: OnceLock<Result<GrammarCompiler, String>>,
    /// How a model that ranks is asked, known from the first query on.
    pub judge: OnceLock<Result<Option<Judge>, String>>,
}

impl AsRef<Common> for App {
    fn as_ref(&self) -> &Common {
        &self.common
    }
}

impl App {
    /// The only model of a server.
    pub fn new(common: &Arc<Common>, model: Arc<Model>, settings: ModelSettings) -> Self {
        let engine = Arc::default();
        let metrics = common.metrics.model(&settings.name, Arc::clone(&engine));
        App {
            common: Arc::clone(common),
            settings,
            model,
            metrics: Arc::new(metrics),
            engine,
            is_chosen: false,
            max_token_bytes: OnceLock::new(),
            grammars: OnceLock::new(),
            judge: OnceLock::new(),
        }
    }

    /// One of the models of a server, with its engine.
    pub fn chosen(
        common: &Arc<Common>,
        model: Arc<Model>,
        settings: ModelSettings,
        engine: EngineHandle,
    ) -> Self {
        let app = App { is_chosen: true, ..Self::new(common, model, settings) };
        drop(app.engine.set(engine));
        app
    }

    /// The engine, loaded and not broken.
    pub fn healthy(&self) -> Result<&EngineHandle, ApiError> {
        let engine = self.engine.get();
        let engine = engine.ok_or_else(|| ApiError::unavailable("the model is loading"))?;
        match engine.check_running() {
            Err(error) if !self.common.is_draining() => Err(error.into()),
            _ => Ok(engine),
        }
    }

    /// The engine, where it takes requests.
    pub fn ready(&self) -> Result<&EngineHandle, ApiError> {
        self.common.check_open()?;
        self.healthy()
    }

    /// Whether a request's model is the one that is here; a request without a model takes it.
    pub fn check_model(&self, model: Option<&str>) -> Result<(), ApiError> {
        let own = &self.settings.name;
        match model.filter(|_| !self.is_chosen) {
            Some(model) if model != own && !model.is_empty() => {
                Err(ApiError::unknown_model(model, own))
            }
            _ => Ok(()),
        }
    }

    /// What an answer calls the model that a request of Ollama's API names: see [`catalog::find`].
    pub fn check_ollama_model(&self, name: Option<&str>) -> Result<String, ApiError> {
        let name = name.filter(|name| !name.is_empty());
        let name = name.ok_or_else(|| ApiError::param("model", "this field is required"))?;
        let served = &self.settings.name;
        if self.is_chosen || self.common.copied(name).is_some() {
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

    /// Whether a request's priority can be heeded.
    pub fn check_priority(&self, priority: i32) -> Result<(), ApiError> {
        if priority != 0 && self.common.options.scheduling_policy == SchedulingPolicy::Fcfs {
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

    /// As [`App::encode`], but of a text that has more than `max` tokens the first ones, with those
    /// that are added.
    pub fn encode_at_most(
        &self,
        text: &str,
        add_special: bool,
        max: usize,
    ) -> Result<Vec<u32>, ApiError> {
        let tokenizer = &self.text()?.tokenizer;
        // What no token can reach is not looked at.
        let max_token_bytes = *self.max_token_bytes.get_or_init(|| tokenizer.max_token_bytes());
        let end = text.floor_char_boundary(max.saturating_add(1).saturating_mul(max_token_bytes));
        Ok(tokenizer.encode_at_most(&text[..end], add_special, max)?)
    }

    /// A text that is longer than a context of the longest tokens is not encoded: it would take
    /// seconds and 250 times its size.
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

/// A name that no other has, after `prefix`.
pub(super) fn new_id(prefix: &str) -> String {
    format!("{prefix}{:032x}", rand::rng().random::<u128>())
}
