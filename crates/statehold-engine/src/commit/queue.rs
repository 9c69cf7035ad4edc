//! The queue between a decision and the disk: commits go to the store in the order of their decisions, and
//! those that belong together go together.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use statehold_store::{Commit, PendingCommit, Store, StoreError};
use tokio::sync::{oneshot, watch};

use super::call::Receipt;
use super::decide::PreparedCommit;
use super::effects::Effects;
use super::mailbox::{Head, Mailbox};
use crate::engine::Engine;
use crate::error::EngineError;

/// How long a delayed commit waits for the next command of its session.
const COMMIT_DELAY: Duration = Duration::from_millis(1);

/// A commit on its way to the disk.
pub(super) struct QueuedCommit {
    receipt: Receipt<()>,
    confirmed: oneshot::Receiver<Result<u64, StoreError>>,
    pub(super) durability: Durability,
}

impl QueuedCommit {
    /// Waits until the commit is durable.
    pub(super) async fn confirmed(self) -> Result<Receipt<()>, StoreError> {
        let result = self.confirmed.await.unwrap_or(Err(StoreError::Stopped));
        result.map(|_| self.receipt)
    }
}

/// Tells when a decided command is durable.
#[derive(Debug, Clone)]
pub(crate) struct Durability {
    /// Whether it is durable, or has failed. None while its commit is in flight.
    settled: watch::Receiver<Option<bool>>,
    /// How many commits of the session had failed when it was decided.
    pub(super) failures: u64,
}

impl Durability {
    /// Waits until the command is durable. False if its commit failed.
    pub(crate) async fn wait(&self) -> bool {
        let mut settled = self.settled.clone();
        let settled = settled.wait_for(Option::is_some).await;
        settled.is_ok_and(|is_durable| *is_durable == Some(true))
    }

    /// Whether the command is durable now.
    pub(super) fn is_durable(&self) -> bool {
        *self.settled.borrow() == Some(true)
    }
}

/// A commit that the store does not have yet, and the sender of the store's reply.
pub(super) type DelayedCommit = (Commit, oneshot::Sender<Result<PendingCommit, StoreError>>);

impl Head {
    /// Hands commits to the store in one go: each was decided on the one before, the first on this head,
    /// which moves to the last. A delayed commit stays here until the next one comes, for a millisecond at
    /// most. All become durable also if their caller goes away.
    pub(super) async fn enqueue(
        &mut self,
        engine: &Engine,
        decided: Vec<PreparedCommit>,
    ) -> Result<Vec<QueuedCommit>, EngineError> {
        let mailbox = Arc::clone(&self.mailbox);
        let mut delayed = mailbox.delayed.lock().await;
        let mut queued = Vec::with_capacity(decided.len());
        let is_alone = decided.len() == 1 && delayed.is_empty();
        let mut decided = decided.into_iter();
        while let Some(ready) = decided.next() {
            let PreparedCommit {
                commit,
                body,
                pending: in_flight,
                key_lock,
                merge_bytes,
                new_user,
                is_delayed,
            } = ready;
            let after = Arc::new(commit.after.clone());
            let receipt = Receipt {
                view: (),
                session: after.session,
                body,
                revision: after.revision,
                replayed: false,
            };
            let effects = Effects::of(engine.inner(), &commit, in_flight);
            let store = Arc::clone(&engine.inner().store);
            let is_last = decided.len() == 0;
            let (mut pending, sends) = if is_alone && !is_delayed {
                (store.begin_commit(commit).await?, false)
            } else {
                (delay(&mut delayed, commit), is_last)
            };
            // From here to the last spawned task there is no await: a caller that goes away cannot leave a
            // head that builds on a commit without a task that waits for it.
            self.advance(Arc::clone(&after));
            let (confirm, confirmed) = oneshot::channel();
            let (settle, settled) = watch::channel(None);
            let (own, mailbox) = (engine.clone(), Arc::clone(&mailbox));
            engine.inner().tasks.spawn(async move {
                if sends && is_delayed {
                    tokio::select! {
                        biased;
                        result = &mut pending => pending = Box::pin(std::future::ready(result)),
                        () = tokio::time::sleep(COMMIT_DELAY) => mailbox.send_delayed(&*store).await,
                    }
                } else if sends {
                    mailbox.send_delayed(&*store).await;
                }
                let result = pending.await;
                match &result {
                    Ok(_) => own.take_effect(&mailbox, &after, effects).await,
                    Err(error) => own.undo(&mailbox, error, effects),
                }
                // A repeat finds the kept answer from here on, and other calls find the user.
                drop((key_lock, new_user, merge_bytes));
                settle.send_replace(Some(result.is_ok()));
                // The caller may have gone away. The commit stays.
                drop(confirm.send(result));
            });
            let failures = self.failures();
            queued.push(QueuedCommit {
                receipt,
                confirmed,
                durability: Durability { settled, failures },
            });
        }
        Ok(queued)
    }
}

/// Adds a commit to those that the store gets together.
fn delay(delayed: &mut VecDeque<DelayedCommit>, commit: Commit) -> PendingCommit {
    let (reply, begun) = oneshot::channel();
    delayed.push_back((commit, reply));
    Box::pin(async { begun.await.unwrap_or(Err(StoreError::Stopped))?.await })
}

impl Mailbox {
    /// Hands the delayed commits to the store, in their order.
    async fn send_delayed(&self, store: &dyn Store) {
        let mut delayed = self.delayed.lock().await;
        while let Some((commit, reply)) = delayed.pop_front() {
            // The task of each commit waits for it, so the receiver is there.
            drop(reply.send(store.begin_commit(commit).await));
        }
    }
}
