//! Execution of one request: its input, its recorded steps, and the operations of an agent. Recorded
//! steps are replayed, not executed again.

use std::collections::VecDeque;
use std::sync::Arc;

use statehold_core::command::{Command, Fenced, Output, StatePatch, StateSet};
use statehold_core::digest::{BodyRef, Digest};
use statehold_core::hold::CallTarget;
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Role, Visibility};
use statehold_core::name::Name;
use statehold_core::scope::{MergePolicy, StateKey};
use statehold_engine::kept::{ItemBody, Raw, to_bytes};
use statehold_engine::{
    Call, Caller, ClaimedRequest, Credential, Engine, EngineError, HoldDetail, Payloads, Reply,
};
use tokio::sync::OwnedMutexGuard;

use super::child::step_mismatch;
use super::generation::{Generation, TurnPermit};
use super::journal::{Journal, StepBody, StepKind};
use crate::history::TaskHistory;
use crate::message::{AgentMessage, raw};
use crate::spec::{AgentKind, AgentSpec};
use crate::turn::{TurnAnswer, TurnError};

/// When a step hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CommitPhase {
    /// The step is done but not committed.
    Before,
    /// The step is committed.
    After,
}

/// Panic payload that a step hook unwinds with, to end the turn as if its process had crashed.
#[derive(Debug, Clone, Copy)]
pub struct SimulatedCrash;

/// Called before and after each step is committed. Tests use it to crash the process or the turn.
pub type StepHook = Arc<dyn Fn(StepKind, CommitPhase) + Send + Sync>;

/// Ids of a leased request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestRef {
    pub(crate) session: SessionId,
    pub(crate) task: TaskId,
    pub(crate) request: RequestId,
    pub(crate) fence: u64,
}

impl RequestRef {
    /// None if the request has ended meanwhile.
    pub(super) fn of(claimed: &ClaimedRequest) -> Option<Self> {
        let live = claimed.detail.request.live()?;
        Some(Self {
            session: claimed.detail.session.id,
            task: live.task,
            request: live.id,
            fence: live.fence,
        })
    }

    pub(crate) fn fenced(self) -> Fenced {
        Fenced {
            request: self.request,
            fence: self.fence,
        }
    }
}

/// Result and token usage of a step.
pub(crate) struct StepOutput {
    pub(crate) result: Raw,
    pub(crate) usage: Option<Raw>,
}

/// Data committed together with a step.
#[derive(Default)]
pub(crate) struct StepExtras {
    /// New private state of the task. None leaves it unchanged.
    pub(crate) private: Option<Raw>,
    /// Results of recorded tool calls.
    pub(crate) results: Vec<(ItemId, CallOutcome, Raw)>,
    /// Defer the commit: the step is committed with the command that follows immediately, which ends
    /// the request or starts another. If no such command follows, the step is committed alone.
    pub(crate) is_deferred: bool,
}

/// A finished step that is not committed yet.
pub(super) struct UncommittedStep {
    pub(super) kind: StepKind,
    body: Vec<u8>,
    extras: StepExtras,
}

impl UncommittedStep {
    /// The items of the step, and the new private state.
    fn put(&self, payloads: &mut Payloads) -> (Vec<NewItem>, Option<BodyRef>) {
        let mut items = vec![hidden(ItemKind::Step, payloads.put(self.body.clone()))];
        for (call, outcome, result) in &self.extras.results {
            let body = ItemBody {
                result: Some(result.clone()),
                ..ItemBody::default()
            };
            let mark = NewCallMark::Result {
                call: CallTarget::Recorded(*call),
                outcome: *outcome,
            };
            items.push(NewItem {
                call: Some(mark),
                ..hidden(ItemKind::ToolResult, payloads.put(to_bytes(&body)))
            });
        }
        let private = self.extras.private.as_ref();
        let private = private.map(|value| payloads.put(value.get().as_bytes().to_vec()));
        (items, private)
    }
}

/// Execution of one request.
pub(crate) struct AgentRun {
    pub(crate) engine: Engine,
    pub(crate) caller: Caller,
    pub(crate) spec: Arc<AgentSpec>,
    pub(crate) request_ref: RequestRef,
    pub(crate) input: AgentMessage,
    /// Credential sent with the request, or else the credential configured for the agent.
    pub(crate) credential: Option<Credential>,
    pub(crate) journal: Journal,
    /// Started child requests with their agents, in order.
    pub(super) children: VecDeque<(RequestId, Name)>,
    /// Opened holds, in order.
    pub(crate) holds: VecDeque<HoldDetail>,
    /// Lock of the remote conversation, held until the run ends.
    pub(crate) conversation: Option<OwnedMutexGuard<()>>,
    /// The generation that the run started under.
    pub(super) generation: Arc<Generation>,
    /// Permit among the concurrent turns.
    pub(crate) permit: TurnPermit,
    next_step: usize,
    /// A step to be committed with the next command.
    pub(super) deferred: Option<UncommittedStep>,
}

impl AgentRun {
    /// Opens a claimed request.
    pub(super) async fn open(
        generation: Arc<Generation>,
        spec: Arc<AgentSpec>,
        claimed: ClaimedRequest,
        permit: TurnPermit,
    ) -> Result<Self, TurnError> {
        let (engine, caller) = (generation.engine.clone(), generation.caller.clone());
        let request_ref = RequestRef::of(&claimed).ok_or(TurnError::Gone)?;
        let detail = claimed.detail;
        let live = detail.request.live().ok_or(TurnError::Gone)?;
        let started = detail.started.as_ref();
        let input =
            started.and_then(|stored| AgentMessage::from_record(stored, live.id, Role::User));
        let input = input.ok_or_else(|| {
            TurnError::failed(
                "input_erased",
                "the input of the request is no longer stored",
            )
        })?;
        // The first lease has no recorded steps to replay.
        let journal = if live.fence > 1 {
            Journal::read(
                &engine,
                request_ref.session,
                request_ref.task,
                request_ref.request,
            )
            .await?
        } else {
            Journal::default()
        };
        let mut children: Vec<_> = claimed
            .children
            .iter()
            .map(|child| {
                let request = &child.request;
                (request.number(), request.id(), child.task.agent.clone())
            })
            .collect();
        children.sort_unstable_by_key(|(number, ..)| *number);
        let credential = claimed.credential.map(|(credential, _)| credential);
        let own = match &spec.kind {
            // Use the credential declared with the address, so that a new credential is never sent to
            // an old address.
            AgentKind::Openai(declared) => declared.credential.clone(),
            AgentKind::Conversations(declared) => declared.credential.clone(),
            AgentKind::Worker | AgentKind::Llm(_) | AgentKind::Router(_) => {
                claimed.service_credential
            }
        };
        Ok(Self {
            engine,
            caller,
            spec,
            request_ref,
            input,
            credential: credential.or(own),
            journal,
            children: children
                .into_iter()
                .map(|(_, id, agent)| (id, agent))
                .collect(),
            holds: detail.holds.into(),
            conversation: None,
            generation,
            permit,
            next_step: 0,
            deferred: None,
        })
    }

    pub(crate) fn fenced(&self) -> Fenced {
        self.request_ref.fenced()
    }

    pub(crate) fn call(&self) -> Call {
        Call::by(self.caller.clone())
    }

    pub(crate) async fn payloads(&self) -> Result<Payloads, EngineError> {
        let owner = self.engine.owner(self.request_ref.session).await?;
        self.engine.payloads_for(&owner.tenant, owner.user).await
    }

    pub(crate) fn notify_hook(&self, kind: StepKind, phase: CommitPhase) {
        (self.generation.on_step)(kind, phase);
    }

    /// Appends text to the draft of the answer.
    pub(crate) fn write_draft(&self, piece: &str) {
        self.engine.write_draft(self.request_ref.request, piece);
    }

    /// Returns a function that appends to the draft, for use while the run is borrowed.
    pub(crate) fn draft_sink(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (engine, request) = (self.engine.clone(), self.request_ref.request);
        move |piece: &str| engine.write_draft(request, piece)
    }

    /// Executes one step, or replays its recorded result. The input must be the same as when the step
    /// was recorded.
    pub(crate) async fn step(
        &mut self,
        kind: StepKind,
        input_bytes: &[u8],
        work: impl Future<Output = Result<StepOutput, TurnError>>,
    ) -> Result<Raw, TurnError> {
        let work = async { Ok((work.await?, StepExtras::default())) };
        self.step_with(kind, input_bytes, work).await
    }

    /// Like `step`, and commits extra data together with the step.
    pub(crate) async fn step_with(
        &mut self,
        kind: StepKind,
        input_bytes: &[u8],
        work: impl Future<Output = Result<(StepOutput, StepExtras), TurnError>>,
    ) -> Result<Raw, TurnError> {
        let (index, input) = (self.next_step, Digest::sha256(input_bytes));
        if let Some(known) = self.journal.steps.pop_front() {
            if (known.index, known.step, known.input) == (index, kind, input) {
                self.next_step += 1;
                return Ok(known.result);
            }
            let what = format!(
                "step {index} was `{}` and would now be `{}`, or be made from something else",
                known.step.word(),
                kind.word()
            );
            return Err(step_mismatch(&what));
        }
        let (done, extras) = work.await?;
        let step = StepBody {
            index,
            step: kind,
            input,
            result: done.result,
            config: (index == 0).then_some(self.spec.digest),
            usage: done.usage,
        };
        self.notify_hook(kind, CommitPhase::Before);
        let body = ItemBody {
            name: Some(kind.word().to_owned()),
            data: Some(raw(&step)),
            ..ItemBody::default()
        };
        let made = UncommittedStep {
            kind,
            body: to_bytes(&body),
            extras,
        };
        if made.extras.is_deferred {
            self.deferred = Some(made);
        } else {
            self.record(&made).await?;
        }
        // A failed step is not recorded, so its number is used again.
        self.next_step += 1;
        Ok(step.result)
    }

    /// Commits a step alone.
    async fn record(&self, step: &UncommittedStep) -> Result<(), TurnError> {
        let (command, payloads) = self.append_command(step).await?;
        self.submit(&command, &payloads).await?;
        self.notify_hook(step.kind, CommitPhase::After);
        Ok(())
    }

    /// Builds the command that commits a step alone.
    pub(super) async fn append_command(
        &self,
        step: &UncommittedStep,
    ) -> Result<(Command, Payloads), EngineError> {
        let mut payloads = self.payloads().await?;
        let (items, task_state) = step.put(&mut payloads);
        let command = Command::AppendItems {
            by: self.fenced(),
            items,
            state: StatePatch::default(),
            task_state,
        };
        Ok((command, payloads))
    }

    /// Commits a deferred step when the turn fails, so that the trace contains it.
    pub(super) async fn record_deferred(&mut self) -> Result<(), TurnError> {
        match self.deferred.take() {
            Some(step) => self.record(&step).await,
            None => Ok(()),
        }
    }

    /// Kind of the next recorded step. None if the run has replayed them all.
    pub(crate) fn next_recorded_kind(&self) -> Option<StepKind> {
        self.journal.steps.front().map(|step| step.step)
    }

    /// Number of steps executed or replayed so far.
    pub(crate) fn steps_taken(&self) -> usize {
        self.next_step
    }

    /// Writes the private state of the task at once, without a step.
    pub(crate) async fn remember(&self, private: &Raw) -> Result<(), TurnError> {
        let mut payloads = self.payloads().await?;
        let command = Command::AppendItems {
            by: self.fenced(),
            items: Vec::new(),
            state: StatePatch::default(),
            task_state: Some(payloads.put(private.get().as_bytes().to_vec())),
        };
        self.submit(&command, &payloads).await
    }

    /// Appends items to the task.
    pub(crate) async fn append(
        &self,
        items: Vec<NewItem>,
        payloads: &Payloads,
    ) -> Result<(), TurnError> {
        let command = Command::AppendItems {
            by: self.fenced(),
            items,
            state: StatePatch::default(),
            task_state: None,
        };
        self.submit(&command, payloads).await
    }

    pub(crate) async fn submit(
        &self,
        command: &Command,
        payloads: &Payloads,
    ) -> Result<(), TurnError> {
        assert!(
            self.deferred.is_none(),
            "each step is committed before the next"
        );
        let reply: Reply = Arc::new(|_| Vec::new());
        let done = self
            .engine
            .submit(
                self.request_ref.session,
                &self.call(),
                command,
                payloads,
                &reply,
            )
            .await;
        done.map(drop).map_err(TurnError::from)
    }

    /// History of the task before this request.
    pub(crate) async fn history(&self) -> Result<TaskHistory, TurnError> {
        let RequestRef {
            session,
            task,
            request,
            ..
        } = self.request_ref;
        Ok(TaskHistory::read(&self.engine, session, task, request).await?)
    }

    /// Values of the given session keys that exist.
    pub(crate) async fn session_values(
        &self,
        keys: &[StateKey],
    ) -> Result<Vec<(StateKey, Raw)>, TurnError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let values = self.engine.session_values(self.request_ref.session).await?;
        let found = keys.iter().filter_map(|key| {
            let value = &values.get(key)?.value;
            let value = serde_json::from_slice(value).ok()?;
            Some((key.clone(), value))
        });
        Ok(found.collect())
    }

    /// Releases the lease, because the request waits for a person.
    pub(crate) async fn release_lease(&self) -> TurnError {
        let command = Command::ReleaseLease { by: self.fenced() };
        let payloads = self.engine.no_payloads();
        match self.submit(&command, &payloads).await {
            Ok(()) => TurnError::Paused,
            Err(error) => error,
        }
    }

    /// Completes the request with its answer.
    pub(super) async fn complete(&mut self, answer: &TurnAnswer) -> Result<(), TurnError> {
        self.notify_hook(StepKind::Answer, CommitPhase::Before);
        let Some(last) = self.deferred.take() else {
            self.commit_answer(answer, None).await?;
            self.notify_hook(StepKind::Answer, CommitPhase::After);
            return Ok(());
        };
        match self.commit_answer(answer, Some(&last)).await {
            // The combined commit was refused. Commit the step first, so that the trace has it, and
            // then retry the answer alone.
            Err(TurnError::Failed(_)) => {
                self.record(&last).await?;
                self.commit_answer(answer, None).await?;
            }
            ended => {
                ended?;
                self.notify_hook(last.kind, CommitPhase::After);
            }
        }
        self.notify_hook(StepKind::Answer, CommitPhase::After);
        Ok(())
    }

    /// Commits the answer, together with the last step if that is not committed yet.
    async fn commit_answer(
        &self,
        answer: &TurnAnswer,
        last: Option<&UncommittedStep>,
    ) -> Result<(), TurnError> {
        let mut payloads = self.payloads().await?;
        let (mut items, mut task_state) = match last {
            Some(last) => last.put(&mut payloads),
            None => Default::default(),
        };
        items.extend(answer.notes.iter().map(|(name, data)| {
            let body = ItemBody {
                name: Some((*name).to_owned()),
                data: Some(data.clone()),
                ..ItemBody::default()
            };
            hidden(ItemKind::Note, payloads.put(to_bytes(&body)))
        }));
        let output: Output = answer.message.put(&mut payloads);
        let sets = answer.state.iter().map(|(key, value)| StateSet {
            key: key.clone(),
            value: payloads.put(value.get().as_bytes().to_vec()),
            merge: MergePolicy::Replace,
        });
        let state = StatePatch {
            set: sets.collect(),
            ..StatePatch::default()
        };
        if let Some(private) = &answer.private {
            task_state = Some(payloads.put(private.get().as_bytes().to_vec()));
        }
        let command = Command::CompleteRequest {
            by: self.fenced(),
            output,
            items,
            state,
            task_state,
            close_task: false,
            cancel_children: true,
        };
        self.submit(&command, &payloads).await
    }
}

/// A hidden item: clients never see it.
pub(crate) fn hidden(kind: ItemKind, body: BodyRef) -> NewItem {
    NewItem {
        kind,
        visibility: Visibility::Hidden,
        role: None,
        body,
        attachments: Vec::new(),
        call: None,
    }
}
