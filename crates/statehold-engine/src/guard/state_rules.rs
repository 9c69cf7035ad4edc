//! Rules of state keys, set by an operator: how a write merges that names no policy, and the schema that values
//! must fit. Schemas hold for every surface, so no key escapes its schema by the route that writes it.

use std::cmp::Reverse;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde_json::Value;
use statehold_core::command::StatePatch;
use statehold_core::scope::{MergePolicy, Scope, StateKey, StateKeyError};

use crate::caller::Caller;
use crate::commit::payloads::Payloads;
use crate::engine::Engine;
use crate::error::EngineError;
use crate::guard::policy::Policies;
use crate::guard::schema::{FieldError, Schema};

/// Up to this size a validation takes less time than handing it to another thread.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// Up to this size all errors of a value are reported, and the first one of a longer value.
const ALL_ERRORS_BYTES_MAX: usize = 16 * 1024;

/// The keys that a rule is about: one, as in `user:visits`, or all that begin with a text, as in `user:*`. `*` alone
/// means every session key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct StateKeyPattern {
    /// The key, or its beginning.
    text: String,
    is_prefix: bool,
    scope: Scope,
}

impl StateKeyPattern {
    /// The scope of its keys.
    pub fn scope(&self) -> Scope {
        self.scope
    }

    fn has(&self, key: &StateKey) -> bool {
        let text = key.as_str();
        if self.is_prefix {
            key.scope() == self.scope && text.starts_with(&self.text)
        } else {
            text == self.text
        }
    }
}

impl FromStr for StateKeyPattern {
    type Err = StateKeyError;

    fn from_str(text: &str) -> Result<Self, StateKeyError> {
        let (text, is_prefix) = match text.strip_suffix('*') {
            Some(beginning) => (beginning, true),
            None => (text, false),
        };
        let scope = match text {
            "" if is_prefix => Scope::Session,
            "app:" if is_prefix => Scope::App,
            "user:" if is_prefix => Scope::User,
            "temp:" if is_prefix => Scope::Temp,
            text => text.parse::<StateKey>()?.scope(),
        };
        Ok(Self {
            text: text.to_owned(),
            is_prefix,
            scope,
        })
    }
}

impl fmt::Display for StateKeyPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)?;
        f.write_str(if self.is_prefix { "*" } else { "" })
    }
}

/// Rule of some keys. Fields that are not set are those of a less specific rule.
#[derive(Debug, Clone, Default)]
pub struct StateRule {
    /// How a write merges that names no policy.
    pub merge: Option<MergePolicy>,
    /// The schema that each value must fit.
    pub schema: Option<Arc<Schema>>,
}

/// Rules of all state keys.
#[derive(Debug, Clone, Default)]
pub struct StateRules {
    /// The most specific first: single keys, then longer beginnings before shorter ones.
    rules: Vec<(StateKeyPattern, StateRule)>,
}

impl FromIterator<(StateKeyPattern, StateRule)> for StateRules {
    fn from_iter<I: IntoIterator<Item = (StateKeyPattern, StateRule)>>(rules: I) -> Self {
        let mut rules: Vec<_> = rules.into_iter().collect();
        rules.sort_by_key(|(pattern, _)| (pattern.is_prefix, Reverse(pattern.text.len())));
        Self { rules }
    }
}

impl StateRules {
    /// How a write of this key merges that names no policy.
    pub(crate) fn merge_of(&self, key: &StateKey) -> MergePolicy {
        let mut rules = self.of(key);
        rules.find_map(|rule| rule.merge).unwrap_or_default()
    }

    /// Why a value does not fit the schema of its key. Empty if it fits, or has none.
    pub fn errors(&self, key: &StateKey, value: &[u8]) -> Vec<FieldError> {
        let mut rules = self.of(key);
        let Some(schema) = rules.find_map(|rule| rule.schema.as_ref()) else {
            return Vec::new();
        };
        match serde_json::from_slice::<Value>(value) {
            Ok(parsed) if value.len() > ALL_ERRORS_BYTES_MAX => {
                schema.first_error(&parsed).into_iter().collect()
            }
            Ok(parsed) => schema.errors(&parsed),
            Err(_) => {
                let what = "has a number that cannot be validated; send it as a text";
                vec![FieldError::new("", what)]
            }
        }
    }

    fn of(&self, key: &StateKey) -> impl Iterator<Item = &StateRule> {
        let rules = self.rules.iter().filter(|(pattern, _)| pattern.has(key));
        rules.map(|(_, rule)| rule)
    }

    fn has_schema(&self, key: &StateKey) -> bool {
        self.of(key).any(|rule| rule.schema.is_some())
    }

    /// Refuses values that do not fit the schema of their key.
    pub(crate) fn require_fit<'v>(
        &self,
        values: impl IntoIterator<Item = (&'v StateKey, &'v [u8])>,
    ) -> Result<(), EngineError> {
        for (key, value) in values {
            let errors = self.errors(key, value);
            if !errors.is_empty() {
                let key = key.clone();
                return Err(EngineError::StateInvalid { key, errors });
            }
        }
        Ok(())
    }
}

/// The values of a patch that replace stored ones or are added to lists, with their keys. Merged values are checked
/// after the merge.
fn plain_values<'p>(
    patch: &'p StatePatch,
    payloads: &'p Payloads,
) -> impl Iterator<Item = (StateKey, &'p [u8])> {
    let plain = patch.set.iter();
    let plain = plain.filter(|set| set.merge == MergePolicy::Replace);
    let plain = plain.map(|set| (set.key.clone(), &set.value));
    // The rules of a list are those of its elements: any of them stands for all.
    let elements = patch.append.iter().flat_map(|list| {
        let values = list.values.iter();
        values.map(|value| (list.list.element(0, 0), value))
    });
    let values = plain.chain(elements);
    values.filter_map(|(key, value)| Some((key, payloads.get(value)?)))
}

/// Values with a schema, on their way to be validated.
struct ValuesToValidate {
    policies: Arc<Policies>,
    values: Vec<(StateKey, Vec<u8>)>,
}

impl ValuesToValidate {
    fn of<'v>(engine: &Engine, values: impl Iterator<Item = (StateKey, &'v [u8])>) -> Self {
        let policies = engine.policies();
        let values = values.filter(|(key, _)| policies.state.has_schema(key));
        let values = values.map(|(key, value)| (key, value.to_vec())).collect();
        Self { policies, values }
    }

    fn validate(&self) -> Result<(), EngineError> {
        let values = self.values.iter();
        let values = values.map(|(key, value)| (key, value.as_slice()));
        self.policies.state.require_fit(values)
    }

    /// Validates long values in another thread.
    async fn require_fit(self, engine: &Engine, caller: &Caller) -> Result<(), EngineError> {
        let bytes: usize = self.values.iter().map(|(_, value)| value.len()).sum();
        if bytes <= INLINE_BYTES_MAX {
            return self.validate();
        }
        engine.run_long(caller, move || self.validate()).await?
    }
}

impl Engine {
    /// Refuses a patch with a value that does not fit the schema of its key.
    pub(crate) async fn require_patch_fits(
        &self,
        caller: &Caller,
        patch: &StatePatch,
        payloads: &Payloads,
    ) -> Result<(), EngineError> {
        let values = ValuesToValidate::of(self, plain_values(patch, payloads));
        values.require_fit(self, caller).await
    }

    /// Refuses values that do not fit the schema of their key.
    pub(crate) async fn require_values_fit(
        &self,
        caller: &Caller,
        values: &[(StateKey, Vec<u8>)],
    ) -> Result<(), EngineError> {
        let values = values.iter();
        let values = values.map(|(key, value)| (key.clone(), value.as_slice()));
        let values = ValuesToValidate::of(self, values);
        values.require_fit(self, caller).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(rules: &[(&str, Option<MergePolicy>, Option<&str>)]) -> StateRules {
        let rules = rules.iter().map(|(pattern, merge, schema)| {
            let pattern: StateKeyPattern = pattern.parse().expect("a pattern");
            let schema = schema.map(|schema| Arc::new(Schema::new(schema).expect("a schema")));
            let merge = *merge;
            (pattern, StateRule { merge, schema })
        });
        rules.collect()
    }

    fn key(text: &str) -> StateKey {
        StateKey::lenient(text).expect("a key")
    }

    #[test]
    fn the_most_specific_rule_that_sets_a_field_counts() {
        let text = Some(r#"{"type":"string"}"#);
        let number = Some(r#"{"type":"number"}"#);
        let rules = rules(&[
            ("user:*", Some(MergePolicy::KeepFirst), text),
            ("user:count/*", Some(MergePolicy::Add), number),
            ("user:count/name", None, text),
            ("*", Some(MergePolicy::Patch), None),
        ]);
        assert_eq!(rules.merge_of(&key("user:x")), MergePolicy::KeepFirst);
        assert_eq!(rules.merge_of(&key("user:count/x")), MergePolicy::Add);
        assert_eq!(rules.merge_of(&key("user:count/name")), MergePolicy::Add);
        assert_eq!(rules.merge_of(&key("x")), MergePolicy::Patch);
        assert_eq!(rules.merge_of(&key("app:x")), MergePolicy::Replace);
        let fits = |name: &str, value: &str| rules.errors(&key(name), value.as_bytes()).is_empty();
        assert!(fits("user:x", r#""a""#) && !fits("user:x", "1"));
        assert!(fits("user:count/x", "1") && !fits("user:count/x", r#""a""#));
        assert!(fits("user:count/name", r#""a""#) && !fits("user:count/name", "1"));
        assert!(fits("x", "1") && fits("app:x", "1"));
    }

    #[test]
    fn a_colon_in_a_key_escapes_no_schema() {
        let rules = rules(&[("*", None, Some(r#"{"type":"string"}"#))]);
        for session_key in ["x", "other:x", "a:b:c", "USER:x"] {
            assert_eq!(
                rules.errors(&key(session_key), b"1").len(),
                1,
                "{session_key}"
            );
        }
        assert_eq!(rules.errors(&key("user:x"), b"1"), []);
    }

    #[test]
    fn a_pattern_is_a_key_or_the_beginning_of_keys() {
        for text in ["a", "a*", "*", "user:*", "app:x/*", "temp:*"] {
            let pattern: StateKeyPattern = text.parse().expect(text);
            assert_eq!(pattern.to_string(), text);
        }
        for bad in ["", "User:*", "other:x", "other:*", "user:"] {
            assert!(bad.parse::<StateKeyPattern>().is_err(), "{bad}");
        }
    }
}
