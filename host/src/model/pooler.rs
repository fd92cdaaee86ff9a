//! How hidden states become an embedding, or scores: the files of sentence-transformers, and the
//! classifiers of encoders.
//!
//! Source: <https://sbert.net/docs/package_reference/sentence_transformer/modules.html>.

use super::names::Names;
use super::{Config, ConfigError, Family, ModelError};
use crate::files;
use crate::weights::{Checkpoint, Origin, WeightsError, gguf};
use serde_json::Value;
use std::io;
use std::path::Path;

/// How the hidden states of a prompt's tokens, after the model's final norm, become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// Mean of the hidden states.
    Mean,
    /// That of the first token.
    First,
    /// That of the last token.
    Last,
    /// What a model's classifier makes of them: its logits, as they are.
    Score,
}

impl Pooling {
    /// Name in requests and errors.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::First => "cls",
            Pooling::Last => "last",
            Pooling::Score => "score",
        }
    }
}

/// What a model makes of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Pooler {
    /// Which of the hidden states: of all but [`Pooling::Score`].
    pub(super) rows: Pooling,
    /// Linear layers after that.
    pub(super) layers: Vec<HeadLayer>,
    /// Whether the last of them is a classifier's.
    pub(super) is_classifier: bool,
    /// Whether scores are the sigmoid of a classifier's logits.
    pub(super) sigmoid: bool,
    /// Whether a GGUF file says that the model is trained to rank.
    pub(super) ranks: bool,
}

/// A linear layer after pooling.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct HeadLayer {
    /// Name of the tensors, less `.weight` and `.bias`.
    pub name: String,
    pub bias: bool,
    /// Elements of its output.
    pub width: usize,
    pub activation: HeadActivation,
    /// The norm after that.
    pub norm: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadActivation {
    None,
    Tanh,
    Gelu,
}

impl Pooler {
    /// What the files of a model, which has the tensors of `checkpoint`, say; without them the mean
    /// of what is read as a whole, and the last token of others.
    pub(super) fn open(
        config: &Config,
        names: &Names,
        checkpoint: &mut Checkpoint,
    ) -> Result<Self, ModelError> {
        let rows = if config.is_causal { Pooling::Last } else { Pooling::Mean };
        let mut pooler =
            Pooler { rows, layers: Vec::new(), is_classifier: false, sigmoid: false, ranks: false };
        match checkpoint.origin() {
            Origin::HuggingFace { dir, config: json } => {
                let (dir, json) = (dir.clone(), json.clone());
                pooler.add_modules(config, &dir, checkpoint)?;
                if config.encoder.is_some() && !is_encoder_alone(&json) {
                    pooler.add_classifier(config, names, checkpoint);
                    pooler.sigmoid = pooler.is_classifier && has_sigmoid(&json);
                    if json["classifier_pooling"] != "mean" && pooler.is_classifier {
                        pooler.rows = Pooling::First;
                    }
                }
            }
            Origin::Gguf { metadata } => {
                let kind = gguf_kind(metadata);
                pooler.ranks = kind == Some(RANK);
                pooler.rows = gguf_rows(kind, config.is_causal);
                if !config.is_causal {
                    pooler.add_gguf_layers(config, names, checkpoint);
                }
            }
        }
        Ok(pooler)
    }

    /// What a request that does not say it gets.
    pub fn pooling(&self) -> Pooling {
        if self.is_classifier { Pooling::Score } else { self.rows }
    }

    /// Which hidden states of a text are pooled; never [`Pooling::Score`].
    pub fn rows(&self) -> Pooling {
        self.rows
    }

    /// Whether the file says that the model is trained to rank texts.
    pub fn ranks(&self) -> bool {
        self.ranks
    }

    /// Elements of what it makes of hidden states of `hidden_size`.
    pub fn width(&self, hidden_size: usize) -> usize {
        self.layers.last().map_or(hidden_size, |layer| layer.width)
    }

    /// The score that stands in the logit of a classifier.
    pub fn score(&self, logit: f32) -> f64 {
        let logit = f64::from(logit);
        if self.sigmoid { (1.0 + (-logit).exp()).recip() } else { logit }
    }

    /// The modules after the first, which is the model itself.
    fn add_modules(
        &mut self,
        config: &Config,
        dir: &Path,
        checkpoint: &mut Checkpoint,
    ) -> Result<(), ModelError> {
        let path = dir.join("modules.json");
        let wrong = |found: &Value, expected| {
            ModelError::config(&path, ConfigError::invalid("modules", found, expected))
        };
        let Some(modules) = read_json(&path)? else { return Ok(()) };
        for module in modules.as_array().into_iter().flatten().skip(1) {
            let kind = module["type"].as_str().unwrap_or_default();
            let folder = module["path"].as_str().unwrap_or_default();
            let is_plain = !folder.is_empty() && !folder.contains(['/', '\\', ':']);
            match kind.rsplit('.').next().unwrap_or_default() {
                "Normalize" => {}
                _ if !is_plain || folder.starts_with('.') => {
                    return Err(wrong(
                        &module["path"],
                        "the path of a module has to be a folder's",
                    ));
                }
                "Pooling" => {
                    let path = dir.join(folder).join("config.json");
                    self.rows = read_pooling(&path, config.is_causal)?;
                }
                "Dense" if !config.is_causal => {
                    checkpoint.open_folder(folder)?;
                    let path = dir.join(folder).join("config.json");
                    self.layers.push(read_dense(&path, folder, checkpoint)?);
                }
                _ => {
                    let expected = match config.is_causal {
                        true => "Pooling and Normalize are known after a decoder",
                        false => "Pooling, Dense and Normalize are known",
                    };
                    return Err(wrong(&module["type"], expected));
                }
            }
        }
        Ok(())
    }

    /// The layers of a classifier, if the checkpoint has one.
    fn add_classifier(&mut self, config: &Config, names: &Names, checkpoint: &Checkpoint) {
        let names = &names.encoder;
        let Some(num_labels) = rows_of(checkpoint, names.classifier) else { return };
        let has_dense = rows_of(checkpoint, names.classifier_dense).is_some();
        let is_modern = config.family == Family::ModernBert;
        let has = |name: &str, suffix| checkpoint.tensor(&format!("{name}.{suffix}")).is_some();
        let layer = |name: &str, width, activation| HeadLayer {
            name: name.to_owned(),
            bias: has(name, "bias"),
            width,
            activation,
            norm: None,
        };
        if has_dense {
            let activation = if is_modern { HeadActivation::Gelu } else { HeadActivation::Tanh };
            let dense = layer(names.classifier_dense, config.hidden_size, activation);
            let has_norm = is_modern && has(names.classifier_norm, "weight");
            let norm = has_norm.then(|| names.classifier_norm.to_owned());
            self.layers.push(HeadLayer { norm, ..dense });
        }
        self.layers.push(layer(names.classifier, num_labels, HeadActivation::None));
        self.is_classifier = true;
    }

    /// The classifier of a GGUF file, or the linear layers of an embedding.
    fn add_gguf_layers(&mut self, config: &Config, names: &Names, checkpoint: &Checkpoint) {
        if config.encoder.is_some() {
            self.add_classifier(config, names, checkpoint);
            // llama.cpp gives logits, and converts no word on what becomes of them.
            self.sigmoid = self.is_classifier;
        }
        for name in ["dense_2", "dense_3"] {
            let layer = |width| HeadLayer {
                name: name.to_owned(),
                bias: false,
                width,
                activation: HeadActivation::None,
                norm: None,
            };
            self.layers.extend(rows_of(checkpoint, name).map(layer));
        }
    }
}

/// Rows of a matrix, less `.weight`, if it is there.
fn rows_of(checkpoint: &Checkpoint, name: &str) -> Option<usize> {
    checkpoint.tensor(&format!("{name}.weight")).and_then(|tensor| tensor.shape.first().copied())
}

/// Whether config.json names no class with a classifier: BERT alone has a pooler, too.
fn is_encoder_alone(json: &Value) -> bool {
    let classes = json["architectures"].as_array().into_iter().flatten();
    let mut names = classes.filter_map(Value::as_str);
    !names.any(|class| class.ends_with("ForSequenceClassification"))
}

/// Whether scores are the sigmoid of the logit, by what sentence-transformers writes, and takes by
/// default.
fn has_sigmoid(json: &Value) -> bool {
    let said = [
        &json["sentence_transformers"]["activation_fn"],
        &json["sbert_ce_default_activation_function"],
    ];
    let said = said.into_iter().find_map(Value::as_str);
    said.is_none_or(|name| !name.ends_with("Identity"))
}

/// llama.cpp's number for models that rank.
const RANK: u64 = 4;

/// How llama.cpp pools, by its number.
fn gguf_kind(metadata: &gguf::Metadata) -> Option<u64> {
    let gguf::Value::String(architecture) = metadata.get("general.architecture")? else {
        return None;
    };
    metadata.get(&format!("{architecture}.pooling_type"))?.as_u64()
}

/// Which hidden states that kind names; without one those of [`Pooler::open`].
fn gguf_rows(kind: Option<u64>, is_causal: bool) -> Pooling {
    match kind {
        Some(1) => Pooling::Mean,
        Some(2 | RANK) if !is_causal => Pooling::First,
        Some(3) => Pooling::Last,
        _ if is_causal => Pooling::Last,
        _ => Pooling::Mean,
    }
}

/// Which hidden states the `config.json` of a module of pooling names.
fn read_pooling(path: &Path, is_causal: bool) -> Result<Pooling, ModelError> {
    let json = read_json(path)?.unwrap_or_default();
    let known = [
        ("pooling_mode_mean_tokens", "mean", Pooling::Mean),
        ("pooling_mode_cls_token", "cls", Pooling::First),
        ("pooling_mode_lasttoken", "lasttoken", Pooling::Last),
    ];
    let is_on = |name: &str| json[name] == true;
    let flags = json.as_object().into_iter().flatten();
    let num_on = flags.filter(|(name, on)| name.starts_with("pooling_mode_") && **on == true);
    let num_on = num_on.count();
    let found = match json["pooling_mode"].as_str() {
        Some(mode) => known.into_iter().find(|(_, name, _)| *name == mode),
        None if num_on == 1 => known.into_iter().find(|(flag, ..)| is_on(flag)),
        None => None,
    };
    // The first token of a decoder has seen nothing.
    let found = found.filter(|(.., pooling)| !is_causal || *pooling != Pooling::First);
    found.map(|(.., pooling)| pooling).ok_or_else(|| {
        let expected = match is_causal {
            true => "mean and lasttoken are supported of a decoder",
            false => "one of mean, cls and lasttoken is supported",
        };
        let shown = json["pooling_mode"].as_str().unwrap_or("another, or several");
        ModelError::config(path, ConfigError::invalid("pooling_mode", shown, expected))
    })
}

/// The linear layer that the `config.json` of a module of the folder `folder` describes.
fn read_dense(path: &Path, folder: &str, checkpoint: &Checkpoint) -> Result<HeadLayer, ModelError> {
    const ACTIVATION: &str = "activation_function";
    let json = read_json(path)?.unwrap_or_default();
    let name = format!("{folder}/linear");
    let activation = match json[ACTIVATION].as_str().and_then(|name| name.rsplit('.').next()) {
        Some("Identity") => HeadActivation::None,
        Some("Tanh") | None => HeadActivation::Tanh,
        Some(_) => {
            let error = ConfigError::invalid(ACTIVATION, &json[ACTIVATION], "Identity or Tanh");
            return Err(ModelError::config(path, error));
        }
    };
    let width = rows_of(checkpoint, &name).ok_or_else(|| {
        ModelError::Weights(WeightsError::MissingTensor {
            path: path.to_owned(),
            tensor: format!("{name}.weight"),
        })
    })?;
    let bias = checkpoint.tensor(&format!("{name}.bias")).is_some();
    Ok(HeadLayer { name, bias, width, activation, norm: None })
}

/// A JSON file; `None` if it is not there.
fn read_json(path: &Path) -> Result<Option<Value>, WeightsError> {
    let path_of = || path.to_owned();
    match files::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| WeightsError::Config { path: path_of(), source }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(WeightsError::Io { path: path_of(), source }),
    }
}
