//! Queries for timers: deadlines that have passed, and sessions whose time is ahead of the clock.

use rusqlite::{Row, named_params};
use statehold_core::ids::{HoldId, RequestId, SessionId, UserId};
use statehold_core::time::Timestamp;
use uuid::Uuid;

use super::log::Uuid16;
use super::snapshot::Snapshot;
use super::sql::id_bytes;
use crate::port::{BoxError, Due, DueKind, StoreError, share};

/// How many deadlines of a kind are read to choose a fair share for every user.
const READ_MAX: usize = 65_536;

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
    from: &Snapshot<'_>,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<Due>, StoreError> {
    let mut found = Vec::new();
    for kind in [LEASES, HOLDS, SESSIONS] {
        let sql = format!("{} ORDER BY {}", kind.sql, kind.order);
        let params = named_params! {":now": now.as_micros()};
        found.extend(from.list(&sql, params, READ_MAX, |row| kind.deadline(row))?);
    }
    Ok(share(found, limit))
}

/// All deadlines of these sessions that have passed at the time given for each.
pub(super) fn due_in(
    from: &Snapshot<'_>,
    sessions: &[(SessionId, Timestamp)],
) -> Result<Vec<Due>, StoreError> {
    let mut found = Vec::new();
    for kind in [LEASES, HOLDS, SESSIONS] {
        let sql = format!("{} AND session.id = :session", kind.sql);
        for (session, now) in sessions {
            let params = named_params! {
                ":now": now.as_micros(),
                ":session": id_bytes(session.as_uuid()),
            };
            found.extend(from.list(&sql, params, READ_MAX, |row| kind.deadline(row))?);
        }
    }
    Ok(found)
}

impl Deadlines {
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
    from: &Snapshot<'_>,
    now: Timestamp,
    limit: usize,
) -> Result<Vec<(SessionId, Timestamp)>, StoreError> {
    let sql = "SELECT id, last_at FROM session WHERE last_at > ?1 AND NOT deleted";
    from.list(sql, [now.as_micros()], limit, |row| {
        let session = SessionId::from_uuid(row.get::<_, Uuid16>(0)?.0);
        Ok((session, Timestamp::from_micros(row.get(1)?)))
    })
}
