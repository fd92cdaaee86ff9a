//! The rules of texts: what of them a lexer takes.

use super::super::pattern::{conjuncts, translate};
use super::{Holder, UNSATISFIABLE, compiles};
use serde_json::{Map, Value, json};

/// Formats that llguidance knows; others are annotations.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];

/// Where the look-aheads of a pattern are put.
const AHEAD: &str = "allOf";

impl Holder<'_> {
    /// Leaves the rules of a text that a lexer can hold.
    pub(super) fn text(&mut self, fields: &mut Map<String, Value>) {
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
            return;
        }
        if let Some(Value::String(pattern)) = rules.get_mut("pattern") {
            let is_text = fields.get("type") == Some(&json!("string"));
            let mut all = if is_text { conjuncts(pattern) } else { vec![pattern.clone()] };
            *pattern = translate(&all.pop().expect("the last is the rest"));
            if !all.is_empty() {
                let all = all.iter().map(|pattern| json!({"pattern": translate(pattern)}));
                rules.insert(AHEAD.to_owned(), all.collect());
            }
        }
        let key = Value::Object(rules.clone()).to_string();
        let held = self.texts.entry(key).or_insert_with(|| lexed(rules, self.is_light)).clone();
        for (rule, value) in held {
            match (fields.get_mut(&rule), value) {
                (Some(Value::Array(all_of)), Value::Array(ahead)) => all_of.extend(ahead),
                (_, value) => {
                    fields.insert(rule, value);
                }
            }
        }
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
        let is_kept =
            |rule: &str| !left_out.contains(&if rule == AHEAD { "pattern" } else { rule });
        let kept = rules.iter().filter(|(rule, _)| is_kept(rule));
        let kept: Map<String, Value> =
            kept.map(|(rule, value)| (rule.clone(), value.clone())).collect();
        let mut trial = kept.clone();
        trial.insert("type".to_owned(), json!("string"));
        let trial = Value::Object(trial);
        let is_plain = !kept.contains_key("pattern") && !kept.contains_key("format");
        match compiles(&trial) {
            Ok(()) if is_plain || is_light(&trial) => return kept,
            // Formats are annotations: what has another does not exclude it.
            Err(why) if why.contains(UNSATISFIABLE) && !kept.contains_key("format") => {
                return kept;
            }
            _ => {}
        }
    }
    Map::new()
}
