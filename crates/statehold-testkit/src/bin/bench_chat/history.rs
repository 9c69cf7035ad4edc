//! Preparing a long history for a call against reading it: the server's own runner on its own store, in
//! this process, with an agent that remembers nothing and so gets all of its exchanges back.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use statehold_agents::runner::Runner;
use statehold_agents::spec::{AgentBook, AgentKind, AgentSpec, Memory, OpenaiSpec};
use statehold_core::command::{Command, Fenced, StartRequest, StatePatch};
use statehold_core::digest::BodyRef;
use statehold_core::ids::{IdMint, RequestId, SessionId, Shard, TaskId};
use statehold_core::item::{ItemKind, NewItem, Visibility};
use statehold_core::name::Name;
use statehold_core::record::Event;
use statehold_core::session::Owner;
use statehold_core::task::CloseOn;
use statehold_engine::kept::{ItemBody, to_bytes};
use statehold_engine::{
    Call, Caller, Committed, Engine, EngineOptions, MemoryKeys, Payloads, Reply, SystemClock,
};
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_testkit::workload::Random;

use super::drive::{median, micros};
use super::listener::{Arrival, listen};

/// How many turns are behind the one that is measured.
const LENGTHS: [usize; 3] = [0, 10, 1_000];
/// As the runner reads.
const PAGE: usize = 500;
const LEASE_MS: u64 = 30_000;
const AGENT: &str = "agent";

/// What was seen at one length.
#[derive(Debug, Default)]
struct Seen {
    /// From the start of a turn to the last byte of the call at the agent.
    arrival_us: Vec<f64>,
    /// Reading the same items through the engine alone.
    read_us: Vec<f64>,
    items: usize,
    read_bytes: usize,
    call_bytes: usize,
}

/// Measures, and gives the figures.
pub(crate) fn run(rounds: usize) -> Result<Value> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    runtime.block_on(measure(rounds))
}

async fn measure(rounds: usize) -> Result<Value> {
    println!(
        "preparing a history: turns of 200 B asked, a tool call of 300 B with a result of 2 KB in the \
         agent's state, 400 B answered; {rounds} turns at each length"
    );
    let directory = tempfile::tempdir()?;
    let (address, arrivals) = listen()?;
    let rig = Rig::start(directory.path()).await?;
    let longest = rig.filled(LENGTHS[2]).await?;
    let runner = rig.runner(&format!("http://{address}/v1")).await?;
    let mut seen: [Seen; 3] = Default::default();
    // The first of each fills caches.
    for round in 0..=rounds {
        for (turns, seen) in LENGTHS.into_iter().zip(&mut seen) {
            // A few turns more make no difference to a long one.
            let (session, turns) = if turns == LENGTHS[2] {
                (longest, turns + round)
            } else {
                (rig.filled(turns).await?, turns)
            };
            let one = rig.turn(session, turns, &arrivals).await?;
            if round > 0 {
                seen.add(&one);
            }
        }
    }
    runner.stop().await;
    rig.engine.shut_down().await;
    Ok(report(&seen))
}

/// One turn that was measured.
struct One {
    arrival_us: u32,
    read_us: u32,
    items: usize,
    read_bytes: usize,
    call_bytes: usize,
}

impl Seen {
    fn add(&mut self, one: &One) {
        self.arrival_us.push(f64::from(one.arrival_us));
        self.read_us.push(f64::from(one.read_us));
        (self.items, self.read_bytes, self.call_bytes) =
            (one.items, one.read_bytes, one.call_bytes);
    }
}

fn report(seen: &[Seen]) -> Value {
    println!(
        "{:>6}  {:>6}  {:>8}  {:>8}  {:>12}  {:>11}  {:>10}  {:>8}",
        "turns", "items", "KB read", "KB sent", "to agent ms", "preparing", "reading ms", "ratio"
    );
    let empty = seen.first().map_or(0.0, |seen| median(&seen.arrival_us));
    let mut lines = Vec::new();
    for (turns, seen) in LENGTHS.iter().zip(seen) {
        let (arrival, read) = (median(&seen.arrival_us), median(&seen.read_us));
        // What is the same without a history is the turn itself, commits included.
        let preparing = arrival - empty;
        let is_long = *turns > 0;
        let ratio = is_long.then(|| preparing / read);
        let shown =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.2}"));
        let (kb_read, kb_sent) = (seen.read_bytes / 1_000, seen.call_bytes / 1_000);
        println!(
            "{turns:>6}  {:>6}  {kb_read:>8}  {kb_sent:>8}  {:>12.2}  {:>11}  {:>10.2}  {:>8}",
            seen.items,
            arrival / 1e3,
            shown(is_long.then_some(preparing / 1e3)),
            read / 1e3,
            shown(ratio),
        );
        lines.push(json!({
            "turns": turns, "items": seen.items, "read_bytes": seen.read_bytes,
            "call_bytes": seen.call_bytes, "to_agent_us": arrival.round(),
            "preparing_us": preparing.round(), "read_us": read.round(),
            "ratio": ratio.map(|ratio| (ratio * 1_000.0).round() / 1_000.0),
        }));
    }
    println!(
        "  to agent: from the start of a turn to the last byte of the call at the agent, two commits \
         included\n  preparing: the same without the time it takes where nothing was said before\n  \
         reading: the items of the task through the engine, in the same process"
    );
    Value::Array(lines)
}

/// The engine of the server on its store.
struct Rig {
    engine: Engine,
    tenant: Name,
    local: Caller,
    random: std::sync::Mutex<Random>,
}

impl Rig {
    async fn start(directory: &std::path::Path) -> Result<Self> {
        let store = SqliteStore::open(directory, SqliteOptions::default())?;
        let engine = Engine::start(
            Arc::new(store),
            Arc::new(MemoryKeys::default()),
            Arc::new(SystemClock),
            EngineOptions::default(),
        )
        .await?;
        let tenant: Name = "default".parse()?;
        Ok(Self {
            engine,
            local: Caller::local(tenant.clone()),
            tenant,
            random: std::sync::Mutex::new(Random::new(7)),
        })
    }

    async fn runner(&self, base_url: &str) -> Result<Runner> {
        let spec = OpenaiSpec {
            base_url: base_url.to_owned(),
            model: AGENT.to_owned(),
            credential: None,
            memory: Memory::Restore,
        };
        let name: Name = AGENT.parse()?;
        let spec = AgentSpec {
            kind: AgentKind::Openai(Arc::new(spec)),
            ..AgentSpec::worker(name.clone())
        };
        let mut book = AgentBook::default();
        book.agents.insert(name, Arc::new(spec));
        let (engine, tenant) = (self.engine.clone(), self.tenant.clone());
        Ok(Runner::start(engine, tenant, Arc::new(book)).await?)
    }

    fn text(&self, bytes: usize) -> String {
        let mut random = self
            .random
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        random.text(bytes)
    }

    async fn payloads(&self, session: SessionId) -> Result<Payloads> {
        let owner = self.engine.owner(session).await?;
        Ok(self.engine.payloads_for(&owner.tenant, owner.user).await?)
    }

    async fn submit(
        &self,
        session: SessionId,
        command: &Command,
        payloads: &Payloads,
    ) -> Result<Option<(RequestId, TaskId)>> {
        let reply: Reply = Arc::new(|made: &Committed<'_>| {
            let mut events = made.record.content.events.iter();
            let started = events.find_map(|event| match event {
                Event::RequestStarted { request, task, .. } => Some(format!("{request} {task}")),
                _ => None,
            });
            started.unwrap_or_default().into_bytes()
        });
        let call = Call::by(self.local.clone());
        let done = self
            .engine
            .submit(session, &call, command, payloads, &reply)
            .await?;
        let text = String::from_utf8(done.body)?;
        let Some((request, task)) = text.split_once(' ') else {
            return Ok(None);
        };
        Ok(Some((request.parse()?, task.parse()?)))
    }

    async fn session(&self) -> Result<SessionId> {
        let user = self.engine.user_id(&self.tenant, "bob").await?;
        let owner = Owner {
            agent: AGENT.parse()?,
            app: "bench".parse()?,
            tenant: self.tenant.clone(),
            user,
        };
        let shard = Shard::of_owner(self.tenant.as_str(), "bench", "bob");
        let entropy = self
            .random
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .next_u64();
        let mut mint = IdMint::new(self.engine.now(), shard, entropy);
        let session = SessionId::from_uuid(mint.next_uuid());
        let command = Command::CreateSession {
            owner,
            name: None,
            labels: None,
            state: StatePatch::default(),
            ttl: None,
        };
        self.submit(session, &command, &self.engine.no_payloads())
            .await?;
        Ok(session)
    }

    /// Starts a request, with a lease if this is who works on it.
    async fn begin(
        &self,
        session: SessionId,
        asked: &str,
        lease_ttl_ms: Option<u64>,
    ) -> Result<(RequestId, TaskId)> {
        let mut payloads = self.payloads(session).await?;
        let command = Command::StartRequest(StartRequest {
            agent: AGENT.parse()?,
            task: None,
            parent: None,
            input: message(asked, &mut payloads),
            attachments: Vec::new(),
            close_on: CloseOn::Never,
            lease_ttl_ms,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        });
        let started = self.submit(session, &command, &payloads).await?;
        started.context("a request without an id")
    }

    /// A session with turns as the gateway writes them, without calling anybody.
    async fn filled(&self, turns: usize) -> Result<SessionId> {
        let session = self.session().await?;
        for _ in 0..turns {
            let (request, _) = self.begin(session, &self.text(200), Some(LEASE_MS)).await?;
            let by = Fenced { request, fence: 1 };
            let (answer, state) = (self.text(400), self.state()?);
            let said = json!({ "content": answer, "finish_reason": "stop", "state": state });
            let step = json!({
                "index": 0, "step": "agent_call", "input": "0".repeat(64), "result": said,
            });
            let mut payloads = self.payloads(session).await?;
            let items = vec![hidden(ItemKind::Step, "agent_call", &step, &mut payloads)?];
            let command = Command::AppendItems {
                by,
                items,
                state: StatePatch::default(),
                task_state: None,
            };
            self.submit(session, &command, &payloads).await?;
            let note = json!({ "state": state });
            let mut payloads = self.payloads(session).await?;
            let items = vec![hidden(ItemKind::Note, "agent_state", &note, &mut payloads)?];
            let command = Command::CompleteRequest {
                by,
                output: statehold_core::command::Output {
                    body: message(&answer, &mut payloads),
                    attachments: Vec::new(),
                },
                items,
                state: StatePatch::default(),
                task_state: None,
                close_task: false,
                cancel_children: true,
            };
            self.submit(session, &command, &payloads).await?;
        }
        Ok(session)
    }

    /// What an agent that calls tools wants to have back.
    fn state(&self) -> Result<Box<RawValue>> {
        let arguments = json!({ "query": self.text(286) }).to_string();
        let call = json!({
            "id": "call_1", "type": "function",
            "function": { "name": "search", "arguments": arguments },
        });
        Ok(to_raw_value(&json!({ "tool_call_history": [
            { "role": "assistant", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "call_1", "content": self.text(2_048) },
        ] }))?)
    }

    /// Takes one turn after `turns` others, and reads what it had to read.
    async fn turn(
        &self,
        session: SessionId,
        turns: usize,
        arrivals: &Receiver<Arrival>,
    ) -> Result<One> {
        let began = Instant::now();
        let (request, task) = self.begin(session, &self.text(200), None).await?;
        let wait = || arrivals.recv_timeout(Duration::from_secs(30));
        let arrival = tokio::task::block_in_place(wait).context("the agent was not called")?;
        let arrival_us = u32::try_from(arrival.at.duration_since(began).as_micros())?;
        let asked = arrival
            .body
            .windows(13)
            .filter(|window| window == br#""role":"user""#)
            .count();
        ensure!(asked == turns + 1, "{asked} messages of {turns} turns");
        self.until_ended(session, request).await?;
        let (mut items, mut read_bytes, mut before) = (0, 0, None);
        let began = Instant::now();
        loop {
            let page = self.engine.task_items(session, task, before, PAGE).await?;
            items += page.items.len();
            let bodies = page.items.iter().filter_map(|item| item.body.as_ref());
            read_bytes += bodies.map(Vec::len).sum::<usize>();
            before = page.next;
            if before.is_none() {
                break;
            }
        }
        Ok(One {
            arrival_us,
            read_us: micros(began),
            items,
            read_bytes,
            call_bytes: arrival.body.len(),
        })
    }

    async fn until_ended(&self, session: SessionId, request: RequestId) -> Result<()> {
        loop {
            let detail = self.engine.request(&self.local, request).await?;
            if detail.ended.is_some() {
                return Ok(());
            }
            let changed = self.engine.changed_after(session, detail.revision);
            tokio::time::timeout(Duration::from_secs(30), changed).await??;
        }
    }
}

fn message(text: &str, payloads: &mut Payloads) -> BodyRef {
    let content = to_raw_value(text).expect("text is JSON");
    let body = ItemBody {
        content: Some(content),
        ..ItemBody::default()
    };
    payloads.put(to_bytes(&body))
}

fn hidden(kind: ItemKind, name: &str, data: &Value, payloads: &mut Payloads) -> Result<NewItem> {
    let body = ItemBody {
        name: Some(name.to_owned()),
        data: Some(to_raw_value(data)?),
        ..ItemBody::default()
    };
    Ok(NewItem {
        kind,
        visibility: Visibility::Hidden,
        role: None,
        body: payloads.put(to_bytes(&body)),
        attachments: Vec::new(),
        call: None,
    })
}
