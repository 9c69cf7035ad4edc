//! Handing out work: a worker asks for requests of its agent, and waits if there are none.

use std::sync::Arc;
use std::time::Duration;

use statehold_core::command::{Command, Rejection};
use statehold_core::ids::{ItemId, RequestId, SessionId};
use statehold_core::limits::LEASE_MS;
use statehold_core::name::Name;
use statehold_core::request::{LiveStatus, OpenCall};
use statehold_core::time::Timestamp;

use crate::access::require_any;
use crate::caller::{Caller, Role};
use crate::credentials::{Credential, CredentialSource};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::mailbox::{Call, Committed, Reply};
use crate::read::RequestDetail;
use crate::rights::Act;

/// What a worker asks for.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The agent it works for.
    pub agent: Name,
    /// At most so many requests.
    pub max: usize,
    /// How long to wait for the first.
    pub wait: Duration,
    /// How long the lease lasts without a heartbeat.
    pub lease_ms: u64,
    /// Only this request.
    pub request: Option<RequestId>,
}

/// A request that now belongs to the worker.
#[derive(Debug, Clone)]
pub struct ClaimedRequest {
    /// The request, with its decisions.
    pub detail: RequestDetail,
    /// The requests it had started, those that have ended first.
    pub children: Vec<RequestDetail>,
    /// Tool calls without a result.
    pub calls: Vec<(ItemId, OpenCall)>,
    /// Whether `temp:` values were lost in a pause or a restart.
    pub temp_lost: bool,
    /// What came with it, or was answered to a hold of it, as long as it is there.
    pub credential: Option<(Credential, CredentialSource)>,
    /// What the configuration gives its agent.
    pub service_credential: Option<Credential>,
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

    /// The same for somebody who may stop waiting. What is being claimed by then is theirs all the same,
    /// and they hear of it: nothing is left in the hands of nobody.
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
        require_any(caller, &[Role::Worker])?;
        if !caller.works_for(&claim.agent) {
            let agent = claim.agent.to_string();
            return Err(EngineError::WrongAgent { agent });
        }
        // The answer must not depend on whether there is work just now.
        if !LEASE_MS.contains(&claim.lease_ms) {
            let detail = "`lease_seconds` is 1 to 86400 (a day)".to_owned();
            return Err(EngineError::Invalid(detail));
        }
        let deadline = tokio::time::Instant::now() + claim.wait;
        let queue = self.inner().queue(&caller.tenant, &claim.agent);
        let mut enough = std::pin::pin!(enough);
        loop {
            // Listening begins before looking, so that nothing is missed in between.
            let mut news = std::pin::pin!(queue.notified());
            news.as_mut().enable();
            let is_over = tokio::time::Instant::now() >= deadline;
            match self.claim_now(caller, claim).await {
                // One that was named and may still come free is waited for.
                Err(EngineError::Rejected(Rejection::NotClaimable { .. })) if !is_over => {}
                Ok(found) if found.is_empty() && !is_over => {}
                other => return other,
            }
            tokio::select! {
                () = news => {}
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
    ) -> Result<Vec<ClaimedRequest>, EngineError> {
        let store = &self.inner().store;
        let candidates = if let Some(request) = claim.request {
            let session = store.session_of_request(request).await?;
            let session = session.ok_or(EngineError::NotFound)?;
            self.require_agent(session, request, &claim.agent).await?;
            vec![(session, request)]
        } else {
            let (tenant, agent) = (caller.tenant.clone(), claim.agent.clone());
            // Other workers want them too: look at a few more than are needed.
            let user = caller.user;
            store
                .claimable(tenant, agent, user, 2 * claim.max + 8)
                .await?
        };
        let mut candidates = candidates.into_iter();
        let mut claimed = Vec::new();
        let mut refused = None;
        while claimed.len() < claim.max {
            let wanted = claim.max - claimed.len();
            let batch: Vec<_> = candidates.by_ref().take(wanted).collect();
            if batch.is_empty() {
                break;
            }
            // Each is a commit of another session: together they take as long as one.
            let claims = batch
                .into_iter()
                .map(|(session, request)| self.claim_one(caller, session, request, claim.lease_ms));
            for one in futures_util::future::join_all(claims).await {
                match one {
                    Ok(one) => claimed.extend(one),
                    // Somebody was faster, or it is not this caller's.
                    Err(EngineError::Rejected(_) | EngineError::NotFound)
                        if claim.request.is_none() => {}
                    Err(error) => refused = Some(error),
                }
            }
            if refused.is_some() {
                break;
            }
        }
        match refused {
            // What was claimed is the worker's: it must learn of it.
            Some(error) if claimed.is_empty() => Err(error),
            _ => Ok(claimed),
        }
    }

    /// A request that is named must be the agent's.
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

    /// Claims one request. None if people are asked first what a lost worker did.
    async fn claim_one(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
        ttl_ms: u64,
    ) -> Result<Option<ClaimedRequest>, EngineError> {
        let command = Command::ClaimRequest { request, ttl_ms };
        let payloads = self.no_payloads();
        let reply: Reply = Arc::new(move |done: &Committed<'_>| {
            let live = done.after.requests.get(&request);
            let live = live.filter(|live| live.status == LiveStatus::Running);
            live.map_or_else(Vec::new, |live| live.fence.to_be_bytes().to_vec())
        });
        let call = Call::by(caller.clone());
        let done = self
            .submit(session, &call, &command, &payloads, &reply)
            .await?;
        let Ok(fence) = done.body.try_into() else {
            return Ok(None);
        };
        let fence = u64::from_be_bytes(fence);
        let claimed = self.handed_over(caller, session, request, fence).await?;
        Ok(Some(claimed))
    }

    /// A request that was leased under a fence, as whoever has the lease would get it by claim.
    ///
    /// # Errors
    ///
    /// If the caller does not hold it, or not under that fence any more: whoever claimed it since has it.
    pub async fn handed_over(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
        fence: u64,
    ) -> Result<ClaimedRequest, EngineError> {
        let state = self.durable_state(session).await?;
        let live = state.requests.get(&request);
        // Whoever is the first to have it finds that nobody has begun anything.
        let begun = if live.is_some_and(|live| live.fence == 1) {
            Vec::new()
        } else {
            self.inner().store.children_of(request).await?
        };
        let view = self.work_view_with(caller, session, request, begun);
        let mut claimed = view.await?;
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

    /// A request as its worker sees it, without credentials.
    pub(crate) async fn work_view(
        &self,
        caller: &Caller,
        session: SessionId,
        request: RequestId,
    ) -> Result<ClaimedRequest, EngineError> {
        let begun = self.inner().store.children_of(request).await?;
        self.work_view_with(caller, session, request, begun).await
    }

    async fn work_view_with(
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
        let calls = detail
            .request
            .live()
            .into_iter()
            .flat_map(|live| &live.calls);
        let calls = calls.map(|(id, call)| (*id, call.clone())).collect();
        let temp_lost = self.has_lost_temp(&detail).await?;
        Ok(ClaimedRequest {
            detail,
            children,
            calls,
            temp_lost,
            credential: None,
            service_credential: None,
        })
    }

    /// Whether values that the request may have had around it are gone.
    async fn has_lost_temp(&self, detail: &RequestDetail) -> Result<bool, EngineError> {
        let Some(live) = detail.request.live() else {
            return Ok(false);
        };
        let state = self.durable_state(detail.session.id).await?;
        let mut root = live.id;
        while let Some(above) = state.requests.get(&root).and_then(|live| live.parent) {
            root = above;
        }
        let started = detail.started.as_ref();
        let started_at = started.map(|stored| stored.record.content.at);
        // What was in memory before a restart is gone, whatever it was.
        let is_older = started_at.is_some_and(|at| at < self.inner().started_at);
        Ok(self.inner().temps.is_lost(root) || is_older && live.fence > 1)
    }

    /// Keeps a lease alive. Soft state: nothing is committed.
    ///
    /// # Errors
    ///
    /// If the caller does not hold the fence.
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
        let until = self.inner().clock.now().plus_ms(lease.ttl_ms);
        self.inner().heartbeats().insert(request, until);
        Ok((live.status, until))
    }
}

#[cfg(test)]
mod tests {
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
