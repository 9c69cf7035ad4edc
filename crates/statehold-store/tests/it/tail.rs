//! The hot tail: the end of a session without disk, always durable, never what was removed, in bounded memory.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use statehold_core::command::Command;
use statehold_core::ids::{SessionId, TaskId};
use statehold_core::item::Visibility;
use statehold_core::session::TtlMode;
use statehold_store::sqlite::{Meter, SqliteOptions, SqliteStore};
use statehold_store::suite::driver::{Driver, Refusal, block_on};
use statehold_store::{
    ItemQuery, MemoryQuery, PageLimit, SessionOrder, SessionQuery, Store, StoreError, StoredItem,
};

const LIMIT: usize = 50;

fn open(directory: &Path, options: SqliteOptions) -> Arc<SqliteStore> {
    Arc::new(SqliteStore::open(directory, options).expect("the store opens"))
}

/// A store that waits for no disk.
fn unsynced(tail_bytes_max: usize) -> SqliteOptions {
    SqliteOptions {
        tail_bytes_max,
        sync: false,
        ..SqliteOptions::default()
    }
}

fn shared(store: &Arc<SqliteStore>) -> Arc<dyn Store> {
    Arc::clone(store) as Arc<dyn Store>
}

/// The newest items, as the trace shows them.
async fn newest(store: &dyn Store, session: SessionId) -> Vec<StoredItem> {
    let query = ItemQuery {
        limit: PageLimit::entries(LIMIT),
        task: None,
        before: None,
    };
    let found = store.items(session, query).await;
    found.expect("the store answers").0
}

/// Every read of the end of a session: the transcript, all items, and those of a task.
async fn reads(store: &dyn Store, session: SessionId, task: TaskId) -> [Vec<StoredItem>; 3] {
    let told = store
        .transcript(session, None, PageLimit::entries(LIMIT))
        .await;
    let (told, next) = told.expect("the store answers");
    assert!(next.is_some(), "there is more");
    let query = ItemQuery {
        task: Some(task),
        limit: PageLimit::entries(LIMIT),
        before: None,
    };
    let of_task = store.items(session, query).await;
    let (of_task, _) = of_task.expect("the store answers");
    [told, newest(store, session).await, of_task]
}

/// A session with a long history in one task at the end.
async fn talk(store: &Arc<dyn Store>, n: u64) -> Driver {
    let mut driver = Driver::begin(store, n).await;
    // A session is hot from its first read on.
    newest(&**store, driver.session()).await;
    for _ in 0..60 {
        driver.turn("planner").await;
    }
    driver.run("writer", 600_000).await;
    for n in 0..60_usize {
        // Short ones, some that are packed, and some that are kept apart.
        let text = format!("note {n} ").repeat(1 + n * n / 4);
        let note = driver.note(text);
        let append = driver.append(61, vec![note]);
        driver.by_worker(append).await;
    }
    for _ in 0..30 {
        driver.turn("planner").await;
    }
    driver
}

#[test]
fn the_end_of_a_hot_session_is_read_without_one_instruction() {
    let directory = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        ..unsynced(1 << 26)
    };
    let store = open(directory.path(), options.clone());
    let steps = || meter.read_steps.load(Ordering::Relaxed);
    let driver = block_on(talk(&shared(&store), 1));
    let (session, task) = (driver.session(), driver.tasks[1]);
    drop(driver);
    let before = steps();
    let hot = block_on(reads(&*store, session, task));
    assert_eq!(steps(), before, "commits have filled the tail");
    let whole = hot.iter().all(|page| page.len() == LIMIT);
    assert!(whole, "whole pages");
    drop(store);
    let store = open(directory.path(), options);
    assert_eq!(store.tail_bytes(), 0, "a new process begins without");
    assert_eq!(block_on(reads(&*store, session, task)), hot);
    assert!(steps() > before, "from the file");
    let before = steps();
    block_on(async {
        let told = store
            .transcript(session, None, PageLimit::entries(LIMIT))
            .await;
        assert_eq!(told.expect("the store answers").0, hot[0]);
        assert_eq!(newest(&*store, session).await, hot[1]);
    });
    assert_eq!(steps(), before, "a reader has filled the tail");
    drop(store);
    let store = open(directory.path(), unsynced(0));
    let cold = block_on(reads(&*store, session, task));
    assert_eq!(cold, hot, "without a tail");
    assert_eq!(store.tail_bytes(), 0);
}

/// A running turn reads its memory, its records and the end of its request.
#[test]
fn a_turn_in_a_hot_session_reads_without_one_instruction() {
    let directory = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        ..unsynced(1 << 26)
    };
    let store = open(directory.path(), options);
    let mut driver = block_on(talk(&shared(&store), 1));
    let session = driver.session();
    let read = |driver: &Driver, store: Arc<SqliteStore>| {
        let (path, live) = ("planner".parse().expect("a path"), driver.requests.last());
        let (request, ended) = (
            *live.expect("one"),
            driver.requests[driver.requests.len() - 2],
        );
        let task = driver.state.requests[&request].task;
        let revision = driver.state.revision;
        let query = MemoryQuery {
            memory: driver.state.memories.get(&path).copied(),
            path,
            reader: Some((task, request)),
            exchanges: 20,
            bytes: 1 << 20,
        };
        block_on(async move {
            let page = store.memory(session, query).await;
            let records = store
                .records(session, revision - 8, PageLimit::entries(200))
                .await;
            let few = store
                .records(session, revision - 8, PageLimit::entries(2))
                .await;
            let ended = store.ended_request(ended).await;
            let all = (page, records, few, ended);
            (
                all.0.expect("the store answers"),
                all.1.expect("the store answers"),
                all.2.expect("the store answers"),
                all.3.expect("the store answers"),
            )
        })
    };
    block_on(async {
        driver.run("planner", 600_000).await;
        let note = driver.note("a note");
        let request = driver.requests.len();
        let append = driver.append(request, vec![note]);
        driver.by_worker(append).await;
    });
    let before = meter.read_steps.load(Ordering::Relaxed);
    let hot = read(&driver, Arc::clone(&store));
    assert_eq!(meter.read_steps.load(Ordering::Relaxed), before);
    assert_eq!(hot.0.exchanges.len(), 20);
    assert_eq!((hot.1.len(), hot.2.len()), (8, 2));
    assert!(hot.3.is_some(), "it has ended");
    drop(store);
    driver.store = Arc::new(statehold_store::memory::MemoryStore::default());
    let store = open(directory.path(), unsynced(0));
    assert_eq!(read(&driver, store), hot, "as the file has it");
}

/// A router passes the answer of its agent on: the row of the router names bytes that another row brought.
#[test]
fn answers_that_a_router_passed_on_are_hot_too() {
    let directory = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        ..unsynced(1 << 26)
    };
    let store = open(directory.path(), options);
    let session = block_on(async {
        let mut driver = Driver::begin(&shared(&store), 1).await;
        newest(&*store, driver.session()).await;
        for (n, bytes) in [700, 1_500, 3_900, 20_000].into_iter().enumerate() {
            let answer = format!("answer {n} ").repeat(bytes / 9);
            driver.run("router", 600_000).await;
            let asked = 2 * n + 1;
            let child = driver.spawn(asked, "booker");
            driver.by_worker(Command::StartRequest(child)).await;
            for request in [asked + 1, asked] {
                let mut done = driver.complete(request);
                if let Command::CompleteRequest { output, .. } = &mut done {
                    *output = driver.output(&answer);
                }
                driver.by_worker(done).await;
            }
        }
        driver.session()
    });
    let before = meter.read_steps.load(Ordering::Relaxed);
    let (told, _) = block_on(store.transcript(session, None, PageLimit::entries(LIMIT)))
        .expect("the store answers");
    assert_eq!(told.len(), 8, "four questions and four answers");
    assert!(told.iter().all(|stored| stored.body.is_some()));
    assert_eq!(meter.read_steps.load(Ordering::Relaxed), before);
}

#[test]
fn a_read_shows_the_newest_commit_while_readers_fill_a_tail_that_is_too_small() {
    const SESSIONS: u64 = 6;
    let directory = tempfile::tempdir().expect("a directory");
    // Room for a few of the sessions: entries come and go all the time.
    let store = open(directory.path(), unsynced(160 * 1024));
    let mut drivers = block_on(async {
        let mut drivers = Vec::new();
        for n in 1..=SESSIONS {
            drivers.push(Driver::begin(&shared(&store), n).await);
        }
        drivers
    });
    let sessions: Vec<_> = drivers.iter().map(Driver::session).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..4 {
            let (store, sessions, is_over) = (&store, &sessions, &is_over);
            scope.spawn(move || {
                let mut at = reader;
                while !is_over.load(Ordering::Relaxed) {
                    at += 1;
                    let session = sessions[at % sessions.len()];
                    block_on(store.transcript(session, None, PageLimit::entries(10)))
                        .expect("the store answers");
                }
            });
        }
        block_on(async {
            for _ in 0..150 {
                for driver in &mut drivers {
                    driver.turn("planner").await;
                    let newest = newest(&*store, driver.session()).await;
                    let seq = newest.first().map(|stored| stored.placed.item.seq);
                    assert_eq!(
                        seq,
                        Some(driver.state.items_appended),
                        "read what was written"
                    );
                }
            }
        });
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn the_tail_shows_nothing_that_is_not_in_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path(), SqliteOptions::default());
    let mut driver = block_on(Driver::begin(&shared(&store), 1));
    let session = driver.session();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let told = block_on(store.transcript(session, None, PageLimit::entries(1)));
                    let Some(hot) = told.expect("the store answers").0.pop() else {
                        continue;
                    };
                    // A page that begins before an item is always read from the file.
                    let before = Some(hot.placed.item.seq + 1);
                    let told = block_on(store.transcript(session, before, PageLimit::entries(1)));
                    assert_eq!(told.expect("the store answers").0, [hot]);
                }
            });
        }
        block_on(async {
            for _ in 0..200 {
                driver.turn("planner").await;
            }
        });
        is_over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_reader_who_saw_a_commit_in_the_file_sees_it_in_the_tail() {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path(), unsynced(16 * 1024 * 1024));
    let mut driver = block_on(Driver::begin(&shared(&store), 1));
    let session = driver.session();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    // The state is always read from the file.
                    let state = block_on(store.load(session)).expect("the store answers");
                    let appended = state.expect("it is there").items_appended;
                    let told = block_on(store.transcript(session, None, PageLimit::entries(1)));
                    let told = told.expect("the store answers").0.pop();
                    let newest = told.map_or(0, |stored| stored.placed.item.seq);
                    assert!(newest >= appended, "{newest} after {appended}");
                }
            });
        }
        let _over = Over(&is_over);
        block_on(async {
            for _ in 0..2_000 {
                driver.turn("planner").await;
            }
        });
    });
}

/// Tells the readers to stop, also when the writer panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn the_tail_shows_nothing_of_a_commit_that_the_disk_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let options = SqliteOptions {
        pages_max: Some(150),
        ..SqliteOptions::default()
    };
    let store = open(directory.path(), options);
    block_on(async {
        let mut driver = Driver::begin(&shared(&store), 1).await;
        driver.run("planner", 600_000).await;
        for n in 0..1_000_usize {
            let text: Vec<u8> = (n..n + 3_000).flat_map(usize::to_le_bytes).collect();
            let note = driver.note(text);
            let append = driver.append(1, vec![note]);
            match driver.send(&driver.worker(1), append).await {
                Ok(_) => {}
                Err(Refusal::Store(StoreError::Full)) => {
                    let newest = newest(&*store, driver.session()).await;
                    let seq = newest.first().map(|stored| stored.placed.item.seq);
                    assert_eq!(seq, Some(driver.state.items_appended), "after {n} notes");
                    return;
                }
                Err(other) => panic!("not full, but {other:?}"),
            }
        }
        panic!("the store is never full");
    });
}

#[test]
fn a_session_is_summarised_from_memory_as_the_file_has_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        ..unsynced(1 << 26)
    };
    let store = open(directory.path(), options);
    let steps = || meter.read_steps.load(Ordering::Relaxed);
    let require_same = async |driver: &Driver| {
        let query = SessionQuery {
            tenant: driver.owner.tenant.clone(),
            app: None,
            user: None,
            order: SessionOrder::Created,
            after: None,
            limit: 10,
        };
        let listed = store.sessions(query).await.expect("the store answers");
        let listed = listed
            .into_iter()
            .find(|summary| summary.id == driver.session());
        for _ in 0..2 {
            let found = store.session(driver.session()).await;
            assert_eq!(found.expect("the store answers"), listed);
        }
        let before = steps();
        let found = store.session(driver.session()).await;
        assert_eq!(found.expect("the store answers"), listed);
        assert_eq!(steps(), before, "without the file");
    };
    block_on(async {
        let mut driver = Driver::begin(&shared(&store), 1).await;
        assert_eq!(store.tail_bytes(), 0, "only written");
        require_same(&driver).await;
        driver.turn("planner").await;
        require_same(&driver).await;
        driver.rename(Some("a name")).await.expect("it is free");
        require_same(&driver).await;
        driver.live_for(Some((TtlMode::Sliding, 5_000_000))).await;
        require_same(&driver).await;
        driver.queue("planner").await;
        require_same(&driver).await;
        driver.ok(&driver.client(), Command::Rewind { to: 2 }).await;
        require_same(&driver).await;
        let fork = driver.fork(2, 3).await;
        require_same(&fork).await;
        require_same(&driver).await;
        let none = Driver::new(shared(&store), driver.owner.clone(), 9);
        let bytes = store.tail_bytes();
        let found = store.session(none.session()).await;
        assert_eq!(found.expect("the store answers"), None);
        assert_eq!(store.tail_bytes(), bytes, "a stranger takes no room");
    });
}

/// The bytes that 64 readers may find once a session was deleted or has expired.
fn race(
    change: impl AsyncFnOnce(&mut Driver, &dyn Store),
    is_allowed: impl Fn(&StoredItem) -> bool + Sync,
) {
    let directory = tempfile::tempdir().expect("a directory");
    let store = open(directory.path(), unsynced(1 << 26));
    let mut driver = block_on(talk(&shared(&store), 1));
    block_on(driver.live_for(Some((TtlMode::Fixed, 5_000))));
    let (session, is_changed) = (driver.session(), AtomicBool::new(false));
    let after = AtomicU64::new(0);
    thread::scope(|scope| {
        for number in 0..64 {
            let (store, session, is_changed, after) = (&store, &session, &is_changed, &after);
            let is_allowed = &is_allowed;
            scope.spawn(move || {
                let mut rounds = 0;
                while rounds < 3 {
                    let was_changed = is_changed.load(Ordering::SeqCst);
                    let found = if number % 2 == 0 {
                        block_on(newest(&**store, *session))
                    } else {
                        let told = store.transcript(*session, None, PageLimit::entries(LIMIT));
                        block_on(told).expect("the store answers").0
                    };
                    if was_changed {
                        assert!(found.iter().all(is_allowed), "it was removed");
                        rounds += 1;
                        after.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        block_on(change(&mut driver, &*store));
        is_changed.store(true, Ordering::SeqCst);
    });
    assert_eq!(after.load(Ordering::Relaxed), 64 * 3);
}

async fn erase(store: &dyn Store) {
    while store
        .erase_some(PageLimit::entries(3))
        .await
        .expect("the store erases")
    {}
}

#[test]
fn after_a_deletion_no_reader_finds_a_byte() {
    let delete = async |driver: &mut Driver, store: &dyn Store| {
        driver.delete_session().await;
        erase(store).await;
    };
    race(delete, |stored| stored.body.is_none());
}

#[test]
fn after_an_expiry_no_reader_finds_a_hidden_byte() {
    let expire = async |driver: &mut Driver, store: &dyn Store| {
        driver.expire().await;
        erase(store).await;
    };
    race(expire, |stored| {
        let is_hidden = stored.placed.item.visibility == Visibility::Hidden;
        stored.body.is_none() == is_hidden
    });
}

#[test]
fn after_a_rewind_no_reader_finds_its_items_in_the_conversation() {
    let rewind = async |driver: &mut Driver, _: &dyn Store| {
        let to = 20;
        driver.ok(&driver.client(), Command::Rewind { to }).await;
        driver.turn("planner").await;
    };
    // A turn has two items, and the session began without any.
    race(rewind, |stored| {
        let is_kept = stored.placed.item.seq <= 38 || stored.placed.item.seq > 241;
        is_kept != stored.placed.rewound
    });
}

#[test]
fn the_tail_is_bounded_and_long_payloads_do_not_evict_the_others() {
    const MAX: usize = 1 << 22;
    let directory = tempfile::tempdir().expect("a directory");
    let meter = Arc::new(Meter::default());
    let options = SqliteOptions {
        meter: Some(Arc::clone(&meter)),
        ..unsynced(MAX)
    };
    let store = open(directory.path(), options);
    let steps = || meter.read_steps.load(Ordering::Relaxed);
    block_on(async {
        let mut large = Driver::begin(&shared(&store), 1).await;
        newest(&*store, large.session()).await;
        large.run("planner", 600_000).await;
        let mut small = Vec::new();
        for n in 2..202 {
            let mut driver = Driver::begin(&shared(&store), n).await;
            newest(&*store, driver.session()).await;
            driver.turn("planner").await;
            small.push(driver);
        }
        for n in 0..12_u32 {
            let odd = (0..2 << 20).map(|at: u32| (at ^ n).wrapping_mul(2_654_435_761));
            let text: Vec<u8> = odd.flat_map(u32::to_le_bytes).collect();
            assert_eq!(text.len(), 8 << 20);
            let note = large.note(text);
            let append = large.append(1, vec![note]);
            large.by_worker(append).await;
            assert!(store.tail_bytes() <= MAX, "{} bytes", store.tail_bytes());
        }
        let before = steps();
        for driver in &small {
            assert_eq!(newest(&*store, driver.session()).await.len(), 2);
        }
        assert_eq!(steps(), before, "the others are still there");
        let found = newest(&*store, large.session()).await;
        assert_eq!(found.len(), 13, "and what is not kept is read");
        assert!(found[..12].iter().all(|stored| stored.body.is_some()));
        for n in 1_000..11_000 {
            let mut driver = Driver::begin(&shared(&store), n).await;
            if n % 10 == 0 {
                driver.turn("planner").await;
                newest(&*store, driver.session()).await;
            }
            // Sessions that are not there take no room for long either.
            let none = Driver::new(shared(&store), driver.owner.clone(), n + 100_000);
            newest(&*store, none.session()).await;
            assert!(store.tail_bytes() <= MAX, "{} bytes", store.tail_bytes());
        }
        assert!(store.tail_bytes() > MAX / 2, "{}", store.tail_bytes());
        assert_eq!(
            newest(&*store, small[0].session()).await.len(),
            2,
            "from the file"
        );
    });
}
