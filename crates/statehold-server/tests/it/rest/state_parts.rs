//! Reads of a part of the state, lists inside state, and the policies that compare numbers.

use serde_json::{Value, json};

use super::{claim, new_session, start};
use crate::rig::{Rig, Who};

fn path(session: &str) -> String {
    format!("/v1/sessions/{session}/state")
}

async fn state_of(who: &Who, session: &str, query: &str) -> Value {
    let answer = who.get(&format!("{}?{query}", path(session))).await;
    answer.ok(200)["state"].clone()
}

fn keys_of(state: &Value) -> Vec<String> {
    let state = state.as_object().expect("an object");
    state.keys().cloned().collect()
}

#[tokio::test]
async fn a_read_returns_the_named_keys_only() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
        let session = new_session(&ann).await;
        let set = json!({"set": {"a": 1, "b": 2, "c": 3, "user:u": 4}});
        ann.patch(&path(&session), &set).await.ok(200);
        let app = json!({"set": {"m": 5, "n": 6}});
        admin.patch("/v1/state/app/demo", &app).await.ok(200);
        let state = state_of(&ann, &session, "keys=c,a,none,app:m,user:u").await;
        assert_eq!(state, json!({"a": 1, "c": 3, "app:m": 5, "user:u": 4}));
        let app = ann.get("/v1/state/app/demo?keys=n").await.ok(200);
        assert_eq!(app["state"], json!({"app:n": 6}));
        let user = ann.get("/v1/state/user/demo/ann?keys=u,v").await.ok(200);
        assert_eq!(user["state"], json!({"user:u": 4}));
    }
}

#[tokio::test]
async fn a_read_of_named_keys_is_paged_too() {
    let rig = Rig::on_disk().await;
    let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
    let session = new_session(&ann).await;
    let set = json!({"set": {"a": 1, "b": 2, "c": 3, "user:u": 4}});
    ann.patch(&path(&session), &set).await.ok(200);
    let app = json!({"set": {"m": 5}});
    admin.patch("/v1/state/app/demo", &app).await.ok(200);
    for reverse in ["false", "true"] {
        let query = format!("keys=c,a,app:m,user:u&limit=1&reverse={reverse}");
        let mut seen = Vec::new();
        let mut cursor = String::new();
        loop {
            let page = format!("{}?{query}{cursor}", path(&session));
            let page = ann.get(&page).await.ok(200);
            seen.extend(keys_of(&page["state"]));
            match page["next_cursor"].as_str() {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        let mut expected = vec!["app:m", "user:u", "a", "c"];
        if reverse == "true" {
            expected.reverse();
        }
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn a_read_of_a_prefix_takes_keys_from_either_end() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let session = new_session(&ann).await;
        let names = [
            "log/1",
            "log/2",
            "log/3",
            "log/4",
            "logs",
            "m",
            "user:log/1",
        ];
        let set: serde_json::Map<_, _> =
            names.iter().map(|key| ((*key).into(), json!(0))).collect();
        ann.patch(&path(&session), &json!({"set": set}))
            .await
            .ok(200);
        for (query, expected) in [
            ("prefix=log/", vec!["log/1", "log/2", "log/3", "log/4"]),
            (
                "prefix=log",
                vec!["log/1", "log/2", "log/3", "log/4", "logs"],
            ),
            ("prefix=log/&limit=2", vec!["log/1", "log/2"]),
            ("prefix=log/&limit=2&reverse=true", vec!["log/3", "log/4"]),
            ("prefix=log/&after=log/2", vec!["log/3", "log/4"]),
            (
                "prefix=log/&after=log/3&reverse=true",
                vec!["log/1", "log/2"],
            ),
            ("after=m", vec![]),
            ("prefix=user:", vec!["user:log/1"]),
            ("prefix=user:log", vec!["user:log/1"]),
            ("after=user:log/1&limit=1", vec!["log/1"]),
            ("prefix=none", vec![]),
            ("reverse=true&limit=1", vec!["m"]),
        ] {
            let state = state_of(&ann, &session, query).await;
            assert_eq!(keys_of(&state), expected, "{query}");
        }
    }
}

#[tokio::test]
async fn a_malformed_part_is_refused_with_the_reason() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let many = vec!["k"; 257].join(",");
    for query in [
        "keys=",
        "keys=a,,b",
        "keys=a&prefix=b",
        "keys=User:a",
        "prefix=USER:a",
        "after=Temp:a",
        &format!("keys={many}"),
    ] {
        let answer = ann.get(&format!("{}?{query}", path(&session))).await;
        answer.refused(422, "bad_state_key");
    }
    let other_scope = ann.get("/v1/state/app/demo?keys=user:a").await;
    other_scope.refused(422, "bad_state_key");
    let page = format!("{}?limit=1&prefix=a", path(&session));
    let set = json!({"set": {"a1": 1, "a2": 2}});
    ann.patch(&path(&session), &set).await.ok(200);
    let next = ann.get(&page).await.ok(200)["next_cursor"].clone();
    let next = next.as_str().expect("a second page");
    let other = format!("{}?limit=1&prefix=b&cursor={next}", path(&session));
    ann.get(&other).await.refused(400, "bad_cursor");
}

#[tokio::test]
async fn a_list_grows_under_keys_that_the_server_numbers() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let session = new_session(&ann).await;
        let push = |values: Value| json!({"append": {"items/": values}});
        let first = ann.patch(&path(&session), &push(json!(["a", "b"]))).await;
        let first = first.ok(200)["appended"]["items/"].clone();
        let second = ann.patch(&path(&session), &push(json!(["c"]))).await;
        let second = second.ok(200)["appended"]["items/"].clone();
        let keys: Vec<&str> = [&first, &second]
            .into_iter()
            .flat_map(|keys| keys.as_array().expect("keys"))
            .map(|key| key.as_str().expect("a key"))
            .collect();
        assert!(keys.is_sorted(), "{keys:?}");
        for key in &keys {
            let digits = key.strip_prefix("items/").expect("the list");
            assert!(digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit()));
        }
        let last = state_of(&ann, &session, "prefix=items/&reverse=true&limit=2").await;
        assert_eq!(last, json!({keys[1]: "b", keys[2]: "c"}));
        // A pop removes the last element if it is still the one that the caller read.
        let versions = ann.get(&path(&session)).await.ok(200)["versions"].clone();
        let pop = json!({"delete": [keys[2]], "if_versions": {keys[2]: versions[keys[2]]}});
        ann.patch(&path(&session), &pop).await.ok(200);
        ann.patch(&path(&session), &pop)
            .await
            .refused(409, "version_conflict");
        let third = ann.patch(&path(&session), &push(json!(["d"]))).await;
        let third = third.ok(200)["appended"]["items/"][0].clone();
        assert!(
            third.as_str().expect("a key") > keys[2],
            "a number was used again"
        );
    }
}

#[tokio::test]
async fn a_prefix_is_cleared_and_filled_in_one_commit() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let ann = rig.client("ann").await;
        let session = new_session(&ann).await;
        let set = json!({"set": {"t/1": 1, "t/2": 2, "tt": 3, "user:t/1": 4}});
        ann.patch(&path(&session), &set).await.ok(200);
        let replace = json!({"delete_prefix": ["t/"], "set": {"t/2": 5}, "append": {"t/": [6]}});
        let written = ann.patch(&path(&session), &replace).await.ok(200);
        assert_eq!(written["deleted"], 1);
        let key = written["appended"]["t/"][0]
            .as_str()
            .expect("a key")
            .to_owned();
        let state = ann.get(&path(&session)).await.ok(200)["state"].clone();
        assert_eq!(state, json!({"t/2": 5, key: 6, "tt": 3, "user:t/1": 4}));
        let nothing = json!({"delete_prefix": ["none/"]});
        let written = ann.patch(&path(&session), &nothing).await.ok(200);
        assert_eq!(written["deleted"], 0);
        for bad in [
            json!({"append": {"items": [1]}}),
            json!({"append": {"user:items/": [1]}}),
            json!({"append": {"app:items/": [1]}}),
            json!({"delete_prefix": ["user:"]}),
            json!({"delete_prefix": ["app:x"]}),
            json!({"delete_prefix": [""]}),
        ] {
            let answer = ann.patch(&path(&session), &bad).await;
            answer.refused(422, "bad_state_key");
        }
    }
}

#[tokio::test]
async fn a_repeated_append_adds_its_values_once() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    let push = json!({"append": {"items/": [1, 2]}});
    let once = [("idempotency-key", "one-append")];
    let first = ann
        .send("PATCH", &path(&session), &once, push.to_string())
        .await
        .ok(200);
    let again = ann
        .send("PATCH", &path(&session), &once, push.to_string())
        .await
        .ok(200);
    assert_eq!(first["appended"], again["appended"]);
    assert_eq!(
        keys_of(&state_of(&ann, &session, "prefix=items/").await).len(),
        2
    );
}

#[tokio::test]
async fn the_largest_and_the_smallest_number_stay() {
    let rig = Rig::on_disk().await;
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    for value in [
        json!(5),
        json!(9_007_199_254_740_993_u64),
        json!(9_007_199_254_740_992.0),
        json!(-3.5),
    ] {
        let set = json!({"set": {"hi": value, "lo": value, "user:hi": value},
            "merge": {"hi": "max", "lo": "min", "user:hi": "max"}});
        ann.patch(&path(&session), &set).await.ok(200);
    }
    let state = ann.get(&path(&session)).await.ok(200)["state"].clone();
    assert_eq!(state["hi"], json!(9_007_199_254_740_993_u64));
    assert_eq!(state["user:hi"], json!(9_007_199_254_740_993_u64));
    assert_eq!(state["lo"], json!(-3.5));
    let text = json!({"set": {"hi": "10"}, "merge": {"hi": "max"}});
    ann.patch(&path(&session), &text)
        .await
        .refused(422, "merge_refused");
}

#[tokio::test]
async fn an_agent_appends_only_with_the_fence_of_its_request() {
    let rig = Rig::on_disk().await;
    let (ann, bob) = (rig.client("ann").await, rig.client("bob").await);
    let worker = rig.worker(&["helper"]).await;
    let session = new_session(&ann).await;
    let push = json!({"append": {"items/": [1]}});
    bob.patch(&path(&session), &push)
        .await
        .refused(404, "not_found");
    let request = start(&ann, &session, "helper", "hi").await;
    let claimed = claim(&worker, "helper").await;
    let mut fenced = push.clone();
    fenced["request_id"] = request["id"].clone();
    fenced["fence"] = claimed["fence"].clone();
    worker.patch(&path(&session), &fenced).await.ok(200);
    fenced["fence"] = json!(claimed["fence"].as_u64().expect("a fence") + 1);
    worker
        .patch(&path(&session), &fenced)
        .await
        .refused(409, "stale_fence");
}

#[tokio::test]
async fn an_operator_sees_who_wrote_each_value() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
        let (worker, operator) = (rig.key(&["worker"]).await, rig.key(&["operator"]).await);
        let session = new_session(&ann).await;
        let set = json!({"set": {"a": 1, "b": 1, "user:u": 4}});
        ann.patch(&path(&session), &set).await.ok(200);
        let app = json!({"set": {"m": 5}});
        admin.patch("/v1/state/app/demo", &app).await.ok(200);
        start(&ann, &session, "demo", "hi").await;
        let request = claim(&worker, "demo").await;
        let written = json!({"output": "done", "state": {"set": {"b": 2, "user:v": 3}}});
        super::act(&worker, &request, "complete", written)
            .await
            .ok(200);
        let query = format!("{}?provenance=true", path(&session));
        let view = operator.get(&query).await.ok(200);
        let records = format!("/v1/sessions/{session}/records");
        let records = operator.get(&records).await.ok(200)["records"].clone();
        let end = records.as_array().expect("records").len() - 1;
        let key_of_worker = records[end]["principal"].clone();
        let from = &view["provenance"];
        for (key, by, request) in [
            ("a", json!("ann"), Value::Null),
            ("b", key_of_worker.clone(), request["id"].clone()),
            ("user:u", json!("ann"), Value::Null),
            ("user:v", key_of_worker, request["id"].clone()),
        ] {
            assert_eq!(from[key]["by"], by, "{key} in {from}");
            assert_eq!(from[key]["request_id"], request, "{key} in {from}");
            assert!(from[key]["at"].is_string());
        }
        assert!(from["app:m"]["by"].is_string());
        assert_eq!(keys_of(from), keys_of(&view["state"]));
        ann.get(&query).await.refused(403, "forbidden");
        operator
            .get(&format!("{query}&limit=257"))
            .await
            .refused(400, "bad_query");
        let page = operator.get(&format!("{query}&keys=a")).await.ok(200);
        assert_eq!(keys_of(&page["provenance"]), ["a"]);
        let plain = operator.get(&path(&session)).await.ok(200);
        assert!(plain.get("provenance").is_none());
    }
}
