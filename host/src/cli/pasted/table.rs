//! The table: options of other programs, and what each is here.

use clap::Command;
use std::sync::LazyLock;

/// Options that have one answer.
pub struct Row {
    /// Names, each with its dashes.
    pub names: Vec<&'static str>,
    /// The values that come after a name.
    pub takes: Takes,
    place: Place,
    /// What they are here.
    pub answer: Answer,
}

/// The values of an option.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Takes {
    /// None.
    Flag,
    /// As many words.
    Value(usize),
    /// The next word, if it is one of these.
    Maybe(&'static str),
    /// All words up to the next option.
    Values,
}

/// The commands that a row is for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    /// `generate` and `chat`.
    Cli,
    Serve,
    /// Both, and other commands that do not have the option themselves.
    All,
}

/// What an option is here.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Answer {
    /// The same.
    Same,
    /// The option of this name.
    As(&'static str),
    /// What a rule makes of the values.
    Is(&'static str),
    /// So in any case.
    Already,
    /// Without effect; and why.
    Without(&'static str),
    /// Nothing with one of these values, and refused with others; and why.
    Only(&'static str, &'static str),
    /// Refused; and what to do instead.
    Refused(&'static str),
}

static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let lines = [include_str!("llama_cpp.txt"), include_str!("vllm.txt")].map(str::lines);
    let is_row = |line: &&str| !line.is_empty() && !line.starts_with('#');
    let row = |line: &'static str| row(line).unwrap_or_else(|| panic!("no row: {line}"));
    lines.into_iter().flatten().filter(is_row).map(row).collect()
});

fn row(line: &'static str) -> Option<Row> {
    let mut columns = line.splitn(4, '|').map(str::trim);
    Some(Row {
        names: columns.next()?.split(' ').collect(),
        takes: match columns.next()?.split_once(' ') {
            Some(("value", count)) => Takes::Value(count.parse().ok()?),
            Some(("maybe", words)) => Takes::Maybe(words),
            _ => match line.split('|').nth(1)?.trim() {
                "flag" => Takes::Flag,
                "value" => Takes::Value(1),
                "values" => Takes::Values,
                _ => return None,
            },
        },
        place: match columns.next()? {
            "cli" => Place::Cli,
            "serve" => Place::Serve,
            "all" => Place::All,
            _ => return None,
        },
        answer: answer(columns.next()?)?,
    })
}

fn answer(text: &'static str) -> Option<Answer> {
    match text.split_once([' ', ':']).unwrap_or((text, "")) {
        ("same", "") => Some(Answer::Same),
        ("already", "") => Some(Answer::Already),
        ("as", option) => Some(Answer::As(option)),
        ("is", rule) => Some(Answer::Is(rule)),
        ("without", why) => Some(Answer::Without(why.trim())),
        ("refused", why) => Some(Answer::Refused(why.trim())),
        ("only", rest) => rest.split_once(": ").map(|(neutral, why)| Answer::Only(neutral, why)),
        _ => None,
    }
}

/// The rows, those of llama.cpp first.
#[cfg(all(test, feature = "server"))]
pub fn rows() -> &'static [Row] {
    &ROWS
}

/// The row of option `name` of a command, if there is one.
pub fn find(name: &str, command: &Command) -> Option<&'static Row> {
    let is_here = |row: &&Row| match (row.place, command.get_name()) {
        (Place::All, "generate" | "chat" | "serve") => true,
        (Place::Cli, command) => matches!(command, "generate" | "chat"),
        (Place::Serve, command) => command == "serve",
        (Place::All, _) => !command.get_arguments().any(|arg| super::is_named(arg, name)),
    };
    let called = |name: &str| ROWS.iter().find(|row| row.names.contains(&name) && is_here(row));
    // vLLM's `--compilation-config.mode` is a key of the option's value.
    called(name).or_else(|| called(name.split_once('.')?.0))
}
