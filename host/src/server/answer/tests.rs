//! What the tests of writers share.

use super::*;
use axum::body::to_bytes;
use tokio::runtime;

pub(super) fn asked(prompt_len: usize) -> Asked {
    let prompts = vec![Prompted { ids: vec![1; prompt_len], echo: String::new() }];
    Asked { id: "id_1".to_owned(), created: 1, model: "m".to_owned(), n: 1, prompts }
}

/// A text that a token of its own brings.
pub(super) fn text(text: &str) -> PartKind {
    let token = Some(Token { id: 1, logprobs: None, offset: 0 });
    PartKind::Text { text: text.to_owned(), token }
}

pub(super) fn reasoning(text: &str) -> PartKind {
    let token = Some(Token { id: 1, logprobs: None, offset: 0 });
    PartKind::Reasoning { text: text.to_owned(), token }
}

/// Call number `call` of `name`, with arguments that come in two pieces.
pub(super) fn call(call: usize, name: &str, [first, second]: [&str; 2]) -> [PartKind; 3] {
    let json = |json: &str| PartKind::CallArguments { call, json: json.to_owned() };
    let (id, name) = (format!("call_{call}"), name.to_owned());
    [PartKind::CallBegin { call, id, name }, json(first), json(second)]
}

/// The data of the events that `parts` become, each with its name.
pub(super) fn streamed(writer: impl Writer, parts: Vec<PartKind>) -> Vec<(String, Value)> {
    let body = body(writer, true, parts);
    let event = |event: &str| {
        let (name, data) = event.strip_prefix("event: ").unwrap().split_once("\ndata: ").unwrap();
        (name.to_owned(), serde_json::from_str(data).unwrap())
    };
    body.split("\n\n").filter(|event| !event.is_empty()).map(event).collect()
}

/// The one object that they become.
pub(super) fn whole(writer: impl Writer, parts: Vec<PartKind>) -> Value {
    serde_json::from_str(&body(writer, false, parts)).unwrap()
}

/// The body of the response.
pub(super) fn body(writer: impl Writer, stream: bool, parts: Vec<PartKind>) -> String {
    let (sender, receiver) = mpsc::channel(parts.len());
    for kind in parts {
        sender.try_send(Part { index: 0, kind }).unwrap();
    }
    drop(sender);
    let runtime = runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let body = respond(writer, stream, receiver).await.into_body();
        String::from_utf8(to_bytes(body, usize::MAX).await.unwrap().to_vec()).unwrap()
    })
}
