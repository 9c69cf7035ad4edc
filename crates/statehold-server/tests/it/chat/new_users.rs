//! Users whom a backend names: they are stored with the first session that is theirs, and not before.

use serde_json::json;
use statehold_store::keys::KeyFile;

use super::stateless::Stage;
use super::{COMPLETIONS, finished, setup, words};
use crate::rest::{act, claim};
use crate::rig::{Rig, Who};

const REFUSED: usize = 50;

/// Whether the store has a user.
async fn is_stored(operator: &Who, user: &str) -> bool {
    let path = format!("/v1/state/user/demo/{user}");
    operator.get(&path).await.status != 404
}

fn payload_keys(rig: &Rig) -> usize {
    let keys = std::fs::read_to_string(rig.data().join(KeyFile::NAME));
    keys.expect("a key file").lines().count()
}

#[tokio::test]
async fn a_call_that_is_refused_stores_no_user() {
    let rig = Rig::on_disk_with(setup()).await;
    let (backend, operator) = (rig.key(&["client"]).await, rig.key(&["operator"]).await);
    let helper = rig.worker(&["helper"]).await;
    // The keys of the tenant and of one user are there.
    let first = [("x-statehold-user", "first")];
    let created = backend.send("POST", "/v1/sessions", &first, r#"{"app":"demo"}"#);
    created.await.ok(201);
    let keys = payload_keys(&rig);

    let chat = |agent: &str, said: &str| {
        let context = json!({"conversation": {"app": "demo", "agent": agent}});
        json!({"message": said, "context": context}).to_string()
    };
    let calls = [
        (
            "POST",
            COMPLETIONS,
            words("nobody", "hello").to_string(),
            404,
        ),
        ("POST", COMPLETIONS, "{".to_owned(), 400),
        ("POST", "/v1/chat", chat("nobody", "hello"), 404),
        ("POST", "/v1/chat", chat("no name", "hello"), 404),
        ("POST", "/v1/chat", r#"{"message":"hello"}"#.to_owned(), 422),
        (
            "POST",
            "/v1/sessions",
            r#"{"app":"not a name"}"#.to_owned(),
            422,
        ),
        (
            "POST",
            "/v1/sessions",
            r#"{"app":"demo","name":"\u0007"}"#.to_owned(),
            422,
        ),
        ("DELETE", "/v1/sessions/ses_unknown", String::new(), 404),
    ];
    for (at, (method, path, body, status)) in calls.into_iter().enumerate() {
        for n in 0..REFUSED {
            let user = format!("new-{at}-{n}");
            let headers = [("x-statehold-user", user.as_str())];
            let answer = backend.send(method, path, &headers, body.clone()).await;
            answer.ok(status);
            assert!(!is_stored(&operator, &user).await, "{path} {body}");
        }
    }
    let stale = json!({"set": {"theme": 1}, "if_versions": {"theme": 7}}).to_string();
    for user in ["late", "later"] {
        let path = format!("/v1/state/user/demo/{user}");
        let headers = [("x-statehold-user", user)];
        for headers in [&headers[..], &[]] {
            let answer = backend.send("PATCH", &path, headers, stale.clone()).await;
            answer.refused(409, "version_conflict");
            assert!(!is_stored(&operator, user).await);
        }
    }
    assert_eq!(payload_keys(&rig), keys, "nor are keys made for them");

    let as_carl = [("x-statehold-user", "carl")];
    let call = {
        let (backend, body) = (backend.clone(), chat("helper", "hello"));
        tokio::spawn(async move { backend.send("POST", "/v1/chat", &as_carl, body).await })
    };
    let work = claim(&helper, "helper").await;
    act(&helper, &work, "complete", json!({"output": "hi"}))
        .await
        .ok(200);
    finished(call).await.ok(200);
    assert!(is_stored(&operator, "carl").await);
    assert_eq!(payload_keys(&rig), keys + 1);
}

#[tokio::test]
async fn a_call_without_a_session_stores_no_user() {
    let stage = Stage::new().await;
    let rig = &stage.rig;
    let (backend, operator) = (rig.key(&["client"]).await, rig.key(&["operator"]).await);
    for n in 0..5 {
        let user = format!("new-{n}");
        let call = {
            let (backend, user) = (backend.clone(), user.clone());
            let body = words("service", "hello").to_string();
            tokio::spawn(async move {
                let headers = [("x-statehold-user", user.as_str())];
                backend.send("POST", COMPLETIONS, &headers, body).await
            })
        };
        let work = stage.claim("service").await;
        stage.complete(&work, &json!("hi")).await;
        finished(call).await.ok(200);
        assert!(!is_stored(&operator, &user).await);
    }
}

#[tokio::test]
async fn calls_at_once_for_one_new_user_are_calls_of_one_person() {
    let rig = Rig::on_disk().await;
    let backend = rig.key(&["client"]).await;
    for round in 0..8 {
        let user = format!("user-{round}");
        let calls = (0..8).map(|_| {
            let (backend, user) = (backend.clone(), user.clone());
            async move {
                let headers = [
                    ("x-statehold-user", user.as_str()),
                    ("idempotency-key", "the-same"),
                ];
                let body = r#"{"app":"demo"}"#;
                let made = backend.send("POST", "/v1/sessions", &headers, body).await;
                made.ok(201)["id"].clone()
            }
        });
        let made = futures_util::future::join_all(calls).await;
        assert!(made.iter().all(|id| *id == made[0]), "{made:?}");
        let named = {
            let headers = [("x-statehold-user", user.as_str())];
            backend.send("GET", "/v1/sessions", &headers, "").await
        };
        let list = named.ok(200)["sessions"].clone();
        assert_eq!(list.as_array().map(Vec::len), Some(1), "{list}");
        assert_eq!(list[0]["user"], user.as_str());
    }
}

#[tokio::test]
async fn a_new_user_may_begin_with_state_of_their_own() {
    let rig = Rig::on_disk().await;
    let backend = rig.key(&["client"]).await;
    let path = "/v1/state/user/demo/ann";
    let set = json!({"set": {"theme": "dark"}}).to_string();
    let as_ann = [("x-statehold-user", "ann")];
    backend.send("PATCH", path, &as_ann, set).await.ok(200);
    let found = backend.send("GET", path, &as_ann, "").await.ok(200);
    assert_eq!(found["state"]["user:theme"], "dark", "{found}");
    // Another user gets 404 for it.
    let as_bob = [("x-statehold-user", "bob")];
    let other = json!({"set": {"theme": "light"}}).to_string();
    backend.send("PATCH", path, &as_bob, other).await.ok(404);
}
