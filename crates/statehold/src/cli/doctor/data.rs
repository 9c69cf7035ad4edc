//! The data directory: whose is it, what is in it, who has it open, how was it left?

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::{Duration, SystemTime};

use statehold_store::hold_keys::HoldKeyFile;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{APPLICATION_ID, FILE_NAME, LAYOUT_VERSION};

use super::Finding;
use crate::data_directory::{Holder, holder};
use crate::run_file;

/// A clock that says an earlier time than this build is wrong: 2026-01-01.
const CLOCK_SECONDS_MIN: u64 = 1_767_225_600;
/// How far files may be ahead of the clock: some file systems are not exact.
const CLOCK_SLACK: Duration = Duration::from_mins(1);

pub(super) fn findings(data: &Path) -> Vec<Finding> {
    let mut findings = vec![version(data), directory(data)];
    findings.extend(key_file(data, KeyFile::NAME));
    findings.extend(key_file(data, HoldKeyFile::NAME));
    findings.push(open_by(data));
    findings.push(clock(data));
    findings
}

fn version(data: &Path) -> Finding {
    let name = "version";
    let ours = concat!("statehold ", env!("CARGO_PKG_VERSION"));
    let known = format!("{ours}, data format {LAYOUT_VERSION}");
    let path = data.join(FILE_NAME);
    match read_format(&path) {
        Ok(Format::Layout(LAYOUT_VERSION)) => {
            Finding::good(name, format!("{known}, which {} has", path.display()))
        }
        Ok(Format::Layout(older)) if older < LAYOUT_VERSION => Finding::warning(
            name,
            format!("{known}; {} has the older {older}", path.display()),
            "it is brought up to date at the next start; make a backup first: statehold backup",
        ),
        Ok(Format::Layout(newer)) => Finding::bad(
            name,
            format!("{known}; {} has the newer {newer}", path.display()),
            "use the version of statehold that wrote it, or a newer one",
        ),
        Ok(Format::InLog) => Finding::good(name, format!("{known}; the data is still in its log")),
        Ok(Format::Foreign) => Finding::bad(
            name,
            format!("{} is not a Statehold store", path.display()),
            "name another data directory with: --data DIR",
        ),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Finding::good(name, format!("{known}; there is no data yet"))
        }
        Err(error) => Finding::bad(
            name,
            format!("{} cannot be read: {error}", path.display()),
            format!("look at it with: ls -l {}", data.display()),
        ),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Format {
    Layout(i32),
    /// The file is new: its header is not folded into it yet.
    InLog,
    Foreign,
}

/// Reads the header of a data file without opening it as a store, which only one process may do.
fn read_format(path: &Path) -> std::io::Result<Format> {
    let mut header = Vec::new();
    File::open(path)?.take(100).read_to_end(&mut header)?;
    let number = |at: usize| {
        let bytes = header.get(at..at + 4)?.try_into().ok()?;
        Some(i32::from_be_bytes(bytes))
    };
    Ok(match (number(68), number(60)) {
        _ if header.is_empty() => Format::InLog,
        (Some(APPLICATION_ID), Some(layout)) => Format::Layout(layout),
        (Some(0), Some(0)) if header.starts_with(b"SQLite format 3\0") => Format::InLog,
        _ => Format::Foreign,
    })
}

fn directory(data: &Path) -> Finding {
    let name = "data";
    let shown = data.display();
    let found = match std::fs::metadata(data) {
        Ok(found) => found,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Finding::good(name, format!("{shown} is not there; a server makes it"));
        }
        Err(error) => {
            return Finding::bad(
                name,
                format!("{shown} cannot be looked at: {error}"),
                format!("look at it with: ls -ld {shown}"),
            );
        }
    };
    if !found.is_dir() {
        return Finding::bad(
            name,
            format!("{shown} is not a directory"),
            "name another data directory with: --data DIR",
        );
    }
    let me = rustix::process::geteuid().as_raw();
    let mode = found.permissions().mode() & 0o777;
    if let Err(error) = tempfile::tempfile_in(data) {
        return Finding::bad(
            name,
            format!(
                "{shown} cannot be written by user {me}: {error} (owner {}, mode {mode:o})",
                found.uid()
            ),
            format!("give it to the user of the server: chown {me} {shown}"),
        );
    }
    if mode & 0o022 != 0 {
        return Finding::warning(
            name,
            format!("{shown} can be written by others (mode {mode:o})"),
            format!("close it with: chmod 700 {shown}"),
        );
    }
    if found.uid() != me {
        return Finding::warning(
            name,
            format!("{shown} belongs to user {}, not to {me}", found.uid()),
            "run this as the user of the server to see what it sees",
        );
    }
    Finding::good(
        name,
        format!("{shown} is writable and ours (mode {mode:o})"),
    )
}

fn key_file(data: &Path, name: &'static str) -> Option<Finding> {
    let path = data.join(name);
    let mode = std::fs::metadata(&path).ok()?.permissions().mode() & 0o777;
    let is_open = mode & 0o077 != 0;
    Some(if is_open {
        Finding::bad(
            name,
            format!("{} is open to others (mode {mode:o})", path.display()),
            format!("close it with: chmod 600 {}", path.display()),
        )
    } else {
        Finding::good(name, format!("closed to others (mode {mode:o})"))
    })
}

/// Who has the data open; and if nobody has, whether the last one closed it.
fn open_by(data: &Path) -> Finding {
    let name = "last stop";
    let (held, run) = match (holder(data), run_file::read(data)) {
        (Ok(held), Ok(run)) => (held, run),
        (Err(error), _) | (_, Err(error)) => {
            return Finding::warning(
                name,
                format!("{error:#}"),
                format!("look at it with: ls -l {}", data.display()),
            );
        }
    };
    match (held, run) {
        (Holder::Process(pid), run) => {
            let pid = pid.or(run.map(|run| run.pid));
            let pid = pid.map_or_else(|| "unknown".to_owned(), |pid| pid.to_string());
            Finding::good("lock", format!("held by process {pid}, which runs"))
        }
        (Holder::Nobody, Some(run)) => Finding::warning(
            name,
            format!(
                "process {} did not stop cleanly; nothing that was acknowledged is lost",
                run.pid
            ),
            format!(
                "the next start recovers; to look now: statehold check --data {}",
                data.display()
            ),
        ),
        (Holder::Nobody, None) => Finding::good("lock", "free, and the last stop was clean"),
    }
}

/// Compares the clock with the calendar and with the data: a clock that went back makes times lie.
fn clock(data: &Path) -> Finding {
    #[expect(
        clippy::disallowed_methods,
        reason = "the clock itself is looked at here"
    )]
    let now = SystemTime::now();
    let is_early = now
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(true, |since| since.as_secs() < CLOCK_SECONDS_MIN);
    if is_early {
        return Finding::bad(
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
        Some(ahead) => Finding::warning(
            "clock",
            format!("the data was written {} s in the future", ahead.as_secs()),
            "the clock went back; check it with: timedatectl status",
        ),
        None => Finding::good("clock", "plausible"),
    }
}

#[cfg(test)]
mod tests {
    use statehold_store::sqlite::{SqliteOptions, SqliteStore};

    use super::super::Level;
    use super::*;
    use crate::run_file::RunFile;

    fn level(findings: &[Finding], check: &str) -> Option<Level> {
        let found = findings.iter().find(|finding| finding.check == check);
        found.map(|finding| finding.level)
    }

    #[test]
    fn a_directory_that_is_not_there_is_no_problem() {
        let findings = findings(Path::new("no such place"));
        assert!(findings.iter().all(|finding| finding.level == Level::Good));
    }

    #[test]
    fn a_store_is_healthy_while_it_is_open_and_after() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        let store = SqliteStore::open(data, SqliteOptions::default()).expect("it opens");
        let open = findings(data);
        assert!(
            open.iter().all(|finding| finding.level == Level::Good),
            "{open:?}"
        );
        drop(store);
        assert_eq!(
            read_format(&data.join(FILE_NAME)).expect("a file"),
            Format::Layout(LAYOUT_VERSION)
        );
        assert_eq!(level(&findings(data), "lock"), Some(Level::Good));
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
        let found = level(&findings(directory.path()), "last stop");
        assert_eq!(found, Some(Level::Warning));
    }

    #[test]
    fn data_of_others_newer_data_and_open_keys_are_problems() {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path();
        std::fs::write(data.join(FILE_NAME), vec![7; 200]).expect("a file");
        assert_eq!(level(&findings(data), "version"), Some(Level::Bad));
        let mut header = b"SQLite format 3\0".to_vec();
        header.resize(100, 0);
        header[60..64].copy_from_slice(&(LAYOUT_VERSION + 1).to_be_bytes());
        header[68..72].copy_from_slice(&APPLICATION_ID.to_be_bytes());
        std::fs::write(data.join(FILE_NAME), &header).expect("a file");
        assert_eq!(level(&findings(data), "version"), Some(Level::Bad));
        let keys = data.join(KeyFile::NAME);
        std::fs::write(&keys, "").expect("a file");
        let mode = |mode| {
            std::fs::set_permissions(&keys, std::fs::Permissions::from_mode(mode)).expect("set");
        };
        mode(0o640);
        assert_eq!(level(&findings(data), "user-keys"), Some(Level::Bad));
        mode(0o600);
        assert_eq!(level(&findings(data), "user-keys"), Some(Level::Good));
    }

    #[test]
    fn a_directory_that_others_can_write_is_a_warning() {
        let directory = tempfile::tempdir().expect("a directory");
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(directory.path(), open).expect("set");
        let found = level(&findings(directory.path()), "data");
        assert_eq!(found, Some(Level::Warning));
    }
}
