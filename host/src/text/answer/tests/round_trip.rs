//! Answers through the vocabulary: rendered by the template, in tokens, one at a time, read.

use super::super::grammar::tests::vocabulary;
use super::super::mark::segments;
use super::*;
use crate::text::{Text, TextStream};

/// Words of an answer, none of which stands in a template.
const SAID: &str = "I look it up§";

/// Answers with a call, two calls, a text before them and arguments that have `marks`.
fn answers(marks: &[String]) -> Vec<(&'static str, Answer)> {
    let weather = |arguments: Value| ("get_weather".to_owned(), arguments);
    let one = weather(json!({"city": "Paris"}));
    let quotes = "a \"b\" 'c' \\ {d}: [e], <f>\n\n\tg\n";
    let marks: String = marks.iter().map(|mark| format!(" {mark} b")).collect();
    let hostile = weather(json!({"city": format!("{quotes}{marks}"), "days": -3}));
    let two = vec![hostile.clone(), ("now".to_owned(), json!({}))];
    let answer = |text: &str, calls: Vec<(String, Value)>| Answer {
        text: text.to_owned(),
        reasoning: String::new(),
        calls,
    };
    let thought = Answer { reasoning: "Well, so.".to_owned(), ..answer("", vec![one.clone()]) };
    vec![
        ("a call", answer("", vec![one.clone()])),
        ("a text and a call", answer(SAID, vec![one])),
        ("hostile arguments", answer("", vec![hostile.clone()])),
        ("two calls", answer("", two.clone())),
        ("a text and two calls", answer(SAID, two)),
        ("reasoning and a call", thought),
    ]
}

/// Tokens that end an answer with calls, where they are others than those after a text, or
/// something follows them.
const STOPS: [&str; 7] = [
    "<｜end▁of▁sentence｜>",
    "<|eom_id|>",
    "<|call|>",
    "<|calls|>",
    "<|tool_response>",
    "<SPECIAL_12>",
    "<｜hy_eos:opensource｜>",
];

/// The tags that a template renders around a call: those that have no word of the call.
fn tags(rendered: &str) -> Vec<String> {
    let words = ["get_weather", "city", "Paris", "abcdefgh", "\"", " "];
    let is_tag = |tag: &&str| {
        tag.len() > 2
            && tag.starts_with(['<', '[', ']'])
            && !words.iter().any(|word| tag.contains(word))
            && !STOPS.contains(tag)
    };
    segments(rendered).into_iter().filter(is_tag).map(str::to_owned).collect()
}

/// The answer in a rendered turn: without what ends a turn that only says `plain`.
fn without_turn_end<'a>(turn: &'a str, plain: &str) -> &'a str {
    let after = plain.rsplit('§').next().unwrap_or_default();
    // What the prompt has of it, and the generation prompt has not.
    let turn = turn.strip_prefix("<|CHATBOT_TOKEN|>").unwrap_or(turn);
    let is_spaced = turn.strip_prefix(' ').is_some_and(|turn| turn.starts_with(SAID));
    let turn = if is_spaced { &turn[1..] } else { turn }.trim_end();
    if let Some(at) = STOPS.iter().filter_map(|stop| turn.find(stop)).min() {
        return &turn[..at];
    }
    let after = after.trim_end();
    let common = turn.bytes().rev().zip(after.bytes().rev()).take_while(|(a, b)| a == b).count();
    let end = turn.ceil_char_boundary(turn.len() - common);
    // No tag is cut.
    match (turn[..end].rfind(['<', '[']), turn[..end].rfind(['>', ']'])) {
        (Some(open), close) if close.is_none_or(|close| close < open) => {
            let rest = turn[end..].find(['>', ']']).map_or(turn.len() - end, |at| at + 1);
            &turn[..end + rest]
        }
        _ => &turn[..end],
    }
}

/// What of an answer stands in a rendered turn, and what the template leaves out.
fn in_turn(mut answer: Answer, turn: &str) -> (Answer, Vec<&'static str>) {
    let mut left_out = Vec::new();
    // gpt-oss' template has the text before a call as what was thought.
    if !answer.text.is_empty() && turn.contains(&format!("analysis<|message|>{}", answer.text)) {
        left_out.push("text beside a call is thought");
        answer.reasoning = std::mem::take(&mut answer.text);
    }
    if !turn.contains("get_weather") {
        left_out.push("a call beside text");
        answer.calls.clear();
    }
    if !turn.contains(&answer.text) {
        left_out.push("text");
        answer.text.clear();
    }
    if !turn.contains(&answer.reasoning) {
        left_out.push("reasoning");
        answer.reasoning.clear();
    }
    if answer.calls.get(1).is_some_and(|(name, _)| !turn.contains(name)) {
        left_out.push("second call");
        answer.calls.truncate(1);
    }
    (answer, left_out)
}

/// What is read of `answer`, token by token.
fn read_by_token(format: &AnswerFormat, text: &Text, prompt: &str, answer: &str) -> Answer {
    let ids = text.tokenizer.encode(answer, false).unwrap();
    let stops = format.stop_tokens(&text.tokenizer);
    let kept = format.special_tokens(&text.tokenizer);
    let mut stream = TextStream::keeping(&text.tokenizer, kept);
    let tools = tools();
    let options = ReaderOptions { tools: &tools, is_single: false, prompt };
    let mut reader = AnswerReader::new(format, options);
    let mut pieces = Vec::new();
    for id in ids.into_iter().take_while(|id| !stops.contains(id)) {
        pieces.extend(reader.push(&stream.push(id)));
    }
    pieces.extend(reader.push(&stream.finish()));
    pieces.extend(reader.finish());
    put_together(pieces)
}

#[test]
fn calls_come_back_through_the_vocabulary() {
    let model =
        crate::Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
    let words = model.text().unwrap();
    let (mut wrong, mut table) = (Vec::new(), String::new());
    for (name, template) in templates() {
        // As the server has it.
        let format = match AnswerFormat::of(&template) {
            format if format.tells_of_tools() => format,
            format => format.or_hermes(),
        };
        let turn = |answer: &Answer| rendered(&template, &format, answer, &tools());
        let said = Answer { text: SAID.to_owned(), ..Answer::default() };
        let plain = turn(&said).map(|(_, text)| text).unwrap_or_default();
        let (_, call) = &answers(&[])[0];
        let Some((_, call)) = turn(call) else {
            table += &format!("{name}: calls\n");
            continue;
        };
        let marks = tags(without_turn_end(&call, &plain));
        let special = vocabulary(&marks);
        let mut all_left_out: Vec<&str> = Vec::new();
        for (what, answer) in answers(&marks) {
            // Its text is a turn of its own, without the marks of the reasoning that the prompt has
            // opened.
            if name == "NVIDIA-Nemotron-Nano-v2" && !answer.text.is_empty() {
                all_left_out.push(what);
                continue;
            }
            let Some((prompt, whole)) = turn(&answer) else {
                all_left_out.push(what);
                continue;
            };
            let whole = without_turn_end(&whole, &plain);
            let (answer, left_out) = in_turn(answer, whole);
            all_left_out.extend(left_out);
            for (vocabulary, text) in [("special tokens", &special), ("words", words)] {
                let got = read_by_token(&format, text, &prompt, whole);
                if got != answer {
                    wrong.push(format!(
                        "{name}, {what}, {vocabulary}: {whole:?}\n  got {got:?}\n for {answer:?}"
                    ));
                    break;
                }
            }
        }
        all_left_out.sort_unstable();
        all_left_out.dedup();
        if !all_left_out.is_empty() {
            table += &format!("{name}: {}\n", all_left_out.join(", "));
        }
    }
    let path = directory().join("public/left_out.txt");
    if std::env::var_os("HALFWARP_WRITE").is_some() {
        fs::write(&path, &table).unwrap();
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(table, fs::read_to_string(path).unwrap());
}
