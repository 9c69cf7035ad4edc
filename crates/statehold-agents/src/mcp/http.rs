//! HTTP transport to tool servers. Unlike the library's own client, it limits the response size and
//! distinguishes a request that was never sent from one that was lost.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderName, HeaderValue, StatusCode};
use rmcp::model::{
    ClientJsonRpcMessage, ClientNotification, ClientRequest, ErrorData, RequestId,
    ServerJsonRpcMessage,
};
use rmcp::transport::streamable_http_client::{
    SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
};
use rmcp_sse_stream::Sse;
use tokio::time::Instant;

use super::error::TOO_LARGE;
use super::listing::mark_task_tools;
use super::question::tag_question;
use crate::outbound;
use crate::sse::{self, EventError};

/// Most bytes read of one response, including earlier events on the same stream.
pub(super) const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// Most bytes read of an error body.
const PROBLEM_BYTES_MAX: usize = 64 * 1024;
const CONNECT_MAX: Duration = Duration::from_secs(5);
const JSON: &str = "application/json";
const EVENTS: &str = "text/event-stream";
const BOTH: &str = "application/json, text/event-stream";

/// Why a message was not accepted.
#[derive(Debug, thiserror::Error)]
pub(super) enum PostError {
    /// It was not sent.
    #[error("no connection: {0}")]
    NotSent(#[source] reqwest::Error),
    /// It was sent, and its outcome is unknown.
    #[error("the connection was lost: {0}")]
    Lost(#[source] reqwest::Error),
    /// It opens a connection, and the deadline passed.
    #[error("no answer in time")]
    Slow,
    /// The server answered with a bare error status.
    #[error("the answer was {0}")]
    Status(StatusCode),
}

impl PostError {
    fn of(error: reqwest::Error) -> Self {
        let error = error.without_url();
        if error.is_connect() || error.is_builder() {
            Self::NotSent(error)
        } else {
            Self::Lost(error)
        }
    }
}

type McpHttpError = StreamableHttpError<PostError>;

/// HTTP client of all tool servers.
#[derive(Debug, Clone)]
pub(super) struct McpHttpClient {
    client: reqwest::Client,
    /// Timeout for messages that open a connection. The library has none, and would wait even after its
    /// caller has given up.
    opening_max: Duration,
}

impl McpHttpClient {
    /// None if the client cannot be built; the error is logged.
    pub(super) fn new() -> Option<Self> {
        let client = outbound::client_builder()
            .map_err(|error| error.to_string())
            .and_then(|builder| {
                builder
                    .connect_timeout(CONNECT_MAX)
                    // No idle connections: if the server closes one at the moment of sending, the call
                    // looks lost and may have run.
                    .pool_max_idle_per_host(0)
                    .build()
                    .map_err(|error| error.to_string())
            });
        match client {
            Ok(client) => Some(Self {
                client,
                opening_max: CONNECT_MAX,
            }),
            Err(error) => {
                tracing::error!(error, "tool servers cannot be called over HTTP");
                None
            }
        }
    }

    /// The same client with another opening timeout.
    pub(super) fn opening_within(self, opening_max: Duration) -> Self {
        Self {
            opening_max,
            ..self
        }
    }

    async fn post(
        &self,
        uri: &str,
        message: &ClientJsonRpcMessage,
        session: Option<&str>,
        credential: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<reqwest::Response, McpHttpError> {
        let mut request = self
            .client
            .post(uri)
            .header(ACCEPT, BOTH)
            .header(CONTENT_TYPE, JSON)
            .body(serde_json::to_vec(message)?);
        if let Some(credential) = credential {
            request = request.bearer_auth(credential);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        if let Some(session) = session {
            request = request.header("mcp-session-id", session);
        }
        let answer = request.send().await.map_err(PostError::of);
        answer.map_err(StreamableHttpError::Client)
    }

    /// Sends a message and reads the response. An event stream is returned unread.
    async fn exchange(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        credential: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, McpHttpError> {
        let answer = self
            .post(&uri, &message, session.as_deref(), credential, headers)
            .await?;
        let status = answer.status();
        let request_id = request_id(&message);
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        if !status.is_success() {
            return map_error_status(answer, &message, session.is_some()).await;
        }
        let header = |name: &str| {
            let value = answer.headers().get(name)?;
            Some(value.to_str().ok()?.to_owned())
        };
        let session = header("mcp-session-id");
        let kind = header(CONTENT_TYPE.as_str());
        match (kind.as_deref(), request_id) {
            (Some(kind), request_id) if kind.starts_with(EVENTS) => Ok(
                StreamableHttpPostResponse::Sse(events(answer, request_id), session),
            ),
            (Some(kind), Some(id)) if kind.starts_with(JSON) => {
                let said = match read(answer, ANSWER_BYTES_MAX).await? {
                    Some(body) => {
                        let body = std::str::from_utf8(&body).unwrap_or_default();
                        serde_json::from_str(&mark_task_tools(body))?
                    }
                    None => too_large(id),
                };
                Ok(StreamableHttpPostResponse::Json(said, session))
            }
            // The message is not a request, so ignore the response.
            (_, None) => Ok(StreamableHttpPostResponse::Accepted),
            (kind, Some(_)) => Err(StreamableHttpError::UnexpectedContentType(
                kind.map(str::to_owned),
            )),
        }
    }
}

impl StreamableHttpClient for McpHttpClient {
    type Error = PostError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session: Option<Arc<str>>,
        credential: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, McpHttpError> {
        let opens_connection = opens_connection(&message);
        let exchange = self.exchange(uri, message, session, credential, headers);
        if !opens_connection {
            return exchange.await;
        }
        let deadline = Instant::now() + self.opening_max;
        match tokio::time::timeout_at(deadline, exchange).await {
            Ok(Ok(StreamableHttpPostResponse::Sse(events, session))) => {
                let events = events.take_until(tokio::time::sleep_until(deadline));
                Ok(StreamableHttpPostResponse::Sse(events.boxed(), session))
            }
            Ok(answer) => answer,
            Err(_) => Err(StreamableHttpError::Client(PostError::Slow)),
        }
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session: Option<Arc<str>>,
        last_event: Option<String>,
        credential: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, McpHttpError> {
        let stream = self.client.get_stream_with_max_sse_event_size(
            uri,
            session,
            last_event,
            credential,
            headers,
            ANSWER_BYTES_MAX,
        );
        stream.await.map_err(map_library_error)
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session: Arc<str>,
        credential: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), McpHttpError> {
        let deleted = self
            .client
            .delete_session(uri, session, credential, headers);
        deleted.await.map_err(map_library_error)
    }
}

/// Maps an error of the library's client.
fn map_library_error(error: StreamableHttpError<reqwest::Error>) -> McpHttpError {
    match error {
        StreamableHttpError::Client(error) => StreamableHttpError::Client(PostError::of(error)),
        StreamableHttpError::ServerDoesNotSupportSse => {
            StreamableHttpError::ServerDoesNotSupportSse
        }
        StreamableHttpError::AuthRequired(challenge) => {
            StreamableHttpError::AuthRequired(challenge)
        }
        StreamableHttpError::InsufficientScope(challenge) => {
            StreamableHttpError::InsufficientScope(challenge)
        }
        other => StreamableHttpError::UnexpectedServerResponse(Cow::Owned(other.to_string())),
    }
}

/// Id of a request. None for messages that expect no answer.
fn request_id(message: &ClientJsonRpcMessage) -> Option<RequestId> {
    match message {
        ClientJsonRpcMessage::Request(request) => Some(request.id.clone()),
        _ => None,
    }
}

fn too_large(id: RequestId) -> ServerJsonRpcMessage {
    let error = ErrorData::new(TOO_LARGE, "the answer is too large", None);
    ServerJsonRpcMessage::error(error, Some(id))
}

/// Maps a response that is not 2xx.
async fn map_error_status(
    answer: reqwest::Response,
    message: &ClientJsonRpcMessage,
    has_session: bool,
) -> Result<StreamableHttpPostResponse, McpHttpError> {
    let status = answer.status();
    let alone = || Err(StreamableHttpError::Client(PostError::Status(status)));
    if status == StatusCode::NOT_FOUND && has_session {
        return Err(StreamableHttpError::SessionExpired);
    }
    if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
        return alone();
    }
    let Some(id) = request_id(message) else {
        return alone();
    };
    let body = read(answer, PROBLEM_BYTES_MAX).await?.unwrap_or_default();
    let error = match serde_json::from_slice(&body) {
        Ok(ServerJsonRpcMessage::Error(error)) if error.id.as_ref() == Some(&id) => error.error,
        // Servers that lost their sessions in a restart report it in different ways. A list request is
        // simply repeated in a new session. A tool may have run before its server reported the error,
        // so a call is repeated only if the error clearly concerns the session.
        said if status == StatusCode::BAD_REQUEST
            && has_session
            && (!is_call(message) || said.as_ref().is_ok_and(is_about_session)) =>
        {
            return Err(StreamableHttpError::SessionExpired);
        }
        Ok(ServerJsonRpcMessage::Error(error)) => error.error,
        _ if is_discovery(message) && status.is_client_error() => {
            ErrorData::invalid_request(format!("the answer was {status}"), None)
        }
        _ => return alone(),
    };
    // A server that could not parse the request may omit its id.
    let said = ServerJsonRpcMessage::error(error, Some(id));
    Ok(StreamableHttpPostResponse::Json(said, None))
}

/// Whether a message belongs to the opening handshake.
fn opens_connection(message: &ClientJsonRpcMessage) -> bool {
    match message {
        ClientJsonRpcMessage::Request(request) => matches!(
            request.request,
            ClientRequest::InitializeRequest(_) | ClientRequest::DiscoverRequest(_)
        ),
        ClientJsonRpcMessage::Notification(notification) => matches!(
            notification.notification,
            ClientNotification::InitializedNotification(_)
        ),
        _ => false,
    }
}

fn is_call(message: &ClientJsonRpcMessage) -> bool {
    let ClientJsonRpcMessage::Request(request) = message else {
        return false;
    };
    matches!(request.request, ClientRequest::CallToolRequest(_))
}

/// Whether a server reports an unknown session.
fn is_about_session(said: &ServerJsonRpcMessage) -> bool {
    let ServerJsonRpcMessage::Error(error) = said else {
        return false;
    };
    error.error.message.to_lowercase().contains("session")
}

fn is_discovery(message: &ClientJsonRpcMessage) -> bool {
    let ClientJsonRpcMessage::Request(request) = message else {
        return false;
    };
    matches!(request.request, ClientRequest::DiscoverRequest(_))
}

/// Reads a body up to a limit. None if it is larger.
async fn read(mut answer: reqwest::Response, max: usize) -> Result<Option<Vec<u8>>, McpHttpError> {
    let body = outbound::read_body(&mut answer, max).await;
    body.map_err(|error| StreamableHttpError::Client(PostError::of(error)))
}

#[derive(Debug, thiserror::Error)]
enum BodyError {
    #[error("too large")]
    TooLarge,
    #[error(transparent)]
    Lost(reqwest::Error),
}

/// Events of a response. An oversized stream ends with an error event.
fn events(
    answer: reqwest::Response,
    request_id: Option<RequestId>,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let mut left = ANSWER_BYTES_MAX;
    let bytes = answer.bytes_stream().map(move |chunk: Result<Bytes, _>| {
        let chunk = chunk.map_err(|error| BodyError::Lost(error.without_url()))?;
        left = left.checked_sub(chunk.len()).ok_or(BodyError::TooLarge)?;
        Ok::<_, BodyError>(chunk)
    });
    let events =
        sse::events(bytes, ANSWER_BYTES_MAX).map(move |event| match (event, &request_id) {
            (Ok(event), request) => Ok(Sse {
                event: event.event,
                data: event.data.map(|data| {
                    let data = mark_task_tools(&data).into_owned();
                    match request {
                        Some(request) => tag_question(data, request),
                        None => data,
                    }
                }),
                id: event.id,
                retry: event.retry,
            }),
            (Err(EventError::Body(BodyError::TooLarge)), Some(id)) => {
                let said = too_large(id.clone());
                let said = serde_json::to_string(&said).expect("an error without data is JSON");
                Ok(Sse::default().data(said))
            }
            (Err(error), _) => Err(SseError::Body(Box::new(error))),
        });
    events.boxed()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    async fn is_sent_again(method: &str, status: u16, body: &str) -> bool {
        let message = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": {"name": "x"}});
        let message = serde_json::from_value(message).expect("a message");
        let answer = http::Response::builder().status(status);
        let answer = answer.body(body.to_owned()).expect("an answer");
        let outcome = map_error_status(answer.into(), &message, true).await;
        matches!(outcome, Err(StreamableHttpError::SessionExpired))
    }

    #[tokio::test]
    async fn a_tool_is_called_again_only_if_the_session_is_what_is_wrong() {
        let lost = r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32600,"message":"Bad Request: No valid session ID provided"}}"#;
        let other =
            r#"{"jsonrpc":"2.0","id":"server-error","error":{"code":-32603,"message":"it broke"}}"#;
        for (method, status, body, again) in [
            ("tools/call", 404, "", true),
            ("tools/call", 400, lost, true),
            ("tools/call", 400, other, false),
            ("tools/call", 400, "no", false),
            ("tools/call", 500, lost, false),
            ("tools/list", 400, "no", true),
        ] {
            let is = is_sent_again(method, status, body).await;
            assert_eq!(is, again, "{method} {status} {body}");
        }
    }
}
