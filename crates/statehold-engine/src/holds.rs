//! Questions about holds: one, a page of them, and who sees the action.

use statehold_core::hold::{DecideBy, Hold, HoldKind, Right, WhyNot};
use statehold_core::ids::{HoldId, RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::projection::ClosedHold;
use statehold_core::session::SessionState;
use statehold_core::task::Task;
use statehold_core::tenant::TenantEvent;
use statehold_core::time::Timestamp;
use statehold_store::{HoldQuery, SessionSummary, StoredRecord};

use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::read::{Page, SCAN_MAX, SCAN_STEP};

/// A hold, open or decided, with what people read.
#[derive(Debug, Clone)]
pub struct HoldDetail {
    /// Its session.
    pub session: SessionSummary,
    /// The hold.
    pub hold: Hold,
    /// How it was decided.
    pub closed: Option<ClosedHold>,
    /// The number of its request.
    pub request_number: u64,
    /// The agent that asks.
    pub agent: Name,
    /// The tasks from the root to the one that asks.
    pub path: Vec<TaskId>,
    /// Title, message, action: as it was opened.
    pub body: Option<Vec<u8>>,
    /// The words that came with the decision.
    pub decision_body: Option<Vec<u8>>,
    /// When it was opened.
    pub opened_at: Option<Timestamp>,
    /// When it was decided.
    pub decided_at: Option<Timestamp>,
    /// The right by which the caller may decide it, or why not.
    pub right: Result<Right, WhyNot>,
    /// Whether the caller may see the action: who may decide it, or read traces.
    pub sees_action: bool,
    /// Who voted.
    pub votes: Vec<Principal>,
    /// Whether the call it is about has no result yet.
    pub is_call_open: bool,
}

/// Which holds to list.
#[derive(Debug, Clone, Default)]
pub struct HoldFilter {
    /// Decided ones instead of open ones.
    pub decided: bool,
    /// With this status.
    pub status: Option<statehold_core::hold::HoldStatus>,
    /// Asked by this agent.
    pub agent: Option<Name>,
    /// Of this kind.
    pub kind: Option<HoldKind>,
}

impl Engine {
    /// One hold.
    ///
    /// # Errors
    ///
    /// If the caller may not see it.
    pub async fn hold(&self, caller: &Caller, id: HoldId) -> Result<HoldDetail, EngineError> {
        let mut detail = self.hold_in_reach(caller, id).await?;
        // An operator who may not decide sees the action by a right that is audited.
        if !detail.sees_action && caller.reads_all() {
            let session = detail.session.id;
            self.audit(caller, TenantEvent::TraceRead { session })
                .await?;
            detail.sees_action = true;
        }
        Ok(detail)
    }

    /// One hold, with its action only for those who may decide it.
    async fn hold_in_reach(&self, caller: &Caller, id: HoldId) -> Result<HoldDetail, EngineError> {
        let session = self.inner().store.session_of_hold(id).await?;
        let session = session.ok_or(EngineError::NotFound)?;
        let summary = self.inner().store.session(session).await?;
        let summary = summary.ok_or(EngineError::NotFound)?;
        if summary.owner.tenant != caller.tenant || summary.deleted {
            return Err(EngineError::NotFound);
        }
        let state = self.durable_state(session).await?;
        let detail = self.hold_detail(caller, &summary, &state, id).await?;
        // A worker that is bound to a user works in that user's sessions only.
        let user = summary.owner.user;
        let is_near = caller.user.is_none_or(|bound| bound == user);
        let may = detail.sees_action
            || caller.reads_all()
            || caller.acts_for(user)
            || is_near && caller.works_for(&detail.agent);
        if may {
            Ok(detail)
        } else {
            Err(EngineError::NotFound)
        }
    }

    /// The session of a hold that the caller may decide or see.
    ///
    /// # Errors
    ///
    /// If there is no such hold within reach.
    pub async fn session_of_hold(&self, id: HoldId) -> Result<SessionId, EngineError> {
        let session = self.inner().store.session_of_hold(id).await?;
        session.ok_or(EngineError::NotFound)
    }

    /// The holds that a request ever opened.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn holds_of(&self, request: RequestId) -> Result<Vec<HoldId>, EngineError> {
        Ok(self.inner().store.holds_of(request).await?)
    }

    /// A page of holds: open ones oldest first, decided ones newest first.
    ///
    /// # Errors
    ///
    /// If the caller may not see holds.
    pub async fn holds(
        &self,
        caller: &Caller,
        filter: &HoldFilter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Page<HoldDetail>, EngineError> {
        let mut entries = Vec::new();
        let (mut after, mut seen) = (after, 0);
        loop {
            let query = HoldQuery {
                tenant: caller.tenant.clone(),
                after,
                limit: SCAN_STEP,
            };
            let rows = if filter.decided {
                self.inner().store.decided_holds(query).await?
            } else {
                self.inner().store.open_holds(query).await?
            };
            let is_last = rows.len() < SCAN_STEP;
            seen += rows.len();
            for row in rows {
                after = Some(row.place);
                if filter.kind.is_some_and(|kind| kind != row.hold.kind) {
                    continue;
                }
                let Ok(detail) = self.hold_in_reach(caller, row.hold.id).await else {
                    continue;
                };
                let status = detail.closed.as_ref().map(|closed| closed.decision.status);
                let is_asked = filter
                    .agent
                    .as_ref()
                    .is_none_or(|agent| *agent == detail.agent)
                    && filter.status.is_none_or(|asked| status == Some(asked))
                    && detail.closed.is_some() == filter.decided;
                if is_asked {
                    entries.push(detail);
                    if entries.len() == limit {
                        return Ok(Page {
                            entries,
                            next: after,
                        });
                    }
                }
            }
            if is_last || seen >= SCAN_MAX {
                let next = after.filter(|_| !is_last);
                return Ok(Page { entries, next });
            }
        }
    }

    pub(crate) async fn hold_detail(
        &self,
        caller: &Caller,
        session: &SessionSummary,
        state: &SessionState,
        id: HoldId,
    ) -> Result<HoldDetail, EngineError> {
        let store = &self.inner().store;
        let closed = match state.holds.get(&id) {
            Some(_) => None,
            None => store.closed_hold(id).await?,
        };
        let hold = match (state.holds.get(&id), &closed) {
            (Some(hold), _) => hold.clone(),
            (None, Some(closed)) => closed.hold.clone(),
            (None, None) => return Err(EngineError::NotFound),
        };
        let (task, _) = self.find_task(state, hold.task).await?;
        let request_number = match state.requests.get(&hold.request) {
            Some(live) => live.number,
            None => store
                .ended_request(hold.request)
                .await?
                .map_or(0, |ended| ended.number),
        };
        let opened = self.record(session.id, hold.opened_at).await?;
        let decided = match &closed {
            Some(closed) => self.record(session.id, closed.decided_by).await?,
            None => None,
        };
        let body = match hold.kind {
            HoldKind::Reconcile => Some(self.reconcile_body(session.id, &hold).await?),
            _ => payload(opened.as_ref(), hold.body),
        };
        let decision = closed.as_ref().map(|closed| closed.decision);
        let decision_body = payload(decided.as_ref(), decision.and_then(|made| made.body));
        let right = caller.actor().right_to_decide(&hold, session.owner.user);
        let sees_action = right.is_ok() && holds_role(caller, &hold, session);
        Ok(HoldDetail {
            session: session.clone(),
            request_number,
            agent: task.agent.clone(),
            path: self.path(state, task).await?,
            body,
            decision_body,
            opened_at: opened.map(|stored| stored.record.content.at),
            decided_at: decided.map(|stored| stored.record.content.at),
            right,
            sees_action,
            votes: hold.votes.keys().copied().collect(),
            is_call_open: hold.call.is_some_and(|call| {
                let live = state.requests.get(&hold.request);
                live.is_some_and(|live| live.calls.contains_key(&call))
            }),
            hold,
            closed,
        })
    }

    /// The tasks from the root to this one.
    async fn path(&self, state: &SessionState, task: Task) -> Result<Vec<TaskId>, EngineError> {
        let mut path = vec![task.id];
        let mut above = task.parent.map(|link| link.task);
        while let Some(id) = above {
            path.push(id);
            let (task, _) = self.find_task(state, id).await?;
            above = task.parent.map(|link| link.task);
        }
        path.reverse();
        Ok(path)
    }
}

/// Those who may decide a hold see what they decide about.
fn holds_role(caller: &Caller, hold: &Hold, session: &SessionSummary) -> bool {
    match &hold.decide_by {
        DecideBy::Role(role) => caller.roles.names().contains(role),
        DecideBy::Other => caller.has(Role::Approver),
        DecideBy::User => caller.acts_for(session.owner.user) || caller.has(Role::Approver),
    }
}

pub(crate) fn payload(
    stored: Option<&StoredRecord>,
    name: Option<statehold_core::digest::BodyRef>,
) -> Option<Vec<u8>> {
    let (stored, name) = (stored?, name?);
    let index = stored
        .record
        .bodies()
        .iter()
        .position(|body| *body == name)?;
    stored.bodies.get(index).cloned().flatten()
}
