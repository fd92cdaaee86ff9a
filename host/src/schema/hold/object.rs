//! The rules of objects.

use super::super::normal::{in_place, number};
use super::super::pattern::translate;
use super::{Holder, compiles};
use serde_json::{Map, Value, json};

/// Ways to choose properties that are spelled out.
const MAX_CHOICES: usize = 64;

impl Holder<'_> {
    /// Leaves what llguidance holds; `false` where there can't be so many properties.
    pub(super) fn object(&self, fields: &mut Map<String, Value>) -> bool {
        if let Some(names) = fields.shift_remove("propertyNames") {
            self.names(fields, &names);
        }
        if let Some(Value::Object(patterns)) = fields.get("patternProperties") {
            let patterns = patterns.clone();
            self.patterns(fields, patterns);
        }
        count_properties(fields)
    }

    /// `unevaluatedItems` and `unevaluatedProperties`: what no schema of the value names.
    pub(super) fn close(&self, fields: &mut Map<String, Value>) {
        let rest_items = fields.shift_remove("unevaluatedItems");
        let rest = fields.shift_remove("unevaluatedProperties");
        let is_alone = in_place(fields).next().is_none() && !fields.contains_key("$ref");
        if is_alone && !fields.contains_key("contains") && !fields.contains_key("items") {
            fields.extend(rest_items.map(|rest| ("items".to_owned(), rest)));
        }
        let is_open = fields.contains_key("additionalProperties");
        let Some(rest) = rest.filter(|_| !is_open) else { return };
        let patterns = fields.shift_remove("patternProperties");
        let mut names = Map::new();
        let is_listed = self.named(&Value::Object(fields.clone()), &mut names, 0);
        fields.extend(patterns.map(|patterns| ("patternProperties".to_owned(), patterns)));
        let own = fields.get("properties").and_then(Value::as_object).cloned().unwrap_or_default();
        // Those of the others are their own.
        if !is_listed || names.len() > own.len() && rest != Value::Bool(false) {
            return;
        }
        names.retain(|name, _| !own.contains_key(name));
        let properties: Map<String, Value> = own.into_iter().chain(names).collect();
        if !properties.is_empty() {
            fields.insert("properties".to_owned(), Value::Object(properties));
        }
        fields.insert("additionalProperties".to_owned(), rest);
    }

    /// Collects all properties that schemas of the same value name; `false` where they can't be listed.
    fn named(&self, schema: &Value, names: &mut Map<String, Value>, depth: usize) -> bool {
        let Value::Object(fields) = schema else { return *schema == Value::Bool(true) };
        let is_open = ["additionalProperties", "patternProperties", "unevaluatedProperties"];
        if depth > 20 || is_open.iter().any(|key| fields.contains_key(*key)) {
            return false;
        }
        if let Some(Value::Object(properties)) = fields.get("properties") {
            names.extend(properties.keys().map(|name| (name.clone(), Value::Bool(true))));
        }
        fields
            .get("$ref")
            .and_then(number)
            .is_none_or(|def| self.named(&self.check.normal().defs[def], names, depth + 1))
            && in_place(fields).all(|(_, schema)| self.named(schema, names, depth + 1))
    }

    fn names(&self, fields: &mut Map<String, Value>, rule: &Value) {
        let properties = fields.get("properties").and_then(Value::as_object).cloned();
        let mut properties = properties.unwrap_or_default();
        let rest = fields.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
        let rule = match rule {
            Value::Object(rule) => rule,
            Value::Bool(false) => &Map::from_iter([("enum".to_owned(), json!([]))]),
            _ => return,
        };
        let listed = match (rule.get("enum"), rule.get("const")) {
            (Some(Value::Array(names)), _) => Some(names.clone()),
            (None, Some(name)) => Some(vec![name.clone()]),
            _ => None,
        };
        let has_patterns = fields.contains_key("patternProperties");
        if let Some(listed) = listed.filter(|_| !has_patterns) {
            for (name, schema) in &mut properties {
                if !listed.iter().any(|listed| listed == name) {
                    *schema = Value::Bool(false);
                }
            }
            if rest != Value::Bool(false) {
                for name in listed.iter().filter_map(Value::as_str) {
                    properties.entry(name).or_insert_with(|| rest.clone());
                }
            }
            fields.insert("properties".to_owned(), Value::Object(properties));
            fields.insert("additionalProperties".to_owned(), Value::Bool(false));
        } else if let Some(Value::String(pattern)) = rule.get("pattern").filter(|_| !has_patterns) {
            for (name, schema) in &mut properties {
                if !self.check.matches(pattern, name) {
                    *schema = Value::Bool(false);
                }
            }
            let is_free = properties.is_empty() || rest == Value::Bool(true);
            if is_free && rest != Value::Bool(false) {
                if !properties.is_empty() {
                    fields.insert("properties".to_owned(), Value::Object(properties));
                }
                fields.insert("patternProperties".to_owned(), json!({pattern: rest}));
                fields.insert("additionalProperties".to_owned(), Value::Bool(false));
            }
        }
    }

    /// Leaves out the patterns that llguidance can't tell apart.
    fn patterns(&self, fields: &mut Map<String, Value>, patterns: Map<String, Value>) {
        let mut held = Map::new();
        for (pattern, schema) in &patterns {
            held.insert(translate(pattern), schema.clone());
        }
        let trial: Map<String, Value> =
            held.keys().map(|pattern| (pattern.clone(), Value::Bool(true))).collect();
        if compiles(&json!({"type": "object", "patternProperties": trial})).is_ok() {
            fields.insert("patternProperties".to_owned(), Value::Object(held));
            return;
        }
        fields.shift_remove("patternProperties");
        // Names that match one of them are not additional.
        fields.shift_remove("additionalProperties");
        if let Some(Value::Object(properties)) = fields.get_mut("properties") {
            for (name, property) in properties {
                let matching = patterns.iter().filter(|(p, _)| self.check.matches(p, name));
                let all: Vec<Value> = matching.map(|(_, schema)| schema.clone()).collect();
                if !all.is_empty() {
                    let all: Vec<Value> = [property.take()].into_iter().chain(all).collect();
                    *property = json!({"allOf": all});
                }
            }
        }
    }
}

/// Says how many properties there are by which; `false` where there can't be so many.
fn count_properties(fields: &mut Map<String, Value>) -> bool {
    let count = |key: &str| fields.get(key).and_then(Value::as_u64).map(|count| count as usize);
    let (min, max) = (count("minProperties"), count("maxProperties"));
    if min.is_none() && max.is_none() {
        return true;
    }
    let required: Vec<String> = match fields.get("required") {
        Some(Value::Array(names)) => {
            names.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        }
        _ => Vec::new(),
    };
    let properties = fields.get("properties").and_then(Value::as_object);
    let optional: Vec<String> = properties
        .into_iter()
        .flatten()
        .filter(|(name, schema)| !required.contains(name) && **schema != Value::Bool(false))
        .map(|(name, _)| name.clone())
        .collect();
    let is_object = fields.get("type") == Some(&json!("object"));
    if optional.is_empty() && is_object {
        // llguidance counts these itself.
        return true;
    }
    let is_closed = fields.get("additionalProperties") == Some(&Value::Bool(false))
        && !fields.contains_key("patternProperties");
    fields.shift_remove("minProperties");
    fields.shift_remove("maxProperties");
    if !is_closed || !is_object {
        return true;
    }
    let min = min.unwrap_or(0).saturating_sub(required.len());
    let max = max.map_or(optional.len(), |max| max.saturating_sub(required.len()));
    let max = max.min(optional.len());
    if min > max {
        return false;
    }
    // Choices that need `min`, and of which the rest is left out from `max` on.
    let mut choices = Vec::new();
    if max == optional.len() {
        if min == 0 || !choose(&optional, min, &mut choices) {
            return true;
        }
        let all = choices.into_iter().map(|names| json!({"type": "object", "required": names}));
        any_of(fields, all.collect());
        return true;
    }
    for len in min..=max {
        if !choose(&optional, len, &mut choices) {
            return true;
        }
    }
    let all = choices.into_iter().map(|names| {
        let left_out = optional.iter().filter(|name| !names.contains(name));
        let none: Map<String, Value> =
            left_out.map(|name| (name.clone(), Value::Bool(false))).collect();
        json!({"type": "object", "properties": none, "required": names})
    });
    any_of(fields, all.collect());
    true
}

/// Adds an `anyOf`, beside one that is there.
fn any_of(fields: &mut Map<String, Value>, all: Vec<Value>) {
    if let Some(other) = fields.shift_remove("anyOf") {
        let all_of = fields.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(all_of) = all_of {
            all_of.push(json!({"anyOf": other}));
        }
    }
    fields.insert("anyOf".to_owned(), Value::Array(all));
}

/// Adds every choice of `len` of `names`; `false` if they are too many.
fn choose(names: &[String], len: usize, choices: &mut Vec<Vec<String>>) -> bool {
    fn add(rest: &[String], len: usize, taken: &mut Vec<String>, to: &mut Vec<Vec<String>>) {
        if len == 0 {
            to.push(taken.clone());
            return;
        }
        for (index, name) in rest.iter().enumerate() {
            if rest.len() - index < len || to.len() > MAX_CHOICES {
                return;
            }
            taken.push(name.clone());
            add(&rest[index + 1..], len - 1, taken, to);
            taken.pop();
        }
    }
    add(names, len, &mut Vec::new(), choices);
    choices.len() <= MAX_CHOICES
}
