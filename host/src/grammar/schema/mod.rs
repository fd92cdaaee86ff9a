//! JSON schemas: what of them a grammar holds, and the check of what it does not.

mod check;
mod conditions;
mod hold;
mod normal;
mod pattern;
mod refs;
mod value;

use check::Check;
use normal::Normal;
use serde_json::Value;

/// A schema, read.
pub(crate) struct Schema {
    check: Check,
}

impl Schema {
    /// # Errors
    /// What is wrong with it, in one line.
    pub fn new(source: &Value) -> Result<Self, String> {
        let normal = Normal::new(source)?;
        Ok(Schema { check: Check::new(normal)? })
    }

    /// The part of it that a grammar of llguidance holds, for its lenient mode. `is_light` tells of a schema of texts
    /// whether a lexer is quick with it.
    pub fn held(&self, is_light: &dyn Fn(&Value) -> bool) -> Value {
        hold::held(&self.check, is_light)
    }

    /// What a document breaks, a line each: nothing if it is of the schema.
    pub fn violations(&self, document: &Value) -> Vec<String> {
        self.check.violations(document)
    }
}
