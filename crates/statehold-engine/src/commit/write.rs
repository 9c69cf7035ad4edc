//! A write to a session: its call, its payloads and its commit.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use statehold_core::command::Command;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::session::Owner;

use super::attempt::{Durability, Submission};
use super::call::{Call, DecidedCommit, Receipt};
use super::idempotency::KEPT_MAX;
use super::merge;
use super::payloads::Payloads;
use crate::api::json::to_body;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::Credential;
use crate::guard::rights::{self, Act};
use crate::locks::Lock;

/// The rights under which a command is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Authority {
    /// The rights of the caller.
    Caller,
    /// The rights of the caller, for a direct write of shared state to its keeper session.
    SharedWriter,
    /// The server's own, for timers and keeper sessions.
    Server,
}

/// Serialises the answer to a command from its commit.
pub(crate) type WriteAnswer<'a> = &'a (dyn Fn(&DecidedCommit<'_>) -> Vec<u8> + Send + Sync);

/// A write to one session, with the payloads of its command.
#[derive(Clone)]
pub(crate) struct SessionWrite<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) call: &'a Call,
    pub(crate) session: SessionId,
    pub(crate) payloads: Payloads,
    /// A credential for the worker, kept in memory only.
    pub(crate) credential: Option<&'a Credential>,
    pub(crate) authority: Authority,
    /// The lease under which a worker of this process writes, if that may not be durable yet.
    pub(crate) lease: Option<&'a Durability>,
    /// Called each time the command is decided and in line, for work that stays inside the server until the
    /// command is durable.
    pub(crate) on_decided: Option<OnDecided<'a>>,
    /// Whether that work decides the next command of the session at once: one write to the disk takes both.
    pub(crate) is_followed: bool,
}

/// Begins the work that a decided command is for.
pub(crate) type OnDecided<'a> = &'a (dyn Fn(Durability) + Send + Sync);

impl<'a> SessionWrite<'a> {
    /// A write without payloads. Its rights are asked when it is committed.
    pub(crate) fn new(engine: &'a Engine, call: &'a Call, session: SessionId) -> Self {
        Self {
            engine,
            call,
            session,
            payloads: Payloads::none(),
            credential: None,
            authority: Authority::Caller,
            lease: None,
            on_decided: None,
            is_followed: false,
        }
    }

    /// A write with payloads under the keys of the session's owner.
    pub(crate) async fn of_owner(
        engine: &'a Engine,
        call: &'a Call,
        session: SessionId,
        owner: &Owner,
    ) -> Result<Self, EngineError> {
        Ok(Self {
            payloads: engine.payloads_for(owner).await?,
            ..Self::new(engine, call, session)
        })
    }

    /// A write of a worker to its request. Authorises the worker before its input is validated.
    pub(crate) async fn to_request(
        engine: &'a Engine,
        call: &'a Call,
        request: RequestId,
    ) -> Result<Self, EngineError> {
        let act = Act::WorkOn(request);
        rights::require_role(&call.caller, &act)?;
        let session = engine.session_of_request(request).await?;
        let owner = engine.authorise(&call.caller, session, &act).await?;
        Self::of_owner(engine, call, session, &owner).await
    }

    /// Commits a command and answers with a view of the commit. The engine merges state with a merge policy
    /// with the stored values, again if other writers change them meanwhile. It serialises the view inside
    /// the commit and keeps it in the same transaction under the idempotency key of the call, so a repeat
    /// gets the same bytes.
    ///
    /// # Errors
    ///
    /// If the caller may not, the core refuses, or the store fails. Nothing has changed then.
    pub(crate) async fn commit<V: Serialize + DeserializeOwned + Send>(
        &self,
        command: &Command,
        view: impl Fn(&DecidedCommit<'_>) -> Option<V> + Send + Sync,
    ) -> Result<Receipt<V>, EngineError> {
        let made = Lock::default();
        let answer = |committed: &DecidedCommit<'_>| {
            let view = view(committed);
            let body = view.as_ref().map(to_body).unwrap_or_default();
            *made.lock() = view;
            body
        };
        let receipt = self.submit(command, &answer).await?;
        match made.into_inner() {
            Some(view) if !receipt.replayed => Ok(receipt.with(view)),
            _ => receipt.parse(),
        }
    }

    /// Commits a command that has nothing to show. A repeat succeeds even if its session is erased.
    ///
    /// # Errors
    ///
    /// As [`SessionWrite::commit`].
    pub(crate) async fn commit_unseen(
        &self,
        command: &Command,
    ) -> Result<Receipt<()>, EngineError> {
        self.submit(command, &|_| Vec::new()).await
    }

    /// Answers a repeat under an idempotency key with the kept bytes; commits the command otherwise.
    /// Boxed, so that the crates that call it do not compile it again.
    fn submit<'b>(
        &'b self,
        command: &'b Command,
        answer: WriteAnswer<'b>,
    ) -> BoxFuture<'b, Result<Receipt<()>, EngineError>> {
        Box::pin(async move {
            self.require_role(command)?;
            let engine = self.engine;
            let mut submission = Submission::new(self, command, answer);
            if let Some(key) = self.call.key {
                let key_lock = engine.inner().in_flight.lock(key.key).await;
                submission.key_lock = Some(Arc::new(key_lock));
                if let Some(kept) = engine.kept_answer(self.session, key).await? {
                    return Ok(kept);
                }
                if engine.inner().answers_kept.load(Ordering::Relaxed) >= KEPT_MAX {
                    return Err(EngineError::TooMany(
                        "too many idempotency keys were used in a day; try again later, or without one",
                    ));
                }
            }
            if merge::merges(command) {
                return Box::pin(engine.attempt_merged(&submission)).await;
            }
            Ok(engine.attempt(&submission, None).await?.0)
        })
    }

    /// Refuses a caller without the role that the command needs in any session.
    pub(super) fn require_role(&self, command: &Command) -> Result<(), EngineError> {
        match self.authority {
            Authority::Server => Ok(()),
            Authority::Caller | Authority::SharedWriter => {
                rights::require_command_role(&self.call.caller, command)
            }
        }
    }

    /// The act that the caller needs a right for.
    pub(super) fn act(&self, command: &Command) -> Act {
        match self.authority {
            Authority::SharedWriter => Act::WriteShared,
            Authority::Caller | Authority::Server => Act::of(command),
        }
    }
}
