//! Eight writers in two sessions of one user: any interleaving of their writes equals some serial order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use statehold_core::command::{Command, StatePatch, StateSet};
use statehold_core::ids::SessionId;
use statehold_core::scope::MergePolicy;
use statehold_engine::api::state::StateQuery;
use statehold_engine::{Call, PageLimit, testing};

use super::key;
use crate::rig::Rig;

const WRITERS: usize = 8;

/// One command: a policy and an operand for a session key of each type, and the same number for every shared key.
#[derive(Debug, Clone)]
struct Write {
    number: (MergePolicy, i64),
    list: (MergePolicy, i64),
    shared: i64,
}

fn write() -> impl Strategy<Value = Write> {
    use MergePolicy::{Add, Append, KeepFirst, Max, Min, Replace, Union};
    let operand = -50_i64..50;
    let number = prop::sample::select(vec![Add, Max, Min, Replace, KeepFirst]);
    let list = prop::sample::select(vec![Append, Union, Replace]);
    let number = (number, operand.clone());
    let list = (list, operand.clone());
    (number, list, operand).prop_map(|(number, list, shared)| Write {
        number,
        list,
        shared,
    })
}

impl Write {
    /// The values of the command: the key, the policy and the operand. `mark` tells the elements of lists apart.
    fn values(&self, mark: &str) -> Vec<(&'static str, MergePolicy, Value)> {
        let shared = json!(self.shared);
        vec![
            ("n", self.number.0, json!(self.number.1)),
            ("l", self.list.0, json!([self.list.1])),
            ("user:sum", MergePolicy::Add, shared.clone()),
            ("user:max", MergePolicy::Max, shared.clone()),
            ("user:min", MergePolicy::Min, shared.clone()),
            ("user:set", MergePolicy::Union, json!([shared])),
            ("user:log", MergePolicy::Append, json!([mark])),
        ]
    }
}

/// A merge written down naively.
fn merged(policy: MergePolicy, old: Option<&Value>, new: &Value) -> Value {
    let Some(old) = old else {
        return new.clone();
    };
    let number = |value: &Value| value.as_i64().expect("a number");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    match policy {
        MergePolicy::Add => json!(number(old) + number(new)),
        MergePolicy::Max => json!(number(old).max(number(new))),
        MergePolicy::Min => json!(number(old).min(number(new))),
        MergePolicy::KeepFirst => old.clone(),
        MergePolicy::Append => json!([list(old), list(new)].concat()),
        MergePolicy::Union => {
            let mut all = list(old);
            for one in list(new) {
                if !all.contains(&one) {
                    all.push(one);
                }
            }
            json!(all)
        }
        MergePolicy::Replace | MergePolicy::Patch => new.clone(),
    }
}

/// Commits a write. Returns the revision of its session.
async fn commit(rig: &Rig, session: SessionId, write: &Write, mark: &str) -> u64 {
    let payloads = testing::payloads(&rig.engine, session).await;
    let mut payloads = payloads.expect("keys are there");
    let set = write.values(mark).into_iter();
    let set = set.map(|(name, merge, value)| StateSet {
        key: key(name),
        value: payloads.put(value.to_string().into_bytes()),
        merge,
    });
    let patch = StatePatch {
        set: set.collect(),
        ..StatePatch::default()
    };
    let command = Command::PutState { patch, by: None };
    let call = Call::by(rig.caller.clone());
    let command = (&command, &payloads);
    let done = testing::commit(&rig.engine, session, &call, command, None).await;
    done.expect("nothing is refused").revision
}

async fn state(rig: &Rig, session: SessionId) -> BTreeMap<String, Value> {
    let page = (&StateQuery::default(), PageLimit::entries(100));
    let state = rig.engine.state(&rig.caller, session, page).await;
    let values = state.expect("it is readable").0.values.into_iter();
    let values = values.map(|(key, found)| {
        let value = serde_json::from_slice(&found.value).expect("JSON");
        (key.to_string(), value)
    });
    values.collect()
}

async fn play(plan: Vec<Vec<Write>>) {
    let rig = Arc::new(Rig::new(None).await);
    let sessions = [rig.session, rig.another(1, "bob", None).await];
    let writers = plan
        .clone()
        .into_iter()
        .enumerate()
        .map(|(writer, writes)| {
            let (rig, session) = (Arc::clone(&rig), sessions[writer % 2]);
            tokio::spawn(async move {
                let mut done = Vec::new();
                for (n, write) in writes.into_iter().enumerate() {
                    let revision = commit(&rig, session, &write, &format!("{writer}.{n}")).await;
                    done.push((revision, write));
                }
                done
            })
        });
    let mut orders: [BTreeMap<u64, Write>; 2] = Default::default();
    for (writer, done) in writers.collect::<Vec<_>>().into_iter().enumerate() {
        orders[writer % 2].extend(done.await.expect("a writer ends"));
    }
    // A session has one order, that of its revisions.
    for (session, order) in sessions.into_iter().zip(&orders) {
        let mut expected = BTreeMap::new();
        for write in order.values() {
            for (name, policy, operand) in write.values("").into_iter().take(2) {
                let value = merged(policy, expected.get(name), &operand);
                expected.insert(name, value);
            }
        }
        let found = state(&rig, session).await;
        for (name, value) in expected {
            assert_eq!(found.get(name), Some(&value), "{name}");
        }
    }
    // Shared keys have the result of the sum, the maximum and the set over all writers.
    let all: Vec<i64> = plan.iter().flatten().map(|write| write.shared).collect();
    let found = state(&rig, rig.session).await;
    assert_eq!(found["user:sum"], json!(all.iter().sum::<i64>()));
    assert_eq!(found["user:max"], json!(all.iter().max()));
    assert_eq!(found["user:min"], json!(all.iter().min()));
    let set = found["user:set"].as_array().expect("a list");
    let as_set: BTreeSet<i64> = set.iter().filter_map(Value::as_i64).collect();
    assert_eq!(as_set, all.iter().copied().collect());
    assert_eq!(as_set.len(), set.len(), "each value once");
    // The log has each write once, those of a writer in its order.
    let log = found["user:log"].as_array().expect("a list");
    let log: Vec<&str> = log.iter().filter_map(Value::as_str).collect();
    assert_eq!(log.len(), all.len());
    for (writer, writes) in plan.iter().enumerate() {
        let own = log
            .iter()
            .filter(|mark| mark.starts_with(&format!("{writer}.")));
        let expected: Vec<String> = (0..writes.len()).map(|n| format!("{writer}.{n}")).collect();
        assert_eq!(own.copied().collect::<Vec<_>>(), expected);
    }
    rig.engine.shut_down().await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn any_interleaving_of_eight_writers_equals_a_serial_order(
        plan in vec(vec(write(), 1..12), WRITERS)
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(4)
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(play(plan));
    }
}
