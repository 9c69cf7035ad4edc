//! What an agent behind chat completions said: as it is recorded, and the answer that it makes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::limits::ITEM_ATTACHMENTS_MAX;
use statehold_engine::kept::{AttachmentBody, Raw};

use super::exchange::{SetAside, StateNote};
use super::pause::Paused;
use super::shared::{self, Exported, Told};
use super::state::StateRules;
use super::{Note, RecordedNote, of_record, recorded, trail};
use crate::chat::ChatReply;
use crate::spec::AgentSpec;
use crate::turn::{Answer, TurnError};
use crate::words::{Words, raw};

/// The agent's session, as far as a run knows it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Its {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) session: Option<String>,
    pub(super) generation: u32,
}

/// What the agent said, as it is recorded.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Said {
    content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finish_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<ToolCall>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared_context: Option<Raw>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    statehold: Option<Raw>,
    /// The session values that it was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    told: Option<Raw>,
    /// Its session that this was said in, and how many it has had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) its: Option<Its>,
    /// What it calls its side of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ids: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<RecordedNote>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ToolCall {
    id: String,
    #[serde(rename = "type")]
    kind: String,
    function: Function,
}

#[derive(Debug, Serialize, Deserialize)]
struct Function {
    name: String,
    arguments: String,
}

#[derive(Serialize)]
struct AnswerData<'a> {
    tool_calls: &'a [ToolCall],
}

impl Said {
    pub(super) fn of(reply: ChatReply, told: Option<Told>, notes: Vec<Note>) -> Self {
        let calls = reply.tool_calls.into_iter().map(|wish| ToolCall {
            id: wish.id,
            kind: "function".to_owned(),
            function: Function {
                name: wish.name,
                arguments: wish.arguments,
            },
        });
        Self {
            content: reply.content,
            refusal: reply.refusal,
            finish_reason: reply.finish_reason,
            tool_calls: calls.collect(),
            state: reply.state,
            shared_context: reply.shared_context,
            attachments: reply.attachments,
            statehold: reply.paused,
            told: told.map(|told| told.values),
            its: None,
            ids: trail::returned(&reply.headers),
            notes: recorded(notes),
        }
    }

    pub(super) fn pause(&self) -> Result<Option<Paused>, TurnError> {
        match &self.statehold {
            Some(said) => Paused::read(said),
            None => Ok(None),
        }
    }

    /// The session that the agent answered in.
    pub(super) fn session<'a>(&'a self, paused: Option<&'a Paused>) -> Option<&'a str> {
        let named = trail::session_of(&self.ids);
        named.or_else(|| paused.and_then(|paused| paused.session.as_deref()))
    }

    /// What the turn comes to. With `gives_back`, the state is kept for the next one; with `tells_calls`,
    /// whoever asked is told which tools the agent wants called.
    pub(super) async fn into_answer(
        self,
        spec: &AgentSpec,
        gives_back: bool,
        tells_calls: bool,
    ) -> Result<Answer, TurnError> {
        let said = self;
        let is_recreated = |note: &RecordedNote| note.name == "conversation_recreated";
        let was_recreated = said.notes.iter().any(is_recreated);
        let is_refusal = said.content.is_empty() && said.refusal.is_some();
        let text = match &said.refusal {
            Some(refusal) if is_refusal => refusal,
            _ => &said.content,
        };
        let annotations = [
            ("conversation_recreated", was_recreated),
            ("refusal", is_refusal),
        ];
        let annotations: BTreeMap<&str, bool> =
            annotations.into_iter().filter(|(_, is)| *is).collect();
        let calls = (!said.tool_calls.is_empty()).then(|| {
            raw(&AnswerData {
                tool_calls: &said.tool_calls,
            })
        });
        let words = Words {
            attachments: files(&said.attachments),
            annotations: (!annotations.is_empty()).then(|| raw(&annotations)),
            data: calls.clone().filter(|_| tells_calls),
            ..Words::plain(text)
        };
        let mut notes = of_record(said.notes);
        notes.extend(
            calls
                .filter(|_| !tells_calls)
                .map(|calls| ("tool_calls", calls)),
        );
        let mut kept = StateNote {
            state: said.state,
            attachments: said.attachments,
            told: said.told,
        };
        if let (Some(rules), Some(state)) = (StateRules::of(spec), &kept.state) {
            // Schemas and long states take their time.
            let looked_at = state.clone();
            let work = move || rules.apply(&looked_at);
            match tokio::task::spawn_blocking(work).await.map_err(unjudged)? {
                Ok(given) if given.was_reset => {
                    let note = raw(&BTreeMap::from([("tool_call_history", "was no list")]));
                    notes.push(("state_reset", note));
                }
                Ok(_) => {}
                Err(reason) => {
                    let reason = reason.as_str();
                    notes.push(("state_set_aside", raw(&SetAside { reason, state })));
                    kept.state = None;
                }
            }
        }
        let shared = said.shared_context.as_deref();
        let Exported { values, left_out } =
            shared::exported(&spec.export, shared, kept.state.as_deref());
        notes.extend(left_out);
        if gives_back {
            notes.extend(kept.note());
        }
        Ok(Answer {
            words,
            state: values,
            private: None,
            notes,
        })
    }
}

fn unjudged(_: tokio::task::JoinError) -> TurnError {
    let message =
        "the agent's state could not be looked at; ask again, and look into the log of the server";
    TurnError::failed("internal", message)
}

/// The files of an answer, as far as they say where they are.
fn files(attachments: &[Raw]) -> Vec<AttachmentBody> {
    let files = attachments.iter().filter_map(|file| {
        let file: AttachmentBody = serde_json::from_str(file.get()).ok()?;
        let is_somewhere =
            file.url.is_some() || file.reference_url.is_some() || file.data.is_some();
        is_somewhere.then_some(file)
    });
    files.take(ITEM_ATTACHMENTS_MAX).collect()
}
