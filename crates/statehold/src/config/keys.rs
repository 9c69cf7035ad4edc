//! Keys of the sections whose tables have names that users choose: which there are, what their values
//! must be, and what of them may be shown.

use std::ops::Deref;

use serde::de::DeserializeOwned;
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use toml::{Table, Value};

use super::agents::{Agent, TOOL_SETTINGS};
use super::kinds::SETTINGS;
use super::layers::step;
use super::models::{MODEL_SETTINGS, Model};
use super::tool_servers::{TOOL_SERVER_SETTINGS, ToolServer};

pub(super) const AGENTS: &str = "agents";
pub(super) const MODELS: &str = "models";
pub(super) const TOOL_SERVERS: &str = "tool_servers";
const TOOLS: &str = "tools";

/// Settings whose value is a table: a JSON Schema.
const SCHEMAS: [&str; 2] = ["approval_if", "state_schema"];
/// Settings whose text is for a model and for nobody else.
const PROMPTS: [&str; 3] = ["answer_prompt", "prompt", "routing_prompt"];
/// Settings that somebody might put a secret into, although it does not belong there.
const DELICATE: [&str; 5] = ["base_url", "command", "credential_env", "env", "url"];

/// A key of one of these sections, looked at closely.
pub(super) enum NamedKey {
    /// It is in another section.
    Elsewhere,
    /// The table of a name, in which nothing stands.
    Empty,
    /// It is one that there is.
    Known,
    /// It is not, but these would be in its place.
    Unknown(Vec<String>),
    /// A name in it is no name.
    BadName(String),
}

impl NamedKey {
    /// Judges the steps of a key and its value.
    pub(super) fn of(steps: &[String], value: &Value) -> Self {
        let steps: Vec<&str> = steps.iter().map(Deref::deref).collect();
        let (names, setting) = match steps[..] {
            [AGENTS | MODELS | TOOL_SERVERS, name, setting] => (vec![name], Some(setting)),
            [AGENTS, agent, TOOLS, tool, setting] => (vec![agent, tool], Some(setting)),
            [AGENTS | MODELS | TOOL_SERVERS, name] if is_empty_table(value) => (vec![name], None),
            [section @ (AGENTS | MODELS | TOOL_SERVERS), name, ..] => {
                return Self::Unknown(settings(section, name, None));
            }
            _ => return Self::Elsewhere,
        };
        if let Some(bad) = names.iter().find(|name| name.parse::<Name>().is_err()) {
            return Self::BadName((*bad).to_owned());
        }
        let Some(setting) = setting else {
            return Self::Empty;
        };
        let tool = names.get(1).copied();
        if own_settings(steps[0], tool.is_some()).contains(&setting) {
            Self::Known
        } else {
            Self::Unknown(settings(steps[0], names[0], tool))
        }
    }
}

fn is_empty_table(value: &Value) -> bool {
    value.as_table().is_some_and(Table::is_empty)
}

/// The settings of a section's tables, or of tools.
fn own_settings(section: &str, is_tool: bool) -> Vec<&'static str> {
    match section {
        MODELS => MODEL_SETTINGS.to_vec(),
        TOOL_SERVERS => TOOL_SERVER_SETTINGS.to_vec(),
        _ if is_tool => TOOL_SETTINGS.to_vec(),
        _ => {
            let of_agent = SETTINGS.iter().map(|(setting, _)| *setting);
            TOOL_SETTINGS.into_iter().chain(of_agent).collect()
        }
    }
}

/// Every key that there could be for a name, or for a tool of an agent.
fn settings(section: &str, name: &str, tool: Option<&str>) -> Vec<String> {
    let place = match tool {
        None => format!("{section}.{}", step(name)),
        Some(tool) => format!("{section}.{}.{TOOLS}.{}", step(name), step(tool)),
    };
    let own = own_settings(section, tool.is_some());
    own.iter()
        .map(|setting| format!("{place}.{setting}"))
        .collect()
}

/// Whether a table is a value as a whole, and not a section with settings in it.
pub(super) fn is_value(steps: &[String], table: &Table) -> bool {
    match steps {
        [section, _] => table.is_empty() && [AGENTS, MODELS, TOOL_SERVERS].contains(&&**section),
        [section, _, setting] => section == AGENTS && SCHEMAS.contains(&&**setting),
        [section, _, tools, _, setting] => {
            section == AGENTS && tools == TOOLS && SCHEMAS.contains(&&**setting)
        }
        _ => false,
    }
}

/// Says why a value cannot be what its setting needs. Each is looked at alone, so that the whole key can
/// be named.
pub(super) fn require_fit(steps: &[String], value: &Value) -> Result<(), String> {
    let (Some(section), Some(setting)) = (steps.first(), steps.last()) else {
        return Ok(());
    };
    let fits = match section.as_str() {
        MODELS => fit::<Model>(setting, value),
        TOOL_SERVERS => fit::<ToolServer>(setting, value),
        _ => fit::<Agent>(setting, value),
    };
    let is_prompt = PROMPTS.contains(&setting.as_str());
    fits.map_err(|why| match why.rsplit_once(", expected ") {
        // What was found instead is the value itself.
        Some((_, expected)) if is_prompt || is_delicate(steps) => format!("expected {expected}"),
        _ => why,
    })
}

fn fit<T: DeserializeOwned>(setting: &str, value: &Value) -> Result<(), String> {
    let mut table = Table::new();
    table.insert(setting.to_owned(), value.clone());
    let fits = Value::Table(table).try_into::<T>();
    fits.map(drop)
        .map_err(|error| error.message().trim().to_owned())
}

/// What may be shown of a value: of prompts how long they are, and which.
pub(super) fn shown(steps: &[String], value: Value) -> Value {
    let setting = match steps {
        [section, _, setting] if section == AGENTS => setting.as_str(),
        _ => return value,
    };
    if PROMPTS.contains(&setting) {
        return without_words(&value);
    }
    match value {
        Value::Array(mut rules) if setting == "rules" => {
            for rule in rules.iter_mut().filter_map(Value::as_table_mut) {
                if let Some(instructions) = rule.get_mut("instructions") {
                    *instructions = without_words(instructions);
                }
            }
            Value::Array(rules)
        }
        other => other,
    }
}

fn without_words(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let digest = Digest::sha256(text.as_bytes()).to_string();
    Value::String(format!("({} bytes, sha256 {})", text.len(), &digest[..16]))
}

/// What may be said of a value that does not fit. A secret may have come into the wrong place.
pub(super) fn said(steps: &[String], value: &Value) -> String {
    if is_delicate(steps) {
        "what it is set to".to_owned()
    } else {
        shown(steps, value.clone()).to_string()
    }
}

fn is_delicate(steps: &[String]) -> bool {
    steps.len() > 2
        && [AGENTS, MODELS, TOOL_SERVERS].contains(&&*steps[0])
        && steps
            .last()
            .is_some_and(|setting| DELICATE.contains(&&**setting))
}
