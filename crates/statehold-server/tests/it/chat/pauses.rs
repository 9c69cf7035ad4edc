//! Turns that wait for people: they are told, never decided by what somebody types, and their answers
//! come when they come.

use serde_json::{Value, json};

use super::{Event, Scene, content, finished, refused, setup, words};
use crate::rest::act;
use crate::rig::{Feed, Rig, text};

/// A turn that was told as paused, and the hold it waits for.
async fn paused(scene: &Scene, said: &str) -> (Value, Value, Value) {
    let call = scene.say(said);
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    let body = finished(call).await.ok(200);
    (request, hold, body)
}

#[tokio::test]
async fn a_pause_is_told_in_words_and_in_fields_as_clients_see_it() {
    let scene = Scene::new().await;
    let (request, hold, body) = paused(&scene, "pay").await;
    let said = text(&body["choices"][0]["message"], "content");
    let expected = format!(
        "helper waits for a decision: Pay? ({})\n\nAnother person has to decide this.\nThe answer of the \
         agent comes with your next message after that.",
        text(&hold, "id")
    );
    assert_eq!(said, expected);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!(body["statehold"]["status"], "paused");
    assert_eq!(body["statehold"]["request"], request["id"]);
    let told = &body["statehold"]["holds"][0];
    assert_eq!(told["id"], hold["id"]);
    assert_eq!(told["may_decide"], false);
    assert!(told.get("action").is_none());
    assert!(!body.to_string().contains("sum-4711"), "{body}");

    // Asked again, it is told again. It is the same turn.
    let mut stream = scene.stream("pay").await;
    let (again, last) = stream.rest().await;
    assert_eq!(again, said);
    assert_eq!(last["statehold"]["status"], "paused");
    assert_eq!(last["statehold"]["holds"][0]["id"], hold["id"]);
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn people_who_may_decide_read_the_action_and_a_command_that_names_the_hold_by_its_id() {
    let mut dev = setup();
    dev.server.keys_required = false;
    let scene = Scene::begin(Rig::with(dev).await).await;
    let nobody = scene.rig.nobody();
    let headers = [("x-statehold-session", "new"), ("x-statehold-user", "dora")];
    let call = {
        let (nobody, body) = (nobody.clone(), words("helper", "pay").to_string());
        tokio::spawn(async move {
            nobody
                .send("POST", super::COMPLETIONS, &headers, body)
                .await
        })
    };
    let request = scene.claim().await;
    let action = json!({
        "tool": "delete_user", "args": {"user_id": 7, "note": "\u{202e}x"}, "risk": "high",
    });
    let hold = json!({
        "kind": "approval", "title": "Delete user 7", "message": "He left.\n\nFor good.", "action": action,
    });
    let hold = scene.ask(&request, hold).await;
    let answer = finished(call).await;
    let body = answer.ok(200);
    assert_eq!(body["statehold"]["holds"][0]["may_decide"], true);
    let told = &body["statehold"]["holds"][0]["action"];
    assert_eq!(told["digest"], hold["action"]["digest"]);
    let (id, address) = (text(&hold, "id"), scene.rig.address);
    let expected = format!(
        "helper waits for a decision: Delete user 7. He left.\nFor good. ({id})\n\n\
         It would call delete_user with {{\"user_id\":7,\"note\":\"\\u{{202e}}x\"}}\n\
         Decide with: statehold approvals approve {id} --confirm \"user 7\" --url http://{address}\n\
         To refuse: statehold approvals reject {id} --url http://{address}\n\
         The answer of the agent comes with your next message after that."
    );
    assert_eq!(content(&answer), expected);
    let session = answer.header("x-statehold-session").expect("a session");
    let session = nobody.get(&format!("/v1/sessions/{session}")).await.ok(200);
    assert_eq!(session["user"], "dora");
}

#[tokio::test]
async fn what_somebody_types_never_approves() {
    for may_decide in [false, true] {
        let mut setup = setup();
        setup.server.keys_required = !may_decide;
        let mut scene = Scene::begin(Rig::with(setup).await).await;
        if may_decide {
            scene.ann = scene.rig.nobody();
        }
        let (_, hold, _) = paused(&scene, "pay").await;
        for said in ["approved", "approve", "yes", "R1.h1"] {
            let call = scene.say(said);
            let request = scene.claim().await;
            assert_eq!(request["input"], said);
            scene.complete(&request, "I heard that").await;
            let hint = format!(
                "(Messages here decide nothing; helper still waits for a decision: Pay? ({}))\n\n",
                text(&hold, "id")
            );
            let hint = if said == "R1.h1" { "" } else { &hint };
            let told = content(&finished(call).await);
            assert_eq!(told, format!("{hint}I heard that"));
        }
        let path = format!("/v1/holds/{}", text(&hold, "id"));
        let boss = scene.rig.key(&["approver"]).await;
        assert_eq!(boss.get(&path).await.ok(200)["status"], "open");
    }
}

/// The answer that a feed tells with the first end of a request, after its pause and the decision.
async fn told_of_the_end(feed: &mut Feed) -> String {
    let (mut was_paused, mut was_decided) = (false, false);
    loop {
        let told = feed.next().await.expect("the feed goes on").data;
        let Some(events) = told["events"].as_array() else {
            continue;
        };
        let find = |kind: &str| events.iter().find(|event| event["type"] == kind);
        was_paused |= find("hold_opened").is_some();
        was_decided |= was_paused && find("hold_decided").is_some();
        if find("request_ended").is_some() {
            assert!(was_decided, "the feed tells of the pause and the decision");
            let said = find("items_appended").expect("the answer comes with the end");
            return text(&said["items"][0], "content");
        }
    }
}

#[tokio::test]
async fn an_answer_that_came_since_comes_with_the_next_call() {
    for is_stream in [false, true] {
        let scene = Scene::new().await;
        let path = format!("/v1/sessions/{}/events", scene.session);
        let mut feed = scene.ann.follow(&path, None).await;
        let (paying, hold, _) = paused(&scene, "pay").await;
        scene.approve(&hold).await;
        scene.complete(&paying, "Paid 4.").await;
        assert_eq!(told_of_the_end(&mut feed).await, "Paid 4.");
        let (said, statehold) = if is_stream {
            let mut stream = scene.stream("thanks").await;
            assert_eq!(stream.text().await, "Paid 4.\n\n");
            let request = scene.claim().await;
            scene.complete(&request, "You are welcome.").await;
            let (rest, last) = stream.rest().await;
            (format!("Paid 4.\n\n{rest}"), last["statehold"].clone())
        } else {
            let call = scene.say("thanks");
            let request = scene.claim().await;
            scene.complete(&request, "You are welcome.").await;
            let answer = finished(call).await;
            (content(&answer), answer.ok(200)["statehold"].clone())
        };
        assert_eq!(said, "Paid 4.\n\nYou are welcome.");
        let earlier = json!([{"request": paying["id"], "content": "Paid 4."}]);
        assert_eq!(statehold["earlier"], earlier);

        // Once.
        let call = scene.say("bye");
        let request = scene.claim().await;
        scene.complete(&request, "Bye.").await;
        let answer = finished(call).await;
        assert_eq!(content(&answer), "Bye.");
        assert!(answer.ok(200)["statehold"].get("earlier").is_none());
    }
}

#[tokio::test]
async fn the_same_words_after_the_decision_get_the_answer_itself() {
    let scene = Scene::new().await;
    let (paying, hold, _) = paused(&scene, "pay").await;
    scene.approve(&hold).await;
    let call = scene.say("pay");
    scene.complete(&paying, "Paid 4.").await;
    let answer = finished(call).await;
    assert_eq!(content(&answer), "Paid 4.");
    assert!(answer.ok(200)["statehold"].get("earlier").is_none());
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn an_answer_that_came_after_a_restart_comes_with_the_next_call_too() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let (paying, hold, _) = paused(&scene, "pay").await;
    let scene = scene.restarted().await;
    scene.approve(&hold).await;
    scene.complete(&paying, "Paid 4.").await;
    for expected in ["Paid 4.\n\nBye.", "Bye."] {
        let call = scene.say("bye");
        let request = scene.claim().await;
        scene.complete(&request, "Bye.").await;
        assert_eq!(content(&finished(call).await), expected);
    }
}

#[tokio::test]
async fn a_call_that_waits_gets_the_answer_of_a_paused_turn() {
    let scene = Scene::new().await;
    let wait = [("x-statehold-wait", "60")];
    let whole = scene.send(words("helper", "pay"), &wait);
    let mut stream = scene.stream_with(words("helper", "pay"), &wait).await;
    let paying = scene.claim().await;
    let hold = scene.ask_approval(&paying).await;
    let first = stream.chunk().await;
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    let pause = stream.chunk().await;
    assert_eq!(pause["statehold"]["status"], "paused");
    assert_eq!(pause["statehold"]["holds"][0]["id"], hold["id"]);
    assert_eq!(pause["choices"][0]["delta"], json!({}));
    assert_eq!(pause["choices"][0]["finish_reason"], Value::Null);
    scene.approve(&hold).await;
    scene.complete(&paying, "Paid 4.").await;
    let (said, last) = stream.rest().await;
    assert_eq!(said, "Paid 4.");
    assert_eq!(last["statehold"]["status"], "completed");
    assert_eq!(content(&finished(whole).await), "Paid 4.");
    assert_eq!(scene.turns().await, 1);

    // The time may be over first.
    let short = [("x-statehold-wait", "1")];
    let whole = scene.send(words("helper", "pay more"), &short);
    let mut stream = scene.stream_with(words("helper", "pay more"), &short).await;
    let paying = scene.claim().await;
    scene.ask_approval(&paying).await;
    assert_eq!(
        finished(whole).await.ok(200)["statehold"]["status"],
        "paused"
    );
    let (said, last) = stream.rest().await;
    assert!(said.contains("Another person has to decide"), "{said}");
    assert_eq!(last["statehold"]["status"], "paused");

    for wrong in ["-1", "soon", "86401"] {
        let answer = finished(scene.send(words("helper", "x"), &[("x-statehold-wait", wrong)]));
        refused(&answer.await, 400, "bad_header");
    }
}

#[tokio::test]
async fn a_plain_message_answers_the_only_question() {
    for is_stream in [false, true] {
        let scene = Scene::new().await;
        let call = scene.say("weather?");
        let request = scene.claim().await;
        let question = json!({"kind": "question", "title": "Which Springfield?"});
        let hold = scene.ask(&request, question).await;
        let body = finished(call).await.ok(200);
        let said = text(&body["choices"][0]["message"], "content");
        let expected = format!(
            "helper asks: Which Springfield? ({})\n\nYour next message here is the answer.",
            text(&hold, "id")
        );
        assert_eq!(said, expected);

        let answered = async {
            let path = format!("/v1/requests/{}", text(&request, "id"));
            let seen = crate::rig::until("it is answered", || async {
                let seen = scene.helper.get(&path).await.ok(200);
                (seen["status"] == "running").then_some(seen)
            })
            .await;
            let decided = &seen["holds"][0];
            assert_eq!(decided["id"], hold["id"]);
            assert_eq!(decided["decision"]["content"], "The one in Ohio");
            scene.complete(&request, "Sunny, 72").await;
        };
        if is_stream {
            let mut stream = scene.stream("The one in Ohio").await;
            assert_eq!(stream.header("x-statehold-request"), text(&request, "id"));
            answered.await;
            assert_eq!(stream.rest().await.0, "Sunny, 72");
        } else {
            let call = scene.say("The one in Ohio");
            answered.await;
            assert_eq!(content(&finished(call).await), "Sunny, 72");
        }
        assert_eq!(scene.turns().await, 1);
    }
}

#[tokio::test]
async fn what_is_no_answer_begins_a_turn() {
    let scene = Scene::new().await;
    let cases = [
        json!({"kind": "question", "title": "How many?", "response_schema": {"type": "integer"}}),
        json!({"kind": "form", "title": "Fill in", "response_schema": {"type": "object"}}),
        json!({"kind": "question", "title": "For others", "decide_by": "other"}),
    ];
    for (n, hold) in cases.into_iter().enumerate() {
        let call = scene.say(&format!("begin {n}"));
        let asking = scene.claim().await;
        let hold = scene.ask(&asking, hold).await;
        finished(call).await.ok(200);
        let call = scene.say("Ohio");
        let request = scene.claim().await;
        assert_eq!(request["input"], "Ohio", "{hold}");
        scene.complete(&request, "I heard that").await;
        finished(call).await.ok(200);
        act(&scene.helper, &asking, "cancel", json!({})).await;
        scene
            .ann
            .post(
                &format!("/v1/requests/{}/cancel", text(&asking, "id")),
                &json!({}),
            )
            .await
            .ok(200);
    }
    // A message that fits two questions answers neither.
    let call = scene.say("two");
    let asking = scene.claim().await;
    let mut asked = Vec::new();
    for title in ["Here?", "There?"] {
        let question = json!({"kind": "question", "title": title});
        asked.push(text(&scene.ask(&asking, question).await, "id"));
    }
    finished(call).await.ok(200);
    let call = scene.say("Ohio");
    let request = scene.claim().await;
    assert_eq!(request["input"], "Ohio");
    scene.complete(&request, "Which?").await;
    let [here, there] = asked.as_slice() else {
        panic!("two questions: {asked:?}");
    };
    let line = format!(
        "(helper still waits for answers: Here? ({here}), There? ({there}). Answer each with: statehold \
         approvals respond ID)\n\nWhich?"
    );
    assert_eq!(content(&finished(call).await), line);
    // A message with a file is more than an answer; one with a schema that takes text is one.
    let scene = Scene::new().await;
    let call = scene.say("city?");
    let asking = scene.claim().await;
    let schema = json!({"enum": ["Ohio", "Texas"]});
    let hold = json!({"kind": "question", "title": "Where?", "response_schema": schema});
    scene.ask(&asking, hold).await;
    finished(call).await.ok(200);
    let mut file = words("helper", "");
    file["messages"][0]["content"] = json!([
        {"type": "text", "text": "Ohio"}, {"type": "image_url", "image_url": {"url": "https://x.test/a"}},
    ]);
    let call = scene.send(file, &[]);
    let request = scene.claim().await;
    scene.complete(&request, "A file!").await;
    finished(call).await.ok(200);
    let call = scene.say("Ohio");
    crate::rig::until("it is answered", || async {
        let path = format!("/v1/requests/{}", text(&asking, "id"));
        let seen = scene.helper.get(&path).await.ok(200);
        (seen["status"] == "running").then_some(())
    })
    .await;
    scene.complete(&asking, "Sunny").await;
    assert_eq!(content(&finished(call).await), "Sunny");
}

#[tokio::test]
async fn an_open_question_is_named_in_one_line_while_its_user_talks_about_something_else() {
    for is_stream in [false, true] {
        let scene = Scene::new().await;
        let call = scene.say("weather?");
        let asking = scene.claim().await;
        let schema = json!({"enum": ["Ohio", "Texas"]});
        let hold = json!({
            "kind": "question", "title": "Which\nSpringfield?", "response_schema": schema,
        });
        let hold = scene.ask(&asking, hold).await;
        let told = content(&finished(call).await);
        let choices = "Answer with your next message: Ohio or Texas.";
        assert!(told.ends_with(choices), "{told}");
        let line = format!(
            "(helper still waits for an answer: Which Springfield? ({}))\n\n",
            text(&hold, "id")
        );
        if is_stream {
            let mut stream = scene.stream("What's 2+2").await;
            assert_eq!(stream.text().await, line);
            let request = scene.claim().await;
            scene.complete(&request, "4").await;
            assert_eq!(stream.rest().await.0, "4");
        } else {
            let call = scene.say("What's 2+2");
            let request = scene.claim().await;
            assert_eq!(request["input"], "What's 2+2");
            scene.complete(&request, "4").await;
            assert_eq!(content(&finished(call).await), format!("{line}4"));
        }
        // It is open, and the next message that fits answers it.
        let call = scene.say("Ohio");
        crate::rig::until("it is answered", || async {
            let path = format!("/v1/requests/{}", text(&asking, "id"));
            let seen = scene.helper.get(&path).await.ok(200);
            (seen["status"] == "running").then_some(())
        })
        .await;
        scene.complete(&asking, "Sunny").await;
        assert_eq!(content(&finished(call).await), "Sunny");
        let call = scene.say("thanks");
        let request = scene.claim().await;
        scene.complete(&request, "Bye").await;
        assert_eq!(content(&finished(call).await), "Bye");
    }
}

#[tokio::test]
async fn a_message_answers_the_only_question_that_it_fits() {
    let scene = Scene::new().await;
    let call = scene.say("weather?");
    let asking = scene.claim().await;
    for (title, choices) in [
        ("Which Springfield?", ["Illinois", "Ohio"]),
        ("Which unit?", ["celsius", "fahrenheit"]),
    ] {
        let schema = json!({ "enum": choices });
        let hold = json!({"kind": "question", "title": title, "response_schema": schema});
        scene.ask(&asking, hold).await;
    }
    finished(call).await.ok(200);
    let path = format!("/v1/requests/{}", text(&asking, "id"));
    let call = scene.say("celsius");
    crate::rig::until("one is answered", || async {
        let open = scene.ann.get("/v1/holds").await.ok(200);
        (open["holds"].as_array().expect("a list").len() == 1).then_some(())
    })
    .await;
    // The turn waits for the other one.
    let told = content(&finished(call).await);
    assert!(told.contains("Which Springfield?"), "{told}");
    let call = scene.say("Ohio");
    crate::rig::until("both are answered", || async {
        let seen = scene.helper.get(&path).await.ok(200);
        (seen["status"] == "running").then_some(())
    })
    .await;
    scene.complete(&asking, "Sunny").await;
    assert_eq!(content(&finished(call).await), "Sunny");
    assert_eq!(scene.turns().await, 1);
}

#[tokio::test]
async fn a_message_answers_the_question_also_while_its_sender_may_decide_an_approval() {
    let mut setup = setup();
    setup.server.keys_required = false;
    let mut scene = Scene::begin(Rig::with(setup).await).await;
    scene.ann = scene.rig.nobody();
    let (_, approval, _) = paused(&scene, "pay").await;
    let call = scene.say("weather?");
    let asking = scene.claim().await;
    let question = json!({"kind": "question", "title": "Which Springfield?"});
    scene.ask(&asking, question).await;
    finished(call).await.ok(200);
    let call = scene.say("Ohio");
    crate::rig::until("it is answered", || async {
        let path = format!("/v1/requests/{}", text(&asking, "id"));
        let seen = scene.helper.get(&path).await.ok(200);
        (seen["status"] == "running").then_some(())
    })
    .await;
    scene.complete(&asking, "Sunny").await;
    assert_eq!(content(&finished(call).await), "Sunny");
    let path = format!("/v1/holds/{}", text(&approval, "id"));
    assert_eq!(scene.ann.get(&path).await.ok(200)["status"], "open");
}

#[tokio::test]
async fn a_draft_before_a_pause_is_followed_by_the_words_for_it() {
    let scene = Scene::new().await;
    let mut stream = scene.stream("pay").await;
    let request = scene.claim().await;
    let id = text(&request, "id").parse().expect("an id");
    let _draft = scene.rig.engine.open_draft(id);
    scene.rig.engine.write_draft(id, "Let me see.");
    assert_eq!(stream.text().await, "Let me see.");
    scene.ask_approval(&request).await;
    let (said, _) = stream.rest().await;
    assert!(
        said.starts_with("\n\nhelper waits for a decision"),
        "{said}"
    );
    assert_eq!(stream.next().await, Event::End);
}

#[tokio::test]
async fn a_turn_is_told_as_paused_however_much_else_waits() {
    let scene = Scene::new().await;
    let call = scene.say("many");
    let many = scene.claim().await;
    for _ in 0..101 {
        scene.ask_approval(&many).await;
    }
    finished(call).await.ok(200);
    let (_, hold, body) = paused(&scene, "pay").await;
    assert_eq!(body["statehold"]["holds"].as_array().map(Vec::len), Some(1));
    assert_eq!(body["statehold"]["holds"][0]["id"], hold["id"]);
}
