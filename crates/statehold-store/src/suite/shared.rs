//! `app:` and `user:` values: written by many sessions, counted and merged by the store.

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
use crate::{SharedOwner, SharedValue, Store, StoreError};

async fn all(
    store: &Arc<dyn Store>,
    owner: &Owner,
    scope: Scope,
) -> BTreeMap<StateKey, SharedValue> {
    let owner = SharedOwner::of(owner, scope);
    store.shared(owner).await.expect(HEALTHY)
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

pub(super) async fn policies_merge_in_the_store(store: Arc<dyn Store>) {
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

pub(super) async fn a_merge_that_fails_refuses_the_whole_commit(store: Arc<dyn Store>) {
    let mut driver = Driver::begin(&store, 1).await;
    driver
        .put(&[("app:list", "[1]"), ("app:text", r#""a""#)])
        .await;
    let before = Picture::of(&*store, &[&driver]).await;
    for name in ["app:list", "app:text"] {
        let mut patch = driver.merge(MergePolicy::Add, &[("app:sum", "1"), (name, "1")]);
        patch.set.extend(driver.set(&[("topic", "1")]).set);
        let put = Command::PutState { patch, by: None };
        let refused = driver.refused(&driver.client(), put).await;
        assert!(
            matches!(&refused, StoreError::Merge { key: at, .. } if *at == key(name)),
            "{refused:?}"
        );
        let after = Picture::of(&*store, &[&driver]).await;
        after.require(&before, "nothing of a refused commit is there");
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
