//! A moderate tree on the real binary: after every call the tree that clients read is compared with
//! what follows from its requests and holds, and with what the caller did.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use statehold_testkit::http::{Patient, ServerProcess, built_program};
use statehold_testkit::workload::Random;

/// Calls that change something.
const CALLS: usize = 300;
const DEPTH_MAX: usize = 6;
const FAN_OUT_MAX: usize = 6;

fn statehold() -> PathBuf {
    built_program(Path::new(env!("CARGO_BIN_EXE_tool_worker")))
}

/// The real server with a bug of the core.
fn with_bug(directory: &Path, name: &str) -> PathBuf {
    let path = directory.join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_mutant_server"), &path).expect("a link");
    path
}

#[derive(Debug, Clone)]
struct Branch {
    id: String,
    parent: Option<String>,
    depth: usize,
    fence: u64,
}

/// What the caller knows, from what it did.
struct Grower {
    caller: Patient,
    random: Random,
    session: String,
    live: Vec<Branch>,
    holds: BTreeMap<String, String>,
    compared: usize,
    opened: usize,
    calls: usize,
}

#[test]
fn the_tree_that_clients_read_is_right_after_every_call() {
    let directory = tempfile::tempdir().expect("a directory");
    let grower = storm(&statehold(), directory.path()).expect("it is right");
    println!(
        "{} calls over HTTP, {} holds: {} statuses of the tree compared",
        grower.calls, grower.opened, grower.compared
    );
    assert!(grower.opened > 50, "{}", grower.opened);
}

#[test]
fn a_server_that_wakes_too_many_or_none_is_noticed() {
    for bug in ["unpause-all", "lost-wake", "skip-ancestor"] {
        let directory = tempfile::tempdir().expect("a directory");
        let program = with_bug(directory.path(), bug);
        let said = storm(&program, directory.path()).err();
        println!("{bug}: {said:?}");
        assert!(said.is_some_and(|said| said.contains("should be")), "{bug}");
    }
}

fn storm(program: &Path, directory: &Path) -> Result<Grower, String> {
    let data = directory.join("data");
    std::fs::create_dir_all(&data).expect("a directory");
    let _server = ServerProcess::start(program, &data, &directory.join("log")).expect("it starts");
    let mut caller = Patient::new(&data, None);
    let body = json!({"app": "storm", "user": "ann"});
    let made = caller.post("/v1/sessions", "session", &body);
    let session = made.expect("an answer").json()["id"].to_string();
    let mut grower = Grower {
        caller,
        random: Random::new(11),
        session: session.trim_matches('"').to_owned(),
        live: Vec::new(),
        holds: BTreeMap::new(),
        compared: 0,
        opened: 0,
        calls: 0,
    };
    for _ in 0..CALLS {
        grower.act();
        grower.compare()?;
    }
    Ok(grower)
}

impl Grower {
    fn post(&mut self, path: &str, body: &Value) -> Value {
        self.calls += 1;
        let key = format!("call-{}", self.calls);
        let answer = self.caller.post(path, &key, body).expect("an answer");
        answer
            .done()
            .unwrap_or_else(|error| panic!("{path} {body}: {error}"))
    }

    fn act(&mut self) {
        if self.live.is_empty() {
            return self.spawn(None);
        }
        let at = self.random.below(self.live.len() as u64);
        let branch = self.live[usize::try_from(at).expect("it is small")].clone();
        let holds: Vec<String> = self.holds.keys().cloned().collect();
        let has_hold = self.holds.values().any(|request| *request == branch.id);
        let children = self
            .live
            .iter()
            .filter(|other| other.parent.as_ref() == Some(&branch.id))
            .count();
        match self.random.below(20) {
            0..6 if branch.depth < DEPTH_MAX && children < FAN_OUT_MAX => self.spawn(Some(&branch)),
            6..11 => {
                let body = json!({"fence": branch.fence, "kind": "question", "title": "?"});
                let hold = self.post(&format!("/v1/requests/{}/holds", branch.id), &body);
                let id = hold["id"].as_str().expect("an id").to_owned();
                self.holds.insert(id, branch.id);
                self.opened += 1;
            }
            11..17 if !holds.is_empty() => {
                let at = self.random.below(holds.len() as u64);
                let hold = &holds[usize::try_from(at).expect("it is small")];
                let body = match self.random.below(8) {
                    0 => json!({"decision": "dismiss"}),
                    1..3 => json!({"decision": "reject"}),
                    _ => json!({"decision": "respond", "content": "so"}),
                };
                self.post(&format!("/v1/holds/{hold}/decision"), &body);
                let request = self.holds.remove(hold).expect("it was open");
                if body["decision"] == "dismiss" {
                    self.end(&request);
                }
            }
            17 if branch.depth > 1 => {
                self.post(&format!("/v1/requests/{}/cancel", branch.id), &json!({}));
                self.end(&branch.id);
            }
            18 if branch.depth > 0 && !has_hold => {
                let body =
                    json!({"fence": branch.fence, "error": "it broke", "cancel_children": true});
                self.post(&format!("/v1/requests/{}/fail", branch.id), &body);
                self.end(&branch.id);
            }
            _ if branch.depth > 0 && !has_hold && children == 0 => {
                let body = json!({"fence": branch.fence, "output": "done"});
                self.post(&format!("/v1/requests/{}/complete", branch.id), &body);
                self.end(&branch.id);
            }
            _ => {}
        }
    }

    fn spawn(&mut self, parent: Option<&Branch>) {
        let agent = format!("agent-{}", self.random.below(3));
        let mut body = json!({"agent": agent, "input": "go", "lease": {"ttl_seconds": 3600}});
        if let Some(parent) = parent {
            body["parent_request_id"] = json!(parent.id);
            body["parent_fence"] = json!(parent.fence);
        }
        let made = self.post(&format!("/v1/sessions/{}/requests", self.session), &body);
        self.live.push(Branch {
            id: made["id"].as_str().expect("an id").to_owned(),
            parent: parent.map(|parent| parent.id.clone()),
            depth: parent.map_or(0, |parent| parent.depth + 1),
            fence: made["fence"].as_u64().expect("a fence"),
        });
    }

    /// A request has ended, and everything below it.
    fn end(&mut self, request: &str) {
        let mut ended = vec![request.to_owned()];
        while let Some(one) = ended.pop() {
            self.holds.retain(|_, of| *of != one);
            let below = self.live.iter();
            let below = below.filter(|other| other.parent.as_deref() == Some(one.as_str()));
            ended.extend(below.map(|other| other.id.clone()));
            self.live.retain(|other| other.id != one);
        }
    }

    fn compare(&mut self) -> Result<(), String> {
        let path = format!("/v1/sessions/{}/tree", self.session);
        let tree = self.caller.get(&path).expect("a tree");
        let mut found = Found::default();
        found.tasks_of(&tree["tasks"], None);
        let wanted: BTreeSet<&String> = self.holds.keys().collect();
        let open: BTreeSet<&String> = found.open.iter().map(|(hold, _)| hold).collect();
        if open != wanted {
            return Err(format!("{open:?} are open and should be {wanted:?}"));
        }
        let live: BTreeSet<&String> = self.live.iter().map(|branch| &branch.id).collect();
        let shown: BTreeSet<&String> = found.live.keys().collect();
        if shown != live {
            return Err(format!("{shown:?} are live and should be {live:?}"));
        }
        self.compared += found.compare()?;
        let session = self.caller.get(&format!("/v1/sessions/{}", self.session));
        let session = session.expect("a session");
        let is_paused = session["status"] == "paused";
        if is_paused == open.is_empty() {
            return Err(format!("{session} should be paused iff a hold is open"));
        }
        // Ancestors list what is pending below them under the ids of the leaves.
        if let Some(pending) = session["pending"].as_array() {
            let ids = pending.iter().filter_map(|hold| hold["id"].as_str());
            let ids: BTreeSet<String> = ids.map(str::to_owned).collect();
            let is_right = ids.iter().all(|id| self.holds.contains_key(id))
                && ids.len() == self.holds.len().min(100);
            if !is_right {
                return Err(format!("{ids:?} are pending and should be {wanted:?}"));
            }
        }
        Ok(())
    }
}

/// What a tree says, request by request.
#[derive(Default)]
struct Found {
    /// Live requests: task, parent, status.
    live: BTreeMap<String, (String, Option<String>, String)>,
    open: Vec<(String, String)>,
    tasks: BTreeMap<String, String>,
}

impl Found {
    fn tasks_of(&mut self, tasks: &Value, parent: Option<&str>) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        for task in tasks.as_array().into_iter().flatten() {
            self.tasks.insert(text(&task["id"]), text(&task["status"]));
            for request in task["requests"].as_array().into_iter().flatten() {
                let (id, status) = (text(&request["id"]), text(&request["status"]));
                let is_final = matches!(status.as_str(), "completed" | "failed" | "cancelled");
                for hold in request["holds"].as_array().into_iter().flatten() {
                    if hold["status"] == "open" {
                        self.open.push((text(&hold["id"]), id.clone()));
                    }
                }
                self.tasks_of(&request["tasks"], Some(&id));
                if !is_final {
                    let known = (text(&task["id"]), parent.map(str::to_owned), status);
                    self.live.insert(id, known);
                }
            }
        }
    }

    fn is_paused(&self, request: &str) -> bool {
        let below = self.live.iter();
        let mut below = below.filter(|(_, (_, parent, _))| parent.as_deref() == Some(request));
        self.open.iter().any(|(_, of)| of == request) || below.any(|(id, _)| self.is_paused(id))
    }

    fn compare(&self) -> Result<usize, String> {
        for (id, (_, _, status)) in &self.live {
            let is_held = self.open.iter().any(|(_, of)| of == id);
            let has_children = self
                .live
                .values()
                .any(|(_, parent, _)| parent.as_ref() == Some(id));
            let wanted = match (is_held, has_children) {
                (true, _) => "held",
                (false, true) => "waiting",
                (false, false) => "running",
            };
            if status != wanted {
                return Err(format!("{id} is {status} and should be {wanted}"));
            }
        }
        for (task, status) in &self.tasks {
            if matches!(status.as_str(), "completed" | "failed" | "cancelled") {
                continue;
            }
            let live = self.live.iter().find(|(_, (of, _, _))| of == task);
            let wanted = match live {
                None => "idle",
                Some((id, _)) if self.is_paused(id) => "paused",
                Some(_) => "running",
            };
            if status != wanted {
                return Err(format!("{task} is {status} and should be {wanted}"));
            }
        }
        Ok(self.live.len() + self.tasks.len())
    }
}
