//! What an operator has laid down about agents and their tools: who decides, how dangerous a tool is,
//! what must be approved, what nobody sees.
//!
//! What a policy sets wins. A worker may only tighten it: it knows its tools, but it may be led astray
//! by what it reads.

mod condition;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use statehold_core::digest::{Digest, canonical_bytes};
use statehold_core::hold::{DecideBy, Effect, HoldKind, OnExpiry, Risk};
use statehold_core::item::{ItemKind, NewCallMark, NewItem};
use statehold_core::name::Name;

use crate::error::EngineError;
use crate::kept::{ItemBody, parse};
use crate::payloads::Payloads;
use crate::redact::{PathRule, Pattern, Rules};

pub use condition::ArgsCondition;

/// Roles that callers hold because of what they are, not because anybody trusts them to decide.
const NO_JUDGES: [&str; 2] = ["client", "worker"];

/// Whether calls of a tool need an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Approval {
    /// A call that is not gated is refused.
    Always,
    /// None is needed. One may be asked for all the same.
    Never,
    /// The worker decides.
    #[default]
    Worker,
}

/// What happens when a tool was called and gave no answer, so that nobody knows whether it ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnNoAnswer {
    /// A person is asked whether it ran.
    Ask,
    /// The model is told, and may call it again.
    Tell,
}

/// What is laid down about a tool. What is not said here is up to the worker.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct ToolPolicy {
    /// Whether calls need an approval.
    pub approval: Option<Approval>,
    /// Calls whose arguments fit need an approval, whatever else is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval_if: Option<ArgsCondition>,
    /// Whether a person who rejects must say why.
    pub comment_required: Option<bool>,
    /// Who decides.
    pub decide_by: Option<DecideBy>,
    /// What a call does to the world, at least.
    pub effect: Option<Effect>,
    /// How long a person has, at most.
    pub expires_in_seconds: Option<u64>,
    /// Whether the tool honours the execution key.
    pub idempotent: Option<bool>,
    /// What happens when nobody decides in time.
    pub on_expiry: Option<OnExpiry>,
    /// What happens when nobody knows whether a call ran. For agents that this server works for itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub on_no_answer: Option<OnNoAnswer>,
    /// How many people must approve, at least.
    pub quorum: Option<u16>,
    /// Places in the arguments that nobody but the worker sees.
    pub redact: Option<Vec<PathRule>>,
    /// Patterns that nobody but the worker sees. Secrets, if nothing is said.
    pub redact_rules: Option<Vec<Pattern>>,
    /// How much can go wrong, at least.
    pub risk: Option<Risk>,
}

/// What is laid down about an agent.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AgentPolicy {
    /// What holds for every tool that says nothing else.
    pub every_tool: ToolPolicy,
    /// What holds for one tool.
    pub tools: BTreeMap<Name, ToolPolicy>,
}

/// What is laid down about all agents.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Policies {
    /// By agent.
    pub agents: BTreeMap<Name, AgentPolicy>,
    /// What was laid down before about agents and tools that are not named any more. Turns that began then
    /// may still call them, and saying nothing about a tool is not saying that nobody needs to be asked.
    pub kept: BTreeMap<Name, AgentPolicy>,
}

/// Between the server of a tool and its name.
const OF_SERVER: &str = "__";

impl AgentPolicy {
    /// What is said about a tool by name.
    fn own(&self, tool: &str) -> Option<&ToolPolicy> {
        let mut tools = self.tools.iter();
        let found = tools.find(|(name, _)| name.as_str() == tool);
        found.map(|(_, own)| own)
    }
}

impl ToolPolicy {
    /// Both together. Where both say something, the stricter holds; where that cannot be told, this one.
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
    /// What holds for one tool of an agent. What is laid down about `tool` holds for `server__tool` too:
    /// where both are named, the stricter wins.
    pub fn of(&self, agent: &Name, tool: &str) -> Effective {
        self.of_any(agent, &[tool])
    }

    /// What holds for a tool that goes by several names. Where more than one of them is named, the
    /// stricter wins.
    pub fn of_any(&self, agent: &Name, names: &[&str]) -> Effective {
        let kept = self.kept.get(agent);
        let Some(policy) = self.agents.get(agent).or(kept) else {
            return Effective::default();
        };
        let all = &policy.every_tool;
        let names = names.iter().flat_map(|name| {
            let ends = name.match_indices(OF_SERVER);
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

    /// Whether anything is laid down about an agent.
    pub(crate) fn knows(&self, agent: &Name) -> bool {
        self.agents.contains_key(agent) || self.kept.contains_key(agent)
    }

    /// Whether something is laid down about a tool by this name.
    pub fn names(&self, agent: &Name, tool: &str) -> bool {
        let laid_down = [&self.agents, &self.kept];
        let mut own = laid_down.iter().filter_map(|agents| agents.get(agent));
        own.any(|policy| policy.own(tool).is_some())
    }

    /// The same in the place of what was laid down before, of which nothing is forgotten that is not
    /// replaced.
    #[must_use]
    pub fn in_place_of(mut self, before: &Self) -> Self {
        for (agent, policy) in before.kept.iter().chain(&before.agents) {
            let kept = self.kept.entry(agent.clone()).or_default();
            kept.every_tool = policy.every_tool.clone();
            let tools = policy.tools.iter();
            kept.tools
                .extend(tools.map(|(name, tool)| (name.clone(), tool.clone())));
        }
        for (agent, policy) in &self.agents {
            if let Some(kept) = self.kept.get_mut(agent) {
                kept.tools
                    .retain(|name, _| !policy.tools.contains_key(name));
            }
        }
        self
    }

    /// The tools of agents that are still named, about which something is kept.
    pub fn kept_tools(&self) -> impl Iterator<Item = (&Name, &Name)> {
        let agents = self.kept.iter();
        let named = agents.filter(|(agent, _)| self.agents.contains_key(*agent));
        named.flat_map(|(agent, kept)| kept.tools.keys().map(move |tool| (agent, tool)))
    }

    /// Refuses tool calls that are not as the policy of their agent wants them.
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

/// What holds for one tool, and the digest of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Effective {
    /// What is laid down.
    pub policy: ToolPolicy,
    /// Names it in the records. None where nothing is laid down about the agent.
    pub digest: Option<Digest>,
}

/// What a worker says about its action and its hold.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wish {
    pub(crate) decide_by: Option<DecideBy>,
    pub(crate) effect: Option<Effect>,
    pub(crate) expires_in_seconds: Option<u64>,
    pub(crate) idempotent: Option<bool>,
    pub(crate) on_expiry: Option<OnExpiry>,
    pub(crate) quorum: Option<u16>,
    pub(crate) risk: Option<Risk>,
}

impl Effective {
    /// Whether a call with these arguments may run only after somebody approved it.
    pub fn needs_approval(&self, args: &serde_json::Value) -> bool {
        match self.policy.approval {
            Some(Approval::Always) => true,
            Some(Approval::Never | Approval::Worker) | None => {
                let condition = self.policy.approval_if.as_ref();
                condition.is_some_and(|condition| condition.is_met(args))
            }
        }
    }

    /// The same, if nothing is laid down about the effect of a tool that is known only to look.
    #[must_use]
    pub fn or_read(mut self, only_reads: bool) -> Self {
        let known = only_reads.then_some(Effect::Read);
        self.policy.effect = self.policy.effect.or(known);
        self
    }

    /// Whether a person is asked about a call that gave no answer. If nothing is said, what only looks may
    /// look again.
    pub fn asks_without_answer(&self) -> bool {
        match self.policy.on_no_answer {
            Some(OnNoAnswer::Ask) => true,
            Some(OnNoAnswer::Tell) => false,
            None => self.policy.effect != Some(Effect::Read),
        }
    }

    /// What nobody but the worker sees.
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

    /// What comes of a worker's wish: the policy, tightened where the worker does.
    pub(crate) fn tighten(&self, kind: HoldKind, wish: Wish) -> Result<Wish, EngineError> {
        let policy = &self.policy;
        let decide_by = match (&policy.decide_by, wish.decide_by) {
            (Some(set), Some(wished)) if *set != wished => {
                return Err(stricter("decide_by", &decide_by_text(set)));
            }
            (Some(set), _) => Some(set.clone()),
            (None, wished) => {
                require_judge(kind, wished.as_ref())?;
                wished
            }
        };
        let on_expiry = match (policy.on_expiry, wish.on_expiry) {
            (Some(set), Some(wished)) if set != wished => {
                return Err(stricter("on_expiry", word(&set).as_str()));
            }
            (set, wished) => set.or(wished),
        };
        let idempotent = match (policy.idempotent, wish.idempotent) {
            (Some(false), Some(true)) => return Err(stricter("idempotent", "false")),
            (set, wished) => wished.or(set),
        };
        Ok(Wish {
            decide_by,
            on_expiry,
            idempotent,
            effect: at_least("effect", policy.effect, wish.effect)?,
            risk: at_least("risk", policy.risk, wish.risk)?,
            quorum: at_least("quorum", policy.quorum, wish.quorum)?,
            expires_in_seconds: match (policy.expires_in_seconds, wish.expires_in_seconds) {
                (Some(most), Some(wished)) if wished > most => {
                    return Err(stricter("expires_in_seconds", &most.to_string()));
                }
                (most, wished) => wished.or(most),
            },
        })
    }
}

/// A worker cannot make the session's user, or another worker, the judge of its actions.
fn require_judge(kind: HoldKind, wished: Option<&DecideBy>) -> Result<(), EngineError> {
    let is_about_action = matches!(kind, HoldKind::Approval | HoldKind::Reconcile);
    match wished {
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
    wished: Option<T>,
) -> Result<Option<T>, EngineError> {
    match (least, wished) {
        (Some(least), Some(wished)) if wished < least => {
            Err(stricter(field, word(&least).as_str()))
        }
        (least, wished) => Ok(wished.or(least)),
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

/// Who decides, as callers write it.
pub fn decide_by_text(decide_by: &DecideBy) -> String {
    match decide_by {
        DecideBy::Other => "other".to_owned(),
        DecideBy::User => "user".to_owned(),
        DecideBy::Role(role) => format!("role:{role}"),
    }
}

/// Who decides, as callers write it.
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
