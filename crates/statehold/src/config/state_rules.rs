//! Rules of state keys in the file: `[state."user:*"]`.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use statehold_core::scope::{MergePolicy, Scope};
use statehold_engine::{StateKeyPattern, StateRule, StateRules};

use super::keys::STATE;
use super::layers::step;
use super::mistakes::ConfigReader;
use super::values::SchemaTable;

/// A key, or the beginning of keys and a star.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct StateKeys(StateKeyPattern);

impl TryFrom<String> for StateKeys {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let pattern = text.parse().map(Self);
        pattern.map_err(|error: statehold_core::scope::StateKeyError| error.to_string())
    }
}

impl fmt::Display for StateKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The rule of some keys.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct StateRuleConfig {
    merge: Option<MergePolicy>,
    schema: Option<SchemaTable>,
}

/// The names of the settings.
pub(super) const STATE_SETTINGS: [&str; 2] = ["merge", "schema"];

/// The rules for the engine.
pub(super) fn state_rules(rules: &BTreeMap<StateKeys, StateRuleConfig>) -> StateRules {
    let rules = rules.iter().map(|(keys, rule)| {
        let schema = rule.schema.as_ref();
        let schema = schema.map(|schema| Arc::new(schema.schema()));
        let merge = rule.merge;
        (keys.0.clone(), StateRule { merge, schema })
    });
    rules.collect()
}

impl ConfigReader<'_> {
    /// Requires that no rule merges `temp:` keys, which are replaced in memory.
    pub(super) fn require_state_rules(&mut self) {
        for (keys, rule) in &self.config.state {
            if keys.0.scope() == Scope::Temp && rule.merge.is_some() {
                let place = format!("{STATE}.{}.merge", step(&keys.to_string()));
                let what = "is for keys that are stored, and `temp:` keys are not";
                self.add_mistake(place, what, "leave it out: a write replaces the value");
            }
        }
    }
}
