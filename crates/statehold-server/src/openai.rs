//! Chat as OpenAI's clients speak it: every agent is a model, a session is a conversation that the
//! server remembers, and a turn that waits for a person is an answer that says so.

mod ask;
mod completion;
pub(crate) mod errors;
mod files;
pub(crate) mod models;
mod session;

use axum::extract::{Request, State};
use axum::response::Response;
use statehold_agents::spec::{AgentBook, ChatSessions};
use statehold_core::name::Name;
use statehold_engine::api::json::{raw_bytes, to_body};
use statehold_engine::api::session::SessionInput;
use statehold_engine::api::turn::{CarriedMessage, Conversation, UserMessage, agent_of_session};

pub(crate) use self::ask::ChatMessageIn;
use self::ask::{CallerMessages, ChatIn, StreamOptionsIn};
use self::completion::{CompletionOut, CompletionWriter};
use self::errors::as_openai_error;
use self::session::SessionChoice;
use crate::chat::{
    ChatCall, ChatSurface, ChatTurn, TurnContext, agent_needs_session, passes_tools,
};
use crate::http::call::App;
use crate::http::problem::Problem;

pub(crate) static SURFACE: ChatSurface = ChatSurface {
    new_session: "the header `x-statehold-session: new`",
    session: "x-statehold-session",
    agent: "model",
    has_debug: true,
};

/// Say something to an agent.
///
/// The session is the one that the call names (`x-statehold-session`, or `conversation`), or the one in which
/// its messages were said: the last message is the input and the server knows the rest. Without a session the
/// messages are the conversation and nothing is kept.
#[utoipa::path(
    post, path = "/openai/v1/chat/completions", tag = "chat", request_body = ChatIn,
    responses((status = 200, content(
        (CompletionOut = "application/json"),
        (String = "text/event-stream"),
    ), description = "One completion, or a stream of its chunks."))
)]
pub(crate) async fn chat(State(app): State<App>, request: Request) -> Response {
    let mut known = TurnContext::default();
    let answered = match OpenaiCall::read(&app, request).await {
        Ok(call) => call.serve(app, &mut known).await,
        Err(problem) => Err(problem),
    };
    answered.unwrap_or_else(|problem| known.refuse(problem, &SURFACE, as_openai_error))
}

/// A chat call as it came.
struct OpenaiCall {
    call: ChatCall,
    chat: ChatIn,
    wanted: SessionChoice,
}

impl OpenaiCall {
    async fn read(app: &App, request: Request) -> Result<Self, Problem> {
        let (mut call, chat, headers) = ChatCall::read::<ChatIn>(app, request, &SURFACE).await?;
        call.decides_elsewhere = chat.wants_own_holds();
        call.brings_tools = chat.has_tools();
        Ok(Self {
            call,
            wanted: SessionChoice::of(&headers, &chat)?,
            chat,
        })
    }

    /// Finds the turn and answers. `known` keeps the ids of the turn for a failure.
    async fn serve(self, app: App, known: &mut TurnContext) -> Result<Response, Problem> {
        if !matches!(self.wanted, SessionChoice::Session(_)) {
            self.call.require_client()?;
        }
        self.chat.require_possible()?;
        let (message, path) = self.chat.last_message()?;
        let is_stream = self.chat.stream == Some(true);
        let share = self.call.take_share(&app, is_stream)?;
        let turn = Box::pin(self.begin(&app, &message, &path, known)).await?;
        drop(message);
        let (call, model, options) = self.into_rest();
        match share {
            Some(share) if is_stream => {
                let with_usage = options.include_usage == Some(true);
                let stream = call.stream(app, turn, share, known, |head| {
                    CompletionWriter::new(model, head, with_usage)
                });
                Box::pin(stream).await
            }
            _ => {
                let answer = call.answer(&app, turn, known, |head, ending| {
                    CompletionWriter::new(model, head, false).whole(ending)
                });
                Box::pin(answer).await
            }
        }
    }

    /// The parts of the call that its answer needs. The messages are dropped: an answer may take long.
    fn into_rest(self) -> (ChatCall, String, StreamOptionsIn) {
        let options = self.chat.stream_options.unwrap_or_default();
        (self.call, self.chat.model, options)
    }

    /// Finds or begins the turn that the call is about.
    async fn begin(
        &self,
        app: &App,
        message: &ChatMessageIn,
        path: &str,
        known: &mut TurnContext,
    ) -> Result<ChatTurn, Problem> {
        let book = &app.options.agents.get();
        let (call, model) = (&self.call, &self.chat.model);
        let (session, agent) = match self.wanted {
            SessionChoice::Session(session) => {
                let caller = &call.asked.caller;
                let own = agent_of_session(&app.engine, caller, session).await?;
                (Some(session), call.declared(book, model, Some(&own))?)
            }
            SessionChoice::New | SessionChoice::None | SessionChoice::Unsaid => {
                (None, call.declared(book, model, None)?)
            }
        };
        let spec = book.agent(&agent);
        let sessions = spec.map_or(ChatSessions::Auto, |spec| spec.sessions);
        let is_unsaid = self.wanted == SessionChoice::Unsaid;
        if is_unsaid && sessions == ChatSessions::Explicit {
            return Err(agent_needs_session(&agent, &SURFACE));
        }
        // A caller that runs tools keeps the conversation itself.
        let keeps_none = is_unsaid && (sessions == ChatSessions::None || self.chat.carries_tools());
        if keeps_none || self.wanted == SessionChoice::None {
            return self.begin_stateless(app, &agent, message, path).await;
        }
        self.chat.require_plain()?;
        if message.role != "user" {
            return Err(not_user(path));
        }
        let message = message.user_message(path)?;
        if let Some(session) = session {
            let decisions = self.chat.decisions().to_vec();
            let turn = call.open_in_session(app, session, (&agent, message), decisions);
            return turn.await;
        }
        let new = self.new_session(app, &agent)?;
        if is_unsaid {
            let new = (new, self.conversation(&agent, &message));
            let turn = call.open_in_recalled_session(app, new, (&agent, message), known);
            return turn.await;
        }
        Box::pin(call.open_in_new_session(app, new, (&agent, message), known)).await
    }

    /// Begins a turn without a session.
    async fn begin_stateless(
        &self,
        app: &App,
        agent: &Name,
        message: &ChatMessageIn,
        path: &str,
    ) -> Result<ChatTurn, Problem> {
        self.require_no_decisions("a call without a session")?;
        if self.chat.carries_tools() && !passes_tools(&app.options.agents.get(), agent) {
            self.chat.require_plain()?;
        }
        let message = |book: &AgentBook| self.whole_conversation(book, agent, message, path);
        self.call.open_stateless(app, agent, message).await
    }

    /// The last message, with the conversation before it and the parameters to pass on.
    fn whole_conversation(
        &self,
        book: &AgentBook,
        agent: &Name,
        message: &ChatMessageIn,
        path: &str,
    ) -> Result<UserMessage, Problem> {
        let passes = passes_tools(book, agent);
        let is_user = message.role == "user";
        if !passes {
            self.chat.require_plain()?;
            if !is_user {
                return Err(not_user(path));
            }
        }
        let is_plain = is_user && message.is_text();
        let conversation = CallerMessages::of(&self.chat, &self.call.body, passes, is_plain);
        Ok(UserMessage {
            data: Some(raw_bytes(&to_body(&conversation))),
            ..message.user_message(path)?
        })
    }

    /// The conversation that the call carries.
    fn conversation(&self, agent: &Name, message: &UserMessage) -> Conversation {
        let (earlier, context) = self.chat.earlier();
        Conversation {
            agent: agent.clone(),
            earlier,
            message: CarriedMessage::by_user(&message.text, &message.files),
            context,
            key: self.call.asked.key_of("", &[]).map(|key| key.key),
            arrived: self.call.arrived,
        }
    }

    /// The session that the call creates.
    fn new_session(&self, app: &App, agent: &Name) -> Result<SessionInput, Problem> {
        self.require_no_decisions("a new session")?;
        let (call, chat) = (&self.call, &self.chat);
        let in_body = chat.user.as_ref().or(chat.safety_identifier.as_ref());
        let app_name = call.app_name.as_ref().map_or("default", Name::as_str);
        let named = in_body.map(String::as_str);
        Ok(call.new_session(app, app_name, agent, named))
    }

    /// Refuses decisions where no session exists yet.
    fn require_no_decisions(&self, what: &str) -> Result<(), Problem> {
        if self.chat.decisions().is_empty() {
            return Ok(());
        }
        let detail = format!("`statehold.decisions`: {what} has no holds; name the session");
        Err(Problem::invalid(detail).with("path", "statehold.decisions"))
    }
}

/// The problem for a last message that is not of a user.
fn not_user(path: &str) -> Problem {
    let detail = format!("`{path}` is the last message; it must have the role `user`");
    Problem::invalid(detail).with("path", format!("{path}.role"))
}
