//! The text files of a Hugging Face directory as the metadata of a GGUF file (`tokenizer.ggml.*`):
//! what `super::gguf` reads. A tokenizer that would cut texts differently there is an error.

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value as Json;
use tokenizers::models::bpe::Vocab;

use super::error::{TextError, one_line};
use super::pre_tokenizer::Kind;
use super::template::DEFAULT;
use super::{hf, merges, pipeline, stop};
use crate::weights::gguf::Value;

/// Token types, as llama.cpp's `llama_token_type` numbers them.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;
const BYTE: i32 = 6;

/// Keys for the tokens that end a text.
const STOP_KEYS: [&str; 3] = ["eos", "eot", "eom"];

/// The metadata of tokenizer, chat template and stop tokens in `dir`, for a model of
/// `architecture` whose embedding has `vocab_size` rows.
///
/// # Errors
/// [`TextError::NoGguf`] for a tokenizer that GGUF has no form for, [`TextError::Read`] and
/// [`TextError::File`] for a file that can't be read or is malformed.
pub(crate) fn gguf_tokenizer(
    dir: &Path,
    architecture: &str,
    vocab_size: usize,
) -> Result<Vec<(String, Value)>, TextError> {
    let mut pairs = Vec::new();
    let mut put = |key: &str, value| pairs.push((format!("tokenizer.{key}"), value));
    let mut stop_tokens = stop::from_dir(dir)?;
    match hf::read_json::<Json>(&dir.join("tokenizer.json"))? {
        None => put("ggml.model", Value::String("no_vocab".into())),
        Some(json) => {
            let file = File { json: &json, architecture };
            let tokens = file.tokens(vocab_size)?;
            for (key, value) in file.model(&tokens)? {
                put(&format!("ggml.{key}"), value);
            }
            let id = |text: &str| tokens.iter().position(|(token, _)| token == text);
            let (templates, special) = hf::templates(dir)?;
            let (prefix, suffix) = pipeline::added_around(&json["post_processor"])?;
            let named =
                |name: &str| special.get(name).and_then(|text| id(text)).map(|id| id as u32);
            let bos = one(&prefix)?.or_else(|| named("bos_token"));
            if let Some(eos) = one(&suffix)?.or_else(|| named("eos_token")) {
                stop_tokens.retain(|id| *id != eos);
                stop_tokens.insert(0, eos);
            }
            if let Some(bos) = bos {
                put("ggml.bos_token_id", Value::U32(bos));
            }
            put("ggml.add_bos_token", Value::Bool(!prefix.is_empty()));
            put("ggml.add_eos_token", Value::Bool(!suffix.is_empty()));
            let others = templates.keys().filter(|name| *name != DEFAULT);
            let others: Vec<Value> = others.cloned().map(Value::String).collect();
            if !others.is_empty() {
                put("chat_templates", Value::Array(others));
            }
            for (name, source) in templates {
                let key = match &*name {
                    DEFAULT => "chat_template".to_owned(),
                    name => format!("chat_template.{name}"),
                };
                put(&key, Value::String(source));
            }
        }
    }
    if stop_tokens.len() > STOP_KEYS.len() {
        return Err(no_gguf(format!("{} tokens that end a text", stop_tokens.len())));
    }
    for (key, id) in STOP_KEYS.iter().zip(stop_tokens) {
        put(&format!("ggml.{key}_token_id"), Value::U32(id));
    }
    Ok(pairs)
}

/// The only one of the tokens around a text.
fn one(ids: &[u32]) -> Result<Option<u32>, TextError> {
    match ids {
        [] => Ok(None),
        [id] => Ok(Some(*id)),
        _ => Err(no_gguf("more than one token on a side of each text")),
    }
}

fn no_gguf(what: impl ToString) -> TextError {
    TextError::NoGguf(one_line(what))
}

/// A token and its type.
type Token = (String, i32);

/// `tokenizer.json`, which the reader of Hugging Face directories has accepted.
struct File<'a> {
    json: &'a Json,
    architecture: &'a str,
}

impl File<'_> {
    fn vocab(&self) -> impl Iterator<Item = (&str, usize)> {
        let vocab = self.json["model"]["vocab"].as_object().into_iter().flatten();
        vocab.filter_map(|(token, id)| Some((&token[..], id.as_u64()? as usize)))
    }

    fn added_tokens(&self) -> impl Iterator<Item = &Json> {
        self.json["added_tokens"].as_array().into_iter().flatten()
    }

    fn is_byte_level(&self) -> bool {
        let decoder = &self.json["decoder"];
        decoder["type"] == "ByteLevel"
            || decoder["decoders"]
                .as_array()
                .is_some_and(|all| all.iter().all(|one| one["type"] == "ByteLevel"))
    }

    /// Text and type by id, with names for the rows of the embedding that no token has.
    fn tokens(&self, vocab_size: usize) -> Result<Vec<Token>, TextError> {
        let mut tokens: Vec<Token> =
            (0..vocab_size).map(|id| (format!("[PAD{id}]"), UNUSED)).collect();
        let mut set = |id: usize, token: Token| match tokens.get_mut(id) {
            Some(slot) => {
                *slot = token;
                Ok(())
            }
            None => Err(no_gguf(format!("token {id}, beyond the {vocab_size} of the embedding"))),
        };
        let unk_token = self.json["model"]["unk_token"].as_str();
        let is_byte = |token: &str| {
            let hex = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
            !self.is_byte_level() && hex.is_some_and(|hex| hex.len() == 2)
        };
        for (token, id) in self.vocab() {
            let kind = match token {
                _ if Some(token) == unk_token => UNKNOWN,
                _ if is_byte(token) => BYTE,
                _ => NORMAL,
            };
            set(id, (token.to_owned(), kind))?;
        }
        for added in self.added_tokens() {
            let (Some(id), Some(token)) = (added["id"].as_u64(), added["content"].as_str()) else {
                continue;
            };
            let kind = match added["special"] == true {
                _ if Some(token) == unk_token => UNKNOWN,
                true => CONTROL,
                false => USER_DEFINED,
            };
            // The reader knows of Phi-3's tokens that they take in the space after them.
            let takes_space = added["rstrip"] == true;
            let is_known =
                self.architecture == "phi3" && !matches!(token, "<unk>" | "<s>" | "<|endoftext|>");
            if added["lstrip"] == true || added["single_word"] == true || takes_space != is_known {
                return Err(no_gguf(format!("token '{token}', which takes in spaces or not")));
            }
            set(id as usize, (token.to_owned(), kind))?;
        }
        Ok(tokens)
    }

    /// The keys of the model: kind, tokens, types, merges or scores.
    fn model(&self, tokens: &[Token]) -> Result<Vec<(&'static str, Value)>, TextError> {
        let texts = tokens.iter().map(|(text, _)| Value::String(text.clone())).collect();
        let types = tokens.iter().map(|(_, kind)| Value::I32(*kind)).collect();
        let mut pairs = vec![("tokens", Value::Array(texts)), ("token_type", Value::Array(types))];
        let text = |text: &str| Value::String(text.to_owned());
        if self.is_byte_level() {
            let merges = self.merges().map(|(left, right)| text(&format!("{left} {right}")));
            pairs.extend([
                ("model", text("gpt2")),
                ("pre", text(self.pre_tokenizer()?)),
                ("merges", Value::Array(merges.collect())),
            ]);
        } else {
            let scores = self.scores(tokens)?.into_iter().map(Value::F32).collect();
            pairs.extend([
                ("model", text("llama")),
                ("pre", text("default")),
                ("scores", Value::Array(scores)),
                ("add_space_prefix", Value::Bool(self.adds_space_prefix()?)),
            ]);
        }
        Ok(pairs)
    }

    fn merges(&self) -> impl Iterator<Item = (&str, &str)> {
        let merges = self.json["model"]["merges"].as_array().into_iter().flatten();
        merges.filter_map(|merge| match merge {
            Json::String(pair) => pair.split_once(' '),
            pair => Some((pair[0].as_str()?, pair[1].as_str()?)),
        })
    }

    /// The name of the kind that cuts texts into words as this file does.
    fn pre_tokenizer(&self) -> Result<&'static str, TextError> {
        // llama.cpp's conversion leaves NFC out, too: most texts are in it already.
        if !self.json["normalizer"].is_null() && self.json["normalizer"]["type"] != "NFC" {
            return Err(no_gguf("a normalizer before byte-level BPE"));
        }
        let unknown = || no_gguf("a pre-tokenizer that is of no kind known there");
        let pre_tokenizer = &self.json["pre_tokenizer"];
        let steps = match pre_tokenizer["pretokenizers"].as_array() {
            Some(steps) => steps.iter().collect(),
            None => vec![pre_tokenizer],
        };
        let mut splits = Vec::new();
        for step in steps {
            match step["type"].as_str() {
                Some("Split") if step["behavior"] == "Isolated" && step["invert"] != true => {
                    splits.push(step["pattern"]["Regex"].as_str().ok_or_else(unknown)?);
                }
                Some("Digits") if step["individual_digits"] == true => splits.push(r"\p{N}"),
                Some("ByteLevel") if step["add_prefix_space"] != true => {
                    if step["use_regex"] != false {
                        splits.push(Kind::BYTE_LEVEL);
                    }
                }
                _ => return Err(unknown()),
            }
        }
        let ignore_merges = self.json["model"]["ignore_merges"] == true;
        Kind::of(&splits, ignore_merges).ok_or_else(unknown)
    }

    /// Whether a space is put before each text: `Prepend` and `Replace`, as Llama 2 has them.
    fn adds_space_prefix(&self) -> Result<bool, TextError> {
        let normalizer = &self.json["normalizer"];
        let steps = match normalizer["normalizers"].as_array() {
            Some(steps) => steps.iter().collect(),
            None => vec![normalizer],
        };
        let is_replace = |step: &Json| {
            let is_space = step["pattern"]["String"] == " " && step["content"] == "▁";
            step["type"] == "Replace" && is_space
        };
        let is_prepend = |step: &Json| step["type"] == "Prepend" && step["prepend"] == "▁";
        match steps[..] {
            _ if !self.json["pre_tokenizer"].is_null() => {}
            [prepend, replace] if is_prepend(prepend) && is_replace(replace) => return Ok(true),
            [replace] if is_replace(replace) => return Ok(false),
            _ => {}
        }
        Err(no_gguf("a normalizer or pre-tokenizer that is not SentencePiece's"))
    }

    /// A score for each token, so that the merges that the reader makes of them are those of the
    /// file.
    fn scores(&self, tokens: &[Token]) -> Result<Vec<f32>, TextError> {
        let model = &self.json["model"];
        if model["byte_fallback"] != true || model["fuse_unk"] != true {
            return Err(no_gguf("a BPE model that is not SentencePiece's"));
        }
        let vocab: Vocab = tokens.iter().map(|(text, _)| text.clone()).zip(0..).collect();
        let merges: Vec<(&str, &str)> = self.merges().collect();
        // The earlier the first merge that makes a piece, the higher is the piece's score.
        let mut scores = vec![-(merges.len() as f32); tokens.len()];
        let mut seen = HashSet::new();
        for (rank, (left, right)) in merges.iter().enumerate() {
            let piece = format!("{left}{right}");
            let Some(&id) = vocab.get(&piece) else { continue };
            if seen.insert(id) {
                scores[id as usize] = -(rank as f32);
            }
        }
        let normal = tokens.iter().zip(&scores).filter(|((_, kind), _)| *kind == NORMAL);
        let pieces: Vec<(&str, f32)> =
            normal.map(|((text, _), score)| (&text[..], *score)).collect();
        let made = merges::from_scores(&vocab, &pieces)?;
        let made = made.iter().map(|(left, right)| (&left[..], &right[..])).collect();
        if by_piece(made) != by_piece(merges) {
            return Err(no_gguf("merges that no scores of pieces make"));
        }
        Ok(scores)
    }
}

/// The merges, with those in a row that make the same piece sorted: their order decides nothing.
fn by_piece<'a>(mut merges: Vec<(&'a str, &'a str)>) -> Vec<(&'a str, &'a str)> {
    let same = |a: &(&str, &str), b: &(&str, &str)| {
        a.0.len() + a.1.len() == b.0.len() + b.1.len()
            && a.0.bytes().chain(a.1.bytes()).eq(b.0.bytes().chain(b.1.bytes()))
    };
    merges.chunk_by_mut(same).for_each(<[_]>::sort_unstable);
    merges
}

#[cfg(test)]
mod tests;
