//! The text files of a Hugging Face directory: `tokenizer.json`, `tokenizer_config.json` and
//! `chat_template.jinja`.

use std::io;
use std::path::Path;

use serde::de::DeserializeOwned;

use super::error::{TextError, one_line};
use super::template::{ChatTemplate, SpecialTokens};
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
pub(super) fn chat_template(dir: &Path) -> Result<Option<ChatTemplate>, TextError> {
    let (source, special) = template_source(dir)?;
    Ok(source.map(|source| ChatTemplate::new(&source, special)))
}

/// The source of the chat template, `chat_template.jinja`, else `chat_template` of
/// `tokenizer_config.json`; and the special tokens of `tokenizer_config.json`.
pub(super) fn template_source(dir: &Path) -> Result<(Option<String>, SpecialTokens), TextError> {
    let config: TokenizerConfig =
        read_json(&dir.join("tokenizer_config.json"))?.unwrap_or_default();
    let path = dir.join("chat_template.jinja");
    let source = match read(&path)? {
        Some(bytes) => Some(
            String::from_utf8(bytes)
                .map_err(|_| TextError::File { path, reason: "it is not UTF-8".to_owned() })?,
        ),
        None => config.chat_template.and_then(Templates::default),
    };
    let special = SpecialTokens {
        bos_token: config.bos_token.map(TokenText::content),
        eos_token: config.eos_token.map(TokenText::content),
    };
    Ok((source, special))
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
    chat_template: Option<Templates>,
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
}

/// A chat template, or several by name.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<NamedTemplate>),
}

#[derive(serde::Deserialize)]
struct NamedTemplate {
    name: String,
    template: String,
}

impl Templates {
    fn default(self) -> Option<String> {
        match self {
            Self::One(template) => Some(template),
            Self::Named(templates) => templates
                .into_iter()
                .find(|named| named.name == "default")
                .map(|named| named.template),
        }
    }
}

/// A special token: its text, or an object with the text as `content`.
#[derive(serde::Deserialize)]
#[serde(untagged)]
enum TokenText {
    Text(String),
    Token { content: String },
}

impl TokenText {
    fn content(self) -> String {
        match self {
            Self::Text(content) | Self::Token { content } => content,
        }
    }
}
