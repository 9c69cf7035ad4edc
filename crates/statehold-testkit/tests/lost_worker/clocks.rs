//! Clocks that are set an hour forwards and back while holds, leases and lives are open, and servers that
//! start with an earlier clock than they had: what expired stays expired, and nothing is approved late.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use statehold_testkit::http::{Patient, PlainAnswer, ServerProcess};
use statehold_testkit::workload::Random;

use super::{statehold, text};

const ROUNDS: usize = 160;
const KILL_EVERY: usize = 40;
const HOUR: i64 = 3_600;

struct World {
    directory: tempfile::TempDir,
    server: Option<ServerProcess>,
    local: Patient,
    calls: usize,
}

impl World {
    fn new(program: &Path) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let data = directory.path().join("data");
        std::fs::create_dir_all(&data).expect("a directory");
        let mut world = Self {
            local: Patient::new(&data, None),
            directory,
            server: None,
            calls: 0,
        };
        world.start(program, 0);
        world
    }

    fn start(&mut self, program: &Path, offset: i64) {
        let (data, log) = (
            self.directory.path().join("data"),
            self.directory.path().join("log"),
        );
        let server = ServerProcess::start_with_clock(program, &data, &log, offset);
        self.server = Some(server.expect("it starts"));
    }

    fn kill(&mut self) {
        let server = self.server.take().expect("it runs");
        server.kill().expect("it ran");
    }

    fn post(&mut self, path: &str, body: &Value) -> PlainAnswer {
        self.calls += 1;
        let key = format!("call-{}", self.calls);
        self.local.post(path, &key, body).expect("an answer")
    }

    fn done(&mut self, path: &str, body: &Value) -> Value {
        let answer = self.post(path, body);
        answer
            .done()
            .unwrap_or_else(|error| panic!("{path}: {error}"))
    }

    fn get(&mut self, path: &str) -> Value {
        self.local.get(path).expect("it is there")
    }

    fn step(&mut self, seconds: i64) {
        let body = json!({"step_seconds": seconds}).to_string();
        let answer = self.local.call("POST", "/v1/dev/clock", &[], &body);
        answer.expect("an answer").done().expect("it is moved");
    }

    /// A session with a request that a worker has for a day.
    fn at_work(&mut self, life: Option<u64>) -> (String, Value) {
        let mut body = json!({"app": "demo", "user": "ann"});
        if let Some(life) = life {
            body["ttl_seconds"] = json!(life);
        }
        let session = text(&self.done("/v1/sessions", &body), "id");
        let path = format!("/v1/sessions/{session}/requests");
        let body = json!({"agent": "payer", "input": "x", "lease": {"ttl_seconds": 86_400}});
        let request = self.done(&path, &body);
        (session, request)
    }

    fn ask(&mut self, request: &Value, seconds: Option<u64>) -> Value {
        let mut body = json!({
            "fence": request["fence"], "kind": "approval", "title": "Pay?",
            "action": {"tool": "pay", "args": {}, "idempotent": true},
        });
        if let Some(seconds) = seconds {
            body["expires_in_seconds"] = json!(seconds);
        }
        self.done(
            &format!("/v1/requests/{}/holds", text(request, "id")),
            &body,
        )
    }

    fn approve(&mut self, hold: &Value) -> PlainAnswer {
        let body = json!({"decision": "approve", "digest": hold["action"]["digest"]});
        self.post(&format!("/v1/holds/{}/decision", text(hold, "id")), &body)
    }

    fn status(&mut self, hold: &Value) -> String {
        let read = self.get(&format!("/v1/holds/{}", text(hold, "id")));
        text(&read, "status")
    }
}

#[test]
fn what_expired_stays_expired_whatever_the_clock_says_afterwards() {
    let program = statehold();
    let mut world = World::new(&program);
    let (session, request) = world.at_work(None);
    let (mortal, _) = world.at_work(Some(1_800));
    let late = world.ask(&request, Some(1_800));
    let open = world.ask(&request, None);
    world.step(HOUR);
    for (offset, is_killed) in [
        (0, false),
        (-2 * HOUR, false),
        (-HOUR, true),
        (-HOUR, false),
    ] {
        if is_killed {
            world.kill();
            world.start(&program, offset);
        } else {
            world.step(offset);
        }
        assert_eq!(world.status(&late), "expired", "offset {offset}");
        let answer = world.approve(&late);
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (410, "hold_expired")
        );
        let read = world.get(&format!("/v1/sessions/{mortal}"));
        assert_eq!(read["status"], "closed", "offset {offset}");
        assert_eq!(world.status(&open), "open");
    }
    // A hold that is opened now has its time from the last commit on, not from the clock that went back.
    let short = world.ask(&request, Some(60));
    let records = world.get(&format!("/v1/sessions/{session}/records?limit=1000"));
    check_records(&records);
    assert_eq!(world.approve(&short).status, 200);
    assert_eq!(world.approve(&open).status, 200);
    // The lease was given for a day and is there through all of it.
    let read = world.get(&format!("/v1/requests/{}", text(&request, "id")));
    assert_eq!(read["status"], "running");
}

#[test]
fn clocks_that_jump_an_hour_either_way_approve_nothing_late() {
    let program = statehold();
    let mut world = World::new(&program);
    let mut random = Random::new(5);
    let (session, request) = world.at_work(None);
    let mut open: Vec<Value> = Vec::new();
    let (mut told, mut kills) = (BTreeMap::new(), 0);
    for round in 0..ROUNDS {
        if open.len() < 6 {
            let seconds = [None, Some(600), Some(1_800), Some(5_400), Some(9_000)];
            let at = usize::try_from(random.below(5)).unwrap_or(0);
            open.push(world.ask(&request, seconds[at]));
        }
        let step = [-HOUR, HOUR, HOUR, -HOUR, 1_200, -300, 60, 0];
        let at = usize::try_from(random.below(8)).unwrap_or(0);
        if round % KILL_EVERY == KILL_EVERY - 1 {
            world.kill();
            kills += 1;
            world.start(&program, step[at] - HOUR);
        } else {
            world.step(step[at]);
        }
        if random.below(3) > 0 {
            let at = usize::try_from(random.below(open.len() as u64)).unwrap_or(0);
            let hold = open.swap_remove(at);
            let answer = world.approve(&hold);
            assert!(matches!(answer.status, 200 | 410), "{answer:?}");
            told.insert(text(&hold, "id"), answer.status);
        }
    }
    let path = format!("/v1/sessions/{session}/records?limit=1000");
    let records = world.get(&path);
    let decided = check_records(&records);
    for (hold, status) in &told {
        let wanted = if *status == 200 {
            "approved"
        } else {
            "expired"
        };
        assert_eq!(
            decided.get(hold).map(String::as_str),
            Some(wanted),
            "{hold}"
        );
    }
    let count = |word: &str| decided.values().filter(|status| *status == word).count();
    println!(
        "{ROUNDS} steps of the clock, {kills} restarts with another: {} holds approved in time, {} \
         expired, {} records with times that never go back",
        count("approved"),
        count("expired"),
        records["records"].as_array().map_or(0, Vec::len),
    );
    assert!(
        count("approved") > 10 && count("expired") > 10,
        "{decided:?}"
    );
}

/// Times never go back, numbers have no gap, each hold is decided once, and approved before its deadline
/// only. Gives how each ended.
fn check_records(records: &Value) -> BTreeMap<String, String> {
    let (mut last, mut deadlines, mut decided) = (i64::MIN, BTreeMap::new(), BTreeMap::new());
    let records = records["records"].as_array().expect("a list");
    for (record, seq) in records.iter().zip(1_u64..) {
        assert_eq!(record["seq"], seq);
        let at = record["at"].as_i64().expect("a time");
        assert!(at >= last, "record {seq} is earlier than the one before");
        last = at;
        for event in record["events"].as_array().into_iter().flatten() {
            if event["act"] == "hold_opened" {
                deadlines.insert(text(event, "hold"), event["deadline"].as_i64());
            }
            if event["act"] == "hold_decided" {
                let (hold, status) = (text(event, "hold"), text(&event["decision"], "status"));
                let deadline = deadlines.get(&hold).copied().flatten();
                match status.as_str() {
                    "approved" => assert!(deadline.is_none_or(|end| at < end), "{hold} late"),
                    "expired" => assert!(deadline.is_some_and(|end| at >= end), "{hold} early"),
                    other => panic!("{hold} is {other}"),
                }
                let again = decided.insert(hold.clone(), status);
                assert_eq!(again, None, "{hold} was decided twice");
            }
        }
    }
    decided
}
