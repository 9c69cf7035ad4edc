//! Numbers for operators: what waits for people and for workers, the times of commits, and the sizes of the files.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, Row};
use statehold_core::ids::{HoldId, RequestId};
use statehold_core::name::Name;
use uuid::Uuid;

use super::read::{all, first};
use super::sql::{from_sql, to_sql};
use crate::durations::Durations;
use crate::port::{AgentQueue, StoreError, StoreMeasures, WorkTotals};

/// The times of the commits of one store.
#[derive(Debug, Default)]
pub(super) struct CommitTimes {
    pub(super) commits: Durations,
    pub(super) syncs: Durations,
}

impl CommitTimes {
    /// These times, with the sizes of the files of a store.
    pub(super) fn measures(&self, database: &Path) -> StoreMeasures {
        let mut wal = database.as_os_str().to_owned();
        wal.push("-wal");
        let bytes = |path: &Path| Some(std::fs::metadata(path).ok()?.len());
        StoreMeasures {
            commits: self.commits.counts(),
            syncs: self.syncs.counts(),
            database_bytes: bytes(database),
            wal_bytes: bytes(&PathBuf::from(wal)),
        }
    }
}

/// Open holds and queued requests of a tenant, counted along indexes. A damaged row must not take these numbers
/// from operators; reads of the row itself report it.
pub(super) fn work_totals(
    conn: &Connection,
    tenant: &Name,
    agents: usize,
) -> Result<WorkTotals, StoreError> {
    let sql = "SELECT count(*) FROM open_hold WHERE tenant = ?1";
    let open_holds = first(conn, sql, [tenant.as_str()], |row| row.get::<_, i64>(0))?;
    let sql = "SELECT id FROM open_hold WHERE tenant = ?1 ORDER BY id LIMIT 1";
    let oldest_hold = first(conn, sql, [tenant.as_str()], |row| Ok(id_of(row, 0)))?;
    let sql = "SELECT agent, count(*), min(id) FROM live_request
               WHERE tenant = ?1 AND queued = 1 GROUP BY agent ORDER BY agent LIMIT ?2";
    let key = (tenant.as_str(), to_sql(agents as u64));
    let queues = all(conn, sql, key, |row| {
        let agent = row.get_ref(0)?.as_str().ok();
        let Some(agent) = agent.and_then(|agent| agent.parse().ok()) else {
            return Ok(None);
        };
        Ok(Some(AgentQueue {
            agent,
            requests: from_sql(row.get(1)?),
            oldest: id_of(row, 2).map(RequestId::from_uuid),
        }))
    })?;
    Ok(WorkTotals {
        open_holds: open_holds.map_or(0, from_sql),
        oldest_hold: oldest_hold.flatten().map(HoldId::from_uuid),
        queues: queues.into_iter().flatten().collect(),
    })
}

fn id_of(row: &Row<'_>, column: usize) -> Option<Uuid> {
    let bytes = row.get_ref(column).ok()?.as_blob().ok()?;
    Uuid::from_slice(bytes).ok()
}
