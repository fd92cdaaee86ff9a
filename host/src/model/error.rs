//! What can go wrong when a model is opened or planned.

use super::config::ConfigError;
use crate::text::TextError;
use crate::weights::WeightsError;
use std::path::PathBuf;

/// What can go wrong when a model is opened or planned.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// The checkpoint cannot be read, or lacks what the configuration promises.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The configuration describes no model that can be run.
    #[error("{}: {source}", path.display())]
    Config {
        /// The model.
        path: PathBuf,
        /// What is wrong.
        source: ConfigError,
    },
    /// The tokenizer or the chat template cannot be read.
    #[error(transparent)]
    Text(#[from] TextError),
    /// A plan for more positions than the model knows.
    #[error("a context of {asked} positions: this model takes 1 to {max}")]
    Context {
        /// Positions asked for.
        asked: usize,
        /// The model's `max_position_embeddings`.
        max: usize,
    },
}
