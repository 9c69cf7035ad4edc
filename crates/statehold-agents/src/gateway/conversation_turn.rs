//! Turns of agents whose service stores the conversation. A session and a path of agents have one conversation,
//! with one turn at a time in it. It is created once, also when turns race, a response is lost or the process
//! crashes, and created again once if the service lost it.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use statehold_core::ids::SessionId;
use statehold_engine::bodies::Raw;

use super::briefing::Briefing;
use super::conversation_record::{
    self, ConversationLocks, ConversationRecord, Gateway, SessionTag,
};
use super::shared::{self, SharedContext};
use super::{RECREATED, is_conversation_lost, loss_notice, reason_note};
use crate::llm::with_files;
use crate::message::{AgentMessage, raw};
use crate::runner::{AgentRun, StepExtras, StepKind};
use crate::turn::{TraceNote, TurnError};

/// The result of a step, in the words of an error.
pub(super) const REPLY: &str = "the reply of the service";

/// A service that stores conversations.
#[async_trait]
pub(super) trait ConversationService: Sync {
    /// Its answer to a message.
    type Reply: Send;

    /// The gateway, for the private state.
    const GATEWAY: Gateway;

    /// The agent of the service that conversations are held with. None if the service is one agent.
    fn remote_agent(&self) -> Option<&str> {
        None
    }

    /// Creates a conversation, or finds the one that an attempt with a lost response created.
    fn create(
        &self,
        run: &AgentRun,
        new: NewConversation,
    ) -> BoxFuture<'static, Result<StartedConversation, TurnError>>;

    /// Sends the new message to the conversation, as a step.
    async fn send(
        &self,
        run: &mut AgentRun,
        known: &KnownConversation,
    ) -> Result<Self::Reply, TurnError>;
}

/// A conversation to be created.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewConversation {
    /// Counts the conversations of the session and the path.
    pub(super) generation: u32,
    /// The newest rewind of the session: the count may begin again behind it.
    pub(super) rewind: u64,
    /// An earlier attempt has no known outcome.
    pub(super) may_exist: bool,
}

/// Recorded result of creating a conversation.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other"
)]
pub(super) struct StartedConversation {
    pub(super) conversation: String,
    generation: u32,
    /// It already existed: the response of an earlier attempt had been lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) found: bool,
    /// An earlier attempt may have created one, and the list could not be searched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) unseen: bool,
    /// It replaces one that the service lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recreated: bool,
    /// Its first message brings the exchanges from before it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    needs_briefing: bool,
}

/// Known state of the conversation before the call.
#[derive(Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "facts that do not exclude each other"
)]
pub(super) struct KnownConversation {
    pub(super) conversation: Option<String>,
    generation: u32,
    /// The newest rewind of the session when it was created.
    rewind: u64,
    /// An earlier attempt to create one has no known outcome.
    creation_unknown: bool,
    /// The service lost the conversation before this one, in this turn.
    was_lost: bool,
    /// It lost it in an earlier turn, which failed before anybody was told.
    is_untold: bool,
    /// The service does not know the exchanges from before its conversation: the session is a fork, or its
    /// client brought earlier messages along.
    pub(super) needs_briefing: bool,
    /// An earlier attempt may have created another one.
    was_unseen: bool,
    /// The client brought it along, and no record has it.
    is_brought: bool,
}

/// Executes a turn in the conversation of its session and path. Returns the reply and the conversation.
pub(super) async fn run_turn<S: ConversationService>(
    service: &S,
    locks: &ConversationLocks,
    run: &mut AgentRun,
) -> Result<(S::Reply, KnownConversation), TurnError> {
    // Take the lock: two turns in one conversation would interleave.
    run.conversation = Some(locks.lock(run).await);
    let mut known = KnownConversation::default();
    while run.next_recorded_kind() == Some(StepKind::Conversation) {
        known = create(service, run, known).await?;
    }
    if run.next_recorded_kind().is_none() && known.conversation.is_none() {
        known = find(service, run).await?;
        let brought = run.input.brought_conversation();
        if S::GATEWAY == Gateway::Conversations && known.generation == 0 && brought.is_some() {
            known.conversation = brought;
            known.is_brought = true;
        }
        if known.conversation.is_none() {
            known.needs_briefing |= known.generation == 0 && run.input.data.is_some();
            known = create(service, run, known).await?;
        }
    }
    let reply = match service.send(run, &known).await {
        Err(error) if is_conversation_lost(&error) && !known.was_lost => {
            let lost = KnownConversation {
                conversation: None,
                generation: known.generation,
                was_lost: true,
                needs_briefing: run.spec.brief_on_loss,
                ..KnownConversation::default()
            };
            known = create(service, run, lost).await?;
            service.send(run, &known).await?
        }
        reply => reply?,
    };
    Ok((reply, known))
}

/// Creates a conversation. Records the intent first, so that a retry after a crash or a lost
/// response searches for it.
async fn create<S: ConversationService>(
    service: &S,
    run: &mut AgentRun,
    known: KnownConversation,
) -> Result<KnownConversation, TurnError> {
    let (was_lost, needs_briefing) = (known.was_lost, known.needs_briefing);
    let generation = known.generation + u32::from(!known.creation_unknown);
    let rewind = run.request.last_rewind().await?;
    let mut record = ConversationRecord {
        rewind,
        gateway: S::GATEWAY,
        session: SessionTag::of(run.request.ids.session),
        generation,
        conversation: None,
        remote_agent: service.remote_agent().map(str::to_owned),
        is_another: was_lost,
        needs_briefing,
    };
    if run.next_recorded_kind().is_none() && !known.creation_unknown {
        run.remember(&raw(&record)).await?;
    }
    let new = NewConversation {
        generation,
        rewind,
        may_exist: known.creation_unknown,
    };
    let creation = service.create(run, new);
    let work = async move {
        let mut created = creation.await?;
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
    let created = run.step(step, S::GATEWAY.word().as_bytes(), work).await?;
    Ok(KnownConversation {
        conversation: Some(created.conversation),
        generation: created.generation,
        rewind,
        creation_unknown: false,
        was_lost: created.recreated,
        is_untold: false,
        needs_briefing: created.needs_briefing,
        was_unseen: created.unseen || known.was_unseen,
        is_brought: false,
    })
}

async fn find<S: ConversationService>(
    service: &S,
    run: &AgentRun,
) -> Result<KnownConversation, TurnError> {
    let Some(known) = conversation_record::find_newest(run, S::GATEWAY).await? else {
        return Ok(KnownConversation::default());
    };
    // A forked session creates its own conversation, because the original may have continued; so does one that was
    // rewound, because its service knows what was taken back. A conversation with another remote agent ends when the
    // declaration names a new one.
    let is_here = known.session == SessionTag::of(run.request.ids.session)
        && known.rewind == run.request.last_rewind().await?
        && known.remote_agent.as_deref() == service.remote_agent();
    let creation_unknown = is_here && known.conversation.is_none();
    let is_elsewhere = !is_here && known.conversation.is_some();
    Ok(KnownConversation {
        generation: known.generation,
        rewind: known.rewind,
        creation_unknown,
        was_lost: creation_unknown && known.is_another,
        is_untold: is_here && known.is_another,
        needs_briefing: is_elsewhere || is_here && known.needs_briefing,
        conversation: known.conversation.filter(|_| is_here),
        was_unseen: false,
        is_brought: false,
    })
}

impl KnownConversation {
    /// Private state after an answer in `conversation`, which knows the earlier exchanges now.
    pub(super) fn answered_in<S: ConversationService>(
        &self,
        service: &S,
        session: SessionId,
        conversation: &str,
    ) -> Raw {
        raw(&ConversationRecord {
            gateway: S::GATEWAY,
            session: SessionTag::of(session),
            generation: self.generation + 1,
            rewind: self.rewind,
            conversation: Some(conversation.to_owned()),
            remote_agent: service.remote_agent().map(str::to_owned),
            is_another: false,
            needs_briefing: false,
        })
    }

    /// The sentence that the answer begins with, if the service lost the conversation.
    pub(super) fn loss_notice(&self) -> Option<&'static str> {
        (self.was_lost || self.is_untold).then(|| loss_notice(self.needs_briefing))
    }

    /// Whether an answer changes the record of the conversation.
    pub(super) fn changes_record(&self) -> bool {
        self.needs_briefing || self.was_lost || self.is_untold || self.is_brought
    }

    /// Annotations of the answer, and notes for the trace, about a conversation that was created again.
    pub(super) fn report(
        &self,
        annotations: &mut BTreeMap<&'static str, Value>,
        notes: &mut Vec<TraceNote>,
    ) {
        if self.loss_notice().is_some() {
            annotations.insert(RECREATED, true.into());
            notes.push(reason_note(RECREATED, "the service lost the conversation"));
        }
        if self.was_unseen {
            let reason = "an earlier attempt may have created one, and the service's list could not be searched";
            notes.push(reason_note("conversation_unseen", reason));
        }
    }
}

/// A message that is ready to be sent, with notes for the trace.
pub(super) struct PreparedMessage {
    pub(super) text: String,
    pub(super) notes: Vec<TraceNote>,
}

impl PreparedMessage {
    /// The new message, after the earlier exchanges that the service does not know. None if the reply to it is
    /// recorded.
    pub(super) async fn read(
        run: &AgentRun,
        known: &KnownConversation,
    ) -> Result<Option<Self>, TurnError> {
        if run.next_recorded_kind().is_some() {
            return Ok(None);
        }
        let told = SharedContext::of(&run.state_values(&run.spec.import).await?);
        let briefing = if known.needs_briefing {
            Briefing::read(run).await?
        } else {
            Briefing::default()
        };
        let text = briefing.block + &message_text(&run.input, told.as_ref());
        let notes = told.as_ref().and_then(SharedContext::note);
        Ok(Some(Self {
            text,
            notes: notes.into_iter().chain(briefing.note).collect(),
        }))
    }
}

/// Input of the step that sends a message. Session values are excluded, because they may change while a turn
/// waits.
pub(super) fn step_input(input: &AgentMessage) -> Raw {
    raw(&(&input.content, &input.attachments))
}

/// The message text: shared context, input text, and what a text can say of the attachments.
pub(super) fn message_text(input: &AgentMessage, told: Option<&SharedContext>) -> String {
    let text = with_files(input);
    match shared::block(told, &text) {
        Some(block) => format!("{block}{text}"),
        None => text,
    }
}
