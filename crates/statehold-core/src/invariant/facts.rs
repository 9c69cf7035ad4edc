//! Facts gathered from the records alone, without the folded state.

use std::collections::{BTreeMap, BTreeSet};

use super::Knowledge;
use crate::digest::Digest;
use crate::hold::{DecideBy, Decision, HoldStatus};
use crate::ids::{HoldId, ItemId, RequestId, TaskId, UserId};
use crate::item::CallMark;
use crate::principal::Principal;
use crate::record::{Event, Record};
use crate::time::Timestamp;

/// Facts about a session, from its records only.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct Facts {
    /// Whose session it is.
    pub owner: Option<UserId>,
    /// Every hold there ever was.
    pub holds: BTreeMap<HoldId, HoldFacts>,
    /// Requests that have ended.
    pub ended: BTreeSet<RequestId>,
    /// Tasks that are final.
    pub closed: BTreeSet<TaskId>,
    /// Tool calls: whether they need an approval, and the digest that was released.
    pub calls: BTreeMap<ItemId, (bool, Option<Digest>)>,
    /// Requests that other requests wait for, each with that request.
    pub children: BTreeMap<RequestId, RequestId>,
    /// The people who started each request.
    pub starters: BTreeMap<RequestId, BTreeSet<Principal>>,
    /// The memories of the agents.
    pub knowledge: Knowledge,
}

/// Facts about one hold.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HoldFacts {
    /// The request that waits.
    pub request: RequestId,
    /// The tool call that waits.
    pub call: Option<ItemId>,
    /// The digest people approve.
    pub digest: Option<Digest>,
    /// Who opened it.
    pub opened_by: Principal,
    /// Who may decide.
    pub decide_by: DecideBy,
    /// How many must approve.
    pub need: u16,
    /// When it expires.
    pub deadline: Option<Timestamp>,
    /// Everyone who approved, with key and fingerprint.
    pub approvals: BTreeMap<Principal, (Digest, Digest)>,
    /// How many decisions were committed.
    pub decisions: u32,
    /// How many times the action was released.
    pub releases: u32,
    /// The decision, once there is one.
    pub decision: Option<Decision>,
}

impl Facts {
    /// Learns from one record.
    pub fn absorb(&mut self, record: &Record) {
        for event in &record.content.events {
            self.absorb_event(event, record.content.principal);
        }
        self.knowledge.absorb(record);
    }

    /// Whether a principal started a request, or one above it.
    pub fn is_starter(&self, by: Principal, request: RequestId) -> bool {
        let mut above = std::iter::successors(Some(request), |at| self.children.get(at).copied());
        above.any(|at| {
            let people = self.starters.get(&at);
            people.is_some_and(|people| people.contains(&by))
        })
    }

    fn absorb_event(&mut self, event: &Event, principal: Principal) {
        match event {
            Event::SessionCreated { owner, .. } => self.owner = Some(owner.user),
            Event::RequestStarted {
                request,
                parent,
                key_owner,
                ..
            } => {
                let people = [Some(principal), *key_owner];
                self.starters
                    .insert(*request, people.into_iter().flatten().collect());
                if let Some(parent) = parent {
                    self.children.insert(*request, *parent);
                }
            }
            Event::RequestEnded { request, .. } => {
                self.ended.insert(*request);
            }
            Event::TaskClosed { task, .. } => {
                self.closed.insert(*task);
            }
            Event::TaskRenamed { from, .. } => {
                self.closed.insert(*from);
            }
            Event::ItemsAppended { items, .. } => {
                for item in items {
                    if let Some(CallMark::Call { gated, .. }) = item.call {
                        self.calls.insert(item.id, (gated, None));
                    }
                }
            }
            Event::HoldOpened {
                opened_by,
                hold,
                request,
                call,
                digest,
                need,
                decide_by,
                deadline,
                ..
            } => {
                let facts = HoldFacts {
                    request: *request,
                    call: *call,
                    digest: *digest,
                    opened_by: *opened_by,
                    decide_by: decide_by.clone(),
                    need: *need,
                    deadline: *deadline,
                    approvals: BTreeMap::new(),
                    decisions: 0,
                    releases: 0,
                    decision: None,
                };
                self.holds.insert(*hold, facts);
            }
            Event::VoteRecorded {
                hold,
                key,
                fingerprint,
                ..
            } => {
                if let Some(facts) = self.holds.get_mut(hold) {
                    facts.approvals.insert(principal, (*key, *fingerprint));
                }
            }
            Event::HoldDecided { hold, decision, .. } => {
                let Some(facts) = self.holds.get_mut(hold) else {
                    return;
                };
                facts.decisions += 1;
                facts.releases += u32::from(decision.released.is_some());
                facts.decision.get_or_insert(*decision);
                if decision.status == HoldStatus::Approved
                    && let (Some(key), Some(fingerprint)) = (decision.key, decision.fingerprint)
                {
                    facts.approvals.insert(decision.by, (key, fingerprint));
                }
                if let Some(call) = facts.call.and_then(|call| self.calls.get_mut(&call)) {
                    call.1 = decision.released.or(call.1);
                }
            }
            _ => {}
        }
    }
}
