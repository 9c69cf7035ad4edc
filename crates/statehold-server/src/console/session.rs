//! One session: its transcript, its tree, its state, and its hidden items.

use askama::Template;
use axum::extract::RawQuery;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_engine::api;
use statehold_engine::api::session::SessionView;
use statehold_engine::api::state::{StateQuery, StateView};

use super::access::ConsoleCall;
use super::answered;
use super::item::{FailureLine, ItemLine};
use super::page::{self, Frame, whole};
use super::sessions::status_word;
use super::text::{PageText, shown};
use super::tree::{TreeStep, names, steps, word};
use crate::http::problem::{Code, Problem};
use crate::native::Cursor;

/// Messages or items on a page, and keys of the state.
const PAGE: usize = 25;
const KEYS_PAGE: usize = 50;
/// Requests of a tree. The names of tasks are taken from the newest ones.
const TREE_PAGE: usize = 100;

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct SessionQuery {
    #[serde(default)]
    tab: String,
    #[serde(default)]
    cursor: String,
    /// Of the tree: only requests before this revision.
    before: Option<u64>,
}

#[derive(Template)]
#[template(path = "console/session.html")]
struct SessionPage {
    frame: Frame,
    facts: Facts,
    tabs: Vec<Tab>,
    content: Content,
    /// The address of the page with what came before, or with more keys.
    next: Option<String>,
    /// The text of the link to it.
    older: &'static str,
    /// The address of this part from its beginning.
    first: String,
    is_first: bool,
}

struct Tab {
    name: &'static str,
    href: String,
    is_chosen: bool,
}

enum Content {
    Items {
        lines: Vec<ItemLine>,
        is_trace: bool,
        failures: Vec<FailureLine>,
    },
    Tree(Vec<TreeStep>),
    State(Vec<StateLine>),
}

struct StateLine {
    key: String,
    scope: &'static str,
    version: u64,
    origin: String,
    value: PageText,
}

/// The facts about a session.
struct Facts {
    id: String,
    name: Option<String>,
    status: &'static str,
    app: String,
    user: String,
    agent: String,
    revision: u64,
    created: String,
    updated: String,
    expires: Option<String>,
    origin: Option<(String, u64)>,
    labels: Vec<String>,
    pending: Vec<PendingLine>,
    pending_total: usize,
}

struct PendingLine {
    alias: String,
    kind: String,
    title: String,
    chain: String,
}

impl Facts {
    fn of(session: &SessionView) -> Self {
        let pending = session.pending.iter().flatten();
        let labels = session.labels.to_map().into_iter();
        Self {
            id: session.id.to_string(),
            name: session.name.as_deref().map(shown),
            status: status_word(session.status),
            app: session.app.to_string(),
            user: shown(&session.user),
            agent: session.agent.to_string(),
            revision: session.revision,
            created: page::time(session.created_at),
            updated: page::time(session.updated_at),
            expires: session.expires_at.map(page::time),
            origin: session
                .forked_from
                .map(|origin| (origin.session_id.to_string(), origin.revision)),
            labels: labels
                .map(|(key, value)| shown(&format!("{key}:{value}")))
                .collect(),
            pending: pending
                .map(|hold| PendingLine {
                    alias: hold.alias.clone(),
                    kind: word(hold.kind),
                    title: shown(&hold.title),
                    chain: hold.chain.clone(),
                })
                .collect(),
            pending_total: session.pending_total.unwrap_or(0),
        }
    }
}

pub(super) async fn show(
    call: Result<ConsoleCall, Response>,
    RawQuery(query): RawQuery,
) -> Response {
    match call {
        Ok(call) => answered(&call, session_page(&call, query.as_deref()).await),
        Err(refused) => refused,
    }
}

async fn session_page(call: &ConsoleCall, query: Option<&str>) -> Result<Response, Problem> {
    let context = &call.context;
    let id: SessionId = context.id("session_id")?;
    let query: SessionQuery = page::query(query)?;
    let session = api::session::read(context.engine(), &context.caller, id).await?;
    let begin = (!query.cursor.is_empty()).then_some(query.cursor.as_str());
    let (part, next) = match query.tab.as_str() {
        "" => conversation(call, id, begin).await?,
        "hidden" => trace(call, id, begin).await?,
        "tree" => tree(call, id, query.before).await?,
        "state" => state(call, id, begin).await?,
        _ => {
            let detail = "`tab` is tree, state or hidden";
            return Err(Problem::new(Code::BadQuery, detail));
        }
    };
    let address = |word: &str| match word {
        "" => format!("/console/sessions/{id}"),
        word => format!("/console/sessions/{id}?tab={word}"),
    };
    let tab = |name: &'static str, word: &str| Tab {
        name,
        href: address(word),
        is_chosen: query.tab == word,
    };
    let facts = Facts::of(&session);
    let page = SessionPage {
        frame: Frame::new(facts.name.as_deref().unwrap_or(&facts.id), Some(call)),
        tabs: vec![
            tab("Conversation", ""),
            tab("Tasks and requests", "tree"),
            tab("State", "state"),
            tab("Hidden items", "hidden"),
        ],
        facts,
        content: part,
        next,
        older: if query.tab == "state" {
            "Further keys"
        } else {
            "Earlier"
        },
        first: address(&query.tab),
        is_first: begin.is_none() && query.before.is_none(),
    };
    Ok(whole(call, page.render()))
}

/// The transcript, as its user sees it.
async fn conversation(
    call: &ConsoleCall,
    session: SessionId,
    begin: Option<&str>,
) -> Result<(Content, Option<String>), Problem> {
    let context = &call.context;
    let cursor = Cursor::of(context, "console messages", &session.to_string());
    let before = cursor.open(begin)?;
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::session::messages(engine, caller, session, (before, page));
    let (found, next) = context.read_page(PAGE, read).await?;
    let part = Content::Items {
        lines: found.messages.iter().map(ItemLine::message).collect(),
        is_trace: false,
        failures: Vec::new(),
    };
    let next = next.map(|seq| format!("/console/sessions/{session}?cursor={}", cursor.seal(seq)));
    Ok((part, next))
}

/// Everything. The audit stream has the read.
async fn trace(
    call: &ConsoleCall,
    session: SessionId,
    begin: Option<&str>,
) -> Result<(Content, Option<String>), Problem> {
    let context = &call.context;
    let cursor = Cursor::of(context, "console items", &session.to_string());
    let before = cursor.open(begin)?;
    let (engine, caller) = (context.engine(), &context.caller);
    let tree = api::tree::read(engine, caller, session, None, TREE_PAGE).await?;
    let names = names(&tree);
    let read = |page| api::trace::items(engine, caller, session, None, (before, page));
    let (found, next) = context.read_page(PAGE, read).await?;
    let lines = found
        .messages
        .iter()
        .map(|item| ItemLine::item(item, &names));
    let part = Content::Items {
        lines: lines.collect(),
        is_trace: true,
        failures: found.failures.iter().map(FailureLine::of).collect(),
    };
    let address = |seq| {
        format!(
            "/console/sessions/{session}?tab=hidden&cursor={}",
            cursor.seal(seq)
        )
    };
    Ok((part, next.map(address)))
}

async fn tree(
    call: &ConsoleCall,
    session: SessionId,
    before: Option<u64>,
) -> Result<(Content, Option<String>), Problem> {
    let context = &call.context;
    let (engine, caller) = (context.engine(), &context.caller);
    let tree = api::tree::read(engine, caller, session, before, TREE_PAGE).await?;
    let address = |before| format!("/console/sessions/{session}?tab=tree&before={before}");
    Ok((Content::Tree(steps(&tree)), tree.before.map(address)))
}

/// The values of the session with those of its user and app, and who wrote them.
async fn state(
    call: &ConsoleCall,
    session: SessionId,
    begin: Option<&str>,
) -> Result<(Content, Option<String>), Problem> {
    let context = &call.context;
    let cursor = Cursor::of(context, "console state", &session.to_string());
    let query = StateQuery::default().after(cursor.open(begin)?);
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::state::read(engine, caller, session, None, (&query, page));
    let (mut found, next) = context.read_page(KEYS_PAGE, read).await?;
    api::state::add_provenance(engine, caller, session, &mut found).await?;
    let address = |key| {
        format!(
            "/console/sessions/{session}?tab=state&cursor={}",
            cursor.seal(key)
        )
    };
    Ok((Content::State(state_lines(&found)), next.map(address)))
}

fn state_lines(state: &StateView) -> Vec<StateLine> {
    let provenance = state.provenance.as_ref();
    let lines = state.state.iter().map(|(key, value)| {
        let (scope, own) = match key.split_once(':') {
            Some(("app", own)) => ("app", own),
            Some(("user", own)) => ("user", own),
            Some(_) | None => ("session", key.as_str()),
        };
        let origin = provenance.and_then(|all| all.get(key));
        StateLine {
            key: shown(own),
            scope,
            version: state.versions.get(key).copied().unwrap_or(0),
            origin: origin.map_or_else(String::new, |origin| {
                format!("{} by {}", page::time(origin.at), shown(&origin.by))
            }),
            value: PageText::json(value),
        }
    });
    lines.collect()
}
