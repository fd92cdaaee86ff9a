//! What can go wrong when a model is opened or planned.

use super::config::ConfigError;
use crate::plan::{PlanError, Precision};
use crate::weights::WeightsError;
use std::path::{Path, PathBuf};

/// What can go wrong when a model is opened or planned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
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
        source: Box<ConfigError>,
    },
    /// There is no plan with these numerics or of these shapes.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// A plan for more positions than the model knows.
    #[error("a context of {asked} positions: this model takes 1 to {max}")]
    Context {
        /// Positions of the plan.
        asked: usize,
        /// The model's `max_position_embeddings`.
        max: usize,
    },
    /// A model that cannot be divided among so many devices.
    #[error("{world} devices cannot share {count} {what}{}", in_units(*unit))]
    NotShared {
        /// What is divided.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// How many of them stay together.
        unit: usize,
        /// How many devices there are.
        world: usize,
    },
    /// A model whose tokens see later ones, for several devices.
    #[error("{world} devices cannot share a model that reads texts as a whole: run it on one")]
    EncoderShared {
        /// How many devices there are.
        world: usize,
    },
    /// A precision in whose elements the model's rows would not be aligned.
    #[error(
        "the model has a {what} of {size}: in {precision} it has to be a multiple of {multiple}\n\
         it can be run in f32"
    )]
    Unaligned {
        /// Which of its sizes.
        what: &'static str,
        /// The size.
        size: usize,
        /// What it was to compute in.
        precision: Precision,
        /// Number of which the size should be a multiple.
        multiple: usize,
    },
}

fn in_units(unit: usize) -> String {
    if unit == 1 { String::new() } else { format!(" in blocks of {unit}") }
}

impl ModelError {
    /// What is wrong with the configuration of the model at `path`.
    pub(super) fn config(path: &Path, source: ConfigError) -> Self {
        match source {
            // It names the file already.
            ConfigError::Weights(source) => ModelError::Weights(source),
            source => ModelError::Config { path: path.to_owned(), source: Box::new(source) },
        }
    }
}
