//! Claims requests on start for agents that this process runs itself. The claim is decided right behind
//! the start, so no worker has to poll for the request, and one write to the disk makes both durable.
//! Without a free permit, or if the claim fails, the request waits in the queue like any other.

use std::collections::HashMap;
use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::request::LiveStatus;
use statehold_store::Commit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use super::attempt::InLine;
use super::call::Call;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::locks::Lock;

/// A request that was claimed when it started. Request and claim are both durable.
#[derive(Debug)]
pub struct AutoClaim {
    /// Its session.
    pub session: SessionId,
    /// The request.
    pub request: RequestId,
    /// The permit that its turn holds.
    pub room: OwnedSemaphorePermit,
}

/// The worker in this process that runs the turns of one agent.
#[derive(Debug)]
pub(crate) struct OwnWorker {
    room: Arc<Semaphore>,
    lease_ms: u64,
    sender: mpsc::UnboundedSender<AutoClaim>,
}

/// The agents that this process runs, by tenant and name.
pub(crate) type OwnWorkers = Lock<HashMap<(Name, Name), OwnWorker>>;

/// A claim that is decided right behind the start of its request.
pub(super) struct PendingClaim {
    pub(super) call: Call,
    pub(super) command: Command,
    sender: mpsc::UnboundedSender<AutoClaim>,
    claim: AutoClaim,
}

impl Engine {
    /// Claims requests of an agent for the server when they start, while `room` has permits. The
    /// receiver gets each claim once it is durable. An earlier receiver for the same agent still gets
    /// the claims made so far, and then its channel closes.
    pub fn claim_on_start(
        &self,
        tenant: &Name,
        agent: &Name,
        room: Arc<Semaphore>,
        lease_ms: u64,
    ) -> mpsc::UnboundedReceiver<AutoClaim> {
        let (sender, claims) = mpsc::unbounded_channel();
        let worker = OwnWorker {
            room,
            lease_ms,
            sender,
        };
        let mut workers = self.inner().own_workers.lock();
        workers.insert((tenant.clone(), agent.clone()), worker);
        claims
    }

    /// Stops claiming requests of an agent on start. The receiver still gets the claims made so far.
    pub fn stop_claiming(&self, tenant: &Name, agent: &Name) {
        let mut workers = self.inner().own_workers.lock();
        workers.remove(&(tenant.clone(), agent.clone()));
    }

    /// The claim of the request that a commit starts, if this process runs its agent and has a permit.
    pub(super) fn pending_claim(&self, command: &Command, commit: &Commit) -> Option<PendingClaim> {
        let Command::StartRequest(start) = command else {
            return None;
        };
        let request = commit.record.content.started_request()?;
        let live = commit.after.requests.get(&request)?;
        if live.status != LiveStatus::Queued {
            return None;
        }
        let tenant = &commit.after.owner.as_ref()?.tenant;
        let workers = self.inner().own_workers.lock();
        let worker = workers.get(&(tenant.clone(), start.agent.clone()))?;
        if worker.sender.is_closed() {
            return None;
        }
        let room = Arc::clone(&worker.room).try_acquire_owned().ok()?;
        Some(PendingClaim {
            call: Call::by(Caller::worker_of_server(tenant.clone())),
            command: Command::ClaimRequest {
                request,
                ttl_ms: worker.lease_ms,
            },
            sender: worker.sender.clone(),
            claim: AutoClaim {
                session: commit.after.session,
                request,
                room,
            },
        })
    }

    /// Sends the claim to its receiver once it is durable. If the claim fails, the start may have failed
    /// with it; otherwise the request waits in the queue.
    pub(super) fn send_when_durable(&self, pending: PendingClaim, in_line: InLine) {
        self.inner().tasks.spawn(async move {
            if let Ok(Ok(_)) = in_line.told.await {
                // If the receiver is closed, the lease lapses, or the next process releases it.
                drop(pending.sender.send(pending.claim));
            }
        });
    }
}
