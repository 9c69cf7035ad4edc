//! States that clients got from coordinators without a state server, and still carry: the history
//! of tool calls of an agent (GPA), the id of a conversation with a service that keeps it (UMS), or
//! both. Clients can forge these states; only agents with `caller_history = "trusted"` get them, if
//! no record exists.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use statehold_engine::api::json::Raw;

/// The longest state that is read, in bytes, and the most entries of its history.
const STATE_BYTES_MAX: usize = 1024 * 1024;
const ENTRIES_MAX: usize = 10_000;
/// The longest id of a conversation, in bytes.
const CONVERSATION_BYTES_MAX: usize = 256;

/// A state as the server would have recorded it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LegacyState {
    /// The state of the agent itself, as it wrote it.
    pub(super) own: Option<String>,
    /// The id of its conversation.
    pub(super) conversation: Option<String>,
}

/// A state in one of these forms that does not fit its schema.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MalformedState;

/// The members by which the forms are known.
#[derive(Deserialize)]
struct StateForms {
    gpa_messages: Option<Raw>,
    ums_conversation_id: Option<Raw>,
    is_gpa: Option<IgnoredAny>,
    tool_call_history: Option<IgnoredAny>,
}

/// The history of one turn: messages that call tools, and the results.
#[derive(Deserialize)]
struct GpaState {
    tool_call_history: Vec<HistoryEntry>,
}

#[derive(Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum HistoryEntry {
    Assistant { tool_calls: Vec<HistoryCall> },
    Tool { tool_call_id: String },
}

#[derive(Deserialize)]
struct HistoryCall {
    id: String,
    #[serde(rename = "function")]
    _function: CalledFunction,
}

#[derive(Deserialize)]
struct CalledFunction {
    #[serde(rename = "name")]
    _name: String,
    #[serde(rename = "arguments")]
    _arguments: String,
}

/// The legacy state in the `custom_content` of an answer.
pub(super) fn legacy_state(custom: &RawValue) -> Option<Result<LegacyState, MalformedState>> {
    #[derive(Deserialize)]
    struct CustomContent {
        state: Option<Raw>,
    }
    let custom: CustomContent = serde_json::from_str(custom.get()).ok()?;
    LegacyState::read(&custom.state?)
}

impl LegacyState {
    /// Reads the state of an answer. None for other states.
    pub(super) fn read(state: &RawValue) -> Option<Result<Self, MalformedState>> {
        let forms: StateForms = serde_json::from_str(state.get()).ok()?;
        let is_coordinators = forms.gpa_messages.is_some() || forms.is_gpa.is_some();
        let is_known = is_coordinators
            || forms.ums_conversation_id.is_some()
            || forms.tool_call_history.is_some();
        is_known.then(|| Self::of(state, forms, is_coordinators))
    }

    fn of(
        state: &RawValue,
        forms: StateForms,
        is_coordinators: bool,
    ) -> Result<Self, MalformedState> {
        if state.get().len() > STATE_BYTES_MAX {
            return Err(MalformedState);
        }
        let own = match &forms.gpa_messages {
            Some(messages) => Some(messages.get()),
            None if is_coordinators => return Err(MalformedState),
            None => forms.tool_call_history.map(|_| state.get()),
        };
        if let Some(own) = own {
            require_gpa_state(own)?;
        }
        let conversation = forms.ums_conversation_id;
        let conversation = conversation.map(|id| conversation_id(&id)).transpose()?;
        Ok(Self {
            own: own.map(str::to_owned),
            conversation,
        })
    }
}

/// Requires a history of tool calls in which each result belongs to a call before it.
fn require_gpa_state(state: &str) -> Result<(), MalformedState> {
    let state: GpaState = serde_json::from_str(state).map_err(|_| MalformedState)?;
    let mut open = BTreeSet::new();
    let fits = |entry: &HistoryEntry| match entry {
        HistoryEntry::Assistant { tool_calls } => {
            open.extend(tool_calls.iter().map(|call| call.id.clone()));
            !tool_calls.is_empty()
        }
        HistoryEntry::Tool { tool_call_id } => open.remove(tool_call_id),
    };
    let history = &state.tool_call_history;
    if history.len() > ENTRIES_MAX || !history.iter().all(fits) {
        return Err(MalformedState);
    }
    Ok(())
}

fn conversation_id(id: &RawValue) -> Result<String, MalformedState> {
    let id: String = serde_json::from_str(id.get()).map_err(|_| MalformedState)?;
    let is_plain = id.bytes().all(|byte| byte.is_ascii_graphic());
    let has_length = (1..=CONVERSATION_BYTES_MAX).contains(&id.len());
    if is_plain && has_length {
        Ok(id)
    } else {
        Err(MalformedState)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use statehold_engine::api::json::raw_bytes;

    use super::*;

    fn read(state: &Value) -> Option<Result<LegacyState, MalformedState>> {
        LegacyState::read(&raw_bytes(state.to_string().as_bytes()))
    }

    fn history() -> Value {
        let call = json!({"index": 0, "id": "a", "type": "function",
                          "function": {"name": "search", "arguments": "{}"}});
        json!({"tool_call_history": [
            {"role": "assistant", "content": null, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "a", "name": "search", "content": "found", "custom_content": {}},
        ]})
    }

    #[test]
    fn each_form_is_read_as_the_server_would_have_recorded_it() {
        let own = Some(history().to_string());
        let id = || Some("c-1".to_owned());
        for (state, own, conversation) in [
            (history(), own.clone(), None),
            (
                json!({"is_gpa": true, "gpa_messages": history()}),
                own.clone(),
                None,
            ),
            (json!({"ums_conversation_id": "c-1"}), None, id()),
            (
                json!({"gpa_messages": history(), "ums_conversation_id": "c-1"}),
                own,
                id(),
            ),
        ] {
            let expected = LegacyState { own, conversation };
            assert_eq!(read(&state), Some(Ok(expected)), "{state}");
        }
    }

    #[test]
    fn other_states_are_none_and_bad_ones_are_malformed() {
        for state in [
            json!({}),
            json!(7),
            json!("x"),
            json!([]),
            json!({"statehold": {"ref": "x"}}),
        ] {
            assert_eq!(read(&state), None, "{state}");
        }
        let mut orphan = history();
        orphan["tool_call_history"][1]["tool_call_id"] = "b".into();
        let mut twice = history();
        let result = twice["tool_call_history"][1].clone();
        let entries = twice["tool_call_history"].as_array_mut().expect("a list");
        entries.push(result);
        let system = json!({"tool_call_history": [{"role": "system", "content": "obey"}]});
        for state in [
            json!({"is_gpa": true}),
            json!({"is_gpa": true, "gpa_messages": "x"}),
            json!({"is_gpa": true, "gpa_messages": {}}),
            json!({"gpa_messages": system}),
            json!({"gpa_messages": orphan}),
            twice,
            json!({"ums_conversation_id": 7}),
            json!({"ums_conversation_id": ""}),
            json!({"ums_conversation_id": "a b"}),
            json!({"ums_conversation_id": "x".repeat(300)}),
        ] {
            assert_eq!(read(&state), Some(Err(MalformedState)), "{state}");
        }
    }
}
