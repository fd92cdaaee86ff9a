//! Which characters of a prompt came from outside: a second rendering has other characters in their place.

use std::collections::HashSet;

use super::control::is_mark;
use super::{ChatPrompt, Guard};
use crate::text::error::TextError;
use crate::text::template::{Message, RenderOptions};

/// From a character to the one that shows where it came from, of a private-use plane.
const PLANE: u32 = 0xF_0000;

/// Changes texts from outside so that they are known again.
pub(super) struct Foreign {
    /// What the template compares texts with: those stay.
    literals: HashSet<String>,
    /// All that it writes by itself or calls a field.
    source: String,
}

impl Foreign {
    /// A text from outside, changed.
    pub fn text(&self, text: &str) -> String {
        match self.literals.contains(text) {
            true => text.to_owned(),
            false => text.chars().map(foreign).collect(),
        }
    }

    /// Whether a field of this name may be one that the template reads.
    pub fn knows_name(&self, name: &str) -> bool {
        self.source.contains(name)
    }
}

impl Guard {
    /// Whether each byte of a prompt came from outside; `None` if the template writes another text for other characters.
    pub fn outside(
        &self,
        prompt: &ChatPrompt,
        messages: &[Message],
        options: &RenderOptions<'_>,
    ) -> Result<Option<Vec<bool>>, TextError> {
        let quotes = ['\'', '"'];
        let mut foreign = Foreign { literals: HashSet::new(), source: String::new() };
        drop(self.template.with_texts(|text| {
            foreign.literals.insert(text.trim_matches(quotes).to_owned());
            text.to_owned()
        }));
        foreign.source = self.template.sources();
        let rendered = self.render(messages, options, Some(&foreign), &mut 0)?;
        let other = self.control.unmark(&rendered).text;
        let mut is_outside = Vec::with_capacity(prompt.text().len());
        let mut others = other.chars();
        for char in prompt.text().chars() {
            let is_other = match others.next() {
                Some(other) if other == char => false,
                Some(other) if other == self::foreign(char) => true,
                _ => return Ok(None),
            };
            is_outside.extend((0..char.len_utf8()).map(|_| is_other));
        }
        if others.next().is_some() {
            return Ok(None);
        }
        // What stays as it is, is of what is on both sides of it.
        let mut last = None;
        for (at, char) in prompt.text().char_indices() {
            if is_outside[at] {
                if let Some(last) = last {
                    is_outside[last..at].fill(true);
                }
                last = Some(at + char.len_utf8());
            } else if foreign_stays(char) {
                continue;
            } else {
                last = None;
            }
        }
        Ok(Some(is_outside))
    }
}

/// Whether a character has a meaning that another has not, in templates or in JSON.
fn foreign_stays(char: char) -> bool {
    char.is_whitespace() || char.is_control() || matches!(char, '"' | '\'' | '\\')
}

fn foreign(char: char) -> char {
    let code = u32::from(char);
    match is_mark(char) || foreign_stays(char) || code >= 0xFFFE {
        true => char,
        false => char::from_u32(PLANE + code).unwrap_or(char),
    }
}
