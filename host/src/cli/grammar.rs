//! The form of an answer.

use super::failure::Failure;
use halfwarp::{Grammar, GrammarCompiler, GrammarError, Model};
use std::sync::Arc;

/// The arguments of an answer's form.
#[derive(clap::Args)]
#[command(next_help_heading = "Form of the answer")]
pub struct GrammarArgs {
    /// Answer with JSON of this schema; {} for any JSON
    #[arg(short, long, value_name = "SCHEMA", conflicts_with = "regex")]
    json_schema: Option<String>,
    /// Answer with a text that matches REGEX as a whole
    #[arg(long, value_name = "REGEX")]
    regex: Option<String>,
}

impl GrammarArgs {
    /// What the answer of `model` has to obey.
    ///
    /// # Errors
    /// [`Failure::Input`] for what is no schema or no regular expression, and for a model with no tokenizer.
    pub fn grammar(&self, model: &Model) -> Result<Option<Arc<Grammar>>, Failure> {
        let (source, is_schema) = match (&self.json_schema, &self.regex) {
            (Some(schema), _) => (schema, true),
            (None, Some(regex)) => (regex, false),
            (None, None) => return Ok(None),
        };
        let Some(text) = model.text() else {
            let why = "this model has no tokenizer: the form of an answer is one of text";
            return Err(Failure::Input(why.to_owned()));
        };
        let wrong = |error: GrammarError| Failure::Input(error.to_string());
        let vocab_size = model.config().vocab_size;
        let compiler =
            GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens).map_err(wrong)?;
        let grammar = if is_schema { compiler.json_schema(source) } else { compiler.regex(source) };
        Ok(Some(Arc::new(grammar.map_err(wrong)?)))
    }
}
