//! How a model's authors want it sampled: `generation_config.json`, or the `general.sampling.*` keys of a GGUF file.
//!
//! Sources: <https://huggingface.co/docs/transformers/main_classes/text_generation>, llama.cpp's `gguf-py` (`Keys.General`).

use crate::engine::{
    Sampling, SamplingError, check_repetition_penalty, check_share, check_temperature,
};
use crate::text::{self, TextError};
use crate::weights::Origin;
use crate::weights::gguf::{Metadata, Value};
use std::path::Path;

/// The sampling values that a model comes with; `None` where it says nothing.
///
/// A value of a wrong type or out of its range is not used: it must not keep the model from running. It is in
/// [`GenerationConfig::ignored`].
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct GenerationConfig {
    /// For [`Sampling::temperature`]. 0 if the model asks for greedy decoding (`do_sample: false`).
    pub temperature: Option<f32>,
    /// For [`Sampling::top_k`].
    pub top_k: Option<usize>,
    /// For [`Sampling::top_p`].
    pub top_p: Option<f32>,
    /// For [`Sampling::min_p`].
    pub min_p: Option<f32>,
    /// For [`Sampling::repetition_penalty`].
    pub repetition_penalty: Option<f32>,
    /// Values that are not used, one line each: file, field, value and why.
    pub ignored: Vec<String>,
}

impl GenerationConfig {
    /// The model's values where it has them, else those of `defaults`.
    pub fn sampling(&self, defaults: Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            repetition_penalty: self.repetition_penalty.unwrap_or(defaults.repetition_penalty),
            ..defaults
        }
    }

    /// The values of `other` where it has them, else these.
    pub(crate) fn overridden_by(self, other: &GenerationConfig) -> Self {
        GenerationConfig {
            temperature: other.temperature.or(self.temperature),
            top_k: other.top_k.or(self.top_k),
            top_p: other.top_p.or(self.top_p),
            min_p: other.min_p.or(self.min_p),
            repetition_penalty: other.repetition_penalty.or(self.repetition_penalty),
            ignored: self.ignored,
        }
    }

    /// Reads the values of a checkpoint.
    pub(crate) fn open(origin: &Origin) -> Result<Self, TextError> {
        match origin {
            Origin::HuggingFace { dir, .. } => Self::from_dir(dir),
            Origin::Gguf { metadata } => Ok(Self::from_gguf(metadata)),
        }
    }

    /// As transformers: without `do_sample: true` only the repetition penalty counts.
    fn from_dir(dir: &Path) -> Result<Self, TextError> {
        const FILE: &str = "generation_config.json";
        let Some(json) = text::read_json::<serde_json::Value>(&dir.join(FILE))? else {
            return Ok(Self::default());
        };
        let mut reader = Reader { file: FILE, ignored: Vec::new() };
        let field = |name| json.get(name).filter(|value| !value.is_null()).map(shown_json);
        let mut config = GenerationConfig {
            repetition_penalty: reader.checked(
                "repetition_penalty",
                field("repetition_penalty"),
                check_repetition_penalty,
            ),
            ..Self::default()
        };
        match json.get("do_sample").and_then(serde_json::Value::as_bool) {
            Some(true) => {
                let temperature = field("temperature");
                // transformers' default.
                let is_absent = temperature.is_none();
                config.temperature = reader.checked("temperature", temperature, check_temperature);
                config.temperature = config.temperature.or(is_absent.then_some(1.0));
                config.top_k = reader.count("top_k", field("top_k"));
                config.top_p = reader.checked("top_p", field("top_p"), top_p);
                config.min_p = reader.checked("min_p", field("min_p"), min_p);
            }
            Some(false) => config.temperature = Some(0.0),
            None => {}
        }
        config.ignored = reader.ignored;
        Ok(config)
    }

    fn from_gguf(metadata: &Metadata) -> Self {
        let mut reader = Reader { file: "GGUF metadata", ignored: Vec::new() };
        let key = |key| (key, metadata.get(key).map(shown_gguf));
        let (temp, temperature) = key("general.sampling.temp");
        let (penalty, repetition_penalty) = key("general.sampling.penalty_repeat");
        let (top_p_key, top_p_value) = key("general.sampling.top_p");
        let (min_p_key, min_p_value) = key("general.sampling.min_p");
        let (top_k_key, top_k_value) = key("general.sampling.top_k");
        GenerationConfig {
            temperature: reader.checked(temp, temperature, check_temperature),
            top_k: reader.count(top_k_key, top_k_value),
            top_p: reader.checked(top_p_key, top_p_value, top_p),
            min_p: reader.checked(min_p_key, min_p_value, min_p),
            repetition_penalty: reader.checked(
                penalty,
                repetition_penalty,
                check_repetition_penalty,
            ),
            ignored: reader.ignored,
        }
    }
}

fn top_p(value: f32) -> Result<(), SamplingError> {
    check_share("top-p", value)
}

fn min_p(value: f32) -> Result<(), SamplingError> {
    check_share("min-p", value)
}

/// A value as a number, if it is one, and as it is shown.
type Shown = (Option<f64>, String);

fn shown_json(value: &serde_json::Value) -> Shown {
    (value.as_f64(), text::one_line(value))
}

fn shown_gguf(value: &Value) -> Shown {
    let number = match *value {
        Value::F32(value) => Some(value.into()),
        Value::F64(value) => Some(value),
        Value::I8(value) => Some(value.into()),
        Value::I16(value) => Some(value.into()),
        Value::I32(value) => Some(value.into()),
        Value::I64(value) => Some(value as f64),
        ref value => value.as_u64().map(|value| value as f64),
    };
    let shown = match value {
        Value::String(text) => text::one_line(format!("{text:?}")),
        Value::Array(_) => "(an array)".to_owned(),
        Value::Bool(value) => value.to_string(),
        _ => number.map_or_else(String::new, |number| number.to_string()),
    };
    (number, shown)
}

/// Checks values, and keeps what there is to say about those that are not used.
struct Reader {
    file: &'static str,
    ignored: Vec<String>,
}

impl Reader {
    fn checked(
        &mut self,
        name: &str,
        value: Option<Shown>,
        check: impl Fn(f32) -> Result<(), SamplingError>,
    ) -> Option<f32> {
        let (number, shown) = value?;
        let number = number.map(|number| number as f32);
        let why = match number.map(check) {
            Some(Ok(())) => return number,
            Some(Err(SamplingError::Value { range, .. })) => format!("has to be {range}"),
            _ => "has to be a number".to_owned(),
        };
        self.ignore(name, &shown, &why)
    }

    fn count(&mut self, name: &str, value: Option<Shown>) -> Option<usize> {
        let (number, shown) = value?;
        match number {
            Some(number) if number.fract() == 0.0 && (0.0..=u32::MAX.into()).contains(&number) => {
                Some(number as usize)
            }
            _ => self.ignore(name, &shown, "has to be a whole number, 0 or more"),
        }
    }

    fn ignore<T>(&mut self, name: &str, shown: &str, why: &str) -> Option<T> {
        self.ignored.push(format!("{}: {name} {shown} is ignored: it {why}", self.file));
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from_json(json: &str) -> GenerationConfig {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("generation_config.json"), json).unwrap();
        GenerationConfig::from_dir(dir.path()).unwrap()
    }

    /// Qwen2.5-0.5B-Instruct's file.
    #[test]
    fn a_models_values_come_before_the_defaults() {
        let config = from_json(
            r#"{"bos_token_id": 151643, "pad_token_id": 151643, "do_sample": true,
                "eos_token_id": [151645, 151643], "repetition_penalty": 1.1,
                "temperature": 0.7, "top_p": 0.8, "top_k": 20}"#,
        );
        let defaults = Sampling { min_p: 0.05, top_k: 40, seed: 7, ..Sampling::default() };
        let wanted = Sampling {
            temperature: 0.7,
            top_k: 20,
            top_p: 0.8,
            min_p: 0.05,
            repetition_penalty: 1.1,
            seed: 7,
            ..Sampling::default()
        };
        assert_eq!(config.sampling(defaults), wanted);
        assert!(config.ignored.is_empty());
    }

    #[test]
    fn only_a_model_that_samples_says_how() {
        let fields = r#""temperature": 0.6, "top_k": 5, "top_p": 0.9, "min_p": 0.1"#;
        let sampled = |do_sample: &str| from_json(&format!("{{{do_sample}{fields}}}"));
        assert_eq!(sampled(""), GenerationConfig::default());
        let greedy = GenerationConfig { temperature: Some(0.0), ..Default::default() };
        assert_eq!(sampled(r#""do_sample": false, "#), greedy);
        assert_eq!(sampled(r#""do_sample": true, "#).min_p, Some(0.1));
        assert_eq!(from_json(r#"{"do_sample": true}"#).temperature, Some(1.0));
        let none = GenerationConfig::from_dir(tempfile::tempdir().unwrap().path()).unwrap();
        assert_eq!(none, GenerationConfig::default());
    }

    #[test]
    fn hostile_values_are_ignored_and_named() {
        let config = from_json(
            r#"{"do_sample": true, "temperature": -1, "top_k": 2.5, "top_p": "all",
                "min_p": 1e300, "repetition_penalty": 0}"#,
        );
        assert_eq!(config.sampling(Sampling::default()), Sampling::default());
        let wanted = [
            "generation_config.json: repetition_penalty 0 is ignored: it has to be above 0",
            "generation_config.json: temperature -1 is ignored: it has to be 0 or more",
            "generation_config.json: top_k 2.5 is ignored: it has to be a whole number, 0 or more",
            "generation_config.json: top_p \"all\" is ignored: it has to be a number",
            "generation_config.json: min_p 1e+300 is ignored: it has to be 0 to 1",
        ];
        assert_eq!(config.ignored, wanted);
        for json in ["[]", "3", "{\"temperature\": null, \"do_sample\": [1]}"] {
            assert_eq!(from_json(json), GenerationConfig::default(), "{json}");
        }
        for bad in [-1i64, 1 << 40] {
            let config = from_json(&format!("{{\"do_sample\": true, \"top_k\": {bad}}}"));
            assert_eq!((config.top_k, config.ignored.len()), (None, 1), "{bad}");
        }
    }

    #[test]
    fn gguf_keys_are_llama_cpps() {
        let metadata = |values: &[(&str, Value)]| {
            Metadata(values.iter().map(|(key, value)| (key.to_string(), value.clone())).collect())
        };
        let config = GenerationConfig::from_gguf(&metadata(&[
            ("general.sampling.temp", Value::F32(0.5)),
            ("general.sampling.top_k", Value::I32(64)),
            ("general.sampling.top_p", Value::F32(0.25)),
            ("general.sampling.min_p", Value::F32(0.125)),
            ("general.sampling.penalty_repeat", Value::F32(1.5)),
        ]));
        let wanted = GenerationConfig {
            temperature: Some(0.5),
            top_k: Some(64),
            top_p: Some(0.25),
            min_p: Some(0.125),
            repetition_penalty: Some(1.5),
            ignored: Vec::new(),
        };
        assert_eq!(config, wanted);
        let config = GenerationConfig::from_gguf(&metadata(&[
            ("general.sampling.temp", Value::F32(f32::NAN)),
            ("general.sampling.top_k", Value::I32(-1)),
            ("general.sampling.top_p", Value::String("x\ny".into())),
        ]));
        let wanted = [
            "GGUF metadata: general.sampling.temp NaN is ignored: it has to be 0 or more",
            "GGUF metadata: general.sampling.top_k -1 is ignored: it has to be a whole number, 0 \
             or more",
            "GGUF metadata: general.sampling.top_p \"x\\ny\" is ignored: it has to be a number",
        ];
        assert_eq!(config.ignored, wanted);
        assert_eq!(config.sampling(Sampling::default()), Sampling::default());
    }
}
