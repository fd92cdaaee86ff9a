use super::super::tests::{asked, call, reasoning, streamed, text, whole};
use super::*;
use crate::engine::Logprobs;
use crate::server::choice::PartKind::{Failed, Finished, Started};

fn writer(store: Option<&Arc<Store>>) -> ResponseObject {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/goldens/llama-gqa");
    let settings = Settings {
        echo: json!({"previous_response_id": null, "store": true}),
        namespaces: HashMap::from([("g".to_owned(), "n".to_owned())]),
        logprobs: true,
    };
    let model = Arc::new(Model::open(golden).unwrap());
    let destination =
        store.map(|store| Destination { store: Arc::clone(store), input: "[]".to_owned() });
    ResponseObject::new(asked(10), model, settings, destination)
}

fn parts(finish: Finish) -> Vec<PartKind> {
    let mut parts = vec![Started { cached_tokens: 4 }, reasoning("h"), reasoning("m"), text("a")];
    parts.push(text("b"));
    parts.extend(call(0, "f", ["{\"x\":", " 1}"]));
    parts.extend(call(1, "g", ["{", "}"]));
    parts.push(Finished(finish));
    parts
}

#[test]
fn events_come_in_openais_order() {
    let events = streamed(writer(None), parts(Finish::ToolCalls));
    assert!(events.iter().all(|(name, data)| data["type"] == **name));
    assert!((0..events.len()).all(|index| events[index].1["sequence_number"] == index));
    let short = |(name, data): &(String, Value)| {
        let name = name.strip_prefix("response.").unwrap();
        data["output_index"].as_u64().map_or(name.to_owned(), |index| format!("{index} {name}"))
    };
    let names: Vec<String> = events.iter().map(short).collect();
    assert_eq!(
        names,
        [
            "created",
            "in_progress",
            "0 output_item.added",
            "0 content_part.added",
            "0 reasoning_text.delta",
            "0 reasoning_text.delta",
            "0 reasoning_text.done",
            "0 content_part.done",
            "0 output_item.done",
            "1 output_item.added",
            "1 content_part.added",
            "1 output_text.delta",
            "1 output_text.delta",
            "1 output_text.done",
            "1 content_part.done",
            "1 output_item.done",
            "2 output_item.added",
            "2 function_call_arguments.delta",
            "2 function_call_arguments.delta",
            "2 function_call_arguments.done",
            "2 output_item.done",
            "3 output_item.added",
            "3 function_call_arguments.delta",
            "3 function_call_arguments.delta",
            "3 function_call_arguments.done",
            "3 output_item.done",
            "completed",
        ]
    );
    // An item has one id in all of its events.
    for index in 0..4 {
        let ids = events.iter().filter(|(_, data)| data["output_index"] == index);
        let mut ids: Vec<&Value> = ids
            .map(
                |(_, data)| {
                    if data["item"].is_null() { &data["item_id"] } else { &data["item"]["id"] }
                },
            )
            .collect();
        ids.dedup();
        assert_eq!(ids.len(), 1, "{index}");
        assert_eq!(events[26].1["response"]["output"][index]["id"], *ids[0]);
    }
    assert_eq!(events[2].1["item"]["content"], json!([]));
    assert_eq!(events[16].1["item"]["arguments"], "");
}

#[test]
fn a_response_is_its_items_and_is_stored() {
    let store = Arc::new(Store::default());
    let mut response = whole(writer(Some(&store)), parts(Finish::ToolCalls));
    assert_eq!(store.get("id_1").unwrap(), response);
    let usage = &response["usage"];
    assert_eq!(
        (&usage["output_tokens"], &usage["output_tokens_details"]["reasoning_tokens"]),
        (&json!(4), &json!(2))
    );
    assert_eq!((&response["status"], &response["store"]), (&json!("completed"), &json!(true)));
    for (item, prefix) in
        response["output"].as_array_mut().unwrap().iter_mut().zip(["rs_", "msg_", "fc_", "fc_"])
    {
        let id = item.as_object_mut().unwrap().remove("id").unwrap();
        assert!(id.as_str().unwrap().starts_with(prefix), "{id}");
    }
    assert_eq!(
        response["output"],
        json!([
            {"type": "reasoning", "summary": [], "status": "completed", "encrypted_content": null,
             "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "status": "completed",
             "content": [{"type": "output_text", "text": "ab", "annotations": [], "logprobs": []}]},
            {"type": "function_call", "call_id": "call_0", "name": "f", "arguments": "{\"x\": 1}", "status": "completed"},
            {"type": "function_call", "call_id": "call_1", "name": "g", "namespace": "n", "arguments": "{}", "status": "completed"}])
    );
}

#[test]
fn a_cut_answer_is_incomplete_and_an_empty_one_a_message() {
    let parts = || vec![Started { cached_tokens: 0 }, text("a"), Finished(Finish::Length)];
    let response = whole(writer(None), parts());
    assert_eq!(
        (&response["status"], &response["incomplete_details"]["reason"]),
        (&json!("incomplete"), &json!("max_output_tokens"))
    );
    assert_eq!(response["output"][0]["status"], "incomplete");
    let events = streamed(writer(None), parts());
    assert_eq!(events.last().unwrap().0, "response.incomplete");
    let empty = whole(writer(None), vec![Started { cached_tokens: 0 }, Finished(Finish::Stop)]);
    assert_eq!(empty["output"][0]["content"][0]["text"], "");
}

#[test]
fn log_probabilities_are_those_of_the_tokens_of_a_text() {
    let token = |id: u32| {
        let logprobs = Some(Logprobs { token: id, logprob: -0.5, top: vec![], of: vec![] });
        Some(Token { id, logprobs, offset: 0 })
    };
    let part = |text: &str, id| PartKind::Text { text: text.to_owned(), token: token(id) };
    let parts = || vec![part("", 1), part("a", 2), part("b", 3), Finished(Finish::Stop)];
    let events = streamed(writer(None), parts());
    let deltas = events.iter().filter(|(name, _)| name == "response.output_text.delta");
    let nums: Vec<usize> =
        deltas.map(|(_, data)| data["logprobs"].as_array().unwrap().len()).collect();
    assert_eq!(nums, [2, 1]);
    let response = whole(writer(None), parts());
    assert_eq!(response["output"][0]["content"][0]["logprobs"].as_array().unwrap().len(), 3);
    // Those of a call are none of a text's.
    let mut parts = vec![part("", 1)];
    parts.extend(call(0, "f", ["{", "}"]));
    parts.extend([part("a", 2), Finished(Finish::Stop)]);
    let response = whole(writer(None), parts);
    assert_eq!(response["output"][1]["content"][0]["logprobs"].as_array().unwrap().len(), 1);
}

#[test]
fn a_failure_fails_the_response() {
    let store = Arc::new(Store::default());
    let failed = || vec![text("a"), Failed(ApiError::unavailable("no"))];
    let events = streamed(writer(Some(&store)), failed());
    let [.., (failed, of_failed), (error, of_error)] = &events[..] else { panic!("{events:?}") };
    assert_eq!((&**failed, &**error), ("response.failed", "error"));
    assert_eq!(of_failed["response"]["error"], json!({"code": "server_error", "message": "no"}));
    assert_eq!(of_failed["response"]["status"], "failed");
    assert_eq!(of_error["message"], "no");
    assert!(store.get("id_1").is_err());
}
