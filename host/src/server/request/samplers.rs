//! Samplers by llama.cpp's names. Those that the device has, in its order, go there; any other chain is the host's.

use super::Dialect;
use crate::Model;
use crate::engine::{Dry, Mirostat, Penalties, SamplerChain, SamplerStep, Sampling};
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// Names of samplers, their other names, and the letters that llama.cpp has for them.
const NAMES: [(&str, &[&str], char); 11] = [
    ("penalties", &[], 'e'),
    ("dry", &[], 'd'),
    ("top_n_sigma", &["top-n-sigma"], 's'),
    ("top_k", &["top-k"], 'k'),
    ("typ_p", &["typical_p", "typical-p", "typical", "typ-p", "typ"], 'y'),
    ("top_p", &["top-p", "nucleus"], 'p'),
    ("min_p", &["min-p"], 'm'),
    ("xtc", &[], 'x'),
    ("temperature", &["temp"], 't'),
    ("infill", &[], 'i'),
    ("adaptive_p", &["adaptive-p"], 'a'),
];
/// llama.cpp's order.
const ORDER: [&str; 9] =
    ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"];
/// The samplers of the device, in its order.
const DEVICE: [&str; 4] = ["top_k", "top_p", "min_p", "temperature"];

/// llama.cpp's defaults.
const LAST_N: usize = 64;
const DRY_BASE: f32 = 1.75;
const DRY_ALLOWED_LENGTH: u32 = 2;
const DRY_BREAKERS: [&str; 4] = ["\n", ":", "\"", "*"];
const XTC_THRESHOLD: f32 = 0.1;
const MIROSTAT: (f32, f32) = (5.0, 0.1);

/// Breakers of DRY at most, and bytes and tokens of one, as in llama.cpp.
const MAX_BREAKERS: usize = 32;
const MAX_BREAKER_BYTES: usize = 40;
const MAX_BREAKER_TOKENS: usize = 20;

#[derive(Deserialize)]
#[serde(untagged)]
enum Names {
    Names(Vec<String>),
    Letters(String),
}

/// Takes the fields of samplers that [`Sampling`] has no place for. Returns what is the device's, and the host's chain
/// where the request needs one.
pub(super) fn take(
    fields: &mut Fields,
    sampling: Sampling,
    dialect: Dialect,
    model: &Arc<Model>,
) -> Result<(Sampling, Option<Arc<SamplerChain>>), ApiError> {
    let order = take_order(fields)?;
    let mut steps = take_steps(fields, &sampling, dialect, model)?;
    let range = take_number(fields, "dynatemp_range")?.unwrap_or(0.0).max(0.0);
    let exponent = take_number(fields, "dynatemp_exponent")?.unwrap_or(1.0);
    let mirostat = take_mirostat(fields)?;
    // Without a window the penalties are the device's, unless the order leaves them out.
    let are_left_out = order.as_ref().is_some_and(|order| !order.contains(&"penalties"));
    let sampling = match steps.contains_key("penalties") || are_left_out {
        true => without_penalties(sampling),
        false => sampling,
    };
    let temperature = |range: f32| SamplerStep::Temperature {
        value: sampling.temperature.into(),
        range: range.into(),
        exponent: exponent.into(),
    };
    if mirostat.is_some() {
        // It comes after the temperature alone.
        let chain = SamplerChain { steps: vec![temperature(0.0)], mirostat };
        return Ok((sampling, Some(Arc::new(chain))));
    }
    let order = order.unwrap_or_else(|| ORDER.to_vec());
    let needs_host = range > 0.0 || order.iter().any(|name| steps.contains_key(name));
    steps.insert("temperature", temperature(range));
    steps.insert("infill", SamplerStep::Infill(Arc::clone(model) as _));
    let Sampling { top_k, top_p, min_p, .. } = sampling;
    let own = [
        ("top_k", (top_k > 0).then_some(SamplerStep::TopK(top_k))),
        ("top_p", (top_p < 1.0).then(|| SamplerStep::TopP(top_p.into()))),
        ("min_p", (min_p > 0.0).then(|| SamplerStep::MinP(min_p.into()))),
    ];
    steps.extend(own.into_iter().filter_map(|(name, step)| Some((name, step?))));
    let order: Vec<&str> = order.into_iter().filter(|name| steps.contains_key(name)).collect();
    if !needs_host && let Some(sampling) = on_device(&order, &sampling) {
        return Ok((sampling, None));
    }
    let steps = order.iter().map(|name| steps[name].clone()).collect();
    Ok((sampling, Some(Arc::new(SamplerChain { steps, mirostat: None }))))
}

/// The steps that only the host has, by their names.
fn take_steps(
    fields: &mut Fields,
    sampling: &Sampling,
    dialect: Dialect,
    model: &Model,
) -> Result<HashMap<&'static str, SamplerStep>, ApiError> {
    let mut steps = HashMap::new();
    let window = take_window(fields, "repeat_last_n")?;
    if let Some(penalties) = penalties(sampling, window, dialect) {
        steps.insert("penalties", SamplerStep::Penalties(penalties));
    }
    if let Some(dry) = take_dry(fields, model)? {
        steps.insert("dry", SamplerStep::Dry(dry));
    }
    if let Some(n) = take_number(fields, "top_n_sigma")?.filter(|&n| n > 0.0) {
        steps.insert("top_n_sigma", SamplerStep::TopNSigma(n.into()));
    }
    fields.rename("typical_p", "typ_p")?;
    if let Some(p) = take_share(fields, "typ_p")?.filter(|&p| p < 1.0) {
        steps.insert("typ_p", SamplerStep::Typical(p.into()));
    }
    let probability = take_share(fields, "xtc_probability")?.unwrap_or(0.0);
    let threshold = take_number(fields, "xtc_threshold")?.unwrap_or(XTC_THRESHOLD);
    if probability > 0.0 && threshold <= 0.5 {
        let (probability, threshold) = (probability.into(), threshold.into());
        steps.insert("xtc", SamplerStep::Xtc { probability, threshold });
    }
    Ok(steps)
}

/// The samplers of `order` where the device has them, in its own order.
fn on_device(order: &[&str], sampling: &Sampling) -> Option<Sampling> {
    let place = |name: &&str| DEVICE.iter().position(|device| device == name);
    let places = order.iter().map(place).collect::<Option<Vec<_>>>()?;
    let has = |name: &str| order.contains(&name);
    places.is_sorted_by(|a, b| a < b).then(|| Sampling {
        temperature: if has("temperature") { sampling.temperature } else { 1.0 },
        top_k: if has("top_k") { sampling.top_k } else { 0 },
        top_p: if has("top_p") { sampling.top_p } else { 1.0 },
        min_p: if has("min_p") { sampling.min_p } else { 0.0 },
        ..sampling.clone()
    })
}

fn without_penalties(sampling: Sampling) -> Sampling {
    Sampling { repetition_penalty: 1.0, presence_penalty: 0.0, frequency_penalty: 0.0, ..sampling }
}

/// The samplers that `samplers` names, in its order.
fn take_order(fields: &mut Fields) -> Result<Option<Vec<&'static str>>, ApiError> {
    let unknown = |name: &str| {
        let names: Vec<&str> = NAMES.iter().map(|(name, ..)| *name).collect();
        ApiError::param("samplers", format!("there is no {name:?}, but {}", names.join(", ")))
    };
    let kinds = "it has to be a list of names or a text of llama.cpp's letters";
    let Some(given) = fields.take::<Value>("samplers")? else { return Ok(None) };
    let given = serde_json::from_value(given).map_err(|_| ApiError::param("samplers", kinds))?;
    let order: Vec<&str> = match given {
        Names::Names(given) => given
            .iter()
            .map(|given| {
                let is_it =
                    |name: &str, others: &[&str]| name == given || others.contains(&&**given);
                let found = NAMES.iter().find(|(name, others, _)| is_it(name, others));
                found.map(|(name, ..)| *name).ok_or_else(|| unknown(given))
            })
            .collect::<Result<_, _>>()?,
        Names::Letters(letters) => letters
            .chars()
            .map(|letter| {
                let found = NAMES.iter().find(|(_, _, own)| *own == letter);
                found.map(|(name, ..)| *name).ok_or_else(|| unknown(&letter.to_string()))
            })
            .collect::<Result<_, _>>()?,
    };
    if order.len() > NAMES.len() {
        return Err(ApiError::param("samplers", "a sampler can be there once"));
    }
    Ok(Some(order))
}

/// The penalties of a window, where there are any and OpenAI's, which look back on the answer alone, are not meant.
fn penalties(sampling: &Sampling, window: Option<usize>, dialect: Dialect) -> Option<Penalties> {
    let &Sampling { repetition_penalty, presence_penalty, frequency_penalty, .. } = sampling;
    let default = (dialect != Dialect::OpenAi).then_some(LAST_N);
    let last_n = window.or(default)?;
    let is_neutral = [repetition_penalty, presence_penalty, frequency_penalty] == [1.0, 0.0, 0.0];
    // Of all tokens the device has the first one.
    let is_devices = last_n == usize::MAX && [presence_penalty, frequency_penalty] == [0.0, 0.0];
    (!is_neutral && !is_devices).then(|| Penalties {
        last_n,
        repetition: repetition_penalty.into(),
        presence: presence_penalty.into(),
        frequency: frequency_penalty.into(),
    })
}

/// Tokens to look back on; -1 is all.
fn take_window(fields: &mut Fields, name: &str) -> Result<Option<usize>, ApiError> {
    let Some(tokens) = fields.take::<i64>(name)? else { return Ok(None) };
    match (tokens, usize::try_from(tokens)) {
        (-1, _) => Ok(Some(usize::MAX)),
        (_, Ok(tokens)) => Ok(Some(tokens)),
        _ => Err(ApiError::param(name, "it has to be 0 or more, or -1 for all")),
    }
}

fn take_number(fields: &mut Fields, name: &str) -> Result<Option<f32>, ApiError> {
    match fields.take::<f32>(name)? {
        Some(number) if !number.is_finite() => Err(ApiError::param(name, "it has to be finite")),
        number => Ok(number),
    }
}

fn take_share(fields: &mut Fields, name: &str) -> Result<Option<f32>, ApiError> {
    match take_number(fields, name)? {
        Some(share) if !(0.0..=1.0).contains(&share) => {
            Err(ApiError::param(name, "it has to be 0 to 1"))
        }
        share => Ok(share),
    }
}

fn take_mirostat(fields: &mut Fields) -> Result<Option<Mirostat>, ApiError> {
    let version = fields.take::<u8>("mirostat")?.unwrap_or(0);
    let tau = take_number(fields, "mirostat_tau")?.unwrap_or(MIROSTAT.0);
    let eta = take_number(fields, "mirostat_eta")?.unwrap_or(MIROSTAT.1);
    match version {
        0 => Ok(None),
        1 | 2 => Ok(Some(Mirostat { version, tau: tau.into(), eta: eta.into() })),
        _ => Err(ApiError::param("mirostat", "it has to be 0, 1 or 2")),
    }
}

fn take_dry(fields: &mut Fields, model: &Model) -> Result<Option<Dry>, ApiError> {
    let multiplier = take_number(fields, "dry_multiplier")?.unwrap_or(0.0);
    let base = take_number(fields, "dry_base")?.unwrap_or(DRY_BASE);
    let allowed_length = fields.take::<u32>("dry_allowed_length")?.unwrap_or(DRY_ALLOWED_LENGTH);
    let last_n = take_window(fields, "dry_penalty_last_n")?.unwrap_or(LAST_N);
    let texts = fields.take::<Vec<String>>("dry_sequence_breakers")?;
    if multiplier == 0.0 || base < 1.0 || last_n == 0 {
        return Ok(None);
    }
    let texts = texts.unwrap_or_else(|| DRY_BREAKERS.map(str::to_owned).to_vec());
    if texts.len() > MAX_BREAKERS {
        let what = format!("{} texts, at most {MAX_BREAKERS} are possible", texts.len());
        return Err(ApiError::param("dry_sequence_breakers", what));
    }
    Ok(Some(Dry {
        multiplier: multiplier.into(),
        base: base.into(),
        allowed_length: allowed_length as usize,
        last_n,
        breakers: breakers(&texts, model)?,
    }))
}

/// The tokens in which one of `texts` is, or begins and with which others it goes on.
fn breakers(texts: &[String], model: &Model) -> Result<HashMap<u32, Vec<Vec<u32>>>, ApiError> {
    let mut breakers: HashMap<u32, Vec<Vec<u32>>> = HashMap::new();
    let Some(text) = model.text() else { return Ok(breakers) };
    let texts: Vec<&str> = texts
        .iter()
        .map(|text| &text[..text.floor_char_boundary(MAX_BREAKER_BYTES)])
        .filter(|text| !text.is_empty())
        .collect();
    // The tails by what is left of which text, most of which come again and again.
    let mut tails: HashMap<&str, Vec<u32>> = HashMap::new();
    for id in 0..text.tokenizer.vocab_size() as u32 {
        let Some((word, _)) = text.tokenizer.token_bytes(id) else { continue };
        for breaker in &texts {
            for overlap in overlaps(&word, breaker.as_bytes()) {
                let rest = breaker.get(overlap..).unwrap_or_default();
                if !tails.contains_key(rest) {
                    // Some tokenizers begin every text with a space.
                    let mut tail = match rest {
                        "" => Vec::new(),
                        rest => text.tokenizer.encode(rest, false)?,
                    };
                    tail.truncate(MAX_BREAKER_TOKENS);
                    tails.insert(rest, tail);
                }
                let known = breakers.entry(id).or_default();
                if !known.contains(&tails[rest]) {
                    known.push(tails[rest].clone());
                }
            }
        }
    }
    Ok(breakers)
}

/// How many bytes of `breaker` a word has: all of them, or at its end the first ones.
fn overlaps(word: &[u8], breaker: &[u8]) -> Vec<usize> {
    if word.windows(breaker.len()).any(|window| window == breaker) {
        return vec![breaker.len()];
    }
    let longest = word.len().min(breaker.len() - 1);
    (1..=longest).filter(|&len| word.ends_with(&breaker[..len])).collect()
}
