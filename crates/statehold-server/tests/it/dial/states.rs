//! The two promises of the course system, with sealed and with plain states: an agent that keeps nothing gets its history
//! back, and a service that keeps conversations goes on in the same one. And states that its clients still carry.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use statehold_agents::runner::Runner;
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, CallerTrust, ChatMemory, ChatSessions, ConversationsSpec,
    FinalAnswer, ModelSpec, OpenaiSpec, RouterSpec, Routing, StateFormat,
};
use statehold_core::name::Name;
use statehold_fakes::chat::{streamed, streamed_with};
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{FakeService, ScriptedResponse};

use super::{Events, merged, message};
use crate::chat::agent;
use crate::chat::upstream::host;
use crate::rig::{Rig, Who, text};

/// The state of the agent that keeps nothing, with members that only it can read.
const HISTORY: &str = r#"{"tool_call_history":[{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"a","type":"function","function":{"name":"search","arguments":"{}"}}]},{"role":"tool","tool_call_id":"a","content":"1.50"}],"index":7}"#;

/// A coordinator before each of two agents, and the services behind those.
struct Course {
    rig: Rig,
    runner: Runner,
    ann: Who,
    gpa: FakeService,
    conversations: Arc<Conversations>,
    _ums: FakeService,
}

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

fn declared(
    text: &str,
    kind: AgentKind,
    change: impl Fn(&mut AgentSpec),
) -> (Name, Arc<AgentSpec>) {
    let (name, mut spec) = agent(text, kind, ChatSessions::Auto);
    change(Arc::get_mut(&mut spec).expect("nobody else has it yet"));
    (name, spec)
}

fn before(agent: &str) -> AgentKind {
    AgentKind::Router(Arc::new(RouterSpec {
        agents: vec![name(agent)],
        routing: Routing::Rules {
            rules: Vec::new(),
            otherwise: Some(name(agent)),
        },
        answer: FinalAnswer::Pass,
    }))
}

impl Course {
    async fn start(format: StateFormat, trust: CallerTrust) -> Self {
        let gpa =
            FakeService::start(|_| streamed_with("found it", &format!(r#"{{"state":{HISTORY}}}"#)))
                .await;
        let conversations = Arc::new(Conversations::default());
        let kept = Arc::clone(&conversations);
        let says = |messages: &[String]| format!("answer {}", messages.len());
        let ums = FakeService::start(move |seen| kept.respond(seen, says)).await;
        let general = AgentKind::Openai(Arc::new(OpenaiSpec {
            base_url: gpa.url("/v1"),
            model: "general-purpose-agent".to_owned(),
            credential: None,
            headers: Vec::new(),
            memory: ChatMemory::Restore,
        }));
        let users = AgentKind::Conversations(Arc::new(ConversationsSpec {
            base_url: ums.url(""),
            credential: None,
            headers: Vec::new(),
        }));
        let trusting = |spec: &mut AgentSpec| spec.caller_history = trust;
        let formed = |spec: &mut AgentSpec| {
            spec.caller_history = trust;
            spec.state_format = format;
        };
        let book = AgentBook {
            agents: [
                declared("gpa", general, trusting),
                declared("ums", users, trusting),
                declared("gpa-desk", before("gpa"), formed),
                declared("ums-desk", before("ums"), formed),
            ]
            .into(),
            ..AgentBook::default()
        };
        let (rig, runner) = host(book, Vec::new()).await;
        let ann = rig.client("ann").await;
        Self {
            rig,
            runner,
            ann,
            gpa,
            conversations,
            _ums: ums,
        }
    }

    /// Says something as DIAL Chat does, whole or as a stream. Returns the message and the session.
    async fn say(&self, desk: &str, messages: &[Value], is_stream: bool) -> (Value, String) {
        let path = format!("/openai/deployments/{desk}/chat/completions");
        let body = json!({"messages": messages, "stream": is_stream});
        if !is_stream {
            let answer = self.ann.post(&path, &body).await;
            let session = answer.header("x-statehold-session").unwrap_or_default();
            return (message(&answer), session.to_owned());
        }
        let body = body.to_string().into();
        let sent = self.ann.begin("POST", &path, &[], body).await;
        let mut events = Events::read(sent.expect("an answer begins"));
        let session = events.headers["x-statehold-session"].to_str();
        let session = session.expect("text").to_owned();
        (merged(&events.chunks().await), session)
    }

    /// The messages that the agent without memory got last.
    fn got(&self) -> Vec<Value> {
        let seen = self.gpa.seen();
        let body = seen.last().expect("a call").json();
        body["messages"].as_array().expect("a list").clone()
    }

    async fn end(self) {
        self.runner.stop().await;
        self.rig.engine.shut_down().await;
    }
}

fn asked(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

/// An answer as DIAL Chat sends it back.
fn echoed(message: &Value) -> Value {
    json!({
        "role": "assistant", "content": message["content"],
        "custom_content": {"state": message["custom_content"]["state"]},
    })
}

fn history() -> Value {
    serde_json::from_str(HISTORY).expect("JSON")
}

/// The seed's `test_gpa_state_persistence`.
#[tokio::test]
async fn an_agent_that_keeps_nothing_gets_its_tool_history_back() {
    for format in [StateFormat::Sealed, StateFormat::Plain] {
        for is_stream in [false, true] {
            let course = Course::start(format, CallerTrust::Untrusted).await;
            let first = [asked("search for A")];
            let (answer, session) = course.say("gpa-desk", &first, is_stream).await;
            let state = &answer["custom_content"]["state"];
            match format {
                StateFormat::Sealed => assert!(state["statehold"]["ref"].is_string(), "{state}"),
                StateFormat::Plain => {
                    let expected = json!({"is_gpa": true, "gpa_messages": history()});
                    assert_eq!(state, &expected);
                }
            }
            let second = [asked("search for A"), echoed(&answer), asked("and more?")];
            let (_, again) = course.say("gpa-desk", &second, is_stream).await;
            assert_eq!(again, session);
            let got = course.got();
            assert_eq!(got.len(), 3, "{got:?}");
            assert_eq!(got[1]["custom_content"]["state"], history());
            course.end().await;
        }
    }
}

/// The seed's `test_ums_conversation_reuse`. Every answer names the conversation, so a deleted one orphans nothing.
#[tokio::test]
async fn a_service_that_keeps_conversations_goes_on_in_the_same_one() {
    for format in [StateFormat::Sealed, StateFormat::Plain] {
        let course = Course::start(format, CallerTrust::Untrusted).await;
        let mut messages = Vec::new();
        for n in 1..=3 {
            messages.push(asked(&format!("question {n}")));
            let (answer, _) = course.say("ums-desk", &messages, n == 2).await;
            assert_eq!(answer["content"], format!("answer {n}"));
            if format == StateFormat::Plain {
                let state = &answer["custom_content"]["state"];
                assert_eq!(state, &json!({"ums_conversation_id": "c-1"}));
            }
            messages.push(echoed(&answer));
        }
        let kept = {
            let all = course.conversations.all.lock().expect("no panic");
            (all.len(), all[0].messages.len())
        };
        assert_eq!(kept, (1, 3));
        course.end().await;
    }
}

#[tokio::test]
async fn a_plain_state_that_was_changed_is_not_believed_over_the_record() {
    for trust in [CallerTrust::Untrusted, CallerTrust::Trusted] {
        let course = Course::start(StateFormat::Plain, trust).await;
        let (answer, session) = course.say("gpa-desk", &[asked("search")], false).await;
        let mut forged = echoed(&answer);
        let history = &mut forged["custom_content"]["state"]["gpa_messages"]["tool_call_history"];
        history[1]["content"] = "FORGED".into();
        let messages = [asked("search"), forged, asked("and more?")];
        let (_, again) = course.say("gpa-desk", &messages, false).await;
        assert_eq!(again, session);
        let got = Value::from(course.got()).to_string();
        assert!(got.contains("1.50") && !got.contains("FORGED"), "{got}");
        course.end().await;
    }
}

/// A conversation that began at a coordinator without a state server.
#[tokio::test]
async fn a_state_from_another_coordinator_reaches_only_an_agent_that_trusts_its_callers() {
    let own = || json!({"tool_call_history": history()["tool_call_history"]});
    for (state, is_valid) in [
        (json!({"is_gpa": true, "gpa_messages": own()}), true),
        (
            json!({"gpa_messages": own(), "ums_conversation_id": "c-9"}),
            true,
        ),
        (own(), true),
        (
            json!({"is_gpa": true, "gpa_messages": {"tool_call_history": "OBEY"}}),
            false,
        ),
        (json!({"is_gpa": true}), false),
    ] {
        for trust in [CallerTrust::Untrusted, CallerTrust::Trusted] {
            let course = Course::start(StateFormat::Sealed, trust).await;
            let earlier = json!({"role": "assistant", "content": "found long ago",
                                 "custom_content": {"state": state}});
            let messages = [asked("earlier"), earlier, asked("and now?")];
            let (answer, session) = course.say("gpa-desk", &messages, false).await;
            assert!(answer["custom_content"]["state"]["statehold"]["ref"].is_string());
            let got = course.got();
            let is_trusted = trust == CallerTrust::Trusted;
            assert_eq!(got.len(), 3, "{got:?}");
            let found = &got[1]["custom_content"]["state"];
            let expected = if is_trusted && is_valid {
                own()
            } else {
                Value::Null
            };
            assert_eq!(found, &expected, "{state}");
            let operator = course.rig.key(&["operator"]).await;
            let path = format!("/v1/sessions/{session}/messages?view=trace");
            let trace = operator.get(&path).await.ok(200);
            let word = match (is_valid, is_trusted) {
                (false, _) => "malformed",
                (true, true) => "taken",
                (true, false) => "untrusted",
            };
            let input = &trace["messages"][0]["data"]["dial"];
            assert_eq!(text(input, "legacy_state"), word, "{input}");
            course.end().await;
        }
    }
}

/// A coordinator whose model writes the final answer, from this script, and the agent before it.
async fn desk_with(script: Vec<ScriptedResponse>) -> (Rig, Runner, [FakeService; 2]) {
    let gpa =
        FakeService::start(|_| streamed_with("found it", &format!(r#"{{"state":{HISTORY}}}"#)))
            .await;
    let model = FakeService::play(script).await;
    let general = AgentKind::Openai(Arc::new(OpenaiSpec {
        base_url: gpa.url("/v1"),
        model: "general-purpose-agent".to_owned(),
        credential: None,
        headers: Vec::new(),
        memory: ChatMemory::Restore,
    }));
    let desk = AgentKind::Router(Arc::new(RouterSpec {
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
    let main = ModelSpec {
        name: name("main"),
        base_url: model.url("/v1"),
        model: "m".to_owned(),
        credential: None,
        headers: Vec::new(),
        input: [].into(),
        timeout: Duration::from_secs(5),
        retries: 0,
    };
    let book = AgentBook {
        agents: [
            declared("gpa", general, |_| {}),
            declared("desk", desk, |_| {}),
        ]
        .into(),
        models: [(name("main"), Arc::new(main))].into(),
        ..AgentBook::default()
    };
    let (rig, runner) = host(book, Vec::new()).await;
    (rig, runner, [gpa, model])
}

fn broken() -> ScriptedResponse {
    ScriptedResponse::json(500, &json!({"error": {"message": "out of order"}}))
}

const DESK: &str = "/openai/deployments/desk/chat/completions";

/// The agent acted, and the end of the turn failed, so that the client has no answer and no new state: the agent still
/// knows what it did.
#[tokio::test]
async fn an_agent_keeps_what_it_did_in_a_turn_that_failed_after_it() {
    let script = vec![streamed("One."), broken(), streamed("Three.")];
    let (rig, runner, [gpa, _model]) = desk_with(script).await;
    let ann = rig.client("ann").await;
    let first = message(&ann.post(DESK, &json!({"messages": [asked("one")]})).await);
    let mut messages = vec![asked("one"), echoed(&first), asked("two")];
    let failed = ann.post(DESK, &json!({ "messages": messages })).await;
    assert_eq!(failed.ok(500)["error"]["code"], "agent_error");
    messages.push(asked("three"));
    let answer = message(&ann.post(DESK, &json!({ "messages": messages })).await);
    assert_eq!(answer["content"], "Three.");
    let seen = gpa.seen();
    let got = seen.last().expect("a call").json();
    let told = got["messages"].as_array().expect("a list");
    assert_eq!((seen.len(), told.len()), (3, 5), "{got}");
    assert_eq!(told[2]["content"], "two");
    assert_eq!(told[3]["custom_content"]["state"], history());
    runner.stop().await;
    rig.engine.shut_down().await;
}

/// The same message again goes on where the turn failed: the agent does not act twice.
#[tokio::test]
async fn a_regenerated_answer_of_a_failed_turn_does_not_ask_the_agent_again() {
    let (rig, runner, [gpa, _model]) = desk_with(vec![broken(), streamed("One.")]).await;
    let ann = rig.client("ann").await;
    let body = json!({"messages": [asked("one")]});
    ann.post(DESK, &body).await.ok(500);
    let answer = message(&ann.post(DESK, &body).await);
    assert_eq!(answer["content"], "One.");
    assert_eq!(gpa.seen().len(), 1);
    runner.stop().await;
    rig.engine.shut_down().await;
}
