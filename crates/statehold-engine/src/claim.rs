//! Handing out work: a worker claims requests of its agent, and waits if there are none.

mod room;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use futures_util::future::OptionFuture;
use statehold_core::command::{Command, Rejection};
use statehold_core::ids::{ItemId, RequestId, SessionId};
use statehold_core::limits::LEASE_MS;
use statehold_core::name::Name;
use statehold_core::request::{LiveStatus, OpenCall};
use statehold_core::time::Timestamp;

use self::room::ClaimRoom;
use crate::answer_memory::AnswerMemory;
use crate::caller::{Caller, Role};
use crate::commit::call::{Call, DecidedCommit};
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_any;
use crate::guard::credentials::{Credential, CredentialSource};
use crate::guard::rights::Act;
use crate::read::RequestDetail;
use crate::shares::{Share, Shares};

/// How many requests of a queue a worker with a pool of turns chooses from.
const LONG_PAGE: usize = 1_024;
/// How many requests of a queue one claim looks at. Further ones are claimed when these are.
const QUEUE_MAX: usize = 8 * LONG_PAGE;

/// A worker's claim.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The agent it works for.
    pub agent: Name,
    /// The maximum number of requests.
    pub max: usize,
    /// How long to wait for the first.
    pub wait: Duration,
    /// How long the lease lasts without a heartbeat.
    pub lease_ms: u64,
    /// Claim only this request.
    pub request: Option<RequestId>,
}

/// A request leased to the worker.
#[derive(Debug, Clone)]
pub struct ClaimedRequest {
    /// The request, with its decisions.
    pub detail: RequestDetail,
    /// How many of its holds are decided, if only the newest of them are there.
    pub decisions_total: Option<usize>,
    /// Its child requests, ended ones first.
    pub children: Vec<RequestDetail>,
    /// How many child requests it has started, if only the newest of them are there.
    pub children_total: Option<usize>,
    /// Tool calls without a result.
    pub calls: Vec<(ItemId, OpenCall)>,
    /// The private state that its agent continues from, for workers.
    pub task_state: Option<Vec<u8>>,
    /// Whether a pause or a restart dropped `temp:` values.
    pub temp_lost: bool,
    /// The credential that came with the request or answered one of its holds, while it is in memory.
    pub credential: Option<(Credential, CredentialSource)>,
    /// The configured credential of its agent.
    pub service_credential: Option<Credential>,
}

/// The turns that a claim takes for its requests before it claims them.
struct TurnShares<'a> {
    pool: &'a Shares,
    taken: HashMap<RequestId, Share>,
    /// Whether a request was left in the queue, because there was no turn for it.
    is_short: bool,
}

impl TurnShares<'_> {
    /// Takes a turn for a request.
    fn take(&mut self, engine: &Engine, request: RequestId) -> bool {
        let share = engine.take_turn(self.pool, request);
        self.is_short |= share.is_none();
        let has_turn = share.is_some();
        self.taken.extend(share.map(|share| (request, share)));
        has_turn
    }

    /// Sorts requests so that keys get turns in turn: first those of the key that has the fewest, and of one key the
    /// oldest first.
    fn sort(&self, engine: &Engine, queue: &mut VecDeque<(SessionId, RequestId)>) {
        let mut next = HashMap::new();
        let ranked = queue.drain(..).map(|(session, request)| {
            let party = engine.inner().starters.known_holder(request).in_turn();
            let next = next
                .entry(party)
                .or_insert_with(|| self.pool.used_by(party));
            *next += 1;
            (*next, (session, request))
        });
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by_key(|(rank, _)| *rank);
        queue.extend(ranked.into_iter().map(|(_, place)| place));
    }
}

/// The queue of an agent, read in pages.
#[derive(Default)]
struct QueuePages {
    page: VecDeque<(SessionId, RequestId)>,
    /// The last request that was read.
    after: Option<RequestId>,
    /// Whether that was the last one.
    is_read: bool,
    /// How many requests were read.
    seen: usize,
}

/// Fails unless the caller's key is for this agent.
pub(crate) fn require_works_for(caller: &Caller, agent: &Name) -> Result<(), EngineError> {
    if caller.works_for(agent) {
        return Ok(());
    }
    let agent = agent.to_string();
    Err(EngineError::WrongAgent { agent })
}

impl Engine {
    /// Claims requests of an agent for the caller, waiting for the first.
    ///
    /// # Errors
    ///
    /// If the caller may not work for the agent, or the lease is too short or too long.
    pub async fn claim(
        &self,
        caller: &Caller,
        claim: &Claim,
    ) -> Result<Vec<ClaimedRequest>, EngineError> {
        let never = std::future::pending();
        self.claim_until(caller, claim, never).await
    }

    /// Like [`Engine::claim`], but stops waiting when `enough` resolves. A claim in flight at that
    /// moment still completes and is returned, so no lease is left without a worker.
    ///
    /// # Errors
    ///
    /// As [`Engine::claim`].
    pub async fn claim_until(
        &self,
        caller: &Caller,
        claim: &Claim,
        enough: impl Future<Output = ()>,
    ) -> Result<Vec<ClaimedRequest>, EngineError> {
        self.claim_in(caller, claim, None, enough).await
    }

    /// Like [`Engine::claim_until`], for a worker with a pool of turns: each request takes its turn before it is claimed.
    /// The keys behind the requests get turns in turn, however many of one wait. A request without a turn stays in the
    /// queue, for others too.
    ///
    /// # Errors
    ///
    /// As [`Engine::claim`].
    pub async fn claim_turns(
        &self,
        caller: &Caller,
        claim: &Claim,
        turns: &Shares,
        enough: impl Future<Output = ()>,
    ) -> Result<Vec<(ClaimedRequest, Share)>, EngineError> {
        let mut shares = TurnShares {
            pool: turns,
            taken: HashMap::new(),
            is_short: false,
        };
        let claimed = self.claim_with(caller, claim, (None, Some(&mut shares)), enough);
        let claimed = claimed.await?.into_iter();
        let with_turns = claimed.filter_map(|one| {
            let request = one.detail.request.live()?.id;
            let share = shares.taken.remove(&request)?;
            Some((one, share))
        });
        Ok(with_turns.collect())
    }

    /// Like [`Engine::claim_until`]. With the memory for an answer, it claims only as many requests as fit one
    /// answer, one at least, and takes the memory for them first; decisions and children that do not fit are left
    /// out.
    pub(crate) async fn claim_in(
        &self,
        caller: &Caller,
        claim: &Claim,
        memory: Option<&dyn AnswerMemory>,
        enough: impl Future<Output = ()>,
    ) -> Result<Vec<ClaimedRequest>, EngineError> {
        self.claim_with(caller, claim, (memory, None), enough).await
    }

    async fn claim_with(
        &self,
        caller: &Caller,
        claim: &Claim,
        (memory, mut turns): (Option<&dyn AnswerMemory>, Option<&mut TurnShares<'_>>),
        enough: impl Future<Output = ()>,
    ) -> Result<Vec<ClaimedRequest>, EngineError> {
        require_any(caller, &[Role::Worker])?;
        require_works_for(caller, &claim.agent)?;
        // Validate before looking for work, so that the answer does not depend on the queue.
        if !LEASE_MS.contains(&claim.lease_ms) {
            let detail = "`lease_seconds` is 1 to 86400 (a day)".to_owned();
            return Err(EngineError::Invalid(detail));
        }
        let deadline = tokio::time::Instant::now() + claim.wait;
        let queue = self.inner().queue(&caller.tenant, &claim.agent);
        let mut enough = std::pin::pin!(enough);
        loop {
            // Subscribe before looking, so that no notification is missed.
            let mut news = std::pin::pin!(queue.notified());
            news.as_mut().enable();
            let pool = turns.as_ref().map(|turns| turns.pool);
            let given_back = OptionFuture::from(pool.map(Shares::given_back));
            let is_over = tokio::time::Instant::now() >= deadline;
            let now = self.claim_now(caller, claim, memory, turns.as_deref_mut());
            match now.await {
                // Wait for a named request that may become claimable.
                Err(EngineError::Rejected(Rejection::NotClaimable { .. })) if !is_over => {}
                Ok(found) if found.is_empty() && !is_over => {}
                other => return other,
            }
            let is_short = turns.as_mut().is_some_and(|turns| {
                // Other workers were faster.
                turns.taken.clear();
                turns.is_short
            });
            tokio::select! {
                () = news => {}
                _ = given_back, if is_short => {}
                () = tokio::time::sleep_until(deadline) => {}
                () = &mut enough => return Ok(Vec::new()),
                () = self.inner().stop.cancelled() => return Ok(Vec::new()),
            }
        }
    }

    async fn claim_now(
        &self,
        caller: &Caller,
        claim: &Claim,
        memory: Option<&dyn AnswerMemory>,
        mut turns: Option<&mut TurnShares<'_>>,
    ) -> Result<Vec<ClaimedRequest>, EngineError> {
        let store = &self.inner().store;
        if let Some(turns) = &mut turns {
            turns.is_short = false;
        }
        if let Some(request) = claim.request {
            let session = store.session_of_request(request).await?;
            let session = session.ok_or(EngineError::NotFound)?;
            self.require_agent(session, request, &claim.agent).await?;
            let mut room = ClaimRoom::new(memory);
            room.fit(self, caller, &mut vec![(session, request)])
                .await?;
            let claimed = self.claim_one(caller, (session, request), claim.lease_ms, &room);
            return Ok(claimed.await?.into_iter().collect());
        }
        // Other workers compete for the same requests: try a few more than needed. Damaged sessions stay in the
        // queue and do not count.
        let mut tries = 2 * claim.max + 8;
        let mut queue = QueuePages::default();
        let mut claimed = Vec::new();
        let mut room = ClaimRoom::new(memory);
        while claimed.len() < claim.max {
            let wanted = tries.min(claim.max - claimed.len());
            let of_queue = (&mut queue, turns.as_deref_mut());
            let batch = self.next_sound(of_queue, caller, claim, wanted).await;
            let fitting = match batch {
                Ok(mut batch) => room.fit(self, caller, &mut batch).await.map(|()| batch),
                Err(error) => Err(error),
            };
            let batch = match fitting {
                Ok(batch) if batch.is_empty() => break,
                Ok(batch) => batch,
                Err(error) if claimed.is_empty() => return Err(error),
                Err(_) => break,
            };
            // The claims are commits of different sessions, so they run concurrently.
            let claims = batch
                .iter()
                .map(|&place| self.claim_one(caller, place, claim.lease_ms, &room));
            let ended = futures_util::future::join_all(claims).await;
            let mut refused = None;
            for (one, (session, request)) in ended.into_iter().zip(batch) {
                match one {
                    Ok(Some(one)) => {
                        room.keep(request);
                        claimed.push(one);
                    }
                    Err(EngineError::Damaged(error)) => {
                        store.damage().note_unusable(session, error);
                        continue;
                    }
                    // Another worker was faster, or the caller may not claim it.
                    Ok(None) | Err(EngineError::Rejected(_) | EngineError::NotFound) => {}
                    Err(error) => refused = Some(error),
                }
                tries -= 1;
            }
            // An older request that does not fit is the first of the next claim.
            if room.is_full && refused.is_none() && !claimed.is_empty() {
                break;
            }
            match refused {
                // Return the requests claimed before the error: the worker has their leases.
                Some(error) if claimed.is_empty() => return Err(error),
                Some(_) => break,
                None => {}
            }
        }
        Ok(claimed)
    }

    /// The next requests in the queue of an agent whose sessions are sound, at most `wanted`. With a pool of turns,
    /// each has taken its turn.
    async fn next_sound(
        &self,
        (queue, mut turns): (&mut QueuePages, Option<&mut TurnShares<'_>>),
        caller: &Caller,
        claim: &Claim,
        wanted: usize,
    ) -> Result<Vec<(SessionId, RequestId)>, EngineError> {
        let store = &self.inner().store;
        let mut batch = Vec::new();
        while batch.len() < wanted {
            if queue.page.is_empty() && !queue.is_read {
                self.read_queue(queue, caller, claim, turns.is_some())
                    .await?;
                if let Some(turns) = &turns {
                    turns.sort(self, &mut queue.page);
                }
            }
            match queue.page.pop_front() {
                Some((session, _)) if store.damage().is_unusable(session) => {}
                Some((_, request))
                    if turns
                        .as_mut()
                        .is_some_and(|turns| !turns.take(self, request)) => {}
                Some(sound) => batch.push(sound),
                None => break,
            }
        }
        Ok(batch)
    }

    /// Reads the next page of a queue. A long one is a longer page, so that the requests of one key hide no others.
    async fn read_queue(
        &self,
        queue: &mut QueuePages,
        caller: &Caller,
        claim: &Claim,
        is_long: bool,
    ) -> Result<(), EngineError> {
        let limit = if is_long {
            LONG_PAGE
        } else {
            2 * claim.max + 8
        };
        let (tenant, agent) = (caller.tenant.clone(), claim.agent.clone());
        let store = &self.inner().store;
        let page = store.claimable(tenant, agent, caller.user, queue.after, limit);
        let page = page.await?;
        queue.seen += page.len();
        queue.is_read = page.len() < limit || queue.seen >= QUEUE_MAX;
        queue.after = page.last().map(|(_, request)| *request);
        queue.page = page.into();
        Ok(())
    }

    /// Fails if a named request belongs to another agent.
    async fn require_agent(
        &self,
        session: SessionId,
        request: RequestId,
        agent: &Name,
    ) -> Result<(), EngineError> {
        let state = self.durable_state(session).await?;
        match state.task_of(request) {
            Some(task) if task.agent != *agent => Err(EngineError::NotFound),
            _ => Ok(()),
        }
    }

    /// Claims one request. None if the server asks people first what a lost worker did.
    async fn claim_one(
        &self,
        caller: &Caller,
        (session, request): (SessionId, RequestId),
        ttl_ms: u64,
        room: &ClaimRoom<'_>,
    ) -> Result<Option<ClaimedRequest>, EngineError> {
        let call = Call::by(caller.clone());
        let command = Command::ClaimRequest { request, ttl_ms };
        let fence = |made: &DecidedCommit<'_>| {
            let live = made.after.requests.get(&request);
            let running = live.filter(|live| live.status == LiveStatus::Running);
            Some(running.map(|live| live.fence))
        };
        let write = SessionWrite::new(self, &call, session);
        let done = write.commit(&command, fence).await?;
        let Some(fence) = done.view else {
            return Ok(None);
        };
        if !room.is_bounded() {
            let claimed = self.leased_request(caller, session, request, fence);
            return claimed.await.map(Some);
        }
        let claimed = self.short_work_view(caller, session, request).await?;
        self.as_leased(caller, claimed, fence).map(Some)
    }

    /// A request that the caller has leased under `fence`, as a claim returns it.
    ///
    /// # Errors
    ///
    /// If the caller does not hold the lease, or the fence is stale because another worker has claimed
    /// the request since.
    pub async fn leased_request(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
        fence: u64,
    ) -> Result<ClaimedRequest, EngineError> {
        let state = self.durable_state(session).await?;
        let live = state.requests.get(&request);
        // The first worker of a request finds no children: skip the query.
        let begun = if live.is_some_and(|live| live.fence == 1) {
            Vec::new()
        } else {
            self.inner().store.children_of(request).await?
        };
        let claimed = self.work_view(caller, session, request, begun).await?;
        self.as_leased(caller, claimed, fence)
    }

    /// The same with its credentials, if the caller has leased it under `fence`.
    fn as_leased(
        &self,
        caller: &Caller,
        mut claimed: ClaimedRequest,
        fence: u64,
    ) -> Result<ClaimedRequest, EngineError> {
        let request = claimed.detail.request.id();
        let lease = claimed.detail.request.live().and_then(|live| live.lease);
        if lease.map(|lease| lease.worker) != Some(caller.principal) {
            return Err(Rejection::NotLeaseHolder.into());
        }
        let current = claimed.detail.request.live().map_or(0, |live| live.fence);
        if current != fence {
            let shown = fence;
            return Err(Rejection::StaleFence { shown, current }.into());
        }
        let credentials = &self.inner().credentials;
        claimed.credential = credentials.take(request);
        claimed.service_credential = credentials.of_service(&claimed.detail.task.agent);
        Ok(claimed)
    }

    /// A request as its worker sees it, with its child requests `begun`, without credentials.
    pub(crate) async fn work_view(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
        begun: Vec<RequestId>,
    ) -> Result<ClaimedRequest, EngineError> {
        let summary = self.inner().store.session(session).await?;
        let summary = summary.ok_or(EngineError::NotFound)?;
        let mut detail = self
            .request_detail(caller, summary.clone(), request)
            .await?;
        self.open_for_worker(&mut detail.holds);
        let mut children = Vec::new();
        for child in begun {
            children.push(self.request_detail(caller, summary.clone(), child).await?);
        }
        self.worked_on(detail, children).await
    }

    /// A request with its children as its worker sees it, without credentials.
    async fn worked_on(
        &self,
        detail: RequestDetail,
        children: Vec<RequestDetail>,
    ) -> Result<ClaimedRequest, EngineError> {
        let calls = detail
            .request
            .live()
            .into_iter()
            .flat_map(|live| &live.calls);
        let calls = calls.map(|(id, call)| (*id, call.clone())).collect();
        let temp_lost = self.has_lost_temp(&detail).await?;
        Ok(ClaimedRequest {
            detail,
            decisions_total: None,
            children,
            children_total: None,
            calls,
            task_state: None,
            temp_lost,
            credential: None,
            service_credential: None,
        })
    }

    /// Whether `temp:` values of the request's root may be gone.
    async fn has_lost_temp(&self, detail: &RequestDetail) -> Result<bool, EngineError> {
        let Some(live) = detail.request.live() else {
            return Ok(false);
        };
        let state = self.durable_state(detail.session.id).await?;
        let root = state.root_of(live.id);
        let started = detail.started.as_ref();
        let started_at = started.map(|stored| stored.record.content.at);
        // A restart drops all values in memory.
        let is_older = started_at.is_some_and(|at| at < self.inner().started_at);
        Ok(self.inner().temps.is_lost(root) || is_older && live.fence > 1)
    }

    /// Extends a lease in memory. Nothing is committed.
    ///
    /// # Errors
    ///
    /// If the fence is stale, or the caller does not hold the lease.
    pub async fn heartbeat(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
        fence: u64,
    ) -> Result<(LiveStatus, Timestamp), EngineError> {
        self.authorise(caller, session, &Act::WorkOn(request))
            .await?;
        let state = self.durable_state(session).await?;
        let Some(live) = state.requests.get(&request) else {
            let ended = self.inner().store.ended_request(request).await?;
            return Err(match ended {
                Some(ended) => Rejection::RequestEnded {
                    request,
                    outcome: ended.outcome,
                }
                .into(),
                None => EngineError::NotFound,
            });
        };
        if live.fence != fence {
            let current = live.fence;
            let shown = fence;
            return Err(Rejection::StaleFence { shown, current }.into());
        }
        let Some(lease) = live.lease.filter(|_| live.status != LiveStatus::Queued) else {
            return Err(Rejection::NotLeased { request }.into());
        };
        if lease.worker != caller.principal {
            return Err(Rejection::NotLeaseHolder.into());
        }
        let until = self.inner().time_of(session).plus_ms(lease.ttl_ms);
        self.inner().heartbeats.lock().insert(request, until);
        Ok((live.status, until))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use statehold_store::memory::MemoryStore;

    use super::*;
    use crate::engine::EngineOptions;
    use crate::ports::{MemoryKeys, SystemClock};

    async fn engine() -> Result<Engine, EngineError> {
        let (store, keys) = (MemoryStore::new(), MemoryKeys::default());
        let clock = Arc::new(SystemClock);
        Engine::start(
            Arc::new(store),
            Arc::new(keys),
            clock,
            EngineOptions::default(),
        )
        .await
    }

    #[tokio::test]
    async fn a_lease_out_of_bounds_is_refused_also_when_there_is_no_work() -> Result<(), EngineError>
    {
        let engine = engine().await?;
        let name = |text: &str| text.parse::<Name>().expect("this is a name");
        let caller = Caller::local(name("default"));
        for (lease_ms, is_taken) in [
            (999, false),
            (*LEASE_MS.start(), true),
            (*LEASE_MS.end(), true),
            (*LEASE_MS.end() + 1, false),
        ] {
            let claim = Claim {
                agent: name("a"),
                max: 1,
                wait: Duration::ZERO,
                lease_ms,
                request: None,
            };
            let claimed = engine.claim(&caller, &claim).await;
            assert_eq!(claimed.is_ok(), is_taken, "{lease_ms}");
        }
        engine.shut_down().await;
        Ok(())
    }
}
