//! A constraint of an answer that the model thinks about first.

use crate::Model;
use crate::engine::{Constraint, ConstraintState, SamplingError};
use std::fmt;
use std::sync::Arc;

/// Where a model's reasoning begins and ends, and how long it may be.
#[derive(Clone, Debug)]
pub struct ReasoningLimits {
    /// What begins it, such as `<think>`.
    pub open: String,
    /// What ends it, such as `</think>`.
    pub close: String,
    /// Whether the prompt has begun it.
    pub is_open: bool,
    /// Tokens of it at most: then its end is written.
    pub budget: Option<usize>,
}

/// Rules nothing out while a model thinks, writes the end of its reasoning where that grows too long, and keeps to another
/// constraint after it.
pub struct AfterReasoning {
    model: Arc<Model>,
    limits: ReasoningLimits,
    /// The token of the mark at the beginning, where it is one.
    open: Option<u32>,
    close: Vec<u32>,
    after: Option<Arc<dyn Constraint>>,
}

impl AfterReasoning {
    /// The reasoning of `model` within `limits`, then `after`. None where the model has no tokenizer, or none that can
    /// write the end.
    pub fn new(
        model: Arc<Model>,
        limits: ReasoningLimits,
        after: Option<Arc<dyn Constraint>>,
    ) -> Option<Self> {
        let tokenizer = &model.text()?.tokenizer;
        let open = tokenizer.token_to_id(&limits.open);
        let close = tokenizer.encode(&format!("\n{}\n\n", limits.close), false).ok()?;
        Some(AfterReasoning { model, limits, open, close, after })
    }
}

impl fmt::Debug for AfterReasoning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AfterReasoning")
            .field("limits", &self.limits)
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl Constraint for AfterReasoning {
    fn begin(&self) -> Box<dyn ConstraintState> {
        let mut state = State {
            model: Arc::clone(&self.model),
            limits: self.limits.clone(),
            open: self.open,
            close: self.close.clone(),
            after: self.after.as_ref().map(|after| after.begin()),
            phase: Phase::Start,
            start: Vec::new(),
            bytes: Vec::new(),
        };
        if self.limits.is_open {
            state.reason(0);
        }
        Box::new(state)
    }
}

/// Where an answer is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Before its first token that is no white space: it may begin with reasoning, or without.
    Start,
    /// In the reasoning, after so many tokens of it.
    Reasoning(usize),
    /// In the end of it that is written because it was too long, after so many tokens of that.
    Closing(usize),
    After,
}

struct State {
    model: Arc<Model>,
    limits: ReasoningLimits,
    open: Option<u32>,
    close: Vec<u32>,
    after: Option<Box<dyn ConstraintState>>,
    phase: Phase,
    /// Tokens of the start, which the constraint after the reasoning has not seen.
    start: Vec<u32>,
    /// The last bytes that may belong to a mark.
    bytes: Vec<u8>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("phase", &self.phase).finish_non_exhaustive()
    }
}

impl State {
    /// Goes on after `count` tokens of reasoning.
    fn reason(&mut self, count: usize) {
        let is_too_long = self.limits.budget.is_some_and(|budget| count >= budget);
        self.phase = if is_too_long { Phase::Closing(0) } else { Phase::Reasoning(count) };
    }

    fn push(&mut self, token: u32) {
        let token = self.model.text().and_then(|text| text.tokenizer.token_bytes(token));
        self.bytes.extend(token.into_iter().flat_map(|(bytes, _)| bytes));
    }

    /// Takes a token at the start: whether it belongs to the reasoning, or to the mark before it.
    fn takes_start(&mut self, token: u32) -> bool {
        self.push(token);
        let (bytes, open) = (self.bytes.trim_ascii_start(), self.limits.open.as_bytes());
        let is_free = self.after.as_ref().is_none_or(|after| after.is_free());
        if open.starts_with(bytes) && is_free || Some(token) == self.open {
            self.start.push(token);
            if bytes == open {
                self.bytes.clear();
                self.start.clear();
                self.reason(0);
            }
            return true;
        }
        false
    }

    fn takes_reasoning(&mut self, token: u32, count: usize) {
        self.push(token);
        let close = self.limits.close.as_bytes();
        if self.bytes.windows(close.len().max(1)).any(|bytes| bytes == close) {
            self.phase = Phase::After;
        } else {
            let kept = self.bytes.len().min(close.len().saturating_sub(1));
            self.bytes.drain(..self.bytes.len() - kept);
            self.reason(count + 1);
        }
    }
}

impl ConstraintState for State {
    fn allowed(&mut self) -> Result<Vec<u32>, SamplingError> {
        let mut words = match (self.phase, &mut self.after) {
            (Phase::Start | Phase::After, Some(after)) => after.allowed()?,
            _ => Vec::new(),
        };
        let token = match self.phase {
            Phase::Start => self.open,
            Phase::Closing(at) => self.close.get(at).copied(),
            Phase::Reasoning(_) | Phase::After => None,
        };
        if let Some(token) = token {
            let word = token as usize / 32;
            words.resize(words.len().max(word + 1), 0);
            words[word] |= 1 << (token % 32);
        }
        Ok(words)
    }

    fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
        match self.phase {
            Phase::Reasoning(count) => self.takes_reasoning(token, count),
            Phase::Closing(at) if at + 1 < self.close.len() => self.phase = Phase::Closing(at + 1),
            Phase::Closing(_) => self.phase = Phase::After,
            Phase::Start | Phase::After => {
                if self.phase == Phase::Start && self.takes_start(token) {
                    return Ok(());
                }
                self.phase = Phase::After;
                if let Some(after) = &mut self.after {
                    for token in self.start.drain(..).chain([token]) {
                        after.accept(token)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        match self.phase {
            Phase::Start | Phase::After => self.after.as_ref().is_none_or(|after| after.is_free()),
            Phase::Reasoning(_) => true,
            Phase::Closing(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GrammarCompiler, LazyGrammar, Triggers};

    struct Writer {
        model: Arc<Model>,
        state: Box<dyn ConstraintState>,
    }

    impl Writer {
        fn new(is_open: bool, budget: Option<usize>, regex: Option<&str>) -> Self {
            let model =
                Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
            let model = Arc::new(model);
            let text = model.text().unwrap();
            let after = regex.map(|regex| {
                let vocab_size = model.config().vocab_size;
                let compiler = GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens);
                Arc::new(compiler.unwrap().regex(regex).unwrap()) as Arc<dyn Constraint>
            });
            // A special token of this model, and a text.
            let (open, close) = ("<reponame>".to_owned(), "</think>".to_owned());
            let limits = ReasoningLimits { open, close, is_open, budget };
            let constraint = AfterReasoning::new(Arc::clone(&model), limits, after).unwrap();
            Writer { model, state: constraint.begin() }
        }

        fn ids(&self, text: &str) -> Vec<u32> {
            self.model.text().unwrap().tokenizer.encode(text, false).unwrap()
        }

        /// Writes `text` up to a token that is not allowed; whether there is none.
        fn write(&mut self, text: &str) -> bool {
            self.ids(text).into_iter().all(|id| {
                let is_allowed = self.state.is_free() || {
                    let words = self.state.allowed().unwrap();
                    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 != 0)
                };
                is_allowed && self.state.accept(id).is_ok()
            })
        }
    }

    #[test]
    fn the_form_begins_after_the_reasoning() {
        for (is_open, thought) in [(true, "hm"), (false, "<reponame>hm, yes</thin</k>")] {
            let mut writer = Writer::new(is_open, None, Some("a+b"));
            assert!(writer.write(thought) && writer.state.is_free(), "{thought}");
            assert!(writer.write("</think>") && !writer.state.is_free(), "{thought}");
            assert!(writer.write("aab"), "{thought}");
        }
        let mut writer = Writer::new(false, None, Some("a+b"));
        assert!(!writer.state.is_free() && writer.write("aab"), "without reasoning");
        assert!(!Writer::new(false, None, Some("a+b")).write("hm"));
        assert!(!Writer::new(true, None, Some("a+b")).write("hm</think>hm"));
    }

    #[test]
    fn a_form_that_begins_later_sees_what_is_no_reasoning() {
        let model = Arc::new(Model::open("smollm2-135m-instruct").expect("fetched by setup"));
        let text = model.text().unwrap();
        let vocab_size = model.config().vocab_size;
        let compiler = GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens);
        let grammar = compiler.unwrap().lark("start: \"<call>a\"").unwrap();
        let triggers = Triggers { texts: vec!["<call>".to_owned()], is_first: false };
        let after = LazyGrammar::new(Arc::clone(&model), triggers, Arc::new(grammar));
        let marks = ["<think>", "</think>"].map(str::to_owned);
        let [open, close] = marks;
        let limits = ReasoningLimits { open, close, is_open: false, budget: None };
        let after = Some(Arc::new(after) as Arc<dyn Constraint>);
        let constraint = AfterReasoning::new(Arc::clone(&model), limits, after).unwrap();
        // Its first token begins the mark of reasoning too.
        let mut writer = Writer { model: Arc::clone(&model), state: constraint.begin() };
        assert!(writer.write("<call>") && !writer.state.is_free() && !writer.write("b"));
        let mut writer = Writer { model, state: constraint.begin() };
        assert!(writer.write("<think>a <call> b</think>") && writer.state.is_free());
        assert!(writer.write("<call>") && !writer.state.is_free() && writer.write("a"));
    }

    #[test]
    fn reasoning_that_is_too_long_ends() {
        for budget in [0, 3] {
            let mut writer = Writer::new(true, Some(budget), Some("a+b"));
            assert!(writer.write(&" x".repeat(budget)) && !writer.state.is_free(), "{budget}");
            assert!(writer.write("\n</think>\n\n") && writer.write("ab"), "{budget}");
        }
        let mut writer = Writer::new(true, Some(3), None);
        assert!(writer.write(" x x x") && !writer.write(" x"));
        // An answer without any has no limit.
        let mut writer = Writer::new(false, Some(2), None);
        assert!(writer.write("Yes, that is so, I think.") && writer.state.is_free());
        let mut writer = Writer::new(false, Some(2), None);
        assert!(writer.write("<reponame> x x") && !writer.state.is_free());
    }
}
