//! Conversation services: one conversation per session, in every failure case.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::Method;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use statehold_core::digest::Digest;
use statehold_core::item::ItemKind;
use statehold_core::request::{LiveRequest, LiveStatus};
use statehold_core::task::CloseOn;
use statehold_engine::bodies::{AttachmentBody, ItemBody};
use statehold_engine::policy::Policies;
use statehold_engine::testing;
use statehold_fakes::conversations::{Conversation, Conversations};
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, locked, send};

use crate::briefing::briefed;
use crate::rig::{Outcome, Rig, book, name, router};
use crate::world::{LOST, LOST_AND_BRIEFED, annotations_of, answer_of, conversations};

fn begins(seen: &SeenRequest) -> bool {
    seen.method == Method::POST && seen.path == "/v1/conversations"
}

#[tokio::test]
async fn turns_that_race_share_one_conversation_and_do_not_overlap_in_it() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        // Long enough that turns would overlap without the lock.
        play.after(BodyStep::Wait(Duration::from_millis(50)))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    let mut requests = Vec::new();
    for n in 0..6 {
        requests.push(rig.ask(session, "ums", &format!("message {n}")).await);
    }
    let mut answers = Vec::new();
    for request in requests {
        let ended = rig.ended(request).await;
        answers.push(answer_of(&ended));
    }
    answers.sort();
    let expected: Vec<String> = (1..=6).map(|n| format!("answer {n}")).collect();
    assert_eq!(answers, expected);
    let begun = server.seen().iter().filter(|seen| begins(seen)).count();
    assert_eq!(begun, 1);
    assert_eq!(locked(&service.all).len(), 1);
    assert_eq!(service.most_in_flight(), 1, "one at a time");
    let ums = "ums".parse().expect("a name");
    let tasks = testing::tasks_of(&rig.engine, session, &ums).await?;
    assert!(tasks.len() > 1, "they were tasks of their own");
    // Another session has another conversation.
    let other = rig.session("ums").await;
    assert_eq!(rig.turn(other, "ums", "hello").await, "answer 1");
    assert_eq!(locked(&service.all).len(), 2);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn first_turns_at_once_make_one_conversation_per_path() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        play.after(BodyStep::Wait(Duration::from_millis(20)))
    })
    .await;
    let policies = Policies {
        close_on: [(name("ums"), CloseOn::Reply)].into(),
        ..Policies::default()
    };
    let agents = vec![
        Arc::new(conversations("ums", &server)),
        router("front", &[(".", "ums")], &["ums"]),
    ];
    let rig = Rig::with(book(agents), policies).await;
    let runner = rig.runner().await;
    let session = rig.session("front").await;
    let mut requests = Vec::new();
    for n in 0..16 {
        let agent = ["ums", "front"][n % 2];
        let said = format!("{agent} {n}");
        requests.push(rig.ask(session, agent, &said).await);
    }
    let mut answers = Vec::new();
    for request in requests {
        answers.push(answer_of(&rig.ended(request).await));
    }
    answers.sort();
    let expected = (1..=8).flat_map(|n| [format!("answer {n}"), format!("answer {n}")]);
    assert_eq!(answers, expected.collect::<Vec<_>>());
    // Later turns find it, also after the task that created it was closed.
    assert_eq!(rig.turn(session, "front", "front").await, "answer 9");
    assert_eq!(rig.turn(session, "front", "front").await, "answer 10");
    assert_eq!(rig.turn(session, "ums", "ums").await, "answer 9");
    let all = locked(&service.all).clone();
    let mut titles: Vec<&str> = all.iter().map(|one| one.title.as_str()).collect();
    titles.sort_unstable();
    let title = |path: &str| format!("Statehold {session} {path} 1");
    assert_eq!(titles, [title("front/ums"), title("ums")]);
    for one in &all {
        let agent = if one.title == title("ums") {
            "ums"
        } else {
            "front"
        };
        let is_own = |said: &String| said.starts_with(agent);
        assert!(one.messages.iter().all(is_own), "{:?}", one.messages);
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn turns_that_race_across_a_reload_share_one_conversation_too() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        play.after(BodyStep::Wait(Duration::from_millis(50)))
    })
    .await;
    let declared = |digest: &[u8]| {
        let mut spec = conversations("ums", &server);
        spec.digest = Digest::sha256(digest);
        book(vec![Arc::new(spec)])
    };
    let mut rig = Rig::with(declared(b"before"), Policies::default()).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    let mut requests = Vec::new();
    for n in 0..3 {
        requests.push(rig.ask(session, "ums", &format!("message {n}")).await);
    }
    rig.reload(&runner, declared(b"after")).await;
    for n in 3..6 {
        requests.push(rig.ask(session, "ums", &format!("message {n}")).await);
    }
    let mut answers = Vec::new();
    for request in requests {
        answers.push(answer_of(&rig.ended(request).await));
    }
    answers.sort();
    let expected: Vec<String> = (1..=6).map(|n| format!("answer {n}")).collect();
    assert_eq!(answers, expected);
    let begun = server.seen().iter().filter(|seen| begins(seen)).count();
    assert_eq!(begun, 1);
    assert_eq!(service.most_in_flight(), 1, "one at a time");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn what_the_service_calls_its_side_of_a_call_is_kept() -> Outcome {
    let service = Arc::new(Conversations::default());
    let server = FakeService::start(move |seen| {
        let play = service.respond(seen, |_| "hi".to_owned());
        play.with_header("x-conversation-id", "theirs")
            .with_header("x-statehold-request", "req_theirs")
    })
    .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    assert_eq!(rig.turn(session, "ums", "hello").await, "hi");
    let steps = rig.items(session, "ums", ItemKind::Step).await;
    let step: Value =
        serde_json::from_str(steps[1].data.as_ref().expect("data").get()).expect("JSON");
    let ids = json!({"x-conversation-id": "theirs", "x-statehold-request": "req_theirs"});
    assert_eq!(step["result"]["ids"], ids, "{step}");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn turns_of_one_session_that_wait_in_line_leave_room_for_those_of_others() -> Outcome {
    let service = Arc::new(Conversations::default());
    let (played, go_on) = (Arc::clone(&service), Arc::new(tokio::sync::Notify::new()));
    let told = Arc::clone(&go_on);
    let server = FakeService::start(move |seen| {
        let play = played.respond(seen, |said| said.join(", "));
        if seen.text.contains("slow") {
            return play.after(BodyStep::Until(Arc::clone(&told)));
        }
        play
    })
    .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.limited(2).await;
    let (crowded, other) = (rig.session("ums").await, rig.session("ums").await);
    let mut waiting = vec![rig.ask(crowded, "ums", "slow").await];
    let is_asked = |said: &str| {
        let seen = server.seen();
        seen.iter().any(|seen| seen.text.contains(said))
    };
    while !is_asked("slow") {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    for n in 0..8 {
        waiting.push(rig.ask(crowded, "ums", &format!("later {n}")).await);
    }
    // All turns have started, and only the first is in flight.
    for request in &waiting {
        let is_begun = |live: &LiveRequest| live.status == LiveStatus::Running;
        rig.until(*request, |detail| {
            detail.request.live().is_some_and(is_begun)
        })
        .await;
    }
    assert_eq!(rig.turn(other, "ums", "hello").await, "hello");
    assert!(!is_asked("later"));
    go_on.notify_one();
    for request in waiting {
        answer_of(&rig.ended(request).await);
    }
    assert_eq!(locked(&service.all).len(), 2);
    assert_eq!(service.most_in_flight(), 2, "one in each");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// Drops the response to the first creation.
async fn losing_server(service: &Arc<Conversations>) -> FakeService {
    let (played, is_lost) = (Arc::clone(service), AtomicBool::new(false));
    FakeService::start(move |seen| {
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        if begins(seen) && !is_lost.swap(true, Ordering::SeqCst) {
            return ScriptedResponse::new(200, "application/json", vec![BodyStep::Cut]);
        }
        play
    })
    .await
}

#[tokio::test]
async fn a_conversation_whose_creation_was_not_answered_is_found() -> Outcome {
    // Within one turn that retries, and in the turn after one that does not.
    for retries in [2, 0] {
        let service = Arc::new(Conversations::default());
        let server = losing_server(&service).await;
        let mut spec = conversations("ums", &server);
        spec.retries = retries;
        let rig = Rig::new(vec![Arc::new(spec)]).await;
        let runner = rig.runner().await;
        let session = rig.session("ums").await;
        if retries == 0 {
            let error = rig.failing_turn(session, "ums", "hello").await;
            assert_eq!(error["code"], "agent_cut_off");
        }
        assert_eq!(rig.turn(session, "ums", "hello").await, "answer 1");
        assert_eq!(rig.turn(session, "ums", "again").await, "answer 2");
        let begun = server.seen().iter().filter(|seen| begins(seen)).count();
        assert_eq!(begun, 1);
        let asked = server.seen();
        let looked = asked.iter().filter(|seen| seen.method == Method::GET);
        assert_eq!(looked.count(), 1, "it is looked for once");
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

/// Drops the response to the first creation, and sends an invalid list.
async fn secretive_server(service: &Arc<Conversations>, list: ScriptedResponse) -> FakeService {
    let (played, is_lost) = (Arc::clone(service), AtomicBool::new(false));
    FakeService::start(move |seen| {
        if seen.method == Method::GET {
            return list.clone();
        }
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        if begins(seen) && !is_lost.swap(true, Ordering::SeqCst) {
            return ScriptedResponse::new(200, "application/json", vec![BodyStep::Cut]);
        }
        play
    })
    .await
}

#[tokio::test]
async fn a_conversation_that_cannot_be_looked_for_is_begun_once_more_and_said_so() -> Outcome {
    let other = json!({"id": "other", "title": "x".repeat(1024)}).to_string() + ",";
    let long = vec![
        send("["),
        BodyStep::Repeat(Bytes::from(other), 9 * 1024),
        send("{}]"),
    ];
    for list in [
        ScriptedResponse::new(200, "application/json", long),
        ScriptedResponse::json(405, &json!({"detail": "Method Not Allowed"})),
        ScriptedResponse::json(200, &json!({"detail": "no list"})),
    ] {
        let service = Arc::new(Conversations::default());
        let server = secretive_server(&service, list).await;
        let mut spec = conversations("ums", &server);
        spec.retries = 1;
        let rig = Rig::new(vec![Arc::new(spec)]).await;
        let runner = rig.runner().await;
        let session = rig.session("ums").await;
        assert_eq!(rig.turn(session, "ums", "hello").await, "answer 1");
        assert_eq!(rig.turn(session, "ums", "again").await, "answer 2");
        let seen = server.seen();
        let begun = seen.iter().filter(|seen| begins(seen));
        let keys: Vec<_> = begun.map(|seen| seen.header("idempotency-key")).collect();
        assert_eq!(keys.len(), 2);
        assert!(keys[0].is_some() && keys[0] == keys[1], "{keys:?}");
        assert_eq!(locked(&service.all)[0].messages.len(), 0, "not a word");
        let notes = rig.notes(session, "ums").await;
        let names: Vec<&str> = notes.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["conversation_unseen"]);
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_list_that_fails_for_now_is_asked_for_again_in_the_next_turn() -> Outcome {
    let service = Arc::new(Conversations::default());
    let (played, is_lost) = (Arc::clone(&service), AtomicBool::new(false));
    let is_down = AtomicBool::new(true);
    let server = FakeService::start(move |seen| {
        if seen.method == Method::GET && is_down.swap(false, Ordering::SeqCst) {
            return ScriptedResponse::json(503, &json!({"detail": "later"}));
        }
        let play = played.respond(seen, |said| format!("answer {}", said.len()));
        if begins(seen) && !is_lost.swap(true, Ordering::SeqCst) {
            return ScriptedResponse::new(200, "application/json", vec![BodyStep::Cut]);
        }
        play
    })
    .await;
    let mut spec = conversations("ums", &server);
    spec.retries = 1;
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    let error = rig.failing_turn(session, "ums", "hello").await;
    assert_eq!(error["code"], "agent_error");
    assert_eq!(rig.turn(session, "ums", "hello").await, "answer 1");
    assert_eq!(locked(&service.all).len(), 1);
    assert_eq!(rig.notes(session, "ums").await.len(), 0);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_conversation_that_the_service_lost_is_begun_anew_once_and_said_so() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        played.respond(seen, |said| format!("answer {}", said.len()))
    })
    .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    assert_eq!(rig.turn(session, "ums", "hello").await, "answer 1");
    locked(&service.all)[0].id = "moved".to_owned();
    let request = rig.ask(session, "ums", "still there?").await;
    let ended = rig.ended(request).await;
    assert_eq!(answer_of(&ended), format!("{LOST}answer 1"));
    assert_eq!(
        annotations_of(&ended),
        json!({"conversation_recreated": true})
    );
    let notes = rig.notes(session, "ums").await;
    assert_eq!(notes.len(), 1);
    assert_eq!(notes[0].0, "conversation_recreated");
    assert_eq!(rig.turn(session, "ums", "and now?").await, "answer 2");
    assert_eq!(locked(&service.all).len(), 2);
    let steps = rig.items(session, "ums", ItemKind::Step).await;
    let kinds: Vec<_> = steps.iter().map(|step| step.name.as_deref()).collect();
    let (begun, call) = (Some("conversation"), Some("agent_call"));
    assert_eq!(kinds, [begun, call, begun, call, call]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_service_that_loses_every_conversation_is_a_clear_error() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        if seen.path.ends_with("/chat") {
            return ScriptedResponse::json(404, &json!({"detail": "Conversation not found"}));
        }
        played.respond(seen, |_| String::new())
    })
    .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    let error = rig.failing_turn(session, "ums", "hello").await;
    assert_eq!(error["code"], "conversation_lost");
    assert_eq!(locked(&service.all).len(), 2, "twice and no more");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// A service that answers each message with how many it has got, and that fails on demand.
async fn forgetful_server(service: &Arc<Conversations>) -> FakeService {
    let played = Arc::clone(service);
    FakeService::start(move |seen| {
        if seen.path.ends_with("/chat") && seen.said().ends_with("fail") {
            return ScriptedResponse::json(400, &json!({"detail": "not now"}));
        }
        played.respond(seen, |said| format!("answer {}", said.len()))
    })
    .await
}

#[tokio::test]
async fn a_service_that_lost_the_conversation_is_told_the_earlier_exchanges_on_request() -> Outcome
{
    let service = Arc::new(Conversations::default());
    let server = forgetful_server(&service).await;
    let mut spec = conversations("ums", &server);
    spec.brief_on_loss = true;
    let rig = Rig::new(vec![Arc::new(spec)]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    assert_eq!(rig.turn(session, "ums", "my name is Ada").await, "answer 1");
    locked(&service.all)[0].id = "moved".to_owned();
    let answer = rig.turn(session, "ums", "who am I?").await;
    assert_eq!(answer, format!("{LOST_AND_BRIEFED}answer 1"));
    assert_eq!(rig.turn(session, "ums", "and now?").await, "answer 2");
    let all = locked(&service.all).clone();
    assert_eq!(all.len(), 2);
    let (earlier, said) = briefed(&all[1].messages[0]);
    let expected = [
        json!({"role": "user", "content": "my name is Ada"}),
        json!({"role": "assistant", "content": "answer 1"}),
    ];
    assert_eq!(earlier, expected);
    assert_eq!(
        (said, all[1].messages[1].as_str()),
        ("who am I?", "and now?")
    );
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_loss_is_told_with_the_first_answer_after_it_also_if_a_turn_failed_in_between() -> Outcome
{
    for brief_on_loss in [false, true] {
        let service = Arc::new(Conversations::default());
        let server = forgetful_server(&service).await;
        let mut spec = conversations("ums", &server);
        spec.brief_on_loss = brief_on_loss;
        let rig = Rig::new(vec![Arc::new(spec)]).await;
        let runner = rig.runner().await;
        let session = rig.session("ums").await;
        assert_eq!(rig.turn(session, "ums", "hello").await, "answer 1");
        locked(&service.all)[0].id = "moved".to_owned();
        // The old conversation is not there, and the new one takes no message yet.
        rig.failing_turn(session, "ums", "still there? fail").await;
        let told = if brief_on_loss {
            LOST_AND_BRIEFED
        } else {
            LOST
        };
        let answer = rig.turn(session, "ums", "hello?").await;
        assert_eq!(answer, format!("{told}answer 1"));
        assert_eq!(rig.turn(session, "ums", "fine").await, "answer 2");
        assert_eq!(locked(&service.all).len(), 2);
        // It may be lost again, and is told again.
        locked(&service.all)[1].id = "moved again".to_owned();
        let answer = rig.turn(session, "ums", "and now?").await;
        assert_eq!(answer, format!("{told}answer 1"));
        runner.stop().await;
        rig.engine.shut_down().await;
    }
    Ok(())
}

#[tokio::test]
async fn a_tracked_conversation_takes_64_bytes_in_the_state_of_its_task() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| {
        let response = played.respond(seen, |_| "hi".to_owned());
        if begins(seen) {
            let id = "0198f2aa-7a10-7c3e-9d1f-2f6b8c1d0e4a";
            locked(&played.all)[0].id = id.to_owned();
            return ScriptedResponse::json(200, &json!({"id": id}));
        }
        response
    })
    .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    for said in ["one", "two"] {
        assert_eq!(rig.turn(session, "ums", said).await, "hi");
    }
    let tasks = testing::tasks_of(&rig.engine, session, &name("ums")).await?;
    let stored = testing::task_state(&rig.engine, tasks[0]).await?;
    let stored = stored.expect("the conversation");
    assert!(stored.len() <= 64, "{}", String::from_utf8_lossy(&stored));
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn a_service_that_keeps_the_history_has_none_read_here() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| played.respond(seen, |_| "hi".to_owned())).await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    for turn in 0..10 {
        rig.turn(session, "ums", &format!("message {turn}")).await;
    }
    assert_eq!(rig.engine.items_read(), 0);
    // The counter works: a fork has to be told of them.
    let fork = testing::fork(&rig.engine, &rig.local, session).await?;
    rig.turn(fork, "ums", "and here?").await;
    assert!(rig.engine.items_read() >= 20);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

#[tokio::test]
async fn files_of_a_message_reach_a_conversation_service_as_text() -> Outcome {
    let service = Arc::new(Conversations::default());
    let played = Arc::clone(&service);
    let server = FakeService::start(move |seen| played.respond(seen, |_| "seen".to_owned())).await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    let body = ItemBody {
        content: to_raw_value("Look").ok(),
        ..ItemBody::default()
    };
    let note = AttachmentBody {
        kind: Some("text/plain".to_owned()),
        title: Some("n.txt".to_owned()),
        data: Some("R3LDvMOfZQ==".to_owned()),
        ..AttachmentBody::default()
    };
    let page = AttachmentBody {
        url: Some("https://files.test/a".to_owned()),
        ..AttachmentBody::default()
    };
    let request = rig.ask_body(session, "ums", &body, &[note, page]).await;
    rig.ended(request).await;
    let expected = "Look\n\nAttachment: n.txt (text/plain)\nGrüße\n[end of the file]\n\n\
                    Attachment: https://files.test/a";
    assert_eq!(locked(&service.all)[0].messages, [expected]);
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}

/// A coordinator without a state server kept the id with its answers. A trusted client brings it along once.
#[tokio::test]
async fn a_conversation_that_a_client_brought_along_goes_on_and_is_recorded() -> Outcome {
    let service = Arc::new(Conversations::default());
    let old = Conversation {
        id: "c-old".to_owned(),
        title: "old".to_owned(),
        messages: vec!["before".to_owned()],
    };
    locked(&service.all).push(old);
    let ums = Arc::clone(&service);
    let server =
        FakeService::start(move |seen| ums.respond(seen, |said| format!("answer {}", said.len())))
            .await;
    let rig = Rig::new(vec![Arc::new(conversations("ums", &server))]).await;
    let runner = rig.runner().await;
    let session = rig.session("ums").await;
    let data = json!({"dial": {"ums_conversation_id": "c-old"}});
    let request = rig.ask_bringing(session, "ums", "hello", &data).await;
    assert_eq!(answer_of(&rig.ended(request).await), "answer 2");
    // The record counts from now on.
    let data = json!({"dial": {"ums_conversation_id": "c-other"}});
    let request = rig.ask_bringing(session, "ums", "again", &data).await;
    assert_eq!(answer_of(&rig.ended(request).await), "answer 3");
    assert_eq!(rig.turn(session, "ums", "and again").await, "answer 4");
    assert_eq!(locked(&service.all).len(), 1, "none was created");
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(())
}
