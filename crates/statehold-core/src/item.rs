//! Items: the things in a task's history. Messages, tool calls, tool results, steps, notes.

use serde::{Deserialize, Serialize};

use crate::digest::{BodyRef, Digest};
use crate::ids::{ItemId, RequestId, TaskId};

/// Kind of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum ItemKind {
    /// A message.
    Message,
    /// A tool call. Its id is the execution key.
    ToolCall,
    /// The result of a tool call.
    ToolResult,
    /// A step of an agent: routing, model call, plan.
    Step,
    /// Any other entry.
    Note,
}

/// Visibility of an item to clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Visibility {
    /// Shown in the transcript, if its task is a root task.
    Visible,
    /// Shown only to the agent of the task and in the trace.
    Hidden,
}

/// Author role of a message. There is no `system` role: prompts are never stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The user, or the agent that gave the task.
    User,
    /// The agent that answers.
    Assistant,
    /// A tool.
    Tool,
}

/// Where the bytes of an attachment are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentSource {
    /// Behind a URL.
    Url,
    /// Behind the URL of the original that it was made from.
    ReferenceUrl,
    /// Kept here.
    Inline,
}

/// A file that goes with an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attachment {
    /// The address, or the bytes themselves.
    pub body: BodyRef,
    /// Where the bytes are.
    pub source: AttachmentSource,
}

/// Outcome of a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallOutcome {
    /// The tool ran.
    Ran,
    /// The tool did not run: a person rejected the call.
    Refused,
    /// The tool did not run: a person gave the result.
    Answered,
}

/// The part of an item that concerns a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CallMark {
    /// This item is the call.
    Call {
        /// Whether it waits for an approval before it runs.
        gated: bool,
        /// Whether the tool honours the execution key, so that calling again is harmless.
        idempotent: bool,
    },
    /// This item is the result.
    Result {
        /// The call it belongs to.
        call: ItemId,
        /// The digest of the action that ran, for gated calls.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        executed: Option<Digest>,
        /// The outcome of the call.
        outcome: CallOutcome,
    },
}

/// An item as a worker sends it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NewItem {
    /// The kind of the item.
    pub kind: ItemKind,
    /// Whether clients may see it.
    pub visibility: Visibility,
    /// Who speaks, for messages.
    pub role: Option<Role>,
    /// The content.
    pub body: BodyRef,
    /// Files that go with it.
    pub attachments: Vec<Attachment>,
    /// The tool call it concerns; required for tool calls and results, refused for other items.
    pub call: Option<NewCallMark>,
}

/// The part of a new item that concerns a tool call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NewCallMark {
    /// This item is the call.
    Call {
        /// Whether it waits for an approval.
        gated: bool,
        /// Whether the tool honours the execution key.
        idempotent: bool,
    },
    /// This item is the result.
    Result {
        /// The call it belongs to: recorded before, or the n-th item of the same command.
        call: crate::hold::CallTarget,
        /// The outcome of the call.
        outcome: CallOutcome,
    },
}

impl NewItem {
    /// A message.
    pub fn message(role: Role, body: BodyRef) -> Self {
        Self {
            kind: ItemKind::Message,
            visibility: Visibility::Visible,
            role: Some(role),
            body,
            attachments: Vec::new(),
            call: None,
        }
    }
}

/// An item as a record keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Item {
    /// Files that go with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// The content.
    pub body: BodyRef,
    /// The tool call it concerns, for tool calls and results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<CallMark>,
    /// The id. For a tool call, the execution key.
    pub id: ItemId,
    /// The kind of the item.
    pub kind: ItemKind,
    /// Who speaks, for messages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    /// The place in the session: 1, 2, 3, …
    pub seq: u64,
    /// Whether clients may see it.
    pub visibility: Visibility,
}

/// An item with the place it belongs to, as views see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacedItem {
    /// The task whose history it is in.
    pub task: TaskId,
    /// The request that wrote it.
    pub request: RequestId,
    /// Whether that task is a root task of the session.
    pub is_root: bool,
    /// Whether a rewind took it out of the conversation.
    pub rewound: bool,
    /// The item.
    pub item: Item,
}
