//! Items and messages as callers write them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::{Deserialize, Serialize};
use statehold_core::item::{CallOutcome, ItemKind, Role, Visibility};
use utoipa::ToSchema;

use crate::api::json::Raw;
use crate::api::schema::Content;

/// An item to write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ItemIn)]
pub struct ItemInput {
    /// The kind of the item.
    pub kind: ItemKind,
    /// Whether clients may see the item. Messages are visible by default; other items never are.
    #[serde(default)]
    pub visibility: Option<Visibility>,
    /// The author, for messages.
    #[serde(default)]
    pub role: Option<Role>,
    /// The content of a message: text, or parts.
    #[serde(default)]
    #[schema(value_type = Option<Content>)]
    pub content: Option<Raw>,
    /// The tool, for calls.
    #[serde(default)]
    pub name: Option<String>,
    /// The caller's own id of the call.
    #[serde(default)]
    pub call_id: Option<String>,
    /// The arguments of a call.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub arguments: Option<Raw>,
    /// The result of a call.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Raw>,
    /// Attached files.
    #[serde(default)]
    pub attachments: Vec<AttachmentInput>,
    /// Free-form annotations of the content.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
    /// Free-form data.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Raw>,
    /// The call waits for an approval before it runs.
    #[serde(default)]
    pub gated: bool,
    /// The call may be retried with the same execution key.
    #[serde(default)]
    pub idempotent: bool,
    /// The outcome of a call: it ran, was refused, or a person gave the result.
    #[serde(default)]
    pub outcome: Option<CallOutcome>,
}

/// A file: its URL, the URL of its source, or its bytes.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Attachment)]
pub struct AttachmentInput {
    /// The media type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reference_url: Option<String>,
    /// The bytes, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// A message with content and files.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MessageIn)]
pub struct MessageInput {
    #[schema(value_type = Content)]
    pub content: Raw,
    #[serde(default)]
    pub attachments: Vec<AttachmentInput>,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
}
