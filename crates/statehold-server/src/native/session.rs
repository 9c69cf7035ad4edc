//! Sessions: begin, list, read, change, close, delete; their messages, tree and records.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_core::command::{Command, StatePatch};
use statehold_core::ids::{IdMint, SessionId, Shard};
use statehold_core::record::Change;
use statehold_core::session::{Owner, SessionStatus};
use statehold_engine::{
    Caller, Committed, EngineError, ItemPage, Reply, Role, SessionFilter, SessionSummary,
    StoredRecord, require_lister,
};
use utoipa::{IntoParams, ToSchema};

use super::{
    About, Cursor, PAGE_MAX, agent_name, answer, done, name, name_in_query, page_limit, revision,
    shown,
};
use crate::http::call::{App, CallContext, Params, PathIds, Payload};
use crate::http::problem::{Code, Problem};
use statehold_core::name::Name;
use statehold_engine::api::hold::pending_views;
use statehold_engine::api::item::{ItemView, MessageView};
use statehold_engine::api::json::{raw_bytes, to_body};
use statehold_engine::api::schema::{Messages, RecordForm, ViewWord};
use statehold_engine::api::session::{
    CloseSessionInput, SessionChanges, SessionInput, SessionPage, SessionView, parse_labels,
    require_labels, require_name, time_to_live,
};
use statehold_engine::api::state::StatePatchInput;
use statehold_engine::api::tree::TreeView;

/// How often a change of labels is tried again because others change them too.
const RETRIES_MAX: usize = 64;

/// Begin a session.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions", request_body = SessionInput,
    responses((status = 201, body = SessionView))
)]
pub(crate) async fn create(
    State(app): State<App>,
    asked: CallContext,
    body: Payload<SessionInput>,
) -> Result<Response, Problem> {
    let call = asked.call(&body.bytes);
    let wire = body.value;
    let user_name = user_of(&app, &asked.caller, wire.user.as_deref()).await?;
    if !asked.caller.has(Role::Client) {
        return Err(EngineError::Forbidden {
            needs: Role::Client,
        }
        .into());
    }
    let tenant = asked.caller.tenant.clone();
    let owner = Owner {
        agent: agent_name(wire.agent.as_deref().unwrap_or("coordinator"), "agent")?,
        app: name(&wire.app, "app")?,
        user: app.engine.user_id(&tenant, &user_name).await?,
        tenant,
    };
    let mut payloads = app.engine.payloads_for(&owner.tenant, owner.user).await?;
    if let Some(name) = &wire.name {
        require_name(name)?;
    }
    let labels = wire.labels.unwrap_or_default();
    require_labels(&labels)?;
    let state = match wire.state {
        Some(set) => {
            let patch = StatePatchInput {
                set,
                ..StatePatchInput::default()
            };
            patch.parse(None)?.into_core(&mut payloads)
        }
        None => StatePatch::default(),
    };
    let ttl = wire
        .ttl_seconds
        .map(|seconds| time_to_live(seconds, wire.ttl_mode))
        .transpose()?;
    let labels_json = (!labels.is_empty()).then(|| to_body(&labels));
    let command = Command::CreateSession {
        name: wire
            .name
            .as_ref()
            .map(|name| payloads.put(name.clone().into_bytes())),
        labels: labels_json.map(|labels| payloads.put(labels)),
        state,
        ttl,
        owner: owner.clone(),
    };
    let shard = Shard::of_owner(owner.tenant.as_str(), owner.app.as_str(), &user_name);
    let entropy = entropy()?;
    let mut mint = IdMint::new(app.engine.now(), shard, entropy);
    let session = SessionId::from_uuid(mint.next_uuid());
    let (name, user) = (wire.name, user_name);
    let reply: Reply = Arc::new(move |made: &Committed<'_>| {
        let content = &made.record.content;
        let summary = SessionSummary {
            place: 0,
            id: content.session,
            owner: owner.clone(),
            name: name.clone(),
            labels: (!labels.is_empty())
                .then(|| serde_json::to_string(&labels).unwrap_or_default()),
            status: made.after.status(),
            deleted: false,
            ttl: made.after.ttl,
            expires_at: made.after.expires_at,
            revision: content.seq,
            created_at: content.at,
            updated_at: content.at,
        };
        to_body(&SessionView {
            pending: Some(Vec::new()),
            pending_total: Some(0),
            ..SessionView::of(&summary, user.clone())
        })
    });
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    let about = About {
        session: super::ids_of(&made.body).request,
        ..About::default()
    };
    Ok(done(StatusCode::CREATED, made, about))
}

fn entropy() -> Result<u64, Problem> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes)
        .map_err(|_| Problem::new(Code::Internal, "the system gives no random numbers"))?;
    Ok(u64::from_le_bytes(bytes))
}

/// The user that a call is about: the one the key is bound to, or the one it names.
pub(crate) async fn user_of(
    app: &App,
    caller: &Caller,
    named: Option<&str>,
) -> Result<String, Problem> {
    match (caller.user, named) {
        (None, Some(named)) => Ok(named.to_owned()),
        (None, None) => Err(EngineError::UserNeeded.into()),
        (Some(bound), named) => {
            let bound = app.engine.user_name(&caller.tenant, bound).await?;
            if named.is_none_or(|named| named == bound) {
                Ok(bound)
            } else {
                Err(EngineError::WrongUser.into())
            }
        }
    }
}

/// Which sessions to list.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListParams {
    /// Of this app.
    #[param(value_type = Option<Name>)]
    app: Option<String>,
    /// Of this user.
    user: Option<String>,
    /// `running`, `paused`, `idle` or `closed`.
    #[param(value_type = Option<SessionStatus>)]
    status: Option<String>,
    /// With this label: `key` or `key:value`.
    label: Option<String>,
    /// With this text in the name or a label.
    q: Option<String>,
    /// Where the page before ended.
    cursor: Option<String>,
    /// How many, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

/// List sessions, newest first.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "sessions", params(ListParams),
    responses((status = 200, body = SessionPage))
)]
pub(crate) async fn list(
    State(app): State<App>,
    asked: CallContext,
    Params(mut params): Params<ListParams>,
) -> Result<Response, Problem> {
    // Whether a user is known is told only to those who may list.
    require_lister(&asked.caller)?;
    let limit = page_limit(params.limit.take(), PAGE_MAX)?;
    let begin = params.cursor.take();
    let filter_text = serde_json::to_string(&params).unwrap_or_default();
    let cursor = Cursor::of(&app, &asked.caller, "sessions", &filter_text);
    let after = cursor.open(begin.as_deref())?;
    let mut filter = SessionFilter {
        app: params
            .app
            .as_deref()
            .map(|app| name_in_query(app, "app"))
            .transpose()?,
        user: None,
        status: params.status.as_deref().map(status).transpose()?,
        label: params.label.map(|label| match label.split_once(':') {
            Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
            None => (label, None),
        }),
        text: params.q,
    };
    if let Some(user) = &params.user {
        let known = app.engine.known_user(&asked.caller.tenant, user).await?;
        if known.is_none() {
            return Ok(shown(&empty_page(), &About::default()));
        }
        filter.user = known;
    }
    let page = app
        .engine
        .sessions(&asked.caller, &filter, after, limit)
        .await?;
    let mut sessions = Vec::with_capacity(page.entries.len());
    for summary in &page.entries {
        sessions.push(session_out(&app, summary).await?);
    }
    let next_cursor = page.next.map(|place| cursor.seal(place));
    let page = SessionPage {
        sessions,
        next_cursor,
    };
    Ok(shown(&page, &About::default()))
}

fn empty_page() -> SessionPage {
    SessionPage {
        sessions: Vec::new(),
        next_cursor: None,
    }
}

fn status(text: &str) -> Result<SessionStatus, Problem> {
    match text {
        "running" => Ok(SessionStatus::Running),
        "paused" => Ok(SessionStatus::Paused),
        "idle" => Ok(SessionStatus::Idle),
        "closed" => Ok(SessionStatus::Closed),
        _ => Err(Problem::new(
            Code::BadQuery,
            "`status` is running, paused, idle or closed",
        )),
    }
}

async fn session_out(app: &App, summary: &SessionSummary) -> Result<SessionView, Problem> {
    let owner = &summary.owner;
    let user = app.engine.user_name(&owner.tenant, owner.user).await?;
    Ok(SessionView::of(summary, user))
}

fn about(summary: &SessionSummary) -> About {
    About {
        revision: Some(summary.revision),
        session: Some(summary.id.to_string()),
        ..About::default()
    }
}

/// Read a session.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}", tag = "sessions",
    params(("session_id" = String, Path)),
    responses((status = 200, body = SessionView))
)]
pub(crate) async fn read(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let summary = app
        .engine
        .session(&asked.caller, ids.id("session_id")?)
        .await?;
    let mut out = session_out(&app, &summary).await?;
    let pending = app.engine.pending_in(summary.id).await?;
    let (pending, total) = pending_views(&pending);
    (out.pending, out.pending_total) = (Some(pending), Some(total));
    Ok(shown(&out, &about(&summary)))
}

/// Change what a session is called, or how long it lives.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}", tag = "sessions",
    params(("session_id" = String, Path)), request_body = SessionChanges,
    responses((status = 200, body = SessionView))
)]
pub(crate) async fn patch(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    body: Payload<SessionChanges>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let mut call = asked.call(&body.bytes);
    let wire = body.value;
    // Labels are merged with those that are there, so the change is tied to what was read.
    let _turn = match wire.labels {
        Some(_) => {
            // Nobody stands in line who may not read what it is about.
            app.engine.session(&asked.caller, session).await?;
            Some(app.engine.turn(session).await)
        }
        None => None,
    };
    for _ in 0..RETRIES_MAX {
        let summary = app.engine.session(&asked.caller, session).await?;
        let owner = summary.owner.clone();
        let mut payloads = app.engine.payloads_for(&owner.tenant, owner.user).await?;
        let mut after = summary.clone();
        let labels = match &wire.labels {
            Some(changes) => {
                let merged = merge_labels(summary.labels.as_deref(), changes);
                require_labels(&merged)?;
                let json = to_body(&merged);
                after.labels = Some(String::from_utf8_lossy(&json).into_owned());
                Some(payloads.put(json))
            }
            None => None,
        };
        let name = match &wire.name {
            Some(Change::Set(name)) => {
                require_name(name)?;
                Some(Change::Set(payloads.put(name.clone().into_bytes())))
            }
            Some(Change::Clear) => Some(Change::Clear),
            None => None,
        };
        if let Some(name) = &wire.name {
            after.name = name.clone().value();
        }
        let ttl = match wire.ttl_seconds {
            Some(Change::Set(seconds)) => Some(Change::Set(time_to_live(seconds, wire.ttl_mode)?)),
            Some(Change::Clear) => Some(Change::Clear),
            None if wire.ttl_mode.is_some() => {
                let detail = "`ttl_mode` goes with `ttl_seconds`";
                return Err(Problem::invalid(detail).with("path", "ttl_mode"));
            }
            None => None,
        };
        let command = Command::PatchSession { labels, name, ttl };
        if labels.is_some() && asked.if_revision.is_none() {
            call.if_revision = Some(summary.revision);
        }
        let user = app.engine.user_name(&owner.tenant, owner.user).await?;
        let reply: Reply = Arc::new(move |made: &Committed<'_>| {
            let content = &made.record.content;
            let summary = SessionSummary {
                status: made.after.status(),
                ttl: made.after.ttl,
                expires_at: made.after.expires_at,
                revision: content.seq,
                updated_at: content.at,
                ..after.clone()
            };
            to_body(&SessionView::of(&summary, user.clone()))
        });
        match app
            .engine
            .submit(session, &call, &command, &payloads, &reply)
            .await
        {
            Err(EngineError::RevisionMismatch { .. }) if asked.if_revision.is_none() => {}
            other => return Ok(done(StatusCode::OK, other?, about(&summary))),
        }
    }
    Err(EngineError::TooMany("the session changes too fast; try again").into())
}

fn merge_labels(
    there: Option<&str>,
    changes: &BTreeMap<String, Option<String>>,
) -> BTreeMap<String, String> {
    let mut labels = parse_labels(there);
    for (key, value) in changes {
        match value {
            Some(value) => labels.insert(key.clone(), value.clone()),
            None => labels.remove(key),
        };
    }
    labels
}

/// Remove every payload of a session. Its records stay.
#[utoipa::path(
    delete, path = "/v1/sessions/{session_id}", tag = "sessions",
    params(("session_id" = String, Path)),
    responses((status = 204))
)]
pub(crate) async fn delete(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let (call, command) = (asked.call(b""), Command::DeleteSession);
    // The same call again is answered also when there is nothing left to read.
    let payloads = app.engine.no_payloads();
    let reply: Reply = Arc::new(|_| Vec::new());
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::NO_CONTENT, made, About::default()))
}

/// Take no more commands.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/close", tag = "sessions",
    params(("session_id" = String, Path)), request_body = CloseSessionInput,
    responses((status = 200, body = SessionView))
)]
pub(crate) async fn close(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    body: Payload<CloseSessionInput>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let call = asked.call(&body.bytes);
    let cancel_live = body.value.cancel_live;
    let summary = app.engine.session(&asked.caller, session).await?;
    let user = session_out(&app, &summary).await?.user;
    let before = summary.clone();
    let reply: Reply = Arc::new(move |made: &Committed<'_>| {
        let content = &made.record.content;
        let summary = SessionSummary {
            status: made.after.status(),
            expires_at: made.after.expires_at,
            revision: content.seq,
            updated_at: content.at,
            ..before.clone()
        };
        to_body(&SessionView::of(&summary, user.clone()))
    });
    let command = Command::CloseSession { cancel_live };
    let payloads = app.engine.no_payloads();
    let made = app
        .engine
        .submit(session, &call, &command, &payloads, &reply)
        .await?;
    Ok(done(StatusCode::OK, made, about(&summary)))
}

/// How to page through messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageParams {
    /// `client` (default) or `trace`.
    #[param(value_type = Option<ViewWord>)]
    pub(crate) view: Option<String>,
    /// Where the page before ended.
    pub(crate) cursor: Option<String>,
    /// How many, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    pub(crate) limit: Option<usize>,
}

impl MessageParams {
    pub(crate) fn wants_trace(&self) -> Result<bool, Problem> {
        match self.view.as_deref() {
            None | Some("client") => Ok(false),
            Some("trace") => Ok(true),
            Some(_) => Err(Problem::new(Code::BadQuery, "`view` is client or trace")),
        }
    }
}

/// A page of the transcript.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct MessagePage {
    messages: Vec<MessageView>,
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// A page of the trace.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct TracePage {
    messages: Vec<ItemView>,
    revision: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

/// The last messages of a session, oldest first; with `view=trace` every item.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/messages", tag = "sessions",
    params(("session_id" = String, Path), MessageParams),
    responses((status = 200, body = Messages))
)]
pub(crate) async fn messages(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    Params(params): Params<MessageParams>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let limit = page_limit(params.limit, PAGE_MAX)?;
    let is_trace = params.wants_trace()?;
    let filter = format!("{session} {is_trace}");
    let cursor = Cursor::of(&app, &asked.caller, "messages", &filter);
    let before = cursor.open(params.cursor.as_deref())?;
    let engine = &app.engine;
    if is_trace {
        let page = engine.trace(&asked.caller, session, before, limit).await?;
        let about = about_page(session, &page);
        let out = TracePage {
            messages: page.items.iter().rev().map(ItemView::of).collect(),
            revision: page.revision,
            next_cursor: page.next.map(|seq| cursor.seal(seq)),
        };
        return Ok(shown(&out, &about));
    }
    let page = engine
        .transcript(&asked.caller, session, before, limit)
        .await?;
    let about = about_page(session, &page);
    let out = MessagePage {
        messages: page.items.iter().rev().map(MessageView::of).collect(),
        revision: page.revision,
        next_cursor: page.next.map(|seq| cursor.seal(seq)),
    };
    Ok(shown(&out, &about))
}

fn about_page(session: SessionId, page: &ItemPage) -> About {
    About {
        revision: Some(page.revision),
        session: Some(session.to_string()),
        ..About::default()
    }
}

/// How much of the tree to show.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct TreeParams {
    /// Requests that were started before this revision.
    #[param(maximum = 9_007_199_254_740_991u64)]
    before: Option<u64>,
    /// How many requests, 1 to 1000.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
}

/// Tasks, their requests, and the tasks those started.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/tree", tag = "sessions",
    params(("session_id" = String, Path), TreeParams),
    responses((status = 200, body = TreeView))
)]
pub(crate) async fn tree(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    Params(params): Params<TreeParams>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let limit = page_limit(params.limit.or(Some(100)), 1_000)?;
    let before = revision(params.before, "before")?;
    let tree = app
        .engine
        .tree(&asked.caller, session, before, limit)
        .await?;
    let about = About {
        revision: Some(tree.revision),
        session: Some(session.to_string()),
        ..About::default()
    };
    Ok(shown(&TreeView::of(session, &tree), &about))
}

/// Which records to read.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RecordParams {
    /// After this revision.
    #[param(maximum = 9_007_199_254_740_991u64)]
    pub(crate) after: Option<u64>,
    /// How many, 1 to 1000.
    #[param(minimum = 1, maximum = 1_000)]
    pub(crate) limit: Option<usize>,
}

/// Records as they are chained.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct RecordPage {
    #[schema(value_type = Vec<RecordForm>)]
    records: Vec<Box<RawValue>>,
    revision: u64,
}

/// The records of a session: anyone who has them can verify the chain.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/records", tag = "sessions",
    params(("session_id" = String, Path), RecordParams),
    responses((status = 200, body = RecordPage))
)]
pub(crate) async fn records(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    Params(params): Params<RecordParams>,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let limit = page_limit(params.limit.or(Some(100)), 1_000)?;
    let after = revision(params.after, "after")?.unwrap_or(0);
    let (summary, records) = app
        .engine
        .records(&asked.caller, session, after, limit)
        .await?;
    let chained = |stored: &StoredRecord| {
        with_hash(stored.record.as_bytes(), &stored.record.hash.to_string())
    };
    let page = RecordPage {
        records: records.iter().map(chained).collect(),
        revision: summary.revision,
    };
    Ok(answer(StatusCode::OK, to_body(&page), &about(&summary)))
}

/// The canonical bytes of a record, with its hash as one more field.
pub(crate) fn with_hash(bytes: &[u8], hash: &str) -> Box<RawValue> {
    let text = String::from_utf8_lossy(bytes);
    let open = text.strip_suffix('}').unwrap_or(&text);
    raw_bytes(format!("{open},\"hash\":\"{hash}\"}}").as_bytes())
}
