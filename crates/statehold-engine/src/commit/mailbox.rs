//! One order of commands per session: each is decided on the newest state, durable or not. Sessions in
//! use stay in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use statehold_core::command::Named;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::session::{Owner, SessionState};
use tokio::sync::{Mutex, OwnedMappedMutexGuard, OwnedMutexGuard, watch};

use super::queue::{DelayedCommit, Durability};
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::locks::Lock;

/// The place where commands to one session are decided.
#[derive(Default)]
pub(crate) struct Mailbox {
    /// The newest state. None until it is loaded, and after a failed commit.
    newest: Arc<Mutex<Option<Newest>>>,
    /// The newest state that is known to be durable, so that questions need no disk while commits are
    /// under way. Replaced before the revision is announced.
    kept: Lock<Option<Arc<SessionState>>>,
    /// Decided commits that the store does not have yet, oldest first. It gets them together, so that one
    /// write to the disk takes them all.
    pub(super) delayed: Mutex<VecDeque<DelayedCommit>>,
    /// How far the session is durable; feeds wait for it.
    pub(crate) durable: watch::Sender<Durable>,
    /// When it was last asked for, in calls to the engine.
    used: AtomicU64,
}

#[derive(Debug)]
struct Newest {
    state: Arc<SessionState>,
    /// How many commits had failed when this state was loaded.
    failures: u64,
}

/// How far a session is durable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Durable {
    /// The newest revision that is.
    pub(crate) revision: u64,
    /// How many commits failed since the mailbox was made.
    failures: u64,
}

/// The newest state of a session, locked: no other command of the session is decided meanwhile.
pub(crate) struct Head {
    pub(super) mailbox: Arc<Mailbox>,
    newest: OwnedMappedMutexGuard<Option<Newest>, Newest>,
}

impl Head {
    pub(crate) fn state(&self) -> &SessionState {
        &self.newest.state
    }

    /// The state, for use after the lock is released.
    pub(crate) fn shared_state(&self) -> Arc<SessionState> {
        Arc::clone(&self.newest.state)
    }

    /// How many commits had failed when the state was loaded.
    pub(super) fn failures(&self) -> u64 {
        self.newest.failures
    }

    /// Replaces the state with one that was decided on it.
    pub(super) fn advance(&mut self, state: Arc<SessionState>) {
        self.newest.state = state;
    }

    /// Whether this state may lack a decided command: a commit has failed since.
    pub(super) fn may_lack(&self, command: &Durability) -> bool {
        command.failures != self.newest.failures && !command.is_durable()
    }

    /// Waits until the state is durable. False if a commit before it failed: a decision on this state means
    /// nothing then.
    pub(super) async fn is_durable(&self) -> bool {
        let (revision, failures) = (self.newest.state.revision, self.newest.failures);
        self.mailbox.is_durable(revision, failures).await
    }

    /// Like [`Head::is_durable`], and lets other commands be decided meanwhile.
    pub(crate) async fn release_until_durable(self) -> bool {
        let (revision, failures) = (self.newest.state.revision, self.newest.failures);
        drop(self.newest);
        self.mailbox.is_durable(revision, failures).await
    }

    /// Whether an act or a command names an object that is not live.
    pub(crate) fn is_missing(&self, named: &Named) -> bool {
        is_missing(self.state(), named)
    }
}

/// Whether a named object is not live in a state.
pub(super) fn is_missing(state: &SessionState, named: &Named) -> bool {
    named
        .request
        .is_some_and(|id| !state.requests.contains_key(&id))
        || named.task.is_some_and(|id| !state.tasks.contains_key(&id))
        || named.hold.is_some_and(|id| !state.holds.contains_key(&id))
        || named.past.is_some()
}

impl Mailbox {
    /// Waits until a revision is durable. False if a commit has failed since it was decided.
    async fn is_durable(&self, revision: u64, failures: u64) -> bool {
        let mut durable = self.durable.subscribe();
        let now = durable
            .wait_for(|durable| durable.failures != failures || durable.revision >= revision)
            .await;
        now.is_ok_and(|now| now.failures == failures)
    }

    /// Lets a fork begin with a state of its origin, which is durable. No other caller knows its id yet.
    pub(super) async fn begin_with(&self, origin: SessionState) {
        let mut slot = self.newest.lock().await;
        self.durable
            .send_modify(|durable| durable.revision = origin.revision);
        *slot = Some(Newest {
            failures: self.durable.borrow().failures,
            state: Arc::new(origin),
        });
    }

    /// Whether a worker has a request in the newest state. False if a command is being decided.
    pub(super) fn is_leased(&self, request: RequestId) -> bool {
        let newest = self.newest.try_lock();
        let newest = newest.as_deref().ok().and_then(Option::as_ref);
        let live = newest.and_then(|newest| newest.state.requests.get(&request));
        live.is_some_and(|live| live.lease.is_some())
    }

    /// Keeps a state that is durable now, and wakes the readers that wait for it.
    pub(super) fn announce(&self, state: &Arc<SessionState>) {
        let mut kept = self.kept.lock();
        if kept
            .as_ref()
            .is_none_or(|kept| kept.revision < state.revision)
        {
            *kept = Some(Arc::clone(state));
        }
        drop(kept);
        self.durable.send_modify(|durable| {
            durable.revision = durable.revision.max(state.revision);
        });
    }

    /// Announces that a commit failed: decisions on its state mean nothing.
    pub(super) fn announce_failure(&self) {
        self.durable.send_modify(|durable| durable.failures += 1);
    }
}

impl Inner {
    /// Makes the mailbox of a session, unless another call was faster. It is in use, so it is not evicted.
    pub(super) fn new_mailbox(&self, session: SessionId) -> Arc<Mailbox> {
        let mut mailboxes = self.mailboxes.lock();
        let mailbox = Arc::clone(mailboxes.entry(session).or_default());
        if mailboxes.len() > self.options.hot_sessions {
            forget_idle(&mut mailboxes, self.options.hot_sessions);
        }
        mailbox
    }

    /// Forgets the mailbox of a session that was not begun after all.
    pub(super) fn forget_mailbox(&self, session: SessionId) {
        self.mailboxes.lock().remove(&session);
    }
}

impl Engine {
    /// Locks the newest state of a session, loaded if need be. A session that `is_new` begins empty if it is
    /// not there. Ids of other sessions that do not exist get no mailbox, so that they evict nothing.
    pub(crate) async fn head(&self, session: SessionId, is_new: bool) -> Result<Head, EngineError> {
        let inner = self.inner();
        let hot = inner.mailboxes.lock().get(&session).cloned();
        let mailbox = match hot {
            Some(mailbox) => mailbox,
            None if is_new || inner.store.session(session).await?.is_some() => {
                inner.new_mailbox(session)
            }
            None => return Err(EngineError::NotFound),
        };
        // The mailboxes that were used last are the last to be forgotten.
        let now = inner.calls.fetch_add(1, Ordering::Relaxed);
        mailbox.used.store(now, Ordering::Relaxed);
        let mut slot = Arc::clone(&mailbox.newest).lock_owned().await;
        let failures = mailbox.durable.borrow().failures;
        if slot
            .as_ref()
            .is_some_and(|newest| newest.failures != failures)
        {
            *slot = None;
        }
        if slot.is_none() {
            let loaded = inner.store.load(session).await;
            let damage = inner.store.damage();
            let loaded = loaded.map_err(|error| damage.note_unusable(session, error))?;
            let state = if let Some(state) = loaded {
                let state = Arc::new(state);
                mailbox.announce(&state);
                state
            } else if is_new {
                Arc::new(SessionState::new(session))
            } else {
                return Err(EngineError::NotFound);
            };
            *slot = Some(Newest { state, failures });
        }
        let newest = OwnedMutexGuard::map(slot, |slot| slot.as_mut().expect("it was just filled"));
        Ok(Head { mailbox, newest })
    }

    /// The owner of a session. Checks no rights: callers must check them before they reveal anything.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub(crate) async fn owner(&self, session: SessionId) -> Result<Owner, EngineError> {
        let head = self.head(session, false).await?;
        head.state().owner.clone().ok_or(EngineError::NotFound)
    }

    /// The newest durable state of a session.
    pub(crate) async fn durable_state(
        &self,
        session: SessionId,
    ) -> Result<Arc<SessionState>, EngineError> {
        let Head { mailbox, newest } = self.head(session, false).await?;
        let durable = mailbox.durable.borrow().revision;
        if durable >= newest.state.revision {
            return Ok(Arc::clone(&newest.state));
        }
        drop(newest);
        // Commits are under way: the state below them is kept, or the store has it.
        let kept = mailbox.kept.lock().clone();
        if let Some(kept) = kept.filter(|kept| kept.revision >= durable) {
            return Ok(kept);
        }
        let stored = self.inner().store.load(session).await?;
        stored.map(Arc::new).ok_or(EngineError::NotFound)
    }

    /// Waits until a session has a revision after this one, or the engine is stopping.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub async fn changed_after(
        &self,
        session: SessionId,
        revision: u64,
    ) -> Result<(), EngineError> {
        // Loads the session first, so that its durable revision is known.
        let Head { mailbox, newest } = self.head(session, false).await?;
        drop(newest);
        let mut durable = mailbox.durable.subscribe();
        let beyond = durable.wait_for(|durable| durable.revision > revision);
        tokio::select! {
            changed = beyond => changed.map(drop).map_err(|_| EngineError::Stopping),
            () = self.inner().stop.cancelled() => Err(EngineError::Stopping),
        }
    }

    /// How many sessions are in memory.
    pub fn hot_sessions(&self) -> usize {
        self.inner().mailboxes.lock().len()
    }

    /// Evicts the sessions not used since the last call of this method. The engine reads them again when
    /// needed.
    pub fn forget_idle_sessions(&self) {
        let inner = self.inner();
        let now = inner.calls.load(Ordering::Relaxed);
        let before = inner.calls_before.swap(now, Ordering::Relaxed);
        let mut mailboxes = inner.mailboxes.lock();
        mailboxes.retain(|_, mailbox| {
            is_in_use(mailbox) || mailbox.used.load(Ordering::Relaxed) >= before
        });
        mailboxes.shrink_to_fit();
    }
}

/// Whether a task waiting for a commit, or a feed reader, holds the mailbox.
fn is_in_use(mailbox: &Arc<Mailbox>) -> bool {
    Arc::strong_count(mailbox) > 1
}

/// Evicts the least recently used half of the mailboxes. A mailbox in use stays.
fn forget_idle(mailboxes: &mut HashMap<SessionId, Arc<Mailbox>>, keep: usize) {
    let mut idle: Vec<(u64, SessionId)> = mailboxes
        .iter()
        .filter(|(_, mailbox)| !is_in_use(mailbox))
        .map(|(session, mailbox)| (mailbox.used.load(Ordering::Relaxed), *session))
        .collect();
    idle.sort_unstable();
    let surplus = mailboxes.len() - keep / 2;
    for (_, session) in idle.into_iter().take(surplus) {
        mailboxes.remove(&session);
    }
}
