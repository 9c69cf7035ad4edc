//! Holds in the world of the reference: opening, deciding, expiring.

use std::collections::BTreeSet;

use statehold_core::command::{Context, Fenced, Rejection};
use statehold_core::hold::{
    DecideBy, Decision, DecisionKind, HoldKind, HoldStatus, NewDecision, NewHold, OnExpiry, Right,
    Vote, WhyNot,
};
use statehold_core::ids::HoldId;
use statehold_core::item::NewItem;
use statehold_core::limits;
use statehold_core::principal::{Actor, Principal};
use statehold_core::request::RequestOutcome;

use super::commands::Performed;
use super::{Answer, KnownHold, KnownMark, World};

impl World {
    pub(super) fn next_hold_number(&self, request: usize) -> u32 {
        let opened = self
            .holds
            .iter()
            .filter(|hold| hold.request == request)
            .count();
        u32::try_from(opened).expect("there are not that many holds") + 1
    }

    pub(super) fn open_hold(
        &mut self,
        by: Fenced,
        new: &NewHold,
        items: &[NewItem],
        ctx: &Context,
    ) -> Result<(), Rejection> {
        let request = self.fenced(by, ctx)?;
        let is_asked_for_credential = self.holds.iter().any(|hold| {
            hold.request == request && hold.kind == HoldKind::Credential && hold.decided.is_none()
        });
        if new.kind == HoldKind::Credential && is_asked_for_credential {
            return Err(Rejection::HoldMalformed("one credential at a time"));
        }
        if self.hold_named(new.id).is_some() {
            return Err(Rejection::HoldExists { hold: new.id });
        }
        if !(1..=limits::QUORUM_MAX).contains(&new.need) {
            return Err(Rejection::Limit {
                limit: "quorum",
                max: limits::QUORUM_MAX.into(),
            });
        }
        if new.need > 1 && new.kind != HoldKind::Approval {
            return Err(Rejection::HoldMalformed(
                "several people approve actions only",
            ));
        }
        let mut allowed = decisions_of(new.kind);
        if new.need > 1 {
            allowed.remove(&DecisionKind::Edit);
        }
        if !new.allowed.is_subset(&allowed) {
            return Err(Rejection::HoldMalformed(
                "a decision that the kind does not have",
            ));
        }
        if !new.allowed.is_empty() {
            allowed.clone_from(&new.allowed);
        }
        let first = self.items.len();
        self.write_items(request, items)?;
        let call = self.call_asked_about(request, new, first)?;
        self.holds.push(KnownHold {
            id: Some(new.id),
            request,
            number: self.next_hold_number(request),
            opened_at: self.revision,
            kind: new.kind,
            body: Some(new.body),
            call,
            digest: new.digest,
            allowed,
            need: new.need,
            decide_by: new.decide_by.clone().unwrap_or(match new.kind {
                HoldKind::Approval | HoldKind::Reconcile => DecideBy::Other,
                HoldKind::Question | HoldKind::Form | HoldKind::Link | HoldKind::Credential => {
                    DecideBy::User
                }
            }),
            effect: new.effect,
            risk: new.risk,
            policy: new.policy,
            opened_by: ctx.actor.principal,
            deadline: new.expires_in_ms.map(|ms| self.last_at.plus_ms(ms)),
            on_expiry: new.on_expiry,
            votes: Vec::new(),
            decided: None,
            handed_over: false,
        });
        Ok(())
    }

    fn call_asked_about(
        &self,
        request: usize,
        new: &NewHold,
        first: usize,
    ) -> Result<Option<usize>, Rejection> {
        match (new.kind, new.call, new.digest) {
            (HoldKind::Approval, Some(target), Some(_)) => {
                let call = self.call_meant(request, target, first)?;
                let was_asked = self.holds.iter().any(|hold| hold.call == Some(call));
                let is_gated = matches!(
                    self.items[call].mark,
                    Some(KnownMark::Call { gated: true, .. })
                );
                if was_asked || !is_gated {
                    return Err(Rejection::HoldMalformed(
                        "the call does not wait for an approval",
                    ));
                }
                Ok(Some(call))
            }
            (HoldKind::Approval | HoldKind::Reconcile, _, _)
            | (_, Some(_), _)
            | (_, _, Some(_)) => Err(Rejection::HoldMalformed(
                "call and digest do not fit the kind",
            )),
            (_, None, None) => Ok(None),
        }
    }

    /// Rule 4, in this order: the same again; decided before; who asks; too late; is it sound.
    pub(super) fn decide(&mut self, id: HoldId, new: &NewDecision, ctx: &Context) -> Performed {
        let hold = self.hold_named(id).ok_or(Rejection::NotFound)?;
        let me = ctx.actor.principal;
        let known = &self.holds[hold];
        let mine = known
            .votes
            .iter()
            .find(|(voter, _)| *voter == me)
            .map(|(_, vote)| *vote);
        if let Some(vote) = mine
            && (vote.key, vote.fingerprint) == (new.key, new.fingerprint)
        {
            return Ok(Answer::Again {
                revision: vote.revision,
            });
        }
        if let Some((decision, revision)) = known.decided {
            let same = (Some(new.key), Some(new.fingerprint), me);
            return if (decision.key, decision.fingerprint, decision.by) == same {
                Ok(Answer::Again { revision })
            } else if decision.status == HoldStatus::Expired {
                Err(Rejection::HoldExpired { hold: id })
            } else {
                Err(Rejection::HoldDecided {
                    hold: id,
                    decision: Box::new(decision),
                })
            };
        }
        if self.is_over(ctx) {
            return Err(Rejection::SessionExpired);
        }
        let right = self
            .right_to_decide(hold, &ctx.actor)
            .map_err(|why| Rejection::MayNotDecide { why })?;
        if self.is_due(hold) {
            self.let_expire(hold);
            return Ok(Answer::Late(Rejection::HoldExpired { hold: id }));
        }
        if mine.is_some() && new.kind == DecisionKind::Approve {
            return Err(Rejection::AlreadyVoted);
        }
        self.check_sound(hold, new)?;
        if new.kind == DecisionKind::Approve && self.holds[hold].need > 1 {
            let (key, fingerprint, revision) = (new.key, new.fingerprint, self.revision);
            self.holds[hold].votes.push((
                me,
                Vote {
                    key,
                    fingerprint,
                    revision,
                    right,
                },
            ));
            if self.holds[hold].votes.len() < usize::from(self.holds[hold].need) {
                return Ok(Answer::Done);
            }
        }
        let (status, released) = match new.kind {
            DecisionKind::Approve => (HoldStatus::Approved, self.holds[hold].digest),
            DecisionKind::Edit => (HoldStatus::Edited, new.edited),
            DecisionKind::Reject => (HoldStatus::Rejected, None),
            DecisionKind::Respond => (HoldStatus::Answered, None),
            DecisionKind::Dismiss => (HoldStatus::Cancelled, None),
        };
        let request = self.holds[hold].request;
        let decision = Decision {
            status,
            by: me,
            key: Some(new.key),
            fingerprint: Some(new.fingerprint),
            released,
            right: Some(right),
            shown: new.digest,
            body: new.body,
        };
        self.settle_hold(hold, decision);
        self.holds[hold].handed_over = self.has_live_lease(request, ctx);
        if new.kind == DecisionKind::Dismiss {
            self.end_with_children(request, RequestOutcome::Cancelled);
        }
        Ok(Answer::Done)
    }

    fn check_sound(&self, hold: usize, new: &NewDecision) -> Result<(), Rejection> {
        let known = &self.holds[hold];
        if !known.allowed.contains(&new.kind) {
            let (decision, allowed) = (new.kind, known.allowed.clone());
            return Err(Rejection::DecisionNotOffered { decision, allowed });
        }
        if let Some(expected) = known.digest {
            let must_show = matches!(new.kind, DecisionKind::Approve | DecisionKind::Edit);
            if must_show && new.digest.is_none() {
                return Err(Rejection::DigestMissing);
            }
            if new.digest.is_some_and(|shown| shown != expected) {
                return Err(Rejection::DigestMismatch { expected });
            }
        }
        let must_say = matches!(new.kind, DecisionKind::Edit | DecisionKind::Respond);
        if must_say && new.body.is_none() {
            return Err(Rejection::AnswerMissing);
        }
        if (new.kind == DecisionKind::Edit) != new.edited.is_some() {
            return Err(Rejection::EditImpossible);
        }
        Ok(())
    }

    /// The people who started a request, or one above it.
    pub(super) fn starters(&self, request: usize) -> BTreeSet<Principal> {
        let known = &self.requests[request];
        let above = known.parent.map(|parent| self.starters(parent));
        let people = known.started_for.into_iter().flatten();
        let people = people.filter(|by| !matches!(by, Principal::System | Principal::Local));
        people.chain(above.into_iter().flatten()).collect()
    }

    fn right_to_decide(&self, hold: usize, actor: &Actor) -> Result<Right, WhyNot> {
        let known = &self.holds[hold];
        let asks_for = match &known.decide_by {
            DecideBy::Other | DecideBy::User => "approver",
            DecideBy::Role(role) => role.as_str(),
        };
        let has_role = actor.roles.iter().any(|held| held.as_str() == asks_for);
        let is_owner = self
            .owner
            .as_ref()
            .is_some_and(|owner| actor.principal == Principal::User(owner.user));
        match actor.principal {
            Principal::Local => Ok(Right::Local),
            Principal::System => Err(WhyNot::Server),
            _ if is_owner && known.decide_by == DecideBy::User => Ok(Right::User),
            _ if is_owner => Err(WhyNot::OwnSession),
            me if me == known.opened_by => Err(WhyNot::OwnHold),
            me if self.starters(known.request).contains(&me) => Err(WhyNot::OwnRequest),
            _ if has_role => Ok(Right::Role),
            _ => Err(WhyNot::NeedsRole(
                asks_for.parse().expect("a role is a name"),
            )),
        }
    }

    fn is_due(&self, hold: usize) -> bool {
        self.holds[hold]
            .deadline
            .is_some_and(|deadline| deadline <= self.last_at)
    }

    pub(super) fn expire_hold(&mut self, id: HoldId) -> Result<(), Rejection> {
        let hold = self.hold_named(id).ok_or(Rejection::NotFound)?;
        if let Some((decision, _)) = self.holds[hold].decided {
            return Err(Rejection::HoldDecided {
                hold: id,
                decision: Box::new(decision),
            });
        }
        if !self.is_due(hold) {
            return Err(Rejection::NotExpired { hold: id });
        }
        self.let_expire(hold);
        Ok(())
    }

    fn let_expire(&mut self, hold: usize) {
        self.settle_hold(hold, decided_by_nobody(HoldStatus::Expired));
        let request = self.holds[hold].request;
        match self.holds[hold].on_expiry {
            OnExpiry::Reject => {}
            OnExpiry::Dismiss => self.end_with_children(request, RequestOutcome::Cancelled),
            OnExpiry::Fail => self.end_with_children(request, RequestOutcome::Failed),
        }
    }

    pub(super) fn settle_hold(&mut self, hold: usize, decision: Decision) {
        self.holds[hold].decided = Some((decision, self.revision));
    }
}

pub(super) fn decided_by_nobody(status: HoldStatus) -> Decision {
    let by = Principal::System;
    Decision {
        status,
        by,
        key: None,
        fingerprint: None,
        released: None,
        right: None,
        shown: None,
        body: None,
    }
}

pub(super) fn decisions_of(kind: HoldKind) -> BTreeSet<DecisionKind> {
    use DecisionKind::{Approve, Dismiss, Edit, Reject, Respond};
    match kind {
        HoldKind::Approval => BTreeSet::from([Approve, Edit, Reject, Respond, Dismiss]),
        HoldKind::Question | HoldKind::Form => BTreeSet::from([Respond, Reject, Dismiss]),
        HoldKind::Link | HoldKind::Credential | HoldKind::Reconcile => {
            BTreeSet::from([Approve, Respond, Reject, Dismiss])
        }
    }
}
