//! Assembles an answer from one response body or from many stream chunks.

use std::collections::{BTreeMap, HashMap};

use http::HeaderMap;
use serde_json::value::RawValue;
use statehold_engine::api::turn::TokenUsage;

use super::ReplySink;
use super::envelope::{ContentPart, EnvelopeMessage, EnvelopeToolCall, ReplyEnvelope};
use crate::http::EndpointError;

/// Most tool calls in one answer.
const TOOL_CALLS_MAX: usize = 1_024;

/// A tool call as the model sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RawToolCall {
    /// The model's call id, or `call_<index>`.
    pub(crate) id: String,
    /// Name of the tool.
    pub(crate) name: String,
    /// Unparsed text; should be a JSON object.
    pub(crate) arguments: String,
}

impl RawToolCall {
    /// Whether a chunk with another id begins a new call instead of continuing this one.
    fn is_ended_by(&self, chunk: &EnvelopeToolCall<'_>) -> bool {
        let Some(function) = &chunk.function else {
            return false;
        };
        let name = function.name.as_deref().filter(|name| !name.is_empty());
        let has_arguments = || {
            let arguments = function.arguments.map(RawValue::get).unwrap_or_default();
            !arguments.trim_matches(['"', ' ']).is_empty()
        };
        name.is_some_and(|name| name != self.name || self.is_whole() && has_arguments())
    }

    /// Whether the arguments are complete JSON.
    fn is_whole(&self) -> bool {
        // Check the last character first, because parsing every chunk would be slow.
        self.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<serde::de::IgnoredAny>(&self.arguments).is_ok()
    }
}

/// Reply of a chat endpoint or a conversation service.
#[derive(Debug, Default)]
pub(crate) struct ChatReply {
    /// The text, or an empty string.
    pub(crate) content: String,
    /// Requested tool calls, in order.
    pub(crate) tool_calls: Vec<RawToolCall>,
    /// Finish reason given by the service.
    pub(crate) finish_reason: Option<String>,
    /// `custom_content.state`, byte for byte. The last value that is not null.
    pub(crate) state: Option<Box<RawValue>>,
    /// `shared_context`, of the response or in `custom_content`. The last value that is not null.
    pub(crate) shared_context: Option<Box<RawValue>>,
    /// `custom_content.attachments`, in order and unchanged.
    pub(crate) attachments: Vec<Box<RawValue>>,
    /// Token usage, if reported.
    pub(crate) usage: Option<TokenUsage>,
    /// The member `statehold` of the response or its message. Another Statehold reports its holds
    /// there.
    pub(crate) statehold: Option<Box<RawValue>>,
    /// The model's refusal text.
    pub(crate) refusal: Option<String>,
    /// The conversation that a service names.
    pub(crate) conversation_id: Option<String>,
    /// Response headers.
    pub(crate) headers: HeaderMap,
}

/// An answer under assembly.
#[derive(Default)]
pub(super) struct ReplyAssembly {
    reply: ChatReply,
    /// Calls by their position in the answer: services may interleave chunks of several calls.
    tool_calls: BTreeMap<u64, RawToolCall>,
    /// Position of each call id.
    positions: HashMap<String, u64>,
    /// The bytes of all parts so far.
    bytes: usize,
    /// Position of the last call under an index, if it differs from the index.
    moved: HashMap<u64, u64>,
}

impl ReplyAssembly {
    /// The bytes of the texts, tool calls, attachments and states that have come.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether the service sent a finish reason.
    pub(super) fn is_finished(&self) -> bool {
        self.reply.finish_reason.is_some()
    }

    /// Adds a response body or a chunk. Passes new parts on.
    pub(super) fn add(
        &mut self,
        envelope: ReplyEnvelope<'_>,
        sink: &mut dyn ReplySink,
    ) -> Result<(), EndpointError> {
        self.bytes += length(envelope.statehold) + length(envelope.shared_context);
        replace(&mut self.reply.statehold, envelope.statehold);
        replace(&mut self.reply.shared_context, envelope.shared_context);
        if let Some(usage) = envelope.usage {
            // A malformed usage must not fail the answer.
            self.reply.usage = serde_json::from_str(usage.get()).ok().or(self.reply.usage);
        }
        if let Some(id) = envelope.conversation_id {
            self.reply.conversation_id = Some(opaque_id(id)?);
        }
        if let Some(content) = envelope.content {
            self.add_content(content, sink)?;
        }
        let choices = envelope.choices.into_iter().flatten();
        // Only one choice is requested. Ignore others.
        for choice in choices.filter(|choice| choice.index.unwrap_or(0) == 0) {
            let is_whole = choice.delta.is_none();
            if let Some(message) = choice.delta.or(choice.message) {
                self.add_message(message, is_whole, sink)?;
            }
            // Some services send an empty reason with every chunk.
            let reason = choice.finish_reason.filter(|reason| !reason.is_empty());
            if reason.is_some() {
                self.reply.finish_reason = reason;
            }
        }
        Ok(())
    }

    pub(super) fn into_reply(self) -> Result<ChatReply, EndpointError> {
        let mut reply = self.reply;
        for (index, mut call_draft) in self.tool_calls {
            if call_draft.name.is_empty() {
                return Err(EndpointError::Malformed("a tool call names no tool"));
            }
            if call_draft.id.is_empty() {
                call_draft.id = format!("call_{index}");
            }
            reply.tool_calls.push(call_draft);
        }
        Ok(reply)
    }

    fn add_message(
        &mut self,
        message: EnvelopeMessage<'_>,
        is_whole: bool,
        sink: &mut dyn ReplySink,
    ) -> Result<(), EndpointError> {
        if let Some(content) = message.content {
            self.add_content(content, sink)?;
        }
        if let Some(refusal) = message.refusal {
            self.add_refusal(&refusal);
        }
        self.bytes += length(message.statehold);
        replace(&mut self.reply.statehold, message.statehold);
        if let Some(custom) = message.custom_content {
            self.bytes += length(custom.state) + length(custom.shared_context);
            replace(&mut self.reply.state, custom.state);
            replace(&mut self.reply.shared_context, custom.shared_context);
            if let Some(stages) = custom.stages {
                sink.update_stages(stages);
            }
            for attachment in custom.attachments.into_iter().flatten() {
                self.bytes += attachment.get().len();
                self.reply.attachments.push(attachment.to_owned());
            }
        }
        let calls = message.tool_calls.into_iter().flatten();
        for (position, call) in (0..).zip(calls) {
            let position = if is_whole {
                position
            } else {
                self.position_of(&call)
            };
            self.add_tool_call(position, call)?;
        }
        Ok(())
    }

    /// Finds the call that a chunk belongs to. Some services omit the index: then a new id begins a new
    /// call, and a chunk without an id continues the last one. Others give every call the same index:
    /// then a new id begins a new call only with another tool name, or with arguments after those of
    /// the previous call are complete, because a third kind of service invents a new id for every
    /// chunk.
    fn position_of(&mut self, call: &EnvelopeToolCall<'_>) -> u64 {
        let id = call.id.as_deref().filter(|id| !id.is_empty());
        let last = self.tool_calls.keys().next_back().copied();
        let by_id = |id: &str| {
            let known = self.positions.get(id).copied();
            known.unwrap_or_else(|| last.map_or(0, |last| last.saturating_add(1)))
        };
        let Some(index) = call.index else {
            return id.map_or(last.unwrap_or(0), by_id);
        };
        let position = self.moved.get(&index).copied().unwrap_or(index);
        let there = self.tool_calls.get(&position);
        let is_of_another = |id: &&str| {
            there.is_some_and(|there| {
                !there.id.is_empty() && there.id != **id && there.is_ended_by(call)
            })
        };
        let Some(position) = id.filter(is_of_another).map(by_id) else {
            return position;
        };
        self.moved.insert(index, position);
        position
    }

    fn add_tool_call(
        &mut self,
        position: u64,
        call: EnvelopeToolCall<'_>,
    ) -> Result<(), EndpointError> {
        if self.tool_calls.len() == TOOL_CALLS_MAX && !self.tool_calls.contains_key(&position) {
            return Err(EndpointError::TooLarge("at most 1,024 tool calls"));
        }
        let call_draft = self.tool_calls.entry(position).or_insert(RawToolCall {
            id: String::new(),
            name: String::new(),
            arguments: String::new(),
        });
        if let Some(id) = call.id.filter(|_| call_draft.id.is_empty()) {
            self.positions.entry(id.clone()).or_insert(position);
            call_draft.id = id;
        }
        let Some(function) = call.function else {
            return Ok(());
        };
        // Names are concatenated like all text, but some services repeat the whole name in each chunk.
        if let Some(name) = function.name.filter(|name| *name != call_draft.name) {
            self.bytes += name.len();
            call_draft.name.push_str(&name);
        }
        if let Some(arguments) = function.arguments {
            let arguments = arguments.get();
            self.bytes += arguments.len();
            if arguments.starts_with('"') {
                call_draft.arguments.push_str(&text(arguments)?);
            } else {
                call_draft.arguments.push_str(arguments);
            }
        }
        Ok(())
    }

    /// Content is a string, or a list of parts of which the text parts count.
    fn add_content(
        &mut self,
        content: &RawValue,
        sink: &mut dyn ReplySink,
    ) -> Result<(), EndpointError> {
        let content = content.get();
        if content.starts_with('"') {
            self.add_text(&text(content)?, sink);
            return Ok(());
        }
        let parts: Vec<ContentPart> = serde_json::from_str(content).map_err(|_| {
            EndpointError::Malformed("its content is neither text nor a list of parts")
        })?;
        for part in parts {
            if let Some(text) = part.text {
                self.add_text(&text, sink);
            }
            if let Some(refusal) = part.refusal {
                self.add_refusal(&refusal);
            }
        }
        Ok(())
    }

    fn add_text(&mut self, text: &str, sink: &mut dyn ReplySink) {
        if !text.is_empty() {
            self.bytes += text.len();
            self.reply.content.push_str(text);
            sink.write(text);
        }
    }

    fn add_refusal(&mut self, refusal: &str) {
        self.bytes += refusal.len();
        let said = self.reply.refusal.get_or_insert_default();
        said.push_str(refusal);
    }
}

fn length(part: Option<&RawValue>) -> usize {
    part.map_or(0, |part| part.get().len())
}

/// Reads an id chosen by a service, which is only repeated to it: a string or a number.
pub(crate) fn opaque_id(id: &RawValue) -> Result<String, EndpointError> {
    let json = id.get();
    let id = if json.starts_with('"') {
        text(json)?
    } else {
        json.to_owned()
    };
    if is_usable_id(&id) && !json.starts_with(['{', '[']) {
        Ok(id)
    } else {
        Err(EndpointError::Malformed(
            "it names a conversation with no usable id",
        ))
    }
}

/// Whether an id can be a path segment. `.` and `..` would change the path.
pub(crate) fn is_usable_id(id: &str) -> bool {
    const BYTES_MAX: usize = 512;
    !matches!(id, "" | "." | "..") && id.len() <= BYTES_MAX
}

fn text(json: &str) -> Result<String, EndpointError> {
    serde_json::from_str(json).map_err(|_| EndpointError::Malformed("a text in it is damaged"))
}

/// Keeps the last value that is not null, as raw text.
fn replace(kept: &mut Option<Box<RawValue>>, new: Option<&RawValue>) {
    if let Some(new) = new {
        *kept = Some(new.to_owned());
    }
}
