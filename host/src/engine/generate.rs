//! The two ways to use an engine in one call.

use super::pages::PageTable;
use super::request::check_prompt;
use super::{Engine, EngineError, Event, EventKind, Generation, Request, RequestId};
use crate::exec::Want;
use crate::plan::StepInputs;
use std::ops::ControlFlow;

impl Engine {
    /// Runs one request to its end, together with those that were added before; what happens to
    /// these is left for the next [`Engine::step`]. `on_token` is called with each token and can
    /// end the generation.
    ///
    /// # Errors
    /// Errors of [`Engine::add_request`] and [`Engine::step`], and [`EngineError::Sample`] if no token can be chosen
    /// for this request; it is removed.
    pub fn generate(
        &mut self,
        request: Request,
        on_token: impl FnMut(u32) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        let id = self.add_request(request)?;
        let mut events_of_others = Vec::new();
        let generation = self.run_to_end(id, on_token, &mut events_of_others);
        if generation.is_err() {
            self.requests.scheduler.remove(id);
            self.requests.events.retain(|event| event.request != id);
        }
        self.requests.events.extend(events_of_others);
        generation
    }

    fn run_to_end(
        &mut self,
        id: RequestId,
        mut on_token: impl FnMut(u32) -> ControlFlow<()>,
        events_of_others: &mut Vec<Event>,
    ) -> Result<Generation, EngineError> {
        let (mut tokens, mut cached_tokens) = (Vec::new(), 0);
        loop {
            let mut ended = None;
            // All events are looked at, also those after the last one of this request.
            for event in self.step()? {
                match event.kind {
                    _ if event.request != id => events_of_others.push(event),
                    EventKind::Started { cached_tokens: cached } => cached_tokens = cached,
                    EventKind::Token(token) => {
                        tokens.push(token);
                        if on_token(token).is_break() {
                            self.cancel(id);
                        }
                    }
                    EventKind::PromptLogprobs(_)
                    | EventKind::Logprobs(_)
                    | EventKind::Embedding(_) => {}
                    EventKind::Finished(reason) => ended = Some(Ok(reason)),
                    EventKind::Failed(source) => {
                        ended = Some(Err(EngineError::Sample { request: id, source }));
                    }
                }
            }
            if let Some(ended) = ended {
                return ended.map(|finish_reason| Generation {
                    tokens,
                    finish_reason,
                    cached_tokens,
                });
            }
        }
    }

    /// Logits of every position of `tokens`, `[tokens.len(), vocab_size]`.
    ///
    /// # Errors
    /// Errors of a prompt (see [`Engine::add_request`]), [`EngineError::CacheFull`], [`EngineError::Exec`].
    pub fn logits(&mut self, tokens: &[u32]) -> Result<Vec<f32>, EngineError> {
        let mut logits = Vec::with_capacity(tokens.len() * self.model.config().vocab_size);
        self.logits_from(tokens, 0, |rows| logits.extend_from_slice(rows))?;
        Ok(logits)
    }

    /// Calls `each` with the logits of the positions of `tokens` from `first` on: some rows at a
    /// time, `[num_rows, vocab_size]`, so that no more are in memory.
    ///
    /// # Errors
    /// As [`Engine::logits`].
    pub fn logits_from(
        &mut self,
        tokens: &[u32],
        first: usize,
        each: impl FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        check_prompt(tokens, self.model.config().vocab_size, self.context())?;
        if !self.model.config().is_causal {
            return Err(EngineError::NoGeneration);
        }
        let mut pages =
            self.requests.scheduler.take_pages(tokens.len()).ok_or(EngineError::CacheFull)?;
        let result = self.logits_in(&mut pages, tokens, first, each);
        self.requests.scheduler.give_back(pages);
        result
    }

    /// [`Engine::logits_from`] with the cache in `pages`.
    fn logits_in(
        &mut self,
        pages: &mut PageTable,
        tokens: &[u32],
        first: usize,
        mut each: impl FnMut(&[f32]),
    ) -> Result<(), EngineError> {
        let (before, wanted) = tokens.split_at(first.min(tokens.len()));
        let mut past_len = 0;
        for chunk in before.chunks(self.buckets.max_tokens) {
            let mut inputs = StepInputs::new();
            self.push_chunk(&mut inputs, chunk, past_len, pages, 0..0)?;
            self.run_prompts(&inputs, Want::Nothing)?;
            past_len += chunk.len();
        }
        for chunk in wanted.chunks(self.buckets.logit_chunk()) {
            let mut inputs = StepInputs::new();
            self.push_chunk(&mut inputs, chunk, past_len, pages, 0..chunk.len())?;
            each(&self.run_prompts(&inputs, Want::Logits)?.logits);
            past_len += chunk.len();
        }
        Ok(())
    }
}
