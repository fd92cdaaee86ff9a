//! The tokenizer inside a GGUF file (`tokenizer.ggml.*`).

mod encoders;

use std::collections::BTreeMap;

use tokenizers::models::bpe::{Merges, Vocab};
use tokenizers::normalizers::{Prepend, Replace, Sequence};
use tokenizers::{AddedToken, NormalizerWrapper};

use super::detokenize::Spelling;
use super::error::{TextError, one_line};
use super::merges::{self, Parts};
use super::pipeline::library_error;
use super::pre_tokenizer::{Kind, SENTENCE_PIECE};
use super::template::{ChatTemplate, DEFAULT};
use super::tokenizer::Tokenizer;
use crate::weights::gguf::{Metadata, Value};

/// Most warnings of a file.
const MAX_WARNINGS: usize = 8;

const MODEL: &str = "tokenizer.ggml.model";
const PRE: &str = "tokenizer.ggml.pre";
const TOKENS: &str = "tokenizer.ggml.tokens";
const TOKEN_TYPE: &str = "tokenizer.ggml.token_type";
const SCORES: &str = "tokenizer.ggml.scores";
const MERGES: &str = "tokenizer.ggml.merges";

/// The key of the chat template; others follow it with a point and their name.
const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// Special tokens in GGUF's words and in transformers'.
const SPECIAL_TOKENS: [(&str, &str); 8] = [
    ("bos", "bos_token"),
    ("eos", "eos_token"),
    ("unknown", "unk_token"),
    ("seperator", "sep_token"),
    ("separator", "sep_token"),
    ("padding", "pad_token"),
    ("cls", "cls_token"),
    ("mask", "mask_token"),
];

/// The tokenizer of the file, if it has one.
pub(super) fn tokenizer(metadata: &Metadata) -> Result<Option<Tokenizer>, TextError> {
    match string(metadata, MODEL)? {
        None | Some("none" | "no_vocab") => Ok(None),
        Some("gpt2") => match string(metadata, PRE)? {
            Some(pre) if SENTENCE_PIECE.contains(&pre) => merged_pieces(metadata).map(Some),
            pre => byte_level(metadata, Kind::find(pre.unwrap_or("default"))?).map(Some),
        },
        Some("gemma4") => merged_pieces(metadata).map(Some),
        Some("llama") => sentence_piece(metadata).map(Some),
        Some("bert") => encoders::word_piece(metadata).map(Some),
        Some("t5") => encoders::unigram(metadata).map(Some),
        Some(other) => Err(TextError::TokenizerModel { name: one_line(other) }),
    }
}

/// What is missing or odd in the file and no error, a line each; llama.cpp warns of the same.
pub(super) fn warnings(metadata: &Metadata) -> Vec<String> {
    let mut warnings = Vec::new();
    let is = |key, value| matches!(metadata.get(key), Some(Value::String(text)) if text == value);
    if is(MODEL, "gpt2") && metadata.get(PRE).is_none() {
        warnings.push(format!(
            "GGUF metadata '{PRE}' is missing: texts are cut into words as 'default' does, and \
             answers may be worse; convert the model again with a current llama.cpp"
        ));
    }
    let vocab_size = metadata.get_array(TOKENS).map_or(0, <[Value]>::len);
    for (key, value) in &metadata.0 {
        let is_id = key.starts_with("tokenizer.ggml.") && key.ends_with("_token_id");
        if is_id && value.as_u64().is_none_or(|id| id >= vocab_size as u64) {
            let key = one_line(key);
            let reason = format!("is no id below the vocabulary's size {vocab_size}");
            warnings.push(format!("GGUF metadata '{key}' {reason}, and not used"));
        }
    }
    // SentencePiece has ids of its own for them.
    if is(MODEL, "gpt2") {
        let pre = string(metadata, PRE).ok().flatten().unwrap_or("default");
        let adds_bos = Kind::find(pre).is_ok_and(|kind| kind.add_bos);
        for (name, adds) in [("bos", adds_bos), ("eos", false)] {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let said = bool(metadata, &format!("tokenizer.ggml.add_{name}_token")).ok().flatten();
            if said.unwrap_or(adds) && metadata.get(&key).is_none() {
                warnings.push(format!("GGUF metadata '{key}' is missing: texts get none"));
            }
        }
    }
    warnings.truncate(MAX_WARNINGS);
    warnings
}

/// The chat template of the file, if it has one; `template` takes the place of all that are there.
pub(super) fn chat_template(
    metadata: &Metadata,
    tokenizer: &Tokenizer,
    template: Option<&str>,
) -> Result<Option<ChatTemplate>, TextError> {
    let mut sources = Vec::new();
    for key in metadata.0.keys().filter(|key| key.starts_with(CHAT_TEMPLATE)) {
        let name = match key[CHAT_TEMPLATE.len()..].strip_prefix('.') {
            Some(name) => name,
            None if key == CHAT_TEMPLATE => DEFAULT,
            // `tokenizer.chat_templates`: the names.
            None => continue,
        };
        sources.extend(string(metadata, key)?.map(|source| (name.to_owned(), source.to_owned())));
    }
    sources.sort();
    if let Some(source) = template {
        sources = vec![(DEFAULT.to_owned(), source.to_owned())];
    }
    let mut special = BTreeMap::new();
    for (key, name) in SPECIAL_TOKENS {
        let is_optional = !matches!(key, "bos" | "eos");
        let id = special_id(metadata, key)
            .or_else(|error| if is_optional { Ok(None) } else { Err(error) })?;
        let token = id.and_then(|id| tokenizer.id_to_token(id));
        special.extend(token.map(|token| (name.to_owned(), token)));
    }
    Ok(ChatTemplate::new(sources, special))
}

/// `tokenizer.ggml.<name>_token_id`; `None`, with one of the [`warnings`], if it is no id of the
/// vocabulary.
///
/// # Errors
/// [`TextError::Metadata`] if it is no integer.
pub(super) fn special_id(metadata: &Metadata, name: &str) -> Result<Option<u32>, TextError> {
    let key = format!("tokenizer.ggml.{name}_token_id");
    let value = match metadata.get(&key) {
        None => return Ok(None),
        Some(
            Value::F32(_) | Value::F64(_) | Value::Bool(_) | Value::String(_) | Value::Array(_),
        ) => {
            return Err(wrong(&key, "is no integer".to_owned()));
        }
        Some(value) => value.as_u64().and_then(|id| u32::try_from(id).ok()),
    };
    // A file without a tokenizer still names its end of sequence: any id will do there.
    let vocab_size = metadata.get_array(TOKENS).map_or(1 << 32, <[Value]>::len);
    Ok(value.filter(|&id| (id as usize) < vocab_size))
}

/// `gpt2`: byte-level BPE with its merges.
fn byte_level(metadata: &Metadata, kind: &Kind) -> Result<Tokenizer, TextError> {
    let tokens = Tokens::read(metadata)?;
    let parts = Parts {
        vocab: tokens.vocab()?,
        merges: merges(metadata)?,
        ignore_merges: kind.ignore_merges,
        ..Parts::default()
    };
    let mut tokenizer = tokenizers::Tokenizer::new(parts.build()?);
    tokenizer.with_pre_tokenizer(Some(kind.build()?));
    tokens.add_special(&mut tokenizer, |_| false)?;
    let bos = added(metadata, "bos", kind.add_bos, None)?;
    let eos = added(metadata, "eos", false, None)?;
    Ok(Tokenizer::new(tokenizer, Spelling::ByteLevel, bos, eos))
}

/// `gemma4`: SentencePiece's BPE with its merges.
fn merged_pieces(metadata: &Metadata) -> Result<Tokenizer, TextError> {
    let tokens = Tokens::read(metadata)?;
    let parts = Parts {
        vocab: tokens.vocab()?,
        merges: merges(metadata)?,
        unk_token: tokens.first_of(TokenType::Unknown).map(str::to_owned),
        fuse_unk: true,
        byte_fallback: true,
        ..Parts::default()
    };
    let mut tokenizer = tokenizers::Tokenizer::new(parts.build()?);
    let replace = Replace::new(" ", "▁").map_err(library_error)?;
    tokenizer.with_normalizer(Some(replace)).map_err(library_error)?;
    tokens.add_special(&mut tokenizer, |_| false)?;
    let spelling = Spelling::SentencePiece { strip_leading_space: false };
    let bos = added(metadata, "bos", false, None)?;
    let eos = added(metadata, "eos", false, None)?;
    Ok(Tokenizer::new(tokenizer, spelling, bos, eos))
}

/// `llama`: SentencePiece's BPE, where a piece's score says when it is joined.
fn sentence_piece(metadata: &Metadata) -> Result<Tokenizer, TextError> {
    let tokens = Tokens::read(metadata)?;
    let vocab = tokens.vocab()?;
    let pieces = tokens.scored_pieces(metadata)?;
    let parts = Parts {
        merges: merges::from_scores(&vocab, &pieces)?,
        unk_token: tokens.first_of(TokenType::Unknown).map(str::to_owned),
        fuse_unk: true,
        byte_fallback: true,
        vocab,
        ..Parts::default()
    };
    let mut tokenizer = tokenizers::Tokenizer::new(parts.build()?);
    let add_space_prefix = bool(metadata, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if add_space_prefix {
        steps.push(Prepend::new("▁".to_owned()).into());
    }
    steps.push(Replace::new(" ", "▁").map_err(library_error)?.into());
    tokenizer.with_normalizer(Some(Sequence::new(steps))).map_err(library_error)?;
    // Phi-3's tokenizer.json has special tokens that take in the space after them, and GGUF has
    // no word for that.
    let is_phi3 = string(metadata, "general.architecture")? == Some("phi3");
    let takes_space = |token: &str| is_phi3 && !matches!(token, "<unk>" | "<s>" | "<|endoftext|>");
    tokens.add_special(&mut tokenizer, takes_space)?;
    let spelling = Spelling::SentencePiece { strip_leading_space: add_space_prefix };
    let bos = added(metadata, "bos", true, Some(1))?;
    let eos = added(metadata, "eos", false, Some(2))?;
    Ok(Tokenizer::new(tokenizer, spelling, bos, eos))
}

/// The token that is put before each text (`bos`) or after it (`eos`), if the file says so and has
/// it; `add` holds where the file doesn't say, and `default` where it has no such token.
fn added(
    metadata: &Metadata,
    name: &str,
    add: bool,
    default: Option<u32>,
) -> Result<Vec<u32>, TextError> {
    if !bool(metadata, &format!("tokenizer.ggml.add_{name}_token"))?.unwrap_or(add) {
        return Ok(Vec::new());
    }
    let num_tokens = metadata.get_array(TOKENS).map_or(0, <[Value]>::len);
    let default = default.filter(|&id| (id as usize) < num_tokens);
    Ok(special_id(metadata, name)?.or(default).into_iter().collect())
}

/// What a token is for; llama.cpp's `llama_token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TokenType {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Byte,
}

impl TokenType {
    fn of(value: &Value) -> Option<Self> {
        match value.as_u64()? {
            2 => Some(Self::Unknown),
            3 => Some(Self::Control),
            4 => Some(Self::UserDefined),
            6 => Some(Self::Byte),
            // 1 is normal; 0 and 5, undefined and unused, are never looked for.
            0..=5 => Some(Self::Normal),
            _ => None,
        }
    }
}

/// The vocabulary: text and type by id.
struct Tokens<'a>(Vec<(&'a str, TokenType)>);

impl<'a> Tokens<'a> {
    fn read(metadata: &'a Metadata) -> Result<Self, TextError> {
        let texts =
            array(metadata, TOKENS)?.ok_or_else(|| wrong(TOKENS, "is missing".to_owned()))?;
        let types = array(metadata, TOKEN_TYPE)?;
        if let Some(types) = types.filter(|types| types.len() != texts.len()) {
            return Err(wrong_length(TOKEN_TYPE, types.len(), texts.len()));
        }
        let mut tokens = Vec::with_capacity(texts.len());
        for (id, text) in texts.iter().enumerate() {
            let Value::String(text) = text else {
                return Err(wrong(TOKENS, format!("holds no string at {id}")));
            };
            let token_type = match types {
                None => TokenType::Normal,
                Some(types) => TokenType::of(&types[id])
                    .ok_or_else(|| wrong(TOKEN_TYPE, format!("holds no token type at {id}")))?,
            };
            tokens.push((text.as_str(), token_type));
        }
        Ok(Self(tokens))
    }

    /// Token to id.
    fn vocab(&self) -> Result<Vocab, TextError> {
        let mut vocab = Vocab::with_capacity(self.0.len());
        for (id, &(text, _)) in (0..).zip(&self.0) {
            // No text leads to an empty token; some files have several.
            let text = if text.is_empty() { format!("[EMPTY_{id}]") } else { text.to_owned() };
            if let Some(first) = vocab.insert(text, id) {
                return Err(wrong(TOKENS, format!("has the same token at {first} and {id}")));
            }
        }
        Ok(vocab)
    }

    /// The scores of all tokens.
    fn scores(&self, metadata: &Metadata) -> Result<Vec<f64>, TextError> {
        let scores =
            array(metadata, SCORES)?.ok_or_else(|| wrong(SCORES, "is missing".to_owned()))?;
        if scores.len() != self.0.len() {
            return Err(wrong_length(SCORES, scores.len(), self.0.len()));
        }
        let score = |(id, score): (usize, &Value)| match *score {
            Value::F32(score) => Ok(f64::from(score)),
            _ => Err(wrong(SCORES, format!("holds no f32 at {id}"))),
        };
        scores.iter().enumerate().map(score).collect()
    }

    /// The pieces that merges lead to, with their scores.
    fn scored_pieces(&self, metadata: &Metadata) -> Result<Vec<(&'a str, f32)>, TextError> {
        let pieces = self.0.iter().zip(self.scores(metadata)?);
        let is_piece = |(&(text, token_type), score): (&(&'a str, TokenType), f64)| {
            (token_type == TokenType::Normal).then_some((text, score as f32))
        };
        Ok(pieces.filter_map(is_piece).collect())
    }

    /// The first token of a type.
    fn first_of(&self, wanted: TokenType) -> Option<&'a str> {
        self.0.iter().find(|(_, token_type)| *token_type == wanted).map(|&(text, _)| text)
    }

    /// Tells `tokenizer` which tokens are matched in a text before anything else: control tokens,
    /// which are no text, and those that users defined. `takes_space` says which of them take the
    /// spaces after them in.
    fn add_special(
        &self,
        tokenizer: &mut tokenizers::Tokenizer,
        takes_space: impl Fn(&str) -> bool,
    ) -> Result<(), TextError> {
        let added = self.0.iter().filter_map(|&(text, token_type)| {
            let special = match token_type {
                TokenType::Unknown | TokenType::Control => true,
                TokenType::UserDefined => false,
                TokenType::Normal | TokenType::Byte => return None,
            };
            Some(AddedToken::from(text, special).normalized(false).rstrip(takes_space(text)))
        });
        tokenizer
            .add_tokens(added)
            .map_err(|error| TextError::Vocabulary(one_line(error)))
            .map(drop)
    }
}

/// `tokenizer.ggml.merges`: `left right`, where a token may begin with a space.
fn merges(metadata: &Metadata) -> Result<Merges, TextError> {
    let merges = array(metadata, MERGES)?.ok_or_else(|| wrong(MERGES, "is missing".to_owned()))?;
    let split = |(index, merge): (usize, &Value)| {
        let Value::String(merge) = merge else { return Err(index) };
        let space = merge.bytes().skip(1).position(|byte| byte == b' ').ok_or(index)? + 1;
        let (left, right) = merge.split_at(space);
        Ok((left.to_owned(), right[1..].to_owned()))
    };
    let merges: Result<Merges, usize> = merges.iter().enumerate().map(split).collect();
    merges.map_err(|index| wrong(MERGES, format!("holds no pair of tokens at {index}")))
}

fn string<'a>(metadata: &'a Metadata, key: &str) -> Result<Option<&'a str>, TextError> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::String(value)) => Ok(Some(value)),
        Some(_) => Err(wrong(key, "is no string".to_owned())),
    }
}

fn bool(metadata: &Metadata, key: &str) -> Result<Option<bool>, TextError> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::Bool(value)) => Ok(Some(*value)),
        Some(_) => Err(wrong(key, "is no Boolean".to_owned())),
    }
}

fn array<'a>(metadata: &'a Metadata, key: &str) -> Result<Option<&'a [Value]>, TextError> {
    match metadata.get(key) {
        None => Ok(None),
        Some(Value::Array(values)) => Ok(Some(values)),
        Some(_) => Err(wrong(key, "is no array".to_owned())),
    }
}

fn wrong(key: &str, reason: String) -> TextError {
    TextError::Metadata { key: key.to_owned(), reason }
}

fn wrong_length(key: &str, len: usize, num_tokens: usize) -> TextError {
    wrong(key, format!("has {len} entries for {num_tokens} tokens"))
}
