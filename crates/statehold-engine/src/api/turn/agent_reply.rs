//! The reply of an agent, read from the record that ended its request.

use serde::Deserialize;
use serde_json::Value;
use statehold_core::ids::RequestId;
use statehold_core::item::Role;
use statehold_store::StoredRecord;

use crate::api::json::{Raw, raw_bytes};
use crate::bodies::{ItemBody, message_in, payload, text_of};

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
    /// The reply of a completed request, in the record that ended it. Empty if the reply was erased. Only a
    /// caller that brings tools gets tool calls: an agent in a session runs its own tools.
    pub fn of(request: RequestId, finished: Option<&StoredRecord>, with_calls: bool) -> Self {
        let read = finished.and_then(|stored| Self::read(request, stored, with_calls));
        read.unwrap_or_default()
    }

    fn read(request: RequestId, stored: &StoredRecord, with_calls: bool) -> Option<Self> {
        let events = &stored.record.content.events;
        let item = message_in(events, request, Role::Assistant)?;
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
