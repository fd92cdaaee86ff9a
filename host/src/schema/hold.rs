//! The part of a schema that a grammar of llguidance holds.
//!
//! What it does not know is rewritten where it can be said otherwise, and left out where not: the grammar allows every
//! document of the schema, in the order of its properties, and some that are none.

mod array;
mod number;
mod object;
mod text;

use super::check::{Check, is_list, is_named};
use super::conditions;
use super::normal::{Normal, number};
use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Schemas that nothing is of, and that references lead to.
const MAX_IMPOSSIBLE: usize = 30;
/// What llguidance says of a schema that nothing is of.
const UNSATISFIABLE: &str = "Unsatisfiable";
/// Schemas that references are replaced by.
const MAX_INLINED: usize = 2000;
/// Schemas that are written, some of them several times; those beyond allow everything.
const MAX_SCHEMAS: usize = 50_000;
/// Schemas in schemas; deeper ones allow everything.
const MAX_DEPTH: usize = 200;

/// The part of a schema that llguidance takes.
pub(super) fn held(check: &Check, is_light: &dyn Fn(&Value) -> bool) -> Value {
    let held = satisfiable(Holder::new(check, is_light, false).document());
    match compiles(&held) {
        Err(why) if !why.contains(UNSATISFIABLE) => {
            satisfiable(Holder::new(check, is_light, true).document())
        }
        _ => held,
    }
}

/// A document whose references lead to nothing that llguidance finds impossible: it refuses those that may be left
/// out, too.
fn satisfiable(mut held: Value) -> Value {
    for _ in 0..MAX_IMPOSSIBLE {
        let Err(why) = compiles(&held) else { break };
        let place = why.rsplit_once("while processing ").filter(|_| why.contains(UNSATISFIABLE));
        match place.map(|(_, place)| json!(place.trim())) {
            Some(reference) => forbid(&mut held, &reference),
            None => break,
        }
    }
    held
}

/// Puts `false` where `reference` is.
fn forbid(value: &mut Value, reference: &Value) {
    match value {
        Value::Object(fields) if fields.get("$ref") == Some(reference) => *value = false.into(),
        Value::Object(fields) => fields.values_mut().for_each(|value| forbid(value, reference)),
        Value::Array(values) => values.iter_mut().for_each(|value| forbid(value, reference)),
        _ => {}
    }
}

/// Makes the schemas of a grammar.
struct Holder<'a> {
    check: &'a Check,
    is_light: &'a dyn Fn(&Value) -> bool,
    /// Which elements of the normal form's `defs` lead to themselves.
    is_recursive: Vec<bool>,
    /// What llguidance takes of the rules of a text.
    texts: HashMap<String, Map<String, Value>>,
    num_inlined: usize,
    num_schemas: usize,
    depth: usize,
    /// Whether no two schemas are merged.
    is_plain: bool,
}

impl<'a> Holder<'a> {
    /// `is_plain`: without what llguidance would have to merge.
    fn new(check: &'a Check, is_light: &'a dyn Fn(&Value) -> bool, is_plain: bool) -> Self {
        Holder {
            check,
            is_light,
            is_recursive: recursive(check.normal()),
            texts: HashMap::new(),
            num_inlined: 0,
            num_schemas: 0,
            depth: 0,
            is_plain,
        }
    }

    /// The whole schema.
    fn document(&mut self) -> Value {
        let normal = self.check.normal();
        let mut held: Vec<Value> = normal.defs.iter().map(|def| self.schema(def, false)).collect();
        let root = held[0].clone();
        let Value::Object(mut root) = root else { return root };
        if held.len() > 1 || normal.defs[0].to_string().contains("#/$defs/0") {
            let defs = held.drain(..).enumerate().map(|(number, def)| (number.to_string(), def));
            root.insert("$defs".to_owned(), Value::Object(defs.collect()));
        }
        Value::Object(root)
    }

    /// `is_merged`: it is intersected with another schema.
    fn schema(&mut self, schema: &Value, is_merged: bool) -> Value {
        let Value::Object(fields) = schema else { return schema.clone() };
        self.num_schemas += 1;
        if self.depth > MAX_DEPTH || self.num_schemas > MAX_SCHEMAS {
            return Value::Bool(true);
        }
        self.depth += 1;
        let held = self.rewrite(fields.clone(), is_merged);
        self.depth -= 1;
        held
    }

    fn rewrite(&mut self, mut fields: Map<String, Value>, is_merged: bool) -> Value {
        self.close(&mut fields);
        if self.is_plain {
            simplify(&mut fields);
        }
        if let Some(def) = fields.get("$ref").and_then(number) {
            let is_merged = is_merged || fields.len() > 1;
            if is_merged && self.is_recursive[def] && self.num_inlined < MAX_INLINED {
                // llguidance can't merge what it is in the middle of.
                self.num_inlined += 1;
                let target = self.check.normal().defs[def].clone();
                fields.shift_remove("$ref");
                let rest = Value::Object(fields);
                return match rest == json!({}) {
                    true => self.schema(&target, true),
                    false => self.schema(&json!({"allOf": [target, rest]}), true),
                };
            }
        }
        if !conditions::rewrite(&mut fields) {
            return Value::Bool(false);
        }
        self.children(&mut fields, is_merged);
        self.text(&mut fields);
        array::hold(&mut fields);
        let is_possible = number::hold(&mut fields) && self.object(&mut fields);
        if is_possible { Value::Object(fields) } else { Value::Bool(false) }
    }

    fn children(&mut self, fields: &mut Map<String, Value>, is_merged: bool) {
        let merges = is_merged
            || fields.get("allOf").and_then(Value::as_array).is_some_and(|all| all.len() > 1)
            || fields.len() > 1;
        for (key, value) in fields.iter_mut() {
            let merges = merges && matches!(key.as_str(), "allOf" | "anyOf" | "oneOf");
            match value {
                Value::Object(named) if is_named(key) => {
                    named.values_mut().for_each(|schema| *schema = self.schema(schema, false));
                }
                Value::Array(all) if is_list(key) => {
                    all.iter_mut().for_each(|schema| *schema = self.schema(schema, merges));
                }
                Value::Object(_) if matches!(key.as_str(), "items" | "additionalProperties") => {
                    *value = self.schema(value, false);
                }
                _ => {}
            }
        }
    }
}

/// Leaves one of the schemas that are about the same value: the own, or the first that is not.
fn simplify(fields: &mut Map<String, Value>) {
    for key in ["if", "then", "else", "not", "dependentSchemas", "patternProperties"] {
        fields.shift_remove(key);
    }
    let own = ["properties", "items", "prefixItems", "enum", "const"];
    let has_own = own.iter().any(|key| fields.contains_key(*key));
    let others = ["$ref", "anyOf", "oneOf", "allOf"];
    let kept = others.iter().find(|key| fields.contains_key(**key)).filter(|_| !has_own);
    match kept {
        Some(kept) => fields.retain(|key, _| key == kept || key == "type" && *kept != "$ref"),
        None => fields.retain(|key, _| !others.contains(&key.as_str())),
    }
    if let Some(Value::Array(all)) = fields.get_mut("allOf") {
        all.truncate(1);
    }
}

/// Which schemas lead to themselves.
fn recursive(normal: &Normal) -> Vec<bool> {
    let targets: Vec<Vec<usize>> = normal.defs.iter().map(targets).collect();
    let leads = |start: usize| {
        let mut is_seen = vec![false; targets.len()];
        let mut open = targets[start].clone();
        while let Some(next) = open.pop() {
            if !std::mem::replace(&mut is_seen[next], true) {
                open.extend(&targets[next]);
            }
        }
        is_seen[start]
    };
    (0..targets.len()).map(leads).collect()
}

fn targets(schema: &Value) -> Vec<usize> {
    match schema {
        Value::Object(fields) => {
            let own = fields.get("$ref").and_then(number).into_iter();
            own.chain(fields.values().flat_map(targets)).collect()
        }
        Value::Array(values) => values.iter().flat_map(targets).collect(),
        _ => Vec::new(),
    }
}

/// Whether llguidance compiles a schema.
fn compiles(schema: &Value) -> Result<(), String> {
    let builder = GrammarBuilder::new(None, ParserLimits::default());
    let options = JsonCompileOptions { lenient: true, ..JsonCompileOptions::default() };
    let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        options.json_to_llg_no_validate(builder, schema.clone())
    }));
    match result {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err("it is too large".to_owned()),
    }
}
