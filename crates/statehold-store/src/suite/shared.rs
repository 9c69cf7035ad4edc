//! `app:` and `user:` values: written by many sessions, merged before their commit, counted by the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::command::{Command, StartRequest, StatePatch};
use statehold_core::scope::{MergePolicy, Scope, StateKey};
use statehold_core::session::Owner;

use super::HEALTHY;
use super::driver::Driver;
use super::fixture::{key, owner, owner_of};
use super::picture::Picture;
use crate::{KeyRange, PageLimit, SharedOwner, SharedValue, Store, StoreError, ValueSize};

async fn all(
    store: &Arc<dyn Store>,
    owner: &Owner,
    scope: Scope,
) -> BTreeMap<StateKey, SharedValue> {
    let owner = SharedOwner::of(owner, scope);
    store
        .shared(owner, KeyRange::default(), PageLimit::entries(usize::MAX))
        .await
        .expect(HEALTHY)
        .values
}

/// The JSON and the version of one key, as a session of `owner` sees it.
pub(super) async fn value(
    store: &Arc<dyn Store>,
    owner: &Owner,
    name: &str,
) -> Option<(Value, u64)> {
    let found = all(store, owner, key(name).scope())
        .await
        .remove(&key(name))?;
    let value = serde_json::from_slice(&found.value).expect("a shared value is JSON");
    Some((value, found.version))
}

fn expecting(mut patch: StatePatch, name: &str, version: u64) -> Command {
    patch.if_versions.insert(key(name), version);
    Command::PutState { patch, by: None }
}

pub(super) async fn versions_of_a_shared_key_count_from_one(store: Arc<dyn Store>) {
    let mut drivers = [
        Driver::begin(&store, 1).await,
        Driver::begin(&store, 2).await,
    ];
    for round in 1..=6_u64 {
        let driver = &mut drivers[usize::from(round % 2 == 0)];
        let text = round.to_string();
        let patch = driver.set(&[("app:n", &text)]);
        let put = expecting(patch, "app:n", round - 1);
        driver.ok(&driver.client(), put).await;
        driver.put(&[("user:n", &text)]).await;
        for name in ["app:n", "user:n"] {
            let found = value(&store, &owner(), name).await;
            assert_eq!(found, Some((json!(round), round)), "{name}");
        }
    }
}

pub(super) async fn another_version_than_expected_refuses_the_whole_commit(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.put(&[("app:n", "1")]).await;
    driver.put(&[("app:n", "2")]).await;
    let before = Picture::of(&*store, &[&driver]).await;
    for (name, expected, there) in [("app:n", 1, 2), ("app:n", 0, 2), ("user:n", 1, 0)] {
        let mut state = driver.set(&[("app:first", "1"), (name, "3"), ("topic", "1")]);
        state.if_versions.insert(key(name), expected);
        let turn = StartRequest {
            items: vec![driver.note("a note")],
            output: Some(driver.output("an answer")),
            state,
            ..driver.leased("planner")
        };
        let refused = driver
            .refused(&driver.worker(1), Command::StartRequest(turn))
            .await;
        match refused {
            StoreError::SharedConflict {
                key: at,
                expected: wanted,
                found,
            } => {
                assert_eq!((at, wanted, found), (key(name), expected, there));
            }
            other => panic!("{name} at {there}, not {expected}: {other:?}"),
        }
        let after = Picture::of(&*store, &[&driver]).await;
        after.require(&before, "nothing of a refused commit is there");
    }
    let patch = driver.set(&[("app:n", "3")]);
    driver
        .ok(&driver.client(), expecting(patch, "app:n", 2))
        .await;
}

pub(super) async fn merged_values_are_stored(store: Arc<dyn Store>) {
    use MergePolicy::{Add, Append, KeepFirst, Patch, Replace, Union};
    let mut driver = Driver::begin(&store, 1).await;
    let rounds: [(MergePolicy, [&str; 2], Value); 6] = [
        (Replace, ["1", "{}"], json!({})),
        (KeepFirst, ["1", "2"], json!(1)),
        (Add, ["1", "41"], json!(42)),
        (Append, ["[1]", "[1,2]"], json!([1, 1, 2])),
        (Union, ["[1]", "[1,2,2]"], json!([1, 2])),
        (
            Patch,
            [r#"{"a":1,"b":2}"#, r#"{"a":null,"c":3}"#],
            json!({"b": 2, "c": 3}),
        ),
    ];
    for scope in ["app", "user"] {
        for (policy, written, expected) in &rounds {
            let name = format!("{scope}:{policy:?}");
            for text in written {
                let patch = driver.merge(*policy, &[(&name, text)]);
                driver.patch(patch).await;
            }
            let found = value(&store, &owner(), &name).await.map(|(value, _)| value);
            assert_eq!(found.as_ref(), Some(expected), "{name}");
        }
    }
}

pub(super) async fn a_shared_value_has_the_bytes_that_a_write_or_a_merge_left(
    store: Arc<dyn Store>,
) {
    use MergePolicy::{Append, KeepFirst, Patch, Replace, Union};
    let mut driver = Driver::begin(&store, 1).await;
    // Two keys in turns, so that a check cannot go by the key that was merged last.
    for (policy, operand, left) in [
        (Replace, "[ 1 ]", "[ 1 ]"),
        (KeepFirst, "2", "[ 1 ]"),
        (Append, "[ 2, 1 ]", "[1,2,1]"),
        (Union, "[3, 2, 3]", "[1,2,1,3]"),
        (KeepFirst, "2", "[1,2,1,3]"),
        (Append, "[4]", "[1,2,1,3,4]"),
        (Replace, r#"{ "b": 1.50 }"#, r#"{ "b": 1.50 }"#),
        (Patch, r#"{ "a": {"c": null} }"#, r#"{"b":1.5,"a":{}}"#),
    ] {
        for name in ["app:x", "user:x"] {
            let patch = driver.merge(policy, &[(name, operand)]);
            driver.patch(patch).await;
            let found = all(&store, &owner(), key(name).scope()).await;
            let text = String::from_utf8_lossy(&found[&key(name)].value);
            assert_eq!(text, left, "{policy:?} of {operand}");
        }
    }
    for round in 1..=2 {
        driver.delete(&["app:x", "user:x"]).await;
        let patch = driver.merge(KeepFirst, &[("app:x", "[ 5 ]")]);
        driver.patch(patch).await;
        for name in ["[6]", "[7]"] {
            let patch = driver.merge(Append, &[("app:x", name), ("user:x", name)]);
            driver.patch(patch).await;
        }
        for (name, left) in [("app:x", json!([5, 6, 7])), ("user:x", json!([6, 7]))] {
            let found = value(&store, &owner(), name).await.map(|(value, _)| value);
            assert_eq!(found, Some(left), "{name}, round {round}");
        }
    }
}

/// A command that merges into two keys and sets one of the session.
fn merging(driver: &mut Driver, names: [&str; 2]) -> Command {
    let values = names.map(|name| (name, "1"));
    let mut patch = driver.merge(MergePolicy::Add, &values);
    patch.set.extend(driver.set(&[("topic", "1")]).set);
    Command::PutState { patch, by: None }
}

pub(super) async fn a_value_merged_with_an_older_version_refuses_the_whole_commit(
    store: Arc<dyn Store>,
) {
    for (n, name) in (1..).zip(["app:n", "user:n"]) {
        let mut driver = Driver::begin(&store, 2 * n).await;
        let mut other = Driver::begin(&store, 2 * n + 1).await;
        // Before the first value, after a write, after a removal, after the next value.
        for (round, found) in [0, 1, 0, 3].into_iter().enumerate() {
            let put = merging(&mut driver, ["app:sum", name]);
            let record = driver.record(&driver.client(), put).await;
            let commit = driver.merged_commit_of(&record).await;
            let commit = commit.expect("numbers add up");
            let there = value(&store, &owner(), name).await;
            assert_eq!(there.map_or(0, |(_, version)| version), found, "{name}");
            match round {
                1 => other.delete(&[name]).await,
                _ => other.put(&[(name, "10")]).await,
            };
            let before = Picture::of(&*store, &[&driver, &other]).await;
            let refused = store.commit(commit).await.expect_err("the value moved on");
            match refused {
                StoreError::SharedConflict {
                    key: at,
                    expected,
                    found: moved,
                } => {
                    assert_eq!((at, expected), (key(name), found));
                    assert_ne!(moved, found);
                }
                other => panic!("{name}, round {round}: {other:?}"),
            }
            let after = Picture::of(&*store, &[&driver, &other]).await;
            after.require(&before, "nothing of a refused commit is there");
        }
        // Merged with what is there now, the same command is taken.
        let put = merging(&mut driver, ["app:sum", name]);
        driver.ok(&driver.client(), put).await;
        let found = value(&store, &owner(), name).await;
        assert_eq!(found, Some((json!(11), 5)), "{name}");
    }
}

pub(super) async fn a_merge_without_its_value_refuses_the_whole_commit(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.put(&[("app:n", "1")]).await;
    let put = merging(&mut driver, ["app:n", "user:n"]);
    let record = driver.record(&driver.client(), put).await;
    let before = Picture::of(&*store, &[&driver]).await;
    let commit = driver.commit_of(&record);
    let refused = store.commit(commit).await;
    assert!(
        matches!(refused, Err(StoreError::Unusable(_))),
        "{refused:?}"
    );
    let after = Picture::of(&*store, &[&driver]).await;
    after.require(&before, "nothing of a refused commit is there");
}

pub(super) async fn one_key_is_read_as_it_is_among_all(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver
        .put(&[("app:a", "1"), ("user:a", "[2]"), ("topic", "3")])
        .await;
    driver.put(&[("topic", "4"), ("other", "5")]).await;
    driver.delete(&["other"]).await;
    let session = driver.session();
    let of_session = store
        .state(session, KeyRange::default(), PageLimit::entries(usize::MAX))
        .await
        .expect(HEALTHY)
        .values;
    for name in ["topic", "other", "never"] {
        let found = store.state_value(session, key(name)).await.expect(HEALTHY);
        assert_eq!(found.as_ref(), of_session.get(&key(name)), "{name}");
    }
    for name in ["app:a", "user:a", "app:never", "user:never"] {
        let shared = SharedOwner::of(&owner(), key(name).scope());
        let found = store.shared_value(shared, key(name)).await.expect(HEALTHY);
        let among = all(&store, &owner(), key(name).scope()).await;
        assert_eq!(found.as_ref(), among.get(&key(name)), "{name}");
    }
}

pub(super) async fn sizes_of_values_are_known_without_their_bytes(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let long = format!("[\"{}\"]", "long ".repeat(20_000));
    driver
        .put(&[
            ("app:a", "1"),
            ("user:a", &long),
            ("topic", "3"),
            ("long", &long),
        ])
        .await;
    driver.put(&[("app:a", "12"), ("topic", "45")]).await;
    driver.delete(&["long"]).await;
    let session = driver.session();
    let size = |version, text: &str| {
        let bytes = text.len() as u64;
        Some(ValueSize { version, bytes })
    };
    let keys = ["topic", "never", "long"].map(key).to_vec();
    let sizes = store.state_sizes(session, keys, 1_000_000).await;
    assert_eq!(sizes.expect(HEALTHY), [size(3, "45"), None, None]);
    for (name, expected) in [("app:a", size(2, "12")), ("user:a", size(1, &long))] {
        let shared = SharedOwner::of(&owner(), key(name).scope());
        let keys = vec![key("app:never"), key(name)];
        let sizes = store
            .shared_sizes(shared.clone(), keys.clone(), 1_000_000)
            .await;
        assert_eq!(sizes.expect(HEALTHY), [None, expected]);
        // Versions are known although no value may be read.
        let sizes = store.shared_sizes(shared, keys, 0).await.expect(HEALTHY);
        let versions = sizes.iter().map(|size| size.map(|size| size.version));
        let expected = expected.map(|size| size.version);
        assert_eq!(versions.collect::<Vec<_>>(), [None, expected]);
    }
}

pub(super) async fn a_shared_value_says_who_wrote_it(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut other = Driver::begin(&store, 2).await;
    driver.put(&[("app:a", "1"), ("app:b", "1")]).await;
    let at = driver.now;
    other.run("planner", 60_000).await;
    let patch = other.set(&[("app:b", "2")]);
    let by = Some(other.fenced(1));
    other.by_worker(Command::PutState { patch, by }).await;
    let found = all(&store, &owner(), Scope::App).await;
    let first = SharedValue {
        value: b"1".to_vec(),
        version: 1,
        session: driver.session(),
        revision: 2,
        by: driver.client().principal,
        at,
        request: None,
    };
    assert_eq!(found[&key("app:a")], first);
    let second = SharedValue {
        value: b"2".to_vec(),
        version: 2,
        session: other.session(),
        revision: 3,
        by: other.worker(1).principal,
        at: other.now,
        request: Some(other.requests[0]),
    };
    assert_eq!(found[&key("app:b")], second);
}

/// Writes one key for the first owner; says which of the owners see it.
async fn reach(store: &Arc<dyn Store>, name: &str, owners: &[Owner]) -> Vec<bool> {
    let mut seen = Vec::new();
    for (n, owner) in (1..).zip(owners) {
        let mut driver = Driver::begin_for(store, owner.clone(), n).await;
        if n == 1 {
            driver.put(&[(name, "1")]).await;
        }
        seen.push(value(store, owner, name).await.is_some());
    }
    seen
}

pub(super) async fn user_values_reach_the_sessions_of_that_user_only(store: Arc<dyn Store>) {
    let owners = [
        owner(),
        owner(),
        owner_of("north", "shop", 2),
        owner_of("north", "bank", 1),
        owner_of("south", "shop", 1),
    ];
    let seen = reach(&store, "user:language", &owners).await;
    assert_eq!(seen, [true, true, false, false, false]);
    let app = all(&store, &owner(), Scope::App).await;
    assert!(app.is_empty(), "a `user:` value is not an `app:` value");
}

pub(super) async fn app_values_reach_the_users_of_that_app_only(store: Arc<dyn Store>) {
    let owners = [
        owner(),
        owner(),
        owner_of("north", "shop", 2),
        owner_of("north", "bank", 1),
        owner_of("south", "shop", 1),
    ];
    let seen = reach(&store, "app:flags", &owners).await;
    assert_eq!(seen, [true, true, true, false, false]);
    let user = all(&store, &owner(), Scope::User).await;
    assert!(user.is_empty(), "an `app:` value is not a `user:` value");
}

pub(super) async fn a_removed_key_is_gone_and_its_versions_do_not_return(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver.put(&[("app:n", "1")]).await;
    driver.put(&[("app:n", "2")]).await;
    driver.delete(&["app:n", "app:never"]).await;
    assert!(all(&store, &owner(), Scope::App).await.is_empty());
    let patch = driver.set(&[("app:n", "3")]);
    let refused = driver
        .refused(&driver.client(), expecting(patch, "app:n", 2))
        .await;
    assert!(
        matches!(
            refused,
            StoreError::SharedConflict {
                expected: 2,
                found: 0,
                ..
            }
        ),
        "{refused:?}"
    );
    let patch = driver.merge(MergePolicy::Add, &[("app:n", "5")]);
    driver
        .ok(&driver.client(), expecting(patch, "app:n", 0))
        .await;
    let (found, version) = value(&store, &owner(), "app:n").await.expect("it is back");
    assert_eq!(found, json!(5), "the removed value is not merged with");
    assert!(
        version > 2,
        "whoever read version 2 must not overwrite this one: {version}"
    );
}

pub(super) async fn one_commit_may_write_many_shared_keys(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    let mut patch = StatePatch::default();
    for n in 0..100 {
        for scope in ["app", "user"] {
            let name = format!("{scope}:key {n} ä:{n}");
            patch.set.extend(driver.set(&[(&name, &n.to_string())]).set);
        }
    }
    driver.patch(patch).await;
    for scope in [Scope::App, Scope::User] {
        let found = all(&store, &owner(), scope).await;
        assert_eq!(found.len(), 100);
        assert!(
            found
                .values()
                .all(|value| (value.version, value.revision) == (1, 2))
        );
    }
}
