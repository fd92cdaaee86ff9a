//! Conditions as choices: `if`, `not`, `dependentRequired` and `dependentSchemas` by `anyOf`.
//!
//! What has no negation that a schema can say without `not` stays out; the choices allow more then.

use super::value::is_same;
use serde_json::{Map, Value, json};

/// Conditions beside each other that are multiplied out.
const MAX_CONDITIONS: usize = 3;
/// Values of one property that choose between schemas.
const MAX_CASES: usize = 32;

/// `if`, `then` and `else`.
struct Condition {
    condition: Value,
    then: Value,
    otherwise: Value,
}

/// A condition on the value of one property.
struct Case<'a> {
    name: &'a str,
    values: Vec<Value>,
    /// Whether the property has to be there.
    needs_it: bool,
    of: &'a Condition,
}

/// Rewrites the conditions of a schema; `false` where nothing can be of it.
pub(super) fn rewrite(fields: &mut Map<String, Value>) -> bool {
    let is_object = fields.get("type") == Some(&json!("object"));
    let mut choices = Vec::new();
    if let Some(schema) = fields.shift_remove("not")
        && !exclude(fields, &schema, is_object)
    {
        return false;
    }
    dependencies(fields, is_object, &mut choices);
    let conditions = take_conditions(fields);
    let (cases, others): (Vec<_>, Vec<_>) =
        conditions.iter().partition(|condition| case(condition).is_some());
    let cases: Vec<Case<'_>> = cases.into_iter().filter_map(case).collect();
    choices.extend(by_cases(fields, &cases, is_object));
    choices.extend(others.into_iter().filter_map(either));
    choices.truncate(MAX_CONDITIONS);
    if !choices.is_empty() {
        let properties = fields.get("properties").and_then(Value::as_object);
        let names: Map<String, Value> =
            properties.into_iter().flatten().map(|(name, _)| (name.clone(), true.into())).collect();
        let all_of = fields.entry("allOf").or_insert_with(|| json!([]));
        if let Value::Array(all_of) = all_of {
            // The first schema that names a property gives its place in a document.
            if !names.is_empty() {
                all_of.insert(0, json!({"type": "object", "properties": names}));
            }
            all_of.extend(choices.into_iter().map(|any_of| json!({"anyOf": any_of})));
        }
    }
    true
}

/// Takes what is of `schema` away; `false` where nothing is left.
fn exclude(fields: &mut Map<String, Value>, schema: &Value, is_object: bool) -> bool {
    let excluded = match schema {
        Value::Bool(is_all) => return !is_all,
        Value::Object(excluded) if excluded.is_empty() => return false,
        Value::Object(excluded) => excluded,
        _ => return true,
    };
    if let Some(Value::Array(all)) = excluded.get("anyOf").filter(|_| excluded.len() == 1) {
        return all.iter().all(|schema| exclude(fields, schema, is_object));
    }
    if let Some(values) = values(excluded) {
        return exclude_values(fields, &values);
    }
    let (Some((key, rule)), 1) = (excluded.iter().next(), excluded.len()) else { return true };
    match (key.as_str(), rule) {
        ("type", rule) => {
            let names = |rule: &Value| match rule {
                Value::Array(names) => names.clone(),
                name => vec![name.clone()],
            };
            let mut excluded = names(rule);
            if excluded.iter().any(|name| name == "number") {
                excluded.push(json!("integer"));
            }
            let all =
                || ["null", "boolean", "number", "string", "array", "object"].map(Value::from);
            let mut left = fields.get("type").map_or_else(|| all().to_vec(), names);
            left.retain(|name| !excluded.contains(name));
            fields.insert("type".to_owned(), Value::Array(left.clone()));
            !left.is_empty()
        }
        ("required", Value::Array(names)) if is_object && names.len() == 1 => {
            let properties = fields.entry("properties").or_insert_with(|| json!({}));
            properties[names[0].as_str().unwrap_or_default()] = Value::Bool(false);
            true
        }
        _ => true,
    }
}

fn exclude_values(fields: &mut Map<String, Value>, excluded: &[Value]) -> bool {
    let Some(mut left) = all_values(fields) else { return true };
    left.retain(|value| !excluded.iter().any(|other| is_same(other, value)));
    let is_possible = !left.is_empty();
    fields.shift_remove("const");
    fields.insert("enum".to_owned(), Value::Array(left));
    is_possible
}

/// All values that a schema allows, where it lists them.
fn all_values(fields: &Map<String, Value>) -> Option<Vec<Value>> {
    let listed = fields.get("const").map(|value| vec![value.clone()]);
    let listed = listed.or_else(|| fields.get("enum")?.as_array().cloned());
    let is_boolean = fields.get("type") == Some(&json!("boolean"));
    listed.or_else(|| is_boolean.then(|| vec![json!(false), json!(true)]))
}

/// The values of a schema that only lists some.
fn values(fields: &Map<String, Value>) -> Option<Vec<Value>> {
    let is_list = fields.keys().all(|key| matches!(key.as_str(), "const" | "enum" | "type"));
    let has_list = fields.contains_key("const") || fields.contains_key("enum");
    (is_list && has_list).then(|| all_values(fields)).flatten()
}

fn dependencies(fields: &mut Map<String, Value>, is_object: bool, to: &mut Vec<Vec<Value>>) {
    let required = fields.shift_remove("dependentRequired");
    let schemas = fields.shift_remove("dependentSchemas");
    if !is_object {
        return;
    }
    let absent = |name: &str| json!({"type": "object", "properties": {name: false}});
    for (name, names) in required.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let mut all = vec![json!(name)];
        all.extend(names.as_array().into_iter().flatten().cloned());
        to.push(vec![absent(name), json!({"type": "object", "required": all})]);
    }
    for (name, schema) in schemas.as_ref().and_then(Value::as_object).into_iter().flatten() {
        let present = json!({"type": "object", "required": [name]});
        to.push(vec![absent(name), json!({"allOf": [present, schema]})]);
    }
}

/// The conditions of a schema, and those of elements of its `allOf` that are nothing else.
fn take_conditions(fields: &mut Map<String, Value>) -> Vec<Condition> {
    let mut conditions = Vec::new();
    conditions.extend(take_condition(fields));
    if let Some(Value::Array(all)) = fields.get_mut("allOf") {
        all.retain_mut(|schema| {
            let Value::Object(schema) = schema else { return true };
            let is_alone = is_alone(schema);
            let taken = is_alone.then(|| take_condition(schema)).flatten();
            let is_kept = taken.is_none();
            conditions.extend(taken);
            is_kept
        });
        if all.is_empty() {
            fields.shift_remove("allOf");
        }
    }
    conditions
}

/// Whether a schema is a condition and nothing else.
fn is_condition(schema: &Value) -> bool {
    schema.as_object().is_some_and(is_alone)
}

fn is_alone(schema: &Map<String, Value>) -> bool {
    schema.contains_key("if")
        && schema.keys().all(|key| matches!(key.as_str(), "if" | "then" | "else"))
}

fn take_condition(fields: &mut Map<String, Value>) -> Option<Condition> {
    let condition = fields.shift_remove("if")?;
    let mut branch = |key: &str| fields.shift_remove(key).unwrap_or(Value::Bool(true));
    Some(Condition { condition, then: branch("then"), otherwise: branch("else") })
}

fn case(of: &Condition) -> Option<Case<'_>> {
    let condition = of.condition.as_object()?;
    let is_simple =
        condition.keys().all(|key| matches!(key.as_str(), "properties" | "required" | "type"));
    let is_object = condition.get("type").is_none_or(|name| name == "object");
    let properties = condition.get("properties")?.as_object()?;
    let (name, schema) = properties.iter().next()?;
    let required = condition.get("required").and_then(Value::as_array);
    let is_same = required.is_none_or(|names| names.iter().all(|other| other == name));
    let is_case = is_simple && is_object && is_same && properties.len() == 1;
    let values = values(schema.as_object()?).filter(|_| is_case)?;
    let needs_it = required.is_some_and(|names| !names.is_empty());
    Some(Case { name, values, needs_it, of })
}

/// The choices of conditions on properties.
fn by_cases(fields: &Map<String, Value>, cases: &[Case<'_>], is_object: bool) -> Vec<Vec<Value>> {
    let is_untyped = !fields.contains_key("type");
    if !(is_object || is_untyped) || cases.len() > MAX_CASES {
        return Vec::new();
    }
    let mut names: Vec<&str> = cases.iter().map(|case| case.name).collect();
    names.dedup();
    let of_name = |name: &&str| {
        let all: Vec<&Case<'_>> = cases.iter().filter(|case| case.name == *name).collect();
        let mut choices = choose(fields, name, &all);
        choices.extend(is_untyped.then(|| no_object(&all)));
        choices
    };
    names.iter().map(of_name).collect()
}

/// The choices of conditions on one property, one for each of its values that they name.
fn choose(fields: &Map<String, Value>, name: &str, cases: &[&Case<'_>]) -> Vec<Value> {
    let property = fields.get("properties").and_then(|properties| properties.get(name));
    let all = property.and_then(Value::as_object).and_then(all_values);
    let mut groups: Vec<(Vec<Value>, Vec<bool>)> = Vec::new();
    for value in cases.iter().flat_map(|case| &case.values) {
        let is_in = |case: &&Case<'_>| case.values.iter().any(|other| is_same(other, value));
        let holds: Vec<bool> = cases.iter().map(is_in).collect();
        match groups.iter_mut().find(|(_, other)| *other == holds) {
            Some((values, _)) if values.iter().any(|other| is_same(other, value)) => {}
            Some((values, _)) => values.push(value.clone()),
            None => groups.push((vec![value.clone()], holds)),
        }
    }
    let branches = |holds: &mut dyn Iterator<Item = bool>| -> Vec<Value> {
        let chosen = cases.iter().zip(holds);
        chosen
            .map(|(case, holds)| if holds { &case.of.then } else { &case.of.otherwise })
            .filter(|schema| **schema != Value::Bool(true))
            .cloned()
            .collect()
    };
    let choice = |mut first: Value, rest: Vec<Value>| {
        // Conditions in conditions: they are about the values that are left.
        let (nested, rest): (Vec<Value>, Vec<Value>) = rest.into_iter().partition(is_condition);
        if !nested.is_empty() {
            first["allOf"] = Value::Array(nested);
        }
        let all: Vec<Value> = [first].into_iter().chain(rest).collect();
        json!({"allOf": all})
    };
    let present =
        |schema: Value| json!({"type": "object", "properties": {name: schema}, "required": [name]});
    let mut choices = Vec::new();
    let named: Vec<Value> = groups.iter().flat_map(|(values, _)| values.clone()).collect();
    for (values, holds) in groups {
        let rest = branches(&mut holds.into_iter());
        choices.push(choice(present(json!({"enum": values})), rest));
    }
    let others = all.map(|mut all| {
        all.retain(|value| !named.iter().any(|other| is_same(other, value)));
        all
    });
    let none = branches(&mut cases.iter().map(|_| false));
    match others {
        Some(others) if others.is_empty() => {}
        Some(others) => choices.push(choice(present(json!({"enum": others})), none)),
        // Any value: some of those that are named too.
        None => choices.push(choice(present(Value::Bool(true)), none)),
    }
    let required = fields.get("required").and_then(Value::as_array);
    if required.is_none_or(|names| names.iter().all(|other| other != name)) {
        let absent = json!({"type": "object", "properties": {name: false}});
        choices.push(choice(absent, branches(&mut cases.iter().map(|case| !case.needs_it))));
    }
    choices
}

/// What is no object, which conditions on properties hold for where they don't ask for one.
fn no_object(cases: &[&Case<'_>]) -> Value {
    let branches = cases.iter().map(|case| match case.of.condition.get("type") {
        None => case.of.then.clone(),
        Some(_) => case.of.otherwise.clone(),
    });
    let other = json!({"type": ["null", "boolean", "number", "string", "array"]});
    let all: Vec<Value> = [other].into_iter().chain(branches).collect();
    json!({"allOf": all})
}

/// Both ways of a condition, where they are not everything.
fn either(of: &Condition) -> Option<Vec<Value>> {
    let mut negated = Map::new();
    let is_typed = of
        .condition
        .as_object()
        .is_some_and(|condition| condition.len() == 1 && condition.contains_key("type"));
    let can_fail = exclude(&mut negated, &of.condition, false);
    let then = json!({"allOf": [of.condition, of.then]});
    match (can_fail, of.otherwise == Value::Bool(true)) {
        (false, _) => Some(vec![then]),
        (true, true) if !is_typed => None,
        (true, _) => Some(vec![then, json!({"allOf": [negated, of.otherwise]})]),
    }
}
