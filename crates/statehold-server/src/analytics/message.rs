//! Messages of this API: those of users, and those of the system.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use statehold_engine::api::json::{Raw, Time, raw_bytes, to_body};

/// A message as a client sends it. Other fields are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessageIn {
    pub(super) user_message: Option<UserMessageIn>,
    system_message: Option<Map<String, Value>>,
}

#[derive(Debug, Deserialize)]
pub(super) struct UserMessageIn {
    #[serde(default)]
    pub(super) text: String,
}

/// Texts that are no answers: what the system thought and did on the way.
const PASSING: [&str; 2] = ["THOUGHT", "PROGRESS"];
const PASSING_NUMBERS: [u64; 2] = [2, 3];

impl MessageIn {
    /// The message as one of a history. None if it says nothing to an agent.
    pub(super) fn to_history(&self) -> Option<Raw> {
        let (role, content) = match (&self.user_message, &self.system_message) {
            (Some(user), _) => ("user", user.text.clone()),
            (None, Some(system)) => ("assistant", system_content(system)?),
            (None, None) => return None,
        };
        let message = json!({"role": role, "content": content});
        Some(raw_bytes(&to_body(&message)))
    }
}

/// An answer in words; data, charts and the like as they were sent.
fn system_content(system: &Map<String, Value>) -> Option<String> {
    if let Some(text) = system.get("text") {
        let kind = &text["textType"];
        let is_passing = kind.as_str().is_some_and(|kind| PASSING.contains(&kind))
            || kind
                .as_u64()
                .is_some_and(|kind| PASSING_NUMBERS.contains(&kind));
        let parts = text["parts"].as_array().into_iter().flatten();
        let parts: Vec<&str> = parts.filter_map(Value::as_str).collect();
        return (!is_passing && !parts.is_empty()).then(|| parts.concat());
    }
    let told = ["data", "schema", "analysis", "chart", "exampleQueries"];
    let told = system.keys().any(|key| told.contains(&key.as_str()));
    told.then(|| serde_json::to_string(system).unwrap_or_default())
}

/// The kind of a text of the system.
#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum TextType {
    FinalResponse,
    Progress,
}

/// A message of the API.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessageOut {
    pub(super) timestamp: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) message_id: Option<String>,
    #[serde(flatten)]
    pub(super) kind: MessageKind,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum MessageKind {
    UserMessage { text: String },
    SystemMessage(SystemMessage),
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum SystemMessage {
    #[serde(rename_all = "camelCase")]
    Text {
        parts: Vec<String>,
        text_type: TextType,
    },
    Error {
        text: String,
    },
}

impl MessageKind {
    pub(super) fn text(text: String, text_type: TextType) -> Self {
        Self::SystemMessage(SystemMessage::Text {
            parts: vec![text],
            text_type,
        })
    }

    pub(super) fn error(text: String) -> Self {
        Self::SystemMessage(SystemMessage::Error { text })
    }
}
