//! Copying a store while it is in use, and making a store from a copy.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use statehold_core::command::{Cold, Command, Context, Outcome};
use statehold_core::decide::decide;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::principal::Actor;

use super::log::Uuid16;
use super::sql::corrupt_or_unavailable;
use super::{read, schema, write};
use crate::commit::Commit;
use crate::port::StoreError;

/// Copies the snapshot that `conn` sees to a new file, and marks it as a backup.
pub(super) fn copy(conn: &Connection, to: &Path) -> Result<(), StoreError> {
    require_absent(to)?;
    let place = corrupt_or_unavailable("the backup");
    let mut target = Connection::open(to).map_err(&place)?;
    {
        let backup = rusqlite::backup::Backup::new(conn, &mut target).map_err(&place)?;
        backup
            .run_to_completion(1024, Duration::ZERO, None)
            .map_err(&place)?;
    }
    // One plain file, safe to copy on its own.
    target
        .query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))
        .and_then(|()| target.execute("UPDATE meta SET value = 'backup' WHERE key = 'kind'", []))
        .map_err(&place)?;
    drop(target);
    sync(to)
}

/// Makes the data file of an empty directory from a backup.
pub(super) fn restore(backup: &Path, to: &Path) -> Result<(), StoreError> {
    require_absent(to)?;
    let place = corrupt_or_unavailable("the backup");
    let source = schema::open(backup, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    schema::require_ours(&source)?;
    if schema::meta(&source, "kind")? != "backup" {
        return Err(StoreError::Unusable(
            "this is the data file of a store, not a backup; make one with `statehold backup`"
                .to_owned(),
        ));
    }
    let mut target = Connection::open(to).map_err(&place)?;
    {
        let copy = rusqlite::backup::Backup::new(&source, &mut target).map_err(&place)?;
        copy.run_to_completion(1024, Duration::ZERO, None)
            .map_err(&place)?;
    }
    let tx = target.transaction().map_err(&place)?;
    tx.execute_batch(
        "UPDATE meta SET value = 'live' WHERE key = 'kind';
         UPDATE meta SET value = CAST(value AS INTEGER) + 1 WHERE key = 'epoch';",
    )
    .map_err(&place)?;
    give_up_leases(&tx)?;
    tx.commit().map_err(&place)?;
    drop(target);
    sync(to)
}

/// Takes every running request from the worker that had it when the backup was made: that worker may
/// still be at it elsewhere, and must not write here.
fn give_up_leases(conn: &Connection) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the table `live_request`");
    let sql = "SELECT session.id, live_request.id
               FROM live_request JOIN session ON session.pk = live_request.session
               WHERE lease_until IS NOT NULL";
    let mut statement = conn.prepare(sql).map_err(&place)?;
    let leased: Vec<(Uuid16, Uuid16)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .map_err(&place)?;
    for (session, request) in leased {
        let request = RequestId::from_uuid(request.0);
        let Some(state) = read::load(conn, SessionId::from_uuid(session.0))? else {
            continue;
        };
        let until = state
            .requests
            .get(&request)
            .and_then(|live| live.lease)
            .map(|lease| lease.until);
        let (Some(owner), Some(until)) = (&state.owner, until) else {
            continue;
        };
        let ctx = Context {
            now: until,
            actor: Actor::system(owner.tenant.clone()),
            entropy: 0,
            leases: BTreeMap::new(),
            key: None,
            known_key: None,
            cold: Cold::default(),
        };
        let decided = decide(&state, &Command::LapseLease { request }, &ctx);
        let Ok(Outcome::Commit(record)) = decided else {
            continue;
        };
        let commit = Commit::new(&state, record, Vec::new())
            .map_err(|error| StoreError::Unusable(error.to_string()))?;
        write::commit(conn, &commit)?;
    }
    Ok(())
}

fn require_absent(path: &Path) -> Result<(), StoreError> {
    if path.exists() {
        return Err(StoreError::Unusable(format!(
            "{} exists already; name a file that does not",
            path.display()
        )));
    }
    Ok(())
}

fn sync(path: &Path) -> Result<(), StoreError> {
    std::fs::File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(|error| StoreError::Unavailable(Box::new(error)))
}
