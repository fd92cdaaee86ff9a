//! `cargo xtask json-schema`: answers of the default model to JSON schemas, at temperature 1, each parsed and validated.

use crate::{http::Client, options::Options, process, server::Server, setup};
use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};
use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};

/// Clients at once: as many as the server runs requests.
const NUM_CLIENTS: usize = 8;
/// What each schema allows is shorter, but for a number of hundreds of digits.
const MAX_TOKENS: usize = 1500;
/// Answers that are wrong before the rest is given up.
const MAX_FAILURES: usize = 5;

/// Sends the requests and checks every answer.
///
/// # Errors
/// The first answers that are not of their schema.
pub fn run(options: Options) -> Result<()> {
    setup::run()?;
    let server = Server::start(&["-c", "2048", "--log-level", "off"])?;
    let start = Instant::now();
    let schemas: Vec<(Value, jsonschema::Validator)> = schemas()
        .into_iter()
        .map(|schema| jsonschema::validator_for(&schema).map(|validator| (schema, validator)))
        .collect::<Result<_, _>>()?;
    let (next, failures) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let lock = || failures.lock().unwrap_or_else(PoisonError::into_inner);
    let run_client = || {
        let client = Client::new(server.address());
        while lock().len() < MAX_FAILURES && !process::interrupted() {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= options.requests {
                return;
            }
            let (schema, validator) = &schemas[number % schemas.len()];
            if let Err(error) = check(&client, options.seed + number as u64, schema, validator) {
                lock().push(format!("request {number}: {error:#}"));
            }
        }
    };
    thread::scope(|scope| {
        for _ in 0..NUM_CLIENTS {
            scope.spawn(run_client);
        }
    });
    process::check_interrupt()?;
    let failures = lock();
    if !failures.is_empty() {
        bail!("{}", failures.join("\n  "));
    }
    let names =
        ["grammar_mask_seconds_sum", "grammar_mask_seconds_count", "generation_tokens_total"];
    let [seconds, masks, tokens] = server.metrics(names)?;
    ensure!(masks >= tokens, "{tokens} tokens and {masks} masks: each token has one");
    println!(
        "{0} of {0} answers to {1} schemas parse and validate, in {2:.0} s\n\
         {tokens} tokens; a mask takes {3:.0} us on average of {masks}",
        options.requests,
        schemas.len(),
        start.elapsed().as_secs_f64(),
        seconds / masks * 1e6,
    );
    Ok(())
}

/// An answer has to be whole, and of its schema.
fn check(
    client: &Client,
    seed: u64,
    schema: &Value,
    validator: &jsonschema::Validator,
) -> Result<()> {
    let body = json!({
        "messages": [{"role": "user", "content": "Make something up."}],
        "temperature": 1,
        "seed": seed,
        "max_tokens": MAX_TOKENS,
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
    });
    let reply = client.post("/v1/chat/completions", &body)?;
    let answer: Value = serde_json::from_slice(&reply.body).context("the body is not JSON")?;
    ensure!(reply.status == 200, "status {}: {answer}", reply.status);
    let choice = &answer["choices"][0];
    let text = choice["message"]["content"].as_str().context("there is no text")?;
    ensure!(choice["finish_reason"] == "stop", "it ended by {}: {text}", choice["finish_reason"]);
    let value: Value = serde_json::from_str(text).with_context(|| text.to_owned())?;
    validator.validate(&value).map_err(|error| anyhow::anyhow!("{error}: {text}"))
}

/// What people ask for: objects in objects, bounds of lists, texts and numbers, choices, fields that may be left out.
fn schemas() -> Vec<Value> {
    let short = json!({"type": "string", "maxLength": 12});
    let object = |properties: Value, required: Value| json!({"type": "object", "properties": properties, "required": required, "additionalProperties": false});
    let place = object(
        json!({"city": short, "lat": {"type": "number", "minimum": -90, "maximum": 90}}),
        json!(["city"]),
    );
    vec![
        object(
            json!({"name": {"type": "string", "minLength": 1, "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
                   "home": place, "work": place}),
            json!(["name", "age", "home"]),
        ),
        json!({"type": "array", "items": {"enum": ["red", "green", "blue", 7, null, {"a": []}]}, "minItems": 2, "maxItems": 6}),
        object(
            json!({"kind": {"const": "circle"}, "filled": {"type": "boolean"}, "radius": {"type": "number", "exclusiveMinimum": 0, "maximum": 100}}),
            json!(["kind", "radius"]),
        ),
        object(
            json!({"rows": {"type": "array", "minItems": 1, "maxItems": 3, "items": {
                "type": "array", "minItems": 2, "maxItems": 2, "items": {"type": "integer", "minimum": -999, "maximum": 999}}}}),
            json!(["rows"]),
        ),
        json!({"anyOf": [{"type": "null"}, short, object(json!({"why": short}), json!(["why"]))]}),
        object(
            json!({"id": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"}, "day": {"type": "string", "format": "date"},
                   "tags": {"type": "array", "items": short, "maxItems": 4}}),
            json!(["id", "day"]),
        ),
        json!({
            "$defs": {"leaf": object(json!({"value": {"type": "integer", "minimum": 0, "maximum": 9}}), json!(["value"]))},
            "type": "object",
            "properties": {"left": {"$ref": "#/$defs/leaf"}, "right": {"$ref": "#/$defs/leaf"}},
            "required": ["left"],
            "additionalProperties": false,
        }),
    ]
}
