//! Encoding of a text whose control tokens are known: each is a placeholder that no text holds, and its spelling is text.

use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::AhoCorasick;
use tokenizers::{AddedVocabulary, Model, OffsetReferential, OffsetType, PreTokenizer, Token};

use super::control::ControlToken;
use crate::text::Tokenizer;
use crate::text::error::{TextError, one_line};
use crate::text::pipeline::library_error;

/// Before each placeholder: a noncharacter, which texts have no use for.
const LEAD: char = '\u{FDD0}';

/// After [`LEAD`], for a [`LEAD`] of the text itself.
const ITSELF: char = '\u{E000}';

/// After [`LEAD`], for the first control token; the others follow.
const FIRST: u32 = 0xF_0000;

/// Tokens, and the bytes of the text that each is of.
pub(super) type Encoded = Vec<(u32, Range<usize>)>;

/// An added vocabulary with placeholders for control tokens.
#[derive(Debug)]
pub(super) struct Placeholders {
    vocabulary: AddedVocabulary,
    /// The tokens of an added one, by its id in `vocabulary`.
    ids: HashMap<u32, Vec<u32>>,
    /// The spelling of a control token, by its id.
    spellings: HashMap<u32, String>,
    /// Finds all of them, those inside of others too.
    spelt: AhoCorasick,
}

impl Placeholders {
    pub fn new(tokenizer: &Tokenizer, control: &[ControlToken]) -> Result<Self, TextError> {
        let (inner, model) = (tokenizer.inner(), tokenizer.inner().get_model());
        let mut real: HashMap<String, Vec<u32>> = HashMap::new();
        let itself = format!("{LEAD}{ITSELF}");
        let mut added = vec![tokenizers::AddedToken::from(itself.clone(), false).normalized(false)];
        real.insert(itself, lead_ids(tokenizer)?);
        let placeholders: HashMap<u32, String> = (FIRST..)
            .zip(control)
            .map(|(code, token)| Ok((token.id, placeholder(code)?)))
            .collect::<Result<_, TextError>>()?;
        for (id, token) in tokenizer.added_tokens() {
            let content = placeholders.get(&id).unwrap_or(&token.content).clone();
            real.insert(content.clone(), vec![id]);
            added.push(tokenizers::AddedToken { content, ..token });
        }
        let mut vocabulary = AddedVocabulary::new();
        vocabulary.add_tokens(added, model, inner.get_normalizer()).map_err(library_error)?;
        let ids = real
            .into_iter()
            .filter_map(|(content, ids)| Some((vocabulary.token_to_id(&content, model)?, ids)));
        let ids = ids.collect();
        let spellings = control.iter().map(|token| (token.id, token.spelling.clone())).collect();
        let spelt =
            AhoCorasick::new(control.iter().map(|token| &token.spelling)).map_err(library_error)?;
        Ok(Self { vocabulary, ids, spellings, spelt })
    }

    /// The tokens of `text`, where those of `tokens` are control tokens, by their index, and no others are. Without
    /// `with_places` their bytes are those of a whole word or more.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        tokens: &[(Range<usize>, usize)],
        with_places: bool,
    ) -> Result<Encoded, TextError> {
        let prepared = Prepared::new(text, tokens)?;
        let inner = tokenizer.inner();
        let failed = |error: tokenizers::Error| TextError::Encode(one_line(error));
        let mut pieces =
            self.vocabulary.extract_and_normalize(inner.get_normalizer(), &prepared.text);
        if let Some(pre_tokenizer) = inner.get_pre_tokenizer() {
            pre_tokenizer.pre_tokenize(&mut pieces).map_err(failed)?;
        }
        let mut encoded = Encoded::new();
        for (piece, place, added) in
            pieces.get_splits(OffsetReferential::Original, OffsetType::Byte)
        {
            let place = prepared.original(place.0)..prepared.original(place.1);
            match added {
                Some(added) => {
                    let ids = added.iter().filter_map(|token| self.ids.get(&token.id)).flatten();
                    encoded.extend(ids.map(|&id| (id, place.clone())));
                }
                None => {
                    let tokens = self.tokenize(inner.get_model(), piece).map_err(failed)?;
                    let of_piece = text.get(place.clone()).filter(|_| with_places);
                    let places = of_piece.and_then(|of_piece| places(piece, of_piece, &tokens));
                    let mut places = places.into_iter().flatten();
                    encoded.extend(tokens.iter().map(|token| match places.next() {
                        Some(part) => (token.id, place.start + part.start..place.start + part.end),
                        None => (token.id, place.clone()),
                    }));
                }
            }
        }
        Ok(encoded)
    }

    /// The model's tokens of a piece. Some models know control tokens as words, too.
    fn tokenize(&self, model: &impl Model, piece: &str) -> Result<Vec<Token>, tokenizers::Error> {
        let tokens = model.tokenize(piece)?;
        let is_control = |token: &Token| {
            let (from, to) = token.offsets;
            self.spellings
                .get(&token.id)
                .is_some_and(|spelling| piece.get(from..to) == Some(spelling))
        };
        if !tokens.iter().any(is_control) {
            return Ok(tokens);
        }
        // The first character of each is the end of a part: then none is whole.
        let mut ends: Vec<usize> = self
            .spelt
            .find_overlapping_iter(piece)
            .map(|found| {
                let first = piece[found.start()..].chars().next();
                found.start() + first.map_or(0, char::len_utf8)
            })
            .chain([piece.len()])
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let (mut out, mut start) = (Vec::new(), 0);
        for end in ends {
            out.extend(model.tokenize(&piece[start..end])?.into_iter().map(|mut token| {
                token.offsets.0 += start;
                token.offsets.1 += start;
                token
            }));
            start = end;
        }
        Ok(out)
    }
}

/// The bytes of `original` that the tokens of `piece` are of, which was made of it: a character for each byte (GPT-2's),
/// or one for each character (SentencePiece's `▁`). `None` for any other: they are of all of it.
fn places(piece: &str, original: &str, tokens: &[Token]) -> Option<Vec<Range<usize>>> {
    let num_chars = piece.chars().count();
    let mut starts: Vec<usize> = if num_chars == original.len() {
        (0..original.len()).collect()
    } else if num_chars == original.chars().count() {
        original.char_indices().map(|(at, _)| at).collect()
    } else {
        return None;
    };
    starts.push(original.len());
    // Characters before a byte of the piece; tokens come in order.
    let (mut at, mut before) = (0, 0);
    let mut char_at = |byte: usize| {
        before += piece.get(at..byte)?.chars().count();
        at = byte;
        Some(before)
    };
    let places = tokens.iter().map(|token| {
        let (from, to) = token.offsets;
        Some(starts[char_at(from)?]..starts[char_at(to)?])
    });
    places.collect()
}

/// A text with placeholders.
struct Prepared {
    text: String,
    /// Where a part that is the same in both texts begins, in this text and in the original.
    parts: Vec<(usize, usize)>,
}

impl Prepared {
    fn new(text: &str, tokens: &[(Range<usize>, usize)]) -> Result<Self, TextError> {
        let mut prepared = Self { text: String::with_capacity(text.len()), parts: vec![(0, 0)] };
        let mut done = 0;
        for (place, token) in tokens {
            prepared.push(text, done..place.start);
            let code = u32::try_from(*token).ok().and_then(|token| FIRST.checked_add(token));
            prepared.text += &placeholder(code.unwrap_or(u32::MAX))?;
            prepared.parts.push((prepared.text.len(), place.end));
            done = place.end;
        }
        prepared.push(text, done..text.len());
        Ok(prepared)
    }

    fn push(&mut self, text: &str, part: Range<usize>) {
        let mut done = part.start;
        for (at, lead) in text[part.clone()].match_indices(LEAD) {
            let end = part.start + at + lead.len();
            self.text += &text[done..end];
            self.text.push(ITSELF);
            self.parts.push((self.text.len(), end));
            done = end;
        }
        self.text += &text[done..part.end];
    }

    /// The place in the original of a place in this text.
    fn original(&self, at: usize) -> usize {
        let part = self.parts.partition_point(|&(start, _)| start <= at) - 1;
        let (start, original) = self.parts[part];
        let place = original + (at - start);
        // Inside a placeholder: where it ends.
        self.parts.get(part + 1).map_or(place, |&(_, next)| place.min(next))
    }
}

/// The placeholder of a control token.
fn placeholder(code: u32) -> Result<String, TextError> {
    let char = char::from_u32(code).ok_or_else(|| {
        TextError::Vocabulary("it has more control tokens than are supported".to_owned())
    })?;
    Ok([LEAD, char].iter().collect())
}

/// The tokens of a [`LEAD`] inside a text: at the beginning there may be a space before it.
fn lead_ids(tokenizer: &Tokenizer) -> Result<Vec<u32>, TextError> {
    let one = tokenizer.encode(&LEAD.to_string(), false)?;
    let two = tokenizer.encode(&[LEAD, LEAD].iter().collect::<String>(), false)?;
    Ok(two.get(one.len()..).unwrap_or(&one).to_vec())
}
