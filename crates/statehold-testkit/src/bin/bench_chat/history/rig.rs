//! The engine of the server on its store, with sessions that have been long in use.

use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use statehold_agents::runner::{Runner, RunnerOptions};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, ChatMemory, LlmSpec, ModelSpec, OpenaiSpec, RETRIES,
    StateAccess, TIMEOUT,
};
use statehold_core::command::Output;
use statehold_core::hold::CallTarget;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::item::{CallOutcome, ItemKind, NewCallMark};
use statehold_core::name::Name;
use statehold_engine::bodies::{ItemBody, to_bytes};
use statehold_engine::leased::LeasedRequest;
use statehold_engine::{Call, Caller, Engine, EngineOptions, MemoryKeys, SystemClock, api};
use statehold_store::sqlite::{SqliteOptions, SqliteStore};
use statehold_testkit::workload::Random;

const LEASE_SECONDS: u64 = 30;
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
            headers: Vec::new(),
            memory: ChatMemory::Restore,
        };
        let main: Name = "main".parse()?;
        let llm = LlmSpec {
            model: main.clone(),
            prompt: "You answer questions, briefly.".to_owned(),
            tool_servers: Vec::new(),
            steps_max: 16,
            tokens_max: None,
            prompt_echo_words: None,
            state: StateAccess::default(),
        };
        let model = ModelSpec {
            name: main.clone(),
            base_url: base_url.to_owned(),
            model: "model".to_owned(),
            credential: None,
            headers: Vec::new(),
            input: [].into(),
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
        let options = RunnerOptions::default();
        Ok(Runner::start(engine, tenant, Arc::new(book), options).await?)
    }

    pub(super) fn text(&self, bytes: usize) -> String {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.text(bytes)
    }

    fn call(&self) -> Call {
        Call::by(self.local.clone())
    }

    async fn session(&self, kind: Kind) -> Result<SessionId> {
        let input = json!({ "app": "bench", "user": "bob", "agent": kind.name() });
        let input = serde_json::from_value(input)?;
        let created = api::session::create(&self.engine, &self.call(), input).await?;
        Ok(created.view.id)
    }

    /// Starts a request, with a lease if this is who works on it.
    pub(super) async fn begin(
        &self,
        session: SessionId,
        kind: Kind,
        asked: &str,
        lease_seconds: Option<u64>,
    ) -> Result<(RequestId, TaskId)> {
        let lease = lease_seconds.map(|seconds| json!({ "ttl_seconds": seconds }));
        let input = json!({
            "agent": kind.name(), "input": asked, "close_on": "never", "lease": lease,
        });
        let input = serde_json::from_str(&input.to_string())?;
        let call = self.call();
        let started = api::request::start(&self.engine, &call, session, input, None).await?;
        let view = started.view;
        Ok((view.id, view.task_id))
    }

    /// A session with turns as agents of a kind leave them, without calling anybody.
    pub(super) async fn filled(&self, kind: Kind, turns: usize) -> Result<SessionId> {
        let session = self.session(kind).await?;
        let (engine, local) = (&self.engine, &self.local);
        for _ in 0..turns {
            let asked = self.text(200);
            let started = self.begin(session, kind, &asked, Some(LEASE_SECONDS));
            let (request, _) = started.await?;
            let claimed = engine.leased_request(local, session, request, 1).await?;
            let leased = LeasedRequest::of(engine, local, &claimed);
            let leased = leased.context("a request that ended")?;
            match kind {
                Kind::Openai => self.fill_openai(&leased).await?,
                Kind::Llm => self.fill_llm(&leased).await?,
            }
        }
        Ok(session)
    }

    /// What the gateway records of an agent that calls tools itself and wants its state back.
    async fn fill_openai(&self, leased: &LeasedRequest) -> Result<()> {
        let (answer, state) = (self.text(400), self.state()?);
        let said = json!({ "content": answer, "finish_reason": "stop", "state": state });
        append_step(leased, "agent_call", 0, &said).await?;
        let note = json!({ "state": state });
        complete(leased, &answer, ("agent_state", &note)).await
    }

    /// What the runner records of a model that calls a tool and then answers.
    async fn fill_llm(&self, leased: &LeasedRequest) -> Result<()> {
        let arguments = json!({ "query": self.text(ARGUMENT_BYTES) });
        let wish = json!({
            "id": "call_1", "name": "search", "arguments": arguments.to_string(),
            "server": "files", "tool": "search", "idempotent": true,
        });
        let wants = json!({ "tool_calls": [wish], "finish_reason": "tool_calls", "tokens": 100 });
        append_step(leased, "model", 0, &wants).await?;
        let mut batch = leased.batch().await?;
        let call = ItemBody {
            name: Some("search".to_owned()),
            call_id: Some("call_1".to_owned()),
            arguments: Some(to_raw_value(&arguments)?),
            ..ItemBody::default()
        };
        let called = NewCallMark::Call {
            gated: false,
            idempotent: true,
        };
        batch.push(ItemKind::ToolCall, Some(called), &call);
        let result = ItemBody {
            result: Some(to_raw_value(&self.text(RESULT_BYTES))?),
            ..ItemBody::default()
        };
        let ran = NewCallMark::Result {
            call: CallTarget::SameCommand(0),
            outcome: CallOutcome::Ran,
        };
        batch.push(ItemKind::ToolResult, Some(ran), &result);
        leased.append(batch).await?;
        let answer = self.text(400);
        let said = json!({ "text": answer, "finish_reason": "stop", "tokens": 100 });
        append_step(leased, "model", 1, &said).await?;
        let note = json!({ "digest": "0".repeat(64) });
        complete(leased, &answer, ("prompt", &note)).await
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

/// A step as the runner records it.
async fn append_step(
    leased: &LeasedRequest,
    kind: &str,
    index: usize,
    result: &Value,
) -> Result<()> {
    let step = json!({
        "index": index, "step": kind, "input": "0".repeat(64), "result": result,
    });
    let mut batch = leased.batch().await?;
    batch.push(ItemKind::Step, None, &named(kind, &step)?);
    leased.append(batch).await?;
    Ok(())
}

async fn complete(leased: &LeasedRequest, answer: &str, note: (&str, &Value)) -> Result<()> {
    let mut batch = leased.batch().await?;
    batch.push(ItemKind::Note, None, &named(note.0, note.1)?);
    let said = ItemBody {
        content: Some(to_raw_value(answer)?),
        ..ItemBody::default()
    };
    let output = Output {
        body: batch.payloads().put(to_bytes(&said)),
        attachments: Vec::new(),
    };
    Ok(leased.complete(output, batch).await?)
}

fn named(name: &str, data: &Value) -> Result<ItemBody> {
    Ok(ItemBody {
        name: Some(name.to_owned()),
        data: Some(to_raw_value(data)?),
        ..ItemBody::default()
    })
}
