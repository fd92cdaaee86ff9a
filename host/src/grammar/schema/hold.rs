//! The part of a schema that a grammar of llguidance holds.
//!
//! What it does not know is rewritten where it can be said otherwise, and left out where not: the grammar allows every
//! document of the schema, in the order of its properties, and some that are none.

use super::check::{Check, is_list, is_named, is_same};
use super::conditions;
use super::normal::{Normal, in_place, number};
use super::pattern::translate;
use llguidance::api::ParserLimits;
use llguidance::{GrammarBuilder, JsonCompileOptions};
use serde_json::{Map, Value, json};
use std::collections::HashMap;

/// Lists of different items that are spelled out, one after the other.
const MAX_PERMUTATIONS: usize = 350;
/// Ways to choose properties that are spelled out.
const MAX_CHOICES: usize = 64;
/// Divisors that a lexer counts the remainders of.
const MAX_DIVISOR: f64 = 1000.0;
/// Bounds that llguidance counts with in 64 bits, those of integers, and writes without an exponent.
const MAX_BOUND: f64 = 9e15;
/// Schemas that references are replaced by.
const MAX_INLINED: usize = 2000;
/// Schemas that are written, some of them several times; those beyond allow everything.
const MAX_SCHEMAS: usize = 50_000;
/// Schemas in schemas; deeper ones allow everything.
const MAX_DEPTH: usize = 200;

/// Formats that llguidance knows; others are annotations.
const FORMATS: [&str; 10] = [
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
];

/// The part of a schema that llguidance takes.
pub(super) fn held(check: &Check, is_light: &dyn Fn(&Value) -> bool) -> Value {
    let held = Holder::new(check, is_light, false).document();
    match compiles(&held) {
        Err(why) if !why.contains("Unsatisfiable") => {
            Holder::new(check, is_light, true).document()
        }
        _ => held,
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
        let is_possible = self.text(&mut fields)
            && numbers(&mut fields)
            && self.array(&mut fields)
            && self.object(&mut fields);
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
                Value::Object(_)
                    if matches!(
                        key.as_str(),
                        "items" | "additionalProperties"
                    ) =>
                {
                    *value = self.schema(value, false);
                }
                _ => {}
            }
        }
    }

    /// Leaves the rules of a text that a lexer can hold.
    fn text(&mut self, fields: &mut Map<String, Value>) -> bool {
        const RULES: [&str; 4] = ["pattern", "format", "minLength", "maxLength"];
        let mut rules = Map::new();
        for rule in RULES {
            if let Some(value) = fields.shift_remove(rule) {
                let is_known = rule != "format" || FORMATS.iter().any(|format| value == *format);
                if is_known {
                    rules.insert(rule.to_owned(), value);
                }
            }
        }
        if rules.is_empty() {
            return true;
        }
        if let Some(Value::String(pattern)) = rules.get_mut("pattern") {
            *pattern = translate(pattern);
        }
        let key = Value::Object(rules.clone()).to_string();
        let held = self.texts.entry(key).or_insert_with(|| lexed(rules, self.is_light)).clone();
        fields.extend(held);
        true
    }

    fn array(&self, fields: &mut Map<String, Value>) -> bool {
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
        true
    }

    fn object(&self, fields: &mut Map<String, Value>) -> bool {
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
    fn close(&self, fields: &mut Map<String, Value>) {
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
        fields.get("$ref").and_then(number).is_none_or(|def| {
            self.named(&self.check.normal().defs[def], names, depth + 1)
        }) && in_place(fields).all(|(_, schema)| self.named(schema, names, depth + 1))
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

/// Leaves one of the schemas that are about the same value: the own, or the first that is not.
fn simplify(fields: &mut Map<String, Value>) {
    for key in ["if", "then", "else", "not", "dependentSchemas", "patternProperties"] {
        fields.shift_remove(key);
    }
    let own = ["type", "properties", "items", "prefixItems", "enum", "const"];
    let has_own = own.iter().any(|key| fields.contains_key(*key));
    let others = ["$ref", "anyOf", "oneOf", "allOf"];
    let kept = others.iter().find(|key| fields.contains_key(**key)).filter(|_| !has_own);
    match kept {
        Some(kept) => fields.retain(|key, _| key == kept),
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

/// The most of the rules of a text that llguidance takes and is quick with; all where nothing matches them.
fn lexed(rules: Map<String, Value>, is_light: &dyn Fn(&Value) -> bool) -> Map<String, Value> {
    let ways: [&[&str]; 6] = [
        &[],
        &["minLength", "maxLength"],
        &["format"],
        &["pattern"],
        &["format", "minLength", "maxLength"],
        &["pattern", "minLength", "maxLength"],
    ];
    for left_out in ways {
        let kept = rules.iter().filter(|(rule, _)| !left_out.contains(&rule.as_str()));
        let kept: Map<String, Value> =
            kept.map(|(rule, value)| (rule.clone(), value.clone())).collect();
        let mut trial = kept.clone();
        trial.insert("type".to_owned(), json!("string"));
        let trial = Value::Object(trial);
        let is_plain = !kept.contains_key("pattern") && !kept.contains_key("format");
        match compiles(&trial) {
            Ok(()) if is_plain || is_light(&trial) => return kept,
            // Formats are annotations: what has another does not exclude it.
            Err(why) if why.contains("Unsatisfiable") && !kept.contains_key("format") => {
                return kept;
            }
            _ => {}
        }
    }
    Map::new()
}

/// Divisors that a lexer can count with; `false` where no number is between the bounds.
fn numbers(fields: &mut Map<String, Value>) -> bool {
    const BOUNDS: [&str; 4] = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    fields.retain(|key, value| {
        let is_bound = BOUNDS.contains(&key.as_str());
        !is_bound || value.as_f64().is_some_and(|bound| bound.abs() < MAX_BOUND)
    });
    let Some(divisor) = fields.get("multipleOf").and_then(Value::as_f64) else { return true };
    let is_integer = fields.get("type") == Some(&json!("integer"));
    let bound = |key: &str| fields.get(key).and_then(Value::as_f64);
    let below = [bound("minimum"), bound("exclusiveMinimum")];
    let above = [bound("maximum"), bound("exclusiveMaximum")];
    let least = below.into_iter().flatten().reduce(f64::max);
    let most = above.into_iter().flatten().reduce(f64::min);
    let only_numbers = is_integer || fields.get("type") == Some(&json!("number"));
    if let (Some(least), Some(most), true) = (least, most, only_numbers) {
        // Half a step of slack: the last check is exact.
        let first = (least / divisor - 1e-9).ceil() * divisor;
        if first > most + divisor * 1e-9 {
            return false;
        }
    }
    let scaled = (0..=6).find(|&digits| (divisor * 10f64.powi(digits)).fract() == 0.0);
    let Some(digits) = scaled.filter(|_| divisor <= u32::MAX.into()) else {
        fields.shift_remove("multipleOf");
        return true;
    };
    let coefficient = divisor * 10f64.powi(digits);
    if is_integer && digits > 0 {
        // Of p / q in lowest terms the whole multiples are those of p.
        let (p, q) = (coefficient as u64, 10u64.pow(digits as u32));
        let whole = p / gcd(p, q);
        fields.insert("multipleOf".to_owned(), json!(whole));
    }
    let coefficient = match fields.get("multipleOf").and_then(Value::as_f64) {
        Some(whole) if is_integer => whole,
        _ => coefficient,
    };
    if coefficient > MAX_DIVISOR || coefficient == 1.0 && is_integer {
        fields.shift_remove("multipleOf");
    }
    true
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Lists of different items of a few, one by one.
fn spell_out(fields: &mut Map<String, Value>) {
    let Some(Value::Object(items)) = fields.get("items") else { return };
    let values = match (items.get("enum"), items.get("type")) {
        (Some(Value::Array(values)), None) if items.len() == 1 => values.clone(),
        (Some(Value::Array(values)), Some(Value::String(name))) if items.len() == 2 => {
            let is_of = |value: &&Value| super::check::is_type(&json!(name), value);
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
