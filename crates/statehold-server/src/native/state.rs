//! State of sessions, apps and users.

use http::StatusCode;
use serde::Deserialize;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::scope::{Scope, StateKey};
use statehold_engine::api;
use statehold_engine::api::state::{
    PROVENANCE_KEYS_MAX, SessionStateInput, StatePatchInput, StateQuery, StateQueryInput,
    StateView, StateWritten, add_provenance, require_provenance_reader,
};
use utoipa::IntoParams;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, AnswerHeaders, Cursor, committed, page_limit, revision, shown};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, Params};
use crate::http::problem::{Code, Problem};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(read, patch))
        .routes(routes!(read_app, patch_app))
        .routes(routes!(read_user, patch_user))
}

/// The request whose `temp:` values to show, and the page.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct StateParams {
    /// Also show the `temp:` values of this request, on the first page.
    request_id: Option<RequestId>,
    /// Only these keys, separated by commas, at most 256.
    keys: Option<String>,
    /// Only keys that begin with this text. Without the prefix of a scope: session keys.
    prefix: Option<String>,
    /// Only keys behind this one, in the order of reading.
    after: Option<String>,
    /// Take the last keys, not the first. The keys of a page are in ascending order all the same.
    reverse: Option<bool>,
    /// Show the session keys as they were at this revision, without the values of app and user.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991u64)]
    at: Option<u64>,
    /// Also show who wrote each value, when, and for which request; at most 256 keys. Needs `operator`.
    provenance: Option<bool>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Number of keys, 1 to 10000.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<usize>,
}

impl StateParams {
    fn has_part(&self) -> bool {
        let (keys, prefix) = (&self.keys, &self.prefix);
        keys.is_some()
            || prefix.is_some()
            || self.after.is_some()
            || self.reverse.is_some()
            || self.provenance.is_some()
    }
}

/// Page of state.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct StatePageParams {
    /// Only these keys, separated by commas, at most 256.
    keys: Option<String>,
    /// Only keys that begin with this text. Without the prefix of a scope: session keys.
    prefix: Option<String>,
    /// Only keys behind this one, in the order of reading.
    after: Option<String>,
    /// Take the last keys, not the first. The keys of a page are in ascending order all the same.
    reverse: Option<bool>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Number of keys, 1 to 10000.
    #[param(minimum = 1, maximum = 10_000)]
    limit: Option<usize>,
}

/// The keys of a page, unless the caller asks for fewer.
const KEYS_MAX: usize = 10_000;

/// The part of the state that a read is about.
struct StatePart(StateQueryInput);

impl StatePart {
    fn of(
        keys: Option<String>,
        prefix: Option<String>,
        after: Option<String>,
        reverse: Option<bool>,
    ) -> Self {
        let reverse = reverse.unwrap_or(false);
        Self(StateQueryInput {
            keys,
            prefix,
            after,
            reverse,
        })
    }

    /// The text that a cursor is bound to.
    fn filter(&self, owner: &str) -> String {
        let part = serde_json::to_string(&self.0).unwrap_or_default();
        format!("{owner} {part}")
    }

    /// The query from the cursor on, with the number of keys of a page.
    fn query(
        self,
        cursor: &Cursor<'_>,
        begin: Option<&str>,
        scope: Option<Scope>,
        limit: Option<usize>,
    ) -> Result<(StateQuery, usize), Problem> {
        let limit = page_limit(limit.or(Some(KEYS_MAX)), KEYS_MAX)?;
        let after: Option<StateKey> = cursor.open(begin)?;
        let query = self.0.parse(scope)?;
        Ok((query.after(after), limit))
    }
}

/// Read the state of a session, with the values of its app and user.
///
/// A read of a part costs as much as the part: name `keys`, or a `prefix`.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/state", tag = "state",
    operation_id = "getSessionState", params(StateParams),
    responses((status = 200, body = StateView))
)]
async fn read(context: CallContext, Params(params): Params<StateParams>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let state = page(&context, session, params).await?;
    let headers = AnswerHeaders::session(session).at(state.revision);
    Ok(shown(&state, headers))
}

/// A page of the state of a session.
pub(crate) async fn page(
    context: &CallContext,
    session: SessionId,
    params: StateParams,
) -> Result<StateView, Problem> {
    if let Some(at) = revision(params.at, "at")? {
        return read_past(context, session, at, &params).await;
    }
    let has_provenance = params.provenance == Some(true);
    if has_provenance {
        let (engine, caller) = (context.engine(), &context.caller);
        require_provenance_reader(engine, caller, session).await?;
    }
    let limit = match params.limit {
        limit if !has_provenance => limit,
        limit => Some(page_limit(
            limit.or(Some(PROVENANCE_KEYS_MAX)),
            PROVENANCE_KEYS_MAX,
        )?),
    };
    let request = params.request_id;
    let part = StatePart::of(params.keys, params.prefix, params.after, params.reverse);
    let cursor = Cursor::of(context, "state", &part.filter(&session.to_string()));
    let (query, limit) = part.query(&cursor, params.cursor.as_deref(), None, limit)?;
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::state::read(engine, caller, session, request, (&query, page));
    let (mut state, next) = context.read_page(limit, read).await?;
    state.next_cursor = next.map(|key| cursor.seal(key));
    if has_provenance {
        add_provenance(engine, caller, session, &mut state).await?;
    }
    Ok(state)
}

async fn read_past(
    context: &CallContext,
    session: SessionId,
    at: u64,
    params: &StateParams,
) -> Result<StateView, Problem> {
    let limit = page_limit(params.limit.or(Some(KEYS_MAX)), KEYS_MAX)?;
    if params.has_part() {
        let detail = "`at` reads all session keys: leave out `keys`, `prefix`, `after`, `reverse` and \
                      `provenance` (`diff` tells who wrote them)";
        return Err(Problem::new(Code::BadQuery, detail));
    }
    if params.request_id.is_some() {
        let detail = "`temp:` values have no past: leave out `request_id` or `at`";
        return Err(Problem::new(Code::BadQuery, detail));
    }
    let cursor = Cursor::of(context, "past state", &format!("{session} {at}"));
    let after: Option<StateKey> = cursor.open(params.cursor.as_deref())?;
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::past::state(engine, caller, session, at, (after.clone(), page));
    let (mut state, next) = context.read_page(limit, read).await?;
    state.next_cursor = next.map(|key| cursor.seal(key));
    Ok(state)
}

/// Write state of a session, its user or (as an admin) its app.
///
/// `if_versions` refuses the write if a key has another version; `merge` says how a value joins the one that
/// is there.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}/state", tag = "state",
    operation_id = "updateSessionState",
    request_body = SessionStateInput, responses((status = 200, body = StateWritten))
)]
async fn patch(context: CallContext, body: Payload<SessionStateInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let written = api::state::patch(context.engine(), &call, session, body.value).await?;
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, written, headers))
}

/// Read the state of an app.
///
/// `revision` is the number of direct writes through this route, plus one; 0 before the first.
#[utoipa::path(
    get, path = "/v1/state/app/{app}", tag = "state",
    operation_id = "getAppState", params(StatePageParams),
    responses((status = 200, body = StateView))
)]
async fn read_app(context: CallContext, Params(params): Params<StatePageParams>) -> Answer {
    read_shared(&context, context.path_text("app"), None, params).await
}

async fn read_shared(
    context: &CallContext,
    app: &str,
    user: Option<&str>,
    params: StatePageParams,
) -> Answer {
    let scope = Some(user.map_or(Scope::App, |_| Scope::User));
    let part = StatePart::of(params.keys, params.prefix, params.after, params.reverse);
    let owner = format!("{app}/{}", user.unwrap_or_default());
    let cursor = Cursor::of(context, "shared state", &part.filter(&owner));
    let (query, limit) = part.query(&cursor, params.cursor.as_deref(), scope, params.limit)?;
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::state::read_shared(engine, caller, app, user, (&query, page));
    let (mut state, next) = context.read_page(limit, read).await?;
    state.next_cursor = next.map(|key| cursor.seal(key));
    Ok(shown(&state, AnswerHeaders::default().at(state.revision)))
}

/// Write the state of an app.
///
/// Needs `admin`. The prefix `app:` may be left out.
#[utoipa::path(
    patch, path = "/v1/state/app/{app}", tag = "state",
    operation_id = "updateAppState",
    request_body = StatePatchInput, responses((status = 200, body = StateWritten))
)]
async fn patch_app(context: CallContext, body: Payload<StatePatchInput>) -> Answer {
    let call = context.call(&body.bytes);
    let app = context.path_text("app");
    let written = api::state::patch_app(context.engine(), &call, app, body.value).await?;
    Ok(committed(StatusCode::OK, written, AnswerHeaders::default()))
}

/// Read the state of a user in an app.
///
/// `revision` is the number of direct writes through this route, plus one; 0 before the first.
#[utoipa::path(
    get, path = "/v1/state/user/{app}/{user}", tag = "state",
    operation_id = "getUserState", params(StatePageParams),
    responses((status = 200, body = StateView))
)]
async fn read_user(context: CallContext, Params(params): Params<StatePageParams>) -> Answer {
    let (app, user) = (context.path_text("app"), context.path_text("user"));
    read_shared(&context, app, Some(user), params).await
}

/// Write the state of a user in an app.
///
/// Needs `client` or `admin`. The prefix `user:` may be left out.
#[utoipa::path(
    patch, path = "/v1/state/user/{app}/{user}", tag = "state",
    operation_id = "updateUserState",
    request_body = StatePatchInput, responses((status = 200, body = StateWritten))
)]
async fn patch_user(context: CallContext, body: Payload<StatePatchInput>) -> Answer {
    let call = context.call(&body.bytes);
    let owner = (context.path_text("app"), context.path_text("user"));
    let written = api::state::patch_user(context.engine(), &call, owner, body.value).await?;
    Ok(committed(StatusCode::OK, written, AnswerHeaders::default()))
}
