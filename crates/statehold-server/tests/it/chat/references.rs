//! Clients that carry a sealed reference: each answer has one, the client sends it back with the message, and the
//! server finds the place in the session by it.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::spec::{AgentBook, ChatSessions};
use statehold_server::ServerOptions;
use statehold_store::keys::{KeyFile, PayloadKeys};
use tokio::task::JoinHandle;

use super::{
    COMPLETIONS, ChatStream, Scene, agent, book, content, finished, refused, setup, words,
};
use crate::rest::{act, claim};
use crate::rig::{Answer, Rig, Setup, Who, text};

const ASK: (&str, &str) = ("x-statehold-reference", "1");

/// A chat window that keeps the answers as they came, with what they carry.
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

    fn send_with(
        &mut self,
        said: &str,
        headers: &[(&'static str, &'static str)],
    ) -> JoinHandle<Answer> {
        self.messages.push(json!({"role": "user", "content": said}));
        let body = json!({"model": self.model, "messages": self.messages});
        let (who, headers) = (self.who.clone(), headers.to_vec());
        tokio::spawn(async move {
            let sent = who.send("POST", COMPLETIONS, &headers, body.to_string());
            sent.await
        })
    }

    fn send(&mut self, said: &str) -> JoinHandle<Answer> {
        self.send_with(said, &[])
    }

    /// Says something, lets the helper answer, and keeps the answer. Returns the session.
    async fn turn(&mut self, scene: &Scene, said: &str) -> String {
        let call = self.send(said);
        let request = scene.claim().await;
        assert_eq!(request["input"], said);
        scene.complete(&request, &format!("{said}!")).await;
        self.keep(call).await
    }

    /// The first turn, which asks for references.
    async fn begin(&mut self, scene: &Scene, said: &str) -> String {
        let call = self.send_with(said, &[ASK]);
        let request = scene.claim().await;
        scene.complete(&request, &format!("{said}!")).await;
        self.keep(call).await
    }

    /// Keeps the answer of a call as it came. Returns the session.
    async fn keep(&mut self, call: JoinHandle<Answer>) -> String {
        let answer = finished(call).await;
        let message = answer.ok(200)["choices"][0]["message"].clone();
        self.messages.push(message);
        session_of(&answer)
    }

    /// The conversation as somebody shortens it: other words in the place of all that was said, and the references.
    fn shortened(&self) -> Self {
        let mut other = self.clone();
        for message in &mut other.messages {
            message["content"] = "…".into();
        }
        other
    }

    /// The `custom_content.state` of the last message.
    fn carried(&mut self) -> &mut Value {
        let last = self.messages.last_mut().expect("a message");
        &mut last["custom_content"]["state"]
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
    messages.iter().map(|one| text(one, "content")).collect()
}

/// How the session of its newest turn was found, as the trace says.
async fn found(scene: &Scene, session: &str) -> Value {
    let operator = scene.rig.key(&["operator"]).await;
    let path = format!("/v1/sessions/{session}/messages?view=trace");
    let trace = operator.get(&path).await.ok(200);
    let items = trace["messages"].as_array().expect("a list");
    let input = items.iter().rfind(|item| item["role"] == "user");
    input.expect("an input")["data"]["found"].clone()
}

#[tokio::test]
async fn a_reference_keeps_its_size_and_its_session_over_twenty_turns() {
    for rig in [Rig::with(setup()).await, Rig::on_disk_with(setup()).await] {
        let scene = Scene::begin(rig).await;
        let mut window = Window::of(&scene.ann);
        let first = window.begin(&scene, "hello").await;
        let size = window.carried().to_string().len();
        assert!(size <= 250, "{size}");
        for n in 0..20 {
            // The words do not matter: the reference names the place.
            window = window.shortened();
            assert_eq!(window.turn(&scene, &format!("and {n}?")).await, first);
            assert_eq!(window.carried().to_string().len(), size);
            assert_eq!(
                found(&scene, &first).await,
                json!({"by": "reference", "reference": "valid"})
            );
        }
        assert_eq!(texts(&scene, &first).await.len(), 42);
        // The last answer is enough.
        window.messages.drain(..window.messages.len() - 1);
        assert_eq!(window.turn(&scene, "bye").await, first);
    }
}

#[tokio::test]
async fn a_stream_carries_the_reference_in_its_last_chunk() {
    let scene = Scene::new().await;
    let mut body = words("helper", "hello");
    body["stream"] = true.into();
    let mut stream = ChatStream::open(&scene.ann, &body, &[ASK]).await;
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    let session = stream.header("x-statehold-session").to_owned();
    let (said, last) = stream.rest().await;
    let custom = &last["choices"][0]["delta"]["custom_content"];
    assert!(custom["state"]["statehold"]["ref"].is_string(), "{last}");
    let mut window = Window::of(&scene.ann);
    window.messages = vec![
        json!({"role": "user", "content": "hello"}),
        json!({"role": "assistant", "content": said, "custom_content": custom}),
    ];
    assert_eq!(window.shortened().turn(&scene, "and now?").await, session);
}

#[tokio::test]
async fn regenerating_and_editing_with_a_reference_fork_the_session_and_take_nothing_back() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    window.begin(&scene, "one").await;
    let after_one = window.shortened();
    window.turn(&scene, "two").await;
    let after_two = window.shortened();
    let origin = window.turn(&scene, "three").await;
    // Regenerate: the same message once more.
    let mut again = after_two.clone();
    let fork = again.turn(&scene, "three").await;
    assert_ne!(fork, origin);
    let said = ["one", "one!", "two", "two!", "three", "three!"];
    assert_eq!(texts(&scene, &fork).await, said);
    assert_eq!(texts(&scene, &origin).await, said);
    // Edit an earlier message.
    let mut edited = after_one.clone();
    let other = edited.turn(&scene, "zwei").await;
    assert_eq!(
        texts(&scene, &other).await,
        ["one", "one!", "zwei", "zwei!"]
    );
    assert_eq!(
        found(&scene, &other).await,
        json!({"by": "reference", "reference": "valid"})
    );
    // Each goes on where it is.
    assert_eq!(window.turn(&scene, "four").await, origin);
    assert_eq!(again.turn(&scene, "four").await, fork);
    assert_eq!(edited.turn(&scene, "three").await, other);
    assert_eq!(texts(&scene, &origin).await.len(), 8);
}

#[tokio::test]
async fn two_windows_with_one_reference_part_where_they_differ() {
    let scene = Scene::new().await;
    let mut one = Window::of(&scene.ann);
    let session = one.begin(&scene, "hello").await;
    let mut two = one.shortened();
    assert_eq!(one.turn(&scene, "I am Ann").await, session);
    let other = two.turn(&scene, "I am Bob").await;
    assert_ne!(other, session);
    for n in 0..3 {
        let said = format!("question {n}");
        assert_eq!(one.turn(&scene, &said).await, session);
        assert_eq!(two.turn(&scene, &said).await, other);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_windows_that_send_at_the_same_time_part_too() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    for round in 0..16 {
        let mut window = Window::of(&scene.ann);
        let first = window.begin(&scene, &format!("hello {round}")).await;
        let mut other = window.clone();
        let calls = [window.send("left"), other.send("right")];
        for _ in 0..2 {
            let request = scene.claim().await;
            let answer = format!("{}!", text(&request, "input"));
            scene.complete(&request, &answer).await;
        }
        let [left, right] = calls;
        let sessions = [window.keep(left).await, other.keep(right).await];
        assert_ne!(sessions[0], sessions[1]);
        assert!(sessions.contains(&first), "{sessions:?}");
        for (session, said) in sessions.iter().zip(["left", "right"]) {
            let told = texts(&scene, session).await;
            assert_eq!(told[2..], [said.to_owned(), format!("{said}!")]);
        }
    }
}

#[tokio::test]
async fn a_repeated_call_with_a_reference_attaches_to_its_turn_and_forks_once() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let session = window.begin(&scene, "hello").await;
    let before = window.shortened();
    for (is_fork, said) in [(false, "more"), (true, "other")] {
        let (mut lost, mut again) = (before.clone(), before.clone());
        let call = lost.send(said);
        let request = scene.claim().await;
        // The connection is lost while the agent works.
        call.abort();
        drop(call.await);
        let call = again.send(said);
        scene.complete(&request, "once").await;
        let found = session_of(&finished(call).await);
        assert_eq!(found, text(&request, "session_id"));
        assert_eq!(found != session, is_fork, "{said}");
        assert_eq!(
            texts(&scene, &found).await,
            ["hello", "hello!", said, "once"]
        );
    }
}

#[tokio::test]
async fn a_question_is_answered_in_the_place_of_its_reference() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.send_with("weather?", &[ASK]);
    let work = scene.claim().await;
    let question = json!({"kind": "question", "title": "Which Springfield?"});
    scene.ask(&work, question).await;
    let session = window.keep(call).await;
    act(&scene.helper, &work, "release", json!({}))
        .await
        .ok(200);
    window = window.shortened();
    let call = window.send("Ohio");
    let work = claim(&scene.helper, "helper").await;
    assert_eq!(work["decisions"][0]["decision"]["content"], "Ohio");
    scene.complete(&work, "Sunny.").await;
    assert_eq!(window.keep(call).await, session);
    assert_eq!(window.shortened().turn(&scene, "thanks").await, session);
}

#[tokio::test]
async fn a_turn_that_ends_after_later_ones_keeps_the_conversation_in_its_session() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.send_with("weather?", &[ASK]);
    let work = scene.claim().await;
    let schema = json!({"type": "string", "enum": ["Ohio", "Texas"]});
    let question =
        json!({"kind": "question", "title": "Which Springfield?", "response_schema": schema});
    scene.ask(&work, question).await;
    let session = window.keep(call).await;
    act(&scene.helper, &work, "release", json!({}))
        .await
        .ok(200);
    // The conversation goes on, and then the question is answered.
    assert_eq!(window.turn(&scene, "note milk").await, session);
    let call = window.send("Ohio");
    let work = claim(&scene.helper, "helper").await;
    scene.complete(&work, "Sunny.").await;
    assert_eq!(window.keep(call).await, session);
    assert_eq!(window.turn(&scene, "thanks").await, session);
    assert_eq!(window.turn(&scene, "bye").await, session);
}

#[tokio::test]
async fn an_answer_that_came_after_its_pause_is_told_in_the_place_of_the_reference() {
    let scene = Scene::new().await;
    let mut window = Window::of(&scene.ann);
    let call = window.send_with("pay", &[ASK]);
    let work = scene.claim().await;
    let hold = scene.ask_approval(&work).await;
    let session = window.keep(call).await;
    act(&scene.helper, &work, "release", json!({}))
        .await
        .ok(200);
    scene.approve(&hold).await;
    let work = scene.claim().await;
    scene.complete(&work, "Paid.").await;
    window = window.shortened();
    let call = window.send("thanks");
    let work = scene.claim().await;
    scene.complete(&work, "welcome").await;
    let answer = finished(call).await;
    assert_eq!(content(&answer), "Paid.\n\nwelcome");
    assert_eq!(session_of(&answer), session);
}

#[tokio::test]
async fn a_reference_that_does_not_hold_here_never_breaks_a_conversation_and_never_acts() {
    let scene = Scene::new().await;
    let (mut window, mut foreign) = (Window::of(&scene.ann), Window::of(&scene.ann));
    let session = window.begin(&scene, "hello").await;
    foreign.who = scene.rig.client("bob").await;
    foreign.begin(&scene, "hello, Bob here").await;
    let own = text(&window.carried()["statehold"], "ref");
    let other = foreign.carried().clone();
    let flipped = own.replacen(|c: char| c.is_ascii_lowercase(), "Z", 1);
    let refs = [
        other,
        json!({"statehold": {"ref": flipped}}),
        json!({"statehold": {"ref": own[..own.len() - 1]}}),
        json!({"statehold": {"ref": format!("{own}A")}}),
        json!({"statehold": {"ref": ""}}),
        json!({"statehold": {"ref": session}}),
        json!({"statehold": {"ref": "x".repeat(1_000_000)}}),
    ];
    for (n, state) in refs.into_iter().enumerate() {
        // The server knows the session by its messages.
        *window.carried() = state.clone();
        assert_eq!(window.turn(&scene, &format!("more {n}")).await, session);
        let step = json!({"by": "session", "reference": "unreadable"});
        assert_eq!(found(&scene, &session).await, step, "{state}");
        // Where it does not, the messages are context of a new one.
        let mut unknown = window.shortened();
        unknown.messages.drain(..unknown.messages.len() - 1);
        *unknown.carried() = state.clone();
        unknown.messages[0]["content"] = format!("answer {n}").into();
        let fresh = unknown.turn(&scene, "and now?").await;
        assert_ne!(fresh, session);
        let step = json!({"by": "messages", "reference": "unreadable"});
        assert_eq!(found(&scene, &fresh).await, step, "{state}");
    }
    // Any other state is no reference: other apps have states of their own.
    let answers = texts(&scene, &session).await.len();
    for message in &mut window.messages {
        message["custom_content"] = Value::Null;
    }
    for (n, state) in [
        json!(7),
        json!("x"),
        json!([own]),
        json!({"statehold": own}),
    ]
    .into_iter()
    .enumerate()
    {
        *window.carried() = state;
        assert_eq!(window.turn(&scene, &format!("again {n}")).await, session);
        assert_eq!(found(&scene, &session).await, Value::Null);
        window.messages.last_mut().expect("a message")["custom_content"] = json!({});
    }
    window.messages.last_mut().expect("a message")["custom_content"] = json!("x");
    assert_eq!(window.turn(&scene, "at last").await, session);
    assert_eq!(texts(&scene, &session).await.len(), answers + 10);
}

#[tokio::test]
async fn a_reference_is_for_its_user_and_its_agent() {
    let scene = Scene::new().await;
    let backend = scene.rig.key(&["client"]).await;
    let ask = |user: &'static str| [ASK, ("x-statehold-user", user)];
    let mut window = Window::of(&backend);
    let call = window.send_with("hello", &ask("dora"));
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    let session = window.keep(call).await;
    // The same key for another user, and another agent of the same user.
    for (user, model) in [("emil", "helper"), ("dora", "boss"), ("dora", "helper")] {
        let mut window = window.shortened();
        window.model = model;
        let call = window.send_with("and now?", &ask(user));
        let worker = scene.rig.worker(&[model]).await;
        let request = claim(&worker, model).await;
        let done = json!({"output": "ok"});
        act(&worker, &request, "complete", done).await.ok(200);
        let other = window.keep(call).await;
        assert_eq!(
            other == session,
            (user, model) == ("dora", "helper"),
            "{user} {model}"
        );
    }
}

#[tokio::test]
async fn a_backend_that_named_the_session_once_goes_on_by_the_reference() {
    let scene = Scene::new().await;
    let backend = scene.rig.key(&["client"]).await;
    let mut window = Window::of(&backend);
    window
        .messages
        .push(json!({"role": "user", "content": "hello"}));
    let body = json!({"model": "helper", "messages": window.messages}).to_string();
    let session = scene.session.clone();
    let call = tokio::spawn(async move {
        let headers = [ASK, ("x-statehold-session", session.as_str())];
        backend.send("POST", COMPLETIONS, &headers, body).await
    });
    let request = scene.claim().await;
    scene.complete(&request, "hi").await;
    // The session is Ann's, in another app than the default one.
    assert_eq!(window.keep(call).await, scene.session);
    let mut again = window.shortened();
    assert_eq!(window.shortened().turn(&scene, "more").await, scene.session);
    let fork = again.turn(&scene, "other").await;
    assert_ne!(fork, scene.session);
    let made = scene.ann.get(&format!("/v1/sessions/{fork}")).await.ok(200);
    assert_eq!(
        (&made["user"], &made["app"]),
        (&json!("ann"), &json!("demo"))
    );
}

#[tokio::test]
async fn a_reference_to_a_session_that_is_over_is_passed_over() {
    let scene = Scene::new().await;
    for end in ["close", "delete"] {
        let mut window = Window::of(&scene.ann);
        let session = window.begin(&scene, &format!("hello, {end}")).await;
        let path = format!("/v1/sessions/{session}");
        if end == "close" {
            let closed = scene.ann.post(&format!("{path}/close"), &json!({})).await;
            closed.ok(200);
        } else {
            scene.ann.delete(&path).await.ok(204);
        }
        let fresh = window.turn(&scene, "and now?").await;
        assert_ne!(fresh, session);
        let step = json!({"by": "messages", "reference": "gone"});
        assert_eq!(found(&scene, &fresh).await, step);
        // The new reference is the newest.
        assert_eq!(window.shortened().turn(&scene, "more").await, fresh);
    }
}

#[tokio::test]
async fn a_reference_expires() {
    let mut setup = Setup::with_clock(0);
    setup.server.agents = book().into();
    let scene = Scene::begin(Rig::with(setup).await).await;
    let mut window = Window::of(&scene.ann);
    let session = window.begin(&scene, "hello").await;
    let admin = scene.rig.key(&["admin"]).await;
    let year = json!({"step_seconds": 366 * 86_400});
    admin.post("/v1/dev/clock", &year).await.ok(200);
    let again = window.turn(&scene, "and now?").await;
    assert_eq!(again, session, "it is found by its messages");
    let step = json!({"by": "session", "reference": "expired"});
    assert_eq!(found(&scene, &session).await, step);
}

#[tokio::test]
async fn references_survive_a_restart_and_the_rotation_of_the_ring() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut window = Window::of(&scene.ann);
    let first = window.begin(&scene, "hello").await;
    let mut edited = window.shortened();
    window.turn(&scene, "more").await;
    let scene = scene.rotated().await;
    (window.who, edited.who) = (scene.ann.clone(), scene.ann.clone());
    window = window.shortened();
    // The same words again are a new turn: the client has the answer to the first.
    assert_eq!(window.turn(&scene, "more").await, first);
    assert_eq!(texts(&scene, &first).await.len(), 6);
    let fork = edited.turn(&scene, "other").await;
    assert_ne!(fork, first);
    assert_eq!(
        texts(&scene, &fork).await,
        ["hello", "hello!", "other", "other!"]
    );
}

#[tokio::test]
async fn a_lost_ring_makes_references_useless_and_nothing_else() {
    let scene = Scene::begin(Rig::on_disk_with(setup()).await).await;
    let mut window = Window::of(&scene.ann);
    window.begin(&scene, "hello").await;
    let scene = scene.without_ring().await;
    let mut again = Window::of(&scene.ann);
    again.messages = window.messages;
    let session = again.turn(&scene, "and now?").await;
    let step = found(&scene, &session).await;
    assert_eq!(step["reference"], "unreadable", "{step}");
    assert_eq!(again.shortened().turn(&scene, "more").await, session);
}

#[tokio::test]
async fn the_agent_and_the_call_say_who_gets_references() {
    let mut agents = book().agents.clone();
    for (model, sessions) in [
        ("strict", ChatSessions::Explicit),
        ("helper", ChatSessions::Auto),
    ] {
        let kind = statehold_agents::spec::AgentKind::Worker;
        let (name, mut spec) = agent(model, kind, sessions);
        Arc::get_mut(&mut spec)
            .expect("nobody else has it yet")
            .references = true;
        agents.insert(name, spec);
    }
    let book = AgentBook {
        agents,
        ..AgentBook::default()
    };
    let server = ServerOptions {
        agents: Arc::new(book).into(),
        ..ServerOptions::default()
    };
    let setup = Setup {
        server,
        ..Setup::default()
    };
    let scene = Scene::begin(Rig::with(setup).await).await;
    for (headers, has_it) in [
        (&[][..], true),
        (&[("x-statehold-reference", "0")], false),
        (&[ASK], true),
    ] {
        let mut window = Window::of(&scene.ann);
        let call = window.send_with(&format!("hello {}", headers.len()), headers);
        let request = scene.claim().await;
        scene.complete(&request, "hi").await;
        window.keep(call).await;
        assert_eq!(window.messages[1].get("custom_content").is_some(), has_it);
    }
    let body = words("helper", "x").to_string();
    let odd = [("x-statehold-reference", "yes")];
    let answer = scene.ann.send("POST", COMPLETIONS, &odd, body).await;
    refused(&answer, 400, "bad_header");

    // An agent that wants a session takes a reference, and does not lock out a client whose reference is void.
    let strict = scene.rig.worker(&["strict"]).await;
    let mut window = Window::of(&scene.ann);
    window.model = "strict";
    refused(
        &finished(window.send("hello")).await,
        422,
        "agent_needs_session",
    );
    window.messages.clear();
    let call = window.send_with("hello", &[("x-statehold-session", "new")]);
    let request = claim(&strict, "strict").await;
    act(&strict, &request, "complete", json!({"output": "hi"}))
        .await
        .ok(200);
    let session = window.keep(call).await;
    for state in [
        window.carried().clone(),
        json!({"statehold": {"ref": "void"}}),
    ] {
        let is_valid = state["statehold"]["ref"] != "void";
        let mut window = window.shortened();
        *window.carried() = state;
        let call = window.send("and now?");
        let request = claim(&strict, "strict").await;
        act(&strict, &request, "complete", json!({"output": "hi"}))
            .await
            .ok(200);
        assert_eq!(window.keep(call).await == session, is_valid);
    }
}

impl Scene {
    /// The same after the server was stopped, the ring was rotated, and the server started again.
    async fn rotated(self) -> Self {
        self.after(|data| {
            let keys = KeyFile::open(data).expect("keys open");
            keys.rotate_ring().expect("it rotates");
        })
        .await
    }

    /// The same after the server was stopped, the ring was lost, and the server started again. The keys of users are
    /// lost with it, and so are those of callers.
    async fn without_ring(self) -> Self {
        self.after(|data| {
            let ring = data.join(statehold_store::key_ring::KeyRing::NAME);
            std::fs::remove_file(ring).expect("it is lost");
        })
        .await
    }

    async fn after(self, change: impl FnOnce(&std::path::Path)) -> Self {
        let data = self.rig.stop().await.expect("it is on disk");
        change(data.path());
        let rig = Rig::start(Some(data), setup()).await;
        let address = rig.address;
        Self {
            rig,
            ann: Who {
                address,
                ..self.ann
            },
            helper: Who {
                address,
                ..self.helper
            },
            session: self.session,
        }
    }
}
