//! Whether a lexer is quick on a rule of texts, found by trying it.

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::TokenId;
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Rules whose result is kept; all are forgotten beyond.
const MAX_KEPT: usize = 1000;
/// Texts that are tried, and their tokens.
const NUM_TEXTS: usize = 2;
const NUM_TOKENS: usize = 24;
/// What the masks of one text may cost: a mask of 49,152 tokens takes about a millisecond for each 10,000.
const MAX_COST: u64 = 150_000;

/// Tries the rules of texts, each once.
#[derive(Default)]
pub(super) struct Probe {
    kept: Mutex<HashMap<String, bool>>,
}

impl Probe {
    /// Whether masks for a text of `schema` are found quickly.
    pub fn is_light(&self, factory: &ParserFactory, schema: &Value) -> bool {
        let key = schema.to_string();
        let kept = || self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&is_light) = kept().get(&key) {
            return is_light;
        }
        let is_light = try_it(factory, schema.clone());
        let mut kept = kept();
        if kept.len() >= MAX_KEPT {
            kept.clear();
        }
        kept.insert(key, is_light);
        is_light
    }
}

fn try_it(factory: &ParserFactory, mut schema: Value) -> bool {
    schema["x-guidance"] = json!({"lenient": true, "whitespace_flexible": false});
    let grammar = TopLevelGrammar::from_json_schema(schema);
    let start = Matcher::new(factory.create_parser(grammar));
    (0..NUM_TEXTS).all(|text| cost(start.deep_clone(), text).is_some_and(|cost| cost <= MAX_COST))
}

/// What the masks of one text cost; `None` for an error.
fn cost(mut matcher: Matcher, text: usize) -> Option<u64> {
    let mut cost = 0;
    for step in 0..NUM_TOKENS {
        let mask = matcher.compute_mask_or_eos().ok()?;
        cost += matcher.last_step_stats().ok()?.lexer_cost;
        if matcher.is_stopped() || mask.num_set() == 0 || cost > MAX_COST {
            break;
        }
        // Far from each other, and the same every time.
        let chosen = (step * 2_654_435_761 + text * 40_503 + 77) % mask.num_set();
        matcher.consume_token(nth(&mask, chosen)?).ok()?;
    }
    Some(cost)
}

fn nth(mask: &llguidance::toktrie::SimpleVob, n: usize) -> Option<TokenId> {
    let mut tokens = Vec::new();
    mask.iter_set_entries(|token| tokens.push(token as TokenId));
    tokens.get(n).copied()
}
