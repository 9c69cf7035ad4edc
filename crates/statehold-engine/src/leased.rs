//! A request that a worker of this process has leased: all that its agent may read and write while it
//! runs, in types of the core. The runner of hosted agents works through it. Each write is one commit,
//! under the fence of the lease, and returns when it is durable.
//!
//! A lease may be decided and not durable yet. Its worker may go on inside the server, and calls
//! [`LeasedRequest::durable`] before it asks a model, an agent or a tool.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::value::RawValue;
use statehold_core::command::{Command, Fenced, Output, StartRequest, StatePatch, StateSet};
use statehold_core::digest::BodyRef;
use statehold_core::hold::HoldKind;
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId, UserId};
use statehold_core::item::{ItemKind, NewCallMark, NewItem, Role, Visibility};
use statehold_core::memory::AgentPath;
use statehold_core::name::Name;
use statehold_core::record::{Event, Record};
use statehold_core::request::RequestOutcome;
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_core::session::{Owner, SessionState};
use statehold_store::{MemoryPage, MemoryQuery, PageLimit, SharedOwner, StoredRecord};

use crate::api::caller::{ReadToken, token_caller};
use crate::api::conversation::{self, ConversationPage, ConversationPlace};
use crate::bodies::{ItemBody, message_in, parse, payload};
use crate::caller::{Caller, PhaseScope};
use crate::claim::ClaimedRequest;
use crate::commit::call::{Call, DecidedCommit};
use crate::commit::payloads::Payloads;
use crate::commit::queue::Durability;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::{Audience, CallCredential, Credential};
use crate::guard::policy::Policies;
use crate::holds::{HoldDetail, Pending};
use crate::locks::Lock;
use crate::open_hold::{HoldSpec, open_hold, open_hold_for};
use crate::own_work::{Ended, Progress};
use crate::read::{ItemPage, RequestDetail};

/// The lease of a child request for the worker that starts it.
pub struct ChildLease<'a> {
    /// How long it lasts without a heartbeat.
    pub ttl_ms: u64,
    /// Whether the turn of the child starts with another command of the session.
    pub starts_with_commit: bool,
    /// Takes the child when its start is decided.
    pub hand_over: &'a (dyn Fn(ClaimedTurn) + Send + Sync),
}

/// Ids of a leased request.
#[derive(Debug, Clone, Copy)]
pub struct RequestRef {
    /// Its session.
    pub session: SessionId,
    /// Its task.
    pub task: TaskId,
    /// The request.
    pub request: RequestId,
    /// The fence of the lease.
    pub fence: u64,
}

impl RequestRef {
    fn fenced(self) -> Fenced {
        Fenced {
            request: self.request,
            fence: self.fence,
        }
    }
}

/// Everything that one commit writes to a request, with its payloads.
#[derive(Debug)]
pub struct WriteBatch {
    payloads: Payloads,
    items: Vec<NewItem>,
    state: StatePatch,
    task_state: Option<BodyRef>,
    policies: Arc<Policies>,
}

impl WriteBatch {
    /// The payloads, for a message that goes with the batch.
    pub fn payloads(&mut self) -> &mut Payloads {
        &mut self.payloads
    }

    /// Adds a hidden item: clients never see it.
    pub fn push(&mut self, kind: ItemKind, call: Option<NewCallMark>, body: &ItemBody) {
        self.items.push(NewItem {
            kind,
            visibility: Visibility::Hidden,
            role: None,
            body: self.payloads.put_own_item(body),
            attachments: Vec::new(),
            call,
        });
    }

    /// Adds a message of the agent that clients see.
    pub fn push_message(&mut self, message: Output) {
        self.items.push(NewItem {
            attachments: message.attachments,
            ..NewItem::message(Role::Assistant, message.body)
        });
    }

    /// Replaces the value of a session or user key.
    pub fn set_state(&mut self, key: StateKey, value: &RawValue) {
        self.state.set.push(StateSet {
            value: self.payloads.put_value(&key, value.get().into()),
            key,
            merge: MergePolicy::Replace,
        });
    }

    /// Writes a value under the merge policy that the configuration gives its key.
    pub fn merge_state(&mut self, key: StateKey, value: &RawValue) {
        self.state.set.push(StateSet {
            value: self.payloads.put_value(&key, value.get().into()),
            merge: self.policies.state.merge_of(&key),
            key,
        });
    }

    /// Deletes a session or user key.
    pub fn delete_state(&mut self, key: StateKey) {
        self.state.delete.push(key);
    }

    /// Replaces the private state of the task.
    pub fn set_task_state(&mut self, state: &RawValue) {
        self.task_state = Some(self.payloads.put_opaque(state.get().into()));
    }

    /// The command that appends the batch to a request.
    fn append_to(self, by: Fenced) -> (Command, Payloads) {
        let command = Command::AppendItems {
            by,
            items: self.items,
            state: self.state,
            task_state: self.task_state,
        };
        (command, self.payloads)
    }
}

/// A child of an earlier attempt of a turn.
#[derive(Debug, Clone)]
pub struct EarlierChild {
    /// The request.
    pub request: RequestId,
    /// Its task.
    pub task: TaskId,
    /// Its agent.
    pub agent: Name,
    /// How it ended.
    pub outcome: RequestOutcome,
}

/// The earlier attempts of a turn: failed requests, each continued by the next.
#[derive(Debug, Default)]
pub struct EarlierAttempts {
    /// The requests, newest first.
    pub requests: Vec<RequestId>,
    /// The record that started the first of them.
    pub started: Option<StoredRecord>,
    /// Their children, oldest first.
    pub children: Vec<EarlierChild>,
    /// Their holds, oldest first.
    pub holds: Vec<HoldDetail>,
}

/// The failed request that a request continues, from the record that started it.
pub(crate) fn continued_by(started: &Record, of: RequestId) -> Option<RequestId> {
    let mut events = started.content.events.iter();
    events.find_map(|event| match event {
        Event::RequestStarted {
            request, continues, ..
        } if *request == of => continues.map(|continued| continued.request),
        _ => None,
    })
}

/// A leased request, and the engine and caller that hold its lease.
#[derive(Debug, Clone)]
pub struct LeasedRequest {
    /// Its ids and its fence.
    pub ids: RequestRef,
    /// The request that waits for it.
    pub parent: Option<RequestId>,
    engine: Engine,
    call: Call,
    agent: Name,
    path: AgentPath,
    /// Of the command that granted the lease. None if it was durable before.
    durability: Option<Durability>,
}

/// A claimed request, with everything that its turn begins from.
#[derive(Debug, Clone)]
pub struct ClaimedTurn {
    /// The request.
    pub request: LeasedRequest,
    /// The record that started it.
    pub started: Option<StoredRecord>,
    /// Its holds, oldest first.
    pub holds: Vec<HoldDetail>,
    /// Its child requests with their agents, oldest first.
    pub children: Vec<(RequestId, Name)>,
    /// The credential that came with the request or answered one of its holds, while it is in memory.
    pub credential: Option<Credential>,
    /// The configured credential of its agent.
    pub service_credential: Option<Credential>,
}

impl ClaimedTurn {
    /// The turn of a request that a durable claim of this caller leased. None if it has ended meanwhile.
    pub fn of(engine: &Engine, caller: &Caller, claimed: ClaimedRequest) -> Option<Self> {
        let request = LeasedRequest::of(engine, caller, &claimed)?;
        let mut children: Vec<_> = claimed.children.iter().collect();
        children.sort_unstable_by_key(|child| child.request.number());
        let children = children.into_iter();
        Some(Self {
            request,
            children: children
                .map(|child| (child.request.id(), child.task.agent.clone()))
                .collect(),
            started: claimed.detail.started,
            holds: claimed.detail.holds,
            credential: claimed.credential.map(|(credential, _)| credential),
            service_credential: claimed.service_credential,
        })
    }

    /// The turn of a request that was started and leased just now. `state` has the lease, decided and
    /// queued. None if the state has no such request.
    pub(crate) fn decided(
        engine: &Engine,
        call: &Call,
        state: &SessionState,
        (request, started): (RequestId, StoredRecord),
        durability: Durability,
    ) -> Option<Self> {
        let live = state.requests.get(&request)?;
        let task = state.tasks.get(&live.task)?;
        let agent = task.agent.clone();
        let credentials = &engine.inner().credentials;
        let credential = credentials.take(request);
        Some(Self {
            started: Some(started),
            holds: Vec::new(),
            children: Vec::new(),
            credential: credential.map(|(credential, _)| credential),
            service_credential: credentials.of_service(&agent),
            request: LeasedRequest {
                ids: RequestRef {
                    session: state.session,
                    task: live.task,
                    request,
                    fence: live.fence,
                },
                parent: live.parent,
                engine: engine.clone(),
                call: call.clone(),
                agent,
                path: task.path.clone(),
                durability: Some(durability),
            },
        })
    }
}

impl LeasedRequest {
    /// The lease that a claim of this caller granted. None if the request has ended meanwhile.
    pub fn of(engine: &Engine, caller: &Caller, claimed: &ClaimedRequest) -> Option<Self> {
        let live = claimed.detail.request.live()?;
        Some(Self {
            ids: RequestRef {
                session: claimed.detail.session.id,
                task: live.task,
                request: live.id,
                fence: live.fence,
            },
            parent: live.parent,
            engine: engine.clone(),
            call: Call::by(caller.clone()),
            agent: claimed.detail.task.agent.clone(),
            path: claimed.detail.task.path.clone(),
            durability: None,
        })
    }

    /// Waits until the lease is durable, and with it everything that the session decided before.
    ///
    /// # Errors
    ///
    /// If its commit failed: there is no such lease.
    pub async fn durable(&self) -> Result<(), EngineError> {
        match &self.durability {
            Some(durability) if !durability.wait().await => Err(EngineError::NotFound),
            _ => Ok(()),
        }
    }

    fn write(&self, payloads: Payloads) -> SessionWrite<'_> {
        SessionWrite {
            payloads,
            lease: self.durability.as_ref(),
            ..SessionWrite::new(&self.engine, &self.call, self.ids.session)
        }
    }

    /// Reads the earlier attempts of this turn. `started` is the record that started this request.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn earlier_attempts(
        &self,
        started: &StoredRecord,
    ) -> Result<EarlierAttempts, EngineError> {
        let mut attempts = EarlierAttempts::default();
        let mut next = continued_by(&started.record, self.ids.request);
        let store = &self.engine.inner().store;
        while let Some(request) = next {
            let detail = self.engine.request(&self.call.caller, request).await?;
            let mut children = Vec::new();
            for child in store.children_of(request).await? {
                let ended = store.ended_request(child).await?;
                let ended = ended.ok_or(EngineError::NotFound)?;
                children.push(EarlierChild {
                    request: child,
                    task: ended.task,
                    agent: self.engine.agent_of(self.ids.session, ended.task).await?,
                    outcome: ended.outcome,
                });
            }
            attempts.children.splice(0..0, children);
            attempts.holds.splice(0..0, detail.holds);
            attempts.requests.push(request);
            let started = detail.started.as_ref();
            next = started.and_then(|started| continued_by(&started.record, request));
            attempts.started = detail.started;
        }
        Ok(attempts)
    }

    /// An empty batch.
    ///
    /// # Errors
    ///
    /// If there is no such session, or its keys cannot be read.
    pub async fn batch(&self) -> Result<WriteBatch, EngineError> {
        self.batch_redacted_for(&self.agent).await
    }

    /// An empty batch for the input of a request to another agent: the rules of that agent say which secrets are
    /// redacted in it.
    ///
    /// # Errors
    ///
    /// As [`LeasedRequest::batch`].
    pub async fn batch_redacted_for(&self, agent: &Name) -> Result<WriteBatch, EngineError> {
        Ok(WriteBatch {
            payloads: self.payloads_redacted_for(agent).await?,
            items: Vec::new(),
            state: StatePatch::default(),
            task_state: None,
            policies: self.engine.policies(),
        })
    }

    /// Payloads that this request's agent writes.
    async fn payloads(&self) -> Result<Payloads, EngineError> {
        self.payloads_redacted_for(&self.agent).await
    }

    async fn payloads_redacted_for(&self, agent: &Name) -> Result<Payloads, EngineError> {
        let mut payloads = self.engine.payloads_of(self.ids.session).await?;
        payloads.redact_by(self.engine.redaction_for(agent));
        Ok(payloads)
    }

    /// Appends a batch. Returns the ids of its items, in order.
    ///
    /// # Errors
    ///
    /// If the lease is lost, a policy forbids an item, or the core refuses.
    pub async fn append(&self, batch: WriteBatch) -> Result<Vec<ItemId>, EngineError> {
        let (command, payloads) = batch.append_to(self.ids.fenced());
        let ids = |made: &DecidedCommit<'_>| Some(item_ids(made));
        Ok(self.write(payloads).commit(&command, ids).await?.view)
    }

    /// Appends a batch right behind another one, in the same write to the disk. Returns the ids of its
    /// items, in order.
    ///
    /// # Errors
    ///
    /// As [`LeasedRequest::append`]. If only the second batch is refused, the first is appended.
    pub async fn append_behind(
        &self,
        first: WriteBatch,
        batch: WriteBatch,
    ) -> Result<Vec<ItemId>, EngineError> {
        let by = self.ids.fenced();
        let (append, payloads) = first.append_to(by);
        let first = self.write(payloads);
        let (command, payloads) = batch.append_to(by);
        let write = SessionWrite {
            preceded_by: Some((&first, &append)),
            ..self.write(payloads)
        };
        let ids = |made: &DecidedCommit<'_>| Some(item_ids(made));
        Ok(write.commit(&command, ids).await?.view)
    }

    /// Starts a request to another agent below this one. The batch has the payloads of the input. `step` is
    /// appended right before it, in the same write to the disk. A request that this worker leases is handed
    /// over when it is decided: again, as another request, if a commit below it fails.
    ///
    /// # Errors
    ///
    /// If the lease is lost, or the core refuses. A refused start leaves the step appended.
    pub async fn start_child(
        &self,
        (agent, lease): (&Name, Option<ChildLease<'_>>),
        (input, batch): (Output, WriteBatch),
        continued: Option<&EarlierChild>,
        step: Option<WriteBatch>,
        credential: Option<&Credential>,
    ) -> Result<RequestId, EngineError> {
        let by = self.ids.fenced();
        let command = Command::StartRequest(StartRequest {
            chat: None,
            continues: continued.map(|child| child.request),
            agent: agent.clone(),
            task: continued.map(|child| child.task),
            parent: Some(by),
            input: input.body,
            attachments: input.attachments,
            close_on: self.engine.policies().close_on(agent, None),
            lease_ttl_ms: lease.as_ref().map(|lease| lease.ttl_ms),
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        });
        let decided: Lock<Option<(SessionState, (RequestId, StoredRecord))>> = Lock::default();
        let hand_over = |durability: Durability| {
            let (Some(lease), Some((state, started))) = (&lease, decided.lock().take()) else {
                return;
            };
            let turn = ClaimedTurn::decided(&self.engine, &self.call, &state, started, durability);
            turn.into_iter().for_each(lease.hand_over);
        };
        let id = |made: &DecidedCommit<'_>| {
            let id = made.record.content.started_request()?;
            if lease.is_some() {
                *decided.lock() = Some((made.after.clone(), (id, made.stored())));
            }
            Some(id)
        };
        let step = step.map(|step| {
            let (append, payloads) = step.append_to(by);
            (self.write(payloads), append)
        });
        let start = SessionWrite {
            credential,
            on_decided: Some(&hand_over),
            is_delayed: lease.as_ref().is_some_and(|lease| lease.starts_with_commit),
            preceded_by: step.as_ref().map(|(step, append)| (step, append)),
            ..self.write(batch.payloads)
        };
        Ok(start.commit(&command, id).await?.view)
    }

    /// Completes the request with its answer, and cancels children that are still live.
    ///
    /// # Errors
    ///
    /// If the lease is lost, holds are open, or the core refuses.
    pub async fn complete(&self, output: Output, batch: WriteBatch) -> Result<(), EngineError> {
        self.complete_with(output, batch, (true, None)).await
    }

    /// Completes the request with its answer. `on_decided` is called when the end is decided: the request
    /// that waits for this one may end in the same write to the disk.
    ///
    /// # Errors
    ///
    /// As [`LeasedRequest::complete`]; or if children are live that are not to be cancelled.
    pub async fn complete_with(
        &self,
        output: Output,
        batch: WriteBatch,
        (cancel_children, on_decided): (bool, Option<&(dyn Fn() + Send + Sync)>),
    ) -> Result<(), EngineError> {
        let command = Command::CompleteRequest {
            by: self.ids.fenced(),
            output,
            items: batch.items,
            state: batch.state,
            task_state: batch.task_state,
            close_task: false,
            cancel_children,
        };
        let tell = |_: Durability| on_decided.into_iter().for_each(|tell| tell());
        let write = SessionWrite {
            on_decided: Some(&tell),
            is_delayed: on_decided.is_some(),
            ..self.write(batch.payloads)
        };
        write.commit_unseen(&command).await.map(drop)
    }

    /// Fails the request with an error, and cancels children that are still live.
    ///
    /// # Errors
    ///
    /// If the lease is lost, or holds are open.
    pub async fn fail(&self, error: &RawValue) -> Result<(), EngineError> {
        let mut payloads = self.payloads().await?;
        let command = Command::FailRequest {
            by: self.ids.fenced(),
            error: payloads.put_json(error),
            cancel_children: true,
        };
        let write = self.write(payloads);
        write.commit_unseen(&command).await.map(drop)
    }

    /// Releases the lease, because the request waits for a person. With a revision, only if the session
    /// still has it.
    ///
    /// # Errors
    ///
    /// If the lease is lost, or the session has another revision.
    pub async fn release(&self, if_revision: Option<u64>) -> Result<(), EngineError> {
        let by = self.ids.fenced();
        let call = Call {
            if_revision,
            ..self.call.clone()
        };
        let write = SessionWrite {
            lease: self.durability.as_ref(),
            ..SessionWrite::new(&self.engine, &call, self.ids.session)
        };
        let released = write.commit_unseen(&Command::ReleaseLease { by }).await;
        released.map(drop)
    }

    /// Opens a hold.
    ///
    /// # Errors
    ///
    /// If the lease is lost, the hold is invalid, or the policy is stricter.
    pub async fn open_hold(&self, spec: HoldSpec) -> Result<(), EngineError> {
        let payloads = self.payloads().await?;
        let (write, by) = (self.write(payloads), self.ids.fenced());
        let opened = open_hold(write, by, spec, Vec::new()).await;
        opened.map(drop)
    }

    /// The credential for agents of an audience that a call has lent to the turn, while that call is open.
    ///
    /// # Errors
    ///
    /// If the lease is lost, or the store fails.
    pub async fn lent_credential(
        &self,
        audience: Audience,
    ) -> Result<Option<Arc<CallCredential>>, EngineError> {
        self.durable().await?;
        let root = self.root().await?;
        Ok(self.engine.inner().credentials.lent(root, audience))
    }

    /// Whether the call that began the turn had a credential for agents of this audience.
    ///
    /// # Errors
    ///
    /// If the lease is lost, or the store fails.
    pub async fn began_with_credential(&self, audience: Audience) -> Result<bool, EngineError> {
        let (engine, root) = (&self.engine, self.root().await?);
        let detail = engine.request(&self.call.caller, root).await?;
        let input = detail.started.as_ref().and_then(|stored| {
            let input = message_in(&stored.record.content.events, root, Role::User)?;
            Some(parse::<ItemBody>(payload(stored, Some(input.body))))
        });
        let had = input.and_then(|input| input.credential_audience);
        Ok(had.as_deref() == Some(audience.word()))
    }

    /// Opens a `credential` hold that the next call with a credential for this audience answers.
    ///
    /// # Errors
    ///
    /// As [`LeasedRequest::open_hold`].
    pub async fn open_credential_hold(
        &self,
        audience: Audience,
        (title, message): (String, String),
    ) -> Result<(), EngineError> {
        let payloads = self.payloads().await?;
        let (write, by) = (self.write(payloads), self.ids.fenced());
        let spec = HoldSpec {
            kind: HoldKind::Credential,
            title,
            message: Some(message),
            action: None,
            response_schema: None,
            url: None,
            reasons: None,
            group_id: None,
            allowed: BTreeSet::new(),
            quorum: None,
            expires_in_seconds: None,
            on_expiry: None,
            decide_by: None,
        };
        let opened = open_hold_for(Some(audience), write, by, (spec, Vec::new())).await;
        opened.map(drop)
    }

    /// Checks that a hold is valid and allowed by the policy, apart from checks that depend on the
    /// current state. Used to open several holds or none.
    ///
    /// # Errors
    ///
    /// If the hold is invalid, or the policy is stricter.
    pub async fn require_valid_hold(&self, spec: &HoldSpec) -> Result<(), EngineError> {
        self.engine.require_valid_hold(&self.agent, spec).await
    }

    /// A token that reads the conversation as this request may, until the request ends.
    pub fn read_token(&self, ttl_seconds: u64) -> ReadToken {
        ReadToken {
            session: self.ids.session,
            tenant: self.call.caller.tenant.clone(),
            ends_at: self.engine.now().plus_ms(ttl_seconds.saturating_mul(1_000)),
            key: None,
            phase: Some(self.phase()),
        }
    }

    fn phase(&self) -> PhaseScope {
        PhaseScope {
            request: self.ids.request,
            turn: self.parent,
        }
    }

    /// The newest messages of the conversation at a revision, as a read token of this request reads them.
    ///
    /// # Errors
    ///
    /// If the store fails, or the request has ended.
    pub async fn conversation(
        &self,
        revision: u64,
        limit: PageLimit,
    ) -> Result<ConversationPage, EngineError> {
        let token = self.read_token(0);
        let (engine, session) = (&self.engine, self.ids.session);
        let caller = token_caller(engine, &token).await?;
        let caller = caller.ok_or(EngineError::NotFound)?;
        let place = ConversationPlace {
            revision,
            turn: self.parent,
            before: None,
        };
        conversation::messages(engine, &caller, session, place, limit).await
    }

    /// Extends the lease, without a commit.
    ///
    /// # Errors
    ///
    /// If the lease is lost.
    pub async fn heartbeat(&self) -> Result<(), EngineError> {
        let RequestRef {
            session,
            request,
            fence,
            ..
        } = self.ids;
        let beat = self
            .engine
            .heartbeat(&self.call.caller, session, request, fence);
        beat.await.map(drop)
    }

    /// The request with its holds and calls.
    ///
    /// # Errors
    ///
    /// If it is out of reach.
    pub async fn read(&self) -> Result<RequestDetail, EngineError> {
        self.engine
            .request(&self.call.caller, self.ids.request)
            .await
    }

    /// The newest exchanges that the request knows, newest first: at most so many, with at most so many bytes
    /// of payloads.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn memory(&self, exchanges: usize, bytes: u64) -> Result<MemoryPage, EngineError> {
        let RequestRef {
            session, request, ..
        } = self.ids;
        let page = (exchanges, bytes);
        let page = self.engine.memory_of(session, request, None, page).await?;
        let items = page.exchanges.iter().map(|exchange| exchange.items.len());
        let read = &self.engine.inner().items_read;
        read.fetch_add(items.sum::<usize>() as u64, Ordering::Relaxed);
        Ok(page)
    }

    /// A page of the history of its task as its agent sees it, newest first. It may be short.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn history(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> Result<ItemPage, EngineError> {
        let RequestRef { session, task, .. } = self.ids;
        self.engine.task_items(session, task, before, limit).await
    }

    /// Values of keys of any scope that the request sees, as JSON. Keys without a value are left out.
    ///
    /// # Errors
    ///
    /// If the lease is lost, or the store fails.
    pub async fn state_values(
        &self,
        keys: &[StateKey],
    ) -> Result<Vec<(StateKey, Vec<u8>)>, EngineError> {
        let (session, store) = (self.ids.session, &self.engine.inner().store);
        let has = |scope: Scope| keys.iter().any(|key| key.scope() == scope);
        let owner = if has(Scope::App) || has(Scope::User) {
            Some(self.engine.owner(session).await?)
        } else {
            None
        };
        let mut temps = if has(Scope::Temp) {
            self.engine.inner().temps.get(self.root().await?)
        } else {
            BTreeMap::new()
        };
        let mut found = Vec::new();
        for key in keys {
            let value = match (key.scope(), &owner) {
                (Scope::App | Scope::User, Some(owner)) => {
                    let owner = SharedOwner::of(owner, key.scope());
                    let value = store.shared_value(owner, key.clone()).await?;
                    value.map(|value| value.value)
                }
                (Scope::Temp, _) => temps.remove(key),
                (Scope::App | Scope::User | Scope::Session, _) => {
                    let value = store.state_value(session, key.clone()).await?;
                    value.map(|value| value.value)
                }
            };
            found.extend(value.map(|value| (key.clone(), value)));
        }
        Ok(found)
    }

    /// Writes and deletes `temp:` values, all or none. They are in memory when this returns.
    ///
    /// # Errors
    ///
    /// If the lease is lost, or the values are too long.
    pub async fn put_temp(
        &self,
        set: Vec<(StateKey, Vec<u8>)>,
        delete: &[StateKey],
    ) -> Result<(), EngineError> {
        let (session, caller) = (self.ids.session, &self.call.caller);
        let root = self.root().await?;
        let user = self.engine.owner(session).await?.user;
        self.engine.require_values_fit(caller, &set).await?;
        let temps = &self.engine.inner().temps;
        let holder = self.engine.inner().starters.holder(caller, user, root);
        temps.put(holder, root, set, delete)?;
        // If the root request has ended meanwhile, its values were dropped before these came.
        let state = self.engine.durable_state(session).await?;
        if !state.requests.contains_key(&root) {
            temps.drop_root(root, true);
            return Err(EngineError::NotFound);
        }
        Ok(())
    }

    /// The root of the request.
    async fn root(&self) -> Result<RequestId, EngineError> {
        let RequestRef {
            session,
            request,
            fence,
            ..
        } = self.ids;
        let caller = &self.call.caller;
        self.engine
            .root_of(caller, session, request, Some(fence))
            .await
    }

    /// The user of the session, by pseudonym.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub async fn user(&self) -> Result<UserId, EngineError> {
        Ok(self.owner().await?.user)
    }

    /// The owner of the session.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub async fn owner(&self) -> Result<Owner, EngineError> {
        self.engine.owner(self.ids.session).await
    }

    /// The path of its agent.
    pub fn path(&self) -> &AgentPath {
        &self.path
    }

    /// The revision of the newest rewind of the session; 0 if there is none. It stays as it is while the request
    /// lives, because a rewind cancels live requests.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn last_rewind(&self) -> Result<u64, EngineError> {
        let store = &self.engine.inner().store;
        Ok(store.last_rewind(self.ids.session).await?)
    }

    /// The private states that were written on its path: by its memory of now, and by each open task.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn private_states(&self) -> Result<Vec<Vec<u8>>, EngineError> {
        let session = self.ids.session;
        self.engine.private_states_of(session, &self.path).await
    }

    /// Another live request of its path that has opened holds, decided or not.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub async fn other_asking_request(&self) -> Result<Option<RequestId>, EngineError> {
        let state = self.engine.durable_state(self.ids.session).await?;
        let mut requests = state.requests.values();
        let asking = requests.find(|live| {
            let task = state.tasks.get(&live.task);
            live.holds_opened > 0
                && live.id != self.ids.request
                && task.is_some_and(|task| task.path == self.path)
        });
        Ok(asking.map(|live| live.id))
    }

    /// The open holds of the session.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub async fn pending_holds(&self) -> Result<Pending, EngineError> {
        self.engine.pending_in(self.ids.session).await
    }

    /// The progress of another request of the session, and the revision at which it was read.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub async fn progress_of(&self, request: RequestId) -> Result<(Progress, u64), EngineError> {
        self.engine.progress(self.ids.session, request).await
    }

    /// How another request of the session ended. None while it is live.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn end_of(&self, request: RequestId) -> Result<Option<Ended>, EngineError> {
        let Some(request) = self.engine.inner().store.ended_request(request).await? else {
            return Ok(None);
        };
        let (session, by) = (self.ids.session, request.ended_by);
        let finished = self.engine.record(session, by).await?;
        Ok(Some(Ended { request, finished }))
    }
}

fn item_ids(made: &DecidedCommit<'_>) -> Vec<ItemId> {
    let events = made.record.content.events.iter();
    let items = events.flat_map(|event| match event {
        Event::ItemsAppended { items, .. } => items.as_slice(),
        _ => &[],
    });
    items.map(|item| item.id).collect()
}

impl Engine {
    /// The private states that were written on a path of a session.
    pub(crate) async fn private_states_of(
        &self,
        session: SessionId,
        path: &AgentPath,
    ) -> Result<Vec<Vec<u8>>, EngineError> {
        let store = &self.inner().store;
        let state = self.durable_state(session).await?;
        let mut states = Vec::new();
        if let Some(memory) = state.memories.get(path) {
            let query = MemoryQuery {
                path: path.clone(),
                memory: Some(*memory),
                reader: None,
                exchanges: 0,
                bytes: 0,
            };
            states.extend(store.memory(session, query).await?.task_state);
        }
        for task in state.tasks.values().filter(|task| task.path == *path) {
            states.extend(store.task_state(task.id).await?);
        }
        Ok(states)
    }
}
