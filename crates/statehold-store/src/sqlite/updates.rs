//! Sessions in the order of their last change.
//!
//! Every commit changes that order, and an index on it would cost every commit a few pages. So the table
//! `session_update` lags behind the log by a bounded number of rows, and `meta` says up to which row of the log it is
//! right. Sessions with later rows are read from their own rows, the others from an index of the table.

use std::cmp::Reverse;
use std::iter::Peekable;
use std::ops::ControlFlow;

use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::read::{self, SUMMARY_COLUMNS, SUMMARY_WIDTH, SummaryRow};
use super::schema;
use super::snapshot::Snapshot;
use super::sql::{corrupt_or_unavailable, damaged, to_sql};
use super::write::run;
use crate::port::{SessionPlace, SessionQuery, SessionSummary, StoreError};

/// How many rows of the log the table may lag behind.
pub(super) const LAG_MAX: i64 = 256;

/// The key of the number in `meta`.
const UNTIL: &str = "updates_until";

/// Begins the order of a new file.
pub(super) fn begin(conn: &Connection) -> rusqlite::Result<()> {
    schema::set_meta(conn, UNTIL, "0")
}

/// The row of the log up to which the table is right. It lags behind the newest row by at most [`LAG_MAX`].
pub(super) fn until(conn: &Connection) -> Result<i64, StoreError> {
    let text = schema::sound_meta(conn, UNTIL)?;
    let newest = to_sql(read::last_place(conn)?);
    let until = text.parse().ok();
    let is_sound = |until: &i64| *until >= 0 && (0..=LAG_MAX).contains(&(newest - *until));
    until.filter(is_sound).ok_or_else(|| {
        let what = format!("it says that sessions are in order until {text:?} of {newest}");
        damaged("the table `meta`", what)
    })
}

/// Brings the table up to date, from `until` to the newest row of the log, inside a transaction. Returns that row.
pub(super) fn catch_up(conn: &Connection, until: i64) -> Result<i64, StoreError> {
    let sql = "SELECT DISTINCT session FROM log WHERE id > ?1";
    let changed: Vec<i64> = read::all(conn, sql, [until], |row| row.get(0))?;
    for session in changed {
        run(
            conn,
            "DELETE FROM session_update WHERE session = ?1",
            [session],
        )?;
        // A damaged row of a session must not refuse the commits of others.
        let sql = "INSERT OR IGNORE INTO session_update
                   SELECT pk, tenant, app, user, last_at FROM session WHERE pk = ?1 AND listed = 1";
        run(conn, sql, [session])?;
    }
    let newest = to_sql(read::last_place(conn)?);
    schema::set_meta(conn, UNTIL, &newest.to_string())
        .map_err(corrupt_or_unavailable("the table `meta`"))?;
    Ok(newest)
}

/// A page of sessions, the last that changed first.
pub(super) fn sessions(
    from: &Snapshot<'_>,
    query: &SessionQuery,
) -> Result<Vec<SessionSummary>, StoreError> {
    let until = until(from)?;
    let mut changed = changed(from, query, until)?;
    changed.sort_by_key(|row| Reverse(row.list_place()));
    merged(from, query, until, changed.into_iter().peekable())
}

/// The conditions of a query on the columns of a table, and their parameters after the first.
fn conditions(query: &SessionQuery, table: &str) -> (String, Vec<Value>) {
    let mut conditions = vec![format!("{table}.tenant = ?2")];
    let mut values = vec![query.tenant.as_str().to_owned().into()];
    if let Some(app) = &query.app {
        values.push(app.as_str().to_owned().into());
        conditions.push(format!("{table}.app = ?{}", values.len() + 1));
    }
    if let Some(user) = query.user {
        values.push(user.as_uuid().as_bytes().to_vec().into());
        conditions.push(format!("{table}.user = ?{}", values.len() + 1));
    }
    (conditions.join(" AND "), values)
}

/// The sessions that changed after the table was right, in any order. They are few; the texts of those on a page alone
/// are opened.
fn changed(
    from: &Snapshot<'_>,
    query: &SessionQuery,
    until: i64,
) -> Result<Vec<SummaryRow>, StoreError> {
    let (conditions, values) = conditions(query, "session");
    let sql = format!(
        "SELECT {SUMMARY_COLUMNS} FROM session NOT INDEXED
         WHERE pk IN (SELECT session FROM log WHERE id > ?1) AND listed = 1 AND {conditions}"
    );
    let values = std::iter::once(until.into()).chain(values);
    let mut changed = from.list(&sql, params_from_iter(values), usize::MAX, |row| {
        Ok(SummaryRow::read(row)?)
    })?;
    changed.retain(|row| query.after.is_none_or(|after| row.list_place() < after));
    Ok(changed)
}

/// A session that changed after the table was right. None if its row is damaged, which is noted.
fn opened(from: &Snapshot<'_>, row: SummaryRow) -> Result<Option<SessionSummary>, StoreError> {
    let session = row.session();
    let damage =
        |error: StoreError| damaged("a row of the table `session`", error).in_session(session);
    from.sound(row.into_summary(from.keys).map_err(damage))
}

/// Merges the sessions of the index with those that changed since, up to one page.
fn merged(
    from: &Snapshot<'_>,
    query: &SessionQuery,
    until: i64,
    mut changed: Peekable<impl Iterator<Item = SummaryRow>>,
) -> Result<Vec<SessionSummary>, StoreError> {
    let by = match (&query.app, &query.user) {
        (_, Some(_)) => "session_update_by_user",
        (Some(_), None) => "session_update_by_app",
        (None, None) => "session_update_by_tenant",
    };
    let (conditions, values) = conditions(query, "session_update");
    let mut page = Vec::new();
    for (behind, place) in ranges_behind(query.after, values.len() + 2) {
        let sql = format!(
            "SELECT {SUMMARY_COLUMNS}, session_update.at FROM session_update INDEXED BY {by}
             CROSS JOIN session ON session.pk = session_update.session
             WHERE {conditions} AND {behind}
               AND session_update.session NOT IN (SELECT session FROM log WHERE id > ?1)
             ORDER BY session_update.at DESC, session_update.session DESC"
        );
        let values = std::iter::once(until.into()).chain(values.clone());
        from.visit(&sql, params_from_iter(values.chain(place)), |row| {
            let summary = SummaryRow::read(row)?.into_summary(from.keys)?;
            let at: i64 = row.get(SUMMARY_WIDTH)?;
            // The next page begins behind the time of the session, so the index must have the same.
            if at != summary.updated_at.as_micros() {
                return Err("the list has another time than the session".into());
            }
            let place = summary.list_place();
            while page.len() < query.limit
                && let Some(newer) = changed.next_if(|changed| changed.list_place() > place)
            {
                page.extend(opened(from, newer)?);
            }
            if page.len() < query.limit {
                page.push(summary);
            }
            Ok(if page.len() < query.limit {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        if page.len() >= query.limit {
            break;
        }
    }
    while page.len() < query.limit
        && let Some(row) = changed.next()
    {
        page.extend(opened(from, row)?);
    }
    Ok(page)
}

/// The parts of the order behind a place, each a range of the index, with their parameters from number `first` on.
/// A comparison of both columns at once would walk over every session with the same time.
fn ranges_behind(after: Option<SessionPlace>, first: usize) -> Vec<(String, Vec<Value>)> {
    let Some(after) = after else {
        return vec![("true".to_owned(), Vec::new())];
    };
    let at: Value = after.updated_at.as_micros().into();
    let number: Value = to_sql(after.number).into();
    let second = first + 1;
    vec![
        (
            format!("session_update.at = ?{first} AND session_update.session < ?{second}"),
            vec![at.clone(), number],
        ),
        (format!("session_update.at < ?{first}"), vec![at]),
    ]
}
