//! A conversation service with the API of the reference example.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use hyper::Method;
use serde_json::{Value, json};

use crate::chat::{stop, words};
use crate::locked;
use crate::response::{BodyStep, ScriptedResponse, event};
use crate::service::SeenRequest;

/// One conversation.
#[derive(Debug, Clone)]
pub struct Conversation {
    /// Its id.
    pub id: String,
    /// Its title.
    pub title: String,
    /// The messages of the user.
    pub messages: Vec<String>,
}

/// All conversations of the service.
#[derive(Debug, Default)]
pub struct Conversations {
    /// The oldest first.
    pub all: Mutex<Vec<Conversation>>,
    /// Chats in flight, and their highest number so far.
    in_flight: Arc<AtomicUsize>,
    most_in_flight: AtomicUsize,
}

impl Conversations {
    /// The highest number of chats in flight so far.
    pub fn most_in_flight(&self) -> usize {
        self.most_in_flight.load(Ordering::SeqCst)
    }

    /// Begins a conversation or lists all. None if the request is a message to one.
    pub fn begin_or_list(&self, seen: &SeenRequest) -> Option<ScriptedResponse> {
        if seen.path.ends_with("/chat") {
            return None;
        }
        assert!(seen.path.ends_with("/conversations"), "{seen:?}");
        let mut all = locked(&self.all);
        if seen.method == Method::GET {
            let listed = all.iter().rev();
            let listed: Vec<Value> = listed
                .map(|one| json!({"id": one.id, "title": one.title}))
                .collect();
            return Some(ScriptedResponse::json(200, &Value::Array(listed)));
        }
        assert_eq!(seen.method, Method::POST, "{seen:?}");
        let id = format!("c-{}", all.len() + 1);
        let title = seen.json()["title"].as_str().expect("a title").to_owned();
        all.push(Conversation {
            id: id.clone(),
            title: title.clone(),
            messages: Vec::new(),
        });
        let begun = json!({"id": id, "title": title, "messages": []});
        Some(ScriptedResponse::json(200, &begun))
    }

    /// Answers any request. Answers to messages are derived from all messages of the conversation.
    pub fn respond(
        &self,
        seen: &SeenRequest,
        says: impl Fn(&[String]) -> String,
    ) -> ScriptedResponse {
        if let Some(response) = self.begin_or_list(seen) {
            return response;
        }
        let mut all = locked(&self.all);
        let id = seen.path.trim_end_matches("/chat").rsplit('/').next();
        let Some(found) = all.iter_mut().find(|one| Some(one.id.as_str()) == id) else {
            return ScriptedResponse::json(404, &json!({"detail": "Conversation not found"}));
        };
        let message = &seen.json()["message"]["content"];
        found
            .messages
            .push(message.as_str().expect("text").to_owned());
        let mut body = vec![event(&json!({"conversation_id": id}))];
        body.extend(words(&says(&found.messages)));
        let in_flight = 1 + self.in_flight.fetch_add(1, Ordering::SeqCst);
        self.most_in_flight.fetch_max(in_flight, Ordering::SeqCst);
        body.push(BodyStep::Decrement(Arc::clone(&self.in_flight)));
        body.push(stop());
        ScriptedResponse::events(body)
    }
}
