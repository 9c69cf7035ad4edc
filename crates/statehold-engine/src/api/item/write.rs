//! Converts item inputs to items of the core: checks their shape, moves their text into payloads, and matches
//! each tool result to its call.

use statehold_core::command::Output;
use statehold_core::hold::CallTarget;
use statehold_core::ids::{ItemId, RequestId};
use statehold_core::item::{
    Attachment, AttachmentSource, CallOutcome, ItemKind, NewCallMark, NewItem, Role, Visibility,
};
use statehold_store::StoredItem;

use super::{ItemInput, MessageInput};
use crate::api::json::Raw;
use crate::bodies::{AttachmentBody, ItemBody};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::error::EngineError;

/// The largest number of items to search for a call by the caller's own id.
const CALLS_READ_MAX: usize = 1_000;

/// The way to the call of a tool result.
enum CallPlace {
    /// Known by id, or in the same body.
    Known(CallTarget),
    /// To be found by the caller's own id in the stored history.
    Named(String),
}

/// Reads `input` or `output`: text, or an object with content. Marks whether a credential came with it.
pub(crate) fn message(
    raw: &Raw,
    path: &str,
    had_credential: bool,
    payloads: &mut Payloads,
) -> Result<Output, EngineError> {
    let text = raw.get().trim_start();
    let message = if text.starts_with('"') {
        MessageInput {
            content: raw.clone(),
            attachments: Vec::new(),
            annotations: None,
        }
    } else if text.starts_with('{') {
        serde_json::from_str(raw.get()).map_err(|error| {
            let detail =
                format!("`{path}` is text or {{content, attachments?, annotations?}}: {error}");
            EngineError::invalid(path, detail)
        })?
    } else {
        let detail = format!("`{path}` is text or {{content, attachments?, annotations?}}");
        return Err(EngineError::invalid(path, detail));
    };
    message_of(message, path, had_credential, payloads)
}

/// A message that is parsed already, as a request records it.
pub(crate) fn message_of(
    message: MessageInput,
    path: &str,
    had_credential: bool,
    payloads: &mut Payloads,
) -> Result<Output, EngineError> {
    require_content(&message.content, path)?;
    let body = ItemBody {
        content: Some(message.content),
        annotations: message.annotations,
        had_credential,
        ..ItemBody::default()
    };
    output(&body, &message.attachments, path, payloads)
}

/// A message with its files as a request records it.
pub(crate) fn output(
    body: &ItemBody,
    files: &[AttachmentBody],
    path: &str,
    payloads: &mut Payloads,
) -> Result<Output, EngineError> {
    Ok(Output {
        body: payloads.put_item(body),
        attachments: attachments(files, path, payloads)?,
    })
}

/// Content is text or a list of parts.
fn require_content(content: &Raw, path: &str) -> Result<(), EngineError> {
    if content.get().starts_with(['"', '[']) {
        return Ok(());
    }
    let detail = format!("the content of `{path}` is text or a list of parts");
    Err(EngineError::invalid(path, detail))
}

fn attachments(
    wire: &[AttachmentBody],
    path: &str,
    payloads: &mut Payloads,
) -> Result<Vec<Attachment>, EngineError> {
    let mut read = Vec::with_capacity(wire.len());
    for file in wire {
        let source = match (&file.url, &file.reference_url, &file.data) {
            (Some(_), _, None) => AttachmentSource::Url,
            (None, Some(_), None) => AttachmentSource::ReferenceUrl,
            (None, _, Some(_)) => AttachmentSource::Inline,
            _ => {
                let detail = format!(
                    "an attachment of `{path}` has a `url`, a `reference_url` or `data`, and not both `url` and `data`"
                );
                return Err(EngineError::invalid(path, detail));
            }
        };
        let body = payloads.put_file(file);
        read.push(Attachment { body, source });
    }
    Ok(read)
}

impl ItemInput {
    /// Converts to an item of the core; `place` locates the call of a result.
    pub(crate) fn into_new(
        self,
        index: usize,
        place: Option<CallTarget>,
        payloads: &mut Payloads,
    ) -> Result<NewItem, EngineError> {
        let path = format!("items[{index}]");
        let wrong = |what: &str| {
            let (path, what) = (path.clone(), what.to_owned());
            Err(EngineError::ItemMalformed { path, what })
        };
        let kind = self.kind;
        match kind {
            ItemKind::Message if self.content.is_none() => {
                return wrong("a message has `content`");
            }
            ItemKind::ToolCall if self.name.is_none() || self.arguments.is_none() => {
                return wrong("a tool call has `name` and `arguments`");
            }
            ItemKind::ToolResult if self.call_id.is_none() || self.result.is_none() => {
                return wrong("a tool result has `call_id` and `result`");
            }
            _ => {}
        }
        if kind != ItemKind::ToolCall && (self.gated || self.idempotent) {
            return wrong("`gated` and `idempotent` are for tool calls");
        }
        if kind != ItemKind::ToolResult && self.outcome.is_some() {
            return wrong("`outcome` is for tool results");
        }
        let is_shown = self.visibility == Some(Visibility::Visible);
        if kind != ItemKind::Message && is_shown {
            return wrong("only messages can be visible");
        }
        if kind != ItemKind::Message && self.role.is_some() {
            return wrong("`role` is for messages");
        }
        if let Some(content) = &self.content {
            require_content(content, &path)?;
        }
        let is_message = kind == ItemKind::Message;
        let visibility = match self.visibility {
            None if is_message => Visibility::Visible,
            visibility => visibility.unwrap_or(Visibility::Hidden),
        };
        let role = is_message.then(|| self.role.unwrap_or(Role::Assistant));
        let call = match (kind, place) {
            (ItemKind::ToolCall, _) => Some(NewCallMark::Call {
                gated: self.gated,
                idempotent: self.idempotent,
            }),
            (ItemKind::ToolResult, Some(call)) => Some(NewCallMark::Result {
                call,
                outcome: self.outcome.unwrap_or(CallOutcome::Ran),
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
            ..ItemBody::default()
        };
        Ok(NewItem {
            kind,
            visibility,
            role,
            body: payloads.put_item(&body),
            attachments: attached,
            call,
        })
    }
}

/// Locates the call of each result in a body; None for items that are not results.
fn call_places(items: &[ItemInput]) -> Vec<Option<CallPlace>> {
    let place_of = |index: usize, item: &ItemInput| {
        if item.kind != ItemKind::ToolResult {
            return None;
        }
        let name = item.call_id.as_deref()?;
        let earlier = items[..index].iter().rposition(|other| {
            other.kind == ItemKind::ToolCall && other.call_id.as_deref() == Some(name)
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

/// Whether a result names a call by the caller's own id that is not in the same body.
pub(crate) fn names_recorded_calls(items: &[ItemInput]) -> bool {
    let mut places = call_places(items).into_iter();
    places.any(|place| matches!(place, Some(CallPlace::Named(_))))
}

/// The items of a command in a request that is not started yet: results can only name calls of the same
/// command.
pub(crate) fn first_items(
    items: Vec<ItemInput>,
    payloads: &mut Payloads,
) -> Result<Vec<NewItem>, EngineError> {
    let targets = targets(&items, |_| None)?;
    new_items(items, &targets, payloads)
}

/// The items of a command in a live request. Results may name calls by the caller's own ids, which this
/// looks up in the history. Gated calls are stored as their preview.
pub(crate) async fn next_items(
    write: &mut SessionWrite<'_>,
    request: RequestId,
    items: Vec<ItemInput>,
) -> Result<Vec<NewItem>, EngineError> {
    let targets = call_targets(write, request, &items).await?;
    let mut items = new_items(items, &targets, &mut write.payloads)?;
    let is_gated =
        |item: &NewItem| matches!(item.call, Some(NewCallMark::Call { gated: true, .. }));
    if items.iter().any(is_gated) {
        let state = write.engine.durable_state(write.session).await?;
        if let Some(task) = state.task_of(request) {
            let engine = write.engine;
            engine.hide_gated(&task.agent, &mut items, &mut write.payloads);
        }
    }
    Ok(items)
}

/// The calls that the results among `items` belong to, read from the history where needed.
pub(crate) async fn call_targets(
    write: &SessionWrite<'_>,
    request: RequestId,
    items: &[ItemInput],
) -> Result<Vec<Option<CallTarget>>, EngineError> {
    let is_call = |stored: &StoredItem| {
        stored.placed.item.kind == ItemKind::ToolCall && stored.placed.request == request
    };
    let mut written = Vec::new();
    if names_recorded_calls(items) {
        let (engine, session) = (write.engine, write.session);
        let state = engine.durable_state(session).await?;
        let live = state.requests.get(&request).ok_or(EngineError::NotFound)?;
        written = engine
            .recent_items(session, live.task, CALLS_READ_MAX, is_call)
            .await?;
    }
    targets(items, |name| {
        let call = written.iter().find(|stored| {
            let body = stored.body.as_deref();
            let body = body.and_then(|body| serde_json::from_slice::<ItemBody>(body).ok());
            body.and_then(|body| body.call_id).as_deref() == Some(name)
        });
        call.map(|stored| CallTarget::Recorded(stored.placed.item.id))
    })
}

/// The call of each result; `find` looks up those that are named by the caller's own id.
fn targets(
    items: &[ItemInput],
    find: impl Fn(&str) -> Option<CallTarget>,
) -> Result<Vec<Option<CallTarget>>, EngineError> {
    let targets = call_places(items).into_iter().map(|place| match place {
        None => Ok(None),
        Some(CallPlace::Known(target)) => Ok(Some(target)),
        Some(CallPlace::Named(name)) => find(&name).map(Some).ok_or_else(|| unknown_call(&name)),
    });
    targets.collect()
}

fn unknown_call(name: &str) -> EngineError {
    EngineError::UnknownCall {
        call_id: name.chars().take(64).collect(),
    }
}

/// Converts to items of the core; `targets` has the call of each result.
pub(crate) fn new_items(
    items: Vec<ItemInput>,
    targets: &[Option<CallTarget>],
    payloads: &mut Payloads,
) -> Result<Vec<NewItem>, EngineError> {
    let numbered = items.into_iter().enumerate();
    numbered
        .map(|(index, item)| item.into_new(index, targets[index], payloads))
        .collect()
}
