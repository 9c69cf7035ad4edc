//! Items and messages as callers see them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::ids::{ItemId, RequestId, TaskId};
use statehold_core::item::{CallMark, CallOutcome, Item, ItemKind, Role, Visibility};
use statehold_core::view::View;
use statehold_store::StoredItem;
use utoipa::ToSchema;

use crate::api::json::{Raw, Time, raw_bytes, raw_null, raw_text};
use crate::api::schema::Content;
use crate::bodies::{AttachmentBody, ItemBody, Redaction, parse};

/// An item, as the trace and the agent itself see it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Item)]
pub struct ItemView {
    pub id: ItemId,
    pub seq: u64,
    pub kind: ItemKind,
    pub visibility: Visibility,
    pub task_id: TaskId,
    pub request_id: RequestId,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Role>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Content>)]
    pub content: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub arguments: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotent: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<CallOutcome>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Option<AttachmentBody>>, required = false)]
    pub attachments: Vec<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Raw>,
    /// The secrets that were redacted before the item was stored: where they were, as JSON Pointers into the item,
    /// and the rules that found them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub redactions: Vec<Redaction>,
    /// A rewind removed the item from the conversation.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub rewound: bool,
    /// The content was deleted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub erased: bool,
}

impl ItemView {
    pub(crate) fn of(stored: &StoredItem) -> Self {
        let placed = &stored.placed;
        let mut shown = Self::of_parts(
            &placed.item,
            (placed.task, placed.request),
            stored.at.into(),
            stored.body.as_deref(),
            &stored.attachments,
        );
        shown.rewound = placed.rewound;
        shown
    }

    /// The item as a view shows it. Clients never see the private data of agents.
    pub(crate) fn seen_by(mut self, view: View) -> Self {
        if view == View::Client {
            self.data = None;
            self.redactions.clear();
        }
        self
    }

    pub(crate) fn of_parts(
        item: &Item,
        (task_id, request_id): (TaskId, RequestId),
        created_at: Time,
        body: Option<&[u8]>,
        attachments: &[Option<Vec<u8>>],
    ) -> Self {
        let erased = body.is_none();
        let body: ItemBody = parse(body);
        let (gated, idempotent, outcome) = match item.call {
            Some(CallMark::Call { gated, idempotent }) => (Some(gated), Some(idempotent), None),
            Some(CallMark::Result { outcome, .. }) => (None, None, Some(outcome)),
            None => (None, None, None),
        };
        // Without a caller's own id, a result names its call by the item id.
        let call = match item.call {
            Some(CallMark::Result { call, .. }) => Some(call.to_string()),
            _ => None,
        };
        Self {
            id: item.id,
            seq: item.seq,
            kind: item.kind,
            visibility: item.visibility,
            task_id,
            request_id,
            created_at,
            role: item.role,
            content: body.content,
            name: body.name,
            call_id: body.call_id.or(call),
            arguments: body.arguments,
            result: body.result,
            gated,
            idempotent,
            outcome,
            attachments: attachments
                .iter()
                .map(|file| file.as_deref().map_or_else(raw_null, raw_bytes))
                .collect(),
            annotations: body.annotations,
            data: body.data,
            redactions: body.redactions,
            rewound: false,
            erased,
        }
    }
}

/// The id and position of a written item.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ItemRef {
    /// The id. For a tool call, the execution key.
    pub id: ItemId,
    pub seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub call_id: Option<String>,
}

/// A message of the transcript.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[schema(as = Message)]
pub struct MessageView {
    pub id: ItemId,
    pub seq: u64,
    pub role: Role,
    /// The phase of a pipeline that said it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[schema(value_type = Content)]
    pub content: Raw,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Option<AttachmentBody>>, required = false)]
    pub attachments: Vec<Raw>,
    pub task_id: TaskId,
    pub request_id: RequestId,
    pub created_at: Time,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
}

impl MessageView {
    pub(crate) fn of(stored: &StoredItem) -> Self {
        Self::of_item(ItemView::of(stored))
    }

    pub(crate) fn of_item(shown: ItemView) -> Self {
        Self {
            id: shown.id,
            seq: shown.seq,
            role: shown.role.unwrap_or(Role::Assistant),
            name: shown.name,
            content: shown.content.unwrap_or_else(|| raw_text("")),
            attachments: shown.attachments,
            task_id: shown.task_id,
            request_id: shown.request_id,
            created_at: shown.created_at,
            annotations: shown.annotations,
        }
    }
}
