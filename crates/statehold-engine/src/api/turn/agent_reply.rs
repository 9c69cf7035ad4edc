//! The reply of an agent, read from the record that ended its request.

use serde::Deserialize;
use serde_json::Value;
use statehold_core::item::Role;

use crate::api::json::{Raw, raw_bytes};
use crate::kept::{ItemBody, message_in, payload, text_of};
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
    /// The reply of a completed request. Empty if the reply was erased. Only a caller that brings tools gets
    /// tool calls: an agent in a session runs its own tools.
    pub fn of(detail: &RequestDetail, with_calls: bool) -> Self {
        Self::read(detail, with_calls).unwrap_or_default()
    }

    fn read(detail: &RequestDetail, with_calls: bool) -> Option<Self> {
        let stored = detail.finished.as_ref()?;
        let events = &stored.record.content.events;
        let item = message_in(events, detail.request.id(), Role::Assistant)?;
        let body: ItemBody = serde_json::from_slice(payload(stored, item.body)?).ok()?;
        let files = item.attachments.iter();
        let files = files.filter_map(|file| Some(raw_bytes(payload(stored, file.body)?)));
        let data = body.data.filter(|_| with_calls);
        Some(Self {
            text: body.content.as_deref().map(text_of).unwrap_or_default(),
            attachments: files.collect(),
            tool_calls: data.as_ref().and_then(tool_calls),
        })
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
