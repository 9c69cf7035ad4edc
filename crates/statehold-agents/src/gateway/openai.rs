//! Agents behind chat completions. An agent without memory gets its own exchanges back with each call.
//! An agent that stores a session, such as another Statehold, gets only the new message.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use statehold_core::ids::{ItemId, SessionId};
use statehold_core::item::CallOutcome;
use statehold_engine::bodies::Raw;

use super::agent_reply::{AgentReply, RemoteSession, ReplyUse, notice_in};
use super::briefing::Briefing;
use super::call_headers::{self, SessionHeader};
use super::conversation_record::{
    self, ConversationLocks, ConversationRecord, Gateway, SessionTag,
};
use super::exchange;
use super::pause::{self, DecisionDelivery, RemotePause};
use super::raw_object::RawObject;
use super::shared::{self, SharedContext};
use super::state::StateRules;
use super::{RECREATED, is_conversation_lost, not_prepared, turn_failure};
use crate::chat::{ChatClient, ChatEndpoint, CompletionRequest};
use crate::history::PastExchanges;
use crate::http::EndpointError;
use crate::message::{AgentMessage, raw};
use crate::runner::{AgentRun, StepExtras, StepKind};
use crate::spec::{ChatMemory, OpenaiSpec};
use crate::turn::{Agent, TraceNote, TurnAnswer, TurnError};

/// Most times an agent may pause for people in one turn.
const PAUSES_MAX: usize = 64;
/// Delays between attempts to deliver a decision.
const DELIVERY_DELAYS_SECONDS: [u64; 5] = [1, 2, 5, 10, 30];
const DELIVERY_DELAY_SECONDS_MAX: u64 = 60;
/// How many bytes of an answer are held back until it is clear that the agent has not paused: the text
/// of a paused answer addresses the agent's own users.
const HELD_BACK_BYTES: usize = 2 * 1024;

/// An agent behind chat completions.
pub(crate) struct OpenaiAgent {
    spec: Arc<OpenaiSpec>,
    chat: ChatClient,
    locks: Arc<ConversationLocks>,
}

/// A call that is ready to be sent.
struct PreparedCall {
    messages: Vec<Raw>,
    extra: Map<String, Value>,
    shared_context: Option<SharedContext>,
    notes: Vec<TraceNote>,
}

/// History that a caller brought with its message.
#[derive(Debug, Default, Deserialize)]
struct CallerHistory {
    #[serde(default)]
    history: Vec<Raw>,
    /// Parameters of a stateless caller, which stores the history itself.
    passthrough: Option<Map<String, Value>>,
    /// The new message as sent, if it is more than a user's text.
    last: Option<Raw>,
}

/// Decisions to deliver with a call, and the results of the local tool calls that stand for the remote
/// actions.
#[derive(Default)]
struct DecisionBatch {
    deliveries: Vec<DecisionDelivery>,
    results: Vec<(ItemId, CallOutcome, Raw)>,
}

/// Which side stores the history of a call.
enum MemoryMode<'a> {
    Local,
    Stateless,
    Remote(&'a RemoteSession),
}

#[async_trait]
impl Agent for OpenaiAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        match self.spec.memory {
            ChatMemory::Restore => self.run_restored(run, &MemoryMode::Local).await,
            ChatMemory::Track => self.run_tracked(run).await,
        }
    }
}

impl OpenaiAgent {
    pub(crate) fn new(
        spec: Arc<OpenaiSpec>,
        chat: ChatClient,
        locks: Arc<ConversationLocks>,
    ) -> Self {
        Self { spec, chat, locks }
    }

    /// Executes a turn without a session of the agent: of an agent without memory, or for a caller that
    /// stores the history.
    async fn run_restored(
        &self,
        run: &mut AgentRun,
        mode: &MemoryMode<'_>,
    ) -> Result<TurnAnswer, TurnError> {
        let prepared = match run.next_recorded_kind() {
            Some(_) => None,
            None => Some(prepare_restored(run).await?),
        };
        let agent_reply = self
            .call_agent(run, prepared, mode, DecisionBatch::default())
            .await?;
        if agent_reply.pause()?.is_some() {
            return Err(pause_untracked());
        }
        let passed = CallerHistory::of(run.input.data.as_ref());
        let passed = passed.and_then(|caller| caller.passthrough);
        let reply_use = ReplyUse {
            keeps_state: matches!(mode, MemoryMode::Local),
            tells_state: passed.is_some(),
            // The answer has tool calls only if the caller offered tools.
            tells_calls: passed.is_some_and(|passed| passed.contains_key("tools")),
        };
        agent_reply.into_answer(&run.spec, reply_use).await
    }

    /// Executes a turn of an agent that stores a session. One turn at a time: concurrent turns would
    /// create two sessions, or interleave in one.
    async fn run_tracked(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        // Check before taking the lock too: a turn that delivers a decision may hold it until the agent
        // is reachable again.
        if run.next_recorded_kind().is_none() {
            require_not_paused(run).await?;
        }
        run.conversation = Some(self.locks.lock(run).await);
        let caller = CallerHistory::of(run.input.data.as_ref());
        if caller.is_some_and(|caller| caller.passthrough.is_some()) {
            return self.run_restored(run, &MemoryMode::Stateless).await;
        }
        if run.next_recorded_kind().is_none() {
            require_not_paused(run).await?;
        }
        let (mut remote, needs_briefing) = RemoteSession::load(run).await?;
        let mut decisions = DecisionBatch::default();
        let mut is_recreated = false;
        for pause in 0..PAUSES_MAX {
            let prepared = match run.next_recorded_kind() {
                Some(_) => None,
                None => Some(prepare_new(run, is_recreated, needs_briefing).await?),
            };
            let deliveries = std::mem::take(&mut decisions);
            let agent_reply = self
                .call_agent(run, prepared, &MemoryMode::Remote(&remote), deliveries)
                .await;
            let agent_reply = match agent_reply {
                // After a pause, the decision cannot be delivered to a new session.
                Err(error) if is_conversation_lost(&error) && pause == 0 && !is_recreated => {
                    is_recreated = true;
                    remote.session = None;
                    let is_briefed = needs_briefing || run.spec.brief_on_loss;
                    let prepared = Some(prepare_new(run, true, is_briefed).await?);
                    let mode = MemoryMode::Remote(&remote);
                    self.call_agent(run, prepared, &mode, DecisionBatch::default())
                        .await?
                }
                agent_reply => agent_reply?,
            };
            let paused = agent_reply.pause()?;
            // Deliver each decision in the session that asked for it, even if another turn has moved
            // the agent to a new session since.
            if let Some(used) = &agent_reply.remote {
                remote = used.clone();
            }
            let Some(paused) = paused else {
                return agent_reply
                    .into_answer(&run.spec, ReplyUse::default())
                    .await;
            };
            decisions = open_holds(run, &paused).await?;
        }
        let message = format!(
            "the agent waited for people {PAUSES_MAX} times in one turn; ask for less at once, or check \
             why it keeps asking"
        );
        Err(TurnError::failed("agent_pauses_too_often", message))
    }

    /// Calls the agent once. The reply is recorded before anything follows from it.
    async fn call_agent(
        &self,
        run: &mut AgentRun,
        prepared: Option<PreparedCall>,
        mode: &MemoryMode<'_>,
        decisions: DecisionBatch,
    ) -> Result<AgentReply, TurnError> {
        let step_input = step_input(&run.input, &decisions.deliveries);
        let endpoint = ChatEndpoint {
            base_url: self.spec.base_url.clone(),
            model: self.spec.model.clone(),
            credential: run.credential.clone().or(self.spec.credential.clone()),
            headers: self.spec.headers.clone(),
            timeout: run.spec.timeout,
            retries: run.spec.retries,
        };
        let (here, number) = (run.request.ids, run.steps_taken());
        let user = run.request.user().await?.to_string();
        let (sink, export) = (run.draft_sink(), run.spec.export.clone());
        let work = async move {
            let prepared = prepared.ok_or_else(not_prepared)?;
            let session = match mode {
                MemoryMode::Local => SessionHeader::Local,
                MemoryMode::Stateless => SessionHeader::Absent,
                MemoryMode::Remote(remote) => SessionHeader::Remote(remote.session.as_deref()),
            };
            let mut extra = prepared.extra;
            if let MemoryMode::Remote(_) = mode {
                extra.insert("user".to_owned(), Value::from(user.as_str()));
                // Ask for complete holds, because people decide here and must see the same as on the
                // remote server.
                let mut asked = serde_json::json!({ "holds": "own" });
                if !decisions.deliveries.is_empty() {
                    asked["decisions"] = serde_json::json!(decisions.deliveries);
                }
                extra.insert("statehold".to_owned(), asked);
            }
            let mut call = CompletionRequest {
                messages: prepared.messages,
                extra,
                headers: call_headers::for_chat(here, session, &user, number),
                stream: true,
            };
            let held_back = match mode {
                MemoryMode::Remote(_) => HELD_BACK_BYTES,
                MemoryMode::Local | MemoryMode::Stateless => 0,
            };
            let mut writer = HoldbackWriter::new(sink, held_back);
            let mut write = |piece: &str| writer.write(piece);
            let notice = notice_in(&prepared.notes);
            if !notice.is_empty() {
                write(notice);
            }
            let mut reply = self.chat.chat(&endpoint, &call, &mut write).await;
            let mut delays = DELIVERY_DELAYS_SECONDS.into_iter();
            while let Err(error) = &reply
                && !decisions.deliveries.is_empty()
                && error.is_worth_retrying()
            {
                // A decision must be delivered. Retry without limit while the agent is unavailable, but
                // only a few times if it is up and fails.
                let delay = match delays.next() {
                    Some(delay) => delay,
                    None if error.is_unavailable() => DELIVERY_DELAY_SECONDS_MAX,
                    None => break,
                };
                tracing::warn!(request = %here.request, %error, "cannot deliver a decision yet; retrying");
                tokio::time::sleep(Duration::from_secs(delay)).await;
                // Do not stream the answer twice; the complete answer is recorded.
                reply = self.chat.chat(&endpoint, &call, &mut |_| ()).await;
            }
            if reply.as_ref().is_err_and(is_forbidden) && call_headers::drop_user(&mut call.headers)
            {
                reply = self.chat.chat(&endpoint, &call, &mut write).await;
            }
            let reply = reply.map_err(|error| match mode {
                MemoryMode::Remote(remote) => lost_or_failed(&error, remote),
                MemoryMode::Local => unknown_or_failed(&error),
                MemoryMode::Stateless => turn_failure(&error),
            })?;
            let usage = reply.usage.as_ref().map(raw);
            let mut agent_reply =
                AgentReply::of(reply, &export, prepared.shared_context, prepared.notes);
            let paused = agent_reply.pause()?;
            if paused.is_none() {
                writer.flush();
            }
            let mut private = None;
            if let MemoryMode::Remote(remote) = mode {
                let known = remote.answered_in(agent_reply.session().as_deref())?;
                private =
                    (known.generation != remote.generation).then(|| known.to_record(here.session));
                agent_reply.remote = Some(known);
            }
            let extras = StepExtras {
                usage,
                private,
                results: decisions.results,
                is_deferred: paused.is_none(),
                shown: None,
            };
            Ok((agent_reply, extras))
        };
        let step = (StepKind::AgentCall, "the reply of the agent");
        run.step(step, &step_input, work).await
    }
}

/// Input of the step: the message and the decisions. Session values are excluded, because they may
/// change while a turn waits.
fn step_input(input: &AgentMessage, deliveries: &[DecisionDelivery]) -> Vec<u8> {
    let parts = (&input.content, &input.attachments, deliveries);
    raw(&parts).get().as_bytes().to_vec()
}

async fn shared_context(run: &AgentRun) -> Result<Option<SharedContext>, TurnError> {
    Ok(SharedContext::of(
        &run.state_values(&run.spec.import).await?,
    ))
}

/// Prepares the exchanges that the request knows, and the new message.
async fn prepare_restored(run: &AgentRun) -> Result<PreparedCall, TurnError> {
    let past = PastExchanges::read(&run.request).await?;
    let first = past.first_data();
    let rules = StateRules::of(&run.spec);
    let restored = match rules.clone() {
        None => exchange::restore(&past, None),
        // Validating large states against schemas is slow, so do it off the async threads.
        Some(rules) => {
            let work = move || exchange::restore(&past, Some(&rules));
            let restored = tokio::task::spawn_blocking(work).await;
            restored.map_err(|_| not_prepared())?
        }
    };
    // A caller's history counts only if the agent knows nothing here. What a client brought along when its
    // session began is in the first input.
    let caller = if restored.messages.is_empty() {
        CallerHistory::of(run.input.data.as_ref())
    } else {
        let first = CallerHistory::of(first.as_ref()).filter(|_| !restored.is_cut);
        first.filter(|caller| caller.passthrough.is_none())
    };
    let mut caller = caller.unwrap_or_default();
    let history = std::mem::take(&mut caller.history);
    let bring = match rules {
        None => exchange::from_caller(history, None),
        Some(rules) => {
            let work = move || exchange::from_caller(history, Some(&rules));
            let brought = tokio::task::spawn_blocking(work).await;
            brought.map_err(|_| not_prepared())?
        }
    };
    let mut messages = bring.messages;
    messages.extend(restored.messages);
    let mut notes = restored.notes;
    notes.extend(bring.notes);
    let shared_context = if caller.last.is_none() {
        shared_context(run).await?
    } else {
        None
    };
    let new = caller.last.map(shared::guard_message);
    messages
        .push(new.unwrap_or_else(|| exchange::user_message(&run.input, shared_context.as_ref())));
    notes.extend(shared_context.as_ref().and_then(SharedContext::note));
    Ok(PreparedCall {
        messages,
        extra: caller.passthrough.unwrap_or_default(),
        shared_context,
        notes,
    })
}

/// Prepares the new message alone, or with the earlier exchanges that the agent does not know.
async fn prepare_new(
    run: &AgentRun,
    is_recreated: bool,
    needs_briefing: bool,
) -> Result<PreparedCall, TurnError> {
    let briefing = if needs_briefing {
        Briefing::read(run).await?
    } else {
        Briefing::default()
    };
    let shared_context = shared_context(run).await?;
    let mut notes: Vec<TraceNote> = shared_context
        .as_ref()
        .and_then(SharedContext::note)
        .into_iter()
        .collect();
    notes.extend(briefing.note);
    if is_recreated {
        let reason = "the agent lost its session";
        let note = serde_json::json!({ "reason": reason, "briefed": needs_briefing });
        notes.push(TraceNote::new(RECREATED, &note));
    }
    Ok(PreparedCall {
        messages: vec![exchange::briefed_message(
            &run.input,
            shared_context.as_ref(),
            &briefing.block,
        )],
        extra: Map::new(),
        shared_context,
        notes,
    })
}

/// Opens holds for the agent's holds. If a decision is missing, releases the lease.
async fn open_holds(run: &mut AgentRun, paused: &RemotePause) -> Result<DecisionBatch, TurnError> {
    let mut decisions = DecisionBatch::default();
    let mut is_open = false;
    let holds = paused.local_holds()?;
    // Check all holds before opening any: open all or none.
    for (_, spec) in &holds {
        run.require_valid_hold(spec).await?;
    }
    for (hold, spec) in holds {
        match run.ask_person(spec).await? {
            Some(decided) => {
                decisions.deliveries.push(hold.delivery(&decided));
                decisions.results.extend(pause::call_result(&decided));
            }
            None => is_open = true,
        }
    }
    if is_open {
        return Err(run.release_lease().await);
    }
    Ok(decisions)
}

/// Rejects a message while the agent waits for a person: the agent would take the message for the
/// answer to its question.
async fn require_not_paused(run: &AgentRun) -> Result<(), TurnError> {
    let Some(other) = run.request.other_asking_request().await? else {
        return Ok(());
    };
    let pending = run.request.pending_holds().await?;
    let open = pending.holds.iter().find(|hold| hold.hold.request == other);
    let what = match open {
        Some(open) => {
            let (title, id) = (&open.title, open.hold.id);
            format!("it waits for a decision about “{title}” ({id}); decide that, then ask again")
        }
        None => "the decision is being delivered to it; ask again in a moment".to_owned(),
    };
    let agent = &run.spec.name;
    let message = format!("the agent {agent} cannot be asked now: {what}");
    Err(TurnError::failed("agent_busy", message))
}

fn is_forbidden(error: &EndpointError) -> bool {
    let forbidden = StatusCode::FORBIDDEN;
    matches!(error, EndpointError::Status { status, .. } if *status == forbidden)
}

fn lost_or_failed(error: &EndpointError, remote: &RemoteSession) -> TurnError {
    let is_gone = matches!(
        error,
        EndpointError::Status {
            status: StatusCode::NOT_FOUND | StatusCode::GONE,
            ..
        }
    );
    if is_gone && remote.session.is_some() {
        turn_failure(&EndpointError::NotFound)
    } else {
        turn_failure(error)
    }
}

/// Error of a call that sent our session id. An agent that stores sessions itself, such as another
/// Statehold, does not know that id and answers 404, like one that does not know the model.
fn unknown_or_failed(error: &EndpointError) -> TurnError {
    let is_unknown = matches!(
        error,
        EndpointError::Status {
            status: StatusCode::NOT_FOUND,
            ..
        }
    );
    if !is_unknown {
        return turn_failure(error);
    }
    let message = format!(
        "{error}; declare the agent with memory = \"track\" if it keeps sessions itself, as another \
         Statehold does; if not, check `base_url` and `model`"
    );
    error.turn_failure(message)
}

fn pause_untracked() -> TurnError {
    let message = "the agent waits for a person, and nothing can be told to it later because it keeps no \
                   session for us; declare it with memory = \"track\", and call it with a session";
    TurnError::failed("agent_pause_untracked", message)
}

impl CallerHistory {
    fn of(data: Option<&Raw>) -> Option<Self> {
        // States of agents in it may have numbers that only their agents can read.
        let caller = RawObject::parse(data?)?;
        let is_brought = caller.get("history").is_some() || caller.get("passthrough").is_some();
        if !is_brought {
            return None;
        }
        serde_json::from_str(data?.get()).ok()
    }
}

impl RemoteSession {
    /// The session of the agent, and whether a new one has to be told of earlier exchanges: in a fork, after a
    /// rewind, or if the client brought them along.
    async fn load(run: &AgentRun) -> Result<(Self, bool), TurnError> {
        let rewind = run.request.last_rewind().await?;
        let known = conversation_record::find_newest(run, Gateway::Openai).await?;
        let Some(known) = known else {
            let is_brought = CallerHistory::of(run.input.data.as_ref()).is_some();
            let remote = Self {
                rewind,
                ..Self::default()
            };
            return Ok((remote, is_brought));
        };
        let is_here =
            known.session == SessionTag::of(run.request.ids.session) && known.rewind == rewind;
        let remote = Self {
            rewind,
            generation: known.generation,
            session: known.conversation.filter(|_| is_here),
        };
        Ok((remote, !is_here))
    }

    /// Session state after the agent has answered in `session`.
    fn answered_in(&self, session: Option<&str>) -> Result<Self, TurnError> {
        match (session, &self.session) {
            (Some(answered), Some(known)) if answered == known => Ok(self.clone()),
            (None, Some(_)) => Ok(self.clone()),
            (None, None) => {
                let message = "the agent names no session (header x-statehold-session, or \
                               statehold.session in the body), so it would remember nothing; declare it with memory = \"restore\"";
                Err(TurnError::failed("agent_names_no_session", message))
            }
            (Some(answered), _) => Ok(Self {
                session: Some(answered.to_owned()),
                generation: self.generation + 1,
                rewind: self.rewind,
            }),
        }
    }

    /// Private state of the task.
    fn to_record(&self, here: SessionId) -> Raw {
        raw(&ConversationRecord {
            gateway: Gateway::Openai,
            session: SessionTag::of(here),
            generation: self.generation,
            rewind: self.rewind,
            conversation: self.session.clone(),
            remote_agent: None,
            is_another: self.generation > 1,
            needs_briefing: false,
        })
    }
}

/// Passes chunks on. Holds the first bytes back until it is clear that they belong to an answer.
struct HoldbackWriter<S> {
    sink: S,
    held_back: Option<String>,
    bytes_max: usize,
}

impl<S: Fn(&str)> HoldbackWriter<S> {
    fn new(sink: S, bytes_max: usize) -> Self {
        Self {
            sink,
            held_back: Some(String::new()),
            bytes_max,
        }
    }

    fn write(&mut self, piece: &str) {
        let Some(held_back) = &mut self.held_back else {
            (self.sink)(piece);
            return;
        };
        held_back.push_str(piece);
        if held_back.len() > self.bytes_max {
            self.flush();
        }
    }

    /// Passes on the bytes that were held back.
    fn flush(&mut self) {
        if let Some(held_back) = self.held_back.take() {
            (self.sink)(&held_back);
        }
    }
}
