//! What is committed is read back byte for byte.

use std::sync::Arc;

use statehold_core::command::{Command, StartRequest};
use statehold_core::digest::Digest;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{self, key};
use super::story;
use crate::codec::BLOB_BYTES_MIN;
use crate::{ItemQuery, Store, StoredRecord};

async fn records(driver: &Driver) -> Vec<StoredRecord> {
    let found = driver.store.records(driver.session(), 0, 10_000).await;
    found.expect(HEALTHY)
}

pub(super) async fn a_commit_is_read_back_whole(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    while let Some(step) = story::next(&mut driver).await {
        let found = records(&driver).await;
        let (last, sent) = (found.last(), driver.log.last());
        let bytes = |stored: &StoredRecord| stored.record.to_bytes();
        assert_eq!(last.map(bytes), sent.map(bytes), "`{step}`, byte for byte");
        assert_eq!(last, sent, "`{step}`, with its payloads");
        assert_eq!(found.len(), driver.log.len(), "`{step}` is one record");
    }
    assert_eq!(records(&driver).await, driver.log);
}

pub(super) async fn the_chain_verifies_from_the_first_record(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::OPEN).await;
    require_chain(&driver).await;
}

/// Every record has its number, its hash, and the hash of the one before.
pub(super) async fn require_chain(driver: &Driver) {
    let found = records(driver).await;
    let (mut seq, mut hash) = (0, Digest::ZERO);
    for stored in &found {
        seq += 1;
        assert_eq!(
            stored.record.content.seq, seq,
            "records are numbered densely"
        );
        assert_eq!(stored.record.content.prev_hash, hash, "before record {seq}");
        hash = Digest::sha256(&stored.record.to_bytes());
        assert_eq!(stored.record.hash, hash, "of record {seq}");
    }
    let loaded = driver.store.load(driver.session()).await.expect(HEALTHY);
    let loaded = loaded.expect("the session is there");
    assert_eq!(
        (loaded.revision, loaded.head),
        (seq, hash),
        "the head is the last record"
    );
}

pub(super) async fn records_come_in_pages_of_any_size(store: Arc<dyn Store>) {
    let mut driver = Driver::new(store, fixture::owner(), 1);
    story::tell(&mut driver, story::NESTED).await;
    let (store, session) = (&driver.store, driver.session());
    for limit in 1..=driver.log.len() + 1 {
        let mut found: Vec<StoredRecord> = Vec::new();
        loop {
            let after = found.last().map_or(0, |stored| stored.record.content.seq);
            let page = store.records(session, after, limit).await.expect(HEALTHY);
            assert!(page.len() <= limit, "pages of {limit}");
            if page.is_empty() {
                break;
            }
            found.extend(page);
            assert!(found.len() < 1_000, "pages of {limit} never end");
        }
        assert_eq!(found, driver.log, "pages of {limit}");
    }
    let none = store.records(session, 0, 0).await.expect(HEALTHY);
    assert_eq!(none, [], "no records were asked for");
    let beyond = store.records(session, 99, 10).await.expect(HEALTHY);
    assert_eq!(beyond, [], "after the last record");
}

/// Bytes that do not compress.
pub(super) fn noise(length: usize) -> Vec<u8> {
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        seed.to_be_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

pub(super) async fn payloads_of_every_kind_and_length_come_back(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 600_000).await;
    let around = [BLOB_BYTES_MIN - 1, BLOB_BYTES_MIN, BLOB_BYTES_MIN + 1];
    let lengths = [0, 1, 255, 256, 4_096]
        .into_iter()
        .chain(around)
        .chain([1 << 20]);
    let mut payloads: Vec<Vec<u8>> = Vec::new();
    for length in lengths {
        payloads.push(noise(length));
        payloads.push(b"ab".iter().copied().cycle().take(length).collect());
    }
    for payload in &payloads {
        let mut item = driver.note(payload);
        item.attachments = vec![
            driver.file(payload),
            driver.file("short"),
            driver.file(payload),
        ];
        let append = driver.append(1, vec![item]);
        driver.by_worker(append).await;
        let query = ItemQuery {
            task: None,
            before: None,
            limit: 1,
        };
        let found = store.items(driver.session(), query).await.expect(HEALTHY);
        let what = format!("a payload of {} bytes", payload.len());
        assert!(found[0].body.as_ref() == Some(payload), "{what} in an item");
        assert!(
            found[0].attachments[0].as_ref() == Some(payload),
            "{what} in an attachment"
        );
        assert_eq!(found[0].attachments[1].as_deref(), Some(&b"short"[..]));
        assert!(
            found[0].attachments[2].as_ref() == Some(payload),
            "{what} in the third one"
        );
    }
    let long = format!("\"{}\"", "long ".repeat(40_000));
    let long = long.as_str();
    driver
        .put(&[("long", long), ("user:long", long), ("app:long", long)])
        .await;
    let value = store.state(driver.session()).await.expect(HEALTHY);
    assert!(value[&key("long")].value == long.as_bytes(), "a long value");
    let at = driver.state.revision;
    let value = store
        .state_at(driver.session(), key("long"), at)
        .await
        .expect(HEALTHY);
    assert!(
        value.as_deref() == Some(long.as_bytes()),
        "an earlier long value"
    );
    let remember = driver.remember(1, long);
    driver.by_worker(remember).await;
    let value = store.task_state(driver.tasks[0]).await.expect(HEALTHY);
    assert!(
        value.as_deref() == Some(long.as_bytes()),
        "a long task state"
    );
    let mut ask = driver.question(1, None);
    if let Command::OpenHold { hold, .. } = &mut ask {
        hold.body = driver.body(long);
    }
    driver.by_worker(ask).await;
    assert!(
        records(&driver).await == driver.log,
        "the records have all of them"
    );
}

pub(super) async fn the_same_long_payload_may_come_again(store: Arc<dyn Store>) {
    let payload = noise(BLOB_BYTES_MIN * 2);
    let owners = [
        fixture::owner(),
        fixture::owner(),
        fixture::owner_of("north", "shop", 2),
    ];
    let mut drivers = Vec::new();
    for (n, owner) in (1..).zip(owners) {
        let mut driver = Driver::begin_for(&store, owner, n).await;
        for _ in 0..2 {
            let start = StartRequest {
                attachments: vec![driver.file(&payload), driver.file(&payload)],
                ..driver.start("planner")
            };
            let started = Command::StartRequest(start);
            driver.ok(&driver.client(), started).await;
        }
        drivers.push(driver);
    }
    for driver in &drivers {
        assert!(
            records(driver).await == driver.log,
            "every copy is read back"
        );
    }
}
