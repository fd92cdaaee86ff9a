//! Text to token ids, through Hugging Face's `tokenizers`.

use std::fmt;

use super::detokenize::{Spelling, TextStream};
use super::error::{TextError, one_line};

/// A tokenizer, from `tokenizer.json` or from the metadata of a GGUF file.
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    spelling: Spelling,
    /// What `add_special` adds before and after a text.
    prefix: Vec<u32>,
    suffix: Vec<u32>,
    /// What is before, between and after two texts.
    pair: Option<[Vec<u32>; 3]>,
}

impl Tokenizer {
    pub(super) fn new(
        inner: tokenizers::Tokenizer,
        spelling: Spelling,
        prefix: Vec<u32>,
        suffix: Vec<u32>,
    ) -> Self {
        Self { inner, spelling, prefix, suffix, pair: None }
    }

    /// The same with what is before, between and after two texts, where that is known.
    pub(super) fn with_pair(self, pair: Option<[Vec<u32>; 3]>) -> Self {
        Self { pair, ..self }
    }

    /// The ids of two texts, each without added ones, with those that the model wants around and
    /// between them, and where the second text begins. A tokenizer that says nothing of pairs has
    /// each text as if it were alone, less the first ids of the second.
    pub fn pair(&self, first: &[u32], second: &[u32]) -> (Vec<u32>, usize) {
        let of_one = || [self.prefix.clone(), self.suffix.clone(), self.suffix.clone()];
        let [before, between, after] = self.pair.clone().unwrap_or_else(of_one);
        let start = before.len() + first.len() + between.len();
        ([&before[..], first, &between, second, &after].concat(), start)
    }

    /// Ids that [`Tokenizer::pair`] adds.
    pub fn num_added_to_pair(&self) -> usize {
        self.pair(&[], &[]).0.len()
    }

    /// The token ids of `text`. Special tokens that are spelt out in it are parsed; `add_special`
    /// adds those that the model wants around a text (usually the beginning of sequence), and is
    /// `false` for what a chat template rendered, which spells them out itself.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the vocabulary has no token for a part of the text.
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, TextError> {
        let encoding = self
            .inner
            .encode_fast(text, false)
            .map_err(|error| TextError::Encode(one_line(error)))?;
        let ids = encoding.get_ids().to_vec();
        Ok(if add_special { self.with_added_around(ids) } else { ids })
    }

    /// As [`Tokenizer::encode`], but at most `max` ids: the text's last ones are left out, not
    /// those that are added.
    ///
    /// # Errors
    /// As [`Tokenizer::encode`].
    pub fn encode_at_most(
        &self,
        text: &str,
        add_special: bool,
        max: usize,
    ) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode(text, false)?;
        let (before, after) = self.num_added_around(add_special);
        ids.truncate(max.saturating_sub(before + after));
        Ok(if add_special { self.with_added_around(ids) } else { ids })
    }

    /// The token that `add_special` puts before a text, if it does: the beginning of sequence.
    pub fn bos(&self) -> Option<u32> {
        self.prefix.first().copied()
    }

    /// The text of `ids`; bytes that are not UTF-8 become U+FFFD, ids outside the vocabulary
    /// nothing. `skip_special` leaves special tokens out.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut stream = TextStream::with_special(self, skip_special);
        let mut text: String = ids.iter().map(|&id| stream.push(id)).collect();
        text.push_str(&stream.finish());
        text
    }

    /// The id of a token, as the vocabulary spells it.
    pub fn token_to_id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// The token of an id, as the vocabulary spells it.
    pub fn id_to_token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// Number of tokens, those added to the model's vocabulary included.
    pub fn vocab_size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Bytes of the longest token.
    pub fn max_token_bytes(&self) -> usize {
        let vocabulary = self.inner.get_vocab(true);
        vocabulary.keys().map(|token| self.spelling.bytes(token).len()).max().unwrap_or(0)
    }

    /// The bytes of a token, and whether it is a special one; `None` for an id outside the
    /// vocabulary.
    pub fn token_bytes(&self, id: u32) -> Option<(Vec<u8>, bool)> {
        let token = self.id_to_token(id)?;
        Some((self.spelling.bytes(&token).into_owned(), self.is_special(&token)))
    }

    /// The special tokens and their ids, in the order of the ids.
    pub fn special_tokens(&self) -> Vec<(u32, String)> {
        let special = self.added_tokens().into_iter().filter(|(_, token)| token.special);
        special.map(|(id, token)| (id, token.content)).collect()
    }

    /// The library's tokenizer.
    pub(super) fn inner(&self) -> &tokenizers::Tokenizer {
        &self.inner
    }

    /// The tokens that are matched in a text before anything else, in the order of their ids.
    pub(super) fn added_tokens(&self) -> Vec<(u32, tokenizers::AddedToken)> {
        let mut added: Vec<_> = self.inner.get_added_tokens_decoder().into_iter().collect();
        added.sort_unstable_by_key(|(id, _)| *id);
        added
    }

    /// `ids` with those around them that the model wants around a text.
    pub(super) fn with_added_around(&self, ids: Vec<u32>) -> Vec<u32> {
        [&self.prefix[..], &ids, &self.suffix].concat()
    }

    /// How many ids `add_special` adds before and after a text.
    pub(super) fn num_added_around(&self, add_special: bool) -> (usize, usize) {
        if add_special { (self.prefix.len(), self.suffix.len()) } else { (0, 0) }
    }

    pub(super) fn is_special(&self, token: &str) -> bool {
        self.inner.get_added_vocabulary().is_special_token(token)
    }

    pub(super) fn spelling(&self) -> Spelling {
        self.spelling
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("spelling", &self.spelling)
            .finish_non_exhaustive()
    }
}
