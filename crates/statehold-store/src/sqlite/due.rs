//! Queries for timers: deadlines that have passed, and sessions whose time is ahead of the clock.

use rusqlite::{Connection, Params, Row, named_params};
use statehold_core::ids::{HoldId, RequestId, SessionId, UserId};
use statehold_core::time::Timestamp;
use uuid::Uuid;

use super::log::Uuid16;
use super::read::all;
use super::sql::{id_bytes, to_sql};
use crate::port::{BoxError, Due, DueDeadlines, DueKind, StoreError};

/// How many deadlines of a kind are read to choose a fair share for every user.
const READ_MAX: i64 = 65_536;

/// The deadlines of one kind.
struct Deadlines {
    sql: &'static str,
    order: &'static str,
    kind: fn(Uuid) -> DueKind,
}

const LEASES: Deadlines = Deadlines {
    sql: "SELECT session.id, session.tenant, session.user, lease_until, live_request.id
          FROM live_request JOIN session ON session.pk = live_request.session
          WHERE lease_until <= :now",
    order: "lease_until",
    kind: |id| DueKind::Lease(RequestId::from_uuid(id)),
};
const HOLDS: Deadlines = Deadlines {
    sql: "SELECT session.id, session.tenant, session.user, deadline, open_hold.id
          FROM open_hold JOIN session ON session.pk = open_hold.session
          WHERE deadline <= :now",
    order: "deadline",
    kind: |id| DueKind::Hold(HoldId::from_uuid(id)),
};
const SESSIONS: Deadlines = Deadlines {
    sql: "SELECT id, tenant, user, expires_at, id FROM session WHERE expires_at <= :now",
    order: "expires_at",
    kind: |_| DueKind::Session,
};

/// At most `limit` deadlines that have passed, with a share for every user.
pub(super) fn due(
    conn: &Connection,
    now: Timestamp,
    limit: usize,
) -> Result<DueDeadlines, StoreError> {
    let mut found = DueDeadlines::default();
    for kind in [LEASES, HOLDS, SESSIONS] {
        let sql = format!("{} ORDER BY {} LIMIT :max", kind.sql, kind.order);
        let params = named_params! {":now": now.as_micros(), ":max": READ_MAX};
        kind.read(conn, &sql, params, &mut found)?;
    }
    Ok(found.share(limit))
}

/// All deadlines of these sessions that have passed at the time given for each.
pub(super) fn due_in(
    conn: &Connection,
    sessions: &[(SessionId, Timestamp)],
) -> Result<DueDeadlines, StoreError> {
    let mut found = DueDeadlines::default();
    for kind in [LEASES, HOLDS, SESSIONS] {
        let sql = format!("{} AND session.id = :session", kind.sql);
        for (session, now) in sessions {
            let params = named_params! {
                ":now": now.as_micros(),
                ":session": id_bytes(session.as_uuid()),
            };
            kind.read(conn, &sql, params, &mut found)?;
        }
    }
    Ok(found)
}

impl Deadlines {
    /// Reads deadlines. A damaged row is reported beside the others.
    fn read(
        &self,
        conn: &Connection,
        sql: &str,
        params: impl Params,
        found: &mut DueDeadlines,
    ) -> Result<(), StoreError> {
        for due in all(conn, sql, params, |row| Ok(self.deadline(row)))? {
            match due {
                Ok(due) => found.due.push(due),
                Err(error) => found
                    .damaged
                    .push(format!("a row with `{}`: {error}", self.order)),
            }
        }
        Ok(())
    }

    fn deadline(&self, row: &Row<'_>) -> Result<Due, BoxError> {
        Ok(Due {
            session: SessionId::from_uuid(row.get::<_, Uuid16>(0)?.0),
            tenant: row.get::<_, String>(1)?.parse()?,
            user: UserId::from_uuid(row.get::<_, Uuid16>(2)?.0),
            at: Timestamp::from_micros(row.get(3)?),
            kind: (self.kind)(row.get::<_, Uuid16>(4)?.0),
        })
    }
}

/// Sessions whose last commit is later than `now`, with its time. Reads the whole table: timers ask this
/// once at the start, and when the clock was set back.
pub(super) fn sessions_ahead(
    conn: &Connection,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(SessionId, Timestamp)>, StoreError> {
    let sql = "SELECT id, last_at FROM session WHERE last_at > ?1 AND NOT deleted LIMIT ?2";
    let params = (now.as_micros(), to_sql(limit as u64));
    let read = |row: &Row<'_>| -> rusqlite::Result<_> {
        let session = SessionId::from_uuid(row.get::<_, Uuid16>(0)?.0);
        Ok((session, Timestamp::from_micros(row.get(1)?)))
    };
    // A damaged row must not stop the time of the others.
    let found = all(conn, sql, params, |row| Ok(read(row).ok()))?;
    Ok(found.into_iter().flatten().collect())
}
