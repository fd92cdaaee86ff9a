//! How a decoder that is trained to rank is asked: Qwen3-Reranker's prompt, whose answer is `yes`
//! or `no`.
//!
//! Source: <https://huggingface.co/Qwen/Qwen3-Reranker-0.6B>, arXiv:2506.05176.

use crate::server::app::App;
use crate::server::error::ApiError;
use crate::text::{ChatTemplate, Guard, Message, RenderOptions, Text, TextError};

/// What makes a document a good one where a request does not say.
const INSTRUCTION: &str =
    "Given a web search query, retrieve relevant passages that answer the query";
const SYSTEM: &str = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".";
/// What the model may answer.
const ANSWERS: [&str; 2] = ["yes", "no"];

/// A model that ranks.
#[derive(Debug)]
pub(in crate::server) struct Judge {
    /// The tokens of [`ANSWERS`].
    pub tokens: [u32; 2],
    /// Writes the prompt: what a query or a document spells is text.
    guard: Guard,
}

impl Judge {
    /// `None` for a model that is not trained for it: nothing in its weights says so, but its name,
    /// its chat template or the kind of pooling in a GGUF file does.
    pub fn of(app: &App) -> Result<Option<&Self>, ApiError> {
        let text = app.text()?;
        let judge =
            app.judge.get_or_init(|| Self::new(app, text).map_err(|error| error.to_string()));
        judge.as_ref().map(Option::as_ref).map_err(ApiError::invalid)
    }

    fn new(app: &App, text: &Text) -> Result<Option<Self>, TextError> {
        let path = app.model.checkpoint().path().to_string_lossy();
        let of_file = path.rsplit(['/', '\\']).next().unwrap_or_default();
        let is_named = [&*app.settings.name, of_file].iter().any(|name| {
            let name = name.to_lowercase();
            name.contains("qwen3") && name.contains("rerank")
        });
        let template = text.chat_template.as_ref();
        if !is_named
            && !app.model.decoder().pooler().ranks()
            && !template.is_some_and(|template| template.source().contains(&SYSTEM[..46]))
        {
            return Ok(None);
        }
        let token = |answer: &str| {
            let ids = text.tokenizer.encode(answer, false)?;
            match ids[..] {
                [id] => Ok(id),
                _ => {
                    let what = format!("the model's tokenizer has no token `{answer}`");
                    Err(TextError::Encode(format!("{what}: it can't rank as its name says")))
                }
            }
        };
        let template = ChatTemplate::from_source(&format!(
            "<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n\
             <Instruct>: {{{{ messages[0].content }}}}\n<Query>: {{{{ messages[1].content }}}}\n\
             <Document>: {{{{ messages[2].content }}}}<|im_end|>\n\
             <|im_start|>assistant\n<think>\n\n</think>\n{{{{ '\\n' }}}}"
        ));
        let guard = Guard::new(&text.tokenizer, &template)?;
        Ok(Some(Judge { tokens: [token(ANSWERS[0])?, token(ANSWERS[1])?], guard }))
    }

    /// The tokens of the prompt that asks whether `document` fits `query`.
    pub fn prompt(
        &self,
        app: &App,
        instruction: Option<&str>,
        query: &str,
        document: &str,
    ) -> Result<Vec<u32>, ApiError> {
        let texts = [instruction.unwrap_or(INSTRUCTION), query, document];
        let messages = texts.map(|text| Message::new("user", text));
        let prompt = self.guard.prompt(&messages, &RenderOptions::default())?;
        app.check_length(prompt.text())?;
        Ok(self.guard.ids(&app.text()?.tokenizer, &prompt)?)
    }
}

/// The probability of `yes` among both, by the log-probabilities of `yes` and `no`.
pub(super) fn score(logprobs: &[f32]) -> f64 {
    match *logprobs {
        [yes, no] if yes.is_finite() || no.is_finite() => {
            (1.0 + (f64::from(no) - f64::from(yes)).exp()).recip()
        }
        _ => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_is_the_softmax_of_yes_and_no() {
        let oracle = |yes: f64, no: f64| yes.exp() / (yes.exp() + no.exp());
        for (yes, no) in [(-0.1, -3.0), (-7.5, -7.5), (-20.0, -1.0)] {
            assert!((score(&[yes as f32, no as f32]) - oracle(yes, no)).abs() < 1e-6);
        }
        let never = f32::NEG_INFINITY;
        assert_eq!(score(&[never, -1.0]), 0.0);
        assert_eq!(score(&[-1.0, never]), 1.0);
        assert_eq!(score(&[never, never]), 0.0);
    }
}
