//! SmolLM2's own GGUF file, against transformers.

use std::env;
use std::fs;
use std::path::PathBuf;

use halfwarp::text::{Message, Text, TextStream};
use halfwarp::weights::gguf;
use libtest_mimic::Trial;

use crate::fixtures::{ids, read};
use crate::trial;

pub fn trials() -> Vec<Trial> {
    vec![
        model_trial("smollm2::token_ids_match_golden", token_ids_match_golden),
        model_trial("smollm2::chats_match_golden", chats_match_golden),
        model_trial("smollm2::answers_stream", answers_stream),
        model_trial("smollm2::stops_at_the_end_of_a_turn", stops_at_the_end_of_a_turn),
    ]
}

/// A trial that needs the model.
fn model_trial(name: &str, test: fn(&Text)) -> Trial {
    let path = model_path();
    let ignored = path.is_none();
    let test = move || test(&open(&path.expect("not run without the model")));
    trial(name, test).with_ignored_flag(ignored)
}

/// Where `cargo xtask` puts the model, if it is there.
fn model_path() -> Option<PathBuf> {
    let var = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = var("HALFWARP_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("halfwarp")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/halfwarp")))?;
    let path = cache.join("models/smollm2-135m-instruct/SmolLM2-135M-Instruct.Q4_1.gguf");
    path.exists().then_some(path)
}

fn open(path: &PathBuf) -> Text {
    let file = gguf::parse(&fs::read(path).expect("a readable file")).expect("a good GGUF file");
    Text::from_gguf(&file.metadata).expect("a good tokenizer").expect("a tokenizer")
}

fn token_ids_match_golden(text: &Text) {
    let golden = read("goldens/smollm2/expected.json");
    for entry in golden["texts"].as_array().expect("texts") {
        let source = entry["text"].as_str().expect("a text");
        let expected = ids(&entry["tokens"]);
        assert_eq!(text.tokenizer.encode(source, true).expect("tokens"), expected);
        assert_eq!(text.tokenizer.decode(&expected, true), source);
    }
    assert_eq!(text.tokenizer.vocab_size(), 49152);
}

fn chats_match_golden(text: &Text) {
    let golden = read("goldens/smollm2/expected.json");
    let template = text.chat_template.as_ref().expect("an instruct model");
    for chat in golden["chats"].as_array().expect("chats") {
        let user = Message::new("user", chat["prompt"].as_str().expect("a prompt"));
        let rendered = template.render(&[user], true).expect("a good template");
        assert_eq!(rendered, chat["rendered"].as_str().expect("a text"));
        let prompt = text.tokenizer.encode(&rendered, false).expect("tokens");
        assert_eq!(prompt, ids(&chat["prompt_tokens"]));
    }
}

fn answers_stream(text: &Text) {
    let golden = read("goldens/smollm2/expected.json");
    for chat in golden["chats"].as_array().expect("chats") {
        let answer = ids(&chat["greedy_tokens"]);
        let expected = chat["greedy_text"].as_str().expect("a text");
        assert_eq!(text.tokenizer.decode(&answer, false), expected);
        let mut stream = TextStream::new(&text.tokenizer);
        let streamed: String = answer.iter().map(|&id| stream.push(id)).collect();
        assert_eq!(streamed, expected.trim_end_matches("<|im_end|>"));
    }
}

fn stops_at_the_end_of_a_turn(text: &Text) {
    let end = text.tokenizer.token_to_id("<|im_end|>").expect("a token of the model");
    assert_eq!(text.stop_tokens, [end]);
}
