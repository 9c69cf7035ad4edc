//! Items and values of one session, read from its log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use statehold_core::apply::apply;
use statehold_core::ids::TaskId;
use statehold_core::item::PlacedItem;
use statehold_core::record::Event;
use statehold_core::scope::StateKey;
use statehold_core::session::SessionState;
use statehold_core::view::View;

use super::{Entry, Session};
use crate::port::{ItemQuery, StateValue, StoredItem, StoredRecord};

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

    pub(super) fn records(&self, after: u64, limit: usize) -> Vec<StoredRecord> {
        let skipped = self.log_until(after).len();
        let entries = self.log[skipped..].iter().take(limit);
        let stored = entries.map(|entry| StoredRecord {
            record: entry.record.clone(),
            bodies: entry.bodies.clone(),
        });
        stored.collect()
    }

    pub(super) fn items(&self, query: ItemQuery) -> Vec<StoredItem> {
        let is_asked = |stored: &StoredItem| {
            query.task.is_none_or(|task| task == stored.placed.task)
                && query.before.is_none_or(|seq| stored.placed.item.seq < seq)
        };
        let newest_first = self.all_items().into_iter().rev();
        newest_first.filter(is_asked).take(query.limit).collect()
    }

    pub(super) fn transcript(
        &self,
        before: Option<u64>,
        limit: usize,
    ) -> (Vec<StoredItem>, Option<u64>) {
        let query = ItemQuery {
            task: None,
            before,
            limit: usize::MAX,
        };
        let mut items = self.items(query);
        items.retain(|stored| View::Client.shows(&stored.placed));
        let next = items.get(limit).map(|_| items[limit - 1].placed.item.seq);
        items.truncate(limit);
        (items, next)
    }

    pub(super) fn state_value(&self, key: &StateKey) -> Option<StateValue> {
        let version = *self.state.keys.get(key)?;
        let value = newest_value(&self.log, key)?;
        Some(StateValue { value, version })
    }

    pub(super) fn value_at(&self, key: &StateKey, revision: u64) -> Option<Vec<u8>> {
        let was_there = revision <= self.state.revision;
        was_there.then(|| value(self.log_until(revision), key))?
    }

    /// All items in order, each in the task whose history it is in now.
    pub(super) fn all_items(&self) -> Vec<StoredItem> {
        let mut items: Vec<StoredItem> = Vec::new();
        let mut roots = BTreeSet::new();
        for (entry, event, bodies) in events(&self.log) {
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
                    let placed = items.iter_mut().map(|stored| &mut stored.placed);
                    for placed in placed.filter(|placed| placed.task == *from) {
                        placed.task = *to;
                    }
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

/// The session keys after a log.
pub(super) fn values(log: &[Arc<Entry>]) -> BTreeMap<StateKey, StateValue> {
    let mut values = BTreeMap::new();
    for (entry, event, bodies) in events(log) {
        let version = entry.record.content.seq;
        let (key, value) = match event {
            Event::StatePut { key, .. } => (key, bodies.first().cloned().flatten()),
            Event::StateRestored { key, from } => {
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
                Event::StateRestored { key: at, from } if at == key => {
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
