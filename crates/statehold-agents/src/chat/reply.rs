//! An answer, put together from one envelope or from many.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::value::RawValue;

use super::envelope::{ContentPart, Envelope, Message, ToolCall};
use crate::http::CallError;

/// How many tools may be wanted called in one answer.
const TOOL_CALLS_MAX: usize = 1_024;

/// A tool that a model wants called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ToolCallWish {
    /// As the model named it, or `call_<index>`.
    pub(crate) id: String,
    /// The name of the tool.
    pub(crate) name: String,
    /// Text that should be JSON. Nobody has looked.
    pub(crate) arguments: String,
}

impl ToolCallWish {
    /// Whether a piece with another id begins another call, and is no piece of this one.
    fn is_followed_by(&self, piece: &ToolCall<'_>) -> bool {
        let Some(function) = &piece.function else {
            return false;
        };
        let name = function.name.as_deref().filter(|name| !name.is_empty());
        let has_arguments = || {
            let arguments = function.arguments.map(RawValue::get).unwrap_or_default();
            !arguments.trim_matches(['"', ' ']).is_empty()
        };
        name.is_some_and(|name| name != self.name || self.is_whole() && has_arguments())
    }

    /// Whether nothing is missing from its arguments.
    fn is_whole(&self) -> bool {
        // Looked at first, because it is cheap: pieces can be many.
        self.arguments.trim_end().ends_with('}')
            && serde_json::from_str::<serde::de::IgnoredAny>(&self.arguments).is_ok()
    }
}

/// What an answer took.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names on the wire")]
pub(crate) struct Usage {
    #[serde(default)]
    pub(crate) prompt_tokens: u64,
    #[serde(default)]
    pub(crate) completion_tokens: u64,
    #[serde(default)]
    pub(crate) total_tokens: u64,
}

/// Everything that was read of an answer.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) content: String,
    pub(crate) tool_calls: Vec<ToolCallWish>,
    pub(crate) finish_reason: Option<String>,
    pub(crate) state: Option<Box<RawValue>>,
    pub(crate) shared_context: Option<Box<RawValue>>,
    pub(crate) attachments: Vec<Box<RawValue>>,
    pub(crate) usage: Option<Usage>,
    pub(crate) statehold: Option<Box<RawValue>>,
    pub(crate) refusal: Option<String>,
    pub(crate) conversation_id: Option<String>,
}

/// Puts an answer together.
#[derive(Default)]
pub(super) struct Assembly {
    reply: Reply,
    /// By their place in the answer: services send pieces of several in any order.
    tool_calls: BTreeMap<u64, ToolCallWish>,
    /// The place of each, by its id.
    places: HashMap<String, u64>,
    /// The place of the last one that came under an index, where that is not the index itself.
    moved: HashMap<u64, u64>,
}

impl Assembly {
    /// Whether the service said that the answer is complete.
    pub(super) fn is_finished(&self) -> bool {
        self.reply.finish_reason.is_some()
    }

    /// Takes an envelope, whole or a piece. New text goes to `on_text`.
    pub(super) fn take(
        &mut self,
        envelope: Envelope<'_>,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), CallError> {
        replace(&mut self.reply.statehold, envelope.statehold);
        replace(&mut self.reply.shared_context, envelope.shared_context);
        if let Some(usage) = envelope.usage {
            // Worth having, not worth losing an answer for.
            self.reply.usage = serde_json::from_str(usage.get()).ok().or(self.reply.usage);
        }
        if let Some(id) = envelope.conversation_id {
            self.reply.conversation_id = Some(opaque_id(id)?);
        }
        if let Some(content) = envelope.content {
            self.take_content(content, on_text)?;
        }
        let choices = envelope.choices.into_iter().flatten();
        // One answer is asked for. Others that a service sends along are not looked at.
        for choice in choices.filter(|choice| choice.index.unwrap_or(0) == 0) {
            let is_whole = choice.delta.is_none();
            if let Some(message) = choice.delta.or(choice.message) {
                self.take_message(message, is_whole, on_text)?;
            }
            // Some services send an empty one with every piece.
            let reason = choice.finish_reason.filter(|reason| !reason.is_empty());
            if reason.is_some() {
                self.reply.finish_reason = reason;
            }
        }
        Ok(())
    }

    pub(super) fn into_reply(self) -> Result<Reply, CallError> {
        let mut reply = self.reply;
        for (index, mut wish) in self.tool_calls {
            if wish.name.is_empty() {
                return Err(CallError::Malformed("a tool call names no tool"));
            }
            if wish.id.is_empty() {
                wish.id = format!("call_{index}");
            }
            reply.tool_calls.push(wish);
        }
        Ok(reply)
    }

    fn take_message(
        &mut self,
        message: Message<'_>,
        is_whole: bool,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), CallError> {
        if let Some(content) = message.content {
            self.take_content(content, on_text)?;
        }
        if let Some(refusal) = message.refusal {
            self.refuse(&refusal);
        }
        replace(&mut self.reply.statehold, message.statehold);
        if let Some(custom) = message.custom_content {
            replace(&mut self.reply.state, custom.state);
            replace(&mut self.reply.shared_context, custom.shared_context);
            let attachments = custom.attachments.into_iter().flatten();
            self.reply
                .attachments
                .extend(attachments.map(ToOwned::to_owned));
        }
        let calls = message.tool_calls.into_iter().flatten();
        for (place, call) in (0..).zip(calls) {
            let place = if is_whole {
                place
            } else {
                self.place_of(&call)
            };
            self.take_tool_call(place, call)?;
        }
        Ok(())
    }

    /// Which call a piece belongs to. Some services leave the index out: then a new id begins a new
    /// call, and a piece without an id belongs to the last one. Others give every call the same index:
    /// then a new id begins a new call, but only with the name of another tool, or with arguments where
    /// those of the call before are whole, because others again make up a new id for every piece.
    fn place_of(&mut self, call: &ToolCall<'_>) -> u64 {
        let id = call.id.as_deref().filter(|id| !id.is_empty());
        let last = self.tool_calls.keys().next_back().copied();
        let by_id = |id: &str| {
            let known = self.places.get(id).copied();
            known.unwrap_or_else(|| last.map_or(0, |last| last.saturating_add(1)))
        };
        let Some(index) = call.index else {
            return id.map_or(last.unwrap_or(0), by_id);
        };
        let place = self.moved.get(&index).copied().unwrap_or(index);
        let there = self.tool_calls.get(&place);
        let is_of_another = |id: &&str| {
            there.is_some_and(|there| {
                !there.id.is_empty() && there.id != **id && there.is_followed_by(call)
            })
        };
        let Some(place) = id.filter(is_of_another).map(by_id) else {
            return place;
        };
        self.moved.insert(index, place);
        place
    }

    fn take_tool_call(&mut self, place: u64, call: ToolCall<'_>) -> Result<(), CallError> {
        if self.tool_calls.len() == TOOL_CALLS_MAX && !self.tool_calls.contains_key(&place) {
            return Err(CallError::TooLarge("at most 1,024 tool calls"));
        }
        let wish = self.tool_calls.entry(place).or_insert(ToolCallWish {
            id: String::new(),
            name: String::new(),
            arguments: String::new(),
        });
        if let Some(id) = call.id.filter(|_| wish.id.is_empty()) {
            self.places.entry(id.clone()).or_insert(place);
            wish.id = id;
        }
        let Some(function) = call.function else {
            return Ok(());
        };
        // Names are added up like all text, but some services repeat the whole name in each piece.
        if let Some(name) = function.name.filter(|name| *name != wish.name) {
            wish.name.push_str(&name);
        }
        if let Some(arguments) = function.arguments {
            let arguments = arguments.get();
            if arguments.starts_with('"') {
                wish.arguments.push_str(&text(arguments)?);
            } else {
                wish.arguments.push_str(arguments);
            }
        }
        Ok(())
    }

    /// Content is text, or a list of parts of which those with text count.
    fn take_content(
        &mut self,
        content: &RawValue,
        on_text: &mut (dyn FnMut(&str) + Send),
    ) -> Result<(), CallError> {
        let content = content.get();
        if content.starts_with('"') {
            self.say(&text(content)?, on_text);
            return Ok(());
        }
        let parts: Vec<ContentPart> = serde_json::from_str(content)
            .map_err(|_| CallError::Malformed("its content is neither text nor a list of parts"))?;
        for part in parts {
            if let Some(text) = part.text {
                self.say(&text, on_text);
            }
            if let Some(refusal) = part.refusal {
                self.refuse(&refusal);
            }
        }
        Ok(())
    }

    fn say(&mut self, text: &str, on_text: &mut (dyn FnMut(&str) + Send)) {
        if !text.is_empty() {
            self.reply.content.push_str(text);
            on_text(text);
        }
    }

    fn refuse(&mut self, refusal: &str) {
        let said = self.reply.refusal.get_or_insert_default();
        said.push_str(refusal);
    }
}

/// An id that a service made, which we only repeat: text or a number.
pub(crate) fn opaque_id(id: &RawValue) -> Result<String, CallError> {
    let json = id.get();
    let id = if json.starts_with('"') {
        text(json)?
    } else {
        json.to_owned()
    };
    if is_usable_id(&id) && !json.starts_with(['{', '[']) {
        Ok(id)
    } else {
        Err(CallError::Malformed(
            "it names a conversation with no usable id",
        ))
    }
}

/// Whether an id can be a part of a path, in which dots alone would lead elsewhere.
pub(crate) fn is_usable_id(id: &str) -> bool {
    const BYTES_MAX: usize = 512;
    !matches!(id, "" | "." | "..") && id.len() <= BYTES_MAX
}

fn text(json: &str) -> Result<String, CallError> {
    serde_json::from_str(json).map_err(|_| CallError::Malformed("a text in it is damaged"))
}

/// The last value that is not null wins, and it is kept as it was written.
fn replace(kept: &mut Option<Box<RawValue>>, new: Option<&RawValue>) {
    if let Some(new) = new {
        *kept = Some(new.to_owned());
    }
}
