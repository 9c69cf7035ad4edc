//! Feeds over server-sent events: one event per record, resumable, closed when the key is revoked. Between
//! the records of a session, deltas stream the answers that agents are writing.

use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use futures_util::stream;
use http::HeaderMap;
use serde::Deserialize;
use statehold_core::ids::SessionId;
use statehold_engine::api::feed::{Feed, FeedEvent, FeedPosition};
use statehold_engine::{EngineError, PageLimit, PendingShare, Share, api};
use utoipa::{IntoParams, IntoResponses};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, Cursor, revision};
use crate::http::call::{App, CallContext, Params, text};
use crate::http::problem::{Code, Problem};
use crate::http::shares::SMALL_ANSWER_BYTES;
use crate::http::sse;

/// Interval of keep-alive comments.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// The records read at a time. A longer one is read alone, in the memory for answers.
const BATCH: PageLimit = PageLimit {
    entries: 64,
    bytes: SMALL_ANSWER_BYTES,
};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(session))
        .routes(routes!(global))
        .routes(routes!(holds))
}

/// The start of a feed.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct FeedParams {
    /// Start after this revision. `Last-Event-ID` takes precedence.
    #[param(maximum = 9_007_199_254_740_991u64)]
    after: Option<u64>,
}

/// A stream that ends when the server stops or the caller loses read access.
#[derive(IntoResponses)]
#[response(status = 200, content_type = "text/event-stream")]
#[expect(dead_code, reason = "it only describes the answer")]
struct FeedStream(String);

/// Follow a session: one event per record, `id` is the revision.
///
/// Between the records, `delta` events without an id stream the answers that agents are writing:
/// `{request_id, task_id, agent, offset, text}`. `offset` is the number of bytes of the answer already sent
/// on this stream; 0 means that the answer starts, or starts again. The record has the final answer.
#[utoipa::path(
    get,
    path = "/v1/sessions/{session_id}/events",
    tag = "feeds",
    operation_id = "followSession",
    params(FeedParams),
    responses(FeedStream)
)]
async fn session(
    context: CallContext,
    Params(params): Params<FeedParams>,
    headers: HeaderMap,
) -> Answer {
    let session: SessionId = context.id("session_id")?;
    let after = match text(&headers, "last-event-id")? {
        Some(id) => Some(id.parse().map_err(|_| {
            let detail = "`Last-Event-ID` is the revision of the last event that arrived";
            Problem::new(Code::BadHeader, detail)
        })?),
        None => revision(params.after, "after")?,
    };
    let feed = api::feed::session(context.engine(), &context.caller, session, after).await?;
    begin(context, feed)
}

/// Follow every session that the caller may list.
///
/// One event per record. `id` is opaque: send it as `Last-Event-ID` to resume there; without it, the feed
/// begins with the next record. Needs `client` or `operator`.
#[utoipa::path(
    get,
    path = "/v1/events",
    tag = "feeds",
    operation_id = "followSessions",
    responses(FeedStream)
)]
async fn global(context: CallContext, headers: HeaderMap) -> Answer {
    let after = cursor(&context, GLOBAL).open(text(&headers, "last-event-id")?)?;
    let feed = api::feed::sessions(context.engine(), &context.caller, after).await?;
    begin(context, feed)
}

/// Follow every hold that the caller may see.
///
/// Each event has a `change` (`opened`, `voted` or `decided`) and the `hold` after it. `id` is opaque: send
/// it as `Last-Event-ID` to resume there. Open the feed before you read the list, so that no change is
/// missed.
#[utoipa::path(
    get,
    path = "/v1/holds/events",
    tag = "feeds",
    operation_id = "followHolds",
    responses(FeedStream)
)]
async fn holds(context: CallContext, headers: HeaderMap) -> Answer {
    let after = cursor(&context, HOLDS).open(text(&headers, "last-event-id")?)?;
    let feed = api::feed::holds(context.engine(), &context.caller, after).await?;
    begin(context, feed)
}

/// The names under which the positions of two feeds are sealed.
const GLOBAL: &str = "events";
const HOLDS: &str = "hold events";

fn cursor<'a>(context: &'a CallContext, feed: &'static str) -> Cursor<'a> {
    Cursor::of(context, feed, "")
}

/// Starts a stream.
fn begin(context: CallContext, feed: Feed) -> Answer {
    let reader = FeedReader {
        _share: context.app.shares.take_stream(&context.caller)?,
        context,
        feed,
        greeted: false,
        pending: None,
    };
    let body = Body::from_stream(stream::unfold(reader, FeedReader::next));
    let mut response = Response::new(body);
    sse::set_headers(response.headers_mut());
    Ok(response)
}

/// One open stream.
struct FeedReader {
    context: CallContext,
    feed: Feed,
    greeted: bool,
    /// The length of a long record, and the memory that the stream waits for to read it.
    pending: Option<(u64, PendingShare)>,
    _share: Share,
}

impl FeedReader {
    /// The next chunk of the stream. None ends it.
    async fn next(mut self) -> Option<(Result<Bytes, std::convert::Infallible>, Self)> {
        if !self.greeted {
            self.greeted = true;
            // Send something at once, so that proxies and clients see the stream open.
            let hello = Bytes::from_static(b"retry: 1000\n: following\n\n");
            return Some((Ok(hello), self));
        }
        // The client has taken everything before.
        self.context.slot.hold_answer(None);
        let mut keep_alive = std::pin::pin!(tokio::time::sleep(KEEP_ALIVE));
        let mut page = BATCH;
        loop {
            if let Some((bytes, pending)) = &mut self.pending {
                tokio::select! {
                    share = pending => self.context.slot.hold_answer(share.ok()),
                    () = self.context.engine().stopping() => return None,
                    () = self.context.api_key.revoked() => return None,
                    () = &mut keep_alive => {
                        return Some((Ok(Bytes::from_static(sse::KEEP_ALIVE)), self));
                    }
                }
                page.bytes = *bytes;
                self.pending = None;
            }
            let events = match self.feed.read(page).await {
                Err(EngineError::PageTooSmall { bytes }) if bytes > page.bytes => {
                    let (shares, caller) = (&self.context.app.shares, &self.context.caller);
                    self.pending = Some((bytes, shares.line_up_for_answer(caller, bytes)));
                    continue;
                }
                events => events.ok()?,
            };
            // Check the key after reading: drop events that were read after it was revoked.
            if !self.context.api_key.is_valid() {
                return None;
            }
            if !events.is_empty() {
                let chunk = self.encode(events);
                self.context.slot.shrink_answer(chunk.len() as u64);
                return Some((Ok(chunk), self));
            }
            tokio::select! {
                is_open = self.feed.changed() => if !is_open { return None },
                () = self.context.api_key.revoked() => return None,
                () = &mut keep_alive => {
                    return Some((Ok(Bytes::from_static(sse::KEEP_ALIVE)), self));
                }
            }
        }
    }

    fn encode(&self, events: Vec<FeedEvent>) -> Bytes {
        let mut out = Vec::new();
        for event in events {
            let id = event.position.map(|position| match position {
                FeedPosition::Revision(revision) => revision.to_string(),
                FeedPosition::Commit(place) => cursor(&self.context, GLOBAL).seal(place),
                FeedPosition::Hold(position) => cursor(&self.context, HOLDS).seal(position),
            });
            sse::push_event(&mut out, Some(event.kind), id.as_deref(), &event.data);
        }
        out.into()
    }
}
