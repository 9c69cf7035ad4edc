//! An engine in memory, a book of agents, and helpers for clients, workers and people.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use statehold_agents::runner::{ConversationReader, Runner, RunnerOptions, StepHook};
use statehold_agents::spec::{
    AgentBook, AgentKind, AgentSpec, CallerTrust, ChatSessions, FinalAnswer, RouterSpec, Routing,
    RoutingRule, StageDetail, StateFormat,
};
use statehold_core::command::{Command, Output, StartRequest, StatePatch};
use statehold_core::digest::Digest;
use statehold_core::ids::{RequestId, SessionId, TaskId};
use statehold_core::item::{Attachment, AttachmentSource, ItemKind};
use statehold_core::name::Name;
use statehold_core::record::{CommandName, Event};
use statehold_core::task::CloseOn;
use statehold_engine::api::caller::ReadToken;
use statehold_engine::bodies::{AttachmentBody, ItemBody, to_bytes};
use statehold_engine::leased::LeasedRequest;
use statehold_engine::policy::Policies;
use statehold_engine::{
    Call, Caller, Claim, ClaimedRequest, Credential, Engine, EngineError, EngineOptions,
    MemoryKeys, RequestDetail, SystemClock, TurnMemories, api, testing,
};
use statehold_store::memory::MemoryStore;
use statehold_store::{PageLimit, Store};

/// Time limit of any wait in a test.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(crate) fn agent(text: &str, kind: AgentKind) -> Arc<AgentSpec> {
    Arc::new(AgentSpec {
        name: name(text),
        description: None,
        kind,
        import: Vec::new(),
        export: Vec::new(),
        output_key: None,
        state_schema: None,
        keep_pairs: None,
        timeout: Duration::from_secs(10),
        retries: 0,
        sessions: ChatSessions::None,
        caller_history: CallerTrust::default(),
        references: false,
        stages: StageDetail::default(),
        state_format: StateFormat::default(),
        brief_on_loss: false,
        pauses: false,
        digest: Digest::sha256(text.as_bytes()),
    })
}

/// A router that passes answers through, with rules of pattern and agent.
pub(crate) fn router(text: &str, rules: &[(&str, &str)], agents: &[&str]) -> Arc<AgentSpec> {
    let rules = rules.iter().map(|(pattern, agent)| RoutingRule {
        pattern: regex::Regex::new(pattern).expect("a pattern"),
        agent: name(agent),
        instructions: None,
    });
    let spec = RouterSpec {
        agents: agents.iter().map(|agent| name(agent)).collect(),
        routing: Routing::Rules {
            rules: rules.collect(),
            otherwise: None,
        },
        answer: FinalAnswer::Pass,
    };
    agent(text, AgentKind::Router(Arc::new(spec)))
}

pub(crate) fn book(agents: Vec<Arc<AgentSpec>>) -> AgentBook {
    let agents = agents.into_iter().map(|spec| (spec.name.clone(), spec));
    AgentBook {
        agents: agents.collect(),
        ..AgentBook::default()
    }
}

pub(crate) struct Rig {
    pub(crate) engine: Engine,
    pub(crate) book: Arc<AgentBook>,
    pub(crate) local: Caller,
}

impl Rig {
    pub(crate) async fn new(agents: Vec<Arc<AgentSpec>>) -> Self {
        Self::with(book(agents), Policies::default()).await
    }

    pub(crate) async fn with(book: AgentBook, policies: Policies) -> Self {
        Self::over(Arc::new(MemoryStore::new()), book, policies).await
    }

    /// The same over another store.
    pub(crate) async fn over(store: Arc<dyn Store>, book: AgentBook, policies: Policies) -> Self {
        let options = EngineOptions {
            policies: Arc::new(policies),
            ..EngineOptions::default()
        };
        Self::start_on(store, book, options).await
    }

    /// A rig whose turns share this memory.
    #[allow(dead_code, reason = "another program uses it")]
    pub(crate) async fn with_turn_memory(
        agents: Vec<Arc<AgentSpec>>,
        turn_memories: TurnMemories,
    ) -> Self {
        let options = EngineOptions {
            turn_memories,
            ..EngineOptions::default()
        };
        Self::start_on(Arc::new(MemoryStore::new()), book(agents), options).await
    }

    async fn start_on(store: Arc<dyn Store>, book: AgentBook, options: EngineOptions) -> Self {
        let engine = Engine::start(
            store,
            Arc::new(MemoryKeys::default()),
            Arc::new(SystemClock),
            options,
        )
        .await
        .expect("an engine");
        Self {
            engine,
            book: Arc::new(book),
            local: Caller::local(name("default")),
        }
    }

    pub(crate) async fn runner(&self) -> Runner {
        self.watched(Arc::new(|_, _| ())).await
    }

    pub(crate) async fn watched(&self, on_step: StepHook) -> Runner {
        let (engine, book) = (self.engine.clone(), Arc::clone(&self.book));
        // Tests read tokens as they are; a server seals them.
        let seal = |token: &ReadToken| {
            let text = serde_json::to_string(token).expect("JSON");
            Credential::new(text).expect("a credential")
        };
        let options = RunnerOptions {
            on_step,
            conversation_reader: Some(ConversationReader {
                mcp_url: "http://127.0.0.1:7717/mcp".to_owned(),
                seal: Arc::new(seal),
            }),
            ..RunnerOptions::default()
        };
        Runner::start(engine, name("default"), book, options)
            .await
            .expect("the runner starts")
    }

    /// Switches a runner to another book.
    pub(crate) async fn reload(&mut self, runner: &Runner, book: AgentBook) {
        self.book = Arc::new(book);
        let next = runner.prepare(Arc::clone(&self.book)).await;
        runner.switch(next.expect("it can be worked by")).await;
    }

    pub(crate) fn call(&self) -> Call {
        Call::by(self.local.clone())
    }

    /// A session of bob's with an agent.
    pub(crate) async fn session(&self, agent: &str) -> SessionId {
        self.session_of("bob", agent).await
    }

    /// A session of a user with an agent.
    pub(crate) async fn session_of(&self, user: &str, agent: &str) -> SessionId {
        let input = json!({"app": "app", "user": user, "agent": agent});
        let input = serde_json::from_value(input).expect("a session");
        let created = api::session::create(&self.engine, &self.call(), input).await;
        created.expect("a session").view.id
    }

    /// Sends a message to an agent.
    pub(crate) async fn ask(&self, session: SessionId, agent: &str, text: &str) -> RequestId {
        let content = serde_json::value::to_raw_value(text).expect("text");
        let body = ItemBody {
            content: Some(content),
            ..ItemBody::default()
        };
        self.ask_body(session, agent, &body, &[]).await
    }

    /// Sends a message to an agent, with hidden data and attachments.
    pub(crate) async fn ask_body(
        &self,
        session: SessionId,
        agent: &str,
        body: &ItemBody,
        files: &[AttachmentBody],
    ) -> RequestId {
        self.start((session, agent), (body, files), None, None)
            .await
    }

    /// Sends a message with the credential of its caller.
    #[allow(dead_code, reason = "another program uses it")]
    pub(crate) async fn ask_with(
        &self,
        session: SessionId,
        agent: &str,
        (body, files): (&ItemBody, &[AttachmentBody]),
        credential: &Credential,
    ) -> RequestId {
        self.start((session, agent), (body, files), None, Some(credential))
            .await
    }

    /// Goes on from a request that failed, as a client does that repeats its message.
    pub(crate) async fn go_on(&self, failed: &RequestDetail, text: &str) -> RequestId {
        let content = serde_json::value::to_raw_value(text).expect("text");
        let body = ItemBody {
            content: Some(content),
            ..ItemBody::default()
        };
        let (session, agent) = (failed.session.id, failed.task.agent.as_str());
        let continued = Some((failed.request.id(), failed.task.id));
        self.start((session, agent), (&body, &[]), continued, None)
            .await
    }

    async fn start(
        &self,
        (session, agent): (SessionId, &str),
        (body, files): (&ItemBody, &[AttachmentBody]),
        continued: Option<(RequestId, TaskId)>,
        credential: Option<&Credential>,
    ) -> RequestId {
        let payloads = testing::payloads(&self.engine, session).await;
        let mut payloads = payloads.expect("keys");
        let input = payloads.put(to_bytes(body));
        let attachments = files.iter().map(|file| Attachment {
            body: payloads.put(to_bytes(file)),
            source: AttachmentSource::Url,
        });
        let attachments = attachments.collect();
        let command = Command::StartRequest(StartRequest {
            chat: None,
            continues: continued.map(|(request, _)| request),
            agent: name(agent),
            task: continued.map(|(_, task)| task),
            parent: None,
            input,
            attachments,
            close_on: CloseOn::Never,
            lease_ttl_ms: None,
            items: Vec::new(),
            state: StatePatch::default(),
            output: None,
        });
        let (call, command) = (self.call(), (&command, &payloads));
        let done = testing::commit(&self.engine, session, &call, command, credential).await;
        done.expect("a request").view.request.expect("an id")
    }

    /// Waits until a request has ended.
    pub(crate) async fn ended(&self, request: RequestId) -> RequestDetail {
        self.until(request, |detail| detail.request.ended().is_some())
            .await
    }

    /// Waits until a condition on a request holds.
    pub(crate) async fn until(
        &self,
        request: RequestId,
        is_there: impl Fn(&RequestDetail) -> bool,
    ) -> RequestDetail {
        let wait = async {
            loop {
                let detail = self.engine.request(&self.local, request).await;
                let detail = detail.expect("the request");
                if is_there(&detail) {
                    return detail;
                }
                let changed = self
                    .engine
                    .changed_after(detail.session.id, detail.revision);
                changed.await.expect("a change");
            }
        };
        tokio::time::timeout(PATIENCE, wait)
            .await
            .expect("it takes too long")
    }

    /// The next request of a worker agent.
    pub(crate) async fn claim(&self, agent: &str) -> ClaimedRequest {
        let claim = Claim {
            agent: name(agent),
            max: 1,
            wait: PATIENCE,
            lease_ms: 60_000,
            request: None,
        };
        let claimed = self.engine.claim(&self.local, &claim).await;
        let mut claimed = claimed.expect("a claim");
        claimed.pop().expect("a request to work on")
    }

    /// Answers a claimed request.
    pub(crate) async fn answer(&self, claimed: &ClaimedRequest, text: &str) {
        let leased = self.leased(claimed);
        let mut batch = leased.batch().await.expect("keys");
        let output = said(text, batch.payloads());
        leased.complete(output, batch).await.expect("an answer");
    }

    pub(crate) fn leased(&self, claimed: &ClaimedRequest) -> LeasedRequest {
        LeasedRequest::of(&self.engine, &self.local, claimed).expect("a live request")
    }

    /// The commands of a session's records after a revision, in order.
    pub(crate) async fn commands_after(
        &self,
        session: SessionId,
        revision: u64,
    ) -> Vec<CommandName> {
        let feed = self
            .engine
            .feed(&self.local, session, revision, PageLimit::entries(500))
            .await;
        let entries = feed.expect("records");
        let commands = entries.iter();
        commands
            .map(|entry| entry.stored.record.content.command)
            .collect()
    }

    /// The transcript of a session's user, oldest first.
    pub(crate) async fn transcript(&self, session: SessionId) -> Vec<String> {
        let page = self
            .engine
            .transcript(&self.local, session, None, PageLimit::entries(100))
            .await;
        let items = page.expect("a transcript").items;
        items
            .iter()
            .rev()
            .map(|item| words(item.body.as_deref()))
            .collect()
    }

    /// Inputs and answers of a task.
    pub(crate) async fn history(&self, session: SessionId, task: TaskId) -> Vec<String> {
        let page = testing::task_items(&self.engine, session, task, None, 100).await;
        let items = page.expect("a history").items;
        let messages = items
            .iter()
            .filter(|item| item.placed.item.kind == ItemKind::Message);
        messages
            .rev()
            .map(|item| words(item.body.as_deref()))
            .collect()
    }
}

pub(crate) fn said(text: &str, payloads: &mut statehold_engine::Payloads) -> Output {
    let content = serde_json::value::to_raw_value(text).expect("text");
    let body = ItemBody {
        content: Some(content),
        ..ItemBody::default()
    };
    Output {
        body: payloads.put(to_bytes(&body)),
        attachments: Vec::new(),
    }
}

fn words(body: Option<&[u8]>) -> String {
    let body: ItemBody = statehold_engine::bodies::parse(body);
    let content = body.content.expect("content");
    serde_json::from_str(content.get()).expect("text")
}

/// The stored error of a request.
pub(crate) fn error(detail: &RequestDetail) -> serde_json::Value {
    let stored = detail.finished.as_ref().expect("an end");
    let named = stored.record.bodies();
    let events = &stored.record.content.events;
    let error = events.iter().find_map(|event| match event {
        Event::RequestEnded { error, .. } => *error,
        _ => None,
    });
    let index = named.iter().position(|body| Some(*body) == error);
    let bytes = stored.bodies[index.expect("an error")].as_deref();
    serde_json::from_slice(bytes.expect("kept")).expect("JSON")
}

/// Result of a test; only errors of the engine end it early.
pub(crate) type Outcome = Result<(), EngineError>;
