//! Payloads that were removed are in no byte of the files, also when removing was interrupted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use statehold_core::command::{Command, StatePatch};
use statehold_core::session::TtlMode;
use statehold_store::sqlite::{FILE_NAME, Meter, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, block_on};
use statehold_store::suite::fixture;
use statehold_store::{KeyRange, PageLimit, Store, StoreError};

const TURNS: usize = 30;

fn open(directory: &Path) -> Arc<dyn Store> {
    Arc::new(SqliteStore::open(directory, SqliteOptions::default()).expect("the store opens"))
}

/// A session in which every payload has a word in it, too short and too odd to be compressed.
async fn tell(store: &Arc<dyn Store>, n: u64, word: &str) -> Driver {
    let mut driver = Driver::new(Arc::clone(store), fixture::owner(), n);
    let create = Command::CreateSession {
        owner: fixture::owner(),
        name: Some(driver.body(format!("{word} name"))),
        labels: Some(driver.body(format!("{{\"{word}\":1}}"))),
        state: driver.set(&[("topic", &format!("\"{word} value\""))]),
        ttl: None,
        hidden_ttl_ms: None,
    };
    driver.ok(&driver.client(), create).await;
    driver.run("planner", 600_000).await;
    for turn in 0..TURNS {
        let note = driver.note(format!("{word} note {turn}"));
        let private = driver.body(format!("{word} private {turn}"));
        let append = Command::AppendItems {
            by: driver.fenced(1),
            items: vec![note],
            state: StatePatch::default(),
            task_state: Some(private),
        };
        driver.by_worker(append).await;
        let value = format!("\"{word} value {turn}\"");
        driver.put(&[("topic", &value)]).await;
        let renamed = driver.rename(Some(&format!("{word} name {turn}"))).await;
        renamed.expect("the name is free");
    }
    driver
}

/// How often the bytes of a word are in the files of a store.
fn count(directory: &Path, word: &str) -> usize {
    let files = std::fs::read_dir(directory).expect("a directory");
    let paths = files.map(|file| file.expect("a file").path());
    let bytes = paths.map(|path| std::fs::read(path).expect("it can be read"));
    let windows = bytes.map(|bytes| {
        let windows = bytes.windows(word.len());
        windows.filter(|found| *found == word.as_bytes()).count()
    });
    windows.sum()
}

#[test]
fn what_was_removed_is_in_no_byte_of_the_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    block_on(async {
        let mut deleted = tell(&store, 1, "quixotic").await;
        let mut expired = tell(&store, 2, "zephyr").await;
        tell(&store, 3, "walrus").await;
        deleted.delete_session().await;
        expired.live_for(Some((TtlMode::Fixed, 5_000))).await;
        expired.expire().await;
        while store
            .erase_some(PageLimit::entries(7))
            .await
            .expect("the store erases")
        {}
    });
    drop(store);
    assert_eq!(count(directory.path(), "quixotic"), 0, "deleted");
    assert_eq!(count(directory.path(), "zephyr note"), 0, "hidden");
    assert_eq!(count(directory.path(), "zephyr private"), 0, "hidden");
    assert!(
        count(directory.path(), "zephyr value") > 0,
        "clients see it"
    );
    assert!(count(directory.path(), "walrus note") >= TURNS);
    let report = SqliteStore::check(directory.path(), &mut |_, _| {});
    let report = report.expect("the file opens");
    assert_eq!(report.problems, []);
    // Notes, private states, values and names, the first ones too, and the two of the expired one.
    assert_eq!(report.erased, (4 * TURNS + 4) + 2 * TURNS);
}

/// Lets a session say a hidden note with this word, and begin to count how long it keeps that.
async fn say(driver: &mut Driver, word: &str) {
    driver.run("planner", 600_000).await;
    let n = driver.requests.len();
    let note = driver.note(format!("{word} note"));
    let append = driver.append(n, vec![note]);
    driver.by_worker(append).await;
    let done = driver.complete(n);
    driver.by_worker(done).await;
}

#[test]
fn hidden_bytes_stay_on_disk_as_long_as_a_session_needs_them_and_no_longer() {
    let directory = tempfile::tempdir().expect("a directory");
    let sqlite = SqliteStore::open(directory.path(), SqliteOptions::default());
    let sqlite = Arc::new(sqlite.expect("the store opens"));
    let store: Arc<dyn Store> = Arc::<SqliteStore>::clone(&sqlite);
    // A copy has no pages that only wait to be written over.
    let are_there = async |words: [&str; 2]| {
        let limit = PageLimit::entries(2);
        while store.erase_some(limit).await.expect("the store erases") {}
        let beside = tempfile::tempdir().expect("a directory");
        let copy = beside.path().join("copy");
        sqlite.backup(copy.clone()).await.expect("a copy");
        let bytes = std::fs::read(&copy).expect("it can be read");
        words.map(|word| {
            let mut windows = bytes.windows(word.len());
            windows.any(|found| found == word.as_bytes())
        })
    };
    let words = ["quixotic note", "zephyr note"];
    block_on(async {
        let mut driver = Driver::begin(&store, 1).await;
        driver.keep_hidden_for(5_000).await;
        say(&mut driver, "quixotic").await;
        let mut early = driver.fork(2, driver.state.revision).await;
        driver.erase_hidden().await;
        assert_eq!(are_there(words).await, [true, false]);
        say(&mut driver, "zephyr").await;
        // It begins without the first word.
        let mut late = driver.fork(3, driver.state.revision).await;
        driver.erase_hidden().await;
        assert_eq!(are_there(words).await, [true, true]);
        early.erase_hidden().await;
        assert_eq!(are_there(words).await, [false, true]);
        // One more that begins without any keeps nothing.
        driver.fork(4, driver.state.revision - 1).await;
        late.delete_session().await;
        assert_eq!(are_there(words).await, [false, false]);
    });
    drop((store, sqlite));
    let report = SqliteStore::check(directory.path(), &mut |_, _| {});
    assert_eq!(report.expect("the file opens").problems, []);
}

#[test]
fn removing_goes_on_where_it_was_when_the_store_is_opened_again() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    block_on(async {
        let mut driver = tell(&store, 1, "quixotic").await;
        driver.delete_session().await;
    });
    drop(store);
    let mut before = usize::MAX;
    let mut opened = 0;
    loop {
        let store = open(directory.path());
        let is_more = block_on(store.erase_some(PageLimit::entries(5))).expect("the store erases");
        drop(store);
        opened += 1;
        let left = SqliteStore::check(directory.path(), &mut |_, _| {}).expect("the file opens");
        assert_eq!(left.problems, [], "in the middle too");
        let unverified = left.unverified;
        assert!(unverified < before, "each time something goes");
        before = unverified;
        if !is_more {
            break;
        }
    }
    assert_eq!(before, 0);
    assert!(opened > TURNS / 5, "it took several times: {opened}");
    assert_eq!(count(directory.path(), "quixotic"), 0);
}

#[test]
fn a_payload_that_stays_is_kept_where_clients_see_it() {
    for bytes in [1_500, 9_000] {
        remove_shared(bytes);
    }
}

/// Removes payloads that a hidden note and a visible answer share.
fn remove_shared(bytes: u32) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    // Too odd to be compressed.
    let odd: Vec<u8> = (0..bytes)
        .map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[0])
        .collect();
    let shared = |word: &str| [word.as_bytes(), &odd].concat();
    block_on(async {
        for (n, word) in [(1, "quixotic"), (2, "zephyr")] {
            let mut driver = Driver::begin(&store, n).await;
            driver.run("planner", 600_000).await;
            let note = driver.note(shared(word));
            let append = driver.append(1, vec![note]);
            driver.by_worker(append).await;
            let mut done = driver.complete(1);
            if let Command::CompleteRequest { output, .. } = &mut done {
                output.body = driver.body(shared(word));
            }
            driver.by_worker(done).await;
            store
                .erase_some(PageLimit::entries(1))
                .await
                .expect("nothing to erase");
            if n == 1 {
                driver.delete_session().await;
            } else {
                driver.live_for(Some((TtlMode::Fixed, 5_000))).await;
                driver.expire().await;
            }
        }
        let before = store
            .records(fixture::session(2), 0, PageLimit::entries(100))
            .await;
        let before = before.expect("the store answers");
        let has = |body: &&Option<Vec<u8>>| body.as_deref() == Some(&*shared("zephyr"));
        let read = before.iter().flat_map(|stored| &stored.bodies);
        assert_eq!(
            read.filter(has).count(),
            1,
            "the answer; the note is gone at once"
        );
    });
    drop(store);
    assert_eq!(count(directory.path(), "zephyr"), 1, "stored once");
    let store = open(directory.path());
    block_on(async {
        while store
            .erase_some(PageLimit::entries(1))
            .await
            .expect("the store erases")
        {}
    });
    drop(store);
    assert_eq!(count(directory.path(), "quixotic"), 0, "deleted");
    assert_eq!(count(directory.path(), "zephyr"), 1, "clients see it");
    let report = SqliteStore::check(directory.path(), &mut |_, _| {});
    assert_eq!(report.expect("the file opens").problems, []);
}

#[test]
fn a_damaged_session_stops_no_other_erasure() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    block_on(async {
        for (n, word) in [(1, "quixotic"), (2, "zephyr"), (3, "walrus")] {
            tell(&store, n, word).await.delete_session().await;
        }
    });
    drop(store);
    let file = rusqlite::Connection::open(directory.path().join(FILE_NAME));
    let sql =
        "UPDATE erasure SET payloads = 'junk' WHERE session = (SELECT min(session) FROM erasure)";
    let changed = file.expect("it opens").execute(sql, []);
    assert_eq!(changed.expect("it is written"), 1);
    let store = open(directory.path());
    block_on(async {
        while store
            .erase_some(PageLimit::entries(7))
            .await
            .expect("the others go")
        {}
        let told = store.erase_some(PageLimit::entries(7)).await;
        assert!(matches!(told, Err(StoreError::Corrupt { .. })), "{told:?}");
    });
    drop(store);
    assert!(count(directory.path(), "quixotic") > 0);
    assert_eq!(count(directory.path(), "zephyr"), 0);
    assert_eq!(count(directory.path(), "walrus"), 0);
}

#[test]
fn many_damaged_sessions_stop_no_other_erasure() {
    const DAMAGED: u32 = 70;
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    block_on(async {
        for n in 1..=u64::from(DAMAGED) + 2 {
            let mut driver = Driver::begin(&store, n).await;
            driver.put(&[("topic", "\"quixotic\"")]).await;
            driver.delete_session().await;
        }
    });
    let file = rusqlite::Connection::open(directory.path().join(FILE_NAME)).expect("it opens");
    let sql = "UPDATE erasure SET payloads = 'junk'
               WHERE session IN (SELECT session FROM erasure ORDER BY session LIMIT ?1)";
    let changed = file.execute(sql, [DAMAGED]).expect("it is written");
    assert_eq!(changed, DAMAGED as usize);
    block_on(async {
        while store
            .erase_some(PageLimit::entries(30))
            .await
            .expect("the others go")
        {}
    });
    let sql = "SELECT count(*) FROM erasure";
    let left: u32 = file.query_row(sql, [], |row| row.get(0)).expect("a count");
    assert_eq!(left, DAMAGED, "the sound ones are gone");
    let known = store.damage().counts().sessions;
    assert_eq!(known, DAMAGED as usize, "each is known");
}

async fn erase_all(store: &Arc<dyn Store>) {
    while store.erase_some(STEP).await.expect("the store erases") {}
}

fn metered(directory: &Path) -> (Arc<dyn Store>, Arc<Meter>) {
    let meter = Arc::<Meter>::default();
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open(directory, options).expect("the store opens");
    (Arc::new(store), meter)
}

/// Text of so many bytes that no compression makes shorter.
fn odd_text(seed: usize, bytes: usize) -> String {
    let mut odd = u32::try_from(seed).expect("a few");
    let letters = (0..bytes).map(|_| {
        odd = odd.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        char::from(b'0' + odd.to_be_bytes()[0] % 64).to_ascii_lowercase()
    });
    letters.filter(char::is_ascii_alphanumeric).collect()
}

#[test]
fn values_and_private_states_of_a_deleted_session_are_gone_at_once_and_removed_in_steps() {
    const VALUES: usize = 20;
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    let file = || rusqlite::Connection::open(directory.path().join(FILE_NAME)).expect("it opens");
    let file = file();
    let left = || -> (usize, u64) {
        let sql = "SELECT count(*), coalesce(sum(length(value)), 0) FROM
                   (SELECT value FROM state UNION ALL SELECT value FROM task_state)";
        let columns = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        let (rows, bytes) = file.query_row(sql, [], columns).expect("sums");
        (usize::try_from(rows).expect("rows"), bytes.unsigned_abs())
    };
    block_on(async {
        let mut driver = Driver::begin(&store, 1).await;
        driver.run("planner", 600_000).await;
        let remember = driver.remember(1, odd_text(99, 400_000));
        driver.by_worker(remember).await;
        for n in 0..VALUES {
            let value = format!("\"{}\"", odd_text(n + 1, 400_000));
            driver.put(&[(&format!("key-{n}"), &value)]).await;
        }
        let before = left();
        assert_eq!(before.0, VALUES + 1);
        assert!(before.1 > 4 << 20, "{} bytes", before.1);
        let task = driver.tasks[0];
        driver.delete_session().await;
        assert_eq!(left(), before, "the commit removes none of them");
        let state = store.state(
            driver.session(),
            KeyRange::default(),
            PageLimit::entries(100),
        );
        assert!(state.await.expect("a page").values.is_empty());
        for n in 0..VALUES {
            let key = fixture::key(&format!("key-{n}"));
            let value = store.state_value(driver.session(), key).await;
            assert_eq!(value.expect("it is read"), None);
        }
        assert_eq!(store.task_state(task).await.expect("it is read"), None);
        let loaded = store.load(driver.session()).await.expect("it is read");
        assert_eq!(loaded.as_ref(), Some(&driver.state));
        let mut known = before;
        while store.erase_some(STEP).await.expect("the store erases") {
            let now = left();
            assert!(known.1 - now.1 <= STEP.bytes, "{} bytes", known.1 - now.1);
            known = now;
        }
        assert_eq!(left(), (0, 0));
    });
    drop((store, file));
    let report = SqliteStore::check(directory.path(), &mut |_, _| {});
    assert_eq!(report.expect("the file opens").problems, []);
}

#[test]
fn a_store_that_stopped_before_it_removed_values_is_sound_and_goes_on() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    block_on(async {
        let mut driver = tell(&store, 1, "quixotic").await;
        driver.delete_session().await;
        let mut expired = tell(&store, 2, "zephyr").await;
        expired.live_for(Some((TtlMode::Fixed, 5_000))).await;
        expired.expire().await;
    });
    drop(store);
    let report = SqliteStore::check(directory.path(), &mut |_, _| {});
    assert_eq!(report.expect("the file opens").problems, []);
    let store = open(directory.path());
    block_on(erase_all(&store));
    drop(store);
    assert_eq!(count(directory.path(), "quixotic"), 0);
    assert_eq!(count(directory.path(), "zephyr private"), 0);
    let report = SqliteStore::check(directory.path(), &mut |_, _| {});
    assert_eq!(report.expect("the file opens").problems, []);
}

#[test]
fn a_rewind_costs_the_writer_what_writing_the_values_costs() {
    const KEYS: usize = 200;
    let directory = tempfile::tempdir().expect("a directory");
    let (store, meter) = metered(directory.path());
    block_on(async {
        let mut driver = Driver::begin(&store, 1).await;
        let names: Vec<String> = (0..KEYS).map(|n| format!("key-{n}")).collect();
        for name in &names {
            driver.put(&[(name, "\"first\"")]).await;
        }
        let to = driver.state.revision;
        let all: Vec<_> = names
            .iter()
            .map(|name| (name.as_str(), "\"second\""))
            .collect();
        let steps = || meter.steps.load(Ordering::Relaxed);
        let before = steps();
        driver.put(&all).await;
        let put = steps() - before;
        driver.turn("planner").await;
        let before = steps();
        driver.ok(&driver.client(), Command::Rewind { to }).await;
        let rewound = steps() - before;
        assert!(rewound < 2 * put, "{put} steps, then {rewound}");
        let key = fixture::key("key-7");
        let value = store.state_value(driver.session(), key).await;
        let value = value.expect("it is read").expect("a value");
        assert_eq!(value.value, b"\"first\"");
    });
}

#[test]
fn a_removal_in_a_fork_costs_what_it_removes_however_long_its_origin_is() {
    let steps = [40, 400].map(|turns| {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, meter) = metered(directory.path());
        block_on(async {
            let mut driver = Driver::begin(&store, 1).await;
            driver.keep_hidden_for(5_000).await;
            for _ in 0..turns {
                say(&mut driver, "quixotic").await;
            }
            driver.erase_hidden().await;
            erase_all(&store).await;
            say(&mut driver, "zephyr").await;
            let mut fork = driver.fork(2, driver.state.revision).await;
            driver.erase_hidden().await;
            erase_all(&store).await;
            written_steps_of_two_removals(&store, &meter, &mut fork).await
        })
    });
    let [few, many] = steps;
    for (few, many) in few.into_iter().zip(many) {
        assert!(many < few + few / 2, "{few} steps, then {many}");
    }
}

/// The steps of the first removal of a fork, which has something that its origin had to keep, and of the next.
async fn written_steps_of_two_removals(
    store: &Arc<dyn Store>,
    meter: &Meter,
    fork: &mut Driver,
) -> [u64; 2] {
    let mut steps = [0, 0];
    for steps in &mut steps {
        say(fork, "walrus").await;
        let before = meter.steps.load(Ordering::Relaxed);
        fork.erase_hidden().await;
        erase_all(store).await;
        *steps = meter.steps.load(Ordering::Relaxed) - before;
    }
    steps
}

#[test]
fn rows_that_are_removed_do_not_cost_more_for_each_fork() {
    let steps = [1, 60].map(|forks| {
        let directory = tempfile::tempdir().expect("a directory");
        let (store, meter) = metered(directory.path());
        block_on(async {
            let mut driver = Driver::begin(&store, 1).await;
            driver.keep_hidden_for(5_000).await;
            let first = driver.state.revision;
            for _ in 0..200 {
                say(&mut driver, "quixotic").await;
            }
            for n in 0..forks {
                driver.fork(2 + n, first).await;
            }
            let before = meter.steps.load(Ordering::Relaxed);
            driver.erase_hidden().await;
            erase_all(&store).await;
            meter.steps.load(Ordering::Relaxed) - before
        })
    });
    let [one, many] = steps;
    assert!(many < one + one / 2, "{one} steps, then {many}");
}

/// The steps in which the payloads of a session are erased.
struct Steps {
    count: usize,
    /// The most bytes that one erased.
    bytes_most: u64,
    /// The most bytes that the log of the engine below had.
    log_most: u64,
}

/// Erases so many payloads of so many bytes.
fn erase(payloads: usize, bytes: usize, step: PageLimit) -> Steps {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    block_on(async {
        let mut driver = Driver::begin(&store, 1).await;
        driver.run("planner", 600_000).await;
        let mut odd = 1_u32;
        for _ in 0..payloads {
            // Too odd to be compressed.
            let payload: Vec<u8> = (0..bytes)
                .map(|_| {
                    odd = odd.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    odd.to_be_bytes()[0]
                })
                .collect();
            let note = driver.note(payload);
            let append = driver.append(1, vec![note]);
            driver.by_worker(append).await;
        }
        driver.delete_session().await;
    });
    let file = rusqlite::Connection::open(directory.path().join(FILE_NAME)).expect("it opens");
    let stored = || -> u64 {
        let sql = "SELECT coalesce(sum(length(data)), 0) FROM blob";
        let bytes: i64 = file.query_row(sql, [], |row| row.get(0)).expect("a sum");
        bytes.unsigned_abs()
    };
    let log = directory.path().join(format!("{FILE_NAME}-wal"));
    let mut before = stored();
    assert!(before >= (payloads * bytes) as u64, "{before}");
    let (count, bytes_most, log_most) = (0, 0, 0);
    let mut steps = Steps {
        count,
        bytes_most,
        log_most,
    };
    loop {
        let is_more = block_on(store.erase_some(step)).expect("the store erases");
        let left = stored();
        let in_log = std::fs::metadata(&log).map_or(0, |log| log.len());
        steps.bytes_most = steps.bytes_most.max(before - left);
        steps.log_most = steps.log_most.max(in_log);
        steps.count += 1;
        before = left;
        if !is_more {
            break;
        }
    }
    assert_eq!(before, 0);
    steps
}

const STEP: PageLimit = PageLimit {
    entries: 64,
    bytes: 1 << 20,
};

#[test]
fn each_step_of_erasing_is_bounded_in_bytes() {
    let steps = erase(20, 600_000, STEP);
    assert!(steps.bytes_most <= STEP.bytes, "{}", steps.bytes_most);
    assert!(steps.count >= 20, "{} steps", steps.count);
    // Erased pages are folded as erasing goes on, so that the last step does not fold all of them.
    let log_most = steps.log_most;
    assert!(log_most < 10 << 20, "{log_most} bytes of log");
}

#[test]
fn a_log_that_a_reader_uses_is_emptied_once_the_reader_has_ended() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path());
    let log = directory.path().join(format!("{FILE_NAME}-wal"));
    let length = || std::fs::metadata(&log).map_or(0, |log| log.len());
    block_on(async {
        let mut driver = tell(&store, 1, "quixotic").await;
        let reader = rusqlite::Connection::open(directory.path().join(FILE_NAME));
        let mut reader = reader.expect("it opens");
        let snapshot = reader.transaction().expect("a transaction");
        let sql = "SELECT count(*) FROM log";
        let rows: i64 = snapshot
            .query_row(sql, [], |row| row.get(0))
            .expect("a count");
        assert!(rows > 0);
        driver.delete_session().await;
        erase_all(&store).await;
        assert!(length() > 0, "the reader sees the file as it was");
        drop(snapshot);
        drop(reader);
        erase_all(&store).await;
        assert_eq!(length(), 0, "it is emptied without a further removal");
    });
    assert_eq!(count(directory.path(), "quixotic"), 0);
}

#[test]
fn the_log_is_folded_also_behind_payloads_that_are_longer_than_a_step() {
    let log_most = erase(8, 4_000_000, STEP).log_most;
    assert!(log_most < 16 << 20, "{log_most} bytes of log");
}
