//! Requests to the engine, and the events and generations that it returns.

use super::{Constraint, EngineError, Logprobs, Pooling, SamplerChain, Sampling, SamplingError};
use crate::Model;
use std::sync::Arc;

/// Identifies a request in the engine that it was added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub(super) u64);

/// A prompt to continue. [`Model::request`](crate::Model::request) makes one with the model's own
/// sampling values and stop tokens.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Token ids; at least one, at most as many as the context has positions.
    pub prompt: Vec<u32>,
    /// Tokens to generate at most; `None`: until a stop token or the end of the context.
    pub max_new_tokens: Option<usize>,
    /// How the next token is chosen.
    pub sampling: Sampling,
    /// Samplers that the host applies in the place of top-k, top-p, min-p and temperature of
    /// `sampling`, after its bias and its penalties.
    pub chain: Option<Arc<SamplerChain>>,
    /// Tokens that end the generation: as a rule [`Model::stop_tokens`](crate::Model::stop_tokens),
    /// or none to continue after them.
    pub stop_tokens: Vec<u32>,
    /// Stop tokens are ruled out until so many tokens are generated, unless a constraint allows
    /// nothing else.
    pub min_tokens: usize,
    /// Asks for the log-probability of each generated token, and of so many most likely ones beside
    /// it.
    pub logprobs: Option<usize>,
    /// With `logprobs`: tokens whose log-probabilities are wanted however unlikely they are, such
    /// as the `yes` and the `no` of a model that ranks.
    pub logprobs_of: Vec<u32>,
    /// As `logprobs`, of all tokens of the prompt but the first. The whole prompt is computed then,
    /// as it is for [`Pooling::Mean`]: other requests' keys and values are not read.
    pub prompt_logprobs: Option<usize>,
    /// Asks for an embedding of the prompt, instead of tokens that continue it.
    pub pooling: Option<Pooling>,
    /// Where the second of two texts begins, such as the document after a query: its tokens are of
    /// the second type, where an encoder has types.
    pub second_text: Option<usize>,
    /// A rule for the generated tokens, stop tokens included, such as a
    /// [`Grammar`](crate::Grammar).
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Only requests with the same salt share keys and values in the cache: how long a prompt takes
    /// tells nothing of those with another.
    pub cache_salt: Option<String>,
    /// Lower is served first; requests of the same priority in the order in which they come.
    pub priority: i32,
}

impl Request {
    /// Whether a model with `vocab_size` tokens can take it in a context of `context` positions.
    pub(super) fn check(&self, vocab_size: usize, context: usize) -> Result<(), EngineError> {
        check_prompt(&self.prompt, vocab_size, context)?;
        Ok(self.sampling.check(vocab_size)?)
    }
}

impl Request {
    /// Whether `model` makes what it asks for.
    pub(super) fn check_pooling(&self, model: &Model) -> Result<(), EngineError> {
        let (is_causal, has) = (model.config().is_causal, model.pooling());
        match self.pooling {
            None if is_causal => Ok(()),
            None => Err(EngineError::NoGeneration),
            Some(Pooling::Mean | Pooling::Last) if is_causal => Ok(()),
            Some(asked) if asked == has => Ok(()),
            Some(asked) => Err(EngineError::Pooling { asked, has }),
        }
    }
}

/// The part of [`Request::check`] that is about the prompt.
pub(super) fn check_prompt(
    prompt: &[u32],
    vocab_size: usize,
    context: usize,
) -> Result<(), EngineError> {
    if prompt.is_empty() {
        return Err(EngineError::EmptyPrompt);
    }
    if prompt.len() > context {
        return Err(EngineError::PromptTooLong { prompt_len: prompt.len(), context });
    }
    match prompt.iter().position(|&token| token as usize >= vocab_size) {
        Some(index) => Err(EngineError::UnknownToken { token: prompt[index], index, vocab_size }),
        None => Ok(()),
    }
}

/// Something that happened to a request in a step.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum EventKind {
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
    /// The embedding of the prompt, [`Model::embedding_size`](crate::Model::embedding_size) numbers
    /// of unit length, or the logits of a classifier: see [`Request::pooling`].
    Embedding(Vec<f32>),
    /// A token was generated; the stop token that ends a generation is one too.
    Token(u32),
    /// The last event of a request.
    Finished(FinishReason),
    /// The last event of a request for which no token could be chosen. Others are not affected.
    Failed(SamplingError),
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The last token is one of [`Request::stop_tokens`].
    StopToken,
    /// [`Request::max_new_tokens`] were generated, or there is the embedding that was asked for.
    Length,
    /// The context has no position left.
    ContextFull,
    /// It was cancelled.
    Cancelled,
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Generation {
    /// The generated tokens, the stop token included.
    pub tokens: Vec<u32>,
    /// Why there are no more.
    pub finish_reason: FinishReason,
    /// Leading tokens of the prompt whose keys and values were still in the cache.
    pub cached_tokens: usize,
}

/// How much of a prompt has been computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromptProgress {
    /// Tokens of the prompt whose keys and values are in the cache, those found there included.
    pub done: usize,
    /// Tokens of the prompt.
    pub total: usize,
}
