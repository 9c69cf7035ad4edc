//! Agents and models that do everything wrong: the client gets an error that says so, nothing of the half
//! answer stays, and the session goes on.

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::json;
use statehold_fakes::chat::{self, word};
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest, locked, send};
use tokio::sync::Semaphore;

use crate::stage::{Ask, Stage};

/// What no answer says to its end.
const HALF: &str = "half-said ";
const GOOD: &str = "All is well.";
/// How often a call that failed is made again here.
const RETRIES: usize = 1;
const AGENTS: [&str; 3] = ["gpa", "ums", "assistant"];
/// What the server may ever have in use. Six answers of 100 MiB come at once, and more that never end: if
/// they were kept until they are refused, it would be more than 600 MiB.
const MEMORY_MAX: u64 = 400 << 20;

/// What goes wrong: its name, the code of the answer, how often the agent is called for it. Where time is
/// what ends it, the agent has little of it.
struct Fault {
    name: &'static str,
    code: Option<&'static str>,
    calls: usize,
    is_timed: bool,
}

const FAULTS: [Fault; 8] = [
    fault("timeout", "agent_timeout", 1, true),
    fault("500", "agent_error", 1 + RETRIES, false),
    Fault {
        name: "500-once",
        code: None,
        calls: 2,
        is_timed: false,
    },
    fault("cut", "agent_cut_off", 1, false),
    fault("malformed", "agent_malformed", 1, false),
    fault("endless-slow", "agent_timeout", 1, true),
    fault("endless-fast", "agent_too_large", 1, false),
    fault("100-mb", "agent_too_large", 1, false),
];

const fn fault(name: &'static str, code: &'static str, calls: usize, is_timed: bool) -> Fault {
    Fault {
        name,
        code: Some(code),
        calls,
        is_timed,
    }
}

/// The code of the answer, and how often the agent is called. What was said in a conversation stays there,
/// so it is not said again.
fn outcome(agent: &str, fault: &Fault) -> (Option<&'static str>, usize) {
    match (agent, fault.name) {
        ("ums", "500" | "500-once") => (Some("agent_error"), 1),
        _ => (fault.code, fault.calls),
    }
}

fn play(seen: &SeenRequest, conversations: &Conversations, before: usize) -> ScriptedResponse {
    if seen.path.starts_with("/ums")
        && let Some(play) = conversations.begin_or_list(seen)
    {
        return play;
    }
    match seen.said().split(' ').nth(1).unwrap_or_default() {
        "timeout" => ScriptedResponse::silence(),
        "500" => ScriptedResponse::json(500, &json!({"error": {"message": "out of order"}})),
        "500-once" if before == 0 => {
            ScriptedResponse::json(500, &json!({"error": {"message": "not yet"}}))
        }
        "cut" => chat::stream(vec![word(HALF), word(HALF), BodyStep::Cut]),
        "malformed" => {
            let body = format!(r#"{{"choices": [{{"message": {{"content": "{HALF}"#);
            ScriptedResponse::json(200, &body)
        }
        "endless-slow" => chat::stream(vec![word(HALF).endless(Duration::from_millis(50))]),
        "endless-fast" => chat::stream(vec![word(&HALF.repeat(4_096)).endless(Duration::ZERO)]),
        "100-mb" => {
            let begin = r#"{"choices": [{"finish_reason": "stop", "message": {"role": "assistant", "content": ""#;
            let filler = HALF.repeat((1 << 20) / HALF.len());
            let body = vec![send(begin), send(&filler).times(100), send(r#""}}]}"#)];
            ScriptedResponse::new(200, "application/json", body)
        }
        _ => chat::says(seen, GOOD),
    }
}

/// Each agent twice: one has some seconds for each call, the other as long as it takes on a busy machine.
fn config(at: &str) -> String {
    let mut config = String::new();
    let mut names = Vec::new();
    for (suffix, seconds) in [("", 100), ("-hasty", 5)] {
        write!(
            config,
            r#"
            [models.main{suffix}]
            base_url = "{at}/model/v1"
            model = "main"
            timeout_seconds = {seconds}
            retries = {RETRIES}
            [agents.gpa{suffix}]
            kind = "openai"
            base_url = "{at}/gpa/v1"
            model = "gpa"
            timeout_seconds = {seconds}
            retries = {RETRIES}
            [agents.ums{suffix}]
            kind = "conversations"
            base_url = "{at}/ums"
            timeout_seconds = {seconds}
            retries = {RETRIES}
            [agents.assistant{suffix}]
            kind = "llm"
            model = "main{suffix}"
            prompt = "You are told what to say."
            "#
        )
        .expect("a text takes everything");
        names.extend(AGENTS.map(|agent| format!("{agent}{suffix}")));
    }
    let rules = names
        .iter()
        .map(|name| format!(r#"{{ pattern = "^{name} ", agent = "{name}" }}"#));
    let rules: Vec<String> = rules.collect();
    let rules = rules.join(", ");
    write!(
        config,
        "[agents.coordinator]\nkind = \"router\"\nagents = {names:?}\nrules = [{rules}]\n"
    )
    .expect("a text takes everything");
    config
}

/// One answer that is too large at a time: those of one user share their memory.
static LARGE_ANSWERS: Semaphore = Semaphore::const_new(1);

/// One agent does one thing wrong, and then all is well.
async fn meet(
    stage: Arc<Stage>,
    played: Arc<FakeService>,
    agent: &'static str,
    fault: &'static Fault,
    stream: bool,
) -> Result<()> {
    let (code, calls) = outcome(agent, fault);
    let suffix = if fault.is_timed { "-hasty" } else { "" };
    let name = format!("{agent}{suffix}");
    let manner = if stream { "streamed" } else { "whole" };
    let wrong = format!("{name} {} {manner}", fault.name);
    let good = format!("{name} good {manner} {}", fault.name);
    // Half go through the coordinator: what is wrong with an agent is told through it as it is.
    let asked = if stream { "coordinator" } else { name.as_str() };
    let mut ask = Ask {
        agent: asked,
        session: "new",
        text: &wrong,
        stream,
        key: None,
    };
    let large = match code {
        Some("agent_too_large") => Some(LARGE_ANSWERS.acquire().await?),
        _ => None,
    };
    let told = ask.send(stage.address()).await?;
    drop(large);
    // A stream that has begun tells of the failure itself; one that has not has its status.
    let is_right = match (code, told.status) {
        (None, status) => status == 200,
        (Some(_), 200) => stream,
        (Some(_), status) => status == 502,
    };
    ensure!(is_right, "status: {} {:?}", told.status, told.code);
    ensure!(told.code.as_deref() == code, "code: {:?}", told.code);
    let is_answered = code.is_none();
    ensure!(
        told.is_done == (stream && is_answered),
        "ended: {}",
        told.is_done
    );
    if is_answered {
        ensure!(told.text == GOOD, "said: {}", told.text);
    }
    let session = told.header("x-statehold-session").context("a session")?;
    is_idle(&stage, session).await.context("after the fault")?;
    let count = |text: &str| {
        let all = played.seen();
        all.iter().filter(|seen| seen.said() == text).count()
    };
    ensure!(count(&wrong) == calls, "{} calls", count(&wrong));
    (ask.session, ask.text) = (session, &good);
    let told = ask.send(stage.address()).await?;
    let is_good = told.status == 200 && told.text == GOOD && told.code.is_none();
    ensure!(is_good, "afterwards: {} {:?}", told.status, told.code);
    ensure!(count(&good) == 1, "afterwards: {} calls", count(&good));
    is_idle(&stage, session).await.context("afterwards")?;
    let said = stage.transcript(session).await?;
    let mut right = vec![("user", wrong.as_str())];
    right.extend(is_answered.then_some(("assistant", GOOD)));
    right.extend([("user", good.as_str()), ("assistant", GOOD)]);
    let said: Vec<(&str, &str)> = said
        .iter()
        .map(|(role, text)| (role.as_str(), text.as_str()))
        .collect();
    ensure!(said == right, "the session says {said:?}");
    let trace = serde_json::to_string(&stage.trace(session).await?)?;
    ensure!(!trace.contains(HALF.trim()), "half an answer is kept");
    let all = played.seen();
    let later = all.iter().filter(|seen| seen.said() == good);
    for seen in later {
        let is_whole = !seen.text.contains(HALF.trim());
        ensure!(is_whole, "half an answer is told to the agent");
    }
    Ok(())
}

async fn is_idle(stage: &Stage, session: &str) -> Result<()> {
    let tree = stage.tree(session).await?;
    let is_idle = tree.tasks.iter().all(|task| task.1 == "idle");
    ensure!(is_idle && !tree.tasks.is_empty(), "{tree:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whatever_an_agent_does_wrong_the_client_is_told_and_the_session_goes_on() {
    let conversations = Conversations::default();
    let texts: Mutex<Vec<String>> = Mutex::default();
    let played = FakeService::start(move |seen| {
        let said = seen.said();
        let mut texts = locked(&texts);
        let before = texts.iter().filter(|text| **text == said).count();
        texts.push(said);
        play(seen, &conversations, before)
    });
    let played = Arc::new(played.await);
    let stage = Stage::start(&config(&played.url("")), None).await;
    let stage = Arc::new(stage.expect("it starts"));
    let (mut total, mut failures) = (0, Vec::new());
    // Those that have little time are not made to wait for the others.
    for is_timed in [false, true] {
        let mut meetings = tokio::task::JoinSet::new();
        for agent in AGENTS {
            for fault in FAULTS.iter().filter(|fault| fault.is_timed == is_timed) {
                for stream in [false, true] {
                    let (stage, played) = (Arc::clone(&stage), Arc::clone(&played));
                    meetings.spawn(async move {
                        let met = meet(stage, played, agent, fault, stream).await;
                        met.with_context(|| format!("{agent}, {}, stream {stream}", fault.name))
                    });
                }
            }
        }
        total += meetings.len();
        while let Some(meeting) = meetings.join_next().await {
            let meeting = meeting.expect("it does not panic");
            failures.extend(meeting.err().map(|error| format!("{error:#}")));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    let most = stage
        .server()
        .resident_bytes_most()
        .expect("the kernel says");
    println!(
        "faults: {total} met ({} kinds of agents, {} faults, streamed and whole), all told, all sessions go \
         on; memory at most {} MiB",
        AGENTS.len(),
        FAULTS.len(),
        most >> 20
    );
    assert!(most <= MEMORY_MAX, "at most {most} bytes");
    let stage = Arc::into_inner(stage).expect("nobody talks any more");
    stage.end().await.expect("it is clean");
}
