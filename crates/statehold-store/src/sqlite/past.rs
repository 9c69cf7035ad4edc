//! State of earlier revisions, from the log.

use statehold_core::ids::SessionId;
use statehold_core::scope::StateKey;

use super::snapshot::KeyedConnection;
use super::{log, read};
use crate::port::{PageRoom, PastStateQuery, PastValue, StatePage, StateValue, StoreError};

/// A page of the session keys at a revision. The log up to there says which keys there were and the revisions that
/// wrote them, so that each value is found without a walk.
pub(super) fn state(
    conn: &KeyedConnection<'_>,
    session: SessionId,
    query: &PastStateQuery,
) -> Result<StatePage<StateValue>, StoreError> {
    let mut page = StatePage::default();
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(page);
    };
    let Some(then) = log::load_at(conn, session, query.revision)? else {
        return Ok(page);
    };
    let mut room = PageRoom::new(query.limit);
    for (key, known) in then.keys.iter() {
        let version = known.revision;
        if query.after.as_ref().is_some_and(|after| key <= after) {
            continue;
        }
        let Some(put) = read::state_put(conn, &row, key, version)? else {
            continue;
        };
        if !room.take(key.as_str().len() as u64 + put.bytes())? {
            page.has_more = true;
            break;
        }
        if let Some(value) = put.value(conn, row.reader())? {
            let value = StateValue { value, version };
            page.values.insert(key.clone(), value);
        }
    }
    Ok(page)
}

/// The values that keys had at the revisions that wrote them.
pub(super) fn values(
    conn: &KeyedConnection<'_>,
    session: SessionId,
    places: &[(StateKey, u64)],
    bytes_max: u64,
) -> Result<Vec<Option<PastValue>>, StoreError> {
    let Some(row) = log::session_row(conn, session)? else {
        return Ok(vec![None; places.len()]);
    };
    let value = |(key, revision): &(StateKey, u64)| {
        let Some(put) = read::state_put(conn, &row, key, *revision)? else {
            return Ok(None);
        };
        let bytes = put.bytes();
        let value = if bytes <= bytes_max {
            put.value(conn, row.reader())?
        } else {
            None
        };
        Ok(Some(PastValue { bytes, value }))
    };
    places.iter().map(value).collect()
}
