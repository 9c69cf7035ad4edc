//! Items, messages and attachments on the wire.

use serde::{Deserialize, Serialize};
use statehold_core::command::Output;
use statehold_core::hold::CallTarget;
use statehold_core::ids::ItemId;
use statehold_core::item::{
    Attachment, AttachmentSource, CallMark, CallOutcome, Item, ItemKind, NewCallMark, NewItem,
    Role, Visibility,
};
use statehold_core::view::View;
pub(crate) use statehold_engine::kept::ItemBody;
use statehold_engine::{Payloads, StoredItem};
use utoipa::ToSchema;

use super::schema::{Content, ItemIdText, RequestIdText, TaskIdText, TimeText};
use super::{Raw, raw_bytes, raw_null, raw_text, time, to_body};
use crate::problem::{Code, Problem};

/// An item to write.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ItemIn {
    /// What it is.
    pub(crate) kind: ItemKindWire,
    /// Whether clients may see it. Messages are visible unless they say otherwise; the rest never is.
    #[serde(default)]
    visibility: Option<VisibilityWire>,
    /// Who speaks, for messages.
    #[serde(default)]
    role: Option<RoleWire>,
    /// What is said: text, or parts.
    #[serde(default)]
    #[schema(value_type = Option<Content>)]
    content: Option<Raw>,
    /// The tool, for calls.
    #[serde(default)]
    name: Option<String>,
    /// The caller's own name of the call.
    #[serde(default)]
    pub(crate) call_id: Option<String>,
    /// The arguments of a call.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    arguments: Option<Raw>,
    /// What a call came to.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    result: Option<Raw>,
    /// Files that go with it.
    #[serde(default)]
    attachments: Vec<AttachmentWire>,
    /// Anything about the content.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    annotations: Option<Raw>,
    /// Anything else.
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    data: Option<Raw>,
    /// A call that waits for an approval before it runs.
    #[serde(default)]
    gated: bool,
    /// A call that may be made again with the same key.
    #[serde(default)]
    idempotent: bool,
    /// What a call came to: it ran, was refused, or a person gave the result.
    #[serde(default)]
    outcome: Option<OutcomeWire>,
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ItemKind)]
pub(crate) enum ItemKindWire {
    Message,
    ToolCall,
    ToolResult,
    Step,
    Note,
}

/// Whether clients see an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Visibility)]
pub(crate) enum VisibilityWire {
    Visible,
    Hidden,
}

/// Who speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Role)]
pub(crate) enum RoleWire {
    User,
    Assistant,
    Tool,
}

/// What a tool call came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = CallOutcome)]
pub(crate) enum OutcomeWire {
    Ran,
    Refused,
    Answered,
}

/// A file: behind a URL, behind the URL of what it was made from, or here.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Attachment)]
pub(crate) struct AttachmentWire {
    /// The media type.
    #[serde(rename = "type", default, skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    url: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    reference_url: Option<String>,
    /// The bytes themselves, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<String>,
}

/// What is asked or answered: text, or content with files.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = MessageIn)]
pub(crate) struct MessageWire {
    #[schema(value_type = Content)]
    content: Raw,
    #[serde(default)]
    attachments: Vec<AttachmentWire>,
    #[serde(default)]
    #[schema(value_type = Option<serde_json::Value>)]
    annotations: Option<Raw>,
}

/// Where a result finds its call.
pub(crate) enum CallPlace {
    /// By id, or earlier in the same body.
    Known(CallTarget),
    /// By the caller's own name, in what was written before.
    Named(String),
}

/// Reads `input` or `output`: text, or an object with content.
pub(crate) fn message(raw: &Raw, path: &str, payloads: &mut Payloads) -> Result<Output, Problem> {
    labelled_message(raw, path, payloads, false)
}

/// A message, with a note of whether a credential came with it.
pub(crate) fn labelled_message(
    raw: &Raw,
    path: &str,
    payloads: &mut Payloads,
    had_credential: bool,
) -> Result<Output, Problem> {
    let text = raw.get().trim_start();
    let message = if text.starts_with('"') {
        MessageWire {
            content: raw.clone(),
            attachments: Vec::new(),
            annotations: None,
        }
    } else if text.starts_with('{') {
        serde_json::from_str(raw.get()).map_err(|error| {
            let detail =
                format!("`{path}` is text or {{content, attachments?, annotations?}}: {error}");
            Problem::invalid(detail).with("path", path)
        })?
    } else {
        let detail = format!("`{path}` is text or {{content, attachments?, annotations?}}");
        return Err(Problem::invalid(detail).with("path", path));
    };
    require_content(&message.content, path)?;
    let body = ItemBody {
        content: Some(message.content),
        annotations: message.annotations,
        had_credential,
        ..ItemBody::default()
    };
    Ok(Output {
        body: payloads.put(to_body(&body)),
        attachments: attachments(&message.attachments, path, payloads)?,
    })
}

/// Content is text or a list of parts.
fn require_content(content: &Raw, path: &str) -> Result<(), Problem> {
    if content.get().starts_with(['"', '[']) {
        return Ok(());
    }
    let detail = format!("the content of `{path}` is text or a list of parts");
    Err(Problem::invalid(detail).with("path", path))
}

fn attachments(
    wire: &[AttachmentWire],
    path: &str,
    payloads: &mut Payloads,
) -> Result<Vec<Attachment>, Problem> {
    let mut read = Vec::with_capacity(wire.len());
    for file in wire {
        let source = match (&file.url, &file.reference_url, &file.data) {
            (Some(_), _, None) => AttachmentSource::Url,
            (None, Some(_), None) => AttachmentSource::ReferenceUrl,
            (None, None, Some(_)) => AttachmentSource::Inline,
            _ => {
                let detail = format!(
                    "an attachment of `{path}` has a `url`, a `reference_url` (or both), or `data`"
                );
                return Err(Problem::invalid(detail).with("path", path));
            }
        };
        let body = payloads.put(to_body(file));
        read.push(Attachment { body, source });
    }
    Ok(read)
}

/// A visible item that is not a message would never be shown.
impl ItemIn {
    /// The item as the core takes it; `place` is where a result finds its call.
    pub(crate) fn into_new(
        self,
        index: usize,
        place: Option<CallTarget>,
        payloads: &mut Payloads,
    ) -> Result<NewItem, Problem> {
        let path = format!("items[{index}]");
        let wrong = |what: &str| {
            let detail = format!("`{path}`: {what}");
            Err(Problem::new(Code::ItemMalformed, detail).with("path", path.clone()))
        };
        let kind = self.kind;
        match kind {
            ItemKindWire::Message if self.content.is_none() => {
                return wrong("a message has `content`");
            }
            ItemKindWire::ToolCall if self.name.is_none() || self.arguments.is_none() => {
                return wrong("a tool call has `name` and `arguments`");
            }
            ItemKindWire::ToolResult if self.call_id.is_none() || self.result.is_none() => {
                return wrong("a tool result has `call_id` and `result`");
            }
            _ => {}
        }
        if kind != ItemKindWire::ToolCall && (self.gated || self.idempotent) {
            return wrong("`gated` and `idempotent` are for tool calls");
        }
        if kind != ItemKindWire::ToolResult && self.outcome.is_some() {
            return wrong("`outcome` is for tool results");
        }
        let is_shown = self.visibility == Some(VisibilityWire::Visible);
        if kind != ItemKindWire::Message && is_shown {
            return wrong("only messages can be visible");
        }
        if kind != ItemKindWire::Message && self.role.is_some() {
            return wrong("`role` is for messages");
        }
        if let Some(content) = &self.content {
            require_content(content, &path)?;
        }
        let is_message = kind == ItemKindWire::Message;
        let visibility = match self.visibility {
            Some(VisibilityWire::Visible) => Visibility::Visible,
            None if is_message => Visibility::Visible,
            Some(VisibilityWire::Hidden) | None => Visibility::Hidden,
        };
        let role = is_message.then_some(match self.role {
            Some(RoleWire::User) => Role::User,
            Some(RoleWire::Tool) => Role::Tool,
            Some(RoleWire::Assistant) | None => Role::Assistant,
        });
        let call = match (kind, place) {
            (ItemKindWire::ToolCall, _) => Some(NewCallMark::Call {
                gated: self.gated,
                idempotent: self.idempotent,
            }),
            (ItemKindWire::ToolResult, Some(call)) => Some(NewCallMark::Result {
                call,
                outcome: match self.outcome {
                    Some(OutcomeWire::Refused) => CallOutcome::Refused,
                    Some(OutcomeWire::Answered) => CallOutcome::Answered,
                    Some(OutcomeWire::Ran) | None => CallOutcome::Ran,
                },
            }),
            _ => None,
        };
        let attached = attachments(&self.attachments, &path, payloads)?;
        let body = ItemBody {
            content: self.content,
            name: self.name,
            call_id: self.call_id,
            arguments: self.arguments,
            result: self.result,
            annotations: self.annotations,
            data: self.data,
            had_credential: false,
        };
        Ok(NewItem {
            kind: match kind {
                ItemKindWire::Message => ItemKind::Message,
                ItemKindWire::ToolCall => ItemKind::ToolCall,
                ItemKindWire::ToolResult => ItemKind::ToolResult,
                ItemKindWire::Step => ItemKind::Step,
                ItemKindWire::Note => ItemKind::Note,
            },
            visibility,
            role,
            body: payloads.put(to_body(&body)),
            attachments: attached,
            call,
        })
    }
}

/// Where each result of a body finds its call; None for items that are no results.
pub(crate) fn call_places(items: &[ItemIn]) -> Vec<Option<CallPlace>> {
    let place_of = |index: usize, item: &ItemIn| {
        if item.kind != ItemKindWire::ToolResult {
            return None;
        }
        let name = item.call_id.as_deref()?;
        let earlier = items[..index].iter().rposition(|other| {
            other.kind == ItemKindWire::ToolCall && other.call_id.as_deref() == Some(name)
        });
        Some(match (earlier, name.parse::<ItemId>()) {
            (Some(at), _) => CallPlace::Known(CallTarget::SameCommand(at)),
            (None, Ok(id)) => CallPlace::Known(CallTarget::Recorded(id)),
            (None, Err(_)) => CallPlace::Named(name.to_owned()),
        })
    };
    let numbered = items.iter().enumerate();
    numbered
        .map(|(index, item)| place_of(index, item))
        .collect()
}

/// An item, as the trace and the agent itself see it.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Item)]
pub(crate) struct ItemOut {
    #[schema(value_type = ItemIdText)]
    pub(crate) id: String,
    pub(crate) seq: u64,
    #[schema(value_type = ItemKindWire)]
    pub(crate) kind: ItemKind,
    #[schema(value_type = VisibilityWire)]
    pub(crate) visibility: Visibility,
    #[schema(value_type = TaskIdText)]
    pub(crate) task_id: String,
    #[schema(value_type = RequestIdText)]
    pub(crate) request_id: String,
    #[schema(value_type = TimeText)]
    pub(crate) created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<RoleWire>)]
    pub(crate) role: Option<Role>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Content>)]
    pub(crate) content: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) arguments: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) result: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) gated: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) idempotent: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<OutcomeWire>)]
    pub(crate) outcome: Option<CallOutcome>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Option<AttachmentWire>>, required = false)]
    pub(crate) attachments: Vec<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) annotations: Option<Raw>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) data: Option<Raw>,
    /// Whether a rewind took it out of the conversation.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) rewound: bool,
    /// Whether its content was removed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    #[schema(required = false)]
    pub(crate) erased: bool,
}

impl ItemOut {
    pub(crate) fn of(stored: &StoredItem) -> Self {
        let placed = &stored.placed;
        let mut shown = Self::of_parts(
            &placed.item,
            (&placed.task.to_string(), &placed.request.to_string()),
            time(stored.at),
            stored.body.as_deref(),
            &stored.attachments,
        );
        shown.rewound = placed.rewound;
        shown
    }

    /// The same as a view shows it: what agents keep for themselves is not for clients.
    pub(crate) fn seen_by(mut self, view: View) -> Self {
        if view == View::Client {
            self.data = None;
        }
        self
    }

    pub(crate) fn of_parts(
        item: &Item,
        (task, request): (&str, &str),
        created_at: String,
        body: Option<&[u8]>,
        attachments: &[Option<Vec<u8>>],
    ) -> Self {
        let erased = body.is_none();
        let body: ItemBody = body
            .and_then(|body| serde_json::from_slice(body).ok())
            .unwrap_or_default();
        let (gated, idempotent, outcome) = match item.call {
            Some(CallMark::Call { gated, idempotent }) => (Some(gated), Some(idempotent), None),
            Some(CallMark::Result { outcome, .. }) => (None, None, Some(outcome)),
            None => (None, None, None),
        };
        // A result names its call by id when the caller had no name for it.
        let call = match item.call {
            Some(CallMark::Result { call, .. }) => Some(call.to_string()),
            _ => None,
        };
        Self {
            id: item.id.to_string(),
            seq: item.seq,
            kind: item.kind,
            visibility: item.visibility,
            task_id: task.to_owned(),
            request_id: request.to_owned(),
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
            rewound: false,
            erased,
        }
    }
}

/// What became of an item.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ItemRef {
    /// The id. For a tool call, the execution key.
    #[schema(value_type = ItemIdText)]
    pub(crate) id: String,
    pub(crate) seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) call_id: Option<String>,
}

/// A message of the transcript.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Message)]
pub(crate) struct MessageOut {
    #[schema(value_type = ItemIdText)]
    pub(crate) id: String,
    pub(crate) seq: u64,
    #[schema(value_type = RoleWire)]
    pub(crate) role: Role,
    #[schema(value_type = Content)]
    pub(crate) content: Raw,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(value_type = Vec<Option<AttachmentWire>>, required = false)]
    pub(crate) attachments: Vec<Raw>,
    #[schema(value_type = TaskIdText)]
    pub(crate) task_id: String,
    #[schema(value_type = RequestIdText)]
    pub(crate) request_id: String,
    #[schema(value_type = TimeText)]
    pub(crate) created_at: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<serde_json::Value>)]
    pub(crate) annotations: Option<Raw>,
}

impl MessageOut {
    pub(crate) fn of(stored: &StoredItem) -> Self {
        let shown = ItemOut::of(stored);
        Self {
            id: shown.id,
            seq: shown.seq,
            role: shown.role.unwrap_or(Role::Assistant),
            content: shown.content.unwrap_or_else(|| raw_text("")),
            attachments: shown.attachments,
            task_id: shown.task_id,
            request_id: shown.request_id,
            created_at: shown.created_at,
            annotations: shown.annotations,
        }
    }
}
