//! Policies of agents and their tools, set by an operator: who decides, the risk of a tool, which calls
//! need approval, and which arguments are redacted. Rules of state keys are in `state_rules`.
//!
//! The policy wins over the worker's terms, and a worker may only tighten it: a worker knows its tools,
//! but the text it reads may mislead it.

mod condition;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use statehold_core::digest::{Digest, canonical_bytes};
use statehold_core::hold::{DecideBy, Effect, HoldKind, OnExpiry, Risk};
use statehold_core::item::{ItemKind, NewCallMark, NewItem};
use statehold_core::name::Name;
use statehold_core::task::CloseOn;

use crate::bodies::{ItemBody, parse};
use crate::commit::payloads::Payloads;
use crate::error::EngineError;
use crate::guard::lifetimes::DefaultLifetimes;
use crate::guard::redact::{PathRule, Pattern, RedactionRules, Rules};
use crate::guard::state_rules::StateRules;

pub use condition::ArgsCondition;

/// Roles that identify clients and workers, and grant no trust to decide.
const NO_JUDGES: [&str; 2] = ["client", "worker"];

/// The most messages of the excerpt that comes with a hold.
pub const EXCERPT_MESSAGES_MAX: u64 = 20;
/// The messages of an excerpt, unless the policy of the agent says otherwise.
const EXCERPT_MESSAGES: usize = 3;

/// Whether calls of a tool need approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// An ungated call is refused.
    Always,
    /// No approval is needed. A worker may still ask for one.
    Never,
    /// The worker decides.
    #[default]
    Worker,
}

/// The reaction to a tool call without an answer, when it is unknown whether the call ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNoAnswer {
    /// Ask a person whether it ran.
    Ask,
    /// Tell the model, which may call it again.
    Tell,
}

/// Policy of one tool. The worker decides about fields that are not set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ToolPolicy {
    /// Whether calls need approval.
    pub approval: Option<Approval>,
    /// Calls whose arguments match need approval, even if `approval` says otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_if: Option<ArgsCondition>,
    /// Whether a rejection needs a comment.
    pub comment_required: Option<bool>,
    /// The people who decide.
    pub decide_by: Option<DecideBy>,
    /// The least effect of a call on the outside world.
    pub effect: Option<Effect>,
    /// The longest time people have to decide.
    pub expires_in_seconds: Option<u64>,
    /// Whether the tool honours the execution key.
    pub idempotent: Option<bool>,
    /// The outcome if no decision comes in time.
    pub on_expiry: Option<OnExpiry>,
    /// The reaction when it is unknown whether a call ran. For agents that this server runs itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_no_answer: Option<OnNoAnswer>,
    /// The least number of people who must approve.
    pub quorum: Option<u16>,
    /// Paths in the arguments that only the worker sees.
    pub redact: Option<Vec<PathRule>>,
    /// Patterns that only the worker sees. `secret` if not set.
    pub redact_rules: Option<Vec<Pattern>>,
    /// The least risk.
    pub risk: Option<Risk>,
}

/// Policy of one agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentPolicy {
    /// Defaults for every tool.
    pub every_tool: ToolPolicy,
    /// Policies of single tools.
    pub tools: BTreeMap<Name, ToolPolicy>,
}

/// Policies of all agents, and the rules of state keys.
#[derive(Debug, Clone, Default)]
pub struct Policies {
    /// By agent.
    pub agents: BTreeMap<Name, AgentPolicy>,
    /// Earlier policies of agents and tools that the configuration no longer names. Turns that started
    /// earlier may still call those tools, and removing a policy must not remove the need for approval.
    pub kept: BTreeMap<Name, AgentPolicy>,
    /// The agents that an agent may call, by agent. An agent that is not declared may call any.
    pub calls: BTreeMap<Name, BTreeSet<Name>>,
    /// How many of the last messages of the conversation come with the holds of an agent, by agent. 0 is none.
    pub excerpts: BTreeMap<Name, usize>,
    /// The event that closes the tasks of an agent, by agent.
    pub close_on: BTreeMap<Name, CloseOn>,
    /// The rules of state keys.
    pub state: StateRules,
    /// The rules of redaction before storing.
    pub redaction: RedactionRules,
    /// How long new sessions live.
    pub lifetimes: DefaultLifetimes,
}

/// Separates the server of a tool from its name.
const SERVER_SEPARATOR: &str = "__";

impl AgentPolicy {
    /// The policy of a tool with exactly this name.
    fn own(&self, tool: &str) -> Option<&ToolPolicy> {
        let mut tools = self.tools.iter();
        let found = tools.find(|(name, _)| name.as_str() == tool);
        found.map(|(_, own)| own)
    }
}

impl ToolPolicy {
    /// Combines two policies. If both set a field, the stricter value wins; if neither is stricter, the
    /// value of `self` wins.
    fn and(self, other: Self) -> Self {
        Self {
            approval: both(self.approval, other.approval, |a, b| match (a, b) {
                (Approval::Always, _) | (_, Approval::Always) => Approval::Always,
                (Approval::Never, Approval::Never) => Approval::Never,
                _ => Approval::Worker,
            }),
            approval_if: both(self.approval_if, other.approval_if, ArgsCondition::or),
            comment_required: both(self.comment_required, other.comment_required, |a, b| a || b),
            decide_by: both(self.decide_by, other.decide_by, |a, b| match a {
                DecideBy::User => b,
                a => a,
            }),
            effect: self.effect.max(other.effect),
            expires_in_seconds: both(self.expires_in_seconds, other.expires_in_seconds, u64::min),
            idempotent: both(self.idempotent, other.idempotent, |a, b| a && b),
            on_expiry: self.on_expiry.or(other.on_expiry),
            on_no_answer: both(self.on_no_answer, other.on_no_answer, |a, b| match (a, b) {
                (OnNoAnswer::Tell, OnNoAnswer::Tell) => OnNoAnswer::Tell,
                _ => OnNoAnswer::Ask,
            }),
            quorum: self.quorum.max(other.quorum),
            redact: both(self.redact, other.redact, united),
            redact_rules: both(self.redact_rules, other.redact_rules, united),
            risk: self.risk.max(other.risk),
        }
    }
}

fn both<T>(a: Option<T>, b: Option<T>, stricter: impl FnOnce(T, T) -> T) -> Option<T> {
    match (a, b) {
        (Some(a), Some(b)) => Some(stricter(a, b)),
        (a, b) => a.or(b),
    }
}

fn united<T: PartialEq>(mut a: Vec<T>, b: Vec<T>) -> Vec<T> {
    for one in b {
        if !a.contains(&one) {
            a.push(one);
        }
    }
    a
}

impl Policies {
    /// The policy of one tool of an agent. The policy of `tool` also applies to `server__tool`; if both
    /// are set, the stricter wins.
    pub fn of(&self, agent: &Name, tool: &str) -> Effective {
        self.of_any(agent, &[tool])
    }

    /// The policy of a tool with several names. If several of them have policies, the stricter wins.
    pub fn of_any(&self, agent: &Name, names: &[&str]) -> Effective {
        let kept = self.kept.get(agent);
        let Some(policy) = self.agents.get(agent).or(kept) else {
            return Effective::default();
        };
        let all = &policy.every_tool;
        let names = names.iter().flat_map(|name| {
            let ends = name.match_indices(SERVER_SEPARATOR);
            let plain = ends.map(|(at, mark)| &name[at + mark.len()..]);
            std::iter::once(*name).chain(plain)
        });
        let owns = names.filter_map(|name| policy.own(name).or_else(|| kept?.own(name)));
        let owns = owns.cloned();
        let own = owns.reduce(ToolPolicy::and).unwrap_or_default();
        let policy = ToolPolicy {
            approval: own.approval.or(all.approval),
            approval_if: own.approval_if.or_else(|| all.approval_if.clone()),
            comment_required: own.comment_required.or(all.comment_required),
            decide_by: own.decide_by.or_else(|| all.decide_by.clone()),
            effect: own.effect.or(all.effect),
            expires_in_seconds: own.expires_in_seconds.or(all.expires_in_seconds),
            idempotent: own.idempotent.or(all.idempotent),
            on_expiry: own.on_expiry.or(all.on_expiry),
            on_no_answer: own.on_no_answer.or(all.on_no_answer),
            quorum: own.quorum.or(all.quorum),
            redact: own.redact.or_else(|| all.redact.clone()),
            redact_rules: own.redact_rules.or_else(|| all.redact_rules.clone()),
            risk: own.risk.or(all.risk),
        };
        Effective {
            digest: Some(Digest::sha256(&canonical_bytes(&policy))),
            policy,
        }
    }

    /// Whether an agent has a policy.
    pub(crate) fn knows(&self, agent: &Name) -> bool {
        self.agents.contains_key(agent) || self.kept.contains_key(agent)
    }

    /// Whether a tool with exactly this name has a policy.
    pub fn names(&self, agent: &Name, tool: &str) -> bool {
        let policies = [&self.agents, &self.kept];
        let mut own = policies.iter().filter_map(|agents| agents.get(agent));
        own.any(|policy| policy.own(tool).is_some())
    }

    /// These policies as the successor of `before`. Earlier policies that are not replaced stay in
    /// `kept`.
    #[must_use]
    pub fn in_place_of(mut self, before: &Self) -> Self {
        for (agent, policy) in before.kept.iter().chain(&before.agents) {
            let kept = self.kept.entry(agent.clone()).or_default();
            kept.every_tool = policy.every_tool.clone();
            let tools = policy.tools.iter();
            kept.tools
                .extend(tools.map(|(name, tool)| (name.clone(), tool.clone())));
        }
        for (agent, calls) in &before.calls {
            let own = self.calls.entry(agent.clone());
            own.or_insert_with(|| calls.clone());
        }
        for (agent, messages) in &before.excerpts {
            if !self.agents.contains_key(agent) {
                let own = self.excerpts.entry(agent.clone());
                own.or_insert(*messages);
            }
        }
        for (agent, policy) in &self.agents {
            if let Some(kept) = self.kept.get_mut(agent) {
                kept.tools
                    .retain(|name, _| !policy.tools.contains_key(name));
            }
        }
        self
    }

    /// Tools with a kept policy, of agents that still have a policy.
    pub fn kept_tools(&self) -> impl Iterator<Item = (&Name, &Name)> {
        let agents = self.kept.iter();
        let named = agents.filter(|(agent, _)| self.agents.contains_key(*agent));
        named.flat_map(|(agent, kept)| kept.tools.keys().map(move |tool| (agent, tool)))
    }

    /// How many of the last messages of the conversation people see beside a hold of an agent, if they may decide it.
    pub(crate) fn excerpt_messages(&self, agent: &Name) -> usize {
        let own = self.excerpts.get(agent).copied();
        own.unwrap_or(EXCERPT_MESSAGES)
    }

    /// The event that closes a new task of an agent: the one that the caller names, else the declared one.
    pub(crate) fn close_on(&self, agent: &Name, asked: Option<CloseOn>) -> CloseOn {
        let declared = self.close_on.get(agent).copied();
        asked.or(declared).unwrap_or_default()
    }

    /// Refuses a request to an agent that the agent of its parent may not call.
    pub(crate) fn require_callable(&self, agent: &Name, called: &Name) -> Result<(), EngineError> {
        match self.calls.get(agent) {
            Some(calls) if !calls.contains(called) => Err(EngineError::MayNotCall {
                agent: agent.to_string(),
                called: called.to_string(),
            }),
            _ => Ok(()),
        }
    }

    /// Refuses tool calls that violate the policy of their agent.
    pub(crate) fn require_items(
        &self,
        agent: &Name,
        items: &[NewItem],
        payloads: &Payloads,
    ) -> Result<(), EngineError> {
        if !self.knows(agent) {
            return Ok(());
        }
        for item in items.iter().filter(|item| item.kind == ItemKind::ToolCall) {
            let body: ItemBody = parse(payloads.get(&item.body));
            let (tool, call) = (body.name.unwrap_or_default(), item.call);
            let effective = self.of(agent, &tool);
            let Some(NewCallMark::Call { gated, idempotent }) = call else {
                continue;
            };
            if !gated {
                let args = body.arguments.as_ref();
                let args = args.and_then(|args| serde_json::from_str(args.get()).ok());
                if effective.needs_approval(&args.unwrap_or_default()) {
                    return Err(EngineError::ApprovalNeeded { tool });
                }
            }
            if idempotent && effective.policy.idempotent == Some(false) {
                return Err(stricter("idempotent", "false"));
            }
        }
        Ok(())
    }
}

/// The effective policy of one tool, and its digest.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effective {
    /// The policy.
    pub policy: ToolPolicy,
    /// The name of the policy in the records. None if the agent has no policy.
    pub digest: Option<Digest>,
}

/// The terms that a worker asks for.
#[derive(Debug, Clone, Default)]
pub(crate) struct HoldTerms {
    pub(crate) decide_by: Option<DecideBy>,
    pub(crate) effect: Option<Effect>,
    pub(crate) expires_in_seconds: Option<u64>,
    pub(crate) idempotent: Option<bool>,
    pub(crate) on_expiry: Option<OnExpiry>,
    pub(crate) quorum: Option<u16>,
    pub(crate) risk: Option<Risk>,
}

impl Effective {
    /// Whether a call with these arguments needs approval before it runs.
    pub fn needs_approval(&self, args: &serde_json::Value) -> bool {
        match self.policy.approval {
            Some(Approval::Always) => true,
            Some(Approval::Never | Approval::Worker) | None => {
                let condition = self.policy.approval_if.as_ref();
                condition.is_some_and(|condition| condition.is_met(args))
            }
        }
    }

    /// Sets the effect to `read` if the policy sets none and the tool is known to be read-only.
    #[must_use]
    pub fn or_read(mut self, only_reads: bool) -> Self {
        let known = only_reads.then_some(Effect::Read);
        self.policy.effect = self.policy.effect.or(known);
        self
    }

    /// Whether a person is asked about a call without an answer. By default, a read-only call may be
    /// retried without asking.
    pub fn asks_without_answer(&self) -> bool {
        match self.policy.on_no_answer {
            Some(OnNoAnswer::Ask) => true,
            Some(OnNoAnswer::Tell) => false,
            None => self.policy.effect != Some(Effect::Read),
        }
    }

    /// The rules that redact arguments.
    pub(crate) fn rules(&self) -> Rules<'_> {
        Rules {
            paths: self.policy.redact.as_deref().unwrap_or_default(),
            patterns: self
                .policy
                .redact_rules
                .as_deref()
                .unwrap_or(&[Pattern::Secret]),
        }
    }

    /// Applies the policy to a worker's terms. Fails where the worker asks for less than the policy
    /// sets.
    pub(crate) fn tighten(
        &self,
        kind: HoldKind,
        wanted: HoldTerms,
    ) -> Result<HoldTerms, EngineError> {
        let policy = &self.policy;
        let decide_by = match (&policy.decide_by, wanted.decide_by) {
            (Some(set), Some(value)) if *set != value => {
                return Err(stricter("decide_by", &decide_by_text(set)));
            }
            (Some(set), _) => Some(set.clone()),
            (None, value) => {
                require_judge(kind, value.as_ref())?;
                value
            }
        };
        let on_expiry = match (policy.on_expiry, wanted.on_expiry) {
            (Some(set), Some(value)) if set != value => {
                return Err(stricter("on_expiry", word(&set).as_str()));
            }
            (set, value) => set.or(value),
        };
        let idempotent = match (policy.idempotent, wanted.idempotent) {
            (Some(false), Some(true)) => return Err(stricter("idempotent", "false")),
            (set, value) => value.or(set),
        };
        Ok(HoldTerms {
            decide_by,
            on_expiry,
            idempotent,
            effect: at_least("effect", policy.effect, wanted.effect)?,
            risk: at_least("risk", policy.risk, wanted.risk)?,
            quorum: at_least("quorum", policy.quorum, wanted.quorum)?,
            expires_in_seconds: match (policy.expires_in_seconds, wanted.expires_in_seconds) {
                (Some(most), Some(value)) if value > most => {
                    return Err(stricter("expires_in_seconds", &most.to_string()));
                }
                (most, value) => value.or(most),
            },
        })
    }
}

/// A worker cannot make the session's user, or another worker, the judge of its actions.
fn require_judge(kind: HoldKind, value: Option<&DecideBy>) -> Result<(), EngineError> {
    let is_about_action = matches!(kind, HoldKind::Approval | HoldKind::Reconcile);
    match value {
        Some(DecideBy::User) if is_about_action => Err(stricter("decide_by", "other")),
        Some(DecideBy::Role(role)) if NO_JUDGES.contains(&role.as_str()) => {
            let own = decide_by_text(&kind.default_decide_by());
            Err(stricter("decide_by", &own))
        }
        _ => Ok(()),
    }
}

fn at_least<T: Ord + Copy + Serialize>(
    field: &'static str,
    least: Option<T>,
    value: Option<T>,
) -> Result<Option<T>, EngineError> {
    match (least, value) {
        (Some(least), Some(value)) if value < least => Err(stricter(field, word(&least).as_str())),
        (least, value) => Ok(value.or(least)),
    }
}

fn stricter(field: &'static str, policy: &str) -> EngineError {
    EngineError::PolicyStricter {
        field,
        policy: policy.to_owned(),
    }
}

fn word<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        Ok(other) => other.to_string(),
        Err(_) => String::new(),
    }
}

/// The `decide_by` value as callers write it.
pub fn decide_by_text(decide_by: &DecideBy) -> String {
    match decide_by {
        DecideBy::Other => "other".to_owned(),
        DecideBy::User => "user".to_owned(),
        DecideBy::Role(role) => format!("role:{role}"),
    }
}

/// Parses the `decide_by` value of callers.
///
/// # Errors
///
/// If it is none of `other`, `user` and `role:NAME`.
pub fn parse_decide_by(text: &str) -> Result<DecideBy, &'static str> {
    match (text, text.strip_prefix("role:").map(str::parse)) {
        ("other", _) => Ok(DecideBy::Other),
        ("user", _) => Ok(DecideBy::User),
        (_, Some(Ok(role))) => Ok(DecideBy::Role(role)),
        _ => Err("it is other, user or role:NAME"),
    }
}

#[cfg(test)]
mod tests;
