//! What can go wrong in the engine.

use super::{Pooling, RequestId, SamplingError};
use crate::exec::ExecError;
use crate::model::ModelError;
use crate::plan::BudgetError;

/// What can go wrong in the engine.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// A context longer than the model allows.
    #[error("a context of {asked} positions: the model allows at most {max}")]
    Context {
        /// Positions of the options.
        asked: usize,
        /// The model's `max_position_embeddings`.
        max: usize,
    },
    /// A size of [`EngineOptions`](super::EngineOptions) that 32 bits do not hold.
    #[error("{what}: {asked} is too many, at most {} are possible", u32::MAX)]
    TooMany {
        /// What has this size.
        what: &'static str,
        /// The size.
        asked: usize,
    },
    /// A share of the memory that is none.
    #[error("a memory utilization of {asked}: it has to be above 0, and at most 1")]
    Utilization {
        /// [`EngineOptions::gpu_memory_utilization`](super::EngineOptions::gpu_memory_utilization).
        asked: f64,
    },
    /// A prompt with no token.
    #[error("the prompt is empty: it needs at least one token")]
    EmptyPrompt,
    /// A prompt that is longer than the context.
    #[error(
        "the prompt has {prompt_len} tokens, the context {context}: shorten it, or choose a longer context"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt_len: usize,
        /// Positions of the context.
        context: usize,
    },
    /// A token id that the model does not have.
    #[error("token id {token} (number {index} of the prompt): the vocabulary has {vocab_size}, 0 to {}", vocab_size - 1)]
    UnknownToken {
        /// The id.
        token: u32,
        /// Index of the token in the prompt.
        index: usize,
        /// Ids that the model has.
        vocab_size: usize,
    },
    /// Tokens are asked for of a model that makes none.
    #[error("this model generates nothing: it makes embeddings of texts, or scores")]
    NoGeneration,
    /// An embedding is asked for as the model does not make it.
    #[error("this model pools by `{}`: `{}` is not possible", .has.name(), .asked.name())]
    Pooling {
        /// What is asked for.
        asked: Pooling,
        /// What the model does.
        has: Pooling,
    },
    /// More tokens than a step takes.
    #[error("a step of {asked} tokens: this engine was opened for at most {max} in one")]
    StepTooLarge {
        /// Tokens of the step.
        asked: usize,
        /// [`EngineOptions::max_tokens`](super::EngineOptions::max_tokens), or less where the
        /// memory is short.
        max: usize,
    },
    /// Running requests hold the pages that [`Engine::logits`](super::Engine::logits) needs.
    #[error("running requests hold the cache: finish or cancel them first")]
    CacheFull,
    /// The model does not fit into the device's memory.
    #[error(transparent)]
    Memory(#[from] BudgetError),
    /// A sampling value out of its range.
    #[error(transparent)]
    Sampling(#[from] SamplingError),
    /// No token could be chosen for a request, such as that of
    /// [`Engine::generate`](super::Engine::generate).
    #[error("{source}")]
    Sample {
        /// The request.
        request: RequestId,
        /// Why.
        source: SamplingError,
    },
    /// More requests wait than a service takes.
    #[error("the queue is full: {max} requests wait already")]
    QueueFull {
        /// [`ServiceOptions::max_waiting`](super::ServiceOptions::max_waiting).
        max: usize,
    },
    /// A request to a service that is shutting down.
    #[error("the engine is shutting down")]
    ShuttingDown,
    /// A request to a service whose engine failed for good.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
    /// The system refuses the thread of a service.
    #[error("cannot start the thread of the engine: {0}")]
    Thread(std::io::Error),
    /// The model could not be planned.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The executor failed.
    #[error(transparent)]
    Exec(#[from] ExecError),
}

impl EngineError {
    /// Whether there was not enough memory for what was planned.
    pub(super) fn is_out_of_memory(&self) -> bool {
        matches!(self, EngineError::Memory(_) | EngineError::Exec(ExecError::OutOfMemory { .. }))
    }
}
