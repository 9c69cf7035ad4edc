//! The conversation of a call without a session, as the agent gets it. A caller can make up every message, so an agent
//! that does not trust its callers gets the texts and files of user and assistant, and a state only if this server
//! sealed it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_engine::api::json::{Raw, raw_bytes, to_body};

use super::files::AttachmentIn;
use super::legacy_state::{MalformedState, legacy_state};
use super::request::{CompletionsIn, CustomIn};
use crate::chat::{CarriedText, StateOpener};

/// Parameters that are passed on to a chat service.
const PASSED: &[&str] = &[
    "frequency_penalty",
    "function_call",
    "functions",
    "logit_bias",
    "max_completion_tokens",
    "max_tokens",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "reasoning_effort",
    "response_format",
    "seed",
    "stop",
    "temperature",
    "tool_choice",
    "tools",
    "top_p",
    "verbosity",
];

/// The conversation, and the parameters to pass on.
#[derive(Debug, Serialize)]
pub(crate) struct CallerMessages<'a> {
    /// The messages before the last.
    history: Cow<'a, [Raw]>,
    /// The last message, if it is more than the text of a user.
    #[serde(skip_serializing_if = "Option::is_none")]
    last: Option<Cow<'a, RawValue>>,
    passthrough: BTreeMap<String, Raw>,
    /// Of a client of DIAL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dial: Option<&'a RawValue>,
}

/// How an agent gets the messages of a caller.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallerRights {
    /// Whether it gets the parameters of the call too.
    pub(crate) passes: bool,
    /// Whether it gets the messages as they were sent.
    pub(crate) is_trusted: bool,
    /// Whether it gets the states of coordinators as it wrote them itself.
    pub(crate) takes_states: bool,
}

impl<'a> CallerMessages<'a> {
    /// The messages of a call. `left_out` gets the kinds of parts that do not reach the agent.
    pub(crate) fn of(
        (chat, body): (&'a CompletionsIn, &[u8]),
        is_plain: bool,
        rights: CallerRights,
        states: StateOpener<'_>,
        left_out: &mut BTreeSet<&'static str>,
    ) -> Self {
        let mut passthrough: BTreeMap<String, Raw> = BTreeMap::new();
        if rights.passes {
            passthrough = serde_json::from_slice(body).unwrap_or_default();
            passthrough
                .retain(|name, value| PASSED.contains(&name.as_str()) && value.get() != "null");
        }
        let mut reader = CallerReader {
            states,
            takes_states: rights.takes_states,
            left_out,
        };
        let (last, history) = match chat.messages.split_last() {
            Some((last, history)) => (Some(last).filter(|_| !is_plain), history),
            None => (None, &[][..]),
        };
        let (last, history) = if rights.is_trusted {
            (
                last.map(|last| Cow::Borrowed(&**last)),
                reader.trusted(history),
            )
        } else {
            let last = last.and_then(|last| reader.untrusted(last));
            // The newest states are opened first.
            let kept = history.iter().rev().filter_map(|one| reader.untrusted(one));
            let mut kept: Vec<Raw> = kept.collect();
            kept.reverse();
            (last.map(Cow::Owned), Cow::Owned(kept))
        };
        Self {
            history,
            last,
            passthrough,
            dial: None,
        }
    }
}

/// A message of a caller, as far as it is read.
#[derive(Debug, Deserialize)]
struct MessageIn {
    #[serde(default)]
    role: String,
    content: Option<Raw>,
    custom_content: Option<Raw>,
    tool_calls: Option<Raw>,
    function_call: Option<Raw>,
}

/// A message for an agent that does not trust its callers.
#[derive(Debug, Serialize)]
struct MessageOut {
    role: String,
    content: Option<Raw>,
    #[serde(skip_serializing_if = "CustomOut::is_empty")]
    custom_content: CustomOut,
}

#[derive(Debug, Default, Serialize)]
struct CustomOut {
    #[serde(skip_serializing_if = "Option::is_none")]
    attachments: Option<Vec<AttachmentIn>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<Raw>,
}

impl CustomOut {
    fn is_empty(&self) -> bool {
        self.attachments.is_none() && self.state.is_none()
    }
}

/// Reads the messages of one call.
struct CallerReader<'a> {
    states: StateOpener<'a>,
    /// Whether legacy states are taken apart.
    takes_states: bool,
    left_out: &'a mut BTreeSet<&'static str>,
}

impl CallerReader<'_> {
    /// The text and the files of a message of user or assistant, with the state that this server sealed.
    fn untrusted(&mut self, message: &Raw) -> Option<Raw> {
        let Ok(message) = serde_json::from_str::<MessageIn>(message.get()) else {
            self.left_out.insert("malformed");
            return None;
        };
        let kind = match message.role.as_str() {
            "user" | "assistant" => None,
            "system" => Some("system"),
            "developer" => Some("developer"),
            "tool" | "function" => Some("tool"),
            _ => Some("malformed"),
        };
        if let Some(kind) = kind {
            self.left_out.insert(kind);
            return None;
        }
        let calls = [&message.tool_calls, &message.function_call];
        if calls.into_iter().any(Option::is_some) {
            self.left_out.insert("tool");
        }
        let custom = message.custom_content;
        let custom_content = CustomOut {
            attachments: custom.as_deref().and_then(attachments_in),
            state: custom.and_then(|custom| self.state_in(&message.role, &custom)),
        };
        let says_nothing = message.content.is_none() && custom_content.is_empty();
        let told = MessageOut {
            role: message.role,
            content: message.content,
            custom_content,
        };
        (!says_nothing).then(|| raw_bytes(&to_body(&told)))
    }

    /// The state of the agent in an answer of it. Any other state is left out.
    fn state_in(&mut self, role: &str, custom: &RawValue) -> Option<Raw> {
        let state = match CarriedText::of(custom) {
            // It names a session, and this call has none.
            Some(CarriedText::Reference(_)) => return None,
            Some(CarriedText::Sealed(text)) if role == "assistant" => self.states.open(&text),
            _ => None,
        };
        if state.is_none() && has_state(custom) {
            self.left_out.insert("state");
        }
        state
    }

    /// Messages as they were sent, with the states that this server sealed opened.
    fn trusted<'m>(&mut self, history: &'m [Raw]) -> Cow<'m, [Raw]> {
        let is_read = |message: &Raw| sealed_in(message).is_some();
        if !self.takes_states && !history.iter().any(is_read) {
            return Cow::Borrowed(history);
        }
        let opened = history.iter().rev().map(|message| self.opened(message));
        let mut opened: Vec<Raw> = opened.collect();
        opened.reverse();
        Cow::Owned(opened)
    }

    /// A message with its sealed state opened, or without it.
    fn opened(&mut self, message: &Raw) -> Raw {
        let Some((mut members, mut custom, text)) = sealed_in(message) else {
            return self.upgraded(message).unwrap_or_else(|| message.clone());
        };
        custom.remove("state");
        if let Some(state) = self.states.open(&text) {
            custom.insert("state".to_owned(), state);
        } else {
            self.left_out.insert("state");
        }
        members.insert("custom_content".to_owned(), raw_bytes(&to_body(&custom)));
        raw_bytes(&to_body(&members))
    }
}

impl CallerReader<'_> {
    /// A message whose legacy state is that of the agent itself. None if it has no such state.
    fn upgraded(&mut self, message: &Raw) -> Option<Raw> {
        let read: MessageIn = serde_json::from_str(message.get()).ok()?;
        let is_answer = self.takes_states && read.role == "assistant";
        let custom = read.custom_content.filter(|_| is_answer)?;
        let state = legacy_state(&custom)?;
        let mut members: Members = serde_json::from_str(message.get()).ok()?;
        let mut custom: Members = serde_json::from_str(custom.get()).ok()?;
        custom.remove("state");
        match state {
            Ok(state) => {
                let own = state.own.and_then(|own| RawValue::from_string(own).ok());
                custom.extend(own.map(|own| ("state".to_owned(), own)));
            }
            Err(MalformedState) => {
                self.left_out.insert("state");
            }
        }
        members.insert("custom_content".to_owned(), raw_bytes(&to_body(&custom)));
        Some(raw_bytes(&to_body(&members)))
    }
}

type Members = BTreeMap<String, Raw>;

/// The members of a message with a sealed state, those of its `custom_content`, and the sealed text.
fn sealed_in(message: &RawValue) -> Option<(Members, Members, String)> {
    let read: MessageIn = serde_json::from_str(message.get()).ok()?;
    let custom = read.custom_content?;
    let Some(CarriedText::Sealed(text)) = CarriedText::of(&custom) else {
        return None;
    };
    let members = serde_json::from_str(message.get()).ok()?;
    Some((members, serde_json::from_str(custom.get()).ok()?, text))
}

fn attachments_in(custom: &RawValue) -> Option<Vec<AttachmentIn>> {
    let custom: CustomIn = serde_json::from_str(custom.get()).ok()?;
    custom.attachments.filter(|files| !files.is_empty())
}

fn has_state(custom: &RawValue) -> bool {
    let members: Members = serde_json::from_str(custom.get()).unwrap_or_default();
    members
        .get("state")
        .is_some_and(|state| state.get() != "null")
}
