//! The reply of an agent, read from the record that ended its request.

use serde::Deserialize;
use serde_json::Value;
use statehold_core::item::Role;
use statehold_core::record::Event;

use super::RequestHead;
use crate::api::json::{Raw, raw_bytes};
use crate::kept::{ItemBody, payload};
use crate::read::RequestDetail;

/// The reply of an agent.
#[derive(Debug, Default)]
pub struct AgentReply {
    /// The text.
    pub text: String,
    /// Files that go with it.
    pub attachments: Vec<Raw>,
    /// Calls of tools that the caller brought and runs itself.
    pub tool_calls: Option<Vec<Value>>,
}

impl AgentReply {
    /// The reply of a completed request, without tool calls: an agent in a session runs its own tools. Empty
    /// if the reply was erased.
    pub fn of(detail: &RequestDetail) -> Self {
        Self {
            tool_calls: None,
            ..Self::with_calls(detail)
        }
    }

    /// The reply of a completed request with the calls of tools that the caller brought.
    pub fn with_calls(detail: &RequestDetail) -> Self {
        Self::read(detail).unwrap_or_default()
    }

    fn read(detail: &RequestDetail) -> Option<Self> {
        let id = RequestHead::of(detail)?.id;
        let stored = detail.finished.as_ref()?;
        let events = stored.record.content.events.iter();
        let items = events.filter_map(|event| match event {
            Event::ItemsAppended { request, items, .. } if *request == id => Some(items),
            _ => None,
        });
        let item = items
            .flatten()
            .rfind(|item| item.role == Some(Role::Assistant))?;
        let body: ItemBody = serde_json::from_slice(payload(stored, item.body)?).ok()?;
        let files = item.attachments.iter();
        let files = files.filter_map(|file| Some(raw_bytes(payload(stored, file.body)?)));
        Some(Self {
            text: body.content.as_ref().map(text_of).unwrap_or_default(),
            attachments: files.collect(),
            tool_calls: body.data.as_ref().and_then(tool_calls),
        })
    }
}

/// The text of content: itself, or the texts of its parts.
fn text_of(content: &Raw) -> String {
    let value: Value = serde_json::from_str(content.get()).unwrap_or_default();
    match value {
        Value::String(text) => text,
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

fn tool_calls(data: &Raw) -> Option<Vec<Value>> {
    #[derive(Deserialize)]
    struct Data {
        tool_calls: Vec<Value>,
    }
    let data: Data = serde_json::from_str(data.get()).ok()?;
    Some(data.tool_calls).filter(|calls| !calls.is_empty())
}
