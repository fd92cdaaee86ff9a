//! The parser: `OnigSyntaxRuby` without what refers back, calls or is conditional.

mod set;

use regex_syntax::hir::ClassUnicode;

use super::{Anchor, Mode, Node, class};

/// Deepest nesting of groups and sets.
const MAX_DEPTH: usize = 64;

/// Most ranges of characters in all sets: `\w` has 800.
const MAX_RANGES: usize = 1 << 17;

/// Most repetitions that an interval may state (`ONIG_MAX_REPEAT_NUM`).
const MAX_REPEAT: u32 = 100_000;

/// What an option group changes.
#[derive(Clone, Copy)]
struct Options {
    /// `(?i)`.
    ignore_case: bool,
    /// `(?m)`: `.` matches a newline, too.
    dot_all: bool,
}

/// `pattern` as a tree; the error is the construct that is malformed or has no exact form.
pub(super) fn parse(pattern: &str) -> Result<Node, String> {
    let mut parser = Parser { chars: pattern.chars().collect(), at: 0, depth: 0, num_ranges: 0 };
    let options = Options { ignore_case: false, dot_all: false };
    let node = parser.alternate(options)?;
    match parser.peek() {
        None => Ok(node),
        Some(_) => Err("a ')' without its '('".to_owned()),
    }
}

struct Parser {
    chars: Vec<char>,
    at: usize,
    depth: usize,
    /// Ranges of characters in the sets so far.
    num_ranges: usize,
}

/// What a `\` and the characters after it mean, in a set or outside.
enum Escape {
    Char(char),
    /// With `(?i)`, of the same case outside of brackets.
    Set(ClassUnicode),
    /// A letter that is no character or set.
    Letter(char),
}

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let char = self.peek()?;
        self.at += 1;
        Some(char)
    }

    fn take(&mut self, text: &str) -> bool {
        let found = self.chars[self.at..].iter().copied().take(text.len()).eq(text.chars());
        self.at += if found { text.len() } else { 0 };
        found
    }

    /// The characters before the next `end`, which is passed by too.
    fn take_until(&mut self, end: char) -> Option<String> {
        let len = self.chars[self.at..].iter().position(|&char| char == end)?;
        let text = self.chars[self.at..][..len].iter().collect();
        self.at += len + 1;
        Some(text)
    }

    /// Up to `most` digits as a number; `None` if there is no digit.
    fn digits(&mut self, radix: u32, most: usize) -> Option<u32> {
        let mut number = None;
        for _ in 0..most {
            let Some(digit) = self.peek().and_then(|char| char.to_digit(radix)) else { break };
            number = Some(number.unwrap_or(0u32).saturating_mul(radix).saturating_add(digit));
            self.at += 1;
        }
        number
    }

    fn enter(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { Err("it is nested too deeply".to_owned()) } else { Ok(()) }
    }

    /// `set`, if all sets together have no more ranges than a pattern may have.
    fn counted(&mut self, set: Option<ClassUnicode>, what: &str) -> Result<ClassUnicode, String> {
        let set = set.ok_or_else(|| what.to_owned())?;
        self.num_ranges += set.ranges().len();
        if self.num_ranges > MAX_RANGES {
            Err("its sets are too large".to_owned())
        } else {
            Ok(set)
        }
    }

    /// Alternatives, up to a `)` or the end.
    fn alternate(&mut self, options: Options) -> Result<Node, String> {
        let mut branches = vec![self.concat(options)?];
        while self.take("|") {
            branches.push(self.concat(options)?);
        }
        Ok(if branches.len() == 1 { branches.remove(0) } else { Node::Alternate(branches) })
    }

    fn concat(&mut self, options: Options) -> Result<Node, String> {
        let mut nodes = Vec::new();
        loop {
            self.skip_comments()?;
            if matches!(self.peek(), None | Some('|' | ')')) {
                break;
            }
            if let Some(options) = self.isolated_options(options)? {
                // `a(?i)b|c` is `a(?i:b|c)`.
                self.enter()?;
                nodes.push(self.alternate(options)?);
                self.depth -= 1;
                break;
            }
            let node = self.atom(options)?;
            nodes.push(self.repeats(node)?);
        }
        Ok(if nodes.len() == 1 { nodes.remove(0) } else { Node::Concat(nodes) })
    }

    fn skip_comments(&mut self) -> Result<(), String> {
        while self.take("(?#") {
            loop {
                match self.next() {
                    None => return Err("a comment without its end".to_owned()),
                    Some(')') => break,
                    Some('\\') => self.at += 1,
                    Some(_) => {}
                }
            }
            self.at = self.at.min(self.chars.len());
        }
        Ok(())
    }

    /// `(?i-m)`: options to the end of the group, if they are what comes next.
    fn isolated_options(&mut self, options: Options) -> Result<Option<Options>, String> {
        let start = self.at;
        if self.take("(?") && matches!(self.peek(), Some('a'..='z' | '-')) {
            let changed = self.options(options)?;
            if self.take(")") {
                return Ok(Some(changed));
            }
        }
        self.at = start;
        Ok(None)
    }

    /// The letters of an option group.
    fn options(&mut self, mut options: Options) -> Result<Options, String> {
        let mut on = true;
        while let Some(letter) = self.peek().filter(|&char| !matches!(char, ')' | ':')) {
            self.at += 1;
            match letter {
                '-' if on => on = false,
                'i' => options.ignore_case = on,
                'm' => options.dot_all = on,
                'x' if !on => {}
                letter => return Err(format!("the option '{letter}' in (?..)")),
            }
        }
        Ok(options)
    }

    fn atom(&mut self, options: Options) -> Result<Node, String> {
        let char = |char| Node::Char { char, ignore_case: options.ignore_case };
        match self.next() {
            Some('(') => self.group(options),
            Some('[') => self.set(options),
            Some('.') if options.dot_all => Ok(Node::Set(class::set(&[('\0', char::MAX)]))),
            Some('.') => Ok(Node::Set(class::not(class::set(&[('\n', '\n')])))),
            Some('^') => Ok(Node::Anchor(Anchor::LineStart)),
            Some('$') => Ok(Node::Anchor(Anchor::LineEnd)),
            Some('\\') => match self.escape(false)? {
                Escape::Char(escaped) => Ok(char(escaped)),
                Escape::Set(set) => Ok(Node::Set(set)),
                Escape::Letter(letter) => anchor(letter),
            },
            Some(other @ ('*' | '+' | '?')) => Err(format!("a '{other}' after nothing")),
            Some('{') => {
                self.at -= 1;
                match self.interval()? {
                    Some(_) => Err("an interval {..} after nothing".to_owned()),
                    None => {
                        self.at += 1;
                        Ok(char('{'))
                    }
                }
            }
            Some(other) => Ok(char(other)),
            None => Err("it ends early".to_owned()),
        }
    }

    /// What comes after a `(`.
    fn group(&mut self, options: Options) -> Result<Node, String> {
        self.enter()?;
        let look = |behind, negative| move |node| Node::Look { behind, negative, node };
        let node = if self.take("?:") {
            self.alternate(options)?
        } else if self.take("?=") {
            look(false, false)(Box::new(self.alternate(options)?))
        } else if self.take("?!") {
            look(false, true)(Box::new(self.alternate(options)?))
        } else if self.take("?<=") {
            look(true, false)(Box::new(self.alternate(options)?))
        } else if self.take("?<!") {
            look(true, true)(Box::new(self.alternate(options)?))
        } else if self.take("?>") {
            Node::Atomic(Box::new(self.alternate(options)?))
        } else if self.take("?<") || self.take("?'") {
            let close = if self.chars[self.at - 1] == '<' { '>' } else { '\'' };
            let name = self.take_until(close).filter(|name| {
                name.chars().all(|char| char.is_alphanumeric() || char == '_')
                    && name.starts_with(|first: char| !first.is_numeric())
            });
            name.ok_or("a group whose name is malformed")?;
            Node::Capture(Box::new(self.alternate(options)?))
        } else if self.take("?") {
            self.special_group(options)?
        } else if self.peek() == Some('*') {
            return Err("a callout (*..)".to_owned());
        } else {
            Node::Capture(Box::new(self.alternate(options)?))
        };
        if !self.take(")") {
            return Err("a '(' without its ')'".to_owned());
        }
        self.depth -= 1;
        Ok(node)
    }

    /// Groups that have options, or no exact form.
    fn special_group(&mut self, options: Options) -> Result<Node, String> {
        match self.peek() {
            Some('~') => Err("an absence operator (?~..)".to_owned()),
            Some('(') => Err("a condition (?(..)..)".to_owned()),
            Some('{') => Err("a callout (?{..})".to_owned()),
            Some('P') => Err("a group (?P..), which Oniguruma doesn't have".to_owned()),
            Some('a'..='z' | 'A'..='Z' | '-') => {
                let options = self.options(options)?;
                if !self.take(":") {
                    return Err("an option group without its end".to_owned());
                }
                self.alternate(options)
            }
            Some(other) => Err(format!("a group (?{other}..)")),
            None => Err("a '(' without its ')'".to_owned()),
        }
    }

    /// What comes after a `\`, in brackets if `in_set`.
    fn escape(&mut self, in_set: bool) -> Result<Escape, String> {
        let char = |code: Option<u32>, what: &str| {
            let char = code.and_then(char::from_u32);
            char.map(Escape::Char).ok_or_else(|| format!("{what} that is no character"))
        };
        let escaped = self.next().ok_or("a '\\' at its end")?;
        match escaped {
            't' => Ok(Escape::Char('\t')),
            'n' => Ok(Escape::Char('\n')),
            'r' => Ok(Escape::Char('\r')),
            'f' => Ok(Escape::Char('\x0C')),
            'v' => Ok(Escape::Char('\x0B')),
            'a' => Ok(Escape::Char('\x07')),
            'e' => Ok(Escape::Char('\x1B')),
            '0' => Ok(Escape::Char(self.digits(8, 2).and_then(char::from_u32).unwrap_or('\0'))),
            'x' if self.take("{") => {
                let code = self.digits(16, 8);
                if !self.take("}") {
                    return Err(r"\x{..} of other than one code point".to_owned());
                }
                char(code, r"\x{..}")
            }
            // A byte of UTF-8.
            'x' => char(self.digits(16, 2).filter(|&byte| byte < 0x80), r"\x.."),
            'u' => {
                let start = self.at;
                let code = self.digits(16, 4);
                char(code.filter(|_| self.at == start + 4), r"\u....")
            }
            'p' | 'P' if self.take("{") => self.property(escaped == 'P', in_set),
            'w' | 'W' | 'd' | 'D' | 's' | 'S' | 'h' | 'H' => {
                self.counted(class::shorthand(escaped, in_set), "an unknown set").map(Escape::Set)
            }
            // Without braces these are letters.
            'p' | 'P' => Ok(Escape::Char(escaped)),
            letter if letter.is_ascii_alphanumeric() => Ok(Escape::Letter(letter)),
            other => Ok(Escape::Char(other)),
        }
    }

    /// The rest of `\p{..}`.
    fn property(&mut self, mut negated: bool, in_set: bool) -> Result<Escape, String> {
        if self.take("^") {
            negated = !negated;
        }
        let name = self.take_until('}').ok_or(r"a \p{..} without its end")?;
        let set = class::property(&name, in_set);
        let set = self.counted(set, &format!("the property \\p{{{name}}}"))?;
        Ok(Escape::Set(if negated { class::not(set) } else { set }))
    }

    /// `node` with the repetitions after it.
    fn repeats(&mut self, mut node: Node) -> Result<Node, String> {
        loop {
            self.skip_comments()?;
            let (min, max, is_interval) = match self.peek() {
                Some('*') => (0, None, false),
                Some('+') => (1, None, false),
                Some('?') => (0, Some(1), false),
                Some('{') => match self.interval()? {
                    Some((min, max)) => (min, max, true),
                    None => return Ok(node),
                },
                _ => return Ok(node),
            };
            self.at += usize::from(!is_interval);
            let is_exact = is_interval && max == Some(min) && !self.wrote_range();
            // `{2}?` is optional and `{2}+` repeated: other repetitions on top.
            let mode = match self.peek() {
                Some('?') if !is_exact => Mode::Lazy,
                Some('+') if !is_interval => Mode::Possessive,
                _ => Mode::Greedy,
            };
            self.at += usize::from(mode != Mode::Greedy);
            node = repeat(node, min, max, mode)?;
        }
    }

    /// Whether the interval that was just read has a comma.
    fn wrote_range(&self) -> bool {
        let read = &self.chars[..self.at];
        read.iter().rev().take_while(|&&char| char != '{').any(|&char| char == ',')
    }

    /// `{n}`, `{n,}`, `{,n}` or `{n,m}`; anything else is text, and nothing is taken.
    fn interval(&mut self) -> Result<Option<(u32, Option<u32>)>, String> {
        let start = self.at;
        self.at += 1;
        let min = self.digits(10, usize::MAX);
        let has_comma = self.take(",");
        let max = if has_comma { self.digits(10, usize::MAX) } else { min };
        if (min.is_none() && max.is_none()) || !self.take("}") {
            self.at = start;
            return Ok(None);
        }
        let min = min.unwrap_or(0);
        if min.max(max.unwrap_or(0)) > MAX_REPEAT {
            return Err(format!("an interval of over {MAX_REPEAT} repetitions"));
        }
        if max.is_some_and(|max| max < min) {
            return Err("an interval {n,m} with m below n".to_owned());
        }
        Ok(Some((min, max)))
    }
}

/// `node` from `min` to `max` times.
fn repeat(node: Node, min: u32, max: Option<u32>, mode: Mode) -> Result<Node, String> {
    if matches!(node, Node::Anchor(_) | Node::Look { .. }) {
        return Err("a repetition of an anchor or of lookaround".to_owned());
    }
    // Oniguruma makes one of two simple repetitions: the same where both are greedy.
    let is_simple = |min, max| matches!((min, max), (0 | 1, None) | (0, Some(1)));
    let node = match node {
        Node::Repeat { node, min: inner_min, max: inner_max, mode: Mode::Greedy }
            if mode == Mode::Greedy && is_simple(min, max) && is_simple(inner_min, inner_max) =>
        {
            let max = if (inner_max, max) == (Some(1), Some(1)) { Some(1) } else { None };
            return Ok(Node::Repeat { node, min: min.min(inner_min), max, mode });
        }
        Node::Repeat { mode: Mode::Lazy, .. } => {
            return Err("a repetition of a lazy repetition".to_owned());
        }
        Node::Repeat { .. } if mode == Mode::Lazy => {
            return Err("a lazy repetition of a repetition".to_owned());
        }
        node => node,
    };
    if node.may_be_empty() && max != Some(1) {
        return Err("a repetition of what may be empty".to_owned());
    }
    Ok(Node::Repeat { node: Box::new(node), min, max, mode })
}

fn anchor(letter: char) -> Result<Node, String> {
    Ok(match letter {
        'A' => Node::Anchor(Anchor::TextStart),
        'z' => Node::Anchor(Anchor::TextEnd),
        'Z' => Node::Anchor(Anchor::LastLineEnd),
        'b' => Node::Anchor(Anchor::WordBoundary),
        'B' => Node::Anchor(Anchor::NoWordBoundary),
        'R' => Node::LineBreak,
        other => return Err(format!("the escape \\{other}")),
    })
}

/// The set of brackets: with `(?i)` in any case, before it is negated.
fn cased(set: ClassUnicode, negated: bool, options: Options) -> Result<Node, String> {
    if let (false, Some(char)) = (negated, class::only_char(&set)) {
        return Ok(Node::Char { char, ignore_case: options.ignore_case });
    }
    let mut set = set;
    if options.ignore_case {
        set = super::fold::any_case(set);
        if !negated && super::fold::has_sequence(&set) {
            return Err("(?i) with a set of letters, some of them several in another case".into());
        }
    }
    Ok(Node::Set(if negated { class::not(set) } else { set }))
}
