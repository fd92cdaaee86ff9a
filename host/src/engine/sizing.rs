//! How long the context is and how large the cache, by the options and the memory that there is.

use super::precision::Attempts;
use super::windows::Windows;
use super::{Buckets, EngineError, EngineOptions};
use crate::Model;
use crate::exec::{self, ExecError, MemoryInfo};
use crate::model::{Config, ModelError};
use crate::plan::{
    Bounds, BudgetError, CacheSize, Fits, MemoryBudget, Numerics, PAGE_SIZE, Plan, Precision, Rank,
};

/// Sizes an engine: what it is made for, with the context and the cache still open.
pub struct Sizing<'a> {
    pub model: &'a Model,
    pub options: &'a EngineOptions,
    pub numerics: Numerics,
    /// Tokens of a step at most.
    pub max_tokens: usize,
    /// The memory of the device, if the system tells.
    pub memory: Option<MemoryInfo>,
}

/// The sizes of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub buckets: Buckets,
    /// What the plans are made for.
    pub cache: CacheSize,
    pub budget: MemoryBudget,
}

/// The cache of `num_pages`: a recurrent state and pages of a window for each sequence that runs at
/// once, none of which has less than a page, and some to be kept.
fn cache_size(model: &Config, buckets: &Buckets, num_pages: usize) -> CacheSize {
    let num_kept = buckets.max_seqs.clamp(2, 16);
    let num_window_pages = match model.window() {
        Some(window) => Windows::num_pages(window, buckets, num_kept, num_pages),
        None => num_pages,
    };
    let num_states = buckets.max_seqs.min(num_pages) + num_kept;
    CacheSize { num_pages, num_window_pages, num_states }
}

/// A context and a cache for it.
#[derive(Clone, Copy)]
struct Shape {
    context: usize,
    num_pages: usize,
}

impl Sizing<'_> {
    /// Context and cache as the options name them, or as long as the memory has room for; at least
    /// `least_context` positions, if the model takes that many.
    ///
    /// # Errors
    /// [`EngineError::Context`], [`EngineError::TooMany`], [`EngineError::Memory`],
    /// [`EngineError::Model`], [`EngineError::Exec`].
    pub fn size(&self, least_context: usize) -> Result<Size, EngineError> {
        let longest = self.options.longest_context(self.model.config())?;
        match (self.options.context, self.options.cache_positions) {
            (None, None) => self.largest(longest, least_context),
            (Some(_), None) => {
                let shape = |pages: usize| Shape {
                    context: longest.min(pages * PAGE_SIZE),
                    num_pages: pages * self.max_seqs(),
                };
                let asked = self.options.num_pages(longest)? / self.max_seqs();
                let named = |pages| Fits::Context(pages * PAGE_SIZE);
                self.checked(shape, asked, named)
            }
            (context, Some(positions)) => {
                let least = if context.is_some() { longest } else { longest.min(positions.max(1)) };
                let shape = |num_pages: usize| Shape {
                    context: longest.min(num_pages * PAGE_SIZE),
                    num_pages,
                };
                let named = |pages| match pages * PAGE_SIZE {
                    cache if context.is_some() && cache < longest => Fits::ContextAndCache(cache),
                    cache => Fits::Cache(cache),
                };
                self.checked(shape, self.options.num_pages(least)?, named)
            }
        }
    }

    /// The size of `shape(asked)` pages, if it fits; else what does is `named`.
    fn checked(
        &self,
        shape: impl Fn(usize) -> Shape,
        asked: usize,
        named: impl Fn(usize) -> Fits,
    ) -> Result<Size, EngineError> {
        let size = self.size_of(shape(asked))?;
        if self.fits(&size) {
            return Ok(size);
        }
        let fitting = self.most_pages(&shape, asked)?;
        Err(self.refused(&size, if fitting == 0 { Fits::Nothing } else { named(fitting) }))
    }

    /// As many pages as fit, up to full contexts of `longest` for all sequences.
    fn largest(&self, longest: usize, least_context: usize) -> Result<Size, EngineError> {
        let shape =
            |num_pages: usize| Shape { context: longest.min(num_pages * PAGE_SIZE), num_pages };
        let least = shape(least_context.min(longest).div_ceil(PAGE_SIZE));
        let most = self.options.num_pages(longest)?;
        let full = match self.memory {
            Some(_) => self.size_of(shape(most))?,
            // Nobody knows whether there is room for more.
            None => self.size_of(least)?,
        };
        if self.fits(&full) {
            return Ok(full);
        }
        match self.most_pages(shape, most)? {
            fitting if fitting < least.num_pages => {
                let size = self.size_of(least)?;
                let fits = match fitting {
                    0 => Fits::Nothing,
                    pages => Fits::Context(pages * PAGE_SIZE),
                };
                Err(self.refused(&size, fits))
            }
            fitting => self.size_of(shape(fitting)),
        }
    }

    /// The largest number of pages below `end` whose shape fits; 0 if none does.
    fn most_pages(&self, shape: impl Fn(usize) -> Shape, end: usize) -> Result<usize, EngineError> {
        let (mut fitting, mut too_many) = (0, end);
        while fitting + 1 < too_many {
            let pages = fitting.midpoint(too_many);
            if self.fits(&self.size_of(shape(pages))?) {
                fitting = pages;
            } else {
                too_many = pages;
            }
        }
        Ok(fitting)
    }

    fn size_of(&self, Shape { context, num_pages }: Shape) -> Result<Size, EngineError> {
        let max_seqs = self.max_seqs();
        // No step is larger than all contexts together, whatever the options say.
        let is_causal = self.model.config().is_causal;
        // A text that is read as a whole is in one step.
        let least = if is_causal { max_seqs } else { max_seqs.max(context) };
        let max_tokens = self.max_tokens.clamp(least, max_seqs.saturating_mul(context).max(least));
        let mixes = max_seqs > 1 && !self.numerics.batch_invariant && is_causal;
        let buckets = Buckets { max_tokens, max_seqs, context, mixes };
        let ranks = Rank::all(self.options.tensor_parallel_size.get());
        let cache = cache_size(self.model.config(), &buckets, num_pages);
        let budgets = ranks.map(|rank| self.budget_of(rank, &buckets, cache));
        let budgets = budgets.collect::<Result<Vec<_>, EngineError>>()?;
        let budget = match self.options.device.cuda_ordinal() {
            // Each rank has a device of its own.
            Some(_) => budgets.into_iter().max_by_key(MemoryBudget::total_bytes),
            None => budgets.into_iter().reduce(MemoryBudget::together),
        };
        Ok(Size { buckets, cache, budget: budget.unwrap_or_default() })
    }

    fn budget_of(
        &self,
        rank: Rank,
        buckets: &Buckets,
        cache: CacheSize,
    ) -> Result<MemoryBudget, EngineError> {
        let outline = |bounds: Bounds| self.model.outline(rank, &self.numerics, bounds, cache);
        let prepared = buckets.all().into_iter().map(outline);
        let prepared = prepared.collect::<Result<Vec<Plan>, ModelError>>()?;
        let largest = outline(buckets.largest())?;
        let Self { options, .. } = self;
        Ok(exec::memory_budget(options.device, &options.gpu(), &largest, &prepared)?)
    }

    fn fits(&self, size: &Size) -> bool {
        self.room_bytes().is_none_or(|room| size.budget.total_bytes() <= room)
    }

    fn refused(&self, size: &Size, fits: Fits) -> EngineError {
        let room_bytes = self.room_bytes().unwrap_or(usize::MAX);
        let error = BudgetError {
            device: self.memory.as_ref().map_or_else(String::new, |memory| memory.device.clone()),
            budget: Box::new(size.budget),
            short_bytes: size.budget.total_bytes().saturating_sub(room_bytes),
            room_bytes,
            fits,
        };
        error.into()
    }

    fn room_bytes(&self) -> Option<usize> {
        self.memory.as_ref().map(|memory| memory.room_bytes(self.options.gpu_memory_utilization))
    }

    fn max_seqs(&self) -> usize {
        self.options.max_seqs.max(1)
    }
}

/// Tries `make` with what the engine computes in and the tokens of a step: as the options say, or
/// where they leave that open with what there is memory for.
pub fn attempt<T>(
    model: &Model,
    options: &EngineOptions,
    make: impl Fn(&Attempts, usize) -> Result<T, EngineError>,
) -> Result<(T, Attempts), EngineError> {
    let num_weights = model.weight_bytes(&Precision::F32.into())? / size_of::<f32>();
    let mut attempts = Attempts::new(model, options);
    loop {
        let mut max_tokens = options.max_tokens_for(num_weights, model.config().is_causal);
        if attempts.is_short {
            max_tokens = options.smallest_step(max_tokens);
        }
        let result = loop {
            match make(&attempts, max_tokens) {
                Err(error) if error.is_out_of_memory() => match options.smaller_step(max_tokens) {
                    Some(smaller) => max_tokens = smaller,
                    None => break Err(error),
                },
                result => break result,
            }
        };
        match result {
            Ok(made) => return Ok((made, attempts)),
            Err(error) => attempts.next(model, error)?,
        }
    }
}

/// How an engine computes, and how large it is.
pub fn size(
    model: &Model,
    options: &EngineOptions,
    &Attempts { precision, least_context, .. }: &Attempts,
    max_tokens: usize,
    memory: impl FnOnce() -> Result<Option<MemoryInfo>, ExecError>,
) -> Result<(Numerics, Size), EngineError> {
    options.check_utilization()?;
    options.gemm.check_device(options.device).map_err(ExecError::from)?;
    options.collectives.check_device(options.device)?;
    options.device.check_target(options.target)?;
    let numerics = options.numerics(precision);
    numerics.check().map_err(ModelError::from)?;
    options.gemm.compute_type(precision.operand()).map_err(ExecError::from)?;
    options.gemm.check_accumulate(options.accumulate, options.device).map_err(ExecError::from)?;
    let memory = memory()?;
    let sizing = Sizing { model, options, numerics, max_tokens, memory };
    Ok((numerics, sizing.size(least_context)?))
}

#[cfg(test)]
mod tests;
