//! Command lines of llama.cpp and vLLM, pasted with the program's name changed.
//!
//! Each of their options has one of three answers: it is the same here, under this name or another; it has no effect
//! here, which is said in a line on stderr; or it is refused, with what to do instead. The answers are those of
//! `llama_cpp.txt` and `vllm.txt`. What they say is put in the place of what was typed, before the arguments are parsed.

mod table;
#[cfg(all(test, feature = "server"))]
mod tests;
mod values;

use super::failure::Failure;
use clap::{ArgAction, Command};
use std::{ffi::OsString, vec};
use table::{Answer, Row, Takes};

/// What is parsed in the place of what was typed.
#[derive(Debug, Default)]
pub struct Expanded {
    /// The arguments, the name of the program first.
    pub args: Vec<OsString>,
    /// Options that were taken, and have no effect.
    pub without_effect: Vec<String>,
}

/// Puts options of `command` in the place of those that other programs have.
///
/// # Errors
/// [`Failure::Input`] for an option that is refused.
pub fn expand(args: Vec<OsString>, command: &Command) -> Result<Expanded, Failure> {
    let mut args = args.into_iter();
    let mut expanded = Expanded { args: args.by_ref().take(1).collect(), ..Expanded::default() };
    let Some(name) = args.next() else { return Ok(expanded) };
    let subcommand = name.to_str().and_then(|name| command.find_subcommand(name));
    expanded.args.push(name);
    match subcommand.filter(|subcommand| takes_model(subcommand)) {
        Some(subcommand) => Expansion { subcommand, rest: args, expanded }.run(),
        None => {
            expanded.args.extend(args);
            Ok(expanded)
        }
    }
}

/// Whether a command takes a model.
fn takes_model(command: &Command) -> bool {
    command.get_arguments().any(|arg| arg.get_id() == "hf")
}

struct Expansion<'a> {
    subcommand: &'a Command,
    rest: vec::IntoIter<OsString>,
    expanded: Expanded,
}

impl Expansion<'_> {
    fn run(mut self) -> Result<Expanded, Failure> {
        while let Some(arg) = self.rest.next() {
            let Some(text) = arg.to_str() else {
                self.expanded.args.push(arg);
                continue;
            };
            if text == "--" {
                self.expanded.args.push(arg);
                self.expanded.args.extend(self.rest);
                break;
            }
            let (name, value) = split(text);
            match table::find(&name, self.subcommand) {
                Some(row) => self.answer(row, &name, value)?,
                None if text.len() > 1 && text.starts_with('-') => self.own(arg, &name, value),
                None => self.word(arg),
            }
        }
        Ok(self.expanded)
    }

    /// An option of this program, with the words that are its values.
    fn own(&mut self, arg: OsString, name: &str, value: Option<String>) {
        let takes_value = self.subcommand.get_arguments().any(|known| {
            let is_named = is_named(known, name);
            is_named && matches!(known.get_action(), ArgAction::Set | ArgAction::Append)
        });
        let typed = if name.starts_with("--") { joined(name, value.as_deref()) } else { arg };
        self.expanded.args.push(typed);
        if takes_value && value.is_none() {
            self.expanded.args.extend(self.rest.next());
        }
    }

    /// A word that is no option: the model, as vLLM has it.
    fn word(&mut self, word: OsString) {
        if self.subcommand.get_name() == "serve" {
            let is_repo = word.to_string_lossy().parse::<hub::ModelRef>().is_ok();
            let is_there = std::path::Path::new(&word).exists();
            let option = if is_repo && !is_there { "--hf" } else { "--model" };
            self.expanded.args.push(option.into());
        }
        self.expanded.args.push(word);
    }

    fn answer(&mut self, row: &Row, name: &str, value: Option<String>) -> Result<(), Failure> {
        let refused = |why: &str| Failure::Input(format!("{name} is refused: {why}"));
        if let Answer::Refused(why) = row.answer {
            return Err(refused(why));
        }
        if let Answer::Same | Answer::As(_) = row.answer {
            let option = if let Answer::As(option) = row.answer { option } else { name };
            self.expanded.args.push(joined(option, value.as_deref()));
            if let (None, Takes::Value(count)) = (value, row.takes) {
                // A value may be any bytes, such as a path.
                self.expanded.args.extend(self.rest.by_ref().take(count));
            }
            return Ok(());
        }
        let values = self.values(row, name, value)?;
        let first = values.first().map_or("", String::as_str);
        match row.answer {
            Answer::Is(rule) => {
                let is_chat = self.subcommand.get_name() == "chat";
                let args = values::rule(rule, &values, is_chat).map_err(|why| refused(&why))?;
                let args: Vec<OsString> = args.into_iter().map(OsString::from).collect();
                // Two options may say the same.
                if !self.expanded.args.windows(args.len().max(1)).any(|typed| typed == args) {
                    self.expanded.args.extend(args);
                }
            }
            Answer::Without(why) => {
                self.expanded.without_effect.push(format!("{name} has no effect: {why}"));
            }
            Answer::Only(neutral, why) => {
                if !neutral.split(',').any(|value| value == first) {
                    return Err(refused(why));
                }
            }
            Answer::Same | Answer::As(_) | Answer::Already | Answer::Refused(_) => {}
        }
        Ok(())
    }

    /// The values of an option: after `=`, or as many words as it takes.
    fn values(
        &mut self,
        row: &Row,
        name: &str,
        value: Option<String>,
    ) -> Result<Vec<String>, Failure> {
        if let (Some(value), false) = (&value, row.takes == Takes::Flag) {
            return Ok(vec![value.clone()]);
        }
        let mut next = |is_value: &dyn Fn(&str) -> bool| {
            let word = self.rest.as_slice().first()?.to_str().filter(|word| is_value(word))?;
            let word = word.to_owned();
            self.rest.next();
            Some(word)
        };
        let is_word = |word: &str| !word.starts_with("--");
        let values: Vec<String> = match row.takes {
            Takes::Flag => return Ok(Vec::new()),
            Takes::Maybe(words) => {
                next(&|word| words.split(',').any(|known| word == known)).into_iter().collect()
            }
            Takes::Value(count) => (0..count).map_while(|_| next(&is_word)).collect(),
            Takes::Values => std::iter::from_fn(|| next(&|word| !word.starts_with('-'))).collect(),
        };
        match (row.takes, values.len()) {
            (Takes::Value(count), len) if len < count => {
                Err(Failure::Input(format!("{name} needs a value")))
            }
            (Takes::Values, 0) => Err(Failure::Input(format!("{name} needs a value"))),
            _ => Ok(values),
        }
    }
}

/// Whether `name` is what an argument is called.
fn is_named(arg: &clap::Arg, name: &str) -> bool {
    match name.strip_prefix("--") {
        Some(long) => {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long() == Some(long) || aliases.contains(&long)
        }
        None => {
            let short = name.strip_prefix('-').filter(|short| short.chars().count() == 1);
            short.is_some_and(|short| arg.get_short() == short.chars().next())
        }
    }
}

/// The name of an option, a long one with dashes as both programs take it, and its value after `=`.
fn split(text: &str) -> (String, Option<String>) {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, None),
    };
    let is_long = name.starts_with("--");
    (if is_long { name.replace('_', "-") } else { name.to_owned() }, value)
}

fn joined(name: &str, value: Option<&str>) -> OsString {
    value.map_or_else(|| name.to_owned(), |value| format!("{name}={value}")).into()
}
