//! A write to a session, from its call and payloads to the durable commit: the engine decides its command on
//! the newest state, queues the commit, and decides again if the commit that it builds on fails.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use statehold_core::command::{Command, Outcome};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::session::{Owner, SessionState};
use statehold_store::StoreError;

use super::call::{Call, DecidedCommit, Receipt};
use super::merge::{self, MergeResults};
use super::payloads::Payloads;
use super::queue::{Durability, QueuedCommit};
use crate::api::json::to_body;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::Credential;
use crate::guard::rights::{self, Act};
use crate::locks::{KeyLock, Lock};

/// How often the engine decides a command again because a commit below it failed.
const RETRIES_MAX: usize = 64;

/// The rights under which a command is decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Authority {
    /// The rights of the caller.
    Caller,
    /// The rights of the caller, for a direct write of shared state to its keeper session.
    SharedWriter,
    /// The rights of the caller, for a fork in which the caller goes on: the right to start requests.
    Starter,
    /// The server's own, for timers and keeper sessions.
    Server,
    /// The server's own, for erasing the owner of the session.
    Eraser,
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
    /// The credential of a caller whose decision lets a turn go on.
    pub(crate) resumed_with: Option<&'a Credential>,
    pub(crate) authority: Authority,
    /// The lease under which a worker of this process writes, if that may not be durable yet.
    pub(crate) lease: Option<&'a Durability>,
    /// Called each time the command is decided and queued, for work that stays inside the server until the
    /// command is durable.
    pub(crate) on_decided: Option<OnDecided<'a>>,
    /// Whether that work decides the next command of the session at once. The commit waits for it, for a
    /// millisecond at most, so that one write to the disk takes both.
    pub(crate) is_delayed: bool,
    /// A write that is committed right before this one, in the same write to the disk. If it is refused or
    /// fails, so does this one; if only this one does, the earlier one stays. Neither merges state.
    pub(crate) preceded_by: Option<(&'a SessionWrite<'a>, &'a Command)>,
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
            resumed_with: None,
            authority: Authority::Caller,
            lease: None,
            on_decided: None,
            is_delayed: false,
            preceded_by: None,
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

    /// A write of a caller with the right for `act`, and the owner of the session. Comes before the input is
    /// validated: see [`Engine::authorise`].
    pub(crate) async fn authorised(
        engine: &'a Engine,
        call: &'a Call,
        session: SessionId,
        act: &Act,
    ) -> Result<(Self, Owner), EngineError> {
        let owner = engine.authorise(&call.caller, session, act).await?;
        let write = Self::of_owner(engine, call, session, &owner).await?;
        Ok((write, owner))
    }

    /// An authorised write of a worker to its request.
    pub(crate) async fn to_request(
        engine: &'a Engine,
        call: &'a Call,
        request: RequestId,
    ) -> Result<Self, EngineError> {
        let act = Act::WorkOn(request);
        rights::require_role(&call.caller, &act)?;
        let session = engine.session_of_request(request).await?;
        let (mut write, _) = Self::authorised(engine, call, session, &act).await?;
        if engine.policies().redaction.differs_by_agent() {
            let state = engine.durable_state(session).await?;
            if let Some(task) = state.task_of(request) {
                write.payloads.redact_by(engine.redaction_for(&task.agent));
            }
        }
        Ok(write)
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
        self.submit(command, &no_answer).await
    }

    /// Answers a repeat under an idempotency key with the kept bytes; commits the command otherwise, behind the
    /// one that precedes it. Boxed, so that the crates that call it do not compile it again.
    fn submit<'b>(
        &'b self,
        command: &'b Command,
        answer: WriteAnswer<'b>,
    ) -> BoxFuture<'b, Result<Receipt<()>, EngineError>> {
        Box::pin(async move {
            let engine = self.engine;
            let first = self.preceded_by;
            let first = first.map(|(write, command)| Submission::new(write, command, &no_answer));
            let mut submission = Submission::new(self, command, answer);
            for one in first.iter().chain([&submission]) {
                one.require_role()?;
            }
            if let Some(key) = self.call.key {
                let key_lock = engine.inner().in_flight.lock(key.key).await;
                submission.key_lock = Some(Arc::new(key_lock));
                if let Some(kept) = engine.kept_answer(key).await? {
                    return Ok(kept);
                }
                let inner = engine.inner();
                let kept = &inner.answers_kept;
                kept.require_room(&self.call.caller, inner.clock.now())?;
            }
            if let Some(patch) = command.state()
                && let Err(error) = engine
                    .require_patch_fits(&self.call.caller, patch, &self.payloads)
                    .await
            {
                engine.require_without_state_values(&submission).await?;
                return Err(error);
            }
            if first.is_none() && merge::merges(command) {
                return Box::pin(engine.attempt_merged(&submission)).await;
            }
            let submissions: Vec<_> = first.into_iter().chain([submission]).collect();
            engine.attempt(&submissions).await
        })
    }

    /// Commits a fork of the session `asked` to its new session, which begins with a state of its origin: that is
    /// another session if `asked` is a fork and shares the state.
    ///
    /// # Errors
    ///
    /// As [`SessionWrite::commit`].
    pub(crate) async fn commit_fork<V: Serialize + DeserializeOwned + Send>(
        &self,
        asked: SessionId,
        origin: SessionState,
        view: impl Fn(&DecidedCommit<'_>) -> Option<V> + Send + Sync,
    ) -> Result<Receipt<V>, EngineError> {
        let (inner, session) = (self.engine.inner(), self.session);
        // Held until the commit: an unknown mailbox counts as idle, and idle ones are evicted.
        let mailbox = inner.new_mailbox(session);
        let through = (origin.session != asked).then_some(asked);
        mailbox.begin_with(origin).await;
        let command = Command::Fork { session, through };
        let receipt = self.commit(&command, view).await;
        // A repeat is answered with the fork that the first call made: there is no session with this id.
        if receipt.as_ref().map_or(true, |receipt| receipt.replayed) {
            inner.forget_mailbox(session);
        }
        receipt
    }

    /// Decides a direct write of shared state as the first command of its keeper session, without committing it. A
    /// write that is refused then creates no keeper session, and stores no new user.
    pub(crate) async fn require_first_write(
        &self,
        owner: &Owner,
        command: &Command,
    ) -> Result<(), EngineError> {
        let versions = command.state().into_iter();
        for (key, expected) in versions.flat_map(|patch| &patch.if_versions) {
            merge::require_version(key, *expected, 0)?;
        }
        let created = SessionState {
            revision: 1,
            owner: Some(owner.clone()),
            ..SessionState::new(self.session)
        };
        let submission = Submission::new(self, command, &no_answer);
        self.engine.decide(&created, &submission).await?;
        if let Some(patch) = command.state() {
            let engine = self.engine;
            engine
                .require_patch_fits(&self.call.caller, patch, &self.payloads)
                .await?;
        }
        Ok(())
    }

    /// The act that the caller needs a right for.
    pub(super) fn act(&self, command: &Command) -> Act {
        match self.authority {
            Authority::SharedWriter => Act::WriteShared,
            Authority::Starter => Act::Start,
            Authority::Caller | Authority::Server | Authority::Eraser => Act::of(command),
        }
    }
}

/// One command on its way to the store.
#[derive(Clone)]
pub(super) struct Submission<'a> {
    pub(super) write: &'a SessionWrite<'a>,
    pub(super) command: &'a Command,
    pub(super) payloads: &'a Payloads,
    pub(super) answer: WriteAnswer<'a>,
    /// The results of its merges, if it has any.
    pub(super) merged: Option<&'a MergeResults>,
    /// Held until the commit is durable or has failed, also if the caller goes away.
    pub(super) key_lock: Option<Arc<KeyLock>>,
}

impl<'a> Submission<'a> {
    pub(super) fn new(
        write: &'a SessionWrite<'a>,
        command: &'a Command,
        answer: WriteAnswer<'a>,
    ) -> Self {
        Self {
            write,
            command,
            payloads: &write.payloads,
            answer,
            merged: None,
            key_lock: None,
        }
    }

    /// Refuses a caller without the role that the command needs in any session.
    fn require_role(&self) -> Result<(), EngineError> {
        match self.write.authority {
            Authority::Server | Authority::Eraser => Ok(()),
            Authority::Caller | Authority::SharedWriter => {
                let act = Act::of(self.command);
                rights::require_command_role(&self.write.call.caller, &act, self.command)
            }
            Authority::Starter => {
                rights::require_command_role(&self.write.call.caller, &Act::Start, self.command)
            }
        }
    }
}

impl Engine {
    /// Decides commands, each on the result of the one before, queues their commits, and waits until they are
    /// durable. Decides a command again if a commit below it fails. Returns the receipt of the last.
    pub(super) fn attempt<'b>(
        &'b self,
        submissions: &'b [Submission<'b>],
    ) -> BoxFuture<'b, Result<Receipt<()>, EngineError>> {
        Box::pin(async move {
            let mut rest = submissions;
            for _ in 0..RETRIES_MAX {
                let (submission, next) = rest.split_first().expect("there is a command");
                let (session, command) = (submission.write.session, submission.command);
                let is_new = matches!(command, Command::CreateSession { .. });
                let mut head = self.head(session, is_new).await?;
                // If the lease was lost with a failed commit, another worker may have the same fence now.
                if let Some(lease) = submission.write.lease.filter(|lease| head.may_lack(lease)) {
                    drop(head);
                    if !lease.wait().await {
                        return Err(EngineError::NotFound);
                    }
                    continue;
                }
                // The store knows an object that has ended only when the commit that ended it is durable.
                if head.is_missing(&command.named()) && !head.is_durable().await {
                    continue;
                }
                let (record, late) = match self.decide(head.state(), submission).await {
                    Ok(Outcome::Commit(record)) => (record, None),
                    Ok(Outcome::CommitThenRefuse(record, late)) => (record, Some(late)),
                    Ok(Outcome::AlreadyDone { revision }) => {
                        if !head.release_until_durable().await {
                            continue;
                        }
                        let Command::DecideHold { hold, .. } = command else {
                            unreachable!("only decisions are already done");
                        };
                        let again = self.answer_again(session, *hold, submission.answer, revision);
                        let receipt = again.await?;
                        if next.is_empty() {
                            return Ok(receipt);
                        }
                        rest = next;
                        continue;
                    }
                    Err(error) => {
                        if !head.release_until_durable().await {
                            continue;
                        }
                        return Err(error);
                    }
                };
                let first = self.prepare(head.state(), submission, record, late.is_none())?;
                let claim = match next {
                    [] if late.is_none() => self.pending_claim(submission, &first.commit),
                    _ => None,
                };
                // All are decided before the first is queued, so that one write to the disk takes them.
                let mut decided = vec![first];
                if let Some(claim) = &claim {
                    let write = claim.write(self, session);
                    let claim = Submission::new(&write, &claim.command, &no_answer);
                    Box::pin(self.prepare_next(&mut decided, &[claim])).await;
                } else if late.is_none() && !next.is_empty() {
                    Box::pin(self.prepare_next(&mut decided, next)).await;
                }
                for ready in &decided {
                    if let Some(new) = &ready.new_user {
                        self.store_payload_key(new).await?;
                    }
                }
                // In a box: a commit is large, and the future of every call contains it.
                let mut queued = Box::pin(head.enqueue(self, decided)).await?;
                if queued.len() > rest.len()
                    && let (Some(claim), Some(queued)) = (claim, queued.pop())
                {
                    claim.send(self, head.state(), queued.durability);
                }
                drop(head);
                for (submission, queued) in rest.iter().zip(&queued) {
                    if let Some(on_decided) = submission.write.on_decided.filter(|_| late.is_none())
                    {
                        on_decided(queued.durability.clone());
                    }
                }
                let mut queued = queued.into_iter();
                let first = queued.next().expect("the first command is queued");
                match (first.confirmed().await, late) {
                    (Ok(receipt), None) => {
                        let (receipt, durable) = confirm_next(receipt, queued).await?;
                        rest = &rest[durable..];
                        if rest.is_empty() {
                            return Ok(receipt);
                        }
                    }
                    (Ok(_), Some(late)) => return Err(late.into()),
                    (Err(StoreError::Conflict { .. }), _) => {}
                    (Err(StoreError::KeyTaken { .. }), _) => {
                        if let Some(key) = submission.write.call.key
                            && let Some(kept) = self.kept_answer(key).await?
                        {
                            return Ok(kept);
                        }
                    }
                    (Err(error), _) => return Err(error.into()),
                }
            }
            Err(EngineError::TooMany(
                "the session changes too fast to decide; try again",
            ))
        })
    }
}

/// Waits for the commits behind a durable one, and counts all that are durable. Leaves out those that the
/// store certainly did not commit: they are decided again.
async fn confirm_next(
    mut receipt: Receipt<()>,
    queued: impl Iterator<Item = QueuedCommit>,
) -> Result<(Receipt<()>, usize), EngineError> {
    let mut durable = 1;
    for next in queued {
        match next.confirmed().await {
            Ok(next) => receipt = next,
            Err(StoreError::Conflict { .. } | StoreError::Full) => break,
            Err(error) => return Err(error.into()),
        }
        durable += 1;
    }
    Ok((receipt, durable))
}

/// The answer to a command that has nothing to show.
fn no_answer(_: &DecidedCommit<'_>) -> Vec<u8> {
    Vec::new()
}
