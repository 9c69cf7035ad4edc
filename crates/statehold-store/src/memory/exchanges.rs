//! Memories of agents, found by walking the log of a session.

use statehold_core::ids::{RequestId, TaskId};
use statehold_core::memory::Memory;
use statehold_core::projection::{EndedExchange, project};
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_core::session::SessionState;
use statehold_core::time::Timestamp;

use super::Session;
use super::history::events;
use crate::port::{MemoryPage, MemoryQuery, StoredExchange, StoredItem};

/// An exchange, and the record that ended it.
struct ExchangeEnd {
    exchange: EndedExchange,
    record: u64,
    at: Timestamp,
}

impl Session {
    /// The newest revision at or before one that no rewind has taken back.
    pub(super) fn kept_revision(&self, revision: u64) -> u64 {
        let mut kept = revision;
        for entry in self.log.iter().rev() {
            for event in &entry.record.content.events {
                if let Event::Rewound { to, .. } = event
                    && entry.record.content.seq > kept
                {
                    kept = kept.min(*to);
                }
            }
        }
        kept
    }

    /// The revision of its newest rewind; 0 if there is none.
    pub(super) fn last_rewind(&self) -> u64 {
        let is_rewind = |event: &Event| matches!(event, Event::Rewound { .. });
        let mut own = self.log.iter().rev();
        let found = own.find(|entry| {
            let content = &entry.record.content;
            content.session == self.state.session && content.events.iter().any(is_rewind)
        });
        found.map_or(0, |entry| entry.record.content.seq)
    }

    /// A page of a memory.
    pub(super) fn memory(&self, query: &MemoryQuery) -> MemoryPage {
        let ended = self.ended_exchanges();
        let find = |memory: Memory| {
            let is_it = |ended: &&ExchangeEnd| {
                (ended.record, ended.exchange.request) == (memory.record, memory.request)
            };
            ended.iter().find(is_it)
        };
        let mut page = MemoryPage {
            rest: query.memory,
            ..MemoryPage::default()
        };
        let mut left = query.bytes;
        while let Some(found) = page.rest.and_then(find)
            && page.exchanges.len() < query.exchanges
        {
            let items = self.items_of(found.exchange.request);
            let bytes: u64 = items.iter().map(bytes_of).sum();
            let too_large = bytes > left;
            if too_large && !page.exchanges.is_empty() {
                break;
            }
            left = left.saturating_sub(bytes);
            page.exchanges.push(StoredExchange {
                number: Memory::count(found.exchange.before) + 1,
                request: found.exchange.request,
                task: items
                    .first()
                    .map_or(found.exchange.task, |item| item.placed.task),
                outcome: found.exchange.outcome,
                ended_at: found.at,
                items: if too_large { Vec::new() } else { items },
                too_large,
                task_state: self.state_written(&found.exchange).and_then(first),
            });
            page.rest = found.exchange.before;
        }
        let own = query.reader.and_then(|reader| self.state_of(reader));
        let chain = std::iter::successors(query.memory.and_then(find), |newer| {
            newer.exchange.before.and_then(find)
        });
        let mut written = chain.filter_map(|ended| self.state_written(&ended.exchange));
        page.task_state = own.or_else(|| written.next().and_then(first));
        page
    }

    /// All exchanges that ever ended, rewound ones included.
    fn ended_exchanges(&self) -> Vec<ExchangeEnd> {
        let Some(first) = self.log.first() else {
            return Vec::new();
        };
        let mut state = SessionState::new(first.record.content.session);
        let mut ended = Vec::new();
        for entry in &self.log {
            let content = &entry.record.content;
            let (after, changes) = project(&state, &entry.record);
            state = after;
            ended.extend(changes.exchanges.into_iter().map(|exchange| ExchangeEnd {
                exchange,
                record: content.seq,
                at: content.at,
            }));
        }
        ended
    }

    fn items_of(&self, request: RequestId) -> Vec<StoredItem> {
        let items = self.all_items().into_iter();
        items
            .filter(|stored| stored.placed.request == request)
            .collect()
    }

    /// The payloads of the event by which a completed exchange last wrote private state, if it did.
    fn state_written(&self, exchange: &EndedExchange) -> Option<&[Option<Vec<u8>>]> {
        let is_its = |event: &Event| matches!(event, Event::TaskStatePut { request, .. } if *request == exchange.request);
        let completed = exchange.outcome == RequestOutcome::Completed;
        let written = events(&self.log).filter(|(_, event, _)| completed && is_its(event));
        written.last().map(|(_, _, bodies)| bodies)
    }

    /// The private state of a task, if this request was the last to write it.
    fn state_of(&self, (task, request): (TaskId, RequestId)) -> Option<Vec<u8>> {
        let mut writer = None;
        for (_, event, _) in events(&self.log) {
            if let Event::TaskStatePut {
                task: put, request, ..
            } = event
                && *put == task
            {
                writer = Some(*request);
            }
        }
        self.task_state(task).filter(|_| writer == Some(request))
    }
}

/// The one payload of an event. None if it was erased.
fn first(bodies: &[Option<Vec<u8>>]) -> Option<Vec<u8>> {
    bodies.first().cloned().flatten()
}

fn bytes_of(stored: &StoredItem) -> u64 {
    let item = &stored.placed.item;
    let files = item
        .attachments
        .iter()
        .map(|file| u64::from(file.body.bytes));
    u64::from(item.body.bytes) + files.sum::<u64>()
}
