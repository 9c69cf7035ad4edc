//! Claims requests on start for agents that this process runs itself. The claim is decided right behind
//! the start, so no worker has to poll for the request, and one write to the disk makes both durable. The
//! worker gets the claim when it is decided, and asks nothing outside before it is durable. Without a free
//! permit, or if the claim fails, the request waits in the queue like any other.

use std::collections::HashMap;

use statehold_core::command::Command;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::request::LiveStatus;
use statehold_core::session::SessionState;
use statehold_store::{Commit, StoredRecord};
use tokio::sync::mpsc;

use super::call::Call;
use super::queue::Durability;
use super::write::{SessionWrite, Submission};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::leased::ClaimedTurn;
use crate::locks::Lock;
use crate::shares::{Share, Shares};

/// A request that was claimed when it started. Both are decided, and durable soon.
#[derive(Debug)]
pub struct AutoClaim {
    /// The turn.
    pub turn: ClaimedTurn,
    /// The permit that its turn holds.
    pub room: Share,
}

/// The worker in this process that runs the turns of one agent.
#[derive(Debug, Clone)]
pub(crate) struct OwnWorker {
    room: Shares,
    lease_ms: u64,
    starts_with_commit: bool,
    sender: mpsc::UnboundedSender<AutoClaim>,
}

/// The agents that this process runs, by tenant and name.
pub(crate) type OwnWorkers = Lock<HashMap<(Name, Name), OwnWorker>>;

/// A claim that is decided right behind the start of its request.
pub(super) struct PendingClaim {
    call: Call,
    pub(super) command: Command,
    /// Whether the turn starts with another command of the session.
    starts_with_commit: bool,
    request: RequestId,
    /// The record that starts the request.
    started: StoredRecord,
    room: Share,
    sender: mpsc::UnboundedSender<AutoClaim>,
}

impl PendingClaim {
    pub(super) fn write<'a>(&'a self, engine: &'a Engine, session: SessionId) -> SessionWrite<'a> {
        SessionWrite {
            is_delayed: self.starts_with_commit,
            ..SessionWrite::new(engine, &self.call, session)
        }
    }

    /// Sends the claim, now that it is queued, to its receiver. If the receiver is closed, the lease
    /// lapses, or the next process releases it.
    pub(super) fn send(self, engine: &Engine, after: &SessionState, durability: Durability) {
        let started = (self.request, self.started);
        let turn = ClaimedTurn::decided(engine, &self.call, after, started, durability);
        if let Some(turn) = turn {
            let room = self.room;
            drop(self.sender.send(AutoClaim { turn, room }));
        }
    }
}

impl Engine {
    /// Claims requests of an agent for the server when they start, while `room` has permits. The
    /// receiver gets each claim once it is decided. `starts_with_commit`: a turn of the agent starts with
    /// another command of the session, and one write to the disk takes it too. An earlier receiver for the same
    /// agent still gets the claims made so far, and then its channel closes.
    pub fn claim_on_start(
        &self,
        tenant: &Name,
        agent: &Name,
        room: Shares,
        (lease_ms, starts_with_commit): (u64, bool),
    ) -> mpsc::UnboundedReceiver<AutoClaim> {
        let (sender, claims) = mpsc::unbounded_channel();
        let worker = OwnWorker {
            room,
            lease_ms,
            starts_with_commit,
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
    pub(super) fn pending_claim(
        &self,
        submission: &Submission<'_>,
        commit: &Commit,
    ) -> Option<PendingClaim> {
        let Command::StartRequest(start) = submission.command else {
            return None;
        };
        let request = commit.record.content.started_request()?;
        let live = commit.after.requests.get(&request)?;
        if live.status != LiveStatus::Queued {
            return None;
        }
        let tenant = &commit.after.owner.as_ref()?.tenant;
        let worker = {
            let workers = self.inner().own_workers.lock();
            let worker = workers.get(&(tenant.clone(), start.agent.clone()))?;
            worker.clone()
        };
        if worker.sender.is_closed() {
            return None;
        }
        Some(PendingClaim {
            call: Call::by(Caller::worker_of_server(tenant.clone())),
            command: Command::ClaimRequest {
                request,
                ttl_ms: worker.lease_ms,
            },
            starts_with_commit: worker.starts_with_commit,
            request,
            room: self.take_turn(&worker.room, request)?,
            started: submission.payloads.stored(&commit.record),
            sender: worker.sender,
        })
    }
}
