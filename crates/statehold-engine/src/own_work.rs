//! The work of agents that the server runs itself: leases of an earlier process, and how far requests are.

use statehold_core::command::{Command, Fenced};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::projection::EndedRequest;
use statehold_store::StoredRecord;

use crate::caller::Caller;
use crate::commit::call::Call;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;

/// How many live requests one query reads.
const PAGE: usize = 256;

/// How a request ended.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The request.
    pub request: EndedRequest,
    /// The record that ended it.
    pub finished: Option<StoredRecord>,
}

/// Progress of a request, for a caller that waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is running or queued.
    Live,
    /// It waits for a person, here or in a child request.
    Paused,
    /// It has ended.
    Ended,
}

impl Engine {
    /// The progress of a request, and the session revision at which it was read.
    pub(crate) async fn progress(
        &self,
        session: SessionId,
        request: RequestId,
    ) -> Result<(Progress, u64), EngineError> {
        let state = self.durable_state(session).await?;
        let progress = if !state.requests.contains_key(&request) {
            Progress::Ended
        } else if state.holds_below(request).is_empty() {
            Progress::Live
        } else {
            Progress::Paused
        };
        Ok((progress, state.revision))
    }

    /// A request at the root of a session that is queued or running: it does not wait for people.
    pub(crate) async fn running_root_of(
        &self,
        session: SessionId,
    ) -> Result<Option<RequestId>, EngineError> {
        let state = self.durable_state(session).await?;
        let mut roots = state.requests.values().filter(|live| live.parent.is_none());
        let running = roots.find(|live| state.holds_below(live.id).is_empty());
        Ok(running.map(|live| live.id))
    }

    /// Waits until a request has ended or waits for people, or the server stops.
    pub(crate) async fn until_no_longer_running(
        &self,
        session: SessionId,
        request: RequestId,
    ) -> Result<(), EngineError> {
        loop {
            let (progress, revision) = self.progress(session, request).await?;
            if progress != Progress::Live {
                return Ok(());
            }
            self.changed_after(session, revision).await?;
        }
    }

    /// Releases the leases that an earlier process of this server held for an agent, so that the
    /// requests resume at once. Call this before this process claims anything: only one process works as
    /// the server.
    ///
    /// # Errors
    ///
    /// If the store fails.
    pub async fn give_back_lost_work(
        &self,
        tenant: &Name,
        agent: &Name,
    ) -> Result<usize, EngineError> {
        let call = Call::by(Caller::worker_of_server(tenant.clone()));
        let (mut after, mut given_back) = (None, 0);
        loop {
            let store = &self.inner().store;
            let page = store.live_work(tenant.clone(), agent.clone(), after, PAGE);
            let page = page.await?;
            after = page.last().map(|work| work.live.id);
            for work in &page {
                let live = &work.live;
                let is_ours = live
                    .lease
                    .is_some_and(|lease| lease.worker == Principal::System);
                if !is_ours {
                    continue;
                }
                let (request, fence) = (live.id, live.fence);
                let by = Fenced { request, fence };
                let write = SessionWrite::new(self, &call, work.session);
                match write.commit_unseen(&Command::ReleaseLease { by }).await {
                    Ok(_) => given_back += 1,
                    // The lease has lapsed, the request has ended, or its session is damaged.
                    Err(
                        EngineError::Rejected(_) | EngineError::NotFound | EngineError::Damaged(_),
                    ) => {}
                    Err(error) => return Err(error),
                }
            }
            if page.len() < PAGE {
                return Ok(given_back);
            }
        }
    }

    /// The live root requests of an agent in a session, oldest first.
    ///
    /// # Errors
    ///
    /// If there is no such session.
    pub(crate) async fn live_roots_of(
        &self,
        session: SessionId,
        agent: &Name,
    ) -> Result<Vec<RequestId>, EngineError> {
        let state = self.durable_state(session).await?;
        let requests = state.requests.values();
        let roots = requests.filter(|live| {
            let task = state.tasks.get(&live.task);
            live.parent.is_none() && task.is_some_and(|task| task.agent == *agent)
        });
        let mut live: Vec<_> = roots.map(|live| (live.number, live.id)).collect();
        live.sort_unstable();
        Ok(live.into_iter().map(|(_, request)| request).collect())
    }

    /// The agent of a task of a session.
    ///
    /// # Errors
    ///
    /// If there is no such task.
    pub(crate) async fn agent_of(
        &self,
        session: SessionId,
        task: TaskId,
    ) -> Result<Name, EngineError> {
        let state = self.durable_state(session).await?;
        Ok(self.find_task(&state, task).await?.0.agent)
    }
}
