//! The pre-tokenizer kinds of GGUF files (`tokenizer.ggml.pre`): how a text is cut into words
//! before byte-pair merges run inside each.
//!
//! The names and what they mean are llama.cpp's (`llama-vocab.cpp`); where the tokenizer.json
//! of a kind says it more exactly, the expression is from there. They are read by the rules of
//! Oniguruma.

use tokenizers::PreTokenizerWrapper;
use tokenizers::SplitDelimiterBehavior::Isolated;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};

use super::error::{TextError, one_line};
use super::oniguruma;

/// The kinds whose text is no bytes spelt as characters but SentencePiece's, with merges.
pub(super) const SENTENCE_PIECE: [&str; 3] = ["gemma4", "granite-embed-multi-311m", "sarvam-moe"];

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
const JAIS_2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}";
const QWEN35: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const SEED_CODER: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+";
const UFAKZEKA: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const EXAONE_MOE: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+";
const MINICPM5: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const BAILINGMOE: &str = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+";
const KIMI_K2: &str = r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const YOUTU_ASIAN: &str = r"[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f\ufe30-\ufe4f]+|[\u3105-\u312f]+|[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
const YOUTU: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\x{10400}-\x{1044F}\x{104B0}-\x{104D3}\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}\x{1E900}-\x{1E943}]+";
const DEEPSEEK_MARKS: &str = r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+";
const SPARK2_5: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##;
const AFMOE_ASIAN: &str = r"[\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff\u3040-\u309f\u30a0-\u30ff\uff65-\uff9f\u2f00-\u2fdf\u0e40-\u0e7f\u0e80-\u0eff\u1780-\u17ff\u1000-\u109f\uaa60-\uaa7f\ua9e0-\ua9ff\uac00-\ud7af\u1100-\u11ff]+";
const CJK: &str = r"[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+";
const BLOOM: &str = r" ?[^(\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+";
const CJK_KOREAN: &str = r"[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+";

/// The kinds there are.
const KINDS: &[Kind] = &[
    Kind::new(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", r"[0-9][0-9][0-9]"]),
    Kind::new(
        &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "olmo",
            "mpt",
            "jais",
            "trillion",
            "exaone4",
            "granite-docling",
        ],
        &[GPT2],
    ),
    Kind::new(
        &[
            "smollm",
            "starcoder",
            "refact",
            "codeshell",
            "minerva-7b",
            "command-r",
            "exaone",
            "mellum2",
        ],
        &[r"\p{N}", GPT2],
    ),
    Kind::new(
        &[
            "llama-bpe",
            "llama3",
            "llama-v3",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        &[LLAMA3],
    )
    .ignoring_merges()
    .adding_bos(),
    Kind::new(&["glm4", "glm5"], &[LLAMA3]).ignoring_merges(),
    Kind::new(&["dbrx", "smaug-bpe", "chatglm-bpe"], &[LLAMA3]),
    Kind::new(&["jais-2"], &[JAIS_2]),
    Kind::new(
        &[
            "qwen2",
            "deepseek-r1-qwen",
            "megrez",
            "stablelm2",
            "kormo",
            "f2llmv2",
            "hunyuan",
            "solar-open",
            "grok-2",
        ],
        &[QWEN2],
    ),
    Kind::new(&["qwen35"], &[QWEN35]),
    Kind::new(&["seed-coder"], &[SEED_CODER]),
    Kind::new(&["ufakzeka"], &[UFAKZEKA]),
    Kind::new(&["laguna"], &[r"[^\n]+|[\n]+", QWEN2]),
    Kind::new(&["exaone-moe"], &[EXAONE_MOE]),
    Kind::new(&["minicpm5"], &[r"\p{N}{1,3}", MINICPM5]).ignoring_merges(),
    Kind::new(&["bailingmoe", "bailingmoe2", "llada-moe"], &[BAILINGMOE]),
    Kind::new(&["tekken"], &[TEKKEN]).ignoring_merges().adding_bos(),
    Kind::new(&["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], &[GPT4O]),
    Kind::new(&["granite-embed-multi-97m"], &[GPT4O]).ignoring_merges(),
    Kind::new(&["tiny_aya", "cohere2moe"], &[r"\d{1,3}(?=(?:\d{3})*\b)", GPT4O]),
    Kind::new(&["kimi-k2"], &[KIMI_K2]),
    Kind::new(&["youtu"], &[YOUTU_ASIAN, YOUTU]).ignoring_merges(),
    Kind::new(
        &["deepseek-llm"],
        &[r"[\r\n]", DEEPSEEK_LETTERS, DEEPSEEK_MARKS, r"\s+$", CJK_KOREAN, r"\p{N}"],
    ),
    Kind::new(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK_KOREAN, r"\p{N}"]),
    Kind::new(
        &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        &[r"\p{N}{1,3}", CJK, DEEPSEEK3],
    ),
    Kind::new(&["spark2_5"], &[r"\p{N}{1,3}", CJK, SPARK2_5, r"\p{N}"]),
    Kind::new(&["afmoe"], &[r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))", AFMOE_ASIAN, DEEPSEEK3]),
    Kind::new(&["falcon"], &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, r"[0-9][0-9][0-9]"]),
    Kind::new(&["bloom", "poro-chat", "gpt3-finnish"], &[BLOOM]),
    Kind::new(&["viking"], &[BLOOM, r"\p{N}"]),
    Kind::new(&["superbpe"], &[r"\p{N}+", r"(?=(\d{3})+(?!\d))"]),
    Kind::new(
        &["chameleon"],
        &[
            r"<sentinel:[0-9]+>",
            r"(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z",
            r"([\t\n]|    |  )",
            r"\p{N}",
            r"[\p{P}!-/:-@\[-`{-~]",
            GPT2,
        ],
    )
    .adding_bos(),
];

impl Kind {
    const fn new(names: &'static [&'static str], splits: &'static [&'static str]) -> Self {
        Self { names, splits, ignore_merges: false, add_bos: false }
    }

    const fn ignoring_merges(self) -> Self {
        Self { ignore_merges: true, ..self }
    }

    const fn adding_bos(self) -> Self {
        Self { add_bos: true, ..self }
    }

    /// The kind called `name`.
    pub fn find(name: &str) -> Result<&'static Self, TextError> {
        KINDS.iter().find(|kind| kind.names.contains(&name)).ok_or_else(|| {
            // One name of each is enough to see what there is.
            let known: Vec<&str> =
                KINDS.iter().flat_map(|kind| kind.names.first()).copied().collect();
            TextError::PreTokenizer { name: one_line(name), known: known.join(", ") }
        })
    }

    /// The split that a byte-level pre-tokenizer makes by itself.
    pub const BYTE_LEVEL: &'static str = GPT2;

    /// The name of the kind with these splits.
    pub fn of(splits: &[&str], ignore_merges: bool) -> Option<&'static str> {
        let is_same = |kind: &&Self| {
            kind.ignore_merges == ignore_merges
                && kind.splits.len() == splits.len()
                && kind.splits.iter().zip(splits).all(|(a, b)| oniguruma::is_same(a, b))
        };
        KINDS.iter().find(is_same)?.names.first().copied()
    }

    /// The pre-tokenizer: the splits, then bytes spelt as GPT-2 does.
    pub fn build(&self) -> Result<PreTokenizerWrapper, TextError> {
        let mut steps = Vec::with_capacity(self.splits.len() + 1);
        for &split in self.splits {
            let pattern = SplitPattern::Regex(oniguruma::translate(split)?);
            let split = Split::new(pattern, Isolated, false)
                .map_err(|error| TextError::Vocabulary(one_line(error)))?;
            steps.push(split.into());
        }
        steps.push(ByteLevel::new(false, false, false).into());
        Ok(Sequence::new(steps).into())
    }
}
