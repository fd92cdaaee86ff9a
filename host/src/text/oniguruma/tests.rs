//! Against Oniguruma itself, through the Python package `tokenizers`
//! (`tests/fixtures/text/make_regex.py`).

use std::fs;
use std::path::Path;

use serde_json::Value as Json;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{
    OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer, SplitDelimiterBehavior,
};

use super::super::pre_tokenizer::Kind;
use super::*;

fn fixture() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/text/regex.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

fn strings(json: &Json) -> Vec<String> {
    serde_json::from_value(json.clone()).unwrap()
}

/// Where `text` is cut, in characters.
fn cuts(split: &impl PreTokenizer, text: &str) -> Vec<usize> {
    let mut pieces = PreTokenizedString::from(text);
    split.pre_tokenize(&mut pieces).unwrap();
    let pieces = pieces.get_splits(OffsetReferential::Original, OffsetType::Char);
    pieces.into_iter().map(|(_, (_, end), _)| end).collect()
}

#[test]
fn pieces_are_those_of_oniguruma() {
    let fixture = fixture();
    let texts = strings(&fixture["texts"]);
    let mut faults = Vec::new();
    let mut num_refused = 0;
    for case in fixture["patterns"].as_array().unwrap() {
        let pattern = case["pattern"].as_str().unwrap();
        let translated = match translate(pattern) {
            Ok(_) if case["cuts"].is_null() => {
                faults.push(format!("{pattern:?} is malformed to Oniguruma"));
                continue;
            }
            Ok(translated) => translated,
            Err(error) => {
                if case["must"] == true {
                    faults.push(error.to_string());
                }
                num_refused += usize::from(!case["cuts"].is_null());
                continue;
            }
        };
        let regex = SplitPattern::Regex(translated.clone());
        let split = match Split::new(regex, SplitDelimiterBehavior::Isolated, false) {
            Ok(split) => split,
            Err(error) => {
                faults.push(format!("{pattern:?} as {translated:?}: {error}"));
                continue;
            }
        };
        let wanted: Vec<Vec<usize>> = serde_json::from_value(case["cuts"].clone()).unwrap();
        for (text, wanted) in texts.iter().zip(wanted) {
            let got = cuts(&split, text);
            if got != wanted {
                faults.push(format!("{pattern:?} cuts {text:?} at {got:?}, not at {wanted:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    let num_patterns = fixture["patterns"].as_array().unwrap().len();
    assert!(num_refused * 4 < num_patterns, "{num_refused} of {num_patterns} are refused");
}

/// The kinds of `tokenizer.ggml.pre`, whose patterns the fixture has from their models.
#[test]
fn kinds_cut_as_their_models_do() {
    let fixture = fixture();
    let texts = strings(&fixture["texts"]);
    for (name, places) in fixture["kinds"].as_object().unwrap() {
        let kind = Kind::find(name).unwrap().build().unwrap();
        let places: Vec<Vec<usize>> = serde_json::from_value(places.clone()).unwrap();
        for (text, wanted) in texts.iter().zip(places) {
            assert_eq!(cuts(&kind, text), wanted, "{name}: {text:?}");
        }
    }
    assert!(fixture["kinds"].as_object().unwrap().len() >= 29);
}

/// FNV-1a of the ends of the ranges.
fn hash(set: &ClassUnicode) -> String {
    let ends = set.ranges().iter().flat_map(|range| [range.start(), range.end()]);
    let hash = ends.fold(0xCBF2_9CE4_8422_2325u64, |hash, char| {
        (hash ^ u64::from(u32::from(char))).wrapping_mul(0x0100_0000_01B3)
    });
    format!("{hash:016x}")
}

/// Every character of every set that has a name.
#[test]
fn sets_are_those_of_oniguruma() {
    let fixture = fixture();
    for (pattern, wanted) in fixture["sets"].as_object().unwrap() {
        let set = match parse::parse(pattern) {
            Ok(Node::Set(set)) => set,
            Ok(Node::Char { char, .. }) => class::set(&[(char, char)]),
            other => panic!("{pattern}: {other:?}"),
        };
        assert_eq!(&hash(&set), wanted.as_str().unwrap(), "{pattern}");
    }
}

/// Every character that has another case.
#[test]
fn cases_are_those_of_oniguruma() {
    let fixture = fixture();
    let cases = strings(&fixture["cases"]);
    assert!(cases.len() > 1300);
    for class in cases {
        for char in class.chars() {
            let cases = fold::cases_of(char);
            let all: Vec<char> =
                cases.ranges().iter().flat_map(|range| range.start()..=range.end()).collect();
            if !fold::has_sequence(&cases) {
                assert_eq!(all, class.chars().collect::<Vec<_>>(), "{char:?}");
            }
        }
    }
}

#[test]
fn what_is_refused_is_named() {
    for (pattern, named) in [
        (r"(a)\1", r"\1"),
        (r"\X", r"\X"),
        (r"a\Kb", r"\K"),
        (r"\Ga", r"\G"),
        (r"(?~ab)", "absence"),
        (r"(?x) a", "option 'x'"),
        (r"(?s).", "option 's'"),
        (r"(?i)ße", "'ß'"),
        (r"(?i)first", "'fi'"),
        (r"(?i)[\p{L}]", "several in another case"),
        (r"\p{Script=Han}", "Script=Han"),
        (r"\p{InBasicLatin}", "InBasicLatin"),
        (r"(?:a*)*b(?:c*d*)*", "may be empty"),
        (r"[\d-z]", "'-'"),
        (r"(?<n>a)\k<n>", r"\k"),
        (r"(*FAIL)", "callout"),
        ("(", "without its ')'"),
        ("[a", "without its ']'"),
        (r"\xe4", r"\x.."),
    ] {
        let error = translate(pattern).unwrap_err().to_string();
        assert!(error.contains(named) && error.lines().count() == 1, "{pattern}: {error}");
    }
}

#[test]
fn hostile_patterns_are_errors() {
    let nested = |open: &str, close: &str| [open.repeat(5000), close.repeat(5000)].concat();
    for pattern in [
        nested("(", ")"),
        nested("[", "]"),
        nested("(?i)", ""),
        nested("(?:a|", "b)*"),
        "a".repeat(MAX_PATTERN_BYTES + 1),
        r"\w".repeat(1000),
        "a{99999999999}".to_owned(),
        "\\".to_owned(),
        "(?".to_owned(),
        r"\p{".to_owned(),
        "[[:".to_owned(),
        "(?#\\".to_owned(),
    ] {
        assert!(translate(&pattern).is_err(), "{pattern:.40}");
    }
}
