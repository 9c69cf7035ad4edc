//! Chat as OpenAI's clients speak it: every agent is a model, a session is a conversation that the
//! server remembers, and a turn that waits for a person is an answer that says so.

mod ask;
mod completion;
pub(crate) mod errors;
mod files;
pub(crate) mod models;
mod refusal;
mod session;
mod stateless;
mod stream;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header};
use statehold_agents::spec::{AgentBook, ChatSessions};
use statehold_core::digest::Digest;
use statehold_core::ids::{SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_engine::api::caller::act_for;
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::session::SessionInput;
use statehold_engine::api::turn::{
    self, CarriedMessage, Conversation, OpenTurn, TurnEvent, TurnHandle, TurnInput, TurnSnapshot,
    UserMessage,
};
use statehold_engine::{Call, Credential, EngineError, Role, Share};
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::ask::{ChatIn, ChatMessageIn};
use self::completion::{CompletionOut, CompletionWriter, Ending, reply_of};
use self::refusal::{Refusal, TurnContext};
use self::session::{SessionChoice, unknown_agent};
pub(crate) use self::stateless::FailedCalls;
use self::stateless::{ScratchSession, agent_needs_session, needs_session, not_user};
use self::stream::StreamWriter;
use crate::http::call::{App, CallContext, CallerCredential, Payload, text};
use crate::http::delivery;
use crate::http::problem::{Code, Problem};
use crate::http::sse;
use crate::native::AnswerHeaders;

/// How long a call may wait for a decision: a day.
const PAUSE_SECONDS_MAX: u64 = 86_400;
/// A call that may wait longer than this takes a share of the streams.
const WAIT_FREE: Duration = Duration::from_mins(1);
/// How long the head of a stream waits for the first event of a hosted agent, so that a failure has its status.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// How many pieces of a stream wait for a slow client.
const PIECES_MAX: usize = 16;
/// The user of a session that no user was named for.
const ANONYMOUS: &str = "anonymous";

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
pub(crate) async fn chat(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    let call = ChatCall::read(&app, request).await?;
    let mut known = TurnContext::default();
    let answered = call.serve(app, &mut known).await;
    answered.map_err(|problem| Refusal::new(problem, known))
}

/// A chat call as it came.
struct ChatCall {
    asked: CallContext,
    credential: Option<Credential>,
    chat: ChatIn,
    body: Bytes,
    wanted: SessionChoice,
    /// The user of a new session, where a header names one.
    user: Option<String>,
    app_name: Option<Name>,
    task: Option<TaskId>,
    /// How long a pause is waited for, and until when.
    wait: Duration,
    wait_until: Instant,
    /// The address of the server, as the call names it.
    base: String,
}

impl ChatCall {
    async fn read(app: &App, request: Request) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let user = text(&parts.headers, "x-statehold-user")?.map(str::to_owned);
        // The developer is no backend that acts for others, but may say whose session it is.
        parts.headers.remove("x-statehold-user");
        let mut asked = CallContext::from_request_parts(&mut parts, app).await?;
        let is_local = asked.caller.principal == Principal::Local;
        if let Some(user) = user.as_deref().filter(|_| !is_local) {
            asked.caller = act_for(&app.engine, &asked.caller, user, false).await?;
        }
        let CallerCredential(credential) =
            CallerCredential::from_request_parts(&mut parts, app).await?;
        let headers = parts.headers.clone();
        let payload = Payload::<ChatIn>::from_request(Request::from_parts(parts, body), app);
        let Payload { value: chat, bytes } = payload.await?;
        let wait = wait_of(&headers)?;
        Ok(Self {
            asked,
            credential,
            wanted: SessionChoice::of(&headers, &chat)?,
            chat,
            body: bytes,
            user,
            app_name: app_name(&headers)?,
            task: task_of(&headers)?,
            wait,
            wait_until: Instant::now() + wait,
            base: base_of(&headers)?,
        })
    }

    /// Finds the turn and answers. `known` keeps the ids of the turn for a failure.
    async fn serve(self, app: App, known: &mut TurnContext) -> Result<Response, Problem> {
        self.require_client()?;
        self.chat.require_possible()?;
        let (message, path) = self.chat.last_message()?;
        let is_stream = self.chat.stream == Some(true);
        let stays_open = is_stream || self.wait > WAIT_FREE;
        let share = stays_open
            .then(|| app.shares.take_stream(&self.asked.caller))
            .transpose()?;
        let (turn, scratch) = Box::pin(self.begin(&app, &message, &path, known)).await?;
        if scratch.is_none() {
            known.found(&turn.handle);
        }
        match share {
            Some(share) if is_stream => {
                Box::pin(self.stream(app, turn, scratch, share, known)).await
            }
            _ => {
                let answer = Box::pin(self.answer(&app, turn, scratch, known));
                self.asked.while_valid(answer).await
            }
        }
    }

    /// Requires the client role of calls outside a session, before they are validated. The rights to a
    /// session are checked when it is found.
    fn require_client(&self) -> Result<(), Problem> {
        let (caller, needs) = (&self.asked.caller, Role::Client);
        if matches!(self.wanted, SessionChoice::Session(_)) || caller.has(needs) {
            return Ok(());
        }
        Err(EngineError::Forbidden { needs }.into())
    }

    /// Finds or begins the turn that the call is about. A call without a session also gets its session in
    /// memory, which is deleted at the end of the call.
    async fn begin(
        &self,
        app: &App,
        message: &ChatMessageIn,
        path: &str,
        known: &mut TurnContext,
    ) -> Result<(OpenTurn, Option<Arc<ScratchSession>>), Problem> {
        let book = &app.options.agents.get();
        let model = &self.chat.model;
        let (session, agent) = match self.wanted {
            SessionChoice::Session(session) => {
                let caller = &self.asked.caller;
                let own = turn::agent_of_session(&app.engine, caller, session).await?;
                let agent = if own.as_str() == model {
                    own
                } else {
                    declared(book, model, Some(&own))?
                };
                (Some(session), agent)
            }
            SessionChoice::New | SessionChoice::None | SessionChoice::Unsaid => {
                (None, declared(book, model, None)?)
            }
        };
        let spec = book.agent(&agent);
        let sessions = spec.map_or(ChatSessions::Auto, |spec| spec.sessions);
        let is_unsaid = self.wanted == SessionChoice::Unsaid;
        if is_unsaid && sessions == ChatSessions::Explicit {
            return Err(agent_needs_session(&agent));
        }
        // A caller that runs tools keeps the conversation itself.
        let keeps_none = is_unsaid && (sessions == ChatSessions::None || self.chat.carries_tools());
        if keeps_none || self.wanted == SessionChoice::None {
            let begun = self.begin_stateless(app, &agent, message, path).await;
            return begun.map(|(turn, scratch)| (turn, Some(scratch)));
        }
        self.chat.require_plain()?;
        if message.role != "user" {
            return Err(not_user(path));
        }
        let message = message.user_message(path)?;
        let conversation = is_unsaid.then(|| self.conversation(&agent, &message));
        let input = self.turn_input(&agent, message, spec.map(|spec| spec.digest));
        let (engine, log) = (&app.engine, &app.deliveries);
        let opened = if let Some(session) = session {
            let decisions = self.chat.decisions().to_vec();
            turn::open_turn(engine, log, input(session), decisions).await?
        } else {
            let new = self.new_session(app, &agent)?;
            let opened = match conversation {
                Some(told) => {
                    Box::pin(turn::open_turn_in_recalled_session(
                        engine, log, new, told, input,
                    ))
                    .await
                }
                None => turn::open_turn_in_new_session(engine, log, new, input).await,
            };
            let made = match &opened {
                Ok(opened) => Some(opened.handle.session),
                Err((_, made)) => *made,
            };
            // A repeat is found by its key, or by its messages.
            known.made(made, self.asked.key_text().is_some() || is_unsaid);
            opened.map_err(|(error, _)| error)?
        };
        let now = app.options.agents.get();
        let was_hosted = spec.is_some_and(|spec| spec.kind.is_hosted());
        if was_hosted && now.agent(&agent).is_none() && opened.is_new {
            // The agent was removed a moment ago, so perhaps no runner has seen the turn.
            opened.handle.cancel().await?;
            return Err(unknown_agent(&now, agent.as_str(), None));
        }
        Ok((opened, None))
    }

    /// The input of the turn, once its session is known. Its key stands for the session and the body.
    fn turn_input(
        &self,
        agent: &Name,
        message: UserMessage,
        config: Option<Digest>,
    ) -> impl FnOnce(SessionId) -> TurnInput + Send + 'static {
        let (asked, body, agent) = (self.asked.clone(), self.fingerprint(), agent.clone());
        let (task, credential) = (self.task, self.credential.clone());
        let decides_elsewhere = self.chat.wants_own_holds();
        move |session| TurnInput {
            call: Call {
                key: asked.key_of("", &[session.to_string().as_bytes(), &body]),
                caller: asked.caller.clone(),
                if_revision: asked.if_revision,
            },
            key: asked.key_text().map(str::to_owned),
            session,
            agent,
            task,
            message,
            credential,
            config,
            decides_elsewhere,
        }
    }

    /// The body as far as an idempotency key stands for it: a client may ask for the same turn as a stream, or
    /// whole.
    fn fingerprint(&self) -> Vec<u8> {
        let members = serde_json::from_slice::<BTreeMap<String, Raw>>(&self.body);
        members.map_or_else(
            |_| self.body.to_vec(),
            |mut members| {
                members.retain(|name, _| !matches!(name.as_str(), "stream" | "stream_options"));
                to_body(&members)
            },
        )
    }

    /// The conversation that the call carries.
    fn conversation(&self, agent: &Name, message: &UserMessage) -> Conversation {
        let (earlier, context) = self.chat.earlier();
        Conversation {
            agent: agent.clone(),
            earlier,
            message: CarriedMessage::by_user(&message.text, &message.files),
            context,
            key: self.asked.key_of("", &[]).map(|key| key.key),
        }
    }

    /// The session that the call creates, and the call that creates it.
    fn new_session(&self, app: &App, agent: &Name) -> Result<(Call, SessionInput), Problem> {
        self.require_no_session("a new session")?;
        let chat = &self.chat;
        let in_body = chat.user.as_ref().or(chat.safety_identifier.as_ref());
        let named = self.user.as_ref().or(in_body);
        let named = named.filter(|name| !name.is_empty());
        let caller = self.asked.caller.clone();
        let new = SessionInput {
            app: self
                .app_name
                .as_ref()
                .map_or("default", Name::as_str)
                .to_owned(),
            user: match caller.user {
                // The key says who the user is.
                Some(_) => None,
                None => Some(named.map_or(ANONYMOUS, String::as_str).to_owned()),
            },
            agent: Some(agent.to_string()),
            ttl_seconds: app.options.chat_session_ttl_seconds,
            ..SessionInput::default()
        };
        let call = Call {
            // No key of a caller has a blank in it.
            key: self
                .asked
                .key_of(" session", &[b"new", &self.fingerprint()]),
            ..Call::by(caller)
        };
        Ok((call, new))
    }

    /// Refuses a task or decisions where no session exists yet.
    fn require_no_session(&self, what: &str) -> Result<(), Problem> {
        if self.task.is_some() {
            let detail = format!("`x-statehold-task`: {what} has no tasks to go on with");
            return Err(Problem::new(Code::BadHeader, detail));
        }
        if !self.chat.decisions().is_empty() {
            let detail = format!("`statehold.decisions`: {what} has no holds; name the session");
            return Err(Problem::invalid(detail).with("path", "statehold.decisions"));
        }
        Ok(())
    }

    /// Whether the agent may ask the caller to run tools: only without a session, and only tools that the
    /// caller brought.
    fn wants_calls(&self, has_session: bool) -> bool {
        !has_session && self.chat.has_tools()
    }

    /// Whether this server runs the agent.
    fn is_hosted(&self, app: &App) -> bool {
        let book = app.options.agents.get();
        let mut agents = book.agents.values();
        let spec = agents.find(|spec| spec.name.as_str() == self.chat.model);
        spec.is_some_and(|spec| spec.kind.is_hosted())
    }

    /// The time until which a pause is waited for: none without a session, to which the client could return.
    fn deadline(&self, has_session: bool) -> Instant {
        if has_session {
            self.wait_until
        } else {
            Instant::now()
        }
    }

    /// Waits for the turn and answers whole.
    async fn answer(
        &self,
        app: &App,
        turn: OpenTurn,
        scratch: Option<Arc<ScratchSession>>,
        known: &mut TurnContext,
    ) -> Result<Response, Problem> {
        let (handle, earlier, has_session) = (turn.handle, turn.earlier, scratch.is_none());
        let snapshot = handle.outcome(self.deadline(has_session)).await?;
        require_answer(app, &handle, scratch.as_ref(), &snapshot, known).await?;
        let receipt = has_session.then(|| app.deliveries.receipt(&handle, &earlier, &snapshot));
        let model = self.chat.model.clone();
        let mut completion =
            CompletionWriter::new(model, &handle, snapshot.started_at, has_session);
        completion.earlier = earlier;
        completion.reminder = turn.reminder;
        let ending = Ending {
            answer: reply_of(&snapshot, self.wants_calls(has_session), &self.base),
            account: handle.account(&snapshot).await?,
            holds: snapshot.holds,
        };
        let bytes = completion.whole(&ending);
        let length = HeaderValue::from(bytes.len());
        let mut response = Response::new(delivery::whole(bytes, receipt));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, length);
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        describe(headers, &handle, turn.is_replay, has_session);
        Ok(response)
    }

    /// Answers as the answer is written.
    async fn stream(
        self,
        app: App,
        turn: OpenTurn,
        scratch: Option<Arc<ScratchSession>>,
        share: Share,
        known: &mut TurnContext,
    ) -> Result<Response, Problem> {
        let (handle, has_session) = (turn.handle, scratch.is_none());
        let started_at = handle.started_at().await?;
        let (with_calls, wait_until) = (self.wants_calls(has_session), self.deadline(has_session));
        let mut follower = handle.follow(wait_until);
        let mut first = None;
        if self.is_hosted(&app) {
            let next = self.asked.while_valid(follower.next());
            first = tokio::time::timeout(HEAD_MAX, next)
                .await
                .ok()
                .transpose()?;
        }
        if let Some(TurnEvent::Over(snapshot)) = &first {
            require_answer(&app, &handle, scratch.as_ref(), snapshot, known).await?;
        }
        let mut completion =
            CompletionWriter::new(self.chat.model, &handle, started_at, has_session);
        completion.earlier = turn.earlier;
        completion.reminder = turn.reminder;
        let options = self.chat.stream_options.unwrap_or_default();
        completion.with_usage = options.include_usage == Some(true);
        let (pieces, written) = mpsc::channel(PIECES_MAX);
        let mut response = Response::new(delivery::streamed(written, share));
        let headers = response.headers_mut();
        sse::set_headers(headers);
        describe(headers, &handle, turn.is_replay, has_session);
        let writer = StreamWriter {
            app,
            turn: handle,
            completion,
            api_key: self.asked.api_key,
            base: self.base,
            pieces,
            drafted: String::new(),
            scratch,
            with_calls,
            only_here: known.only_here,
        };
        tokio::spawn(writer.write(follower, first));
        Ok(response)
    }
}

/// Fails if a turn has ended without an answer, or is paused and its client cannot come back.
async fn require_answer(
    app: &App,
    turn: &TurnHandle,
    scratch: Option<&Arc<ScratchSession>>,
    snapshot: &TurnSnapshot,
    known: &mut TurnContext,
) -> Result<(), Problem> {
    let failure = turn.failure(snapshot).await;
    if let Some(scratch) = scratch {
        let end = (turn, failure.is_some());
        app.failed_calls.settle(app, scratch, end);
    }
    if let Some(failed) = failure {
        // An error has no room for answers of other turns: they come with the next call.
        let has_session = scratch.is_none();
        known.receipt = has_session.then(|| app.deliveries.receipt(turn, &[], snapshot));
        return Err(failed.into());
    }
    if snapshot.is_paused() && scratch.is_some() {
        return Err(needs_session());
    }
    Ok(())
}

/// An agent that is declared.
fn declared(book: &AgentBook, model: &str, own: Option<&Name>) -> Result<Name, Problem> {
    let mut names = book.agents.keys();
    let found = names.find(|name| name.as_str() == model);
    let found = found.cloned();
    found.ok_or_else(|| unknown_agent(book, model, own))
}

/// The headers that say what an answer is about.
fn describe(headers: &mut HeaderMap, turn: &TurnHandle, is_replay: bool, has_session: bool) {
    let values = AnswerHeaders {
        session: has_session.then_some(turn.session),
        task: has_session.then_some(turn.task),
        request: has_session.then_some(turn.request),
        replayed: is_replay,
        ..AnswerHeaders::default()
    };
    values.write(headers);
}

fn wait_of(headers: &HeaderMap) -> Result<Duration, Problem> {
    let Some(wait) = text(headers, "x-statehold-wait")? else {
        return Ok(Duration::ZERO);
    };
    let seconds = wait.parse().ok();
    let seconds = seconds.filter(|seconds| *seconds <= PAUSE_SECONDS_MAX);
    seconds.map(Duration::from_secs).ok_or_else(|| {
        let detail = "`x-statehold-wait` is a number of seconds, at most 86400 (a day)";
        Problem::new(Code::BadHeader, detail)
    })
}

fn app_name(headers: &HeaderMap) -> Result<Option<Name>, Problem> {
    let name = text(headers, "x-statehold-app")?;
    name.map(|name| {
        name.parse().map_err(|error| {
            let detail = format!("`x-statehold-app`: {error}");
            Problem::new(Code::BadHeader, detail)
        })
    })
    .transpose()
}

fn task_of(headers: &HeaderMap) -> Result<Option<TaskId>, Problem> {
    let task = text(headers, "x-statehold-task")?;
    // A text that is no id names no task.
    task.map(|task| task.parse().map_err(|_| Problem::not_found()))
        .transpose()
}

/// The address of the server, as the call names it. Characters that no address has are not echoed.
fn base_of(headers: &HeaderMap) -> Result<String, Problem> {
    let host = text(headers, "host")?.unwrap_or_default();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
    if host.is_empty() || !host.bytes().all(is_plain) {
        return Ok(String::new());
    }
    let scheme = match text(headers, "x-forwarded-proto")? {
        Some("https") => "https",
        _ => "http",
    };
    Ok(format!("{scheme}://{host}"))
}
