//! State tools: built-in tools with which a model reads, writes and deletes state values, in the scopes that
//! its agent is declared with. A write is committed together with the result of its call, so it has an effect
//! exactly if the call is recorded as done.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use statehold_core::name::Name;
use statehold_core::scope::{Scope, StateKey};
use statehold_engine::bodies::Raw;

use crate::gateway::normalize_value;
use crate::mcp::{McpTool, ToolList, model_safe_name};
use crate::message::raw;
use crate::runner::run::AgentRun;
use crate::spec::StateAccess;
use crate::turn::TurnError;

/// The server of the state tools in records. No declared tool server has this name.
pub(super) const STATE_SERVER: &str = "statehold.state";

const GET: &str = "get_state";
const PUT: &str = "put_state";
const DELETE: &str = "delete_state";
/// Longest value that a model reads, in bytes of JSON.
const READ_BYTES_MAX: usize = 64 * 1024;

/// A session or user value to write with the result of a call. None deletes it.
pub(super) type StateWrite = (StateKey, Option<Raw>);

/// Result of a state tool.
pub(super) struct StateCallResult {
    pub(super) result: Raw,
    pub(super) write: Option<StateWrite>,
}

impl StateCallResult {
    fn plain(result: &Value) -> Self {
        let (result, write) = (raw(result), None);
        Self { result, write }
    }

    fn error(text: impl Into<String>) -> Self {
        let text: String = text.into();
        Self::plain(&json!({ "error": text }))
    }
}

/// A value as a model reads it.
#[derive(Serialize)]
struct FoundValue<'a> {
    key: &'a StateKey,
    exists: bool,
    value: &'a RawValue,
}

/// Adds the state tools before the others. A tool of the same name gets its server as prefix.
pub(super) fn offer_state_tools(access: &StateAccess, list: &mut ToolList) {
    let own = state_tools(access);
    let mut taken: BTreeSet<String> = own.iter().map(|tool| tool.name.clone()).collect();
    list.tools.retain_mut(|tool| {
        if taken.contains(&tool.name) {
            let server = model_safe_name(tool.server.as_str());
            tool.name = format!("{server}__{}", tool.name);
        }
        tool.name.len() <= 64 && taken.insert(tool.name.clone())
    });
    list.tools.splice(0..0, own);
}

fn state_tools(access: &StateAccess) -> Vec<McpTool> {
    let server: Name = STATE_SERVER.parse().expect("a fixed name is a name");
    let tool = |name: &str, does: &str, scopes: &BTreeSet<Scope>, value: bool| {
        let keys: Vec<&str> = scopes.iter().map(|scope| key_form(*scope)).collect();
        let mut properties = json!({"key": {"type": "string"}});
        let mut required = vec!["key"];
        if value {
            properties["value"] = json!({"description": "Any JSON value"});
            required.push("value");
        }
        let schema = json!({
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        });
        McpTool {
            server: server.clone(),
            name: name.to_owned(),
            original: name.to_owned(),
            description: Some(format!("{does} Keys: {}.", keys.join(", "))),
            input_schema: Arc::new(schema),
            idempotent: true,
            only_reads: name == GET,
            destructive: None,
        }
    };
    let mut tools = Vec::new();
    if !access.read.is_empty() {
        let does = "Reads a value of the state that agents share.";
        tools.push(tool(GET, does, &access.read, false));
    }
    if !access.write.is_empty() {
        let does = "Writes a value of the state that agents share; it replaces the old one.";
        tools.push(tool(PUT, does, &access.write, true));
        let does = "Deletes a value of the state that agents share.";
        tools.push(tool(DELETE, does, &access.write, false));
    }
    tools
}

/// How keys of a scope look, for a model.
fn key_form(scope: Scope) -> &'static str {
    match scope {
        Scope::App => "`app:NAME` (all users)",
        Scope::User => "`user:NAME` (this user)",
        Scope::Session => "`NAME` (this session)",
        Scope::Temp => "`temp:NAME` (this turn)",
    }
}

impl AgentRun {
    /// Executes a state tool. `temp:` values are written at once, because they are never recorded.
    pub(super) async fn call_state_tool(
        &self,
        tool: &str,
        arguments: &RawValue,
        access: &StateAccess,
    ) -> Result<StateCallResult, TurnError> {
        let arguments: Value = serde_json::from_str(arguments.get()).unwrap_or_default();
        let scopes = if tool == GET {
            &access.read
        } else {
            &access.write
        };
        let key: StateKey = match arguments["key"].as_str().unwrap_or_default().parse() {
            Ok(key) => key,
            Err(error) => return Ok(StateCallResult::error(format!("{error}; nothing was done"))),
        };
        if !scopes.contains(&key.scope()) {
            let allowed: Vec<&str> = scopes.iter().map(|scope| key_form(*scope)).collect();
            let allowed = allowed.join(", ");
            let text =
                format!("`{key}` is out of reach of this tool; nothing was done. Use {allowed}");
            return Ok(StateCallResult::error(text));
        }
        if tool == GET {
            return self.read_state(key).await;
        }
        let value = if tool == PUT {
            let value = raw(&arguments["value"]);
            let Some(value) = normalize_value(&value) else {
                let text =
                    "the value is too long or too deep; nothing was written. Write a smaller one";
                return Ok(StateCallResult::error(text));
            };
            let policies = self.engine.policies();
            let errors = policies.state.errors(&key, value.get().as_bytes());
            if let Some(error) = errors.first() {
                let (path, why) = (&error.path, &error.message);
                let text = format!(
                    "the value of `{key}` does not fit its schema at `{path}`: {why}; nothing was written"
                );
                return Ok(StateCallResult::error(text));
            }
            Some(value)
        } else {
            None
        };
        let done = if value.is_some() {
            "written"
        } else {
            "deleted"
        };
        let mut result = StateCallResult::plain(&json!({ done: key.as_str() }));
        if key.scope() == Scope::Temp {
            self.put_temp(vec![(key, value)]).await?;
        } else {
            result.write = Some((key, value));
        }
        Ok(result)
    }

    async fn read_state(&self, key: StateKey) -> Result<StateCallResult, TurnError> {
        let found = self.state_values(std::slice::from_ref(&key)).await?;
        Ok(match found.first() {
            None => StateCallResult::plain(&json!({"key": key, "exists": false})),
            Some((_, value)) if value.get().len() > READ_BYTES_MAX => {
                let bytes = value.get().len();
                StateCallResult::error(format!(
                    "the value of `{key}` has {bytes} bytes, and this tool reads {READ_BYTES_MAX}"
                ))
            }
            Some((key, value)) => {
                let found = FoundValue {
                    key,
                    exists: true,
                    value,
                };
                StateCallResult {
                    result: raw(&found),
                    write: None,
                }
            }
        })
    }
}
