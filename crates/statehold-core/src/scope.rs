//! State keys, their scopes and the names of merge policies.

use std::borrow::Borrow;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::limits::STATE_KEY_BYTES_MAX;
use crate::name::text_type;

/// Scope of a state key: how far its value reaches and how long it lives.
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
        /// The text before the colon.
        prefix: String,
    },
}

impl StateKey {
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

text_type!(StateKey);

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

/// Policy that merges a state write with the existing value.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema), schema(as = Merge))]
#[serde(rename_all = "snake_case")]
pub enum MergePolicy {
    /// The new value replaces the old one.
    #[default]
    Replace,
    /// The first value stays.
    KeepFirst,
    /// Adds numbers.
    Add,
    /// Joins lists, new values last.
    Append,
    /// Joins lists without adding a value that is already present.
    Union,
    /// Merges objects field by field, as in RFC 7396: null removes.
    Patch,
}

#[cfg(test)]
mod tests {
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
}
