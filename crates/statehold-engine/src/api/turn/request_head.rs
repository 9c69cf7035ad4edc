//! The head of a request: the facts that every reader of it needs.

use statehold_core::ids::RequestId;
use statehold_core::item::{Item, Role};
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_core::time::Timestamp;

use crate::read::RequestDetail;

/// The facts about a request that every reader of it needs.
#[derive(Debug, Clone, Copy)]
pub struct RequestHead {
    /// The request.
    pub id: RequestId,
    /// Its number in the session.
    pub number: u64,
    /// The request that started it.
    pub parent: Option<RequestId>,
    /// The revision that started it.
    pub started_by: u64,
    /// When it started.
    pub started_at: Timestamp,
    /// Its end. None while it is live.
    pub ended: Option<RequestEnd>,
}

/// The end of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestEnd {
    /// How it ended.
    pub outcome: RequestOutcome,
    /// When.
    pub at: Timestamp,
    /// The revision that ended it.
    pub by: u64,
}

impl RequestHead {
    /// The head of a request. None if the record that started it is gone.
    pub fn of(detail: &RequestDetail) -> Option<Self> {
        let started_at = detail.started.as_ref()?.record.content.at;
        let request = &detail.request;
        Some(Self {
            id: request.id(),
            number: request.number(),
            parent: request.parent(),
            started_by: request.started_by(),
            started_at,
            ended: request.ended().map(|ended| RequestEnd {
                outcome: ended.outcome,
                at: ended.ended_at,
                by: ended.ended_by,
            }),
        })
    }

    /// The name of the request for people: `R7`.
    pub fn alias(&self) -> String {
        format!("R{}", self.number)
    }
}

/// The item with which a request started.
pub(super) fn input_of(detail: &RequestDetail) -> Option<&Item> {
    let id = RequestHead::of(detail)?.id;
    let events = &detail.started.as_ref()?.record.content.events;
    let items = events.iter().find_map(|event| match event {
        Event::ItemsAppended { request, items, .. } if *request == id => Some(items),
        _ => None,
    })?;
    items.iter().find(|item| item.role == Some(Role::User))
}
