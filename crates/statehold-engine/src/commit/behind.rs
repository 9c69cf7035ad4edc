//! Two commands in one go: the second is decided on the result of the first and queued before the first
//! is durable, so one write to the disk makes both durable.

use std::sync::Arc;

use statehold_core::command::{Command, Outcome};
use statehold_core::session::SessionState;
use statehold_store::{Commit, StoreError};

use super::attempt::{PreparedCommit, QueuedCommit, Submission};
use super::auto_claim::PendingClaim;
use super::call::DecidedCommit;
use super::mailbox::{Head, Mailbox, is_missing};
use super::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::locks::Lock;

/// The second command, decided; with its claim, if it claims the request that the first one starts.
pub(super) struct Next {
    ready: PreparedCommit,
    claim: Option<PendingClaim>,
}

impl SessionWrite<'_> {
    /// Commits a command right behind another one: it is decided on the result of the first, and both are
    /// queued before either is durable. Waits until both are durable, and answers with a view of the second.
    ///
    /// # Errors
    ///
    /// As [`SessionWrite::commit`]. If the first is refused or fails, so does the second; if only the second
    /// does, the first stays.
    pub(crate) async fn commit_behind<V: Send>(
        &self,
        (first, first_command): (&SessionWrite<'_>, &Command),
        command: &Command,
        view: impl Fn(&DecidedCommit<'_>) -> Option<V> + Send + Sync,
    ) -> Result<V, EngineError> {
        let made = Lock::default();
        let answer = |committed: &DecidedCommit<'_>| {
            *made.lock() = view(committed);
            Vec::new()
        };
        first.require_role(first_command)?;
        self.require_role(command)?;
        let first = Submission::new(first, first_command, &|_| Vec::new());
        let second = Submission::new(self, command, &answer);
        let confirmed = match self.engine.attempt(&first, Some(&second)).await?.1 {
            Some(behind) => Some(behind.confirmed.await.unwrap_or(Err(StoreError::Stopped))),
            None => None,
        };
        match confirmed {
            Some(Ok(_)) => {}
            // The second command was not queued behind the first, or the store certainly did not commit
            // it: decide it again, alone.
            None | Some(Err(StoreError::Conflict { .. } | StoreError::Full)) => {
                self.engine.attempt(&second, None).await?;
            }
            Some(Err(error)) => return Err(error.into()),
        }
        made.into_inner().ok_or(EngineError::NotFound)
    }
}

impl Engine {
    /// Decides the second command: the one submitted with the first, or the claim of the request that
    /// the first starts.
    pub(super) async fn decide_next(
        &self,
        first: &Commit,
        behind: Option<&Submission<'_>>,
        claim: Option<PendingClaim>,
    ) -> Option<Box<Next>> {
        let ready = match (behind, &claim) {
            (Some(behind), _) => self.decide_behind(&first.after, behind).await?,
            (None, Some(claim)) => {
                let write = SessionWrite {
                    is_followed: claim.begins_inside,
                    ..SessionWrite::new(self, &claim.call, first.session())
                };
                let claim = Submission::new(&write, &claim.command, &|_| Vec::new());
                self.decide_behind(&first.after, &claim).await?
            }
            (None, None) => return None,
        };
        Some(Box::new(Next { ready, claim }))
    }

    /// Queues the second command behind the first. If that fails, a submitted command is decided again
    /// when the first is durable; a claim is dropped, and its request waits for a worker.
    pub(super) async fn put_next(
        &self,
        mailbox: &Arc<Mailbox>,
        head: &mut Head<'_>,
        next: Box<Next>,
    ) -> Option<QueuedCommit> {
        let Next { ready, claim } = *next;
        let queued = self.enqueue(mailbox, head, ready).await.ok()?;
        match claim {
            Some(claim) => {
                claim.send(self, head.state(), queued.durability);
                None
            }
            None => Some(queued),
        }
    }

    /// Decides a command on a state that is not queued yet. None unless it results in a commit: any
    /// other result is valid only on a durable state.
    async fn decide_behind(
        &self,
        state: &SessionState,
        submission: &Submission<'_>,
    ) -> Option<PreparedCommit> {
        if is_missing(state, &submission.command.named()) {
            return None;
        }
        match self.decide(state, submission).await {
            Ok(Outcome::Commit(record)) => self.prepare(state, submission, record, true).ok(),
            _ => None,
        }
    }
}
