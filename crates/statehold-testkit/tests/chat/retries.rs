//! Clients that repeat a call after an error: the turn goes on where it failed. Each tool runs once, however
//! often the call is made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hyper::Method;
use serde_json::{Value, json};
use statehold_fakes::tools::{self, ToolCall, take_one};
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, chat};
use statehold_testkit::http::{Answer, HttpClient};

use crate::stage::Stage;

const PATH: &str = "/openai/v1/chat/completions";

/// A model and a tool. The model asks for the tool once, fails as often as it is told to, then answers.
struct Played {
    service: FakeService,
    failures: Arc<AtomicUsize>,
    /// 503 is a failure that passes; 200 is an answer that makes no sense.
    status: Arc<AtomicUsize>,
    /// How long the answer takes.
    pause_ms: Arc<AtomicU64>,
}

impl Played {
    async fn start() -> Self {
        let failures = Arc::new(AtomicUsize::new(0));
        let status = Arc::new(AtomicUsize::new(503));
        let pause_ms = Arc::new(AtomicU64::new(0));
        let (left, with) = (Arc::clone(&failures), Arc::clone(&status));
        let pause = Arc::clone(&pause_ms);
        let play = move |seen: &SeenRequest| {
            if seen.path.starts_with("/tools") {
                return match ToolCall::of(seen) {
                    Some(_) => tools::result(seen, &json!("done")),
                    None => tools::handshake(seen, &[tools::tool("pay")]),
                };
            }
            let messages = seen.json()["messages"].clone();
            let last = messages.as_array().and_then(|messages| messages.last());
            let has_result = last.is_some_and(|last| last["role"] == "tool");
            if !has_result {
                return chat::wants("pay", &json!({"sum": 5}));
            }
            match (take_one(&left), with.load(Ordering::Relaxed)) {
                (false, _) => {
                    let pause = Duration::from_millis(pause.load(Ordering::Relaxed));
                    chat::says(seen, "paid").after(BodyStep::Wait(pause))
                }
                (true, 200) => ScriptedResponse::json(200, "{"),
                (true, _) => ScriptedResponse::json(503, &json!({"error": {"message": "busy"}})),
            }
        };
        Self {
            service: FakeService::start(play).await,
            failures,
            status,
            pause_ms,
        }
    }

    fn config(&self) -> String {
        let at = self.service.url("");
        format!(
            r#"
            [models.main]
            base_url = "{at}/model/v1"
            model = "main"
            retries = 0
            [tool_servers.tools]
            url = "{at}/tools/mcp"
            [agents.front]
            kind = "router"
            agents = ["assistant"]
            otherwise = "assistant"
            [agents.assistant]
            kind = "llm"
            model = "main"
            prompt = "You do what you are told."
            tool_servers = ["tools"]
            [agents.bare]
            kind = "llm"
            model = "main"
            prompt = "You do what you are told."
            tool_servers = ["tools"]
            sessions = "none"
            "#
        )
    }

    /// How often the tool ran, and how often the model was asked.
    fn calls(&self) -> (usize, usize) {
        let seen = self.service.seen();
        let tools = seen.iter().filter(|seen| ToolCall::of(seen).is_some());
        let model = seen.iter().filter(|seen| seen.path.starts_with("/model"));
        (tools.count(), model.count())
    }
}

async fn send(stage: &Stage, body: &Value) -> Result<Answer> {
    let mut client = HttpClient::connect(stage.address()).await?;
    client.call(Method::POST, PATH, &[], body.to_string()).await
}

fn ask(agent: &str, stream: bool, messages: &Value) -> Value {
    json!({"model": agent, "stream": stream, "messages": messages})
}

/// Whether a call ended with an answer. Streams end with an error in a chunk.
fn is_answered(answer: &Answer) -> bool {
    let body = String::from_utf8_lossy(&answer.body);
    answer.is_success() && body.contains("paid") && !body.contains("\"error\"")
}

#[tokio::test]
async fn a_repeated_call_goes_on_after_a_failure_that_passes() -> Result<()> {
    let played = Played::start().await;
    let stage = Stage::start(&played.config(), None).await?;
    for agent in ["assistant", "front", "bare"] {
        for stream in [false, true] {
            let before = played.calls();
            played.failures.store(2, Ordering::Relaxed);
            let said = format!("pay {agent} {stream}");
            let mut messages = json!([{"role": "user", "content": said}]);
            let body = ask(agent, stream, &messages);
            for _ in 0..2 {
                let failed = send(&stage, &body).await?;
                ensure!(!is_answered(&failed), "{agent}: {:?}", failed.body);
            }
            let answer = send(&stage, &body).await?;
            let told = String::from_utf8_lossy(&answer.body).into_owned();
            ensure!(is_answered(&answer), "{agent} {stream}: {told}");
            let after = played.calls();
            ensure!(
                after.0 - before.0 == 1,
                "{agent} {stream}: the tool ran once"
            );
            ensure!(
                after.1 - before.1 == 4,
                "{agent} {stream}: {before:?} {after:?}"
            );
            if agent == "bare" {
                continue;
            }
            let session = answer.header("x-statehold-session").context("a session")?;
            let said = [
                ("user".to_owned(), said),
                ("assistant".to_owned(), "paid".to_owned()),
            ];
            ensure!(
                stage.transcript(session).await? == said,
                "one turn is shown"
            );
            // The conversation goes on in its session.
            let more = [
                json!({"role": "assistant", "content": "paid"}),
                json!({"role": "user", "content": "again"}),
            ];
            messages.as_array_mut().context("a list")?.extend(more);
            let next = send(&stage, &ask(agent, stream, &messages)).await?;
            ensure!(is_answered(&next), "{agent} {stream}");
            ensure!(
                next.header("x-statehold-session") == Some(session),
                "{agent}"
            );
        }
    }
    stage.end().await
}

#[tokio::test]
async fn of_parallel_repetitions_one_goes_on_and_the_others_attach() -> Result<()> {
    let played = Played::start().await;
    let stage = Stage::start(&played.config(), None).await?;
    // Long enough for all of them to come before the first is answered.
    played.pause_ms.store(5_000, Ordering::Relaxed);
    for agent in ["assistant", "front", "bare"] {
        let before = played.calls();
        played.failures.store(1, Ordering::Relaxed);
        let body = ask(agent, false, &json!([{"role": "user", "content": "pay"}]));
        ensure!(!is_answered(&send(&stage, &body).await?), "it fails first");
        let repeated = (0..6).map(|_| send(&stage, &body));
        for answer in futures_util::future::join_all(repeated).await {
            ensure!(is_answered(&answer?), "{agent}");
        }
        let after = played.calls();
        ensure!(after.0 - before.0 == 1, "{agent}: the tool ran once");
    }
    stage.end().await
}

#[tokio::test]
async fn a_failure_that_stays_is_told_again() -> Result<()> {
    let played = Played::start().await;
    let stage = Stage::start(&played.config(), None).await?;
    played.status.store(200, Ordering::Relaxed);
    for agent in ["assistant", "bare"] {
        let before = played.calls();
        played.failures.store(9, Ordering::Relaxed);
        let body = ask(agent, false, &json!([{"role": "user", "content": "pay"}]));
        for _ in 0..3 {
            let failed = send(&stage, &body).await?;
            let code = failed.json()?["error"]["code"].clone();
            ensure!(code == "agent_malformed", "{agent}: {code}");
        }
        let after = played.calls();
        ensure!(after.0 - before.0 == 1, "{agent}: the tool ran once");
        ensure!(
            after.1 - before.1 == 2,
            "{agent}: the model is not asked again"
        );
    }
    stage.end().await
}
