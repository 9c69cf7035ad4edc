//! Rows that say something else than the log, one at a time: each is reported with its place.

use statehold_core::ids::SessionId;
use statehold_testkit::workload::session_id;

use super::{Whole, names};
use crate::scene::{RUN, check};

/// A change, and words of the place that must be named. `{n}` stands for the n-th session.
const CHANGES: &[(&str, &[&str])] = &[
    // The row of a session.
    ("UPDATE session SET revision = revision - 1 WHERE pk = 1", &["{0}"]),
    ("UPDATE session SET revision = revision + 1 WHERE pk = 1", &["{0}"]),
    ("UPDATE session SET revision = 0 WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET head = zeroblob(32) WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET head = x'00' WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET items_appended = items_appended + 1 WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET tasks_opened = 9 WHERE pk = 4", &["{3}"]),
    ("UPDATE session SET requests_started = 9 WHERE pk = 4", &["{3}"]),
    ("UPDATE session SET last_at = last_at - 1 WHERE pk = 4", &["{3}"]),
    ("UPDATE session SET created_at = created_at - 1 WHERE pk = 4", &["{3}"]),
    ("UPDATE session SET closed = 0 WHERE pk = 6", &["{5}"]),
    ("UPDATE session SET agent = 'other' WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET tenant = 't2' WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET name = X'00006F74686572' WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET name = NULL WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET status = 'running' WHERE pk = 6", &["{5}"]),
    ("UPDATE session SET deleted = 1 WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET ttl_mode = 'fixed', ttl_ms = 1000 WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET ttl_ms = 1000 WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET expires_at = last_at WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET labels = X'00007B7D' WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET last_log = last_log - 1 WHERE pk = 2", &["{1}"]),
    ("UPDATE session SET origin = 0, origin_seq = 0 WHERE pk = 3", &["{2}"]),
    ("UPDATE session SET origin = 1 WHERE pk = 3", &["{2}"]),
    ("UPDATE session SET origin = pk WHERE pk = 3", &["{2}"]),
    ("DELETE FROM session WHERE pk = 6", &["table `log`"]),
    // The log.
    ("DELETE FROM log WHERE seq = 3 AND session = 1", &["log row"]),
    ("DELETE FROM log WHERE session = 5", &["log row"]),
    (
        "UPDATE log SET record = (SELECT record FROM log AS other
         WHERE other.session = 1 AND other.seq = 43 - log.seq)
         WHERE session = 1 AND seq IN (21, 22)",
        &["record 2"],
    ),
    (
        "UPDATE log SET record = (SELECT record FROM log AS other
         WHERE other.session = 3 - log.session AND other.seq = 2)
         WHERE session IN (1, 2) AND seq = 2",
        &["record 2 of session {0}"],
    ),
    (
        "UPDATE log SET (record, bodies) =
         (SELECT record, bodies FROM log WHERE session = 1 AND seq = 2)
         WHERE session = 2 AND seq = 2",
        &["record 2 of session {1}"],
    ),
    (
        "UPDATE log SET bodies = (SELECT bodies FROM log WHERE session = 1 AND seq = 30)
         WHERE session = 1 AND seq = 31",
        &["a payload of record 31 of session {0}"],
    ),
    ("UPDATE log SET bodies = x'' WHERE session = 1 AND seq = 30", &["record 30"]),
    ("UPDATE log SET session = 2 WHERE session = 1 AND seq = 30", &["log row 30"]),
    ("UPDATE log SET seq = 31 WHERE session = 1 AND seq = 30", &["record 30 of session {0}"]),
    ("UPDATE log SET prev = prev - 1 WHERE session = 1 AND seq = 30", &["record 29"]),
    ("UPDATE log SET prev = id WHERE session = 1 AND seq = 30", &["record 30"]),
    ("UPDATE log SET prev = id + 1 WHERE session = 1 AND seq = 30", &["record 30"]),
    ("UPDATE log SET links = x'' WHERE session = 2 AND seq = 3", &["log row 80"]),
    ("UPDATE log SET links = x'00' WHERE session = 2 AND seq = 3", &["record 3"]),
    ("UPDATE log SET exchanges = x'' WHERE session = 2 AND exchanges <> x''", &["log row"]),
    ("UPDATE log SET exchanges = x'00' WHERE session = 2 AND seq = 3", &["record 3"]),
    // What makes seeking fast.
    ("DELETE FROM waypoint", &["table `waypoint`"]),
    ("UPDATE waypoint SET log = log - 1", &["table `waypoint`"]),
    ("UPDATE waypoint SET items_until = items_until + 1", &["table `waypoint`"]),
    ("UPDATE waypoint SET seq = 65", &["table `waypoint`"]),
    (
        "INSERT INTO waypoint SELECT session, seq, items_until, log FROM waypoint",
        &["table `waypoint`"],
    ),
    ("DELETE FROM rewind", &["table `rewind`"]),
    ("UPDATE rewind SET items_kept = items_kept + 1", &["table `rewind`"]),
    ("UPDATE rewind SET session = 1", &["table `rewind`"]),
    // What is open.
    (
        "UPDATE open_task SET body =
         CAST(replace(CAST(body AS TEXT), '\"number\":1', '\"number\":9') AS BLOB)
         WHERE session = 4",
        &["{3}"],
    ),
    ("UPDATE open_task SET body = x'7b7d' WHERE session = 4", &["open_task"]),
    ("UPDATE open_task SET session = 1 WHERE session = 4", &["{3}"]),
    ("UPDATE open_task SET last_log = last_log - 1 WHERE session = 4", &["`open_task` tsk_"]),
    ("DELETE FROM open_task WHERE session = 4", &["{3}"]),
    ("DELETE FROM live_request WHERE session = 4", &["{3}"]),
    ("UPDATE live_request SET queued = 1 - queued WHERE session = 4", &["live request req_"]),
    ("UPDATE live_request SET lease_until = lease_until + 1 WHERE session = 4", &["live request"]),
    ("UPDATE live_request SET agent = 'nobody' WHERE session = 4", &["live request req_"]),
    ("UPDATE live_request SET tenant = 't2' WHERE session = 4", &["live request req_"]),
    ("DELETE FROM open_hold", &["{4}"]),
    ("UPDATE open_hold SET deadline = deadline - 1", &["open hold hld_"]),
    ("UPDATE open_hold SET risk = risk - 1", &["open hold hld_"]),
    ("UPDATE open_hold SET user = zeroblob(16)", &["open hold hld_"]),
    ("UPDATE open_hold SET agent = 'eve'", &["open hold hld_"]),
    ("UPDATE open_hold SET tenant = 't2'", &["open hold hld_"]),
    ("UPDATE open_hold SET request = zeroblob(16)", &["open hold hld_"]),
    // What is over.
    ("DELETE FROM ended_request WHERE rowid = 1", &["ended request req_"]),
    ("UPDATE ended_request SET session = 2 WHERE session = 1", &["ended_request"]),
    (
        "UPDATE ended_request SET body = (SELECT body FROM ended_request WHERE rowid = 2)
         WHERE rowid = 1",
        &["ended request req_"],
    ),
    ("DELETE FROM closed_task WHERE rowid = 1", &["closed task tsk_"]),
    ("UPDATE closed_task SET last_log = 1 WHERE rowid = 1", &["`closed_task` tsk_"]),
    ("DELETE FROM closed_hold", &["closed hold hld_"]),
    (
        "INSERT INTO closed_hold
         SELECT pk + 1000, zeroblob(16), session, request, tenant, user, agent, call, body, result
         FROM closed_hold LIMIT 1",
        &["closed_hold"],
    ),
    ("UPDATE closed_hold SET session = 2", &["closed_hold"]),
    ("UPDATE closed_hold SET request = zeroblob(16)", &["closed hold hld_"]),
    ("UPDATE closed_hold SET tenant = 't2'", &["closed hold hld_"]),
    ("UPDATE closed_hold SET user = zeroblob(16)", &["closed hold hld_"]),
    ("UPDATE closed_hold SET agent = 'eve'", &["closed hold hld_"]),
    // Values.
    (
        "UPDATE state SET value = (SELECT value FROM state WHERE key = 'step') WHERE key = 'lap'",
        &["`lap` of session {0}"],
    ),
    ("UPDATE state SET version = version - 1 WHERE key = 'lap'", &["{0}"]),
    ("DELETE FROM state WHERE key = 'lap'", &["{0}"]),
    (
        "INSERT INTO state SELECT session, 'more', version, bytes, value FROM state WHERE key = 'lap'",
        &["{0}"],
    ),
    (
        "INSERT INTO state SELECT 99, key, version, bytes, value FROM state WHERE key = 'lap'",
        &["table `state`"],
    ),
    (
        "UPDATE task_state SET value = (SELECT value FROM state WHERE key = 'lap')",
        &["the private state of tsk_"],
    ),
    ("DELETE FROM task_state", &["the private state of tsk_"]),
    (
        "INSERT INTO task_state SELECT zeroblob(16), session, request, log, value FROM task_state",
        &["task_state"],
    ),
    ("UPDATE task_state SET log = log - 1", &["the private state of tsk_"]),
    ("DELETE FROM memory WHERE session = 1", &["{0}"]),
    ("UPDATE memory SET exchanges = exchanges + 1 WHERE session = 1", &["{0}"]),
    ("UPDATE memory SET log = log - 1 WHERE session = 1", &["the memory of"]),
    ("UPDATE task_state SET session = session + 1", &["the private state of tsk_"]),
    (
        "UPDATE shared SET value = (SELECT value FROM state WHERE key = 'lap')
         WHERE key = 'app:count'",
        &["app:count"],
    ),
    ("UPDATE shared SET version = version + 1 WHERE key = 'app:count'", &["app:count"]),
    ("UPDATE shared SET revision = 1 WHERE key = 'user:theme'", &["user:theme"]),
    ("UPDATE shared SET value = NULL WHERE key = 'user:theme'", &["user:theme"]),
    ("DELETE FROM shared WHERE key = 'user:theme'", &["user:theme"]),
    (
        "INSERT INTO shared SELECT tenant, app, user, 'app:more', version, value, session, revision,
         principal, at, request FROM shared WHERE key = 'app:count'",
        &["app:more"],
    ),
    (
        "UPDATE blob SET data = (SELECT value FROM state WHERE key = 'lap')",
        &["record 3 of session {3}"],
    ),
    ("DELETE FROM blob", &["record 3"]),
    ("UPDATE blob SET refs = refs + 1", &["table `blob`"]),
    ("INSERT INTO erasure VALUES(2, 'all', 80, 0)", &["{1}"]),
    ("INSERT INTO erasure VALUES(99, 'all', 80, 0)", &["table `erasure`"]),
    // About the file.
    ("UPDATE meta SET value = 'lost' WHERE key = 'kind'", &["`meta`"]),
    ("UPDATE meta SET value = 'first' WHERE key = 'epoch'", &["`meta`"]),
    ("DELETE FROM meta", &["`meta`"]),
];

#[test]
fn every_wrong_row_is_named() {
    let whole = Whole::new();
    let sessions: Vec<SessionId> = (0..6).map(|n| session_id(RUN, n)).collect();
    let mut missed = Vec::new();
    for (sql, place) in CHANGES {
        whole.write(&whole.bytes);
        let changed = whole.conn().execute(sql, []).expect("a statement");
        assert!(changed > 0, "nothing is changed by {sql}");
        let report = check(whole.path()).expect("the file opens");
        let words = place.iter().map(|word| {
            let mut word = (*word).to_owned();
            for (n, session) in sessions.iter().enumerate() {
                word = word.replace(&format!("{{{n}}}"), &session.to_string());
            }
            word
        });
        let words: Vec<String> = words.collect();
        if !names(&report.problems, &words) {
            missed.push(format!(
                "{sql}\nwants {words:?}, found {:?}",
                report.problems
            ));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
    println!("{} wrong rows, each named", CHANGES.len());
}
