//! Whether a model thinks before it answers, and how long: variables of its chat template, under the names that servers
//! and clients have for them.

use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::text::answer::Reasoning;
use serde_json::{Map, Value};

/// OpenAI's efforts, and those that vLLM has besides.
const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];

/// Takes `chat_template_kwargs`, and the variables that other fields stand for: as vLLM has it, `reasoning_effort` is one
/// and turns thinking on or off where nothing else does.
///
/// # Errors
/// For a field of another type, and for an effort that is none of [`EFFORTS`].
pub(super) fn take_variables(fields: &mut Fields) -> Result<Map<String, Value>, ApiError> {
    let mut variables =
        fields.take::<Map<String, Value>>("chat_template_kwargs")?.unwrap_or_default();
    // Alibaba's, and what Z.ai and DeepSeek share with Anthropic.
    let mut is_enabled = fields.take::<bool>("enable_thinking")?;
    if let Some(thinking) = fields.take::<Value>("thinking")? {
        // Anthropic's limit.
        fields.add(BUDGETS[0], thinking.get("budget_tokens").cloned());
        is_enabled = is_enabled.or(take_thinking(thinking)?);
    }
    if let Some(effort) = fields.take::<String>("reasoning_effort")? {
        if !EFFORTS.contains(&&*effort) {
            let what = format!("it has to be one of {}", EFFORTS.join(", "));
            return Err(ApiError::param("reasoning_effort", what));
        }
        is_enabled = is_enabled.or(Some(effort != "none"));
        variables.entry("reasoning_effort").or_insert_with(|| effort.into());
    }
    if let Some(is_enabled) = is_enabled {
        variables.entry("enable_thinking").or_insert_with(|| is_enabled.into());
    }
    Ok(variables)
}

/// Names of the limit of the reasoning: vLLM's, llama.cpp's and Alibaba's.
const BUDGETS: [&str; 3] = ["thinking_token_budget", "thinking_budget_tokens", "thinking_budget"];

/// Tokens of the reasoning at most; -1 is no limit.
pub(super) fn take_budget(fields: &mut Fields) -> Result<Option<usize>, ApiError> {
    let mut budget = None;
    for name in BUDGETS {
        budget = match fields.take::<i64>(name)? {
            None => budget,
            Some(-1) => None,
            Some(tokens) => Some(usize::try_from(tokens).map_err(|_| {
                ApiError::param(name, "it has to be 0 or more, or -1 for no limit")
            })?),
        };
    }
    Ok(budget)
}

/// How the reasoning is set apart: llama.cpp's `reasoning_format`, SGLang's `separate_reasoning`.
pub(super) fn take_reading(fields: &mut Fields) -> Result<Option<Reasoning>, ApiError> {
    let is_separate = fields.take::<bool>("separate_reasoning")?;
    match fields.take::<String>("reasoning_format")?.as_deref() {
        None => Ok(is_separate.map(|is| if is { Reasoning::Auto } else { Reasoning::None })),
        Some("auto" | "deepseek") => Ok(Some(Reasoning::Auto)),
        Some("none") => Ok(Some(Reasoning::None)),
        Some(_) => Err(ApiError::param("reasoning_format", "it has to be auto, deepseek or none")),
    }
}

/// Whether `{"type": "enabled"}` or `{"type": "disabled"}`.
fn take_thinking(thinking: Value) -> Result<Option<bool>, ApiError> {
    match thinking {
        Value::Bool(is_enabled) => Ok(Some(is_enabled)),
        thinking => match thinking["type"].as_str() {
            Some("enabled") => Ok(Some(true)),
            Some("disabled") => Ok(Some(false)),
            // The model's own way.
            Some("auto" | "adaptive") => Ok(None),
            _ => Err(ApiError::param("thinking", "the type has to be enabled or disabled")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn take(body: Value) -> Result<Value, String> {
        let mut fields = Fields::parse(body.to_string().as_bytes()).unwrap();
        let variables = take_variables(&mut fields).and_then(|variables| {
            fields.finish()?;
            Ok(Value::Object(variables))
        });
        variables.map_err(|error| error.to_json()["error"]["message"].as_str().unwrap().to_owned())
    }

    #[test]
    fn reasoning_has_a_limit_and_is_set_apart_or_not() {
        let fields = |body: Value| Fields::parse(body.to_string().as_bytes()).unwrap();
        for name in BUDGETS {
            for (value, budget) in [(0, Some(0)), (7, Some(7)), (-1, None)] {
                let got = take_budget(&mut fields(json!({ name: value })));
                assert_eq!(got.unwrap(), budget, "{name} {value}");
            }
            assert!(take_budget(&mut fields(json!({ name: -2 }))).is_err());
        }
        for (body, reading) in [
            (json!({}), None),
            (json!({"reasoning_format": "none"}), Some(Reasoning::None)),
            (json!({"reasoning_format": "deepseek"}), Some(Reasoning::Auto)),
            (json!({"separate_reasoning": false}), Some(Reasoning::None)),
        ] {
            assert_eq!(take_reading(&mut fields(body.clone())).unwrap(), reading, "{body}");
        }
        assert!(take_reading(&mut fields(json!({"reasoning_format": "x"}))).is_err());
    }

    #[test]
    fn fields_are_variables_of_the_template() {
        for (body, variables) in [
            (json!({}), json!({})),
            (
                json!({"chat_template_kwargs": {"enable_thinking": false, "a": [1]}}),
                json!({"enable_thinking": false, "a": [1]}),
            ),
            (
                json!({"reasoning_effort": "low"}),
                json!({"reasoning_effort": "low", "enable_thinking": true}),
            ),
            (
                json!({"reasoning_effort": "none"}),
                json!({"reasoning_effort": "none", "enable_thinking": false}),
            ),
            (
                json!({"reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false}}),
                json!({"enable_thinking": false, "reasoning_effort": "high"}),
            ),
            (json!({"enable_thinking": false}), json!({"enable_thinking": false})),
            (json!({"thinking": {"type": "disabled"}}), json!({"enable_thinking": false})),
            (json!({"thinking": {"type": "auto"}}), json!({})),
            // The limit is a field of its own: taken, and left.
            (json!({"thinking_token_budget": null}), json!({})),
        ] {
            assert_eq!(take(body.clone()), Ok(variables), "{body}");
        }
        for (body, why) in [
            (json!({"reasoning_effort": "much"}), "reasoning_effort: it has to be one of none, "),
            (json!({"thinking": {"type": "x"}}), "thinking: the type has to be"),
            (json!({"chat_template_kwargs": [1]}), "chat_template_kwargs: invalid type"),
        ] {
            assert!(take(body.clone()).unwrap_err().starts_with(why), "{body}");
        }
    }
}
