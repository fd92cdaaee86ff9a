//! `generation_settings`: the parameters of a request as they were understood, under llama.cpp's names.

use super::{Dialect, Params};
use crate::Model;
use crate::engine::{SamplerChain, SamplerStep, Sampling};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// The settings of a request that says nothing.
pub(in crate::server) fn default_settings(
    model: &Arc<Model>,
) -> Result<Map<String, Value>, ApiError> {
    let mut fields = Fields::of(json!({}), "")?;
    Ok(settings(&Params::take(&mut fields, model, Dialect::LlamaCpp)?, 0))
}

/// The settings of a request for so many probabilities of each token.
pub(super) fn settings(params: &Params, num_probs: usize) -> Map<String, Value> {
    let Sampling { temperature, top_k, top_p, min_p, seed, .. } = params.sampling;
    let Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = params.sampling;
    let limit = params.max_new_tokens.map_or(json!(-1), Value::from);
    let mut settings = off();
    settings.extend(
        [
            ("seed", json!(seed)),
            ("temperature", json!(temperature)),
            ("top_k", json!(top_k)),
            ("top_p", json!(top_p)),
            ("min_p", json!(min_p)),
            ("repeat_penalty", json!(repetition_penalty)),
            ("presence_penalty", json!(presence_penalty)),
            ("frequency_penalty", json!(frequency_penalty)),
            ("stop", json!(params.stop)),
            ("max_tokens", limit.clone()),
            ("n_predict", limit),
            ("ignore_eos", params.ignore_eos.into()),
            ("stream", params.stream.into()),
            ("n_probs", num_probs.into()),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    if let Some(chain) = &params.chain {
        add_chain(&mut settings, chain);
    }
    settings
}

/// What is off unless a chain has it.
fn off() -> Map<String, Value> {
    let settings = json!({
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": 1.0,
        "repeat_last_n": 64,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "n_keep": 0,
        "n_discard": 0,
        "min_keep": 0,
        "samplers": ["top_k", "top_p", "min_p", "temperature"],
    });
    match settings {
        Value::Object(settings) => settings,
        _ => Map::new(),
    }
}

fn add_chain(settings: &mut Map<String, Value>, chain: &SamplerChain) {
    let window = |tokens: usize| json!(i64::try_from(tokens).unwrap_or(-1));
    let mut set = |name: &str, value: Value| drop(settings.insert(name.to_owned(), value));
    let mut names = Vec::new();
    for step in &chain.steps {
        names.push(match step {
            SamplerStep::Penalties(penalties) => {
                set("repeat_last_n", window(penalties.last_n));
                set("repeat_penalty", penalties.repetition.into());
                set("presence_penalty", penalties.presence.into());
                set("frequency_penalty", penalties.frequency.into());
                "penalties"
            }
            SamplerStep::Dry(dry) => {
                set("dry_multiplier", dry.multiplier.into());
                set("dry_base", dry.base.into());
                set("dry_allowed_length", dry.allowed_length.into());
                set("dry_penalty_last_n", window(dry.last_n));
                "dry"
            }
            SamplerStep::TopNSigma(n) => {
                set("top_n_sigma", (*n).into());
                "top_n_sigma"
            }
            SamplerStep::TopK(_) => "top_k",
            SamplerStep::Typical(p) => {
                set("typical_p", (*p).into());
                "typ_p"
            }
            SamplerStep::TopP(_) => "top_p",
            SamplerStep::MinP(_) => "min_p",
            SamplerStep::Xtc { probability, threshold } => {
                set("xtc_probability", (*probability).into());
                set("xtc_threshold", (*threshold).into());
                "xtc"
            }
            SamplerStep::Temperature { range, exponent, .. } => {
                set("dynatemp_range", (*range).into());
                set("dynatemp_exponent", (*exponent).into());
                "temperature"
            }
            SamplerStep::Infill(_) => "infill",
        });
    }
    if let Some(mirostat) = chain.mirostat {
        set("mirostat", mirostat.version.into());
        set("mirostat_tau", mirostat.tau.into());
        set("mirostat_eta", mirostat.eta.into());
    }
    set("samplers", names.into());
}
