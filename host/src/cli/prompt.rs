//! The prompt of a command: a text, a file, piped input, a chat, or token ids.

use super::failure::Failure;
use clap::ArgGroup;
use halfwarp::text::RenderOptions;
use halfwarp::text::answer::{AnswerFormat, Reasoning};
use halfwarp::{Message, Model, ModelOverrides, Text};
use serde_json::{Map, Value};
use std::{
    fs,
    io::{self, IsTerminal, Read},
    path::{Path, PathBuf},
};

/// The arguments that make a prompt.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("prompt_kind").args(["prompt", "file", "tokens"]))]
#[command(next_help_heading = "Prompt")]
pub struct PromptArgs {
    /// The prompt; - reads it from stdin, as does piped input
    #[arg(short, long, value_name = "TEXT", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// A file that holds the prompt, in UTF-8
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: Option<PathBuf>,
    /// Token ids in the place of a text, such as 1,2,3
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    tokens: Vec<u32>,
    /// Take \n, \r, \t, \', \", \\ and \x41 in the prompt, and in --stop, for what they stand for
    #[arg(short, long)]
    escape: bool,
}

/// The arguments that make a prompt a conversation.
#[derive(clap::Args)]
#[command(next_help_heading = "Prompt")]
pub struct ConversationArgs {
    /// Render the prompt with the model's chat template
    #[arg(long, conflicts_with = "tokens")]
    chat: bool,
    /// The system prompt of the chat
    #[arg(long, requires = "chat", value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    #[command(flatten)]
    template: TemplateArgs,
}

/// The arguments of the chat template.
#[derive(clap::Args)]
#[command(next_help_heading = "Prompt")]
pub struct TemplateArgs {
    /// A Jinja template in the place of the model's own, or the file that holds it
    #[arg(long, value_name = "JINJA", conflicts_with = "chat_template_file")]
    chat_template: Option<String>,
    /// The file that holds it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    chat_template_file: Option<PathBuf>,
    /// Variables of the chat template, such as {"enable_thinking": false}
    #[arg(long, value_name = "JSON", value_parser = variables)]
    chat_template_kwargs: Option<Map<String, Value>>,
    /// Take control tokens that messages spell out, such as <|im_end|>, for the tokens themselves:
    /// who writes a message can then end its turn and write others
    #[arg(long)]
    parse_special_in_content: bool,
    /// How the reasoning is set apart: auto, as the chat template shows; none; or the name of a
    /// family, such as qwen3 or deepseek_r1 [default: auto]
    #[arg(long, value_name = "NAME", value_parser = reasoning)]
    reasoning_parser: Option<Reasoning>,
}

impl TemplateArgs {
    /// Whether there is a template in the place of the model's own.
    pub fn is_given(&self) -> bool {
        self.chat_template.is_some() || self.chat_template_file.is_some()
    }

    /// The template in the place of the model's own, if there is one.
    ///
    /// # Errors
    /// [`Failure::Input`] for a file that cannot be read.
    pub fn overrides(&self) -> Result<ModelOverrides, Failure> {
        Ok(ModelOverrides { chat_template: self.source()?, ..ModelOverrides::default() })
    }

    fn source(&self) -> Result<Option<String>, Failure> {
        match (&self.chat_template, &self.chat_template_file) {
            (Some(text), _) if ["{{", "{%", "{#"].iter().any(|mark| text.contains(mark)) => {
                Ok(Some(text.clone()))
            }
            (Some(text), _) if !Path::new(text).is_file() => Err(Failure::Input(format!(
                "--chat-template {text}: no Jinja, and no file\ngive a template or the file that \
                 holds one: templates are not known by name"
            ))),
            (Some(file), _) => read_text(Path::new(file)).map(Some),
            (None, Some(file)) => read_text(file).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// The variables of the chat template.
    pub fn variables(&self) -> Map<String, Value> {
        self.chat_template_kwargs.clone().unwrap_or_default()
    }

    /// Whether control tokens that messages spell out are taken for the tokens themselves.
    pub fn parse_special_in_content(&self) -> bool {
        self.parse_special_in_content
    }

    /// How the reasoning is set apart.
    pub fn reasoning(&self) -> Reasoning {
        self.reasoning_parser.clone().unwrap_or_default()
    }

    /// How `model` writes its answers, if it thinks before them.
    pub fn thinking_format(&self, model: &Model) -> Option<AnswerFormat> {
        let template = model.text()?.chat_template.as_ref()?;
        let format = template.answer_format().clone().with_reasoning(&self.reasoning());
        Some(format).filter(AnswerFormat::has_reasoning)
    }

    /// The token ids of a conversation, up to where the assistant's answer begins.
    ///
    /// # Errors
    /// [`Failure::Input`] for a model without a chat template, or messages that its template refuses.
    pub fn render(&self, model: &Model, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        let text = text(model)?;
        if text.chat_template.is_none() {
            return Err(Failure::Input(
                "this model has no chat template: it continues texts, and was not trained to chat\n\
                 halfwarp generate without --chat"
                    .to_owned(),
            ));
        }
        let options = RenderOptions {
            add_generation_prompt: true,
            variables: self.chat_template_kwargs.as_ref(),
            parse_special_in_content: self.parse_special_in_content,
            ..RenderOptions::default()
        };
        // The template writes the special tokens itself.
        let tokens = text.encode(&text.prompt(messages, &options)?, false)?;
        if tokens.is_empty() { Err(no_prompt("the prompt is empty")) } else { Ok(tokens) }
    }
}

/// The value of `--reasoning-parser`.
fn reasoning(name: &str) -> Result<Reasoning, String> {
    Reasoning::from_name(name).ok_or_else(|| {
        let names: Vec<&str> = Reasoning::names().collect();
        format!("expected auto, none or one of {}", names.join(", "))
    })
}

/// The value of `--chat-template-kwargs`.
fn variables(json: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(json).map_err(|error| format!("expected an object of JSON: {error}"))
}

impl ConversationArgs {
    /// The template in the place of the model's own, if there is one.
    ///
    /// # Errors
    /// As [`TemplateArgs::overrides`].
    pub fn overrides(&self) -> Result<ModelOverrides, Failure> {
        self.template.overrides()
    }

    /// How `model` writes its answers, if it chats and thinks before them.
    pub fn thinking_format(&self, model: &Model) -> Option<AnswerFormat> {
        self.template.thinking_format(model).filter(|_| self.chat)
    }
}

impl PromptArgs {
    /// The token ids of `--tokens`, where they are given.
    pub fn given_tokens(&self) -> Option<&[u32]> {
        (!self.tokens.is_empty()).then_some(&self.tokens)
    }

    /// The prompt's token ids.
    ///
    /// # Errors
    /// [`Failure::Input`] for a prompt that is empty, cannot be read or is not UTF-8, or a model without a tokenizer.
    pub fn token_ids(&self, model: &Model) -> Result<Vec<u32>, Failure> {
        match self.given_tokens() {
            Some(tokens) => Ok(tokens.to_vec()),
            None => encode(text(model)?, &self.text()?, true),
        }
    }

    /// The token ids of the prompt, with `--chat` as the user's turn of a conversation.
    ///
    /// # Errors
    /// As [`PromptArgs::token_ids`]; [`Failure::Input`] for a model without a chat template.
    pub fn chat_token_ids(
        &self,
        chat: &ConversationArgs,
        model: &Model,
    ) -> Result<Vec<u32>, Failure> {
        if !chat.chat {
            let arguments = &chat.template;
            let given = [
                (arguments.is_given(), "--chat-template: without --chat no template is rendered"),
                (
                    arguments.chat_template_kwargs.is_some(),
                    "--chat-template-kwargs: without --chat no template is rendered",
                ),
                (
                    arguments.parse_special_in_content,
                    "--parse-special-in-content: without --chat a text is always parsed",
                ),
                (
                    arguments.reasoning_parser.is_some(),
                    "--reasoning-parser: without --chat the text is all there is",
                ),
            ];
            return match given.into_iter().find(|(is_given, _)| *is_given) {
                None => self.token_ids(model),
                Some((_, why)) => Err(Failure::Input(why.to_owned())),
            };
        }
        let system = chat.system.as_ref().map(|content| Message::new("system", content));
        text(model)?;
        let user = Message::new("user", self.text()?);
        chat.template.render(model, &system.into_iter().chain([user]).collect::<Vec<_>>())
    }

    /// `text`, with what its escapes stand for, if the user says that it has some.
    pub fn unescaped(&self, text: &str) -> String {
        if self.escape { unescape(text) } else { text.to_owned() }
    }

    /// The text of the prompt, without the newline at its end that editors and `echo` add.
    fn text(&self) -> Result<String, Failure> {
        self.typed().map(|text| self.unescaped(&text))
    }

    fn typed(&self) -> Result<String, Failure> {
        let mut text = match (&self.prompt, &self.file) {
            (Some(prompt), _) if prompt != "-" => return Ok(prompt.clone()),
            (None, Some(file)) => read_text(file)?,
            (None, None) if io::stdin().is_terminal() => {
                return Err(no_prompt("no prompt is given"));
            }
            _ => match read_stdin()? {
                text if text.is_empty() => return Err(no_prompt("the prompt on stdin is empty")),
                text => text,
            },
        };
        if text.ends_with('\n') {
            text.pop();
        }
        Ok(text)
    }
}

/// What the escapes of `text` stand for, as llama.cpp has them: others stay as they are.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let (byte, len) = match (first, after) {
            (b'\\', [b'n', ..]) => (b'\n', 2),
            (b'\\', [b'r', ..]) => (b'\r', 2),
            (b'\\', [b't', ..]) => (b'\t', 2),
            (b'\\', [same @ (b'\'' | b'"' | b'\\'), ..]) => (*same, 2),
            (b'\\', [b'x', digits @ ..]) => {
                let digits = digits.get(..2).and_then(|digits| str::from_utf8(digits).ok());
                let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
                byte.map_or((first, 1), |byte| (byte, 4))
            }
            _ => (first, 1),
        };
        bytes.push(byte);
        rest = &rest[len..];
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn no_prompt(what: &str) -> Failure {
    Failure::Input(format!("{what}\ngive one with -p TEXT or -f FILE, or pipe a text in"))
}

/// The UTF-8 text of `file`.
///
/// # Errors
/// [`Failure::Input`] with the reason of the system.
pub fn read_text(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file)
        .map_err(|error| Failure::Input(format!("cannot read {}: {error}", file.display())))
}

fn read_stdin() -> Result<String, Failure> {
    let mut text = String::new();
    match io::stdin().lock().read_to_string(&mut text) {
        Ok(_) => Ok(text),
        Err(error) => Err(Failure::Input(format!("cannot read the prompt from stdin: {error}"))),
    }
}

/// The model's tokenizer and chat template.
///
/// # Errors
/// [`Failure::Input`] for a model without a tokenizer.
pub fn text(model: &Model) -> Result<&Text, Failure> {
    model.text().ok_or_else(|| {
        Failure::Input(format!("{}\nor give token ids: --tokens 1,2,3", model.no_text()))
    })
}

/// The token ids of `prompt`, with those that the tokenizer puts around a text if `add_special`.
///
/// # Errors
/// [`Failure::Input`] for no token at all, or a text that the tokenizer cannot encode.
pub fn encode(text: &Text, prompt: &str, add_special: bool) -> Result<Vec<u32>, Failure> {
    let tokens = text.tokenizer.encode(prompt, add_special)?;
    if tokens.is_empty() { Err(no_prompt("the prompt is empty")) } else { Ok(tokens) }
}
