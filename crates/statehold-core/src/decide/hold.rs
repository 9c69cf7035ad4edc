//! Opening, deciding and expiring holds.

use super::draft::{Draft, require_limit};
use super::history::Batch;
use crate::command::{Fenced, Outcome, Rejection};
use crate::hold::{
    Decision, DecisionKind, Hold, HoldKind, HoldStatus, NewDecision, NewHold, OnExpiry, Right,
};
use crate::ids::{HoldId, ItemId, RequestId};
use crate::item::NewItem;
use crate::limits;
use crate::mutant::{self, Mutant};
use crate::record::Event;
use crate::request::{CallState, RequestOutcome};
use crate::task::TaskStatus;

pub(super) fn open(
    draft: &mut Draft<'_>,
    by: Fenced,
    hold: &NewHold,
    items: &[NewItem],
) -> Result<(), Rejection> {
    let live = draft.require_fence(by)?;
    let (request, number) = (live.id, live.holds_opened + 1);
    require_limit(
        "open holds of one request",
        live.holds.len() + 1,
        limits::REQUEST_HOLDS_MAX,
    )?;
    require_limit(
        "open holds",
        draft.state.holds.len() + 1,
        limits::OPEN_HOLDS_MAX,
    )?;
    require_limit(
        "holds of one request",
        usize::try_from(number).unwrap_or(usize::MAX),
        limits::REQUEST_HOLDS_OPENED_MAX,
    )?;
    // The answer goes to the request and not to a hold, so there is one at a time.
    let asks_already = || {
        let mut open = draft.state.holds.values();
        open.any(|open| open.request == request && open.kind == HoldKind::Credential)
    };
    if hold.kind == HoldKind::Credential && asks_already() {
        return Err(Rejection::HoldMalformed(
            "one credential is asked for at a time; wait for its answer",
        ));
    }
    let was_decided = draft
        .ctx
        .loaded
        .hold
        .as_ref()
        .is_some_and(|decided| decided.hold.id == hold.id);
    if draft.state.holds.contains_key(&hold.id) || was_decided {
        return Err(Rejection::HoldExists { hold: hold.id });
    }
    if hold
        .expires_in_ms
        .is_some_and(|ms| ms > limits::HOLD_MS_MAX)
    {
        let max = limits::HOLD_MS_MAX;
        return Err(Rejection::Limit {
            limit: "milliseconds until a hold expires",
            max,
        });
    }
    let allowed = offered_decisions(hold)?;
    let mut batch = Batch::new(draft, request)?;
    batch.push_all(draft, items)?;
    let call = gated_call(&batch, draft, hold)?;
    batch.write(draft);
    draft.emit(Event::HoldOpened {
        hold: hold.id,
        number,
        request,
        kind: hold.kind,
        opened_by: draft.ctx.actor.principal,
        body: Some(hold.body),
        call,
        digest: hold.digest,
        allowed,
        need: hold.need,
        decide_by: hold
            .decide_by
            .clone()
            .unwrap_or_else(|| hold.kind.default_decide_by()),
        deadline: hold.expires_in_ms.map(|ms| draft.at.plus_ms(ms)),
        on_expiry: hold.on_expiry,
        effect: hold.effect,
        risk: hold.risk,
        policy: hold.policy,
    });
    draft.unsettle(request);
    Ok(())
}

fn offered_decisions(hold: &NewHold) -> Result<Vec<DecisionKind>, Rejection> {
    if hold.need == 0 || hold.need > limits::QUORUM_MAX {
        return Err(Rejection::Limit {
            limit: "quorum",
            max: limits::QUORUM_MAX.into(),
        });
    }
    if hold.need > 1 && hold.kind != HoldKind::Approval {
        return Err(Rejection::HoldMalformed(
            "only approvals can need several people",
        ));
    }
    let mut possible = hold.kind.decisions();
    if hold.need > 1 {
        // Votes cover the action that people saw. An edit would change the meaning of earlier
        // votes.
        possible.remove(&DecisionKind::Edit);
    }
    if hold.allowed.is_empty() {
        return Ok(possible.into_iter().collect());
    }
    if hold.allowed.is_subset(&possible) {
        Ok(hold.allowed.iter().copied().collect())
    } else {
        Err(Rejection::HoldMalformed(
            "`allowed` offers a decision that this kind does not have",
        ))
    }
}

/// An approval is about one recorded call that has not run, and carries the digest people approve.
fn gated_call(
    batch: &Batch,
    draft: &Draft<'_>,
    hold: &NewHold,
) -> Result<Option<ItemId>, Rejection> {
    match (hold.kind, hold.call, hold.digest) {
        (HoldKind::Approval, Some(target), Some(_)) => {
            let call = batch.resolve(target, 0)?;
            let waits = batch
                .call(call)
                .is_some_and(|open| open.state == CallState::Proposed);
            let is_asked = draft
                .state
                .holds
                .values()
                .any(|hold| hold.call == Some(call));
            if waits && !is_asked {
                Ok(Some(call))
            } else {
                Err(Rejection::HoldMalformed(
                    "the tool call must be gated and not asked about yet",
                ))
            }
        }
        (HoldKind::Approval, _, _) => Err(Rejection::HoldMalformed(
            "an approval names the gated tool call and the digest of its action",
        )),
        (HoldKind::Reconcile, _, _) => Err(Rejection::HoldMalformed(
            "the server opens `reconcile` holds itself",
        )),
        (_, None, None) => Ok(None),
        (_, _, _) => Err(Rejection::HoldMalformed(
            "only approvals are about an action",
        )),
    }
}

/// Asks a person whether a lost worker's action ran.
pub(super) fn open_reconcile(
    draft: &mut Draft<'_>,
    request: RequestId,
    call: ItemId,
) -> Result<(), Rejection> {
    let hold = HoldId::from_uuid(draft.fresh_uuid());
    let kind = HoldKind::Reconcile;
    let live = draft.live(request)?;
    let number = live.holds_opened + 1;
    let open = live.calls.get(&call);
    let digest = open.and_then(|open| open.digest);
    // Reuse the terms of the approval: only a person who could have approved the call may let it
    // run again.
    let policy_terms = || draft.ctx.loaded.policy_terms.get(&call).cloned();
    let asked = open
        .and_then(|open| open.asked.clone())
        .or_else(policy_terms);
    let opened_by = live.last_worker.unwrap_or(draft.ctx.actor.principal);
    draft.emit(Event::HoldOpened {
        hold,
        number,
        request,
        kind,
        opened_by,
        body: None,
        call: Some(call),
        digest,
        allowed: kind.decisions().into_iter().collect(),
        need: 1,
        effect: asked.as_ref().and_then(|asked| asked.effect),
        risk: asked.as_ref().and_then(|asked| asked.risk),
        policy: asked.as_ref().and_then(|asked| asked.policy),
        decide_by: asked.map_or_else(|| kind.default_decide_by(), |asked| asked.decide_by),
        deadline: None,
        on_expiry: OnExpiry::Reject,
    });
    draft.unsettle(request);
    Ok(())
}

/// A retry gets the same answer; another decision is refused with the decision that stands.
pub(super) fn already_decided(
    draft: &Draft<'_>,
    id: HoldId,
    new: &NewDecision,
) -> Result<Option<Outcome>, Rejection> {
    let open = draft.state.holds.get(&id);
    let decided = draft
        .ctx
        .loaded
        .hold
        .as_ref()
        .filter(|decided| decided.hold.id == id);
    let Some(hold) = open.or(decided.map(|decided| &decided.hold)) else {
        return Err(Rejection::NotFound);
    };
    let vote = hold.votes.get(&draft.ctx.actor.principal);
    if let Some(vote) =
        vote.filter(|vote| (vote.key, vote.fingerprint) == (new.key, new.fingerprint))
    {
        return Ok(Some(Outcome::AlreadyDone {
            revision: vote.revision,
        }));
    }
    let (None, Some(decided)) = (open, decided) else {
        return Ok(None);
    };
    let is_same = decided.decision.key == Some(new.key)
        && decided.decision.fingerprint == Some(new.fingerprint)
        && decided.decision.by == draft.ctx.actor.principal;
    if is_same || mutant::is_on(Mutant::ReplayAnything) {
        return Ok(Some(Outcome::AlreadyDone {
            revision: decided.revision,
        }));
    }
    if mutant::is_on(Mutant::DecideTwice)
        || mutant::is_on(Mutant::ReopenExpired) && !decided.hold.is_due(draft.ctx.now)
    {
        return Ok(None);
    }
    if decided.decision.status == HoldStatus::Expired {
        return Err(Rejection::HoldExpired { hold: id });
    }
    Err(Rejection::HoldDecided {
        hold: id,
        decision: Box::new(decided.decision),
    })
}

/// Takes a decision. The inner error is a deadline that had passed: it is committed, then answered.
pub(super) fn decide(
    draft: &mut Draft<'_>,
    id: HoldId,
    new: &NewDecision,
) -> Result<Result<(), Rejection>, Rejection> {
    let open = draft.state.holds.get(&id);
    let Some(hold) = open
        .or(draft.ctx.loaded.hold.as_ref().map(|decided| &decided.hold))
        .cloned()
    else {
        return Err(Rejection::NotFound);
    };
    let Some(owner) = draft.state.owner.as_ref().map(|owner| owner.user) else {
        return Err(Rejection::NotFound);
    };
    let actor = &draft.ctx.actor;
    // In an expired session a decided hold still answers a retry; an open hold cannot be decided.
    if open.is_some() && draft.state.is_expired(draft.at) {
        return Err(Rejection::SessionExpired);
    }
    let right = actor
        .right_to_decide(&hold, owner)
        .map_err(|why| Rejection::MayNotDecide { why })?;
    if hold.is_due(draft.at)
        && !mutant::is_on(Mutant::ApproveLate)
        && !mutant::is_on(Mutant::ReopenExpired)
    {
        settle_expired(draft, &hold);
        return Ok(Err(Rejection::HoldExpired { hold: id }));
    }
    if hold.votes.contains_key(&actor.principal)
        && new.kind == DecisionKind::Approve
        && !mutant::is_on(Mutant::CountVotesTwice)
    {
        return Err(Rejection::AlreadyVoted);
    }
    require_sound(&hold, new)?;
    let mut votes: usize = hold.votes.len();
    if new.kind == DecisionKind::Approve {
        votes += 1;
        if mutant::is_on(Mutant::CountVotesTwice) && hold.votes.contains_key(&actor.principal) {
            votes = usize::from(hold.need);
        }
        if hold.need > 1 {
            let (key, fingerprint) = (new.key, new.fingerprint);
            draft.emit(Event::VoteRecorded {
                hold: id,
                key,
                fingerprint,
                right,
            });
        }
        if votes < usize::from(hold.need) {
            return Ok(Ok(()));
        }
    }
    commit_decision(draft, &hold, new, right);
    Ok(Ok(()))
}

fn require_sound(hold: &Hold, new: &NewDecision) -> Result<(), Rejection> {
    if !hold.allowed.contains(&new.kind) {
        let allowed = hold.allowed.clone();
        return Err(Rejection::DecisionNotOffered {
            decision: new.kind,
            allowed,
        });
    }
    let needs_digest = matches!(new.kind, DecisionKind::Approve | DecisionKind::Edit);
    match (hold.digest, new.digest) {
        (Some(expected), Some(shown)) if shown != expected => {
            return Err(Rejection::DigestMismatch { expected });
        }
        (Some(_), None) if needs_digest => return Err(Rejection::DigestMissing),
        _ => {}
    }
    let needs_body = matches!(new.kind, DecisionKind::Edit | DecisionKind::Respond);
    if needs_body && new.body.is_none() {
        return Err(Rejection::AnswerMissing);
    }
    let is_edit = new.kind == DecisionKind::Edit;
    if is_edit == new.edited.is_some() {
        Ok(())
    } else {
        Err(Rejection::EditImpossible)
    }
}

fn commit_decision(draft: &mut Draft<'_>, hold: &Hold, new: &NewDecision, right: Right) {
    let (status, released) = match new.kind {
        DecisionKind::Approve => (HoldStatus::Approved, hold.digest),
        DecisionKind::Edit => (HoldStatus::Edited, new.edited),
        DecisionKind::Reject => (HoldStatus::Rejected, None),
        DecisionKind::Respond => (HoldStatus::Answered, None),
        DecisionKind::Dismiss => (HoldStatus::Cancelled, None),
    };
    let released = match new.kind {
        DecisionKind::Reject if mutant::is_on(Mutant::ReleaseRejected) => hold.digest,
        _ => released,
    };
    let decision = Decision {
        status,
        by: draft.ctx.actor.principal,
        key: Some(new.key),
        fingerprint: Some(new.fingerprint),
        released,
        right: Some(right),
        shown: new.digest,
        body: new.body,
    };
    let request = hold.request;
    let to_worker = draft
        .state
        .requests
        .get(&request)
        .is_some_and(|live| draft.has_live_lease(live));
    if mutant::is_on(Mutant::UnpauseAll) {
        unpause_all(draft, request);
    }
    let event = Event::HoldDecided {
        hold: hold.id,
        request,
        decision,
        to_worker,
    };
    if mutant::is_on(Mutant::DoubleRelease) && new.kind == DecisionKind::Approve {
        draft.emit(event.clone());
    }
    draft.emit(event);
    if mutant::is_on(Mutant::UnpauseAll) {
        return;
    }
    draft.unsettle(request);
    if new.kind == DecisionKind::Dismiss {
        draft.cancel_request_tree(request);
    }
}

fn unpause_all(draft: &mut Draft<'_>, request: RequestId) {
    let mut at = Some(request);
    while let Some(live) = at.and_then(|id| draft.state.requests.get(&id)) {
        let (task, parent) = (live.task, live.parent);
        draft.emit(Event::TaskStatusChanged {
            task,
            status: TaskStatus::Running,
        });
        at = parent;
    }
}

pub(super) fn expire(draft: &mut Draft<'_>, id: HoldId) -> Result<(), Rejection> {
    let Some(hold) = draft.state.holds.get(&id).cloned() else {
        return Err(match &draft.ctx.loaded.hold {
            Some(decided) if decided.hold.id == id => Rejection::HoldDecided {
                hold: id,
                decision: Box::new(decided.decision),
            },
            _ => Rejection::NotFound,
        });
    };
    if !hold.is_due(draft.at) {
        return Err(Rejection::NotExpired { hold: id });
    }
    settle_expired(draft, &hold);
    Ok(())
}

/// The deadline is the decision. Nothing is ever approved by waiting.
fn settle_expired(draft: &mut Draft<'_>, hold: &Hold) {
    draft.close_hold(hold.id, hold.request, HoldStatus::Expired);
    match hold.on_expiry {
        OnExpiry::Reject => {}
        OnExpiry::Dismiss => draft.cancel_request_tree(hold.request),
        OnExpiry::Fail => {
            draft.cancel_children(hold.request);
            draft.end_request(hold.request, RequestOutcome::Failed, None);
        }
    }
}
