//! Reads the end of a session as its client was told it: turns with their answers, and their holds.

use std::collections::BTreeMap;

use serde_json::Value;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::item::{ItemKind, Role};
use statehold_core::request::RequestOutcome;
use statehold_core::time::Timestamp;
use statehold_store::{HoldOrder, StoredItem};

use super::Recall;
use super::message::{CarriedMessage, plain};
use crate::api::json::Raw;
use crate::api::turn::as_client;
use crate::api::turn::pause_text::hold_summary;
use crate::bodies::{AttachmentBody, ItemBody, parse, text_of, text_of_value};
use crate::caller::Caller;
use crate::error::EngineError;
use crate::holds::{HoldDetail, HoldFilter};
use crate::leased::continued_by;
use crate::read::{RequestDetail, own_page};

/// How many messages of a session are read, and how many at a time.
const MESSAGES_MAX: usize = 1_024;
const PAGE: usize = 64;
/// How many bytes of messages of a session are read before the comparison ends with those.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// How many open holds, and how many decided ones, of a session are read.
const HOLDS_MAX: usize = 200;

/// A turn as its client was told it.
pub(super) struct ClientTurn {
    pub(super) request: RequestId,
    /// The last request of the turn: another one, if it was continued after a failure.
    pub(super) last: RequestId,
    pub(super) input: CarriedMessage,
    pub(super) started_at: Timestamp,
    /// Messages that the client brought along when the session began.
    pub(super) context: Vec<CarriedMessage>,
    pub(super) answer: Option<String>,
}

/// The turns of some pages of messages, read from the newest message to the oldest. Keeps no payloads.
#[derive(Default)]
struct TurnReader {
    /// Newest first.
    turns: Vec<ClientTurn>,
    /// Answers whose input was not read yet.
    answers: BTreeMap<RequestId, String>,
}

impl TurnReader {
    fn push(&mut self, item: &StoredItem) {
        let request = item.placed.request;
        match (item.placed.item.kind, item.placed.item.role) {
            (ItemKind::Message, Some(Role::User)) => {
                let mut turn = ClientTurn::of(item);
                turn.answer = self.answers.remove(&request);
                // The first message of a request is its input.
                match self.turns.iter_mut().rfind(|turn| turn.request == request) {
                    Some(known) => {
                        turn.answer = known.answer.take().or(turn.answer);
                        *known = turn;
                    }
                    None => self.turns.push(turn),
                }
            }
            (ItemKind::Message, Some(Role::Assistant)) => {
                self.answers.entry(request).or_insert_with(|| {
                    let body: ItemBody = parse(item.body.as_deref());
                    plain(&body.content.as_deref().map(text_of).unwrap_or_default())
                });
            }
            _ => {}
        }
    }
}

impl ClientTurn {
    fn of(item: &StoredItem) -> Self {
        let body: ItemBody = parse(item.body.as_deref());
        let text = body.content.as_deref().map(text_of).unwrap_or_default();
        let files = item.attachments.iter();
        let files: Vec<AttachmentBody> = files.map(|file| parse(file.as_deref())).collect();
        Self {
            request: item.placed.request,
            last: item.placed.request,
            input: CarriedMessage::by_user(&text, &files),
            started_at: item.at,
            context: body.data.as_ref().map(context_in).unwrap_or_default(),
            answer: None,
        }
    }
}

/// The conversation that came with an input.
fn context_in(data: &Raw) -> Vec<CarriedMessage> {
    let mut data: Value = serde_json::from_str(data.get()).unwrap_or_default();
    let Value::Array(history) = data["history"].take() else {
        return Vec::new();
    };
    let carried = history.into_iter().map(|mut message| {
        let text = text_of_value(message["content"].take());
        if message["role"] == "user" {
            CarriedMessage::by_user(&text, &[])
        } else {
            CarriedMessage::by_assistant(&text)
        }
    });
    carried.collect()
}

/// The end of a session, as its client was told it.
pub(super) struct ClientTranscript<'a> {
    pub(super) recall: &'a Recall<'a>,
    reader: Caller,
    pub(super) session: SessionId,
    /// Oldest first.
    pub(super) turns: Vec<ClientTurn>,
    /// Whether the first of them is the first turn of the session.
    pub(super) is_whole: bool,
    /// Whether a message was taken for a part of an answer that an earlier process sent, which cannot be known.
    pub(super) is_guess: bool,
    /// Turns whose answer alone does not say what the client was told.
    details: BTreeMap<RequestId, RequestDetail>,
    /// The holds of the session, and of the sessions that it is a fork of.
    holds: BTreeMap<SessionId, Vec<HoldDetail>>,
    /// The words about the pauses of turns.
    pauses: BTreeMap<usize, Vec<String>>,
}

impl<'a> ClientTranscript<'a> {
    pub(super) fn new(recall: &'a Recall<'a>, session: SessionId) -> Self {
        Self {
            recall,
            reader: as_client(recall.caller),
            session,
            turns: Vec::new(),
            is_whole: false,
            is_guess: false,
            details: BTreeMap::new(),
            holds: BTreeMap::new(),
            pauses: BTreeMap::new(),
        }
    }

    /// Reads the turns from the newest back to some turns before a request, and returns the bytes of their
    /// messages.
    pub(super) async fn read(
        &mut self,
        request: RequestId,
        before: usize,
    ) -> Result<usize, EngineError> {
        let engine = self.recall.engine;
        let (mut read, mut messages, mut next, mut bytes) = (TurnReader::default(), 0, None, 0);
        loop {
            let page = own_page(PAGE, |page| {
                engine.transcript(&self.reader, self.session, next, page)
            });
            let page = page.await?;
            for item in &page.items {
                bytes += usize::try_from(item.payload_bytes()).unwrap_or(usize::MAX);
                read.push(item);
            }
            messages += page.items.len();
            next = page.next;
            let found = read.turns.iter().position(|turn| turn.request == request);
            let has_enough = found.is_some_and(|found| read.turns.len() > found + before + 1);
            let is_enough = messages >= MESSAGES_MAX || bytes >= BYTES_MAX;
            if next.is_none() || has_enough || is_enough {
                break;
            }
        }
        self.is_whole = next.is_none();
        self.turns = read.turns;
        self.turns.reverse();
        for (request, answer) in read.answers {
            self.answer_first_attempt(request, answer).await?;
        }
        Ok(bytes)
    }

    /// Gives the answer of a request to the turn that it continued.
    async fn answer_first_attempt(
        &mut self,
        last: RequestId,
        answer: String,
    ) -> Result<(), EngineError> {
        let request = self.first_attempt(last).await?;
        let mut turns = self.turns.iter_mut();
        if let Some(turn) = turns.find(|turn| turn.request == request) {
            (turn.last, turn.answer) = (last, Some(answer));
        }
        Ok(())
    }

    /// The first request of the turn that ended with a request.
    pub(super) async fn first_attempt(
        &mut self,
        last: RequestId,
    ) -> Result<RequestId, EngineError> {
        let mut request = last;
        while let Some(continued) = self.continued(request).await? {
            request = continued;
        }
        Ok(request)
    }

    /// The failed request that a request continued.
    async fn continued(&mut self, request: RequestId) -> Result<Option<RequestId>, EngineError> {
        let started = self.detail(request).await?.started.as_ref();
        Ok(started.and_then(|started| continued_by(&started.record, request)))
    }

    pub(super) async fn detail(
        &mut self,
        request: RequestId,
    ) -> Result<&RequestDetail, EngineError> {
        if !self.details.contains_key(&request) {
            let detail = self.recall.engine.request(&self.reader, request).await?;
            self.details.insert(request, detail);
        }
        Ok(&self.details[&request])
    }

    /// Whether a turn has ended without an answer.
    pub(super) async fn has_failed(&mut self, turn: usize) -> Result<bool, EngineError> {
        let last = self.turns[turn].last;
        let ended = self.detail(last).await?.request.ended();
        Ok(ended.is_some_and(|ended| ended.outcome != RequestOutcome::Completed))
    }

    /// The holds of a turn, open and decided.
    pub(super) async fn holds_of(&mut self, turn: usize) -> Result<Vec<&HoldDetail>, EngineError> {
        let request = self.turns[turn].request;
        // A turn that paused before the fork waits in the origin.
        let session = self.detail(request).await?.session.id;
        if !self.holds.contains_key(&session) {
            let mut holds = Vec::new();
            for decided in [false, true] {
                let filter = HoldFilter {
                    decided,
                    session: Some(session),
                    order: HoldOrder::Newest,
                    ..HoldFilter::default()
                };
                let Recall { engine, caller, .. } = self.recall;
                let page = own_page(HOLDS_MAX, |page| engine.holds(caller, &filter, None, page));
                holds.extend(page.await?.entries);
            }
            self.holds.insert(session, holds);
        }
        let is_its = |hold: &&HoldDetail| {
            let root = hold.lineage.first().map(|step| step.request);
            root == Some(request)
        };
        Ok(self.holds[&session].iter().filter(is_its).collect())
    }

    /// The words about the pauses of a turn.
    pub(super) async fn pauses_of(&mut self, turn: usize) -> Result<&[String], EngineError> {
        if !self.pauses.contains_key(&turn) {
            let holds = self.holds_of(turn).await?;
            let pauses = holds.iter().map(|hold| plain(&hold_summary(hold)));
            let pauses = pauses.collect();
            self.pauses.insert(turn, pauses);
        }
        Ok(&self.pauses[&turn])
    }
}
