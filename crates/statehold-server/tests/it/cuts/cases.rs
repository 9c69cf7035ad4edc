//! The use cases that are cut off, each with fresh objects for every cut.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use statehold_agents::spec::{AgentBook, AgentKind, ChatSessions};
use statehold_engine::PathRule;
use statehold_engine::policy::{AgentPolicy, Approval, Policies, ToolPolicy};
use statehold_server::ServerOptions;
use tokio::task::JoinHandle;

use crate::chat::agent;
use crate::rest::act;
use crate::rig::{Rig, Setup, Who, text};

/// The promise that a caller relies on when a call was cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Promise {
    /// The same call under the same key gets the same answer, and has happened once.
    Kept,
    /// The same, for calls of several commits, and for a chat: its turn goes on by itself, so what is there changes meanwhile.
    Turn,
    /// No answer is kept; the call may be made again, and has happened once.
    Again,
    /// No answer is kept, and made again it happens again.
    Twice,
}

/// A call that is to be cut off.
#[derive(Debug, Clone)]
pub(super) struct Prepared {
    pub(super) who: Who,
    pub(super) method: &'static str,
    pub(super) path: String,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Value,
    pub(super) promise: Promise,
    /// The paths of reads that show every effect of the call.
    pub(super) watch: Vec<String>,
    /// A call that follows, with what its answer must be every time.
    pub(super) after: Option<(Who, &'static str, String, Value)>,
}

impl Prepared {
    fn new(who: &Who, method: &'static str, path: String, body: Value) -> Self {
        Self {
            who: who.clone(),
            method,
            path,
            headers: Vec::new(),
            body,
            promise: Promise::Kept,
            watch: Vec::new(),
            after: None,
        }
    }

    /// Everything that is recorded of a session.
    fn watching(mut self, session: &str) -> Self {
        self.watch = vec![
            format!("/v1/sessions/{session}/records?limit=1000"),
            format!("/v1/sessions/{session}/state"),
        ];
        self
    }
}

type Preparing<'a> = Pin<Box<dyn Future<Output = Prepared> + 'a>>;

/// One use case.
pub(super) struct Case {
    pub(super) name: &'static str,
    pub(super) prepare: for<'a> fn(&'a Scene, String) -> Preparing<'a>,
}

/// Declares a use case.
macro_rules! case {
    ($name:literal, |$scene:ident, $tag:ident| $body:expr) => {
        Case {
            name: $name,
            prepare: |$scene, $tag| Box::pin(async move { $body }),
        }
    };
}

/// A server with everybody who calls it.
pub(super) struct Scene {
    pub(super) rig: Rig,
    pub(super) ann: Who,
    pub(super) helper: Who,
    pub(super) boss: Who,
    pub(super) auditor: Who,
    /// A session that nothing is done to but waiting.
    pub(super) bystander: String,
    number: AtomicUsize,
    working: JoinHandle<()>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.working.abort();
    }
}

/// `pay` is always asked about, and its `pin` is for the worker alone.
pub(super) fn setup() -> Setup {
    let path = PathRule::try_from("/pin".to_owned()).expect("a path");
    let pay = ToolPolicy {
        approval: Some(Approval::Always),
        redact: Some(vec![path]),
        ..ToolPolicy::default()
    };
    let policy = AgentPolicy {
        tools: [("pay".parse().expect("a name"), pay)].into(),
        ..AgentPolicy::default()
    };
    let book = AgentBook {
        agents: [agent("chatty", AgentKind::Worker, ChatSessions::Auto)].into(),
        ..AgentBook::default()
    };
    Setup {
        server: ServerOptions {
            agents: Arc::new(book).into(),
            ..ServerOptions::default()
        },
        policies: Arc::new(Policies {
            agents: [("helper".parse().expect("a name"), policy)].into(),
            ..Policies::default()
        }),
        ..Setup::default()
    }
}

impl Scene {
    pub(super) async fn new(rig: Rig) -> Self {
        let ann = rig.client("ann").await;
        let made = ann.post("/v1/sessions", &json!({"app": "bystander"})).await;
        let chatty = rig.worker(&["chatty"]).await;
        Self {
            bystander: text(&made.ok(201), "id"),
            helper: rig.worker(&["helper"]).await,
            boss: rig.key_for(&["approver"], Some("boss"), &[]).await,
            auditor: rig.key(&["admin"]).await,
            number: AtomicUsize::new(0),
            working: tokio::spawn(super::work(chatty)),
            ann,
            rig,
        }
    }

    /// A name for one run of a use case. All are of one length.
    pub(super) fn tag(&self) -> String {
        format!("cut-{:05}", self.number.fetch_add(1, Ordering::Relaxed))
    }

    /// A session in an app of its own, so that shared state begins empty.
    async fn session(&self, tag: &str) -> String {
        let body = json!({"app": tag, "agent": "helper", "labels": {"cut": tag}});
        text(&self.ann.post("/v1/sessions", &body).await.ok(201), "id")
    }

    async fn start(&self, who: &Who, session: &str, body: Value) -> Value {
        let path = format!("/v1/sessions/{session}/requests");
        who.post(&path, &body).await.ok(201)
    }

    async fn queued(&self, session: &str) -> Value {
        self.start(&self.ann, session, json!({"input": "x"})).await
    }

    /// A request that the helper works on.
    async fn running(&self, session: &str) -> Value {
        let body = json!({"input": "x", "lease": {"ttl_seconds": 600}});
        self.start(&self.helper, session, body).await
    }

    /// A request that waits for an approval of a payment.
    async fn held(&self, session: &str) -> (Value, Value) {
        let request = self.running(session).await;
        let opened = act(&self.helper, &request, "holds", approval()).await;
        (request, opened.ok(201))
    }

    /// A call of the helper about a request under its fence.
    fn by_helper(&self, request: &Value, what: &str, mut body: Value) -> Prepared {
        body["fence"] = request["fence"].clone();
        let path = format!("/v1/requests/{}/{what}", text(request, "id"));
        let mut call = Prepared::new(&self.helper, "POST", path, body);
        call.after = Some(self.read_by_helper(request));
        call.watching(&text(request, "session_id"))
    }

    fn read_by_helper(&self, request: &Value) -> (Who, &'static str, String, Value) {
        let path = format!("/v1/requests/{}", text(request, "id"));
        (self.helper.clone(), "GET", path, Value::Null)
    }

    /// A decision about a hold. The helper then reads what it may do.
    fn decision(&self, request: &Value, hold: &Value, mut body: Value) -> Prepared {
        body["digest"] = hold["action"]["digest"].clone();
        let path = format!("/v1/holds/{}/decision", text(hold, "id"));
        let mut call = Prepared::new(&self.boss, "POST", path, body);
        call.after = Some(self.read_by_helper(request));
        call.watching(&text(request, "session_id"))
    }

    /// A call about a session by its user.
    fn about(&self, session: &str, method: &'static str, what: &str, body: Value) -> Prepared {
        let path = format!("/v1/sessions/{session}{what}");
        Prepared::new(&self.ann, method, path, body).watching(session)
    }
}

fn approval() -> Value {
    let action = json!({"tool": "pay", "args": {"pin": "1234", "to": "ACME"}, "call_id": "a"});
    json!({"kind": "approval", "title": "Pay?", "action": action})
}

pub(super) fn sessions() -> Vec<Case> {
    vec![
        case!("create session", |scene, tag| {
            let body = json!({"app": tag, "name": "n", "labels": {"cut": tag}, "state": {"n": 1, "user:n": 1}});
            let mut call = Prepared::new(&scene.ann, "POST", "/v1/sessions".to_owned(), body);
            call.watch = vec![
                format!("/v1/sessions?label=cut:{tag}"),
                format!("/v1/state/user/{tag}/ann"),
            ];
            call
        }),
        case!("rename session", |scene, tag| {
            let session = scene.session(&tag).await;
            scene.about(&session, "PATCH", "", json!({"name": "other"}))
        }),
        case!("label session", |scene, tag| {
            let session = scene.session(&tag).await;
            let mut call = scene.about(&session, "PATCH", "", json!({"labels": {"a": "b"}}));
            call.watch.push(format!("/v1/sessions/{session}"));
            call
        }),
        case!("close session", |scene, tag| {
            let session = scene.session(&tag).await;
            scene.queued(&session).await;
            scene.about(&session, "POST", "/close", json!({"cancel_live": true}))
        }),
        case!("delete session", |scene, tag| {
            let session = scene.session(&tag).await;
            scene.held(&session).await;
            let mut call = scene.about(&session, "DELETE", "", Value::Null);
            call.watch.truncate(1);
            call
        }),
        case!("close task", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            act(&scene.helper, &request, "complete", json!({"output": "y"}))
                .await
                .ok(200);
            let path = format!("/v1/tasks/{}/close", text(&request, "task_id"));
            Prepared::new(&scene.ann, "POST", path, json!({})).watching(&session)
        }),
        case!("cancel task", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.queued(&session).await;
            let path = format!("/v1/tasks/{}/cancel", text(&request, "task_id"));
            Prepared::new(&scene.ann, "POST", path, json!({})).watching(&session)
        }),
    ]
}

pub(super) fn requests() -> Vec<Case> {
    vec![
        case!("start request", |scene, tag| {
            let session = scene.session(&tag).await;
            scene.about(&session, "POST", "/requests", json!({"input": "x"}))
        }),
        case!("start request with a credential", |scene, tag| {
            // Its worker must get the credential, whichever of the two calls has brought it.
            let session = scene.session(&tag).await;
            let body = json!({"input": "x", "agent": tag});
            let mut call = scene.about(&session, "POST", "/requests", body);
            call.headers
                .push(("x-statehold-credential", "token-of-ann".to_owned()));
            let worker = scene.rig.worker(&[&tag]).await;
            let claim = json!({"agent": tag});
            call.after = Some((worker, "POST", "/v1/work/claim".to_owned(), claim));
            call
        }),
        case!("whole turn", |scene, tag| {
            let session = scene.session(&tag).await;
            let body = json!({
                "input": "x", "output": "y", "lease": {"ttl_seconds": 600},
                "items": [{"kind": "tool_call", "name": "look", "call_id": "a", "arguments": {}},
                          {"kind": "tool_result", "call_id": "a", "result": 1}],
                "state": {"set": {"n": 1, "user:n": 1}, "merge": {"n": "add", "user:n": "add"}},
            });
            let path = format!("/v1/sessions/{session}/requests");
            Prepared::new(&scene.helper, "POST", path, body).watching(&session)
        }),
        case!("start child request", |scene, tag| {
            let session = scene.session(&tag).await;
            let parent = scene.running(&session).await;
            let body = json!({"agent": "other", "input": "x", "parent_request_id": parent["id"],
                              "parent_fence": parent["fence"]});
            let path = format!("/v1/sessions/{session}/requests");
            Prepared::new(&scene.helper, "POST", path, body).watching(&session)
        }),
        case!("append items with a gated call", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            let items = json!([
                {"kind": "message", "content": "soon"},
                {"kind": "tool_call", "name": "pay", "call_id": "a", "gated": true,
                 "arguments": {"pin": "1234", "to": "ACME"}}]);
            let state = json!({"set": {"n": 1}, "merge": {"n": "add"}});
            let body = json!({"items": items, "state": state});
            scene.by_helper(&request, "items", body)
        }),
        case!("complete request", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            let body = json!({"output": "y", "close_task": true, "state": {"set": {"user:n": 1}, "merge": {"user:n": "add"}}});
            scene.by_helper(&request, "complete", body)
        }),
        case!("fail request", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            scene.by_helper(&request, "fail", json!({"error": "broke"}))
        }),
        case!("cancel request", |scene, tag| {
            let session = scene.session(&tag).await;
            let (request, _) = scene.held(&session).await;
            let path = format!("/v1/requests/{}/cancel", text(&request, "id"));
            Prepared::new(&scene.ann, "POST", path, json!({})).watching(&session)
        }),
        case!("release lease", |scene, tag| {
            let session = scene.session(&tag).await;
            let (request, _) = scene.held(&session).await;
            scene.by_helper(&request, "release", json!({}))
        }),
        case!("heartbeat", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            let mut call = scene.by_helper(&request, "heartbeat", json!({}));
            call.promise = Promise::Again;
            call
        }),
        case!("claim", |scene, tag| {
            let session = scene.session(&tag).await;
            let worker = scene.rig.worker(&[&tag]).await;
            let body = json!({"input": "x", "agent": tag});
            scene.start(&scene.ann, &session, body).await;
            let path = "/v1/work/claim".to_owned();
            let mut call = Prepared::new(&worker, "POST", path, json!({"agent": tag}));
            call.promise = Promise::Again;
            call.watching(&session)
        }),
    ]
}

pub(super) fn holds() -> Vec<Case> {
    vec![
        case!("open hold", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            scene.by_helper(&request, "holds", approval())
        }),
        case!("approve", |scene, tag| {
            let session = scene.session(&tag).await;
            let (request, hold) = scene.held(&session).await;
            scene.decision(&request, &hold, json!({"decision": "approve"}))
        }),
        case!("edit around what is hidden", |scene, tag| {
            let session = scene.session(&tag).await;
            let (request, hold) = scene.held(&session).await;
            let args = json!({"pin": "[redacted:path]", "to": "EMCA"});
            scene.decision(&request, &hold, json!({"decision": "edit", "args": args}))
        }),
        case!("reject", |scene, tag| {
            let session = scene.session(&tag).await;
            let (request, hold) = scene.held(&session).await;
            scene.decision(
                &request,
                &hold,
                json!({"decision": "reject", "comment": "no"}),
            )
        }),
        case!("resume", |scene, tag| {
            let session = scene.session(&tag).await;
            let (request, hold) = scene.held(&session).await;
            let mut call = scene.decision(&request, &hold, json!({"decision": "approve"}));
            call.path = format!("/v1/requests/{}/resume", text(&request, "id"));
            call
        }),
        case!("give a credential", |scene, tag| {
            // The content is kept nowhere, so the next claim must have it from one of the two calls.
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            let hold = json!({"kind": "credential", "title": "Token?", "decide_by": "user"});
            let hold = act(&scene.helper, &request, "holds", hold).await.ok(201);
            act(&scene.helper, &request, "release", json!({}))
                .await
                .ok(200);
            let path = format!("/v1/holds/{}/decision", text(&hold, "id"));
            let body = json!({"decision": "respond", "content": "token-of-ann"});
            let mut call = Prepared::new(&scene.ann, "POST", path, body).watching(&session);
            let claim = json!({"agent": "helper", "request_id": request["id"]});
            call.after = Some((
                scene.helper.clone(),
                "POST",
                "/v1/work/claim".to_owned(),
                claim,
            ));
            call
        }),
    ]
}

/// A patch that adds to a key, so that twice is not once.
fn adding(key: &str) -> Value {
    json!({"set": {key: 1}, "merge": {key: "add"}})
}

pub(super) fn state() -> Vec<Case> {
    vec![
        case!("patch session state", |scene, tag| {
            let session = scene.session(&tag).await;
            scene.about(&session, "PATCH", "/state", adding("n"))
        }),
        case!("patch user state from a session", |scene, tag| {
            let session = scene.session(&tag).await;
            scene.about(&session, "PATCH", "/state", adding("user:n"))
        }),
        case!("patch app state from a session", |scene, tag| {
            let session = scene.session(&tag).await;
            let mut call = scene.about(&session, "PATCH", "/state", adding("app:n"));
            call.who = scene.auditor.clone();
            call
        }),
        case!("patch state under a fence", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            let mut patch = adding("n");
            patch["request_id"] = request["id"].clone();
            patch["fence"] = request["fence"].clone();
            let mut call = scene.about(&session, "PATCH", "/state", patch);
            call.who = scene.helper.clone();
            call
        }),
        case!("patch temporary state", |scene, tag| {
            let session = scene.session(&tag).await;
            let request = scene.running(&session).await;
            let body = json!({"set": {"temp:n": 1}, "request_id": request["id"], "fence": request["fence"]});
            let mut call = scene.about(&session, "PATCH", "/state", body);
            call.who = scene.helper.clone();
            call.promise = Promise::Again;
            let path = format!(
                "/v1/sessions/{session}/state?request_id={}",
                text(&request, "id")
            );
            call.after = Some((scene.helper.clone(), "GET", path, Value::Null));
            call
        }),
        case!("patch state of a user", |scene, tag| {
            let path = format!("/v1/state/user/{tag}/ann");
            let mut call = Prepared::new(&scene.ann, "PATCH", path.clone(), adding("n"));
            // The first write makes the place and then writes.
            call.promise = Promise::Turn;
            call.watch = vec![path];
            call
        }),
        case!("patch state of an app", |scene, tag| {
            let path = format!("/v1/state/app/{tag}");
            let mut call = Prepared::new(&scene.auditor, "PATCH", path.clone(), adding("n"));
            // The first write makes the place and then writes.
            call.promise = Promise::Turn;
            call.watch = vec![path];
            call
        }),
    ]
}

pub(super) fn keys() -> Vec<Case> {
    vec![
        case!("create key", |scene, tag| {
            let body = json!({"roles": ["client"], "name": tag});
            let mut call = Prepared::new(&scene.auditor, "POST", "/v1/keys".to_owned(), body);
            call.promise = Promise::Twice;
            call
        }),
        case!("revoke key", |scene, _tag| {
            let key = scene.rig.key(&["client"]).await;
            let path = format!("/v1/keys/{}", key.id);
            let mut call = Prepared::new(&scene.auditor, "DELETE", path, Value::Null);
            call.promise = Promise::Again;
            call.after = Some((key, "GET", "/v1/sessions".to_owned(), Value::Null));
            call
        }),
        case!("set resume address", |scene, tag| {
            let path = format!("/v1/agents/{tag}/resume_address");
            let body = json!({"url": "https://worker.invalid/resume"});
            let mut call = Prepared::new(&scene.auditor, "PUT", path.clone(), body);
            call.promise = Promise::Again;
            call.watch = vec![path];
            call
        }),
    ]
}

const COMPLETIONS: &str = "/openai/v1/chat/completions";

fn said(tag: &str, stream: bool) -> Value {
    let message = json!({"role": "user", "content": format!("words of {tag}")});
    json!({"model": "chatty", "messages": [message], "stream": stream})
}

/// A chat in a session that is there.
async fn chat_in_session(scene: &Scene, tag: &str, stream: bool) -> Prepared {
    let body = json!({"app": tag, "agent": "chatty"});
    let session = text(&scene.ann.post("/v1/sessions", &body).await.ok(201), "id");
    let path = COMPLETIONS.to_owned();
    let mut call = Prepared::new(&scene.ann, "POST", path, said(tag, stream)).watching(&session);
    call.headers.push(("x-statehold-session", session));
    call.promise = Promise::Turn;
    call
}

pub(super) fn chat() -> Vec<Case> {
    vec![
        case!("chat", |scene, tag| chat_in_session(scene, &tag, false)
            .await),
        case!("streamed chat", |scene, tag| chat_in_session(
            scene, &tag, true
        )
        .await),
        case!("chat in a new session", |scene, tag| {
            let path = COMPLETIONS.to_owned();
            let mut call = Prepared::new(&scene.ann, "POST", path, said(&tag, false));
            call.headers.push(("x-statehold-session", "new".to_owned()));
            call.headers.push(("x-statehold-app", tag.clone()));
            call.watch = vec![format!("/v1/sessions?app={tag}")];
            call.promise = Promise::Turn;
            call
        }),
    ]
}
