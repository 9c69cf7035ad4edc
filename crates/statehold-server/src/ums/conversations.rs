//! Conversations: create, list, read, delete.

use axum::extract::State;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};
use serde::{Deserialize, Serialize};
use serde_json::json;
use statehold_core::ids::{ItemId, SessionId};
use statehold_core::item::Role;
use statehold_core::name::{Name, is_deceptive};
use statehold_engine::api::json::{Raw, Time};
use statehold_engine::api::session::{
    self as sessions, SessionInput, SessionListInput, SessionView,
};
use statehold_engine::bodies::text_of;
use statehold_engine::{PageLimit, SessionOrder};

use crate::chat::{ANONYMOUS, app_name};
use crate::http::body::AsWritten;
use crate::http::call::{App, CallContext, Params};
use crate::http::problem::{Code, Problem};
use crate::native::{Answer, AnswerHeaders, Cursor, page_limit, plain, shown};

/// The label of a session that is the title of its conversation.
const TITLE: &str = "ums.title";
/// The title of a conversation without one.
const NO_TITLE: &str = "New Conversation";
/// The longest title: that of a label.
const TITLE_BYTES_MAX: usize = 256;
/// The agent of new conversations, if the configuration names none.
const DEFAULT_AGENT: &str = "coordinator";
/// Most conversations in one answer.
const CONVERSATIONS_MAX: usize = 100;
/// Most messages in one answer.
const MESSAGES_MAX: usize = 1_000;

/// A conversation to create. Other fields are ignored.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ConversationIn {
    title: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PageParams {
    limit: Option<usize>,
    cursor: Option<String>,
}

/// A conversation in the list.
#[derive(Debug, Serialize)]
struct ListedConversation {
    id: SessionId,
    title: String,
    created_at: Time,
    updated_at: Time,
    /// Two for each turn that has ended.
    message_count: u64,
}

/// A conversation with its newest messages, oldest first.
#[derive(Debug, Serialize)]
struct ConversationOut {
    id: SessionId,
    title: String,
    messages: Vec<MessageOut>,
    created_at: Time,
    updated_at: Time,
}

#[derive(Debug, Serialize)]
struct MessageOut {
    id: ItemId,
    role: Role,
    content: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    attachments: Vec<Raw>,
    created_at: Time,
}

impl ConversationOut {
    fn of(view: &SessionView, messages: Vec<MessageOut>) -> Self {
        Self {
            id: view.id,
            title: title_of(view),
            messages,
            created_at: view.created_at,
            updated_at: view.updated_at,
        }
    }
}

fn title_of(view: &SessionView) -> String {
    let title = view.labels.to_map().remove(TITLE);
    let title = title.or_else(|| view.name.clone());
    title.unwrap_or_else(|| NO_TITLE.to_owned())
}

pub(super) async fn create(
    State(app): State<App>,
    context: CallContext,
    headers: HeaderMap,
    payload: AsWritten<ConversationIn>,
) -> Answer {
    sessions::require_creator(&context.caller)?;
    let agent = agent_of_new(&app)?;
    let app_name = app_name(&headers)?;
    let title = payload.value.title;
    let title = title.filter(|title| !title.is_empty());
    if title.as_deref().is_some_and(|title| !is_title(title)) {
        let detail = "`title` has at most 256 bytes, without control or invisible characters";
        return Err(Problem::invalid(detail).with("path", "title"));
    }
    let new = SessionInput {
        app: app_name.map_or_else(|| "default".to_owned(), |name| name.to_string()),
        user: context.caller.user.is_none().then(|| ANONYMOUS.to_owned()),
        agent: Some(agent.to_string()),
        labels: title.map(|title| [(TITLE.to_owned(), title)].into()),
        is_chat: true,
        ..SessionInput::default()
    };
    let call = context.call(&payload.bytes);
    let made = sessions::create(&app.engine, &call, new).await?;
    let headers = AnswerHeaders {
        replayed: made.replayed,
        ..AnswerHeaders::session(made.view.id)
    };
    Ok(shown(&ConversationOut::of(&made.view, Vec::new()), headers))
}

fn is_title(title: &str) -> bool {
    title.len() <= TITLE_BYTES_MAX && !title.chars().any(is_deceptive)
}

/// The agent of a new conversation: the one of the configuration, `coordinator`, or the only one.
fn agent_of_new(app: &App) -> Result<Name, Problem> {
    let book = app.options.agents.get();
    let declared = |name: &&Name| book.agents.contains_key(*name);
    let only = (book.agents.len() == 1).then(|| book.agents.keys().next());
    let found = if let Some(named) = &app.options.ums.agent {
        Some(named).filter(declared)
    } else {
        let coordinator = book
            .agents
            .keys()
            .find(|name| name.as_str() == DEFAULT_AGENT);
        coordinator.or(only.flatten())
    };
    found.cloned().ok_or_else(|| {
        let detail = "no agent answers in conversations here; name a declared one in the configuration of the \
                      server: agent in [ums]";
        Problem::new(Code::NoAnswerer, detail)
    })
}

pub(super) async fn list(
    context: CallContext,
    headers: HeaderMap,
    Params(params): Params<PageParams>,
) -> Answer {
    let (engine, caller) = (context.engine(), &context.caller);
    sessions::require_lister(caller)?;
    let limit = page_limit(params.limit.or(Some(CONVERSATIONS_MAX)), CONVERSATIONS_MAX)?;
    let app = app_name(&headers)?;
    let filter = app.as_ref().map_or("", Name::as_str).to_owned();
    let cursor = Cursor::of(&context, "ums.conversations", &filter);
    let after = cursor.open(params.cursor.as_deref())?;
    let input = SessionListInput {
        app,
        user: caller.user.is_none().then(|| ANONYMOUS.to_owned()),
        order: SessionOrder::Updated,
        ..SessionListInput::default()
    };
    let read = |page: PageLimit| sessions::list(engine, caller, input.clone(), after, page.entries);
    let page = context.read_page(limit, read).await?;
    let mut listed = Vec::with_capacity(page.entries.len());
    for view in &page.entries {
        let exchanges = sessions::exchanges(engine, caller, view.id).await?;
        listed.push(ListedConversation {
            id: view.id,
            title: title_of(view),
            created_at: view.created_at,
            updated_at: view.updated_at,
            message_count: exchanges.saturating_mul(2),
        });
    }
    let next = page.next.map(|next| cursor.seal(next));
    Ok(with_link(plain(&listed), &context, next))
}

pub(super) async fn read(context: CallContext, Params(params): Params<PageParams>) -> Answer {
    let (engine, caller) = (context.engine(), &context.caller);
    let session: SessionId = context.id("conversation")?;
    let limit = page_limit(params.limit.or(Some(MESSAGES_MAX)), MESSAGES_MAX)?;
    let view = sessions::read(engine, caller, session).await?;
    let cursor = Cursor::of(&context, "ums.messages", &session.to_string());
    let before: Option<u64> = cursor.open(params.cursor.as_deref())?;
    let read = |page| sessions::messages(engine, caller, session, (before, page));
    let (page, next) = context.read_page(limit, read).await?;
    let messages = page.messages.into_iter().map(|message| MessageOut {
        id: message.id,
        role: message.role,
        content: text_of(&message.content),
        attachments: message.attachments,
        created_at: message.created_at,
    });
    let out = ConversationOut::of(&view, messages.collect());
    let response = shown(&out, AnswerHeaders::session(session));
    Ok(with_link(
        response,
        &context,
        next.map(|next| cursor.seal(next)),
    ))
}

pub(super) async fn delete(context: CallContext) -> Answer {
    let session: SessionId = context.id("conversation")?;
    sessions::delete(context.engine(), &context.call(b""), session).await?;
    Ok(plain(
        &json!({"message": "Conversation deleted successfully"}),
    ))
}

/// Adds the address of the next page.
fn with_link(mut response: Response, context: &CallContext, next: Option<String>) -> Response {
    let link = next.map(|next| format!("<{}?cursor={next}>; rel=\"next\"", context.path()));
    if let Some(Ok(link)) = link.map(HeaderValue::try_from) {
        response.headers_mut().insert(header::LINK, link);
    }
    response
}
