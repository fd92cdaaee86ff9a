//! The marks of calls: what differs between an answer with a call and one without.

use super::probe::{ID, KEY, KEYS, NAME, Probe, TEXT, VALUES, Wants};
use super::{mirrored, object};
use crate::text::answer::mark::{Mark, Part, common_prefix, common_suffix, segments};
use crate::text::answer::style::{Arguments, Fields, Style};
use crate::text::answer::{Calls, Marks, known};
use serde_json::{Map, Value};
use std::ops::Range;

/// A rendered answer from its first mark on.
struct Rendered {
    body: String,
    /// Where each call stands in it, from its name or its object to the end of its arguments.
    calls: Vec<Range<usize>>,
}

/// The calls of a template that renders them, and the marks of text beside them.
pub(super) fn find(probe: &Probe<'_>, plain: &str, prompt: &str) -> Option<(Calls, Marks)> {
    let text_at = plain.find(TEXT)?;
    let (wants, one) = first(probe)?;
    let header = common_prefix(&plain[..text_at], &one);
    let style = style(probe, &one[header..], wants)?;
    let one = located(&style, &one[header..], 1)?;
    let two = probe.calls("", &[(0, of(0)), (1, of(1))], wants);
    let two = two.and_then(|two| located(&style, two.get(header..)?, 2));
    let with_text = probe.calls(TEXT, &[(0, of(0))], wants);
    let after_text = with_text.as_deref().and_then(|text| {
        let (_, after) = text.get(header..)?.split_once(TEXT)?;
        // A template may leave the call out, or have it before the text.
        located(&style, after, 1).map(|_| after)
    });
    let content = content(plain, header, after_text);
    let before = &one.body[..one.calls[0].start];
    let before = before.trim_start();
    let before = before.strip_prefix(&*content.close).unwrap_or(before).trim_start();
    let after = &one.body[one.calls[0].end..];
    let turn_end = plain[text_at + TEXT.len()..].trim();
    let turn_end = turn_end.strip_prefix(&*content.close).unwrap_or(turn_end).trim();
    // The last answer of a conversation may have no end.
    let between_turns = if turn_end.is_empty() { probe.turn_end() } else { None };
    let opens_turn = *segments(prompt.trim()).first().unwrap_or(&"");
    let ends = [turn_end, opens_turn, between_turns.as_deref().unwrap_or("")];
    let after = cut(after, &ends);

    let (open, call_close, between) = match &two {
        Some(two) => {
            let between = &two.body[two.calls[0].end..two.calls[1].start];
            let open = common_suffix(before, between);
            let rest = &between[..between.len() - open];
            (open, common_prefix(after.0, rest), between)
        }
        None => (before.len(), after.0.len(), ""),
    };
    let call_open = &before[before.len() - open..];
    let separator = between.get(call_close..between.len() - open.min(between.len()));
    let mut section = (&before[..before.len() - open], &after.0[call_close..]);
    let stop = (!after.1 && !turn_end.is_empty())
        .then(|| segments(section.1.trim()).last().map(|last| (*last).to_owned()));
    let stop = stop.flatten().filter(|stop| stop.starts_with('<'));
    if let Some(two) = two.as_ref().filter(|_| section.1.trim().is_empty()) {
        // DeepSeek R1's template ends only several calls.
        let (tail, _) = cut(&two.body[two.calls[1].end..], &ends);
        section.1 = tail.get(call_close..).unwrap_or_default();
    }
    // Without a section it is no end of one.
    let close = match &stop {
        Some(stop) if section.0.trim().is_empty() => section.1.replace(&**stop, ""),
        _ => section.1.to_owned(),
    };
    let list = section.0.trim_end().strip_suffix('[').zip(close.trim_start().strip_prefix(']'));
    let (section_open, section_close) = list.unwrap_or((section.0, &close));
    let gap = after_text.map_or("", |after| {
        let after = after.trim_start_matches('\u{0}');
        let after = after.strip_prefix(&*content.close).unwrap_or(after);
        let first = before.split(char::is_whitespace).next().unwrap_or_default();
        let core = after.trim_start();
        if core.starts_with(first) { &after[..after.len() - core.len()] } else { "" }
    });
    let mark = |text: &str| mark(text);
    let second_open = two.as_ref().map(|two| {
        let before = &two.body[..two.calls[1].start];
        mark(&before[before.len() - open.min(before.len())..])
    });
    let call_open = match second_open {
        Some(second) => mark(call_open).counting(&second),
        None => mark(call_open),
    };
    let is_turn_end = segments(before).first().is_some_and(|first| turn_end.starts_with(first));
    let calls = Calls {
        section: (mark(section_open), mark(section_close.trim_end())),
        call: (call_open, mark(&after.0[..call_close])),
        separator: separator.unwrap_or_default().to_owned(),
        gap: gap.to_owned(),
        is_list: list.is_some(),
        is_parallel: two.is_some(),
        style: match (&two, style) {
            (Some(two), style) => counting(style, two),
            (None, style) => style,
        },
        opens_with_turn_end: is_turn_end,
        optional_open: None,
        stop,
        takes_text: wants.text,
        is_rendered: true,
        has_numbered_ids: wants.numbered_ids,
    };
    Some((python_tag(calls, probe.source()), content))
}

/// Llama 3 has a mark of its own for calls, which its template never renders.
fn python_tag(mut calls: Calls, source: &str) -> Calls {
    const TAG: &str = "<|python_tag|>";
    let is_bare = calls.section.0.is_blank() && calls.call.0.is_blank();
    if is_bare {
        calls.optional_open = source.contains(TAG).then_some(TAG);
        // Several come so, whatever the template takes back.
        calls.separator = "; ".to_owned();
        calls.is_parallel = true;
    }
    calls
}

fn of(index: usize) -> Map<String, Value> {
    [(KEYS[index].to_owned(), VALUES[index].into())].into_iter().collect()
}

fn mark(text: &str) -> Mark {
    Mark::of(text, &[(ID, Part::Id), (NAME, Part::Name), (KEY, Part::Key)])
}

/// `text` before the first of `ends`, and whether one was there.
fn cut<'a>(text: &'a str, ends: &[&str]) -> (&'a str, bool) {
    let ends = ends.iter().filter(|end| !end.is_empty()).filter_map(|end| text.find(end));
    match ends.min() {
        Some(at) => (&text[..at], true),
        None => (text, text.trim().is_empty()),
    }
}

/// The first way to give a call that the template renders.
fn first(probe: &Probe<'_>) -> Option<(Wants, String)> {
    let ways = [(false, false), (false, true), (true, false), (true, true)];
    ways.into_iter().find_map(|(text, numbered_ids)| {
        let wants = Wants { text, numbered_ids };
        let rendered = probe.calls("", &[(0, of(0))], wants)?;
        let answer = &rendered[rendered.rfind(super::probe::QUESTION).unwrap_or(0)..];
        let value_at = answer.rfind(VALUES[0])?;
        let is_whole = answer[..value_at].contains(NAME) && answer[..value_at].contains(KEY);
        // Escaped, it is JSON in JSON: the template wants it as an object.
        let is_escaped = answer[..value_at].ends_with("\\\"");
        (is_whole && !is_escaped).then_some((wants, rendered))
    })
}

/// What the template has around the text of an answer, beside what it has around all of the answer.
fn content(plain: &str, header: usize, after_text: Option<&str>) -> Marks {
    let Some(at) = plain.find(TEXT) else { return Marks::default() };
    let after = &plain[at + TEXT.len()..];
    let open = plain.get(header..at).unwrap_or_default().trim();
    let close = match after_text {
        Some(text) => text[..common_prefix(text, after)].trim(),
        // The text is left out beside a call: what stands before the mark that ends the turn.
        None if open.is_empty() => "",
        None => match segments(after.trim()).as_slice() {
            [first, _, ..] if first.starts_with('<') => first,
            _ => "",
        },
    };
    // What ends the turn is no mark of the text.
    let close = if after.trim() == close { "" } else { close };
    let open = match open.is_empty() && !close.is_empty() {
        true => mirrored(&plain[..at], close),
        false => open,
    };
    let open = if known::opens_reasoning(open) { "" } else { open };
    Marks { open: open.to_owned(), close: close.to_owned() }
}

/// The style of the one call in `body`.
fn style(probe: &Probe<'_>, body: &str, wants: Wants) -> Option<Style> {
    let key_at = body.find(KEY)?;
    let name_at = body[..key_at].rfind(NAME).or_else(|| body.find(NAME))?;
    if let Some((value, range)) = object::around(body, name_at) {
        return object::style(&body[range], &value, mark);
    }
    let after_name = name_at + NAME.len();
    let begins = body[after_name..].match_indices('{').take(4);
    let json = begins
        .map(|(at, _)| after_name + at)
        .find(|&at| object::at(body, at).is_some_and(|(value, _)| value.get(KEY).is_some()));
    if let Some(at) = json {
        let middle = mark(&body[after_name..at]);
        return Some(Style::Named { middle, arguments: Arguments::Json });
    }
    let between = body.get(after_name..key_at)?;
    let value_at = key_at + body[key_at..].find(VALUES[0])?;
    let before_value = &body[key_at + KEY.len()..value_at];
    if between.trim_end().ends_with('(') && before_value.starts_with('=') {
        let middle = mark(between);
        return Some(Style::Named { middle, arguments: Arguments::Python });
    }
    if between.trim_end().ends_with('{') && before_value.starts_with(':') {
        let middle = between.trim_end();
        let middle = mark(&middle[..middle.len() - 1]);
        let quote = before_value[1..].trim();
        let quote = (!quote.is_empty() && quote != "\"").then(|| quote.to_owned());
        return Some(Style::Named { middle, arguments: Arguments::Bare { quote } });
    }
    fields(probe, wants)
}

/// Parameters between marks: from a call with two.
fn fields(probe: &Probe<'_>, wants: Wants) -> Option<Style> {
    let both: Map<String, Value> = of(0).into_iter().chain(of(1)).collect();
    let text = probe.calls("", &[(0, both)], wants)?;
    // Between the name, key, value, key and value.
    let value_at = text.rfind(VALUES[0])?;
    let key_at = text[..value_at].rfind(KEY)?;
    let name_at = text[..key_at].rfind(NAME)?;
    let before_key = &text[name_at + NAME.len()..key_at];
    let middle = &text[key_at + KEY.len()..value_at];
    let after_value = &text[value_at + VALUES[0].len()..];
    let second = after_value.find(VALUES[1])?;
    let (between, end) = (&after_value[..second], &after_value[second + VALUES[1].len()..]);
    let between = &between[..between.rfind(KEY)?];
    let open = common_suffix(before_key, between);
    let close = common_prefix(&between[..between.len() - open], end);
    let number: Map<String, Value> = [(KEYS[0].to_owned(), 12345.into())].into_iter().collect();
    let of_number = probe.calls("", &[(0, number)], wants).and_then(|text| {
        let value_at = text.rfind("12345")?;
        let key_at = text[..value_at].rfind(KEY)?;
        Some(text[key_at + KEY.len()..value_at].to_owned())
    });
    let middle = match of_number {
        Some(number) if number != middle => kind(middle, &number),
        _ => mark(middle),
    };
    if middle.is_blank() && close == 0 {
        return None;
    }
    let fields = Fields {
        open: mark(&between[between.len() - open..]),
        middle,
        close: mark(&between[..close]),
    };
    let middle = mark(&before_key[..before_key.len() - open]);
    Some(Style::Named { middle, arguments: Arguments::Fields(fields) })
}

/// A mark that says by a word in quotes whether the value is a string.
fn kind(of_string: &str, of_number: &str) -> Mark {
    let (strings, numbers) = (of_string.split('"'), of_number.split('"'));
    let mut parts: Vec<Part> = Vec::new();
    for (index, (string, number)) in strings.zip(numbers).enumerate() {
        let quote = if index > 0 { "\"" } else { "" };
        let more = match string == number {
            true => Mark::text(format!("{quote}{string}")),
            false => Mark(vec![Part::Text(quote.to_owned()), Part::Kind(string.to_owned())]),
        };
        parts = Mark(parts).then(&more).0;
    }
    Mark(parts)
}

/// Where the calls in `body` are.
fn located(style: &Style, body: &str, count: usize) -> Option<Rendered> {
    let mut calls: Vec<Range<usize>> = Vec::new();
    for value in &VALUES[..count] {
        let from = calls.last().map_or(0, |call| call.end);
        let value_at = from + body[from..].find(value)?;
        // A name may stand in the marks too: the last one is that of the call.
        let name_at = from + body[from..value_at].rfind(NAME)?;
        let range = match style {
            Style::Object { .. } => object::around(body, name_at)?.1,
            Style::Named { middle, arguments } => {
                let end = value_at + value.len();
                name_at..match arguments {
                    Arguments::Json => {
                        let open = name_at + body[name_at..value_at].find('{')?;
                        object::at(body, open)?.1
                    }
                    Arguments::Python => end + body[end..].find(')')? + 1,
                    Arguments::Bare { .. } => end + body[end..].find('}')? + 1,
                    Arguments::Fields(fields) => {
                        let _ = middle;
                        end + filled_len(&body[end..], &fields.close)?
                    }
                }
            }
        };
        calls.push(range);
    }
    Some(Rendered { body: body.to_owned(), calls })
}

/// The length of a mark at the beginning of a rendered text, whose holes are letters.
fn filled_len(text: &str, mark: &Mark) -> Option<usize> {
    let mut len = 0;
    for part in &mark.0 {
        let literal = match part {
            Part::Text(literal) => literal,
            Part::Key => KEY,
            Part::Name => NAME,
            _ => return None,
        };
        len += text[len..].starts_with(literal).then_some(literal.len())?;
    }
    Some(len)
}

/// With numbers where the second call has other digits than the first.
fn counting(style: Style, two: &Rendered) -> Style {
    let second = &two.body[two.calls[1].clone()];
    match style {
        Style::Named { middle, arguments: Arguments::Json } => {
            let end = second.find('{').unwrap_or(0);
            let other = mark(second.get(NAME.len()..end).unwrap_or_default());
            Style::Named { middle: middle.counting(&other), arguments: Arguments::Json }
        }
        Style::Named { middle, arguments: Arguments::Fields(fields) } => {
            let other = second.find(KEY).and_then(|at| second.get(NAME.len()..at));
            let open = fields.open.first_text();
            let other = other.and_then(|other| other.strip_suffix(open)).map(mark);
            let middle = match other {
                Some(other) => middle.counting(&other),
                None => middle,
            };
            Style::Named { middle, arguments: Arguments::Fields(fields) }
        }
        Style::Object { name_key, arguments_key, before_name, before_arguments, after } => {
            let other = second.find(NAME).and_then(|at| second.get(..at.checked_sub(1)?));
            let before_name = match other.map(mark) {
                Some(other) => before_name.counting(&other),
                None => before_name,
            };
            Style::Object { name_key, arguments_key, before_name, before_arguments, after }
        }
        other => other,
    }
}
