//! A Conversational Analytics API, version v1.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hyper::Method;
use serde_json::{Value, json};

use crate::locked;
use crate::response::{BodyStep, ScriptedResponse, send};
use crate::service::SeenRequest;

/// Where the resources of the service are.
pub const PARENT: &str = "projects/p/locations/global";

/// One stored conversation.
#[derive(Debug, Clone)]
pub struct StoredConversation {
    /// Its whole name.
    pub name: String,
    /// The data agent that it is held with.
    pub agent: String,
    /// The messages of the user.
    pub messages: Vec<String>,
}

/// A service with stored conversations.
#[derive(Debug, Default)]
pub struct Analytics {
    /// The oldest first.
    pub all: Mutex<Vec<StoredConversation>>,
    /// Chats in flight, and their highest number so far.
    in_flight: Arc<AtomicUsize>,
    most_in_flight: AtomicUsize,
}

impl Analytics {
    /// The highest number of chats in flight so far.
    pub fn most_in_flight(&self) -> usize {
        self.most_in_flight.load(Ordering::SeqCst)
    }

    /// Creates a conversation or shows one. None if the request is a chat.
    pub fn create_or_get(&self, seen: &SeenRequest) -> Option<ScriptedResponse> {
        if is_chat(seen) {
            return None;
        }
        let mut all = locked(&self.all);
        if seen.method == Method::GET {
            let name = seen.path.strip_prefix("/v1/").expect("a version");
            let found = all.iter().any(|one| one.name == name);
            return Some(if found {
                ScriptedResponse::json(200, &json!({ "name": name }))
            } else {
                refused(404, "NOT_FOUND")
            });
        }
        assert!(is_creation(seen), "{seen:?}");
        let (id, request) = (
            parameter(seen, "conversationId"),
            parameter(seen, "requestId"),
        );
        assert!(is_id(&id) && request.len() == 36, "{seen:?}");
        let name = format!("{PARENT}/conversations/{id}");
        if all.iter().any(|one| one.name == name) {
            return Some(refused(409, "ALREADY_EXISTS"));
        }
        let agent = seen.json()["agents"][0]
            .as_str()
            .expect("an agent")
            .to_owned();
        all.push(StoredConversation {
            name: name.clone(),
            agent,
            messages: Vec::new(),
        });
        Some(ScriptedResponse::json(200, &json!({ "name": name })))
    }

    /// Answers any request. Answers to messages are derived from all messages of the conversation.
    pub fn respond(
        &self,
        seen: &SeenRequest,
        says: impl Fn(&[String]) -> String,
    ) -> ScriptedResponse {
        if let Some(response) = self.create_or_get(seen) {
            return response;
        }
        let body = seen.json();
        let reference = &body["conversationReference"];
        let mut all = locked(&self.all);
        let found = all
            .iter_mut()
            .find(|one| reference["conversation"] == one.name);
        let Some(found) = found else {
            return refused(404, "NOT_FOUND");
        };
        assert_eq!(reference["dataAgentContext"]["dataAgent"], found.agent);
        let messages = body["messages"].as_array().expect("messages");
        assert_eq!(messages.len(), 1, "only the new message: {body}");
        let text = messages[0]["userMessage"]["text"].as_str();
        found.messages.push(text.expect("a text").to_owned());
        let in_flight = 1 + self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.most_in_flight.fetch_max(in_flight, Ordering::SeqCst);
        let mut steps = steps(&[final_text(&says(&found.messages))]);
        // The caller may send the next message when it has the end of the array.
        let left = BodyStep::Decrement(Arc::clone(&self.in_flight));
        steps.insert(steps.len() - 1, left);
        ScriptedResponse::new(200, "application/json", steps)
    }
}

/// Whether a request is a chat.
pub fn is_chat(seen: &SeenRequest) -> bool {
    seen.method == Method::POST && seen.path == format!("/v1/{PARENT}:chat")
}

/// Whether a request creates a conversation.
pub fn is_creation(seen: &SeenRequest) -> bool {
    let conversations = format!("/v1/{PARENT}/conversations?");
    seen.method == Method::POST && seen.path.starts_with(&conversations)
}

/// A parameter of the query. Empty if there is none.
pub fn parameter(seen: &SeenRequest, name: &str) -> String {
    let query = seen.path.split_once('?').map(|(_, query)| query);
    let mut pairs = query.unwrap_or_default().split('&');
    let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_default().to_owned()
}

/// Whether a text may be the id of a conversation.
fn is_id(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    text.len() <= 63
        && text.starts_with(|first: char| first.is_ascii_lowercase())
        && text.bytes().all(is_plain)
        && !text.ends_with('-')
}

/// An error in the envelope of the API.
pub fn refused(code: u16, status: &str) -> ScriptedResponse {
    let error = json!({"code": code, "message": format!("it is {status}"), "status": status});
    ScriptedResponse::json(code, &json!({ "error": error }))
}

/// A text of the system.
pub fn text(kind: &str, parts: &[&str]) -> Value {
    json!({"systemMessage": {"text": {"parts": parts, "textType": kind}}})
}

/// A final text.
pub fn final_text(answer: &str) -> Value {
    text("FINAL_RESPONSE", &[answer])
}

/// An answer as the service streams it: pretty-printed elements, each flushed alone.
pub fn answer(messages: &[Value]) -> ScriptedResponse {
    ScriptedResponse::new(200, "application/json", steps(messages))
}

fn steps(messages: &[Value]) -> Vec<BodyStep> {
    let mut steps = Vec::new();
    for (at, message) in messages.iter().enumerate() {
        let before = if at == 0 { "[" } else { "\n,\n" };
        steps.push(send(&format!("{before}{message:#}")));
    }
    steps.push(send(if messages.is_empty() { "[]" } else { "]" }));
    steps
}
