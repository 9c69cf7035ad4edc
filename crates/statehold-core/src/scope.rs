//! State keys, their scopes, and how concurrent writes of shared values merge.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;

use crate::limits::{EXACT_INTEGER_MAX, STATE_KEY_BYTES_MAX};

/// How far a value reaches and how long it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// `app:`, every session of every user of the app.
    App,
    /// `user:`, every session of one user.
    User,
    /// No prefix, this session.
    Session,
    /// `temp:`, this invocation; in memory only.
    Temp,
}

/// A state key with its prefix, for example `user:language` or `topic`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StateKey(Arc<str>);

/// Why a text is not a state key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StateKeyError {
    /// Nothing after the prefix.
    #[error("a state key must not be empty")]
    Empty,
    /// Longer than the limit.
    #[error("a state key has at most {STATE_KEY_BYTES_MAX} bytes")]
    TooLong,
    /// Control characters, NUL among them.
    #[error("a state key must not contain control characters")]
    Control,
    /// A prefix that is none of the four, or one of them in other letters.
    #[error("`{prefix}:` is not a scope; use `app:`, `user:`, `temp:` or no prefix")]
    UnknownScope {
        /// What stands before the colon.
        prefix: String,
    },
}

impl StateKey {
    /// The key as it is written, prefix included.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The scope that the prefix names.
    pub fn scope(&self) -> Scope {
        match self.0.split_once(':') {
            Some(("app", _)) => Scope::App,
            Some(("user", _)) => Scope::User,
            Some(("temp", _)) => Scope::Temp,
            _ => Scope::Session,
        }
    }

    /// A key whose unknown prefix is part of its name, as ADK's session service has them.
    ///
    /// # Errors
    ///
    /// Like parsing, except that unknown prefixes are taken.
    pub fn lenient(text: &str) -> Result<Self, StateKeyError> {
        Self::parse(text, false)
    }

    fn parse(text: &str, strict: bool) -> Result<Self, StateKeyError> {
        if text.len() > STATE_KEY_BYTES_MAX {
            return Err(StateKeyError::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(StateKeyError::Control);
        }
        let name = match text.split_once(':') {
            Some(("app" | "user" | "temp", name)) => name,
            Some((prefix, _)) if strict => {
                return Err(StateKeyError::UnknownScope {
                    prefix: prefix.to_owned(),
                });
            }
            _ => text,
        };
        if name.is_empty() {
            Err(StateKeyError::Empty)
        } else {
            Ok(Self(text.into()))
        }
    }
}

impl FromStr for StateKey {
    type Err = StateKeyError;

    fn from_str(text: &str) -> Result<Self, StateKeyError> {
        Self::parse(text, true)
    }
}

impl fmt::Display for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for StateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

impl Borrow<str> for StateKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl Serialize for StateKey {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for StateKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::lenient(&text).map_err(serde::de::Error::custom)
    }
}

/// How a write of a shared value meets the value that is there.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Merge))]
#[serde(rename_all = "snake_case")]
pub enum MergePolicy {
    /// The new value stands.
    #[default]
    Replace,
    /// The first value stands.
    KeepFirst,
    /// Numbers are added.
    Add,
    /// Lists are joined, new at the end.
    Append,
    /// Lists are joined, each value once.
    Union,
    /// Objects are merged field by field, as in RFC 7396: null removes.
    Patch,
}

/// Why two values do not merge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MergeError {
    /// The policy wants another type on one side.
    #[error("`{policy:?}` cannot merge values of these types")]
    Types {
        /// The policy.
        policy: MergePolicy,
    },
    /// The sum is too large to stay exact.
    #[error("the sum cannot be kept exactly")]
    Overflow,
}

/// What `old` becomes when `new` is written under `policy`.
///
/// # Errors
///
/// Refuses values whose types the policy cannot merge, and sums that would lose precision.
pub fn merge(policy: MergePolicy, old: Option<&Value>, new: &Value) -> Result<Value, MergeError> {
    let types = MergeError::Types { policy };
    let Some(old) = old else {
        let fits = match policy {
            MergePolicy::Replace | MergePolicy::KeepFirst => true,
            MergePolicy::Add => new.is_number(),
            MergePolicy::Append | MergePolicy::Union => new.is_array(),
            MergePolicy::Patch => new.is_object(),
        };
        return match policy {
            _ if !fits => Err(types),
            MergePolicy::Union => merge(policy, Some(&Value::Array(Vec::new())), new),
            MergePolicy::Patch => Ok(patch(&Value::Null, new)),
            _ => Ok(new.clone()),
        };
    };
    match policy {
        MergePolicy::Replace => Ok(new.clone()),
        MergePolicy::KeepFirst => Ok(old.clone()),
        MergePolicy::Add => add(old, new, types),
        MergePolicy::Append | MergePolicy::Union => {
            let (Value::Array(old), Value::Array(new)) = (old, new) else {
                return Err(types);
            };
            let mut joined = old.clone();
            for value in new {
                if policy == MergePolicy::Append || !joined.contains(value) {
                    joined.push(value.clone());
                }
            }
            Ok(Value::Array(joined))
        }
        MergePolicy::Patch if new.is_object() => Ok(patch(old, new)),
        MergePolicy::Patch => Err(types),
    }
}

fn add(old: &Value, new: &Value, types: MergeError) -> Result<Value, MergeError> {
    if let (Some(a), Some(b)) = (old.as_i64(), new.as_i64()) {
        let sum = a.checked_add(b).ok_or(MergeError::Overflow)?;
        return if sum.unsigned_abs() <= EXACT_INTEGER_MAX {
            Ok(sum.into())
        } else {
            Err(MergeError::Overflow)
        };
    }
    let (Some(a), Some(b)) = (old.as_f64(), new.as_f64()) else {
        return Err(types);
    };
    serde_json::Number::from_f64(a + b)
        .map(Value::Number)
        .ok_or(MergeError::Overflow)
}

fn patch(old: &Value, new: &Value) -> Value {
    let Value::Object(new) = new else {
        return new.clone();
    };
    let mut merged = old.as_object().cloned().unwrap_or_default();
    for (key, value) in new {
        if value.is_null() {
            merged.shift_remove(key);
        } else {
            let below = merged.get(key).unwrap_or(&Value::Null);
            merged.insert(key.clone(), patch(below, value));
        }
    }
    Value::Object(merged)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn prefixes_name_scopes() {
        let scope = |text: &str| text.parse::<StateKey>().map(|key| key.scope());
        assert_eq!(scope("topic"), Ok(Scope::Session));
        assert_eq!(scope("app:flags"), Ok(Scope::App));
        assert_eq!(scope("user:language"), Ok(Scope::User));
        assert_eq!(scope("temp:chunk"), Ok(Scope::Temp));
        assert_eq!(scope("user:a:b"), Ok(Scope::User));
        assert_eq!(scope("__proto__"), Ok(Scope::Session));
        assert_eq!(scope("../x"), Ok(Scope::Session));
    }

    #[test]
    fn keys_that_only_look_like_scopes_are_refused() {
        for bad in ["App:x", "USER:x", "tmp:x", "session:x", ":x", " user:x"] {
            assert!(
                matches!(
                    bad.parse::<StateKey>(),
                    Err(StateKeyError::UnknownScope { .. })
                ),
                "{bad}"
            );
        }
        assert_eq!("".parse::<StateKey>(), Err(StateKeyError::Empty));
        assert_eq!("app:".parse::<StateKey>(), Err(StateKeyError::Empty));
        assert_eq!("a\0b".parse::<StateKey>(), Err(StateKeyError::Control));
        assert_eq!(
            "x".repeat(513).parse::<StateKey>(),
            Err(StateKeyError::TooLong)
        );
        assert_eq!(
            StateKey::lenient("tmp:x").map(|key| key.scope()),
            Ok(Scope::Session)
        );
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "reads better in the cases")]
    fn check(policy: MergePolicy, old: Option<Value>, new: Value, expected: Option<Value>) {
        assert_eq!(merge(policy, old.as_ref(), &new).ok(), expected);
    }

    #[test]
    fn policies_merge_what_they_say() {
        use MergePolicy::{Add, Append, KeepFirst, Patch, Replace, Union};
        check(Replace, Some(json!(1)), json!(2), Some(json!(2)));
        check(KeepFirst, Some(json!(1)), json!(2), Some(json!(1)));
        check(KeepFirst, None, json!(2), Some(json!(2)));
        check(Add, None, json!(2), Some(json!(2)));
        check(Add, Some(json!(1)), json!(2), Some(json!(3)));
        check(Add, Some(json!(1.5)), json!(2), Some(json!(3.5)));
        check(Add, Some(json!("1")), json!(2), None);
        check(Add, Some(json!(9_007_199_254_740_991_i64)), json!(1), None);
        check(Append, Some(json!([1])), json!([1]), Some(json!([1, 1])));
        check(Append, None, json!({}), None);
        check(
            Union,
            Some(json!([1])),
            json!([1, 2, 2]),
            Some(json!([1, 2])),
        );
        check(Union, None, json!([2, 2]), Some(json!([2])));
        check(
            Patch,
            Some(json!({"a": 1, "b": 2})),
            json!({"b": null, "c": {"d": null}}),
            Some(json!({"a": 1, "c": {}})),
        );
        check(Patch, Some(json!({})), json!(1), None);
    }
}
