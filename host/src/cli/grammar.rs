//! The form of an answer.

use super::{failure::Failure, prompt::read_text};
use halfwarp::{Grammar, GrammarCompiler, GrammarError, Model};
use std::{path::PathBuf, sync::Arc};

/// The arguments of an answer's form.
#[derive(clap::Args)]
#[command(next_help_heading = "Form of the answer")]
pub struct GrammarArgs {
    /// Answer with JSON of this schema; {} for any JSON
    #[arg(short, long, value_name = "SCHEMA", group = "form")]
    json_schema: Option<String>,
    /// A file with such a schema
    #[arg(long, value_name = "FILE", group = "form", value_hint = clap::ValueHint::FilePath)]
    json_schema_file: Option<PathBuf>,
    /// Answer with a text that matches REGEX as a whole
    #[arg(long, value_name = "REGEX", group = "form")]
    regex: Option<String>,
    /// Answer with a text of this grammar, in llama.cpp's GBNF
    #[arg(long, value_name = "GBNF", group = "form")]
    grammar: Option<String>,
    /// A file with such a grammar
    #[arg(long, value_name = "FILE", group = "form", value_hint = clap::ValueHint::FilePath)]
    grammar_file: Option<PathBuf>,
}

/// Where the form stands.
enum Source {
    Schema(String),
    Regex(String),
    Gbnf(String),
}

impl GrammarArgs {
    /// What the answer of `model` has to obey.
    ///
    /// # Errors
    /// [`Failure::Input`] for what is no schema, no regular expression or no grammar, and for a model with no tokenizer.
    pub fn grammar(&self, model: &Model) -> Result<Option<Arc<Grammar>>, Failure> {
        let Some(source) = self.source()? else { return Ok(None) };
        let Some(text) = model.text() else {
            let why = "this model has no tokenizer: the form of an answer is one of text";
            return Err(Failure::Input(why.to_owned()));
        };
        let wrong = |error: GrammarError| Failure::Input(error.to_string());
        let vocab_size = model.config().vocab_size;
        let compiler =
            GrammarCompiler::new(&text.tokenizer, vocab_size, &text.stop_tokens).map_err(wrong)?;
        let grammar = match source {
            Source::Schema(schema) => compiler.json_schema(&schema),
            Source::Regex(regex) => compiler.regex(&regex),
            Source::Gbnf(grammar) => compiler.gbnf(&grammar),
        };
        Ok(Some(Arc::new(grammar.map_err(wrong)?)))
    }

    fn source(&self) -> Result<Option<Source>, Failure> {
        let GrammarArgs { json_schema, json_schema_file, regex, grammar, grammar_file } = self;
        let file = |file: &Option<PathBuf>| file.as_deref().map(read_text).transpose();
        let schema = json_schema.clone().or(file(json_schema_file)?).map(Source::Schema);
        let grammar = grammar.clone().or(file(grammar_file)?).map(Source::Gbnf);
        Ok(schema.or(grammar).or_else(|| regex.clone().map(Source::Regex)))
    }
}
