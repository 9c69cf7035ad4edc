//! Requests: start, read, feed, end, claim.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::Deserialize;
use statehold_core::command::{Command, Fenced, StartRequest, StatePatch};
use statehold_core::hold::CallTarget;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::item::{ItemKind, NewCallMark, NewItem};
use statehold_core::record::Event;
use statehold_core::scope::Scope;
use statehold_engine::{Claim, Committed, Payloads, Reply, RequestDetail};
use utoipa::IntoParams;

use super::{About, agent_name, done, ids_of, revision, shown};
use crate::app::{App, Asked, Carried, Params, PathIds, Payload};
use crate::problem::{Code, Problem};
use crate::wire::item::{
    CallPlace, ItemBody, ItemIn, ItemRef, call_places, labelled_message, message,
};
use crate::wire::request::{
    ClaimIn, ClaimOut, CompleteIn, FailIn, HeartbeatIn, HeartbeatOut, ItemsIn, ItemsOut, NothingIn,
    ReleaseIn, RequestIn, RequestOut,
};
use crate::wire::schema::UntilWord;
use crate::wire::state::PatchIn;
use crate::wire::{time, to_body};

/// How long a call may wait for something.
pub(crate) const WAIT_SECONDS_MAX: u64 = 60;
/// How long a lease lasts when nobody says.
const LEASE_SECONDS_DEFAULT: u64 = 60;
/// How many items are looked at to find a call by the caller's own name.
const CALLS_LOOKED_AT: usize = 1_000;

/// Invoke an agent. With a lease, items, state and output it is a whole turn in one commit.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/requests", tag = "requests",
    params(("session_id" = String, Path)), request_body = RequestIn,
    responses((status = 201, body = RequestOut))
)]
pub(crate) async fn start(
    State(app): State<App>,
    asked: Asked,
    Carried(credential): Carried,
    ids: PathIds,
    body: Payload<RequestIn>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let call = asked.call(&body.bytes);
    let wire = body.value;
    require_start(&app, &asked, session, &wire).await?;
    let owner = app.engine.owner(session).await?;
    let mut payloads = app.engine.payloads_for(&owner.tenant, owner.user).await?;
    let input = labelled_message(&wire.input, "input", &mut payloads, credential.is_some())?;
    let output = wire
        .output
        .as_ref()
        .map(|output| message(output, "output", &mut payloads))
        .transpose()?;
    let agent = match &wire.agent {
        Some(agent) => agent_name(agent, "agent")?,
        None => owner.agent.clone(),
    };
    let parent = match (wire.parent_request_id, wire.parent_fence) {
        (Some(request), Some(fence)) => Some(Fenced { request, fence }),
        (None, None) => None,
        _ => {
            let detail = "`parent_request_id` and `parent_fence` go together";
            return Err(Problem::invalid(detail).with("path", "parent_fence"));
        }
    };
    let is_worker = wire.lease.is_some() || parent.is_some();
    let lease_ttl_ms = match &wire.lease {
        Some(lease) => {
            require_note(lease.worker.as_deref())?;
            Some(lease.ttl_seconds.saturating_mul(1_000))
        }
        None => None,
    };
    let places = require_known(call_places(&wire.items))?;
    let mut items = new_items(wire.items, &places, &mut payloads)?;
    app.engine.hide_gated(&agent, &mut items, &mut payloads);
    let state = state_patch(wire.state, &mut payloads)?;
    let command = Command::StartRequest(StartRequest {
        agent,
        task: wire.task_id,
        parent,
        input: input.body,
        attachments: input.attachments,
        close_on: wire.close_on.map(Into::into).unwrap_or_default(),
        lease_ttl_ms,
        items,
        state,
        output,
    });
    let reply: Reply = Arc::new(move |made: &Committed<'_>| {
        let events = &made.record.content.events;
        let started = events.iter().find_map(|event| match event {
            Event::RequestStarted { request, .. } => Some(*request),
            _ => None,
        });
        let out = started.and_then(|id| RequestOut::of_commit(made, id, is_worker));
        out.map_or_else(Vec::new, |out| to_body(&out))
    });
    let made = app
        .engine
        .submit_with_credential(
            session,
            &call,
            &command,
            &payloads,
            &reply,
            credential.as_ref(),
        )
        .await?;
    let about = ids_of(&made.body);
    Ok(done(StatusCode::CREATED, made, about))
}

/// Lets only those go on who may start such a request there: whatever else is wrong with the call is
/// told to them alone.
async fn require_start(
    app: &App,
    asked: &Asked,
    session: SessionId,
    wire: &RequestIn,
) -> Result<(), Problem> {
    let agent = match &wire.agent {
        Some(agent) => agent_name(agent, "agent")?,
        // The session's own, whatever that is: it is asked again when it is known.
        None if asked.caller.agents.is_empty() => "coordinator".parse().expect("a fixed name"),
        None => asked.caller.agents.first().expect("not empty").clone(),
    };
    let fenced = |request| Fenced {
        request,
        fence: wire.parent_fence.unwrap_or(0),
    };
    let start = Command::StartRequest(StartRequest {
        agent,
        task: None,
        parent: wire.parent_request_id.map(fenced),
        input: app.engine.no_payloads().put(Vec::new()),
        attachments: Vec::new(),
        close_on: wire.close_on.map(Into::into).unwrap_or_default(),
        lease_ttl_ms: wire.lease.as_ref().map(|_| 0),
        items: Vec::new(),
        state: StatePatch::default(),
        output: None,
    });
    let reach = app.engine.require_reach(&asked.caller, session, &start);
    Ok(reach.await?)
}

/// A note for people about who works.
fn require_note(note: Option<&str>) -> Result<(), Problem> {
    match note {
        Some(note) if note.len() > 256 => Err(Problem::invalid("`worker` has at most 256 bytes")),
        _ => Ok(()),
    }
}

/// Places that need no look-up: nothing was written before.
fn require_known(places: Vec<Option<CallPlace>>) -> Result<Vec<Option<CallTarget>>, Problem> {
    let known = places.into_iter().map(|place| match place {
        None => Ok(None),
        Some(CallPlace::Known(target)) => Ok(Some(target)),
        Some(CallPlace::Named(name)) => Err(unknown_call(&name)),
    });
    known.collect()
}

fn unknown_call(name: &str) -> Problem {
    let clipped: String = name.chars().take(64).collect();
    Problem::new(
        Code::CallUnknown,
        "there is no open tool call with this `call_id` in the request",
    )
    .with("call_id", clipped)
}

pub(crate) fn new_items(
    items: Vec<ItemIn>,
    places: &[Option<CallTarget>],
    payloads: &mut Payloads,
) -> Result<Vec<NewItem>, Problem> {
    let numbered = items.into_iter().enumerate();
    numbered
        .map(|(index, item)| item.into_new(index, places[index], payloads))
        .collect()
}

/// Gated calls are written with their preview only.
async fn hide_gated(
    app: &App,
    session: SessionId,
    request: RequestId,
    items: &mut [NewItem],
    payloads: &mut Payloads,
) -> Result<(), Problem> {
    let is_gated =
        |item: &NewItem| matches!(item.call, Some(NewCallMark::Call { gated: true, .. }));
    if items.iter().any(is_gated)
        && let Some(agent) = app.engine.agent_of_request(session, request).await?
    {
        app.engine.hide_gated(&agent, items, payloads);
    }
    Ok(())
}

/// The state that goes with a request. The engine merges it where that is asked for.
fn state_patch(wire: Option<PatchIn>, payloads: &mut Payloads) -> Result<StatePatch, Problem> {
    let Some(wire) = wire else {
        return Ok(StatePatch::default());
    };
    let patch = wire.parse(None)?;
    if patch.touches(Scope::Temp) {
        return Err(Problem::new(
            Code::BadStateKey,
            "`temp:` keys are written with PATCH …/state, with `request_id` and `fence`",
        ));
    }
    Ok(patch.into_core(payloads))
}

/// How long to wait, and for what.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitParams {
    /// Wait so many seconds, at most 60.
    #[param(maximum = 60)]
    wait: Option<u64>,
    /// `final` (default) or `changed`.
    #[param(value_type = Option<UntilWord>)]
    until: Option<String>,
    /// With `changed`: since this revision of the session, as an `ETag` gave it. Without it, since the
    /// call came.
    #[param(maximum = 9_007_199_254_740_991u64)]
    after: Option<u64>,
}

/// Read a request, or wait for it.
#[utoipa::path(
    get, path = "/v1/requests/{request_id}", tag = "requests",
    params(("request_id" = String, Path), WaitParams),
    responses((status = 200, body = RequestOut))
)]
pub(crate) async fn read(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    Params(params): Params<WaitParams>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let until_final = match params.until.as_deref() {
        None | Some("final") => true,
        Some("changed") => false,
        Some(_) => {
            return Err(Problem::new(Code::BadQuery, "`until` is final or changed"));
        }
    };
    let wait = params.wait.unwrap_or(0);
    if wait > WAIT_SECONDS_MAX {
        return Err(Problem::new(Code::BadQuery, "`wait` is at most 60 seconds"));
    }
    let deadline = tokio::time::Instant::now() + Duration::from_secs(wait);
    let after = revision(params.after, "after")?;
    if after.is_some() && until_final {
        let detail = "`after` goes with `until=changed`";
        return Err(Problem::new(Code::BadQuery, detail));
    }
    let until = match (until_final, after) {
        (true, _) => Until::Final,
        (false, after) => Until::Changed { after },
    };
    let waited = wait_for(&app, &asked, request, until, deadline);
    let detail = app.while_valid(asked.secret, waited).await?;
    let about = About {
        revision: Some(detail.revision),
        session: Some(detail.session.id.to_string()),
        task: Some(detail.task.id.to_string()),
        request: Some(request.to_string()),
        ..About::default()
    };
    Ok(shown(&RequestOut::of(&detail), &about))
}

/// What a call waits for.
#[derive(Debug, Clone, Copy)]
enum Until {
    /// The request has ended.
    Final,
    /// Its session has a revision beyond this one, or beyond the one it had when the call came.
    Changed { after: Option<u64> },
}

/// The request when it has ended or changed, or as it is when the time is over.
async fn wait_for(
    app: &App,
    asked: &Asked,
    request: RequestId,
    until: Until,
    deadline: tokio::time::Instant,
) -> Result<RequestDetail, Problem> {
    let mut detail = app.engine.request(&asked.caller, request).await?;
    let known = match until {
        Until::Final => None,
        Until::Changed { after } => Some(after.unwrap_or(detail.revision)),
    };
    loop {
        let has_changed = known.is_some_and(|known| detail.revision > known);
        let is_there = detail.ended.is_some() || has_changed;
        if is_there || tokio::time::Instant::now() >= deadline {
            return Ok(detail);
        }
        let changed = app.engine.changed_after(detail.session.id, detail.revision);
        match tokio::time::timeout_at(deadline, changed).await {
            // The right may be gone by now: everything is asked again.
            Ok(Ok(())) => detail = app.engine.request(&asked.caller, request).await?,
            Ok(Err(_)) | Err(_) => return Ok(detail),
        }
    }
}

/// Where results find their calls, with a look at what was written before where needed.
pub(crate) async fn find_calls(
    app: &App,
    session: SessionId,
    request: RequestId,
    items: &[ItemIn],
) -> Result<Vec<Option<CallTarget>>, Problem> {
    let places = call_places(items);
    let is_named = |place: &Option<CallPlace>| matches!(place, Some(CallPlace::Named(_)));
    if !places.iter().any(is_named) {
        return require_known(places);
    }
    let Some(task) = app.engine.task_of_request(session, request).await? else {
        return Err(Problem::not_found());
    };
    let written = app
        .engine
        .recent_items(session, task, CALLS_LOOKED_AT)
        .await?;
    let find = |name: &str| {
        let call = written.iter().find(|stored| {
            let is_call =
                stored.placed.item.kind == ItemKind::ToolCall && stored.placed.request == request;
            let body = stored.body.as_deref().filter(|_| is_call);
            let body = body.and_then(|body| serde_json::from_slice::<ItemBody>(body).ok());
            body.and_then(|body| body.call_id).as_deref() == Some(name)
        });
        call.map(|stored| CallTarget::Recorded(stored.placed.item.id))
    };
    let found = places.into_iter().map(|place| match place {
        None => Ok(None),
        Some(CallPlace::Known(target)) => Ok(Some(target)),
        Some(CallPlace::Named(name)) => find(&name).map(Some).ok_or_else(|| unknown_call(&name)),
    });
    found.collect()
}

/// What a call about one request needs to know first.
pub(crate) struct Target {
    pub(crate) session: SessionId,
    pub(crate) payloads: Payloads,
}

/// What a call under a fence needs, for those who may make it. Whatever else is wrong with it is told to
/// them alone.
pub(crate) async fn target(app: &App, asked: &Asked, by: Fenced) -> Result<Target, Problem> {
    let write = Command::AppendItems {
        by,
        items: Vec::new(),
        state: StatePatch::default(),
        task_state: None,
    };
    app.engine.require_role(&asked.caller, &write)?;
    let session = app.engine.session_of_request(by.request).await?;
    let reach = app.engine.require_reach(&asked.caller, session, &write);
    reach.await?;
    let owner = app.engine.owner(session).await?;
    let payloads = app.engine.payloads_for(&owner.tenant, owner.user).await?;
    Ok(Target { session, payloads })
}

/// Add to the history of a request's task.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/items", tag = "requests",
    params(("request_id" = String, Path)), request_body = ItemsIn,
    responses((status = 200, body = ItemsOut))
)]
pub(crate) async fn append(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<ItemsIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = asked.call(&body.bytes);
    let wire = body.value;
    let by = Fenced {
        request,
        fence: wire.fence,
    };
    let Target {
        session,
        mut payloads,
    } = target(&app, &asked, by).await?;
    let places = find_calls(&app, session, request, &wire.items).await?;
    let mut items = new_items(wire.items, &places, &mut payloads)?;
    hide_gated(&app, session, request, &mut items, &mut payloads).await?;
    let state = state_patch(wire.state, &mut payloads)?;
    let task_state = wire
        .task_state
        .map(|state| payloads.put(state.get().as_bytes().to_vec()));
    if items.is_empty() && state.is_empty() && task_state.is_none() {
        return Err(Problem::new(
            Code::EmptyPatch,
            "name at least one of `items`, `state` and `task_state`",
        ));
    }
    let command = Command::AppendItems {
        by,
        items,
        state,
        task_state,
    };
    let reply: Reply = Arc::new(|made: &Committed<'_>| {
        let content = &made.record.content;
        let items = content.events.iter().filter_map(|event| match event {
            Event::ItemsAppended { items, .. } => Some(items),
            _ => None,
        });
        let refs = items.flatten().map(|item| {
            let body = made.payload(&item.body);
            let body = body.and_then(|body| serde_json::from_slice::<ItemBody>(body).ok());
            ItemRef {
                id: item.id.to_string(),
                seq: item.seq,
                call_id: body.and_then(|body| body.call_id),
            }
        });
        to_body(&ItemsOut {
            items: refs.collect(),
            revision: content.seq,
        })
    });
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::OK, made, about(session, request)))
}

pub(crate) fn about(session: SessionId, request: RequestId) -> About {
    About {
        session: Some(session.to_string()),
        request: Some(request.to_string()),
        ..About::default()
    }
}

/// The answer to a command about a request: the request.
fn request_reply(request: RequestId, agent_view: bool) -> Reply {
    Arc::new(move |made: &Committed<'_>| {
        let out = RequestOut::of_commit(made, request, agent_view);
        out.map_or_else(Vec::new, |out| to_body(&out))
    })
}

/// End a request with its answer.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/complete", tag = "requests",
    params(("request_id" = String, Path)), request_body = CompleteIn,
    responses((status = 200, body = RequestOut))
)]
pub(crate) async fn complete(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<CompleteIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = asked.call(&body.bytes);
    let wire = body.value;
    let by = Fenced {
        request,
        fence: wire.fence,
    };
    let Target {
        session,
        mut payloads,
    } = target(&app, &asked, by).await?;
    let output = message(&wire.output, "output", &mut payloads)?;
    let places = find_calls(&app, session, request, &wire.items).await?;
    let mut items = new_items(wire.items, &places, &mut payloads)?;
    hide_gated(&app, session, request, &mut items, &mut payloads).await?;
    let state = state_patch(wire.state, &mut payloads)?;
    let task_state = wire
        .task_state
        .map(|state| payloads.put(state.get().as_bytes().to_vec()));
    let command = Command::CompleteRequest {
        by,
        output,
        items,
        state,
        task_state,
        close_task: wire.close_task,
        cancel_children: wire.cancel_children,
    };
    let reply = request_reply(request, true);
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::OK, made, about(session, request)))
}

/// End a request with an error.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/fail", tag = "requests",
    params(("request_id" = String, Path)), request_body = FailIn,
    responses((status = 200, body = RequestOut))
)]
pub(crate) async fn fail(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<FailIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = asked.call(&body.bytes);
    let wire = body.value;
    let by = Fenced {
        request,
        fence: wire.fence,
    };
    let Target {
        session,
        mut payloads,
    } = target(&app, &asked, by).await?;
    let command = Command::FailRequest {
        by,
        error: payloads.put(wire.error.get().as_bytes().to_vec()),
        cancel_children: wire.cancel_children,
    };
    let reply = request_reply(request, true);
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::OK, made, about(session, request)))
}

/// Stop a request and everything it waits for.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/cancel", tag = "requests",
    params(("request_id" = String, Path)), request_body = NothingIn,
    responses((status = 200, body = RequestOut))
)]
pub(crate) async fn cancel(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<NothingIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = asked.call(&body.bytes);
    let (command, payloads) = (Command::CancelRequest { request }, app.engine.no_payloads());
    app.engine.require_role(&asked.caller, &command)?;
    let session = app.engine.session_of_request(request).await?;
    let reply = request_reply(request, false);
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::OK, made, about(session, request)))
}

/// Keep a lease alive.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/heartbeat", tag = "requests",
    params(("request_id" = String, Path)), request_body = HeartbeatIn,
    responses((status = 200, body = HeartbeatOut))
)]
pub(crate) async fn heartbeat(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<HeartbeatIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let fence = body.value.fence;
    let Target { session, .. } = target(&app, &asked, Fenced { request, fence }).await?;
    let (status, until) = app
        .engine
        .heartbeat(&asked.caller, session, request, fence)
        .await?;
    let out = HeartbeatOut {
        request_id: request.to_string(),
        fence,
        status,
        lease_until: time(until),
    };
    Ok(shown(&out, &about(session, request)))
}

/// Give a lease back: whatever the request waits for then comes with the next claim.
#[utoipa::path(
    post, path = "/v1/requests/{request_id}/release", tag = "requests",
    params(("request_id" = String, Path)), request_body = ReleaseIn,
    responses((status = 200, body = RequestOut))
)]
pub(crate) async fn release(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
    body: Payload<ReleaseIn>,
) -> Result<Response, Problem> {
    let request: RequestId = ids.id("request_id")?;
    let call = asked.call(&body.bytes);
    let by = Fenced {
        request,
        fence: body.value.fence,
    };
    let Target { session, payloads } = target(&app, &asked, by).await?;
    let command = Command::ReleaseLease { by };
    let reply = request_reply(request, true);
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::OK, made, about(session, request)))
}

/// Claim requests of an agent, and wait for them.
#[utoipa::path(
    post, path = "/v1/work/claim", tag = "requests", request_body = ClaimIn,
    responses((status = 200, body = ClaimOut))
)]
pub(crate) async fn claim(
    State(app): State<App>,
    asked: Asked,
    body: Payload<ClaimIn>,
) -> Result<Response, Problem> {
    let wire = body.value;
    require_note(wire.worker.as_deref())?;
    let max = wire.max.unwrap_or(1);
    let wait = wire.wait_seconds.unwrap_or(0);
    if !(1..=100).contains(&max) || wait > WAIT_SECONDS_MAX {
        return Err(Problem::invalid(
            "`max` is 1 to 100, and `wait_seconds` at most 60",
        ));
    }
    let claim = Claim {
        agent: agent_name(&wire.agent, "agent")?,
        max,
        wait: Duration::from_secs(wait),
        lease_ms: wire
            .lease_seconds
            .unwrap_or(LEASE_SECONDS_DEFAULT)
            .saturating_mul(1_000),
        request: wire.request_id,
    };
    let work = async { Ok(app.engine.claim(&asked.caller, &claim).await?) };
    let claimed = app.while_valid(asked.secret, work).await?;
    let out = ClaimOut {
        requests: claimed.iter().map(RequestOut::of_claim).collect(),
    };
    Ok(shown(&out, &About::default()))
}
