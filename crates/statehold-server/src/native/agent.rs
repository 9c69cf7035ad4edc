//! The declared agents, and reloading their declarations. Answers never contain prompts, addresses or
//! credentials.

use axum::response::Response;
use serde::Deserialize;
use statehold_agents::runner::RunnerError;
use statehold_agents::spec::{AgentSpec, ChatSessions};
use statehold_core::name::Name;
use statehold_engine::api;
use statehold_engine::api::agent::{AgentList, AgentView};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use super::{Answer, plain};
use crate::http::body::Payload;
use crate::http::call::{App, CallContext};
use crate::http::problem::{Code, Problem};
use crate::reload::{ReloadError, ReloadReport};

pub(crate) fn routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(list))
        .routes(routes!(show))
        .routes(routes!(reload))
}

/// List the agents.
///
/// They are those that the configuration declares or a policy names, by name. Only approvers, operators and
/// admins see `tools`.
#[utoipa::path(
    get, path = "/v1/agents", tag = "agents",
    operation_id = "listAgents", responses((status = 200, body = AgentList))
)]
async fn list(context: CallContext) -> Response {
    plain(&visible(&context))
}

/// The agents that the caller may know.
pub(crate) fn visible(context: &CallContext) -> AgentList {
    let book = context.app.options.agents.get();
    let specs = book.agents.values().map(|spec| declared(spec));
    api::agent::list(context.engine(), &context.caller, specs, worker)
}

/// Read an agent.
///
/// Prompts, addresses and credentials are never shown. An agent that is not declared is 404, although workers
/// may do its work.
#[utoipa::path(
    get, path = "/v1/agents/{agent}", tag = "agents",
    operation_id = "getAgent", responses((status = 200, body = AgentView))
)]
async fn show(context: CallContext) -> Answer {
    let agent: Name = context.id("agent")?;
    let book = context.app.options.agents.get();
    let spec = book.agent(&agent).map(|spec| declared(spec));
    let (engine, caller) = (context.engine(), &context.caller);
    let found = api::agent::read(engine, caller, &agent, spec, worker)?;
    Ok(plain(&found))
}

/// An empty object. The server reads its own configuration files.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = ReloadRequest)]
struct ReloadIn {}

/// Reload the configuration: agents, models and tool servers.
///
/// Needs `admin`. A reload is atomic; running turns finish with the old configuration.
#[utoipa::path(
    post, path = "/v1/config/reload", tag = "agents",
    operation_id = "reloadConfiguration", request_body = ReloadIn,
    responses((status = 200, body = ReloadReport), (status = 409))
)]
async fn reload(context: CallContext, _body: Payload<ReloadIn>) -> Answer {
    api::operations::require_reload(&context.caller)?;
    let reload = context.app.options.reload.as_ref().ok_or_else(|| {
        Problem::new(
            Code::NotReloadable,
            "this server was started without a configuration that it could read again; restart it",
        )
    })?;
    tracing::info!(by = %context.caller.principal, "the configuration is to be read again");
    let reloaded = reload.reload().await?;
    Ok(plain(&reloaded))
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

fn worker(name: &Name) -> AgentView {
    declared(&AgentSpec::worker(name.clone()))
}

/// The public part of a declaration.
fn declared(spec: &AgentSpec) -> AgentView {
    AgentView {
        name: spec.name.clone(),
        kind: spec.kind.word(),
        description: spec.description.clone(),
        agents: spec
            .kind
            .coordinated_agents()
            .map(|agents| agents.into_iter().cloned().collect()),
        tools: Vec::new(),
        sessions: match spec.sessions {
            ChatSessions::Auto => "auto",
            ChatSessions::Explicit => "explicit",
            ChatSessions::None => "none",
        },
        digest: spec.digest,
        has_resume_address: None,
    }
}
