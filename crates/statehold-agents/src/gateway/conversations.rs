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

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_core::memory::AgentPath;
use statehold_core::scope::StateKey;
use statehold_engine::bodies::Raw;

use super::briefing::Briefing;
use super::conversation_record::{self, ConversationLocks, ConversationRecord};
use super::shared::{self, ExportedState, SharedContext};
use super::{
    RECREATED, call_headers, is_conversation_lost, not_prepared, reason_note, turn_failure,
};
use crate::conversations::{
    ConversationSearch, ConversationsClient, ConversationsEndpoint, HeaderPair,
};
use crate::http::{EndpointError, HttpPool};
use crate::message::{AgentMessage, raw};
use crate::runner::{AgentRun, StepExtras, StepKind};
use crate::spec::{ConversationsSpec, SecretHeader};
use crate::turn::{Agent, TraceNote, TurnAnswer, TurnError};

/// Name of this gateway in the private state.
const GATEWAY: &str = "conversations";
/// The result of a step, in the words of an error.
const REPLY: &str = "the reply of the service";
/// Delay before creating a conversation is retried. Doubles with each retry.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);

/// An agent behind a conversation service.
pub(crate) struct ConversationsAgent {
    spec: Arc<ConversationsSpec>,
    http: HttpPool,
    locks: Arc<ConversationLocks>,
}

/// Recorded result of creating a conversation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other"
)]
struct StartedConversation {
    conversation: String,
    generation: u32,
    /// It already existed: the response of an earlier attempt had been lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    found: bool,
    /// An earlier attempt may have created one, and the list could not be searched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unseen: bool,
    /// It replaces one that the service lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recreated: bool,
    /// Its first message brings the exchanges from before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    needs_briefing: bool,
}

/// Recorded reply of the agent.
#[derive(Debug, Serialize, Deserialize)]
struct ServiceReply {
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

/// Known state of the conversation before the call.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other"
)]
struct KnownConversation {
    conversation: Option<String>,
    generation: u32,
    /// An earlier attempt to create one has no known outcome.
    creation_unknown: bool,
    /// The service lost the conversation.
    was_lost: bool,
    /// The service does not know the exchanges from before its conversation: the session is a fork, or its
    /// client brought earlier messages along.
    needs_briefing: bool,
    /// An earlier attempt may have created another one.
    was_unseen: bool,
}

#[async_trait]
impl Agent for ConversationsAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        // Take the lock: two turns in one conversation would interleave.
        run.conversation = Some(self.locks.lock(run).await);
        let mut known = KnownConversation::default();
        while run.next_recorded_kind() == Some(StepKind::Conversation) {
            known = self.create_conversation(run, known).await?;
        }
        if run.next_recorded_kind().is_none() && known.conversation.is_none() {
            known = find_conversation(run).await?;
            if known.conversation.is_none() {
                known.needs_briefing |= known.generation == 0 && run.input.data.is_some();
                known = self.create_conversation(run, known).await?;
            }
        }
        let service_reply = match self.send_message(run, &known).await {
            Err(error) if is_conversation_lost(&error) && !known.was_lost => {
                let lost = KnownConversation {
                    conversation: None,
                    generation: known.generation,
                    was_lost: true,
                    ..KnownConversation::default()
                };
                known = self.create_conversation(run, lost).await?;
                self.send_message(run, &known).await?
            }
            service_reply => service_reply?,
        };
        let shared = service_reply.shared_context.as_deref();
        let ExportedState {
            mut values,
            left_out,
        } = shared::export_values(&run.spec.export, shared, None);
        values.extend(service_reply.temp);
        let mut notes = service_reply.notes;
        notes.extend(left_out);
        let mut message = AgentMessage::plain(&service_reply.content);
        if known.was_lost {
            message.annotations = Some(raw(&BTreeMap::from([(RECREATED, true)])));
            notes.push(reason_note(RECREATED, "the service lost the conversation"));
        }
        if known.was_unseen {
            let reason = "an earlier attempt may have created one, and the service's list could not be searched";
            notes.push(reason_note("conversation_unseen", reason));
        }
        Ok(TurnAnswer {
            message,
            state: values,
            private: None,
            notes,
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
        let mut headers = call_headers::origin_headers(run.request.ids);
        headers.extend(self.spec.headers.iter().map(SecretHeader::pair));
        let endpoint = ConversationsEndpoint {
            base_url: self.spec.base_url.clone(),
            credential: run.credential.clone().or(self.spec.credential.clone()),
            headers,
            timeout: run.spec.timeout,
            retries,
        };
        ConversationsClient::new(self.http.clone(), endpoint)
    }

    /// Creates a conversation. Records the intent first, so that a retry after a crash or a lost
    /// response searches for it.
    async fn create_conversation(
        &self,
        run: &mut AgentRun,
        known: KnownConversation,
    ) -> Result<KnownConversation, TurnError> {
        let (was_lost, needs_briefing) = (known.was_lost, known.needs_briefing);
        let generation = known.generation + u32::from(!known.creation_unknown);
        let mut record = ConversationRecord {
            gateway: GATEWAY.to_owned(),
            session: run.request.ids.session,
            generation,
            conversation: None,
            is_another: was_lost,
            needs_briefing,
        };
        if run.next_recorded_kind().is_none() && !known.creation_unknown {
            run.remember(&raw(&record)).await?;
        }
        let title = title(run.request.ids.session, run.request.path(), generation);
        let (client, retries) = (self.client(run, 0), run.spec.retries);
        let key = call_headers::idempotency_key(run.request.ids, run.steps_taken(), "-begin");
        let work = async move {
            let mut created =
                create_once(&client, (&title, &key), known.creation_unknown, retries).await?;
            (created.generation, created.recreated) = (generation, was_lost);
            created.needs_briefing = needs_briefing;
            record.conversation = Some(created.conversation.clone());
            let extras = StepExtras {
                private: Some(raw(&record)),
                ..StepExtras::default()
            };
            Ok((created, extras))
        };
        let step = (StepKind::Conversation, REPLY);
        let created = run.step(step, GATEWAY.as_bytes(), work).await?;
        Ok(KnownConversation {
            conversation: Some(created.conversation),
            generation: created.generation,
            creation_unknown: false,
            was_lost: created.recreated,
            needs_briefing: created.needs_briefing,
            was_unseen: created.unseen || known.was_unseen,
        })
    }

    /// Sends the new message to the conversation.
    async fn send_message(
        &self,
        run: &mut AgentRun,
        known: &KnownConversation,
    ) -> Result<ServiceReply, TurnError> {
        let made_from = raw(&(&run.input.content, &run.input.attachments));
        let mut prepared = None;
        if run.next_recorded_kind().is_none() {
            let told = SharedContext::of(&run.state_values(&run.spec.import).await?);
            let briefing = if known.needs_briefing {
                Briefing::read(run).await?
            } else {
                Briefing::default()
            };
            let text = briefing.block + &message_text(&run.input, told.as_ref());
            let notes = told.as_ref().and_then(SharedContext::note);
            prepared = Some((text, notes.into_iter().chain(briefing.note).collect()));
        }
        let client = self.client(run, run.spec.retries);
        let key = call_headers::idempotency_key(run.request.ids, run.steps_taken(), "");
        let (sink, session) = (run.draft_sink(), run.request.ids.session);
        let export = run.spec.export.clone();
        let work = async move {
            let (text, notes) = prepared.ok_or_else(not_prepared)?;
            let conversation = known.conversation.as_deref().ok_or_else(not_prepared)?;
            let mut on_chunk = |chunk: &str| sink(chunk);
            let how = (true, &key);
            let reply = client.chat(conversation, &text, how, &mut on_chunk).await;
            let mut reply = reply.map_err(|error| turn_failure(&error))?;
            let temp = shared::take_temp_values(&export, &mut reply.shared_context);
            // If the service answered in another conversation, continue there.
            let other = reply.conversation_id.filter(|other| other != conversation);
            let has_moved = other.is_some();
            let conversation = other.unwrap_or_else(|| conversation.to_owned());
            let private = (has_moved || known.needs_briefing).then(|| {
                raw(&ConversationRecord {
                    gateway: GATEWAY.to_owned(),
                    session,
                    generation: known.generation + 1,
                    conversation: Some(conversation.clone()),
                    is_another: false,
                    needs_briefing: false,
                })
            });
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

async fn find_conversation(run: &AgentRun) -> Result<KnownConversation, TurnError> {
    let Some(known) = conversation_record::find_newest(run, GATEWAY).await? else {
        return Ok(KnownConversation::default());
    };
    // A forked session creates its own conversation, because the original may have continued.
    let is_here = known.session == run.request.ids.session;
    let creation_unknown = is_here && known.conversation.is_none();
    let is_elsewhere = !is_here && known.conversation.is_some();
    Ok(KnownConversation {
        generation: known.generation,
        creation_unknown,
        was_lost: creation_unknown && known.is_another,
        needs_briefing: is_elsewhere || is_here && known.needs_briefing,
        conversation: known.conversation.filter(|_| is_here),
        was_unseen: false,
    })
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
        EndpointError::Malformed(_) | EndpointError::TooLarge(_) | EndpointError::NotFound => false,
    }
}

/// A title that is unique per session, path and conversation.
fn title(session: SessionId, path: &AgentPath, generation: u32) -> String {
    format!("Statehold {session} {path} {generation}")
}

/// The message text: shared context, input text, and attachment addresses.
fn message_text(input: &AgentMessage, told: Option<&SharedContext>) -> String {
    let mut text = input.text();
    for file in &input.attachments {
        if let Some(url) = file.url.as_ref().or(file.reference_url.as_ref()) {
            text.push_str("\n\nAttachment: ");
            text.push_str(url);
        }
    }
    match shared::block(told, &text) {
        Some(block) => format!("{block}{text}"),
        None => text,
    }
}
