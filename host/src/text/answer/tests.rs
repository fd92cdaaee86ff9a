//! Templates of public models: what is derived of each, and that answers come back as they were rendered.

use super::*;
use crate::text::Message;
use crate::text::RenderOptions;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::fs;
use std::path::PathBuf;

#[cfg(feature = "grammar")]
mod round_trip;

fn directory() -> PathBuf {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/text/templates").into()
}

/// The public templates by their names.
fn templates() -> Vec<(String, ChatTemplate)> {
    let files = fs::read_dir(directory().join("public")).unwrap();
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "jinja"));
    files.sort();
    let read = |path: PathBuf| {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        (name, ChatTemplate::from_source(&fs::read_to_string(path).unwrap()))
    };
    files.into_iter().map(read).collect()
}

/// `HALFWARP_WRITE=1` writes the table anew.
#[test]
fn formats_of_public_templates() {
    let line = |(name, template): &(String, ChatTemplate)| {
        let format = AnswerFormat::of(template);
        let tools = if format.knows_tools() { "" } else { " (knows no tools)" };
        format!("{name}{tools}\n    {format}\n")
    };
    let table: String = templates().iter().map(line).collect();
    let path = directory().join("public/formats.txt");
    if std::env::var_os("HALFWARP_WRITE").is_some() {
        fs::write(&path, &table).unwrap();
    }
    let want = fs::read_to_string(&path).unwrap();
    for (got, want) in table.lines().zip(want.lines()) {
        assert_eq!(got, want);
    }
    assert_eq!(table.len(), want.len());
}

pub(super) fn tools() -> Vec<Value> {
    let tool = |name: &str, properties: Value| {
        json!({"type": "function", "function": {"name": name, "description": "d",
            "parameters": {"type": "object", "properties": properties, "required": []}}})
    };
    let all = json!({
        "city": {"type": "string", "description": "d"}, "days": {"type": "integer", "description": "d"},
        "is_exact": {"type": "boolean", "description": "d"},
        "options": {"type": "object", "description": "d", "properties": {},
            "additionalProperties": {"type": "string"}},
        "names": {"type": "array", "description": "d", "items": {"type": "string"}}
    });
    vec![tool("get_weather", all), tool("now", json!({}))]
}

/// An answer: text, reasoning and calls with their arguments.
#[derive(Clone, Debug, Default, PartialEq)]
struct Answer {
    text: String,
    reasoning: String,
    calls: Vec<(String, Value)>,
}

/// What `reader` makes of `text` that comes in pieces of lengths up to `most`.
fn read(mut reader: AnswerReader, text: &str, most: usize, rng: &mut ChaCha8Rng) -> Answer {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let len = rng.random_range(1..=most);
        let end = rest.char_indices().nth(len).map_or(rest.len(), |(at, _)| at);
        pieces.extend(reader.push(&rest[..end]));
        rest = &rest[end..];
    }
    pieces.extend(reader.finish());
    let answer = put_together(pieces);
    assert_eq!(reader.has_calls(), !answer.calls.is_empty());
    answer
}

/// The answer that `pieces` are of.
fn put_together(pieces: Vec<Piece>) -> Answer {
    let mut answer = Answer::default();
    let mut jsons: Vec<(String, String)> = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Text(text) => answer.text += &text,
            Piece::Reasoning(text) => answer.reasoning += &text,
            Piece::CallBegin { index, name, .. } => {
                assert_eq!(index, jsons.len());
                jsons.push((name, String::new()));
            }
            Piece::CallArguments { index, json } => jsons[index].1 += &json,
        }
    }
    let parse = |json: &str| serde_json::from_str(json).unwrap_or_else(|_| json.into());
    answer.calls = jsons.into_iter().map(|(name, json)| (name, parse(&json))).collect();
    answer
}

fn rendered(
    template: &ChatTemplate,
    format: &AnswerFormat,
    answer: &Answer,
    tools: &[Value],
) -> Option<(String, String)> {
    let mut message = Message::new("assistant", answer.text.clone());
    if !answer.reasoning.is_empty() {
        message.fields.insert("reasoning_content".to_owned(), answer.reasoning.clone().into());
    }
    let calls = answer.calls.iter().enumerate().map(|(index, (name, arguments))| {
        let id = match format.calls.as_ref().is_some_and(|calls| calls.has_numbered_ids) {
            true => format!("functions.{name}:{index}"),
            false => format!("abcdefgh{index}"),
        };
        let arguments = match format.takes_arguments_as_text() {
            true => arguments.to_string().into(),
            false => arguments.clone(),
        };
        json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
    });
    let calls: Vec<Value> = calls.collect();
    if !calls.is_empty() {
        message.fields.insert("tool_calls".to_owned(), calls.into());
    }
    let question = Message::new("user", "What is the weather?");
    let render = |messages: &[Message], add_generation_prompt| {
        let fills_in_tools = true;
        let options =
            RenderOptions { tools, add_generation_prompt, fills_in_tools, ..Default::default() };
        template.render_with(messages, &options).ok()
    };
    let prompt = render(std::slice::from_ref(&question), true)?;
    let whole = render(&[question, message], false)?;
    // A template renders an answer of the past otherwise than it opens a new one: without the
    // reasoning's marks, or with the close mark only.
    let common = prompt.bytes().zip(whole.bytes()).take_while(|(a, b)| a == b).count();
    let common = (0..=common).rev().find(|&at| whole.is_char_boundary(at))?;
    let common = match whole[..common].rfind('<') {
        Some(tag) if !whole[tag..common].contains('>') => tag,
        _ => common,
    };
    let text = &whole[common..];
    let Some(marks) = &format.reasoning else {
        return Some((whole[..common].to_owned(), text.to_owned()));
    };
    let opens = format.opens_reasoning(&prompt);
    let is_closed = text.trim_start().starts_with(&*marks.close);
    let is_rendered = !answer.reasoning.is_empty() && text.contains(&answer.reasoning);
    if opens && (is_closed || is_rendered) {
        let text = text.trim_start();
        return Some((prompt, text.strip_prefix(&*marks.open).unwrap_or(text).to_owned()));
    }
    let text = text.trim_start().strip_prefix(&*marks.close).unwrap_or(text);
    Some((whole[..common].to_owned(), text.to_owned()))
}

/// Answers that every template can render; an argument has the marks that end one of `format`.
fn answers(format: &AnswerFormat) -> Vec<Answer> {
    let weather = |arguments: Value| ("get_weather".to_owned(), arguments);
    let answer = |text: &str, calls: Vec<(String, Value)>| Answer {
        text: text.to_owned(),
        reasoning: String::new(),
        calls,
    };
    vec![
        answer("", vec![weather(json!({"city": "Paris"}))]),
        answer("", vec![("now".to_owned(), json!({}))]),
        answer("", vec![weather(json!({"city": "a \"b\" 'c' <d>\n\n{e}: [f], g\\ h", "days": 3}))]),
        answer("", vec![weather(json!({"city": "5", "is_exact": true, "names": ["x", "y"]}))]),
        answer("", vec![weather(json!({"options": {"a": ["b", 1, true], "c": {"d": "}"}}}))]),
        answer("", vec![weather(json!({"city": closes(format), "days": 3}))]),
    ]
}

/// A text with every mark that ends a call of `format` or a part of it, each beside other words.
fn closes(format: &AnswerFormat) -> String {
    let calls = format.calls.as_ref().unwrap();
    let mut marks = vec![&calls.call.1, &calls.section.1, &calls.call.0, &calls.section.0];
    if let Style::Named { arguments: Arguments::Fields(fields), .. } = &calls.style {
        marks.extend([&fields.close, &fields.open]);
    }
    let mut text = "a".to_owned();
    for mark in marks {
        for part in &mark.0 {
            match part {
                Part::Text(mark) => text += &format!(" {} b", mark.trim()),
                Part::Key => text += " city c",
                _ => {}
            }
        }
    }
    if let Style::Named { arguments: Arguments::Bare { quote: Some(quote) }, .. } = &calls.style {
        text += &format!(" {quote} d");
    }
    text
}

#[test]
fn rendered_calls_are_read() {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    let mut wrong = Vec::new();
    let mut read_templates = 0;
    for (name, template) in templates() {
        let format = AnswerFormat::of(&template);
        if !format.calls.as_ref().is_some_and(|calls| calls.is_rendered) {
            continue;
        }
        read_templates += 1;
        let mut answers = answers(&format);
        answers.push(Answer { text: "I look it up.".to_owned(), ..answers[0].clone() });
        let both = [&answers[0], &answers[1]].map(|answer| answer.calls[0].clone());
        answers.push(Answer { calls: both.to_vec(), ..Answer::default() });
        let reasoning = "Well, <b>\n\nso.".to_owned();
        answers.push(Answer { reasoning, ..answers[0].clone() });
        for (number, answer) in answers.iter().enumerate() {
            if answer.calls.len() > 1
                && (!format.calls.as_ref().unwrap().is_parallel || name.contains("Llama-3"))
            {
                continue;
            }
            let Some((prompt, text)) = rendered(&template, &format, answer, &tools()) else {
                wrong.push(format!("{name} {number}: not rendered"));
                continue;
            };
            // Some templates leave text out beside a call, or reasoning.
            let mut answer = answer.clone();
            if !text.contains(&answer.text) {
                answer.text.clear();
            }
            if !text.contains(&answer.reasoning) {
                answer.reasoning.clear();
            }
            if !text.contains(&answer.calls[0].0) {
                answer.calls.clear();
            }
            // Templates differ in white space, and LFM2.5's in quotes.
            let plain = |text: &str| text.replace(char::is_whitespace, "").replace('\'', "\"");
            if [0, 1, 7].contains(&number) {
                let written = plain(&format.written(&calls(&answer)).unwrap());
                let written = written.strip_prefix(&*format.begun).unwrap_or(&written);
                // DeepSeek R1's template ends only several calls.
                let ends_one = !name.contains("R1-Distill-Llama") || number == 7;
                let end = if ends_one { "" } else { "<｜tool▁calls▁end｜>" };
                let written = written.strip_suffix(end).unwrap_or(written);
                if !plain(&text).contains(written) {
                    wrong.push(format!("{name} {number}: {text:?}\n  got {written:?}"));
                }
            }
            // The text is a message of its own beside that of the call, or the answer has another
            // head than the prompt.
            let others = [
                "NVIDIA-Nemotron-Nano-v2",
                "CohereForAI-c4ai-command-r-plus-tool_use",
                "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B",
            ];
            if others.contains(&&*name) && number == 6 {
                continue;
            }
            for most in [1, 3, 1000] {
                let tools = tools();
                let options = ReaderOptions { tools: &tools, is_single: false, prompt: &prompt };
                let got = read(AnswerReader::new(&format, options), &text, most, &mut rng);
                // What ends the turn is a stop token, which the text does not have.
                let said = got.text.split(['<', '[']).next().unwrap_or_default().trim_end();
                // Reka's template has a space before the text.
                let got = Answer { text: said.trim_start().to_owned(), ..got };
                if got != answer {
                    wrong.push(format!("{name} {number} by {most}: {text:?}\n  got {got:?}"));
                    break;
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {read_templates}\n{}", wrong.len(), wrong.join("\n"));
}

/// The calls of an answer to be written.
fn calls(answer: &Answer) -> Vec<Call<'_>> {
    let ids = ["abcdefgh0", "abcdefgh1"].into_iter();
    let calls = answer.calls.iter().zip(ids);
    calls.map(|((name, arguments), id)| Call { id, name, arguments }).collect()
}

/// Every format, also those of templates that render no calls: text around calls, one or several,
/// whose arguments have its own marks.
#[test]
fn written_calls_are_read() {
    let mut rng = ChaCha8Rng::seed_from_u64(8);
    let mut formats: Vec<(String, AnswerFormat)> = templates()
        .iter()
        .map(|(name, template)| (name.clone(), AnswerFormat::of(template).or_hermes()))
        .collect();
    formats.push(("hermes".to_owned(), AnswerFormat::default().or_hermes()));
    let mut wrong = Vec::new();
    for (name, format) in formats.iter().filter(|(_, format)| !format.is_harmony) {
        let of_calls = format.calls.as_ref().unwrap();
        let has_end = !of_calls.call.1.is_blank() || !of_calls.section.1.is_blank();
        let Marks { open, close } = &format.content;
        let mut answers = answers(format);
        let two = [&answers[0], &answers[5]].map(|answer| answer.calls[0].clone());
        if of_calls.is_parallel {
            answers.push(Answer { calls: two.to_vec(), ..Answer::default() });
        }
        for (number, answer) in answers.iter().enumerate() {
            for (before, after) in
                [("", ""), ("I <look> [it] up.", ""), ("So:", "\n\nThat is all.")]
            {
                // An answer without marks of calls begins with them; one with marks of text has a
                // text before them only.
                if of_calls.is_bare() && !before.is_empty()
                    || !after.is_empty() && (!has_end || !open.is_empty() || !close.is_empty())
                {
                    continue;
                }
                let said = match before {
                    "" => String::new(),
                    _ => format!("{open}{before}{close}{}", of_calls.gap),
                };
                let written = format.written(&calls(answer)).unwrap();
                let text = format!("{said}{written}{after}");
                // What a template has after a call may be white space.
                let space = written.len() - written.trim_end().len();
                let after = format!("{}{after}", &written[written.len() - space..]);
                let after = if after.trim().is_empty() { "" } else { &after };
                let answer = Answer { text: format!("{before}{after}"), ..answer.clone() };
                for most in [1, 3, 1000] {
                    let tools = tools();
                    let options = ReaderOptions { tools: &tools, is_single: false, prompt: "" };
                    let got = read(AnswerReader::new(format, options), &text, most, &mut rng);
                    if got != answer {
                        wrong.push(format!("{name} {number} by {most}: {text:?}\n  got {got:?}"));
                        break;
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}\n{}", wrong.len(), wrong.join("\n"));
}
