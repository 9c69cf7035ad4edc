//! Checks of the disk below the data directory: file system, free space, and fsync latency.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::DoctorFinding;
use super::mounts::{file_system, is_network};

/// Slower than this, users notice every commit.
const SYNC_MAX: Duration = Duration::from_millis(20);
const SYNCS: usize = 5;
const FREE_BYTES_BAD: u64 = 100 << 20;
const FREE_BYTES_LOW: u64 = 1 << 30;

pub(super) fn findings(data: &Path) -> Vec<DoctorFinding> {
    let Some(place) = nearest_existing(data) else {
        return vec![DoctorFinding::warning(
            "disk",
            format!("{} cannot be read", data.display()),
            "name another data directory with: --data DIR",
        )];
    };
    let mut findings = Vec::new();
    findings.extend(kind(&place));
    findings.extend(space(&place));
    findings.push(sync(&place));
    findings
}

/// The directory itself, or its nearest existing ancestor, without symbolic links.
fn nearest_existing(data: &Path) -> Option<PathBuf> {
    let whole = std::path::absolute(data).ok()?;
    whole
        .ancestors()
        .find_map(|place| place.canonicalize().ok())
        .filter(|place| place.is_dir())
}

/// Works only where the table of mounts is readable.
fn kind(place: &Path) -> Option<DoctorFinding> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let kind = file_system(&mounts, place)?;
    let shown = place.display();
    Some(if is_network(kind) {
        DoctorFinding::warning(
            "file system",
            format!("{shown} is on {kind}, a network file system: locks and syncs may not hold"),
            "move the data to a local disk, then: --data DIR",
        )
    } else if matches!(kind, "tmpfs" | "ramfs") {
        DoctorFinding::warning(
            "file system",
            format!("{shown} is on {kind}, in memory: a restart of the machine empties it"),
            "move the data to a disk, then: --data DIR",
        )
    } else {
        DoctorFinding::good("file system", kind)
    })
}

fn space(place: &Path) -> Option<DoctorFinding> {
    let found = rustix::fs::statvfs(place).ok()?;
    let free = found.f_bavail.saturating_mul(found.f_frsize);
    Some(judge_space(free, place))
}

fn judge_space(free: u64, place: &Path) -> DoctorFinding {
    let words = format!("{} MiB free", free >> 20);
    let hint = format!(
        "free some space; see the usage with: df -h {}",
        place.display()
    );
    match free {
        0..FREE_BYTES_BAD => DoctorFinding::bad("free space", words, hint),
        FREE_BYTES_BAD..FREE_BYTES_LOW => DoctorFinding::warning("free space", words, hint),
        FREE_BYTES_LOW.. => DoctorFinding::good("free space", words),
    }
}

/// Measures how long the disk takes to confirm a small write.
fn sync(place: &Path) -> DoctorFinding {
    match measure(place) {
        Ok(time) => judge_sync(time),
        Err(error) => DoctorFinding::bad(
            "sync",
            format!("{} does not confirm writes: {error}", place.display()),
            format!("look at it with: ls -ld {}", place.display()),
        ),
    }
}

fn measure(place: &Path) -> std::io::Result<Duration> {
    let mut file = tempfile::tempfile_in(place)?;
    let mut times = Vec::new();
    for _ in 0..SYNCS {
        let start = Instant::now();
        file.write_all(&[0; 4096])?;
        file.sync_data()?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    Ok(times[SYNCS / 2])
}

fn judge_sync(time: Duration) -> DoctorFinding {
    let words = format!(
        "the disk confirms a write in {:.1} ms",
        time.as_secs_f64() * 1e3
    );
    if time > SYNC_MAX {
        let hint = "every commit waits for that; put the data on a faster disk";
        DoctorFinding::warning("sync", words, hint)
    } else {
        DoctorFinding::good("sync", words)
    }
}

#[cfg(test)]
mod tests {
    use super::super::FindingLevel;
    use super::*;

    #[test]
    fn little_space_is_a_warning_and_almost_none_a_problem() {
        let level = |free| judge_space(free, Path::new("/")).level;
        assert_eq!(level(10 << 30), FindingLevel::Good);
        assert_eq!(level(500 << 20), FindingLevel::Warning);
        assert_eq!(level(1 << 20), FindingLevel::Bad);
    }

    #[test]
    fn a_slow_disk_is_a_warning() {
        assert_eq!(
            judge_sync(Duration::from_millis(20)).level,
            FindingLevel::Good
        );
        assert_eq!(
            judge_sync(Duration::from_millis(21)).level,
            FindingLevel::Warning
        );
    }

    #[test]
    fn a_directory_that_is_not_there_is_judged_by_the_one_above() {
        let directory = tempfile::tempdir().expect("a directory");
        let real = directory.path().canonicalize().expect("it is there");
        let below = directory.path().join("a/b");
        assert_eq!(nearest_existing(&below), Some(real));
        let checks: Vec<_> = findings(&below).iter().map(|found| found.check).collect();
        assert_eq!(checks, ["file system", "free space", "sync"]);
        assert!(!below.exists());
    }
}
