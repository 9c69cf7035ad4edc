//! Conversations: sessions of the app that a project and a location are.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use statehold_core::ids::SessionId;
use statehold_core::item::Role;
use statehold_engine::PageLimit;
use statehold_engine::api;
use statehold_engine::api::json::Time;
use statehold_engine::api::session::{SessionChanges, SessionInput, SessionListInput, SessionView};
use statehold_engine::bodies::text_of;

use super::agents::{DataAgent, find_agent};
use super::message::{MessageKind, MessageOut, TextType};
use super::place::{ConversationId, Place, clip, is_new_id};
use super::query::{Paging, Query, UpdateMask};
use super::require_client;
use crate::chat::{ANONYMOUS, InlineContext};
use crate::http::call::CallContext;
use crate::http::problem::{Code, Problem};
use crate::native::Cursor;

/// Labels of a session that are fields of its conversation.
const TITLE: &str = "analytics.title";
const AGENT: &str = "analytics.agent";
/// The longest title, in characters.
const TITLE_CHARS_MAX: usize = 63;
/// A page of messages ends when it has so many bytes.
const PAGE_BYTES: usize = 1024 * 1024;
/// How many windows of a transcript one page of messages looks at.
const WINDOWS_MAX: usize = 8;

/// A conversation of the caller, found by its id.
pub(super) struct Conversation {
    pub(super) view: SessionView,
}

/// A conversation as a client sends it. Other fields are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ConversationIn {
    agents: Vec<String>,
    labels: BTreeMap<String, String>,
    title: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConversationOut {
    name: String,
    agents: [String; 1],
    create_time: Time,
    last_used_time: Time,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    labels: BTreeMap<String, String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    title: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ConversationsOut {
    conversations: Vec<ConversationOut>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MessagesOut {
    messages: Vec<StorageMessage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_page_token: Option<String>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct StorageMessage {
    message_id: String,
    message: MessageOut,
}

impl Conversation {
    /// The id of its data agent.
    pub(super) fn agent_id(&self) -> String {
        let saved = self.view.labels.to_map().remove(AGENT);
        saved.unwrap_or_else(|| self.view.agent.to_string())
    }

    pub(super) fn to_out(&self, place: &Place) -> ConversationOut {
        let view = &self.view;
        let id = view.name.clone();
        let id = id.unwrap_or_else(|| ConversationId::text_of(view.id));
        let mut labels = view.labels.to_map();
        let (title, agent) = (labels.remove(TITLE), labels.remove(AGENT));
        let agent = agent.unwrap_or_else(|| view.agent.to_string());
        ConversationOut {
            name: place.name("conversations", &id),
            agents: [place.name("dataAgents", &agent)],
            create_time: view.created_at,
            last_used_time: view.updated_at,
            labels,
            title,
        }
    }
}

/// Finds a conversation of the caller.
pub(super) async fn find_conversation(
    context: &CallContext,
    place: &Place,
    id: &str,
) -> Result<Conversation, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let view = match ConversationId::of(id) {
        ConversationId::Session(session) => api::session::read(engine, caller, session).await?,
        ConversationId::Named(name) => {
            api::session::read_named(engine, caller, (&place.app, ANONYMOUS), &name).await?
        }
    };
    // A session of another app is no conversation of this place.
    if view.app != place.app {
        return Err(Problem::not_found());
    }
    Ok(Conversation { view })
}

pub(super) async fn create(
    context: &CallContext,
    place: &Place,
    (query, sent, body): (&Query, ConversationIn, &[u8]),
) -> Result<ConversationOut, Problem> {
    require_client(context)?;
    let app = &context.app;
    let id = query.text("conversationId");
    if let Some(id) = id.filter(|id| !is_new_id(id)) {
        let detail = format!(
            "`conversationId` is a lower-case letter and up to 62 letters, digits and hyphens, not `{}`",
            clip(id)
        );
        return Err(Problem::new(Code::BadQuery, detail));
    }
    let [agent] = sent.agents.as_slice() else {
        let detail = "`agents` has exactly one data agent";
        return Err(Problem::invalid(detail).with("path", "agents"));
    };
    let agent_id = place.id_in(agent, "dataAgents")?;
    let mut labels = sent.own_labels()?;
    let agent = match find_agent(context, place, agent_id).await? {
        DataAgent::Declared(name) => name,
        DataAgent::Saved(_) => {
            labels.insert(AGENT.to_owned(), agent_id.to_owned());
            InlineContext::default().answerer(app)?
        }
    };
    if !sent.title.is_empty() {
        labels.insert(TITLE.to_owned(), sent.title);
    }
    let new = SessionInput {
        app: place.app.to_string(),
        user: context.caller.user.is_none().then(|| ANONYMOUS.to_owned()),
        name: id.map(str::to_owned),
        agent: Some(agent.to_string()),
        labels: Some(labels),
        is_chat: true,
        ..SessionInput::default()
    };
    let call = query.call(context, body)?;
    let made = api::session::create(context.engine(), &call, new).await?;
    Ok(Conversation { view: made.view }.to_out(place))
}

pub(super) async fn list(
    context: &CallContext,
    place: &Place,
    query: &Query,
) -> Result<ConversationsOut, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    api::session::require_lister(caller)?;
    let Paging { size, token } = query.paging()?;
    let filter = query.text("filter").unwrap_or_default();
    let cursor = Cursor::of(
        context,
        "analytics.conversations",
        &format!("{} {filter}", place.app),
    );
    let input = SessionListInput {
        app: Some(place.app.clone()),
        user: caller.user.is_none().then(|| ANONYMOUS.to_owned()),
        label: label_filter(filter)?,
        ..SessionListInput::default()
    };
    let after = cursor.open(token)?;
    let read =
        |page: PageLimit| api::session::list(engine, caller, input.clone(), after, page.entries);
    let page = context.read_page(size, read).await?;
    let conversations = page.entries.into_iter();
    let conversations = conversations.map(|view| Conversation { view }.to_out(place));
    Ok(ConversationsOut {
        conversations: conversations.collect(),
        next_page_token: page.next.map(|at| cursor.seal(at)),
    })
}

/// A filter by one label: `labels.KEY = "VALUE"`.
fn label_filter(filter: &str) -> Result<Option<(String, Option<String>)>, Problem> {
    if filter.trim().is_empty() {
        return Ok(None);
    }
    let parsed = || {
        let rest = filter.trim().strip_prefix("labels.")?;
        let (key, value) = rest.split_once(['=', ':'])?;
        let (key, value) = (key.trim(), value.trim().trim_matches('"'));
        let is_plain = !key.is_empty() && ![" ", "\""].iter().any(|bad| value.contains(bad));
        let any = value == "*";
        is_plain.then(|| (key.to_owned(), (!any).then(|| value.to_owned())))
    };
    parsed().map(Some).ok_or_else(|| {
        let detail = "`filter` is one label here: labels.KEY = \"VALUE\", or labels.KEY:*";
        Problem::new(Code::BadQuery, detail)
    })
}

pub(super) async fn patch(
    context: &CallContext,
    place: &Place,
    id: &str,
    (query, sent, body): (&Query, ConversationIn, &[u8]),
) -> Result<ConversationOut, Problem> {
    let conversation = find_conversation(context, place, id).await?;
    let mask = UpdateMask::of(query);
    let own = place.name("dataAgents", &conversation.agent_id());
    if mask.has("agents", !sent.agents.is_empty()) && sent.agents != [own] {
        let detail = "`agents` of a conversation does not change; create another one";
        return Err(Problem::invalid(detail).with("path", "agents"));
    }
    let mut labels: BTreeMap<String, Option<String>> = BTreeMap::new();
    if mask.has("labels", !sent.labels.is_empty()) {
        let there = conversation.view.labels.to_map().into_keys();
        let there = there.filter(|key| key != TITLE && key != AGENT);
        labels.extend(there.map(|key| (key, None)));
        let new = sent.own_labels()?.into_iter();
        labels.extend(new.map(|(key, value)| (key, Some(value))));
    }
    if mask.has("title", !sent.title.is_empty()) {
        sent.require_title()?;
        let title = Some(sent.title).filter(|title| !title.is_empty());
        labels.insert(TITLE.to_owned(), title);
    }
    if labels.is_empty() {
        return Ok(conversation.to_out(place));
    }
    let call = query.call(context, body)?;
    let changes = SessionChanges {
        hidden_ttl_seconds: None,
        name: None,
        labels: Some(labels),
        ttl_seconds: None,
        ttl_mode: None,
    };
    let session = conversation.view.id;
    let patched = api::session::patch(context.engine(), &call, session, &changes).await?;
    Ok(Conversation { view: patched.view }.to_out(place))
}

pub(super) async fn delete(context: &CallContext, place: &Place, id: &str) -> Result<(), Problem> {
    let session = find_conversation(context, place, id).await?.view.id;
    let call = context.call(b"");
    api::session::delete(context.engine(), &call, session).await?;
    Ok(())
}

/// A page of messages, oldest first. The transcript is read in windows of item numbers, because it is stored for
/// reading backwards.
pub(super) async fn messages(
    context: &CallContext,
    place: &Place,
    id: &str,
    query: &Query,
) -> Result<MessagesOut, Problem> {
    let session = find_conversation(context, place, id).await?.view.id;
    let Paging { size, token } = query.paging()?;
    let cursor = Cursor::of(context, "analytics.messages", &session.to_string());
    let mut after: u64 = cursor.open(token)?.unwrap_or(0);
    let newest = newest_message(context, session).await?;
    let mut found = Vec::new();
    let mut window = size as u64;
    for _ in 0..WINDOWS_MAX {
        if after >= newest || found.len() >= size {
            break;
        }
        let left = (size - found.len()) as u64;
        window = window.min(left).max(1);
        let (engine, caller) = (context.engine(), &context.caller);
        let before = Some(after + window + 1);
        let read = |page| api::session::messages(engine, caller, session, (before, page));
        let (page, next) = context
            .read_page(usize::try_from(window).unwrap_or(1), read)
            .await?;
        if next.is_some_and(|next| next > after + 1) && window > 1 {
            // Long messages: the window does not fit a page.
            window /= 2;
            continue;
        }
        let fresh = page.messages.into_iter();
        found.extend(fresh.filter(|message| message.seq > after));
        after += window;
        let bytes: usize = found.iter().map(|found| found.content.get().len()).sum();
        if bytes >= PAGE_BYTES {
            break;
        }
    }
    let messages = found.into_iter().map(|message| {
        let text = text_of(&message.content);
        let id = message.id.to_string();
        let kind = match message.role {
            Role::User => MessageKind::UserMessage { text },
            Role::Assistant | Role::Tool => MessageKind::text(text, TextType::FinalResponse),
        };
        StorageMessage {
            message_id: id.clone(),
            message: MessageOut {
                timestamp: message.created_at,
                message_id: Some(id),
                kind,
            },
        }
    });
    Ok(MessagesOut {
        messages: messages.collect(),
        next_page_token: (after < newest).then(|| cursor.seal(after)),
    })
}

/// The number of the newest message. 0 if there is none.
async fn newest_message(context: &CallContext, session: SessionId) -> Result<u64, Problem> {
    let (engine, caller) = (context.engine(), &context.caller);
    let read = |page| api::session::messages(engine, caller, session, (None, page));
    let (page, _) = context.read_page(1, read).await?;
    Ok(page.messages.last().map_or(0, |message| message.seq))
}

impl ConversationIn {
    /// The conversation in a body.
    pub(super) fn of(sent: Map<String, Value>) -> Result<Self, Problem> {
        let parsed = serde_json::from_value(Value::Object(sent));
        parsed
            .map_err(|error| Problem::invalid(format!("the conversation cannot be read: {error}")))
    }

    /// The labels, checked. Those of the server are not for clients.
    fn own_labels(&self) -> Result<BTreeMap<String, String>, Problem> {
        self.require_title()?;
        if self.labels.contains_key(TITLE) || self.labels.contains_key(AGENT) {
            let detail =
                format!("`labels` must not have `{TITLE}` or `{AGENT}`: the server keeps them");
            return Err(Problem::invalid(detail).with("path", "labels"));
        }
        Ok(self.labels.clone())
    }

    fn require_title(&self) -> Result<(), Problem> {
        if self.title.chars().count() <= TITLE_CHARS_MAX {
            return Ok(());
        }
        let detail = format!("`title` has at most {TITLE_CHARS_MAX} characters");
        Err(Problem::invalid(detail).with("path", "title"))
    }
}
