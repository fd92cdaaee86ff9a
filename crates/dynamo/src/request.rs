//! Dynamo's request as one of the engine.

use crate::error::invalid;
use dynamo_backend_common::{
    DynamoError, GuidedDecodingOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use halfwarp::{Constraint, Grammar, GrammarCompiler, Model, Request, Sampling};
use rand::RngExt;
use serde_json::{Value, json};
use std::sync::Arc;

/// OpenAI's, where neither the request nor the model names one.
const TEMPERATURE: f32 = 1.0;

/// A request of `model`.
///
/// # Errors
/// `InvalidArgument` for what the engine does not have, or cannot make a grammar of.
pub fn to_engine(
    model: &Model,
    request: &PreprocessedRequest,
    grammars: Option<&GrammarCompiler>,
) -> Result<Request, DynamoError> {
    reject_unsupported(request)?;
    let stop = &request.stop_conditions;
    let routing = request.routing.as_ref();
    Ok(Request {
        prompt: request.token_ids.to_vec(),
        max_new_tokens: stop.max_tokens.map(|max| max as usize),
        sampling: sampling(model, &request.sampling_options)?,
        stop_tokens: stop_tokens(model, stop, &request.eos_token_ids),
        min_tokens: stop.min_tokens.unwrap_or_default() as usize,
        logprobs: request.output_options.logprobs.map(|num_top| num_top as usize),
        constraint: match &request.sampling_options.guided_decoding {
            Some(guided) => constraint(guided, grammars)?,
            None => None,
        },
        cache_salt: routing.and_then(|hints| hints.cache_namespace.clone()),
        // Dynamo's highest is the most urgent one, the engine's lowest.
        priority: routing.and_then(|hints| hints.priority).unwrap_or_default().saturating_neg(),
        ..Request::default()
    })
}

/// What would change the answer, and is not there.
fn reject_unsupported(request: &PreprocessedRequest) -> Result<(), DynamoError> {
    let sampling = &request.sampling_options;
    let is_several = |count: Option<u8>| count.is_some_and(|count| count > 1);
    let unsupported = [
        ("n above 1", is_several(sampling.n)),
        ("best_of above 1", is_several(sampling.best_of)),
        ("beam search", sampling.use_beam_search == Some(true)),
        ("max_thinking_tokens", request.stop_conditions.max_thinking_tokens.is_some()),
        ("prompt_logprobs", request.output_options.prompt_logprobs.is_some()),
        ("prompt_embeds", request.prompt_embeds.is_some()),
        ("images, audio and video", request.multi_modal_data.is_some()),
        ("LoRA", request.routing.as_ref().is_some_and(|hints| hints.lora_name.is_some())),
        ("a prefill by another worker", request.prefill_result.is_some()),
    ];
    match unsupported.into_iter().find(|&(_, is_asked_for)| is_asked_for) {
        Some((what, _)) => Err(invalid(format!("halfwarp does not support {what}"))),
        None => Ok(()),
    }
}

/// The request's values, then the model's, then OpenAI's.
fn sampling(model: &Model, options: &SamplingOptions) -> Result<Sampling, DynamoError> {
    let defaults = Sampling { temperature: TEMPERATURE, ..Sampling::default() };
    let default = model.generation_config().sampling(defaults);
    let top_k = match options.top_k {
        // -1 is all, as is 0.
        Some(-1) => 0,
        Some(top_k) => usize::try_from(top_k)
            .map_err(|_| invalid(format!("top_k is {top_k}: it has to be 1 or more, or -1")))?,
        None => default.top_k,
    };
    Ok(Sampling {
        temperature: options.temperature.unwrap_or(default.temperature),
        top_k,
        top_p: options.top_p.unwrap_or(default.top_p),
        min_p: options.min_p.unwrap_or(default.min_p),
        repetition_penalty: options.repetition_penalty.unwrap_or(default.repetition_penalty),
        presence_penalty: options.presence_penalty.unwrap_or(default.presence_penalty),
        frequency_penalty: options.frequency_penalty.unwrap_or(default.frequency_penalty),
        logit_bias: default.logit_bias,
        seed: options.seed.map_or_else(|| rand::rng().random(), |seed| seed as u64),
    })
}

/// Stop tokens of the request, and those of the model unless they are to be ignored.
fn stop_tokens(model: &Model, stop: &StopConditions, eos: &[u32]) -> Vec<u32> {
    let asked = [&stop.stop_token_ids, &stop.stop_token_ids_visible];
    let mut tokens: Vec<u32> = asked.into_iter().flatten().flatten().copied().collect();
    if stop.ignore_eos != Some(true) {
        let hidden = stop.stop_token_ids_hidden.as_deref().unwrap_or_default();
        tokens.extend(hidden.iter().chain(eos).chain(model.stop_tokens()));
    }
    tokens.sort_unstable();
    tokens.dedup();
    tokens
}

fn constraint(
    guided: &GuidedDecodingOptions,
    grammars: Option<&GrammarCompiler>,
) -> Result<Option<Arc<dyn Constraint>>, DynamoError> {
    let GuidedDecodingOptions {
        json: schema,
        regex,
        choice,
        grammar,
        // Whose library compiles it; there is one.
        backend: _,
        whitespace_pattern,
        structural_tag,
    } = guided;
    if structural_tag.is_some() || whitespace_pattern.is_some() {
        return Err(invalid("halfwarp does not support structural tags and whitespace patterns"));
    }
    let compiler = || grammars.ok_or_else(|| invalid("the model's answers can have no form"));
    let compiled = match (schema, regex, choice, grammar) {
        (None, None, None, None) => return Ok(None),
        (Some(Value::String(schema)), None, None, None) => compiler()?.json_schema(schema),
        (Some(schema), None, None, None) => compiler()?.json_schema(&schema.to_string()),
        (None, Some(regex), None, None) => compiler()?.regex(regex),
        (None, None, Some(texts), None) => compiler()?.lark(&one_of(texts)?),
        (None, None, None, Some(grammar)) => compiler()?.lark(grammar),
        _ => return Err(invalid("an answer can have one form only")),
    };
    let grammar: Grammar = compiled.map_err(|error| invalid(error.to_string()))?;
    Ok(Some(Arc::new(grammar)))
}

/// A grammar of one of `texts`. A text of Lark is one of JSON.
fn one_of(texts: &[String]) -> Result<String, DynamoError> {
    if texts.is_empty() {
        return Err(invalid("a choice of no text"));
    }
    let texts: Vec<String> = texts.iter().map(|text| json!(text).to_string()).collect();
    Ok(format!("start: {}", texts.join(" | ")))
}

#[cfg(test)]
mod tests;
