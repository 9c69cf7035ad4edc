//! Queries for timers: deadlines that have passed, and sessions whose time is ahead of the clock.

use std::cmp::Ordering;

use rusqlite::types::ValueRef;
use rusqlite::{Row, named_params};
use statehold_core::ids::{HoldId, RequestId, SessionId, UserId};
use statehold_core::time::Timestamp;
use uuid::Uuid;

use super::log::Uuid16;
use super::snapshot::{Snapshot, row_damage};
use super::sql::{id_bytes, to_sql};
use crate::port::{BoxError, Due, DueKind, DuePage, DuePlace, StoreError};

/// How many deadlines of a kind and a session are read.
const READ_MAX: usize = 65_536;

/// The deadlines of one kind.
struct Deadlines {
    sql: &'static str,
    /// The column of the deadline and the id of its row.
    at: &'static str,
    row: &'static str,
    rank: u8,
    kind: fn(Uuid) -> DueKind,
}

const LEASES: Deadlines = Deadlines {
    sql: "SELECT session.id, session.tenant, session.user, lease_until, live_request.id, live_request.rowid
          FROM live_request JOIN session ON session.pk = live_request.session
          WHERE lease_until <= :now",
    at: "lease_until",
    row: "live_request.rowid",
    rank: 0,
    kind: |id| DueKind::Lease(RequestId::from_uuid(id)),
};
const HOLDS: Deadlines = Deadlines {
    sql: "SELECT session.id, session.tenant, session.user, deadline, open_hold.id, open_hold.pk
          FROM open_hold JOIN session ON session.pk = open_hold.session
          WHERE deadline <= :now",
    at: "deadline",
    row: "open_hold.pk",
    rank: 1,
    kind: |id| DueKind::Hold(HoldId::from_uuid(id)),
};
const SESSIONS: Deadlines = Deadlines {
    sql: "SELECT id, tenant, user, expires_at, id, pk FROM session WHERE expires_at <= :now",
    at: "expires_at",
    row: "pk",
    rank: 2,
    kind: |_| DueKind::Session,
};

const HIDDEN: Deadlines = Deadlines {
    sql: "SELECT id, tenant, user, hidden_expires_at, id, pk FROM session
          WHERE hidden_expires_at <= :now",
    at: "hidden_expires_at",
    row: "pk",
    rank: 3,
    kind: |_| DueKind::Hidden,
};
const KINDS: [Deadlines; 4] = [LEASES, HOLDS, SESSIONS, HIDDEN];

/// A page of the deadlines that have passed, in the order of their times.
pub(super) fn due(
    from: &Snapshot<'_>,
    now: Timestamp,
    after: Option<DuePlace>,
    limit: usize,
) -> Result<DuePage, StoreError> {
    let (mut rows, mut is_whole) = (Vec::new(), true);
    for kind in KINDS {
        let found = kind.after(from, now, after, limit)?;
        is_whole &= found.len() < limit;
        rows.extend(found);
    }
    Ok(DuePage::of(rows, limit, is_whole))
}

/// All deadlines of these sessions that have passed at the time given for each.
pub(super) fn due_in(
    from: &Snapshot<'_>,
    sessions: &[(SessionId, Timestamp)],
) -> Result<Vec<Due>, StoreError> {
    let mut found = Vec::new();
    for kind in KINDS {
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
    /// At most `limit` rows of this kind behind a place. A damaged one is noted, and is a place without a deadline.
    fn after(
        &self,
        from: &Snapshot<'_>,
        now: Timestamp,
        after: Option<DuePlace>,
        limit: usize,
    ) -> Result<Vec<(DuePlace, Option<Due>)>, StoreError> {
        let (at, row) = match after {
            None => (i64::MIN, i64::MIN),
            Some(after) => {
                let row = match self.rank.cmp(&after.rank) {
                    Ordering::Less => i64::MAX,
                    Ordering::Equal => i64::try_from(after.row).unwrap_or(i64::MAX),
                    Ordering::Greater => i64::MIN,
                };
                (after.at.as_micros(), row)
            }
        };
        let Self {
            sql,
            at: time,
            row: id,
            ..
        } = self;
        let sql =
            format!("{sql} AND ({time}, {id}) > (:at, :row) ORDER BY {time}, {id} LIMIT :limit");
        let params = named_params! {
            ":now": now.as_micros(),
            ":at": at,
            ":row": row,
            ":limit": to_sql(limit as u64),
        };
        from.list(&sql, params, limit, |row| {
            let due = self.deadline(row);
            let due = due.map_err(|error| row_damage(&sql, row, error));
            Ok((self.place(row)?, from.sound(due)?))
        })
    }

    fn place(&self, row: &Row<'_>) -> Result<DuePlace, BoxError> {
        let at = match row.get_ref(3)? {
            ValueRef::Integer(at) => at,
            // A damaged row gets a place that is not before it, so that the next page begins behind it.
            #[expect(clippy::cast_possible_truncation, reason = "a cast saturates")]
            ValueRef::Real(at) => at.ceil() as i64,
            _ => i64::MAX,
        };
        Ok(DuePlace {
            at: Timestamp::from_micros(at),
            rank: self.rank,
            row: u128::try_from(row.get::<_, i64>(5)?).unwrap_or_default(),
        })
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
