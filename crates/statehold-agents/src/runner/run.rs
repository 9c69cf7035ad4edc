//! One request in the hands of this server: what it was asked, what it has recorded, and every way to go
//! on. Whatever was recorded is answered from there.

use std::collections::VecDeque;
use std::sync::Arc;

use statehold_core::command::{Command, Fenced, Output, StatePatch, StateSet};
use statehold_core::digest::Digest;
use statehold_core::hold::CallTarget;
use statehold_core::ids::{ItemId, RequestId, SessionId, TaskId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Role, Visibility};
use statehold_core::name::Name;
use statehold_core::scope::{MergePolicy, StateKey};
use statehold_engine::kept::{ItemBody, Raw, to_bytes};
use statehold_engine::{
    Call, Caller, ClaimedRequest, Credential, Engine, EngineError, HoldDetail, Payloads, Reply,
};

use super::child::step_mismatch;
use super::journal::{Journal, StepBody, StepKind};
use super::{Seat, Shared};
use crate::history::Past;
use crate::spec::AgentSpec;
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
        let live = claimed.detail.live.as_ref()?;
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
    pub(super) runner: Arc<Shared>,
    /// Its place among the turns that are under way.
    pub(crate) seat: Seat,
    next_step: usize,
}

impl Run {
    /// Takes what was claimed in hand.
    pub(super) async fn open(
        runner: Arc<Shared>,
        spec: Arc<AgentSpec>,
        claimed: ClaimedRequest,
        seat: Seat,
    ) -> Result<Self, TurnError> {
        let (engine, caller) = (runner.engine.clone(), runner.caller.clone());
        let place = Place::of(&claimed).ok_or(TurnError::Gone)?;
        let detail = claimed.detail;
        let live = detail.live.as_ref().ok_or(TurnError::Gone)?;
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
            .filter_map(|child| {
                let live = child.live.as_ref().map(|live| (live.number, live.id));
                let ended = child.ended.as_ref().map(|ended| (ended.number, ended.id));
                let (number, id) = live.or(ended)?;
                Some((number, id, child.task.agent.clone()))
            })
            .collect();
        children.sort_unstable_by_key(|(number, ..)| *number);
        let credential = claimed.credential.map(|(credential, _)| credential);
        Ok(Self {
            engine,
            caller,
            spec,
            place,
            input,
            credential: credential.or(claimed.service_credential),
            journal,
            children: children
                .into_iter()
                .map(|(_, id, agent)| (id, agent))
                .collect(),
            holds: detail.holds.into(),
            runner,
            seat,
            next_step: 0,
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
        let data = raw(&step);
        let body = ItemBody {
            name: Some(kind.word().to_owned()),
            data: Some(data),
            ..ItemBody::default()
        };
        let mut payloads = self.payloads().await?;
        let mut items = vec![hidden(ItemKind::Step, payloads.put(to_bytes(&body)))];
        for (call, outcome, result) in beside.results {
            let body = ItemBody {
                result: Some(result),
                ..ItemBody::default()
            };
            let mark = NewCallMark::Result {
                call: CallTarget::Recorded(call),
                outcome,
            };
            items.push(NewItem {
                call: Some(mark),
                ..hidden(ItemKind::ToolResult, payloads.put(to_bytes(&body)))
            });
        }
        let private = beside.private;
        let command = Command::AppendItems {
            by: self.fenced(),
            items,
            state: StatePatch::default(),
            task_state: private.map(|value| payloads.put(value.get().as_bytes().to_vec())),
        };
        self.submit(&command, &payloads).await?;
        // A step that failed was none: whatever is done in its place has its number.
        self.next_step += 1;
        self.reach(kind, Moment::After);
        Ok(step.result)
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
    pub(super) async fn complete(&self, answer: Answer) -> Result<(), TurnError> {
        let mut payloads = self.payloads().await?;
        let output: Output = answer.words.put(&mut payloads);
        let notes = answer.notes.iter().map(|(name, data)| {
            let body = ItemBody {
                name: Some((*name).to_owned()),
                data: Some(data.clone()),
                ..ItemBody::default()
            };
            hidden(ItemKind::Note, payloads.put(to_bytes(&body)))
        });
        let items = notes.collect();
        let sets = answer.state.iter().map(|(key, value)| StateSet {
            key: key.clone(),
            value: payloads.put(value.get().as_bytes().to_vec()),
            merge: MergePolicy::Replace,
        });
        let state = StatePatch {
            set: sets.collect(),
            ..StatePatch::default()
        };
        let private = answer.private;
        let task_state = private.map(|value| payloads.put(value.get().as_bytes().to_vec()));
        let command = Command::CompleteRequest {
            by: self.fenced(),
            output,
            items,
            state,
            task_state,
            close_task: false,
            cancel_children: true,
        };
        self.reach(StepKind::Answer, Moment::Before);
        self.submit(&command, &payloads).await?;
        self.reach(StepKind::Answer, Moment::After);
        Ok(())
    }
}

/// An item that clients never see.
pub(crate) fn hidden(kind: ItemKind, body: statehold_core::digest::BodyRef) -> NewItem {
    NewItem {
        kind,
        visibility: Visibility::Hidden,
        role: None,
        body,
        attachments: Vec::new(),
        call: None,
    }
}
