//! Policy of a tool on a tool server, under any of its names.
//!
//! A policy may name a tool by its name on the server, or with the server name before it. Both count,
//! regardless of the name that models see, which depends on the other servers.

use statehold_core::name::Name;
use statehold_engine::policy::{Effective, Policies};

use crate::mcp::model_safe_name;

/// Policy of one tool.
pub(crate) struct ToolRules {
    /// Name for the call items. The engine looks policies up by this name and gets the same result.
    pub(crate) recorded: String,
    pub(crate) effective: Effective,
}

impl ToolRules {
    pub(crate) fn of(policies: &Policies, agent: &Name, server: &str, original: &str) -> Self {
        let names = policy_names(server, original);
        let is_named = |name: &&String| policies.names(agent, name);
        let recorded = names.iter().find(is_named).cloned();
        let all: Vec<&str> = names.iter().map(String::as_str).collect();
        Self {
            recorded: recorded.unwrap_or_else(|| original.to_owned()),
            effective: policies.of_any(agent, &all),
        }
    }
}

/// Names of a tool, most specific first.
fn policy_names(server: &str, original: &str) -> [String; 4] {
    let plain = model_safe_name(original);
    [
        format!("{server}__{original}"),
        format!("{}__{plain}", model_safe_name(server)),
        original.to_owned(),
        plain,
    ]
}

#[cfg(test)]
mod tests {
    use statehold_engine::policy::{AgentPolicy, Approval, ToolPolicy};

    use super::*;

    #[track_caller]
    fn check(named: &[(&str, Approval)], recorded: &str, needs_approval: bool) {
        let tools = named.iter().map(|(name, approval)| {
            let policy = ToolPolicy {
                approval: Some(*approval),
                ..ToolPolicy::default()
            };
            (name.parse().expect("a name"), policy)
        });
        let agent: Name = "a".parse().expect("a name");
        let policy = AgentPolicy {
            tools: tools.collect(),
            ..AgentPolicy::default()
        };
        let policies = Policies {
            agents: [(agent.clone(), policy)].into(),
            ..Policies::default()
        };
        // A policy kept from an earlier configuration gives the same result.
        let later = Policies::default().in_place_of(&policies);
        for policies in [policies, later] {
            let rules = ToolRules::of(&policies, &agent, "files.x", "user.delete");
            assert_eq!(rules.recorded, recorded, "{named:?}");
            for effective in [rules.effective, policies.of(&agent, recorded)] {
                let args = serde_json::json!({});
                assert_eq!(effective.needs_approval(&args), needs_approval, "{named:?}");
            }
        }
    }

    #[test]
    fn every_name_of_a_tool_counts_and_the_engine_agrees() {
        use Approval::{Always, Never};
        check(&[], "user.delete", false);
        check(&[("user.delete", Always)], "user.delete", true);
        check(&[("user_delete", Always)], "user_delete", true);
        let long = "files.x__user.delete";
        check(&[(long, Always)], long, true);
        check(&[(long, Never), ("user.delete", Always)], long, true);
        check(&[(long, Always), ("user.delete", Never)], long, true);
        check(
            &[("files_x__user_delete", Always)],
            "files_x__user_delete",
            true,
        );
        check(&[("other__user.delete", Always)], "user.delete", false);
    }
}
