//! The engine's events as Dynamo's outputs.

use crate::error;
use dynamo_backend_common::{
    DynamoError, GenerateContext, LLMEngineOutput, LLMEngineOutputExt, PromptTokensDetails,
    TopLogprob, chunk, usage,
};
use futures::stream::BoxStream;
use halfwarp::engine::Logprobs;
use halfwarp::{FinishReason, Model, RequestEvent, RequestStream};
use std::sync::Arc;

/// An answer in progress.
pub struct Answer {
    /// The model, whose tokens have names.
    pub model: Arc<Model>,
    /// What happens to the request; dropping it cancels the request.
    pub events: RequestStream,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Whether the last output has the usage.
    pub has_usage: bool,
}

/// What is known of an answer so far.
#[derive(Default)]
struct Progress {
    cached_tokens: usize,
    num_tokens: usize,
    /// Log probabilities of the next token.
    logprobs: Option<Logprobs>,
}

/// An output a token, then one with the reason why there are no more; an error ends it too.
pub fn outputs(
    mut answer: Answer,
    ctx: GenerateContext,
) -> BoxStream<'static, Result<LLMEngineOutput, DynamoError>> {
    Box::pin(async_stream::stream! {
        let mut progress = Progress::default();
        loop {
            let event = tokio::select! {
                biased;
                () = ctx.stopped() => None,
                event = answer.events.next() => event,
            };
            let Some(event) = event else {
                yield Ok(answer.last(LLMEngineOutput::cancelled(), &progress));
                return;
            };
            let Some(output) = answer.output(event, &mut progress) else { continue };
            let is_last = !matches!(&output, Ok(LLMEngineOutput { finish_reason: None, .. }));
            yield output;
            if is_last {
                return;
            }
        }
    })
}

impl Answer {
    /// What there is to say of an event, if anything.
    fn output(
        &self,
        event: RequestEvent,
        progress: &mut Progress,
    ) -> Option<Result<LLMEngineOutput, DynamoError>> {
        match event {
            RequestEvent::Started { cached_tokens } => progress.cached_tokens = cached_tokens,
            RequestEvent::Logprobs(logprobs) => progress.logprobs = Some(logprobs),
            RequestEvent::Token(token) => {
                progress.num_tokens += 1;
                return Some(Ok(self.token_output(token, progress.logprobs.take())));
            }
            RequestEvent::Finished(reason) => {
                let output = match reason {
                    FinishReason::StopToken => LLMEngineOutput::stop(),
                    FinishReason::Length | FinishReason::ContextFull => LLMEngineOutput::length(),
                    // Nobody cancels but the service when it is stopped: another worker can go on.
                    FinishReason::Cancelled => {
                        return Some(Err(error::shut_down("the worker is shutting down")));
                    }
                };
                return Some(Ok(self.last(output, progress)));
            }
            RequestEvent::Failed(error) => return Some(Err(error::from_engine(&error))),
            // Nobody asks for the others.
            _ => {}
        }
        None
    }

    fn token_output(&self, token: u32, logprobs: Option<Logprobs>) -> LLMEngineOutput {
        let Some(Logprobs { logprob, top, .. }) = logprobs else { return chunk::token(token) };
        let top = top.into_iter().zip(1..).map(|((token_id, logprob), rank)| {
            let bytes = self.bytes(token_id);
            let token = bytes.as_deref().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
            TopLogprob { rank, token_id, token, logprob: logprob.into(), bytes }
        });
        LLMEngineOutput {
            log_probs: Some(vec![logprob.into()]),
            top_logprobs: Some(vec![top.collect()]),
            ..chunk::token(token)
        }
    }

    fn bytes(&self, token: u32) -> Option<Vec<u8>> {
        Some(self.model.text()?.tokenizer.token_bytes(token)?.0)
    }

    fn last(&self, output: LLMEngineOutput, progress: &Progress) -> LLMEngineOutput {
        if !self.has_usage {
            return output;
        }
        let count = |tokens: usize| u32::try_from(tokens).unwrap_or(u32::MAX);
        let mut usage = usage(count(self.prompt_len), count(progress.num_tokens));
        usage.prompt_tokens_details = Some(PromptTokensDetails {
            cached_tokens: Some(count(progress.cached_tokens)),
            ..PromptTokensDetails::default()
        });
        output.with_usage(usage)
    }
}
