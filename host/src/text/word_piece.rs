//! WordPiece models: the longest piece of a word that the vocabulary has, again and again.

use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;

use super::error::{TextError, one_line};
use super::merges::MAX_TOKEN_BYTES;
use super::pipeline::library_error;

/// What a piece begins with that is not the first of its word.
pub(super) const CONTINUING_PREFIX: &str = "##";

/// Most characters of a word: a longer one is unknown. All pieces of a word are tried at each of
/// its characters.
const MAX_WORD_CHARS: usize = 1024;

/// A WordPiece model in the words of `tokenizer.json`.
#[derive(serde::Deserialize)]
pub(super) struct Parts {
    pub vocab: Vocab,
    pub unk_token: String,
    pub continuing_subword_prefix: String,
    pub max_input_chars_per_word: usize,
}

impl Parts {
    /// The model, with everything checked that the library takes on trust.
    pub fn build(self) -> Result<WordPiece, TextError> {
        let Parts { vocab, unk_token, continuing_subword_prefix, max_input_chars_per_word } = self;
        let refuse = |reason: String| Err(TextError::Vocabulary(reason));
        if !vocab.contains_key(&unk_token) {
            return refuse(format!("unk_token '{}' is not in it", one_line(unk_token)));
        }
        if continuing_subword_prefix != CONTINUING_PREFIX {
            let prefix = one_line(continuing_subword_prefix);
            return refuse(format!("a continuing_subword_prefix of '{prefix}' is not supported"));
        }
        if max_input_chars_per_word > MAX_WORD_CHARS {
            return refuse(format!(
                "max_input_chars_per_word is {max_input_chars_per_word}, over {MAX_WORD_CHARS}"
            ));
        }
        if let Some(len) = vocab.keys().map(String::len).find(|&len| len > MAX_TOKEN_BYTES) {
            return refuse(format!("a token is {len} bytes long, over {MAX_TOKEN_BYTES}"));
        }
        if let Some((token, id)) = vocab.iter().find(|(_, id)| i32::try_from(**id).is_err()) {
            return refuse(format!("token '{}' has the id {id}", one_line(token)));
        }
        WordPiece::builder()
            .vocab(vocab)
            .unk_token(unk_token)
            .continuing_subword_prefix(continuing_subword_prefix)
            .max_input_chars_per_word(max_input_chars_per_word)
            .build()
            .map_err(library_error)
    }
}
