//! Agents as they are declared: what they are, never what they are told, where they are or what they
//! are called with.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::Serialize;
use statehold_agents::spec::{AgentKind, AgentSpec, ChatDefault};
use statehold_core::name::Name;
use statehold_engine::Caller;
use statehold_engine::policy::{AgentPolicy, Approval, Policies, ToolPolicy};
use utoipa::ToSchema;

use super::{About, shown};
use crate::app::{App, Asked, PathIds};
use crate::problem::Problem;
use crate::wire::schema::{AgentKindWord, ChatDefaultWord, DigestText, NameText, ToolApprovalWord};

/// The agents, by name.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentList)]
pub(crate) struct AgentListOut {
    agents: Vec<AgentOut>,
}

/// An agent as it is declared.
#[derive(Serialize, ToSchema)]
#[schema(as = Agent)]
pub(crate) struct AgentOut {
    #[schema(value_type = NameText)]
    name: String,
    /// `worker`: a process claims its work; all others are called by the server itself.
    #[schema(value_type = AgentKindWord)]
    kind: &'static str,
    /// What it can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Of a router: those it chooses from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<NameText>>)]
    agents: Option<Vec<String>>,
    /// Tools that a policy says something about. `*` stands for every other tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    tools: Vec<AgentToolOut>,
    /// What a chat call without a session means.
    #[schema(value_type = ChatDefaultWord)]
    openai_default: &'static str,
    /// Names the declaration: it changes with whatever the agent is told.
    #[schema(value_type = DigestText)]
    digest: String,
    /// Of a worker: whether decisions are pushed to an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    has_resume_address: Option<bool>,
}

/// A tool of an agent.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentTool)]
pub(crate) struct AgentToolOut {
    name: String,
    #[schema(value_type = ToolApprovalWord)]
    approval: &'static str,
}

/// The agents that are declared, and those that only a policy names.
#[utoipa::path(
    get, path = "/v1/agents", tag = "agents", responses((status = 200, body = AgentListOut))
)]
pub(crate) async fn list(State(app): State<App>, asked: Asked) -> Result<Response, Problem> {
    let agents = known(&app);
    let agents = agents.values();
    let agents = agents.map(|spec| written(&app, &asked.caller, spec));
    let out = AgentListOut {
        agents: agents.collect(),
    };
    Ok(shown(&out, &About::default()))
}

/// One agent.
#[utoipa::path(
    get, path = "/v1/agents/{agent}", tag = "agents",
    params(("agent" = String, Path)), responses((status = 200, body = AgentOut))
)]
pub(crate) async fn show(
    State(app): State<App>,
    asked: Asked,
    ids: PathIds,
) -> Result<Response, Problem> {
    let agent: Name = ids.id("agent")?;
    let agents = known(&app);
    let spec = agents.get(&agent).ok_or_else(Problem::not_found)?;
    let out = written(&app, &asked.caller, spec);
    Ok(shown(&out, &About::default()))
}

/// Every agent that something is known about.
fn known(app: &App) -> BTreeMap<Name, Arc<AgentSpec>> {
    let mut known = app.options.agents.agents.clone();
    for name in app.engine.policies().agents.keys() {
        known
            .entry(name.clone())
            .or_insert_with(|| Arc::new(AgentSpec::worker(name.clone())));
    }
    known
}

fn written(app: &App, caller: &Caller, spec: &AgentSpec) -> AgentOut {
    let router = match &spec.kind {
        AgentKind::Router(router) => Some(router),
        AgentKind::Worker
        | AgentKind::Openai(_)
        | AgentKind::Conversations(_)
        | AgentKind::Llm(_) => None,
    };
    let has_address = || {
        let addresses = app.engine.all_addresses();
        let mut addresses = addresses.iter();
        addresses.any(|address| address.tenant == caller.tenant && address.agent == spec.name)
    };
    AgentOut {
        name: spec.name.to_string(),
        kind: spec.kind.word(),
        description: spec.description.clone(),
        agents: router.map(|router| router.agents.iter().map(Name::to_string).collect()),
        tools: tools(&app.engine.policies(), &spec.name),
        openai_default: match spec.openai_default {
            ChatDefault::Stateless => "stateless",
            ChatDefault::Stateful => "stateful",
        },
        digest: spec.digest.to_string(),
        has_resume_address: (!spec.kind.is_ours()).then(has_address),
    }
}

/// The tools that the policies of an agent name, and what stands for all others.
fn tools(policies: &Policies, agent: &Name) -> Vec<AgentToolOut> {
    let Some(AgentPolicy { every_tool, tools }) = policies.agents.get(agent) else {
        return Vec::new();
    };
    let says_something = every_tool.approval.is_some() || every_tool.approval_if.is_some();
    let others = says_something.then(|| AgentToolOut {
        name: "*".to_owned(),
        approval: approval_word(every_tool),
    });
    let named = tools.keys().map(|tool| AgentToolOut {
        name: tool.to_string(),
        approval: approval_word(&policies.of(agent, tool.as_str()).policy),
    });
    others.into_iter().chain(named).collect()
}

fn approval_word(policy: &ToolPolicy) -> &'static str {
    match policy.approval {
        Some(Approval::Always) => "always",
        Some(Approval::Never | Approval::Worker) | None if policy.approval_if.is_some() => {
            "conditional"
        }
        Some(Approval::Never) => "never",
        Some(Approval::Worker) | None => "worker",
    }
}
