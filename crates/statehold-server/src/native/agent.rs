//! The declared agents, and reloading their declarations. Answers never contain prompts, addresses or
//! credentials.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use statehold_agents::runner::RunnerError;
use statehold_agents::spec::{AgentKind, AgentSpec, ChatDefault};
use statehold_core::name::Name;
use statehold_engine::policy::{AgentPolicy, Approval, Policies, ToolPolicy};
use statehold_engine::{Caller, require_admin};
use utoipa::ToSchema;

use super::{AnswerHeaders, shown};
use crate::http::call::{App, CallContext, PathIds, Payload};
use crate::http::problem::{Code, Problem};
use crate::reload::{ReloadError, ReloadReport};
use statehold_core::digest::Digest;
use statehold_engine::api::schema::{AgentKindWord, ChatDefaultWord, ToolApprovalWord};

/// The agents, by name.
#[derive(Serialize, ToSchema)]
#[schema(as = AgentList)]
pub(crate) struct AgentListOut {
    agents: Vec<AgentOut>,
}

/// A declared agent.
#[derive(Serialize, ToSchema)]
#[schema(as = Agent)]
pub(crate) struct AgentOut {
    #[schema(value_type = Name)]
    name: String,
    /// `worker`: a process claims its requests. The server itself calls all other kinds.
    #[schema(value_type = AgentKindWord)]
    kind: &'static str,
    /// The description from the declaration.
    #[serde(skip_serializing_if = "Option::is_none")]
    description: Option<String>,
    /// Of a router: the agents it chooses from.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Vec<Name>>)]
    agents: Option<Vec<String>>,
    /// Tools with a policy. `*` stands for every other tool.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    tools: Vec<AgentToolOut>,
    /// Whether a chat call without a session stores nothing (`stateless`) or opens a session (`stateful`).
    #[schema(value_type = ChatDefaultWord)]
    openai_default: &'static str,
    /// Digest of the declaration. It changes with every change of the declaration, prompts included.
    #[schema(value_type = Digest)]
    digest: String,
    /// Of a worker: whether the server pushes decisions to an address.
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

/// List all agents that the configuration declares or a policy names.
#[utoipa::path(
    get, path = "/v1/agents", tag = "agents", responses((status = 200, body = AgentListOut))
)]
pub(crate) async fn list(State(app): State<App>, asked: CallContext) -> Result<Response, Problem> {
    let agents = known(&app);
    let agents = agents.values();
    let agents = agents.map(|spec| written(&app, &asked.caller, spec));
    let out = AgentListOut {
        agents: agents.collect(),
    };
    Ok(shown(&out, &AnswerHeaders::default()))
}

/// Read an agent.
#[utoipa::path(
    get, path = "/v1/agents/{agent}", tag = "agents",
    params(("agent" = String, Path)), responses((status = 200, body = AgentOut))
)]
pub(crate) async fn show(
    State(app): State<App>,
    asked: CallContext,
    ids: PathIds,
) -> Result<Response, Problem> {
    let agent: Name = ids.id("agent")?;
    let agents = known(&app);
    let spec = agents.get(&agent).ok_or_else(Problem::not_found)?;
    let out = written(&app, &asked.caller, spec);
    Ok(shown(&out, &AnswerHeaders::default()))
}

/// An empty object. The server reads its own configuration files.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReloadRequest)]
pub(crate) struct ReloadIn {}

/// Reload the configuration: agents, models and tool servers. Running turns finish with the old one.
#[utoipa::path(
    post, path = "/v1/config/reload", tag = "agents", request_body = ReloadIn,
    responses((status = 200, body = ReloadReport))
)]
pub(crate) async fn reload(
    State(app): State<App>,
    asked: CallContext,
    _body: Payload<ReloadIn>,
) -> Result<Response, Problem> {
    require_admin(&asked.caller)?;
    let reload = app.options.reload.as_ref().ok_or_else(|| {
        Problem::new(
            Code::NotReloadable,
            "this server was started without a configuration that it could read again; restart it",
        )
    })?;
    tracing::info!(by = %asked.caller.principal, "the configuration is to be read again");
    let reloaded = reload.reload().await?;
    Ok(shown(&reloaded, &AnswerHeaders::default()))
}

impl From<ReloadError> for Problem {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::Mistakes(mistakes) => {
                let first = mistakes.first().map_or("", |first| first.message.as_str());
                let detail = match mistakes.len() {
                    0 | 1 => format!("{first}; nothing was changed"),
                    all => format!("{first}; and {} more. Nothing was changed", all - 1),
                };
                let mistakes = serde_json::to_value(mistakes).unwrap_or_default();
                Self::new(Code::BadConfiguration, detail).with("mistakes", mistakes)
            }
            ReloadError::Agents(RunnerError::Engine(error)) => Self::from(error),
            ReloadError::Agents(error) => {
                let detail = format!("{error}; nothing was changed");
                let mistake =
                    serde_json::json!([{ "key": "", "message": error.to_string(), "hint": "" }]);
                Self::new(Code::BadConfiguration, detail).with("mistakes", mistake)
            }
            ReloadError::Stopping => Self::new(Code::Stopping, error.to_string()),
        }
    }
}

/// The declared agents, and a worker for each agent that only a policy names.
fn known(app: &App) -> BTreeMap<Name, Arc<AgentSpec>> {
    let mut known = app.options.agents.get().agents.clone();
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
        has_resume_address: (!spec.kind.is_hosted()).then(has_address),
    }
}

/// The tools that the policies of an agent name, and `*` for all others.
fn tools(policies: &Policies, agent: &Name) -> Vec<AgentToolOut> {
    let Some(AgentPolicy { every_tool, tools }) = policies.agents.get(agent) else {
        return Vec::new();
    };
    let says_something = every_tool.approval.is_some() || every_tool.approval_if.is_some();
    let others = says_something.then(|| AgentToolOut {
        name: "*".to_owned(),
        approval: approval_word(every_tool),
    });
    let kept = policies.kept.get(agent).into_iter();
    let kept = kept.flat_map(|kept| kept.tools.keys());
    let all: BTreeSet<&Name> = tools.keys().chain(kept).collect();
    let named = all.into_iter().map(|tool| AgentToolOut {
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
