//! Many people chat at once with slow agents, and a third of them hang up in the middle: everybody gets
//! their own words, all of them and in order, and the server keeps nothing of it in memory.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use statehold_fakes::chat::{self, word};
use statehold_fakes::conversations::Conversations;
use statehold_fakes::{BodyStep, FakeService, ScriptedResponse, SeenRequest};
use tokio::sync::Barrier;

use crate::stage::{Ask, Stage, until};

const CHATS: usize = 200;
const ROUNDS: usize = 4;
const PIECES: usize = 20;
/// How often each marker stands in a piece. An answer has 100 KiB, so that answers which are not let go of
/// are seen.
const MARKERS: usize = 512;
const PAUSE: Duration = Duration::from_millis(25);
/// The agents, one of each kind.
const AGENTS: [&str; 3] = ["gpa", "ums", "assistant"];
/// What the rounds after the first may add to the memory in use: sessions that are kept at hand, and pages
/// of the store, both up to a limit. The answers of each round have 20 MiB, and each is drafted twice, for the
/// agent and for the coordinator: if one of these were not let go of, it would be 60 MiB or more in addition.
const GROWTH_MAX: u64 = 48 << 20;
/// What the server may ever have in use: a round of 200 streams needs up to 300 MiB, and the drafts of all four
/// would be 180 MiB in addition.
const MEMORY_MAX: u64 = 448 << 20;

fn piece_of(chat: &str, at: usize) -> String {
    format!("{chat}.{at:02} ").repeat(MARKERS)
}

fn answer_of(chat: &str) -> String {
    (0..PIECES).map(|at| piece_of(chat, at)).collect()
}

/// Answers slowly, as soon as everybody has asked.
fn play(seen: &SeenRequest, conversations: &Conversations, all: &Arc<Barrier>) -> ScriptedResponse {
    if seen.path.starts_with("/ums")
        && let Some(play) = conversations.begin_or_list(seen)
    {
        return play;
    }
    let said = seen.said();
    let chat = said.split(' ').nth(1).unwrap_or_default();
    let mut steps = vec![BodyStep::Meet(Arc::clone(all))];
    for at in 0..PIECES {
        steps.extend([word(&piece_of(chat, at)), BodyStep::Wait(PAUSE)]);
    }
    chat::stream(steps)
}

fn config(at: &str) -> String {
    format!(
        r#"
        [models.main]
        base_url = "{at}/model/v1"
        timeout_seconds = 600
        model = "main"
        [agents.coordinator]
        kind = "router"
        agents = ["gpa", "ums", "assistant"]
        rules = [{{ pattern = "^ums ", agent = "ums" }}, {{ pattern = "^assistant ", agent = "assistant" }}]
        otherwise = "gpa"
        [agents.gpa]
        kind = "openai"
        base_url = "{at}/gpa/v1"
        timeout_seconds = 600
        model = "gpa"
        [agents.ums]
        kind = "conversations"
        base_url = "{at}/ums"
        timeout_seconds = 600
        [agents.assistant]
        kind = "llm"
        model = "main"
        prompt = "You are slow."
        "#
    )
}

/// How somebody gets an answer.
#[derive(Debug, Clone, Copy)]
enum Manner {
    Stays,
    HangsUpAndAsksAgain,
    HangsUpAndLooks,
}

impl Manner {
    fn of(number: usize) -> Self {
        match number % 6 {
            0 => Self::HangsUpAndAsksAgain,
            3 => Self::HangsUpAndLooks,
            _ => Self::Stays,
        }
    }
}

/// One chat, whose words are like those of no other.
async fn talk(to: SocketAddr, stage: Arc<Stage>, round: usize, number: usize) -> Result<()> {
    let (chat, agent) = (
        format!("r{round}c{number:03}"),
        AGENTS[number % AGENTS.len()],
    );
    let text = format!("{agent} {chat} please");
    let mut ask = Ask {
        agent: "coordinator",
        session: "new",
        text: &text,
        stream: true,
        key: None,
    };
    let right = answer_of(&chat);
    let manner = Manner::of(number / AGENTS.len());
    let bytes_max = match manner {
        Manner::Stays => usize::MAX,
        Manner::HangsUpAndAsksAgain | Manner::HangsUpAndLooks => right.len() / 4,
    };
    let first = ask.send_until(to, bytes_max).await?;
    ensure!(right.starts_with(&first.text), "{chat} got other words");
    let session = first.header("x-statehold-session").context("a session")?;
    match manner {
        Manner::Stays => {
            let is_whole = first.is_done && first.text == right;
            ensure!(is_whole, "{chat} got {} bytes", first.text.len());
        }
        Manner::HangsUpAndAsksAgain => {
            ask.session = session;
            let again = ask.send(to).await?;
            ensure!(again.text == right, "{chat} got {} bytes", again.text.len());
            let (before, now) = ("x-statehold-request", again.header("x-statehold-request"));
            ensure!(first.header(before) == now, "{chat} was asked twice");
        }
        Manner::HangsUpAndLooks => {
            let said = until("the answer is in the session", || async {
                let said = stage.transcript(session).await?;
                Ok((said.len() > 1).then_some(said))
            });
            let said = said.await?;
            let right = [
                ("user".to_owned(), text.clone()),
                ("assistant".to_owned(), right),
            ];
            ensure!(said == right, "{chat} finds something else");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_slow_chats_at_once_get_their_own_words_and_leave_nothing_in_memory() {
    let (conversations, all) = (Conversations::default(), Arc::new(Barrier::new(CHATS)));
    let played = FakeService::start(move |seen| play(seen, &conversations, &all)).await;
    let stage = Stage::start(&config(&played.url("")), None).await;
    let stage = Arc::new(stage.expect("it starts"));
    let mut used = [0; ROUNDS + 1];
    used[0] = stage.server().resident_bytes().expect("the kernel says");
    for round in 0..ROUNDS {
        let mut chats = tokio::task::JoinSet::new();
        for number in 0..CHATS {
            chats.spawn(talk(stage.address(), Arc::clone(&stage), round, number));
        }
        let mut failures = Vec::new();
        while let Some(chat) = chats.join_next().await {
            let chat = chat.expect("it does not panic");
            failures.extend(chat.err().map(|error| format!("{error:#}")));
        }
        assert!(
            failures.is_empty(),
            "{} failed: {:?}",
            failures.len(),
            failures.first()
        );
        used[round + 1] = stage.server().resident_bytes().expect("the kernel says");
    }
    let most = stage
        .server()
        .resident_bytes_most()
        .expect("the kernel says");
    let asked = played
        .seen()
        .iter()
        .filter(|seen| !seen.said().is_empty())
        .count();
    // The first round finds what the server needs for so many; after that nothing stays. What is free is
    // given back in its own time.
    let server = &stage;
    let let_go = until("what is free is given back", || async move {
        server.get("/v1/sessions?limit=1").await?;
        let now = server.server().resident_bytes()?;
        Ok((now <= used[1] + GROWTH_MAX).then_some(now))
    });
    let after_all = let_go
        .await
        .expect("memory does not grow with what was said");
    println!(
        "crowd: {ROUNDS} rounds of {CHATS} streams at once, {asked} agent calls, a third hung up; memory \
         at the start and after each round {:?} MiB, then {} MiB, at most {} MiB",
        used.map(|bytes| bytes >> 20),
        after_all >> 20,
        most >> 20
    );
    assert_eq!(
        asked,
        ROUNDS * CHATS,
        "every agent was asked once for each chat"
    );
    assert!(most <= MEMORY_MAX, "at most {most} bytes");
    let stage = Arc::into_inner(stage).expect("nobody talks any more");
    stage.end().await.expect("it is clean");
}
