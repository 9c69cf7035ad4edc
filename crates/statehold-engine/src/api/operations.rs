//! Operations: readiness, numbers for operators, the clock of a development server.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use serde::Serialize;
use statehold_store::DamageCounts;

use super::json::Time;
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::{require_admin, require_any};
use crate::ports::OffsetClock;

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
    Ok(ClockView {
        offset_seconds,
        now: engine.now().into(),
    })
}

/// Checks that the store answers and accepts writes; returns how much damage reads have met. Everything else
/// goes on.
///
/// # Errors
///
/// If the store fails, or the disk is full.
pub async fn ready(engine: &Engine) -> Result<DamageCounts, EngineError> {
    let inner = engine.inner();
    inner.store.last_place().await?;
    if inner.is_full.load(Ordering::Relaxed) {
        return Err(EngineError::Full);
    }
    Ok(inner.store.damage().counts())
}

/// Numbers for operators.
#[derive(Debug, Clone)]
pub struct EngineCounts {
    /// Sessions that are in memory.
    pub hot: usize,
    /// Damage that reads have met.
    pub damaged: DamageCounts,
    /// How often each rule has redacted something that was to be stored.
    pub redactions: BTreeMap<String, u64>,
}

/// Counts what operators watch.
///
/// # Errors
///
/// If the caller is not an operator.
pub fn counts(engine: &Engine, caller: &Caller) -> Result<EngineCounts, EngineError> {
    require_any(caller, &[Role::Operator, Role::Admin])?;
    Ok(EngineCounts {
        hot: engine.hot_sessions(),
        damaged: engine.inner().store.damage().counts(),
        redactions: engine.inner().redactions.all(),
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
