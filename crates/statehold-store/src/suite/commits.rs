//! A commit is taken as a whole, at the revision it was decided on, or it leaves nothing.

use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::digest::Digest;
use statehold_core::record::Record;
use statehold_core::time::Timestamp;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{self, key, session};
use super::picture::{Picture, answer_key};
use super::story;
use crate::memory::MemoryStore;
use crate::{Answer, Commit, KeyRange, PageLimit, Store, StoreError};

pub(super) async fn load_equals_the_fold_after_every_command(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    while let Some(step) = story::next(&mut driver).await {
        let loaded = driver.store.load(driver.session()).await.expect(HEALTHY);
        assert_eq!(loaded.as_ref(), Some(&driver.state), "after `{step}`");
    }
    let fork = driver.fork(2, story::NESTED).await;
    let loaded = fork.store.load(fork.session()).await.expect(HEALTHY);
    assert_eq!(loaded, Some(fork.state), "after a fork");
}

pub(super) async fn every_answer_is_that_of_the_reference(store: Arc<dyn Store>) {
    let reference: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let mut pair = [store, reference].map(|store| Driver::new(store, fixture::owner(), 1));
    while pair[0].state.revision < story::OPEN {
        let mut step = None;
        for driver in &mut pair {
            step = story::next(driver).await;
        }
        let since = pair[0].state.revision - 1;
        require_same(&pair, since, &format!("after {step:?}")).await;
    }
    let forks = [
        pair[0].fork(2, story::NESTED).await,
        pair[1].fork(2, story::NESTED).await,
    ];
    require_same(&forks, 0, "in a fork").await;
    require_same(&pair, 0, "in the origin of a fork").await;
}

async fn require_same(pair: &[Driver; 2], since: u64, when: &str) {
    let [found, expected] = pair;
    let found = Picture::since(&*found.store, &[found], since).await;
    let expected = Picture::since(&*expected.store, &[expected], since).await;
    found.require(&expected, when);
}

/// A record that touches everything a commit can touch.
async fn rich(driver: &mut Driver) -> Record {
    let mut state = driver.set(&[("topic", "1"), ("app:flag", "1"), ("user:flag", "1")]);
    state.delete = vec![key("depth")];
    let mut note = driver.note("late");
    note.attachments.push(driver.file(vec![7; 100_000]));
    let append = Command::AppendItems {
        by: driver.fenced(3),
        items: vec![note],
        state,
        task_state: Some(driver.body("{}")),
    };
    driver.record(&driver.worker(2), append).await
}

/// The commit of a record, with an answer to keep.
fn answered(driver: &Driver, record: &Record) -> Commit {
    let mut commit = driver.commit_of(record);
    commit.answer = Some(Answer {
        key: answer_key("first"),
        fingerprint: Digest::sha256(b"call"),
        session: driver.session(),
        revision: record.content.seq,
        body: b"told".to_vec(),
        expires_at: Timestamp::default(),
    });
    commit
}

pub(super) async fn a_stale_commit_is_refused_and_leaves_nothing(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::NESTED).await;
    let mut slow = driver.clone();
    slow.diverge(9);
    let record = rich(&mut slow).await;
    driver.put(&[("other", "1")]).await;
    driver.put(&[("other", "2")]).await;
    let before = Picture::of(&*driver.store, &[&driver]).await;
    let refused = driver.store.commit(answered(&slow, &record)).await;
    match refused {
        Err(StoreError::Conflict {
            session,
            expected,
            found,
        }) => {
            assert_eq!(session, driver.session());
            assert_eq!((expected, found), (story::NESTED, story::NESTED + 2));
        }
        other => panic!("a stale commit must be a conflict, not {other:?}"),
    }
    let after = Picture::of(&*driver.store, &[&driver]).await;
    after.require(&before, "a refused commit leaves nothing");
}

pub(super) async fn a_commit_ahead_of_its_session_is_refused(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut ahead = driver.clone();
    let command = Command::PutState {
        patch: ahead.set(&[("a", "1")]),
        by: None,
    };
    let skipped = ahead.record(&ahead.client(), command.clone()).await;
    ahead.absorb(&skipped);
    let record = ahead.record(&ahead.client(), command).await;
    let refused = store.commit(ahead.commit_of(&record)).await;
    assert!(
        matches!(
            refused,
            Err(StoreError::Conflict {
                expected: 2,
                found: 1,
                ..
            })
        ),
        "{refused:?}"
    );
    let mut stranger = Driver::new(Arc::clone(&store), fixture::owner(), 2);
    let create = stranger.create(None);
    let first = stranger.record(&stranger.client(), create).await;
    stranger.absorb(&first);
    let command = Command::PutState {
        patch: stranger.set(&[("a", "1")]),
        by: None,
    };
    let record = stranger.record(&stranger.client(), command).await;
    let refused = store.commit(stranger.commit_of(&record)).await;
    assert!(
        matches!(
            refused,
            Err(StoreError::Conflict {
                expected: 1,
                found: 0,
                ..
            })
        ),
        "{refused:?}"
    );
    assert_eq!(store.load(session(2)).await.expect(HEALTHY), None);
    driver.put(&[("b", "1")]).await;
}

pub(super) async fn a_record_that_does_not_continue_the_head_is_refused(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::NESTED).await;
    let before = Picture::of(&*driver.store, &[&driver]).await;
    let mut content = rich(&mut driver).await.content;
    content.prev_hash = Digest::sha256(b"another past");
    let forged = Record::seal(content);
    let refused = driver.store.commit(answered(&driver, &forged)).await;
    assert!(refused.is_err(), "the record does not follow the head");
    let after = Picture::of(&*driver.store, &[&driver]).await;
    after.require(&before, "a refused commit leaves nothing");
    driver.put(&[("other", "1")]).await;
}

pub(super) async fn of_two_commits_on_one_revision_one_is_taken(store: Arc<dyn Store>) {
    let mut first = Driver::begin(&store, 1).await;
    let mut second = first.clone();
    second.diverge(9);
    let command = Command::PutState {
        patch: first.set(&[("who", "1")]),
        by: None,
    };
    let winner = first.record(&first.client(), command).await;
    let command = Command::PutState {
        patch: second.set(&[("who", "2")]),
        by: None,
    };
    let loser = second.record(&second.client(), command).await;
    let taken = store.commit(first.commit_of(&winner)).await;
    assert_eq!(taken.expect("the first is taken"), 2);
    let refused = store.commit(second.commit_of(&loser)).await;
    assert!(
        matches!(
            refused,
            Err(StoreError::Conflict {
                expected: 1,
                found: 2,
                ..
            })
        ),
        "{refused:?}"
    );
    let values = store
        .state(
            first.session(),
            KeyRange::default(),
            PageLimit::entries(usize::MAX),
        )
        .await
        .expect(HEALTHY)
        .values;
    assert_eq!(values[&key("who")].value, b"1");
}

pub(super) async fn a_session_begins_once(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.turn("planner").await;
    let before = Picture::of(&*store, &[&driver]).await;
    let mut again = Driver::new(Arc::clone(&store), fixture::owner(), 1);
    let create = again.create(Some("mine"));
    let refused = again.refused(&again.client(), create).await;
    assert!(
        matches!(
            refused,
            StoreError::Conflict {
                expected: 0,
                found: 2,
                ..
            }
        ),
        "{refused:?}"
    );
    let after = Picture::of(&*store, &[&driver]).await;
    after.require(&before, "nothing of a refused commit is there");
    let mut other = Driver::new(store, fixture::owner(), 2);
    let create = other.create(Some("mine"));
    other.ok(&other.client(), create).await;
}

pub(super) async fn a_stranger_has_nothing(store: Arc<dyn Store>) {
    let mut driver = Driver::new(Arc::clone(&store), fixture::owner(), 1);
    story::tell(&mut driver, story::OPEN).await;
    let mut stranger = Driver::new(
        Arc::new(MemoryStore::new()),
        fixture::owner_of("south", "shop", 1),
        2,
    );
    story::tell(&mut stranger, story::OPEN).await;
    let nothing: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let expected = Picture::of(&*nothing, &[&stranger]).await;
    let mut found = Picture::of(&*store, &[&stranger]).await;
    found.forget_due();
    found.require(&expected, "another session of another tenant is there");
}
