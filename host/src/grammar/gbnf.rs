//! llama.cpp's GBNF as Lark.
//!
//! Every character is a lexeme of its own: lexemes of several would be matched greedily, and a grammar whose texts share
//! a beginning would lose some.
//!
//! Source: grammars/README.md and `llama_grammar_parser` of llama.cpp.

use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Deepest nesting of groups.
const MAX_DEPTH: usize = 200;

/// The grammar in llguidance's variant of Lark, or why it is none.
pub fn to_lark(grammar: &str) -> Result<String, String> {
    let mut parser = Parser { rest: grammar, rules: BTreeMap::new(), depth: 0 };
    parser.rules()
}

struct Parser<'a> {
    rest: &'a str,
    /// Rules by name: their number, and their alternatives where they are defined.
    rules: BTreeMap<&'a str, (usize, Option<String>)>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn rules(&mut self) -> Result<String, String> {
        self.skip(true);
        while !self.rest.is_empty() {
            let name = self.name().ok_or_else(|| self.wrong("a rule's name"))?;
            self.skip(false);
            self.expect("::=")?;
            self.skip(true);
            let alternatives = self.alternatives(false)?;
            let number = self.rules.len();
            let rule = self.rules.entry(name).or_insert((number, None));
            if rule.1.replace(alternatives).is_some() {
                return Err(format!("rule `{name}` is there twice"));
            }
            self.skip(true);
        }
        let Some((root, _)) = self.rules.get("root") else {
            return Err("there is no rule `root`".to_owned());
        };
        let mut lark = format!("start: rule_{root}\n");
        for (name, (number, alternatives)) in &self.rules {
            let Some(alternatives) = alternatives else {
                return Err(format!("there is no rule `{name}`"));
            };
            // Writing to a String does not fail.
            let _ = writeln!(lark, "rule_{number}: {alternatives}");
        }
        Ok(lark)
    }

    /// Alternatives up to the end of a rule, or of a group, where newlines do not end them.
    fn alternatives(&mut self, in_group: bool) -> Result<String, String> {
        let mut text = self.sequence(in_group)?;
        while self.rest.starts_with('|') {
            self.rest = &self.rest[1..];
            self.skip(true);
            text = format!("{text} | {}", self.sequence(in_group)?);
        }
        Ok(text)
    }

    /// Items one after the other.
    fn sequence(&mut self, in_group: bool) -> Result<String, String> {
        let mut items = Vec::new();
        while let Some(item) = self.item()? {
            self.skip(in_group);
            let mut item = item;
            while let Some(repetition) = self.repetition()? {
                item = format!("({item}){repetition}");
                self.skip(in_group);
            }
            items.push(item);
        }
        Ok(if items.is_empty() { "\"\"".to_owned() } else { items.join(" ") })
    }

    /// A literal, a class of characters, a token, a rule or a group.
    fn item(&mut self) -> Result<Option<String>, String> {
        match self.rest.chars().next() {
            Some('"') => self.literal().map(Some),
            Some('[') => self.class().map(Some),
            Some('.') => {
                self.rest = &self.rest[1..];
                Ok(Some("/(?s:.)/".to_owned()))
            }
            Some('<' | '!') => self.token().map(Some),
            Some('(') => {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(format!("more than {MAX_DEPTH} groups, one in the other"));
                }
                self.rest = &self.rest[1..];
                self.skip(true);
                let alternatives = self.alternatives(true)?;
                self.expect(")")?;
                self.depth -= 1;
                Ok(Some(format!("({alternatives})")))
            }
            _ => Ok(self.name().map(|name| {
                let number = self.rules.len();
                format!("rule_{}", self.rules.entry(name).or_insert((number, None)).0)
            })),
        }
    }

    fn literal(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let mut chars = Vec::new();
        loop {
            match self.char()? {
                ('"', false) => break,
                (char, _) => chars.push(json!(char.to_string()).to_string()),
            }
        }
        Ok(if chars.is_empty() { "\"\"".to_owned() } else { format!("({})", chars.join(" ")) })
    }

    fn class(&mut self) -> Result<String, String> {
        self.rest = &self.rest[1..];
        let negation = if self.rest.starts_with('^') { "^" } else { "" };
        self.rest = &self.rest[negation.len()..];
        let mut ranges = String::new();
        loop {
            let (first, is_escaped) = self.char()?;
            if first == ']' && !is_escaped {
                break;
            }
            let mut last = first;
            if self.rest.starts_with('-') && !self.rest.starts_with("-]") {
                self.rest = &self.rest[1..];
                last = self.char()?.0;
            }
            if last < first {
                return Err(format!("the range {first:?} to {last:?} is empty"));
            }
            let _ = write!(ranges, "\\u{{{:x}}}-\\u{{{:x}}}", first as u32, last as u32);
        }
        match (ranges.is_empty(), negation) {
            (true, "") => Err("a class [] has no characters".to_owned()),
            (true, _) => Ok("/(?s:.)/".to_owned()),
            _ => Ok(format!("/[{negation}{ranges}]/")),
        }
    }

    /// `<think>`, or `<[1000]>` by its id. llguidance has no others than a token.
    fn token(&mut self) -> Result<String, String> {
        let end = self.rest.find('>').filter(|_| self.rest.starts_with('<'));
        let Some(end) = end else { return Err("tokens are <NAME> or <[ID]>".to_owned()) };
        let (token, rest) = self.rest.split_at(end + 1);
        self.rest = rest;
        let is_sane = token.chars().all(|char| !char.is_whitespace() && !char.is_control());
        if is_sane { Ok(token.to_owned()) } else { Err(format!("{token:?} is no token")) }
    }

    /// `*`, `+`, `?` or `{m,n}`.
    fn repetition(&mut self) -> Result<Option<String>, String> {
        let Some(first @ ('*' | '+' | '?' | '{')) = self.rest.chars().next() else {
            return Ok(None);
        };
        self.rest = &self.rest[1..];
        if first != '{' {
            return Ok(Some(first.to_string()));
        }
        let (counts, rest) = self.rest.split_once('}').ok_or_else(|| self.wrong("`}`"))?;
        self.rest = rest;
        let (least, most) = counts.split_once(',').map_or((counts, None), |(m, n)| (m, Some(n)));
        let number = |text: &str| text.trim().parse::<u16>();
        let wrong = || format!("{{{counts}}} is no number of repetitions");
        let least = if least.trim().is_empty() { 0 } else { number(least).map_err(|_| wrong())? };
        Ok(Some(match most.map(str::trim) {
            None => format!("{{{least}}}"),
            Some("") => format!("{{{least},}}"),
            Some(most) => {
                let most = number(most).ok().filter(|most| *most >= least).ok_or_else(wrong)?;
                format!("{{{least},{most}}}")
            }
        }))
    }

    /// A character of a literal or a class, and whether it was escaped.
    fn char(&mut self) -> Result<(char, bool), String> {
        let mut chars = self.rest.chars();
        let first = chars.next().ok_or_else(|| "a literal or a class has no end".to_owned())?;
        if first != '\\' {
            self.rest = chars.as_str();
            return Ok((first, false));
        }
        let escape = chars.next().unwrap_or(' ');
        let digits = match escape {
            'x' => 2,
            'u' => 4,
            'U' => 8,
            _ => 0,
        };
        let char = match escape {
            'n' => Some('\n'),
            'r' => Some('\r'),
            't' => Some('\t'),
            '\\' | '"' | '[' | ']' => Some(escape),
            _ => {
                let code = chars.as_str().get(..digits).filter(|_| digits > 0);
                let code = code.and_then(|code| u32::from_str_radix(code, 16).ok());
                code.and_then(char::from_u32)
            }
        };
        let char = char.ok_or_else(|| self.wrong("an escape"))?;
        self.rest = &chars.as_str()[digits..];
        Ok((char, true))
    }

    fn name(&mut self) -> Option<&'a str> {
        let is_part = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
        let end = self.rest.find(|char| !is_part(char)).unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = rest;
        (!name.is_empty()).then_some(name)
    }

    fn expect(&mut self, text: &str) -> Result<(), String> {
        self.rest = self.rest.strip_prefix(text).ok_or_else(|| self.wrong(text))?;
        Ok(())
    }

    /// Skips spaces and comments, and newlines where they end nothing.
    fn skip(&mut self, has_newlines: bool) {
        loop {
            let is_space = |char: char| {
                matches!(char, ' ' | '\t') || has_newlines && matches!(char, '\r' | '\n')
            };
            self.rest = self.rest.trim_start_matches(is_space);
            if !self.rest.starts_with('#') {
                return;
            }
            let end = self.rest.find(['\r', '\n']).unwrap_or(self.rest.len());
            self.rest = &self.rest[end..];
        }
    }

    fn wrong(&self, expected: &str) -> String {
        let shown: String = self.rest.chars().take(30).collect();
        format!("expected {expected} before {shown:?}")
    }
}
