//! The marks of reasoning: what stands around it in an answer.

use super::mirrored;
use super::probe::{Probe, TEXT, THOUGHT};
use crate::text::answer::Marks;
use crate::text::answer::mark::{common_prefix, segments};

/// The marks that the template renders.
pub(super) fn find(probe: &Probe<'_>, plain: &str, content: &Marks, prompt: &str) -> Option<Marks> {
    let rendered = probe.reasoning()?;
    let thought_at = rendered.find(THOUGHT)?;
    let (before, after) = (&rendered[..thought_at], &rendered[thought_at + THOUGHT.len()..]);
    let close = after[..after.find(TEXT)?].trim();
    let close = close.strip_suffix(content.open.trim()).unwrap_or(close).trim();
    if close.is_empty() {
        return None;
    }
    let text_at = plain.find(TEXT)?;
    let header = common_prefix(&plain[..text_at], before);
    let open = before[header..].trim();
    let is_mark = |text: &str| segments(text).iter().any(|part| part.starts_with(['<', '[']));
    let open = match open {
        // An answer without reasoning has the marks too, or the prompt has the first.
        "" => {
            let mirrored = mirrored(before, close);
            let prompt = prompt.trim();
            let said = prompt.strip_prefix(before[..header].trim()).unwrap_or_default();
            let last_line = prompt.lines().next_back().unwrap_or_default();
            match () {
                () if is_mark(mirrored)
                    && before.trim_end().ends_with(mirrored)
                    && is_mark(close)
                    && close.starts_with('<') =>
                {
                    mirrored
                }
                () if !said.is_empty() => said,
                () => last_line,
            }
        }
        open => open,
    };
    let open = open.trim();
    (!open.is_empty()).then(|| Marks { open: open.to_owned(), close: close.to_owned() })
}
