//! Resources: lists of conversations, and reading their parts.

use rmcp::ErrorData;
use rmcp::model::{
    CacheScope, ListResourceTemplatesResult, ListResourcesResult, MetaObject, ReadResourceResult,
    Resource, ResourceContents, ResourceTemplate,
};
use serde::Serialize;
use serde_json::{Value, json};
use statehold_core::ids::{SessionId, TaskId};
use statehold_engine::api::hold::HoldListInput;
use statehold_engine::api::session::{SessionListInput, SessionView};
use statehold_engine::api::state::StateQuery;
use statehold_engine::api::task::AskedView;
use statehold_engine::{HoldFilter, PageLimit, SessionOrder, api};

use super::errors::{call_error, resource_error};
use super::history;
use super::uri::{BadUri, CURRENT_HISTORY, ConversationUri, HistoryQuery, Part, Range};
use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};
use crate::native::Cursor;

const JSON: &str = "application/json";
/// How long a copy of an old revision stays true: it never changes.
const SNAPSHOT_TTL_MS: u64 = 24 * 60 * 60 * 1_000;
/// Conversations on a page of the list.
const PAGE: usize = 50;
/// Entries of the other parts.
const ENTRIES_MAX: usize = 200;
/// Keys of the state.
const KEYS_MAX: usize = 10_000;

/// A page of the conversations that the caller may read, the latest change first.
pub(super) async fn list(
    context: &CallContext,
    cursor: Option<String>,
) -> Result<ListResourcesResult, ErrorData> {
    let page = list_page(context, cursor.as_deref()).await;
    let mut result = page.map_err(|problem| call_error(&problem))?;
    result.ttl_ms = Some(0);
    result.cache_scope = Some(CacheScope::Private);
    Ok(result)
}

async fn list_page(
    context: &CallContext,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    if let Some(session) = caller.only_session {
        let current = Resource::new(CURRENT_HISTORY, "current-history")
            .with_description("The messages of this conversation, as a bare array")
            .with_mime_type(JSON);
        if caller.phase.is_some() {
            return Ok(ListResourcesResult::with_all_items(vec![current]));
        }
        let view = api::session::read(engine, caller, session).await?;
        return Ok(ListResourcesResult::with_all_items(vec![
            current,
            resource_of(&view),
        ]));
    }
    let sealed = Cursor::of(context, "mcp resources", "");
    let after = sealed.open(cursor)?;
    let input = SessionListInput {
        order: SessionOrder::Updated,
        ..SessionListInput::default()
    };
    let read =
        |page: PageLimit| api::session::list(engine, caller, input.clone(), after, page.entries);
    let page = context.read_page(PAGE, read).await?;
    let resources = page.entries.iter().map(resource_of).collect();
    Ok(ListResourcesResult {
        next_cursor: page.next.map(|place| sealed.seal(place)),
        ..ListResourcesResult::with_all_items(resources)
    })
}

fn resource_of(session: &SessionView) -> Resource {
    let uri = ConversationUri::Part(session.id, Part::History(HistoryQuery::NEWEST));
    let title = session.name.clone();
    let title = title.unwrap_or_else(|| format!("{} of {}", session.app, session.user));
    let mut meta = MetaObject::default();
    meta.0
        .insert("statehold/revision".to_owned(), session.revision.into());
    meta.0
        .insert("statehold/status".to_owned(), json!(session.status));
    Resource::new(uri.to_string(), format!("{}-history", session.id))
        .with_title(title)
        .with_description("The messages of a conversation")
        .with_mime_type(JSON)
        .with_meta(meta)
}

/// The addresses of the parts of a conversation.
pub(super) fn templates() -> ListResourceTemplatesResult {
    let parts = [
        (
            "history",
            "history{?rev,after}",
            "Its messages; of a revision; those after a revision",
        ),
        (
            "state",
            "state",
            "Its state, with the values of its app and user",
        ),
        ("tasks", "tasks", "The tree of its tasks and requests"),
        ("task", "tasks/{task_id}", "One task with its history"),
        ("holds", "holds", "Its open holds"),
        (
            "trace",
            "trace",
            "Every item, hidden ones too; for operators, audited",
        ),
    ];
    let templates = parts.map(|(name, path, description)| {
        ResourceTemplate::new(format!("conversation://{{session_id}}/{path}"), name)
            .with_description(description)
            .with_mime_type(JSON)
    });
    let mut result = ListResourceTemplatesResult::with_all_items(templates.into());
    result.ttl_ms = Some(SNAPSHOT_TTL_MS);
    result.cache_scope = Some(CacheScope::Public);
    result
}

/// Reads a part of a conversation.
pub(super) async fn read(
    context: &CallContext,
    uri: &str,
) -> Result<ReadResourceResult, ErrorData> {
    let document = document(context, uri).await;
    // A key that ended while the resource was read gets nothing of it.
    let document = context.while_valid(std::future::ready(document)).await;
    let document = document.map_err(|problem| {
        // A token has no roles: what it does not read is not there.
        let is_token = context.caller.only_session.is_some();
        if is_token && problem.code == Code::Forbidden.text() {
            resource_error(&Problem::not_found(), uri)
        } else {
            resource_error(&problem, uri)
        }
    })?;
    let mut meta = MetaObject::default();
    if let Some(revision) = document.revision {
        meta.0
            .insert("statehold/revision".to_owned(), revision.into());
    }
    context.slot.shrink_answer(document.text.len() as u64);
    let contents = ResourceContents::text(document.text, uri)
        .with_mime_type(JSON)
        .with_meta(meta);
    let ttl_ms = if document.is_fixed {
        SNAPSHOT_TTL_MS
    } else {
        0
    };
    Ok(ReadResourceResult::new(vec![contents])
        .with_ttl_ms(ttl_ms)
        .with_cache_scope(CacheScope::Private))
}

/// The text of a resource.
struct Document {
    text: String,
    revision: Option<u64>,
    /// Whether it never changes.
    is_fixed: bool,
}

impl Document {
    fn new<T: Serialize>(value: &T, revision: impl Into<Option<u64>>) -> Self {
        Self {
            text: serde_json::to_string(value).unwrap_or_default(),
            revision: revision.into(),
            is_fixed: false,
        }
    }
}

async fn document(context: &CallContext, uri: &str) -> Result<Document, Problem> {
    let uri = uri.parse().map_err(|BadUri| Problem::not_found())?;
    let (session, part) = match uri {
        ConversationUri::Part(session, part) => (session, part),
        ConversationUri::Current => {
            let session = current(context)?;
            let history = history::read(context, session, HistoryQuery::NEWEST).await?;
            return Ok(Document::new(&history.plain(), history.rev));
        }
    };
    match part {
        Part::History(query) => {
            let history = history::read(context, session, query).await?;
            let is_fixed = matches!(query.range, Range::At { .. });
            Ok(Document {
                is_fixed,
                ..Document::new(&history, history.rev)
            })
        }
        Part::State => state(context, session).await,
        Part::Tasks => tree(context, session).await,
        Part::Task(id) => task(context, session, id).await,
        Part::Holds => holds(context, session).await,
        Part::Trace => trace(context, session).await,
    }
}

/// The conversation of the caller's token.
fn current(context: &CallContext) -> Result<SessionId, Problem> {
    context.caller.only_session.ok_or_else(|| {
        Problem::new(
            Code::InvalidBody,
            "`conversation://current-history` needs a token of one session: name the session with \
             `conversation://{session_id}/history`, or make a token with POST /v1/sessions/{session_id}/tokens",
        )
    })
}

async fn state(context: &CallContext, session: SessionId) -> Result<Document, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let query = StateQuery::default();
    let read = |page| api::state::read(engine, caller, session, None, (&query, page));
    let (mut view, next) = context.read_page(KEYS_MAX, read).await?;
    view.next_cursor =
        next.map(|_| "read the rest with GET /v1/sessions/{session_id}/state".to_owned());
    let revision = view.revision;
    Ok(Document::new(&view, revision))
}

async fn tree(context: &CallContext, session: SessionId) -> Result<Document, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let tree = api::tree::read(engine, caller, session, None, ENTRIES_MAX).await?;
    let revision = tree.revision;
    Ok(Document::new(&tree, revision))
}

async fn task(context: &CallContext, session: SessionId, id: TaskId) -> Result<Document, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::task::read(engine, caller, id, AskedView::Own, (None, page));
    let (view, revision, _) = context.read_page(ENTRIES_MAX, read).await?;
    if view.session_id != session {
        return Err(Problem::not_found());
    }
    Ok(Document::new(&view, revision))
}

async fn holds(context: &CallContext, session: SessionId) -> Result<Document, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let input = HoldListInput {
        filter: HoldFilter {
            session: Some(session),
            ..HoldFilter::default()
        },
        user: None,
    };
    let read = |page| api::hold::list(engine, caller, input.clone(), (None, page));
    let page = context.read_page(ENTRIES_MAX, read).await?;
    Ok(Document::new(&json!({"holds": page.entries}), None))
}

async fn trace(context: &CallContext, session: SessionId) -> Result<Document, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::session::trace(engine, caller, session, (None, page));
    let (page, earlier) = context.read_page(ENTRIES_MAX, read).await?;
    let revision = page.revision;
    let value: Value =
        json!({"rev": revision, "items": page.messages, "has_earlier": earlier.is_some()});
    Ok(Document::new(&value, revision))
}
