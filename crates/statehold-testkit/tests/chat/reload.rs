//! The configuration is read again while many chat: everybody gets one answer, from the agents as they were
//! declared before or after, and nothing fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use statehold_fakes::chat::{self, word};
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest};
use statehold_testkit::http::signal;

use crate::stage::{Ask, Stage, until};

const RELOADS: usize = 20;
const CHATS: usize = 12;

/// Two agents behind a router, at an address with the number of the reading in it.
fn config(at: &str, reading: usize) -> String {
    format!(
        r#"
        [models.main]
        base_url = "{at}/{reading}/v1"
        model = "main"
        [agents.coordinator]
        kind = "router"
        agents = ["gpa", "assistant"]
        rules = [{{ pattern = "^assistant ", agent = "assistant" }}]
        otherwise = "gpa"
        [agents.gpa]
        kind = "openai"
        base_url = "{at}/{reading}/v1"
        model = "gpa"
        [agents.assistant]
        kind = "llm"
        model = "main"
        prompt = "Reading {reading}."
        "#
    )
}

/// Says by which reading it was called, and takes its time.
fn play(seen: &SeenRequest) -> ScriptedResponse {
    let reading = seen.path.split('/').nth(1).unwrap_or_default();
    let said = format!("{reading} heard {}", seen.said());
    let wait = BodyStep::Wait(Duration::from_millis(15));
    chat::stream(vec![word("By "), wait, word(&said)])
}

async fn reload(stage: &Stage) -> Result<Value> {
    stage.post("/v1/config/reload", "reload", &json!({})).await
}

/// Chats until it is told to stop. Gives how often it was answered.
async fn talk(stage: Arc<Stage>, number: usize, stop: Arc<AtomicBool>) -> Result<usize> {
    let agent = ["gpa", "assistant"][number % 2];
    let mut turns = 0;
    let mut session = "new".to_owned();
    while !stop.load(Ordering::Relaxed) {
        let text = format!("{agent} c{number}t{turns}");
        // Every third keeps nothing on the server.
        let ask = Ask {
            agent: "coordinator",
            session: if number.is_multiple_of(3) {
                ""
            } else {
                &session
            },
            text: &text,
            stream: number % 4 < 2,
            key: None,
        };
        let told = ask.send(stage.address()).await?;
        let heard = told
            .text
            .strip_prefix("By ")
            .and_then(|rest| rest.split_once(" heard "));
        let is_whole = heard.is_some_and(|(_, heard)| heard == text);
        ensure!(told.status == 200 && is_whole, "{text}: {told:?}");
        if let Some(made) = told.header("x-statehold-session") {
            made.clone_into(&mut session);
        }
        turns += 1;
    }
    Ok(turns)
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_reloads_under_load_lose_nothing_and_fail_nobody() -> Result<()> {
    let played = FakeService::start(play).await;
    let stage = Arc::new(Stage::start(&config(&played.url(""), 0), None).await?);
    let stop = Arc::new(AtomicBool::new(false));
    let chats = (0..CHATS).map(|number| talk(Arc::clone(&stage), number, Arc::clone(&stop)));
    let chats: Vec<_> = chats.map(tokio::spawn).collect();
    for reading in 1..=RELOADS {
        stage.configure(&config(&played.url(""), reading))?;
        let told = reload(&stage).await?;
        let changed = json!(["agents.assistant", "agents.gpa", "models.main"]);
        ensure!(told["changed"] == changed, "{told}");
        // Whatever is asked now is asked as it was just read.
        let ask = Ask {
            agent: "gpa",
            session: ["new", ""][reading % 2],
            text: "now",
            stream: false,
            key: None,
        };
        let told = ask.send(stage.address()).await?;
        ensure!(told.text == format!("By {reading} heard now"), "{told:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let mut turns = 0;
    for chat in chats {
        turns += chat.await??;
    }
    ensure!(turns > CHATS, "they did talk");
    // Each was heard once.
    let mut heard: Vec<String> = played.seen().iter().map(SeenRequest::said).collect();
    heard.retain(|said| said != "now");
    let all = heard.len();
    heard.sort_unstable();
    heard.dedup();
    ensure!(
        (heard.len(), all) == (turns, turns),
        "{} and {all} of {turns}",
        heard.len()
    );
    let stage = Arc::into_inner(stage).context("nobody else has it")?;
    stage.end().await
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_at_the_same_time_come_one_after_the_other_and_a_signal_is_one_too() -> Result<()> {
    let played = FakeService::start(play).await;
    let stage = Stage::start(&config(&played.url(""), 0), None).await?;
    stage.configure(&config(&played.url(""), 1))?;
    let (one, other) = tokio::join!(reload(&stage), reload(&stage));
    let mut changed = [one?, other?].map(|told| told["changed"].as_array().map_or(0, Vec::len));
    changed.sort_unstable();
    ensure!(
        changed == [0, 3],
        "the one changed everything, the other nothing: {changed:?}"
    );
    stage.configure("[agents.late]\n[server]\nconnections_max = 7\n")?;
    signal(stage.server().pid(), "HUP")?;
    until("the new agent is there", || async {
        let agents = stage.get("/v1/agents").await?;
        let agents = agents["agents"].as_array().context("a list")?;
        let names: Vec<&str> = agents
            .iter()
            .filter_map(|agent| agent["name"].as_str())
            .collect();
        Ok((names == ["late"]).then_some(()))
    })
    .await?;
    until("the log says what is different", || async {
        let said = stage.server().said();
        let is_said = said.contains("the configuration was read again")
            && said.contains("agents.late")
            && said.contains("server.connections_max");
        Ok(is_said.then_some(()))
    })
    .await?;
    let ask = Ask {
        agent: "gpa",
        session: "new",
        text: "still there?",
        stream: false,
        key: None,
    };
    let told = ask.send(stage.address()).await?;
    ensure!(told.code.as_deref() == Some("agent_unknown"), "{told:?}");
    // A mistake changes nothing, and does not end the server.
    stage.configure("[agents.late]\nkind = \"llm\"\n")?;
    signal(stage.server().pid(), "HUP")?;
    until("the log says what is wrong", || async {
        let said = stage.server().said();
        Ok(said
            .contains("`agents.late.prompt` is missing")
            .then_some(()))
    })
    .await?;
    let late = stage.get("/v1/agents/late").await?;
    ensure!(late["kind"] == "worker", "{late}");
    stage.end().await
}
