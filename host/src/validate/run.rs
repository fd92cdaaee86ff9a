//! One setting on the device: its outputs, its times, its memory.

use super::inputs::{HaikuPrompt, Inputs};
use super::layers::{OpOutput, OutputName};
use super::{Options, Run, Settings, ValidateError, haiku::Haiku};
use crate::{
    Engine, EngineError, EngineOptions, FinishReason, Model, PrecisionChoice, Request, Sampling,
    SamplingError,
};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

/// What one setting gave.
pub struct Outcome {
    pub run: Run,
    pub device: String,
    pub stored: Vec<OpOutput>,
    pub haiku: Option<Haiku>,
    /// Logits where the reference chose the tokens of its haiku, `[num_tokens, vocab_size]`.
    pub forced: Vec<f32>,
}

/// Runs settings.
pub struct Runner<'a> {
    pub model: &'a Arc<Model>,
    pub options: &'a Options,
    pub inputs: &'a Inputs,
}

impl Runner<'_> {
    /// Runs `settings`, and tells `stage` what is being done. `on_logits` gets the logits of each
    /// window of the text; `reference` is the haiku of the reference, if this is not the reference.
    pub fn run(
        &self,
        settings: Settings,
        reference: Option<&Haiku>,
        stage: &mut dyn FnMut(&str),
        mut on_logits: impl FnMut(Vec<f32>),
    ) -> Result<Outcome, ValidateError> {
        let (inputs, sizes) = (self.inputs, self.inputs.sizes);
        let mut stage = |what: &str| stage(&format!("{settings}: {what}"));
        stage("loading the weights");
        let mut engine = Engine::new(Arc::clone(self.model), self.engine_options(settings))?;

        stage("the values of every layer");
        let stored = observe(&mut engine, inputs.observed())?;
        stage(&format!("the logits of {} tokens", inputs.text.len()));
        for window in inputs.windows() {
            on_logits(engine.logits(window)?);
        }
        stage("a haiku");
        let prompt = inputs.haiku.as_ref().ok();
        let generate = |engine: &mut Engine| match prompt {
            Some(prompt) => self.haiku(engine, prompt).map(Some),
            None => Ok(None),
        };
        let mut haiku = generate(&mut engine)?;
        if sizes.repetitions > 0 {
            stage(&format!("{} times {} new tokens", sizes.repetitions, sizes.new));
        }
        let (first_token_ms, tokens_per_s) = time(&mut engine, inputs)?;
        // The requests before have taken every page of the cache: nothing is left of the first
        // haiku.
        let again = generate(&mut engine)?;
        if let (Some(haiku), Some(again)) = (&mut haiku, again) {
            haiku.repeated = again.text;
        }
        let forced = match (prompt, reference.or(haiku.as_ref())) {
            (Some(prompt), Some(chosen)) => force(&mut engine, &prompt.tokens, &chosen.tokens)?,
            _ => Vec::new(),
        };
        let memory_use = engine.memory_use()?;
        Ok(Outcome {
            run: Run {
                first_token_ms,
                tokens_per_s,
                planned_bytes: engine.memory_budget().parts().to_vec(),
                measured_bytes: memory_use.total_bytes(),
                context_bytes: memory_use.context_bytes,
            },
            device: engine.describe_device(),
            stored,
            haiku,
            forced,
        })
    }

    fn engine_options(&self, settings: Settings) -> EngineOptions {
        EngineOptions {
            precision: match settings.fp8 {
                true => PrecisionChoice::Fp8,
                false => settings.precision.into(),
            },
            fusion: settings.fusion,
            attention: settings.attention,
            kv: settings.kv,
            context: Some(self.inputs.sizes.context()),
            max_seqs: 1,
            cache_positions: None,
            ..self.options.engine.clone()
        }
    }

    /// As a user would have it generated, from the seed.
    fn haiku(&self, engine: &mut Engine, prompt: &HaikuPrompt) -> Result<Haiku, ValidateError> {
        let sampling = self.model.generation_config().sampling(Sampling::LLAMA_CPP);
        let room = self.inputs.sizes.context() - prompt.tokens.len();
        let request = Request {
            max_new_tokens: Some(self.inputs.sizes.haiku.min(room)),
            sampling: Sampling { seed: self.options.seed, ..sampling },
            ..self.model.request(prompt.tokens.clone())
        };
        let mut tokens = Vec::new();
        let end = generate(engine, request, |token| tokens.push(token))?;
        let text = self.model.text().expect("there is a prompt, and so a tokenizer");
        let text = text.tokenizer.decode(&tokens, true);
        Ok(Haiku { tokens, text, end, repeated: String::new() })
    }
}

/// Runs a request to its end; an error is that of a token that could not be chosen.
fn generate(
    engine: &mut Engine,
    request: Request,
    mut on_token: impl FnMut(u32),
) -> Result<Result<FinishReason, SamplingError>, EngineError> {
    let generation = engine.generate(request, |token| {
        on_token(token);
        ControlFlow::Continue(())
    });
    match generation {
        Ok(generation) => Ok(Ok(generation.finish_reason)),
        Err(EngineError::Sample { source, .. }) => Ok(Err(source)),
        Err(error) => Err(error),
    }
}

/// What each operation stores for `tokens`.
fn observe(engine: &mut Engine, tokens: &[u32]) -> Result<Vec<OpOutput>, ValidateError> {
    let mut stored = Vec::new();
    engine.observe_prompt(tokens, &mut |plan, index, activations| {
        let op = &plan.ops[index];
        if let Some((place, view)) = OutputName::of(plan, op) {
            let (dtype, values) = (plan.dtype(view), activations.rows(view)?);
            stored.push(OpOutput { place, dtype, width: view.width, values });
        }
        Ok(())
    })?;
    Ok(stored)
}

/// Milliseconds to the first token and tokens a second after it, of each repetition whose tokens
/// could be chosen.
fn time(engine: &mut Engine, inputs: &Inputs) -> Result<(Vec<f64>, Vec<f64>), ValidateError> {
    let (mut first_token_ms, mut tokens_per_s) = (Vec::new(), Vec::new());
    let sizes = inputs.sizes;
    // The first one warms up; on the emulator it takes the pages of the cache alone.
    for repetition in 0..=sizes.repetitions {
        let new = if repetition == 0 { 1 } else { sizes.new };
        // No stop tokens: all have the same length.
        let request = Request {
            prompt: inputs.prompt(repetition),
            max_new_tokens: Some(new),
            ..Request::default()
        };
        let (start, mut times) = (Instant::now(), Vec::with_capacity(new));
        let end = generate(engine, request, |_| times.push(start.elapsed().as_secs_f64()))?;
        if let ([first, .., last], Ok(_), true) = (&times[..], end, repetition > 0) {
            first_token_ms.push(1e3 * first);
            tokens_per_s.push((times.len() - 1) as f64 / (last - first));
        }
    }
    Ok((first_token_ms, tokens_per_s))
}

/// The logits from which `chosen` was chosen, after `prompt`.
fn force(engine: &mut Engine, prompt: &[u32], chosen: &[u32]) -> Result<Vec<f32>, ValidateError> {
    let read = &chosen[..chosen.len().saturating_sub(1)];
    let mut logits = engine.logits(&[prompt, read].concat())?;
    let vocab_size = engine.model().config().vocab_size;
    logits.drain(..(prompt.len() - 1) * vocab_size);
    Ok(logits)
}
