//! `tokenizer.json`, the serialised form of Hugging Face's `tokenizers`.
//!
//! The library reads its own files, but panics on hostile ones; so a file is taken apart here: the
//! model goes through [`Parts`], the parts around it through [`pipeline`].

use std::fmt;

use serde::de::{self, Deserialize, DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde_json::Value as Json;
use tokenizers::models::bpe::Vocab;
use tokenizers::{AddedToken, ModelWrapper};

use super::error::{TextError, one_line};
use super::merges::Parts;
use super::pipeline::{self, library_error, unsupported};
use super::tokenizer::Tokenizer;
use super::{unigram, word_piece};

/// The tokenizer that `bytes` describe.
pub(super) fn parse(bytes: &[u8]) -> Result<Tokenizer, TextError> {
    // Older files don't say that theirs is BPE.
    let kind = serde_json::from_slice::<ModelKind>(bytes).map_err(library_error)?.model.kind;
    match kind.as_deref() {
        None | Some("BPE") => {
            let (file, model) = File::<Model>::read(bytes)?;
            file.build(model.parts()?.build()?)
        }
        Some("Unigram") => {
            let (file, model) = File::<unigram::Parts>::read(bytes)?;
            file.build(model.build()?)
        }
        Some("WordPiece") => {
            let (file, model) = File::<word_piece::Parts>::read(bytes)?;
            file.build(model.build()?)
        }
        Some(other) => Err(unsupported("model", other)),
    }
}

/// `tokenizer.json`. What it says on truncation and padding is for training, and not read.
#[derive(serde::Deserialize)]
struct File<M> {
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
    /// Taken out once it is read.
    model: Option<M>,
}

#[derive(serde::Deserialize)]
struct FileToken {
    id: u32,
    #[serde(flatten)]
    token: AddedToken,
}

/// What is read of a file to find out what else is.
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

impl<M: DeserializeOwned> File<M> {
    fn read(bytes: &[u8]) -> Result<(Self, M), TextError> {
        let mut file: Self = serde_json::from_slice(bytes).map_err(library_error)?;
        let model = file.model.take();
        let model = model.ok_or_else(|| TextError::Vocabulary("it has no model".to_owned()))?;
        Ok((file, model))
    }

    fn build(self, model: impl Into<ModelWrapper>) -> Result<Tokenizer, TextError> {
        let spelling = pipeline::spelling(&self.decoder)?;
        let (prefix, suffix) = pipeline::added_around(&self.post_processor)?;
        let pair = pipeline::added_around_pair(&self.post_processor)?;
        let normalizer = pipeline::normalizer(self.normalizer)?;
        let pre_tokenizer = pipeline::pre_tokenizer(self.pre_tokenizer)?;
        let mut tokenizer = tokenizers::Tokenizer::new(model);
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
        Ok(Tokenizer::new(tokenizer, spelling, prefix, suffix).with_pair(pair))
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
