//! Whether a document is of a schema: the last word, where a grammar holds a part of it.

use super::normal::Normal;
use super::pattern::translate;
use super::refs::escaped;
use super::value::{compare, is_multiple, is_same, is_type, is_unique};
use serde_json::{Map, Value};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};

/// Schemas that one check looks at: those that refer to each other can be too many.
const MAX_STEPS: usize = 2_000_000;
/// Schemas in schemas at most, of one check.
const MAX_DEPTH: usize = 400;
/// Violations that are told.
const MAX_VIOLATIONS: usize = 8;

/// A schema that documents are checked against.
pub(super) struct Check {
    normal: Normal,
    patterns: HashMap<String, fancy_regex::Regex>,
}

/// The properties and items of a value that a schema has said something about.
#[derive(Default)]
struct Seen {
    properties: BTreeSet<String>,
    items: BTreeSet<usize>,
}

/// A check in the middle.
struct Run<'a> {
    check: &'a Check,
    steps: usize,
    depth: usize,
    violations: Vec<String>,
    /// Parts of a schema that may be broken, as of `anyOf`, are not told.
    is_quiet: usize,
}

impl Check {
    /// # Errors
    /// A pattern that is no regular expression, with its place.
    pub fn new(normal: Normal) -> Result<Self, String> {
        let mut patterns = HashMap::new();
        for (def, pointer) in normal.defs.iter().zip(&normal.pointers) {
            add_patterns(def, pointer, &mut patterns)?;
        }
        Ok(Check { normal, patterns })
    }

    pub fn normal(&self) -> &Normal {
        &self.normal
    }

    /// Whether `pattern`, of the schema, matches a part of `text`.
    pub fn matches(&self, pattern: &str, text: &str) -> bool {
        // One that takes too long may match.
        self.patterns.get(pattern).is_none_or(|regex| regex.is_match(text).unwrap_or(true))
    }

    /// What `document` breaks: the first few.
    pub fn violations(&self, document: &Value) -> Vec<String> {
        let mut run = Run { check: self, steps: 0, depth: 0, violations: Vec::new(), is_quiet: 0 };
        run.def(0, document, "", &mut Seen::default());
        // Given up, it knows nothing.
        if run.steps > MAX_STEPS { Vec::new() } else { run.violations }
    }
}

fn add_patterns(
    schema: &Value,
    at: &str,
    patterns: &mut HashMap<String, fancy_regex::Regex>,
) -> Result<(), String> {
    let Value::Object(fields) = schema else { return Ok(()) };
    let mut add = |pattern: &String, at: &str| {
        if !patterns.contains_key(pattern) {
            let regex = fancy_regex::Regex::new(&translate(pattern));
            let regex =
                regex.map_err(|_| format!("#{at}: `{pattern}` is no regular expression"))?;
            patterns.insert(pattern.clone(), regex);
        }
        Ok::<_, String>(())
    };
    if let Some(Value::String(pattern)) = fields.get("pattern") {
        add(pattern, at)?;
    }
    if let Some(Value::Object(properties)) = fields.get("patternProperties") {
        properties.keys().try_for_each(|pattern| add(pattern, at))?;
    }
    for (key, value) in fields {
        let at = format!("{at}/{}", escaped(key));
        match value {
            Value::Object(named) if is_named(key) => {
                named.iter().try_for_each(|(name, schema)| {
                    add_patterns(schema, &format!("{at}/{}", escaped(name)), patterns)
                })?
            }
            Value::Array(all) if is_list(key) => {
                all.iter().enumerate().try_for_each(|(index, schema)| {
                    add_patterns(schema, &format!("{at}/{index}"), patterns)
                })?
            }
            Value::Object(_) if key != "const" => add_patterns(value, &at, patterns)?,
            _ => {}
        }
    }
    Ok(())
}

/// Whether the values of `key` are schemas by name.
pub(super) fn is_named(key: &str) -> bool {
    matches!(key, "properties" | "patternProperties" | "dependentSchemas")
}

/// Whether `key` has a list of schemas.
pub(super) fn is_list(key: &str) -> bool {
    matches!(key, "allOf" | "anyOf" | "oneOf" | "prefixItems")
}

impl Run<'_> {
    fn def(&mut self, def: usize, value: &Value, path: &str, seen: &mut Seen) -> bool {
        let normal = &self.check.normal;
        self.schema(&normal.defs[def], value, path, &normal.pointers[def], seen)
    }

    /// Whether `value`, which is at `path`, is of the schema at the place `at`.
    fn schema(
        &mut self,
        schema: &Value,
        value: &Value,
        path: &str,
        at: &str,
        seen: &mut Seen,
    ) -> bool {
        self.steps += if self.depth > MAX_DEPTH { MAX_STEPS } else { 1 };
        if self.steps > MAX_STEPS {
            return true;
        }
        self.depth += 1;
        let is_valid = self.rules(schema, value, path, at, seen);
        self.depth -= 1;
        is_valid
    }

    fn rules(
        &mut self,
        schema: &Value,
        value: &Value,
        path: &str,
        at: &str,
        seen: &mut Seen,
    ) -> bool {
        let fields = match schema {
            Value::Object(fields) => fields,
            other => {
                let is_valid = *other != Value::Bool(false);
                return self.tell(is_valid, path, at, "");
            }
        };
        let mut here = Seen::default();
        let mut is_valid = true;
        for (key, rule) in fields {
            let holds = match value {
                Value::String(text) => self.text(key, rule, text),
                Value::Number(_) => number(key, rule, value),
                _ => true,
            };
            let holds = holds && any(key, rule, value);
            is_valid &= self.tell(holds, path, at, key);
        }
        if let Some(def) = self.check.normal.target(fields) {
            is_valid &= self.def(def, value, path, &mut here);
        }
        is_valid &= self.applicators(fields, value, path, at, &mut here);
        is_valid &= match value {
            Value::Object(object) => self.object(fields, object, path, at, &mut here),
            Value::Array(items) => self.array(fields, items, path, at, &mut here),
            _ => true,
        };
        if is_valid {
            seen.properties.append(&mut here.properties);
            seen.items.append(&mut here.items);
        }
        is_valid
    }

    fn tell(&mut self, holds: bool, path: &str, at: &str, key: &str) -> bool {
        if !holds && self.is_quiet == 0 && self.violations.len() < MAX_VIOLATIONS {
            let slash = if key.is_empty() { "" } else { "/" };
            let place = if path.is_empty() { String::new() } else { format!(" at {path}") };
            self.violations.push(format!("the answer breaks #{at}{slash}{key}{place}"));
        }
        holds
    }

    /// Whether `value` is of a schema, which need not be.
    fn quietly(&mut self, schema: &Value, value: &Value, seen: &mut Seen) -> bool {
        self.is_quiet += 1;
        let is_valid = self.schema(schema, value, "", "", seen);
        self.is_quiet -= 1;
        is_valid
    }

    fn applicators(
        &mut self,
        fields: &Map<String, Value>,
        value: &Value,
        path: &str,
        at: &str,
        seen: &mut Seen,
    ) -> bool {
        let schemas = |key: &str| fields.get(key).and_then(Value::as_array);
        let mut is_valid = true;
        for (index, schema) in schemas("allOf").into_iter().flatten().enumerate() {
            is_valid &= self.schema(schema, value, path, &format!("{at}/allOf/{index}"), seen);
        }
        for key in ["anyOf", "oneOf"] {
            if let Some(schemas) = schemas(key) {
                let num = schemas.iter().filter(|schema| self.quietly(schema, value, seen)).count();
                let holds = num == 1 || key == "anyOf" && num > 0;
                is_valid &= self.tell(holds, path, at, key);
            }
        }
        if let Some(schema) = fields.get("not") {
            let holds = !self.quietly(schema, value, &mut Seen::default());
            is_valid &= self.tell(holds, path, at, "not");
        }
        if let Some(condition) = fields.get("if") {
            let key = if self.quietly(condition, value, seen) { "then" } else { "else" };
            if let Some(schema) = fields.get(key) {
                is_valid &= self.schema(schema, value, path, &format!("{at}/{key}"), seen);
            }
        }
        if let (Some(Value::Object(dependent)), Value::Object(object)) =
            (fields.get("dependentSchemas"), value)
        {
            for (name, schema) in dependent.iter().filter(|(name, _)| object.contains_key(*name)) {
                let at = format!("{at}/dependentSchemas/{}", escaped(name));
                is_valid &= self.schema(schema, value, path, &at, seen);
            }
        }
        is_valid
    }

    fn object(
        &mut self,
        fields: &Map<String, Value>,
        object: &Map<String, Value>,
        path: &str,
        at: &str,
        seen: &mut Seen,
    ) -> bool {
        let named = |key: &str| fields.get(key).and_then(Value::as_object);
        let mut is_valid = true;
        let none = || Seen::default();
        for (name, value) in object {
            let path = format!("{path}/{}", escaped(name));
            let mut is_known = false;
            if let Some(schema) = named("properties").and_then(|properties| properties.get(name)) {
                is_known = true;
                let at = format!("{at}/properties/{}", escaped(name));
                is_valid &= self.schema(schema, value, &path, &at, &mut none());
            }
            for (pattern, schema) in named("patternProperties").into_iter().flatten() {
                if self.check.matches(pattern, name) {
                    is_known = true;
                    let at = format!("{at}/patternProperties/{}", escaped(pattern));
                    is_valid &= self.schema(schema, value, &path, &at, &mut none());
                }
            }
            if let Some(schema) = fields.get("additionalProperties").filter(|_| !is_known) {
                is_known = true;
                let at = format!("{at}/additionalProperties");
                is_valid &= self.schema(schema, value, &path, &at, &mut none());
            }
            if let Some(schema) = fields.get("propertyNames") {
                let holds = self.quietly(schema, &Value::String(name.clone()), &mut none());
                is_valid &= self.tell(holds, &path, at, "propertyNames");
            }
            let is_seen = is_known || seen.properties.contains(name);
            if let Some(schema) = fields.get("unevaluatedProperties").filter(|_| !is_seen) {
                is_known = true;
                let at = format!("{at}/unevaluatedProperties");
                is_valid &= self.schema(schema, value, &path, &at, &mut none());
            }
            if is_known {
                seen.properties.insert(name.clone());
            }
        }
        is_valid
    }

    fn array(
        &mut self,
        fields: &Map<String, Value>,
        items: &[Value],
        path: &str,
        at: &str,
        seen: &mut Seen,
    ) -> bool {
        let prefix = fields.get("prefixItems").and_then(Value::as_array);
        let prefix = prefix.map(Vec::as_slice).unwrap_or_default();
        let mut is_valid = true;
        let mut num_contained = 0;
        for (index, value) in items.iter().enumerate() {
            let path = format!("{path}/{index}");
            let rule = match prefix.get(index) {
                Some(schema) => Some((schema, format!("{at}/prefixItems/{index}"))),
                None => fields.get("items").map(|schema| (schema, format!("{at}/items"))),
            };
            if let Some((schema, at)) = &rule {
                is_valid &= self.schema(schema, value, &path, at, &mut Seen::default());
            }
            let mut is_known = rule.is_some();
            if let Some(schema) = fields.get("contains")
                && self.quietly(schema, value, &mut Seen::default())
            {
                num_contained += 1;
                is_known = true;
            }
            if let Some(schema) = fields.get("unevaluatedItems")
                && !is_known
                && !seen.items.contains(&index)
            {
                is_known = true;
                let at = format!("{at}/unevaluatedItems");
                is_valid &= self.schema(schema, value, &path, &at, &mut Seen::default());
            }
            if is_known {
                seen.items.insert(index);
            }
        }
        if fields.contains_key("contains") {
            let bound = |key: &str| fields.get(key).and_then(Value::as_u64);
            let is_enough = num_contained >= bound("minContains").unwrap_or(1);
            is_valid &= self.tell(is_enough, path, at, "contains");
            let is_few = bound("maxContains").is_none_or(|max| num_contained <= max);
            is_valid &= self.tell(is_few, path, at, "maxContains");
        }
        is_valid
    }

    fn text(&self, key: &str, rule: &Value, text: &str) -> bool {
        let len = || text.chars().count() as u64;
        match (key, rule) {
            ("minLength", rule) => rule.as_u64().is_none_or(|min| len() >= min),
            ("maxLength", rule) => rule.as_u64().is_none_or(|max| len() <= max),
            ("pattern", Value::String(pattern)) => self.check.matches(pattern, text),
            _ => true,
        }
    }
}

/// The rules of a value by itself.
fn any(key: &str, rule: &Value, value: &Value) -> bool {
    let bound = rule.as_u64().unwrap_or(0) as usize;
    match (key, rule, value) {
        ("const", rule, value) => is_same(rule, value),
        ("enum", Value::Array(all), value) => all.iter().any(|one| is_same(one, value)),
        ("type", Value::Array(types), value) => types.iter().any(|name| is_type(name, value)),
        ("type", name, value) => is_type(name, value),
        ("minItems", _, Value::Array(items)) => items.len() >= bound,
        ("maxItems", _, Value::Array(items)) => items.len() <= bound,
        ("uniqueItems", Value::Bool(true), Value::Array(items)) => is_unique(items),
        ("minProperties", _, Value::Object(object)) => object.len() >= bound,
        ("maxProperties", _, Value::Object(object)) => object.len() <= bound,
        ("required", Value::Array(names), Value::Object(object)) => {
            names.iter().filter_map(Value::as_str).all(|name| object.contains_key(name))
        }
        ("dependentRequired", Value::Object(rules), Value::Object(object)) => {
            rules.iter().filter(|(name, _)| object.contains_key(*name)).all(|(_, names)| {
                let mut names = names.as_array().into_iter().flatten().filter_map(Value::as_str);
                names.all(|name| object.contains_key(name))
            })
        }
        _ => true,
    }
}

fn number(key: &str, rule: &Value, value: &Value) -> bool {
    let order = || compare(value, rule);
    match key {
        "minimum" => order() != Ordering::Less,
        "maximum" => order() != Ordering::Greater,
        "exclusiveMinimum" => order() == Ordering::Greater,
        "exclusiveMaximum" => order() == Ordering::Less,
        "multipleOf" => is_multiple(value, rule),
        _ => true,
    }
}
