//! The movable clock of a development server. It exists only if the server is started with it.

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use statehold_engine::{EngineError, Role};

use super::{AnswerHeaders, shown};
use crate::http::call::{App, CallContext, Payload};
use crate::http::problem::Problem;
use statehold_engine::api::json::Time;

/// The path of the clock.
pub(crate) const CLOCK_PATH: &str = "/v1/dev/clock";

/// How far to move the clock.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockIn {
    /// Seconds to move forward, or back if negative; 0 only reads the clock.
    step_seconds: i64,
}

/// The current time of the server.
#[derive(Debug, Serialize)]
struct ClockOut {
    /// How far the clock is ahead of the machine.
    offset_seconds: i64,
    now: String,
}

/// Moves the clock. All timers due by the new time run before the answer is sent.
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
    Ok(shown(&out, &AnswerHeaders::default()))
}
