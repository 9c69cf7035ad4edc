//! The declared agents. Views never contain prompts, addresses or credentials. Every caller may read them; the tools
//! and their policies are for those who decide or look after the server.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use statehold_core::digest::Digest;
use statehold_core::name::Name;
use utoipa::ToSchema;

use super::schema::{AgentKindWord, ChatSessionsWord, ToolApprovalWord};
use crate::caller::{Caller, Role};
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::policy::{AgentPolicy, Approval, Policies, ToolPolicy};

/// The agents, by name.
#[derive(Debug, Serialize, ToSchema)]
pub struct AgentList {
    /// The agents.
    pub agents: Vec<AgentView>,
}

/// A declared agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Agent)]
#[expect(missing_docs, reason = "fields are named as the API names them")]
pub struct AgentView {
    pub name: Name,
    /// `worker`: a process claims its requests. The server itself calls all other kinds.
    #[schema(value_type = AgentKindWord)]
    pub kind: &'static str,
    /// The description from the declaration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Of a coordinator: the agents it calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub agents: Option<Vec<Name>>,
    /// Tools with a policy; `*` stands for every other tool. For approvers, operators and admins.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub tools: Vec<AgentToolView>,
    /// The session of a chat call that names none.
    #[schema(value_type = ChatSessionsWord)]
    pub sessions: &'static str,
    /// Digest of the declaration. It changes with every change of the declaration, prompts included.
    pub digest: Digest,
    /// Of a worker: whether the server pushes decisions to an address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_resume_address: Option<bool>,
}

/// A tool of an agent.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = AgentTool)]
#[expect(missing_docs, reason = "fields are named as the API names them")]
pub struct AgentToolView {
    pub name: String,
    #[schema(value_type = ToolApprovalWord)]
    pub approval: &'static str,
}

/// Lists the declared agents, none for the holder of a read token; and each agent that only a policy names, as the worker that `worker` declares.
/// Declarations come without tools and address: the engine adds them.
pub fn list(
    engine: &Engine,
    caller: &Caller,
    declared: impl Iterator<Item = AgentView>,
    worker: impl Fn(&Name) -> AgentView,
) -> AgentList {
    let policies = engine.policies();
    let workers = policies.agents.keys().map(worker);
    let mut known = BTreeMap::new();
    for agent in declared.chain(workers) {
        known.entry(agent.name.clone()).or_insert(agent);
    }
    let agents = known.into_values();
    let agents = agents.filter(|_| caller.only_session.is_none());
    let agents = agents.map(|agent| agent.completed(engine, caller, &policies));
    AgentList {
        agents: agents.collect(),
    }
}

/// Reads an agent that is declared, or that a policy names: then it is the worker that `worker` declares.
///
/// # Errors
///
/// If there is no such agent.
pub fn read(
    engine: &Engine,
    caller: &Caller,
    agent: &Name,
    declared: Option<AgentView>,
    worker: impl FnOnce(&Name) -> AgentView,
) -> Result<AgentView, EngineError> {
    let policies = engine.policies();
    let is_named = policies.agents.contains_key(agent);
    let found = declared.or_else(|| is_named.then(|| worker(agent)));
    let found = found.filter(|_| caller.only_session.is_none());
    let found = found.ok_or(EngineError::NotFound)?;
    Ok(found.completed(engine, caller, &policies))
}

impl AgentView {
    fn completed(mut self, engine: &Engine, caller: &Caller, policies: &Policies) -> Self {
        let has_address = || engine.address_of(&caller.tenant, &self.name).is_some();
        self.has_resume_address = (self.kind == "worker").then(has_address);
        if sees_tools(caller) {
            self.tools = tools(policies, &self.name);
        }
        self
    }
}

/// Whether the caller may know the tools of agents: names and policies help whoever wants to misuse them.
fn sees_tools(caller: &Caller) -> bool {
    let roles = [Role::Approver, Role::Operator, Role::Admin];
    roles.into_iter().any(|role| caller.has(role))
}

/// The tools that the policies of an agent name, and `*` for all others.
fn tools(policies: &Policies, agent: &Name) -> Vec<AgentToolView> {
    let Some(AgentPolicy { every_tool, tools }) = policies.agents.get(agent) else {
        return Vec::new();
    };
    let says_something = every_tool.approval.is_some() || every_tool.approval_if.is_some();
    let others = says_something.then(|| AgentToolView {
        name: "*".to_owned(),
        approval: approval_word(every_tool),
    });
    let kept = policies.kept.get(agent).into_iter();
    let kept = kept.flat_map(|kept| kept.tools.keys());
    let all: BTreeSet<&Name> = tools.keys().chain(kept).collect();
    let named = all.into_iter().map(|tool| AgentToolView {
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
