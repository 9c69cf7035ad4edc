//! Checks of the data directory: format, permissions, lock, last stop, and clock.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use statehold_store::hold_keys::HoldKeyFile;
use statehold_store::key_ring::KeyRing;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{APPLICATION_ID, FILE_NAME, LAYOUT_VERSION};

use super::{DoctorFinding, FindingLevel};
use crate::data_directory::{DirectoryHolder, holder};
use crate::run_file;

/// A clock before this time is wrong: 2026-01-01.
const CLOCK_SECONDS_MIN: u64 = 1_767_225_600;
/// How far file times may be ahead of the clock: some file systems round.
const CLOCK_SLACK: Duration = Duration::from_mins(1);

/// `is_named`: the directory was named on the command line, so it should be there.
pub(super) fn findings(data: &Path, is_named: bool) -> Vec<DoctorFinding> {
    let mut findings = vec![version(data), directory(data, is_named)];
    findings.extend(key_file(data, KeyFile::NAME));
    findings.extend(key_ring(data));
    findings.extend(key_file(data, HoldKeyFile::NAME));
    findings.push(lock(data));
    findings.push(clock(data));
    findings
}

fn version(data: &Path) -> DoctorFinding {
    let name = "version";
    let ours = concat!("statehold ", env!("CARGO_PKG_VERSION"));
    let known = format!("{ours}, data format {LAYOUT_VERSION}");
    let path = data.join(FILE_NAME);
    match read_format(&path) {
        Ok(DataFormat::Layout(LAYOUT_VERSION)) => {
            DoctorFinding::good(name, format!("{known}, which {} has", path.display()))
        }
        Ok(DataFormat::Layout(older)) if older < LAYOUT_VERSION => DoctorFinding::bad(
            name,
            format!("{known}; {} has the older format {older}", path.display()),
            "use the version of statehold that wrote it, or begin anew with another --data or: statehold dev \
             --reset",
        ),
        Ok(DataFormat::Layout(newer)) => DoctorFinding::bad(
            name,
            format!("{known}; {} has the newer format {newer}", path.display()),
            "use the version of statehold that wrote it, or a newer one",
        ),
        Ok(DataFormat::InLog) => DoctorFinding::good(
            name,
            format!("{known}; the data is still in the write-ahead log"),
        ),
        Ok(DataFormat::Foreign) => DoctorFinding::bad(
            name,
            format!("{} is not a Statehold store", path.display()),
            "name another data directory with: --data DIR",
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            DoctorFinding::good(name, format!("{known}; there is no data yet"))
        }
        Err(error) => DoctorFinding::bad(
            name,
            format!("{} cannot be read: {error}", path.display()),
            format!("look at it with: ls -l {}", data.display()),
        ),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum DataFormat {
    Layout(i32),
    /// The header is still in the write-ahead log: the file is new.
    InLog,
    Foreign,
}

/// Reads the header of a data file without opening the store, which only one process may do.
fn read_format(path: &Path) -> std::io::Result<DataFormat> {
    let mut header = Vec::new();
    File::open(path)?.take(100).read_to_end(&mut header)?;
    let number = |at: usize| {
        let bytes = header.get(at..at + 4)?.try_into().ok()?;
        Some(i32::from_be_bytes(bytes))
    };
    Ok(match (number(68), number(60)) {
        _ if header.is_empty() => DataFormat::InLog,
        (Some(APPLICATION_ID), Some(layout)) => DataFormat::Layout(layout),
        (Some(0), Some(0)) if header.starts_with(b"SQLite format 3\0") => DataFormat::InLog,
        _ => DataFormat::Foreign,
    })
}

fn directory(data: &Path, is_named: bool) -> DoctorFinding {
    let name = "data";
    let shown = data.display();
    let found = match std::fs::metadata(data) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && is_named => {
            return DoctorFinding::warning(
                name,
                format!("{shown} does not exist"),
                "check the name, unless the server has never run: it creates the directory",
            );
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return DoctorFinding::good(
                name,
                format!("{shown} does not exist yet; the server creates it"),
            );
        }
        Err(error) => {
            return DoctorFinding::bad(
                name,
                format!("{shown} cannot be read: {error}"),
                format!("look at it with: ls -ld {shown}"),
            );
        }
    };
    if !found.is_dir() {
        return DoctorFinding::bad(
            name,
            format!("{shown} is not a directory"),
            "name another data directory with: --data DIR",
        );
    }
    let me = rustix::process::geteuid().as_raw();
    let mode = found.permissions().mode() & 0o777;
    if let Err(error) = tempfile::tempfile_in(data) {
        return DoctorFinding::bad(
            name,
            format!(
                "{shown} cannot be written by user {me}: {error} (owner {}, mode {mode:o})",
                found.uid()
            ),
            format!("give it to the user of the server: chown {me} {shown}"),
        );
    }
    if mode & 0o022 != 0 {
        return DoctorFinding::warning(
            name,
            format!("{shown} can be written by others (mode {mode:o})"),
            format!("close it with: chmod 700 {shown}"),
        );
    }
    if found.uid() != me {
        return DoctorFinding::warning(
            name,
            format!("{shown} belongs to user {}, not to {me}", found.uid()),
            "run this as the user of the server to see what it sees",
        );
    }
    DoctorFinding::good(
        name,
        format!("{shown} is writable and ours (mode {mode:o})"),
    )
}

fn key_file(data: &Path, name: &'static str) -> Option<DoctorFinding> {
    let path = data.join(name);
    let found = std::fs::metadata(&path).ok()?;
    if let Err(error) = File::open(&path) {
        return Some(unreadable(name, &path, found.uid(), &error));
    }
    let mode = found.permissions().mode() & 0o777;
    let is_open = mode & 0o077 != 0;
    Some(if is_open {
        DoctorFinding::bad(
            name,
            format!("{} is open to others (mode {mode:o})", path.display()),
            format!("close it with: chmod 600 {}", path.display()),
        )
    } else {
        DoctorFinding::good(name, format!("closed to others (mode {mode:o})"))
    })
}

/// Reports a file that this user cannot open. Whether it is damaged is not known.
fn unreadable(
    name: &'static str,
    path: &Path,
    owner: u32,
    error: &std::io::Error,
) -> DoctorFinding {
    let me = rustix::process::geteuid().as_raw();
    let directory = path.parent().unwrap_or(path);
    DoctorFinding::bad(
        name,
        format!(
            "{} belongs to user {owner} and cannot be read by user {me}: {error}",
            path.display()
        ),
        format!(
            "run this as the user of the server; if that is user {me}: chown -R {me} {}",
            directory.display()
        ),
    )
}

/// Reports a key ring that others can read, that is damaged, or that is lost while there are keys that it wrapped.
fn key_ring(data: &Path) -> Option<DoctorFinding> {
    let name = KeyRing::NAME;
    let path = data.join(name);
    let wrapped = std::fs::metadata(data.join(KeyFile::NAME)).map_or(0, |keys| keys.len());
    if !path.exists() {
        return (wrapped > 0).then(|| {
            DoctorFinding::bad(
                name,
                format!(
                    "{} is missing: nothing that was said can be read",
                    path.display()
                ),
                "stop the server and put a copy of it back",
            )
        });
    }
    let found = key_file(data, name).filter(|found| found.level == FindingLevel::Bad);
    found
        .or_else(|| {
            let damage = KeyRing::read(data).err()?;
            let detail = damage.to_string();
            Some(DoctorFinding::bad(name, detail, "put a copy of it back"))
        })
        .or_else(|| key_file(data, name))
}

/// Reports which process holds the lock; if it is free, whether the last stop was clean.
fn lock(data: &Path) -> DoctorFinding {
    let name = "last stop";
    let (held, run) = match (holder(data), run_file::read(data)) {
        (Ok(held), Ok(run)) => (held, run),
        (Err(error), _) | (_, Err(error)) => {
            return DoctorFinding::warning(
                name,
                format!("{error:#}"),
                format!("look at it with: ls -l {}", data.display()),
            );
        }
    };
    match (held, run) {
        (DirectoryHolder::Process(pid), run) => {
            let pid = pid.or(run.map(|run| run.pid));
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            DoctorFinding::good("lock", format!("held by process {pid}, which runs"))
        }
        (DirectoryHolder::Free, Some(run)) => DoctorFinding::warning(
            name,
            format!(
                "process {} did not stop cleanly; nothing that was acknowledged is lost",
                run.pid
            ),
            format!(
                "the next start recovers; to check now: statehold check --data {}",
                data.display()
            ),
        ),
        (DirectoryHolder::Free, None) => {
            DoctorFinding::good("lock", "free, and the last stop was clean")
        }
    }
}

/// Compares the clock with the calendar and with the data: after a clock went back, new records
/// would seem older than old ones.
fn clock(data: &Path) -> DoctorFinding {
    #[expect(
        clippy::disallowed_methods,
        reason = "the clock itself is looked at here"
    )]
    let now = SystemTime::now();
    let is_early = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(true, |since| since.as_secs() < CLOCK_SECONDS_MIN);
    if is_early {
        return DoctorFinding::bad(
            "clock",
            "the clock of this machine is years behind",
            "set it, for example with: timedatectl set-ntp true",
        );
    }
    let written = std::fs::metadata(data.join(FILE_NAME)).and_then(|found| found.modified());
    let ahead = written
        .ok()
        .and_then(|written| written.duration_since(now).ok())
        .filter(|ahead| *ahead > CLOCK_SLACK);
    match ahead {
        Some(ahead) => DoctorFinding::warning(
            "clock",
            format!("the data was written {} s in the future", ahead.as_secs()),
            "the clock went back; check it with: timedatectl status",
        ),
        None => DoctorFinding::good("clock", "plausible"),
    }
}

#[cfg(test)]
mod tests {
    use statehold_store::sqlite::{SqliteOptions, SqliteStore};

    use super::*;
    use crate::run_file::RunFile;

    fn level(findings: &[DoctorFinding], check: &str) -> Option<FindingLevel> {
        let found = findings.iter().find(|finding| finding.check == check);
        found.map(|finding| finding.level)
    }

    #[test]
    fn a_directory_that_is_not_there_is_no_problem_unless_it_was_named() {
        let missing = Path::new("no such place");
        let all = findings(missing, false);
        assert!(
            all.iter()
                .all(|finding| finding.level == FindingLevel::Good)
        );
        let named = findings(missing, true);
        assert_eq!(level(&named, "data"), Some(FindingLevel::Warning));
    }

    #[test]
    fn a_store_is_healthy_while_it_is_open_and_after() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        let store = SqliteStore::open(data, SqliteOptions::default()).expect("it opens");
        let open = findings(data, true);
        assert!(
            open.iter()
                .all(|finding| finding.level == FindingLevel::Good),
            "{open:?}"
        );
        drop(store);
        assert_eq!(
            read_format(&data.join(FILE_NAME)).expect("a file"),
            DataFormat::Layout(LAYOUT_VERSION)
        );
        assert_eq!(
            level(&findings(data, true), "lock"),
            Some(FindingLevel::Good)
        );
    }

    #[test]
    fn a_run_file_without_its_process_means_that_the_stop_was_not_clean() {
        let directory = tempfile::tempdir().expect("a directory");
        let run = RunFile {
            pid: 1,
            url: "http://127.0.0.1:1".to_owned(),
            started_at: "2026-08-06T12:00:00Z".to_owned(),
        };
        run_file::write(directory.path(), &run).expect("written");
        let found = level(&findings(directory.path(), true), "last stop");
        assert_eq!(found, Some(FindingLevel::Warning));
    }

    #[test]
    fn data_of_others_newer_data_and_open_keys_are_problems() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        std::fs::write(data.join(FILE_NAME), vec![7; 200]).expect("a file");
        assert_eq!(
            level(&findings(data, true), "version"),
            Some(FindingLevel::Bad)
        );
        let mut header = b"SQLite format 3\0".to_vec();
        header.resize(100, 0);
        header[60..64].copy_from_slice(&(LAYOUT_VERSION + 1).to_be_bytes());
        header[68..72].copy_from_slice(&APPLICATION_ID.to_be_bytes());
        std::fs::write(data.join(FILE_NAME), &header).expect("a file");
        assert_eq!(
            level(&findings(data, true), "version"),
            Some(FindingLevel::Bad)
        );
        let keys = data.join(KeyFile::NAME);
        std::fs::write(&keys, "").expect("a file");
        let mode = |mode| {
            std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        mode(0o640);
        assert_eq!(
            level(&findings(data, true), "user-keys"),
            Some(FindingLevel::Bad)
        );
        mode(0o600);
        assert_eq!(
            level(&findings(data, true), "user-keys"),
            Some(FindingLevel::Good)
        );
    }

    #[test]
    fn a_lost_or_damaged_key_ring_is_a_problem() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        assert_eq!(level(&findings(data, true), "key-ring"), None);
        KeyRing::open(data).expect("begins");
        assert_eq!(
            level(&findings(data, true), "key-ring"),
            Some(FindingLevel::Good)
        );
        std::fs::write(data.join(KeyRing::NAME), "damage\n").expect("a file");
        assert_eq!(
            level(&findings(data, true), "key-ring"),
            Some(FindingLevel::Bad)
        );
        std::fs::remove_file(data.join(KeyRing::NAME)).expect("removed");
        std::fs::write(data.join(KeyFile::NAME), "a key\n").expect("a file");
        assert_eq!(
            level(&findings(data, true), "key-ring"),
            Some(FindingLevel::Bad)
        );
        assert!(!data.join(KeyRing::NAME).exists());
    }

    #[test]
    fn a_directory_that_others_can_write_is_a_warning() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).expect("set");
        let found = level(&findings(directory.path(), true), "data");
        assert_eq!(found, Some(FindingLevel::Warning));
    }
}
