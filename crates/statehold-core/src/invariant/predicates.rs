//! One function per promise, in the order of their numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::naive::Waits;
use super::{CommandStep, Facts, Observation, RecordStep, Verdict};
use crate::apply::apply;
use crate::command::{Command, Fenced, Outcome, Rejection};
use crate::digest::Digest;
use crate::hold::{DecideBy, Decision, HoldStatus};
use crate::ids::{HoldId, ItemId, RequestId, TaskId};
use crate::item::{CallMark, CallOutcome, Item, ItemKind, PlacedItem, Role, Visibility};
use crate::limits;
use crate::principal::Principal;
use crate::record::{CommandName, ErasedPayloads, Event, Record};
use crate::request::{FENCE_RAISE, LiveStatus, REQUEST_TRANSITIONS, RequestOutcome};
use crate::scope::Scope;
use crate::session::SessionState;
use crate::task::TaskStatus;
use crate::view::View;

pub(super) type Predicate = fn(&Facts, &Observation<'_>) -> Verdict;

/// Holds if every one of `cases` does; is not concerned if there is none.
fn all(cases: impl IntoIterator<Item = bool>) -> Verdict {
    let mut verdict = Verdict::NotConcerned;
    for case in cases {
        if !case {
            return Verdict::Broken;
        }
        verdict = Verdict::Holds;
    }
    verdict
}

fn on_record(seen: &Observation<'_>, judge: impl FnOnce(&RecordStep<'_>) -> Verdict) -> Verdict {
    match seen {
        Observation::Record(step) => judge(step),
        Observation::Command(_) | Observation::Recovery(_) => Verdict::NotConcerned,
    }
}

fn on_command(seen: &Observation<'_>, judge: impl FnOnce(&CommandStep<'_>) -> Verdict) -> Verdict {
    match seen {
        Observation::Command(step) => judge(step),
        Observation::Record(_) | Observation::Recovery(_) => Verdict::NotConcerned,
    }
}

fn is_foreign(step: &CommandStep<'_>) -> bool {
    let owner = step.before.owner.as_ref();
    owner.is_none_or(|owner| owner.tenant != step.ctx.actor.tenant)
}

fn decisions(record: &Record) -> impl Iterator<Item = (HoldId, &Decision)> {
    record
        .content
        .events
        .iter()
        .filter_map(|event| match event {
            Event::HoldDecided { hold, decision, .. } => Some((*hold, decision)),
            _ => None,
        })
}

fn items(record: &Record) -> impl Iterator<Item = (RequestId, TaskId, &Item)> {
    record.content.events.iter().flat_map(|event| match event {
        Event::ItemsAppended {
            request,
            task,
            items,
        } => items
            .iter()
            .map(|item| (*request, *task, item))
            .collect::<Vec<_>>(),
        _ => Vec::new(),
    })
}

pub(super) fn single_decision(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let mut decided = BTreeSet::new();
        all(decisions(step.record).map(|(hold, _)| {
            let before = facts.holds.get(&hold).map_or(0, |known| known.decisions);
            before == 0 && decided.insert(hold)
        }))
    })
}

pub(super) fn decision_idempotence(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_command(seen, |step| {
        let Command::DecideHold { hold, decision } = step.command else {
            return Verdict::NotConcerned;
        };
        let Some(known) = facts.holds.get(hold) else {
            return Verdict::NotConcerned;
        };
        if known
            .decision
            .is_some_and(|known| known.status == HoldStatus::Open)
        {
            return Verdict::Broken;
        }
        // A deleted session answers for nothing.
        if is_foreign(step) || step.before.deleted {
            return Verdict::NotConcerned;
        }
        let same = (decision.key, decision.fingerprint);
        let by = step.ctx.actor.principal;
        let has_voted = known.approvals.get(&by) == Some(&same);
        let has_decided = known.decision.is_some_and(|known| {
            known.by == by && known.key == Some(same.0) && known.fingerprint == Some(same.1)
        });
        if has_voted || has_decided {
            return all([matches!(step.result, Ok(Outcome::AlreadyDone { .. }))]);
        }
        match known.decision {
            Some(_) => all([step.result.is_err()]),
            None => Verdict::NotConcerned,
        }
    })
}

pub(super) fn at_most_once_release(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let mut released = BTreeSet::new();
        all(decisions(step.record)
            .filter(|(_, decision)| decision.released.is_some())
            .map(|(hold, decision)| {
                let before = facts.holds.get(&hold).map_or(0, |known| known.releases);
                let may_release = matches!(
                    decision.status,
                    HoldStatus::Approved | HoldStatus::Edited | HoldStatus::Answered
                );
                before == 0 && released.insert(hold) && may_release
            }))
    })
}

pub(super) fn no_approval_no_execution(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let mut gated: BTreeSet<ItemId> = BTreeSet::new();
        let mut cases = Vec::new();
        for (_, _, item) in items(step.record) {
            match item.call {
                Some(CallMark::Call { gated: true, .. }) => {
                    gated.insert(item.id);
                }
                Some(CallMark::Result {
                    call,
                    outcome: CallOutcome::Ran,
                    executed,
                }) => {
                    let known: Option<(bool, Option<Digest>)> = facts.calls.get(&call).copied();
                    let (is_gated, released) = known.unwrap_or((gated.contains(&call), None));
                    if is_gated {
                        cases.push(released.is_some() && executed == released);
                    }
                }
                _ => {}
            }
        }
        all(cases)
    })
}

pub(super) fn exact_pause(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let (tasks, waits) = (step.after.tasks.values(), Waits::of(step.after));
        all(tasks.map(|task| task.status == waits.task_status(task.id)))
    })
}

pub(super) fn atomic_cascade(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let mut announced: BTreeMap<TaskId, TaskStatus> = step
            .before
            .tasks
            .values()
            .map(|task| (task.id, task.status))
            .collect();
        for event in &step.record.content.events {
            match event {
                Event::TaskOpened { task, .. } => {
                    announced.insert(*task, TaskStatus::Idle);
                }
                Event::TaskStatusChanged { task, status } => {
                    announced.insert(*task, *status);
                }
                Event::TaskRenamed { from, to } => {
                    if let Some(status) = announced.remove(from) {
                        announced.insert(*to, status);
                    }
                }
                _ => {}
            }
        }
        let [before, after] = [step.before, step.after].map(Waits::of);
        let changed = step.after.tasks.values().filter(|task| {
            let is_known = step.before.tasks.contains_key(&task.id);
            !is_known || before.task_status(task.id) != after.task_status(task.id)
        });
        all(changed.map(|task| announced.get(&task.id) == Some(&after.task_status(task.id))))
    })
}

pub(super) fn exact_unpause(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        if decisions(step.record).next().is_none() {
            return Verdict::NotConcerned;
        }
        let was_paused = step
            .before
            .tasks
            .values()
            .filter(|task| task.status == TaskStatus::Paused);
        let still_open = was_paused.filter_map(|task| step.after.tasks.get(&task.id));
        let waits = Waits::of(step.after);
        all(still_open.map(|task| {
            let is_waiting = task.live.is_some_and(|live| waits.for_a_person(live));
            (task.status == TaskStatus::Paused) == is_waiting
        }))
    })
}

pub(super) fn stable_identity(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let state = step.after;
        let shown_everywhere = state.holds.values().map(|hold| {
            let mut at = Some(hold.request);
            while let Some(live) = at.and_then(|id| state.requests.get(&id)) {
                if !state.pending_holds(live.task).contains(&hold.id) {
                    return false;
                }
                at = live.parent;
            }
            true
        });
        let nothing_else = state
            .tasks
            .keys()
            .flat_map(|task| state.pending_holds(*task));
        all(shown_everywhere
            .collect::<Vec<_>>()
            .into_iter()
            .chain(nothing_else.map(|hold| state.holds.contains_key(&hold))))
    })
}

pub(super) fn tree(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let state = step.after;
        let tasks = state.tasks.values().map(|task| {
            let mut above = task.parent.map(|link| link.task);
            let mut steps = 0;
            while let Some(id) = above {
                steps += 1;
                if id == task.id || steps > usize::from(limits::DEPTH_MAX) {
                    return false;
                }
                let Some(parent) = state.tasks.get(&id) else {
                    return false;
                };
                above = parent.parent.map(|link| link.task);
            }
            true
        });
        let requests = state.requests.values().map(|live| {
            let Some(task) = state.tasks.get(&live.task) else {
                return false;
            };
            let asked_by = live.parent.and_then(|parent| state.requests.get(&parent));
            let hangs_right = task.parent.map(|link| link.task) == asked_by.map(|above| above.task);
            let is_deep = live.depth == asked_by.map_or(0, |above| above.depth + 1);
            let is_known = live.parent.is_some() == asked_by.is_some();
            let fits = live.children.len() <= limits::LIVE_CHILDREN_MAX;
            hangs_right && is_deep && is_known && fits && task.live == Some(live.id)
        });
        all(tasks.chain(requests).collect::<Vec<_>>())
    })
}

pub(super) fn terminal_is_final(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let mut ended = facts.ended.clone();
        let mut closed = facts.closed.clone();
        let mut cases = Vec::new();
        for event in &step.record.content.events {
            if let Some(request) = request_of(event) {
                cases.push(!ended.contains(&request));
            }
            if let Some(task) = task_of(event) {
                cases.push(!closed.contains(&task));
            }
            match event {
                Event::RequestEnded { request, .. } => {
                    ended.insert(*request);
                }
                Event::TaskClosed { task, .. } => {
                    closed.insert(*task);
                }
                _ => {}
            }
        }
        // The rule concerns events after an end, so it applies only once something has ended.
        if facts.ended.is_empty() && facts.closed.is_empty() && !cases.contains(&false) {
            return Verdict::NotConcerned;
        }
        all(cases)
    })
}

fn request_of(event: &Event) -> Option<RequestId> {
    match event {
        Event::RequestStarted { request, .. }
        | Event::RequestLeased { request, .. }
        | Event::LeaseLapsed { request }
        | Event::FenceRaised { request, .. }
        | Event::LeaseReleased { request }
        | Event::RequestStatusChanged { request, .. }
        | Event::RequestEnded { request, .. }
        | Event::ItemsAppended { request, .. }
        | Event::HoldOpened { request, .. }
        | Event::TaskStatePut { request, .. } => Some(*request),
        _ => None,
    }
}

fn task_of(event: &Event) -> Option<TaskId> {
    match event {
        Event::TaskOpened { task, .. }
        | Event::TaskStatusChanged { task, .. }
        | Event::TaskClosed { task, .. }
        | Event::RequestStarted { task, .. }
        | Event::ItemsAppended { task, .. }
        | Event::TaskStatePut { task, .. } => Some(*task),
        _ => None,
    }
}

pub(super) fn legal_transitions(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let mut statuses: BTreeMap<RequestId, LiveStatus> = step
            .before
            .requests
            .values()
            .map(|live| (live.id, live.status))
            .collect();
        let mut cases = Vec::new();
        for event in &step.record.content.events {
            let (request, to) = match event {
                Event::RequestStarted { request, .. } => {
                    statuses.insert(*request, LiveStatus::Queued);
                    continue;
                }
                Event::RequestEnded {
                    request, outcome, ..
                } => {
                    let from = statuses.remove(request);
                    cases.push(from.is_some_and(|from| may_end(from, *outcome)));
                    continue;
                }
                Event::RequestLeased { request, .. } => (request, LiveStatus::Running),
                Event::LeaseLapsed { request } => (request, LiveStatus::Queued),
                // A held or waiting request keeps its status without a lease.
                Event::LeaseReleased { request }
                    if statuses.get(request) == Some(&LiveStatus::Running) =>
                {
                    (request, LiveStatus::Queued)
                }
                Event::RequestStatusChanged { request, status } => (request, *status),
                _ => continue,
            };
            let from = statuses.insert(*request, to);
            cases.push(from.is_some_and(|from| REQUEST_TRANSITIONS.contains(&(from, to))));
        }
        all(cases)
    })
}

fn may_end(from: LiveStatus, outcome: RequestOutcome) -> bool {
    match outcome {
        RequestOutcome::Completed => {
            matches!(from, LiveStatus::Running | LiveStatus::Waiting)
        }
        // A hold that expires with `fail` ends a request that is held.
        RequestOutcome::Failed => {
            matches!(
                from,
                LiveStatus::Running | LiveStatus::Waiting | LiveStatus::Held
            )
        }
        RequestOutcome::Cancelled => true,
    }
}

pub(super) fn cancel_closes(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        if step.record.content.command == CommandName::Fork {
            return all([step.after.requests.is_empty() && step.after.holds.is_empty()]);
        }
        let closed: Vec<TaskId> = step
            .record
            .content
            .events
            .iter()
            .filter_map(|event| match event {
                Event::TaskClosed { task, .. } => Some(*task),
                _ => None,
            })
            .collect();
        let below = |task: TaskId| {
            closed
                .iter()
                .any(|top| step.before.is_in_subtree(task, *top))
        };
        let is_gone = |task: TaskId| !step.after.tasks.contains_key(&task);
        let tasks = step
            .before
            .tasks
            .keys()
            .filter(|task| below(**task))
            .map(|task| is_gone(*task));
        let requests = step.after.requests.values().map(|live| !is_gone(live.task));
        let holds = step
            .after
            .holds
            .values()
            .map(|hold| step.after.requests.contains_key(&hold.request));
        if closed.is_empty() && step.record.content.command != CommandName::CancelRequest {
            return Verdict::NotConcerned;
        }
        all(tasks.chain(requests).chain(holds).collect::<Vec<_>>())
    })
}

pub(super) fn expiry_is_a_decision(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let at = step.record.content.at;
        all(decisions(step.record).filter_map(|(hold, decision)| {
            let deadline = facts.holds.get(&hold)?.deadline;
            match decision.status {
                HoldStatus::Approved
                | HoldStatus::Edited
                | HoldStatus::Answered
                | HoldStatus::Rejected => deadline.map(|deadline| at < deadline),
                HoldStatus::Expired => Some(deadline.is_some_and(|deadline| at >= deadline)),
                HoldStatus::Cancelled => None,
                HoldStatus::Open => Some(false),
            }
        }))
    })
}

pub(super) fn acknowledged_means_durable(_: &Facts, seen: &Observation<'_>) -> Verdict {
    let Observation::Recovery(recovery) = seen else {
        return Verdict::NotConcerned;
    };
    if recovery.acknowledged == 0 {
        return Verdict::NotConcerned;
    }
    let last = recovery
        .survived
        .last()
        .map_or(0, |record| record.content.seq);
    all([last >= recovery.acknowledged])
}

pub(super) fn prefix_recovery(_: &Facts, seen: &Observation<'_>) -> Verdict {
    let Observation::Recovery(recovery) = seen else {
        return Verdict::NotConcerned;
    };
    let mut folded = recovery.origin.clone();
    for record in recovery.survived {
        apply(&mut folded, record);
    }
    all([folded == *recovery.recovered])
}

pub(super) fn replay_determinism(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let bytes = step.record.as_bytes();
        let mut folded = step.before.clone();
        let reread = Record::from_bytes(bytes);
        if let Ok(reread) = &reread {
            apply(&mut folded, reread);
        }
        let snapshot = SessionState::from_snapshot(&step.after.to_snapshot());
        all([
            reread.is_ok_and(|reread| reread == *step.record),
            folded == *step.after,
            snapshot.is_ok_and(|snapshot| snapshot == *step.after),
        ])
    })
}

pub(super) fn monotone_commit_time(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        all([step.record.content.at >= step.before.last_at])
    })
}

pub(super) fn dense_order(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let content = &step.record.content;
        let mut seq = step.before.items_appended;
        let items = items(step.record).map(|(_, _, item)| {
            seq += 1;
            item.seq == seq
        });
        let items: Vec<bool> = items.collect();
        all([
            content.seq == step.before.revision + 1,
            content.prev_hash == step.before.head,
            step.after.revision == content.seq,
            step.after.items_appended == seq,
        ]
        .into_iter()
        .chain(items))
    })
}

fn fence_of(command: &Command) -> Option<Fenced> {
    match command {
        Command::ReleaseLease { by }
        | Command::AppendItems { by, .. }
        | Command::OpenHold { by, .. }
        | Command::CompleteRequest { by, .. }
        | Command::FailRequest { by, .. } => Some(*by),
        Command::StartRequest(start) => start.parent,
        Command::PutState { by, .. } => *by,
        Command::CreateSession { .. }
        | Command::PatchSession { .. }
        | Command::RecordTurn(_)
        | Command::CloseSession { .. }
        | Command::ExpireSession
        | Command::EraseHidden
        | Command::DeleteSession
        | Command::ClaimRequest { .. }
        | Command::LapseLease { .. }
        | Command::RaiseFence { .. }
        | Command::DecideHold { .. }
        | Command::ExpireHold { .. }
        | Command::CancelRequest { .. }
        | Command::CloseTask { .. }
        | Command::CancelTask { .. }
        | Command::Fork { .. }
        | Command::Rewind { .. } => None,
    }
}

pub(super) fn fencing(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_command(seen, |step| {
        let (Some(by), Ok(Outcome::Commit(_))) = (fence_of(step.command), step.result) else {
            return Verdict::NotConcerned;
        };
        let live = step.before.requests.get(&by.request);
        all([live.is_some_and(|live| {
            live.fence == by.fence
                && live.status != LiveStatus::Queued
                && live
                    .lease
                    .is_some_and(|lease| lease.worker == step.ctx.actor.principal)
        })])
    })
}

pub(super) fn quorum(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let approved = decisions(step.record)
            .filter(|(_, decision)| {
                matches!(decision.status, HoldStatus::Approved | HoldStatus::Edited)
            })
            .filter_map(|(hold, decision)| facts.holds.get(&hold).map(|known| (known, decision)));
        all(approved.map(|(known, decision)| {
            let owner = facts.owner.map(Principal::User);
            let counts = |by: &Principal| {
                let is_owner = Some(*by) == owner;
                let asked = *by == known.opened_by || facts.is_starter(*by, known.request);
                match known.decide_by {
                    _ if *by == Principal::Local => true,
                    DecideBy::User => is_owner || !asked,
                    DecideBy::Other | DecideBy::Role(_) => !is_owner && !asked,
                }
            };
            let mut people: BTreeSet<Principal> = known.approvals.keys().copied().collect();
            people.insert(decision.by);
            people.iter().all(counts) && people.len() >= usize::from(known.need)
        }))
    })
}

pub(super) fn inbox_completeness(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let state = step.after;
        let roots = state.tasks.values().filter(|task| task.parent.is_none());
        let mut reached: Vec<HoldId> = roots
            .flat_map(|task| state.pending_holds(task.id))
            .collect();
        reached.sort_unstable();
        if state.holds.is_empty() && reached.is_empty() {
            return Verdict::NotConcerned;
        }
        all([reached.iter().eq(state.holds.keys())])
    })
}

pub(super) fn hidden_stays_hidden(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let mut children = facts.children.clone();
        for event in &step.record.content.events {
            if let Event::RequestStarted {
                request,
                parent: Some(parent),
                ..
            } = event
            {
                children.insert(*request, *parent);
            }
        }
        all(items(step.record).map(|(request, task, item)| {
            let is_root = !children.contains_key(&request);
            let is_tool = matches!(item.kind, ItemKind::ToolCall | ItemKind::ToolResult);
            let is_hidden = item.visibility == Visibility::Hidden;
            let placed = PlacedItem {
                task,
                request,
                is_root,
                rewound: false,
                item: item.clone(),
            };
            let is_shown = View::Client.shows(&placed);
            is_shown != is_hidden && (is_hidden || (is_root && !is_tool))
        }))
    })
}

pub(super) fn hidden_is_append_only(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_command(seen, |step| {
        let Ok(Outcome::Commit(record)) = step.result else {
            return Verdict::NotConcerned;
        };
        let is_leased = match step.command {
            Command::StartRequest(start) => start.lease_ttl_ms.is_some(),
            Command::RecordTurn(_) => true,
            other => fence_of(other).is_some(),
        };
        let appended: Vec<_> = items(record).collect();
        if appended.is_empty() {
            return Verdict::NotConcerned;
        }
        let is_a_question = matches!(
            appended.as_slice(),
            [(
                _,
                _,
                Item {
                    kind: ItemKind::Message,
                    role: Some(Role::User),
                    ..
                }
            )]
        );
        all([is_leased || is_a_question])
    })
}

pub(super) fn tenant_isolation(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_command(seen, |step| match &step.before.owner {
        Some(owner) if owner.tenant != step.ctx.actor.tenant => {
            all([*step.result == Err(Rejection::NotFound)])
        }
        Some(_) | None => Verdict::NotConcerned,
    })
}

pub(super) fn scope_lifetime(_: &Facts, seen: &Observation<'_>) -> Verdict {
    match seen {
        Observation::Record(step) => {
            all(step
                .record
                .content
                .events
                .iter()
                .filter_map(|event| match event {
                    Event::StatePut { key, .. }
                    | Event::StateDeleted { key, .. }
                    | Event::StateRestored { key, .. } => Some(key.scope() == Scope::Session),
                    Event::SharedStatePut { key, .. } => {
                        Some(matches!(key.scope(), Scope::App | Scope::User))
                    }
                    _ => None,
                }))
        }
        Observation::Command(step) => {
            let Command::PutState { patch, .. } = step.command else {
                return Verdict::NotConcerned;
            };
            let session_keys = patch
                .if_versions
                .iter()
                .filter(|(key, _)| key.scope() == Scope::Session);
            let mut expected =
                session_keys.map(|(key, expected)| step.before.version_of(key) == *expected);
            if expected.any(|is_met| !is_met) {
                all([!matches!(step.result, Ok(Outcome::Commit(_)))])
            } else {
                Verdict::NotConcerned
            }
        }
        Observation::Recovery(_) => Verdict::NotConcerned,
    }
}

pub(super) fn hidden_waits_for_requests(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let content = &step.record.content;
        if content.command != CommandName::EraseHidden {
            return Verdict::NotConcerned;
        }
        let erases_hidden = Event::PayloadsErased {
            payloads: ErasedPayloads::Hidden,
        };
        let (before, after) = (step.before, step.after);
        all([
            content.events == [erases_hidden],
            before.requests.is_empty(),
            before.is_hidden_due(content.at),
            after.hidden_expires_at.is_none(),
            before.closed || before.expires_at == after.expires_at,
        ])
    })
}

pub(super) fn refusal_is_clean(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_command(seen, |step| match step.result {
        Err(_) | Ok(Outcome::AlreadyDone { .. }) => all([step.before == step.after]),
        Ok(Outcome::Commit(_) | Outcome::CommitThenRefuse(..)) => Verdict::NotConcerned,
    })
}

pub(super) fn progress(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let (state, waits) = (step.after, Waits::of(step.after));
        all(state.requests.values().map(|live| {
            let (holds, children) = (waits.holds(live.id), waits.children(live.id));
            let has_reason = match live.status {
                LiveStatus::Held => !holds.is_empty(),
                LiveStatus::Waiting => holds.is_empty() && !children.is_empty(),
                LiveStatus::Queued | LiveStatus::Running => holds.is_empty() && children.is_empty(),
            };
            has_reason && holds == live.holds && children == live.children
        }))
    })
}

pub(super) fn one_memory(facts: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let (known, state) = (facts.knowledge.after(step.record), step.after);
        let paths = state.tasks.values().map(|task| {
            let path = known.paths.get(&task.id);
            path.is_some_and(|path| path.as_str() == task.path.as_str())
        });
        let live = state.requests.values().map(|live| {
            let started = known.live.get(&live.id);
            started.is_some_and(|started| started.knows == live.memory)
        });
        let is_bounded = state.memories.len() <= limits::AGENT_PATHS_MAX;
        let same = *state.memories == known.memories && is_bounded;
        let concerned = !state.tasks.is_empty() || !known.memories.is_empty();
        all(paths.chain(live).chain(concerned.then_some(same)))
    })
}

pub(super) fn fences_grow(_: &Facts, seen: &Observation<'_>) -> Verdict {
    on_record(seen, |step| {
        let before = step.before.requests.values();
        let mut fences: BTreeMap<RequestId, u64> =
            before.map(|live| (live.id, live.fence)).collect();
        let mut cases = Vec::new();
        for event in &step.record.content.events {
            let (request, fence, growth) = match event {
                Event::RequestStarted { request, .. } => {
                    fences.insert(*request, 0);
                    continue;
                }
                Event::RequestLeased { request, fence, .. } => (*request, *fence, 1),
                Event::FenceRaised { request, fence } => (*request, *fence, FENCE_RAISE),
                _ => continue,
            };
            let was = fences.insert(request, fence);
            cases.push(was.and_then(|was| was.checked_add(growth)) == Some(fence));
        }
        let after = step.after.requests.values();
        cases.extend(after.map(|live| fences.get(&live.id) == Some(&live.fence)));
        all(cases)
    })
}
