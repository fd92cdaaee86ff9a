//! The paths that answer prompts.

use super::SharedSite;
use super::native::fill_in;
use crate::engine::Constraint;
use crate::server::answer::{
    Asked, Completion, Destination, Endpoint, MessageObject, Prompted, ResponseObject, respond,
};
use crate::server::app::{App, new_id};
use crate::server::body::RequestBody;
use crate::server::choice::{Choice, MAX_PARTS, Part};
use crate::server::common::unix_time;
use crate::server::error::{ApiError, json_response};
use crate::server::request::{
    ChatRequest, CompletionRequest, Conversation, MessagesRequest, Params, Prompt, ResponseRequest,
};
use crate::server::site::Chosen;
use crate::server::timed::Timed;
use crate::server::tools::AnswerRules;
use crate::text::Gap;
use crate::text::answer::OptionalCalls;
use crate::{LazyGrammar, Triggers};
use axum::extract::{Path, Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::mpsc;

pub(super) async fn chat_completions(
    Chosen(app): Chosen,
    request: Request,
) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let ChatRequest { params, conversation } = ChatRequest::parse(body, &app.model)?;
        prompted(app, params, &conversation)
    };
    let (params, rules, prompts) = body.parse(&app, parse).await?;
    complete(&app, Endpoint::Chat, params, rules, prompts).await
}

pub(super) async fn completions(
    Chosen(app): Chosen,
    request: Request,
) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let mut request = CompletionRequest::parse(body, &app.model)?;
        check_params(app, &mut request.params, request.prompts.len())?;
        let prompts = encode_prompts(app, &mut request)?;
        Ok((request.params, prompts))
    };
    let (params, prompts) = body.parse(&app, parse).await?;
    complete(&app, Endpoint::Completions, params, None, prompts).await
}

pub(super) async fn responses(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let request = ResponseRequest::parse(body, &app.model, &app.common.store)?;
        let prompted = prompted(app, request.params, &request.conversation)?;
        Ok((prompted, request.settings, request.stored_input))
    };
    let ((params, rules, prompts), settings, input) = body.parse(&app, parse).await?;
    let parts = submit(&app, &params, rules, false, &prompts)?;
    let destination =
        input.map(|input| Destination { store: Arc::clone(&app.common.store), input });
    let asked = asked(&app, "resp_", &params, prompts);
    let writer = ResponseObject::new(asked, Arc::clone(&app.model), settings, destination);
    Ok(respond(writer, params.stream, parts).await)
}

/// A response that is stored.
pub(super) async fn stored_response(
    State(site): SharedSite,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    Ok(json_response(StatusCode::OK, &site.common.store.get(&id)?))
}

pub(super) async fn delete_response(
    State(site): SharedSite,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    site.common.store.delete(&id)?;
    let body = json!({ "id": id, "object": "response", "deleted": true });
    Ok(json_response(StatusCode::OK, &body))
}

pub(super) async fn messages(Chosen(app): Chosen, request: Request) -> Result<Response, ApiError> {
    app.ready()?;
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let MessagesRequest { params, conversation } = MessagesRequest::parse(body, &app.model)?;
        prompted(app, params, &conversation)
    };
    let (params, rules, prompts) = body.parse(&app, parse).await?;
    let parts = submit(&app, &params, rules, false, &prompts)?;
    let writer = MessageObject::new(asked(&app, "msg_", &params, prompts), params.stop);
    Ok(respond(writer, params.stream, parts).await)
}

/// How many tokens the prompt of `/v1/messages` has.
pub(super) async fn count_tokens(
    Chosen(app): Chosen,
    request: Request,
) -> Result<Response, ApiError> {
    let body = RequestBody::read(&app, request).await?;
    let parse = |app: &App, body: &[u8]| {
        let request = MessagesRequest::parse_count(body, &app.model)?;
        app.check_model(request.params.model.as_deref())?;
        let prompt = request.conversation.prompt(app)?;
        request.conversation.encode(app, &prompt)
    };
    let ids = body.parse(&app, parse).await?;
    Ok(json_response(StatusCode::OK, &json!({ "input_tokens": ids.len() })))
}

/// What is asked of an answer, how it is taken apart, and its prompt.
pub(super) type Asking = (Params, Option<Arc<AnswerRules>>, Vec<Prompted>);

/// The prompt of a conversation, how its answer is taken apart, and what is asked of it.
pub(super) fn prompted(
    app: &App,
    mut params: Params,
    conversation: &Conversation,
) -> Result<Asking, ApiError> {
    let prompt = conversation.prompt(app)?;
    app.note_neutralised(prompt.num_neutralised());
    let (text, tools) = (app.text()?, &conversation.tools);
    let reasoning = params.reasoning.as_ref().unwrap_or(&app.settings.reasoning);
    let rules = tools.rules(text, prompt.text(), reasoning);
    if let Some(form) = tools.form(text, prompt.text(), reasoning) {
        params.form = Some(form);
    }
    let optional = match params.form {
        None => tools.optional(text, prompt.text(), reasoning),
        Some(_) => None,
    };
    check_params(app, &mut params, 1)?;
    if let Some(calls) = optional {
        params.constraint = lazy(app, calls);
    }
    if let Some(rules) = &rules {
        params.stop_at(&rules.stop_tokens);
        params.constraint = rules.constraint(&app.model, params.constraint, params.thinking_budget);
    }
    let ids = conversation.encode(app, &prompt)?;
    Ok((params, rules, vec![Prompted { ids, echo: String::new() }]))
}

/// The constraint of calls from their first mark on. `None` where there is no grammar of the tools' schemas: such calls are
/// as the model writes them.
fn lazy(app: &App, calls: OptionalCalls) -> Option<Arc<dyn Constraint>> {
    let OptionalCalls { triggers, is_first, lark, begun } = calls;
    let grammar = |lark: &str| {
        let grammar = Arc::new(app.grammars().ok()?.lark(lark).ok()?);
        Some(Arc::new(Timed::new(grammar, app.metrics.grammar_mask.clone())))
    };
    let triggers = Triggers { texts: triggers, is_first };
    let lazy = LazyGrammar::new(Arc::clone(&app.model), triggers, grammar(&lark)?);
    Some(Arc::new(match begun {
        Some((text, lark)) => lazy.with_begun(text, grammar(&lark)?),
        None => lazy,
    }))
}

/// What a request may ask of this server; makes the constraint of its answers.
pub(super) fn check_params(
    app: &App,
    params: &mut Params,
    num_prompts: usize,
) -> Result<(), ApiError> {
    app.check_model(params.model.as_deref())?;
    let (asked, max) = (params.n.saturating_mul(num_prompts), app.common.options.max_choices);
    if asked > max {
        let what = format!("{asked} answers in all, this server gives at most {max} a request");
        return Err(ApiError::param("n", what));
    }
    app.check_priority(params.priority)?;
    let context = app.healthy()?.context();
    if let Some(wanted) = params.min_context.filter(|&wanted| wanted > context) {
        let what = format!("{wanted} tokens, and the context of this server has {context}");
        return Err(ApiError::param("num_ctx", what));
    }
    if let Some(max) = params.max_new_tokens.filter(|&max| max < params.min_tokens) {
        let what = format!("{} tokens, and at most {max} are asked for", params.min_tokens);
        return Err(ApiError::param("min_tokens", what));
    }
    if !params.stop.is_empty() {
        app.text()?;
    }
    if let Some(form) = &params.form {
        let grammar = Arc::new(form.grammar(app.grammars()?)?);
        let timed = Timed::new(Arc::clone(&grammar), app.metrics.grammar_mask.clone());
        params.constraint = Some(Arc::new(timed));
        params.grammar = Some(grammar);
    }
    Ok(())
}

fn encode_prompts(app: &App, request: &mut CompletionRequest) -> Result<Vec<Prompted>, ApiError> {
    let CompletionRequest { params, prompts, suffix, add_special_tokens, echo } = request;
    let mut encode = |prompt: &Prompt| {
        let ids = match (prompt, &suffix) {
            (Prompt::Text(prefix), Some(suffix)) => {
                let (prefix, suffix) = (prefix.clone(), suffix.clone());
                fill_in(app, params, &Gap { prefix, suffix, files: Vec::new() })?
            }
            _ => prompt.encode(app, *add_special_tokens)?,
        };
        let echo = match (*echo, prompt) {
            (false, _) => String::new(),
            (true, Prompt::Text(text)) => text.clone(),
            (true, Prompt::Ids(ids)) => {
                app.model.text().map_or_else(String::new, |text| text.tokenizer.decode(ids, true))
            }
        };
        Ok(Prompted { ids, echo })
    };
    prompts.iter().map(&mut encode).collect()
}

/// Answers prompts of a chat or of completions.
async fn complete(
    app: &App,
    endpoint: Endpoint,
    params: Params,
    rules: Option<Arc<AnswerRules>>,
    prompts: Vec<Prompted>,
) -> Result<Response, ApiError> {
    let is_chat = endpoint == Endpoint::Chat;
    let parts = submit(app, &params, rules, !is_chat, &prompts)?;
    let prefix = if is_chat { "chatcmpl-" } else { "cmpl-" };
    let writer = Completion {
        asked: asked(app, prefix, &params, prompts),
        endpoint,
        include_usage: params.include_usage,
        return_token_ids: params.return_token_ids,
        logprobs: params.logprobs.is_some(),
        scores_prompt: params.scores_prompt,
        warnings: Vec::new(),
        model: Arc::clone(&app.model),
    };
    Ok(respond(writer, params.stream, parts).await)
}

pub(super) fn asked(app: &App, prefix: &str, params: &Params, prompts: Vec<Prompted>) -> Asked {
    Asked {
        id: new_id(prefix),
        created: unix_time(),
        model: app.settings.name.clone(),
        n: params.n,
        prompts,
    }
}

/// Gives the prompts to the engine; returns where the parts of the answers come. `continues`: their texts go on those of
/// the prompts.
pub(super) fn submit(
    app: &App,
    params: &Params,
    rules: Option<Arc<AnswerRules>>,
    continues: bool,
    prompts: &[Prompted],
) -> Result<mpsc::Receiver<Part>, ApiError> {
    let engine = app.ready()?;
    let requests = prompts.iter().flat_map(|prompt| params.requests(&app.model, &prompt.ids));
    let streams = engine.submit_all(requests.collect())?;
    let (sender, parts) = mpsc::channel(MAX_PARTS);
    let scored = |prompt: usize| params.scores_prompt.then(|| prompts[prompt].ids.clone());
    for (index, stream) in streams.into_iter().enumerate() {
        let choice = Choice {
            index,
            stream,
            model: Arc::clone(&app.model),
            metrics: Arc::clone(&app.metrics),
            stop: params.stop.clone(),
            rules: rules.clone(),
            continues,
            logprobs: params.logprobs.is_some(),
            grammar: params.grammar.clone(),
            lines: params.lines,
            scored_prompt: scored(index / params.n),
            write_timeout: app.common.options.write_timeout,
        };
        tokio::spawn(choice.run(sender.clone()));
    }
    Ok(parts)
}
