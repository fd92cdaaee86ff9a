//! The parts of `tokenizer.json` around its model: normalizer, pre-tokenizer, post-processor and
//! decoder. Those that the supported families use are accepted, any other is a typed error.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::detokenize::Spelling;
use super::error::{TextError, one_line};

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

/// Normalizers or pre-tokenizers in a row at most: some make a text longer by a factor.
const MAX_STEPS: usize = 16;

/// What is done to a text before it is cut into words.
pub(super) fn normalizer(part: Json) -> Result<Option<NormalizerWrapper>, TextError> {
    for replace in steps(&part).into_iter().filter(|step| kind(step) == "Replace") {
        check_replace(replace)?;
    }
    checked("normalizer", part, NORMALIZERS)
}

/// How a text is cut into words.
pub(super) fn pre_tokenizer(part: Json) -> Result<Option<PreTokenizerWrapper>, TextError> {
    checked("pre_tokenizer", part, PRE_TOKENIZERS)
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
    let steps = steps(&part);
    if steps.len() > MAX_STEPS {
        let reason = format!("its {what} has {} parts, over {MAX_STEPS}", steps.len());
        return Err(TextError::Vocabulary(reason));
    }
    for step in steps {
        let kind = kind(step);
        if !allowed.contains(&kind) {
            return Err(unsupported(what, kind));
        }
    }
    serde_json::from_value(part).map(Some).map_err(library_error)
}

/// A text may not grow (twelve times `a` to `aaaaaaaaaa` are a terabyte), and the library panics on a pattern that
/// matches nothing.
fn check_replace(replace: &Json) -> Result<(), TextError> {
    let num_chars = |text: &Json| text.as_str().map(|text| text.chars().count());
    match (num_chars(&replace["pattern"]["String"]), num_chars(&replace["content"])) {
        (Some(pattern), Some(content)) if pattern >= content.max(1) => Ok(()),
        _ => Err(TextError::Vocabulary(
            "a Replace normalizer that is not of a string by one as long or shorter is not supported"
                .to_owned(),
        )),
    }
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

/// The ids that `post_processor` adds before and after a text.
pub(super) fn added_around(post_processor: &Json) -> Result<(Vec<u32>, Vec<u32>), TextError> {
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
    /// The ids before and after the text `A`, which the template names once.
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
pub(super) fn spelling(decoder: &Json) -> Result<Spelling, TextError> {
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

/// A part of a kind that none of the supported families uses.
pub(super) fn unsupported(what: &str, kind: &str) -> TextError {
    TextError::Vocabulary(format!("a {what} of type '{}' is not supported", one_line(kind)))
}

/// What the library or serde says is wrong.
pub(super) fn library_error(error: impl ToString) -> TextError {
    TextError::Vocabulary(one_line(error))
}
