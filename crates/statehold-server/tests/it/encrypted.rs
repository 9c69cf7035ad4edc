//! Everything that is said is encrypted in the files, under keys that are deleted when a user is erased.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use statehold_store::Store;
use statehold_store::key_ring::KeyRing;
use statehold_store::keys::KeyFile;
use statehold_store::sqlite::SqliteStore;
use tempfile::TempDir;

use crate::hidden::Canaries;
use crate::rest::{act, claim, start};
use crate::rig::{Answer, Rig, Setup, Who, text};

/// Every byte that lies in a directory.
fn bytes_of(directory: &Path) -> Vec<u8> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let files = paths.filter(|path| path.is_file());
    files
        .flat_map(|path| std::fs::read(path).expect("a file"))
        .collect()
}

/// A session with canaries at every place where text is stored.
async fn talk(rig: &Rig, user: &str, canaries: &mut Canaries) -> String {
    let mut word = |place: &str| canaries.plant(&format!("{user}-{place}"));
    let (client, worker) = (rig.key(&["client"]).await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let body = json!({"app": "demo", "user": user, "agent": "helper", "name": word("name"),
                      "labels": {"topic": word("label")}, "state": {"note": word("state")}});
    let headers = [("idempotency-key", user)];
    let made = client.send("POST", "/v1/sessions", &headers, body.to_string());
    let session = text(&made.await.ok(201), "id");
    start(&client, &session, "helper", &word("input")).await;
    let request = claim(&worker, "helper").await;
    let call = json!({"kind": "tool_call", "name": "look", "call_id": "a", "arguments": {"q": word("arguments")}});
    let written = act(&worker, &request, "items", json!({"items": [call]})).await;
    let call = written.ok(200)["items"][0]["id"].clone();
    let items = json!({
        "items": [
            {"kind": "note", "data": {"word": word("note")}},
            {"kind": "tool_result", "call_id": call, "result": {"word": word("result")}},
        ],
        "task_state": {"word": word("private-state")},
        "state": {"set": {"turn": word("state-of-a-turn")}},
    });
    act(&worker, &request, "items", items).await.ok(200);
    let hold = json!({"kind": "approval", "title": word("title"), "message": word("message"),
                      "action": {"tool": "pay", "args": {"word": word("action")}}});
    let hold = act(&worker, &request, "holds", hold).await.ok(201);
    let decision = json!({"decision": "reject", "comment": word("comment")});
    let path = format!("/v1/holds/{}/decision", text(&hold, "id"));
    boss.post(&path, &decision).await.ok(200);
    let done = json!({"output": word("output")});
    act(&worker, &request, "complete", done).await.ok(200);
    let values = json!({"set": {"card": word("user-value")}});
    let path = format!("/v1/state/user/demo/{user}");
    rig.client(user).await.patch(&path, &values).await.ok(200);
    session
}

async fn erase(admin: &Who, user: &str) -> Answer {
    admin
        .send("POST", &format!("/v1/users/{user}/erase"), &[], "")
        .await
}

/// Everything that an operator and an approver can get of a session.
async fn read(rig: &Rig, session: &str) -> String {
    let operator = rig.key(&["operator", "approver"]).await;
    let path = format!("/v1/sessions/{session}");
    let mut all = String::new();
    for tail in [
        "",
        "/messages",
        "/messages?view=trace",
        "/records",
        "/state",
        "/tree",
    ] {
        all.push_str(&operator.get(&format!("{path}{tail}")).await.text());
    }
    all.push_str(&operator.get("/v1/sessions").await.text());
    all.push_str(&operator.get("/v1/holds?status=decided").await.text());
    all
}

#[tokio::test]
async fn nothing_that_was_said_is_in_a_byte_of_the_files() {
    let rig = Rig::on_disk().await;
    let mut canaries = Canaries::new();
    let session = talk(&rig, "barnabas-quill", &mut canaries).await;
    let values = json!({"set": {"motd": canaries.plant("app-value")}});
    let admin = rig.key(&["admin"]).await;
    admin.patch("/v1/state/app/demo", &values).await.ok(200);
    canaries.add("the name of the user", "barnabas-quill");
    let all = read(&rig, &session).await;
    let found = canaries.found_in(all.as_bytes()).len();
    assert!(
        found > 12,
        "the words are there to be read: {found} of them"
    );
    let backup = rig.backup().await;
    assert_eq!(canaries.found_in(&bytes_of(rig.data())), Vec::<&str>::new());
    assert_eq!(
        canaries.found_in(&bytes_of(backup.path())),
        Vec::<&str>::new()
    );
    // Nor is it after the log in front of the file was folded into it.
    let data = rig.stop().await.expect("on disk");
    assert_eq!(
        canaries.found_in(&bytes_of(data.path())),
        Vec::<&str>::new()
    );
}

#[tokio::test]
async fn an_erased_user_is_gone_also_from_backups_and_the_next_of_that_name_is_new() {
    let rig = Rig::on_disk().await;
    let (mut bob, mut ann) = (Canaries::new(), Canaries::new());
    let session = talk(&rig, "bob", &mut bob).await;
    let kept = talk(&rig, "ann", &mut ann).await;
    let (admin, own) = (rig.key(&["admin"]).await, rig.client("bob").await);
    own.patch(
        "/v1/state/user/other/bob",
        &json!({"set": {"size": bob.plant("other-app")}}),
    )
    .await
    .ok(200);
    let backup = rig.backup().await;

    let receipt = erase(&admin, "bob").await.ok(200);
    assert_eq!(receipt["sessions"], 1, "{receipt}");
    // Two of the calls above made a key for the user.
    assert_eq!(receipt["keys_revoked"], 2, "{receipt}");
    own.get("/v1/sessions")
        .await
        .refused(401, "unauthenticated");
    let entries = admin.get("/v1/audit/records?limit=200").await;
    entries.ok(200);
    let hash = text(&receipt, "hash");
    assert!(
        entries.text().contains(&hash),
        "the receipt is in the stream"
    );
    erase(&admin, "bob").await.refused(404, "not_found");
    let all = read(&rig, &session).await;
    assert!(bob.found_in(all.as_bytes()).is_empty(), "{all}");
    let all = read(&rig, &kept).await;
    assert!(
        ann.found_in(all.as_bytes()).len() > 10,
        "others keep theirs"
    );
    let again = rig.client("bob").await;
    let made = again
        .post("/v1/sessions", &json!({"app": "demo"}))
        .await
        .ok(201);
    let state = again
        .get(&format!("/v1/sessions/{}/state", text(&made, "id")))
        .await
        .ok(200);
    assert_eq!(state["state"], json!({}));
    assert!(
        !std::fs::read_to_string(rig.data().join(KeyFile::NAME))
            .expect("reads")
            .contains(&text(&receipt, "user_id"))
    );

    // The backup was taken before, and is restored with the keys of today.
    let today = keys_of(rig.data());
    drop(rig.stop().await);
    let data = tempfile::tempdir().expect("a directory");
    copy_keys(today.path(), data.path());
    let restored = SqliteStore::restore(&backup.path().join("backup"), data.path(), &mut |_, _| {});
    let report = restored.expect("it is whole");
    assert!(report.unverified > 10 && report.payloads > 10, "{report:?}");
    assert!(bob.found_in(&bytes_of(data.path())).is_empty());
    let rig = Rig::start(Some(data), Setup::default()).await;
    let all = read(&rig, &session).await;
    assert!(all.contains(&session), "the records are there");
    assert!(bob.found_in(all.as_bytes()).is_empty(), "{all}");
    let all = read(&rig, &kept).await;
    assert!(
        ann.found_in(all.as_bytes()).len() > 10,
        "others keep theirs"
    );
}

fn keys_of(data: &Path) -> TempDir {
    let to = tempfile::tempdir().expect("a directory");
    copy_keys(data, to.path());
    to
}

fn copy_keys(from: &Path, to: &Path) {
    for name in [KeyRing::NAME, KeyFile::NAME] {
        std::fs::copy(from.join(name), to.join(name)).expect("keys can be copied");
    }
}

#[tokio::test]
async fn only_an_admin_erases_and_learns_whether_there_is_such_a_user() {
    let rig = Rig::in_memory().await;
    rig.client("bob").await;
    for roles in [&["client"][..], &["worker"], &["approver"], &["operator"]] {
        let who = rig.key(roles).await;
        for user in ["bob", "nobody"] {
            erase(&who, user).await.refused(403, "forbidden");
        }
        who.get("/v1/key-ring").await.refused(403, "forbidden");
        who.send("POST", "/v1/key-ring/rotate", &[], "")
            .await
            .refused(403, "forbidden");
    }
    let admin = rig.key(&["admin"]).await;
    erase(&admin, "nobody").await.refused(404, "not_found");
    let elsewhere = rig.key_of("other", &["admin"], None, &[]).await;
    erase(&elsewhere, "bob").await.refused(404, "not_found");
    erase(&admin, "bob").await.ok(200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn calls_in_progress_store_nothing_for_a_user_who_is_erased() {
    for rig in [Rig::in_memory().await, Rig::on_disk().await] {
        let (admin, client) = (rig.key(&["admin"]).await, rig.key(&["client"]).await);
        let body = json!({"app": "demo", "user": "bob", "state": {"word": "canary-before"}});
        let first = client.post("/v1/sessions", &body).await.ok(201);
        let stop = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..16)
            .map(|n| {
                let (client, admin, stop) = (client.clone(), admin.clone(), Arc::clone(&stop));
                let first = text(&first, "id");
                tokio::spawn(async move {
                    let mut keys = Vec::new();
                    while !stop.load(Ordering::SeqCst) {
                        let body = json!({"app": "demo", "user": "bob", "state": {"n": n}});
                        let made = client.post("/v1/sessions", &body).await;
                        assert!(matches!(made.status, 201 | 409), "{}", made.text());
                        let values = json!({"set": {"n": n}});
                        for path in [
                            format!("/v1/sessions/{first}/state"),
                            "/v1/state/user/demo/bob".to_owned(),
                        ] {
                            let put = client.patch(&path, &values).await;
                            assert!(matches!(put.status, 200 | 404 | 409), "{}", put.text());
                        }
                        let body = json!({"roles": ["client"], "user": "bob"});
                        let key = admin.post("/v1/keys", &body).await;
                        assert!(matches!(key.status, 201 | 409), "{}", key.text());
                        if key.status == 201 {
                            keys.push(text(&key.ok(201), "key"));
                        }
                    }
                    keys
                })
            })
            .collect();
        let receipt = erase(&admin, "bob").await.ok(200);
        stop.store(true, Ordering::SeqCst);
        let mut keys = Vec::new();
        for writer in writers {
            keys.extend(writer.await.expect("no writer finds anything odd"));
        }
        for key in keys {
            let who = Who {
                key: Some(key),
                ..client.clone()
            };
            let made = who.post("/v1/sessions", &json!({"app": "demo"})).await;
            if made.status == 401 {
                continue;
            }
            let made = made.ok(201);
            assert_eq!(made["user"], "bob", "the key is of the new user");
            who.get(&format!("/v1/sessions/{}", text(&made, "id")))
                .await
                .ok(200);
        }
        let gone = text(&receipt, "user_id");
        if let Some(store) = &rig.store {
            let kept = std::fs::read_to_string(rig.data().join(KeyFile::NAME)).expect("reads");
            assert!(!kept.contains(&gone), "the user has a key again");
            let tenant = "default".parse().expect("a name");
            let user = gone.parse().expect("a pseudonym");
            let others = store.sessions_of_user(tenant, user, false, 0, 1_000).await;
            let others = others.expect("the store reads");
            assert!(others.iter().all(|session| session.deleted), "{others:?}");
        }
        let operator = rig.key(&["operator"]).await;
        let left = operator
            .get("/v1/sessions?app=demo&limit=200")
            .await
            .ok(200);
        let left = left["sessions"].as_array().expect("a list");
        // Sessions that began after the erasure belong to somebody new.
        assert!(
            left.iter().all(|session| session["user"] == "bob"),
            "{left:?}"
        );
        assert!(left.iter().all(|session| session["user"] != gone.as_str()));
        assert!(left.iter().all(|session| session["id"] != first["id"]));
    }
}

#[tokio::test]
async fn a_rotated_ring_opens_what_older_secrets_sealed_and_a_lost_one_does_not_brick() {
    let rig = Rig::on_disk().await;
    let mut canaries = Canaries::new();
    let session = talk(&rig, "bob", &mut canaries).await;
    talk(&rig, "ann", &mut Canaries::new()).await;
    let (admin, operator) = (rig.key(&["admin"]).await, rig.key(&["operator"]).await);
    let page = operator.get("/v1/sessions?limit=1").await.ok(200);
    let next = format!("/v1/sessions?limit=1&cursor={}", text(&page, "next_cursor"));
    let rotated = admin
        .send("POST", "/v1/key-ring/rotate", &[], "")
        .await
        .ok(200);
    assert_eq!(
        rotated["keys"].as_array().map(Vec::len),
        Some(2),
        "{rotated}"
    );
    assert_eq!(rotated["keys"][1]["seals"], true);
    assert_eq!(admin.get("/v1/key-ring").await.ok(200), rotated);
    assert_eq!(
        operator.get(&next).await.ok(200)["sessions"][0]["id"],
        session.as_str()
    );
    let found = canaries
        .found_in(read(&rig, &session).await.as_bytes())
        .len();
    let rig = rig.restart().await;
    let again = canaries
        .found_in(read(&rig, &session).await.as_bytes())
        .len();
    assert!(found > 12 && again == found, "{found} {again}");

    let data = rig.stop().await.expect("on disk");
    std::fs::remove_file(data.path().join(KeyRing::NAME)).expect("the ring is lost");
    let rig = Rig::start(Some(data), Setup::default()).await;
    let operator = rig.key(&["operator"]).await;
    operator.get(&next).await.refused(400, "bad_cursor");
    let all = read(&rig, &session).await;
    assert!(all.contains(&session), "the session is there");
    assert!(canaries.found_in(all.as_bytes()).is_empty(), "{all}");
    // People who come by begin anew.
    let mut fresh = Canaries::new();
    let body = json!({"app": "demo", "user": "bob", "name": "bob-again"});
    rig.key(&["client"])
        .await
        .post("/v1/sessions", &body)
        .await
        .ok(201);
    let session = talk(&rig, "carl", &mut fresh).await;
    let found = fresh.found_in(read(&rig, &session).await.as_bytes()).len();
    assert!(found > 12, "{found}");
}
