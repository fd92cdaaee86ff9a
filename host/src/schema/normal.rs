//! A schema in one form, whichever draft it is of: without annotations, its references by number.

use super::refs::{Places, escaped};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Schemas of a document at most, those counted again that several references lead to.
const MAX_SCHEMAS: usize = 100_000;
/// Schemas that references lead to, at most.
const MAX_DEFS: usize = 5000;
/// References that lead from one to the next at the same place of a document, at most.
const MAX_CHAIN: usize = 100;

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// A schema whose `$ref`s are `#/$defs/N`, of the element `N` of `defs`.
#[derive(Debug)]
pub(super) struct Normal {
    /// The first is the schema itself.
    pub defs: Vec<Value>,
    /// Where each is in the source.
    pub pointers: Vec<String>,
}

impl Normal {
    /// # Errors
    /// What is no schema, with its place.
    pub fn new(source: &Value) -> Result<Self, String> {
        let draft = source.get("$schema").and_then(Value::as_str).unwrap_or_default();
        let mut builder = Builder {
            source,
            places: Places::new(source),
            is_old: ["draft-04", "draft-06", "draft-07"].iter().any(|old| draft.contains(old)),
            numbers: HashMap::from([(String::new(), 0)]),
            pointers: vec![String::new()],
            num_schemas: 0,
        };
        let mut defs = Vec::new();
        while let Some(pointer) = builder.pointers.get(defs.len()).cloned() {
            let value = source.pointer(&pointer).expect("it is resolved");
            let base = parent_base(&builder.places, source, &pointer);
            defs.push(builder.schema(value, &base, &pointer)?);
        }
        let mut normal = Normal { defs, pointers: builder.pointers };
        normal.check_cycles()?;
        normal.close_endless();
        Ok(normal)
    }

    /// The schema that `$ref` leads to.
    pub fn target(&self, schema: &Map<String, Value>) -> Option<usize> {
        number(schema.get("$ref")?)
    }

    /// No schema is a part of itself at the same place of a document: it would say nothing.
    fn check_cycles(&self) -> Result<(), String> {
        // 0: not seen, 1: in the path, 2: done.
        let mut states = vec![0; self.defs.len()];
        (0..self.defs.len()).try_for_each(|def| self.visit(def, &mut states, 0))
    }

    fn visit(&self, def: usize, states: &mut [u8], depth: usize) -> Result<(), String> {
        if depth > MAX_CHAIN {
            return Err(format!("#{}: a chain of too many `$ref`s", self.pointers[def]));
        }
        match states[def] {
            0 => states[def] = 1,
            1 => return Err(format!("#{}: a `$ref` that leads to itself", self.pointers[def])),
            _ => return Ok(()),
        }
        let mut targets = Vec::new();
        in_place_targets(&self.defs[def], &mut targets);
        targets.into_iter().try_for_each(|target| self.visit(target, states, depth + 1))?;
        states[def] = 2;
        Ok(())
    }

    /// Schemas that only endless documents fit allow nothing.
    fn close_endless(&mut self) {
        let mut has_end = vec![false; self.defs.len()];
        loop {
            let new: Vec<bool> = self.defs.iter().map(|def| ends(def, &has_end)).collect();
            if new == has_end {
                break;
            }
            has_end = new;
        }
        for (def, _) in self.defs.iter_mut().zip(has_end).filter(|(_, has_end)| !has_end) {
            *def = Value::Bool(false);
        }
    }
}

/// The element of `defs` that a `$ref` of a normal schema leads to.
pub(super) fn number(reference: &Value) -> Option<usize> {
    reference.as_str()?.strip_prefix("#/$defs/")?.parse().ok()
}

/// The URI around what is at `pointer`.
fn parent_base(places: &Places, source: &Value, pointer: &str) -> String {
    match pointer.rsplit_once('/') {
        Some((parent, _)) => places.base(source, parent),
        None => String::new(),
    }
}

fn in_place_targets(schema: &Value, targets: &mut Vec<usize>) {
    let Value::Object(fields) = schema else { return };
    targets.extend(fields.get("$ref").and_then(number));
    for (_, schema) in in_place(fields) {
        in_place_targets(schema, targets);
    }
}

/// The schemas in `fields` that are about the same value, with their places in it.
pub(super) fn in_place(fields: &Map<String, Value>) -> impl Iterator<Item = (String, &Value)> {
    let several = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| {
        let schemas = fields.get(key).and_then(Value::as_array);
        let schemas = schemas.into_iter().flatten().enumerate();
        schemas.map(move |(index, schema)| (format!("/{key}/{index}"), schema))
    });
    let single = ["not", "if", "then", "else"].into_iter();
    let single = single.filter_map(|key| Some((format!("/{key}"), fields.get(key)?)));
    let dependent = fields.get("dependentSchemas").and_then(Value::as_object);
    let dependent = dependent.into_iter().flatten();
    let dependent =
        dependent.map(|(key, schema)| (format!("/dependentSchemas/{}", escaped(key)), schema));
    several.chain(single).chain(dependent)
}

/// Whether a document with an end may fit, as far as `has_end` tells of the elements of `defs`.
fn ends(schema: &Value, has_end: &[bool]) -> bool {
    let fields = match schema {
        Value::Object(fields) => fields,
        other => return *other != Value::Bool(false),
    };
    let schemas = |key: &str| fields.get(key).and_then(Value::as_array).map(Vec::as_slice);
    let any = |key: &str| schemas(key).is_none_or(|all| all.iter().any(|s| ends(s, has_end)));
    let is_possible = fields.get("$ref").and_then(number).is_none_or(|def| has_end[def])
        && schemas("allOf").is_none_or(|all| all.iter().all(|s| ends(s, has_end)))
        && any("anyOf")
        && any("oneOf");
    let types: Vec<&str> = match fields.get("type") {
        None => return is_possible,
        Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
        Some(other) => other.as_str().into_iter().collect(),
    };
    let mut types = types.into_iter();
    is_possible
        && types.any(|name| match name {
            "object" => {
                let property = |name: &str| fields.get("properties")?.get(name);
                let required = schemas("required").unwrap_or_default().iter();
                let mut required = required.filter_map(Value::as_str);
                required.all(|name| property(name).is_none_or(|s| ends(s, has_end)))
            }
            "array" => {
                let prefix = schemas("prefixItems").unwrap_or_default();
                let min = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
                prefix.iter().take(min).all(|s| ends(s, has_end))
                    && (prefix.len() >= min || fields.get("items").is_none_or(|s| ends(s, has_end)))
            }
            _ => true,
        })
}

struct Builder<'a> {
    source: &'a Value,
    places: Places,
    /// Whether what stands beside a `$ref` says nothing, as up to draft 7.
    is_old: bool,
    /// Elements of `pointers`.
    numbers: HashMap<String, usize>,
    pointers: Vec<String>,
    num_schemas: usize,
}

impl Builder<'_> {
    fn schema(&mut self, value: &Value, base: &str, at: &str) -> Result<Value, String> {
        self.num_schemas += 1;
        if self.num_schemas > MAX_SCHEMAS {
            return Err("it is too large".to_owned());
        }
        let fields = match value {
            Value::Bool(_) => return Ok(value.clone()),
            Value::Object(fields) => fields,
            _ => return Err(wrong(at, "an object, or true or false")),
        };
        let own = self.places.own_uri(fields, base);
        let base = own.as_deref().unwrap_or(base);
        let is_alone = self.is_old && fields.contains_key("$ref");
        let mut out = Map::new();
        for (key, value) in fields {
            // Some programs write what they leave out.
            let is_absent = value.is_null() && key != "const";
            if !(is_absent || is_alone && key != "$ref") {
                let at = format!("{at}/{}", escaped(key));
                if let Some(value) = self.keyword(key, value, base, &at)? {
                    out.insert(key.clone(), value);
                }
            }
        }
        modernise(&mut out);
        if fields.get("nullable") == Some(&Value::Bool(true)) {
            allow_null(&mut out);
        }
        Ok(Value::Object(out))
    }

    /// The value of a keyword; `None` for one that says nothing about documents.
    fn keyword(
        &mut self,
        key: &str,
        value: &Value,
        base: &str,
        at: &str,
    ) -> Result<Option<Value>, String> {
        let value = match key {
            "$ref" | "$dynamicRef" | "$recursiveRef" => {
                let Some(reference) = value.as_str() else { return Err(wrong(at, "a text")) };
                self.reference(reference, base, at)?
            }
            "items" if value.is_array() => self.schemas(value, base, at)?,
            "items"
            | "additionalItems"
            | "additionalProperties"
            | "contains"
            | "propertyNames"
            | "not"
            | "if"
            | "then"
            | "else"
            | "unevaluatedItems"
            | "unevaluatedProperties" => self.schema(value, base, at)?,
            "allOf" | "anyOf" | "oneOf" | "prefixItems" => self.schemas(value, base, at)?,
            "properties" | "patternProperties" | "dependentSchemas" | "dependencies" => {
                self.named(value, base, at, key == "dependencies")?
            }
            _ => return rule(key, value, at),
        };
        Ok(Some(value))
    }

    fn schemas(&mut self, value: &Value, base: &str, at: &str) -> Result<Value, String> {
        let Value::Array(values) = value else { return Err(wrong(at, "a list of schemas")) };
        let schemas = values.iter().enumerate();
        let schemas = schemas.map(|(i, value)| self.schema(value, base, &format!("{at}/{i}")));
        schemas.collect::<Result<Vec<_>, _>>().map(Value::Array)
    }

    fn named(
        &mut self,
        value: &Value,
        base: &str,
        at: &str,
        or_texts: bool,
    ) -> Result<Value, String> {
        let Value::Object(values) = value else { return Err(wrong(at, "an object of schemas")) };
        let mut out = Map::new();
        for (name, value) in values {
            let schema = match or_texts && is_texts(value) {
                true => value.clone(),
                false => self.schema(value, base, &format!("{at}/{}", escaped(name)))?,
            };
            out.insert(name.clone(), schema);
        }
        Ok(Value::Object(out))
    }

    fn reference(&mut self, reference: &str, base: &str, at: &str) -> Result<Value, String> {
        let pointer = self.places.resolve(reference, base, self.source);
        let pointer = pointer.map_err(|why| wrong(at, &why))?;
        let next = self.pointers.len();
        let number = *self.numbers.entry(pointer.clone()).or_insert(next);
        if number == next {
            self.pointers.push(pointer);
        }
        if next > MAX_DEFS {
            return Err("it is too large".to_owned());
        }
        Ok(json!(format!("#/$defs/{number}")))
    }
}

/// The value of a keyword that holds no schema.
fn rule(key: &str, value: &Value, at: &str) -> Result<Option<Value>, String> {
    let value = match key {
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => {
            let count = value.as_u64().or_else(|| {
                let whole = value.as_f64().filter(|n| *n >= 0.0 && n.fract() == 0.0)?;
                Some(whole as u64)
            });
            json!(count.ok_or_else(|| wrong(at, "a whole number of 0 or more"))?)
        }
        "minimum" | "maximum" if value.is_number() => value.clone(),
        "exclusiveMinimum" | "exclusiveMaximum" if value.is_number() || value.is_boolean() => {
            value.clone()
        }
        "multipleOf" if value.as_f64().is_some_and(|n| n > 0.0) => value.clone(),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
            return Err(wrong(at, "a number"));
        }
        "multipleOf" => return Err(wrong(at, "a number above 0")),
        "pattern" | "format" if value.is_string() => value.clone(),
        "pattern" | "format" => return Err(wrong(at, "a text")),
        "uniqueItems" if value.is_boolean() => value.clone(),
        "uniqueItems" => return Err(wrong(at, "true or false")),
        "const" => value.clone(),
        "enum" if value.is_array() => value.clone(),
        "enum" => return Err(wrong(at, "a list")),
        "required" if is_texts(value) => value.clone(),
        "required" => return Err(wrong(at, "a list of texts")),
        "dependentRequired" if is_named(value, is_texts) => value.clone(),
        "dependentRequired" => return Err(wrong(at, "an object of lists of texts")),
        "type" => {
            let is_type = |value: &Value| value.as_str().is_some_and(|t| TYPES.contains(&t));
            let is_list = value.as_array().is_some_and(|types| types.iter().all(is_type));
            if !is_type(value) && !is_list {
                return Err(wrong(at, &format!("one of {}, or a list of them", TYPES.join(", "))));
            }
            value.clone()
        }
        _ => return Ok(None),
    };
    Ok(Some(value))
}

fn wrong(at: &str, why: &str) -> String {
    match why.starts_with('`') {
        true => format!("#{at}: {why}"),
        false => format!("#{at}: it has to be {why}"),
    }
}

fn is_texts(value: &Value) -> bool {
    value.as_array().is_some_and(|texts| texts.iter().all(Value::is_string))
}

fn is_named(value: &Value, is_right: impl Fn(&Value) -> bool) -> bool {
    value.as_object().is_some_and(|fields| fields.values().all(is_right))
}

/// Writes what older drafts have as the newest one does.
fn modernise(fields: &mut Map<String, Value>) {
    for key in ["$dynamicRef", "$recursiveRef"] {
        if let Some(reference) = fields.remove(key) {
            fields.entry("$ref").or_insert(reference);
        }
    }
    for (exclusive, bound) in [("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")] {
        match fields.get(exclusive) {
            Some(Value::Bool(true)) if fields.contains_key(bound) => {
                let bound = fields.shift_remove(bound).expect("it is there");
                fields.insert(exclusive.to_owned(), bound);
            }
            Some(Value::Bool(_)) => {
                fields.shift_remove(exclusive);
            }
            _ => {}
        }
    }
    let rest = fields.shift_remove("additionalItems");
    if fields.get("items").is_some_and(Value::is_array) {
        let prefix = fields.shift_remove("items").expect("it is there");
        fields.insert("prefixItems".to_owned(), prefix);
        fields.extend(rest.map(|rest| ("items".to_owned(), rest)));
    }
    if let Some(Value::Object(dependencies)) = fields.shift_remove("dependencies") {
        for (name, dependency) in dependencies {
            let key = if dependency.is_array() { "dependentRequired" } else { "dependentSchemas" };
            fields.entry(key).or_insert_with(|| json!({}))[&name] = dependency;
        }
    }
    if !fields.contains_key("if") {
        fields.retain(|key, _| key != "then" && key != "else");
    }
}

/// OpenAPI's `nullable`.
fn allow_null(fields: &mut Map<String, Value>) {
    match fields.get_mut("type") {
        Some(Value::Array(types)) => types.push(json!("null")),
        Some(name) => *name = json!([name.take(), "null"]),
        None => {
            let schema = Value::Object(std::mem::take(fields));
            fields.insert("anyOf".to_owned(), json!([schema, {"type": "null"}]));
            return;
        }
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.push(Value::Null);
    }
}
