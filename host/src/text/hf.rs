//! The text files of a Hugging Face directory: `tokenizer.json`, `tokenizer_config.json` and chat templates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::{Map, Value as Json};

use super::error::{TextError, one_line};
use super::template::{ChatTemplate, DEFAULT};
use super::tokenizer::Tokenizer;
use super::tokenizer_json;
use crate::files;

/// The tokenizer of `tokenizer.json`, if there is one.
pub(super) fn tokenizer(dir: &Path) -> Result<Option<Tokenizer>, TextError> {
    let path = dir.join("tokenizer.json");
    let Some(bytes) = read(&path)? else { return Ok(None) };
    tokenizer_json::parse(&bytes)
        .map(Some)
        .map_err(|error| TextError::File { path, reason: error.to_string() })
}

/// The chat template of the directory.
/// `template` takes the place of all that are there.
pub(super) fn chat_template(
    dir: &Path,
    template: Option<&str>,
) -> Result<Option<ChatTemplate>, TextError> {
    let (sources, special) = templates(dir)?;
    Ok(match template {
        Some(source) => ChatTemplate::new([(DEFAULT.to_owned(), source.to_owned())], special),
        None => ChatTemplate::new(sources, special),
    })
}

/// Chat templates and special tokens, both by name.
type Templates = (BTreeMap<String, String>, BTreeMap<String, String>);

/// The sources of the chat templates: `chat_template.jinja` and `additional_chat_templates/NAME.jinja`, else those of
/// `tokenizer_config.json`. The special tokens of `tokenizer_config.json`, else of `special_tokens_map.json`.
pub(super) fn templates(dir: &Path) -> Result<Templates, TextError> {
    let path = dir.join("tokenizer_config.json");
    let config: TokenizerConfig = read_json(&path)?.unwrap_or_default();
    let mut sources = BTreeMap::new();
    if let Some(source) = read_source(&dir.join("chat_template.jinja"))? {
        sources.insert(DEFAULT.to_owned(), source);
    }
    for path in additional_templates(&dir.join("additional_chat_templates"))? {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        sources.extend(read_source(&path)?.map(|source| (name, source)));
    }
    if sources.is_empty() {
        sources = config.chat_template.map(SourceOrSources::by_name).unwrap_or_default();
    }
    let map_path = dir.join("special_tokens_map.json");
    let map: Map<String, Json> = read_json(&map_path)?.unwrap_or_default();
    let mut special = special_tokens(&map, &map_path)?;
    if let Some(ExtraTokens::Named(extra)) = &config.extra_special_tokens {
        special.extend(special_tokens(extra, &path)?);
    }
    special.extend(special_tokens(&config.others, &path)?);
    Ok((sources, special))
}

/// The values named `*_token`, each a text or an object with the text as `content`.
fn special_tokens(
    values: &Map<String, Json>,
    path: &Path,
) -> Result<BTreeMap<String, String>, TextError> {
    let mut tokens = BTreeMap::new();
    for (name, value) in values.iter().filter(|(name, _)| name.ends_with("_token")) {
        match (value, value["content"].as_str()) {
            (Json::String(text), _) => drop(tokens.insert(name.clone(), text.clone())),
            (_, Some(text)) => drop(tokens.insert(name.clone(), text.to_owned())),
            // No token, and `add_bos_token`.
            (Json::Null | Json::Bool(_), None) => {}
            _ => {
                let reason = format!("'{name}' is no token");
                return Err(TextError::File { path: path.to_owned(), reason });
            }
        }
    }
    Ok(tokens)
}

/// The files `NAME.jinja` of a directory that may be missing.
fn additional_templates(dir: &Path) -> Result<Vec<PathBuf>, TextError> {
    let cannot_read = |source| TextError::Read { path: dir.to_owned(), source };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(cannot_read(source)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(cannot_read)?.path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            paths.push(path);
        }
    }
    Ok(paths)
}

fn read_source(path: &Path) -> Result<Option<String>, TextError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| TextError::File {
        path: path.to_owned(),
        reason: "it is not UTF-8".to_owned(),
    })
}

/// Reads a JSON file; `None` if it is not there.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TextError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| TextError::File { path: path.to_owned(), reason: one_line(error) })
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match files::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}

/// The part of `tokenizer_config.json` that is read.
#[derive(Default, serde::Deserialize)]
struct TokenizerConfig {
    chat_template: Option<SourceOrSources>,
    extra_special_tokens: Option<ExtraTokens>,
    #[serde(flatten)]
    others: Map<String, Json>,
}

/// Special tokens by name; older files have a list of those without one.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum ExtraTokens {
    Named(Map<String, Json>),
    Unnamed(IgnoredAny),
}

/// A chat template, or several by name.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum SourceOrSources {
    One(String),
    Named(Vec<NamedSource>),
}

#[derive(serde::Deserialize)]
struct NamedSource {
    name: String,
    template: String,
}

impl SourceOrSources {
    fn by_name(self) -> BTreeMap<String, String> {
        match self {
            Self::One(source) => BTreeMap::from([(DEFAULT.to_owned(), source)]),
            Self::Named(sources) => {
                sources.into_iter().map(|named| (named.name, named.template)).collect()
            }
        }
    }
}
