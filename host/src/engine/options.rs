//! How an engine is set up.

use super::{EngineError, Request};
use crate::Model;
use crate::exec::{Device, Gemm, Target};
use crate::model::Config;
use crate::plan::{Accumulate, CacheSize, Numerics, PAGE_SIZE, Precision};

/// The context that is chosen when none is asked for, if the model allows it.
const DEFAULT_CONTEXT: usize = 4096;

/// How an engine is set up.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// Where it runs.
    pub device: Device,
    /// What it computes in.
    pub precision: Precision,
    /// Who computes linear layers on a GPU.
    pub gemm: Gemm,
    /// What our kernels sum products in: f16 of operands in f16 alone, and of more than a few rows.
    pub accumulate: Accumulate,
    /// Whose kernels run, on a GPU or emulated; `None`: those for the newest target that the device can run.
    pub target: Option<Target>,
    /// Whether a request's logits are the same bits whatever runs beside it, and however its prompt is cut into steps.
    /// Prompts and decoding then take turns instead of sharing steps, and some kernels are not the fastest ones. In 16
    /// bits a GPU decodes at most 64 sequences so, and a step of more is an error.
    pub batch_invariant: bool,
    /// Positions of a sequence, prompt and answer; `None` or 0: 4096, or what the model allows if that is less.
    pub context: Option<usize>,
    /// Sequences that run at once; more requests wait.
    pub max_seqs: usize,
    /// Tokens of a step: a longer prompt takes several.
    pub max_tokens: usize,
    /// Positions of the whole cache, in all sequences; `None`: room for `max_seqs` full contexts. With less, a
    /// sequence may have to wait, or to give its place back and be computed again.
    pub cache_positions: Option<usize>,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            device: Device::Auto,
            precision: Precision::default(),
            gemm: Gemm::default(),
            accumulate: Accumulate::default(),
            target: None,
            batch_invariant: false,
            context: None,
            max_seqs: 1,
            max_tokens: 512,
            cache_positions: None,
        }
    }
}

impl EngineOptions {
    /// What [`Engine::add_request`](super::Engine::add_request) of an engine with these options will say of `request`:
    /// to know before weights are loaded for it.
    ///
    /// # Errors
    /// [`EngineError::Context`] and those of [`Engine::add_request`](super::Engine::add_request).
    pub fn check_request(&self, model: &Model, request: &Request) -> Result<(), EngineError> {
        let config = model.config();
        request.check(config.vocab_size, self.context_for(config)?)
    }

    /// How the model computes.
    pub(super) fn numerics(&self) -> Numerics {
        let &EngineOptions { precision, accumulate, batch_invariant, .. } = self;
        Numerics { precision, accumulate, batch_invariant }
    }

    /// What decides the size of the cache.
    pub(super) fn cache_size(&self) -> CacheSize {
        match self.cache_positions {
            Some(_) => CacheSize::Positions,
            None => CacheSize::Contexts(self.max_seqs.max(1)),
        }
    }

    /// Pages of the cache, for sequences of `context` positions. Sizes are held in 32 bits, as step inputs are: the
    /// memory budget counts with no larger ones.
    pub(super) fn num_pages(&self, context: usize) -> Result<usize, EngineError> {
        let positions = match self.cache_positions {
            Some(positions) => positions.max(context),
            None => context.next_multiple_of(PAGE_SIZE).saturating_mul(self.max_seqs.max(1)),
        };
        let sizes = [("sequences", self.max_seqs), ("positions of the cache", positions)];
        match sizes.into_iter().find(|&(_, asked)| u32::try_from(asked).is_err()) {
            Some((what, asked)) => Err(EngineError::TooMany { what, asked }),
            None => Ok(positions.div_ceil(PAGE_SIZE)),
        }
    }

    /// The context that is asked for, or the default.
    pub(super) fn context_for(&self, config: &Config) -> Result<usize, EngineError> {
        let max = config.max_position_embeddings;
        match self.context {
            None | Some(0) => Ok(max.min(DEFAULT_CONTEXT)),
            Some(asked) if asked > max => Err(EngineError::Context { asked, max }),
            Some(asked) => Ok(asked),
        }
    }
}
