//! Session values and the private state of tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use statehold_core::command::Command;
use statehold_core::session::KeyVersion;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::key;
use crate::{KeyRange, PageLimit, Store};

/// The session's values and versions, as text.
pub(super) async fn values(driver: &Driver) -> Vec<(String, String, u64)> {
    let found = driver
        .store
        .state(
            driver.session(),
            KeyRange::default(),
            PageLimit::entries(usize::MAX),
        )
        .await
        .expect(HEALTHY)
        .values;
    let text = |value: Vec<u8>| String::from_utf8(value).expect("JSON is UTF-8");
    let all = found.into_iter();
    all.map(|(key, found)| (key.to_string(), text(found.value), found.version))
        .collect()
}

fn owned(values: &[(&str, &str, u64)]) -> Vec<(String, String, u64)> {
    let owned = |(key, value, version): &(&str, &str, u64)| {
        ((*key).to_owned(), (*value).to_owned(), *version)
    };
    values.iter().map(owned).collect()
}

pub(super) async fn session_values_have_the_revision_that_wrote_them(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut other = Driver::begin(&store, 2).await;
    driver
        .put(&[("a", "1"), ("b", r#"{"x": [1, 2.50]}"#)])
        .await;
    driver.turn("planner").await;
    driver.put(&[("a", "\"ä\"")]).await;
    other.put(&[("a", "7")]).await;
    let expected = [("a", "\"ä\"", 4), ("b", r#"{"x": [1, 2.50]}"#, 2)];
    assert_eq!(values(&driver).await, owned(&expected), "byte for byte");
    assert_eq!(values(&other).await, owned(&[("a", "7", 2)]));
    let loaded = store
        .load(driver.session())
        .await
        .expect(HEALTHY)
        .expect("it is there");
    let known = |revision, bytes| KeyVersion { bytes, revision };
    let versions = [(key("a"), known(4, 4)), (key("b"), known(2, 16))];
    assert_eq!(*loaded.keys, BTreeMap::from(versions));
}

pub(super) async fn removed_values_are_gone(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.put(&[("a", "1"), ("b", "1")]).await;
    driver.delete(&["a", "never"]).await;
    assert_eq!(values(&driver).await, owned(&[("b", "1", 2)]));
    driver.put(&[("a", "2")]).await;
    assert_eq!(
        values(&driver).await,
        owned(&[("a", "2", 4), ("b", "1", 2)])
    );
    driver.delete(&["a", "b"]).await;
    assert_eq!(values(&driver).await, []);
}

pub(super) async fn earlier_values_are_found_at_every_revision(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut expected: Vec<Option<String>> = vec![None, None];
    for round in 0..20 {
        let last = expected.last().cloned().flatten();
        expected.push(match round % 5 {
            0 | 1 => {
                let text = format!("\"value {round}\"");
                driver
                    .put(&[("other", "0"), ("a", &text), ("zulu", "1")])
                    .await;
                Some(text)
            }
            2 => {
                driver.turn("planner").await;
                last
            }
            3 => {
                driver.put(&[("other", "1")]).await;
                last
            }
            _ => {
                driver.delete(&["other", "a"]).await;
                None
            }
        });
    }
    for (revision, expected) in (0..).zip(expected) {
        let found = store.state_at(driver.session(), key("a"), revision).await;
        let expected = expected.map(String::into_bytes);
        assert_eq!(found.expect(HEALTHY), expected, "at revision {revision}");
        let never = store
            .state_at(driver.session(), key("never"), revision)
            .await;
        assert_eq!(never.expect(HEALTHY), None);
    }
}

pub(super) async fn a_rewind_restores_values(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver
        .put(&[("changed", "1"), ("kept", "1"), ("removed", "1")])
        .await;
    driver.put(&[("changed", "2"), ("added", "2")]).await;
    driver.delete(&["removed"]).await;
    driver.ok(&driver.client(), Command::Rewind { to: 2 }).await;
    let expected = [("changed", "1", 5), ("kept", "1", 2), ("removed", "1", 5)];
    assert_eq!(values(&driver).await, owned(&expected));
    for (revision, changed) in [(2, "1"), (3, "2"), (4, "2"), (5, "1")] {
        let found = store
            .state_at(driver.session(), key("changed"), revision)
            .await;
        let found = found.expect(HEALTHY);
        assert_eq!(
            found.as_deref(),
            Some(changed.as_bytes()),
            "at revision {revision}"
        );
    }
    let added = store.state_at(driver.session(), key("added"), 5).await;
    assert_eq!(added.expect(HEALTHY), None);
}

pub(super) async fn a_restored_value_may_be_restored_again(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.put(&[("a", "1")]).await;
    driver.put(&[("a", "2")]).await;
    driver.ok(&driver.client(), Command::Rewind { to: 2 }).await;
    driver.put(&[("a", "3")]).await;
    driver.ok(&driver.client(), Command::Rewind { to: 4 }).await;
    assert_eq!(
        values(&driver).await,
        owned(&[("a", "1", 6)]),
        "the value of revision 4"
    );
    driver.ok(&driver.client(), Command::Rewind { to: 3 }).await;
    assert_eq!(values(&driver).await, owned(&[("a", "2", 7)]));
    driver.ok(&driver.client(), Command::Rewind { to: 1 }).await;
    assert_eq!(values(&driver).await, []);
    driver.ok(&driver.client(), Command::Rewind { to: 6 }).await;
    assert_eq!(
        values(&driver).await,
        owned(&[("a", "1", 9)]),
        "from a restored value"
    );
}

pub(super) async fn task_state_is_the_last_one_written(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.run("planner", 600_000).await;
    let child = Command::StartRequest(driver.spawn(1, "booker"));
    driver.by_worker(child).await;
    let (parent, child) = (driver.tasks[0], driver.tasks[1]);
    assert_eq!(store.task_state(parent).await.expect(HEALTHY), None);
    for value in ["opaque \0 bytes", "", "{}"] {
        let remember = driver.remember(1, value);
        driver.by_worker(remember).await;
        let found = store.task_state(parent).await.expect(HEALTHY);
        assert_eq!(found.as_deref(), Some(value.as_bytes()));
        assert_eq!(
            store.task_state(child).await.expect(HEALTHY),
            None,
            "it is private"
        );
    }
    let cancel = Command::CancelTask { task: parent };
    driver.ok(&driver.client(), cancel).await;
    let found = store.task_state(parent).await.expect(HEALTHY);
    assert_eq!(
        found.as_deref(),
        Some(&b"{}"[..]),
        "also when the task is final"
    );
    assert_eq!(values(&driver).await, [], "it is no session state");
}

/// A page takes a part of the keys, from either end, and the rest of the range follows.
pub(super) async fn ranges_of_keys_are_read_from_both_ends(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let keys = ["a", "a/1", "a/2", "a/3", "a0", "b", "ä/1", "\u{10ffff}"];
    for key in keys {
        driver.put(&[(key, "1")]).await;
    }
    let session = driver.session();
    let read = async |range: KeyRange, entries: usize| {
        let page = store.state(session, range, PageLimit::entries(entries));
        let page = page.await.expect(HEALTHY);
        let keys = page.values.into_keys().map(|key| key.to_string());
        (keys.collect::<Vec<_>>(), page.has_more)
    };
    let list = || KeyRange::of_prefix("a/");
    let (some, all) = (true, false);
    let strings = |keys: &[&str]| keys.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(
        read(list(), 9).await,
        (strings(&["a/1", "a/2", "a/3"]), all)
    );
    assert_eq!(read(list(), 2).await, (strings(&["a/1", "a/2"]), some));
    let rest = list().after(Some(&key("a/2")));
    assert_eq!(read(rest, 9).await, (strings(&["a/3"]), all));
    let backwards = || list().reversed();
    assert_eq!(read(backwards(), 2).await, (strings(&["a/2", "a/3"]), some));
    let rest = backwards().after(Some(&key("a/2")));
    assert_eq!(read(rest, 9).await, (strings(&["a/1"]), all));
    let one = KeyRange::of_keys([key("a")]);
    assert_eq!(read(one, 9).await, (strings(&["a"]), all));
    let three = || KeyRange::of_keys(["a/3", "none", "a/1", "a"].map(key));
    assert_eq!(read(three(), 2).await, (strings(&["a", "a/1"]), some));
    let rest = three().after(Some(&key("a/1")));
    assert_eq!(read(rest, 2).await, (strings(&["a/3"]), all));
    let backwards_by_name = || three().reversed();
    assert_eq!(
        read(backwards_by_name(), 2).await,
        (strings(&["a/1", "a/3"]), some)
    );
    let rest = backwards_by_name().after(Some(&key("a/1")));
    assert_eq!(read(rest, 2).await, (strings(&["a"]), all));
    assert_eq!(
        read(KeyRange::of_keys([key("a/")]), 9).await,
        (Vec::new(), all)
    );
    assert_eq!(read(KeyRange::default(), 9).await, (strings(&keys), all));
    let newest = KeyRange::default().reversed();
    assert_eq!(read(newest, 1).await, (strings(&["\u{10ffff}"]), some));
}
