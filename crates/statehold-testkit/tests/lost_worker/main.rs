//! Workers that are stopped past their lease and wake up again, and clocks that are set while people
//! think: against the real binary.

mod clocks;

use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use statehold_testkit::http::{Patient, PlainAnswer, ServerProcess, built_program, signal};
use statehold_testkit::tool_worker::{Orders, Refused, WorkerOptions, read_log};

const PATIENCE: Duration = Duration::from_secs(30);
/// How long the lease of the worker that is lost lasts.
const LEASE_SECONDS: u64 = 30;

fn statehold() -> PathBuf {
    built_program(Path::new(env!("CARGO_BIN_EXE_tool_worker")))
}

fn until<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(began.elapsed() < PATIENCE, "never came to be: {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

#[track_caller]
fn text(value: &Value, field: &str) -> String {
    let text = value[field].as_str();
    text.unwrap_or_else(|| panic!("`{field}` is text in {value}"))
        .to_owned()
}

/// A server with a clock that can be moved, and one request that a worker is lost with.
struct Scene {
    directory: tempfile::TempDir,
    _server: ServerProcess,
    local: Patient,
    boss: Patient,
    second: Patient,
    first: Child,
    session: String,
    request: String,
    calls: usize,
}

impl Scene {
    /// A worker has claimed the request and run its tool, and is stopped before it could say so. Its
    /// lease is over.
    fn lost(program: &Path, idempotent: bool) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path().join("data");
        std::fs::create_dir_all(&data).expect("a directory");
        let log = directory.path().join("server.log");
        let server = ServerProcess::start_with_clock(program, &data, &log, 0).expect("it starts");
        let mut local = Patient::new(&data, None);
        let mut key = |name: &str, body: Value| {
            let made = local.post("/v1/keys", name, &body).expect("an answer");
            text(&made.json(), "key")
        };
        let boss = key("boss", json!({"roles": ["approver"], "user": "boss"}));
        let work = json!({"roles": ["worker"], "agents": ["payer"]});
        let (first, second) = (key("first", work.clone()), key("second", work));
        let worker = WorkerOptions {
            data: data.clone(),
            agent: "payer".to_owned(),
            key: first,
            lease_seconds: LEASE_SECONDS,
            tool: env!("CARGO_BIN_EXE_effect_tool").into(),
            effects: directory.path().join("effects"),
            log: directory.path().join("first.log"),
        };
        let first = worker
            .spawn(Path::new(env!("CARGO_BIN_EXE_tool_worker")))
            .expect("a worker");
        let mut scene = Self {
            boss: Patient::new(&data, Some(&boss)),
            second: Patient::new(&data, Some(&second)),
            directory,
            _server: server,
            local,
            first,
            session: String::new(),
            request: String::new(),
            calls: 0,
        };
        let body = json!({"app": "demo", "user": "ann"});
        scene.session = text(&scene.done("/v1/sessions", &body), "id");
        let orders = Orders {
            args: json!({"n": 1}),
            gated: false,
            idempotent,
            wait_for: Some(scene.directory.path().join("go")),
        };
        let input = serde_json::to_string(&orders).expect("orders are JSON");
        let path = format!("/v1/sessions/{}/requests", scene.session);
        let body = json!({"agent": "payer", "input": input});
        scene.request = text(&scene.done(&path, &body), "id");
        until("the tool has run", || {
            (scene.effects().len() == 1).then_some(())
        });
        signal(scene.first.id(), "STOP").expect("it is stopped");
        let step = json!({"step_seconds": 2 * LEASE_SECONDS});
        scene.done("/v1/dev/clock", &step);
        assert_eq!(
            scene.read("requests", &scene.request.clone())["status"],
            "queued"
        );
        scene
    }

    fn done(&mut self, path: &str, body: &Value) -> Value {
        self.calls += 1;
        let key = format!("local-{}", self.calls);
        let answer = self.local.post(path, &key, body).expect("an answer");
        answer
            .done()
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn read(&mut self, what: &str, id: &str) -> Value {
        let read = self.local.get(&format!("/v1/{what}/{id}"));
        read.expect("it is there")
    }

    /// Each call of the tool: its key.
    fn effects(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.directory.path().join("effects"));
        let text = text.unwrap_or_default();
        let keys = text.lines().filter_map(|line| line.split(' ').next());
        keys.map(str::to_owned).collect()
    }

    /// The other worker asks for the request.
    fn claim(&mut self) -> Option<Value> {
        let body = json!({"agent": "payer", "lease_seconds": 600, "request_id": self.request});
        let answer = self
            .second
            .call("POST", "/v1/work/claim", &[], &body.to_string());
        let answer = answer.expect("an answer");
        answer.json()["requests"].get(0).cloned()
    }

    /// The other worker writes something under its fence.
    fn write(&mut self, what: &str, body: &Value) -> PlainAnswer {
        self.calls += 1;
        let (key, path) = (
            format!("second-{}", self.calls),
            format!("/v1/requests/{}/{what}", self.request),
        );
        self.second.post(&path, &key, body).expect("an answer")
    }

    fn run_again(&self, key: &str) {
        let status = std::process::Command::new(env!("CARGO_BIN_EXE_effect_tool"))
            .arg(self.directory.path().join("effects"))
            .args([key, "{}"])
            .status();
        assert!(status.expect("the tool starts").success());
    }

    /// The first worker goes on as if nothing had happened. Gives what it was refused.
    fn wake(&mut self) -> Vec<Refused> {
        std::fs::write(self.directory.path().join("go"), "").expect("a file");
        signal(self.first.id(), "CONT").expect("it goes on");
        let log = self.directory.path().join("first.log");
        // The completion, six other writes, a child, and two keys of state.
        until("it has tried everything", || {
            let refused = read_log(&log).unwrap_or_default();
            (refused.len() == 10).then_some(refused)
        })
    }

    /// The first worker ends, so that it does not claim the request a second time by right.
    fn send_away(&mut self) {
        drop(self.first.stdin.take());
        until("the first worker ends", || {
            self.first.try_wait().expect("it can be asked")
        });
    }

    /// What is in the history once all is over: one call, one result, and nothing of the late worker.
    fn check_history(&mut self, outcome: Option<&str>) {
        let path = format!("/v1/sessions/{}/messages?view=trace", self.session);
        let trace = self.local.get(&path).expect("a trace");
        let items = trace["messages"].as_array().cloned().unwrap_or_default();
        let of = |kind: &str| items.iter().filter(|item| item["kind"] == kind).count();
        assert_eq!((of("tool_call"), of("tool_result")), (1, 1), "{trace}");
        assert!(!trace.to_string().contains("late"), "{trace}");
        let result = items.iter().find(|item| item["kind"] == "tool_result");
        let result = result.expect("there is one");
        if let Some(outcome) = outcome {
            assert_eq!(result["outcome"], outcome, "{result}");
        }
        let path = format!("/v1/sessions/{}/state", self.session);
        let state = self.local.get(&path).expect("the state");
        assert_eq!(state["state"], json!({}));
        let path = format!("/v1/sessions/{}/records?limit=1000", self.session);
        let records = self.local.get(&path).expect("the records");
        let count = |act: &str| records.to_string().matches(&format!("\"{act}\"")).count();
        assert_eq!(count("request_ended"), 1, "{records}");
        assert_eq!(count("request_started"), 1, "{records}");
        let tree = format!("/v1/sessions/{}/tree", self.session);
        let tree = self.local.get(&tree).expect("the tree");
        assert_eq!(tree["tasks"].as_array().map(Vec::len), Some(1), "{tree}");
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        drop(self.first.stdin.take());
        self.first.kill().unwrap_or_default();
        drop(self.first.wait());
    }
}

/// Every write was refused, and each refusal says which fence counts.
#[track_caller]
fn check_refused(refused: &[Refused], codes: &[&str], fence: Option<u64>) {
    let mut tried: Vec<&str> = refused.iter().map(|one| one.what.as_str()).collect();
    tried.sort_unstable();
    tried.dedup();
    let all = [
        "complete",
        "fail",
        "heartbeat",
        "holds",
        "items",
        "spawn",
        "state",
    ];
    assert_eq!(tried, all);
    for one in refused {
        assert_eq!(one.status, 409, "{one:?}");
        let code = one.problem["code"].as_str().unwrap_or_default();
        assert!(codes.contains(&code), "{one:?}");
        if let Some(fence) = fence {
            assert_eq!(one.problem["current"], fence, "{one:?}");
        }
    }
}

/// The hold that the server opened because nobody knows whether the action ran.
fn reconcile(scene: &mut Scene) -> String {
    assert!(scene.claim().is_none(), "people are asked first");
    let request = scene.read("requests", &scene.request.clone());
    assert_eq!(request["status"], "held");
    let holds = request["holds"].as_array().expect("a list").clone();
    assert_eq!(holds.len(), 1, "{request}");
    assert_eq!(holds[0]["kind"], "reconcile");
    text(&holds[0], "id")
}

fn decide(scene: &mut Scene, hold: &str, body: &Value) {
    let path = format!("/v1/holds/{hold}/decision");
    let answer = scene.boss.post(&path, "decision", body).expect("an answer");
    answer.done().expect("it is decided");
}

#[test]
fn an_idempotent_call_is_made_again_under_the_same_key() {
    let mut scene = Scene::lost(&statehold(), true);
    let claimed = scene.claim().expect("it is free");
    assert_eq!(claimed["fence"], 2);
    let key = text(&claimed["calls"][0], "id");
    assert_eq!(scene.effects(), [key.as_str()]);
    let refused = scene.wake();
    check_refused(&refused, &["stale_fence"], Some(2));
    scene.run_again(&key);
    let done = json!({
        "fence": 2, "output": "paid",
        "items": [{"kind": "tool_result", "call_id": key, "result": "paid"}],
    });
    scene.write("complete", &done).done().expect("it is ours");
    assert_eq!(scene.effects(), [key.clone(), key]);
    scene.check_history(Some("ran"));
    println!(
        "idempotent: {} late writes refused, the same key twice",
        refused.len()
    );
}

#[test]
fn a_call_that_may_have_run_is_asked_about_and_run_again_if_a_person_says_so() {
    let mut scene = Scene::lost(&statehold(), false);
    let hold = reconcile(&mut scene);
    decide(&mut scene, &hold, &json!({"decision": "approve"}));
    let claimed = scene.claim().expect("it is free");
    assert_eq!(claimed["fence"], 2);
    let call = &claimed["calls"][0];
    let key = text(call, "id");
    assert_eq!(scene.effects(), [key.as_str()], "the same key");
    let refused = scene.wake();
    check_refused(&refused, &["stale_fence"], Some(2));
    scene.run_again(&key);
    let done = json!({
        "fence": 2, "output": "paid",
        "items": [{"kind": "tool_result", "call_id": key, "result": "paid"}],
    });
    scene.write("complete", &done).done().expect("it is ours");
    assert_eq!(scene.effects(), [key.clone(), key]);
    scene.check_history(Some("ran"));
    println!("reconcile, approve: {} late writes refused", refused.len());
}

#[test]
fn a_call_that_ran_is_not_run_again() {
    let mut scene = Scene::lost(&statehold(), false);
    let hold = reconcile(&mut scene);
    let ran = json!({"decision": "respond", "content": {"outcome": "ran", "result": "paid"}});
    decide(&mut scene, &hold, &ran);
    let claimed = scene.claim().expect("it is free");
    let key = text(&claimed["calls"][0], "id");
    assert_eq!(claimed["calls"][0]["state"], "confirmed");
    let told = claimed["decisions"]
        .as_array()
        .expect("a list")
        .last()
        .cloned();
    let told = told.expect("the decision");
    assert_eq!(told["decision"]["content"]["result"], "paid", "{told}");
    let refused = scene.wake();
    check_refused(&refused, &["stale_fence"], Some(2));
    let done = json!({
        "fence": 2, "output": "paid",
        "items": [{"kind": "tool_result", "call_id": key, "result": "paid"}],
    });
    scene.write("complete", &done).done().expect("it is ours");
    assert_eq!(scene.effects(), [key]);
    scene.check_history(Some("ran"));
    println!(
        "reconcile, respond ran: {} late writes refused",
        refused.len()
    );
}

#[test]
fn a_call_that_did_not_run_and_must_not_is_refused() {
    let mut scene = Scene::lost(&statehold(), false);
    let hold = reconcile(&mut scene);
    // It wakes while people think: its lease is gone, and nobody else has one yet.
    let refused = scene.wake();
    check_refused(&refused, &["not_lease_holder", "not_leased"], None);
    scene.send_away();
    decide(&mut scene, &hold, &json!({"decision": "reject"}));
    let claimed = scene.claim();
    let Some(claimed) = claimed else {
        panic!("the second worker gets it, and not the first");
    };
    let key = text(&claimed["calls"][0], "id");
    assert_eq!(claimed["calls"][0]["state"], "refused");
    let fence = claimed["fence"].clone();
    let item = |outcome: &str| json!({"kind": "tool_result", "call_id": key, "result": "no", "outcome": outcome});
    let ran = json!({"fence": fence, "output": "paid", "items": [item("ran")]});
    let answer = scene.write("complete", &ran);
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (409, "call_not_released")
    );
    let done = json!({"fence": fence, "output": "not paid", "items": [item("refused")]});
    scene.write("complete", &done).done().expect("it is ours");
    assert_eq!(scene.effects(), [key]);
    scene.check_history(Some("refused"));
    println!("reconcile, reject: {} late writes refused", refused.len());
}
