//! One order of commands per session.
//!
//! A command is decided on the newest state, durable or not, and put in line behind the commits it
//! builds on. Its answer leaves only when the revision it was decided on is durable, and so does a
//! refusal. When a commit fails, those that build on it fail too; nobody has been answered, so they
//! are decided again on what is really there.

mod behind;
mod deciding;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use statehold_core::command::{Command, Named, Outcome};
use statehold_core::digest::BodyRef;
use statehold_core::ids::SessionId;
use statehold_core::projection::Changes;
use statehold_core::record::Record;
use statehold_core::session::{Owner, SessionState};
use statehold_store::{Answer, Commit, PendingCommit, StoreError};
use tokio::sync::{Mutex, oneshot, watch};

use crate::api::json::to_body;
use crate::caller::Caller;
use crate::commit::idempotency::{IdempotencyKey, KEPT_MAX, KEPT_MS, KeyLock};
use crate::commit::merge::{self, MergeResults};
use crate::commit::payloads::Payloads;
use crate::engine::{Aftermath, Engine, Inner};
use crate::error::EngineError;
use crate::guard::credentials::{Credential, PendingCredential};
use crate::guard::rights::{self, Act};

/// How often a command is decided again because what it built on was refused.
const RETRIES_MAX: usize = 64;

/// What comes with a command.
#[derive(Debug, Clone)]
pub struct Call {
    /// Who calls.
    pub caller: Caller,
    /// The key under which the answer is kept.
    pub key: Option<IdempotencyKey>,
    /// The revision that the session must have.
    pub if_revision: Option<u64>,
}

impl Call {
    /// A call without conditions.
    pub fn by(caller: Caller) -> Self {
        Self {
            caller,
            key: None,
            if_revision: None,
        }
    }
}

/// A decided command, for the view of it. Not durable yet; the answer waits for that.
#[derive(Debug)]
pub(crate) struct Committed<'a> {
    /// The state before.
    pub(crate) before: &'a SessionState,
    /// The state after.
    pub(crate) after: &'a SessionState,
    /// The record.
    pub(crate) record: &'a Record,
    /// The rows that it changes.
    pub(crate) changes: &'a Changes,
    payloads: &'a Payloads,
}

impl Committed<'_> {
    /// A payload of the record.
    pub(crate) fn payload(&self, name: &BodyRef) -> Option<&[u8]> {
        self.payloads.get(name)
    }
}

/// A command that is done and durable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Done {
    /// The revision it committed.
    pub(crate) revision: u64,
    /// The bytes of its view.
    pub(crate) body: Vec<u8>,
    /// Whether it was done before, by the same key.
    pub(crate) replayed: bool,
}

/// The receipt of a command that is durable: a view of what it did.
#[derive(Debug, Clone)]
pub struct Receipt<V> {
    /// The view.
    pub view: V,
    /// The session.
    pub session: SessionId,
    /// The bytes of the view, as they are kept for repeats of the call.
    pub body: Vec<u8>,
    /// The revision that the command committed.
    pub revision: u64,
    /// Whether an earlier call with the same key did it.
    pub replayed: bool,
}

impl<V: Serialize> Receipt<V> {
    /// The receipt of a call that changed values in memory only.
    pub(crate) fn uncommitted(session: SessionId, revision: u64, view: V) -> Self {
        Self {
            body: to_body(&view),
            view,
            session,
            revision,
            replayed: false,
        }
    }
}

impl<V: DeserializeOwned> Receipt<V> {
    /// The receipt with the view that was `made` in the commit; a repeat reads it from the kept bytes.
    /// These are erased with the session that they are about.
    fn new(session: SessionId, done: Done, made: Option<V>) -> Result<Self, EngineError> {
        let view = match made {
            Some(view) if !done.replayed => view,
            _ => serde_json::from_slice(&done.body).map_err(|_| EngineError::NotFound)?,
        };
        Ok(Self {
            view,
            session,
            body: done.body,
            revision: done.revision,
            replayed: done.replayed,
        })
    }
}

/// The place where commands to one session are decided.
#[derive(Debug)]
pub(crate) struct Mailbox {
    session: SessionId,
    /// Whose session it is: that never changes.
    pub(crate) owner: OnceLock<Owner>,
    /// The newest state. None until it is loaded, and after a failed commit.
    head: Mutex<Option<Head>>,
    /// The newest state that is known to be durable, so that questions need no disk while commits are
    /// under way. Replaced before the revision is announced.
    kept: std::sync::Mutex<Option<Arc<SessionState>>>,
    /// What is durable; feeds wait for it.
    pub(crate) durable: watch::Sender<Durable>,
    /// When it was last asked for, in calls to the engine.
    pub(crate) used: AtomicU64,
}

#[derive(Debug)]
struct Head {
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

impl Mailbox {
    pub(crate) fn new(session: SessionId) -> Self {
        Self {
            session,
            owner: OnceLock::new(),
            head: Mutex::new(None),
            kept: std::sync::Mutex::default(),
            durable: watch::Sender::new(Durable::default()),
            used: AtomicU64::new(0),
        }
    }

    /// The newest state that is durable.
    pub(crate) async fn durable_state(
        &self,
        inner: &Inner,
    ) -> Result<Option<Arc<SessionState>>, EngineError> {
        {
            let mut head = self.head.lock().await;
            let Some(found) = self.load(&mut head, inner).await? else {
                return Ok(None);
            };
            if self.durable.borrow().revision >= found.state.revision {
                return Ok(Some(Arc::clone(&found.state)));
            }
        }
        // Commits are under way: what they build on is kept, or the store has it.
        let durable = self.durable.borrow().revision;
        let kept = self.kept().clone();
        if let Some(kept) = kept.filter(|kept| kept.revision >= durable) {
            return Ok(Some(kept));
        }
        Ok(inner.store.load(self.session).await?.map(Arc::new))
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Option<Arc<SessionState>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a state that is durable now.
    fn keep(&self, state: &Arc<SessionState>) {
        let mut kept = self.kept();
        if kept
            .as_ref()
            .is_none_or(|kept| kept.revision < state.revision)
        {
            *kept = Some(Arc::clone(state));
        }
    }

    /// The head, loaded if need be. None if there is no such session.
    async fn load<'a>(
        &self,
        slot: &'a mut Option<Head>,
        inner: &Inner,
    ) -> Result<Option<&'a mut Head>, EngineError> {
        let failures = self.durable.borrow().failures;
        if slot.as_ref().is_some_and(|head| head.failures != failures) {
            *slot = None;
        }
        if slot.is_none() {
            let Some(state) = inner.store.load(self.session).await? else {
                return Ok(None);
            };
            let state = Arc::new(state);
            self.keep(&state);
            self.durable.send_modify(|durable| {
                durable.revision = durable.revision.max(state.revision);
            });
            *slot = Some(Head { state, failures });
        }
        Ok(slot.as_mut())
    }
}

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
pub(crate) type WriteAnswer<'a> = &'a (dyn Fn(&Committed<'_>) -> Vec<u8> + Send + Sync);

/// One command on its way to the store.
#[derive(Clone, Copy)]
pub(crate) struct Submission<'a> {
    pub(crate) call: &'a Call,
    pub(crate) command: &'a Command,
    pub(crate) payloads: &'a Payloads,
    pub(crate) answer: WriteAnswer<'a>,
    /// The results of its merges, if it has any.
    pub(crate) merged: Option<&'a MergeResults>,
    /// A credential for the worker, kept in memory only.
    pub(crate) credential: Option<&'a Credential>,
    pub(crate) authority: Authority,
    /// Held until the commit is durable or has failed, also if the caller goes away.
    pub(super) key_lock: Option<&'a KeyLock>,
}

impl<'a> Submission<'a> {
    /// A command of the caller, without an answer.
    pub(crate) fn new(call: &'a Call, (command, payloads): (&'a Command, &'a Payloads)) -> Self {
        Self {
            call,
            command,
            payloads,
            answer: &|_| Vec::new(),
            merged: None,
            credential: None,
            authority: Authority::Caller,
            key_lock: None,
        }
    }

    /// The act that the caller needs a right for.
    pub(crate) fn act(&self) -> Act {
        match self.authority {
            Authority::SharedWriter => Act::WriteShared,
            Authority::Caller | Authority::Server => Act::of(self.command),
        }
    }

    /// Refuses a caller without the role that the command needs in any session.
    pub(crate) fn require_role(&self) -> Result<(), EngineError> {
        match self.authority {
            Authority::Server => Ok(()),
            Authority::Caller | Authority::SharedWriter => {
                rights::require_command_role(&self.call.caller, self.command)
            }
        }
    }
}

/// What became of one attempt.
enum Attempt {
    /// It is durable. What was put in line right behind it may not be yet.
    Done(Done, Option<InLine>),
    /// What it was decided on never became durable.
    Again,
}

/// A command that is decided, and not in line yet.
struct Ready {
    commit: Commit,
    body: Vec<u8>,
    credential: Option<PendingCredential>,
}

/// The effects of a commit outside the store, once it is durable or has failed.
struct Effects {
    aftermath: Aftermath,
    keeps_answer: bool,
    credential: Option<PendingCredential>,
    key_lock: Option<KeyLock>,
}

/// A command that is in line to become durable.
pub(crate) struct InLine {
    done: Done,
    pub(crate) told: oneshot::Receiver<Result<u64, StoreError>>,
}

impl Engine {
    /// Refuses a caller without the right for an act. Every use case asks this before it validates what
    /// the caller sent: neither a missing right nor a mistake may tell that a session is there.
    ///
    /// # Errors
    ///
    /// If the caller lacks a role, or the session is out of reach, which is as if it were not there.
    pub(crate) async fn authorise(
        &self,
        caller: &Caller,
        session: SessionId,
        act: &Act,
    ) -> Result<(), EngineError> {
        rights::require_role(caller, act)?;
        let mailbox = self.mailbox(session).await?;
        let mut durable = mailbox.durable.subscribe();
        let mut slot = mailbox.head.lock().await;
        let head = mailbox.load(&mut slot, self.inner()).await?;
        let head = head.ok_or(EngineError::NotFound)?;
        if is_missing(&head.state, &act.named()) {
            // The object ended in a commit that may be in flight: the store knows it once that is durable.
            settled(&mut durable, head.state.revision, head.failures).await;
        }
        self.require_right(caller, &head.state, act).await
    }

    /// The matrix of rights, with the agents of requests that have ended and the deciders of holds that
    /// are decided.
    async fn require_right(
        &self,
        caller: &Caller,
        state: &SessionState,
        act: &Act,
    ) -> Result<(), EngineError> {
        let hold = act
            .named()
            .hold
            .filter(|hold| !state.holds.contains_key(hold));
        let closed = match hold.filter(|_| caller.roles.has_own()) {
            Some(hold) => self.inner().store.closed_hold(hold).await?,
            None => None,
        };
        rights::require(
            caller,
            state,
            act,
            closed.as_ref().map(|closed| &closed.hold),
        )?;
        if caller.agents.is_empty() {
            return Ok(());
        }
        let Some(request) = rights::worked_on(caller, state, act) else {
            return Ok(());
        };
        if state.requests.contains_key(&request) {
            return Ok(());
        }
        // Workers of its agent may learn that the request has ended.
        let store = &self.inner().store;
        let is_here = store.session_of_request(request).await? == Some(state.session);
        let ended = store.ended_request(request).await?.filter(|_| is_here);
        let ended = ended.ok_or(EngineError::NotFound)?;
        let agent = match state.tasks.get(&ended.task) {
            Some(task) => Some(task.agent.clone()),
            None => store
                .closed_task(ended.task)
                .await?
                .map(|closed| closed.task.agent),
        };
        match agent {
            Some(agent) if caller.works_for(&agent) => Ok(()),
            _ => Err(EngineError::NotFound),
        }
    }

    /// Commits a command and answers with a view of what it did. State with a merge policy is merged with
    /// the values that are there, again if other writers change them meanwhile. The view is serialised inside the
    /// commit, so that it is kept in its transaction under the idempotency key of the call, and a repeat
    /// gets the same bytes.
    ///
    /// # Errors
    ///
    /// If the caller may not, the core refuses, or the store fails. Nothing has changed then.
    pub(crate) async fn commit<V: Serialize + DeserializeOwned + Send>(
        &self,
        session: SessionId,
        call: &Call,
        command: (&Command, &Payloads),
        credential: Option<&Credential>,
        view: impl Fn(&Committed<'_>) -> Option<V> + Send + Sync,
    ) -> Result<Receipt<V>, EngineError> {
        let submission = Submission {
            credential,
            ..Submission::new(call, command)
        };
        self.commit_with_view(session, submission, view).await
    }

    /// Commits a direct write of shared state to a keeper session.
    ///
    /// # Errors
    ///
    /// As [`Engine::commit`].
    pub(crate) async fn commit_shared<V: Serialize + DeserializeOwned + Send>(
        &self,
        keeper: SessionId,
        call: &Call,
        command: (&Command, &Payloads),
        view: impl Fn(&Committed<'_>) -> Option<V> + Send + Sync,
    ) -> Result<Receipt<V>, EngineError> {
        let submission = Submission {
            authority: Authority::SharedWriter,
            ..Submission::new(call, command)
        };
        self.commit_with_view(keeper, submission, view).await
    }

    async fn commit_with_view<V: Serialize + DeserializeOwned + Send>(
        &self,
        session: SessionId,
        submission: Submission<'_>,
        view: impl Fn(&Committed<'_>) -> Option<V> + Send + Sync,
    ) -> Result<Receipt<V>, EngineError> {
        let made = std::sync::Mutex::new(None);
        let answer = |committed: &Committed<'_>| {
            let view = view(committed);
            let body = view.as_ref().map(to_body).unwrap_or_default();
            *made.lock().unwrap_or_else(PoisonError::into_inner) = view;
            body
        };
        let submission = Submission {
            answer: &answer,
            ..submission
        };
        let done = self.submit_keyed(session, submission).await?;
        let made = made.into_inner().unwrap_or_else(PoisonError::into_inner);
        Receipt::new(session, done, made)
    }

    /// Commits a command that has nothing to show. A repeat succeeds even if its session is erased.
    ///
    /// # Errors
    ///
    /// As [`Engine::commit`].
    pub(crate) async fn commit_without_view(
        &self,
        session: SessionId,
        call: &Call,
        command: (&Command, &Payloads),
    ) -> Result<Receipt<()>, EngineError> {
        let submission = Submission::new(call, command);
        let done = self.submit_keyed(session, submission).await?;
        Ok(Receipt {
            view: (),
            session,
            body: Vec::new(),
            revision: done.revision,
            replayed: done.replayed,
        })
    }

    /// Commits a command of the server itself: timers, recovery.
    pub(crate) async fn commit_as_server(
        &self,
        session: SessionId,
        call: &Call,
        command: (&Command, &Payloads),
    ) -> Result<(), EngineError> {
        let submission = Submission {
            authority: Authority::Server,
            ..Submission::new(call, command)
        };
        self.submit_keyed(session, submission).await.map(drop)
    }

    /// Answers a repeat under an idempotency key with the kept bytes; commits the command otherwise.
    async fn submit_keyed(
        &self,
        session: SessionId,
        submission: Submission<'_>,
    ) -> Result<Done, EngineError> {
        submission.require_role()?;
        let Some(key) = submission.call.key else {
            return self.submit_once(session, &submission).await;
        };
        let key_lock = self.inner().in_flight.lock(key.key).await;
        if let Some(answer) = self.kept_answer(key).await? {
            return Ok(answer);
        }
        if self.inner().answers_kept.load(Ordering::Relaxed) >= KEPT_MAX {
            return Err(EngineError::TooMany(
                "too many idempotency keys were used in a day; try again later, or without one",
            ));
        }
        let submission = Submission {
            key_lock: Some(&key_lock),
            ..submission
        };
        self.submit_once(session, &submission).await
    }

    /// Submits a command that was not done before, merged with the values that are there if it asks for
    /// that.
    async fn submit_once(
        &self,
        session: SessionId,
        submission: &Submission<'_>,
    ) -> Result<Done, EngineError> {
        if merge::merges(submission.command) {
            return Box::pin(self.submit_merged(session, submission)).await;
        }
        Ok(self.submit_in_line(session, submission, None).await?.0)
    }

    /// The answer kept for a key, if the same call was made under it before.
    pub(crate) async fn kept_answer(
        &self,
        key: IdempotencyKey,
    ) -> Result<Option<Done>, EngineError> {
        let inner = self.inner();
        let Some(answer) = inner.store.answer(key.key).await? else {
            return Ok(None);
        };
        if answer.expires_at <= inner.clock.now() {
            inner.forget_answers(1_024).await?;
            return Ok(None);
        }
        if answer.fingerprint != key.fingerprint {
            return Err(EngineError::KeyReused);
        }
        Ok(Some(Done {
            revision: answer.revision,
            body: answer.body,
            replayed: true,
        }))
    }

    /// The receipt kept under an idempotency key, if the same call was made before. Waits for a call under
    /// this key that is in flight.
    pub(crate) async fn kept_receipt<V: DeserializeOwned>(
        &self,
        session: SessionId,
        key: IdempotencyKey,
    ) -> Result<Option<Receipt<V>>, EngineError> {
        let _key_lock = self.inner().in_flight.lock(key.key).await;
        let kept = self.kept_answer(key).await?;
        kept.map(|kept| Receipt::new(session, kept, None))
            .transpose()
    }

    /// Waits until every commit of a session that is in flight has become durable or failed.
    pub(super) async fn wait_settled(&self, session: SessionId) -> Result<(), EngineError> {
        let mailbox = self.mailbox(session).await?;
        let mut durable = mailbox.durable.subscribe();
        let mut slot = mailbox.head.lock().await;
        let head = mailbox.load(&mut slot, self.inner()).await?;
        let head = head.ok_or(EngineError::NotFound)?;
        let (revision, failures) = (head.state.revision, head.failures);
        drop(slot);
        settled(&mut durable, revision, failures).await;
        Ok(())
    }

    /// Decides a command, as often as what it was decided on is lost, and waits until it is durable. What
    /// goes behind it is in line by then, if it came to a commit.
    pub(crate) async fn submit_in_line(
        &self,
        session: SessionId,
        submission: &Submission<'_>,
        behind: Option<&Submission<'_>>,
    ) -> Result<(Done, Option<InLine>), EngineError> {
        let mailbox = match submission.command {
            Command::CreateSession { .. } => self.mailbox_of_new(session),
            _ => self.mailbox(session).await?,
        };
        for _ in 0..RETRIES_MAX {
            let attempt = self.attempt(&mailbox, submission, behind).await?;
            if let Attempt::Done(done, behind) = attempt {
                return Ok((done, behind));
            }
        }
        Err(EngineError::TooMany(
            "the session changes too fast to decide; try again",
        ))
    }

    async fn attempt(
        &self,
        mailbox: &Arc<Mailbox>,
        submission: &Submission<'_>,
        behind: Option<&Submission<'_>>,
    ) -> Result<Attempt, EngineError> {
        let inner = self.inner();
        let mut durable = mailbox.durable.subscribe();
        let mut slot = mailbox.head.lock().await;
        let is_new = matches!(submission.command, Command::CreateSession { .. });
        let head = match mailbox.load(&mut slot, inner).await? {
            Some(head) => head,
            None if is_new => {
                let failures = mailbox.durable.borrow().failures;
                let state = Arc::new(SessionState::new(mailbox.session));
                slot.insert(Head { state, failures })
            }
            None => return Err(EngineError::NotFound),
        };
        let decided_on = head.state.revision;
        let failures = head.failures;
        // What ended in a commit that is still under way is found only when that is durable.
        let names_ended = is_missing(&head.state, &submission.command.named());
        if names_ended && !settled(&mut durable, decided_on, failures).await {
            return Ok(Attempt::Again);
        }
        let outcome = self.decide(&head.state, submission).await;
        let (record, late) = match outcome {
            Ok(Outcome::Commit(record)) => (record, None),
            Ok(Outcome::CommitThenRefuse(record, late)) => (record, Some(late)),
            Ok(Outcome::AlreadyDone { revision }) => {
                drop(slot);
                if !settled(&mut durable, decided_on, failures).await {
                    return Ok(Attempt::Again);
                }
                return self
                    .done_before(mailbox.session, submission, revision)
                    .await;
            }
            Err(error) => {
                drop(slot);
                if !settled(&mut durable, decided_on, failures).await {
                    return Ok(Attempt::Again);
                }
                return Err(error);
            }
        };
        let merged = submission.merged.filter(|_| late.is_none());
        if let Some(conflict) = merged.and_then(|merged| merged.conflict_in(&head.state)) {
            drop(slot);
            // The next merge reads the store, which has to know the newer value by then.
            if !settled(&mut durable, decided_on, failures).await {
                return Ok(Attempt::Again);
            }
            return Err(conflict);
        }
        let ready = self.prepare(&head.state, submission, record, late.is_none())?;
        let claim = match behind {
            None if late.is_none() => self.pending_claim(submission.command, &ready.commit),
            _ => None,
        };
        // Both are decided before the first is in line, so that one write to the disk takes both.
        let next = if late.is_none() && (behind.is_some() || claim.is_some()) {
            Box::pin(self.decide_next(&ready.commit, behind, claim)).await
        } else {
            None
        };
        let key_lock = submission.key_lock.cloned();
        let InLine { done, told } = self.put_in_line(mailbox, head, ready, key_lock).await?;
        let behind = match next {
            Some(next) => Box::pin(self.put_next(mailbox, head, next)).await,
            None => None,
        };
        drop(slot);
        match told.await.unwrap_or(Err(StoreError::Stopped)) {
            Ok(_) => match late {
                Some(late) => Err(late.into()),
                None => Ok(Attempt::Done(done, behind)),
            },
            Err(StoreError::Conflict { .. }) => Ok(Attempt::Again),
            Err(StoreError::KeyTaken { .. }) => match submission.call.key {
                Some(key) => match self.kept_answer(key).await? {
                    Some(done) => Ok(Attempt::Done(done, None)),
                    None => Ok(Attempt::Again),
                },
                None => Ok(Attempt::Again),
            },
            Err(error) => Err(error.into()),
        }
    }

    /// Puts a command in line that was decided on the head, which it replaces.
    async fn put_in_line(
        &self,
        mailbox: &Arc<Mailbox>,
        head: &mut Head,
        ready: Ready,
        key_lock: Option<KeyLock>,
    ) -> Result<InLine, EngineError> {
        let after = Arc::new(ready.commit.after.clone());
        let effects = Effects {
            aftermath: Aftermath::of(self.inner(), &ready.commit),
            keeps_answer: ready.commit.answer.is_some(),
            credential: ready.credential,
            key_lock,
        };
        let pending = self.inner().store.begin_commit(ready.commit).await?;
        // From here to the spawned task there is no await: a caller that goes away cannot leave a
        // head that builds on a commit nobody waits for.
        head.state = Arc::clone(&after);
        let done = Done {
            revision: after.revision,
            body: ready.body,
            replayed: false,
        };
        let told = self.wait_in_background(mailbox, after, pending, effects);
        Ok(InLine { done, told })
    }

    /// The commit of a record, and the answer that its caller gets. A command that is refused after
    /// all, because a deadline had passed, has no answer to keep.
    fn prepare(
        &self,
        before: &SessionState,
        submission: &Submission<'_>,
        record: Record,
        is_done: bool,
    ) -> Result<Ready, EngineError> {
        let bodies = submission.payloads.of(&record);
        let mut commit = Commit::new(before, record, bodies)
            .map_err(|error| EngineError::Invalid(error.to_string()))?;
        if let Some(merged) = submission.merged {
            commit.set_merged(merged.shared.iter().cloned());
        }
        let credential = submission.credential.map(|credential| {
            let credentials = &self.inner().credentials;
            credentials.keep(credential, submission.command, &commit)
        });
        let credential = credential.transpose()?;
        if !is_done {
            return Ok(Ready {
                commit,
                body: Vec::new(),
                credential,
            });
        }
        let body = (submission.answer)(&Committed {
            before,
            after: &commit.after,
            record: &commit.record,
            changes: &commit.changes,
            payloads: submission.payloads,
        });
        if let Some(key) = submission.call.key {
            commit.answer = Some(Answer {
                key: key.key,
                fingerprint: key.fingerprint,
                session: commit.session(),
                revision: commit.after.revision,
                body: body.clone(),
                expires_at: self.inner().clock.now().plus_ms(KEPT_MS),
            });
        }
        Ok(Ready {
            commit,
            body,
            credential,
        })
    }

    /// Waits for a commit to a state also if its caller goes away, and tells what became of it.
    fn wait_in_background(
        &self,
        mailbox: &Arc<Mailbox>,
        after: Arc<SessionState>,
        pending: PendingCommit,
        effects: Effects,
    ) -> oneshot::Receiver<Result<u64, StoreError>> {
        let (tell, told) = oneshot::channel();
        let (engine, mailbox) = (self.clone(), Arc::clone(mailbox));
        self.inner().tasks.spawn(async move {
            let Effects {
                mut aftermath,
                keeps_answer,
                credential,
                key_lock,
            } = effects;
            let result = pending.await;
            let inner = engine.inner();
            match &result {
                Ok(_) => {
                    inner.is_full.store(false, Ordering::Relaxed);
                    inner
                        .answers_kept
                        .fetch_add(keeps_answer.into(), Ordering::Relaxed);
                    mailbox.keep(&after);
                    mailbox.durable.send_modify(|durable| {
                        durable.revision = durable.revision.max(after.revision);
                    });
                    let unneeded = std::mem::take(&mut aftermath.unneeded).into_holds();
                    if let Some(credential) = credential {
                        credential.settle();
                    }
                    inner.after_commit(aftermath);
                    // Whoever is told that an action has ended can rely on it that nobody reads its
                    // sealed arguments any more.
                    engine.destroy_hold_keys(unneeded).await;
                }
                Err(error) => {
                    // Before the caller is told: it may bring the same again.
                    drop(credential);
                    if matches!(error, StoreError::Full) {
                        inner.is_full.store(true, Ordering::Relaxed);
                    }
                    mailbox.durable.send_modify(|durable| durable.failures += 1);
                }
            }
            // A repeat finds the kept answer from here on.
            drop(key_lock);
            // The caller may have gone away. The commit stays.
            drop(tell.send(result));
        });
        told
    }

    /// The answer to the decision of a hold that was taken before.
    async fn done_before(
        &self,
        session: SessionId,
        submission: &Submission<'_>,
        revision: u64,
    ) -> Result<Attempt, EngineError> {
        let body = self
            .answer_again(session, submission.answer, revision)
            .await?;
        let done = Done {
            revision,
            body,
            replayed: true,
        };
        Ok(Attempt::Done(done, None))
    }

    /// Writes the answer to a record again, from the log.
    async fn answer_again(
        &self,
        session: SessionId,
        answer: WriteAnswer<'_>,
        revision: u64,
    ) -> Result<Vec<u8>, EngineError> {
        let store = &self.inner().store;
        let before = match revision {
            1 => Some(SessionState::new(session)),
            _ => store.load_at(session, revision - 1).await?,
        };
        let stored = store.records(session, revision - 1, 1).await?;
        let (Some(before), Some(stored)) = (before, stored.into_iter().next()) else {
            return Err(EngineError::NotFound);
        };
        let mut after = before.clone();
        statehold_core::apply::apply(&mut after, &stored.record);
        let changes = statehold_core::projection::changes(&before, &stored.record, &after);
        let payloads = Payloads::of_stored(&stored);
        Ok(answer(&Committed {
            before: &before,
            after: &after,
            record: &stored.record,
            changes: &changes,
            payloads: &payloads,
        }))
    }
}

/// Whether a command names something that is not live.
fn is_missing(state: &SessionState, named: &Named) -> bool {
    named
        .request
        .is_some_and(|id| !state.requests.contains_key(&id))
        || named.task.is_some_and(|id| !state.tasks.contains_key(&id))
        || named.hold.is_some_and(|id| !state.holds.contains_key(&id))
        || named.past.is_some()
}

/// Waits until a revision is durable. False if a commit before it failed, so that what was decided on
/// it means nothing.
async fn settled(durable: &mut watch::Receiver<Durable>, revision: u64, failures: u64) -> bool {
    let now = durable
        .wait_for(|durable| durable.failures != failures || durable.revision >= revision)
        .await;
    now.is_ok_and(|now| now.failures == failures)
}

impl Inner {
    /// Marks a mailbox as used, so that it is among the last to be forgotten.
    pub(crate) fn touch(&self, mailbox: &Mailbox) {
        let now = self.calls.fetch_add(1, Ordering::Relaxed);
        mailbox.used.store(now, Ordering::Relaxed);
    }
}
