//! Answers as models write them, in pieces of any length.

use super::super::{AnswerFormat, Reasoning, known};
use super::{AnswerReader, Piece, ReaderOptions};
use crate::text::ChatTemplate;
use serde_json::{Value, json};
use std::fs;

fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "function": {"name": name,
            "parameters": {"type": "object", "properties": properties}}})
    };
    let f = json!({"x": {"type": "integer"}, "city": {"type": "string"}});
    vec![tool("f", f), tool("g", json!({})), tool("f_more", json!({}))]
}

fn public(name: &str) -> AnswerFormat {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/text/templates/public");
    let source = fs::read_to_string(format!("{directory}/{name}.jinja")).unwrap();
    AnswerFormat::of(&ChatTemplate::from_source(&source))
}

fn hermes() -> AnswerFormat {
    AnswerFormat::default().or_hermes()
}

/// Text, reasoning and calls.
type Answer = (String, String, Vec<(String, String)>);

fn read(format: &AnswerFormat, prompt: &str, is_single: bool, answer: &str, len: usize) -> Answer {
    let tools = tools();
    let mut reader = AnswerReader::new(format, ReaderOptions { tools: &tools, is_single, prompt });
    let chars: Vec<char> = answer.chars().collect();
    let mut pieces: Vec<Piece> =
        chars.chunks(len).flat_map(|piece| reader.push(&String::from_iter(piece))).collect();
    pieces.extend(reader.finish());
    let mut got = Answer::default();
    for piece in pieces {
        match piece {
            Piece::Text(text) => got.0 += &text,
            Piece::Reasoning(text) => got.1 += &text,
            Piece::CallBegin { name, .. } => got.2.push((name, String::new())),
            Piece::CallArguments { index, json } => got.2[index].1 += &json,
        }
    }
    assert_eq!(reader.has_calls(), !got.2.is_empty());
    got
}

/// Checks an answer in pieces of several lengths.
fn check(format: &AnswerFormat, answer: &str, text: &str, calls: &[(&str, &str)]) {
    let calls: Vec<_> =
        calls.iter().map(|(name, json)| (name.to_string(), json.to_string())).collect();
    for len in [1, 2, 3, 7, 1000] {
        let got = read(format, "", false, answer, len);
        assert_eq!(got, (text.to_owned(), String::new(), calls.clone()), "{answer} by {len}");
    }
}

#[test]
fn text_that_is_no_call_comes_back() {
    for answer in [
        "I could use <tool_call> here.",
        "<tool_call>\n{'name': 'f'}\n</tool_call>",
        "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call> more",
        "<tool_call>{\"name\": \"f\"}</tool_call>",
        "a < b <tool> c \n",
        " \n",
        "{\"name\": \"f\", \"arguments\": {}}",
        "<tool_call>",
        "<tool_call>{\"name\": \"f\"",
    ] {
        check(&hermes(), answer, answer, &[]);
    }
    let llama = public("meta-llama-Llama-3.1-8B-Instruct");
    for answer in ["{not a call}", "Yes: {\"a\": 1}", "{\"a\": 1}", "{\"name\": \"f\"}", "["] {
        check(&llama, answer, answer, &[]);
    }
}

#[test]
fn calls_are_read() {
    let f = ("f", "{\"x\": 1}");
    let g = ("g", "{}");
    let json = "{\"name\": \"f\", \"arguments\": {\"x\": 1}}";
    let call = format!("<tool_call>\n{json}\n</tool_call>");
    check(&hermes(), &call, "", &[f]);
    check(&hermes(), &format!("one {call} two"), "one  two", &[f]);
    check(&hermes(), &format!("one\n{call}\n{call}\n"), "one", &[f, f]);
    check(&hermes(), &format!("\n\n{call}"), "", &[f]);
    check(&hermes(), &format!("<tool_call>{json}"), "", &[f]);
    // A mark inside a string is a part of it.
    let inner = "{\"city\": \"</tool_call>\"}";
    let answer = format!("<tool_call>\n{{\"name\": \"f\", \"arguments\": {inner}}}\n</tool_call>");
    check(&hermes(), &answer, "", &[("f", inner)]);
    // Arguments before the name, as text, with a line's end in a string.
    let answer = "<tool_call>{\"arguments\": {\"x\": 1}, \"name\": \"f\"}</tool_call>";
    check(&hermes(), answer, "", &[f]);
    let answer = "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}</tool_call>";
    check(&hermes(), answer, "", &[f]);
    let answer = "<tool_call>{\"name\":\"f\",\"arguments\":{\"city\":\"a\nb\"}}</tool_call>";
    check(&hermes(), answer, "", &[("f", "{\"city\":\"a\\nb\"}")]);
    // What came of a call that is not finished.
    let answer = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": ";
    check(&hermes(), answer, "", &[("f", "{\"x\": ")]);

    let llama = public("meta-llama-Llama-3.1-8B-Instruct");
    let call = "{\"name\": \"f\", \"parameters\": {\"x\": 1}}";
    check(&llama, call, "", &[f]);
    let two = format!("<|python_tag|>{call}; {{\"name\": \"g\", \"parameters\": {{}}}}");
    check(&llama, &two, "", &[f, g]);
    check(&llama, &format!("{call} So."), " So.", &[f]);

    let mistral = public("mistralai-Mistral-Nemo-Instruct-2407");
    let answer = format!("[TOOL_CALLS] [{json}, {{\"name\": \"g\", \"arguments\": {{}}}}]");
    check(&mistral, &answer, "", &[f, g]);
    let devstral = public("unsloth-mistral-Devstral-Small-2507");
    check(&devstral, "[TOOL_CALLS]f[ARGS]{\"x\": 1}", "", &[f]);
    check(
        &devstral,
        "Hm.[TOOL_CALLS]f{\"x\": 1}[TOOL_CALLS]f_more[ARGS]{}",
        "Hm.",
        &[f, ("f_more", "{}")],
    );
    let small = public("Mistral-Small-3.2-24B-Instruct-2506");
    check(&small, "[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{\"x\": 1}", "", &[f]);
    check(&small, "[TOOL_CALLS]f[ARGS]{\"x\": 1}", "", &[f]);

    let coder = public("Qwen3-Coder");
    let call = "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>";
    check(&coder, &format!("<tool_call>\n{call}"), "", &[f]);
    check(&coder, call, "", &[f]);
    check(&coder, "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>", "", &[f]);
    let mark = "<function=f>\n<parameter=city>\na\n</parameter>\nb\n</parameter>\n</function>";
    check(&coder, mark, "", &[("f", "{\"city\": \"a\\n</parameter>\\nb\"}")]);
    let lfm = public("LFM2-8B-A1B");
    let answer = "<|tool_call_start|>[f(x=1, city=\"it's\"), g()]<|tool_call_end|>Now.";
    check(&lfm, answer, "Now.", &[("f", "{\"x\": 1, \"city\": \"it's\"}"), g]);
}

#[test]
fn one_call_is_the_first() {
    let call = "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    for len in [1, 4, 1000] {
        let got = read(&hermes(), "", true, &format!("A. {call}\n{call} B."), len);
        assert_eq!(got, ("A. ".to_owned(), String::new(), vec![("g".to_owned(), "{}".to_owned())]));
    }
}

#[test]
fn arguments_come_as_they_grow() {
    let tools = tools();
    let options = ReaderOptions { tools: &tools, is_single: false, prompt: "" };
    let mut reader = AnswerReader::new(&hermes(), options);
    assert!(reader.push("<tool_call>{\"name\": \"f\", \"argu").is_empty());
    let begun = reader.push("ments\": {\"ci");
    assert!(
        matches!(&begun[..], [Piece::CallBegin { index: 0, name, id }, Piece::CallArguments { .. }]
        if name == "f" && id.starts_with("call_"))
    );
    let more = reader.push("ty\": \"Par");
    assert_eq!(more, [Piece::CallArguments { index: 0, json: "ty\": \"Par".to_owned() }]);
}

#[test]
fn reasoning_is_set_apart() {
    let think =
        |name: &str| AnswerFormat::default().with_reasoning(&Reasoning::from_name(name).unwrap());
    let qwen = think("qwen3");
    for (prompt, answer, reasoning, text) in [
        ("", "<think>\nhm\n</think>\n\nHello", "hm", "Hello"),
        ("", "\n<think>hm</think>Hello", "hm", "Hello"),
        ("<think>\n", "hm\n</think>\n\nHello", "hm", "Hello"),
        ("<think>\n", "hm", "hm", ""),
        ("", "<think>\nhm </thin", "hm </thin", ""),
        ("", "<think>\n\n</think>\n\nHello", "", "Hello"),
        ("<think>\n\n</think>\n\n", "Hello", "", "Hello"),
        ("", "Hello <think>x</think>", "", "Hello <think>x</think>"),
        ("", "<thi", "", "<thi"),
        ("", "<think>a\n\nb\n\n\n</think>c\n", "a\n\nb\n", "c\n"),
    ] {
        for len in [1, 2, 5, 1000] {
            let got = read(&qwen, prompt, false, answer, len);
            assert_eq!((&*got.1, &*got.0), (reasoning, text), "{prompt:?} {answer:?} by {len}");
        }
    }
    let none = qwen.clone().with_reasoning(&Reasoning::None);
    assert_eq!(read(&none, "", false, "<think>x</think>y", 3).0, "<think>x</think>y");
    assert_eq!(read(&think("mistral"), "", false, "[THINK]x[/THINK]y", 3).1, "x");
    assert!(Reasoning::names().all(|name| Reasoning::from_name(name).is_some()));
    assert_eq!(Reasoning::from_name("x"), None);
    // A call is none inside of the reasoning, and one after it.
    let format = qwen.or_hermes();
    let call = "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
    let got = read(&format, "<think>", false, &format!("{call}</think>\n{call}"), 4);
    assert_eq!((got.1.as_str(), got.2.len()), (call, 1));
    assert!(known::hermes().is_parallel);
}

#[test]
fn channels_of_gpt_oss() {
    let format = public("openai-gpt-oss-120b");
    for (answer, reasoning, text, calls) in [
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hi<|return|>",
            "hm",
            "Hi",
            vec![],
        ),
        (
            "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>",
            "hm",
            "",
            vec![("f", "{\"x\": 1}")],
        ),
        (
            " to=functions.g<|channel|>commentary json<|message|>{}<|call|>",
            "",
            "",
            vec![("g", "{}")],
        ),
        ("Hello", "", "Hello", vec![]),
        ("<|channel|>final<|message|>a < b", "", "a < b", vec![]),
    ] {
        let calls: Vec<_> = calls.into_iter().map(|(n, j)| (n.to_owned(), j.to_owned())).collect();
        for len in [1, 3, 1000] {
            let got = read(&format, "<|start|>assistant", false, answer, len);
            let want = (text.to_owned(), reasoning.to_owned(), calls.clone());
            assert_eq!(got, want, "{answer} by {len}");
        }
    }
}
