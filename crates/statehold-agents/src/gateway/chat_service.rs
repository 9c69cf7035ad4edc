//! The dialects of chat completions: OpenAI's, and DIAL's, which knows stages and refuses unknown members.

use std::sync::Arc;

use http::StatusCode;
use http::header::{self, HeaderName, HeaderValue};
use serde_json::{Map, Value, json};
use statehold_engine::CallCredential;
use statehold_engine::bodies::Raw;

use super::pause::{DecisionDelivery, decision_words};
use super::{dial_form, exchange, turn_failure};
use crate::chat::{ChatEndpoint, ChatReply, ChatTarget, CompletionRequest};
use crate::http::EndpointError;
use crate::message::AgentMessage;
use crate::runner::AgentRun;
use crate::spec::{ChatMemory, DIAL_AUDIENCE, DialSpec, OpenaiSpec, SecretHeader};
use crate::turn::TurnError;

const API_KEY: HeaderName = HeaderName::from_static("api-key");
/// The words of a hold for a key.
const KEY_TITLE: &str = "The key of the call is needed again";
const KEY_MESSAGE: &str =
    "The agent is called with the key of a call, and the call that brought one has ended.";
const CONVERSATION: HeaderName = HeaderName::from_static("x-conversation-id");

/// The service of a chat agent.
pub(crate) enum ChatService {
    /// It speaks chat completions.
    Openai(Arc<OpenaiSpec>),
    /// It is an application of DIAL, or DIAL Core in front of some.
    Dial(Arc<DialSpec>),
}

impl ChatService {
    /// Which side stores the history.
    pub(super) fn memory(&self) -> ChatMemory {
        match self {
            Self::Openai(spec) => spec.memory,
            Self::Dial(_) => ChatMemory::Restore,
        }
    }

    /// Whether its answers have stages that are mirrored.
    pub(super) fn has_stages(&self) -> bool {
        matches!(self, Self::Dial(_))
    }

    /// Whether `x-statehold-session` of a call that the agent does not remember has our session. An application of DIAL
    /// may be another Statehold, also behind Core, which passes headers on: it would look for our session among its own.
    pub(super) fn sends_local_session_id(&self) -> bool {
        matches!(self, Self::Openai(_))
    }

    /// Whether it gets the files of its own answers back. Clients of DIAL do not send them.
    pub(super) fn takes_own_files(&self) -> bool {
        matches!(self, Self::Openai(_))
    }

    /// The key that the caller brought for this service, if the agent has none of its own. If the turn began with
    /// such a key, and it is gone, the turn waits for another one.
    async fn callers_key(&self, run: &AgentRun) -> Result<Option<Arc<CallCredential>>, TurnError> {
        let Self::Dial(spec) = self else {
            return Ok(None);
        };
        if has_own_key(spec) || run.credential.is_some() {
            return Ok(None);
        }
        let lent = run.request.lent_credential(DIAL_AUDIENCE).await?;
        if lent.is_some() {
            return Ok(lent);
        }
        let words = (KEY_TITLE, KEY_MESSAGE);
        match run.await_credential(DIAL_AUDIENCE, words).await? {
            Some(paused) => Err(paused),
            None => Ok(None),
        }
    }

    /// The address and the headers of a call.
    pub(super) async fn endpoint(&self, run: &AgentRun) -> Result<ChatEndpoint, TurnError> {
        let callers_key = self.callers_key(run).await?;
        let (base_url, target, credential, headers) = match self {
            Self::Openai(spec) => (
                &spec.base_url,
                ChatTarget::Model(spec.model.clone()),
                run.credential.clone().or(spec.credential.clone()),
                spec.headers.clone(),
            ),
            Self::Dial(spec) => (
                &spec.base_url,
                ChatTarget::Deployment(spec.deployment.clone()),
                None,
                dial_headers(spec, run, callers_key.as_deref())?,
            ),
        };
        Ok(ChatEndpoint {
            base_url: base_url.clone(),
            target,
            credential,
            headers,
            timeout: run.spec.timeout,
            retries: run.spec.retries,
        })
    }

    /// The conversation that a caller of DIAL named.
    pub(super) fn conversation_header(
        &self,
        input: &AgentMessage,
    ) -> Option<(HeaderName, HeaderValue)> {
        let conversation = match self {
            Self::Openai(_) => None,
            Self::Dial(_) => input.dial_conversation(),
        };
        let value = HeaderValue::from_str(&conversation?).ok()?;
        Some((CONVERSATION, value))
    }

    /// The fields of a call of DIAL that its surface does not read, of a caller whom the agent trusts.
    pub(super) fn parameters(&self, input: &AgentMessage) -> Map<String, Value> {
        match self {
            Self::Openai(_) => Map::new(),
            Self::Dial(_) => input.dial_parameters(),
        }
    }

    /// Gives a call the form of the service, with the fields of a trusted caller.
    pub(super) fn adapt(&self, call: &mut CompletionRequest, trusted: Map<String, Value>) {
        if let Self::Dial(_) = self {
            let messages = std::mem::take(&mut call.messages).into_iter();
            call.messages = messages.map(dial_form::message).collect();
            call.extra = dial_form::parameters(std::mem::take(&mut call.extra));
            call.extra.extend(dial_form::trusted_fields(trusted));
        }
    }

    /// Gives a reply the form that is recorded.
    pub(super) fn adapt_reply(&self, mut reply: ChatReply) -> ChatReply {
        if let Self::Dial(_) = self {
            reply.attachments = dial_form::merged_attachments(&reply.attachments);
            // Agents made with its SDK can say nothing beside their state.
            let paused = reply.state.as_deref().and_then(dial_form::pause_in);
            reply.statehold = reply.statehold.or(paused);
        }
        reply
    }

    /// The message that tells an agent without memory of our session what was decided. In the dialect of DIAL, it is
    /// the only place for it.
    pub(super) fn decided_message(&self, decisions: &[DecisionDelivery]) -> Raw {
        let words = decision_words(decisions);
        match self {
            Self::Openai(_) => exchange::user_message(&AgentMessage::plain(&words), None),
            Self::Dial(_) => {
                let state = json!({ "statehold": { "decisions": decisions } });
                exchange::user_message_with(&words, &state)
            }
        }
    }

    /// The error of a call that sent our session id.
    pub(super) fn unknown_or_failed(&self, error: &EndpointError) -> TurnError {
        let not_found = StatusCode::NOT_FOUND;
        if !matches!(error, EndpointError::Status { status, .. } if *status == not_found) {
            return turn_failure(error);
        }
        let advice = match self {
            // An agent that stores sessions itself, such as another Statehold, does not know that id and answers
            // 404, like one that does not know the model.
            Self::Openai(_) => {
                "declare the agent with memory = \"track\" if it keeps sessions itself, as another Statehold \
                 does; if not, check `base_url` and `model`"
            }
            Self::Dial(_) => "check `base_url` and `deployment`",
        };
        error.turn_failure(format!("{error}; {advice}"))
    }
}

/// Whether an agent has a key of its own.
fn has_own_key(spec: &DialSpec) -> bool {
    spec.credential.is_some() || spec.headers.iter().any(|header| header.name == API_KEY)
}

/// The headers of every call to DIAL. The key that the caller sent with this call goes on to the agents below it if
/// the agent has no key of its own, and with it the token of the user.
fn dial_headers(
    spec: &DialSpec,
    run: &AgentRun,
    callers_key: Option<&CallCredential>,
) -> Result<Vec<SecretHeader>, TurnError> {
    let mut headers = spec.headers.clone();
    let lent = callers_key.map(|lent| &lent.secret);
    let brought = run.credential.as_ref().or(lent);
    let brought = brought.filter(|_| !has_own_key(spec));
    if let Some(key) = spec.credential.as_ref().or(brought) {
        headers.retain(|header| header.name != API_KEY);
        headers.extend(SecretHeader::new(API_KEY, key.clone()));
    } else if !has_own_key(spec) {
        let message = "the agent needs a key, and the call brought none: call it through DIAL, or set \
                       `credential_env` of the agent";
        return Err(TurnError::failed("agent_key_missing", message));
    }
    let token = callers_key.and_then(|lent| lent.companion.clone());
    if let Some(token) = token {
        headers.retain(|header| header.name != header::AUTHORIZATION);
        headers.extend(SecretHeader::new(header::AUTHORIZATION, token));
    }
    Ok(headers)
}
