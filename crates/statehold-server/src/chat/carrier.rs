//! Sealed values that clients carry between calls: references to a place in a session, and the state of an agent in
//! calls without a session. Only this server opens them, and only for the subject that it sealed them for.
//!
//! They travel in `custom_content.state` of an assistant message: `{"statehold": {"ref": "…"}}` or
//! `{"statehold": {"sealed": "…"}}`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::time::Timestamp;
use statehold_engine::api::json::{Raw, raw_bytes, to_body};
use statehold_engine::api::turn::{CarriedPlace, SessionReference, TurnHandle};
use uuid::Uuid;

use super::ChatCall;
use crate::http::call::App;

/// Purposes of the seals.
const REFERENCE: &str = "chat reference";
const STATE: &str = "agent state";
/// The bytes of a reference: session, request, revision, and the time at which it expires.
const REFERENCE_BYTES: usize = 16 + 16 + 8 + 8;
/// How long a reference is valid if the sessions of chat calls live for ever: a year.
const REFERENCE_MS: u64 = 365 * 86_400_000;
/// The longest state of an agent that a caller can keep, and how much of all states of a call is opened, in bytes.
/// An agent gets no more of a conversation.
pub(crate) const STATE_BYTES_MAX: usize = 1024 * 1024;
const OPENED_BYTES_MAX: usize = 4 * 1024 * 1024;
/// How hard states are compressed.
const ZSTD_LEVEL: i32 = 3;

/// Seals and opens the values that the client of a call carries.
#[derive(Debug, Clone)]
pub(crate) struct Carrier {
    /// Tenant, principal, user and agent.
    subject: [String; 4],
    agent: Name,
    /// Whether the client asks for references, or carries them already.
    pub(crate) wants_reference: bool,
    /// Whether the client carries the states of agents as they are, in the place of sealed values.
    pub(crate) is_plain: bool,
}

/// The member of `custom_content.state` that is ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum CarriedText {
    /// A reference to a place in a session.
    #[serde(rename = "ref")]
    Reference(String),
    /// The sealed state of an agent.
    Sealed(String),
}

impl CarriedText {
    /// The value in the `custom_content` of a message. None if the state there is not ours, or of another type.
    pub(crate) fn of(custom_content: &RawValue) -> Option<Self> {
        let state = member(custom_content, "state")?;
        serde_json::from_str(member(state, "statehold")?.get()).ok()
    }

    /// The value of `custom_content.state`.
    fn into_state(self) -> Raw {
        raw_bytes(&to_body(&BTreeMap::from([("statehold", self)])))
    }
}

/// A member of an object. None for other values.
fn member<'a>(object: &'a RawValue, name: &str) -> Option<&'a RawValue> {
    let mut members: BTreeMap<String, &RawValue> = serde_json::from_str(object.get()).ok()?;
    members.remove(name)
}

impl Carrier {
    /// The carrier of a call to an agent, of the user of the key, or of the one that the call names.
    pub(crate) fn new(
        call: &ChatCall,
        user: Option<&str>,
        agent: &Name,
        wants_reference: bool,
    ) -> Self {
        let caller = &call.asked.caller;
        let user = match caller.user {
            Some(user) => user.to_string(),
            None => call.user_name(user).to_owned(),
        };
        let principal = caller.principal.to_string();
        Self {
            subject: [
                caller.tenant.to_string(),
                principal,
                user,
                agent.to_string(),
            ],
            agent: agent.clone(),
            wants_reference,
            is_plain: false,
        }
    }

    fn bound_to(&self) -> [&str; 4] {
        self.subject.each_ref().map(String::as_str)
    }

    /// A reference to the answer of a turn, told at a revision. Its size does not depend on the conversation.
    pub(super) fn reference(&self, app: &App, turn: &TurnHandle, revision: u64) -> Raw {
        let lifetime = app.engine.policies().lifetimes.longest_chat_ms(&self.agent);
        let expires_at = app.engine.now().plus_ms(lifetime.unwrap_or(REFERENCE_MS));
        let mut content = [0; REFERENCE_BYTES];
        content[..16].copy_from_slice(turn.session.as_uuid().as_bytes());
        content[16..32].copy_from_slice(turn.request.as_uuid().as_bytes());
        content[32..40].copy_from_slice(&revision.to_be_bytes());
        content[40..].copy_from_slice(&expires_at.as_micros().to_be_bytes());
        let text = app.sealer.seal(REFERENCE, &self.bound_to(), &content);
        CarriedText::Reference(text).into_state()
    }

    /// The place of a reference, or why it names none.
    pub(crate) fn place(&self, app: &App, text: &str, is_last: bool) -> CarriedPlace {
        let content = app.sealer.open(REFERENCE, &self.bound_to(), text);
        let content = content.ok().and_then(|content| content.try_into().ok());
        let Some(content): Option<[u8; REFERENCE_BYTES]> = content else {
            return CarriedPlace::Unreadable;
        };
        let uuid = |at: usize| Uuid::from_bytes(bytes_at(&content, at));
        let expires_at = Timestamp::from_micros(i64::from_be_bytes(bytes_at(&content, 40)));
        if expires_at <= app.engine.now() {
            return CarriedPlace::Outdated;
        }
        let reference = SessionReference {
            session: SessionId::from_uuid(uuid(0)),
            request: RequestId::from_uuid(uuid(16)),
            revision: u64::from_be_bytes(bytes_at(&content, 32)),
        };
        CarriedPlace::Reference { reference, is_last }
    }

    /// The state of an agent for a caller who keeps the conversation. None if it is too long to be carried.
    pub(super) fn state(&self, app: &App, state: &RawValue) -> Option<Raw> {
        let state = state.get().as_bytes();
        if state.len() > STATE_BYTES_MAX {
            return None;
        }
        let small = zstd::bulk::compress(state, ZSTD_LEVEL).ok()?;
        let text = app.sealer.seal_document(STATE, &self.bound_to(), &small)?;
        Some(CarriedText::Sealed(text).into_state())
    }

    /// Opens the states that came with one call.
    pub(crate) fn states<'a>(&'a self, app: &'a App) -> StateOpener<'a> {
        StateOpener {
            carrier: self,
            app,
            room: OPENED_BYTES_MAX,
        }
    }
}

fn bytes_at<const N: usize>(content: &[u8], at: usize) -> [u8; N] {
    let bytes = content[at..at + N].try_into();
    bytes.expect("the content has a fixed length")
}

/// Opens the states of agents that came with one call, up to a bound.
pub(crate) struct StateOpener<'a> {
    carrier: &'a Carrier,
    app: &'a App,
    /// How many bytes may still be opened.
    room: usize,
}

impl StateOpener<'_> {
    /// The state in a sealed text, byte for byte as the agent wrote it. None if this server did not seal it for this
    /// subject and agent, or the states of the call are too long together.
    pub(crate) fn open(&mut self, text: &str) -> Option<Raw> {
        let (sealer, bound_to) = (&self.app.sealer, self.carrier.bound_to());
        let small = sealer.open_document(STATE, &bound_to, text).ok()?;
        let bytes_max = self.room.min(STATE_BYTES_MAX);
        let state = zstd::bulk::decompress(&small, bytes_max).ok()?;
        self.room -= state.len();
        RawValue::from_string(String::from_utf8(state).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_member_of_a_state_counts() {
        let carried = |text: &str| {
            let custom = RawValue::from_string(text.to_owned()).expect("JSON");
            CarriedText::of(&custom)
        };
        let reference = CarriedText::Reference("x".to_owned());
        let found = carried(r#"{"state":{"statehold":{"ref":"x"},"more":1}}"#);
        assert_eq!(found, Some(reference));
        let sealed = CarriedText::Sealed("y".to_owned());
        assert_eq!(
            carried(r#"{"state":{"statehold":{"sealed":"y"}}}"#),
            Some(sealed)
        );
        for other in [
            "7",
            "null",
            "{}",
            r#"{"state":null}"#,
            r#"{"state":"x"}"#,
            r#"{"state":["x"]}"#,
            r#"{"state":{"statehold":"x"}}"#,
            r#"{"state":{"statehold":{"ref":7}}}"#,
            r#"{"state":{"statehold":{"ref":"x","sealed":"y"}}}"#,
            r#"{"state":{"tool_call_history":[]}}"#,
        ] {
            assert_eq!(carried(other), None, "{other}");
        }
    }
}
