//! The tools of `/v1/responses`: functions, flat where `/v1/chat/completions` nests them.

use crate::server::error::ApiError;
use crate::server::fields::Fields;
use crate::server::tools::Tools;
use serde_json::{Value, json};
use std::collections::HashMap;

/// What a request says about tools.
pub(super) struct ResponseTools {
    pub tools: Tools,
    /// The namespaces of functions that are in one.
    pub namespaces: HashMap<String, String>,
    /// What the response says of them.
    pub list: Vec<Value>,
    pub choice: Value,
    pub is_parallel: bool,
}

impl ResponseTools {
    pub fn take(fields: &mut Fields) -> Result<Self, ApiError> {
        let mut list = fields.take::<Vec<Value>>("tools")?.unwrap_or_default();
        // Those that the answer can do without: OpenAI's servers search, if the model asks them to.
        list.retain(|tool| !is_web_search(tool));
        let (mut functions, mut namespaces) = (Vec::new(), HashMap::new());
        for (index, tool) in list.iter_mut().enumerate() {
            take_tool(tool, &format!("tools[{index}]"), None, &mut functions, &mut namespaces)?;
        }
        let choice = fields.take::<Value>("tool_choice")?.unwrap_or_else(|| "auto".into());
        let is_parallel = fields.take::<bool>("parallel_tool_calls")?.unwrap_or(true);
        let tool_choice = take_choice(&choice, &mut functions)?;
        let as_of_chat = json!({
            "tools": functions,
            "tool_choice": tool_choice,
            "parallel_tool_calls": is_parallel,
        });
        let tools = Tools::take(&mut Fields::of(as_of_chat, "")?)?;
        Ok(ResponseTools { tools, namespaces, list, choice, is_parallel })
    }
}

fn is_web_search(tool: &Value) -> bool {
    tool["type"].as_str().is_some_and(|kind| kind.starts_with("web_search"))
}

/// Adds the functions of a tool, as `/v1/chat/completions` has them.
fn take_tool(
    tool: &mut Value,
    path: &str,
    namespace: Option<&str>,
    functions: &mut Vec<Value>,
    namespaces: &mut HashMap<String, String>,
) -> Result<(), ApiError> {
    let mut fields = Fields::of(tool.clone(), path)?;
    let name = |fields: &mut Fields| fields.require::<String>("name");
    match (fields.require::<String>("type")?.as_str(), namespace) {
        ("function", _) => {
            let name = name(&mut fields)?;
            if functions.iter().any(|function| function["function"]["name"] == *name) {
                return Err(ApiError::param(path, format!("there are two tools called `{name}`")));
            }
            if let Some(namespace) = namespace {
                namespaces.insert(name.clone(), namespace.to_owned());
            }
            functions.push(json!({ "type": "function", "function": {
                "name": name,
                "description": fields.take::<String>("description")?,
                "parameters": fields.take::<Value>("parameters")?,
            } }));
            // openai-python knows no tool without them.
            for name in ["parameters", "strict"] {
                tool[name] = tool[name].take();
            }
            Ok(())
        }
        ("namespace", None) => {
            let namespace = name(&mut fields)?;
            let tools = tool["tools"].as_array_mut().map(Vec::as_mut_slice).unwrap_or_default();
            for (index, tool) in tools.iter_mut().enumerate() {
                let path = format!("{path}.tools[{index}]");
                take_tool(tool, &path, Some(&namespace), functions, namespaces)?;
            }
            Ok(())
        }
        (kind, _) => {
            let what = format!("a tool of the type `{kind}` is not supported, only `function`");
            Err(ApiError::param(format!("{path}.type"), what))
        }
    }
}

/// The choice as `/v1/chat/completions` has it; leaves only the functions that are allowed.
fn take_choice(choice: &Value, functions: &mut Vec<Value>) -> Result<Value, ApiError> {
    if choice.is_string() {
        return Ok(choice.clone());
    }
    let mut fields = Fields::of(choice.clone(), "tool_choice")?;
    match fields.require::<String>("type")?.as_str() {
        "function" => {
            let name = fields.require::<String>("name")?;
            Ok(json!({ "type": "function", "function": { "name": name } }))
        }
        "allowed_tools" => {
            let mode = fields.require::<String>("mode")?;
            let allowed = fields.require::<Vec<Value>>("tools")?;
            functions.retain(|function| {
                allowed.iter().any(|allowed| allowed["name"] == function["function"]["name"])
            });
            Ok(mode.into())
        }
        kind => {
            let what = format!("`{kind}` is not supported, only `function` and `allowed_tools`");
            Err(ApiError::param("tool_choice.type", what))
        }
    }
}
