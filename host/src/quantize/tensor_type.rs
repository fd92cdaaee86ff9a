//! Types that are given for some tensors: `--tensor-type NAME=TYPE`.

use std::str::FromStr;

use fancy_regex::Regex;

use super::QuantizeError;
use crate::plan::Dtype;

/// What a tensor can be stored in.
const WRITTEN: [Dtype; 16] = [
    Dtype::F32,
    Dtype::F16,
    Dtype::BF16,
    Dtype::Q8_0,
    Dtype::Q6_K,
    Dtype::Q5_K,
    Dtype::Q5_1,
    Dtype::Q5_0,
    Dtype::Q4_K,
    Dtype::Q4_1,
    Dtype::Q4_0,
    Dtype::IQ4_NL,
    Dtype::IQ4_XS,
    Dtype::MXFP4,
    Dtype::Q3_K,
    Dtype::Q2_K,
];

/// A type for the tensors whose GGUF names a pattern matches.
#[derive(Clone, Debug)]
pub struct TensorType {
    pattern: Regex,
    /// The type.
    pub dtype: Dtype,
}

impl TensorType {
    /// Whether the pattern matches a part of `name`.
    pub(super) fn matches(&self, name: &str) -> Result<bool, QuantizeError> {
        let pattern = || self.pattern.as_str().trim_start_matches(ANY_CASE).to_owned();
        self.pattern.is_match(name).map_err(|_| QuantizeError::Pattern(pattern()))
    }
}

/// Names are in small letters; llama.cpp makes patterns so.
const ANY_CASE: &str = "(?i)";

impl FromStr for TensorType {
    type Err = String;

    /// Reads `NAME=TYPE`: a regular expression, and a type by its name in any case.
    fn from_str(text: &str) -> Result<Self, String> {
        let Some((pattern, name)) = text.rsplit_once('=').filter(|(name, _)| !name.is_empty())
        else {
            return Err("it should be NAME=TYPE, such as attn_v=q8_0".to_owned());
        };
        let is_named = |dtype: &&Dtype| dtype.to_string().eq_ignore_ascii_case(name);
        let Some(&dtype) = WRITTEN.iter().find(is_named) else {
            let known = WRITTEN.map(|dtype| dtype.to_string().to_lowercase()).join(", ");
            return Err(format!("no type `{}`; there are {known}", name.escape_debug()));
        };
        let pattern = Regex::new(&format!("{ANY_CASE}{pattern}"))
            .map_err(|error| format!("`{}`: {error}", pattern.escape_debug()))?;
        Ok(TensorType { pattern, dtype })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_any_part_of_a_name() {
        let rule: TensorType = r"blk\.(0|1)\.ATTN_[qk]=Q8_0".parse().unwrap();
        assert_eq!(rule.dtype, Dtype::Q8_0);
        assert!(rule.matches("blk.0.attn_q.weight").unwrap());
        assert!(!rule.matches("blk.0.attn_v.weight").unwrap());
        assert!(!rule.matches("blk.10.attn_q.weight").unwrap());
        let rule: TensorType = "attn_(?!q)=iq4_nl".parse().unwrap();
        assert!(rule.matches("blk.0.attn_v.weight").unwrap());
        assert!(!rule.matches("blk.0.attn_q.weight").unwrap());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        for (text, expected) in [
            ("attn_q", "NAME=TYPE"),
            ("=q8_0", "NAME=TYPE"),
            ("attn_q=", "no type ``"),
            ("attn_q=q9_0", "no type `q9_0`"),
            ("attn_q=iq1_s", "no type `iq1_s`"),
            ("attn_(q=q8_0", "`attn_(q`"),
        ] {
            let error = text.parse::<TensorType>().unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn a_pattern_that_takes_too_long_is_an_error() {
        let rule: TensorType = r"^(?=(a+)+b)(a+)+\1c=q8_0".parse().unwrap();
        assert!(rule.matches(&"a".repeat(64)).is_err());
    }
}
