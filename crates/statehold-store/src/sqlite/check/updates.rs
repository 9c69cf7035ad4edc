//! Compares the order of sessions by their last change with the sessions.

use rusqlite::Connection;

use super::super::log::Uuid16;
use super::super::{read, updates};
use crate::check::{CheckReport, Problem};
use crate::port::StoreError;

/// Names every session that is not where it must be. A session with a row of the log behind the table may be in an
/// older place, or in none yet.
pub(super) fn check(conn: &Connection, report: &mut CheckReport) -> Result<(), StoreError> {
    let until = updates::until(conn)?;
    let sql = "SELECT session.id FROM session
               LEFT JOIN session_update AS placed ON placed.session = session.pk
               WHERE (placed.session IS NULL AND session.last_log <= ?1 AND session.listed = 1)
               OR (placed.session IS NOT NULL AND (
                 placed.tenant <> session.tenant OR placed.app <> session.app
                 OR placed.user <> session.user OR placed.at > session.last_at
                 OR (session.last_log <= ?1 AND (session.listed = 0 OR placed.at <> session.last_at))
               ))";
    let odd = read::all(conn, sql, [until], |row| row.get::<_, Uuid16>(0))?;
    for id in odd {
        let place = format!("session {}", id.0);
        let what = "is not where the list of sessions by their last change has it";
        report.add(Problem::projection(place, what));
    }
    let sql = "SELECT session FROM session_update WHERE session NOT IN (SELECT pk FROM session)";
    let strays: Vec<i64> = read::all(conn, sql, [], |row| row.get(0))?;
    for row in strays {
        let place = format!("row {row} of the table `session_update`");
        report.add(Problem::projection(place, "belongs to no session"));
    }
    Ok(())
}
