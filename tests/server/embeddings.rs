//! `/v1/embeddings`.

use crate::client::{Client, Serving};
use crate::support::LLAMA;
use serde_json::{Value, json};

fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().unwrap().iter().map(|number| number.as_f64().unwrap()).collect()
}

pub fn embeddings_of_texts(client: &Client) {
    let texts = ["The cat sleeps.", "A cat is sleeping.", "Interest rates rose in March."];
    let answer = client.ok("/v1/embeddings", &json!({ "input": texts }));
    assert_eq!((&answer["object"], answer["data"].as_array().unwrap().len()), (&"list".into(), 3));
    let vectors: Vec<Vec<f64>> =
        (0..3).map(|index| numbers(&answer["data"][index]["embedding"])).collect();
    let dot = |a: usize, b: usize| -> f64 {
        vectors[a].iter().zip(&vectors[b]).map(|(x, y)| x * y).sum()
    };
    assert!((0..3).all(|index| (dot(index, index) - 1.0).abs() < 1e-4));
    assert!(dot(0, 1) > dot(0, 2), "{} {}", dot(0, 1), dot(0, 2));
    // Each input is what it is alone, and its tokens are counted.
    let alone = client.ok("/v1/embeddings", &json!({ "input": texts[2] }));
    let difference = numbers(&alone["data"][0]["embedding"]);
    let difference = difference.iter().zip(&vectors[2]).map(|(x, y)| (x - y).powi(2)).sum::<f64>();
    assert!(difference.sqrt() < 1e-3, "{difference}");
    let count = client.ok("/tokenize", &json!({ "prompt": texts[2] }))["count"].clone();
    let usage = json!({ "prompt_tokens": count, "total_tokens": count });
    assert_eq!(alone["usage"], usage);
}

#[test]
fn embeddings_of_ids() {
    let serving = Serving::start(&["-m", LLAMA, "--max-num-seqs", "2", "--max-queue", "31"]);
    let client = &serving.client;
    let of = |body: &Value| client.ok("/v1/embeddings", body)["data"].clone();
    let ids = json!([[1, 2, 3], [4, 5]]);
    let both = of(&json!({ "input": ids }));
    let indices = [&both[0], &both[1]].map(|data| (&data["index"], &data["object"]));
    assert_eq!(indices, [(&json!(0), &json!("embedding")), (&json!(1), &json!("embedding"))]);
    let mean = of(&json!({ "input": [1, 2, 3], "pooling": "mean" }));
    assert_ne!(mean[0]["embedding"], both[0]["embedding"]);
    // Base64 of the same numbers.
    let encoded = of(&json!({ "input": [1, 2, 3], "encoding_format": "base64" }));
    let bytes = decoded(encoded[0]["embedding"].as_str().unwrap());
    let floats = bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
    let wanted = numbers(&both[0]["embedding"]);
    assert!(floats.eq(wanted.into_iter().map(|number| number as f32)));
    // More inputs than the queue has room for come one part after the other.
    let many = of(&json!({ "input": vec![[1, 2, 3]; 100] }));
    assert_eq!(many.as_array().unwrap().len(), 100);
    for (body, param) in [
        (json!({ "input": [] }), "input"),
        (json!({ "input": "text", "dimensions": 3 }), "dimensions"),
        (json!({ "input": [1], "pooling": "first" }), "pooling"),
        (json!({ "input": [1], "encoding_format": "hex" }), "encoding_format"),
        (json!({ "input": [1], "priority": 1 }), "priority"),
        (json!({ "input": [1], "max_tokens": 1 }), "max_tokens"),
        (json!({ "input": vec![[1]; 2049] }), "input"),
    ] {
        let reply = client.post("/v1/embeddings", &body);
        assert_eq!(
            (reply.status, &reply.json()["error"]["param"]),
            (400, &json!(param)),
            "{param}"
        );
    }
    for body in [json!({ "input": [[]] }), json!({ "input": [300] }), json!({ "input": "text" })] {
        assert_eq!(client.post("/v1/embeddings", &body).status, 400, "{body}");
    }
    assert_eq!(client.metric("halfwarp:num_requests_running"), 0.0);
}

/// RFC 4648, section 4.
fn decoded(text: &str) -> Vec<u8> {
    let alphabet = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |byte: u8| alphabet.iter().position(|&letter| letter == byte).unwrap() as u32;
    let groups = text.trim_end_matches('=').as_bytes().chunks(4);
    let group = |letters: &[u8]| {
        let bits = letters.iter().fold(0, |bits, &letter| bits << 6 | value(letter));
        let bits = bits << (6 * (4 - letters.len()));
        bits.to_be_bytes()[1..letters.len()].to_vec()
    };
    groups.flat_map(group).collect()
}
