//! Keys in sections with user-chosen table names: the valid keys, their types, and which values may
//! be shown.

use std::ops::Deref;

use serde::de::DeserializeOwned;
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use toml::{Table, Value};

use super::agents::{AgentConfig, TOOL_SETTINGS};
use super::kinds::SETTINGS;
use super::layers::step;
use super::lifetimes::{APP_SETTINGS, AppConfig};
use super::models::{MODEL_SETTINGS, ModelConfig};
use super::state_rules::{STATE_SETTINGS, StateKeys, StateRuleConfig};
use super::tool_servers::{TOOL_SERVER_SETTINGS, ToolServerConfig};

pub(super) const AGENTS: &str = "agents";
pub(super) const MODELS: &str = "models";
pub(super) const TOOL_SERVERS: &str = "tool_servers";
pub(super) const STATE: &str = "state";
pub(super) const APPS: &str = "apps";
const TOOLS: &str = "tools";

/// Settings whose value is a table: a JSON Schema.
const SCHEMAS: [&str; 2] = ["approval_if", "state_schema"];
/// Settings whose value is a table for a service or a tool.
const DATA_SOURCES: &str = "data_sources";
const ARGUMENTS: &str = "arguments";
/// The setting whose value is a table of headers.
const HEADERS: &str = "headers";
/// Settings whose text is only for a model.
const PROMPTS: [&str; 4] = ["answer_prompt", "instructions", "prompt", "routing_prompt"];
/// Settings that may hold a misplaced secret.
const DELICATE: [&str; 8] = [
    ARGUMENTS,
    "base_url",
    "command",
    "credential_env",
    DATA_SOURCES,
    "env",
    "headers",
    "url",
];

/// The classification of a key.
pub(super) enum NamedKey {
    /// The key is in another section.
    Elsewhere,
    /// The table of a name, without settings.
    Empty,
    /// A valid key.
    Known,
    /// An unknown key, with the valid keys of the same table.
    Unknown(Vec<String>),
    /// A name in the key is invalid.
    BadName(String),
    /// The name of a table below `state` is no state key, for this reason.
    BadStateKeys(String),
}

impl NamedKey {
    /// Classifies a key with its value.
    pub(super) fn of(steps: &[String], value: &Value) -> Self {
        let steps: Vec<&str> = steps.iter().map(Deref::deref).collect();
        let (names, setting) = match steps[..] {
            [STATE, keys, ref rest @ ..] => return Self::of_state(keys, rest, value),
            [AGENTS | APPS | MODELS | TOOL_SERVERS, name, setting] => (vec![name], Some(setting)),
            [AGENTS, agent, TOOLS, tool, setting] => (vec![agent, tool], Some(setting)),
            [AGENTS | APPS | MODELS | TOOL_SERVERS, name] if is_empty_table(value) => {
                (vec![name], None)
            }
            [section @ (AGENTS | APPS | MODELS | TOOL_SERVERS), name, ..] => {
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

    /// Classifies a key below `state`, whose tables are named by state keys.
    fn of_state(keys: &str, rest: &[&str], value: &Value) -> Self {
        if let Err(why) = StateKeys::try_from(keys.to_owned()) {
            return Self::BadStateKeys(why);
        }
        match rest {
            [] if is_empty_table(value) => Self::Empty,
            [setting] if STATE_SETTINGS.contains(setting) => Self::Known,
            _ => Self::Unknown(settings(STATE, keys, None)),
        }
    }
}

fn is_empty_table(value: &Value) -> bool {
    value.as_table().is_some_and(Table::is_empty)
}

/// The settings of a section's tables, or of tools.
fn own_settings(section: &str, is_tool: bool) -> Vec<&'static str> {
    match section {
        STATE => STATE_SETTINGS.to_vec(),
        APPS => APP_SETTINGS.to_vec(),
        MODELS => MODEL_SETTINGS.to_vec(),
        TOOL_SERVERS => TOOL_SERVER_SETTINGS.to_vec(),
        _ if is_tool => TOOL_SETTINGS.to_vec(),
        _ => {
            let of_agent = SETTINGS.iter().map(|(setting, _)| *setting);
            TOOL_SETTINGS.into_iter().chain(of_agent).collect()
        }
    }
}

/// Every valid key for a name, or for a tool of an agent.
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
        [section, _] => {
            table.is_empty() && [AGENTS, APPS, MODELS, STATE, TOOL_SERVERS].contains(&&**section)
        }
        [section, _, setting] => {
            if section == STATE {
                return setting == "schema";
            }
            let has_headers = [AGENTS, MODELS, TOOL_SERVERS].contains(&&**section);
            let is_table =
                SCHEMAS.contains(&&**setting) || setting == DATA_SOURCES || setting == ARGUMENTS;
            has_headers && setting == HEADERS || section == AGENTS && is_table
        }
        [section, _, tools, _, setting] => {
            section == AGENTS && tools == TOOLS && SCHEMAS.contains(&&**setting)
        }
        _ => false,
    }
}

/// Checks that a value fits its setting. Each value is checked alone, so that the error can name
/// the whole key.
pub(super) fn require_fit(steps: &[String], value: &Value) -> Result<(), String> {
    let (Some(section), Some(setting)) = (steps.first(), steps.last()) else {
        return Ok(());
    };
    let fits = match section.as_str() {
        MODELS => fit::<ModelConfig>(setting, value),
        TOOL_SERVERS => fit::<ToolServerConfig>(setting, value),
        STATE => fit::<StateRuleConfig>(setting, value),
        APPS => fit::<AppConfig>(setting, value),
        _ => fit::<AgentConfig>(setting, value),
    };
    let is_prompt = PROMPTS.contains(&setting.as_str());
    fits.map_err(|why| match why.rsplit_once(", expected ") {
        // The rest of the message quotes the value itself.
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

/// The part of a value that may be shown: of prompts, the length and a digest.
pub(super) fn redact_prompts(steps: &[String], value: Value) -> Value {
    let setting = match steps {
        [section, _, setting] if section == AGENTS => setting.as_str(),
        _ => return value,
    };
    if PROMPTS.contains(&setting) {
        return digest_of_text(&value);
    }
    match value {
        Value::Array(mut rules) if ["phases", "rules"].contains(&setting) => {
            for rule in rules.iter_mut().filter_map(Value::as_table_mut) {
                if let Some(instructions) = rule.get_mut("instructions") {
                    *instructions = digest_of_text(instructions);
                }
            }
            Value::Array(rules)
        }
        other => other,
    }
}

fn digest_of_text(value: &Value) -> Value {
    let text = match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let digest = Digest::sha256(text.as_bytes()).to_string();
    Value::String(format!("({} bytes, sha256 {})", text.len(), &digest[..16]))
}

/// Describes a value that does not fit. It may be a misplaced secret.
pub(super) fn describe_value(steps: &[String], value: &Value) -> String {
    if is_delicate(steps) {
        "the given value".to_owned()
    } else {
        redact_prompts(steps, value.clone()).to_string()
    }
}

fn is_delicate(steps: &[String]) -> bool {
    steps.len() > 2
        && [AGENTS, MODELS, TOOL_SERVERS].contains(&&*steps[0])
        && steps
            .last()
            .is_some_and(|setting| DELICATE.contains(&&**setting))
}
