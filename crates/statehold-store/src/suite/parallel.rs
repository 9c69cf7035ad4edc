//! Many writers at once: every session keeps its order, and what they share is exact.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use serde_json::json;
use statehold_core::command::Command;
use statehold_core::scope::MergePolicy;

use super::answers::send_keyed;
use super::driver::{Driver, Refusal, block_on};
use super::fixture::{self, owner, owner_of, seconds, session};
use super::log::require_chain;
use super::shared::value;
use super::{HEALTHY, history};
use crate::{ItemQuery, PageLimit, Store, StoreError};

pub(super) const THREADS: u64 = 8;

/// Runs `work` on some threads at once, each with its number, and gathers what they come to.
pub(super) fn at_once<T: Send>(work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (1..=THREADS)
            .map(|n| scope.spawn(move || work(n)))
            .collect();
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|done| done.expect("no thread panics")).collect()
    })
}

pub(super) async fn many_sessions_add_to_one_counter_exactly(store: Arc<dyn Store>) {
    const ROUNDS: u64 = 12;
    at_once(|n| {
        block_on(async {
            let mut driver = Driver::begin_for(&store, owner_of("north", "shop", n), n).await;
            for _ in 0..ROUNDS {
                let patch = driver.merge(MergePolicy::Add, &[("app:sum", &n.to_string())]);
                driver.patch(patch).await;
            }
        });
    });
    let found = value(&store, &owner(), "app:sum").await;
    let sum: u64 = (1..=THREADS).sum::<u64>() * ROUNDS;
    assert_eq!(
        found,
        Some((json!(sum), THREADS * ROUNDS)),
        "every write counts once"
    );
}

pub(super) async fn many_sessions_stay_dense_under_interleaved_commits(store: Arc<dyn Store>) {
    const SESSIONS: u64 = 64;
    const ROUNDS: u64 = 4;
    let drivers = at_once(|thread| {
        block_on(async {
            let mut drivers = Vec::new();
            for n in (1..=SESSIONS).filter(|n| n % THREADS == thread - 1) {
                drivers.push(Driver::begin_for(&store, owner_of("north", "shop", n % 5), n).await);
            }
            for round in 0..ROUNDS {
                for driver in &mut drivers {
                    driver.turn("planner").await;
                    driver.put(&[("round", &round.to_string())]).await;
                }
            }
            drivers
        })
    });
    let drivers: Vec<Driver> = drivers.into_iter().flatten().collect();
    assert_eq!(drivers.len() as u64, SESSIONS);
    for driver in &drivers {
        assert_eq!(driver.state.revision, 1 + 2 * ROUNDS);
        require_chain(driver).await;
        let records = store
            .records(driver.session(), 0, PageLimit::entries(1_000))
            .await
            .expect(HEALTHY);
        assert_eq!(
            records, driver.log,
            "no record of another session is among them"
        );
        let loaded = store.load(driver.session()).await.expect(HEALTHY);
        assert_eq!(loaded.as_ref(), Some(&driver.state));
        let items = history::all(driver, None).await;
        let seqs: Vec<u64> = items.iter().map(|stored| stored.placed.item.seq).collect();
        assert_eq!(seqs, (1..=2 * ROUNDS).rev().collect::<Vec<_>>());
    }
}

pub(super) async fn of_many_commits_on_one_revision_one_is_taken(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for round in 0..5 {
        let base = &driver;
        let taken = at_once(|n| {
            let mut own = base.clone();
            own.diverge(n);
            let patch = own.set(&[("who", &n.to_string())]);
            let put = Command::PutState { patch, by: None };
            match block_on(own.send(&own.client(), put)) {
                Ok(_) => Some(own),
                Err(Refusal::Store(StoreError::Conflict {
                    expected, found, ..
                })) => {
                    assert_eq!(found, expected + 1);
                    None
                }
                Err(other) => panic!("{other:?}"),
            }
        });
        let mut winners: Vec<Driver> = taken.into_iter().flatten().collect();
        assert_eq!(winners.len(), 1, "round {round}");
        driver = winners.remove(0);
        let loaded = store.load(driver.session()).await.expect(HEALTHY);
        assert_eq!(loaded.as_ref(), Some(&driver.state));
    }
    require_chain(&driver).await;
}

pub(super) async fn of_many_sessions_with_one_name_one_begins(store: Arc<dyn Store>) {
    let begun = at_once(|n| {
        let mut driver = Driver::new(Arc::clone(&store), owner(), n);
        let create = driver.create(Some("trip"));
        block_on(driver.send(&driver.client(), create)).map(|_| session(n))
    });
    let winners: Vec<_> = begun.iter().flatten().collect();
    assert_eq!(winners.len(), 1);
    for refused in begun.iter().filter_map(|one| one.as_ref().err()) {
        let is_taken = matches!(
            refused,
            Refusal::Store(StoreError::NameTaken { session }) if session == winners[0]
        );
        assert!(is_taken, "{refused:?}");
    }
}

pub(super) async fn of_many_commits_with_one_key_one_is_taken(store: Arc<dyn Store>) {
    let done = at_once(|n| {
        block_on(async {
            let mut driver = Driver::begin(&store, n).await;
            send_keyed(&mut driver, "first", seconds(100)).await
        })
    });
    let answers: Vec<_> = done.iter().flatten().collect();
    assert_eq!(answers.len(), 1);
    let kept = store.answer(answers[0].key).await.expect(HEALTHY);
    assert_eq!(kept.as_ref(), Some(answers[0]));
    for refused in done.iter().filter_map(|one| one.as_ref().err()) {
        assert!(
            matches!(refused, StoreError::KeyTaken { .. }),
            "{refused:?}"
        );
    }
    let mut written = 0;
    for n in 1..=THREADS {
        let loaded = store.load(session(n)).await.expect(HEALTHY);
        written += loaded.map_or(0, |state| state.revision - 1);
    }
    assert_eq!(written, 1, "of the refused commits nothing is there");
}

/// Tells the readers to stop, also when the writer panics.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

pub(super) async fn readers_see_whole_commits_only(store: Arc<dyn Store>) {
    const TURNS: usize = 40;
    let mut driver = Driver::begin(&store, 1).await;
    let id = fixture::session(1);
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                block_on(async {
                    while !is_over.load(Ordering::Relaxed) {
                        let state = store.load(id).await.expect(HEALTHY).expect("it is there");
                        assert_eq!(state.items_appended, (state.revision - 1) * 2);
                        let query = ItemQuery {
                            task: None,
                            before: None,
                            limit: PageLimit::entries(1_000),
                        };
                        let items = store.items(id, query).await.expect(HEALTHY).0;
                        assert_eq!(items.len() % 2, 0, "half of a turn is there");
                        assert!(items.len() as u64 >= state.items_appended, "a turn is gone");
                        let records = store
                            .records(id, 0, PageLimit::entries(1_000))
                            .await
                            .expect(HEALTHY);
                        assert!(
                            records.len() * 2 >= items.len(),
                            "an item without its record"
                        );
                    }
                });
            });
        }
        let _over = Over(&is_over);
        for _ in 0..TURNS {
            block_on(driver.turn("planner"));
        }
    });
    require_chain(&driver).await;
}
