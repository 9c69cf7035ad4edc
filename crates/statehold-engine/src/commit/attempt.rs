//! Attempts: the engine decides a command, puts it in line, and decides it again if the commit below it
//! failed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use statehold_core::command::{Command, Outcome};
use statehold_core::record::Record;
use statehold_core::session::SessionState;
use statehold_store::{Answer, Commit, StoreError};
use tokio::sync::{oneshot, watch};

use super::call::{DecidedCommit, Receipt};
use super::effects::Effects;
use super::idempotency::KEPT_MS;
use super::mailbox::{Head, Mailbox};
use super::merge::MergeResults;
use super::payloads::Payloads;
use super::write::{SessionWrite, WriteAnswer};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::PendingCredential;
use crate::locks::KeyLock;

/// How often the engine decides a command again because a commit below it failed.
const RETRIES_MAX: usize = 64;
/// How long a commit waits for the command that follows it at once.
const FOLLOWED_WAIT: Duration = Duration::from_millis(1);

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
}

/// Tells when a decided command is durable.
#[derive(Debug, Clone)]
pub(crate) struct Durability {
    /// Whether it is durable, or has failed. None while it is in line.
    settled: watch::Receiver<Option<bool>>,
    /// How many commits of the session had failed when it was decided.
    failures: u64,
}

impl Durability {
    /// Waits until the command is durable. False if its commit failed.
    pub(crate) async fn wait(&self) -> bool {
        let mut settled = self.settled.clone();
        let settled = settled.wait_for(Option::is_some).await;
        settled.is_ok_and(|is_durable| *is_durable == Some(true))
    }

    /// Whether this state may lack the command: a commit has failed since.
    fn may_lack(&self, head: &Head<'_>) -> bool {
        self.failures != head.failures() && *self.settled.borrow() != Some(true)
    }
}

/// A command that is decided, and not in line yet.
pub(super) struct PreparedCommit {
    pub(super) commit: Commit,
    body: Vec<u8>,
    credential: Option<PendingCredential>,
    key_lock: Option<Arc<KeyLock>>,
    /// Whether the next command is in line at once.
    is_followed: bool,
}

/// A command that is in line to become durable.
pub(super) struct QueuedCommit {
    receipt: Receipt<()>,
    pub(super) confirmed: oneshot::Receiver<Result<u64, StoreError>>,
    pub(super) durability: Durability,
}

impl Submission<'_> {
    fn call_on_decided(&self, queued: &QueuedCommit) {
        if let Some(on_decided) = self.write.on_decided {
            on_decided(queued.durability.clone());
        }
    }
}

/// The answer to a durable command, and the command behind it, if there is one.
type Attempted = (Receipt<()>, Option<QueuedCommit>);

impl Engine {
    /// Decides a command, again if a commit below it fails, and waits until it is durable. The command
    /// `behind` it is in line by then, if the engine could decide it.
    /// Boxed, so that the crates that call it do not compile it again.
    pub(super) fn attempt<'b>(
        &'b self,
        submission: &'b Submission<'b>,
        behind: Option<&'b Submission<'b>>,
    ) -> BoxFuture<'b, Result<Attempted, EngineError>> {
        Box::pin(async move {
            let (session, command) = (submission.write.session, submission.command);
            let is_new = matches!(command, Command::CreateSession { .. });
            let mailbox = if is_new {
                self.mailbox_of_new(session)
            } else {
                self.mailbox(session).await?
            };
            for _ in 0..RETRIES_MAX {
                let mut head = mailbox.head(self.inner(), is_new).await?;
                // If the lease was lost with a failed commit, another worker may have the same fence now.
                if let Some(lease) = submission.write.lease.filter(|lease| lease.may_lack(&head)) {
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
                        let again = self.answer_again(session, submission.answer, revision);
                        return Ok((again.await?, None));
                    }
                    Err(error) => {
                        if !head.release_until_durable().await {
                            continue;
                        }
                        return Err(error);
                    }
                };
                let mut ready = self.prepare(head.state(), submission, record, late.is_none())?;
                let claim = match behind {
                    None if late.is_none() => self.pending_claim(submission, &ready.commit),
                    _ => None,
                };
                // Both are decided before the first is in line, so that one write to the disk takes both.
                let next = if late.is_none() && (behind.is_some() || claim.is_some()) {
                    Box::pin(self.decide_next(&ready.commit, behind, claim)).await
                } else {
                    None
                };
                ready.is_followed |= next.is_some();
                // In a box, like the next one: a commit is large, and the future of every call contains it.
                let queued = Box::pin(self.enqueue(&mailbox, &mut head, ready)).await?;
                let next = match next {
                    Some(next) => Box::pin(self.put_next(&mailbox, &mut head, next)).await,
                    None => None,
                };
                drop(head);
                if late.is_none() {
                    submission.call_on_decided(&queued);
                }
                if let (Some(behind), Some(next)) = (behind, &next) {
                    behind.call_on_decided(next);
                }
                let QueuedCommit {
                    receipt, confirmed, ..
                } = queued;
                match (confirmed.await.unwrap_or(Err(StoreError::Stopped)), late) {
                    (Ok(_), None) => return Ok((receipt, next)),
                    (Ok(_), Some(late)) => return Err(late.into()),
                    (Err(StoreError::Conflict { .. }), _) => {}
                    (Err(StoreError::KeyTaken { .. }), _) => {
                        if let Some(key) = submission.write.call.key
                            && let Some(kept) = self.kept_answer(session, key).await?
                        {
                            return Ok((kept, None));
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

    /// The commit of a record, and the answer that its caller gets. A command that is refused after
    /// all, because a deadline had passed, has no answer to keep.
    pub(super) fn prepare(
        &self,
        before: &SessionState,
        submission: &Submission<'_>,
        record: Record,
        is_done: bool,
    ) -> Result<PreparedCommit, EngineError> {
        let Submission { write, command, .. } = submission;
        let bodies = submission.payloads.of(&record);
        let mut commit = Commit::new(before, record, bodies)
            .map_err(|error| EngineError::Invalid(error.to_string()))?;
        if let Some(merged) = submission.merged {
            commit.set_merged(merged.shared.iter().cloned());
        }
        let credential = write.credential.map(|credential| {
            let credentials = &self.inner().credentials;
            credentials.keep((credential, &write.call.caller), command, &commit)
        });
        let mut ready = PreparedCommit {
            credential: credential.transpose()?,
            body: Vec::new(),
            key_lock: submission.key_lock.clone(),
            is_followed: write.is_followed,
            commit,
        };
        if !is_done {
            return Ok(ready);
        }
        let commit = &mut ready.commit;
        ready.body = (submission.answer)(&DecidedCommit {
            before,
            after: &commit.after,
            record: &commit.record,
            changes: &commit.changes,
            payloads: submission.payloads,
        });
        commit.answer = write.call.key.map(|key| Answer {
            key: key.key,
            fingerprint: key.fingerprint,
            session: commit.session(),
            revision: commit.after.revision,
            body: ready.body.clone(),
            expires_at: self.inner().clock.now().plus_ms(KEPT_MS),
        });
        Ok(ready)
    }

    /// Puts a command in line that was decided on the head, which it replaces. It becomes durable also if
    /// its caller goes away.
    pub(super) async fn enqueue(
        &self,
        mailbox: &Arc<Mailbox>,
        head: &mut Head<'_>,
        ready: PreparedCommit,
    ) -> Result<QueuedCommit, EngineError> {
        let PreparedCommit {
            commit,
            body,
            credential,
            key_lock,
            is_followed,
        } = ready;
        let after = Arc::new(commit.after.clone());
        let receipt = Receipt {
            view: (),
            session: after.session,
            body,
            revision: after.revision,
            replayed: false,
        };
        let effects = Effects::of(self.inner(), &commit, credential);
        let store = Arc::clone(&self.inner().store);
        let (mut pending, is_held_back) =
            mailbox.begin_commit(&*store, commit, is_followed).await?;
        // From here to the spawned task there is no await: a caller that goes away cannot leave a
        // head that builds on a commit without a task that waits for it.
        head.advance(Arc::clone(&after));
        let (confirm, confirmed) = oneshot::channel();
        let (settle, settled) = watch::channel(None);
        let failures = head.failures();
        let (engine, mailbox) = (self.clone(), Arc::clone(mailbox));
        self.inner().tasks.spawn(async move {
            if is_followed {
                tokio::select! {
                    biased;
                    result = &mut pending => pending = Box::pin(std::future::ready(result)),
                    () = tokio::time::sleep(FOLLOWED_WAIT) => mailbox.send_held_back(&*store).await,
                }
            } else if is_held_back {
                mailbox.send_held_back(&*store).await;
            }
            let result = pending.await;
            match &result {
                Ok(_) => engine.take_effect(&mailbox, &after, effects).await,
                Err(error) => engine.undo(&mailbox, error, effects),
            }
            // A repeat finds the kept answer from here on.
            drop(key_lock);
            settle.send_replace(Some(result.is_ok()));
            // The caller may have gone away. The commit stays.
            drop(confirm.send(result));
        });
        Ok(QueuedCommit {
            receipt,
            confirmed,
            durability: Durability { settled, failures },
        })
    }
}
