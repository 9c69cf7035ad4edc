//! Tool calls as durable steps. All calls of one model reply are recorded before any of them runs. Each
//! result is recorded as it arrives. A call gated by a policy runs only after its approval.
//!
//! A call with a recorded result never runs again. A call without one, after a crash or a tool that did
//! not answer, is retried with the same execution key if the tool is idempotent. For other tools the
//! engine opens a reconcile hold when the request is claimed again.

mod call_meta;
mod execute;
mod person;
mod question;
mod state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use statehold_core::hold::{CallTarget, HoldKind, HoldStatus};
use statehold_core::ids::{HoldId, ItemId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark};
use statehold_core::name::Name;
use statehold_core::request::{CallState, OpenCall};
use statehold_engine::bodies::{
    AttachmentBody, ItemBody, NO_ANSWER, NoAnswerBody, NoAnswerReason, Raw,
};
use statehold_engine::{EngineError, HoldDetail};

use super::child::step_mismatch;
use super::journal::{RecordedCall, StepKind};
use super::run::{AgentRun, CommitPhase, StepExtras};
use crate::mcp::{McpTool, NoAnswer, ToolList, ToolMedia, ToolServers, resource_links};
use crate::message::raw;
use crate::model::RequestedCall;
use crate::spec::{HistoryAccess, StateAccess};
use crate::tool_policy::ToolRules;
use crate::turn::TurnError;

use execute::{ReleasedCall, ToolRunResult};
use person::CallDecision;
pub(crate) use person::render_for_model;
use person::{NOTE_GAP, is_error_result};
use state::{StateWrite, offer_state_tools};

/// How often the calls are recorded again if the policy becomes stricter between the check and the
/// commit.
const POLICY_CHECKS_MAX: usize = 5;

/// The tools of an agent as last offered to its model. Listed on first use.
pub(crate) struct Toolbox {
    servers: Arc<ToolServers>,
    names: Vec<Name>,
    /// The scopes of the state tools.
    state: StateAccess,
    /// How the tools read the conversation, and its address.
    conversation: (HistoryAccess, Option<String>),
    /// Whether the agent is a tool, and not a model with tools.
    is_agent: bool,
    listed: Option<Arc<ToolList>>,
}

impl Toolbox {
    pub(crate) fn new((servers, names): (Arc<ToolServers>, Vec<Name>), state: StateAccess) -> Self {
        Self {
            servers,
            names,
            state,
            conversation: (HistoryAccess::None, None),
            is_agent: false,
            listed: None,
        }
    }

    /// The tools of an agent that is one of them, and reads the conversation.
    pub(crate) fn of_agent(
        (servers, name): (Arc<ToolServers>, Name),
        conversation: (HistoryAccess, Option<String>),
    ) -> Self {
        Self {
            conversation,
            is_agent: true,
            ..Self::new((servers, vec![name]), StateAccess::default())
        }
    }

    /// Lists the tools again, because a tool call may have changed the list.
    pub(crate) async fn refresh_tools(&mut self) -> Arc<ToolList> {
        self.listed = None;
        self.tools().await
    }

    pub(crate) async fn tools(&mut self) -> Arc<ToolList> {
        if let Some(listed) = &self.listed {
            return Arc::clone(listed);
        }
        let listed = Arc::new(self.list().await);
        self.listed = Some(Arc::clone(&listed));
        listed
    }

    async fn list(&self) -> ToolList {
        let mut list = self.servers.tools(&self.names).await;
        offer_state_tools(&self.state, &mut list);
        list
    }
}

/// Outcome of a call, and the result for the model.
#[derive(Debug)]
pub(crate) struct CallReport {
    /// None if the call was neither executed nor put before a person.
    pub(crate) outcome: Option<CallOutcome>,
    /// The text for the model.
    pub(crate) text: String,
    /// Images and sounds of the result, for models that take them.
    pub(crate) media: Vec<ToolMedia>,
    /// Links of the result to files.
    pub(crate) links: Vec<AttachmentBody>,
    /// Whether the tool reported an error.
    pub(crate) is_error: bool,
    /// Where the result begins in the text, behind a note for the model.
    pub(crate) note_bytes: usize,
}

impl CallReport {
    /// The report of a recorded result.
    pub(super) fn of_result(outcome: CallOutcome, body: &ItemBody) -> Self {
        let result = body.result.as_deref();
        Self {
            outcome: Some(outcome),
            text: render_for_model(body),
            media: result.map(ToolMedia::read).unwrap_or_default(),
            links: result.map(resource_links).unwrap_or_default(),
            is_error: result.is_some_and(is_error_result),
            note_bytes: person::note_of(body).map_or(0, |note| note.len() + NOTE_GAP.len()),
        }
    }

    /// The report of a call that was neither executed nor put before a person.
    fn skipped(text: String) -> Self {
        Self {
            outcome: None,
            text,
            media: Vec::new(),
            links: Vec::new(),
            is_error: false,
            note_bytes: 0,
        }
    }
}

/// Recorded text about a call that was neither executed nor put before a person. Such a call has no
/// result item, because nothing was decided about it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct SkippedCall {
    pub(crate) call: ItemId,
    pub(crate) told: String,
}

/// A recorded call without a result.
struct PendingCall<'a> {
    call: RecordedCall,
    requested: &'a RequestedCall,
    /// Complete arguments. None if they are redacted in the record and this process never saw them.
    arguments: Option<Raw>,
    /// Recorded by this run, so there can be no decision and no earlier execution.
    is_new: bool,
}

/// The next action for a call.
enum CallAction {
    /// Execute it.
    Execute(ReleasedCall),
    /// Record this result without executing it.
    Record(CallOutcome, Raw),
    /// Open an approval hold.
    Ask,
    /// Wait for an open hold.
    Wait,
    /// It can neither run nor be put before a person. The model gets this text.
    Stuck(String),
}

/// State of a call after its action.
enum CallSettlement {
    /// It has its final text.
    Reported(CallReport),
    /// It was executed, and its outcome is unknown.
    Unanswered(NoAnswer),
    /// It waits for a person.
    Waits,
    /// It asked a person, and is made again when they have answered.
    Asks,
}

/// Snapshot of a live request at one revision.
struct RequestSnapshot {
    holds: Vec<HoldDetail>,
    holds_opened: u32,
    calls: BTreeMap<ItemId, OpenCall>,
    revision: u64,
}

impl RequestSnapshot {
    /// Whether a question of this call is open.
    fn has_question(&self, call: ItemId) -> bool {
        let mut open = self.holds.iter().filter(|hold| hold.closed.is_none());
        open.any(|hold| question::is_of(hold, call))
    }
}

impl AgentRun {
    /// Executes the calls of one model reply and returns a report for each, in order. `complete_arguments` has the
    /// complete arguments if the model replied in this run.
    pub(crate) async fn call_tools(
        &mut self,
        requested_calls: &[&RequestedCall],
        complete_arguments: Option<Vec<Raw>>,
        toolbox: &mut Toolbox,
    ) -> Result<Vec<CallReport>, TurnError> {
        let mut open = self.open_calls(requested_calls, complete_arguments).await?;
        let mut reports: BTreeMap<ItemId, CallReport> = BTreeMap::new();
        for one in &mut open {
            if let Some(report) = one.call.report.take() {
                reports.insert(one.call.id, report);
            }
        }
        // Replay recorded texts of skipped calls.
        while self.next_recorded_kind() == Some(StepKind::ToolResult) {
            let SkippedCall { call, told: text } = self.record_skipped(None).await?;
            reports.insert(call, CallReport::skipped(text));
        }
        let can_run = |one: &PendingCall<'_>| one.is_new && !one.call.gated;
        // Calls with an unknown outcome. The engine opens reconcile holds for them after this run has
        // released the lease.
        let mut unanswered: BTreeSet<ItemId> = BTreeSet::new();
        let mut to_note: Vec<(ItemId, NoAnswer)> = Vec::new();
        // Calls that asked a person. They are made again after the next claim, or as soon as they are answered.
        let mut asking: BTreeSet<ItemId> = BTreeSet::new();
        loop {
            let missing = || {
                open.iter()
                    .filter(|one| !reports.contains_key(&one.call.id))
            };
            if missing().next().is_none() {
                break;
            }
            let needs_snapshot =
                !unanswered.is_empty() || !asking.is_empty() || !missing().all(can_run);
            let snapshot = if needs_snapshot {
                Some(self.load_snapshot().await?)
            } else {
                None
            };
            let mut next = Vec::new();
            for one in missing() {
                let id = one.call.id;
                let is_asking = asking.contains(&id)
                    && snapshot
                        .as_ref()
                        .is_some_and(|snapshot| snapshot.has_question(id));
                let what = if unanswered.contains(&id) || is_asking {
                    CallAction::Wait
                } else {
                    next_action(one, snapshot.as_ref())?
                };
                next.push((one, what));
            }
            let is_moving = next
                .iter()
                .any(|(_, next)| !matches!(next, CallAction::Wait));
            if let (false, Some(snapshot)) = (is_moving, &snapshot) {
                if !to_note.is_empty() {
                    let notes = std::mem::take(&mut to_note);
                    self.note_unanswered(notes, snapshot.holds_opened).await?;
                    continue;
                }
                if let Some(left) = self.release_lease_at(snapshot.revision).await {
                    return Err(left);
                }
                continue;
            }
            // Open the holds first, so that people can decide while the other tools run.
            let asked: Vec<&PendingCall<'_>> = next
                .iter()
                .filter(|(_, next)| matches!(next, CallAction::Ask))
                .map(|(one, _)| *one)
                .collect();
            let mut new: Vec<(ItemId, CallReport)> = self.open_approvals(&asked, toolbox).await?;
            for (call, settled) in self.perform_actions(next, toolbox).await? {
                match settled {
                    CallSettlement::Reported(report) => new.push((call, report)),
                    CallSettlement::Unanswered(why) => {
                        unanswered.insert(call);
                        to_note.push((call, why));
                    }
                    CallSettlement::Asks => drop(asking.insert(call)),
                    CallSettlement::Waits => {}
                }
            }
            for (call, new) in new {
                if new.outcome.is_none() {
                    let told = new.text.clone();
                    self.record_skipped(Some(SkippedCall { call, told }))
                        .await?;
                }
                reports.insert(call, new);
            }
        }
        let in_order = open.iter().filter_map(|one| reports.remove(&one.call.id));
        Ok(in_order.collect())
    }

    /// Records the text for a skipped call, or replays the recorded one.
    async fn record_skipped(&mut self, new: Option<SkippedCall>) -> Result<SkippedCall, TurnError> {
        let work = async {
            let new = new.ok_or_else(|| step_mismatch("it had skipped a call"))?;
            Ok((new, StepExtras::default()))
        };
        let step = (StepKind::ToolResult, "the record of a skipped call");
        self.step(step, b"not made", work).await
    }

    /// Returns the recorded calls of a reply, or records all of them in one commit.
    async fn open_calls<'w>(
        &mut self,
        requested_calls: &[&'w RequestedCall],
        complete_arguments: Option<Vec<Raw>>,
    ) -> Result<Vec<PendingCall<'w>>, TurnError> {
        let is_new = self.journal.calls.is_empty();
        let complete_arguments: Vec<Option<Raw>> = match complete_arguments {
            Some(complete_arguments) => complete_arguments.into_iter().map(Some).collect(),
            None => requested_calls
                .iter()
                .map(|requested| unredacted_arguments(requested))
                .collect(),
        };
        let calls = if is_new {
            self.record_calls(requested_calls, &complete_arguments)
                .await?
        } else {
            self.replay_calls(requested_calls)?
        };
        let together = calls
            .into_iter()
            .zip(requested_calls)
            .zip(complete_arguments);
        Ok(together
            .map(|((call, requested), arguments)| PendingCall {
                call,
                requested,
                arguments,
                is_new,
            })
            .collect())
    }

    fn replay_calls(
        &mut self,
        requested_calls: &[&RequestedCall],
    ) -> Result<Vec<RecordedCall>, TurnError> {
        let mut calls = Vec::with_capacity(requested_calls.len());
        for requested in requested_calls {
            let call = self.journal.calls.pop_front();
            let call = call.filter(|call| {
                call.tool == requested.tool
                    && call.call_id.as_deref() == Some(requested.id.as_str())
            });
            let call = call.ok_or_else(|| {
                let what = format!(
                    "the call of `{}` differs from the recorded one",
                    requested.name
                );
                step_mismatch(&what)
            })?;
            calls.push(call);
        }
        Ok(calls)
    }

    async fn record_calls(
        &mut self,
        requested_calls: &[&RequestedCall],
        complete_arguments: &[Option<Raw>],
    ) -> Result<Vec<RecordedCall>, TurnError> {
        for _ in 1..POLICY_CHECKS_MAX {
            match self
                .record_calls_under_policy(requested_calls, complete_arguments)
                .await
            {
                // The policy became stricter between the check and the commit.
                Err(EngineError::ApprovalNeeded { .. } | EngineError::PolicyStricter { .. }) => {}
                done => return Ok(done?),
            }
        }
        Ok(self
            .record_calls_under_policy(requested_calls, complete_arguments)
            .await?)
    }

    async fn record_calls_under_policy(
        &mut self,
        requested_calls: &[&RequestedCall],
        complete_arguments: &[Option<Raw>],
    ) -> Result<Vec<RecordedCall>, EngineError> {
        let agent = &self.spec.name.clone();
        let mut batch = self.request.batch().await?;
        let mut calls = Vec::with_capacity(requested_calls.len());
        for (requested, complete_arguments) in requested_calls.iter().zip(complete_arguments) {
            // Check the current policy as well: it may have become stricter since the model replied.
            let policies = self.engine.policies();
            let policy =
                ToolRules::of(&policies, agent, &requested.server, &requested.original).effective;
            let judged = complete_arguments
                .as_ref()
                .and_then(|args| serde_json::from_str(args.get()).ok());
            let gated = requested.gated || policy.needs_approval(&judged.unwrap_or(Value::Null));
            let idempotent = requested.idempotent && policy.policy.idempotent != Some(false);
            let arguments = match complete_arguments {
                Some(complete_arguments) if gated => {
                    let shown =
                        self.engine
                            .shown_arguments(agent, &requested.tool, complete_arguments);
                    shown.unwrap_or_else(|| complete_arguments.clone())
                }
                Some(complete_arguments) => complete_arguments.clone(),
                None => recorded_arguments(requested),
            };
            let body = ItemBody {
                name: Some(requested.tool.clone()),
                call_id: Some(requested.id.clone()),
                arguments: Some(arguments),
                ..ItemBody::default()
            };
            let mark = NewCallMark::Call { gated, idempotent };
            batch.push(ItemKind::ToolCall, Some(mark), &body);
            calls.push((requested, gated, idempotent));
        }
        self.notify_hook(StepKind::ToolCall, CommitPhase::Before);
        let ids = self.append_behind_step(batch).await?.into_iter();
        self.notify_hook(StepKind::ToolCall, CommitPhase::After);
        let calls = ids
            .zip(calls)
            .map(|(id, (requested, gated, idempotent))| RecordedCall {
                id,
                call_id: Some(requested.id.clone()),
                tool: requested.tool.clone(),
                gated,
                idempotent,
                report: None,
            });
        Ok(calls.collect())
    }

    async fn load_snapshot(&self) -> Result<RequestSnapshot, TurnError> {
        let detail = self.request.read().await?;
        let live = detail.request.live().ok_or(TurnError::Gone)?.clone();
        Ok(RequestSnapshot {
            holds: detail.holds,
            holds_opened: live.holds_opened,
            calls: live.calls,
            revision: detail.revision,
        })
    }

    /// Performs all actions concurrently, and records each result as it arrives.
    async fn perform_actions(
        &self,
        next: Vec<(&PendingCall<'_>, CallAction)>,
        toolbox: &mut Toolbox,
    ) -> Result<Vec<(ItemId, CallSettlement)>, TurnError> {
        let runs = next
            .iter()
            .any(|(_, next)| matches!(next, CallAction::Execute(_)));
        let listing = if runs {
            toolbox.tools().await
        } else {
            Arc::default()
        };
        let (listing, toolbox) = (&listing, &*toolbox);
        let settled = next
            .into_iter()
            .map(|(one, next)| self.perform_action(one, next, listing, toolbox));
        let mut settled: FuturesUnordered<_> = settled.collect();
        let mut all = Vec::new();
        while let Some(done) = settled.next().await {
            all.push(done?);
        }
        Ok(all)
    }

    /// Performs the action for one call.
    async fn perform_action(
        &self,
        one: &PendingCall<'_>,
        next: CallAction,
        listing: &Arc<ToolList>,
        toolbox: &Toolbox,
    ) -> Result<(ItemId, CallSettlement), TurnError> {
        let id = one.call.id;
        let mut write = None;
        let (outcome, result, note) = match next {
            CallAction::Ask | CallAction::Wait => return Ok((id, CallSettlement::Waits)),
            CallAction::Stuck(text) => {
                return Ok((id, CallSettlement::Reported(CallReport::skipped(text))));
            }
            CallAction::Record(outcome, result) => (outcome, result, None),
            CallAction::Execute(released) => match self
                .execute_call(one, &released, listing, toolbox)
                .await?
            {
                ToolRunResult::Result(result) => (CallOutcome::Ran, result, released.note),
                ToolRunResult::State(done) => {
                    write = done.write;
                    (CallOutcome::Ran, done.result, released.note)
                }
                ToolRunResult::Nothing(why) => return Ok((id, CallSettlement::Unanswered(why))),
                ToolRunResult::WaitsForPerson => return Ok((id, CallSettlement::Asks)),
            },
        };
        let told = self
            .record_result(one, (outcome, result), note, write)
            .await?;
        Ok((id, CallSettlement::Reported(told)))
    }

    /// Records why these calls will get reconcile holds once the lease is released.
    async fn note_unanswered(
        &self,
        unanswered: Vec<(ItemId, NoAnswer)>,
        holds_opened: u32,
    ) -> Result<(), TurnError> {
        let mut batch = self.request.batch().await?;
        for (call, why) in unanswered {
            let data = NoAnswerBody {
                call,
                reason: match why {
                    NoAnswer::Late => NoAnswerReason::Timeout,
                    NoAnswer::Lost => NoAnswerReason::ConnectionLost,
                    NoAnswer::Unclear => NoAnswerReason::Unclear,
                },
                holds_opened,
            };
            let body = ItemBody {
                name: Some(NO_ANSWER.to_owned()),
                data: Some(raw(&data)),
                ..ItemBody::default()
            };
            batch.push(ItemKind::Note, None, &body);
        }
        Ok(self.append(batch).await.map(drop)?)
    }

    /// Records the result of a call, and with it the state value that the call writes.
    async fn record_result(
        &self,
        one: &PendingCall<'_>,
        (outcome, result): (CallOutcome, Raw),
        note: Option<String>,
        write: Option<StateWrite>,
    ) -> Result<CallReport, TurnError> {
        let body = ItemBody {
            name: Some(one.call.tool.clone()),
            call_id: one.call.call_id.clone(),
            result: Some(result),
            data: note.map(|note| raw(&serde_json::json!({"note": note}))),
            ..ItemBody::default()
        };
        self.notify_hook(StepKind::ToolResult, CommitPhase::Before);
        let mut batch = self.request.batch().await?;
        let mark = NewCallMark::Result {
            call: CallTarget::Recorded(one.call.id),
            outcome,
        };
        batch.push(ItemKind::ToolResult, Some(mark), &body);
        match write {
            Some((key, Some(value))) => batch.set_state(key, &value),
            Some((key, None)) => batch.delete_state(key),
            None => {}
        }
        self.append(batch).await?;
        self.notify_hook(StepKind::ToolResult, CommitPhase::After);
        Ok(CallReport::of_result(outcome, &body))
    }

    /// Releases the lease if the session is still at this revision. None if it has changed: this run
    /// must execute a decision that arrived in between, or the engine would treat the call as lost.
    async fn release_lease_at(&self, revision: u64) -> Option<TurnError> {
        match self.request.release(Some(revision)).await {
            Ok(()) => Some(TurnError::Paused),
            Err(EngineError::RevisionMismatch { .. }) => None,
            Err(error) => Some(error.into()),
        }
    }
}

/// Chooses the next action for a call without a recorded result.
fn next_action(
    one: &PendingCall<'_>,
    snapshot: Option<&RequestSnapshot>,
) -> Result<CallAction, TurnError> {
    let id = one.call.id;
    let run = |arguments: &Raw, was_asked_about| {
        CallAction::Execute(ReleasedCall {
            arguments: arguments.clone(),
            note: None,
            approved: None,
            was_asked_about,
        })
    };
    let Some(snapshot) = snapshot else {
        // Recorded just now, and no approval is needed.
        return Ok(match &one.arguments {
            Some(arguments) => run(arguments, false),
            None => CallAction::Stuck(arguments_lost_text()),
        });
    };
    let open = snapshot.calls.get(&id).ok_or(TurnError::Gone)?;
    let mut holds = snapshot
        .holds
        .iter()
        .filter(|hold| hold.hold.call == Some(id));
    let approval = holds
        .clone()
        .find(|hold| hold.hold.kind == HoldKind::Approval);
    let was_asked_about = holds
        .clone()
        .any(|hold| hold.hold.kind == HoldKind::Reconcile);
    let last = holds.next_back();
    Ok(match (open.state, approval, last) {
        (CallState::Proposed, Some(_), _)
        | (CallState::Unknown { .. } | CallState::Released, _, _) => CallAction::Wait,
        (CallState::Proposed, None, _) => match &one.arguments {
            Some(_) => CallAction::Ask,
            None => CallAction::Stuck(arguments_lost_text()),
        },
        (CallState::Started { .. }, Some(approval), _) => {
            let (arguments, note) = released_arguments(approval)?;
            CallAction::Execute(ReleasedCall {
                arguments,
                note,
                approved: releasing_decision(approval),
                was_asked_about,
            })
        }
        (CallState::Started { .. }, None, _) => match &one.arguments {
            Some(arguments) => run(arguments, was_asked_about),
            None => return Err(arguments_lost_error(&one.requested.name)),
        },
        (CallState::Refused | CallState::Answered | CallState::Confirmed, _, last) => {
            match person::call_decision(open.state, last) {
                CallDecision::Refused(text) => CallAction::Record(CallOutcome::Refused, raw(&text)),
                CallDecision::Answered(answer) => CallAction::Record(CallOutcome::Answered, answer),
                CallDecision::Ran(result) => CallAction::Record(CallOutcome::Ran, result),
            }
        }
    })
}

/// The decision that released the call, and the revision of its record. None if the hold did not
/// release it.
fn releasing_decision(hold: &HoldDetail) -> Option<(HoldId, u64)> {
    let closed = hold.closed.as_ref()?;
    let lets_run = matches!(
        closed.decision.status,
        HoldStatus::Approved | HoldStatus::Edited
    );
    lets_run.then_some((hold.hold.id, closed.decided_by))
}

/// The arguments recorded in the step. None if they are only a redacted preview.
fn unredacted_arguments(requested: &RequestedCall) -> Option<Raw> {
    if requested.hidden {
        return None;
    }
    Some(recorded_arguments(requested))
}

/// Whether a tool is the one that the model chose. A name that models see may move to another server
/// while a hold is open.
fn is_chosen_tool(tool: &McpTool, requested: &RequestedCall) -> bool {
    tool.server.as_str() == requested.server && tool.original == requested.original
}

fn recorded_arguments(requested: &RequestedCall) -> Raw {
    let parsed = RawValue::from_string(requested.arguments.clone());
    parsed.unwrap_or_else(|_| raw(&serde_json::Map::new()))
}

/// The approved arguments, and a note if a person edited them.
fn released_arguments(approval: &HoldDetail) -> Result<(Raw, Option<String>), TurnError> {
    let opened = approval.opened.clone().unwrap_or_default();
    let tool = person::tool_of(approval);
    if opened.lost {
        return Err(arguments_lost_error(&tool));
    }
    let note = opened.edited.is_some().then(|| person::edit_note(approval));
    let arguments = opened.edited.or(opened.args);
    let arguments = arguments.ok_or_else(|| arguments_lost_error(&tool))?;
    Ok((arguments, note))
}

/// Text for the model when the server can no longer open a hold for a call.
fn arguments_lost_text() -> String {
    "It was not called: the server was restarted before a person could be asked about it, and its hidden \
     arguments are not kept. Call it again if it is still wanted."
        .to_owned()
}

fn arguments_lost_error(tool: &str) -> TurnError {
    let message = format!(
        "the arguments that `{tool}` was approved with are gone, so it cannot be called; find out whether it \
         was before, and ask again"
    );
    TurnError::failed("arguments_lost", message)
}

#[cfg(test)]
mod tests;
