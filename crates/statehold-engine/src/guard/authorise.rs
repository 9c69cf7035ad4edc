//! Asks about the right for an act: on the newest state, with the objects that have ended.

use statehold_core::command::Named;
use statehold_core::ids::SessionId;
use statehold_core::session::{Owner, SessionState};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::rights::{self, Act, Finished};

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
        let finished = self.finished(caller, &state, &named).await?;
        rights::require(caller, &state, act, &finished)?;
        state.owner.clone().ok_or(EngineError::NotFound)
    }

    /// Reads the named objects that are not live.
    pub(crate) async fn finished(
        &self,
        caller: &Caller,
        state: &SessionState,
        named: &Named,
    ) -> Result<Finished, EngineError> {
        let store = &self.inner().store;
        let mut finished = Finished::default();
        if let Some(id) = named.request.filter(|id| !state.requests.contains_key(id)) {
            let is_here = store.session_of_request(id).await? == Some(state.session);
            finished.request = store.ended_request(id).await?.filter(|_| is_here);
            if let Some(ended) = finished
                .request
                .as_ref()
                .filter(|_| !caller.agents.is_empty())
            {
                finished.agent = match self.find_task(state, ended.task).await {
                    Ok((task, _)) => Some(task.agent),
                    Err(EngineError::NotFound) => None,
                    Err(error) => return Err(error),
                };
            }
        }
        if let Some(id) = named.task.filter(|id| !state.tasks.contains_key(id)) {
            let is_here = store.session_of_task(id).await? == Some(state.session);
            let closed = store.closed_task(id).await?.filter(|_| is_here);
            finished.task = closed.map(|closed| closed.task.id);
        }
        if let Some(id) = named.hold.filter(|id| !state.holds.contains_key(id)) {
            finished.hold = store.closed_hold(id).await?.map(Box::new);
        }
        Ok(finished)
    }
}
