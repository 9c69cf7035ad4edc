//! The conversation as a model is told it: what was said and done before in this task, what a caller
//! without a session brings along, and this turn.
//!
//! The prompt is not part of it. Whatever comes from outside is a message of the user or the assistant,
//! so nothing can stand where the prompt stands.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use statehold_core::ids::ItemId;
use statehold_core::item::{CallMark, ItemKind, Role};
use statehold_engine::StoredItem;
use statehold_engine::kept::{AttachmentBody, ItemBody, Raw, parse};

use crate::gateway::shared_block;
use crate::history::newest;
use crate::model::{Said, Wish};
use crate::runner::{NotMade, StepKind, recorded_step, told_of};
use crate::words::{Words, raw, text_of};

/// What a model is told of a call whose result nobody recorded: an endpoint refuses calls without one.
pub(crate) const NO_RESULT: &str = "There is no record of what came of this call.";

/// Messages in the form of chat completions, without the prompt.
#[derive(Default)]
pub(crate) struct Talk {
    messages: Vec<Raw>,
    /// All of them as bytes: what a step is made from.
    bytes: Vec<u8>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'a str,
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Call<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_call_id: Option<&'a str>,
}

impl<'a> Message<'a> {
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

#[derive(Serialize)]
struct Call<'a> {
    id: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    function: Function<'a>,
}

#[derive(Serialize)]
struct Function<'a> {
    name: &'a str,
    arguments: &'a str,
}

impl Talk {
    pub(crate) fn messages(&self) -> &[Raw] {
        &self.messages
    }

    /// What a step that is asked this is made from.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn push(&mut self, message: &Message<'_>) {
        let message = raw(message);
        self.made_from(&message);
        self.messages.push(message);
    }

    fn made_from(&mut self, message: &Raw) {
        self.bytes.extend_from_slice(message.get().as_bytes());
        self.bytes.push(b'\n');
    }

    /// A message. In one of the user's, nothing stands first that looks like what only we may say.
    pub(crate) fn push_text(&mut self, role: Role, text: &str) {
        let guard = match role {
            Role::User | Role::Tool => shared_block(&[], text),
            Role::Assistant => None,
        };
        match guard {
            Some(guard) => self.push(&Message::text(role, &format!("{guard}{text}"))),
            None => self.push(&Message::text(role, text)),
        }
    }

    /// Earlier exchanges, as many of the newest as there is room for. Says how many are left out.
    pub(crate) fn push_exchanges(&mut self, exchanges: Vec<Self>) -> usize {
        let (kept, left_out) = newest(exchanges, |one| one.bytes.len());
        for one in kept {
            self.messages.extend(one.messages);
            self.bytes.extend(one.bytes);
        }
        left_out
    }

    /// What a model said, and what it was told of each call, in the order of the calls. What it was not
    /// told is made up for, so that every call has its result.
    pub(crate) fn push_said(&mut self, said: &Said, told: &[Option<&str>]) {
        let calls = said.tool_calls.iter().map(|wish| Call {
            id: &wish.id,
            kind: "function",
            function: Function {
                name: &wish.name,
                arguments: &wish.arguments,
            },
        });
        let calls: Vec<_> = calls.collect();
        let is_silent = said.text.is_empty();
        if is_silent && calls.is_empty() {
            return;
        }
        self.push(&Message {
            role: "assistant",
            content: (!is_silent).then_some(said.text.as_str()),
            tool_calls: calls,
            tool_call_id: None,
        });
        for (at, wish) in said.tool_calls.iter().enumerate() {
            let told = told.get(at).copied().flatten();
            self.push(&Message {
                role: "tool",
                content: Some(told.or(wish.error.as_deref()).unwrap_or(NO_RESULT)),
                tool_calls: Vec::new(),
                tool_call_id: Some(&wish.id),
            });
        }
    }

    /// What came before in this task. Says how many exchanges are left out.
    pub(crate) fn push_history(&mut self, items: &[StoredItem]) -> usize {
        let turns = items.chunk_by(|a, b| a.placed.request == b.placed.request);
        let turns = turns.map(|turn| {
            let mut told = Self::default();
            Turn::read(turn).put(&mut told);
            told
        });
        self.push_exchanges(turns.collect())
    }

    /// What a caller without a session brings along: only what users and assistants said. Instructions
    /// of the caller are words of the user here, and tools that it says were called were not called by us.
    /// Says how many exchanges are left out.
    pub(crate) fn push_brought(&mut self, data: Option<&Raw>) -> usize {
        let mut exchanges: Vec<Self> = Vec::new();
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
            let text = text_of_value(message.get("content"));
            if text.is_empty() {
                continue;
            }
            match exchanges.last_mut() {
                Some(exchange) if role == Role::Assistant => exchange.push_text(role, &text),
                _ => {
                    let mut exchange = Self::default();
                    exchange.push_text(role, &text);
                    exchanges.push(exchange);
                }
            }
        }
        self.push_exchanges(exchanges)
    }

    /// What is asked in this turn. What stands before it may be another each time the turn goes on, so it
    /// is nothing that a step is made from.
    pub(crate) fn push_input(&mut self, input: &Words, before: Option<&str>) {
        let text = with_files(input);
        let plain = raw(&Message::text(Role::User, &text));
        self.made_from(&plain);
        self.messages.push(match before {
            Some(before) => raw(&Message::text(Role::User, &format!("{before}{text}"))),
            None => plain,
        });
    }
}

/// What was recorded of one request.
#[derive(Default)]
struct Turn {
    said: Vec<Part>,
    /// What each call was told, by its item.
    told: HashMap<ItemId, String>,
    /// Items of calls by what the model calls them, in order.
    calls: Vec<(String, ItemId)>,
    has_steps: bool,
}

enum Part {
    Words(Role, String),
    Model(Said),
    /// A call that no step of a model is known for: another kind of agent made it.
    Call(ItemId, Wish),
}

impl Turn {
    fn read(items: &[StoredItem]) -> Self {
        let mut turn = Self::default();
        for stored in items {
            let item = &stored.placed.item;
            match (item.kind, item.call) {
                (ItemKind::Step, _) => {
                    turn.take_step(recorded_step(stored));
                }
                (ItemKind::ToolCall, _) => turn.take_call(stored),
                (ItemKind::ToolResult, Some(CallMark::Result { call, .. })) => {
                    let body: ItemBody = parse(stored.body.as_deref());
                    turn.told.insert(call, told_of(&body));
                }
                (ItemKind::Message, _) => {
                    let words = Words::of_item(stored).map(|words| with_files(&words));
                    if let Some((role, words)) = item.role.zip(words) {
                        turn.said.push(Part::Words(role, words));
                    }
                }
                (ItemKind::ToolResult | ItemKind::Note, _) => {}
            }
        }
        turn
    }

    fn take_step(&mut self, step: Option<(StepKind, Raw)>) {
        match step {
            Some((StepKind::Model, said)) => {
                if let Ok(said) = serde_json::from_str(said.get()) {
                    self.has_steps = true;
                    self.said.push(Part::Model(said));
                }
            }
            Some((StepKind::ToolResult, told)) => {
                if let Ok(NotMade { call, told }) = serde_json::from_str(told.get()) {
                    self.told.insert(call, told);
                }
            }
            _ => {}
        }
    }

    fn take_call(&mut self, stored: &StoredItem) {
        let id = stored.placed.item.id;
        let body: ItemBody = parse(stored.body.as_deref());
        let (Some(name), Some(arguments)) = (body.name, body.arguments) else {
            return;
        };
        let call_id = body.call_id.unwrap_or_else(|| id.to_string());
        self.calls.push((call_id.clone(), id));
        let wish = Wish {
            id: call_id,
            server: String::new(),
            original: String::new(),
            tool: name.clone(),
            name,
            arguments: arguments.get().to_owned(),
            gated: false,
            idempotent: false,
            only_reads: false,
            hidden: false,
            error: None,
        };
        self.said.push(Part::Call(id, wish));
    }

    fn put(self, talk: &mut Talk) {
        let mut calls = self.calls.iter();
        let mut parts = self.said.into_iter().peekable();
        while let Some(part) = parts.next() {
            match part {
                // What models said in steps is all of the answer, and names its calls.
                Part::Words(Role::Assistant, _) | Part::Call(..) if self.has_steps => {}
                Part::Words(role, words) => talk.push_text(role, &words),
                Part::Model(said) => {
                    // Calls are recorded in the order of the message that wants them, all or none.
                    let told: Vec<_> = said
                        .tool_calls
                        .iter()
                        .map(|wish| {
                            if wish.error.is_some() {
                                return None;
                            }
                            let (_, id) = calls.find(|(call, _)| *call == wish.id)?;
                            self.told.get(id).map(String::as_str)
                        })
                        .collect();
                    talk.push_said(&said, &told);
                }
                Part::Call(id, wish) => {
                    let mut said = Said::default();
                    let mut told = vec![self.told.get(&id).map(String::as_str)];
                    said.tool_calls.push(wish);
                    while let Some(Part::Call(id, wish)) =
                        parts.next_if(|next| matches!(next, Part::Call(..)))
                    {
                        told.push(self.told.get(&id).map(String::as_str));
                        said.tool_calls.push(wish);
                    }
                    talk.push_said(&said, &told);
                }
            }
        }
    }
}

/// What a message says, and where its files are.
pub(crate) fn with_files(words: &Words) -> String {
    let mut text = text_of(&words.content);
    for file in &words.attachments {
        text.push_str("\n\nAttachment: ");
        text.push_str(place_of(file));
    }
    text
}

fn place_of(file: &AttachmentBody) -> &str {
    let place = file.url.as_deref().or(file.reference_url.as_deref());
    place
        .or(file.title.as_deref())
        .unwrap_or("a file without a name")
}

/// The text of a message that a caller sends along: a text, or parts.
fn text_of_value(content: Option<&Value>) -> String {
    match content {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => {
            let texts = parts
                .iter()
                .filter_map(|part| part.get("text").and_then(Value::as_str));
            texts.collect::<Vec<_>>().join("\n")
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
