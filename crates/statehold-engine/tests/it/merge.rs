//! Writes under a merge policy: exact under concurrency, bounded, and never in the way of other writes.

mod interleaved;

use std::sync::Arc;

use statehold_core::command::{Command, Output, Rejection, StartRequest, StatePatch, StateSet};
use statehold_core::ids::RequestId;
use statehold_core::merge::MergeError;
use statehold_core::record::Event;
use statehold_core::scope::{MergePolicy, StateKey};
use statehold_core::task::CloseOn;
use statehold_engine::api::state::StateQuery;
use statehold_engine::testing::RawView;
use statehold_engine::{Call, EngineError, IdempotencyKey, PageLimit, Payloads, Receipt};

use crate::order::settle;
use crate::rig::{Rig, fenced, request_of};

fn key(text: &str) -> StateKey {
    text.parse().expect("a key")
}

/// A patch that merges JSON into keys.
fn patch(payloads: &mut Payloads, merge: MergePolicy, values: &[(&str, &str)]) -> StatePatch {
    let set = values.iter().map(|(name, value)| StateSet {
        key: key(name),
        value: payloads.put(value.as_bytes().to_vec()),
        merge,
    });
    StatePatch {
        set: set.collect(),
        ..StatePatch::default()
    }
}

impl Rig {
    /// Writes state, each key under the same policy.
    async fn write(
        &self,
        merge: MergePolicy,
        values: &[(&str, &str)],
    ) -> Result<Receipt<RawView>, EngineError> {
        let by = None;
        self.submit(|payloads| Command::PutState {
            patch: patch(payloads, merge, values),
            by,
        })
        .await
    }

    /// The JSON of a key, as the session sees it.
    async fn value(&self, name: &str) -> Option<String> {
        let state = self
            .engine
            .state(
                &self.caller,
                self.session,
                (&StateQuery::default(), PageLimit::entries(100)),
            )
            .await;
        let found = state.expect("it is readable").0.values.remove(&key(name))?;
        Some(String::from_utf8(found.value).expect("JSON is text"))
    }

    async fn version(&self, name: &str) -> u64 {
        let state = self
            .engine
            .state(
                &self.caller,
                self.session,
                (&StateQuery::default(), PageLimit::entries(100)),
            )
            .await;
        let state = state.expect("it is readable").0.values;
        state.get(&key(name)).map_or(0, |found| found.version)
    }
}

/// A start with a lease, with state, and with an answer if it is a whole turn.
fn start(payloads: &mut Payloads, state: StatePatch, is_turn: bool) -> Command {
    let output = is_turn.then(|| output(payloads));
    Command::StartRequest(StartRequest {
        chat: None,
        continues: None,
        agent: "helper".parse().expect("a name"),
        task: None,
        parent: None,
        input: payloads.put(br#"{"content":"hello"}"#.to_vec()),
        attachments: Vec::new(),
        close_on: CloseOn::Reply,
        lease_ttl_ms: Some(30_000),
        items: Vec::new(),
        state,
        output,
    })
}

fn output(payloads: &mut Payloads) -> Output {
    Output {
        body: payloads.put(br#"{"content":"done"}"#.to_vec()),
        attachments: Vec::new(),
    }
}

/// The four kinds of commands that write state.
async fn add_by_route(rig: &Rig, route: usize, live: RequestId, values: &[(&str, &str)]) {
    let added = |payloads: &mut Payloads| patch(payloads, MergePolicy::Add, values);
    let done = match route {
        0 => rig.write(MergePolicy::Add, values).await,
        1 => {
            let turn = |payloads: &mut Payloads| {
                let state = added(payloads);
                start(payloads, state, true)
            };
            rig.submit(turn).await
        }
        2 => {
            let append = |payloads: &mut Payloads| Command::AppendItems {
                by: fenced(live, 1),
                items: Vec::new(),
                state: added(payloads),
                task_state: None,
            };
            rig.submit(append).await
        }
        _ => {
            let first = |payloads: &mut Payloads| start(payloads, StatePatch::default(), false);
            let begun = rig.submit(first).await.expect("it starts");
            let complete = |payloads: &mut Payloads| Command::CompleteRequest {
                by: fenced(request_of(&begun), 1),
                output: output(payloads),
                items: Vec::new(),
                state: added(payloads),
                task_state: None,
                close_task: true,
                cancel_children: false,
            };
            rig.submit(complete).await
        }
    };
    done.unwrap_or_else(|error| panic!("route {route}: {error}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_sum_counts_by_whatever_command_it_comes() {
    const TASKS: usize = 16;
    const ROUNDS: usize = 200;
    let rig = Arc::new(Rig::new(None).await);
    let live = request_of(&rig.start(Some(30_000)).await.expect("it starts"));
    let adding = (0..TASKS).map(|task| {
        let rig = Arc::clone(&rig);
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let values = [("n", "1"), ("user:n", "1"), ("app:n", "1")];
                add_by_route(&rig, (task + round) % 4, live, &values).await;
            }
        })
    });
    for adding in adding.collect::<Vec<_>>() {
        adding.await.expect("nothing is refused");
    }
    for name in ["n", "user:n", "app:n"] {
        let sum = rig.value(name).await;
        assert_eq!(sum, Some((TASKS * ROUNDS).to_string()), "{name}");
    }
    assert_eq!(rig.version("user:n").await, (TASKS * ROUNDS) as u64);
}

#[tokio::test]
async fn a_merge_waits_for_the_write_it_builds_on() {
    let rig = Arc::new(Rig::new(None).await);
    let writes = [
        (MergePolicy::Replace, "10"),
        (MergePolicy::Add, "1"),
        (MergePolicy::Add, "2"),
        (MergePolicy::Replace, "20"),
        (MergePolicy::Add, "3"),
    ];
    rig.store.set_open(false);
    let mut running = Vec::new();
    for (policy, value) in writes {
        let rig = Arc::clone(&rig);
        running.push(tokio::spawn(async move {
            rig.write(policy, &[("n", value)]).await
        }));
        settle().await;
    }
    rig.store.set_open(true);
    for running in running {
        running.await.expect("no panic").expect("it is taken");
    }
    // Both plain writes were in line before the first sum was merged.
    assert_eq!(rig.value("n").await.as_deref(), Some("26"));
}

#[tokio::test]
async fn a_merge_is_repeated_when_the_value_moves_on_and_refused_after_64_tries() {
    for name in ["n", "user:n", "app:n"] {
        let rig = Rig::new(None).await;
        rig.write(MergePolicy::Add, &[(name, "1")])
            .await
            .expect("the first");
        rig.store.set_stale_reads(63);
        rig.write(MergePolicy::Add, &[(name, "1")])
            .await
            .expect("the last of 64 tries");
        assert_eq!(rig.value(name).await.as_deref(), Some("2"), "{name}");
        rig.store.set_stale_reads(64);
        let refused = rig.write(MergePolicy::Add, &[(name, "1")]).await;
        match refused {
            Err(EngineError::VersionConflict { key: at, .. }) => assert_eq!(at, key(name)),
            other => panic!("{name}: {other:?}"),
        }
        assert_eq!(rig.value(name).await.as_deref(), Some("2"), "{name}");
        rig.write(MergePolicy::Add, &[(name, "1")])
            .await
            .expect("the next");
    }
}

#[tokio::test]
async fn a_version_that_the_caller_names_is_not_tried_again() {
    for name in ["n", "user:n", "app:n"] {
        let rig = Rig::new(None).await;
        rig.write(MergePolicy::Add, &[(name, "1")])
            .await
            .expect("the first");
        let version = rig.version(name).await;
        for (expected, taken) in [(version + 1, false), (0, false), (version, true)] {
            rig.store.take_questions();
            let put = |payloads: &mut Payloads| {
                let mut patch = patch(payloads, MergePolicy::Add, &[(name, "1")]);
                patch.if_versions.insert(key(name), expected);
                Command::PutState { patch, by: None }
            };
            let (expects, found) = match rig.submit(put).await {
                Ok(_) if taken => continue,
                Err(EngineError::Rejected(Rejection::VersionConflict {
                    expected, found, ..
                })) if name == "n" => (expected, found),
                Err(EngineError::VersionConflict {
                    expected, found, ..
                }) if name != "n" => (expected, found),
                other => panic!("{name} at {expected}: {other:?}"),
            };
            assert_eq!((expects, found), (expected, version), "{name}");
            assert!(rig.store.take_questions() < 10, "one try");
        }
        assert_eq!(rig.value(name).await.as_deref(), Some("2"), "{name}");
        // A merge that read another version than the caller's is repeated all the same.
        let version = rig.version(name).await;
        rig.store.set_stale_reads(3);
        let put = |payloads: &mut Payloads| {
            let mut patch = patch(payloads, MergePolicy::Add, &[(name, "1")]);
            patch.if_versions.insert(key(name), version);
            Command::PutState { patch, by: None }
        };
        rig.submit(put).await.expect("the version holds");
        assert_eq!(rig.value(name).await.as_deref(), Some("3"), "{name}");
    }
}

#[tokio::test]
async fn a_merge_that_fails_refuses_the_whole_command() {
    let rig = Rig::new(None).await;
    let values = [("app:list", "[1]"), ("user:text", r#""a""#), ("list", "[]")];
    rig.write(MergePolicy::Replace, &values)
        .await
        .expect("plain writes");
    let revision = rig.revision().await;
    for name in ["app:list", "user:text", "list"] {
        let values = [("app:sum", "1"), ("sum", "1"), (name, "1")];
        match rig.write(MergePolicy::Add, &values).await {
            Err(EngineError::Merge { key: at, source }) => {
                let found = Some(if name == "user:text" {
                    "a string"
                } else {
                    "a list"
                });
                let (policy, sent) = (MergePolicy::Add, "a number");
                let types = MergeError::Types {
                    policy,
                    found,
                    sent,
                };
                assert_eq!((at, source), (key(name), types));
            }
            other => panic!("{name}: {other:?}"),
        }
    }
    assert_eq!(rig.revision().await, revision, "nothing was committed");
    assert_eq!(rig.value("sum").await, None);
    assert_eq!(rig.value("app:sum").await, None);
}

#[tokio::test]
async fn records_of_shared_keys_keep_policy_and_operand() {
    let rig = Rig::new(None).await;
    for _ in 0..2 {
        let values = [("user:list", "[1, 2]"), ("list", "[1, 2]")];
        rig.write(MergePolicy::Append, &values)
            .await
            .expect("lists append");
    }
    assert_eq!(rig.value("user:list").await.as_deref(), Some("[1,2,1,2]"));
    assert_eq!(rig.value("list").await.as_deref(), Some("[1,2,1,2]"));
    let operand = rig.payloads().await.put(b"[1, 2]".to_vec());
    let result = rig.payloads().await.put(b"[1,2,1,2]".to_vec());
    for event in &rig.records_from(3).await[0].events {
        match event {
            Event::SharedStatePut {
                merge,
                operand: found,
                expected,
                ..
            } => {
                let kept = (*merge, *found, *expected);
                assert_eq!(kept, (MergePolicy::Append, Some(operand), None));
            }
            Event::StatePut { value, .. } => assert_eq!(*value, result),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn the_same_call_again_is_not_merged_again() {
    let rig = Rig::new(None).await;
    let tenant = rig.caller.tenant.clone();
    let key = IdempotencyKey::new(&tenant, rig.caller.principal, "once", &[b"the call"]);
    let call = Call {
        key: Some(key),
        ..Call::by(rig.caller.clone())
    };
    let values = [("n", "1"), ("user:n", "1")];
    let add = |payloads: &mut Payloads| Command::PutState {
        patch: patch(payloads, MergePolicy::Add, &values),
        by: None,
    };
    let first = rig.submit_as(&call, None, add).await.expect("it is taken");
    // A text cannot be added to, but nothing is added.
    let texts = [("n", r#""a""#), ("user:n", r#""a""#)];
    rig.write(MergePolicy::Replace, &texts)
        .await
        .expect("plain writes");
    let again = rig.submit_as(&call, None, add).await.expect("it was taken");
    assert_eq!(again.revision, first.revision);
    assert!(again.replayed);
}

/// A list of whole numbers.
fn numbers(count: usize) -> String {
    let numbers: Vec<String> = (0..count).map(|number| number.to_string()).collect();
    format!("[{}]", numbers.join(","))
}

#[tokio::test]
async fn a_long_merge_is_refused_before_it_reaches_the_store_and_nobody_waits_for_it() {
    let rig = Arc::new(Rig::new(None).await);
    let names = ["list", "user:list", "app:list"];
    let values = names.map(|name| (name, "[1]"));
    rig.write(MergePolicy::Union, &values).await.expect("short");
    rig.store.take_begun();
    rig.store.take_readers();
    // A merge stays in the middle of its work while other commands are taken.
    rig.store.set_reads_open(false);
    let long = tokio::spawn({
        let rig = Arc::clone(&rig);
        async move {
            let list = numbers(250_000);
            rig.write(MergePolicy::Union, &[("user:list", &list)]).await
        }
    });
    while rig.store.take_readers() == 0 {
        tokio::task::yield_now().await;
    }
    for round in 0..10 {
        let value = round.to_string();
        rig.write(MergePolicy::Replace, &[("user:other", &value)])
            .await
            .expect("it is not in the way");
        rig.start(None).await.expect("it is not in the way");
    }
    assert!(!long.is_finished());
    assert_eq!(rig.store.take_begun(), 20);
    rig.store.set_reads_open(true);
    let too_many = |result: Result<Receipt<RawView>, EngineError>, name: &str| match result {
        Err(EngineError::Merge { key: at, source }) => {
            assert_eq!((at, source), (key(name), MergeError::TooManyElements));
        }
        other => panic!("{name}: {other:?}"),
    };
    too_many(long.await.expect("no panic"), "user:list");
    for name in names {
        let list = numbers(250_000);
        let refused = rig.write(MergePolicy::Union, &[(name, &list)]).await;
        too_many(refused, name);
        assert_eq!(rig.value(name).await.as_deref(), Some("[1]"));
    }
    assert_eq!(rig.store.take_begun(), 0, "nothing reached the store");
}

/// A JSON text of so many bytes.
fn text_of(bytes: usize) -> String {
    format!("[\"{}\"]", "x".repeat(bytes - 4))
}

#[tokio::test]
async fn a_command_merges_a_bounded_number_of_bytes_and_reads_none_beyond_it() {
    const MIB: usize = 1024 * 1024;
    let rig = Rig::new(None).await;
    let names = ["a", "b", "user:c", "app:d"];
    let long = text_of(5 * MIB);
    for name in names {
        let written = rig.write(MergePolicy::Replace, &[(name, &long)]).await;
        written.expect("a plain write");
    }
    let append =
        |names: &[&'static str]| names.iter().map(|name| (*name, "[0]")).collect::<Vec<_>>();
    let revision = rig.revision().await;
    let refused = rig.write(MergePolicy::Append, &append(&names)).await;
    match refused {
        Err(EngineError::Merge { key: at, source }) => {
            assert_eq!((at, source), (key("app:d"), MergeError::CommandTooLarge));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(rig.store.value_bytes_read(), 0, "their lengths are enough");
    assert_eq!(rig.revision().await, revision);

    let three = append(&names[..3]);
    rig.write(MergePolicy::Append, &three)
        .await
        .expect("15 MiB");
    assert_eq!(rig.store.value_bytes_read(), 3 * long.len());
    let merged = format!("{},0]", &long[..long.len() - 1]);
    assert_eq!(rig.value("user:c").await, Some(merged));

    // A condition that does not hold is reported before values that do not merge, and reads none of them again.
    let read = rig.store.value_bytes_read();
    let stale = rig.submit(|payloads| {
        let values = [("a", "1"), ("user:c", "1")];
        let mut patch = patch(payloads, MergePolicy::Add, &values);
        patch.if_versions.insert(key("user:c"), 7);
        Command::PutState { patch, by: None }
    });
    let stale = stale.await;
    assert!(
        matches!(stale, Err(EngineError::VersionConflict { found: 2, .. })),
        "{stale:?}"
    );
    let merged = 2 * (long.len() + ",0".len());
    assert_eq!(rig.store.value_bytes_read() - read, merged);
}
