//! Formats that are known beforehand: templates that tell of tools but render no calls, and models without any.

use super::mark::{Mark, Part};
use super::style::{Arguments, Style};
use super::{Calls, Marks};

/// Marks of reasoning that a template may name without rendering any.
const REASONING: [(&str, &str); 5] = [
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
];

/// `<tool_call>\n{"name": .., "arguments": ..}\n</tool_call>`, one after the other.
pub(super) fn hermes() -> Calls {
    Calls {
        call: (Mark::text("<tool_call>\n"), Mark::text("\n</tool_call>")),
        separator: "\n".to_owned(),
        gap: "\n".to_owned(),
        ..objects("arguments")
    }
}

/// Objects with a field `name` and one of arguments, with no marks.
fn objects(arguments_key: &str) -> Calls {
    Calls {
        section: Default::default(),
        call: Default::default(),
        separator: String::new(),
        gap: String::new(),
        is_list: false,
        is_parallel: true,
        style: Style::Object {
            name_key: Some("name".to_owned()),
            arguments_key: arguments_key.to_owned(),
            before_name: Mark::text("{\"name\": "),
            before_arguments: Mark::text(format!(", \"{arguments_key}\": ")),
            after: Mark::text("}"),
        },
        opens_with_turn_end: false,
        optional_open: None,
        stop: None,
        takes_text: false,
        is_rendered: false,
        has_numbered_ids: false,
    }
}

/// What a template that tells of tools, and renders no calls, has the model write.
pub(super) fn calls(source: &str) -> Option<Calls> {
    let names = |mark: &str| source.contains(mark);
    if names("<|tool_list_start|>") || names("<|tool_call_start|>") || names("List of tools: [") {
        // LFM2.
        return Some(Calls {
            section: (Mark::text("<|tool_call_start|>"), Mark::text("<|tool_call_end|>")),
            separator: ", ".to_owned(),
            is_list: true,
            style: Style::Named { middle: Mark::text("("), arguments: Arguments::Python },
            ..objects("arguments")
        });
    }
    if names("<|tool_calls_section_begin|>") && names("<|tool_call_argument_begin|>") {
        // Kimi K2: what counts the calls changes a list in place, which a sandbox of Jinja2 forbids.
        let number = Mark(vec![
            Part::Text(":".to_owned()),
            Part::Number(0),
            Part::Text("<|tool_call_argument_begin|>".to_owned()),
        ]);
        return Some(Calls {
            section: (
                Mark::text("<|tool_calls_section_begin|>"),
                Mark::text("<|tool_calls_section_end|>"),
            ),
            call: (Mark::text("<|tool_call_begin|>functions."), Mark::text("<|tool_call_end|>")),
            style: Style::Named { middle: number, arguments: Arguments::Json },
            has_numbered_ids: true,
            ..objects("arguments")
        });
    }
    let list = |open: &str, close: &str| Calls {
        section: (Mark::text(open), Mark::text(close)),
        separator: ", ".to_owned(),
        is_list: true,
        ..objects("arguments")
    };
    if names("<|tool_call|>") && names("<|/tool_call|>") || names("<|tool|>") {
        // Phi-4.
        return Some(list("<|tool_call|>", "<|/tool_call|>"));
    }
    if names("<|tool_call|>") {
        // Granite 3.3.
        return Some(list("<|tool_call|>", ""));
    }
    names("<tool_call>").then(hermes)
}

/// Whether `mark` is one that opens reasoning.
pub(super) fn opens_reasoning(mark: &str) -> bool {
    REASONING.iter().any(|(open, _)| mark.trim() == *open)
}

/// What a template names that renders no reasoning.
pub(super) fn reasoning(source: &str, generation_prompt: &str) -> Option<Marks> {
    let is_named = |(open, close): &(&str, &str)| {
        source.contains(close) || generation_prompt.trim_end().ends_with(open)
    };
    let (open, close) = REASONING.into_iter().find(is_named)?;
    Some(Marks { open: open.to_owned(), close: close.to_owned() })
}
