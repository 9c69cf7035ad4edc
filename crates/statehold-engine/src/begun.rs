//! Requests for agents that this process works for itself. They are claimed right behind their start, so
//! that nobody has to look for them: the client starts, the server claims, and one write to the disk takes
//! both. Where there is no room, or the claim is lost, the request waits in line like any other.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use statehold_core::command::Command;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::request::LiveStatus;
use statehold_store::Commit;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};

use crate::caller::Caller;
use crate::engine::Engine;
use crate::mailbox::{Call, InLine};

/// A request that was claimed as it was started, and is durable with its claim.
#[derive(Debug)]
pub struct Begun {
    /// Its session.
    pub session: SessionId,
    /// The request.
    pub request: RequestId,
    /// The room that its turn takes.
    pub room: OwnedSemaphorePermit,
}

/// Who takes the turns of an agent in this process.
#[derive(Debug)]
struct OwnWorker {
    room: Arc<Semaphore>,
    lease_ms: u64,
    teller: mpsc::UnboundedSender<Begun>,
}

/// The agents that this process works for, by tenant and name.
#[derive(Debug, Default)]
pub(crate) struct OwnWorkers(Mutex<HashMap<(Name, Name), OwnWorker>>);

/// A claim that goes right behind the start of a request.
pub(crate) struct Taking {
    pub(crate) call: Call,
    pub(crate) command: Command,
    teller: mpsc::UnboundedSender<Begun>,
    begun: Begun,
}

impl Engine {
    /// Has requests of an agent claimed for the server as they are started, as long as there is room for
    /// their turns. Whoever takes them gets each when it is durable. Whoever took them before gets what was
    /// claimed until now, and then hears that nothing more comes.
    pub fn take_begun(
        &self,
        tenant: &Name,
        agent: &Name,
        room: Arc<Semaphore>,
        lease_ms: u64,
    ) -> mpsc::UnboundedReceiver<Begun> {
        let (teller, taken) = mpsc::unbounded_channel();
        let worker = OwnWorker {
            room,
            lease_ms,
            teller,
        };
        let mut workers = self.inner().own_workers.lock();
        workers.insert((tenant.clone(), agent.clone()), worker);
        taken
    }

    /// Has requests of an agent claimed by nobody as they are started. Those that were claimed so far are
    /// still told to whoever took them.
    pub fn leave_begun(&self, tenant: &Name, agent: &Name) {
        let mut workers = self.inner().own_workers.lock();
        workers.remove(&(tenant.clone(), agent.clone()));
    }

    /// The claim of the request that a commit starts, if it is one of ours and there is room.
    pub(crate) fn taking(&self, command: &Command, commit: &Commit) -> Option<Taking> {
        let Command::StartRequest(start) = command else {
            return None;
        };
        let mut events = commit.record.content.events.iter();
        let request = events.find_map(|event| match event {
            Event::RequestStarted { request, .. } => Some(*request),
            _ => None,
        })?;
        let live = commit.after.requests.get(&request)?;
        if live.status != LiveStatus::Queued {
            return None;
        }
        let tenant = &commit.after.owner.as_ref()?.tenant;
        let workers = self.inner().own_workers.lock();
        let worker = workers.get(&(tenant.clone(), start.agent.clone()))?;
        if worker.teller.is_closed() {
            return None;
        }
        let room = Arc::clone(&worker.room).try_acquire_owned().ok()?;
        Some(Taking {
            call: Call::by(Caller::worker_of_server(tenant.clone())),
            command: Command::ClaimRequest {
                request,
                ttl_ms: worker.lease_ms,
            },
            teller: worker.teller.clone(),
            begun: Begun {
                session: commit.after.session,
                request,
                room,
            },
        })
    }

    /// Tells who takes the turn once the claim is durable. If it is lost, so may be the start; and if not,
    /// the request waits in line.
    pub(crate) fn tell_when_durable(&self, taking: Taking, claim: InLine) {
        self.inner().tasks.spawn(async move {
            if let Ok(Ok(_)) = claim.told.await {
                // Whoever took turns has gone away: the lease lapses, or the next one gives it back.
                drop(taking.teller.send(taking.begun));
            }
        });
    }
}

impl OwnWorkers {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(Name, Name), OwnWorker>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
