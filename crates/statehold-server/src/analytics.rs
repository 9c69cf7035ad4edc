//! The Conversational Analytics API (v1, v1beta), as Google's clients speak it: `:chat` in four contexts,
//! conversations, data agents and operations.
//!
//! A project and a location are an app, a conversation is a session, and a data agent is a declared agent or one
//! that the caller has saved.

mod agents;
mod chat;
mod context;
mod conversations;
pub(crate) mod errors;
mod message;
mod operations;
mod place;
mod query;

use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Method;
use serde_json::{Map, Value, json};
use statehold_engine::{EngineError, Role};

use self::conversations::ConversationIn;
use self::operations::{Deed, OperationOut};
use self::place::{Place, Target};
use self::query::Query;
use crate::chat::ChatSurface;
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};
use crate::http::problem::{Code, Problem};
use crate::native::plain;

static SURFACE: ChatSurface = ChatSurface {
    new_session: "a `conversationReference` to a conversation of the agent",
    session: "conversationReference",
    agent: "dataAgent",
    has_debug: false,
    shows_stages: false,
    refers: false,
};

/// The routes of this API, below `/v1` and `/v1beta`.
pub(crate) const PATHS: [&str; 2] = ["/v1/projects/{*rest}", "/v1beta/projects/{*rest}"];

/// Serves a call to any path of the API.
pub(crate) async fn serve(State(app): State<App>, request: Request) -> Response {
    let Some(target) = Target::of(request.uri().path()) else {
        return Problem::not_found().into_response();
    };
    let is_chat = target.segments.is_empty() && target.verb.as_deref() == Some("chat");
    if is_chat && request.method() == Method::POST {
        return chat::chat(app, target.place, request).await;
    }
    let answered = Box::pin(answer(app, target, request)).await;
    answered.unwrap_or_else(IntoResponse::into_response)
}

async fn answer(app: App, target: Target, request: Request) -> Result<Response, Problem> {
    let query = Query::of(request.uri())?;
    let (mut parts, body) = request.into_parts();
    let context = CallContext::from_request_parts(&mut parts, &app).await?;
    let method = parts.method.clone();
    let payload = Payload::from_request(Request::from_parts(parts, body), &app).await?;
    let call = ApiCall {
        context,
        place: target.place,
        query,
        sent: payload.value,
        body: payload.bytes,
    };
    let segments: Vec<&str> = target.segments.iter().map(String::as_str).collect();
    let verb = target.verb.as_deref();
    match segments.as_slice() {
        ["conversations", rest @ ..] if verb.is_none() => call.conversation(&method, rest).await,
        ["dataAgents", rest @ ..] => call.data_agent(&method, rest, verb).await,
        ["operations", rest @ ..] => call.operation(&method, rest, verb).await,
        _ => Err(Problem::not_found()),
    }
}

/// A call other than `:chat`.
struct ApiCall {
    context: CallContext,
    place: Place,
    query: Query,
    /// The body. Unknown fields are kept or ignored.
    sent: Map<String, Value>,
    body: Bytes,
}

impl ApiCall {
    async fn conversation(self, method: &Method, rest: &[&str]) -> Result<Response, Problem> {
        let (context, place, query) = (&self.context, &self.place, &self.query);
        match (method, rest) {
            (&Method::POST, []) => {
                let sent = (query, ConversationIn::of(self.sent)?, self.body.as_ref());
                Ok(plain(&conversations::create(context, place, sent).await?))
            }
            (&Method::GET, []) => Ok(plain(&conversations::list(context, place, query).await?)),
            (&Method::GET, [id]) => {
                let found = conversations::find_conversation(context, place, id).await?;
                Ok(plain(&found.to_out(place)))
            }
            (&Method::PATCH, [id]) => {
                let sent = (query, ConversationIn::of(self.sent)?, self.body.as_ref());
                let patched = conversations::patch(context, place, id, sent).await?;
                Ok(plain(&patched))
            }
            (&Method::DELETE, [id]) => {
                conversations::delete(context, place, id).await?;
                Ok(plain(&json!({})))
            }
            (&Method::GET, [id, "messages"]) => {
                let page = conversations::messages(context, place, id, query).await?;
                Ok(plain(&page))
            }
            _ => Err(no_method(rest)),
        }
    }

    async fn data_agent(
        self,
        method: &Method,
        rest: &[&str],
        verb: Option<&str>,
    ) -> Result<Response, Problem> {
        let (context, place, query) = (&self.context, &self.place, &self.query);
        let sent = (query, self.sent, self.body.as_ref());
        match (method, rest, verb) {
            (&Method::POST, [], None | Some("createSync")) => {
                let id = agents::create(context, place, sent).await?;
                done(context, place, (Deed::Create, id.as_str()), verb.is_some()).await
            }
            (&Method::GET, [], None | Some("listAccessible")) => {
                Ok(plain(&agents::list(context, place, query).await?))
            }
            (&Method::GET, [id], None) => Ok(plain(&agents::read(context, place, id).await?)),
            (&Method::PATCH, [id], None | Some("updateSync")) => {
                agents::patch(context, place, id, sent).await?;
                done(context, place, (Deed::Update, *id), verb.is_some()).await
            }
            (&Method::DELETE, [id], None | Some("deleteSync")) => {
                agents::delete(context, place, id, query).await?;
                if verb.is_some() {
                    return Ok(plain(&json!({})));
                }
                let deed = (Deed::Delete, *id);
                Ok(plain(&OperationOut::of(context, place, deed, None)))
            }
            _ => Err(no_method(rest)),
        }
    }

    async fn operation(
        self,
        method: &Method,
        rest: &[&str],
        verb: Option<&str>,
    ) -> Result<Response, Problem> {
        let (context, place) = (&self.context, &self.place);
        match (method, rest, verb) {
            // Finished operations are not kept.
            (&Method::GET, [], None) => Ok(plain(&json!({"operations": []}))),
            (&Method::GET, [id], None) => Ok(plain(&operations::read(context, place, id).await?)),
            // There is nothing left to cancel or to forget.
            (&Method::POST, [id], Some("cancel")) | (&Method::DELETE, [id], None) => {
                operations::read(context, place, id).await?;
                Ok(plain(&json!({})))
            }
            _ => Err(no_method(rest)),
        }
    }
}

/// Fails for callers who change nothing, before their call is validated.
fn require_client(context: &CallContext) -> Result<(), Problem> {
    let caller = &context.caller;
    if caller.has(Role::Client) || caller.has(Role::Admin) {
        return Ok(());
    }
    let needs = vec![Role::Client, Role::Admin];
    Err(EngineError::Forbidden { needs }.into())
}

/// The answer to a change of a data agent: the agent itself, or a finished operation.
async fn done(
    context: &CallContext,
    place: &Place,
    deed: (Deed, &str),
    is_sync: bool,
) -> Result<Response, Problem> {
    let agent = agents::read(context, place, deed.1).await?;
    if is_sync {
        return Ok(plain(&agent));
    }
    Ok(plain(&OperationOut::of(context, place, deed, Some(agent))))
}

/// The problem for a method that a resource does not have.
fn no_method(rest: &[&str]) -> Problem {
    if rest.len() > 1 {
        return Problem::not_found();
    }
    Problem::new(
        Code::MethodNotAllowed,
        "this resource does not take this method; see docs/analytics.md",
    )
}
