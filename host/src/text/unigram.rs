//! Unigram models: the segmentation whose pieces have the highest sum of scores.

use tokenizers::models::unigram::Unigram;

use super::error::TextError;
use super::merges::MAX_TOKEN_BYTES;
use super::pipeline::library_error;

/// Most bytes of all tokens. mT5's 250,000 have 2 MB; the library takes some 300 bytes for each.
const MAX_VOCAB_BYTES: usize = 8 << 20;

/// A Unigram model in the words of `tokenizer.json`.
#[derive(serde::Deserialize)]
pub(super) struct Parts {
    pub vocab: Vec<(String, f64)>,
    pub unk_id: Option<usize>,
    #[serde(default)]
    pub byte_fallback: bool,
}

impl Parts {
    /// The model, with everything checked that the library takes on trust.
    pub fn build(self) -> Result<Unigram, TextError> {
        if self.vocab.is_empty() {
            return Err(TextError::Vocabulary("the vocabulary is empty".to_owned()));
        }
        let lens = self.vocab.iter().map(|(token, _)| token.len());
        if let Some(len) = lens.clone().find(|&len| len > MAX_TOKEN_BYTES) {
            let reason = format!("a token is {len} bytes long, over {MAX_TOKEN_BYTES}");
            return Err(TextError::Vocabulary(reason));
        }
        if lens.sum::<usize>() > MAX_VOCAB_BYTES {
            let reason = format!("its tokens have over {MAX_VOCAB_BYTES} bytes");
            return Err(TextError::Vocabulary(reason));
        }
        Unigram::from(self.vocab, self.unk_id, self.byte_fallback).map_err(library_error)
    }
}
