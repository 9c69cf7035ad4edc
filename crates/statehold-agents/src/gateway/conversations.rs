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
use statehold_core::ids::SessionId;
use statehold_core::memory::AgentPath;
use statehold_core::scope::StateKey;
use statehold_engine::bodies::Raw;

use super::conversation_record::{ConversationLocks, Gateway};
use super::conversation_turn::{
    ConversationService, KnownConversation, NewConversation, PreparedMessage, REPLY,
    StartedConversation, run_turn, step_input,
};
use super::shared::{self, ExportedState};
use super::{call_headers, not_prepared, service_endpoint, turn_failure};
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

#[async_trait]
impl Agent for ConversationsAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        let (service_reply, known) = run_turn(self, &self.locks, run).await?;
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
            let reply = client.chat(conversation, &text, how, &mut on_chunk).await;
            let mut reply = reply.map_err(|error| turn_failure(&error))?;
            let temp = shared::take_temp_values(&export, &mut reply.shared_context);
            // If the service answered in another conversation, continue there.
            let other = reply.conversation_id.filter(|other| other != conversation);
            let has_moved = other.is_some();
            let conversation = other.unwrap_or_else(|| conversation.to_owned());
            let moves_on = has_moved || known.changes_record();
            let private = moves_on.then(|| known.answered_in(self, session, &conversation));
            let service_reply = ServiceReply {
                ids: call_headers::returned_ids(&reply.headers),
                content: reply.content,
                conversation,
                shared_context: reply.shared_context,
                temp,
                notes,
            };
            let extras = StepExtras {
                private,
                is_deferred: true,
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
