//! The body of `/v1/chat/completions`.

use super::{Dialect, Params, message, take_top_logprobs, thinking};
use crate::server::app::App;
use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::tools::Tools;
use crate::text::{ChatPrompt, Message, RenderOptions};
use crate::{Model, Text};
use serde_json::{Map, Value};
use std::sync::Arc;

/// The body of `/v1/chat/completions`.
#[derive(Debug)]
pub(in crate::server) struct ChatRequest {
    pub params: Params,
    pub conversation: Conversation,
}

/// Messages, and how they become a prompt.
#[derive(Debug)]
pub(in crate::server) struct Conversation {
    pub messages: Vec<Message>,
    pub tools: Tools,
    /// Variables of the chat template.
    pub variables: Map<String, Value>,
    documents: Option<Vec<Value>>,
    add_generation_prompt: bool,
    continue_final_message: bool,
    add_special_tokens: bool,
}

impl ChatRequest {
    pub fn parse(body: &[u8], model: &Arc<Model>) -> Result<Self, ApiError> {
        let mut fields = Fields::parse(body)?;
        let conversation = Conversation::take(&mut fields)?;
        let with_logprobs = fields.take("logprobs")?.unwrap_or(false);
        let num_top = take_top_logprobs(&mut fields, "top_logprobs")?;
        if num_top.is_some_and(|num_top| num_top > 0) && !with_logprobs {
            return Err(ApiError::param("top_logprobs", "only with logprobs: true"));
        }
        let mut params = Params::take(&mut fields, model, Dialect::OpenAi)?;
        params.logprobs = with_logprobs.then(|| num_top.unwrap_or(0));
        fields.finish()?;
        if conversation.tools.are_required()
            && let Some(form) = params.form.take()
            // The form of texts, and there is none.
            && form.param() != "response_format"
        {
            let what = "tool_choice asks for a call: the answer can have no other form";
            return Err(ApiError::param(form.param(), what));
        }
        Ok(ChatRequest { params, conversation })
    }
}

impl Conversation {
    /// Conversation of messages and tools that another API writes in its own way.
    pub fn of(messages: Vec<Message>, tools: Tools, variables: Map<String, Value>) -> Self {
        Conversation {
            messages,
            tools,
            variables,
            documents: None,
            add_generation_prompt: true,
            continue_final_message: false,
            add_special_tokens: false,
        }
    }

    /// One whose last message the answer goes on.
    pub fn continued(self) -> Self {
        Conversation { add_generation_prompt: false, continue_final_message: true, ..self }
    }

    /// The messages of a request.
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let messages = fields.require::<Vec<Value>>("messages")?;
        if messages.is_empty() {
            return Err(ApiError::param("messages", "there has to be one at least"));
        }
        let messages = messages
            .into_iter()
            .enumerate()
            .map(|(index, message)| message::take(message, &format!("messages[{index}]")));
        Ok(Conversation {
            messages: messages.collect::<Result<_, _>>()?,
            tools: Tools::take(fields)?,
            variables: thinking::take_variables(fields)?,
            documents: fields.take::<Vec<Value>>("documents")?.filter(|list| !list.is_empty()),
            add_generation_prompt: fields.take("add_generation_prompt")?.unwrap_or(true),
            continue_final_message: fields.take("continue_final_message")?.unwrap_or(false),
            // The template writes them itself.
            add_special_tokens: fields.take("add_special_tokens")?.unwrap_or(false),
        })
    }

    /// The prompt, by the model's chat template.
    pub fn prompt(&self, app: &App) -> Result<ChatPrompt, ApiError> {
        let text = app.text()?;
        self.render(app, text, |messages, options| Ok(text.prompt(messages, options)?))
    }

    /// Whether each token of `prompt`, this conversation's, has text from outside; `None` where that is not known.
    pub fn outside_tokens(
        &self,
        app: &App,
        prompt: &ChatPrompt,
    ) -> Result<Option<Vec<bool>>, ApiError> {
        let text = app.text()?;
        self.render(app, text, |messages, options| {
            Ok(text.outside_tokens(prompt, messages, options, self.add_special_tokens)?)
        })
    }

    fn render<T>(
        &self,
        app: &App,
        text: &Text,
        make: impl FnOnce(&[Message], &RenderOptions<'_>) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let template = text.chat_template.as_ref().ok_or_else(|| {
            ApiError::invalid("this model has no chat template: use /v1/completions")
        })?;
        // The request's variables come last: they take the place of the server's.
        let mut variables = app.settings.chat_template_kwargs.clone();
        variables.extend(self.variables.clone());
        let options = RenderOptions {
            documents: self.documents.as_deref(),
            add_generation_prompt: self.add_generation_prompt,
            continue_final_message: self.continue_final_message,
            variables: Some(&variables),
            parse_special_in_content: app.settings.parse_special_in_content,
            ..RenderOptions::default()
        };
        self.tools.render(template, &self.messages, options, make)
    }

    /// The tokens of that prompt.
    pub fn encode(&self, app: &App, prompt: &ChatPrompt) -> Result<Vec<u32>, ApiError> {
        app.check_length(prompt.text())?;
        Ok(app.text()?.encode(prompt, self.add_special_tokens)?)
    }
}
