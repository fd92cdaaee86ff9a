//! How a model writes its answers: reasoning, text and calls of tools.
//!
//! Every family has marks of its own, and its chat template shows them. [`AnswerFormat::of`] renders the template with
//! and without a call, with other names and arguments, with two calls, with reasoning: the differences are the marks. So
//! a new family needs no code. From that one description come [`AnswerReader`], which takes an answer apart as it comes,
//! the [grammar](AnswerFormat::required) of an answer that has to be a call, and the special tokens that have to
//! be kept in the text.
//!
//! Written by hand are only formats that no template shows by its behaviour:
//! - gpt-oss' channels: the template rewrites an earlier answer (reasoning only before calls, the recipient in another
//!   place than the model puts it), so that what it renders is not what the model writes;
//! - LFM2's Python calls, Granite 3.3's and Phi-4's lists: the templates tell the model of tools, but render no calls;
//! - Kimi K2's, in the form of its template that changes a list in place, which Jinja2's sandbox forbids;
//! - Hermes', for models whose templates neither tell of tools nor render calls.

mod derive;
#[cfg(feature = "grammar")]
mod grammar;
mod harmony;
mod json;
mod known;
mod mark;
mod reader;
mod style;
mod values;
mod write;

use super::{ChatTemplate, Tokenizer};
#[cfg(feature = "grammar")]
use crate::ReasoningLimits;
use mark::{Mark, Part};
use serde_json::Value;
use std::fmt;
use style::{Arguments, Style};

#[cfg(feature = "grammar")]
pub use grammar::{OptionalCalls, RequiredCalls};
pub use reader::{AnswerReader, ReaderOptions};
pub(crate) use write::Call;

/// A piece of an answer, as it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// What is said.
    Text(String),
    /// What was thought before.
    Reasoning(String),
    /// A call begins.
    CallBegin {
        /// Number of the call in the answer.
        index: usize,
        /// Id of the call.
        id: String,
        /// Name of the function.
        name: String,
    },
    /// More of a call's arguments.
    CallArguments {
        /// The number of the call.
        index: usize,
        /// All of its pieces put together are a JSON object.
        json: String,
    },
}

/// What marks the reasoning of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Reasoning {
    /// What the chat template shows.
    #[default]
    Auto,
    /// Reasoning is part of the text.
    None,
    /// The marks of a family, by the name of its parser in vLLM; see [`Reasoning::from_name`].
    Named(Marks),
}

/// A pair of marks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Marks {
    /// Before the text.
    pub open: String,
    /// After it.
    pub close: String,
}

/// How a model writes its answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AnswerFormat {
    /// Around the reasoning, if the model thinks first.
    pub(crate) reasoning: Option<Marks>,
    /// Around the text; empty as a rule.
    content: Marks,
    calls: Option<Calls>,
    /// What the generation prompt has already of the answer's first mark.
    begun: String,
    /// Whether the answer is in gpt-oss' channels.
    is_harmony: bool,
    /// Whether the template tells the model of tools.
    knows_tools: bool,
}

/// How a model writes calls of tools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Calls {
    /// Around all calls.
    section: (Mark, Mark),
    /// Around each.
    call: (Mark, Mark),
    /// What the template has between two.
    separator: String,
    /// White space that it has between text and calls.
    gap: String,
    /// Whether the calls are the items of a list.
    is_list: bool,
    /// Whether an answer may have several.
    is_parallel: bool,
    style: Style,
    /// Whether the first mark of calls ends a turn too.
    opens_with_turn_end: bool,
    /// Another mark that the model may put before calls.
    optional_open: Option<&'static str>,
    /// What ends the answer in place of the end of a turn.
    stop: Option<String>,
    /// Whether the template wants arguments as text.
    takes_text: bool,
    /// Whether the template renders calls of earlier answers.
    is_rendered: bool,
    /// Whether an id is the name and the number of a call, as Kimi's.
    has_numbered_ids: bool,
}

/// What the prompt has of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Opened {
    No,
    Reasoning,
    /// The beginning of a mark.
    Mark(String),
}

impl Reasoning {
    /// Names that [`Reasoning::from_name`] knows, with what each marks reasoning by.
    const NAMES: [(&str, &str, &str); 17] = [
        ("deepseek_r1", "<think>", "</think>"),
        ("deepseek_v3", "<think>", "</think>"),
        ("qwen3", "<think>", "</think>"),
        ("glm45", "<think>", "</think>"),
        ("kimi_k2", "<think>", "</think>"),
        ("minimax_m2", "<think>", "</think>"),
        ("nemotron_v3", "<think>", "</think>"),
        ("step3", "<think>", "</think>"),
        ("ernie45", "<think>", "</think>"),
        ("olmo3", "<think>", "</think>"),
        ("granite", "<think>", "</think>"),
        ("hunyuan_a13b", "<think>", "</think>"),
        ("mistral", "[THINK]", "[/THINK]"),
        ("seed_oss", "<seed:think>", "</seed:think>"),
        ("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
        ("gemma4", "<|channel>thought", "<channel|>"),
        ("gpt_oss", "", ""),
    ];

    /// `auto`, `none` or the name of a family.
    pub fn from_name(name: &str) -> Option<Self> {
        let name = name.replace('-', "_");
        match &*name {
            "auto" => Some(Reasoning::Auto),
            "none" => Some(Reasoning::None),
            // Its channels are found by themselves.
            "gpt_oss" | "openai_gptoss" => Some(Reasoning::Auto),
            _ => {
                let (_, open, close) =
                    Self::NAMES.into_iter().find(|(known, ..)| *known == name)?;
                Some(Reasoning::Named(Marks { open: open.to_owned(), close: close.to_owned() }))
            }
        }
    }

    /// The names of families.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().map(|(name, ..)| name)
    }
}

impl AnswerFormat {
    /// What a chat template shows. A template that fails, or shows nothing, has neither reasoning nor calls.
    pub fn of(template: &ChatTemplate) -> Self {
        derive::of(template)
    }

    /// Hermes' calls, which a model can be told of that knows none of its own: with the reasoning of this format.
    pub fn or_hermes(&self) -> Self {
        match self.calls {
            Some(_) => self.clone(),
            None => AnswerFormat { calls: Some(known::hermes()), ..self.clone() },
        }
    }

    /// Whether it is known how the model writes calls.
    pub fn has_calls(&self) -> bool {
        self.calls.is_some() || self.is_harmony
    }

    /// Whether the template tells the model of tools.
    pub fn knows_tools(&self) -> bool {
        self.knows_tools
    }

    /// Whether the template tells the model of tools, and it is known how it calls them.
    pub fn tells_of_tools(&self) -> bool {
        self.knows_tools && self.has_calls()
    }

    /// Whether the template wants the arguments of earlier calls as text.
    pub fn takes_arguments_as_text(&self) -> bool {
        self.calls.as_ref().is_some_and(|calls| calls.takes_text)
    }

    /// Whether an answer may think before it speaks.
    pub fn has_reasoning(&self) -> bool {
        self.reasoning.is_some() || self.is_harmony
    }

    /// With reasoning as `mode` has it.
    pub fn with_reasoning(mut self, mode: &Reasoning) -> Self {
        match mode {
            Reasoning::Auto => {}
            Reasoning::None => self.reasoning = None,
            Reasoning::Named(marks) => self.reasoning = Some(marks.clone()),
        }
        self
    }

    /// Where the reasoning of an answer to `prompt` begins and ends, and that it has at most `budget` tokens; `None` if
    /// there is none to come, or it is one of gpt-oss' channels.
    #[cfg(feature = "grammar")]
    pub fn reasoning_limits(&self, prompt: &str, budget: Option<usize>) -> Option<ReasoningLimits> {
        let Marks { open, close } = self.reasoning.as_ref()?;
        let (open, close) = (open.trim().to_owned(), close.trim().to_owned());
        if close.is_empty() || prompt.trim_end().ends_with(&close) {
            return None;
        }
        Some(ReasoningLimits { open, close, is_open: self.opens_reasoning(prompt), budget })
    }

    /// Whether `prompt` has opened the reasoning already.
    pub fn opens_reasoning(&self, prompt: &str) -> bool {
        self.opened(prompt) == Opened::Reasoning
    }

    /// Whether `prompt` ends with a reasoning that is over.
    fn closes_reasoning(&self, prompt: &str) -> bool {
        let close = self.reasoning.as_ref().map_or("", |marks| marks.close.trim());
        !close.is_empty() && prompt.ends_with(close)
    }

    fn opened(&self, prompt: &str) -> Opened {
        let prompt = prompt.trim_end();
        let is_open =
            |marks: &Marks| !marks.open.trim().is_empty() && prompt.ends_with(marks.open.trim());
        if self.reasoning.as_ref().is_some_and(is_open) {
            return Opened::Reasoning;
        }
        match !self.begun.is_empty() && prompt.ends_with(self.begun.trim_end()) {
            true => Opened::Mark(self.begun.clone()),
            false => Opened::No,
        }
    }

    /// Special tokens that are marks: the text has to keep them.
    pub fn special_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let texts = self.marks().join("\0");
        let special = tokenizer.special_tokens().into_iter();
        special.filter(|(_, token)| texts.contains(&**token)).map(|(id, _)| id).collect()
    }

    /// Special tokens that end an answer beside those of the end of a turn.
    pub fn stop_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let stops = match self.is_harmony {
            true => vec!["<|call|>", "<|return|>"],
            false => self.calls.iter().filter_map(|calls| calls.stop.as_deref()).collect(),
        };
        let special = tokenizer.special_tokens().into_iter();
        special.filter(|(_, token)| stops.contains(&token.trim())).map(|(id, _)| id).collect()
    }

    /// All texts of marks.
    fn marks(&self) -> Vec<String> {
        if self.is_harmony {
            return harmony::MARKS.map(str::to_owned).to_vec();
        }
        let mut texts = vec![self.content.open.clone(), self.content.close.clone()];
        texts.extend(self.reasoning.iter().flat_map(|m| [m.open.clone(), m.close.clone()]));
        if let Some(calls) = &self.calls {
            texts.extend(calls.optional_open.map(str::to_owned));
            let mut marks = vec![&calls.section.0, &calls.section.1, &calls.call.0, &calls.call.1];
            marks.extend(calls.style.marks());
            let parts = marks.into_iter().flat_map(|mark| &mark.0);
            texts.extend(parts.filter_map(|part| match part {
                Part::Text(text) => Some(text.clone()),
                _ => None,
            }));
            if let Style::Named { arguments: Arguments::Bare { quote: Some(quote) }, .. } =
                &calls.style
            {
                texts.push(quote.clone());
            }
        }
        texts
    }
}

/// A line that says what was found.
impl fmt::Display for AnswerFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_harmony {
            return f.write_str("channels of gpt-oss");
        }
        let line = |text: &str| text.replace('\n', "\\n");
        match &self.reasoning {
            Some(marks) => write!(f, "thinks {} .. {}", line(&marks.open), line(&marks.close))?,
            None => f.write_str("thinks not")?,
        }
        if !self.content.open.is_empty() || !self.content.close.is_empty() {
            write!(f, "; says {} .. {}", line(&self.content.open), line(&self.content.close))?;
        }
        if !self.begun.is_empty() {
            write!(f, "; begun {}", line(&self.begun))?;
        }
        let Some(calls) = &self.calls else { return f.write_str("; calls not") };
        let Calls { section, call, separator, gap, .. } = calls;
        write!(f, "; calls {}", section.0)?;
        if calls.is_list {
            f.write_str(" list of")?;
        }
        write!(f, " ({} {} {})", call.0, calls.style, call.1)?;
        if calls.is_parallel {
            write!(f, "* by `{}`", line(separator))?;
        }
        write!(f, " {}", section.1)?;
        if !gap.is_empty() {
            write!(f, "; gap `{}`", line(gap))?;
        }
        if let Some(stop) = &calls.stop {
            write!(f, "; ends {}", line(stop))?;
        }
        if calls.takes_text {
            f.write_str("; arguments as text")?;
        }
        if !calls.is_rendered {
            f.write_str("; by hand")?;
        }
        Ok(())
    }
}

/// A tool of a request, as chat templates know it.
#[derive(Clone, Debug)]
pub(super) struct Tool {
    name: String,
    parameters: Value,
}

impl Tool {
    fn of(tool: &Value) -> Self {
        let function = &tool["function"];
        let name = function["name"].as_str().unwrap_or_default().to_owned();
        Tool { name, parameters: function["parameters"].clone() }
    }

    /// The schema of a parameter.
    fn parameter(&self, key: &str) -> Option<&Value> {
        self.parameters.get("properties")?.get(key)
    }
}

#[cfg(test)]
mod tests;
