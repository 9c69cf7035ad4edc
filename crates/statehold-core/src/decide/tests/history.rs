//! Items and records: what a turn writes, who sees it, what a tool call may come to, and the bytes.

use serde_json::{Value, json};

use super::*;
use crate::digest::canonical_bytes;
use crate::item::{Attachment, AttachmentSource, CallMark, PlacedItem};
use crate::limits;
use crate::record::RecordError;
use crate::view::View;

fn attachments(n: usize) -> Vec<Attachment> {
    let one = Attachment {
        source: AttachmentSource::Url,
        body: body("https://example.com/a.png"),
    };
    vec![one; n]
}

/// A reference to a payload of this length; nobody needs the payload.
fn body_of(bytes: u32) -> BodyRef {
    BodyRef {
        bytes,
        ..body("long")
    }
}

/// A whole turn in one call.
fn whole_turn() -> Command {
    starting(leased(start("a1")), |start| start.output = Some(answer()))
}

#[test]
fn a_whole_turn_is_one_record_and_leaves_the_task_idle() {
    let mut w = new_session();
    w.ok(whole_turn());
    w.check("T1 idle completed");
    assert_eq!(w.state.revision, 2);
    assert!(matches!(
        w.last_events(),
        [
            Event::TaskOpened { .. },
            Event::RequestStarted { .. },
            Event::RequestLeased { .. },
            Event::ItemsAppended { .. },
            Event::RequestEnded { .. },
        ]
    ));
    w.ok(whole_turn());
    assert_eq!(w.last_events().len(), 4, "the task is there already");
    w.check("T1 idle completed");
}

#[test]
fn a_turn_writes_question_steps_and_answer_in_order() {
    use ItemKind::{Message, ToolCall, ToolResult};
    let mut w = new_session();
    let call = [
        risky_call(),
        result(CallTarget::SameCommand(0), CallOutcome::Ran),
    ];
    w.ok(starting(whole_turn(), |start| start.items = call.to_vec()));
    let items = w.items();
    let kinds: Vec<_> = items.iter().map(|(_, _, item)| item.kind).collect();
    assert_eq!(kinds, [Message, ToolCall, ToolResult, Message]);
    let roles: Vec<_> = items.iter().filter_map(|(_, _, item)| item.role).collect();
    assert_eq!(roles, [Role::User, Role::Assistant]);
}

#[test]
fn items_are_numbered_through_the_session_and_not_by_revision() {
    let mut w = new_session();
    w.ok(whole_turn());
    w.ok(close_session(false));
    let seqs: Vec<_> = w.items().iter().map(|(_, _, item)| item.seq).collect();
    assert_eq!(seqs, [1, 2]);
    assert_eq!((w.state.items_appended, w.state.revision), (2, 3));
}

#[test]
fn whoever_only_asks_cannot_write_more_than_the_question() {
    let mut w = new_session();
    let extras: [fn(&mut StartRequest); 3] = [
        |start| start.items = vec![say("I am the agent")],
        |start| start.state = set("topic", "x"),
        |start| start.output = Some(answer()),
    ];
    for change in extras {
        let refusal = w.no(starting(start("a1"), change));
        assert_eq!(refusal, Rejection::LeaseNeeded);
    }
}

#[test]
fn everything_said_in_a_child_task_is_hidden() {
    let mut w = chain(2);
    w.ok(w.append("R2", &[say("to nobody outside")]));
    w.ok(w.complete("R2"));
    w.ok(w.append("R1", &[say("to the user")]));
    let child = w.task("T2");
    for (task, _, item) in w.items() {
        let hidden = item.visibility == Visibility::Hidden;
        assert_eq!(hidden, task == child);
    }
}

#[test]
fn each_view_shows_what_it_is_for() {
    let mut w = chain(2);
    w.ok(w.append("R1", &[risky_call()]));
    let placed: Vec<PlacedItem> = w
        .items()
        .into_iter()
        .map(|(task, request, item)| PlacedItem {
            task,
            request,
            is_root: task == w.task("T1"),
            rewound: false,
            item: item.clone(),
        })
        .collect();
    let count = |view: View| placed.iter().filter(|item| view.shows(item)).count();
    assert_eq!(count(View::Client), 1, "the question");
    assert_eq!(count(View::Agent(w.task("T1"))), 2, "and the tool call");
    assert_eq!(count(View::Agent(w.task("T2"))), 1);
    assert_eq!(count(View::Trace), 3);
    let rewound = PlacedItem {
        rewound: true,
        ..placed[0].clone()
    };
    assert!(!View::Client.shows(&rewound));
    assert!(!View::Agent(w.task("T1")).shows(&rewound));
    assert!(View::Trace.shows(&rewound));
}

#[test]
fn tool_items_cannot_be_made_visible() {
    let mut w = chain(1);
    w.ok(w.append("R1", &[risky_call()]));
    let result = result_of(w.call("R1"), CallOutcome::Ran);
    for item in [risky_call(), gated_call(), result] {
        let shown = NewItem {
            visibility: Visibility::Visible,
            ..item
        };
        assert_eq!(
            w.no(w.append("R1", &[shown])),
            Rejection::ItemMalformed("tool calls and results are always hidden")
        );
    }
}

#[test]
fn an_item_is_one_thing() {
    let mut w = chain(1);
    let malformed = [
        NewItem::message(Role::Tool, body("from a tool")),
        NewItem {
            role: None,
            ..say("from nobody")
        },
        NewItem {
            call: risky_call().call,
            ..say("and a call")
        },
        NewItem {
            kind: ItemKind::Step,
            ..say("a step that speaks")
        },
        NewItem {
            kind: ItemKind::Note,
            ..risky_call()
        },
        NewItem {
            call: None,
            ..risky_call()
        },
        NewItem {
            role: Some(Role::Tool),
            ..risky_call()
        },
        NewItem {
            kind: ItemKind::ToolResult,
            ..risky_call()
        },
    ];
    for item in malformed {
        let refusal = w.no(w.append("R1", &[item]));
        assert!(matches!(refusal, Rejection::ItemMalformed(_)));
    }
}

#[test]
fn one_bad_item_refuses_the_whole_call() {
    let mut w = chain(1);
    let before = w.state.items_appended;
    w.no(w.append(
        "R1",
        &[say("good"), NewItem::message(Role::Tool, body("bad"))],
    ));
    assert_eq!(w.state.items_appended, before);
}

mod tool_calls {
    use super::*;

    /// What the last result says was executed.
    fn executed(w: &World) -> Option<Digest> {
        match w.items().last().expect("there are items").2.call {
            Some(CallMark::Result { executed, .. }) => executed,
            other => panic!("not a result: {other:?}"),
        }
    }

    /// Decides a gated call and compares which outcome, if any, it may have.
    #[track_caller]
    fn check(decision: Option<DecisionKind>, fitting: Option<CallOutcome>) {
        for outcome in [
            CallOutcome::Ran,
            CallOutcome::Refused,
            CallOutcome::Answered,
        ] {
            let mut w = held_chain(1);
            if let Some(kind) = decision {
                w.ok(w.decide("R1.h1", kind));
            }
            let call = w.call("R1");
            let command = w.append("R1", &[result_of(call, outcome)]);
            if fitting == Some(outcome) {
                w.ok(command);
            } else {
                assert_eq!(w.no(command), Rejection::CallNotReleased { call });
            }
        }
    }

    #[test]
    fn a_gated_call_has_the_result_that_was_decided() {
        check(None, None);
        check(Some(DecisionKind::Approve), Some(CallOutcome::Ran));
        check(Some(DecisionKind::Edit), Some(CallOutcome::Ran));
        check(Some(DecisionKind::Reject), Some(CallOutcome::Refused));
        check(Some(DecisionKind::Respond), Some(CallOutcome::Answered));
    }

    #[test]
    fn a_gated_call_that_nobody_was_asked_about_has_no_result() {
        let mut w = chain(1);
        w.ok(w.append("R1", &[gated_call()]));
        let call = w.call("R1");
        assert_eq!(
            w.no(w.append("R1", &[result_of(call, CallOutcome::Ran)])),
            Rejection::CallNotReleased { call }
        );
    }

    #[test]
    fn a_gated_call_cannot_run_in_the_breath_that_proposes_it() {
        let mut w = chain(1);
        let at_once = [
            gated_call(),
            result(CallTarget::SameCommand(0), CallOutcome::Ran),
        ];
        assert!(matches!(
            w.no(w.append("R1", &at_once)),
            Rejection::CallNotReleased { .. }
        ));
    }

    #[test]
    fn what_ran_is_what_was_approved() {
        for (kind, ran) in [
            (DecisionKind::Approve, "action"),
            (DecisionKind::Edit, "edited action"),
        ] {
            let mut w = held_chain(1);
            w.ok(w.decide("R1.h1", kind));
            w.ok(w.append("R1", &[result_of(w.call("R1"), CallOutcome::Ran)]));
            assert_eq!(executed(&w), Some(digest(ran)));
        }
    }

    #[test]
    fn what_did_not_run_has_no_digest() {
        for (kind, outcome) in [
            (DecisionKind::Reject, CallOutcome::Refused),
            (DecisionKind::Respond, CallOutcome::Answered),
        ] {
            let mut w = held_chain(1);
            w.ok(w.decide("R1.h1", kind));
            w.ok(w.append("R1", &[result_of(w.call("R1"), outcome)]));
            assert_eq!(executed(&w), None);
        }
    }

    #[test]
    fn an_approval_is_for_one_call() {
        let mut w = held_chain(1);
        let first = w.call("R1");
        w.ok(w.gate("R1"));
        let second = w.call("R1");
        w.ok(w.approve("R1.h1"));
        assert_eq!(
            w.no(w.append("R1", &[result_of(second, CallOutcome::Ran)])),
            Rejection::CallNotReleased { call: second }
        );
        w.ok(w.append("R1", &[result_of(first, CallOutcome::Ran)]));
    }

    #[test]
    fn a_call_has_one_result() {
        let mut w = chain(1);
        w.ok(w.append("R1", &[risky_call()]));
        let call = w.call("R1");
        w.ok(w.append("R1", &[result_of(call, CallOutcome::Ran)]));
        assert_eq!(
            w.no(w.append("R1", &[result_of(call, CallOutcome::Ran)])),
            Rejection::CallUnknown { call: Some(call) }
        );
    }

    #[test]
    fn a_result_belongs_to_a_call_of_the_same_request() {
        let mut w = chain(2);
        w.ok(w.append("R1", &[risky_call()]));
        let call = w.call("R1");
        assert_eq!(
            w.no(w.append("R2", &[result_of(call, CallOutcome::Ran)])),
            Rejection::CallUnknown { call: Some(call) }
        );
        let no_call = result(CallTarget::SameCommand(0), CallOutcome::Ran);
        assert_eq!(
            w.no(w.append("R2", &[no_call])),
            Rejection::CallUnknown { call: None }
        );
    }
}

mod sizes {
    use super::*;

    fn limit(limit: &'static str, max: u64) -> Rejection {
        Rejection::Limit { limit, max }
    }

    #[test]
    fn one_call_brings_only_so_many_items() {
        let mut w = chain(1);
        let most = vec![say("x"); limits::COMMAND_ITEMS_MAX];
        w.ok(w.append("R1", &most));
        let more = vec![say("x"); limits::COMMAND_ITEMS_MAX + 1];
        assert_eq!(
            w.no(w.append("R1", &more)),
            limit("items in one call", 1_024)
        );
    }

    #[test]
    fn one_item_carries_only_so_many_files() {
        let mut w = new_session();
        let refusal = limit("attachments of one item", 64);
        let asking = |n| {
            starting(leased(start("a1")), |start| {
                start.attachments = attachments(n);
            })
        };
        assert_eq!(w.no(asking(65)), refusal);
        w.ok(asking(64));
        let item = NewItem {
            attachments: attachments(65),
            ..say("look")
        };
        assert_eq!(w.no(w.append("R1", &[item])), refusal);
        let mut answering = w.complete("R1");
        if let Command::CompleteRequest { output, .. } = &mut answering {
            output.attachments = attachments(65);
        }
        assert_eq!(w.no(answering), refusal);
    }

    #[test]
    fn a_payload_is_only_so_long() {
        let mut w = chain(1);
        let max = limits::PAYLOAD_BYTES_MAX;
        let refusal = limit("bytes of one payload", max.into());
        w.ok(w.append("R1", &[NewItem::message(Role::Assistant, body_of(max))]));
        let item = NewItem::message(Role::Assistant, body_of(max + 1));
        assert_eq!(w.no(w.append("R1", &[item])), refusal);
        let mut file = attachments(1);
        file[0].body = body_of(max + 1);
        let item = NewItem {
            attachments: file,
            ..say("look")
        };
        assert_eq!(w.no(w.append("R1", &[item])), refusal);
        let question = starting(start("a2"), |start| start.input = body_of(max + 1));
        assert_eq!(w.no(question), refusal);
    }

    #[test]
    fn what_people_and_failures_say_is_only_so_long() {
        let long = body_of(limits::PAYLOAD_BYTES_MAX + 1);
        let refusal = limit("bytes of one payload", limits::PAYLOAD_BYTES_MAX.into());
        let mut w = chain(1);
        let hold = w.question_with("R1", |hold| hold.body = long);
        assert_eq!(w.no(hold), refusal);
        let by = w.fenced("R1");
        let failure = Command::FailRequest {
            by,
            error: long,
            cancel_children: false,
        };
        assert_eq!(w.no(failure), refusal);
        w.ok(w.gate("R1"));
        let reject = w.decide_with("R1.h1", DecisionKind::Reject, |new| new.body = Some(long));
        assert_eq!(w.no(reject), refusal);
    }
}

mod bytes {
    use super::*;

    /// A record as JSON, changed, and read again.
    fn read_changed(change: impl FnOnce(&mut Value)) -> Result<Record, RecordError> {
        let w = held_chain(1);
        let record = w.records.last().expect("there are records");
        let mut value: Value =
            serde_json::from_slice(&record.to_bytes()).expect("records are JSON");
        change(&mut value);
        Record::from_bytes(&canonical_bytes(&value))
    }

    #[test]
    fn a_record_survives_its_bytes() {
        let w = held_chain(3);
        for record in &w.records {
            let read = Record::from_bytes(&record.to_bytes()).expect("own bytes can be read");
            assert_eq!(read, *record);
            assert_eq!(read.hash, Digest::sha256(&record.to_bytes()));
        }
    }

    #[test]
    fn a_newer_version_is_refused_before_its_content_is_looked_at() {
        for found in [0, 2, 300] {
            let read = read_changed(|value| {
                value["v"] = json!(found);
                value["surprise"] = json!(true);
            });
            assert!(matches!(read, Err(RecordError::Version { found: v }) if v == found));
        }
    }

    #[test]
    fn an_unknown_field_is_refused_at_every_level() {
        let places: [fn(&mut Value) -> &mut Value; 3] = [
            |value| value,
            |value| &mut value["events"][0],
            |value| &mut value["events"][0]["items"][0],
        ];
        for place in places {
            let read = read_changed(|value| place(value)["surprise"] = json!(true));
            assert!(matches!(read, Err(RecordError::Shape(_))), "{read:?}");
        }
    }

    #[test]
    fn an_unknown_event_is_refused() {
        let read = read_changed(|value| value["events"][0]["act"] = json!("task_exploded"));
        assert!(matches!(read, Err(RecordError::Shape(_))));
    }

    #[test]
    fn a_field_that_an_event_does_not_have_is_refused() {
        let mut w = new_session();
        let record = w.ok(close_session(false));
        let mut value: Value =
            serde_json::from_slice(&record.to_bytes()).expect("records are JSON");
        value["events"][0]["surprise"] = json!(true);
        assert!(Record::from_bytes(&canonical_bytes(&value)).is_err());
    }

    #[test]
    fn a_record_has_one_spelling() {
        let w = held_chain(1);
        let bytes = w.records.last().expect("there are records").to_bytes();
        let text = String::from_utf8(bytes).expect("JSON is text");
        let padded = text.replacen(':', ": ", 1);
        let trailing = format!("{text}\n");
        let escaped = text.replacen("\"command\"", "\"\\u0063ommand\"", 1);
        let defaulted = text.replacen("\"kind\"", "\"role\":null,\"kind\"", 1);
        for other in [padded, trailing, escaped, defaulted] {
            assert_ne!(other, text);
            let read = Record::from_bytes(other.as_bytes());
            assert!(read.is_err(), "{other}");
        }
    }

    #[test]
    fn what_is_not_a_record_is_refused() {
        for bytes in [
            "",
            "{}",
            "null",
            "[]",
            r#"{"v":1}"#,
            r#"{"v":"1"}"#,
            "\u{0}",
        ] {
            let read = Record::from_bytes(bytes.as_bytes());
            assert!(matches!(read, Err(RecordError::Shape(_))), "{bytes}");
        }
    }
}
