//! Log-probabilities as OpenAI writes them: of a chat, and as they were of completions.

use super::completion::Endpoint;
use crate::Text;
use crate::engine::Logprobs;
use crate::server::choice::Token;
use serde::Serialize;
use serde_json::{Map, Value};

/// What stands for a probability of 0, whose logarithm JSON cannot write: vLLM's.
const LEAST: f64 = -9999.0;

/// Log-probabilities of some tokens.
#[derive(Serialize)]
#[serde(untagged)]
pub(super) enum LogprobsBody {
    Chat {
        content: Vec<ChatToken>,
        refusal: Option<()>,
    },
    Completions {
        tokens: Vec<String>,
        token_logprobs: Vec<Option<f64>>,
        top_logprobs: Vec<Option<Map<String, Value>>>,
        text_offset: Vec<usize>,
    },
}

#[derive(Serialize)]
pub(super) struct ChatToken {
    #[serde(flatten)]
    own: Spelt,
    top_logprobs: Vec<Spelt>,
}

/// A token, its log-probability and its text.
#[derive(Serialize)]
struct Spelt {
    token: String,
    logprob: f64,
    /// `null` for a model without a tokenizer.
    bytes: Option<Vec<u8>>,
}

impl LogprobsBody {
    pub fn new<'a>(
        endpoint: Endpoint,
        text: Option<&Text>,
        tokens: impl Iterator<Item = &'a Token>,
    ) -> Self {
        match endpoint {
            Endpoint::Chat => {
                let content = tokens.filter_map(|token| chat_token(text, token.logprobs.as_ref()?));
                LogprobsBody::Chat { content: content.collect(), refusal: None }
            }
            Endpoint::Completions => completion_logprobs(text, tokens),
        }
    }
}

/// Log-probabilities of `tokens`, as the texts of `/v1/responses` have them.
pub(super) fn text_logprobs(text: Option<&Text>, tokens: &[Token]) -> Value {
    let tokens: Vec<_> =
        tokens.iter().filter_map(|token| chat_token(text, token.logprobs.as_ref()?)).collect();
    serde_json::to_value(tokens).expect("texts and numbers are JSON")
}

fn chat_token(text: Option<&Text>, logprobs: &Logprobs) -> Option<ChatToken> {
    let Logprobs { token, logprob, ref top, .. } = *logprobs;
    let top = top.iter().map(|&(token, logprob)| Spelt::new(text, token, logprob));
    Some(ChatToken { own: Spelt::new(text, token, logprob), top_logprobs: top.collect() })
}

fn completion_logprobs<'a>(
    text: Option<&Text>,
    tokens: impl Iterator<Item = &'a Token>,
) -> LogprobsBody {
    let (mut spelt, mut logprobs, mut tops, mut offsets) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for Token { id, logprobs: of_token, offset } in tokens {
        spelt.push(spell(text, *id).0);
        logprobs.push(of_token.as_ref().map(|of_token| finite(of_token.logprob)));
        tops.push(of_token.as_ref().map(|of_token| {
            let own = (of_token.token, of_token.logprob);
            let mut top = Map::new();
            for &(token, logprob) in of_token.top.iter().chain([&own]) {
                // Of tokens with one text the most likely stands for all.
                top.entry(spell(text, token).0).or_insert_with(|| finite(logprob).into());
            }
            top
        }));
        offsets.push(*offset);
    }
    LogprobsBody::Completions {
        tokens: spelt,
        token_logprobs: logprobs,
        top_logprobs: tops,
        text_offset: offsets,
    }
}

impl Spelt {
    fn new(text: Option<&Text>, token: u32, logprob: f32) -> Self {
        let (spelt, bytes) = spell(text, token);
        Spelt { token: spelt, logprob: finite(logprob), bytes }
    }
}

fn finite(logprob: f32) -> f64 {
    f64::from(logprob).max(LEAST)
}

/// The text of a token and its bytes. A part of a character is written as OpenAI does, a token without a text as vLLM.
fn spell(text: Option<&Text>, token: u32) -> (String, Option<Vec<u8>>) {
    let Some((bytes, _)) = text.and_then(|text| text.tokenizer.token_bytes(token)) else {
        return (format!("token_id:{token}"), None);
    };
    let spelt = match str::from_utf8(&bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => {
            bytes.iter().fold("bytes:".to_owned(), |spelt, byte| spelt + &format!("\\x{byte:02x}"))
        }
    };
    (spelt, Some(bytes))
}
