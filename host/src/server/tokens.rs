//! `/tokenize`, `/detokenize` and `/tokenizer_info`: in vLLM's shapes, and where a text is `content` in llama.cpp's.

use super::app::App;
use super::error::{ApiError, json_response};
use super::fields::Fields;
use super::request::{Conversation, encode, take_mixed};
use crate::text::ChatTemplate;
use axum::http::StatusCode;
use axum::response::Response;
use serde_json::{Map, Value, json};

/// The token ids of a text, or of a conversation.
pub(super) fn tokenize(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    app.check_model(fields.take::<String>("model")?.as_deref())?;
    if fields.has("content") {
        return tokenize_content(app, fields);
    }
    let with_texts = fields.take("return_token_strs")?.unwrap_or(false);
    let text = app.text()?;
    let mut from_outside = None;
    let tokens = match fields.take::<String>("prompt")? {
        Some(prompt) => {
            let add_special = fields.take("add_special_tokens")?.unwrap_or(true);
            text.tokenizer.encode(&prompt, add_special)?
        }
        None => {
            let conversation = Conversation::take(&mut fields)?;
            let prompt = conversation.prompt(app)?;
            if fields.take("return_from_outside")?.unwrap_or(false) {
                from_outside = Some(conversation.outside_tokens(app, &prompt)?);
            }
            conversation.encode(app, &prompt)?
        }
    };
    fields.finish()?;
    let spelt = |&id: &u32| text.tokenizer.id_to_token(id);
    let texts = with_texts.then(|| tokens.iter().map(spelt).collect::<Vec<_>>());
    let mut body = json!({
        "count": tokens.len(),
        "max_model_len": app.healthy()?.context(),
        "tokens": tokens,
        "token_strs": texts,
    });
    if let Some(from_outside) = from_outside {
        body["from_outside"] = from_outside.into();
    }
    Ok(json_response(StatusCode::OK, &body))
}

/// The token ids of a text, or of texts and ids, as llama.cpp writes them.
fn tokenize_content(app: &App, mut fields: Fields) -> Result<Response, ApiError> {
    let kinds = || ApiError::param("content", "it has to be a text or a list of texts and ids");
    let content = take_mixed(fields.require("content")?).ok_or_else(kinds)?;
    let add_special = fields.take("add_special")?.unwrap_or(false);
    let parse_special = fields.take("parse_special")?.unwrap_or(true);
    let with_pieces = fields.take("with_pieces")?.unwrap_or(false);
    fields.finish()?;
    let tokens = encode(app, &content, add_special, parse_special)?;
    let tokenizer = &app.text()?.tokenizer;
    let piece = |id: &u32| {
        let bytes = tokenizer.token_bytes(*id).map_or_else(Vec::new, |(bytes, _)| bytes);
        match String::from_utf8(bytes) {
            Ok(text) => json!({ "id": id, "piece": text }),
            Err(error) => json!({ "id": id, "piece": error.as_bytes() }),
        }
    };
    let tokens = match with_pieces {
        true => tokens.iter().map(piece).collect::<Vec<_>>().into(),
        false => json!(tokens),
    };
    Ok(json_response(StatusCode::OK, &json!({ "tokens": tokens })))
}

/// What there is to know of the tokenizer, under the names of transformers' `tokenizer_config.json`.
pub(super) fn tokenizer_info(app: &App) -> Result<Response, ApiError> {
    let text = app.text()?;
    let template = text.chat_template.as_ref();
    let special = text.tokenizer.special_tokens();
    let added: Map<String, Value> = special
        .iter()
        .map(|(id, token)| (id.to_string(), json!({ "content": token, "special": true })))
        .collect();
    let special: Vec<&String> = special.iter().map(|(_, token)| token).collect();
    let body = json!({
        // What transformers makes of any `tokenizer.json`.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "vocab_size": text.tokenizer.vocab_size(),
        "model_max_length": app.healthy()?.context(),
        "bos_token": template.and_then(ChatTemplate::bos_token),
        "eos_token": template.and_then(ChatTemplate::eos_token),
        "additional_special_tokens": special,
        "added_tokens_decoder": added,
        "stop_token_ids": text.stop_tokens,
        "chat_template": template.map(ChatTemplate::source),
    });
    Ok(json_response(StatusCode::OK, &body))
}

/// The text of token ids.
pub(super) fn detokenize(app: &App, body: &[u8]) -> Result<Response, ApiError> {
    let mut fields = Fields::parse(body)?;
    app.check_model(fields.take::<String>("model")?.as_deref())?;
    let tokens = fields.require::<Vec<u32>>("tokens")?;
    fields.finish()?;
    let tokenizer = &app.text()?.tokenizer;
    if let Some(token) = tokens.iter().find(|&&token| tokenizer.id_to_token(token).is_none()) {
        return Err(ApiError::param("tokens", format!("the tokenizer has no token {token}")));
    }
    let text = tokenizer.decode(&tokens, false);
    // vLLM's name, and llama.cpp's.
    let body = json!({ "prompt": text, "content": text });
    Ok(json_response(StatusCode::OK, &body))
}
