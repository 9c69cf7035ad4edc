//! The judge, tried on what servers could get wrong.

use serde_json::{Value, json};

use super::judge::{Seen, judge};
use super::people::{Decider, Told};
use crate::http::PlainAnswer;

fn answer(status: u16, body: &Value) -> Told {
    Told::Answer(PlainAnswer {
        status,
        head: String::new(),
        body: body.to_string().into_bytes(),
    })
}

/// A hold that was approved as it should be: group 0 decided, group 1 came late.
fn sound() -> Seen {
    let won = json!({ "status": "approved", "decided_by": "boss0" });
    let late = json!({ "code": "hold_decided", "hold_status": "approved", "decided_by": "boss0" });
    let decider = |group, decision, told: Told| Decider::of(group, decision, vec![told]);
    Seen {
        hold: json!({ "id": "h", "status": "approved", "decision": { "status": "approved" } }),
        request: json!({ "holds": [{ "status": "approved" }] }),
        records: json!([
            { "command": "open_hold", "principal": "key_1", "events": [
                { "act": "hold_opened", "hold": "h", "call": "itm_1" },
                { "act": "request_status_changed", "status": "held" },
            ]},
            { "command": "decide_hold", "principal": "usr_1", "events": [
                { "act": "hold_decided", "hold": "h",
                  "decision": { "status": "approved", "by": "usr_1", "released": "d" } },
                { "act": "request_status_changed", "status": "running" },
            ]},
        ]),
        people: vec![
            decider(0, "approve", answer(200, &won)),
            decider(0, "approve", answer(200, &won)),
            decider(1, "reject", answer(409, &late)),
        ],
        args: json!({ "n": 1 }),
        effects: vec![("itm_1".to_owned(), json!({ "n": 1 }))],
        lost: 0,
        taken_over: 0,
    }
}

#[track_caller]
fn complains(change: impl FnOnce(&mut Seen), words: &str) {
    let mut seen = sound();
    change(&mut seen);
    let said = judge(&seen).expect_err("it is not sound").to_string();
    assert!(said.contains(words), "{said:?} does not say {words:?}");
}

#[test]
fn a_sound_round_passes() {
    let verdict = judge(&sound()).expect("it is sound");
    assert_eq!(verdict.status, "approved");
    assert_eq!(verdict.told_the_outcome, 2);
    assert_eq!(verdict.told_of_the_conflict, 1);
}

#[test]
fn two_decisions_or_none_are_noticed() {
    let twice = |seen: &mut Seen| {
        let record = seen.records[1].clone();
        seen.records.as_array_mut().expect("a list").push(record);
    };
    complains(twice, "2 decisions");
    complains(|seen| seen.records[1]["events"] = json!([]), "0 decisions");
}

#[test]
fn a_second_release_is_noticed() {
    let woken = |seen: &mut Seen| {
        let event = seen.records[1]["events"][1].clone();
        let events = seen.records[1]["events"].as_array_mut();
        events.expect("a list").push(event);
    };
    complains(woken, "woken 2 times");
    let unreleased =
        |seen: &mut Seen| seen.records[1]["events"][0]["decision"]["released"] = Value::Null;
    complains(unreleased, "released is null");
}

#[test]
fn an_effect_too_many_too_few_or_of_something_else_is_noticed() {
    complains(|seen| seen.effects.clear(), "ran 0 times");
    let twice = |seen: &mut Seen| seen.effects.push(seen.effects[0].clone());
    complains(twice, "ran 2 times");
    complains(|seen| seen.effects[0].0 = "itm_2".to_owned(), "its key is");
    complains(|seen| seen.effects[0].1 = json!({ "n": 2 }), "was let run");
}

#[test]
fn answers_that_do_not_fit_are_noticed() {
    let also_won = |seen: &mut Seen| seen.people[2].answers = seen.people[0].answers.clone();
    complains(also_won, "group 1 was told");
    let other_bytes = |seen: &mut Seen| {
        let other = json!({ "status": "approved", "decided_by": "boss0", "revision": 2 });
        seen.people[1].answers = vec![answer(200, &other)];
    };
    complains(other_bytes, "other bytes");
    let other_outcome = |seen: &mut Seen| {
        let other =
            json!({ "code": "hold_decided", "hold_status": "rejected", "decided_by": "boss0" });
        seen.people[2].answers = vec![answer(409, &other)];
    };
    complains(other_outcome, "stands");
    complains(|seen| seen.people[2].answers.clear(), "told nothing");
    let broken = |seen: &mut Seen| seen.people[2].answers = vec![answer(500, &json!({}))];
    complains(broken, "answered 500");
}
