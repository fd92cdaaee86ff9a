//! The TOML file of settings by model: llama.cpp's presets, with the quotes of TOML.
//!
//! ```toml
//! ["*"]                                   # all models
//! ctx-size = 8192
//!
//! ["Qwen/Qwen3-8B-GGUF:Q4_K_M"]           # one that is in a cache
//! alias = "qwen"
//! cache-type-k = "q8_0"
//! pin = true
//!
//! [mine]                                  # one that is elsewhere
//! model = "/models/mine.gguf"
//! load-on-startup = true
//! keep-alive = "1h"
//! ```
//! All other keys are options of `halfwarp serve`, by their long names.

use super::ServeArgs;
use crate::cli::{Cli, Command, failure::Failure, mistake, pasted, prompt::read_text, terminal};
use clap::{CommandFactory, FromArgMatches};
use halfwarp::server::KeepAlive;
use std::{collections::BTreeMap, env, ffi::OsString, path::Path, path::PathBuf};
use toml::{Table, Value};

/// The section of all models.
const ALL: &str = "*";
/// Options that a model may have of its own, by the names of their arguments.
const OPTIONS: [&str; 27] = [
    "context",
    "dtype",
    "cache_type_k",
    "cache_type_v",
    "kv_cache_dtype",
    "gemm",
    "accumulate",
    "batch_invariant",
    "fusion",
    "attention",
    "lora",
    "chat_template",
    "chat_template_file",
    "chat_template_kwargs",
    "parse_special_in_content",
    "reasoning_parser",
    "temp",
    "top_k",
    "top_p",
    "min_p",
    "repeat_penalty",
    "max_num_seqs",
    "max_num_batched_tokens",
    "long_prefill_token_threshold",
    "kv_cache_tokens",
    "collectives",
    "target",
];

/// The settings of models.
#[derive(Debug, Default)]
pub struct Preset {
    file: PathBuf,
    all: Section,
    /// By the name of the model.
    pub models: BTreeMap<String, Section>,
}

/// The settings of a model.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Section {
    /// Where it is, if not in a cache or the directory of models.
    pub model: Option<String>,
    pub aliases: Vec<String>,
    pub is_pinned: Option<bool>,
    pub is_preloaded: Option<bool>,
    pub keep_alive: Option<KeepAlive>,
    /// Options of the command line.
    options: Vec<OsString>,
}

impl Preset {
    /// # Errors
    /// [`Failure::Input`] for a file that cannot be read, and for what is wrong in it.
    pub fn read(file: &Path) -> Result<Preset, Failure> {
        let wrong = |what: String| Failure::Input(format!("{}: {what}", file.display()));
        Self::parse(&read_text(file)?, file).map_err(wrong)
    }

    fn parse(text: &str, file: &Path) -> Result<Preset, String> {
        let table = text.parse::<Table>().map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start));
            let line = before.map_or(1, |before| before.lines().count().max(1));
            let what = error.message().lines().next().unwrap_or_default().to_owned();
            format!("line {line}: {what}\nthe file is TOML: names with other characters than letters, digits, - and _ \
                     need quotes, and so do texts")
        })?;
        let mut preset = Preset { file: file.to_owned(), ..Preset::default() };
        for (name, value) in table {
            match value {
                Value::Table(table) => {
                    let section =
                        Section::parse(table).map_err(|what| format!("[{name}] {what}"))?;
                    if name == ALL {
                        if section.model.is_some() || !section.aliases.is_empty() {
                            return Err(format!("[{name}] model and alias are of one model"));
                        }
                        preset.all = section;
                    } else {
                        preset.models.insert(name, section);
                    }
                }
                // llama.cpp's.
                Value::Integer(1) if name == "version" => {}
                _ => {
                    return Err(format!(
                        "{name}: settings are in the section of a model, [NAME], or of all, [\"*\"]"
                    ));
                }
            }
        }
        for section in preset.models.values_mut() {
            section.inherit(&preset.all);
        }
        Ok(preset)
    }

    /// The settings of all models.
    pub fn all(&self) -> &Section {
        &self.all
    }

    /// The arguments of the command line with those of a section in their place.
    ///
    /// # Errors
    /// [`Failure::Input`] for an option that a model cannot have, or a value that it cannot have.
    pub fn args_of(&self, name: &str, section: &Section) -> Result<ServeArgs, Failure> {
        let wrong =
            |what: &str| Failure::Input(format!("{}: [{name}] {what}", self.file.display()));
        let command = Cli::command();
        let typed = pasted::expand(env::args_os().collect(), &command)?.args;
        let own = [OsString::from("halfwarp"), OsString::from("serve")];
        let own = own.into_iter().chain(section.options.iter().cloned()).collect();
        let pasted::Expanded { args: own, without_effect } = pasted::expand(own, &command)
            .map_err(|failure| {
                wrong(failure.message().as_deref().unwrap_or("an option is refused"))
            })?;
        for note in without_effect {
            terminal::note(format_args!("note: [{name}] {note}"));
        }
        let command = command.mut_subcommand("serve", |serve| serve.args_override_self(true));
        let parse = |args: Vec<OsString>| {
            let matches = command.clone().try_get_matches_from(args);
            matches.map_err(|error| wrong(&mistake(&error.to_string())))
        };
        let alone = parse(own.clone())?;
        let given = alone.subcommand().map(|(_, matches)| matches);
        let is_given = |id: &str| {
            let source = given.and_then(|matches| matches.value_source(id));
            source == Some(clap::parser::ValueSource::CommandLine)
        };
        let ids = given.into_iter().flat_map(|matches| matches.ids()).map(clap::Id::as_str);
        // Groups of arguments have ids, too.
        let is_option = |id: &&str| is_given(id) && !id.ends_with("Args");
        if let Some(other) = ids.filter(is_option).find(|id| !OPTIONS.contains(id)) {
            let what = format!(
                "{}: this is of the whole server: give it on the command line",
                other.replace('_', "-")
            );
            return Err(wrong(&what));
        }
        let all = typed.into_iter().chain(own.into_iter().skip(2)).collect();
        match Cli::from_arg_matches(&parse(all)?) {
            Ok(Cli { command: Command::Serve(args) }) => Ok(args),
            Ok(_) => Err(wrong("it is of no server")),
            Err(error) => Err(wrong(&mistake(&error.to_string()))),
        }
    }
}

impl Section {
    fn parse(table: Table) -> Result<Section, String> {
        let mut section = Section::default();
        for (key, value) in table {
            let wrong = |what: &str| format!("{key}: it has to be {what}");
            match (key.as_str(), value) {
                ("model" | "hf" | "hf-repo", Value::String(model)) => section.model = Some(model),
                ("model" | "hf" | "hf-repo", _) => return Err(wrong("a path or a name")),
                ("alias", Value::String(alias)) => section.aliases = vec![alias],
                ("alias", Value::Array(names)) => {
                    let names = names.iter().map(|name| name.as_str().map(str::to_owned));
                    section.aliases =
                        names.collect::<Option<_>>().ok_or_else(|| wrong("a list of names"))?;
                }
                ("alias", _) => return Err(wrong("a name, or a list of them")),
                ("pin", Value::Boolean(is)) => section.is_pinned = Some(is),
                ("load-on-startup", Value::Boolean(is)) => section.is_preloaded = Some(is),
                ("pin" | "load-on-startup", _) => return Err(wrong("true or false")),
                ("keep-alive", value) => {
                    let text = match &value {
                        Value::String(text) => text.clone(),
                        Value::Integer(seconds) => seconds.to_string(),
                        _ => return Err(wrong("a duration, such as \"5m\"")),
                    };
                    let keep_alive = text.parse().map_err(|what| format!("{key}: {what}"))?;
                    section.keep_alive = Some(keep_alive);
                }
                (_, value) => section.option(&key, value)?,
            }
        }
        Ok(section)
    }

    /// An option of the command line.
    fn option(&mut self, key: &str, value: Value) -> Result<(), String> {
        let is_plain = |char: char| char.is_ascii_alphanumeric() || "-_".contains(char);
        if key.starts_with('-') || key.is_empty() || !key.chars().all(is_plain) {
            return Err(format!("{key}: this is no option: they have no dashes before them"));
        }
        let name = if key.len() == 1 { format!("-{key}") } else { format!("--{key}") };
        let mut add = |value: String| match key.len() {
            1 => self.options.extend([name.clone().into(), value.into()]),
            _ => self.options.push(format!("{name}={value}").into()),
        };
        match value {
            Value::Boolean(true) => self.options.push(name.into()),
            Value::Boolean(false) => {}
            Value::String(text) => add(text),
            Value::Integer(number) => add(number.to_string()),
            Value::Float(number) => add(number.to_string()),
            Value::Array(values) => {
                for value in values {
                    self.option(key, value)?;
                }
            }
            Value::Table(table) => {
                let json = serde_json::to_string(&table);
                add(json.map_err(|error| format!("{key}: {error}"))?);
            }
            Value::Datetime(_) => return Err(format!("{key}: a date is no value of an option")),
        }
        Ok(())
    }

    /// Takes from the section of all models what this one does not say.
    fn inherit(&mut self, all: &Section) {
        self.is_pinned = self.is_pinned.or(all.is_pinned);
        self.is_preloaded = self.is_preloaded.or(all.is_preloaded);
        self.keep_alive = self.keep_alive.or(all.keep_alive);
        // The last of an option counts.
        self.options.splice(0..0, all.options.iter().cloned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Preset, String> {
        Preset::parse(text, Path::new("x.toml"))
    }

    #[test]
    fn a_section_is_of_a_model() {
        let preset = parse(
            r#"
            version = 1
            ["*"]
            ctx-size = 4096
            pin = false
            ["org/name:Q4_K_M"]
            alias = ["a", "b"]
            ctx-size = 8192
            top-p = 0.5
            batch-invariant = true
            parse-special-in-content = false
            chat-template-kwargs = { enable_thinking = false }
            [mine]
            model = "/models/x.gguf"
            pin = true
            load-on-startup = true
            keep-alive = "1h"
            "#,
        )
        .unwrap();
        let one = &preset.models["org/name:Q4_K_M"];
        assert_eq!((&one.aliases[..], one.is_pinned), (&["a".into(), "b".into()][..], Some(false)));
        let mut options: Vec<_> = one.options.iter().map(|it| it.to_str().unwrap()).collect();
        assert_eq!(options.remove(0), "--ctx-size=4096");
        options.sort_unstable();
        let kwargs = "--chat-template-kwargs={\"enable_thinking\":false}";
        assert_eq!(options, ["--batch-invariant", kwargs, "--ctx-size=8192", "--top-p=0.5"]);
        let mine = &preset.models["mine"];
        assert_eq!(mine.model.as_deref(), Some("/models/x.gguf"));
        assert_eq!((mine.is_pinned, mine.is_preloaded), (Some(true), Some(true)));
        assert_eq!(mine.keep_alive, Some("1h".parse().unwrap()));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, said) in [
            ("[a\nctx = 1", "line 1: "),
            ("[a]\nctx-size = q8", "line 2: "),
            ("ctx-size = 1", "ctx-size: settings are in the section of a model"),
            ("version = 2", "version: settings are in the section"),
            ("[a]\npin = 1", "[a] pin: it has to be true or false"),
            ("[a]\nkeep-alive = \"soon\"", "[a] keep-alive: it has to be seconds"),
            ("[a]\n\"--ctx-size\" = 1", "they have no dashes before them"),
            ("[a]\n\"x y\" = 1", "this is no option"),
            ("[\"*\"]\nmodel = \"x\"", "[*] model and alias are of one model"),
            ("[a]\nalias = 3", "[a] alias: it has to be a name"),
            ("[a]\nx = 2020-01-01", "a date is no value"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
