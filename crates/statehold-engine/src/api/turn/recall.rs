//! Finds the session of a chat client that carries nothing but messages.
//!
//! Such a client sends its whole conversation with every call. The requests that chat calls start are indexed
//! by a keyed digest of their message, so the last messages of a call name the sessions that it may continue.
//! A session fits if the messages of the call, read backwards, are the end of what the client was told in it.

use std::collections::BTreeMap;

use serde_json::Value;
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::item::{ItemKind, Role};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_core::session::Owner;
use statehold_store::{HoldOrder, StoredItem};

use super::pause_text::hold_summary;
use super::search::{CONTINUED_MS, is_answered_by};
use super::{DeliveryLog, as_client};
use crate::api::json::Raw;
use crate::bodies::{AttachmentBody, DecisionBody, ItemBody, parse, text_of, text_of_value};
use crate::caller::Caller;
use crate::commit::payloads::Payloads;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::Act;
use crate::holds::{HoldDetail, HoldFilter};
use crate::read::{RequestDetail, own_page};

/// How many requests with the message of a client are compared.
const CANDIDATES_MAX: usize = 32;
/// How many sessions that began with the same message are read: a repeat is about one of the newest.
const FIRST_MAX: usize = 4;
/// How many messages of the user are looked up. Answers to questions start no requests, so the newest message
/// may not be found.
const LOOKED_UP_MAX: usize = 8;
/// How many exchanges are compared, and how many messages of a session are read for it.
const EXCHANGES_MAX: usize = 64;
const MESSAGES_MAX: usize = 1_024;
/// How many bytes of messages of a session are read before the comparison ends with those, and of all sessions
/// of a call before it begins a new one.
const BYTES_MAX: usize = 8 * 1024 * 1024;
const CALL_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How many messages of a session are read at a time.
const PAGE: usize = 64;
/// How many messages of a session are read to see whether it has one turn only.
const FIRST_TURN_MAX: usize = 4;
/// How many open holds, and how many decided ones, of a session are read.
const HOLDS_MAX: usize = 200;

/// A message as clients repeat it: line ends and outer white space do not count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CarriedMessage {
    is_users: bool,
    text: String,
    /// Digests of the addresses or the bytes of its files.
    files: Vec<Digest>,
}

impl CarriedMessage {
    /// A message of the user.
    pub fn by_user(text: &str, files: &[AttachmentBody]) -> Self {
        let source = |file: &AttachmentBody| {
            let source = [&file.url, &file.reference_url, &file.data];
            let source = source.into_iter().flatten().next();
            Digest::sha256(source.map_or(b"".as_slice(), |source| source.as_bytes()))
        };
        Self {
            is_users: true,
            text: plain(text),
            files: files.iter().map(source).collect(),
        }
    }

    /// A message of the assistant.
    pub fn by_assistant(text: &str) -> Self {
        Self {
            is_users: false,
            text: plain(text),
            files: Vec::new(),
        }
    }

    /// The digest by which a request with this message is found. Only the same principal finds it, in the same
    /// app and with the same agent.
    pub(super) fn digest(
        &self,
        payloads: &Payloads,
        app: &Name,
        agent: &Name,
        principal: Principal,
    ) -> Digest {
        let principal = principal.to_string();
        let mut parts: Vec<&[u8]> = vec![
            b"chat",
            app.as_str().as_bytes(),
            agent.as_str().as_bytes(),
            principal.as_bytes(),
            self.text.as_bytes(),
        ];
        parts.extend(self.files.iter().map(|file| file.as_bytes().as_slice()));
        payloads.keyed_digest(&parts)
    }
}

fn plain(text: &str) -> String {
    text.replace("\r\n", "\n").trim().to_owned()
}

/// The conversation that a chat call carries.
#[derive(Debug)]
pub struct Conversation {
    /// The agent.
    pub agent: Name,
    /// The messages of user and assistant before the new one.
    pub earlier: Vec<CarriedMessage>,
    /// The new message.
    pub message: CarriedMessage,
    /// The `data` of the first input, if no session is found: the earlier messages for the agent.
    pub context: Option<Raw>,
    /// The idempotency key of the turn, without its fingerprint.
    pub key: Option<Digest>,
}

/// The session in which a conversation continues.
pub(super) enum RecalledSession {
    /// This session.
    Known(SessionId),
    /// A fork of this session at this revision.
    Fork(SessionId, u64),
    /// A new session.
    New,
}

/// How the conversation of a call fits a session.
enum Fit {
    /// The session has received the new message already, and its answer is owed.
    Repeat,
    /// The client knows everything that was said.
    Head,
    /// The session has later turns. It had this revision before the first of them.
    Past(u64),
}

/// Looks for the session of one call.
pub(super) struct Recall<'a> {
    pub(super) engine: &'a Engine,
    pub(super) log: &'a DeliveryLog,
    pub(super) caller: &'a Caller,
    pub(super) owner: &'a Owner,
    pub(super) payloads: &'a Payloads,
    pub(super) conversation: &'a Conversation,
}

impl Recall<'_> {
    /// The requests that began with a message, newest first.
    async fn requests_with(
        &self,
        message: &CarriedMessage,
    ) -> Result<Vec<(SessionId, RequestId)>, EngineError> {
        let (app, agent) = (&self.owner.app, &self.conversation.agent);
        let digest = message.digest(self.payloads, app, agent, self.caller.principal);
        let store = &self.engine.inner().store;
        Ok(store.chat_requests(digest, CANDIDATES_MAX).await?)
    }

    /// The session in which the conversation continues.
    pub(super) async fn find(&self) -> Result<RecalledSession, EngineError> {
        if let Some(key) = self.conversation.key
            && let Some(session) = self.engine.session_of_key(key).await?
        {
            return Ok(RecalledSession::Known(session));
        }
        let repeated = self.requests_with(&self.conversation.message).await?;
        let earlier = &self.conversation.earlier;
        if !earlier.iter().any(|message| message.is_users) {
            return self.find_first(repeated).await;
        }
        let (mut compared, mut bytes, mut head, mut past) = (0, 0, None, None);
        let users = (0..earlier.len()).rev().filter(|at| earlier[*at].is_users);
        for at in users.take(LOOKED_UP_MAX) {
            for (session, request) in self.requests_with(&earlier[at]).await? {
                compared += 1;
                if compared > CANDIDATES_MAX || bytes >= CALL_BYTES_MAX {
                    break;
                }
                let Some(fit) = self.fit(session, request, at, &mut bytes).await? else {
                    continue;
                };
                match fit {
                    Fit::Repeat => return Ok(RecalledSession::Known(session)),
                    Fit::Head => head = head.or(Some(session)),
                    Fit::Past(revision) => past = past.or(Some((session, revision))),
                }
                // Only a session with the new message can owe its answer.
                if repeated.is_empty() && head.is_some() {
                    break;
                }
            }
            if head.is_some() || past.is_some() {
                break;
            }
        }
        Ok(match (head, past) {
            (Some(session), _) => RecalledSession::Known(session),
            (None, Some((session, revision))) => RecalledSession::Fork(session, revision),
            (None, None) => RecalledSession::New,
        })
    }

    /// The session that a first message began, if its turn is live, its answer is owed, or it failed a short
    /// time ago.
    async fn find_first(
        &self,
        repeated: Vec<(SessionId, RequestId)>,
    ) -> Result<RecalledSession, EngineError> {
        let engine = self.engine;
        let reader = as_client(self.caller);
        for (session, request) in repeated.into_iter().take(FIRST_MAX) {
            let detail = match engine.request(&reader, request).await {
                Err(EngineError::NotFound) => continue,
                detail => detail?,
            };
            let said = own_page(FIRST_TURN_MAX, |page| {
                engine.transcript(&reader, session, None, page)
            });
            let said = turns_of(&said.await?.items).0;
            let is_only = detail.request.number() == 1 && said.len() == 1;
            if !is_only {
                continue;
            }
            let state = engine.durable_state(session).await?;
            let is_live = !state.requests.is_empty() || !self.log.owed_in(session).is_empty();
            let failed = state.tasks.values().find_map(|task| task.failed);
            let failed = match failed {
                Some(failed) => engine.inner().store.ended_request(failed).await?,
                None => None,
            };
            let may_continue =
                failed.is_some_and(|failed| failed.ended_at.plus_ms(CONTINUED_MS) >= engine.now());
            if is_live || may_continue || is_open(self.log, session, &detail) {
                return Ok(RecalledSession::Known(session));
            }
        }
        Ok(RecalledSession::New)
    }

    /// How the conversation fits a session in which the message `at` began a request. Adds the bytes of the
    /// messages it reads to `bytes`.
    async fn fit(
        &self,
        session: SessionId,
        request: RequestId,
        at: usize,
        bytes: &mut usize,
    ) -> Result<Option<Fit>, EngineError> {
        let may_start = self.engine.authorise(self.caller, session, &Act::Start);
        match may_start.await {
            Err(EngineError::NotFound) => return Ok(None),
            owner => owner?,
        };
        if self.engine.durable_state(session).await?.closed {
            return Ok(None);
        }
        let earlier = &self.conversation.earlier;
        let older = earlier[..at].iter().filter(|message| message.is_users);
        let mut told = ToldSession::new(self, session);
        *bytes += told.read(request, older.count().min(EXCHANGES_MAX)).await?;
        let Some(turn) = told.turns.iter().position(|turn| turn.request == request) else {
            return Ok(None);
        };
        let fits = told.follows(turn, &earlier[at + 1..]).await?
            && told.precedes(turn, &earlier[..at]).await?;
        if fits {
            told.fit_after(turn, &self.conversation.message)
                .await
                .map(Some)
        } else {
            Ok(None)
        }
    }
}

/// Whether a turn is live, or has ended with an answer that its client does not have.
fn is_open(log: &DeliveryLog, session: SessionId, detail: &RequestDetail) -> bool {
    let Some(end) = detail.request.ended() else {
        return true;
    };
    let started_at = detail.started_at();
    let id = detail.request.id();
    started_at.is_some_and(|started_at| log.is_owed(session, id, started_at, end.ended_at))
}

/// A turn as its client was told it.
struct ToldTurn {
    request: RequestId,
    /// The last request of the turn: another one, if it was continued after a failure.
    last: RequestId,
    input: CarriedMessage,
    /// Messages that the client brought along when the session began.
    context: Vec<CarriedMessage>,
    answer: Option<String>,
}

impl ToldTurn {
    fn of(item: &StoredItem) -> Self {
        let body: ItemBody = parse(item.body.as_deref());
        let text = body.content.as_deref().map(text_of).unwrap_or_default();
        let files = item.attachments.iter();
        let files: Vec<AttachmentBody> = files.map(|file| parse(file.as_deref())).collect();
        Self {
            request: item.placed.request,
            last: item.placed.request,
            input: CarriedMessage::by_user(&text, &files),
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
struct ToldSession<'a> {
    recall: &'a Recall<'a>,
    reader: Caller,
    session: SessionId,
    /// Oldest first.
    turns: Vec<ToldTurn>,
    /// Whether the first of them is the first turn of the session.
    is_whole: bool,
    /// Turns whose answer alone does not say what the client was told.
    details: BTreeMap<RequestId, RequestDetail>,
    holds: Option<Vec<HoldDetail>>,
}

impl<'a> ToldSession<'a> {
    fn new(recall: &'a Recall<'a>, session: SessionId) -> Self {
        Self {
            recall,
            reader: as_client(recall.caller),
            session,
            turns: Vec::new(),
            is_whole: false,
            details: BTreeMap::new(),
            holds: None,
        }
    }

    /// Reads the turns from the newest back to some turns before a request, and returns the bytes of their
    /// messages.
    async fn read(&mut self, request: RequestId, before: usize) -> Result<usize, EngineError> {
        let engine = self.recall.engine;
        let (mut items, mut next, mut bytes) = (Vec::new(), None, 0);
        loop {
            let page = own_page(PAGE, |page| {
                engine.transcript(&self.reader, self.session, next, page)
            });
            let page = page.await?;
            let bodies = page.items.iter().filter_map(|item| item.body.as_ref());
            bytes += bodies.map(Vec::len).sum::<usize>();
            items.extend(page.items);
            next = page.next;
            let (turns, continued) = turns_of(&items);
            self.turns = turns;
            for (request, answer) in continued {
                self.answer_first_attempt(request, answer).await?;
            }
            self.is_whole = next.is_none();
            let found = self.turns.iter().position(|turn| turn.request == request);
            let has_enough = found.is_some_and(|found| found > before);
            let is_enough = items.len() >= MESSAGES_MAX || bytes >= BYTES_MAX;
            if self.is_whole || has_enough || is_enough {
                return Ok(bytes);
            }
        }
    }

    /// Gives the answer of a request to the turn that it continued.
    async fn answer_first_attempt(
        &mut self,
        last: RequestId,
        answer: String,
    ) -> Result<(), EngineError> {
        let mut request = last;
        while let Some(continued) = continued_by(self.detail(request).await?) {
            request = continued;
        }
        let mut turns = self.turns.iter_mut();
        if let Some(turn) = turns.find(|turn| turn.request == request) {
            (turn.last, turn.answer) = (last, Some(answer));
        }
        Ok(())
    }

    async fn detail(&mut self, request: RequestId) -> Result<&RequestDetail, EngineError> {
        if !self.details.contains_key(&request) {
            let detail = self.recall.engine.request(&self.reader, request).await?;
            self.details.insert(request, detail);
        }
        Ok(&self.details[&request])
    }

    /// Whether a turn has ended without an answer.
    async fn has_failed(&mut self, turn: usize) -> Result<bool, EngineError> {
        let last = self.turns[turn].last;
        let ended = self.detail(last).await?.request.ended();
        Ok(ended.is_some_and(|ended| ended.outcome != RequestOutcome::Completed))
    }

    /// The holds of a turn, open and decided.
    async fn holds_of(&mut self, turn: usize) -> Result<Vec<&HoldDetail>, EngineError> {
        if self.holds.is_none() {
            let mut holds = Vec::new();
            for decided in [false, true] {
                let filter = HoldFilter {
                    decided,
                    session: Some(self.session),
                    order: HoldOrder::Newest,
                    ..HoldFilter::default()
                };
                let Recall { engine, caller, .. } = self.recall;
                let page = engine.holds(caller, &filter, None, HOLDS_MAX);
                holds.extend(page.await?.entries);
            }
            self.holds = Some(holds);
        }
        let request = self.turns[turn].request;
        let is_its = |hold: &&HoldDetail| {
            let root = hold.lineage.first().map(|step| step.request);
            root == Some(request)
        };
        Ok(self.holds.iter().flatten().filter(is_its).collect())
    }

    /// Whether the client may know this text as the answer of a turn. None is no answer at all.
    async fn is_told(&mut self, turn: usize, text: Option<&str>) -> Result<bool, EngineError> {
        let answer = self.turns[turn].answer.clone();
        if let (Some(answer), Some(text)) = (&answer, text)
            && ends_with(text, answer)
        {
            return Ok(true);
        }
        let Recall { engine, log, .. } = self.recall;
        let request = self.turns[turn].last;
        let detail = self.detail(request).await?;
        let text = text.unwrap_or_default();
        let outcome = detail.request.ended().map(|ended| ended.outcome);
        let is_part = if outcome == Some(RequestOutcome::Completed) {
            let is_part = || answer.is_some_and(|answer| answer.starts_with(text));
            !log.has_sent(request) && (is_part() || log.has_part(request, text))
        } else {
            // The whole answer is not known yet, or will never be. A client of an earlier process may have a
            // part of it that this one does not know.
            let is_older = detail.started_at().is_none_or(|at| log.predates(at));
            let drafted = || {
                let draft = engine.follow_draft(request).take();
                draft.is_some_and(|draft| plain(&draft.text).starts_with(text))
            };
            let is_drafted = || outcome.is_none() && drafted();
            text.is_empty() || is_older || log.has_part(request, text) || is_drafted()
        };
        if is_part {
            return Ok(true);
        }
        let holds = self.holds_of(turn).await?;
        let mut pauses = holds.iter().map(|hold| plain(&hold_summary(hold)));
        Ok(pauses.any(|pause| begins_with(text, &pause)))
    }

    /// Whether a message of the user answered a question of a turn.
    async fn is_answer(
        &mut self,
        turn: usize,
        message: &CarriedMessage,
    ) -> Result<bool, EngineError> {
        let caller = self.recall.caller;
        let holds = self.holds_of(turn).await?;
        let mut answers = holds.iter().filter(|hold| is_answered_by(hold, caller));
        Ok(answers.any(|hold| {
            let answer: DecisionBody = parse(hold.decision_body.as_deref());
            let text = answer.content.as_deref().map(text_of).unwrap_or_default();
            *message == CarriedMessage::by_user(&text, &[])
        }))
    }

    /// Whether the messages after the input of a turn, up to the next input, are about that turn.
    async fn follows(
        &mut self,
        turn: usize,
        messages: &[CarriedMessage],
    ) -> Result<bool, EngineError> {
        let mut has_answer = false;
        for (at, message) in messages.iter().enumerate() {
            let fits = if message.is_users {
                // A message without an answer may never have reached this server.
                let next = messages.get(at + 1);
                next.is_none_or(|next| next.is_users) || self.is_answer(turn, message).await?
            } else {
                has_answer = true;
                self.is_told(turn, Some(&message.text)).await?
            };
            if !fits {
                return Ok(false);
            }
        }
        Ok(has_answer || self.is_told(turn, None).await?)
    }

    /// Whether the messages before the input of a turn are what was said before it. A client may have cut off
    /// the beginning, and left out turns that failed.
    async fn precedes(
        &mut self,
        turn: usize,
        mut messages: &[CarriedMessage],
    ) -> Result<bool, EngineError> {
        let first = turn.saturating_sub(EXCHANGES_MAX);
        for turn in (first..turn).rev() {
            if messages.is_empty() {
                return Ok(true);
            }
            let users = (0..messages.len())
                .rev()
                .filter(|at| messages[*at].is_users);
            let mut found = None;
            for at in users.take(LOOKED_UP_MAX) {
                if messages[at] == self.turns[turn].input
                    && self.follows(turn, &messages[at + 1..]).await?
                {
                    found = Some(at);
                    break;
                }
            }
            if let Some(at) = found {
                messages = &messages[..at];
            } else if !self.has_failed(turn).await? {
                // The client begins in the middle of this turn, or had another conversation.
                let begins_here = !messages.iter().any(|message| message.is_users);
                return Ok(begins_here && self.follows(turn, messages).await?);
            }
        }
        if first > 0 || !self.is_whole {
            return Ok(true);
        }
        let context = self.turns.first().map_or(&[][..], |turn| &turn.context);
        let is_same = |(one, other): (&CarriedMessage, &CarriedMessage)| {
            one.is_users == other.is_users && one.text == other.text
        };
        let mut pairs = messages.iter().rev().zip(context.iter().rev());
        Ok(messages.len() <= context.len() && pairs.all(is_same))
    }

    /// Compares the turns after the last one that the client knows with its new message.
    async fn fit_after(
        &mut self,
        turn: usize,
        message: &CarriedMessage,
    ) -> Result<Fit, EngineError> {
        let mut gone_on = None;
        for later in turn + 1..self.turns.len() {
            if self.turns[later].answer.is_none() && self.has_failed(later).await? {
                continue;
            }
            gone_on = gone_on.or(Some(later));
            if self.turns[later].input != *message {
                continue;
            }
            let (session, log) = (self.session, self.recall.log);
            let detail = self.detail(self.turns[later].last).await?;
            if is_open(log, session, detail) {
                return Ok(Fit::Repeat);
            }
        }
        let Some(later) = gone_on else {
            return Ok(Fit::Head);
        };
        let detail = self.detail(self.turns[later].request).await?;
        Ok(Fit::Past(detail.request.started_by().saturating_sub(1)))
    }
}

/// The failed request that a request continues.
fn continued_by(detail: &RequestDetail) -> Option<RequestId> {
    let started = detail.started.as_ref()?;
    let mut events = started.record.content.events.iter();
    events.find_map(|event| match event {
        Event::RequestStarted { continues, .. } => continues.map(|continued| continued.request),
        _ => None,
    })
}

/// The turns in some items, which are newest first, and the answers whose input is not among them.
fn turns_of(items: &[StoredItem]) -> (Vec<ToldTurn>, BTreeMap<RequestId, String>) {
    let mut turns: Vec<ToldTurn> = Vec::new();
    let mut continued = BTreeMap::new();
    for item in items.iter().rev() {
        let placed = &item.placed;
        let known = turns
            .iter_mut()
            .rfind(|turn| turn.request == placed.request);
        match (placed.item.kind, placed.item.role, known) {
            (ItemKind::Message, Some(Role::User), None) => turns.push(ToldTurn::of(item)),
            (ItemKind::Message, Some(Role::Assistant), known) => {
                let body: ItemBody = parse(item.body.as_deref());
                let text = body.content.as_deref().map(text_of).unwrap_or_default();
                match known {
                    Some(turn) => turn.answer = Some(plain(&text)),
                    None => drop(continued.insert(placed.request, plain(&text))),
                }
            }
            _ => {}
        }
    }
    (turns, continued)
}

/// Whether a text is an answer, by itself or after other paragraphs: answers of earlier turns, or a draft that
/// was not the answer.
fn ends_with(text: &str, answer: &str) -> bool {
    let before = text.strip_suffix(answer);
    before.is_some_and(|before| before.is_empty() || before.ends_with("\n\n"))
}

/// Whether a text begins with the words about a pause, by themselves or after other paragraphs.
fn begins_with(text: &str, pause: &str) -> bool {
    text.starts_with(pause) || text.contains(&format!("\n\n{pause}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_ends_and_outer_white_space_do_not_count() {
        let one = CarriedMessage::by_user(" a\r\nb \n", &[]);
        assert_eq!(one, CarriedMessage::by_user("a\nb", &[]));
        assert_ne!(one, CarriedMessage::by_user("a b", &[]));
        assert_ne!(one, CarriedMessage::by_assistant("a\nb"));
    }

    #[test]
    fn files_count_by_their_address_or_their_bytes() {
        let file = |url: &str, title: &str| AttachmentBody {
            url: Some(url.to_owned()),
            title: Some(title.to_owned()),
            ..AttachmentBody::default()
        };
        let with = |file: AttachmentBody| CarriedMessage::by_user("look", &[file]);
        assert_eq!(with(file("a.png", "x")), with(file("a.png", "y")));
        assert_ne!(with(file("a.png", "x")), with(file("b.png", "x")));
        assert_ne!(
            with(file("a.png", "x")),
            CarriedMessage::by_user("look", &[])
        );
    }

    #[test]
    fn an_answer_counts_after_the_answers_of_earlier_turns() {
        assert!(ends_with("It is 4.", "It is 4."));
        assert!(ends_with("Done.\n\nIt is 4.", "It is 4."));
        assert!(!ends_with("I say: It is 4.", "It is 4."));
        assert!(!ends_with("It is 4. ", "It is 4."));
        assert!(ends_with("", ""));
        assert!(!ends_with("something", ""));
    }

    #[test]
    fn the_words_of_a_pause_count_at_the_beginning_of_a_paragraph() {
        let pause = "ums waits for a decision (R1.h1): Delete 7?";
        assert!(begins_with(&format!("{pause}\nDecide at …"), pause));
        assert!(begins_with(&format!("Done.\n\n{pause}"), pause));
        assert!(!begins_with(
            "ums waits for a decision (R2.h1): Delete 7?",
            pause
        ));
    }
}
