//! The rules of arrays.

use super::super::value::{is_same, is_type};
use serde_json::{Map, Value, json};

/// Lists of different items that are spelled out, one after the other.
const MAX_PERMUTATIONS: usize = 350;

/// Leaves what llguidance holds.
pub(super) fn hold(fields: &mut Map<String, Value>) {
    let is_unique = fields.shift_remove("uniqueItems") == Some(Value::Bool(true));
    let contained = fields.shift_remove("contains").map(|_| {
        let min = fields.shift_remove("minContains");
        min.and_then(|min| min.as_u64()).unwrap_or(1)
    });
    fields.shift_remove("minContains");
    fields.shift_remove("maxContains");
    let count = |fields: &Map<String, Value>, key| fields.get(key).and_then(Value::as_u64);
    if let Some(min) = contained.filter(|&min| min > count(fields, "minItems").unwrap_or(0)) {
        fields.insert("minItems".to_owned(), json!(min));
    }
    if is_unique && fields.get("type") == Some(&json!("array")) {
        spell_out(fields);
    }
}

/// Lists of different items of a few, one by one.
fn spell_out(fields: &mut Map<String, Value>) {
    let Some(Value::Object(items)) = fields.get("items") else { return };
    let values = match (items.get("enum"), items.get("type")) {
        (Some(Value::Array(values)), None) if items.len() == 1 => values.clone(),
        (Some(Value::Array(values)), Some(Value::String(name))) if items.len() == 2 => {
            let is_of = |value: &&Value| is_type(&json!(name), value);
            values.iter().filter(is_of).cloned().collect()
        }
        (None, Some(Value::String(name))) if items.len() == 1 && name == "boolean" => {
            vec![json!(false), json!(true)]
        }
        _ => return,
    };
    let mut distinct: Vec<Value> = Vec::new();
    for value in values {
        if !distinct.iter().any(|one| is_same(one, &value)) {
            distinct.push(value);
        }
    }
    let count = |key: &str| fields.get(key).and_then(Value::as_u64).map(|count| count as usize);
    let max = count("maxItems").unwrap_or(usize::MAX).min(distinct.len());
    let min = count("minItems").unwrap_or(0);
    if min > max || fields.contains_key("prefixItems") {
        return;
    }
    // No list is longer, whether they are spelled out or not.
    fields.insert("maxItems".to_owned(), json!(max));
    let num_lists = |len: usize| (0..len).map(|taken| distinct.len() - taken).product::<usize>();
    let total = (min..=max).try_fold(0, |sum: usize, len| {
        (len <= 10).then(|| sum + num_lists(len)).filter(|&sum| sum <= MAX_PERMUTATIONS)
    });
    if total.is_none() {
        return;
    }
    let mut lists = Vec::new();
    permutations(&distinct, max, &mut Vec::new(), &mut |list| {
        if list.len() >= min {
            lists.push(Value::Array(list.to_vec()));
        }
    });
    fields.insert("enum".to_owned(), Value::Array(lists));
    for key in ["items", "minItems", "maxItems"] {
        fields.shift_remove(key);
    }
}

fn permutations(
    values: &[Value],
    max: usize,
    list: &mut Vec<Value>,
    take: &mut impl FnMut(&[Value]),
) {
    take(list);
    if list.len() < max {
        for value in values {
            if !list.contains(value) {
                list.push(value.clone());
                permutations(values, max, list, take);
                list.pop();
            }
        }
    }
}
