//! Finds the session of a chat client that carries nothing but messages.
//!
//! Such a client sends its whole conversation with every call. The requests that chat calls start are indexed
//! by a keyed digest of their message, so the last messages of a call name the sessions that it may continue.
//! A session fits if the messages of the call, read backwards, are the end of what the client was told in it.

mod compare;
mod message;
mod told;

use statehold_core::ids::{RequestId, SessionId};
use statehold_core::principal::Principal;
use statehold_core::session::Owner;

use self::told::{ToldSession, turns_of};
use super::search::CONTINUED_MS;
use super::{DeliveryLog, as_client};
use crate::caller::Caller;
use crate::commit::payloads::Payloads;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::Act;
use crate::read::{RequestDetail, own_page};

pub use self::message::{CarriedMessage, Conversation};

/// How many requests with the message of a client are compared.
const CANDIDATES_MAX: usize = 32;
/// How many sessions that began with the same message are read: a repeat is about one of the newest.
const FIRST_MAX: usize = 4;
/// How many messages of the user are looked up. Answers to questions start no requests, so the newest message
/// may not be found.
const LOOKED_UP_MAX: usize = 8;
/// How many exchanges are compared.
const EXCHANGES_MAX: usize = 64;
/// How many bytes of messages of all sessions of a call are read before it begins a new one.
const CALL_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How many messages of a session are read to see whether it has one turn only.
const FIRST_TURN_MAX: usize = 4;

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
                let fit = match self.fit(session, request, at, &mut bytes).await {
                    // It was deleted meanwhile, or is not durable yet.
                    Err(EngineError::NotFound) => None,
                    fit => fit?,
                };
                let Some(fit) = fit else {
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
