//! Execution of one request: its input, its recorded steps, and the operations of an agent. Recorded
//! steps are replayed, not executed again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use statehold_core::command::Rejection;
use statehold_core::digest::Digest;
use statehold_core::hold::{CallTarget, HoldKind, HoldStatus};
use statehold_core::ids::{ItemId, RequestId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, Role};
use statehold_core::name::Name;
use statehold_core::request::RequestOutcome;
use statehold_core::scope::{Scope, StateKey};
use statehold_engine::bodies::{ItemBody, Raw, parse, text_of};
use statehold_engine::leased::{
    ClaimedTurn, EarlierAttempts, EarlierChild, LeasedRequest, WriteBatch,
};
use statehold_engine::{Credential, Engine, EngineError, HoldDetail};
use tokio::sync::{OwnedMutexGuard, oneshot};

use super::ConversationReader;
use super::child::step_mismatch;
use super::generation::{Generation, TurnPermit};
use super::journal::{Journal, StepBody, StepKind};
use crate::message::{AgentMessage, raw};
use crate::spec::{AgentKind, AgentSpec};
use crate::stages::{RunningOutline, StageWriter};
use crate::turn::{TraceNote, TurnAnswer, TurnError};

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

/// Data committed together with the result of a step.
#[derive(Default)]
pub(crate) struct StepExtras {
    /// Token usage of the step.
    pub(crate) usage: Option<Raw>,
    /// New private state of the task. None leaves it unchanged.
    pub(crate) private: Option<Raw>,
    /// The answer of a phase that clients see.
    pub(crate) shown: Option<(Name, AgentMessage)>,
    /// Results of recorded tool calls.
    pub(crate) results: Vec<(ItemId, CallOutcome, Raw)>,
    /// Defer the commit: the step is committed with the command that follows immediately, which ends
    /// the request, starts another or records tool calls. If no such command follows, the step is committed
    /// alone.
    pub(crate) is_deferred: bool,
}

/// A finished step that is not committed yet.
pub(super) struct UncommittedStep {
    pub(super) kind: StepKind,
    body: StepBody,
    extras: StepExtras,
}

impl UncommittedStep {
    /// Adds the items of the step, and the new private state. A text that the output of the same commit has
    /// is named, not repeated.
    fn put(&self, batch: &mut WriteBatch, output: Option<&str>) {
        let mut step = self.body.clone();
        if let Some(output) = output {
            step.name_output(output);
            // The note of the same commit has them.
            step.stages.clear();
        }
        let body = ItemBody {
            name: Some(self.kind.word().to_owned()),
            data: Some(raw(&step)),
            ..ItemBody::default()
        };
        batch.push(ItemKind::Step, None, &body);
        for (call, outcome, result) in &self.extras.results {
            let body = ItemBody {
                result: Some(result.clone()),
                ..ItemBody::default()
            };
            let mark = NewCallMark::Result {
                call: CallTarget::Recorded(*call),
                outcome: *outcome,
            };
            batch.push(ItemKind::ToolResult, Some(mark), &body);
        }
        put_shown(self.extras.shown.as_ref(), batch);
        if let Some(private) = &self.extras.private {
            batch.set_task_state(private);
        }
    }
}

/// Adds the answer of a phase to the transcript.
fn put_shown(shown: Option<&(Name, AgentMessage)>, batch: &mut WriteBatch) {
    if let Some((phase, message)) = shown {
        let message = message.put_as(Some(phase), batch.payloads());
        batch.push_message(message);
    }
}

/// The turn that waits for the answer of a child.
pub(super) struct WaitingParent {
    /// Gets the answer when the child's end is decided.
    pub(super) answer: oneshot::Sender<AgentMessage>,
}

/// Whether a person refused the credential that a hold asked for. None for holds of other kinds.
fn refuses_credential(hold: &HoldDetail) -> Option<bool> {
    let is_given = |status| matches!(status, HoldStatus::Approved | HoldStatus::Answered);
    let closed = hold.closed.as_ref();
    let is_refused = closed.is_some_and(|closed| !is_given(closed.decision.status));
    (hold.hold.kind == HoldKind::Credential).then_some(is_refused)
}

/// Execution of one request.
pub(crate) struct AgentRun {
    pub(crate) engine: Engine,
    pub(crate) spec: Arc<AgentSpec>,
    pub(crate) request: LeasedRequest,
    pub(crate) input: AgentMessage,
    /// The revision that started the request.
    pub(crate) started_by: u64,
    /// Whether the request continues a failed one.
    pub(crate) is_continued: bool,
    /// Credential sent with the request, or else the credential configured for the agent.
    pub(crate) credential: Option<Credential>,
    /// Whether the person who was asked for a credential last refused to give one.
    pub(super) is_credential_refused: bool,
    pub(crate) journal: Journal,
    /// Started child requests with their agents, in order.
    pub(super) children: VecDeque<(RequestId, Name)>,
    /// The child whose failure ended an earlier attempt. The next child goes on from it.
    pub(super) failed_child: Option<EarlierChild>,
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
    /// The turn in this process that passes on the answer of this one.
    parent: Mutex<Option<oneshot::Sender<AgentMessage>>>,
    /// Writes the stages of this request.
    pub(crate) stages: StageWriter,
    outline: RunningOutline,
    /// The child whose answer this turn passes on. Its end is decided, and may not be durable.
    pub(super) ending_child: Option<RequestId>,
}

impl AgentRun {
    /// Opens a claimed request.
    pub(super) async fn open(
        generation: Arc<Generation>,
        spec: Arc<AgentSpec>,
        claimed: ClaimedTurn,
        permit: TurnPermit,
        parent: Option<WaitingParent>,
    ) -> Result<Self, TurnError> {
        let request = claimed.request;
        let started = claimed.started.as_ref();
        let started_by = started.map_or(0, |started| started.record.content.seq);
        let earlier = match &claimed.started {
            Some(started) => request.earlier_attempts(started).await?,
            None => EarlierAttempts::default(),
        };
        // A turn that goes on after a failure has the input of its first attempt, so that its steps replay.
        let id = earlier.requests.last().copied();
        let started = earlier.started.as_ref().or(claimed.started.as_ref());
        let id = id.unwrap_or(request.ids.request);
        let input = started.and_then(|stored| AgentMessage::from_record(stored, id, Role::User));
        let input = input.ok_or_else(|| {
            TurnError::failed(
                "input_erased",
                "the input of the request is no longer stored",
            )
        })?;
        // The first lease has no recorded steps to replay.
        let journal = if request.ids.fence > 1 || !earlier.requests.is_empty() {
            Journal::read(&request, &earlier.requests).await?
        } else {
            Journal::default()
        };
        let own = match &spec.kind {
            // Use the credential declared with the address, so that a new credential is never sent to
            // an old address.
            AgentKind::Openai(declared) => declared.credential.clone(),
            AgentKind::Conversations(declared) => declared.credential.clone(),
            AgentKind::Analytics(declared) => declared.credential.clone(),
            // Its own key and that of its caller are for different calls: see `ChatService`.
            AgentKind::Dial(_) => None,
            AgentKind::Worker
            | AgentKind::Mcp(_)
            | AgentKind::Llm(_)
            | AgentKind::Router(_)
            | AgentKind::Pipeline(_) => claimed.service_credential,
        };
        let asked = claimed.holds.iter().rev();
        let refused = asked.map(refuses_credential).find_map(|refused| refused);
        let mut children: VecDeque<(RequestId, Name)> = VecDeque::new();
        let mut failed_child = None;
        for child in earlier.children {
            match child.outcome {
                RequestOutcome::Completed => children.push_back((child.request, child.agent)),
                RequestOutcome::Failed => failed_child = Some(child),
                RequestOutcome::Cancelled => {}
            }
        }
        // A child of this request goes on from it already.
        failed_child.take_if(|_| !claimed.children.is_empty());
        children.extend(claimed.children);
        let holds = earlier.holds.into_iter().chain(claimed.holds).collect();
        let engine = generation.engine.clone();
        let (id, outlines) = (request.ids.request, &generation.outlines);
        let outline = match request.parent {
            None => outlines.begin_root(&engine, id, input.shows_stages()),
            Some(_) => outlines.begin_child(id, input.shows_stages()),
        };
        let stages = outline.writer(spec.stages);
        Ok(Self {
            engine,
            spec,
            request,
            input,
            started_by,
            is_continued: !earlier.requests.is_empty(),
            credential: claimed.credential.or(own),
            is_credential_refused: refused == Some(true),
            journal,
            children,
            failed_child,
            holds,
            conversation: None,
            generation,
            permit,
            next_step: 0,
            deferred: None,
            parent: Mutex::new(parent.map(|parent| parent.answer)),
            stages,
            outline,
            ending_child: None,
        })
    }

    /// Where and how agents behind tool servers read the conversation.
    pub(crate) fn conversation_reader(&self) -> Option<&ConversationReader> {
        self.generation.conversation_reader.as_ref()
    }

    pub(crate) fn notify_hook(&self, kind: StepKind, phase: CommitPhase) {
        (self.generation.on_step)(kind, phase);
    }

    /// Appends text to the draft of the answer.
    pub(crate) fn write_draft(&self, piece: &str) {
        self.engine.write_draft(self.request.ids.request, piece);
    }

    /// Returns a function that appends to the draft, for use while the run is borrowed.
    pub(crate) fn draft_sink(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (engine, request) = (self.engine.clone(), self.request.ids.request);
        move |piece: &str| engine.write_draft(request, piece)
    }

    /// Executes one step, or replays its recorded result. The input must be the same as when the step
    /// was recorded. `what` is the result in the words of an error.
    pub(crate) async fn step<T: Serialize + DeserializeOwned>(
        &mut self,
        (kind, what): (StepKind, &str),
        input_bytes: &[u8],
        work: impl Future<Output = Result<(T, StepExtras), TurnError>>,
    ) -> Result<T, TurnError> {
        let (index, input) = (self.next_step, Digest::sha256(input_bytes));
        if let Some(known) = self.journal.steps.pop_front() {
            if (known.index, known.step, known.input) == (index, kind, input) {
                self.next_step += 1;
                self.stages.replay(&known.stages);
                return serde_json::from_str(known.result.get())
                    .map_err(|error| TurnError::step_malformed(what, &error));
            }
            let what = format!(
                "step {index} was `{}` and would now be `{}`, or be made from something else",
                known.step.word(),
                kind.word()
            );
            return Err(step_mismatch(&what));
        }
        self.record_deferred().await?;
        let before = self.stages.count();
        let (result, mut extras) = work.await?;
        let body = StepBody {
            index,
            step: kind,
            input,
            result: raw(&result),
            config: (index == 0).then_some(self.spec.digest),
            usage: extras.usage.take(),
            output: None,
            stages: if self.stages.is_kept() {
                self.stages.stages_after(before)
            } else {
                Vec::new()
            },
        };
        self.notify_hook(kind, CommitPhase::Before);
        let made = UncommittedStep { kind, body, extras };
        if made.extras.is_deferred {
            self.deferred = Some(made);
        } else {
            self.record(&made).await?;
        }
        // A failed step is not recorded, so its number is used again.
        self.next_step += 1;
        Ok(result)
    }

    /// Commits a step alone.
    async fn record(&self, step: &UncommittedStep) -> Result<(), TurnError> {
        let batch = self.step_batch(step).await?;
        self.append(batch).await?;
        self.notify_hook(step.kind, CommitPhase::After);
        Ok(())
    }

    pub(super) async fn step_batch(
        &self,
        step: &UncommittedStep,
    ) -> Result<WriteBatch, EngineError> {
        let mut batch = self.request.batch().await?;
        step.put(&mut batch, None);
        Ok(batch)
    }

    /// Commits a deferred step alone: before the next step, or when the turn fails, so that the trace
    /// contains it.
    pub(super) async fn record_deferred(&mut self) -> Result<(), TurnError> {
        match self.deferred.take() {
            Some(step) => self.record(&step).await,
            None => Ok(()),
        }
    }

    /// Whether the next tool call has a recorded result.
    pub(crate) fn has_recorded_result(&self) -> bool {
        let next = self.journal.calls.front();
        next.is_some_and(|call| call.report.is_some())
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
        let mut batch = self.request.batch().await?;
        batch.set_task_state(private);
        Ok(self.append(batch).await.map(drop)?)
    }

    /// Appends a note to the trace.
    pub(crate) async fn append_note(&self, note: &TraceNote) -> Result<(), TurnError> {
        let mut batch = self.request.batch().await?;
        batch.push(ItemKind::Note, None, &note.body());
        Ok(self.append(batch).await.map(drop)?)
    }

    /// Appends items, and right before them the deferred step, in one write to the disk.
    pub(super) async fn append_behind_step(
        &mut self,
        batch: WriteBatch,
    ) -> Result<Vec<ItemId>, EngineError> {
        let Some(step) = self.deferred.take() else {
            return self.append(batch).await;
        };
        let first = self.step_batch(&step).await?;
        let ids = self.request.append_behind(first, batch).await?;
        self.notify_hook(step.kind, CommitPhase::After);
        Ok(ids)
    }

    /// Appends items to the task.
    pub(crate) async fn append(&self, batch: WriteBatch) -> Result<Vec<ItemId>, EngineError> {
        self.require_nothing_deferred();
        self.request.append(batch).await
    }

    /// # Panics
    ///
    /// If a step is deferred: each step is committed before the next.
    fn require_nothing_deferred(&self) {
        let is_committed = self.deferred.is_none();
        assert!(is_committed, "each step is committed before the next");
    }

    /// Values of state keys that exist.
    pub(crate) async fn state_values(
        &self,
        keys: &[StateKey],
    ) -> Result<Vec<(StateKey, Raw)>, TurnError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let found = self.request.state_values(keys).await?.into_iter();
        let found = found.filter_map(|(key, value)| {
            let value = serde_json::from_slice(&value).ok()?;
            Some((key, value))
        });
        Ok(found.collect())
    }

    /// Writes `temp:` values. None deletes one.
    pub(crate) async fn put_temp(
        &self,
        values: Vec<(StateKey, Option<Raw>)>,
    ) -> Result<(), EngineError> {
        let (mut set, mut delete) = (Vec::new(), Vec::new());
        for (key, value) in values {
            match value {
                Some(value) => set.push((key, value.get().as_bytes().to_vec())),
                None => delete.push(key),
            }
        }
        self.request.put_temp(set, &delete).await
    }

    /// Releases the lease, because the request waits for a person.
    pub(crate) async fn release_lease(&self) -> TurnError {
        self.require_nothing_deferred();
        match self.request.release(None).await {
            Ok(()) => TurnError::Paused,
            Err(error) => error.into(),
        }
    }

    /// Completes the request with its answer.
    pub(super) async fn complete(&mut self, answer: &TurnAnswer) -> Result<(), TurnError> {
        self.notify_hook(StepKind::Answer, CommitPhase::Before);
        self.outline.complete();
        let Some(last) = self.deferred.take() else {
            if let Some(child) = self.ending_child {
                self.commit_with_child(answer, child).await?;
            } else {
                self.commit_answer(answer, None).await?;
            }
            self.notify_hook(StepKind::Answer, CommitPhase::After);
            return Ok(());
        };
        let ended = self.commit_answer(answer, Some(&last)).await;
        match ended.map_err(TurnError::from) {
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

    /// Commits the answer that a child gave, in the same write to the disk as the end of the child.
    async fn commit_with_child(
        &mut self,
        answer: &TurnAnswer,
        child: RequestId,
    ) -> Result<(), TurnError> {
        let mut ended = self.commit_answer(answer, None).await;
        if let Err(EngineError::Rejected(Rejection::ChildrenLive { .. })) = ended {
            // The commit that ended the child failed. Its turn is repeated, and may end otherwise.
            self.wait_for(child, None, None).await?;
            let answer = TurnAnswer {
                message: self.answer_of(child).await?,
                ..answer.clone()
            };
            ended = self.commit_answer(&answer, None).await;
        }
        ended?;
        self.notify_hook(StepKind::Child, CommitPhase::After);
        Ok(())
    }

    /// Commits the answer, together with the last step if that is not committed yet. A turn that waits for
    /// the answer gets it when it is decided. State values that cannot be merged, or do not fit the schema of their
    /// key, are left out: the answer must not be lost with them.
    async fn commit_answer(
        &self,
        answer: &TurnAnswer,
        last: Option<&UncommittedStep>,
    ) -> Result<(), EngineError> {
        let mut left_out = BTreeMap::new();
        loop {
            let (key, note) = match self.commit_answer_without(answer, last, &left_out).await {
                Err(EngineError::StateInvalid { key, errors }) => {
                    let note = json!({"key": key, "errors": errors});
                    (key, note)
                }
                Err(EngineError::Merge { key, source }) => {
                    let note = json!({"key": key, "reason": source.to_string()});
                    (key, note)
                }
                done => return done,
            };
            // Each key is left out once, so this ends.
            let note = TraceNote::new("state_left_out", &note);
            if left_out.insert(key.clone(), note).is_some() {
                return Err(EngineError::Invalid(format!("`{key}` is refused twice")));
            }
        }
    }

    async fn commit_answer_without(
        &self,
        answer: &TurnAnswer,
        last: Option<&UncommittedStep>,
        left_out: &BTreeMap<StateKey, TraceNote>,
    ) -> Result<(), EngineError> {
        self.require_nothing_deferred();
        let mut batch = self.request.batch().await?;
        let output = answer.message.put(batch.payloads());
        if let Some(last) = last {
            // Places in the output are places in what is stored of it.
            let stored: ItemBody = parse(batch.payloads().get(&output.body));
            let stored = stored.content.as_deref().map(text_of).unwrap_or_default();
            last.put(&mut batch, Some(&stored));
        }
        for note in answer.notes.iter().chain(&self.stages.note()) {
            batch.push(ItemKind::Note, None, &note.body());
        }
        put_shown(answer.shown.as_ref(), &mut batch);
        for note in left_out.values() {
            batch.push(ItemKind::Note, None, &note.body());
        }
        let temp = self.put_state(answer, left_out, &mut batch);
        if !temp.is_empty() {
            // A turn that reads them begins when this end is decided, so they are there before.
            self.put_temp(temp).await?;
        }
        if let Some(private) = &answer.private {
            batch.set_task_state(private);
        }
        let parent = || self.parent.lock().unwrap_or_else(PoisonError::into_inner);
        let is_waited_for = parent().as_ref().is_some_and(|parent| !parent.is_closed());
        // The parent gets the answer as it is stored: its own rules may redact less than those of this agent.
        let stored = is_waited_for.then(|| AgentMessage::from_output(&output, batch.payloads()));
        let tell_parent = || {
            if let Some((parent, stored)) = parent().take().zip(stored.clone().flatten()) {
                // A parent that has stopped waiting reads the answer when it resumes.
                drop(parent.send(stored));
            }
        };
        let on_decided: Option<&(dyn Fn() + Send + Sync)> =
            is_waited_for.then_some(&tell_parent as _);
        let cancels_children = self.ending_child.is_none();
        let how = (cancels_children, on_decided);
        self.request.complete_with(output, batch, how).await
    }

    /// Adds the state values of an answer to its commit, and returns the `temp:` values.
    fn put_state(
        &self,
        answer: &TurnAnswer,
        left_out: &BTreeMap<StateKey, TraceNote>,
        batch: &mut WriteBatch,
    ) -> Vec<(StateKey, Option<Raw>)> {
        let own = self.spec.output_key.clone();
        let own = own.map(|key| (key, raw(&answer.message.text())));
        let mut temp = Vec::new();
        let values = answer.state.iter().chain(&own);
        for (key, value) in values.filter(|(key, _)| !left_out.contains_key(key)) {
            if key.scope() == Scope::Temp {
                temp.push((key.clone(), Some(value.clone())));
            } else {
                batch.merge_state(key.clone(), value);
            }
        }
        temp
    }
}
