//! Agents behind DIAL: what they are sent, and what is kept of their answers.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use statehold_agents::spec::{
    AgentKind, DIAL_AUDIENCE, DialSpec, FinalAnswer, ModelSpec, RouterSpec, Routing,
};
use statehold_core::hold::{DecisionKind, HoldKind};
use statehold_core::ids::{RequestId, SessionId};
use statehold_engine::api::turn::{DeliveryLog, TurnInput, UserMessage, open_turn};
use statehold_engine::bodies::{AttachmentBody, ItemBody};
use statehold_engine::policy::Policies;
use statehold_engine::{CallCredential, Credential, HoldDetail, RequestDetail};
use statehold_fakes::chat::{ModelReply, ScriptedModel, text as chat_text};
use statehold_fakes::dial::{answer, custom, end, refusal, say, state, unended, whole};
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, locked};

use crate::pause::asked;
use crate::rig::{Outcome, PATIENCE, Rig, agent, book, error, name, router};
use crate::world::{answer_of, dial, dial_with, said};

/// JSON that parsers would not reproduce exactly, with indices that are the agent's own.
const ODD_STATE: &str = r#"{"z":1.0,"n":123456789012345678901234567890,"tool_calls":[{"index":0,"id":"c1"},{"index":1,"id":"c2"}],"stages":[{"index":3}],"gpa_messages":{ "tool_call_history" :[]},"index":7,"é":"\u00e9\/","z":-0}"#;

/// An application that refuses what DIAL's SDK refuses.
async fn app(
    answer: impl Fn(&SeenRequest) -> ScriptedResponse + Send + Sync + 'static,
) -> FakeService {
    FakeService::start(move |seen| refusal(seen).unwrap_or_else(|| answer(seen))).await
}

/// The key of a call to the surface of DIAL, with the token of its user. Dropping it ends the call.
fn call_key(text: &str) -> Arc<CallCredential> {
    CallCredential::new(DIAL_AUDIENCE, key(text), Some(key("Bearer user-token")))
}

/// Says something to an agent as a client of DIAL. Returns the turn that it is about.
async fn say_over_dial(
    rig: &Rig,
    (session, agent): (SessionId, &str),
    (text, data): (&str, Option<&Value>),
    call: &Arc<CallCredential>,
) -> RequestId {
    let input = TurnInput {
        call: rig.call(),
        key: None,
        session,
        agent: name(agent),
        task: None,
        message: UserMessage {
            text: text.to_owned(),
            files: Vec::new(),
            parts: Vec::new(),
            data: data.map(|data| to_raw_value(data).expect("JSON")),
        },
        credential: None,
        call_credential: Some(Arc::downgrade(call)),
        config: None,
        decides_elsewhere: false,
        one_at_a_time: false,
        arrived: std::time::Instant::now(),
    };
    let log = Arc::new(DeliveryLog::new(rig.engine.now()));
    let turn = open_turn(&rig.engine, &log, input, Vec::new()).await;
    turn.expect("a turn").handle.request
}

/// Waits until a turn waits for people at its child, and returns the holds.
async fn asked_below(rig: &Rig, request: RequestId) -> Vec<HoldDetail> {
    let waits = rig.until(request, |detail| {
        let live = detail.request.live();
        live.is_some_and(|live| live.lease.is_none() && !live.children.is_empty())
    });
    let waits = waits.await;
    let live = waits.request.live().expect("it waits");
    asked(rig, *live.children.first().expect("a child")).await
}

fn key(text: &str) -> Credential {
    Credential::new(text.to_owned()).expect("a credential")
}

#[tokio::test]
async fn its_exchanges_and_its_state_come_back_as_they_were_and_its_files_do_not() -> Outcome {
    for is_streamed in [true, false] {
        let server = app(move |seen| {
            let file = r#"{"attachments":[{"index":0,"type":"text/csv","title":"r","url":"files/b/r.csv"}]}"#;
            match (seen.said().as_str(), is_streamed) {
                ("one", true) => answer(vec![
                    say("fir"),
                    state(r#"{"an":"earlier one"}"#),
                    say("st"),
                    custom(file),
                    state(ODD_STATE),
                    custom(r#"{"state":null}"#),
                ]),
                ("one", false) => whole(
                    "first",
                    &format!(r#"{{"attachments":[{{"type":"text/csv","title":"r","url":"files/b/r.csv"}}],"state":{ODD_STATE}}}"#),
                ),
                _ => answer(vec![say("more")]),
            }
        })
        .await;
        let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
        let runner = rig.runner().await;
        let session = rig.session("gpa").await;
        let first = rig.ask(session, "gpa", "one").await;
        let ended = rig.ended(first).await;
        assert_eq!(answer_of(&ended), "first");
        let stored = ended.finished.as_ref().expect("an end");
        let file = br#"{"type":"text/csv","title":"r","url":"files/b/r.csv"}"#;
        assert!(
            stored
                .bodies
                .iter()
                .flatten()
                .any(|body| body[..] == file[..])
        );
        for said in ["two", "three"] {
            assert_eq!(rig.turn(session, "gpa", said).await, "more");
        }
        let whole = format!(
            r#"{{"role":"assistant","content":"first","custom_content":{{"state":{ODD_STATE}}}}}"#
        );
        let seen = server.seen();
        for later in &seen[1..] {
            assert!(later.text.contains(&whole), "{}", later.text);
        }
        assert_eq!(
            seen[0].path,
            "/core/openai/deployments/gpa-app/chat/completions?api-version=2024-10-21"
        );
        let body = seen[0].json();
        assert_eq!(
            body,
            json!({
                "messages": [{"role": "user", "content": "one"}],
                "stream": true,
                "stream_options": {"include_usage": true},
            })
        );
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn the_files_of_a_message_are_forwarded_with_data_or_an_address() -> Outcome {
    let server = app(|_| answer(vec![say("ok")])).await;
    let rig = Rig::new(vec![
        Arc::new(dial("gpa", &server)),
        router("front", &[(".", "gpa")], &["gpa"]),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let body = ItemBody {
        content: Some(to_raw_value("look").expect("text")),
        ..ItemBody::default()
    };
    let file = |url: Option<&str>, data: Option<&str>, reference: Option<&str>| AttachmentBody {
        kind: Some("text/csv".to_owned()),
        url: url.map(str::to_owned),
        data: data.map(str::to_owned),
        reference_url: reference.map(str::to_owned),
        ..AttachmentBody::default()
    };
    let files = [
        file(Some("files/b/a.csv"), None, None),
        file(Some("files/b/b.csv"), Some("1,2"), None),
        file(None, None, Some("https://c.test/c.csv")),
    ];
    let request = rig.ask_body(session, "front", &body, &files).await;
    assert_eq!(answer_of(&rig.ended(request).await), "ok");
    let sent = server.seen()[0].json()["messages"][0]["custom_content"]["attachments"].clone();
    let kind = "text/csv";
    assert_eq!(
        sent,
        json!([
            {"type": kind, "url": "files/b/a.csv"},
            {"type": kind, "data": "1,2"},
            {"type": kind, "url": "https://c.test/c.csv", "reference_url": "https://c.test/c.csv"},
        ])
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn the_key_of_the_call_goes_on_below_a_coordinator_and_is_kept_nowhere() -> Outcome {
    let server = app(|_| answer(vec![say("ok"), state(r#"{"a":1}"#)])).await;
    let rig = Rig::new(vec![
        Arc::new(dial_with("gpa", &server, None)),
        router("front", &[(".", "gpa")], &["gpa"]),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let data = json!({"dial": {
        "conversation_id": "conversations/b/chat%201",
        "parameters": {"temperature": 0, "custom_fields": {"configuration": {"a": 1}}, "n": 2},
    }});
    let call = call_key("per-request-key");
    let request = say_over_dial(&rig, (session, "front"), ("hello", Some(&data)), &call).await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), "ok");
    let seen = &server.seen()[0];
    assert_eq!(seen.header("api-key"), Some("per-request-key"));
    assert_eq!(seen.header("authorization"), Some("Bearer user-token"));
    assert_eq!(
        seen.header("x-conversation-id"),
        Some("conversations/b/chat%201")
    );
    let sent = seen.json();
    assert_eq!(sent["custom_fields"]["configuration"], json!({"a": 1}));
    assert_eq!(
        (&sent["n"], &sent["temperature"]),
        (&Value::Null, &json!(0))
    );
    let mut records = rig
        .engine
        .feed(
            &rig.local,
            session,
            0,
            statehold_engine::PageLimit::entries(500),
        )
        .await?;
    let bodies = records
        .iter_mut()
        .flat_map(|entry| std::mem::take(&mut entry.stored.bodies));
    for body in bodies.flatten() {
        let body = String::from_utf8_lossy(&body).into_owned();
        assert!(
            !body.contains("per-request-key") && !body.contains("user-token"),
            "{body}"
        );
    }
    // The next call has a key of its own, or none.
    let error = rig.failing_turn(session, "gpa", "again").await;
    assert_eq!(error["code"], "agent_key_missing");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("`credential_env`"))
    );
    assert_eq!(server.seen().len(), 1);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_agent_with_a_key_of_its_own_gets_nothing_of_the_callers() -> Outcome {
    let server = app(|_| answer(vec![say("ok")])).await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    let call = call_key("per-request-key");
    let data = json!({"dial": {}});
    let request = say_over_dial(&rig, (session, "gpa"), ("hello", Some(&data)), &call).await;
    answer_of(&rig.ended(request).await);
    let seen = &server.seen()[0];
    assert_eq!(seen.header("api-key"), Some("own-key"));
    assert_eq!(seen.header("authorization"), None);
    assert_eq!(seen.header("x-conversation-id"), None);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn an_error_after_the_first_chunk_fails_the_turn_and_stores_nothing() -> Outcome {
    let server = app(|seen| match seen.said().as_str() {
        "chunk" => unended(vec![
            say("half"),
            state(r#"{"a":1}"#),
            statehold_fakes::dial::error("it broke"),
        ]),
        "cut" => unended(vec![say("half"), BodyStep::Cut]),
        "status" => ScriptedResponse::json(
            500,
            &json!({"error": {"message": "no", "type": "runtime_error", "code": "500"}}),
        ),
        "missing" => ScriptedResponse::json(404, &json!({"detail": "Not Found"})),
        _ => answer(vec![say("fine")]),
    })
    .await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    for (fault, code, says) in [
        ("chunk", "agent_error", "it broke"),
        ("cut", "agent_cut_off", "connection ended"),
        ("status", "agent_error", "500"),
        ("missing", "agent_error", "`deployment`"),
    ] {
        let error = rig.failing_turn(session, "gpa", fault).await;
        assert_eq!(error["code"], code, "{fault}");
        let message = error["message"].as_str().expect("text");
        assert!(message.contains(says), "{fault}: {message}");
    }
    assert_eq!(rig.turn(session, "gpa", "go on").await, "fine");
    let last = server.seen().pop().expect("a call");
    assert_eq!(last.messages(), [("user".to_owned(), "go on".to_owned())]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_caller_who_keeps_the_history_gets_everything_through_that_dial_knows() -> Outcome {
    let server = app(|_| answer(vec![say("ok"), state(ODD_STATE)])).await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    let custom = json!({"state": {"a": 1}, "stages": [{"name": "x", "status": null}], "more": 1});
    let history = json!([
        {"role": "user", "content": "one", "id": "m1"},
        {"role": "assistant", "content": "first", "custom_content": custom},
    ]);
    let passthrough = json!({"temperature": 1, "metadata": {}, "statehold": "mine", "n": 3});
    let data = json!({"history": history, "passthrough": passthrough});
    let request = rig.ask_bringing(session, "gpa", "two", &data).await;
    let ended = rig.ended(request).await;
    let sent = server.seen()[0].json();
    assert_eq!(
        sent["messages"],
        json!([
            {"role": "user", "content": "one"},
            {"role": "assistant", "content": "first", "custom_content": {"state": {"a": 1}}},
            {"role": "user", "content": "two"},
        ])
    );
    assert_eq!(sent["temperature"], 1);
    // It gets the state, which its surface seals.
    let data = said(&ended).data.expect("data");
    assert_eq!(data.get(), format!(r#"{{"state":{ODD_STATE}}}"#));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn fields_of_a_trusted_caller_go_on_also_if_dial_does_not_know_them() -> Outcome {
    let server = FakeService::start(|_| answer(vec![say("ok")])).await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    // The surface writes them only for an agent that trusts its callers.
    let parameters = json!({
        "temperature": 0, "newer": {"index": 1, "a": null}, "top_p": null,
        "n": 2, "messages": [], "stream": false, "statehold": {"decisions": []},
    });
    let data = json!({"dial": {"parameters": parameters}});
    let call = call_key("per-request-key");
    let request = say_over_dial(&rig, (session, "gpa"), ("hi", Some(&data)), &call).await;
    assert_eq!(answer_of(&rig.ended(request).await), "ok");
    assert_eq!(
        server.seen()[0].json(),
        json!({
            "messages": [{"role": "user", "content": "hi"}],
            "newer": {"index": 1, "a": null},
            "stream": true,
            "stream_options": {"include_usage": true},
            "temperature": 0,
        })
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn the_last_chunk_has_the_end_and_the_usage_at_once() -> Outcome {
    let server = app(|_| unended(vec![say("yes"), end()])).await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    assert_eq!(rig.turn(session, "gpa", "usage?").await, "yes");
    let steps = rig
        .items(session, "gpa", statehold_core::item::ItemKind::Step)
        .await;
    let step: Value =
        serde_json::from_str(steps[0].data.as_ref().expect("data").get()).expect("JSON");
    assert_eq!(step["usage"]["total_tokens"], 15);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn files_that_an_answer_has_no_room_for_are_counted_in_the_trace() -> Outcome {
    let server = app(|_| {
        let files = (0..70).map(|n| json!({"index": n, "url": format!("files/{n}")}));
        let files = json!({"attachments": files.collect::<Vec<_>>()});
        answer(vec![custom(&files.to_string()), say("many")])
    })
    .await;
    let rig = Rig::new(vec![Arc::new(dial("gpa", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    assert_eq!(rig.turn(session, "gpa", "go").await, "many");
    let notes = rig.notes(session, "gpa").await;
    let left_out = ("attachments_left_out".to_owned(), json!({"count": 6}));
    assert!(notes.contains(&left_out), "{notes:?}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// The key of a call is forgotten when the call ends. The call that decides brings another one.
#[tokio::test]
async fn a_turn_goes_on_with_the_key_of_the_call_that_decides() -> Outcome {
    let server = app(|seen| match seen.said().as_str() {
        "go" => answer(vec![state(
            r#"{"statehold":{"status":"paused","holds":[{"id":"q","kind":"question","title":"Which?"}]}}"#,
        )]),
        said => answer(vec![say(said)]),
    })
    .await;
    let rig = Rig::new(vec![
        Arc::new(dial_with("gpa", &server, None)),
        router("front", &[(".", "gpa")], &["gpa"]),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let desk = (session, "front");
    let first = call_key("first-key");
    let request = say_over_dial(&rig, desk, ("go", None), &first).await;
    asked_below(&rig, request).await;
    drop(first);
    let second = call_key("second-key");
    let answered = say_over_dial(&rig, desk, ("the red one", None), &second).await;
    assert_eq!(answered, request);
    assert_eq!(answer_of(&rig.ended(request).await), "the red one");
    let seen = server.seen();
    let keys: Vec<_> = seen.iter().map(|seen| seen.header("api-key")).collect();
    assert_eq!(keys, [Some("first-key"), Some("second-key")]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// An application that waits for an approval, then says what was decided.
async fn approving() -> FakeService {
    app(|seen| {
        let body = seen.json();
        let last = body["messages"].as_array().and_then(|all| all.last()).expect("a message");
        if last["custom_content"]["state"]["statehold"]["decisions"].is_array() {
            return answer(vec![say(&format!("So: {}", seen.said()))]);
        }
        answer(vec![state(
            r#"{"statehold":{"status":"paused","holds":[{"id":"a","kind":"approval","title":"Pay?"}]}}"#,
        )])
    })
    .await
}

#[tokio::test]
async fn a_decision_from_elsewhere_waits_for_a_key_and_the_next_call_brings_one() -> Outcome {
    let server = approving().await;
    let rig = Rig::new(vec![
        Arc::new(dial_with("gpa", &server, None)),
        router("front", &[(".", "gpa")], &["gpa"]),
    ])
    .await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let desk = (session, "front");
    let first = call_key("first-key");
    let request = say_over_dial(&rig, desk, ("pay", None), &first).await;
    let holds = asked_below(&rig, request).await;
    drop(first);
    rig.decide(&holds[0], DecisionKind::Approve, None).await;
    let waiting = rig.until(request, |detail| detail.request.live().is_some());
    let child = *waiting
        .await
        .request
        .live()
        .expect("it waits")
        .children
        .first()
        .expect("a child");
    let asks_for_key = |detail: &RequestDetail| {
        let mut holds = detail.holds.iter();
        holds.any(|hold| hold.hold.kind == HoldKind::Credential && hold.closed.is_none())
    };
    rig.until(child, asks_for_key).await;
    assert_eq!(server.seen().len(), 1);
    let second = call_key("second-key");
    let answered = say_over_dial(&rig, desk, ("and?", None), &second).await;
    assert_eq!(answered, request);
    assert_eq!(answer_of(&rig.ended(request).await), "So: approve");
    let seen = server.seen();
    let keys: Vec<_> = seen.iter().map(|seen| seen.header("api-key")).collect();
    assert_eq!(keys, [Some("first-key"), Some("second-key")]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_key_may_be_given_as_an_answer_or_refused() -> Outcome {
    for is_given in [true, false] {
        let server = approving().await;
        let rig = Rig::new(vec![Arc::new(dial_with("gpa", &server, None))]).await;
        let runner = rig.runner().await;
        let session = rig.session("gpa").await;
        let first = call_key("first-key");
        let request = say_over_dial(&rig, (session, "gpa"), ("pay", None), &first).await;
        let holds = asked(&rig, request).await;
        drop(first);
        rig.decide(&holds[0], DecisionKind::Approve, None).await;
        rig.until(request, |detail| detail.holds.len() == 2).await;
        let holds = asked(&rig, request).await;
        let hold = holds
            .iter()
            .find(|hold| hold.closed.is_none())
            .expect("it asks");
        assert_eq!(hold.hold.kind, HoldKind::Credential);
        if is_given {
            rig.decide(hold, DecisionKind::Respond, Some("given-key"))
                .await;
            assert_eq!(answer_of(&rig.ended(request).await), "So: approve");
            let seen = server.seen();
            assert_eq!(seen[1].header("api-key"), Some("given-key"));
        } else {
            rig.decide(hold, DecisionKind::Reject, None).await;
            assert_eq!(
                error(&rig.ended(request).await)["code"],
                "agent_key_missing"
            );
            assert_eq!(server.seen().len(), 1);
        }
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

/// The turn waits for two people. The call of the first one ends long before the second one decides.
#[tokio::test]
async fn a_credential_that_comes_while_the_turn_goes_on_waiting_is_not_kept() -> Outcome {
    let server = app(|_| {
        answer(vec![state(
            r#"{"statehold":{"status":"paused","holds":[{"id":"q","kind":"question","title":"Which?"},{"id":"a","kind":"approval","title":"Pay?"}]}}"#,
        )])
    })
    .await;
    let rig = Rig::new(vec![Arc::new(dial_with("gpa", &server, None))]).await;
    let runner = rig.runner().await;
    let session = rig.session("gpa").await;
    let log = Arc::new(DeliveryLog::new(rig.engine.now()));
    let input = |text: &str| TurnInput {
        call: rig.call(),
        key: None,
        session,
        agent: name("gpa"),
        task: None,
        message: UserMessage {
            text: text.to_owned(),
            ..UserMessage::default()
        },
        credential: Some(key("of-the-caller")),
        call_credential: None,
        config: None,
        decides_elsewhere: false,
        one_at_a_time: false,
        arrived: std::time::Instant::now(),
    };
    let first = open_turn(&rig.engine, &log, input("go"), Vec::new()).await?;
    let request = first.handle.request;
    let holds = asked(&rig, request).await;
    let second = open_turn(&rig.engine, &log, input("the red one"), Vec::new());
    assert_eq!(second.await?.handle.request, request);
    let approval = holds
        .iter()
        .find(|hold| hold.hold.kind == HoldKind::Approval);
    rig.decide(approval.expect("an approval"), DecisionKind::Reject, None)
        .await;
    assert_eq!(
        error(&rig.ended(request).await)["code"],
        "agent_key_missing"
    );
    assert_eq!(server.seen().len(), 1);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// DIAL Core in front of an agent that carries its state in plain form: each call has a key of its own, and the reserved
/// deployment `interceptor` is the rest of the chain.
#[tokio::test]
async fn in_front_of_an_unchanged_agent_its_state_is_taken_off_the_wire_and_given_back() -> Outcome
{
    let issued = Arc::new(Mutex::new(BTreeSet::from([
        "key-1".to_owned(),
        "key-2".to_owned(),
    ])));
    let keys = Arc::clone(&issued);
    let core = app(move |seen| {
        let key = seen.header("api-key").expect("a key").to_owned();
        if seen.path != "/openai/deployments/interceptor/chat/completions" {
            return ScriptedResponse::json(404, &json!({"error": {"message": "no deployment"}}));
        }
        // A key counts for one request.
        if !locked(&keys).remove(&key) {
            return ScriptedResponse::json(401, &json!({"error": {"message": "unknown key"}}));
        }
        let body = seen.json();
        let calls = body["messages"][1]["custom_content"]["state"]["calls"].as_u64();
        let calls = calls.unwrap_or_default() + 1;
        answer(vec![
            say(&format!("call {calls}")),
            state(&format!(r#"{{"calls":{calls}}}"#)),
        ])
    })
    .await;
    let kind = AgentKind::Dial(Arc::new(DialSpec {
        base_url: core.url(""),
        deployment: "interceptor".to_owned(),
        credential: None,
        headers: Vec::new(),
    }));
    let rig = Rig::new(vec![agent("keeper", kind)]).await;
    let runner = rig.runner().await;
    let session = rig.session("keeper").await;
    for (credential, expected) in [("key-1", "call 1"), ("key-2", "call 2")] {
        let data = json!({"dial": {}});
        let call = call_key(credential);
        let words = (credential, Some(&data));
        let request = say_over_dial(&rig, (session, "keeper"), words, &call).await;
        let ended = rig.ended(request).await;
        assert_eq!(answer_of(&ended), expected);
        // The answer that its client gets has no state.
        assert!(said(&ended).data.is_none());
    }
    assert!(locked(&issued).is_empty());
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// The agent has acted: what it said and its state are kept, although the answer was never written.
#[tokio::test]
async fn a_final_answer_that_fails_loses_nothing_of_the_agent_that_acted() -> Outcome {
    let server = app(|_| answer(vec![say("deleted"), state(r#"{"deleted":["Bob"]}"#)])).await;
    let model = ScriptedModel::start([ModelReply::Status(400), chat_text("It is done.")]).await;
    let spec = ModelSpec {
        name: name("main"),
        base_url: model.url(),
        model: "scripted".to_owned(),
        credential: None,
        headers: Vec::new(),
        input: BTreeSet::new(),
        timeout: PATIENCE,
        retries: 0,
    };
    let front = AgentKind::Router(Arc::new(RouterSpec {
        agents: vec![name("gpa")],
        routing: Routing::Rules {
            rules: Vec::new(),
            otherwise: Some(name("gpa")),
        },
        answer: FinalAnswer::Model {
            model: name("main"),
            prompt: None,
        },
    }));
    let mut all = book(vec![Arc::new(dial("gpa", &server)), agent("front", front)]);
    all.models.insert(name("main"), Arc::new(spec));
    let rig = Rig::with(all, Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    rig.failing_turn(session, "front", "delete Bob").await;
    let notes = rig.notes(session, "gpa").await;
    assert_eq!(notes[0].1["state"], json!({"deleted": ["Bob"]}));
    assert_eq!(rig.turn(session, "front", "and now?").await, "It is done.");
    let again = &server.seen()[1].text;
    assert!(again.contains(r#""state":{"deleted":["Bob"]}"#), "{again}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
