//! Agents behind services that store conversations. Statehold records only the conversation id. A
//! conversation is created once, also when turns race, a response is lost or the process crashes. If
//! the service cannot list its conversations, or the list is too long, a second one is created instead
//! of failing: the orphan contains no message, and the trace records the case.
//!
//! A message stays in its conversation. While this process lives, a message that may have arrived is
//! not sent again; the turn fails instead. After a crash between sending and recording, the outcome is
//! unknown, and the resumed turn sends the message again under the same `Idempotency-Key`. A service
//! that honours the key returns its first answer; otherwise the conversation contains the message
//! twice.
//!
//! A service that answers that it waits for people gets the decisions with the next message of the conversation: in
//! words, and as `statehold.decisions` beside the message.
//!
//! If the service lost the conversation, another one is created once, and the answer begins with a sentence that
//! says so.
//! With `brief_on_loss` the first message there brings the earlier exchanges.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use statehold_core::ids::SessionId;
use statehold_core::memory::AgentPath;
use statehold_core::scope::StateKey;
use statehold_engine::bodies::Raw;

use super::conversation_record::{ConversationLocks, Gateway};
use super::conversation_turn::{
    ConversationService, KnownConversation, NewConversation, PreparedMessage, REPLY,
    StartedConversation, run_turn, step_input,
};
use super::pause::{
    DecisionBatch, DeliveryDelays, PAUSES_MAX, RemotePause, decision_words, open_holds,
    pauses_too_often, require_not_paused,
};
use super::shared::{self, ExportedState};
use super::{call_headers, not_prepared, service_endpoint, turn_failure};
use crate::chat::ChatReply;
use crate::conversations::{ConversationSearch, ConversationsClient, HeaderPair};
use crate::http::{EndpointError, HttpPool, ServiceEndpoint};
use crate::message::{AgentMessage, raw};
use crate::runner::{AgentRun, StepExtras, StepKind};
use crate::spec::ConversationsSpec;
use crate::turn::{Agent, TraceNote, TurnAnswer, TurnError};

/// Delay before creating a conversation is retried. Doubles with each retry.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);

/// An agent behind a conversation service.
pub(crate) struct ConversationsAgent {
    spec: Arc<ConversationsSpec>,
    http: HttpPool,
    locks: Arc<ConversationLocks>,
}

/// Recorded reply of the agent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ServiceReply {
    content: String,
    conversation: String,
    /// The service waits for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    statehold: Option<Raw>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared_context: Option<Raw>,
    /// `temp:` values that the agent writes. They are in memory only, so a replayed reply has none.
    #[serde(skip)]
    temp: Vec<(StateKey, Raw)>,
    /// Ids that the service returned for its side of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ids: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<TraceNote>,
}

impl ServiceReply {
    /// The reply to a message in a conversation. `export` are the keys that the agent may write.
    fn of(
        mut reply: ChatReply,
        conversation: &str,
        export: &[StateKey],
        notes: Vec<TraceNote>,
    ) -> Self {
        let temp = shared::take_temp_values(export, &mut reply.shared_context);
        let conversation = reply
            .conversation_id
            .unwrap_or_else(|| conversation.to_owned());
        Self {
            ids: call_headers::returned_ids(&reply.headers),
            content: reply.content,
            conversation,
            statehold: reply.statehold,
            shared_context: reply.shared_context,
            temp,
            notes,
        }
    }

    fn pause(&self) -> Result<Option<RemotePause>, TurnError> {
        self.statehold
            .as_deref()
            .map_or(Ok(None), RemotePause::read)
    }
}

#[async_trait]
impl Agent for ConversationsAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        // Check before waiting for the conversation too: a turn that waits for the service may have it for long.
        if run.next_recorded_kind().is_none() {
            require_not_paused(run).await?;
        }
        let (mut service_reply, known) = run_turn(self, &self.locks, run).await?;
        let mut pauses = 0;
        while let Some(paused) = service_reply.pause()? {
            pauses += 1;
            if pauses > PAUSES_MAX {
                return Err(pauses_too_often());
            }
            let decisions = open_holds(run, &paused).await?;
            let conversation = service_reply.conversation;
            service_reply = self.tell_decisions(run, &conversation, decisions).await?;
        }
        let shared = service_reply.shared_context.as_deref();
        let ExportedState {
            mut values,
            left_out,
        } = shared::export_values(&run.spec.export, shared, None);
        values.extend(service_reply.temp);
        let mut notes = service_reply.notes;
        notes.extend(left_out);
        let notice = known.loss_notice().unwrap_or_default();
        let mut message = AgentMessage::plain(&format!("{notice}{}", service_reply.content));
        let mut annotations = BTreeMap::new();
        known.report(&mut annotations, &mut notes);
        message.annotations = (!annotations.is_empty()).then(|| raw(&annotations));
        Ok(TurnAnswer {
            state: values,
            notes,
            ..TurnAnswer::plain(message)
        })
    }
}

impl ConversationsAgent {
    pub(crate) fn new(
        spec: Arc<ConversationsSpec>,
        http: HttpPool,
        locks: Arc<ConversationLocks>,
    ) -> Self {
        Self { spec, http, locks }
    }

    fn client(&self, run: &AgentRun, retries: u32) -> ConversationsClient {
        let ConversationsSpec {
            base_url,
            credential,
            headers,
        } = &*self.spec;
        let endpoint = ServiceEndpoint {
            retries,
            ..service_endpoint(run, base_url, credential.as_ref(), headers)
        };
        ConversationsClient::new(self.http.clone(), endpoint)
    }
}

impl ConversationsAgent {
    /// Tells the service in its conversation what was decided, as a step.
    async fn tell_decisions(
        &self,
        run: &mut AgentRun,
        conversation: &str,
        decisions: DecisionBatch,
    ) -> Result<ServiceReply, TurnError> {
        let DecisionBatch {
            deliveries,
            results,
        } = decisions;
        let made_from = raw(&(&run.input.content, &run.input.attachments, &deliveries));
        let (client, request) = (self.client(run, run.spec.retries), run.request.ids.request);
        let key = call_headers::idempotency_key(run.request.ids, run.steps_taken(), "");
        let (sink, export) = (run.draft_sink(), run.spec.export.clone());
        let work = async move {
            let (words, decisions) = (decision_words(&deliveries), json!(deliveries));
            let message = (words.as_str(), Some(&decisions));
            let mut delays = DeliveryDelays::default();
            let reply = loop {
                let mut on_chunk = |chunk: &str| sink(chunk);
                let how = (true, &key);
                let reply = client.chat(conversation, message, how, &mut on_chunk).await;
                // A message that may have arrived is not sent again.
                match reply {
                    Err(error) if error.is_unavailable() => delays.wait(request, &error).await,
                    reply => break reply.map_err(|error| turn_failure(&error))?,
                }
            };
            let reply = ServiceReply::of(reply, conversation, &export, Vec::new());
            let extras = StepExtras {
                results,
                is_deferred: reply.pause()?.is_none(),
                ..StepExtras::default()
            };
            Ok((reply, extras))
        };
        let step = (StepKind::AgentCall, REPLY);
        run.step(step, made_from.get().as_bytes(), work).await
    }
}

#[async_trait]
impl ConversationService for ConversationsAgent {
    type Reply = ServiceReply;

    const GATEWAY: Gateway = Gateway::Conversations;

    fn create(
        &self,
        run: &AgentRun,
        new: NewConversation,
    ) -> BoxFuture<'static, Result<StartedConversation, TurnError>> {
        let title = title(run.request.ids.session, run.request.path(), new);
        let (client, retries) = (self.client(run, 0), run.spec.retries);
        let key = call_headers::idempotency_key(run.request.ids, run.steps_taken(), "-begin");
        Box::pin(async move { create_once(&client, (&title, &key), new.may_exist, retries).await })
    }

    async fn send(
        &self,
        run: &mut AgentRun,
        known: &KnownConversation,
    ) -> Result<ServiceReply, TurnError> {
        if run.next_recorded_kind().is_none() {
            require_not_paused(run).await?;
        }
        let made_from = step_input(&run.input);
        let prepared = PreparedMessage::read(run, known).await?;
        let client = self.client(run, run.spec.retries);
        let key = call_headers::idempotency_key(run.request.ids, run.steps_taken(), "");
        let (sink, export) = (run.draft_sink(), run.spec.export.clone());
        let session = run.request.ids.session;
        let work = async move {
            let PreparedMessage { text, notes } = prepared.ok_or_else(not_prepared)?;
            let conversation = known.conversation.as_deref().ok_or_else(not_prepared)?;
            known.loss_notice().into_iter().for_each(&sink);
            let mut on_chunk = |chunk: &str| sink(chunk);
            let how = (true, &key);
            let message = (text.as_str(), None);
            let reply = client.chat(conversation, message, how, &mut on_chunk).await;
            let reply = reply.map_err(|error| turn_failure(&error))?;
            let service_reply = ServiceReply::of(reply, conversation, &export, notes);
            // If the service answered in another conversation, continue there.
            let has_moved = service_reply.conversation != conversation;
            let moves_on = has_moved || known.changes_record();
            let answered = &service_reply.conversation;
            let private = moves_on.then(|| known.answered_in(self, session, answered));
            let extras = StepExtras {
                private,
                is_deferred: service_reply.pause()?.is_none(),
                ..StepExtras::default()
            };
            Ok((service_reply, extras))
        };
        let step = (StepKind::AgentCall, REPLY);
        run.step(step, made_from.get().as_bytes(), work).await
    }
}

/// Creates a conversation, or finds the one created by an attempt whose response was lost.
async fn create_once(
    client: &ConversationsClient,
    (title, key): (&str, &HeaderPair),
    may_exist: bool,
    retries: u32,
) -> Result<StartedConversation, TurnError> {
    let (mut may_exist, mut delay) = (may_exist, FIRST_RETRY_DELAY);
    let mut created = StartedConversation::default();
    for left in (0..=retries).rev() {
        if may_exist {
            match client.find(title).await {
                Ok(ConversationSearch::Found(conversation)) => {
                    (created.conversation, created.found) = (conversation, true);
                    return Ok(created);
                }
                Ok(ConversationSearch::Missing) => created.unseen = false,
                Err(error) if is_transient(&error) => return Err(turn_failure(&error)),
                // A later search would have the same result.
                Ok(ConversationSearch::ListTruncated) | Err(_) => created.unseen = true,
            }
        }
        match client.create(title, key).await {
            Ok(conversation) => {
                created.conversation = conversation;
                return Ok(created);
            }
            Err(error) if left > 0 && is_transient(&error) => {
                tokio::time::sleep(delay).await;
                (may_exist, delay) = (true, delay.saturating_mul(2));
            }
            Err(error) => return Err(turn_failure(&error)),
        }
    }
    Err(not_prepared())
}

fn is_transient(error: &EndpointError) -> bool {
    match error {
        EndpointError::Timeout { .. } | EndpointError::Unreachable(_) | EndpointError::CutOff => {
            true
        }
        EndpointError::Status { status, .. } => match *status {
            StatusCode::NOT_IMPLEMENTED => false,
            status => status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS,
        },
        EndpointError::NoAnswer(_)
        | EndpointError::Malformed(_)
        | EndpointError::TooLarge(_)
        | EndpointError::MemoryFull
        | EndpointError::NotFound => false,
    }
}

/// A title that is unique per session, path and conversation.
fn title(session: SessionId, path: &AgentPath, new: NewConversation) -> String {
    let generation = new.generation;
    match new.rewind {
        0 => format!("Statehold {session} {path} {generation}"),
        rewind => format!("Statehold {session} {path} {generation} {rewind}"),
    }
}
