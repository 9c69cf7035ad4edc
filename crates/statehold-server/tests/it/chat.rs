//! Chat as OpenAI's clients speak it: turns, pauses, streams, and calls that leave nothing.

mod analytics;
mod analytics_upstream;
mod debug;
mod deciding;
mod errors;
mod long_answers;
mod lost;
mod modes;
mod new_users;
mod pauses;
mod questions;
mod recalled;
mod references;
mod replaced;
mod stateless;
mod streams;
mod turns;
mod ums;
mod ums_upstream;
pub(crate) mod upstream;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Incoming;
use serde_json::{Value, json};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, CallerTrust, ChatMemory, ChatSessions, ConversationsSpec,
    FinalAnswer, OpenaiSpec, RouterSpec, Routing, StageDetail, StateFormat,
};
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use statehold_fakes::{SseEvent, SseParser};
use statehold_server::ServerOptions;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::rest::{act, claim};
use crate::rig::{Answer, Rig, Setup, Who, text};

const COMPLETIONS: &str = "/openai/v1/chat/completions";
const PATIENCE: Duration = Duration::from_secs(30);

fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(crate) fn agent(text: &str, kind: AgentKind, sessions: ChatSessions) -> (Name, Arc<AgentSpec>) {
    let spec = AgentSpec {
        name: name(text),
        description: None,
        kind,
        import: Vec::new(),
        export: Vec::new(),
        output_key: None,
        state_schema: None,
        keep_pairs: None,
        timeout: Duration::from_secs(5),
        retries: 0,
        sessions,
        caller_history: CallerTrust::default(),
        references: false,
        stages: StageDetail::default(),
        state_format: StateFormat::default(),
        brief_on_loss: false,
        pauses: false,
        digest: Digest::sha256(text.as_bytes()),
    };
    (name(text), Arc::new(spec))
}

fn router(agents: &[&str]) -> AgentKind {
    AgentKind::Router(Arc::new(RouterSpec {
        agents: agents.iter().map(|agent| name(agent)).collect(),
        routing: Routing::Rules {
            rules: Vec::new(),
            otherwise: None,
        },
        answer: FinalAnswer::Pass,
    }))
}

/// Agents of each kind. `helper` is a worker whose calls without a session get one.
fn book() -> Arc<AgentBook> {
    let service = Arc::new(OpenaiSpec {
        base_url: "http://127.0.0.1:1/v1".to_owned(),
        model: "service".to_owned(),
        credential: None,
        headers: Vec::new(),
        memory: ChatMemory::Restore,
    });
    let service = || AgentKind::Openai(Arc::clone(&service));
    let archive = AgentKind::Conversations(Arc::new(ConversationsSpec {
        base_url: "http://127.0.0.1:1".to_owned(),
        credential: None,
        headers: Vec::new(),
    }));
    let mut trusting = agent("service", service(), ChatSessions::None);
    Arc::get_mut(&mut trusting.1)
        .expect("nobody else has it yet")
        .caller_history = CallerTrust::Trusted;
    let agents = [
        agent("helper", AgentKind::Worker, ChatSessions::Auto),
        agent("boss", AgentKind::Worker, ChatSessions::Auto),
        agent("strict", AgentKind::Worker, ChatSessions::Explicit),
        agent("quiet", AgentKind::Worker, ChatSessions::None),
        trusting,
        agent("guarded", service(), ChatSessions::None),
        agent("desk", router(&["service"]), ChatSessions::None),
        agent("team", router(&["desk", "quiet"]), ChatSessions::None),
        agent("archive", archive, ChatSessions::None),
        agent("office", router(&["desk", "archive"]), ChatSessions::None),
    ];
    Arc::new(AgentBook {
        agents: agents.into(),
        ..AgentBook::default()
    })
}

pub(crate) fn setup() -> Setup {
    Setup {
        server: ServerOptions {
            agents: book().into(),
            ..ServerOptions::default()
        },
        ..Setup::default()
    }
}

fn words(model: &str, said: &str) -> Value {
    json!({"model": model, "messages": [{"role": "user", "content": said}]})
}

/// Ann, her session with `helper`, and the worker that is `helper`.
struct Scene {
    rig: Rig,
    ann: Who,
    helper: Who,
    session: String,
}

impl Scene {
    async fn begin(rig: Rig) -> Self {
        let (ann, helper) = (rig.client("ann").await, rig.worker(&["helper"]).await);
        let made = json!({"app": "demo", "agent": "helper"});
        let session = text(&ann.post("/v1/sessions", &made).await.ok(201), "id");
        Self {
            rig,
            ann,
            helper,
            session,
        }
    }

    async fn new() -> Self {
        Self::begin(Rig::with(setup()).await).await
    }

    /// The same after the server was stopped and started again.
    async fn restarted(self) -> Self {
        let rig = self.rig.restart_with(setup()).await;
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

    /// Says something in the session and waits for the answer.
    fn say(&self, said: &str) -> JoinHandle<Answer> {
        self.send(words("helper", said), &[])
    }

    fn send(&self, body: Value, headers: &[(&'static str, &str)]) -> JoinHandle<Answer> {
        let (ann, session) = (self.ann.clone(), self.session.clone());
        let mut headers: Vec<(&'static str, String)> = headers
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        headers.push(("x-statehold-session", session));
        tokio::spawn(async move {
            let headers: Vec<(&str, &str)> = headers
                .iter()
                .map(|(name, value)| (*name, value.as_str()))
                .collect();
            ann.send("POST", COMPLETIONS, &headers, body.to_string())
                .await
        })
    }

    /// Says something in the session and follows the answer.
    async fn stream(&self, said: &str) -> ChatStream {
        self.stream_with(words("helper", said), &[]).await
    }

    async fn stream_with(&self, mut body: Value, headers: &[(&str, &str)]) -> ChatStream {
        body["stream"] = true.into();
        let mut headers = headers.to_vec();
        headers.push(("x-statehold-session", &self.session));
        ChatStream::open(&self.ann, &body, &headers).await
    }

    /// The request that waits for the helper.
    async fn claim(&self) -> Value {
        claim(&self.helper, "helper").await
    }

    async fn complete(&self, request: &Value, output: &str) {
        let done = act(&self.helper, request, "complete", json!({"output": output})).await;
        done.ok(200);
    }

    async fn ask(&self, request: &Value, hold: Value) -> Value {
        act(&self.helper, request, "holds", hold).await.ok(201)
    }

    /// Asks for an approval, which another person gives.
    async fn ask_approval(&self, request: &Value) -> Value {
        let action = json!({"tool": "pay", "args": {"secret_sum": "sum-4711"}});
        let hold = json!({"kind": "approval", "title": "Pay?", "action": action});
        self.ask(request, hold).await
    }

    async fn approve(&self, hold: &Value) {
        let boss = self.rig.key(&["approver"]).await;
        let path = format!("/v1/holds/{}/decision", text(hold, "id"));
        let approve = json!({"decision": "approve", "digest": hold["action"]["digest"]});
        boss.post(&path, &approve).await.ok(200);
    }

    /// How many turns the session has had.
    async fn turns(&self) -> usize {
        let path = format!("/v1/sessions/{}/messages", self.session);
        let (mut turns, mut next) = (0, path.clone());
        loop {
            let page = self.ann.get(&next).await.ok(200);
            let messages = page["messages"].as_array().expect("a list");
            let said = messages.iter().filter(|message| message["role"] == "user");
            turns += said.count();
            // Long messages come on pages of their own.
            let Some(cursor) = page["next_cursor"].as_str() else {
                return turns;
            };
            next = format!("{path}?cursor={cursor}");
        }
    }
}

/// The answer of a call that another caller waits for.
async fn finished(call: JoinHandle<Answer>) -> Answer {
    let answer = timeout(PATIENCE, call).await.expect("an answer in time");
    answer.expect("the call is made")
}

/// The words of a whole answer.
#[track_caller]
fn content(answer: &Answer) -> String {
    let body = answer.ok(200);
    text(&body["choices"][0]["message"], "content")
}

/// Fails unless a refusal is told in the words of this surface.
#[track_caller]
fn refused(answer: &Answer, status: u16, code: &str) -> Value {
    let body = answer.ok(status);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let error = body["error"].clone();
    assert_eq!(error["code"], code, "{body}");
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| !text.is_empty())
    );
    assert!(error["type"].is_string(), "{body}");
    assert!(error.get("param").is_some(), "{body}");
    error
}

/// A stream of chunks.
struct ChatStream {
    headers: http::HeaderMap,
    body: Incoming,
    parser: SseParser,
    ready: VecDeque<SseEvent>,
}

/// What comes out of it.
#[derive(Debug, PartialEq)]
enum Event {
    Data(Value),
    Done,
    End,
}

impl ChatStream {
    async fn open(who: &Who, body: &Value, headers: &[(&str, &str)]) -> Self {
        let sent = who.begin("POST", COMPLETIONS, headers, body.to_string().into());
        let response = sent.await.expect("an answer begins");
        assert_eq!(response.status(), 200);
        Self::read(response)
    }

    fn read(response: http::Response<Incoming>) -> Self {
        assert_eq!(response.headers()["content-type"], "text/event-stream");
        Self {
            headers: response.headers().clone(),
            body: response.into_body(),
            parser: SseParser::default(),
            ready: VecDeque::new(),
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            if let Some(event) = self.ready.pop_front() {
                assert_eq!((event.event.as_str(), event.has_id), ("message", false));
                return match event.data.as_str() {
                    "[DONE]" => Event::Done,
                    data => Event::Data(serde_json::from_str(data).expect("data is JSON")),
                };
            }
            let frame = timeout(PATIENCE, self.body.frame()).await;
            match frame.expect("something comes in time") {
                Some(Ok(frame)) => {
                    let bytes = frame.data_ref().expect("only data");
                    self.ready.extend(self.parser.push(bytes));
                    // A block is one event or a comment.
                    assert!(self.parser.faults().is_empty(), "{:?}", self.parser);
                }
                Some(Err(_)) | None => return Event::End,
            }
        }
    }

    async fn chunk(&mut self) -> Value {
        match self.next().await {
            Event::Data(chunk) => chunk,
            other => panic!("no chunk: {other:?}"),
        }
    }

    /// The next text that is not empty.
    async fn text(&mut self) -> String {
        loop {
            let chunk = self.chunk().await;
            let text = chunk["choices"][0]["delta"]["content"].as_str();
            if let Some(text) = text.filter(|text| !text.is_empty()) {
                return text.to_owned();
            }
        }
    }

    /// Everything to the end: the text, and the last chunk with a choice.
    async fn rest(&mut self) -> (String, Value) {
        let (mut text, mut last) = (String::new(), Value::Null);
        loop {
            match self.next().await {
                Event::Data(chunk) => {
                    assert!(chunk.get("error").is_none(), "{chunk}");
                    let piece = chunk["choices"][0]["delta"]["content"].as_str();
                    text.push_str(piece.unwrap_or_default());
                    if chunk["choices"][0].is_object() {
                        last = chunk;
                    }
                }
                Event::Done => {
                    assert_eq!(self.next().await, Event::End);
                    return (text, last);
                }
                Event::End => panic!("it broke off after {text:?}"),
            }
        }
    }

    fn header(&self, name: &str) -> &str {
        self.headers[name].to_str().expect("text")
    }
}
