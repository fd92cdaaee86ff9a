//! The bodies of requests: what all have in common here, what is an endpoint's own in its module.
//!
//! Source: <https://platform.openai.com/docs/api-reference>; `top_k`, `min_p`,
//! `repetition_penalty`, `stop_token_ids`, `ignore_eos`, `min_tokens`, `add_special_tokens`,
//! `add_generation_prompt`, `return_token_ids`, `cache_salt` and `priority` are vLLM's.

mod chat;
mod completion;
mod embedding;
mod items;
mod message;
mod messages;
mod native;
mod ollama;
mod options;
mod prompts;
mod rank;
mod response;
mod response_tools;
mod samplers;
mod settings;
mod thinking;
mod truncate;
mod turns;

pub(super) use chat::{ChatRequest, Conversation};
pub(super) use completion::CompletionRequest;
pub(super) use embedding::{EmbeddingRequest, Encoding, default_pooling};
pub(super) use messages::MessagesRequest;
pub(super) use native::{InfillRequest, NativeOptions, NativeRequest, encode, take_mixed};
pub(super) use ollama::{Input, OllamaEmbed, OllamaRequest, keep_alive_of, take_name};
pub(super) use prompts::Prompt;
pub(super) use rank::{RankOptions, RerankRequest, ScoreRequest};
pub(super) use response::ResponseRequest;
pub(super) use settings::default_settings;

use super::error::ApiError;
use super::fields::{Fields, is_off};
use super::form::Form;
use super::lines::LineLimits;
use crate::Model;
use crate::engine::{Constraint, Request, SamplerChain, Sampling, SamplingError};
use crate::grammar::Grammar;
use crate::text::answer::Reasoning;
use rand::RngExt;
use serde::Deserialize;
use serde_json::{Number, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The bias of a token that may not come.
const NEVER: f32 = -100.0;
/// OpenAI's defaults, for what neither the request nor the model says.
const TEMPERATURE: f32 = 1.0;
/// Stop strings of a request at most: every token is searched for each.
const MAX_STOPS: usize = 16;
/// Most likely tokens beside a token at most, as OpenAI has it.
const MAX_TOP_LOGPROBS: usize = 20;

/// Whose API a request is of: what it leaves out has that one's default, after the model's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    LlamaCpp,
    Ollama,
}

impl Dialect {
    fn defaults(self) -> Sampling {
        match self {
            Dialect::OpenAi => Sampling { temperature: TEMPERATURE, ..Sampling::default() },
            Dialect::LlamaCpp => Sampling::LLAMA_CPP,
            Dialect::Ollama => Sampling { top_p: 0.9, min_p: 0.0, ..Sampling::LLAMA_CPP },
        }
    }
}

/// What a request asks of its answers, whatever its prompt is.
#[derive(Debug)]
pub(super) struct Params {
    pub model: Option<String>,
    pub sampling: Sampling,
    /// Samplers of the host.
    pub chain: Option<Arc<SamplerChain>>,
    is_seeded: bool,
    pub max_new_tokens: Option<usize>,
    pub stop: Vec<String>,
    stop_token_ids: Vec<u32>,
    ignore_eos: bool,
    pub min_tokens: usize,
    /// Most likely tokens beside each token of an answer, if log-probabilities are asked for.
    pub logprobs: Option<usize>,
    /// Whether they are of the prompt too.
    pub scores_prompt: bool,
    /// Answers to each prompt.
    pub n: usize,
    pub stream: bool,
    pub include_usage: bool,
    pub return_token_ids: bool,
    /// The form of the answers; its constraint is made before [`Params::requests`].
    pub form: Option<Form>,
    pub grammar: Option<Arc<Grammar>>,
    pub constraint: Option<Arc<dyn Constraint>>,
    /// Limits of the lines of the answers.
    pub lines: Option<LineLimits>,
    cache_salt: Option<String>,
    /// Lower is served first.
    pub priority: i32,
    /// Tokens that the context has to have room for.
    pub min_context: Option<usize>,
    /// Tokens of the reasoning at most.
    pub thinking_budget: Option<usize>,
    /// How it is set apart, where the request says so.
    pub reasoning: Option<Reasoning>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Several(Vec<String>),
}

impl Params {
    fn take(fields: &mut Fields, model: &Arc<Model>, dialect: Dialect) -> Result<Self, ApiError> {
        options::check(fields)?;
        let name = fields.take::<String>("model")?;
        let n = fields.take::<u32>("n")?.unwrap_or(1) as usize;
        if n == 0 {
            return Err(ApiError::param("n", "it has to be 1 or more"));
        }
        fields.neutral("best_of", |value| value.as_u64() == Some(n as u64))?;
        let (sampling, is_seeded) = take_sampling(fields, model, dialect)?;
        let (sampling, chain) = samplers::take(fields, sampling, dialect, model)?;
        let stream = fields.take("stream")?.unwrap_or(false);
        let stop_token_ids = fields.take::<Vec<u32>>("stop_token_ids")?.unwrap_or_default();
        Ok(Params {
            model: name,
            sampling,
            chain,
            is_seeded,
            max_new_tokens: take_max_tokens(fields)?,
            stop: take_stop(fields, "stop")?,
            stop_token_ids,
            ignore_eos: fields.take("ignore_eos")?.unwrap_or(false),
            min_tokens: fields.take::<u32>("min_tokens")?.unwrap_or(0) as usize,
            logprobs: None,
            scores_prompt: false,
            n,
            stream,
            include_usage: take_include_usage(fields, stream)?,
            return_token_ids: fields.take("return_token_ids")?.unwrap_or(false),
            form: Form::take(fields)?,
            grammar: None,
            constraint: None,
            lines: None,
            cache_salt: take_cache_salt(fields)?,
            priority: fields.take("priority")?.unwrap_or_default(),
            min_context: fields.take::<u32>("num_ctx")?.map(|tokens| tokens as usize),
            thinking_budget: thinking::take_budget(fields)?,
            reasoning: thinking::take_reading(fields)?,
        })
    }

    /// Ends answers at these tokens too, as at the model's own.
    pub fn stop_at(&mut self, tokens: &[u32]) {
        if !self.ignore_eos {
            self.stop_token_ids.extend(tokens);
        }
    }

    /// The requests for the answers to one prompt.
    pub fn requests(&self, model: &Model, prompt: &[u32]) -> Vec<Request> {
        let mut stop_tokens = self.stop_token_ids.clone();
        if !self.ignore_eos {
            stop_tokens.extend(model.stop_tokens());
        }
        let request = |index: usize| {
            // Answers of one seed would all be the same.
            let seed = match self.is_seeded {
                true => self.sampling.seed.wrapping_add(index as u64),
                false => rand::rng().random(),
            };
            Request {
                prompt: prompt.to_vec(),
                max_new_tokens: self.max_new_tokens,
                sampling: Sampling { seed, ..self.sampling.clone() },
                chain: self.chain.clone(),
                stop_tokens: stop_tokens.clone(),
                min_tokens: self.min_tokens,
                logprobs: self.logprobs,
                prompt_logprobs: self.logprobs.filter(|_| self.scores_prompt),
                constraint: self.constraint.clone(),
                cache_salt: self.cache_salt.clone(),
                priority: self.priority,
                ..Request::default()
            }
        };
        (0..self.n).map(request).collect()
    }
}

/// The request's values, then the model's, then the API's; and whether there is a seed.
fn take_sampling(
    fields: &mut Fields,
    model: &Model,
    dialect: Dialect,
) -> Result<(Sampling, bool), ApiError> {
    let default = model.generation_config().sampling(dialect.defaults());
    // llama.cpp's and vLLM's -1 is a random one.
    let seed = fields.take::<Number>("seed")?.filter(|seed| seed.as_i64() != Some(-1));
    let seed = seed.map(|seed| {
        let signed = || seed.as_i64().map(|seed| seed as u64);
        seed.as_u64().or_else(signed).ok_or_else(|| ApiError::param("seed", "it has to be whole"))
    });
    let seed = seed.transpose()?;
    // vLLM's -1 is all, as is 0.
    let top_k = match fields.take::<i64>("top_k")? {
        Some(-1) => Some(0),
        Some(top_k) => Some(
            usize::try_from(top_k)
                .map_err(|_| ApiError::param("top_k", "it has to be 1 or more, or -1 for all"))?,
        ),
        None => None,
    };
    let sampling = Sampling {
        temperature: fields.take("temperature")?.unwrap_or(default.temperature),
        top_k: top_k.unwrap_or(default.top_k),
        top_p: fields.take("top_p")?.unwrap_or(default.top_p),
        min_p: fields.take("min_p")?.unwrap_or(default.min_p),
        repetition_penalty: fields
            .take("repetition_penalty")?
            .unwrap_or(default.repetition_penalty),
        presence_penalty: fields.take("presence_penalty")?.unwrap_or(default.presence_penalty),
        frequency_penalty: fields.take("frequency_penalty")?.unwrap_or(default.frequency_penalty),
        logit_bias: take_logit_bias(fields, model)?,
        seed: seed.unwrap_or_default(),
    };
    sampling.check(model.config().vocab_size).map_err(|error| {
        let name = match error {
            SamplingError::Value { name, .. } => name.replace([' ', '-'], "_"),
            _ => "logit_bias".to_owned(),
        };
        ApiError::invalid(error.to_string()).with_param(&name)
    })?;
    Ok((sampling, seed.is_some()))
}

fn take_cache_salt(fields: &mut Fields) -> Result<Option<String>, ApiError> {
    match fields.take::<String>("cache_salt")? {
        Some(salt) if salt.is_empty() => {
            Err(ApiError::param("cache_salt", "an empty text keeps nobody apart"))
        }
        salt => Ok(salt),
    }
}

/// OpenAI's object of ids and biases, or llama.cpp's list of pairs, in which `false` rules a token
/// out.
#[derive(Deserialize)]
#[serde(untagged)]
enum LogitBias {
    Object(BTreeMap<String, f32>),
    Pairs(Vec<(Biased, Bias)>),
}

/// A token, or a text all of whose tokens are meant.
#[derive(Deserialize)]
#[serde(untagged)]
enum Biased {
    Id(u32),
    Text(String),
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Bias {
    Value(f32),
    Never(bool),
}

fn take_logit_bias(fields: &mut Fields, model: &Model) -> Result<Vec<(u32, f32)>, ApiError> {
    let (name, kinds) = ("logit_bias", "it has to be an object of token ids and numbers");
    let Some(biases) = fields.take::<Value>(name)? else { return Ok(Vec::new()) };
    match serde_json::from_value(biases).map_err(|_| ApiError::param(name, kinds))? {
        LogitBias::Object(biases) => {
            let bias = |(id, bias): (String, f32)| match id.parse() {
                Ok(id) => Ok((id, bias)),
                Err(_) => Err(ApiError::param(name, format!("`{id}` is no token id"))),
            };
            biases.into_iter().map(bias).collect()
        }
        LogitBias::Pairs(pairs) => {
            let mut biases = Vec::new();
            for (biased, bias) in pairs {
                let bias = match bias {
                    Bias::Value(bias) => bias,
                    Bias::Never(false) => NEVER,
                    Bias::Never(true) => return Err(ApiError::param(name, kinds)),
                };
                match (biased, model.text()) {
                    (Biased::Id(id), _) => biases.push((id, bias)),
                    (Biased::Text(text), Some(model)) => {
                        let ids = model.tokenizer.encode(&text, false)?;
                        biases.extend(ids.into_iter().map(|id| (id, bias)));
                    }
                    (Biased::Text(_), None) => return Err(ApiError::param(name, kinds)),
                }
            }
            Ok(biases)
        }
    }
}

/// The limit of new tokens. llama.cpp's and Ollama's -1 and -2 (as many as the context takes) are
/// none.
fn take_max_tokens(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let mut limit = None;
    for name in ["max_tokens", "max_completion_tokens"] {
        limit = match fields.take::<i64>(name)? {
            None => limit,
            Some(-2 | -1) => None,
            Some(max) => Some(usize::try_from(max).map_err(|_| {
                ApiError::param(name, "it has to be 0 or more, or -1 for no limit")
            })?),
        };
    }
    Ok(limit)
}

fn take_stop(fields: &mut Fields, name: &str) -> Result<Vec<String>, ApiError> {
    let stops = match fields.take::<Value>(name)?.map(serde_json::from_value::<Stop>) {
        None => Vec::new(),
        Some(Ok(Stop::One(stop))) => vec![stop],
        Some(Ok(Stop::Several(stops))) => stops,
        Some(Err(_)) => {
            return Err(ApiError::param(name, "it has to be a text or a list of them"));
        }
    };
    if stops.len() > MAX_STOPS {
        let what = format!("{} texts, at most {MAX_STOPS} are possible", stops.len());
        return Err(ApiError::param(name, what));
    }
    if stops.iter().any(String::is_empty) {
        return Err(ApiError::param(name, "an empty text would end every answer"));
    }
    Ok(stops)
}

/// How many most likely tokens `name` asks for.
fn take_top_logprobs(fields: &mut Fields, name: &str) -> Result<Option<usize>, ApiError> {
    let num_top = fields.take::<u32>(name)?.map(|num_top| num_top as usize);
    match num_top.filter(|&num_top| num_top > MAX_TOP_LOGPROBS) {
        Some(_) => Err(ApiError::param(name, format!("it has to be 0 to {MAX_TOP_LOGPROBS}"))),
        None => Ok(num_top),
    }
}

fn take_include_usage(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(options) = fields.take::<Value>("stream_options")? else { return Ok(false) };
    if !stream {
        return Err(ApiError::param("stream_options", "only with stream: true"));
    }
    let mut options = Fields::of(options, "stream_options")?;
    options.neutral("continuous_usage_stats", is_off)?;
    options.ignore(&["include_obfuscation"]);
    let include_usage = options.take("include_usage")?.unwrap_or(false);
    options.finish()?;
    Ok(include_usage)
}

#[cfg(test)]
mod tests;
