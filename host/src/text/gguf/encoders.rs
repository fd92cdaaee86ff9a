//! The tokenizers of encoders in GGUF: WordPiece (`bert`) and Unigram (`t5`).

use tokenizers::normalizers::{BertNormalizer, Precompiled, Replace, Sequence, Strip};
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::pre_tokenizers::metaspace::{Metaspace, PrependScheme};
use tokenizers::{NormalizerWrapper, PreTokenizerWrapper};

use super::{TokenType, Tokens, added, array, bool, wrong};
use crate::text::charsmap;
use crate::text::detokenize::Spelling;
use crate::text::error::TextError;
use crate::text::pipeline::library_error;
use crate::text::tokenizer::Tokenizer;
use crate::text::{unigram, word_piece};
use crate::weights::gguf::{Metadata, Value};
use tokenizers::models::bpe::Vocab;

const CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";

/// `bert`: WordPiece, whose pieces are spelt as SentencePiece's: `▁` begins a word. Texts become
/// small letters without accents, as in llama.cpp, which has no word on models of cases.
pub(super) fn word_piece(metadata: &Metadata) -> Result<Tokenizer, TextError> {
    let tokens = Tokens::read(metadata)?;
    let mut vocab = Vocab::with_capacity(tokens.0.len());
    for (id, &(text, token_type)) in (0..).zip(&tokens.0) {
        let piece = match (text.strip_prefix('▁'), token_type) {
            (_, TokenType::Control | TokenType::Unknown) => text.to_owned(),
            (Some(word), _) => word.to_owned(),
            (None, _) => format!("{}{text}", word_piece::CONTINUING_PREFIX),
        };
        vocab.insert(piece, id);
    }
    let unknown = tokens.first_of(TokenType::Unknown).unwrap_or("[UNK]");
    let parts = word_piece::Parts {
        vocab,
        unk_token: unknown.to_owned(),
        continuing_subword_prefix: word_piece::CONTINUING_PREFIX.to_owned(),
        max_input_chars_per_word: 100,
    };
    let mut tokenizer = tokenizers::Tokenizer::new(parts.build()?);
    let lowercase = bool(metadata, "tokenizer.ggml.normalizer.lowercase")?.unwrap_or(true);
    let normalizer = BertNormalizer::new(true, true, None, lowercase);
    tokenizer.with_normalizer(Some(normalizer)).map_err(library_error)?;
    tokenizer.with_pre_tokenizer(Some(BertPreTokenizer));
    tokens.add_special(&mut tokenizer, |_| false)?;
    with_separators(metadata, tokenizer, Spelling::WordPiece { cleanup: true })
}

/// `t5`: Unigram, in the form in which transformers reads XLM-RoBERTa's.
pub(super) fn unigram(metadata: &Metadata) -> Result<Tokenizer, TextError> {
    let tokens = Tokens::read(metadata)?;
    let scores = tokens.scores(metadata)?;
    let vocab = tokens.0.iter().zip(scores).map(|(&(text, _), score)| (text.to_owned(), score));
    let is_unknown = |&(_, token_type): &(&str, TokenType)| token_type == TokenType::Unknown;
    let parts = unigram::Parts {
        vocab: vocab.collect(),
        unk_id: tokens.0.iter().position(is_unknown),
        byte_fallback: false,
    };
    let mut tokenizer = tokenizers::Tokenizer::new(parts.build()?);
    let mut steps: Vec<NormalizerWrapper> = Vec::new();
    if let Some(bytes) = array(metadata, CHARSMAP)? {
        let byte = |value: &Value| value.as_u64().and_then(|byte| u8::try_from(byte).ok());
        let bytes: Option<Vec<u8>> = bytes.iter().map(byte).collect();
        let bytes = bytes.ok_or_else(|| wrong(CHARSMAP, "holds no bytes".to_owned()))?;
        charsmap::check_bytes(&bytes)?;
        steps.push(Precompiled::from(&bytes).map_err(library_error)?.into());
    }
    if bool(metadata, "tokenizer.ggml.remove_extra_whitespaces")?.unwrap_or(true) {
        steps.push(Strip::new(true, true).into());
        let spaces = tokenizers::normalizers::replace::ReplacePattern::Regex(" {2,}".into());
        steps.push(Replace::new(spaces, " ").map_err(library_error)?.into());
    }
    tokenizer.with_normalizer(Some(Sequence::new(steps))).map_err(library_error)?;
    let adds = bool(metadata, "tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let scheme = if adds { PrependScheme::Always } else { PrependScheme::Never };
    let metaspace: PreTokenizerWrapper = Metaspace::new('▁', scheme, true).into();
    tokenizer.with_pre_tokenizer(Some(metaspace));
    tokens.add_special(&mut tokenizer, |_| false)?;
    with_separators(metadata, tokenizer, Spelling::Metaspace { strip_leading_spaces: adds })
}

/// A text is between the first token, `bos`, and the separator or the last token; a second one
/// comes after the last of the first, in Unigram after two.
fn with_separators(
    metadata: &Metadata,
    tokenizer: tokenizers::Tokenizer,
    spelling: Spelling,
) -> Result<Tokenizer, TextError> {
    let first = |names: [&str; 2]| -> Result<Vec<u32>, TextError> {
        for name in names {
            if let Some(id) = super::special_id(metadata, name)? {
                return Ok(vec![id]);
            }
        }
        Ok(Vec::new())
    };
    let is_word_piece = matches!(spelling, Spelling::WordPiece { .. });
    let (begin, end) = match is_word_piece {
        true => (first(["cls", "bos"])?, first(["seperator", "eos"])?),
        false => (added(metadata, "bos", true, None)?, added(metadata, "eos", true, None)?),
    };
    let between = if is_word_piece { end.clone() } else { [&end[..], &end].concat() };
    let pair = [begin.clone(), between, end.clone()];
    Ok(Tokenizer::new(tokenizer, spelling, begin, end).with_pair(Some(pair)))
}
