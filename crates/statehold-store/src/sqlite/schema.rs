//! Opening a file: is it ours, is it whole, is it of a version we know?

use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, MAIN_DB, OpenFlags};

use super::sql::{corrupt_or_unavailable, damaged, from_sql};
use super::sums::row_sum;
use super::updates;
use crate::port::StoreError;

/// "SHLD" as a number: the application id in the file header.
pub const APPLICATION_ID: i32 = 0x5348_4c44;
/// SQLite before this version can lose committed pages when a WAL is reset.
const SQLITE_VERSION_MIN: i32 = 3_051_003;
const SCHEMA: &str = include_str!("sql/schema.sql");

/// The version of the layout that this build writes, and the only one that it reads: no version is released yet,
/// so there is nothing to migrate. Raise it with every change of tables, rows or records.
pub const LAYOUT_VERSION: i32 = 6;

/// What to do with a file of another build.
const OTHERWISE: &str = "Open it with the build that wrote it, or begin anew with another --data or \
                         `statehold dev --reset`";

/// Refuses a SQLite build that can lose committed data.
pub(super) fn require_engine() -> Result<(), StoreError> {
    let found = rusqlite::version_number();
    if found >= SQLITE_VERSION_MIN {
        Ok(())
    } else {
        Err(StoreError::Unusable(format!(
            "SQLite {} can lose committed data; 3.51.3 or newer is needed",
            rusqlite::version()
        )))
    }
}

/// Opens a file for one connection, without changing anything in it.
pub(super) fn open(path: &Path, flags: OpenFlags) -> Result<Connection, StoreError> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let conn =
        Connection::open_with_flags(path, flags).map_err(corrupt_or_unavailable("opening"))?;
    harden(&conn)?;
    Ok(conn)
}

/// Nothing in a file may run: no functions in its schema, no cells that lie about their size.
fn harden(conn: &Connection) -> Result<(), StoreError> {
    conn.execute_batch(
        "PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;",
    )
    .map_err(corrupt_or_unavailable("the settings"))?;
    conn.set_prepared_statement_cache_capacity(128);
    // Query plans must not depend on bound values: otherwise SQLite would prepare a statement with
    // a bound limit again on every use.
    conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(corrupt_or_unavailable("the settings"))?;
    Ok(())
}

/// Configures the writing connection, and makes the file durable.
pub(super) fn make_writer(conn: &Connection, sync: bool) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the settings");
    // Stepping to the end matters: a failed sync while switching shows only after the first row.
    let mode = |conn: &Connection, sql: &str| -> rusqlite::Result<String> {
        let mut statement = conn.prepare(sql)?;
        let modes: Vec<String> = statement
            .query_map([], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        Ok(modes.join(" "))
    };
    let found = mode(conn, "PRAGMA journal_mode = WAL").map_err(&place)?;
    if found != "wal" {
        return Err(StoreError::Unusable(format!(
            "the file system cannot hold a write-ahead log (journal mode is `{found}`)"
        )));
    }
    let sync = if sync { "FULL" } else { "OFF" };
    // Rows move within their pages with every commit, and an erased payload must not stay readable
    // in its old place. So SQLite always overwrites freed bytes in pages that it writes anyway;
    // `erase` also overwrites freed pages.
    conn.execute_batch(&format!(
        "PRAGMA synchronous = {sync}; PRAGMA wal_autocheckpoint = 0; PRAGMA foreign_keys = OFF;
         PRAGMA cache_size = -65536; PRAGMA temp_store = MEMORY; PRAGMA secure_delete = FAST;",
    ))
    .map_err(&place)
}

/// Accepts an empty file, or the data file of a store of this version. Only reads, so that a refused file stays
/// unchanged.
pub(super) fn require_usable(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the layout");
    let (application, version) = header(conn)?;
    let is_empty: bool = conn
        .query_row("SELECT count(*) = 0 FROM sqlite_schema", [], |row| {
            row.get(0)
        })
        .map_err(&place)?;
    match (application, version) {
        (0, 0) if is_empty => return Ok(()),
        _ => require_ours(conn)?,
    }
    require_writable(conn)?;
    require_length(conn, path)?;
    match meta(conn, "kind")?.as_str() {
        "live" => Ok(()),
        "backup" => Err(StoreError::Unusable(
            "this is a backup; restore it into a data directory instead of opening it".to_owned(),
        )),
        other => Err(damaged("the table `meta`", format!("it says {other:?}"))),
    }
}

/// A file can say in its header that this engine must not write to it.
pub(super) fn require_writable(conn: &Connection) -> Result<(), StoreError> {
    let place = "the file header";
    let is_readonly = conn.is_readonly(MAIN_DB);
    if is_readonly.map_err(corrupt_or_unavailable(place))? {
        return Err(damaged(place, "the file can only be read"));
    }
    Ok(())
}

/// Without a log beside it, a file is exactly as long as its pages; otherwise its end was cut off,
/// or something else was put behind it.
pub(super) fn require_length(conn: &Connection, path: &Path) -> Result<(), StoreError> {
    let length = |path: &Path| std::fs::metadata(path).map_or(0, |file| file.len());
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    if length(Path::new(&log)) > 0 {
        return Ok(());
    }
    let pragma = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
    let place = corrupt_or_unavailable("the file header");
    let pages: i64 = pragma("page_count").map_err(&place)?;
    let page_size: i64 = pragma("page_size").map_err(&place)?;
    let (found, expected) = (length(path), from_sql(pages.saturating_mul(page_size)));
    if found == expected {
        Ok(())
    } else {
        let what = format!("it has {found} bytes, and its pages have {expected}");
        Err(damaged("the end of the file", what))
    }
}

/// Creates the tables in an empty file.
pub(super) fn create(conn: &mut Connection) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the layout");
    if header(conn)? == (0, 0) {
        let tx = conn.transaction().map_err(&place)?;
        tx.execute_batch(SCHEMA).map_err(&place)?;
        tx.execute_batch(&format!(
            "PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {LAYOUT_VERSION};"
        ))
        .map_err(&place)?;
        set_meta(&tx, "epoch", "1").map_err(&place)?;
        set_meta(&tx, "kind", "live").map_err(&place)?;
        updates::begin(&tx).map_err(&place)?;
        tx.commit().map_err(&place)?;
    }
    require_known_schema(conn)
}

/// Refuses a file of another program, of another version, or with an unknown schema object.
pub(super) fn require_ours(conn: &Connection) -> Result<(), StoreError> {
    match header(conn)? {
        (APPLICATION_ID, version) if version == LAYOUT_VERSION => require_known_schema(conn),
        (APPLICATION_ID, version) => {
            let by = match version {
                ..1 => "no version",
                1..LAYOUT_VERSION => "an earlier version",
                _ => "a newer version",
            };
            Err(StoreError::Unusable(format!(
                "the data has layout {version}, which {by} writes; this build reads layout {LAYOUT_VERSION} \
                 only. {OTHERWISE}"
            )))
        }
        (application, _) => Err(not_ours(application)),
    }
}

fn not_ours(application: i32) -> StoreError {
    StoreError::Unusable(format!(
        "the file is not a Statehold store (application id {application:#x})"
    ))
}

fn header(conn: &Connection) -> Result<(i32, i32), StoreError> {
    let pragma = |name: &str| conn.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0));
    let place = corrupt_or_unavailable("the file header");
    Ok((
        pragma("application_id").map_err(&place)?,
        pragma("user_version").map_err(&place)?,
    ))
}

/// Compares the schema with our own: a crafted file may contain triggers, views or odd indexes.
fn require_known_schema(conn: &Connection) -> Result<(), StoreError> {
    let place = corrupt_or_unavailable("the layout");
    let expected = Connection::open_in_memory().map_err(&place)?;
    expected.execute_batch(SCHEMA).map_err(&place)?;
    let (found, expected) = (
        entries(conn).map_err(&place)?,
        entries(&expected).map_err(&place)?,
    );
    let odd = found.iter().find(|entry| !expected.contains(entry));
    let missing = expected.iter().find(|entry| !found.contains(entry));
    match odd.or(missing) {
        None => Ok(()),
        Some((kind, name, _)) => Err(StoreError::Unusable(format!(
            "the file does not have the layout of this build: {kind} `{name}` is not as it should be; \
             another build wrote it, or it is damaged. {OTHERWISE}"
        ))),
    }
}

type Entry = (String, String, Option<String>);

fn entries(conn: &Connection) -> rusqlite::Result<Vec<Entry>> {
    let mut statement = conn.prepare("SELECT type, name, sql FROM sqlite_schema ORDER BY name")?;
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    rows.collect()
}

/// Sets a value of the `meta` table.
pub(super) fn set_meta(conn: &Connection, key: &str, value: &str) -> rusqlite::Result<()> {
    let sum = row_sum(&[key.into(), value.into()]);
    let sql = "INSERT OR REPLACE INTO meta VALUES(?1, ?2, ?3)";
    conn.execute(sql, (key, value, sum)).map(drop)
}

/// A value of the `meta` table.
pub(super) fn meta(conn: &Connection, key: &str) -> Result<String, StoreError> {
    conn.prepare_cached("SELECT value FROM meta WHERE key = ?1")
        .and_then(|mut statement| statement.query_row([key], |row| row.get(0)))
        .map_err(corrupt_or_unavailable("the table `meta`"))
}

/// A value of the `meta` table that is what its checksum says.
pub(super) fn sound_meta(conn: &Connection, key: &str) -> Result<String, StoreError> {
    let place = "the table `meta`";
    let (value, sum): (String, Vec<u8>) = conn
        .prepare_cached("SELECT value, sum FROM meta WHERE key = ?1")
        .and_then(|mut statement| statement.query_row([key], |row| Ok((row.get(0)?, row.get(1)?))))
        .map_err(corrupt_or_unavailable(place))?;
    if sum == row_sum(&[key.into(), value.as_str().into()]) {
        Ok(value)
    } else {
        let what = format!("`{key}` is not what its checksum says");
        Err(damaged(place, what))
    }
}
