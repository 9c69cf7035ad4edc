//! The engine of the server on its store, with sessions that have been long in use.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use statehold_agents::runner::Runner;
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatMemory, LlmSpec, ModelSpec, OpenaiSpec, RETRIES, TIMEOUT,
};
use statehold_core::command::{Command, Fenced, Output, StartRequest, StatePatch};
use statehold_core::digest::BodyRef;
use statehold_core::hold::CallTarget;
use statehold_core::ids::{IdMint, RequestId, SessionId, Shard, TaskId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark, NewItem, Visibility};
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

const LEASE_MS: u64 = 30_000;
/// How many bytes a tool is asked with, and how many it answers.
const ARGUMENT_BYTES: usize = 286;
const RESULT_BYTES: usize = 2_048;

/// Whose history is prepared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An agent that remembers nothing itself.
    Openai,
    /// A model with tools.
    Llm,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Openai, Self::Llm];

    /// The word in configurations, and the name of the agent here.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Openai => "openai",
            Self::Llm => "llm",
        }
    }
}

pub(super) struct Rig {
    pub(super) engine: Engine,
    pub(super) local: Caller,
    tenant: Name,
    random: Mutex<Random>,
}

impl Rig {
    pub(super) async fn start(directory: &std::path::Path) -> Result<Self> {
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
            random: Mutex::new(Random::new(7)),
        })
    }

    /// Works for an agent of each kind.
    pub(super) async fn runner(&self, base_url: &str) -> Result<Runner> {
        let mut book = AgentBook::default();
        let openai = OpenaiSpec {
            base_url: base_url.to_owned(),
            model: "agent".to_owned(),
            credential: None,
            memory: ChatMemory::Restore,
        };
        let main: Name = "main".parse()?;
        let llm = LlmSpec {
            model: main.clone(),
            prompt: "You answer questions, briefly.".to_owned(),
            tool_servers: Vec::new(),
            steps_max: 16,
            tokens_max: None,
        };
        let model = ModelSpec {
            name: main.clone(),
            base_url: base_url.to_owned(),
            model: "model".to_owned(),
            credential: None,
            timeout: TIMEOUT,
            retries: RETRIES,
        };
        book.models.insert(main, Arc::new(model));
        let kinds = [
            (Kind::Openai, AgentKind::Openai(Arc::new(openai))),
            (Kind::Llm, AgentKind::Llm(Arc::new(llm))),
        ];
        for (name, kind) in kinds {
            let name: Name = name.name().parse()?;
            let spec = AgentSpec {
                kind,
                ..AgentSpec::worker(name.clone())
            };
            book.agents.insert(name, Arc::new(spec));
        }
        let (engine, tenant) = (self.engine.clone(), self.tenant.clone());
        Ok(Runner::start(engine, tenant, Arc::new(book)).await?)
    }

    pub(super) fn text(&self, bytes: usize) -> String {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
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

    async fn session(&self, kind: Kind) -> Result<SessionId> {
        let user = self.engine.user_id(&self.tenant, "bob").await?;
        let owner = Owner {
            agent: kind.name().parse()?,
            app: "bench".parse()?,
            tenant: self.tenant.clone(),
            user,
        };
        let shard = Shard::of_owner(self.tenant.as_str(), "bench", "bob");
        let entropy = {
            let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
            random.next_u64()
        };
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
    pub(super) async fn begin(
        &self,
        session: SessionId,
        kind: Kind,
        asked: &str,
        lease_ttl_ms: Option<u64>,
    ) -> Result<(RequestId, TaskId)> {
        let mut payloads = self.payloads(session).await?;
        let command = Command::StartRequest(StartRequest {
            agent: kind.name().parse()?,
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

    /// A session with turns as agents of a kind leave them, without calling anybody.
    pub(super) async fn filled(&self, kind: Kind, turns: usize) -> Result<SessionId> {
        let session = self.session(kind).await?;
        for _ in 0..turns {
            let asked = self.text(200);
            let (request, _) = self.begin(session, kind, &asked, Some(LEASE_MS)).await?;
            let by = Fenced { request, fence: 1 };
            match kind {
                Kind::Openai => self.fill_openai(session, by).await?,
                Kind::Llm => self.fill_llm(session, by).await?,
            }
        }
        Ok(session)
    }

    /// What the gateway records of an agent that calls tools itself and wants its state back.
    async fn fill_openai(&self, session: SessionId, by: Fenced) -> Result<()> {
        let (answer, state) = (self.text(400), self.state()?);
        let said = json!({ "content": answer, "finish_reason": "stop", "state": state });
        self.append(session, by, |payloads| {
            Ok(vec![step("agent_call", 0, &said, payloads)?])
        })
        .await?;
        let note = json!({ "state": state });
        self.complete(session, by, &answer, ("agent_state", &note))
            .await
    }

    /// What the runner records of a model that calls a tool and then answers.
    async fn fill_llm(&self, session: SessionId, by: Fenced) -> Result<()> {
        let arguments = json!({ "query": self.text(ARGUMENT_BYTES) });
        let wish = json!({
            "id": "call_1", "name": "search", "arguments": arguments.to_string(),
            "server": "files", "tool": "search", "idempotent": true,
        });
        let wants = json!({ "tool_calls": [wish], "finish_reason": "tool_calls", "tokens": 100 });
        self.append(session, by, |payloads| {
            Ok(vec![step("model", 0, &wants, payloads)?])
        })
        .await?;
        let result = to_raw_value(&self.text(RESULT_BYTES))?;
        self.append(session, by, |payloads| {
            let call = ItemBody {
                name: Some("search".to_owned()),
                call_id: Some("call_1".to_owned()),
                arguments: Some(to_raw_value(&arguments)?),
                ..ItemBody::default()
            };
            let result = ItemBody {
                result: Some(result),
                ..ItemBody::default()
            };
            let called = NewCallMark::Call {
                gated: false,
                idempotent: true,
            };
            let ran = NewCallMark::Result {
                call: CallTarget::SameCommand(0),
                outcome: CallOutcome::Ran,
            };
            let item = |kind, body: &ItemBody, mark, payloads: &mut Payloads| NewItem {
                call: Some(mark),
                ..hidden(kind, body, payloads)
            };
            Ok(vec![
                item(ItemKind::ToolCall, &call, called, payloads),
                item(ItemKind::ToolResult, &result, ran, payloads),
            ])
        })
        .await?;
        let answer = self.text(400);
        let said = json!({ "text": answer, "finish_reason": "stop", "tokens": 100 });
        self.append(session, by, |payloads| {
            Ok(vec![step("model", 1, &said, payloads)?])
        })
        .await?;
        let note = json!({ "digest": "0".repeat(64) });
        self.complete(session, by, &answer, ("prompt", &note)).await
    }

    async fn append(
        &self,
        session: SessionId,
        by: Fenced,
        items: impl FnOnce(&mut Payloads) -> Result<Vec<NewItem>>,
    ) -> Result<()> {
        let mut payloads = self.payloads(session).await?;
        let command = Command::AppendItems {
            by,
            items: items(&mut payloads)?,
            state: StatePatch::default(),
            task_state: None,
        };
        self.submit(session, &command, &payloads).await?;
        Ok(())
    }

    async fn complete(
        &self,
        session: SessionId,
        by: Fenced,
        answer: &str,
        note: (&str, &Value),
    ) -> Result<()> {
        let mut payloads = self.payloads(session).await?;
        let note = named(note.0, note.1)?;
        let items = vec![hidden(ItemKind::Note, &note, &mut payloads)];
        let command = Command::CompleteRequest {
            by,
            output: Output {
                body: message(answer, &mut payloads),
                attachments: Vec::new(),
            },
            items,
            state: StatePatch::default(),
            task_state: None,
            close_task: false,
            cancel_children: true,
        };
        self.submit(session, &command, &payloads).await?;
        Ok(())
    }

    /// What an agent that calls tools wants to have back.
    fn state(&self) -> Result<Box<RawValue>> {
        let arguments = json!({ "query": self.text(ARGUMENT_BYTES) }).to_string();
        let call = json!({
            "id": "call_1", "type": "function",
            "function": { "name": "search", "arguments": arguments },
        });
        Ok(to_raw_value(&json!({ "tool_call_history": [
            { "role": "assistant", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "call_1", "content": self.text(RESULT_BYTES) },
        ] }))?)
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

/// A step as the runner records it.
fn step(kind: &str, index: usize, result: &Value, payloads: &mut Payloads) -> Result<NewItem> {
    let step = json!({
        "index": index, "step": kind, "input": "0".repeat(64), "result": result,
    });
    Ok(hidden(ItemKind::Step, &named(kind, &step)?, payloads))
}

fn named(name: &str, data: &Value) -> Result<ItemBody> {
    Ok(ItemBody {
        name: Some(name.to_owned()),
        data: Some(to_raw_value(data)?),
        ..ItemBody::default()
    })
}

fn hidden(kind: ItemKind, body: &ItemBody, payloads: &mut Payloads) -> NewItem {
    NewItem {
        kind,
        visibility: Visibility::Hidden,
        role: None,
        body: payloads.put(to_bytes(body)),
        attachments: Vec::new(),
        call: None,
    }
}
