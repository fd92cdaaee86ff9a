//! Filters that order and group.

use std::cmp::Ordering;
use std::collections::HashSet;
use std::sync::Arc;

use minijinja::value::{Enumerator, Object, ObjectRepr};
use minijinja::{Error, Value};

use super::args::{bind, invalid, require};
use super::python::{compare, items, pairs, tuple};

/// The part of `item` at `path`, a name, an index, or several of them with dots between.
pub(super) fn attribute(
    item: &Value,
    path: &Value,
    default: Option<&Value>,
) -> Result<Value, Error> {
    let Some(names) = path.as_str() else {
        let found = item.get_item(path)?;
        return Ok(or_default(found, default));
    };
    let mut found = item.clone();
    for name in names.split('.') {
        let part = match name.parse::<i64>() {
            Ok(index) => found.get_item(&Value::from(index))?,
            Err(_) => found.get_item(&Value::from(name))?,
        };
        found = or_default(part, default);
    }
    Ok(found)
}

fn or_default(value: Value, default: Option<&Value>) -> Value {
    match default {
        Some(default) if value.is_undefined() => default.clone(),
        _ => value,
    }
}

/// What a filter orders by.
struct Key {
    /// None for the value itself.
    attributes: Option<Value>,
    case_sensitive: bool,
}

impl Key {
    fn new(attributes: Option<Value>, case_sensitive: Option<&Value>) -> Self {
        let case_sensitive = case_sensitive.is_some_and(Value::is_true);
        Self { attributes: attributes.filter(|attributes| !attributes.is_none()), case_sensitive }
    }

    fn of(&self, item: &Value) -> Result<Value, Error> {
        match &self.attributes {
            None => Ok(self.folded(item.clone())),
            Some(path) => Ok(self.folded(attribute(item, path, None)?)),
        }
    }

    /// By several attributes, with commas between.
    fn all_keys(&self, item: &Value) -> Result<Value, Error> {
        let paths = self.attributes.as_ref().and_then(Value::as_str);
        let Some(paths) = paths.filter(|paths| paths.contains(',')) else { return self.of(item) };
        let keys = paths.split(',').map(|path| {
            attribute(item, &Value::from(path.trim()), None).map(|key| self.folded(key))
        });
        keys.collect()
    }

    fn folded(&self, key: Value) -> Value {
        match key.as_str() {
            Some(text) if !self.case_sensitive => text.to_lowercase().into(),
            _ => key,
        }
    }
}

/// Sorts by merging, which a comparison that fails only ends.
fn sort_by_key(
    mut keyed: Vec<(Value, Value)>,
    reverse: bool,
) -> Result<Vec<(Value, Value)>, Error> {
    if keyed.len() < 2 {
        return Ok(keyed);
    }
    let right = sort_by_key(keyed.split_off(keyed.len() / 2), reverse)?;
    let left = sort_by_key(keyed, reverse)?;
    let mut sorted = Vec::with_capacity(left.len() + right.len());
    let (mut left, mut right) = (left.into_iter().peekable(), right.into_iter().peekable());
    while let (Some(a), Some(b)) = (left.peek(), right.peek()) {
        let order = compare(&a.0, &b.0)?;
        let is_right = if reverse { order == Ordering::Less } else { order == Ordering::Greater };
        sorted.extend(if is_right { right.next() } else { left.next() });
    }
    sorted.extend(left.chain(right));
    Ok(sorted)
}

fn is_true(value: Option<&Value>) -> bool {
    value.is_some_and(Value::is_true)
}

/// The filter `sort(reverse=False, case_sensitive=False, attribute=None)`.
pub(super) fn sort(args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "reverse", "case_sensitive", "attribute"];
    let [value, reverse, case_sensitive, attribute] = bind("sort", args, names)?;
    let key = Key::new(attribute, case_sensitive.as_ref());
    let keyed = items(&value.unwrap_or_default())?.into_iter();
    let keyed: Result<Vec<_>, Error> =
        keyed.map(|item| key.all_keys(&item).map(|key| (key, item))).collect();
    let sorted = sort_by_key(keyed?, is_true(reverse.as_ref()))?;
    Ok(sorted.into_iter().map(|(_, item)| item).collect())
}

/// The filter `dictsort(case_sensitive=False, by='key', reverse=False)`.
pub(super) fn dictsort(args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "case_sensitive", "by", "reverse"];
    let [value, case_sensitive, by, reverse] = bind("dictsort", args, names)?;
    let index = match by.as_ref().map_or(Some("key"), Value::as_str) {
        Some("key") => 0,
        Some("value") => 1,
        _ => return Err(invalid("dictsort sorts by key or value")),
    };
    let key = Key::new(None, case_sensitive.as_ref());
    let keyed = pairs(&value.unwrap_or_default())?.into_iter();
    let keyed = keyed.map(|pair| (key.folded(pair[index].clone()), tuple(pair))).collect();
    let sorted = sort_by_key(keyed, is_true(reverse.as_ref()))?;
    Ok(sorted.into_iter().map(|(_, pair)| pair).collect())
}

/// The filters `min` and `max`, whose value is the first with no other `beyond` it.
pub(super) fn extreme(filter: &str, args: &[Value], beyond: Ordering) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] =
        bind(filter, args, ["value", "case_sensitive", "attribute"])?;
    let key = Key::new(attribute, case_sensitive.as_ref());
    let mut found: Option<(Value, Value)> = None;
    for item in items(&value.unwrap_or_default())? {
        let of_item = key.of(&item)?;
        let is_beyond = match &found {
            Some((best, _)) => compare(&of_item, best)? == beyond,
            None => true,
        };
        if is_beyond {
            found = Some((of_item, item));
        }
    }
    Ok(found.map(|(_, item)| item).unwrap_or_default())
}

/// The filter `unique(case_sensitive=False, attribute=None)`.
pub(super) fn unique(args: &[Value]) -> Result<Value, Error> {
    let [value, case_sensitive, attribute] =
        bind("unique", args, ["value", "case_sensitive", "attribute"])?;
    let key = Key::new(attribute, case_sensitive.as_ref());
    let mut seen = HashSet::new();
    let mut unique = Vec::new();
    for item in items(&value.unwrap_or_default())? {
        if seen.insert(key.of(&item)?) {
            unique.push(item);
        }
    }
    Ok(unique.into())
}

/// The filter `groupby(attribute, default=None, case_sensitive=False)`.
pub(super) fn groupby(args: &[Value]) -> Result<Value, Error> {
    let names = ["value", "attribute", "default", "case_sensitive"];
    let [value, path, default, case_sensitive] = bind("groupby", args, names)?;
    let path = require("groupby", "attribute", path)?;
    let key = Key::new(None, case_sensitive.as_ref());
    let mut keyed = Vec::new();
    for item in items(&value.unwrap_or_default())? {
        let grouper = attribute(&item, &path, default.as_ref())?;
        keyed.push((key.folded(grouper.clone()), tuple([grouper, item])));
    }
    let mut groups: Vec<(Value, Group)> = Vec::new();
    for (of_item, entry) in sort_by_key(keyed, false)? {
        let item = entry.get_item_by_index(1)?;
        match groups.last_mut() {
            Some((of_group, group)) if *of_group == of_item => group.list.push(item),
            _ => {
                let grouper = entry.get_item_by_index(0)?;
                groups.push((of_item, Group { grouper, list: vec![item] }));
            }
        }
    }
    Ok(groups.into_iter().map(|(_, group)| Value::from_object(group)).collect())
}

/// What [`groupby`] gives: a pair whose parts have names.
#[derive(Debug)]
struct Group {
    grouper: Value,
    list: Vec<Value>,
}

impl Object for Group {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        match (key.as_str(), key.as_i64()) {
            (Some("grouper"), _) | (_, Some(0)) => Some(self.grouper.clone()),
            (Some("list"), _) | (_, Some(1)) => Some(self.list.clone().into()),
            _ => None,
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(2)
    }
}
