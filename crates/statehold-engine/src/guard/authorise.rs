//! Asks about the right for an act: on the newest state, with the objects that have ended.

use statehold_core::command::Named;
use statehold_core::ids::{SessionId, TaskId};
use statehold_core::projection::{ClosedHold, EndedRequest};
use statehold_core::session::{Owner, SessionState};

use crate::caller::Caller;
use crate::engine::{Engine, Inner};
use crate::error::EngineError;
use crate::guard::rights::{self, Act};

/// The finished objects that an act or a command names. Those of other sessions count as missing.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub(crate) request: Option<EndedRequest>,
    pub(crate) task: Option<TaskId>,
    /// In a box: few commands name one, and it is large.
    pub(crate) hold: Option<Box<ClosedHold>>,
}

impl Inner {
    /// Reads what is named and not live.
    pub(crate) async fn finished(
        &self,
        state: &SessionState,
        named: &Named,
    ) -> Result<Finished, EngineError> {
        let mut finished = Finished::default();
        if let Some(id) = named.request.filter(|id| !state.requests.contains_key(id)) {
            let is_here = self.store.session_of_request(id).await? == Some(state.session);
            finished.request = self.store.ended_request(id).await?.filter(|_| is_here);
        }
        if let Some(id) = named.task.filter(|id| !state.tasks.contains_key(id)) {
            let is_here = self.store.session_of_task(id).await? == Some(state.session);
            let closed = self.store.closed_task(id).await?.filter(|_| is_here);
            finished.task = closed.map(|closed| closed.task.id);
        }
        if let Some(id) = named.hold.filter(|id| !state.holds.contains_key(id)) {
            finished.hold = self.store.closed_hold(id).await?.map(Box::new);
        }
        Ok(finished)
    }
}

impl Engine {
    /// Refuses a caller without the right for an act; returns the owner of the session. Every use case asks
    /// this before it validates what the caller sent: neither a missing right nor a mistake may tell that a
    /// session is there.
    ///
    /// # Errors
    ///
    /// If the caller lacks a role, or the session is out of reach, which is as if it were not there.
    pub(crate) async fn authorise(
        &self,
        caller: &Caller,
        session: SessionId,
        act: &Act,
    ) -> Result<Owner, EngineError> {
        rights::require_role(caller, act)?;
        let named = act.named();
        let head = self.head(session, false).await?;
        let state = head.shared_state();
        // A caller without the right must not hold up the session: waits and reads come after its release.
        if head.is_missing(&named) {
            // The object ended in a commit that may be in flight: the store knows it once that is durable.
            head.release_until_durable().await;
        } else {
            drop(head);
        }
        let finished = self.inner().finished(&state, &named).await?;
        self.require_right(caller, &state, act, &finished).await?;
        state.owner.clone().ok_or(EngineError::NotFound)
    }

    /// The matrix of rights, with the agents of requests that have ended and the deciders of holds that
    /// are decided.
    pub(crate) async fn require_right(
        &self,
        caller: &Caller,
        state: &SessionState,
        act: &Act,
        finished: &Finished,
    ) -> Result<(), EngineError> {
        let closed = finished.hold.as_ref().filter(|_| caller.roles.has_own());
        rights::require(caller, state, act, closed.map(|closed| &closed.hold))?;
        if caller.agents.is_empty() {
            return Ok(());
        }
        let Some(request) = rights::request_worked_on(caller, state, act) else {
            return Ok(());
        };
        if state.requests.contains_key(&request) {
            return Ok(());
        }
        // Workers of its agent may learn that the request has ended.
        let ended = finished.request.as_ref().ok_or(EngineError::NotFound)?;
        let (task, _) = self.find_task(state, ended.task).await?;
        if caller.works_for(&task.agent) {
            Ok(())
        } else {
            Err(EngineError::NotFound)
        }
    }
}
