//! Copying a store while it is in use, and making a store from a copy.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, ErrorCode, OpenFlags};
use statehold_core::command::{Command, Context, LoadedFacts};
use statehold_core::decide::decide;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::principal::Actor;
use statehold_core::session::SessionState;

use super::check::Extent;
use super::log::Uuid16;
use super::recent::Recent;
use super::sql::{corrupt_or_unavailable, damaged, from_sql};
use super::{FILE_NAME, check, read, schema, updates, write};
use crate::check::CheckReport;
use crate::commit::Commit;
use crate::port::{BoxError, StoreError};
use crate::private_file::{create_private, sync_directory};

/// The name of a copy that is being made beside the data, to be handed out.
pub(super) const COPY_NAME: &str = "statehold.backup";
/// How many pages are copied between two looks whether the caller still waits.
const PAGES_STEP: i32 = 1024;
/// Free space that a copy leaves to the commits that go on.
const SPACE_LEFT_MIN: u64 = 64 * 1024 * 1024;

/// Copies the snapshot that `conn` sees to a new file, and marks it as a backup.
pub(super) fn copy(
    conn: &Connection,
    to: &Path,
    nobody_waits: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    require_absent(to)?;
    // Until it is marked, the copy looks like a store, so it has another name.
    let part = part_of(to)?;
    let copied = write_copy(conn, &part, nobody_waits).and_then(|()| finish(&part, to));
    if copied.is_err() {
        // The reason why it failed matters more than a file that is left.
        drop(std::fs::remove_file(&part));
    }
    copied
}

/// Copies the snapshot that `conn` sees to a file that has no name when it is done: it is gone when it is closed, and
/// a crash leaves nothing that the next copy does not replace.
pub(super) fn copy_without_name(
    conn: &Connection,
    directory: &Path,
    nobody_waits: &dyn Fn() -> bool,
) -> Result<File, StoreError> {
    require_room(conn, directory)?;
    let to = directory.join(COPY_NAME);
    let part = part_of(&to)?;
    let copied = write_copy(conn, &part, nobody_waits);
    let opened = copied.and_then(|()| File::open(&part).map_err(unavailable));
    std::fs::remove_file(&part).map_err(unavailable)?;
    opened
}

/// A copy must not take the space that commits need.
fn require_room(conn: &Connection, directory: &Path) -> Result<(), StoreError> {
    let sql = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size";
    let bytes = read::first(conn, sql, [], |row| row.get::<_, i64>(0))?;
    let bytes = bytes.map_or(0, from_sql);
    let space = rustix::fs::statvfs(directory).map_err(|error| unavailable(error.into()))?;
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    if free < bytes.saturating_add(SPACE_LEFT_MIN) {
        return Err(StoreError::Full);
    }
    Ok(())
}

fn write_copy(
    conn: &Connection,
    part: &Path,
    nobody_waits: &dyn Fn() -> bool,
) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the backup");
    // Reading begins the snapshot; without one, each commit would make the copy begin again.
    schema::meta(conn, "kind")?;
    create_private(part)?;
    let mut target = Connection::open(part).map_err(&place)?;
    {
        let backup = Backup::new(conn, &mut target).map_err(&place)?;
        while backup.step(PAGES_STEP).map_err(&place)? != StepResult::Done {
            if nobody_waits() {
                return Err(StoreError::Stopped);
            }
        }
    }
    // One plain file, safe to copy on its own.
    target
        .query_row("PRAGMA journal_mode = DELETE", [], |_| Ok(()))
        .and_then(|()| schema::set_meta(&target, "kind", "backup"))
        .map_err(&place)
}

/// Checks a backup, and gives it its name if it is sound. Otherwise the file is removed.
pub(super) fn accept(
    part: &Path,
    to: &Path,
    keys: Option<&Path>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CheckReport, StoreError> {
    require_absent(to)?;
    let checked = verify(part, keys, progress).and_then(require_clean);
    let accepted = checked.and_then(|report| finish(part, to).map(|()| report));
    if accepted.is_err() {
        // The reason why it failed matters more than a file that is left.
        drop(std::fs::remove_file(part));
    }
    accepted
}

/// Checks a backup as a restore does, and changes nothing.
fn verify(
    backup: &Path,
    keys: Option<&Path>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CheckReport, StoreError> {
    let source = schema::open(backup, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    require_backup(&source)?;
    schema::require_length(&source, backup)?;
    let extent = Extent {
        is_backup: true,
        ..Extent::default()
    };
    check::check_with_keys(&source, keys, extent, progress)
}

/// Refuses a file that is not a backup.
fn require_backup(source: &Connection) -> Result<(), StoreError> {
    schema::require_ours(source)?;
    if schema::meta(source, "kind")? != "backup" {
        return Err(StoreError::Unusable(
            "this is the data file of a store, not a backup; make one with `statehold backup`"
                .to_owned(),
        ));
    }
    Ok(())
}

/// Makes the data file of a directory without data from a backup, and checks it before it gets its name.
pub(super) fn restore(
    backup: &Path,
    directory: &Path,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<CheckReport, StoreError> {
    let to = directory.join(FILE_NAME);
    require_absent(&to)?;
    let source = schema::open(backup, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    require_backup(&source)?;
    // An interrupted restore must not block the next one.
    let part = part_of(&to)?;
    create_private(&part)?;
    let restored = make_live(&source, &part)
        .and_then(|()| check::check(&part, directory, progress))
        .and_then(require_clean)
        .and_then(|report| raise_fences(&part).map(|()| report));
    if restored.is_err() {
        // The reason why it failed matters more than a file that is left.
        drop(std::fs::remove_file(&part));
    }
    let report = restored?;
    finish(&part, &to)?;
    Ok(report)
}

/// Copies a backup to a file that a server may open.
fn make_live(source: &Connection, part: &Path) -> Result<(), StoreError> {
    let place = |error: rusqlite::Error| match error.sqlite_error_code() {
        // The file is ours, so it is the header of the backup that forbids to write.
        Some(ErrorCode::ReadOnly) => damaged("the file header", error),
        _ => corrupt_or_unavailable("the backup")(error),
    };
    let mut target = Connection::open(part).map_err(&place)?;
    {
        let copy = Backup::new(source, &mut target).map_err(&place)?;
        copy.run_to_completion(1024, Duration::ZERO, None)
            .map_err(&place)?;
    }
    let epoch = schema::meta(&target, "epoch")?;
    let Ok(epoch) = epoch.parse::<u32>() else {
        return Err(damaged(
            "the table `meta`",
            format!("it says epoch {epoch:?}"),
        ));
    };
    let later = (u64::from(epoch) + 1).to_string();
    schema::set_meta(&target, "epoch", &later).map_err(&place)?;
    schema::set_meta(&target, "kind", "live").map_err(&place)
}

/// Refuses a file in which the check found a problem, and names the first.
fn require_clean(report: CheckReport) -> Result<CheckReport, StoreError> {
    let Some(first) = report.problems.first() else {
        return Ok(report);
    };
    let what = match report.problems.len() {
        1 => first.what.clone(),
        count => format!("{}; the check found {count} problems", first.what),
    };
    Err(damaged(first.place.clone(), what))
}

/// Takes every live request from the workers of the original, and gives it a fence that the original never
/// gives out: workers that claimed there before the backup or after it may still be at work, and must not
/// write here.
fn raise_fences(part: &Path) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the table `live_request`");
    let mut target = Connection::open(part).map_err(&place)?;
    let tx = target.transaction().map_err(&place)?;
    let until = updates::until(&tx)?;
    let sql = "SELECT id FROM session WHERE pk IN (SELECT session FROM live_request) ORDER BY pk";
    let sessions: Vec<Uuid16> = read::all(&tx, sql, [], |row| row.get(0))?;
    for session in sessions {
        let session = SessionId::from_uuid(session.0);
        let Some(mut state) = read::load(&tx, session)? else {
            continue;
        };
        let live: Vec<RequestId> = state.requests.keys().copied().collect();
        for request in live {
            let raised = raise_fence(&state, request);
            let commit = raised.map_err(|why| damaged(format!("session {session}"), why))?;
            write::commit(&tx, &commit, None, &mut Recent::default())?;
            state = commit.after;
        }
    }
    updates::catch_up(&tx, until)?;
    tx.commit().map_err(&place)
}

fn raise_fence(state: &SessionState, request: RequestId) -> Result<Commit, BoxError> {
    let owner = state.owner.as_ref().ok_or("it has no owner")?;
    let ctx = Context {
        // Restoring takes no time: the session and its holds end when they would have.
        now: state.last_at,
        actor: Actor::system(owner.tenant.clone()),
        entropy: 0,
        leases: BTreeMap::new(),
        loaded: LoadedFacts::default(),
    };
    let outcome = decide(state, &Command::RaiseFence { request }, &ctx)?;
    let record = outcome.record().ok_or("a request got no new fence")?;
    Ok(Commit::new(state, record.clone(), Vec::new())?)
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
