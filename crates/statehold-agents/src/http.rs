//! How agents and models are called: one pool of connections for all of them, and limits on
//! everything. No redirects, no proxies, no cookies.
//!
//! Addresses come from the configuration and from nowhere else, so private ones are fine. What the
//! other side sends is not trusted: it is bounded in bytes and in time.

mod error;

use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, StatusCode};
use reqwest::Url;
use serde::Deserialize;
use serde_json::value::RawValue;
use statehold_engine::Credential;
use tokio::time::Instant;

pub(crate) use error::{CallError, Obstacle, clip};

/// How long finding and reaching the other side may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// How long a connection is kept that nobody uses.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// The most that is read of an answer, and of one that only says what is wrong.
const ANSWER_BYTES_MAX: usize = 8 * 1024 * 1024;
const REFUSAL_BYTES_MAX: usize = 64 * 1024;
/// How long we listen to somebody who only says what is wrong.
const REFUSAL_MAX: Duration = Duration::from_secs(5);
/// How long we wait before a call is made again, at first. It doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
/// In place of a time that no clock can tell.
const TIMEOUT_MAX: Duration = Duration::from_hours(24);

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("the settings of TLS do not fit together")]
    Tls(#[from] rustls::Error),
    #[error("the HTTP client cannot be made")]
    Http(#[from] reqwest::Error),
}

/// A pool of connections. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    inner: reqwest::Client,
}

impl HttpClient {
    pub(crate) fn new() -> Result<Self, ClientError> {
        let inner = crate::outbound::client_builder()?
            .connect_timeout(CONNECT_MAX)
            .pool_idle_timeout(IDLE_MAX)
            .build()?;
        Ok(Self { inner })
    }

    /// Makes one call. Only an answer of 2xx is an answer.
    pub(crate) async fn send<'a>(
        &self,
        request: &'a Request,
        deadline: Deadline,
    ) -> Result<Answer<'a>, CallError> {
        let mut call = self
            .inner
            .request(request.method.clone(), request.url.clone())
            .headers(request.headers.clone());
        if let Some(body) = &request.body {
            call = call.body(body.clone());
        }
        let response = deadline.bound(call.send()).await?;
        let response = response.map_err(|error| CallError::of(&error))?;
        let status = response.status();
        let answer = Answer {
            response,
            request,
            deadline,
            bytes_left: ANSWER_BYTES_MAX,
        };
        if status.is_success() {
            Ok(answer)
        } else {
            Err(answer.into_refusal(status).await)
        }
    }
}

/// A call that can be made several times.
pub(crate) struct Request {
    method: Method,
    url: Url,
    headers: HeaderMap,
    body: Option<Bytes>,
}

impl Request {
    /// A call to the address that a configuration names, followed by `path`, each part of which is
    /// taken as it is.
    pub(crate) fn new(
        base_url: &str,
        path: &[&str],
        credential: Option<&Credential>,
    ) -> Result<Self, CallError> {
        let no_address = || CallError::Unreachable(Obstacle::Address);
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
            let mut value = value.map_err(|_| CallError::Unreachable(Obstacle::Credential))?;
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

    /// Adds headers. They replace what is there: whoever makes a call knows better than a configuration.
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

    /// Makes it a call that brings JSON.
    pub(crate) fn with_json(mut self, body: Vec<u8>) -> Self {
        let json = HeaderValue::from_static("application/json");
        self.method = Method::POST;
        self.headers.insert(header::CONTENT_TYPE, json);
        self.body = Some(Bytes::from(body));
        self
    }

    /// Says that a stream of events is wanted, or that it is not.
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

    /// The error that a service reports inside an answer, as the JSON of its member `error`.
    pub(crate) fn error_in(&self, error: &str) -> CallError {
        let refusal: Refusal = serde_json::from_str(error).unwrap_or_default();
        let mut codes = [refusal.status, refusal.code].into_iter().flatten();
        let status = codes.find_map(status_in);
        let said = refusal.message.and_then(text_in);
        let said = said.unwrap_or_else(|| error.to_owned());
        self.refusal(status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), &said)
    }

    fn refusal(&self, status: StatusCode, said: &str) -> CallError {
        let message = clip(said, self.secrets());
        let message = if message.is_empty() {
            status
                .canonical_reason()
                .unwrap_or("it did not say why")
                .to_owned()
        } else {
            message
        };
        CallError::Status { status, message }
    }

    /// Credentials that the service may repeat in its errors; they are redacted there.
    fn secrets(&self) -> impl Iterator<Item = &str> {
        let values = self.headers.values().filter(|value| value.is_sensitive());
        values.filter_map(|value| {
            let text = value.to_str().ok()?;
            // Not the name of the scheme, which is in many messages.
            let secret = text.split_once(' ').map_or(text, |(_, rest)| rest.trim());
            (!secret.is_empty()).then_some(secret)
        })
    }
}

/// When a call must have ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        let now = Instant::now();
        let at = now.checked_add(limit).unwrap_or_else(|| now + TIMEOUT_MAX);
        Self { at, limit }
    }

    /// This one, or an earlier one if it has not that much time.
    pub(crate) fn at_most(self, limit: Duration) -> Self {
        let other = Self::after(limit);
        if other.at < self.at { other } else { self }
    }

    pub(crate) async fn bound<F: Future>(self, work: F) -> Result<F::Output, CallError> {
        let Self { at, limit } = self;
        let done = tokio::time::timeout_at(at, work).await;
        done.map_err(|_| CallError::Timeout { limit })
    }
}

/// An answer that has begun.
pub(crate) struct Answer<'a> {
    response: reqwest::Response,
    request: &'a Request,
    deadline: Deadline,
    bytes_left: usize,
}

impl<'a> Answer<'a> {
    pub(crate) fn request(&self) -> &'a Request {
        self.request
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    pub(crate) fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Whether it calls itself a stream of events.
    pub(crate) fn is_stream(&self) -> bool {
        let kind = self.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().trim();
        kind.eq_ignore_ascii_case("text/event-stream")
    }

    /// Lets the rest of the answer take no longer than this.
    pub(crate) fn hurry(&mut self, limit: Duration) {
        self.deadline = self.deadline.at_most(limit);
    }

    /// The next piece of the body, as it comes.
    pub(crate) async fn piece(&mut self) -> Result<Option<Bytes>, CallError> {
        let piece = self.deadline.bound(self.response.chunk()).await?;
        let piece = piece.map_err(|error| CallError::of(&error))?;
        let length = piece.as_ref().map_or(0, Bytes::len);
        match self.bytes_left.checked_sub(length) {
            Some(left) => self.bytes_left = left,
            None => return Err(CallError::TooLarge("at most 8 MiB")),
        }
        Ok(piece)
    }

    /// The body from here on, after what was read of it already.
    pub(crate) async fn rest(&mut self, mut read: Vec<u8>) -> Result<Vec<u8>, CallError> {
        while let Some(piece) = self.piece().await? {
            read.extend_from_slice(&piece);
        }
        Ok(read)
    }

    /// What an answer that is none says.
    async fn into_refusal(mut self, status: StatusCode) -> CallError {
        if status.is_redirection() {
            return self.request.refusal(
                status,
                "it leads elsewhere, which is not followed; set `base_url` to where it leads",
            );
        }
        self.bytes_left = REFUSAL_BYTES_MAX;
        self.hurry(REFUSAL_MAX);
        let mut body = Vec::new();
        // What there is of it will do: that it failed is known.
        while let Ok(Some(piece)) = self.piece().await {
            body.extend_from_slice(&piece);
        }
        let body = String::from_utf8_lossy(&body);
        self.request.refusal(status, &said_in(&body))
    }
}

/// What services say when something is wrong. The forms are those of chat completions, of the usual
/// Python frameworks, and of problem details.
#[derive(Default, Deserialize)]
struct Refusal<'a> {
    #[serde(borrow)]
    error: Option<&'a RawValue>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
    #[serde(borrow)]
    detail: Option<&'a RawValue>,
    #[serde(borrow)]
    title: Option<&'a RawValue>,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
    #[serde(borrow)]
    status: Option<&'a RawValue>,
}

fn said_in(body: &str) -> String {
    let refusal: Refusal = serde_json::from_str(body).unwrap_or_default();
    let inner = refusal.error.map(|error| {
        let inner: Refusal = serde_json::from_str(error.get()).unwrap_or_default();
        let said = inner.message.and_then(text_in);
        said.or_else(|| text_in(error))
            .unwrap_or_else(|| error.get().to_owned())
    });
    let outer = [refusal.detail, refusal.message, refusal.title];
    // What is no text is shown as it is: a list of what is wrong with which field is one.
    let outer = outer.into_iter().flatten().next();
    let outer = outer.map(|said| text_in(said).unwrap_or_else(|| said.get().to_owned()));
    inner.or(outer).unwrap_or_else(|| body.to_owned())
}

fn text_in(value: &RawValue) -> Option<String> {
    serde_json::from_str(value.get()).ok()
}

/// A status in an error is a number or digits.
fn status_in(value: &RawValue) -> Option<StatusCode> {
    let number: u16 = value.get().trim_matches('"').parse().ok()?;
    (400..600)
        .contains(&number)
        .then(|| StatusCode::from_u16(number).ok())?
}

/// The one rule for calls that are made again: only before anybody heard a word of the answer, only
/// for what may pass, and all of it within the time of one call.
pub(crate) struct Attempts {
    deadline: Deadline,
    left: u32,
    pause: Duration,
}

impl Attempts {
    pub(crate) fn new(timeout: Duration, retries: u32) -> Self {
        Self {
            deadline: Deadline::after(timeout),
            left: retries,
            pause: PAUSE_FIRST,
        }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }

    /// What came of a call. None if it is to be made again, after a pause.
    pub(crate) async fn settle<T>(
        &mut self,
        outcome: Result<T, CallError>,
        was_heard: bool,
    ) -> Option<Result<T, CallError>> {
        let error = match outcome {
            Err(error) if error.is_transient() && !was_heard => error,
            outcome => return Some(outcome),
        };
        // The reason of the failure says more than that there was no time to try again.
        let begins_at = Instant::now().checked_add(self.pause);
        let has_time = begins_at.is_some_and(|at| at < self.deadline.at);
        if self.left == 0 || !has_time {
            return Some(Err(error));
        }
        tracing::debug!(
            code = error.code(),
            left = self.left,
            "a call is made again"
        );
        tokio::time::sleep(self.pause).await;
        self.left -= 1;
        self.pause = self.pause.saturating_mul(2);
        None
    }
}

#[cfg(test)]
mod tests;
