//! The reply of an agent, read from the record that ended its request.

use serde::Deserialize;
use serde_json::Value;
use statehold_core::ids::RequestId;
use statehold_core::item::{ItemKind, Role};
use statehold_core::record::Event;
use statehold_store::StoredRecord;

use crate::api::json::{Raw, raw_bytes};
use crate::bodies::{ItemBody, message_in, payload, text_of};
use crate::stage::{STAGES_NOTE, Stage};

/// The reply of an agent.
#[derive(Debug, Default)]
pub struct AgentReply {
    /// The text.
    pub text: String,
    /// Files that go with it.
    pub attachments: Vec<Raw>,
    /// Calls of tools that the caller brought and runs itself.
    pub tool_calls: Option<Vec<Value>>,
    /// The state of an agent whose caller keeps it, as the agent wrote it.
    pub state: Option<Raw>,
    /// The stages of the turn, for surfaces that show them.
    pub stages: Vec<Stage>,
}

/// The parts of a reply that a caller gets beside its text and files.
#[derive(Debug, Clone, Copy, Default)]
pub struct ReplyParts {
    /// The calls of tools that the caller brought. An agent in a session runs its own tools.
    pub calls: bool,
    /// The state of the agent, sealed: only of a call without a session.
    pub state: bool,
    /// The stages of the turn.
    pub stages: bool,
}

impl AgentReply {
    /// The reply of a completed request, in the record that ended it. Empty if the reply was erased.
    pub fn of(request: RequestId, finished: Option<&StoredRecord>, parts: ReplyParts) -> Self {
        let read = finished.and_then(|stored| Self::read(request, stored, parts));
        read.unwrap_or_default()
    }

    fn read(request: RequestId, stored: &StoredRecord, parts: ReplyParts) -> Option<Self> {
        let events = &stored.record.content.events;
        let item = message_in(events, request, Role::Assistant)?;
        let body: ItemBody = serde_json::from_slice(payload(stored, item.body)?).ok()?;
        let files = item.attachments.iter();
        let files = files.filter_map(|file| Some(raw_bytes(payload(stored, file.body)?)));
        let data = body.data.as_ref().map(ReplyData::of).unwrap_or_default();
        Some(Self {
            text: body.content.as_deref().map(text_of).unwrap_or_default(),
            attachments: files.collect(),
            tool_calls: Some(data.tool_calls).filter(|calls| parts.calls && !calls.is_empty()),
            state: data.state.filter(|_| parts.state),
            stages: if parts.stages {
                stages_in(stored, request).unwrap_or_default()
            } else {
                Vec::new()
            },
        })
    }
}

/// The stages in the note of the record that ended a request.
fn stages_in(stored: &StoredRecord, of: RequestId) -> Option<Vec<Stage>> {
    let mut notes = stored
        .record
        .content
        .events
        .iter()
        .filter_map(|event| match event {
            Event::ItemsAppended { request, items, .. } if *request == of => Some(items),
            _ => None,
        });
    let notes = notes.next_back()?.iter().rev();
    let mut notes = notes.filter(|item| item.kind == ItemKind::Note);
    notes.find_map(|note| {
        let body: ItemBody = serde_json::from_slice(payload(stored, note.body)?).ok()?;
        let is_stages = body.name.as_deref() == Some(STAGES_NOTE);
        serde_json::from_str(body.data.filter(|_| is_stages)?.get()).ok()
    })
}

/// The `data` of a reply, as far as callers get it.
#[derive(Default, Deserialize)]
struct ReplyData {
    #[serde(default)]
    tool_calls: Vec<Value>,
    state: Option<Raw>,
}

impl ReplyData {
    fn of(data: &Raw) -> Self {
        serde_json::from_str(data.get()).unwrap_or_default()
    }
}
