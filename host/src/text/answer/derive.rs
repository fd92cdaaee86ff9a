//! The format of answers, from what a chat template renders.

mod calls;
mod object;
mod probe;
mod reasoning;

use super::mark::{Part, segments};
use super::{AnswerFormat, Calls, Marks, harmony, known};
use crate::text::ChatTemplate;
use probe::Probe;

/// See [`AnswerFormat::of`].
pub(super) fn of(template: &ChatTemplate) -> AnswerFormat {
    let source = template.source_for(true);
    let probe = Probe::new(template);
    let knows_tools = probe.knows_tools();
    if harmony::is_of(source) {
        return AnswerFormat { is_harmony: true, knows_tools, ..AnswerFormat::default() };
    }
    let prompt = probe.generation_prompt();
    let Some(plain) = probe.text() else {
        let reasoning = known::reasoning(source, &prompt);
        return AnswerFormat { reasoning, knows_tools, ..AnswerFormat::default() };
    };
    let (calls, content) = match calls::find(&probe, &plain, &prompt) {
        Some((calls, content)) => (Some(calls), content),
        None if knows_tools => (known::calls(source), Marks::default()),
        None => (None, Marks::default()),
    };
    let reasoning = reasoning::find(&probe, &plain, &content, &prompt)
        .or_else(|| known::reasoning(source, &prompt));
    let calls = calls.map(|calls| without_thoughts(calls, reasoning.as_ref()));
    let begun = begun(&prompt, &content, calls.as_ref());
    AnswerFormat { reasoning, content, calls, begun, is_harmony: false, knows_tools }
}

/// Without the marks of an empty reasoning, which a template may have before calls.
fn without_thoughts(mut calls: Calls, reasoning: Option<&Marks>) -> Calls {
    let Some(Marks { open, close }) = reasoning else { return calls };
    let mark = match calls.section.0.is_blank() {
        true => &mut calls.call.0,
        false => &mut calls.section.0,
    };
    if let Some(Part::Text(text)) = mark.0.first_mut() {
        let rest = text.trim_start().strip_prefix(open.trim());
        let rest = rest.and_then(|rest| rest.trim_start().strip_prefix(close.trim()));
        if let Some(rest) = rest.map(|rest| rest.trim_start().to_owned()) {
            *text = rest;
        }
    }
    calls
}

/// The end of the generation prompt with which a mark of the answer begins: Functionary's `>>>`.
fn begun(prompt: &str, content: &Marks, calls: Option<&Calls>) -> String {
    let Some(calls) = calls else { return String::new() };
    let prompt = prompt.trim_end();
    let open = calls.section.0.clone().then(&calls.call.0);
    let open = open.first_text();
    let lens = (3..=open.len().min(prompt.len())).rev();
    let mut begun = lens.filter(|&len| open.is_char_boundary(len)).map(|len| &open[..len]);
    let is_begun = |begun: &&str| prompt.ends_with(begun) && content.open.starts_with(begun);
    begun.find(is_begun).unwrap_or_default().to_owned()
}

/// As much of the end of `before` as `close` has: `<|open|>x<|sep|>` for `<|close|>x<|sep|>`.
fn mirrored<'a>(before: &'a str, close: &str) -> &'a str {
    let count = segments(close.trim()).len();
    let before = before.trim_end();
    let len: usize = segments(before).into_iter().rev().take(count).map(str::len).sum();
    &before[before.len() - len..]
}
