//! What can be wrong with a tokenizer, a chat template or a text.

use std::io;
use std::path::PathBuf;

/// Why a tokenizer or a chat template can't be used; one line each.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// A file is there but can't be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what its name says.
    #[error("{path} is malformed: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong in it.
        reason: String,
    },
    /// A GGUF key is missing, of another type, or out of range.
    #[error("GGUF metadata '{key}' {reason}")]
    Metadata {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// `tokenizer.ggml.model` is of a kind that is not supported.
    #[error(
        "tokenizer model '{name}'{} is not supported: 'gpt2' (BPE), 'llama' and 'gemma4' \
         (SentencePiece's BPE) are",
        model_kind(name)
    )]
    TokenizerModel {
        /// The model that the file names.
        name: String,
    },
    /// `tokenizer.ggml.pre` is of a kind that is not supported.
    #[error(
        "pre-tokenizer '{name}' is not supported; the kinds that are: {known}. Use a checkpoint \
         with tokenizer.json"
    )]
    PreTokenizer {
        /// The kind that the file names.
        name: String,
        /// The kinds there are.
        known: String,
    },
    /// A part of a tokenizer that a GGUF file cannot express.
    #[error("the tokenizer has {0}: GGUF has no form for it")]
    NoGguf(String),
    /// Tokens, merges and rules of a tokenizer don't fit together.
    #[error("tokenizer: {0}")]
    Vocabulary(String),
    /// No token covers a part of a text.
    #[error("text can't be tokenized: {0}")]
    Encode(String),
    /// A chat template is malformed, refuses the messages, or runs without end.
    #[error("chat template: {0}")]
    Template(String),
}

/// What a `tokenizer.ggml.model` of llama.cpp is that is not supported.
fn model_kind(name: &str) -> &'static str {
    match name {
        "rwkv" => " (greedy)",
        "plamo2" => " (Aho-Corasick)",
        _ => "",
    }
}

/// A message from a library or a file as one line of bounded length.
pub(crate) fn one_line(message: impl ToString) -> String {
    const MAX_CHARS: usize = 200;
    let message = message.to_string();
    let line = message.lines().next().unwrap_or_default();
    match line.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &line[..end]),
        None => line.to_owned(),
    }
}
