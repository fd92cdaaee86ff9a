//! A prompt: text, a chat, or token ids.

use super::failure::Failure;
use clap::ArgGroup;
use halfwarp::{Message, Model, Text};

/// The arguments that make a prompt.
#[derive(clap::Args)]
#[command(group = ArgGroup::new("prompt_kind").required(true).args(["prompt", "tokens"]))]
pub struct PromptArgs {
    /// The prompt
    #[arg(short, long)]
    prompt: Option<String>,
    /// Token ids instead of a text, such as 1,2,3; needs no tokenizer
    #[arg(long, value_delimiter = ',', value_name = "IDS")]
    tokens: Vec<u32>,
}

/// The arguments that make a prompt a conversation.
#[derive(clap::Args)]
pub struct ChatArgs {
    /// Render the prompt with the model's chat template
    #[arg(long, conflicts_with = "tokens")]
    chat: bool,
    /// The system prompt of the chat
    #[arg(long, requires = "chat", value_name = "TEXT")]
    system: Option<String>,
}

impl PromptArgs {
    /// The prompt's token ids.
    pub fn token_ids(&self, model: &Model) -> Result<Vec<u32>, Failure> {
        match &self.prompt {
            Some(prompt) => encode(text(model)?, prompt, true),
            None => Ok(self.tokens.clone()),
        }
    }

    /// The token ids of the prompt as the user's turn of a chat, where one is asked for.
    pub fn chat_token_ids(&self, chat: &ChatArgs, model: &Model) -> Result<Vec<u32>, Failure> {
        match &self.prompt {
            Some(prompt) if chat.chat => {
                let mut messages = opening(chat.system.as_deref());
                messages.push(message("user", prompt));
                render(model, &messages)
            }
            _ => self.token_ids(model),
        }
    }
}

/// The start of a conversation.
pub fn opening(system: Option<&str>) -> Vec<Message> {
    system.map(|content| message("system", content)).into_iter().collect()
}

/// One turn of a conversation.
pub fn message(role: &str, content: &str) -> Message {
    Message::new(role, content)
}

/// The token ids of a conversation, up to where the assistant's answer begins.
pub fn render(model: &Model, messages: &[Message]) -> Result<Vec<u32>, Failure> {
    let text = text(model)?;
    let Some(template) = &text.chat_template else {
        return Err(Failure::Input("this model has no chat template: leave out --chat".to_owned()));
    };
    // The template writes the special tokens itself.
    encode(text, &template.render(messages, true)?, false)
}

/// The model's tokenizer and chat template.
pub fn text(model: &Model) -> Result<&Text, Failure> {
    model.text().ok_or_else(|| {
        Failure::Input("this model has no tokenizer\ngive token ids: --tokens 1,2,3".to_owned())
    })
}

/// The token ids of `prompt`, with those that the tokenizer puts around a text if `add_special`.
pub fn encode(text: &Text, prompt: &str, add_special: bool) -> Result<Vec<u32>, Failure> {
    let tokens = text.tokenizer.encode(prompt, add_special)?;
    if tokens.is_empty() {
        return Err(Failure::Input("the prompt is empty".to_owned()));
    }
    Ok(tokens)
}
