//! The formats in which models write calls.

use crate::text::ChatTemplate;

/// How a model writes calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Format {
    Hermes,
    Llama3,
    Mistral,
    Phi4,
}

impl Format {
    /// The one that a chat template shows, if it knows tools.
    pub fn of(template: &ChatTemplate) -> Option<Self> {
        let source = template.source();
        let shows = |marks: &[&str]| marks.iter().any(|mark| source.contains(mark));
        if !Self::is_known(template) {
            None
        } else if shows(&["[TOOL_CALLS]"]) {
            Some(Format::Mistral)
        } else if shows(&["<|tool_call|>"]) {
            Some(Format::Phi4)
        } else if shows(&["<tool_call>"]) {
            Some(Format::Hermes)
        } else if shows(&["<|python_tag|>", "\"parameters\": "]) {
            Some(Format::Llama3)
        } else {
            None
        }
    }

    /// Whether a chat template knows tools at all.
    pub fn is_known(template: &ChatTemplate) -> bool {
        template.source().contains("tools")
    }

    /// What begins calls, and what ends them; without an end they go on to that of the answer.
    pub fn marks(self) -> (&'static str, Option<&'static str>) {
        match self {
            Format::Hermes => ("<tool_call>", Some("</tool_call>")),
            Format::Llama3 => ("<|python_tag|>", None),
            Format::Mistral => ("[TOOL_CALLS]", None),
            Format::Phi4 => ("<|tool_call|>", Some("<|/tool_call|>")),
        }
    }

    /// The field of a call that holds its arguments.
    pub fn arguments_key(self) -> &'static str {
        match self {
            Format::Llama3 => "parameters",
            Format::Hermes | Format::Mistral | Format::Phi4 => "arguments",
        }
    }
}
