//! Requests to a worker, as Dynamo's frontend sends them.

use dynamo_backend_common::engine::GenerateContext;
use dynamo_backend_common::testing::{cancelling_context, mock_context};
use dynamo_backend_common::{
    AsyncEngineContext, BackendError, ErrorType, FinishReason, GuidedDecodingOptions, LLMEngine,
    LLMEngineOutput, OutputOptions, PreprocessedRequest, SamplingOptions, StopConditions,
};
use futures::StreamExt;
use halfwarp::{Device, EngineOptions, Model};
use halfwarp_dynamo::{Backend, BackendOptions};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/goldens/llama-gqa");

async fn started(model: &str) -> Backend {
    let model = Arc::new(Model::open(model).expect("`cargo xtask setup` fetches it"));
    let engine = EngineOptions {
        device: Device::Cpu,
        // Steps of other sizes have the same bits.
        batch_invariant: true,
        context: Some(512),
        ..Default::default()
    };
    let options = BackendOptions { model, model_name: "tested".to_owned(), engine };
    let backend = Backend::new(options);
    backend.start(0).await.unwrap();
    backend
}

/// Greedy, and not ended by a stop token.
fn request(prompt: &[u32], max_tokens: u32) -> PreprocessedRequest {
    PreprocessedRequest::builder()
        .model("tested".to_owned())
        .token_ids(prompt.to_vec())
        .stop_conditions(StopConditions {
            max_tokens: Some(max_tokens),
            ignore_eos: Some(true),
            ..Default::default()
        })
        .sampling_options(SamplingOptions { temperature: Some(0.0), ..Default::default() })
        .output_options(OutputOptions::default())
        .build()
        .unwrap()
}

async fn answer(backend: &Backend, request: PreprocessedRequest) -> Vec<LLMEngineOutput> {
    let stream = backend.generate(request, GenerateContext::new(mock_context(), None)).await;
    stream.unwrap().map(|output| output.unwrap()).collect().await
}

fn tokens(outputs: &[LLMEngineOutput]) -> Vec<u32> {
    outputs.iter().flat_map(|output| &output.token_ids).copied().collect()
}

/// What the frontend does when a worker dies: the tokens so far become part of the prompt.
#[tokio::test]
async fn another_worker_goes_on_where_one_has_died() {
    const NUM_TOKENS: u32 = 40;
    const NUM_BEFORE: u32 = 15;
    let prompt: Vec<u32> = (0..70).collect();
    let (first, second) = (started(TINY).await, started(TINY).await);
    let whole = tokens(&answer(&first, request(&prompt, NUM_TOKENS)).await);
    assert_eq!(whole.len(), NUM_TOKENS as usize);
    let replayed = [&prompt, &whole[..NUM_BEFORE as usize]].concat();
    let outputs = answer(&second, request(&replayed, NUM_TOKENS - NUM_BEFORE)).await;
    assert_eq!(tokens(&outputs), whole[NUM_BEFORE as usize..]);
    // Here nothing says whether it is a retry: the frontend counts alone.
    assert!(outputs.last().unwrap().completion_usage.is_none());
}

#[tokio::test]
async fn a_worker_that_goes_away_lets_another_one_go_on() {
    let backend = started(TINY).await;
    let context = GenerateContext::new(mock_context(), None);
    let mut stream = backend.generate(request(&[1, 2], 400), context).await.unwrap();
    assert_eq!(stream.next().await.unwrap().unwrap().token_ids.len(), 1);
    backend.cleanup().await.unwrap();
    let last = stream.collect::<Vec<_>>().await.pop().unwrap();
    let migrates = ErrorType::Backend(BackendError::EngineShutdown);
    assert_eq!(last.unwrap_err().error_type(), migrates);
    let context = GenerateContext::new(mock_context(), None);
    let refused = backend.generate(request(&[1], 1), context).await.err().unwrap();
    assert_eq!(refused.error_type(), migrates);
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_request() {
    let backend = started(TINY).await;
    let leaving: Arc<dyn AsyncEngineContext> = cancelling_context(Duration::from_millis(20));
    let context = GenerateContext::new(leaving, None);
    let stream = backend.generate(request(&[1, 2], 500), context).await.unwrap();
    let outputs: Vec<_> = stream.map(|output| output.unwrap()).collect().await;
    assert!(outputs.len() < 500);
    assert_eq!(outputs.last().unwrap().finish_reason, Some(FinishReason::Cancelled));
}

#[tokio::test]
async fn a_prompt_that_is_too_long_is_the_clients_mistake() {
    let backend = started(TINY).await;
    let context = GenerateContext::new(mock_context(), None);
    let refused = backend.generate(request(&[1; 513], 1), context).await.err().unwrap();
    assert_eq!(refused.error_type(), ErrorType::Backend(BackendError::InvalidArgument));
    assert!(refused.message().contains("513 tokens"), "{}", refused.message());
}

#[tokio::test]
async fn log_probabilities_come_with_their_tokens() {
    let backend = started(TINY).await;
    let mut request = request(&[1, 2], 3);
    request.output_options.logprobs = Some(2);
    let outputs = answer(&backend, request).await;
    for output in &outputs[..3] {
        let (logprobs, top) = (output.log_probs.clone().unwrap(), output.top_logprobs.as_ref());
        let top = &top.unwrap()[0];
        // Greedy: the token is the most likely one.
        assert_eq!((top.len(), top[0].rank, top[1].rank), (2, 1, 2));
        assert_eq!((top[0].token_id, top[0].logprob), (output.token_ids[0], logprobs[0]));
        assert!(top[1].logprob <= top[0].logprob && top[0].logprob < 0.0);
    }
}

#[tokio::test]
async fn an_answer_has_the_form_that_is_asked_for() {
    let backend = started("smollm2-135m-instruct").await;
    let model = Model::open("smollm2-135m-instruct").unwrap();
    let tokenizer = &model.text().unwrap().tokenizer;
    let mut request = request(&tokenizer.encode("A person as JSON:", false).unwrap(), 60);
    request.stop_conditions.ignore_eos = None;
    let schema = json!({
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 10, "maximum": 99}},
        "required": ["age"],
        "additionalProperties": false,
    });
    request.sampling_options.guided_decoding =
        Some(GuidedDecodingOptions { json: Some(schema), ..Default::default() });
    let outputs = answer(&backend, request).await;
    assert_eq!(outputs.last().unwrap().finish_reason, Some(FinishReason::Stop));
    let text = tokenizer.decode(&tokens(&outputs), true);
    let answer: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{text}"));
    let age = answer["age"].as_u64().unwrap();
    assert!((10..=99).contains(&age) && answer.as_object().unwrap().len() == 1, "{text}");
}
