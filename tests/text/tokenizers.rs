//! Token ids of texts in many scripts, and back.

use halfwarp::text::{Text, TextStream, Tokenizer};
use halfwarp::weights::gguf::Value;
use libtest_mimic::Trial;

use crate::fixtures::{self, ids, read, strings};
use crate::trial;

const KINDS: [&str; 10] = [
    "default",
    "gpt-2",
    "smollm",
    "llama-bpe",
    "dbrx",
    "qwen2",
    "tekken",
    "gpt-4o",
    "deepseek-coder",
    "deepseek-v3",
];

pub fn trials() -> Vec<Trial> {
    let kinds = KINDS.into_iter().map(|kind| {
        trial(&format!("tokenizers::gguf_byte_level_matches_oracle::{kind}"), move || {
            byte_level_matches_oracle(kind);
        })
    });
    kinds
        .chain([
            trial("tokenizers::byte_level_decodes", byte_level_decodes),
            trial("tokenizers::noise_decodes_and_streams", noise_decodes_and_streams),
            trial("tokenizers::json_byte_level_matches_oracle", json_byte_level_matches_oracle),
            trial("tokenizers::gguf_sentencepiece_matches_oracle", || {
                sentencepiece_matches_oracle(&fixtures::text(&fixtures::sentencepiece()).tokenizer);
            }),
            trial("tokenizers::json_sentencepiece_matches_oracle", || {
                sentencepiece_matches_oracle(&from_fixture_dir("sentencepiece").tokenizer);
            }),
            trial("tokenizers::gguf_gemma4_matches_oracle", gguf_gemma4_matches_oracle),
            trial("tokenizers::json_parts_match_oracle", json_parts_match_oracle),
            trial("tokenizers::odd_ids_are_warned_of", odd_ids_are_warned_of),
            trial("tokenizers::sentencepiece_decodes", sentencepiece_decodes),
            trial("tokenizers::bos_and_eos_as_the_file_says", bos_and_eos_as_the_file_says),
            trial("tokenizers::whole_words_before_merges", whole_words_before_merges),
            trial("tokenizers::phi3_special_tokens_take_space", phi3_special_tokens_take_space),
            trial("tokenizers::stream_is_decode_in_parts", stream_is_decode_in_parts),
            trial(
                "tokenizers::a_stream_ends_before_stop_strings",
                a_stream_ends_before_stop_strings,
            ),
            trial("tokenizers::stream_never_splits_a_character", stream_never_splits_a_character),
            trial("tokenizers::stream_cost_is_linear", stream_cost_is_linear),
        ])
        .collect()
}

fn from_fixture_dir(name: &str) -> Text {
    let dir = crate::tests_dir().join("fixtures/text").join(name);
    Text::from_dir(&dir).expect("good files").expect("a tokenizer")
}

#[track_caller]
fn assert_encodes(tokenizer: &Tokenizer, text: &str, expected: &[u32]) {
    let ids = tokenizer.encode(text, false).expect("every text has tokens");
    let spelt = |ids: &[u32]| -> Vec<_> {
        ids.iter().map(|&id| tokenizer.id_to_token(id).unwrap_or_default()).collect()
    };
    assert_eq!(spelt(&ids), spelt(expected), "text {text:?}");
    assert_eq!(ids, expected, "text {text:?}");
}

fn byte_level_matches_oracle(kind: &str) {
    let fixture = read("fixtures/text/bpe.json");
    let tokenizer = fixtures::text(&fixtures::byte_level(kind)).tokenizer;
    let expected = fixture["kinds"][kind].as_array().expect("ids of each text");
    for (text, expected) in strings(&fixture["texts"]).iter().zip(expected) {
        assert_encodes(&tokenizer, text, &ids(expected));
    }
}

fn byte_level_decodes() {
    let fixture = read("fixtures/text/bpe.json");
    let tokenizer = fixtures::text(&fixtures::byte_level("qwen2")).tokenizer;
    let all = fixture["kinds"]["qwen2"].as_array().expect("ids of each text");
    for (i, (expected, text)) in all.iter().zip(strings(&fixture["texts"])).enumerate() {
        let ids = ids(expected);
        assert_eq!(tokenizer.decode(&ids, true), fixture["decoded"][i].as_str().expect("a text"));
        assert_eq!(tokenizer.decode(&ids, false), text);
    }
    assert_eq!(tokenizer.decode(&[u32::MAX], false), "");
}

/// Bytes that are no UTF-8, and characters that end early.
fn noise_decodes_and_streams() {
    let fixture = read("fixtures/text/bpe.json");
    let tokenizer = fixtures::text(&fixtures::byte_level("qwen2")).tokenizer;
    let noise = fixture["noise"].as_array().expect("ids");
    for (noise, expected) in noise.iter().zip(strings(&fixture["noise_decoded"])) {
        let ids = ids(noise);
        assert_eq!(tokenizer.decode(&ids, true), expected);
        let mut stream = TextStream::new(&tokenizer);
        let streamed: String = ids.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(streamed + &stream.finish(), expected);
    }
}

fn json_byte_level_matches_oracle() {
    let fixture = read("fixtures/text/bpe.json");
    let tokenizer = from_fixture_dir("byte_level").tokenizer;
    let expected = fixture["kinds"]["llama-bpe"].as_array().expect("ids of each text");
    let bos = tokenizer.token_to_id("<|endoftext|>").expect("a token of the fixture");
    for (text, expected) in strings(&fixture["texts"]).iter().zip(expected) {
        let expected = ids(expected);
        assert_encodes(&tokenizer, text, &expected);
        let with_bos: Vec<u32> = [bos].into_iter().chain(expected).collect();
        assert_eq!(tokenizer.encode(text, true).expect("every text has tokens"), with_bos);
        assert_eq!(tokenizer.decode(&with_bos, false), format!("<|endoftext|>{text}"));
    }
}

fn sentencepiece_matches_oracle(tokenizer: &Tokenizer) {
    let fixture = read("fixtures/text/sentencepiece.json");
    for (texts, expected) in [("texts", "ids"), ("chat_texts", "chat_ids")] {
        let expected = fixture[expected].as_array().expect("ids of each text");
        for (text, expected) in strings(&fixture[texts]).iter().zip(expected) {
            assert_encodes(tokenizer, text, &ids(expected));
        }
    }
}

/// SentencePiece's pieces with merges, under either of the two keys that say so.
fn gguf_gemma4_matches_oracle() {
    let fixture = read("fixtures/text/sentencepiece.json");
    for (model, pre) in [("gemma4", None), ("gpt2", Some("sarvam-moe"))] {
        let mut metadata = fixtures::sentencepiece();
        let mut put = |key: &str, value| metadata.0.insert(format!("tokenizer.ggml.{key}"), value);
        put("model", fixtures::string(model));
        put("merges", fixtures::string_array(&fixture["merges"]));
        if let Some(pre) = pre {
            put("pre", fixtures::string(pre));
        }
        let tokenizer = fixtures::text(&metadata).tokenizer;
        let expected = fixture["gemma4_ids"].as_array().expect("ids of each text");
        for (text, expected) in strings(&fixture["texts"]).iter().zip(expected) {
            assert_encodes(&tokenizer, text, &ids(expected));
            assert_eq!(tokenizer.decode(&ids(expected), false), text.replace('▁', " "));
        }
    }
}

/// Every kind of normalizer, pre-tokenizer, model, post-processor and decoder that is read.
fn json_parts_match_oracle() {
    let cases = read("fixtures/text/tokenizer_json.json");
    for case in cases.as_array().expect("tokenizers") {
        let dir = tempfile::tempdir().expect("a directory");
        let file = serde_json::to_vec(&case["file"]).expect("JSON");
        std::fs::write(dir.path().join("tokenizer.json"), file).expect("written");
        let name = &case["name"];
        let text = Text::from_dir(dir.path()).unwrap_or_else(|error| panic!("{name}: {error}"));
        let tokenizer = text.expect("a tokenizer").tokenizer;
        let texts = strings(&case["texts"]);
        assert!(texts.len() > 10);
        for (index, text) in texts.iter().enumerate() {
            let expected = ids(&case["ids"][index]);
            let got = tokenizer.encode(text, true).expect("every text has tokens");
            assert_eq!(got, expected, "{name}: {text:?}");
            let decoded = tokenizer.decode(&expected, true);
            assert_eq!(decoded, case["decoded"][index], "{name}: {text:?}");
        }
        if !case["pair"].is_null() {
            let [first, second] =
                ["the world", "hello"].map(|text| tokenizer.encode(text, false).expect("tokens"));
            let (got, start) = tokenizer.pair(&first, &second);
            assert_eq!(got, ids(&case["pair"]), "{name}");
            assert_eq!(got[start..][..second.len()], second, "{name}");
            let cut = tokenizer.encode_at_most("the world", true, 4).expect("tokens");
            let (around, _) = tokenizer.pair(&first[..2], &[]);
            assert_eq!(cut[..3], around[..3], "{name}");
            assert_eq!((cut.len(), cut.last()), (4, around.last()), "{name}");
        }
    }
}

fn odd_ids_are_warned_of() {
    let warnings = |metadata| fixtures::text(&metadata).warnings;
    let good = fixtures::byte_level("llama-bpe");
    assert_eq!(warnings(good.clone()), [""; 0]);
    let with = |key: &str, value: Option<Value>| {
        let mut metadata = good.clone();
        let key = format!("tokenizer.ggml.{key}");
        match value {
            Some(value) => metadata.0.insert(key, value),
            None => metadata.0.remove(&key),
        };
        metadata
    };
    for (key, value) in [
        ("pre", None),
        ("bos_token_id", None),
        ("bos_token_id", Some(Value::I32(-1))),
        ("eos_token_id", Some(Value::U32(u32::MAX))),
        ("padding_token_id", Some(Value::U64(1 << 40))),
    ] {
        let metadata = with(key, value);
        let text = fixtures::text(&metadata);
        assert_eq!(text.warnings.len(), 1, "{key}: {:?}", text.warnings);
        assert!(text.warnings[0].contains(key) && text.warnings[0].lines().count() == 1);
        assert_eq!(text.stop_tokens, [0; 0]);
        let num_ids = text.tokenizer.encode("a", true).expect("a token").len();
        assert_eq!(num_ids, if matches!(key, "pre" | "bos_token_id") { 1 } else { 2 }, "{key}");
    }
}

fn sentencepiece_decodes() {
    let fixture = read("fixtures/text/sentencepiece.json");
    let tokenizer = fixtures::text(&fixtures::sentencepiece()).tokenizer;
    let all = fixture["ids"].as_array().expect("ids of each text");
    for (expected, text) in all.iter().zip(strings(&fixture["decoded"])) {
        assert_eq!(tokenizer.decode(&ids(expected), false), text);
    }
    let [hello, world] = ["▁Hello", "▁world"].map(|word| tokenizer.encode(word, false));
    let ids = [hello.expect("tokens"), world.expect("tokens")].concat();
    assert_eq!(tokenizer.decode(&ids, true), " Hello  world");
}

fn bos_and_eos_as_the_file_says() {
    let encode =
        |metadata| fixtures::text(&metadata).tokenizer.encode("a", true).expect("a text of tokens");
    let [a] = encode(fixtures::byte_level("qwen2"))[..] else { panic!("one token") };
    assert_eq!(encode(fixtures::byte_level("llama-bpe")), [0, a], "its kind adds BOS");
    let add = |kind: &str, name: &str, add| {
        let mut metadata = fixtures::byte_level(kind);
        metadata.0.insert(format!("tokenizer.ggml.add_{name}_token"), Value::Bool(add));
        metadata.0.insert("tokenizer.ggml.eos_token_id".to_owned(), Value::U32(7));
        encode(metadata)
    };
    assert_eq!(add("llama-bpe", "bos", false), [a]);
    assert_eq!(add("qwen2", "bos", true), [0, a]);
    assert_eq!(add("qwen2", "eos", true), [a, 7]);
    // SentencePiece's defaults: BOS is 1, and added.
    assert_eq!(encode(fixtures::sentencepiece())[0], 1);
}

/// Llama 3's and Tekken's vocabularies have words that no merge leads to.
fn whole_words_before_merges() {
    for (kind, is_whole) in [("llama-bpe", true), ("tekken", true), ("dbrx", false)] {
        let mut metadata = fixtures::byte_level(kind);
        let word = "qzjxv";
        let new = [("tokens", fixtures::string(word)), ("token_type", Value::I32(1))];
        for (key, value) in new {
            let array = metadata.0.get_mut(&format!("tokenizer.ggml.{key}"));
            let Some(Value::Array(values)) = array else { panic!("{key} is an array") };
            values.push(value);
        }
        let tokenizer = fixtures::text(&metadata).tokenizer;
        let ids = tokenizer.encode(word, false).expect("a text of tokens");
        assert_eq!(ids.len() == 1, is_whole, "{kind}: {ids:?}");
    }
}

fn phi3_special_tokens_take_space() {
    let mut metadata = fixtures::sentencepiece();
    metadata.0.insert("general.architecture".to_owned(), fixtures::string("phi3"));
    let tokenizer = fixtures::text(&metadata).tokenizer;
    let encode = |text| tokenizer.encode(text, false).expect("a text of tokens");
    assert_eq!(encode("<|user|>\nHi<|end|>\n<|user|>"), encode("<|user|>Hi<|end|><|user|>"));
    assert_ne!(encode("<s> Hi"), encode("<s>Hi"), "<s> takes none");
}

/// Every tokenizer of the fixtures, with the ids of its texts.
fn tokenizers_and_ids() -> Vec<(Tokenizer, Vec<Vec<u32>>)> {
    let byte_level = fixtures::text(&fixtures::byte_level("qwen2")).tokenizer;
    let sentencepiece = fixtures::text(&fixtures::sentencepiece()).tokenizer;
    let all = |fixture: &str, key: &str| -> Vec<Vec<u32>> {
        let fixture = read(fixture);
        fixture.pointer(key).and_then(|ids| ids.as_array()).expect("ids").iter().map(ids).collect()
    };
    vec![
        (byte_level, all("fixtures/text/bpe.json", "/kinds/qwen2")),
        (sentencepiece, all("fixtures/text/sentencepiece.json", "/ids")),
    ]
}

fn stream_is_decode_in_parts() {
    for (tokenizer, texts) in tokenizers_and_ids() {
        for ids in texts {
            let mut stream = TextStream::new(&tokenizer);
            let mut text = String::new();
            for &id in &ids {
                let part = stream.push(id);
                assert!(!part.contains('\u{FFFD}'), "{part:?}");
                text += &part;
            }
            assert_eq!(stream.finish(), "", "each text is complete");
            assert_eq!(text, tokenizer.decode(&ids, true));
        }
    }
}

/// Stop strings cut out of the texts themselves: they begin and end within tokens.
fn a_stream_ends_before_stop_strings() {
    for (tokenizer, texts) in tokenizers_and_ids() {
        for ids in texts {
            let whole = tokenizer.decode(&ids, true);
            let borders: Vec<usize> = whole.char_indices().map(|(index, _)| index).collect();
            for window in borders.windows(4).step_by(7) {
                let stop = &whole[window[0]..window[3]];
                let mut stream = TextStream::new(&tokenizer).until([stop, "no such text"]);
                let mut text = String::new();
                for &id in &ids {
                    text += &stream.push(id);
                    assert_eq!(stream.flow().is_break(), stream.is_stopped());
                }
                assert!(stream.is_stopped(), "{stop:?}");
                text += &stream.finish();
                assert_eq!(text, whole[..whole.find(stop).expect("a part of the text")]);
            }
        }
    }
}

fn stream_never_splits_a_character() {
    let animals = "🦀🐍🪿";
    for (tokenizer, _) in tokenizers_and_ids() {
        let ids = tokenizer.encode(animals, false).expect("bytes at least");
        assert!(ids.len() > animals.chars().count(), "characters take several tokens each");
        let mut stream = TextStream::continuing(&tokenizer);
        let parts: Vec<String> = ids.iter().map(|&id| stream.push(id)).collect();
        assert!(parts.iter().any(String::is_empty));
        assert_eq!(parts.concat().trim_start(), animals);
        assert_eq!(stream.finish(), "");

        let mut cut = TextStream::new(&tokenizer);
        let last_but_one = &ids[..ids.len() - 1];
        let parts: String = last_but_one.iter().map(|&id| cut.push(id)).collect();
        assert!(!parts.contains('\u{FFFD}'), "a character may still become complete");
        assert_eq!(cut.finish(), "\u{FFFD}");
    }
}

/// A token costs its own length: bytes that never make a character must not pile up either.
fn stream_cost_is_linear() {
    let tokenizer = fixtures::text(&fixtures::sentencepiece()).tokenizer;
    let byte = tokenizer.token_to_id("<0xFF>").expect("a byte token");
    let mut stream = TextStream::new(&tokenizer);
    let text: String = (0..100_000).map(|_| stream.push(byte)).collect();
    assert_eq!(text.chars().count() + stream.finish().chars().count(), 100_000);
}
