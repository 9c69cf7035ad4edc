//! Entries of feeds: records, filtered to the content that the reader may see, and deltas of answers in
//! progress.

use serde::Serialize;
use serde_json::{Value, json};
use statehold_core::ids::{RequestId, TaskId};
use statehold_core::item::{Item, PlacedItem};
use statehold_core::record::Event;
use statehold_core::view::View;

use super::item::ItemView;
use super::json::{Time, to_body};
use crate::feed::{Delta, FeedEntry};
use crate::kept::HoldBody;

/// The word on the wire for a value of a `snake_case` enum.
pub fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => word,
        _ => String::new(),
    }
}

/// A chunk of an answer in progress.
#[derive(Debug, Serialize)]
pub struct DeltaView<'a> {
    request_id: RequestId,
    task_id: TaskId,
    agent: &'a str,
    offset: usize,
    text: &'a str,
}

impl<'a> DeltaView<'a> {
    /// The view of a chunk.
    pub fn of(delta: &'a Delta) -> Self {
        Self {
            request_id: delta.request,
            task_id: delta.task,
            agent: delta.agent.as_str(),
            offset: delta.piece.offset,
            text: &delta.piece.text,
        }
    }
}

/// One record of a feed as a view shows it.
pub fn record(entry: &FeedEntry, view: View) -> Vec<u8> {
    let content = &entry.stored.record.content;
    let mut bodies = entry.stored.bodies.iter();
    let mut events = Vec::with_capacity(content.events.len());
    for event in &content.events {
        let own: Vec<Option<&[u8]>> = bodies
            .by_ref()
            .take(event.bodies().len())
            .map(Option::as_deref)
            .collect();
        events.extend(shown(event, &own, entry, view));
    }
    to_body(&json!({
        "session_id": content.session,
        "revision": content.seq,
        "at": Time(content.at),
        "command": content.command,
        "events": events,
    }))
}

/// One event as a view shows it; None if it is hidden.
#[expect(clippy::too_many_lines, reason = "one arm per event, nothing else")]
fn shown(event: &Event, bodies: &[Option<&[u8]>], entry: &FeedEntry, view: View) -> Option<Value> {
    let sees_all = view == View::Trace;
    Some(match event {
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
        } => json!({
            "type": "request_started", "request_id": request, "alias": format!("R{number}"),
            "task_id": task, "parent_request_id": parent,
        }),
        Event::RequestLeased { request, .. } => {
            json!({"type": "request_leased", "request_id": request})
        }
        Event::LeaseLapsed { request } => json!({"type": "lease_lapsed", "request_id": request}),
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
            let is_root = entry.roots.get(task).copied().unwrap_or(false);
            let shown = items_shown(items, bodies, |item| {
                let placed = PlacedItem {
                    task: *task,
                    request: *request,
                    is_root,
                    rewound: false,
                    item: item.clone(),
                };
                view.shows(&placed)
            });
            let at = Time(entry.stored.record.content.at);
            let items: Vec<Value> = shown
                .into_iter()
                .map(|(item, body, files)| {
                    let out = ItemView::of_parts(item, (*task, *request), at, body, &files);
                    let out = out.seen_by(view);
                    serde_json::to_value(out).unwrap_or_default()
                })
                .collect();
            if items.is_empty() {
                return None;
            }
            json!({"type": "items_appended", "task_id": task, "request_id": request, "items": items})
        }
        Event::HoldOpened {
            hold,
            number,
            request,
            kind,
            deadline,
            ..
        } => {
            let body: HoldBody = bodies
                .first()
                .copied()
                .flatten()
                .and_then(|body| serde_json::from_slice(body).ok())
                .unwrap_or_default();
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
            "status": decision.status, "by": decision.by,
        }),
        Event::StatePut { key, request, .. } => {
            json!({"type": "state_put", "key": key, "request_id": request})
        }
        Event::StateDeleted { key, request } => {
            json!({"type": "state_deleted", "key": key, "request_id": request})
        }
        Event::StateRestored { key, from } => {
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
        Event::TaskStatePut { task, request, .. } if sees_all => {
            json!({"type": "task_state_put", "task_id": task, "request_id": request})
        }
        Event::TaskStatePut { .. } => return None,
    })
}

type ShownItem<'a> = (&'a Item, Option<&'a [u8]>, Vec<Option<Vec<u8>>>);

/// The visible items, each with its payloads.
fn items_shown<'a>(
    items: &'a [Item],
    bodies: &[Option<&'a [u8]>],
    is_shown: impl Fn(&Item) -> bool,
) -> Vec<ShownItem<'a>> {
    let mut bodies = bodies.iter().copied();
    let mut shown = Vec::new();
    for item in items {
        let body = bodies.next().flatten();
        let files = bodies.by_ref().take(item.attachments.len());
        let files = files.map(|file| file.map(<[u8]>::to_vec)).collect();
        if is_shown(item) {
            shown.push((item, body, files));
        }
    }
    shown
}
