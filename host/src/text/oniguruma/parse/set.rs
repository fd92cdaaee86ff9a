//! Sets of characters in brackets: `[^a-z\d[:alpha:]&&[^é]]`.

use regex_syntax::hir::ClassUnicode;

use super::{Escape, Node, Options, Parser, cased, class};

/// What an item of a set is.
enum Item {
    Char(char),
    Set(ClassUnicode),
}

impl Parser {
    /// What comes after a `[`.
    pub(super) fn set(&mut self, options: Options) -> Result<Node, String> {
        let (set, negated) = self.members()?;
        cased(set, negated, options)
    }

    /// The members of a set as they are written, and whether all others are meant.
    fn members(&mut self) -> Result<(ClassUnicode, bool), String> {
        self.enter()?;
        let negated = self.take("^");
        let mut and: Option<ClassUnicode> = None;
        let mut members = ClassUnicode::empty();
        let mut is_first = true;
        loop {
            if !is_first && self.take("]") {
                break;
            }
            if self.take("&&") {
                if members.ranges().is_empty() {
                    return Err("an empty side of && in a set".to_owned());
                }
                and = Some(intersection(and, &members));
                members = ClassUnicode::empty();
            } else {
                self.member(is_first, &mut members)?;
            }
            is_first = false;
        }
        self.depth -= 1;
        if and.is_some() && members.ranges().is_empty() {
            return Err("an empty side of && in a set".to_owned());
        }
        Ok((intersection(and, &members), negated))
    }

    /// Adds a character, a range or a set within the set.
    fn member(&mut self, is_first: bool, members: &mut ClassUnicode) -> Result<(), String> {
        let is_dash = self.peek() == Some('-');
        match self.item()? {
            Item::Char(_) if is_dash && !is_first && self.peek() != Some(']') => {
                Err("a '-' in a set that is not the first or last of it".to_owned())
            }
            Item::Char(first) => {
                let mut last = first;
                let is_range = !is_dash
                    && self.peek() == Some('-')
                    && self.chars.get(self.at + 1).is_some_and(|&next| next != ']');
                if is_range {
                    self.at += 1;
                    if matches!(self.peek(), Some('-' | '[')) || self.is_and() {
                        return Err("a range of a set with no last character".to_owned());
                    }
                    last = match self.item()? {
                        Item::Char(last) if last >= first => last,
                        _ => return Err("a range of a set that is empty or of sets".to_owned()),
                    };
                    self.no_range()?;
                }
                members.union(&class::set(&[(first, last)]));
                Ok(())
            }
            Item::Set(set) => {
                members.union(&set);
                self.no_range()
            }
        }
    }

    fn is_and(&self) -> bool {
        self.chars[self.at..].starts_with(&['&', '&'])
    }

    /// After a range or a set, a `-` is the last of its set or an error.
    fn no_range(&self) -> Result<(), String> {
        match self.chars.get(self.at..self.at + 2) {
            Some(['-', next]) if *next != ']' => {
                Err("a '-' in a set after a range or a set".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn item(&mut self) -> Result<Item, String> {
        match self.next() {
            None => Err("a '[' without its ']'".to_owned()),
            Some('[') if self.peek() == Some(':') => self.posix().map(Item::Set),
            Some('[') => {
                let (set, negated) = self.members()?;
                Ok(Item::Set(if negated { class::not(set) } else { set }))
            }
            Some('\\') => Ok(match self.escape(true)? {
                Escape::Char(char) => Item::Char(char),
                Escape::Set(set) => Item::Set(set),
                Escape::Letter('b') => Item::Char('\x08'),
                Escape::Letter(letter) => return Err(format!("the escape \\{letter} in a set")),
            }),
            Some(char) => Ok(Item::Char(char)),
        }
    }

    /// The rest of `[:alpha:]` or `[:^alpha:]`.
    fn posix(&mut self) -> Result<ClassUnicode, String> {
        self.at += 1;
        let negated = self.take("^");
        let name = self.take_until(':').filter(|_| self.take("]"));
        let name = name.ok_or("a [: that is no POSIX bracket")?;
        let set = self.counted(class::posix(&name), &format!("the POSIX bracket [:{name}:]"))?;
        Ok(if negated { class::not(set) } else { set })
    }
}

/// `set` with what is in `other`; all of `other` if there is no `set` yet.
fn intersection(set: Option<ClassUnicode>, other: &ClassUnicode) -> ClassUnicode {
    match set {
        None => other.clone(),
        Some(mut set) => {
            set.intersect(other);
            set
        }
    }
}
