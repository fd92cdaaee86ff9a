//! The methods of Python's strings.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

use super::args::{bind, integer, invalid, require, string};
use super::format::braces;
use super::python::{is_printable, is_space, items, tuple};

/// Characters of a padded text at most.
const MAX_WIDTH: i64 = 100_000;

/// Spaces of a tab at most.
const MAX_TAB: i64 = 100;

/// `text.method(*args)`.
pub(super) fn call(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    Ok(match method {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = bind(method, args, ["chars"])?;
            strip(text, method, chars.as_ref())?.into()
        }
        "split" | "rsplit" => split(text, method, args)?,
        "splitlines" => {
            let [keepends] = bind(method, args, ["keepends"])?;
            lines(text, keepends.is_some_and(|keep| keep.is_true())).into_iter().collect()
        }
        "partition" | "rpartition" => {
            let [separator] = bind(method, args, ["sep"])?;
            let separator = not_empty(string_of(method, "sep", separator)?)?;
            let found = match method {
                "partition" => text.split_once(&*separator),
                _ => text.rsplit_once(&*separator),
            };
            let parts = match found {
                Some((before, after)) => [before, &separator, after],
                None if method == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            tuple(parts.map(Value::from))
        }
        "startswith" | "endswith" => starts_or_ends(text, method, args)?.into(),
        "find" | "rfind" | "index" | "rindex" | "count" => search(text, method, args)?.into(),
        "replace" => {
            let [old, new, count] = bind(method, args, ["old", "new", "count"])?;
            let old = string_of(method, "old", old)?;
            let new = string_of(method, "new", new)?;
            replace(text, &old, &new, integer(method, count.as_ref(), -1)?).into()
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = bind(method, args, ["affix"])?;
            let affix = string_of(method, "affix", affix)?;
            let rest = match method {
                "removeprefix" => text.strip_prefix(&*affix),
                _ => text.strip_suffix(&*affix),
            };
            rest.unwrap_or(text).into()
        }
        "join" => join(text, args)?.into(),
        "format" => braces(text, args)?.into(),
        "center" | "ljust" | "rjust" => {
            let [width, fill] = bind(method, args, ["width", "fillchar"])?;
            let width = integer(method, Some(&require(method, "width", width)?), 0)?;
            let fill = fill.map_or(Ok(" ".to_owned()), |fill| string(method, &fill))?;
            justify(text, method, width, &fill)?.into()
        }
        "zfill" => {
            let [width] = bind(method, args, ["width"])?;
            let width = integer(method, Some(&require(method, "width", width)?), 0)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let width = width.saturating_sub(sign.len() as i64);
            format!("{sign}{}", justify(digits, "rjust", width, "0")?).into()
        }
        "expandtabs" => {
            let [size] = bind(method, args, ["tabsize"])?;
            let size = integer(method, size.as_ref(), 8)?.max(0);
            if size > MAX_TAB {
                return Err(invalid(format!("expandtabs: a size over {MAX_TAB}")));
            }
            expand_tabs(text, size as usize).into()
        }
        _ => return without_arguments(text, method, args),
    })
}

fn without_arguments(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let any = |of: fn(char) -> bool| text.chars().any(of);
    let all = |of: fn(char) -> bool| !text.is_empty() && text.chars().all(of);
    let value: Value = match method {
        "upper" => text.to_uppercase().into(),
        "lower" => text.to_lowercase().into(),
        "capitalize" => capitalize(text).into(),
        "title" => title(text).into(),
        "swapcase" => {
            let swap = |char: char| match char.is_uppercase() {
                true => char.to_lowercase().to_string(),
                false => char.to_uppercase().to_string(),
            };
            text.chars().map(swap).collect::<String>().into()
        }
        "islower" => (any(char::is_lowercase) && !any(char::is_uppercase)).into(),
        "isupper" => (any(char::is_uppercase) && !any(char::is_lowercase)).into(),
        "istitle" => (any(char::is_alphabetic) && title(text) == text).into(),
        "isspace" => all(is_space).into(),
        "isdigit" | "isnumeric" | "isdecimal" => all(char::is_numeric).into(),
        "isalpha" => all(char::is_alphabetic).into(),
        "isalnum" => all(char::is_alphanumeric).into(),
        "isascii" => text.is_ascii().into(),
        "isprintable" => text.chars().all(is_printable).into(),
        "isidentifier" => (all(|char| char == '_' || char.is_alphanumeric())
            && !text.starts_with(char::is_numeric))
        .into(),
        _ => return Err(ErrorKind::UnknownMethod.into()),
    };
    let [] = bind(method, args, [])?;
    Ok(value)
}

fn string_of(method: &str, name: &str, value: Option<Value>) -> Result<String, Error> {
    string(method, &require(method, name, value)?)
}

fn not_empty(separator: String) -> Result<String, Error> {
    if separator.is_empty() { Err(invalid("an empty separator")) } else { Ok(separator) }
}

/// `strip`, `lstrip` or `rstrip`.
pub(super) fn strip<'a>(
    text: &'a str,
    method: &str,
    chars: Option<&Value>,
) -> Result<&'a str, Error> {
    let chars = match chars.filter(|chars| !chars.is_none()) {
        None => None,
        Some(chars) => Some(string(method, chars)?),
    };
    let is_stripped = |char| match &chars {
        None => is_space(char),
        Some(chars) => chars.contains(char),
    };
    Ok(match method {
        "lstrip" => text.trim_start_matches(is_stripped),
        "rstrip" => text.trim_end_matches(is_stripped),
        _ => text.trim_matches(is_stripped),
    })
}

fn split(text: &str, method: &str, args: &[Value]) -> Result<Value, Error> {
    let [separator, max] = bind(method, args, ["sep", "maxsplit"])?;
    let max = usize::try_from(integer(method, max.as_ref(), -1)?).unwrap_or(usize::MAX - 1);
    let from_right = method == "rsplit";
    let separator = separator.filter(|separator| !separator.is_none());
    let mut parts: Vec<&str> = match separator {
        Some(separator) => {
            let separator = not_empty(string(method, &separator)?)?;
            match from_right {
                true => text.rsplitn(max + 1, &*separator).collect(),
                false => text.splitn(max + 1, &*separator).collect(),
            }
        }
        None if from_right => words_from_right(text, max),
        None => words(text, max),
    };
    if from_right {
        parts.reverse();
    }
    Ok(parts.into_iter().map(Value::from).collect())
}

/// Words between white space: at most `max`, and the rest.
fn words(text: &str, max: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_start_matches(is_space);
    while !rest.is_empty() {
        if words.len() == max {
            words.push(rest);
            break;
        }
        let (word, after) = rest.split_at(rest.find(is_space).unwrap_or(rest.len()));
        words.push(word);
        rest = after.trim_start_matches(is_space);
    }
    words
}

/// As [`words`], from the last word on.
fn words_from_right(text: &str, max: usize) -> Vec<&str> {
    let mut words = Vec::new();
    let mut rest = text.trim_end_matches(is_space);
    while !rest.is_empty() {
        if words.len() == max {
            words.push(rest);
            break;
        }
        let word = rest.rsplit(is_space).next().unwrap_or(rest);
        words.push(word);
        rest = rest[..rest.len() - word.len()].trim_end_matches(is_space);
    }
    words
}

/// `str.splitlines`.
pub(super) fn lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let is_end = |char| {
        matches!(
            char,
            '\n' | '\r' | '\x0b' | '\x0c' | '\x1c'..='\x1e' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let len = match rest[end..].chars().next() {
            Some('\r') if rest[end..].starts_with("\r\n") => 2,
            end => end.map_or(0, char::len_utf8),
        };
        lines.push(&rest[..if keep_ends { end + len } else { end }]);
        rest = &rest[end + len..];
    }
    lines
}

/// The part of `text` from character `start` to `end`, and how many characters stand before it; `None` where it begins
/// after the text.
fn part<'a>(
    text: &'a str,
    method: &str,
    start: Option<&Value>,
    end: Option<&Value>,
) -> Result<Option<(&'a str, usize)>, Error> {
    if start.is_none() && end.is_none() {
        return Ok(Some((text, 0)));
    }
    let len = text.chars().count() as i64;
    let from_end = |at: i64| if at < 0 { (at + len).max(0) } else { at };
    let start = from_end(integer(method, start, 0)?);
    let end = from_end(integer(method, end, len)?).min(len);
    if start > end {
        return Ok(None);
    }
    let byte = |at: i64| text.char_indices().nth(at as usize).map_or(text.len(), |(byte, _)| byte);
    Ok(Some((&text[byte(start)..byte(end)], start as usize)))
}

fn starts_or_ends(text: &str, method: &str, args: &[Value]) -> Result<bool, Error> {
    let [affix, start, end] = bind(method, args, ["affix", "start", "end"])?;
    let affix = require(method, "affix", affix)?;
    let affixes = if affix.is_tuple() { items(&affix)? } else { vec![affix] };
    let Some((part, _)) = part(text, method, start.as_ref(), end.as_ref())? else {
        return Ok(false);
    };
    for affix in affixes {
        let affix = string(method, &affix)?;
        let is_there = match method {
            "startswith" => part.starts_with(&*affix),
            _ => part.ends_with(&*affix),
        };
        if is_there {
            return Ok(true);
        }
    }
    Ok(false)
}

fn search(text: &str, method: &str, args: &[Value]) -> Result<i64, Error> {
    let [wanted, start, end] = bind(method, args, ["sub", "start", "end"])?;
    let wanted = string_of(method, "sub", wanted)?;
    let part = part(text, method, start.as_ref(), end.as_ref())?;
    if method == "count" {
        return Ok(part.map_or(0, |(part, _)| part.matches(&*wanted).count() as i64));
    }
    let found = part.and_then(|(part, before)| {
        let byte = match method {
            "find" | "index" => part.find(&*wanted),
            _ => part.rfind(&*wanted),
        };
        byte.map(|byte| (before + part[..byte].chars().count()) as i64)
    });
    match found {
        Some(at) => Ok(at),
        None if method.ends_with("find") => Ok(-1),
        None => Err(invalid(format!("{method}: the text is not there"))),
    }
}

/// `str.replace`; all of them where `count` is negative.
pub(super) fn replace(text: &str, old: &str, new: &str, count: i64) -> String {
    match usize::try_from(count) {
        Ok(count) => text.replacen(old, new, count),
        Err(_) => text.replace(old, new),
    }
}

fn join(separator: &str, args: &[Value]) -> Result<String, Error> {
    let [list] = bind("join", args, ["iterable"])?;
    let list = items(&require("join", "iterable", list)?)?;
    let texts: Result<Vec<String>, Error> = list.iter().map(|item| string("join", item)).collect();
    Ok(texts?.join(separator))
}

/// `center`, `ljust` or `rjust`.
pub(super) fn justify(text: &str, method: &str, width: i64, fill: &str) -> Result<String, Error> {
    if width > MAX_WIDTH {
        return Err(invalid(format!("{method}: a width over {MAX_WIDTH}")));
    }
    if fill.chars().count() != 1 {
        return Err(invalid(format!("{method} fills with one character")));
    }
    let width = width.max(0) as usize;
    let missing = width.saturating_sub(text.chars().count());
    let left = match method {
        "ljust" => 0,
        "rjust" => missing,
        _ => missing / 2 + (missing & width & 1),
    };
    Ok(fill.repeat(left) + text + &fill.repeat(missing - left))
}

fn expand_tabs(text: &str, size: usize) -> String {
    let mut out = String::new();
    let mut column = 0;
    for char in text.chars() {
        match char {
            '\t' if size > 0 => {
                let spaces = size - column % size;
                out.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            '\t' => {}
            _ => {
                column = if matches!(char, '\n' | '\r') { 0 } else { column + 1 };
                out.push(char);
            }
        }
    }
    out
}

/// The first letter of a word; some have a third case.
fn title_case(char: char) -> String {
    match char {
        'Ǆ'..='ǆ' => "ǅ".to_owned(),
        'Ǉ'..='ǉ' => "ǈ".to_owned(),
        'Ǌ'..='ǌ' => "ǋ".to_owned(),
        'Ǳ'..='ǳ' => "ǲ".to_owned(),
        _ => {
            let mut upper = char.to_uppercase();
            let first: String = upper.next().into_iter().collect();
            first + &upper.flat_map(char::to_lowercase).collect::<String>()
        }
    }
}

/// `str.capitalize`.
pub(super) fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().map(title_case).unwrap_or_default();
    first + &chars.as_str().to_lowercase()
}

fn title(text: &str) -> String {
    let mut out = String::new();
    let mut in_word = false;
    for char in text.chars() {
        match in_word {
            true => out.extend(char.to_lowercase()),
            false => out.push_str(&title_case(char)),
        }
        in_word = char.is_alphabetic();
    }
    out
}

/// The methods of lists and numbers, and of mappings those that [`minijinja_contrib`] hasn't.
pub(super) fn call_other(value: &Value, method: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.kind(), method) {
        (ValueKind::Seq | ValueKind::Iterable, "index" | "count") => {
            let [wanted] = bind(method, args, ["value"])?;
            let wanted = require(method, "value", wanted)?;
            let list = items(value)?;
            if method == "count" {
                return Ok(list.iter().filter(|item| **item == wanted).count().into());
            }
            let index = list.iter().position(|item| *item == wanted);
            index.map(Value::from).ok_or_else(|| invalid("index: the value is not in the list"))
        }
        (ValueKind::Seq | ValueKind::Map, "copy") if !value.is_tuple() => {
            let [] = bind(method, args, [])?;
            Ok(value.clone())
        }
        (ValueKind::Number, "is_integer") => {
            let [] = bind(method, args, [])?;
            Ok((value.is_integer() || f64::try_from(value.clone())?.fract() == 0.0).into())
        }
        (ValueKind::Number, "bit_length") if value.is_integer() => {
            let [] = bind(method, args, [])?;
            Ok((128 - i128::try_from(value.clone())?.unsigned_abs().leading_zeros()).into())
        }
        _ => Err(ErrorKind::UnknownMethod.into()),
    }
}
