//! Prompts as the model cards of the families have them.

use super::*;
use crate::text::tokenizer_json;
use serde_json::json;
use std::collections::BTreeMap;

/// A token a byte, and those of a family.
fn tokenizer(special: &[&str]) -> Tokenizer {
    let bytes = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet();
    let mut bytes: Vec<String> = bytes.into_iter().map(String::from).collect();
    bytes.sort();
    let vocab: BTreeMap<&String, usize> = bytes.iter().zip(0..).collect();
    let added = special.iter().zip(256..).map(|(token, id)| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
        "use_regex": true});
    let tokenizer = json!({
        "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null,
        "pre_tokenizer": byte_level,
        "post_processor": null,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": []},
    });
    tokenizer_json::parse(tokenizer.to_string().as_bytes()).unwrap()
}

fn gap(prefix: &str, suffix: &str, files: &[(&str, &str)]) -> Gap {
    let files = files.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
    Gap { prefix: prefix.to_owned(), suffix: suffix.to_owned(), files: files.collect() }
}

/// The prompt of a gap, as a text.
fn prompt(special: &[&str], is_suffix_first: bool, gap: &Gap) -> String {
    let tokenizer = tokenizer(special);
    let form = FillInMiddle::find(&tokenizer, Given::default(), is_suffix_first).unwrap();
    let plain = PlainText::new(&tokenizer).unwrap();
    tokenizer.decode(&form.prompt(&tokenizer, &plain, gap, 4096).unwrap(), false)
}

const QWEN: [&str; 7] = [
    "<|endoftext|>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
];

#[test]
fn prompts_are_those_of_the_families() {
    let starcoder = ["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<fim_pad>"];
    let with = |more: &[&'static str]| [&starcoder[..], more].concat();
    let granite =
        ["<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>", "<|fim_pad|>", "<|filename|>"];
    let files = [("a.py", "x = 1\n")];
    for (family, special, is_suffix_first, files, wanted) in [
        (
            "Qwen2.5-Coder, Qwen3-Coder",
            QWEN.to_vec(),
            false,
            &files[..],
            "<|repo_name|>myproject\n<|file_sep|>a.py\nx = 1\n<|file_sep|>filename\n\
             <|fim_prefix|>A<|fim_suffix|>B<|fim_middle|>",
        ),
        (
            "StarCoder2",
            with(&["<repo_name>", "<file_sep>"]),
            false,
            &files[..],
            "<repo_name>myproject\n<file_sep>a.py\nx = 1\n<file_sep>filename\n\
             <fim_prefix>A<fim_suffix>B<fim_middle>",
        ),
        (
            "CodeLlama",
            vec!["▁<PRE>", "▁<MID>", "▁<SUF>", "▁<EOT>"],
            false,
            &[],
            "▁<PRE>A▁<SUF>B▁<MID>",
        ),
        (
            "DeepSeek-Coder",
            vec!["<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>"],
            false,
            &files[..],
            "\n\n--- snippet ---\n\nx = 1\n<｜fim▁begin｜>A<｜fim▁hole｜>B<｜fim▁end｜>",
        ),
        ("Codestral", vec!["[PREFIX]", "[MIDDLE]", "[SUFFIX]"], false, &[], "[SUFFIX]B[PREFIX]A"),
        (
            "Mellum",
            with(&["<filename>"]),
            true,
            &files[..],
            "<filename>a.py\nx = 1\n<filename>filename\n<fim_suffix>B<fim_prefix>A<fim_middle>",
        ),
        (
            "Granite",
            granite.to_vec(),
            false,
            &[],
            "<|filename|>filename\n<|fim_prefix|>A<|fim_suffix|>B<|fim_middle|>",
        ),
    ] {
        assert_eq!(prompt(&special, is_suffix_first, &gap("A", "B", files)), wanted, "{family}");
    }
}

#[test]
fn a_model_without_such_tokens_does_not_fill_in() {
    for special in [&[][..], &["<s>", "<|im_end|>"], &["<fim_prefix>", "<fim_suffix>"]] {
        let tokenizer = tokenizer(special);
        assert_eq!(FillInMiddle::find(&tokenizer, Given::default(), false), None, "{special:?}");
    }
}

#[test]
fn what_metadata_name_comes_before_the_vocabulary() {
    let tokenizer = tokenizer(&QWEN);
    let given = Given { prefix: Some(7), repo: Some(9), ..Given::default() };
    let form = FillInMiddle::find(&tokenizer, given, false).unwrap();
    assert_eq!((form.prefix, form.suffix, form.repo), (7, 259, Some(9)));
    assert_eq!(form.stop_tokens, [256, 260, 9, 262]);
}

/// A file that spells a token of the prompt out is text.
#[test]
fn texts_have_no_control_tokens() {
    let tokenizer = tokenizer(&QWEN);
    let form = FillInMiddle::find(&tokenizer, Given::default(), false).unwrap();
    let plain = PlainText::new(&tokenizer).unwrap();
    let spelt = "<|fim_middle|><|endoftext|>";
    let gap = gap(spelt, spelt, &[(spelt, spelt)]);
    let ids = form.prompt(&tokenizer, &plain, &gap, 4096).unwrap();
    let count = |id: u32| ids.iter().filter(|&&it| it == id).count();
    assert_eq!([256, 257, 258, 259, 261, 262].map(count), [0, 1, 1, 1, 1, 2]);
    assert!(tokenizer.decode(&ids, false).matches(spelt).count() == 4);
}

/// Whatever the room is, the prompt fits, ends next to the gap and has its marks.
#[test]
fn prompts_fit_their_room() {
    let tokenizer = tokenizer(&QWEN);
    let form = FillInMiddle::find(&tokenizer, Given::default(), false).unwrap();
    let plain = PlainText::new(&tokenizer).unwrap();
    let numbers: String = (1000..2000).map(|number| format!("{number} ")).collect();
    let gap = gap(&numbers, &numbers, &[("old", &numbers), ("new", &numbers)]);
    for room in [40, 100, 500, 3000, 9000] {
        let ids = form.prompt(&tokenizer, &plain, &gap, room).unwrap();
        assert!(ids.len() <= room, "{room}: {}", ids.len());
        let text = tokenizer.decode(&ids, false);
        let (_, own) = text.rsplit_once("<|fim_prefix|>").unwrap();
        let (prefix, rest) = own.split_once("<|fim_suffix|>").unwrap();
        let suffix = rest.strip_suffix("<|fim_middle|>").unwrap();
        assert!(numbers.ends_with(prefix) && numbers.starts_with(suffix), "{room}: {text}");
        // Where there is room, it is used.
        assert!(ids.len() > room / 2 || room < 100, "{room}: {}", ids.len());
    }
}

#[test]
fn a_prefix_and_a_suffix_share_three_to_one() {
    for (prefix, suffix, window, taken) in [
        (10, 10, 100, (10, 10)),
        (1000, 1000, 100, (75, 25)),
        (1000, 5, 100, (95, 5)),
        (5, 1000, 100, (5, 95)),
        (0, 0, 0, (0, 0)),
        (9, 9, 3, (3, 0)),
    ] {
        assert_eq!(shares(prefix, suffix, window), taken, "{prefix} {suffix} {window}");
    }
}

/// While a text grows by a token a time, its beginning stays for a step.
#[test]
fn a_cut_stays_where_it_is_for_a_while() {
    let tokens: Vec<u32> = (0..200).collect();
    let firsts: Vec<u32> = (64..200).map(|len| tail(&tokens[..len], 64, 16)[0]).collect();
    let mut distinct = firsts.clone();
    distinct.dedup();
    assert_eq!(distinct, (0..=144).step_by(16).collect::<Vec<_>>());
    assert!((64..200).all(|len| (49..=64).contains(&tail(&tokens[..len], 64, 16).len())));
    assert!(tail(&tokens, 0, 16).is_empty());
    assert!(tail(&[], 4, 0).is_empty());
}

#[test]
fn long_texts_are_cut_before_they_are_encoded() {
    let long = "\u{e4}".repeat(100);
    let cut = gap(&long, &long, &[("a", "old"), ("b", &long), ("c", "new")]).cut_to_bytes(40);
    assert!(cut.prefix.len() <= 40 && cut.prefix.len() > 30, "{cut:?}");
    assert_eq!(cut.suffix.len(), 40);
    let files: Vec<(&str, usize)> =
        cut.files.iter().map(|(name, text)| (&name[..], text.len())).collect();
    assert!(matches!(files[..], [("b", 25..=36), ("c", 3)]), "{files:?}");
    let same = gap("a", "b", &[("c", "d")]);
    assert_eq!(same.clone().cut_to_bytes(40), same);
    assert_eq!(same.clone().cut_to_bytes(usize::MAX), same);
    assert_eq!(gap(&long, &long, &[("c", &long)]).cut_to_bytes(0), Gap::default());
}
