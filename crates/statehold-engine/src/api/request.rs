//! Requests: start, read, append items, end.

mod input;
mod view;

use std::time::Duration;

use serde::de::DeserializeOwned;
use statehold_core::command::{Command, Fenced, StartRequest, StatePatch};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::scope::Scope;

use super::item::write::{first_items, message, names_recorded_calls, next_items};
use super::item::{ItemInput, ItemRef};
use super::state::StatePatchInput;
use crate::answer_memory::AnswerMemory;
use crate::bodies::{ItemBody, parse};
use crate::caller::Caller;
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::Credential;
use crate::guard::rights::{self, Act};
use crate::read::RequestHolds;

pub use input::{
    AppendInput, ClaimInput, CompleteInput, EmptyInput, FailInput, HeartbeatInput, LeaseInput,
    ReleaseInput, StartInput,
};
pub use view::{CallProgress, CallView, ClaimView, HeartbeatView, ItemsWritten, RequestView};

/// The longest note about a worker, in bytes.
const WORKER_BYTES_MAX: usize = 256;

/// Starts a request to an agent. With lease, items, state and output it is a whole turn in one commit.
///
/// # Errors
///
/// If the caller may not, the input is malformed, or the core refuses.
pub async fn start(
    engine: &Engine,
    call: &Call,
    session: SessionId,
    input: StartInput,
    credential: Option<&Credential>,
) -> Result<Receipt<RequestView>, EngineError> {
    let named = input.agent.as_deref().map(agent_name).transpose()?;
    let leased = input.lease.is_some();
    let act = match input.parent_request_id {
        Some(parent) => Act::StartBelow(parent, named.clone().filter(|_| leased)),
        None if leased => Act::StartLeased(named.clone()),
        None => Act::Start,
    };
    let (mut write, owner) = SessionWrite::authorised(engine, call, session, &act).await?;
    write.credential = credential;
    let agent = match named {
        Some(named) => named,
        None if leased && !call.caller.works_for(&owner.agent) => {
            return Err(EngineError::WrongSessionAgent);
        }
        None => owner.agent,
    };
    let agent_view = act != Act::Start;
    let command = start_command(&mut write, agent, input)?;
    let view = |made: &DecidedCommit<'_>| {
        let started = made.record.content.started_request()?;
        RequestView::of_commit(made, started, agent_view)
    };
    write.commit(&command, view).await
}

fn start_command(
    write: &mut SessionWrite<'_>,
    agent: Name,
    input: StartInput,
) -> Result<Command, EngineError> {
    let had_credential = write.credential.is_some();
    let payloads = &mut write.payloads;
    payloads.redact_by(write.engine.redaction_for(&agent));
    let asked = message(&input.input, "input", had_credential, payloads)?;
    let output = input.output.as_ref();
    let output = output.map(|output| message(output, "output", false, payloads));
    let output = output.transpose()?;
    let parent = match (input.parent_request_id, input.parent_fence) {
        (Some(request), Some(fence)) => Some(Fenced { request, fence }),
        (None, None) => None,
        _ => {
            let detail = "`parent_request_id` and `parent_fence` go together";
            return Err(EngineError::invalid("parent_fence", detail));
        }
    };
    if let Some(lease) = &input.lease {
        require_worker_note(lease.worker.as_deref())?;
    }
    let mut items = first_items(input.items, payloads)?;
    write.engine.hide_gated(&agent, &mut items, payloads);
    let state = state_patch(write.engine, input.state, payloads)?;
    let close_on = write.engine.policies().close_on(&agent, input.close_on);
    Ok(Command::StartRequest(StartRequest {
        chat: None,
        continues: None,
        agent,
        task: input.task_id,
        parent,
        input: asked.body,
        attachments: asked.attachments,
        close_on,
        lease_ttl_ms: input
            .lease
            .map(|lease| lease.ttl_seconds.saturating_mul(1_000)),
        items,
        state,
        output,
    }))
}

/// Parses the name of an agent. Names with the prefix `statehold.` are reserved for the server.
pub(crate) fn agent_name(text: &str) -> Result<Name, EngineError> {
    if text.starts_with("statehold.") {
        let detail = "`agent`: names that begin with `statehold.` are the server's own";
        return Err(EngineError::invalid("agent", detail));
    }
    parse_name(text, "agent")
}

/// Parses a name at `path`.
pub(crate) fn parse_name(text: &str, path: &str) -> Result<Name, EngineError> {
    text.parse()
        .map_err(|error| EngineError::invalid(path, format!("`{path}`: {error}")))
}

/// Checks the length of the note that names a worker.
pub(crate) fn require_worker_note(note: Option<&str>) -> Result<(), EngineError> {
    match note {
        Some(note) if note.len() > WORKER_BYTES_MAX => Err(EngineError::Invalid(
            "`worker` has at most 256 bytes".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// The state that goes with a request. Values are merged when the command is committed.
fn state_patch(
    engine: &Engine,
    input: Option<StatePatchInput>,
    payloads: &mut Payloads,
) -> Result<StatePatch, EngineError> {
    let Some(input) = input else {
        return Ok(StatePatch::default());
    };
    let writes = input.parse(None)?;
    if writes.touches(Scope::Temp) {
        return Err(EngineError::bad_state(
            "`temp:` keys are written with PATCH …/state, with `request_id` and `fence`",
        ));
    }
    Ok(writes.into_core(&engine.policies().state, payloads))
}

/// The receipt of the same call made before, if `items` name calls by the caller's own ids: a repeat is
/// answered before they are looked up, because the request may have ended since.
pub(crate) async fn repeated<V: DeserializeOwned>(
    write: &SessionWrite<'_>,
    items: &[ItemInput],
) -> Result<Option<Receipt<V>>, EngineError> {
    match write.call.key.filter(|_| names_recorded_calls(items)) {
        Some(key) => write.engine.kept_receipt(key).await,
        None => Ok(None),
    }
}

/// Appends items and state to the history of a request's task.
///
/// # Errors
///
/// If the caller may not, the input is malformed, or the core refuses.
pub async fn append(
    engine: &Engine,
    call: &Call,
    request: RequestId,
    input: AppendInput,
) -> Result<Receipt<ItemsWritten>, EngineError> {
    let mut write = SessionWrite::to_request(engine, call, request).await?;
    if let Some(receipt) = repeated(&write, &input.items).await? {
        return Ok(receipt);
    }
    let items = next_items(&mut write, request, input.items).await?;
    let state = state_patch(write.engine, input.state, &mut write.payloads)?;
    let task_state = input
        .task_state
        .map(|state| write.payloads.put_opaque(state.get().into()));
    if items.is_empty() && state.is_empty() && task_state.is_none() {
        return Err(EngineError::NothingToAppend);
    }
    let fence = input.fence;
    let command = Command::AppendItems {
        by: Fenced { request, fence },
        items,
        state,
        task_state,
    };
    write
        .commit(&command, |made| Some(items_written(made)))
        .await
}

fn items_written(made: &DecidedCommit<'_>) -> ItemsWritten {
    let content = &made.record.content;
    let items = content.events.iter().filter_map(|event| match event {
        Event::ItemsAppended { items, .. } => Some(items),
        _ => None,
    });
    let refs = items.flatten().map(|item| {
        let body: ItemBody = parse(made.payload(&item.body));
        ItemRef {
            id: item.id,
            seq: item.seq,
            call_id: body.call_id,
        }
    });
    ItemsWritten {
        items: refs.collect(),
        revision: content.seq,
    }
}

/// Ends a request with its answer.
///
/// # Errors
///
/// If the caller may not, the input is malformed, or the core refuses.
pub async fn complete(
    engine: &Engine,
    call: &Call,
    request: RequestId,
    input: CompleteInput,
) -> Result<Receipt<RequestView>, EngineError> {
    let mut write = SessionWrite::to_request(engine, call, request).await?;
    if let Some(receipt) = repeated(&write, &input.items).await? {
        return Ok(receipt);
    }
    let output = message(&input.output, "output", false, &mut write.payloads)?;
    let items = next_items(&mut write, request, input.items).await?;
    let payloads = &mut write.payloads;
    let state = state_patch(write.engine, input.state, payloads)?;
    let fence = input.fence;
    let command = Command::CompleteRequest {
        by: Fenced { request, fence },
        output,
        items,
        state,
        task_state: input
            .task_state
            .map(|state| payloads.put_opaque(state.get().into())),
        close_task: input.close_task,
        cancel_children: input.cancel_children,
    };
    write
        .commit(&command, |made| RequestView::of_commit(made, request, true))
        .await
}

/// Ends a request with an error.
///
/// # Errors
///
/// If the caller may not, or the core refuses.
pub async fn fail(
    engine: &Engine,
    call: &Call,
    request: RequestId,
    input: FailInput,
) -> Result<Receipt<RequestView>, EngineError> {
    let mut write = SessionWrite::to_request(engine, call, request).await?;
    let fence = input.fence;
    let command = Command::FailRequest {
        by: Fenced { request, fence },
        error: write.payloads.put_json(&input.error),
        cancel_children: input.cancel_children,
    };
    write
        .commit(&command, |made| RequestView::of_commit(made, request, true))
        .await
}

/// Releases a lease. The next claim gets the decisions and child results that the request waits for.
///
/// # Errors
///
/// If the caller may not, or the core refuses.
pub async fn release(
    engine: &Engine,
    call: &Call,
    request: RequestId,
    input: &ReleaseInput,
) -> Result<Receipt<RequestView>, EngineError> {
    let write = SessionWrite::to_request(engine, call, request).await?;
    let fence = input.fence;
    let by = Fenced { request, fence };
    write
        .commit(&Command::ReleaseLease { by }, |made| {
            RequestView::of_commit(made, request, true)
        })
        .await
}

/// Cancels a request with its child requests and holds.
///
/// # Errors
///
/// If the caller may not, or the core refuses.
pub async fn cancel(
    engine: &Engine,
    call: &Call,
    request: RequestId,
) -> Result<Receipt<RequestView>, EngineError> {
    rights::require_role(&call.caller, &Act::CancelRequest(request))?;
    let session = engine.session_of_request(request).await?;
    let view = |made: &DecidedCommit<'_>| RequestView::of_commit(made, request, false);
    SessionWrite::new(engine, call, session)
        .commit(&Command::CancelRequest { request }, view)
        .await
}

/// Extends a lease, without a commit.
///
/// # Errors
///
/// If the caller does not hold the lease under that fence.
pub async fn heartbeat(
    engine: &Engine,
    caller: &Caller,
    request: RequestId,
    input: &HeartbeatInput,
) -> Result<(SessionId, HeartbeatView), EngineError> {
    rights::require_role(caller, &Act::WorkOn(request))?;
    let session = engine.session_of_request(request).await?;
    let fence = input.fence;
    let (status, until) = engine.heartbeat(caller, session, request, fence).await?;
    let view = HeartbeatView {
        request_id: request,
        fence,
        status,
        lease_until: until.into(),
    };
    Ok((session, view))
}

/// The event that a waiting reader of a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitUntil {
    /// The request has ended.
    Final,
    /// The session has moved past `after`.
    Changed {
        /// A revision; the one at the time of the call if None.
        after: Option<u64>,
    },
}

/// A request and the revision of its session at the time of the read.
#[derive(Debug, Clone)]
pub struct RequestRead {
    /// The request.
    pub view: RequestView,
    /// The revision of the session.
    pub revision: u64,
    /// The index before which the next page of holds begins, if there is one.
    pub earlier_holds: Option<usize>,
}

/// Reads a request with the newest of its holds, at once or after waiting until it has ended or changed, or until the
/// time is over. Takes the memory for its payloads when it has waited.
///
/// # Errors
///
/// If the caller may not read it, also if the right is revoked during the wait; or if there is no memory in time.
pub async fn read(
    engine: &Engine,
    caller: &Caller,
    (request, holds): (RequestId, RequestHolds),
    (until, wait): (WaitUntil, Duration),
    memory: &dyn AnswerMemory,
) -> Result<RequestRead, EngineError> {
    let deadline = tokio::time::Instant::now() + wait;
    let mut head = engine.request_head(caller, request).await?;
    let known = match until {
        WaitUntil::Final => None,
        WaitUntil::Changed { after } => Some(after.unwrap_or(head.state.revision)),
    };
    loop {
        let revision = head.state.revision;
        let has_changed = known.is_some_and(|known| revision > known);
        let is_met = head.request.status().is_final() || has_changed;
        if is_met || tokio::time::Instant::now() >= deadline {
            break;
        }
        let changed = engine.changed_after(head.session.id, revision);
        match tokio::time::timeout_at(deadline, changed).await {
            // Authorise again with every read: the right may have been revoked.
            Ok(Ok(())) => head = engine.request_head(caller, request).await?,
            Ok(Err(_)) | Err(_) => break,
        }
    }
    engine.audit_hidden(caller, &head).await?;
    let (detail, earlier_holds) = engine.request_page(caller, head, holds, memory).await?;
    Ok(RequestRead {
        view: RequestView::of(&detail),
        revision: detail.revision,
        earlier_holds,
    })
}
