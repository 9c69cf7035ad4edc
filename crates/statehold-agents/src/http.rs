//! HTTP calls to agents and models: one connection pool for all, with limits on size and time. No
//! redirects, no proxies, no cookies.
//!
//! Addresses come only from the configuration, so private ones are allowed. Responses are not trusted:
//! their size and duration are bounded.

mod error;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use statehold_engine::Credential;
use statehold_engine::measures::CallOutcome;
use tokio::time::Instant;

use crate::exchange::OpenExchange;
use crate::turn_memory;
use crate::turn_watch::ServiceCall;

pub(crate) use error::{ConnectObstacle, EndpointError, redact_and_clip};

/// Timeout for DNS lookup and connecting.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long an idle connection stays in the pool.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// Largest response body, and largest error body.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// Time limit for reading an error body.
const REFUSAL_MAX: Duration = Duration::from_secs(5);
/// The longest time that a service may ask callers to wait.
const RETRY_AFTER_SECONDS_MAX: f64 = 86_400.0;
/// Delay before the first retry. Doubles with each retry.
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long to keep reading after the answer is complete. Some services store the conversation only
/// after the last byte, and not if the client has disconnected.
pub(crate) const TRAILING_MAX: Duration = Duration::from_secs(5);
/// Deadline used if the configured timeout overflows the clock.
const TIMEOUT_MAX: Duration = Duration::from_hours(24);

/// Why the HTTP client cannot be built.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HttpClientError {
    #[error("the TLS settings are inconsistent")]
    Tls(#[from] rustls::Error),
    #[error("the HTTP client cannot be built")]
    Http(#[from] reqwest::Error),
}

/// A connection pool. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct HttpPool {
    inner: reqwest::Client,
}

impl HttpPool {
    pub(crate) fn new() -> Result<Self, HttpClientError> {
        let inner = crate::outbound::client_builder()?
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .build()?;
        Ok(Self { inner })
    }

    /// Sends one request. Any status other than 2xx is an error.
    pub(crate) async fn send<'a>(
        &self,
        request: &'a ServiceRequest,
        deadline: CallDeadline,
    ) -> Result<ServiceResponse<'a>, EndpointError> {
        let mut call = self
            .inner
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone());
        if let Some(body) = &request.body {
            call = call.body(body.clone());
        }
        let target = || request.target();
        let mut exchange = OpenExchange::http(target, request.body.as_ref(), request.secrets());
        let response = deadline.bound(call.send()).await;
        let response =
            response.and_then(|response| response.map_err(|error| EndpointError::of(&error)));
        if let (Some(exchange), Err(error)) = (&mut exchange, &response) {
            exchange.fail(error);
        }
        let response = response?;
        let status = response.status();
        if let Some(exchange) = &mut exchange {
            exchange.set_status(status.as_u16());
        }
        let answer = ServiceResponse {
            response,
            request,
            deadline,
            bytes_left: ANSWER_BYTES_MAX,
            exchange,
        };
        if status.is_success() {
            Ok(answer)
        } else {
            Err(answer.into_refusal(status).await)
        }
    }
}

/// Address and call settings of a service.
pub(crate) struct ServiceEndpoint {
    /// Without the path of a call. A query string is kept.
    pub(crate) base_url: String,
    /// Bearer credential, unless `headers` set their own.
    pub(crate) credential: Option<Credential>,
    /// Headers of every call. They override the credential; secrets should be marked sensitive.
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    /// Timeout of a call, all retries included.
    pub(crate) timeout: Duration,
    /// Number of retries.
    pub(crate) retries: u32,
}

impl ServiceEndpoint {
    /// A request to a path of the service.
    pub(crate) fn request(&self, path: &[&str]) -> Result<ServiceRequest, EndpointError> {
        let request = ServiceRequest::new(&self.base_url, path, self.credential.as_ref())?;
        Ok(request.with_headers(&self.headers).accepting_stream(false))
    }

    pub(crate) fn retry_budget(&self) -> RetryBudget {
        RetryBudget::new(self.timeout, self.retries)
    }
}

/// A request that can be sent several times.
pub(crate) struct ServiceRequest {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
}

impl ServiceRequest {
    /// A request to a configured address. Appends each segment of `path`, percent-encoded.
    pub(crate) fn new(
        base_url: &str,
        path: &[&str],
        credential: Option<&Credential>,
    ) -> Result<Self, EndpointError> {
        let no_address = || EndpointError::Unreachable(ConnectObstacle::Address);
        let mut url = Url::parse(base_url).map_err(|_| no_address())?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(no_address());
        }
        url.set_fragment(None);
        url.path_segments_mut()
            .map_err(|()| no_address())?
            .pop_if_empty()
            .extend(path);
        let mut headers = HeaderMap::new();
        if let Some(credential) = credential {
            let value = HeaderValue::from_str(&format!("Bearer {}", credential.expose()));
            let mut value =
                value.map_err(|_| EndpointError::Unreachable(ConnectObstacle::Credential))?;
            value.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, value);
        }
        Ok(Self {
            method: Method::GET,
            url,
            headers,
            body: None,
        })
    }

    /// Sets headers, replacing earlier values: the headers of a call override the configured ones.
    pub(crate) fn with_headers(mut self, headers: &[(HeaderName, HeaderValue)]) -> Self {
        for (name, _) in headers {
            self.headers.remove(name);
        }
        for (name, value) in headers {
            let mut value = value.clone();
            if name == header::AUTHORIZATION {
                value.set_sensitive(true);
            }
            self.headers.append(name, value);
        }
        self
    }

    /// Makes it a POST with a JSON body.
    pub(crate) fn with_json(mut self, body: &impl Serialize) -> Self {
        let json = HeaderValue::from_static("application/json");
        let body = serde_json::to_vec(body).expect("text and values of JSON can be written");
        self.method = Method::POST;
        self.headers.insert(header::CONTENT_TYPE, json);
        self.body = Some(Bytes::from(body));
        self
    }

    /// Adds parameters to the query.
    pub(crate) fn with_query(mut self, parameters: &[(&str, &str)]) -> Self {
        self.url.query_pairs_mut().extend_pairs(parameters);
        self
    }

    /// Sets `Accept`, with or without an event stream.
    pub(crate) fn accepting_stream(mut self, stream: bool) -> Self {
        let accepted = if stream {
            "text/event-stream, application/json"
        } else {
            "application/json"
        };
        let accepted = HeaderValue::from_static(accepted);
        self.headers.insert(header::ACCEPT, accepted);
        self
    }

    /// Builds the error from the `error` member of a response.
    pub(crate) fn embedded_error(&self, error: &str) -> EndpointError {
        let refusal: ServiceErrorBody = serde_json::from_str(error).unwrap_or_default();
        let mut codes = [refusal.status, refusal.code].into_iter().flatten();
        let status = codes.find_map(parse_status);
        let said = refusal.message.and_then(parse_text);
        let said = said.unwrap_or_else(|| error.to_owned());
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        self.refusal(status, (&said, refusal.display_message), None)
    }

    /// Formats a text of the service for an error: one line, truncated, with secrets redacted.
    pub(crate) fn redact(&self, text: &str) -> String {
        redact_and_clip(text, self.secrets())
    }

    fn refusal(
        &self,
        status: StatusCode,
        (said, display_message): (&str, Option<&RawValue>),
        retry_after_seconds: Option<u64>,
    ) -> EndpointError {
        let display_message = display_message.and_then(parse_text);
        let display_message = display_message.map(|text| self.redact(&text));
        let message = self.redact(said);
        let message = if message.is_empty() {
            status
                .canonical_reason()
                .unwrap_or("it gave no reason")
                .to_owned()
        } else {
            message
        };
        EndpointError::Status {
            status,
            message,
            retry_after_seconds,
            display_message: display_message.filter(|text| !text.is_empty()),
        }
    }

    /// The method and the address, without a query or a password, which may be credentials.
    fn target(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        let port = self
            .url
            .port()
            .map_or_else(String::new, |port| format!(":{port}"));
        format!("{} {host}{port}{}", self.method, self.url.path())
    }

    /// Values to redact if the service repeats them in an error.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let values = self.headers.values().filter(|value| value.is_sensitive());
        values.filter_map(|value| {
            let text = value.to_str().ok()?;
            // Skip the scheme name (`Bearer`), which appears in many messages.
            let secret = text.split_once(' ').map_or(text, |(_, rest)| rest.trim());
            (!secret.is_empty()).then_some(secret)
        })
    }
}

/// Deadline of a call, and the timeout it was made from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CallDeadline {
    at: Instant,
    limit: Duration,
}

impl CallDeadline {
    fn after(limit: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(limit).unwrap_or_else(|| now + TIMEOUT_MAX);
        Self { at, limit }
    }

    /// The earlier of this deadline and one `limit` from now.
    pub(crate) fn at_most(self, limit: Duration) -> Self {
        let other = Self::after(limit);
        if other.at < self.at { other } else { self }
    }

    pub(crate) async fn bound<F: Future>(self, work: F) -> Result<F::Output, EndpointError> {
        let Self { at, limit } = self;
        let done = tokio::time::timeout_at(at, work).await;
        done.map_err(|_| EndpointError::Timeout { limit })
    }
}

/// A response whose body is still being read.
pub(crate) struct ServiceResponse<'a> {
    response: reqwest::Response,
    request: &'a ServiceRequest,
    deadline: CallDeadline,
    bytes_left: usize,
    /// Copies the body for the debug log, if the turn is logged.
    exchange: Option<OpenExchange>,
}

impl<'a> ServiceResponse<'a> {
    pub(crate) fn request(&self) -> &'a ServiceRequest {
        self.request
    }

    pub(crate) fn deadline(&self) -> CallDeadline {
        self.deadline
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Whether the content type is an event stream.
    pub(crate) fn is_stream(&self) -> bool {
        let kind = self.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/event-stream")
    }

    /// Shortens the deadline for the rest of the body.
    fn shorten_deadline(&mut self, limit: Duration) {
        self.deadline = self.deadline.at_most(limit);
    }

    /// Reads the next chunk of the body.
    pub(crate) async fn next_chunk(&mut self) -> Result<Option<Bytes>, EndpointError> {
        let chunk = self.read_chunk().await;
        if let Some(exchange) = &mut self.exchange {
            match &chunk {
                Ok(Some(chunk)) => exchange.receive(chunk),
                Ok(None) => {}
                Err(error) => exchange.fail(error),
            }
        }
        chunk
    }

    async fn read_chunk(&mut self) -> Result<Option<Bytes>, EndpointError> {
        let chunk = self.deadline.bound(self.response.chunk()).await?;
        let chunk = chunk.map_err(|error| EndpointError::of(&error))?;
        let length = chunk.as_ref().map_or(0, Bytes::len);
        match self.bytes_left.checked_sub(length) {
            Some(left) => self.bytes_left = left,
            None => return Err(EndpointError::TooLarge("at most 8 MiB")),
        }
        Ok(chunk)
    }

    /// Reads what follows a complete answer, and ignores it, errors included.
    pub(crate) async fn read_trailing(&mut self) {
        self.shorten_deadline(TRAILING_MAX);
        while let Ok(Some(_)) = self.next_chunk().await {}
    }

    /// Fails the body once more than these bytes have come.
    pub(crate) fn limit_body(&mut self, bytes_max: usize) {
        self.bytes_left = self.bytes_left.min(bytes_max);
    }

    /// Reads the rest of the body and appends it to `read`, in the memory of the turn.
    pub(crate) async fn rest(&mut self, mut read: Vec<u8>) -> Result<Vec<u8>, EndpointError> {
        while let Some(chunk) = self.next_chunk().await? {
            turn_memory::take(chunk.len())?;
            read.extend_from_slice(&chunk);
        }
        Ok(read)
    }

    /// Builds the error from a response that is not 2xx.
    async fn into_refusal(mut self, status: StatusCode) -> EndpointError {
        if status.is_redirection() {
            return self.request.refusal(
                status,
                (
                    "redirects are not followed; set `base_url` to the final address",
                    None,
                ),
                None,
            );
        }
        let retry_after = retry_after_seconds(self.headers());
        self.bytes_left = REFUSAL_BYTES_MAX;
        self.shorten_deadline(REFUSAL_MAX);
        let mut body = Vec::new();
        // Use the body as far as it arrives; the status is known already.
        while let Ok(Some(chunk)) = self.next_chunk().await {
            body.extend_from_slice(&chunk);
        }
        let body = String::from_utf8_lossy(&body);
        let said = error_text(&body);
        let display_message = display_message_of(&body);
        self.request
            .refusal(status, (&said, display_message), retry_after)
    }
}

/// The number of seconds in `Retry-After`, a day at most. A date is ignored.
fn retry_after_seconds(headers: &HeaderMap) -> Option<u64> {
    let seconds = headers.get(header::RETRY_AFTER)?.to_str().ok()?;
    let seconds: f64 = seconds.trim().parse().ok()?;
    let is_time = (0.0..=RETRY_AFTER_SECONDS_MAX).contains(&seconds);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is between 0 and a day"
    )]
    is_time.then_some(seconds.ceil() as u64)
}

/// Error bodies of chat completions, of common Python frameworks, and of problem details (RFC 9457).
#[derive(Default, Deserialize)]
struct ServiceErrorBody<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    message: Option<&'a RawValue>,
    detail: Option<&'a RawValue>,
    title: Option<&'a RawValue>,
    code: Option<&'a RawValue>,
    status: Option<&'a RawValue>,
    display_message: Option<&'a RawValue>,
}

/// The words for people in the body of an error, as applications of DIAL have them.
fn display_message_of(body: &str) -> Option<&RawValue> {
    let refusal: ServiceErrorBody = serde_json::from_str(body).ok()?;
    let inner: ServiceErrorBody = serde_json::from_str(refusal.error?.get()).ok()?;
    inner.display_message
}

fn error_text(body: &str) -> String {
    // Google's streaming calls answer with a list that has the error in it.
    let elements: Vec<&RawValue> = serde_json::from_str(body).unwrap_or_default();
    let body = elements.first().map_or(body, |first| first.get());
    let refusal: ServiceErrorBody = serde_json::from_str(body).unwrap_or_default();
    let inner = refusal.error.map(|error| {
        let inner: ServiceErrorBody = serde_json::from_str(error.get()).unwrap_or_default();
        let said = inner.message.and_then(parse_text);
        said.or_else(|| parse_text(error))
            .unwrap_or_else(|| error.get().to_owned())
    });
    let outer = [refusal.detail, refusal.message, refusal.title];
    // Show a value that is not a string as JSON: validation errors are often lists.
    let outer = outer.into_iter().flatten().next();
    let outer = outer.map(|said| parse_text(said).unwrap_or_else(|| said.get().to_owned()));
    inner.or(outer).unwrap_or_else(|| body.to_owned())
}

fn parse_text(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// The status may be a number or a string of digits.
fn parse_status(value: &RawValue) -> Option<StatusCode> {
    let number: u16 = value.get().trim_matches('"').parse().ok()?;
    (400..600)
        .contains(&number)
        .then(|| StatusCode::from_u16(number).ok())?
}

/// Retry policy of all calls: retry only transient errors, only before any text has been passed on, and
/// only within the timeout of one call.
pub(crate) struct RetryBudget {
    deadline: CallDeadline,
    left: u32,
    delay: Duration,
    /// The attempt under way.
    attempt: ServiceCall,
}

impl RetryBudget {
    pub(crate) fn new(timeout: Duration, retries: u32) -> Self {
        Self {
            deadline: CallDeadline::after(timeout),
            left: retries,
            delay: FIRST_RETRY_DELAY,
            attempt: ServiceCall::begin(),
        }
    }

    pub(crate) fn deadline(&self) -> CallDeadline {
        self.deadline
    }

    /// Returns the outcome, or None after the back-off if the call is to be retried.
    pub(crate) async fn retry_or_return<T>(
        &mut self,
        outcome: Result<T, EndpointError>,
        was_streamed: bool,
    ) -> Option<Result<T, EndpointError>> {
        let ended = outcome.as_ref().err().map(EndpointError::call_outcome);
        self.attempt.end(&ended.unwrap_or(CallOutcome::Ok));
        let error = match outcome {
            Err(error) if error.is_transient() && !was_streamed => error,
            outcome => return Some(outcome),
        };
        // If there is no time for a retry, return the error itself: it says more than a timeout.
        let begins_at = Instant::now().checked_add(self.delay);
        let has_time = begins_at.is_some_and(|at| at < self.deadline.at);
        if self.left == 0 || !has_time {
            return Some(Err(error));
        }
        tracing::debug!(code = error.code(), left = self.left, "retrying a call");
        tokio::time::sleep(self.delay).await;
        self.left -= 1;
        self.delay = self.delay.saturating_mul(2);
        self.attempt = ServiceCall::begin();
        None
    }
}

#[cfg(test)]
mod tests;
