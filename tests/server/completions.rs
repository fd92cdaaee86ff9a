//! `/v1/completions`.

use crate::client::{Client, Serving};
use crate::support::{LLAMA, stdout};
use serde_json::{Value, json};

pub fn completions_of_texts_and_ids(client: &Client) {
    let prompt = "The capital of France is";
    let args = ["generate", "--device", "cpu", "-p", prompt, "--temp", "0", "-n", "6"];
    let wanted = stdout(&args);
    let wanted = wanted.strip_suffix('\n').unwrap();
    let body = json!({ "prompt": prompt, "temperature": 0, "max_tokens": 6 });
    let answer = client.ok("/v1/completions", &body);
    assert_eq!(
        (&answer["object"], &answer["choices"][0]["text"]),
        (&"text_completion".into(), &wanted.into())
    );
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    let ids = client.ok("/tokenize", &json!({ "prompt": prompt }))["tokens"].clone();
    let mut several = body.clone();
    several["prompt"] = json!([ids, ids]);
    several["echo"] = true.into();
    let answers = client.ok("/v1/completions", &several);
    for index in 0..2 {
        let choice = &answers["choices"][index];
        assert_eq!(choice["index"], index);
        assert_eq!(choice["text"], format!("{prompt}{wanted}"));
    }
    several["prompt"] = json!([prompt, "Once upon a time"]);
    let chunks = client.stream("/v1/completions", &several).rest();
    let text = |index: usize| -> String {
        let choices = chunks.iter().map(|chunk| &chunk["choices"][0]);
        let own = choices.filter(|choice| choice["index"] == index);
        own.filter_map(|choice| choice["text"].as_str()).collect()
    };
    assert_eq!(text(0), format!("{prompt}{wanted}"));
    assert!(text(1).starts_with("Once upon a time"), "{}", text(1));
}

/// What lm-eval sends: the prompt is echoed and scored, with the token that follows.
pub fn log_probabilities_of_prompts_and_answers(client: &Client) {
    let prompt = "The capital of France is";
    let ids = client.ok("/tokenize", &json!({ "prompt": prompt }))["tokens"].clone();
    let body = |max_tokens: usize| {
        json!({ "prompt": ids, "temperature": 0, "max_tokens": max_tokens, "echo": true,
                "logprobs": 2 })
    };
    let choice = client.ok("/v1/completions", &body(3))["choices"][0].clone();
    let logprobs = &choice["logprobs"];
    let list = |name: &str| logprobs[name].as_array().unwrap();
    let num_prompt = ids.as_array().unwrap().len();
    let lens = ["tokens", "token_logprobs", "top_logprobs", "text_offset"].map(|n| list(n).len());
    assert_eq!(lens, [num_prompt + 3; 4]);
    assert_eq!(
        (&logprobs["token_logprobs"][0], &logprobs["top_logprobs"][0]),
        (&json!(null), &json!(null))
    );
    // The tokens are the text, each where it says.
    let text = choice["text"].as_str().unwrap();
    for (token, offset) in list("tokens").iter().zip(list("text_offset")) {
        let at = &text[offset.as_u64().unwrap() as usize..];
        assert!(at.starts_with(token.as_str().unwrap()), "{token} at {offset} of {text}");
    }
    // What was generated greedily is the most likely.
    for index in num_prompt..num_prompt + 3 {
        let own = logprobs["token_logprobs"][index].as_f64().unwrap();
        let top = logprobs["top_logprobs"][index].as_object().unwrap();
        let largest = top.values().map(|value| value.as_f64().unwrap()).fold(f64::MIN, f64::max);
        assert!(own == largest && own <= 0.0 && top.len() == 2, "{logprobs}");
    }
    // The prompt alone, and in parts.
    let alone = client.ok("/v1/completions", &body(0))["choices"][0].clone();
    assert_eq!((&alone["text"], &alone["finish_reason"]), (&prompt.into(), &"length".into()));
    assert_eq!(alone["logprobs"]["tokens"].as_array().unwrap()[..], list("tokens")[..num_prompt]);
    let chunks = client.stream("/v1/completions", &body(3)).rest();
    let streamed = |name: &str| -> Vec<Value> {
        let choices =
            chunks.iter().filter_map(|chunk| chunk["choices"][0]["logprobs"][name].as_array());
        choices.flatten().cloned().collect()
    };
    assert_eq!(
        (&streamed("tokens"), &streamed("text_offset")),
        (list("tokens"), list("text_offset"))
    );
    let streamed = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str());
    assert_eq!(streamed.collect::<String>(), text);
}

#[test]
fn requests_have_a_priority_where_the_policy_says_so() {
    let serving = Serving::start(&["-m", LLAMA, "--scheduling-policy", "priority"]);
    let body = |priority: i64| {
        json!({ "prompt": [1, 2, 3], "temperature": 0, "max_tokens": 4, "return_token_ids": true,
                "priority": priority })
    };
    let [urgent, other] = [-5, 1000].map(|n| serving.client.ok("/v1/completions", &body(n)));
    assert_eq!(urgent["choices"], other["choices"]);
}

/// What `serve` is told takes the place of what the model comes with, and a request of both.
#[test]
fn sampling_values_of_the_server_are_defaults() {
    let golden = |name| crate::support::golden_ids(LLAMA, name);
    let serving = Serving::start(&["-m", LLAMA, "--dtype", "f32", "--temp", "0", "--top_k", "-1"]);
    let mut body = json!({ "prompt": golden("greedy_prompt"), "max_tokens": 20, "ignore_eos": true,
                           "return_token_ids": true });
    let ids = |body: &Value| serving.client.ok("/v1/completions", body)["choices"][0].clone();
    let greedy = json!(golden("greedy_tokens")[..20]);
    assert_eq!(ids(&body)["token_ids"], greedy);
    body["temperature"] = 5.into();
    body["seed"] = 1.into();
    assert_ne!(ids(&body)["token_ids"], greedy);
    let output = crate::support::run(&["serve", "-m", LLAMA, "--temp", "-1"]);
    assert_eq!(output.status.code(), Some(2));
    let said = crate::support::stderr(&output);
    assert!(said.contains("temperature") && said.contains("0 or more"), "{said}");
}
