//! Finds the session of a chat client that carries nothing but messages.
//!
//! Such a client sends its whole conversation with every call. The requests that chat calls start are indexed
//! by a keyed digest of their message, so the last messages of a call name the sessions that it may continue.
//! A session fits if the messages of the call, read backwards, are the end of what the client was told in it.

mod client_transcript;
mod compare;
mod message;
mod place;

use statehold_core::ids::{RequestId, SessionId};
use statehold_core::principal::Principal;
use statehold_core::session::Owner;

use self::client_transcript::ClientTranscript;
use super::DeliveryLog;
use super::search::CONTINUED_MS;
use crate::caller::Caller;
use crate::commit::payloads::Payloads;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::Act;
use crate::read::RequestDetail;

pub use self::message::{CarriedMessage, Conversation};
pub use self::place::{CarriedPlace, SessionReference};
pub(super) use self::place::{SearchStep, with_members, with_note};

/// How many requests with the message of a client are compared.
const CANDIDATES_MAX: usize = 32;
/// How many requests with the new message are compared: a repeat is about one of the newest.
const REPEATS_MAX: usize = 4;
/// How many messages of the user are looked up. Answers to questions start no requests, so the newest message
/// may not be found.
const LOOKED_UP_MAX: usize = 8;
/// How many exchanges are compared.
const EXCHANGES_MAX: usize = 64;
/// How many bytes of messages of all sessions of a call are read before it begins a new one.
const CALL_BYTES_MAX: usize = 32 * 1024 * 1024;

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
    /// The client knows everything that was said.
    Head {
        /// The last turn, if the client has the whole answer.
        answered: Option<RequestId>,
        /// Turns that the client knows as paused, and that have ended since.
        unheard: Vec<RequestId>,
    },
    /// The session has later turns. It had this revision before the first of them.
    Past(u64),
}

/// How much of a conversation the messages before an input are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Coverage {
    /// All of it, from its first turn.
    Whole,
    /// Its end: the client has cut off the beginning.
    End,
}

/// A session that a conversation may continue. Lesser ones come first: a fit that is no guess, the whole
/// conversation before its end, and the head of a session before an earlier revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    is_guess: bool,
    coverage: Coverage,
    is_past: bool,
}

impl Rank {
    const BEST: Self = Self {
        is_guess: false,
        coverage: Coverage::Whole,
        is_past: false,
    };
}

/// The sessions that were compared so far.
struct Comparison {
    compared: usize,
    /// The bytes of the messages that were read.
    bytes: usize,
    best: Option<(Rank, SessionId, Fit)>,
}

/// Looks for the session of one call.
pub(super) struct Recall<'a> {
    pub(super) engine: &'a Engine,
    pub(super) log: &'a DeliveryLog,
    /// The principal that carries the conversation: a key, if it names no user.
    pub(super) carrier: Principal,
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
        let digest = message.digest(self.payloads, app, agent, self.carrier);
        let store = &self.engine.inner().store;
        Ok(store.chat_requests(digest, CANDIDATES_MAX).await?)
    }

    /// The session in which the conversation continues, and how it was found: by the reference that the call carries,
    /// if that holds, or by the messages. A reference from before the last messages counts after those.
    pub(super) async fn find(&self) -> Result<(RecalledSession, SearchStep), EngineError> {
        if let Some(key) = self.conversation.key
            && let Some(session) = self.engine.session_of_key(key).await?
        {
            return Ok((RecalledSession::Known(session), SearchStep::Key));
        }
        let (reference, is_last) = match &self.conversation.place {
            CarriedPlace::Reference { reference, is_last } => (Some(reference), *is_last),
            _ => (None, false),
        };
        if let Some(reference) = reference.filter(|_| is_last)
            && let Some(place) = self.find_referred(reference).await?
        {
            return Ok((place, SearchStep::Reference));
        }
        let place = self.find_by_messages().await?;
        if matches!(place, RecalledSession::New)
            && let Some(reference) = reference.filter(|_| !is_last)
            && let Some(place) = self.find_referred(reference).await?
        {
            return Ok((place, SearchStep::Reference));
        }
        Ok((place, SearchStep::Session))
    }

    /// The session in which the messages of the conversation were said.
    async fn find_by_messages(&self) -> Result<RecalledSession, EngineError> {
        let mut bytes = 0;
        if let Some(session) = self.find_repeated(&mut bytes).await? {
            return Ok(RecalledSession::Known(session));
        }
        let mut search = Comparison {
            compared: 0,
            bytes,
            best: None,
        };
        let earlier = &self.conversation.earlier;
        let users = (0..earlier.len()).rev().filter(|at| earlier[*at].is_users);
        let mut common = Vec::new();
        for at in users.take(LOOKED_UP_MAX) {
            let candidates = self.requests_with(&earlier[at]).await?;
            if candidates.len() == CANDIDATES_MAX {
                // Such a message names too many sessions; an earlier one may name fewer.
                common.push((at, candidates));
                continue;
            }
            let last = common.first().map_or(at, |(last, _)| *last);
            self.compare(&mut search, last, candidates).await?;
            if search.best.is_some() {
                break;
            }
        }
        for (at, candidates) in common {
            if search.best.is_some() {
                break;
            }
            self.compare(&mut search, at, candidates).await?;
        }
        let best = search.best;
        Ok(best.map_or(RecalledSession::New, |(_, session, fit)| {
            self.place_of(session, fit)
        }))
    }

    /// The place in a session that a conversation fits.
    fn place_of(&self, session: SessionId, fit: Fit) -> RecalledSession {
        match fit {
            Fit::Head { answered, unheard } => {
                // An earlier process may have delivered the answer that the client carries, and not those that
                // it does not carry.
                if let Some(request) = answered {
                    self.log.note_sent(session, request);
                }
                for request in unheard {
                    self.log.owe_paused(session, request);
                }
                RecalledSession::Known(session)
            }
            Fit::Past(revision) => RecalledSession::Fork(session, revision),
        }
    }

    /// Compares the conversation with the sessions of requests, in which the message `at` began that request or a
    /// later one.
    async fn compare(
        &self,
        search: &mut Comparison,
        at: usize,
        candidates: Vec<(SessionId, RequestId)>,
    ) -> Result<(), EngineError> {
        for (session, request) in candidates {
            search.compared += 1;
            let is_best = search
                .best
                .as_ref()
                .is_some_and(|(rank, ..)| *rank == Rank::BEST);
            let is_enough = search.compared > CANDIDATES_MAX || search.bytes >= CALL_BYTES_MAX;
            if is_enough || is_best {
                break;
            }
            let fit = self.fit(session, request, at, &mut search.bytes).await;
            // Among equal ones the newest wins.
            if let Some((rank, fit)) = unless_gone(fit)?
                && search.best.as_ref().is_none_or(|(known, ..)| rank < *known)
            {
                search.best = Some((rank, session, fit));
            }
        }
        Ok(())
    }

    /// The session that has received the same call before, if its turn is live, its answer is owed, or it
    /// failed a short time ago.
    async fn find_repeated(&self, bytes: &mut usize) -> Result<Option<SessionId>, EngineError> {
        let repeated = self.requests_with(&self.conversation.message).await?;
        for (session, request) in repeated.into_iter().take(REPEATS_MAX) {
            if *bytes >= CALL_BYTES_MAX {
                break;
            }
            let is_repeat = self.is_repeat(session, request, bytes).await;
            if unless_gone(is_repeat.map(Some))? == Some(true) {
                return Ok(Some(session));
            }
        }
        Ok(None)
    }

    /// Whether a request with the new message is the turn of an earlier attempt of this call, or of another one
    /// that was sent at the same time.
    async fn is_repeat(
        &self,
        session: SessionId,
        request: RequestId,
        bytes: &mut usize,
    ) -> Result<bool, EngineError> {
        let earlier = &self.conversation.earlier;
        let Some((mut transcript, turn)) = self
            .transcript(session, request, users_in(earlier), bytes)
            .await?
        else {
            return Ok(false);
        };
        let has_users = earlier.iter().any(|message| message.is_users);
        let follows_same = if has_users {
            transcript.precedes(turn, earlier).await?.is_some()
        } else {
            transcript.is_whole && turn == 0
        };
        if !follows_same || transcript.is_guess {
            return Ok(false);
        }
        // A first message repeats another one only if nothing else was said.
        let may_repeat = has_users || transcript.turns.len() == 1;
        self.awaits_answer(&mut transcript, turn, may_repeat).await
    }

    /// Whether the client of the call waits for the answer of a turn: it left after the call arrived, or, if the
    /// call `may_repeat` the turn, it did not arrive.
    async fn awaits_answer(
        &self,
        transcript: &mut ClientTranscript<'_>,
        turn: usize,
        may_repeat: bool,
    ) -> Result<bool, EngineError> {
        let last = transcript.turns[turn].last;
        let arrived = self.conversation.arrived;
        let delivered = self.log.delivered_since(transcript.session, arrived);
        if delivered.contains(&last) {
            return Ok(true);
        }
        Ok(may_repeat && transcript.is_unanswered(turn).await?)
    }

    /// The end of a session that the caller may continue, from some turns `before` a request, and the turn of that
    /// request in it. None if there is no such turn.
    async fn transcript(
        &self,
        session: SessionId,
        request: RequestId,
        before: usize,
        bytes: &mut usize,
    ) -> Result<Option<(ClientTranscript<'_>, usize)>, EngineError> {
        let authorised = self.engine.authorise(self.caller, session, &Act::Start);
        authorised.await?;
        if self.engine.durable_state(session).await?.closed {
            return Ok(None);
        }
        let mut transcript = ClientTranscript::new(self, session);
        *bytes += transcript.read(request, before.min(EXCHANGES_MAX)).await?;
        let turn = transcript
            .turns
            .iter()
            .position(|turn| turn.request == request);
        Ok(turn.map(|turn| (transcript, turn)))
    }

    /// How the conversation fits a session in which the message `at` began a request or a later one, and how well.
    /// Adds the bytes of the messages it reads to `bytes`.
    async fn fit(
        &self,
        session: SessionId,
        request: RequestId,
        at: usize,
        bytes: &mut usize,
    ) -> Result<Option<(Rank, Fit)>, EngineError> {
        let earlier = &self.conversation.earlier;
        let transcript = self
            .transcript(session, request, users_in(&earlier[..at]), bytes)
            .await?;
        let Some((mut transcript, first)) = transcript else {
            return Ok(None);
        };
        let begins = |turn: &usize| transcript.turns[*turn].input == earlier[at];
        let turns: Vec<usize> = if begins(&first) {
            vec![first]
        } else {
            let newest = (first + 1..transcript.turns.len()).rev();
            newest.filter(begins).take(LOOKED_UP_MAX).collect()
        };
        for turn in turns {
            if !transcript.follows(turn, &earlier[at + 1..]).await? {
                continue;
            }
            let Some(coverage) = transcript.precedes(turn, &earlier[..at]).await? else {
                continue;
            };
            let fit = transcript.fit_after(turn, 0).await?;
            let rank = Rank {
                is_guess: transcript.is_guess,
                coverage,
                is_past: matches!(fit, Fit::Past(_)),
            };
            return Ok(Some((rank, fit)));
        }
        Ok(None)
    }
}

/// How many of some messages are the user's.
fn users_in(messages: &[CarriedMessage]) -> usize {
    messages.iter().filter(|message| message.is_users).count()
}

/// The result of comparing a session, or none if the session was deleted meanwhile, is not durable yet, or is
/// damaged.
fn unless_gone<T>(result: Result<Option<T>, EngineError>) -> Result<Option<T>, EngineError> {
    match result {
        Err(EngineError::NotFound | EngineError::Damaged(_)) => Ok(None),
        result => result,
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
