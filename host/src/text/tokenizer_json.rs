//! `tokenizer.json`, the serialised form of Hugging Face's `tokenizers`.
//!
//! The library reads its own files, but panics on hostile ones; so the parts are taken apart here,
//! those that the supported families use are let through, and the rest is a typed error.

use std::collections::HashMap;
use std::fmt;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde_json::Value as Json;
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, NormalizerWrapper, PreTokenizerWrapper};

use super::detokenize::Spelling;
use super::error::{TextError, one_line};
use super::merges::Parts;
use super::tokenizer::Tokenizer;

const NORMALIZERS: &[&str] = &[
    "Sequence",
    "Prepend",
    "Replace",
    "Strip",
    "StripAccents",
    "Lowercase",
    "NFC",
    "NFD",
    "NFKC",
    "NFKD",
    "ByteLevel",
];
const PRE_TOKENIZERS: &[&str] = &[
    "Sequence",
    "Split",
    "ByteLevel",
    "Digits",
    "Metaspace",
    "Punctuation",
    "Whitespace",
    "WhitespaceSplit",
];

/// The tokenizer that `bytes` describe.
pub(super) fn parse(bytes: &[u8]) -> Result<Tokenizer, TextError> {
    if let Ok(ModelKind { model: Kind { kind: Some(kind) } }) = serde_json::from_slice(bytes)
        && kind != "BPE"
    {
        return Err(unsupported("model", &kind));
    }
    let file: File = serde_json::from_slice(bytes).map_err(library_error)?;
    file.build()
}

/// `tokenizer.json`. What it says on truncation and padding is for training, and not read.
#[derive(serde::Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<FileToken>,
    #[serde(default)]
    normalizer: Json,
    #[serde(default)]
    pre_tokenizer: Json,
    #[serde(default)]
    post_processor: Json,
    #[serde(default)]
    decoder: Json,
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
        let spelling = spelling(&self.decoder)?;
        let (prefix, suffix) = added_around(&self.post_processor)?;
        let normalizer: Option<NormalizerWrapper> =
            checked("normalizer", self.normalizer, NORMALIZERS)?;
        let pre_tokenizer: Option<PreTokenizerWrapper> =
            checked("pre_tokenizer", self.pre_tokenizer, PRE_TOKENIZERS)?;
        let mut tokenizer = tokenizers::Tokenizer::new(self.model.parts()?.build()?);
        tokenizer.with_normalizer(normalizer).map_err(library_error)?;
        tokenizer.with_pre_tokenizer(pre_tokenizer);
        let tokens = self.added_tokens.iter().map(|added| added.token.clone());
        tokenizer.add_tokens(tokens).map_err(library_error)?;
        // The library counts new ids up from the end of the vocabulary, whatever the file says.
        for FileToken { id, token } in &self.added_tokens {
            if tokenizer.token_to_id(&token.content) != Some(*id) {
                let token = one_line(&token.content);
                let reason = format!("added token '{token}' can't have the id {id}");
                return Err(TextError::Vocabulary(reason));
            }
        }
        Ok(Tokenizer::new(tokenizer, spelling, prefix, suffix))
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

/// Reads a normalizer or a pre-tokenizer, if it is made of `allowed` kinds alone.
fn checked<T: DeserializeOwned>(
    what: &str,
    part: Json,
    allowed: &[&str],
) -> Result<Option<T>, TextError> {
    if part.is_null() {
        return Ok(None);
    }
    for step in steps(&part) {
        let kind = kind(step);
        if !allowed.contains(&kind) {
            return Err(unsupported(what, kind));
        }
    }
    serde_json::from_value(part).map(Some).map_err(library_error)
}

/// The parts that `part` is made of, itself included where it is a sequence of others.
fn steps(part: &Json) -> Vec<&Json> {
    let inner = ["normalizers", "pretokenizers", "processors", "decoders"]
        .into_iter()
        .filter_map(|name| part[name].as_array())
        .flatten();
    [part].into_iter().chain(inner.flat_map(steps)).collect()
}

fn kind(part: &Json) -> &str {
    part["type"].as_str().unwrap_or("null")
}

/// The ids that `post_processor` adds before and behind a text.
fn added_around(post_processor: &Json) -> Result<(Vec<u32>, Vec<u32>), TextError> {
    let (mut prefix, mut suffix) = (Vec::new(), Vec::new());
    if post_processor.is_null() {
        return Ok((prefix, suffix));
    }
    for step in steps(post_processor) {
        match kind(step) {
            // Byte-level processors change offsets alone.
            "Sequence" | "ByteLevel" => {}
            "TemplateProcessing" => {
                let template = TemplateProcessing::deserialize(step).map_err(library_error)?;
                (prefix, suffix) = template.around().ok_or_else(|| {
                    TextError::Vocabulary("its post_processor has no text once".to_owned())
                })?;
            }
            kind => return Err(unsupported("post_processor", kind)),
        }
    }
    Ok((prefix, suffix))
}

#[derive(serde::Deserialize)]
struct TemplateProcessing {
    single: Vec<Piece>,
    special_tokens: HashMap<String, SpecialIds>,
}

#[derive(serde::Deserialize)]
enum Piece {
    SpecialToken { id: String },
    Sequence { id: String },
}

#[derive(serde::Deserialize)]
struct SpecialIds {
    ids: Vec<u32>,
}

impl TemplateProcessing {
    /// The ids before and behind the text `A`, which stands in the template once.
    fn around(&self) -> Option<(Vec<u32>, Vec<u32>)> {
        let is_text = |piece: &Piece| matches!(piece, Piece::Sequence { id } if id == "A");
        let text = self.single.iter().position(is_text)?;
        let ids = |pieces: &[Piece]| {
            let ids = pieces.iter().map(|piece| match piece {
                Piece::SpecialToken { id } => Some(self.special_tokens.get(id)?.ids.as_slice()),
                Piece::Sequence { .. } => None,
            });
            ids.collect::<Option<Vec<_>>>().map(|ids| ids.concat())
        };
        Some((ids(&self.single[..text])?, ids(&self.single[text + 1..])?))
    }
}

/// Which of the two spellings the decoder undoes.
fn spelling(decoder: &Json) -> Result<Spelling, TextError> {
    let steps = steps(decoder);
    let steps = if steps.len() > 1 { &steps[1..] } else { &steps[..] };
    let kinds: Vec<&str> = steps.iter().map(|step| kind(step)).collect();
    let is_space = |step: &Json| step["pattern"]["String"] == "▁" && step["content"] == " ";
    let is_lead = |step: &Json| step["content"] == " " && step["start"] == 1 && step["stop"] == 0;
    let strip_leading_space = match kinds.as_slice() {
        ["ByteLevel"] => return Ok(Spelling::ByteLevel),
        ["Metaspace"] if steps[0]["replacement"] == "▁" => steps[0]["prepend_scheme"] != "never",
        ["Replace", "ByteFallback", "Fuse"] if is_space(steps[0]) => false,
        ["Replace", "ByteFallback", "Fuse", "Strip"] if is_space(steps[0]) && is_lead(steps[3]) => {
            true
        }
        _ => return Err(unsupported("decoder", &kinds.join(" + "))),
    };
    Ok(Spelling::SentencePiece { strip_leading_space })
}

fn unsupported(what: &str, kind: &str) -> TextError {
    TextError::Vocabulary(format!("a {what} of type '{}' is not supported", one_line(kind)))
}

fn library_error(error: impl ToString) -> TextError {
    TextError::Vocabulary(one_line(error))
}
