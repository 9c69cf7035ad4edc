//! The entries that the log keeps and leaves out, and reading a file that is not whole.

use std::fs::File;
use std::os::unix::fs::PermissionsExt;

use super::*;
use crate::key_ring::KeyRing;
use crate::keys::{KeyFile, KeyOwner, PayloadKeys};

const LIMITS: DebugLogLimits = DebugLogLimits {
    bytes_max: 64 * 1024 * 1024,
    age_max: Duration::from_hours(7 * 24),
};

fn user() -> UserId {
    "usr_01a1f1f0ef0b70dfa4f8df5942fa7196"
        .parse()
        .expect("an id")
}

fn exchange(words: &str) -> DebugExchange {
    let id = "01a1f1f0ef0b70dfa4f8df5942fa7196";
    DebugExchange {
        session: format!("ses_{id}").parse().expect("an id"),
        task: format!("tsk_{id}").parse().expect("an id"),
        request: format!("req_{id}").parse().expect("an id"),
        agent: "helper".parse().expect("a name"),
        with: DebugPeer::Model,
        target: "POST host/v1/chat/completions".to_owned(),
        sent: DebugBody {
            text: format!("asked {words}"),
            left_out: 0,
        },
        received: DebugBody {
            text: format!("canary {words}"),
            left_out: 3,
        },
        status: Some(200),
        error: None,
        ms: 12,
    }
}

/// A log of these words, written by one server after the other.
fn log(directory: &Path, limits: DebugLogLimits, servers: &[&[&str]]) {
    let keys = Arc::new(KeyFile::open(directory).expect("keys"));
    for words in servers {
        let log = DebugLog::open(directory, Arc::clone(&keys), limits).expect("a log");
        for word in *words {
            log.note(user(), exchange(word));
        }
    }
}

/// All that can be read: words, and what a reader says about files.
fn read(directory: &Path) -> Vec<String> {
    let mut reader = DebugLogReader::open(directory).expect("a reader");
    let mut found = Vec::new();
    loop {
        match reader.read_next().expect("the files can be read") {
            ReadEntry::Entry(entry) => {
                assert_eq!(entry.exchange.received.left_out, 3);
                let words = entry.exchange.sent.text;
                found.push(words.strip_prefix("asked ").expect("words").to_owned());
            }
            ReadEntry::Unreadable { why, .. } => found.push(why.to_owned()),
            ReadEntry::End => return found,
        }
    }
}

fn path(directory: &Path, number: u64) -> PathBuf {
    directory.join(format!("{NAME}{number:08}"))
}

#[test]
fn what_was_exchanged_is_read_back_in_order_over_restarts_and_a_rotated_ring() {
    let directory = tempfile::tempdir().expect("a directory");
    log(directory.path(), LIMITS, &[&["1", "2"], &[], &["3"]]);
    KeyRing::open(directory.path())
        .expect("a ring")
        .rotate()
        .expect("rotates");
    log(directory.path(), LIMITS, &[&["4"]]);
    assert_eq!(read(directory.path()), ["1", "2", "3", "4"]);
    let found = files(directory.path()).expect("files");
    assert_eq!(found.len(), 3, "a server without exchanges leaves no file");
    for (_, path) in found {
        let mode = std::fs::metadata(path)
            .expect("a file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}

#[test]
fn no_words_of_an_exchange_are_on_the_disk() {
    let directory = tempfile::tempdir().expect("a directory");
    log(directory.path(), LIMITS, &[&["about something"]]);
    for entry in std::fs::read_dir(directory.path()).expect("a directory") {
        let bytes = std::fs::read(entry.expect("an entry").path()).expect("a file");
        for word in [
            "canary",
            "asked",
            "something",
            "helper",
            "ses_",
            "completions",
        ] {
            assert!(
                !bytes.windows(word.len()).any(|at| at == word.as_bytes()),
                "{word}"
            );
        }
    }
}

#[test]
fn a_cut_takes_the_last_entry_and_no_other() {
    let directory = tempfile::tempdir().expect("a directory");
    log(directory.path(), LIMITS, &[&["1", "2", "3"], &["4"]]);
    let first = path(directory.path(), 1);
    let whole = std::fs::read(&first).expect("a file");
    let entry = (whole.len() - HEAD_BYTES) / 3;
    for cut in 1..=entry {
        std::fs::write(&first, &whole[..whole.len() - cut]).expect("writes");
        let expected: &[&str] = if cut == entry {
            &["1", "2", "4"]
        } else {
            &["1", "2", "its last entry was cut by a crash", "4"]
        };
        assert_eq!(read(directory.path()), expected, "cut by {cut}");
    }
}

#[test]
fn a_changed_spliced_or_reordered_file_is_read_up_to_that_place() {
    let directory = tempfile::tempdir().expect("a directory");
    log(
        directory.path(),
        LIMITS,
        &[&["1", "2", "3"], &["4", "5", "6"]],
    );
    let (first, second) = (path(directory.path(), 1), path(directory.path(), 2));
    let (whole, other) = (
        std::fs::read(&first).expect("reads"),
        std::fs::read(&second).expect("reads"),
    );
    std::fs::remove_file(&second).expect("removes");
    let entry = (whole.len() - HEAD_BYTES) / 3;
    let part = |bytes: &[u8], index: usize| bytes[HEAD_BYTES + index * entry..][..entry].to_vec();
    let head = whole[..HEAD_BYTES].to_vec();
    let why = "it is damaged behind its last readable entry";
    let cases: [(Vec<u8>, &[&str]); 4] = [
        (
            [head.clone(), part(&whole, 0), part(&whole, 2)].concat(),
            &["1", why],
        ),
        (
            [head.clone(), part(&whole, 1), part(&whole, 0)].concat(),
            &[why],
        ),
        (
            [head.clone(), part(&whole, 0), part(&other, 1)].concat(),
            &["1", why],
        ),
        (
            [head, part(&whole, 0), part(&whole, 0)].concat(),
            &["1", why],
        ),
    ];
    for (bytes, expected) in cases {
        std::fs::write(&first, bytes).expect("writes");
        assert_eq!(read(directory.path()), expected);
    }
    for at in [0, 9, 13, HEAD_BYTES + 5, HEAD_BYTES + entry / 2] {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        std::fs::write(&first, &changed).expect("writes");
        let found = read(directory.path());
        assert_eq!(found.len(), 1, "byte {at}: {found:?}");
    }
}

#[test]
fn the_log_keeps_to_its_bytes_and_drops_its_oldest_part() {
    let directory = tempfile::tempdir().expect("a directory");
    let limits = DebugLogLimits {
        bytes_max: 64 * 1024,
        ..LIMITS
    };
    let words: Vec<String> = (0..200)
        .map(|index| format!("{index} {}", "x".repeat(1_000)))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    for part in words.chunks(50) {
        log(directory.path(), limits, &[part]);
        let found = files(directory.path()).expect("files");
        let sizes = found
            .iter()
            .map(|(_, path)| std::fs::metadata(path).expect("a file").len());
        assert!(sizes.sum::<u64>() <= limits.bytes_max);
    }
    let found = read(directory.path());
    assert!(found.len() > 10 && found.len() < 70, "{}", found.len());
    assert!(found.last().is_some_and(|last| last.starts_with("199 ")));
}

#[test]
fn files_that_are_too_old_go() {
    let directory = tempfile::tempdir().expect("a directory");
    log(directory.path(), LIMITS, &[&["1"], &["2"]]);
    let old = File::options()
        .append(true)
        .open(path(directory.path(), 1))
        .expect("a file");
    let long_ago = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    old.set_modified(long_ago).expect("a time");
    log(directory.path(), LIMITS, &[&["3"]]);
    assert_eq!(read(directory.path()), ["2", "3"]);
}

#[test]
fn nobody_waits_for_a_disk_that_takes_nothing_and_the_log_says_what_is_missing() {
    let directory = tempfile::tempdir().expect("a directory");
    let data = directory.path().join("data");
    std::fs::create_dir(&data).expect("a directory");
    let keys = Arc::new(KeyFile::open(&data).expect("keys"));
    let log = DebugLog::open(&data, keys, LIMITS).expect("a log");
    // A directory that is gone takes no file.
    let away = directory.path().join("away");
    std::fs::rename(&data, &away).expect("renames");
    for index in 0..5_000 {
        let mut exchange = exchange(&index.to_string());
        exchange.sent.text = "x".repeat(10_000);
        log.note(user(), exchange);
    }
    let dropped = || log.dropped();
    let begun = std::time::Instant::now();
    while dropped() < 5_000 && begun.elapsed() < Duration::from_secs(30) {
        std::thread::yield_now();
    }
    assert_eq!(dropped(), 5_000);
    std::fs::rename(&away, &data).expect("renames");
    log.note(user(), exchange("back"));
    drop(log);
    let mut reader = DebugLogReader::open(&data).expect("a reader");
    let ReadEntry::Entry(entry) = reader.read_next().expect("reads") else {
        panic!("no entry");
    };
    assert_eq!(
        (entry.dropped, entry.exchange.sent.text.as_str()),
        (5_000, "asked back")
    );
}

#[test]
fn what_waits_is_bounded_in_bytes() {
    let directory = tempfile::tempdir().expect("a directory");
    let (queue, waiting) = sync_channel(QUEUE_MAX);
    let log = DebugLog {
        queue: Some(queue),
        queued: Arc::default(),
        dropped: Arc::default(),
        thread: Mutex::default(),
    };
    let mut large = exchange("x");
    large.received.text = "y".repeat(BODY_BYTES_MAX);
    for _ in 0..100 {
        log.note(user(), large.clone());
    }
    assert_eq!(waiting.try_iter().count() as u64 + log.dropped(), 100);
    assert!(log.dropped() >= 84, "{}", log.dropped());
    drop(directory);
}

#[test]
fn a_reader_that_follows_sees_what_comes_later() {
    let directory = tempfile::tempdir().expect("a directory");
    log(directory.path(), LIMITS, &[&["1"]]);
    let mut reader = DebugLogReader::open(directory.path()).expect("a reader");
    let mut next = |words: Option<&str>| match reader.read_next().expect("reads") {
        ReadEntry::Entry(entry) => {
            let expected = words.map(|words| format!("asked {words}"));
            assert_eq!(Some(entry.exchange.sent.text), expected);
        }
        other => assert_eq!((other, words), (ReadEntry::End, None)),
    };
    next(Some("1"));
    next(None);
    log(directory.path(), LIMITS, &[&["2"]]);
    next(Some("2"));
    next(None);
    log(directory.path(), LIMITS, &[&["3"], &["4"]]);
    next(Some("3"));
    next(Some("4"));
    next(None);
}

#[test]
fn a_log_without_its_key_is_not_readable_and_nothing_is_made() {
    let directory = tempfile::tempdir().expect("a directory");
    log(directory.path(), LIMITS, &[&["1"]]);
    let ring = directory.path().join(KeyRing::NAME);
    std::fs::remove_file(&ring).expect("removes");
    assert!(DebugLogReader::open(directory.path()).is_err());
    assert!(!ring.exists());
    KeyRing::open(directory.path()).expect("another ring");
    assert_eq!(
        read(directory.path()),
        ["the secret that sealed it is not in the key ring"]
    );
}

#[test]
fn erasing_a_user_removes_the_log_and_refuses_later_entries_about_that_user() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path();
    let keys = Arc::new(KeyFile::open(path).expect("keys"));
    let owner = KeyOwner::User(user());
    keys.get_or_create(&owner).expect("a key");
    let log = DebugLog::open(path, Arc::clone(&keys), LIMITS).expect("a log");
    log.note(user(), exchange("before"));
    while files(path).expect("reads").is_empty() || read(path).is_empty() {
        std::thread::yield_now();
    }
    assert!(keys.delete(&owner).expect("deleted"));
    assert_eq!(files(path).expect("reads"), []);
    log.note(user(), exchange("of a call that went on"));
    let other = "usr_01a1f1f0ef0b70dfa4f8df5942fa7197"
        .parse()
        .expect("an id");
    log.note(other, exchange("after"));
    drop(log);
    assert_eq!(read(path), ["after"]);
}
