//! Token ids to text, a token at a time.

use std::borrow::Cow;
use std::ops::ControlFlow;
use std::str;

use super::word_piece::CONTINUING_PREFIX;
use super::{StopStrings, Tokenizer};

/// How a vocabulary spells bytes; what a `decoder` of `tokenizer.json` undoes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// GPT-2's: each byte is a printable character.
    ByteLevel,
    /// SentencePiece's: `▁` is a space, `<0xE5>` is a byte.
    SentencePiece {
        /// A space was put before the text when it was encoded, and goes again.
        strip_leading_space: bool,
    },
    /// The same, where the first token is left without any of its spaces.
    Metaspace {
        /// Whether it is.
        strip_leading_spaces: bool,
    },
    /// WordPiece's: `##` joins a piece to the one before; else there is a space.
    WordPiece {
        /// Whether there is none before punctuation.
        cleanup: bool,
    },
    /// Words as they are, with a space between any two: no decoder.
    Words,
}

impl Spelling {
    /// The bytes of `token`.
    pub(super) fn bytes(self, token: &str) -> Cow<'_, [u8]> {
        match self {
            Self::ByteLevel => match token.chars().map(byte_of_char).collect() {
                Some(bytes) => Cow::Owned(bytes),
                // An added token, which is spelt as it is.
                None => Cow::Borrowed(token.as_bytes()),
            },
            Self::Words => Cow::Owned(format!(" {token}").into_bytes()),
            Self::WordPiece { cleanup } => match token.strip_prefix(CONTINUING_PREFIX) {
                Some(piece) => Cow::Borrowed(piece.as_bytes()),
                None if cleanup && joins(token) => Cow::Borrowed(token.as_bytes()),
                None => Cow::Owned(format!(" {token}").into_bytes()),
            },
            Self::SentencePiece { .. } | Self::Metaspace { .. } => match byte_token(token) {
                Some(byte) => Cow::Owned(vec![byte]),
                None if token.contains('▁') => Cow::Owned(token.replace('▁', " ").into_bytes()),
                None => Cow::Borrowed(token.as_bytes()),
            },
        }
    }
}

/// Whether the library's decoder of WordPiece has no space before a token of its own.
fn joins(token: &str) -> bool {
    const PARTS: [&str; 5] = ["n't", "'m", "'s", "'ve", "'re"];
    token.starts_with(['.', '?', '!', ',']) || PARTS.iter().any(|part| token.starts_with(part))
}

/// The byte that GPT-2 writes as `char`: printable Latin-1 characters are themselves, the other
/// 68 bytes are counted up from U+0100.
fn byte_of_char(char: char) -> Option<u8> {
    let code = u32::from(char);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// The byte of a SentencePiece byte token: `<0x0A>`.
fn byte_token(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    let is_byte = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    is_byte.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Text from token ids as they come: [`push`](Self::push) returns whole characters only, and the
/// parts put together are what [`Tokenizer::decode`] makes of all ids at once. Special tokens are
/// left out. A token costs its own length, however long the text has become.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    skip_special: bool,
    /// Special tokens that stay all the same.
    kept: Vec<u32>,
    strip_space: bool,
    /// The start of a character that is not complete; at most 3 bytes between calls.
    pending: Vec<u8>,
    stops: StopStrings,
}

impl<'a> TextStream<'a> {
    /// A text of its own, such as an answer: the space that SentencePiece puts before the first
    /// word is left out.
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self::with_special(tokenizer, true)
    }

    /// Text that continues another, such as a completion printed after its prompt: a leading
    /// space stays.
    pub fn continuing(tokenizer: &'a Tokenizer) -> Self {
        Self { strip_space: false, ..Self::new(tokenizer) }
    }

    /// A text with its special tokens, if not `skip_special`.
    pub(crate) fn with_special(tokenizer: &'a Tokenizer, skip_special: bool) -> Self {
        let strip_space = match tokenizer.spelling() {
            Spelling::ByteLevel => false,
            Spelling::SentencePiece { strip_leading_space: strips }
            | Spelling::Metaspace { strip_leading_spaces: strips } => strips,
            Spelling::Words | Spelling::WordPiece { .. } => true,
        };
        let (pending, stops) = (Vec::new(), StopStrings::default());
        Self { tokenizer, skip_special, kept: Vec::new(), strip_space, pending, stops }
    }

    /// A text of its own in which the special tokens `kept` stay, as marks of an answer do.
    pub fn keeping(tokenizer: &'a Tokenizer, kept: Vec<u32>) -> Self {
        Self { kept, ..Self::new(tokenizer) }
    }

    /// Ends the text before the first of `stops` in it, wherever the borders of tokens are: text
    /// that may be the start of one is held back. See [`StopStrings`].
    pub fn until<S: Into<String>>(self, stops: impl IntoIterator<Item = S>) -> Self {
        Self { stops: StopStrings::new(stops), ..self }
    }

    /// Whether a stop string has come; nothing is returned after it.
    pub fn is_stopped(&self) -> bool {
        self.stops.is_stopped()
    }

    /// See [`StopStrings::stopped_by`].
    pub fn stopped_by(&self) -> Option<&str> {
        self.stops.stopped_by()
    }

    /// What [`Engine::generate`](crate::Engine::generate) has to know after each token: to go on,
    /// or to break off after a stop string.
    pub fn flow(&self) -> ControlFlow<()> {
        if self.is_stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Adds a token and returns the characters that it completes. An id outside the vocabulary
    /// has no text.
    pub fn push(&mut self, id: u32) -> String {
        let text = self.detokenize(id);
        self.stops.push(&text)
    }

    fn detokenize(&mut self, id: u32) -> String {
        let Some(token) = self.tokenizer.id_to_token(id) else { return String::new() };
        let is_kept = !self.skip_special || self.kept.contains(&id);
        if !is_kept && self.tokenizer.is_special(&token) {
            return String::new();
        }
        let bytes = self.tokenizer.spelling().bytes(&token);
        let mut bytes: &[u8] = &bytes;
        if self.strip_space && !bytes.is_empty() {
            self.strip_space = false;
            if matches!(self.tokenizer.spelling(), Spelling::Metaspace { .. }) {
                self.pending.extend(bytes.iter().filter(|byte| **byte != b' '));
                return self.take_complete();
            }
            bytes = bytes.strip_prefix(b" ").unwrap_or(bytes);
        }
        self.pending.extend_from_slice(bytes);
        self.take_complete()
    }

    /// Ends the text: what was held back and is no stop string, and what is left of a character
    /// that never became complete, as U+FFFD.
    pub fn finish(mut self) -> String {
        let text = self.stops.push(&String::from_utf8_lossy(&self.pending));
        text + &self.stops.finish()
    }

    /// Takes the complete characters out of `pending`; bytes that begin no character become
    /// U+FFFD, as `String::from_utf8_lossy` has it.
    fn take_complete(&mut self) -> String {
        let mut text = String::with_capacity(self.pending.len());
        let mut incomplete = 0;
        let mut chunks = self.pending.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let may_go_on = || str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if chunks.peek().is_none() && may_go_on() {
                incomplete = invalid.len();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        self.pending.drain(..self.pending.len() - incomplete);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of GPT-2's `bytes_to_unicode`.
    #[test]
    fn byte_level_alphabet_is_gpt2s() {
        let printable: Vec<u32> = (0x21..=0x7E).chain(0xA1..=0xAC).chain(0xAE..=0xFF).collect();
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let code = if printable.contains(&byte.into()) {
                byte.into()
            } else {
                next += 1;
                next - 1
            };
            assert_eq!(char::from_u32(code).and_then(byte_of_char), Some(byte));
        }
        assert_eq!(byte_of_char(' '), None);
        assert_eq!(char::from_u32(next).and_then(byte_of_char), None);
    }

    #[test]
    fn byte_tokens() {
        assert_eq!(byte_token("<0x0A>"), Some(0x0A));
        for not_a_byte in ["<0x0>", "<0x+1>", "<0x00A>", "0x0A", "<0xGG>", "<0x€>"] {
            assert_eq!(byte_token(not_a_byte), None, "{not_a_byte}");
        }
    }
}
