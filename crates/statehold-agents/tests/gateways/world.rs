//! Sessions with agents in other processes, and their stored turns.

use std::sync::Arc;
use std::time::Duration;

use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use statehold_agents::runner::{Runner, RunnerOptions};
use statehold_agents::spec::{
    AgentKind, AgentSpec, AnalyticsSpec, ChatMemory, ConversationsSpec, DataContext, DialSpec,
    InlineData, OpenaiSpec, StageDetail,
};
use statehold_core::hold::DecisionKind;
use statehold_core::ids::{RequestId, SessionId};
use statehold_core::item::ItemKind;
use statehold_core::record::Event;
use statehold_core::request::RequestOutcome;
use statehold_engine::api::hold::{DecisionInput, decide_shown};
use statehold_engine::api::state::StateQuery;
use statehold_engine::bodies::{ItemBody, parse};
use statehold_engine::{Credential, HoldDetail, PageLimit, RequestDetail, testing};
use statehold_fakes::FakeService;
use statehold_fakes::analytics::PARENT;

use crate::rig::{Rig, agent, error, name};

pub(crate) fn chat(text: &str, server: &FakeService, memory: ChatMemory) -> AgentSpec {
    let kind = AgentKind::Openai(Arc::new(OpenaiSpec {
        base_url: server.url("/v1"),
        model: format!("{text}-model"),
        credential: None,
        headers: Vec::new(),
        memory,
    }));
    owned(agent(text, kind))
}

/// An application of DIAL that takes a key of this server's, and shows all of its stages.
pub(crate) fn dial(text: &str, server: &FakeService) -> AgentSpec {
    dial_with(text, server, Credential::new("own-key".to_owned()))
}

pub(crate) fn dial_with(
    text: &str,
    server: &FakeService,
    credential: Option<Credential>,
) -> AgentSpec {
    let kind = AgentKind::Dial(Arc::new(DialSpec {
        base_url: server.url("/core?api-version=2024-10-21"),
        deployment: format!("{text}-app"),
        credential,
        headers: Vec::new(),
    }));
    let mut spec = owned(agent(text, kind));
    spec.stages = StageDetail::Full;
    spec
}

pub(crate) fn conversations(text: &str, server: &FakeService) -> AgentSpec {
    let kind = AgentKind::Conversations(Arc::new(ConversationsSpec {
        base_url: server.url("/v1"),
        credential: None,
        headers: Vec::new(),
    }));
    owned(agent(text, kind))
}

/// The data agent of analytics services.
pub(crate) const DATA_AGENT: &str = "projects/p/locations/global/dataAgents/sales";

pub(crate) fn analytics(text: &str, server: &FakeService, context: DataContext) -> AgentSpec {
    analytics_with(text, server, context, |_| ())
}

pub(crate) fn analytics_with(
    text: &str,
    server: &FakeService,
    context: DataContext,
    change: impl FnOnce(&mut AnalyticsSpec),
) -> AgentSpec {
    let mut spec = AnalyticsSpec {
        base_url: server.url("/v1"),
        parent: PARENT.to_owned(),
        context,
        thinking: None,
        data_key: None,
        credential: None,
        headers: Vec::new(),
    };
    change(&mut spec);
    owned(agent(text, AgentKind::Analytics(Arc::new(spec))))
}

/// A conversation with the data agent.
pub(crate) fn in_conversation() -> DataContext {
    DataContext::Conversation {
        data_agent: DATA_AGENT.to_owned(),
    }
}

/// The data agent, without a conversation.
pub(crate) fn with_agent() -> DataContext {
    DataContext::Agent {
        data_agent: DATA_AGENT.to_owned(),
    }
}

pub(crate) fn inline_data() -> InlineData {
    InlineData {
        instructions: Some("Say it in euros.".to_owned()),
        data_sources: json!({"bq": {"tableReferences": [{"projectId": "p", "tableId": "t"}]}}),
    }
}

/// The sentence for a user whose service lost the conversation.
pub(crate) const LOST: &str = "The service that keeps this conversation had lost it. A new one was begun there, \
                               which knows nothing of the earlier messages.\n\n";
/// The same if the service is told of them.
pub(crate) const LOST_AND_BRIEFED: &str = "The service that keeps this conversation had lost it. A new one was begun \
                                           there, and it was told of the earlier messages.\n\n";

fn owned(spec: Arc<AgentSpec>) -> AgentSpec {
    Arc::into_inner(spec).expect("nobody else has it")
}

pub(crate) fn brief(mut spec: AgentSpec) -> AgentSpec {
    spec.timeout = Duration::from_secs(6);
    spec
}

impl Rig {
    /// Starts a runner with this limit of concurrent turns per agent.
    pub(crate) async fn limited(&self, turns_max: usize) -> Runner {
        let options = RunnerOptions {
            turns_max,
            ..RunnerOptions::default()
        };
        let (engine, book) = (self.engine.clone(), Arc::clone(&self.book));
        let started = Runner::start(engine, name("default"), book, options).await;
        started.expect("the runner starts")
    }

    /// Sends a message and returns the answer.
    pub(crate) async fn turn(&self, session: SessionId, agent: &str, text: &str) -> String {
        let request = self.ask(session, agent, text).await;
        let ended = self.ended(request).await;
        answer_of(&ended)
    }

    /// Sends a message and returns the error.
    pub(crate) async fn failing_turn(&self, session: SessionId, agent: &str, text: &str) -> Value {
        let request = self.ask(session, agent, text).await;
        let ended = self.ended(request).await;
        let outcome = ended.request.ended().map(|ended| ended.outcome);
        assert_eq!(outcome, Some(RequestOutcome::Failed));
        error(&ended)
    }

    /// Sends a message with data that clients do not see.
    pub(crate) async fn ask_bringing(
        &self,
        session: SessionId,
        agent: &str,
        text: &str,
        data: &Value,
    ) -> RequestId {
        let body = ItemBody {
            content: Some(to_raw_value(text).expect("text")),
            data: Some(to_raw_value(data).expect("JSON")),
            ..ItemBody::default()
        };
        self.ask_body(session, agent, &body, &[]).await
    }

    /// Decides a hold as the local developer.
    pub(crate) async fn decide(
        &self,
        hold: &HoldDetail,
        kind: DecisionKind,
        content: Option<&str>,
    ) {
        let answer = DecisionInput {
            decision: kind,
            digest: hold.hold.digest.map(|digest| digest.to_string()),
            args: None,
            content: content.map(|text| to_raw_value(text).expect("text")),
            comment: None,
            reason: None,
        };
        let decided = decide_shown(&self.engine, &self.call(), None, hold, answer).await;
        decided.expect("a decision");
    }

    /// The notes of the only task of an agent, oldest first.
    pub(crate) async fn notes(&self, session: SessionId, agent: &str) -> Vec<(String, Value)> {
        let items = self.items(session, agent, ItemKind::Note).await;
        let notes = items.into_iter().map(|body| {
            let data = body.data.expect("data");
            let data = serde_json::from_str(data.get()).expect("JSON");
            (body.name.unwrap_or_default(), data)
        });
        notes.collect()
    }

    /// The items of one kind of the only task of an agent, oldest first.
    pub(crate) async fn items(
        &self,
        session: SessionId,
        agent: &str,
        kind: ItemKind,
    ) -> Vec<ItemBody> {
        let tasks = testing::tasks_of(&self.engine, session, &name(agent)).await;
        let tasks = tasks.expect("tasks");
        assert_eq!(tasks.len(), 1, "tasks of {agent}");
        let page = testing::task_items(&self.engine, session, tasks[0], None, 500).await;
        let mut items = page.expect("items").items;
        items.reverse();
        let items = items.iter().filter(|item| item.placed.item.kind == kind);
        items.map(|item| parse(item.body.as_deref())).collect()
    }

    /// The session's state as JSON.
    pub(crate) async fn value(&self, session: SessionId, key: &str) -> Option<Value> {
        let values = self
            .engine
            .state(
                &self.local,
                session,
                (&StateQuery::default(), PageLimit::entries(100)),
            )
            .await;
        let values = values.expect("state").0.values;
        let value = values.get(key)?;
        Some(serde_json::from_slice(&value.value).expect("JSON"))
    }

    /// Waits until a hold is open and the lease is released.
    pub(crate) async fn paused(&self, request: RequestId) -> RequestDetail {
        self.until(request, |detail| {
            let live = detail.request.live().expect("it waits");
            live.lease.is_none() && !live.holds.is_empty()
        })
        .await
    }
}

/// The final message of a request.
pub(crate) fn said(ended: &RequestDetail) -> ItemBody {
    let stored = ended.finished.as_ref().expect("an end");
    let named = stored.record.bodies();
    let mut events = stored.record.content.events.iter();
    let item = events.find_map(|event| match event {
        Event::ItemsAppended { items, .. } => items.last(),
        _ => None,
    });
    let body = item.expect("an answer").body;
    let index = named.iter().position(|name| *name == body);
    let bytes = stored.bodies[index.expect("kept")].as_deref();
    parse(bytes)
}

/// The annotations of the final message of a request.
pub(crate) fn annotations_of(ended: &RequestDetail) -> Value {
    let annotations = said(ended).annotations.expect("annotations");
    serde_json::from_str(annotations.get()).expect("JSON")
}

/// The answer of a request. Fails the test if there is none.
pub(crate) fn answer_of(ended: &RequestDetail) -> String {
    let outcome = ended.request.ended().map(|ended| ended.outcome);
    let is_failed = outcome == Some(RequestOutcome::Failed);
    assert!(!is_failed, "it failed: {}", error(ended));
    assert_eq!(outcome, Some(RequestOutcome::Completed));
    let content = said(ended).content.expect("content");
    serde_json::from_str(content.get()).expect("text")
}
