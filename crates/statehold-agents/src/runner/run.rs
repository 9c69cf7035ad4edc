//! One request in the hands of this server: what it was asked, what it has recorded, and every way to go
//! on. Whatever was recorded is answered from there.

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
use super::generation::{Generation, Seat};
use super::journal::{Journal, StepBody, StepKind};
use crate::history::Past;
use crate::spec::{AgentKind, AgentSpec};
use crate::turn::{Answer, TurnError};
use crate::words::{Words, raw};

/// Before a step is committed, and after.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Moment {
    /// It is done, but nobody knows.
    Before,
    /// It is recorded.
    After,
}

/// What whoever is told of a step unwinds with to end the turn there, as if its process were lost.
#[derive(Debug, Clone, Copy)]
pub struct Lost;

/// Told of every step that is reached: tests stop the process there, or the turn.
pub type OnStep = Arc<dyn Fn(StepKind, Moment) + Send + Sync>;

/// Where a run is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    pub(crate) session: SessionId,
    pub(crate) task: TaskId,
    pub(crate) request: RequestId,
    pub(crate) fence: u64,
}

impl Place {
    /// Where what was claimed is. None if it has ended in between.
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

/// What a step came to, and what it took.
pub(crate) struct StepDone {
    pub(crate) result: Raw,
    pub(crate) usage: Option<Raw>,
}

/// What is committed together with a step.
#[derive(Default)]
pub(crate) struct Beside {
    /// What the agent remembers in its task from then on.
    pub(crate) private: Option<Raw>,
    /// What became of recorded tool calls.
    pub(crate) results: Vec<(ItemId, CallOutcome, Raw)>,
    /// The step waits for what follows from it without anything in between, and is committed with that:
    /// the end of the request, or the start of another. If that does not come after all, the step is
    /// committed by itself.
    pub(crate) waits: bool,
}

/// A step that is made, as it is going to be committed.
pub(super) struct MadeStep {
    pub(super) kind: StepKind,
    body: Vec<u8>,
    beside: Beside,
}

impl MadeStep {
    /// The items of the step, and what the agent remembers with it.
    fn put(&self, payloads: &mut Payloads) -> (Vec<NewItem>, Option<BodyRef>) {
        let mut items = vec![hidden(ItemKind::Step, payloads.put(self.body.clone()))];
        for (call, outcome, result) in &self.beside.results {
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
        let private = self.beside.private.as_ref();
        let private = private.map(|value| payloads.put(value.get().as_bytes().to_vec()));
        (items, private)
    }
}

/// One request in the hands of this server.
pub(crate) struct Run {
    pub(crate) engine: Engine,
    pub(crate) caller: Caller,
    pub(crate) spec: Arc<AgentSpec>,
    pub(crate) place: Place,
    pub(crate) input: Words,
    /// What came with the request, or what the configuration gives its agent.
    pub(crate) credential: Option<Credential>,
    pub(crate) journal: Journal,
    /// Requests that it has started, in order, with their agents.
    pub(super) children: VecDeque<(RequestId, Name)>,
    /// Holds that it has opened, in order.
    pub(crate) holds: VecDeque<HoldDetail>,
    /// Nobody else speaks in the conversation that this run uses, until it is over.
    pub(crate) conversation: Option<OwnedMutexGuard<()>>,
    /// The declarations that it began under.
    pub(super) runner: Arc<Generation>,
    /// Its place among the turns that are under way.
    pub(crate) seat: Seat,
    next_step: usize,
    /// A step that is committed with what follows from it.
    pub(super) waiting: Option<MadeStep>,
}

impl Run {
    /// Takes what was claimed in hand.
    pub(super) async fn open(
        runner: Arc<Generation>,
        spec: Arc<AgentSpec>,
        claimed: ClaimedRequest,
        seat: Seat,
    ) -> Result<Self, TurnError> {
        let (engine, caller) = (runner.engine.clone(), runner.caller.clone());
        let place = Place::of(&claimed).ok_or(TurnError::Gone)?;
        let detail = claimed.detail;
        let live = detail.request.live().ok_or(TurnError::Gone)?;
        let started = detail.started.as_ref();
        let input = started.and_then(|stored| Words::of_record(stored, live.id, Role::User));
        let input = input.ok_or_else(|| {
            TurnError::failed("input_erased", "what was asked is not kept any more")
        })?;
        // The first worker has nothing to go on from, so it reads nothing.
        let journal = if live.fence > 1 {
            Journal::read(&engine, place.session, place.task, place.request).await?
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
            // What is declared together is used together: a new credential goes to no old address.
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
            place,
            input,
            credential: credential.or(own),
            journal,
            children: children
                .into_iter()
                .map(|(_, id, agent)| (id, agent))
                .collect(),
            holds: detail.holds.into(),
            conversation: None,
            runner,
            seat,
            next_step: 0,
            waiting: None,
        })
    }

    pub(crate) fn fenced(&self) -> Fenced {
        self.place.fenced()
    }

    pub(crate) fn call(&self) -> Call {
        Call::by(self.caller.clone())
    }

    pub(crate) async fn payloads(&self) -> Result<Payloads, EngineError> {
        let owner = self.engine.owner(self.place.session).await?;
        self.engine.payloads_for(&owner.tenant, owner.user).await
    }

    pub(crate) fn reach(&self, kind: StepKind, moment: Moment) {
        (self.runner.on_step)(kind, moment);
    }

    /// Adds to the answer while it is being written.
    pub(crate) fn say(&self, piece: &str) {
        self.engine.write_draft(self.place.request, piece);
    }

    /// Writes the answer of this request while somebody else has the run.
    pub(crate) fn sayer(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let (engine, request) = (self.engine.clone(), self.place.request);
        move |piece: &str| engine.write_draft(request, piece)
    }

    /// One step. What it was made from must be the same as when it was recorded; the work is done only
    /// if it was not.
    pub(crate) async fn step(
        &mut self,
        kind: StepKind,
        made_from: &[u8],
        work: impl Future<Output = Result<StepDone, TurnError>>,
    ) -> Result<Raw, TurnError> {
        let work = async { Ok((work.await?, Beside::default())) };
        self.step_beside(kind, made_from, work).await
    }

    /// The same, with things that are committed together with the step.
    pub(crate) async fn step_beside(
        &mut self,
        kind: StepKind,
        made_from: &[u8],
        work: impl Future<Output = Result<(StepDone, Beside), TurnError>>,
    ) -> Result<Raw, TurnError> {
        let (index, input) = (self.next_step, Digest::sha256(made_from));
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
        let (done, beside) = work.await?;
        let step = StepBody {
            index,
            step: kind,
            input,
            result: done.result,
            config: (index == 0).then_some(self.spec.digest),
            usage: done.usage,
        };
        self.reach(kind, Moment::Before);
        let body = ItemBody {
            name: Some(kind.word().to_owned()),
            data: Some(raw(&step)),
            ..ItemBody::default()
        };
        let made = MadeStep {
            kind,
            body: to_bytes(&body),
            beside,
        };
        if made.beside.waits {
            self.waiting = Some(made);
        } else {
            self.record(&made).await?;
        }
        // A step that failed was none: whatever is done in its place has its number.
        self.next_step += 1;
        Ok(step.result)
    }

    /// Commits a step by itself.
    async fn record(&self, step: &MadeStep) -> Result<(), TurnError> {
        let (command, payloads) = self.appending(step).await?;
        self.submit(&command, &payloads).await?;
        self.reach(step.kind, Moment::After);
        Ok(())
    }

    /// The command that commits a step by itself.
    pub(super) async fn appending(
        &self,
        step: &MadeStep,
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

    /// Commits a step that waits for something which does not come: what led to an error is in the trace.
    pub(super) async fn record_waiting(&mut self) -> Result<(), TurnError> {
        match self.waiting.take() {
            Some(step) => self.record(&step).await,
            None => Ok(()),
        }
    }

    /// What was recorded next. None if the run is where nobody was before.
    pub(crate) fn next_recorded(&self) -> Option<StepKind> {
        self.journal.steps.front().map(|step| step.step)
    }

    /// How many steps are behind this run.
    pub(crate) fn steps_taken(&self) -> usize {
        self.next_step
    }

    /// Remembers something in the task at once, without a step.
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

    /// Adds to the history.
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
            self.waiting.is_none(),
            "each step is committed before the next"
        );
        let reply: Reply = Arc::new(|_| Vec::new());
        let done = self
            .engine
            .submit(self.place.session, &self.call(), command, payloads, &reply)
            .await;
        done.map(drop).map_err(TurnError::from)
    }

    /// What came before this request in its task, as far back as anybody needs it.
    pub(crate) async fn past(&self) -> Result<Past, TurnError> {
        let Place {
            session,
            task,
            request,
            ..
        } = self.place;
        Ok(Past::read(&self.engine, session, task, request).await?)
    }

    /// The values of session keys that are there.
    pub(crate) async fn shared(
        &self,
        keys: &[StateKey],
    ) -> Result<Vec<(StateKey, Raw)>, TurnError> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let values = self.engine.session_values(self.place.session).await?;
        let found = keys.iter().filter_map(|key| {
            let value = &values.get(key)?.value;
            let value = serde_json::from_slice(value).ok()?;
            Some((key.clone(), value))
        });
        Ok(found.collect())
    }

    /// Gives the request back, because it waits and nobody stays to wait.
    pub(crate) async fn leave(&self) -> TurnError {
        let command = Command::ReleaseLease { by: self.fenced() };
        let payloads = self.engine.no_payloads();
        match self.submit(&command, &payloads).await {
            Ok(()) => TurnError::Paused,
            Err(error) => error,
        }
    }

    /// Ends the request with its answer.
    pub(super) async fn complete(&mut self, answer: &Answer) -> Result<(), TurnError> {
        self.reach(StepKind::Answer, Moment::Before);
        let Some(last) = self.waiting.take() else {
            self.end(answer, None).await?;
            self.reach(StepKind::Answer, Moment::After);
            return Ok(());
        };
        match self.end(answer, Some(&last)).await {
            // What cannot be taken together may be taken one after the other; and if not, the trace has
            // what led there.
            Err(TurnError::Failed(_)) => {
                self.record(&last).await?;
                self.end(answer, None).await?;
            }
            ended => {
                ended?;
                self.reach(last.kind, Moment::After);
            }
        }
        self.reach(StepKind::Answer, Moment::After);
        Ok(())
    }

    /// Commits the answer, and with it the last step, if that is not committed yet.
    async fn end(&self, answer: &Answer, last: Option<&MadeStep>) -> Result<(), TurnError> {
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
        let output: Output = answer.words.put(&mut payloads);
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

/// An item that clients never see.
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
