//! Answers of a form that is given: JSON of a schema, a regular expression, a grammar.
//!
//! By [llguidance](https://github.com/guidance-ai/llguidance), which finds the tokens that may come next in tens of
//! microseconds; its documentation says what it knows of Lark's syntax. Of a JSON schema a grammar holds what it can,
//! and the whole is checked at the end of an answer.

mod after_reasoning;
mod gbnf;
mod lazy;
mod probe;

pub use after_reasoning::{AfterReasoning, ReasoningLimits};
pub use lazy::{LazyGrammar, Triggers};

use crate::engine::{Constraint, ConstraintState, SamplingError};
use crate::schema::{Schema, with_options, with_stack};
use crate::text::{Tokenizer, one_line};
use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use probe::Probe;
use serde_json::{Value, json};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Longest source of a grammar, in bytes.
const MAX_BYTES: usize = 1 << 20;

/// What llguidance says of a grammar that is beyond its limits.
const TOO_LARGE: [&str; 4] =
    ["panic: ", "too many expressions", "Current row has", "too many lexer states"];

/// Makes grammars for the tokens of a model.
pub struct GrammarCompiler {
    factory: ParserFactory,
    probe: Probe,
}

/// A form that answers have: the [`Request::constraint`](crate::Request::constraint) of any number of requests.
///
/// ```no_run
/// # use halfwarp::{GrammarCompiler, Model, Request};
/// # use std::sync::Arc;
/// # let model = Model::open("model.gguf")?;
/// # let text = model.text().ok_or("no tokenizer")?;
/// let compiler = GrammarCompiler::new(&text.tokenizer, model.config().vocab_size, &text.stop_tokens)?;
/// let grammar = compiler.json_schema(r#"{"type": "object", "properties": {"age": {"type": "integer"}}}"#)?;
/// let request = Request { constraint: Some(Arc::new(grammar)), ..model.request(vec![1, 2, 3]) };
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Grammar {
    /// Before the first token.
    start: Mutex<Matcher>,
    schema: Option<Schema>,
}

/// Why there is no grammar.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The model names no token that ends an answer, or one that it does not have.
    #[error("the model has no token that ends an answer: its answers can have no form")]
    NoEnd,
    /// llguidance can't prepare the vocabulary.
    #[error("the vocabulary: {0}")]
    Vocabulary(String),
    /// A source of more than 1 MiB.
    #[error("a {what} of {bytes} bytes: at most {MAX_BYTES} are allowed")]
    TooLong {
        /// What it is.
        what: &'static str,
        /// Length of the source.
        bytes: usize,
    },
    /// A source that is none, or uses what llguidance does not know.
    #[error("the {what}: {why}")]
    Source {
        /// What it is.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
}

impl GrammarCompiler {
    /// For a model with `vocab_size` tokens, whose answers end with one of `stop_tokens`.
    ///
    /// # Errors
    /// [`GrammarError::NoEnd`], [`GrammarError::Vocabulary`].
    pub fn new(
        tokenizer: &Tokenizer,
        vocab_size: usize,
        stop_tokens: &[u32],
    ) -> Result<Self, GrammarError> {
        let is_known = |&token: &u32| (token as usize) < vocab_size;
        let ends: Vec<u32> = stop_tokens.iter().copied().filter(is_known).collect();
        let &first = ends.first().ok_or(GrammarError::NoEnd)?;
        // Ids without a token stay empty: they never come.
        let words: Vec<Vec<u8>> = (0..vocab_size as u32).map(|id| word(tokenizer, id)).collect();
        let trie = TokTrie::from(&TokRxInfo::new(vocab_size as u32, first), &words);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&ends)));
        let capabilities = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, capabilities, &slices)
            .map_err(|error| GrammarError::Vocabulary(one_line(error)))?;
        factory.quiet();
        *factory.limits_mut() = limits();
        Ok(GrammarCompiler { factory, probe: Probe::default() })
    }

    /// JSON of a schema, of any draft from 4 on. What a grammar does not hold of it, [`Grammar::violations`] finds.
    ///
    /// # Errors
    /// [`GrammarError::TooLong`], [`GrammarError::Source`].
    pub fn json_schema(&self, schema: &str) -> Result<Grammar, GrammarError> {
        const WHAT: &str = "JSON schema";
        check_length(WHAT, schema)?;
        let wrong = |why: String| GrammarError::Source { what: WHAT, why };
        let source: Value = serde_json::from_str(schema).map_err(|e| wrong(one_line(e)))?;
        let read = || {
            let schema = Schema::new(&source)?;
            let held = schema.held(&|leaf| self.probe.is_light(&self.factory, leaf));
            Ok((with_options(held, &source, json!({})), schema))
        };
        let (held, schema) = with_stack(read).map_err(wrong)?;
        let grammar = self.compile(WHAT, TopLevelGrammar::from_json_schema(held))?;
        Ok(Grammar { schema: Some(schema), ..grammar })
    }

    /// Any JSON object.
    ///
    /// # Errors
    /// [`GrammarError::Source`].
    pub fn json_object(&self) -> Result<Grammar, GrammarError> {
        self.json_schema(r#"{"type": "object"}"#)
    }

    /// A regular expression, in the syntax of the crate `regex`, that a whole answer matches.
    ///
    /// # Errors
    /// As [`GrammarCompiler::json_schema`].
    pub fn regex(&self, regex: &str) -> Result<Grammar, GrammarError> {
        check_length("regular expression", regex)?;
        self.compile("regular expression", TopLevelGrammar::from_regex(regex))
    }

    /// A context-free grammar in GBNF, llama.cpp's variant of Backus-Naur form, from the rule `root` on.
    ///
    /// # Errors
    /// As [`GrammarCompiler::json_schema`].
    pub fn gbnf(&self, grammar: &str) -> Result<Grammar, GrammarError> {
        const WHAT: &str = "grammar";
        check_length(WHAT, grammar)?;
        let lark = gbnf::to_lark(grammar);
        self.lark(&lark.map_err(|why| GrammarError::Source { what: WHAT, why })?)
    }

    /// A context-free grammar in llguidance's variant of Lark's syntax, from the rule `start` on.
    ///
    /// # Errors
    /// As [`GrammarCompiler::json_schema`].
    pub fn lark(&self, grammar: &str) -> Result<Grammar, GrammarError> {
        check_length("grammar", grammar)?;
        self.compile("grammar", TopLevelGrammar::from_lark(grammar.to_owned()))
    }

    /// A grammar whose first masks are known to be found.
    fn compile(
        &self,
        what: &'static str,
        grammar: TopLevelGrammar,
    ) -> Result<Grammar, GrammarError> {
        let matcher = with_stack(|| Matcher::new(self.factory.create_parser(grammar)));
        match matcher.get_error().or_else(|| begin(matcher.deep_clone()).err()) {
            // A limit that llguidance asserts, it catches its own panics, or has in a lexer or a parser.
            Some(why) if TOO_LARGE.iter().any(|what| why.contains(what)) => {
                Err(GrammarError::Source { what, why: "it is too large".to_owned() })
            }
            Some(why) => {
                let why = one_line(why)
                    .replace("Unsatisfiable schema", "no document is of it")
                    .replace("NoExtensionBias", "no text is of it");
                Err(GrammarError::Source { what, why })
            }
            None => Ok(Grammar { start: Mutex::new(matcher), schema: None }),
        }
    }
}

impl fmt::Debug for GrammarCompiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GrammarCompiler").finish_non_exhaustive()
    }
}

impl Grammar {
    /// What an answer that has ended breaks of the JSON schema that the grammar is of, a line each: the grammar holds a
    /// part of some keywords only. Nothing for other grammars.
    pub fn violations(&self, answer: &str) -> Vec<String> {
        let Some(schema) = &self.schema else { return Vec::new() };
        match serde_json::from_str(answer) {
            Ok(document) => schema.violations(&document),
            Err(error) => vec![format!("the answer is not JSON: {}", one_line(error))],
        }
    }
}

/// More than llguidance's own, for large schemas: 500 properties that may be left out are 2,000 items.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 50_000,
        initial_lexer_fuel: 5_000_000,
        step_lexer_fuel: 1_000_000,
        step_max_items: 1_000_000,
        verbose_errors: false,
        ..ParserLimits::default()
    }
}

/// Finds the first two masks.
fn begin(mut matcher: Matcher) -> Result<(), String> {
    let mut step = || {
        let mask = matcher.compute_mask_or_eos()?;
        match mask.first_bit_set() {
            Some(token) if !matcher.is_stopped() => matcher.consume_token(token as u32),
            _ => Ok(()),
        }
    };
    step().and_then(|()| step()).map_err(|why| why.to_string())
}

fn check_length(what: &'static str, source: &str) -> Result<(), GrammarError> {
    match source.len() {
        bytes if bytes > MAX_BYTES => Err(GrammarError::TooLong { what, bytes }),
        _ => Ok(()),
    }
}

/// The bytes of a token; llguidance marks special ones.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    match tokenizer.token_bytes(id) {
        None => Vec::new(),
        Some((bytes, false)) => bytes,
        Some((bytes, true)) => [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat(),
    }
}

impl Constraint for Grammar {
    fn begin(&self) -> Box<dyn ConstraintState> {
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        Box::new(State { matcher: start.deep_clone() })
    }
}

impl fmt::Debug for Grammar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammar").finish_non_exhaustive()
    }
}

struct State {
    matcher: Matcher,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl ConstraintState for State {
    fn allowed(&mut self) -> Result<Vec<u32>, SamplingError> {
        let mask = self.matcher.compute_mask_or_eos().map_err(|_| SamplingError::Constraint)?;
        Ok(mask.as_slice().to_vec())
    }

    fn accept(&mut self, token: u32) -> Result<(), SamplingError> {
        // What comes after the end, as where stop tokens are ignored, has no form.
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|_| SamplingError::Constraint)
    }
}

#[cfg(test)]
pub mod tests;
