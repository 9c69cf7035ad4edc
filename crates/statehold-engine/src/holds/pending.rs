//! The open holds that a session, a task or a request waits for, at any depth.

use statehold_core::hold::Hold;
use statehold_core::ids::{HoldId, RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::session::SessionState;
use statehold_store::LineageStep;

use crate::api::hold::{shown_title, title_in};
use crate::engine::Engine;
use crate::error::EngineError;

/// How many holds are listed; `total` counts all.
const PENDING_MAX: usize = 100;

/// The open holds at and below a session, a task or a request.
#[derive(Debug, Clone, Default)]
pub struct Pending {
    /// The oldest holds.
    pub holds: Vec<PendingHold>,
    /// How many there are.
    pub total: usize,
}

/// An open hold as its ancestors show it.
#[derive(Debug, Clone)]
pub struct PendingHold {
    /// The hold.
    pub hold: Hold,
    /// Its session.
    pub session: SessionId,
    /// The agent that opened it.
    pub agent: Name,
    /// The requests from the root down to the one with the hold, with their tasks.
    pub lineage: Vec<LineageStep>,
    /// The title.
    pub title: String,
}

impl Engine {
    /// All open holds of a session. Checks no rights: check read access before calling.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub(crate) async fn pending_in(&self, session: SessionId) -> Result<Pending, EngineError> {
        let state = self.durable_state(session).await?;
        let holds = state.holds.keys().copied().collect();
        self.pending_of(&state, holds).await
    }

    /// Open holds of a session as their ancestors show them.
    pub(crate) async fn pending_of(
        &self,
        state: &SessionState,
        holds: Vec<HoldId>,
    ) -> Result<Pending, EngineError> {
        let total = holds.len();
        let holds = oldest(state, &holds, PENDING_MAX);
        let wanted = holds.iter();
        let wanted = wanted.map(|hold| (state.session, hold.opened_at, hold.body));
        let titles = self.read_payloads(wanted.collect(), title_in);
        let titles = titles.await?;
        let told = holds.into_iter().map(|hold| {
            let lineage = lineage(state, hold.request);
            let place = (state.session, hold.opened_at, hold.body);
            let title = titles.get(&place).cloned().unwrap_or_default();
            let agent = state.tasks.get(&hold.task).map(|task| task.agent.clone());
            Some(PendingHold {
                hold: hold.clone(),
                session: state.session,
                agent: agent?,
                lineage,
                title: shown_title(hold.kind, title),
            })
        });
        Ok(Pending {
            holds: told.flatten().collect(),
            total,
        })
    }
}

/// The oldest of some open holds.
pub(crate) fn oldest<'a>(state: &'a SessionState, holds: &[HoldId], max: usize) -> Vec<&'a Hold> {
    let mut holds: Vec<&Hold> = holds.iter().filter_map(|id| state.holds.get(id)).collect();
    holds.sort_by_key(|hold| (hold.opened_at, hold.request, hold.number));
    holds.truncate(max);
    holds
}

/// The path from the root to a live request. All ancestors of a live request are live.
pub(crate) fn lineage(state: &SessionState, request: RequestId) -> Vec<LineageStep> {
    let mut steps = Vec::new();
    let mut above = state.requests.get(&request);
    while let Some(live) = above {
        let Some(task) = state.tasks.get(&live.task) else {
            break;
        };
        steps.push(LineageStep {
            request: live.id,
            number: live.number,
            task: task.id,
            task_number: task.number,
            agent: task.agent.clone(),
        });
        above = live.parent.and_then(|id| state.requests.get(&id));
    }
    steps.reverse();
    steps
}
