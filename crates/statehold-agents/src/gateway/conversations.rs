//! Services that keep conversations. Only the id of one is kept here; it is begun once, also when turns
//! race, an answer is lost or this process dies in between. Where it cannot be looked for afterwards, because
//! the service does not list what it has or lists too much, another is begun rather than none ever: what
//! may be left over there has not a word in it, and the trace says so.
//!
//! What is said in a conversation stays there. While this process lives, it is not said again once it may
//! have arrived: the turn fails and says so. If the process dies after it was said and before the answer
//! is recorded, nobody knows here whether it was, and the turn that goes on says it again, under the same
//! `Idempotency-Key`. A service that knows such keys answers what it answered before; in the conversation
//! of another, the message stands twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use http::StatusCode;
use serde::{Deserialize, Serialize};
use statehold_core::ids::SessionId;
use statehold_core::name::Name;
use statehold_engine::kept::Raw;

use super::remembered::{self, Locks, Remembered};
use super::shared::{self, Exported, Told};
use super::{RecordedNote, failed, is_lost, of_record, recorded, trail, unprepared};
use crate::conversations::{ConversationsClient, ConversationsEndpoint, Found, Header};
use crate::http::{CallError, HttpClient};
use crate::runner::{Beside, Run, StepDone, StepKind};
use crate::spec::ConversationsSpec;
use crate::turn::{Agent, Answer, TurnError};
use crate::words::{Words, raw};

/// The word for this gateway in what is remembered.
const GATEWAY: &str = "conversations";
/// How long to rest before a conversation is begun that may have been begun. It doubles.
const REST: Duration = Duration::from_millis(200);

/// An agent that keeps conversations.
pub(crate) struct Conversations {
    spec: Arc<ConversationsSpec>,
    http: HttpClient,
    locks: Arc<Locks>,
}

/// A conversation, as it is recorded when it was begun.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Begun {
    conversation: String,
    generation: u32,
    /// It was there already: an answer had been lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    found: bool,
    /// One may have been begun before, and could not be looked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    unseen: bool,
    /// The service had lost the one before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    recreated: bool,
}

/// What the agent said, as it is recorded.
#[derive(Debug, Serialize, Deserialize)]
struct Said {
    content: String,
    conversation: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shared_context: Option<Raw>,
    /// What it calls its side of the call.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    ids: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    notes: Vec<RecordedNote>,
}

/// What is known before anything is asked.
#[derive(Debug, Default)]
struct Known {
    conversation: Option<String>,
    generation: u32,
    /// One was to be begun, and nobody knows whether it was.
    is_being_begun: bool,
    /// The service lost it, or it is that of the session which this one was copied from.
    was_lost: bool,
    /// Another may have been begun in this turn or before it.
    was_unseen: bool,
}

#[async_trait]
impl Agent for Conversations {
    async fn turn(&self, run: &mut Run) -> Result<Answer, TurnError> {
        // Two turns in one conversation would be mixed up there.
        run.conversation = Some(self.locks.hold(run).await);
        let mut known = Known::default();
        while run.next_recorded() == Some(StepKind::Conversation) {
            known = self.begin(run, known).await?;
        }
        if run.next_recorded().is_none() && known.conversation.is_none() {
            known = look_up(run).await?;
            if known.conversation.is_none() {
                known = self.begin(run, known).await?;
            }
        }
        let said = match self.say(run, &known).await {
            Err(error) if is_lost(&error) && !known.was_lost => {
                let lost = Known {
                    conversation: None,
                    generation: known.generation,
                    was_lost: true,
                    ..Known::default()
                };
                known = self.begin(run, lost).await?;
                self.say(run, &known).await?
            }
            said => said?,
        };
        let shared = said.shared_context.as_deref();
        let Exported { values, left_out } = shared::exported(&run.spec.export, shared, None);
        let mut notes = of_record(said.notes);
        notes.extend(left_out);
        let mut words = Words::plain(&said.content);
        if known.was_lost {
            words.annotations = Some(raw(&BTreeMap::from([("conversation_recreated", true)])));
            let note = raw(&BTreeMap::from([(
                "reason",
                "the service lost the conversation",
            )]));
            notes.push(("conversation_recreated", note));
        }
        if known.was_unseen {
            let note = raw(&BTreeMap::from([(
                "reason",
                "one may have been begun before, and the service's list could not be looked through",
            )]));
            notes.push(("conversation_unseen", note));
        }
        Ok(Answer {
            words,
            state: values,
            private: None,
            notes,
        })
    }
}

impl Conversations {
    pub(crate) fn new(spec: Arc<ConversationsSpec>, http: HttpClient, locks: Arc<Locks>) -> Self {
        Self { spec, http, locks }
    }

    fn client(&self, run: &Run, retries: u32) -> ConversationsClient {
        let endpoint = ConversationsEndpoint {
            base_url: self.spec.base_url.clone(),
            credential: run.credential.clone().or(self.spec.credential.clone()),
            headers: trail::origin(run.place),
            timeout: run.spec.timeout,
            retries,
        };
        ConversationsClient::new(self.http.clone(), endpoint)
    }

    /// Begins a conversation. That one is to be begun is remembered first, so that whoever comes after a
    /// crash or a lost answer looks for it.
    async fn begin(&self, run: &mut Run, known: Known) -> Result<Known, TurnError> {
        let was_lost = known.was_lost;
        let generation = known.generation + u32::from(!known.is_being_begun);
        let mut remembered = Remembered {
            gateway: GATEWAY.to_owned(),
            session: run.place.session,
            generation,
            conversation: None,
            is_another: was_lost,
        };
        if run.next_recorded().is_none() && !known.is_being_begun {
            run.remember(&remembered.raw()).await?;
        }
        let title = title(run.place.session, &run.spec.name, generation);
        let (client, retries) = (self.client(run, 0), run.spec.retries);
        let key = trail::idempotency(run.place, run.steps_taken(), "-begin");
        let work = async move {
            let mut begun =
                begin_once(&client, (&title, &key), known.is_being_begun, retries).await?;
            (begun.generation, begun.recreated) = (generation, was_lost);
            remembered.conversation = Some(begun.conversation.clone());
            let done = StepDone {
                result: raw(&begun),
                usage: None,
            };
            let beside = Beside {
                private: Some(remembered.raw()),
                ..Beside::default()
            };
            Ok((done, beside))
        };
        let begun = run
            .step_beside(StepKind::Conversation, GATEWAY.as_bytes(), work)
            .await?;
        let begun: Begun = read(&begun)?;
        Ok(Known {
            conversation: Some(begun.conversation),
            generation: begun.generation,
            is_being_begun: false,
            was_lost: begun.recreated,
            was_unseen: begun.unseen || known.was_unseen,
        })
    }

    /// Says what is new in the conversation.
    async fn say(&self, run: &mut Run, known: &Known) -> Result<Said, TurnError> {
        let made_from = raw(&(&run.input.content, &run.input.attachments));
        let mut prepared = None;
        if run.next_recorded().is_none() {
            let told = Told::of(&run.shared(&run.spec.import).await?);
            let text = message(&run.input, told.as_ref());
            prepared = Some((text, told.as_ref().and_then(Told::note)));
        }
        let client = self.client(run, run.spec.retries);
        let key = trail::idempotency(run.place, run.steps_taken(), "");
        let (say, session) = (run.sayer(), run.place.session);
        let work = async move {
            let (text, note) = prepared.ok_or_else(unprepared)?;
            let conversation = known.conversation.as_deref().ok_or_else(unprepared)?;
            let mut hear = |piece: &str| say(piece);
            let how = (true, &key);
            let reply = client.chat(conversation, &text, how, &mut hear).await;
            let reply = reply.map_err(|error| failed(&error))?;
            // A service that goes on elsewhere is followed there.
            let is_elsewhere = reply.conversation_id != conversation;
            let private = is_elsewhere.then(|| {
                let remembered = Remembered {
                    gateway: GATEWAY.to_owned(),
                    session,
                    generation: known.generation + 1,
                    conversation: Some(reply.conversation_id.clone()),
                    is_another: false,
                };
                remembered.raw()
            });
            let said = Said {
                ids: trail::returned(&reply.headers),
                content: reply.content,
                conversation: reply.conversation_id,
                shared_context: reply.shared_context,
                notes: recorded(note.into_iter().collect()),
            };
            let done = StepDone {
                result: raw(&said),
                usage: None,
            };
            let beside = Beside {
                private,
                waits: true,
                ..Beside::default()
            };
            Ok((done, beside))
        };
        let made_from = made_from.get().as_bytes();
        let said = run
            .step_beside(StepKind::AgentCall, made_from, work)
            .await?;
        read(&said)
    }
}

async fn look_up(run: &Run) -> Result<Known, TurnError> {
    let Some(known) = remembered::look_up(run, GATEWAY).await? else {
        return Ok(Known::default());
    };
    // A copy of a session begins its own: in the other one, more may have been said since.
    let is_here = known.session == run.place.session;
    let is_being_begun = is_here && known.conversation.is_none();
    let is_elsewhere = !is_here && known.conversation.is_some();
    Ok(Known {
        generation: known.generation,
        is_being_begun,
        was_lost: is_elsewhere || is_being_begun && known.is_another,
        conversation: known.conversation.filter(|_| is_here),
        was_unseen: false,
    })
}

/// Begins a conversation, or finds the one that was begun when its answer was lost.
async fn begin_once(
    client: &ConversationsClient,
    (title, key): (&str, &Header),
    may_be_there: bool,
    retries: u32,
) -> Result<Begun, TurnError> {
    let (mut may_be_there, mut rest) = (may_be_there, REST);
    let mut begun = Begun::default();
    for left in (0..=retries).rev() {
        if may_be_there {
            match client.find(title).await {
                Ok(Found::There(conversation)) => {
                    (begun.conversation, begun.found) = (conversation, true);
                    return Ok(begun);
                }
                Ok(Found::NotThere) => begun.unseen = false,
                Err(error) if is_transient(&error) => return Err(failed(&error)),
                // It will not be told later either.
                Ok(Found::Unseen) | Err(_) => begun.unseen = true,
            }
        }
        match client.create(title, key).await {
            Ok(conversation) => {
                begun.conversation = conversation;
                return Ok(begun);
            }
            Err(error) if left > 0 && is_transient(&error) => {
                tokio::time::sleep(rest).await;
                (may_be_there, rest) = (true, rest.saturating_mul(2));
            }
            Err(error) => return Err(failed(&error)),
        }
    }
    Err(unprepared())
}

fn is_transient(error: &CallError) -> bool {
    match error {
        CallError::Timeout { .. } | CallError::Unreachable(_) | CallError::CutOff => true,
        CallError::Status { status, .. } => match *status {
            StatusCode::NOT_IMPLEMENTED => false,
            status => status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS,
        },
        CallError::Malformed(_) | CallError::TooLarge(_) | CallError::NotFound => false,
    }
}

/// A title that no other conversation has.
fn title(session: SessionId, agent: &Name, generation: u32) -> String {
    format!("Statehold {session} {agent} {generation}")
}

/// What is said: what the agent is told first, the text, and where the files are.
fn message(input: &Words, told: Option<&Told>) -> String {
    let mut said = input.text();
    for file in &input.attachments {
        if let Some(url) = file.url.as_ref().or(file.reference_url.as_ref()) {
            said.push_str("\n\nAttachment: ");
            said.push_str(url);
        }
    }
    match shared::block(told, &said) {
        Some(block) => format!("{block}{said}"),
        None => said,
    }
}

fn read<T: for<'de> Deserialize<'de>>(recorded: &Raw) -> Result<T, TurnError> {
    serde_json::from_str(recorded.get())
        .map_err(|error| TurnError::step_malformed("what the service said", &error))
}
