//! `/v1/embeddings`, `/v1/rerank` and `/v1/score` of encoders, against what transformers makes of
//! the texts.

use crate::client::Serving;
use serde_json::{Value, json};

const BERT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/encoders/bert");
const CROSS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/encoders/bert-cross");

/// What is expected of the model in `dir`.
fn texts(dir: &str) -> Value {
    serde_json::from_slice(&std::fs::read(format!("{dir}/texts.json")).unwrap()).unwrap()
}

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

#[track_caller]
fn assert_near(got: &Value, wanted: &Value) {
    let (got, wanted) = (numbers(got), numbers(wanted));
    assert_eq!(got.len(), wanted.len());
    let off = got.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(off < 1e-4, "{off}: {got:?} {wanted:?}");
}

#[test]
fn embeddings_of_an_encoder() {
    let serving = Serving::start(&["-m", BERT, "--max-num-seqs", "4", "--dtype", "f32"]);
    let (client, wanted) = (&serving.client, texts(BERT));
    let answer = client.ok("/v1/embeddings", &json!({ "input": wanted["texts"] }));
    for (index, embedding) in wanted["embeddings"].as_array().unwrap().iter().enumerate() {
        assert_near(&answer["data"][index]["embedding"], embedding);
    }
    let cut = json!({ "input": wanted["texts"], "truncate_prompt_tokens": 8 });
    let answer = client.ok("/v1/embeddings", &cut);
    for (index, embedding) in wanted["truncated_to_8"].as_array().unwrap().iter().enumerate() {
        assert_near(&answer["data"][index]["embedding"], embedding);
    }
    // Without a classifier it is the cosine of two texts.
    let pair = json!({ "text_1": wanted["texts"][0], "text_2": wanted["texts"][1] });
    let [a, b] = [0, 1].map(|index| numbers(&wanted["embeddings"][index]));
    let cosine: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
    let score = client.ok("/v1/score", &pair)["data"][0]["score"].as_f64().unwrap();
    assert!((score - cosine).abs() < 1e-4, "{score} {cosine}");

    let long = "cat ".repeat(127);
    for (path, body, why) in [
        ("/v1/embeddings", json!({ "input": "x", "pooling": "last" }), "pools by `mean`"),
        ("/v1/embeddings", json!({ "input": long }), "the prompt has 129 tokens"),
        ("/v1/embeddings", json!({ "input": "x", "truncate_prompt_tokens": 0 }), "-1, or 1"),
        ("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 }), "generates nothing"),
    ] {
        let reply = client.post(path, &body);
        assert!(reply.status == 400 && reply.message().contains(why), "{why}: {}", reply.text);
    }
    let cut = json!({ "input": long, "truncate_prompt_tokens": -1 });
    assert_eq!(client.ok("/v1/embeddings", &cut)["usage"]["prompt_tokens"], 128);
}

#[test]
fn a_classifier_scores_pairs() {
    let serving = Serving::start(&["-m", CROSS, "--max-num-seqs", "4", "--dtype", "f32"]);
    let (client, wanted) = (&serving.client, texts(CROSS));
    let scores = |answer: &Value| -> Value {
        answer["data"].as_array().unwrap().iter().map(|one| one["score"].clone()).collect()
    };
    let mut body = json!({ "text_1": wanted["query"], "text_2": wanted["documents"] });
    assert_near(&scores(&client.ok("/v1/score", &body)), &wanted["scores"]);
    body["truncate_prompt_tokens"] = json!(20);
    assert_near(&scores(&client.ok("/v1/score", &body)), &wanted["truncated_to_20"]);

    let body = json!({ "query": wanted["query"], "documents": wanted["documents"], "top_n": 3 });
    let ranked = client.ok("/v1/rerank", &body);
    let results = ranked["results"].as_array().unwrap();
    let indices: Vec<u64> =
        results.iter().map(|result| result["index"].as_u64().unwrap()).collect();
    assert_eq!(indices, [2, 0, 1], "the best first: {ranked}");
    for result in results {
        let wanted = &wanted["scores"][result["index"].as_u64().unwrap() as usize];
        assert_near(&json!([result["relevance_score"]]), &json!([wanted]));
    }
    for (path, body, why) in [
        ("/v1/embeddings", json!({ "input": "x" }), "scores of pairs"),
        (
            "/v1/rerank",
            json!({ "query": "x", "documents": ["x"], "instruction": "x" }),
            "takes none",
        ),
        ("/v1/score", json!({ "text_1": "cat ".repeat(127), "text_2": "x" }), "131 tokens"),
    ] {
        let reply = client.post(path, &body);
        assert!(reply.status == 400 && reply.message().contains(why), "{why}: {}", reply.text);
    }
}
