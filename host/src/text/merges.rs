//! Byte-pair merges: the checked way to a `tokenizers` BPE model, and merges from SentencePiece
//! scores.

use tokenizers::models::bpe::{BPE, BpeBuilder, Merges, Vocab};

use super::error::{TextError, one_line};

/// Longest normal token in bytes. Real vocabularies stay under 256 (runs of 128 spaces).
pub(super) const MAX_TOKEN_BYTES: usize = 1024;

/// What is given for a BPE model, in the words of `tokenizer.json`.
#[derive(Default)]
pub(super) struct Parts {
    pub vocab: Vocab,
    pub merges: Merges,
    pub unk_token: Option<String>,
    pub fuse_unk: bool,
    pub byte_fallback: bool,
    pub ignore_merges: bool,
}

impl Parts {
    /// The BPE model, with everything checked that the library takes on trust.
    pub fn build(self) -> Result<BPE, TextError> {
        if self.vocab.is_empty() {
            return Err(TextError::Vocabulary("the vocabulary is empty".to_owned()));
        }
        if let Some((token, id)) = self.vocab.iter().find(|(_, id)| i32::try_from(**id).is_err()) {
            let token = one_line(token);
            return Err(TextError::Vocabulary(format!("token '{token}' has the id {id}")));
        }
        if let Some(unk) = self.unk_token.as_ref().filter(|unk| !self.vocab.contains_key(*unk)) {
            let unk = one_line(unk);
            return Err(TextError::Vocabulary(format!("unk_token '{unk}' is not in it")));
        }
        // The library writes each merge into a buffer as long as the longest token.
        let max_len = self.vocab.keys().map(String::len).max().unwrap_or(0);
        if let Some((left, right)) = self.merges.iter().find(|(l, r)| l.len() + r.len() > max_len) {
            let merge = one_line(format!("{left} {right}"));
            let reason = format!("merge '{merge}' makes no token of the vocabulary");
            return Err(TextError::Vocabulary(reason));
        }
        let mut builder = BpeBuilder::new()
            .vocab_and_merges(self.vocab, self.merges)
            .fuse_unk(self.fuse_unk)
            .byte_fallback(self.byte_fallback)
            .ignore_merges(self.ignore_merges);
        if let Some(unk_token) = self.unk_token {
            builder = builder.unk_token(unk_token);
        }
        builder.build().map_err(|error| TextError::Vocabulary(one_line(error)))
    }
}

/// The merges that make a BPE model segment as SentencePiece's BPE does, which joins the adjacent
/// pair whose piece has the highest score first: each way to split a piece into two others is a
/// merge, in the order of the pieces' scores. `pieces` are (text, score), in the order of ids.
///
/// Source: `generate_merges` of transformers, `convert_slow_tokenizer.py`.
pub(super) fn from_scores(vocab: &Vocab, pieces: &[(&str, f32)]) -> Result<Merges, TextError> {
    let mut merges = Vec::new();
    for &(piece, score) in pieces {
        if piece.len() > MAX_TOKEN_BYTES {
            let reason = format!("a token is {} bytes long, over {MAX_TOKEN_BYTES}", piece.len());
            return Err(TextError::Vocabulary(reason));
        }
        let num_chars = piece.chars().count();
        for (left_chars, (middle, _)) in piece.char_indices().enumerate().skip(1) {
            let (left, right) = piece.split_at(middle);
            if vocab.contains_key(left) && vocab.contains_key(right) {
                merges.push((score, left_chars, num_chars - left_chars, left, right));
            }
        }
    }
    // Stable: what is equal in all three keeps the order of the ids.
    merges.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    Ok(merges.into_iter().map(|(.., left, right)| (left.to_owned(), right.to_owned())).collect())
}
