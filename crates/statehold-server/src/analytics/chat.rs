//! `:chat`: a turn in one of four contexts, answered as a JSON array that is flushed element by element.

use axum::extract::Request;
use axum::response::Response;
use http::{HeaderMap, HeaderValue, header};
use serde::Deserialize;
use serde_json::{Map, Value};
use statehold_agents::spec::AgentBook;
use statehold_core::name::Name;
use statehold_core::time::Timestamp;
use statehold_engine::api::json::{Raw, to_body};
use statehold_engine::api::turn::{UserMessage, pause_text};
use statehold_engine::{Credential, HoldDetail};

use super::SURFACE;
use super::agents::{DataAgent, find_agent};
use super::context::inline_context;
use super::conversations::find_conversation;
use super::errors::as_google_error;
use super::message::{MessageIn, MessageKind, MessageOut, TextType};
use super::place::Place;
use crate::chat::{
    CallerData, ChatCall, ChatTurn, ClientManagedIds, Ending, InlineContext, Preface, TurnContext,
    TurnFormat, TurnHead,
};
use crate::http::call::App;
use crate::http::problem::{Code, Problem};

/// A chat call. Other fields are ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AnalyticsChatIn {
    #[serde(default)]
    messages: Vec<MessageIn>,
    conversation_reference: Option<ConversationReference>,
    data_agent_context: Option<DataAgentContext>,
    inline_context: Option<Map<String, Value>>,
    client_managed_resource_context: Option<ClientManagedContext>,
    credentials: Option<CredentialsIn>,
    thinking_mode: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ConversationReference {
    #[serde(default)]
    conversation: String,
    data_agent_context: Option<DataAgentContext>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DataAgentContext {
    #[serde(default)]
    data_agent: String,
    context_version: Option<Value>,
    credentials: Option<CredentialsIn>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientManagedContext {
    inline_context: Option<Map<String, Value>>,
    conversation_id: Option<String>,
    agent_id: Option<String>,
}

/// A credential for the agent. Only tokens are taken: an application keeps its secret to itself.
#[derive(Debug, Deserialize)]
struct CredentialsIn {
    oauth: Option<OauthIn>,
}

#[derive(Debug, Deserialize)]
struct OauthIn {
    token: Option<TokenIn>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct TokenIn {
    access_token: Option<String>,
}

/// The context of a call.
enum AnalyticsContext {
    Conversation(ConversationReference),
    Agent(DataAgentContext),
    Inline(Map<String, Value>, Option<ClientManagedIds>),
}

/// Serves a chat call.
pub(super) async fn chat(app: App, place: Place, request: Request) -> Response {
    let mut known = TurnContext::default();
    let answered = match ChatCall::read::<AnalyticsChatIn>(&app, request, &SURFACE).await {
        Ok((call, chat, _)) => serve(app, place, call, chat, &mut known).await,
        Err(problem) => Err(problem),
    };
    answered.unwrap_or_else(|problem| known.refuse(problem, &SURFACE, as_google_error))
}

async fn serve(
    app: App,
    place: Place,
    mut call: ChatCall,
    mut chat: AnalyticsChatIn,
    known: &mut TurnContext,
) -> Result<Response, Problem> {
    call.require_client()?;
    let context = chat.take_context()?;
    call.awaits_first = true;
    call.set_credential(chat.credential(&context)?);
    let shows_progress = is_word(chat.thinking_mode.as_ref(), "THINKING", 2);
    let share = app.shares.take_stream(&call.asked.caller)?;
    let turn = Box::pin(open(&app, &place, &call, context, chat.messages)).await?;
    let base = call.base.clone();
    let format = |head: &TurnHead| ArrayWriter {
        at: head.started_at,
        base,
        shows_progress,
        has_elements: false,
    };
    Box::pin(call.stream(app, turn, share, known, format)).await
}

/// Finds or starts the turn.
async fn open(
    app: &App,
    place: &Place,
    call: &ChatCall,
    context: AnalyticsContext,
    mut messages: Vec<MessageIn>,
) -> Result<ChatTurn, Problem> {
    let last = messages.pop().and_then(|last| last.user_message);
    let Some(last) = last else {
        let detail = "`messages` ends with a `userMessage`: the new message of the user";
        return Err(Problem::invalid(detail).with("path", "messages"));
    };
    let message = UserMessage {
        text: last.text,
        ..UserMessage::default()
    };
    let history: Vec<Raw> = messages.iter().filter_map(MessageIn::to_history).collect();
    match context {
        AnalyticsContext::Conversation(reference) => {
            open_in_conversation(app, place, call, &reference, message).await
        }
        AnalyticsContext::Agent(agent) => {
            let id = place.id_in(&agent.data_agent, "dataAgents")?;
            match find_agent(&call.asked, place, id).await? {
                DataAgent::Declared(name) => {
                    let data = CallerData {
                        history,
                        ..CallerData::default()
                    };
                    let data = Some(data.stateless()?);
                    let message = |_: &AgentBook| Ok(UserMessage { data, ..message });
                    call.open_stateless(app, &name, message).await
                }
                DataAgent::Saved(saved) => {
                    let context = saved.context(agent.context_version.as_ref())?;
                    let inline = inline_context(app, context);
                    open_inline(app, call, (&inline, None), history, message).await
                }
            }
        }
        AnalyticsContext::Inline(context, ids) => {
            let inline = inline_context(app, &context);
            open_inline(app, call, (&inline, ids.as_ref()), history, message).await
        }
    }
}

async fn open_inline(
    app: &App,
    call: &ChatCall,
    (inline, ids): (&InlineContext, Option<&ClientManagedIds>),
    history: Vec<Raw>,
    message: UserMessage,
) -> Result<ChatTurn, Problem> {
    let agent = inline.answerer(app)?;
    let data = CallerData {
        history,
        inline: Some(inline),
        ids,
    };
    let data = Some(data.stateless()?);
    let message = |book: &AgentBook| {
        inline.require_possible(book, &agent)?;
        Ok(UserMessage { data, ..message })
    };
    call.open_stateless(app, &agent, message).await
}

/// Opens the turn of a message in a conversation. The server has the messages before it.
async fn open_in_conversation(
    app: &App,
    place: &Place,
    call: &ChatCall,
    reference: &ConversationReference,
    mut message: UserMessage,
) -> Result<ChatTurn, Problem> {
    let id = place.id_in(&reference.conversation, "conversations")?;
    let conversation = find_conversation(&call.asked, place, id).await?;
    let own = conversation.agent_id();
    let nested = reference.data_agent_context.as_ref();
    let nested = nested.filter(|nested| !nested.data_agent.is_empty());
    if let Some(nested) = nested
        && place.id_in(&nested.data_agent, "dataAgents")? != own
    {
        let detail = format!(
            "the conversation is one with `{}`; name that data agent",
            place.name("dataAgents", &own)
        );
        let path = "conversationReference.dataAgentContext.dataAgent";
        return Err(Problem::invalid(detail).with("path", path));
    }
    let agent: Name = conversation.view.agent.clone();
    if let DataAgent::Saved(saved) = find_agent(&call.asked, place, &own).await? {
        let version = nested.and_then(|nested| nested.context_version.as_ref());
        let inline = inline_context(app, saved.context(version)?);
        let data = CallerData {
            inline: Some(&inline),
            ..CallerData::default()
        };
        message.data = Some(data.in_session()?);
    }
    let session = conversation.view.id;
    call.open_in_session(app, session, (&agent, message), Vec::new())
        .await
}

impl AnalyticsChatIn {
    /// The only context of the call.
    fn take_context(&mut self) -> Result<AnalyticsContext, Problem> {
        let given = [
            (
                "conversationReference",
                self.conversation_reference.is_some(),
            ),
            ("dataAgentContext", self.data_agent_context.is_some()),
            ("inlineContext", self.inline_context.is_some()),
            (
                "clientManagedResourceContext",
                self.client_managed_resource_context.is_some(),
            ),
        ];
        let mut given = given.iter().filter(|(_, is_given)| *is_given);
        if let (Some(_), Some((second, _))) = (given.next(), given.next()) {
            let detail = format!(
                "Invalid value (oneof), oneof field 'context_provider' is already set. Cannot set '{second}'"
            );
            return Err(Problem::new(Code::OneContext, detail));
        }
        if let Some(reference) = self.conversation_reference.take() {
            return Ok(AnalyticsContext::Conversation(reference));
        }
        if let Some(agent) = self.data_agent_context.take() {
            return Ok(AnalyticsContext::Agent(agent));
        }
        if let Some(inline) = self.inline_context.take() {
            return Ok(AnalyticsContext::Inline(inline, None));
        }
        if let Some(managed) = self.client_managed_resource_context.take() {
            let ids = ClientManagedIds {
                conversation_id: managed.conversation_id,
                agent_id: managed.agent_id,
            };
            let inline = managed.inline_context.unwrap_or_default();
            return Ok(AnalyticsContext::Inline(inline, Some(ids)));
        }
        let detail = "one of 'conversationReference', 'dataAgentContext', 'inlineContext' and \
                      'clientManagedResourceContext' must be set";
        Err(Problem::new(Code::OneContext, detail))
    }

    /// The credential for the agent, if the call brings one.
    fn credential(&self, context: &AnalyticsContext) -> Result<Option<Credential>, Problem> {
        let nested = match context {
            AnalyticsContext::Agent(agent) => agent.credentials.as_ref(),
            AnalyticsContext::Conversation(_) | AnalyticsContext::Inline(..) => None,
        };
        let oauth = self.credentials.as_ref().or(nested);
        let token = oauth.and_then(|given| given.oauth.as_ref()?.token.as_ref());
        let Some(token) = token.and_then(|token| token.access_token.clone()) else {
            return Ok(None);
        };
        let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
        let credential = Credential::new(token).filter(|_| is_plain);
        credential.map(Some).ok_or_else(|| {
            let detail =
                "`credentials.oauth.token.accessToken` is 1 to 8192 visible ASCII characters";
            Problem::invalid(detail)
        })
    }
}

/// Whether an enumeration has a value, by its word or its number.
pub(super) fn is_word(value: Option<&Value>, word: &str, number: u64) -> bool {
    value.is_some_and(|value| value.as_str() == Some(word) || value.as_u64() == Some(number))
}

/// Writes one answer. Line readers know the form: `[{` first, `,` between elements, `}]` last.
struct ArrayWriter {
    at: Timestamp,
    /// The address of the server, as the call names it.
    base: String,
    shows_progress: bool,
    has_elements: bool,
}

impl ArrayWriter {
    fn element(&mut self, kind: MessageKind) -> Vec<u8> {
        let message = MessageOut {
            timestamp: self.at.into(),
            message_id: None,
            kind,
        };
        let json = to_body(&message);
        let inner = json.get(1..json.len().saturating_sub(1));
        let begin: &[u8] = if self.has_elements {
            b"\n,\n{\n"
        } else {
            b"[{\n"
        };
        self.has_elements = true;
        [begin, inner.unwrap_or_default(), b"\n}"].concat()
    }

    fn close(&self) -> &'static [u8] {
        if self.has_elements { b"]" } else { b"[]" }
    }
}

impl TurnFormat for ArrayWriter {
    fn set_headers(&self, headers: &mut HeaderMap) {
        let json = HeaderValue::from_static("application/json");
        headers.insert(header::CONTENT_TYPE, json);
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    }

    fn begin(&mut self, preface: &Preface) -> Vec<u8> {
        let earlier = preface.earlier.iter();
        let mut texts: Vec<String> = earlier.map(|answer| answer.content.clone()).collect();
        texts.extend(preface.reminder.clone());
        let elements = texts.into_iter();
        let elements = elements.map(|text| MessageKind::text(text, TextType::FinalResponse));
        elements.flat_map(|kind| self.element(kind)).collect()
    }

    fn text(&mut self, text: &str) -> Vec<u8> {
        if !self.shows_progress {
            return Vec::new();
        }
        self.element(MessageKind::text(text.to_owned(), TextType::Progress))
    }

    fn pause(&mut self, _via: Vec<String>, holds: &[HoldDetail]) -> Vec<u8> {
        let words = pause_text(holds, &self.base);
        self.element(MessageKind::text(words, TextType::Progress))
    }

    fn end(&mut self, _rest: &str, ending: &Ending) -> Vec<u8> {
        let text = ending.answer.text.clone();
        let mut bytes = self.element(MessageKind::text(text, TextType::FinalResponse));
        bytes.extend_from_slice(self.close());
        bytes
    }

    fn error(&mut self, problem: &Problem) -> Vec<u8> {
        let mut bytes = self.element(MessageKind::error(problem.detail.clone()));
        bytes.extend_from_slice(self.close());
        bytes
    }

    fn keep_alive(&self) -> &'static [u8] {
        // Readers take no byte before the bracket.
        if self.has_elements { b"\n" } else { b"" }
    }
}
