//! Which values a read of state returns.

use serde::{Deserialize, Serialize};
use statehold_core::scope::{Scope, StateKey};
use statehold_store::KeyRange;

use super::input::{prefix_text, read_key};
use crate::error::EngineError;

/// How many keys one read may name.
const NAMED_KEYS_MAX: usize = 256;

/// A part of the state, as a caller describes it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct StateQueryInput {
    /// Keys, separated by commas.
    pub keys: Option<String>,
    /// The beginning of the keys.
    pub prefix: Option<String>,
    /// The key behind which the page begins.
    pub after: Option<String>,
    /// Whether the page takes the last keys.
    pub reverse: bool,
}

/// A part of the state.
#[derive(Debug, Clone)]
pub struct StateQuery {
    /// The ranges of keys, in the order in which they are read.
    pub(crate) ranges: Vec<(Scope, KeyRange)>,
    /// The scope of the route; none if it reads all scopes.
    scope: Option<Scope>,
    /// The named keys; none if the query names no keys.
    keys: Option<Vec<StateKey>>,
    prefix: String,
    after: Option<StateKey>,
    reverse: bool,
}

impl Default for StateQuery {
    fn default() -> Self {
        let query = StateQueryInput::default().parse(None);
        query.expect("a query of all keys has no key that could be malformed")
    }
}

impl StateQueryInput {
    /// Validates a query. Routes of a single scope accept keys without its prefix.
    ///
    /// # Errors
    ///
    /// If a key is malformed, there are too many, or `keys` is combined with a range.
    pub fn parse(self, scope: Option<Scope>) -> Result<StateQuery, EngineError> {
        let keys = self.keys.as_deref().map(|keys| keys.split(','));
        let keys = keys.map(|keys| keys.map(|key| read_key(key, scope)).collect());
        let mut keys: Option<Vec<StateKey>> = keys.transpose()?;
        if keys.is_some() && self.prefix.is_some() {
            let detail = "`keys` names keys and `prefix` a range of them: use one of the two";
            return Err(EngineError::bad_state(detail));
        }
        if keys
            .as_ref()
            .is_some_and(|keys| keys.len() > NAMED_KEYS_MAX)
        {
            let detail = format!("`keys` names at most {NAMED_KEYS_MAX} keys");
            return Err(EngineError::bad_state(detail));
        }
        if let Some(keys) = &mut keys {
            keys.sort_by(|a, b| place_of(a).cmp(&place_of(b)));
            keys.dedup();
        }
        let after = self.after.as_deref().map(|key| read_key(key, scope));
        let mut query = StateQuery {
            ranges: Vec::new(),
            scope,
            keys,
            prefix: prefix_text(self.prefix.as_deref().unwrap_or_default(), scope)?,
            after: after.transpose()?,
            reverse: self.reverse,
        };
        query.ranges = query.ranges_of_keys();
        Ok(query)
    }
}

/// The order in which state is read: values of the app, of the user, of the session.
fn place_of(key: &StateKey) -> (Scope, &StateKey) {
    (key.scope(), key)
}

impl StateQuery {
    /// The part of the query that is read after a key.
    #[must_use]
    pub fn after(self, key: Option<StateKey>) -> Self {
        let Some(key) = key else {
            return self;
        };
        let mut later = Self {
            after: Some(key),
            ..self
        };
        later.ranges = later.ranges_of_keys();
        later
    }

    /// Whether the query begins at its first key.
    pub(crate) fn is_first(&self) -> bool {
        self.after.is_none()
    }

    /// Whether a key is in the query, wherever its page begins.
    pub(crate) fn has(&self, key: &StateKey) -> bool {
        match &self.keys {
            Some(keys) => keys.contains(key),
            None => key.as_str().starts_with(&self.prefix),
        }
    }

    /// The key of a page behind which the next page begins.
    pub(crate) fn last<'k>(
        &self,
        keys: impl Iterator<Item = &'k StateKey>,
    ) -> Option<&'k StateKey> {
        if self.reverse {
            keys.min_by_key(|key| place_of(key))
        } else {
            keys.max_by_key(|key| place_of(key))
        }
    }

    fn ranges_of_keys(&self) -> Vec<(Scope, KeyRange)> {
        let mut ranges: Vec<(Scope, KeyRange)> = match &self.keys {
            // One range per scope, so that keys of one commit are read together.
            Some(keys) => keys
                .chunk_by(|a, b| a.scope() == b.scope())
                .map(|keys| (keys[0].scope(), KeyRange::of_keys(keys.iter().cloned())))
                .collect(),
            None => self
                .scopes()
                .iter()
                .map(|scope| (*scope, KeyRange::of_prefix(&self.prefix)))
                .collect(),
        };
        ranges.retain(|(scope, _)| *scope != Scope::Temp);
        if self.reverse {
            ranges.reverse();
        }
        let directed = ranges.into_iter().filter_map(|(scope, range)| {
            let range = if self.reverse {
                range.reversed()
            } else {
                range
            };
            let Some(after) = &self.after else {
                return Some((scope, range));
            };
            let order = scope.cmp(&after.scope());
            match if self.reverse { order.reverse() } else { order } {
                std::cmp::Ordering::Less => None,
                std::cmp::Ordering::Equal => Some((scope, range.after(Some(after)))),
                std::cmp::Ordering::Greater => Some((scope, range)),
            }
        });
        directed.filter(|(_, range)| !range.is_empty()).collect()
    }

    fn scopes(&self) -> Vec<Scope> {
        match (self.scope, self.prefix.split_once(':')) {
            (Some(scope), _) => vec![scope],
            (None, Some(("app", _))) => vec![Scope::App],
            (None, Some(("user", _))) => vec![Scope::User],
            (None, Some(("temp", _))) => Vec::new(),
            (None, _) if self.prefix.is_empty() => vec![Scope::App, Scope::User, Scope::Session],
            (None, _) => vec![Scope::Session],
        }
    }
}
