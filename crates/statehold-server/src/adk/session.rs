//! Sessions: create, list, read, change, delete, append.

use std::collections::BTreeMap;

use axum::response::Response;
use http::{HeaderValue, StatusCode, header};
use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_engine::api::event::{
    self, EventInput, EventQuery, EventWritten, HoldAnswer, SessionHistory,
};
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::session::{self as sessions, SessionInput};
use statehold_engine::{Call, EngineError, Receipt};

use super::confirmation::{confirmation, question_event};
use super::errors::session_problem;
use super::event::{ClientEvent, shown, state_event};
use crate::http::body::AsWritten;
use crate::http::call::{CallContext, Params};
use crate::http::problem::Problem;
use crate::native::{Answer, AnswerHeaders, Cursor, answer, committed, page_limit, plain};

/// The code of an answer that would have too many bytes.
const LIMIT_REACHED: &str = "limit_reached";
/// Most sessions in one answer.
const SESSIONS_MAX: usize = 1_000;
/// Most events that a session begins with.
const FIRST_EVENTS_MAX: usize = 1_000;
/// Sessions of evaluations, which no list shows.
const EVAL_PREFIXES: [&str; 2] = ["adk-eval-session-", "___eval___session___"];

/// A session to create. Other fields are ignored, as ADK's server does.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct SessionIn {
    #[serde(alias = "session_id")]
    session_id: Option<String>,
    state: Option<BTreeMap<String, Raw>>,
    events: Option<Vec<Raw>>,
}

/// A session as ADK's server shows it. Its clients refuse further fields.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct SessionOut {
    id: String,
    app_name: String,
    user_id: String,
    state: BTreeMap<String, Raw>,
    events: Vec<Raw>,
    last_update_time: f64,
}

impl SessionOut {
    fn of(history: SessionHistory) -> Self {
        let view = history.session;
        let agent = view.agent.as_str();
        let mut events: Vec<Raw> = history
            .events
            .into_iter()
            .map(|event| shown(event, agent))
            .collect();
        events.extend(history.approvals.iter().map(confirmation));
        Self {
            id: view.name.unwrap_or_else(|| view.id.to_string()),
            app_name: view.app.to_string(),
            user_id: view.user,
            state: history.state,
            events,
            last_update_time: history.last_update,
        }
    }
}

/// Which session a path names. Its id is trimmed, as ADK's services do.
struct SessionPath<'a> {
    context: &'a CallContext,
    app: &'a str,
    user: &'a str,
    id: &'a str,
}

impl<'a> SessionPath<'a> {
    fn of(context: &'a CallContext) -> Self {
        Self {
            context,
            app: context.path_text("app"),
            user: context.path_text("user"),
            id: context.path_text("session").trim(),
        }
    }

    fn problem(&self, error: EngineError) -> Problem {
        session_problem(error, self.id)
    }

    async fn find(&self) -> Result<SessionId, Problem> {
        let (engine, caller) = (self.context.engine(), &self.context.caller);
        let found = event::find(engine, caller, (self.app, self.user), self.id).await;
        found.map_err(|error| self.problem(error))
    }

    /// Puts the values that session keys had before an invocation into the event that rewinds to it. ADK derives them
    /// from events, so it takes values that the session began with for absent, and writes null.
    async fn restore(&self, session: SessionId, sent: &mut ClientEvent) -> Result<(), Problem> {
        let Some(mut rewind) = sent.rewinds.take() else {
            return Ok(());
        };
        let (engine, caller) = (self.context.engine(), &self.context.caller);
        let keys = std::mem::take(&mut rewind.keys);
        let values = event::values_before(engine, caller, session, &rewind.before, keys).await;
        sent.restore(&rewind, values.map_err(|error| self.problem(error))?)
    }

    /// Appends an event, and decides the holds that it answers.
    async fn append(
        &self,
        call: &Call,
        session: SessionId,
        input: EventInput,
        answers: Vec<HoldAnswer>,
    ) -> Result<Receipt<EventWritten>, Problem> {
        let (engine, memory) = (self.context.engine(), self.context);
        if answers.is_empty() {
            let appended = event::append(engine, call, session, input).await;
            return appended.map_err(|error| self.problem(error));
        }
        let holds = event::answered_holds(engine, &call.caller, session, &answers, memory).await?;
        let events = (holds.iter().map(question_event).collect(), input);
        let appended = event::answer(engine, call, session, events, answers, memory).await;
        appended.map_err(|error| match error {
            EngineError::NotFound => error.into(),
            error => self.problem(error),
        })
    }

    /// The answer with the session, and the values of `more` in its state.
    async fn show(
        &self,
        session: SessionId,
        query: EventQuery,
        more: BTreeMap<String, Raw>,
    ) -> Answer {
        let context = self.context;
        let (engine, caller) = (context.engine(), &context.caller);
        let history = event::read(engine, caller, session, query, context).await;
        let mut history = history.map_err(|error| self.problem(error))?;
        history.state.extend(more);
        let headers = AnswerHeaders::session(session).at(history.session.revision);
        let body = to_body(&SessionOut::of(history));
        Ok(answer(StatusCode::OK, body, headers))
    }

    /// The answer to a write. A session that is too large to show comes without state and events: the write is done.
    async fn show_written(&self, session: SessionId, more: BTreeMap<String, Raw>) -> Answer {
        let context = self.context;
        match self.show(session, EventQuery::default(), more).await {
            Err(problem) if problem.code == LIMIT_REACHED => {
                let (engine, caller) = (context.engine(), &context.caller);
                let head = event::read_head(engine, caller, session).await;
                let head = head.map_err(|error| self.problem(error))?;
                let headers = AnswerHeaders::session(session).at(head.session.revision);
                Ok(answer(
                    StatusCode::OK,
                    to_body(&SessionOut::of(head)),
                    headers,
                ))
            }
            shown => shown,
        }
    }
}

fn now(context: &CallContext) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "exact for 285 years from 1970")]
    let micros = context.engine().now().as_micros() as f64;
    micros / 1e6
}

pub(super) async fn create(context: CallContext, body: AsWritten<SessionIn>) -> Answer {
    let id = body.value.session_id.clone().unwrap_or_default();
    create_named(&context, id.trim(), body).await
}

/// The route that ADK has deprecated: the body is the state.
pub(super) async fn create_with_id(
    context: CallContext,
    body: AsWritten<BTreeMap<String, Raw>>,
) -> Answer {
    let id = context.path_text("session").trim().to_owned();
    let body = AsWritten {
        value: SessionIn {
            state: Some(body.value),
            ..SessionIn::default()
        },
        bytes: body.bytes,
    };
    create_named(&context, &id, body).await
}

async fn create_named(context: &CallContext, id: &str, body: AsWritten<SessionIn>) -> Answer {
    let engine = context.engine();
    let path = SessionPath {
        id,
        ..SessionPath::of(context)
    };
    let first = first_events(context, &body.value.events.unwrap_or_default())?;
    let input = SessionInput {
        app: path.app.to_owned(),
        user: Some(path.user.to_owned()),
        name: (!id.is_empty()).then(|| id.to_owned()),
        ..SessionInput::default()
    };
    let call = context.call(&body.bytes);
    let state = body.value.state.unwrap_or_default();
    let created = event::create(engine, &call, input, (state, first)).await;
    let created = created.map_err(|error| path.problem(error))?;
    let session = created.view.id;
    path.show_written(session, BTreeMap::new()).await
}

/// The events that a session begins with: messages, without actions and reserved function calls.
fn first_events(context: &CallContext, sent: &[Raw]) -> Result<Vec<EventInput>, Problem> {
    if sent.is_empty() {
        return Ok(Vec::new());
    }
    event::require_recorder(&context.caller)?;
    if sent.len() > FIRST_EVENTS_MAX {
        let detail = format!("a session begins with at most {FIRST_EVENTS_MAX} `events`");
        return Err(Problem::invalid(detail).with("path", "events"));
    }
    let mut events = Vec::new();
    for (index, sent) in sent.iter().enumerate() {
        let parsed = ClientEvent::of(sent, &format!("events[{index}]"), now(context))?;
        if let Some(what) = parsed.forbidden_in_initial_event {
            let detail = format!("Session initialization event {index} cannot include {what}.");
            let invalid = Problem::invalid(detail).with("path", "events");
            return Err(Problem {
                status: 400,
                ..invalid
            });
        }
        events.extend(parsed.input);
    }
    Ok(events)
}

/// Page of a list. ADK's own server has none: its lists are whole.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListParams {
    cursor: Option<String>,
    limit: Option<usize>,
}

pub(super) async fn list(context: CallContext, Params(params): Params<ListParams>) -> Answer {
    list_of(&context, Some(context.path_text("user")), params).await
}

/// The sessions of all users that the caller may see.
pub(super) async fn list_all(context: CallContext, Params(params): Params<ListParams>) -> Answer {
    list_of(&context, None, params).await
}

async fn list_of(context: &CallContext, user: Option<&str>, params: ListParams) -> Answer {
    let (engine, caller) = (context.engine(), &context.caller);
    sessions::require_lister(caller)?;
    let limit = page_limit(params.limit.or(Some(SESSIONS_MAX)), SESSIONS_MAX)?;
    let cursor = Cursor::of(context, "adk.sessions", context.path());
    let after = cursor.open(params.cursor.as_deref())?;
    let Ok(app) = context.path_text("app").parse::<Name>() else {
        return Ok(plain(&Vec::<SessionOut>::new()));
    };
    let page = event::list(engine, caller, (&app, user), (after, limit), context).await?;
    let mut found: Vec<_> = page.entries.into_iter().map(SessionOut::of).collect();
    found.retain(|session| {
        !EVAL_PREFIXES
            .iter()
            .any(|eval| session.id.starts_with(eval))
    });
    // The pages are newest first; within one the session that was changed last is the last.
    found.reverse();
    found.sort_by(|a, b| a.last_update_time.total_cmp(&b.last_update_time));
    let mut response = plain(&found);
    if let Some(next) = page.next {
        let link = format!(
            "<{}?cursor={}>; rel=\"next\"",
            context.path(),
            cursor.seal(next)
        );
        if let Ok(link) = HeaderValue::try_from(link) {
            response.headers_mut().insert(header::LINK, link);
        }
    }
    Ok(response)
}

/// Which events to show. ADK's own server shows all.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReadParams {
    num_recent_events: Option<usize>,
    after_timestamp: Option<f64>,
}

pub(super) async fn read(context: CallContext, Params(params): Params<ReadParams>) -> Answer {
    let path = SessionPath::of(&context);
    let session = path.find().await?;
    let query = EventQuery {
        recent: params.num_recent_events,
        since: params.after_timestamp,
    };
    path.show(session, query, BTreeMap::new()).await
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PatchIn {
    #[serde(alias = "state_delta")]
    state_delta: BTreeMap<String, Raw>,
}

pub(super) async fn patch(context: CallContext, body: AsWritten<PatchIn>) -> Answer {
    event::require_recorder(&context.caller)?;
    let path = SessionPath::of(&context);
    let session = path.find().await?;
    let delta = body.value.state_delta;
    let sent = ClientEvent::of(
        &state_event(&delta, now(&context)),
        "stateDelta",
        now(&context),
    )?;
    if let Some(input) = sent.input {
        let call = context.call(&body.bytes);
        let written = event::append(context.engine(), &call, session, input).await;
        written.map_err(|error| path.problem(error))?;
    }
    // ADK's server shows these once, and stores them nowhere.
    let temp = delta
        .into_iter()
        .filter(|(key, _)| key.starts_with("temp:"));
    path.show_written(session, temp.collect()).await
}

/// Deletes a session. It is no error if there is none.
pub(super) async fn delete(context: CallContext) -> Answer {
    let path = SessionPath::of(&context);
    let (engine, caller) = (context.engine(), &context.caller);
    match event::find(engine, caller, (path.app, path.user), path.id).await {
        Ok(session) => {
            let deleted = sessions::delete(engine, &context.call(b""), session).await;
            deleted.map_err(|error| path.problem(error))?;
        }
        Err(EngineError::NotFound) => event::require_deleter(caller)?,
        Err(error) => return Err(path.problem(error)),
    }
    Ok(plain(&()))
}

#[derive(Debug, Deserialize)]
pub(super) struct AppendIn {
    event: Raw,
    /// The revision of the session that the client has.
    revision: Option<u64>,
}

pub(super) async fn append(context: CallContext, body: AsWritten<AppendIn>) -> Answer {
    // Roles before objects: the answer must not tell whether the session exists.
    event::require_recorder(&context.caller)?;
    let path = SessionPath::of(&context);
    let session = path.find().await?;
    let mut sent = ClientEvent::of(&body.value.event, "event", now(&context))?;
    path.restore(session, &mut sent).await?;
    let Some(input) = sent.input else {
        return Ok(partial(&sent.json));
    };
    let mut call = context.call(&body.bytes);
    call.if_revision = body.value.revision.or(call.if_revision);
    let appended = path.append(&call, session, input, sent.answers).await?;
    let headers = AnswerHeaders::session(session);
    Ok(committed(StatusCode::OK, appended, headers))
}

/// The answer to a piece of an event, of which nothing is stored.
fn partial(event: &Raw) -> Response {
    plain(&BTreeMap::from([("event", event)]))
}

/// The state of a user, under keys without their prefix.
pub(super) async fn user_state(context: CallContext) -> Answer {
    let owner = (context.path_text("app"), context.path_text("user"));
    let values = event::user_state(context.engine(), &context.caller, owner, &context).await?;
    Ok(plain(&values))
}
