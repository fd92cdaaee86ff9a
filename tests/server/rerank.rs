//! `/v1/rerank` and `/v1/score`.

use crate::client::{Client, Serving};
use serde_json::{Value, json};

const QUERY: &str = "Where do cats sleep?";
const DOCUMENTS: [&str; 3] = ["Cats sleep on sofas.", "Rust has no garbage collector.", "Paris."];

fn scores(answer: &Value) -> Vec<f64> {
    answer["data"].as_array().unwrap().iter().map(|one| one["score"].as_f64().unwrap()).collect()
}

/// A model that is not trained to rank: the cosine of embeddings.
pub fn scores_are_those_of_embeddings(client: &Client) {
    let mut input = vec![QUERY];
    input.extend(DOCUMENTS);
    let embedded = client.ok("/v1/embeddings", &json!({ "input": input }));
    let vector = |index: usize| {
        let vector = embedded["data"][index]["embedding"].as_array().unwrap();
        vector.iter().map(|value| value.as_f64().unwrap()).collect::<Vec<f64>>()
    };
    let dot = |a: usize, b: usize| vector(a).iter().zip(vector(b)).map(|(a, b)| a * b).sum::<f64>();
    let wanted = [dot(0, 1), dot(0, 2), dot(0, 3)];
    let is_near = |a: &[f64], b: &[f64]| {
        a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-3)
    };

    let answer = client.ok("/v1/score", &json!({ "text_1": QUERY, "text_2": DOCUMENTS }));
    assert!(is_near(&scores(&answer), &wanted), "{answer}: {wanted:?}");
    assert_eq!(answer["usage"]["prompt_tokens"], embedded["usage"]["prompt_tokens"]);
    let pairs = json!({ "queries": DOCUMENTS, "documents": [QUERY, QUERY, DOCUMENTS[2]] });
    let answer = client.ok("/score", &pairs);
    assert!(is_near(&scores(&answer), &[wanted[0], wanted[1], 1.0]), "{answer}");

    let mut order = [0, 1, 2];
    order.sort_by(|&a, &b| wanted[b].total_cmp(&wanted[a]));
    let body = json!({ "query": QUERY, "documents": [DOCUMENTS[0], { "text": DOCUMENTS[1] }, DOCUMENTS[2]] });
    for (path, with_documents) in [("/v1/rerank", true), ("/rerank", true), ("/v2/rerank", false)] {
        let answer = client.ok(path, &body);
        for (result, index) in answer["results"].as_array().unwrap().iter().zip(order) {
            assert_eq!(result["index"], index, "{answer}");
            let score = result["relevance_score"].as_f64().unwrap();
            assert!((score - wanted[index]).abs() < 1e-3, "{answer}");
            let document = json!({ "text": DOCUMENTS[index] });
            assert_eq!(result.get("document"), with_documents.then_some(&document), "{path}");
        }
    }
    let mut few = body.clone();
    few["top_n"] = json!(2);
    few["return_documents"] = json!(false);
    few["max_tokens_per_doc"] = json!(2);
    let answer = client.ok("/v1/rerank", &few);
    assert_eq!(answer["results"].as_array().unwrap().len(), 2);
    assert!(answer["results"][0].get("document").is_none());
    for (body, why) in [
        (json!({ "query": QUERY, "documents": [] }), "documents: there has to be one at least"),
        (json!({ "query": QUERY, "documents": [3] }), "documents: it has to be a text"),
        (json!({ "query": QUERY, "documents": ["x"], "instruction": "x" }), "instruction: only"),
        (json!({ "query": QUERY, "documents": ["x"], "nothing": 1 }), "nothing: this field"),
    ] {
        let reply = client.post("/v1/rerank", &body);
        assert!(reply.status == 400 && reply.message().starts_with(why), "{}", reply.text);
    }
    let uneven = json!({ "text_1": ["a", "b"], "text_2": ["a", "b", "c"] });
    assert_eq!(client.post("/score", &uneven).status, 400);
}

/// A model whose name says that it is trained to rank: its scores are those of `yes` and `no` as the next token, which
/// log-probabilities of a prompt say in another way.
#[test]
fn a_model_that_ranks_says_yes_or_no() {
    let serving = Serving::start(&["-c", "512", "--served-model-name", "qwen3-reranker-test"]);
    let client = &serving.client;
    let logprob = |document: &str, answer: &str| {
        let system = "Judge whether the Document meets the requirements based on the Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".";
        let prompt = format!(
            "<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n<Instruct>: Find cats\n<Query>: {QUERY}\n\
             <Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
        );
        // By itself each is another token than after the line before it.
        let ids = [&*prompt, answer].map(|text| {
            let body = json!({ "prompt": text, "add_special_tokens": false });
            client.ok("/tokenize", &body)["tokens"].as_array().unwrap().clone()
        });
        assert_eq!(ids[1].len(), 1);
        let body = json!({ "prompt": ids.concat(), "max_tokens": 0, "echo": true, "logprobs": 0 });
        let answer = client.ok("/v1/completions", &body);
        let logprobs = answer["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap();
        logprobs.last().unwrap().as_f64().unwrap()
    };
    let wanted = DOCUMENTS.map(|document| {
        let [yes, no] = ["yes", "no"].map(|answer| logprob(document, answer).exp());
        yes / (yes + no)
    });
    let body = json!({ "text_1": QUERY, "text_2": DOCUMENTS, "instruction": "Find cats" });
    let got = scores(&client.ok("/v1/score", &body));
    assert_eq!(got.len(), 3);
    assert!(got.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-3), "{got:?} {wanted:?}");
    let body =
        json!({ "query": QUERY, "documents": DOCUMENTS, "instruction": "Find cats", "top_n": 1 });
    let ranked = client.ok("/v1/rerank", &body);
    let best = (0..3).max_by(|&a, &b| wanted[a].total_cmp(&wanted[b])).unwrap();
    assert_eq!(ranked["results"][0]["index"], best);
    // A document can't end its turn: what it spells is several tokens, where the control token is one.
    let num_tokens = |document: &str| {
        let body = json!({ "text_1": QUERY, "text_2": document });
        client.ok("/v1/score", &body)["usage"]["prompt_tokens"].as_u64().unwrap()
    };
    assert!(num_tokens("<|im_end|>") > num_tokens("x") + 3);
}
