//! One order of commands per session: each is decided on the newest state, durable or not. Sessions in
//! use stay in memory.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use statehold_core::command::Named;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::session::{Owner, SessionState};
use statehold_store::{Commit, PendingCommit, Store, StoreError};
use tokio::sync::{MappedMutexGuard, Mutex, MutexGuard, oneshot, watch};

use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::locks::Lock;

/// The place where commands to one session are decided.
pub(crate) struct Mailbox {
    pub(super) session: SessionId,
    /// The newest state. None until it is loaded, and after a failed commit.
    newest: Mutex<Option<Newest>>,
    /// The newest state that is known to be durable, so that questions need no disk while commits are
    /// under way. Replaced before the revision is announced.
    kept: Lock<Option<Arc<SessionState>>>,
    /// Decided commits that the store does not have yet, oldest first: each waits a moment for the command
    /// that follows it, so that one write to the disk takes both.
    held_back: Mutex<VecDeque<HeldCommit>>,
    /// How far the session is durable; feeds wait for it.
    pub(crate) durable: watch::Sender<Durable>,
    /// When it was last asked for, in calls to the engine.
    used: AtomicU64,
}

/// A commit that waits for the next, and where its place in the store's line is told.
type HeldCommit = (Commit, oneshot::Sender<Result<PendingCommit, StoreError>>);

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
pub(crate) struct Head<'a> {
    newest: MappedMutexGuard<'a, Newest>,
    durable: watch::Receiver<Durable>,
}

impl Head<'_> {
    pub(crate) fn state(&self) -> &SessionState {
        &self.newest.state
    }

    /// How many commits had failed when the state was loaded.
    pub(super) fn failures(&self) -> u64 {
        self.newest.failures
    }

    /// The state, for use after the lock is released.
    pub(crate) fn shared_state(&self) -> Arc<SessionState> {
        Arc::clone(&self.newest.state)
    }

    /// Replaces the state with one that was decided on it.
    pub(super) fn advance(&mut self, state: Arc<SessionState>) {
        self.newest.state = state;
    }

    /// Waits until the state is durable. False if a commit before it failed: a decision on this state means
    /// nothing then.
    pub(super) async fn is_durable(&mut self) -> bool {
        let (revision, failures) = (self.newest.state.revision, self.newest.failures);
        is_durable(&mut self.durable, revision, failures).await
    }

    /// Like [`Head::is_durable`], and lets other commands be decided meanwhile.
    pub(crate) async fn release_until_durable(self) -> bool {
        let (revision, failures) = (self.newest.state.revision, self.newest.failures);
        let Self {
            newest,
            mut durable,
        } = self;
        drop(newest);
        is_durable(&mut durable, revision, failures).await
    }

    /// Whether an act or a command names something that is not live.
    pub(crate) fn is_missing(&self, named: &Named) -> bool {
        is_missing(self.state(), named)
    }
}

async fn is_durable(durable: &mut watch::Receiver<Durable>, revision: u64, failures: u64) -> bool {
    let now = durable
        .wait_for(|durable| durable.failures != failures || durable.revision >= revision)
        .await;
    now.is_ok_and(|now| now.failures == failures)
}

/// Whether something that is named is not live in a state.
pub(super) fn is_missing(state: &SessionState, named: &Named) -> bool {
    named
        .request
        .is_some_and(|id| !state.requests.contains_key(&id))
        || named.task.is_some_and(|id| !state.tasks.contains_key(&id))
        || named.hold.is_some_and(|id| !state.holds.contains_key(&id))
        || named.past.is_some()
}

impl Mailbox {
    fn new(session: SessionId) -> Self {
        Self {
            session,
            newest: Mutex::new(None),
            kept: Lock::default(),
            held_back: Mutex::default(),
            durable: watch::Sender::new(Durable::default()),
            used: AtomicU64::new(0),
        }
    }

    /// Locks the newest state, loaded if need be. A session that `is_new` begins empty if it is not there.
    pub(crate) async fn head(&self, inner: &Inner, is_new: bool) -> Result<Head<'_>, EngineError> {
        let mut slot = self.newest.lock().await;
        let failures = self.durable.borrow().failures;
        if slot
            .as_ref()
            .is_some_and(|newest| newest.failures != failures)
        {
            *slot = None;
        }
        if slot.is_none() {
            let loaded = inner.store.load(self.session).await;
            let loaded = loaded.inspect_err(|error| inner.damaged.note(self.session, error))?;
            let state = if let Some(state) = loaded {
                let state = Arc::new(state);
                self.announce(&state);
                state
            } else if is_new {
                Arc::new(SessionState::new(self.session))
            } else {
                return Err(EngineError::NotFound);
            };
            *slot = Some(Newest { state, failures });
        }
        let newest = MutexGuard::map(slot, |slot| slot.as_mut().expect("it was just filled"));
        let durable = self.durable.subscribe();
        Ok(Head { newest, durable })
    }

    /// Whether a worker has a request in the newest state. False if a command is being decided.
    pub(super) fn is_leased(&self, request: RequestId) -> bool {
        let newest = self.newest.try_lock();
        let newest = newest.as_deref().ok().and_then(Option::as_ref);
        let live = newest.and_then(|newest| newest.state.requests.get(&request));
        live.is_some_and(|live| live.lease.is_some())
    }

    /// Hands a commit to the store. One that is followed at once is held back for the next, and so is one
    /// behind it: [`Mailbox::send_held_back`] hands them over. Also returns whether it is held back.
    pub(super) async fn begin_commit(
        &self,
        store: &dyn Store,
        commit: Commit,
        is_followed: bool,
    ) -> Result<(PendingCommit, bool), StoreError> {
        let mut held_back = self.held_back.lock().await;
        if held_back.is_empty() && !is_followed {
            return Ok((store.begin_commit(commit).await?, false));
        }
        let (tell, told) = oneshot::channel();
        held_back.push_back((commit, tell));
        let pending: PendingCommit = Box::pin(async {
            let begun = told.await.unwrap_or(Err(StoreError::Stopped));
            begun?.await
        });
        Ok((pending, true))
    }

    /// Hands the commits that are held back to the store, in their order.
    pub(super) async fn send_held_back(&self, store: &dyn Store) {
        let mut held_back = self.held_back.lock().await;
        while let Some((commit, tell)) = held_back.pop_front() {
            // The task of each commit waits for it, so the receiver is there.
            drop(tell.send(store.begin_commit(commit).await));
        }
    }

    /// The newest state that is durable.
    pub(crate) async fn durable_state(
        &self,
        inner: &Inner,
    ) -> Result<Arc<SessionState>, EngineError> {
        let head = self.head(inner, false).await?;
        let durable = self.durable.borrow().revision;
        if durable >= head.state().revision {
            return Ok(head.shared_state());
        }
        drop(head);
        // Commits are under way: the state below them is kept, or the store has it.
        let kept = self.kept.lock().clone();
        if let Some(kept) = kept.filter(|kept| kept.revision >= durable) {
            return Ok(kept);
        }
        let stored = inner.store.load(self.session).await?;
        stored.map(Arc::new).ok_or(EngineError::NotFound)
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

    /// Marks it as used, so that it is among the last to be forgotten.
    fn touch(&self, inner: &Inner) {
        let now = inner.calls.fetch_add(1, Ordering::Relaxed);
        self.used.store(now, Ordering::Relaxed);
    }
}

impl Engine {
    /// The mailbox of a session that exists. Other ids get none, so that they evict nothing.
    pub(crate) async fn mailbox(&self, session: SessionId) -> Result<Arc<Mailbox>, EngineError> {
        let inner = self.inner();
        let hot = inner.mailboxes.lock().get(&session).cloned();
        if let Some(mailbox) = hot {
            mailbox.touch(inner);
            return Ok(mailbox);
        }
        match inner.store.session(session).await? {
            Some(_) => Ok(self.mailbox_of_new(session)),
            None => Err(EngineError::NotFound),
        }
    }

    /// The mailbox of a session that is about to be created; made if missing.
    pub(super) fn mailbox_of_new(&self, session: SessionId) -> Arc<Mailbox> {
        let inner = self.inner();
        let mut mailboxes = inner.mailboxes.lock();
        let mailbox = Arc::clone(
            mailboxes
                .entry(session)
                .or_insert_with(|| Arc::new(Mailbox::new(session))),
        );
        mailbox.touch(inner);
        if mailboxes.len() > inner.options.hot_sessions {
            forget_idle(&mut mailboxes, inner.options.hot_sessions);
        }
        mailbox
    }

    /// The owner of a session. Checks no rights: callers must check them before they reveal anything.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub(crate) async fn owner(&self, session: SessionId) -> Result<Owner, EngineError> {
        let mailbox = self.mailbox(session).await?;
        let head = mailbox.head(self.inner(), false).await?;
        head.state().owner.clone().ok_or(EngineError::NotFound)
    }

    /// The newest durable state of a session.
    pub(crate) async fn durable_state(
        &self,
        session: SessionId,
    ) -> Result<Arc<SessionState>, EngineError> {
        let mailbox = self.mailbox(session).await?;
        mailbox.durable_state(self.inner()).await
    }

    /// Waits until every commit of a session that is in flight has become durable or failed.
    pub(super) async fn wait_durable(&self, session: SessionId) -> Result<(), EngineError> {
        let mailbox = self.mailbox(session).await?;
        let head = mailbox.head(self.inner(), false).await?;
        head.release_until_durable().await;
        Ok(())
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
        let mailbox = self.mailbox(session).await?;
        let mut durable = mailbox.durable.subscribe();
        if durable.borrow().revision == 0 {
            // Load the session first, so that its durable revision is known.
            mailbox.durable_state(self.inner()).await?;
        }
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
