//! Rows that are damaged while the server is down: lists leave them out, the damage is told, and everything else
//! goes on.

use std::process::Command;

use rusqlite::Connection;
use serde_json::{Value, json};
use statehold_store::sqlite::FILE_NAME;

use super::{World, statehold, text};

/// A session with a request that a worker has, and a hold.
struct Paused {
    session: String,
    hold: Value,
}

fn pause(world: &World, user: &str) -> Paused {
    let session = world.post("/v1/sessions", &json!({"app": "demo", "user": user}));
    let session = text(&session, "id");
    let body = json!({"agent": "payer", "input": "x", "lease": {"ttl_seconds": 86_400}});
    let request = world.post(&format!("/v1/sessions/{session}/requests"), &body);
    let body = json!({
        "fence": request["fence"], "kind": "approval", "title": "Pay?",
        "action": {"tool": "pay", "args": {"to": user}, "idempotent": true},
    });
    let request = text(&request, "id");
    let hold = world.post(&format!("/v1/requests/{request}/holds"), &body);
    Paused { session, hold }
}

/// A request that waits for a worker.
fn queue(world: &World, session: &str) -> String {
    let body = json!({"agent": "clerk", "input": "x"});
    let request = world.post(&format!("/v1/sessions/{session}/requests"), &body);
    text(&request, "id")
}

impl World {
    /// Stops the server, changes rows, and starts it again.
    fn damage(&mut self, statements: &[&str]) {
        self.stop();
        let file = Connection::open(self.data().join(FILE_NAME)).expect("a database");
        for sql in statements {
            let changed = file.execute(sql, []).expect("a statement");
            assert_eq!(changed, 1, "{sql}");
        }
        drop(file);
        self.start(0);
    }

    fn ids(&self, path: &str, list: &str) -> Vec<String> {
        let page = self.get(path);
        let entries = page[list].as_array();
        let entries = entries.unwrap_or_else(|| panic!("`{list}` in {page}"));
        entries.iter().map(|entry| text(entry, "id")).collect()
    }

    fn metric(&self, name: &str) -> Option<String> {
        let answer = self.call(None, "GET", "/metrics", &Value::Null);
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let mut lines = text.lines();
        let line = lines.find_map(|line| line.strip_prefix(&format!("{name} ")))?;
        Some(line.to_owned())
    }
}

#[test]
fn a_damaged_row_fails_no_list_and_is_counted() {
    let mut world = World::new();
    let paused: Vec<Paused> = ["ann", "bob", "cid", "dan", "eve"]
        .iter()
        .map(|user| pause(&world, user))
        .collect();
    let queued: Vec<String> = paused
        .iter()
        .map(|one| queue(&world, &one.session))
        .collect();
    world.damage(&[
        // Of the first the hold, of the second the session, of the third a queued request.
        "UPDATE open_hold SET body = x'00' WHERE pk = (SELECT min(pk) FROM open_hold)",
        "UPDATE session SET status = 'bent' WHERE pk = 2",
        "UPDATE live_request SET id = x'0102' WHERE session = 3 AND agent = 'clerk'",
        // Of the fourth the record that opened the hold.
        "UPDATE log SET record = x'0001' WHERE session = 4 AND seq = 3",
    ]);
    let holds = world.ids("/v1/holds", "holds");
    let sound: Vec<String> = [2, 4].map(|n| text(&paused[n].hold, "id")).into();
    assert_eq!(sorted(holds), sorted(sound), "the others are listed");
    // Counting reads no records.
    let counts = world.get("/v1/holds/counts");
    assert_eq!(counts["open"], 3, "{counts}");
    let sessions = world.ids("/v1/sessions", "sessions");
    let sound: Vec<String> = [4, 3, 2, 0].map(|n| paused[n].session.clone()).into();
    assert_eq!(sessions, sound);
    let body = json!({"agent": "clerk", "max": 5, "lease_seconds": 60});
    let claimed = world.post("/v1/work/claim", &body);
    let claimed = claimed["requests"].as_array().expect("requests").clone();
    let claimed: Vec<String> = claimed.iter().map(|one| text(one, "id")).collect();
    let sound = [3, 4].map(|n| queued[n].clone()).into();
    assert_eq!(sorted(claimed), sorted(sound), "healthy queues go on");

    let ready = world.get("/readyz");
    assert_eq!(ready["status"], "degraded");
    assert_eq!(ready["damaged_sessions"], 4, "{ready}");
    let counted = world.metric("statehold_sessions_damaged");
    assert_eq!(counted.as_deref(), Some("4"));
    let log = std::fs::read_to_string(world.log()).expect("a log");
    for one in &paused[..4] {
        assert!(log.contains(&one.session), "{} is not named", one.session);
    }
    // The healthy one goes on, and so does the signing of heads: a clean stop signs what is new.
    let body = json!({"decision": "approve", "digest": paused[4].hold["action"]["digest"].clone()});
    let hold = text(&paused[4].hold, "id");
    world.post(&format!("/v1/holds/{hold}/decision"), &body);
    let before = roots(&world);
    world.stop();
    world.start(0);
    assert!(roots(&world) > before, "heads are signed past the damage");
}

#[test]
fn damage_that_only_a_record_read_meets_is_counted() {
    let mut world = World::new();
    let paused = pause(&world, "ann");
    world.damage(&["UPDATE log SET record = x'0001' WHERE seq = 2"]);
    assert_eq!(world.get("/readyz")["status"], "ok", "no read has met it");
    let path = format!("/v1/sessions/{}/records", paused.session);
    let refused = world.call(None, "GET", &path, &Value::Null);
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (500, "data_damaged")
    );
    assert_eq!(world.get("/readyz")["damaged_sessions"], 1);
    // What does not need the record goes on.
    let session = world.get(&format!("/v1/sessions/{}", paused.session));
    assert_eq!(session["status"], "paused");
}

#[test]
fn a_damaged_key_is_refused_and_stops_no_start() {
    let mut world = World::new();
    let body = json!({"roles": ["client"], "user": "ann"});
    let keys = [0, 1].map(|_| text(&world.post("/v1/keys", &body), "key"));
    world.damage(&["UPDATE api_key SET body = x'7b7d' WHERE id = (SELECT min(id) FROM api_key)"]);
    let statuses = keys.map(|key| {
        let answer = world.call(Some(&key), "GET", "/v1/sessions", &Value::Null);
        answer.status
    });
    assert_eq!(statuses, [401, 200]);
    let ready = world.get("/readyz");
    assert_eq!(
        (&ready["status"], &ready["damaged_rows"]),
        (&json!("degraded"), &json!(1))
    );
    let log = std::fs::read_to_string(world.log()).expect("a log");
    assert!(log.contains("the key key_"), "{log}");
    let mut doctor = Command::new(statehold());
    doctor.args(["doctor", "--json", "--url"]);
    doctor.arg(format!("http://{}", world.server().address()));
    doctor.arg("--data").arg(world.data());
    let told = doctor.output().expect("it runs");
    let told: Value = serde_json::from_slice(&told.stdout).expect("JSON");
    let checks = told["checks"].as_array().expect("checks");
    let rows = checks.iter().find(|check| check["check"] == "rows");
    assert_eq!(rows.expect("told")["level"], "bad");
}

fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

/// How many roots the audit stream has.
fn roots(world: &World) -> usize {
    let audit = world.get("/v1/audit/records?limit=200");
    let entries = audit["records"].as_array().expect("entries");
    let is_root = |entry: &&Value| entry.to_string().contains("heads_signed");
    entries.iter().filter(is_root).count()
}
