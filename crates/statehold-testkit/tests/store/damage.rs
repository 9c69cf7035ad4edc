//! The tail of the log may be cut: what is left is a whole prefix. Damage before the tail is found,
//! and its place is named.

mod log;
mod rows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rusqlite::Connection;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_store::key_ring::KeyRing;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::{LOCK_NAME, Problem, ProblemKind, SqliteStore};
use statehold_store::{ItemQuery, PageLimit, Store, StoreError, codec};
use statehold_testkit::workload::{Random, session_id};
use tempfile::TempDir;

use crate::scene::{
    self, Ids, Picture, RUN, chain, check, data_file, directory, fill, open, options, wait,
};

/// A data directory with something of everything, folded into one file.
struct Whole {
    directory: TempDir,
    bytes: Vec<u8>,
}

impl Whole {
    fn new() -> Self {
        let directory = directory();
        let store = open(directory.path());
        wait(async {
            fill(&store).await;
            store.fold_log().await.expect("the disk is fine");
        });
        drop(store);
        scene::require_clean(directory.path());
        let bytes = std::fs::read(data_file(directory.path())).expect("reads");
        Self { directory, bytes }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn conn(&self) -> Connection {
        Connection::open(data_file(self.path())).expect("a database")
    }

    /// Writes the file with one bit flipped.
    fn flip(&self, at: usize, bit: u64) {
        let mut bytes = self.bytes.clone();
        bytes[at] ^= 1 << bit;
        self.write(&bytes);
    }

    fn write(&self, bytes: &[u8]) {
        for name in ["-wal", "-shm"] {
            let mut beside = data_file(self.path()).into_os_string();
            beside.push(name);
            // Most of the time there is none.
            drop(std::fs::remove_file(beside));
        }
        std::fs::write(data_file(self.path()), bytes).expect("writes");
    }

    /// Where these bytes lie, if they lie in one place.
    fn find(&self, wanted: &[u8]) -> Option<usize> {
        let mut found = self
            .bytes
            .windows(wanted.len())
            .enumerate()
            .filter(|(_, window)| *window == wanted);
        let (at, _) = found.next()?;
        found.next().is_none().then_some(at)
    }

    /// Log rows whose column lies in one place: session, number, where, and how long.
    fn places(&self, column: &str) -> Vec<(SessionId, u64, usize, usize)> {
        let sql = format!(
            "SELECT session.id, seq, {column} FROM log JOIN session ON session.pk = log.session"
        );
        let conn = self.conn();
        let mut statement = conn.prepare(&sql).expect("a query");
        let rows = statement
            .query_map([], |row| {
                let id: [u8; 16] = row.get(0)?;
                let seq: i64 = row.get(1)?;
                Ok((id, seq.unsigned_abs(), row.get::<_, Vec<u8>>(2)?))
            })
            .expect("rows");
        let mut places = Vec::new();
        for row in rows {
            let (id, seq, bytes) = row.expect("a row");
            let session = SessionId::from_uuid(uuid::Uuid::from_bytes(id));
            if bytes.len() > 20
                && let Some(at) = self.find(&bytes)
            {
                places.push((session, seq, at, bytes.len()));
            }
        }
        places
    }

    /// The one record, as the store reads it.
    fn read(&self, session: SessionId, seq: u64) -> Result<Digest, StoreError> {
        let store = SqliteStore::open(self.path(), options())?;
        let records = wait(store.records(session, seq - 1, PageLimit::entries(1)))?;
        Ok(records.first().expect("the record is there").record.hash)
    }
}

fn names(problems: &[Problem], words: &[String]) -> bool {
    problems
        .iter()
        .any(|problem| words.iter().all(|word| problem.place.contains(word)))
}

#[test]
fn damage_in_a_record_is_named_by_reads_and_by_the_check() {
    let whole = Whole::new();
    let places = whole.places("record");
    assert!(places.len() > 40, "only {} records", places.len());
    let (mut refused, mut harmless) = (0, 0);
    for (index, (session, seq, at, length)) in places.into_iter().enumerate() {
        whole.write(&whole.bytes);
        let hash = whole.read(session, seq).expect("the record is fine");
        // Every byte of a few records, a few bytes of every record.
        let step = if index % 30 == 7 { 1 } else { length / 4 };
        for offset in (0..length).step_by(step) {
            whole.flip(at + offset, (offset as u64 + seq) % 8);
            match whole.read(session, seq) {
                Err(error @ StoreError::Corrupt { .. }) => {
                    let text = error.to_string();
                    assert!(text.contains(&format!("record {seq}")), "{text}");
                    refused += 1;
                    if offset % 16 == 0 {
                        let report = check(whole.path()).expect("the file opens");
                        let words = [format!("record {seq}")];
                        assert!(names(&report.problems, &words), "{:?}", report.problems);
                    }
                }
                // The frame of a compressed record has bits that mean nothing.
                Ok(read) => {
                    assert_eq!(read, hash, "a wrong record at {}", at + offset);
                    harmless += 1;
                }
                Err(other) => panic!("not named: {}", chain(&other)),
            }
        }
    }
    println!("{refused} flips in records refused, {harmless} without effect");
    assert!(refused > 400 && harmless * 20 < refused);
}

#[test]
fn damage_in_a_payload_is_named_by_the_check() {
    let whole = Whole::new();
    let (mut named, mut harmless) = (0, 0);
    for (session, seq, at, length) in whole.places("bodies") {
        for offset in (0..length).step_by(length.div_ceil(6)) {
            whole.flip(at + offset, (offset as u64 + seq) % 8);
            let report = check(whole.path()).expect("the file opens");
            if report.problems.is_empty() {
                harmless += 1;
            } else {
                let words = [format!("record {seq}")];
                assert!(
                    names(&report.problems, &words),
                    "{session} {:?}",
                    report.problems
                );
                named += 1;
            }
        }
    }
    println!("{named} flips in payloads named, {harmless} without effect");
    assert!(named > 80 && harmless * 20 < named);
}

#[test]
fn damage_in_a_plain_payload_or_a_blob_is_named_bit_by_bit() {
    let whole = Whole::new();
    let session = session_id(RUN, 3);
    let at = whole
        .find(b"is anybody there?")
        .expect("kept once, as it is");
    for bit in 0..8 {
        whole.flip(at + 7, bit);
        let report = check(whole.path()).expect("the file opens");
        let expected = Problem {
            kind: ProblemKind::Payload,
            session: Some(session),
            revision: Some(5),
            entry: None,
            place: format!("a payload of record 5 of session {session}"),
            what: "is not what its digest says".to_owned(),
        };
        assert_eq!(report.problems, [expected]);
    }
    let blob: Vec<u8> = {
        let conn = whole.conn();
        let sql = "SELECT substr(data, 200, 500) FROM blob";
        conn.query_row(sql, [], |row| row.get(0))
            .expect("there is one blob")
    };
    let at = whole.find(&blob).expect("kept once");
    for bit in 0..8 {
        whole.flip(at + 77, bit);
        let report = check(whole.path()).expect("the file opens");
        let words = ["record 3".to_owned()];
        assert!(names(&report.problems, &words), "{:?}", report.problems);
    }
}

#[test]
fn a_record_changed_alone_breaks_the_chain() {
    let whole = Whole::new();
    let session = session_id(RUN, 0);
    let last = 77;
    for seq in [1_u32, 2, 40, 64, 65, last] {
        whole.write(&whole.bytes);
        let conn = whole.conn();
        let key = (session.as_uuid().as_bytes(), seq);
        let sql = "SELECT log.id, record FROM log JOIN session ON session.pk = log.session
                   WHERE session.id = ?1 AND seq = ?2";
        let (id, packed): (i64, Vec<u8>) = conn
            .query_row(sql, key, |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("the record is there");
        let text = codec::unpack(&packed).expect("our own bytes");
        let text = String::from_utf8(text).expect("JSON");
        // Another user, spelled as the format wants it: by itself this is a fine record.
        let forged = text.replace("0001\"", "0002\"").replace("0065\"", "0066\"");
        assert_ne!(forged, text, "record {seq} names somebody");
        let forged = codec::pack(forged.as_bytes());
        conn.execute("UPDATE log SET record = ?2 WHERE id = ?1", (id, forged))
            .expect("written");
        drop(conn);
        let refused = whole
            .read(session, seq.into())
            .expect_err("it is not the record");
        assert!(
            refused
                .to_string()
                .contains(&format!("record {seq} of session {session}")),
            "{}",
            chain(&refused)
        );
        let report = check(whole.path()).expect("the file opens");
        let words = [format!("record {seq} of session {session}")];
        assert!(names(&report.problems, &words), "{:?}", report.problems);
    }
}

#[test]
fn a_row_that_follows_itself_or_a_stranger_ends_every_walk() {
    let whole = Whole::new();
    for (follows, session, seq) in [("id", 0_u32, 30), ("id + 1", 0, 30), ("5", 1, 6)] {
        // Row 5 is record 5 of session 0; whoever asks for record 5 of session 1 must not get it.
        whole.write(&whole.bytes);
        let sql = format!("UPDATE log SET prev = {follows} WHERE session = ?1 AND seq = ?2");
        let changed = whole.conn().execute(&sql, (session + 1, seq));
        assert_eq!(changed.expect("a statement"), 1);
        let session = session_id(RUN, session.into());
        let store = open(whole.path());
        let key = || "absent".parse().expect("a key");
        let every = ItemQuery {
            limit: PageLimit::entries(1_000),
            task: None,
            before: None,
        };
        let reads = [
            wait(store.records(session, 0, PageLimit::entries(4))).map(drop),
            wait(store.records(session, 0, PageLimit::entries(1_000))).map(drop),
            wait(store.load_at(session, 3)).map(drop),
            wait(store.state_at(session, key(), 4)).map(drop),
        ];
        for read in reads {
            let refused = read.expect_err("the walk comes by there");
            assert!(matches!(refused, StoreError::Corrupt { .. }), "{refused:?}");
        }
        // Items are read without the chain; it is enough that this ends.
        drop(wait(store.items(session, every)));
    }
}

#[test]
fn no_flipped_bit_is_missed() {
    let seed = std::env::var("STATEHOLD_SEED").ok();
    let seed = seed
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_129);
    println!("seed {seed}; the same seed flips the same bits (STATEHOLD_SEED)");
    let whole = Whole::new();
    let ids = Ids::of(whole.path());
    let picture = || -> Result<Picture, StoreError> {
        let store = SqliteStore::open(whole.path(), options())?;
        wait(Picture::of(&store, &ids))
    };
    let expected = picture().expect("the store is fine");
    let records: BTreeMap<_, _> = expected
        .records()
        .map(|record| ((record.content.session, record.content.seq), record))
        .collect();
    let used = used_bytes(&whole.bytes);
    let mut random = Random::new(seed);
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for n in 0..300 {
        // Much of a small file is empty pages; most flips go to where something is.
        let at = if n % 5 == 0 {
            random.below(whole.bytes.len() as u64)
        } else {
            used[usize::try_from(random.below(used.len() as u64)).expect("in range")]
        };
        let (at, bit) = (usize::try_from(at).expect("in range"), random.below(8));
        let what = format!("bit {bit} of byte {at} (seed {seed})");
        whole.flip(at, bit);
        let is_noticed = match check(whole.path()) {
            Ok(report) => !report.problems.is_empty(),
            Err(_) => true,
        };
        let found = picture();
        if let Ok(found) = &found {
            for record in found.records() {
                let original = records.get(&(record.content.session, record.content.seq));
                assert_eq!(original, Some(&record), "{what}: a wrong record");
            }
        }
        let outcome = match (is_noticed, found) {
            (true, Err(_)) => "noticed, and refused when read",
            (true, Ok(_)) => "noticed",
            (false, Ok(found)) => {
                assert!(found == expected, "{what}: missed");
                "without effect"
            }
            (false, Err(error)) => panic!("{what}: missed, but {}", chain(&error)),
        };
        *counts.entry(outcome).or_default() += 1;
    }
    println!("flips: {counts:?}");
    assert!(counts["noticed"] + counts["noticed, and refused when read"] > 150);
}

#[test]
fn no_flipped_bit_of_a_backup_is_restored() {
    let seed = std::env::var("STATEHOLD_SEED").ok();
    let seed = seed
        .and_then(|seed| seed.parse().ok())
        .unwrap_or(20_261_116);
    println!("seed {seed}; the same seed flips the same bits (STATEHOLD_SEED)");
    let whole = Whole::new();
    let ids = Ids::of(whole.path());
    let backup = whole.path().join("backup.db");
    wait(open(whole.path()).backup(backup.clone())).expect("backed up");
    let bytes = std::fs::read(&backup).expect("reads");
    let restore = |flip: Option<(usize, u64)>| {
        let mut bytes = bytes.clone();
        if let Some((at, bit)) = flip {
            bytes[at] ^= 1 << bit;
        }
        std::fs::write(&backup, &bytes).expect("writes");
        let target = directory();
        let restored = SqliteStore::restore(&backup, target.path(), &mut |_, _| {});
        (target, restored)
    };
    let picture = |directory: &Path| wait(Picture::of(&open(directory), &ids));
    let (target, restored) = restore(None);
    assert!(restored.expect("the backup is fine").payloads > 100);
    let expected = picture(target.path()).expect("reads");
    let used = used_bytes(&bytes);
    let mut random = Random::new(seed);
    let (mut noticed, mut harmless) = (0, 0);
    // The header of the file, and then anywhere that something is.
    let header = (0..100).map(|at| (at, at % 8));
    let anywhere = (0..200).map(|_| {
        let at = random.below(used.len() as u64);
        (
            used[usize::try_from(at).expect("in range")],
            random.below(8),
        )
    });
    for (at, bit) in header.chain(anywhere) {
        let what = format!("bit {bit} of byte {at} (seed {seed})");
        let (target, restored) = restore(Some((usize::try_from(at).expect("in range"), bit)));
        let Err(error) = restored else {
            harmless += 1;
            scene::require_clean(target.path());
            let found = picture(target.path()).expect("reads");
            assert!(found == expected, "{what}: missed");
            continue;
        };
        noticed += 1;
        let is_told = matches!(error, StoreError::Unusable(_) | StoreError::Corrupt { .. });
        let is_told = is_told || chain(&error).contains("unsupported file format");
        assert!(is_told, "{what}: {error:?}");
        let left = std::fs::read_dir(target.path()).expect("reads");
        let left = left.map(|entry| entry.expect("an entry").file_name());
        let left: BTreeSet<_> = left.collect();
        let allowed = BTreeSet::from([KeyRing::NAME, KeyFile::NAME, LOCK_NAME].map(Into::into));
        assert_eq!(left, allowed, "{what}: {}", chain(&error));
    }
    println!("{noticed} flips of a backup refused, {harmless} without effect");
    assert!(noticed > 150, "{noticed}");
}

/// Bytes that something may depend on: not in the middle of nothing.
fn used_bytes(bytes: &[u8]) -> Vec<u64> {
    let is_used = |at: &usize| {
        let around = at.saturating_sub(3)..(at + 4).min(bytes.len());
        bytes[around].iter().any(|byte| *byte != 0)
    };
    let used = (0..bytes.len()).filter(is_used);
    used.map(|at| at as u64).collect()
}
