//! `[redaction]` in the file: whether secrets are redacted before they are stored, and patterns of the operator.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use statehold_core::name::Name;
use statehold_core::redact::{PATTERNS_MAX, Pattern, Redactor, rule_ids};
use statehold_engine::RedactionRules;

use super::AgentConfig;

/// The rules of redaction before storing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedactionConfig {
    /// Whether secrets are redacted, unless an agent says otherwise.
    pub(super) mode: RedactionMode,
    /// Patterns of secrets besides the rules.
    pub(super) patterns: SecretPatterns,
}

/// Whether secrets are redacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum RedactionMode {
    #[default]
    On,
    Off,
}

/// Patterns with names of their own.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<SecretPattern>")]
pub(super) struct SecretPatterns(Vec<SecretPattern>);

impl TryFrom<Vec<SecretPattern>> for SecretPatterns {
    type Error = String;

    fn try_from(patterns: Vec<SecretPattern>) -> Result<Self, String> {
        if patterns.len() > PATTERNS_MAX {
            return Err(format!(
                "there are at most {PATTERNS_MAX}; join some with |"
            ));
        }
        let mut names: BTreeSet<&str> = rule_ids().collect();
        for SecretPattern { name, .. } in &patterns {
            if !names.insert(name.as_str()) {
                return Err(format!(
                    "`{name}` is the name of another rule; choose another"
                ));
            }
        }
        Ok(Self(patterns))
    }
}

/// A pattern. What it finds reads `[redacted:NAME]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "PatternTable")]
pub(super) struct SecretPattern {
    name: Name,
    pattern: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PatternTable {
    name: Name,
    pattern: String,
}

impl TryFrom<PatternTable> for SecretPattern {
    type Error = String;

    fn try_from(PatternTable { name, pattern }: PatternTable) -> Result<Self, String> {
        match Pattern::new(&name, &pattern) {
            Ok(_) => Ok(Self { name, pattern }),
            Err(error) => Err(format!("the pattern `{name}` {error}")),
        }
    }
}

/// The rules for the engine.
pub(super) fn redaction_rules(
    config: &RedactionConfig,
    agents: &BTreeMap<Name, AgentConfig>,
) -> RedactionRules {
    let patterns = config.patterns.0.iter().map(|one| {
        let pattern = Pattern::new(&one.name, &one.pattern);
        pattern.expect("it was a pattern when it was read")
    });
    let agents = agents
        .iter()
        .filter_map(|(name, agent)| Some((name.clone(), agent.redact_secrets?)));
    RedactionRules {
        is_off: config.mode == RedactionMode::Off,
        agents: agents.collect(),
        redactor: Redactor::new(patterns.collect()),
    }
}
