//! The difference between two revisions of a session: the session keys that changed, with who wrote them, and the
//! messages that came.

mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::principal::Principal;
use statehold_core::record::{CommandName, Event, Record, RecordContent};
use statehold_core::scope::StateKey;
use statehold_core::time::Timestamp;
use statehold_store::{PageLimit, PastValue};

use super::require_revision;
use crate::api::json::raw_bytes;
use crate::caller::Caller;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::people::PeopleNames;
use crate::read::own_page;

pub use view::{AddedMessage, PastValueView, RewindMark, SessionDiff, StateChange};

/// A longer value is left out of a difference.
const VALUE_BYTES_MAX: u64 = 16 * 1024;
/// How many changes one query reads the values of.
const CHANGES_AT_ONCE: usize = 16;
/// The size of a change beside its key and its values.
const CHANGE_BYTES: u64 = 400;

/// Which difference to read.
#[derive(Debug, Clone, Default)]
pub struct DiffInput {
    /// The earlier revision; 0 is the empty session before its first record.
    pub from: u64,
    /// The later revision. None is the newest one.
    pub to: Option<u64>,
    /// Only changes of this key.
    pub key: Option<StateKey>,
    /// Every write on its own, in the order of the records.
    pub every_write: bool,
}

/// Where a page of a difference begins.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct DiffPlace {
    /// The revision before the records of the page.
    from: u64,
    /// The last record of the page, if an earlier page had a part of its changes.
    through: Option<u64>,
    /// The later revision of the whole difference.
    to: u64,
    /// The number of changes that earlier pages had.
    skip: usize,
}

/// Reads a page of the difference between two revisions. A page looks at a bounded number of records and says which;
/// the next page goes on after them. Its changes are those between its own revisions.
///
/// # Errors
///
/// If the caller may not read records, or the session has no such revisions.
pub async fn diff(
    engine: &Engine,
    caller: &Caller,
    session: SessionId,
    input: &DiffInput,
    (place, limit): (Option<DiffPlace>, PageLimit),
) -> Result<(SessionDiff, Option<DiffPlace>), EngineError> {
    let summary = engine.traceable(caller, session).await?;
    if summary.deleted {
        return Err(EngineError::NotFound);
    }
    let current = summary.revision;
    require_revision("from", input.from, (0, current))?;
    let to = input.to.unwrap_or(current);
    require_revision("to", to, (input.from, current))?;
    let place = place.unwrap_or(DiffPlace {
        from: input.from,
        through: None,
        to,
        skip: 0,
    });
    let records = records_of(engine, session, &place, limit.entries).await?;
    let through = records.last().map_or(place.to, |last| last.content.seq);
    let changes = changes_in(engine, caller, (session, place.from), &records, input).await?;
    let mut view = SessionDiff::new(session, (place.from, through));
    if place.skip == 0 {
        for record in &records {
            view.add_record(record);
        }
    }
    let rest = changes.get(place.skip..).unwrap_or_default();
    let writers = rest.iter().map(|change| change.blame.by);
    let names = engine.names_for(caller, writers).await?;
    let page = (session, limit.bytes);
    let taken = add_changes(engine, page, rest, &names, &mut view).await?;
    let next = if taken < rest.len() {
        Some(DiffPlace {
            through: Some(through),
            skip: place.skip + taken,
            ..place
        })
    } else {
        (through < place.to).then_some(DiffPlace {
            from: through,
            through: None,
            to: place.to,
            skip: 0,
        })
    };
    Ok((view, next))
}

/// The records of a page, without payloads.
async fn records_of(
    engine: &Engine,
    session: SessionId,
    place: &DiffPlace,
    entries: usize,
) -> Result<Vec<Record>, EngineError> {
    let end = place.through.unwrap_or(place.to);
    let left = usize::try_from(end.saturating_sub(place.from)).unwrap_or(usize::MAX);
    // The last record of an earlier page is known, so that a page that goes on with its changes reads the same ones.
    let entries = match place.through {
        Some(_) => left,
        None => left.min(entries),
    };
    if entries == 0 {
        return Ok(Vec::new());
    }
    let store = &engine.inner().store;
    own_page(entries, async |page| {
        Ok(store.chain(session, place.from, page).await?)
    })
    .await
}

/// A change of a key, before its values are read.
#[derive(Debug, Clone)]
struct KeyChange {
    key: StateKey,
    /// The revision that wrote the value before, if there was one.
    before: Option<u64>,
    /// The revision that wrote the value after, unless it was removed.
    after: Option<u64>,
    /// The last write.
    blame: Blame,
    /// How many writes there were.
    writes: usize,
}

/// Where a write comes from.
#[derive(Debug, Clone, Copy)]
struct Blame {
    revision: u64,
    at: Timestamp,
    by: Principal,
    command: CommandName,
    request: Option<RequestId>,
    /// The revision whose value a rewind gave back.
    restored_from: Option<u64>,
}

/// The changes in records, per key or one per write.
async fn changes_in(
    engine: &Engine,
    caller: &Caller,
    (session, from): (SessionId, u64),
    records: &[Record],
    input: &DiffInput,
) -> Result<Vec<KeyChange>, EngineError> {
    let is_asked = |key: &StateKey| input.key.as_ref().is_none_or(|asked| asked == key);
    let writes = records.iter().flat_map(|record| writes_of(&record.content));
    let writes: Vec<_> = writes.filter(|(key, _, _)| is_asked(key)).collect();
    if writes.is_empty() {
        return Ok(Vec::new());
    }
    let then = engine.load_past(caller, session, from).await?;
    let then = then.map(|then| then.keys).unwrap_or_default();
    let mut versions: BTreeMap<&StateKey, Option<u64>> = BTreeMap::new();
    let mut every = Vec::with_capacity(writes.len());
    for (key, after, blame) in &writes {
        let known = versions.get(key).copied();
        let before = known.unwrap_or_else(|| then.get(*key).map(|then| then.revision));
        versions.insert(key, *after);
        every.push(KeyChange {
            key: (*key).clone(),
            before,
            after: *after,
            blame: *blame,
            writes: 1,
        });
    }
    Ok(if input.every_write {
        every
    } else {
        per_key(every)
    })
}

/// The writes of a record to session keys: the key, the revision of its new value, and the blame.
fn writes_of(content: &RecordContent) -> impl Iterator<Item = (&StateKey, Option<u64>, Blame)> {
    let blame = move |request, restored_from| Blame {
        revision: content.seq,
        at: content.at,
        by: content.principal,
        command: content.command,
        request,
        restored_from,
    };
    content.events.iter().filter_map(move |event| match event {
        Event::StatePut { key, request, .. } => {
            Some((key, Some(content.seq), blame(*request, None)))
        }
        Event::StateDeleted { key, request } => Some((key, None, blame(*request, None))),
        Event::StateRestored { key, from, .. } => {
            Some((key, Some(content.seq), blame(None, Some(*from))))
        }
        _ => None,
    })
}

/// One change per key, from the value before its first write to that after its last one, by key. A key that came and
/// went has none.
fn per_key(every: Vec<KeyChange>) -> Vec<KeyChange> {
    let mut changes: BTreeMap<StateKey, KeyChange> = BTreeMap::new();
    for change in every {
        match changes.get_mut(&change.key) {
            Some(known) => {
                known.after = change.after;
                known.blame = change.blame;
                known.writes += 1;
            }
            None => {
                changes.insert(change.key.clone(), change);
            }
        }
    }
    changes
        .into_values()
        .filter(|change| change.before.is_some() || change.after.is_some())
        .collect()
}

/// Reads the values of changes and adds them to a page until it is full. Returns how many it took, at least one.
async fn add_changes(
    engine: &Engine,
    (session, bytes): (SessionId, u64),
    changes: &[KeyChange],
    names: &PeopleNames,
    view: &mut SessionDiff,
) -> Result<usize, EngineError> {
    let store = &engine.inner().store;
    let (mut taken, mut left) = (0, bytes);
    for some in changes.chunks(CHANGES_AT_ONCE) {
        let places = some.iter().flat_map(|change| {
            let versions = [change.before, change.after].into_iter().flatten();
            versions.map(|version| (change.key.clone(), version))
        });
        let values = store.past_values(session, places.collect(), VALUE_BYTES_MAX);
        let mut values = values.await?.into_iter();
        for change in some {
            let mut value = |version: Option<u64>| {
                let version = version?;
                let found = values.next().flatten();
                Some(PastValueView::of(version, found))
            };
            let (before, after) = (value(change.before), value(change.after));
            let shown = StateChange::of(change, names, before, after);
            let size = CHANGE_BYTES + shown.payload_bytes();
            if taken > 0 && size > left {
                return Ok(taken);
            }
            left = left.saturating_sub(size);
            taken += 1;
            view.changes.push(shown);
        }
    }
    Ok(taken)
}

impl PastValueView {
    fn of(version: u64, found: Option<PastValue>) -> Self {
        let found = found.unwrap_or(PastValue {
            bytes: 0,
            value: None,
        });
        Self {
            version,
            bytes: found.bytes,
            value: found.value.map(|value| raw_bytes(&value)),
        }
    }
}
