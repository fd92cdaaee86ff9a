use super::*;
use crate::engine::SamplerStep;
use std::sync::LazyLock;

/// A vocabulary of 256 tokens, and no tokenizer.
pub(super) static MODEL: LazyLock<Arc<Model>> = LazyLock::new(|| {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
    Arc::new(Model::open(golden).unwrap())
});

fn with(field: &str) -> Vec<u8> {
    format!(r#"{{"prompt": [1, 2], "messages": [{{"role": "user", "content": "Hi"}}], {field}}}"#)
        .into_bytes()
}

/// A completion of `[1, 2]` with one more field.
fn completion(field: &str) -> Result<CompletionRequest, ApiError> {
    let body: Value = serde_json::from_slice(&with(field)).unwrap();
    let mut body = body.as_object().unwrap().clone();
    body.remove("messages");
    CompletionRequest::parse(Value::from(body).to_string().as_bytes(), &MODEL)
}

/// A chat of `Hi` with one more field.
fn chat(field: &str) -> Result<ChatRequest, ApiError> {
    let body: Value = serde_json::from_slice(&with(field)).unwrap();
    let mut body = body.as_object().unwrap().clone();
    body.remove("prompt");
    ChatRequest::parse(Value::from(body).to_string().as_bytes(), &MODEL)
}

fn error(result: Result<CompletionRequest, ApiError>) -> (String, Value) {
    let body = result.unwrap_err().to_json();
    (body["error"]["message"].as_str().unwrap().to_owned(), body["error"]["param"].clone())
}

#[test]
fn every_field_reaches_the_engine() {
    let request = completion(
        r#""max_tokens": 7, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1,
           "repetition_penalty": 1.2, "presence_penalty": -1, "frequency_penalty": 2, "seed": 9,
           "logit_bias": {"5": -100, "6": 1.5}, "n": 2, "stop_token_ids": [8], "ignore_eos": true,
           "stop": ["a", "b"], "stream": true, "stream_options": {"include_usage": true},
           "echo": true, "return_token_ids": true, "cache_salt": "Ada's", "priority": -3, "user": "me", "best_of": 2,
           "logprobs": 4, "min_tokens": 3"#,
    )
    .unwrap();
    let CompletionRequest { params, prompts, echo, .. } = request;
    assert_eq!((prompts, echo), (vec![Prompt::Ids(vec![1, 2])], true));
    assert!(params.stream && params.include_usage && params.return_token_ids);
    assert_eq!(params.stop, ["a", "b"]);
    let [first, second] = &params.requests(&MODEL, &[1, 2])[..] else { panic!("n is 2") };
    assert_eq!((&first.prompt[..], first.max_new_tokens), (&[1, 2][..], Some(7)));
    assert_eq!((&first.stop_tokens[..], first.min_tokens), (&[8][..], 3));
    assert_eq!((first.logprobs, first.prompt_logprobs), (Some(4), Some(4)));
    let passed = |request: &Request| (request.cache_salt.clone(), request.priority);
    assert_eq!([first, second].map(passed), [(); 2].map(|()| (Some("Ada's".to_owned()), -3)));
    let wanted = Sampling {
        temperature: 0.5,
        top_k: 3,
        top_p: 0.9,
        min_p: 0.1,
        repetition_penalty: 1.2,
        presence_penalty: -1.0,
        frequency_penalty: 2.0,
        logit_bias: vec![(5, -100.0), (6, 1.5)],
        seed: 9,
    };
    assert_eq!(first.sampling, wanted);
    assert_eq!(second.sampling, Sampling { seed: 10, ..wanted });
}

#[test]
fn defaults_are_openais() {
    let params = completion(r#""echo": false"#).unwrap().params;
    let [request] = &params.requests(&MODEL, &[1])[..] else { panic!("n is 1") };
    assert_eq!((request.max_new_tokens, request.sampling.temperature), (Some(16), 1.0));
    assert_eq!(request.stop_tokens, MODEL.stop_tokens());
    assert_eq!((&request.cache_salt, request.priority, request.min_tokens), (&None, 0, 0));
    assert_eq!((request.logprobs, request.prompt_logprobs), (None, None));
    let params = chat(r#""stream": false"#).unwrap().params;
    assert_eq!((params.max_new_tokens, params.n, params.stream), (None, 1, false));
    let both = r#""max_tokens": 5, "max_completion_tokens": 6"#;
    assert_eq!(chat(both).unwrap().params.max_new_tokens, Some(6));
    let all = completion(r#""top_k": -1, "seed": -7"#).unwrap().params.sampling;
    assert_eq!((all.top_k, all.seed), (0, -7_i64 as u64));
    let drawn = || completion(r#""seed": -1"#).unwrap().params.requests(&MODEL, &[1]).remove(0);
    assert_ne!(drawn().sampling.seed, drawn().sampling.seed);
    for field in [r#""max_tokens": -1"#, r#""n_predict": -2"#, r#""max_completion_tokens": -1"#] {
        assert_eq!(completion(field).unwrap().params.max_new_tokens, None, "{field}");
    }
}

#[test]
fn logprobs_are_asked_for_in_two_ways() {
    let of = |params: &Params| {
        let [request] = &params.requests(&MODEL, &[1])[..] else { panic!("n is 1") };
        (request.logprobs, request.prompt_logprobs)
    };
    let of_completion = |field: &str| of(&completion(field).unwrap().params);
    assert_eq!(of_completion(r#""logprobs": 0"#), (Some(0), None));
    assert_eq!(of_completion(r#""logprobs": 5, "echo": true"#), (Some(5), Some(5)));
    assert_eq!(of_completion(r#""echo": true"#), (None, None));
    let of_chat = |field: &str| of(&chat(field).unwrap().params);
    assert_eq!(of_chat(r#""logprobs": true"#), (Some(0), None));
    assert_eq!(of_chat(r#""logprobs": true, "top_logprobs": 20"#), (Some(20), None));
    assert_eq!(of_chat(r#""logprobs": false"#), (None, None));
    for (chat_fields, message) in [
        (r#""top_logprobs": 1"#, "top_logprobs: only with logprobs: true"),
        (r#""logprobs": true, "top_logprobs": 21"#, "top_logprobs: it has to be 0 to 20"),
    ] {
        let error = chat(chat_fields).unwrap_err().to_json();
        assert_eq!(error["error"]["message"], message);
    }
    assert_eq!(error(completion(r#""logprobs": 21"#)).0, "logprobs: it has to be 0 to 20");
}

#[test]
fn what_is_not_supported_is_refused_unless_it_asks_for_nothing() {
    for (field, name) in [
        (r#""top_logprobs": 2"#, "top_logprobs"),
        (r#""tools": [{"type": "function"}]"#, "tools"),
        (r#""tool_choice": "required"#, "tool_choice"),
        (r#""best_of": 3"#, "best_of"),
        (r#""skip_special_tokens": false"#, "skip_special_tokens"),
        (r#""chat_template_kwargs": {"a": 1}"#, "chat_template_kwargs"),
    ] {
        let field = if field.ends_with("required") { format!("{field}\"") } else { field.into() };
        let (message, param) = error(completion(&field));
        assert_eq!(message, format!("{name}: this is not supported yet"));
        assert_eq!(param, name);
    }
    let neutral = r#""logprobs": null, "top_logprobs": 0, "response_format": {"type": "text"},
        "tools": [], "tool_choice": "auto", "suffix": null, "best_of": 1, "skip_special_tokens": true, "store": true, "metadata": {"a": 1}"#;
    completion(neutral).unwrap();
    chat(neutral).unwrap();
}

/// With names and options of llama.cpp, Ollama and vLLM.
#[test]
fn options_of_other_servers_are_taken_where_they_change_nothing() {
    let same = completion(r#""repeat_penalty": 1.2, "num_predict": 9, "seed": 1"#).unwrap().params;
    assert_eq!((same.max_new_tokens, same.sampling.repetition_penalty), (Some(9), 1.2));
    let biased = completion(r#""logit_bias": [[5, false], [6, 1.5]]"#).unwrap().params;
    assert_eq!(biased.sampling.logit_bias, [(5, -100.0), (6, 1.5)]);
    for field in [
        r#""verbosity": "medium", "prediction": {"type": "content", "content": "x"}"#,
        r#""num_keep": 24, "keep_alive": "5m", "cache_prompt": true, "id_slot": -1"#,
        r#""typical_p": 1, "mirostat": 0, "mirostat_tau": 5, "dry_multiplier": 0.0, "dry_base": 1.75"#,
        r#""repeat_last_n": 64, "repeat_penalty": 1.0"#,
        r#""repeat_last_n": -1, "repeat_penalty": 1.3"#,
        r#""repeat_penalty": 1.1, "repetition_penalty": 1.1"#,
        r#""length_penalty": 1.0, "logprobs": null, "guided_decoding_backend": "xgrammar""#,
    ] {
        completion(field).unwrap_or_else(|error| panic!("{field}: {error:?}"));
        chat(field).unwrap_or_else(|error| panic!("{field}: {error:?}"));
    }
    assert_eq!(completion(r#""num_ctx": 4096"#).unwrap().params.min_context, Some(4096));
    for (field, name) in [
        (r#""verbosity": "low""#, "verbosity"),
        (r#""typical_p": 1.5"#, "typ_p"),
        (r#""mirostat": 3"#, "mirostat"),
        (r#""adaptive_target": 0.5"#, "adaptive_target"),
        (r#""samplers": ["top_k", "x"]"#, "samplers"),
        (r#""samplers": "kq""#, "samplers"),
        (r#""dry_multiplier": 1, "dry_sequence_breakers": "x""#, "dry_sequence_breakers"),
        (r#""repeat_last_n": -2"#, "repeat_last_n"),
        (r#""repeat_penalty": 1.1, "repetition_penalty": 1.2"#, "repeat_penalty"),
        (r#""max_tokens": -3"#, "max_tokens"),
        (r#""min_keep": 2"#, "min_keep"),
        (r#""logit_bias": [[5, true]]"#, "logit_bias"),
    ] {
        assert_eq!(error(completion(field)).1, name, "{field}");
    }
}

/// Which samplers the host has to apply, in which order; and what the device has.
#[test]
fn samplers_are_the_devices_where_it_has_them_in_its_order() {
    let of = |field: &str| {
        let params = completion(field).unwrap_or_else(|error| panic!("{field}: {error:?}")).params;
        let name = |step: &SamplerStep| {
            let step = format!("{step:?}");
            step.split(['(', ' ']).next().unwrap().to_owned()
        };
        let chain = params.chain.map(|chain| {
            let steps: Vec<String> = chain.steps.iter().map(name).collect();
            (steps.join(" "), chain.mirostat.map_or(0, |mirostat| mirostat.version))
        });
        let Sampling { temperature, top_k, top_p, min_p, repetition_penalty, .. } = params.sampling;
        ((temperature, top_k, top_p, min_p, repetition_penalty), chain)
    };
    let all =
        r#""temperature": 0.5, "top_k": 9, "top_p": 0.7, "min_p": 0.1, "repeat_penalty": 1.5"#;
    let device = (0.5, 9, 0.7, 0.1, 1.5);
    assert_eq!(of(all), (device, None));
    for more in [
        r#""samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"]"#,
        // llama.vscode's, whose other samplers are off.
        r#""samplers": "edkypmxt", "typical_p": 1, "xtc_probability": 0, "dry_multiplier": 0, "repeat_last_n": -1"#,
        r#""mirostat": 0, "dynatemp_range": 0, "top_n_sigma": -1, "xtc_threshold": 0.1"#,
    ] {
        assert_eq!(of(&format!("{all}, {more}")), (device, None), "{more}");
    }
    // What a list leaves out is off.
    let some = of(&format!(r#"{all}, "samplers": ["top_k", "min_p"]"#));
    assert_eq!(some, ((1.0, 9, 1.0, 0.1, 1.0), None));
    for (more, steps, mirostat) in [
        (r#""samplers": ["top_k", "top_p", "infill"]"#, "TopK TopP Infill", 0),
        (r#""samplers": ["temperature", "top_k"]"#, "Temperature TopK", 0),
        (r#""typical_p": 0.5"#, "TopK Typical TopP MinP Temperature", 0),
        (r#""typ_p": 0.5, "samplers": "yt""#, "Typical Temperature", 0),
        (r#""repeat_last_n": 64"#, "Penalties TopK TopP MinP Temperature", 0),
        (r#""dry_multiplier": 0.8"#, "Dry TopK TopP MinP Temperature", 0),
        (r#""xtc_probability": 0.5"#, "TopK TopP MinP Xtc Temperature", 0),
        (r#""top_n_sigma": 1.5"#, "TopNSigma TopK TopP MinP Temperature", 0),
        (r#""dynatemp_range": 0.5"#, "TopK TopP MinP Temperature", 0),
        (r#""mirostat": 2, "mirostat_tau": 3"#, "Temperature", 2),
    ] {
        let (_, chain) = of(&format!("{all}, {more}"));
        assert_eq!(chain, Some((steps.to_owned(), mirostat)), "{more}");
    }
    assert_eq!(of(&format!(r#"{all}, "repeat_last_n": 64"#)).0.4, 1.0);
    assert_eq!(of(&format!(r#"{all}, "typical_p": 0.5"#)).0.4, 1.5);
}

/// A text over which no repetition goes is a token, or the end of one and others.
#[test]
fn breakers_are_tokens_and_what_they_go_on_with() {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/fixtures/llama_server/model.gguf");
    let model = Arc::new(Model::open(model).unwrap());
    let body =
        br#"{"prompt": "a", "dry_multiplier": 1, "dry_sequence_breakers": ["bcd", "(", ""]}"#;
    let params = CompletionRequest::parse(body, &model).unwrap().params;
    let chain = params.chain.unwrap();
    let [SamplerStep::Dry(dry), ..] = &chain.steps[..] else { panic!("{chain:?}") };
    let id = |token: &str| model.text().unwrap().tokenizer.token_to_id(token).unwrap();
    let tail = |ids: &[&str]| vec![ids.iter().map(|token| id(token)).collect::<Vec<_>>()];
    for (token, tails) in [
        // A token that has all of it, and those that end with its first bytes.
        ("abcd", tail(&[])),
        ("abc", tail(&["d"])),
        ("ab", tail(&["c", "d"])),
        ("b", tail(&["c", "d"])),
        ("(", tail(&[])),
        ("<0x28>", tail(&[])),
    ] {
        assert_eq!(dry.breakers.get(&id(token)), Some(&tails), "{token}");
    }
    assert!(!dry.breakers.contains_key(&id("c")) && !dry.breakers.contains_key(&id("a")));
    assert!((dry.multiplier, dry.base, dry.allowed_length, dry.last_n) == (1.0, 1.75, 2, 64));
}

#[test]
fn mistakes_name_the_parameter() {
    let many = format!("\"stop\": {:?}", vec!["x"; 17]);
    for (field, message, param) in [
        ("\"n\": 0", "n: it has to be 1 or more", "n"),
        ("\"n\": -1", "n: invalid value: integer `-1`, expected u32", "n"),
        ("\"temperature\": -1", "temperature -1: it has to be 0 or more", "temperature"),
        ("\"top_p\": 2", "top-p 2: it has to be 0 to 1", "top_p"),
        ("\"top_k\": -2", "top_k: it has to be 1 or more, or -1 for all", "top_k"),
        ("\"seed\": 1.5", "seed: it has to be whole", "seed"),
        ("\"presence_penalty\": 3", "presence penalty 3: it has to be -2 to 2", "presence_penalty"),
        ("\"logit_bias\": {\"x\": 1}", "logit_bias: `x` is no token id", "logit_bias"),
        (
            "\"logit_bias\": {\"256\": 1}",
            "logit bias of token 256: the vocabulary has",
            "logit_bias",
        ),
        ("\"stop\": 3", "stop: it has to be a text or a list of them", "stop"),
        ("\"stop\": \"\"", "stop: an empty text would end every answer", "stop"),
        (&many, "stop: 17 texts, at most 16 are possible", "stop"),
        ("\"stream_options\": {}", "stream_options: only with stream: true", "stream_options"),
        ("\"cache_salt\": \"\"", "cache_salt: an empty text keeps nobody apart", "cache_salt"),
        ("\"priority\": 0.5", "priority: invalid type: floating point `0.5`", "priority"),
        ("\"temprature\": 1", "temprature: this field is unknown", "temprature"),
        ("\"stream\": 1", "stream: invalid type: integer `1`, expected a boolean", "stream"),
    ] {
        let (got, got_param) = error(completion(field));
        assert!(got.starts_with(message), "{field}: {got}");
        assert_eq!(got_param, param, "{field}");
    }
}

#[test]
fn prompts_are_texts_or_ids() {
    let prompts = |json: &str| {
        let body = format!("{{\"prompt\": {json}}}");
        CompletionRequest::parse(body.as_bytes(), &MODEL).map(|request| request.prompts)
    };
    let text = |text: &str| Prompt::Text(text.to_owned());
    assert_eq!(prompts("\"a\"").unwrap(), [text("a")]);
    assert_eq!(prompts("[\"a\", \"b\"]").unwrap(), [text("a"), text("b")]);
    assert_eq!(prompts("[1, 2]").unwrap(), [Prompt::Ids(vec![1, 2])]);
    assert_eq!(prompts("[[1], [2]]").unwrap(), [Prompt::Ids(vec![1]), Prompt::Ids(vec![2])]);
    for bad in ["[]", "3", "null", "[1, \"a\"]", "[-1]", "[1.5]", "{}"] {
        assert!(prompts(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_chat_has_messages() {
    for bad in ["[]", "{}", "\"Hi\"", r#"["Hi"]"#, r#"[{"content": "Hi"}]"#] {
        let body = format!("{{\"messages\": {bad}}}");
        assert!(ChatRequest::parse(body.as_bytes(), &MODEL).is_err(), "{bad}");
    }
}
