//! Chat turns: a message of a user to an agent, and the answer that comes back.
//!
//! A chat surface turns its protocol into a [`TurnInput`] and calls [`open_turn`], which gives it a
//! [`TurnHandle`] to follow: pieces of the answer, pauses, the end. Clients repeat calls whose answer they
//! have lost, so `open_turn` looks first for the turn that a call is about, and a [`DeliveryLog`] remembers
//! which answers have not arrived yet.

mod account;
mod agent_reply;
mod agent_state;
mod debug;
mod delivery;
mod earlier;
mod follow;
mod pause_text;
mod question;
mod recall;
mod search;
mod session;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use statehold_core::command::{Command, Rejection, StartRequest, StatePatch};
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::name::Name;
use statehold_core::session::Owner;
use statehold_core::time::Timestamp;

use self::pause_text::{approval_reminder, credential_reminder, question_reminder};
use self::recall::{Recall, RecalledSession, SearchStep, with_members, with_note};
use self::search::TurnSearch;
use super::item::write::output;
use super::json::{Raw, raw_text};
use super::session::SessionInput;
use super::{request, session as sessions};
use crate::bodies::{AttachmentBody, ItemBody, PartBody};
use crate::caller::{Caller, Role, Roles};
use crate::commit::call::{Call, DecidedCommit, Receipt};
use crate::commit::payloads::Payloads;
use crate::commit::write::SessionWrite;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::credentials::{Audience, CallCredentialRef, Credential};
use crate::guard::rights::Act;
use crate::locks::KeyLock;

pub use super::hold::TurnDecision;
pub use account::{TokenUsage, TurnAccount};
pub use agent_reply::{AgentReply, ReplyParts};
pub use agent_state::TurnAgentState;
pub use debug::TurnDebug;
pub use delivery::{DeliveryLog, DeliveryReceipt};
pub use earlier::EarlierAnswer;
use earlier::EarlierTurn;
pub use follow::{FailedTurn, TurnEvent, TurnFollower, TurnSnapshot};
pub use pause_text::{pause_text, without_links};
pub use recall::{CarriedMessage, CarriedPlace, Conversation, SessionReference};
pub use session::{
    NamedSession, named_session, replacing_call, stateless_session, user_of_session,
};

/// The most holds that one call decides.
const DECISIONS_MAX: usize = 64;

/// A message to an agent, in a session that exists.
#[derive(Debug)]
pub struct TurnInput {
    /// The caller, and the idempotency key, which stands for the session and all that the client sent.
    pub call: Call,
    /// The text of the idempotency key: the decision key, if the message answers a question.
    pub key: Option<String>,
    /// The session.
    pub session: SessionId,
    /// The agent.
    pub agent: Name,
    /// The task to continue. None opens a new one.
    pub task: Option<TaskId>,
    /// The message.
    pub message: UserMessage,
    /// A credential for the worker.
    pub credential: Option<Credential>,
    /// A credential that is valid while the call is open.
    pub call_credential: Option<CallCredentialRef>,
    /// The digest of the agent's declaration, if it has one: a failure is told again only under the same.
    pub config: Option<Digest>,
    /// Whether people decide holds in another place than this chat: no message answers a question.
    pub decides_elsewhere: bool,
    /// Whether a new turn waits until no other one runs in the session. A turn that waits for people does not run.
    pub one_at_a_time: bool,
    /// When the call arrived: its client has no answer that left later.
    pub arrived: Instant,
}

impl TurnInput {
    /// The command that starts the turn. Equal messages of one user have equal digests.
    fn start_command(
        &self,
        engine: &Engine,
        owner: &Owner,
        payloads: &mut Payloads,
    ) -> Result<StartRequest, EngineError> {
        payloads.redact_by(engine.redaction_for(&self.agent));
        let mut carried = CarriedMessage::by_user(&self.message.text, &self.message.files);
        carried.redact(payloads);
        let (agent, principal) = (&self.agent, self.call.caller.principal);
        let chat = carried.digest(payloads, &owner.app, agent, principal);
        let body = ItemBody {
            content: Some(raw_text(&self.message.text)),
            data: self.message.data.clone(),
            had_credential: self.credential.is_some(),
            credential_audience: self.audience().map(|audience| audience.word().to_owned()),
            parts: self.message.parts.clone(),
            ..ItemBody::default()
        };
        let input = output(&body, &self.message.files, "messages", payloads)?;
        Ok(StartRequest {
            chat: Some(chat),
            continues: None,
            agent: self.agent.clone(),
            task: self.task,
            parent: None,
            input: input.body,
            attachments: input.attachments,
            close_on: engine.policies().close_on(&self.agent, None),
            lease_ttl_ms: None,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        })
    }

    /// The audience of the credential of the call, while that is open.
    fn audience(&self) -> Option<Audience> {
        let lent = self.call_credential.as_ref()?.upgrade()?;
        Some(lent.audience())
    }

    fn handle(&self, host: &Engine, engine: &Engine, turn: StartedTurn) -> TurnHandle {
        TurnHandle {
            engine: engine.clone(),
            host: host.clone(),
            reader: as_client(&self.call.caller),
            caller: self.call.caller.clone(),
            session: self.session,
            task: turn.task,
            request: turn.request,
            started_at: turn.started_at,
            earlier: Arc::default(),
        }
    }
}

/// The message of a user to an agent.
#[derive(Debug, Clone, Default)]
pub struct UserMessage {
    /// The text.
    pub text: String,
    /// Files that go with it.
    pub files: Vec<AttachmentBody>,
    /// The order of texts and files, if they came as parts.
    pub parts: Vec<PartBody>,
    /// JSON for the agent beside the text: the conversation so far, where the server does not keep it.
    pub data: Option<Raw>,
}

/// A turn, the engine that runs it, and the caller who follows it.
#[derive(Debug, Clone)]
pub struct TurnHandle {
    engine: Engine,
    /// The engine of the server: waiting ends when it stops, also for a turn of an engine in memory.
    host: Engine,
    /// The caller with the role of a client alone: a chat shows what clients see.
    reader: Caller,
    caller: Caller,
    /// The session.
    pub session: SessionId,
    /// The task.
    pub task: TaskId,
    /// The request at the root of the turn.
    pub request: RequestId,
    /// When it started, if this call started it.
    started_at: Option<Timestamp>,
    /// Other turns whose answers come before its own.
    earlier: Arc<[EarlierTurn]>,
}

impl TurnHandle {
    /// Waiting for the turn ends when this engine stops.
    pub fn set_host(&mut self, host: &Engine) {
        self.host = host.clone();
    }

    /// Cancels the turn. A turn that has ended is left alone.
    ///
    /// # Errors
    ///
    /// If the caller may not, or the store fails.
    pub async fn cancel(&self) -> Result<(), EngineError> {
        let call = Call::by(self.caller.clone());
        match request::cancel(&self.engine, &call, self.request).await {
            Ok(_) | Err(EngineError::Rejected(Rejection::RequestEnded { .. })) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The turn that a call is about.
#[derive(Debug)]
pub struct OpenTurn {
    /// The turn.
    pub handle: TurnHandle,
    /// Whether this call started it.
    pub is_new: bool,
    /// Whether the client has made the same call before.
    pub is_replay: bool,
    /// A line about the open questions that the message of this call did not answer, or about the approval that it
    /// did not give.
    pub reminder: Option<String>,
}

/// The caller with the role of a client alone, or with no role.
fn as_client(caller: &Caller) -> Caller {
    let names = caller.roles.names().iter().cloned();
    let client: BTreeSet<Name> = names
        .filter(|name| name.as_str() == Role::Client.name())
        .collect();
    Caller {
        roles: Roles::from(client),
        ..caller.clone()
    }
}

/// Finds the turn that a call is about, or starts it. Chat calls of a session do this one after the other,
/// so that two calls with the same message are one turn.
///
/// # Errors
///
/// If the caller may not, a decision or an answer is refused, or the core refuses the start.
pub async fn open_turn(
    engine: &Engine,
    log: &Arc<DeliveryLog>,
    input: TurnInput,
    decisions: Vec<TurnDecision>,
) -> Result<OpenTurn, EngineError> {
    let (caller, session) = (&input.call.caller, input.session);
    let owner = engine.authorise(caller, session, &Act::Start).await?;
    if decisions.len() > DECISIONS_MAX {
        let detail = format!("a call decides at most {DECISIONS_MAX} holds; send the others next");
        return Err(EngineError::invalid("statehold.decisions", detail));
    }
    let (mut input, mut decisions) = (input, decisions);
    loop {
        // The call itself waits for the lock, so a call that goes away leaves the line.
        let lock = engine.lock_session(session).await?;
        let decided = std::mem::take(&mut decisions);
        let found = if decided.len() > 1 {
            let (own, log, owner) = (engine.clone(), Arc::clone(log), owner.clone());
            let work =
                Box::pin(
                    async move { find_or_start(&own, &log, input, &owner, decided, lock).await },
                );
            engine.run_to_end(work).await?
        } else {
            Box::pin(find_or_start(engine, log, input, &owner, decided, lock)).await?
        };
        match found {
            TurnLookup::Open(turn) => return Ok(*turn),
            TurnLookup::Behind(running, waiting) => {
                input = *waiting;
                engine.until_no_longer_running(session, running).await?;
            }
        }
    }
}

/// Takes up a turn in a session that the call creates, or created before under the same key.
///
/// # Errors
///
/// As [`sessions::create`] and [`open_turn`]; with the session, if it is there.
pub async fn open_turn_in_new_session(
    engine: &Engine,
    log: &Arc<DeliveryLog>,
    (call, new): (Call, SessionInput),
    input: impl FnOnce(SessionId) -> TurnInput + Send + 'static,
) -> Result<OpenTurn, (EngineError, Option<SessionId>)> {
    let (own, log) = (engine.clone(), Arc::clone(log));
    // Calls under one key wait here one after the other, and leave the line when their client does.
    let lock = match call.key {
        Some(key) => Some(engine.lock_new_session(key.key).await),
        None => None,
    };
    let work = async move {
        let created = sessions::create(&own, &call, new).await;
        let session = created.map_err(|error| (error, None))?.view.id;
        let opened = open_turn(&own, &log, input(session), Vec::new()).await;
        drop(lock);
        opened.map_err(|error| (error, Some(session)))
    };
    engine.run_to_end(work).await
}

/// Takes up a turn in the session that the conversation of a call continues: the one in which it was held, a
/// fork of it, or a new one.
///
/// # Errors
///
/// As [`open_turn_in_new_session`].
pub async fn open_turn_in_recalled_session(
    engine: &Engine,
    log: &Arc<DeliveryLog>,
    (call, new): (Call, SessionInput),
    mut conversation: Conversation,
    input: impl FnOnce(SessionId) -> TurnInput + Send + 'static,
) -> Result<OpenTurn, (EngineError, Option<SessionId>)> {
    let owner = sessions::owner_of_new(engine, &call.caller, &new).await;
    let (owner, _, new_user) = owner.map_err(|error| (error, None))?;
    let payloads = engine.payloads_for(&owner).await;
    let mut payloads = payloads.map_err(|error| (error, None))?;
    payloads.redact_by(engine.redaction_for(&conversation.agent));
    // Stored messages are redacted, so the repeated ones are compared in the same form.
    conversation.redact(&payloads);
    let carrier = call.caller.principal;
    let digest = |message: &CarriedMessage| {
        message.digest(&payloads, &owner.app, &conversation.agent, carrier)
    };
    // Calls that go on from the same place wait here one after the other until their turn is started: of two windows,
    // the second one finds the turn of the first, and forks. Taken before the lock of the message, so that no two
    // calls wait for each other.
    let place_lock = match conversation.place_digest(digest) {
        Some(place) => Some(engine.lock_place(place).await),
        None => None,
    };
    let own_digest = digest(&conversation.message);
    // Calls with the same message wait here one after the other, and leave the line when their client does.
    let lock = engine.lock_new_session(own_digest).await;
    let caller = call.caller.in_session_of(owner.user);
    let recall = Recall {
        engine,
        log,
        carrier,
        caller: &caller,
        owner: &owner,
        payloads: &payloads,
        conversation: &conversation,
    };
    // Reading and comparing sessions ends with the call; only what it changes goes on without it.
    let permit = engine.inner().session_searches.line_up(&call.caller, 1);
    let permit = permit.await;
    let (place, step) = recall.find().await.map_err(|error| (error, None))?;
    drop(permit);
    let (own, log) = (engine.clone(), Arc::clone(log));
    let work = async move {
        let known = match place {
            RecalledSession::Known(session) => Ok(Some(session)),
            RecalledSession::Fork(origin, at) => {
                match sessions::fork_to_start(&own, &caller, origin, at).await {
                    // The new session begins with the messages that came with the call.
                    Err(EngineError::ForkTooDeep) => Ok(None),
                    Ok(fork) => {
                        log.follow_fork(origin, fork);
                        Ok(Some(fork))
                    }
                    Err(error) => Err(error),
                }
            }
            RecalledSession::New => Ok(None),
        };
        let known = known.map_err(|error| (error, None))?;
        let (session, context, step) = if let Some(session) = known {
            (session, None, step)
        } else {
            let created = sessions::create(&own, &call, new).await;
            drop(new_user);
            let created = created.map_err(|error| (error, None))?;
            let context = conversation.context;
            let step = if created.replayed {
                SearchStep::Session
            } else {
                SearchStep::without_session(context.as_ref())
            };
            (created.view.id, context, step)
        };
        let mut input = input(session);
        let note = conversation.place.note(step);
        let data = with_members(context, input.message.data);
        input.message.data = with_note(data, note);
        let opened = open_turn(&own, &log, input, Vec::new()).await;
        drop((lock, place_lock));
        opened.map_err(|error| (error, Some(session)))
    };
    engine.run_to_end(work).await
}

/// The result of a search under the lock of a session.
enum TurnLookup {
    Open(Box<OpenTurn>),
    /// This request runs, and the turn waits for its end. The input is given back.
    Behind(RequestId, Box<TurnInput>),
}

/// Finds or starts the turn under the lock of its session.
async fn find_or_start(
    engine: &Engine,
    log: &DeliveryLog,
    mut input: TurnInput,
    owner: &Owner,
    decisions: Vec<TurnDecision>,
    _lock: KeyLock,
) -> Result<TurnLookup, EngineError> {
    let mut payloads = engine.payloads_for(owner).await?;
    // Its digest is that of the key: two keys do not share the conversations of users they did not name.
    let start = input.start_command(engine, owner, &mut payloads)?;
    input.call.caller = input.call.caller.in_session_of(owner.user);
    let mut search = TurnSearch::new(engine, log, &input, &start).await?;
    let found = if decisions.is_empty() {
        search.find().await?
    } else {
        Some((search.decide(decisions).await?, false))
    };
    let (turn, is_replay) = if let Some((request, is_replay)) = found {
        let task = engine.request_head(&search.reader, request).await?.task.id;
        let started_at = None;
        let turn = StartedTurn {
            request,
            task,
            started_at,
        };
        (turn, is_replay)
    } else {
        if input.one_at_a_time
            && let Some(running) = engine.running_root_of(input.session).await?
        {
            return Ok(TurnLookup::Behind(running, Box::new(input)));
        }
        let mut command = start.clone();
        if let Some((task, request)) = search.continues {
            (command.task, command.continues) = (Some(task), Some(request));
            // The first attempt stands for the turn.
            command.chat = None;
        }
        let started = start_turn(engine, log, &input, (command, payloads)).await?;
        (started.view, started.replayed)
    };
    log.begin(input.session, turn.request);
    let mut handle = input.handle(engine, engine, turn);
    handle.earlier = search.earlier(turn.request).await?.into();
    Ok(TurnLookup::Open(Box::new(OpenTurn {
        handle,
        is_new: found.is_none() && !is_replay,
        is_replay,
        reminder: question_reminder(&search.unanswered)
            .or_else(|| search.undecided.as_ref().map(approval_reminder))
            .or_else(|| search.given_credential.as_ref().map(credential_reminder)),
    })))
}

/// Starts a turn in a session that no other call can name: there is nothing to find, and nothing is owed to
/// a client that goes away. Waiting for it ends when `host` stops.
///
/// # Errors
///
/// If the caller may not, or the core refuses the start.
pub async fn start_alone(
    host: &Engine,
    (engine, log): (&Engine, &DeliveryLog),
    input: &TurnInput,
) -> Result<OpenTurn, EngineError> {
    let owner = engine.owner(input.session).await?;
    let mut payloads = engine.payloads_for(&owner).await?;
    let start = input.start_command(engine, &owner, &mut payloads)?;
    let started = start_turn(engine, log, input, (start, payloads)).await?;
    Ok(OpenTurn {
        handle: input.handle(host, engine, started.view),
        is_new: true,
        is_replay: false,
        reminder: None,
    })
}

/// The ids of a turn, as they are kept under the idempotency key of the call that started it.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct StartedTurn {
    request: RequestId,
    task: TaskId,
    /// When it started, if this call started it.
    #[serde(skip)]
    started_at: Option<Timestamp>,
}

/// Starts a turn, or finds the one that was started under the same key. The log has the turn before the
/// commit is durable: a client that goes away in between is owed the answer too.
async fn start_turn(
    engine: &Engine,
    log: &DeliveryLog,
    input: &TurnInput,
    (start, payloads): (StartRequest, Payloads),
) -> Result<Receipt<StartedTurn>, EngineError> {
    let session = input.session;
    let view = |made: &DecidedCommit<'_>| {
        let request = made.record.content.started_request()?;
        let task = made.after.requests.get(&request)?.task;
        log.begin(session, request);
        log.note_config(request, input.config);
        // Before an agent can begin to work.
        if let Some(lent) = &input.call_credential {
            engine.inner().credentials.lend(request, lent);
        }
        let started_at = Some(made.record.content.at);
        Some(StartedTurn {
            request,
            task,
            started_at,
        })
    };
    let write = SessionWrite {
        payloads,
        credential: input.credential.as_ref(),
        ..SessionWrite::new(engine, &input.call, session)
    };
    write.commit(&Command::StartRequest(start), view).await
}
