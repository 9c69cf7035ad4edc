//! Bodies of calls: read to their end, in memory that all callers share, and parsed strictly.
//!
//! Nothing of a body is read before its caller is known. A long one takes its memory before it is read; the call
//! holds that until its answer is made.

use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Frame};
use serde::de::DeserializeOwned;
use statehold_engine::api::caller::KeyWatch;
use statehold_engine::{Caller, EngineError, PendingShare, Share};
use tokio::time::Instant;

use crate::http::call::{App, text, unauthenticated};
use crate::http::json::{self, JsonLimits, ParseError};
use crate::http::problem::{Code, Problem};
use crate::http::shares::CallSlot;

/// Bodies up to this size take nothing of the memory for bodies.
const SMALL_BODY_BYTES: usize = 64 * 1024;
/// The memory that a JSON value takes beside its text: in maps and lists that have just grown, and once more while it
/// is read as one of several forms.
const VALUE_BYTES: usize = 256;
/// Bodies with up to this many values take nothing of the memory for values.
const SMALL_BODY_VALUES: usize = SMALL_BODY_BYTES / VALUE_BYTES;
/// How many long bodies are parsed at once.
pub(crate) const PARSERS_MAX: usize = 2;
/// How long a call waits for the memory of its body.
const BODY_WAIT_MAX: Duration = Duration::from_secs(30);
/// A client that sends nothing of a long body for this time is refused, if others wait for its memory.
const BODY_STALL_MAX: Duration = Duration::from_secs(5);

/// A JSON body, read to its end and parsed strictly.
#[derive(Default)]
pub(crate) struct Payload<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for Payload<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        Self::read(request, app, JsonLimits::default()).await
    }
}

impl<T: DeserializeOwned + Send + 'static> Payload<T> {
    /// Reads a body within narrower limits than those of every body.
    pub(crate) async fn read(
        request: Request,
        app: &App,
        limits: JsonLimits,
    ) -> Result<Self, Problem> {
        let (owner, bytes) = read_json(request, app).await?;
        let value = owner.parse(app, bytes.clone(), limits).await?;
        Ok(Self { value, bytes })
    }
}

/// A JSON body whose numbers come back as they are written, however large. `null` counts as `{}`.
pub(crate) struct AsWritten<T> {
    pub(crate) value: T,
    pub(crate) bytes: Bytes,
}

impl<T: DeserializeOwned + Send + 'static> FromRequest<App> for AsWritten<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let (owner, bytes) = read_json(request, app).await?;
        let limits = JsonLimits {
            exact_numbers: false,
            ..JsonLimits::default()
        };
        let body = if bytes.trim_ascii() == b"null" {
            Bytes::new()
        } else {
            bytes.clone()
        };
        let value = owner.parse(app, body, limits).await?;
        Ok(Self { value, bytes })
    }
}

/// Reads the body of an authenticated call.
async fn read_json(request: Request, app: &App) -> Result<(BodyOwner, Bytes), Problem> {
    require_json(request.headers())?;
    let (mut parts, body) = request.into_parts();
    // Without an authenticated caller nothing is read.
    let owner = parts.extensions.remove::<BodyOwner>();
    let owner = owner.ok_or_else(unauthenticated)?;
    let bytes = owner.read(app, body).await?;
    // The key may have ended while its holder sent the body.
    if !owner.api_key.is_valid() {
        return Err(unauthenticated());
    }
    Ok((owner, bytes))
}

/// The caller on whose account a body is read. The extractor of the caller leaves it with the call.
#[derive(Clone)]
pub(crate) struct BodyOwner {
    pub(crate) caller: Caller,
    pub(crate) api_key: KeyWatch,
    pub(crate) slot: CallSlot,
}

impl BodyOwner {
    async fn read(&self, app: &App, mut body: Body) -> Result<Bytes, Problem> {
        let max = app.options.body_bytes_max;
        let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
        // Refuse by `Content-Length` before reading anything.
        if announced > max {
            return Err(too_large(max));
        }
        let mut read = BytesMut::new();
        if announced > SMALL_BODY_BYTES {
            self.take_memory(app, announced).await?;
            read.reserve(announced);
        }
        let mut deadline = Instant::now() + app.options.body_timeout;
        while let Some(frame) = self.next_frame(&mut body, deadline).await? {
            let Ok(data) = frame.into_data() else {
                continue;
            };
            let length = read.len() + data.len();
            if length > max {
                return Err(too_large(max));
            }
            // A body without a length may become as long as any.
            if length > SMALL_BODY_BYTES && announced <= SMALL_BODY_BYTES && !self.slot.has_body() {
                self.take_memory(app, max).await?;
                deadline = Instant::now() + app.options.body_timeout;
            }
            read.extend_from_slice(&data);
        }
        self.slot.shrink_body(read.len());
        Ok(read.freeze())
    }

    /// The next piece of a body. None at its end.
    async fn next_frame(
        &self,
        body: &mut Body,
        deadline: Instant,
    ) -> Result<Option<Frame<Bytes>>, Problem> {
        let late = || {
            let detail = "the body did not arrive in time; send it again";
            Problem::new(Code::BodyTimeout, detail)
        };
        let mut frame = std::pin::pin!(body.frame());
        loop {
            let patience = deadline.min(Instant::now() + BODY_STALL_MAX);
            match tokio::time::timeout_at(patience, frame.as_mut()).await {
                Ok(frame) => {
                    let broken =
                        |_| Problem::new(Code::BadJson, "the body broke off; send it again");
                    return frame.transpose().map_err(broken);
                }
                Err(_) if patience == deadline || self.slot.is_body_waited_for() => {
                    return Err(late());
                }
                Err(_) => {}
            }
        }
    }

    /// Checks a body, takes the memory of its values, and gives it a type. A long one is scanned and parsed on a
    /// thread of its own, so that the threads that serve calls go on. A body without a single byte counts as `{}`.
    async fn parse<T: DeserializeOwned + Send + 'static>(
        &self,
        app: &App,
        bytes: Bytes,
        limits: JsonLimits,
    ) -> Result<T, Problem> {
        let limits = JsonLimits {
            bytes_max: app.options.body_bytes_max,
            ..limits
        };
        let bytes = if bytes.is_empty() {
            Bytes::from_static(b"{}")
        } else {
            bytes
        };
        let is_long = bytes.len() > SMALL_BODY_BYTES;
        let body = bytes.clone();
        let scan = move || json::scan(&body, &limits);
        let values = run((app, &self.caller), is_long, scan).await?;
        let values = values.map_err(ParseError::from)?;
        if values > SMALL_BODY_VALUES {
            let bytes = values.saturating_mul(VALUE_BYTES);
            let share = app.shares.line_up_for_values(&self.caller, bytes);
            self.slot.hold_values(self.wait_for(share).await?);
        }
        let parse = move || json::read(&bytes);
        Ok(run((app, &self.caller), is_long, parse).await??)
    }

    /// Waits in line for the memory of a body of so many bytes.
    async fn take_memory(&self, app: &App, bytes: usize) -> Result<(), Problem> {
        let share = app.shares.line_up_for_body(&self.caller, bytes);
        self.slot.hold_body(self.wait_for(share).await?);
        Ok(())
    }

    /// Waits until the caller gets memory.
    async fn wait_for(&self, share: PendingShare) -> Result<Share, Problem> {
        let share = tokio::select! {
            biased;
            () = self.api_key.revoked() => return Err(unauthenticated()),
            share = tokio::time::timeout(BODY_WAIT_MAX, share) => share,
        };
        share.ok().and_then(Result::ok).ok_or_else(|| {
            let detail = "too many long bodies are being read; wait for other calls of this key to end, then \
                          send it again";
            Problem::new(Code::TooMany, detail)
        })
    }
}

/// Runs the work on a long body, a few at a time, beside the threads that serve calls; other work at once.
async fn run<R: Send + 'static>(
    (app, caller): (&App, &Caller),
    is_long: bool,
    work: impl FnOnce() -> R + Send + 'static,
) -> Result<R, Problem> {
    if !is_long {
        return Ok(work());
    }
    let stopping = || Problem::from(EngineError::Stopping);
    let permit = app.body_parsers.line_up(caller, 1).await;
    let permit = permit.map_err(|_| stopping())?;
    let done = tokio::task::spawn_blocking(move || {
        // Held by this thread: the work continues even if the caller disconnects.
        let _permit = permit;
        work()
    });
    done.await.map_err(|_| stopping())
}

fn too_large(max: usize) -> Problem {
    let detail = format!("a body has at most {max} bytes; send less at a time");
    Problem::new(Code::BodyTooLarge, detail).with("max", max)
}

/// Refuses a body with another media type. A missing `Content-Type` means JSON.
fn require_json(headers: &HeaderMap) -> Result<(), Problem> {
    let Some(kind) = text(headers, header::CONTENT_TYPE.as_str())? else {
        return Ok(());
    };
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let is_json = essence.eq_ignore_ascii_case("application/json")
        || essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") && is_curl(headers);
    if is_json {
        Ok(())
    } else {
        Err(Problem::new(
            Code::UnsupportedMedia,
            "send the body as `Content-Type: application/json`",
        ))
    }
}

/// `curl -d` declares every body as a form, so its `Content-Type` means nothing.
fn is_curl(headers: &HeaderMap) -> bool {
    let agent = headers.get(header::USER_AGENT);
    agent.is_some_and(|agent| agent.as_bytes().starts_with(b"curl/"))
}

#[cfg(test)]
mod tests;
