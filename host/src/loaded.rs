//! A model with everything that comes with it: decoder, tokenizer, chat template, stop tokens.

use crate::engine::{Request, Sampling};
use crate::generation::GenerationConfig;
use crate::model::{Config, Decoder, ModelError, Pooling};
use crate::models::{self, ResolveError};
use crate::plan::{Bounds, CacheSize, Dtype, Numerics, Plan, PlanOutput, Rank};
use crate::text::{self, Text, TextError};
use crate::weights::{Checkpoint, Origin};
use std::path::Path;

/// A model on disk, ready for an [`Engine`](crate::Engine): a [`Decoder`] and the text that goes in
/// and out of it.
#[derive(Debug)]
pub struct Model {
    decoder: Decoder,
    text: Option<Text>,
    stop_tokens: Vec<u32>,
    generation: GenerationConfig,
}

/// What is taken in the place of what comes with a model.
#[derive(Clone, Debug, Default)]
pub struct ModelOverrides {
    /// Source of the chat template.
    pub chat_template: Option<String>,
    /// Sampling values; those that are not given stay the model's.
    pub generation: GenerationConfig,
}

impl Model {
    /// Opens a Hugging Face directory, a `.gguf` file, a directory that holds one, or a fetched
    /// model by its name (see [`models::resolve`]), and checks that every weight of the model is
    /// there and has the right shape. Weights are read when an executor loads them.
    ///
    /// # Errors
    /// [`OpenError::Resolve`] as of [`models::resolve`], [`OpenError::Model`] as of
    /// [`Decoder::open`], [`OpenError::Text`] for a tokenizer or a chat template that cannot be
    /// used.
    pub fn open(model: impl AsRef<Path>) -> Result<Self, OpenError> {
        Self::open_with(model, &ModelOverrides::default())
    }

    /// [`Model::open`], with `overrides` in the place of the model's own.
    ///
    /// # Errors
    /// As [`Model::open`]. A template that is malformed is an error where it is rendered, and a value that is out of
    /// its range where it is used.
    pub fn open_with(
        model: impl AsRef<Path>,
        overrides: &ModelOverrides,
    ) -> Result<Self, OpenError> {
        let chat_template = overrides.chat_template.as_deref();
        let decoder = Decoder::open(models::resolve(model)?)?;
        let (text, stop_tokens) = match decoder.checkpoint().origin() {
            Origin::HuggingFace { dir, .. } => {
                (Text::from_dir_with(dir, chat_template)?, text::stop_tokens_from_dir(dir)?)
            }
            Origin::Gguf { metadata } => (
                Text::from_gguf_with(metadata, chat_template)?,
                text::stop_tokens_from_gguf(metadata)?,
            ),
        };
        // The chat template may know one more: the end of its turns.
        let stop_tokens = text.as_ref().map_or(stop_tokens, |text| text.stop_tokens.clone());
        let generation = GenerationConfig::open(decoder.checkpoint().origin())?
            .overridden_by(&overrides.generation);
        Ok(Model { decoder, text, stop_tokens, generation })
    }

    /// The decoder: what turns the model into plans.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The model's sizes and switches.
    pub fn config(&self) -> &Config {
        self.decoder.config()
    }

    /// How a text is pooled where a request does not say it.
    pub fn pooling(&self) -> Pooling {
        self.decoder.pooler().pooling()
    }

    /// Numbers of an embedding, or of what a classifier gives.
    pub fn embedding_size(&self) -> usize {
        self.decoder.pooler().width(self.config().hidden_size)
    }

    /// The weights.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.decoder.checkpoint()
    }

    /// The tokenizer and chat template, if the model comes with them.
    pub fn text(&self) -> Option<&Text> {
        self.text.as_ref()
    }

    /// Why there is no [`text`](Self::text), and what to do, for the user.
    pub fn no_text(&self) -> String {
        let other = match self.checkpoint().origin() {
            Origin::HuggingFace { dir, .. } => text::other_tokenizer(dir),
            Origin::Gguf { .. } => None,
        };
        match other {
            None => "this model has no tokenizer".to_owned(),
            Some(file) => format!(
                "this model has no tokenizer.json, only {file}, which is not read\nsave one beside \
                 it with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
            ),
        }
    }

    /// Tokens that end a generation; known for most models without a tokenizer too.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// The sampling values that the model comes with.
    pub fn generation_config(&self) -> &GenerationConfig {
        &self.generation
    }

    /// A request to continue `prompt` as the model's authors mean it: with the model's sampling
    /// values, greedy where it has none, and its stop tokens.
    pub fn request(&self, prompt: Vec<u32>) -> Request {
        Request {
            prompt,
            sampling: self.generation.sampling(Sampling::default()),
            stop_tokens: self.stop_tokens.clone(),
            ..Request::default()
        }
    }

    /// [`Decoder::plan`].
    ///
    /// # Errors
    /// As [`Decoder::plan`].
    pub fn plan(
        &self,
        numerics: &Numerics,
        bounds: Bounds,
        cache: impl Into<CacheSize>,
    ) -> Result<Plan, ModelError> {
        self.decoder.plan(numerics, bounds, cache)
    }

    /// [`Decoder::plan_of`].
    ///
    /// # Errors
    /// As [`Decoder::plan`].
    pub fn plan_of(
        &self,
        rank: Rank,
        output: PlanOutput,
        numerics: &Numerics,
        bounds: Bounds,
        cache: impl Into<CacheSize>,
    ) -> Result<Plan, ModelError> {
        self.decoder.plan_of(rank, output, numerics, bounds, cache)
    }

    /// [`Decoder::outline`].
    pub(crate) fn outline(
        &self,
        rank: Rank,
        numerics: &Numerics,
        bounds: Bounds,
        cache: impl Into<CacheSize>,
    ) -> Result<Plan, ModelError> {
        self.decoder.outline(rank, numerics, bounds, cache)
    }

    /// Bytes of all weights as an executor keeps them.
    ///
    /// # Errors
    /// As [`Decoder::plan`].
    pub fn weight_bytes(&self, numerics: &Numerics) -> Result<usize, ModelError> {
        Ok(self.smallest_plan(numerics)?.weight_bytes())
    }

    /// The type in which an executor keeps most of the weights.
    ///
    /// # Errors
    /// As [`Decoder::plan`].
    pub fn weight_dtype(&self, numerics: &Numerics) -> Result<Option<Dtype>, ModelError> {
        Ok(self.smallest_plan(numerics)?.weight_dtype())
    }

    fn smallest_plan(&self, numerics: &Numerics) -> Result<Plan, ModelError> {
        let bounds = Bounds::one_sequence(1);
        self.outline(Rank::ALONE, numerics, bounds, 1)
    }
}

/// What can go wrong when a model is opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no model of this path or name.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// Configuration or weights cannot be used.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The tokenizer or the chat template cannot be used.
    #[error(transparent)]
    Text(#[from] TextError),
}
