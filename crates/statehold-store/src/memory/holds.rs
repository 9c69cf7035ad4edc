//! Holds: lists, changes, and the lineage from the root request to the request that waits.

use std::cmp::Reverse;

use statehold_core::hold::Hold;
use statehold_core::ids::{HoldId, RequestId, UserId};
use statehold_core::name::Name;
use statehold_core::session::SessionState;

use super::Tables;
use crate::commit::hold_changes_in;
use crate::port::{HoldChange, HoldOrder, HoldPlace, HoldQuery, HoldSummary, LineageStep};

impl Tables {
    pub(super) fn list_open_holds(&self, query: &HoldQuery) -> Vec<HoldSummary> {
        let holds = self.owned().flat_map(|(kept, _)| kept.state.holds.values());
        let mut found: Vec<HoldSummary> = holds.filter_map(|hold| self.open_row(hold)).collect();
        found.retain(|row| is_asked(query, row));
        in_order(query, query.order, &mut found);
        found
    }

    pub(super) fn count_open_holds(&self, tenant: &Name, user: UserId) -> usize {
        let theirs = self
            .owned()
            .filter(|(_, owner)| owner.tenant == *tenant && owner.user == user);
        theirs.map(|(kept, _)| kept.state.holds.len()).sum()
    }

    pub(super) fn list_decided_holds(&self, query: &HoldQuery) -> Vec<HoldSummary> {
        let decided = self.decided_places.iter();
        let rows = decided.filter_map(|(place, id)| self.decided_row(*id, *place));
        let mut found: Vec<HoldSummary> = rows.filter(|row| is_asked(query, row)).collect();
        let order = match query.order {
            HoldOrder::Oldest => HoldOrder::Oldest,
            HoldOrder::Newest | HoldOrder::Urgency => HoldOrder::Newest,
        };
        in_order(query, order, &mut found);
        found
    }

    pub(super) fn holds_by_id(&self, ids: &[HoldId]) -> Vec<HoldSummary> {
        let row = |id: &HoldId| {
            if self.closed_holds.contains_key(id) {
                let mut decided = self.decided_places.iter();
                let (place, _) = decided.find(|(_, decided)| *decided == id)?;
                return self.decided_row(*id, *place);
            }
            let session = self.session_of_hold.get(id)?;
            let hold = self.sessions.get(session)?.state.holds.get(id)?;
            self.open_row(hold)
        };
        ids.iter().filter_map(row).collect()
    }

    pub(super) fn held_by(&self, requests: &[RequestId]) -> Vec<HoldSummary> {
        let ids = requests.iter().filter_map(|id| self.holds_of.get(id));
        let ids: Vec<HoldId> = ids.flatten().copied().collect();
        self.holds_by_id(&ids)
    }

    fn open_row(&self, hold: &Hold) -> Option<HoldSummary> {
        let session = self.session_of_hold.get(&hold.id)?;
        let agent = self.sessions.get(session)?.state.tasks.get(&hold.task);
        let number = self.hold_places.get(&hold.id).copied().unwrap_or(0);
        Some(HoldSummary {
            place: HoldPlace::of(hold, number),
            session: self.summary_of(*session)?,
            agent: agent?.agent.clone(),
            hold: hold.clone(),
            decision: None,
            result: None,
        })
    }

    fn decided_row(&self, id: HoldId, place: u64) -> Option<HoldSummary> {
        let closed = self.closed_holds.get(&id)?;
        let session = self.session_of_hold.get(&id)?;
        let state = &self.sessions.get(session)?.state;
        let call = closed.hold.call;
        Some(HoldSummary {
            place: HoldPlace::of(&closed.hold, place),
            session: self.summary_of(*session)?,
            agent: self.task(state, closed.hold.task)?.1,
            hold: closed.hold.clone(),
            decision: Some((closed.decision, closed.decided_by)),
            result: call.and_then(|call| self.call_results.get(&call).copied()),
        })
    }

    pub(super) fn list_hold_changes(
        &self,
        tenant: &Name,
        after: u64,
        limit: usize,
    ) -> (Vec<HoldChange>, u64) {
        let skipped = usize::try_from(after).unwrap_or(usize::MAX);
        let mut found = Vec::new();
        let mut seen = after;
        for ((session, revision), place) in self.committed.iter().zip(1..).skip(skipped).take(limit)
        {
            seen = place;
            let kept = self.sessions.get(session);
            let owner = kept.and_then(|kept| kept.state.owner.as_ref());
            if owner.is_some_and(|owner| owner.tenant == *tenant)
                && let Some(stored) = kept.and_then(|kept| kept.record_at(*revision))
            {
                found.extend(hold_changes_in(&stored.record, place));
            }
        }
        (found, seen)
    }

    pub(super) fn lineage(&self, request: RequestId) -> Vec<LineageStep> {
        let Some(kept) = self
            .session_of_request
            .get(&request)
            .and_then(|session| self.sessions.get(session))
        else {
            return Vec::new();
        };
        let mut steps = Vec::new();
        let mut above = Some(request);
        while let Some(id) = above {
            let live = kept.state.requests.get(&id);
            let live = live.map(|live| (live.number, live.task, live.parent));
            let ended = self.ended_requests.get(&id);
            let ended = ended.map(|ended| (ended.number, ended.task, ended.parent));
            let Some((number, task, parent)) = live.or(ended) else {
                break;
            };
            let Some((task_number, agent)) = self.task(&kept.state, task) else {
                break;
            };
            steps.push(LineageStep {
                request: id,
                number,
                task,
                task_number,
                agent,
            });
            above = parent;
        }
        steps.reverse();
        steps
    }

    /// The number and the agent of a task, open or final.
    fn task(&self, state: &SessionState, id: statehold_core::ids::TaskId) -> Option<(u64, Name)> {
        let closed = self.closed_tasks.get(&id).map(|closed| &closed.task);
        let task = state.tasks.get(&id).or(closed)?;
        Some((task.number, task.agent.clone()))
    }
}

fn is_asked(query: &HoldQuery, row: &HoldSummary) -> bool {
    let owner = &row.session.owner;
    owner.tenant == query.tenant
        && query.user.is_none_or(|user| user == owner.user)
        && query
            .session
            .is_none_or(|session| session == row.session.id)
}

fn in_order(query: &HoldQuery, order: HoldOrder, found: &mut Vec<HoldSummary>) {
    let after = query.after;
    match order {
        HoldOrder::Urgency => {
            found.retain(|row| after.is_none_or(|after| row.place > after));
            found.sort_by_key(|row| row.place);
        }
        HoldOrder::Oldest => {
            found.retain(|row| after.is_none_or(|after| row.place.number > after.number));
            found.sort_by_key(|row| row.place.number);
        }
        HoldOrder::Newest => {
            found.retain(|row| after.is_none_or(|after| row.place.number < after.number));
            found.sort_by_key(|row| Reverse(row.place.number));
        }
    }
    found.truncate(query.limit);
}
