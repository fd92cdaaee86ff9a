//! The text files of a Hugging Face directory: `tokenizer.json`, `tokenizer_config.json` and
//! `chat_template.jinja`.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde_json::Value as Json;
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};

use super::detokenize::Spelling;
use super::error::{TextError, one_line};
use super::merges::Parts;
use super::template::{ChatTemplate, SpecialTokens};
use super::tokenizer::Tokenizer;

/// The tokenizer of `tokenizer.json`, if there is one.
pub(super) fn tokenizer(dir: &Path) -> Result<Option<Tokenizer>, TextError> {
    let path = dir.join("tokenizer.json");
    let Some(bytes) = read(&path)? else { return Ok(None) };
    let malformed = |reason: String| TextError::File { path: path.clone(), reason };
    if let Ok(ModelKind { model: Kind { kind: Some(kind) } }) = serde_json::from_slice(&bytes)
        && kind != "BPE"
    {
        return Err(malformed(format!("the model '{kind}' is not supported, 'BPE' is")));
    }
    let file: File = serde_json::from_slice(&bytes).map_err(|error| malformed(one_line(error)))?;
    file.build().map(Some).map_err(|error| malformed(error.to_string()))
}

/// The chat template of the directory: `chat_template.jinja`, else `chat_template` of
/// `tokenizer_config.json`.
pub(super) fn chat_template(dir: &Path) -> Result<Option<ChatTemplate>, TextError> {
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
    Ok(source.map(|source| ChatTemplate::new(source, special)))
}

/// Reads a JSON file; `None` if it is not there.
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TextError> {
    let Some(bytes) = read(path)? else { return Ok(None) };
    serde_json::from_slice(&bytes)
        .map(Some)
        .map_err(|error| TextError::File { path: path.to_owned(), reason: one_line(error) })
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, TextError> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(TextError::Read { path: path.to_owned(), source }),
    }
}

/// `tokenizer.json`. What it says on truncation and padding is for training, and not read.
#[derive(serde::Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<FileToken>,
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<Json>,
    model: Model,
}

#[derive(serde::Deserialize)]
struct FileToken {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

#[derive(serde::Deserialize)]
struct ModelKind {
    model: Kind,
}

#[derive(serde::Deserialize)]
struct Kind {
    #[serde(rename = "type")]
    kind: Option<String>,
}

#[derive(serde::Deserialize)]
struct Model {
    vocab: Vocab,
    merges: Vec<Merge>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(default)]
    fuse_unk: bool,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
}

impl File {
    fn build(self) -> Result<Tokenizer, TextError> {
        let spelling = spelling(self.decoder.as_ref())?;
        let mut tokenizer = tokenizers::Tokenizer::new(self.model.parts()?.build()?);
        let vocabulary_error = |error| TextError::Vocabulary(one_line(error));
        tokenizer.with_normalizer(self.normalizer).map_err(vocabulary_error)?;
        tokenizer.with_pre_tokenizer(self.pre_tokenizer);
        tokenizer.with_post_processor(self.post_processor);
        let tokens = self.added_tokens.iter().map(|added| added.token.clone());
        tokenizer.add_tokens(tokens).map_err(vocabulary_error)?;
        // The library counts new ids up from the end of the vocabulary, whatever the file says.
        for FileToken { id, token } in &self.added_tokens {
            if tokenizer.token_to_id(&token.content) != Some(*id) {
                let token = one_line(&token.content);
                let reason = format!("added token '{token}' can't have the id {id}");
                return Err(TextError::Vocabulary(reason));
            }
        }
        Ok(Tokenizer::new(tokenizer, spelling))
    }
}

impl Model {
    fn parts(self) -> Result<Parts, TextError> {
        let affixes = [
            ("continuing_subword_prefix", &self.continuing_subword_prefix),
            ("end_of_word_suffix", &self.end_of_word_suffix),
        ];
        for (name, affix) in affixes {
            if affix.as_ref().is_some_and(|affix| !affix.is_empty()) {
                return Err(TextError::Vocabulary(format!("a {name} is not supported")));
            }
        }
        Ok(Parts {
            vocab: self.vocab,
            merges: self.merges.into_iter().map(|merge| merge.0).collect(),
            unk_token: self.unk_token,
            fuse_unk: self.fuse_unk,
            byte_fallback: self.byte_fallback,
            ignore_merges: self.ignore_merges,
        })
    }
}

/// A merge: `"a b"` in older files, `["a", "b"]` in newer ones.
struct Merge((String, String));

impl<'de> Deserialize<'de> for Merge {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MergeVisitor;

        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge of two tokens")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Merge, E> {
                match text.split_once(' ') {
                    Some((left, right)) if !right.contains(' ') => {
                        Ok(Merge((left.to_owned(), right.to_owned())))
                    }
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merge, A::Error> {
                let missing = || de::Error::custom("a merge is not two tokens");
                let left = seq.next_element()?.ok_or_else(missing)?;
                let right = seq.next_element()?.ok_or_else(missing)?;
                match seq.next_element::<de::IgnoredAny>()? {
                    None => Ok(Merge((left, right))),
                    Some(_) => Err(missing()),
                }
            }
        }

        deserializer.deserialize_any(MergeVisitor)
    }
}

/// Which of the two spellings the `decoder` of `tokenizer.json` undoes.
fn spelling(decoder: Option<&Json>) -> Result<Spelling, TextError> {
    let kind = |decoder: &Json| decoder["type"].as_str().map(str::to_owned);
    let steps = match decoder {
        Some(decoder) if decoder["type"] == "Sequence" => {
            decoder["decoders"].as_array().cloned().unwrap_or_default()
        }
        Some(decoder) => vec![decoder.clone()],
        None => Vec::new(),
    };
    let kinds: Vec<String> = steps.iter().filter_map(kind).collect();
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    let is_space = |step: &Json| step["pattern"]["String"] == "▁" && step["content"] == " ";
    let is_lead = |step: &Json| step["content"] == " " && step["start"] == 1 && step["stop"] == 0;
    match kinds.as_slice() {
        ["ByteLevel"] => Ok(Spelling::ByteLevel),
        ["Metaspace"] if steps[0]["replacement"] == "▁" => Ok(Spelling::SentencePiece {
            strip_leading_space: steps[0]["prepend_scheme"] != "never",
        }),
        ["Replace", "ByteFallback", "Fuse"] if is_space(&steps[0]) => {
            Ok(Spelling::SentencePiece { strip_leading_space: false })
        }
        ["Replace", "ByteFallback", "Fuse", "Strip"]
            if is_space(&steps[0]) && is_lead(&steps[3]) =>
        {
            Ok(Spelling::SentencePiece { strip_leading_space: true })
        }
        _ => Err(TextError::Vocabulary(format!(
            "the decoder [{}] is not supported: ByteLevel and SentencePiece's are",
            one_line(kinds.join(", "))
        ))),
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
