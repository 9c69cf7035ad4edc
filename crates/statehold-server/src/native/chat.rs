//! Chat in one of four modes: who keeps the conversation, and which agent answers.

use std::collections::BTreeMap;

use axum::extract::{Request, State};
use axum::response::Response;
use http::HeaderMap;
use serde::{Deserialize, Serialize};
use statehold_agents::spec::AgentBook;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::scope::StateKey;
use statehold_engine::HoldDetail;
use statehold_engine::api::hold::HoldView;
use statehold_engine::api::json::{Raw, raw_bytes, to_body};
use statehold_engine::api::schema::{Content, LabelText};
use statehold_engine::api::session::SessionInput;
use statehold_engine::api::turn::{
    CarriedMessage, CarriedPlace, Conversation, EarlierAnswer, TokenUsage, TurnDebug, UserMessage,
    named_session,
};
use statehold_engine::bodies::AttachmentBody;
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::chat::{
    CallerData, ChatCall, ChatSurface, ChatTurn, ClientManagedIds, Ending, InlineContext, Preface,
    TurnContext, TurnFormat, TurnHead, status_of,
};
use crate::http::call::App;
use crate::http::delivery;
use crate::http::problem::{Code, Problem};
use crate::http::sse;

static SURFACE: ChatSurface = ChatSurface {
    new_session: "`context.conversation` with `app` and `user`",
    session: "context.conversation.id",
    agent: "agent",
    has_debug: true,
    shows_stages: false,
    refers: false,
};

/// The agent of a new session that names none.
const DEFAULT_AGENT: &str = "coordinator";

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(chat_in_mode))
}

/// A message to an agent, and the mode of the call.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatModeRequest)]
struct ChatIn {
    message: MessageIn,
    context: ContextIn,
    /// The messages before this one, oldest first, if the caller keeps them.
    #[serde(default)]
    history: Vec<HistoryMessage>,
    /// Answer as server-sent events: `delta`, `paused`, and last `done` or `error`.
    #[serde(default)]
    stream: bool,
}

/// A text, or a text with files.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(untagged)]
#[schema(as = ChatModeMessage)]
enum MessageIn {
    Text(String),
    Files(MessageWithFiles),
}

#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatModeMessageWithFiles)]
struct MessageWithFiles {
    content: String,
    #[serde(default)]
    attachments: Vec<AttachmentBody>,
}

impl MessageIn {
    fn user_message(self) -> UserMessage {
        let (text, files) = match self {
            Self::Text(text) => (text, Vec::new()),
            Self::Files(message) => (message.content, message.attachments),
        };
        UserMessage {
            text,
            files,
            ..UserMessage::default()
        }
    }
}

/// The mode: exactly one of these.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatModeContext)]
struct ContextIn {
    conversation: Option<ConversationIn>,
    agent: Option<AgentIn>,
    inline: Option<InlineContext>,
    client_managed: Option<ClientManagedIn>,
}

/// The server keeps the conversation: a session that exists, or a new one of an app and a user.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatModeConversation)]
struct ConversationIn {
    /// The session.
    id: Option<String>,
    /// The app of a new session.
    #[schema(value_type = Option<Name>)]
    app: Option<String>,
    /// The user of a new session. Optional with a key that is bound to a user.
    user: Option<String>,
    /// The name of a new session.
    name: Option<String>,
    /// The agent. Left out: the one of the session, or `coordinator`.
    agent: Option<String>,
    /// Labels of a new session.
    #[schema(value_type = Option<BTreeMap<LabelText, String>>)]
    labels: Option<BTreeMap<String, String>>,
    /// Initial values of the state of a new session.
    #[schema(value_type = Option<BTreeMap<StateKey, serde_json::Value>>)]
    state: Option<BTreeMap<String, Raw>>,
    /// Time to live of a new session, in seconds.
    ttl_seconds: Option<u64>,
}

/// The caller keeps the conversation; a declared agent answers.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatModeAgent)]
struct AgentIn {
    #[schema(value_type = Name)]
    name: String,
}

/// A product keeps the conversation under its own ids and brings the context.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatModeClientManaged)]
struct ClientManagedIn {
    conversation_id: Option<String>,
    agent_id: Option<String>,
    inline: InlineContext,
}

/// A message of a history that the caller keeps.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ChatModeHistoryMessage)]
struct HistoryMessage {
    role: HistoryRole,
    #[schema(value_type = Content)]
    content: Raw,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = ChatModeHistoryRole)]
enum HistoryRole {
    User,
    Assistant,
}

/// The mode of a call.
enum ChatMode {
    Conversation(Box<ConversationIn>),
    Agent(AgentIn),
    Inline(InlineContext, Option<ClientManagedIds>),
}

impl ContextIn {
    /// The only mode of the call.
    fn only(self) -> Result<ChatMode, Problem> {
        let Self {
            conversation,
            agent,
            inline,
            client_managed,
        } = self;
        match (conversation, agent, inline, client_managed) {
            (Some(one), None, None, None) => Ok(ChatMode::Conversation(Box::new(one))),
            (None, Some(one), None, None) => Ok(ChatMode::Agent(one)),
            (None, None, Some(one), None) => Ok(ChatMode::Inline(one, None)),
            (None, None, None, Some(one)) => {
                let ids = ClientManagedIds {
                    conversation_id: one.conversation_id,
                    agent_id: one.agent_id,
                };
                Ok(ChatMode::Inline(one.inline, Some(ids)))
            }
            _ => {
                let detail = "`context` has exactly one of `conversation`, `agent`, `inline` and \
                              `client_managed`; nothing was done";
                Err(Problem::new(Code::OneContext, detail).with("path", "context"))
            }
        }
    }
}

/// The answer to a chat call.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatModeAnswer)]
struct ChatOut<'a> {
    /// `completed` or `paused`.
    status: &'static str,
    message: AnswerOut<'a>,
    /// Calls of functions that the caller brought: it runs them and sends the results.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<serde_json::Value>>)]
    tool_calls: Option<&'a [serde_json::Value]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<SessionId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task_id: Option<TaskId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<RequestId>,
    /// The expired session that the call named: this one began in its place.
    #[serde(skip_serializing_if = "Option::is_none")]
    replaced: Option<SessionId>,
    /// The agents that were asked on the way.
    via: &'a [String],
    /// The open holds of a paused turn.
    holds: Vec<HoldView>,
    usage: TokenUsage,
    /// Answers that came since to turns that were paused.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(required = false)]
    earlier: &'a [EarlierAnswer],
    /// A line about a question that stays open.
    #[serde(skip_serializing_if = "Option::is_none")]
    reminder: Option<&'a str>,
    /// The ids that the caller keeps the conversation under.
    #[serde(skip_serializing_if = "Option::is_none")]
    client_managed: Option<&'a ClientManagedIds>,
    /// The hidden items of the turn, with `x-statehold-debug: 1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    debug: Option<&'a TurnDebug>,
}

/// The message of the agent. Of a paused turn: the words of the pause.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = ChatModeAnswerMessage)]
struct AnswerOut<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    #[schema(value_type = Vec<AttachmentBody>, required = false)]
    attachments: &'a [Raw],
}

/// Say something to an agent, in one of four modes.
///
/// `conversation`: the server keeps the conversation in a session. `agent`, `inline` and `client_managed`: the
/// caller keeps it and sends its history, and the call leaves nothing behind.
#[utoipa::path(
    post, path = "/v1/chat", tag = "chat",
    operation_id = "sendChatMessage", request_body = ChatIn,
    responses((status = 200, content(
        (ChatOut = "application/json"),
        (String = "text/event-stream"),
    ), description = "The answer, or a stream of it."), (status = 404))
)]
async fn chat_in_mode(State(app): State<App>, request: Request) -> Response {
    let mut known = TurnContext::default();
    let answered = match ChatCall::read::<ChatIn>(&app, request, &SURFACE).await {
        Ok((call, chat, _)) => serve(&app, call, chat, &mut known).await,
        Err(problem) => Err(problem),
    };
    answered.unwrap_or_else(|problem| known.refuse(problem, &SURFACE, delivery::with_receipt))
}

async fn serve(
    app: &App,
    mut call: ChatCall,
    chat: ChatIn,
    known: &mut TurnContext,
) -> Result<Response, Problem> {
    call.require_client()?;
    let mode = chat.context.only()?;
    let ids = match &mode {
        ChatMode::Inline(inline, ids) => {
            call.brings_tools = !inline.tools.is_empty();
            ids.clone()
        }
        ChatMode::Conversation(_) | ChatMode::Agent(_) => None,
    };
    let share = call.take_share(app, chat.stream)?;
    let message = (chat.message.user_message(), chat.history);
    let turn = Box::pin(open(app, &call, mode, message, known)).await?;
    match share {
        Some(share) if chat.stream => {
            let format = |head: &TurnHead| AnswerWriter::new(head, ids);
            Box::pin(call.stream(app.clone(), turn, share, known, format)).await
        }
        _ => {
            let write =
                |head: &TurnHead, ending: Ending| AnswerWriter::new(head, ids).whole(&ending);
            Box::pin(call.answer(app, turn, known, write)).await
        }
    }
}

/// Finds or starts the turn.
async fn open(
    app: &App,
    call: &ChatCall,
    mode: ChatMode,
    (message, history): (UserMessage, Vec<HistoryMessage>),
    known: &mut TurnContext,
) -> Result<ChatTurn, Problem> {
    let book = app.options.agents.get();
    match mode {
        ChatMode::Conversation(conversation) => {
            if !history.is_empty() {
                let detail =
                    "`history` is for calls without a session: the server has it; leave it out";
                return Err(Problem::invalid(detail).with("path", "history"));
            }
            Box::pin(open_in_session(app, call, *conversation, message, known)).await
        }
        ChatMode::Agent(agent) => {
            let agent = call.declared(&book, &agent.name, None)?;
            let data = CallerData {
                history: messages(&history),
                ..CallerData::default()
            };
            let data = data.stateless()?;
            let message = |_: &AgentBook| Ok(with_data(message, data));
            call.open_stateless(app, &agent, message).await
        }
        ChatMode::Inline(inline, ids) => {
            let agent = inline.answerer(app)?;
            let data = CallerData {
                history: messages(&history),
                inline: Some(&inline),
                ids: ids.as_ref(),
            };
            let data = data.stateless()?;
            let message = |book: &AgentBook| {
                inline.require_possible(book, &agent)?;
                Ok(with_data(message, data))
            };
            call.open_stateless(app, &agent, message).await
        }
    }
}

async fn open_in_session(
    app: &App,
    call: &ChatCall,
    conversation: ConversationIn,
    message: UserMessage,
    known: &mut TurnContext,
) -> Result<ChatTurn, Problem> {
    let book = app.options.agents.get();
    let named = conversation.agent.as_deref();
    if let Some(id) = &conversation.id {
        // A text that is no id names no session.
        let session = id.parse().map_err(|_| Problem::not_found())?;
        let own = named_session(&app.engine, &call.asked.caller, session).await?;
        let agent = named.unwrap_or(own.agent.as_str());
        let agent = call.declared(&book, agent, Some(&own.agent))?;
        conversation.require_nothing_new()?;
        if let Some(user) = own.expired_of.as_deref().filter(|_| call.may_replace()) {
            let alone = Conversation {
                agent: agent.clone(),
                earlier: Vec::new(),
                message: CarriedMessage::by_user(&message.text, &message.files),
                context: None,
                key: call.asked.key_of("", &[]).map(|key| key.key),
                arrived: call.arrived,
                place: CarriedPlace::Expired(session),
            };
            let expired = (session, &own, user);
            let turn = call.open_in_place_of(app, expired, alone, (&agent, message), known);
            return Box::pin(turn).await;
        }
        let turn = call.open_in_session(app, session, (&agent, message), Vec::new());
        return turn.await;
    }
    let agent = call.declared(&book, named.unwrap_or(DEFAULT_AGENT), None)?;
    let new = conversation.new_session(call, &agent)?;
    Box::pin(call.open_in_new_session(app, new, (&agent, message), known)).await
}

impl ConversationIn {
    /// Refuses settings of a new session beside the id of one that exists.
    fn require_nothing_new(&self) -> Result<(), Problem> {
        let given = [
            ("app", self.app.is_some()),
            ("user", self.user.is_some()),
            ("name", self.name.is_some()),
            ("labels", self.labels.is_some()),
            ("state", self.state.is_some()),
            ("ttl_seconds", self.ttl_seconds.is_some()),
        ];
        match given.into_iter().find(|(_, is_given)| *is_given) {
            None => Ok(()),
            Some((name, _)) => {
                let detail =
                    format!("`{name}` is for a new session; leave it out, or leave out `id`");
                let path = format!("context.conversation.{name}");
                Err(Problem::invalid(detail).with("path", path))
            }
        }
    }

    /// The session that the call creates.
    fn new_session(self, call: &ChatCall, agent: &Name) -> Result<SessionInput, Problem> {
        let Some(app_name) = self.app else {
            let detail =
                "`context.conversation` has an `id`, or an `app` and a `user` for a new session";
            return Err(Problem::invalid(detail).with("path", "context.conversation"));
        };
        Ok(SessionInput {
            app: app_name,
            user: self.user.or(call.user.clone()),
            agent: Some(agent.to_string()),
            name: self.name,
            labels: self.labels,
            state: self.state,
            ttl_seconds: self.ttl_seconds,
            is_chat: true,
            hidden_ttl_seconds: None,
            ttl_mode: None,
            get_or_create: false,
        })
    }
}

fn messages(history: &[HistoryMessage]) -> Vec<Raw> {
    let messages = history.iter();
    messages
        .map(|message| raw_bytes(&to_body(message)))
        .collect()
}

fn with_data(message: UserMessage, data: Raw) -> UserMessage {
    UserMessage {
        data: Some(data),
        ..message
    }
}

/// Writes one answer: whole, or as a stream of events.
struct AnswerWriter {
    head: TurnHead,
    ids: Option<ClientManagedIds>,
}

/// An event with a piece of the answer.
#[derive(Debug, Serialize)]
struct DeltaOut<'a> {
    text: &'a str,
}

/// An event about a pause that the call waits for.
#[derive(Debug, Serialize)]
struct PauseOut {
    status: &'static str,
    via: Vec<String>,
    holds: Vec<HoldView>,
}

impl AnswerWriter {
    fn new(head: &TurnHead, ids: Option<ClientManagedIds>) -> Self {
        let head = *head;
        Self { head, ids }
    }

    fn whole(&self, ending: &Ending) -> Vec<u8> {
        let ids = self.head.ids;
        to_body(&ChatOut {
            status: ending.status(),
            message: AnswerOut {
                role: "assistant",
                content: &ending.answer.text,
                attachments: &ending.answer.attachments,
            },
            tool_calls: ending.answer.tool_calls.as_deref(),
            session_id: ids.map(|ids| ids.session),
            task_id: ids.map(|ids| ids.task),
            request_id: ids.map(|ids| ids.request),
            replaced: self.head.replaced,
            via: &ending.account.via,
            holds: ending.holds.iter().map(HoldView::of).collect(),
            usage: ending.account.usage,
            earlier: &ending.preface.earlier,
            reminder: ending.preface.reminder.as_deref(),
            client_managed: self.ids.as_ref(),
            debug: ending.debug.as_ref(),
        })
    }
}

impl TurnFormat for AnswerWriter {
    fn set_headers(&self, headers: &mut HeaderMap) {
        sse::set_headers(headers);
    }

    fn begin(&mut self, _preface: &Preface) -> Vec<u8> {
        Vec::new()
    }

    fn text(&mut self, text: &str) -> Vec<u8> {
        event("delta", &to_body(&DeltaOut { text }))
    }

    fn pause(&mut self, via: Vec<String>, holds: &[HoldDetail]) -> Vec<u8> {
        let pause = PauseOut {
            status: status_of(holds),
            via,
            holds: holds.iter().map(HoldView::of).collect(),
        };
        event("paused", &to_body(&pause))
    }

    fn end(&mut self, _rest: &str, ending: &Ending) -> Vec<u8> {
        // The whole answer: a reader of `done` needs no delta before it.
        event("done", &self.whole(ending))
    }

    fn error(&mut self, problem: &Problem) -> Vec<u8> {
        event("error", &to_body(problem))
    }

    fn keep_alive(&self) -> &'static [u8] {
        sse::KEEP_ALIVE
    }
}

fn event(name: &str, data: &[u8]) -> Vec<u8> {
    let mut event = Vec::with_capacity(data.len() + 32);
    sse::push_event(&mut event, Some(name), None, data);
    event
}
