//! The messages of a model call: the exchanges that the request knows, the history of a stateless caller, and the current
//! turn.
//!
//! The system prompt is not part of it. All text from outside becomes a user or assistant message, so
//! none can take the place of the prompt.

use std::collections::{BTreeSet, HashMap};

use serde::Serialize;
use serde_json::{Value, json};
use statehold_core::ids::ItemId;
use statehold_core::item::{CallMark, ItemKind, Role};
use statehold_engine::StoredItem;
use statehold_engine::bodies::{ItemBody, Raw, parse, text_of, text_of_value};

use super::file_text::{self, FileTexts};
use crate::gateway::shared_block;
use crate::history::{HISTORY_BYTES_MAX, PastExchanges, newest_fitting};
use crate::mcp::ToolMedia;
use crate::message::{AgentMessage, MessagePart, raw, text_part, tool_call};
use crate::model::{ModelReply, RequestedCall};
use crate::runner::{SkippedCall, StepKind, recorded_step, render_for_model};
use crate::spec::MediaKind;

/// Text for a call without a recorded result: endpoints reject calls without one.
pub(crate) const NO_RESULT: &str = "There is no record of what came of this call.";

/// Most bytes of images and sounds that tools return in one turn, and most bytes of files of users.
const MEDIA_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The files of users that a call may send: the kinds that the model takes, up to some bytes.
#[derive(Default)]
pub(crate) struct MediaBudget {
    takes: BTreeSet<MediaKind>,
    bytes_left: usize,
}

impl MediaBudget {
    pub(crate) fn of_model(takes: &BTreeSet<MediaKind>) -> Self {
        Self {
            takes: takes.clone(),
            bytes_left: MEDIA_BYTES_MAX,
        }
    }

    /// Takes the bytes of a part. None if the model does not take it, or it does not fit.
    fn admit(&mut self, kind: MediaKind, part: Value) -> Option<Value> {
        let parts = ["image_url", "input_audio", "file"].iter();
        let values = parts.filter_map(|name| part[name].as_object()).flatten();
        let texts = values.filter_map(|(_, value)| value.as_str());
        let left = self.bytes_left.checked_sub(texts.map(str::len).sum())?;
        if !self.takes.contains(&kind) {
            return None;
        }
        self.bytes_left = left;
        Some(part)
    }

    /// The parts of a user message. Empty if the model gets its text alone.
    fn parts_of(&mut self, message: &AgentMessage) -> Vec<Value> {
        if let Ok(Value::Array(parts)) = serde_json::from_str(message.content.get()) {
            let mut sent = self.parts_in(&parts);
            if !sent.is_empty() {
                let mut told = FileTexts::default();
                let files = message.attachments.iter();
                sent.extend(files.map(|file| text_part(&told.of(file))));
            }
            return sent;
        }
        let text = message.text();
        let (mut parts, beside) = message.placed_parts(&text);
        parts.extend(
            beside
                .iter()
                .copied()
                .filter_map(MessagePart::of_attachment),
        );
        let (mut has_media, mut told) = (false, FileTexts::default());
        let mut admit = |part: &MessagePart<'_>| match part.media() {
            None => part.to_json(),
            Some(kind) => {
                let admitted = part.to_json().and_then(|part| self.admit(kind, part));
                has_media |= admitted.is_some();
                admitted.or_else(|| Some(text_part(&told.of(part.file()?))))
            }
        };
        let mut sent: Vec<Value> = parts.iter().filter_map(&mut admit).collect();
        let others = beside
            .iter()
            .filter(|file| MessagePart::of_attachment(file).is_none());
        sent.extend(others.map(|file| text_part(&told.of(file))));
        if has_media { sent } else { Vec::new() }
    }

    /// Of parts in the form of chat completions, those that the model gets. Empty if it gets the texts alone.
    fn parts_in(&mut self, parts: &[Value]) -> Vec<Value> {
        let mut has_media = false;
        let mut admit = |part: &Value| {
            let kind = match part["type"].as_str()? {
                "text" => return Some(text_part(part["text"].as_str()?)),
                "image_url" => MediaKind::Image,
                "input_audio" => MediaKind::Audio,
                "file" => MediaKind::File,
                _ => return None,
            };
            let admitted = self.admit(kind, part.clone());
            has_media |= admitted.is_some();
            admitted
        };
        let sent: Vec<Value> = parts.iter().filter_map(&mut admit).collect();
        if has_media { sent } else { Vec::new() }
    }
}

/// Messages in chat completions form, without the system prompt.
#[derive(Default)]
pub(crate) struct ModelMessages {
    messages: Vec<Raw>,
    /// Concatenated messages: the input of a step.
    bytes: Vec<u8>,
    /// Bytes of images and sounds.
    media_bytes: usize,
}

#[derive(Serialize)]
struct ModelMessage<'a> {
    role: &'a str,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

impl<'a> ModelMessage<'a> {
    fn text(role: Role, text: &'a str) -> Self {
        Self {
            role: match role {
                Role::Assistant => "assistant",
                Role::User | Role::Tool => "user",
            },
            content: Some(text),
            tool_calls: Vec::new(),
            tool_call_id: None,
        }
    }
}

impl ModelMessages {
    pub(crate) fn messages(&self) -> &[Raw] {
        &self.messages
    }

    /// Input of the step that sends these messages.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push(&mut self, message: &ModelMessage<'_>) {
        let message = raw(message);
        self.add_input(&message);
        self.messages.push(message);
    }

    fn add_input(&mut self, message: &Raw) {
        self.bytes.extend_from_slice(message.get().as_bytes());
        self.bytes.push(b'\n');
    }

    /// Adds a message. Guards a user message against imitating the shared context block.
    pub(crate) fn push_text(&mut self, role: Role, text: &str) {
        self.push_said(role, text, Vec::new());
    }

    /// Adds a message with its parts, if it has more than text. They are not part of the step's input, because
    /// the model of an agent may change while a turn waits.
    fn push_said(&mut self, role: Role, text: &str, parts: Vec<Value>) {
        let guard = match role {
            Role::User | Role::Tool => shared_block(&[], text),
            Role::Assistant => None,
        };
        let guard = guard.unwrap_or_default();
        let plain = raw(&ModelMessage::text(role, &format!("{guard}{text}")));
        self.add_input(&plain);
        self.messages.push(if parts.is_empty() {
            plain
        } else {
            user_message(&guard, text, parts)
        });
    }

    /// Adds the messages of another list.
    pub(crate) fn append(&mut self, other: Self) {
        self.messages.extend(other.messages);
        self.bytes.extend(other.bytes);
    }

    /// Adds the newest exchanges that fit. Returns the number of omitted ones.
    pub(crate) fn push_exchanges(&mut self, exchanges: Vec<Self>) -> usize {
        let (kept, left_out) = newest_fitting(exchanges, HISTORY_BYTES_MAX, |one| one.bytes.len());
        for one in kept {
            self.append(one);
        }
        left_out
    }

    /// Adds a model reply with the results of its calls, in order. A missing result gets a placeholder,
    /// so that every call has one.
    pub(crate) fn push_reply(&mut self, said: &ModelReply, told: &[Option<&str>]) {
        let calls = said.tool_calls.iter();
        let calls = calls.map(|call| tool_call(&call.id, &call.name, &call.arguments));
        let calls: Vec<Value> = calls.collect();
        let is_silent = said.text.is_empty();
        if is_silent && calls.is_empty() {
            return;
        }
        self.push(&ModelMessage {
            role: "assistant",
            content: (!is_silent).then_some(said.text.as_str()),
            tool_calls: calls,
            tool_call_id: None,
        });
        for (at, requested) in said.tool_calls.iter().enumerate() {
            let told = told.get(at).copied().flatten();
            self.push(&ModelMessage {
                role: "tool",
                content: Some(told.or(requested.error.as_deref()).unwrap_or(NO_RESULT)),
                tool_calls: Vec::new(),
                tool_call_id: Some(&requested.id),
            });
        }
    }

    /// Adds images and sounds that tools returned, as far as they fit. They belong to results that are part of
    /// the step's input already, so they are not: whether a model takes them may change while a turn waits.
    pub(crate) fn push_media<'m>(&mut self, media: impl Iterator<Item = &'m ToolMedia>) {
        let mut parts = Vec::new();
        for one in media {
            if self.media_bytes + one.bytes() <= MEDIA_BYTES_MAX {
                self.media_bytes += one.bytes();
                parts.push(one.to_part());
            }
        }
        if !parts.is_empty() {
            parts.insert(0, text_part("The tools returned this:"));
            self.messages
                .push(raw(&json!({"role": "user", "content": parts})));
        }
    }

    /// Adds the messages that the client brought along when the session began, and the exchanges that the
    /// request knows. Returns the number of omitted ones.
    pub(crate) fn push_past(&mut self, past: &PastExchanges, media: &mut MediaBudget) -> usize {
        // The newest files come first.
        let turns = past.exchanges.iter().rev().map(|exchange| {
            let mut told = Self::default();
            RecordedTurn::read(&exchange.items, media).put(&mut told);
            if let Some(missing) = exchange.missing_answer() {
                told.push_text(Role::Assistant, missing);
            }
            told
        });
        let turns: Vec<Self> = turns.collect();
        let mut exchanges = caller_exchanges(past.first_data().as_ref(), media);
        exchanges.extend(turns.into_iter().rev());
        self.push_exchanges(exchanges)
    }

    /// Adds the history that a caller brought with its message. Returns the number of omitted exchanges.
    pub(crate) fn push_caller_history(
        &mut self,
        data: Option<&Raw>,
        media: &mut MediaBudget,
    ) -> usize {
        self.push_exchanges(caller_exchanges(data, media))
    }

    /// Adds the input of this turn. The shared context before it may differ when the turn resumes, so
    /// it is not part of the step's input.
    pub(crate) fn push_input(
        &mut self,
        input: &AgentMessage,
        before: Option<&str>,
        media: &mut MediaBudget,
    ) {
        let text = with_files(input);
        self.add_input(&raw(&ModelMessage::text(Role::User, &text)));
        let message = user_message(before.unwrap_or_default(), &text, media.parts_of(input));
        self.messages.push(message);
    }
}

/// A user message with a text before it: its parts, or its text if it has none.
fn user_message(before: &str, text: &str, mut parts: Vec<Value>) -> Raw {
    if parts.is_empty() {
        return raw(&ModelMessage::text(Role::User, &format!("{before}{text}")));
    }
    if !before.is_empty() {
        parts.insert(0, text_part(before));
    }
    raw(&json!({"role": "user", "content": parts}))
}

/// The history that a caller brought: user and assistant texts, and pictures and files of the user. System messages of the caller count as
/// user messages, and its tool messages are dropped, because this server did not execute those calls.
pub(crate) fn caller_exchanges(data: Option<&Raw>, media: &mut MediaBudget) -> Vec<ModelMessages> {
    let mut exchanges: Vec<ModelMessages> = Vec::new();
    let data = data.and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
    let history = data
        .as_ref()
        .and_then(|data| data.get("history")?.as_array());
    for message in history.into_iter().flatten() {
        let role = match message.get("role").and_then(Value::as_str) {
            Some("assistant") => Role::Assistant,
            Some("tool" | "function") => continue,
            _ => Role::User,
        };
        let text = text_of_value(message["content"].clone());
        let parts = match (role, message["content"].as_array()) {
            (Role::User, Some(parts)) => media.parts_in(parts),
            _ => Vec::new(),
        };
        if text.is_empty() && parts.is_empty() {
            continue;
        }
        match exchanges.last_mut() {
            Some(exchange) if role == Role::Assistant => exchange.push_text(role, &text),
            _ => {
                let mut exchange = ModelMessages::default();
                exchange.push_said(role, &text, parts);
                exchanges.push(exchange);
            }
        }
    }
    exchanges
}

/// The exchanges that a client brought along when the session began, as role and text only.
pub(crate) fn brought_exchanges(past: &PastExchanges, input: &AgentMessage) -> Vec<ModelMessages> {
    let first = past.first_data();
    let brought = if past.exchanges.is_empty() {
        input.data.as_ref()
    } else {
        first.as_ref()
    };
    caller_exchanges(brought, &mut MediaBudget::default())
}

/// The exchanges before the input of a turn, oldest first, as role and text only: the memory of the request, behind
/// the messages that the client brought along when the session began.
pub(crate) fn text_exchanges(past: &PastExchanges, input: &AgentMessage) -> Vec<ModelMessages> {
    let brought = brought_exchanges(past, input);
    let is_said = |item: &&StoredItem| item.placed.item.kind == ItemKind::Message;
    let turns = past.exchanges.iter().map(|exchange| {
        let mut told = ModelMessages::default();
        for item in exchange.items.iter().filter(is_said) {
            if let Some((role, message)) = item.placed.item.role.zip(AgentMessage::from_item(item))
            {
                told.push_text(role, &with_files(&message));
            }
        }
        if let Some(missing) = exchange.missing_answer() {
            told.push_text(Role::Assistant, missing);
        }
        told
    });
    brought.into_iter().chain(turns).collect()
}

/// One recorded request.
#[derive(Default)]
struct RecordedTurn {
    said: Vec<RecordedPart>,
    /// Result text of each call item.
    told: HashMap<ItemId, String>,
    /// Call ids of the model with their items, in order.
    calls: Vec<(String, ItemId)>,
    has_steps: bool,
}

enum RecordedPart {
    /// A text, and the parts of a user message with more than text.
    Text(Role, String, Vec<Value>),
    Model(ModelReply),
    /// A call without a model step: another kind of agent made it.
    Orphan(ItemId, RequestedCall),
}

impl RecordedTurn {
    fn read(items: &[StoredItem], media: &mut MediaBudget) -> Self {
        let mut turn = Self::default();
        let is_output = |stored: &&StoredItem| stored.placed.item.role == Some(Role::Assistant);
        let output = items.iter().rfind(is_output);
        for stored in items {
            let item = &stored.placed.item;
            match (item.kind, item.call) {
                (ItemKind::Step, _) => turn.add_step(recorded_step(stored), output),
                (ItemKind::ToolCall, _) => turn.add_call(stored),
                (ItemKind::ToolResult, Some(CallMark::Result { call, .. })) => {
                    let body: ItemBody = parse(stored.body.as_deref());
                    turn.told.insert(call, render_for_model(&body));
                }
                (ItemKind::Message, _) => {
                    let message = AgentMessage::from_item(stored);
                    if let Some((role, message)) = item.role.zip(message) {
                        let parts = match role {
                            Role::User => media.parts_of(&message),
                            Role::Assistant | Role::Tool => Vec::new(),
                        };
                        let text = with_files(&message);
                        turn.said.push(RecordedPart::Text(role, text, parts));
                    }
                }
                (ItemKind::ToolResult | ItemKind::Note, _) => {}
            }
        }
        turn
    }

    fn add_step(
        &mut self,
        step: Option<(StepKind, Raw, Option<usize>)>,
        output: Option<&StoredItem>,
    ) {
        match step {
            Some((StepKind::Model, said, from)) => {
                if let Ok(mut said) = serde_json::from_str::<ModelReply>(said.get()) {
                    let output = from.and_then(|_| AgentMessage::from_item(output?));
                    let output = output.map(|output| output.text()).unwrap_or_default();
                    said.text += output.get(from.unwrap_or(0)..).unwrap_or_default();
                    self.has_steps = true;
                    self.said.push(RecordedPart::Model(said));
                }
            }
            Some((StepKind::ToolResult, told, _)) => {
                if let Ok(SkippedCall { call, told }) = serde_json::from_str(told.get()) {
                    self.told.insert(call, told);
                }
            }
            _ => {}
        }
    }

    fn add_call(&mut self, stored: &StoredItem) {
        let id = stored.placed.item.id;
        let body: ItemBody = parse(stored.body.as_deref());
        let (Some(name), Some(arguments)) = (body.name, body.arguments) else {
            return;
        };
        let call_id = body.call_id.unwrap_or_else(|| id.to_string());
        self.calls.push((call_id.clone(), id));
        let requested = RequestedCall {
            id: call_id,
            tool: name.clone(),
            name,
            arguments: arguments.get().to_owned(),
            ..RequestedCall::default()
        };
        self.said.push(RecordedPart::Orphan(id, requested));
    }

    fn put(self, conversation: &mut ModelMessages) {
        let mut calls = self.calls.iter();
        let mut parts = self.said.into_iter().peekable();
        while let Some(part) = parts.next() {
            match part {
                // Model steps contain the whole answer and its calls, so skip the items.
                RecordedPart::Text(Role::Assistant, ..) | RecordedPart::Orphan(..)
                    if self.has_steps => {}
                RecordedPart::Text(role, text, parts) => conversation.push_said(role, &text, parts),
                RecordedPart::Model(said) => {
                    // Calls are recorded in the order of the reply, all or none.
                    let told: Vec<_> = said
                        .tool_calls
                        .iter()
                        .map(|requested| {
                            if requested.error.is_some() {
                                return None;
                            }
                            let (_, id) = calls.find(|(call, _)| *call == requested.id)?;
                            self.told.get(id).map(String::as_str)
                        })
                        .collect();
                    conversation.push_reply(&said, &told);
                }
                RecordedPart::Orphan(id, requested) => {
                    let mut said = ModelReply::default();
                    let mut told = vec![self.told.get(&id).map(String::as_str)];
                    said.tool_calls.push(requested);
                    while let Some(RecordedPart::Orphan(id, requested)) =
                        parts.next_if(|next| matches!(next, RecordedPart::Orphan(..)))
                    {
                        told.push(self.told.get(&id).map(String::as_str));
                        said.tool_calls.push(requested);
                    }
                    conversation.push_reply(&said, &told);
                }
            }
        }
    }
}

/// Text of a message, with what a text can say of its attachments.
pub(crate) fn with_files(message: &AgentMessage) -> String {
    file_text::with_files(text_of(&message.content), &message.attachments)
}

#[cfg(test)]
mod tests;
