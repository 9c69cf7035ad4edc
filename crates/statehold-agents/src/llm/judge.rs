//! What comes of the tool calls that a model wants: which are tried, which a person must approve first,
//! and what the model is told about those that make no sense.

use std::collections::BTreeSet;

use serde_json::Value;
use statehold_core::digest::require_exact_numbers;
use statehold_core::hold::Effect;
use statehold_core::name::Name;
use statehold_engine::kept::Raw;
use statehold_engine::policy::Effective;
use statehold_engine::{Engine, Schema};

use crate::chat::ToolCallWish;
use crate::mcp::Tool;
use crate::model::Wish;
use crate::tool_policy::ToolRules;
use crate::words::raw;

/// How many calls one message may want.
const CALLS_MAX: usize = 64;

/// Calls that a person refused in this turn: the server, its tool, and the arguments.
pub(crate) type Refused = BTreeSet<(String, String, String)>;

/// A call with its whole arguments, which live in memory only where a policy hides them.
pub(crate) struct Judged {
    pub(crate) wish: Wish,
    /// None if it is not tried.
    pub(crate) arguments: Option<Raw>,
}

/// Judges calls by the tools and the policy of now.
pub(crate) struct Judge<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) agent: &'a Name,
    pub(crate) tools: &'a [Tool],
    pub(crate) refused: &'a Refused,
}

impl Judge<'_> {
    pub(crate) fn all(&self, wanted: Vec<ToolCallWish>) -> Vec<Judged> {
        let mut ids = BTreeSet::new();
        let judged = wanted.into_iter().enumerate().map(|(at, mut call)| {
            // A result is found by its id, so there can be only one of each.
            while !ids.insert(call.id.clone()) {
                call.id = format!("{}_{at}", call.id);
            }
            let outcome = if at < CALLS_MAX {
                self.one(&call)
            } else {
                Err(format!(
                    "at most {CALLS_MAX} tools are called at once; it was not called"
                ))
            };
            let (wish, arguments) = match outcome {
                Ok((mut wish, arguments)) => {
                    wish.id = call.id;
                    (wish, Some(arguments))
                }
                Err(error) => (self.refusal(call, error), None),
            };
            Judged { wish, arguments }
        });
        judged.collect()
    }

    fn one(&self, call: &ToolCallWish) -> Result<(Wish, Raw), String> {
        let Some(tool) = self.tools.iter().find(|tool| tool.name == call.name) else {
            let known: Vec<&str> = self.tools.iter().map(|tool| tool.name.as_str()).collect();
            return Err(format!(
                "there is no tool of this name; nothing was called. The tools are: {}",
                known.join(", ")
            ));
        };
        let arguments = read_arguments(&call.arguments)?;
        // Once more, in one spelling: what people approve is exactly what the tool gets.
        let whole = raw(&arguments);
        let rules = self.rules(tool);
        let name = rules.recorded;
        let shown = self.engine.shown_arguments(self.agent, &name, &whole);
        require_fit(tool, &arguments, shown.is_some())?;
        let gated = rules.effective.needs_approval(&arguments);
        if gated {
            require_askable(&name, &arguments)?;
        }
        let shown = shown.filter(|_| gated);
        let server = tool.server.to_string();
        let this = (server, tool.original.clone(), whole.get().to_owned());
        if shown.is_none() && self.refused.contains(&this) {
            let what = "a person refused exactly this call before; it was not called, and nobody is asked again";
            return Err(what.to_owned());
        }
        let wish = Wish {
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
        Ok((wish, whole))
    }

    /// A call that is not tried. What the model wrote stays, as far as it can be told back to it.
    fn refusal(&self, call: ToolCallWish, error: String) -> Wish {
        // Endpoints read the arguments of earlier calls, and not all of them forgive.
        let written = read_arguments(&call.arguments).map(|arguments| raw(&arguments));
        let written = written.unwrap_or_else(|_| raw(&serde_json::Map::new()));
        let tool = self.tools.iter().find(|tool| tool.name == call.name);
        let name = tool.map_or_else(|| call.name.clone(), |tool| self.rules(tool).recorded);
        let shown = self.engine.shown_arguments(self.agent, &name, &written);
        Wish {
            id: call.id,
            arguments: shown.unwrap_or(written).get().to_owned(),
            name: call.name,
            server: String::new(),
            original: String::new(),
            tool: String::new(),
            gated: false,
            idempotent: false,
            only_reads: false,
            hidden: false,
            error: Some(error),
        }
    }

    fn rules(&self, tool: &Tool) -> ToolRules {
        let policies = self.engine.policies();
        ToolRules::of(&policies, self.agent, tool.server.as_str(), &tool.original)
    }
}

/// Whether a tool may be called again under the same key: the policy says so, or else its server, if that
/// is believed. What a policy says about its effect goes over what its server says.
fn is_idempotent(tool: &Tool, effective: Effective) -> bool {
    let said = effective.policy.idempotent;
    let only_reads = || effective.or_read(tool.only_reads).policy.effect == Some(Effect::Read);
    said.unwrap_or_else(|| tool.idempotent || tool.only_reads && only_reads())
}

fn read_arguments(written: &str) -> Result<Value, String> {
    if written.trim().is_empty() {
        return Ok(Value::Object(serde_json::Map::new()));
    }
    match serde_json::from_str(written) {
        Ok(arguments @ Value::Object(_)) => Ok(arguments),
        Ok(_) => Err(
            "the arguments are not a JSON object; nothing was called. Write an object".to_owned(),
        ),
        Err(error) => Err(format!(
            "the arguments are not JSON ({error}); nothing was called. Write a JSON object"
        )),
    }
}

fn require_fit(tool: &Tool, arguments: &Value, hides: bool) -> Result<(), String> {
    // A schema that cannot be used here is the tool's own to check.
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
        // What is wrong with a value says what it is.
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

/// People can only be asked about what everybody reads alike.
fn require_askable(name: &str, arguments: &Value) -> Result<(), String> {
    name.parse::<Name>().map_err(|_| {
        "this tool needs an approval, and its name is none that people can be asked about; it was not called"
            .to_owned()
    })?;
    require_exact_numbers(arguments).map_err(|error| {
        format!("this call needs an approval, and {error}; it was not called. Write the number as a text")
    })
}
