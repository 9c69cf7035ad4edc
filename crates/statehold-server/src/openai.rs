//! Chat as OpenAI's clients speak it: every agent is a model, a session is a conversation that the
//! server remembers, and a turn that waits for a person is an answer that says so.

mod ask;
mod completion;
mod delivery;
pub(crate) mod errors;
mod files;
mod heard;
pub(crate) mod models;
mod paused;
mod refusal;
mod said;
pub(crate) mod seats;
mod session;
mod stateless;
mod stream;
pub(crate) mod told;
mod turn;
mod watch;

use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use statehold_agents::spec::AgentBook;
use statehold_core::ids::{SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::request::RequestOutcome;
use statehold_engine::Credential;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::ask::{ChatIn, ChatMessageIn};
use self::completion::{CompletionOut, Ending, Voice};
use self::refusal::{Known, Refusal};
use self::said::{Account, Answer};
use self::seats::Seat;
use self::session::{NewSession, Wanted, unknown_agent, user_of};
use self::stateless::{ScratchSession, Stateless, needs_session, not_user};
use self::stream::{Pauses, Writer};
use self::told::Receipt;
use self::turn::{Earlier, Message, Place};
use crate::http::call::{App, CallContext, CallerCredential, Payload, text};
use crate::http::problem::{Code, Problem};

/// How long a call may wait for a decision: a day.
const WAIT_SECONDS_MAX: u64 = 86_400;
/// Whoever waits longer than this takes the place of a stream.
const WAIT_FREE: Duration = Duration::from_mins(1);
/// How many pieces of a stream wait for a slow client.
const PIECES_MAX: usize = 16;

/// Say something to an agent.
///
/// With a session (`x-statehold-session`, or `conversation`) the last message is the input and the
/// server knows the rest. Without one, the messages are the conversation and nothing is kept, unless the
/// agent is declared otherwise.
#[utoipa::path(
    post, path = "/openai/v1/chat/completions", tag = "chat", request_body = ChatIn,
    responses((status = 200, content(
        (CompletionOut = "application/json"),
        (String = "text/event-stream"),
    ), description = "One completion, or a stream of its chunks."))
)]
pub(crate) async fn chat(State(app): State<App>, request: Request) -> Result<Response, Refusal> {
    let call = ChatCall::read(&app, request).await?;
    let mut known = Known::default();
    let answered = call.serve(app, &mut known).await;
    answered.map_err(|problem| Refusal::new(problem, known))
}

/// A chat call as it came.
struct ChatCall {
    asked: CallContext,
    credential: Option<Credential>,
    chat: ChatIn,
    body: Bytes,
    wanted: Wanted,
    /// The user of a new session, where a header names one.
    user: Option<String>,
    app_name: Option<Name>,
    task: Option<TaskId>,
    /// Whose key it is, whoever it speaks for.
    key_of: Principal,
    /// How long a pause is waited for, and until when.
    wait: Duration,
    wait_until: Instant,
    /// Where the server was called.
    base: String,
}

/// The turn that a call waits for.
struct Turn {
    place: Place,
    is_replay: bool,
    earlier: Vec<Earlier>,
    /// The session in memory that goes with the call.
    scratch: Option<ScratchSession>,
}

impl ChatCall {
    async fn read(app: &App, request: Request) -> Result<Self, Problem> {
        let (mut parts, body) = request.into_parts();
        let user = text(&parts.headers, "x-statehold-user")?.map(str::to_owned);
        // The developer is no backend that acts for others, but may say whose session it is.
        parts.headers.remove("x-statehold-user");
        let mut asked = CallContext::from_request_parts(&mut parts, app).await?;
        let key_of = asked.caller.principal;
        let is_local = key_of == Principal::Local;
        if let Some(user) = user.as_deref().filter(|_| !is_local) {
            asked.caller = app.engine.act_for(&asked.caller, user).await?;
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
            wanted: Wanted::of(&headers, &chat)?,
            chat,
            body: bytes,
            user,
            app_name: app_name(&headers)?,
            task: task_of(&headers)?,
            key_of,
            wait,
            wait_until: Instant::now() + wait,
            base: base_of(&headers)?,
        })
    }

    /// Finds the turn and answers. What is known of the turn stays known when that fails.
    async fn serve(self, app: App, known: &mut Known) -> Result<Response, Problem> {
        self.chat.require_possible()?;
        let (message, path) = self.chat.last_message()?;
        let is_stream = self.chat.stream == Some(true);
        let stays_open = is_stream || self.wait > WAIT_FREE;
        let seat = stays_open
            .then(|| app.seats.take(self.key_of))
            .transpose()?;
        let turn = self.begin(&app, &message, &path, known).await?;
        if turn.scratch.is_none() {
            known.found(&turn.place);
        }
        match seat {
            Some(seat) if is_stream => self.stream(app, turn, seat, known.only_here()).await,
            _ => {
                let answer = self.answer(&app, turn, known);
                app.while_valid(self.asked.secret, answer).await
            }
        }
    }

    /// Finds or begins the turn that the call is about.
    async fn begin(
        &self,
        app: &App,
        message: &ChatMessageIn,
        path: &str,
        known: &mut Known,
    ) -> Result<Turn, Problem> {
        let book = &app.options.agents.get();
        let model = &self.chat.model;
        let (session, agent) = match self.wanted {
            Wanted::Session(session) => {
                let reader = turn::as_client(&self.asked.caller);
                let own = app.engine.session(&reader, session).await?.owner.agent;
                let agent = if own.as_str() == model {
                    own
                } else {
                    declared(book, model, Some(&own))?
                };
                (Some(session), agent)
            }
            Wanted::New | Wanted::Unsaid => (None, declared(book, model, None)?),
        };
        let spec = book.agent(&agent);
        let wanted = match spec {
            Some(spec) => self.wanted.for_agent(spec),
            None => Some(self.wanted),
        };
        if wanted.is_none() {
            return self.begin_stateless(app, &agent, message, path).await;
        }
        self.chat.require_plain()?;
        if message.role != "user" {
            return Err(not_user(path));
        }
        let words = message.words(path)?;
        let session = if let Some(session) = session {
            session
        } else {
            let made = self.new_session(app, &agent).await?;
            known.made(made, self.asked.key_text().is_some());
            made
        };
        let message = Message {
            app,
            asked: &self.asked,
            body: &self.body,
            session,
            agent: &agent,
            task: self.task,
            words: &words,
            credential: self.credential.as_ref(),
            decides_elsewhere: self.chat.wants_own_holds(),
        };
        let taken = message.take_up(self.chat.decisions()).await?;
        let now = app.options.agents.get();
        let was_ours = spec.is_some_and(|spec| spec.kind.is_hosted());
        if was_ours && now.agent(&agent).is_none() && taken.is_begun {
            // It was declared a moment ago, so perhaps nobody has heard of the turn.
            message.cancel(taken.place.request).await?;
            return Err(unknown_agent(&now, agent.as_str(), None));
        }
        let place = Place {
            tells_own_holds: self.chat.wants_own_holds(),
            ..taken.place
        };
        Ok(Turn {
            place,
            is_replay: taken.is_replay,
            earlier: taken.earlier,
            scratch: None,
        })
    }

    async fn begin_stateless(
        &self,
        app: &App,
        agent: &Name,
        message: &ChatMessageIn,
        path: &str,
    ) -> Result<Turn, Problem> {
        self.require_no_session("a call without a session")?;
        let stateless = Stateless {
            app,
            asked: &self.asked,
            chat: &self.chat,
            body: &self.body,
            agent,
            credential: self.credential.as_ref(),
        };
        let (place, scratch) = stateless.begin(message, path).await?;
        Ok(Turn {
            place,
            is_replay: false,
            earlier: Vec::new(),
            scratch: Some(scratch),
        })
    }

    async fn new_session(&self, app: &App, agent: &Name) -> Result<SessionId, Problem> {
        self.require_no_session("a new session")?;
        let caller = &self.asked.caller;
        let name = self.app_name.clone();
        let default = || "default".parse().expect("a fixed name is a name");
        let new = NewSession {
            app: name.unwrap_or_else(default),
            user: user_of(app, caller, self.user.as_deref(), &self.chat).await?,
            agent: agent.clone(),
            // No key of a caller has a blank in it.
            key: self.asked.key_of(" session", &[b"new", &self.body]),
        };
        new.create(&app.engine, caller).await
    }

    /// What belongs to a session makes no sense where there is none yet.
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

    /// Whether the agent may want to have tools called by the caller: only where the caller brought them,
    /// which sessions take from nobody.
    fn wants_calls(&self, stays: bool) -> bool {
        !stays && self.chat.has_tools()
    }

    /// Waits for the turn and answers whole.
    async fn answer(&self, app: &App, turn: Turn, known: &mut Known) -> Result<Response, Problem> {
        let Turn {
            place,
            is_replay,
            earlier,
            scratch,
        } = turn;
        let wait_until = match &scratch {
            Some(_) => Instant::now(),
            None => self.wait_until,
        };
        let look = place.until_told(app, wait_until).await?;
        let stays = scratch.is_none();
        let answer = match look.sign.ended {
            Some((RequestOutcome::Completed, ..)) if self.wants_calls(stays) => {
                Answer::with_calls(&look.detail)
            }
            Some((RequestOutcome::Completed, ..)) => Answer::of(&look.detail),
            Some(_) => {
                let problem = place.failure(&look).await;
                if stays {
                    // An error has no room for answers of other turns: they come with the next call.
                    known.ends_with(Receipt::of(app, &place, &[], &look));
                }
                return Err(problem.unwrap_or_else(Problem::not_found));
            }
            None if !stays => return Err(needs_session()),
            None => Answer {
                text: paused::sentence(&look.holds, &self.base),
                ..Answer::default()
            },
        };
        let receipt = stays.then(|| Receipt::of(app, &place, &earlier, &look));
        let mut voice = Voice::new(self.chat.model.clone(), &place, &look.sign, stays);
        voice.earlier = earlier;
        let account = Account::of(&place.engine, &place.reader, &look.detail).await?;
        let ending = Ending {
            answer,
            account,
            holds: look.holds,
        };
        let bytes = voice.whole(&ending);
        let length = HeaderValue::from(bytes.len());
        let mut response = Response::new(delivery::whole(bytes, receipt));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_LENGTH, length);
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        describe(headers, &place, is_replay, stays);
        Ok(response)
    }

    /// Answers as the answer is written.
    async fn stream(
        self,
        app: App,
        turn: Turn,
        seat: Seat,
        only_here: Option<SessionId>,
    ) -> Result<Response, Problem> {
        let Turn {
            place,
            is_replay,
            earlier,
            scratch,
        } = turn;
        let stays = scratch.is_none();
        let look = place.look().await?;
        let with_calls = self.wants_calls(stays);
        let mut voice = Voice::new(self.chat.model, &place, &look.sign, stays);
        voice.earlier = earlier;
        let options = self.chat.stream_options.unwrap_or_default();
        voice.with_usage = options.include_usage == Some(true);
        let (pieces, written) = mpsc::channel(PIECES_MAX);
        let mut response = Response::new(delivery::streamed(written, seat));
        let headers = response.headers_mut();
        let events = HeaderValue::from_static("text/event-stream");
        headers.insert(header::CONTENT_TYPE, events);
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        describe(headers, &place, is_replay, stays);
        let writer = Writer {
            app,
            place,
            voice,
            secret: self.asked.secret,
            wait_until: self.wait_until,
            base: self.base,
            pieces,
            drafted: String::new(),
            pauses: if stays { Pauses::Told } else { Pauses::Refused },
            with_calls,
            only_here,
        };
        tokio::spawn(async move {
            writer.write().await;
            drop(scratch);
        });
        Ok(response)
    }
}

/// An agent that is declared.
fn declared(book: &AgentBook, model: &str, own: Option<&Name>) -> Result<Name, Problem> {
    let mut names = book.agents.keys();
    let found = names.find(|name| name.as_str() == model);
    let found = found.cloned();
    found.ok_or_else(|| unknown_agent(book, model, own))
}

/// The headers that say what an answer is about.
fn describe(headers: &mut HeaderMap, place: &Place, is_replay: bool, stays: bool) {
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let mut put = |name: &'static str, value: String| {
        if let Ok(value) = HeaderValue::from_str(&value) {
            headers.insert(HeaderName::from_static(name), value);
        }
    };
    if stays {
        put("x-statehold-session", place.session.to_string());
        put("x-statehold-task", place.task.to_string());
        put("x-statehold-request", place.request.to_string());
    }
    if is_replay {
        put("idempotency-replayed", "true".to_owned());
    }
}

fn wait_of(headers: &HeaderMap) -> Result<Duration, Problem> {
    let Some(wait) = text(headers, "x-statehold-wait")? else {
        return Ok(Duration::ZERO);
    };
    let seconds = wait.parse().ok();
    let seconds = seconds.filter(|seconds| *seconds <= WAIT_SECONDS_MAX);
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
    // What cannot be an id is the id of nothing.
    task.map(|task| task.parse().map_err(|_| Problem::not_found()))
        .transpose()
}

/// Where the server was called, as far as the call says; what no address has in it is not repeated.
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
