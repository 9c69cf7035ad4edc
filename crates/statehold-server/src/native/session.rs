//! Sessions: create, list, read, change, close, delete; their messages, tree and records.

use http::StatusCode;
use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::scope::{Scope, StateKey};
use statehold_core::session::SessionStatus;
use statehold_engine::api;
use statehold_engine::api::annotation::{
    AnnotationsInput, AnnotationsView, MetadataInput, MetadataView,
};
use statehold_engine::api::json::{Time, to_body};
use statehold_engine::api::message::{AppendedMessageInput, MessageWritten};
use statehold_engine::api::past::{DiffInput, SessionDiff};
use statehold_engine::api::schema::{Messages, SessionOrderWord, TraceFormWord, ViewWord};
use statehold_engine::api::session::{
    CloseSessionInput, CreatedSession, ForkInput, RecordPage, RewindInput, SessionChanges,
    SessionInput, SessionListInput, SessionPage, SessionView,
};
use statehold_engine::api::tree::TreeView;
use statehold_engine::{PageLimit, SessionOrder};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{
    Answer, AnswerHeaders, Cursor, PAGE_MAX, answer, committed, name_in_query, page_limit,
    plain_page, revision, shown, word_in_query,
};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, Params};
use crate::http::problem::{Code, Problem};
use crate::http::read_token;

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(create, list))
        .routes(routes!(read, patch, delete))
        .routes(routes!(close))
        .routes(routes!(fork))
        .routes(routes!(rewind))
        .routes(routes!(messages, append))
        .routes(routes!(annotate))
        .routes(routes!(metadata, set_metadata))
        .routes(routes!(make_token))
        .routes(routes!(tree))
        .routes(routes!(records))
        .routes(routes!(diff))
}

/// Create a session.
///
/// With `get_or_create` the answer is 200 with the session of this app and user that has the name, if there
/// is one.
#[utoipa::path(
    post, path = "/v1/sessions", tag = "sessions",
    operation_id = "createSession", request_body = SessionInput,
    responses((status = 201, body = SessionView), (status = 200, body = SessionView))
)]
async fn create(context: CallContext, body: Payload<SessionInput>) -> Answer {
    let call = context.call(&body.bytes);
    let created = api::session::create_or_get(context.engine(), &call, body.value).await?;
    Ok(match created {
        CreatedSession::New(receipt) => {
            let headers = AnswerHeaders::session(receipt.view.id);
            committed(StatusCode::CREATED, receipt, headers)
        }
        CreatedSession::Found(view) => {
            let headers = AnswerHeaders::session(view.id).at(view.revision);
            shown(&view, headers)
        }
    })
}

/// Filter and page of a session list.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct SessionListParams {
    /// Only sessions of this app.
    #[param(value_type = Option<Name>)]
    app: Option<String>,
    /// Only sessions of this user.
    user: Option<String>,
    /// `running`, `paused`, `idle` or `closed`.
    #[param(value_type = Option<SessionStatus>)]
    status: Option<String>,
    /// Only sessions with this label: `key` or `key:value`.
    label: Option<String>,
    /// Only sessions with this text in the name or a label.
    q: Option<String>,
    /// Only the session with this name. Needs `app`, and `user` unless the key is bound to one.
    name: Option<String>,
    /// `created_at` (default) or `updated_at`, newest first.
    #[param(value_type = Option<SessionOrderWord>)]
    order: Option<String>,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Page size, 1 to 200.
    #[param(minimum = 1, maximum = 200)]
    limit: Option<usize>,
}

const STATUS_WORDS: &str = "`status` is running, paused, idle or closed";
const ORDER_WORDS: &str = "`order` is created_at or updated_at";

impl SessionListParams {
    fn parse(self) -> Result<SessionListInput, Problem> {
        let app = self.app.as_deref().map(|app| name_in_query(app, "app"));
        Ok(SessionListInput {
            app: app.transpose()?,
            user: self.user,
            status: word_in_query(self.status.as_deref(), STATUS_WORDS)?,
            label: self.label.map(|label| match label.split_once(':') {
                Some((key, value)) => (key.to_owned(), Some(value.to_owned())),
                None => (label, None),
            }),
            text: self.q,
            name: self.name,
            order: match self.order.as_deref() {
                None | Some("created_at") => SessionOrder::Created,
                Some("updated_at") => SessionOrder::Updated,
                Some(_) => return Err(Problem::new(Code::BadQuery, ORDER_WORDS)),
            },
        })
    }
}

/// List sessions, newest first.
///
/// Needs `client` or `operator`. A page may be short, even empty, and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/sessions", tag = "sessions",
    operation_id = "listSessions", params(SessionListParams),
    responses((status = 200, body = SessionPage))
)]
async fn list(context: CallContext, Params(mut params): Params<SessionListParams>) -> Answer {
    let caller = &context.caller;
    api::session::require_lister(caller)?;
    let limit = page_limit(params.limit.take(), PAGE_MAX)?;
    let begin = params.cursor.take();
    let filter = serde_json::to_string(&params).unwrap_or_default();
    let cursor = Cursor::of(&context, "sessions", &filter);
    let after = cursor.open(begin.as_deref())?;
    let (engine, input) = (context.engine(), params.parse()?);
    let read =
        |page: PageLimit| api::session::list(engine, caller, input.clone(), after, page.entries);
    let page = context.read_page(limit, read).await?;
    let page = SessionPage {
        sessions: page.entries,
        next_cursor: page.next.map(|place| cursor.seal(place)),
    };
    let texts = page.sessions.iter().map(|session| session.labels.bytes());
    let bytes = texts.sum();
    plain_page(page, bytes).await
}

/// Read a session.
///
/// `pending` has the open holds at and below it, oldest first.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}", tag = "sessions",
    operation_id = "getSession",
    responses((status = 200, body = SessionView))
)]
async fn read(context: CallContext) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let view = api::session::read(context.engine(), &context.caller, session).await?;
    Ok(shown(
        &view,
        AnswerHeaders::session(session).at(view.revision),
    ))
}

/// Change the name, the labels or the time to live of a session.
///
/// Fields that are left out stay. `null` removes a name, a label or a time to live.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}", tag = "sessions",
    operation_id = "updateSession", request_body = SessionChanges,
    responses((status = 200, body = SessionView))
)]
async fn patch(context: CallContext, body: Payload<SessionChanges>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let patched = api::session::patch(context.engine(), &call, session, &body.value).await?;
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, patched, headers))
}

/// Delete every payload of a session.
///
/// Live requests are cancelled, and the name is free again. The records of the session stay, for callers who
/// may read records.
#[utoipa::path(
    delete, path = "/v1/sessions/{session_id}", tag = "sessions",
    operation_id = "deleteSession", responses((status = 204))
)]
async fn delete(context: CallContext) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let deleted = api::session::delete(context.engine(), &context.call(b""), session).await?;
    let headers = AnswerHeaders::default();
    Ok(committed(StatusCode::NO_CONTENT, deleted, headers))
}

/// Close a session: it accepts no more writes.
///
/// With live requests this is 409 `requests_live`, unless `cancel_live` is true.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/close", tag = "sessions",
    operation_id = "closeSession",
    request_body = CloseSessionInput, responses((status = 200, body = SessionView))
)]
async fn close(context: CallContext, body: Payload<CloseSessionInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let closed = api::session::close(context.engine(), &call, session, &body.value).await?;
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, closed, headers))
}

/// Copy a session as it was at a revision into a new one.
///
/// State, messages and memories come along; requests and holds in flight stay with the origin, which does not
/// change. Needs `operator`.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/fork", tag = "sessions",
    operation_id = "forkSession",
    request_body = ForkInput, responses((status = 201, body = SessionView))
)]
async fn fork(context: CallContext, body: Payload<ForkInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let forked = api::session::fork(context.engine(), &call, session, &body.value).await?;
    let headers = AnswerHeaders::session(forked.view.id);
    Ok(committed(StatusCode::CREATED, forked, headers))
}

/// Take a session back to an earlier revision.
///
/// Nothing is removed from its records: a rewind is one more. Needs `operator`.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/rewind", tag = "sessions",
    operation_id = "rewindSession",
    request_body = RewindInput, responses((status = 200, body = SessionView))
)]
async fn rewind(context: CallContext, body: Payload<RewindInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let rewound = api::session::rewind(context.engine(), &call, session, &body.value).await?;
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, rewound, headers))
}

/// View and page of messages.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct MessageParams {
    /// `client` (default) or `trace`.
    #[param(value_type = Option<ViewWord>)]
    pub(crate) view: Option<String>,
    /// The form of a trace: `items` (default) or `tool_call_history`.
    #[param(value_type = Option<TraceFormWord>)]
    pub(crate) form: Option<String>,
    /// Show the messages that the session had at this revision.
    #[param(minimum = 1, maximum = 9_007_199_254_740_991u64)]
    pub(crate) at: Option<u64>,
    /// `next_cursor` of the previous page.
    pub(crate) cursor: Option<String>,
    /// Page size, 1 to 200.
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

/// The form of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TraceForm {
    Items,
    ToolCallHistory,
}

/// The form that a call asks for. Only traces have forms.
pub(crate) fn trace_form(form: Option<&str>, is_trace: bool) -> Result<TraceForm, Problem> {
    match form {
        Some("items" | "tool_call_history") if !is_trace => {
            let detail = "`form` is for traces; add `view=trace`";
            Err(Problem::new(Code::BadQuery, detail))
        }
        None | Some("items") => Ok(TraceForm::Items),
        Some("tool_call_history") => Ok(TraceForm::ToolCallHistory),
        Some(_) => {
            let detail = "`form` is items or tool_call_history";
            Err(Problem::new(Code::BadQuery, detail))
        }
    }
}

/// Read the last messages of a session, oldest first.
///
/// With `view=trace` every item, which needs `operator` and is audited.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/messages", tag = "sessions",
    operation_id = "listMessages", params(MessageParams),
    responses((status = 200, body = Messages))
)]
async fn messages(context: CallContext, Params(params): Params<MessageParams>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let limit = page_limit(params.limit, PAGE_MAX)?;
    let is_trace = params.wants_trace()?;
    let caller = &context.caller;
    let at = revision(params.at, "at")?;
    let form = trace_form(params.form.as_deref(), is_trace)?;
    let filter = format!("{session} {is_trace} {form:?} {at:?}");
    let cursor = Cursor::of(&context, "messages", &filter);
    let before = cursor.open(params.cursor.as_deref())?;
    let engine = context.engine();
    if is_trace {
        let headers = AnswerHeaders::session(session);
        return match form {
            TraceForm::Items => {
                let read = |page| api::trace::items(engine, caller, session, at, (before, page));
                let (mut page, next) = context.read_page(limit, read).await?;
                page.next_cursor = next.map(|seq| cursor.seal(seq));
                Ok(shown(&page, headers.at(page.revision)))
            }
            TraceForm::ToolCallHistory => {
                let read = |page| {
                    api::trace::tool_call_history(engine, caller, session, at, (before, page))
                };
                let (mut page, next) = context.read_page(limit, read).await?;
                page.next_cursor = next.map(|seq| cursor.seal(seq));
                Ok(shown(&page, headers.at(page.revision)))
            }
        };
    }
    let read = async |page| match at {
        Some(at) => api::past::messages(engine, caller, session, at, (before, page)).await,
        None => api::session::messages(engine, caller, session, (before, page)).await,
    };
    let (mut page, next) = context.read_page(limit, read).await?;
    page.next_cursor = next.map(|seq| cursor.seal(seq));
    let headers = AnswerHeaders::session(session).at(page.revision);
    Ok(shown(&page, headers))
}

/// Append a message that was said elsewhere.
///
/// No agent is asked. To ask one, start a request.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/messages", tag = "sessions",
    operation_id = "appendMessage",
    request_body = AppendedMessageInput, responses((status = 201, body = MessageWritten))
)]
async fn append(context: CallContext, body: Payload<AppendedMessageInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let written = api::message::append(context.engine(), &call, session, body.value).await?;
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::CREATED, written, headers))
}

/// Add annotations to a message of the transcript.
///
/// They are values of the session: a fork or a rewind takes them along.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}/messages/{seq}/annotations", tag = "sessions",
    operation_id = "annotateMessage",
    request_body = AnnotationsInput, responses((status = 200, body = AnnotationsView))
)]
async fn annotate(context: CallContext, body: Payload<AnnotationsInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let seq: u64 = context.id("seq")?;
    let call = context.call(&body.bytes);
    let written = api::annotation::annotate(context.engine(), &call, session, seq, body.value);
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, written.await?, headers))
}

/// Read the metadata of a conversation.
///
/// Clients keep what they know about the conversation here, such as the intents of its user.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/metadata", tag = "sessions",
    operation_id = "getSessionMetadata",
    responses((status = 200, body = MetadataView))
)]
async fn metadata(context: CallContext) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let (engine, caller) = (context.engine(), &context.caller);
    let view = api::annotation::metadata(engine, caller, session, None).await?;
    let headers = AnswerHeaders::session(session).at(view.revision);
    Ok(shown(&view, headers))
}

/// Change the metadata of a conversation.
///
/// Entries that are left out stay; `if_version` refuses the change if somebody else was faster.
#[utoipa::path(
    patch, path = "/v1/sessions/{session_id}/metadata", tag = "sessions",
    operation_id = "updateSessionMetadata",
    request_body = MetadataInput, responses((status = 200, body = MetadataView))
)]
async fn set_metadata(context: CallContext, body: Payload<MetadataInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let call = context.call(&body.bytes);
    let written = api::annotation::set_metadata(context.engine(), &call, session, body.value);
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, written.await?, headers))
}

/// How long a token lasts.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReadTokenIn)]
struct TokenInput {
    /// Seconds until the token ends; an hour if left out.
    #[schema(minimum = 1, maximum = 86_400)]
    ttl_seconds: Option<u64>,
}

/// A token that reads one session.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ReadToken)]
struct TokenView {
    /// The token, for `Authorization: Bearer`.
    token: String,
    session_id: SessionId,
    expires_at: Time,
}

/// Make a token that reads this session as its user does, and nothing else.
///
/// It is not stored. It ends at its time, with the API key that made it, and with the session.
#[utoipa::path(
    post, path = "/v1/sessions/{session_id}/tokens", tag = "sessions",
    operation_id = "createReadToken", request_body = TokenInput,
    responses((status = 201, body = TokenView))
)]
async fn make_token(context: CallContext, body: Payload<TokenInput>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let seconds = body.value.ttl_seconds.unwrap_or(TOKEN_SECONDS);
    let made = api::caller::read_token(context.engine(), &context.caller, session, seconds).await?;
    if !(1..=TOKEN_SECONDS_MAX).contains(&seconds) {
        let detail = format!("`ttl_seconds` is 1 to {TOKEN_SECONDS_MAX}");
        return Err(Problem::invalid(detail));
    }
    let view = TokenView {
        token: read_token::sealed(&context.app.sealer, &made)
            .expose()
            .to_owned(),
        session_id: session,
        expires_at: made.ends_at.into(),
    };
    let headers = AnswerHeaders::session(session);
    Ok(answer(StatusCode::CREATED, to_body(&view), headers))
}

/// How long a token lasts, unless its maker says otherwise.
const TOKEN_SECONDS: u64 = 60 * 60;
const TOKEN_SECONDS_MAX: u64 = 24 * 60 * 60;

/// Range of the tree.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct TreeParams {
    /// Only requests started before this revision.
    #[param(maximum = 9_007_199_254_740_991u64)]
    before: Option<u64>,
    /// Number of requests, 1 to 1000.
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
}

/// Read the tree of a session.
///
/// It has the open tasks, their newest requests, and the child tasks of those.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/tree", tag = "sessions",
    operation_id = "getSessionTree", params(TreeParams),
    responses((status = 200, body = TreeView))
)]
async fn tree(context: CallContext, Params(params): Params<TreeParams>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let limit = page_limit(params.limit.or(Some(100)), 1_000)?;
    let before = revision(params.before, "before")?;
    let tree = api::tree::read(context.engine(), &context.caller, session, before, limit).await?;
    Ok(shown(
        &tree,
        AnswerHeaders::session(session).at(tree.revision),
    ))
}

/// Range of records.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RecordParams {
    /// Only records after this revision.
    #[param(maximum = 9_007_199_254_740_991u64)]
    pub(crate) after: Option<u64>,
    /// Page size, 1 to 1000.
    #[param(minimum = 1, maximum = 1_000)]
    pub(crate) limit: Option<usize>,
}

/// Read the records of a session.
///
/// They are a hash chain that any reader can verify. Needs `operator`.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/records", tag = "sessions",
    operation_id = "listRecords", params(RecordParams),
    responses((status = 200, body = RecordPage))
)]
async fn records(context: CallContext, Params(params): Params<RecordParams>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let limit = page_limit(params.limit.or(Some(100)), 1_000)?;
    let after = revision(params.after, "after")?.unwrap_or(0);
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::session::records(engine, caller, session, after, page);
    let page = context.read_page(limit, read).await?;
    Ok(shown(
        &page,
        AnswerHeaders::session(session).at(page.revision),
    ))
}

/// Range of a difference.
#[derive(Debug, Deserialize, Serialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct DiffParams {
    /// The earlier revision; 0 (default) is the empty session before its first record.
    #[param(maximum = 9_007_199_254_740_991u64)]
    from: Option<u64>,
    /// The later revision; the newest one by default.
    #[param(maximum = 9_007_199_254_740_991u64)]
    to: Option<u64>,
    /// Only changes of this session key.
    #[param(value_type = Option<StateKey>)]
    key: Option<String>,
    /// Show every write on its own, in the order of the records.
    #[serde(default)]
    every_write: bool,
    /// `next_cursor` of the previous page.
    cursor: Option<String>,
    /// Number of records that a page looks at, 1 to 1000 (default).
    #[param(minimum = 1, maximum = 1_000)]
    limit: Option<usize>,
}

impl DiffParams {
    fn parse(&self) -> Result<DiffInput, Problem> {
        let key = self.key.as_deref().map(|key| match StateKey::lenient(key) {
            Ok(key) if key.scope() == Scope::Session => Ok(key),
            Ok(_) => {
                let detail = "`key` is a session key: the past of a session has no `app:`, `user:` or `temp:` keys";
                Err(Problem::new(Code::BadQuery, detail))
            }
            Err(error) => Err(Problem::new(Code::BadQuery, format!("`key`: {error}"))),
        });
        Ok(DiffInput {
            from: revision(self.from, "from")?.unwrap_or(0),
            to: revision(self.to, "to")?,
            key: key.transpose()?,
            every_write: self.every_write,
        })
    }
}

/// Read the difference between two revisions of a session.
///
/// It has the keys that changed, with who wrote them, and the messages that came. Needs `operator`.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/diff", tag = "sessions",
    operation_id = "getSessionDiff", params(DiffParams),
    responses((status = 200, body = SessionDiff))
)]
async fn diff(context: CallContext, Params(mut params): Params<DiffParams>) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let limit = page_limit(params.limit.take().or(Some(1_000)), 1_000)?;
    let begin = params.cursor.take();
    let filter = serde_json::to_string(&params).unwrap_or_default();
    let cursor = Cursor::of(&context, "diff", &format!("{session} {filter}"));
    let (place, input) = (cursor.open(begin.as_deref())?, params.parse()?);
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::past::diff(engine, caller, session, &input, (place, page));
    let (mut page, next) = context.read_page(limit, read).await?;
    page.next_cursor = next.map(|place| cursor.seal(place));
    Ok(shown(&page, AnswerHeaders::session(session)))
}
