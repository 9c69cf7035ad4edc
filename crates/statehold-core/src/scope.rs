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

/// Beginning of session keys, for example `items/`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyPrefix(Arc<str>);

/// Why a text is not the beginning of session keys.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyPrefixError {
    /// Not the text of a key.
    #[error(transparent)]
    Key(#[from] StateKeyError),
    /// It begins with the prefix of another scope.
    #[error(
        "lists and prefixes are of session keys; `app:`, `user:` and `temp:` keys are written one by one"
    )]
    OtherScope,
    /// A list whose name does not end with a slash, or is so long that a number does not fit.
    #[error(
        "the name of a list ends with `/` and has at most {LIST_NAME_BYTES_MAX} bytes, as in `items/`"
    )]
    NotAList,
}

/// Longest name of a list, in bytes: the numbers of its keys have 20 digits.
const LIST_NAME_BYTES_MAX: usize = STATE_KEY_BYTES_MAX - 20;

impl KeyPrefix {
    /// The name of a list: it ends with a slash, so that no name is the beginning of another one by accident.
    ///
    /// # Errors
    ///
    /// If the text begins no session key, or does not name a list.
    pub fn of_list(text: &str) -> Result<Self, KeyPrefixError> {
        let prefix: Self = text.parse()?;
        if text.ends_with('/') && text.len() <= LIST_NAME_BYTES_MAX {
            Ok(prefix)
        } else {
            Err(KeyPrefixError::NotAList)
        }
    }

    /// The key of an element that the record `revision` adds to the list, the `index`th of this list. Revisions of
    /// a session only grow, also in its forks and rewinds, so a key is never made twice, and keys sort in the
    /// order in which elements were added.
    pub fn element(&self, revision: u64, index: usize) -> StateKey {
        StateKey(format!("{}{revision:016}{index:04}", self.0).into())
    }

    /// The smallest text that sorts behind every key with this prefix.
    pub fn end(text: &str) -> String {
        let mut end: Vec<char> = text.chars().collect();
        while let Some(last) = end.pop() {
            let next = match last {
                '\u{d7ff}' => Some('\u{e000}'),
                other => char::from_u32(other as u32 + 1),
            };
            if let Some(next) = next {
                end.push(next);
                return end.into_iter().collect();
            }
        }
        // Longer than a key can be, of the last character.
        "\u{10ffff}".repeat(STATE_KEY_BYTES_MAX / 4 + 1)
    }
}

impl FromStr for KeyPrefix {
    type Err = KeyPrefixError;

    fn from_str(text: &str) -> Result<Self, KeyPrefixError> {
        let key: StateKey = text.parse()?;
        if key.scope() == Scope::Session {
            Ok(Self(key.0))
        } else {
            Err(KeyPrefixError::OtherScope)
        }
    }
}

text_type!(KeyPrefix);

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
    /// The larger number stays.
    Max,
    /// The smaller number stays.
    Min,
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
    fn elements_of_a_list_sort_as_they_were_added() {
        let list = KeyPrefix::of_list("items/").expect("a list");
        let keys = [(7, 0), (7, 1), (7, 10), (10, 0), (123_456, 3)];
        let keys = keys.map(|(revision, index)| list.element(revision, index).to_string());
        assert_eq!(keys[0], "items/00000000000000070000");
        assert!(keys.is_sorted(), "{keys:?}");
        let largest = list.element(crate::limits::EXACT_INTEGER_MAX, 9_999);
        assert_eq!(largest.as_str().len(), "items/".len() + 20);
        for bad in ["items", "user:items/", "App:x/", "", "a\0/"] {
            assert!(KeyPrefix::of_list(bad).is_err(), "{bad}");
        }
        assert!(KeyPrefix::of_list(&format!("{}/", "x".repeat(492))).is_err());
    }

    #[test]
    fn the_end_of_a_prefix_is_behind_all_of_its_keys() {
        assert_eq!(KeyPrefix::end("items/"), "items0");
        assert_eq!(KeyPrefix::end("a\u{d7ff}"), "a\u{e000}");
        assert_eq!(KeyPrefix::end("a\u{10ffff}"), "b");
        let last = "\u{10ffff}".repeat(128);
        assert!(KeyPrefix::end(&last) > last);
        assert!(KeyPrefix::end("") > last);
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
