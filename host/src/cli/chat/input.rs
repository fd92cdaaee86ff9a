//! What the user types in a chat: messages and commands.

use crate::cli::failure::Failure;
use rustyline::{
    Context, Editor, Helper,
    completion::Completer,
    error::ReadlineError,
    highlight::Highlighter,
    hint::Hinter,
    history::DefaultHistory,
    validate::{ValidationContext, ValidationResult, Validator},
};
use std::{
    cell::Cell,
    io::{self, IsTerminal},
    path::PathBuf,
};

/// Starts and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

/// What `/help` prints.
pub const HELP: &str = "\
/help         list the commands
/clear        forget the conversation; the system prompt stays
/regenerate   answer the last question again
/system TEXT  replace the system prompt; without TEXT remove it
/exit         end the chat
\"\"\"           start and end a message of several lines
Ctrl-C        stop an answer, clear the line; twice at an empty line: end the chat
Ctrl-D        end the chat";

/// The commands that [`HELP`] lists.
const COMMANDS: [&str; 5] = ["/help", "/clear", "/regenerate", "/system", "/exit"];

/// A line of the chat, or several between `"""`.
#[derive(Debug, PartialEq, Eq)]
pub enum Input {
    /// A question to the model.
    Message(String),
    /// `/help`
    Help,
    /// `/clear`
    Clear,
    /// `/regenerate`
    Regenerate,
    /// `/system TEXT`
    System(Option<String>),
    /// `/exit`
    Exit,
}

impl Input {
    /// What `text` asks for; `None` for blanks.
    ///
    /// # Errors
    /// What is wrong with a command, for the user.
    fn parse(text: &str) -> Result<Option<Input>, String> {
        let text = text.trim();
        if text.starts_with(QUOTES) {
            let message = text.trim_start_matches(QUOTES).trim_end_matches(QUOTES).trim();
            return Ok((!message.is_empty()).then(|| Input::Message(message.to_owned())));
        }
        if !text.starts_with('/') {
            return Ok((!text.is_empty()).then(|| Input::Message(text.to_owned())));
        }
        let (command, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let rest = rest.trim();
        let input = match command {
            "/help" => Input::Help,
            "/clear" => Input::Clear,
            "/regenerate" => Input::Regenerate,
            "/exit" => Input::Exit,
            "/system" => {
                let system = (!rest.is_empty()).then(|| rest.to_owned());
                return Ok(Some(Input::System(system)));
            }
            _ => {
                return Err(format!(
                    "there is no command {command}: /help lists them\n\
                     a message that begins with / goes between {QUOTES}"
                ));
            }
        };
        if rest.is_empty() { Ok(Some(input)) } else { Err(format!("{command} takes no text")) }
    }
}

/// What the user did at the prompt.
#[derive(Debug)]
pub enum Typed {
    /// Typed something that can be answered or done.
    Input(Input),
    /// Typed a command that is wrong: what to say about it.
    Mistake(String),
    /// Pressed Ctrl-C, which cleared the line.
    Cleared,
    /// Pressed Ctrl-D, or the input has ended.
    End,
}

/// Reads lines, with editing and history where stdin is a terminal.
pub struct Reader {
    editor: Editor<Lines, DefaultHistory>,
    history: Option<PathBuf>,
}

impl Reader {
    /// A reader of stdin, with the history of earlier chats.
    ///
    /// # Errors
    /// [`Failure::Environment`] if the terminal cannot be used.
    pub fn new() -> Result<Self, Failure> {
        let mut editor = Editor::new().map_err(terminal_fault)?;
        editor.set_helper(Some(Lines::default()));
        let history = history_file();
        if let Some(history) = &history {
            // There is none the first time.
            let _ = editor.load_history(history);
        }
        Ok(Reader { editor, history })
    }

    /// The next message or command; blank lines are skipped.
    ///
    /// # Errors
    /// [`Failure::Input`] for bytes that are not UTF-8, or input that ends inside `"""`; [`Failure::Environment`] if the
    /// terminal cannot be read.
    pub fn read(&mut self) -> Result<Typed, Failure> {
        loop {
            let text = match self.editor.readline("> ") {
                Ok(text) => text,
                Err(ReadlineError::Interrupted) => return Ok(Typed::Cleared),
                Err(ReadlineError::Eof) if self.is_incomplete() => {
                    return Err(Failure::Input(format!(
                        "the input ended inside a message: {QUOTES} is not closed"
                    )));
                }
                Err(ReadlineError::Eof) => return Ok(Typed::End),
                Err(ReadlineError::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                    return Err(Failure::Input(format!("cannot read a line: {error}")));
                }
                Err(error) => return Err(terminal_fault(error)),
            };
            match Input::parse(&text) {
                Ok(None) => {}
                Ok(Some(input)) => {
                    self.remember(&text);
                    return Ok(Typed::Input(input));
                }
                Err(mistake) => return Ok(Typed::Mistake(mistake)),
            }
        }
    }

    fn is_incomplete(&self) -> bool {
        self.editor.helper().is_some_and(|lines| lines.is_incomplete.get())
    }

    /// A history that cannot be written must not end the chat.
    fn remember(&mut self, text: &str) {
        let _ = self.editor.add_history_entry(text);
        if let Some(history) = &self.history {
            let _ = self.editor.append_history(history);
        }
    }
}

fn terminal_fault(error: ReadlineError) -> Failure {
    Failure::Environment(format!("cannot read a line: {error}"))
}

/// Where the lines typed in a terminal are kept from one chat to the next.
fn history_file() -> Option<PathBuf> {
    if !io::stdin().is_terminal() {
        return None;
    }
    let cache = model_cache::cache_dir().ok()?;
    std::fs::create_dir_all(&cache).ok()?;
    Some(cache.join("chat_history"))
}

/// Tells rustyline when a message is complete, and completes commands.
#[derive(Default)]
struct Lines {
    is_incomplete: Cell<bool>,
}

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        let opened = context.input().trim().strip_prefix(QUOTES);
        self.is_incomplete.set(opened.is_some_and(|rest| !rest.ends_with(QUOTES)));
        Ok(match self.is_incomplete.get() {
            true => ValidationResult::Incomplete,
            false => ValidationResult::Valid(None),
        })
    }
}

impl Completer for Lines {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        pos: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let typed = &line[..pos];
        let commands =
            COMMANDS.iter().filter(|name| typed.starts_with('/') && name.starts_with(typed));
        Ok((0, commands.map(|&name| name.to_owned()).collect()))
    }
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}

impl Helper for Lines {}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Result<Option<Input>, String> {
        Ok(Some(Input::Message(text.to_owned())))
    }

    #[test]
    fn lines_are_messages_or_commands() {
        assert_eq!(Input::parse(" \t"), Ok(None));
        assert_eq!(Input::parse(" Hi there "), message("Hi there"));
        assert_eq!(Input::parse("/help"), Ok(Some(Input::Help)));
        assert_eq!(Input::parse(" /clear "), Ok(Some(Input::Clear)));
        assert_eq!(Input::parse("/regenerate"), Ok(Some(Input::Regenerate)));
        assert_eq!(Input::parse("/exit"), Ok(Some(Input::Exit)));
        assert_eq!(Input::parse("/system"), Ok(Some(Input::System(None))));
        let system = Input::System(Some("Be  brief.".to_owned()));
        assert_eq!(Input::parse("/system   Be  brief."), Ok(Some(system)));
    }

    #[test]
    fn wrong_commands_are_named() {
        assert!(Input::parse("/usr/bin is what?").unwrap_err().contains("no command /usr/bin"));
        assert!(Input::parse("/Help").unwrap_err().contains("/help lists them"));
        assert_eq!(Input::parse("/clear all"), Err("/clear takes no text".to_owned()));
    }

    #[test]
    fn quotes_hold_several_lines() {
        assert_eq!(Input::parse("\"\"\"a\n\n b\n\"\"\""), message("a\n\n b"));
        assert_eq!(Input::parse("\"\"\"/clear\"\"\""), message("/clear"));
        assert_eq!(Input::parse("\"\"\"\n\"\"\""), Ok(None));
        assert_eq!(Input::parse("say \"\"\""), message("say \"\"\""));
    }

    #[test]
    fn the_help_lists_every_command() {
        for command in COMMANDS {
            assert!(HELP.contains(&format!("{command} ")), "{command}");
            assert!(Input::parse(command).is_ok(), "{command}");
        }
    }
}
