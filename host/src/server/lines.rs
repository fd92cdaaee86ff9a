//! Where code that is filled in ends by its lines: llama.cpp's `n_indent` and `t_max_predict_ms`.

use std::time::{Duration, Instant};

/// Limits of the lines of an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LineLimits {
    /// White space that each line but the first has to begin with; 0 is no limit.
    pub min_indent: usize,
    /// After this time from the first token on the answer ends with a line.
    pub max_time: Option<Duration>,
}

/// An answer in progress whose lines are limited.
#[derive(Debug)]
pub(super) struct Lines {
    limits: LineLimits,
    start: Option<Instant>,
    /// White space at the beginning of the line, while there is nothing else in it.
    indent: Option<usize>,
}

impl Lines {
    pub fn new(limits: LineLimits) -> Self {
        Lines { limits, start: None, indent: None }
    }

    /// What is left of the text that comes next, and whether the answer ends with it.
    pub fn take(&mut self, mut text: String) -> (String, bool) {
        let elapsed = self.start.get_or_insert_with(Instant::now).elapsed();
        for (at, char) in text.char_indices() {
            match (char, self.indent) {
                (' ' | '\t', Some(indent)) => self.indent = Some(indent + 1),
                (_, Some(indent)) if indent < self.limits.min_indent => {
                    text.truncate(at);
                    return (text, true);
                }
                ('\n', _) => self.indent = Some(0),
                (_, _) => self.indent = None,
            }
        }
        let is_late = self.limits.max_time.is_some_and(|max| elapsed > max);
        let ends = is_late && text.contains('\n');
        (text, ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(min_indent: usize, pieces: &[&str]) -> (String, bool) {
        let mut lines = Lines::new(LineLimits { min_indent, max_time: None });
        let mut read = String::new();
        for piece in pieces {
            let (text, is_end) = lines.take((*piece).to_owned());
            read += &text;
            if is_end {
                return (read, true);
            }
        }
        (read, false)
    }

    #[test]
    fn a_line_with_too_little_before_it_ends_an_answer() {
        for (min_indent, pieces, text, is_end) in [
            (0, &["a\n", "b"][..], "a\nb", false),
            (2, &["a\n", "  b", "\n \t", "c\n", " d"], "a\n  b\n \tc\n ", true),
            (2, &["a", "\n", "}"], "a\n", true),
            // As in llama.cpp an empty line has no white space.
            (1, &["a\n\n", " b"], "a\n", true),
            (4, &["no line ends"], "no line ends", false),
            (1, &["\u{e4}\n\u{e4}"], "\u{e4}\n", true),
        ] {
            assert_eq!(read(min_indent, pieces), (text.to_owned(), is_end), "{pieces:?}");
        }
    }

    #[test]
    fn after_its_time_an_answer_ends_with_a_line() {
        let mut lines =
            Lines::new(LineLimits { min_indent: 0, max_time: Some(Duration::from_millis(1)) });
        assert_eq!(lines.take("a\n".to_owned()), ("a\n".to_owned(), false));
        std::thread::sleep(Duration::from_millis(3));
        assert_eq!(lines.take("b".to_owned()), ("b".to_owned(), false));
        assert_eq!(lines.take("\nc".to_owned()), ("\nc".to_owned(), true));
    }
}
