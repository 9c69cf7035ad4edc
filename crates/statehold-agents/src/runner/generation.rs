//! The agents of this server as they are declared at one time, and everybody who works by that. What is
//! declared anew begins a new generation: the old one claims nothing any more, ends its turns, and then
//! leaves its tools.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use statehold_core::name::Name;
use statehold_engine::{AutoClaim, Caller, Claim, ClaimedRequest, Engine};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use super::{OnStep, RunnerOptions, lease_ms};
use crate::gateway::Locks;
use crate::http::HttpClient;
use crate::mcp::ToolServers;
use crate::spec::{AgentBook, AgentSpec};
use crate::turn::Agent;

/// How long one look for work waits, and how many requests it takes.
const CLAIM_WAIT: Duration = Duration::from_secs(30);
const CLAIM_MAX: usize = 64;
/// How long to rest when the store fails.
const REST: Duration = Duration::from_secs(1);

/// What stays when everything is declared anew.
pub(super) struct Works {
    pub(super) engine: Engine,
    pub(super) tenant: Name,
    pub(super) http: HttpClient,
    on_step: OnStep,
    asks_people: bool,
    turns_max: usize,
    pub(super) stop: CancellationToken,
    /// Old generations, until the last of their turns has ended.
    pub(super) leaving: TaskTracker,
    /// One generation follows the other.
    pub(super) switching: tokio::sync::Mutex<()>,
    /// A plain mutex, as the next: held for a look, never over an await.
    now: Mutex<Option<Arc<Generation>>>,
    /// Of every agent that was ever ours in this process.
    lasting: Mutex<BTreeMap<Name, Lasting>>,
}

/// What an agent has however it is declared.
#[derive(Clone)]
pub(super) struct Lasting {
    /// How many more turns may be under way.
    pub(super) turns: Arc<Semaphore>,
    /// One turn at a time in each conversation elsewhere, of whatever generation it is.
    pub(super) conversations: Arc<Locks>,
}

impl Works {
    pub(super) fn new(
        engine: Engine,
        tenant: Name,
        http: HttpClient,
        options: RunnerOptions,
    ) -> Self {
        Self {
            engine,
            tenant,
            http,
            on_step: options.on_step,
            asks_people: options.asks_people,
            turns_max: options.turns_max,
            stop: CancellationToken::new(),
            leaving: TaskTracker::new(),
            switching: tokio::sync::Mutex::default(),
            now: Mutex::default(),
            lasting: Mutex::default(),
        }
    }

    fn now(&self) -> MutexGuard<'_, Option<Arc<Generation>>> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a generation in the place of the one before.
    pub(super) fn replace(&self, next: &Arc<Generation>) -> Option<Arc<Generation>> {
        self.now().replace(Arc::clone(next))
    }

    /// Takes the last generation away.
    pub(super) fn take(&self) -> Option<Arc<Generation>> {
        self.now().take()
    }

    /// What an agent has that was ours before.
    pub(super) fn lasting(&self, agent: &Name) -> Option<Lasting> {
        let known = self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        known.get(agent).cloned()
    }

    pub(super) fn new_lasting(&self) -> Lasting {
        Lasting {
            turns: Arc::new(Semaphore::new(self.turns_max)),
            conversations: Arc::default(),
        }
    }

    /// Remembers that agents are ours.
    pub(super) fn keep(&self, new: BTreeMap<Name, Lasting>) {
        let mut known = self.lasting.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(new);
    }
}

/// What the turns of one generation share.
pub(crate) struct Generation {
    pub(super) engine: Engine,
    pub(super) caller: Caller,
    pub(super) on_step: OnStep,
    pub(super) asks_people: bool,
    tenant: Name,
    book: Arc<AgentBook>,
    ours: BTreeMap<Name, Ours>,
    tools: Arc<ToolServers>,
    works: Weak<Works>,
    /// Those who look for work.
    lookers: TaskTracker,
    /// Turns.
    tasks: TaskTracker,
    stop: CancellationToken,
    /// Whether nobody looks for work any more. It is so after a stop, too.
    left: CancellationToken,
}

/// An agent that this server works for.
#[derive(Clone)]
pub(super) struct Ours {
    pub(super) spec: Arc<AgentSpec>,
    pub(super) agent: Arc<dyn Agent>,
    /// How many more turns may be under way.
    pub(super) turns: Arc<Semaphore>,
}

/// The seat of one turn among those that are under way.
pub(crate) struct Seat {
    turns: Arc<Semaphore>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Seat {
    pub(super) fn new(turns: Arc<Semaphore>, permit: OwnedSemaphorePermit) -> Self {
        Self {
            turns,
            permit: Some(permit),
        }
    }

    /// Waits for something that another turn ends, and leaves the seat to others meanwhile.
    pub(crate) async fn left_for<T>(&mut self, wait: impl Future<Output = T>) -> T {
        self.permit = None;
        let done = wait.await;
        // Whoever has a seat waits for nobody who has none, so there will be one.
        self.permit = Arc::clone(&self.turns).acquire_owned().await.ok();
        done
    }
}

/// Room for one turn of an agent that is ours.
pub(super) struct Room {
    ours: Ours,
    permit: OwnedSemaphorePermit,
    generation: Arc<Generation>,
    /// The generation does not end before the turn has begun. Dropped last.
    _token: TaskTrackerToken,
}

impl Room {
    /// Takes a turn there.
    pub(super) fn take(self, request: ClaimedRequest) {
        self.generation.spawn_turn(&self.ours, request, self.permit);
    }
}

impl Generation {
    pub(super) fn new(
        works: &Arc<Works>,
        book: Arc<AgentBook>,
        ours: BTreeMap<Name, Ours>,
        tools: Arc<ToolServers>,
    ) -> Self {
        Self {
            engine: works.engine.clone(),
            caller: Caller::worker_of_server(works.tenant.clone()),
            on_step: Arc::clone(&works.on_step),
            asks_people: works.asks_people,
            tenant: works.tenant.clone(),
            book,
            ours,
            tools,
            works: Arc::downgrade(works),
            lookers: TaskTracker::new(),
            tasks: TaskTracker::new(),
            stop: works.stop.clone(),
            left: works.stop.child_token(),
        }
    }

    /// Begins to look for work. Whatever is started from now on comes here.
    pub(super) fn begin(self: &Arc<Self>) {
        for (name, ours) in &self.ours {
            let room = Arc::clone(&ours.turns);
            let begun = self
                .engine
                .claim_on_start(&self.tenant, name, room, lease_ms());
            let taken = Arc::clone(self).take_begun(ours.clone(), begun);
            self.lookers.spawn(taken);
            self.lookers.spawn(Arc::clone(self).work_for(ours.clone()));
        }
    }

    /// Looks for no more work, now that the next generation does. What was handed over or is being claimed
    /// is still taken.
    pub(super) async fn leave(self: Arc<Self>, next: &Self, leaving: &TaskTracker) {
        for gone in self
            .ours
            .keys()
            .filter(|name| !next.ours.contains_key(*name))
        {
            self.engine.stop_claiming(&self.tenant, gone);
        }
        let lookers = self.lookers.clone();
        leaving.spawn(self.end());
        lookers.wait().await;
    }

    /// Looks for no more work, and waits until all turns have ended. Then nobody needs the tools any more:
    /// programs that were started for them end too.
    pub(super) async fn end(self: Arc<Self>) {
        self.left.cancel();
        self.lookers.close();
        self.lookers.wait().await;
        self.tasks.close();
        self.tasks.wait().await;
        let tools = Arc::clone(&self.tools);
        drop(self);
        if let Some(tools) = Arc::into_inner(tools) {
            tools.close().await;
        }
    }

    /// Resolves when the whole server stops.
    pub(super) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// Claims the requests of one agent, and takes their turns.
    async fn work_for(self: Arc<Self>, ours: Ours) {
        let agent = &ours.spec.name;
        loop {
            // What is claimed begins at once: a lease that waits for its turn runs out meanwhile.
            let room = tokio::select! {
                biased;
                () = self.left.cancelled() => return,
                room = room(&ours.turns) => room,
            };
            let Some(mut room) = room else {
                return;
            };
            let claim = Claim {
                agent: agent.clone(),
                max: room.num_permits(),
                wait: CLAIM_WAIT,
                lease_ms: lease_ms(),
                request: None,
            };
            // Whoever leaves takes what is being claimed; only a stop may cut that off.
            let enough = self.left.cancelled();
            let claimed = tokio::select! {
                claimed = self.engine.claim_until(&self.caller, &claim, enough) => claimed,
                () = self.stop.cancelled() => return,
                () = self.engine.stopping() => return,
            };
            let claimed = match claimed {
                Ok(claimed) => claimed,
                Err(error) => {
                    tracing::warn!(%agent, %error, "cannot claim work; trying again");
                    tokio::select! {
                        () = tokio::time::sleep(REST) => continue,
                        () = self.left.cancelled() => return,
                    }
                }
            };
            for request in claimed {
                // No more are claimed than there is room for.
                if let Some(permit) = room.split(1) {
                    self.spawn_turn(&ours, request, permit);
                }
            }
        }
    }

    /// Takes the turns of requests that are claimed for one agent as they are started, until they are
    /// handed to somebody else.
    async fn take_begun(
        self: Arc<Self>,
        ours: Ours,
        mut begun: mpsc::UnboundedReceiver<AutoClaim>,
    ) {
        loop {
            let one = tokio::select! {
                one = begun.recv() => one,
                () = self.stop.cancelled() => return,
                () = self.engine.stopping() => return,
            };
            let Some(one) = one else {
                return;
            };
            let (generation, ours) = (Arc::clone(&self), ours.clone());
            self.tasks.spawn(async move {
                let (session, request) = (one.session, one.request);
                let (engine, caller) = (&generation.engine, &generation.caller);
                match engine.handed_over(caller, session, request, 1).await {
                    Ok(claimed) => generation.spawn_turn(&ours, claimed, one.room),
                    // It has ended already, or is claimed again once its lease has lapsed.
                    Err(error) => {
                        let agent = &ours.spec.name;
                        tracing::warn!(%agent, %request, %error, "a request waits to be claimed again");
                    }
                }
            });
        }
    }

    fn spawn_turn(
        self: &Arc<Self>,
        ours: &Ours,
        request: ClaimedRequest,
        permit: OwnedSemaphorePermit,
    ) {
        let (generation, ours) = (Arc::clone(self), ours.clone());
        let claimed = (request, Instant::now());
        let seat = Seat::new(ours.turns, permit);
        let turn = generation.take_turn(ours.spec, ours.agent, claimed, seat);
        self.tasks.spawn(turn);
    }

    /// Room for one more turn of an agent that is ours. What begins now begins by what is declared now; but
    /// an agent that is not declared any more is asked as it was, so that what was begun can end.
    pub(super) async fn room_for(self: &Arc<Self>, agent: &Name) -> Option<Room> {
        let current = self.works.upgrade().and_then(|works| {
            // With the token under the same lock: whoever is replaced later waits for it.
            let now = works.now();
            let now = now.as_ref()?;
            let has_it = now.book.agents.contains_key(agent);
            has_it.then(|| (Arc::clone(now), now.tasks.token()))
        });
        let is_gone = current.is_none();
        let (generation, token) = current.unwrap_or_else(|| (Arc::clone(self), self.tasks.token()));
        let ours = generation.ours.get(agent)?.clone();
        let turns = Arc::clone(&ours.turns);
        let permit = match Arc::clone(&turns).try_acquire_owned() {
            Ok(permit) => permit,
            // Nobody would claim it from the line.
            Err(_) if is_gone => turns.acquire_owned().await.ok()?,
            Err(_) => return None,
        };
        Some(Room {
            ours,
            permit,
            generation,
            _token: token,
        })
    }
}

/// Room for as many turns as may be claimed at once, at least one. None if there are no more turns.
async fn room(turns: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    let mut room = Arc::clone(turns).acquire_owned().await.ok()?;
    let more = turns.available_permits().min(CLAIM_MAX - 1);
    let more = u32::try_from(more).unwrap_or_default();
    if let Ok(more) = Arc::clone(turns).try_acquire_many_owned(more) {
        room.merge(more);
    }
    Some(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn there_is_room_for_everything_that_is_claimed() {
        let turns = Arc::new(Semaphore::new(CLAIM_MAX + 2));
        let mut first = room(&turns).await.expect("room");
        assert_eq!(first.num_permits(), CLAIM_MAX);
        let second = room(&turns).await.expect("room");
        assert_eq!((second.num_permits(), turns.available_permits()), (2, 0));
        // What begins keeps its room, and what is not used is given back.
        let turn = first.split(1);
        drop((first, second));
        assert_eq!(turns.available_permits(), CLAIM_MAX + 1);
        drop(turn);
        assert_eq!(turns.available_permits(), CLAIM_MAX + 2);
    }
}
