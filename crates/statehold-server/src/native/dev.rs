//! What only a development server does, and only when it is told to: its clock can be moved.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use statehold_engine::{EngineError, Role};

use super::{About, shown};
use crate::http::call::{App, CallContext, Payload};
use crate::http::problem::Problem;
use statehold_engine::api::json::Time;

/// Where the clock is.
pub(crate) const CLOCK_PATH: &str = "/v1/dev/clock";

/// How far to move the clock.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockIn {
    /// Forwards, or back if negative; 0 only asks.
    step_seconds: i64,
}

/// What time the server thinks it is.
#[derive(Debug, Serialize)]
struct ClockOut {
    /// How far it is ahead of the machine.
    offset_seconds: i64,
    now: String,
}

/// Moves the clock. What is due by the new time has happened when the answer leaves.
pub(crate) async fn clock(
    State(app): State<App>,
    asked: CallContext,
    body: Payload<ClockIn>,
) -> Result<Response, Problem> {
    let clock = app.options.clock.as_ref().ok_or_else(Problem::not_found)?;
    if !asked.caller.has(Role::Admin) {
        let needs = Role::Admin;
        return Err(EngineError::Forbidden { needs }.into());
    }
    let offset_seconds = clock.step(body.value.step_seconds);
    app.engine.run_timers(true).await?;
    let out = ClockOut {
        offset_seconds,
        now: Time(app.engine.now()).to_string(),
    };
    Ok(shown(&out, &About::default()))
}
