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
use axum::extract::{FromRequest, FromRequestParts, Request, State};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::StreamExt;
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use http_body_util::Full;
use rmcp::model::{ClientJsonRpcMessage, ClientRequest, InitializeRequestParams, RequestId};
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::de::IgnoredAny;
use tokio_util::sync::CancellationToken;

use self::handler::Handler;
use self::legacy::CallerSessions;
use self::subscription::Listened;
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};
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
    let bytes = if parts.method == Method::POST {
        let request = Request::from_parts(parts.clone(), body);
        let body = Payload::<IgnoredAny>::from_request(request, app).await?;
        body.bytes
    } else {
        Bytes::new()
    };
    let message = Message::of(&bytes);
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

/// The parts of a message that the server needs before rmcp reads it.
#[derive(Default)]
struct Message {
    /// The URIs that a client of the newer era wants to hear about.
    subscriptions: Vec<String>,
    /// The beginning of a legacy session.
    initialize: Option<InitializeRequestParams>,
    /// The id of a request.
    id: Option<RequestId>,
}

impl Message {
    /// A message that is not valid is left to rmcp, which answers it.
    fn of(bytes: &[u8]) -> Self {
        let mut message = Self::default();
        let Ok(ClientJsonRpcMessage::Request(request)) = serde_json::from_slice(bytes) else {
            return message;
        };
        message.id = Some(request.id);
        match request.request {
            ClientRequest::InitializeRequest(initialize) => {
                message.initialize = Some(initialize.params);
            }
            ClientRequest::SubscriptionsListenRequest(listen) => {
                let uris = listen.params.notifications.resource_subscriptions;
                message.subscriptions = uris.unwrap_or_default();
            }
            _ => {}
        }
        message
    }
}
