//! Events of ADK: what the server reads of them, and events made of messages that no event is about.

use std::collections::BTreeMap;

use serde::de::{MapAccess, Visitor};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use statehold_core::ids::HoldId;
use statehold_core::item::Role;
use statehold_engine::api::event::{EventInput, EventView, HoldAnswer};
use statehold_engine::api::json::{Raw, raw_bytes, raw_text, to_body};
use uuid::Uuid;

use crate::http::problem::Problem;

/// Keys that live as long as an invocation.
const TEMP: &str = "temp:";
/// The function call that asks for a confirmation.
pub(super) const CONFIRMATION: &str = "adk_request_confirmation";
/// Function calls that ADK makes itself, to ask people.
const RESERVED_CALLS: [&str; 3] = [CONFIRMATION, "adk_request_credential", "adk_request_input"];

/// The parts of an event that the server reads. It keeps all of it as it came.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct EventFields {
    id: Option<String>,
    #[serde(alias = "invocation_id")]
    invocation_id: Option<String>,
    author: Option<String>,
    timestamp: Option<f64>,
    partial: Option<bool>,
    content: Option<Content>,
    actions: Option<BTreeMap<String, Raw>>,
    #[serde(alias = "long_running_tool_ids")]
    long_running_tool_ids: Option<Vec<String>>,
}

#[derive(Debug, Deserialize)]
struct Content {
    parts: Option<Vec<Part>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Part {
    text: Option<String>,
    thought: Option<bool>,
    #[serde(alias = "function_call")]
    function_call: Option<Function>,
    #[serde(alias = "function_response")]
    function_response: Option<Function>,
}

#[derive(Debug, Deserialize)]
struct Function {
    id: Option<String>,
    name: Option<String>,
    response: Option<Raw>,
}

/// The answer of a person to a request for a confirmation.
#[derive(Debug, Deserialize)]
struct ConfirmationResponse {
    confirmed: bool,
    payload: Option<Value>,
}

/// The same as text.
#[derive(Debug, Deserialize)]
struct ConfirmationText {
    response: String,
}

/// An event that a client sends.
pub(super) struct ClientEvent {
    /// To append. None for a piece of an answer that is still being written: those are not stored.
    pub(super) input: Option<EventInput>,
    /// The event itself, without `temp:` keys.
    pub(super) json: Raw,
    /// The holds that it answers.
    pub(super) answers: Vec<HoldAnswer>,
    /// The rewind that it is.
    pub(super) rewinds: Option<Rewind>,
    /// Parts that an event must not have when a session begins with it.
    pub(super) forbidden_in_initial_event: Option<&'static str>,
}

/// A rewind: an event that restores the state before an invocation.
pub(super) struct Rewind {
    /// The invocation.
    pub(super) before: String,
    /// The keys that the event writes.
    pub(super) keys: Vec<String>,
    delta_name: &'static str,
}

impl ClientEvent {
    pub(super) fn of(sent: &RawValue, path: &str, now: f64) -> Result<Self, Problem> {
        let invalid = |error: &dyn std::fmt::Display| {
            Problem::invalid(format!("`{path}` is no event: {error}")).with("path", path)
        };
        let fields: EventFields =
            serde_json::from_str(sent.get()).map_err(|error| invalid(&error))?;
        let forbidden_in_initial_event = fields.forbidden_in_initial_event();
        if fields.partial == Some(true) {
            return Ok(Self {
                input: None,
                json: sent.to_owned(),
                answers: Vec::new(),
                rewinds: None,
                forbidden_in_initial_event,
            });
        }
        fields.require_own_ids(path)?;
        let message = fields.message();
        let answers = fields.answers(path)?;
        let mut state = BTreeMap::new();
        let mut changed = None;
        let mut rewinds = None;
        if let Some((name, delta)) = fields.state_delta() {
            let delta = Members::of(delta).map_err(|error| invalid(&error))?;
            let (kept, temp) = delta.split(|key| !key.starts_with(TEMP));
            if !temp.0.is_empty() {
                changed = Some(with_delta(sent, name, &kept).map_err(|error| invalid(&error))?);
            }
            state.extend(kept.0);
            rewinds = fields.rewinds().map(|before| Rewind {
                before,
                keys: state.keys().cloned().collect(),
                delta_name: name,
            });
        }
        let time = fields.timestamp.unwrap_or(now);
        let mut id = fields.id.unwrap_or_default();
        if id.trim().is_empty() {
            let event = changed.take().map_or_else(|| Members::of(sent), Ok);
            let mut event = event.map_err(|error| invalid(&error))?;
            id = fresh_id("");
            event.set("id", raw_text(&id));
            event.set("timestamp", raw_bytes(&to_body(&time)));
            changed = Some(event);
        }
        let json = changed.map_or_else(|| sent.to_owned(), |event| raw_bytes(&to_body(&event)));
        Ok(Self {
            input: Some(EventInput {
                id,
                invocation: fields.invocation_id.unwrap_or_default(),
                time,
                json: json.clone(),
                message,
                state,
            }),
            json,
            answers,
            rewinds,
            forbidden_in_initial_event,
        })
    }

    /// Replaces values of the state that a rewind writes, in the event too.
    pub(super) fn restore(
        &mut self,
        rewind: &Rewind,
        values: BTreeMap<String, Raw>,
    ) -> Result<(), Problem> {
        let Some(input) = self.input.as_mut().filter(|_| !values.is_empty()) else {
            return Ok(());
        };
        input.state.extend(values);
        let delta = Members(input.state.clone().into_iter().collect());
        let event = with_delta(&self.json, rewind.delta_name, &delta);
        let event = event.map_err(|error| Problem::invalid(error.to_string()))?;
        self.json = raw_bytes(&to_body(&event));
        input.json = self.json.clone();
        Ok(())
    }
}

impl EventFields {
    /// The text that a person or a model said. Thoughts are not said.
    fn message(&self) -> Option<(Role, String)> {
        let parts = self.content.as_ref()?.parts.as_ref()?;
        let said = parts.iter().filter(|part| part.thought != Some(true));
        let texts: Vec<&str> = said.filter_map(|part| part.text.as_deref()).collect();
        let text = texts.join("\n");
        let role = match self.author.as_deref() {
            Some("user") => Role::User,
            _ => Role::Assistant,
        };
        (!text.is_empty()).then_some((role, text))
    }

    /// The holds that the event answers: those whose ids its responses to requests for confirmation have. Other ids
    /// are ADK's own.
    fn answers(&self, path: &str) -> Result<Vec<HoldAnswer>, Problem> {
        let parts = self.content.iter().flat_map(|content| &content.parts);
        let parts: Vec<&Part> = parts.flatten().collect();
        let mut answers: Vec<HoldAnswer> = Vec::new();
        for part in &parts {
            let Some(function) = &part.function_response else {
                continue;
            };
            let hold = function.id.as_deref().and_then(|id| id.parse().ok());
            let (Some(hold), Some(CONFIRMATION)) = (hold, function.name.as_deref()) else {
                continue;
            };
            let response = function.response.as_ref().map_or("null", |raw| raw.get());
            let Some(said) = confirmed(response) else {
                let detail = "a response to `adk_request_confirmation` is {\"confirmed\": true | false, \
                              \"payload\"?: …}, or that as text in `response`";
                return Err(Problem::invalid(detail).with("path", path));
            };
            let digest = said
                .payload
                .as_ref()
                .and_then(|payload| payload["digest"].as_str());
            answers.push(HoldAnswer {
                hold,
                is_confirmed: said.confirmed,
                digest: digest.map(str::to_owned),
            });
        }
        let is_mixed = parts.iter().any(|part| part.function_response.is_none());
        if !answers.is_empty() && (is_mixed || self.author.as_deref() != Some("user")) {
            let detail = "an event that answers a confirmation is by the author `user`, and all of its parts are \
                          function responses; send text in an event of its own";
            return Err(Problem::invalid(detail).with("path", path));
        }
        Ok(answers)
    }

    /// Refuses an event that asks for a confirmation in the name of the server, and one with two state deltas.
    fn require_own_ids(&self, path: &str) -> Result<(), Problem> {
        let parts = self.content.iter().flat_map(|content| &content.parts);
        let calls = parts
            .flatten()
            .filter_map(|part| part.function_call.as_ref());
        let calls = calls.filter_map(|call| call.id.as_deref());
        let long_running = self.long_running_tool_ids.iter().flatten();
        let mut ids = calls.chain(long_running.map(String::as_str));
        if ids.any(|id| id.parse::<HoldId>().is_ok()) {
            let detail = "the id of a call is that of a hold, which only the server asks about; use another id";
            return Err(Problem::invalid(detail).with("path", path));
        }
        let actions = self.actions.iter();
        let deltas = ["stateDelta", "state_delta"];
        let has_both = |actions: &BTreeMap<String, Raw>| {
            deltas.iter().all(|delta| actions.contains_key(*delta))
        };
        if actions.into_iter().any(has_both) {
            let detail = "an event has one state delta: `stateDelta` or `state_delta`";
            return Err(Problem::invalid(detail).with("path", path));
        }
        Ok(())
    }

    /// The state delta, and the name that it has in the event.
    fn state_delta(&self) -> Option<(&'static str, &Raw)> {
        let actions = self.actions.as_ref()?;
        let mut names = ["stateDelta", "state_delta"].into_iter();
        names.find_map(|name| Some((name, actions.get(name)?)))
    }

    /// The invocation before which the event restores the state.
    fn rewinds(&self) -> Option<String> {
        let actions = self.actions.as_ref()?;
        let names = ["rewindBeforeInvocationId", "rewind_before_invocation_id"];
        let target = names.into_iter().find_map(|name| actions.get(name))?;
        serde_json::from_str(target.get()).ok()
    }

    fn forbidden_in_initial_event(&self) -> Option<&'static str> {
        let is_empty = |value: &Raw| matches!(value.get(), "null" | "{}" | "[]");
        let calls = |part: &Part| {
            let functions = [&part.function_call, &part.function_response];
            let mut names = functions
                .into_iter()
                .flatten()
                .filter_map(|f| f.name.as_deref());
            names.any(|name| RESERVED_CALLS.contains(&name))
        };
        let mut parts = self
            .content
            .iter()
            .flat_map(|content| &content.parts)
            .flatten();
        if self
            .long_running_tool_ids
            .as_ref()
            .is_some_and(|ids| !ids.is_empty())
        {
            Some("long-running tool IDs")
        } else if self
            .actions
            .iter()
            .flatten()
            .any(|(_, value)| !is_empty(value))
        {
            Some("event actions")
        } else if parts.any(calls) {
            Some("ADK protocol function calls")
        } else {
            None
        }
    }
}

/// The answer of a person, in either of its forms.
fn confirmed(response: &str) -> Option<ConfirmationResponse> {
    let said = serde_json::from_str(response).ok();
    said.or_else(|| {
        let text: ConfirmationText = serde_json::from_str(response).ok()?;
        serde_json::from_str(&text.response).ok()
    })
}

/// The event with another state delta. Everything else stays as it is written.
fn with_delta(
    sent: &RawValue,
    delta_name: &str,
    delta: &Members,
) -> Result<Members, serde_json::Error> {
    let mut event = Members::of(sent)?;
    let actions = event.0.iter().find(|(name, _)| name == "actions");
    if let Some((_, actions)) = actions {
        let mut actions = Members::of(actions)?;
        actions.set(delta_name, raw_bytes(&to_body(delta)));
        event.set("actions", raw_bytes(&to_body(&actions)));
    }
    Ok(event)
}

/// An event about state that a client writes.
pub(super) fn state_event(delta: &BTreeMap<String, Raw>, now: f64) -> Raw {
    let actions = json!({"artifactDelta": {}, "requestedAuthConfigs": {},
        "requestedToolConfirmations": {}});
    let mut actions = Members::of(&raw_bytes(&to_body(&actions))).unwrap_or_default();
    actions.set("stateDelta", raw_bytes(&to_body(delta)));
    let event = json!({"invocationId": fresh_id("p-"), "author": "user", "id": fresh_id(""),
        "timestamp": now, "nodeInfo": {"path": ""}});
    let mut event = Members::of(&raw_bytes(&to_body(&event))).unwrap_or_default();
    event.set("actions", raw_bytes(&to_body(&actions)));
    raw_bytes(&to_body(&event))
}

/// The event as a reader may see it: as it came, or what was said.
pub(super) fn shown(view: EventView, agent: &str) -> Raw {
    if let Some(json) = view.json {
        return json;
    }
    let (author, role, text) = match view.message {
        Some((Role::User, text)) => ("user", "user", text),
        Some((Role::Assistant | Role::Tool, text)) => (agent, "model", text),
        None => (agent, "model", String::new()),
    };
    made_event(json!({
        "id": view.id,
        "invocationId": view.request.to_string(),
        "author": author,
        "timestamp": view.time,
        "content": {"role": role, "parts": [{"text": text}]},
    }))
}

/// An event that the server makes, with the members that every event has.
pub(super) fn made_event(mut event: Value) -> Raw {
    event["actions"] = json!({"stateDelta": {}, "artifactDelta": {}, "requestedAuthConfigs": {},
        "requestedToolConfirmations": {}});
    event["nodeInfo"] = json!({"path": ""});
    raw_bytes(&to_body(&event))
}

/// A random id.
fn fresh_id(prefix: &str) -> String {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).expect("the system has a random source");
    let id = uuid::Builder::from_random_bytes(bytes).into_uuid();
    format!("{prefix}{}", Uuid::hyphenated(id))
}

/// The members of an object in their order, each as it is written.
#[derive(Debug, Default)]
struct Members(Vec<(String, Raw)>);

impl Members {
    fn of(object: &RawValue) -> Result<Self, serde_json::Error> {
        serde_json::from_str(object.get())
    }

    fn set(&mut self, name: &str, value: Raw) {
        match self.0.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => self.0.push((name.to_owned(), value)),
        }
    }

    fn split(self, keeps: impl Fn(&str) -> bool) -> (Self, Self) {
        let (kept, others) = self.0.into_iter().partition(|(name, _)| keeps(name));
        (Self(kept), Self(others))
    }
}

impl Serialize for Members {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for (name, value) in &self.0 {
            map.serialize_entry(name, value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Members;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(InOrder)
    }
}
