//! A fork shares the history of its origin up to a revision, then goes its own way.

use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::digest::Digest;
use statehold_core::hold::DecisionKind;
use statehold_core::record::{Event, Record};

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{self, key, session};
use super::history;
use super::log::require_chain;
use super::past::require_past;
use super::picture::Picture;
use super::state::values;
use super::story;
use crate::{FORK_LEVELS_MAX, PageLimit, SessionOrder, SessionQuery, Store, StoreError};

async fn told(store: Arc<dyn Store>, until: u64) -> Driver {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, until).await;
    driver
}

/// What a driver's log says is what the store has, at every revision.
async fn require_whole(driver: &Driver) {
    let loaded = driver.store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded.as_ref(), Some(&driver.state));
    let records = driver
        .store
        .records(driver.session(), 0, PageLimit::entries(1_000))
        .await;
    assert_eq!(records.expect(HEALTHY), driver.log);
    require_chain(driver).await;
    require_past(driver).await;
}

pub(super) async fn a_fork_shares_the_history_of_its_origin(store: Arc<dyn Store>) {
    let driver = told(store, story::OPEN).await;
    for (n, at) in (2..).zip([1, 4, story::NESTED, 25, story::OPEN]) {
        let fork = driver.fork(n, at).await;
        assert_eq!(fork.state.revision, at + 1, "numbering goes on");
        require_whole(&fork).await;
        let items = history::all(&fork, None).await;
        let kept = driver.at(at).state.items_appended;
        let mut shared = history::all(&driver, None).await;
        shared.retain(|stored| stored.placed.item.seq <= kept);
        let content = |item: &crate::StoredItem| {
            (
                item.placed.item.clone(),
                item.at,
                item.body.clone(),
                item.attachments.clone(),
            )
        };
        let found: Vec<_> = items.iter().map(content).collect();
        let expected: Vec<_> = shared.iter().map(content).collect();
        assert_eq!(found, expected, "the items up to revision {at}");
    }
    require_whole(&driver).await;
}

pub(super) async fn a_fork_and_its_origin_go_on_apart(store: Arc<dyn Store>) {
    let mut driver = told(store, 25).await;
    let mut fork = driver.fork(2, 25).await;
    let before = Picture::of(&*driver.store, &[&fork]).await;
    for _ in 0..3 {
        driver.turn("planner").await;
        driver.put(&[("topic", r#""origin""#)]).await;
    }
    let after = Picture::of(&*driver.store, &[&fork]).await;
    assert!(
        after.same_sessions(&before),
        "the fork does not see its origin go on"
    );
    let before = Picture::of(&*driver.store, &[&driver]).await;
    for _ in 0..2 {
        fork.turn("planner").await;
        fork.put(&[("topic", r#""fork""#)]).await;
    }
    let after = Picture::of(&*driver.store, &[&driver]).await;
    assert!(
        after.same_sessions(&before),
        "the origin does not see its fork go on"
    );
    let topic = |values: Vec<(String, String, u64)>| {
        values
            .into_iter()
            .find(|(key, _, _)| key == "topic")
            .map(|(_, value, _)| value)
    };
    assert_eq!(topic(values(&driver).await).as_deref(), Some(r#""origin""#));
    assert_eq!(topic(values(&fork).await).as_deref(), Some(r#""fork""#));
    require_whole(&driver).await;
    require_whole(&fork).await;
}

pub(super) async fn a_fork_leaves_what_is_in_flight_with_its_origin(store: Arc<dyn Store>) {
    let mut driver = told(store, story::NESTED).await;
    let before = Picture::of(&*driver.store, &[&driver]).await;
    let fork = driver.fork(2, story::NESTED).await;
    assert!(fork.state.requests.is_empty() && fork.state.holds.is_empty());
    let after = Picture::of(&*driver.store, &[&driver]).await;
    assert!(after.same_sessions(&before), "the origin is as it was");
    let store = Arc::clone(&driver.store);
    let (request, hold) = (driver.requests[2], driver.holds[1]);
    assert_eq!(store.ended_request(request).await.expect(HEALTHY), None);
    assert_eq!(store.closed_hold(hold).await.expect(HEALTHY), None);
    let found = store.session_of_request(request).await.expect(HEALTHY);
    assert_eq!(found, Some(driver.session()));
    let answer = driver.decision(2, DecisionKind::Respond);
    driver.ok(&driver.client(), answer).await;
    let closed = store.closed_hold(hold).await.expect(HEALTHY);
    assert_eq!(
        closed.map(|closed| closed.decided_by),
        Some(driver.state.revision)
    );
    let found = store.session_of_hold(hold).await.expect(HEALTHY);
    assert_eq!(found, Some(driver.session()));
    require_whole(&driver).await;
    require_whole(&fork).await;
}

pub(super) async fn the_tasks_of_a_fork_keep_their_history(store: Arc<dyn Store>) {
    let mut driver = told(store, story::NESTED).await;
    let mut fork = driver.fork(2, story::NESTED).await;
    driver.put(&[("other", "1")]).await;
    for index in 0..3 {
        let (old, new) = (driver.tasks[index], fork.tasks[index]);
        assert_ne!(old, new, "a fork has tasks of its own");
        let found = driver.store.session_of_task(new).await.expect(HEALTHY);
        assert_eq!(found, Some(fork.session()));
        let found = driver.store.session_of_task(old).await.expect(HEALTHY);
        assert_eq!(found, Some(driver.session()));
        let mut expected = history::all(&driver, Some(old)).await;
        for stored in &mut expected {
            stored.placed.task = new;
        }
        assert!(!expected.is_empty());
        assert_eq!(
            history::all(&fork, Some(new)).await,
            expected,
            "under its new id"
        );
        assert_eq!(
            history::all(&fork, Some(old)).await,
            [],
            "the old id is not of the fork"
        );
        assert_eq!(
            history::all(&driver, Some(new)).await,
            [],
            "nor the new one of the origin"
        );
    }
    fork.turn("planner").await;
    let note = driver.note("only here");
    let append = driver.append(1, vec![note]);
    driver.by_worker(append).await;
    let (old, new) = (driver.tasks[0], fork.tasks[0]);
    let everything = history::all(&fork, None).await;
    let own = everything.iter().filter(|stored| stored.placed.task == new);
    let expected: Vec<_> = own.cloned().collect();
    assert_eq!(history::all(&fork, Some(new)).await, expected);
    for limit in 1..4 {
        let mut found: Vec<crate::StoredItem> = Vec::new();
        while found.len() < expected.len() {
            let before = found.last().map(|stored| stored.placed.item.seq);
            let page = history::page(&fork, Some(new), before, limit).await;
            assert!(!page.is_empty(), "pages of {limit}");
            found.extend(page);
        }
        assert_eq!(found, expected, "pages of {limit}");
    }
    let newest = history::page(&driver, Some(old), None, 1).await;
    assert_eq!(newest[0].body.as_deref(), Some(&b"only here"[..]));
}

pub(super) async fn the_tasks_of_a_fork_keep_the_state_of_that_time(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 600_000).await;
    for value in ["one", "two", "three"] {
        let remember = driver.remember(1, value);
        driver.by_worker(remember).await;
    }
    for (n, at, expected) in [
        (2, 2, None),
        (3, 3, Some("one")),
        (4, 4, Some("two")),
        (5, 5, Some("three")),
    ] {
        let mut fork = driver.fork(n, at).await;
        let found = store.task_state(fork.tasks[0]).await.expect(HEALTHY);
        let expected = expected.map(|text| text.as_bytes().to_vec());
        assert_eq!(found, expected, "at revision {at}");
        fork.run("planner", 600_000).await;
        let remember = fork.remember(2, "of the fork");
        fork.by_worker(remember).await;
        let found = store.task_state(fork.tasks[0]).await.expect(HEALTHY);
        assert_eq!(found.as_deref(), Some(&b"of the fork"[..]));
    }
    let found = store.task_state(driver.tasks[0]).await.expect(HEALTHY);
    assert_eq!(
        found.as_deref(),
        Some(&b"three"[..]),
        "the origin keeps its own"
    );
}

pub(super) async fn forks_of_forks_end_at_a_limit(store: Arc<dyn Store>) {
    let origin = Driver::begin(&store, 1).await;
    let mut deepest = origin.clone();
    for n in (2..).take(FORK_LEVELS_MAX) {
        deepest = deepest.fork(n, deepest.state.revision).await;
        deepest.put(&[("level", &n.to_string())]).await;
    }
    let mut refused = deepest.clone();
    refused.diverge(200);
    let (client, fork) = (refused.client(), session(200));
    let error = refused
        .refused(
            &client,
            Command::Fork {
                session: fork,
                through: None,
            },
        )
        .await;
    assert!(matches!(error, StoreError::ForkTooDeep), "{error:?}");
    assert_eq!(store.load(fork).await.expect(HEALTHY), None);
    require_whole(&deepest).await;
    // A revision that the deepest fork shares with its first origin belongs to that.
    let at = origin.state.revision;
    require_whole(&deepest.fork(201, at).await).await;
}

pub(super) async fn a_fork_has_the_values_of_that_time(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.put(&[("a", "1"), ("b", "1")]).await;
    driver.put(&[("a", "2")]).await;
    driver.delete(&["b"]).await;
    driver.ok(&driver.client(), Command::Rewind { to: 2 }).await;
    let expected: [&[(&str, &str, u64)]; 6] = [
        &[],
        &[],
        &[("a", "1", 2), ("b", "1", 2)],
        &[("a", "2", 3), ("b", "1", 2)],
        &[("a", "2", 3)],
        &[("a", "1", 5), ("b", "1", 5)],
    ];
    for at in 1..=5 {
        let mut fork = driver.fork(at + 1, at).await;
        let index = usize::try_from(at).expect("a small number");
        let found = values(&fork).await;
        let found: Vec<_> = found
            .iter()
            .map(|(key, value, at)| (&**key, &**value, *at))
            .collect();
        assert_eq!(found, expected[index], "at revision {at}");
        for (earlier, values) in (0..=at).zip(expected) {
            let value = store.state_at(fork.session(), key("a"), earlier).await;
            let there = values.iter().find(|(key, _, _)| *key == "a");
            let there = there.map(|(_, value, _)| value.as_bytes().to_vec());
            assert_eq!(
                value.expect(HEALTHY),
                there,
                "{earlier} in the fork at {at}"
            );
        }
        if at > 2 {
            fork.ok(&fork.client(), Command::Rewind { to: 2 }).await;
            let found = values(&fork).await;
            let found: Vec<_> = found
                .iter()
                .map(|(key, value, _)| (&**key, &**value))
                .collect();
            assert_eq!(
                found,
                [("a", "1"), ("b", "1")],
                "rewound beyond the fork at {at}"
            );
        }
        require_whole(&fork).await;
    }
}

pub(super) async fn a_fork_of_a_fork_reads_through_both(store: Arc<dyn Store>) {
    let driver = told(store, 25).await;
    let mut child = driver.fork(2, 24).await;
    child.turn("planner").await;
    child.put(&[("topic", r#""child""#)]).await;
    let mut grandchild = child.fork(3, child.state.revision).await;
    grandchild.turn("planner").await;
    require_whole(&grandchild).await;
    let task = Some(grandchild.tasks[0]);
    let found = history::all(&grandchild, task).await;
    let mut expected = history::all(&grandchild, None).await;
    expected.retain(|stored| Some(stored.placed.task) == task);
    assert_eq!(found, expected);
    let shared = driver.at(24).state.items_appended;
    let mut of_origin = history::all(&driver, Some(driver.tasks[0])).await;
    of_origin.retain(|stored| stored.placed.item.seq <= shared);
    assert_eq!(found.len(), of_origin.len() + 4, "two turns more");
    let early = child.fork(4, 3).await;
    require_whole(&early).await;
    assert_eq!(
        history::all(&early, None).await.len(),
        1,
        "the question of revision 2"
    );
    require_whole(&child).await;
}

pub(super) async fn a_fork_sees_the_rewinds_before_it_only(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for _ in 0..3 {
        driver.turn("planner").await;
    }
    driver.ok(&driver.client(), Command::Rewind { to: 3 }).await;
    let rewound = async |driver: &Driver| -> Vec<u64> {
        let all = history::all(driver, None).await;
        let marked = all.iter().filter(|stored| stored.placed.rewound);
        marked.map(|stored| stored.placed.item.seq).collect()
    };
    assert_eq!(rewound(&driver).await, [6, 5]);
    let before = driver.fork(2, 4).await;
    assert_eq!(rewound(&before).await, [0; 0], "it left before the rewind");
    let mut after = driver.fork(3, 5).await;
    assert_eq!(rewound(&after).await, [6, 5], "it left after the rewind");
    after.turn("planner").await;
    after.ok(&after.client(), Command::Rewind { to: 2 }).await;
    assert_eq!(
        rewound(&after).await,
        [8, 7, 6, 5, 4, 3],
        "it goes back further"
    );
    assert_eq!(rewound(&driver).await, [6, 5], "the origin does not");
}

pub(super) async fn a_fork_is_listed_without_the_name_of_its_origin(store: Arc<dyn Store>) {
    let driver = told(store, 25).await;
    let fork = driver.fork(2, 10).await;
    let query = SessionQuery {
        tenant: driver.owner.tenant.clone(),
        app: None,
        user: None,
        order: SessionOrder::Created,
        after: None,
        limit: 10,
    };
    let found = driver.store.sessions(query).await.expect(HEALTHY);
    let listed: Vec<_> = found
        .iter()
        .map(|one| (one.id, one.name.as_deref(), one.revision))
        .collect();
    assert_eq!(
        listed,
        [
            (session(2), None, 11),
            (session(1), Some("trip to Malmö"), 25)
        ]
    );
    assert_eq!(found[0].created_at, fork.now, "it began when it was forked");
    assert_eq!(found[0].owner, driver.owner);
}

pub(super) async fn a_fork_begins_once_and_from_a_revision_that_was(store: Arc<dyn Store>) {
    let driver = told(store, 10).await;
    let fork = driver.fork(2, 9).await;
    let other = Driver::begin(&driver.store, 3).await;
    let before = Picture::of(&*driver.store, &[&driver, &fork, &other]).await;
    for (taken, at) in [(2, 9), (2, 5), (3, 1), (3, 9)] {
        let mut again = driver.at(at);
        again.diverge(9);
        let command = Command::Fork {
            session: session(taken),
            through: None,
        };
        let refused = again.refused(&again.client(), command).await;
        assert!(
            matches!(refused, StoreError::Conflict { .. }),
            "{refused:?}"
        );
    }
    let mut wrong = driver.at(9);
    let command = Command::Fork {
        session: session(4),
        through: None,
    };
    let record = wrong.record(&wrong.client(), command).await;
    let mut forged = record.content.clone();
    forged.prev_hash = Digest::sha256(b"another past");
    let refused = driver
        .store
        .commit(wrong.commit_of(&Record::seal(forged)))
        .await;
    assert!(refused.is_err(), "its origin has another past");
    let mut forged = record.content;
    for event in &mut forged.events {
        if let Event::SessionForked { origin, .. } = event {
            *origin = session(99);
        }
    }
    let refused = driver
        .store
        .commit(wrong.commit_of(&Record::seal(forged)))
        .await;
    assert!(refused.is_err(), "there is no such origin");
    let after = Picture::of(&*driver.store, &[&driver, &fork, &other]).await;
    after.require(&before, "a refused fork leaves nothing");
    assert_eq!(driver.store.load(session(4)).await.expect(HEALTHY), None);
}

pub(super) async fn a_closed_session_can_be_forked(store: Arc<dyn Store>) {
    let driver = told(store, story::OPEN + 1).await;
    assert!(driver.state.closed);
    for (n, at) in [(2, story::OPEN + 1), (3, story::OPEN)] {
        let mut fork = driver.fork(n, at).await;
        fork.turn("planner").await;
        require_whole(&fork).await;
        assert!(!fork.state.closed);
    }
    let loaded = driver.store.load(driver.session()).await.expect(HEALTHY);
    assert_eq!(loaded, Some(driver.state), "the origin stays closed");
}
