//! The parts of `tokenizer.json` around its model: normalizer, pre-tokenizer, post-processor and
//! decoder. Those that the supported families use are accepted, any other is a typed error.

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::detokenize::Spelling;
use super::error::{TextError, one_line};
use super::word_piece::CONTINUING_PREFIX;
use super::{charsmap, oniguruma};

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
    "Nmt",
    "Precompiled",
    "BertNormalizer",
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
    "CharDelimiterSplit",
    "UnicodeScripts",
    "BertPreTokenizer",
];

/// Normalizers or pre-tokenizers in a row at most: some make a text longer by a factor.
const MAX_STEPS: usize = 16;

/// How many times as many characters all Replace normalizers together may make of a text.
const MAX_GROWTH: f64 = 16.0;

/// What is done to a text before it is cut into words.
pub(super) fn normalizer(mut part: Json) -> Result<Option<NormalizerWrapper>, TextError> {
    let mut growth = 1.0;
    for step in steps(&part) {
        match kind(step) {
            "Replace" => growth *= replace_growth(step)?,
            "Precompiled" => charsmap::check(&step["precompiled_charsmap"])?,
            _ => {}
        }
    }
    if growth > MAX_GROWTH {
        let reason = format!("its Replace normalizers make texts over {MAX_GROWTH} times as long");
        return Err(TextError::Vocabulary(reason));
    }
    translate_patterns(&mut part)?;
    checked("normalizer", part, NORMALIZERS)
}

/// How a text is cut into words.
pub(super) fn pre_tokenizer(mut part: Json) -> Result<Option<PreTokenizerWrapper>, TextError> {
    translate_patterns(&mut part)?;
    checked("pre_tokenizer", part, PRE_TOKENIZERS)
}

/// Puts patterns of the library's syntax in place of Oniguruma's.
fn translate_patterns(part: &mut Json) -> Result<(), TextError> {
    if let Some(Json::String(pattern)) = part.pointer_mut("/pattern/Regex") {
        *pattern = oniguruma::translate(pattern)?;
    }
    for name in SEQUENCES {
        for step in part.get_mut(name).and_then(Json::as_array_mut).into_iter().flatten() {
            translate_patterns(step)?;
        }
    }
    Ok(())
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

/// How many times as many characters a Replace normalizer makes of a text at most. The library
/// panics on a pattern that matches nothing.
fn replace_growth(replace: &Json) -> Result<f64, TextError> {
    let pattern = &replace["pattern"];
    let shortest = match (&pattern["String"], &pattern["Regex"]) {
        (Json::String(text), _) => text.chars().count(),
        (_, Json::String(regex)) => usize::from(!oniguruma::may_match_nothing(regex)?),
        _ => 0,
    };
    let Some(content) = replace["content"].as_str().filter(|_| shortest > 0) else {
        let reason = "a Replace normalizer of what may be empty is not supported";
        return Err(TextError::Vocabulary(reason.to_owned()));
    };
    Ok((content.chars().count() as f64 / shortest as f64).max(1.0))
}

/// The fields in which sequences have their steps.
const SEQUENCES: [&str; 4] = ["normalizers", "pretokenizers", "processors", "decoders"];

/// The parts that `part` is made of, itself included where it is a sequence of others.
fn steps(part: &Json) -> Vec<&Json> {
    let inner = SEQUENCES.into_iter().filter_map(|name| part[name].as_array()).flatten();
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
            "RobertaProcessing" | "BertProcessing" => {
                let around = ClsAndSep::deserialize(step).map_err(library_error)?;
                (prefix, suffix) = (vec![around.cls.1], vec![around.sep.1]);
            }
            kind => return Err(unsupported("post_processor", kind)),
        }
    }
    Ok((prefix, suffix))
}

/// The ids that `post_processor`, which [`added_around`] has read, adds before, between and after
/// two texts; `None` if it knows of none.
pub(super) fn added_around_pair(post_processor: &Json) -> Result<Option<[Vec<u32>; 3]>, TextError> {
    let mut pair = None;
    for step in steps(post_processor) {
        match kind(step) {
            "TemplateProcessing" => {
                let template = TemplateProcessing::deserialize(step).map_err(library_error)?;
                pair = template.around_pair();
            }
            kind @ ("RobertaProcessing" | "BertProcessing") => {
                let ClsAndSep { cls, sep } = ClsAndSep::deserialize(step).map_err(library_error)?;
                let between = vec![sep.1; if kind == "BertProcessing" { 1 } else { 2 }];
                pair = Some([vec![cls.1], between, vec![sep.1]]);
            }
            _ => {}
        }
    }
    Ok(pair)
}

#[derive(serde::Deserialize)]
struct TemplateProcessing {
    single: Vec<Piece>,
    #[serde(default)]
    pair: Vec<Piece>,
    special_tokens: HashMap<String, SpecialIds>,
}

/// `RobertaProcessing` and `BertProcessing`: a token before each text and one after it.
#[derive(serde::Deserialize)]
struct ClsAndSep {
    cls: (String, u32),
    sep: (String, u32),
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
        let text = place_of("A", &self.single)?;
        Some((self.ids(&self.single[..text])?, self.ids(&self.single[text + 1..])?))
    }

    /// The ids before, between and after the texts `A` and `B`.
    fn around_pair(&self) -> Option<[Vec<u32>; 3]> {
        let [first, second] = [place_of("A", &self.pair)?, place_of("B", &self.pair)?];
        Some([
            self.ids(&self.pair[..first])?,
            self.ids(self.pair.get(first + 1..second)?)?,
            self.ids(&self.pair[second + 1..])?,
        ])
    }

    /// The ids of `pieces`, none of which is a text.
    fn ids(&self, pieces: &[Piece]) -> Option<Vec<u32>> {
        let ids = pieces.iter().map(|piece| match piece {
            Piece::SpecialToken { id } => Some(self.special_tokens.get(id)?.ids.as_slice()),
            Piece::Sequence { .. } => None,
        });
        ids.collect::<Option<Vec<_>>>().map(|ids| ids.concat())
    }
}

/// Where the text `name` is among `pieces`.
fn place_of(name: &str, pieces: &[Piece]) -> Option<usize> {
    pieces.iter().position(|piece| matches!(piece, Piece::Sequence { id } if id == name))
}

/// Which spelling the decoder undoes.
pub(super) fn spelling(decoder: &Json) -> Result<Spelling, TextError> {
    if decoder.is_null() {
        return Ok(Spelling::Words);
    }
    let steps = steps(decoder);
    let steps = if steps.len() > 1 { &steps[1..] } else { &steps[..] };
    let kinds: Vec<&str> = steps.iter().map(|step| kind(step)).collect();
    let is_space = |step: &Json| step["pattern"]["String"] == "▁" && step["content"] == " ";
    let is_lead = |step: &Json| step["content"] == " " && step["start"] == 1 && step["stop"] == 0;
    let is_metaspace = |step: &Json| step["replacement"] == "▁";
    let is_prepended =
        |step: &Json| step["prepend_scheme"] != "never" && step["add_prefix_space"] != false;
    let strip_leading_space = match kinds.as_slice() {
        ["ByteLevel"] => return Ok(Spelling::ByteLevel),
        ["WordPiece"] if steps[0]["prefix"] == CONTINUING_PREFIX => {
            return Ok(Spelling::WordPiece { cleanup: steps[0]["cleanup"] != false });
        }
        ["Metaspace"] | ["ByteFallback", "Metaspace"] if is_metaspace(steps[steps.len() - 1]) => {
            let strips = is_prepended(steps[steps.len() - 1]);
            return Ok(Spelling::Metaspace { strip_leading_spaces: strips });
        }
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
