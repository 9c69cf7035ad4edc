//! Reply of an agent behind chat completions: its recorded form, and the turn's answer made from it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use statehold_core::limits::ITEM_ATTACHMENTS_MAX;
use statehold_core::scope::StateKey;
use statehold_engine::bodies::{AttachmentBody, Raw};

use super::exchange::{self, StateNote, set_aside};
use super::pause::RemotePause;
use super::remote_session::RemoteSession;
use super::shared::{self, ExportedState, SharedContext};
use super::state::StateRules;
use super::{RECREATED, call_headers, loss_notice};
use crate::chat::{ChatReply, is_usable_id};
use crate::message::{AgentMessage, raw, tool_call};
use crate::spec::AgentSpec;
use crate::turn::{TraceNote, TurnAnswer, TurnError};

/// Recipients of the state and the tool calls of a reply.
#[derive(Debug, Clone, Copy, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other"
)]
pub(super) struct ReplyUse {
    /// Store the state for the next call.
    pub(super) keeps_state: bool,
    /// Store the files for the next call too.
    pub(super) keeps_files: bool,
    /// Give the state to the caller, who keeps the conversation. The surface seals it.
    pub(super) tells_state: bool,
    /// Give the requested tool calls to the caller, who runs them.
    pub(super) tells_calls: bool,
}

/// The `data` of an answer whose caller keeps the conversation.
#[derive(Serialize)]
struct CallerData<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tool_calls: Option<&'a [Value]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<&'a Raw>,
}

/// Recorded reply of the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct AgentReply {
    content: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refusal: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    finish_reason: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared_context: Option<Raw>,
    /// `temp:` values that the agent writes. They are in memory only, so a replayed reply has none.
    #[serde(skip)]
    temp: Vec<(StateKey, Raw)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    statehold: Option<Raw>,
    /// State values that were sent with the message, without `temp:` values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    told: Option<Raw>,
    /// The session that the agent replied in, and its generation.
    #[serde(default, rename = "its", skip_serializing_if = "Option::is_none")]
    pub(super) remote: Option<RemoteSession>,
    /// Ids that the agent returned for its side of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ids: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<TraceNote>,
}

impl AgentReply {
    /// The reply to a message that was sent with `told`. `export` are the keys that the agent may write.
    pub(super) fn of(
        mut reply: ChatReply,
        export: &[StateKey],
        told: Option<SharedContext>,
        notes: Vec<TraceNote>,
    ) -> Self {
        let temp = shared::take_temp_values(export, &mut reply.shared_context);
        let calls = reply.tool_calls.iter();
        let calls = calls.map(|call| tool_call(&call.id, &call.name, &call.arguments));
        Self {
            content: reply.content,
            refusal: reply.refusal,
            finish_reason: reply.finish_reason,
            tool_calls: calls.collect(),
            state: reply.state,
            shared_context: reply.shared_context,
            temp,
            attachments: reply.attachments,
            statehold: reply.statehold,
            told: told.and_then(|told| told.kept),
            remote: None,
            ids: call_headers::returned_ids(&reply.headers),
            notes,
        }
    }

    pub(super) fn pause(&self) -> Result<Option<RemotePause>, TurnError> {
        match &self.statehold {
            Some(statehold) => RemotePause::read(statehold),
            None => Ok(None),
        }
    }

    /// The answer with which the agent paused, as it gets it back.
    pub(super) fn paused_message(&self) -> Raw {
        exchange::assistant_message(&raw(&self.content), &[], self.state.as_ref())
    }

    /// The session that the agent replied in: of the header, or of the body, because proxies rename headers.
    pub(super) fn session(&self) -> Option<String> {
        #[derive(Deserialize)]
        struct AnsweredIn {
            session: Option<String>,
        }
        let named = call_headers::session_of(&self.ids).map(str::to_owned);
        named.or_else(|| {
            let body: AnsweredIn = serde_json::from_str(self.statehold.as_ref()?.get()).ok()?;
            let fits = |id: &String| is_usable_id(id) && id.bytes().all(|b| b.is_ascii_graphic());
            body.session.filter(fits)
        })
    }

    /// Builds the turn's answer.
    pub(super) async fn into_answer(
        self,
        spec: &AgentSpec,
        reply_use: ReplyUse,
    ) -> Result<TurnAnswer, TurnError> {
        let reply = self;
        let was_recreated = reply.notes.iter().any(|note| note.name == RECREATED);
        let is_refusal = reply.content.is_empty() && reply.refusal.is_some();
        let text = match &reply.refusal {
            Some(refusal) if is_refusal => refusal,
            _ => &reply.content,
        };
        let annotations = [(RECREATED, was_recreated), ("refusal", is_refusal)];
        let annotations: BTreeMap<&str, bool> =
            annotations.into_iter().filter(|(_, is)| *is).collect();
        let mut attachments = usable_attachments(&reply.attachments);
        let left_out = attachments.len().saturating_sub(ITEM_ATTACHMENTS_MAX);
        attachments.truncate(ITEM_ATTACHMENTS_MAX);
        let mut message = AgentMessage {
            attachments,
            annotations: (!annotations.is_empty()).then(|| raw(&annotations)),
            ..AgentMessage::plain(&format!("{}{text}", notice_in(&reply.notes)))
        };
        let calls = Some(reply.tool_calls.as_slice()).filter(|calls| !calls.is_empty());
        let mut notes = reply.notes;
        if left_out > 0 {
            let count = BTreeMap::from([("count", left_out)]);
            notes.push(TraceNote::new("attachments_left_out", &count));
        }
        if let Some(untold) = calls.filter(|_| !reply_use.tells_calls) {
            let calls = BTreeMap::from([("tool_calls", untold)]);
            notes.push(TraceNote::new("tool_calls", &calls));
        }
        let mut kept = StateNote {
            state: reply.state,
            attachments: if reply_use.keeps_files {
                reply.attachments
            } else {
                Vec::new()
            },
            told: reply.told,
        };
        if let (Some(rules), Some(state)) = (StateRules::of(spec), &kept.state) {
            // Validating large states against schemas is slow, so do it off the async threads.
            let looked_at = state.clone();
            let work = move || rules.apply(&looked_at);
            match tokio::task::spawn_blocking(work)
                .await
                .map_err(state_check_failed)?
            {
                Ok(given) if given.was_reset => {
                    let note = BTreeMap::from([("tool_call_history", "was no list")]);
                    notes.push(TraceNote::new("state_reset", &note));
                }
                Ok(_) => {}
                Err(reason) => {
                    notes.push(set_aside(&reason, state));
                    kept.state = None;
                }
            }
        }
        let data = CallerData {
            tool_calls: calls.filter(|_| reply_use.tells_calls),
            state: kept.state.as_ref().filter(|_| reply_use.tells_state),
        };
        let tells_any = data.tool_calls.is_some() || data.state.is_some();
        message.data = tells_any.then(|| raw(&data));
        let shared = reply.shared_context.as_deref();
        let ExportedState {
            mut values,
            left_out,
        } = shared::export_values(&spec.export, shared, kept.state.as_deref());
        values.extend(reply.temp);
        notes.extend(left_out);
        if reply_use.keeps_state {
            notes.extend(kept.note());
        }
        Ok(TurnAnswer {
            state: values,
            notes,
            ..TurnAnswer::plain(message)
        })
    }
}

/// The sentence about a lost session that an answer begins with. Empty if the notes have none.
pub(super) fn notice_in(notes: &[TraceNote]) -> &'static str {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct LostSession {
        briefed: bool,
    }
    let lost = notes.iter().find(|note| note.name == RECREATED);
    lost.map_or("", |note| {
        let lost: LostSession = serde_json::from_str(note.data.get()).unwrap_or_default();
        loss_notice(lost.briefed)
    })
}

fn state_check_failed(_: tokio::task::JoinError) -> TurnError {
    let message = "the agent's state could not be validated; ask again, and check the server log";
    TurnError::failed("internal", message)
}

fn is_field(name: &str) -> bool {
    let fields = [
        "type",
        "title",
        "url",
        "reference_type",
        "reference_url",
        "data",
    ];
    fields.contains(&name)
}

/// Attachments of an answer that have a URL or data.
fn usable_attachments(attachments: &[Raw]) -> Vec<AttachmentBody> {
    let files = attachments.iter().filter_map(|file| {
        let file: BTreeMap<String, Value> = serde_json::from_str(file.get()).ok()?;
        // Agents may send further fields.
        let known = file.into_iter().filter(|(name, _)| is_field(name));
        let file: AttachmentBody = serde_json::from_value(known.collect()).ok()?;
        let has_source = file.url.is_some() || file.reference_url.is_some() || file.data.is_some();
        has_source.then_some(file)
    });
    files.collect()
}
