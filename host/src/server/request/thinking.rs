//! Whether a model thinks before it answers, and how long: variables of its chat template, under the names that servers
//! and clients have for them.

use crate::server::error::ApiError;
use crate::server::fields::Fields;
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
