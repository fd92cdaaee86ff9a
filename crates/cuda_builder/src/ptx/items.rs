//! The top level of a PTX text: its header, and the functions and variables that it declares.

use super::PtxError;

/// Kind of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemKind {
    /// A kernel.
    Entry,
    /// A device function or a variable, defined or declared.
    Other,
}

/// One function or variable.
#[derive(Clone, Debug)]
pub struct Item<'a> {
    pub kind: ItemKind,
    pub name: &'a str,
    /// From its first directive to the `}` or `;` that ends it.
    pub text: &'a str,
    /// Offset in `text` of the body's `{`; 0 without a body.
    pub body_start: usize,
}

/// Directives of one line that apply to the whole text.
const HEADER: [&str; 3] = [".version", ".target", ".address_size"];

/// Splits `text` into its header and its items; comments between items are dropped.
pub fn parse(text: &str) -> Result<(String, Vec<Item<'_>>), PtxError> {
    let mut header = String::new();
    let mut items = Vec::new();
    let mut rest = skip_blank(text);
    while !rest.is_empty() {
        let end = if HEADER.iter().any(|directive| rest.starts_with(directive)) {
            let end = rest.find('\n').unwrap_or(rest.len());
            header.push_str(rest[..end].trim_end());
            header.push('\n');
            end
        } else {
            let item = read_item(rest)?;
            let end = item.text.len();
            items.push(item);
            end
        };
        rest = skip_blank(&rest[end..]);
    }
    Ok((header, items))
}

/// `text` without leading white space and comments.
fn skip_blank(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        match comment_len(text) {
            Some(len) => text = &text[len..],
            None => return text,
        }
    }
}

/// Length of the comment that `text` starts with.
fn comment_len(text: &str) -> Option<usize> {
    if text.starts_with("//") {
        Some(text.find('\n').unwrap_or(text.len()))
    } else if text.starts_with("/*") {
        Some(text.find("*/").map_or(text.len(), |end| end + 2))
    } else {
        None
    }
}

/// Reads the item that `text` starts with.
fn read_item(text: &str) -> Result<Item<'_>, PtxError> {
    let unended = || PtxError::Text(text.lines().next().unwrap_or_default().to_owned());
    let (mut depth, mut pos, mut body_start) = (0usize, 0, 0);
    let mut has_value = false;
    let end = loop {
        let rest = &text[pos..];
        if let Some(len) = comment_len(rest) {
            pos += len;
            continue;
        }
        match rest.chars().next().ok_or_else(unended)? {
            '"' => pos += 1 + rest[1..].find('"').ok_or_else(unended)?,
            '=' => has_value = true,
            '{' if depth == 0 && !has_value => {
                body_start = pos;
                depth = 1;
            }
            '{' | '(' => depth += 1,
            '}' if depth == 1 && body_start > 0 => break pos + 1,
            '}' | ')' => depth = depth.checked_sub(1).ok_or_else(unended)?,
            ';' if depth == 0 => break pos + 1,
            _ => {}
        }
        pos += text[pos..].chars().next().map_or(1, char::len_utf8);
    };
    let text = &text[..end];
    let signature = if body_start > 0 { &text[..body_start] } else { text };
    let is_entry = signature.split_whitespace().any(|word| word == ".entry");
    let kind = if is_entry { ItemKind::Entry } else { ItemKind::Other };
    Ok(Item { kind, name: name(signature).ok_or_else(unended)?, text, body_start })
}

/// The name in a declaration. Of a function it is the word before the parameters, after a result in
/// parentheses; of a variable the last word before its length, value or end.
fn name(signature: &str) -> Option<&str> {
    let function = [".entry", ".func"]
        .iter()
        .find_map(|directive| signature.split_once(directive).map(|(_, rest)| rest.trim_start()));
    match function {
        Some(rest) if rest.starts_with('(') => words(rest.split_once(')')?.1).next(),
        Some(rest) => words(rest).next(),
        None => {
            let end = signature.find(['[', '=', ';']).unwrap_or(signature.len());
            words(&signature[..end]).last()
        }
    }
}

/// The identifiers in `text`, comments left out.
pub fn words(text: &str) -> impl Iterator<Item = &str> {
    text.lines()
        .map(|line| line.split_once("//").map_or(line, |(code, _)| code))
        .flat_map(|line| line.split(|c: char| !(c.is_ascii_alphanumeric() || "_$%".contains(c))))
        .filter(|word| !word.is_empty())
}
