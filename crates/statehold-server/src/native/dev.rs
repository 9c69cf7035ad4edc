//! The movable clock of a development server. It exists only if the server is started with it.

use serde::Deserialize;
use statehold_engine::api;

use super::{Answer, plain};
use crate::http::body::Payload;
use crate::http::call::CallContext;
use crate::http::problem::Problem;

/// The path of the clock.
pub(crate) const CLOCK_PATH: &str = "/v1/dev/clock";

/// How far to move the clock.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClockIn {
    /// Seconds to move forward, or back if negative; 0 only reads the clock.
    step_seconds: i64,
}

/// Moves the clock. All timers due by the new time run before the answer is sent.
pub(crate) async fn clock(context: CallContext, body: Payload<ClockIn>) -> Answer {
    let (engine, caller) = (context.engine(), &context.caller);
    let clock = context.app.options.clock.as_ref();
    let clock = clock.ok_or_else(Problem::not_found)?;
    let moved = api::operations::step_clock(engine, caller, clock, body.value.step_seconds);
    Ok(plain(&moved.await?))
}
