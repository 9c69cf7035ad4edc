//! Clients that carry nothing but messages: each call sends the conversation so far, without a header. The
//! server finds the session again by what the client was told.

use serde_json::{Value, json};
use statehold_core::ids::RequestId;
use statehold_engine::policy::Policies;
use statehold_engine::{DefaultLifetimes, Lifetimes};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use super::{COMPLETIONS, ChatStream, Scene, content, finished, refused, setup};
use crate::rest::act;
use crate::rig::{Answer, Rig, Who, text, until};

/// A chat window: it shows a conversation, and sends all of it.
#[derive(Clone)]
struct Window {
    who: Who,
    model: &'static str,
    messages: Vec<Value>,
}

impl Window {
    fn of(who: &Who) -> Self {
        Self {
            who: who.clone(),
            model: "helper",
            messages: Vec::new(),
        }
    }

    fn user(&mut self, content: impl Into<Value>) -> &mut Self {
        let content = content.into();
        self.messages
            .push(json!({"role": "user", "content": content}));
        self
    }

    fn assistant(&mut self, content: &str) -> &mut Self {
        self.messages
            .push(json!({"role": "assistant", "content": content}));
        self
    }

    fn body(&self) -> Value {
        json!({"model": self.model, "messages": self.messages})
    }

    /// Sends the conversation.
    fn send(&self) -> JoinHandle<Answer> {
        self.send_with(&[])
    }

    fn send_with(&self, headers: &[(&'static str, &'static str)]) -> JoinHandle<Answer> {
        let (who, body, headers) = (self.who.clone(), self.body(), headers.to_vec());
        tokio::spawn(async move {
            who.send("POST", COMPLETIONS, &headers, body.to_string())
                .await
        })
    }

    /// Says something, lets the helper answer, and shows the answer. Returns the session.
    async fn turn(&mut self, scene: &Scene, said: &str, answer: &str) -> String {
        let call = self.user(said).send();
        let request = scene.claim().await;
        assert_eq!(request["input"], said);
        scene.complete(&request, answer).await;
        self.show(call).await
    }

    /// Shows the answer of a call. Returns the session.
    async fn show(&mut self, call: JoinHandle<Answer>) -> String {
        let answer = finished(call).await;
        self.assistant(&content(&answer));
        session_of(&answer)
    }
}

fn session_of(answer: &Answer) -> String {
    let session = answer.header("x-statehold-session");
    session.expect("a session").to_owned()
}

/// The texts of a session.
async fn texts(scene: &Scene, session: &str) -> Vec<String> {
    let path = format!("/v1/sessions/{session}/messages");
    let page = scene.ann.get(&path).await.ok(200);
    let messages = page["messages"].as_array().expect("a list");
    messages
        .iter()
        .map(|message| text(message, "content"))
        .collect()
}

fn id(request: &Value) -> RequestId {
    text(request, "id").parse().expect("an id")
}

#[tokio::test]
async fn a_growing_conversation_stays_in_its_session() {
    for rig in [Rig::with(setup()).await, Rig::on_disk_with(setup()).await] {
        let scene = Scene::begin(rig).await;
        let mut window = Window::of(&scene.ann);
        let first = window.turn(&scene, "hello", "hi").await;
        for n in 0..5 {
            let session = window.turn(&scene, &format!("and {n}?"), "yes").await;
            assert_eq!(session, first);
        }
        assert_eq!(texts(&scene, &first).await.len(), 12);
        assert_ne!(first, scene.session);
    }
}

#[tokio::test]
async fn a_conversation_is_found_after_a_restart() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut window = Window::of(&scene.ann);
    let first = window.turn(&scene, "hello", "hi").await;
    let scene = scene.restarted().await;
    window.who = scene.ann.clone();
    assert_eq!(window.turn(&scene, "and now?", "still hi").await, first);
}

#[tokio::test]
async fn words_that_are_said_again_after_a_restart_are_a_new_turn() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut window = Window::of(&scene.ann);
    window.turn(&scene, "hello", "hi").await;
    let mut edited = window.clone();
    window.turn(&scene, "a number?", "4").await;
    let first = window.turn(&scene, "another?", "6").await;
    let scene = scene.restarted().await;
    window.who = scene.ann.clone();
    edited.who = scene.ann.clone();
    for said in ["another?", "a number?", "another?"] {
        assert_eq!(window.turn(&scene, said, "2").await, first, "{said}");
    }
    assert_ne!(edited.turn(&scene, "a number?", "1").await, first);
}

#[tokio::test]
async fn windows_with_the_same_beginning_do_not_mix_once_they_differ() {
    let scene = Scene::new().await;
    let (mut one, mut two) = (Window::of(&scene.ann), Window::of(&scene.ann));
    one.turn(&scene, "hello", "hi").await;
    two.turn(&scene, "hello", "hi").await;
    let first = one.turn(&scene, "I am Ann", "hi, Ann").await;
    let second = two.turn(&scene, "I am Bob", "hi, Bob").await;
    assert_ne!(first, second);
    for n in 0..3 {
        let said = format!("question {n}");
        assert_eq!(one.turn(&scene, &said, "answer").await, first);
        assert_eq!(two.turn(&scene, &said, "answer").await, second);
    }
    assert!(!texts(&scene, &first).await.contains(&"I am Bob".to_owned()));
    assert!(
        !texts(&scene, &second)
            .await
            .contains(&"I am Ann".to_owned())
    );
}

#[tokio::test]
async fn regenerating_an_answer_forks_the_session() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window.turn(&scene, "hello", "hi").await;
    let mut again = window.clone();
    let origin = window.turn(&scene, "a joke?", "no").await;
    let fork = again.turn(&scene, "a joke?", "well …").await;
    assert_ne!(fork, origin);
    assert_eq!(
        texts(&scene, &origin).await,
        ["hello", "hi", "a joke?", "no"]
    );
    assert_eq!(
        texts(&scene, &fork).await,
        ["hello", "hi", "a joke?", "well …"]
    );
    assert_eq!(window.turn(&scene, "bye", "bye").await, origin);
    assert_eq!(again.turn(&scene, "bye", "see you").await, fork);
    let memory = scene.helper_memory(&again, "and?").await;
    assert_eq!(memory, ["hello", "a joke?", "bye"]);
}

#[tokio::test]
async fn editing_a_message_forks_before_it() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    for n in 0..4 {
        window
            .turn(&scene, &format!("message {n}"), &format!("answer {n}"))
            .await;
    }
    let mut edited = window.clone();
    edited.messages.truncate(4);
    edited.turn(&scene, "another", "fine").await;
    let fork = edited.turn(&scene, "one more", "fine").await;
    let said = [
        "message 0",
        "answer 0",
        "message 1",
        "answer 1",
        "another",
        "fine",
        "one more",
        "fine",
    ];
    assert_eq!(texts(&scene, &fork).await, said);
    // The first message has nothing before it: another one begins another session.
    edited.messages.clear();
    let other = edited.turn(&scene, "message 0, edited", "fine").await;
    assert_eq!(texts(&scene, &other).await.len(), 2);
}

#[tokio::test]
async fn edits_of_edits_go_on_in_a_new_session_before_forks_lie_too_deep() {
    const LEVELS: usize = 64;
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut window = Window::of(&scene.ann);
    let mut sessions = vec![window.turn(&scene, "hello", "hi").await];
    for n in 0..=LEVELS {
        let mut edited = window.clone();
        let origin = window.turn(&scene, &format!("draft {n}"), "no").await;
        assert_eq!(Some(&origin), sessions.last());
        let said = format!("edited {n}");
        sessions.push(edited.turn(&scene, &said, "yes").await);
        window = edited;
    }
    let distinct: std::collections::BTreeSet<_> = sessions.iter().collect();
    assert_eq!(distinct.len(), sessions.len(), "each edit has a session");
    let last = sessions.pop().expect("the new one");
    let deepest = sessions.pop().expect("the last fork");
    let page = format!("/v1/sessions/{deepest}/messages?limit=200");
    let page = scene.ann.get(&page).await.ok(200);
    let shown = page["messages"].as_array().expect("a list").len();
    assert_eq!(shown, 2 * (LEVELS + 2), "a fork shows all before it");
    let fresh = texts(&scene, &last).await;
    assert_eq!(fresh, [&format!("edited {LEVELS}"), "yes"]);
    assert_eq!(window.turn(&scene, "and?", "yes").await, last);
}

#[tokio::test]
async fn a_client_that_sends_its_last_messages_only_is_found() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let first = window.turn(&scene, "message", "answer").await;
    for n in 0..8 {
        let keep = window.messages.len().saturating_sub(5);
        window.messages.drain(..keep);
        let said = format!("message {n}");
        assert_eq!(
            window.turn(&scene, &said, &format!("answer {n}")).await,
            first
        );
    }
}

#[tokio::test]
async fn content_is_the_same_as_text_and_as_parts() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window
        .user(json!([
            {"type": "text", "text": "look"},
            {"type": "image_url", "image_url": {"url": "https://x.test/a.png"}},
            {"type": "text", "text": "here"},
        ]))
        .send();
    let request = scene.claim().await;
    scene.complete(&request, "a cat").await;
    let first = window.show(call).await;
    window.messages[1]["content"] = json!([{"type": "text", "text": "a cat\r\n"}]);
    assert_eq!(window.turn(&scene, "sure?", "yes").await, first);
    window.messages[2]["content"] = json!([{"type": "text", "text": "sure?"}]);
    assert_eq!(window.turn(&scene, "really?", "yes").await, first);
    // Another picture was never shown here.
    window.messages[0]["content"][1]["image_url"]["url"] = "https://x.test/b.png".into();
    assert_ne!(window.turn(&scene, "and now?", "yes").await, first);
}

#[tokio::test]
async fn instructions_of_a_client_are_skipped() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window
        .messages
        .push(json!({"role": "system", "content": "Be terse."}));
    let first = window.turn(&scene, "hello", "hi").await;
    window.messages[0] = json!({"role": "developer", "content": "Be nice."});
    assert_eq!(window.turn(&scene, "and now?", "hi").await, first);
}

#[tokio::test]
async fn an_unknown_conversation_is_context_of_a_new_session() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window
        .messages
        .push(json!({"role": "system", "content": "Obey me."}));
    window.user("I am Ann").assistant("hi, Ann");
    window.messages[2]["custom_content"] = json!({"state": "forged"});
    let call = window.user("who am I?").send();
    let request = scene.claim().await;
    let operator = scene.rig.key(&["operator"]).await;
    let path = format!(
        "/v1/sessions/{}/messages?view=trace",
        text(&request, "session_id")
    );
    let trace = operator.get(&path).await.ok(200);
    let history = json!([
        {"role": "user", "content": "I am Ann"},
        {"role": "assistant", "content": "hi, Ann"},
    ]);
    let brought = &trace["messages"][0]["data"];
    assert_eq!(*brought, json!({"history": history}), "{trace}");
    scene.complete(&request, "Ann").await;
    let first = window.show(call).await;
    assert_eq!(window.turn(&scene, "sure?", "yes").await, first);
    let mut forged = window.clone();
    forged.messages[1]["content"] = "I am Bob".into();
    assert_ne!(forged.turn(&scene, "who?", "Bob").await, first);
    window.messages.drain(..2);
    assert_eq!(window.turn(&scene, "and now?", "yes").await, first);
}

#[tokio::test]
async fn a_first_message_that_is_sent_again_attaches_to_its_turn() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window.user("hello");
    let calls = [window.send(), window.send()];
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    let mut sessions = Vec::new();
    for call in calls {
        let answer = finished(call).await;
        assert_eq!(content(&answer), "hi");
        sessions.push(session_of(&answer));
    }
    assert_eq!(sessions[0], sessions[1]);
    // The answer has arrived: the same words begin another conversation.
    let other = Window::of(&scene.ann)
        .turn(&scene, "hello", "hi again")
        .await;
    assert_ne!(other, sessions[0]);
}

#[tokio::test]
async fn a_lost_answer_is_given_again_where_it_was_owed() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let first = window.turn(&scene, "hello", "hi").await;
    let call = window.user("pay").send();
    let request = scene.claim().await;
    call.abort();
    drop(call.await);
    scene.complete(&request, "paid").await;
    assert_eq!(window.show(window.send()).await, first);
    assert_eq!(texts(&scene, &first).await, ["hello", "hi", "pay", "paid"]);
}

#[tokio::test]
async fn a_stopped_stream_is_part_of_the_conversation_kept_or_dropped() {
    for keeps in [true, false] {
        let scene = Scene::new().await;
        let mut window = Window::of(&scene.ann);
        let first = window.turn(&scene, "hello", "hi").await;
        let mut body = window.user("a story?").body();
        body["stream"] = true.into();
        let mut stream = ChatStream::open(&scene.ann, &body, &[]).await;
        let request = scene.claim().await;
        let draft = scene.rig.engine.open_draft(id(&request));
        scene.rig.engine.write_draft(id(&request), "Once upon");
        assert_eq!(stream.text().await, "Once upon");
        drop(stream);
        if keeps {
            window.assistant("Once upon");
        }
        // While the turn is live, and after it has ended.
        assert_eq!(
            window.turn(&scene, "shorter", "No.").await,
            first,
            "{keeps}"
        );
        drop(draft);
        scene.complete(&request, "Once upon a time.").await;
        assert_eq!(
            window.turn(&scene, "longer", "Yes.").await,
            first,
            "{keeps}"
        );
        // A client that has all of an answer cannot have stopped it.
        let mut other = window.clone();
        let last = other.messages.len() - 1;
        other.messages[last]["content"] = "Y".into();
        assert_ne!(other.turn(&scene, "why?", "So.").await, first);
    }
}

#[tokio::test]
async fn a_fork_behind_a_pause_is_found_when_the_pause_was_decided() {
    for decided in [false, true] {
        let scene = Scene::new().await;
        let mut window = Window::of(&scene.ann);
        let call = window.user("pay 5").send();
        let request = scene.claim().await;
        let hold = scene.ask_approval(&request).await;
        let first = window.show(call).await;
        let mut edited = window.clone();
        assert_eq!(window.turn(&scene, "how are you?", "waiting").await, first);
        let fork = edited.turn(&scene, "who are you?", "an agent").await;
        assert_ne!(fork, first);
        if decided {
            scene.approve(&hold).await;
            scene.complete(&request, "paid 5").await;
        }
        let next = edited.turn(&scene, "and now?", "still one").await;
        assert_eq!(next, fork, "{decided}");
    }
}

#[tokio::test]
async fn a_paused_turn_is_recognised_by_the_words_of_its_pause() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut window = Window::of(&scene.ann);
    let call = window.user("pay 5").send();
    let request = scene.claim().await;
    let hold = scene.ask_approval(&request).await;
    let first = window.show(call).await;
    // Another message while it waits, then one after the approval, after a restart.
    assert_eq!(window.turn(&scene, "how are you?", "waiting").await, first);
    scene.approve(&hold).await;
    scene.complete(&request, "paid 5").await;
    let call = window.user("done?").send();
    let request = scene.claim().await;
    scene.complete(&request, "yes").await;
    let answer = finished(call).await;
    assert_eq!(content(&answer), "paid 5\n\nyes");
    assert_eq!(session_of(&answer), first);
    window.assistant("paid 5\n\nyes");
    let scene = scene.restarted().await;
    window.who = scene.ann.clone();
    assert_eq!(window.turn(&scene, "thanks", "welcome").await, first);
    let open = scene.ann.get("/v1/holds").await.ok(200);
    assert_eq!(open["holds"], json!([]), "one payment, one hold");
}

#[tokio::test]
async fn a_question_is_answered_by_the_next_message_of_the_conversation() {
    let scene = Scene::new().await;
    answer_a_question(&scene, Window::of(&scene.ann)).await;
}

#[tokio::test]
async fn a_key_without_a_user_answers_the_question_of_its_conversation() {
    let scene = Scene::new().await;
    let backend = scene.rig.key(&["client"]).await;
    answer_a_question(&scene, Window::of(&backend)).await;
}

async fn answer_a_question(scene: &Scene, mut window: Window) {
    let call = window.user("weather in Springfield?").send();
    let request = scene.claim().await;
    let hold = json!({"kind": "question", "title": "Which Springfield?"});
    scene.ask(&request, hold).await;
    let first = window.show(call).await;
    let call = window.user("Massachusetts").send();
    let path = format!("/v1/requests/{}", text(&request, "id"));
    until("the question is answered", || async {
        let request = scene.helper.get(&path).await.ok(200);
        (request["status"] == "running").then_some(())
    })
    .await;
    scene.complete(&request, "sunny").await;
    assert_eq!(window.show(call).await, first);
    assert_eq!(window.turn(scene, "and tomorrow?", "rain").await, first);
    let mut forged = window.clone();
    forged.messages[2]["content"] = "Illinois".into();
    assert_ne!(forged.turn(scene, "and then?", "snow").await, first);
}

#[tokio::test]
async fn a_session_that_fits_whole_comes_before_one_whose_end_fits() {
    let scene = Scene::new().await;
    let (mut one, mut two) = (Window::of(&scene.ann), Window::of(&scene.ann));
    let second = two.turn(&scene, "thanks", "welcome").await;
    one.turn(&scene, "my card is 1234", "noted").await;
    let first = one.turn(&scene, "thanks", "welcome").await;
    assert_ne!(first, second);
    let call = two.user("what is my card?").send();
    let request = scene.claim().await;
    scene.complete(&request, "I do not know").await;
    assert_eq!(two.show(call).await, second);
    assert_eq!(one.turn(&scene, "what is my card?", "1234").await, first);
}

#[tokio::test]
async fn a_question_may_be_answered_after_another_message() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.user("weather in Springfield?").send();
    let asking = scene.claim().await;
    let choices = json!({"enum": ["Illinois", "Massachusetts"]});
    let hold =
        json!({"kind": "question", "title": "Which Springfield?", "response_schema": choices});
    scene.ask(&asking, hold).await;
    let first = window.show(call).await;
    let call = window.user("what's 4+2?").send();
    let other = scene.claim().await;
    scene.complete(&other, "6").await;
    assert_eq!(window.show(call).await, first);
    let call = window.user("Illinois").send();
    let path = format!("/v1/requests/{}", text(&asking, "id"));
    until("the question is answered", || async {
        let request = scene.helper.get(&path).await.ok(200);
        (request["status"] == "running").then_some(())
    })
    .await;
    scene.complete(&asking, "sunny").await;
    assert_eq!(window.show(call).await, first);
    assert_eq!(window.turn(&scene, "what's 5+2?", "7").await, first);
    assert_eq!(window.turn(&scene, "and 6+2?", "8").await, first);
}

#[tokio::test]
async fn a_fork_is_told_what_came_of_a_pause_and_shows_its_tree() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.user("pay 5").send();
    let paying = scene.claim().await;
    let hold = scene.ask_approval(&paying).await;
    let origin = window.show(call).await;
    let mut edited = window.clone();
    assert_eq!(window.turn(&scene, "how are you?", "waiting").await, origin);
    let fork = edited.turn(&scene, "are you there?", "yes").await;
    assert_ne!(fork, origin);
    scene.approve(&hold).await;
    scene.complete(&paying, "paid 5").await;
    for (window, session) in [(&mut edited, &fork), (&mut window, &origin)] {
        let call = window.user("done?").send();
        let request = scene.claim().await;
        scene.complete(&request, "yes").await;
        let answer = finished(call).await;
        assert_eq!(content(&answer), "paid 5\n\nyes");
        assert_eq!(session_of(&answer), *session);
    }
    for session in [&fork, &origin] {
        let path = format!("/v1/sessions/{session}/tree?limit=1");
        let tree = scene.ann.get(&path).await.ok(200);
        let before = tree["before"].as_u64().expect("an older page");
        for before in (2..=before).rev() {
            let path = format!("/v1/sessions/{session}/tree?limit=1&before={before}");
            scene.ann.get(&path).await.ok(200);
        }
        let path = format!("/v1/sessions/{session}/tree");
        let tree = scene.ann.get(&path).await.ok(200);
        let count = |task: &Value| task["requests"].as_array().expect("a list").len();
        let tasks = tree["tasks"].as_array().expect("a list");
        assert_eq!(tasks.iter().map(count).sum::<usize>(), 3, "{tree}");
    }
}

#[tokio::test]
async fn a_failed_turn_does_not_end_the_conversation() {
    for keeps in [true, false] {
        let scene = Scene::new().await;
        let mut window = Window::of(&scene.ann);
        let first = window.turn(&scene, "hello", "hi").await;
        let call = window.user("fail").send();
        let request = scene.claim().await;
        let error = json!({"error": {"code": "agent_on_strike"}});
        act(&scene.helper, &request, "fail", error).await.ok(200);
        let answer = finished(call).await;
        assert_eq!(answer.status, 502);
        if !keeps {
            window.messages.pop();
        }
        assert_eq!(
            window.turn(&scene, "and now?", "hi").await,
            first,
            "{keeps}"
        );
        assert_eq!(
            window.turn(&scene, "and then?", "hi").await,
            first,
            "{keeps}"
        );
    }
}

#[tokio::test]
async fn a_window_does_not_enter_a_turn_of_another_that_has_no_answer() {
    for fails in [true, false] {
        let scene = Scene::new().await;
        let (mut one, mut two) = (Window::of(&scene.ann), Window::of(&scene.ann));
        let first = one.turn(&scene, "hello", "hi").await;
        // The other window says the same, and has no answer.
        let call = two.user("hello").send();
        let request = scene.claim().await;
        if fails {
            let error = json!({"error": {"code": "agent_on_strike"}});
            act(&scene.helper, &request, "fail", error).await.ok(200);
            assert_eq!(finished(call).await.status, 502);
        }
        assert_eq!(one.turn(&scene, "I am Ann", "hi, Ann").await, first);
        assert_ne!(text(&request, "session_id"), first, "fails: {fails}");
    }
}

#[tokio::test]
async fn a_repeated_call_goes_on_in_the_fork_that_it_made() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window.turn(&scene, "hello", "hi").await;
    let mut again = window.clone();
    let origin = window.turn(&scene, "a joke?", "no").await;
    let call = again.user("a joke?").send();
    let request = scene.claim().await;
    let fork = text(&request, "session_id");
    assert_ne!(fork, origin);
    let error = json!({"error": {"code": "agent_unreachable"}});
    act(&scene.helper, &request, "fail", error).await.ok(200);
    assert_eq!(finished(call).await.status, 502);
    // The repeat continues the failed turn.
    let call = again.send();
    let request = scene.claim().await;
    assert_eq!(text(&request, "session_id"), fork);
    scene.complete(&request, "well …").await;
    assert_eq!(again.show(call).await, fork);
    // The answer arrived: the same call once more is another fork.
    again.messages.pop();
    again.messages.pop();
    assert_ne!(again.turn(&scene, "a joke?", "so …").await, fork);
}

#[tokio::test]
async fn after_a_restart_a_window_does_not_answer_the_question_of_another() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let (mut one, mut two) = (Window::of(&scene.ann), Window::of(&scene.ann));
    let second = two.turn(&scene, "book a flight", "booked").await;
    let call = one.user("book a flight").send();
    let request = scene.claim().await;
    let hold = json!({"kind": "question", "title": "Where to?"});
    scene.ask(&request, hold).await;
    let first = one.show(call).await;
    assert_ne!(first, second);
    let scene = scene.restarted().await;
    two.who = scene.ann.clone();
    assert_eq!(two.turn(&scene, "thanks", "welcome").await, second);
    let path = format!("/v1/requests/{}", text(&request, "id"));
    let request = scene.helper.get(&path).await.ok(200);
    assert_eq!(request["status"], "held", "the question is open");
}

#[tokio::test]
async fn a_large_picture_is_sent_once_although_its_answer_was_lost() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let picture = format!("data:image/png;base64,{}", "A".repeat(1_500_000));
    window.user(json!([
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": picture}},
    ]));
    let call = window.send();
    let request = scene.claim().await;
    call.abort();
    drop(call.await);
    super::lost::alone(&scene, 0).await;
    scene.complete(&request, "nice").await;
    let answer = finished(window.send()).await;
    assert_eq!(content(&answer), "nice");
    assert_eq!(session_of(&answer), text(&request, "session_id"));
}

#[tokio::test]
async fn a_client_may_keep_the_part_of_an_answer_that_failed() {
    for kept in ["Once upon", "Once upon a", "Never"] {
        let scene = Scene::new().await;
        let mut window = Window::of(&scene.ann);
        let first = window.turn(&scene, "hello", "hi").await;
        let mut body = window.user("a story?").body();
        body["stream"] = true.into();
        let mut stream = ChatStream::open(&scene.ann, &body, &[]).await;
        let request = scene.claim().await;
        let draft = scene.rig.engine.open_draft(id(&request));
        scene.rig.engine.write_draft(id(&request), "Once upon a ");
        assert_eq!(stream.text().await, "Once upon a ");
        let error = json!({"error": {"code": "agent_on_strike"}});
        act(&scene.helper, &request, "fail", error).await.ok(200);
        drop(draft);
        let end = stream.chunk().await;
        assert_eq!(end["error"]["code"], "agent_error", "{end}");
        window.assistant(kept);
        let session = window.turn(&scene, "go on", "No.").await;
        assert_eq!(session == first, kept != "Never", "{kept}");
    }
}

#[tokio::test]
async fn sessions_of_chat_calls_have_an_end_that_moves_with_each_commit() {
    let scene = Scene::begin(Rig::with(setup()).await).await;
    scene.rig.engine.set_policies(Policies {
        lifetimes: DefaultLifetimes {
            chats: Lifetimes {
                session_ms: Some(60_000),
                hidden_ms: None,
            },
            ..DefaultLifetimes::default()
        },
        ..Policies::default()
    });
    let mut window = Window::of(&scene.ann);
    window.turn(&scene, "hello", "hi").await;
    let mut again = window.clone();
    let origin = window.turn(&scene, "a joke?", "no").await;
    let fork = again.turn(&scene, "a joke?", "well …").await;
    assert_ne!(fork, origin);
    let mut ends = Vec::new();
    for session in [&origin, &fork] {
        let path = format!("/v1/sessions/{session}");
        let session = scene.ann.get(&path).await.ok(200);
        assert_eq!(session["ttl_seconds"], 60, "{session}");
        assert_eq!(session["ttl_mode"], "sliding", "{session}");
        ends.push(text(&session, "expires_at"));
    }
    assert_eq!(window.turn(&scene, "bye", "bye").await, origin);
    let path = format!("/v1/sessions/{origin}");
    let later = scene.ann.get(&path).await.ok(200);
    assert!(text(&later, "expires_at") > ends[0]);
    // One that was made in another way lives on.
    let path = format!("/v1/sessions/{}", scene.session);
    let made = scene.ann.get(&path).await.ok(200);
    assert_eq!(made.get("expires_at"), None);
}

#[tokio::test]
async fn keys_without_a_user_do_not_share_their_conversations() {
    let scene = Scene::new().await;
    let (one, two) = (
        scene.rig.key(&["client"]).await,
        scene.rig.key(&["client"]).await,
    );
    let mut window = Window::of(&one);
    let first = window.turn(&scene, "hello", "hi").await;
    assert_eq!(window.turn(&scene, "and now?", "hi").await, first);
    let mut other = Window {
        who: two,
        ..window.clone()
    };
    assert_ne!(other.turn(&scene, "and then?", "hi").await, first);
    let mut bound = Window {
        who: scene.ann.clone(),
        ..window.clone()
    };
    assert_ne!(bound.turn(&scene, "and then?", "hi").await, first);
}

#[tokio::test]
async fn an_idempotency_key_finds_its_turn_again() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let first = window.turn(&scene, "hello", "hi").await;
    window.user("pay");
    let call = window.send_with(&[("idempotency-key", "k1")]);
    let request = scene.claim().await;
    scene.complete(&request, "paid").await;
    assert_eq!(content(&finished(call).await), "paid");
    let again = finished(window.send_with(&[("idempotency-key", "k1")])).await;
    assert_eq!(content(&again), "paid");
    assert_eq!(again.header("idempotency-replayed"), Some("true"));
    assert_eq!(session_of(&again), first);
    let mut other = window.clone();
    let other = other.user("more").send_with(&[("idempotency-key", "k1")]);
    refused(&finished(other).await, 422, "key_reused");
}

#[tokio::test]
async fn a_call_may_name_no_session_and_an_agent_may_need_one() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window.user("hello");
    let none = finished(window.send_with(&[("x-statehold-session", "none")])).await;
    refused(&none, 422, "agent_needs_session");
    window.model = "strict";
    let unsaid = finished(window.send()).await;
    let error = refused(&unsaid, 422, "agent_needs_session");
    let message = text(&error, "message");
    assert!(message.contains("x-statehold-session: new"), "{message}");
}

#[tokio::test]
async fn calls_with_tools_are_for_services_behind_chat_completions() {
    let scene = Scene::new().await;
    let tools = json!([{"type": "function", "function": {"name": "add"}}]);
    for model in ["helper", "quiet", "strict", "desk", "archive", "office"] {
        let mut body = super::words(model, "2+2?");
        body["tools"] = tools.clone();
        let answer = scene.ann.post(COMPLETIONS, &body).await;
        let code = match model {
            "strict" => "agent_needs_session",
            _ => "tools_not_supported",
        };
        refused(&answer, 422, code);
    }
    // A conversation about tools that the caller runs has no session either.
    let mut body = super::words("helper", "2+2?");
    let result = json!({"role": "tool", "tool_call_id": "c1", "content": "4"});
    body["messages"]
        .as_array_mut()
        .expect("a list")
        .insert(0, result);
    refused(
        &scene.ann.post(COMPLETIONS, &body).await,
        422,
        "agent_needs_session",
    );
}

impl Scene {
    /// The inputs that the helper remembers when it is asked next.
    async fn helper_memory(&self, window: &Window, said: &str) -> Vec<String> {
        let mut window = window.clone();
        let call = window.user(said).send();
        let request = self.claim().await;
        let path = format!("/v1/requests/{}/memory", text(&request, "id"));
        let memory = self.helper.get(&path).await.ok(200);
        self.complete(&request, "fine").await;
        window.show(call).await;
        let exchanges = memory["exchanges"].as_array().expect("a list").iter().rev();
        let inputs = exchanges.map(|exchange| text(&exchange["items"][0], "content"));
        inputs.collect()
    }
}

/// Sends the head of a call, and waits until the server asks for the body.
async fn begin_call(window: &Window, headers: &str) -> TcpStream {
    let (who, body) = (&window.who, window.body().to_string());
    let key = who.key.as_deref().expect("a key");
    let head = format!(
        "POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\n{headers}\
         content-type: application/json\r\ncontent-length: {}\r\nexpect: 100-continue\r\n\
         connection: close\r\n\r\n",
        body.len()
    );
    let mut stream = TcpStream::connect(who.address).await.expect("a connection");
    stream.write_all(head.as_bytes()).await.expect("it is sent");
    let mut go_on = [0; 25];
    stream.read_exact(&mut go_on).await.expect("an answer");
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream
}

/// Sends the body of a call that was begun, and reads the answer.
async fn end_call(mut call: TcpStream, window: &Window) -> String {
    let body = window.body().to_string();
    call.write_all(body.as_bytes()).await.expect("it is sent");
    let mut answer = String::new();
    let read = call.read_to_string(&mut answer);
    let read = tokio::time::timeout(std::time::Duration::from_secs(20), read).await;
    read.expect("an answer in time").expect("an answer");
    answer
}

#[tokio::test]
async fn a_call_that_was_sent_before_the_answer_left_is_the_same_call() {
    let scene = Scene::new().await;
    let in_session = format!("x-statehold-session: {}\r\n", scene.session);
    let mut window = Window::of(&scene.ann);
    for (turn, said) in ["pay 5", "pay 6"].into_iter().enumerate() {
        window.user(said);
        for headers in ["", &in_session] {
            let repeated = begin_call(&window, headers).await;
            let first = begin_call(&window, headers).await;
            let window_of_first = window.clone();
            let call = tokio::spawn(async move { end_call(first, &window_of_first).await });
            let request = scene.claim().await;
            scene.complete(&request, "paid").await;
            let first = call.await.expect("the call is made");
            assert!(first.contains("paid"), "{first}");
            let again = end_call(repeated, &window).await;
            assert!(again.contains(&text(&request, "id")), "{turn}: {again}");
        }
        let work = json!({"agent": "helper", "wait_seconds": 0});
        let left = scene.helper.post("/v1/work/claim", &work).await.ok(200);
        assert_eq!(left["requests"], json!([]), "it was paid twice");
        // The same words after the answer are another turn.
        let call = window.send();
        let request = scene.claim().await;
        scene.complete(&request, "paid again").await;
        assert_eq!(content(&finished(call).await), "paid again");
        window.assistant("paid");
    }
}

#[tokio::test]
async fn an_answer_from_before_a_restart_comes_with_the_next_message_of_a_client_without_it() {
    let mut scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut window = Window::of(&scene.ann);
    let call = window.user("pay 5").send();
    let paying = scene.claim().await;
    let hold = scene.ask_approval(&paying).await;
    let first = window.show(call).await;
    scene.approve(&hold).await;
    scene.complete(&paying, "paid 5").await;
    for expected in ["paid 5\n\nyes", "yes", "yes"] {
        scene = scene.restarted().await;
        window.who = scene.ann.clone();
        let call = window.user("done?").send();
        let request = scene.claim().await;
        scene.complete(&request, "yes").await;
        let answer = finished(call).await;
        assert_eq!(content(&answer), expected);
        assert_eq!(session_of(&answer), first);
        window.assistant(expected);
    }
}

#[tokio::test]
async fn a_conversation_is_found_by_a_rare_line_if_its_last_one_is_in_many_others() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window.turn(&scene, "my card is 1234", "noted").await;
    let first = window.turn(&scene, "thanks", "welcome").await;
    for n in 0..40 {
        let mut other = Window::of(&scene.ann);
        other
            .turn(&scene, &format!("my card is {n}"), "noted")
            .await;
        other.turn(&scene, "thanks", "welcome").await;
    }
    let session = window.turn(&scene, "what is my card?", "1234").await;
    assert_eq!(session, first);
}
