//! A small engine for one session: decides commands with the core, commits them, keeps what they
//! came to. It does one thing after another and repeats nothing, so a check sees every answer.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{self, Poll, Wake};
use std::thread::{self, Thread};

use statehold_core::apply::apply;
use statehold_core::command::{
    Command, Context, Fenced, LoadedFacts, Named, Outcome, Past, Rejection,
};
use statehold_core::decide::decide;
use statehold_core::digest::{BodyRef, Digest, PayloadKey};
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::merge::{MergeError, merge_json};
use statehold_core::principal::Actor;
use statehold_core::record::{Event, Record};
use statehold_core::scope::{MergePolicy, StateKey};
use statehold_core::session::{Owner, SessionState};
use statehold_core::time::Timestamp;

use super::fixture;
use crate::{Commit, MergedValue, SharedOwner, Store, StoreError, StoredRecord};

/// Runs a future on this thread, which sleeps in between.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(thread::current())).into();
    let mut context = task::Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Why a command came to nothing.
#[derive(Debug)]
pub enum Refusal {
    /// The core refused it.
    Rejected(Rejection),
    /// The store refused its commit.
    Store(StoreError),
    /// A shared value does not merge with the one that is there.
    Merge(StateKey, MergeError),
}

/// Merges the shared values that a record writes with those of a store, as the engine does.
///
/// # Errors
///
/// If a value does not merge, or the store does not answer.
pub async fn merge(
    store: &dyn Store,
    owner: &Owner,
    record: &Record,
    bodies: &[Vec<u8>],
) -> Result<Vec<MergedValue>, Refusal> {
    let mut bodies = bodies.iter();
    let mut merged = Vec::new();
    for event in &record.content.events {
        let operand = bodies.by_ref().take(event.bodies().len()).last();
        let (Event::SharedStatePut { key, merge, .. }, Some(operand)) = (event, operand) else {
            continue;
        };
        if *merge == MergePolicy::Replace {
            continue;
        }
        let owner = SharedOwner::of(owner, key.scope());
        let there = store.shared_value(owner, key.clone()).await;
        let there = there.map_err(Refusal::Store)?;
        let old = there.as_ref().map(|there| there.value.as_slice());
        let value = merge_json(*merge, old, operand);
        merged.push(MergedValue {
            key: key.clone(),
            merged_with: there.as_ref().map_or(0, |there| there.version),
            value: value.map_err(|error| Refusal::Merge(key.clone(), error))?,
        });
    }
    Ok(merged)
}

/// Whether the record itself names this version of a shared key.
fn expects(record: &Record, key: &StateKey, version: u64) -> bool {
    record.content.events.iter().any(|event| match event {
        Event::SharedStatePut {
            key: at, expected, ..
        } => at == key && *expected == Some(version),
        _ => false,
    })
}

/// One session and whoever drives it.
#[derive(Clone)]
pub struct Driver {
    /// Where the session lasts.
    pub store: Arc<dyn Store>,
    /// Whose session it is.
    pub owner: Owner,
    /// The state after the last commit, folded here.
    pub state: SessionState,
    /// The state at every revision, from 0 on.
    pub past: Vec<SessionState>,
    /// All that was committed, with what a fork shares with its origin.
    pub log: Vec<StoredRecord>,
    /// The clock. Every command is one second later than the one before.
    pub now: Timestamp,
    /// The requests in the order of their aliases.
    pub requests: Vec<RequestId>,
    /// The tasks in the order of their aliases, with the ids they have here.
    pub tasks: Vec<TaskId>,
    /// The holds in the order they were opened.
    pub holds: Vec<HoldId>,
    payloads: BTreeMap<BodyRef, Vec<u8>>,
    entropy: u64,
}

impl Driver {
    /// A driver of the n-th session, which is still to be created.
    pub fn new(store: Arc<dyn Store>, owner: Owner, n: u64) -> Self {
        let state = SessionState::new(fixture::session(n));
        Self {
            store,
            owner,
            past: vec![state.clone()],
            state,
            log: Vec::new(),
            now: fixture::seconds(0),
            requests: Vec::new(),
            tasks: Vec::new(),
            holds: Vec::new(),
            payloads: BTreeMap::new(),
            entropy: n << 40,
        }
    }

    /// A driver of the n-th session of the suite's first user, created.
    pub async fn begin(store: &Arc<dyn Store>, n: u64) -> Self {
        Self::begin_for(store, fixture::owner(), n).await
    }

    /// A driver of the n-th session, created for an owner.
    pub async fn begin_for(store: &Arc<dyn Store>, owner: Owner, n: u64) -> Self {
        let mut driver = Self::new(Arc::clone(store), owner, n);
        let create = driver.create(None);
        driver.ok(&driver.client(), create).await;
        driver
    }

    /// The session.
    pub fn session(&self) -> SessionId {
        self.state.session
    }

    /// The session's user.
    pub fn client(&self) -> Actor {
        fixture::client(&self.owner)
    }

    /// The n-th worker.
    pub fn worker(&self, n: u64) -> Actor {
        fixture::worker(&self.owner, n)
    }

    /// The n-th approver.
    pub fn approver(&self, n: u64) -> Actor {
        fixture::approver(&self.owner, n)
    }

    /// Lets time pass.
    pub fn later(&mut self, seconds: u64) {
        self.now = self.now.plus_ms(seconds * 1_000);
    }

    /// Describes a payload, and keeps it for the commit that names it. Every user has a key.
    pub fn body(&mut self, payload: impl AsRef<[u8]>) -> BodyRef {
        let payload = payload.as_ref();
        let secret = Digest::sha256(self.owner.user.to_string().as_bytes());
        let body = BodyRef::of(&PayloadKey::from_bytes(*secret.as_bytes()), payload);
        self.payloads.insert(body, payload.to_vec());
        body
    }

    /// The n-th request, counted from 1, with its current fence.
    pub fn fenced(&self, n: usize) -> Fenced {
        let request = self.requests[n - 1];
        let fence = self
            .state
            .requests
            .get(&request)
            .map_or(0, |live| live.fence);
        Fenced { request, fence }
    }

    pub(super) fn fresh_entropy(&mut self) -> u64 {
        self.entropy += 1 << 16;
        self.entropy
    }

    /// Makes this driver mint other ids than the one it was cloned from.
    pub fn diverge(&mut self, n: u64) {
        self.entropy += n << 32;
    }

    /// Decides a command on the newest state, with the finished things that it names.
    ///
    /// # Errors
    ///
    /// The rejection of the core.
    pub async fn decide(&mut self, actor: &Actor, command: &Command) -> Result<Outcome, Rejection> {
        self.later(1);
        let context = Context {
            now: self.now,
            actor: actor.clone(),
            entropy: self.fresh_entropy(),
            leases: BTreeMap::new(),
            loaded: self.loaded(command).await,
        };
        decide(&self.state, command, &context)
    }

    /// The record that a command comes to.
    pub async fn record(&mut self, actor: &Actor, command: Command) -> Record {
        let outcome = self.decide(actor, &command).await;
        let outcome = outcome.unwrap_or_else(|refusal| panic!("{command:?}: {refusal}"));
        let record = outcome.record().cloned();
        record.unwrap_or_else(|| panic!("{command:?} was done before"))
    }

    /// The commit of a record that was decided on the newest state.
    pub fn commit_of(&self, record: &Record) -> Commit {
        let bodies = self.bodies_of(record);
        Commit::new(&self.state, record.clone(), bodies).expect("every payload is kept")
    }

    fn bodies_of(&self, record: &Record) -> Vec<Vec<u8>> {
        let payload = |body| self.payloads.get(body).cloned();
        let bodies = record.bodies();
        let payloads = bodies.iter().map(payload);
        payloads
            .map(|payload| payload.expect("made by `body`"))
            .collect()
    }

    /// Takes over a record that was committed.
    pub fn absorb(&mut self, record: &Record) {
        apply(&mut self.state, record);
        self.past.push(self.state.clone());
        self.log.push(StoredRecord {
            record: record.clone(),
            bodies: self.bodies_of(record).into_iter().map(Some).collect(),
        });
        for event in &record.content.events {
            match event {
                Event::RequestStarted { request, .. } => self.requests.push(*request),
                Event::TaskOpened { task, .. } => self.tasks.push(*task),
                Event::HoldOpened { hold, .. } => self.holds.push(*hold),
                Event::TaskRenamed { from, to } => {
                    let renamed = self.tasks.iter_mut().filter(|task| *task == from);
                    renamed.for_each(|task| *task = *to);
                }
                _ => {}
            }
        }
    }

    /// Decides a command, commits it, and answers with its revision, also where the core's answer
    /// is a deadline that came first.
    ///
    /// # Errors
    ///
    /// If the core or the store refuses; the driver is where it was then.
    pub async fn send(&mut self, actor: &Actor, command: Command) -> Result<u64, Refusal> {
        let outcome = self
            .decide(actor, &command)
            .await
            .map_err(Refusal::Rejected)?;
        if let Outcome::AlreadyDone { revision } = outcome {
            return Ok(revision);
        }
        let record = outcome.record().expect("it was not done before");
        let revision = self.commit_merged(record).await?;
        assert_eq!(
            revision, record.content.seq,
            "the answer to a commit is its revision"
        );
        self.absorb(record);
        Ok(revision)
    }

    /// The commit of a record, merged with the shared values that are there.
    ///
    /// # Errors
    ///
    /// If a value does not merge, or the store does not answer.
    pub async fn merged_commit_of(&self, record: &Record) -> Result<Commit, Refusal> {
        let mut commit = self.commit_of(record);
        let bodies = self.bodies_of(record);
        commit.set_merged(merge(&*self.store, &self.owner, record, &bodies).await?);
        Ok(commit)
    }

    /// Commits a record, merged with the shared values that are there. Merges again as long as other
    /// writers are faster, as the engine does.
    async fn commit_merged(&self, record: &Record) -> Result<u64, Refusal> {
        loop {
            let commit = self.merged_commit_of(record).await?;
            match self.store.commit(commit).await {
                Err(StoreError::SharedConflict { key, expected, .. })
                    if !expects(record, &key, expected) => {}
                other => return other.map_err(Refusal::Store),
            }
        }
    }

    /// Sends a command that is known to be taken.
    pub async fn ok(&mut self, actor: &Actor, command: Command) -> u64 {
        let name = command.name();
        let sent = self.send(actor, command).await;
        sent.unwrap_or_else(|refusal| panic!("{name:?} is refused: {refusal:?}"))
    }

    /// Sends a command that the store is known to refuse.
    pub async fn refused(&mut self, actor: &Actor, command: Command) -> StoreError {
        let name = command.name();
        match self.send(actor, command).await {
            Err(Refusal::Store(error)) => error,
            other => panic!("the store does not refuse {name:?}: {other:?}"),
        }
    }

    /// Copies the session as it was at a revision into the n-th session.
    pub async fn fork(&self, n: u64, at: u64) -> Self {
        let mut fork = self.at(at);
        fork.diverge(n);
        let command = Command::Fork {
            session: fixture::session(n),
            through: Some(self.session()),
        };
        fork.ok(&fork.client(), command).await;
        fork
    }

    /// This driver as it was at a revision.
    #[must_use]
    pub fn at(&self, revision: u64) -> Self {
        let index = usize::try_from(revision).expect("a revision of the suite");
        let mut earlier = Self {
            state: self.past[0].clone(),
            past: vec![self.past[0].clone()],
            log: Vec::new(),
            requests: Vec::new(),
            tasks: Vec::new(),
            holds: Vec::new(),
            ..self.clone()
        };
        for stored in &self.log[..index] {
            earlier.absorb(&stored.record);
        }
        earlier
    }

    /// The finished things that a command names, and the past that a rewind goes back to.
    async fn loaded(&self, command: &Command) -> LoadedFacts {
        const HEALTHY: &str = "the store answers";
        let Named {
            hold,
            request,
            task,
            past: to,
        } = command.named();
        let mut loaded = LoadedFacts::default();
        if let Some(id) = request {
            let ended = self.store.ended_request(id).await.expect(HEALTHY);
            loaded.request = ended.map(|ended| (ended.id, ended.outcome));
        }
        if let Some(id) = task {
            let closed = self.store.closed_task(id).await.expect(HEALTHY);
            loaded.task = closed.map(|closed| closed.task.id);
        }
        if let Some(id) = hold {
            let closed = self.store.closed_hold(id).await.expect(HEALTHY);
            loaded.hold = closed.map(Into::into);
        }
        if let Some(revision) = to {
            let past = self
                .store
                .load_at(self.session(), revision)
                .await
                .expect(HEALTHY);
            loaded.past = past.as_ref().map(Past::from);
            let kept = self.store.kept_revision(self.session(), revision).await;
            let kept = self
                .store
                .load_at(self.session(), kept.expect(HEALTHY))
                .await;
            if let (Some(past), Some(kept)) = (&mut loaded.past, kept.expect(HEALTHY)) {
                past.memories = kept.memories;
            }
        }
        loaded
    }
}
