//! Agents behind a Conversational Analytics API, in one of its four contexts. With a conversation, the service stores
//! the history and gets only the new message. In the other contexts, each call has the agent's own exchanges, with
//! the messages of the system as they came: the service reads its own signatures in them.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use statehold_core::digest::Digest;
use statehold_core::scope::Scope;
use statehold_engine::bodies::Raw;
use statehold_engine::leased::RequestRef;

use super::conversation_record::{ConversationLocks, Gateway};
use super::conversation_turn::{
    ConversationService, KnownConversation, NewConversation, PreparedMessage, REPLY,
    StartedConversation, message_text, run_turn, step_input,
};
use super::exchange::{PastExchange, StateNote};
use super::shared::{SharedContext, WRITTEN_BYTES_MAX, normalize_value};
use super::{call_headers, not_prepared, reason_note, service_endpoint, turn_failure};
use crate::analytics::{
    AnalyticsClient, AnalyticsReply, ChatMessage, ConversationSeed, is_final_text, system_text,
    user_message,
};
use crate::draft_writer::DraftWriter;
use crate::history::{HISTORY_BYTES_MAX, PastExchanges, left_out_note, newest_fitting};
use crate::http::HttpPool;
use crate::llm::model_messages::brought_exchanges;
use crate::message::{AgentMessage, raw};
use crate::runner::{AgentRun, StepExtras, StepKind};
use crate::spec::{AnalyticsSpec, DataContext, ThinkingMode};
use crate::turn::{Agent, TraceNote, TurnAnswer, TurnError};

/// An agent behind a Conversational Analytics API.
pub(crate) struct AnalyticsAgent {
    spec: Arc<AnalyticsSpec>,
    http: HttpPool,
    locks: Arc<ConversationLocks>,
}

/// Recorded answer of the service.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RecordedAnswer {
    content: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    followup_questions: Vec<String>,
    /// The messages of the system, to be sent back. None if the service stores them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    state: Option<SystemMessages>,
    /// Session values that were sent with the message, without `temp:` values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    told: Option<Raw>,
    /// The data to be written. A `temp:` value is in memory only, so a replayed answer has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    data: Option<Raw>,
    #[serde(skip)]
    temp_data: Option<Raw>,
    /// Ids that the service returned for its side of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ids: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<TraceNote>,
}

/// State of an agent whose service stores nothing.
#[derive(Debug, Default, Serialize, Deserialize)]
struct SystemMessages {
    #[serde(default)]
    system_messages: Vec<Raw>,
}

/// A call that is ready to be sent.
struct PreparedChat {
    messages: Vec<Raw>,
    told: Option<SharedContext>,
    notes: Vec<TraceNote>,
}

/// Body of a call. It has one of the contexts.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct AnalyticsChatBody<'a> {
    messages: &'a [Raw],
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_reference: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_agent_context: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inline_context: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    client_managed_resource_context: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking_mode: Option<&'static str>,
}

#[async_trait]
impl Agent for AnalyticsAgent {
    async fn turn(&self, run: &mut AgentRun) -> Result<TurnAnswer, TurnError> {
        let (answer, known) = match &self.spec.context {
            DataContext::Conversation { .. } => {
                let (answer, known) = run_turn(self, &self.locks, run).await?;
                (answer, Some(known))
            }
            DataContext::Agent { .. } | DataContext::Inline(_) | DataContext::ClientManaged(_) => {
                let prepared = match run.next_recorded_kind() {
                    Some(_) => None,
                    None => Some(prepare_restored(run).await?),
                };
                (self.call(run, prepared, None).await?, None)
            }
        };
        Ok(answer.into_turn_answer(&self.spec, known.as_ref()))
    }
}

#[async_trait]
impl ConversationService for AnalyticsAgent {
    type Reply = RecordedAnswer;

    const GATEWAY: Gateway = Gateway::Analytics;

    fn remote_agent(&self) -> Option<&str> {
        match &self.spec.context {
            DataContext::Conversation { data_agent } | DataContext::Agent { data_agent } => {
                Some(data_agent)
            }
            DataContext::Inline(_) | DataContext::ClientManaged(_) => None,
        }
    }

    fn create(
        &self,
        run: &AgentRun,
        new: NewConversation,
    ) -> BoxFuture<'static, Result<StartedConversation, TurnError>> {
        let data_agent = self.remote_agent().unwrap_or_default();
        let seed = conversation_seed(run, new, data_agent);
        let client = self.client(run);
        Box::pin(async move {
            let created = client.create(&seed).await;
            let mut started = StartedConversation::default();
            (started.conversation, started.found) =
                created.map_err(|error| turn_failure(&error))?;
            Ok(started)
        })
    }

    async fn send(
        &self,
        run: &mut AgentRun,
        known: &KnownConversation,
    ) -> Result<RecordedAnswer, TurnError> {
        let prepared = PreparedMessage::read(run, known).await?;
        let prepared = prepared.map(|PreparedMessage { text, notes }| PreparedChat {
            messages: vec![user_message(&text)],
            told: None,
            notes,
        });
        self.call(run, prepared, Some(known)).await
    }
}

impl AnalyticsAgent {
    pub(crate) fn new(
        spec: Arc<AnalyticsSpec>,
        http: HttpPool,
        locks: Arc<ConversationLocks>,
    ) -> Self {
        Self { spec, http, locks }
    }

    fn client(&self, run: &AgentRun) -> AnalyticsClient {
        let AnalyticsSpec {
            base_url,
            credential,
            headers,
            parent,
            ..
        } = &*self.spec;
        AnalyticsClient {
            http: self.http.clone(),
            endpoint: service_endpoint(run, base_url, credential.as_ref(), headers),
            parent: parent.clone(),
        }
    }

    /// Calls the service once. The answer is recorded before anything follows from it.
    async fn call(
        &self,
        run: &mut AgentRun,
        prepared: Option<PreparedChat>,
        known: Option<&KnownConversation>,
    ) -> Result<RecordedAnswer, TurnError> {
        let made_from = step_input(&run.input);
        let (client, here) = (self.client(run), run.request.ids);
        let key = call_headers::idempotency_key(here, run.steps_taken(), "");
        let agent = run.spec.name.to_string();
        let mut draft = DraftWriter::of(run);
        let work = async move {
            let prepared = prepared.ok_or_else(not_prepared)?;
            let conversation = known.and_then(|known| known.conversation.as_deref());
            let body = self.body(&prepared.messages, conversation, (here, &agent))?;
            let message = ChatMessage {
                body: &body,
                key,
                is_stored: known.is_some(),
            };
            let notice = known.and_then(KnownConversation::loss_notice);
            draft.write(notice.unwrap_or_default());
            let reply = client.chat(&message, &mut |text| draft.write(text)).await;
            let reply = reply.map_err(|error| turn_failure(&error))?;
            let changed = known.filter(|known| known.changes_record());
            let changed = changed.zip(conversation);
            let extras = StepExtras {
                private: changed.map(|(known, conversation)| {
                    known.answered_in(self, here.session, conversation)
                }),
                is_deferred: true,
                ..StepExtras::default()
            };
            let answer = self.record(reply, prepared, known.is_none());
            Ok((answer, extras))
        };
        let step = (StepKind::AgentCall, REPLY);
        run.step(step, made_from.get().as_bytes(), work).await
    }

    fn body<'a>(
        &self,
        messages: &'a [Raw],
        conversation: Option<&str>,
        (here, agent): (RequestRef, &str),
    ) -> Result<AnalyticsChatBody<'a>, TurnError> {
        let mut body = AnalyticsChatBody {
            messages,
            conversation_reference: None,
            data_agent_context: None,
            inline_context: None,
            client_managed_resource_context: None,
            thinking_mode: self.spec.thinking.map(|thinking| match thinking {
                ThinkingMode::Fast => "FAST",
                ThinkingMode::Thinking => "THINKING",
            }),
        };
        match &self.spec.context {
            DataContext::Conversation { data_agent } => {
                let conversation = conversation.ok_or_else(not_prepared)?;
                body.conversation_reference = Some(json!({
                    "conversation": conversation,
                    "dataAgentContext": { "dataAgent": data_agent },
                }));
            }
            DataContext::Agent { data_agent } => {
                body.data_agent_context = Some(json!({ "dataAgent": data_agent }));
            }
            DataContext::Inline(data) => body.inline_context = Some(json!(data)),
            DataContext::ClientManaged(data) => {
                body.client_managed_resource_context = Some(json!({
                    "inlineContext": data,
                    "conversationId": here.session.to_string(),
                    "agentId": agent,
                }));
            }
        }
        Ok(body)
    }

    /// The recorded form of an answer. `gives_back`: keep the messages of the system for the next call.
    fn record(
        &self,
        reply: AnalyticsReply,
        prepared: PreparedChat,
        gives_back: bool,
    ) -> RecordedAnswer {
        let key = self.spec.data_key.as_ref();
        let mut notes = prepared.notes;
        notes.extend(reply.notes);
        let result = reply.data.filter(|_| key.is_some());
        let data = result.and_then(|result| {
            // Numbers may be longer in their normal form, so fewer rows may fit.
            let mut sizes = [1, 2, 4, 8]
                .map(|part| WRITTEN_BYTES_MAX / part)
                .into_iter();
            let value = sizes.find_map(|bytes_max| {
                let value = normalize_value(&result.to_value(bytes_max))?;
                (value.get().len() <= WRITTEN_BYTES_MAX).then_some(value)
            });
            if value.is_none() {
                let reason = "the data is nested too deeply, or has a number that no reader takes";
                notes.push(reason_note("data_left_out", reason));
            }
            value
        });
        let is_temp = key.is_some_and(|key| key.scope() == Scope::Temp);
        let (temp_data, data) = if is_temp { (data, None) } else { (None, data) };
        RecordedAnswer {
            content: reply.text,
            followup_questions: reply.followup_questions,
            state: gives_back.then_some(SystemMessages {
                system_messages: reply.messages,
            }),
            told: prepared.told.and_then(|told| told.kept),
            data,
            temp_data,
            ids: call_headers::returned_ids(&reply.headers),
            notes,
        }
    }
}

impl RecordedAnswer {
    fn into_turn_answer(
        self,
        spec: &AnalyticsSpec,
        known: Option<&KnownConversation>,
    ) -> TurnAnswer {
        let mut notes = self.notes;
        let mut annotations = BTreeMap::new();
        if !self.followup_questions.is_empty() {
            annotations.insert("followup_questions", json!(self.followup_questions));
        }
        let notice = known.and_then(KnownConversation::loss_notice);
        let notice = notice.unwrap_or_default();
        if let Some(known) = known {
            known.report(&mut annotations, &mut notes);
        }
        if let Some(state) = &self.state {
            let kept = StateNote {
                state: Some(raw(state)),
                told: self.told,
                ..StateNote::default()
            };
            notes.extend(kept.note());
        }
        let data = self.data.or(self.temp_data);
        let message = AgentMessage {
            annotations: (!annotations.is_empty()).then(|| raw(&annotations)),
            ..AgentMessage::plain(&format!("{notice}{}", self.content))
        };
        TurnAnswer {
            state: spec.data_key.clone().zip(data).into_iter().collect(),
            notes,
            ..TurnAnswer::plain(message)
        }
    }
}

/// Prepares the exchanges that the request knows, and the new message.
async fn prepare_restored(run: &AgentRun) -> Result<PreparedChat, TurnError> {
    let past = PastExchanges::read(&run.request).await?;
    let brought = brought_exchanges(&past, &run.input);
    let brought = brought.iter().map(|exchange| {
        let messages = exchange.messages().iter();
        messages.map(brought_message).collect()
    });
    let exchanges = brought.chain(PastExchange::all(&past).map(restored_messages));
    let bytes = |messages: &Vec<Raw>| messages.iter().map(|one| one.get().len()).sum();
    let (kept, left_out) = newest_fitting(exchanges.collect(), HISTORY_BYTES_MAX, bytes);
    let mut notes: Vec<TraceNote> = left_out_note(left_out, past.is_cut).into_iter().collect();
    let told = SharedContext::of(&run.state_values(&run.spec.import).await?);
    notes.extend(told.as_ref().and_then(SharedContext::note));
    let mut messages: Vec<Raw> = kept.into_iter().flatten().collect();
    messages.push(user_message(&message_text(&run.input, told.as_ref())));
    Ok(PreparedChat {
        messages,
        told,
        notes,
    })
}

/// The messages of an earlier exchange: the user's as it was sent, and the system's as they came. The text of the
/// answer stands for a final message that is not kept.
fn restored_messages(exchange: PastExchange) -> Vec<Raw> {
    let told = exchange.kept.told.map(SharedContext::from_stored);
    let mut messages = vec![user_message(&message_text(&exchange.asked, told.as_ref()))];
    let state = exchange.kept.state.as_ref();
    let state = state.and_then(|state| serde_json::from_str(state.get()).ok());
    let state: SystemMessages = state.unwrap_or_default();
    let has_answer = state.system_messages.iter().any(|one| is_final_text(one));
    messages.extend(state.system_messages);
    if !has_answer {
        messages.push(system_text(&exchange.answered.text()));
    }
    messages
}

/// A message that a client brought along when its session began.
fn brought_message(message: &Raw) -> Raw {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct BroughtMessage {
        role: String,
        content: String,
    }
    let message: BroughtMessage = serde_json::from_str(message.get()).unwrap_or_default();
    if message.role == "assistant" {
        system_text(&message.content)
    } else {
        user_message(&message.content)
    }
}

/// The conversation of a session and a path: the same ids in every attempt to create it, so that it is created once.
fn conversation_seed(run: &AgentRun, new: NewConversation, data_agent: &str) -> ConversationSeed {
    let (session, path) = (run.request.ids.session, run.request.path());
    let digest = |what: String| Digest::sha256(what.as_bytes()).to_string();
    let (generation, rewind) = (new.generation, new.rewind);
    let id = digest(format!("{session} {path} {generation} {rewind}"));
    let request = digest(format!("{id} {data_agent}"));
    // A UUID of version 4, by its form.
    let request_id = format!(
        "{}-{}-4{}-8{}-{}",
        &request[..8],
        &request[8..12],
        &request[12..15],
        &request[15..18],
        &request[18..30],
    );
    ConversationSeed {
        id: format!("statehold-{}", &id[..32]),
        request_id,
        data_agent: data_agent.to_owned(),
        title: format!("Statehold {session}"),
    }
}
