//! Differences as callers see them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Serialize;
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId};
use statehold_core::item::{ItemKind, Role, Visibility};
use statehold_core::record::{CommandName, Event, Record};
use statehold_core::scope::StateKey;
use utoipa::ToSchema;

use super::KeyChange;
use crate::api::json::{Raw, Time};
use crate::people::PeopleNames;

/// A page of the difference between two revisions of a session.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct SessionDiff {
    pub session_id: SessionId,
    /// The revision before the records of this page.
    pub from: u64,
    /// The last record of this page.
    pub to: u64,
    /// The session keys that changed.
    pub changes: Vec<StateChange>,
    /// The messages that came, without their content.
    pub messages: Vec<AddedMessage>,
    /// The number of items that came, of every kind.
    pub items_added: usize,
    pub rewinds: Vec<RewindMark>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

impl SessionDiff {
    pub(super) fn new(session_id: SessionId, (from, to): (u64, u64)) -> Self {
        Self {
            session_id,
            from,
            to,
            changes: Vec::new(),
            messages: Vec::new(),
            items_added: 0,
            rewinds: Vec::new(),
            next_cursor: None,
        }
    }

    /// Adds the items and the rewinds of a record.
    pub(super) fn add_record(&mut self, record: &Record) {
        let revision = record.content.seq;
        for event in &record.content.events {
            match event {
                Event::ItemsAppended {
                    items,
                    request,
                    task,
                } => {
                    self.items_added += items.len();
                    let messages = items.iter().filter(|item| item.kind == ItemKind::Message);
                    self.messages.extend(messages.map(|item| AddedMessage {
                        id: item.id,
                        seq: item.seq,
                        role: item.role,
                        visibility: item.visibility,
                        task_id: *task,
                        request_id: *request,
                        revision,
                    }));
                }
                Event::Rewound { to, .. } => self.rewinds.push(RewindMark { revision, to: *to }),
                _ => {}
            }
        }
    }
}

/// A change of a session key, with its last write.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct StateChange {
    #[schema(value_type = StateKey)]
    pub key: String,
    /// The value before. Left out if the key had none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub before: Option<PastValueView>,
    /// The value after. Left out if the key was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub after: Option<PastValueView>,
    /// The number of writes.
    pub writes: usize,
    /// The revision of the last write.
    pub revision: u64,
    pub at: Time,
    /// Who wrote it last: the name of a person, the id of a key, `local` or `system`.
    pub by: String,
    /// The command that wrote it last.
    #[schema(value_type = String)]
    pub command: CommandName,
    /// The request that wrote it last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<RequestId>,
    /// The revision whose value a rewind gave back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored_from: Option<u64>,
}

impl StateChange {
    pub(super) fn of(
        change: &KeyChange,
        names: &PeopleNames,
        before: Option<PastValueView>,
        after: Option<PastValueView>,
    ) -> Self {
        let blame = change.blame;
        Self {
            key: change.key.to_string(),
            before,
            after,
            writes: change.writes,
            revision: blame.revision,
            at: blame.at.into(),
            by: names.of(&blame.by),
            command: blame.command,
            request_id: blame.request,
            restored_from: blame.restored_from,
        }
    }

    /// The size of its key and its values.
    pub(super) fn payload_bytes(&self) -> u64 {
        let values = [&self.before, &self.after].into_iter().flatten();
        let values = values.filter_map(|side| side.value.as_ref());
        let bytes = self.key.len() + values.map(|value| value.get().len()).sum::<usize>();
        bytes as u64
    }
}

/// An earlier value of a session key.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct PastValueView {
    /// The revision that wrote it.
    pub version: u64,
    /// Its length.
    pub bytes: u64,
    /// The value. Left out if it has more than 16 KiB; read it with `state?at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub value: Option<Raw>,
}

/// A message that came, without its content.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct AddedMessage {
    pub id: ItemId,
    pub seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    pub visibility: Visibility,
    pub task_id: TaskId,
    pub request_id: RequestId,
    pub revision: u64,
}

/// A rewind.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct RewindMark {
    /// The revision of the rewind.
    pub revision: u64,
    /// The revision that it went back to.
    pub to: u64,
}
