//! MCP: conversations as resources that clients read and subscribe to, and tools that write. Both eras of the protocol
//! on one endpoint. `docs/mcp.md` has the rules.
//!
//! rmcp speaks the protocol. Callers, rights, bodies and the memory of answers are those of every other surface: a call
//! is authenticated and its body read before rmcp sees it, and each handler calls one use case of the engine.

mod declared;
mod errors;
#[cfg(feature = "conformance")]
mod fixtures;
mod handler;
mod history;
mod legacy;
mod person;
mod resource;
mod schema;
mod subscription;
mod tool;
mod uri;

use std::sync::Arc;

use axum::body::Body;
use axum::extract::{FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::Full;
use rmcp::model::{InitializeRequestParams, RequestId, SubscriptionsListenRequestParams};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use statehold_core::limits::MCP_VALUES_MAX;
use tokio_util::sync::CancellationToken;

use self::handler::Handler;
use self::legacy::CallerSessions;
use self::subscription::Listened;
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};
use crate::http::json::JsonLimits;
use crate::http::problem::Problem;

#[cfg(feature = "conformance")]
pub(crate) use self::fixtures::ListChanges;
pub(crate) use self::legacy::LegacySessions;

/// The path of the endpoint.
pub const PATH: &str = "/mcp";

/// One call of a client: a message, the stream of a legacy session, or its end.
pub(crate) async fn serve(State(app): State<App>, request: Request) -> Response {
    match answer(&app, request).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn answer(app: &App, request: Request) -> Result<Response, Problem> {
    let (mut parts, body) = request.into_parts();
    let context = CallContext::from_request_parts(&mut parts, app).await?;
    if parts.headers.get_all("mcp-protocol-version").iter().count() > 1 {
        return Err(Problem::invalid("`MCP-Protocol-Version` is there twice"));
    }
    let is_stream = parts.method == Method::GET;
    let is_end = parts.method == Method::DELETE;
    let Payload {
        value: message,
        bytes,
    } = if parts.method == Method::POST {
        let request = Request::from_parts(parts.clone(), body);
        let limits = JsonLimits {
            values_max: MCP_VALUES_MAX,
            ..JsonLimits::default()
        };
        Payload::<Message>::read(request, app, limits).await?
    } else {
        Payload::default()
    };
    let message_begins = message.initialize.is_some();
    let listened = Listened::open(&context, &message.subscriptions).await;
    let handler = Handler::new(listened);
    #[cfg(feature = "conformance")]
    let handler = handler.with_fixtures(&context);
    let subscriptions = handler.subscriptions();
    let sessions = CallerSessions::new(&context, message.initialize, subscriptions);
    if message_begins {
        sessions.reserve()?;
    }
    if is_end && !sessions.is_own(&parts.headers) {
        return Err(Problem::not_found());
    }
    let in_flight = sessions.enter(&parts.headers, message.id)?;
    let share = if is_stream {
        Some(app.shares.take_stream(&context.caller)?)
    } else {
        None
    };
    let config = StreamableHttpServerConfig::default()
        // Hosts and origins are checked with the caller, by the rules of the other surfaces.
        .disable_allowed_hosts()
        .with_json_response(true)
        .with_cancellation_token(app.engine.stop_token())
        .with_max_request_body_bytes(app.options.body_bytes_max);
    let config = sessions.stored_in(config);
    let service =
        StreamableHttpService::new(move || Ok(handler.clone()), Arc::new(sessions), config);
    let api_key = context.api_key.clone();
    // A client that goes away takes its reads along: their memory is given back with the connection.
    let left = CancellationToken::new();
    let present = left.clone().drop_guard();
    parts.extensions.insert(ClientLeft(left));
    parts.extensions.insert(context);
    let response = service
        .handle(Request::from_parts(parts, Full::new(bytes)))
        .await;
    let (mut parts, body) = response.into_parts();
    set_headers(&mut parts.headers);
    // A session that its client ends has ended by now; 202 would leave it open.
    if is_end && parts.status == StatusCode::ACCEPTED {
        parts.status = StatusCode::OK;
    }
    let body = Body::new(body);
    if !is_stream {
        let chunks = body.into_data_stream().map(move |chunk| {
            let _until_sent = (&present, &in_flight);
            chunk
        });
        return Ok(Response::from_parts(parts, Body::from_stream(chunks)));
    }
    // The stream of a legacy session ends with the key that opened it.
    let ended = async move { api_key.revoked().await };
    let stream = body.into_data_stream().take_until(Box::pin(ended));
    let stream = stream.map(move |chunk| {
        let _open = &share;
        chunk
    });
    Ok(Response::from_parts(parts, Body::from_stream(stream)))
}

/// Cancelled when the client of a call has gone away, or has its answer.
#[derive(Debug, Clone)]
struct ClientLeft(CancellationToken);

/// Forbids to store an answer on the way: its own members say how long it is fresh.
fn set_headers(headers: &mut HeaderMap) {
    let no_store = HeaderValue::from_static("no-store");
    headers.insert(header::CACHE_CONTROL, no_store);
}

/// The parts of a message that the server needs before rmcp reads it. A part that is not valid is left to rmcp, which
/// answers it.
#[derive(Default, Deserialize)]
#[serde(from = "Envelope")]
struct Message {
    /// The URIs that a client of the newer era wants to hear about.
    subscriptions: Vec<String>,
    /// The beginning of a legacy session.
    initialize: Option<InitializeRequestParams>,
    /// The id of a request.
    id: Option<RequestId>,
}

/// A message whose parts are text: most of a long one are arguments, which only their tool reads.
#[derive(Deserialize)]
struct Envelope {
    id: Option<Box<RawValue>>,
    method: Option<Box<RawValue>>,
    params: Option<Box<RawValue>>,
}

impl From<Envelope> for Message {
    fn from(envelope: Envelope) -> Self {
        let mut message = Self::default();
        let Some(method) = read_part::<String>(envelope.method) else {
            return message;
        };
        message.id = read_part(envelope.id);
        match method.as_str() {
            "initialize" => message.initialize = read_part(envelope.params),
            "subscriptions/listen" => {
                let listen = read_part::<SubscriptionsListenRequestParams>(envelope.params);
                let uris = listen.and_then(|listen| listen.notifications.resource_subscriptions);
                message.subscriptions = uris.unwrap_or_default();
            }
            _ => {}
        }
        message
    }
}

fn read_part<T: DeserializeOwned>(part: Option<Box<RawValue>>) -> Option<T> {
    serde_json::from_str(part?.get()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(text: &str) -> Message {
        serde_json::from_str(text).expect("an object")
    }

    #[test]
    fn a_message_is_read_as_far_as_the_server_needs_it() {
        let begin = message(
            r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18",
            "capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#,
        );
        assert_eq!(begin.id, Some(RequestId::Number(1)));
        assert!(begin.initialize.is_some() && begin.subscriptions.is_empty());
        let listen = message(
            r#"{"id":"a","method":"subscriptions/listen","params":{"_meta":{},"notifications":
            {"resourceSubscriptions":["conversation://a"]}}}"#,
        );
        assert_eq!(listen.subscriptions, ["conversation://a"]);
        assert!(listen.initialize.is_none());
    }

    #[test]
    fn a_message_that_is_not_valid_is_left_to_the_library() {
        for text in [
            "{}",
            r#"{"id":1,"result":{}}"#,
            r#"{"id":{},"method":"initialize","params":7}"#,
            r#"{"id":null,"method":7,"params":{}}"#,
            r#"{"method":"subscriptions/listen","params":{"notifications":[]}}"#,
        ] {
            let message = message(text);
            let is_empty = message.id.is_none() && message.initialize.is_none();
            assert!(is_empty && message.subscriptions.is_empty(), "{text}");
        }
    }
}
