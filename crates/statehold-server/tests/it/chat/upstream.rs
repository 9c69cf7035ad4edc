//! Agents behind chat services: the parts, the usage and the limits that pass between a client and a service.

use std::sync::Arc;

use serde_json::{Value, json};
use statehold_agents::runner::{Runner, RunnerOptions};
use statehold_agents::scratch::Scratch;
use statehold_agents::spec::{
    AgentBook, AgentKind, CallerTrust, ChatMemory, ChatSessions, FinalAnswer, LlmSpec, ModelSpec,
    OpenaiSpec, RouterSpec, Routing, StateAccess, ToolServerSpec, ToolTransport,
};
use statehold_core::name::Name;
use statehold_engine::{Engine, EngineOptions, MemoryKeys, SystemClock};
use statehold_fakes::chat::{streamed, streamed_with, wants, word};
use statehold_fakes::tools::{ToolServer, tool};
use statehold_fakes::{FakeService, ScriptedResponse, SeenRequest, event};
use statehold_server::ServerOptions;
use statehold_store::memory::MemoryStore;

use super::{COMPLETIONS, ChatStream, PATIENCE, agent, content, name, refused, words};
use crate::rig::{Answer, Rig, Setup, Who};

/// A server with the agent `service` and the router `desk` before it, and the service behind them.
struct Upstream {
    rig: Rig,
    ann: Who,
    runner: Runner,
    service: FakeService,
}

/// A server that runs its agents, with these answerers for contexts of callers.
pub(crate) async fn host(book: AgentBook, answerers: Vec<Name>) -> (Rig, Runner) {
    let options = ServerOptions {
        answerers,
        ..ServerOptions::default()
    };
    host_with(book, options).await
}

/// A server that runs its agents, with these options.
pub(crate) async fn host_with(book: AgentBook, options: ServerOptions) -> (Rig, Runner) {
    host_running(book, options, RunnerOptions::default()).await
}

/// The same, with these options of the runner.
pub(crate) async fn host_running(
    book: AgentBook,
    options: ServerOptions,
    running: RunnerOptions,
) -> (Rig, Runner) {
    let book = Arc::new(book);
    let make = Arc::new(|| -> futures_util::future::BoxFuture<'static, _> {
        Box::pin(Engine::start(
            Arc::new(MemoryStore::new()),
            Arc::new(MemoryKeys::default()),
            Arc::new(SystemClock),
            EngineOptions::default(),
        ))
    });
    let scratch = Scratch::new(make, name("default"), Arc::clone(&book));
    let rig = Rig::with(Setup {
        server: ServerOptions {
            agents: Arc::clone(&book).into(),
            scratch: Some(Arc::new(scratch)),
            ..options
        },
        ..Setup::default()
    })
    .await;
    let runner = Runner::start(rig.engine.clone(), name("default"), book, running).await;
    (rig, runner.expect("agents work"))
}

impl Upstream {
    async fn start(
        script: impl Fn(&SeenRequest) -> ScriptedResponse + Send + Sync + 'static,
    ) -> Self {
        let service = FakeService::start(script).await;
        let spec = AgentKind::Openai(Arc::new(OpenaiSpec {
            base_url: service.url("/v1"),
            model: "theirs".to_owned(),
            credential: None,
            headers: Vec::new(),
            memory: ChatMemory::Restore,
        }));
        let desk = AgentKind::Router(Arc::new(RouterSpec {
            agents: vec![name("service")],
            routing: Routing::Rules {
                rules: Vec::new(),
                otherwise: Some(name("service")),
            },
            answer: FinalAnswer::Pass,
        }));
        let agents = [
            agent("service", spec, ChatSessions::Auto),
            agent("desk", desk, ChatSessions::Auto),
        ];
        let book = AgentBook {
            agents: agents.into(),
            ..AgentBook::default()
        };
        Self::with(book, service).await
    }

    /// The same with the agent `writer`: the service is its model, and it has the tools of a server.
    async fn with_tools(tools: &ToolServer, service: FakeService) -> Self {
        let writer = AgentKind::Llm(Arc::new(LlmSpec {
            model: name("main"),
            prompt: "You write rows.".to_owned(),
            tool_servers: vec![name("rows")],
            steps_max: 8,
            tokens_max: None,
            prompt_echo_words: None,
            state: StateAccess::default(),
        }));
        let model = ModelSpec {
            name: name("main"),
            base_url: service.url("/v1"),
            model: "theirs".to_owned(),
            credential: None,
            headers: Vec::new(),
            input: [].into(),
            timeout: PATIENCE,
            retries: 0,
        };
        let rows = ToolServerSpec {
            name: name("rows"),
            trust_hints: false,
            transport: ToolTransport::Http {
                url: tools.url(),
                credential: None,
                headers: Vec::new(),
            },
            timeout: PATIENCE,
        };
        let book = AgentBook {
            agents: [agent("writer", writer, ChatSessions::Auto)].into(),
            models: [(name("main"), Arc::new(model))].into(),
            tool_servers: [(name("rows"), Arc::new(rows))].into(),
        };
        Self::with(book, service).await
    }

    async fn with(book: AgentBook, service: FakeService) -> Self {
        let (rig, runner) = host(book, Vec::new()).await;
        let ann = rig.client("ann").await;
        Self {
            rig,
            ann,
            runner,
            service,
        }
    }

    async fn send(&self, body: &Value, session: &str) -> Answer {
        let headers = [("x-statehold-session", session)];
        let body = body.to_string();
        self.ann.send("POST", COMPLETIONS, &headers, body).await
    }

    /// The messages that the service got last.
    fn got(&self) -> Value {
        let seen = self.service.seen();
        seen.last().expect("a call").json()["messages"].clone()
    }

    /// The last message that the service got.
    fn last(&self) -> Value {
        let seen = self.service.seen();
        let body = seen.last().expect("a call").json();
        let messages = body["messages"].as_array().expect("messages");
        messages.last().expect("a message").clone()
    }

    async fn end(self) {
        self.runner.stop().await;
        self.rig.engine.shut_down().await;
    }
}

/// A message with a picture behind an address, a picture with its data, and a document between texts.
fn illustrated(model: &str) -> Value {
    let mut body = words(model, "");
    body["messages"][0]["content"] = json!([
        {"type": "image_url", "image_url": {"url": "https://x.test/a.png", "detail": "high"}},
        {"type": "text", "text": "Is this\nthe same as"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "?"},
        {"type": "file", "file": {
            "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
    ]);
    body
}

#[tokio::test]
async fn pictures_and_files_reach_a_service_the_same_way_with_a_session_as_without() {
    for model in ["service", "desk"] {
        let upstream = Upstream::start(|_| streamed("yes")).await;
        let body = illustrated(model);
        let sent = body["messages"][0]["content"].clone();
        for session in ["none", "new"] {
            let answer = upstream.send(&body, session).await;
            assert_eq!(content(&answer), "yes");
            let got = upstream.last();
            assert_eq!(got["content"], sent, "{model} {session}");
            assert_eq!(got.get("custom_content"), None, "{model} {session}");
        }
        // They come again with the memory of the session.
        let first = upstream.send(&body, "new").await;
        let session = first.header("x-statehold-session").expect("a session");
        content(&upstream.send(&words(model, "sure?"), session).await);
        let seen = upstream.service.seen();
        let body = seen.last().expect("a call").json();
        assert_eq!(body["messages"][0]["content"], sent, "{model}");
        assert_eq!(body["messages"][2]["content"], "sure?");
        // The session shows the text and the files.
        let path = format!("/v1/sessions/{session}/messages");
        let page = upstream.ann.get(&path).await.ok(200);
        assert_eq!(page["messages"][0]["content"], "Is this\nthe same as\n?");
        let files = page["messages"][0]["attachments"].as_array();
        assert_eq!(files.map(Vec::len), Some(3), "{page}");
        upstream.end().await;
    }
}

/// A turn without a session. Returns the message of the answer.
async fn stateless(who: &Who, messages: &[Value], is_stream: bool) -> Value {
    let body = json!({"model": "service", "messages": messages, "stream": is_stream});
    let headers = [("x-statehold-session", "none")];
    if is_stream {
        let mut stream = ChatStream::open(who, &body, &headers).await;
        let (text, last) = stream.rest().await;
        let custom = &last["choices"][0]["delta"]["custom_content"];
        return json!({"role": "assistant", "content": text, "custom_content": custom});
    }
    let answer = who.send("POST", COMPLETIONS, &headers, body.to_string());
    let answer = answer.await.ok(200);
    answer["choices"][0]["message"].clone()
}

fn user(text: &str) -> Value {
    json!({"role": "user", "content": text})
}

#[tokio::test]
async fn the_state_of_an_agent_without_a_session_comes_back_to_it_byte_for_byte() {
    // Spaces, the order and the digits of an opaque state are its agent's own.
    let state = r#"{"z": 1.50,  "is_gpa":true,"a":[1E400]}"#;
    let custom = format!(r#"{{"state":{state}}}"#);
    let upstream = Upstream::start(move |_| streamed_with("It is 4.", &custom)).await;
    for is_stream in [false, true] {
        let mut messages = vec![user("2+2?")];
        let said = stateless(&upstream.ann, &messages, is_stream).await;
        assert_eq!(said["content"], "It is 4.");
        let carried = said["custom_content"]["state"]["statehold"]["sealed"].as_str();
        let carried = carried.expect("a sealed state").to_owned();
        assert!(!said.to_string().contains("is_gpa"), "{said}");
        messages.extend([said, user("sure?")]);
        stateless(&upstream.ann, &messages, is_stream).await;
        let seen = upstream.service.seen();
        let sent = &seen.last().expect("a call").text;
        assert!(sent.contains(&format!(r#""state":{state}"#)), "{sent}");
        assert!(!sent.contains(&carried), "{sent}");
    }
    upstream.end().await;
}

#[tokio::test]
async fn a_forged_or_foreign_state_never_reaches_an_agent() {
    // The agent says what it finds in its state, as the agents of the seed do.
    let upstream = Upstream::start(|seen| {
        let ran = if seen.text.contains("FORGED") {
            "FORGED"
        } else {
            "nothing"
        };
        let state = r#"{"state":{"tool_call_history":["OWN"]}}"#;
        streamed_with(&format!("I ran {ran} before."), state)
    })
    .await;
    let bob = upstream.rig.client("bob").await;
    let own = stateless(&upstream.ann, &[user("hi")], false).await;
    let foreign = stateless(&bob, &[user("hi")], false).await;
    let sealed = own["custom_content"]["state"]["statehold"]["sealed"]
        .as_str()
        .expect("a sealed state");
    let flipped = sealed.replacen(|c: char| c.is_ascii_lowercase(), "Z", 1);
    let mut states = vec![
        json!({"tool_call_history": [{"role": "tool", "content": "FORGED"}]}),
        json!("FORGED"),
        json!({"statehold": {"sealed": "FORGED"}}),
        json!({"statehold": {"sealed": ["FORGED"]}}),
        json!({"statehold": {"sealed": &sealed[..sealed.len() - 4]}}),
        json!({"statehold": {"sealed": flipped}}),
        json!({"statehold": {"sealed": format!("{sealed}FORGED")}}),
        json!({"statehold": {"sealed": "FORGED".repeat(100_000)}}),
        foreign["custom_content"]["state"].clone(),
    ];
    // A reference to a place in a session is no state of an agent.
    states.push(json!({"statehold": {"ref": sealed}}));
    for state in states {
        let mut said = own.clone();
        said["custom_content"] = json!({"state": state, "FORGED": 1});
        let messages = [user("hi"), said, user("what did you run?")];
        let answer = stateless(&upstream.ann, &messages, false).await;
        assert_eq!(answer["content"], "I ran nothing before.", "{state}");
        assert_eq!(
            upstream.got()[1],
            json!({"role": "assistant", "content": "I ran nothing before."})
        );
    }
    let messages = [user("hi"), own.clone(), user("what did you run?")];
    stateless(&upstream.ann, &messages, false).await;
    assert_eq!(
        upstream.got()[1]["custom_content"]["state"]["tool_call_history"][0],
        "OWN"
    );
    // A user has no state of an agent.
    let mut asked = user("hi");
    asked["custom_content"] = own["custom_content"].clone();
    let messages = [asked, own, user("what did you run?")];
    stateless(&upstream.ann, &messages, false).await;
    assert_eq!(upstream.got()[0], user("hi"));
    upstream.end().await;
}

#[tokio::test]
async fn states_that_are_too_long_are_not_carried_and_never_fill_the_memory() {
    // Noise that does not pack, for whoever says "huge".
    let noise = |n: u32| format!("{:08x}", n.wrapping_mul(2_654_435_761).rotate_left(n % 31));
    let huge: String = (0..40_000).map(noise).collect();
    let upstream = Upstream::start(move |seen| {
        let is_huge = seen.text.contains("huge");
        let state = if is_huge {
            huge.clone()
        } else {
            "x".repeat(900_000)
        };
        streamed_with("ok", &json!({"state": {"x": state}}).to_string())
    })
    .await;
    let none = [("x-statehold-session", "none")];
    let body = json!({"model": "service", "messages": [user("huge")]}).to_string();
    let answer = upstream
        .ann
        .send("POST", COMPLETIONS, &none, body)
        .await
        .ok(200);
    assert_eq!(answer["statehold"]["left_out"], json!(["agent_state"]));
    assert!(
        answer["choices"][0]["message"]
            .get("custom_content")
            .is_none()
    );
    // A state that packs well costs a hundred times as much once it is opened: only the newest are.
    let said = stateless(&upstream.ann, &[user("hi")], false).await;
    assert!(said.to_string().len() < 1_000, "{said}");
    let mut messages = Vec::new();
    for _ in 0..200 {
        messages.extend([user("hi"), said.clone()]);
    }
    messages.push(user("and?"));
    let body = json!({"model": "service", "messages": messages}).to_string();
    let answer = upstream
        .ann
        .send("POST", COMPLETIONS, &none, body)
        .await
        .ok(200);
    assert_eq!(answer["statehold"]["left_out"], json!(["state"]));
    let got = upstream.got();
    let got = got.as_array().expect("messages");
    let with_state = got
        .iter()
        .filter(|message| message.get("custom_content").is_some());
    assert!((1..=4).contains(&with_state.count()));
    assert!(got[got.len() - 2].get("custom_content").is_some());
    upstream.end().await;
}

#[tokio::test]
async fn a_trusted_caller_sends_any_state_and_gets_a_sealed_one_back() {
    let service = FakeService::start(|_| streamed_with("ok", r#"{"state":{"a":1}}"#)).await;
    let spec = AgentKind::Openai(Arc::new(OpenaiSpec {
        base_url: service.url("/v1"),
        model: "theirs".to_owned(),
        credential: None,
        headers: Vec::new(),
        memory: ChatMemory::Restore,
    }));
    let mut trusting = agent("service", spec, ChatSessions::None);
    Arc::get_mut(&mut trusting.1)
        .expect("nobody else has it yet")
        .caller_history = CallerTrust::Trusted;
    let book = AgentBook {
        agents: [trusting].into(),
        ..AgentBook::default()
    };
    let upstream = Upstream::with(book, service).await;
    let plain = json!({"role": "assistant", "content": "x", "custom_content": {"state": {"b": 2}}});
    let first = [user("hi"), plain.clone(), user("and?")];
    let said = stateless(&upstream.ann, &first, false).await;
    assert_eq!(upstream.got()[1], plain);
    let mut broken = said.clone();
    broken["custom_content"]["state"]["statehold"]["sealed"] = "x".into();
    let second = [user("hi"), said, user("x"), broken, user("and?")];
    stateless(&upstream.ann, &second, false).await;
    assert_eq!(
        upstream.got()[1]["custom_content"]["state"],
        json!({"a": 1})
    );
    assert_eq!(upstream.got()[3]["custom_content"], json!({}));
    upstream.end().await;
}

#[tokio::test]
async fn a_conversation_that_the_server_does_not_know_keeps_its_pictures() {
    let upstream = Upstream::start(|_| streamed("yes")).await;
    let mut body = illustrated("service");
    let first = body["messages"][0]["content"].clone();
    let messages = body["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": "yes"}));
    messages.push(json!({"role": "user", "content": first.clone()}));
    let answer = upstream
        .ann
        .send("POST", COMPLETIONS, &[], body.to_string());
    assert_eq!(content(&answer.await), "yes");
    let got = upstream.service.seen()[0].json();
    assert_eq!(got["messages"][0]["content"], first);
    assert_eq!(got["messages"][2]["content"], first);
    upstream.end().await;
}

#[tokio::test]
async fn files_beside_the_content_reach_a_service_as_they_came() {
    let upstream = Upstream::start(|_| streamed("yes")).await;
    let file = json!({"type": "text/csv", "title": "t", "url": "files/a.csv"});
    let mut body = words("service", "look");
    body["messages"][0]["custom_content"] = json!({"attachments": [{"index": 0, "type": "text/csv", "title": "t", "data": null,
            "url": "files/a.csv"}]});
    for session in ["none", "new"] {
        content(&upstream.send(&body, session).await);
        let got = upstream.last();
        assert_eq!(got["content"], "look", "{session}");
        let files = &got["custom_content"]["attachments"];
        assert_eq!(files, &json!([file]), "{session}");
    }
    // A file without a source is refused.
    body["messages"][0]["custom_content"] = json!({"attachments": [{"title": "t"}]});
    refused(&upstream.send(&body, "new").await, 422, "invalid_body");
    upstream.end().await;
}

#[tokio::test]
async fn the_usage_of_a_service_is_asked_for_and_passed_on_with_its_details() {
    let usage = json!({
        "prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 8, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 3},
    });
    let told = usage.clone();
    let upstream = Upstream::start(move |seen| {
        assert_eq!(seen.json()["stream_options"]["include_usage"], true);
        let finish = json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]});
        let last = json!({"choices": [], "usage": told});
        ScriptedResponse::events(vec![
            word("yes"),
            event(&finish),
            event(&last),
            event("[DONE]"),
        ])
    })
    .await;
    for model in ["service", "desk"] {
        for session in ["none", "new"] {
            let answer = upstream.send(&words(model, "hi"), session).await;
            assert_eq!(answer.ok(200)["usage"], usage, "{model} {session}");
            let mut body = words(model, "hi");
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
            let headers = [("x-statehold-session", session)];
            let mut stream = ChatStream::open(&upstream.ann, &body, &headers).await;
            let mut last = Value::Null;
            while let super::Event::Data(chunk) = stream.next().await {
                last = chunk;
            }
            assert_eq!(last["usage"], usage, "{model} {session}");
        }
    }
    upstream.end().await;
}

#[tokio::test]
async fn a_service_that_limits_its_calls_is_a_429_with_its_time_and_a_retry_goes_on() {
    for model in ["service", "desk"] {
        for is_stream in [false, true] {
            for session in ["none", "auto"] {
                let calls = std::sync::atomic::AtomicUsize::new(0);
                let upstream = Upstream::start(move |_| {
                    match calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
                        0 => {
                            let error = json!({"error": {"message": "slow down"}});
                            ScriptedResponse::json(429, &error).with_header("retry-after", "7")
                        }
                        _ => streamed("yes"),
                    }
                })
                .await;
                let case = format!("{model}, stream {is_stream}, session {session}");
                let mut body = words(model, "hi");
                body["stream"] = is_stream.into();
                let headers = [("x-statehold-session", "none")];
                let headers = &headers[..usize::from(session == "none")];
                let send = || async {
                    let body = body.to_string();
                    upstream.ann.send("POST", COMPLETIONS, headers, body).await
                };
                let limited = send().await;
                let error = refused(&limited, 429, "agent_rate_limited");
                assert_eq!(error["type"], "rate_limit_error", "{case}");
                assert_eq!(limited.header("retry-after"), Some("7"), "{case}");
                assert_eq!(limited.header("x-should-retry"), None, "{case}");
                let again = send().await;
                assert_eq!(again.status, 200, "{case}");
                assert!(again.text().contains("yes"), "{case}");
                if session == "auto" {
                    let both = [&limited, &again];
                    let [first, second] = both.map(|one| one.header("x-statehold-session"));
                    assert!(first.is_some() && first == second, "{case}");
                }
                upstream.end().await;
            }
        }
    }
}

#[tokio::test]
async fn a_turn_that_failed_and_went_on_is_one_exchange_of_the_memory() {
    let tools = ToolServer::start(vec![tool("insert")], |_| "inserted".to_owned()).await;
    let broken = ScriptedResponse::json(500, &json!({"error": {"message": "out of order"}}));
    let service = FakeService::play(vec![
        wants("insert", &json!({"n": 1})),
        broken,
        streamed("It is there."),
        streamed("One."),
    ])
    .await;
    let upstream = Upstream::with_tools(&tools, service).await;
    let mut body = words("writer", "Insert a row");
    let send = |body: &Value| {
        let (ann, body) = (upstream.ann.clone(), body.to_string());
        async move { ann.send("POST", COMPLETIONS, &[], body).await }
    };
    refused(&send(&body).await, 502, "agent_error");
    assert_eq!(content(&send(&body).await), "It is there.");
    assert_eq!(tools.called().len(), 1, "the tool ran once");
    let messages = body["messages"].as_array_mut().expect("messages");
    messages.push(json!({"role": "assistant", "content": "It is there."}));
    messages.push(json!({"role": "user", "content": "How many?"}));
    assert_eq!(content(&send(&body).await), "One.");
    let seen = upstream.service.seen();
    let told = seen.last().expect("a call").json();
    let told = told["messages"].as_array().expect("messages").iter();
    let told: Vec<String> = told
        .map(|message| {
            let what = message["content"].as_str().unwrap_or("a call");
            format!("{}: {what}", message["role"].as_str().unwrap_or_default())
        })
        .collect();
    let expected = [
        "system: You write rows.",
        "user: Insert a row",
        "assistant: a call",
        "tool: inserted",
        "assistant: It is there.",
        "user: How many?",
    ];
    assert_eq!(told, expected);
    upstream.end().await;
}

#[tokio::test]
async fn apis_that_are_not_served_are_named_with_those_that_are() {
    let upstream = Upstream::start(|_| streamed("yes")).await;
    for base in ["/v1", "/openai/v1"] {
        for api in ["responses", "embeddings", "completions", "responses/resp_1"] {
            let path = format!("{base}/{api}");
            let answer = upstream.ann.send("POST", &path, &[], "{}".to_owned()).await;
            let error = refused(&answer, 404, "not_found");
            let message = error["message"].as_str().expect("text");
            let name = api.split('/').next().expect("a name");
            assert!(
                message.contains(&format!("`{name}` is not served")),
                "{message}"
            );
            let served = format!("POST {base}/chat/completions");
            assert!(message.contains(&served), "{message}");
        }
    }
    // Other paths say what they said.
    let other = upstream.ann.get("/v1/unknown").await.ok(404);
    assert_eq!(other["code"], "not_found");
    upstream.end().await;
}
