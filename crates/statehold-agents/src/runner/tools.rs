//! Tool calls as durable steps. All calls of one message are recorded before any runs; each result is
//! recorded as it comes; what a policy gates runs only after a person's decision.
//!
//! A call whose result is recorded is never made again. One without a result, because of a crash or because
//! its tool gave no answer, is made again under its key if the tool honours keys; about the others the
//! engine asks people first, when the turn is claimed again.

mod made;
mod person;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::stream::{FuturesUnordered, StreamExt};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use statehold_core::command::{Command, StatePatch};
use statehold_core::hold::{CallTarget, HoldKind, HoldStatus};
use statehold_core::ids::{HoldId, ItemId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem};
use statehold_core::record::Event;
use statehold_core::request::{CallState, OpenCall};
use statehold_engine::kept::{ItemBody, NO_ANSWER, NoAnswerBody, NoAnswerReason, Raw, to_bytes};
use statehold_engine::{Call, Committed, EngineError, HoldDetail, Reply};

use super::child::step_mismatch;
use super::journal::{RecordedCall, StepKind};
use super::run::{Moment, Run, StepDone, hidden};
use crate::mcp::{NoAnswer, Tool, ToolError, ToolServers};
use crate::model::Wish;
use crate::tool_policy::ToolRules;
use crate::turn::TurnError;
use crate::words::raw;

use made::{Came, Listing, Released};
use person::Decided;
pub(crate) use person::told_of;

/// How often policies are looked at for one message, should they become stricter in between.
const POLICY_LOOKS_MAX: usize = 5;

/// The tools of an agent, as its model was offered them last. They are asked for when somebody needs
/// them.
pub(crate) struct Toolbox {
    servers: Arc<ToolServers>,
    names: Vec<statehold_core::name::Name>,
    listed: Option<Arc<Vec<Tool>>>,
}

impl Toolbox {
    pub(crate) fn new(servers: Arc<ToolServers>, names: Vec<statehold_core::name::Name>) -> Self {
        Self {
            servers,
            names,
            listed: None,
        }
    }

    /// The tools as they are now: a call may have told that they are others than before.
    pub(crate) async fn tools_now(&mut self) -> Result<Arc<Vec<Tool>>, ToolError> {
        self.listed = None;
        self.tools().await
    }

    pub(crate) async fn tools(&mut self) -> Result<Arc<Vec<Tool>>, ToolError> {
        if let Some(listed) = &self.listed {
            return Ok(Arc::clone(listed));
        }
        let listed = self.list().await?;
        self.listed = Some(Arc::clone(&listed));
        Ok(listed)
    }

    async fn list(&self) -> Listing {
        let listed = match self.names.as_slice() {
            [] => Vec::new(),
            names => self.servers.tools(names).await?,
        };
        Ok(Arc::new(listed))
    }
}

/// What came of a call.
#[derive(Debug)]
pub(crate) struct Told {
    /// None if it could not even be asked about.
    pub(crate) outcome: Option<CallOutcome>,
    /// What the model is told.
    pub(crate) text: String,
}

/// What a model was told about a call that was neither made nor asked about, as its step keeps it. There
/// is no result of a call that nobody decided about.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct NotMade {
    pub(crate) call: ItemId,
    pub(crate) told: String,
}

/// A call with everything that is known about it here.
struct Open<'a> {
    call: RecordedCall,
    wish: &'a Wish,
    /// The whole arguments. None where they were hidden and this process did not see them.
    arguments: Option<Raw>,
    /// Whether it was recorded just now: nobody can have decided or run anything.
    is_new: bool,
}

/// What is to be done about a call.
enum Next {
    /// It runs.
    Run(Released),
    /// It does not run: this is recorded as its result.
    Record(CallOutcome, Raw),
    /// A person is asked.
    Ask,
    /// A person has not decided yet.
    Wait,
    /// It can neither run nor be asked about, and the model is told why.
    Stuck(String),
}

/// What was done about a call.
enum Settled {
    /// It has a result, or never will have one.
    Told(Told),
    /// It was made, and nobody knows what became of it.
    Unanswered(NoAnswer),
    /// Nothing: it waits for a person.
    Waits,
}

/// What is known of a live request at one revision.
struct Look {
    holds: Vec<HoldDetail>,
    holds_opened: u32,
    calls: BTreeMap<ItemId, OpenCall>,
    revision: u64,
}

impl Run {
    /// Has the calls of one message made, and gives what came of each, in order. `whole` has their
    /// arguments if the message was heard just now.
    pub(crate) async fn call_tools(
        &mut self,
        wishes: &[&Wish],
        whole: Option<Vec<Raw>>,
        toolbox: &mut Toolbox,
    ) -> Result<Vec<Told>, TurnError> {
        let mut open = self.take_calls(wishes, whole).await?;
        let mut told: BTreeMap<ItemId, Told> = BTreeMap::new();
        for one in &mut open {
            if let Some((outcome, text)) = one.call.told.take() {
                let outcome = Some(outcome);
                told.insert(one.call.id, Told { outcome, text });
            }
        }
        // What the model was told before, it is told again.
        while self.next_recorded() == Some(StepKind::ToolResult) {
            let NotMade { call, told: text } = self.not_made(None).await?;
            let outcome = None;
            told.insert(call, Told { outcome, text });
        }
        let can_run = |one: &Open<'_>| one.is_new && !one.call.gated;
        // Calls that nobody knows the outcome of. They are left to people once nothing else can be done.
        let mut unanswered: BTreeSet<ItemId> = BTreeSet::new();
        let mut to_note: Vec<(ItemId, NoAnswer)> = Vec::new();
        loop {
            let missing = || open.iter().filter(|one| !told.contains_key(&one.call.id));
            if missing().next().is_none() {
                break;
            }
            let needs_look = !unanswered.is_empty() || !missing().all(can_run);
            let look = if needs_look {
                Some(self.look().await?)
            } else {
                None
            };
            let mut next = Vec::new();
            for one in missing() {
                let what = if unanswered.contains(&one.call.id) {
                    Next::Wait
                } else {
                    next_of(one, look.as_ref())?
                };
                next.push((one, what));
            }
            let is_moving = next.iter().any(|(_, next)| !matches!(next, Next::Wait));
            if let (false, Some(look)) = (is_moving, &look) {
                if !to_note.is_empty() {
                    let notes = std::mem::take(&mut to_note);
                    self.note_unanswered(notes, look.holds_opened).await?;
                    continue;
                }
                if let Some(left) = self.leave_at(look.revision).await {
                    return Err(left);
                }
                continue;
            }
            // People are asked first: they can think while the other tools run.
            let asked: Vec<&Open<'_>> = next
                .iter()
                .filter(|(_, next)| matches!(next, Next::Ask))
                .map(|(one, _)| *one)
                .collect();
            let mut new: Vec<(ItemId, Told)> = self.ask_about(&asked, toolbox).await?;
            for (call, settled) in self.run_all(next, toolbox).await? {
                match settled {
                    Settled::Told(told) => new.push((call, told)),
                    Settled::Unanswered(why) => {
                        unanswered.insert(call);
                        to_note.push((call, why));
                    }
                    Settled::Waits => {}
                }
            }
            for (call, new) in new {
                if new.outcome.is_none() {
                    let told = new.text.clone();
                    self.not_made(Some(NotMade { call, told })).await?;
                }
                told.insert(call, new);
            }
        }
        let in_order = open.iter().filter_map(|one| told.remove(&one.call.id));
        Ok(in_order.collect())
    }

    /// Records what is told about a call that is not made, or gives what was recorded.
    async fn not_made(&mut self, new: Option<NotMade>) -> Result<NotMade, TurnError> {
        let work = async {
            let new = new.ok_or_else(|| step_mismatch("a call had not been made"))?;
            Ok(StepDone {
                result: raw(&new),
                usage: None,
            })
        };
        let step = self.step(StepKind::ToolResult, b"not made", work).await?;
        serde_json::from_str(step.get())
            .map_err(|error| TurnError::step_malformed("what is recorded of a call", &error))
    }

    /// The calls of a message: as they were recorded, or recorded now, all or none.
    async fn take_calls<'w>(
        &mut self,
        wishes: &[&'w Wish],
        whole: Option<Vec<Raw>>,
    ) -> Result<Vec<Open<'w>>, TurnError> {
        let is_new = self.journal.calls.is_empty();
        let whole: Vec<Option<Raw>> = match whole {
            Some(whole) => whole.into_iter().map(Some).collect(),
            None => wishes.iter().map(|wish| written(wish)).collect(),
        };
        let calls = if is_new {
            self.record_calls(wishes, &whole).await?
        } else {
            self.recorded_calls(wishes)?
        };
        let together = calls.into_iter().zip(wishes).zip(whole);
        Ok(together
            .map(|((call, wish), arguments)| Open {
                call,
                wish,
                arguments,
                is_new,
            })
            .collect())
    }

    fn recorded_calls(&mut self, wishes: &[&Wish]) -> Result<Vec<RecordedCall>, TurnError> {
        let mut calls = Vec::with_capacity(wishes.len());
        for wish in wishes {
            let call = self.journal.calls.pop_front();
            let call = call.filter(|call| {
                call.tool == wish.tool && call.call_id.as_deref() == Some(wish.id.as_str())
            });
            let call = call.ok_or_else(|| {
                let what = format!(
                    "the call of `{}` is not the one that was recorded",
                    wish.name
                );
                step_mismatch(&what)
            })?;
            calls.push(call);
        }
        Ok(calls)
    }

    async fn record_calls(
        &self,
        wishes: &[&Wish],
        whole: &[Option<Raw>],
    ) -> Result<Vec<RecordedCall>, TurnError> {
        for _ in 1..POLICY_LOOKS_MAX {
            match self.record_calls_as_laid_down(wishes, whole).await {
                // Something else was laid down between the look and the commit.
                Err(EngineError::ApprovalNeeded { .. } | EngineError::PolicyStricter { .. }) => {}
                done => return Ok(done?),
            }
        }
        Ok(self.record_calls_as_laid_down(wishes, whole).await?)
    }

    async fn record_calls_as_laid_down(
        &self,
        wishes: &[&Wish],
        whole: &[Option<Raw>],
    ) -> Result<Vec<RecordedCall>, EngineError> {
        let agent = &self.spec.name;
        let mut payloads = self.payloads().await?;
        let mut items = Vec::with_capacity(wishes.len());
        let mut calls = Vec::with_capacity(wishes.len());
        for (wish, whole) in wishes.iter().zip(whole) {
            // What the policy says now counts too: it may have become stricter since the model spoke.
            let policies = self.engine.policies();
            let policy = ToolRules::of(&policies, agent, &wish.server, &wish.original).effective;
            let judged = whole
                .as_ref()
                .and_then(|args| serde_json::from_str(args.get()).ok());
            let gated = wish.gated || policy.needs_approval(&judged.unwrap_or(Value::Null));
            let idempotent = wish.idempotent && policy.policy.idempotent != Some(false);
            let arguments = match whole {
                Some(whole) if gated => {
                    let shown = self.engine.shown_arguments(agent, &wish.tool, whole);
                    shown.unwrap_or_else(|| whole.clone())
                }
                Some(whole) => whole.clone(),
                None => preview(wish),
            };
            let body = ItemBody {
                name: Some(wish.tool.clone()),
                call_id: Some(wish.id.clone()),
                arguments: Some(arguments),
                ..ItemBody::default()
            };
            items.push(NewItem {
                call: Some(NewCallMark::Call { gated, idempotent }),
                ..hidden(ItemKind::ToolCall, payloads.put(to_bytes(&body)))
            });
            calls.push((wish, gated, idempotent));
        }
        let command = Command::AppendItems {
            by: self.fenced(),
            items,
            state: StatePatch::default(),
            task_state: None,
        };
        let reply: Reply = Arc::new(|made: &Committed<'_>| {
            let events = made.record.content.events.iter();
            let ids = events.flat_map(|event| match event {
                Event::ItemsAppended { items, .. } => items.as_slice(),
                _ => &[],
            });
            let ids: Vec<String> = ids.map(|item| item.id.to_string()).collect();
            ids.join("\n").into_bytes()
        });
        self.reach(StepKind::ToolCall, Moment::Before);
        let done = self
            .engine
            .submit(
                self.place.session,
                &self.call(),
                &command,
                &payloads,
                &reply,
            )
            .await?;
        self.reach(StepKind::ToolCall, Moment::After);
        let ids = String::from_utf8_lossy(&done.body).into_owned();
        let ids = ids.lines().filter_map(|id| id.parse::<ItemId>().ok());
        let calls = ids
            .zip(calls)
            .map(|(id, (wish, gated, idempotent))| RecordedCall {
                id,
                call_id: Some(wish.id.clone()),
                tool: wish.tool.clone(),
                gated,
                idempotent,
                told: None,
            });
        Ok(calls.collect())
    }

    async fn look(&self) -> Result<Look, TurnError> {
        let detail = self
            .engine
            .request(&self.caller, self.place.request)
            .await?;
        let live = detail.request.live().ok_or(TurnError::Gone)?.clone();
        Ok(Look {
            holds: detail.holds,
            holds_opened: live.holds_opened,
            calls: live.calls,
            revision: detail.revision,
        })
    }

    /// Does what can be done now, all at once. Each result is recorded as it comes.
    async fn run_all(
        &self,
        next: Vec<(&Open<'_>, Next)>,
        toolbox: &mut Toolbox,
    ) -> Result<Vec<(ItemId, Settled)>, TurnError> {
        let runs = next.iter().any(|(_, next)| matches!(next, Next::Run(_)));
        let listing = if runs {
            toolbox.tools().await
        } else {
            Ok(Arc::default())
        };
        let (listing, toolbox) = (&listing, &*toolbox);
        let settled = next
            .into_iter()
            .map(|(one, next)| self.settle(one, next, listing, toolbox));
        let mut settled: FuturesUnordered<_> = settled.collect();
        let mut all = Vec::new();
        while let Some(done) = settled.next().await {
            all.push(done?);
        }
        Ok(all)
    }

    /// Does what can be done about one call.
    async fn settle(
        &self,
        one: &Open<'_>,
        next: Next,
        listing: &Listing,
        toolbox: &Toolbox,
    ) -> Result<(ItemId, Settled), TurnError> {
        let id = one.call.id;
        let (outcome, result, note) = match next {
            Next::Ask | Next::Wait => return Ok((id, Settled::Waits)),
            Next::Stuck(text) => {
                let outcome = None;
                return Ok((id, Settled::Told(Told { outcome, text })));
            }
            Next::Record(outcome, result) => (outcome, result, None),
            Next::Run(released) => match self.run_tool(one, &released, listing, toolbox).await? {
                Came::Result(result) => (CallOutcome::Ran, result, released.note),
                Came::Nothing(why) => return Ok((id, Settled::Unanswered(why))),
            },
        };
        let told = self.record_result(one, outcome, result, note).await?;
        Ok((id, Settled::Told(told)))
    }

    /// Notes why people will be asked about some calls, once nobody holds the request any more.
    async fn note_unanswered(
        &self,
        unanswered: Vec<(ItemId, NoAnswer)>,
        holds_opened: u32,
    ) -> Result<(), TurnError> {
        let mut payloads = self.payloads().await?;
        let notes = unanswered.into_iter().map(|(call, why)| {
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
            hidden(ItemKind::Note, payloads.put(to_bytes(&body)))
        });
        let notes = notes.collect();
        self.append(notes, &payloads).await
    }

    async fn record_result(
        &self,
        one: &Open<'_>,
        outcome: CallOutcome,
        result: Raw,
        note: Option<String>,
    ) -> Result<Told, TurnError> {
        let body = ItemBody {
            name: Some(one.call.tool.clone()),
            call_id: one.call.call_id.clone(),
            result: Some(result),
            data: note.map(|note| raw(&serde_json::json!({"note": note}))),
            ..ItemBody::default()
        };
        self.reach(StepKind::ToolResult, Moment::Before);
        let mut payloads = self.payloads().await?;
        let item = NewItem {
            call: Some(NewCallMark::Result {
                call: CallTarget::Recorded(one.call.id),
                outcome,
            }),
            ..hidden(ItemKind::ToolResult, payloads.put(to_bytes(&body)))
        };
        self.append(vec![item], &payloads).await?;
        self.reach(StepKind::ToolResult, Moment::After);
        Ok(Told {
            outcome: Some(outcome),
            text: told_of(&body),
        })
    }

    /// Gives the request back if nothing has happened since. None if something has: a decision that
    /// came in between is ours to carry out, and must not look like a lost worker's.
    async fn leave_at(&self, revision: u64) -> Option<TurnError> {
        let command = Command::ReleaseLease { by: self.fenced() };
        let call = Call {
            if_revision: Some(revision),
            ..self.call()
        };
        let reply: Reply = Arc::new(|_| Vec::new());
        let payloads = self.engine.no_payloads();
        let left = self
            .engine
            .submit(self.place.session, &call, &command, &payloads, &reply)
            .await;
        match left {
            Ok(_) => Some(TurnError::Paused),
            Err(EngineError::RevisionMismatch { .. }) => None,
            Err(error) => Some(error.into()),
        }
    }
}

/// What is to be done about a call whose result is not recorded.
fn next_of(one: &Open<'_>, look: Option<&Look>) -> Result<Next, TurnError> {
    let id = one.call.id;
    let run = |arguments: &Raw, was_asked_about| {
        Next::Run(Released {
            arguments: arguments.clone(),
            note: None,
            approved: None,
            was_asked_about,
        })
    };
    let Some(look) = look else {
        // Recorded just now, and nobody needs to be asked.
        return Ok(match &one.arguments {
            Some(arguments) => run(arguments, false),
            None => Next::Stuck(lost_arguments()),
        });
    };
    let open = look.calls.get(&id).ok_or(TurnError::Gone)?;
    let mut holds = look.holds.iter().filter(|hold| hold.hold.call == Some(id));
    let approval = holds
        .clone()
        .find(|hold| hold.hold.kind == HoldKind::Approval);
    let was_asked_about = holds
        .clone()
        .any(|hold| hold.hold.kind == HoldKind::Reconcile);
    let last = holds.next_back();
    Ok(match (open.state, approval, last) {
        (CallState::Proposed, Some(_), _)
        | (CallState::Unknown { .. } | CallState::Released, _, _) => Next::Wait,
        (CallState::Proposed, None, _) => match &one.arguments {
            Some(_) => Next::Ask,
            None => Next::Stuck(lost_arguments()),
        },
        (CallState::Started { .. }, Some(approval), _) => {
            let (arguments, note) = released(approval)?;
            Next::Run(Released {
                arguments,
                note,
                approved: let_run(approval),
                was_asked_about,
            })
        }
        (CallState::Started { .. }, None, _) => match &one.arguments {
            Some(arguments) => run(arguments, was_asked_about),
            None => return Err(arguments_gone(&one.wish.name)),
        },
        (CallState::Refused | CallState::Answered | CallState::Confirmed, _, last) => {
            match person::decided(open.state, last) {
                Decided::Refused(text) => Next::Record(CallOutcome::Refused, raw(&text)),
                Decided::Answered(answer) => Next::Record(CallOutcome::Answered, answer),
                Decided::Ran(result) => Next::Record(CallOutcome::Ran, result),
            }
        }
    })
}

/// The decision of a hold that let its call run, and the record of it.
fn let_run(hold: &HoldDetail) -> Option<(HoldId, u64)> {
    let closed = hold.closed.as_ref()?;
    let lets_run = matches!(
        closed.decision.status,
        HoldStatus::Approved | HoldStatus::Edited
    );
    lets_run.then_some((hold.hold.id, closed.decided_by))
}

/// The arguments of a call as its step has them. None if they are only a preview.
fn written(wish: &Wish) -> Option<Raw> {
    if wish.hidden {
        return None;
    }
    Some(preview(wish))
}

/// Whether a tool is the one that a call was meant for. Names that models see may pass from one server to
/// another while people think.
fn is_meant(tool: &Tool, wish: &Wish) -> bool {
    tool.server.as_str() == wish.server && tool.original == wish.original
}

fn preview(wish: &Wish) -> Raw {
    let parsed = RawValue::from_string(wish.arguments.clone());
    parsed.unwrap_or_else(|_| raw(&serde_json::Map::new()))
}

/// The arguments that a person released, and a note if they were changed.
fn released(approval: &HoldDetail) -> Result<(Raw, Option<String>), TurnError> {
    let opened = approval.opened.clone().unwrap_or_default();
    let tool = person::tool_of(approval);
    if opened.lost {
        return Err(arguments_gone(&tool));
    }
    let note = opened.edited.is_some().then(|| person::edit_note(approval));
    let arguments = opened.edited.or(opened.args);
    let arguments = arguments.ok_or_else(|| arguments_gone(&tool))?;
    Ok((arguments, note))
}

/// What the model is told when the server cannot ask a person about a call any more.
fn lost_arguments() -> String {
    "It was not called: the server was restarted before a person could be asked about it, and its hidden \
     arguments are not kept. Call it again if it is still wanted."
        .to_owned()
}

fn arguments_gone(tool: &str) -> TurnError {
    let message = format!(
        "the arguments that `{tool}` was approved with are gone, so it cannot be called; find out whether it \
         was before, and ask again"
    );
    TurnError::failed("arguments_lost", message)
}

#[cfg(test)]
mod tests;
