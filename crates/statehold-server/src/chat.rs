//! Chat turns of every surface: the parts of a call that all surfaces share, opening its turn in a
//! session, in a new one or in memory, and answering it whole or as a stream.
//!
//! A surface reads its own messages and writes its own format ([`TurnFormat`]). It finds and starts
//! turns only through this module, which calls `api::turn`.

mod carrier;
mod completions;
mod inline;
mod refusal;
mod stateless;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::response::Response;
use bytes::Bytes;
use http::HeaderMap;
use serde::de::DeserializeOwned;
use statehold_agents::plain_state::plain_state;
use statehold_agents::spec::AgentBook;
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::principal::Principal;
use statehold_core::time::Timestamp;
use statehold_engine::api::caller::act_for;
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::session::SessionInput;
use statehold_engine::api::trace;
use statehold_engine::api::turn::{
    self, AgentReply, Conversation, EarlierAnswer, NamedSession, OpenTurn, ReplyParts, TurnAccount,
    TurnDebug, TurnDecision, TurnEvent, TurnHandle, TurnInput, TurnSnapshot, UserMessage,
    pause_text,
};
use statehold_engine::{Call, CallCredential, Credential, EngineError, HoldDetail, Role, Share};
use tokio::sync::mpsc;
use tokio::time::Instant;

pub(crate) use self::carrier::{CarriedText, Carrier, StateOpener};
pub(crate) use self::completions::{
    ChatMessageIn, CompletionFormat, CompletionsCall, CompletionsIn, StateholdOut,
};
pub(crate) use self::inline::{CallerData, ClientManagedIds, InlineContext};
pub(crate) use self::refusal::{TurnContext, forbid_retry};
pub(crate) use self::stateless::{
    FailedCalls, agent_needs_session, needs_trust, passes_tools, trusts_callers,
};
use self::stateless::{ScratchSession, needs_session};
use self::stream::{DraftedText, StreamWriter};
pub(crate) use self::stream::{SentText, TurnFormat};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext, CallerCredential, text};
use crate::http::delivery;
use crate::http::problem::{Code, Problem};
use crate::native::AnswerHeaders;

/// How long a call may wait for a decision: a day.
const PAUSE_SECONDS_MAX: u64 = 86_400;
/// A call that may wait longer than this takes a share of the streams.
const WAIT_FREE: Duration = Duration::from_mins(1);
/// How long the head of a stream waits for the first event of a hosted agent, so that a failure has
/// its status.
const HEAD_MAX: Duration = Duration::from_secs(2);
/// How many pieces of a stream wait for a slow client.
const PIECES_MAX: usize = 16;
/// The user of a session that no user was named for.
pub(crate) const ANONYMOUS: &str = "anonymous";
/// How many agents an error names.
const NAMED_MAX: usize = 20;

/// A chat call, as far as all surfaces read it alike.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own"
)]
pub(crate) struct ChatCall {
    pub(crate) asked: CallContext,
    credential: Option<Credential>,
    /// The key of the call. The call owns it: its turn has it until the response ends.
    pub(crate) own_key: Option<Arc<CallCredential>>,
    pub(crate) body: Bytes,
    /// The user of a new session, where a header names one.
    pub(crate) user: Option<String>,
    pub(crate) app_name: Option<Name>,
    task: Option<TaskId>,
    pub(crate) arrived: std::time::Instant,
    /// How long a pause is waited for, and until when.
    wait: Duration,
    wait_until: Instant,
    /// The address of the server, as the call names it.
    pub(crate) base: String,
    /// Whether people decide holds in another place than this chat: no message answers a question.
    pub(crate) decides_elsewhere: bool,
    /// Whether a new turn waits until no other one runs in its session.
    pub(crate) one_at_a_time: bool,
    /// Whether a stream waits for its first event also if this server does not run the agent: for
    /// clients that are sent nothing before it.
    pub(crate) awaits_first: bool,
    /// Whether the caller brings tools of its own, which it runs itself.
    pub(crate) brings_tools: bool,
    /// Whether the answer carries the hidden items of the turn.
    pub(crate) wants_debug: bool,
    surface: &'static ChatSurface,
}

/// The words of a surface, for errors that say what to send.
#[derive(Debug)]
pub(crate) struct ChatSurface {
    /// The way to ask for a new session.
    pub(crate) new_session: &'static str,
    /// The place of a session's id.
    pub(crate) session: &'static str,
    /// The place of the agent.
    pub(crate) agent: &'static str,
    /// Whether its answers have a place for hidden items.
    pub(crate) has_debug: bool,
    /// Whether its answers show the stages of a turn.
    pub(crate) shows_stages: bool,
    /// Whether its answers carry references unless the call says otherwise.
    pub(crate) refers: bool,
}

/// A turn that was found or started. A turn without a session also has its session in memory, which
/// is deleted at the end of the call.
pub(crate) struct ChatTurn {
    open: OpenTurn,
    scratch: Option<Arc<ScratchSession>>,
    /// Whether this server runs the agent.
    is_hosted: bool,
    pub(crate) extras: TurnExtras,
}

/// The parts of an answer beside the reply.
#[derive(Debug, Clone, Default)]
pub(crate) struct TurnExtras {
    /// Seals the state and the references that the client carries. None for surfaces that have no
    /// place for them.
    pub(crate) carrier: Option<Carrier>,
    /// The expired session in place of which the session of the turn began.
    pub(crate) replaced: Option<SessionId>,
    /// The parts of the conversation of the caller that did not reach the agent.
    pub(crate) left_out: BTreeSet<&'static str>,
}

impl TurnExtras {
    /// The plain state of a turn in a session, if its client carries that.
    async fn plain_state(
        &self,
        app: &App,
        turn: &TurnHandle,
        snapshot: &TurnSnapshot,
    ) -> Result<Option<Raw>, EngineError> {
        let is_plain = self.carrier.as_ref().is_some_and(|it| it.is_plain);
        if !is_plain || snapshot.is_paused() {
            return Ok(None);
        }
        let states = turn.agent_states(snapshot).await?;
        Ok(plain_state(&app.options.agents.get(), &states))
    }

    /// Adds a reference to the turn, or the state of the agent, to the end of the turn.
    fn complete(
        self,
        app: &App,
        (turn, has_session): (&TurnHandle, bool),
        (revision, state): (u64, Option<Raw>),
        ending: &mut Ending,
    ) {
        ending.left_out = self.left_out;
        let Some(carrier) = self.carrier else {
            return;
        };
        if carrier.is_plain {
            ending.carried = state;
        } else if has_session {
            ending.carried = carrier
                .wants_reference
                .then(|| carrier.reference(app, turn, revision));
        } else if let Some(state) = state {
            ending.carried = carrier.state(app, &state);
            if ending.carried.is_none() {
                let bytes = state.get().len();
                tracing::warn!(
                    bytes,
                    "the state of an agent is too long for its caller to carry"
                );
                ending.left_out.insert("agent_state");
            }
        }
    }
}

impl ChatTurn {
    /// Its session and its task.
    pub(crate) fn place(&self) -> (SessionId, TaskId) {
        (self.open.handle.session, self.open.handle.task)
    }
}

/// The ids of a turn whose session outlives the call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnIds {
    pub(crate) session: SessionId,
    pub(crate) task: TaskId,
    pub(crate) request: RequestId,
}

/// A turn before its first event.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TurnHead {
    /// None for a call without a session.
    pub(crate) ids: Option<TurnIds>,
    pub(crate) request: RequestId,
    pub(crate) started_at: Timestamp,
    /// The expired session in place of which the session of the turn began.
    pub(crate) replaced: Option<SessionId>,
}

impl TurnHead {
    fn of(
        turn: &TurnHandle,
        started_at: Timestamp,
        has_session: bool,
        extras: &TurnExtras,
    ) -> Self {
        Self {
            replaced: extras.replaced,
            ids: has_session.then_some(TurnIds {
                session: turn.session,
                task: turn.task,
                request: turn.request,
            }),
            request: turn.request,
            started_at,
        }
    }
}

/// The answers of earlier turns that come before an answer, and the reminder of an open question.
#[derive(Debug, Clone, Default)]
pub(crate) struct Preface {
    pub(crate) earlier: Vec<EarlierAnswer>,
    /// A line about a question that stays open.
    pub(crate) reminder: Option<String>,
}

impl Preface {
    /// All of it before an answer, each paragraph followed by a blank line.
    pub(crate) fn before(&self, answer: String) -> String {
        let mut text = self.text();
        if text.is_empty() {
            return answer;
        }
        text.push_str(&answer);
        text
    }

    /// All of it, each paragraph followed by a blank line.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        let earlier = self.earlier.iter().map(|earlier| &earlier.content);
        for paragraph in earlier.chain(&self.reminder) {
            text.push_str(paragraph);
            text.push_str("\n\n");
        }
        text
    }
}

/// How a call ends.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) preface: Preface,
    pub(crate) answer: AgentReply,
    pub(crate) account: TurnAccount,
    /// The open holds of a paused turn.
    pub(crate) holds: Vec<HoldDetail>,
    /// The hidden items of the turn, for a call that may see them and asks for them.
    pub(crate) debug: Option<TurnDebug>,
    /// The `custom_content.state` for the client to send back.
    pub(crate) carried: Option<Raw>,
    /// The parts of the conversation of the caller that did not reach the agent, and the state of
    /// the agent if it cannot be carried.
    pub(crate) left_out: BTreeSet<&'static str>,
}

impl Ending {
    /// The end of a turn as it was read, without its record.
    fn of(snapshot: TurnSnapshot, reminder: Option<String>, answer: AgentReply) -> Self {
        let earlier = snapshot.earlier;
        Self {
            preface: Preface { earlier, reminder },
            answer,
            account: snapshot.account,
            holds: snapshot.holds,
            debug: None,
            carried: None,
            left_out: BTreeSet::new(),
        }
    }

    /// `completed` or `paused`.
    pub(crate) fn status(&self) -> &'static str {
        status_of(&self.holds)
    }
}

/// The status of a turn with these open holds.
pub(crate) fn status_of(holds: &[HoldDetail]) -> &'static str {
    if holds.is_empty() {
        "completed"
    } else {
        "paused"
    }
}

/// The reply that a call ends with: that of the agent, or a text about the pause. `base` is the
/// address of the server.
fn reply_of(snapshot: &TurnSnapshot, parts: ReplyParts, base: &str) -> AgentReply {
    if !snapshot.is_paused() {
        return snapshot.reply(parts);
    }
    AgentReply {
        text: pause_text(&snapshot.holds, base),
        ..AgentReply::default()
    }
}

impl ChatCall {
    /// Authenticates the caller and reads the headers and the body.
    pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(
        app: &App,
        request: Request,
        surface: &'static ChatSurface,
    ) -> Result<(Self, T, HeaderMap), Problem> {
        let arrived = std::time::Instant::now();
        let (mut parts, body) = request.into_parts();
        let user = text(&parts.headers, "x-statehold-user")?.map(str::to_owned);
        // The developer is no backend that acts for others, but may say whose session it is.
        parts.headers.remove("x-statehold-user");
        let mut asked = CallContext::from_request_parts(&mut parts, app).await?;
        let is_local = asked.caller.principal == Principal::Local;
        if let Some(user) = user.as_deref().filter(|_| !is_local) {
            asked.caller = act_for(&app.engine, &asked.caller, user).await?;
        }
        let wants_debug = wants_debug(&parts.headers, &asked, surface)?;
        let CallerCredential(credential) =
            CallerCredential::from_request_parts(&mut parts, app).await?;
        let headers = parts.headers.clone();
        let payload = Payload::<T>::from_request(Request::from_parts(parts, body), app);
        let Payload { value, bytes } = payload.await?;
        let wait = wait_of(&headers)?;
        let call = Self {
            asked,
            credential,
            own_key: None,
            body: bytes,
            user,
            app_name: app_name(&headers)?,
            task: task_of(&headers)?,
            arrived,
            wait,
            wait_until: Instant::now() + wait,
            base: match &app.options.public_url {
                Some(url) => url.clone(),
                None => base_of(&headers)?,
            },
            decides_elsewhere: false,
            one_at_a_time: false,
            awaits_first: false,
            brings_tools: false,
            wants_debug,
            surface,
        };
        Ok((call, value, headers))
    }

    /// Requires the client role, before the call is validated. The rights to a session are checked
    /// when it is found.
    pub(crate) fn require_client(&self) -> Result<(), Problem> {
        if self.asked.caller.has(Role::Client) {
            return Ok(());
        }
        let needs = vec![Role::Client];
        Err(EngineError::Forbidden { needs }.into())
    }

    /// Passes a credential of the body to the agent, unless a header has one.
    pub(crate) fn set_credential(&mut self, credential: Option<Credential>) {
        self.credential = self.credential.take().or(credential);
    }

    /// Takes a share of the streams, if the call stays open for long.
    pub(crate) fn take_share(&self, app: &App, is_stream: bool) -> Result<Option<Share>, Problem> {
        let stays_open = is_stream || self.wait > WAIT_FREE;
        stays_open
            .then(|| app.shares.take_stream(&self.asked.caller))
            .transpose()
    }

    /// Finds or starts the turn in a session that exists.
    pub(crate) async fn open_in_session(
        &self,
        app: &App,
        session: SessionId,
        (agent, message): (&Name, UserMessage),
        decisions: Vec<TurnDecision>,
    ) -> Result<ChatTurn, Problem> {
        let input = self.turn_input(app, agent, message);
        let is_hosted = is_hosted(app, agent);
        let opened = turn::open_turn(&app.engine, &app.deliveries, input(session), decisions);
        let opened = opened.await?;
        self.require_declared(app, agent, opened, is_hosted).await
    }

    /// Finds or starts the turn in a session that the call creates.
    pub(crate) async fn open_in_new_session(
        &self,
        app: &App,
        new: SessionInput,
        (agent, message): (&Name, UserMessage),
        known: &mut TurnContext,
    ) -> Result<ChatTurn, Problem> {
        let input = self.turn_input(app, agent, message);
        let new = self.creation(new)?;
        let is_hosted = is_hosted(app, agent);
        let opened = turn::open_turn_in_new_session(&app.engine, &app.deliveries, new, input);
        let opened = Box::pin(opened).await;
        let opened = Self::note_session(opened, self.asked.key_text().is_some(), known)?;
        self.require_declared(app, agent, opened, is_hosted).await
    }

    /// Finds or starts the turn in the session that a conversation continues.
    pub(crate) async fn open_in_recalled_session(
        &self,
        app: &App,
        (new, conversation): (SessionInput, Conversation),
        (agent, message): (&Name, UserMessage),
        known: &mut TurnContext,
    ) -> Result<ChatTurn, Problem> {
        let input = self.turn_input(app, agent, message);
        let new = self.creation(new)?;
        let is_hosted = is_hosted(app, agent);
        let (engine, log) = (&app.engine, &app.deliveries);
        let opened = turn::open_turn_in_recalled_session(engine, log, new, conversation, input);
        let opened = Self::note_session(Box::pin(opened).await, true, known)?;
        self.require_declared(app, agent, opened, is_hosted).await
    }

    /// Finds or starts the turn of a call that names an expired session: in the session that
    /// continues its messages, or in a new one of the same app and user.
    pub(crate) async fn open_in_place_of(
        &self,
        app: &App,
        (expired, named, user): (SessionId, &NamedSession, &str),
        conversation: Conversation,
        (agent, message): (&Name, UserMessage),
        known: &mut TurnContext,
    ) -> Result<ChatTurn, Problem> {
        let input = self.turn_input(app, agent, message);
        let new = SessionInput {
            user: Some(user.to_owned()),
            ..self.new_session(named.app.as_str(), agent, None)
        };
        let (engine, log) = (&app.engine, &app.deliveries);
        let call = turn::replacing_call(engine, &self.asked.caller, expired).await?;
        let is_hosted = is_hosted(app, agent);
        let new = (call, new);
        let opened = turn::open_turn_in_recalled_session(engine, log, new, conversation, input);
        let opened = Self::note_session(Box::pin(opened).await, true, known)?;
        let mut turn = self.require_declared(app, agent, opened, is_hosted).await?;
        turn.extras.replaced = Some(expired);
        Ok(turn)
    }

    /// Whether the call may continue in another session than the one it names: it names no task and
    /// no revision there.
    pub(crate) fn may_replace(&self) -> bool {
        self.task.is_none() && self.asked.if_revision.is_none()
    }

    /// Notes the session of a call that may fail. A repeat finds it by its key or by its messages,
    /// or not at all.
    fn note_session(
        opened: Result<OpenTurn, (EngineError, Option<SessionId>)>,
        is_found_again: bool,
        known: &mut TurnContext,
    ) -> Result<OpenTurn, Problem> {
        let made = match &opened {
            Ok(opened) => Some(opened.handle.session),
            Err((_, made)) => *made,
        };
        known.made(made, is_found_again);
        opened.map_err(|(error, _)| error.into())
    }

    /// The input of the turn, once its session is known. Its key stands for the session and the
    /// body.
    fn turn_input(
        &self,
        app: &App,
        agent: &Name,
        message: UserMessage,
    ) -> impl FnOnce(SessionId) -> TurnInput + Send + 'static {
        let (asked, body, agent) = (self.asked.clone(), self.fingerprint(), agent.clone());
        let (task, credential) = (self.task, self.credential.clone());
        let call_credential = self.own_key.as_ref().map(Arc::downgrade);
        let (decides_elsewhere, arrived) = (self.decides_elsewhere, self.arrived);
        let one_at_a_time = self.one_at_a_time;
        let config = config_of(&app.options.agents.get(), &agent);
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
            call_credential,
            config,
            decides_elsewhere,
            one_at_a_time,
            arrived,
        }
    }

    /// The body as far as an idempotency key stands for it: a client may ask for the same turn as a
    /// stream, or whole.
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

    /// A session of this app and agent, for the user of the key, the one of the header, or the one
    /// that the body names.
    pub(crate) fn new_session(
        &self,
        app_name: &str,
        agent: &Name,
        in_body: Option<&str>,
    ) -> SessionInput {
        SessionInput {
            app: app_name.to_owned(),
            user: match self.asked.caller.user {
                // The key says who the user is.
                Some(_) => None,
                None => Some(self.user_name(in_body).to_owned()),
            },
            agent: Some(agent.to_string()),
            is_chat: true,
            ..SessionInput::default()
        }
    }

    /// The user that the call names, in a header or in its body, if its key is bound to none.
    fn user_name<'a>(&'a self, in_body: Option<&'a str>) -> &'a str {
        let named = self.user.as_deref().or(in_body);
        named.filter(|name| !name.is_empty()).unwrap_or(ANONYMOUS)
    }

    /// The call that creates a session.
    fn creation(&self, new: SessionInput) -> Result<(Call, SessionInput), Problem> {
        self.require_no_task("a new session")?;
        let call = Call {
            // No key of a caller has a blank in it.
            key: self
                .asked
                .key_of(" session", &[b"new", &self.fingerprint()]),
            ..Call::by(self.asked.caller.clone())
        };
        Ok((call, new))
    }

    /// Refuses a task where no session exists yet.
    fn require_no_task(&self, what: &str) -> Result<(), Problem> {
        if self.task.is_some() {
            let detail = format!("`x-statehold-task`: {what} has no tasks to go on with");
            return Err(Problem::new(Code::BadHeader, detail));
        }
        Ok(())
    }

    /// The parts of a reply that a caller without a session gets. It runs only tools that it
    /// brought.
    fn reply_parts(&self, has_session: bool) -> ReplyParts {
        ReplyParts {
            calls: !has_session && self.brings_tools,
            state: !has_session,
            stages: self.surface.shows_stages,
        }
    }

    /// The time until which a pause is waited for: none without a session, to which the client
    /// could return.
    fn deadline(&self, has_session: bool) -> Instant {
        if has_session {
            self.wait_until
        } else {
            Instant::now()
        }
    }

    /// Cancels a turn whose agent was removed a moment ago: perhaps no runner has seen it.
    async fn require_declared(
        &self,
        app: &App,
        agent: &Name,
        open: OpenTurn,
        is_hosted: bool,
    ) -> Result<ChatTurn, Problem> {
        let now = app.options.agents.get();
        if is_hosted && now.agent(agent).is_none() && open.is_new {
            open.handle.cancel().await?;
            return Err(self.unknown_agent(&now, agent.as_str(), None));
        }
        Ok(ChatTurn {
            open,
            scratch: None,
            is_hosted,
            extras: TurnExtras::default(),
        })
    }

    /// The problem for a name that is no agent.
    pub(crate) fn unknown_agent(
        &self,
        book: &AgentBook,
        name: &str,
        own: Option<&Name>,
    ) -> Problem {
        let declared = book.agents.keys().filter(|name| own != Some(*name));
        let known = own.into_iter().chain(declared).map(Name::as_str);
        unknown_agent(name, known.collect()).with("path", self.surface.agent)
    }

    /// An agent that is declared, or that is the one of the session.
    pub(crate) fn declared(
        &self,
        book: &AgentBook,
        name: &str,
        own: Option<&Name>,
    ) -> Result<Name, Problem> {
        let mut names = own.into_iter().chain(book.agents.keys());
        let found = names.find(|known| known.as_str() == name).cloned();
        found.ok_or_else(|| self.unknown_agent(book, name, own))
    }

    /// Drops the body of the call when its turn is open, and gives its memory back. A turn without
    /// a session has the texts of all of it in a session in memory, until the call ends.
    fn drop_body(&mut self, turn: &ChatTurn) {
        self.body = Bytes::new();
        self.asked.slot.release_values();
        if turn.scratch.is_none() {
            self.asked.slot.release_body();
        }
    }

    /// Waits for the turn. `write` makes the body of the answer.
    pub(crate) async fn answer(
        mut self,
        app: &App,
        turn: ChatTurn,
        known: &mut TurnContext,
        write: impl FnOnce(&TurnHead, Ending) -> Vec<u8>,
    ) -> Result<Response, Problem> {
        self.drop_body(&turn);
        let ChatTurn {
            open,
            scratch,
            extras,
            ..
        } = turn;
        let (handle, has_session) = (&open.handle, scratch.is_none());
        if has_session {
            known.found(handle);
        }
        let work = async {
            let deadline = self.deadline(has_session);
            let snapshot = handle.outcome(deadline, &self.asked).await?;
            let room = scratch.as_ref().map(|scratch| (scratch, self.surface));
            require_answer(app, handle, room, &snapshot, known).await?;
            let log = &app.deliveries;
            let receipt = has_session.then(|| log.receipt(handle, true, &snapshot));
            let head = TurnHead::of(handle, snapshot.started_at, has_session, &extras);
            let mut reply = reply_of(&snapshot, self.reply_parts(has_session), &self.base);
            let mut state = reply.state.take();
            if has_session {
                state = extras.plain_state(app, handle, &snapshot).await?;
            }
            let carries = (snapshot.revision, state);
            let debug = if self.wants_debug {
                Some(handle.debug(&self.asked.caller, &snapshot).await?)
            } else {
                None
            };
            let mut ending = Ending::of(*snapshot, open.reminder.clone(), reply);
            ending.debug = debug;
            extras.complete(app, (handle, has_session), carries, &mut ending);
            let bytes = write(&head, ending);
            self.asked.slot.shrink_answer(bytes.len() as u64);
            let mut response = delivery::json(bytes, receipt);
            describe(response.headers_mut(), &open, has_session);
            Ok::<_, Problem>(response)
        };
        self.asked.while_valid(work).await
    }

    /// Answers as the answer is written. `format` makes the format of the stream.
    pub(crate) async fn stream<F: TurnFormat>(
        mut self,
        app: App,
        turn: ChatTurn,
        share: Share,
        known: &mut TurnContext,
        format: impl FnOnce(&TurnHead) -> F,
    ) -> Result<Response, Problem> {
        self.drop_body(&turn);
        let ChatTurn {
            open,
            scratch,
            is_hosted,
            extras,
        } = turn;
        let (handle, has_session) = (open.handle.clone(), scratch.is_none());
        if has_session {
            known.found(&handle);
        }
        let started_at = handle.started_at().await?;
        let follower = handle.follow(self.deadline(has_session));
        let mut follower = follower.with_stages(self.reply_parts(has_session).stages);
        let mut first = None;
        if is_hosted || self.awaits_first {
            let next = self.asked.while_valid(follower.next(&self.asked));
            first = tokio::time::timeout(HEAD_MAX, next)
                .await
                .ok()
                .transpose()?;
        }
        if let Some(TurnEvent::Over(snapshot)) = &first {
            let room = scratch.as_ref().map(|scratch| (scratch, self.surface));
            require_answer(&app, &handle, room, snapshot, known).await?;
        }
        let head = TurnHead::of(&handle, started_at, has_session, &extras);
        let format = format(&head);
        let (pieces, written) = mpsc::channel(PIECES_MAX);
        let mut response = Response::new(delivery::streamed(written, share));
        let headers = response.headers_mut();
        format.set_headers(headers);
        describe(headers, &open, has_session);
        let writer = StreamWriter {
            app,
            turn: handle,
            format,
            reminder: open.reminder,
            reply_parts: self.reply_parts(has_session),
            wants_debug: self.wants_debug,
            extras,
            asked: self.asked,
            own_key: self.own_key,
            base: self.base,
            pieces,
            drafted: DraftedText::default(),
            preface_begin: String::new(),
            scratch,
            surface: self.surface,
            only_here: known.only_here,
        };
        tokio::spawn(writer.write(follower, first));
        Ok(response)
    }
}

/// Fails if a turn has ended without an answer, or is paused and its client cannot come back: it
/// has a session in memory.
async fn require_answer(
    app: &App,
    turn: &TurnHandle,
    room: Option<(&Arc<ScratchSession>, &ChatSurface)>,
    snapshot: &TurnSnapshot,
    known: &mut TurnContext,
) -> Result<(), Problem> {
    let failure = turn.failure(snapshot).await;
    if let Some((scratch, _)) = room {
        let end = (turn, failure.is_some());
        app.failed_calls.settle(app, scratch, end);
    }
    if let Some(failed) = failure {
        // An error has no room for answers of other turns: they come with the next call.
        let has_session = room.is_none();
        known.receipt = has_session.then(|| app.deliveries.receipt(turn, false, snapshot));
        return Err(failed.into());
    }
    match room {
        Some((_, surface)) if snapshot.is_paused() => Err(needs_session(surface)),
        _ => Ok(()),
    }
}

/// The problem for a name that is none of the known ones.
pub(crate) fn unknown_agent(name: &str, mut known: Vec<&str>) -> Problem {
    let more = known.len().saturating_sub(NAMED_MAX);
    known.truncate(NAMED_MAX);
    let name: String = name.chars().take(128).collect();
    let known = match (known.is_empty(), more) {
        (true, _) => "none is declared; name a session whose agent it is".to_owned(),
        (false, 0) => format!("use one of: {}", known.join(", ")),
        (false, more) => format!("use one of: {} and {more} more", known.join(", ")),
    };
    let detail = format!("there is no agent `{name}`; {known}");
    Problem::new(Code::AgentUnknown, detail)
}

/// Whether this server runs the agent.
fn is_hosted(app: &App, agent: &Name) -> bool {
    let book = app.options.agents.get();
    let spec = book.agent(agent);
    spec.is_some_and(|spec| spec.kind.is_hosted())
}

/// The digest of an agent's declaration.
fn config_of(book: &AgentBook, agent: &Name) -> Option<Digest> {
    book.agent(agent).map(|spec| spec.digest)
}

/// The headers that say what an answer is about.
fn describe(headers: &mut HeaderMap, turn: &OpenTurn, has_session: bool) {
    let (handle, replayed) = (&turn.handle, turn.is_replay);
    let values = AnswerHeaders {
        session: has_session.then_some(handle.session),
        task: has_session.then_some(handle.task),
        request: has_session.then_some(handle.request),
        replayed,
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

/// Whether a call asks for the hidden items of its turn. A caller without the right is refused
/// before anything happens: an answer without the items would look like a turn without any.
fn wants_debug(
    headers: &HeaderMap,
    asked: &CallContext,
    surface: &ChatSurface,
) -> Result<bool, Problem> {
    match text(headers, "x-statehold-debug")? {
        None | Some("0") => Ok(false),
        Some("1") => {
            trace::require_reader(&asked.caller)?;
            if surface.has_debug {
                return Ok(true);
            }
            let detail = "`x-statehold-debug`: answers here have no place for hidden items; read the trace of the session";
            Err(Problem::new(Code::BadHeader, detail))
        }
        Some(_) => {
            let detail = "`x-statehold-debug` is 1 or 0";
            Err(Problem::new(Code::BadHeader, detail))
        }
    }
}

pub(crate) fn app_name(headers: &HeaderMap) -> Result<Option<Name>, Problem> {
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
