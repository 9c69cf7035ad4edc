//! Feeds over server-sent events: one event per record, resumable, closed when the key is revoked. Between
//! the records of a session, deltas stream the answers that agents are writing.

use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use serde::Deserialize;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_core::view::View;
use statehold_engine::{
    Caller, EngineError, GlobalPosition, HoldPosition, News, SessionFeed, SessionNews,
};
use tokio::sync::OwnedSemaphorePermit;
use utoipa::IntoParams;

use super::{Cursor, revision};
use crate::http::call::{App, CallContext, Params, PathIds, text};
use crate::http::problem::{Code, Problem};
use statehold_engine::api::feed::{DeltaView, record};
use statehold_engine::api::hold::{HoldNewsView, HoldView};
use statehold_engine::api::json::to_body;

/// Interval of keep-alive comments.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Number of records read at a time.
const BATCH: usize = 64;

/// The start of a feed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FeedParams {
    /// Start after this revision. `Last-Event-ID` takes precedence.
    #[param(maximum = 9_007_199_254_740_991u64)]
    after: Option<u64>,
}

/// Follow a session: one event per record, `id` is the revision.
///
/// Between the records, `delta` events without an id stream the answers that agents are writing:
/// `{request_id, task_id, agent, offset, text}`. `offset` is the number of bytes of the answer already sent
/// on this stream; 0 means that the answer starts, or starts again. The record has the final answer.
#[utoipa::path(
    get, path = "/v1/sessions/{session_id}/events", tag = "feeds",
    params(("session_id" = String, Path), FeedParams),
    responses((
        status = 200, body = String, content_type = "text/event-stream",
        description = "A stream that ends when the server stops or the caller loses read access."
    ))
)]
pub(crate) async fn session(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
    Params(params): Params<FeedParams>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let session: SessionId = ids.id("session_id")?;
    let summary = app.engine.session(&asked.caller, session).await?;
    let after = match text(&headers, "last-event-id")? {
        Some(id) => id.parse().map_err(|_| {
            Problem::new(
                Code::BadHeader,
                "`Last-Event-ID` is the revision of the last event that arrived",
            )
        })?,
        None => revision(params.after, "after")?.unwrap_or(summary.revision),
    };
    if after > summary.revision {
        return Err(Problem::new(
            Code::BadHeader,
            format!(
                "the feed is at revision {}, which is before the one to go on after; read the session \
                 again, it may have been restored from a backup",
                summary.revision
            ),
        )
        .with("current", summary.revision));
    }
    let feed = app
        .engine
        .follow_session(asked.caller.clone(), session, after);
    begin(app, asked, FeedSource::Session(feed))
}

/// Follow every session that the caller may list. `id` is opaque.
#[utoipa::path(
    get, path = "/v1/events", tag = "feeds",
    responses((
        status = 200, body = String, content_type = "text/event-stream",
        description = "A stream that ends when the server stops or the caller loses read access."
    ))
)]
pub(crate) async fn global(
    State(app): State<App>,
    asked: CallContext,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let cursor = Cursor::of(&app, &asked.caller, "events", "");
    let after = match cursor.open(text(&headers, "last-event-id")?)? {
        Some(place) => GlobalPosition(place),
        None => app.engine.last_position().await?,
    };
    // Check read access before the stream begins, so that a refusal is a plain 403.
    app.engine.global_feed(&asked.caller, after, 0).await?;
    begin(app, asked, FeedSource::Global { after })
}

/// Follow every hold that the caller may see: `opened`, `voted`, `decided`. `id` is opaque.
#[utoipa::path(
    get, path = "/v1/holds/events", tag = "feeds",
    responses((
        status = 200, body = String, content_type = "text/event-stream",
        description = "A stream that ends when the server stops or the caller loses read access."
    ))
)]
pub(crate) async fn holds(
    State(app): State<App>,
    asked: CallContext,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let cursor = Cursor::of(&app, &asked.caller, "hold events", "");
    let after = match cursor.open_bytes(text(&headers, "last-event-id")?)? {
        Some(bytes) => position_of(bytes),
        None => HoldPosition::after_all(app.engine.last_position().await?.0),
    };
    begin(app, asked, FeedSource::Holds { after })
}

/// Encodes a position in the feed of holds for an event id.
fn position_bytes(position: HoldPosition) -> [u8; 16] {
    let both = u128::from(position.place) << 64 | u128::from(position.taken);
    both.to_be_bytes()
}

fn position_of(bytes: [u8; 16]) -> HoldPosition {
    let both = u128::from_be_bytes(bytes);
    let half = |value: u128| u64::try_from(value & u128::from(u64::MAX)).unwrap_or(u64::MAX);
    HoldPosition {
        place: half(both >> 64),
        taken: half(both),
    }
}

enum FeedSource {
    Session(SessionFeed),
    Global { after: GlobalPosition },
    Holds { after: HoldPosition },
}

/// One reader of a feed. It stores only its position, so a slow reader buffers nothing.
struct FeedReader {
    app: App,
    caller: Caller,
    /// Digest of the caller's key. Revoking the key ends the feed.
    secret: Option<Digest>,
    source: FeedSource,
    greeted: bool,
    _permit: OwnedSemaphorePermit,
}

impl FeedReader {
    fn new(app: App, asked: CallContext, source: FeedSource) -> Result<Self, Problem> {
        let permit = app.feeds.clone().try_acquire_owned().map_err(|_| {
            Problem::new(
                Code::TooMany,
                "too many feeds are open; close one, or ask for records instead",
            )
        })?;
        Ok(Self {
            app,
            caller: asked.caller,
            secret: asked.secret,
            source,
            greeted: false,
            _permit: permit,
        })
    }

    /// Whether the caller may still read.
    fn is_valid(&self) -> bool {
        self.secret
            .is_none_or(|secret| self.app.engine.caller_of(secret).is_some())
    }

    /// The next chunk of the stream. None ends it.
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        if !self.greeted {
            self.greeted = true;
            // Send something at once, so that proxies and clients see the stream open.
            let hello = Bytes::from_static(b"retry: 1000\n: following\n\n");
            return Some((Ok(hello), self));
        }
        let mut keep_alive = std::pin::pin!(tokio::time::sleep(KEEP_ALIVE));
        loop {
            // Subscribe before reading, so that no change is missed in between.
            let engine = self.app.engine.clone();
            let (news, mut key_changes) = (engine.news(), engine.key_changes());
            let events = self.read().await?;
            // Check the key after reading: drop events that were read after it was revoked.
            if !self.is_valid() {
                return None;
            }
            if !events.is_empty() {
                return Some((Ok(events), self));
            }
            tokio::select! {
                () = self.wait(news) => {}
                () = engine.stopping() => return None,
                () = key_changes.next() => {}
                () = &mut keep_alive => {
                    return Some((Ok(Bytes::from_static(b": still here\n\n")), self));
                }
            }
        }
    }

    /// Waits until there may be something to read.
    async fn wait(&mut self, mut news: News) {
        match &mut self.source {
            FeedSource::Session(feed) => feed.changed().await,
            FeedSource::Global { .. } | FeedSource::Holds { .. } => news.arrives().await,
        }
    }

    /// The new events, encoded. None if the caller has lost read access.
    async fn read(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        let (engine, caller) = (&self.app.engine, &self.caller);
        match &mut self.source {
            FeedSource::Session(feed) => {
                for news in feed.read(BATCH).await.ok()? {
                    match news {
                        SessionNews::Record(entry) => {
                            let id = entry.stored.record.content.seq.to_string();
                            let data = record(&entry, View::Client);
                            push_event(&mut out, "record", Some(&id), &data);
                        }
                        SessionNews::Delta(delta) => {
                            let data = to_body(&DeltaView::of(&delta));
                            push_event(&mut out, "delta", None, &data);
                        }
                    }
                }
            }
            FeedSource::Global { after } => {
                let cursor = Cursor::of(&self.app, caller, "events", "");
                let entries = next_of(after, |at| engine.global_feed(caller, at, BATCH));
                for (place, entry) in entries.await? {
                    let data = record(&entry, View::Client);
                    push_event(&mut out, "record", Some(&cursor.seal(place.0)), &data);
                }
            }
            FeedSource::Holds { after } => {
                let cursor = Cursor::of(&self.app, caller, "hold events", "");
                let changes = next_of(after, |at| engine.hold_feed(caller, at, BATCH));
                for one in changes.await? {
                    let id = cursor.seal_bytes(&position_bytes(one.position));
                    let data = to_body(&HoldNewsView {
                        change: one.kind,
                        hold: HoldView::of(&one.detail),
                    });
                    push_event(&mut out, "hold", Some(&id), &data);
                }
            }
        }
        Some(out.into())
    }
}

/// Reads the next entries and moves `after` past them. One call of `look` scans a bounded number of commits,
/// so this repeats until it finds an entry or reaches the end. None if the caller has lost read access.
async fn next_of<T, P, F>(after: &mut P, look: impl Fn(P) -> F) -> Option<Vec<T>>
where
    P: Copy + PartialEq,
    F: Future<Output = Result<(Vec<T>, P), EngineError>>,
{
    loop {
        let (found, at) = look(*after).await.ok()?;
        let is_last = at == *after;
        *after = at;
        if is_last || !found.is_empty() {
            return Some(found);
        }
    }
}

/// Writes one event. An event without an id does not move the reader's position.
fn push_event(out: &mut Vec<u8>, event: &str, id: Option<&str>, data: &[u8]) {
    if let Some(id) = id {
        out.extend_from_slice(b"id: ");
        out.extend_from_slice(id.as_bytes());
        out.push(b'\n');
    }
    out.extend_from_slice(b"event: ");
    out.extend_from_slice(event.as_bytes());
    out.extend_from_slice(b"\ndata: ");
    // A line break would end the event; between JSON tokens a space means the same.
    let one_line = data.iter().map(|byte| match byte {
        b'\n' | b'\r' => b' ',
        other => *other,
    });
    out.extend(one_line);
    out.extend_from_slice(b"\n\n");
}

/// Starts a stream.
fn begin(app: App, asked: CallContext, source: FeedSource) -> Result<Response, Problem> {
    let reader = FeedReader::new(app, asked, source)?;
    let body = Body::from_stream(stream::unfold(reader, FeedReader::next));
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::OK;
    let headers = response.headers_mut();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/event-stream"),
    );
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    Ok(response)
}
