//! A constraint that begins in the middle of an answer: llama.cpp's lazy grammars.

use crate::Model;
use crate::engine::{Constraint, ConstraintState, SamplingError};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// What begins a [`LazyGrammar`].
#[derive(Clone, Debug, Default)]
pub struct Triggers {
    /// Texts of which each begins it.
    pub texts: Vec<String>,
    /// Whether nothing but white space may stand before them in an answer.
    pub is_first: bool,
}

/// A constraint that holds from the token with a trigger on, and as long as the answer may not end; after that it waits for
/// the next trigger. Where what follows a trigger in its last token is against the constraint there is none.
pub struct LazyGrammar {
    model: Arc<Model>,
    triggers: Arc<Triggers>,
    grammar: Arc<dyn Constraint>,
    begun: Option<Begun>,
}

/// What the prompt has of the first trigger.
#[derive(Clone)]
struct Begun {
    text: String,
    /// The constraint of what follows it.
    grammar: Arc<dyn Constraint>,
}

impl LazyGrammar {
    /// `grammar` from one of `triggers` on. It begins with any text that a token may have before a trigger.
    pub fn new(model: Arc<Model>, triggers: Triggers, grammar: Arc<dyn Constraint>) -> Self {
        LazyGrammar { model, triggers: Arc::new(triggers), grammar, begun: None }
    }

    /// With `grammar` from the first token on, where that goes on with a trigger that the prompt has begun by `text`.
    #[must_use]
    pub fn with_begun(self, text: String, grammar: Arc<dyn Constraint>) -> Self {
        LazyGrammar { begun: Some(Begun { text, grammar }), ..self }
    }
}

impl fmt::Debug for LazyGrammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LazyGrammar").field("triggers", &self.triggers).finish_non_exhaustive()
    }
}

impl Constraint for LazyGrammar {
    fn begin(&self) -> Box<dyn ConstraintState> {
        let state = State {
            model: Arc::clone(&self.model),
            triggers: Arc::clone(&self.triggers),
            grammar: Arc::clone(&self.grammar),
            begun: self.begun.clone(),
            bytes: self.begun.as_ref().map_or_else(Vec::new, |begun| begun.text.clone().into()),
            tokens: VecDeque::new(),
            is_blank: true,
            held: None,
        };
        Box::new(state)
    }
}

struct State {
    model: Arc<Model>,
    triggers: Arc<Triggers>,
    grammar: Arc<dyn Constraint>,
    begun: Option<Begun>,
    /// The last bytes of the answer, which may be of a trigger.
    bytes: Vec<u8>,
    /// The tokens of these bytes, and how many each has. What the prompt has begun is of none.
    tokens: VecDeque<(u32, usize)>,
    /// Whether what stands before [`State::bytes`] is white space.
    is_blank: bool,
    held: Option<Held>,
}

/// The constraint while it holds.
struct Held {
    state: Box<dyn ConstraintState>,
    /// Whether the answer may end here.
    may_end: bool,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_held = self.held.is_some();
        f.debug_struct("State").field("is_held", &is_held).finish_non_exhaustive()
    }
}

impl State {
    /// Every token.
    fn all(&self) -> Vec<u32> {
        vec![u32::MAX; self.model.config().vocab_size.div_ceil(32)]
    }

    fn push(&mut self, token: u32) {
        let bytes = self.model.text().and_then(|text| text.tokenizer.token_bytes(token));
        let bytes = bytes.map_or_else(Vec::new, |(bytes, _)| bytes);
        self.tokens.push_back((token, bytes.len()));
        self.bytes.extend(bytes);
        let longest = self.triggers.texts.iter().map(String::len).max().unwrap_or_default();
        // The tokens that may have the first byte of a trigger stay.
        while let Some(&(_, len)) = self.tokens.front()
            && self.bytes.len() - self.num_begun() - len >= longest
        {
            let dropped = self.num_begun() + len;
            self.is_blank &= self.bytes[..dropped].trim_ascii().is_empty();
            self.bytes.drain(..dropped);
            self.tokens.pop_front();
        }
    }

    /// Bytes of no token: what the prompt has begun.
    fn num_begun(&self) -> usize {
        self.bytes.len() - self.tokens.iter().map(|(_, len)| len).sum::<usize>()
    }

    /// The constraint after the tokens from a trigger on, if there is one.
    fn triggered(&self) -> Option<Held> {
        // One that ended before the last token was found before.
        let known = self.bytes.len() - self.tokens.back().map_or(0, |(_, len)| *len);
        let find = |text: &String| {
            let places = self.bytes.windows(text.len().max(1)).enumerate();
            let mut ends = places.filter(|(at, _)| at + text.len() > known);
            ends.find(|(_, bytes)| *bytes == text.as_bytes()).map(|(at, _)| at)
        };
        let at = self.triggers.texts.iter().filter_map(find).min()?;
        let is_blank = self.is_blank && self.bytes[..at].trim_ascii().is_empty();
        if self.triggers.is_first && !is_blank {
            return None;
        }
        let mut end = self.num_begun();
        let mut state = match &self.begun {
            Some(begun) if at < end => begun.grammar.begin(),
            _ => self.grammar.begin(),
        };
        for &(token, len) in &self.tokens {
            end += len;
            if end > at {
                // A grammar takes what it does not allow, and fails at the next token.
                let allowed = state.allowed().ok()?;
                let word = allowed.get(token as usize / 32)?;
                if word >> (token % 32) & 1 == 0 {
                    return None;
                }
                state.accept(token).ok()?;
            }
        }
        Some(Held { state, may_end: false })
    }

    fn release(&mut self) {
        self.held = None;
        self.bytes.clear();
        self.tokens.clear();
        // A call was there.
        self.is_blank = false;
    }
}

impl ConstraintState for State {
    fn allowed(&mut self) -> Result<Vec<u32>, SamplingError> {
        let Some(held) = &mut self.held else { return Ok(self.all()) };
        let ends = self.model.stop_tokens();
        let is_in = |words: &[u32], token: u32| {
            words.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 != 0)
        };
        match held.state.allowed() {
            Ok(words) => {
                held.may_end = ends.iter().any(|&end| is_in(&words, end));
                Ok(if held.may_end { self.all() } else { words })
            }
            // What a grammar can't tell an answer need not obey, that could do without calls.
            Err(_) => {
                self.release();
                Ok(self.all())
            }
        }
    }

    fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
        match &mut self.held {
            Some(held) if !held.may_end => return held.state.accept(token),
            Some(_) => self.release(),
            None => {}
        }
        self.push(token);
        self.held = self.triggered();
        if self.held.is_some() {
            self.bytes.clear();
            self.tokens.clear();
        }
        Ok(())
    }

    fn is_free(&self) -> bool {
        self.held.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GrammarCompiler;

    struct Writer {
        model: Arc<Model>,
        state: Box<dyn ConstraintState>,
    }

    impl Writer {
        fn new(triggers: Triggers, lark: &str) -> Self {
            Writer::with_begun(triggers, lark, None)
        }

        fn with_begun(triggers: Triggers, lark: &str, begun: Option<(&str, &str)>) -> Self {
            let model =
                Model::open("smollm2-135m-instruct").expect("`cargo xtask setup` fetches it");
            let text = model.text().unwrap();
            let vocab_size = model.config().vocab_size;
            let compiler =
                GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens).unwrap();
            let grammar = |lark: &str| Arc::new(compiler.lark(lark).unwrap());
            let (all, begun) = (grammar(lark), begun.map(|(text, lark)| (text, grammar(lark))));
            let model = Arc::new(model);
            let mut lazy = LazyGrammar::new(Arc::clone(&model), triggers, all);
            if let Some((text, grammar)) = begun {
                lazy = lazy.with_begun(text.to_owned(), grammar);
            }
            Writer { model, state: lazy.begin() }
        }

        /// Writes `text` up to a token that is not allowed; whether there is none.
        fn write(&mut self, text: &str) -> bool {
            let ids = self.model.text().unwrap().tokenizer.encode(text, false).unwrap();
            ids.into_iter().all(|id| {
                let is_allowed = self.state.is_free() || {
                    let words = self.state.allowed().unwrap();
                    words.get(id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 != 0)
                };
                is_allowed && self.state.accept(id).is_ok()
            })
        }
    }

    const LARK: &str = "start: lead? \"<call>\" (\"a\" | \"b\") \"</call>\"\nlead: /[^<]{1,16}/\n";

    fn triggers() -> Triggers {
        Triggers { texts: vec!["<call>".to_owned()], ..Triggers::default() }
    }

    #[test]
    fn the_grammar_holds_from_the_trigger_on() {
        let mut writer = Writer::new(triggers(), LARK);
        assert!(writer.write("Well <cal, so: <") && writer.state.is_free());
        assert!(writer.write("call>") && !writer.state.is_free());
        assert!(!writer.write("c"));
        assert!(writer.write("a</call>"));
        // It may end here, or go on.
        assert!(writer.write(" Now <c") && writer.state.is_free());
        assert!(writer.write("all>b") && !writer.state.is_free() && !writer.write(" "));
    }

    #[test]
    fn a_token_with_more_than_the_trigger_is_taken_or_there_is_no_call() {
        // The last token of the trigger has what the grammar forbids: a call of text.
        let text = "start: lead? \"<call>\" \"x\"\nlead: /[^<]{1,16}/\n";
        let mut writer = Writer::new(triggers(), text);
        assert!(writer.write("I write <call></p> as I like") && writer.state.is_free());
    }

    #[test]
    fn what_the_prompt_has_begun_counts() {
        let triggers = Triggers { texts: vec![">>>get".to_owned()], is_first: false };
        let lark = "start: lead? \">>>get=1\"\nlead: /[^>]{1,16}/\n";
        let new = || Writer::with_begun(triggers.clone(), lark, Some((">>>", "start: \"get=1\"")));
        let mut writer = new();
        assert!(writer.write("get") && !writer.state.is_free() && !writer.write("s"));
        let mut writer = new();
        assert!(writer.write("all get") && writer.state.is_free());
        assert!(writer.write(" >>>get") && !writer.write("s") && writer.write("=1"));
    }

    #[test]
    fn a_trigger_of_the_beginning_is_none_after_text() {
        let triggers = Triggers { is_first: true, ..triggers() };
        let mut writer = Writer::new(triggers.clone(), LARK);
        assert!(writer.write("So <call>x") && writer.state.is_free());
        let long = "x".repeat(100) + " <call>x";
        assert!(Writer::new(triggers.clone(), LARK).write(&long));
        let mut writer = Writer::new(triggers, LARK);
        assert!(writer.write("\n<call>") && !writer.write("x"));
    }
}
