//! Calls without a session: the caller sends the whole conversation, and an agent of this server answers in
//! a session in memory, which is deleted at the end of the call.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use statehold_agents::scratch::ScratchEngine;
use statehold_agents::spec::{AgentBook, CallerTrust};
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;
use statehold_engine::api::session;
use statehold_engine::api::turn::{
    self, DeliveryLog, TurnHandle, TurnInput, UserMessage, start_alone, stateless_session,
};
use statehold_engine::{Call, Caller, Share, Shares};

use super::{ChatCall, ChatSurface, ChatTurn, TurnExtras, config_of, is_hosted};
use crate::http::call::App;
use crate::http::problem::{Code, Problem};

/// How long a failed turn is kept for a call that repeats it.
const KEPT_MS: u64 = 10 * 60 * 1_000;
/// How many bytes failed turns may take together, roughly.
const KEPT_BYTES_MAX: usize = 64 * 1024 * 1024;
/// The least that one of them counts.
const KEPT_BYTES_MIN: usize = 64 * 1024;

/// A session in memory, which is deleted when this is dropped.
pub(crate) struct ScratchSession {
    room: Arc<ScratchEngine>,
    caller: Caller,
    session: SessionId,
    log: Arc<DeliveryLog>,
    /// Digest of the caller, the agent with its declaration, and the whole body of the call.
    call: Digest,
    /// The caller outside, and roughly the bytes that the session takes.
    holder: Caller,
    bytes: usize,
}

/// Turns without a session that failed a short time ago. A call that repeats one goes on from it.
pub(crate) struct FailedCalls {
    kept: Mutex<BTreeMap<Digest, FailedCall>>,
    bytes: Shares,
}

struct FailedCall {
    scratch: Arc<ScratchSession>,
    until: Timestamp,
    /// Its part of the memory.
    share: Share,
}

impl Default for FailedCalls {
    fn default() -> Self {
        Self {
            kept: Mutex::default(),
            bytes: Shares::new(KEPT_BYTES_MAX),
        }
    }
}

impl FailedCalls {
    fn kept(&self, now: Timestamp) -> MutexGuard<'_, BTreeMap<Digest, FailedCall>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|_, failed| failed.until > now);
        kept
    }

    fn find(&self, call: Digest, now: Timestamp) -> Option<Arc<ScratchSession>> {
        let kept = self.kept(now);
        kept.get(&call).map(|failed| Arc::clone(&failed.scratch))
    }

    /// Notes how the turn of a call has ended. A failed one is kept if the caller has memory left for it.
    pub(crate) fn settle(
        &self,
        app: &App,
        scratch: &Arc<ScratchSession>,
        (turn, has_failed): (&TurnHandle, bool),
    ) {
        let now = app.engine.now();
        // A failure is told once; the next call goes on from it.
        scratch.log.forget(turn.session, turn.request);
        let mut kept = self.kept(now);
        let known = kept.remove(&scratch.call);
        if !has_failed {
            return;
        }
        let share = match known {
            Some(known) => Ok(known.share),
            None => self.bytes.take(&scratch.holder, scratch.bytes),
        };
        if let Ok(share) = share {
            let failed = FailedCall {
                scratch: Arc::clone(scratch),
                until: now.plus_ms(KEPT_MS),
                share,
            };
            kept.insert(scratch.call, failed);
        }
    }
}

impl Drop for ScratchSession {
    fn drop(&mut self) {
        let (room, session) = (Arc::clone(&self.room), self.session);
        let call = Call::by(self.caller.clone());
        let forget = async move {
            if let Err(error) = session::delete(room.engine(), &call, session).await {
                tracing::debug!(%error, "a session in memory stays until the server stops");
            }
        };
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            drop(runtime.spawn(forget));
        }
    }
}

impl ChatCall {
    /// Starts a turn without a session. The caller sends the conversation in the `data` of the message: `message`
    /// makes it from the declarations that run the agent.
    pub(crate) async fn open_stateless(
        &self,
        app: &App,
        agent: &Name,
        message: impl FnOnce(&AgentBook) -> Result<UserMessage, Problem>,
    ) -> Result<ChatTurn, Problem> {
        self.require_no_task("a call without a session")?;
        self.require_stateless(&app.options.agents.get(), agent)?;
        let scratch = app.options.scratch.as_ref();
        let scratch = scratch.ok_or_else(|| agent_needs_session(agent, self.surface))?;
        let room = scratch.enter().await.map_err(|error| {
            tracing::error!(%error, "no engine in memory can be started");
            Problem::new(
                Code::Internal,
                "the server cannot take calls without a session now",
            )
        })?;
        // The configuration may have been reloaded meanwhile: the declarations of the room count.
        let declared = app.options.agents.get();
        let book = room.book().unwrap_or(&declared);
        self.require_stateless(book, agent)?;
        let message = message(book)?;
        let config = config_of(book, agent);
        let input = |scratch: &ScratchSession| TurnInput {
            call: Call::by(scratch.caller.clone()),
            key: None,
            session: scratch.session,
            agent: agent.clone(),
            task: None,
            message,
            credential: self.credential.clone(),
            call_credential: self.own_key.as_ref().map(Arc::downgrade),
            config,
            decides_elsewhere: false,
            one_at_a_time: false,
            arrived: self.arrived,
        };
        let in_room = |open, scratch| ChatTurn {
            open,
            scratch: Some(scratch),
            is_hosted: is_hosted(app, agent),
            extras: TurnExtras::default(),
        };
        let call = self.digest(agent, config);
        if let Some(scratch) = app.failed_calls.find(call, app.engine.now()) {
            let (engine, log) = (scratch.room.engine(), &scratch.log);
            let mut turn = turn::open_turn(engine, log, input(&scratch), Vec::new()).await?;
            turn.handle.set_host(&app.engine);
            return Ok(in_room(turn, scratch));
        }
        let engine = room.engine();
        let (caller, session) = stateless_session(engine, &self.asked.caller, agent).await?;
        let scratch = Arc::new(ScratchSession {
            room: Arc::clone(&room),
            caller,
            session,
            log: Arc::new(DeliveryLog::new(engine.now())),
            call,
            holder: self.asked.caller.clone(),
            bytes: KEPT_BYTES_MIN + 4 * self.body.len(),
        });
        let input = input(&scratch);
        let turn = start_alone(&app.engine, (engine, &scratch.log), &input).await?;
        Ok(in_room(turn, scratch))
    }

    /// Requires that the agent is declared and can work without a session.
    fn require_stateless(&self, book: &AgentBook, agent: &Name) -> Result<(), Problem> {
        if book.agent(agent).is_none() {
            return Err(self.unknown_agent(book, agent.as_str(), None));
        }
        if works_in_sessions_only(book, agent) {
            return Err(agent_needs_session(agent, self.surface));
        }
        Ok(())
    }

    /// The digest by which a repetition of the call is known.
    fn digest(&self, agent: &Name, config: Option<Digest>) -> Digest {
        let Caller {
            tenant, principal, ..
        } = &self.asked.caller;
        let config = config.map(|config| config.to_string()).unwrap_or_default();
        let call = format!("{tenant} {principal} {agent} {config} ");
        Digest::sha256(&[call.as_bytes(), &self.body].concat())
    }
}

/// Whether the tools and the parameters of the caller reach an agent.
pub(crate) fn passes_tools(book: &AgentBook, agent: &Name) -> bool {
    let spec = book.agent(agent);
    spec.is_some_and(|spec| spec.kind.takes_parameters())
}

/// Whether everything that a caller sends reaches the agent: it and every agent below it trust their callers.
pub(crate) fn trusts_callers(book: &AgentBook, agent: &Name) -> bool {
    let trusts = |agent: &Name| {
        let spec = book.agent(agent);
        spec.is_some_and(|spec| spec.caller_history == CallerTrust::Trusted)
    };
    every_agent(book, agent, trusts)
}

/// The problem for a part of a call that only agents take which trust their callers.
pub(crate) fn needs_trust(agent: &Name, path: &str) -> Problem {
    let detail = format!(
        "`{agent}` takes tools and their results only from callers that it trusts; leave `{path}` out, or set \
         `caller_history = \"trusted\"` in `[agents.{agent}]` of the configuration"
    );
    Problem::new(Code::CallerHistoryUntrusted, detail).with("path", path)
}

pub(crate) fn agent_needs_session(agent: &Name, surface: &ChatSurface) -> Problem {
    let new_session = surface.new_session;
    let detail = format!("`{agent}` works in sessions; send {new_session}, or the id of a session");
    Problem::new(Code::AgentNeedsSession, detail)
}

/// The problem for a pause in a call without a session.
pub(crate) fn needs_session(surface: &ChatSurface) -> Problem {
    let new_session = surface.new_session;
    let detail = format!(
        "somebody must decide before the agent goes on, and without a session nothing waits for them; \
         send the same message with {new_session}"
    );
    Problem::new(Code::ApprovalNeedsSession, detail)
}

/// Whether an agent, or an agent below it, needs a session. An undeclared agent is a worker.
fn works_in_sessions_only(book: &AgentBook, agent: &Name) -> bool {
    let works_without = |agent: &Name| {
        let spec = book.agent(agent);
        spec.is_some_and(|spec| !spec.kind.needs_session())
    };
    !every_agent(book, agent, works_without)
}

/// Whether something is true of an agent and of every agent below it.
fn every_agent(book: &AgentBook, agent: &Name, is_so: impl Fn(&Name) -> bool) -> bool {
    let (mut open, mut seen) = (vec![agent], BTreeSet::new());
    while let Some(agent) = open.pop() {
        if !seen.insert(agent) {
            continue;
        }
        if !is_so(agent) {
            return false;
        }
        let coordinated = book.agent(agent).map(|spec| spec.kind.coordinated_agents());
        open.extend(coordinated.flatten().into_iter().flatten());
    }
    true
}
