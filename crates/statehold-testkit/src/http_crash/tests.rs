//! The comparison is shown sound data and every kind of loss.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::log::{self, Ack, Asked, Entry, LogWriter, Op, sha256};
use super::verify::{Covered, FeedEvent, Found, FoundSession, verify, verify_chain};

const SESSION: &str = "ses_1";

/// A record as the endpoint lists it. The text is the canonical form, spelled out.
fn record(seq: usize, prev: &str, command: &str, events: &str) -> Value {
    let text = format!(
        "{{\"at\":{},\"command\":\"{command}\",\"events\":{events},\"prev_hash\":\"{prev}\",\
         \"principal\":\"local\",\"seq\":{seq},\"session\":\"{SESSION}\",\"v\":1}}",
        1_000 + seq
    );
    let parsed: Value = serde_json::from_str(&text).expect("JSON");
    // Listed in another order, so that the order of the answer means nothing.
    json!({
        "v": 1, "seq": seq, "at": parsed["at"], "session": SESSION, "principal": "local",
        "command": command, "events": parsed["events"], "prev_hash": prev,
        "hash": sha256(text.as_bytes()),
    })
}

fn records() -> Vec<Value> {
    let turn = r#"[{"act":"task_opened","task":"tsk_1"},{"act":"request_started","request":"req_1","task":"tsk_1"},{"act":"request_leased","request":"req_1"},{"act":"items_appended","items":[{"id":"itm_1","kind":"message","role":"user","seq":1},{"id":"itm_2","kind":"message","role":"assistant","seq":2}],"request":"req_1"},{"act":"request_ended","outcome":"completed","request":"req_1"}]"#;
    let start = r#"[{"act":"request_started","request":"req_2","task":"tsk_1"},{"act":"request_leased","request":"req_2"},{"act":"items_appended","items":[{"id":"itm_3","kind":"message","role":"user","seq":3}],"request":"req_2"}]"#;
    let hold = r#"[{"act":"hold_opened","hold":"hld_1","request":"req_2"}]"#;
    let decide = r#"[{"act":"hold_decided","hold":"hld_1","request":"req_2"}]"#;
    let put = r#"[{"act":"state_put","key":"k1"}]"#;
    let steps = [
        ("create_session", "[]"),
        ("start_request", turn),
        ("start_request", start),
        ("open_hold", hold),
        ("decide_hold", decide),
        ("put_state", put),
    ];
    let mut records: Vec<Value> = Vec::new();
    for (index, (command, events)) in steps.iter().enumerate() {
        let prev = records.last().map_or_else(
            || "0".repeat(64),
            |record| record["hash"].as_str().expect("a hash").to_owned(),
        );
        records.push(record(index + 1, &prev, command, events));
    }
    records
}

fn asked(op: Op, marks: &[&str]) -> Asked {
    Asked {
        op,
        session: Some(SESSION.to_owned()),
        marks: marks.iter().map(|mark| (*mark).to_owned()).collect(),
    }
}

fn ack(op: Op, revision: u64, marks: &[&str]) -> Ack {
    Ack {
        asked: asked(op, marks),
        status: 200,
        revision: Some(revision),
        request: None,
        hold: None,
        items: Vec::new(),
        state: BTreeMap::new(),
        name: None,
        is_followed: false,
        keyed: None,
        digest: sha256(b"{}"),
        attempts: 1,
    }
}

fn acks() -> Vec<Ack> {
    let mut create = ack(Op::Create, 1, &[]);
    create.name = Some("first".to_owned());
    let mut turn = ack(Op::Turn, 2, &["0.0.1.0", "0.0.1.1"]);
    turn.request = Some("req_1".to_owned());
    turn.items = vec![("itm_2".to_owned(), 2)];
    turn.attempts = 2;
    let mut start = ack(Op::Start, 3, &["0.0.2.0"]);
    start.request = Some("req_2".to_owned());
    let mut hold = ack(Op::Hold, 4, &[]);
    hold.hold = Some("hld_1".to_owned());
    let mut decide = ack(Op::Decide, 5, &[]);
    decide.hold = Some("hld_1".to_owned());
    let mut patch = ack(Op::Patch, 6, &[]);
    patch.state.insert("k1".to_owned(), (6, json!("value")));
    vec![create, turn, start, hold, decide, patch]
}

fn entries() -> Vec<Entry> {
    let acks = acks().into_iter();
    let mut entries: Vec<Entry> = acks.map(|ack| Entry::Ack(Box::new(ack))).collect();
    entries.push(Entry::Lost(asked(Op::Items, &["0.0.3.0", "0.0.3.1"])));
    entries.push(Entry::Done);
    entries
}

fn found() -> Found {
    let records = records();
    let feed = records.iter().zip(1..).map(|(record, revision)| FeedEvent {
        revision,
        command: record["command"].as_str().expect("a command").to_owned(),
    });
    let session = FoundSession {
        is_gone: false,
        revision: 6,
        name: Some("first".to_owned()),
        feed: Some(feed.collect()),
        items: vec![
            json!({ "id": "itm_1", "seq": 1, "content": "mark:0.0.1.0; a" }),
            json!({ "id": "itm_2", "seq": 2, "result": { "x": ["mark:0.0.1.1; b"] } }),
            json!({ "id": "itm_3", "seq": 3, "content": "mark:0.0.2.0; c" }),
        ],
        state: BTreeMap::from([("k1".to_owned(), (6, json!("value")))]),
        records,
    };
    Found {
        sessions: BTreeMap::from([(SESSION.to_owned(), session)]),
        count: 0,
        count_before: 0,
    }
}

/// Shows the comparison sound data after `damage`, and requires that it says `complaint`.
#[track_caller]
fn notices(complaint: &str, damage: impl Fn(&mut Vec<Entry>, &mut Found, &str)) {
    let (mut entries, mut found) = (entries(), found());
    damage(&mut entries, &mut found, SESSION);
    let error = verify(&entries, &found).expect_err("this is damage");
    let said = format!("{error:#}");
    assert!(
        said.contains(complaint),
        "expected `{complaint}`, got: {said}"
    );
}

/// The same, for damage of the session.
#[track_caller]
fn notices_in_session(complaint: &str, damage: impl Fn(&mut FoundSession)) {
    notices(complaint, |_, found, session| {
        damage(found.sessions.get_mut(session).expect("the session"));
    });
}

#[test]
fn sound_data_is_found_sound() {
    let covered = verify(&entries(), &found()).expect("sound");
    let expected = Covered {
        acknowledged: 6,
        repeated: 1,
        lost: 1,
        lost_but_done: 0,
        refused: 0,
        sessions: 1,
        deleted: 0,
        records: 6,
        marks: 3,
        feed_events: 6,
    };
    assert_eq!(covered, expected);
}

#[test]
fn a_lost_acknowledgement_is_noticed() {
    notices("ses_1 was acknowledged and is gone", |_, found, session| {
        found.sessions.remove(session);
    });
    notices_in_session("it was acknowledged and is gone", |found| {
        found.is_gone = true;
    });
    notices_in_session(
        "revision 6 was acknowledged and the session is at 5",
        |found| {
            found.records.pop();
            found.revision = 5;
        },
    );
    notices_in_session("content 0.0.2.0 was acknowledged and is gone", |found| {
        found.items.pop();
    });
    notices_in_session("item itm_2 with number 2 was acknowledged", |found| {
        found.items[1]["id"] = json!("itm_9");
    });
    notices_in_session("state k1 was acknowledged and is gone", |found| {
        found.state.clear();
    });
    notices_in_session("state k1 was acknowledged as \"value\" at 6", |found| {
        found.state.insert("k1".to_owned(), (6, json!("other")));
    });
    notices_in_session("it was created as first", |found| found.name = None);
    notices("no record says so", |entries, _, _| {
        if let Entry::Ack(ack) = &mut entries[1] {
            ack.request = Some("req_2".to_owned());
        }
    });
}

#[test]
fn two_acknowledgements_of_one_revision_are_noticed() {
    notices("revision 2 was acknowledged after 2", |entries, _, _| {
        let again = entries[1].clone();
        entries.insert(2, again);
    });
}

#[test]
fn content_that_is_there_twice_or_in_part_is_noticed() {
    let item = |mark: &str| json!({ "id": mark, "seq": 9, "content": format!("mark:{mark}; x") });
    notices_in_session("content 0.0.1.0 is there 2 times", |found| {
        found.items.push(item("0.0.1.0"));
    });
    notices_in_session("the parts are there [0, 1] times", |found| {
        found.items.push(item("0.0.3.1"));
    });
    notices_in_session("content that nobody sent", |found| {
        found.items.push(item("9.9.9.9"));
    });
    notices("refused, and yet there", |entries, _, _| {
        entries.remove(2);
        entries.push(Entry::Refused {
            asked: asked(Op::Start, &["0.0.2.0"]),
            status: 503,
            answer: String::new(),
            is_expected: true,
        });
    });
    let mut found = found();
    let session = found.sessions.get_mut(SESSION).expect("the session");
    session.items.extend([item("0.0.3.0"), item("0.0.3.1")]);
    let covered = verify(&entries(), &found).expect("carried out, and the answer was lost");
    assert_eq!(covered.lost_but_done, 1);
}

#[test]
fn a_broken_chain_is_noticed() {
    notices_in_session("record Some(3) where 2 was due", |found| {
        found.records.remove(1);
    });
    notices_in_session("record 2: its hash is", |found| {
        found.records[1]["principal"] = json!("system");
    });
    notices_in_session("record 3: it does not follow the record before", |found| {
        found.records[2] = record(3, &"1".repeat(64), "start_request", "[]");
    });
    notices_in_session("6 records at revision 7", |found| found.revision = 7);
    notices_in_session("a record without a hash", |found| {
        found.records[0] = json!({ "seq": 1 });
    });
}

#[test]
fn half_a_record_is_noticed() {
    let zeros = "0".repeat(64);
    let check = |complaint: &str, events: &str| {
        let record = record(1, &zeros, "start_request", events);
        let error = verify_chain(SESSION, &[record]).expect_err("half of something");
        let said = format!("{error:#}");
        assert!(
            said.contains(complaint),
            "expected `{complaint}`, got: {said}"
        );
    };
    let started = r#"{"act":"request_started","request":"req_1"}"#;
    let ended = r#"{"act":"request_ended","outcome":"completed","request":"req_1"}"#;
    check(
        "was completed without its output",
        &format!("[{started},{ended}]"),
    );
    check("ended before it started", &format!("[{ended}]"));
    check("started twice", &format!("[{started},{started}]"));
    let item = r#"[{"act":"items_appended","items":[{"kind":"note","seq":2}],"request":"req_1"}]"#;
    check("item 2 where 1 was due", item);
    check(
        "decided before it was opened",
        r#"[{"act":"hold_decided","hold":"hld_1"}]"#,
    );
}

#[test]
fn the_example_of_the_documentation_has_the_hash_that_it_names() {
    let page = include_str!("../../../../docs/formats/record-v1.md");
    let (_, example) = page
        .split_once("out to get the 1076 bytes")
        .expect("the example");
    let text = example
        .split("```")
        .nth(1)
        .expect("its block")
        .replace('\n', "");
    let mut record: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(record["seq"], 5);
    let named = "76f9834d5275dcfdf8b088428179454a41e2b39c990b69dc626b3f0b8a8ba89b";
    assert!(page.contains(named));
    record["hash"] = json!(named);
    // As it is the fifth of its chain, the comparison stops where it must, and not at the hash.
    let error = verify_chain("ses_01a1dc80f00074778000000000000003", &[record.clone()]);
    let said = format!("{:#}", error.expect_err("not the first"));
    assert!(said.contains("record Some(5) where 1 was due"), "{said}");
    record.as_object_mut().expect("an object").remove("hash");
    assert_eq!(sha256(super::verify::canonical(&record).as_bytes()), named);
}

#[test]
fn a_feed_with_a_gap_a_repetition_or_an_early_end_is_noticed() {
    let feed = |damage: fn(&mut Vec<FeedEvent>)| {
        move |found: &mut FoundSession| damage(found.feed.as_mut().expect("a feed"))
    };
    notices_in_session(
        "the feed gave revision 3 where 2 was due",
        feed(|feed| drop(feed.remove(1))),
    );
    notices_in_session(
        "the feed gave revision 2 where 3 was due",
        feed(|feed| feed.insert(2, feed[1].clone())),
    );
    notices_in_session(
        "the feed ended at revision 5 of 6",
        feed(|feed| drop(feed.pop())),
    );
    notices_in_session(
        "the feed said that revision 2 was `fork`",
        feed(|feed| "fork".clone_into(&mut feed[1].command)),
    );
}

#[test]
fn a_deleted_session_must_be_gone() {
    let delete = Entry::Ack(Box::new(ack(Op::Delete, 7, &[])));
    notices("it was deleted and is there", |entries, _, _| {
        entries.push(delete.clone());
    });
    notices(
        "it was deleted and its items are there",
        |entries, found, session| {
            entries.push(delete.clone());
            found.sessions.get_mut(session).expect("it").is_gone = true;
        },
    );
    let (mut entries, mut found) = (entries(), found());
    entries.push(delete);
    let session = found.sessions.get_mut(SESSION).expect("the session");
    session.is_gone = true;
    session.items.clear();
    let covered = verify(&entries, &found).expect("deleted, and gone");
    assert_eq!((covered.deleted, covered.records), (1, 6));
}

#[test]
fn a_counter_that_lost_or_repeated_an_addition_is_noticed() {
    let mut entries = entries();
    entries.push(Entry::Ack(Box::new(ack(Op::Count, 7, &[]))));
    entries.push(Entry::Lost(asked(Op::Count, &[])));
    for (count, is_sound) in [(0, false), (1, true), (2, true), (3, false)] {
        let mut found = found();
        let session = found.sessions.get_mut(SESSION).expect("the session");
        let prev = session.records[5]["hash"]
            .as_str()
            .expect("a hash")
            .to_owned();
        session.records.push(record(7, &prev, "put_state", "[]"));
        session.revision = 7;
        session.feed = None;
        found.count = count;
        let result = verify(&entries, &found);
        assert_eq!(result.is_ok(), is_sound, "{count}: {result:?}");
    }
}

#[test]
fn what_a_client_saw_is_a_failure() {
    notices("a client saw: two answers", |entries, _, _| {
        entries.push(Entry::Problem("two answers".to_owned()));
    });
    notices("nothing spoke against it: busy", |entries, _, _| {
        entries.push(Entry::Refused {
            asked: asked(Op::Turn, &[]),
            status: 409,
            answer: "busy".to_owned(),
            is_expected: false,
        });
    });
}

#[test]
fn a_log_is_read_as_it_was_written_and_a_cut_line_is_left_out() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("log");
    let writer = LogWriter::create(&path).expect("created");
    for entry in entries() {
        writer.write(&entry).expect("written");
    }
    assert_eq!(log::read(&path).expect("read"), entries());
    let bytes = std::fs::read(&path).expect("read");
    let cut = &bytes[..bytes.len() - 4];
    let count = entries().len() - 1;
    assert_eq!(log::parse(cut).expect("read"), entries()[..count]);
    assert!(log::parse(b"").expect("read").is_empty());
    log::parse(b"{\"no\":1}\n").expect_err("a finished line that is no entry");
}
