//! The pre-tokenizer kinds of GGUF files (`tokenizer.ggml.pre`): how a text is cut into words
//! before byte-pair merges run inside each.
//!
//! The names and what they mean are llama.cpp's (`llama-vocab.cpp`); where the tokenizer.json
//! of a kind says it more exactly, the expression is from there.

use tokenizers::PreTokenizerWrapper;
use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::error::{TextError, one_line};

/// A kind of pre-tokenizer.
pub(super) struct Kind {
    /// The values of `tokenizer.ggml.pre` that mean it.
    names: &'static [&'static str],
    /// Applied one after the other, each within the pieces of the one before.
    splits: &'static [&'static str],
    /// A word that is a token is taken as it is, even where merges don't lead to it.
    pub ignore_merges: bool,
    /// Whether a text begins with BOS where the file doesn't say.
    pub add_bos: bool,
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const GPT4O: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK3: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

/// The kinds that the families of this crate come with.
const KINDS: &[Kind] = &[
    Kind {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        names: &["gpt-2", "phi-2", "olmo", "mellum", "trillion", "exaone4"],
        splits: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        names: &["smollm", "starcoder", "refact", "codeshell", "minerva-7b"],
        splits: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    Kind { names: &["dbrx", "smaug-bpe"], splits: &[LLAMA3], ignore_merges: false, add_bos: false },
    Kind {
        names: &["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2"],
        splits: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    Kind { names: &["tekken"], splits: &[TEKKEN], ignore_merges: true, add_bos: true },
    Kind { names: &["gpt-4o", "llama4"], splits: &[GPT4O], ignore_merges: false, add_bos: false },
    Kind {
        names: &["deepseek-coder"],
        splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ignore_merges: false,
        add_bos: false,
    },
    Kind {
        names: &["deepseek-v3"],
        splits: &[r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3],
        ignore_merges: false,
        add_bos: false,
    },
];

impl Kind {
    /// The kind called `name`.
    pub fn find(name: &str) -> Result<&'static Self, TextError> {
        KINDS.iter().find(|kind| kind.names.contains(&name)).ok_or_else(|| {
            let known: Vec<&str> = KINDS.iter().flat_map(|kind| kind.names).copied().collect();
            TextError::PreTokenizer { name: one_line(name), known: known.join(", ") }
        })
    }

    /// The split that a byte-level pre-tokenizer makes by itself.
    pub const BYTE_LEVEL: &'static str = GPT2;

    /// The name of the kind with these splits.
    pub fn of(splits: &[&str], ignore_merges: bool) -> Option<&'static str> {
        let mut kinds = KINDS.iter();
        let kind =
            kinds.find(|kind| kind.splits == splits && kind.ignore_merges == ignore_merges)?;
        kind.names.first().copied()
    }

    /// The pre-tokenizer: the splits, then bytes spelt as GPT-2 does.
    pub fn build(&self) -> Result<PreTokenizerWrapper, TextError> {
        let mut steps = Vec::with_capacity(self.splits.len() + 1);
        for &split in self.splits {
            let pattern = SplitPattern::Regex(split.to_owned());
            let split = Split::new(pattern, Isolated, false)
                .map_err(|error| TextError::Vocabulary(one_line(error)))?;
            steps.push(split.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}
