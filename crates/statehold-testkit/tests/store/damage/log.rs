//! The write-ahead log, cut and flipped: whole transactions from its beginning are what is left.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::config::DbConfig;
use statehold_core::digest::Digest;
use statehold_core::ids::SessionId;
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_store::{PageLimit, Store, StoredRecord};
use statehold_testkit::workload::session_id;
use uuid::Uuid;

use crate::scene::{self, Author, RUN, data_file, directory, log_file, open, wait};

const SESSIONS: u64 = 3;
/// The header of the log, and of each page in it.
const HEADER: usize = 32;
const FRAME_HEADER: usize = 24;
const FRAME: usize = FRAME_HEADER + 4096;

type Heads = BTreeMap<SessionId, (u64, Digest)>;

/// The files of a store that was never closed, with what was acknowledged.
struct Unclosed {
    data: Vec<u8>,
    log: Vec<u8>,
    /// The length of the log after each commit, and what the sessions were at.
    commits: Vec<(usize, Heads)>,
    records: BTreeMap<(SessionId, u64), StoredRecord>,
}

impl Unclosed {
    fn new() -> Self {
        let directory = directory();
        let store = open(directory.path());
        wait(store.fold_log()).expect("the disk is fine");
        let read = |path| std::fs::read(path).expect("reads");
        let length = || read(log_file(directory.path())).len();
        let mut commits = vec![(length(), Heads::new())];
        let mut authors: Vec<Author> = (0..SESSIONS).map(Author::new).collect();
        wait(async {
            for step in 0..33 {
                let author = &mut authors[step % 3];
                match step {
                    0..3 => {
                        let create = author.client.create();
                        let client = statehold_model::fixtures::client();
                        author.send(&store, &create, client).await;
                    }
                    3 => author.turn(&store).await,
                    4..6 => author.count(&store).await,
                    9..24 if step % 3 == 1 => author.pause_step(&store).await,
                    _ => author.put(&store, "step", &step.to_string()).await,
                }
                let state = &author.client.state;
                let mut heads: Heads = commits[commits.len() - 1].1.clone();
                heads.insert(state.session, (state.revision, state.head));
                commits.push((length(), heads));
            }
        });
        let mut records = BTreeMap::new();
        for author in &authors {
            let stored =
                wait(store.records(author.session(), 0, PageLimit::entries(1_000))).expect("reads");
            for record in stored {
                let content = &record.record.content;
                records.insert((content.session, content.seq), record);
            }
        }
        // Copied as a running store leaves them; its index of the log is no part of the data.
        Self {
            data: read(data_file(directory.path())),
            log: read(log_file(directory.path())),
            commits,
            records,
        }
    }

    /// How many commits lie wholly before this place.
    fn whole_before(&self, at: usize) -> usize {
        let whole = self.commits.iter().take_while(|(end, _)| *end <= at);
        whole.count().saturating_sub(1)
    }

    /// Where the last three commits begin.
    fn last_three(&self) -> usize {
        self.commits[self.commits.len() - 4].0
    }

    /// Writes both files, the log up to `end`, with a byte of it changed if one is named.
    fn write(&self, directory: &Path, end: usize, flip: Option<(usize, u8)>) {
        let mut log = self.log[..end].to_vec();
        if let Some((at, mask)) = flip {
            log[at] ^= mask;
        }
        std::fs::write(data_file(directory), &self.data).expect("writes");
        std::fs::write(log_file(directory), log).expect("writes");
    }

    /// Opens the files as a store: it must hold the first `commits` commits, and all of each.
    fn require_prefix(&self, directory: &Path, commits: usize) {
        let store = open(directory);
        let heads = &self.commits[commits].1;
        let mut records = 0;
        for n in 0..SESSIONS {
            let session = session_id(RUN, n);
            let state = wait(store.load(session)).expect("reads");
            let head = state.map(|state| (state.revision, state.head));
            assert_eq!(head, heads.get(&session).copied());
            for stored in wait(store.records(session, 0, PageLimit::entries(1_000))).expect("reads")
            {
                let seq = stored.record.content.seq;
                assert_eq!(self.records[&(session, seq)], stored);
                records += 1;
            }
        }
        assert_eq!(records, commits);
        drop(store);
        assert_eq!(scene::require_clean(directory).records, commits);
    }

    /// The same question put to the engine alone, which is faster and leaves the log as it is.
    fn commits_in(&self, directory: &Path) -> usize {
        let conn = Connection::open(data_file(directory)).expect("the files open");
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
            .expect("a setting");
        conn.query_row("PRAGMA locking_mode = EXCLUSIVE", [], |_| Ok(()))
            .expect("a setting");
        let Ok(mut statement) = conn.prepare("SELECT id, revision, head FROM session") else {
            // Not even the tables are there.
            return 0;
        };
        let rows = statement.query_map([], |row| {
            let (id, revision): ([u8; 16], i64) = (row.get(0)?, row.get(1)?);
            let session = SessionId::from_uuid(Uuid::from_bytes(id));
            let head = Digest::from_bytes(row.get(2)?);
            Ok((session, (revision.unsigned_abs(), head)))
        });
        let heads: Heads = rows.expect("rows").map(|row| row.expect("a row")).collect();
        let found = self.commits.iter().position(|(_, known)| *known == heads);
        found.expect("a state that the store once had")
    }
}

#[test]
fn a_log_cut_anywhere_leaves_a_whole_prefix() {
    let unclosed = Unclosed::new();
    let (directory, all) = (directory(), unclosed.log.len());
    unclosed.write(directory.path(), all, None);
    let log = OpenOptions::new()
        .write(true)
        .open(log_file(directory.path()));
    let log = log.expect("opens");
    // Every byte of the last three commits, then coarser; always shorter, so that the file lasts.
    let last = (unclosed.last_three()..=all).rev();
    let earlier = (0..unclosed.last_three()).rev().step_by(709);
    let mut cuts = 0;
    for end in last.chain(earlier) {
        log.set_len(end as u64).expect("cuts");
        let found = unclosed.commits_in(directory.path());
        assert_eq!(found, unclosed.whole_before(end), "cut at {end}");
        cuts += 1;
    }
    println!(
        "{cuts} cuts, {} commits, {all} bytes",
        unclosed.commits.len() - 1
    );
}

#[test]
fn a_store_opens_on_what_a_cut_log_leaves() {
    let unclosed = Unclosed::new();
    let all = unclosed.log.len();
    let frames = (HEADER..=all).step_by(FRAME);
    let mut ends: Vec<usize> = vec![0, 1, HEADER - 1];
    for frame in frames {
        ends.push(frame);
        if frame >= unclosed.last_three() {
            let inside = [
                1,
                FRAME_HEADER - 1,
                FRAME_HEADER,
                FRAME_HEADER + 1,
                2_000,
                FRAME - 1,
            ];
            ends.extend(inside.map(|offset| frame + offset));
        }
    }
    ends.retain(|end| *end <= all);
    for end in &ends {
        let directory = directory();
        unclosed.write(directory.path(), *end, None);
        unclosed.require_prefix(directory.path(), unclosed.whole_before(*end));
    }
    println!("{} cuts, each opened, read and checked", ends.len());
}

#[test]
fn a_bit_flipped_in_the_log_cuts_it_there() {
    let unclosed = Unclosed::new();
    let (directory, all) = (directory(), unclosed.log.len());
    unclosed.write(directory.path(), all, None);
    let log = OpenOptions::new()
        .write(true)
        .open(log_file(directory.path()));
    let log = log.expect("opens");
    let headers = (HEADER..all)
        .step_by(FRAME)
        .flat_map(|at| (at..at + FRAME_HEADER).step_by(3));
    let places = (0..HEADER).chain(headers).chain((HEADER..all).step_by(811));
    let places = places.chain(all - 2 * FRAME..all);
    let mut flips = 0;
    for at in places {
        let byte = unclosed.log[at];
        let flipped = byte ^ (1 << (at % 8));
        log.write_all_at(&[flipped], at as u64).expect("writes");
        let found = unclosed.commits_in(directory.path());
        assert_eq!(found, unclosed.whole_before(at), "flipped at {at}");
        log.write_all_at(&[byte], at as u64).expect("writes");
        flips += 1;
    }
    println!("{flips} flips in {all} bytes");
}

#[test]
fn a_store_cuts_a_damaged_tail_and_refuses_damage_before_it() {
    let unclosed = Unclosed::new();
    let (all, last) = (unclosed.log.len(), unclosed.commits.len() - 2);
    let headers = [0, 5, 17, 25, 30];
    let places = headers.into_iter().chain((40..all).step_by(2_003));
    let places: Vec<usize> = places.chain((all - 2 * FRAME..all).step_by(101)).collect();
    let mut refused = 0;
    for at in &places {
        let directory = directory();
        let mask = 1 << (at % 8);
        unclosed.write(directory.path(), all, Some((*at, mask)));
        if unclosed.whole_before(*at) >= last {
            unclosed.require_prefix(directory.path(), unclosed.whole_before(*at));
            continue;
        }
        let opened = SqliteStore::open(directory.path(), SqliteOptions::default());
        let error = opened
            .expect_err("acknowledged commits would be dropped")
            .to_string();
        assert!(
            error.contains("of the write-ahead log"),
            "flipped at {at}: {error}"
        );
        refused += 1;
    }
    println!(
        "{} flips, {refused} of them refused with their place",
        places.len()
    );
    assert!(refused > 100 && refused < places.len());
}
