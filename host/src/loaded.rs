//! A model with everything that comes with it: decoder, tokenizer, chat template, stop tokens.

use crate::model::{Config, Decoder, ModelError};
use crate::models::{self, ResolveError};
use crate::plan::{Bounds, MemoryBudget, Numerics, Plan};
use crate::text::{self, Text, TextError};
use crate::weights::{Checkpoint, Origin};
use std::path::Path;

/// A model on disk, ready for an [`Engine`](crate::Engine): a [`Decoder`] and the text that goes in and out of it.
#[derive(Debug)]
pub struct Model {
    decoder: Decoder,
    text: Option<Text>,
    stop_tokens: Vec<u32>,
}

impl Model {
    /// Opens a Hugging Face directory, a `.gguf` file, a directory that holds one, or a fetched model by its name (see
    /// [`models::resolve`]), and checks that every weight of the model is there and has the right shape. Weights are
    /// read when an executor loads them.
    ///
    /// # Errors
    /// [`OpenError::Resolve`] as of [`models::resolve`], [`OpenError::Model`] as of [`Decoder::open`],
    /// [`OpenError::Text`] for a tokenizer or a chat template that cannot be used.
    pub fn open(model: impl AsRef<Path>) -> Result<Self, OpenError> {
        let decoder = Decoder::open(models::resolve(model)?)?;
        let (text, stop_tokens) = match decoder.checkpoint().origin() {
            Origin::HuggingFace { dir, .. } => {
                (Text::from_dir(dir)?, text::stop_tokens_from_dir(dir)?)
            }
            Origin::Gguf { metadata } => {
                (Text::from_gguf(metadata)?, text::stop_tokens_from_gguf(metadata)?)
            }
        };
        // The chat template may know one more: the end of its turns.
        let stop_tokens = text.as_ref().map_or(stop_tokens, |text| text.stop_tokens.clone());
        Ok(Model { decoder, text, stop_tokens })
    }

    /// The decoder: what turns the model into plans.
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    /// The model's sizes and switches.
    pub fn config(&self) -> &Config {
        self.decoder.config()
    }

    /// The weights.
    pub fn checkpoint(&self) -> &Checkpoint {
        self.decoder.checkpoint()
    }

    /// The tokenizer and chat template, if the model comes with them.
    pub fn text(&self) -> Option<&Text> {
        self.text.as_ref()
    }

    /// Tokens that end a generation; known for most models without a tokenizer too.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// [`Decoder::plan`].
    ///
    /// # Errors
    /// As [`Decoder::plan`].
    pub fn plan(
        &self,
        numerics: &Numerics,
        bounds: Bounds,
        num_pages: usize,
    ) -> Result<Plan, ModelError> {
        self.decoder.plan(numerics, bounds, num_pages)
    }

    /// [`Decoder::memory`].
    ///
    /// # Errors
    /// As [`Decoder::memory`].
    pub fn memory(
        &self,
        numerics: &Numerics,
        bounds: Bounds,
        num_pages: usize,
    ) -> Result<MemoryBudget, ModelError> {
        self.decoder.memory(numerics, bounds, num_pages)
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
