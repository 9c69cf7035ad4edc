//! Commits in the order of arrival, for feeds; and commits that wait in line.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use statehold_core::command::Command;
use statehold_core::ids::SessionId;

use super::HEALTHY;
use super::driver::{Driver, block_on};
use super::fixture::{key, owner_of};
use super::log::require_chain;
use super::parallel::{THREADS, at_once};
use crate::{Commit, Committed, PageLimit, PendingCommit, Store, StoreError};

async fn page(store: &Arc<dyn Store>, after: u64, limit: usize) -> Vec<Committed> {
    let found = store.committed(after, limit).await.expect(HEALTHY);
    assert!(found.len() <= limit);
    found
}

pub(super) async fn commits_have_places_in_the_order_of_arrival(store: Arc<dyn Store>) {
    assert_eq!(store.last_place().await.expect(HEALTHY), 0);
    assert_eq!(page(&store, 0, 10).await, []);
    let mut first = Driver::begin(&store, 1).await;
    let mut second = Driver::begin_for(&store, owner_of("south", "bank", 2), 2).await;
    let mut expected = vec![(first.session(), 1), (second.session(), 1)];
    for _ in 0..3 {
        let revision = first.turn("planner").await;
        expected.push((first.session(), revision));
        let revision = second.put(&[("n", "1")]).await;
        expected.push((second.session(), revision));
    }
    let fork = first.fork(3, 2).await;
    expected.push((fork.session(), 3));
    let revision = first.delete_session().await;
    expected.push((first.session(), revision));
    while store
        .erase_some(PageLimit::entries(1))
        .await
        .expect(HEALTHY)
    {}
    let stale = second.at(3);
    let commit = stale.commit_of(&second.log[3].record);
    assert!(store.commit(commit).await.is_err(), "it is there already");
    for limit in 1..=expected.len() + 1 {
        let (mut found, mut after) = (Vec::new(), 0);
        loop {
            let next = page(&store, after, limit).await;
            for one in &next {
                assert!(one.place > after, "places grow");
                after = one.place;
            }
            if next.is_empty() {
                break;
            }
            found.extend(next.iter().map(|one| (one.session, one.revision)));
        }
        assert_eq!(found, expected, "pages of {limit}");
        assert_eq!(store.last_place().await.expect(HEALTHY), after);
    }
    assert_eq!(page(&store, 0, 0).await, []);
    assert_eq!(page(&store, u64::MAX >> 1, 10).await, []);
}

pub(super) async fn the_feed_has_no_gaps_while_many_commit(store: Arc<dyn Store>) {
    const ROUNDS: u64 = 25;
    let total = THREADS * (ROUNDS + 1);
    let follow = || {
        block_on(async {
            let (mut after, mut count) = (0, 0);
            let mut revisions: BTreeMap<SessionId, u64> = BTreeMap::new();
            while count < total {
                let newest = store.last_place().await.expect(HEALTHY);
                for one in page(&store, after, 7).await {
                    assert!(one.place > after, "places grow");
                    after = one.place;
                    count += 1;
                    let last = revisions.entry(one.session).or_default();
                    assert_eq!(one.revision, *last + 1, "no commit is missed");
                    *last = one.revision;
                    // What the feed has shown is there to be read.
                    let state = store.load(one.session).await.expect(HEALTHY);
                    let revision = state.expect("it has committed").revision;
                    assert!(revision >= one.revision);
                }
                assert!(store.last_place().await.expect(HEALTHY) >= newest);
            }
            assert_eq!(page(&store, after, 7).await, [], "and nothing else");
            revisions
        })
    };
    let seen = thread::scope(|scope| {
        let followers = [scope.spawn(follow), scope.spawn(follow)];
        at_once(|n| {
            block_on(async {
                let mut driver = Driver::begin_for(&store, owner_of("north", "shop", n), n).await;
                for round in 0..ROUNDS {
                    driver.put(&[("round", &round.to_string())]).await;
                }
            });
        });
        followers.map(|one| one.join().expect("the feed is whole"))
    });
    assert_eq!(seen[0], seen[1]);
    assert!(seen[0].values().all(|revision| *revision == ROUNDS + 1));
}

/// Decides a command on the newest state and goes on as if it were committed.
async fn ahead(driver: &mut Driver, command: Command) -> Commit {
    let client = driver.client();
    let record = driver.record(&client, command).await;
    let commit = driver.commit_of(&record);
    driver.absorb(&record);
    commit
}

fn put(driver: &mut Driver, value: &str) -> Command {
    let patch = driver.set(&[("n", value)]);
    Command::PutState { patch, by: None }
}

async fn begin(store: &Arc<dyn Store>, commit: Commit) -> PendingCommit {
    store.begin_commit(commit).await.expect("there is a line")
}

pub(super) async fn commits_of_a_session_may_wait_in_line(store: Arc<dyn Store>) {
    const DEPTH: u64 = 50;
    let mut drivers = [
        Driver::begin(&store, 1).await,
        Driver::begin(&store, 2).await,
    ];
    let mut waiting = Vec::new();
    for round in 0..DEPTH {
        for driver in &mut drivers {
            let command = put(driver, &round.to_string());
            let commit = ahead(driver, command).await;
            waiting.push((driver.state.revision, begin(&store, commit).await));
        }
    }
    // Nobody has to ask in the order in which they were put in line.
    for (revision, pending) in waiting.into_iter().rev() {
        assert_eq!(
            pending.await.expect("it builds on the one before"),
            revision
        );
    }
    for driver in &drivers {
        assert_eq!(driver.state.revision, 1 + DEPTH);
        let loaded = store.load(driver.session()).await.expect(HEALTHY);
        assert_eq!(loaded.as_ref(), Some(&driver.state));
        let records = store
            .records(driver.session(), 0, PageLimit::entries(1_000))
            .await;
        assert_eq!(records.expect(HEALTHY), driver.log);
        require_chain(driver).await;
    }
}

pub(super) async fn commits_behind_a_refused_one_are_refused(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut other = Driver::begin_for(&store, owner_of("south", "bank", 2), 2).await;
    driver.put(&[("user:language", r#""de""#)]).await;
    let taken = put(&mut driver, "1");
    let taken = ahead(&mut driver, taken).await;
    let kept = driver.clone();
    // The value is at version 1; this one expects another.
    let mut patch = driver.set(&[("user:language", r#""fr""#)]);
    patch.if_versions.insert(key("user:language"), 7);
    let refused = ahead(&mut driver, Command::PutState { patch, by: None }).await;
    let mut line = vec![begin(&store, taken).await, begin(&store, refused).await];
    let mut others = Vec::new();
    for round in 0..3 {
        let behind = put(&mut driver, &round.to_string());
        let behind = ahead(&mut driver, behind).await;
        line.push(begin(&store, behind).await);
        let beside = put(&mut other, &round.to_string());
        let beside = ahead(&mut other, beside).await;
        others.push(begin(&store, beside).await);
    }
    let mut answers = Vec::new();
    for pending in line {
        answers.push(pending.await);
    }
    assert!(matches!(answers[0], Ok(3)), "{answers:?}");
    assert!(
        matches!(answers[1], Err(StoreError::SharedConflict { .. })),
        "{answers:?}"
    );
    for answer in &answers[2..] {
        assert!(
            matches!(answer, Err(StoreError::Conflict { found: 3, .. })),
            "{answers:?}"
        );
    }
    for (revision, pending) in (2..).zip(others) {
        let answer = pending.await;
        assert_eq!(answer.expect("it has nothing to do with it"), revision);
    }
    let loaded = store.load(kept.session()).await.expect(HEALTHY);
    assert_eq!(loaded.as_ref(), Some(&kept.state));
    let mut again = kept.clone();
    again.diverge(9);
    again.turn("planner").await;
    require_chain(&again).await;
    require_chain(&other).await;
}

pub(super) async fn a_commit_in_line_is_written_also_if_nobody_waits(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for round in 0..3 {
        let command = put(&mut driver, &round.to_string());
        let commit = ahead(&mut driver, command).await;
        drop(begin(&store, commit).await);
    }
    // What comes after it in line finds it there.
    driver.turn("planner").await;
    require_chain(&driver).await;
    let loaded = store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded.as_ref(), Some(&driver.state));
}
