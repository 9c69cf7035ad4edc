//! The list of sessions, with its filters.

use askama::Template;
use axum::extract::RawQuery;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use statehold_core::session::SessionStatus;
use statehold_engine::api::session::{self, SessionListInput, SessionView};
use statehold_engine::{PageLimit, SessionOrder};

use super::access::ConsoleCall;
use super::page::{Frame, whole};
use super::text::{in_address, shown};
use super::{answered, page};
use crate::http::problem::{Code, Problem};
use crate::native::{Cursor, name_in_query};

/// Sessions on a page.
const PAGE: usize = 50;

/// The filters, as the form of the page sends them: an empty field is none.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ListQuery {
    #[serde(default)]
    status: String,
    #[serde(default)]
    app: String,
    #[serde(default)]
    user: String,
    #[serde(default)]
    q: String,
    #[serde(default)]
    order: String,
    #[serde(default, skip_serializing)]
    cursor: String,
}

#[derive(Template)]
#[template(path = "console/sessions.html")]
struct SessionsPage {
    frame: Frame,
    statuses: Vec<StatusTab>,
    query: ListQuery,
    by_update: bool,
    rows: Vec<SessionRow>,
    is_first: bool,
    first: String,
    next: Option<String>,
}

/// A status to filter by.
struct StatusTab {
    name: &'static str,
    href: String,
    is_chosen: bool,
}

struct SessionRow {
    id: String,
    /// Its name, or a part of its id.
    name: String,
    is_named: bool,
    status: &'static str,
    app: String,
    user: String,
    agent: String,
    revision: u64,
    updated: String,
    labels: Vec<String>,
}

impl SessionRow {
    fn of(session: &SessionView) -> Self {
        let id = session.id.to_string();
        let end = id.len().saturating_sub(6);
        let name = match &session.name {
            Some(name) => shown(name),
            None => format!("…{}", &id[end..]),
        };
        let labels = session.labels.to_map().into_iter();
        Self {
            name,
            is_named: session.name.is_some(),
            status: status_word(session.status),
            app: session.app.to_string(),
            user: shown(&session.user),
            agent: session.agent.to_string(),
            revision: session.revision,
            updated: page::time(session.updated_at),
            labels: labels
                .map(|(key, value)| shown(&format!("{key}:{value}")))
                .collect(),
            id,
        }
    }
}

pub(super) fn status_word(status: SessionStatus) -> &'static str {
    match status {
        SessionStatus::Running => "running",
        SessionStatus::Paused => "paused",
        SessionStatus::Idle => "idle",
        SessionStatus::Closed => "closed",
    }
}

impl ListQuery {
    fn parse(&self) -> Result<SessionListInput, Problem> {
        let given = |text: &str| (!text.is_empty()).then(|| text.to_owned());
        let app = given(&self.app).map(|app| name_in_query(&app, "app"));
        let status = match self.status.as_str() {
            "" => None,
            "running" => Some(SessionStatus::Running),
            "paused" => Some(SessionStatus::Paused),
            "idle" => Some(SessionStatus::Idle),
            "closed" => Some(SessionStatus::Closed),
            _ => return Err(bad("`status` is running, paused, idle or closed")),
        };
        Ok(SessionListInput {
            app: app.transpose()?,
            user: given(&self.user),
            status,
            text: given(&self.q),
            order: match self.order.as_str() {
                "" | "updated_at" => SessionOrder::Updated,
                "created_at" => SessionOrder::Created,
                _ => return Err(bad("`order` is updated_at or created_at")),
            },
            ..SessionListInput::default()
        })
    }

    /// The address of this list with another status, or of its next page.
    fn address(&self, status: &str, cursor: Option<&str>) -> String {
        let parts = [
            ("status", status),
            ("app", &self.app),
            ("user", &self.user),
            ("q", &self.q),
            ("order", &self.order),
            ("cursor", cursor.unwrap_or_default()),
        ];
        let parts = parts.into_iter().filter(|(_, value)| !value.is_empty());
        let parts: Vec<String> = parts
            .map(|(name, value)| format!("{name}={}", in_address(value)))
            .collect();
        if parts.is_empty() {
            return "/console/sessions".to_owned();
        }
        format!("/console/sessions?{}", parts.join("&"))
    }
}

fn bad(detail: &str) -> Problem {
    Problem::new(Code::BadQuery, detail)
}

pub(super) async fn list(
    call: Result<ConsoleCall, Response>,
    RawQuery(query): RawQuery,
) -> Response {
    match call {
        Ok(call) => answered(&call, list_page(&call, query.as_deref()).await),
        Err(refused) => refused,
    }
}

async fn list_page(call: &ConsoleCall, query: Option<&str>) -> Result<Response, Problem> {
    let query: ListQuery = page::query(query)?;
    let context = &call.context;
    let filter = serde_json::to_string(&query).unwrap_or_default();
    let cursor = Cursor::of(context, "console sessions", &filter);
    let begin = (!query.cursor.is_empty()).then_some(query.cursor.as_str());
    let after = cursor.open(begin)?;
    let (engine, caller, input) = (context.engine(), &context.caller, query.parse()?);
    let read = |page: PageLimit| session::list(engine, caller, input.clone(), after, page.entries);
    let found = context.read_page(PAGE, read).await?;
    let next = found.next.map(|place| cursor.seal(place));
    let tab = |name: &'static str, status: &str| StatusTab {
        name,
        href: query.address(status, None),
        is_chosen: query.status == status,
    };
    let page = SessionsPage {
        frame: Frame::new("Sessions", Some(call)),
        statuses: vec![
            tab("All", ""),
            tab("Paused", "paused"),
            tab("Running", "running"),
            tab("Idle", "idle"),
            tab("Closed", "closed"),
        ],
        by_update: input.order == SessionOrder::Updated,
        rows: found.entries.iter().map(SessionRow::of).collect(),
        is_first: begin.is_none(),
        first: query.address(&query.status, None),
        next: next.map(|next| query.address(&query.status, Some(&next))),
        query,
    };
    Ok(whole(call, page.render()))
}
