//! Payloads that are removed while many read: after the answer, no route has a byte of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use crate::rest::act;
use crate::rig::{Rig, Setup, Who, text, until};

const READERS: usize = 64;
/// Text that only agents and operators see.
const HIDDEN: &str = "quixotic-hidden-word";
/// The answer of an agent that another agent passed on to the client.
const SHARED: &str = "zephyr-shared-word";
/// Text of clients and agents that clients see.
const VISIBLE: &str = "walrus-visible-word";

/// A session in which one agent passed on what another had answered, and asks a person now.
struct Scene {
    session: String,
    /// The routes, each with a caller that may read it.
    routes: Vec<(Who, String)>,
    /// The feed of the session.
    feed: (Who, String),
    /// Routes that show hidden items: nothing else there has the shared payload.
    hidden: Vec<(Who, String)>,
}

/// A text that is long enough to be stored once, and is in a row of the log, or in several beside it.
fn long(word: &str, bytes: usize) -> String {
    let odd = (0_u32..).map(|n| n.wrapping_mul(2_654_435_761).to_string());
    let odd: String = odd.take(bytes / 10).collect();
    format!("{word} {odd}")
}

async fn scene(rig: &Rig, ann: &Who, answer: &str) -> Scene {
    let worker = rig.worker(&["front", "helper"]).await;
    let (operator, approver) = (rig.key(&["operator"]).await, rig.key(&["approver"]).await);
    let body = json!({"app": "demo", "agent": "front", "ttl_seconds": 60, "ttl_mode": "fixed",
                      "state": {"topic": VISIBLE}});
    let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
    let path = format!("/v1/sessions/{session}");
    let requests = format!("{path}/requests");
    let lease = json!({"ttl_seconds": 50});
    let mut turns = Vec::new();
    for _ in 0..2 {
        let asked = json!({"agent": "front", "input": VISIBLE, "lease": lease});
        let front = worker.post(&requests, &asked).await.ok(201);
        let asked = json!({"agent": "helper", "input": HIDDEN, "lease": lease,
                           "parent_request_id": front["id"], "parent_fence": front["fence"]});
        let helper = worker.post(&requests, &asked).await.ok(201);
        turns.push((front, helper));
        if turns.len() == 1 {
            let (front, helper) = &turns[0];
            let note = json!({"items": [{"kind": "note", "data": {"word": HIDDEN}}]});
            act(&worker, helper, "items", note).await.ok(200);
            let done = json!({"output": answer, "task_state": {"word": HIDDEN}});
            act(&worker, helper, "complete", done).await.ok(200);
            let done = json!({"output": answer});
            act(&worker, front, "complete", done).await.ok(200);
        }
    }
    let [(first, child), (front, helper)] = turns.as_slice() else {
        unreachable!("two turns");
    };
    let hold = json!({"kind": "approval", "title": "Pay?", "message": HIDDEN,
                      "action": {"tool": "pay", "args": {"word": HIDDEN}}});
    let hold = act(&worker, helper, "holds", hold).await.ok(201);
    let of = |who: &Who, path: String| (who.clone(), path);
    let memory = |request: &Value| format!("/v1/requests/{}/memory", text(request, "id"));
    let task = format!("/v1/tasks/{}", text(child, "task_id"));
    let hidden = vec![
        of(&worker, memory(helper)),
        of(&worker, format!("{task}?view=agent")),
        of(&operator, format!("{task}?view=trace")),
        of(&worker, format!("/v1/requests/{}", text(child, "id"))),
    ];
    let mut routes = vec![
        of(ann, path.clone()),
        of(ann, format!("{path}/messages")),
        of(ann, format!("{path}/tree")),
        of(ann, format!("{path}/state")),
        of(ann, format!("/v1/requests/{}", text(first, "id"))),
        of(ann, format!("/v1/tasks/{}", text(first, "task_id"))),
        of(ann, "/v1/sessions".to_owned()),
        of(&operator, format!("{path}/messages?view=trace")),
        of(&operator, format!("{path}/tree")),
        of(&operator, format!("{path}/records?limit=1000")),
        of(&worker, memory(front)),
        of(&approver, format!("/v1/holds/{}", text(&hold, "id"))),
        of(&approver, "/v1/holds".to_owned()),
        of(&approver, "/v1/holds?status=decided".to_owned()),
    ];
    routes.extend(hidden.iter().cloned());
    Scene {
        feed: of(&operator, format!("{path}/events")),
        session,
        routes,
        hidden,
    }
}

impl Scene {
    /// Everything that one pass over these routes gets.
    async fn read(routes: &[(Who, String)]) -> String {
        let mut all = String::new();
        for (who, path) in routes {
            let answer = who.get(path).await;
            assert!(
                matches!(answer.status, 200 | 404),
                "{path}: {}",
                answer.text()
            );
            all.push_str(&answer.text());
        }
        all
    }

    /// Everything that the feed has, from the first record on. Empty if there is none any more.
    async fn read_feed(&self) -> String {
        let (who, path) = &self.feed;
        let probe = who.get(&self.routes[8].1).await;
        if probe.status == 404 {
            assert_eq!(who.get(path).await.status, 404);
            return String::new();
        }
        let mut feed = who.follow(path, Some("0")).await;
        while let Ok(Some(_)) = feed.next_within(Duration::from_millis(200)).await {}
        String::from_utf8_lossy(&feed.raw).into_owned()
    }

    /// Reads until something was removed, and once more after that.
    async fn keep_reading(&self, is_removed: &AtomicBool, is_deleted: bool) {
        loop {
            let was_removed = is_removed.load(Ordering::SeqCst);
            let all = Self::read(&self.routes).await;
            if !is_deleted {
                assert!(
                    all.contains(SHARED) && all.contains(VISIBLE),
                    "clients see it"
                );
            }
            if was_removed {
                assert!(!all.contains(HIDDEN), "{all}");
                let hidden = Self::read(&self.hidden).await;
                assert!(!hidden.contains(SHARED), "{hidden}");
                if is_deleted {
                    assert!(!all.contains(SHARED) && !all.contains(VISIBLE), "{all}");
                }
                let feed = self.read_feed().await;
                assert!(!feed.contains(HIDDEN), "{feed}");
                assert!(!is_deleted || feed.is_empty(), "{feed}");
                return;
            }
        }
    }
}

/// Lets many read while `remove` runs.
async fn storm(scene: Arc<Scene>, is_deleted: bool, remove: impl Future<Output = ()>) {
    let all = Scene::read(&scene.routes).await;
    for word in [HIDDEN, SHARED, VISIBLE] {
        assert!(all.contains(word), "there is something to remove: {word}");
    }
    let hidden = Scene::read(&scene.hidden).await;
    assert!(hidden.contains(SHARED) && hidden.contains(HIDDEN));
    let is_removed = Arc::new(AtomicBool::new(false));
    let readers: Vec<_> = (0..READERS)
        .map(|_| {
            let (scene, is_removed) = (Arc::clone(&scene), Arc::clone(&is_removed));
            tokio::spawn(async move { scene.keep_reading(&is_removed, is_deleted).await })
        })
        .collect();
    remove.await;
    is_removed.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.expect("no reader finds anything");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_a_session_was_deleted_no_route_has_a_byte_of_it() {
    for (rig, bytes) in [
        (Rig::in_memory().await, 1_500),
        (Rig::on_disk().await, 700),
        (Rig::on_disk().await, 3_000),
        (Rig::on_disk().await, 20_000),
    ] {
        let ann = rig.client("ann").await;
        let scene = Arc::new(scene(&rig, &ann, &long(SHARED, bytes)).await);
        let path = format!("/v1/sessions/{}", scene.session);
        storm(Arc::clone(&scene), true, async {
            ann.delete(&path).await.ok(204);
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_a_session_has_expired_no_route_has_a_byte_of_hidden_payloads() {
    for (rig, bytes) in [
        (Rig::with(Setup::with_clock(0)).await, 1_500),
        (Rig::with_clock().await, 700),
        (Rig::with_clock().await, 3_000),
        (Rig::with_clock().await, 20_000),
    ] {
        let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
        let scene = Arc::new(scene(&rig, &ann, &long(SHARED, bytes)).await);
        let path = format!("/v1/sessions/{}", scene.session);
        let hidden = scene.hidden.clone();
        storm(Arc::clone(&scene), false, async {
            let body = json!({"step_seconds": 61});
            admin.post("/v1/dev/clock", &body).await.ok(200);
            until(
                "the session is closed, and its hidden payloads are removed",
                || async {
                    let session = ann.get(&path).await.ok(200);
                    let (who, trace) = &hidden[2];
                    let is_gone = !who.get(trace).await.text().contains(HIDDEN);
                    (session["status"] == "closed" && is_gone).then_some(())
                },
            )
            .await;
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn after_the_time_of_hidden_payloads_no_route_has_a_byte_of_them_and_the_session_goes_on() {
    for (rig, bytes) in [
        (Rig::with(Setup::with_clock(0)).await, 1_500),
        (Rig::with_clock().await, 700),
        (Rig::with_clock().await, 20_000),
    ] {
        let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
        let scene = Arc::new(scene(&rig, &ann, &long(SHARED, bytes)).await);
        let path = format!("/v1/sessions/{}", scene.session);
        let lives = json!({"ttl_seconds": null, "hidden_ttl_seconds": 60});
        let patched = ann.patch(&path, &lives).await.ok(200);
        assert_eq!(patched["hidden_ttl_seconds"], 60);
        assert!(
            patched.get("hidden_expires_at").is_none(),
            "a live request needs them: {patched}"
        );
        let step = json!({"step_seconds": 61});
        admin.post("/v1/dev/clock", &step).await.ok(200);
        let live = ann.get(&format!("{path}/tree")).await.ok(200);
        let live = text(&live["tasks"][0]["requests"][1], "id");
        let cancel = format!("/v1/requests/{live}/cancel");
        ann.post(&cancel, &json!({})).await.ok(200);
        let session = ann.get(&path).await.ok(200);
        assert!(
            session["hidden_expires_at"].is_string(),
            "from now on they are due: {session}"
        );
        let hidden = scene.hidden.clone();
        storm(Arc::clone(&scene), false, async {
            admin.post("/v1/dev/clock", &step).await.ok(200);
            until("the hidden payloads are removed", || async {
                let (who, trace) = &hidden[2];
                let is_gone = !who.get(trace).await.text().contains(HIDDEN);
                is_gone.then_some(())
            })
            .await;
        })
        .await;
        let session = ann.get(&path).await.ok(200);
        assert_eq!(session["status"], "idle", "{session}");
        assert!(session.get("hidden_expires_at").is_none(), "{session}");
        let worker = rig.worker(&["front"]).await;
        let asked = json!({"agent": "front", "input": "and now?", "lease": {"ttl_seconds": 50},
                           "output": "It goes on."});
        let requests = format!("{path}/requests");
        worker.post(&requests, &asked).await.ok(201);
        let messages = ann.get(&format!("{path}/messages")).await.ok(200);
        let messages = messages.to_string();
        assert!(messages.contains("It goes on.") && messages.contains(VISIBLE));
    }
}

/// Everything that a session shows of itself, and what the agent of its next turn gets, as its memory and with its
/// claim.
async fn shown(rig: &Rig, session: &str) -> String {
    let (operator, worker) = (rig.key(&["operator"]).await, rig.worker(&["front"]).await);
    let path = format!("/v1/sessions/{session}");
    let tree = operator.get(&format!("{path}/tree")).await.ok(200);
    let mut routes = vec![
        format!("{path}/tree"),
        format!("{path}/messages?view=trace&limit=200"),
        format!("{path}/messages?view=trace&form=tool_call_history"),
        format!("{path}/messages?view=trace&at=5"),
        format!("{path}/records?limit=1000"),
        format!("/console/sessions/{session}?tab=hidden"),
        format!("/console/sessions/{session}?tab=tree"),
    ];
    for root in tree["tasks"].as_array().into_iter().flatten() {
        let task = format!("/v1/tasks/{}", text(root, "id"));
        routes.push(format!("{task}?view=trace"));
        routes.push(format!("{task}?view=trace&form=tool_call_history"));
    }
    let mut all = String::new();
    for route in &routes {
        let answer = operator.get(route).await;
        assert_eq!(answer.status, 200, "{route}: {}", answer.text());
        all.push_str(&answer.text());
    }
    let asked = json!({"agent": "front", "input": "and now?"});
    let ann = rig.client("ann").await;
    let asked = ann.post(&format!("{path}/requests"), &asked).await;
    let asked = text(&asked.ok(201), "id");
    let claim = json!({"agent": "front", "request_id": asked});
    let claimed = worker.post("/v1/work/claim", &claim).await.ok(200);
    all.push_str(&claimed.to_string());
    let memory = worker.get(&format!("/v1/requests/{asked}/memory")).await;
    all.push_str(&memory.ok(200).to_string());
    let done = json!({"output": "done"});
    let front = &claimed["requests"][0];
    act(&worker, front, "complete", done).await.ok(200);
    all
}

/// The request with the lease that the worker has, or a new one after a pause.
async fn leased(worker: &Who, request: Value) -> Value {
    let claim = json!({"agent": request["agent"], "request_id": request["id"]});
    let claimed = worker.post("/v1/work/claim", &claim).await;
    if claimed.status == 200 {
        claimed.ok(200)["requests"][0].clone()
    } else {
        request
    }
}

/// A session with hidden items, a private state, an error and a decided hold; and the routes of what has an id of its
/// own.
async fn told(rig: &Rig, ann: &Who) -> (String, Vec<(Who, String)>) {
    let worker = rig.worker(&["front", "helper"]).await;
    let (operator, approver) = (rig.key(&["operator"]).await, rig.key(&["approver"]).await);
    let body = json!({"app": "demo", "agent": "front"});
    let session = text(&ann.post("/v1/sessions", &body).await.ok(201), "id");
    let requests = format!("/v1/sessions/{session}/requests");
    let lease = json!({"ttl_seconds": 3_000});
    let asked = json!({"agent": "front", "input": VISIBLE, "lease": lease});
    let front = worker.post(&requests, &asked).await.ok(201);
    let items = json!({"items": [{"kind": "note", "data": {"word": HIDDEN}}],
                       "task_state": {"word": HIDDEN}});
    act(&worker, &front, "items", items).await.ok(200);
    let mut routes = Vec::new();
    for ending in ["fail", "complete"] {
        let asked = json!({"agent": "helper", "input": HIDDEN, "lease": lease,
                           "parent_request_id": front["id"], "parent_fence": front["fence"]});
        let helper = worker.post(&requests, &asked).await.ok(201);
        let body = match ending {
            "fail" => json!({"error": {"code": "odd", "message": HIDDEN}}),
            _ => json!({"output": HIDDEN, "task_state": {"word": HIDDEN}}),
        };
        if ending == "complete" {
            let hold = json!({"kind": "approval", "title": HIDDEN, "message": HIDDEN,
                              "action": {"tool": "pay", "args": {"word": HIDDEN}}});
            let hold = act(&worker, &helper, "holds", hold).await.ok(201);
            let hold = format!("/v1/holds/{}", text(&hold, "id"));
            let no = json!({"decision": "reject", "comment": HIDDEN});
            let decision = format!("{hold}/decision");
            approver.post(&decision, &no).await.ok(200);
            routes.push((approver.clone(), hold));
        }
        let helper = leased(&worker, helper).await;
        act(&worker, &helper, ending, body).await.ok(200);
        let task = format!("/v1/tasks/{}", text(&helper, "task_id"));
        routes.push((operator.clone(), format!("{task}?view=trace")));
        let request = format!("/v1/requests/{}", text(&helper, "id"));
        routes.push((operator.clone(), request));
    }
    let (front, done) = (leased(&worker, front).await, json!({"output": VISIBLE}));
    act(&worker, &front, "complete", done).await.ok(200);
    (session, routes)
}

#[tokio::test]
async fn no_route_of_a_session_shows_what_it_has_removed_though_another_needs_the_bytes() {
    for is_fork_removed in [false, true] {
        for rig in [
            Rig::with(Setup::with_clock(0)).await,
            Rig::with_clock().await,
        ] {
            let (ann, admin) = (rig.client("ann").await, rig.key(&["admin"]).await);
            let operator = rig.key(&["operator"]).await;
            let (origin, own) = told(&rig, &ann).await;
            let fork = format!("/v1/sessions/{origin}/fork");
            let fork = text(&operator.post(&fork, &json!({})).await.ok(201), "id");
            for session in [&origin, &fork] {
                let all = shown(&rig, session).await;
                assert!(all.contains(HIDDEN) && all.contains(VISIBLE));
            }
            let (removed, other) = if is_fork_removed {
                (&fork, &origin)
            } else {
                (&origin, &fork)
            };
            let path = format!("/v1/sessions/{removed}");
            let lives = json!({"hidden_ttl_seconds": 60});
            ann.patch(&path, &lives).await.ok(200);
            let step = json!({"step_seconds": 61});
            admin.post("/v1/dev/clock", &step).await.ok(200);
            until("the hidden payloads are removed", || async {
                let session = ann.get(&path).await.ok(200);
                session.get("hidden_expires_at").is_none().then_some(())
            })
            .await;
            let all = shown(&rig, removed).await;
            assert!(!all.contains(HIDDEN) && all.contains(VISIBLE), "{all}");
            let own = Scene::read(&own).await;
            assert_eq!(own.contains(HIDDEN), is_fork_removed, "{own}");
            let fork = format!("{path}/fork");
            // The earlier revisions of a fork are those of its origin, which may have removed nothing.
            for at in [json!({"at": 6}), json!({})] {
                let late = text(&operator.post(&fork, &at).await.ok(201), "id");
                let all = shown(&rig, &late).await;
                assert!(!all.contains(HIDDEN) && all.contains(VISIBLE), "{all}");
            }
            assert!(shown(&rig, other).await.contains(HIDDEN), "it has all");
        }
    }
}
