//! Items and values of one session, read from its log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use statehold_core::apply::apply;
use statehold_core::ids::TaskId;
use statehold_core::item::PlacedItem;
use statehold_core::record::{Event, Record};
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::view::View;

use super::{Entry, Session};
use crate::port::{
    ItemQuery, PageLimit, PageRoom, PastItemQuery, PastValue, StateValue, StoreError, StoredItem,
    StoredRecord, record_bytes,
};

type ItemsAndNext = (Vec<StoredItem>, Option<u64>);

impl Session {
    /// The records up to a revision.
    pub(super) fn log_until(&self, revision: u64) -> &[Arc<Entry>] {
        let end = usize::try_from(revision).unwrap_or(usize::MAX);
        &self.log[..end.min(self.log.len())]
    }

    /// The state at a revision that the session had.
    pub(super) fn state_at(&self, revision: u64) -> Option<SessionState> {
        let log = self.log_until(revision);
        let first = log.first()?;
        let mut state = SessionState::new(first.record.content.session);
        for entry in log {
            apply(&mut state, &entry.record);
        }
        (state.revision == revision).then_some(state)
    }

    pub(super) fn records(
        &self,
        after: u64,
        limit: PageLimit,
    ) -> Result<Vec<StoredRecord>, StoreError> {
        let entries = self.page_after(after, limit, |entry| record_bytes(&entry.record))?;
        let stored = entries.into_iter().map(|entry| StoredRecord {
            record: entry.record.clone(),
            bodies: entry.bodies.clone(),
        });
        Ok(stored.collect())
    }

    pub(super) fn chain(&self, after: u64, limit: PageLimit) -> Result<Vec<Record>, StoreError> {
        let bytes = |entry: &Entry| entry.record.as_bytes().len() as u64;
        let entries = self.page_after(after, limit, bytes)?;
        Ok(entries
            .into_iter()
            .map(|entry| entry.record.clone())
            .collect())
    }

    pub(super) fn record_at(&self, revision: u64) -> Option<StoredRecord> {
        let page = PageLimit::entries(1);
        self.records(revision.checked_sub(1)?, page).ok()?.pop()
    }

    fn page_after(
        &self,
        after: u64,
        limit: PageLimit,
        bytes: impl Fn(&Entry) -> u64,
    ) -> Result<Vec<&Entry>, StoreError> {
        let mut room = PageRoom::new(limit);
        let mut page = Vec::new();
        for entry in &self.log[self.log_until(after).len()..] {
            if !room.take(bytes(entry))? {
                break;
            }
            page.push(&**entry);
        }
        Ok(page)
    }

    pub(super) fn items(&self, query: ItemQuery) -> Result<ItemsAndNext, StoreError> {
        let is_asked = |stored: &StoredItem| {
            query.task.is_none_or(|task| task == stored.placed.task)
                && query.before.is_none_or(|seq| stored.placed.item.seq < seq)
        };
        newest_items(self.all_items(), query.limit, is_asked)
    }

    pub(super) fn items_at(&self, query: PastItemQuery) -> Result<ItemsAndNext, StoreError> {
        let is_asked = |stored: &StoredItem| {
            query.before.is_none_or(|seq| stored.placed.item.seq < seq)
                && query.view.shows(&stored.placed)
        };
        let mut items = items_of(self.log_until(query.revision));
        if query.revision > self.state.revision {
            items.clear();
        }
        self.rename(&mut items, query.revision);
        newest_items(items, query.limit, is_asked)
    }

    /// Gives items of an earlier revision the tasks that forks since then gave them.
    fn rename(&self, items: &mut [StoredItem], revision: u64) {
        let since = &self.log[self.log_until(revision).len()..];
        for (_, event, _) in events(since) {
            if let Event::TaskRenamed { from, to } = event {
                rename_task(items, *from, *to);
            }
        }
    }

    pub(super) fn transcript(
        &self,
        before: Option<u64>,
        limit: PageLimit,
    ) -> Result<ItemsAndNext, StoreError> {
        newest_items(self.all_items(), limit, |stored| {
            before.is_none_or(|seq| stored.placed.item.seq < seq)
                && View::Client.shows(&stored.placed)
        })
    }

    pub(super) fn state_value(&self, key: &StateKey) -> Option<StateValue> {
        let version = self.state.keys.get(key)?.revision;
        let value = newest_value(&self.log, key)?;
        Some(StateValue { value, version })
    }

    pub(super) fn value_at(&self, key: &StateKey, revision: u64) -> Option<Vec<u8>> {
        let was_there = revision <= self.state.revision;
        was_there.then(|| value(self.log_until(revision), key))?
    }

    /// The session keys at a revision; none beyond the head.
    pub(super) fn values_at(&self, revision: u64) -> BTreeMap<StateKey, StateValue> {
        if revision > self.state.revision {
            return BTreeMap::new();
        }
        values(self.log_until(revision))
    }

    pub(super) fn past_values(
        &self,
        places: &[(StateKey, u64)],
        bytes_max: u64,
    ) -> Vec<Option<PastValue>> {
        let past = |(key, revision): &(StateKey, u64)| {
            let value = self.value_at(key, *revision)?;
            let bytes = value.len() as u64;
            let value = (bytes <= bytes_max).then_some(value);
            Some(PastValue { bytes, value })
        };
        places.iter().map(past).collect()
    }

    /// All items in order, each in the task whose history it is in now.
    pub(super) fn all_items(&self) -> Vec<StoredItem> {
        items_of(&self.log)
    }

    /// The private state of a task; a fork's tasks begin with that of the tasks they were.
    pub(super) fn task_state(&self, task: TaskId) -> Option<Vec<u8>> {
        let mut states: BTreeMap<TaskId, Vec<u8>> = BTreeMap::new();
        for (_, event, bodies) in events(&self.log) {
            match event {
                Event::TaskStatePut { task, .. } => {
                    let value = bodies.first().cloned().flatten();
                    // A removed value does not bring back the value before it.
                    states.remove(task);
                    states.extend(value.map(|value| (*task, value)));
                }
                Event::PayloadsErased { .. } => states.clear(),
                Event::TaskRenamed { from, to } => {
                    let value = states.remove(from);
                    states.extend(value.map(|value| (*to, value)));
                }
                _ => {}
            }
        }
        states.remove(&task)
    }
}

/// The items of a log in order, each in the task whose history it is in at the end.
fn items_of(log: &[Arc<Entry>]) -> Vec<StoredItem> {
    let mut items: Vec<StoredItem> = Vec::new();
    let mut roots = BTreeSet::new();
    for (entry, event, bodies) in events(log) {
        match event {
            Event::RequestStarted {
                request,
                parent: None,
                ..
            } => {
                roots.insert(*request);
            }
            Event::ItemsAppended {
                task,
                request,
                items: new,
            } => {
                let mut bodies = bodies.iter().cloned();
                for item in new {
                    let placed = PlacedItem {
                        task: *task,
                        request: *request,
                        is_root: roots.contains(request),
                        rewound: false,
                        item: item.clone(),
                    };
                    let body = bodies.next().flatten();
                    let attached = bodies.by_ref().take(item.attachments.len());
                    items.push(StoredItem {
                        placed,
                        at: entry.record.content.at,
                        body,
                        attachments: attached.collect(),
                    });
                }
            }
            Event::TaskRenamed { from, to } => {
                rename_task(&mut items, *from, *to);
            }
            Event::Rewound {
                items_kept,
                items_until,
                ..
            } => {
                for stored in &mut items {
                    let seq = stored.placed.item.seq;
                    stored.placed.rewound |= *items_kept < seq && seq <= *items_until;
                }
            }
            _ => {}
        }
    }
    items
}

/// A page of the requested items, newest first, and the number before which the next page begins.
fn newest_items(
    items: Vec<StoredItem>,
    limit: PageLimit,
    is_asked: impl Fn(&StoredItem) -> bool,
) -> Result<ItemsAndNext, StoreError> {
    let mut room = PageRoom::new(limit);
    let mut page: Vec<StoredItem> = Vec::new();
    for stored in items.into_iter().rev().filter(is_asked) {
        if !room.take(stored.payload_bytes())? {
            let next = page.last().map(|last| last.placed.item.seq);
            return Ok((page, next));
        }
        page.push(stored);
    }
    Ok((page, None))
}

/// Moves the items of a task to the id that a fork gave it.
fn rename_task(items: &mut [StoredItem], from: TaskId, to: TaskId) {
    let placed = items.iter_mut().map(|stored| &mut stored.placed);
    for placed in placed.filter(|placed| placed.task == from) {
        placed.task = to;
    }
}

/// The session keys after a log.
pub(super) fn values(log: &[Arc<Entry>]) -> BTreeMap<StateKey, StateValue> {
    let mut values = BTreeMap::new();
    for (entry, event, bodies) in events(log) {
        let version = entry.record.content.seq;
        let (key, value) = match event {
            Event::StatePut { key, .. } => (key, bodies.first().cloned().flatten()),
            Event::StateRestored { key, from, .. } => {
                let end = usize::try_from(*from).unwrap_or(usize::MAX);
                (key, value(&log[..end.min(log.len())], key))
            }
            Event::StateDeleted { key, .. } => (key, None),
            _ => continue,
        };
        match value {
            Some(value) => values.insert(key.clone(), StateValue { value, version }),
            None => values.remove(key),
        };
    }
    values
}

/// The value of one key after a log.
fn value(log: &[Arc<Entry>], key: &StateKey) -> Option<Vec<u8>> {
    values(log).remove(key).map(|found| found.value)
}

/// The newest value of one key, found from the end of a log.
fn newest_value(log: &[Arc<Entry>], key: &StateKey) -> Option<Vec<u8>> {
    for (index, entry) in log.iter().enumerate().rev() {
        let changes =
            events(std::slice::from_ref(entry)).filter_map(|(_, event, bodies)| match event {
                Event::StatePut { key: at, .. } if at == key => {
                    Some(bodies.first().cloned().flatten())
                }
                Event::StateRestored { key: at, from, .. } if at == key => {
                    let end = usize::try_from(*from).unwrap_or(usize::MAX).min(index);
                    Some(newest_value(&log[..end], key))
                }
                Event::StateDeleted { key: at, .. } if at == key => Some(None),
                _ => None,
            });
        if let Some(value) = changes.last() {
            return value;
        }
    }
    None
}

/// Every event with its record and its own payloads.
pub(super) fn events(
    log: &[Arc<Entry>],
) -> impl Iterator<Item = (&Entry, &Event, &[Option<Vec<u8>>])> {
    log.iter().flat_map(|entry| {
        let mut next = 0;
        entry.record.content.events.iter().map(move |event| {
            let first = next;
            next += event.bodies().len();
            (&**entry, event, &entry.bodies[first..next])
        })
    })
}
