//! Feeds: the records of one session or of all, and the changes of holds, filtered to the content that the
//! reader may see. Between the records of a session, deltas stream the answers that agents are writing.

use serde::Serialize;
use serde_json::{Value, json};
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::item::{Item, PlacedItem};
use statehold_core::record::{CommandName, Event};
use statehold_core::view::View;
use statehold_store::{HoldChangeKind, PageLimit};
use tokio::sync::watch;

use super::hold::HoldView;
use super::item::ItemView;
use super::json::{Time, to_body};
use crate::bodies::{HoldBody, parse};
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::feed::{Delta, FeedEntry, SessionFeed, SessionNews};
use crate::guard::access::{require_hold_reader, require_lister};
use crate::holds::HoldNews;

pub use crate::holds::HoldPosition;

/// Follows a session: its records after a revision, and the answers in progress. Without a revision, the
/// feed starts at the newest one.
///
/// # Errors
///
/// If the caller may not read the session, or it has no such revision.
pub async fn session(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    after: Option<u64>,
) -> Result<Feed, EngineError> {
    let current = engine.session(caller, session).await?.revision;
    let after = after.unwrap_or(current);
    if after > current {
        return Err(EngineError::FeedAhead { current });
    }
    let feed = Box::new(SessionFeed::new(
        engine.clone(),
        caller.clone(),
        session,
        after,
    ));
    Ok(Feed::new(engine, caller, FeedSource::Session(feed)))
}

/// Follows every session that the caller may list, from a position in the order of all commits or from now.
///
/// # Errors
///
/// If the caller may not list sessions.
pub async fn sessions(
    engine: &Engine,
    caller: &Caller,
    after: Option<u64>,
) -> Result<Feed, EngineError> {
    require_lister(caller)?;
    let after = match after {
        Some(after) => after,
        None => engine.inner().store.last_place().await?,
    };
    Ok(Feed::new(engine, caller, FeedSource::Sessions { after }))
}

/// Follows every hold that the caller may see, from a position or from now.
///
/// # Errors
///
/// If the caller may not see holds.
pub async fn holds(
    engine: &Engine,
    caller: &Caller,
    after: Option<HoldPosition>,
) -> Result<Feed, EngineError> {
    require_hold_reader(caller)?;
    let after = match after {
        Some(after) => after,
        None => HoldPosition::after_all(engine.inner().store.last_place().await?),
    };
    Ok(Feed::new(engine, caller, FeedSource::Holds { after }))
}

/// One reader of a feed. It stores only its position, so a slow reader buffers nothing.
#[derive(Debug)]
pub struct Feed {
    engine: Engine,
    caller: Caller,
    commits: watch::Receiver<u64>,
    source: FeedSource,
}

#[derive(Debug)]
enum FeedSource {
    Session(Box<SessionFeed>),
    Sessions { after: u64 },
    Holds { after: HoldPosition },
}

impl Feed {
    fn new(engine: &Engine, caller: &Caller, source: FeedSource) -> Self {
        Self {
            engine: engine.clone(),
            caller: caller.clone(),
            commits: engine.inner().any_commit.subscribe(),
            source,
        }
    }

    /// The events since the last call: the records or changes that fit `limit`, and the deltas between them. An
    /// empty list means that there is none yet.
    ///
    /// # Errors
    ///
    /// [`EngineError::PageTooSmall`] if the next record does not fit; the position stays. If the caller has lost
    /// read access, or the store fails.
    pub async fn read(&mut self, limit: PageLimit) -> Result<Vec<FeedEvent>, EngineError> {
        // `changed` must notice every commit that this read may miss.
        self.commits.mark_unchanged();
        let (engine, caller) = (&self.engine, &self.caller);
        match &mut self.source {
            FeedSource::Session(feed) => {
                let news = feed.read(limit).await?;
                Ok(news.iter().map(FeedEvent::of_session).collect())
            }
            FeedSource::Sessions { after } => {
                let found = next_of(after, |at| engine.global_feed(caller, at, limit)).await?;
                let events = found.iter().map(|(place, entry)| {
                    let position = FeedPosition::Commit(*place);
                    FeedEvent::new("record", Some(position), record(entry))
                });
                Ok(events.collect())
            }
            FeedSource::Holds { after } => {
                let found = next_of(after, |at| engine.hold_feed(caller, at, limit)).await?;
                Ok(found.iter().map(FeedEvent::of_hold).collect())
            }
        }
    }

    /// Waits until `read` may return events. False once the engine stops: the feed has ended.
    pub async fn changed(&mut self) -> bool {
        let changed = async {
            match &mut self.source {
                FeedSource::Session(feed) => feed.changed().await,
                // The sender lives as long as the engine.
                _ => drop(self.commits.changed().await),
            }
        };
        tokio::select! {
            () = changed => true,
            () = self.engine.inner().stop.cancelled() => false,
        }
    }
}

/// Reads the next entries and moves `after` past them. One call of `look` scans a bounded number of commits,
/// so this repeats until it finds an entry or reaches the end.
async fn next_of<T, P, F>(after: &mut P, look: impl Fn(P) -> F) -> Result<Vec<T>, EngineError>
where
    P: Copy + PartialEq,
    F: Future<Output = Result<(Vec<T>, P), EngineError>>,
{
    loop {
        let (found, at) = look(*after).await?;
        let is_last = at == *after;
        *after = at;
        if is_last || !found.is_empty() {
            return Ok(found);
        }
    }
}

/// One event of a feed.
#[derive(Debug, Clone)]
pub struct FeedEvent {
    /// `record`, `delta` or `hold`.
    pub kind: &'static str,
    /// The position to continue from. None for a delta, which does not move the reader.
    pub position: Option<FeedPosition>,
    /// The view, as JSON.
    pub data: Vec<u8>,
}

/// A position in a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeedPosition {
    /// A revision of the session.
    Revision(u64),
    /// A place in the order of all commits.
    Commit(u64),
    /// A change of a hold.
    Hold(HoldPosition),
}

impl FeedEvent {
    fn new(kind: &'static str, position: Option<FeedPosition>, data: Vec<u8>) -> Self {
        Self {
            kind,
            position,
            data,
        }
    }

    fn of_session(news: &SessionNews) -> Self {
        match news {
            SessionNews::Record(entry) => {
                let position = FeedPosition::Revision(entry.stored.record.content.seq);
                Self::new("record", Some(position), record(entry))
            }
            SessionNews::Delta(delta) => Self::new("delta", None, to_body(&DeltaView::of(delta))),
        }
    }

    fn of_hold(news: &HoldNews) -> Self {
        let view = HoldNewsView {
            change: news.kind,
            hold: HoldView::of(&news.detail),
        };
        let position = FeedPosition::Hold(news.position);
        Self::new("hold", Some(position), to_body(&view))
    }
}

/// A change of a hold, and the hold as of that change.
#[derive(Debug, Serialize)]
struct HoldNewsView {
    change: HoldChangeKind,
    hold: HoldView,
}

/// A chunk of an answer in progress.
#[derive(Debug, Serialize)]
struct DeltaView<'a> {
    request_id: RequestId,
    task_id: TaskId,
    agent: &'a str,
    offset: usize,
    text: &'a str,
}

impl<'a> DeltaView<'a> {
    fn of(delta: &'a Delta) -> Self {
        Self {
            request_id: delta.request,
            task_id: delta.task,
            agent: delta.agent.as_str(),
            offset: delta.piece.offset,
            text: &delta.piece.text,
        }
    }
}

/// A record of a feed. Payloads stay the JSON that they are: parsed, they would take many times the memory.
#[derive(Debug, Serialize)]
struct RecordView<'a> {
    session_id: SessionId,
    revision: u64,
    at: Time,
    command: &'a CommandName,
    events: Vec<EventView>,
}

/// An event of a record.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum EventView {
    Items {
        r#type: &'static str,
        task_id: TaskId,
        request_id: RequestId,
        items: Vec<ItemView>,
    },
    Other(Value),
}

/// One record of a feed, as clients see it.
fn record(entry: &FeedEntry) -> Vec<u8> {
    let content = &entry.stored.record.content;
    let mut bodies = entry.stored.bodies.as_slice();
    let mut events = Vec::with_capacity(content.events.len());
    for event in &content.events {
        let (own, rest) = bodies.split_at(event.bodies().len());
        bodies = rest;
        events.extend(shown(event, own, entry));
    }
    to_body(&RecordView {
        session_id: content.session,
        revision: content.seq,
        at: Time(content.at),
        command: &content.command,
        events,
    })
}

/// One event as clients see it; None if it is hidden.
#[expect(clippy::too_many_lines, reason = "one arm per event, nothing else")]
fn shown(event: &Event, bodies: &[Option<Vec<u8>>], entry: &FeedEntry) -> Option<EventView> {
    let shown = match event {
        Event::SessionCreated { owner, .. } => {
            json!({"type": "session_created", "app": owner.app, "agent": owner.agent})
        }
        Event::SessionPatched { .. } => json!({"type": "session_patched"}),
        Event::SessionClosed => json!({"type": "session_closed"}),
        Event::PayloadsErased { payloads } => {
            json!({"type": "payloads_erased", "payloads": payloads})
        }
        Event::SessionForked { origin, at, .. } => {
            json!({"type": "session_forked", "origin": origin, "at": at})
        }
        Event::Rewound { to, .. } => json!({"type": "rewound", "to": to}),
        Event::TaskOpened {
            task,
            number,
            agent,
            parent,
            ..
        } => json!({
            "type": "task_opened", "task_id": task, "alias": format!("T{number}"), "agent": agent,
            "parent_request_id": parent.map(|link| link.request),
        }),
        Event::TaskStatusChanged { task, status } => {
            json!({"type": "task_status_changed", "task_id": task, "status": status})
        }
        Event::TaskClosed { task, status } => {
            json!({"type": "task_closed", "task_id": task, "status": status})
        }
        Event::TaskRenamed { from, to } => {
            json!({"type": "task_renamed", "from": from, "task_id": to})
        }
        Event::RequestStarted {
            request,
            number,
            task,
            parent,
            ..
        } => json!({
            "type": "request_started", "request_id": request, "alias": format!("R{number}"),
            "task_id": task, "parent_request_id": parent,
        }),
        Event::RequestLeased { request, .. } => {
            json!({"type": "request_leased", "request_id": request})
        }
        Event::LeaseLapsed { request } => json!({"type": "lease_lapsed", "request_id": request}),
        Event::FenceRaised { request, .. } => {
            json!({"type": "fence_raised", "request_id": request})
        }
        Event::LeaseReleased { request } => {
            json!({"type": "lease_released", "request_id": request})
        }
        Event::RequestStatusChanged { request, status } => {
            json!({"type": "request_status_changed", "request_id": request, "status": status})
        }
        Event::RequestEnded {
            request, outcome, ..
        } => json!({"type": "request_ended", "request_id": request, "outcome": outcome}),
        Event::ItemsAppended {
            task,
            request,
            items,
        } => {
            let items = items_shown(entry, (*task, *request), items, bodies);
            return (!items.is_empty()).then_some(EventView::Items {
                r#type: "items_appended",
                task_id: *task,
                request_id: *request,
                items,
            });
        }
        Event::HoldOpened {
            hold,
            number,
            request,
            kind,
            deadline,
            ..
        } => {
            let body: HoldBody = parse(bodies.first().and_then(Option::as_deref));
            json!({
                "type": "hold_opened", "hold_id": hold, "number": number, "request_id": request,
                "kind": kind, "title": body.title, "message": body.message,
                "expires_at": deadline.map(Time),
            })
        }
        Event::VoteRecorded { hold, .. } => json!({"type": "vote_recorded", "hold_id": hold}),
        Event::HoldDecided {
            hold,
            decision,
            request,
            ..
        } => json!({
            "type": "hold_decided", "hold_id": hold, "request_id": request,
            "status": decision.status, "by": entry.names.of(&decision.by),
        }),
        Event::StatePut { key, request, .. } => {
            json!({"type": "state_put", "key": key, "request_id": request})
        }
        Event::StateDeleted { key, request } => {
            json!({"type": "state_deleted", "key": key, "request_id": request})
        }
        Event::StateRestored { key, from, .. } => {
            json!({"type": "state_restored", "key": key, "from": from})
        }
        Event::SharedStatePut {
            key,
            request,
            operand,
            ..
        } => json!({
            "type": if operand.is_some() { "state_put" } else { "state_deleted" },
            "key": key, "request_id": request,
        }),
        Event::TaskStatePut { .. } | Event::MemoryRestored { .. } => return None,
    };
    Some(EventView::Other(shown))
}

/// The items that clients see, each with its payloads.
fn items_shown(
    entry: &FeedEntry,
    (task, request): (TaskId, RequestId),
    items: &[Item],
    mut bodies: &[Option<Vec<u8>>],
) -> Vec<ItemView> {
    let is_root = entry.roots.get(&task).copied().unwrap_or(false);
    let at = Time(entry.stored.record.content.at);
    let mut shown = Vec::new();
    for item in items {
        let (own, rest) = bodies.split_at(1 + item.attachments.len());
        bodies = rest;
        let placed = PlacedItem {
            task,
            request,
            is_root,
            rewound: false,
            item: item.clone(),
        };
        if View::Client.shows(&placed) {
            let body = own[0].as_deref();
            let view = ItemView::of_parts(item, (task, request), at, body, &own[1..]);
            shown.push(view.seen_by(View::Client));
        }
    }
    shown
}
