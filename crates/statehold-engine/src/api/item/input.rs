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
    /// What it is.
    pub kind: ItemKind,
    /// Whether clients may see it. Messages are visible unless they say otherwise; the rest never is.
    #[serde(default)]
    pub visibility: Option<Visibility>,
    /// Who speaks, for messages.
    #[serde(default)]
    pub role: Option<Role>,
    /// What is said: text, or parts.
    #[serde(default)]
    #[schema(value_type = Option<Content>)]
    pub content: Option<Raw>,
    /// The tool, for calls.
    #[serde(default)]
    pub name: Option<String>,
    /// The caller's own name of the call.
    #[serde(default)]
    pub call_id: Option<String>,
    /// The arguments of a call.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub arguments: Option<Raw>,
    /// What a call came to.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub result: Option<Raw>,
    /// Files that go with it.
    #[serde(default)]
    pub attachments: Vec<AttachmentInput>,
    /// Anything about the content.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub annotations: Option<Raw>,
    /// Anything else.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    pub data: Option<Raw>,
    /// A call that waits for an approval before it runs.
    #[serde(default)]
    pub gated: bool,
    /// A call that may be made again with the same key.
    #[serde(default)]
    pub idempotent: bool,
    /// What a call came to: it ran, was refused, or a person gave the result.
    #[serde(default)]
    pub outcome: Option<CallOutcome>,
}

/// A file: behind a URL, behind the URL of what it was made from, or here.
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
    /// The bytes themselves, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

/// What is asked or answered: text, or content with files.
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
