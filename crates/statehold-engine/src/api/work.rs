//! Work: claims of requests by workers.

mod credential;
mod pushed;

use std::time::Duration;

use super::request::{ClaimInput, ClaimView, RequestView, agent_name, require_worker_note};
use crate::answer_memory::AnswerMemory;
use crate::caller::{Caller, Role};
use crate::claim::{Claim, require_works_for};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::access::require_any;

pub use credential::CredentialView;
pub use pushed::pushed_body;

/// The longest wait of a claim or a read, in seconds.
pub const WAIT_SECONDS_MAX: u64 = 60;
/// Default duration of a lease, in seconds.
const LEASE_SECONDS_DEFAULT: u64 = 60;

/// Claims requests of an agent, and waits for the first. It claims fewer if their payloads do not fit one answer, and
/// takes the memory for them first.
///
/// # Errors
///
/// If the caller may not work for the agent, the input is out of bounds, or there is no memory in time; nothing is
/// claimed then.
pub async fn claim(
    engine: &Engine,
    caller: &Caller,
    input: ClaimInput,
    memory: &dyn AnswerMemory,
) -> Result<ClaimView, EngineError> {
    require_any(caller, &[Role::Worker])?;
    let agent = agent_name(&input.agent)?;
    require_works_for(caller, &agent)?;
    require_worker_note(input.worker.as_deref())?;
    let max = input.max.unwrap_or(1);
    let wait = input.wait_seconds.unwrap_or(0);
    if !(1..=100).contains(&max) || wait > WAIT_SECONDS_MAX {
        let detail = "`max` is 1 to 100, and `wait_seconds` at most 60";
        return Err(EngineError::Invalid(detail.to_owned()));
    }
    let lease = input.lease_seconds.unwrap_or(LEASE_SECONDS_DEFAULT);
    let claim = Claim {
        agent,
        max,
        wait: Duration::from_secs(wait),
        lease_ms: lease.saturating_mul(1_000),
        request: input.request_id,
    };
    let mut claimed = engine
        .claim_in(caller, &claim, Some(memory), std::future::pending())
        .await?;
    for one in &mut claimed {
        let (session, request) = (one.detail.session.id, one.detail.request.id());
        one.task_state = engine.task_state_for(session, request).await?;
    }
    Ok(ClaimView {
        requests: claimed.iter().map(RequestView::of_claim).collect(),
    })
}
