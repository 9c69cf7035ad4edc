//! The surface of DIAL: every agent is a deployment that DIAL Core, DIAL Chat and the clients of
//! both can call. An answer shows the stages of its turn, and carries its state as a sealed
//! reference that the client sends back.

mod answer;
mod chunk;
pub(crate) mod deployments;
pub(crate) mod errors;
mod stages;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::response::Response;
use http::HeaderMap;
use serde::Serialize;
use statehold_agents::spec::DIAL_AUDIENCE;
use statehold_core::name::Name;
use statehold_engine::api::json::{Raw, raw_bytes, to_body};
use statehold_engine::{CallCredential, Credential};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, SchemaType, Type};
use utoipa::{PartialSchema, ToSchema};

use self::answer::AnswerWriter;
use self::chunk::CompletionOut;
use self::errors::as_dial_error;
use crate::chat::{ChatSurface, CompletionsCall, CompletionsIn, TurnContext, trusts_callers};
use crate::http::call::{App, is_own_key, text};
use crate::http::dial_caller::UserToken;
use crate::http::problem::{Code, Problem};

static SURFACE: ChatSurface = ChatSurface {
    new_session: "the header `x-statehold-session: new`",
    session: "x-statehold-session",
    agent: "deployment",
    has_debug: false,
    shows_stages: true,
    refers: true,
};

/// The header that names the deployment of a call whose path names none.
const DEPLOYMENT: &str = "x-dial-deployment-id";
/// The longest id of a conversation that is passed on, in bytes.
const CONVERSATION_BYTES_MAX: usize = 1_024;
/// The fields of a call that the server reads itself. All others are passed on to agents that trust
/// their callers.
const READ_HERE: [&str; 9] = [
    "conversation",
    "messages",
    "model",
    "n",
    "safety_identifier",
    "statehold",
    "stream",
    "stream_options",
    "user",
];

/// Whether a call is one of this surface: its path or a header names a deployment.
pub(crate) fn is_dial(request: &Request) -> bool {
    let path = request.uri().path();
    path == "/openai/deployments"
        || path.starts_with("/openai/deployments/")
        || path.starts_with("/openai/v1/") && request.headers().contains_key(DEPLOYMENT)
}

/// The body of a call, for the document of the API only: it is read as that of any call to chat
/// completions.
pub(crate) enum DialRequest {}

impl PartialSchema for DialRequest {
    fn schema() -> RefOr<Schema> {
        let mut schema = CompletionsIn::schema();
        if let RefOr::T(Schema::Object(body)) = &mut schema {
            body.description = Some(
                "A chat call of a client of DIAL. Other fields are ignored, or go on to an agent that trusts its callers."
                    .to_owned(),
            );
            body.required.retain(|name| name != "model");
            let model = ObjectBuilder::new()
                .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
                .description(Some("Ignored: the path names the agent."));
            body.properties.insert("model".to_owned(), model.into());
            let custom = ObjectBuilder::new()
                .schema_type(SchemaType::from_iter([Type::Object, Type::Null]))
                .description(Some("For an agent that trusts its callers."));
            body.properties
                .insert("custom_fields".to_owned(), custom.into());
        }
        schema
    }
}

impl ToSchema for DialRequest {
    fn name() -> Cow<'static, str> {
        Cow::Borrowed("DialChatRequest")
    }

    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        CompletionsIn::schemas(schemas);
    }
}

/// Say something to a deployment.
///
/// The last message is the input. The session is the one that the newest reference of an answer
/// names, or the one in which the messages were said. Each answer has such a reference in
/// `custom_content.state`.
#[utoipa::path(
    post, path = "/openai/deployments/{deployment}/chat/completions", tag = "dial",
    operation_id = "createDialChatCompletion", request_body = DialRequest,
    responses((status = 200, content(
        (CompletionOut = "application/json"),
        (String = "text/event-stream"),
    ), description = "One completion, or a stream of its chunks."), (status = 429))
)]
pub(crate) async fn chat(State(app): State<App>, request: Request) -> Response {
    let mut known = TurnContext::default();
    let answered = answer(app, request, &mut known).await;
    answered.unwrap_or_else(|problem| known.refuse(problem, &SURFACE, as_dial_error))
}

async fn answer(app: App, request: Request, known: &mut TurnContext) -> Result<Response, Problem> {
    let token = request.extensions().get::<UserToken>().cloned();
    let (mut call, headers) = CompletionsCall::read(&app, request, &SURFACE).await?;
    let deployment = deployment(&call, &headers)?;
    let agent: Option<Name> = deployment.parse().ok();
    let book = app.options.agents.get();
    if let Some(agent) = agent {
        call.takes_states = trusts_callers(&book, &agent);
    }
    call.call.own_key = key_of_request(&headers, token)?;
    call.dial = Some(dial_input(&call, &headers)?);
    let base = app.options.console.then(|| call.call.base.clone());
    let format = |head: &_| AnswerWriter::new(head, base.as_deref());
    call.serve(app, &deployment, known, format).await
}

/// The key that DIAL Core made for this request, with the token of its user. Applications of DIAL
/// are called with both while this call is open; services of other kinds, and workers, get neither.
fn key_of_request(
    headers: &HeaderMap,
    token: Option<UserToken>,
) -> Result<Option<Arc<CallCredential>>, Problem> {
    let key = text(headers, "api-key")?;
    let foreign = key.filter(|key| !is_own_key(key));
    let key = foreign.and_then(|key| Credential::new(key.to_owned()));
    let token = token.map(|UserToken(token)| token);
    Ok(key.map(|key| CallCredential::new(DIAL_AUDIENCE, key, token)))
}

/// The name of the deployment: that of the path, or of the header of the dispatcher.
/// `X-DIAL-OVERRIDE-NAME` counts for nothing: Core asks whether its caller may use the deployment
/// of the path, and the caller can send any header.
fn deployment(call: &CompletionsCall, headers: &HeaderMap) -> Result<String, Problem> {
    let in_path = Some(call.call.asked.path_text("deployment")).filter(|name| !name.is_empty());
    let named = match in_path {
        Some(name) => Some(name),
        None => text(headers, DEPLOYMENT)?,
    };
    let missing = || Problem::new(Code::BadHeader, "`X-DIAL-DEPLOYMENT-ID` is empty");
    let named = named.filter(|name| !name.is_empty()).ok_or_else(missing)?;
    Ok(named.to_owned())
}

/// The parts of a call that go on to agents, in the `dial` of the data of the input.
#[derive(Serialize)]
struct DialInput<'a> {
    /// The id that DIAL Chat gives the conversation. It is no identity: agents get it as it came.
    #[serde(skip_serializing_if = "Option::is_none")]
    conversation_id: Option<&'a str>,
    /// The fields of the call that the server does not read, for an agent that trusts its callers.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    parameters: BTreeMap<String, Raw>,
    /// What the client got from a coordinator without a state server: `taken`, `untrusted` or
    /// `malformed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    legacy_state: Option<&'static str>,
    /// The conversation with a service in it, for an agent that trusts its callers.
    #[serde(skip_serializing_if = "Option::is_none")]
    ums_conversation_id: Option<String>,
}

fn dial_input(call: &CompletionsCall, headers: &HeaderMap) -> Result<Raw, Problem> {
    let conversation_id = text(headers, "x-conversation-id")?;
    let is_plain = |id: &str| {
        id.len() <= CONVERSATION_BYTES_MAX && id.bytes().all(|byte| byte.is_ascii_graphic())
    };
    if conversation_id.is_some_and(|id| !is_plain(id)) {
        let detail = format!(
            "`X-CONVERSATION-ID` is at most {CONVERSATION_BYTES_MAX} visible ASCII characters; leave it out"
        );
        return Err(Problem::new(Code::BadHeader, detail));
    }
    let is_trusted = call.takes_states;
    let mut parameters: BTreeMap<String, Raw> = BTreeMap::new();
    if is_trusted {
        parameters = serde_json::from_slice(&call.call.body).unwrap_or_default();
        let is_read_here = |name: &str| READ_HERE.contains(&name);
        parameters.retain(|name, value| !is_read_here(name) && value.get() != "null");
    }
    let legacy = call.chat.legacy();
    let legacy_state = legacy.as_ref().map(|legacy| {
        if legacy.has_malformed {
            "malformed"
        } else if is_trusted {
            "taken"
        } else {
            "untrusted"
        }
    });
    let conversation = legacy.and_then(|legacy| legacy.conversation);
    Ok(raw_bytes(&to_body(&DialInput {
        conversation_id,
        parameters,
        legacy_state,
        ums_conversation_id: conversation.filter(|_| is_trusted),
    })))
}
