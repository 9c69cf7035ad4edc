//! Operations: readiness, numbers for operators, the clock of a development server.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;
use statehold_store::{DamageCounts, StoreError, StoreMeasures, WorkTotals};

use super::json::Time;
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::{require_admin, require_any};
use crate::measures::{EndedCounts, Peer, PeerCounts};
use crate::ports::OffsetClock;

/// How long operators wait for the store: a server that hangs has to say so.
const STORE_WAIT_MAX: Duration = Duration::from_secs(5);
/// How many agents with queued requests are counted apart.
const COUNTED_AGENTS_MAX: usize = 1_000;

/// How often the store is asked for room while the disk is full. Checks of readiness need no key.
const ROOM_CHECK_MICROS: u64 = 1_000_000;

/// The time of a development server.
#[derive(Debug, Serialize)]
pub struct ClockView {
    /// How far the clock is ahead of the machine.
    pub offset_seconds: i64,
    /// The time after the step.
    pub now: Time,
}

/// Moves the clock of a development server. All timers due by the new time run first.
///
/// # Errors
///
/// If the caller is not an admin, or the store fails.
pub async fn step_clock(
    engine: &Engine,
    caller: &Caller,
    clock: &OffsetClock,
    step_seconds: i64,
) -> Result<ClockView, EngineError> {
    require_admin(caller)?;
    let offset_seconds = clock.step(step_seconds);
    engine.run_timers(true).await?;
    engine.erase_payloads().await?;
    Ok(ClockView {
        offset_seconds,
        now: engine.now().into(),
    })
}

/// Whether the server can do its work, check by check.
#[derive(Debug)]
pub struct Readiness {
    /// Whether the store answers reads.
    pub store: Result<(), EngineError>,
    /// Whether the last write found the disk full, and there is still no room.
    pub is_full: bool,
    /// Whether the server takes no new work, because it stops.
    pub is_stopping: bool,
    /// Damage that reads have met. Everything else goes on.
    pub damaged: DamageCounts,
}

impl Readiness {
    /// The damage, if the server can do its work otherwise.
    ///
    /// # Errors
    ///
    /// The first check that failed.
    pub fn require(self) -> Result<DamageCounts, EngineError> {
        if self.is_stopping {
            return Err(EngineError::Stopping);
        }
        if self.is_full {
            return Err(EngineError::Full);
        }
        self.store.map(|()| self.damaged)
    }
}

/// Whether the disk is full. A write that did not fit counts only while there is no room: a load
/// balancer that takes a full server out sends it no write that could find out.
async fn find_full(engine: &Engine) -> bool {
    let inner = engine.inner();
    if !inner.is_full.load(Ordering::Relaxed) {
        return false;
    }
    let now = inner.clock.now().as_micros();
    let last = inner.room_checked.load(Ordering::Relaxed);
    let is_due = now.saturating_sub(last).unsigned_abs() >= ROOM_CHECK_MICROS;
    let order = Ordering::Relaxed;
    if is_due
        && inner
            .room_checked
            .compare_exchange(last, now, order, order)
            .is_ok()
    {
        let store = Arc::clone(&inner.store);
        let checked = tokio::task::spawn_blocking(move || store.check_room()).await;
        if matches!(checked, Ok(Ok(()))) {
            inner.is_full.store(false, order);
        }
    }
    inner.is_full.load(order)
}

/// Checks whether the server can do its work.
pub async fn ready(engine: &Engine) -> Readiness {
    let inner = engine.inner();
    let read = tokio::time::timeout(STORE_WAIT_MAX, inner.store.last_place()).await;
    let store = match read {
        Ok(read) => read.map(drop).map_err(EngineError::from),
        Err(late) => Err(EngineError::from(StoreError::Unavailable(late.into()))),
    };
    Readiness {
        store,
        is_full: find_full(engine).await,
        is_stopping: inner.stop.is_cancelled(),
        damaged: inner.store.damage().counts(),
    }
}

/// Numbers for operators.
#[derive(Debug, Clone)]
pub struct EngineCounts {
    /// When they were counted.
    pub now: Timestamp,
    /// Sessions that are in memory.
    pub hot: usize,
    /// Damage that reads have met.
    pub damaged: DamageCounts,
    /// How often each rule has redacted something that was to be stored.
    pub redactions: BTreeMap<String, u64>,
    /// Open holds and queued requests. None if the store does not answer: the other numbers say why.
    pub work: Option<WorkTotals>,
    /// Times of commits and sizes of files.
    pub store: StoreMeasures,
    /// Whether the last write found the disk full, and there is still no room.
    pub is_full: bool,
    /// How many leases ended without a heartbeat.
    pub leases_lapsed: u64,
    /// Requests that ended, by agent.
    pub ended: BTreeMap<Name, EndedCounts>,
    /// Calls to other services.
    pub calls: BTreeMap<(Peer, Name), PeerCounts>,
    /// The agents that a policy names.
    pub policy_agents: BTreeSet<Name>,
}

/// Counts what operators watch.
///
/// # Errors
///
/// If the caller is not an operator.
pub async fn counts(engine: &Engine, caller: &Caller) -> Result<EngineCounts, EngineError> {
    require_any(caller, &[Role::Operator, Role::Admin])?;
    let inner = engine.inner();
    let work = inner
        .store
        .work_totals(caller.tenant.clone(), COUNTED_AGENTS_MAX);
    let work = tokio::time::timeout(STORE_WAIT_MAX, work).await;
    let measures = engine.measures();
    Ok(EngineCounts {
        now: inner.clock.now(),
        hot: engine.hot_sessions(),
        damaged: inner.store.damage().counts(),
        redactions: inner.redactions.all(),
        work: work.ok().and_then(Result::ok),
        store: inner.store.measures(),
        is_full: find_full(engine).await,
        leases_lapsed: measures.leases_lapsed(),
        ended: measures.ended(),
        calls: measures.calls(),
        policy_agents: engine.policies().agents.keys().cloned().collect(),
    })
}

/// Authorises the caller to reload the configuration, which the server reads itself.
///
/// # Errors
///
/// If the caller is not an admin.
pub fn require_reload(caller: &Caller) -> Result<(), EngineError> {
    require_admin(caller)
}
