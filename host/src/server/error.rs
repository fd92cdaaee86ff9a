//! What a client is told when a request fails: OpenAI's error object, on the paths of Anthropic's
//! and Ollama's APIs theirs.

use crate::engine::{EngineError, SamplingError};
use crate::text::TextError;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

/// A failed request: `{"error": {"message", "type", "param", "code"}}` and its HTTP status.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    pub status: StatusCode,
    kind: &'static str,
    code: Option<&'static str>,
    param: Option<String>,
    message: String,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        ApiError { status, kind, code: None, param: None, message: message.into() }
    }

    /// The client's mistake.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// A parameter that is wrong.
    pub fn param(name: impl Into<String>, what: impl std::fmt::Display) -> Self {
        let name = name.into();
        let message = format!("{name}: {what}");
        ApiError { param: Some(name), ..Self::invalid(message) }
    }

    /// A parameter that asks for what the server cannot do.
    pub fn unsupported(name: impl Into<String>) -> Self {
        let code = Some("unsupported_parameter");
        ApiError { code, ..Self::param(name, "this is not supported yet") }
    }

    pub fn unknown_model(model: &str, served: &str) -> Self {
        let message = format!("the model `{model}` does not exist here: `{served}` does");
        let (code, param) = (Some("model_not_found"), Some("model".to_owned()));
        let status = StatusCode::NOT_FOUND;
        ApiError { status, code, param, ..Self::invalid(message) }
    }

    /// A model by another name, with what to do.
    pub fn unknown_name(message: String) -> Self {
        let (code, param) = (Some("model_not_found"), Some("model".to_owned()));
        ApiError { code, param, ..Self::status(StatusCode::NOT_FOUND, message) }
    }

    pub fn status(status: StatusCode, message: impl Into<String>) -> Self {
        ApiError { status, ..Self::invalid(message) }
    }

    pub fn unauthorized() -> Self {
        let message = "give one of the server's keys: Authorization: Bearer KEY";
        let code = Some("invalid_api_key");
        ApiError { code, ..Self::status(StatusCode::UNAUTHORIZED, message) }
    }

    /// The server takes no requests now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", message)
    }

    /// The server's mistake.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// A prompt that no context of this server holds.
    pub fn too_long(message: impl Into<String>) -> Self {
        ApiError { code: Some("context_length_exceeded"), ..Self::invalid(message) }
    }

    /// With a name for programs to go by.
    pub fn with_code(self, code: &'static str) -> Self {
        ApiError { code: Some(code), ..self }
    }

    /// With the parameter at fault.
    pub fn with_param(self, name: &str) -> Self {
        ApiError { param: Some(name.to_owned()), ..self }
    }

    /// The body of the response; `data` of a stream that fails.
    pub fn to_json(&self) -> Value {
        let ApiError { kind, code, param, message, .. } = self;
        json!({ "error": { "message": message, "type": kind, "param": param, "code": code } })
    }
}

impl ApiError {
    /// As Anthropic writes it: <https://docs.anthropic.com/en/api/errors>.
    pub fn to_anthropic(&self) -> Value {
        let kind = match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message } })
    }

    /// As Ollama writes it.
    pub fn to_ollama(&self) -> Value {
        json!({ "error": self.message })
    }

    /// Error for a response that is not stored, or no longer.
    pub fn unknown_response(id: &str) -> Self {
        let message = format!("the response `{id}` is not stored here, or no longer");
        ApiError::status(StatusCode::NOT_FOUND, message)
    }

    /// Error for a previous response, from which a request goes on, that is not stored.
    pub fn unknown_previous(id: &str) -> Self {
        let message = format!("the previous response `{id}` is not stored here, or no longer");
        let code = Some("previous_response_not_found");
        let error = ApiError::status(StatusCode::NOT_FOUND, message);
        ApiError { code, ..error }.with_param("previous_response_id")
    }
}

/// The error object of `response`, if it is one of a failure, in the `form` of another API.
pub(super) fn in_form(response: Response, form: fn(&ApiError) -> Value) -> Response {
    let (mut parts, body) = response.into_parts();
    match parts.extensions.remove::<ApiError>() {
        Some(error) => Response::from_parts(parts, form(&error).to_string().into()),
        None => Response::from_parts(parts, body),
    }
}

impl From<&EngineError> for ApiError {
    fn from(error: &EngineError) -> Self {
        let message = error.to_string();
        match error {
            EngineError::PromptTooLong { prompt_len, context } => {
                Self::too_long(format!(
                    "the prompt has {prompt_len} tokens, the context of this server {context}"
                ))
            }
            EngineError::EmptyPrompt
            | EngineError::NoGeneration
            | EngineError::Pooling { .. }
            | EngineError::UnknownToken { .. }
            | EngineError::Sampling(_)
            // A form that the request asks for, and too much of one.
            | EngineError::Sample { source: SamplingError::Constraint, .. } => {
                Self::invalid(message)
            }
            EngineError::QueueFull { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
            }
            EngineError::ShuttingDown | EngineError::Stopped(_) => Self::unavailable(message),
            _ => Self::internal(message),
        }
    }
}

impl From<EngineError> for ApiError {
    fn from(error: EngineError) -> Self {
        (&error).into()
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        Self::invalid(error.to_string())
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = json_response(self.status, &self.to_json());
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response.extensions_mut().insert(self);
        response
    }
}

/// A response of JSON.
pub(super) fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(body) => (status, [(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
