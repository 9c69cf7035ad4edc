//! Agents behind chat completions, and behind DIAL, which speaks a dialect of them. An agent without memory gets its
//! own exchanges back with each call. An agent that stores a session, such as another Statehold, gets only the new
//! message.

use std::sync::Arc;

use async_trait::async_trait;
use http::StatusCode;
use serde_json::{Value, json};
use statehold_core::ids::RequestId;
use statehold_core::name::Name;
use statehold_engine::bodies::Raw;
use statehold_engine::stage::StageStatus;

use super::agent_reply::{AgentReply, ReplyUse, notice_in};
use super::call_headers::{self, SessionHeader};
use super::chat_service::ChatService;
use super::conversation_record::ConversationLocks;
use super::dial_stages::StageMirror;
use super::pause::{
    DecisionBatch, DecisionDelivery, DeliveryDelays, PAUSES_MAX, open_holds, pauses_too_often,
    require_not_paused,
};
use super::prepared_call::{CallerHistory, PreparedCall, prepare_new, prepare_restored};
use super::remote_session::RemoteSession;
use super::reply_writer::{HoldbackWriter, ReplyWriter};
use super::{is_conversation_lost, not_prepared, turn_failure};
use crate::chat::{ChatClient, ChatEndpoint, ChatReply, CompletionRequest};
use crate::http::EndpointError;
use crate::message::{AgentMessage, raw};
use crate::runner::{AgentRun, StepExtras, StepKind};
use crate::spec::ChatMemory;
use crate::turn::{Agent, TurnAnswer, TurnError};

/// How many bytes of an answer are held back until it is clear that the agent has not paused: the text
/// of a paused answer addresses the agent's own users, and is no part of the answer here. Only for agents
/// that keep sessions or are declared to pause: the answers of all others are streamed at once.
const HELD_BACK_BYTES: usize = 2 * 1024;

/// An agent behind chat completions or DIAL.
pub(crate) struct ChatAgent {
    service: ChatService,
    chat: ChatClient,
    locks: Arc<ConversationLocks>,
}

/// Which side stores the history of a call.
enum MemoryMode<'a> {
    Local,
    Stateless,
    Remote(&'a RemoteSession),
}

impl MemoryMode<'_> {
    /// How many bytes of an answer are held back.
    fn held_back_bytes(&self, may_pause: bool) -> usize {
        match self {
            Self::Local | Self::Stateless if !may_pause => 0,
            Self::Local | Self::Stateless | Self::Remote(_) => HELD_BACK_BYTES,
        }
    }
}

#[async_trait]
impl Agent for ChatAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        match self.service.memory() {
            ChatMemory::Restore => self.run_restored(run, &MemoryMode::Local).await,
            ChatMemory::Track => self.run_tracked(run).await,
        }
    }
}

impl ChatAgent {
    pub(crate) fn new(
        service: ChatService,
        chat: ChatClient,
        locks: Arc<ConversationLocks>,
    ) -> Self {
        Self {
            service,
            chat,
            locks,
        }
    }

    /// Executes a turn without a session of the agent: of an agent without memory, or for a caller that
    /// stores the history.
    async fn run_restored(
        &self,
        run: &mut AgentRun,
        mode: &MemoryMode<'_>,
    ) -> Result<TurnAnswer, TurnError> {
        // The answers with which the agent paused in this turn, and the decisions about them.
        let mut since: Vec<Raw> = Vec::new();
        let mut decisions = DecisionBatch::default();
        for _ in 0..PAUSES_MAX {
            let prepared = if run.next_recorded_kind().is_some() {
                None
            } else {
                let mut prepared = prepare_restored(run).await?;
                prepared.messages.extend(since.iter().cloned());
                Some(prepared)
            };
            let deliveries = std::mem::take(&mut decisions);
            let agent_reply = self.call_agent(run, prepared, mode, deliveries).await?;
            let Some(paused) = agent_reply.pause()? else {
                let passed = CallerHistory::of(run.input.data.as_ref());
                let passed = passed.and_then(|caller| caller.passthrough);
                let reply_use = ReplyUse {
                    keeps_state: matches!(mode, MemoryMode::Local),
                    keeps_files: self.service.takes_own_files(),
                    tells_state: passed.is_some(),
                    // The answer has tool calls only if the caller offered tools.
                    tells_calls: passed.is_some_and(|passed| passed.contains_key("tools")),
                };
                return agent_reply.into_answer(&run.spec, reply_use).await;
            };
            decisions = open_holds(run, &paused).await?;
            since.push(agent_reply.paused_message());
            since.push(self.service.decided_message(&decisions.deliveries));
        }
        Err(pauses_too_often())
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
        Err(pauses_too_often())
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
        let endpoint = match &prepared {
            Some(_) => Some(self.service.endpoint(run).await?),
            None => None,
        };
        let (here, number) = (run.request.ids, run.steps_taken());
        let user = run.request.user().await?.to_string();
        let (sink, export) = (run.draft_sink(), run.spec.export.clone());
        let stages = self.service.has_stages();
        let stages = stages.then(|| StageMirror::new(run.stages.clone()));
        let conversation = self.service.conversation_header(&run.input);
        let parameters = self.service.parameters(&run.input);
        let (agent, may_pause) = (run.spec.name.clone(), run.spec.pauses);
        let work = async move {
            let (prepared, endpoint) = prepared.zip(endpoint).ok_or_else(not_prepared)?;
            let session = match mode {
                MemoryMode::Local if self.service.sends_local_session_id() => SessionHeader::Local,
                MemoryMode::Local | MemoryMode::Stateless => SessionHeader::Absent,
                MemoryMode::Remote(remote) => SessionHeader::Remote(remote.session.as_deref()),
            };
            let mut extra = prepared.extra;
            let mut asked = json!({});
            if let MemoryMode::Remote(_) = mode {
                extra.insert("user".to_owned(), Value::from(user.as_str()));
                // Ask for complete holds, because people decide here and must see the same as on the
                // remote server.
                asked["holds"] = "own".into();
            }
            if !decisions.deliveries.is_empty() {
                asked["decisions"] = json!(decisions.deliveries);
            }
            if asked != json!({}) {
                extra.insert("statehold".to_owned(), asked);
            }
            let mut headers = call_headers::for_chat(here, session, &user, number);
            headers.extend(conversation);
            let mut call = CompletionRequest {
                messages: prepared.messages,
                extra,
                headers,
                stream: true,
            };
            self.service.adapt(&mut call, parameters);
            let mut writer = ReplyWriter {
                text: HoldbackWriter::new(sink, mode.held_back_bytes(may_pause)),
                stages,
            };
            let notice = notice_in(&prepared.notes);
            if !notice.is_empty() {
                writer.text.write(notice);
            }
            let is_delivery = !decisions.deliveries.is_empty();
            let reply = self.send(
                here.request,
                (&endpoint, &mut call),
                is_delivery,
                &mut writer,
            );
            let reply = reply.await;
            if let Some(stages) = &mut writer.stages {
                // Stages that the agent left open end with its answer.
                stages.close(match &reply {
                    Ok(_) => StageStatus::Completed,
                    Err(_) => StageStatus::Failed,
                });
            }
            let reply = reply.map_err(|error| match mode {
                MemoryMode::Remote(remote) => lost_or_failed(&error, remote),
                MemoryMode::Local => self.service.unknown_or_failed(&error),
                MemoryMode::Stateless => turn_failure(&error),
            })?;
            let usage = reply.usage.as_ref().map(raw);
            let reply = self.service.adapt_reply(reply);
            let mut agent_reply =
                AgentReply::of(reply, &export, prepared.shared_context, prepared.notes);
            let paused = agent_reply.pause()?;
            if paused.is_none() {
                writer.text.flush();
            } else if mode.held_back_bytes(may_pause) == 0 && writer.text.has_passed() {
                warn_of_streamed_words(&agent);
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

    /// Sends a call, and delivers a decision however long that takes.
    async fn send<S: Fn(&str) + Send>(
        &self,
        request: RequestId,
        (endpoint, call): (&ChatEndpoint, &mut CompletionRequest),
        is_delivery: bool,
        writer: &mut ReplyWriter<S>,
    ) -> Result<ChatReply, EndpointError> {
        let mut reply = self.chat.chat_into(endpoint, call, writer).await;
        let mut delays = DeliveryDelays::default();
        while let Err(error) = &reply
            && is_delivery
            && error.is_worth_retrying()
            && delays.has_next(error)
        {
            delays.wait(request, error).await;
            // Do not stream the text twice; the complete answer is recorded. The stages of the
            // failed attempt have failed, and those of this one are new.
            reply = self
                .chat
                .chat_into(endpoint, call, &mut writer.again())
                .await;
        }
        if reply.as_ref().is_err_and(is_forbidden) && call_headers::drop_user(&mut call.headers) {
            reply = self.chat.chat_into(endpoint, call, writer).await;
        }
        reply
    }
}

/// Input of the step: the message and the decisions. Session values are excluded, because they may
/// change while a turn waits.
fn step_input(input: &AgentMessage, deliveries: &[DecisionDelivery]) -> Vec<u8> {
    let parts = (&input.content, &input.attachments, deliveries);
    raw(&parts).get().as_bytes().to_vec()
}

/// Tells the operator that clients may have read words of a paused answer.
fn warn_of_streamed_words(agent: &Name) {
    tracing::warn!(
        %agent,
        "the agent waits for a person, and its words before that were streamed; set `pauses = true` for it"
    );
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
