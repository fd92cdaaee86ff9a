//! `/tokenize`, `/detokenize` and `/tokenizer_info`.

use crate::client::{Client, QUESTION, chat};
use serde_json::json;

pub fn tokens_there_and_back(client: &Client) {
    let text = "Grüße, 世界! <|im_start|> x";
    let tokens = client.ok("/tokenize", &json!({ "prompt": text, "return_token_strs": true }));
    let count = tokens["tokens"].as_array().unwrap().len();
    assert_eq!((&tokens["count"], &tokens["max_model_len"]), (&json!(count), &json!(512)));
    assert_eq!(tokens["token_strs"].as_array().unwrap().len(), count);
    let back = client.ok("/detokenize", &json!({ "tokens": tokens["tokens"] }));
    assert_eq!(back["prompt"], text);
    let info = client.get("/tokenizer_info").json();
    assert_eq!((&info["vocab_size"], &info["model_max_length"]), (&json!(49152), &json!(512)));
    assert_eq!(
        (&info["bos_token"], &info["eos_token"]),
        (&json!("<|im_start|>"), &json!("<|im_end|>"))
    );
    assert_eq!(info["added_tokens_decoder"]["2"]["content"], "<|im_end|>");
    assert!(info["tokenizer_class"].is_string(), "{info}");
    let template = info["chat_template"].as_str().unwrap();
    assert!(template.contains("add_generation_prompt"), "{template}");
    let chat = client.ok("/tokenize", &json!({ "messages": chat()["messages"] }));
    let back = client.ok("/detokenize", &json!({ "tokens": chat["tokens"] }));
    let back = back["prompt"].as_str().unwrap();
    assert!(back.contains(QUESTION) && back.ends_with("assistant\n"), "{back}");
}
