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
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde_json::{Value, json};
use std::sync::LazyLock;

/// Threads that read schemas and compile grammars.
const NUM_THREADS: usize = 2;

/// The stack of what reads a schema or compiles a grammar, in bytes: references are followed by recursion.
const STACK_SIZE: usize = 256 << 20;

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

/// A schema for llguidance with its `options`, but for those of the source itself.
pub(crate) fn with_options(mut held: Value, source: &Value, options: Value) -> Value {
    if let Value::Object(fields) = &mut held {
        // Models that are left to choose indent without an end.
        let mut all = json!({"whitespace_flexible": false});
        for options in [&options, source.get("x-guidance").unwrap_or(&Value::Null)] {
            for (name, value) in options.as_object().into_iter().flatten() {
                all[name] = value.clone();
            }
        }
        all["lenient"] = true.into();
        fields.insert("x-guidance".to_owned(), all);
    }
    held
}

/// A schema for `%json` in Lark, with llguidance's `options`: as it is where it is none.
pub(crate) fn lark_schema(source: &Value, options: Value) -> Value {
    // There is nothing to try it with.
    let is_light = |leaf: &Value| {
        let has = |rule: &str| leaf.get(rule).is_some();
        !(has("minLength") || has("maxLength"))
    };
    with_stack(|| match Schema::new(source) {
        Ok(schema) => with_options(schema.held(&is_light), source, options),
        Err(_) => source.clone(),
    })
}

/// `work` with a stack for deep recursion, on one of few threads: an allocator keeps for each thread what the largest grammar
/// took there.
pub(crate) fn with_stack<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    static THREADS: LazyLock<ThreadPool> = LazyLock::new(|| {
        let threads = ThreadPoolBuilder::new().num_threads(NUM_THREADS).stack_size(STACK_SIZE);
        threads.build().expect("the system has threads")
    });
    THREADS.install(work)
}
