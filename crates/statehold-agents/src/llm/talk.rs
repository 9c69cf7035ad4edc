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

use crate::model::{Said, Wish};
use crate::runner::{StepKind, recorded_step, told_of};
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

    pub(crate) fn push_text(&mut self, role: Role, text: &str) {
        self.push(&Message::text(role, text));
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

    /// What came before in this task.
    pub(crate) fn push_history(&mut self, items: &[StoredItem]) {
        for turn in items.chunk_by(|a, b| a.placed.request == b.placed.request) {
            Turn::read(turn).put(self);
        }
    }

    /// What a caller without a session brings along: only what users and assistants said. Instructions
    /// of the caller are words of the user here, and tools that it says were called were not called by us.
    pub(crate) fn push_brought(&mut self, data: Option<&Raw>) {
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
            if !text.is_empty() {
                self.push_text(role, &text);
            }
        }
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
                    let step = recorded_step(stored);
                    let said = step.filter(|(kind, _)| *kind == StepKind::Model);
                    let said = said.and_then(|(_, said)| serde_json::from_str(said.get()).ok());
                    if let Some(said) = said {
                        turn.has_steps = true;
                        turn.said.push(Part::Model(said));
                    }
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
mod tests {
    use serde_json::json;
    use statehold_core::digest::{BodyRef, PayloadKey};
    use statehold_core::ids::{RequestId, TaskId};
    use statehold_core::item::{CallOutcome, Item, PlacedItem, Visibility};
    use statehold_core::time::Timestamp;
    use statehold_engine::kept::to_bytes;
    use uuid::Uuid;

    use super::*;

    fn id(n: u128) -> ItemId {
        ItemId::from_uuid(Uuid::from_u128(n))
    }

    /// The n-th item of a request.
    fn item(request: u128, n: u128, kind: ItemKind, body: &ItemBody) -> StoredItem {
        let body = to_bytes(body);
        StoredItem {
            placed: PlacedItem {
                task: TaskId::from_uuid(Uuid::from_u128(1)),
                request: RequestId::from_uuid(Uuid::from_u128(request)),
                is_root: true,
                rewound: false,
                item: Item {
                    attachments: Vec::new(),
                    body: BodyRef::of(&PayloadKey::from_bytes([0; 32]), &body),
                    call: None,
                    id: id(n),
                    kind,
                    role: None,
                    seq: 1,
                    visibility: Visibility::Hidden,
                },
            },
            at: Timestamp::from_micros(0),
            body: Some(body),
            attachments: Vec::new(),
        }
    }

    fn said(request: u128, role: Role, text: &str) -> StoredItem {
        let body = ItemBody {
            content: Some(raw(&text)),
            ..ItemBody::default()
        };
        let mut said = item(request, 0, ItemKind::Message, &body);
        said.placed.item.role = Some(role);
        said
    }

    fn call(request: u128, n: u128, call_id: Option<&str>) -> StoredItem {
        let body = ItemBody {
            name: Some("look".to_owned()),
            call_id: call_id.map(str::to_owned),
            arguments: Some(raw(&json!({"n": 1}))),
            ..ItemBody::default()
        };
        let mut call = item(request, n, ItemKind::ToolCall, &body);
        call.placed.item.call = Some(CallMark::Call {
            gated: false,
            idempotent: false,
        });
        call
    }

    fn result(request: u128, of: u128, text: &str) -> StoredItem {
        let body = ItemBody {
            result: Some(raw(&text)),
            ..ItemBody::default()
        };
        let mut result = item(request, 100 + of, ItemKind::ToolResult, &body);
        result.placed.item.call = Some(CallMark::Result {
            call: id(of),
            executed: None,
            outcome: CallOutcome::Ran,
        });
        result
    }

    fn told(items: &[StoredItem]) -> Vec<Value> {
        let mut talk = Talk::default();
        talk.push_history(items);
        let messages = talk.messages().iter();
        messages
            .map(|message| serde_json::from_str(message.get()).expect("JSON"))
            .collect()
    }

    /// What an endpoint insists on: results directly behind their calls, one for each, no others.
    #[track_caller]
    fn assert_whole(messages: &[Value]) {
        let mut open: Vec<&Value> = Vec::new();
        for message in messages {
            if message["role"] == "tool" {
                assert_eq!(
                    open.first(),
                    Some(&&message["tool_call_id"]),
                    "{messages:?}"
                );
                open.remove(0);
                assert!(message["content"].is_string(), "{message}");
            } else {
                assert!(open.is_empty(), "{messages:?}");
                let calls = message["tool_calls"].as_array();
                open.extend(calls.into_iter().flatten().map(|call| &call["id"]));
            }
        }
        assert!(open.is_empty(), "{messages:?}");
    }

    #[test]
    fn what_another_kind_of_agent_did_is_told_with_its_calls() {
        let messages = told(&[
            said(1, Role::User, "Go"),
            call(1, 1, Some("a")),
            call(1, 2, None),
            result(1, 2, "second"),
            result(1, 1, "first"),
            said(1, Role::Assistant, "Gone."),
        ]);
        assert_whole(&messages);
        let contents: Vec<&Value> = messages.iter().map(|message| &message["content"]).collect();
        assert_eq!(
            contents,
            [
                &json!("Go"),
                &json!(null),
                &json!("first"),
                &json!("second"),
                &json!("Gone.")
            ]
        );
    }

    #[test]
    fn broken_pairs_are_made_whole() {
        let mut erased = call(2, 7, Some("z"));
        erased.body = None;
        let messages = told(&[
            said(1, Role::User, "Go"),
            call(1, 1, Some("a")),
            call(1, 2, Some("b")),
            result(1, 2, "second"),
            result(1, 9, "of nothing"),
            said(2, Role::User, "Again"),
            erased,
            result(2, 7, "of something erased"),
            said(2, Role::Assistant, "Yes."),
        ]);
        assert_whole(&messages);
        let contents: Vec<&Value> = messages.iter().map(|message| &message["content"]).collect();
        assert_eq!(
            contents,
            [
                &json!("Go"),
                &json!(null),
                &json!(NO_RESULT),
                &json!("second"),
                &json!("Again"),
                &json!("Yes."),
            ]
        );
    }

    #[test]
    fn what_stands_before_the_input_is_told_and_is_nothing_a_step_is_made_from() {
        let (mut plain, mut with) = (Talk::default(), Talk::default());
        plain.push_input(&Words::plain("Hi"), None);
        with.push_input(&Words::plain("Hi"), Some("Paris. "));
        assert_eq!(plain.bytes(), with.bytes());
        assert!(with.messages()[0].get().contains("Paris. Hi"));
    }
}
