//! `/v1/completions`.

use crate::client::{Client, Serving};
use crate::support::{LLAMA, stdout};
use serde_json::json;

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
