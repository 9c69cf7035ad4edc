//! Items and messages as callers write them.

#![expect(missing_docs, reason = "fields are named as the API names them")]

use serde::Deserialize;
use statehold_core::item::{CallOutcome, ItemKind, Role, Visibility};
use statehold_core::limits::ITEM_ATTACHMENTS_MAX;
use utoipa::ToSchema;

use crate::api::json::{Raw, list_at_most};
use crate::api::schema::Content;
use crate::bodies::AttachmentBody;

/// An item to write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ItemIn)]
pub struct ItemInput {
    /// The kind of the item.
    pub kind: ItemKind,
    /// Whether clients may see the item. Messages are visible by default; other items never are.
    pub visibility: Option<Visibility>,
    /// The author, for messages.
    pub role: Option<Role>,
    /// The content of a message: text, or parts.
    #[schema(value_type = Option<Content>)]
    pub content: Option<Raw>,
    /// The tool, for calls.
    pub name: Option<String>,
    /// The caller's own id of the call.
    pub call_id: Option<String>,
    /// The arguments of a call.
    #[schema(value_type = Option<serde_json::Value>)]
    pub arguments: Option<Raw>,
    /// The result of a call.
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Raw>,
    /// Attached files.
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * ITEM_ATTACHMENTS_MAX }, _, _>"
    )]
    pub attachments: Vec<AttachmentBody>,
    /// Free-form annotations of the content.
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
    /// Free-form data.
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Raw>,
    /// The call waits for an approval before it runs.
    #[serde(default)]
    pub gated: bool,
    /// The call may be retried with the same execution key.
    #[serde(default)]
    pub idempotent: bool,
    /// The outcome of a call: it ran, was refused, or a person gave the result.
    pub outcome: Option<CallOutcome>,
}

/// A message with content and files.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MessageIn)]
pub struct MessageInput {
    #[schema(value_type = Content)]
    pub content: Raw,
    #[serde(
        default,
        deserialize_with = "list_at_most::<{ 2 * ITEM_ATTACHMENTS_MAX }, _, _>"
    )]
    pub attachments: Vec<AttachmentBody>,
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
}
