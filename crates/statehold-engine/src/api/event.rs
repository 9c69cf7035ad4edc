//! Events: the history of a session as a framework keeps it that runs its agents itself.
//!
//! An event is opaque JSON. It is stored as an item of the session, with its JSON as `data`; its text, if a person
//! or a model said it, is the content of a visible message, in the same item if clients read all of the event. The events of a session come back in the order in which
//! they were appended. The revision of the session tells whether a copy of it is stale; no time does.

mod read;
mod repeat;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::command::{Command, RecordTurn, Rejection, StatePatch, StateSet};
use statehold_core::digest::BodyRef;
use statehold_core::hold::DecisionKind;
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_core::item::{ItemKind, NewItem, Role as ItemRole, Visibility};
use statehold_core::name::Name;
use statehold_core::scope::{MergePolicy, Scope, StateKey};

use super::annotation;
use super::hold::{self, DecisionInput};
use super::json::{Raw, raw_text};
use super::session::{self, SessionInput, SessionView};
use crate::answer_memory::AnswerMemory;
use crate::bodies::{EventMark, ItemBody};
use crate::caller::{Caller, Role};
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{self, Act, require_decider_role};
use crate::holds::HoldDetail;

pub use read::{
    EventQuery, EventView, SessionHistory, find, list, read, read_head, user_state, values_before,
};

/// The agent whose history the events of a session are. No key works for it, and no other agent remembers them.
pub(crate) const RECORDER: &str = "statehold.adk";
/// The longest id of an event, in bytes.
const ID_BYTES_MAX: usize = 256;
/// The most bytes of an event with its text. Both are stored, and an answer has room for this many and the state.
const EVENT_BYTES_MAX: usize = 6 * 1024 * 1024;
/// How often an append without an expected revision is tried while other writers change the session.
const ATTEMPTS_MAX: usize = 64;

/// An event to append.
#[derive(Debug, Clone)]
pub struct EventInput {
    /// The id that its framework gave it.
    pub id: String,
    /// The run of its framework that it belongs to.
    pub invocation: String,
    /// The time that its framework gave it, in seconds since 1970.
    pub time: f64,
    /// The event itself.
    pub json: Raw,
    /// Who said what, if it is a message.
    pub message: Option<(ItemRole, String)>,
    /// State to write along. Unknown prefixes are part of the key; `temp:` keys are dropped.
    pub state: BTreeMap<String, Raw>,
}

/// An answer to a hold that comes as an event.
#[derive(Debug, Clone)]
pub struct HoldAnswer {
    /// The hold.
    pub hold: HoldId,
    /// Approve or reject.
    pub is_confirmed: bool,
    /// The digest of the action that the person saw.
    pub digest: Option<String>,
}

/// A stored event.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventWritten {
    /// The event as it is stored.
    pub event: Raw,
    /// The latest time of the session's events, in seconds since 1970.
    #[serde(rename = "lastUpdateTime")]
    pub last_update: f64,
    /// The revision that stored it.
    pub revision: u64,
}

/// Refuses a caller who may not append events in any session.
///
/// # Errors
///
/// If the caller lacks the role.
pub fn require_recorder(caller: &Caller) -> Result<(), EngineError> {
    rights::require_role(caller, &Act::Record)
}

/// Refuses a caller who may not delete any session.
///
/// # Errors
///
/// If the caller lacks the role.
pub fn require_deleter(caller: &Caller) -> Result<(), EngineError> {
    rights::require_role(caller, &Act::ManageSession)
}

/// Creates a session with events, and with state in which unknown prefixes are part of the keys; `temp:` keys are
/// dropped. If an event is refused, no session is left. A repeat under an idempotency key appends nothing again.
///
/// # Errors
///
/// If the caller may not, the input or an event is malformed, or the name is taken.
pub async fn create(
    engine: &Engine,
    call: &Call,
    input: SessionInput,
    (state, events): (BTreeMap<String, Raw>, Vec<EventInput>),
) -> Result<Receipt<SessionView>, EngineError> {
    for event in &events {
        require_event(event)?;
    }
    let (own, call) = (engine.clone(), call.clone());
    let create = async move {
        let made =
            session::create_with(&own, &call, &input, |payloads| state_patch(state, payloads));
        let created = made.await?;
        if created.replayed {
            return Ok(created);
        }
        let session = created.view.id;
        let call = Call::by(call.caller);
        for event in events {
            if let Err(error) = append(&own, &call, session, event).await {
                // The caller hears of no session, so none is left.
                session::delete(&own, &call, session).await?;
                return Err(error);
            }
        }
        Ok(created)
    };
    engine.run_to_end(create).await
}

/// Appends an event. The same event again changes nothing, and gets the answer of the first time.
///
/// # Errors
///
/// If the caller may not, the session has another revision than the call expects, or its history has another event
/// with this id.
pub async fn append(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    event: EventInput,
) -> Result<Receipt<EventWritten>, EngineError> {
    append_with_questions(engine, call, session, Vec::new(), event).await
}

/// Appends an event behind others that it answers, all or none.
async fn append_with_questions(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    questions: Vec<EventInput>,
    event: EventInput,
) -> Result<Receipt<EventWritten>, EngineError> {
    let (write, _) = SessionWrite::authorised(engine, call, session, &Act::Record).await?;
    require_event(&event)?;
    let recorder = EventRecorder {
        write,
        questions,
        event,
    };
    for _ in 0..ATTEMPTS_MAX {
        let revision = engine.durable_state(session).await?.revision;
        let request = match recorder.repeated().await? {
            repeat::Lookup::Repeated(receipt) => return Ok(receipt),
            repeat::Lookup::New(request) => request,
        };
        // Another call may append the same event meanwhile: then this one sees it when it looks again.
        let expected = call.if_revision.unwrap_or(revision);
        match recorder.commit(request, expected).await {
            Err(EngineError::RevisionMismatch { .. }) if expected == revision => {}
            other => return other,
        }
    }
    Err(EngineError::TooMany(
        "the session changes too fast to append to; try again",
    ))
}

/// Decides the holds that an event answers, and appends the event behind the events that questions. A repeat decides
/// nothing again. An event that would be refused, or a hold that the caller may not decide, is refused before the
/// first decision; several holds are decided one after the other.
///
/// # Errors
///
/// As [`append`] and [`hold::decide`].
pub async fn answer(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    (questions, event): (Vec<EventInput>, EventInput),
    answers: Vec<HoldAnswer>,
    memory: &dyn AnswerMemory,
) -> Result<Receipt<EventWritten>, EngineError> {
    let (write, _) = SessionWrite::authorised(engine, call, session, &Act::Record).await?;
    require_decider_role(&call.caller)?;
    require_event(&event)?;
    if let Some(key) = call.key
        && let Some(kept) = engine.kept_answer(key).await?
    {
        return kept.parse();
    }
    let recorder = EventRecorder {
        write,
        questions: Vec::new(),
        event: event.clone(),
    };
    if let repeat::Lookup::Repeated(receipt) = recorder.repeated().await? {
        return Ok(receipt);
    }
    recorder.require_writable_state().await?;
    let mut decisions: Vec<(HoldDetail, DecisionInput)> = Vec::new();
    for answer in answers {
        let shown = engine.hold_in(memory, &call.caller, answer.hold).await?;
        if shown.session.id != session {
            return Err(EngineError::NotFound);
        }
        if decisions
            .iter()
            .any(|(known, _)| known.hold.id == answer.hold)
        {
            let detail = "an event answers each request for a confirmation once";
            return Err(EngineError::invalid("event", detail));
        }
        hold::require_decider(shown.why_not.as_ref(), shown.closed.is_some())?;
        let decision = answer.into_decision();
        require_digest(&shown, &decision)?;
        decisions.push((shown, decision));
    }
    let mut deciding = Call {
        key: None,
        ..call.clone()
    };
    // The key of a decision outlives a crash between the decision and the event.
    let key = format!("event {}", event.id);
    for (shown, decision) in decisions {
        hold::decide_shown(engine, &deciding, Some(&key), &shown, decision).await?;
        // The first decision was made on the revision that the caller knew; the rest follows from it.
        deciding.if_revision = None;
    }
    let call = Call {
        if_revision: None,
        ..call.clone()
    };
    append_with_questions(engine, &call, session, questions, event).await
}

impl HoldAnswer {
    fn into_decision(self) -> DecisionInput {
        let decision = if self.is_confirmed {
            DecisionKind::Approve
        } else {
            DecisionKind::Reject
        };
        DecisionInput {
            decision,
            digest: self.digest,
            args: None,
            content: None,
            comment: None,
            reason: None,
        }
    }
}

/// Refuses an approval of another action than the stored one, as the core does: before the first of several decisions.
fn require_digest(shown: &HoldDetail, decision: &DecisionInput) -> Result<(), EngineError> {
    match (shown.hold.digest, decision.digest()?) {
        (Some(expected), Some(given)) if given != expected => {
            Err(Rejection::DigestMismatch { expected }.into())
        }
        (Some(_), None) if decision.decision == DecisionKind::Approve => {
            Err(Rejection::DigestMissing.into())
        }
        _ => Ok(()),
    }
}

/// Reads the holds that an event of this session answers.
///
/// # Errors
///
/// If the caller may not see one of them, or it belongs to another session.
pub async fn answered_holds(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    answers: &[HoldAnswer],
    memory: &dyn AnswerMemory,
) -> Result<Vec<hold::HoldView>, EngineError> {
    let mut holds = Vec::new();
    for answer in answers {
        let hold = hold::read(engine, caller, answer.hold, memory).await?;
        if hold.session_id != session {
            return Err(EngineError::NotFound);
        }
        holds.push(hold);
    }
    Ok(holds)
}

/// Appends one event to one session.
struct EventRecorder<'a> {
    write: SessionWrite<'a>,
    /// Events that the event answers, to be stored before it.
    questions: Vec<EventInput>,
    event: EventInput,
}

impl EventRecorder<'_> {
    /// Refuses an event whose state the caller may not write, or that does not fit its schemas.
    async fn require_writable_state(&self) -> Result<(), EngineError> {
        let mut payloads = self.write.payloads.clone();
        let state = state_patch(self.event.state.clone(), &mut payloads)?;
        rights::require_scopes(&self.write.call.caller, &state)?;
        let (engine, caller) = (self.write.engine, &self.write.call.caller);
        engine.require_patch_fits(caller, &state, &payloads).await
    }

    /// Commits the event as the request with this id.
    async fn commit(
        &self,
        request: RequestId,
        expected: u64,
    ) -> Result<Receipt<EventWritten>, EngineError> {
        let (engine, session) = (self.write.engine, self.write.session);
        let call = Call {
            if_revision: Some(expected),
            ..self.write.call.clone()
        };
        let mut write = SessionWrite {
            call: &call,
            ..self.write.clone()
        };
        let mut last_update = read::last_update(engine, session).await?;
        let is_open = !call.caller.has(Role::Worker);
        let mut items = Vec::new();
        for event in self.questions.iter().chain([&self.event]) {
            last_update = last_update.max(event.time);
            let mark = EventMark {
                id: event.id.clone(),
                time: event.time,
                last_update,
                invocation: event.invocation.clone(),
                is_open,
            };
            items.extend(items_of(event, &mark, &mut write.payloads));
        }
        let command = Command::RecordTurn(RecordTurn {
            agent: recorder_name(),
            request: Some(request),
            items,
            state: state_patch(self.event.state.clone(), &mut write.payloads)?,
        });
        let event = write.payloads.shown(&self.event.json);
        let view = |made: &DecidedCommit<'_>| {
            Some(EventWritten {
                event: event.clone(),
                last_update,
                revision: made.record.content.seq,
            })
        };
        write.commit(&command, view).await
    }
}

fn recorder_name() -> Name {
    RECORDER.parse().expect("a fixed name is a name")
}

/// The items of an event. One whose message clients read, and the rest of which they do not, has two: the message stays
/// when hidden payloads are erased.
fn items_of(event: &EventInput, mark: &EventMark, payloads: &mut Payloads) -> Vec<NewItem> {
    let data = Some(event.json.clone());
    let mut put = |content: Option<Raw>, data: Option<Raw>| {
        let body = ItemBody {
            content,
            data,
            event: Some(mark.clone()),
            ..ItemBody::default()
        };
        payloads.put_item(&body)
    };
    match &event.message {
        Some((role, text)) if mark.is_open => {
            vec![NewItem::message(*role, put(Some(raw_text(text)), data))]
        }
        Some((role, text)) => {
            let hidden = hidden_note(put(None, data));
            vec![
                hidden,
                NewItem::message(*role, put(Some(raw_text(text)), None)),
            ]
        }
        None => vec![hidden_note(put(None, data))],
    }
}

fn hidden_note(body: BodyRef) -> NewItem {
    NewItem {
        kind: ItemKind::Note,
        visibility: Visibility::Hidden,
        role: None,
        body,
        attachments: Vec::new(),
        call: None,
    }
}

fn require_event(event: &EventInput) -> Result<(), EngineError> {
    let is_id =
        |id: &str| (1..=ID_BYTES_MAX).contains(&id.len()) && !id.chars().any(char::is_control);
    if !is_id(&event.id) {
        let detail = "`id` of an event is 1 to 256 bytes without control characters";
        return Err(EngineError::invalid("id", detail));
    }
    let text = event.message.as_ref().map_or(0, |(_, text)| text.len());
    if event.json.get().len() + text > EVENT_BYTES_MAX {
        let (limit, max) = ("bytes of an event with its text", EVENT_BYTES_MAX as u64);
        return Err(Rejection::Limit { limit, max }.into());
    }
    if !event.time.is_finite() {
        let detail = "`timestamp` of an event is a number of seconds";
        return Err(EngineError::invalid("timestamp", detail));
    }
    Ok(())
}

fn state_patch(
    state: BTreeMap<String, Raw>,
    payloads: &mut Payloads,
) -> Result<StatePatch, EngineError> {
    let mut patch = StatePatch::default();
    for (text, value) in state {
        let bad = |detail: String| EngineError::BadStateKey {
            key: Some(text.chars().take(64).collect()),
            detail,
        };
        if text.starts_with(annotation::KEY_PREFIX) {
            let prefix = annotation::KEY_PREFIX;
            let detail =
                format!("keys that begin with `{prefix}` are annotations; use another key");
            return Err(bad(detail));
        }
        let key = StateKey::lenient(&text).map_err(|error| bad(error.to_string()))?;
        let value = value.get().as_bytes().to_vec();
        if key.scope() == Scope::Temp {
            continue;
        }
        let value = payloads.put_value(&key, value);
        let merge = MergePolicy::Replace;
        patch.set.push(StateSet { key, value, merge });
    }
    Ok(patch)
}
