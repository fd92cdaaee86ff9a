//! Responses that requests can go on from: in memory, as many as there is room for.

use super::error::ApiError;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Responses at once; the one that was not used for longest goes first.
const MAX_RESPONSES: usize = 4096;
/// Bytes of their JSON at once.
const MAX_BYTES: usize = 64 << 20;

/// The responses of a server. Each holds its own turn alone, and the id of the one before it.
#[derive(Debug, Default)]
pub(super) struct Store(Mutex<Responses>);

#[derive(Debug, Default)]
struct Responses {
    by_id: HashMap<String, StoredResponse>,
    /// Ids of the responses by the time of their last use.
    by_use: BTreeMap<u64, String>,
    /// The responses of which items are.
    by_item: HashMap<String, String>,
    num_bytes: usize,
    clock: u64,
}

#[derive(Debug)]
struct StoredResponse {
    previous: Option<String>,
    /// The items of the request, as JSON: values would take several times its size.
    input: String,
    /// The response, as JSON.
    object: String,
    item_ids: Vec<String>,
    last_use: u64,
}

impl StoredResponse {
    fn num_bytes(&self) -> usize {
        let ids: usize = self.item_ids.iter().map(String::len).sum();
        self.input.len() + self.object.len() + ids
    }

    fn output(&self) -> Vec<Value> {
        let object: Value = serde_json::from_str(&self.object).unwrap_or_default();
        object["output"].as_array().cloned().unwrap_or_default()
    }
}

impl Store {
    fn lock(&self) -> MutexGuard<'_, Responses> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the response `object` to the items `input`, after the one called `previous`.
    pub fn put(&self, previous: Option<String>, input: String, object: &Value) {
        let id = |value: &Value| value["id"].as_str().unwrap_or_default().to_owned();
        let items = object["output"].as_array().map(Vec::as_slice).unwrap_or_default();
        let item_ids = items.iter().map(id).collect();
        let stored =
            StoredResponse { previous, input, object: object.to_string(), item_ids, last_use: 0 };
        self.lock().put(id(object), stored, MAX_RESPONSES, MAX_BYTES);
    }

    /// The response called `id`.
    pub fn get(&self, id: &str) -> Result<Value, ApiError> {
        let mut responses = self.lock();
        responses.touch(id);
        let stored = responses.by_id.get(id).ok_or_else(|| ApiError::unknown_response(id))?;
        Ok(serde_json::from_str(&stored.object).unwrap_or_default())
    }

    /// Forgets the response called `id`.
    pub fn delete(&self, id: &str) -> Result<(), ApiError> {
        self.lock().remove(id).map(drop).ok_or_else(|| ApiError::unknown_response(id))
    }

    /// All items up to the end of the response called `id`, those of the ones before it first.
    pub fn history(&self, id: &str) -> Result<Vec<Value>, ApiError> {
        let mut responses = self.lock();
        let mut turns = Vec::new();
        let mut next = Some(id.to_owned());
        while let Some(id) = next {
            responses.touch(&id);
            let stored = responses.by_id.get(&id).ok_or_else(|| ApiError::unknown_previous(&id))?;
            let input: Vec<Value> = serde_json::from_str(&stored.input).unwrap_or_default();
            turns.push((input, stored.output()));
            next = stored.previous.clone();
        }
        Ok(turns.into_iter().rev().flat_map(|(input, output)| [input, output]).flatten().collect())
    }

    /// The item called `id`, of the output of any response.
    pub fn item(&self, id: &str) -> Option<Value> {
        let responses = self.lock();
        let stored = responses.by_id.get(responses.by_item.get(id)?)?;
        stored.output().into_iter().find(|item| item["id"] == id)
    }
}

impl Responses {
    fn touch(&mut self, id: &str) {
        if let Some(stored) = self.by_id.get_mut(id) {
            self.by_use.remove(&stored.last_use);
            self.clock += 1;
            stored.last_use = self.clock;
            self.by_use.insert(self.clock, id.to_owned());
        }
    }

    /// One that is too large alone is not stored.
    fn put(&mut self, id: String, stored: StoredResponse, max_responses: usize, max_bytes: usize) {
        let num_bytes = stored.num_bytes();
        if num_bytes > max_bytes {
            return;
        }
        while self.by_id.len() >= max_responses || self.num_bytes + num_bytes > max_bytes {
            let Some((_, oldest)) = self.by_use.first_key_value() else { break };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
        self.num_bytes += num_bytes;
        self.by_item.extend(stored.item_ids.iter().map(|item| (item.clone(), id.clone())));
        self.by_id.insert(id.clone(), stored);
        self.touch(&id);
    }

    fn remove(&mut self, id: &str) -> Option<StoredResponse> {
        let stored = self.by_id.remove(id)?;
        self.by_use.remove(&stored.last_use);
        self.num_bytes -= stored.num_bytes();
        for item in &stored.item_ids {
            self.by_item.remove(item);
        }
        Some(stored)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn stored(id: &str, previous: Option<&str>) -> StoredResponse {
        StoredResponse {
            previous: previous.map(str::to_owned),
            input: json!([{ "input": id }]).to_string(),
            object: json!({ "id": id, "output": [{ "id": format!("item-{id}") }] }).to_string(),
            item_ids: vec![format!("item-{id}")],
            last_use: 0,
        }
    }

    fn names(store: &Store) -> Vec<String> {
        store.lock().by_use.values().cloned().collect()
    }

    #[test]
    fn a_history_is_all_turns_up_to_a_response() {
        let store = Store::default();
        store.put(None, r#"[{"input":"a"}]"#.into(), &json!({"id": "a", "output": [{"id": "x"}]}));
        let of_b = json!({"id": "b", "output": [{"id": "y"}, {"id": "z"}]});
        store.put(Some("a".into()), r#"[{"input":"b"}]"#.into(), &of_b);
        assert_eq!(
            Value::from(store.history("b").unwrap()),
            json!([{"input": "a"}, {"id": "x"}, {"input": "b"}, {"id": "y"}, {"id": "z"}])
        );
        assert_eq!(store.item("z"), Some(json!({"id": "z"})));
        assert_eq!(store.get("b").unwrap(), of_b);
        store.delete("a").unwrap();
        assert!(store.delete("a").is_err() && store.get("a").is_err() && store.item("x").is_none());
        let error = store.history("b").unwrap_err().to_json();
        assert_eq!(error["error"]["code"], "previous_response_not_found");
        assert_eq!(store.item("nothing"), None);
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_goes_first() {
        let store = Store::default();
        let bytes = stored("a", None).num_bytes();
        let put = |id: &str, previous: Option<&str>, max_responses, max_bytes| {
            let mut responses = store.lock();
            responses.put(id.to_owned(), stored(id, previous), max_responses, max_bytes);
            let sum: usize = responses.by_id.values().map(StoredResponse::num_bytes).sum();
            assert_eq!(
                (responses.num_bytes, responses.by_item.len()),
                (sum, responses.by_id.len())
            );
        };
        for id in ["a", "b", "c"] {
            put(id, None, 3, usize::MAX);
        }
        store.get("a").unwrap();
        put("d", Some("a"), 3, usize::MAX);
        assert_eq!(names(&store), ["c", "a", "d"]);
        // Going on from one uses those before it, too.
        assert_eq!(store.history("d").unwrap().len(), 4);
        assert_eq!(names(&store), ["c", "d", "a"]);
        put("e", None, usize::MAX, 2 * bytes);
        assert_eq!(names(&store), ["a", "e"]);
        put("f", None, usize::MAX, bytes - 1);
        assert_eq!(names(&store), ["a", "e"]);
    }
}
