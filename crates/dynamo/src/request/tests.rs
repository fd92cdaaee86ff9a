use super::*;
use dynamo_backend_common::{BackendError, ErrorType, OutputOptions};
use halfwarp::text::Text;
use std::path::Path;

const TESTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests");

/// A model whose stop token is 2, without sampling values.
fn model() -> Model {
    Model::open(Path::new(TESTS).join("goldens/llama-gqa")).unwrap()
}

fn request(change: impl FnOnce(&mut PreprocessedRequest)) -> PreprocessedRequest {
    let mut request = PreprocessedRequest::builder()
        .model("tiny".to_owned())
        .token_ids(vec![5, 6, 7])
        .stop_conditions(StopConditions::default())
        .sampling_options(SamplingOptions::default())
        .output_options(OutputOptions::default())
        .build()
        .unwrap();
    change(&mut request);
    request
}

fn engine(change: impl FnOnce(&mut PreprocessedRequest)) -> Request {
    to_engine(&model(), &request(change), None).unwrap()
}

fn error(
    change: impl FnOnce(&mut PreprocessedRequest),
    grammars: Option<&GrammarCompiler>,
) -> String {
    let error = to_engine(&model(), &request(change), grammars).unwrap_err();
    assert_eq!(error.error_type(), ErrorType::Backend(BackendError::InvalidArgument));
    error.message().to_owned()
}

#[test]
fn what_a_request_leaves_open_is_openais_or_the_models() {
    let request = engine(|_| {});
    assert_eq!(request.prompt, [5, 6, 7]);
    assert_eq!((request.max_new_tokens, request.logprobs, request.min_tokens), (None, None, 0));
    assert_eq!((request.sampling.temperature, request.sampling.top_p), (1.0, 1.0));
    assert_eq!(request.stop_tokens, [2]);
    assert_ne!(engine(|_| {}).sampling.seed, request.sampling.seed);
}

#[test]
fn what_a_request_names_is_passed_on() {
    let request = engine(|request| {
        request.stop_conditions.max_tokens = Some(9);
        request.stop_conditions.min_tokens = Some(3);
        request.stop_conditions.stop_token_ids = Some(vec![8]);
        request.stop_conditions.stop_token_ids_visible = Some(vec![4]);
        request.stop_conditions.stop_token_ids_hidden = Some(vec![2, 3]);
        request.eos_token_ids = vec![1];
        request.sampling_options.temperature = Some(0.5);
        request.sampling_options.top_k = Some(-1);
        request.sampling_options.seed = Some(-1);
        request.output_options.logprobs = Some(2);
    });
    assert_eq!((request.max_new_tokens, request.min_tokens), (Some(9), 3));
    assert_eq!(request.stop_tokens, [1, 2, 3, 4, 8]);
    assert_eq!((request.sampling.temperature, request.sampling.top_k), (0.5, 0));
    assert_eq!((request.sampling.seed, request.logprobs), (u64::MAX, Some(2)));
}

#[test]
fn where_the_end_is_ignored_only_the_users_tokens_stop() {
    let request = engine(|request| {
        request.stop_conditions.ignore_eos = Some(true);
        request.stop_conditions.stop_token_ids = Some(vec![8]);
        request.stop_conditions.stop_token_ids_hidden = Some(vec![3]);
        request.eos_token_ids = vec![2];
    });
    assert_eq!(request.stop_tokens, [8]);
}

#[test]
fn dynamos_most_urgent_is_the_engines() {
    let of = |hints: serde_json::Value| {
        let request = engine(|request| request.routing = serde_json::from_value(hints).unwrap());
        (request.priority, request.cache_salt)
    };
    assert_eq!(of(json!({"priority": 5})), (-5, None));
    assert_eq!(of(json!({"priority": i32::MIN})), (i32::MAX, None));
    assert_eq!(of(json!({"cache_salt": "a"})), (0, Some("a".to_owned())));
}

#[test]
fn what_is_not_supported_is_refused() {
    assert!(error(|request| request.sampling_options.n = Some(2), None).ends_with("n above 1"));
    assert!(error(|request| request.sampling_options.top_k = Some(-2), None).contains("top_k"));
    let embeds = |request: &mut PreprocessedRequest| request.prompt_embeds = Some(String::new());
    assert!(error(embeds, None).ends_with("prompt_embeds"));
}

#[test]
fn a_form_becomes_a_grammar() {
    let text = Text::from_dir(&Path::new(TESTS).join("fixtures/text/byte_level")).unwrap().unwrap();
    let compiler = GrammarCompiler::new(&text.tokenizer, 1105, &[1102]).unwrap();
    let guided = |guided: serde_json::Value| {
        move |request: &mut PreprocessedRequest| {
            request.sampling_options.guided_decoding = serde_json::from_value(guided).unwrap();
        }
    };
    for form in [
        json!({"json": {"type": "object"}}),
        json!({"json": "{\"type\": \"object\"}"}),
        json!({"regex": "a+"}),
        json!({"choice": ["yes", "\"no\""]}),
        json!({"grammar": "start: \"a\""}),
    ] {
        let request = to_engine(&model(), &request(guided(form.clone())), Some(&compiler));
        assert!(request.unwrap().constraint.is_some(), "{form}");
        assert!(error(guided(form), None).contains("can have no form"));
    }
    assert!(engine(guided(json!({}))).constraint.is_none());
    for (form, why) in [
        (json!({"json": {"type": 1}}), "the JSON schema"),
        (json!({"regex": "("}), "the regular expression"),
        (json!({"choice": []}), "a choice of no text"),
        (json!({"regex": "a", "choice": ["b"]}), "one form only"),
        (json!({"structural_tag": {}}), "structural tags"),
    ] {
        let message = error(guided(form.clone()), Some(&compiler));
        assert!(message.contains(why), "{form}: {message}");
    }
}
