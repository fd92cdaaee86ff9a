//! A template's source in minijinja's words, where Jinja2's have another meaning there or none.
//!
//! `a % b`, `a ~ b` and `a[b:c:d]` become calls of functions, which know Python's formats, numbers and slices, and `a + b`
//! does in templates that mark texts as safe, which a sum escapes the other texts for; loops refuse what is none; strings
//! lose the escapes that only Python has; `{% generation %}`, transformers' mark for training, becomes a block without
//! effect.

/// The name of the function for `%`.
pub(super) const PERCENT: &str = "__percent";

/// The name of the function for `value[start:stop:step]`.
pub(super) const SLICE: &str = "__slice";

/// The name of the function for `~`.
pub(super) const CONCAT: &str = "__concat";

/// The name of the function for `+`.
pub(super) const ADD: &str = "__add";

/// The name of the function around what a loop runs over.
pub(super) const ITERATE: &str = "__iterate";

/// `source`, with its tags rewritten.
pub(super) fn rewritten(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let has_safe_texts = ["safe", "escape", "|e", "| e"].iter().any(|name| source.contains(name));
    let mut out = String::with_capacity(source.len());
    let mut rest = &source[..];
    while let Some(start) = find_tag(rest) {
        out.push_str(&rest[..start]);
        rest = &rest[start..];
        let len = match rest.as_bytes()[1] {
            b'#' => rest[2..].find("#}").map_or(rest.len(), |end| end + 4),
            b'%' if raw_len(rest).is_some() => {
                let len = raw_len(rest).unwrap_or(rest.len());
                // Jinja2 keeps the line end after this tag, unlike that after others.
                let open = rest.find("%}").map_or(len, |end| end + 2);
                out.push_str(&rest[..open]);
                if rest[open..].starts_with('\n') && !rest[..open].ends_with("-%}") {
                    out.push('\n');
                }
                rest = &rest[open..];
                len - open
            }
            kind => {
                let (tokens, len) = tokens(rest, kind == b'%');
                let expression = Expression::new(tokens, kind == b'%');
                write_tag(&mut out, expression, has_safe_texts);
                rest = &rest[len..];
                continue;
            }
        };
        out.push_str(&rest[..len]);
        rest = &rest[len..];
    }
    out + rest
}

/// `source` with `change` made of what it writes: its text outside of tags, and the strings inside of them.
pub(super) fn with_texts(source: &str, mut change: impl FnMut(&str) -> String) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = find_tag(rest) {
        out.push_str(&change(&rest[..start]));
        rest = &rest[start..];
        let is_statement = rest.as_bytes()[1] == b'%';
        let len = if let Some(comment) = rest.strip_prefix("{#") {
            let len = comment.find("#}").map_or(rest.len(), |end| end + 4);
            out.push_str(&rest[..len]);
            len
        } else if let Some(len) = raw_len(rest).filter(|_| is_statement) {
            let open = rest.find("%}").map_or(len, |end| end + 2);
            out.push_str(&rest[..open]);
            out.push_str(&change(&rest[open..len]));
            len
        } else {
            let (tokens, len) = tokens(rest, is_statement);
            for token in tokens {
                out.push_str(token.space);
                match token.text.starts_with(['\'', '"']) {
                    true => out.push_str(&change(token.text)),
                    false => out.push_str(token.text),
                }
            }
            len
        };
        rest = &rest[len..];
    }
    out + &change(rest)
}

/// Where the next tag begins.
fn find_tag(source: &str) -> Option<usize> {
    let bytes = source.as_bytes();
    bytes.windows(2).position(|pair| pair[0] == b'{' && matches!(pair[1], b'{' | b'%' | b'#'))
}

/// The length of a block `{% raw %}` without its last tag, which `source` begins with.
fn raw_len(source: &str) -> Option<usize> {
    let keyword = |tag: &str| {
        let inside = tag.strip_prefix("{%")?;
        let inside = &inside[..inside.find("%}")?];
        let is_edge = |char: char| char.is_whitespace() || matches!(char, '-' | '+');
        Some(inside.trim_matches(is_edge).to_owned())
    };
    if keyword(source).as_deref() != Some("raw") {
        return None;
    }
    let mut tags = source.match_indices("{%").skip(1);
    let end = tags.find(|(at, _)| keyword(&source[*at..]).as_deref() == Some("endraw"));
    Some(end.map_or(source.len(), |(at, _)| at))
}

/// A part of a tag with the space before it.
struct Token<'a> {
    space: &'a str,
    text: &'a str,
    kind: Kind,
    /// Written before and after it.
    before: String,
    after: String,
    /// Written instead of it.
    instead: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// The marks around the tag.
    Edge,
    Name,
    /// A number or a string.
    Literal,
    Operator,
}

/// The tokens of the tag that `source` begins with, and its length.
fn tokens(source: &str, is_statement: bool) -> (Vec<Token<'_>>, usize) {
    let close = if is_statement { "%}" } else { "}}" };
    let mut tokens = Vec::new();
    let mut depth = 0_usize;
    let mut at = 0;
    loop {
        let rest = &source[at..];
        let token = rest.trim_start();
        let space = &rest[..rest.len() - token.len()];
        let signed = token.strip_prefix(['-', '+']).filter(|rest| rest.starts_with(close));
        let (len, kind, is_last) = if at == 0 {
            (if source[2..].starts_with(['-', '+']) { 3 } else { 2 }, Kind::Edge, false)
        } else if token.is_empty() {
            break;
        } else if depth == 0 && (token.starts_with(close) || signed.is_some()) {
            (if signed.is_some() { 3 } else { 2 }, Kind::Edge, true)
        } else {
            let (len, kind) = token_len(token);
            (len, kind, false)
        };
        let text = &token[..len];
        match text {
            "(" | "[" | "{" => depth += 1,
            ")" | "]" | "}" => depth = depth.saturating_sub(1),
            _ => {}
        }
        let (before, after) = (String::new(), String::new());
        tokens.push(Token { space, text, kind, before, after, instead: None });
        at += space.len() + len;
        if is_last {
            break;
        }
    }
    (tokens, at)
}

fn token_len(source: &str) -> (usize, Kind) {
    let first = source.chars().next().unwrap_or_default();
    let is_name = |char: char| char == '_' || char.is_alphanumeric();
    if matches!(first, '\'' | '"') {
        let mut is_escaped = false;
        let end = source[1..].find(|char| {
            let is_end = char == first && !is_escaped;
            is_escaped = char == '\\' && !is_escaped;
            is_end
        });
        return (end.map_or(source.len(), |end| end + 2), Kind::Literal);
    }
    if first.is_ascii_digit() {
        let mut len = source.find(|char| !is_name(char)).unwrap_or(source.len());
        // A fraction, and the sign of an exponent.
        let is_digit = |at: usize| source[at..].starts_with(|char: char| char.is_ascii_digit());
        if source[len..].starts_with('.') && is_digit(len + 1) {
            len += 1;
            len += source[len..].find(|char| !is_name(char)).unwrap_or(source.len() - len);
        }
        let has_exponent = source[..len].ends_with(['e', 'E']) && !source.starts_with("0x");
        if has_exponent && source[len..].starts_with(['-', '+']) && is_digit(len + 1) {
            len += 1;
            len += source[len..].find(|char| !is_name(char)).unwrap_or(source.len() - len);
        }
        return (len, Kind::Literal);
    }
    if is_name(first) {
        return (source.find(|char| !is_name(char)).unwrap_or(source.len()), Kind::Name);
    }
    let two = ["==", "!=", "<=", ">=", "//", "**"];
    let is_two = two.iter().any(|operator| source.starts_with(operator));
    (if is_two { 2 } else { first.len_utf8() }, Kind::Operator)
}

fn write_tag(out: &mut String, mut expression: Expression<'_>, has_safe_texts: bool) {
    expression.call_slices();
    expression.call("%", PERCENT);
    expression.call("~", CONCAT);
    if has_safe_texts {
        expression.call("+", ADD);
    }
    expression.check_loop();
    for token in &expression.tokens {
        out.push_str(token.space);
        out.push_str(&token.before);
        match &token.instead {
            Some(instead) => out.push_str(instead),
            None if token.kind == Kind::Literal => out.push_str(&literal(token.text)),
            None => out.push_str(token.text),
        }
        out.push_str(&token.after);
    }
}

/// A string as minijinja reads it; numbers stay.
fn literal(text: &str) -> String {
    if !text.contains('\\') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out.push_str(&rest[..at]);
        let escape = &rest[at + 1..];
        let char = escape.chars().next().unwrap_or('\\');
        rest = &escape[char.len_utf8().min(escape.len())..];
        let long = (char == 'U').then(|| rest.get(..8)).flatten();
        let long = long.and_then(|hex| char::from_u32(u32::from_str_radix(hex, 16).ok()?));
        match (char, long) {
            ('\n', _) => {}
            ('a', _) => out.push_str("\\x07"),
            ('v', _) => out.push_str("\\x0b"),
            // minijinja's, and not Python's.
            ('/', _) => out.push_str("\\\\/"),
            ('U', Some(char)) => {
                out.push(char);
                rest = &rest[8..];
            }
            _ => out.extend(['\\', char]),
        }
    }
    out + rest
}

/// The tokens of a tag, and what each operator binds.
struct Expression<'a> {
    tokens: Vec<Token<'a>>,
    /// The bracket that belongs to a bracket.
    partners: Vec<usize>,
    bindings: Vec<Binding>,
    is_statement: bool,
}

/// How an operator, or another token, stands between operands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Binding {
    /// Ends every operand: a comma, a keyword, a comparison.
    Boundary,
    /// `+` and `-`.
    Sum,
    /// `~`.
    Concat,
    /// `*`, `/`, `//` and `%`.
    Product,
    /// A part of an operand.
    Operand,
}

impl<'a> Expression<'a> {
    fn new(mut tokens: Vec<Token<'a>>, is_statement: bool) -> Self {
        if is_statement && let Some(name) = tokens.get_mut(1) {
            match name.text {
                "generation" => name.instead = Some("with".to_owned()),
                "endgeneration" => name.instead = Some("endwith".to_owned()),
                _ => {}
            }
        }
        let mut partners: Vec<usize> = (0..tokens.len()).collect();
        let mut open = Vec::new();
        for (index, token) in
            tokens.iter().enumerate().filter(|(_, token)| token.kind != Kind::Edge)
        {
            match token.text {
                "(" | "[" | "{" => open.push(index),
                ")" | "]" | "}" => {
                    if let Some(partner) = open.pop() {
                        (partners[index], partners[partner]) = (partner, index);
                    }
                }
                _ => {}
            }
        }
        let mut bindings: Vec<Binding> = Vec::with_capacity(tokens.len());
        for index in 0..tokens.len() {
            let before = index.checked_sub(1).map(|before| (tokens[before].text, bindings[before]));
            let binding = match (is_statement, index) {
                // The name of the statement.
                (true, 1) => Binding::Boundary,
                _ => binding(&tokens[index], before),
            };
            let is_sign = binding == Binding::Operand && tokens[index].text == "+";
            if is_sign && tokens[index].kind == Kind::Operator {
                // Python has this sign, minijinja hasn't.
                tokens[index].instead = Some(String::new());
            }
            bindings.push(binding);
        }
        Self { tokens, partners, bindings, is_statement }
    }

    /// Writes what a loop runs over as a call of [`ITERATE`].
    fn check_loop(&mut self) {
        if !self.is_statement || self.tokens.get(1).is_none_or(|token| token.text != "for") {
            return;
        }
        let mut after_in = None;
        let mut index = 2;
        while index < self.tokens.len() {
            let token = &self.tokens[index];
            let is_keyword = self.bindings[index] == Binding::Boundary;
            match (token.text, after_in) {
                ("in", None) if is_keyword => after_in = Some(index + 1),
                _ if after_in.is_none() => {}
                ("if" | "recursive", _) if is_keyword => break,
                _ if token.kind == Kind::Edge => break,
                _ => {}
            }
            index = self.partners[index].max(index) + 1;
        }
        let Some(first) = after_in.filter(|first| *first < index.min(self.tokens.len())) else {
            return;
        };
        self.tokens[first].before.insert_str(0, &format!("{ITERATE}("));
        self.tokens[index - 1].after.push(')');
    }

    /// Writes slices with a step as calls of [`SLICE`].
    fn call_slices(&mut self) {
        for open in 1..self.tokens.len() {
            let close = self.partners[open];
            if self.tokens[open].text != "[" || close <= open {
                continue;
            }
            let mut colons = Vec::new();
            let mut index = open + 1;
            while index < close {
                if self.tokens[index].text == ":" {
                    colons.push(index);
                }
                index = self.partners[index].max(index) + 1;
            }
            let (&[first, second], Some(start)) = (&colons[..], self.postfix_start(open)) else {
                continue;
            };
            self.tokens[start].before.insert_str(0, &format!("{SLICE}("));
            for (from, to) in [(open, first), (first, second), (second, close)] {
                let is_empty = from + 1 == to;
                self.tokens[from].instead = Some(if is_empty { ", none" } else { "," }.to_owned());
            }
            self.tokens[close].instead = Some(")".to_owned());
        }
    }

    /// The first token of the value that a bracket at `open` takes a part of; `None` if the bracket is a list.
    fn postfix_start(&self, open: usize) -> Option<usize> {
        let mut at = open;
        loop {
            let before = at - 1;
            let token = &self.tokens[before];
            match (token.kind, token.text) {
                (Kind::Operator, ")" | "]" | "}") => at = self.partners[before],
                (Kind::Name, _) if self.bindings[before] == Binding::Operand => {
                    let is_attribute = before > 0 && self.tokens[before - 1].text == ".";
                    at = if is_attribute { before - 1 } else { return Some(before) };
                }
                (Kind::Literal, _) => return Some(before),
                _ if at == open || token.text == "|" || self.tokens[at].text == "." => return None,
                _ => return Some(at),
            }
            if at == 0 || at > before {
                return None;
            }
        }
    }

    /// Writes the operators `operator` as calls of `function`.
    fn call(&mut self, operator: &str, function: &str) {
        // The operands of the operator before: a chain has one left end.
        let mut last: Option<(usize, usize)> = None;
        for index in 0..self.tokens.len() {
            let token = &self.tokens[index];
            let binding = self.bindings[index];
            let is_sign = binding == Binding::Operand;
            if token.text != operator || token.kind != Kind::Operator || is_sign {
                continue;
            }
            let left = match last.filter(|(_, right)| right + 1 == index) {
                Some((left, _)) => Some(left),
                None => self.left(index, binding),
            };
            let Some((left, right)) = left.zip(self.right(index, binding)) else { continue };
            self.tokens[left].before.insert_str(0, &format!("{function}("));
            self.tokens[index].instead = Some(",".to_owned());
            self.tokens[right].after.push(')');
            last = Some((left, right));
        }
    }

    /// The first token of the operand before an operator.
    fn left(&self, operator: usize, binding: Binding) -> Option<usize> {
        let mut first = None;
        let mut index = operator;
        while index > 0 {
            let before = index - 1;
            let partner = self.partners[before];
            if partner > before || self.bindings[before] < binding {
                break;
            }
            index = partner;
            first = Some(index);
        }
        first
    }

    /// The last token of the operand after an operator.
    fn right(&self, operator: usize, binding: Binding) -> Option<usize> {
        let mut last = None;
        let mut index = operator + 1;
        while index < self.tokens.len() {
            let partner = self.partners[index];
            if partner < index || self.bindings[index] <= binding {
                break;
            }
            last = Some(partner);
            index = partner + 1;
        }
        last
    }
}

/// The binding of a token after `before`.
fn binding(token: &Token<'_>, before: Option<(&str, Binding)>) -> Binding {
    let (before, before_binding) = before.unwrap_or(("", Binding::Boundary));
    match (token.kind, token.text) {
        (Kind::Edge, _) => Binding::Boundary,
        // Attributes have any name, and `is in` and `is not` are tests.
        (Kind::Name, _) if matches!(before, "." | "is") => Binding::Operand,
        (Kind::Name, "in") if before == "not" && before_binding == Binding::Operand => {
            Binding::Operand
        }
        (Kind::Name, "and" | "or" | "not" | "in" | "if" | "else" | "recursive") => {
            Binding::Boundary
        }
        (Kind::Name | Kind::Literal, _) => Binding::Operand,
        (Kind::Operator, "==" | "!=" | "<" | ">" | "<=" | ">=" | "," | ":" | "=") => {
            Binding::Boundary
        }
        (Kind::Operator, "-" | "+") => {
            let is_sign = before_binding != Binding::Operand
                || matches!(before, "(" | "[" | "{" | "**" | "-" | "+" | "|");
            if is_sign { Binding::Operand } else { Binding::Sum }
        }
        (Kind::Operator, "~") => Binding::Concat,
        (Kind::Operator, "*" | "/" | "//" | "%") => Binding::Product,
        (Kind::Operator, _) => Binding::Operand,
    }
}
