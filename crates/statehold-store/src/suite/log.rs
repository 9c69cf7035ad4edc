//! What is committed is read back byte for byte.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use statehold_core::command::{Command, StartRequest};
use statehold_core::digest::Digest;
use statehold_core::item::{ItemKind, NewItem, Role, Visibility};
use statehold_core::scope::Scope;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{self, key};
use super::story;
use crate::codec::BLOB_BYTES_MIN;
use crate::{
    ItemQuery, KeyRange, PageLimit, SharedOwner, Store, StoreError, StoredItem, StoredRecord,
};

async fn records(driver: &Driver) -> Vec<StoredRecord> {
    let found = driver
        .store
        .records(driver.session(), 0, PageLimit::entries(10_000))
        .await;
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
            let page = store
                .records(session, after, PageLimit::entries(limit))
                .await
                .expect(HEALTHY);
            assert!(page.len() <= limit, "pages of {limit}");
            if page.is_empty() {
                break;
            }
            found.extend(page);
            assert!(found.len() < 1_000, "pages of {limit} never end");
        }
        assert_eq!(found, driver.log, "pages of {limit}");
    }
    let none = store
        .records(session, 0, PageLimit::entries(0))
        .await
        .expect(HEALTHY);
    assert_eq!(none, [], "no records were asked for");
    let beyond = store
        .records(session, 99, PageLimit::entries(10))
        .await
        .expect(HEALTHY);
    assert_eq!(beyond, [], "after the last record");
}

/// Reads all pages of at most so many bytes: an entry that is too long for one is asked for alone. Returns the
/// entries of each page. `read` returns the sizes of the entries, and whether there are more.
async fn pages(
    bytes: u64,
    read: impl AsyncFn(PageLimit) -> Result<(Vec<u64>, bool), StoreError>,
) -> Vec<usize> {
    let (mut limit, mut pages) = (bytes, Vec::new());
    loop {
        let entries = 1_000;
        match read(PageLimit {
            entries,
            bytes: limit,
        })
        .await
        {
            Err(StoreError::PageTooSmall { bytes: needed }) => {
                assert!(needed > limit, "it does not fit");
                limit = needed;
            }
            page => {
                let (sizes, has_more) = page.expect(HEALTHY);
                assert!(sizes.iter().sum::<u64>() <= limit, "{sizes:?} of {limit}");
                let is_longer = limit > bytes;
                assert!(!is_longer || sizes.len() == 1, "a long entry comes alone");
                pages.push(sizes.len());
                assert!(pages.len() < 1_000, "pages of {bytes} bytes never end");
                limit = bytes;
                if !has_more {
                    return pages;
                }
            }
        }
    }
}

pub(super) async fn every_page_is_bounded_in_bytes(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let long = serde_json::json!("long ".repeat(20_000)).to_string();
    driver.run("planner", 600_000).await;
    for number in 0..12 {
        let text = if number % 4 == 0 { &long } else { "\"short\"" };
        let item = NewItem {
            kind: ItemKind::Message,
            visibility: Visibility::Visible,
            role: Some(Role::Assistant),
            ..driver.note(text)
        };
        let append = driver.append(1, vec![item]);
        driver.by_worker(append).await;
        let (own, user) = (format!("k{number}"), format!("user:k{number}"));
        let value = if number % 4 == 1 { &long } else { "1" };
        driver.put(&[(&own, value), (&user, value)]).await;
    }
    let (store, session) = (&driver.store, driver.session());
    let owner = SharedOwner::of(&fixture::owner(), Scope::User);
    for bytes in [600, 10_000, 150_000, u64::MAX] {
        let at = Cell::new(0);
        let read = async |limit: PageLimit| {
            let page = store.records(session, at.get(), limit).await?;
            at.set(at.get() + page.len() as u64);
            let sizes = page.iter().map(StoredRecord::bytes).collect();
            Ok((sizes, at.get() < driver.state.revision))
        };
        let records: usize = pages(bytes, read).await.iter().sum();
        assert_eq!(records, driver.log.len(), "records in pages of {bytes}");

        for is_transcript in [false, true] {
            let before = Cell::new(None);
            let read = async |limit: PageLimit| {
                let (task, start) = (None, before.get());
                let query = ItemQuery {
                    task,
                    before: start,
                    limit,
                };
                let (page, next) = if is_transcript {
                    store.transcript(session, start, limit).await?
                } else {
                    store.items(session, query).await?
                };
                before.set(next);
                let sizes = page.iter().map(StoredItem::payload_bytes).collect();
                Ok((sizes, next.is_some()))
            };
            let items: usize = pages(bytes, read).await.iter().sum();
            assert_eq!(
                items as u64, driver.state.items_appended,
                "pages of {bytes}"
            );
        }

        let after = RefCell::new(None);
        let read = async |limit: PageLimit| {
            let start = after.borrow().clone();
            let page = store
                .state(session, KeyRange::default().after(start.as_ref()), limit)
                .await?;
            let last = page.values.last_key_value().map(|(key, _)| key.clone());
            *after.borrow_mut() = last;
            let sizes = page.values.iter();
            let sizes = sizes.map(|(key, value)| (key.as_str().len() + value.value.len()) as u64);
            Ok((sizes.collect(), page.has_more))
        };
        let keys: usize = pages(bytes, read).await.iter().sum();
        assert_eq!(keys, 12, "keys in pages of {bytes}");

        after.replace(None);
        let read = async |limit: PageLimit| {
            let start = after.borrow().clone();
            let page = store
                .shared(
                    owner.clone(),
                    KeyRange::default().after(start.as_ref()),
                    limit,
                )
                .await?;
            let last = page.values.last_key_value().map(|(key, _)| key.clone());
            *after.borrow_mut() = last;
            let sizes = page.values.iter();
            let sizes = sizes.map(|(key, value)| (key.as_str().len() + value.value.len()) as u64);
            Ok((sizes.collect(), page.has_more))
        };
        let keys: usize = pages(bytes, read).await.iter().sum();
        assert_eq!(keys, 12, "shared keys in pages of {bytes}");
    }
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
            limit: PageLimit::entries(1),
        };
        let found = store.items(driver.session(), query).await.expect(HEALTHY).0;
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
    let value = store
        .state(
            driver.session(),
            KeyRange::default(),
            PageLimit::entries(usize::MAX),
        )
        .await
        .expect(HEALTHY)
        .values;
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
