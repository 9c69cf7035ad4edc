//! Checks the tool calls that a model requests: which may run, which need an approval first, and which
//! are rejected with an error for the model.

use std::collections::BTreeSet;
use std::fmt::Display;

use serde_json::Value;
use statehold_core::hold::Effect;
use statehold_core::json_keys::require_unique_keys;
use statehold_core::name::Name;
use statehold_core::number::{require_exact_arguments, require_exact_text};
use statehold_engine::bodies::Raw;
use statehold_engine::policy::Effective;
use statehold_engine::{Engine, Schema};

use crate::chat::RawToolCall;
use crate::mcp::McpTool;
use crate::message::raw;
use crate::model::RequestedCall;
use crate::tool_policy::ToolRules;

/// Most tool calls per reply.
const CALLS_MAX: usize = 64;

/// Calls that a person refused in this turn: server, tool and arguments.
pub(crate) type RefusedCalls = BTreeSet<(String, String, String)>;

/// Checks calls against the current tools and policies.
pub(crate) struct CallChecker<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) agent: &'a Name,
    pub(crate) tools: &'a [McpTool],
    pub(crate) refused: &'a RefusedCalls,
}

impl CallChecker<'_> {
    /// The checked calls, and the complete arguments of those that are not rejected. Arguments that a
    /// policy redacts exist only in memory.
    pub(crate) fn check_all(&self, wanted: Vec<RawToolCall>) -> (Vec<RequestedCall>, Vec<Raw>) {
        let (mut checked, mut complete_arguments) = (Vec::new(), Vec::new());
        let mut ids = BTreeSet::new();
        for (at, mut call) in wanted.into_iter().enumerate() {
            // Results are matched by call id, so make the ids unique.
            while !ids.insert(call.id.clone()) {
                call.id = format!("{}_{at}", call.id);
            }
            let outcome = if at < CALLS_MAX {
                self.check(&call)
            } else {
                Err(format!(
                    "at most {CALLS_MAX} tools are called at once; it was not called"
                ))
            };
            checked.push(match outcome {
                Ok((mut requested, arguments)) => {
                    complete_arguments.push(arguments);
                    requested.id = call.id;
                    requested
                }
                Err(error) => self.rejected(call, error),
            });
        }
        (checked, complete_arguments)
    }

    fn check(&self, call: &RawToolCall) -> Result<(RequestedCall, Raw), String> {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.name) else {
            let known: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
            return Err(format!(
                "there is no tool of this name; nothing was called. The tools are: {}",
                known.join(", ")
            ));
        };
        let arguments = parse_arguments(&call.arguments)?;
        // Serialize the parsed arguments again: the tool gets exactly the text that people approve.
        let whole = raw(&arguments);
        let rules = self.rules(tool);
        let name = rules.recorded;
        let shown = self.engine.shown_arguments(self.agent, &name, &whole);
        require_valid(tool, &arguments, shown.is_some())?;
        let gated = rules.effective.needs_approval(&arguments);
        if gated {
            require_holdable(&name, &arguments)?;
        }
        let stored = || self.engine.stored_arguments(self.agent, &whole);
        let shown = shown.filter(|_| gated).or_else(stored);
        let server = tool.server.to_string();
        let this = (server, tool.original.clone(), whole.get().to_owned());
        if shown.is_none() && self.refused.contains(&this) {
            let what = "a person refused exactly this call before; it was not called, and no new approval was requested";
            return Err(what.to_owned());
        }
        let requested = RequestedCall {
            id: String::new(),
            name: call.name.clone(),
            arguments: shown.as_ref().unwrap_or(&whole).get().to_owned(),
            server: tool.server.to_string(),
            original: tool.original.clone(),
            tool: name,
            gated,
            idempotent: is_idempotent(tool, rules.effective),
            only_reads: tool.only_reads,
            hidden: shown.is_some(),
            error: None,
        };
        Ok((requested, whole))
    }

    /// A rejected call. Keeps the model's arguments as far as they can be sent back to it.
    fn rejected(&self, call: RawToolCall, error: String) -> RequestedCall {
        // Some endpoints parse the arguments of earlier calls and reject invalid JSON.
        let written = parse_arguments(&call.arguments).map(|arguments| raw(&arguments));
        let written = written.unwrap_or_else(|_| raw(&serde_json::Map::new()));
        let tool = self.tools.iter().find(|tool| tool.name == call.name);
        let name = tool.map_or_else(|| call.name.clone(), |tool| self.rules(tool).recorded);
        let shown = self.engine.shown_arguments(self.agent, &name, &written);
        let shown = shown.or_else(|| self.engine.stored_arguments(self.agent, &written));
        RequestedCall {
            id: call.id,
            arguments: shown.unwrap_or(written).get().to_owned(),
            name: call.name,
            error: Some(error),
            ..RequestedCall::default()
        }
    }

    fn rules(&self, tool: &McpTool) -> ToolRules {
        let policies = self.engine.policies();
        ToolRules::of(&policies, self.agent, tool.server.as_str(), &tool.original)
    }
}

/// Whether a tool may be retried with the same execution key: by policy, or else by its server's hint
/// if that server is trusted. An effect in the policy overrides the server's hint.
fn is_idempotent(tool: &McpTool, effective: Effective) -> bool {
    let said = effective.policy.idempotent;
    let only_reads = || effective.or_read(tool.only_reads).policy.effect == Some(Effect::Read);
    said.unwrap_or_else(|| tool.idempotent || tool.only_reads && only_reads())
}

fn parse_arguments(written: &str) -> Result<Value, String> {
    if written.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    match serde_json::from_str(written) {
        Ok(arguments @ Value::Object(_)) => {
            let nothing_called = |error: &dyn Display| format!("{error}; nothing was called");
            require_exact_text(written).map_err(|error| nothing_called(&error))?;
            // A person would approve one of the values, and a tool could take the other.
            require_unique_keys(written).map_err(|error| nothing_called(&error))?;
            Ok(arguments)
        }
        Ok(_) => Err(
            "the arguments are not a JSON object; nothing was called. Write an object".to_owned(),
        ),
        Err(error) => Err(format!(
            "the arguments are not JSON ({error}); nothing was called. Write a JSON object"
        )),
    }
}

fn require_valid(tool: &McpTool, arguments: &Value, hides: bool) -> Result<(), String> {
    // A schema that this server cannot compile is left for the tool to check.
    let Ok(schema) = Schema::new(&tool.input_schema.to_string()) else {
        return Ok(());
    };
    let errors = schema.errors(arguments);
    if errors.is_empty() {
        return Ok(());
    }
    let told = errors.iter().map(|error| {
        let path = if error.path.is_empty() {
            "/"
        } else {
            &error.path
        };
        // A validation message would reveal a redacted value.
        let what = if hides {
            "does not fit"
        } else {
            &error.message
        };
        format!("{path}: {what}")
    });
    let told: Vec<String> = told.collect();
    Err(format!(
        "the arguments do not fit the tool; nothing was called. {}",
        told.join("; ")
    ))
}

/// Checks that a hold for this call would be accepted: valid name, exact numbers.
fn require_holdable(name: &str, arguments: &Value) -> Result<(), String> {
    name.parse::<Name>().map_err(|_| {
        "this tool needs an approval, and its name is none that people can be asked about; it was not called"
            .to_owned()
    })?;
    require_exact_arguments(arguments)
        .map_err(|error| format!("this call needs an approval, and {error}; it was not called"))
}
