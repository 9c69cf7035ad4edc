//! Secrets are redacted before they are stored: one comes in by every door, and is looked for in every answer, in the
//! files, in a backup and in the log.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::redact::{Pattern, Redactor};
use statehold_engine::RedactionRules;
use statehold_engine::policy::Policies;
use statehold_store::{PageLimit, Store};

use crate::hidden::Canaries;
use crate::rest::{act, claim, new_session, new_session_of, start};
use crate::rig::{self, Answer, Rig, Setup, Who, log, open_store, text, until};

const GITHUB: &str = "[redacted:github-token]";

/// Makes secrets that are told apart, from parts.
struct Secrets {
    canaries: Canaries,
    made: usize,
}

impl Secrets {
    fn new() -> Self {
        Self {
            canaries: Canaries::new(),
            made: 0,
        }
    }

    fn github(&mut self, door: &str) -> String {
        self.made += 1;
        let secret = format!("gh{}_{:04}{}", "p", self.made, "aB3dE6gH9".repeat(4));
        self.canaries.add(door, &secret);
        secret
    }

    #[track_caller]
    fn check_absent(&self, what: &str, bytes: &[u8]) {
        let found = self.canaries.found_in(bytes);
        assert!(found.is_empty(), "{found:?} in {what}");
    }
}

/// Every byte that lies in a directory, and every payload of sessions as it was before compression.
async fn everything(directory: &Path, sessions: &[String]) -> Vec<u8> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            found.extend(std::fs::read(path).expect("a file"));
        }
    }
    let store = open_store(directory).expect("opens");
    for session in sessions {
        let session: SessionId = session.parse().expect("an id");
        let limit = PageLimit::entries(1_000);
        let records = store.records(session, 0, limit).await.expect("records");
        for record in records {
            found.extend(record.bodies.into_iter().flatten().flatten());
        }
    }
    found
}

/// Makes a call under an idempotency key, so that its answer is kept, and looks for secrets in the answer.
async fn send(secrets: &Secrets, who: &Who, method: &str, path: &str, body: &Value) -> Answer {
    let key = format!("{}{}", secrets.made, path.replace('/', "-"));
    let key = [("idempotency-key", key.as_str())];
    let answer = who.send(method, path, &key, body.to_string()).await;
    secrets.check_absent(path, &answer.body);
    answer
}

/// Sends a secret through the doors of the native API that a worker and a client have.
async fn send_by_rest(rig: &Rig, ann: &Who, secrets: &mut Secrets) -> (String, Value) {
    let helper = rig.worker(&["helper"]).await;
    let made = json!({"app": "demo", "agent": "helper", "state": {"first": secrets.github("first state")}});
    let made = send(secrets, ann, "POST", "/v1/sessions", &made).await;
    let session = text(&made.ok(201), "id");
    let input = format!("use {}", secrets.github("input"));
    let started = start(ann, &session, "helper", &input).await;
    let request = claim(&helper, "helper").await;
    let expected = format!("use {GITHUB}");
    assert_eq!(request["input"], expected, "{request}");
    let of_request = |what: &str| format!("/v1/requests/{}/{what}", text(&request, "id"));
    let nested = json!({"deep": secrets.github("nested arguments")}).to_string();
    let items = json!({"fence": request["fence"], "items": [
        {"kind": "tool_call", "name": "fetch", "call_id": "c1",
         "arguments": {"key": secrets.github("arguments"), "nested": nested, "password": "hunter2"}},
        {"kind": "tool_result", "call_id": "c1", "result": [secrets.github("result")]},
        {"kind": "message", "content": [{"type": "text", "text": secrets.github("message")}]},
        {"kind": "step", "name": "think", "data": {"seen": secrets.github("step")}},
        {"kind": "note", "data": secrets.github("note")},
        {"kind": "message", "content": "a file", "annotations": {"by": secrets.github("mark of an item")},
         "attachments": [{"url": format!("https://u:{}@x.test/a", secrets.github("address"))}]},
    ]});
    send(secrets, &helper, "POST", &of_request("items"), &items)
        .await
        .ok(200);
    let state = json!({"set": {"plan": {"key": secrets.github("state")}, "user:api_key": secrets.github("user state")},
                       "append": {"log/": [secrets.github("a list")]},
                       "request_id": request["id"], "fence": request["fence"]});
    let path = format!("/v1/sessions/{session}/state");
    send(secrets, &helper, "PATCH", &path, &state).await.ok(200);
    let hold = json!({"fence": request["fence"], "kind": "question",
                      "title": format!("Is it {}?", secrets.github("title")),
                      "message": secrets.github("message of a hold")});
    let hold = send(secrets, &helper, "POST", &of_request("holds"), &hold)
        .await
        .ok(201);
    let answer = json!({"decision": "respond", "content": secrets.github("answer to a question"),
                        "comment": secrets.github("comment")});
    let path = format!("/v1/holds/{}/decision", text(&hold, "id"));
    send(secrets, ann, "POST", &path, &answer).await.ok(200);
    let output = json!({"fence": request["fence"], "output": secrets.github("output")});
    send(secrets, &helper, "POST", &of_request("complete"), &output)
        .await
        .ok(200);
    start(ann, &session, "helper", "again").await;
    let failing = claim(&helper, "helper").await;
    let error = json!({"fence": failing["fence"], "error": {"why": secrets.github("error")}});
    let path = format!("/v1/requests/{}/fail", text(&failing, "id"));
    send(secrets, &helper, "POST", &path, &error).await.ok(200);
    (session, started)
}

/// Sends a secret through the other surfaces.
async fn send_by_surfaces(
    rig: &Rig,
    ann: &Who,
    session: &str,
    secrets: &mut Secrets,
) -> Vec<String> {
    let of_session = |what: &str| format!("/v1/sessions/{session}/{what}");
    let said = json!({"role": "user", "content": secrets.github("appended message")});
    let written = send(secrets, ann, "POST", &of_session("messages"), &said)
        .await
        .ok(201);
    let path = of_session(&format!("messages/{}/annotations", written["seq"]));
    let mark = json!({"annotations": {"by": secrets.github("annotation")}});
    send(secrets, ann, "PATCH", &path, &mark).await.ok(200);
    let metadata = json!({"metadata": {"m": secrets.github("metadata")}});
    send(secrets, ann, "PATCH", &of_session("metadata"), &metadata)
        .await
        .ok(200);
    let admin = rig.key(&["admin"]).await;
    let app = json!({"set": {"app:k": secrets.github("app state")}});
    send(secrets, &admin, "PATCH", "/v1/state/app/demo", &app)
        .await
        .ok(200);

    let event = json!({"event": {"id": "e1", "author": "user", "invocationId": "i-1", "timestamp": 5.0,
        "content": {"role": "user", "parts": [{"text": secrets.github("text of an event")}]},
        "actions": {"stateDelta": {"k": secrets.github("state of an event")}}}});
    let made = json!({"sessionId": "s1", "state": {"k": secrets.github("first state of ADK")}});
    let sessions = "/apps/shop/users/ann/sessions";
    send(secrets, ann, "POST", sessions, &made).await.ok(200);
    let events = format!("{sessions}/s1/events");
    send(secrets, ann, "POST", &events, &event).await.ok(200);
    let adk = ann.get(&format!("{sessions}/s1")).await;
    secrets.check_absent("the session of ADK", &adk.body);
    let adk = adk.header("x-statehold-session").expect("an id").to_owned();

    let params = json!({"name": "start_task", "arguments": {
        "session_id": session, "agent": "helper", "input": secrets.github("MCP tool")}});
    let called = crate::mcp::ask(ann, "tools/call", params).await;
    let called: Value = serde_json::from_slice(&called.body).expect("JSON");
    assert_ne!(called["result"]["isError"], true, "{called}");
    let helper = rig.worker(&["helper"]).await;
    let request = claim(&helper, "helper").await;
    assert!(request.to_string().contains(GITHUB), "{request}");
    let done = json!({"output": "done"});
    act(&helper, &request, "complete", done).await.ok(200);
    vec![adk, chat(rig, ann, secrets).await]
}

/// Chats with a secret, and repeats the conversation without a session: it goes on where it was.
async fn chat(rig: &Rig, ann: &Who, secrets: &mut Secrets) -> String {
    let helper = rig.worker(&["helper"]).await;
    let first = json!({"role": "user", "content": format!("my key is {}", secrets.github("chat"))});
    let mut messages = vec![first];
    let mut sessions = Vec::new();
    for turn in 0..2 {
        let body = json!({"model": "helper", "messages": messages});
        let (who, path) = (ann.clone(), "/openai/v1/chat/completions");
        let call = tokio::spawn(async move { who.post(path, &body).await });
        let request = claim(&helper, "helper").await;
        assert!(
            turn > 0 || request.to_string().contains(GITHUB),
            "{request}"
        );
        let output = json!({"output": secrets.github("chat answer")});
        act(&helper, &request, "complete", output).await.ok(200);
        let answer = call.await.expect("the call is made");
        secrets.check_absent("the chat", &answer.body);
        sessions.push(answer.header("x-statehold-session").map(str::to_owned));
        let said = answer.ok(200)["choices"][0]["message"]["content"].clone();
        assert_eq!(said, GITHUB);
        messages.push(json!({"role": "assistant", "content": said}));
        messages.push(json!({"role": "user", "content": "and then?"}));
    }
    assert_eq!(
        sessions[0], sessions[1],
        "a client that repeats its secret is known"
    );
    sessions[0].clone().expect("the session is named")
}

fn reads(session: &str, started: &Value) -> Vec<String> {
    let of = |what: &str| format!("/v1/sessions/{session}{what}");
    vec![
        of(""),
        of("/messages"),
        of("/messages?view=trace&limit=200"),
        of("/records"),
        of("/state"),
        of("/tree"),
        format!("/v1/tasks/{}?view=trace", text(started, "task_id")),
        format!("/v1/requests/{}", text(started, "id")),
        "/v1/holds?status=decided".to_owned(),
        "/v1/state/user/demo/ann".to_owned(),
        "/v1/state/app/demo".to_owned(),
        "/v1/audit/records".to_owned(),
        "/metrics".to_owned(),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_that_comes_by_any_door_is_nowhere() {
    let rig = Rig::on_disk_with(crate::chat::setup()).await;
    let mut secrets = Secrets::new();
    let (ann, operator) = (
        rig.client("ann").await,
        rig.key(&["operator", "admin", "approver"]).await,
    );
    let (session, started) = send_by_rest(&rig, &ann, &mut secrets).await;
    let mut sessions = send_by_surfaces(&rig, &ann, &session, &mut secrets).await;
    for who in [&ann, &operator] {
        for path in reads(&session, &started) {
            let answer = who.get(&path).await;
            assert_ne!(answer.status, 500, "{path}");
            secrets.check_absent(&path, &answer.body);
        }
    }
    // The trace says where something was, and by which rule.
    let trace = format!(
        "/v1/tasks/{}?view=trace&limit=100",
        text(&started, "task_id")
    );
    let trace = operator.get(&trace).await.ok(200);
    let items = trace["history"].as_array().expect("items").clone();
    let call = items
        .iter()
        .find(|item| item["kind"] == "tool_call")
        .expect("a call");
    let places = json!([
        {"path": "/arguments/key", "rule": "github-token"},
        {"path": "/arguments/nested", "rule": "github-token"},
        {"path": "/arguments/password", "rule": "secret-key-name"},
    ]);
    assert_eq!(call["redactions"], places, "{call}");
    assert_eq!(call["arguments"]["password"], "[redacted:secret-key-name]");
    let metrics = operator.get("/metrics").await.text();
    let counted = metrics
        .lines()
        .find(|line| line.starts_with("statehold_redactions_total{rule=\"github-token\"}"));
    let counted = counted.and_then(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    assert!(counted.is_some_and(|count| count >= 20), "{metrics}");

    let backup = rig.backup().await;
    let data = rig.stop().await.expect("on disk");
    sessions.push(session);
    let found = everything(data.path(), &sessions).await;
    assert!(String::from_utf8_lossy(&found).contains(GITHUB));
    secrets.check_absent("the data directory", &found);
    // With its keys, so that the payloads are read and not only their ciphertext.
    let restored = rig::restored(&backup);
    let found = everything(restored.path(), &sessions).await;
    assert!(String::from_utf8_lossy(&found).contains(GITHUB));
    secrets.check_absent("the backup", &found);
    secrets.check_absent("the log", log().as_bytes());
    assert!(!String::from_utf8_lossy(&found).contains("hunter2"));
}

#[tokio::test]
async fn an_approved_action_runs_with_its_secret_which_is_gone_afterwards() {
    let rig = Rig::on_disk().await;
    let mut secrets = Secrets::new();
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    start(&ann, &session, "helper", "deploy").await;
    let request = claim(&helper, "helper").await;
    let token = secrets.github("arguments of an action");
    let action = json!({"tool": "deploy", "args": {"token": "hunter2", "header": format!("x {token}")}, "call_id": "c"});
    let hold = json!({"kind": "approval", "title": "Deploy?", "action": action});
    let hold = act(&helper, &request, "holds", hold).await.ok(201);
    let id = text(&hold, "id");
    let seen = boss.get(&format!("/v1/holds/{id}")).await.ok(200);
    let shown = json!({"token": "[redacted:secret-key-name]", "header": format!("x {GITHUB}")});
    assert_eq!(seen["action"]["args"], shown);
    let rules = json!([{"path": "/token", "rule": "secret-key-name"}, {"path": "/header", "rule": "github-token"}]);
    assert_eq!(seen["action"]["redactions"], rules);
    let approve = json!({"decision": "approve", "digest": seen["action"]["digest"]});
    boss.post(&format!("/v1/holds/{id}/decision"), &approve)
        .await
        .ok(200);
    let path = format!("/v1/requests/{}", text(&request, "id"));
    let released = helper.get(&path).await.ok(200).to_string();
    assert!(
        released.contains(&token) && released.contains("hunter2"),
        "the worker runs the whole action"
    );
    let result = json!({"items": [{"kind": "tool_result", "call_id": "c",
                                   "result": {"deployed_with": token}}]});
    act(&helper, &request, "items", result).await.ok(200);
    act(&helper, &request, "complete", json!({"output": "deployed"}))
        .await
        .ok(200);
    secrets.check_absent("the request", &helper.get(&path).await.body);
    let keys = std::fs::read(rig.data().join("hold-keys")).expect("the file stays");
    assert!(keys.iter().all(|byte| *byte == 0), "keys are overwritten");
    let data = rig.stop().await.expect("on disk");
    let found = everything(data.path(), &[session]).await;
    secrets.check_absent("the data directory", &found);
    assert!(!String::from_utf8_lossy(&found).contains("hunter2"));
}

#[tokio::test]
async fn a_draft_shows_no_part_of_a_secret_however_it_is_cut() {
    let rig = Rig::in_memory().await;
    let mut secrets = Secrets::new();
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let session = new_session(&ann).await;
    let secret = secrets.github("draft");
    let answer = format!("The token is {secret} as you know.");
    for size in [1, 2, 5, 9, 50] {
        let started = start(&ann, &session, "helper", "which token?").await;
        let request = claim(&helper, "helper").await;
        let id: RequestId = text(&started, "id").parse().expect("an id");
        let _draft = rig.engine.open_draft(id);
        let mut reader = rig.engine.follow_draft(id);
        let mut shown = String::new();
        let chars: Vec<char> = answer.chars().collect();
        for piece in chars.chunks(size) {
            rig.engine
                .write_draft(id, &piece.iter().collect::<String>());
            while let Some(piece) = reader.take() {
                shown.push_str(&piece.text);
            }
        }
        let whole = answer.replace(&secret, GITHUB);
        assert!(whole.starts_with(&shown), "{size}: {shown}");
        assert!(shown.contains(GITHUB), "{size}: {shown}");
        act(&helper, &request, "complete", json!({"output": answer}))
            .await
            .ok(200);
        let seen = ann.get(&format!("/v1/requests/{id}")).await.ok(200);
        assert!(seen.to_string().contains(&whole), "{seen}");
    }
    rig.stop().await;
}

#[tokio::test]
async fn the_configuration_says_for_whom_and_what_else_is_redacted() {
    let ticket =
        Pattern::new(&"ticket".parse().expect("a name"), "TCK-[0-9]{4}").expect("a pattern");
    let policies = Policies {
        redaction: RedactionRules {
            agents: [("vault".parse().expect("a name"), false)].into(),
            redactor: Redactor::new(vec![ticket]),
            ..RedactionRules::default()
        },
        ..Policies::default()
    };
    let setup = Setup {
        policies: Arc::new(policies),
        ..Setup::default()
    };
    let rig = Rig::with(setup).await;
    let mut secrets = Secrets::new();
    let said = format!("see TCK-1234 with {}", secrets.github("input"));
    let ann = rig.client("ann").await;
    let session = new_session(&ann).await;
    for (agent, expected) in [
        ("helper", format!("see [redacted:ticket] with {GITHUB}")),
        ("vault", said.clone()),
    ] {
        let worker = rig.worker(&[agent]).await;
        start(&ann, &session, agent, &said).await;
        let request = claim(&worker, agent).await;
        assert_eq!(request["input"], expected);
        let done = act(&worker, &request, "complete", json!({"output": said})).await;
        assert!(done.ok(200).to_string().contains(&expected));
    }
    rig.stop().await;
}

#[tokio::test]
async fn opaque_state_of_an_agent_ids_and_names_stay_as_they_are() {
    let rig = Rig::in_memory().await;
    let mut secrets = Secrets::new();
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let name = secrets.github("a name");
    let made = json!({"app": "demo", "agent": "helper", "name": name, "labels": {"l": name}});
    let made = ann.post("/v1/sessions", &made).await.ok(201);
    assert_eq!(
        (&made["name"], &made["labels"]["l"]),
        (&json!(name), &json!(name))
    );
    let session = text(&made, "id");
    start(&ann, &session, "helper", "x").await;
    let request = claim(&helper, "helper").await;
    let state = json!({"token": name});
    let items = json!({"task_state": state, "items": [
        {"kind": "tool_call", "name": "fetch", "call_id": name, "arguments": {}}]});
    act(&helper, &request, "items", items).await.ok(200);
    let result = json!({"items": [{"kind": "tool_result", "call_id": name, "result": 1}]});
    act(&helper, &request, "items", result).await.ok(200);
    let task = format!("/v1/tasks/{}", text(&request, "task_id"));
    assert_eq!(helper.get(&task).await.ok(200)["state"], state);
    rig.stop().await;
}

#[tokio::test]
async fn a_call_that_may_have_run_is_never_made_again_with_a_placeholder() {
    let rig = Rig::in_memory().await;
    let mut secrets = Secrets::new();
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let boss = rig.key_for(&["approver"], Some("boss"), &[]).await;
    let session = new_session(&ann).await;
    let started = start(&ann, &session, "helper", "deploy").await;
    let short = json!({"agent": "helper", "lease_seconds": 3, "wait_seconds": 10});
    let claimed = helper.post("/v1/work/claim", &short).await.ok(200);
    let items = json!({"items": [{"kind": "tool_call", "name": "deploy", "call_id": "c",
                                  "arguments": {"header": secrets.github("arguments")}}]});
    act(&helper, &claimed["requests"][0], "items", items)
        .await
        .ok(200);
    let path = format!("/v1/requests/{}", text(&started, "id"));
    // The worker is lost: the next claim asks people about the call.
    until("the lease lapses", || async {
        helper
            .post("/v1/work/claim", &json!({"agent": "helper"}))
            .await
            .ok(200);
        let read = ann.get(&path).await.ok(200);
        (read["status"] == "held").then_some(())
    })
    .await;
    let open = boss.get("/v1/holds?kind=reconcile").await.ok(200)["holds"][0].clone();
    assert_eq!(open["action"]["args"]["header"], GITHUB, "{open}");
    let places = json!([{"path": "/header", "rule": "github-token"}]);
    assert_eq!(open["action"]["redactions"], places);
    let approve = json!({"decision": "approve", "digest": open["action"]["digest"]});
    let path = format!("/v1/holds/{}/decision", text(&open, "id"));
    boss.post(&path, &approve).await.ok(200);
    let again = claim(&helper, "helper").await;
    let decided = &again["decisions"][0];
    assert_eq!(decided["action"]["args"], Value::Null, "{decided}");
    assert_eq!(decided["decision"]["args_lost"], true, "{decided}");
    rig.stop().await;
}

#[tokio::test]
async fn a_secret_over_two_parts_of_a_message_is_redacted() {
    let rig = Rig::in_memory().await;
    let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
    let part = |text: &str| json!({"type": "text", "text": text});
    let image = json!({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}});
    let parts = [
        part("{\"password\":"),
        part("\"hunter2canary\", \"z\": 1}"),
        image,
    ];
    let body = json!({"model": "helper", "messages": [{"role": "user", "content": parts}]});
    let session = new_session_of(&ann, "helper").await;
    let call = tokio::spawn(async move {
        let headers = [("x-statehold-session", session.as_str())];
        let path = "/openai/v1/chat/completions";
        ann.send("POST", path, &headers, body.to_string()).await
    });
    let request = claim(&helper, "helper").await;
    let shown = request.to_string();
    assert!(!shown.contains("hunter2canary"), "{shown}");
    assert!(shown.contains("[redacted:secret-key-name]"), "{shown}");
    let done = json!({"output": "ok"});
    act(&helper, &request, "complete", done).await.ok(200);
    call.await.expect("the call is made").ok(200);
}
