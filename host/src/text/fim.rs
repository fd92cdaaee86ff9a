//! Fill-in-the-middle: prompts of what is before a gap and what is after it.
//!
//! ```text
//! <repo>myproject\n <file>NAME\n TEXT .. <file>filename\n  <prefix> PREFIX <suffix> SUFFIX <middle>
//! ```
//! Sources: the repository form is Qwen2.5-Coder's (arXiv:2409.12186), written as llama.cpp writes it; other orders are those
//! of Mellum's and Codestral's model cards.

#[cfg(test)]
mod tests;

use super::error::TextError;
use super::prompt::PlainText;
use super::{Tokenizer, gguf};
use crate::weights::gguf::{Metadata, Value};
use std::path::Path;

/// Names of the tokens in vocabularies: Qwen, Granite and others; StarCoder, StarCoder2, Mellum; DeepSeek; CodeLlama;
/// Codestral; GLM.
const PREFIX: [&str; 8] = [
    "<|fim_prefix|>",
    "<fim_prefix>",
    "<fim-prefix>",
    "<｜fim▁begin｜>",
    "▁<PRE>",
    "<PRE>",
    "[PREFIX]",
    "<|code_prefix|>",
];
const SUFFIX: [&str; 8] = [
    "<|fim_suffix|>",
    "<fim_suffix>",
    "<fim-suffix>",
    "<｜fim▁hole｜>",
    "▁<SUF>",
    "<SUF>",
    "[SUFFIX]",
    "<|code_suffix|>",
];
const MIDDLE: [&str; 7] = [
    "<|fim_middle|>",
    "<fim_middle>",
    "<fim-middle>",
    "<｜fim▁end｜>",
    "▁<MID>",
    "<MID>",
    "<|code_middle|>",
];
const PAD: [&str; 4] = ["<|fim_pad|>", "<fim_pad>", "<fim-pad>", "<PAD>"];
const REPO: [&str; 6] =
    ["<|fim_repo|>", "<|repo_name|>", "<repo_name>", "<|reponame|>", "<reponame>", "<fim-repo>"];
const FILE: [&str; 4] = ["<|file_sep|>", "<file_sep>", "<|filename|>", "<filename>"];
/// Tokens that end what is filled in, though the end of a chat's turn may be another one.
const ENDS: [&str; 6] =
    ["<|endoftext|>", "▁<EOT>", "<EOT>", "<|end_of_text|>", "<｜end▁of▁sentence｜>", "</s>"];

/// Codestral's order has no middle token.
const CODESTRAL: &str = "[PREFIX]";
/// A family that wants the suffix first, though its tokens are StarCoder's.
const SUFFIX_FIRST: &str = "mellum";

/// What stands between files where the model has no token for it.
const SNIPPET: &str = "\n\n--- snippet ---\n\n";
/// Names that a request has none for.
const PROJECT: &str = "myproject\n";
const CURRENT_FILE: &str = "filename\n";

/// Tokens that the file before the gap is cut to at most, and shares of them: as in llama.cpp, whose batch it is.
const MAX_WINDOW: usize = 2048;
/// What is cut off a beginning is a multiple of the window by this, so that it stays the same while somebody types.
const STEPS: usize = 8;

/// Tokens of a model that fills in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FillInMiddle {
    prefix: u32,
    suffix: u32,
    /// None where the order alone says what is wanted.
    middle: Option<u32>,
    repo: Option<u32>,
    file: Option<u32>,
    is_suffix_first: bool,
    /// Tokens that end what is filled in, beside the model's own.
    pub stop_tokens: Vec<u32>,
}

/// A gap, and what is around it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Text before it.
    pub prefix: String,
    /// Text after it.
    pub suffix: String,
    /// Other files, or parts of them: names and texts.
    pub files: Vec<(String, String)>,
}

impl FillInMiddle {
    /// Tokens that the metadata of a GGUF file or the vocabulary name.
    ///
    /// # Errors
    /// [`TextError::Metadata`] for an id that is no integer.
    pub(super) fn from_gguf(
        metadata: &Metadata,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, TextError> {
        let name = ["general.name", "general.basename"].map(|key| match metadata.get(key) {
            Some(Value::String(name)) => name.to_lowercase(),
            _ => String::new(),
        });
        // Newer files have the first name, older ones the second.
        let id = |names: [&str; 2]| -> Result<Option<u32>, TextError> {
            match gguf::special_id(metadata, names[0])? {
                None => gguf::special_id(metadata, names[1]),
                found => Ok(found),
            }
        };
        let given = Given {
            prefix: id(["fim_pre", "prefix"])?,
            suffix: id(["fim_suf", "suffix"])?,
            middle: id(["fim_mid", "middle"])?,
            pad: id(["fim_pad", "fim_pad"])?,
            repo: id(["fim_rep", "fim_rep"])?,
            file: id(["fim_sep", "fim_sep"])?,
        };
        let is_suffix_first = name.iter().any(|name| name.contains(SUFFIX_FIRST));
        Ok(Self::find(tokenizer, given, is_suffix_first))
    }

    /// Tokens that the vocabulary of a directory names.
    pub(super) fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Option<Self> {
        let path = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let is_suffix_first = path.to_string_lossy().to_lowercase().contains(SUFFIX_FIRST);
        Self::find(tokenizer, Given::default(), is_suffix_first)
    }

    fn find(tokenizer: &Tokenizer, given: Given, is_suffix_first: bool) -> Option<Self> {
        let named = |names: &[&str]| names.iter().find_map(|name| tokenizer.token_to_id(name));
        let prefix = given.prefix.or_else(|| named(&PREFIX))?;
        let suffix = given.suffix.or_else(|| named(&SUFFIX))?;
        let middle = given.middle.or_else(|| named(&MIDDLE));
        let is_codestral = tokenizer.token_to_id(CODESTRAL) == Some(prefix);
        if middle.is_none() && !is_codestral {
            return None;
        }
        let middle = middle.filter(|_| !is_codestral);
        let repo = given.repo.or_else(|| named(&REPO));
        let file = given.file.or_else(|| named(&FILE));
        let pad = given.pad.or_else(|| named(&PAD));
        let ends = ENDS.iter().filter_map(|name| tokenizer.token_to_id(name));
        let stop_tokens = ends.chain(pad).chain(repo).chain(file).collect();
        let is_suffix_first = is_suffix_first || is_codestral;
        Some(FillInMiddle { prefix, suffix, middle, repo, file, is_suffix_first, stop_tokens })
    }

    /// The prompt of a gap, of `room` tokens at most: the text before the gap loses its beginning, that after it its end,
    /// and other files lose theirs from the first one on. Control tokens that a text spells out are text.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub(super) fn prompt(
        &self,
        tokenizer: &Tokenizer,
        plain: &PlainText,
        gap: &Gap,
        room: usize,
    ) -> Result<Vec<u32>, TextError> {
        let encode = |text: &str| match text {
            "" => Ok(Vec::new()),
            text => plain.encode(tokenizer, text),
        };
        let mut files = Vec::new();
        if let Some(repo) = self.repo {
            files.push(repo);
            files.extend(encode(PROJECT)?);
        }
        for (name, text) in &gap.files {
            match self.file {
                Some(file) => {
                    files.push(file);
                    files.extend(encode(&format!("{name}\n"))?);
                }
                None => files.extend(encode(SNIPPET)?),
            }
            files.extend(encode(text)?);
        }
        let mut before = Vec::new();
        if let Some(file) = self.file {
            before.push(file);
            before.extend(encode(CURRENT_FILE)?);
        }
        let (prefix, suffix) = (encode(&gap.prefix)?, encode(&gap.suffix)?);
        let bos = tokenizer.bos();
        let marks = 2 + usize::from(self.middle.is_some());
        let overhead = usize::from(bos.is_some()) + before.len() + marks;
        let window = room.saturating_sub(overhead).min(MAX_WINDOW);
        let (num_prefix, num_suffix) = shares(prefix.len(), suffix.len(), window);
        let prefix = tail(&prefix, num_prefix, window / STEPS);
        let suffix = &suffix[..num_suffix];
        let left = room.saturating_sub(overhead + prefix.len() + suffix.len());
        let files = tail(&files, left, room / STEPS);
        let (prefix_mark, suffix_mark) = ([self.prefix], [self.suffix]);
        let [first, second] = match self.is_suffix_first {
            true => [[&suffix_mark[..], suffix], [&prefix_mark[..], prefix]],
            false => [[&prefix_mark[..], prefix], [&suffix_mark[..], suffix]],
        };
        let bos = bos.into_iter().chain(files.iter().copied()).chain(before);
        let marked = [first, second].into_iter().flatten().flatten().copied();
        Ok(bos.chain(marked).chain(self.middle).collect())
    }
}

impl Gap {
    /// Without what no context of `max` bytes has room for, before it is encoded: other files, a prefix and a suffix of so
    /// many bytes each.
    #[must_use]
    pub fn cut_to_bytes(mut self, max: usize) -> Self {
        cut_beginning(&mut self.prefix, max);
        self.suffix.truncate(self.suffix.floor_char_boundary(max));
        let mut left = max;
        for (name, text) in self.files.iter_mut().rev() {
            cut_beginning(text, left);
            left = left.saturating_sub(name.len() + text.len());
        }
        let first = self.files.iter().position(|(_, text)| !text.is_empty());
        self.files.drain(..first.unwrap_or(self.files.len()));
        self
    }
}

/// Leaves the last bytes, `max` at most, from a multiple of a step on.
fn cut_beginning(text: &mut String, max: usize) {
    let cut = text.len().saturating_sub(max).next_multiple_of((max / STEPS).max(1));
    let cut = text.ceil_char_boundary(cut.min(text.len()));
    text.drain(..cut);
}

/// Tokens that the metadata name.
#[derive(Default)]
struct Given {
    prefix: Option<u32>,
    suffix: Option<u32>,
    middle: Option<u32>,
    pad: Option<u32>,
    repo: Option<u32>,
    file: Option<u32>,
}

/// How much of a prefix and a suffix is taken: three to one where both are long.
fn shares(prefix: usize, suffix: usize, window: usize) -> (usize, usize) {
    let for_suffix = suffix.min((window / 4).max(window.saturating_sub(prefix)));
    (prefix.min(window - for_suffix), for_suffix)
}

/// The last tokens, `max` at most, from a multiple of `step` on.
fn tail(tokens: &[u32], max: usize, step: usize) -> &[u32] {
    let cut = tokens.len().saturating_sub(max).next_multiple_of(step.max(1));
    &tokens[cut.min(tokens.len())..]
}
