//! Where the references of a schema lead to.

use serde_json::{Map, Value};
use std::collections::HashMap;

/// The places of a schema that can be referred to.
#[derive(Default)]
pub(super) struct Places {
    /// The pointer of each schema with a URI of its own.
    uris: HashMap<String, String>,
    /// The pointer of each anchor, by the URI that it belongs to.
    anchors: HashMap<(String, String), String>,
    /// Whether `id` is a URI, as in draft 4.
    has_old_ids: bool,
}

impl Places {
    pub fn new(root: &Value) -> Self {
        let mut places = Places::default();
        places.uris.insert(String::new(), String::new());
        let draft = root.get("$schema").and_then(Value::as_str);
        places.has_old_ids = draft.is_some_and(|draft| draft.contains("draft-04"));
        places.find(root, "", String::new());
        places
    }

    fn find(&mut self, value: &Value, base: &str, pointer: String) {
        match value {
            Value::Object(fields) => {
                let own = self.own_uri(fields, base);
                let base = own.as_deref().unwrap_or(base);
                if own.is_some() {
                    self.uris.entry(base.to_owned()).or_insert(pointer.clone());
                }
                for anchor in anchors(fields) {
                    let key = (base.to_owned(), anchor.to_owned());
                    self.anchors.entry(key).or_insert(pointer.clone());
                }
                // What these hold is no schema.
                let is_data = |key: &str| matches!(key, "enum" | "const" | "default" | "examples");
                for (key, value) in fields.iter().filter(|(key, _)| !is_data(key)) {
                    self.find(value, base, format!("{pointer}/{}", escaped(key)));
                }
            }
            Value::Array(values) => {
                for (index, value) in values.iter().enumerate() {
                    self.find(value, base, format!("{pointer}/{index}"));
                }
            }
            _ => {}
        }
    }

    /// The pointer that `reference`, in a schema whose URI is `base`, leads to.
    pub fn resolve(&self, reference: &str, base: &str, root: &Value) -> Result<String, String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let uri = if uri.is_empty() { base.to_owned() } else { join(base, uri) };
        let Some(start) = self.uris.get(&uri) else {
            return Err(format!(
                "`{reference}` leads out of the schema: put what it names under `$defs`"
            ));
        };
        let pointer = match fragment {
            "" => Some(start.clone()),
            _ if fragment.starts_with('/') => {
                let pointer = format!("{start}{}", percent_decoded(fragment));
                // Some write the root so.
                let pointer = if fragment == "/" { start.clone() } else { pointer };
                root.pointer(&pointer).is_some().then_some(pointer)
            }
            _ => self.anchors.get(&(uri, fragment.to_owned())).cloned(),
        };
        pointer.ok_or_else(|| format!("`{reference}` leads to nothing in the schema"))
    }

    /// The URI that a schema gives itself, if it does.
    pub fn own_uri(&self, fields: &Map<String, Value>, base: &str) -> Option<String> {
        let key = if self.has_old_ids { "id" } else { "$id" };
        let id = fields.get(key)?.as_str()?;
        (!id.starts_with('#')).then(|| join(base, id.trim_end_matches('#')))
    }

    /// The URI that references at `pointer` are relative to.
    pub fn base(&self, root: &Value, pointer: &str) -> String {
        let mut base = String::new();
        let ends = pointer.match_indices('/').map(|(index, _)| index).chain([pointer.len()]);
        for end in ends {
            if let Some(Value::Object(fields)) = root.pointer(&pointer[..end]) {
                base = self.own_uri(fields, &base).unwrap_or(base);
            }
        }
        base
    }
}

fn anchors(fields: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let named = ["$anchor", "$dynamicAnchor"].into_iter();
    let named = named.filter_map(|key| fields.get(key)?.as_str());
    // As it was up to draft 7.
    let old = ["$id", "id"].into_iter().filter_map(|key| fields.get(key)?.as_str());
    named.chain(old.filter_map(|id| id.strip_prefix('#')))
}

/// A URI that is given relative to another.
fn join(base: &str, uri: &str) -> String {
    let has_scheme = |uri: &str| {
        uri.split_once(':').is_some_and(|(scheme, _)| {
            scheme.starts_with(|c: char| c.is_ascii_alphabetic())
                && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
        })
    };
    if has_scheme(uri) {
        return uri.to_owned();
    }
    let uri = uri.strip_prefix("./").unwrap_or(uri);
    let path = base.find("://").map_or(0, |scheme| scheme + 3);
    let host_end = base[path..].find('/').map_or(base.len(), |slash| path + slash);
    if uri.starts_with('/') {
        return format!("{}{uri}", &base[..if path == 0 { 0 } else { host_end }]);
    }
    match base[path..].rfind('/') {
        Some(slash) => format!("{}{uri}", &base[..=path + slash]),
        None if path > 0 => format!("{base}/{uri}"),
        None => uri.to_owned(),
    }
}

/// A key as a segment of a pointer.
pub(super) fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

fn percent_decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        let code = (byte == b'%').then(|| tail.get(..2)).flatten();
        let code = code.and_then(|code| u8::from_str_radix(str::from_utf8(code).ok()?, 16).ok());
        bytes.push(code.unwrap_or(byte));
        rest = if code.is_some() { &tail[2..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
