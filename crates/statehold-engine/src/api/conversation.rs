//! A conversation as the phases of a pipeline read it: the messages that a session had at a revision and, for the
//! phases of a turn, the answers of the phases before them. Nothing else that is hidden is ever in it.

use std::collections::BTreeSet;

use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::item::{ItemKind, Role, Visibility};
use statehold_core::request::RequestOutcome;
use statehold_core::session::SessionState;
use statehold_store::{PageLimit, StoreError, StoredItem, StoredRecord};

use super::item::{ItemView, MessageView};
use super::past;
use crate::bodies::{ItemBody, message_in, parse, payload};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::leased::continued_by;
use crate::phases::{PHASE_STEP, PhaseEnd, PhaseStatus, PhaseStep};
use crate::read::StoredRequest;

/// The newest answers of phases that are looked at.
const ANSWERS_MAX: usize = 256;
/// The newest items of a pipeline that are looked at.
const ITEMS_MAX: usize = 8_192;
const ITEMS_PER_PAGE: usize = 200;
/// How many coordinators a turn may be below, and how many failed attempts before it.
const CHAIN_MAX: usize = 64;

/// Which messages of a conversation.
#[derive(Debug, Clone, Copy)]
pub struct ConversationPlace {
    /// The revision that has them.
    pub revision: u64,
    /// Also the answers of phases that this turn has had by then, and the turns that it is a phase of.
    pub turn: Option<RequestId>,
    /// Only messages before this `seq`.
    pub before: Option<u64>,
}

/// Messages of one revision, oldest first.
#[derive(Debug)]
pub struct ConversationPage {
    /// The messages.
    pub messages: Vec<MessageView>,
    /// The messages before them end before this `seq`. None if there are none.
    pub next: Option<u64>,
    /// Whether answers of phases or annotations did not fit.
    pub is_cut: bool,
}

/// The newest messages of a place that fit the limit. Answers of phases may take as many bytes again.
///
/// # Errors
///
/// If the caller may not read the session or has no token of the turn, or the session has no such revision.
pub async fn messages(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    place: ConversationPlace,
    limit: PageLimit,
) -> Result<ConversationPage, EngineError> {
    let within = (place.before, limit);
    let page = past::messages(engine, caller, session, place.revision, within).await;
    let (page, next) = page.map_err(|error| match error {
        EngineError::UnknownRevision { first, current, .. } => EngineError::UnknownRevision {
            name: "rev",
            first,
            current,
        },
        error => error,
    })?;
    let mut found = ConversationPage {
        messages: page.messages,
        next,
        is_cut: page.annotations_cut,
    };
    let Some(turn) = place.turn else {
        return Ok(found);
    };
    let state = engine.readable_conversation(caller, session).await?;
    if caller.phase.and_then(|phase| phase.turn) != Some(turn) {
        return Err(EngineError::NotFound);
    }
    let first = match (found.next, found.messages.first()) {
        (Some(_), Some(first)) => first.seq,
        _ => 0,
    };
    let range = first..place.before.unwrap_or(u64::MAX);
    let mut answers = AnswerReader {
        engine,
        state: &state,
        revision: place.revision,
        bytes_left: limit.bytes,
        messages: Vec::new(),
        is_cut: false,
    };
    answers.add_turns(turn).await?;
    found.is_cut |= answers.is_cut;
    let fitting = answers.messages.into_iter();
    found
        .messages
        .extend(fitting.filter(|answer| range.contains(&answer.seq)));
    found.messages.sort_by_key(|message| message.seq);
    Ok(found)
}

/// The answers of phases that ended before a revision.
struct AnswerReader<'a> {
    engine: &'a Engine,
    state: &'a SessionState,
    revision: u64,
    bytes_left: u64,
    messages: Vec<MessageView>,
    is_cut: bool,
}

/// The ends of the phases of a turn, newest first.
#[derive(Default)]
struct RecordedPhases {
    ended: Vec<PhaseEnd>,
    /// The phases whose answers are messages of the transcript.
    shown: BTreeSet<String>,
    /// Whether there are more.
    is_cut: bool,
}

impl AnswerReader<'_> {
    /// Adds the answers of a turn, and of each turn that it is a phase of.
    async fn add_turns(&mut self, turn: RequestId) -> Result<(), EngineError> {
        let mut next = Some(turn);
        for _ in 0..CHAIN_MAX {
            let Some(turn) = next else { break };
            let request = self.engine.find_request(self.state, turn).await?;
            self.add_answers(&request).await?;
            next = request.parent();
        }
        Ok(())
    }

    /// Adds the answers of one turn, newest first, until no more fit.
    async fn add_answers(&mut self, turn: &StoredRequest) -> Result<(), EngineError> {
        let recorded = self.recorded_phases(turn).await?;
        // A phase has answered when the next one starts: its step is recorded by then, so that a revision always
        // has the same answers.
        let mut live = self.state.requests.values();
        let running = live.find(|live| live.parent == Some(turn.id()));
        // A phase may have ended since the state was read.
        let has_ended = |id| recorded.ended.iter().any(|end| end.request_id == id);
        let running = running.filter(|live| !has_ended(live.id));
        let mut next_started = running.map(|live| live.started_by);
        let mut count = 0;
        self.is_cut |= recorded.is_cut;
        for end in recorded.ended {
            let child = self.engine.inner().store.ended_request(end.request_id);
            let Some(child) = child.await? else { continue };
            let is_known = next_started.is_some_and(|started| started <= self.revision);
            next_started = Some(child.started_by);
            let has_answered = end.status == PhaseStatus::Completed
                && child.outcome == RequestOutcome::Completed
                && !recorded.shown.contains(end.phase.as_str());
            if !is_known || !has_answered {
                continue;
            }
            count += 1;
            if count > ANSWERS_MAX {
                self.is_cut = true;
                break;
            }
            let Some(record) = self.record(child.ended_by).await? else {
                self.is_cut = true;
                break;
            };
            let (ids, phase) = ((child.task, child.id), end.phase.as_str());
            self.messages.extend(answer_in(&record, ids, phase));
        }
        Ok(())
    }

    /// A record with its payloads, if they still fit.
    async fn record(&mut self, revision: u64) -> Result<Option<StoredRecord>, EngineError> {
        let limit = PageLimit {
            entries: 1,
            bytes: self.bytes_left,
        };
        let (store, before) = (&self.engine.inner().store, revision.saturating_sub(1));
        let records = match store.records(self.state.session, before, limit).await {
            Ok(records) => records,
            Err(StoreError::PageTooSmall { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let record = records.into_iter().next();
        let bytes = record.as_ref().map_or(0, StoredRecord::bytes);
        self.bytes_left = self.bytes_left.saturating_sub(bytes);
        Ok(record)
    }

    /// Reads the steps of a turn, and of the failed attempts that it continues.
    async fn recorded_phases(&self, turn: &StoredRequest) -> Result<RecordedPhases, EngineError> {
        let session = self.state.session;
        let attempts = self.attempts(turn).await?;
        let mut recorded = RecordedPhases::default();
        let (mut before, mut left) = (None, ITEMS_MAX);
        while left > 0 {
            let (engine, task) = (self.engine, turn.task());
            let entries = left.min(ITEMS_PER_PAGE);
            let page = engine.task_items(session, task, before, entries).await?;
            left = left.saturating_sub(page.items.len().max(1));
            for item in &page.items {
                if !attempts.contains(&item.placed.request) {
                    return Ok(recorded);
                }
                recorded.add(item);
            }
            before = page.next;
            if before.is_none() {
                return Ok(recorded);
            }
        }
        recorded.is_cut = true;
        Ok(recorded)
    }

    /// A turn, and the failed ones that it continues.
    async fn attempts(&self, turn: &StoredRequest) -> Result<Vec<RequestId>, EngineError> {
        let mut attempts = vec![turn.id()];
        let mut started_by = turn.started_by();
        for _ in 0..CHAIN_MAX {
            let record = self.engine.record_head(self.state.session, started_by);
            let record = record.await?;
            let last = attempts[attempts.len() - 1];
            let Some(continued) = record.and_then(|record| continued_by(&record, last)) else {
                break;
            };
            let request = self.engine.find_request(self.state, continued).await?;
            started_by = request.started_by();
            attempts.push(continued);
        }
        Ok(attempts)
    }
}

impl RecordedPhases {
    fn add(&mut self, stored: &StoredItem) {
        /// A step of a coordinator, if it is one of a phase.
        #[derive(serde::Deserialize)]
        struct Step {
            step: String,
            result: PhaseStep,
        }
        let item = &stored.placed.item;
        let body: ItemBody = parse(stored.body.as_deref());
        match item.kind {
            ItemKind::Step => {
                let data = body.data.as_ref().map(|data| data.get());
                let step = data.and_then(|data| serde_json::from_str::<Step>(data).ok());
                let step = step.filter(|step| step.step == PHASE_STEP);
                self.ended.extend(step.and_then(|step| step.result.ended));
            }
            ItemKind::Message
                if stored.placed.is_root
                    && item.visibility == Visibility::Visible
                    && item.role == Some(Role::Assistant) =>
            {
                self.shown.extend(body.name);
            }
            _ => {}
        }
    }
}

/// The answer of a request, as a message of its phase.
fn answer_in(
    record: &StoredRecord,
    (task, request): (TaskId, RequestId),
    phase: &str,
) -> Option<MessageView> {
    let content = &record.record.content;
    let item = message_in(&content.events, request, Role::Assistant)?;
    let attachments = item.attachments.iter();
    let attachments = attachments.map(|file| payload(record, file.body).map(<[u8]>::to_vec));
    let attachments: Vec<_> = attachments.collect();
    let body = payload(record, item.body)?;
    let at = content.at.into();
    let view = ItemView::of_parts(item, (task, request), at, Some(body), &attachments);
    Some(MessageView {
        name: Some(phase.to_owned()),
        ..MessageView::of_item(view)
    })
}
