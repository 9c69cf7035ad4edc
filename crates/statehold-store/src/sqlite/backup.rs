//! Copying a store while it is in use, and making a store from a copy.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};
use statehold_core::command::{Cold, Command, Context, Outcome, Rejection};
use statehold_core::decide::decide;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::principal::Actor;

use super::log::Uuid16;
use super::recent::Recent;
use super::sql::corrupt_or_unavailable;
use super::{read, schema, write};
use crate::commit::Commit;
use crate::keys::{create_private, sync_directory};
use crate::port::StoreError;

/// Copies the snapshot that `conn` sees to a new file, and marks it as a backup.
pub(super) fn copy(conn: &Connection, to: &Path) -> Result<(), StoreError> {
    require_absent(to)?;
    let place = corrupt_or_unavailable("the backup");
    // Reading begins the snapshot; without one, each commit would make the copy begin again.
    schema::meta(conn, "kind")?;
    // Until it is marked, the copy looks like a store, so it has another name.
    let part = part_of(to)?;
    create_private(&part)?;
    let mut target = Connection::open(&part).map_err(&place)?;
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
    finish(&part, to)
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
    // An interrupted restore must not block the next one.
    let part = part_of(to)?;
    create_private(&part)?;
    let mut target = Connection::open(&part).map_err(&place)?;
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
    finish(&part, to)
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
        let decided = |command: &Command, now| {
            let ctx = Context {
                now,
                actor: Actor::system(owner.tenant.clone()),
                entropy: 0,
                leases: BTreeMap::new(),
                cold: Cold::default(),
            };
            decide(&state, command, &ctx)
        };
        let lapsed = decided(&Command::LapseLease { request }, until);
        // A session that ends before the lease accepts nothing after its end, and its requests stop.
        let given_up = match lapsed {
            Err(Rejection::SessionExpired) => {
                decided(&Command::CancelRequest { request }, state.last_at)
            }
            other => other,
        };
        let Ok(Outcome::Commit(record)) = given_up else {
            continue;
        };
        let commit = Commit::new(&state, record, Vec::new())
            .map_err(|error| StoreError::Unusable(error.to_string()))?;
        write::commit(conn, &commit, &mut Recent::default())?;
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

/// The name of a file that is still being made, of which nothing is there yet.
fn part_of(to: &Path) -> Result<PathBuf, StoreError> {
    let mut part = to.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    match std::fs::remove_file(&part) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(unavailable(error)),
        _ => Ok(part),
    }
}

/// Gives a file that is done its name. After `Ok` both survive a loss of power.
fn finish(part: &Path, to: &Path) -> Result<(), StoreError> {
    File::open(part)
        .and_then(|file| file.sync_all())
        .and_then(|()| std::fs::rename(part, to))
        .map_err(unavailable)?;
    let directory = to.parent().filter(|parent| !parent.as_os_str().is_empty());
    sync_directory(directory.unwrap_or(Path::new(".")))
}

fn unavailable(error: std::io::Error) -> StoreError {
    StoreError::Unavailable(Box::new(error))
}
