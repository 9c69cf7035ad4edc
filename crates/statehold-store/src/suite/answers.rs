//! Answers are kept for idempotency keys, in the commit that they answer.

use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::digest::Digest;
use statehold_core::time::Timestamp;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::seconds;
use super::picture::{Picture, answer_key};
use crate::{Answer, Store, StoreError};

/// Commits a write with an answer kept under `key`.
pub(super) async fn send_keyed(
    driver: &mut Driver,
    key: &str,
    expires_at: Timestamp,
) -> Result<Answer, StoreError> {
    let value = format!("\"{key}\"");
    let patch = driver.set(&[("topic", &value), ("app:topic", &value)]);
    let put = Command::PutState { patch, by: None };
    let record = driver.record(&driver.client(), put).await;
    let answer = Answer {
        key: answer_key(key),
        fingerprint: Digest::sha256(value.as_bytes()),
        session: driver.session(),
        revision: record.content.seq,
        body: format!("told {}", record.content.seq).into_bytes(),
        expires_at,
    };
    let mut commit = driver.commit_of(&record);
    commit.answer = Some(answer.clone());
    driver.store.commit(commit).await?;
    driver.absorb(&record);
    Ok(answer)
}

async fn kept(store: &Arc<dyn Store>, key: &str) -> Option<Answer> {
    store.answer(answer_key(key)).await.expect(HEALTHY)
}

pub(super) async fn an_answer_is_kept_with_its_commit(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    assert_eq!(kept(&store, "first").await, None);
    let first = send_keyed(&mut driver, "first", seconds(100)).await;
    let second = send_keyed(&mut driver, "second", seconds(200)).await;
    assert_eq!(kept(&store, "first").await, first.ok());
    assert_eq!(kept(&store, "second").await, second.ok());
    assert_eq!(kept(&store, "third").await, None);
}

pub(super) async fn a_key_is_used_once(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut other = Driver::begin(&store, 2).await;
    let first = send_keyed(&mut driver, "first", seconds(100))
        .await
        .expect("it is free");
    let before = Picture::of(&*store, &[&driver, &other]).await;
    for mut again in [driver.clone(), other.clone()] {
        let refused = send_keyed(&mut again, "first", seconds(300)).await;
        let is_taken = matches!(
            refused,
            Err(StoreError::KeyTaken { session, revision })
                if (session, revision) == (first.session, first.revision)
        );
        assert!(is_taken, "{refused:?}");
        let after = Picture::of(&*store, &[&driver, &other]).await;
        after.require(&before, "nothing of a refused commit is there");
    }
    send_keyed(&mut other, "second", seconds(100))
        .await
        .expect("another key is free");
}

pub(super) async fn a_refused_commit_keeps_no_answer(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut stale = driver.clone();
    driver.put(&[("topic", "1")]).await;
    let refused = send_keyed(&mut stale, "first", seconds(100)).await;
    assert!(
        matches!(refused, Err(StoreError::Conflict { .. })),
        "{refused:?}"
    );
    assert_eq!(kept(&store, "first").await, None);
    send_keyed(&mut driver, "first", seconds(100))
        .await
        .expect("the key is free");
}

pub(super) async fn expired_answers_are_forgotten(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    send_keyed(&mut driver, "first", seconds(100))
        .await
        .expect("it is free");
    let second = send_keyed(&mut driver, "second", seconds(200)).await;
    let forgotten = store.forget_answers(seconds(99), 10).await;
    assert_eq!(forgotten.expect(HEALTHY), 0, "none has expired");
    assert!(kept(&store, "first").await.is_some());
    // At the very moment: the engine takes an answer for expired from then on.
    let forgotten = store.forget_answers(seconds(100), 10).await;
    assert_eq!(forgotten.expect(HEALTHY), 1, "one has expired");
    assert_eq!(kept(&store, "first").await, None);
    assert_eq!(kept(&store, "second").await, second.ok());
    let again = send_keyed(&mut driver, "first", seconds(300)).await;
    assert_eq!(
        kept(&store, "first").await,
        again.ok(),
        "the key is free again"
    );
}

pub(super) async fn no_more_answers_are_forgotten_than_asked(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    for n in 0..5 {
        let key = n.to_string();
        send_keyed(&mut driver, &key, seconds(n))
            .await
            .expect("it is free");
    }
    let mut forgotten = Vec::new();
    for limit in [0, 2, 2, 2, 2] {
        forgotten.push(
            store
                .forget_answers(seconds(100), limit)
                .await
                .expect(HEALTHY),
        );
    }
    assert_eq!(forgotten, [0, 2, 2, 1, 0]);
}
